//! Requests that take long do not keep those of others waiting, though one thread answers the kernel.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::sys::statvfs::statvfs;

use crate::common::Mode;
use crate::common::modes::in_both_modes;
use crate::common::sys::{checksum_of, remove_xattr, set_xattr};
use crate::fixture::{MIB, kv_with, publish_object};

in_both_modes!(
    a_policy_of_a_directory_with_many_objects_keeps_nobody_waiting,
    a_directory_with_many_objects_that_moves_below_another_policy_keeps_nobody_waiting,
    a_new_version_of_a_large_object_keeps_nobody_waiting,
    the_first_use_of_a_large_object_after_a_restart_keeps_nobody_waiting,
);

const ONE_THREAD: [&str; 3] = ["fuse.threads=1", "capacity=512MiB", "on_stop=keep"];

/// Objects of which going through all takes far longer than answering a request.
const MANY: usize = 20_000;
/// Bytes of which checking, or copying, all takes far longer than that.
const LARGE: usize = 128 * MIB;

/// More answers than somebody else is given while the one thread does something else: between the few requests that a system call
/// is made of, and before a program whose call has returned goes on.
const FEW: u64 = 60;

/// How many requests of somebody else are answered while `action` goes on.
fn answers_meanwhile(mount: &Path, action: impl FnOnce()) -> u64 {
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                statvfs(mount).expect("statfs");
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        // It is asking when it begins.
        while answers.load(Ordering::Relaxed) < 10 {
            thread::yield_now();
        }
        let before = answers.load(Ordering::Relaxed);
        action();
        let answered = answers.load(Ordering::Relaxed) - before;
        is_over.store(true, Ordering::Relaxed);
        answered
    })
}

/// A busy machine may keep the others from asking, so one of some tries must do.
#[track_caller]
fn assert_others_are_answered(mut answers_of_a_try: impl FnMut() -> u64) {
    let mut most = 0;
    for _ in 0..20 {
        most = answers_of_a_try().max(most);
        if most > FEW {
            return;
        }
    }
    panic!("others were given {most} answers at most");
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
        answers_meanwhile(mount.path(), || {
            set_xattr(&many, "user.tidefs.quota", b"256MiB").expect("a policy")
        })
        .min(answers_meanwhile(mount.path(), || remove_xattr(&many, "user.tidefs.quota").expect("and none")))
    });
}

fn a_directory_with_many_objects_that_moves_below_another_policy_keeps_nobody_waiting(mode: Mode) {
    let (mount, kv) = kv_with(mode, &ONE_THREAD);
    fill(&kv.join("many"));
    let other = mount.namespace("other");
    set_xattr(&other, "user.tidefs.ttl", b"100000").expect("a policy");
    let (mut from, mut to) = (kv.join("many"), other.join("many"));
    assert_others_are_answered(|| {
        let answers = answers_meanwhile(mount.path(), || fs::rename(&from, &to).expect("a rename"));
        std::mem::swap(&mut from, &mut to);
        answers
    });
}

fn a_new_version_of_a_large_object_keeps_nobody_waiting(mode: Mode) {
    let (mount, kv) = kv_with(mode, &ONE_THREAD);
    let key = kv.join("key");
    assert_others_are_answered(|| {
        publish_object(&key, 1, LARGE);
        let reader = File::open(&key).expect("open");
        let mut writer = None;
        let answers = answers_meanwhile(mount.path(), || {
            writer = Some(File::options().append(true).open(&key).expect("open to append"));
        });
        drop((reader, writer));
        mount.wait_until_closed([&key]);
        answers
    });
}

fn the_first_use_of_a_large_object_after_a_restart_keeps_nobody_waiting(mode: Mode) {
    let (mut mount, kv) = kv_with(mode, &ONE_THREAD);
    let key = kv.join("key");
    publish_object(&key, 1, LARGE);
    checksum_of(&key);
    assert_others_are_answered(|| {
        mount.restart();
        answers_meanwhile(mount.path(), || drop(File::open(&key).expect("open")))
    });
}
