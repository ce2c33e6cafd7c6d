//! Infers which object comes before which in a chain, from the order in which one client uses names.
//!
//! Content-addressed blocks say nothing about their prefix, but clients walk prefixes in order: they probe the
//! blocks of a request, open those that are there and create the others. The daemon sees part of that: the kernel
//! answers probes of names it knows, sends each open, and may send one look-up of the final name right before the
//! name is created. What is inferred may be wrong; the policy bounds what a wrong link costs.
//!
//! How a predecessor of a created key is found
//! - A *run* is a row of probes of one client without an open or a create between them. A single probe of the
//!   key that is then created announces the create and is no run; only for a client that was seen to probe whole
//!   requests ahead it is a request of one block.
//! - Right after an open: the opened object. Right after a create: the object created, unless it is long ago.
//! - Right after a run: the key before it in a run of any client, or none if this run starts with it. Engines
//!   often probe in one thread and write in others.
//! - A key stands for its whole prefix, so its predecessor never changes. If two guesses differ, and both were
//!   made because one create followed another, then one request followed another and the key is a root.
//!
//! What stays ambiguous: a client that probes each key right before it creates it and misses the first block of
//! a request right after it wrote another. Such a key is linked to the end of the other request, once.
//!
//! Limits: [`CLIENTS_MAX`] clients and [`KEYS_MAX`] keys are remembered, the least recently used are forgotten.
//! All calls are O(1). No clock is read and no lock is taken.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use tidefs_engine::types::KeyHash;

/// Clients remembered.
pub const CLIENTS_MAX: usize = 1024;
/// Keys whose neighbours are remembered; about 100 bytes each.
pub const KEYS_MAX: usize = 65_536;
/// A create that follows another one later than this belongs to another request.
pub const CREATE_GAP_MAX: Duration = Duration::from_millis(100);

/// Infers chains; one for all clients of a namespace.
#[derive(Debug)]
pub struct ChainTracker {
    clients: LruCache<u32, Client>,
    keys: LruCache<KeyHash, Neighbours>,
}

/// What one client did last.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    past: Past,
    run: Option<Run>,
    /// It probes whole requests before it creates, so a single probe of a new key is a request of one block.
    probes_ahead: bool,
    /// It opened an object or probed several in a row: it walks chains, and does not only write.
    walks: bool,
}

/// The last open or create.
#[derive(Clone, Copy, Debug, Default)]
enum Past {
    #[default]
    Nothing,
    Opened(KeyHash),
    Created(KeyHash, Duration),
}

/// Probes since the last open or create.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: KeyHash,
    last: KeyHash,
    len: u32,
}

/// What is known of the key before a key.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    /// Probed right before it in a run, and the client whose run that was.
    probed_before: Option<(KeyHash, u32)>,
    guess: Guess,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Guess {
    #[default]
    Unknown,
    /// Created right before it, perhaps for another request.
    Adjacent(KeyHash),
    /// Nothing: it starts chains.
    Root,
}

