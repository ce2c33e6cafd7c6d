//! Nonsense and missing things at the start: each gives an error with its cause, a next step and the documented exit
//! code, mounts nothing and loses nothing.

use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidefs_control_api::instance::StateDir;

use super::common::mount::mounts_below;
use super::common::pattern::{assert_same, bytes};
use super::common::place::{Place, files_below};
use super::common::program;
use super::common::sys::{checksum_of, get_xattr_text, list_xattr, remove_xattr, set_xattr};
use super::common::{Mount, wait};
use super::daemon::{
    EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_MOUNT_POINT, EXIT_USAGE, daemon, refused, state_option,
};

impl Place {
    fn daemon(&self, arguments: &[&str]) -> Command {
        let mut command = daemon(&self.point, &self.state);
        command.args(arguments);
        command
    }

    /// Nothing is mounted: neither the mount nor a private memory.
    fn nothing_is_mounted(&self) {
        assert_eq!(mounts_below(self.base.path()), Vec::<PathBuf>::new(), "left behind by a refused start");
    }
}

#[test]
fn an_unknown_option_is_refused_and_the_nearest_named() {
    let place = Place::new();
    refused(&mut place.daemon(&["-o", "capcity=1GiB"]), EXIT_USAGE, &["capcity", "`memory.capacity`"]);
    refused(&mut place.daemon(&["-o", "passthru=never"]), EXIT_USAGE, &["passthru", "`fuse.passthrough`"]);
    refused(&mut place.daemon(&["-o", "on_stp=keep"]), EXIT_USAGE, &["on_stp", "`runtime.on_stop`"]);
    refused(&mut place.daemon(&["--capcity", "1GiB"]), EXIT_USAGE, &["--capcity", "--capacity"]);
    place.nothing_is_mounted();
}

#[test]
fn an_unknown_key_of_the_file_is_refused_and_the_nearest_named() {
    let place = Place::new();
    let file = place.base.path().join("tidefs.toml");
    let with_file = || place.daemon(&["--config", file.to_str().expect("a path in UTF-8")]);
    fs::write(&file, "[memory]\ncapasity = \"1GiB\"\n").expect("a file");
    refused(&mut with_file(), EXIT_USAGE, &["capasity", "`capacity`", "tidefs.toml"]);
    fs::write(&file, "[memory]\ncapacity = = \n").expect("a file");
    refused(&mut with_file(), EXIT_USAGE, &["tidefs.toml"]);
    fs::remove_file(&file).expect("the file is there");
    refused(&mut with_file(), EXIT_USAGE, &["tidefs.toml"]);
    place.nothing_is_mounted();
}

#[test]
fn a_bad_size_is_refused_with_the_value() {
    let place = Place::new();
    refused(&mut place.daemon(&["--capacity", "12parsecs"]), EXIT_USAGE, &["12parsecs", "capacity"]);
    refused(&mut place.daemon(&["-o", "capacity=-1"]), EXIT_USAGE, &["-1", "capacity"]);
    refused(&mut place.daemon(&["--capacity", ""]), EXIT_USAGE, &["capacity"]);
    refused(&mut place.daemon(&["--capacity", "99999999999999999999GiB"]), EXIT_USAGE, &["capacity"]);
    place.nothing_is_mounted();
}

#[test]
fn a_capacity_that_is_too_small_is_refused_with_the_least_one() {
    let place = Place::new();
    for size in ["0", "1", "4096", "31MiB"] {
        refused(&mut place.daemon(&["--capacity", size]), EXIT_USAGE, &["capacity", "at least"]);
    }
    place.nothing_is_mounted();
}

#[test]
fn all_wrong_settings_are_reported_together() {
    let place = Place::new();
    let arguments = ["-o", "capacity=12parsecs,on_stop=maybe,thread=2"];
    refused(&mut place.daemon(&arguments), EXIT_USAGE, &["12parsecs", "maybe", "fuse.threads"]);
    place.nothing_is_mounted();
}

/// The daemon and a check of its configuration refuse a file of a cluster, and touch nothing.
#[track_caller]
fn a_file_is_refused(place: &Place, options: &str, words: &[&str]) {
    for arguments in [&["-o", options][..], &["-o", options, "--check-config"][..]] {
        refused(&mut place.daemon(arguments), EXIT_USAGE, words);
        assert_eq!(fs::read_dir(&place.state).expect("a directory").count(), 0, "the state was touched");
        place.nothing_is_mounted();
    }
}

