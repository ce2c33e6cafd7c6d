//! Sending a thread to look a name up again, which works once.
//!
//! The kernel answers ESTALE by looking the path up again and asking for the same once more (retry_estale and
//! do_filp_open, namei.c); a second ESTALE is what the program gets. So a writer that was sent is given a version to
//! write when it looks the name up, and that version waits for it a while ([`expected`](super::expected)).

use std::num::NonZeroUsize;
use std::time::Duration;

use twox_hash::XxHash3_64;

use super::expected::EXPECTED_FOR_MS;
use super::open::OpenOptions;
use super::verify::LONG;
use super::{Caller, Credentials, Datapath, Error, Phase, State};
use crate::namespace::{Ino, Name, Slot, ThreadId};

/// How long after it was sent to look a name up again a thread is taken to come back for that.
const RESENT: Duration = Duration::from_millis(EXPECTED_FOR_MS);
/// The same for one that had to be brought back, which may have taken long.
const RESENT_LATE: Duration = Duration::from_secs(30);

/// How long after it found something by that it is taken to go on within the same system call.
const FOUND: Duration = Duration::from_secs(2);

/// How long after it found nothing a thread is taken to look once more within the same system call: it does at once, but for
/// those that the kernel lets look before. What that finds may take longer: others are asked.
const LOOKS_AGAIN: Duration = Duration::from_millis(500);

/// How often a thread that finds nothing looks within one system call at most. Twice, and once more for each time that somebody
/// else, who sees the file, looked it up meanwhile: what the kernel knows by that it has confirmed, too.
const LOOKS_MAX: u8 = 8;

/// How often something to write is begun for a thread that was sent, while others publish under its name.
const BEGINS_MAX: u32 = 16;

/// How many callers are remembered that were sent to look a name up again.
pub(super) const RESENT_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not zero");

/// Who was sent. Callers that the daemon cannot tell apart are told apart by the names that they were sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentCaller {
    thread: ThreadId,
    name: Option<u64>,
}

impl SentCaller {
    /// A caller that looks `name` up, or opens what has that name; `None` when that is not known any more.
    pub(super) fn of(caller: &Caller, name: Option<&Name>) -> Self {
        let name =
            name.filter(|_| !caller.thread.is_known()).map(|name| XxHash3_64::oneshot(name.as_bytes()));
        Self { thread: caller.thread, name }
    }
}

/// What a thread was sent to look up again.
#[derive(Debug)]
pub(super) struct Resent {
    /// The name, when its inode still knew it.
    name: Option<Name>,
    /// When, by the monotonic clock.
    at: Duration,
    /// How it is opened.
    options: OpenOptions,
    /// Why no version could be begun for it.
    refused: Option<Error>,
    /// Whether its program may have been told that this open has failed: then only the kernel comes back for it, at once, and nothing
    /// is begun for it by a mere look-up.
    may_have_failed: bool,
    /// What it found when it looked the name up again, and when.
    found: Option<(Ino, Duration)>,
    /// Whether it found nothing instead.
    nothing: Nothing,
}

/// What became of a look-up that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nothing {
    NotYet,
    /// Found then, for so many times, and the thread is to look once more at once.
    Found {
        at: Duration,
        times: u8,
    },
    /// It looks, or has looked, once more.
    LooksAgain {
        times: u8,
    },
}

impl Resent {
    fn new(name: Option<Name>, at: Duration, options: OpenOptions) -> Self {
        let (refused, found, nothing) = (None, None, Nothing::NotYet);
        Self { name, at, options, refused, may_have_failed: false, found, nothing }
    }

    /// Whether it was for an open like this one. Who was only asking for attributes may go on to read, but not to write: that
    /// is sent for itself.
    pub(super) fn is_for(&self, options: OpenOptions) -> bool {
        self.options.write || !options.write
    }

