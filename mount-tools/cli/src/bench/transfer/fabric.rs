//! libfabric in the bench: on a provider that is named, beside a bare loop on the same one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use tidefs_engine::engine::{Parts, TransportName, TransportOptions};
use tidefs_engine::error::Error as EngineError;
use tidefs_engine::memory::Region;
use tidefs_engine::transport::libfabric::FabricConfig;
use tidefs_engine::transport::libfabric::bare::{Bare, BareLoop, BareTarget};
use tidefs_engine::transport::tcp::TcpConfig;
use tidefs_engine::transport::{Direction, Transport};
use tidefs_engine::types::ByteCount;

use super::{Opening, Stand};
use crate::bench::error::Error;

/// The provider that needs no hardware.
pub(super) const PROVIDER: &str = "tcp;ofi_rxm";
/// Operations of a bare loop at most.
const DEPTH_MAX: usize = 256;

fn config(provider: &str) -> FabricConfig {
    let address = provider.starts_with("tcp").then(|| std::net::Ipv4Addr::LOCALHOST.into());
    FabricConfig { provider: Some(provider.to_owned()), address, ..FabricConfig::default() }
}

/// Opens `names` as `opening` says; of several, those that this host has.
pub(super) fn open(
    names: &[TransportName],
    opening: &Opening,
    parts: &Parts,
) -> Result<Vec<Arc<dyn Transport>>, EngineError> {
    let tcp = TcpConfig { zero_copy: opening.zerocopy, ..TcpConfig::default() };
    let options = TransportOptions { libfabric: config(&opening.fabric), tcp, ..TransportOptions::default() };
    match names {
        [only] => Ok(vec![only.open(&options, parts)?]),
        several => Ok(several.iter().filter_map(|name| name.open(&options, parts).ok()).collect()),
    }
}

/// The near end of the bare loop.
pub(super) fn bare(provider: &str, region: &Arc<Region>) -> Result<Bare, Error> {
    Bare::open(&config(provider), region, DEPTH_MAX)
        .map_err(Error::engine("open a bare endpoint of libfabric"))
}

/// Serves the far end of the bare loop, with a thread of its own; `None` where the provider is not to be had.
pub(super) fn serve_bare(provider: &str, region: &Arc<Region>) -> Option<BareTarget> {
    let mut bare = Bare::open(&config(provider), region, 1).ok()?;
    let target = bare.target().ok()?;
    thread::spawn(move || bare.serve(&AtomicBool::new(false)));
    Some(target)
}

/// Seconds of a bare loop that does what the engine does.
pub(super) fn seconds(
    stand: &Stand,
    direction: Direction,
    size: ByteCount,
    depth: usize,
    count: u64,
) -> Result<f64, Error> {
    let target = stand.peers[0].1.bare.as_ref();
    let (Some(bare), Some(target)) = (&stand.bare, target) else {
        return Err(Error::Invalid("the target has no bare endpoint of libfabric".to_owned()));
    };
    let wanted = BareLoop { direction, size, depth: depth.min(DEPTH_MAX), count, span: stand.span };
    let took =
        bare.borrow_mut().run(target, &wanted).map_err(Error::engine("run a bare loop of libfabric"))?;
    Ok(took.as_secs_f64())
}
