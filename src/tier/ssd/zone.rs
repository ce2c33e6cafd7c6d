//! A zone of a disk: the station it is at.
//!
//! ```text
//! Absent ─allocate─> Free ─header─> Open ─footer─> Closed ─reclaim─> Free
//!                                     └──── an I/O error ────> Quarantined, until the next start
//! at a start, without a header that is whole: Headless ─removals are read─> Quarantined
//! at a start, not read in time: Quarantined ([`super::late`])
//! taken back, and what was written of it may not have ended: Quarantined, until the next start
//! ```

use super::format::{BLOCK_BYTES, Order, ZONES_START};

/// Station of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneState {
    /// Its blocks are not allocated.
    Absent,
    /// Empty.
    Free,
    /// Takes records.
    Open,
    /// Full, with its footer.
    Closed,
    /// Being emptied; nobody reads it any more.
    Reclaiming,
    /// In use at the start, in a life that nobody can tell: its header is lost. It is given up when its removals are read.
    Headless,
    /// Gave an I/O error, or was headless.
    Quarantined,
}

/// Blocks of a footer within its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FooterPlace {
    pub(super) block: u32,
    pub(super) blocks: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Zone {
    pub(super) state: ZoneState,
    /// Of its present life; 0 when that is not known.
    pub(super) sequence: Order,
    pub(super) readers: u32,
    pub(super) footer: Option<FooterPlace>,
}

impl Zone {
    pub(super) const ABSENT: Self = Self { state: ZoneState::Absent, sequence: 0, readers: 0, footer: None };

    /// Whether it has records that a start finds.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(
            self.state,
            ZoneState::Open
                | ZoneState::Closed
                | ZoneState::Reclaiming
                | ZoneState::Headless
                | ZoneState::Quarantined
        )
    }

    /// Whether its records are served.
    pub(super) fn can_be_read(&self) -> bool {
        matches!(self.state, ZoneState::Open | ZoneState::Closed)
    }

    /// Whether it gave an error, and a start may find it all the same.
    pub(super) fn is_given_up(&self) -> bool {
        self.state == ZoneState::Quarantined && self.sequence != Order::MAX
    }

    /// It lies beyond the capacity: one without records is never used.
    pub(super) fn close_if_empty(&mut self) {
        if matches!(self.state, ZoneState::Absent | ZoneState::Free) {
            (self.state, self.sequence) = (ZoneState::Quarantined, Order::MAX);
        }
    }

    /// It was emptied, and its header is void. One that gave an error meanwhile, or may be written yet, stays out of use.
    pub(super) fn free(&mut self, may_be_written: bool) {
        if self.state == ZoneState::Reclaiming && may_be_written {
            (self.state, self.sequence) = (ZoneState::Quarantined, Order::MAX);
        } else if self.state == ZoneState::Reclaiming {
            self.state = ZoneState::Free;
        }
    }
}

/// Where a zone starts on its disk.
pub(super) fn zone_offset(zone: u32, zone_blocks: u32) -> u64 {
    ZONES_START + u64::from(zone) * u64::from(zone_blocks) * BLOCK_BYTES
}
