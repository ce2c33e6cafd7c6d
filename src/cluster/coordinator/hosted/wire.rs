//! What followers ask the keeper, and what it answers and tells: JSON in messages of a link.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidefs_engine::link::Channel;
use tidefs_engine::types::{Incarnation, MemberId, PeerId};

use crate::cluster::coordinator::{Agreement, Made, NamespaceChange, NamespaceRecord};
use crate::cluster::member::{ClusterId, Member, View};

/// All messages are on it.
pub(super) const CHANNEL: Channel = Channel(1);

/// What the keeper is called on its links, whichever daemon it is: followers know its address only.
pub(super) const KEEPER: PeerId = PeerId { member: MemberId(0), incarnation: Incarnation(1) };

/// What a follower asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// A new start of a member.
    Begin { member: MemberId },
    /// To be registered, in the cluster that the start was of.
    Register { cluster: ClusterId, member: Box<Member> },
    /// To be registered no more.
    Leave,
    /// A change of what is agreed on about a directory.
    Change { name: String, change: NamespaceChange },
    /// Which record there is of a directory. An older keeper refuses it, as any that it does not know.
    Look { name: String },
    /// Nothing is to be agreed on about a directory any more.
    Remove {
        name: String,
        /// Unless its record is another one. An older follower does not say, and an older keeper does not listen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made: Option<Made>,
    },
}

/// What the keeper answers. What it does not do for another reason is a refusal of the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answered {
    /// A start was opened.
    Started { cluster: ClusterId, incarnation: Incarnation },
    /// It is so.
    Done,
    /// A later start of the member was opened.
    Superseded { latest: Incarnation },
    /// It is so from this revision on.
    Agreed { revision: u64 },
    /// Something is agreed on about as many directories as may be.
    TooMany,
    /// This is the record that there is. Answered to who looks, as no older follower does.
    Found { made: Made },
}

/// All that is agreed on, told to each follower when it comes and after each change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) cluster: ClusterId,
    /// Number of the view of these members.
    pub(super) view: u64,
    pub(super) members: Vec<Member>,
    /// Revision of these records.
    pub(super) revision: u64,
    pub(super) namespaces: BTreeMap<String, NamespaceRecord>,
    /// What the file of the keeper holds; an older keeper does not say.
    #[serde(default)]
    pub(super) file: FileState,
    /// Whether the keeper tells records apart that are made anew ([`Ask::Look`]); an older one does not say.
    #[serde(default)]
    pub(super) tells_apart: bool,
}

/// The state of the keeper's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// Drawn by each start of a keeper. Zero: nothing is known.
    pub(super) start: u64,
    /// How many changes the file held that this start found.
    pub(super) found: u64,
    /// How many it holds now.
    pub(super) kept: u64,
}

impl FileState {
    /// Whether another start of the keeper found less than was kept before.
    pub(super) fn is_older_than(&self, before: &Self) -> bool {
        let are_known = self.start != 0 && before.start != 0;
        are_known && self.start != before.start && self.found < before.kept
    }
}

impl Told {
    pub(super) fn of(cluster: ClusterId, view: &View, namespaces: &Agreement, file: FileState) -> Self {
        Self {
            file,
            tells_apart: true,
            cluster,
            view: view.number,
            members: view.members().to_vec(),
            revision: namespaces.revision,
            namespaces: namespaces.records.clone(),
        }
    }
}

/// The bytes of a message.
///
/// # Errors
/// In words; none of ours fails.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, String> {
    serde_json::to_vec(message).map_err(|error| error.to_string())
}

/// Reads a message of the other end, which may be any bytes.
///
/// # Errors
/// In words, what is wrong with it.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("not a message of a coordinator: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::member::testing::member;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let change = NamespaceChange { mode: Some(0o700), ..NamespaceChange::default() };
        for ask in [
            Ask::Begin { member: MemberId(u64::MAX) },
            Ask::Register { cluster: ClusterId(7), member: Box::new(member(1, 8)) },
            Ask::Leave,
            Ask::Change { name: "kv".to_owned(), change },
            Ask::Look { name: "kv".to_owned() },
            Ask::Remove { name: "kv".to_owned(), made: Some(Made::ANY) },
        ] {
            assert_eq!(decode::<Ask>(&encode(&ask).unwrap()), Ok(ask));
        }
        let told = Told {
            cluster: ClusterId(u64::MAX),
            view: 3,
            members: vec![member(1, 8)],
            revision: 2,
            namespaces: [("kv".to_owned(), NamespaceRecord::default())].into(),
            file: FileState { start: u64::MAX, found: 3, kept: 4 },
            tells_apart: true,
        };
        assert_eq!(decode::<Told>(&encode(&told).unwrap()), Ok(told.clone()));
        // An older keeper says nothing of its file, nor whether it tells records apart.
        let mut older = serde_json::to_value(&told).unwrap();
        let said = older.as_object_mut().unwrap();
        for field in ["file", "tells_apart"] {
            said.remove(field).unwrap();
        }
        let older = decode::<Told>(&encode(&older).unwrap()).unwrap();
        assert_eq!(older, Told { file: FileState::default(), tells_apart: false, ..told });
    }

    #[test]
    fn a_removal_says_which_record_it_means_and_is_else_as_an_older_follower_asks_for_it() {
        let removal = |made| Ask::Remove { name: "kv".to_owned(), made };
        for (made, text) in
            [(None, r#"{"remove":{"name":"kv"}}"#), (Some(Made(7)), r#"{"remove":{"name":"kv","made":7}}"#)]
        {
            assert_eq!(encode(&removal(made)).unwrap(), text.as_bytes());
            assert_eq!(decode::<Ask>(text.as_bytes()), Ok(removal(made)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Ask>(&body);
            let _ = decode::<Answered>(&body);
            prop_assert!(decode::<Told>(&body).is_err());
        }
    }
}
