//! Many writers at once: of one key by rename (the same block computed twice), and of one file by pwrite.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::{Mode, Peer, wait};
use crate::fixture::{MIB, kv, offset};

in_both_modes!(
    same_key_threads_by_rename_leave_one_of_their_objects_whole,
    same_key_processes_by_rename_leave_one_of_their_objects_whole,
    same_key_processes_straight_to_the_name_leave_a_file_of_both,
    eight_threads_fill_one_file_by_pwrite,
    four_processes_fill_one_file_by_pwrite,
    sixteen_descriptors_opened_per_piece_fill_one_file,
    threads_write_a_thousand_files_each_in_one_directory,
    appends_of_four_threads_lose_nothing,
    appends_of_a_process_that_joins_for_each_lose_nothing,
);

fn same_key_threads_by_rename_leave_one_of_their_objects_whole(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8_u64)
            .map(|writer| {
                let kv = &kv;
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(writer);
                    for round in 0..100 {
                        let key = kv.join(format!("k{}", random.random_range(0..4)));
                        let temporary = kv.join(format!("{writer}.tmp"));
                        let length = random.random_range(16..200_000);
                        let mut file = File::create(&temporary).expect("create");
                        file.write_all(&pattern::object(writer * 1000 + round, length)).expect("write");
                        if round % 2 == 0 {
                            drop(file); // half of them close before the rename, half after it
                            fs::rename(&temporary, &key).expect("rename");
                        } else {
                            fs::rename(&temporary, &key).expect("rename");
                        }
                    }
                })
            })
            .collect();
        for reader in 0..2_u64 {
            let (kv, done) = (&kv, &done);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(reader);
                while !done.load(Ordering::Relaxed) {
                    let key = kv.join(format!("k{}", random.random_range(0..4)));
                    match fs::read(&key) {
                        Ok(found) => drop(pattern::verify_object(&found).expect("whole while writers race")),
                        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}"),
                    }
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
    for key in 0..4 {
        pattern::verify_object(&fs::read(kv.join(format!("k{key}"))).expect("read"))
            .expect("whole at the end");
    }
    assert_eq!(fs::read_dir(&kv).expect("list").count(), 4, "no temporary name is left");
}

fn same_key_processes_by_rename_leave_one_of_their_objects_whole(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let key = kv.join("key");
    let mut reader = Peer::spawn();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let key = &key;
                scope.spawn(move || {
                    let mut peer = Peer::spawn();
                    for round in 0..150 {
                        let length = 20_000 + usize::try_from(writer).expect("small") * 10_000;
                        peer.publish(key, writer * 1000 + round, length).expect("publish");
                    }
                })
            })
            .collect();
        let mut seen = false;
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            match reader.read(&key) {
                Ok(found) => {
                    pattern::verify_object(&found).expect("whole while writers race");
                    seen = true;
                }
                Err(error) => assert!(!seen, "{error}: a replaced name is never absent"),
            }
        }
    });
    pattern::verify_object(&reader.read(&key).expect("read")).expect("whole at the end");
}

fn same_key_processes_straight_to_the_name_leave_a_file_of_both(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut first, mut second, mut other) = (Peer::spawn(), Peer::spawn(), Peer::spawn());
    for round in 0..50 {
        let key = kv.join(format!("k{round}"));
        let bytes = pattern::bytes(round, 100_000);
        let flags = libc::O_WRONLY | libc::O_CREAT;
        let (a, b) = (first.open(&key, flags).expect("open"), second.open(&key, flags).expect("open"));
        first.write_at(a, 0, &bytes).expect("write");
        second.write_at(b, 0, &bytes).expect("the same bytes again");
        first.close(a).expect("close");
        second.close(b).expect("close");
        assert_same(&other.read(&key).expect("read"), &bytes, "both wrote the same");
    }
}

/// Pieces of 4 to 64 KiB in random order that cover `length` bytes, dealt to `hands`.
fn dealt(length: usize, hands: usize, seed: u64) -> Vec<Vec<(usize, usize)>> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < length {
        let piece = random.random_range(4096..=65_536).min(length - at);
        pieces.push((at, piece));
        at += piece;
    }
    pieces.shuffle(&mut random);
    pieces.chunks(pieces.len().div_ceil(hands)).map(<[_]>::to_vec).collect()
}

fn eight_threads_fill_one_file_by_pwrite(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for seed in 0..5 {
        let bytes = pattern::bytes(seed, 8 * MIB + 333);
        let path = kv.join(format!("k{seed}"));
        let file = File::create(&path).expect("create");
        std::thread::scope(|scope| {
            for hand in dealt(bytes.len(), 8, seed) {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    for (at, length) in hand {
                        let written = file.write_at(&bytes[at..at + length], offset(at)).expect("pwrite");
                        assert_eq!(written, length, "no short write");
                    }
                });
            }
        });
        drop(file);
        assert_same(&Peer::spawn().read(&path).expect("read"), &bytes, "filled by eight threads");
    }
}

