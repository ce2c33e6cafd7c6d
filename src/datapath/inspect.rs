//! Looking without touching: what the admin API and `.tidefs` show. Nothing here counts as a use.

use std::ops::ControlFlow;

use tidefs_engine::types::{ByteCount, Checksum, ObjectCount, SegmentId, Version};

use super::history::Ending;
use super::{Datapath, Error, Kind, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::memory::{MemoryReport, MemoryUsage, PackedUsage, Pin, PolicyRecord};

/// The cache at a glance.
#[derive(Debug)]
pub struct Overview {
    /// Pages of the memory tier.
    pub usage: MemoryUsage,
    /// Of the pages in use, those that hold nothing and wait for the next object.
    pub waiting: ByteCount,
    /// Those of objects that are gone by name and that programs may still have open or mapped.
    pub held: ByteCount,
    /// Free memory that is touched ahead, beside those.
    pub prefaulted: ByteCount,
    /// What the memory tier got when it was opened.
    pub report: MemoryReport,
    /// Sealed objects.
    pub objects: u64,
    /// Their bytes.
    pub sealed_bytes: ByteCount,
    /// Files that are being written.
    pub unsealed_files: u64,
    /// Bytes of unfinished files, as quotas count them.
    pub unsealed_bytes: ByteCount,
    /// Inodes that the kernel holds.
    pub kernel_inodes: u64,
    /// Packed objects.
    pub packed: PackedUsage,
    /// Scratch files.
    pub scratch_files: u64,
    /// Scratch bytes in use.
    pub scratch_used: ByteCount,
    /// Most scratch bytes.
    pub scratch_capacity: ByteCount,
    /// Scratch files that had no thread to close them.
    pub scratch_closed_without_thread: u64,
    /// Why directories of scratch files are not used.
    pub scratch_troubles: Vec<String>,
    /// Copies of what other members hold, and their bytes.
    pub soft: (u64, u64),
    /// The default eviction policy.
    pub policy: &'static str,
    /// Heap bytes of all eviction orders.
    pub policy_memory: usize,
    /// Top-level directories.
    pub namespaces: Vec<NamespaceFacts>,
}

/// A top-level directory.
#[derive(Debug)]
pub struct NamespaceFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// Bytes of sealed objects below it, in whole pages.
    pub bytes: ByteCount,
    /// Bytes of unfinished files below it, in whole pages.
    pub unsealed_bytes: ByteCount,
    /// Objects below it.
    pub objects: ObjectCount,
    /// Its own quota.
    pub quota: Option<ByteCount>,
    /// Its own floor.
    pub floor: Option<ByteCount>,
    /// The policy that orders it.
    pub policy: &'static str,
    /// Objects evicted below it.
    pub evicted: u64,
    /// Opens of objects below it to read.
    pub hits: u64,
    /// Look-ups below it that found nothing.
    pub misses: u64,
}

/// One file or directory.
#[derive(Debug)]
pub struct NodeFacts {
    /// Inode number.
    pub ino: Ino,
    /// Path below the mount.
    pub path: Vec<u8>,
    /// Directory or file.
    pub kind: Kind,
    /// Length; of a directory, the bytes of sealed objects below it, in whole pages.
    pub size: ByteCount,
    /// Which tier, as `user.tidefs.tier` spells it; empty for directories.
    pub tier: &'static str,
    /// Order of its seal.
    pub version: Option<Version>,
    /// Its checksum, if it was taken; only [`Datapath::facts`] looks for it.
    pub checksum: Option<Checksum>,
    /// When it was sealed, in nanoseconds since 1970.
    pub sealed_at_ns: Option<i64>,
    /// When it was last opened or set, in nanoseconds since 1970.
    pub used_at_ns: i64,
    /// Times it was opened to read; of a top-level directory, those of what is below it. Of others that is not counted.
    pub uses: Option<u64>,
    /// Open handles, and references that clients of the fast path hold.
    pub references: u64,
    /// Policy in force.
    pub policy: PolicyRecord,
    /// When it expires, in nanoseconds since 1970.
    pub expires_at_ns: Option<i64>,
    /// When the soft pin in force on a file ends, in nanoseconds since 1970.
    pub pin_ends_at_ns: Option<i64>,
    /// Its segment, when it has one of its own.
    pub segment: Option<SegmentId>,
    /// Path of the object before it in its chain. Only [`Datapath::facts`] looks for it.
    pub predecessor: Option<Vec<u8>>,
}

/// Why an object stayed although an operator asked for its eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Hard-pinned.
    Pinned,
    /// Open.
    Open,
    /// Not sealed yet.
    Written,
    /// A slot file, which is no cached object.
    Scratch,
}

