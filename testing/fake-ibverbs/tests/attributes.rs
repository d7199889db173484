//! Wrong attributes: ibv_modify_qp refuses those that a card would refuse; with the others nothing gets through.

mod common;

use common::{ACCESS, BYTES, End, Machine, Plan, TO_INIT, TO_RTR, TWO, Wish, raw};
use railweave_fabric_verbs::sys;

fn ends(machine: &Machine) -> [End<'_>; 2] {
    [End::new(machine, Wish::default()), End::new(machine, Wish { device: 1, ..Wish::default() })]
}

#[test]
fn an_attribute_that_does_not_fit_the_peer_lets_nothing_through() {
    type Spoil = fn(&mut Plan);
    let cases: [(&str, i32, Spoil); 6] = [
        ("rq_psn", 12, |plan| plan.rtr.rq_psn += 1),
        ("sq_psn", 12, |plan| plan.rts.sq_psn += 1),
        ("ends at this process", 12, |plan| plan.rtr.dest_qp_num ^= 0x80_0000),
        ("does not have", 12, |plan| plan.rtr.ah_attr.grh.dgid.0[15] += 1),
        ("another type", 12, |plan| plan.rtr.ah_attr.grh.sgid_index = 0),
        ("path MTU", 9, |plan| plan.rtr.path_mtu = 3),
    ];
    for (part, status, spoil) in cases {
        let machine = Machine::new(TWO);
        let ends = ends(&machine);
        let mut plan = ends[0].plan(&ends[1]);
        spoil(&mut plan);
        ends[0].follow(&plan);
        ends[1].connect(&ends[0]);
        assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
        assert_eq!(ends[0].outcomes(), [(1, status)], "{part}");
        assert!(machine.fake.complaint().contains(part), "{part}: {}", machine.fake.complaint());
    }
}

#[test]
fn a_peer_that_is_not_ready_does_not_respond() {
    let machine = Machine::new(TWO);
    for (steps, part) in [(0, "no port yet"), (1, "not ready to receive")] {
        let ends = ends(&machine);
        ends[0].connect(&ends[1]);
        if steps > 0 {
            assert_eq!(ends[1].modify(&ends[1].plan(&ends[0]).init, TO_INIT), 0);
        }
        assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
        assert_eq!(ends[0].outcomes(), [(1, sys::WC_RETRY_EXC_ERR)], "{part}");
        assert!(machine.fake.complaint().contains(part), "{part}: {}", machine.fake.complaint());
    }
}

#[test]
fn a_step_that_is_not_allowed_leaves_everything_as_it_was() {
    let machine = Machine::new(TWO);
    let ends = ends(&machine);
    let plan = ends[0].plan(&ends[1]);
    assert_eq!(ends[0].modify(&plan.rtr, TO_RTR), libc::EINVAL, "from RESET");
    assert_eq!(ends[0].modify(&plan.init, TO_INIT & !sys::QP_PORT), libc::EINVAL);
    assert!(machine.fake.complaint().contains("RESET to INIT needs PORT"), "{}", machine.fake.complaint());
    assert_eq!(ends[0].state(), sys::QPS_RESET);
    assert_eq!(ends[0].modify(&plan.init, TO_INIT), 0);
    assert_eq!(ends[0].state(), sys::QPS_INIT);
}

#[test]
fn attributes_can_be_read_back() {
    let machine = Machine::new(TWO);
    let ends = ends(&machine);
    let plan = ends[0].plan(&ends[1]);
    ends[0].follow(&plan);
    let report = machine.fake.queue_pair(ends[0].number()).expect("it is open");
    assert_eq!((report.device.as_str(), report.state), ("sim0", sys::QPS_RTS));
    let attributes = report.attributes;
    assert_eq!((attributes.port_num, attributes.dest_qp_num, attributes.timeout), (1, ends[1].number(), 14));
    assert_eq!(attributes.ah_attr.grh.dgid, plan.rtr.ah_attr.grh.dgid);
    assert_eq!((report.capabilities.max_send_wr, report.shared_receives), (16, false));
    let numbers: Vec<u32> = machine.fake.queue_pairs().iter().map(|report| report.number).collect();
    assert_eq!(numbers, [ends[0].number(), ends[1].number()]);
    assert!(machine.fake.queue_pair(1).is_none());
}

