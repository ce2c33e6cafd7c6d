//! Two tiers against a map: whatever is written, sent to disk, brought back, renamed, replaced and deleted, through restarts
//! with and without what was in memory, each name has its last bytes or, where memory was lost, none.
//!
//! There is room for everything, so nothing may be lost but what only memory held.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidefs_engine::types::ByteCount;

use super::common::pattern;
use super::logic::Logic;
use super::setup::Setup;
use super::system::{Open, System, WATCHER};

/// Who does everything.
const WRITER: usize = 0;
const NAMES: [&str; 6] = ["a/k0", "a/k1", "b/k0", "b/k1", "k0", "k1"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Put {
        name: usize,
        length: usize,
        seed: u64,
    },
    /// Sends so many of the coldest bytes to disk.
    Demote {
        kib: u64,
    },
    Read {
        name: usize,
    },
    Unlink {
        name: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Chmod {
        name: usize,
        mode: u32,
    },
    Truncate {
        name: usize,
        length: u64,
    },
    Restart,
    LoseMemory,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    // Packed, solo and empty ones, of whole pages and not.
    let length = prop_oneof![Just(0), 1..9000_usize, Just(65536), 40_000..300_000_usize];
    prop_oneof![
        8 => (name(), length, any::<u64>()).prop_map(|(name, length, seed)| Step::Put { name, length, seed }),
        8 => (1..1000_u64).prop_map(|kib| Step::Demote { kib }),
        6 => name().prop_map(|name| Step::Read { name }),
        3 => name().prop_map(|name| Step::Unlink { name }),
        3 => (name(), name()).prop_map(|(from, to)| Step::Rename { from, to }),
        2 => (name(), prop::sample::select(&[0o600_u32, 0o640, 0o755][..]))
            .prop_map(|(name, mode)| Step::Chmod { name, mode }),
        1 => (name(), prop_oneof![1 => Just(0), 4 => 0..100_000_u64]).prop_map(|(name, length)| Step::Truncate { name, length }),
        2 => Just(Step::Restart),
        2 => Just(Step::LoseMemory),
    ]
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Vec<u8>,
    mode: u32,
}

struct Tiers {
    system: Logic,
    objects: BTreeMap<usize, Object>,
}

impl Tiers {
    fn new(packed_max: u64) -> Self {
        let capacity = ByteCount::mib(8);
        let setup = Setup {
            capacity,
            packed_max: ByteCount::kib(packed_max),
            write_headroom: ByteCount::kib(128),
            scratch_min: capacity,
            policy: "leaf_bonus",
            forgets_at_once: false,
            has_ssd: true,
        };
        let mut system = Logic::new(setup);
        for directory in ["a", "b"] {
            system.mkdir(WRITER, directory).expect("mkdir");
        }
        Self { system, objects: BTreeMap::new() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put { name, length, seed } => {
                let options = Open { write: true, create: true, truncate: true, ..Open::default() };
                let token = self.system.open(WRITER, NAMES[name], options).expect("open to write");
                let bytes = pattern::bytes(seed, length);
                if !bytes.is_empty() {
                    self.system.write(WRITER, token, 0, &bytes).expect("write");
                }
                self.system.close(WRITER, token);
                let mode = self.objects.get(&name).map_or(0o644, |object| object.mode);
                self.objects.insert(name, Object { bytes, mode });
            }
            Step::Demote { kib } => self.system.demote(ByteCount::kib(kib)),
            Step::Read { name } => self.check_bytes(name),
            Step::Unlink { name } => {
                let found = self.system.unlink(WRITER, NAMES[name]).is_ok();
                assert_eq!(found, self.objects.remove(&name).is_some(), "unlink of {}", NAMES[name]);
            }
            Step::Rename { from, to } => {
                let found = self.system.rename(WRITER, NAMES[from], NAMES[to], false).is_ok();
                let moved = self.objects.remove(&from);
                assert_eq!(found, moved.is_some(), "rename of {} to {}", NAMES[from], NAMES[to]);
                self.objects.extend(moved.map(|object| (to, object)));
            }
            Step::Chmod { name, mode } => {
                let found = self.system.chmod(WRITER, NAMES[name], mode).is_ok();
                assert_eq!(found, self.objects.contains_key(&name), "chmod of {}", NAMES[name]);
                self.objects.entry(name).and_modify(|object| object.mode = mode);
            }
            Step::Truncate { name, length } => {
                let found = self.system.truncate(WRITER, NAMES[name], length).is_ok();
                assert_eq!(found, self.objects.contains_key(&name), "truncate of {}", NAMES[name]);
                let length = usize::try_from(length).expect("a small length");
                self.objects.entry(name).and_modify(|object| object.bytes.resize(length, 0));
            }
            Step::Restart => self.system.restart(),
            Step::LoseMemory => self.lose_memory(),
        }
        self.check_names();
    }

    fn lose_memory(&mut self) {
        let on_disk: Vec<usize> =
            self.objects.keys().copied().filter(|name| self.system.tier_of(NAMES[*name]) == "ssd").collect();
        self.system.lose_memory();
        // Directories without an object on disk are on disk all the same.
        for (name, path) in NAMES.iter().enumerate() {
            let Some(object) = self.objects.get(&name) else { continue };
            match self.system.stat(WATCHER, path) {
                Err(_) => {
                    assert!(!on_disk.contains(&name), "{path} was on disk");
                    self.objects.remove(&name);
                }
                // Its record on disk may be older than its mode, when it was in memory too.
                Ok(facts) if !on_disk.contains(&name) => {
                    let bytes = object.bytes.clone();
                    self.objects.insert(name, Object { bytes, mode: facts.mode });
                }
                Ok(_) => {}
            }
        }
    }

    fn check_names(&mut self) {
        for (name, path) in NAMES.iter().enumerate() {
            let found = self.system.stat(WATCHER, path).ok().map(|facts| (facts.size, facts.mode));
            let expected = self.objects.get(&name).map(|object| (object.bytes.len() as u64, object.mode));
            assert_eq!(found, expected, "{path}");
        }
    }

    fn check_bytes(&mut self, name: usize) {
        let read = Open { read: true, ..Open::default() };
        let Some(object) = self.objects.get(&name) else {
            assert!(self.system.open(WATCHER, NAMES[name], read).is_err(), "{} is not there", NAMES[name]);
            return;
        };
        let token = self.system.open(WATCHER, NAMES[name], read).expect("open to read");
        let found = self.system.read(WATCHER, token, 0, object.bytes.len() + 100).expect("read");
        pattern::assert_same(&found, &object.bytes, NAMES[name]);
        self.system.close(WATCHER, token);
    }
}

fn run(packed_max: u64, steps: &[Step]) -> Result<(), String> {
    let mut tiers = Tiers::new(packed_max);
    for (index, step) in steps.iter().enumerate() {
        super::quietly(|| tiers.step(*step)).map_err(|error| format!("step {index}, {step:?}: {error}"))?;
    }
    super::quietly(|| (0..NAMES.len()).for_each(|name| tiers.check_bytes(name)))?;
    super::quietly(|| tiers.system.assert_all_is_accounted_for())
}

/// Takes steps out while the sequence still fails.
fn shortest(packed_max: u64, mut steps: Vec<Step>, mut error: String) -> String {
    let mut index = 0;
    while index < steps.len() {
        let mut fewer = steps.clone();
        fewer.remove(index);
        match run(packed_max, &fewer) {
            Err(found) => (steps, error, index) = (fewer, found, 0),
            Ok(()) => index += 1,
        }
    }
    format!("{error}\nin {steps:#?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::config().cases.div_ceil(4), ..super::config() })]

    #[test]
    fn what_went_to_disk_comes_back_as_it_was_and_what_was_deleted_does_not(
        packed_max in prop::sample::select(&[0_u64, 32][..]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        if let Err(error) = run(packed_max, &steps) {
            return Err(TestCaseError::fail(shortest(packed_max, steps, error)));
        }
    }
}

const MANY: usize = 60;

fn put_many(system: &mut Logic, directory: &str, seed: u64) {
    let options = Open { write: true, create: true, truncate: true, ..Open::default() };
    for number in 0..MANY {
        let token = system.open(WRITER, &format!("{directory}/{number}"), options).expect("open to write");
        // Packed ones and others.
        let length = if number % 2 == 0 { 20_000 } else { 3000 };
        system.write(WRITER, token, 0, &pattern::bytes(seed, length)).expect("write");
        system.close(WRITER, token);
    }
}

/// One thread sends objects to the disk, another removes or replaces them: after the loss of memory no removed one is there,
/// and of a replaced one no older version.
#[test]
fn what_is_removed_on_its_way_to_a_disk_does_not_come_back() {
    let mut tiers = Tiers::new(4);
    for round in 0..20 {
        let system = &mut tiers.system;
        put_many(system, "a", round);
        put_many(system, "b", 2 * round);
        let demoter = system.demoter();
        let sending = std::thread::spawn(move || demoter(ByteCount::mib(4)));
        for number in 0..MANY {
            system.unlink(WRITER, &format!("a/{number}")).expect("it is there");
        }
        put_many(system, "b", 2 * round + 1);
        sending.join().expect("it sends them");
        system.lose_memory();
        assert_eq!(system.list(WATCHER, "a").expect("a listing"), Vec::<String>::new(), "round {round}");
        for name in system.list(WATCHER, "b").expect("a listing") {
            let path = format!("b/{name}");
            let size = system.stat(WATCHER, &path).expect("it is there").size;
            let token = system.open(WRITER, &path, Open { read: true, ..Open::default() }).expect("open");
            let length = usize::try_from(size).expect("a small file");
            let found = system.read(WRITER, token, 0, length).expect("read");
            system.close(WRITER, token);
            assert!(
                found == pattern::bytes(2 * round + 1, length),
                "round {round}: {path} is an older version"
            );
        }
    }
}

#[test]
fn a_directory_that_is_removed_right_after_it_was_made_does_not_come_back() {
    let mut tiers = Tiers::new(4);
    for number in 0..100 {
        let path = format!("d{number}");
        tiers.system.mkdir(WRITER, &path).expect("mkdir");
        tiers.system.rmdir(WRITER, &path).expect("rmdir");
    }
    tiers.system.lose_memory();
    assert_eq!(tiers.system.list(WATCHER, "").expect("a listing"), ["a", "b"]);
}

/// A record that says other things of its object than is true now, and that the disk does not replace, goes with the object.
#[test]
fn what_the_disk_refuses_to_replace_does_not_come_back() {
    let mut tiers = Tiers::new(4);
    tiers.step(Step::Put { name: 0, length: 50_000, seed: 1 });
    tiers.step(Step::Demote { kib: 1000 });
    tiers.step(Step::Read { name: 0 });
    tiers.system.limit_disk(ByteCount(1));
    tiers.step(Step::Restart);
    tiers.step(Step::Chmod { name: 0, mode: 0o600 });
    tiers.system.demote(ByteCount::mib(1));
    assert!(tiers.system.stat(WATCHER, NAMES[0]).is_err(), "no disk took it, and it left");
    tiers.system.restart();
    assert!(tiers.system.stat(WATCHER, NAMES[0]).is_err(), "it came back as it was before");
}