    /// Whether it found nothing, and did not look once more at once, or did not open what it found then; or has failed, if it may
    /// have, as nobody came back.
    fn is_over(&self, now: Duration) -> bool {
        if self.may_have_failed && now.saturating_sub(self.at) > FOUND {
            return true;
        }
        match self.nothing {
            Nothing::NotYet => false,
            Nothing::Found { at, .. } => now.saturating_sub(at) > LOOKS_AGAIN,
            Nothing::LooksAgain { .. } => self.found.is_some_and(|(_, at)| now.saturating_sub(at) > FOUND),
        }
    }

    /// The name, and why no version could be begun under it.
    pub(super) fn outcome(self) -> (Option<Name>, Option<Error>) {
        (self.name, self.refused)
    }
}

impl Datapath {
    /// The caller comes to create `name`. Returns whether it was sent to look that up again a moment ago, and found nothing.
    pub(super) fn was_sent_to(&self, caller: &Caller, name: &Name) -> bool {
        let now = self.clock.monotonic();
        let resent = self.lock().resent.pop(&SentCaller::of(caller, Some(name)));
        resent.is_some_and(|resent| {
            resent.name.as_ref() == Some(name)
                && !resent.is_over(now)
                && now.saturating_sub(resent.at) < RESENT
        })
    }

    /// A thread that was sent to look the name of `ino` up again is answered: its next open is another one.
    pub fn give_up_opening(&self, caller: &Caller, ino: Ino) {
        let mut state = self.lock();
        let slot = state.tree.by_ino(ino);
        state.take_resent(caller, slot);
    }

    /// The caller is about to be told that `ino` is stale: its next open of that name is the same one.
    pub(super) fn note_resent(&self, caller: &Caller, ino: Ino, options: OpenOptions) {
        self.note_told_stale(caller, ino, options, false);
    }

    /// The same of one whose program may be told that this open has failed.
    pub(super) fn note_resent_or_failed(&self, caller: &Caller, ino: Ino, options: OpenOptions) {
        self.note_told_stale(caller, ino, options, true);
    }

    fn note_told_stale(&self, caller: &Caller, ino: Ino, options: OpenOptions, may_have_failed: bool) {
        let mut state = self.lock();
        // One that has left its name meanwhile still knows which it was: that is what is looked up again.
        let name = state.tree.by_ino(ino).map(|slot| state.name_sought(slot));
        let sent = SentCaller::of(caller, name.as_ref());
        let resent = Resent::new(name, self.clock.monotonic(), options);
        state.resent.put(sent, Resent { may_have_failed, ..resent });
    }

    /// As [`Datapath::note_resent`], where the name is known.
    pub(super) fn note_resent_for(
        &self,
        state: &mut State,
        caller: &Caller,
        name: Option<Name>,
        options: OpenOptions,
    ) {
        let sent = SentCaller::of(caller, name.as_ref());
        state.resent.put(sent, Resent::new(name, self.clock.monotonic(), options));
    }

    /// What a caller is told who asked for attributes of what its name does not stand for any more. This may come before
    /// an open within the same system call, which is not sent a second time: for who reads, the next is a miss. A later system
    /// call that believes its name for too long asks for what it did not find when it was sent.
    pub(super) fn stale_attributes(&self, state: &mut State, caller: &Caller, slot: Slot) -> Error {
        let ino = state.tree.ino(slot);
        let name = state.name_sought(slot);
        let is_second = state.resent.peek(&SentCaller::of(caller, Some(&name))).is_some_and(|resent| {
            self.has_just_found(resent, ino) && self.is_resent(state, resent, Some(slot))
        });
        if is_second {
            return Error::NoObject;
        }
        self.note_resent_for(state, caller, Some(name), OpenOptions::default());
        Error::Stale
    }

    fn has_just_found(&self, resent: &Resent, ino: Ino) -> bool {
        let age = |at: Duration| self.clock.monotonic().saturating_sub(at);
        resent.found.is_some_and(|(found, at)| found == ino && age(at) < FOUND)
    }

