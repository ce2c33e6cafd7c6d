//! One-sided reads and writes through libfabric: EFA, and every other fabric that has a provider.
//!
//! What is assumed is what EFA gives, so that one path is right everywhere: operations complete in any order, there is
//! no cancel, local memory is named by a descriptor, remote memory by an address or an offset and a key that the
//! provider chose, a context belongs to the provider while an operation is in flight, and both ends know each other's
//! address before the first operation. `select` takes one offer of the library for each NIC, `opening` opens them,
//! `domain` is one NIC, `progress` the thread that owns it, `wire` what the two ends tell each other, and `nic::ffi` and
//! `port::ffi` hold all of the C.
//!
//! One endpoint, completion queue and address vector for each NIC, shared by all peers: a peer costs a place in the
//! vector. Rail `i` of this host talks to rail `i` of the peer, modulo their number.
//!
//! libfabric keeps registrations in a cache of its own, for programs that register the same memory again and again: a
//! withdrawn region then stays within reach of peers that know its key, on verbs and on EFA. A daemon registers what it
//! lends and what it fetches each time, which such a cache would spare, and withdraws it when that is over, which the
//! cache would undo: so the process is to be started with [`REGISTRATION_CACHE`]; `open` warns where it is not. It is not
//! set here: the environment of a process with several threads cannot be changed safely. To register waits for the NIC's
//! thread, and blocks who asks.
//!
//! Where the processor stands in for the NIC, memory that peers may use is withdrawn by closing the endpoint, see `domain`.
//!
//! A NIC whose endpoint was closed and cannot be opened again is left out until it can be: peers are told that it has no address,
//! and that it does not have what is registered meanwhile. Connections without it are made again in time, see `endpoint`.
//!
//! A NIC that refuses long registrations gets several for a region ([`FabricConfig::registration_bytes_max`]): every
//! rail registers all of it, in pieces, and an operation across a boundary is several to the NIC and one to its caller.
//!
//! NICs that translate no more than so many pages ([`FabricConfig::pages_max`]) share a region out that has no place at each of
//! them. Its bytes go by the rails that have them: which rail the caller wished for decides only where both ends leave a choice.
//!
//! Limits: 29 NICs; one provider at a time; host memory only; 252 keys for a region, over its registrations and NICs, or 112
//! parts of one that is shared out.

// Opening the library and its NICs.
mod config;
mod opening;
mod select;

// One NIC: its thread, and what is under way there.
mod credit;
mod domain;
mod job;
mod progress;
mod split;

// Memory: which NIC has what of it, and by which keys.
mod budget;
mod keys;
mod layout;
mod registered;
mod shares;

// Peers: what the two ends tell each other, and the connection between them.
mod endpoint;
mod meeting;
mod wire;

// All of the C.
mod nic {
    //! NICs, and the library's offers of them.
    pub(super) mod ffi;
}
mod port {
    //! The endpoint of a NIC.
    pub(super) mod ffi;
}
mod registration {
    //! Memory registered with a NIC.
    pub(super) mod ffi;
}

// What it is measured against.
pub mod bare;

// Tests, and the parsers for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::memory::Region;
use crate::transport::{BoxFuture, Capabilities, Endpoint, Exchange, Rail, Transport};
use crate::types::{ByteCount, PeerId, RailId, RegionId};
use budget::Wanted;
pub use config::FabricConfig;
use layout::{Layout, Layouts};
use meeting::Acquaintance;
use progress::{Command, Progress};
use registered::Portion;
use shares::{Pages, Taken};
use wire::{KEYS_MAX, KEYS_NAME, Key, NO_KEY, PARTS_MAX, PARTS_NAME};

const NAME: &str = "libfabric";
/// Why there is no way, or no place for memory, where endpoints could not be opened again.
const NOT_OPEN: &str = "the NICs that are needed are not open";

/// Variable and value that turn libfabric's cache of registrations off, see fi_mr(3).
pub const REGISTRATION_CACHE: (&str, &str) = ("FI_MR_CACHE_MAX_COUNT", "0");

