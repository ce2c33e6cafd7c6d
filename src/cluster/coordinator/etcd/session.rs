//! The task that talks to etcd: lists, watches, keeps the lease alive, and starts over when etcd was away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, Error, EventType, GetOptions, KeyValue, LeaseKeepAliveStream, LeaseKeeper,
    PutOptions, Txn, TxnOp, WatchOptions, WatchStream,
};
use tidefs_engine::types::{Incarnation, MemberId};

use super::keys::About;
use super::{Connected, EtcdSettings, Fulfilled, Shared, cluster_id};
use crate::cluster::coordinator::{Agreement, CoordinatorError, NamespaceRecord, Reachability};
use crate::cluster::member::{ClusterId, Member, View};

/// Pause after a session that broke; doubles up to [`LONGEST_PAUSE`] while etcd stays away.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Whether etcd answered, and will answer the same again.
pub(super) fn is_refusal(error: &Error) -> bool {
    // Codes of gRPC: invalid argument, permission denied, unauthenticated, failed precondition, unimplemented.
    match error {
        Error::GRpcStatus(status) => matches!(i32::from(status.code()), 3 | 7 | 9 | 12 | 16),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => true,
        _ => false,
    }
}

/// Holds one session after the other, until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Err(error) = hold(&shared, &mut pause).await else { continue };
        shared.client.send_replace(None);
        shared.reachability.send_modify(|reachability| match reachability {
            Reachability::Reached => {
                tracing::warn!(%error, endpoints = ?shared.settings.endpoints, "etcd is away; reads and writes go on");
                *reachability = Reachability::Away { since: Instant::now(), reason: error.to_string().into() };
            }
            Reachability::Away { reason, .. } | Reachability::Refused { reason, .. } => {
                *reason = error.to_string().into();
            }
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What etcd holds, as one session heard it.
#[derive(Debug, Default)]
struct Heard {
    members: BTreeMap<MemberId, Member>,
    namespaces: BTreeMap<String, NamespaceRecord>,
}

/// One session: from the connection to whatever breaks it. Never returns `Ok` but to begin anew.
async fn hold(shared: &Shared, pause: &mut Duration) -> Result<(), Error> {
    let (mut client, cluster) = connect(shared).await?;
    let prefix = shared.keys.prefix();
    let listed = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
    let revision = listed.header().map_or(0, |header| header.revision());
    let mut heard = Heard::default();
    for pair in listed.kvs() {
        heard.put(shared, pair);
    }
    let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
    let mut watching = client.watch(prefix, Some(options)).await?;
    heard.publish_members(shared, revision);
    heard.publish_namespaces(shared, revision);
    shared.reachability.send_modify(|reachability| {
        if let Reachability::Away { since, .. } = reachability {
            tracing::info!(away_s = since.elapsed().as_secs(), %cluster, "etcd answers");
        }
        *reachability = Reachability::Reached;
    });
    shared.client.send_replace(Some(Connected { client: client.clone(), cluster }));
    *pause = FIRST_PAUSE;
    let mut lease = Lease::grant(client, shared).await?;
    let mut wishes = shared.wish.subscribe();
    let wish = wishes.borrow_and_update().clone();
    lease.fulfil(shared, wish).await?;
    let mut ticks = tokio::time::interval(shared.settings.lease / 3);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = wishes.changed() => {
                if changed.is_err() {
                    return Ok(()); // nobody is left who could wish
                }
                let wish = wishes.borrow_and_update().clone();
                lease.fulfil(shared, wish).await?;
            }
            _ = ticks.tick() => lease.keep(shared.settings.call_timeout).await?,
            heard_of = next_changes(&mut watching) => heard.apply(shared, &heard_of?),
        }
    }
}

/// Connects to one server that answers, beginning anywhere. One server for a session: a client of several sends each request to
/// any of them, also to one that is down, and the session would break with the first that fails.
async fn connect(shared: &Shared) -> Result<(Client, ClusterId), Error> {
    let EtcdSettings { endpoints, call_timeout, .. } = &shared.settings;
    let drawn = drawn_id()?;
    let first = usize::try_from(drawn.0 % endpoints.len().max(1) as u64).unwrap_or(0);
    let mut failed = Error::InvalidArgs("no endpoint of etcd is given".to_owned());
    for endpoint in endpoints.iter().cycle().skip(first).take(endpoints.len()) {
        let answers = async {
            let mut client = Client::connect([endpoint], Some(shared.settings.options())).await?;
            // Answered by a server that most others are with, and by no other.
            let cluster = cluster_id(&mut client, &shared.keys, drawn).await?;
            Ok((client, cluster))
        };
        match tokio::time::timeout(*call_timeout * 2, answers).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = Error::Internal(format!("{endpoint} does not answer")),
        }
        tracing::debug!(endpoint, error = %failed, "a server of etcd does not answer; another one is asked");
    }
    Err(failed)
}

/// An id for a cluster that has none yet.
fn drawn_id() -> Result<ClusterId, Error> {
    let drawn = getrandom::u64().map_err(|error| Error::Internal(format!("no random number: {error}")))?;
    Ok(ClusterId(drawn))
}

