//! What members of the version before are sent: the same without what is newer. Nothing of this runs between members of
//! one version.
//!
//! Version 1 has no soft copies (they count as any other), wants each object on one member, and has no [`Keep`], no
//! [`Drain`] and no [`Agreed`].

use tidefs_engine::link::Channel;

use super::{
    AGREED, Agreed, Answered, Answers, CATCH_UP, CHANGE, Change, Changes, DRAIN, Done, Drain, DrainReport,
    FAREWELL, FIND, Find, KEEP, Keep, Kept, Known, LEND, LIST, Lend, Lending, List, Listed, Message, RELEASE,
    REPLICATE, REVOKE, Release, Replicate, Results, Revocation, Revoke, VERSION, WireError,
};
use crate::cluster::object::{Copy, Facts, Medium};

fn rewrite<M: Message>(body: Vec<u8>, version: u8) -> Result<Vec<u8>, WireError> {
    M::decode(&body)?.encode_for(version)
}

/// A request or notification of this build, as a member reads it that speaks `version`.
///
/// # Errors
/// [`WireError::TooNew`] when that has no such message; [`WireError`] when `body` is none.
pub fn request(channel: Channel, body: Vec<u8>, version: u8) -> Result<Vec<u8>, WireError> {
    if version == VERSION {
        return Ok(body);
    }
    match channel {
        FIND => rewrite::<Find>(body, version),
        CHANGE => rewrite::<Changes>(body, version),
        REPLICATE => rewrite::<Replicate>(body, version),
        REVOKE => rewrite::<Revoke>(body, version),
        CATCH_UP | FAREWELL => rewrite::<Done>(body, version),
        LEND => rewrite::<Lend>(body, version),
        RELEASE => rewrite::<Release>(body, version),
        LIST => rewrite::<List>(body, version),
        KEEP => rewrite::<Keep>(body, version),
        DRAIN => rewrite::<Drain>(body, version),
        AGREED => rewrite::<Agreed>(body, version),
        _ => Err(WireError::TooNew { what: "message", since: VERSION, version }),
    }
}

/// An answer of this build, as a member reads it that asked in `version`.
///
/// # Errors
/// As [`request`].
pub fn answer(channel: Channel, body: Vec<u8>, version: u8) -> Result<Vec<u8>, WireError> {
    if version == VERSION {
        return Ok(body);
    }
    match channel {
        FIND => rewrite::<Answers>(body, version),
        CHANGE => rewrite::<Results>(body, version),
        REPLICATE | REVOKE | CATCH_UP | AGREED => rewrite::<Done>(body, version),
        LEND => rewrite::<Lending>(body, version),
        LIST => rewrite::<Listed>(body, version),
        KEEP => rewrite::<Kept>(body, version),
        DRAIN => rewrite::<DrainReport>(body, version),
        _ => Err(WireError::TooNew { what: "message", since: VERSION, version }),
    }
}

fn wanted_once(facts: &mut Facts) {
    if let Facts::File(file) = facts {
        file.replicas = 1;
    }
}

fn as_any_other(medium: &mut Medium) {
    if !medium.is_hard() {
        *medium = Medium::Memory;
    }
}

fn all_as_any_other(copies: &mut [Copy]) {
    copies.iter_mut().for_each(|copy| as_any_other(&mut copy.medium));
}

impl Answers {
    pub(super) fn before_2(mut self) -> Self {
        for answered in &mut self.answers {
            if let Answered::Present { facts, copies, .. } = answered {
                wanted_once(facts);
                all_as_any_other(copies);
            }
        }
        self
    }
}

impl Changes {
    pub(super) fn before_2(mut self) -> Self {
        for change in &mut self.changes {
            match change {
                Change::Publish { facts, .. } => wanted_once(facts),
                Change::Hold { medium, .. } => as_any_other(medium),
                Change::Announce { facts, medium, .. } => {
                    wanted_once(facts);
                    as_any_other(medium);
                }
                Change::RemoveThrough { path, through } => {
                    *change = Change::Remove { path: std::mem::take(path), at: *through };
                }
                Change::Remove { .. } | Change::LetGo { .. } | Change::Announced { .. } => {}
            }
        }
        self
    }
}

impl Replicate {
    pub(super) fn before_2(mut self) -> Self {
        for (_, known) in &mut self.keys {
            if let Known::Present { facts, copies, .. } = known {
                wanted_once(facts);
                all_as_any_other(copies);
            }
        }
        self
    }
}

impl Revoke {
    pub(super) fn before_2(mut self) -> Self {
        self.items.retain(|item| !matches!(item, Revocation::Inherit { .. }));
        self
    }
}
