//! Messages about where copies are to be, and what is agreed on about directories: asking a member to keep a copy, telling a
//! member to leave with none lost, asking whether a member has applied what was agreed on.

use serde::{Deserialize, Serialize};
use tidefs_engine::engine::FIRST_FREE_CHANNEL;
use tidefs_engine::link::Channel;

use super::PATH_MAX;
use super::message::{Message, WireError, at_most};
use crate::cluster::object::Stamp;

/// Asks for a copy: [`Keep`], answered by [`Kept`].
pub const KEEP: Channel = Channel(FIRST_FREE_CHANNEL.0 + 9);
/// Has the receiver drain itself, or tell how far it is: [`Drain`], answered by [`DrainReport`].
pub const DRAIN: Channel = Channel(FIRST_FREE_CHANNEL.0 + 10);

/// Asks whether a change of what is agreed on is applied: [`Agreed`], answered by [`super::Done`] when it is.
pub const AGREED: Channel = Channel(FIRST_FREE_CHANNEL.0 + 11);

/// What the coordinator holds was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// The revision of the change.
    pub revision: u64,
}

/// The receiver is to fetch an object and to keep it, or to know a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Name.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Which version.
    pub stamp: Stamp,
    /// How many copies there are to be.
    pub replicas: u8,
    /// The head of its chain.
    pub head: u128,
}

/// What became of a [`Keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// It is here.
    Done,
    /// It is not what stands there.
    Gone,
    /// There is no room, too much to do, or no way to its bytes; a moment later there may be.
    NotNow,
    /// This member leaves.
    Leaving,
}

/// What is wanted of a member that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainOrder {
    /// To tell how far it is.
    Ask,
    /// To begin, or to go on with another limit.
    Begin {
        /// How long it may take, in milliseconds.
        within_ms: Option<u64>,
    },
    /// To stop, and stay.
    Stop,
}

/// An order about leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// What is wanted.
    pub order: DrainOrder,
}

/// Where a drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainPhase {
    /// None was asked for.
    #[default]
    Idle,
    /// What only this member holds is being copied.
    Copying,
    /// Nothing is left, and the member has left.
    Left,
    /// The time was over before; it stays a member.
    Late,
    /// Nobody takes what is left; it stays a member.
    Stuck,
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Where it is.
    pub phase: DrainPhase,
    /// Things that were there to be looked at.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, things that are still to be looked at, or were not taken by anybody.
    pub objects_left: u64,
    /// Their bytes.
    pub bytes_left: u64,
}

messages! {
    Agreed(_agreed) since 2: Ok(());
    Keep(keep) since 2: at_most("Keep", "bytes in a path", keep.path.len(), PATH_MAX);
    Kept(_kept) since 2: Ok(());
    Drain(_drain) since 2: Ok(());
    DrainReport(_report) since 2: Ok(());
}
