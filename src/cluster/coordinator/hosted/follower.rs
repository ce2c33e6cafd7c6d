//! A follower: one link to the keeper, [made again](session) whenever it is lost, and what was heard by it. It becomes the keeper
//! beside that when the address turns out to be of its host.

mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, Link, LinkEvents, Links};
use tidefs_engine::types::{Incarnation, MemberId, PeerId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::session::FIRST_PAUSE;
use super::wire::{Answered, Ask, CHANNEL, FileState, Told, decode, encode};
use super::{HostedSettings, StartError, another_cluster};
use crate::cluster::coordinator::{
    Agreement, Asked, Coordinator, CoordinatorError, Made, NamespaceChange, Namespaces, Reachability, Start,
};
use crate::cluster::member::{ClusterId, Member, View};

/// The coordinator, at a member that does not host it.
#[derive(Debug)]
pub(super) struct Follower {
    heard: Arc<Heard>,
    session: JoinHandle<()>,
}

/// What was heard, and what this process wants.
#[derive(Debug)]
struct Heard {
    settings: HostedSettings,
    /// Whether another process of this host had the address when this one would have listened: the keeper, if all is well.
    is_on_this_host: AtomicBool,
    views: watch::Sender<View>,
    namespaces: watch::Sender<Namespaces>,
    link: watch::Sender<Option<Arc<Link>>>,
    reachability: watch::Sender<Reachability>,
    /// Held to copy it.
    wish: Mutex<Wish>,
    /// What was told last, and how often: why it is not gone by, if it is not.
    told: watch::Sender<(u64, Option<Arc<str>>)>,
    /// What was told last of the keeper's file, of what is gone by. Held to copy it.
    file: Mutex<FileState>,
    /// Whether the keeper that was heard last tells records apart.
    tells_apart: AtomicBool,
}

/// What is asked for again with each new link.
#[derive(Clone, Debug, Default)]
struct Wish {
    /// The cluster that this process joined: another one is not heard.
    cluster: Option<ClusterId>,
    member: Option<Member>,
}

impl Follower {
    /// Begins to reach for the keeper. Returns at once; [`Coordinator::reachability`] tells how it goes.
    ///
    /// `is_on_this_host`: it is another process of this host that listens at the address.
    pub(super) fn start(
        settings: HostedSettings,
        is_on_this_host: bool,
        runtime: &Handle,
    ) -> Result<Self, StartError> {
        let (address, link) = (settings.address.clone(), settings.link(Vec::new()));
        let heard = Arc::new(Heard {
            settings,
            is_on_this_host: AtomicBool::new(is_on_this_host),
            views: watch::Sender::new(View::default()),
            namespaces: watch::Sender::new(Namespaces::default()),
            link: watch::Sender::new(None),
            reachability: watch::Sender::new(Reachability::unknown()),
            wish: Mutex::default(),
            told: watch::Sender::new((0, None)),
            file: Mutex::default(),
            tells_apart: AtomicBool::new(false),
        });
        let unusable = |source| StartError::Listen { address: address.clone(), source };
        let drawn =
            getrandom::u64().map_err(|error| unusable(Error::Refused { cause: error.to_string().into() }))?;
        // Who this process is to the keeper: one of each, also where two believe to be the same member.
        let me = PeerId { member: MemberId(drawn | 1), incarnation: Incarnation(1) };
        let events = Arc::clone(&heard) as Arc<dyn LinkEvents>;
        let links = Links::start(runtime.clone(), link, me, events).map_err(unusable)?;
        let session = runtime.spawn(Arc::clone(&heard).reach_for_ever(links));
        Ok(Self { heard, session })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It owns the links.
        self.session.abort();
    }
}

impl Heard {
    /// No link stands, or the one that did said what is not gone by.
    fn note_lost(&self, why: Arc<str>) {
        let address = &self.settings.address;
        let refused = self.told.borrow().1.clone();
        self.reachability.send_modify(|reachability| match refused {
            Some(reason) => {
                if reachability.note_strange(Arc::clone(&reason)) {
                    tracing::error!(address, %reason, "the coordinator is not gone by; what was heard before stands");
                }
            }
            None => {
                if reachability.note_away(Arc::clone(&why)) {
                    tracing::warn!(address, %why, "the coordinator is away; reads and writes go on");
                }
            }
        });
    }

    fn away(&self, what: &'static str) -> CoordinatorError {
        self.reachability.borrow().away(what)
    }

    /// Asks, again by a new link when this one is lost, until `deadline`. What is asked may be done twice without harm.
    async fn ask(
        &self,
        what: &'static str,
        deadline: Instant,
        ask: Ask,
    ) -> Result<Answered, CoordinatorError> {
        let mut links = self.link.subscribe();
        loop {
            let found = tokio::time::timeout_at(deadline.into(), links.wait_for(Option::is_some)).await;
            let link = found.ok().and_then(|link| link.ok()?.clone());
            let Some(link) = link else { return Err(self.away(what)) };
            match ask_by(&link, &ask, deadline).await {
                Ok(answered) => return Ok(answered),
                Err(Error::Refused { cause }) => {
                    return Err(CoordinatorError::Refused { what, reason: cause });
                }
                Err(_) if Instant::now() >= deadline => return Err(self.away(what)),
                Err(_) => tokio::time::sleep(FIRST_PAUSE).await,
            }
        }
    }

    /// That the keeper knows all that was heard. The number of its view says so where its file is older by changes of members,
    /// the revision where it is older by several of directories, and the state of its file in all cases; an older keeper does not
    /// tell that.
    ///
    /// # Errors
    /// In words, when it does not.
    fn expect_latest(&self, told: &Told) -> Result<(), String> {
        let (view, revision) = (self.views.borrow().number, self.namespaces.borrow().revision);
        // One that was just started, and has no members or records yet, may not number its view or those.
        let is_numbered = told.view > 0 || !told.members.is_empty();
        let file = *self.file.lock();
        let (at, heard) = if told.file.is_older_than(&file) {
            (format!("change {}", told.file.found), file.kept)
        } else if is_numbered && told.view < view {
            (format!("view {}", told.view), view)
        } else if told.revision > 0 && told.revision < revision {
            (format!("revision {}", told.revision), revision)
        } else {
            return Ok(());
        };
        Err(format!(
            "the coordinator is at {at}, and this daemon has heard of {heard}: its `coordinator.json` is an old one; give it back \
             the latest, or restart the daemons of all members"
        ))
    }

    /// Takes what the keeper tells.
    ///
    /// # Errors
    /// In words, when it has another cluster than this process joined, or what that agreed on before.
    fn hear(&self, told: Told) -> Result<(), String> {
        let joined = self.wish.lock().cluster;
        if let Some(joined) = joined.filter(|joined| *joined != told.cluster) {
            return Err(another_cluster(joined, told.cluster));
        }
        if joined.is_some() {
            self.expect_latest(&told)?;
        }
        *self.file.lock() = told.file;
        self.tells_apart.store(told.tells_apart, Ordering::Relaxed);
        let heard = View::new(told.view, told.members);
        self.views.send_if_modified(|view| {
            // Also where the members are the same: one may have come and gone unheard, and others go by what it claimed.
            let is_news = heard.number > view.number;
            if is_news {
                *view = heard;
            }
            is_news
        });
        self.namespaces.send_if_modified(|namespaces| {
            let is_news = told.revision > namespaces.revision;
            if is_news {
                *namespaces = Arc::new(Agreement { revision: told.revision, records: told.namespaces });
            }
            is_news
        });
        Ok(())
    }
}

async fn ask_by(link: &Link, ask: &Ask, deadline: Instant) -> Result<Answered, Error> {
    let refused = |words: String| Error::Refused { cause: words.into() };
    let body = encode(ask).map_err(refused)?;
    let answer = link.call(CHANNEL, body, deadline).await?;
    decode(&answer).map_err(refused)
}

/// What the keeper answered does not go with what it was asked.
fn unexpected(what: &'static str) -> CoordinatorError {
    let reason = "the coordinator answers something else than what it was asked; is it of another version?";
    CoordinatorError::Refused { what, reason: reason.into() }
}

impl LinkEvents for Heard {
    fn connected(&self, _link: &Arc<Link>) {}

    fn disconnected(&self, _keeper: PeerId, cause: &Error) {
        // A link that was closed here has a better reason than that.
        if !matches!(cause, Error::Closed) {
            self.note_lost(cause.to_string().into());
        }
        self.link.send_replace(None);
    }

    fn request(&self, _link: &Arc<Link>, _channel: Channel, _body: Vec<u8>) -> Answer {
        Answer::Now(Err("members ask the coordinator, not the other way round".to_owned()))
    }

    fn notified(&self, link: &Arc<Link>, _channel: Channel, body: Vec<u8>) {
        let refused = decode(&body).and_then(|told| self.hear(told)).err().map(Arc::<str>::from);
        self.told.send_modify(|(count, reason)| (*count, *reason) = (*count + 1, refused.clone()));
        if let Some(reason) = refused {
            self.note_lost(reason);
            link.close();
        }
    }
}

impl Coordinator for Follower {
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start> {
        let what = "starting a member";
        Box::pin(async move {
            // What an earlier start wanted is over.
            *self.heard.wish.lock() = Wish::default();
            match self.heard.ask(what, deadline, Ask::Begin { member }).await? {
                Answered::Started { cluster, incarnation } => {
                    self.heard.wish.lock().cluster = Some(cluster);
                    Ok(Start { cluster, incarnation })
                }
                _ => Err(unexpected(what)),
            }
        })
    }

    fn register(&self, member: Member, deadline: Instant) -> Asked<'_, ()> {
        let what = "joining the cluster";
        Box::pin(async move {
            let (id, ours) = (member.id, member.incarnation);
            let cluster = {
                let mut wish = self.heard.wish.lock();
                wish.member = Some(member.clone());
                wish.cluster.unwrap_or(ClusterId(0))
            };
            let ask = Ask::Register { cluster, member: Box::new(member) };
            let answered = self.heard.ask(what, deadline, ask).await;
            match answered {
                Ok(Answered::Done) => return Ok(()),
                // It is wished for, and done when the coordinator is reached.
                Err(error) if error.is_away() => return Err(error),
                _ => self.heard.wish.lock().member = None,
            }
            match answered? {
                Answered::Superseded { latest } => {
                    Err(CoordinatorError::Superseded { member: id, ours, latest })
                }
                _ => Err(unexpected(what)),
            }
        })
    }

    fn leave(&self, deadline: Instant) -> Asked<'_, ()> {
        let what = "leaving the cluster";
        Box::pin(async move {
            self.heard.wish.lock().member = None;
            match self.heard.ask(what, deadline, Ask::Leave).await? {
                Answered::Done => Ok(()),
                _ => Err(unexpected(what)),
            }
        })
    }

    fn views(&self) -> watch::Receiver<View> {
        self.heard.views.subscribe()
    }

    fn namespaces(&self) -> watch::Receiver<Namespaces> {
        self.heard.namespaces.subscribe()
    }

    fn change_namespace(&self, name: &str, change: NamespaceChange, deadline: Instant) -> Asked<'_, u64> {
        let ask = Ask::Change { name: name.to_owned(), change };
        Box::pin(self.agree("a change of a directory's policy, owner or mode", deadline, ask))
    }

    fn find_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, Made> {
        let (what, ask) = ("removing a namespace", Ask::Look { name: name.to_owned() });
        Box::pin(async move {
            match self.heard.ask(what, deadline, ask).await {
                Ok(Answered::Found { made }) => Ok(made),
                Ok(_) => Err(unexpected(what)),
                // It does not know what it was asked, and removes whichever there is.
                Err(CoordinatorError::Refused { .. }) if !self.heard.tells_apart.load(Ordering::Relaxed) => {
                    Ok(Made::ANY)
                }
                Err(error) => Err(error),
            }
        })
    }

    fn remove_namespace(&self, name: &str, made: Made, deadline: Instant) -> Asked<'_, u64> {
        let ask = Ask::Remove { name: name.to_owned(), made: Some(made) };
        Box::pin(self.agree("removing a namespace", deadline, ask))
    }

    fn reachability(&self) -> Reachability {
        self.heard.reachability.borrow().clone()
    }
}

impl Follower {
    async fn agree(&self, what: &'static str, deadline: Instant, ask: Ask) -> Result<u64, CoordinatorError> {
        match self.heard.ask(what, deadline, ask).await? {
            Answered::Agreed { revision } => Ok(revision),
            Answered::TooMany => Err(CoordinatorError::TooMany),
            _ => Err(unexpected(what)),
        }
    }
}
