//! Runs the models.

use railweave_models::{connections, orders, process, registrations};

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
