//! Many connections of one process with itself, over the net in memory.

mod support;

use railweave_bench::CommunicatorError;
use railweave_bench::objects::{Settings, run};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::{Faults, alone};

const SETTINGS: Settings = Settings { device: 0, connections: 5, message_bytes: 1000, stall: Duration::from_secs(60) };

#[test]
fn every_connection_carries_its_message_and_is_closed() {
    let (net, world) = alone(Faults::default());
    run(&net, &SETTINGS).unwrap();
    assert_eq!((world.messages.load(SeqCst), world.open.load(SeqCst)), (5, 0));
}

#[test]
fn a_message_that_changes_on_its_way_is_noticed() {
    let (net, _) = alone(Faults { flip_bit: Some(3), ..Faults::default() });
    let error = run(&net, &SETTINGS).unwrap_err();
    assert!(matches!(error, CommunicatorError::WrongData { connections: 5, .. }), "{error}");
}
