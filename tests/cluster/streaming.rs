//! Objects that are read while they arrive: the first byte does not wait for the last, and what is read is right.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::common::wait;
use crate::fixture::{Hosts, object, publish};
use crate::way::{Way, free_port};

/// Larger than what a host wants whole.
const LENGTH: usize = 48 << 20;
/// What is carried before the rest is held up: all that is asked for at once, which comes in any order, and not all there is.
const CARRIED: u64 = 36 << 20;
const NAME: &str = "whole-0/key";
/// Long enough for a part that is not held up to arrive.
const MOMENT: Duration = Duration::from_millis(300);

/// Hosts whose connections to each other can be held up.
struct Held {
    hosts: Hosts,
    ways: Vec<Way>,
}

impl Held {
    /// `count` of them. The first one has published the object.
    fn start(count: usize) -> Self {
        Self::start_patient(count, 20_000)
    }

    /// The same, where a source that answers nothing is waited for so many milliseconds.
    fn start_patient(count: usize, fetch_ms: u64) -> Self {
        let fetch_ms = format!("cluster.fetch_ms={fetch_ms}");
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let ways: Vec<Way> = ports.iter().map(|&port| Way::to(port)).collect();
        let own = |host: usize| {
            vec![
                format!("cluster.listen=127.0.0.1:{}", ports[host]),
                format!("cluster.advertise=127.0.0.1:{}", ways[host].port),
            ]
        };
        let options =
            ["cluster.transports=tcp", "cluster.fetch_whole_max=1MiB", "capacity=256MiB", &fetch_ms];
        let held = Self { hosts: Hosts::start_each(count, &options, own), ways };
        publish(&held.path(0), &object(7, LENGTH));
        held
    }

    /// The third one holds the object too, and the second knows.
    fn copy_to_the_third(&self) {
        assert!(fs::read(self.path(2)).expect("a second copy") == object(7, LENGTH));
        let knows = || self.hosts.copies(1, NAME).len() == 2;
        assert!(wait::until(wait::HANG, knows), "the copy is announced");
    }

    fn path(&self, host: usize) -> PathBuf {
        self.hosts.mounts[host].join(NAME)
    }

    fn hold(&self) {
        self.ways.iter().for_each(|way| way.hold_after(CARRIED));
    }

    fn let_go(&self) {
        self.ways.iter().for_each(Way::let_go);
    }
}

fn part(file: &File, offset: usize, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset as u64).map(|()| bytes)
}

/// Opens it on a thread of its own: what is held up for ever must not hold the test up.
#[track_caller]
fn open(path: &Path) -> File {
    let path = path.to_owned();
    let opened = wait::within(wait::HANG, move || File::open(path));
    opened.expect("the open does not wait for the last byte").expect("the object")
}

#[test]
fn a_large_object_is_read_while_it_arrives() {
    let held = Held::start(2);
    let bytes = object(7, LENGTH);
    held.hold();
    let file = open(&held.path(1));
    assert_eq!(part(&file, 0, 300_000).expect("its start"), bytes[..300_000]);
    // Another one opens it, and maps it.
    let second = open(&held.path(1));
    // SAFETY: the object is sealed, so nobody changes it while it is mapped.
    let map = unsafe { memmap2::Mmap::map(&second) }.expect("a mapping");
    assert_eq!(map[..100_000], bytes[..100_000]);
    let (tail, its_file) = (LENGTH - 1_000_000, file.try_clone().expect("a descriptor"));
    let end = thread::spawn(move || part(&its_file, tail, 1_000_000));
    thread::sleep(MOMENT);
    assert!(!end.is_finished(), "the end was read before it was let through");
    assert_eq!(held.hosts.metric(1, "tidefs_remote_fetches_total"), 0);
    held.let_go();
    assert_eq!(end.join().expect("no panic").expect("its end"), bytes[tail..]);
    assert!(part(&file, 0, LENGTH).expect("all of it") == bytes);
    assert!(map[..] == bytes[..], "the mapping is right, too");
    assert!(wait::until(wait::HANG, || held.hosts.metric(1, "tidefs_remote_fetches_total") == 1));
    assert!(fs::read(held.path(1)).expect("beside it") == bytes);
    assert_eq!(held.hosts.metric(1, "tidefs_remote_streams_total"), 2);
    drop((file, map, second));
    // Whole and closed it is like any other: the kernel serves it.
    assert!(fs::read(held.path(1)).expect("afterwards") == bytes);
    assert_eq!(held.hosts.metric(1, "tidefs_remote_stream_failures_total"), 0);
}

