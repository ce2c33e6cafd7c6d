//! Requests that take long do not keep those of others waiting, though one thread answers the kernel.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use tidefs_control_api::ioctl::{
    AreaCall, Command, Create, Encoder, Entry, Flags, Name, Outcome, Put, Range, Seal, Status, results,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::common::modes::in_both_modes;
use crate::common::sys::{checksum_of, remove_xattr, set_xattr};
use crate::common::{Mode, kernel};
use crate::fixture::{MIB, kv_with, offset, publish_object};
use crate::ioctl::Control;

in_both_modes!(
    a_policy_of_a_directory_with_many_objects_keeps_nobody_waiting,
    a_directory_with_many_objects_that_moves_below_another_policy_keeps_nobody_waiting,
    a_new_version_of_a_large_object_keeps_nobody_waiting,
    the_first_use_of_a_large_object_after_a_restart_keeps_nobody_waiting,
);

const ONE_THREAD: [&str; 3] = ["fuse.threads=1", "capacity=512MiB", "on_stop=keep"];

/// The same, with pages of which so many are freed in a second as on hosts that have no huge ones left.
const SMALL_PAGES: [&str; 4] = [ONE_THREAD[0], ONE_THREAD[1], ONE_THREAD[2], "memory.huge_pages=never"];

/// Objects of which going through all takes far longer than answering a request.
const MANY: usize = 20_000;
/// Bytes of which checking, or copying, all takes far longer than that.
const LARGE: usize = 128 * MIB;

/// How long other tests may keep both processors busy.
const BUSY: Duration = Duration::from_secs(5);

/// Part of the time that `action` takes for which somebody else waits for one answer at most. With a thread that does nothing
/// else meanwhile it is nearly all of it: a system call is a few requests, of which one takes long.
fn longest_wait_meanwhile(mount: &Path, action: impl FnOnce()) -> f64 {
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answered = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                statvfs(mount).expect("statfs");
                answered.push(Instant::now());
                answers.fetch_add(1, Ordering::Relaxed);
            }
            answered
        });
        // It is asking when it begins.
        while answers.load(Ordering::Relaxed) < 10 {
            thread::yield_now();
        }
        let began = Instant::now();
        action();
        let ended = Instant::now();
        is_over.store(true, Ordering::Relaxed);
        let answered = asking.join().expect("it asks until it is told to end");
        let meanwhile = answered.into_iter().filter(|at| (began..ended).contains(at));
        let mut last = began;
        let mut longest = Duration::ZERO;
        for at in meanwhile.chain([ended]) {
            longest = longest.max(at - last);
            last = at;
        }
        longest.as_secs_f64() / (ended - began).as_secs_f64()
    })
}

/// A busy machine may keep the others from asking, for a while, so one of some tries must do.
#[track_caller]
fn assert_others_are_answered(mut longest_wait_of_a_try: impl FnMut() -> f64) {
    let (mut least, mut tries, end) = (f64::INFINITY, 0, Instant::now() + BUSY);
    while tries < 20 || Instant::now() < end {
        least = longest_wait_of_a_try().min(least);
        if least < 0.5 {
            return;
        }
        tries += 1;
    }
    panic!("others wait for {least:.2} of the time, in the best of {tries} tries");
}

fn fill(directory: &Path) {
    fs::create_dir(directory).expect("mkdir");
    for index in 0..MANY {
        drop(File::create(directory.join(format!("k{index}"))).expect("an object"));
    }
}

fn a_policy_of_a_directory_with_many_objects_keeps_nobody_waiting(mode: Mode) {
    let (mount, kv) = kv_with(mode, &ONE_THREAD);
    let many = kv.join("many");
    fill(&many);
    assert_others_are_answered(|| {
        let quota = "user.tidefs.quota";
        let set =
            longest_wait_meanwhile(mount.path(), || set_xattr(&many, quota, b"256MiB").expect("a policy"));
        let removed = longest_wait_meanwhile(mount.path(), || remove_xattr(&many, quota).expect("and none"));
        set.max(removed)
    });
}