/// How far an operator's eviction is.
#[derive(Clone, Copy, Debug, Default)]
pub struct EvictionProgress {
    /// Objects that went.
    pub objects: u64,
    /// Bytes they occupied.
    pub bytes: ByteCount,
    /// Files that were looked at, when it goes through directories.
    pub looked_at: u64,
    /// Sealed objects that there were to look at when it began.
    pub total: u64,
}

/// What an operator's eviction did.
#[derive(Debug, Default)]
pub struct OperatorEviction {
    /// Objects that went.
    pub objects: u64,
    /// Bytes of memory they occupied.
    pub bytes: ByteCount,
    /// Those of these bytes that programs still have open or mapped.
    pub held: ByteCount,
    /// Bytes of those that were on disk, or on another member, alone.
    pub elsewhere: ByteCount,
    /// Objects that stayed.
    pub stayed: u64,
    /// Paths of the first of those, 100 at most, and why they did.
    pub named: Vec<(Vec<u8>, Obstacle)>,
}

/// So many of the objects that an eviction leaves are named.
pub(super) const STAYED_NAMED_MAX: usize = tidefs_control_api::Evicted::SKIPPED_LISTED_MAX;

impl Datapath {
    /// The cache at a glance.
    ///
    /// # Errors
    /// [`Error::Io`] when the memory tier cannot be asked.
    pub fn overview(&self) -> Result<Overview, Error> {
        let usage = self.tier.usage()?;
        let waiting = self.pooled().saturating_add(self.blank_bytes());
        let mut state = self.lock();
        self.count_misses(&mut state);
        let facts = |slot: Slot| {
            let folder = state.folders.get(slot)?;
            Some(NamespaceFacts {
                name: state.tree.name(slot).as_bytes().to_vec(),
                bytes: folder.bytes,
                unsealed_bytes: folder.unsealed,
                objects: folder.objects,
                quota: folder.policy.quota,
                floor: folder.policy.floor,
                policy: state.domains.get(folder.domain).order.name(),
                hits: folder.hits,
                misses: folder.misses,
                evicted: folder.evicted,
            })
        };
        let namespaces = state.namespaces().into_iter().filter_map(facts).collect();
        Ok(Overview {
            usage,
            waiting,
            held: state.held_by_departed(),
            prefaulted: self.prefaulted(),
            report: self.tier.report(),
            objects: state.sealed_objects,
            sealed_bytes: state.sealed_bytes,
            unsealed_files: state.writing.len() as u64,
            unsealed_bytes: state.folders.get(Slot::ROOT).map_or(ByteCount::ZERO, |root| root.unsealed),
            kernel_inodes: state.tree.referenced(),
            packed: self.tier.packed_usage(),
            scratch_files: self.scratch.files(),
            scratch_used: self.scratch.used(),
            scratch_capacity: self.scratch.capacity(),
            scratch_closed_without_thread: self.scratch.closed_without_thread(),
            scratch_troubles: self.scratch.troubles(),
            soft: state.soft_copies(),
            policy: state.domains.get(state.domains.root()).order.name(),
            policy_memory: state.domains.iter().map(|(_, domain)| domain.order.memory_bytes()).sum(),
            namespaces,
        })
    }

    /// Facts of the node at `path` below the mount.
    #[must_use]
    pub fn facts(&self, path: &[u8]) -> Option<NodeFacts> {
        let state = self.lock();
        let slot = state.tree.by_path(path)?;
        let mut facts = self.facts_of(&state, slot);
        let object = state.object(slot).filter(|object| object.phase == Phase::Sealed);
        // One that cannot be read is no reason to tell nothing.
        facts.checksum = object.and_then(|object| self.recorded_checksum(object).ok().flatten());
        let before = object.and_then(|_| state.standing(slot)?.predecessor);
        let before = before.map(|object| Slot(object.0)).filter(|&before| state.object(before).is_some());
        facts.predecessor = before.map(|before| state.tree.path(before));
        Some(facts)
    }

