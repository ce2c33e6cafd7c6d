//! How the transport is opened: the library is loaded, and one of its offers for each NIC opened, with a thread.
//!
//! Invariants
//! - A NIC that cannot be opened is left out with a warning, as long as another can.
//! - What the transport says of itself holds for every NIC: of lengths and depths, the least.
//!
//! Limits: at most [`RAILS_MAX`] NICs; further ones are not used, and said so.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::Library;
use parking_lot::Mutex;

use super::domain::Domain;
use super::job::Settings;
use super::nic::ffi::{Nic, Offer};
use super::progress::Progress;
use super::select::{self, Facts, Wish};
use super::shares::Pages;
use super::wire::RAILS_MAX;
use super::{Fabric, FabricConfig, NAME, NicHandle, REGISTRATION_CACHE, unavailable};
use crate::error::Error;
use crate::topology::{SYSFS, Topology, links_of_pci, node_of_pci, processors_beside};
use crate::transport::{Capabilities, Rail};
use crate::types::{ByteCount, RailId};

/// Longest operation that is offered to the plan, whatever the provider takes: the unit of retry and of balance.
const OPERATION_BYTES_MAX: u64 = 64 << 20;
/// Below this, cutting costs more than it gains (64 KiB reaches a quarter of EFA's rate, 1 MiB all of it).
const SLICE_BYTES: u64 = 1 << 20;
/// Most operations of one connection; more only wait in the same queue.
const OPERATIONS_MAX: usize = 128;

/// The library's offers, and the flags of a write with which they came: delivery where any provider promises it.
pub(super) fn offers(
    library: Library,
    config: &FabricConfig,
) -> Result<(Vec<Offer>, Vec<usize>, Wish), Error> {
    // Interface 1.18 is the first in which EFA uses the NIC for reads and writes of its own accord on older cards.
    let mut wish = Wish {
        api: library.version().min(fi::version(1, 18)),
        provider: config.provider.clone(),
        source: config.address,
        write_flags: fi::FI_DELIVERY_COMPLETE,
    };
    let mut said = String::from("the library offers none");
    for write_flags in [fi::FI_DELIVERY_COMPLETE, fi::FI_TRANSMIT_COMPLETE] {
        wish.write_flags = write_flags;
        match Offer::all(library, &wish) {
            Ok(found) => {
                let facts: Vec<Facts> = found.iter().map(Offer::facts).collect();
                let chosen = select::choose(&facts, &wish);
                if !chosen.is_empty() {
                    return Ok((found, chosen, wish));
                }
                let mut names: Vec<String> = facts.into_iter().map(|facts| facts.provider).collect();
                names.dedup();
                said = format!("only {}, which {NAME} uses when named", names.join(", "));
            }
            Err(failure) => said = failure.to_string(),
        }
    }
    let provider = config.provider.as_deref().unwrap_or("any that drives hardware");
    let address = config.address.map(|address| format!(" with the address {address}")).unwrap_or_default();
    Err(unavailable(format!("a provider ({provider}) of reliable one-sided transfers{address}"), said))
}

