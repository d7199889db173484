//! Cables that are cut, ports that go down, and the events that report it.

mod common;

use common::{End, Machine, TWO, Wish, Work};
use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::FakeVerbs;

fn pair(machine: &Machine) -> [End<'_>; 2] {
    let ends = [End::new(machine, Wish::default()), End::new(machine, Wish { device: 1, ..Wish::default() })];
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends
}

#[test]
fn work_waits_for_a_cut_cable_and_goes_on_when_it_is_mended() {
    type Do = fn(&FakeVerbs, &End<'_>);
    let ways: [(Do, Do); 2] = [
        (|s, _| s.cut("sim1", 1).expect("it is there"), |s, _| s.mend("sim1", 1).expect("it is there")),
        (
            |s, _| s.set_port_state("sim0", 1, sys::PORT_DOWN).expect("it is there"),
            |s, _| s.set_port_state("sim0", 1, sys::PORT_ACTIVE).expect("it is there"),
        ),
    ];
    for (cut, mend) in ways {
        let machine = Machine::new(TWO);
        let mut ends = pair(&machine);
        ends[0].fill(1);
        assert_eq!(ends[1].receive([9]), 0);
        assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0, "before");
        cut(&machine.fake, &ends[1]);
        let message = Work { id: 2, opcode: sys::WR_RDMA_WRITE_WITH_IMM, ..ends[0].write_to(&ends[1], 16) };
        assert_eq!(ends[0].post_all(&[message, Work { id: 3, ..ends[0].write_to(&ends[1], 8) }]), (0, 2));
        assert_eq!(ends[0].outcomes(), [(1, 0)]);
        assert_eq!((ends[1].byte(15), ends[1].received().len()), (0, 0));
        mend(&machine.fake, &ends[1]);
        assert_eq!(ends[0].outcomes(), [(2, 0), (3, 0)]);
        assert_eq!((ends[1].byte(15), ends[1].received().len()), (1, 1));
    }
}

#[test]
fn a_cut_cable_times_out_on_demand() {
    type Do = fn(&FakeVerbs, &End<'_>);
    let ways: [Do; 3] = [
        |s, _| s.time_out("sim0", 1).expect("it is there"),
        |s, _| s.time_out("sim1", 1).expect("it is there"),
        |s, end| s.time_out_queue_pair(end.number()).expect("it is there"),
    ];
    for time_out in ways {
        let machine = Machine::new(TWO);
        let ends = pair(&machine);
        machine.fake.cut("sim0", 1).expect("it is there");
        time_out(&machine.fake, &ends[1]);
        assert_eq!(ends[0].state(), sys::QPS_RTS, "nothing was in progress");
        let quiet = Work { flags: 0, ..ends[0].write_to(&ends[1], 8) };
        assert_eq!(ends[0].post_all(&[quiet, Work { id: 2, ..quiet }]), (0, 2));
        time_out(&machine.fake, &ends[1]);
        assert_eq!(ends[0].outcomes(), [(1, sys::WC_RETRY_EXC_ERR), (2, sys::WC_WR_FLUSH_ERR)]);
        assert_eq!((ends[0].state(), ends[1].state()), (sys::QPS_ERR, sys::QPS_RTS));
    }
}

#[test]
fn a_port_reports_its_changes() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine);
    let state = || {
        let mut attributes = sys::PortAttributes::default();
        // SAFETY: the device is open.
        assert_eq!(unsafe { (machine.functions.query_port)(ends[0].context, 1, &raw mut attributes) }, 0);
        attributes.state
    };
    machine.fake.set_port_state("sim0", 1, sys::PORT_DOWN).expect("it is there");
    assert_eq!((state(), ends[0].events()), (sys::PORT_DOWN, vec![sys::EVENT_PORT_ERR]));
    machine.fake.set_port_state("sim0", 1, sys::PORT_ACTIVE).expect("it is there");
    assert_eq!((state(), ends[0].events()), (sys::PORT_ACTIVE, vec![sys::EVENT_PORT_ACTIVE]));
    machine.fake.set_gid("sim0", 1, 1, Some([7; 16])).expect("it is there");
    let mut gid = sys::Gid::default();
    // SAFETY: the device is open.
    assert_eq!(unsafe { (machine.functions.query_gid)(ends[0].context, 1, 1, &raw mut gid) }, 0);
    assert_eq!((gid, ends[0].events()), (sys::Gid([7; 16]), vec![sys::EVENT_GID_CHANGE]));
    assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_RETRY_EXC_ERR)], "the acknowledgements go to the previous GID");
    assert!(ends[1].events().is_empty(), "the other device has nothing to report");
    let again = End::new(&machine, Wish::default());
    // SAFETY: the device is open.
    assert_eq!(unsafe { (machine.functions.query_gid)(again.context, 1, 1, &raw mut gid) }, 0);
    assert_eq!(gid, sys::Gid([7; 16]), "the same description keeps the changes");
}

