//! Failures look as on a card: the right status at the right end, and then all other work is flushed.

mod common;

use std::ptr;

use common::{ACCESS, BYTES, End, Machine, TO_INIT, TO_RTR, TWO, Wish, Work, poll_once};
use railweave_fabric_verbs::sys;

const WRITE_ONLY_LOCALLY: i32 = sys::ACCESS_LOCAL_WRITE;

fn pair(machine: &Machine, wishes: [Wish; 2]) -> [End<'_>; 2] {
    let ends = wishes.map(|wish| End::new(machine, wish));
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends
}

fn plain() -> [Wish; 2] {
    [Wish::default(), Wish { device: 1, ..Wish::default() }]
}

#[test]
fn an_access_that_the_peer_has_not_granted_breaks_both_ends() {
    type Spoil = fn(&mut Work, &End<'_>);
    let no_right = [Wish::default(), Wish { device: 1, access: WRITE_ONLY_LOCALLY, ..Wish::default() }];
    let cases: [(&str, [Wish; 2], Spoil); 8] = [
        ("an unknown key", plain(), |work, _| work.rkey ^= 0x0001_0000),
        ("the key of an earlier use", plain(), |work, _| work.rkey ^= 2),
        ("the local key", plain(), |work, peer| work.rkey = peer.lkey()),
        ("key 0", plain(), |work, _| work.rkey = 0),
        ("before the start", plain(), |work, _| work.remote -= 1),
        ("past the end", plain(), |work, _| work.remote += BYTES as u64 - 7),
        ("no right to write", no_right, |_, _| ()),
        ("no right to read", no_right, |work, _| work.opcode = sys::WR_RDMA_READ),
    ];
    for shared in [false, true] {
        for (what, wishes, spoil) in cases {
            let machine = Machine::new(TWO);
            let ends = pair(&machine, wishes.map(|wish| Wish { shared, ..wish }));
            assert_eq!(ends[1].receive([50, 51]), 0);
            let mut bad = ends[0].write_to(&ends[1], 8);
            (bad.id, bad.flags) = (7, 0);
            spoil(&mut bad, &ends[1]);
            // A write of no bytes needs no right.
            let quiet = Work { id: 8, flags: 0, ..ends[0].write_to(&ends[1], 0) };
            assert_eq!(ends[0].post_all(&[quiet, bad, quiet]), (0, 3), "{what}");
            assert_eq!(ends[0].outcomes(), [(7, sys::WC_REM_ACCESS_ERR), (8, sys::WC_WR_FLUSH_ERR)], "{what}");
            assert_eq!([ends[0].state(), ends[1].state()], [sys::QPS_ERR; 2], "{what}");
            let flushed: Vec<_> = ends[1].received().iter().map(|done| (done.wr_id, done.status)).collect();
            let last = sys::EVENT_QP_LAST_WQE_REACHED;
            if shared {
                assert_eq!(ends[1].events(), [sys::EVENT_QP_ACCESS_ERR, last], "{what}");
                assert_eq!((ends[0].events(), flushed), (vec![last], vec![]), "receives stay in the shared queue");
            } else {
                assert_eq!(ends[1].events(), [sys::EVENT_QP_ACCESS_ERR], "{what}");
                assert_eq!(flushed, [(50, sys::WC_WR_FLUSH_ERR), (51, sys::WC_WR_FLUSH_ERR)], "{what}");
            }
            // Work posted later is flushed too, at both ends.
            assert_eq!((ends[1].post(ends[1].write_to(&ends[0], 8)), ends[1].outcomes()), (0, vec![(1, 5)]));
            if !shared {
                assert_eq!(ends[1].receive([52]), 0);
                assert_eq!(ends[1].received()[0].status, sys::WC_WR_FLUSH_ERR);
            }
        }
    }
}

#[test]
fn memory_of_another_protection_domain_is_out_of_reach() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, plain());
    let stranger = End::new(&machine, Wish { device: 1, ..Wish::default() });
    assert_eq!(ends[0].post(ends[0].write_to(&stranger, 8)), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_REM_ACCESS_ERR)]);
}

#[test]
fn deregistered_memory_is_out_of_reach() {
    let machine = Machine::new(TWO);
    let mut ends = pair(&machine, plain());
    let work = ends[0].write_to(&ends[1], 8);
    let mut memory = vec![0_u8; BYTES];
    // SAFETY: another region takes the place of the first, and is deregistered before its memory is freed.
    unsafe {
        assert_eq!((machine.functions.dereg_mr)(ends[1].mr), 0);
        ends[1].mr = (machine.functions.reg_mr)(ends[1].pd, common::raw(&mut memory), BYTES, ACCESS);
    }
    assert_eq!(ends[0].post(work), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_REM_ACCESS_ERR)]);
    drop(ends);
}

