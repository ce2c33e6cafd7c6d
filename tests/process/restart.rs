//! What a restart keeps: every sealed object with its bytes, times, modes and policies; nothing that was not sealed.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::common::modes::in_both_modes;
use super::common::mount::mounts_below;
use super::common::pattern::{assert_same, bytes};
use super::common::sys::{checksum_of, get_xattr, set_xattr};
use super::common::{Mode, Mount, Peer};

/// Sealed objects in the sample.
const OBJECTS: u64 = 120;
/// Settings of directories and objects that must survive.
const POLICIES: [(&str, &str, &str); 7] = [
    ("alpha", "user.tidefs.quota", "256MiB"),
    ("alpha", "user.tidefs.floor", "8MiB"),
    ("alpha/deep/er", "user.tidefs.priority", "5"),
    ("alpha/deep", "user.tidefs.pin", "soft"),
    ("beta", "user.tidefs.ttl", "2h"),
    ("beta", "user.tidefs.policy", "lru"),
    ("gamma/object2", "user.tidefs.pin", "hard"),
];

/// What a path showed before the restart.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    size: u64,
    mode: u32,
    modified: (i64, i64),
    is_file: bool,
}

/// Everything below `directory`, hidden control files aside.
fn shown_below(directory: &Path) -> BTreeMap<PathBuf, Shown> {
    let mut shown = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a readable directory") {
            let path = entry.expect("a readable entry").path();
            let facts = fs::metadata(&path).expect("a listed name can be looked at");
            let modified = if facts.is_file() { (facts.mtime(), facts.mtime_nsec()) } else { (0, 0) };
            let size = if facts.is_file() { facts.len() } else { 0 };
            shown
                .insert(path.clone(), Shown { size, mode: facts.mode(), modified, is_file: facts.is_file() });
            if facts.is_dir() {
                open.push(path);
            }
        }
    }
    shown
}

/// Sizes from 1 byte to 8 MiB, small ones as often as large ones.
fn random_size(random: &mut StdRng) -> usize {
    let magnitude = random.random_range(0..=23);
    random.random_range(1..=1_usize << magnitude)
}

/// Sealed objects in several directories, written in both ways, with modes, times and policies.
struct Sample {
    contents: BTreeMap<PathBuf, Vec<u8>>,
    shown: BTreeMap<PathBuf, Shown>,
    /// Values as they were; an attribute that is not set is `None`.
    attributes: BTreeMap<(PathBuf, &'static str), Option<Vec<u8>>>,
}

impl Sample {
    fn write(mount: &Mount, seed: u64) -> Self {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let folders = ["alpha", "alpha/deep/er", "beta", "gamma"].map(|name| mount.namespace(name));
        let mut contents = BTreeMap::new();
        for number in 0..OBJECTS {
            let folder = &folders[random.random_range(0..folders.len())];
            let folder = if number == 2 { &folders[3] } else { folder };
            let path = folder.join(format!("object{number}"));
            let content = bytes(seed ^ (number << 32), random_size(&mut random));
            write_one_way(&path, &content, number % 2 == 0);
            let mode = [0o644, 0o600, 0o400, 0o666][random.random_range(0..4)];
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
            if number % 3 == 0 {
                let time = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000 + number, 123_456_789);
                let file = File::open(&path).expect("open");
                file.set_times(FileTimes::new().set_modified(time)).expect("utimensat");
            }
            contents.insert(path, content);
        }
        // a second version of some, by either way
        for number in (0..OBJECTS).step_by(10) {
            let name = format!("object{number}");
            let (path, content) =
                contents.iter_mut().find(|(path, _)| path.ends_with(&name)).expect("the object is there");
            *content = bytes(seed ^ (number << 32) ^ 1, content.len() + 1000);
            let mode = fs::metadata(path).expect("stat").mode();
            write_one_way(path, content, number % 20 == 0);
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
        }
        fs::create_dir_all(folders[3].join("empty/directory")).expect("mkdir");
        fs::set_permissions(folders[3].join("empty"), Permissions::from_mode(0o711)).expect("chmod");
        for (name, attribute, value) in POLICIES {
            set_xattr(&mount.join(name), attribute, value.as_bytes())
                .unwrap_or_else(|error| panic!("setfattr -n {attribute} -v {value} {name}: {error}"));
        }
        let mut attributes = BTreeMap::new();
        for (name, attribute, _) in POLICIES {
            let path = mount.join(name);
            let value = get_xattr(&path, attribute).expect("a policy that was set can be read");
            attributes.insert((path, attribute), Some(value));
        }
        for path in contents.keys() {
            let checksum = checksum_of(path);
            attributes.insert((path.clone(), "user.tidefs.checksum"), Some(checksum.into_bytes()));
            for inherited in ["user.tidefs.pin", "user.tidefs.priority"] {
                attributes.insert((path.clone(), inherited), get_xattr(path, inherited).ok());
            }
        }
        let shown = shown_below(mount.path());
        Self { contents, shown, attributes }
    }

