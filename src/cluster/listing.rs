//! Names of a directory on all members, in bounded memory: each gives its next names, and the first of all of them count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tidefs_engine::types::MemberId;

use super::catalog::wire::{LIST, LISTED_MAX, List, Listed, Message, is_told_of};
use super::core::Core;
use super::object::{ListedName, Listing};
use super::peers::Peer;

/// The first `max` of the names that members listed, in the order of cookies, each once.
///
/// Each list has at most `max` names, so the first `max` of all are among them.
#[must_use]
fn merge(lists: impl IntoIterator<Item = Vec<ListedName>>, max: usize) -> Vec<ListedName> {
    let mut merged: BTreeMap<(u64, Vec<u8>), bool> = BTreeMap::new();
    for ListedName { cookie, name, is_directory } in lists.into_iter().flatten() {
        // A name that is a directory anywhere is one.
        *merged.entry((cookie, name)).or_default() |= is_directory;
        if merged.len() > max {
            merged.pop_last();
        }
    }
    merged
        .into_iter()
        .map(|((cookie, name), is_directory)| ListedName { cookie, name, is_directory })
        .collect()
}

impl Core {
    pub(super) fn answer_list(&self, list: &List) -> Listed {
        let max = usize::try_from(list.max).unwrap_or(LISTED_MAX).min(LISTED_MAX);
        Listed { names: self.list_here(&list.directory, list.after, max) }
    }

    fn list_here(&self, directory: &[u8], after: u64, max: usize) -> Vec<ListedName> {
        let mut names =
            self.holder.upgrade().map_or_else(Vec::new, |holder| holder.list(directory, after, max));
        names.truncate(max);
        names
    }

    pub(super) async fn list(
        self: &Arc<Self>,
        directory: Vec<u8>,
        after: u64,
        max: usize,
        deadline: Instant,
    ) -> Listing {
        let max = max.clamp(1, LISTED_MAX);
        let here = self.list_here(&directory, after, max);
        if self.seen().is_alone || !is_told_of(&directory) {
            return Listing { names: here, unanswered: Vec::new() };
        }
        // Also those that the coordinator has lost, while what they hold is not forgotten.
        let counts = |peer: &Peer| peer.is_registered || !peer.is_forgotten();
        let others: Vec<MemberId> =
            self.peers.lock().iter().filter(|(_, peer)| counts(peer)).map(|(&member, _)| member).collect();
        let (lost, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|&member| self.is_suspect(member));
        if self.has_left() {
            // What it finds is its own, and nobody tells it what became of the rest.
            return Listing { names: here, unanswered: lost.into_iter().chain(others).collect() };
        }
        let body = List { directory, after, max: u32::try_from(max).unwrap_or(u32::MAX) }.encode();
        let mut asked = tokio::task::JoinSet::new();
        for &member in &others {
            let (core, body) = (Arc::clone(self), body.clone());
            asked.spawn_on(
                async move {
                    let answer = core.call(member, LIST, body, deadline).await.ok()?;
                    Some((member, Listed::decode(&answer).ok()?.names))
                },
                &self.runtime,
            );
        }
        let mut lists = BTreeMap::from([(self.me.member, here)]);
        while let Some(ended) = asked.join_next().await {
            lists.extend(ended.ok().flatten());
        }
        let unanswered =
            others.into_iter().filter(|member| !lists.contains_key(member)).chain(lost).collect();
        Listing { names: merge(lists.into_values(), max), unanswered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_of_many_members_are_the_sorted_union(
            held in proptest::collection::vec(proptest::collection::btree_set(0_u64..60, 0..40), 1..5),
            max in 1_usize..12,
        ) {
            let name = |cookie: u64| ListedName { cookie, name: vec![7], is_directory: cookie.is_multiple_of(2) };
            let mut all = Vec::new();
            // Cookie 0 is before the first name, as `after` says it.
            let mut after = 0;
            loop {
                let page = |names: &std::collections::BTreeSet<u64>| {
                    names.range(after + 1..).take(max).map(|&cookie| name(cookie)).collect::<Vec<_>>()
                };
                let merged = merge(held.iter().map(page), max);
                prop_assert!(merged.len() <= max);
                let Some(last) = merged.last() else { break };
                after = last.cookie;
                all.extend(merged);
            }
            let union: std::collections::BTreeSet<u64> =
                held.iter().flatten().copied().filter(|&cookie| cookie > 0).collect();
            prop_assert_eq!(all, union.into_iter().map(name).collect::<Vec<_>>());
        }
    }
}
