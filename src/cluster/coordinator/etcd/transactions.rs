//! What is done in etcd at one stroke, or not at all: a start is numbered, old ones are forgotten, a record changed or removed, the
//! id of the cluster drawn.
//!
//! Invariants
//! - What was read is written over only while nobody else has changed it; else it is read again.
//! - Each may be done twice without harm.
//! - No start has a larger number than etcd had changes when it was noted.

use std::collections::BTreeSet;

use etcd_client::{Client, Compare, CompareOp, GetOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse};
use tidefs_engine::types::Incarnation;

use super::Connected;
use super::keys::Keys;
use crate::cluster::coordinator::{Made, NamespaceChange, NamespaceRecord, Start};
use crate::cluster::member::ClusterId;

/// How many starts are forgotten at once: etcd does 128 things at one stroke.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Numbers a start, and notes that under `key`: it comes after the last change of etcd, and after the start that is known.
pub(super) async fn open_start(mut connected: Connected, key: String) -> Result<Start, etcd_client::Error> {
    loop {
        let found = connected.client.get(key.as_str(), None).await?;
        let changes = found.header().map_or(0, |header| header.revision());
        let latest = found.kvs().first();
        // What is not a number was not written by us.
        let noted: u64 = latest.and_then(|pair| pair.value_str().ok()?.parse().ok()).unwrap_or(0);
        // Each start was a change of etcd: none had a larger number than there were changes, also of those that are forgotten.
        let next = noted.max(u64::try_from(changes).unwrap_or(0)).saturating_add(1);
        let revision = latest.map_or(0, |pair| pair.mod_revision());
        let is_unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
        let put = TxnOp::put(key.as_str(), next.to_string(), None);
        if connected.client.txn(Txn::new().when([is_unchanged]).and_then([put])).await?.succeeded() {
            return Ok(Start { cluster: connected.cluster, incarnation: Incarnation(next) });
        }
    }
}

/// Forgets some starts below `starts`, the oldest first, where there are more than `max` beside those of members that are
/// `registered`, whose keys these are.
pub(super) async fn forget_starts(
    mut connected: Connected,
    starts: String,
    registered: BTreeSet<Vec<u8>>,
    max: usize,
) -> Result<(), etcd_client::Error> {
    let all = GetOptions::new().with_prefix();
    let counted = connected.client.get(starts.as_str(), Some(all.clone().with_count_only())).await?;
    let count = usize::try_from(counted.count()).unwrap_or(0);
    let forgotten = count.saturating_sub(registered.len() + max).min(FORGOTTEN_AT_ONCE);
    if forgotten == 0 {
        return Ok(());
    }
    let looked_at = i64::try_from(registered.len() + forgotten).unwrap_or(i64::MAX);
    let oldest = all.with_keys_only().with_sort(SortTarget::Mod, SortOrder::Ascend).with_limit(looked_at);
    let found = connected.client.get(starts, Some(oldest)).await?;
    let gone = found.kvs().iter().filter(|pair| !registered.contains(pair.key())).take(forgotten);
    let (are_unchanged, forget): (Vec<Compare>, Vec<TxnOp>) = gone
        .map(|pair| {
            let is_unchanged = Compare::mod_revision(pair.key(), CompareOp::Equal, pair.mod_revision());
            (is_unchanged, TxnOp::delete(pair.key(), None))
        })
        .unzip();
    // Where one of them has started meanwhile none is forgotten: the next start does that.
    connected.client.txn(Txn::new().when(are_unchanged).and_then(forget)).await?;
    Ok(())
}