    fn check(&self, mount: &Mount, what: &str) {
        let shown = shown_below(mount.path());
        let new: Vec<_> = shown.keys().filter(|path| !self.shown.contains_key(*path)).collect();
        assert!(new.is_empty(), "there after {what}, and not sealed before: {new:?}");
        for (path, before) in &self.shown {
            let after = shown.get(path).unwrap_or_else(|| panic!("{} is lost by {what}", path.display()));
            assert_eq!(after, before, "{} after {what}", path.display());
        }
        for (path, content) in &self.contents {
            let found = fs::read(path).expect("a sealed object can be read");
            assert_same(&found, content, &format!("{} after {what}", path.display()));
        }
        for ((path, attribute), before) in &self.attributes {
            let text =
                |value: Option<Vec<u8>>| value.map(|value| String::from_utf8_lossy(&value).into_owned());
            let (after, before) = (text(get_xattr(path, attribute).ok()), text(before.clone()));
            assert_eq!(after, before, "{attribute} of {} after {what}", path.display());
        }
        let usage = mount.usage();
        let bytes: u64 = self.shown.values().map(|shown| shown.size).sum();
        assert!(
            usage.used <= usage.capacity && usage.used >= bytes,
            "{usage:?} for {bytes} bytes after {what}"
        );
    }
}

fn write_one_way(path: &Path, content: &[u8], by_rename: bool) {
    if by_rename {
        let tmp = path.with_extension("tmp");
        fs::write(&tmp, content).expect("a temporary file");
        fs::rename(&tmp, path).expect("rename");
    } else {
        fs::write(path, content).expect("a file under its final name");
    }
}

/// Writers that are in the middle of it: a final name, a temporary name, a mapped file that is only sized.
fn leave_unsealed_files(mount: &Mount) -> Peer {
    let mut peer = Peer::spawn();
    let flags = libc::O_RDWR | libc::O_CREAT;
    let half = peer.open(&mount.join("alpha/half written"), flags).expect("create");
    peer.write_at(half, 0, &[1; 300_000]).expect("write");
    let tmp = peer.open(&mount.join("alpha/deep/open.tmp"), flags).expect("create");
    peer.write_at(tmp, 0, &[2; 5_000]).expect("write");
    let sized = peer.open(&mount.join("beta/sized"), flags).expect("create");
    peer.truncate(sized, 100_000).expect("ftruncate");
    let map = peer.map(sized, 100_000, true).expect("mmap");
    peer.map_write(map, 50_000, &[3; 100]);
    let empty = peer.open(&mount.join("gamma/created only"), flags).expect("create");
    let _held = (half, tmp, map, empty);
    peer
}

