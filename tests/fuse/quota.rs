//! Limits of a namespace: its quota bounds it, its floor protects it, its ttl empties it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{errno, set_xattr, sorted_names};
use crate::common::{Mode, Mount, Peer, wait};
use crate::fixture::{MIB, offset, publish_object};

in_both_modes!(
    a_quota_evicts_inside_its_namespace_only,
    a_quota_is_what_statfs_of_the_namespace_tells,
    a_quota_lowered_below_usage_evicts_down_to_it,
    a_directory_that_moves_below_a_quota_is_evicted_down_to_it,
    a_quota_full_of_pins_says_edquot,
    files_that_are_being_written_take_no_room_beyond_their_quota,
    closed_temporary_files_take_no_room_beyond_their_quota,
    what_is_written_beyond_its_quota_by_whomever_is_no_object_and_its_writer_is_told,
    what_is_unlinked_while_it_is_written_takes_of_its_quota_until_it_is_closed,
    what_is_written_without_a_name_takes_of_the_quota_above_a_directory_that_was_removed,
    an_object_takes_its_own_place_in_a_full_quota,
    a_key_of_more_than_half_its_quota_can_be_rewritten,
    a_floor_protects_a_namespace_from_the_growth_of_others,
    a_floor_protects_directories_with_a_policy_of_their_own,
    a_quota_is_not_kept_by_breaking_the_floor_of_a_directory_below,
    what_is_larger_than_the_rest_above_a_floor_stays,
    what_is_too_large_to_leave_hides_none_behind_it_that_a_floor_lets_go,
    an_expired_object_is_absent,
    an_object_lives_until_its_ttl,
    an_expired_object_is_readable_to_its_end_by_who_has_it_open,
    namespaces_with_equal_keys_do_not_mix,
);

fn small(mode: Mode) -> Mount {
    Mount::start(&mode.options(&["capacity=64MiB"]))
}

fn set(path: &Path, name: &str, value: &str) {
    set_xattr(path, name, value.as_bytes()).unwrap_or_else(|error| panic!("{name}={value}: {error}"));
}

fn fill(directory: &Path, count: usize) {
    for index in 0..count {
        publish_object(&directory.join(format!("k{index}")), offset(index), MIB);
    }
}

fn bytes_in(directory: &Path) -> u64 {
    let sizes =
        sorted_names(directory).into_iter().filter_map(|name| fs::metadata(directory.join(name)).ok());
    sizes.map(|facts| facts.len()).sum()
}

fn a_quota_evicts_inside_its_namespace_only(mode: Mode) {
    let mount = small(mode);
    let (limited, free) = (mount.namespace("limited"), mount.namespace("free"));
    set(&limited, "user.tidefs.quota", "16MiB");
    fill(&free, 16);
    for index in 0..64 {
        publish_object(&limited.join(format!("k{index}")), index, MIB);
        assert!(bytes_in(&limited) <= 16 << 20, "{} bytes below a quota of 16 MiB", bytes_in(&limited));
    }
    assert_eq!(sorted_names(&free).len(), 16, "nothing of the other namespace left");
    assert!(sorted_names(&limited).len() >= 8, "the quota is used: {:?}", sorted_names(&limited));
    let found = fs::read(limited.join("k63")).expect("the newest is there");
    assert_eq!(pattern::verify_object(&found), Ok(63));
}

fn a_quota_is_what_statfs_of_the_namespace_tells(mode: Mode) {
    let mount = small(mode);
    let limited = mount.namespace("limited");
    set(&limited, "user.tidefs.quota", "16MiB");
    let facts = || statvfs(&limited).expect("statfs");
    assert_eq!(facts().blocks() * facts().fragment_size(), 16 << 20);
    let before = facts().blocks_available();
    fill(&limited, 4);
    let after = facts().blocks_available();
    assert!(before - after >= 1024, "4 MiB take {} blocks", before - after);
    assert_eq!(mount.usage().capacity, 64 << 20, "the whole mount has its own capacity");
}

fn a_quota_lowered_below_usage_evicts_down_to_it(mode: Mode) {
    let mount = small(mode);
    let limited = mount.namespace("limited");
    fill(&limited, 32);
    set(&limited, "user.tidefs.quota", "8MiB");
    publish_object(&limited.join("one more"), 99, MIB);
    let within = wait::until(wait::HANG, || bytes_in(&limited) <= 8 << 20);
    assert!(within, "{} bytes below a quota of 8 MiB", bytes_in(&limited));
    assert_eq!(pattern::verify_object(&fs::read(limited.join("one more")).expect("read")), Ok(99));
}

