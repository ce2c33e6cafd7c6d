//! What a program meets that was sent to look its name up again, when others were faster.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tidefs::datapath::{AttributeChange, Error, KernelCache, Lookup, OpenOptions, Patience};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::rewriting::REWRITE;
use super::{Logic, Setup, caller};
use crate::common::pattern::bytes;
use crate::system::{Open, System, Token};

/// As [`REWRITE`], without `O_TRUNC`.
const REWRITE_PART: OpenOptions = OpenOptions { truncate: false, ..REWRITE };
const READ: Open = Open { read: true, write: false, create: false, exclusive: false, truncate: false };
const WRITE: Open = Open { read: false, write: true, ..READ };
pub(super) const CREATE: Open = Open { read: false, write: true, create: true, ..READ };

pub(super) fn publish(logic: &mut Logic, who: usize, seed: u64) {
    let token = logic.open(who, "k.tmp", CREATE).expect("create");
    logic.write(who, token, 0, &bytes(seed, 50_000)).expect("write");
    logic.close(who, token);
    logic.rename(who, "k.tmp", "k", false).expect("rename");
}

/// The kernel asks for an inode that it looked up a moment ago, under which a reader has an older version open.
#[test]
fn a_reader_keeps_its_bytes_when_a_writer_comes_late_to_a_version_that_was_replaced() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let ino = logic.resolve(2, "k").expect("it is there");
    let reader = logic.open(1, "k", READ).expect("open");
    let sent = logic.datapath().open(&caller(2), ino, REWRITE);
    assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    publish(&mut logic, 0, 2);
    let late = logic.datapath().open(&caller(2), ino, REWRITE);
    assert!(matches!(late, Err(Error::Stale)), "{late:?}");
    assert_eq!(logic.read(1, reader, 0, 60_000).expect("read"), bytes(1, 50_000));
    logic.close(1, reader);
    let found = logic.open(2, "k", READ).expect("open");
    assert_eq!(logic.read(2, found, 0, 60_000).expect("read"), bytes(2, 50_000));
    logic.close(2, found);
}

/// The RELEASE of who wrote it comes some time after its close, and perhaps after its rename.
#[test]
fn what_a_reader_has_open_is_not_cut_by_name_while_the_close_of_its_writer_is_on_its_way() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let writer = logic.open(0, "k.tmp", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.flush(0, writer);
    logic.rename(0, "k.tmp", "k", false).expect("rename");
    let reader = logic.open(1, "k", READ).expect("open");
    logic.truncate(2, "k", 5000).expect("truncate");
    assert!(logic.read(1, reader, 0, 60_000).expect("read") == bytes(1, 50_000));
    logic.close(0, writer);
    logic.close(1, reader);
    let found = logic.open(1, "k", READ).expect("open");
    assert!(logic.read(1, found, 0, 60_000).expect("read") == bytes(1, 50_000)[..5000]);
    logic.close(1, found);
}

#[test]
fn what_a_reader_has_open_is_not_cut_by_who_looked_its_name_up_before_it_was_replaced() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let writer = logic.open(0, "k.tmp", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.rename(0, "k.tmp", "k", false).expect("rename");
    let reader = logic.open(1, "k", READ).expect("open");
    let ino = logic.resolve(2, "k").expect("it is there");
    publish(&mut logic, 3, 2);
    let cut = AttributeChange { size: Some(ByteCount(5000)), ..AttributeChange::default() };
    let late = logic.datapath().setattr(&caller(2), ino, &cut);
    assert!(matches!(late, Err(Error::Stale)), "{late:?}");
    assert!(logic.read(1, reader, 0, 60_000).expect("read") == bytes(1, 50_000));
    [writer, reader].into_iter().for_each(|token| logic.close(0, token));
}

/// Who cuts it has not read it: nobody has it mapped, so it is no version that stays as it is.
#[test]
fn an_object_that_is_cut_by_name_again_and_again_stays_that_of_who_kept_it_open_after_its_rename() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let writer = logic.open(0, "k.tmp", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.rename(0, "k.tmp", "k", false).expect("rename");
    let before = logic.inode("k");
    for length in [40_000, 30_000, 20_000] {
        logic.truncate(2, "k", length).expect("truncate");
    }
    logic.write(0, writer, 20_000, &bytes(2, 5000)).expect("it is open still");
    logic.close(0, writer);
    assert_eq!(logic.inode("k"), before);
    let found = logic.open(1, "k", READ).expect("open");
    let expected = [&bytes(1, 50_000)[..20_000], &bytes(2, 5000)[..]].concat();
    assert!(logic.read(1, found, 0, 60_000).expect("read") == expected);
    logic.close(1, found);
}

