//! The task that talks to etcd: lists, watches, keeps the lease alive, and starts over when etcd was away.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, KeyValue, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    Txn, TxnOp, WatchOptions, WatchStream,
};
use tidefs_engine::types::Incarnation;

use super::heard::Heard;
use super::transactions::cluster_id;
use super::{Connected, EtcdSettings, Fulfilled, Shared};
use crate::cluster::coordinator::CoordinatorError;
use crate::cluster::member::{ClusterId, Member};

/// Pause after a session that broke; doubles up to [`LONGEST_PAUSE`] while etcd stays away.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Keys in one answer of etcd, of which gRPC takes no more than 4 MiB: a record is some hundred bytes, and the name of a path of
/// up to 4 KiB three times that.
const PAGE: i64 = 256;

/// Whether users or roles of etcd have changed since it gave out the token of this session, which counts no more: a new one
/// does.
///
/// # Source
/// etcd, `api/v3rpc/rpctypes/error.go`: `ErrGRPCAuthOldRevision`, which has the code of an invalid argument. Only tokens that
/// are JWTs are told that.
pub(super) fn is_token_old(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("revision of auth store is old"))
}

/// Whether etcd answered, and will answer the same again.
pub(super) fn is_refusal(error: &Error) -> bool {
    // Codes of gRPC: invalid argument, permission denied, unauthenticated, failed precondition, unimplemented.
    match error {
        Error::GRpcStatus(_) if is_token_old(error) => false,
        Error::GRpcStatus(status) => matches!(i32::from(status.code()), 3 | 7 | 9 | 12 | 16),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => true,
        _ => false,
    }
}

/// What ends a session.
#[derive(Debug)]
pub(super) enum Broken {
    /// etcd is away, or what it answers is of no use.
    Away(Error),
    /// It is not what this member joined.
    Strange(String),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Away(error)
    }
}

/// Holds one session after the other, until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    let mut heard = Heard::default();
    loop {
        let Err(broken) = hold(&shared, &mut heard, &mut pause).await else { continue };
        shared.client.send_replace(None);
        note_broken(&shared, broken);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn note_broken(shared: &Shared, broken: Broken) {
    let endpoints = &shared.settings.endpoints;
    shared.reachability.send_modify(|reachability| match broken {
        Broken::Away(error) => {
            if reachability.note_away(error.to_string().into()) {
                tracing::warn!(%error, ?endpoints, "etcd is away; reads and writes go on");
            }
        }
        Broken::Strange(reason) => {
            if reachability.note_strange(reason.as_str().into()) {
                tracing::error!(reason, ?endpoints, "etcd is not gone by; what was heard before stands");
            }
        }
    });
}

/// One session: from the connection to whatever breaks it. Never returns `Ok` but to begin anew.
async fn hold(shared: &Shared, heard: &mut Heard, pause: &mut Duration) -> Result<(), Broken> {
    let (mut client, cluster) = connect(shared).await?;
    let mut watching = catch_up(shared, &mut client, heard).await?;
    heard.publish_members(shared);
    heard.publish_namespaces(shared);
    // What is refused is told at once to who asks for it.
    shared.client.send_replace(Some(Connected { client: client.clone(), cluster }));
    let mut lease = Lease::grant(client, shared).await?;
    let mut wishes = shared.wish.subscribe();
    let wish = wishes.borrow_and_update().clone();
    let refused = lease.fulfil(shared, wish).await?;
    // Only now: an etcd that can be read but not written, as one that is full, does nothing that this member needs.
    shared.reachability.send_modify(|reachability| reachability.note_answer(refused.as_ref()));
    *pause = FIRST_PAUSE;
    let mut ticks = tokio::time::interval(shared.settings.lease / 3);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = wishes.changed() => {
                if changed.is_err() {
                    return Ok(()); // nobody is left who could wish
                }
                let wish = wishes.borrow_and_update().clone();
                let refused = lease.fulfil(shared, wish).await?;
                shared.reachability.send_modify(|reachability| reachability.note_answer(refused.as_ref()));
            }
            _ = ticks.tick() => lease.keep(shared.settings.call_timeout).await?,
            heard_of = next_changes(&mut watching) => {
                let wish = wishes.borrow().clone();
                let is_registered = |heard: &Heard| wish.member.as_ref().is_some_and(|member| heard.has(member));
                let was_registered = is_registered(heard);
                heard.apply(shared, &heard_of?);
                if was_registered && !is_registered(heard) {
                    // Somebody else took it out, or the lease of a session before, under which it was put there late.
                    tracing::warn!("this member is not registered in etcd any more, and registers again");
                    let refused = lease.fulfil(shared, wish).await?;
                    shared.reachability.send_modify(|reachability| reachability.note_answer(refused.as_ref()));
                }
            }
        }
    }
}

