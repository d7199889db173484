//! Transfers between two queue pairs that are set up correctly.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{End, Machine, TWO, Wish};
use railweave_fabric_verbs::sys;

fn pair(machine: &Machine, wish: Wish) -> [End<'_>; 2] {
    let ends = [End::new(machine, wish), End::new(machine, Wish { device: 1, ..wish })];
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends
}

#[test]
fn a_ping_pong_of_writes_with_immediates() {
    let machine = Machine::new(TWO);
    for shared in [false, true] {
        let (before, devices_before) = (machine.fake.counts(), machine.fake.device_counts());
        let mut ends = pair(&machine, Wish { shared, ..Wish::default() });
        for round in 0..100_u32 {
            let (from, to) = ((round % 2) as usize, 1 - (round % 2) as usize);
            ends[from].fill(round as u8 + 1);
            assert_eq!(ends[to].receive([u64::from(round)]), 0);
            let mut work = ends[from].write_to(&ends[to], 100 + round);
            (work.opcode, work.immediate) = (sys::WR_RDMA_WRITE_WITH_IMM, 0x1234_0000 + round);
            assert_eq!(ends[from].post(work), 0);
            let [received] = ends[to].received()[..] else { panic!("one receive completes") };
            assert_eq!((received.status, received.opcode), (sys::WC_SUCCESS, sys::WC_RECV_RDMA_WITH_IMM));
            assert_eq!((received.wr_id, received.byte_len), (round.into(), 100 + round));
            assert_eq!((received.imm_data, received.qp_num), ((0x1234_0000 + round).to_be(), ends[to].number()));
            assert_eq!(received.wc_flags & 2, 2, "the completion has an immediate");
            let [sent] = ends[from].sent()[..] else { panic!("one send completes") };
            assert_eq!((sent.status, sent.opcode, sent.wr_id), (sys::WC_SUCCESS, sys::WC_RDMA_WRITE, 1));
            assert_eq!(ends[to].byte(99 + round as usize), round as u8 + 1);
        }
        let counts = machine.fake.counts().since(&before);
        assert_eq!((counts.writes_with_immediate, counts.work_requests()), (100, 100));
        assert_eq!((counts.receives, counts.receives_consumed, counts.completions), (100, 100, 200));
        assert_eq!((counts.signalled, counts.inline), (100, 0));
        assert_eq!(counts.bytes, (0..100).map(|round| 100 + round).sum::<u64>());
        // The counts of destroyed queues are included.
        for open in [true, false] {
            let devices = machine.fake.device_counts();
            assert_eq!(devices.keys().collect::<Vec<_>>(), ["sim0", "sim1"]);
            for (device, counts) in &devices {
                // The counts before lack a device on which no test has created a queue yet.
                let done = counts.since(&devices_before.get(device).copied().unwrap_or_default());
                let sends = [done.work_requests(), done.writes_with_immediate];
                assert_eq!((sends, [done.receives, done.completions]), ([50, 50], [50, 100]), "{device}, open: {open}");
            }
            if open {
                ends = pair(&machine, Wish { shared, ..Wish::default() });
            }
        }
        drop(ends);
        machine.assert_closed();
    }
}

#[test]
fn writes_go_where_they_are_told_and_nowhere_else() {
    let machine = Machine::new(TWO);
    let mut ends = pair(&machine, Wish::default());
    ends[0].fill(7);
    let mut work = ends[0].write_to(&ends[1], 1000);
    (work.from, work.remote) = (11, ends[1].address() + 500);
    assert_eq!(ends[0].post(work), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_SUCCESS)]);
    assert!((0..common::BYTES).all(|index| (ends[1].byte(index) == 7) == (500..1500).contains(&index)));
    assert_eq!(ends[1].received().len(), 0, "a plain write does not notify the other side");
}

#[test]
fn reads_bring_the_peers_bytes() {
    let machine = Machine::new(TWO);
    let mut ends = pair(&machine, Wish::default());
    ends[1].fill(9);
    let mut work = ends[0].write_to(&ends[1], 300);
    work.opcode = sys::WR_RDMA_READ;
    assert_eq!(ends[0].post(work), 0);
    let [done] = ends[0].sent()[..] else { panic!("one read completes") };
    assert_eq!((done.status, done.opcode, done.byte_len), (sys::WC_SUCCESS, sys::WC_RDMA_READ, 300));
    assert_eq!((ends[0].byte(299), ends[0].byte(300)), (9, 0));
}

