//! What the other members are to be told, read where it happens.
//!
//! Invariants
//! - An object that is sealed or renamed here and of which no other member has been told yet is *untold*, from the moment in
//!   which it has its name: whatever is decided elsewhere by then comes before it, and does not withdraw it. Whoever makes it so
//!   tells of it, or it would not be withdrawn for ever; it is untold no more when it loses its name, is written again, or is to be
//!   replaced by what the others were told of.
//! - So is a directory of which nobody could be told: when it is announced and refused, as one was removed there before, it stays and
//!   is told of once more.
//! - An object that is told of once more, as what was told in its place came to nothing, is *retold* and not untold: what was decided
//!   elsewhere since comes after that, and withdraws it. Where that is heard of too late it is taken back.

use tidefs_engine::types::ByteCount;

use super::super::handle::Handle;
use super::super::{Caller, Datapath, HandleId, Phase, Place, State};
use super::Elsewhere;
use crate::cluster::shards::KeyId;
use crate::cluster::{Facts, FileFacts, Removal, Stamp};
use crate::namespace::{Ino, Name, Slot, WriterFate, writer_fate};

/// What the other members are to be told before a request is answered.
#[derive(Debug, Default)]
#[must_use = "nothing is told before `Datapath::tell`"]
pub struct News {
    pub(super) appeared: Option<Appeared>,
    /// A name that goes away.
    pub(super) removed: Option<Removal>,
}

/// A name that stands for something here.
#[derive(Debug)]
pub(super) struct Appeared {
    pub(super) path: Vec<u8>,
    pub(super) stamp: Stamp,
    pub(super) facts: Facts,
    pub(super) ino: Ino,
    /// The file is being closed: what is told is what it will be sealed as.
    pub(super) is_promise: bool,
}

impl Appeared {
    /// Its path, when it is a namespace.
    pub(super) fn namespace(self) -> Option<Vec<u8>> {
        let is_namespace = matches!(self.facts, Facts::Directory(_)) && !self.path.contains(&b'/');
        is_namespace.then_some(self.path)
    }
}

impl News {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.appeared.is_none() && self.removed.is_none()
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        Self { appeared: self.appeared.or(other.appeared), removed: self.removed.or(other.removed) }
    }
}

impl Elsewhere {
    /// The version of a directory that is made now, as those who serve its name put it in order: later than every removal that this
    /// host knows of, so that none takes it which is still on its way to somebody. Members know no version of it.
    pub(super) fn above_withdrawn(&self, key: KeyId) -> Stamp {
        let withdrawn = self.withdrawn.peek(&key);
        withdrawn.map_or(Stamp::default(), |through| Stamp(through.0.saturating_add(1)))
    }
}

impl State {
    /// Where a file stands, or will stand when it is sealed.
    pub(in crate::datapath) fn final_place(&self, slot: Slot) -> (Slot, Name) {
        let claim = self.object(slot).and_then(|object| object.open.as_ref()?.supersedes.clone());
        claim.unwrap_or_else(|| (self.tree.node(slot).parent, self.tree.name(slot)))
    }

    /// The version of a file that takes the place of all that is known under `name` in `parent`: later than that, also where it
    /// is of a host whose clock is ahead. `now_ns`: by this one's.
    pub(in crate::datapath) fn next_sealed_at_ns(&self, parent: Slot, name: &[u8], now_ns: i64) -> i64 {
        if !self.has_members() {
            return now_ns;
        }
        let shown = self.tree.child(parent, name).and_then(|slot| self.object(slot));
        let shown = shown.filter(|object| object.phase == Phase::Sealed).map(|object| object.sealed_at_ns);
        let withdrawn = (!self.elsewhere.withdrawn.is_empty()).then(|| {
            let key = KeyId::of(&self.path_of_child(parent, name));
            self.elsewhere.withdrawn.peek(&key).copied()
        });
        later_than(now_ns, shown, withdrawn.flatten())
    }

    /// The version as which other members know what stands in `slot`.
    fn sealed_or_promised(&self, slot: Slot) -> Option<Stamp> {
        self.facts_for_members(slot).map(|(stamp, _)| stamp).or_else(|| self.promised(slot))
    }

    /// The latest version as which other members know what stands in `slot`, at `path`. `None` while it is being told: who decides may
    /// make a later one of it.
    fn told_version(&self, slot: Slot, path: &[u8]) -> Option<Stamp> {
        if self.is_being_told(path) || self.is_untold(slot) {
            return None;
        }
        let (current, next) = self.versions_of(slot);
        let sealed = current.and_then(|current| self.sealed_stamp(current));
        sealed.max(next.and_then(|next| self.promised(next)))
    }

    /// The object in `slot` has its name, or this version, from now on. Whoever made it so tells the other members.
    pub(in crate::datapath) fn mark_untold(&mut self, slot: Slot) {
        if self.has_members() {
            let ino = self.tree.ino(slot);
            self.elsewhere.retold.remove(&ino);
            self.elsewhere.untold.insert(ino);
        }
    }

