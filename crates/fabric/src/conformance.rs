//! The suite that every fabric runs: the promises of [`crate::Rail`] and [`crate::Domain`], as cases that pass or
//! panic.
//!
//! A fabric implements [`Harness`] in its tests and calls [`run_all`]. Each case makes a fresh rail, whose ends are
//! called near and far, and polls both in turn, so it runs over real networks and in virtual time alike. Some cases
//! show what must work, the others what must fail.

mod bench;
mod completion;
mod delivery;
mod ending;
mod harness;
mod queues;
mod refusals;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use completion::{Completion, poll};
pub use harness::{End, Harness, Pair};

/// A case, which panics if the fabric breaks a promise.
pub type Case<H> = fn(&mut H);

/// Returns every case with its name.
pub fn cases<H: Harness>() -> Vec<(&'static str, Case<H>)> {
    macro_rules! named {
        ($($module:ident::$case:ident,)*) => { vec![$((stringify!($case), $module::$case::<H> as Case<H>),)*] };
    }
    named![
        delivery::bytes_land_exactly,
        delivery::every_size_arrives,
        delivery::later_writes_imply_earlier_ones,
        delivery::an_immediate_follows_its_bytes,
        delivery::an_empty_write_carries_its_immediate,
        delivery::a_write_completes_only_when_placed,
        delivery::lanes_are_told_apart,
        delivery::both_directions_carry_random_sizes,
        delivery::an_end_that_acknowledged_may_stop_polling,
        queues::unsignalled_writes_give_their_room_back,
        queues::a_full_queue_posts_nothing_and_recovers,
        queues::a_chain_is_posted_whole_or_not_at_all,
        queues::receives_are_counted,
        queues::a_poll_of_few_loses_nothing,
        queues::completions_come_once,
        queues::an_empty_chain_is_nothing,
        queues::a_drained_rail_says_so,
        refusals::a_wrong_key_is_refused,
        refusals::bytes_beyond_the_registration_are_refused,
        refusals::bytes_before_the_registration_are_refused,
        refusals::memory_without_the_right_is_refused,
        refusals::deregistered_memory_is_not_written,
        refusals::an_unregistered_source_is_not_read,
        refusals::impossible_work_is_refused,
        refusals::an_immediate_without_a_receive_is_not_lost,
        refusals::a_dropped_peer_is_a_failure,
        refusals::a_lingering_end_discards_and_never_fails,
        ending::an_ended_receiver_has_reported_all_that_the_sender_knows,
        ending::nothing_lands_after_the_end,
        ending::an_ended_sender_sends_nothing_more,
        ending::the_end_reports_no_failure,
        ending::the_peer_of_an_ended_rail_fails,
        ending::the_end_flushes,
    ]
}

/// Runs every case.
///
/// # Panics
/// When cases fail; the message names each, with its own message.
pub fn run_all<H: Harness>(harness: &mut H) {
    let mut failed = Vec::new();
    for (name, case) in cases::<H>() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(harness))) {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            failed.push(format!("{name}: {}", message.unwrap_or_else(|| "a panic without a message".to_owned())));
        }
    }
    assert!(failed.is_empty(), "{} cases of the conformance suite failed:\n{}", failed.len(), failed.join("\n"));
}