#[test]
fn a_queue_pair_may_be_its_own_peer() {
    let machine = Machine::new(TWO);
    let mut end = End::new(&machine, Wish::default());
    end.connect(&end);
    end.fill(3);
    let mut work = end.write_to(&end, 1);
    (work.opcode, work.remote) = (sys::WR_RDMA_READ, end.address() + 100);
    assert_eq!(end.post(work), 0);
    assert_eq!(end.outcomes(), [(1, sys::WC_SUCCESS)]);
    // Its own access error breaks it once, without a deadlock.
    work.rkey ^= 0x100;
    assert_eq!(end.post(work), 0);
    assert_eq!(end.outcomes(), [(1, sys::WC_REM_ACCESS_ERR)]);
    assert_eq!(end.events(), [sys::EVENT_QP_ACCESS_ERR]);
}

#[test]
fn inline_data_needs_no_key_and_has_a_limit() {
    let machine = Machine::new(TWO);
    let mut ends = pair(&machine, Wish::default());
    ends[0].fill(5);
    let mut work = ends[0].write_to(&ends[1], 64);
    (work.lkey, work.flags) = (0, sys::SEND_INLINE | sys::SEND_SIGNALED);
    assert_eq!(ends[0].post(work), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_SUCCESS)]);
    assert_eq!((ends[1].byte(63), ends[1].byte(64)), (5, 0));
    work.length = 65;
    assert_eq!(ends[0].post(work), libc::EINVAL);
    (work.length, work.opcode) = (8, sys::WR_RDMA_READ);
    assert_eq!(ends[0].post(work), libc::EINVAL);
}

#[test]
fn no_bytes_need_no_keys() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, Wish::default());
    assert_eq!(ends[1].receive([8]), 0);
    let mut work = ends[0].write_to(&ends[1], 0);
    (work.opcode, work.lkey, work.rkey, work.remote) = (sys::WR_RDMA_WRITE_WITH_IMM, 0, 0, 0);
    assert_eq!(ends[0].post(work), 0);
    assert_eq!(ends[0].outcomes(), [(1, sys::WC_SUCCESS)]);
    assert_eq!(ends[1].received()[0].byte_len, 0);
}

#[test]
fn unsignalled_work_keeps_its_place_until_a_later_completion_is_polled() {
    let machine = Machine::new(TWO);
    let ends = pair(&machine, Wish { max_send_wr: 4, ..Wish::default() });
    let quiet = common::Work { flags: 0, ..ends[0].write_to(&ends[1], 8) };
    let loud = common::Work { id: 2, ..ends[0].write_to(&ends[1], 8) };
    assert_eq!(ends[0].post_all(&[quiet, quiet, quiet, loud, loud]), (libc::ENOMEM, 4), "the fifth has no place");
    assert_eq!(ends[0].post(quiet), libc::ENOMEM);
    assert_eq!(ends[0].outcomes(), [(2, sys::WC_SUCCESS)], "only signalled work completes");
    assert_eq!(ends[0].post_all(&[quiet; 4]), (0, 4));
    assert_eq!(ends[0].post(loud), libc::ENOMEM, "without a completion no place becomes free");
}

#[test]
fn receives_keep_their_places_until_their_completions_are_polled() {
    let machine = Machine::new(TWO);
    for shared in [false, true] {
        let ends = pair(&machine, Wish { shared, max_recv_wr: 3, ..Wish::default() });
        assert_eq!(ends[1].receive([1, 2, 3]), 0);
        assert_eq!(ends[1].receive([4]), libc::ENOMEM);
        let work = common::Work { opcode: sys::WR_RDMA_WRITE_WITH_IMM, ..ends[0].write_to(&ends[1], 8) };
        assert_eq!(ends[0].post(work), 0);
        assert_eq!(ends[1].receive([4]), libc::ENOMEM, "consumed, but not polled");
        assert_eq!(ends[1].received()[0].wr_id, 1, "in the order in which they were posted");
        assert_eq!(ends[1].receive([4]), 0);
    }
}