/// One object, and the daemon dies as soon as the writer knows that it is stored, again and again.
fn what_close_or_rename_acknowledged_survives_a_kill_at_once(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["on_stop=keep"]));
    let place = mount.namespace("ns");
    for round in 0..8_u64 {
        let path = place.join(format!("object{round}"));
        let content = bytes(round, [500, 300_000][usize::try_from(round / 2 % 2).expect("it fits")]);
        write_one_way(&path, &content, round % 2 == 0);
        mount.kill9();
        mount.start_daemon();
        let found =
            fs::read(&path).unwrap_or_else(|error| panic!("round {round}, {} bytes: {error}", content.len()));
        assert_same(&found, &content, &format!("round {round}"));
    }
}

fn a_killed_daemon_finds_all_that_was_sealed_and_nothing_else(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["capacity=1GiB", "on_stop=keep"]));
    let sample = Sample::write(&mount, 1);
    sample.check(&mount, "no restart");
    for round in 1..=2 {
        let peer = leave_unsealed_files(&mount);
        mount.kill9();
        drop(peer);
        mount.start_daemon();
        sample.check(&mount, &format!("kill -9 number {round}"));
    }
}

fn a_stopped_daemon_finds_all_that_was_sealed_and_nothing_else(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["capacity=1GiB", "on_stop=keep"]));
    let sample = Sample::write(&mount, 2);
    for round in 1..=2 {
        let peer = leave_unsealed_files(&mount);
        let status = mount.stop();
        assert!(status.success(), "the daemon ended with {status}");
        drop(peer);
        mount.start_daemon();
        sample.check(&mount, &format!("stop number {round}"));
    }
}

fn a_restart_in_the_other_mode_finds_the_same_objects(mode: Mode) {
    let folder = tempfile::tempdir().expect("a directory");
    // The mode of the next start is set in the file: the options of a `Mount` stay the same.
    let file = folder.path().join("mode.toml");
    let write = |mode| {
        let value = if mode == Mode::Direct { "never" } else { "auto" };
        fs::write(&file, format!("[fuse]\npassthrough = \"{value}\"\n")).expect("a file");
    };
    write(mode);
    let config = format!("--config={}", file.display());
    let mut mount = Mount::start(&["capacity=1GiB", "on_stop=keep", &config]);
    let sample = Sample::write(&mount, 3);
    assert!(mount.stop().success());
    write(if mode == Mode::Direct { Mode::Passthrough } else { Mode::Direct });
    mount.start_daemon();
    sample.check(&mount, "a start in the other mode");
}

fn a_rewrite_cut_by_a_crash_leaves_the_old_version_or_none(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["on_stop=keep"]));
    let place = mount.namespace("ns");
    let content = |number: u64| bytes(number, 400_000);
    for number in 0..6 {
        fs::write(place.join(number.to_string()), content(number)).expect("an object");
    }
    mount.wait_until_closed((0..6).map(|number| place.join(number.to_string())));
    let mut reader = Peer::spawn();
    let held = reader.open(&place.join("0"), libc::O_RDONLY).expect("open");
    let mut writer = Peer::spawn();
    for number in 0..6 {
        let flags = if number % 2 == 0 { libc::O_RDWR } else { libc::O_RDWR | libc::O_TRUNC };
        let handle = writer.open(&place.join(number.to_string()), flags).expect("open for writing");
        writer.write_at(handle, 1000, &[0xEE; 10_000]).expect("write");
    }
    let _held = held;
    mount.kill9();
    drop((reader, writer));
    mount.start_daemon();
    for number in 0..6 {
        match fs::read(place.join(number.to_string())) {
            Ok(found) => {
                assert_same(&found, &content(number), &format!("object {number}, cut while rewritten"))
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
        }
    }
    let found =
        fs::read(place.join("0")).expect("an object that somebody else had open was copied, not changed");
    assert_same(&found, &content(0), "object 0");
}

