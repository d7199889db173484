//! Runs the models.

use railweave_models::{connections, orders, process, registrations, turns};

#[test]
fn a_pin_never_sees_another_registration() {
    registrations::a_pin_never_sees_another_registration();
}

#[test]
fn nothing_is_written_after_a_registration_ended() {
    registrations::nothing_is_written_after_a_registration_ended();
}

#[test]
fn a_pin_sees_what_was_there_before_the_registration() {
    registrations::a_pin_sees_what_was_there_before_the_registration();
}

#[test]
fn counters_of_closed_connections_are_added_up_once() {
    connections::counters_of_closed_connections_are_added_up_once();
}

#[test]
fn a_debt_is_settled_by_one_thread_at_a_time() {
    connections::a_debt_is_settled_by_one_thread_at_a_time();
}

#[test]
fn connections_left_with_debts_are_looked_after() {
    connections::connections_left_with_debts_are_looked_after();
}

#[test]
fn an_order_whose_number_is_seen_is_seen_whole() {
    orders::an_order_whose_number_is_seen_is_seen_whole();
}

#[test]
fn a_process_has_one_value() {
    process::a_process_has_one_value();
}

#[test]
fn calls_and_turns_never_overlap_and_see_each_other() {
    turns::calls_and_turns_never_overlap_and_see_each_other(true);
}

#[test]
fn calls_that_pass_a_barrier_of_their_own_never_overlap_turns() {
    turns::calls_and_turns_never_overlap_and_see_each_other(false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_turn_without_the_barrier_is_caught() {
    turns::a_turn_without_the_barrier();
}

#[test]
fn a_debt_is_settled_in_neither_a_call_nor_a_turn() {
    turns::a_debt_is_settled_in_neither_a_call_nor_a_turn();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_debt_that_is_noted_after_the_call_is_caught() {
    turns::a_debt_that_is_noted_after_the_call();
}

#[test]
fn a_turn_finds_an_end_or_a_closed_connection() {
    turns::a_turn_finds_an_end_or_a_closed_connection();
}

#[test]
fn of_two_threads_that_want_the_end_one_has_it() {
    turns::of_two_threads_that_want_the_end_one_has_it();
}