/// Which the kernel does not tell of: a mapping outlives its descriptor.
#[test]
fn what_was_read_under_a_temporary_name_is_not_written_where_it_is_under_its_own() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let writer = logic.open(0, "k.tmp", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.close(0, writer);
    let reader = logic.open(1, "k.tmp", READ).expect("open");
    let ino = logic.resolve(1, "k.tmp").expect("it is there");
    let mapped = logic.datapath().backing_file(ino).expect("its segment");
    logic.close(1, reader);
    logic.rename(0, "k.tmp", "k", false).expect("rename");
    let writer = logic.open(2, "k", WRITE).expect("open");
    logic.write(2, writer, 0, &bytes(2, 50_000)).expect("write");
    logic.close(2, writer);
    let mut found = vec![0; 50_000];
    mapped.read_exact_at(&mut found, 0).expect("its bytes");
    assert!(found == bytes(1, 50_000));
}

#[test]
fn who_has_a_replaced_version_open_changes_nothing_of_what_took_its_place() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let old = logic.resolve(1, "k").expect("it is there");
    let reader = logic.open(1, "k", READ).expect("open");
    let writer = logic.open(0, "k", WRITE).expect("a new version");
    publish(&mut logic, 2, 2);
    logic.close(0, writer);
    let mode = |mode| AttributeChange { mode: Some(mode), ..AttributeChange::default() };
    logic.datapath().setattr(&caller(1), old, &mode(0o600)).expect("it is open");
    assert_eq!(logic.stat(2, "k").expect("it is there").mode & 0o777, 0o644);
    logic.unlink(2, "k").expect("unlink");
    logic.drop_caches();
    logic.datapath().setattr(&caller(1), old, &mode(0o640)).expect("it is open still");
    logic.close(1, reader);
}

#[test]
fn a_change_of_mode_that_meets_a_rewrite_is_sent_to_the_new_inode() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let old = logic.resolve(1, "k").expect("it is there");
    let writer = logic.open(0, "k", WRITE).expect("it is rewritten where it is");
    let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
    let lost = logic.datapath().setattr(&caller(1), old, &change);
    assert!(matches!(lost, Err(Error::Stale)), "{lost:?}");
    let lost = logic.datapath().set_attribute(old, b"user.tidefs.pin", b"hard", None);
    assert!(matches!(lost, Err(Error::Stale)), "{lost:?}");
    logic.close(0, writer);
    logic.chmod(1, "k", 0o600).expect("chmod");
    assert_eq!(logic.stat(1, "k").expect("it is there").mode & 0o777, 0o600);
}

/// Opens an object that is removed between look-up and open.
fn vanish(logic: &mut Logic, seed: u64) -> Result<Ino, Error> {
    publish(logic, 0, seed);
    let ino = logic.resolve(1, "k").expect("it is there");
    logic.unlink(0, "k").expect("unlink");
    let read = OpenOptions { read: true, ..OpenOptions::default() };
    logic.datapath().open(&caller(1), ino, read).map(|opened| opened.ino)
}

/// One open(2) by a name that others take away and give again: what its first look-up finds nothing by makes the kernel drop
/// what it knew of the name and look once more, and what that finds may be gone when it is opened.
#[test]
fn a_reader_that_was_sent_and_looks_twice_is_told_of_a_miss_and_of_no_error() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let sent = vanish(&mut logic, 1);
    assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    let again = vanish(&mut logic, 2);
    assert!(matches!(again, Err(Error::NoObject)), "{again:?}");

    // Its next open(2) is sent anew, after one that is over by finding nothing, too.
    let next = vanish(&mut logic, 3);
    assert!(matches!(next, Err(Error::Stale)), "{next:?}");
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    logic.advance(Duration::from_secs(1), false);
    let later = vanish(&mut logic, 4);
    assert!(matches!(later, Err(Error::Stale)), "{later:?}");
}

/// What the kernel finds by itself then, as somebody else who sees the file has looked it up meanwhile, it has confirmed, too.
#[test]
fn a_reader_that_was_sent_and_looks_three_times_is_told_of_a_miss_and_of_no_error() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let sent = vanish(&mut logic, 1);
    assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    let again = vanish(&mut logic, 2);
    assert!(matches!(again, Err(Error::NoObject)), "{again:?}");
}