/// Hears what there is, and of each change from there on. What happened since the session before is heard change by change,
/// where etcd knows them still, so that views have the numbers that they have for those who heard of it at once. An etcd whose
/// changes do not lead from what was heard to what there is has lost some of them, also when it has made others since.
///
/// Limits: it is gone by all the same where it has compacted the changes, or where the last one is of no key of this cluster.
pub(super) async fn catch_up(
    shared: &Shared,
    client: &mut Client,
    heard: &mut Heard,
) -> Result<WatchStream, Broken> {
    let prefix = shared.keys.prefix();
    let listed = list(shared, client).await?;
    let (before, now) = (heard.revision(), listed.revision());
    if now < before {
        return Err(restored(&format!("etcd is at revision {now}, and this member has heard of {before}")));
    }
    let from = |revision: i64| {
        let options = WatchOptions::new().with_prefix().with_progress_notify();
        options.with_start_revision(revision + 1)
    };
    if before > 0 && !heard.is_like(&listed) {
        let mut watching = client.watch(prefix, Some(from(before))).await?;
        let (mut ahead, mut changes) = (heard.clone(), Vec::new());
        let catching_up = async {
            while ahead.revision() < now && !ahead.is_like(&listed) {
                let next = next_changes(&mut watching).await?;
                ahead.take_changes(shared, &next, now);
                changes.push(next);
            }
            Ok::<(), Error>(())
        };
        match tokio::time::timeout(shared.settings.call_timeout, catching_up).await {
            Ok(Ok(())) if ahead.is_like(&listed) => {
                changes.iter().for_each(|next| heard.apply(shared, next));
                return Ok(watching);
            }
            Ok(Ok(())) => {
                let lost =
                    format!("etcd is at revision {now}, and lost changes up to {before} that were heard");
                return Err(restored(&lost));
            }
            Ok(Err(error)) => tracing::info!(%error, "changes of before are not heard one by one"),
            Err(_) => tracing::info!("changes of before are not heard in time"),
        }
    }
    if (1..now).contains(&before) && heard.is_like(&listed) && knows_since(client, shared, before).await? {
        // Who came and left again is heard of as by those who were there.
        return Ok(client.watch(prefix, Some(from(before))).await?);
    }
    heard.replace(listed);
    Ok(client.watch(prefix, Some(from(now))).await?)
}

/// Whether etcd knows all changes since `revision` still.
async fn knows_since(client: &mut Client, shared: &Shared, revision: i64) -> Result<bool, Error> {
    let then = GetOptions::new().with_revision(revision).with_count_only();
    match client.get(shared.keys.id(), Some(then)).await {
        Ok(_) => Ok(true),
        // Code of gRPC: out of range, which is what was compacted.
        Err(Error::GRpcStatus(status)) if i32::from(status.code()) == 11 => Ok(false),
        Err(error) => Err(error),
    }
}

/// etcd is at an earlier state than was heard of, or was.
fn restored(what: &str) -> Broken {
    Broken::Strange(format!(
        "{what}: it was restored from a backup; give it back its latest data, or restore it with `--bump-revision`, or restart \
         the daemons of all members"
    ))
}

