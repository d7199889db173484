//! The habits of adapters, through the library: each is compared with an adapter that differs.

mod common;

use std::io;

use common::{ACCESS, BYTES, End, Machine, Wish, poll, raw};
use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::{Open, profiles};

/// Describes two devices of this profile, with the GIDs that `End` expects.
fn two(profile: &str) -> String {
    let device = |name: &str, net: u8| {
        format!(
            "[[device]]\nname = '{name}'\nprofile = '{profile}'\n\
            [[device.port]]\nmtu = 4096\ngid.1 = ['10.{net}.0.1', 'roce2', 1]\n"
        )
    };
    device("sim0", 0) + &device("sim1", 1)
}

/// Returns two connected ends.
fn connected(machine: &Machine, wish: Wish) -> [End<'_>; 2] {
    let ends = [End::new(machine, wish), End::new(machine, Wish { device: 1, ..wish })];
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends
}

fn errno() -> Option<i32> {
    io::Error::last_os_error().raw_os_error()
}

#[test]
fn every_adapter_carries_bytes_both_ways() {
    for (profile, title) in profiles() {
        let machine = Machine::new(&two(profile));
        let mut ends = connected(&machine, Wish::default());
        ends[0].fill(7);
        assert_eq!(ends[1].receive([5]), 0);
        let work = common::Work { opcode: sys::WR_RDMA_WRITE_WITH_IMM, immediate: 9, ..ends[0].write_to(&ends[1], 16) };
        assert_eq!(ends[0].post(work), 0, "{title}");
        assert_eq!(ends[0].outcomes(), [(1, 0)], "{title}");
        let received = ends[1].received();
        assert_eq!(
            (received[0].wr_id, received[0].byte_len, u32::from_be(received[0].imm_data)),
            (5, 16, 9),
            "{title}"
        );
        assert_eq!((ends[1].byte(15), ends[1].byte(16)), (7, 0), "{title}");
    }
}