/// Changes the record under `key`, as it is when nobody else changes it meanwhile. Returns the revision of its last change.
pub(super) async fn change_record(
    mut connected: Connected,
    key: String,
    change: NamespaceChange,
) -> Result<u64, etcd_client::Error> {
    loop {
        let found = connected.client.get(key.as_str(), None).await?;
        let found = found.kvs().first();
        // What is no record was not written by us, and is written over.
        let before = found.and_then(|pair| serde_json::from_slice::<NamespaceRecord>(pair.value()).ok());
        let after = change.applied_to(before.as_ref());
        let revision = found.map_or(0, |pair| pair.mod_revision());
        if before.as_ref() == Some(&after) {
            return Ok(u64::try_from(revision).unwrap_or(0));
        }
        let value =
            serde_json::to_vec(&after).map_err(|error| etcd_client::Error::InvalidArgs(error.to_string()))?;
        let is_unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
        let put = TxnOp::put(key.as_str(), value, None);
        let outcome = connected.client.txn(Txn::new().when([is_unchanged]).and_then([put])).await?;
        if outcome.succeeded() {
            let revision = outcome.header().map_or(0, |header| header.revision());
            return Ok(u64::try_from(revision).unwrap_or(0));
        }
    }
}

/// Which record is under `key`.
pub(super) async fn find_record(mut connected: Connected, key: String) -> Result<Made, etcd_client::Error> {
    let found = connected.client.get(key.as_str(), None).await?;
    let created = found.kvs().first().and_then(|pair| u64::try_from(pair.create_revision()).ok());
    Ok(created.map_or(Made::NOTHING, Made))
}

/// Removes the record under `key`, if it is the one that was `made` so, and notes its name under `removed`. Returns the revision
/// with which it is so: where there is no such record, that of the last removal of any, as it may be this one, asked for once more.
pub(super) async fn remove_record(
    mut connected: Connected,
    key: String,
    (removed, name): (String, &str),
    made: Made,
) -> Result<u64, etcd_client::Error> {
    let meant = match made {
        Made::ANY => (CompareOp::Greater, 0),
        // etcd does not count so far that it would not fit.
        Made(revision) => (CompareOp::Equal, i64::try_from(revision).unwrap_or(i64::MAX)),
    };
    let [is_there, is_meant] = [(CompareOp::Greater, 0), meant]
        .map(|(compare, revision)| Compare::create_revision(key.as_str(), compare, revision));
    let name =
        serde_json::to_vec(name).map_err(|error| etcd_client::Error::InvalidArgs(error.to_string()))?;
    let remove = [TxnOp::delete(key.as_str(), None), TxnOp::put(removed.as_str(), name, None)];
    let look = [TxnOp::get(removed.as_str(), None)];
    let outcome =
        connected.client.txn(Txn::new().when([is_there, is_meant]).and_then(remove).or_else(look)).await?;
    let revision = if outcome.succeeded() {
        outcome.header().map_or(0, |header| header.revision())
    } else {
        let last = outcome.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(found) => Some(found.kvs().first()?.mod_revision()),
            _ => None,
        });
        last.unwrap_or(0)
    };
    Ok(u64::try_from(revision).unwrap_or(0))
}

/// The id of the cluster: what is there, or `drawn` if nothing is.
pub(super) async fn cluster_id(
    client: &mut Client,
    keys: &Keys,
    drawn: ClusterId,
) -> Result<ClusterId, etcd_client::Error> {
    let key = keys.id();
    let is_new = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
    let put = TxnOp::put(key.as_str(), drawn.to_string(), None);
    let outcome = client
        .txn(Txn::new().when([is_new]).and_then([put]).or_else([TxnOp::get(key.as_str(), None)]))
        .await?;
    if outcome.succeeded() {
        return Ok(drawn);
    }
    let found = outcome.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(found) => {
            let text = found.kvs().first()?.value_str().ok()?;
            u64::from_str_radix(text, 16).ok().map(ClusterId)
        }
        _ => None,
    });
    found.ok_or_else(|| {
        let key = keys.id();
        etcd_client::Error::InvalidArgs(format!(
            "{key} in etcd is not the id of a cluster; remove it or use another name"
        ))
    })
}