    /// The object in `slot` stands there on, and not the version `outlived`, which was told. Whoever made it so tells the other
    /// members.
    pub(super) fn mark_retold(&mut self, slot: Slot, outlived: Stamp) {
        if self.has_members() && !self.is_untold(slot) {
            let ino = self.tree.ino(slot);
            self.elsewhere.retold.insert(ino, outlived);
        }
    }

    /// Somebody tells of the object in `slot` once more now, if it is to be told so. Returns what it outlived.
    pub(super) fn take_retold(&mut self, slot: Slot) -> Option<Stamp> {
        let ino = self.tree.ino(slot);
        self.elsewhere.retold.remove(&ino)
    }

    pub(in crate::datapath) fn is_untold(&self, slot: Slot) -> bool {
        self.elsewhere.untold.contains(&self.tree.ino(slot))
    }

    /// Nobody tells of the object in `slot` any more, or somebody does now. Returns whether it was untold.
    pub(in crate::datapath) fn clear_untold(&mut self, slot: Slot) -> bool {
        let ino = self.tree.ino(slot);
        self.elsewhere.retold.remove(&ino);
        self.elsewhere.untold.remove(&ino)
    }

    /// The path at which a file stands, or will stand when it is sealed; `None` when it has lost its name.
    pub(super) fn final_path(&self, slot: Slot) -> Option<Vec<u8>> {
        let (parent, name) = self.final_place(slot);
        (parent != Slot::NONE).then(|| self.path_of_child(parent, name.as_bytes()))
    }

    /// Whether the file in `slot`, which is being written, was withdrawn under its name as the version `given`.
    pub(super) fn is_withdrawn(&mut self, slot: Slot, given: Stamp) -> bool {
        let is_written = self.object(slot).is_some_and(|object| object.phase == Phase::Writing);
        let path = self.final_path(slot).filter(|_| is_written);
        path.is_some_and(|path| self.elsewhere.was_withdrawn(&path, given))
    }
}

/// A time that is later than the versions that are known.
fn later_than(now_ns: i64, shown_ns: Option<i64>, withdrawn: Option<Stamp>) -> i64 {
    let withdrawn_ns = withdrawn.map(|through| i64::try_from(through.0).unwrap_or(i64::MAX));
    let known_ns = shown_ns.max(withdrawn_ns);
    known_ns.map_or(now_ns, |known| now_ns.max(known.saturating_add(1)))
}

impl Datapath {
    /// What is to be told of what stands under `name` in `parent` now; nothing when that is of this host alone.
    pub fn news_of(&self, parent: Ino, name: &[u8]) -> News {
        if !self.is_in_cluster() {
            return News::default();
        }
        let state = self.lock();
        let appeared = (|| {
            let parent = state.tree.by_ino(parent)?;
            let slot = state.tree.child(parent, name)?;
            if self.is_temporary(&Name::new(name).ok()?) || state.remote_size(slot).is_some() {
                return None;
            }
            let (stamp, facts) = state.facts_for_members(slot)?;
            let path = state.path_of_child(parent, name);
            Some(Appeared { path, stamp, facts, ino: state.tree.ino(slot), is_promise: false })
        })();
        News { appeared, removed: None }
    }

    /// What is to be told when `name` in `parent`, which stands there now, goes away.
    pub fn news_of_removal(&self, parent: Ino, name: &[u8]) -> News {
        if !self.is_in_cluster() {
            return News::default();
        }
        let state = self.lock();
        let parent = state.tree.by_ino(parent);
        parent.map(|parent| self.news_of_loss(&state, parent, name, false)).unwrap_or_default()
    }

    /// What is to be told when what stands under `name` in `parent` gets another name now: what others put there before that is
    /// told is not what left it, and stays.
    pub(in crate::datapath) fn news_of_leaving(&self, state: &State, parent: Slot, name: &[u8]) -> News {
        if !self.is_in_cluster() {
            return News::default();
        }
        self.news_of_loss(state, parent, name, true)
    }

    fn news_of_loss(&self, state: &State, parent: Slot, name: &[u8], is_renamed: bool) -> News {
        let removed = (|| {
            let slot = state.tree.child(parent, name)?;
            let stamp = state.sealed_or_promised(slot)?;
            if self.is_temporary(&Name::new(name).ok()?) {
                return None;
            }
            let path = state.path_of_child(parent, name);
            let left = is_renamed.then(|| state.told_version(slot, &path)).flatten();
            // The clock of the host that published it may be ahead of this one's.
            let latest = || stamp.max(Stamp(u64::try_from(self.now_ns()).unwrap_or(0)));
            let is_directory = state.tree.directory(slot).is_some();
            let (through, spares_later) = (left.unwrap_or_else(latest), left.is_some());
            Some(Removal { path, through, is_directory, spares_later })
        })();
        News { appeared: None, removed }
    }

