//! Hours in little: processes that all move bytes between each other, by shared memory, by sockets and, where there is
//! libfabric, by that, while operations fail, are lost and cancelled, and processes are stopped, killed and started again.
//! Every byte is checked, and who lives through all of it neither grows nor keeps descriptors.
//!
//! `TIDEFS_SOAK_SECONDS` says for how long; `packaging/dev.sh soak` runs it for ten minutes. `TIDEFS_SOAK_SEED` decides what
//! happens.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tidefs_engine::rng::Rng;
use tidefs_engine::types::{Incarnation, MemberId, PeerId};

use crate::orders::{Faults, Load, Outcome, Setup, Status};
use crate::peer::{PATIENCE, Peer, load, setup};

/// Processes.
const PEERS: usize = 4;
/// Bytes by which the first may be larger in the end than after the first rounds.
const GROWTH_MAX: u64 = 16 << 20;
/// Rounds until everything that is kept is there.
const ROUNDS_OF_WARM_UP: u64 = 3;

fn seconds() -> u64 {
    std::env::var("TIDEFS_SOAK_SECONDS").map_or(15, |text| text.parse().unwrap())
}

/// Transports of each process. The first lives through everything.
fn transports() -> [&'static str; PEERS] {
    match libfabric_sys::Library::open() {
        Ok(_) => ["libfabric,shm,tcp", "tcp", "shm,tcp", "libfabric,tcp"],
        Err(error) => {
            println!("without libfabric: {error} (Debian: libfabric1)");
            ["shm,tcp", "tcp", "shm,tcp", "shm,tcp"]
        }
    }
}

/// A cluster.
struct Soak {
    transports: [&'static str; PEERS],
    peers: Vec<Peer>,
    rng: Rng,
    total: Outcome,
    stops: u64,
    kills: u64,
}

impl Soak {
    fn setup(&mut self, index: usize, incarnation: u64) -> Setup {
        let id = PeerId { member: MemberId(1 + index as u64), incarnation: Incarnation(incarnation) };
        let faults = Faults { seed: self.rng.next_u64(), delay_ms_max: 10, loss: 0.002, failure: 0.02 };
        Setup {
            faults: Some(faults),
            silence_ms: 2_000,
            ..setup(id, &["127.0.0.1:0"], self.transports[index])
        }
    }

    /// Connects one to another, again where one attempt does not do: two seconds are little on a busy machine.
    fn meet(&mut self, index: usize, other: usize) {
        let descriptor = self.peers[other].descriptor.clone();
        let began = Instant::now();
        while let Err(error) = self.peers[index].try_connect(&descriptor, Duration::from_secs(20)) {
            assert!(began.elapsed() < PATIENCE, "{index} to {other}: {error}");
        }
    }

