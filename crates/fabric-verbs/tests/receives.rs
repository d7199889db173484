//! Receives in their lane's own queue, or in one that the lanes of a rail share.

mod common;

use common::{Machine, ROCE, Wish, assert_says, failed_work, strict};
use railweave_fabric::conformance::Completion;
use railweave_fabric::{Access, Domain as _, LaneId, Rail as _, RailSpec, Role, WorkStatus};
use railweave_fabric_verbs::{VerbsConfig, sys};

/// The end of a rail that receives.
const RECEIVER: RailSpec = RailSpec {
    role: Role::Receiver,
    lanes: 1,
    send_depth: 64,
    receive_depth: 64,
    lane_receives: 64,
    traffic_class: None,
    peer: None,
};

fn wish(lanes: u8, shared_receives: Option<bool>) -> Wish {
    let config = VerbsConfig { shared_receives, ..VerbsConfig::default() };
    Wish { lanes, ..Wish::of(config) }
}

#[test]
fn lanes_share_a_queue_where_there_are_several_or_the_user_wants_it() {
    let machine = Machine::new(&strict(ROCE));
    for (lanes, asked, shared) in [
        (1, None, false),
        (1, Some(true), true),
        (1, Some(false), false),
        (3, None, true),
        (3, Some(true), true),
        (3, Some(false), false),
    ] {
        let mut pair = machine.pair(&wish(lanes, asked));
        assert_eq!(machine.fake.open().shared_receive_queues, u32::from(shared), "{lanes} lanes, {asked:?}");
        for lane in machine.lanes("b") {
            let own = if shared { 0 } else { 64 };
            assert_eq!((lane.shared_receives, lane.capabilities.max_recv_wr), (shared, own));
        }
        // More often than a queue has places.
        for _ in 0..100 {
            pair.exchange();
        }
    }
    assert!(machine.said().is_empty(), "{:?}", machine.said());
}

#[test]
fn a_device_that_gives_no_shared_queue_gives_each_lane_as_many_receives_and_says_so_once() {
    let none = "[[device]]\nname = 'b'\nmax_srq = 0\n[[device.port]]\n";
    let small = "[[device]]\nname = 'b'\nmax_srq_wr = 63\n[[device.port]]\n";
    let cases =
        [("", none), ("", small), ("EOPNOTSUPP", ""), ("ENOSYS", ""), ("ENOMEM", ""), ("EINVAL", ""), ("EIO", "")];
    for ((error, device), lanes) in cases.iter().flat_map(|case| [(case, 1), (case, 3)]) {
        let fault = if error.is_empty() { String::new() } else { format!("faults = ['create_srq:*:{error}']\n") };
        let device = if device.is_empty() { "[[device]]\nname = 'b'\n[[device.port]]\n" } else { device };
        let machine = Machine::new(&strict(&format!("{fault}[[device]]\nname = 'a'\n[[device.port]]\n{device}")));
        let mut pair = machine.pair(&wish(lanes, Some(true)));
        assert_eq!(machine.fake.open().shared_receive_queues, 0);
        for lane in machine.lanes("b") {
            assert_eq!((lane.shared_receives, lane.capabilities.max_recv_wr), (false, 64));
        }
        for _ in 0..100 {
            pair.exchange();
        }
        // Another connection over the same port.
        drop(pair.far.domain.open_rail(&RailSpec { lanes, ..RECEIVER }).unwrap());
        let said = machine.said();
        assert_eq!(said.len(), 1, "{said:?}");
        assert_says(
            &said[0],
            &["b: the device cannot create a shared receive queue (", "each lane has receives of its own"],
        );
    }
}

#[test]
fn a_lane_with_receives_of_its_own_has_as_many_as_it_may_bring() {
    // The number of sends and receives; with the whole pool on each lane there would be 256 receives.
    let completions = 4 * 64 + 4 * 16;
    for (max_cqe, fits) in [(completions, true), (completions - 1, false)] {
        let text = format!(
            "[[device]]\nname = 'a'\n[[device.port]]\n\
            [[device]]\nname = 'b'\nmax_srq = 0\nmax_cqe = {max_cqe}\n[[device.port]]\n"
        );
        let machine = Machine::new(&strict(&text));
        let pair = machine.pair(&wish(1, Some(false)));
        let receives = |spec: &RailSpec| {
            let before = machine.lanes("b").len();
            let _rail = pair.far.domain.open_rail(spec).ok()?;
            let lanes = machine.lanes("b").split_off(before);
            Some(lanes.iter().map(|lane| lane.capabilities.max_recv_wr).collect::<Vec<_>>())
        };
        let four = receives(&RailSpec { lanes: 4, lane_receives: 16, ..RECEIVER });
        assert_eq!(four, fits.then(|| vec![16; 4]), "{max_cqe}");
        // A single lane has the whole pool.
        assert_eq!(receives(&RailSpec { lane_receives: 16, ..RECEIVER }), Some(vec![64]));
    }
}

#[test]
fn a_receiver_notices_the_death_of_its_own_queue_pair() {
    for kind in [sys::EVENT_QP_FATAL, sys::EVENT_QP_REQ_ERR, sys::EVENT_QP_ACCESS_ERR] {
        let machine = Machine::new(&strict(ROCE));
        let mut pair = machine.pair(&Wish::default());
        assert_eq!(pair.far.rail.post_receives(5), Ok(5));
        let (near, far) = machine.both_lanes();
        assert!(pair.far.poll().is_empty());
        machine.fake.raise_on_queue_pair(far.number, kind).unwrap();
        let failures = pair.far.failures();
        assert_eq!(failures.len(), 1, "five receives came back, the lane failed once: {failures:?}");
        let (lane, id, error) = failures[0].clone();
        assert_eq!((lane, id), (0, None));
        let failure = failed_work(error);
        assert_eq!((failure.status, failure.number, failure.peer), (WorkStatus::Flushed, far.number, near.number));
        assert_says(&failure.path, &["b, GID 10.1.0.1"]);
        assert!(pair.far.rail.post_receives(1).is_err());
    }
}

#[test]
fn a_shared_queue_keeps_its_receives_when_one_lane_dies() {
    let machine = Machine::new(&strict(ROCE));
    let mut pair = machine.pair(&wish(2, None));
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    assert_eq!(pair.far.rail.post_receives(5), Ok(5));
    machine.fake.raise_on_queue_pair(machine.lanes("b")[0].number, sys::EVENT_QP_FATAL).unwrap();
    assert!(pair.far.failures().is_empty(), "nothing of the lane comes back; an event reports its death");
    pair.near.post(1, from.source(100), to.place()).unwrap();
    assert_eq!(pair.far.poll(), [Completion::Received { lane: LaneId(1), immediate: 0x1234, bytes: 100 }]);
}
