//! Lanes that break: each reports its failure once, and the other lanes keep working.

mod common;

use common::{Machine, Pair, ROCE, Wish, assert_says, failed_work, open, strict};
use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    Access, Domain as _, EventSource as _, Fault, LaneId, PendingRail as _, PostError, Rail as _, RailError, RailSpec,
    Role, WorkFailure, WorkStatus,
};
use railweave_fabric_verbs::{DeviceEvents, VerbsConfig, sys};

/// Two RoCE devices on which some calls of the data path fail.
fn failing(what: &str) -> String {
    format!("faults = ['{what}']\n{ROCE}")
}

#[test]
fn a_cable_that_stays_cut_is_told_with_both_ends_and_what_to_check() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish::default());
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    let (near, far) = machine.both_lanes();
    machine.fake.cut("b", 1).unwrap();
    for _ in 0..5 {
        pair.near.post(0, from.source(100), to.place()).unwrap();
    }
    assert!(pair.near.poll().is_empty() && !pair.near.rail.is_drained(), "nothing is known yet");
    machine.fake.time_out("b", 1).unwrap();
    let failures = pair.near.failures();
    assert_eq!(failures.len(), 1, "five writes failed, the lane once: {failures:?}");
    let (lane, id, error) = failures[0].clone();
    assert_eq!((lane, id.map(|id| id.0), error.fault()), (0, Some(0), Fault::Peer));
    let expected = WorkFailure {
        status: WorkStatus::RetriesExceeded,
        code: 12,
        vendor: 0x5c,
        number: near.number,
        peer: far.number,
        path: "a, GID 10.0.0.1 to 10.1.0.1".to_owned(),
    };
    assert_eq!(failed_work(error), expected);
    assert_eq!(pair.near.post(0, from.source(100), to.place()), Err(PostError::Broken));
    assert!(pair.near.rail.is_drained(), "there is nothing left to wait for");
    assert!(pair.far.failures().is_empty(), "an end that only receives learns nothing, as on a card");
}

#[test]
fn a_cable_that_is_mended_in_time_loses_nothing() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish { lanes: 2, ..Wish::default() });
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    assert_eq!(pair.far.rail.post_receives(2), Ok(2));
    machine.fake.cut("a", 1).unwrap();
    (0..2).for_each(|lane| pair.near.post(lane, from.source(100), to.place()).unwrap());
    assert!(pair.near.poll().is_empty() && pair.far.poll().is_empty());
    machine.fake.mend("a", 1).unwrap();
    assert_eq!((pair.near.poll().len(), pair.far.poll().len()), (2, 2));
    assert!(pair.near.failures().is_empty());
    pair.exchange();
}

#[test]
fn lanes_break_one_by_one() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish { lanes: 3, ..Wish::default() });
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    assert_eq!(pair.far.rail.post_receives(10), Ok(10));
    let numbers: Vec<u32> = machine.lanes("a").iter().map(|lane| lane.number).collect();
    for broken in [1, 0] {
        machine.fake.cut_queue_pair(numbers[usize::from(broken)]).unwrap();
        pair.near.post(broken, from.source(100), to.place()).unwrap();
        machine.fake.time_out_queue_pair(numbers[usize::from(broken)]).unwrap();
        let failures = pair.near.failures();
        assert_eq!((failures.len(), failures[0].0), (1, broken));
        let failure = failed_work(failures[0].2.clone());
        assert_eq!((failure.status, failure.number), (WorkStatus::RetriesExceeded, numbers[usize::from(broken)]));
        // The others go on.
        pair.near.post(2, from.source(100), to.place()).unwrap();
        assert_eq!(pair.far.poll(), [Completion::Received { lane: LaneId(2), immediate: 0x1234, bytes: 100 }]);
        assert_eq!(pair.near.poll().len(), 1);
    }
    assert_eq!(pair.near.post(1, from.source(100), to.place()), Err(PostError::Broken));
}

/// The failure that ends one write of 100 bytes from `from` to `to`.
fn outcome(pair: &mut Pair, from: railweave_fabric::LocalSlice, to: railweave_fabric::RemoteSlice) -> WorkFailure {
    pair.near.post(0, from, to).unwrap();
    pair.near.work_failure()
}

