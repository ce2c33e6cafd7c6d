//! A daemon with a limit on the length of files: it lifts what it was started with, and what passes one that stays is refused.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::common::modes::in_both_modes;
use super::common::pattern::{assert_same, object};
use super::common::sys::{failure, limit_file_size};
use super::common::{Mode, Mount};

in_both_modes!(
    a_limit_on_the_length_of_files_that_a_daemon_was_started_with_is_lifted,
    what_passes_the_limit_on_the_length_of_files_is_refused_and_ends_no_daemon,
    what_is_as_long_as_the_limit_on_the_length_of_files_is_written_piece_by_piece,
);

/// The limit: what a daemon writes at its start, and its log, are shorter.
const LIMIT: u64 = 1 << 20;
/// What passes it.
const LONG: u64 = 4 * LIMIT;
/// Longest time from the start of the daemon to its mount.
const START: Duration = Duration::from_secs(20);

fn a_limit_on_the_length_of_files_that_a_daemon_was_started_with_is_lifted(mode: Mode) {
    let mut mount = Mount::prepare(&mode.options(&[]));
    if mount.is_bare() {
        return;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("the limit of this process");
    mount.start_daemon_by(START, |command| {
        // SAFETY: between fork and exec the closure makes one async-signal-safe system call and allocates nothing.
        unsafe {
            command.pre_exec(move || setrlimit(Resource::RLIMIT_FSIZE, LIMIT, hard).map_err(io::Error::from));
        }
        command.spawn()
    });
    let path = mount.namespace("ns").join("key");
    let file = File::create(&path).expect("create");
    file.set_len(LONG).expect("the daemon may make it as long");
    drop(file);
    let whole = object(1, usize::try_from(LONG).expect("a length"));
    fs::write(&path, &whole).expect("write");
    assert_same(&fs::read(&path).expect("read"), &whole, "the object");
}

fn what_passes_the_limit_on_the_length_of_files_is_refused_and_ends_no_daemon(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    if mount.is_bare() {
        return;
    }
    let place = mount.namespace("ns");
    fs::write(place.join("before"), object(1, 50_000)).expect("an object");
    let limit = limit_file_size(mount.pid(), LIMIT);
    let mut file = File::create(place.join("key")).expect("create");
    assert_eq!(failure(file.set_len(LONG), "ftruncate"), Errno::EFBIG);
    assert_eq!(file.metadata().expect("fstat").len(), 0, "what is refused changes nothing");
    if mode == Mode::Direct {
        // With passthrough the kernel writes, within the limit of its caller.
        let written = file.write_all(&object(2, usize::try_from(LONG).expect("a length")));
        assert_eq!(failure(written, "write"), Errno::EFBIG);
        drop(file);
        assert!(!place.join("key").exists(), "half of what was to be written is no object");
    }
    limit_file_size(mount.pid(), limit);
    assert_same(&fs::read(place.join("before")).expect("it is served"), &object(1, 50_000), "the object");
    File::create(place.join("key")).and_then(|file| file.set_len(LONG)).expect("it may be as long now");
}

/// The daemon allocates ahead of the pieces, further than the limit.
fn what_is_as_long_as_the_limit_on_the_length_of_files_is_written_piece_by_piece(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    if mount.is_bare() {
        return;
    }
    let path = mount.namespace("ns").join("key");
    let limit = limit_file_size(mount.pid(), LIMIT);
    let whole = object(1, usize::try_from(LIMIT).expect("a length"));
    let mut file = File::create(&path).expect("create");
    for piece in whole.chunks(384 << 10) {
        file.write_all(piece).expect("it is no longer than a file may be");
    }
    drop(file);
    assert_same(&fs::read(&path).expect("it is an object"), &whole, "the object");
    limit_file_size(mount.pid(), limit);
}