    pub(super) fn facts_of(&self, state: &State, slot: Slot) -> NodeFacts {
        let stat = self.stat_of(state, slot);
        let object = state.object(slot);
        let sealed = object.filter(|object| object.phase == Phase::Sealed);
        let folder = state.folders.get(slot);
        let is_namespace = state.tree.node(slot).parent == Slot::ROOT;
        NodeFacts {
            ino: stat.ino,
            path: state.tree.path(slot),
            kind: stat.kind,
            size: folder.map_or(stat.size, |folder| folder.bytes),
            tier: object.map_or("", super::xattrs::tier_text),
            version: sealed.map(|object| object.version),
            checksum: None,
            sealed_at_ns: sealed.map(|object| object.sealed_at_ns),
            used_at_ns: stat.attributes.atime_ns,
            uses: match folder {
                Some(folder) => is_namespace.then_some(folder.hits),
                None => object.map(|object| u64::from(object.uses)),
            },
            references: object.map_or(0, |object| {
                u64::from(object.readers() + object.writers()) + u64::from(object.references)
            }),
            policy: state.effective_policy(slot).record,
            expires_at_ns: state.expiry_of.get(&slot).copied(),
            pin_ends_at_ns: state.pin_end_ns(slot),
            segment: object.and_then(|object| match object.place {
                Place::Solo(segment) => Some(segment),
                Place::Packed(_) | Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => None,
            }),
            predecessor: None,
        }
    }

    /// The place of an object in the order of eviction, 0 leaving first, if it is among the next `limit`.
    #[must_use]
    pub fn eviction_rank(&self, ino: Ino, limit: usize) -> Option<u64> {
        let mut state = self.lock();
        let slot = state.tree.by_ino(ino)?;
        let id = state.domain_of(slot);
        let coldest = state.domains.get_mut(id).order.coldest(limit);
        coldest.iter().position(|object| object.0 == slot.0).map(|rank| rank as u64)
    }

    /// Sets, or with `None` removes, the pin of the node at `path`; that of a directory on all members of a cluster. An object
    /// below memory is brought into it, and may be a miss.
    ///
    /// # Errors
    /// [`Error::NoObject`], [`Error::NotAgreed`], [`Error::Io`].
    /// # Panics
    /// On a thread of a runtime, where it would wait for other members.
    pub fn pin(&self, path: &[u8], pin: Option<&str>) -> Result<Option<Pin>, Error> {
        let ino = {
            let state = self.lock();
            let slot = state.tree.by_path(path).ok_or(Error::NoObject)?;
            state.tree.ino(slot)
        };
        // In memory it has a record, which keeps the pin.
        let _promoted = self.promote(ino)?;
        let changed = match self.cluster.get() {
            _ if !self.is_agreed_on(ino) => self.change_policy(ino, "pin", pin),
            Some(side) => {
                let value = pin.map(str::as_bytes);
                side.cluster().wait(self.agree_on_attribute(ino, b"user.tidefs.pin", value, None))
            }
            None => Err(Error::NotAgreed),
        };
        match changed {
            Ok(()) | Err(Error::NoAttribute) => {}
            Err(error) => return Err(error),
        }
        let state = self.lock();
        Ok(state.effective_policy(state.slot_of(ino)?).record.pin)
    }

    /// Evicts the coldest objects until `bytes` are freed or nothing is left. Tells `progress` on the way, until that breaks it
    /// off.
    pub fn evict_coldest(
        &self,
        bytes: ByteCount,
        mut progress: impl FnMut(&EvictionProgress) -> ControlFlow<()>,
    ) -> OperatorEviction {
        let mut evicted = Vec::new();
        let tell =
            |objects, bytes| progress(&EvictionProgress { objects, bytes, ..EvictionProgress::default() });
        let (objects, bytes) = self.evict_coldest_bytes(bytes, Ending::EvictedByOperator, &mut evicted, tell);
        let held = self.held_of_evicted(&evicted);
        OperatorEviction { objects, bytes, held, ..OperatorEviction::default() }
    }

    /// The path of a live inode.
    #[must_use]
    pub fn path_of_ino(&self, ino: Ino) -> Option<Vec<u8>> {
        let state = self.lock();
        state.tree.by_ino(ino).map(|slot| state.tree.path(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{caller, directory, unprivileged};
    use super::*;

    #[test]
    fn namespaces_are_told_in_one_order_however_many_files_stand_beside_them() {
        let (_place, datapath) = unprivileged();
        let tops = [&b"a"[..], b"b", b"c", b"d", b"e"].map(|name| directory(&datapath, name));
        datapath.make_directory(&caller(), tops[0], b"below", 0o755).unwrap();
        let told = || -> Vec<Vec<u8>> {
            datapath.overview().unwrap().namespaces.into_iter().map(|one| one.name).collect()
        };
        let beside_none = told();
        assert_eq!(beside_none.len(), tops.len());
        for number in 0..20 {
            datapath.make_file(&caller(), Ino::ROOT, format!("file-{number}").as_bytes(), 0o644).unwrap();
        }
        assert_eq!(told(), beside_none);
    }
}