    /// Whether the open of `slot` (`None`: of an inode that is gone) is the second one of a thread that was sent.
    pub(super) fn is_resent(&self, state: &State, resent: &Resent, slot: Option<Slot>) -> bool {
        let now = self.clock.monotonic();
        if resent.is_over(now) {
            return false;
        }
        let since = now.saturating_sub(resent.at);
        match slot {
            Some(slot) if state.is_there(slot) => {
                since < RESENT && resent.name == Some(state.name_sought(slot))
            }
            // It could not be brought back. A name that was replaced meanwhile is found by looking it up again, once.
            Some(slot) => {
                let is_same = |name: &Name| *name == state.name_sought(slot);
                since < RESENT_LATE && resent.name.as_ref().is_none_or(is_same)
            }
            None => since < RESENT_LATE,
        }
    }

    /// A thread found `ino` under `name`, which it may have been sent to look up again.
    pub(super) fn note_found(&self, state: &mut State, caller: &Caller, name: &Name, ino: Ino) {
        let now = self.clock.monotonic();
        if let Some(resent) = state.resent.peek_mut(&SentCaller::of(caller, Some(name)))
            && resent.name.as_ref() == Some(name)
        {
            resent.found = Some((ino, now));
        }
    }

    /// A thread found nothing under `name`, which it may have been sent to look up again. Told so, the kernel drops what it
    /// knew of the name, and looks it up once more, at once; when it does not, that open is over.
    pub(super) fn note_absent(&self, state: &mut State, caller: &Caller, name: &Name) {
        let sent = SentCaller::of(caller, Some(name));
        let Some(resent) = state.resent.peek_mut(&sent) else { return };
        let times = match resent.nothing {
            Nothing::NotYet => 0,
            Nothing::LooksAgain { times } => times,
            Nothing::Found { .. } => LOOKS_MAX, // too late
        };
        if times < LOOKS_MAX && resent.name.as_ref() == Some(name) {
            resent.nothing = Nothing::Found { at: self.clock.monotonic(), times: times + 1 };
            resent.found = None;
        } else {
            state.resent.pop(&sent);
        }
    }

    /// A thread looks `name` up. Returns whether it was sent to look something up again.
    pub(super) fn looks_again(&self, state: &mut State, caller: &Caller, name: &Name) -> bool {
        let now = self.clock.monotonic();
        let Some(resent) = state.resent.peek_mut(&SentCaller::of(caller, Some(name))) else { return false };
        let is_same = resent.name.as_ref() == Some(name) && !resent.is_over(now);
        if is_same && let Nothing::Found { times, .. } = resent.nothing {
            resent.nothing = Nothing::LooksAgain { times };
        }
        true
    }

    /// Gives a writer who was sent to look `name` up again a version to write, or has the one that is being written wait: one
    /// that may write what it finds. The kernel looks at that when it opens it, which is later; and the name may be one of
    /// another directory than it was sent for.
    ///
    /// Returns false, having done nothing, when that takes long and `may_take_long` is not.
    pub(super) fn welcome_resent(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        may_take_long: bool,
    ) -> bool {
        let credentials = Credentials::of(caller);
        for _ in 0..BEGINS_MAX {
            let Some((ino, options, takes_long)) = self.to_begin(&credentials, caller, parent, name) else {
                return true;
            };
            if takes_long && !may_take_long {
                return false;
            }
            match self.verify_before_first_use(ino).and_then(|()| self.begin_writing(caller, ino, options)) {
                Ok(()) => return true,
                // It left its name meanwhile: the caller is to write what took that.
                Err(Error::Stale) => {}
                Err(error) => {
                    // The open that follows says it.
                    if let Some(resent) = self.lock().resent.get_mut(&SentCaller::of(caller, Some(name))) {
                        resent.refused = Some(error);
                    }
                    return true;
                }
            }
        }
        true
    }