#[test]
fn what_is_removed_or_replaced_while_it_arrives_is_read_to_its_end_by_who_has_it_open() {
    let held = Held::start(2);
    let bytes = object(7, LENGTH);
    held.hold();
    let file = open(&held.path(1));
    let here = held.path(1);
    let replaced = wait::within(wait::HANG, move || {
        fs::remove_file(&here)?;
        fs::write(&here, b"another")
    });
    // The source lends the old one for as long as it is fetched.
    held.let_go();
    replaced.expect("neither waits for the bytes").expect("a new object");
    assert!(part(&file, 0, LENGTH).expect("the old one") == bytes);
    assert_eq!(fs::read(held.path(1)).expect("the new one"), b"another");
    drop(file);
    assert_eq!(fs::read(held.path(0)).expect("the new one there"), b"another");
}

#[test]
fn a_source_that_dies_is_followed_by_another_one_where_it_stopped() {
    let mut held = Held::start(3);
    let bytes = object(7, LENGTH);
    held.copy_to_the_third();
    held.hold();
    let file = open(&held.path(1));
    assert_eq!(part(&file, 0, 300_000).expect("its start"), bytes[..300_000]);
    let source = if held.ways[0].carried() > held.ways[2].carried() { 0 } else { 2 };
    held.hosts.mounts[source].kill9();
    held.ways[source].close();
    held.let_go();
    assert!(part(&file, 0, LENGTH).expect("all of it, by the other one") == bytes);
    assert_eq!(held.hosts.metric(1, "tidefs_remote_stream_failures_total"), 0);
}

#[test]
fn a_source_that_hangs_is_followed_by_another_one_where_it_stopped() {
    let held = Held::start_patient(3, 2000);
    let bytes = object(7, LENGTH);
    held.copy_to_the_third();
    held.hold();
    let file = open(&held.path(1));
    let (source, other) = if held.ways[0].carried() > held.ways[2].carried() { (0, 2) } else { (2, 0) };
    // What little its connections carry beside bytes goes on: it is not lost.
    held.ways[other].let_go();
    let read = wait::within(wait::HANG, move || part(&file, 0, LENGTH)).expect("it ends");
    assert!(read.expect("all of it, by the other one") == bytes);
    assert!(held.ways[source].carried() < LENGTH as u64, "it did not hang");
}

#[test]
fn readers_are_told_of_an_error_when_the_only_source_dies_and_who_opens_it_then_of_a_miss() {
    let mut held = Held::start(2);
    held.hold();
    let file = open(&held.path(1));
    held.hosts.mounts[0].kill9();
    held.ways[0].close();
    let read = wait::within(2 * wait::HANG, move || part(&file, LENGTH - 1000, 1000));
    let error = read.expect("it ends").expect_err("nobody has it");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert_eq!(held.hosts.metric(1, "tidefs_remote_stream_failures_total"), 1);
    let here = held.path(1);
    let opened = wait::within(2 * wait::HANG, move || File::open(here)).expect("it ends");
    assert_eq!(opened.expect_err("a miss").kind(), ErrorKind::NotFound);
}

#[test]
fn no_reader_gets_an_object_whole_of_which_a_byte_is_wrong() {
    let held = Held::start(2);
    let bytes = object(7, LENGTH);
    // Neither a message nor the start of a part, but one of the bytes between.
    held.ways.iter().for_each(|way| way.change_after(1_000_000));
    held.hold();
    let file = open(&held.path(1));
    held.let_go();
    let read = wait::within(2 * wait::HANG, move || part(&file, 0, LENGTH)).expect("it ends");
    assert!(held.ways.iter().any(Way::has_changed), "no byte was changed");
    let error = read.expect_err("wrong bytes");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    // The next one who wants it gets it right.
    let is_right = || fs::read(held.path(1)).is_ok_and(|found| found == bytes);
    assert!(wait::until(wait::HANG, is_right), "it does not come back");
}

#[test]
fn all_bytes_between_hosts_go_where_these_are_said_to_be_reached() {
    let held = Held::start(2);
    publish(&held.hosts.mounts[1].join("whole-1/key"), &object(8, LENGTH));
    held.let_go();
    assert!(fs::read(held.path(1)).expect("of the first") == object(7, LENGTH));
    assert!(fs::read(held.hosts.mounts[0].join("whole-1/key")).expect("of the second") == object(8, LENGTH));
    // What a way has carried it counts a moment later.
    let carried = || held.ways.iter().map(Way::carried).sum::<u64>();
    assert!(wait::until(wait::HANG, || carried() >= 2 * LENGTH as u64), "{} bytes went that way", carried());
}