/// All that is gone by, at one revision, a page at a time.
async fn list(shared: &Shared, client: &mut Client) -> Result<Heard, Error> {
    let prefix = shared.keys.prefix();
    let page = GetOptions::new().with_range(shared.keys.end()).with_limit(PAGE);
    let mut found = client.get(prefix, Some(page.clone())).await?;
    let mut heard = Heard::at(found.header().map_or(0, |header| header.revision()));
    loop {
        heard.take(shared, found.kvs());
        let Some(last) = found.kvs().last().filter(|_| found.more()) else { return Ok(heard) };
        // The key that comes next after the last one.
        let next = [last.key(), &[0]].concat();
        let page = page.clone().with_revision(heard.revision());
        found = client.get(next, Some(page)).await?;
    }
}

/// Connects to one server that answers, beginning anywhere. One server for a session: a client of several sends each request to
/// any of them, also to one that is down, and the session would break with the first that fails.
async fn connect(shared: &Shared) -> Result<(Client, ClusterId), Broken> {
    let EtcdSettings { endpoints, call_timeout, .. } = &shared.settings;
    let drawn = drawn_id()?;
    let first = usize::try_from(drawn.0 % endpoints.len().max(1) as u64).unwrap_or(0);
    let mut failed = Broken::Away(Error::InvalidArgs("no endpoint of etcd is given".to_owned()));
    for endpoint in endpoints.iter().cycle().skip(first).take(endpoints.len()) {
        let answers = async {
            let mut client = Client::connect([endpoint], Some(shared.settings.options())).await?;
            // Answered by a server that most others are with, and by no other.
            let cluster = match shared.joined.get() {
                Some(&joined) => joined_cluster(&mut client, shared, joined).await?,
                None => cluster_id(&mut client, &shared.keys, drawn).await?,
            };
            Ok::<_, Broken>((client, cluster))
        };
        match tokio::time::timeout(*call_timeout * 2, answers).await {
            Ok(Ok(connected)) => return Ok(connected),
            // The same said by all of them.
            Ok(Err(Broken::Strange(reason))) => return Err(Broken::Strange(reason)),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = Error::Internal(format!("{endpoint} does not answer")).into(),
        }
        tracing::debug!(endpoint, error = ?failed, "a server of etcd does not answer; another one is asked");
    }
    Err(failed)
}

/// The cluster of which etcd knows, if it is the one that this member joined. It is not made here once more.
async fn joined_cluster(
    client: &mut Client,
    shared: &Shared,
    joined: ClusterId,
) -> Result<ClusterId, Broken> {
    let found = client.get(shared.keys.id(), None).await?;
    let found = found.kvs().first().and_then(|pair| u64::from_str_radix(pair.value_str().ok()?, 16).ok());
    let (name, next) = (&shared.settings.cluster, "restart the daemons of all members, which make a new one");
    match found.map(ClusterId) {
        Some(found) if found == joined => Ok(found),
        Some(found) => Err(Broken::Strange(format!(
            "etcd has cluster {found} by the name `{name}`, and this member joined {joined}: it was made anew, or is another \
             etcd; give it back its data, or restart the daemons of all members, which join that one"
        ))),
        None => Err(Broken::Strange(format!(
            "etcd knows nothing of the cluster `{name}` that this member joined: it was emptied, or is another etcd; give it \
             back its data, or {next}"
        ))),
    }
}

/// An id for a cluster that has none yet.
fn drawn_id() -> Result<ClusterId, Error> {
    let drawn = getrandom::u64().map_err(|error| Error::Internal(format!("no random number: {error}")))?;
    Ok(ClusterId(drawn))
}

/// The next changes. The watch is lost when etcd compacted what was not heard yet, or ends the stream.
pub(super) async fn next_changes(watching: &mut WatchStream) -> Result<etcd_client::WatchResponse, Error> {
    match watching.message().await? {
        Some(changes) if changes.canceled() => Err(Error::WatchError(changes.cancel_reason().to_owned())),
        Some(changes) => Ok(changes),
        None => Err(Error::WatchError("the stream of changes ended".to_owned())),
    }
}

