//! What members send each other about keys: a version byte and a postcard value each, over the engine's messages.
//!
//! A member speaks this version and the one before. Towards a member of that one what is newer is left out ([`older`]); what
//! changes in a message, or comes as a new kind, needs a new version, unless the one of this build was in no release.
//! Bytes and names are written and read at once, not one byte after the other, which is the same to the other end.
//! Bytes from outside are parsed with errors; lengths are bounded by the frame that carries them, and lists by
//! [`ITEMS_MAX`].

use serde::{Deserialize, Serialize};
use tidefs_engine::engine::FIRST_FREE_CHANNEL;
use tidefs_engine::link::Channel;
use tidefs_engine::types::MemberId;

use crate::cluster::object::{Copy, Facts, Medium, Stamp};

#[macro_use]
mod message;
mod contents;
pub mod older;
mod placing;

pub use contents::{INLINE_MAX, LEND, LIST, LISTED_MAX, Lend, Lending, List, Listed, RELEASE, Release};
use message::at_most;
pub use message::{Message, WireError};
pub use placing::{AGREED, Agreed, DRAIN, Drain, DrainOrder, DrainPhase, DrainReport, KEEP, Keep, Kept};

/// Asks for names: [`Find`], answered by [`Answers`].
pub const FIND: Channel = FIRST_FREE_CHANNEL;
/// Publishes, removes, notes and announces: [`Changes`], answered by [`Results`].
pub const CHANGE: Channel = Channel(FIRST_FREE_CHANNEL.0 + 1);
/// What the other owner of a shard has to know: [`Replicate`], answered by [`Done`].
pub const REPLICATE: Channel = Channel(FIRST_FREE_CHANNEL.0 + 2);
/// What was answered and is not true any more: [`Revoke`], answered by [`Done`] when nobody finds it any more.
pub const REVOKE: Channel = Channel(FIRST_FREE_CHANNEL.0 + 3);
/// Asks for all that the other owner changed alone: [`Done`], answered by [`Done`] when it was replicated.
pub const CATCH_UP: Channel = Channel(FIRST_FREE_CHANNEL.0 + 4);
/// The sender leaves: [`Done`], not answered.
pub const FAREWELL: Channel = Channel(FIRST_FREE_CHANNEL.0 + 8);

/// Version of all messages of this module, as this build sends them.
pub const VERSION: u8 = 2;
/// The oldest version that this build speaks too.
pub const OLDEST: u8 = VERSION - 1;
/// Most items in one message.
pub const ITEMS_MAX: usize = 8192;
/// Bytes of paths after which a message is sent and another one begun.
pub const MESSAGE_BYTES: usize = 512 << 10;
/// Longest path.
pub const PATH_MAX: usize = 4096;

/// Whether members tell each other of `path` at all. A message with a longer one would be refused, with all that is told in it:
/// what stands there is of its host alone.
#[must_use]
pub fn is_told_of(path: &[u8]) -> bool {
    path.len() <= PATH_MAX
}

/// Names that are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Find {
    /// The view under which the receiver was chosen; [`Self::UNWATCHED`] from who remembers nothing of the answers.
    pub view: u64,
    /// The names.
    #[serde(with = "message::names")]
    pub paths: Vec<Vec<u8>>,
}

impl Find {
    /// In place of the view: nobody takes note of who asked. No view that names somebody to ask has this number, and members
    /// that do not know what it means take note in vain.
    pub const UNWATCHED: u64 = 0;
}

/// What is known of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answered {
    /// This member does not serve its shard.
    Moved,
    /// Nothing, but this member has not been told of everything yet.
    Incomplete,
    /// No member holds it.
    Absent {
        /// Whether the asker is told when it appears.
        is_watched: bool,
    },
    /// It stands.
    Present {
        /// Which version.
        stamp: Stamp,
        /// What it is.
        facts: Facts,
        /// Who holds it.
        copies: Vec<Copy>,
    },
}

/// One answer for each name of a [`Find`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// The view of who answers.
    pub view: u64,
    /// In the order of the names.
    pub answers: Vec<Answered>,
}

/// Something that a member does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It sealed a version, or made a directory.
    Publish {
        /// Grows with each publish of this start of the member.
        number: u64,
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Stamp that it wants.
        proposed: Stamp,
        /// What it is.
        facts: Facts,
    },
    /// It removed the name.
    Remove {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// The time of that, by its clock.
        at: Stamp,
    },
    /// It has a copy now, or has it elsewhere.
    Hold {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Which version.
        stamp: Stamp,
        /// Where.
        medium: Medium,
    },
    /// It has no copy any more.
    LetGo {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Of which version.
        stamp: Stamp,
    },
    /// It holds this: told because the receiver serves the shard now.
    Announce {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Which version.
        stamp: Stamp,
        /// What it is.
        facts: Facts,
        /// Where.
        medium: Medium,
        /// How long ago it was last certain to have heard of every removal, in milliseconds; the largest number when it
        /// was just started.
        contact_age_ms: u64,
    },
    /// It has announced all that it holds of the receiver's shards in this view.
    Announced {
        /// The view's number.
        view: u64,
    },
    /// It removed the name a while ago, when nobody was there to decide it, or gave what stood there another name, or asks for a removal
    /// once more: what came later stays. (Since version 2; before, as [`Self::Remove`].)
    RemoveThrough {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// The last version that it removed.
        through: Stamp,
    },
}

