//! A daemon that is stopped (SIGSTOP), or killed: the kernel goes on serving what is open.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidefs_control_api::socket::SocketAddress;

use super::common::pattern::{assert_same, object};
use super::common::sys::Mapping;
use super::common::wait::{HANG, until, within};
use super::common::{Mount, Peer};

/// Objects that are open and mapped.
const OBJECTS: u64 = 8;
const SIZE: usize = 4 << 20;
/// How often everything is read and copied.
const ROUNDS: usize = 8;

/// What a client holds open.
struct Held {
    objects: Vec<(File, Mapping, Vec<u8>)>,
}

impl Held {
    /// Reads and copies everything again and again, and checks every byte of it.
    fn use_all(&self) {
        let mut found = vec![0; SIZE];
        for _ in 0..ROUNDS {
            for (file, map, content) in &self.objects {
                found.fill(0);
                assert_eq!(file.read_at(&mut found, 0).expect("pread"), SIZE);
                assert_same(&found, content, "read");
                assert_same(&map.bytes(), content, "mapped");
            }
        }
    }
}

/// Whether the kernel serves what is open; says so when it does not.
fn has_passthrough(mount: &Mount) -> bool {
    let status = mount.control_get("/v1/status").json();
    let has = status["fuse"]["passthrough"] == serde_json::json!(true);
    if !has {
        let reason = &status["fuse"]["passthrough_reason"];
        eprintln!(
            "SKIPPED: this machine has no FUSE passthrough ({reason}), so the daemon serves every read"
        );
    }
    has
}

/// Writes the objects and holds them open and mapped.
fn hold(mount: &Mount, place: &Path) -> Held {
    let hold = |number: u64| {
        let path = place.join(number.to_string());
        fs::write(&path, object(number, SIZE)).expect("an object");
        // Until the daemon has heard of the close it serves who wrote it.
        mount.wait_until_closed([&path]);
        let file = File::open(&path).expect("open");
        let map = Mapping::shared(&file, SIZE).expect("mmap");
        (file, map, object(number, SIZE))
    };
    Held { objects: (0..OBJECTS).map(hold).collect() }
}

#[test]
fn descriptors_and_mappings_outlive_a_killed_daemon() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    if !has_passthrough(&mount) {
        return;
    }
    let held = hold(&mount, &mount.namespace("ns"));
    mount.kill9();
    let checked = within(HANG, move || {
        held.use_all();
        held
    });
    let held = checked.expect("reads and mappings go on without a daemon");
    mount.start_daemon();
    within(HANG, move || held.use_all()).expect("they go on beside the next daemon, until they are closed");
    for number in 0..OBJECTS {
        let found = fs::read(mount.join("ns").join(number.to_string())).expect("the object is back");
        assert_same(&found, &object(number, SIZE), "by the next daemon");
    }
}

#[test]
fn what_an_earlier_daemon_sealed_is_neither_written_nor_cut_under_who_has_it_mapped() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    if !has_passthrough(&mount) {
        return;
    }
    let place = mount.namespace("ns");
    let (written, cut) = (place.join("written"), place.join("cut"));
    let mut reader = Peer::spawn();
    let mut map = |path: &Path| {
        fs::write(path, object(1, SIZE)).expect("an object");
        mount.wait_until_closed([path]);
        let handle = reader.open(path, libc::O_RDONLY).expect("open");
        let map = reader.map(handle, SIZE, false).expect("mmap");
        reader.close(handle).expect("close");
        map
    };
    let maps = [map(&written), map(&cut)];
    mount.wait_until_closed([&written, &cut]);
    mount.kill9();
    mount.start_daemon();
    let mut writer = Peer::spawn();
    let handle = writer.open(&written, libc::O_WRONLY).expect("open to write");
    writer.write_at(handle, 0, &[0xEE; 4096]).expect("write");
    writer.close(handle).expect("close");
    nix::unistd::truncate(&cut, 0).expect("truncate");
    for map in maps {
        assert_same(&reader.map_read(map, 0, SIZE), &object(1, SIZE), "a mapping of the last daemon's");
    }
}

#[test]
fn open_objects_are_read_and_mapped_while_the_daemon_is_stopped() {
    let mount = Mount::start(&[]);
    if !has_passthrough(&mount) {
        return;
    }
    let place = mount.namespace("ns");
    let held = hold(&mount, &place);
    mount.stand_still();
    let used = within(HANG, move || {
        held.use_all();
        held
    });
    let still_stopped = mount.stands_still();
    mount.go_on();
    let held = used.expect("reads and mappings go on without the daemon");
    assert!(still_stopped, "the daemon was stopped all the time");
    drop(held);
    for number in 0..OBJECTS {
        let found = fs::read(place.join(number.to_string())).expect("the daemon answers again");
        assert_same(&found, &object(number, SIZE), "after SIGCONT");
    }
    fs::write(place.join("new"), object(99, SIZE)).expect("the daemon takes new objects again");
}

#[test]
fn what_a_caller_asked_for_that_gave_up_while_the_daemon_was_stopped_is_not_done() {
    let mount = Mount::start(&[]);
    let key = mount.namespace("ns").join("key");
    fs::write(&key, object(1, SIZE)).expect("an object");
    mount.wait_until_closed([&key]);
    mount.stand_still();
    let socket = mount.instance_dir().join("control.sock");
    let requests = [
        ("evict", r#"{"path":"ns/key"}"#),
        ("evict", r#"{"bytes":1}"#),
        ("pin", r#"{"path":"ns/key","pin":"hard"}"#),
    ];
    for (route, body) in requests.into_iter().cycle().take(12) {
        let address = SocketAddress::new(&socket).expect("the socket's folder");
        let mut caller = UnixStream::connect(address.path()).expect("the kernel takes the call");
        let length = body.len();
        write!(caller, "POST /v1/{route} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("it is sent");
    }
    mount.go_on();
    // One whose end is seen before its request has been read goes without a word.
    let is_told = || mount.log().contains("is not carried out: its caller has left");
    assert!(until(HANG, is_told), "{}", mount.log());
    let stat = mount.control_get("/v1/stat?path=ns/key").json();
    assert_eq!((stat["tier"].as_str(), stat["pin"].as_str()), (Some("memory"), Some("none")), "{stat}");
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"path":"ns/key"}"#));
    assert!(evicted.json()["objects"] == 1, "who waits for the answer is served");
}