/// The lease under which this process is registered.
struct Lease {
    client: Client,
    id: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Lease {
    async fn grant(mut client: Client, shared: &Shared) -> Result<Self, Error> {
        let seconds = i64::try_from(shared.settings.lease.as_secs()).unwrap_or(i64::MAX).max(2);
        let id = client.lease_grant(seconds, None).await?.id();
        let (keeper, answers) = client.lease_keep_alive(id).await?;
        Ok(Self { client, id, keeper, answers })
    }

    /// Prolongs the lease.
    async fn keep(&mut self, timeout: Duration) -> Result<(), Error> {
        self.keeper.keep_alive().await?;
        let answer = tokio::time::timeout(timeout, self.answers.message()).await;
        match answer.map_err(|_| Error::LeaseKeepAliveError("no answer in time".to_owned()))?? {
            Some(answer) if answer.ttl() > 0 => Ok(()),
            _ => Err(Error::LeaseKeepAliveError("the lease ran out".to_owned())),
        }
    }

    /// Does what `wish` says, and notes that it is done. Returns why this member is not registered though it wants to be.
    async fn fulfil(
        &mut self,
        shared: &Shared,
        wish: super::Wish,
    ) -> Result<Option<CoordinatorError>, Error> {
        let refused = match &wish.member {
            Some(member) => self.register(shared, member).await?,
            None => {
                if let Some(gone) = &wish.gone {
                    self.unregister(shared, gone).await?;
                }
                None
            }
        };
        shared.fulfilled.send_replace(Fulfilled { number: wish.number, refused: refused.clone() });
        Ok(refused)
    }

    /// Takes this start of `member` out, under whichever lease it was registered; a later one stays.
    async fn unregister(&mut self, shared: &Shared, member: &Member) -> Result<(), Error> {
        let key = shared.keys.member(member.id);
        let found = self.client.get(key.as_str(), None).await?;
        let is_ours = |pair: &&KeyValue| {
            serde_json::from_slice::<Member>(pair.value())
                .is_ok_and(|found| found.incarnation == member.incarnation)
        };
        if let Some(ours) = found.kvs().first().filter(is_ours) {
            let is_unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, ours.mod_revision());
            let delete = TxnOp::delete(key.as_str(), None);
            self.client.txn(Txn::new().when([is_unchanged]).and_then([delete])).await?;
        }
        Ok(())
    }

    /// Registers `member`, unless a later start of it was opened. Its start is noted again when etcd has forgotten it, as one
    /// does that was restored from a backup.
    async fn register(
        &mut self,
        shared: &Shared,
        member: &Member,
    ) -> Result<Option<CoordinatorError>, Error> {
        let (start, key) = (shared.keys.start(member.id), shared.keys.member(member.id));
        let value = serde_json::to_vec(member).map_err(|error| Error::InvalidArgs(error.to_string()))?;
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(self.id)));
        let is_ours = Compare::value(start.as_str(), CompareOp::Equal, member.incarnation.to_string());
        let mut request = Txn::new().when([is_ours]).and_then([put.clone()]);
        loop {
            if self.client.txn(request).await?.succeeded() {
                return Ok(None);
            }
            let found = self.client.get(start.as_str(), None).await?;
            let found = found.kvs().first();
            let latest = found.and_then(|pair| pair.value_str().ok()?.parse().ok()).unwrap_or(0);
            let (ours, latest) = (member.incarnation, Incarnation(latest));
            if latest > ours {
                return Ok(Some(CoordinatorError::Superseded { member: member.id, ours, latest }));
            }
            tracing::warn!(%ours, %latest, "etcd has forgotten this start, which is noted again");
            let revision = found.map_or(0, |pair| pair.mod_revision());
            let is_unchanged = Compare::mod_revision(start.as_str(), CompareOp::Equal, revision);
            let note = TxnOp::put(start.as_str(), ours.to_string(), None);
            request = Txn::new().when([is_unchanged]).and_then([note, put.clone()]);
        }
    }
}