/// The next changes. The watch is lost when etcd compacted what was not heard yet, or ends the stream.
async fn next_changes(watching: &mut WatchStream) -> Result<etcd_client::WatchResponse, Error> {
    match watching.message().await? {
        Some(changes) if changes.canceled() => Err(Error::WatchError(changes.cancel_reason().to_owned())),
        Some(changes) => Ok(changes),
        None => Err(Error::WatchError("the stream of changes ended".to_owned())),
    }
}

impl Heard {
    /// Takes a value that was put. One that cannot be read counts as absent: somebody else wrote it.
    fn put(&mut self, shared: &Shared, pair: &KeyValue) -> Option<About> {
        let about = shared.keys.about(pair.key())?;
        let read = match &about {
            About::Member(id) => serde_json::from_slice::<Member>(pair.value()).map(|member| {
                if member.id == *id {
                    self.members.insert(*id, member);
                }
            }),
            About::Namespace(name) => serde_json::from_slice(pair.value()).map(|record| {
                self.namespaces.insert(name.clone(), record);
            }),
        };
        if let Err(error) = read {
            tracing::warn!(key = %String::from_utf8_lossy(pair.key()), %error, "a value in etcd is not ours and is ignored");
            self.delete(&about);
        }
        Some(about)
    }

    fn delete(&mut self, about: &About) {
        match about {
            About::Member(id) => drop(self.members.remove(id)),
            About::Namespace(name) => drop(self.namespaces.remove(name)),
        }
    }

    fn apply(&mut self, shared: &Shared, changes: &etcd_client::WatchResponse) {
        let (mut members, mut namespaces) = (false, None);
        for event in changes.events() {
            let Some(pair) = event.kv() else { continue };
            let about = match event.event_type() {
                EventType::Put => self.put(shared, pair),
                EventType::Delete => shared.keys.about(pair.key()).inspect(|about| self.delete(about)),
            };
            members |= matches!(about, Some(About::Member(_)));
            if matches!(about, Some(About::Namespace(_))) {
                // That of the change itself: the one of the whole answer may be of changes that are yet to come.
                namespaces = namespaces.max(Some(pair.mod_revision()));
            }
        }
        if members {
            self.publish_members(shared, changes.header().map_or(0, |header| header.revision()));
        }
        if let Some(revision) = namespaces {
            self.publish_namespaces(shared, revision);
        }
    }

    fn publish_members(&self, shared: &Shared, revision: i64) {
        shared.views.send_if_modified(|view| {
            let heard =
                View::new(u64::try_from(revision).unwrap_or(0), self.members.values().cloned().collect());
            // The same members under a later number are no news: who is responsible for what does not change.
            let is_news = heard.members() != view.members() && heard.number > view.number;
            if is_news {
                *view = heard;
            }
            is_news
        });
    }

    fn publish_namespaces(&self, shared: &Shared, revision: i64) {
        let heard =
            Agreement { revision: u64::try_from(revision).unwrap_or(0), records: self.namespaces.clone() };
        shared.namespaces.send_replace(Arc::new(heard));
    }
}

/// The lease under which this process is registered.
struct Lease {
    client: Client,
    id: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    registered: Option<MemberId>,
}

impl Lease {
    async fn grant(mut client: Client, shared: &Shared) -> Result<Self, Error> {
        let seconds = i64::try_from(shared.settings.lease.as_secs()).unwrap_or(i64::MAX).max(2);
        let id = client.lease_grant(seconds, None).await?.id();
        let (keeper, answers) = client.lease_keep_alive(id).await?;
        Ok(Self { client, id, keeper, answers, registered: None })
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

    /// Does what `wish` says, and notes that it is done.
    async fn fulfil(&mut self, shared: &Shared, wish: super::Wish) -> Result<(), Error> {
        let refused = match &wish.member {
            Some(member) => self.register(shared, member).await?,
            None => {
                if let Some(id) = self.registered.take() {
                    self.client.delete(shared.keys.member(id), None).await?;
                }
                None
            }
        };
        shared.fulfilled.send_replace(Fulfilled { number: wish.number, refused });
        Ok(())
    }

    /// Registers `member`, unless a later start of it was opened.
    async fn register(
        &mut self,
        shared: &Shared,
        member: &Member,
    ) -> Result<Option<CoordinatorError>, Error> {
        let (start, key) = (shared.keys.start(member.id), shared.keys.member(member.id));
        let value = serde_json::to_vec(member).map_err(|error| Error::InvalidArgs(error.to_string()))?;
        let is_latest = Compare::value(start.as_str(), CompareOp::Equal, member.incarnation.to_string());
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(self.id)));
        let outcome = self.client.txn(Txn::new().when([is_latest]).and_then([put])).await?;
        if outcome.succeeded() {
            self.registered = Some(member.id);
            return Ok(None);
        }
        let latest = self.client.get(start.as_str(), None).await?;
        let latest = latest.kvs().first().and_then(|pair| pair.value_str().ok()?.parse().ok()).unwrap_or(0);
        let (ours, latest) = (member.incarnation, Incarnation(latest));
        tracing::error!(member = format_args!("{:016x}", member.id.0), %ours, %latest, "another daemon runs as this member");
        Ok(Some(CoordinatorError::Superseded { member: member.id, ours, latest }))
    }
}