fn a_directory_that_moves_below_a_quota_is_evicted_down_to_it(mode: Mode) {
    let mount = small(mode);
    let (limited, free) = (mount.namespace("limited"), mount.namespace("free"));
    set(&limited, "user.tidefs.quota", "8MiB");
    fs::create_dir(free.join("d")).expect("mkdir");
    fill(&free.join("d"), 20);
    // What is open does not leave.
    mount.wait_until_closed((0..20).map(|index| free.join(format!("d/k{index}"))));
    fs::rename(free.join("d"), limited.join("d")).expect("rename");
    let held = bytes_in(&limited.join("d"));
    let expected = (6 << 20)..=(8 << 20);
    assert!(expected.contains(&held), "{held} bytes below a quota of 8 MiB");
}

fn a_quota_full_of_pins_says_edquot(mode: Mode) {
    let mount = Mount::start(&mode.options(&["capacity=64MiB", "runtime.deadline_ms=500"]));
    let (limited, free) = (mount.namespace("limited"), mount.namespace("free"));
    set(&limited, "user.tidefs.quota", "8MiB");
    set(&limited, "user.tidefs.pin", "hard");
    let write = |index: usize| -> std::io::Result<()> {
        let mut file = File::create(limited.join(format!("k{index}")))?;
        file.write_all(&pattern::object(offset(index), MIB))?;
        nix::unistd::close(file).map_err(std::io::Error::from)
    };
    let mut written = 0;
    let error = loop {
        match write(written) {
            Ok(()) => written += 1,
            Err(error) => break errno(&error),
        }
        assert!(written <= 8, "{written} MiB pinned below a quota of 8 MiB");
    };
    assert_eq!(error, Errno::EDQUOT);
    assert!(written >= 4, "only {written} MiB of 8 could be pinned");
    fill(&free, 8);
    assert_eq!(sorted_names(&free).len(), 8, "others have room");
}

/// Keeps the namespace `free` of half the cache, and fills half of what `limited` may have.
fn beside_others(mode: Mode, quota: &str) -> (Mount, PathBuf, PathBuf) {
    let mount = small(mode);
    let (limited, free) = (mount.namespace("limited"), mount.namespace("free"));
    set(&limited, "user.tidefs.quota", quota);
    fill(&free, 32);
    (mount, limited, free)
}

/// Free bytes of a namespace with a quota.
fn left_in(directory: &Path) -> u64 {
    let space = statvfs(directory).expect("statvfs");
    space.blocks_available() * space.fragment_size()
}

fn files_that_are_being_written_take_no_room_beyond_their_quota(mode: Mode) {
    let (_mount, limited, free) = beside_others(mode, "8MiB");
    let mut open = Vec::new();
    let mut refused = 0;
    for (index, name) in ["tmp", "kv"].iter().cycle().enumerate().take(48) {
        let mut file = File::create(limited.join(format!("k{index}.{name}"))).expect("create");
        match file.write_all(&pattern::object(offset(index), MIB)) {
            Ok(()) => open.push(file),
            Err(error) => {
                assert_eq!(errno(&error), Errno::EDQUOT);
                refused += 1;
            }
        }
    }
    assert_eq!(
        (open.len(), refused),
        (8, 40),
        "files of 1 MiB below a quota of 8 MiB, and those that were refused"
    );
    assert_eq!(left_in(&limited), 0);
    assert_eq!(sorted_names(&free).len(), 32, "nothing of the other namespace left");
    drop(open);
    let emptied = wait::until(wait::HANG, || {
        sorted_names(&limited)
            .iter()
            .for_each(|name| fs::remove_file(limited.join(name)).unwrap_or_default());
        left_in(&limited) == 8 << 20
    });
    assert!(emptied, "{} bytes are left of 8 MiB in an empty namespace", left_in(&limited));
}

fn closed_temporary_files_take_no_room_beyond_their_quota(mode: Mode) {
    let (_mount, limited, free) = beside_others(mode, "8MiB");
    let written = (0..48).take_while(|index| {
        let write = fs::write(limited.join(format!("k{index}.tmp")), pattern::object(*index, MIB));
        write.inspect_err(|error| assert_eq!(errno(error), Errno::EDQUOT)).is_ok()
    });
    assert_eq!(written.count(), 8);
    assert_eq!(sorted_names(&free).len(), 32, "nothing of the other namespace left");
    // They are there for their rename.
    fs::rename(limited.join("k0.tmp"), limited.join("k0")).expect("rename");
    assert_eq!(pattern::verify_object(&fs::read(limited.join("k0")).expect("read")), Ok(0));
}

