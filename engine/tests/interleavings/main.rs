//! The queue's state machines under many orders of threads: nothing is lost, nothing ends twice, nobody waits for
//! ever. And the words of shared memory: what was taken back is not touched.
//!
//! This program compiles `queue/lane.rs`, `queue/transfer.rs` with its `handle.rs`, and `transport/shm/word.rs` once more,
//! over locks and atomics that hand the processor over where a test's scheduler says ([`sync`]): at random, and so that few
//! switches happen at unlucky places. Each case runs in some thousands of orders. What fails is printed with the schedule
//! that shows it.
//!
//! Limit: operations on atomics are taken in one order that all threads see; weaker orderings are not tried.
//!
//! It has a test harness of its own, since the unit tests of those files are not for these locks: names are listed and run
//! as `cargo test` and nextest ask.

mod lanes;
mod sync;
mod transfers;
mod words;

// What the files below name in the engine.
use tidefs_engine::{error, memory, plan, queue, topology, transport, types};

#[path = "../../src/queue/lane.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a part of the engine's interface, and unit tests"
)]
mod lane;
#[path = "../../src/queue/transfer.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a part of the engine's interface, and unit tests"
)]
mod transfer;
#[path = "../../src/transport/shm/word.rs"]
mod word;

/// Orders that are tried at random, and with few switches.
const RANDOM: usize = 8_000;
const UNLUCKY: usize = 8_000;
/// Switches at unlucky places.
const SWITCHES: usize = 3;

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("a_transfer_ends_once_for_who_blocks", transfers::a_transfer_ends_once_for_who_blocks),
    ("a_transfer_ends_once_for_who_awaits", transfers::a_transfer_ends_once_for_who_awaits),
    ("slices_may_be_added_while_others_end", transfers::slices_may_be_added_while_others_end),
    ("a_dropped_handle_races_with_the_end", transfers::a_dropped_handle_races_with_the_end),
    ("no_operation_is_left_when_room_returns", lanes::no_operation_is_left_when_room_returns),
    ("an_endpoint_ends_operations_inside_post", lanes::an_endpoint_ends_operations_inside_post),
    ("a_cancelled_batch_ends_once_wherever_it_is", lanes::a_cancelled_batch_ends_once_wherever_it_is),
    (
        "nothing_of_a_batch_is_left_after_its_cancelling",
        lanes::nothing_of_a_batch_is_left_after_its_cancelling,
    ),
    ("memory_that_was_taken_back_is_not_touched", words::memory_that_was_taken_back_is_not_touched),
];

fn run(case: fn()) {
    shuttle::check_random(case, RANDOM);
    shuttle::check_pct(case, UNLUCKY, SWITCHES);
}

/// The part of the interface of Rust's test programs that `cargo test` and nextest use.
fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(format) = arguments.iter().position(|argument| argument == "--format") {
        // There is one format of the list, with or without its name.
        arguments.drain(format..(format + 2).min(arguments.len()));
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    // Nothing here is ignored.
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| match names.as_slice() {
        _ if has("--ignored") => false,
        [] => true,
        names if has("--exact") => names.iter().any(|wanted| *wanted == name),
        names => names.iter().any(|wanted| name.contains(wanted.as_str())),
    };
    let wanted = CASES.iter().filter(|(name, _)| is_wanted(name));
    if has("--list") {
        wanted.for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    for (name, case) in wanted {
        run(*case);
        println!("test {name} ... ok");
    }
}
