//! What every transport and every decorator keeps, as tests that are run on each of them.
//!
//! `conformance!(name, make_pair)` makes one test for each fact. `make_pair` returns a fresh [`Pair`]: two instances of
//! one transport in this process. It is called inside a tokio runtime of several threads, which lives as long as the
//! test. Facts that need operations to stand still are run where the pair has a [`Pair::stall`].
//!
//! Nothing here is decided by timing: waits are long, and end as soon as what is waited for has happened.

mod batch;
mod failures;
mod memory;
mod scene;
mod transfers;

pub(crate) use batch::{Batch, pattern};
pub(crate) use failures::*;
pub(crate) use memory::*;
pub(crate) use scene::{Pair, Scene, Side, peer};
pub(crate) use transfers::*;

/// Makes a module `$name` with one test for each fact, run on pairs from `$make_pair`, a `fn() -> Pair`, or
/// `-> Option<Pair>` where a host may lack the transport.
macro_rules! conformance {
    ($name:ident, $make_pair:expr) => {
        mod $name {
            $crate::transport::conformance::facts! { $make_pair,
                every_length_arrives_whole_and_touches_nothing_else
                operations_in_both_directions_at_once_all_arrive
                rails_and_load_are_told
                what_has_no_room_stays_in_the_queue_and_room_returns
                room_returns_before_the_ticket_ends
                a_thread_that_works_leaves_when_it_is_nudged
                a_range_outside_the_region_is_refused
                a_region_that_may_only_be_read_is_not_written
                a_key_that_makes_no_sense_is_refused
                an_unregistered_region_is_unknown_and_lives_on_under_a_new_id
                unregistering_under_load_leaves_the_memory_alone
                cancelled_operations_end_once_and_leave_memory_alone
                a_batch_that_is_cancelled_takes_no_other_with_it
                an_operation_past_its_deadline_ends_without_a_trace
                a_held_operation_ends_by_its_deadline
                a_closed_peer_ends_operations_with_an_error
                a_forgotten_peer_fails_its_endpoint_and_may_connect_again
                what_a_peer_was_granted_ends_when_it_is_forgotten
                a_closed_endpoint_ends_all_and_takes_no_more
                a_closed_transport_ends_all_and_takes_no_more
                a_failed_exchange_leaves_the_way_free
                nonsense_is_answered_with_an_error
            }
        }
    };
}

macro_rules! facts {
    ($make_pair:expr, $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                if let Some(scene) = $crate::transport::conformance::Scene::of($make_pair) {
                    $crate::transport::conformance::$fact(&scene);
                }
            }
        )*
    };
}

pub(crate) use {conformance, facts};
