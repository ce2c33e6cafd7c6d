//! Which transports an engine uses, and their opening: the only place that names them all.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LayerOptions, Parts};
use crate::error::Error;
use crate::transport::Transport;
use crate::transport::libfabric::{Fabric, FabricConfig};
use crate::transport::shm::{ShmConfig, ShmTransport};
use crate::transport::tcp::{TcpConfig, TcpTransport};

/// A transport of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// Memory of peers on this host, mapped.
    Shm,
    /// EFA, and other fabrics that libfabric drives.
    Libfabric,
    /// Sockets; always there.
    Tcp,
}

impl TransportName {
    /// All, the best first.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Libfabric, Self::Tcp];

    /// The name as it is written in options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Libfabric => "libfabric",
            Self::Tcp => "tcp",
        }
    }

    /// Opens it, with the layers that `options` ask for.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where this host does not have it: it says what was looked for, and where.
    pub fn open(self, options: &TransportOptions, parts: &Parts) -> Result<Arc<dyn Transport>, Error> {
        let bare: Arc<dyn Transport> = match self {
            Self::Shm => ShmTransport::open(options.shm, &parts.runtime)?,
            Self::Libfabric => {
                let fabric = Fabric::open(&options.libfabric)?;
                parts.metrics.nics_left_out_total.add(fabric.left_out() as u64);
                Arc::new(fabric)
            }
            Self::Tcp => TcpTransport::open(&parts.links, options.tcp.clone(), &parts.metrics)?,
        };
        Ok(options.layers.around(bare, parts))
    }
}

impl fmt::Display for TransportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TransportName {
    type Err = ParseTransportError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|name| name.as_str() == text.trim());
        found.ok_or_else(|| ParseTransportError { text: text.trim().to_owned() })
    }
}

/// How transports are opened.
#[derive(Clone, Debug, Default)]
pub struct TransportOptions {
    /// Shared memory.
    pub shm: ShmConfig,
    /// Fabrics.
    pub libfabric: FabricConfig,
    /// Sockets.
    pub tcp: TcpConfig,
    /// What is put around each of them.
    pub layers: LayerOptions,
}

/// Which transports to open. Written `auto`, or as names with commas, the best first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// All that this host has. One that is missing is left out, and said so.
    #[default]
    Auto,
    /// Exactly these. One that is missing is an error.
    Named(Vec<TransportName>),
}

/// A text that names no transports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no transport: write auto, or some of {} with commas, the best first", known())]
pub struct ParseTransportError {
    text: String,
}

fn known() -> String {
    TransportName::ALL.map(TransportName::as_str).join(", ")
}

impl FromStr for TransportChoice {
    type Err = ParseTransportError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim() == "auto" {
            return Ok(Self::Auto);
        }
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self::Named)
    }
}

/// Opens what `choice` names, the best first.
///
/// # Errors
/// [`Error::Unavailable`] for a named transport that this host does not have: it says what was looked for, and where.
/// With [`TransportChoice::Auto`] only when there is none at all.
pub fn open_transports(
    choice: &TransportChoice,
    options: &TransportOptions,
    parts: &Parts,
) -> Result<Vec<Arc<dyn Transport>>, Error> {
    match choice {
        TransportChoice::Named(names) => names.iter().map(|name| name.open(options, parts)).collect(),
        TransportChoice::Auto => {
            let mut opened = Vec::new();
            let mut refusal = None;
            for name in TransportName::ALL {
                match name.open(options, parts) {
                    Ok(transport) => opened.push(transport),
                    Err(error) => {
                        tracing::info!(transport = %name, %error, "left out");
                        refusal = Some(error);
                    }
                }
            }
            refusal.filter(|_| opened.is_empty()).map_or(Ok(opened), Err)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_auto_or_names_in_order() {
        assert_eq!("auto".parse(), Ok(TransportChoice::Auto));
        let named = TransportChoice::Named(vec![TransportName::Tcp, TransportName::Shm]);
        assert_eq!("tcp, shm".parse(), Ok(named));
        let error = "tcp,carrier-pigeon".parse::<TransportChoice>().unwrap_err().to_string();
        assert!(
            error.contains("`carrier-pigeon`") && error.contains("some of shm, libfabric, tcp"),
            "{error}"
        );
    }
}
