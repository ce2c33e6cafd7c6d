//! The coordinator that many hosts share: etcd, by its v3 interface.
//!
//! Below `/tidefs/NAME/` etcd holds `id` (of the cluster, drawn by who comes first), `starts/MEMBER` (number of the latest start),
//! `members/MEMBER` (under the lease of the process), `namespaces/NAME`, and `removed` (the last of those that was). Values
//! are JSON, so that `etcdctl` shows them.
//!
//! One task (`session`) talks to etcd: it lists, watches and keeps the lease alive. When etcd goes away it tries again
//! with growing pauses; what was heard last stands meanwhile. A lease that ran out in the meantime is replaced, and the
//! member registered anew, unless a later start of it is known. An etcd that has another cluster than this process joined,
//! or an earlier state of it, is not gone by: it is as if it were away, and why is said.
//!
//! Limits: a request waits until its deadline for a session; each call to etcd takes at most
//! `EtcdSettings::call_timeout`. [`RECORDS_MAX`] directories, as far as was heard: members that ask at one moment may pass it.
//! `STARTS_MAX` starts beside those of members that are registered: each start has some older ones beyond them forgotten. Who
//! is started again after that is later all the same, but with a build of before this bound; an earlier process of it, if one is
//! left, is not refused any more. For that
//! etcd counts all keys below `starts/` at each start, and sorts them all where there are too many, to give out the oldest.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tidefs_engine::types::MemberId;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{
    Asked, Coordinator, CoordinatorError, Made, NamespaceChange, Namespaces, RECORDS_MAX, Reachability,
    STARTS_MAX, Start,
};
use crate::cluster::member::{ClusterId, Member, View};

mod heard;
mod keys;
mod session;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transactions;

use keys::Keys;
use transactions::{change_record, find_record, forget_starts, open_start, remove_record};

/// Certificates for TLS to etcd, as PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// Whose signature the server's certificate must have.
    pub authority: Vec<u8>,
    /// Our certificate and its key, where etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is nobody's business.
        f.debug_struct("EtcdTls").field("has_identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// Name and password of a user of etcd.
#[derive(Clone)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How etcd is reached, and which cluster is meant.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// `http://HOST:PORT` or `https://HOST:PORT`, at least one.
    pub endpoints: Vec<String>,
    /// Name of the cluster: several can share one etcd.
    pub cluster: String,
    /// Who asks, where etcd wants to know.
    pub user: Option<EtcdUser>,
    /// TLS, for `https` endpoints.
    pub tls: Option<EtcdTls>,
    /// How long a member that is silent stays registered. At least 2 s.
    pub lease: Duration,
    /// How long one call to etcd may take.
    pub call_timeout: Duration,
}

impl EtcdSettings {
    fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.call_timeout)
            .with_timeout(self.call_timeout)
            .with_keep_alive(self.call_timeout, self.call_timeout)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(user) = &self.user {
            options = options.with_user(&user.name, &user.password);
        }
        if let Some(tls) = &self.tls {
            let mut trust = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.authority));
            if let Some((certificate, key)) = &tls.identity {
                trust = trust.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(trust);
        }
        options
    }
}

/// What the session's task and the callers share.
#[derive(Debug)]
struct Shared {
    settings: EtcdSettings,
    keys: Keys,
    views: watch::Sender<View>,
    namespaces: watch::Sender<Namespaces>,
    /// The cluster of this process: etcd is gone by while it has that.
    joined: OnceLock<ClusterId>,
    /// The way to etcd, while there is a session.
    client: watch::Sender<Option<Connected>>,
    reachability: watch::Sender<Reachability>,
    /// Who is to be registered, with a number that grows with each wish.
    wish: watch::Sender<Wish>,
    /// What became of the wishes so far.
    fulfilled: watch::Sender<Fulfilled>,
}

/// A session that stands.
#[derive(Clone)]
struct Connected {
    client: Client,
    cluster: ClusterId,
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// The registration that this process wants.
#[derive(Clone, Debug, Default)]
struct Wish {
    number: u64,
    member: Option<Member>,
    /// Who was to be registered before, while nobody is: an earlier session may have registered it.
    gone: Option<Member>,
}

/// The latest wish that was dealt with.
#[derive(Clone, Debug, Default)]
struct Fulfilled {
    number: u64,
    refused: Option<CoordinatorError>,
}

/// One member's handle of a cluster in etcd.
#[derive(Debug)]
pub struct Etcd {
    shared: Arc<Shared>,
    session: JoinHandle<()>,
}

impl Etcd {
    /// Starts to talk to etcd, on `runtime`. Returns at once; [`Coordinator::reachability`] tells how it goes.
    #[must_use]
    pub fn start(settings: EtcdSettings, runtime: &Handle) -> Self {
        let shared = Arc::new(Shared {
            keys: Keys::of(&settings.cluster),
            settings,
            views: watch::Sender::new(View::default()),
            namespaces: watch::Sender::new(Namespaces::default()),
            joined: OnceLock::new(),
            client: watch::Sender::new(None),
            reachability: watch::Sender::new(Reachability::unknown()),
            wish: watch::Sender::new(Wish::default()),
            fulfilled: watch::Sender::new(Fulfilled::default()),
        });
        let session = runtime.spawn(session::run(Arc::clone(&shared)));
        Self { shared, session }
    }

    /// Waits for a session.
    async fn connected(&self, what: &'static str, deadline: Instant) -> Result<Connected, CoordinatorError> {
        let mut client = self.shared.client.subscribe();
        let found = tokio::time::timeout_at(deadline.into(), client.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(connected)) => connected.clone().ok_or_else(|| self.away(what)),
            Ok(Err(_)) | Err(_) => Err(self.away(what)),
        }
    }

