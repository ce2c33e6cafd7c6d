//! The suite of all transports, on the strict provider: a rule of it that is broken is an error of the operation. Where there is
//! no libfabric, each test says so and passes. What other providers keep is in `tests/fabric`.

mod ffi;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use libfabric_sys::Library;

use super::{Fabric, FabricConfig};
use crate::transport::Transport;
use crate::transport::conformance::{Pair, conformance};

/// The strict provider.
fn strict() -> Option<Pair> {
    // On a busy machine a peer may be silent for a while.
    Some(Pair { names_what_is_gone: true, ..pair("strict", None, Duration::from_secs(10))? })
}

/// The provider over sockets, which every host has. Nothing of it is hardware: the processor of each end looks keys up.
fn sockets() -> Option<Pair> {
    // Each connection that a peer gives up while it is made costs this long.
    pair("tcp;ofi_rxm", Some(Ipv4Addr::LOCALHOST.into()), Duration::from_secs(2))
}

fn pair(provider: &str, address: Option<IpAddr>, silence: Duration) -> Option<Pair> {
    ffi::find_strict_provider();
    if let Err(error) = Library::open() {
        println!("skipped: {error} (Debian: libfabric1)");
        return None;
    }
    let config = FabricConfig {
        provider: Some(provider.to_owned()),
        address,
        settle: Duration::from_millis(500),
        silence,
        ..FabricConfig::default()
    };
    // The library is there, so a provider that is not is a failure.
    let open = || Arc::new(Fabric::open(&config).unwrap()) as Arc<dyn Transport>;
    // A key is not of one peer.
    Some(Pair { forget_takes_back: false, names_what_is_gone: false, ..Pair::new(open(), open()) })
}

conformance!(on_strict, super::strict);
conformance!(on_sockets, super::sockets);