    /// Lets everybody move bytes from and to everybody else, for about a second.
    fn round(&mut self) {
        for index in 0..self.peers.len() {
            for other in 0..self.peers.len() {
                if other != index {
                    self.meet(index, other);
                }
            }
            let others: Vec<&Peer> = self
                .peers
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index)
                .map(|(_, peer)| peer)
                .collect();
            let load =
                Load { seed: self.rng.next_u64(), cancelled: 0.03, deadline_ms: 1_000, ..load(&others) };
            self.peers[index].load(load);
        }
        std::thread::sleep(self.rng.time_below(Duration::from_millis(600)));
        // Any but the first.
        let victim = 1 + usize::try_from(self.rng.below(self.peers.len() as u64 - 1)).unwrap();
        let dead = match self.rng.below(4) {
            0 | 1 => {
                self.kills += 1;
                self.peers[victim].kill();
                Some(victim)
            }
            2 => {
                self.stops += 1;
                self.peers[victim].signal(Signal::SIGSTOP);
                // Sometimes long enough to be given up.
                std::thread::sleep(self.rng.time_below(Duration::from_millis(3_000)));
                self.peers[victim].signal(Signal::SIGCONT);
                None
            }
            _ => None,
        };
        std::thread::sleep(self.rng.time_below(Duration::from_millis(600)));
        for index in (0..self.peers.len()).filter(|&index| Some(index) != dead) {
            let outcome = self.peers[index].stop_load();
            outcome.expect_sound();
            self.add(&outcome);
            // The last of a batch are taken off the books just after the batch has ended.
            let ended = Instant::now();
            while self.peers[index].status().engine.operations > 0 {
                assert!(ended.elapsed() < PATIENCE, "peer {index} has operations that never end");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(index) = dead {
            let incarnation = self.peers[index].setup.id.incarnation.0 + 1;
            let setup = self.setup(index, incarnation);
            self.peers[index] = Peer::start(setup);
        }
    }

    fn add(&mut self, outcome: &Outcome) {
        let total = &mut self.total;
        total.submitted += outcome.submitted;
        total.ended += outcome.ended;
        total.succeeded += outcome.succeeded;
        total.verified += outcome.verified;
        total.bytes += outcome.bytes;
        total.late_ms_max = total.late_ms_max.max(outcome.late_ms_max);
        for (words, count) in &outcome.errors {
            *total.errors.entry(words.clone()).or_default() += count;
        }
    }
}

#[test]
fn random_batches_under_faults_keep_every_byte_and_leak_nothing() {
    let mut soak = Soak {
        transports: transports(),
        peers: Vec::new(),
        rng: Rng::seeded(std::env::var("TIDEFS_SOAK_SEED").map_or(1, |text| text.parse().unwrap())),
        total: Outcome::default(),
        stops: 0,
        kills: 0,
    };
    for index in 0..PEERS {
        let setup = soak.setup(index, 1);
        soak.peers.push(Peer::start(setup));
    }
    let alone = soak.peers[0].status();
    let began = Instant::now();
    let mut warm: Option<Status> = None;
    let mut rounds = 0;
    while began.elapsed() < Duration::from_secs(seconds()) || rounds <= ROUNDS_OF_WARM_UP {
        soak.round();
        rounds += 1;
        if rounds == ROUNDS_OF_WARM_UP {
            warm = Some(soak.peers[0].status());
        }
    }
    let (warm, last) = (warm.unwrap(), alone_again(&mut soak, &alone));
    let Soak { total, stops, kills, .. } = &soak;
    let errors: BTreeMap<_, _> = total.errors.iter().filter(|(_, count)| **count > 0).collect();
    println!(
        "{} s, {rounds} rounds, {kills} kills, {stops} stops: {} requests, {} succeeded, {} batches verified, {} MiB; \
         latest end {} ms after its deadline; the survivor had {} KiB, and has {} KiB; {errors:#?}",
        began.elapsed().as_secs(),
        total.submitted,
        total.succeeded,
        total.verified,
        total.bytes >> 20,
        total.late_ms_max,
        warm.resident_bytes >> 10,
        last.resident_bytes >> 10,
    );
    assert!(total.verified > 0);
    assert!(
        last.resident_bytes < warm.resident_bytes + GROWTH_MAX,
        "it grew from {} to {} bytes",
        warm.resident_bytes,
        last.resident_bytes
    );
    assert!(last.engine.peers.len() < PEERS, "dead peers are kept: {:?}", last.engine.peers);
}

/// What the first peer holds when all others are dead: no more descriptors than before it knew them.
fn alone_again(soak: &mut Soak, alone: &Status) -> Status {
    soak.peers.truncate(1);
    let until = Instant::now() + PATIENCE;
    loop {
        let now = soak.peers[0].status();
        if now.descriptors <= alone.descriptors {
            return now;
        }
        assert!(Instant::now() < until, "descriptors are kept: {:?} {:?}", alone.kinds, now.kinds);
        std::thread::sleep(Duration::from_millis(50));
    }
}