/// An object that one process rewrites where it is: by the inode that others know, and by the descriptor of its writer.
fn being_rewritten() -> (Logic, Ino, Token) {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    publish(&mut logic, 0, 1);
    let ino = logic.resolve(1, "k").expect("it is there");
    let first = logic.open(0, "k", WRITE).expect("it is rewritten where it is");
    (logic, ino, first)
}

/// It is sent only once within one open(2): a version that waits for it a second time stays hidden for nobody.
#[test]
fn a_writer_that_was_sent_and_looks_three_times_joins_the_other_writer() {
    let (mut logic, ino, first) = being_rewritten();
    let sent = logic.datapath().open(&caller(1), ino, REWRITE_PART);
    assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    for _ in 0..3 {
        assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    }
    assert_joins(&mut logic, first);
}

/// Whoever looked in vain creates the file: it is given that which the `first` writer has open, and all see it when both have
/// closed it.
#[track_caller]
fn assert_joins(logic: &mut Logic, first: Token) {
    let (_, joined) =
        logic.datapath().create(&caller(1), Ino::ROOT, b"k", 0o644, REWRITE_PART).expect("it joins");
    logic.datapath().flush(&caller(1), joined.handle).expect("flush");
    logic.datapath().release(joined.handle);
    logic.close(0, first);
    assert_eq!(logic.stat(2, "k").expect("all have closed it").size, 50_000);
}

/// Who was told of attributes that they are stale may meet a version that is gone by its open, too: its program sees ESTALE. What
/// it opens after that is sent as any other.
#[test]
fn a_writer_whose_open_failed_joins_the_other_writer_by_its_next_one() {
    let (mut logic, ino, first) = being_rewritten();
    for _ in 0..2 {
        let sent = logic.datapath().open(&caller(1), ino, REWRITE_PART);
        assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    }
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));
    assert_joins(&mut logic, first);
}

/// What others are asked takes its time: the second look-up of that open(2), here one that waits for a writer's close.
#[test]
fn a_reader_whose_second_look_takes_long_is_told_of_a_miss_and_of_no_error() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    let read = OpenOptions { read: true, ..OpenOptions::default() };
    publish(&mut logic, 0, 1);
    let ino = logic.resolve(1, "k").expect("it is there");
    logic.unlink(0, "k").expect("unlink");
    let sent = logic.datapath().open(&caller(1), ino, read);
    assert!(matches!(sent, Err(Error::Stale)), "{sent:?}");
    assert_eq!(logic.resolve(1, "k"), Err(Errno::ENOENT));

    let writer = logic.open(0, "k", CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(2, 50_000)).expect("write");
    logic.flush(0, writer);
    let waits = logic.datapath().lookup(&caller(1), Ino::ROOT, b"k", Patience::All);
    assert!(matches!(waits, Ok(Lookup::Wait)), "{waits:?}");
    logic.advance(Duration::from_secs(1), false);
    logic.close(0, writer);
    let ino = logic.resolve(1, "k").expect("it is there");
    logic.unlink(0, "k").expect("unlink");
    let again = logic.datapath().open(&caller(1), ino, read);
    assert!(matches!(again, Err(Error::NoObject)), "{again:?}");
}

/// A kernel that was given no file yet.
#[derive(Debug)]
struct NewKernel;

impl KernelCache for NewKernel {
    fn forget_attributes(&self, _: Ino) {}
    fn forget_attributes_now(&self, _: Ino) {}
    fn drop_idle(&self, _: &[Ino]) {}
    fn has_backing(&self, _: Ino) -> bool {
        false
    }
    fn release_backing(&self, _: Ino) {}
    fn forget_names(&self) -> bool {
        false
    }
}

#[test]
fn what_was_opened_has_its_bytes_for_the_kernel_though_its_name_goes_before_that_takes_them() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    logic.datapath().attach_kernel(Arc::new(NewKernel), true);
    publish(&mut logic, 0, 1);
    let ino = logic.resolve(1, "k").expect("it is there");
    let read = OpenOptions { read: true, ..OpenOptions::default() };
    let opened = logic.datapath().open(&caller(1), ino, read).expect("open");
    logic.unlink(0, "k").expect("unlink");
    let backing = opened.backing.expect("the kernel lacks it");
    let mut found = vec![0; 50_000];
    backing.read_exact_at(&mut found, 0).expect("its bytes");
    assert!(found == bytes(1, 50_000));
    logic.datapath().release(opened.handle);
}