#[test]
fn files_of_a_cluster_that_are_missing_or_too_short_are_refused_together_before_anything_is_touched() {
    let place = Place::new();
    let (missing, short) = (place.base.path().join("missing"), place.base.path().join("short"));
    fs::write(&short, "a secret\n").expect("a file");
    let (missing, short) = (missing.display(), short.display());
    let etcd = "etcd=http://127.0.0.1:1";
    let files = ["cluster.etcd_authority", "cluster.etcd_identity", "cluster.etcd_user_file"];
    let named: String = files.iter().map(|key| format!(",{key}={missing}")).collect();
    let encrypted = "etcd=https://127.0.0.1:1";
    let options = format!("{encrypted},cluster_key={short}{named},cluster.tls_authority={missing}");
    let words = ["cluster_key=", "8 bytes", "cluster.tls_authority=", "cluster.tls_identity is not set"];
    a_file_is_refused(&place, &options, &[&words[..], &files[..]].concat());
    let hosted = "coordinator=127.0.0.1:1";
    for (options, words) in [
        (format!("{etcd},cluster_key={missing}"), ["cluster_key=", "no such file"]),
        (format!("{hosted},cluster.tls_identity={short}"), ["cluster.tls_authority is not set", "both"]),
    ] {
        a_file_is_refused(&place, &options, &words);
    }
    // Nobody reads what belongs to a cluster that there is none of.
    let alone = format!("cluster_key={missing}");
    let mut check = place.daemon(&["-o", &alone, "--check-config"]);
    program::run(&mut check, wait::HANG).success("a sound configuration");
}

#[test]
fn a_mount_point_that_cannot_be_one_is_refused() {
    let place = Place::new();
    let missing = place.base.path().join("missing");
    refused(&mut daemon(&missing, &place.state), EXIT_MOUNT_POINT, &["missing", "mkdir"]);
    let file = place.base.path().join("file");
    fs::write(&file, "content").expect("a file");
    refused(&mut daemon(&file, &place.state), EXIT_MOUNT_POINT, &["file", "not a directory"]);
    assert_eq!(fs::read_to_string(&file).expect("the file is there"), "content");
    place.nothing_is_mounted();
    assert_eq!(fs::read_dir(&place.state).expect("a directory").count(), 0, "a record is left behind");
}

#[test]
fn every_problem_is_told_on_a_line_that_names_the_program() {
    let place = Place::new();
    let finished = refused(&mut place.daemon(&["-o", "capcity=8GiB,threads=0"]), EXIT_USAGE, &["capcity"]);
    assert_eq!(finished.errors.lines().count(), 2, "{}", finished.errors);
    assert!(finished.errors.lines().all(|line| line.starts_with("tidefsd: -o ")), "{}", finished.errors);
}

#[test]
fn a_variable_that_is_empty_is_as_one_that_is_not_set() {
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
    command.arg(&place.point).arg("--check-config").env("XDG_RUNTIME_DIR", place.base.path());
    command.env("TIDEFS_RUNTIME_STATE_DIR", "").env("TIDEFS_MEMORY_CAPACITY", "");
    program::run(&mut command, wait::HANG).success("a sound configuration");
}

#[test]
fn a_mount_point_with_another_filesystem_on_it_is_refused() {
    let place = Place::new();
    let script = "mount -t tmpfs elsewhere \"$1\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_tidefsd")]);
    command.arg(&place.point).arg("-o").arg(state_option(&place.state));
    refused(&mut command, EXIT_MOUNT_POINT, &[place.point.to_str().expect("a path in UTF-8"), "tmpfs"]);
    place.nothing_is_mounted();
}

/// Runs the daemon in a mount namespace of its own in which `hide` was done to /dev.
fn daemon_without_fuse(place: &Place, hide: &str) -> Command {
    let script = format!("{hide} && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_tidefsd")]);
    command.arg(&place.point).arg("-o").arg(state_option(&place.state));
    command
}

