//! What the transport may use.

use std::str::FromStr;
use std::time::Duration;

use crate::transport::{Completion, processors};
use crate::types::ByteCount;

/// Whether large payload is sent from where it lies, without a copy in the kernel (`MSG_ZEROCOPY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Never.
    Off,
    /// Where it pays: each connection tries it once, and leaves it when the kernel has copied all the same, as it does on
    /// the loopback and with NICs that cannot gather.
    #[default]
    Auto,
    /// Always, also where the kernel copies.
    On,
}

impl ZeroCopy {
    const ALL: [Self; 3] = [Self::Off, Self::Auto, Self::On];

    /// The word for it in options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::On => "on",
        }
    }
}

impl FromStr for ZeroCopy {
    type Err = ParseZeroCopyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.as_str() == text.trim());
        found.ok_or_else(|| ParseZeroCopyError { text: text.trim().to_owned() })
    }
}

/// A text that is no [`ZeroCopy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not off, auto or on")]
pub struct ParseZeroCopyError {
    text: String,
}

/// How data connections are made and filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Data connections to each peer, 1 to 8. One fills some 25 Gbit/s at most; fewer cost less memory.
    pub connections: usize,
    /// Longest operation: short enough for others to pass between, long enough for the header to cost nothing.
    /// At least 4 KiB: peers refuse less.
    pub operation_bytes_max: ByteCount,
    /// Operations of one peer under way.
    pub operations_max: usize,
    /// Bytes of one peer under way.
    pub in_flight_bytes_max: ByteCount,
    /// Whether each payload is checked with xxh3-64 where it arrives.
    pub payload_checksum: bool,
    /// Whether large payload is sent without a copy. Encrypted connections copy always.
    pub zero_copy: ZeroCopy,
    /// Time for the data connections of a peer to be made.
    pub connect_timeout: Duration,
    /// How the threads that move bytes wait. Default: [`Completion::of_this_host`].
    pub completion: Completion,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            connections: 4,
            operation_bytes_max: ByteCount::mib(1),
            operations_max: 1024,
            in_flight_bytes_max: ByteCount::mib(64),
            payload_checksum: false,
            zero_copy: ZeroCopy::default(),
            connect_timeout: Duration::from_secs(5),
            completion: Completion::of_this_host(),
        }
    }
}

/// Most threads of one transport.
const THREADS_MAX: usize = 4;

impl TcpConfig {
    /// Threads that move bytes: one for each processor, up to a few; streams of one peer are spread over them.
    pub(super) fn threads(&self) -> usize {
        processors().clamp(1, THREADS_MAX)
    }

    /// The number of connections within its bounds.
    pub(super) fn lanes(&self) -> usize {
        self.connections.clamp(1, super::LANES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_reads_back_as_its_choice() {
        for mode in ZeroCopy::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        assert_eq!("yes".parse::<ZeroCopy>().unwrap_err().to_string(), "`yes` is not off, auto or on");
    }
}
