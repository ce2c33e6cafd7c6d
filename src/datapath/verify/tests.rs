//! What is known of bytes, and of how many nothing is known yet, in a cache without a mount.

use std::os::unix::fs::FileExt as _;

use xattr::FileExt as _;

use super::super::OpenOptions;
use super::super::room::Loss;
use super::super::testing::{attach_disk, caller, make, reopened, unprivileged};
use super::*;

/// Takes the checksums of all that waits for its own, as the background thread does.
fn check_all(datapath: &Datapath) {
    let (priority, mut buffer) = (IdlePriority::enter(), Vec::new());
    while !datapath.unchecked.0.lock().is_empty() {
        datapath.check_together(&priority, &mut buffer, || false);
    }
}

/// The checksum that an object has by its record.
fn recorded(datapath: &Datapath, ino: Ino) -> Option<Checksum> {
    let state = datapath.lock();
    let object = state.object(state.slot_of(ino).unwrap()).unwrap();
    datapath.recorded_checksum(object).unwrap()
}

#[test]
fn an_object_whose_record_is_damaged_is_not_called_sound_and_gets_no_other_checksum() {
    let (_place, datapath) = unprivileged();
    let ino = make(&datapath, Ino::ROOT, "key");
    assert!(datapath.checksum(ino).unwrap().is_some());
    assert_eq!(datapath.verify_object(ino).unwrap(), Verdict::Sound);
    let segment = {
        let state = datapath.lock();
        let object = state.object(state.tree.by_ino(ino).unwrap()).unwrap();
        let Place::Solo(segment) = object.place else { panic!("{object:?}") };
        datapath.tier.open_segment(segment).unwrap()
    };
    let attribute = datapath.tier.report().record_attribute;
    segment.set_xattr(&attribute, b"damaged").unwrap();
    for _ in 0..2 {
        assert_eq!(datapath.verify_object(ino).unwrap(), Verdict::Unreadable);
    }
    let left = segment.get_xattr(&attribute).unwrap();
    assert_eq!(left.as_deref(), Some(&b"damaged"[..]), "who looks into it finds it as it was");
}

/// As by a mapping that outlives the descriptor.
#[test]
fn what_is_stored_after_the_last_close_is_found_when_the_object_is_verified() {
    let (_place, datapath) = unprivileged();
    let ino = make(&datapath, Ino::ROOT, "key");
    let mapped = datapath.backing_file(ino).unwrap();
    assert!(datapath.checksum(ino).unwrap().is_some());
    mapped.write_all_at(b"later", 0).unwrap();
    assert_eq!(datapath.verify_object(ino).unwrap(), Verdict::Corrupt);
    assert_eq!(datapath.lock().tree.child(Slot::ROOT, b"key"), None, "it is a miss");
}

#[test]
fn what_an_earlier_daemon_left_is_counted_until_it_is_checked_or_gone() {
    let (place, datapath) = unprivileged();
    for name in ["opened", "verified", "removed", "replaced", "evicted"] {
        let ino = make(&datapath, Ino::ROOT, name);
        assert!(datapath.checksum(ino).unwrap().is_some());
    }
    assert!(!datapath.unverified.are_any());
    drop(datapath);
    let datapath = reopened(&place);
    let left = || {
        datapath.check_unverified();
        datapath.unverified.count()
    };
    let ino = |name: &[u8]| {
        let state = datapath.lock();
        state.tree.ino(state.tree.child(Slot::ROOT, name).unwrap())
    };
    assert_eq!(left(), 5);
    let options = OpenOptions { read: true, ..OpenOptions::default() };
    let opened = datapath.open(&caller(), ino(b"opened"), options).unwrap();
    assert_eq!(left(), 4);
    datapath.release(opened.handle);
    assert_eq!(datapath.verify_object(ino(b"verified")).unwrap(), Verdict::Sound);
    assert_eq!(left(), 3);
    datapath.unlink(&caller(), Ino::ROOT, b"removed").unwrap();
    assert_eq!(left(), 2);
    make(&datapath, Ino::ROOT, "other");
    datapath.rename(&caller(), (Ino::ROOT, b"other"), (Ino::ROOT, b"replaced"), false).unwrap();
    assert_eq!(left(), 1);
    while datapath.evict(ByteCount::mib(1), Slot::ROOT, Loss::Accepted) > 0 {}
    assert_eq!(left(), 0);
    assert!(!datapath.unverified.are_any(), "who opens an object takes no lock for it any more");
}