#[test]
fn memory_that_is_gone_is_told_with_the_side_that_lost_it() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish::default());
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    let (source, place) = (from.source(100), to.place());
    drop(to);
    let failure = outcome(&mut pair, source, place);
    assert_eq!((failure.status, failure.code), (WorkStatus::RemoteAccess, 10));
    assert_says(&failure.path, &["10.0.0.1 to 10.1.0.1"]);
    drop(from);
    let mut pair = machine.pair(&Wish::default());
    let to = pair.far.block(100, Access::DATA);
    let failure = outcome(&mut pair, source, to.place());
    assert_eq!((failure.status, failure.code), (WorkStatus::LocalProtection, 4));
}

#[test]
fn what_the_adapter_of_the_peer_refuses_is_told() {
    let machine = Machine::new(
        "[[device]]\nname = 'a'\n[[device.port]]\nmtu = 4096\n\
        [[device]]\nname = 'b'\n[[device.port]]\nmtu = 4096\n",
    );
    let mut pair = machine.pair(&Wish::default());
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::SOURCE));
    let failure = outcome(&mut pair, from.source(100), to.place());
    assert_eq!(failure.status, WorkStatus::RemoteAccess, "memory that nobody may write: {failure}");
    // The ends disagree on the size of packets: the far end is given a smaller MTU than the near end has.
    let (a, b) = (machine.port("a"), machine.port("b"));
    let spec = |role| RailSpec {
        role,
        lanes: 1,
        send_depth: 8,
        receive_depth: 8,
        lane_receives: 8,
        traffic_class: None,
        peer: None,
    };
    let near_domain = open(&a, VerbsConfig::default(), |_| ()).unwrap();
    let far_domain = open(&b, VerbsConfig::default(), |_| ()).unwrap();
    let mut near = near_domain.open_rail(&spec(Role::Sender)).unwrap();
    let mut far = far_domain.open_rail(&spec(Role::Receiver)).unwrap();
    let mut spoilt = near.endpoints();
    spoilt[0].0[11] = 3;
    far.connect(&spoilt).unwrap();
    near.connect(&far.endpoints()).unwrap();
    let end = |rail, domain| common::End { rail, domain };
    let mut pair =
        Pair { near: end(near.into_rail().unwrap(), near_domain), far: end(far.into_rail().unwrap(), far_domain) };
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    let failure = outcome(&mut pair, from.source(100), to.place());
    assert_eq!((failure.status, failure.code), (WorkStatus::RemoteInvalidRequest, 9));
}

#[test]
fn a_peer_that_is_gone_is_told() {
    let machine = Machine::new(ROCE);
    let Pair { mut near, far } = machine.pair(&Wish::default());
    let from = near.block(100, Access::SOURCE);
    let place = far.block(100, Access::DATA).place();
    drop(far);
    near.post(0, from.source(100), place).unwrap();
    assert_eq!(near.work_failure().status, WorkStatus::RetriesExceeded);
    machine.pair(&Wish::default()).exchange();
}

#[test]
fn a_device_that_failed_takes_every_lane_with_it() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish { lanes: 2, ..Wish::default() });
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    machine.fake.cut("b", 1).unwrap();
    (0..2).for_each(|lane| pair.near.post(lane, from.source(100), to.place()).unwrap());
    machine.fake.raise("a", sys::EVENT_DEVICE_FATAL, 0).unwrap();
    let mut failures = pair.near.failures();
    failures.sort_by_key(|(lane, ..)| *lane);
    assert_eq!(failures.iter().map(|(lane, ..)| *lane).collect::<Vec<_>>(), [0, 1]);
    for (_, _, error) in failures {
        assert_eq!(failed_work(error).status, WorkStatus::Flushed);
    }
}

#[test]
fn a_queue_that_takes_no_work_is_told_once() {
    let machine = Machine::new(&failing("post_send:2:ENOMEM"));
    let mut pair = machine.pair(&Wish { lanes: 2, ..Wish::default() });
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    pair.near.post(0, from.source(100), to.place()).unwrap();
    assert_eq!(pair.near.post(1, from.source(100), to.place()), Err(PostError::Broken));
    assert_eq!(pair.near.post(1, from.source(100), to.place()), Err(PostError::Broken), "though it would be taken now");
    let failures = pair.near.failures();
    let number = machine.lanes("a")[1].number;
    let error = RailError::TakesNoWork { port: "a".to_owned(), number, errno: libc::ENOMEM };
    assert_eq!(failures, [(1, None, error)]);
    pair.near.post(0, from.source(100), to.place()).unwrap();
}

