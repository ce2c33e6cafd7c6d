//! Shape (c): slot files. Gigabytes made at once and rewritten in place for hours; on disk, outside of the capacity.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::MsFlags;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::small_disk::SmallDisk;
use crate::common::sys::{Aligned, Mapping, get_xattr_text, set_xattr, sorted_names};
use crate::common::{Mode, Mount, Peer, wait};
use crate::fixture::{MIB, kv_with, offset};

in_both_modes!(
    a_slot_file_by_ftruncate_is_rewritten_in_place,
    a_slot_file_by_fallocate_is_rewritten_in_place,
    a_slot_file_is_not_counted_against_the_capacity,
    a_slot_file_unlinked_while_open_stays_usable,
    the_disk_of_a_slot_file_is_given_back_after_its_unlink_and_close,
    holes_of_a_slot_file_read_as_zeros,
    a_slot_file_works_with_o_direct,
    a_slot_file_can_be_mapped,
    sixteen_descriptors_of_a_slot_file_see_each_other,
    a_slot_file_that_was_written_before_it_grew_keeps_its_bytes,
    a_slot_file_evicts_nothing,
    a_slot_file_beyond_the_disk_budget_says_enospc,
    a_slot_file_that_takes_all_of_the_disk_budget_is_rewritten_in_place,
    a_length_that_no_disk_can_hold_says_efbig_or_enospc,
    files_made_below_a_directory_with_the_scratch_policy_are_slot_files,
    a_file_unlinked_while_it_is_written_moves_to_disk,
    a_file_with_a_temporary_name_unlinked_while_it_is_written_stays_whole,
    writers_of_a_file_that_becomes_a_slot_file_lose_nothing,
    a_file_that_becomes_a_slot_file_is_the_same_to_all_who_open_it_later,
    a_file_that_becomes_a_slot_file_keeps_its_holes,
    a_slot_file_that_goes_leaves_what_others_may_evict,
);

/// Larger than the memory of the mount.
const SLOTS: u64 = 2 << 30;

pub(crate) fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).expect("create")
}

fn read_back(file: &File, at: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; length];
    file.read_exact_at(&mut bytes, at).expect("pread");
    bytes
}

/// Rewrites random slots of 1 MiB and checks each before it is written again.
fn rewrite_slots(file: &File, size: u64, rounds: usize) {
    let mut random = StdRng::seed_from_u64(1);
    // Few slots, so that they are met again; far apart, so that the file stays sparse.
    let places: Vec<u64> = (0..24).map(|slot| slot * (size / 24) / 4096 * 4096).collect();
    let mut content = vec![None; places.len()];
    for round in 0..rounds {
        let slot = random.random_range(0..places.len());
        let expected = content[slot].map_or_else(|| vec![0; MIB], |seed| pattern::bytes(seed, MIB));
        assert_same(
            &read_back(file, places[slot], MIB),
            &expected,
            &format!("slot {slot} before round {round}"),
        );
        file.write_all_at(&pattern::bytes(offset(round), MIB), places[slot]).expect("pwrite");
        content[slot] = Some(offset(round));
    }
    for (slot, seed) in content.into_iter().enumerate() {
        if let Some(seed) = seed {
            assert_same(&read_back(file, places[slot], MIB), &pattern::bytes(seed, MIB), "at the end");
        }
    }
}

fn big(mode: Mode) -> (Mount, std::path::PathBuf) {
    kv_with(mode, &["scratch.capacity=8GiB"])
}