#[test]
fn a_queue_pair_that_serves_no_writes_calls_them_invalid() {
    let machine = Machine::new(TWO);
    for opcode in [sys::WR_RDMA_WRITE, sys::WR_RDMA_READ] {
        let [first, second] = plain();
        let ends = pair(&machine, [first, Wish { qp_access: WRITE_ONLY_LOCALLY, ..second }]);
        assert_eq!(ends[0].post(Work { opcode, ..ends[0].write_to(&ends[1], 8) }), 0);
        assert_eq!(ends[0].outcomes(), [(1, sys::WC_REM_INV_REQ_ERR)]);
        assert_eq!((ends[1].events(), ends[1].state()), (vec![sys::EVENT_QP_REQ_ERR], sys::QPS_ERR));
    }
}

#[test]
fn mistakes_at_this_end_leave_the_other_alone() {
    type Spoil = fn(&mut Work, &End<'_>);
    let cases: [(&str, i32, Spoil); 5] = [
        ("an unknown local key", sys::WC_LOC_PROT_ERR, |work, _| work.lkey ^= 0x0001_0000),
        ("the remote key", sys::WC_LOC_PROT_ERR, |work, own| work.lkey = own.rkey()),
        ("past the end", sys::WC_LOC_PROT_ERR, |work, _| work.from = BYTES - 7),
        ("too long", sys::WC_LOC_LEN_ERR, |work, _| work.length = 0x20_0001),
        ("no reads agreed", sys::WC_LOC_QP_OP_ERR, |work, _| work.opcode = sys::WR_RDMA_READ),
    ];
    for (what, status, spoil) in cases {
        let machine = Machine::new(
            "[[device]]\nname = 'sim0'\n[[device.port]]\nmax_message = 0x200000\n\
            [[device]]\nname = 'sim1'\n[[device.port]]\n",
        );
        let ends = plain().map(|wish| End::new(&machine, wish));
        let mut plan = ends[0].plan(&ends[1]);
        plan.rts.max_rd_atomic = 0;
        ends[0].follow(&plan);
        ends[1].connect(&ends[0]);
        let mut bad = ends[0].write_to(&ends[1], 8);
        spoil(&mut bad, &ends[0]);
        assert_eq!(ends[0].post(bad), 0);
        assert_eq!(ends[0].outcomes(), [(1, status)], "{what}");
        assert_eq!((ends[0].state(), ends[1].state()), (sys::QPS_ERR, sys::QPS_RTS), "{what}");
        assert!(ends[1].events().is_empty(), "{what}");
    }
}

#[test]
fn a_failed_completion_reports_only_identifier_status_and_queue_pair() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, plain());
    assert_eq!(ends[0].post(Work { rkey: 0, ..ends[0].write_to(&ends[1], 8) }), 0);
    let [failed] = ends[0].sent()[..] else { panic!("one completion") };
    assert_eq!((failed.wr_id, failed.qp_num), (1, ends[0].number()));
    assert_ne!(failed.vendor_err, 0);
    // Those of an arrival, so that a reader of what is undefined is caught.
    assert_eq!((failed.opcode, failed.imm_data), (sys::WC_RECV_RDMA_WITH_IMM, u32::MAX));
}

#[test]
fn a_message_without_a_receive_fails_or_waits_as_rnr_retry_says() {
    for shared in [false, true] {
        let machine = Machine::new(TWO);
        let wishes = plain().map(|wish| Wish { shared, ..wish });
        let ends = wishes.map(|wish| End::new(&machine, wish));
        let mut plan = ends[0].plan(&ends[1]);
        plan.rts.rnr_retry = 6;
        ends[0].follow(&plan);
        ends[1].connect(&ends[0]);
        let work = |from: &End<'_>, to: &End<'_>, id: u64| Work {
            opcode: sys::WR_RDMA_WRITE_WITH_IMM,
            id,
            immediate: id as u32,
            ..from.write_to(to, 8)
        };
        // Without a limit: three messages and a plain write wait, in order, and each receive lets one message through.
        for id in 1..=3 {
            assert_eq!(ends[1].post(work(&ends[1], &ends[0], id)), 0);
        }
        assert_eq!(ends[1].post(Work { id: 4, ..ends[1].write_to(&ends[0], 8) }), 0);
        assert_eq!((ends[1].outcomes(), ends[0].received().len()), (vec![], 0));
        assert_eq!(ends[0].receive([91]), 0);
        assert_eq!(ends[1].outcomes(), [(1, 0)]);
        assert_eq!(ends[0].receive([92, 93]), 0);
        assert_eq!(ends[1].outcomes(), [(2, 0), (3, 0), (4, 0)]);
        let got: Vec<_> = ends[0].received().iter().map(|done| (done.wr_id, u32::from_be(done.imm_data))).collect();
        assert_eq!(got, [(91, 1), (92, 2), (93, 3)]);
        // With a limit.
        assert_eq!(ends[0].post(work(&ends[0], &ends[1], 5)), 0);
        assert_eq!(ends[0].outcomes(), [(5, sys::WC_RNR_RETRY_EXC_ERR)]);
        assert_eq!((ends[0].state(), ends[1].state()), (sys::QPS_ERR, sys::QPS_RTS));
    }
}