/// Changes, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The view under which the receiver was chosen.
    pub view: u64,
    /// How long the sender waits, in milliseconds.
    pub wait_ms: u32,
    /// What it does.
    pub changes: Vec<Change>,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is so, and everyone who had to know does.
    Done {
        /// The version, where there is one.
        stamp: Stamp,
    },
    /// It is so, but not everyone who had to know has answered.
    Late {
        /// The version, where there is one.
        stamp: Stamp,
    },
    /// This member does not serve the shard, or may not yet.
    Moved,
    /// What was announced is not valid any more, through this version.
    Refused {
        /// Through which version.
        through: Stamp,
    },
}

/// One outcome for each change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// The view of who answers.
    pub view: u64,
    /// In the order of the changes.
    pub outcomes: Vec<Outcome>,
}

/// What an owner of a shard knows of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Known {
    /// No copy of this version, or an earlier one, is left.
    Gone {
        /// Through which version.
        stamp: Stamp,
    },
    /// It was removed.
    Removed {
        /// Through which version.
        stamp: Stamp,
        /// How long ago, in milliseconds.
        age_ms: u64,
    },
    /// It stands.
    Present {
        /// Which version.
        stamp: Stamp,
        /// What it is.
        facts: Facts,
        /// Who holds it.
        copies: Vec<Copy>,
    },
}

/// What another owner of shards has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicate {
    /// The view of the sender.
    pub view: u64,
    /// Whether the sender decides the order of these keys: what it says counts then. Else the later version does.
    pub is_decided: bool,
    /// By key.
    pub keys: Vec<(u128, Known)>,
    /// Shards of which the receiver knows all that the sender does, with this.
    pub complete: Vec<u16>,
    /// Age in milliseconds of the youngest removal that the sender has forgotten, if there is one.
    pub horizon_age_ms: Option<u64>,
    /// Members that the sender has lost, and how long ago, in milliseconds.
    pub away_ms: Vec<(MemberId, u64)>,
}

/// Something that was answered, or is held, and is not true any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Revocation {
    /// The name stands for something later now, or for nothing.
    Withdraw {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Versions through this one are not valid.
        through: Stamp,
        /// The last publish of the receiver that was put in order before.
        seen: u64,
    },
    /// The name stands for something.
    Appeared {
        /// Name.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Another member answers for these shards: nothing about them may be remembered before this view.
    Forget {
        /// Numbers of the shards.
        shards: Vec<u16>,
        /// From this view on it may.
        view: u64,
    },
    /// What the receiver holds of the sender's shards is to be announced again.
    AnnounceAgain,
    /// Only copies that leave first are left of these: the receiver's is the one to rely on from now on.
    Inherit {
        /// The keys, as hashes: the sender does not know their names.
        keys: Vec<u128>,
    },
}

/// Revocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// What is revoked.
    pub items: Vec<Revocation>,
}

/// It is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

fn paths<'a>(what: &'static str, mut paths: impl Iterator<Item = &'a [u8]>) -> Result<(), WireError> {
    paths.try_for_each(|path| at_most(what, "bytes in a path", path.len(), PATH_MAX))
}

impl Change {
    /// The name that it is about, if it is about one.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            Self::Publish { path, .. }
            | Self::Remove { path, .. }
            | Self::RemoveThrough { path, .. }
            | Self::Hold { path, .. }
            | Self::LetGo { path, .. }
            | Self::Announce { path, .. } => Some(path),
            Self::Announced { .. } => None,
        }
    }
}

impl Revocation {
    /// The name that it is about, if it is about one.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            Self::Withdraw { path, .. } | Self::Appeared { path } => Some(path),
            Self::Forget { .. } | Self::AnnounceAgain | Self::Inherit { .. } => None,
        }
    }
}

messages! {
    Find(find): at_most("Find", "names", find.paths.len(), ITEMS_MAX)
        .and_then(|()| paths("Find", find.paths.iter().map(Vec::as_slice)));
    Answers(answers) older before_2: at_most("Answers", "answers", answers.answers.len(), ITEMS_MAX);
    Changes(changes) older before_2: at_most("Changes", "changes", changes.changes.len(), ITEMS_MAX)
        .and_then(|()| paths("Changes", changes.changes.iter().filter_map(Change::path)));
    Results(results): at_most("Results", "outcomes", results.outcomes.len(), ITEMS_MAX);
    Replicate(replicate) older before_2: at_most("Replicate", "keys", replicate.keys.len(), ITEMS_MAX)
        .and_then(|()| at_most("Replicate", "members", replicate.away_ms.len(), ITEMS_MAX));
    Revoke(revoke) older before_2: at_most("Revoke", "items", revoke.items.len(), ITEMS_MAX)
        .and_then(|()| revoke.items.iter().try_for_each(|item| match item {
            Revocation::Inherit { keys } => at_most("Revoke", "keys", keys.len(), ITEMS_MAX),
            _ => Ok(()),
        }))
        .and_then(|()| paths("Revoke", revoke.items.iter().filter_map(Revocation::path)));
    Done(_done): Ok(());
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