#[test]
fn without_dev_fuse_the_daemon_says_so() {
    let place = Place::new();
    let hidden = "mount -t tmpfs tmpfs /dev";
    refused(&mut daemon_without_fuse(&place, hidden), EXIT_ENVIRONMENT, &["/dev/fuse", "modprobe fuse"]);
    let other_device = "mount --bind /dev/null /dev/fuse";
    refused(&mut daemon_without_fuse(&place, other_device), EXIT_ENVIRONMENT, &["/dev/fuse"]);
    place.nothing_is_mounted();
}

#[test]
fn without_the_right_to_mount_the_daemon_says_so() {
    let place = Place::new();
    // Who may not mount has no tmpfs of its own.
    let memory = tempfile::Builder::new().prefix("tidefs-test-").tempdir_in("/dev/shm").expect("a directory");
    let scratch = memory.path().join("scratch");
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--", env!("CARGO_BIN_EXE_tidefsd")])
        .arg(&place.point);
    command.arg("-o").arg(state_option(&memory.path().join("state")));
    command.arg("-o").arg(format!("capacity=64MiB,scratch.dir={}", scratch.display()));
    let words = ["no right", "CAP_SYS_ADMIN", "fusermount3", "as root"];
    refused(&mut command, EXIT_ENVIRONMENT, &words);
    place.nothing_is_mounted();
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named() {
    let place = Place::new();
    let file = place.base.path().join("file");
    fs::write(&file, "content").expect("a file");
    for state in [file.as_path(), Path::new("/proc/no/such/place")] {
        let name = state.to_str().expect("a path in UTF-8");
        refused(&mut daemon(&place.point, state), EXIT_ENVIRONMENT, &[name, "state_dir"]);
    }
    place.nothing_is_mounted();
}

#[test]
fn a_lock_that_cannot_be_made_is_named_with_what_to_do() {
    let place = Place::new();
    let point = fs::canonicalize(&place.point).expect("it is there");
    let lock = StateDir::new(&place.state).instance(&point).lock();
    fs::create_dir_all(&lock).expect("a directory in its place");
    let name = lock.to_str().expect("a path in UTF-8");
    refused(&mut place.daemon(&[]), EXIT_ENVIRONMENT, &[name, "state_dir"]);
    place.nothing_is_mounted();
}

#[test]
fn an_address_that_is_not_up_is_worth_another_start_and_one_that_is_taken_is_not() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = (taken.local_addr().expect("its address").to_string(), taken);
    let coordinator =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let scratch = place.base.path().join("scratch");
    let cases = [
        // TEST-NET-1 (RFC 5737): no host has it.
        ("192.0.2.1:7400", EXIT_FAILED, "`ip address`"),
        (&*taken.0, EXIT_ENVIRONMENT, "ss -ltnp"),
    ];
    for (listen, code, remedy) in cases {
        let sizes = format!("capacity=64MiB,scratch.dir={}", scratch.display());
        let cluster = format!("cluster.coordinator={coordinator},cluster.listen={listen}");
        let mut command = place.daemon(&["-o", &sizes, "-o", &cluster, "-o", "on_stop=keep"]);
        refused(&mut command, code, &[listen, "cluster.listen", remedy]);
        place.nothing_is_mounted();
    }
}

#[test]
fn a_start_that_fails_leaves_what_an_earlier_daemon_kept() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    let (object, bare) = (mount.namespace("ns").join("object"), mount.namespace("bare"));
    fs::write(&object, bytes(1, 300_000)).expect("an object");
    set_xattr(&bare, "user.tidefs.quota", b"64MiB").expect("a policy");
    let quota = get_xattr_text(&bare, "user.tidefs.quota");
    mount.wait_until_closed([&object]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = (taken.local_addr().expect("its address").to_string(), taken);
    let coordinator =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let fails = |mount: &Mount| {
        let mut command = daemon(mount.path(), mount.state_dir());
        let scratch = mount.scratch_dir();
        command.arg("-o").arg(format!("capacity=256MiB,on_stop=keep,scratch.dir={}", scratch.display()));
        command.arg("-o").arg(format!("cluster.coordinator={coordinator},cluster.listen={}", taken.0));
        refused(&mut command, EXIT_ENVIRONMENT, &["cluster.listen"]);
    };
    assert!(mount.stop().success());
    fails(&mount);
    mount.start_daemon();
    assert_same(&fs::read(&object).expect("it was kept"), &bytes(1, 300_000), "kept");
    // Directories and their policies take no memory, and are kept all the same.
    fs::remove_file(&object).expect("an unlink");
    assert!(mount.stop().success());
    fails(&mount);
    mount.start_daemon();
    assert_eq!(get_xattr_text(&bare, "user.tidefs.quota"), quota);
}