fn a_slot_file_by_ftruncate_is_rewritten_in_place(mode: Mode) {
    let (_mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    assert_eq!(file.metadata().expect("fstat").len(), SLOTS);
    rewrite_slots(&file, SLOTS, 120);
    assert_eq!(file.metadata().expect("fstat").len(), SLOTS, "its size stays");
}

fn a_slot_file_by_fallocate_is_rewritten_in_place(mode: Mode) {
    let (_mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    let size = 1 << 30;
    fallocate(&file, FallocateFlags::empty(), 0, size).expect("fallocate");
    rewrite_slots(&file, u64::try_from(size).expect("positive"), 80);
}

fn a_slot_file_is_not_counted_against_the_capacity(mode: Mode) {
    let (mount, kv) = big(mode);
    let before = mount.usage().used;
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    // More than the capacity of 256 MiB.
    for index in 0..300 {
        file.write_all_at(&pattern::bytes(index, MIB), index * 4 * offset(MIB)).expect("pwrite");
    }
    let used = mount.usage().used;
    assert!(used <= before + (16 << 20), "{used} bytes of memory used, {before} before");
    for index in (0..300).step_by(37) {
        let found = read_back(&file, index * 4 * offset(MIB), MIB);
        assert_same(&found, &pattern::bytes(index, MIB), "a slot");
    }
}

fn a_slot_file_unlinked_while_open_stays_usable(mode: Mode) {
    let (_mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    file.write_all_at(b"before", 4096).expect("pwrite");
    fs::remove_file(kv.join("slots")).expect("unlink");
    assert_eq!(sorted_names(&kv), Vec::<String>::new());
    assert_eq!(read_back(&file, 4096, 6), b"before");
    file.write_all_at(&[0; 6], 4096).expect("pwrite");
    rewrite_slots(&file, SLOTS, 60);
}

/// Bytes of disk below a directory, and the number of files.
fn disk(directory: &Path) -> (u64, usize) {
    let Ok(entries) = fs::read_dir(directory) else { return (0, 0) };
    entries.map(|entry| entry.expect("entry")).fold((0, 0), |(bytes, files), entry| {
        let facts = entry.metadata().expect("stat");
        if facts.is_dir() {
            let (more_bytes, more_files) = disk(&entry.path());
            (bytes + more_bytes, files + more_files)
        } else {
            (bytes + facts.blocks() * 512, files + 1)
        }
    })
}

fn the_disk_of_a_slot_file_is_given_back_after_its_unlink_and_close(mode: Mode) {
    let place = SmallDisk::new("128m", MsFlags::empty());
    let dir = format!("scratch.dir={}", place.path().display());
    let (_mount, kv) = kv_with(mode, &["scratch.capacity=8GiB", &dir]);
    let free = || {
        let facts = nix::sys::statvfs::statvfs(place.path()).expect("statfs of the disk");
        facts.blocks_free() * facts.fragment_size()
    };
    let before = free();
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    for index in 0..64 {
        file.write_all_at(&pattern::bytes(index, MIB), index * offset(MIB)).expect("pwrite");
    }
    file.sync_all().expect("fsync");
    assert!(free() <= before - (64 << 20), "what was written is on the disk");
    fs::remove_file(kv.join("slots")).expect("unlink");
    drop(file);
    let gone = wait::until(wait::HANG, || disk(place.path()) == (0, 0));
    assert!(gone, "left in the scratch directory: {:?}", disk(place.path()));
    let given_back = wait::until(wait::HANG, || free() + (1 << 20) >= before);
    assert!(given_back, "the disk has {} free bytes, {before} before", free());
}

fn holes_of_a_slot_file_read_as_zeros(mode: Mode) {
    let (_mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    file.write_all_at(&[1; 10], 100 << 20).expect("pwrite");
    assert_same(&read_back(&file, 0, MIB), &vec![0; MIB], "the head");
    let around = read_back(&file, (100 << 20) - 100, 210);
    assert_same(&around, &[vec![0; 100], vec![1; 10], vec![0; 100]].concat(), "around what was written");
    assert_same(&read_back(&file, SLOTS - 5000, 5000), &vec![0; 5000], "the tail");
    assert_eq!(file.read_at(&mut [0; 10], SLOTS).expect("pread"), 0, "behind the end");
}

fn a_slot_file_works_with_o_direct(mode: Mode) {
    let (_mount, kv) = big(mode);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
    let file = options.open(kv.join("slots")).expect("create with O_DIRECT");
    file.set_len(SLOTS).expect("ftruncate");
    let mut random = StdRng::seed_from_u64(3);
    for seed in 0..40 {
        let at = random.random_range(0..SLOTS / 4096 - 300) * 4096;
        let bytes = pattern::bytes(seed, 256 * 4096);
        let written = file.write_at(Aligned::from(&bytes).as_ref(), at).expect("direct pwrite");
        assert_eq!(written, bytes.len());
        let mut buffer = Aligned::zeroed(bytes.len());
        assert_eq!(file.read_at(buffer.as_mut(), at).expect("direct pread"), bytes.len());
        assert_same(buffer.as_ref(), &bytes, "a slot");
    }
}

fn a_slot_file_can_be_mapped(mode: Mode) {
    let (_mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    let mapping = Mapping::shared_writable(&file, 64 * MIB).expect("mmap");
    mapping.write(10 * MIB + 5, b"stored");
    assert_eq!(read_back(&file, offset(10 * MIB + 5), 6), b"stored");
    file.write_all_at(b"written", offset(20 * MIB)).expect("pwrite");
    assert_eq!(mapping.read(20 * MIB, 7), b"written");
}

fn sixteen_descriptors_of_a_slot_file_see_each_other(mode: Mode) {
    let (_mount, kv) = big(mode);
    let first = create(&kv.join("slots"));
    first.set_len(SLOTS).expect("ftruncate");
    let files: Vec<_> = (0..16)
        .map(|_| OpenOptions::new().read(true).write(true).open(kv.join("slots")).expect("open"))
        .collect();
    for (index, file) in files.iter().enumerate() {
        file.write_all_at(&pattern::bytes(offset(index), 5000), offset(index * 100 * MIB)).expect("pwrite");
        let reader = &files[(index + 7) % 16];
        let found = read_back(reader, offset(index * 100 * MIB), 5000);
        assert_same(&found, &pattern::bytes(offset(index), 5000), "by another descriptor");
    }
    drop(first);
    assert_same(&read_back(&files[3], 0, 5000), &pattern::bytes(0, 5000), "after the first one is closed");
}

fn a_slot_file_that_was_written_before_it_grew_keeps_its_bytes(mode: Mode) {
    let (_mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    file.write_all_at(&pattern::bytes(1, 3 * MIB), 0).expect("pwrite while it is small");
    file.set_len(SLOTS).expect("ftruncate");
    assert_same(&read_back(&file, 0, 3 * MIB), &pattern::bytes(1, 3 * MIB), "what was there");
    file.write_all_at(b"after", SLOTS - 5).expect("pwrite at the end");
    assert_eq!(read_back(&file, SLOTS - 5, 5), b"after");
    assert_same(&read_back(&file, offset(3 * MIB), 5000), &vec![0; 5000], "the hole behind it");
}

fn a_slot_file_evicts_nothing(mode: Mode) {
    let (_mount, kv) = big(mode);
    for seed in 0..100 {
        crate::fixture::publish_object(&kv.join(format!("k{seed}")), seed, 2 * MIB);
    }
    let file = create(&kv.join("slots"));
    file.set_len(SLOTS).expect("ftruncate");
    rewrite_slots(&file, SLOTS, 60);
    for seed in 0..100 {
        let found = fs::read(kv.join(format!("k{seed}"))).unwrap_or_else(|error| panic!("k{seed}: {error}"));
        assert_eq!(pattern::verify_object(&found), Ok(seed));
    }
}

fn a_slot_file_beyond_the_disk_budget_says_enospc(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["scratch.capacity=1GiB"]);
    let file = create(&kv.join("slots"));
    let error = fallocate(&file, FallocateFlags::empty(), 0, 3 << 30).expect_err("three times the budget");
    assert!(matches!(error, Errno::ENOSPC | Errno::EFBIG | Errno::EDQUOT), "{error}");
    let log = mount.log();
    assert!(log.contains("would pass its capacity of 1.0 GiB; raise scratch.capacity"), "{log}");
    file.write_all_at(b"the file is still good", 0).expect("pwrite");
}

fn a_slot_file_that_takes_all_of_the_disk_budget_is_rewritten_in_place(mode: Mode) {
    let (_mount, kv) = kv_with(mode, &["scratch.capacity=1GiB"]);
    let path = kv.join("slots");
    let file = create(&path);
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 30).expect("fallocate");
    rewrite_slots(&file, 1 << 30, 40);
    let other = create(&kv.join("other"));
    let error = fallocate(&other, FallocateFlags::empty(), 0, 1 << 30).expect_err("there is no room for two");
    assert_eq!(error, Errno::ENOSPC);
    drop(file);
    let again = OpenOptions::new().read(true).open(&path).expect("what was written is kept at the close");
    assert_eq!(again.metadata().expect("fstat").len(), 1 << 30);
}

fn a_length_that_no_disk_can_hold_says_efbig_or_enospc(mode: Mode) {
    let (mount, kv) = big(mode);
    let file = create(&kv.join("slots"));
    let beyond = i64::MAX - 1;
    let plain = tempfile::tempfile_in(mount.state_dir()).expect("a file on the same disk");
    if fallocate(&plain, FallocateFlags::empty(), beyond, 1).is_ok() {
        return println!("skipped: this disk holds any length, as tmpfs and XFS do");
    }
    let error = fallocate(&file, FallocateFlags::empty(), beyond, 1).expect_err("eight exabytes");
    assert!(matches!(error, Errno::EFBIG | Errno::ENOSPC), "{error}");
    let error = file.write_all_at(b"x", u64::try_from(beyond).expect("positive") - 1).expect_err("pwrite");
    assert!(matches!(error.raw_os_error(), Some(libc::EFBIG | libc::ENOSPC)), "{error}");
    file.write_all_at(b"the file is still good", 0).expect("pwrite");
}

fn scratch_bytes(mount: &Mount) -> u64 {
    mount.control_get("/v1/status").json()["scratch"]["bytes"].as_u64().expect("a number of bytes")
}

fn files_made_below_a_directory_with_the_scratch_policy_are_slot_files(mode: Mode) {
    let (mount, kv) = big(mode);
    let before = mount.usage().used;
    let deep = kv.join("slots/of/a/client");
    fs::create_dir_all(&deep).expect("mkdir");
    set_xattr(&kv.join("slots"), "user.tidefs.scratch", b"true").expect("setxattr");
    let tier = |path: &Path| get_xattr_text(path, "user.tidefs.tier");
    // More than the capacity of 256 MiB, in files far below the size at which others become scratch.
    for index in 0..10 {
        let file = create(&deep.join(format!("slot{index}")));
        file.write_all_at(&pattern::bytes(index, 40 * MIB), 0).expect("pwrite");
    }
    assert!(mount.usage().used <= before + (1 << 20), "{:?}, {before} before", mount.usage());
    assert!(scratch_bytes(&mount) >= 400 << 20, "{} bytes on disk", scratch_bytes(&mount));
    for index in 0..10 {
        let path = deep.join(format!("slot{index}"));
        assert_eq!(tier(&path), "scratch");
        let found = Peer::spawn().read(&path).expect("read by another process");
        assert_same(&found, &pattern::bytes(index, 40 * MIB), "a slot file that was closed");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("open again");
        file.write_all_at(b"rewritten in place", 10 << 20).expect("pwrite");
        assert_eq!(read_back(&file, 10 << 20, 18), b"rewritten in place");
    }
    fs::write(deep.join("a.tmp"), b"bytes").expect("write");
    fs::rename(deep.join("a.tmp"), deep.join("a")).expect("rename");
    assert_eq!(tier(&deep.join("a")), "scratch", "a rename makes no object of a slot file");
    let why = || get_xattr_text(&deep.join("a"), "user.tidefs.why");
    assert!(wait::until(wait::HANG, || why().starts_with("a slot file")), "{}", why());
    set_xattr(&deep, "user.tidefs.scratch", b"false").expect("setxattr");
    fs::write(deep.join("object"), pattern::bytes(1, MIB)).expect("write");
    // It is written until the daemon has heard of its close.
    assert!(wait::until(wait::HANG, || tier(&deep.join("object")) != "writing"), "it is not sealed");
    assert_eq!(tier(&deep.join("object")), "memory", "the nearest directory decides");
    fs::remove_dir_all(kv.join("slots")).expect("rm -r");
    assert!(
        wait::until(wait::HANG, || scratch_bytes(&mount) == 0),
        "{} bytes are left",
        scratch_bytes(&mount)
    );
}

fn a_file_unlinked_while_it_is_written_moves_to_disk(mode: Mode) {
    let (mount, kv) = big(mode);
    let before = mount.usage().used;
    let file = create(&kv.join("slots"));
    file.write_all_at(&pattern::bytes(1, 8 * MIB), 0).expect("pwrite");
    assert!(mount.usage().used >= before + (8 << 20), "it begins in memory: {:?}", mount.usage());
    fs::remove_file(kv.join("slots")).expect("unlink");
    assert!(mount.usage().used < before + (1 << 20), "{:?}, {before} before", mount.usage());
    assert_same(&read_back(&file, 0, 8 * MIB), &pattern::bytes(1, 8 * MIB), "what was there");
    for index in 0..300 {
        file.write_all_at(&pattern::bytes(index, MIB), index * offset(MIB)).expect("pwrite");
    }
    assert!(mount.usage().used < before + (1 << 20), "{:?}, {before} before", mount.usage());
    for index in (0..300).step_by(37) {
        assert_same(&read_back(&file, index * offset(MIB), MIB), &pattern::bytes(index, MIB), "a slot");
    }
    drop(file);
    assert!(
        wait::until(wait::HANG, || scratch_bytes(&mount) == 0),
        "{} bytes are left",
        scratch_bytes(&mount)
    );
}

fn a_file_with_a_temporary_name_unlinked_while_it_is_written_stays_whole(mode: Mode) {
    let (mount, kv) = big(mode);
    let before = mount.usage().used;
    let file = create(&kv.join("slots.tmp"));
    file.write_all_at(&pattern::bytes(1, 32 * MIB), 0).expect("pwrite");
    fs::remove_file(kv.join("slots.tmp")).expect("unlink");
    let used = mount.usage().used;
    let has_passthrough = mount.control_get("/v1/status").json()["fuse"]["passthrough"] == true;
    // What the kernel serves cannot move: it is counted, and not evicted.
    assert_eq!(used >= before + (32 << 20), has_passthrough, "{used} bytes, {before} before");
    for seed in 0..300 {
        crate::fixture::publish_object(&kv.join(format!("k{seed}")), seed, 2 * MIB);
    }
    let usage = mount.usage();
    assert!(usage.used <= usage.capacity, "{usage:?}");
    assert_same(&read_back(&file, 0, 32 * MIB), &pattern::bytes(1, 32 * MIB), "under pressure");
    file.write_all_at(b"it can still be written", 5 << 20).expect("pwrite");
    assert_eq!(read_back(&file, 5 << 20, 23), b"it can still be written");
}

fn writers_of_a_file_that_becomes_a_slot_file_lose_nothing(mode: Mode) {
    let (_mount, kv) = kv_with(mode, &["scratch.capacity=8GiB", "scratch_min=32MiB"]);
    const PIECE: usize = 16 * 1024;
    for round in 0..6 {
        let path = kv.join(format!("slots{round}"));
        let file = create(&path);
        file.write_all_at(&vec![1; 16 * MIB], 0).expect("pwrite");
        std::thread::scope(|scope| {
            for lane in 0..4_u64 {
                let file = &file;
                scope.spawn(move || {
                    // The kernel lets no pwrite run beside an ftruncate or unlink; the pages of a mapping it does.
                    let mapping = Mapping::shared_writable(file, 16 * MIB).expect("mmap");
                    for piece in (0..1024).filter(|piece| piece % 4 == lane) {
                        let at = usize::try_from(piece).expect("a small number") * PIECE;
                        mapping.write(at, &pattern::bytes(piece, PIECE));
                        if piece % 64 < 4 {
                            mapping.sync().expect("msync");
                        }
                    }
                });
            }
            let (file, path) = (&file, &path);
            scope.spawn(move || {
                if round % 2 == 0 {
                    file.set_len(64 << 20).expect("ftruncate beyond scratch_min");
                } else {
                    fs::remove_file(path).expect("unlink");
                }
            });
        });
        for piece in 0..1024 {
            let found = read_back(&file, piece * offset(PIECE), PIECE);
            assert_same(&found, &pattern::bytes(piece, PIECE), &format!("piece {piece} of round {round}"));
        }
    }
}

fn a_file_that_becomes_a_slot_file_is_the_same_to_all_who_open_it_later(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["scratch.capacity=8GiB", "scratch_min=8MiB"]);
    // Below a quota the daemon serves the first writer itself, and the kernel those who open it after that.
    set_xattr(&kv, "user.tidefs.quota", b"128MiB").expect("a quota");
    let path = kv.join("pieces");
    let open = || OpenOptions::new().write(true).open(&path).expect("open to write");
    let first = OpenOptions::new().write(true).create_new(true).open(&path).expect("create");
    drop(open());
    for piece in 0..12 {
        first.write_all_at(&pattern::bytes(piece, MIB), piece << 20).expect("pwrite");
    }
    open().write_all_at(&pattern::bytes(50, MIB), 5 << 20).expect("by another descriptor");
    drop(first);
    mount.wait_until_closed([&path]);
    open().write_all_at(&pattern::bytes(70, MIB), 7 << 20).expect("after the close");
    let found = Peer::spawn().read(&path).expect("read");
    for piece in 0..12_u64 {
        let seed = if piece == 5 || piece == 7 { piece * 10 } else { piece };
        let at = usize::try_from(piece).expect("a small number") * MIB;
        assert_same(&found[at..at + MIB], &pattern::bytes(seed, MIB), &format!("piece {piece}"));
    }
}

fn a_slot_file_that_goes_leaves_what_others_may_evict(mode: Mode) {
    let mount =
        Mount::start(&mode.options(&["capacity=64MiB", "scratch.capacity=8GiB", "scratch_min=32MiB"]));
    let (cold, kept) = (mount.namespace("cold"), mount.namespace("kept"));
    set_xattr(&kept, "user.tidefs.pin", b"hard").expect("pins");
    set_xattr(&cold, "user.tidefs.floor", b"8MiB").expect("a floor far below what it holds");
    for seed in 0..30 {
        crate::fixture::publish_object(&cold.join(format!("k{seed}")), seed, MIB);
    }
    let slots = cold.join("slots");
    create(&slots).set_len(64 << 20).expect("ftruncate");
    mount.wait_until_closed([&slots]);
    drop(OpenOptions::new().read(true).write(true).open(&slots).expect("open again"));
    mount.wait_until_closed([&slots]);
    fs::remove_file(&slots).expect("unlink");
    for seed in 0..48 {
        crate::fixture::publish_object(&kept.join(format!("k{seed}")), seed, MIB);
    }
    assert_eq!(sorted_names(&kept).len(), 48, "all have room: what is cold leaves");
}

fn a_file_that_becomes_a_slot_file_keeps_its_holes(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["scratch_min=32MiB"]);
    let file = create(&kv.join("slots"));
    file.write_all_at(&pattern::bytes(1, 4096), 24 << 20).expect("pwrite");
    file.set_len(1 << 30).expect("ftruncate beyond scratch_min");
    assert_eq!(get_xattr_text(&kv.join("slots"), "user.tidefs.tier"), "scratch");
    // The pages of memory are huge where they can be.
    assert!(scratch_bytes(&mount) <= 4 << 20, "{} bytes on disk", scratch_bytes(&mount));
    assert_same(&read_back(&file, 24 << 20, 4096), &pattern::bytes(1, 4096), "what was written");
    assert_eq!(read_back(&file, 16 << 20, 4096), [0; 4096]);
}
