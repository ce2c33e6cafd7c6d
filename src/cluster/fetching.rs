//! Reading the bytes of an object from a member that holds it: the best source first, the others when that fails.
//!
//! Invariants
//! - When it has ended nothing writes to the region that was read into.
//! - What was lent goes back when what was read is dropped, after what was noted of that ([`super::giving_back`]).
//!
//! Limits: while there are others a source has half of the time that is left to answer.
//! Threads: whoever wants the object, which is no thread of the runtime.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tidefs_engine::engine::RegionDescriptor;
use tidefs_engine::memory::Region;
use tidefs_engine::types::{BoxFuture, ByteCount, MemberId, PeerId};
use twox_hash::XxHash3_64;

use super::catalog::wire::{LEND, Lend, Lending, Message};
use super::core::Core;
use super::error::ClusterError;
use super::node::Wanted;
use super::pulling::{Pulled, Purpose, Registered, SharedPurpose, Times};

/// Hears how far an object that is fetched has come. Called by the thread that fetches it.
pub trait Arrival {
    /// So many bytes from its start are there, not compared with their checksum yet.
    fn arrived(&self, bytes: ByteCount);

    /// What came was not what its checksum says. Returns whether it may be fetched again, from its start.
    fn starts_again(&self) -> bool;
}

/// Of who waits for the whole object.
#[derive(Debug)]
pub struct Whole;

impl Arrival for Whole {
    fn arrived(&self, _: ByteCount) {}

    fn starts_again(&self) -> bool {
        true
    }
}

/// What a member gave.
#[derive(Debug)]
enum Loan {
    /// All bytes.
    Inline { bytes: Vec<u8>, checksum: u64 },
    /// Where they are.
    Region(LentRegion),
}

/// A region of another member, which stays as it is until this is dropped.
#[derive(Debug)]
pub(super) struct LentRegion {
    borrowed: Borrowed,
    pub(super) remote: RegionDescriptor,
    pub(super) checksum: u64,
}

impl LentRegion {
    pub(super) fn owner(&self) -> PeerId {
        self.borrowed.owner
    }
}

impl Drop for LentRegion {
    fn drop(&mut self) {
        // Each loan has a region of its own, which nobody reads again.
        if let Some(engine) = &self.borrowed.core.engine {
            engine.disown(self.borrowed.owner, self.remote.id);
        }
    }
}

/// Ends a loan when it is dropped, without waiting.
#[derive(Debug)]
struct Borrowed {
    core: Arc<Core>,
    owner: PeerId,
    loan: u64,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.core.give_back(self.owner, self.loan);
        if let Some(peer) = self.core.peers.lock().get_mut(&self.owner.member) {
            peer.reads_under_way = peer.reads_under_way.saturating_sub(1);
        }
    }
}

/// An object that was read into a region. What reading it took is given back when this is dropped: the region's registration,
/// and the loan, after what was noted before has left. Nobody has to wait for that.
#[derive(Debug)]
pub struct Fetched {
    /// Compared with the bytes.
    pub checksum: u64,
    _lent: Option<LentRegion>,
    _registered: Option<Registered>,
}

/// A source that is asked.
enum Asked {
    Waiting(BoxFuture<'static, Result<Loan, ClusterError>>),
    Answered(Result<Loan, ClusterError>),
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_answered = matches!(self, Self::Answered(_));
        f.debug_struct("Asked").field("is_answered", &is_answered).finish_non_exhaustive()
    }
}

/// An object that is asked for at one source after the other, until one gives it.
///
/// Dropping it gives back what was lent.
#[derive(Debug)]
pub struct Fetch {
    core: Arc<Core>,
    wanted: Wanted,
    purpose: SharedPurpose,
    /// How long a source is waited for that answers nothing.
    patience: Duration,
    deadline: Instant,
    /// Those that were not asked, the best last.
    sources: Vec<MemberId>,
    /// The one that is asked now.
    asked: Option<Asked>,
    count: usize,
    reason: String,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // What is lent to nobody any more is given back when the answer comes.
        if let Some(Asked::Waiting(asking)) = self.asked.take() {
            self.core.runtime.spawn(async move { drop(asking.await) });
        }
    }
}

impl Fetch {
    /// Chooses the best source, and asks it when it is first waited for.
    fn new(core: &Arc<Core>, wanted: Wanted, patience: Duration, deadline: Instant) -> Self {
        let mut sources = core.rank(&wanted.copies);
        sources.reverse();
        let reason = "no other member holds it".to_owned();
        let core = Arc::clone(core);
        let purpose = SharedPurpose::new(Purpose::Reading);
        Self { core, wanted, purpose, patience, deadline, sources, asked: None, count: 0, reason }
    }

