//! Messages of one process to itself, over the net in memory.

mod support;

use railweave_bench::CommunicatorError;
use railweave_bench::message_loop::{Results, Settings, run};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::{Faults, alone};

/// The messages before those of the loop.
const WARM_UP: usize = 100;

fn settings(bytes: usize, messages: usize) -> Settings {
    Settings { device: 0, bytes, messages, in_flight: 4, stall: Duration::from_secs(2) }
}

#[test]
fn all_messages_are_carried_and_everything_is_closed() {
    for (bytes, messages) in [(0, 1), (8, 3), (1001, 50)] {
        let (net, world) = alone(Faults::default());
        let results = run(&net, &settings(bytes, messages)).unwrap();
        assert!(matches!(results, Results { in_flight: 4, .. }) && results.messages == messages, "{results:?}");
        assert_eq!(world.messages.load(SeqCst), WARM_UP + messages);
        assert_eq!((world.largest.load(SeqCst), world.open.load(SeqCst)), (bytes, 0));
    }
}

#[test]
fn a_message_that_changes_on_its_way_is_noticed() {
    // The last of its slot; an earlier one is overwritten by later ones.
    let (net, world) = alone(Faults { flip_bit: Some(WARM_UP + 47), ..Faults::default() });
    let error = run(&net, &settings(64, 50)).unwrap_err();
    assert!(matches!(error, CommunicatorError::WrongByte { place: 224, .. }), "{error}");
    assert_eq!(world.open.load(SeqCst), 0, "closed nevertheless");
}

#[test]
fn messages_that_do_not_arrive_and_calls_that_fail_end_the_run() {
    let (net, world) = alone(Faults { lose_from: Some(WARM_UP + 10), ..Faults::default() });
    let error = run(&net, &settings(64, 50)).unwrap_err();
    assert!(matches!(error, CommunicatorError::Stalled { .. }), "{error}");
    assert!(error.to_string().contains("10 of 50 messages are received"), "{error}");
    assert_eq!(world.open.load(SeqCst), 0);
    let (net, world) = alone(Faults { fail: Some(WARM_UP + 10), ..Faults::default() });
    let error = run(&net, &settings(64, 50)).unwrap_err();
    assert!(matches!(error, CommunicatorError::Net(_)), "{error}");
    assert_eq!(world.open.load(SeqCst), 0);
}