    /// What is to be told when owner or mode of an object changed here: it is a new version, since copies that others hold have
    /// the old ones. Nothing of what is of this host alone.
    pub fn news_of_access(&self, ino: Ino) -> News {
        if !self.is_in_cluster() {
            return News::default();
        }
        let mut state = self.lock();
        let appeared = (|| {
            let slot = state.tree.by_ino(ino)?;
            let (parent, name) = (state.tree.node(slot).parent, state.tree.name(slot));
            let open = state.object_mut(slot).filter(|object| object.phase == Phase::Writing);
            if let Some(promised) = open.and_then(|object| object.open.as_mut()?.promised.as_mut()) {
                // It was closed and is about to be sealed: not as what was promised, so it is told anew then.
                promised.1 = ByteCount(u64::MAX);
            }
            let object = state.object(slot).filter(|object| object.phase == Phase::Sealed)?;
            if object.is_remote() || state.tree.node(slot).is_detached() || self.is_temporary(&name) {
                return None;
            }
            let sealed_at_ns = object.sealed_at_ns.saturating_add(1).max(self.now_ns());
            state.harden(slot);
            state.object_mut(slot)?.sealed_at_ns = sealed_at_ns;
            state.mark_untold(slot);
            if let Err(error) = self.rewrite_record(&mut state, slot) {
                tracing::warn!(%error, "a restart will not know the owner and mode of an object as the cluster does");
            }
            state.renew_expiry(slot);
            let (stamp, facts) = state.facts_for_members(slot)?;
            let path = state.path_of_child(parent, name.as_bytes());
            Some(Appeared { path, stamp, facts, ino, is_promise: false })
        })();
        News { appeared, removed: None }
    }

    /// What is to be told when the sole writer of a file closes it under its final name: it is an object in a moment.
    pub fn news_of_close(&self, caller: &Caller, handle: HandleId) -> News {
        if !self.is_in_cluster() || writer_fate(caller.thread) == WriterFate::Killed {
            return News::default();
        }
        let state = self.lock();
        let appeared = (|| {
            // A child that lets go of what it inherited closes nothing: who opened it goes on writing.
            let is_closed = |handle: &&Handle| handle.options.write && handle.was_flushed;
            let handle = state.handles.get(&handle).filter(is_closed)?;
            let slot = handle.slot;
            let object = state.object(slot).filter(|object| {
                let is_ours = object.phase == Phase::Writing && object.writers() == 1;
                is_ours && matches!(object.place, Place::Solo(_))
            })?;
            let open = object.open.as_ref()?;
            let (parent, name) = state.final_place(slot);
            let parks = object.version.0 == 0 && self.is_temporary(&name);
            let is_nowhere = open.supersedes.is_none() && state.tree.node(slot).is_detached();
            // What was overtaken meanwhile is no object when it is released.
            let is_overtaken = open.is_overtaken || state.is_as_overtaken(slot);
            if open.refused.is_some() || is_overtaken || parks || is_nowhere {
                return None;
            }
            let stat = self.stat_of(&state, slot);
            if open.withdrawn == Some((stat.size, stat.attributes.mtime_ns)) {
                return None;
            }
            let facts = FileFacts {
                size: stat.size,
                mtime_ns: stat.attributes.mtime_ns,
                mode: stat.attributes.mode.into(),
                uid: stat.attributes.uid,
                gid: stat.attributes.gid,
                checksum: None,
                replicas: state.replicas(slot),
            };
            let sealed_at_ns = state.next_sealed_at_ns(parent, name.as_bytes(), self.now_ns());
            Some(Appeared {
                path: state.path_of_child(parent, name.as_bytes()),
                stamp: Stamp(u64::try_from(sealed_at_ns).unwrap_or(0)),
                facts: Facts::File(facts),
                ino: state.tree.ino(slot),
                is_promise: true,
            })
        })();
        News { appeared, removed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_word_that_comes_last_takes_no_withdrawal_back() {
        let (mut elsewhere, key) = (Elsewhere::default(), KeyId::of(b"kv/a"));
        let mut through = |stamp| {
            elsewhere.note_withdrawn(key, Stamp(stamp));
            elsewhere.withdrawn.peek(&key).copied()
        };
        assert_eq!([10, 4, 12].map(&mut through), [10, 10, 12].map(|stamp| Some(Stamp(stamp))));
    }

    #[test]
    fn a_directory_is_later_than_what_was_removed_there() {
        let (mut elsewhere, key) = (Elsewhere::default(), KeyId::of(b"kv/a"));
        assert_eq!(elsewhere.above_withdrawn(key), Stamp::default());
        elsewhere.note_withdrawn(key, Stamp(7));
        assert_eq!(elsewhere.above_withdrawn(key), Stamp(8));
    }

    #[test]
    fn a_replacement_is_later_than_what_a_host_with_a_fast_clock_wrote() {
        assert_eq!(later_than(50, None, None), 50);
        assert_eq!(later_than(50, Some(40), Some(Stamp(30))), 50);
        assert_eq!(later_than(50, Some(70), Some(Stamp(30))), 71);
        assert_eq!(later_than(50, Some(40), Some(Stamp(90))), 91);
        assert_eq!(later_than(50, None, Some(Stamp(u64::MAX))), i64::MAX);
    }
}