#[test]
fn inline_data_that_waits_is_what_it_was_when_it_was_posted() {
    let machine = Machine::new(TWO);
    let mut ends = pair(&machine, plain());
    ends[0].fill(5);
    let mut work = ends[0].write_to(&ends[1], 64);
    (work.opcode, work.flags) = (sys::WR_RDMA_WRITE_WITH_IMM, sys::SEND_INLINE);
    assert_eq!(ends[0].post(work), 0);
    ends[0].fill(6);
    assert_eq!(ends[1].receive([1]), 0);
    assert_eq!((ends[1].byte(0), ends[1].byte(63), ends[1].byte(64)), (5, 5, 0));
}

#[test]
fn an_overrun_completion_queue_is_broken_loudly() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, [Wish { cq_entries: 2, ..Wish::default() }, plain()[1]]);
    let work = ends[0].write_to(&ends[1], 8);
    assert_eq!(ends[0].post_all(&[work; 3]), (0, 3));
    assert_eq!(ends[0].events(), [sys::EVENT_CQ_ERR]);
    assert!(machine.fake.complaint().contains("2 entries has overrun"), "{}", machine.fake.complaint());
    let mut room = [sys::Wc::default(); 8];
    assert_eq!(poll_once(ends[0].send_cq, &mut room), 2, "the completions before the overrun");
    assert_eq!(poll_once(ends[0].send_cq, &mut room), -1);
}

#[test]
fn a_silenced_device_completes_nothing_more_and_does_not_say_so() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, plain());
    let work = |from: usize, to: usize| ends[from].write_to(&ends[to], 8);
    assert_eq!((ends[0].post(work(0, 1)), ends[1].post(work(1, 0))), (0, 0));
    let name = machine.fake.queue_pairs()[0].device.clone();
    machine.fake.silence(&name).unwrap();
    assert_eq!((ends[0].post(work(0, 1)), ends[1].post(work(1, 0))), (0, 0));
    assert_eq!(ends[0].modify(&sys::QpAttributes { qp_state: sys::QPS_ERR, ..Default::default() }, sys::QP_STATE), 0);
    assert_eq!(ends[0].outcomes().len(), 1, "what it had completed before");
    let mut room = [sys::Wc::default(); 8];
    assert_eq!((poll_once(ends[0].send_cq, &mut room), ends[0].events()), (0, vec![]));
    assert_eq!(ends[1].outcomes().len(), 2, "the other device goes on");
    assert!(machine.fake.silence("nobody").is_err());
}

#[test]
fn a_queue_pair_that_is_not_ready_takes_no_work() {
    let machine = Machine::new(TWO);
    let ends = plain().map(|wish| End::new(&machine, wish));
    let (plan, work) = (ends[0].plan(&ends[1]), ends[0].write_to(&ends[1], 8));
    assert_eq!((ends[0].post(work), ends[0].receive([1])), (libc::EINVAL, libc::EINVAL), "in RESET");
    assert_eq!(ends[0].modify(&plan.init, TO_INIT), 0);
    assert_eq!((ends[0].post(work), ends[0].receive([1])), (libc::EINVAL, 0), "in INIT");
    assert_eq!(ends[0].modify(&plan.rtr, TO_RTR), 0);
    assert_eq!((ends[0].post(work), ends[0].receive([2])), (libc::EINVAL, 0), "in RTR");
    let own_receives_only = End::new(&machine, Wish { shared: true, ..Wish::default() });
    let mut request = sys::RecvWr { wr_id: 1, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
    let mut bad = ptr::null_mut();
    // SAFETY: the request outlives the call.
    let errno = unsafe {
        let post = (*own_receives_only.context).ops.post_recv.expect("there is ibv_post_recv");
        post(own_receives_only.qp, &raw mut request, &raw mut bad)
    };
    assert_eq!((errno, bad), (libc::EINVAL, &raw mut request), "receives for a shared queue are posted to that queue");
}

#[test]
fn unknown_opcodes_are_refused() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, plain());
    let good = ends[0].write_to(&ends[1], 8);
    for opcode in [2, 3, 5, 6, 99] {
        assert_eq!(ends[0].post_all(&[good, Work { opcode, ..good }]), (libc::EINVAL, 1), "opcode {opcode}");
    }
    assert_eq!(ends[0].outcomes().len(), 5, "the requests before it are carried out");
    assert_eq!(ends[0].state(), sys::QPS_RTS);
}

