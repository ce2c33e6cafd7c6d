//! Messages to a member about contents: the bytes of an object, the names of a directory.

use serde::{Deserialize, Serialize};
use tidefs_engine::engine::FIRST_FREE_CHANNEL;
use tidefs_engine::link::Channel;

use super::message::{Message, WireError, at_most};
use super::{ITEMS_MAX, paths};
use crate::cluster::object::{ListedName, Stamp};

/// Asks for the bytes of an object: [`Lend`], answered by [`Lending`].
pub const LEND: Channel = Channel(FIRST_FREE_CHANNEL.0 + 5);
/// Gives bytes back: [`Release`], not answered.
pub const RELEASE: Channel = Channel(FIRST_FREE_CHANNEL.0 + 6);
/// Asks for names of a directory: [`List`], answered by [`Listed`].
pub const LIST: Channel = Channel(FIRST_FREE_CHANNEL.0 + 7);

/// Longest object that is sent in an answer: the longest that is packed, as those have no region to lend.
pub const INLINE_MAX: usize = 1 << 20;
/// Most names in one page of a listing.
pub const LISTED_MAX: usize = 4096;

/// Asks for the bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lend {
    /// Name.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Which version.
    pub stamp: Stamp,
    /// How long the reader needs them at most, in milliseconds.
    pub for_ms: u32,
}

/// What becomes of a [`Lend`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lending {
    /// It is not held here any more.
    NotHeld,
    /// The bytes.
    Inline {
        /// All of them.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Their xxh3.
        checksum: u64,
    },
    /// Where they can be read.
    Region {
        /// Names the loan.
        loan: u64,
        /// How many.
        length: u64,
        /// Their xxh3.
        checksum: u64,
        /// The region, as the engine describes it.
        #[serde(with = "serde_bytes")]
        region: Vec<u8>,
    },
}

/// Gives back what was lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The loans.
    pub loans: Vec<u64>,
}

/// Asks for names of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Its path.
    #[serde(with = "serde_bytes")]
    pub directory: Vec<u8>,
    /// Cookies beyond this one.
    pub after: u64,
    /// How many at most.
    pub max: u32,
}

/// Names of a directory, in the order of cookies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The names.
    pub names: Vec<ListedName>,
}

messages! {
    Lend(lend): paths("Lend", std::iter::once(lend.path.as_slice()));
    Lending(lending): match lending {
        Lending::Inline { bytes, .. } => at_most("Lending", "bytes", bytes.len(), INLINE_MAX),
        _ => Ok(()),
    };
    Release(release): at_most("Release", "loans", release.loans.len(), ITEMS_MAX);
    List(list): paths("List", std::iter::once(list.directory.as_slice()));
    Listed(listed): at_most("Listed", "names", listed.names.len(), LISTED_MAX);
}
