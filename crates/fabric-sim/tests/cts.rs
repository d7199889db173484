//! How many writes the CTS of receives take that are posted ahead.

mod common;

use std::collections::VecDeque;

use common::{Process, connect};
use railweave_fabric_sim::{Faults, World};
use railweave_transport::{ConnectionConfig, Incoming, Outgoing};

/// One way, in nanoseconds.
const DELAY_NS: u64 = 5_000;

/// How often the players look.
const STEP_NS: u64 = 100;

/// Receives `messages` messages with `ahead` receives open. The sender sends the next one only after an answer to the one
/// before could be there, or, when it is `eager`, whenever there is a CTS. Answers how many CTS writes there were after `from` messages.
fn cts_writes(messages: usize, ahead: usize, eager: bool, from: usize) -> u64 {
    let world = World::new(1, Faults { delay_ns: DELAY_NS, ..Faults::none() });
    let (near, far) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
    let (source, target) = (near.memory(64), far.memory(64));
    let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
    let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
    let counters = receiver.rails()[0].counters.clone();
    let (mut receives, mut sends) = (VecDeque::new(), VecDeque::new());
    let (mut sent, mut received, mut before, mut answer_in) = (0, 0, 0, 0);
    while received < messages {
        while receives.len() < ahead {
            receives.push_back(receiver.irecv(&[buffer], false).unwrap().expect("there is room"));
        }
        if receiver.test(receives[0], false).unwrap().is_some() {
            receives.pop_front();
            received += 1;
            answer_in = DELAY_NS;
            if received == from {
                before = counters.cts_writes();
            }
        }
        while (eager || sent == received && answer_in == 0)
            && let Some(request) = sender.isend(&message).unwrap()
        {
            sends.push_back(request);
            sent += 1;
        }
        while sends.front().is_some_and(|oldest| sender.test(*oldest).unwrap().is_some()) {
            sends.pop_front();
        }
        world.advance(STEP_NS);
        answer_in = answer_in.saturating_sub(STEP_NS);
    }
    counters.cts_writes() - before
}

#[test]
fn receives_that_the_peer_does_not_need_yet_share_a_write() {
    assert_eq!(cts_writes(3_000, 1, false, 1_500), 1_500, "nothing to wait for");
    // A few more, because a receive that finds no generic receives posted, one of 64, lets all go that wait.
    let three_each = cts_writes(3_000, 4, false, 1_500);
    assert!((500..530).contains(&three_each), "{three_each} writes: three each, while the peer has two");
    let five_each = cts_writes(3_000, 8, false, 1_500);
    assert!((300..330).contains(&five_each), "{five_each} writes: five each, as long as the peer has as many as wait");
}

#[test]
fn a_peer_that_waits_for_them_gets_each_at_once() {
    for ahead in [4, 8, 32] {
        assert_eq!(cts_writes(3_000, ahead, true, 1_500), 1_500, "{ahead} ahead");
    }
}

#[test]
fn what_the_peer_waited_for_is_tried_again_after_a_while() {
    let writes = cts_writes(30_000, 8, true, 0);
    assert!((29_000..29_990).contains(&writes), "{writes} writes: only few were shared");
}