impl Default for ChainTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl ChainTracker {
    /// A tracker that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        let bound = |count| NonZeroUsize::new(count).expect("the limits are not zero");
        // Tables grow with use: `LruCache::new` would reserve for the bound at once.
        let mut clients = LruCache::unbounded();
        clients.resize(bound(CLIENTS_MAX));
        let mut keys = LruCache::unbounded();
        keys.resize(bound(KEYS_MAX));
        Self { clients, keys }
    }

    /// `client` asked whether `key` exists.
    pub fn probed(&mut self, client: u32, key: KeyHash) {
        let state = self.clients.get_or_insert_mut(client, Client::default);
        match &mut state.run {
            Some(run) if run.last == key || run.first == key => {}
            Some(run) => {
                let before = std::mem::replace(&mut run.last, key);
                run.len = run.len.saturating_add(1);
                state.walks = true;
                let neighbours = self.keys.get_or_insert_mut(key, Neighbours::default);
                neighbours.probed_before = Some((before, client));
            }
            None => state.run = Some(Run { first: key, last: key, len: 1 }),
        }
    }

    /// `client` opened `key`, which exists. Returns the key that it opened or created before.
    pub fn opened(&mut self, client: u32, key: KeyHash) -> Option<KeyHash> {
        let client = self.clients.get_or_insert_mut(client, Client::default);
        let before = match std::mem::replace(&mut client.past, Past::Opened(key)) {
            Past::Nothing => None,
            Past::Opened(before) | Past::Created(before, _) => Some(before).filter(|before| *before != key),
        };
        client.run = None;
        client.walks = true;
        before
    }

    /// Whether `client` was seen to walk chains. What one that only writes creates in a row may have nothing to do with
    /// each other, and linking it would keep the oldest and let the newest go.
    #[must_use]
    pub fn walks(&self, client: u32) -> bool {
        self.clients.peek(&client).is_some_and(|client| client.walks)
    }

    /// Whether anybody probed `key` right after another one: engines often probe in one thread and write in others.
    #[must_use]
    pub fn was_probed(&self, key: KeyHash) -> bool {
        self.keys.peek(&key).is_some_and(|neighbours| neighbours.probed_before.is_some())
    }

    /// `client` made `key` visible. Returns the key before it in its chain, if it seems to have one.
    pub fn created(&mut self, client: u32, key: KeyHash, now: Duration) -> Option<KeyHash> {
        let state = self.clients.get_or_insert_mut(client, Client::default);
        let past = std::mem::replace(&mut state.past, Past::Created(key, now));
        let run = state.run.take();
        let neighbours = self.keys.get_or_insert_mut(key, Neighbours::default);
        if let Some(run) = run.filter(|run| run.first != key || run.len > 1) {
            state.probes_ahead |= run.first == key;
            return neighbours.at_run(run.first == key);
        }
        // Another thread probed it: this one may be writing for several requests, so its past says less.
        if let Some((before, _)) = neighbours.probed_before.filter(|&(_, prober)| prober != client) {
            return Some(before);
        }
        let announced = run.is_some();
        match past {
            Past::Opened(opened) => Some(opened).filter(|&it| it != key),
            Past::Created(..) if announced && state.probes_ahead && neighbours.probed_before.is_none() => {
                neighbours.at_run(true)
            }
            Past::Created(before, then) if now.saturating_sub(then) < CREATE_GAP_MAX => {
                neighbours.follow(before).filter(|&it| it != key)
            }
            Past::Created(..) | Past::Nothing => neighbours.probed_key(),
        }
    }
}

impl Neighbours {
    /// Settles what follows from a run right before the create, which this key starts or not.
    fn at_run(&mut self, starts: bool) -> Option<KeyHash> {
        if starts {
            *self = Self { probed_before: None, guess: Guess::Root };
        }
        self.probed_key()
    }

    fn probed_key(&self) -> Option<KeyHash> {
        self.probed_before.map(|(before, _)| before)
    }