#[test]
fn infiniband_uses_lids() {
    let machine = Machine::new(
        "[[device]]\nname = 'sim0'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = 5\n\
         [[device]]\nname = 'sim1'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = 6\n",
    );
    for (lid, status) in [(6, sys::WC_SUCCESS), (7, sys::WC_RETRY_EXC_ERR)] {
        let ends = ends(&machine);
        for (end, peer, lid) in [(0, 1, lid), (1, 0, 5)] {
            let mut plan = ends[end].plan(&ends[peer]);
            plan.rtr.ah_attr = sys::AhAttributes { dlid: lid, port_num: 1, ..sys::AhAttributes::default() };
            ends[end].follow(&plan);
        }
        assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
        assert_eq!(ends[0].outcomes(), [(1, status)], "LID {lid}");
    }
}

#[test]
fn ece_is_offered_reduced_and_must_agree() {
    let machine = Machine::new(
        "[[device]]\nname = 'sim0'\nece = [0x15b3, 0x7]\n[[device.port]]\n\
         [[device]]\nname = 'sim1'\nece = [0x15b3, 0xe]\n[[device.port]]\n[[device]]\nname = 'sim2'\n[[device.port]]\n",
    );
    let (query, set) = (machine.functions.query_ece.expect("there"), machine.functions.set_ece.expect("there"));
    // SAFETY: the queue pairs are open, and there are places for the options.
    let query = |end: &End<'_>| unsafe {
        let mut ece = sys::Ece::default();
        let status = query(end.qp, &raw mut ece);
        (status, ece)
    };
    // SAFETY: the same as for `query`.
    let set = |end: &End<'_>, mut ece: sys::Ece| unsafe { set(end.qp, &raw mut ece) };
    for agree in [true, false] {
        let ends = ends(&machine);
        let (_, offered) = query(&ends[0]);
        assert_eq!(offered, sys::Ece { vendor_id: 0x15b3, options: 7, comp_mask: 0 });
        assert_eq!(set(&ends[1], offered), 0);
        let (_, reduced) = query(&ends[1]);
        assert_eq!(reduced.options, 6, "the options of both");
        assert_eq!(set(&ends[0], if agree { reduced } else { offered }), 0);
        assert_eq!(set(&ends[0], sys::Ece { vendor_id: 1, ..reduced }), libc::EINVAL, "another vendor");
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        assert_eq!(set(&ends[0], reduced), libc::EINVAL, "too late");
        assert_eq!(ends[0].post(ends[0].write_to(&ends[1], 8)), 0);
        assert_eq!(ends[0].outcomes(), [(1, if agree { 0 } else { sys::WC_RETRY_EXC_ERR })]);
        let report = machine.fake.queue_pair(ends[1].number()).expect("it is open");
        assert_eq!(report.ece, reduced);
    }
    let without = End::new(&machine, Wish { device: 2, ..Wish::default() });
    assert_eq!(query(&without).0, libc::EOPNOTSUPP);
    assert_eq!(set(&without, sys::Ece::default()), libc::EOPNOTSUPP);
}

