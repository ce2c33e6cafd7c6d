//! The fast path's ioctls on `<mount>/.tidefs/control`: what a client and the daemon put into them.
//!
//! An open control file is a session. Each ioctl carries one batch: a [`Header`], then one record for each entry, and
//! comes back with a header and one result for each entry, in the order asked. Nothing is a pointer, every integer is
//! little-endian, and what is fixed in length has its natural alignment when the payload has that of 8 bytes.
//!
//! ```text
//! request   Header │ record │ record │ …          records: records.rs, names in them have any length
//! reply     Header │ result │ result │ …          results: layout.rs, all of one length
//! ```
//! Compatibility
//! - A request says which version it speaks, in its header. The daemon refuses one that it does not speak with EINVAL, and
//!   so it does a flag that it does not know: what is asked for is done or refused, never ignored.
//! - A version never changes; its bytes are pinned by the tests of this folder.
//! - Readers of results take a status that they do not know for [`Status::AskByFile`].
//!
//! Limits: the kernel hands on at most 2^14 - 1 bytes of a restricted ioctl, so a payload has at most [`PAYLOAD_MAX`]. A
//! larger batch lies in an area that the client owns ([`Flags::IN_AREA`]), with at most [`AREA_BATCH_MAX`] entries.

mod command;
mod encode;
mod layout;
mod parse;
mod records;
mod status;

pub use self::command::{
    Command, FLAG_HERE, FLAG_IN_AREA, FLAG_PROBE, FLAG_RETIRED, FLAG_USED, Flags, request_number,
};
pub use self::encode::{Encoder, results, results_bytes};
pub use self::layout::{
    AREA_CALL_BYTES, AreaCall, AreaGrant, ENTRY_LASTS, Entry, HEADER_BYTES, Header, Outcome, VersionReply,
};
pub use self::parse::{Body, Refusal, Request};
pub use self::records::{
    Create, Follow, Get, Name, PIN_HARD, PIN_NONE, PIN_SOFT, Pin, Put, Range, Ready, Record, Records, Seal,
};
pub use self::status::{
    FEATURE_CLOCK, FEATURE_CREATE, FEATURE_FOLLOW, FEATURE_HERE, FEATURE_MAPPING, FEATURE_PROBE, Features,
    Status,
};

/// The version of these structures.
pub const ABI_VERSION: u16 = 1;

/// Most bytes of one ioctl: 2^14 - 1 is the most that a number of an ioctl can say, rounded down to 8.
pub const PAYLOAD_MAX: usize = 16_376;

/// Most entries whose results fit into one ioctl.
pub const BATCH_MAX: usize = (PAYLOAD_MAX - HEADER_BYTES) / size_of::<Entry>();

/// Most entries of a batch in an area: the part of a reference that counts within its batch has 16 bits.
pub const AREA_BATCH_MAX: usize = 1 << 16;

/// Most bytes that one request or one reply in an area may have.
pub const AREA_REQUEST_MAX: usize = 16 << 20;

/// Bytes of the segment with the names clock.
pub const CLOCK_BYTES: usize = 4096;

/// Where the names clock counts, a little-endian U64: it changes before anybody who takes away, replaces or forbids something
/// that a session holds a reference to, by the name under which it was found, is told that it is done.
pub const CLOCK_CHANGES: usize = 0;

/// Where the names clock beats, a little-endian U64: it changes at least once in [`CLOCK_BEAT_MS`] while the daemon lives.
pub const CLOCK_BEAT: usize = 8;

/// Milliseconds after which a names clock that has not beaten says nothing any more.
pub const CLOCK_BEAT_MS: u64 = 1000;

/// Name of the control file below `.tidefs`.
pub const CONTROL_FILE: &str = "control";

/// Name of the directory of segments below `.tidefs`. A segment's name there is its number in decimal.
pub const SEGMENT_DIRECTORY: &str = "segments";

const _: () = {
    assert!(PAYLOAD_MAX < 1 << 14 && PAYLOAD_MAX.is_multiple_of(8));
    assert!(BATCH_MAX == 511, "the documentation says so");
};

#[cfg(test)]
mod tests;
