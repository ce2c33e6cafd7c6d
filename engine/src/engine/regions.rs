//! The regions of this process, each registered with every transport.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;

use super::descriptor::RegionDescriptor;
use super::refusals::Refusals;
use crate::error::Error;
use crate::memory::{Access, MemorySlice, Region};
use crate::transport::Transport;
use crate::types::{ByteCount, RegionId};

/// The transports that hold a region, by their place in the engine's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holders(u32);

impl Holders {
    pub(super) fn add(&mut self, transport: usize) {
        self.0 |= Self::bit(transport);
    }

    pub(super) fn has(self, transport: usize) -> bool {
        self.0 & Self::bit(transport) != 0
    }

    /// No engine has as many transports as there are bits.
    fn bit(transport: usize) -> u32 {
        u32::try_from(transport).ok().and_then(|place| 1_u32.checked_shl(place)).unwrap_or(0)
    }
}

#[derive(Debug)]
struct Registered {
    region: Arc<Region>,
    keys: Vec<(&'static str, Vec<u8>)>,
    holders: Holders,
}

/// All regions of an engine.
#[derive(Debug)]
pub(super) struct Regions {
    next: AtomicU64,
    /// Read for each request, written when a region comes or goes.
    registered: RwLock<HashMap<RegionId, Arc<Registered>>>,
    /// Of each transport.
    refusals: Vec<Refusals>,
}

impl Regions {
    /// Those of an engine with so many transports.
    pub(super) fn new(transports: usize) -> Self {
        let refusals = (0..transports).map(|_| Refusals::default()).collect();
        Self { next: AtomicU64::new(1), registered: RwLock::default(), refusals }
    }

    /// Registers `region` with each transport. One that cannot is left out, as long as another can; of those that go on
    /// refusing regions the first refusal is a warning.
    pub(super) fn register(
        &self,
        transports: &[Arc<dyn Transport>],
        region: &Arc<Region>,
    ) -> Result<RegionId, Error> {
        let id = RegionId(self.next.fetch_add(1, Ordering::Relaxed));
        let mut keys = Vec::with_capacity(transports.len());
        let mut holders = Holders::default();
        let mut refusal = None;
        for (place, (transport, refusals)) in transports.iter().zip(&self.refusals).enumerate() {
            let name = transport.name();
            match transport.register(id, region) {
                Ok(key) => {
                    keys.push((name, key));
                    holders.add(place);
                    if let Some(refused) = refusals.registered(Instant::now) {
                        tracing::info!(
                            transport = name,
                            refused,
                            "this transport refuses no regions any more"
                        );
                    }
                }
                Err(error @ Error::OverBudget { .. }) => {
                    // It is so for a while, region by region; the transport says when that begins.
                    tracing::debug!(transport = name, region = %id, %error, "left out");
                    refusal = Some(error);
                }
                Err(error) => {
                    let length = region.length();
                    match refusals.refused(Instant::now()) {
                        Some(before) => {
                            tracing::warn!(transport = name, region = %id, %length, %error, before,
                                "a region cannot be reached by this transport; others that follow are not told");
                        }
                        None => tracing::debug!(transport = name, region = %id, %length, %error, "left out"),
                    }
                    refusal = Some(error);
                }
            }
        }
        match refusal {
            Some(error) if keys.is_empty() => Err(error),
            _ => {
                let registered = Arc::new(Registered { region: Arc::clone(region), keys, holders });
                self.registered.write().insert(id, registered);
                Ok(id)
            }
        }
    }

    /// Withdraws a region, which peers may use or not, from all transports at once, also when the future is dropped once it
    /// was polled: one of them may wait long for a peer. Resolves when no peer touches its memory any more.
    pub(super) async fn unregister(&self, transports: &[Arc<dyn Transport>], id: RegionId, is_in_use: bool) {
        if self.registered.write().remove(&id).is_none() {
            return;
        }
        let withdraw = transports.iter().map(|transport| match is_in_use {
            true => transport.unregister(id),
            false => transport.unregister_unused(id),
        });
        let waits: Vec<_> = withdraw.collect();
        for wait in waits {
            wait.await;
        }
    }

    /// A range that this process reads from or, with `stores`, writes to, and which transports hold its region.
    pub(super) fn slice(
        &self,
        id: RegionId,
        offset: u64,
        length: ByteCount,
        stores: bool,
    ) -> Result<(MemorySlice, Holders), Error> {
        let registered = self.registered.read();
        let found = registered.get(&id).ok_or(Error::NoSuchRegion { region: id })?;
        if stores && !found.region.is_writable() {
            return Err(Error::ReadOnly { region: id });
        }
        Ok((MemorySlice::new(&found.region, id, offset, length)?, found.holders))
    }

    /// What peers are told of a region, with its keys as they are now.
    pub(super) fn describe(
        &self,
        transports: &[Arc<dyn Transport>],
        id: RegionId,
    ) -> Option<RegionDescriptor> {
        let found = Arc::clone(self.registered.read().get(&id)?);
        let key = |(name, first): &(&'static str, Vec<u8>)| {
            let transport = transports.iter().find(|transport| transport.name() == *name);
            let renewed = transport.and_then(|transport| transport.renewed_key(id, first));
            let key = renewed.unwrap_or_else(|| first.clone());
            (transport.map_or(*name, |transport| transport.key_name(&key)).to_owned(), key)
        };
        Some(RegionDescriptor {
            id,
            length: found.region.length(),
            is_writable: found.region.access() == Access::ReadWrite,
            keys: found.keys.iter().map(key).collect(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.registered.read().len()
    }
}