#[test]
fn events_reach_the_open_contexts_that_they_concern() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine);
    machine.fake.raise("sim0", sys::EVENT_LID_CHANGE, 1).expect("it is open");
    machine.fake.raise_on_queue_pair(ends[0].number(), sys::EVENT_COMM_EST).expect("it is open");
    machine.fake.raise_on_queue_pair(ends[0].number(), sys::EVENT_CQ_ERR).expect("it is open");
    assert_eq!(ends[0].events(), [sys::EVENT_LID_CHANGE, sys::EVENT_COMM_EST, sys::EVENT_CQ_ERR]);
    assert_eq!(ends[0].state(), sys::QPS_RTS);
    machine.fake.raise_on_queue_pair(ends[0].number(), sys::EVENT_QP_FATAL).expect("it is open");
    assert_eq!((ends[0].events(), ends[0].state()), (vec![sys::EVENT_QP_FATAL], sys::QPS_ERR));
    machine.fake.raise("sim1", sys::EVENT_DEVICE_FATAL, 0).expect("it is open");
    assert_eq!((ends[1].events(), ends[1].state()), (vec![sys::EVENT_DEVICE_FATAL], sys::QPS_ERR));
    drop(ends);
    assert!(machine.fake.raise("sim0", sys::EVENT_PORT_ERR, 1).is_err(), "nothing has the device open");
    let error = machine.fake.raise_on_queue_pair(1, sys::EVENT_QP_FATAL).expect_err("no such queue pair");
    assert!(error.starts_with("there is no queue pair 0x1;"), "{error}");
    assert!(machine.fake.cut("sim0", 2).is_err());
    assert!(machine.fake.set_gid("sim0", 1, 999, None).is_err());
}

#[test]
fn an_event_wakes_whoever_waits_for_it() {
    let machine = Machine::new(TWO);
    let end = End::new(&machine, Wish::default());
    let take = machine.functions.get_async_event;
    let context = end.context.expose_provenance();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let mut event = sys::AsyncEvent { element: sys::AsyncElement { port_num: 0 }, event_type: -1 };
            // SAFETY: the device stays open until this thread is joined.
            unsafe {
                assert_eq!(take(std::ptr::with_exposed_provenance_mut(context), &raw mut event), 0);
                (event.event_type, event.element.port_num)
            }
        });
        machine.fake.raise("sim0", sys::EVENT_PORT_ERR, 1).expect("it is open");
        assert_eq!(waiting.join().expect("no panic"), (sys::EVENT_PORT_ERR, 1));
    });
}

#[test]
fn a_descriptor_that_does_not_block_says_that_there_is_no_event() {
    let machine = Machine::new(TWO);
    let end = End::new(&machine, Wish::default());
    let mut event = sys::AsyncEvent { element: sys::AsyncElement { port_num: 0 }, event_type: -1 };
    // SAFETY: the device is open.
    unsafe {
        assert_eq!(libc::fcntl((*end.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        assert_eq!((machine.functions.get_async_event)(end.context, &raw mut event), -1);
    }
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
}

#[test]
fn destroying_waits_for_the_acknowledgement_of_an_event() {
    let machine = Machine::new(TWO);
    let end = End::new(&machine, Wish::default());
    machine.fake.raise_on_queue_pair(end.number(), sys::EVENT_COMM_EST).expect("it is open");
    let mut event = sys::AsyncEvent { element: sys::AsyncElement { port_num: 0 }, event_type: -1 };
    // SAFETY: the device is open.
    assert_eq!(unsafe { (machine.functions.get_async_event)(end.context, &raw mut event) }, 0);
    let acknowledged = std::sync::atomic::AtomicBool::new(false);
    let acknowledge = machine.functions.ack_async_event;
    let (done, element) = (&acknowledged, end.qp.expose_provenance());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let qp = std::ptr::with_exposed_provenance_mut(element);
            let mut event = sys::AsyncEvent { element: sys::AsyncElement { qp }, event_type: sys::EVENT_COMM_EST };
            done.store(true, std::sync::atomic::Ordering::Release);
            // SAFETY: this is the event taken above; the queue pair exists until it is acknowledged.
            unsafe { acknowledge(&raw mut event) };
        });
        drop(end);
        assert!(acknowledged.load(std::sync::atomic::Ordering::Acquire));
    });
    machine.assert_closed();
}