fn what_is_written_beyond_its_quota_by_whomever_is_no_object_and_its_writer_is_told(mode: Mode) {
    let (mount, limited, _free) = beside_others(mode, "8MiB");
    // Objects here are known to be small, so with passthrough the kernel writes the next ones.
    fill(&limited, 1);
    mount.wait_until_closed([limited.join("k0")]);
    let mut open: Vec<(usize, File, bool)> = Vec::new();
    for index in 0..6 {
        let name = if index % 2 == 0 { "tmp" } else { "kv" };
        let mut file = File::create(limited.join(format!("g{index}.{name}"))).expect("create");
        let outcome = file.write_all(&pattern::object(offset(index), 3 * MIB));
        let is_told = outcome.inspect_err(|error| assert_eq!(errno(error), Errno::EDQUOT)).is_err();
        open.push((index, file, is_told));
    }
    let mut kept = 0;
    for (index, file, was_told) in open {
        let name = if index % 2 == 0 { "tmp" } else { "kv" };
        let path = limited.join(format!("g{index}.{name}"));
        let told = nix::unistd::close(file).inspect_err(|&error| assert_eq!(error, Errno::EDQUOT)).is_err();
        let is_there = wait::until(wait::HANG, || path.exists() != (told || was_told));
        assert!(is_there, "{} is there: {}, told: {told}", path.display(), path.exists());
        kept += usize::from(!(told || was_told));
    }
    assert!((1..6).contains(&kept), "{kept} of 6 files of 3 MiB found room below a quota of 8 MiB");
    assert!(bytes_in(&limited) <= 8 << 20, "{} bytes below a quota of 8 MiB", bytes_in(&limited));
}

fn what_is_unlinked_while_it_is_written_takes_of_its_quota_until_it_is_closed(mode: Mode) {
    let (mount, limited, _free) = beside_others(mode, "8MiB");
    fill(&limited, 1);
    // What was reserved for it beyond its length is given back then.
    mount.wait_until_closed([limited.join("k0")]);
    let mut file = File::create(limited.join("k.tmp")).expect("create");
    file.write_all(&pattern::object(1, MIB)).expect("write");
    fs::remove_file(limited.join("k.tmp")).expect("unlink");
    // What the daemon serves has moved to disk.
    let taken = if mode == Mode::Passthrough { 2 } else { 1 };
    assert_eq!(left_in(&limited), (8 - taken) << 20);
    drop(file);
    assert!(wait::until(wait::HANG, || left_in(&limited) == 7 << 20), "{} bytes left", left_in(&limited));
}

fn what_is_written_without_a_name_takes_of_the_quota_above_a_directory_that_was_removed(mode: Mode) {
    let mount = small(mode);
    let limited = mount.namespace("limited");
    let removed = limited.join("d");
    fs::create_dir(&removed).expect("mkdir");
    // Nothing is known of sizes here, and there is no quota yet: with passthrough the kernel writes it.
    let mut file = File::create(removed.join("k.tmp")).expect("create");
    fs::remove_file(removed.join("k.tmp")).expect("unlink");
    fs::remove_dir(&removed).expect("rmdir");
    set(&limited, "user.tidefs.quota", "8MiB");
    file.write_all(&pattern::object(1, 2 * MIB)).expect("write");
    // What the daemon serves has moved to disk.
    let left = if mode == Mode::Passthrough { 6 } else { 8 } << 20;
    let is_counted = wait::until(wait::HANG, || left_in(&limited) == left);
    assert!(is_counted, "{} bytes left", left_in(&limited));
    drop(file);
    assert!(wait::until(wait::HANG, || left_in(&limited) == 8 << 20), "{} bytes left", left_in(&limited));
}

fn an_object_takes_its_own_place_in_a_full_quota(mode: Mode) {
    let mount = small(mode);
    let (limited, free) = (mount.namespace("limited"), mount.namespace("free"));
    set(&limited, "user.tidefs.quota", "16MiB");
    fill(&limited, 16);
    assert_eq!(sorted_names(&limited).len(), 16, "it is full");
    let key = limited.join("k3");
    for round in 100..104 {
        // Rewritten while somebody reads it, and replaced by one from elsewhere.
        let reader = File::open(&key).expect("a reader");
        let writer = File::options().read(true).write(true).open(&key).expect("open to rewrite");
        let bytes = pattern::object(round, MIB);
        std::os::unix::fs::FileExt::write_all_at(&writer, &bytes, 0).expect("pwrite");
        drop((reader, writer));
        mount.wait_until_closed([&key]);
        assert_eq!(pattern::verify_object(&fs::read(&key).expect("rewritten")), Ok(round));
        // Who has the old version open keeps its bytes in use.
        mount.wait_until_closed([&key]);
        publish_object(&free.join("new"), 2 * round, MIB);
        fs::rename(free.join("new"), &key).expect("rename");
        assert_eq!(pattern::verify_object(&fs::read(&key).expect("replaced")), Ok(2 * round));
        assert_eq!(sorted_names(&limited).len(), 16, "another key left");
    }
}