#[test]
fn a_damaged_record_of_what_is_in_memory_too_costs_no_object_and_counts_as_none() {
    let (_place, datapath) = unprivileged();
    let disk = tempfile::tempdir_in("/var/tmp").unwrap();
    let datapath = Arc::new(datapath);
    attach_disk(&datapath, disk.path(), ByteCount::mib(8));
    let ino = make(&datapath, Ino::ROOT, "key");
    let lent = {
        let mut state = datapath.lock();
        let slot = state.tree.by_ino(ino).unwrap();
        state.send(slot).unwrap()
    };
    assert!(datapath.store(lent, false, None));
    let ssd = datapath.ssd().unwrap();
    assert!(ssd.flush(Duration::from_secs(20)));
    // The object is full of ones.
    let log = disk.path().join("tidefs.ssd");
    let bytes = std::fs::read(&log).unwrap();
    let block = bytes.chunks_exact(4096).position(|block| block.iter().all(|&byte| byte == 1)).unwrap();
    let file = File::options().write(true).open(&log).unwrap();
    file.write_all_at(b"2", block as u64 * 4096).unwrap();
    file.sync_all().unwrap();
    assert_eq!(datapath.verify_on_ssd(ino).unwrap(), Verdict::Corrupt);
    assert_eq!((ssd.status().corrupt_records, datapath.telemetry.corrupt_objects.get()), (1, 0));
    assert_eq!(datapath.verify_object(ino).unwrap(), Verdict::Sound);
}

#[test]
fn each_object_that_waits_gets_its_own_checksum_and_what_is_gone_holds_none_up() {
    let (_place, datapath) = unprivileged();
    let lengths = [5000, 300_000, 1, 70_000, 900_000, 3 << 20, 4096, 4097, 2 << 20, 10, 11, 12, 600_000];
    let bytes = |index: usize| vec![u8::try_from(index).unwrap(); lengths[index]];
    let make = |index: usize| {
        let name = format!("k{index}");
        let write = OpenOptions { write: true, ..OpenOptions::default() };
        let made = datapath.create(&caller(), Ino::ROOT, name.as_bytes(), 0o644, write);
        let (_, opened) = made.unwrap();
        datapath.write(opened.handle, 0, &bytes(index)).unwrap();
        datapath.flush(&caller(), opened.handle).unwrap();
        datapath.release(opened.handle);
        opened.ino
    };
    let inos: Vec<Ino> = (0..lengths.len()).map(make).collect();
    datapath.unchecked.0.lock().clear();
    for (index, &ino) in inos.iter().enumerate() {
        if index.is_multiple_of(5) {
            datapath.check_later(Ino(u64::MAX >> 8));
            datapath.check_later(inos[0]);
        }
        datapath.check_later(ino);
    }
    check_all(&datapath);
    for (index, &ino) in inos.iter().enumerate() {
        assert_eq!(recorded(&datapath, ino), Some(checksum_bytes(&bytes(index))), "{index}");
    }
}

#[test]
fn a_stop_waits_for_no_checksum_that_is_being_taken() {
    let (_place, datapath) = unprivileged();
    let ino = make(&datapath, Ino::ROOT, "key");
    datapath.unchecked.0.lock().clear();
    datapath.check_later(ino);
    // By the first look there is work to do, and by the fourth the object is read in part.
    let looks = AtomicUsize::new(0);
    datapath.check_in_background(|| looks.fetch_add(1, Ordering::Relaxed) >= 3);
    assert_eq!(recorded(&datapath, ino), None, "the whole object was read after the stop");
    datapath.check_later(ino);
    check_all(&datapath);
    assert_eq!(recorded(&datapath, ino), Some(checksum_bytes(&vec![1; 1 << 20])));
}

#[test]
fn an_object_that_is_renamed_while_its_checksum_is_taken_gets_it_all_the_same() {
    let (_place, datapath) = unprivileged();
    let ino = make(&datapath, Ino::ROOT, "before");
    datapath.unchecked.0.lock().clear();
    let bytes = datapath.unchecked_bytes(ino).unwrap().unwrap();
    datapath.rename(&caller(), (Ino::ROOT, b"before"), (Ino::ROOT, b"after"), false).unwrap();
    datapath.keep_checksum(ino, bytes.checksum().unwrap(), &bytes).unwrap();
    check_all(&datapath);
    assert_eq!(recorded(&datapath, ino), Some(checksum_bytes(&vec![1; 1 << 20])));
}