    /// Settles what follows from `before` having been created right before this key.
    fn follow(&mut self, before: KeyHash) -> Option<KeyHash> {
        self.guess = match self.guess {
            Guess::Unknown => Guess::Adjacent(before),
            Guess::Adjacent(same) if same == before => Guess::Adjacent(before),
            Guess::Adjacent(_) | Guess::Root => Guess::Root,
        };
        if self.guess == Guess::Root { self.probed_key() } else { Some(before) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// One client of a tracker; keys are small numbers.
    struct Walk(ChainTracker, u32);

    impl Walk {
        fn new() -> Self {
            Self(ChainTracker::new(), 1)
        }

        fn probe(&mut self, keys: impl IntoIterator<Item = u64>) {
            keys.into_iter().for_each(|key| self.0.probed(self.1, KeyHash(key)));
        }

        fn open(&mut self, keys: impl IntoIterator<Item = u64>) {
            for key in keys {
                self.0.opened(self.1, KeyHash(key));
            }
        }

        /// Creates each key and returns the predecessors that were inferred.
        fn create(&mut self, keys: impl IntoIterator<Item = u64>) -> Vec<Option<u64>> {
            let created = |key| self.0.created(self.1, KeyHash(key), NOW).map(|hash| hash.0);
            keys.into_iter().map(created).collect()
        }

        /// Creates each key after the look-up of its name that the kernel sends.
        fn announce_and_create(&mut self, keys: impl IntoIterator<Item = u64>) -> Vec<Option<u64>> {
            keys.into_iter()
                .flat_map(|key| {
                    self.probe([key]);
                    self.create([key])
                })
                .collect()
        }
    }

    #[test]
    fn a_client_that_probes_all_then_opens_then_creates_is_followed() {
        let mut walk = Walk::new();
        walk.probe(10..16);
        walk.open(10..13);
        assert_eq!(walk.create(13..16), [Some(12), Some(13), Some(14)]);
        walk.probe(20..23);
        assert_eq!(
            walk.create(20..23),
            [None, Some(20), Some(21)],
            "the first block of a new chain is a root"
        );
    }

    #[test]
    fn probes_that_the_kernel_answered_do_not_matter() {
        let mut walk = Walk::new();
        walk.probe([11, 14, 15]);
        walk.open(10..14);
        assert_eq!(walk.create(14..17), [Some(13), Some(14), Some(15)]);
    }

    #[test]
    fn a_client_that_probes_to_the_first_miss_is_followed() {
        let mut walk = Walk::new();
        walk.probe(10..14);
        walk.open(10..13);
        assert_eq!(walk.create([13]), [Some(12)]);
        assert_eq!(walk.announce_and_create(14..17), [Some(13), Some(14), Some(15)]);
    }

    #[test]
    fn the_look_up_before_a_create_does_not_break_a_chain() {
        let mut walk = Walk::new();
        walk.probe(20..23);
        assert_eq!(walk.announce_and_create(20..23), [None, Some(20), Some(21)]);
        walk.probe(10..16);
        walk.open(10..13);
        assert_eq!(walk.announce_and_create(13..16), [Some(12), Some(13), Some(14)]);
    }

    #[test]
    fn a_request_of_one_block_is_a_root_for_a_client_that_probes_ahead() {
        let mut walk = Walk::new();
        walk.probe(10..12);
        walk.create(10..12);
        assert_eq!(walk.announce_and_create([20]), [None]);
    }

    #[test]
    fn a_key_created_after_different_keys_is_a_root() {
        let mut walk = Walk::new();
        walk.announce_and_create(10..12);
        assert_eq!(walk.announce_and_create([20, 21]), [Some(11), Some(20)], "indistinguishable at first");
        walk.announce_and_create(30..32);
        assert_eq!(walk.announce_and_create([20, 21]), [None, Some(20)], "a prefix never changes");
    }

    #[test]
    fn creates_far_apart_in_time_are_not_linked() {
        let mut tracker = ChainTracker::new();
        tracker.created(1, KeyHash(1), NOW);
        assert_eq!(
            tracker.created(1, KeyHash(2), CREATE_GAP_MAX - Duration::from_nanos(1)),
            Some(KeyHash(1))
        );
        assert_eq!(tracker.created(1, KeyHash(3), CREATE_GAP_MAX * 2), None);
    }

    #[test]
    fn clients_do_not_disturb_each_other_and_one_may_create_what_another_probed() {
        let mut tracker = ChainTracker::new();
        for key in 0..4 {
            tracker.probed(1, KeyHash(key));
            tracker.probed(2, KeyHash(100 + key));
        }
        assert_eq!(tracker.created(3, KeyHash(2), NOW), Some(KeyHash(1)));
        assert_eq!(tracker.created(4, KeyHash(102), NOW), Some(KeyHash(101)));
    }

    /// The shape of engines that look up in one thread and write in a pool, several requests at once.
    #[test]
    fn writers_of_a_pool_are_linked_as_another_thread_probed() {
        let mut tracker = ChainTracker::new();
        for request in [100, 200] {
            (request..request + 4).for_each(|key| tracker.probed(1, KeyHash(key)));
            tracker.opened(2, KeyHash(request));
        }
        for (step, writer) in [(1, 10), (2, 11), (3, 10)] {
            for request in [100, 200] {
                let before = tracker.created(writer, KeyHash(request + step), NOW);
                assert_eq!(before, Some(KeyHash(request + step - 1)));
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_its_limits() {
        let mut tracker = ChainTracker::new();
        for number in 0..200_000u32 {
            tracker.probed(number % 3000, KeyHash(number.into()));
            tracker.created(number, KeyHash((number + 1).into()), NOW);
        }
        assert_eq!(tracker.clients.len(), CLIENTS_MAX);
        assert_eq!(tracker.keys.len(), KEYS_MAX);
    }

    #[test]
    fn a_client_walks_once_it_opened_or_probed_two_keys_in_a_row() {
        let mut walk = Walk::new();
        walk.announce_and_create(10..20);
        assert!(!walk.0.walks(1), "the look-up of the name that is then created is no walk");
        walk.probe(10..12);
        assert!(walk.0.walks(1));
        walk.1 = 2;
        assert!(!walk.0.walks(2), "another client's walk says nothing");
        walk.open([10]);
        assert!(walk.0.walks(2));
    }

    #[test]
    fn nothing_precedes_itself() {
        let mut walk = Walk::new();
        walk.open([1]);
        assert_eq!(walk.create([1, 1]), [None, None]);
        walk.probe([2, 2, 2]);
        assert_eq!(walk.create([2]), [Some(1)]);
    }
}