/// Eight objects, a stop, `damage` to the segment file of one of them, a start: that one is a miss and a warning names
/// the segment or the key; the others are whole.
fn only_the_damaged_object_is_lost(damage: impl Fn(&Path)) {
    let mut mount = Mount::start(&["on_stop=keep"]);
    let place = mount.namespace("ns");
    let content = |number: u64| bytes(number, 300_000 + usize::try_from(number).expect("it fits"));
    for number in 0..8 {
        let path = place.join(format!("object{number}"));
        fs::write(&path, content(number)).expect("an object");
        // Asked for, so that it is taken before the stop.
        checksum_of(&path);
    }
    assert!(mount.stop().success());
    let memory = mount.instance_dir().join("memory");
    let segments = files_below(&memory);
    let of_object = |segment: &&PathBuf| fs::read(segment).is_ok_and(|found| found == content(3));
    let segment = segments.iter().find(of_object).expect("object 3 has a segment file that holds its bytes");
    let name = segment.file_name().expect("a name").as_bytes();
    damage(segment);
    let log_before = mount.log().len();
    mount.start_daemon();
    for number in (0..8).filter(|&number| number != 3) {
        let found = fs::read(place.join(format!("object{number}"))).expect("an undamaged object is there");
        assert_same(&found, &content(number), &format!("object {number}"));
    }
    let error = fs::read(place.join("object3")).expect_err("a damaged object is a miss");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    let name = String::from_utf8_lossy(name).into_owned();
    let warned = || {
        let log = mount.log()[log_before..].to_owned();
        let is_loud = |line: &str| line.contains("WARN") || line.contains("ERROR");
        log.lines().any(|line| is_loud(line) && (line.contains(&name) || line.contains("object3")))
    };
    assert!(wait::until(wait::HANG, warned), "no warning names {name}:\n{}", &mount.log()[log_before..]);
    fs::write(place.join("object3"), content(3)).expect("the name can be written again");
    assert_same(&fs::read(place.join("object3")).expect("it is there"), &content(3), "written again");
}

#[test]
fn a_corrupted_segment_attribute_loses_that_object_only() {
    only_the_damaged_object_is_lost(|segment| {
        let names = list_xattr(segment).expect("attributes");
        assert!(!names.is_empty(), "a sealed segment has attributes");
        for name in names {
            set_xattr(segment, &name, b"garbage").expect("an attribute can be set");
        }
    });
}

#[test]
fn a_removed_segment_attribute_loses_that_object_only() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    let place = mount.namespace("ns");
    for number in 0..4_u64 {
        fs::write(place.join(format!("object{number}")), bytes(number, 200_000)).expect("an object");
    }
    assert!(mount.stop().success());
    let segments = files_below(&mount.instance_dir().join("memory"));
    let of_object = |segment: &&PathBuf| fs::read(segment).is_ok_and(|found| found == bytes(2, 200_000));
    let segment = segments.iter().find(of_object).expect("object 2 has a segment file");
    for name in list_xattr(segment).expect("attributes") {
        remove_xattr(segment, &name).expect("an attribute can be removed");
    }
    mount.start_daemon();
    for number in [0, 1, 3_u64] {
        let found =
            fs::read(place.join(format!("object{number}"))).expect("an object with its attributes is there");
        assert_same(&found, &bytes(number, 200_000), &format!("object {number}"));
    }
    let error = fs::read(place.join("object2")).expect_err("bytes without a seal are not an object");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
}

#[test]
fn bytes_that_changed_while_no_daemon_ran_lose_that_object_only() {
    only_the_damaged_object_is_lost(|segment| {
        let file = fs::File::options().write(true).open(segment).expect("the segment can be opened");
        file.write_all_at(b"another byte", 150_000).expect("memory that fails");
    });
}

#[test]
fn a_truncated_segment_loses_that_object_only() {
    only_the_damaged_object_is_lost(|segment| {
        let file = fs::File::options().write(true).open(segment).expect("the segment can be opened");
        file.set_len(1000).expect("the segment can be cut");
    });
}
