//! Who may what below a path: the kernel checks it for files that it knows. Here it is checked for sessions of the fast path, and
//! for files that the kernel was told are not there.
//!
//! A session has the rights that its opener had at that moment, as a descriptor has. Root may all.

use twox_hash::XxHash3_64;

use super::{Caller, OpenOptions, State};
use crate::namespace::{Attributes, Slot, ThreadId, supplementary_groups};

/// A right, as the bits of a mode have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Right(u16);

impl Right {
    pub(super) const READ: Self = Self(4);
    pub(super) const WRITE: Self = Self(2);
    pub(super) const SEARCH: Self = Self(1);
    /// To add and take names of a directory.
    pub(super) const CHANGE: Self = Self(3);
}

/// User and groups of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group of what it makes.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Those of the thread that makes a request. One that this process cannot see has no further groups; nor has root, which may all
    /// without them.
    #[must_use]
    pub fn of_request(uid: u32, gid: u32, thread: ThreadId) -> Self {
        let groups = if uid == 0 { Vec::new() } else { supplementary_groups(thread) };
        Self { uid, gid, groups }
    }

    /// Those of who makes a request. Looks into /proc, so it is not called under the lock.
    pub(super) fn of(caller: &Caller) -> Self {
        Self::of_request(caller.uid, caller.gid, caller.thread)
    }

    /// The same, for what groups have no part in.
    pub(super) fn without_groups(caller: &Caller) -> Self {
        Self { uid: caller.uid, gid: caller.gid, groups: Vec::new() }
    }

    /// Whether a file with these attributes may be opened so.
    pub(super) fn may_open(&self, attributes: &Attributes, options: OpenOptions) -> bool {
        (!options.read || self.may(attributes, Right::READ))
            && (!options.write || self.may(attributes, Right::WRITE))
    }

    /// Whether a node's owner, group and mode give the right (path_resolution(7)).
    pub(super) fn may(&self, attributes: &Attributes, right: Right) -> bool {
        let (uid, gid, mode) = (attributes.uid, attributes.gid, attributes.mode);
        if self.uid == 0 {
            return true;
        }
        let shift = if self.uid == uid {
            6
        } else if self.gid == gid || self.groups.contains(&gid) {
            3
        } else {
            0
        };
        mode >> shift & right.0 == right.0
    }

    /// Whether it may take the name of a node away, or give it to another, in a directory that it may change: a sticky one
    /// leaves that to the owners.
    pub(super) fn may_replace(&self, directory: &Attributes, node: &Attributes) -> bool {
        let (mode, directory_uid, node_uid) = (directory.mode, directory.uid, node.uid);
        u32::from(mode) & libc::S_ISVTX == 0 || [0, directory_uid, node_uid].contains(&self.uid)
    }
}

/// Stands for everything that decides who may read an object: owners and modes of its file and of all directories above.
///
/// Two objects of one class are readable by the same users; that two different classes meet in 64 bits is no matter of
/// chance for anybody who does not know the seed, which is the daemon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AccessClass(u64);

#[cfg(test)]
impl AccessClass {
    pub(super) fn for_test(number: u64) -> Self {
        Self(number)
    }
}

impl State {
    /// Whether all directories from the root to `directory` may be searched.
    pub(super) fn may_search(&self, credentials: &Credentials, directory: Slot) -> bool {
        credentials.uid == 0
            || self.tree.ancestors(directory).all(|slot| {
                slot == Slot::NONE || credentials.may(&self.tree.node(slot).attributes, Right::SEARCH)
            })
    }

    /// Whether a name of `directory`, at which `present` stands if anything does, may be made to stand for something new.
    pub(super) fn may_put(&self, credentials: &Credentials, directory: Slot, present: Option<Slot>) -> bool {
        let attributes = self.tree.node(directory).attributes;
        self.may_search(credentials, directory)
            && credentials.may(&attributes, Right::CHANGE)
            && present.is_none_or(|present| {
                credentials.may_replace(&attributes, &self.tree.node(present).attributes)
            })
    }

    /// The class of a file with these attributes in `directory`.
    pub(super) fn access_class(&self, directory: Slot, attributes: &Attributes) -> AccessClass {
        let mut seen = Vec::with_capacity(128);
        let mut add = |attributes: &Attributes| {
            seen.extend(attributes.mode.to_ne_bytes());
            seen.extend(attributes.uid.to_ne_bytes());
            seen.extend(attributes.gid.to_ne_bytes());
        };
        add(attributes);
        for slot in self.tree.ancestors(directory) {
            add(&self.tree.node(slot).attributes);
        }
        // Where it stands, too: pages of one directory stay there.
        seen.extend(directory.0.to_ne_bytes());
        AccessClass(XxHash3_64::oneshot_with_seed(self.class_seed, &seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn owner_group_and_others_have_each_their_bits_and_no_more() {
        let file = Attributes::new(0o640, 10, 20, 0);
        assert!(credentials(10, 99, &[]).may(&file, Right::READ));
        assert!(credentials(11, 20, &[]).may(&file, Right::READ));
        assert!(credentials(11, 99, &[5, 20]).may(&file, Right::READ));
        assert!(!credentials(11, 99, &[5]).may(&file, Right::READ));
        let closed_to_owner = Attributes::new(0o077, 10, 20, 0);
        assert!(!credentials(10, 20, &[]).may(&closed_to_owner, Right::READ), "the owner's bits decide");
        assert!(credentials(0, 0, &[]).may(&closed_to_owner, Right::READ));
    }

    #[test]
    fn changing_a_directory_needs_both_bits_and_in_a_sticky_one_an_owner() {
        let directory = Attributes::new(0o1772, 10, 20, 0);
        assert!(credentials(10, 1, &[]).may(&directory, Right::CHANGE));
        assert!(!credentials(12, 1, &[]).may(&directory, Right::CHANGE), "write without search");
        let node = Attributes::new(0o600, 11, 20, 0);
        for (uid, may) in [(0, true), (10, true), (11, true), (12, false)] {
            assert_eq!(credentials(uid, 20, &[]).may_replace(&directory, &node), may, "{uid}");
        }
    }
}