#[test]
fn two_senders_share_a_receive_queue_and_the_completion_tells_them_apart() {
    let machine = Machine::new(TWO);
    let first = pair(&machine, Wish { shared: true, ..Wish::default() });
    // The receiving side has a second queue pair on the same shared queue.
    let mut second = End::new(&machine, Wish { device: 1, ..Wish::default() });
    // SAFETY: the queues belong to the open device of `first`; the queue pair is created there and destroyed before
    // them.
    let extra = unsafe {
        let mut attributes: sys::QpInitAttributes = std::mem::zeroed();
        (attributes.send_cq, attributes.recv_cq, attributes.srq) = (first[1].send_cq, first[1].recv_cq, first[1].srq);
        attributes.cap = sys::QpCapabilities { max_send_wr: 4, max_send_sge: 1, ..sys::QpCapabilities::default() };
        attributes.qp_type = sys::QPT_RC;
        (machine.functions.create_qp)(first[1].pd, &raw mut attributes)
    };
    assert!(!extra.is_null());
    let own = std::mem::replace(&mut second.qp, extra);
    let sender = End::new(&machine, Wish::default());
    sender.connect(&second);
    second.connect(&sender);
    assert_eq!(first[1].receive([10, 11]), 0);
    for end in [&sender, &first[0]] {
        let mut work = end.write_to(&first[1], 8);
        work.opcode = sys::WR_RDMA_WRITE_WITH_IMM;
        assert_eq!(end.post(work), 0);
    }
    let got: Vec<(u64, u32)> = first[1].received().iter().map(|done| (done.wr_id, done.qp_num)).collect();
    assert_eq!(got, [(10, second.number()), (11, first[1].number())]);
    second.qp = own;
    // SAFETY: made above, destroyed once.
    assert_eq!(unsafe { (machine.functions.destroy_qp)(extra) }, 0);
}

#[test]
fn a_device_without_byte_counts_reports_0_bytes() {
    let machine = Machine::new(
        "[[device]]\nname = 'sim0'\n[[device.port]]\n\
        [[device]]\nname = 'sim1'\nbyte_counts = false\n[[device.port]]\n",
    );
    let ends = pair(&machine, Wish::default());
    assert_eq!(ends[1].receive([1]), 0);
    let work = common::Work { opcode: sys::WR_RDMA_WRITE_WITH_IMM, ..ends[0].write_to(&ends[1], 80) };
    assert_eq!(ends[0].post(work), 0);
    assert_eq!(ends[1].received()[0].byte_len, 0);
}

#[test]
fn one_thread_sends_while_another_receives_and_a_third_sets_up() {
    const MESSAGES: u32 = 2_000;
    /// Pointers from the library, which may be used from any thread.
    struct Anywhere<T>(T);
    // SAFETY: ibverbs is thread-safe (verbs(7)), and each queue is used by one thread here.
    unsafe impl<T> Sync for Anywhere<T> {}
    impl<T> Anywhere<T> {
        fn get(&self) -> &T {
            &self.0
        }
    }

    let machine = Anywhere(Machine::new(TWO));
    let ends = Anywhere(pair(machine.get(), Wish { shared: true, ..Wish::default() }));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [sender, receiver] = ends.get();
            let mut posted = 0;
            while posted < MESSAGES {
                let mut work = sender.write_to(receiver, 8);
                (work.opcode, work.immediate) = (sys::WR_RDMA_WRITE_WITH_IMM, posted);
                match sender.post(work) {
                    0 => posted += 1,
                    errno => assert_eq!(errno, libc::ENOMEM),
                }
                assert!(sender.sent().iter().all(|done| done.status == sys::WC_SUCCESS));
            }
        });
        scope.spawn(|| {
            let receiver = &ends.get()[1];
            assert_eq!(receiver.receive(0..4), 0);
            let mut expected = 0;
            while expected < MESSAGES {
                for done in receiver.received() {
                    assert_eq!((done.status, u32::from_be(done.imm_data)), (sys::WC_SUCCESS, expected));
                    expected += 1;
                    assert_eq!(receiver.receive([0]), 0);
                }
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                drop(pair(machine.get(), Wish::default()));
            }
        });
    });
}