/// The thread of a NIC, and the NIC's address.
struct NicHandle {
    progress: Arc<Progress>,
    /// All zeros while its endpoint cannot be opened.
    name: Arc<Mutex<Vec<u8>>>,
    /// Keys of the regions, where they are not those of the first registration.
    keys: Arc<Mutex<HashMap<RegionId, Vec<u64>>>>,
}

/// The transport over libfabric.
pub struct Fabric {
    nics: Vec<NicHandle>,
    rails: Vec<Rail>,
    capabilities: Capabilities,
    provider: String,
    uses_addresses: bool,
    registration_bytes_max: Option<ByteCount>,
    /// The pages that the NICs have left, where that has a limit.
    pages: Option<Arc<Pages>>,
    /// Regions of which each NIC has a part.
    divided: Arc<Layouts>,
    left_out: usize,
    /// Peers that greeted us. Held for moments only; never across a call of a NIC's thread.
    acquaintances: Mutex<HashMap<PeerId, Acquaintance>>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("provider", &self.provider)
            .field("rails", &self.rails)
            .finish_non_exhaustive()
    }
}

fn unavailable(looked_for: impl Into<Arc<str>>, cause: impl fmt::Display) -> Error {
    Error::Unavailable { transport: NAME, looked_for: looked_for.into(), cause: cause.to_string().into() }
}

impl Fabric {
    /// Asks all NICs at once, and resolves when each has done it.
    fn each_nic(&self, command: impl Fn(oneshot::Sender<()>) -> Command) -> BoxFuture<'static, ()> {
        let ask = |nic: &NicHandle| {
            let (done, is_done) = oneshot::channel();
            nic.progress.send(command(done));
            is_done
        };
        let waits: Vec<_> = self.nics.iter().map(ask).collect();
        Box::pin(async move {
            for is_done in waits {
                // Nothing is ever sent: the sender is dropped when it is done.
                let _ = is_done.await;
            }
        })
    }

    /// The rails whose endpoints are open.
    fn open_rails(&self) -> Vec<RailId> {
        let is_open = |(_, nic): &(&Rail, &NicHandle)| wire::is_open(&nic.name.lock());
        self.rails.iter().zip(&self.nics).filter(is_open).map(|(rail, _)| rail.id).collect()
    }

    /// Which rail is to have which bytes of `region`, whose pages were `taken` where they are counted.
    fn layout_of(&self, region: &Region, taken: Option<&Taken>) -> Result<Layout, Error> {
        match taken.and_then(|taken| taken.parts.clone()) {
            Some(parts) => {
                let longest = self.registration_bytes_max.map(ByteCount::get);
                shares::layout(parts, longest, region.page_bytes(), PARTS_MAX)
            }
            None => registered::chunk_bytes(region, self.registration_bytes_max).map(Layout::Everywhere),
        }
    }

    /// Registers `region` with each NIC that has a part of it. Returns the keys in the order in which peers get them, of which
    /// those at a NIC that is not open are [`NO_KEY`].
    fn register_parts(
        &self,
        id: RegionId,
        region: &Arc<Region>,
        layout: &Layout,
        taken: Option<&Taken>,
    ) -> Result<Vec<u64>, Error> {
        let length = region.length().get();
        let ask = |(rail, nic): (&Rail, &NicHandle)| {
            let ranges = layout.ranges(rail.id, length);
            let share = taken.and_then(|taken| taken.share(rail.id));
            (!ranges.is_empty()).then(|| {
                let (reply, answer) = mpsc::sync_channel(1);
                let portion = Portion { region: Arc::clone(region), ranges, share };
                nic.progress.send(Command::Register(id, portion, reply));
                (rail.id, answer)
            })
        };
        let answers: Vec<_> = self.rails.iter().zip(&self.nics).filter_map(ask).collect();
        let keys: Result<HashMap<RailId, Vec<u64>>, Error> = answers
            .into_iter()
            .map(|(rail, answer)| answer.recv().unwrap_or(Err(Error::Closed)).map(|keys| (rail, keys)))
            .collect();
        let keys = keys?;
        let count: usize = keys.values().map(Vec::len).sum();
        if count > KEYS_MAX {
            return Err(Error::transport(NAME, format!("{count} keys of one region, of at most {KEYS_MAX}")));
        }
        let rails = self.rails.iter().map(|rail| rail.id);
        let keys = layout.collect_keys(rails, |rail| keys.get(&rail).cloned());
        let keys = keys.ok_or_else(|| Error::transport(NAME, "a NIC gave too few keys"))?;
        let is_missing = |key: &u64| *key == NO_KEY;
        let is_within_reach = match layout {
            Layout::Everywhere(_) => !keys.iter().all(is_missing),
            Layout::Divided(_) => !keys.iter().any(is_missing),
        };
        if is_within_reach { Ok(keys) } else { Err(Error::transport(NAME, NOT_OPEN)) }
    }
}