/// The writer goes on after the rename, and outlives the daemon: what it adds is not in the object, and who has mapped
/// the longer file keeps all of it.
fn what_was_renamed_survives_a_kill_though_its_writer_goes_on(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["on_stop=keep"]));
    let place = mount.namespace("ns");
    let content = bytes(5, 700_000);
    let mut writer = Peer::spawn();
    let handle = writer.open(&place.join("a.tmp"), libc::O_RDWR | libc::O_CREAT).expect("create");
    writer.write_at(handle, 0, &content[..300_001]).expect("write");
    writer.set_xattr(&place.join("a.tmp"), "user.application", b"kept").expect("setxattr");
    writer.rename(&place.join("a.tmp"), &place.join("a")).expect("rename");
    writer.write_at(handle, 300_001, &content[300_001..]).expect("write on");
    let map = writer.map(handle, content.len(), false).expect("mmap");
    let shown = writer.map_read(map, 0, content.len());
    assert_same(&shown, &content, "before the daemon is killed");
    mount.kill9();
    mount.start_daemon();
    let found = fs::read(place.join("a")).expect("what was renamed is back");
    assert_same(&found, &content[..300_001], "as it was at the rename");
    assert_eq!(get_xattr(&place.join("a"), "user.application").expect("getxattr"), b"kept");
    if mount.control_get("/v1/status").json()["fuse"]["passthrough"] == serde_json::json!(true) {
        assert_same(&writer.map_read(map, 0, content.len()), &content, "a mapping outlives the daemon");
        writer.write_at(handle, 0, &[0xEE; 1000]).expect("so does the descriptor");
        let found = fs::read(place.join("a")).expect("the object");
        assert_same(&found, &content[..300_001], "what its old writer does is not in the object any more");
    }
}

/// All of it was written before the rename: nothing tells but that its writer has it open.
fn what_was_renamed_whole_stays_as_it_is_though_its_writer_outlives_the_daemon(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["on_stop=keep"]));
    let place = mount.namespace("ns");
    let content = bytes(6, 4 << 20);
    let mut writer = Peer::spawn();
    let handle = writer.open(&place.join("a.tmp"), libc::O_RDWR | libc::O_CREAT).expect("create");
    writer.write_at(handle, 0, &content).expect("write");
    writer.rename(&place.join("a.tmp"), &place.join("a")).expect("rename");
    mount.kill9();
    mount.start_daemon();
    assert_same(&fs::read(place.join("a")).expect("it is back"), &content, "as it was at the rename");
    if mount.control_get("/v1/status").json()["fuse"]["passthrough"] == serde_json::json!(true) {
        writer.write_at(handle, 0, &[0xEE; 1000]).expect("a descriptor outlives the daemon");
        assert_same(&fs::read(place.join("a")).expect("the object"), &content, "a sealed object");
    }
}

fn discard_leaves_nothing_in_memory(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["on_stop=discard"]));
    fs::write(mount.namespace("ns").join("a"), bytes(1, 1 << 20)).expect("an object");
    assert!(!mounts_below(mount.state_dir()).is_empty(), "the memory is a mount of its own");
    assert!(mount.stop().success());
    assert_eq!(mounts_below(mount.state_dir()), Vec::<PathBuf>::new(), "no memory mount is left");
    assert_eq!(mounts_below(mount.path()), Vec::<PathBuf>::new(), "the mount is gone");
    let left: Vec<_> = fs::read_dir(mount.state_dir()).expect("the state directory of all mounts").collect();
    assert!(left.is_empty(), "{left:?}");
    mount.start_daemon();
    assert_eq!(shown_below(mount.path()), BTreeMap::new(), "nothing is back");
}

in_both_modes!(
    what_close_or_rename_acknowledged_survives_a_kill_at_once,
    a_killed_daemon_finds_all_that_was_sealed_and_nothing_else,
    a_stopped_daemon_finds_all_that_was_sealed_and_nothing_else,
    a_restart_in_the_other_mode_finds_the_same_objects,
    a_rewrite_cut_by_a_crash_leaves_the_old_version_or_none,
    what_was_renamed_survives_a_kill_though_its_writer_goes_on,
    what_was_renamed_whole_stays_as_it_is_though_its_writer_outlives_the_daemon,
    discard_leaves_nothing_in_memory,
);
