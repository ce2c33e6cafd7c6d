//! Slot files on a disk that stands still: who has nothing to do with it goes on, though one thread answers the kernel.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{get_xattr_text, set_xattr};
use crate::common::{Mode, Mount, wait};
use crate::fixture::{MIB, kv_with};
use crate::scratch::create;

in_both_modes!(changing_a_slot_file_keeps_nobody_waiting_for_its_disk);

fn changing_a_slot_file_keeps_nobody_waiting_for_its_disk(mode: Mode) {
    // A disk that stands still when it is told to: another mount, whose daemon can be stopped.
    let disk = Mount::start(&mode.options(&["capacity=64MiB", "scratch.capacity=1GiB"]));
    let directory = format!("scratch.dir={}", disk.path().join("disk/scratch").display());
    let (mount, kv) = kv_with(mode, &["fuse.threads=1", "scratch_min=4MiB", &directory]);
    let path = kv.join("slots");
    let file = create(&path);
    file.set_len(8 << 20).expect("ftruncate");
    file.write_all_at(&pattern::bytes(1, MIB), 4 << 20).expect("pwrite");
    assert_eq!(get_xattr_text(&path, "user.tidefs.tier"), "scratch");

    let [grown, late, unlinked] = ["grown", "late", "unlinked"].map(|name| create(&kv.join(name)));
    unlinked.write_all_at(&pattern::bytes(1, MIB), 0).expect("pwrite");
    let below = kv.join("below");
    fs::create_dir(&below).expect("mkdir");
    set_xattr(&below, "user.tidefs.scratch", b"true").expect("setxattr");
    let others: Vec<File> = (0..16).map(|index| create(&kv.join(format!("other{index}")))).collect();

    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let changes: [(&str, &(dyn Fn() + Sync)); 6] = [
        ("punching a hole", &|| fallocate(&file, punch, 0, 6 << 20).expect("fallocate")),
        ("ftruncate", &|| file.set_len(4096).expect("ftruncate")),
        ("becoming one by a write", &|| grown.write_all_at(&[1; 4096], (4 << 20) - 4096).expect("pwrite")),
        ("becoming one by ftruncate", &|| late.set_len(4 << 20).expect("ftruncate")),
        ("becoming one by unlink", &|| fs::remove_file(kv.join("unlinked")).expect("unlink")),
        ("being created", &|| drop(create(&below.join("created")))),
    ];
    for (what, change) in changes {
        disk.stand_still();
        thread::scope(|scope| {
            let changing = scope.spawn(change);
            let asking = scope.spawn(|| {
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(300) {
                    statvfs(mount.path()).expect("statfs");
                    for other in &others {
                        other.write_all_at(&[1; 4096], 0).expect("pwrite");
                    }
                }
            });
            let are_answered = wait::until(wait::HANG, || asking.is_finished());
            let is_changed = changing.is_finished();
            disk.go_on();
            assert!(are_answered, "{what} keeps others waiting");
            assert!(!is_changed, "{what} does not wait for the disk: this shows nothing");
        });
    }
    assert_eq!(unlinked.metadata().expect("stat").len(), 1 << 20);
    drop(File::create(&path).expect("open with O_TRUNC"));
    assert_eq!(file.metadata().expect("stat").len(), 0);
}