    /// The same for another purpose than that a program waits for it.
    #[must_use]
    pub fn for_purpose(mut self, purpose: SharedPurpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Asks the best source, on the calling thread, which is none of the runtime.
    pub(super) fn begin(core: &Arc<Core>, wanted: Wanted, patience: Duration, deadline: Instant) -> Self {
        let mut fetch = Self::new(core, wanted, patience, deadline);
        fetch.ask_next();
        fetch.look();
        fetch
    }

    /// Whether the source that is asked has answered. Not for threads of the runtime.
    pub fn is_answered(&mut self) -> bool {
        self.look();
        !matches!(self.asked, Some(Asked::Waiting(_)))
    }

    /// Goes on with the question without waiting: no other thread has a part in it, which would have to be woken.
    fn look(&mut self) {
        let Some(Asked::Waiting(asking)) = &mut self.asked else { return };
        let looked = poll_fn(|context| match asking.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(answer) = self.core.runtime.block_on(looked) {
            self.asked = Some(Asked::Answered(answer));
        }
    }

    fn ask_next(&mut self) {
        while let Some(member) = self.sources.pop() {
            let left = self.core.until(self.deadline);
            if left.is_zero() {
                break;
            }
            let Some(peer) = self.core.peer_id(member) else { continue };
            let Some(patience) = self.core.patience_with(member, self.patience) else {
                self.reason = format!("member {member} is lost");
                continue;
            };
            self.count += 1;
            if self.count > 1 {
                self.core.counters.fetch_retries.increment();
            }
            // A source that hangs must leave time for another one.
            let share = if self.sources.is_empty() { left } else { left / 2 };
            let share = share.min(patience);
            let (core, wanted) = (Arc::clone(&self.core), self.wanted.clone());
            // It is lent for all the time that reading may take.
            let deadlines = (core.within(share), self.deadline);
            let asking = async move { core.borrow(peer, &wanted, deadlines).await };
            self.asked = Some(Asked::Waiting(Box::pin(asking)));
            return;
        }
    }

    /// What the next source that has it gives.
    ///
    /// # Errors
    /// [`ClusterError::NoSource`] when there is none.
    async fn next(&mut self) -> Result<Loan, ClusterError> {
        loop {
            if self.asked.is_none() {
                self.ask_next();
            }
            let Some(asked) = self.asked.take() else {
                self.core.counters.fetch_failures.increment();
                let reason = std::mem::take(&mut self.reason);
                return Err(ClusterError::NoSource { asked: self.count, reason });
            };
            let answer = match asked {
                Asked::Waiting(asking) => asking.await,
                Asked::Answered(answer) => answer,
            };
            match answer {
                Ok(loan) => return Ok(loan),
                Err(error) => self.failed(&error),
            }
        }
    }

    fn times(&self) -> Times {
        Times { purpose: self.purpose.clone(), patience: self.patience, deadline: self.deadline }
    }

    fn failed(&mut self, error: &ClusterError) {
        tracing::debug!(%error, "a source did not give the bytes");
        self.reason = error.to_string();
    }

    fn succeeded(&self) {
        self.core.counters.fetches.increment();
        self.core.counters.fetched_bytes.add(self.wanted.size.get());
    }

    /// Reads the object into the first bytes of `region`; when a source fails, the next one goes on. When it returns nothing
    /// writes to the region. Waits: not for threads of the runtime.
    ///
    /// # Errors
    /// [`ClusterError::NoSource`]: to the reader it does not exist. The region's bytes are undefined then.
    pub fn into_region(
        mut self,
        region: &Arc<Region>,
        arrival: &dyn Arrival,
    ) -> Result<Fetched, ClusterError> {
        let core = Arc::clone(&self.core);
        let length = self.wanted.size;
        if length > region.length() {
            return Err(ClusterError::OtherLength { found: length, wanted: region.length() });
        }
        let (mut pulled, mut registered) = (Pulled::default(), None);
        let mut doubted: Vec<MemberId> = Vec::new();
        loop {
            let (before, mut source) = (pulled.bytes(), None);
            let filled = match core.runtime.block_on(self.next())? {
                Loan::Inline { bytes, checksum } => {
                    core.check(checksum, XxHash3_64::oneshot(&bytes)).map(|()| {
                        // It was looked whether it fits.
                        region.write_at(0, &bytes);
                        (checksum, None)
                    })
                }
                Loan::Region(lent) => {
                    source = Some(lent.owner().member);
                    // Not before: what comes in an answer needs none.
                    let local = match &registered {
                        Some(registered) => registered,
                        None => {
                            let new = Registered::new(&core, region);
                            registered.insert(new.inspect_err(|_| core.counters.fetch_failures.increment())?)
                        }
                    };
                    let target = (region, local.id());
                    core.pull(&lent, target, length, self.times(), &mut pulled, arrival)
                        .map(|()| (lent.checksum, Some(lent)))
                }
            };
            match filled {
                Ok((checksum, lent)) => {
                    self.succeeded();
                    return Ok(Fetched { checksum, _lent: lent, _registered: registered });
                }
                Err(error) => {
                    self.failed(&error);
                    if error.is_corruption() {
                        if !arrival.starts_again() {
                            self.core.counters.fetch_failures.increment();
                            return Err(error);
                        }
                        pulled = Pulled::default();
                        // What is wrong may have come of another one before it: it is asked for the whole, once.
                        if let Some(source) = source.filter(|it| before > 0 && !doubted.contains(it)) {
                            doubted.push(source);
                            self.sources.push(source);
                        }
                    } else if pulled.bytes() > before {
                        // It gave some, and may give the rest: what takes longer than a loan is lent again. After the others.
                        source.into_iter().for_each(|source| self.sources.insert(0, source));
                    }
                }
            }
        }
    }
}

impl Core {
    pub(super) async fn fetch_bytes(
        self: &Arc<Self>,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<(Vec<u8>, u64), ClusterError> {
        let length = wanted.size;
        let mut fetch = Fetch::new(self, wanted, self.until(deadline), deadline);
        loop {
            let found = match fetch.next().await? {
                Loan::Inline { bytes, checksum } => {
                    self.check(checksum, XxHash3_64::oneshot(&bytes)).map(|()| (bytes, checksum))
                }
                Loan::Region(lent) => {
                    let (core, checksum) = (Arc::clone(self), lent.checksum);
                    let times = fetch.times();
                    let pulled =
                        self.runtime.spawn_blocking(move || core.pull_bytes(&lent, length, times)).await;
                    pulled.map_err(|_| ClusterError::Closed)?.map(|bytes| (bytes, checksum))
                }
            };
            match found {
                Ok(found) => {
                    fetch.succeeded();
                    return Ok(found);
                }
                Err(error) => fetch.failed(&error),
            }
        }
    }

    /// Asks a member for the bytes of an object. `deadline`: of its answer; `returned_by`: until when it is to lend them.
    async fn borrow(
        self: &Arc<Self>,
        peer: PeerId,
        wanted: &Wanted,
        (deadline, returned_by): (Instant, Instant),
    ) -> Result<Loan, ClusterError> {
        let for_ms = u32::try_from(self.until(returned_by).as_millis()).unwrap_or(u32::MAX);
        let lend = Lend { path: wanted.path.clone(), stamp: wanted.stamp, for_ms };
        let answer = self.call(peer.member, LEND, lend.encode(), deadline).await;
        let answer = answer.inspect_err(|_| self.note_silence(peer.member))?;
        let (found, loan) = match Lending::decode(&answer)? {
            Lending::NotHeld => {
                return Err(ClusterError::NoSource { asked: 1, reason: "not held any more".to_owned() });
            }
            Lending::Inline { bytes, checksum } => (bytes.len() as u64, Loan::Inline { bytes, checksum }),
            Lending::Region { loan, length, checksum, region } => {
                if let Some(peer) = self.peers.lock().get_mut(&peer.member) {
                    peer.reads_under_way += 1;
                }
                let core = Arc::clone(self);
                // Given back whatever becomes of it.
                let borrowed = Borrowed { core, owner: peer, loan };
                let remote = RegionDescriptor::decode(&region)?;
                (length, Loan::Region(LentRegion { borrowed, remote, checksum }))
            }
        };
        if found == wanted.size.get() {
            Ok(loan)
        } else {
            Err(ClusterError::OtherLength { found: ByteCount(found), wanted: wanted.size })
        }
    }

    /// Compares a checksum with the one that is to be found.
    pub(super) fn check(&self, wanted: u64, found: u64) -> Result<(), ClusterError> {
        if wanted == found {
            return Ok(());
        }
        self.counters.corrupt.increment();
        Err(tidefs_engine::error::Error::Corrupt { found, wanted }.into())
    }
}