fn a_directory_with_many_objects_that_moves_below_another_policy_keeps_nobody_waiting(mode: Mode) {
    let (mount, kv) = kv_with(mode, &ONE_THREAD);
    fill(&kv.join("many"));
    let other = mount.namespace("other");
    set_xattr(&other, "user.tidefs.ttl", b"100000").expect("a policy");
    let (mut from, mut to) = (kv.join("many"), other.join("many"));
    assert_others_are_answered(|| {
        let found = longest_wait_meanwhile(mount.path(), || fs::rename(&from, &to).expect("a rename"));
        std::mem::swap(&mut from, &mut to);
        found
    });
}

fn a_new_version_of_a_large_object_keeps_nobody_waiting(mode: Mode) {
    let (mount, kv) = kv_with(mode, &ONE_THREAD);
    let key = kv.join("key");
    assert_others_are_answered(|| {
        publish_object(&key, 1, LARGE);
        let reader = File::open(&key).expect("open");
        let mut writer = None;
        let found = longest_wait_meanwhile(mount.path(), || {
            writer = Some(File::options().append(true).open(&key).expect("open to append"));
        });
        drop((reader, writer));
        mount.wait_until_closed([&key]);
        found
    });
}

#[test]
fn many_large_objects_that_are_begun_at_once_keep_nobody_waiting() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, _kv) = kv_with(Mode::Passthrough, &ONE_THREAD);
    assert_others_are_answered(|| {
        let mut request = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
        for index in 0..20 {
            let name = format!("kv/k{index}");
            let size = offset(8 * MIB);
            assert!(request.push(&Create { size, mode: 0o600, name: Name(name.as_bytes()) }));
        }
        // What it begins is given up with it.
        let control = Control::open(&mount);
        let (payload, mut reply) = (request.finish(), Vec::new());
        let found = longest_wait_meanwhile(mount.path(), || {
            reply = control.call(Command::Create, payload).expect("a reply");
        });
        let (_, begun) = results::<Entry>(&reply).expect("a whole reply");
        assert_eq!(begun.iter().filter(|entry| entry.status() == Status::Ok).count(), 20);
        found
    });
}

/// Objects of which freeing all takes far longer than answering a request, and twice as many have room. None is so small that its
/// memory waits for the next one.
const LARGE_ONES: u64 = 4;
const SIZE_OF_ONE: usize = 48 * MIB;

fn names_of_large() -> impl Iterator<Item = String> {
    (0..LARGE_ONES).map(|index| format!("k{index}"))
}

/// Begins large objects. Returns the reference to the first.
fn begin_large(control: &Control) -> u64 {
    let mut request = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
    for name in names_of_large() {
        let name = format!("kv/{name}");
        let size = offset(SIZE_OF_ONE);
        assert!(request.push(&Create { size, mode: 0o600, name: Name(name.as_bytes()) }));
    }
    let reply = control.call(Command::Create, request.finish()).expect("a reply");
    let (header, begun) = results::<Entry>(&reply).expect("a whole reply");
    assert!(begun.iter().all(|entry| entry.status() == Status::Ok), "{begun:?}");
    header.scope.get()
}

/// Seals them with so many bytes of each.
fn seal_large(control: &Control, first: u64, length: usize) {
    let mut request = Encoder::new(Flags::NONE, 0, size_of::<Outcome>());
    for reference in first..first + LARGE_ONES {
        assert!(request.push(&Seal { reference, length: offset(length) }));
    }
    let reply = control.call(Command::Seal, request.finish()).expect("a reply");
    let (_, sealed) = results::<Outcome>(&reply).expect("a whole reply");
    assert!(sealed.iter().all(|outcome| outcome.status() == Status::Ok), "{sealed:?}");
}

/// Gives up, or gives back, what has these references.
fn end_range(control: &Control, command: Command, range: Range) {
    let mut request = Encoder::new(Flags::NONE, 0, 0);
    assert!(request.push(&range));
    control.call(command, request.finish()).expect("a reply");
}

#[test]
fn many_large_objects_that_are_given_up_at_once_keep_nobody_waiting() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, _kv) = kv_with(Mode::Passthrough, &SMALL_PAGES);
    let control = Control::open(&mount);
    assert_others_are_answered(|| {
        begin_large(&control);
        let all = Range { first: 0, count: u64::MAX };
        longest_wait_meanwhile(mount.path(), || end_range(&control, Command::Abort, all))
    });
}

