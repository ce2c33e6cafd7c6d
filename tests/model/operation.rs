//! The language of the test: one step of one process, with victims chosen modulo what is there, so that a sequence
//! still means something after any of its steps was taken out.

use proptest::prelude::*;

use super::system::{Change, Open, WATCHER};

/// Names that a step may use. Files and directories share them, so that they collide now and then.
pub(crate) const NAMES: [&str; 6] = ["k0", "k1", "k2", "k3.tmp", "d0", "d1"];

/// One of those that are there, whatever their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick(pub(crate) u16);

impl Pick {
    /// The one of `items` that is picked, unless there are none.
    pub(crate) fn of<'a, T>(&self, items: &'a [T]) -> Option<&'a T> {
        items.get(usize::from(self.0).checked_rem(items.len())?)
    }
}

fn pick() -> impl Strategy<Value = Pick> {
    any::<u16>().prop_map(Pick)
}

/// A name in some directory, or whatever stands at some place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// A name of [`NAMES`] in a directory chosen among those that exist.
    Named {
        /// Which directory.
        directory: Pick,
        /// Which name.
        name: usize,
    },
    /// One of the files that exist.
    Existing(Pick),
}

/// A policy that a step sets (`None` removes it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// `user.tidefs.ttl` in seconds.
    Ttl(Option<u64>),
    /// `user.tidefs.pin`.
    Pin(Option<&'static str>),
    /// `user.tidefs.quota` in KiB; for directories.
    Quota(Option<u64>),
    /// `user.tidefs.scratch`; for directories.
    Scratch(Option<bool>),
}

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Opens a file.
    Open { who: usize, target: Target, options: Open },
    /// Writes through a handle.
    Write { handle: Pick, offset: u64, length: usize, seed: u64 },
    /// Reads through a handle and compares.
    Read { handle: Pick, offset: u64, length: usize },
    /// Changes length or pages through a handle.
    Resize { handle: Pick, change: Change },
    /// Closes a handle.
    Close { handle: Pick },
    /// Closes a duplicate of a handle.
    Flush { handle: Pick },
    /// Writes a whole file in one go: open, write, close.
    Put { who: usize, target: Target, length: usize, seed: u64 },
    /// truncate(2).
    Truncate { who: usize, target: Target, length: u64 },
    /// Renames a file.
    Rename { who: usize, from: Target, to: Target, keep: bool },
    /// Renames a directory.
    RenameDirectory { who: usize, directory: Pick, to: Target },
    /// Unlinks.
    Unlink { who: usize, target: Target },
    /// Makes a directory.
    Mkdir { who: usize, target: Target },
    /// Removes a directory.
    Rmdir { who: usize, directory: Pick },
    /// chmod(2).
    Chmod { who: usize, target: Target, mode: u32 },
    /// utimensat(2).
    Utimens { who: usize, target: Target, mtime_ns: i64 },
    /// A policy on a file.
    FilePolicy { who: usize, target: Target, setting: Setting },
    /// A policy on a directory.
    DirectoryPolicy { who: usize, directory: Pick, setting: Setting },
    /// The kernel drops its caches.
    DropCaches,
    /// Time passes.
    Advance { seconds: u64, expires: bool },
    /// Kill and start again.
    Restart,
}

fn process() -> impl Strategy<Value = usize> {
    0..WATCHER
}

fn target() -> impl Strategy<Value = Target> {
    let name = prop_oneof![16 => 0..4_usize, 1 => 4..6_usize];
    prop_oneof![
        2 => (pick(), name).prop_map(|(directory, name)| Target::Named { directory, name }),
        3 => pick().prop_map(Target::Existing),
    ]
}

fn new_directory() -> impl Strategy<Value = Target> {
    let name = prop_oneof![8 => 4..6_usize, 1 => 0..4_usize];
    (pick(), name).prop_map(|(directory, name)| Target::Named { directory, name })
}

fn options() -> impl Strategy<Value = Open> {
    let read = Open { read: true, ..Open::default() };
    let create = Open { write: true, create: true, ..Open::default() };
    prop_oneof![
        4 => Just(read),
        3 => Just(create),
        3 => Just(Open { read: true, ..create }),
        2 => Just(Open { truncate: true, ..create }),
        1 => Just(Open { exclusive: true, ..create }),
        2 => Just(Open { write: true, ..read }),
        1 => Just(Open { write: true, truncate: true, ..read }),
        1 => Just(Open { create: true, ..read }),
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0_usize), 4 => 1..3000_usize, 4 => 3000..40_000_usize, 3 => 40_000..300_000_usize]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0_u64), 3 => 0..10_000_u64, 1 => 10_000..200_000_u64]
}

