//! The suite of all transports, on the strict provider: a rule of it that is broken is an error of the operation. Where there is
//! no libfabric, each test says so and passes. What other providers keep is in `tests/fabric`.

mod ffi;

use std::sync::Arc;
use std::time::Duration;

use libfabric_sys::Library;

use super::{Fabric, FabricConfig};
use crate::transport::Transport;
use crate::transport::conformance::{Pair, conformance};

fn pair() -> Option<Pair> {
    ffi::find_strict_provider();
    if let Err(error) = Library::open() {
        println!("skipped: {error} (Debian: libfabric1)");
        return None;
    }
    let config = FabricConfig {
        provider: Some("strict".to_owned()),
        settle: Duration::from_millis(500),
        // On a busy machine a peer may be silent for a while.
        silence: Duration::from_secs(10),
        ..FabricConfig::default()
    };
    // The library is there, so a provider that is not is a failure.
    let open = || Arc::new(Fabric::open(&config).unwrap()) as Arc<dyn Transport>;
    // A key is not of one peer.
    Some(Pair { forget_takes_back: false, ..Pair::new(open(), open()) })
}

conformance!(strict, super::pair);
