//! A cache whose tier counts its bytes itself: what is changed through the datapath.

use super::*;
use crate::datapath::room::Loss;
use crate::datapath::testing::{WRITE, caller, make, unprivileged};

#[test]
fn what_cutting_punching_and_unlinking_free_is_free_where_the_tier_counts_for_itself() {
    let (_place, datapath) = unprivileged();
    let used = || datapath.tier.usage().unwrap().used;
    let caller = caller();
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let before = used();
    let size = ByteCount::mib(4);
    let (_, opened) = datapath.create(&caller, Ino::ROOT, b"slots", 0o644, options).unwrap();
    let fill = || {
        datapath.write(opened.handle, 0, &vec![1; 4 << 20]).unwrap();
        assert_eq!(used(), before.saturating_add(size));
    };
    let change = |change| datapath.change_size(&caller, opened.ino, Some(opened.handle), change).unwrap();
    fill();
    change(SizeChange::Set(ByteCount::ZERO));
    assert_eq!(used(), before, "ftruncate");
    fill();
    change(SizeChange::Punch { offset: ByteCount::ZERO, length: size });
    assert_eq!(used(), before, "a hole");
    fill();
    let cut = OpenOptions { truncate: true, ..options };
    let again = datapath.open(&caller, opened.ino, cut).unwrap();
    assert_eq!(used(), before, "O_TRUNC");
    fill();
    datapath.unlink(&caller, Ino::ROOT, b"slots").unwrap();
    datapath.write(opened.handle, 0, &vec![1; 8 << 20]).unwrap();
    [opened, again].into_iter().for_each(|opened| datapath.release(opened.handle));
    assert_eq!(used(), before, "unlink");
}

/// As setattr does it: the cache may be full of what cannot leave, and somebody else need room.
#[test]
fn what_is_cut_by_name_does_not_leave_before_it_has_its_attributes() {
    let (_place, datapath) = unprivileged();
    let ino = make(&datapath, Ino::ROOT, "key");
    // Nobody is sent to look it up again.
    datapath.forget(ino, 1);
    let evict = || datapath.evict(ByteCount::mib(1), Slot::ROOT, Loss::Accepted);
    let change = SizeChange::Set(ByteCount(5000));
    let left =
        datapath.change_size_and(&caller(), ino, (None, change), Wait::Patiently, || Ok(evict())).unwrap();
    assert_eq!(left, 0);
    assert_eq!(evict(), 1, "it may leave as soon as that is done");
}

#[test]
fn what_somebody_cuts_off_while_a_file_grows_does_not_count_as_having_its_pages() {
    let (_place, datapath) = unprivileged();
    let (_, opened) = datapath.create(&caller(), Ino::ROOT, b"key", 0o644, WRITE).unwrap();
    let (slot, size) = (opened.ino.slot(), ByteCount::mib(1));
    let reserved = || {
        let state = datapath.lock();
        let open = state.object(slot).and_then(|object| object.open.as_deref());
        Reserved::of(open.unwrap())
    };
    let file = datapath.lock().object(slot).and_then(Object::file).cloned().unwrap();
    let grow = SizeChange::Allocate { offset: ByteCount::ZERO, length: size, keep_size: false };
    for is_cut in [false, true] {
        let known = reserved();
        datapath.reserve(&file, ByteCount::ZERO, size, Slot::ROOT).unwrap();
        if is_cut {
            let cut = SizeChange::Set(ByteCount::ZERO);
            datapath.change_size(&caller(), opened.ino, Some(opened.handle), cut).unwrap();
        }
        datapath.apply(slot, &file, known, grow).unwrap();
        assert_eq!(reserved().end, if is_cut { ByteCount::ZERO } else { size });
    }
    let state = datapath.lock();
    let behind = state.object(slot).and_then(|object| object.open.as_deref()).unwrap().reserved_behind_hole;
    assert_eq!(behind, size, "it is given back at the close");
}