fn a_key_of_more_than_half_its_quota_can_be_rewritten(mode: Mode) {
    let mount = small(mode);
    let limited = mount.namespace("limited");
    set(&limited, "user.tidefs.quota", "16MiB");
    let key = limited.join("key");
    publish_object(&key, 1, 10 * MIB);
    for is_read_meanwhile in [true, false] {
        let reader = File::open(&key).expect("a reader");
        let reader = is_read_meanwhile.then_some(reader);
        let writer = File::options().read(true).write(true).open(&key).expect("open to rewrite");
        std::os::unix::fs::FileExt::write_all_at(&writer, b"rewritten", 4 << 20).expect("pwrite");
        drop((reader, writer));
        mount.wait_until_closed([&key]);
        let found = fs::read(&key).expect("the new version");
        assert_eq!((found.len(), &found[4 << 20..(4 << 20) + 9]), (10 * MIB, &b"rewritten"[..]));
    }
}

fn a_floor_protects_a_namespace_from_the_growth_of_others(mode: Mode) {
    let mount = small(mode);
    let (kept, growing) = (mount.namespace("kept"), mount.namespace("growing"));
    set(&kept, "user.tidefs.floor", "16MiB");
    fill(&kept, 12);
    fill(&growing, 4 * 64);
    assert_whole(&kept, 12);
}

/// Nothing that [`fill`] put there has left.
#[track_caller]
fn assert_whole(directory: &Path, count: usize) {
    assert_eq!(sorted_names(directory).len(), count, "what is below the floor stays");
    for index in 0..count {
        let found = fs::read(directory.join(format!("k{index}"))).expect("read");
        assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
    }
}

fn a_floor_protects_directories_with_a_policy_of_their_own(mode: Mode) {
    let mount = small(mode);
    let (kept, growing) = (mount.namespace("kept"), mount.namespace("growing"));
    set(&kept, "user.tidefs.floor", "16MiB");
    let model = kept.join("model");
    fs::create_dir(&model).expect("mkdir");
    set(&model, "user.tidefs.policy", "lru");
    fill(&model, 12);
    fill(&growing, 4 * 64);
    assert_whole(&model, 12);
}

fn a_quota_is_not_kept_by_breaking_the_floor_of_a_directory_below(mode: Mode) {
    let mount = small(mode);
    let limited = mount.namespace("limited");
    set(&limited, "user.tidefs.quota", "16MiB");
    let [kept, growing] = ["kept", "growing"].map(|name| limited.join(name));
    [&kept, &growing].into_iter().for_each(|directory| fs::create_dir(directory).expect("mkdir"));
    set(&kept, "user.tidefs.floor", "12MiB");
    fill(&kept, 10);
    fill(&growing, 48);
    assert_whole(&kept, 10);
    let others = sorted_names(&growing).len();
    assert!((3..=6).contains(&others), "{others} MiB beside 10 MiB below a quota of 16 MiB");
}

fn what_is_too_large_to_leave_hides_none_behind_it_that_a_floor_lets_go(mode: Mode) {
    let mount = small(mode);
    let (kept, growing) = (mount.namespace("kept"), mount.namespace("growing"));
    set(&kept, "user.tidefs.floor", "32MiB");
    publish_object(&kept.join("large"), 0, 30 * MIB);
    fill(&kept, 10);
    // 24 MiB are free, and 8 of those that are above the floor may leave.
    let file = File::create(growing.join("large")).expect("a file");
    file.set_len(offset(27 * MIB)).expect("there is room for it");
    file.write_all_at(&pattern::object(1, 27 * MIB), 0).expect("it has its pages");
    drop(file);
    let left = sorted_names(&kept);
    assert!(left.contains(&"large".into()) && (3..11).contains(&left.len()), "{left:?}");
}