impl Fabric {
    /// Loads the library, picks the NICs, and starts a thread for each. One that cannot be opened is left out, and said so.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the library, provider or address that was looked for, or why no NIC could be opened.
    pub fn open(config: &FabricConfig) -> Result<Self, Error> {
        let library = Library::open().map_err(|error| {
            unavailable(
                format!("{} (or what {} names)", error.tried.join(", "), fi::SEARCH_VARIABLE),
                &error.cause,
            )
        })?;
        let (found, mut chosen, wish) = offers(library, config)?;
        if chosen.len() > RAILS_MAX {
            tracing::warn!(found = chosen.len(), used = RAILS_MAX, "more NICs than a key has room for");
            chosen.truncate(RAILS_MAX);
        }
        let mut fabric = Self {
            nics: Vec::new(),
            rails: Vec::new(),
            capabilities: Capabilities {
                operation_bytes_max: ByteCount(OPERATION_BYTES_MAX),
                slice_bytes: ByteCount(SLICE_BYTES),
                operations_max: OPERATIONS_MAX,
                is_local: false,
                needs_target_cpu: false,
                needs_local_registration: true,
            },
            provider: String::new(),
            uses_addresses: false,
            registration_bytes_max: config.registration_bytes_max,
            pages: None,
            divided: Arc::default(),
            left_out: 0,
            acquaintances: Mutex::default(),
        };
        let chosen = found.into_iter().enumerate().filter(|(index, _)| chosen.contains(index));
        let mut refusal = None;
        for (_, offer) in chosen {
            if let Err(error) = fabric.open_nic(offer, config, &wish) {
                tracing::warn!(%error, "a NIC is left out");
                fabric.left_out += 1;
                refusal = Some(error);
            }
        }
        if let Some(error) = refusal.filter(|_| fabric.nics.is_empty()) {
            return Err(error);
        }
        fabric.pages = config.pages_max.map(|most| Pages::new(most, fabric.nics.len()));
        fabric.warn_of_cache();
        let longest = fabric.capabilities.operation_bytes_max;
        fabric.capabilities.slice_bytes = fabric.capabilities.slice_bytes.min(longest);
        tracing::info!(provider = %fabric.provider, rails = fabric.rails.len(), "libfabric is open");
        Ok(fabric)
    }

    /// NICs that would be used, and could not be opened.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    fn open_nic(&mut self, offer: Offer, config: &FabricConfig, wish: &Wish) -> Result<(), Error> {
        let facts = offer.facts();
        let refused = |failure: &dyn fmt::Display| {
            unavailable(format!("device {} of {}", facts.domain, facts.provider), failure)
        };
        let nic = Nic::open(offer).map_err(|failure| refused(&failure))?;
        let slots = facts.tx_size.clamp(1, 4096);
        let settings = Settings {
            slots,
            write_flags: wish.write_flags,
            settle: config.settle,
            silence: config.silence,
            bytes_per_second: facts.bytes_per_second,
        };
        let (name, keys) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let (domain, rma_bytes_max) = Domain::open(nic, settings, Arc::clone(&name), Arc::clone(&keys))
            .map_err(|failure| refused(&failure))?;
        let numa = facts.pci.as_ref().and_then(|address| node_of_pci(Path::new(SYSFS), address));
        let beside = processors_beside(&Topology::of_this_host(), numa);
        let progress = Progress::start(domain, &facts.domain, config.may_spin, beside)
            .map_err(|error| refused(&error))?;
        let longest = rma_bytes_max.unwrap_or(u64::MAX).min(facts.message_bytes_max).max(1);
        let capabilities = &mut self.capabilities;
        capabilities.operation_bytes_max = capabilities.operation_bytes_max.min(ByteCount(longest));
        capabilities.operations_max = capabilities.operations_max.min(slots);
        capabilities.needs_target_cpu |= facts.is_target_progress_manual;
        self.provider.clone_from(&facts.provider);
        self.uses_addresses = facts.mr_mode & fi::FI_MR_VIRT_ADDR != 0;
        let id = RailId(u16::try_from(self.rails.len()).unwrap_or(u16::MAX));
        self.rails.push(Rail {
            id,
            numa,
            pci_links: facts.pci.as_ref().and_then(|address| links_of_pci(Path::new(SYSFS), address)),
            nominal_bytes_per_second: facts.bytes_per_second,
            name: facts.domain,
        });
        self.nics.push(NicHandle { progress, name, keys });
        Ok(())
    }

    /// Says so when a region that is withdrawn may stay within reach.
    fn warn_of_cache(&self) {
        let (variable, value) = REGISTRATION_CACHE;
        let is_off = std::env::var(variable).is_ok_and(|set| set == value);
        // Providers that move bytes with the processor look a key up for each operation, and cache nothing.
        if self.uses_addresses && !is_off {
            tracing::warn!(
                provider = %self.provider,
                "start with {variable}={value}: withdrawn regions stay within reach of peers that know their keys"
            );
        }
    }
}