    /// The sealed object under `name` that a writer who was sent to look that up again is to write, how, and whether it takes long
    /// to begin that. What is being written already waits for a writer who sees it.
    fn to_begin(
        &self,
        credentials: &Credentials,
        caller: &Caller,
        parent: Ino,
        name: &Name,
    ) -> Option<(Ino, OpenOptions, bool)> {
        let mut state = self.lock();
        let now = self.clock.monotonic();
        let is_same = |resent: &&Resent| {
            resent.options.write
                && !resent.may_have_failed
                && resent.refused.is_none()
                && resent.name.as_ref() == Some(name)
                && !resent.is_over(now)
                && now.saturating_sub(resent.at) < RESENT
        };
        let options = state.resent.peek(&SentCaller::of(caller, Some(name))).filter(is_same)?.options;
        let parent = state.slot_of(parent).ok()?;
        let child = state.tree.child(parent, name.as_bytes())?;
        let is_allowed = state.may_search(credentials, parent)
            && credentials.may_open(&state.tree.node(child).attributes, options);
        let object = state.object(child).filter(|_| is_allowed)?;
        if object.phase == Phase::Writing {
            if !self.is_hidden_from(&mut state, caller, child, options.write) {
                self.expect_writer(&mut state, caller, child);
            }
            return None;
        }
        if object.phase != Phase::Sealed || (Self::is_away(&object.place) && !options.wants_nothing()) {
            return None;
        }
        let (ino, size) = (state.tree.ino(child), self.stat_of(&state, child).size);
        let is_read = !options.wants_nothing() || state.unverified(ino).is_some();
        Some((ino, options, is_read && size >= LONG))
    }

    /// Makes a sealed object one that the caller writes, in place or as a new version, and has it wait for the caller.
    ///
    /// # Errors
    /// [`Error::Stale`] when it has left its name.
    fn begin_writing(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<(), Error> {
        {
            let mut state = self.lock();
            let slot = state.slot_of(ino)?;
            let phase_of = |state: &State| state.object(slot).map(|object| object.phase);
            match phase_of(&state) {
                Some(Phase::Sealed) => {}
                Some(Phase::Gone) => return Err(Error::Stale),
                Some(Phase::Writing | Phase::Parked) | None => return Ok(()),
            }
            let beside_begun = state.is_beside_begun(slot).then(|| state.tree.node(slot).parent);
            let is_begun = match self.unseal(&mut state, caller, slot, options) {
                Ok(()) => {
                    self.expect_writer(&mut state, caller, slot);
                    true
                }
                // It has another inode, which waits for the caller.
                Err(Error::Stale) => phase_of(&state) == Some(Phase::Gone),
                Err(error) => return Err(error),
            };
            if is_begun {
                drop(state);
                // What a client has begun for its place counts whole from now on.
                beside_begun.into_iter().for_each(|directory| self.trim_to_quota(directory));
                return Ok(());
            }
        }
        self.begin_version_if_sealed(caller, ino, options)
    }
}

impl State {
    /// Forgets that the caller was sent to the file in `slot` (`None`: that is gone), and gives what it was sent for.
    pub(super) fn take_resent(&mut self, caller: &Caller, slot: Option<Slot>) -> Option<Resent> {
        // Hot path: each open asks, and nearly all of them by a thread that is known.
        let name = slot.filter(|_| !caller.thread.is_known()).map(|slot| self.name_sought(slot));
        self.resent.pop(&SentCaller::of(caller, name.as_ref()))
    }

    /// The name by which the file in `slot` is found: a version that is being written has none of its own yet.
    pub(super) fn name_sought(&self, slot: Slot) -> Name {
        let claim = self.object(slot).and_then(|object| object.open.as_ref()?.supersedes.as_ref());
        claim.map_or_else(|| self.tree.name(slot), |(_, name)| name.clone())
    }
}