fn what_is_larger_than_the_rest_above_a_floor_stays(mode: Mode) {
    let mount = small(mode);
    let (kept, growing) = (mount.namespace("kept"), mount.namespace("growing"));
    set(&kept, "user.tidefs.floor", "32MiB");
    for index in 0..9 {
        publish_object(&kept.join(format!("k{index}")), index, 4 * MIB);
    }
    publish_object(&kept.join("tail"), 9, MIB + MIB / 2);
    fill(&growing, 64);
    let held = bytes_in(&kept);
    let expected = (32 << 20)..=(34 << 20);
    assert!(expected.contains(&held), "{held} bytes are left, with a floor of 32 MiB");
}

fn an_expired_object_is_absent(mode: Mode) {
    let mount = small(mode);
    let kv = mount.namespace("kv");
    let mut other = Peer::spawn();
    fs::create_dir(kv.join("short")).expect("mkdir");
    set(&kv.join("short"), "user.tidefs.ttl", "1s");
    for (name, length) in [("short/large", 200_000), ("short/small", 500), ("stays", 200_000)] {
        let start = Instant::now();
        publish_object(&kv.join(name), 1, length);
        let seen = other.stat(&kv.join(name));
        let may_be_gone = name != "stays" && start.elapsed() >= Duration::from_secs(1);
        assert!(seen.is_ok() || may_be_gone, "{name} at first: {seen:?}");
    }
    publish_object(&kv.join("own"), 1, 500);
    set(&kv.join("own"), "user.tidefs.ttl", "1s");
    for name in ["short/large", "short/small", "own"] {
        let path = kv.join(name);
        let gone = wait::until(wait::HANG, || other.stat(&path) == Err(Errno::ENOENT));
        assert!(gone, "{name} outlives its ttl of 1 s");
        assert_eq!(other.read(&path), Err(Errno::ENOENT));
    }
    other.stat(&kv.join("stays")).expect("an object without ttl stays");
    let start = Instant::now();
    publish_object(&kv.join("short/large"), 2, 200_000);
    match other.read(&kv.join("short/large")) {
        Ok(found) => assert_eq!(pattern::verify_object(&found), Ok(2)),
        Err(error) => assert!(error == Errno::ENOENT && start.elapsed() >= Duration::from_secs(1), "{error}"),
    }
}

fn an_object_lives_until_its_ttl(mode: Mode) {
    let mount = small(mode);
    let kv = mount.namespace("kv");
    set(&kv, "user.tidefs.ttl", "3s");
    let start = Instant::now();
    publish_object(&kv.join("key"), 1, 100_000);
    let is_gone = wait::until(wait::HANG, || {
        let found = fs::read(kv.join("key"));
        // Taken after the look: what was seen was seen before.
        let lived = start.elapsed();
        if let Err(error) = &found {
            assert_eq!(errno(error), Errno::ENOENT);
            assert!(lived >= Duration::from_secs(3), "it left after {lived:?}");
        }
        let is_right = found.as_ref().is_ok_and(|found| pattern::verify_object(found) == Ok(1));
        assert!(is_right || found.is_err());
        std::thread::sleep(Duration::from_millis(100));
        found.is_err()
    });
    assert!(is_gone, "it outlives its ttl of 3 s");
}

fn an_expired_object_is_readable_to_its_end_by_who_has_it_open(mode: Mode) {
    let mount = small(mode);
    let kv = mount.namespace("kv");
    for length in [500, MIB] {
        set(&kv, "user.tidefs.ttl", "1h");
        publish_object(&kv.join("key"), 1, length);
        let file = File::open(kv.join("key")).expect("open");
        set(&kv, "user.tidefs.ttl", "1s");
        let mut other = Peer::spawn();
        let gone = wait::until(wait::HANG, || other.stat(&kv.join("key")) == Err(Errno::ENOENT));
        assert!(gone, "an object of {length} bytes that somebody reads outlives its ttl of 1 s");
        let mut bytes = vec![0; length];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("pread");
        assert_eq!(pattern::verify_object(&bytes), Ok(1));
    }
}

fn namespaces_with_equal_keys_do_not_mix(mode: Mode) {
    let mount = small(mode);
    let (first, second) = (mount.namespace("first"), mount.namespace("second"));
    for index in 0..40 {
        publish_object(&first.join(format!("k{index}")), index, 60_000);
        publish_object(&second.join(format!("k{index}")), 1000 + index, 60_000);
    }
    for index in 0..40 {
        let read = |directory: &Path| fs::read(directory.join(format!("k{index}"))).expect("read");
        assert_eq!(pattern::verify_object(&read(&first)), Ok(index));
        assert_eq!(pattern::verify_object(&read(&second)), Ok(1000 + index));
    }
    fs::remove_dir_all(&first).expect("rm -r of one namespace");
    assert_eq!(sorted_names(&second).len(), 40);
}