    fn away(&self, what: &'static str) -> CoordinatorError {
        self.shared.reachability.borrow().away(what)
    }

    /// Does `call`, again with a new session when this one breaks, until `deadline`.
    async fn call<T, F>(
        &self,
        what: &'static str,
        deadline: Instant,
        call: impl Fn(Connected) -> F + Send,
    ) -> Result<T, CoordinatorError>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        loop {
            let connected = self.connected(what, deadline).await?;
            let client = connected.client.clone();
            match tokio::time::timeout_at(deadline.into(), call(connected)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if session::is_refusal(&error) => {
                    return Err(CoordinatorError::Refused { what, reason: error.to_string().into() });
                }
                Ok(Err(error)) => {
                    if session::is_token_old(&error) {
                        // Nothing else of the session fails for that.
                        let renewed = tokio::time::timeout_at(deadline.into(), client.refresh_token()).await;
                        if let Ok(Err(error)) = renewed
                            && session::is_refusal(&error)
                        {
                            return Err(CoordinatorError::Refused { what, reason: error.to_string().into() });
                        }
                    }
                    // The session notices what else is wrong, too; what is asked here may be done twice without harm.
                    tokio::time::sleep(session::FIRST_PAUSE).await;
                }
                Err(_) => return Err(self.away(what)),
            }
        }
    }

    async fn begin_now(&self, member: MemberId, deadline: Instant) -> Result<Start, CoordinatorError> {
        let key = self.shared.keys.start(member);
        let start =
            self.call("starting a member", deadline, |connected| open_start(connected, key.clone())).await?;
        let joined = *self.shared.joined.get_or_init(|| start.cluster);
        if joined == start.cluster {
            self.forget_old_starts();
            return Ok(start);
        }
        let reason = format!("etcd had cluster {joined} a moment ago, and has {} now", start.cluster);
        Err(CoordinatorError::Refused { what: "starting a member", reason: reason.into() })
    }

    /// Has the oldest starts forgotten, where there are too many. Nobody waits for that: what fails is for the next start to do.
    fn forget_old_starts(&self) {
        let Some(connected) = self.shared.client.borrow().clone() else { return };
        let keys = &self.shared.keys;
        let key_of = |member: &Member| keys.start(member.id).into_bytes();
        let registered = self.shared.views.borrow().members().iter().map(key_of).collect();
        let forgetting = forget_starts(connected, keys.starts(), registered, STARTS_MAX);
        tokio::spawn(async move {
            if let Err(error) = forgetting.await {
                tracing::debug!(%error, "old starts are not forgotten now");
            }
        });
    }

    /// Hands a wish to the session and waits until it is dealt with.
    async fn wish(
        &self,
        what: &'static str,
        member: Option<Member>,
        deadline: Instant,
    ) -> Result<(), CoordinatorError> {
        let mut number = 0;
        self.shared.wish.send_modify(|wish| {
            wish.number += 1;
            let before = std::mem::replace(&mut wish.member, member);
            wish.gone = before.or(wish.gone.take()).filter(|_| wish.member.is_none());
            number = wish.number;
        });
        let mut fulfilled = self.shared.fulfilled.subscribe();
        let done = fulfilled.wait_for(|done| done.number >= number);
        match tokio::time::timeout_at(deadline.into(), done).await {
            Ok(Ok(done)) => done.refused.clone().map_or(Ok(()), Err),
            Ok(Err(_)) | Err(_) => Err(self.away(what)),
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.session.abort();
    }
}

impl Coordinator for Etcd {
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start> {
        Box::pin(self.begin_now(member, deadline))
    }

    fn register(&self, member: Member, deadline: Instant) -> Asked<'_, ()> {
        Box::pin(self.wish("joining the cluster", Some(member), deadline))
    }

    fn leave(&self, deadline: Instant) -> Asked<'_, ()> {
        Box::pin(self.wish("leaving the cluster", None, deadline))
    }

    fn views(&self) -> watch::Receiver<View> {
        self.shared.views.subscribe()
    }

    fn namespaces(&self) -> watch::Receiver<Namespaces> {
        self.shared.namespaces.subscribe()
    }

    fn change_namespace(&self, name: &str, change: NamespaceChange, deadline: Instant) -> Asked<'_, u64> {
        let key = self.shared.keys.namespace(name);
        let are_too_many = {
            let heard = self.shared.namespaces.borrow();
            heard.records.len() >= RECORDS_MAX && !heard.records.contains_key(name)
        };
        Box::pin(async move {
            if are_too_many {
                return Err(CoordinatorError::TooMany);
            }
            let change = |connected| change_record(connected, key.clone(), change.clone());
            self.call("a change of a directory's policy, owner or mode", deadline, change).await
        })
    }

    fn find_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, Made> {
        let key = self.shared.keys.namespace(name);
        Box::pin(async move {
            let find = |connected| find_record(connected, key.clone());
            self.call("removing a namespace", deadline, find).await
        })
    }

    fn remove_namespace(&self, name: &str, made: Made, deadline: Instant) -> Asked<'_, u64> {
        let (key, removed) = (self.shared.keys.namespace(name), self.shared.keys.removed());
        let name = name.to_owned();
        Box::pin(async move {
            let remove = |connected| remove_record(connected, key.clone(), (removed.clone(), &name), made);
            self.call("removing a namespace", deadline, remove).await
        })
    }

    fn reachability(&self) -> Reachability {
        self.shared.reachability.borrow().clone()
    }
}
