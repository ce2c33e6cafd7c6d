//! The reference model: random sequences of everything that programs do with a cache, on the daemon and on a model
//! written from `docs/SEMANTICS.md` alone, compared after each step.
//!
//! `PROPTEST_CASES=N` runs N sequences instead of 256 (and N/32 instead of 8 on a real mount). A sequence that fails is
//! shrunk and printed, and its seed is kept in `tests/model/seeds.txt`, from which later runs try it first.

#[path = "../common/mod.rs"]
mod common;
mod logic;
mod mounted;
mod operation;
mod reference;
mod regressions;
mod run;
mod setup;
mod system;
mod tiers;

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tidefs_engine::types::ByteCount;

use self::common::Mode;
use self::logic::Logic;
use self::mounted::Mounted;
use self::operation::{Op, operation};
use self::run::Run;
use self::setup::Setup;
use self::system::System;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/seeds.txt");

fn setup() -> impl Strategy<Value = Setup> {
    let capacity = prop::sample::select(&[1_u64, 2, 8][..]).prop_map(ByteCount::mib);
    let packed_max = prop::sample::select(&[0_u64, 4, 32][..]).prop_map(ByteCount::kib);
    let headroom = prop::sample::select(&[0_u64, 128][..]).prop_map(ByteCount::kib);
    let scratch_min = prop_oneof![3 => Just(None), 1 => Just(Some(ByteCount::kib(200)))];
    let policy = prop::sample::select(&["leaf_bonus", "lru", "s3fifo"][..]);
    (capacity, packed_max, headroom, scratch_min, policy, any::<bool>()).prop_map(
        |(capacity, packed_max, write_headroom, scratch_min, policy, forgets_at_once)| Setup {
            capacity,
            packed_max,
            write_headroom,
            scratch_min: scratch_min.unwrap_or(capacity),
            policy,
            forgets_at_once,
            has_ssd: false,
        },
    )
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(SEEDS))),
        // Steps are taken out below, again and again, which ends with far fewer than one pass over them.
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    }
}

thread_local! {
    /// What the last panic of this thread said, while its panics are caught.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Does `action`; a panic in it becomes an error that says where and why, and nothing is printed: shrinking fails
/// thousands of times.
fn quietly(action: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |facts| {
            let is_caught = CAUGHT.with_borrow_mut(|caught| {
                let is_caught = caught.is_some();
                *caught = is_caught.then(|| facts.to_string());
                is_caught
            });
            if !is_caught {
                default(facts);
            }
        }));
    });
    CAUGHT.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(action));
    let said = CAUGHT.take().unwrap_or_default();
    outcome.map_err(|_| said)
}

/// Steps. The few that matter are shown by [`shrunk`].
#[derive(Clone)]
struct Ops(Vec<Op>);

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps", self.0.len())
    }
}

fn sequence(with_time: bool, length: Range<usize>) -> impl Strategy<Value = Ops> {
    prop::collection::vec(operation(with_time), length).prop_map(Ops)
}

/// How long steps are taken out of a failing sequence: on a real mount each try takes a second.
const SHRINKING_MAX: Duration = Duration::from_secs(60);

/// Runs all steps; when that fails, says the shortest failing sequence that taking steps out leads to in time.
fn shrunk(ops: &[Op], run: impl Fn(&[Op]) -> Result<(), String>) -> Result<(), TestCaseError> {
    let Err(mut error) = run(ops) else { return Ok(()) };
    let started = Instant::now();
    println!("{error}\nin {} steps; taking out those that do not matter", ops.len());
    let mut ops = ops.to_vec();
    let mut chunk = ops.len();
    while chunk > 0 && started.elapsed() < SHRINKING_MAX {
        let (mut start, mut is_smaller) = (0, false);
        while start < ops.len() && started.elapsed() < SHRINKING_MAX {
            let mut fewer = ops.clone();
            fewer.drain(start..(start + chunk).min(ops.len()));
            match run(&fewer) {
                Err(found) => (ops, error, is_smaller) = (fewer, found, true),
                Ok(()) => start += chunk,
            }
        }
        chunk = if is_smaller { chunk.min(ops.len()) } else { chunk / 2 };
    }
    let steps = ops.iter().enumerate().map(|(index, op)| format!("\n{index:3} {op:?}"));
    Err(TestCaseError::fail(format!("{error}\nin{}\n", steps.collect::<String>())))
}

/// Runs all steps, and says at which one it went wrong.
fn run_logic(setup: Setup, ops: &[Op]) -> Result<(), String> {
    let run = Run::new(Logic::new(setup), setup.capacity.get(), setup.scratch_min.get());
    let mut run = run_all(run, ops)?;
    quietly(|| run.system.assert_all_is_accounted_for())
}

fn run_mounted(mode: Mode, ops: &[Op]) -> Result<(), String> {
    let capacity = mounted::CAPACITY.get();
    run_all(Run::new(Mounted::new(mode), capacity, capacity), ops).map(drop)
}

fn run_all<S: System>(mut run: Run<S>, ops: &[Op]) -> Result<Run<S>, String> {
    for (index, op) in ops.iter().enumerate() {
        let before = run.model.describe();
        let step = || {
            run.step(op);
            run.system.check_tables();
        };
        quietly(step).map_err(|error| format!("step {index}: {error}\nfrom\n{before}"))?;
    }
    quietly(|| run.compare_bytes())?;
    Ok(run)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_logic_does_what_the_model_does(
        setup in setup(),
        ops in sequence(true, 1..80),
    ) {
        shrunk(&ops.0, |ops| run_logic(setup, ops))?;
    }
}

/// A real mount costs a thousand times as much.
fn few() -> ProptestConfig {
    let cases = config().cases.div_ceil(32);
    ProptestConfig { cases, ..config() }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn a_mount_with_passthrough_does_what_the_model_does(ops in sequence(false, 1..60)) {
        let ops: Vec<Op> = ops.0.iter().map(mounted::for_mount).collect();
        shrunk(&ops, |ops| run_mounted(Mode::Passthrough, ops))?;
    }

    #[test]
    fn a_mount_without_passthrough_does_what_the_model_does(ops in sequence(false, 1..60)) {
        let ops: Vec<Op> = ops.0.iter().map(mounted::for_mount).collect();
        shrunk(&ops, |ops| run_mounted(Mode::Direct, ops))?;
    }
}
