//! What members agree on about directories: who may do what in them, and their policy.
//!
//! Records are few and change rarely. A namespace (a directory at the top) has one from its mkdir on, any other directory from
//! the first change of its owner, mode or policy on.
//!
//! Limits: [`RECORDS_MAX`] directories. Who would have one more is told so: each change goes through all of them, at every member.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Directories that something is agreed on about, at most.
pub const RECORDS_MAX: usize = 65_536;
/// Their bytes, as [`weight`] counts them, where all of them are one message.
pub(super) const RECORDS_BYTES_MAX: usize = 32 << 20;

/// Owner and permission bits of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What is agreed about one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRecord {
    /// Policy by attribute, as `setfattr` spells both: `user.tidefs.quota` and `64GiB`.
    pub policy: BTreeMap<String, String>,
    /// Who may do what; `None` where nobody said so yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
}

/// Which record of a directory it is: the revision with which it was made. Changes leave it; one that is made anew is another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Made(pub u64);

impl Made {
    /// Nothing is agreed on.
    pub const NOTHING: Self = Self(0);
    /// Whichever there is: what a keeper of an earlier build removes, which does not tell records apart.
    pub const ANY: Self = Self(u64::MAX);
}

/// What is to be agreed on about one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceChange {
    /// What counts as agreed on before, where nothing is.
    pub base: NamespaceRecord,
    /// Attributes that are set, or with `None` removed.
    pub policy: BTreeMap<String, Option<String>>,
    /// Permission bits, if they change.
    pub mode: Option<u32>,
    /// Owner, if it changes.
    pub uid: Option<u32>,
    /// Group, if it changes.
    pub gid: Option<u32>,
}

impl NamespaceChange {
    /// The record that follows on `before`.
    #[must_use]
    pub fn applied_to(&self, before: Option<&NamespaceRecord>) -> NamespaceRecord {
        let mut record = before.unwrap_or(&self.base).clone();
        for (attribute, value) in &self.policy {
            match value {
                Some(value) => drop(record.policy.insert(attribute.clone(), value.clone())),
                None => drop(record.policy.remove(attribute)),
            }
        }
        record.access = record.access.or(self.base.access);
        if let Some(access) = &mut record.access {
            access.mode = self.mode.unwrap_or(access.mode);
            access.uid = self.uid.unwrap_or(access.uid);
            access.gid = self.gid.unwrap_or(access.gid);
        }
        record
    }
}

/// All that is agreed on about directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Grows with each change. Zero: nothing was heard yet.
    pub revision: u64,
    /// By [`name_of`] the directory.
    pub records: BTreeMap<String, NamespaceRecord>,
}

/// What is agreed on, as it was heard at one moment.
pub type Namespaces = Arc<Agreement>;

/// Bytes that a record takes where it is told.
pub(super) fn weight(name: &str, record: &NamespaceRecord) -> usize {
    serde_json::to_vec(&(name, record)).map_or(0, |told| told.len())
}

/// What the directory at `path` below the mount is called here: its path, where bytes that are no text, and `%`, are escaped.
/// The mount's root is called by the empty name.
#[must_use]
pub fn name_of(path: &[u8]) -> String {
    let mut name = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        chunk.valid().chars().for_each(|character| match character {
            '%' => name.push_str("%25"),
            _ => name.push(character),
        });
        chunk.invalid().iter().for_each(|byte| name.push_str(&format!("%{byte:02x}")));
    }
    name
}

/// The path of what [`name_of`] called `name`.
#[must_use]
pub fn path_of(name: &str) -> Vec<u8> {
    let mut path = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%');
        let byte = escaped.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        path.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let access = Access { mode: 0o755, uid: 1, gid: 2 };
        let policy = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let base = NamespaceRecord { policy: policy(&[("a", "1"), ("b", "2")]), access: Some(access) };
        let change = NamespaceChange {
            base: base.clone(),
            policy: [("a".to_owned(), None), ("c".to_owned(), Some("3".to_owned()))].into_iter().collect(),
            mode: Some(0o700),
            ..NamespaceChange::default()
        };
        let expected = Access { mode: 0o700, ..access };
        let after = change.applied_to(None);
        assert_eq!((after.policy, after.access), (policy(&[("b", "2"), ("c", "3")]), Some(expected)));
        // What is agreed on already counts, and not what this host takes for it.
        let before = NamespaceRecord { policy: policy(&[("d", "4")]), access: None };
        let after = change.applied_to(Some(&before));
        assert_eq!((after.policy, after.access), (policy(&[("c", "3"), ("d", "4")]), Some(expected)));
    }

    proptest! {
        #[test]
        fn a_name_stands_for_one_path(path in proptest::collection::vec(any::<u8>(), 0..40), text in "[%a-f0-9/é]{0,20}") {
            prop_assert_eq!(path_of(&name_of(&path)), path);
            prop_assert_eq!(path_of(&name_of(text.as_bytes())), text.into_bytes());
        }
    }
}
