//! Names of our keys in etcd.

use tidefs_engine::types::MemberId;

/// What a changed key is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    Member(MemberId),
    Namespace(String),
}

/// The keys of one cluster.
#[derive(Debug)]
pub(super) struct Keys {
    /// Ends in a slash, so that no cluster's name is the beginning of another's.
    prefix: String,
}

impl Keys {
    pub(super) fn of(cluster: &str) -> Self {
        Self { prefix: format!("/tidefs/{cluster}/") }
    }

    /// What all keys of the cluster begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The first key beyond those that are listed. What comes from there on are starts, many of them of hosts that are gone.
    pub(super) fn end(&self) -> String {
        self.starts()
    }

    /// What the keys of all starts begin with.
    pub(super) fn starts(&self) -> String {
        format!("{}starts/", self.prefix)
    }

    pub(super) fn id(&self) -> String {
        format!("{}id", self.prefix)
    }

    pub(super) fn start(&self, member: MemberId) -> String {
        format!("{}{:016x}", self.starts(), member.0)
    }

    pub(super) fn member(&self, member: MemberId) -> String {
        format!("{}members/{:016x}", self.prefix, member.0)
    }

    pub(super) fn namespace(&self, name: &str) -> String {
        format!("{}namespaces/{name}", self.prefix)
    }

    /// Changed with each removal of a directory's record, so that its revision is that of the last one.
    pub(super) fn removed(&self) -> String {
        format!("{}removed", self.prefix)
    }

    /// What `key` is about; `None` for keys that nobody listens to.
    pub(super) fn about(&self, key: &[u8]) -> Option<About> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        if let Some(member) = rest.strip_prefix("members/") {
            return u64::from_str_radix(member, 16).ok().map(|id| About::Member(MemberId(id)));
        }
        rest.strip_prefix("namespaces/").map(|name| About::Namespace(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_gone_by_is_listed_and_no_start_is() {
        let keys = Keys::of("prod");
        let is_listed = |key: String| key.as_str() >= keys.prefix() && key < keys.end();
        assert!(is_listed(keys.member(MemberId(u64::MAX))) && is_listed(keys.namespace("~\u{10ffff}")));
        assert!(!is_listed(keys.start(MemberId(0))) && !is_listed(Keys::of("other").member(MemberId(1))));
    }

    #[test]
    fn a_key_tells_what_it_is_about() {
        let keys = Keys::of("prod");
        let id = MemberId(0xab);
        assert_eq!(keys.about(keys.member(id).as_bytes()), Some(About::Member(id)));
        assert_eq!(keys.about(keys.namespace("kv").as_bytes()), Some(About::Namespace("kv".to_owned())));
        assert_eq!(keys.about(keys.start(id).as_bytes()), None);
        assert_eq!(keys.about(keys.id().as_bytes()), None);
        assert_eq!(keys.about(keys.removed().as_bytes()), None);
        assert_eq!(keys.about(b"/tidefs/prod2/members/ab"), None);
        assert_eq!(keys.about(b"/tidefs/prod/members/nonsense"), None);
        assert_eq!(keys.about(b"\xff\xfe"), None);
    }
}