impl Transport for Fabric {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn rails(&self) -> Vec<Rail> {
        self.rails.clone()
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        let taken = match &self.pages {
            Some(pages) => {
                let rails = self.open_rails();
                if rails.is_empty() {
                    return Err(Error::transport(NAME, NOT_OPEN));
                }
                let wanted = Wanted { bytes: region.length().get(), page_bytes: region.page_bytes() };
                Some(pages.take(wanted, &rails)?)
            }
            None => None,
        };
        let layout = self.layout_of(region, taken.as_ref())?;
        match self.register_parts(id, region, &layout, taken.as_ref()) {
            Ok(keys) => {
                let base = if self.uses_addresses { region.base() as u64 } else { 0 };
                let (access, length) = (region.access(), region.length().get());
                if let Layout::Divided(_) = &layout {
                    self.divided.write().insert(id, Arc::new(layout.clone()));
                }
                Ok(Key { access, base, length, layout, keys }.encode())
            }
            Err(error) => {
                // No peer was told of it: those that took it need not be opened anew.
                drop(self.unregister_unused(id));
                Err(error)
            }
        }
    }

    fn key_name(&self, key: &[u8]) -> &'static str {
        wire::name_of(key).unwrap_or(NAME)
    }

    fn more_key_names(&self) -> &'static [&'static str] {
        &[KEYS_NAME, PARTS_NAME]
    }

    fn renewed_key(&self, id: RegionId, first: &[u8]) -> Option<Vec<u8>> {
        let renewed: Vec<_> = self.nics.iter().map(|nic| nic.keys.lock().get(&id).cloned()).collect();
        if renewed.iter().all(Option::is_none) {
            return None;
        }
        let key = Key::decode(first).ok()?;
        let rails = self.rails.iter().map(|rail| rail.id);
        let of_rail = |rail: RailId| renewed[usize::from(rail.0)].clone().or_else(|| key.keys_at(rail));
        let keys = key.layout.collect_keys(rails, of_rail)?;
        Some(Key { keys, ..key }.encode())
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.divided.write().remove(&id);
        self.each_nic(|done| Command::Unregister(id, true, done))
    }

    fn unregister_unused(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.divided.write().remove(&id);
        self.each_nic(|done| Command::Unregister(id, false, done))
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move { Ok(Arc::new(self.meet(peer, exchange).await?) as Arc<dyn Endpoint>) })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.answer_greeting(peer, request)
    }

    fn forget(&self, peer: PeerId) {
        self.acquaintances.lock().remove(&peer);
        for nic in &self.nics {
            nic.progress.send(Command::Forget(peer));
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.each_nic(Command::Close)
    }
}

impl Drop for Fabric {
    /// Ends the threads, and with them every operation.
    fn drop(&mut self) {
        drop(self.close());
        for nic in &self.nics {
            nic.progress.join();
        }
    }
}