#[test]
fn memory_is_registered_only_with_rights_and_a_range_that_make_sense() {
    let machine = Machine::new(TWO);
    let end = End::new(&machine, Wish::default());
    let mut memory = vec![0_u8; BYTES];
    let at = raw(&mut memory);
    let with_offset = machine.functions.reg_mr_iova2.expect("there");
    // SAFETY: the library refuses all of these before it follows a pointer.
    unsafe {
        let register = machine.functions.reg_mr;
        for (what, address, length, access) in [
            ("no bytes", at, 0, ACCESS),
            ("remote writes alone", at, 8, sys::ACCESS_REMOTE_WRITE),
            ("an unknown right", at, 8, 1 << 9),
            ("an optional right", at, 8, ACCESS | sys::ACCESS_RELAXED_ORDERING),
            ("unmapped memory", std::ptr::without_provenance_mut(1 << 46), 8, ACCESS),
            ("all memory", at, usize::MAX, ACCESS),
        ] {
            assert!(register(end.pd, address, length, access).is_null(), "{what}");
        }
        let relaxed = (ACCESS | sys::ACCESS_RELAXED_ORDERING) as u32;
        let region = with_offset(end.pd, at, 8, 0x1000, relaxed);
        assert!(!region.is_null() && (*region).lkey != (*region).rkey);
        assert_eq!((machine.functions.dereg_mr)(region), 0);
    }
}

#[test]
fn a_region_is_written_under_the_address_it_was_given() {
    let machine = Machine::new(TWO);
    let mut ends = ends(&machine);
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends[0].fill(4);
    let mut memory = vec![0_u8; 100];
    // SAFETY: the region is deregistered before its memory is freed.
    unsafe {
        let register = machine.functions.reg_mr_iova2.expect("there");
        let region = register(ends[1].pd, raw(&mut memory), 100, 0x7000, ACCESS as u32);
        let mut work = ends[0].write_to(&ends[1], 10);
        (work.rkey, work.remote) = ((*region).rkey, 0x7000 + 90);
        assert_eq!(ends[0].post(work), 0);
        assert_eq!(ends[0].outcomes(), [(1, 0)]);
        assert_eq!((machine.functions.dereg_mr)(region), 0);
    }
    assert_eq!((memory[89], memory[90], memory[99]), (0, 4, 4));
}

#[test]
fn a_dma_buf_is_written_through_its_descriptor() {
    let machine = Machine::new(
        "[[device]]\nname = 'sim0'\n[[device.port]]\n[[device]]\nname = 'sim1'\n[[device.port]]\n\
            [[device]]\nname = 'sim2'\ndma_buf = false\n[[device.port]]\n",
    );
    let register = machine.functions.reg_dmabuf_mr.expect("there");
    let mut ends = ends(&machine);
    let errno = || std::io::Error::last_os_error().raw_os_error();
    // SAFETY: no pointers to memory are passed; the descriptors belong to the test.
    unsafe {
        assert!(register(ends[1].pd, 0, 0, 0, -1, 0).is_null());
        assert_eq!(errno(), Some(libc::EBADF), "supported, but no descriptor");
        let without = End::new(&machine, Wish { device: 2, ..Wish::default() });
        assert!(register(without.pd, 0, 8, 0, -1, ACCESS).is_null());
        assert_eq!(errno(), Some(libc::EOPNOTSUPP));
        let descriptor = libc::memfd_create(c"buffer".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(descriptor, 8192), 0);
        for (offset, length, address) in [(100, 8000, 0x50_0000), (0, 100, 0x50_0064), (100, 8093, 0x50_0064)] {
            assert!(register(ends[1].pd, offset, length, address, descriptor, ACCESS).is_null());
            assert_eq!(errno(), Some(libc::EINVAL), "{length} bytes from {offset} at {address:#x}");
        }
        let region = register(ends[1].pd, 100, 8092, 0x50_0064, descriptor, ACCESS);
        assert!(!region.is_null());
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        ends[0].fill(8);
        let mut work = ends[0].write_to(&ends[1], 16);
        (work.rkey, work.remote) = ((*region).rkey, 0x50_0064 + 5000);
        assert_eq!(ends[0].post(work), 0);
        assert_eq!(ends[0].outcomes(), [(1, 0)]);
        let mut bytes = [0_u8; 18];
        assert_eq!(libc::pread(descriptor, raw(&mut bytes), 18, 5099), 18);
        assert_eq!((bytes[0], bytes[1], bytes[16], bytes[17]), (0, 8, 8, 0));
        assert_eq!((machine.functions.dereg_mr)(region), 0);
        libc::close(descriptor);
    }
}