#[test]
fn a_queue_pair_that_is_gone_or_broken_or_was_reset_alone_does_not_respond() {
    let machine = Machine::new(TWO);
    let reset = sys::QpAttributes::default();
    let broken = sys::QpAttributes { qp_state: sys::QPS_ERR, ..reset };
    let mut ends = pair(&machine, plain());
    assert_eq!(ends[1].modify(&broken, sys::QP_STATE), 0);
    assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_RETRY_EXC_ERR)], "broken");

    // Both are reset and connected again with the same numbers.
    let restart = |end: &End<'_>| assert_eq!(end.modify(&reset, sys::QP_STATE), 0);
    ends.iter().for_each(restart);
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_SUCCESS)], "both were reset");

    // Only one is reset: the other's sequence numbers have moved on.
    restart(&ends[1]);
    ends[1].connect(&ends[0]);
    assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_RETRY_EXC_ERR)], "reset alone");
    assert!(machine.fake.complaint().contains("afresh"), "{}", machine.fake.complaint());

    let [first, second] = &mut ends;
    restart(first);
    first.connect(second);
    let work = first.write_to(second, 8);
    let other = End::new(&machine, Wish { device: 1, ..Wish::default() });
    drop(std::mem::replace(second, other));
    assert_eq!(first.post(work), 0);
    assert_eq!(first.outcomes(), [(1, sys::WC_RETRY_EXC_ERR)], "destroyed");
    assert!(machine.fake.complaint().contains("there is no queue pair"), "{}", machine.fake.complaint());
}

#[test]
fn work_that_waits_for_a_receive_fails_when_the_peer_goes() {
    let machine = Machine::new(TWO);
    let [first, second] = pair(&machine, plain());
    let work = Work { opcode: sys::WR_RDMA_WRITE_WITH_IMM, ..first.write_to(&second, 8) };
    assert_eq!(first.post_all(&[work, Work { id: 2, flags: 0, ..work }]), (0, 2));
    drop(second);
    assert_eq!(first.outcomes(), [(1, sys::WC_RETRY_EXC_ERR), (2, sys::WC_WR_FLUSH_ERR)]);
}

#[test]
fn resetting_forgets_receives_and_completions() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, plain());
    assert_eq!(ends[0].receive([1, 2, 3]), 0);
    assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
    assert_eq!(ends[0].modify(&sys::QpAttributes::default(), sys::QP_STATE), 0);
    assert_eq!((ends[0].outcomes(), ends[0].received().len()), (vec![], 0));
    assert_eq!(machine.fake.queue_pair(ends[0].number()).expect("it is open").receives, 0);
}

#[test]
fn objects_in_use_cannot_be_destroyed_and_no_object_twice() {
    let machine = Machine::new(TWO);
    let end = End::new(&machine, Wish { shared: true, ..Wish::default() });
    let functions = &machine.functions;
    // SAFETY: the library looks pointers up before it follows them; this test checks that.
    unsafe {
        for (what, status) in [
            ("a domain with regions", (functions.dealloc_pd)(end.pd)),
            ("a completion queue of a queue pair", (functions.destroy_cq)(end.send_cq)),
            ("a shared receive queue of a queue pair", (functions.destroy_srq)(end.srq)),
            ("a device with all of that", (functions.close_device)(end.context)),
        ] {
            assert_eq!(status, libc::EBUSY, "{what}");
        }
        let pd = (functions.alloc_pd)(end.context);
        assert_eq!(((functions.dealloc_pd)(pd), (functions.dealloc_pd)(pd)), (0, libc::EINVAL));
        assert!(machine.fake.complaint().contains("protection domain"));
        let cq = (functions.create_cq)(end.context, 1, ptr::null_mut(), ptr::null_mut(), 0);
        assert_eq!(((functions.destroy_cq)(cq), (functions.destroy_cq)(cq)), (0, libc::EINVAL));
        assert_eq!((functions.dereg_mr)(ptr::null_mut()), libc::EINVAL);
        assert_eq!((functions.destroy_qp)(ptr::null_mut()), libc::EINVAL);
        assert_eq!((functions.close_device)(ptr::null_mut()), libc::EINVAL);
        assert!((functions.alloc_pd)(ptr::null_mut()).is_null());
    }
}