/// Creates a queue pair with these numbers of sends and receives, of one piece each, and these bytes of inline data.
/// Returns the sizes that ibv_create_qp grants, or its error.
fn grant(machine: &Machine, end: &End<'_>, sends: u32, receives: u32, inline: u32) -> Result<(u32, u32, u32), i32> {
    // SAFETY: the domain and the queues exist; if a queue pair is created, it is destroyed.
    unsafe {
        let mut attributes: sys::QpInitAttributes = std::mem::zeroed();
        (attributes.send_cq, attributes.recv_cq, attributes.qp_type) = (end.send_cq, end.recv_cq, sys::QPT_RC);
        attributes.cap = sys::QpCapabilities {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let qp = (machine.functions.create_qp)(end.pd, &raw mut attributes);
        if qp.is_null() {
            return Err(errno().unwrap_or_default());
        }
        assert_eq!((machine.functions.destroy_qp)(qp), 0);
        Ok((attributes.cap.max_send_wr, attributes.cap.max_recv_wr, attributes.cap.max_inline_data))
    }
}

#[test]
fn granted_sizes_are_written_back() {
    for (profile, granted) in [("plain", (10, 10, 64)), ("rxe", (15, 15, 64)), ("connectx-7", (12, 16, 124))] {
        let machine = Machine::new(&two(profile));
        let end = End::new(&machine, Wish::default());
        assert_eq!(grant(&machine, &end, 10, 10, 64), Ok(granted), "{profile}");
    }
}

#[test]
fn granted_places_exist() {
    for (profile, places) in [("plain", 10), ("rxe", 15), ("connectx-7", 12)] {
        let machine = Machine::new(&two(profile));
        let ends = connected(&machine, Wish { max_send_wr: 10, ..Wish::default() });
        let works = vec![ends[0].write_to(&ends[1], 8); places + 1];
        assert_eq!(ends[0].post_all(&works), (libc::ENOMEM, places), "{profile}");
        let report = machine.fake.queue_pair(ends[0].number()).expect("it is open");
        assert_eq!(report.capabilities.max_send_wr, 10, "the size that was asked for");
    }
}

#[test]
fn a_completion_queue_may_be_longer_than_was_asked_for() {
    for (profile, entries) in [("plain", 100), ("connectx-7", 127), ("ionic", 100)] {
        let machine = Machine::new(&two(profile));
        let end = End::new(&machine, Wish { cq_entries: 100, ..Wish::default() });
        // SAFETY: the queue is not destroyed.
        assert_eq!(unsafe { (*end.send_cq).cqe }, entries, "{profile}");
    }
}

#[test]
fn data_whose_inline_flag_is_ignored_is_read_by_its_key_when_the_request_is_carried_out() {
    for (profile, ignored) in [("plain", false), ("mana", true)] {
        let machine = Machine::new(&two(profile));
        let mut ends = connected(&machine, Wish::default());
        ends[0].fill(1);
        machine.fake.cut("sim0", 1).expect("the port is there");
        let work = ends[0].write_to(&ends[1], 8);
        assert_eq!(ends[0].post(common::Work { flags: sys::SEND_SIGNALED | sys::SEND_INLINE, ..work }), 0);
        ends[0].fill(2);
        machine.fake.mend("sim0", 1).expect("the port is there");
        assert_eq!(ends[1].byte(0), if ignored { 2 } else { 1 }, "{profile}");
        let without_key = common::Work { lkey: 0, flags: sys::SEND_SIGNALED | sys::SEND_INLINE, ..work };
        assert_eq!(ends[0].post(without_key), 0);
        let status = if ignored { sys::WC_LOC_PROT_ERR } else { sys::WC_SUCCESS };
        assert_eq!(ends[0].outcomes(), [(1, 0), (1, status)], "{profile}");
    }
}

#[test]
fn a_queue_pair_without_receives_is_refused_if_its_queue_cannot_be_empty() {
    for (profile, refused) in [("plain", false), ("ionic", false), ("mana", true)] {
        let machine = Machine::new(&two(profile));
        let end = End::new(&machine, Wish::default());
        let granted = grant(&machine, &end, 4, 0, 0);
        assert_eq!(granted.err(), refused.then_some(libc::ENOMEM), "{profile}");
    }
}

#[test]
fn shared_receive_queues_are_missing_in_more_than_one_way() {
    for (profile, told, refusal) in [
        ("connectx-7", true, None),
        ("rxe", true, None),
        ("ionic", false, Some(libc::EOPNOTSUPP)),
        ("irdma", false, Some(libc::EOPNOTSUPP)),
        ("mana", false, Some(libc::EOPNOTSUPP)),
        ("mlx5-vf", true, Some(libc::ENOMEM)),
    ] {
        let machine = Machine::new(&two(profile));
        let end = End::new(&machine, Wish::default());
        // SAFETY: the device is open and the domain exists; if a queue is created, it is destroyed.
        unsafe {
            let mut device: sys::DeviceAttributes = std::mem::zeroed();
            assert_eq!((machine.functions.query_device)(end.context, &raw mut device), 0);
            assert_eq!(device.max_srq > 0, told, "{profile}");
            let mut attributes: sys::SrqInitAttributes = std::mem::zeroed();
            (attributes.attr.max_wr, attributes.attr.max_sge) = (8, 1);
            let srq = (machine.functions.create_srq)(end.pd, &raw mut attributes);
            assert_eq!(srq.is_null().then(errno).flatten(), refusal, "{profile}");
            assert!(srq.is_null() || (machine.functions.destroy_srq)(srq) == 0, "{profile}");
        }
    }
}

#[test]
fn rights_that_an_adapter_does_not_know_are_refused() {
    const ATOMIC: i32 = 1 << 3;
    for (profile, refused) in [("connectx-7", false), ("rxe", false), ("mana", true)] {
        let machine = Machine::new(&two(profile));
        let end = End::new(&machine, Wish::default());
        let mut memory = vec![0_u8; BYTES];
        let register = machine.functions.reg_mr_iova2.expect("there");
        for access in [ACCESS | sys::ACCESS_RELAXED_ORDERING, ACCESS | ATOMIC] {
            // SAFETY: the memory outlives its registration.
            unsafe {
                let region = register(end.pd, raw(&mut memory), 64, 0, access as u32);
                assert_eq!(region.is_null().then(errno).flatten(), refused.then_some(libc::EINVAL), "{profile}");
                assert!(region.is_null() || (machine.functions.dereg_mr)(region) == 0);
            }
        }
    }
}

#[test]
fn fields_that_a_completion_leaves_unset_are_junk() {
    for (profile, said) in [("plain", true), ("connectx-7", false), ("rxe", true)] {
        let machine = Machine::new(&two(profile));
        let ends = connected(&machine, Wish::default());
        let read = common::Work { opcode: sys::WR_RDMA_READ, ..ends[0].write_to(&ends[1], 8) };
        assert_eq!(ends[0].post_all(&[ends[0].write_to(&ends[1], 8), read]).0, 0);
        let lengths: Vec<u32> = ends[0].sent().iter().map(|completion| completion.byte_len).collect();
        assert_eq!(lengths, [if said { 8 } else { u32::MAX }, 8], "{profile}");
    }
}

#[test]
fn completions_may_outlive_their_queue_pair() {
    for (profile, stale) in [("connectx-7", 0), ("rxe", 2)] {
        let machine = Machine::new(&two(profile));
        let ends = connected(&machine, Wish::default());
        let number = ends[0].number();
        assert_eq!(ends[0].post_all(&[ends[0].write_to(&ends[1], 8); 2]).0, 0);
        let mut reset = sys::QpAttributes { qp_state: sys::QPS_RESET, ..sys::QpAttributes::default() };
        // SAFETY: the queue pair exists.
        assert_eq!(unsafe { (machine.functions.modify_qp)(ends[0].qp, &raw mut reset, sys::QP_STATE) }, 0);
        let left = poll(ends[0].send_cq);
        assert_eq!((left.len(), left.iter().all(|completion| completion.qp_num == number)), (stale, true), "{profile}");
        // The places are free nevertheless.
        ends[0].connect(&ends[1]);
        assert_eq!(ends[0].post_all(&[ends[0].write_to(&ends[1], 8); 15]).0, 0, "{profile}");
    }
}

#[test]
fn a_failed_user_of_a_shared_queue_raises_an_event_or_not() {
    for (profile, told) in [("connectx-7", true), ("rxe", false)] {
        let machine = Machine::new(&two(profile));
        let ends = connected(&machine, Wish { shared: true, ..Wish::default() });
        machine.fake.raise_on_queue_pair(ends[0].number(), sys::EVENT_QP_FATAL).expect("it is open");
        let events = ends[0].events();
        assert_eq!(events.contains(&sys::EVENT_QP_LAST_WQE_REACHED), told, "{profile}: {events:?}");
    }
}

#[test]
fn an_adapter_without_ece_options_still_answers_the_query() {
    for (profile, answer) in
        [("connectx-5", (0, 0)), ("connectx-7", (0, 0x3000_0002)), ("bnxt_re", (libc::EOPNOTSUPP, 0))]
    {
        let machine = Machine::new(&two(profile));
        let end = End::new(&machine, Wish::default());
        let query = machine.functions.query_ece.expect("there");
        let mut ece = sys::Ece::default();
        // SAFETY: the queue pair is open, and there is a place for the options.
        let status = unsafe { query(end.qp, &raw mut ece) };
        assert_eq!((status, ece.options), answer, "{profile}");
    }
}

#[test]
fn ports_follow_their_adapter() {
    let (first, second) = (sys::GID_TYPE_ROCE_V1, sys::GID_TYPE_ROCE_V2);
    let both = &[(first, false), (second, false), (first, true), (second, true)][..];
    let one = &[(second, false), (second, true)][..];
    for (profile, kinds, places, lid, message) in [
        ("connectx-8", both, 255, 0, 1 << 30),
        ("bnxt_re", both, 256, 0, 1 << 30),
        ("irdma", one, 32, 1, 0x7fff_ffff),
        ("mana", one, 16, 0, 0),
        ("rxe", one, 1024, 0, 0x80_0000),
    ] {
        let machine = Machine::new(&format!("[[device]]\nname = 'sim0'\nprofile = '{profile}'\n[[device.port]]\n"));
        let context = machine.open(0);
        // SAFETY: the context is open, and there are places for all results.
        unsafe {
            let mut port = sys::PortAttributes::default();
            assert_eq!((machine.functions.query_port)(context, 1, &raw mut port), 0);
            assert_eq!((port.gid_tbl_len, port.lid, port.max_msg_sz), (places, lid, message), "{profile}");
            let query = machine.functions.query_gid_ex.expect("there");
            for (index, &(kind, routable)) in kinds.iter().enumerate() {
                let mut entry = sys::GidEntry::default();
                let length = size_of::<sys::GidEntry>();
                assert_eq!(query(context, 1, index as u32, &raw mut entry, 0, length), 0, "{profile} {index}");
                assert_eq!((entry.gid_type, entry.gid.0[0] == 0), (kind, routable), "{profile} {index}");
            }
            assert_eq!((machine.functions.close_device)(context), 0);
        }
    }
}

#[test]
fn a_devices_own_keys_override_its_profile() {
    let machine = Machine::new(
        "[[device]]\nname = 'sim0'\nprofile = 'ionic'\nmax_srq = 5\n\
        [[device.port]]\nmax_message = 77\n",
    );
    let context = machine.open(0);
    // SAFETY: the context is open, and there are places for all results.
    unsafe {
        let mut device: sys::DeviceAttributes = std::mem::zeroed();
        assert_eq!((machine.functions.query_device)(context, &raw mut device), 0);
        assert_eq!((device.max_srq, device.max_cqe, device.vendor_id), (5, 65_435, 0x1dd8));
        let mut port = sys::PortAttributes::default();
        assert_eq!((machine.functions.query_port)(context, 1, &raw mut port), 0);
        assert_eq!((port.max_msg_sz, port.gid_tbl_len), (77, 256));
        assert_eq!((machine.functions.close_device)(context), 0);
    }
    assert_eq!(machine.fake.open(), Open::default());
    let error = machine
        .fake
        .describe(Some(
            "[[device]]\n\
        name = 'a'\nprofile = 'abacus'\n",
        ))
        .expect_err("there is none");
    assert!(error.contains("line 3") && error.contains("no profile abacus"), "{error}");
}