#[test]
fn what_seals_take_the_place_of_and_cut_off_keeps_nobody_waiting() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, _kv) = kv_with(Mode::Passthrough, &SMALL_PAGES);
    let control = Control::open(&mount);
    assert_others_are_answered(|| {
        seal_large(&control, begin_large(&control), SIZE_OF_ONE);
        let second = begin_large(&control);
        let replaced = longest_wait_meanwhile(mount.path(), || seal_large(&control, second, SIZE_OF_ONE));
        let third = begin_large(&control);
        let cut = longest_wait_meanwhile(mount.path(), || seal_large(&control, third, 1));
        replaced.max(cut)
    });
}

#[test]
fn large_objects_that_lost_their_names_and_are_given_back_at_once_keep_nobody_waiting() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &SMALL_PAGES);
    let control = Control::open(&mount);
    assert_others_are_answered(|| {
        seal_large(&control, begin_large(&control), SIZE_OF_ONE);
        let mut request = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
        for name in names_of_large() {
            assert!(request.push(&Name(format!("kv/{name}").as_bytes())));
        }
        let reply = control.call(Command::Lookup, request.finish()).expect("a reply");
        let (header, found) = results::<Entry>(&reply).expect("a whole reply");
        assert!(found.iter().all(|entry| entry.status() == Status::Ok), "{found:?}");
        names_of_large().for_each(|name| fs::remove_file(kv.join(name)).expect("unlink"));
        // Before that the kernel has told what it forgot, or this try shows nothing.
        statvfs(mount.path()).expect("statfs");
        let held = Range { first: header.scope.get(), count: LARGE_ONES };
        longest_wait_meanwhile(mount.path(), || end_range(&control, Command::Release, held))
    });
}

#[test]
fn many_objects_that_are_made_of_an_area_at_once_keep_nobody_waiting() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &ONE_THREAD);
    let control = Control::open(&mount);
    // Records, results, and the bytes of all objects.
    let places = [0, 2, 3].map(|mib| offset(mib * MIB));
    let (area, file) = control.area(offset(4 * MIB));
    file.write_all_at(&[7; 100], places[2]).expect("write the area");
    let names: Vec<String> = (0..MANY).map(|index| format!("kv/k{index}")).collect();
    let mut request = Encoder::with_room(Flags::IN_AREA, 0, size_of::<Outcome>(), MIB);
    for name in &names {
        let put = Put { area, source: places[2], length: 100, mode: 0o600, name: Name(name.as_bytes()) };
        assert!(request.push(&put));
    }
    file.write_all_at(request.records(), places[0]).expect("write the area");
    let call = AreaCall {
        area: area.into(),
        request_offset: places[0].into(),
        request_length: offset(request.records().len()).into(),
        reply_offset: places[1].into(),
        reply_length: offset(MIB).into(),
    };
    let payload = [request.header().as_bytes(), call.as_bytes()].concat();
    assert_others_are_answered(|| {
        longest_wait_meanwhile(mount.path(), || {
            control.call(Command::PutFrom, payload.clone()).expect("a reply");
        })
    });
    let mut last = [0; size_of::<Outcome>()];
    let at = places[1] + offset((MANY - 1) * last.len());
    file.read_exact_at(&mut last, at).expect("read the area");
    assert_eq!(Outcome::read_from_bytes(&last).expect("a result").status(), Status::Ok);
    assert_eq!(fs::read(kv.join(format!("k{}", MANY - 1))).expect("the last one"), [7; 100]);
}

fn the_first_use_of_a_large_object_after_a_restart_keeps_nobody_waiting(mode: Mode) {
    let (mut mount, kv) = kv_with(mode, &ONE_THREAD);
    let key = kv.join("key");
    publish_object(&key, 1, LARGE);
    checksum_of(&key);
    assert_others_are_answered(|| {
        mount.restart();
        longest_wait_meanwhile(mount.path(), || drop(File::open(&key).expect("open")))
    });
}
