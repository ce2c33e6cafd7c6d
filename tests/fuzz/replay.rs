//! Runs a fuzz target without a fuzzer: on its corpus, on its seeds, and on what mutation makes of both.
//!
//! Used by the tests of the daemon and, by path, of the engine. A case that fails is printed; once it is mended, its bytes
//! belong into `tests/fuzz/corpus/TARGET/`. `TIDEFS_FUZZ_SECONDS` mutates for longer, from another seed each time;
//! `TIDEFS_FUZZ_KEEP_SEEDS` writes the seeds into the corpus, where a fuzzer finds them.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// A parser with its name and examples of what it reads.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&[u8]),
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Mutants in a run of the tests.
    pub(crate) mutants: usize,
}

/// Mutants of a target that takes microseconds for one.
pub(crate) const MUTANTS: usize = 8_000;
/// Longest mutant.
const LENGTH_MAX: usize = 64 << 10;

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % bound.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// One change of `bytes`, or a few.
    fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(8) {
                _ if bytes.is_empty() => bytes.push(self.byte()),
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'\\', b'"', b'='][self.below(8)],
                2 => bytes[at] = self.byte(),
                3 => bytes.truncate(at),
                4 => bytes.insert(at, self.byte()),
                5 => drop(bytes.drain(at..(at + 1 + self.below(8)).min(bytes.len()))),
                6 => {
                    let from = self.below(other.len());
                    let part = other[from..].iter().copied().take(1 + self.below(32)).collect::<Vec<_>>();
                    drop(bytes.splice(at..at, part));
                }
                // A number of eight bytes that is large.
                _ => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
            }
        }
        bytes.truncate(LENGTH_MAX);
    }
}

fn folder(name: &str) -> PathBuf {
    // The root of the checkout is here, or one folder up.
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folders = [here.join("tests/fuzz/corpus"), here.join("../tests/fuzz/corpus")];
    let found = folders.into_iter().find(|folder| folder.is_dir());
    found.expect("the corpus is part of the checkout").join(name)
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder(name)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

fn run(target: &Target, bytes: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("target {} fails on {} bytes: {hex}", target.name, bytes.len());
        resume_unwind(panic);
    }
}

/// Runs one target on everything.
pub(crate) fn replay(target: &Target) {
    let mut known = (target.seeds)();
    if std::env::var_os("TIDEFS_FUZZ_KEEP_SEEDS").is_some() {
        fs::create_dir_all(folder(target.name)).unwrap();
        for (index, seed) in known.iter().enumerate() {
            fs::write(folder(target.name).join(format!("seed-{index}")), seed).unwrap();
        }
    }
    known.extend(corpus(target.name));
    assert!(!known.is_empty(), "{} has neither seeds nor corpus", target.name);
    known.iter().for_each(|bytes| run(target, bytes));
    run(target, &[]);
    let longer =
        std::env::var("TIDEFS_FUZZ_SECONDS").ok().map(|text| Duration::from_secs(text.parse().unwrap()));
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut random = Random(longer.map_or(1, |_| u64::try_from(clock.as_nanos() & 0xffff_ffff).unwrap()));
    let began = Instant::now();
    let mut done = 0;
    while longer.map_or(done < target.mutants, |longer| began.elapsed() < longer) {
        let mut bytes = known[random.below(known.len())].clone();
        let other = &known[random.below(known.len())];
        random.mutate(&mut bytes, other);
        run(target, &bytes);
        done += 1;
    }
    println!("{}: {} known, {done} mutants", target.name, known.len());
}

/// A test of each of a list of targets, with its seeds and, where that is not [`MUTANTS`], how many mutants a run has; and one
/// that none of the list is left out. This module is `replay` where it is used.
macro_rules! replayed {
    ($targets:expr => $($name:ident: $seeds:path $(, $mutants:expr)?;)*) => {
        $(#[test]
        fn $name() {
            let name = stringify!($name);
            let run = $targets.iter().find(|(known, _)| *known == name).expect("a target of that name").1;
            let mutants = [$($mutants,)? replay::MUTANTS][0];
            replay::replay(&replay::Target { name, run, seeds: $seeds, mutants });
        })*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<&str> = $targets.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

pub(crate) use replayed;