fn four_processes_fill_one_file_by_pwrite(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let bytes = pattern::bytes(1, 6 * MIB + 1);
    let path = kv.join("key");
    let mut opener = Peer::spawn();
    let first = opener.open(&path, libc::O_RDWR | libc::O_CREAT).expect("create");
    std::thread::scope(|scope| {
        for hand in dealt(bytes.len(), 4, 1) {
            let (path, bytes) = (&path, &bytes);
            scope.spawn(move || {
                let mut peer = Peer::spawn();
                let handle = peer.open(path, libc::O_RDWR | libc::O_CREAT).expect("join");
                for (at, length) in hand {
                    peer.write_at(handle, offset(at), &bytes[at..at + length]).expect("pwrite");
                }
                peer.close(handle).expect("close");
            });
        }
    });
    let mut other = Peer::spawn();
    assert_eq!(other.stat(&path), Err(nix::errno::Errno::ENOENT), "its first writer still has it open");
    opener.close(first).expect("close");
    assert_same(&other.read(&path).expect("read"), &bytes, "filled by four processes");
}

fn sixteen_descriptors_opened_per_piece_fill_one_file(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let bytes = pattern::bytes(1, 4 * MIB);
    let (temporary, path) = (kv.join("block.tmp"), kv.join("block"));
    std::thread::scope(|scope| {
        for hand in dealt(bytes.len(), 16, 3) {
            let (temporary, bytes) = (&temporary, &bytes);
            scope.spawn(move || {
                for (at, length) in hand {
                    let mut options = OpenOptions::new();
                    let file =
                        options.create(true).truncate(false).write(true).open(temporary).expect("open");
                    file.write_all_at(&bytes[at..at + length], offset(at)).expect("pwrite");
                }
            });
        }
    });
    fs::rename(&temporary, &path).expect("rename");
    assert_same(&Peer::spawn().read(&path).expect("read"), &bytes, "one open for each piece");
}

fn threads_write_a_thousand_files_each_in_one_directory(mode: Mode) {
    let (_mount, kv) = kv(mode);
    std::thread::scope(|scope| {
        for writer in 0..4_u64 {
            let kv = &kv;
            scope.spawn(move || {
                for round in 0..1000 {
                    let seed = writer * 1000 + round;
                    fs::write(kv.join(format!("k{seed}")), pattern::object(seed, 500)).expect("write");
                }
            });
        }
    });
    let mut other = Peer::spawn();
    let mut listed = 0;
    let are_all = wait::until(wait::HANG, || {
        listed = other.list(&kv).expect("list").len();
        listed == 4000
    });
    assert!(are_all, "{listed} are listed");
    for seed in 0..4000 {
        let found = fs::read(kv.join(format!("k{seed}"))).expect("read");
        assert_eq!(pattern::verify_object(&found), Ok(seed));
    }
}

fn appends_of_four_threads_lose_nothing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("log");
    drop(File::create(&path).expect("create"));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).expect("open for appending");
                for round in 0..250 {
                    file.write_all(format!("{writer} {round:04}\n").as_bytes()).expect("append");
                }
            });
        }
    });
    let text = fs::read_to_string(&path).expect("read");
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<_> = (0..4).flat_map(|w| (0..250).map(move |r| format!("{w} {r:04}"))).collect();
    expected.sort();
    assert_eq!(lines, expected);
}

/// The kernel appends where it takes the file to end, and another process comes to the hidden file again and again meanwhile.
fn appends_of_a_process_that_joins_for_each_lose_nothing(mode: Mode) {
    const JOINS: u64 = 200;
    let (_mount, kv) = kv(mode);
    let path = kv.join("log");
    let record = |who: char, number: u64| format!("{who} {number:061}\n");
    let mut kept = OpenOptions::new().read(true).append(true).create(true).open(&path).expect("create");
    let is_over = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let numbers = (0..500_000).take_while(|_| !is_over.load(Ordering::Relaxed));
            numbers.inspect(|&number| kept.write_all(record('a', number).as_bytes()).expect("append")).count()
        });
        let mut joining = Peer::spawn();
        for number in 0..JOINS {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_APPEND;
            let handle = joining.open(&path, flags).expect("join");
            joining.write_at(handle, 0, record('b', number).as_bytes()).expect("append");
            joining.close(handle).expect("close");
        }
        is_over.store(true, Ordering::Relaxed);
        appending.join().expect("it appends")
    });
    drop(kept);
    let found = Peer::spawn().read(&path).expect("read");
    let text = String::from_utf8(found).expect("records are text");
    let mut lines: Vec<_> = text.split_inclusive('\n').map(str::to_owned).collect();
    lines.sort_unstable();
    let of_first = (0..offset(count)).map(|number| record('a', number));
    let expected: Vec<_> = of_first.chain((0..JOINS).map(|number| record('b', number))).collect();
    assert_eq!(lines.len(), expected.len());
    assert!(lines == expected, "as many, and not the same");
}