#[test]
fn a_queue_that_takes_no_receives_is_told_once() {
    for (function, shared_receives) in [("post_srq_recv", Some(true)), ("post_recv", None)] {
        let machine = Machine::new(&strict(&failing(&format!("{function}:2:EIO"))));
        let mut pair = machine.pair(&Wish::of(VerbsConfig { shared_receives, ..VerbsConfig::default() }));
        assert_eq!(pair.far.rail.post_receives(3), Ok(3), "{function}");
        assert_eq!(pair.far.rail.post_receives(3), Err(PostError::Broken));
        let failures = pair.far.failures();
        let number = machine.lanes("b")[0].number;
        let error = RailError::TakesNoWork { port: "b".to_owned(), number, errno: libc::EIO };
        assert_eq!(failures, [(0, None, error)], "{function}");
        assert_eq!(pair.far.rail.post_receives(3), Err(PostError::Broken));
    }
}

#[test]
fn a_completion_queue_that_cannot_be_polled_ends_every_lane() {
    let machine = Machine::new(&failing("poll_cq:2:EIO"));
    let mut pair = machine.pair(&Wish { lanes: 2, ..Wish::default() });
    assert!(pair.near.poll().is_empty());
    let failures = pair.near.failures();
    assert_eq!(failures.iter().map(|(lane, ..)| *lane).collect::<Vec<_>>(), [0, 1]);
    for (_, id, error) in failures {
        assert_eq!(id, None);
        assert!(matches!(&error, RailError::QueueGone { port, .. } if port == "a"), "{error:?}");
    }
}

#[test]
fn an_event_of_a_lane_is_acknowledged_before_anyone_waits_for_it() {
    let machine = Machine::new(ROCE);
    let (a, b) = (machine.port("a"), machine.port("b"));
    let events = DeviceEvents::new(&a.device).unwrap();
    assert_eq!(events.take_event(), None);
    for round in 0..3 {
        let pair = Pair::open(&a, &b, &Wish::default()).unwrap();
        let number = machine.lanes("a")[0].number;
        machine.fake.raise_on_queue_pair(number, sys::EVENT_QP_FATAL).unwrap();
        machine.fake.raise_on_queue_pair(number, sys::EVENT_CQ_ERR).unwrap();
        if round < 2 {
            let event = events.take_event().expect("one was raised");
            let first = event.message.clone();
            assert!(event.is_fault);
            assert_says(&first, &[&format!("a queue pair {number:#x}"), "the queue pair failed"]);
            assert_says(&events.take_event().expect("two were").message, &["a: a completion queue overflowed"]);
            assert_eq!(events.take_event(), None);
        }
        // In the last round nobody takes them.
        drop(pair);
    }
    assert_eq!(events.take_event(), None, "destroyed objects leave no events");
    // The fake libibverbs waits ten seconds for an acknowledgement, and then complains.
    assert!(!machine.fake.complaint().contains("never acknowledged"), "{}", machine.fake.complaint());
}

#[test]
fn events_of_ports_name_the_port_and_what_follows() {
    let machine = Machine::new(ROCE);
    let port = machine.port("a");
    let events = DeviceEvents::new(&port.device).unwrap();
    let told = |what: &str, raise: &dyn Fn(), is_fault: bool, words: &[&str]| {
        raise();
        let event = events.take_event().unwrap_or_else(|| panic!("{what} raises nothing"));
        assert_eq!(event.is_fault, is_fault, "{what}");
        assert_says(&event.message, words);
        assert_eq!(events.take_event(), None, "{what}");
    };
    let fake = &machine.fake;
    let state = |state| move || fake.set_port_state("a", 1, state).unwrap();
    told("down", &state(sys::PORT_DOWN), true, &["a port 1: the port is down", "go on over other ports"]);
    told("up", &state(sys::PORT_ACTIVE), false, &["a port 1: the port is up"]);
    let gid = || fake.set_gid("a", 1, 5, Some([9; 16])).unwrap();
    told("a new GID", &gid, false, &["a port 1: the port's GID table changed"]);
    let fatal = || fake.raise("a", sys::EVENT_DEVICE_FATAL, 0).unwrap();
    told("a fatal error", &fatal, true, &["a: the device failed", "kernel log"]);
    let lid = || fake.raise("a", sys::EVENT_LID_CHANGE, 1).unwrap();
    told("a new LID", &lid, true, &["a port 1: the port's LID changed"]);
}
