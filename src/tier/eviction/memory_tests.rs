//! Measures what the policies take: heap bytes per object against what they say, and time per operation.
//!
//! The test binary's allocator counts per thread, so that tests that run beside these do not disturb them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::*;

thread_local! {
    static HELD_BYTES: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Counting;

fn count(change: impl FnOnce(usize) -> usize) {
    // A thread that is ending has no counter any more, and nobody who reads it.
    let _ = HELD_BYTES.try_with(|held| held.set(change(held.get())));
}

// SAFETY: every call is handed to `System` unchanged, which keeps the contract; counting allocates nothing,
// because the thread-local is a constant without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|held| held.wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here and there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(|held| held.wrapping_sub(layout.size()));
        // SAFETY: `pointer` came from `System` with this layout, because all of ours do.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fills a policy with `cached` objects in chains of 32 and lets `evicted` more pass through it.
fn churned(name: &str, cached: u32, evicted: u32) -> Box<dyn Eviction> {
    let mut policy = policy_by_name(name, &EvictionParameters::default()).unwrap();
    let mut before = None;
    for number in 0..cached + evicted {
        let slot = if number < cached {
            ObjectSlot(number)
        } else {
            let victim = policy.victim().unwrap();
            policy.remove(victim, Departure::Evicted);
            victim
        };
        let predecessor = before.filter(|_| number % 32 != 0);
        policy.insert(slot, KeyHash(number.into()), predecessor, RetentionClass::NORMAL);
        before = Some(slot);
    }
    policy
}

/// Allocated bytes and told bytes of a policy.
fn bytes(name: &str, cached: u32, evicted: u32) -> (usize, usize) {
    let before = HELD_BYTES.get();
    let policy = churned(name, cached, evicted);
    (HELD_BYTES.get() - before, policy.memory_bytes())
}

fn assert_close(name: &str, (allocated, told): (usize, usize), percent: usize) {
    let error = allocated.abs_diff(told);
    assert!(error <= allocated * percent / 100, "{name} says {told} of {allocated} bytes");
}

#[test]
fn leaf_bonus_takes_about_60_bytes_per_object_with_its_ghost_and_says_so() {
    let cached = 250_000;
    let (allocated, told) = bytes(LEAF_BONUS, cached, 250_000);
    assert_close(LEAF_BONUS, (allocated, told), 10);
    let per_object = allocated / cached as usize;
    assert!(per_object <= 66, "{per_object} bytes per object");
}

#[test]
fn every_policy_tells_its_memory_within_a_fifth() {
    for name in POLICY_NAMES {
        for (cached, evicted) in [(1000, 0), (30_000, 0), (30_000, 20_000), (50_000, 500_000)] {
            assert_close(name, bytes(name, cached, evicted), 20);
        }
    }
}