fn change() -> impl Strategy<Value = Change> {
    let length = || length().prop_map(|length| length as u64);
    prop_oneof![
        3 => length().prop_map(Change::Set),
        2 => (offset(), length(), any::<bool>()).prop_map(|(offset, length, keep_size)| {
            Change::Allocate { offset, length: length.max(1), keep_size }
        }),
        2 => (offset(), length()).prop_map(|(offset, length)| Change::Punch { offset, length: length.max(1) }),
    ]
}

fn setting(for_directory: bool) -> impl Strategy<Value = Setting> {
    let ttl = prop_oneof![3 => (1..20_u64).prop_map(Some), 1 => Just(None)].prop_map(Setting::Ttl);
    let pin = prop_oneof![
        2 => Just(Some("hard")),
        1 => Just(Some("soft")),
        1 => Just(Some("none")),
        2 => Just(None)
    ]
    .prop_map(Setting::Pin);
    let quota = prop_oneof![3 => (4..600_u64).prop_map(Some), 1 => Just(None)].prop_map(Setting::Quota);
    let scratch = prop_oneof![2 => any::<bool>().prop_map(Some), 1 => Just(None)].prop_map(Setting::Scratch);
    if for_directory {
        prop_oneof![2 => ttl, 2 => pin, 4 => quota, 1 => scratch].boxed()
    } else {
        prop_oneof![ttl, pin].boxed()
    }
}

/// Any step. `with_time`: whether time passes and directories have policies, which a real mount is not put through.
pub(crate) fn operation(with_time: bool) -> impl Strategy<Value = Op> {
    let common = prop_oneof![
        14 => (process(), target(), options()).prop_map(|(who, target, options)| Op::Open { who, target, options }),
        12 => (pick(), offset(), length(), any::<u64>())
            .prop_map(|(handle, offset, length, seed)| Op::Write { handle, offset, length, seed }),
        4 => (pick(), offset(), length())
            .prop_map(|(handle, offset, length)| Op::Read { handle, offset, length }),
        4 => (pick(), change()).prop_map(|(handle, change)| Op::Resize { handle, change }),
        10 => pick().prop_map(|handle| Op::Close { handle }),
        2 => pick().prop_map(|handle| Op::Flush { handle }),
        10 => (process(), target(), length(), any::<u64>())
            .prop_map(|(who, target, length, seed)| Op::Put { who, target, length, seed }),
        2 => (process(), target(), prop_oneof![1 => Just(0), 4 => 0..100_000_u64])
            .prop_map(|(who, target, length)| Op::Truncate { who, target, length }),
        10 => (process(), target(), target(), prop::bool::weighted(0.2))
            .prop_map(|(who, from, to, keep)| Op::Rename { who, from, to, keep }),
        3 => (process(), pick(), new_directory())
            .prop_map(|(who, directory, to)| Op::RenameDirectory { who, directory, to }),
        5 => (process(), target()).prop_map(|(who, target)| Op::Unlink { who, target }),
        4 => (process(), new_directory()).prop_map(|(who, target)| Op::Mkdir { who, target }),
        3 => (process(), pick()).prop_map(|(who, directory)| Op::Rmdir { who, directory }),
        2 => (process(), target(), prop::sample::select(&[0o600_u32, 0o640, 0o644, 0o755][..]))
            .prop_map(|(who, target, mode)| Op::Chmod { who, target, mode }),
        2 => (process(), target(), 0..1_000_000_000_000_000_000_i64)
            .prop_map(|(who, target, mtime_ns)| Op::Utimens { who, target, mtime_ns }),
        2 => Just(Op::DropCaches),
        2 => Just(Op::Restart),
    ];
    if !with_time {
        return common.boxed();
    }
    prop_oneof![
        90 => common,
        3 => (process(), target(), setting(false))
            .prop_map(|(who, target, setting)| Op::FilePolicy { who, target, setting }),
        3 => (process(), pick(), setting(true))
            .prop_map(|(who, directory, setting)| Op::DirectoryPolicy { who, directory, setting }),
        4 => (0..12_u64, any::<bool>()).prop_map(|(seconds, expires)| Op::Advance { seconds, expires }),
    ]
    .boxed()
}
