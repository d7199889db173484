//! The attributes of a lane's queue pairs at both ends when they are brought up; then bytes pass.

mod common;

use std::sync::Arc;

use common::{INFINIBAND, Machine, Pair, ROCE, Wish, assert_says, open, strict};
use railweave_fabric::{Access, Domain as _, LinkLayer, PendingRail as _, RailSpec, Role, SetupError, SetupStep};
use railweave_fabric_verbs::{VerbsConfig, VerbsDomain, sys};
use railweave_fake_ibverbs::QpReport;

/// The peer's address in a lane's packets: local identifier, presence of a global route header, and its GID's index.
fn route(lane: &QpReport) -> (u16, u8, u8) {
    let address = lane.attributes.ah_attr;
    (address.dlid, address.is_global, address.grh.sgid_index)
}

/// The GID to which packets go.
fn target(lane: &QpReport) -> [u8; 16] {
    lane.attributes.ah_attr.grh.dgid.0
}

fn ipv4(address: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

#[test]
fn a_lane_of_roce_is_given_all_that_both_ends_said() {
    let machine = Machine::new(&strict(
        "[[device]]\nname = 'a'\n[[device.port]]\nmtu = 4096\n\
        [[device]]\nname = 'b'\n[[device.port]]\nmtu = 1024\n",
    ));
    let mut pair = machine.pair(&Wish::default());
    let (near, far) = machine.both_lanes();
    for (own, peer, gid) in [(&near, &far, [10, 1, 0, 1]), (&far, &near, [10, 0, 0, 1])] {
        let given = own.attributes;
        assert_eq!((own.state, given.port_num, given.pkey_index), (sys::QPS_RTS, 1, 0));
        assert_eq!(given.qp_access_flags, sys::ACCESS_REMOTE_WRITE.cast_unsigned(), "peers may write and nothing else");
        assert_eq!((given.dest_qp_num, given.rq_psn), (peer.number, peer.attributes.sq_psn));
        assert_eq!(
            (given.path_mtu, given.max_dest_rd_atomic, given.min_rnr_timer),
            (3, 1, 12),
            "the smaller MTU of both"
        );
        let address = given.ah_attr;
        assert_eq!((address.port_num, address.sl, address.dlid), (1, 0, 0));
        assert_eq!((target(own), route(own)), (ipv4(gid), (0, 1, 1)));
        assert_eq!((address.grh.hop_limit, address.grh.traffic_class, address.grh.flow_label), (255, 0, 0));
        assert_eq!((given.timeout, given.retry_cnt, given.rnr_retry, given.max_rd_atomic), (20, 7, 7, 1));
    }
    pair.exchange();
}

#[test]
fn packet_numbers_are_random() {
    let machine = Machine::new(ROCE);
    let pairs = [machine.pair(&Wish { lanes: 4, ..Wish::default() }), machine.pair(&Wish::default())];
    let mut numbers: Vec<u32> = machine.fake.queue_pairs().iter().map(|lane| lane.attributes.sq_psn).collect();
    assert!(numbers.len() == 10 && numbers.iter().all(|number| *number < 1 << 24), "{numbers:x?}");
    numbers.sort_unstable();
    numbers.dedup();
    // Two of ten random numbers below 2^24 are equal once in 370,000 runs.
    assert_eq!(numbers.len(), 10, "{numbers:x?}");
    drop(pairs);
}

#[test]
fn lanes_of_one_rail_share_a_queue_and_carry_bytes_each() {
    let machine = Machine::new(&strict(ROCE));
    let mut pair = machine.pair(&Wish { lanes: 3, ..Wish::default() });
    let open = machine.fake.open();
    assert_eq!((open.queue_pairs, open.completion_queues, open.shared_receive_queues), (6, 2, 1));
    pair.exchange();
}

#[test]
fn on_one_subnet_of_infiniband_the_local_identifier_says_it_all() {
    let machine = Machine::new(INFINIBAND);
    let mut pair = machine.pair(&Wish::default());
    let (near, far) = machine.both_lanes();
    assert_eq!((route(&near), route(&far)), ((9, 0, 0), (7, 0, 0)));
    pair.exchange();
}

#[test]
fn a_port_of_infiniband_that_wants_a_global_header_gets_it_from_both_ends() {
    for wants in ["a", "b"] {
        let machine = Machine::new(&INFINIBAND.replace(
            &format!("[[device]]\nname = '{wants}'\n[[device.port]]\n"),
            &format!("[[device]]\nname = '{wants}'\n[[device.port]]\ngrh_required = true\n"),
        ));
        let mut pair = machine.pair(&Wish::default());
        let (near, far) = machine.both_lanes();
        assert_eq!((route(&near), route(&far)), ((9, 1, 0), (7, 1, 0)));
        assert_eq!(near.attributes.ah_attr.grh.hop_limit, 255);
        assert_ne!((target(&near), target(&far)), ([0; 16], [0; 16]));
        pair.exchange();
    }
}

#[test]
fn between_subnets_of_infiniband_packets_go_to_the_router() {
    // The GIDs of both ports with their places, and each end's route: the destination identifier, and 1 with a global
    // header.
    type Gid = (u8, &'static str);
    type Route = (u16, u8);
    let cases: [([Gid; 2], Route, Route); 3] = [
        // Routers know both ports by a number, which is in their GIDs.
        ([(1, "fec0:0:17:1::1"), (1, "fec0:0:18:2::2")], (0x18, 1), (0x17, 1)),
        // The same, but both ports are on one subnet.
        ([(1, "fec0:0:17:1::1"), (1, "fec0:0:18:1::2")], (9, 0), (7, 0)),
        // Routers know neither port by a number.
        ([(0, "fec0:0:0:1::1"), (0, "fec0:0:0:2::2")], (9, 1), (7, 1)),
    ];
    for ([near_gid, far_gid], near_route, far_route) in cases {
        let port = |name: &str, lid: u16, (index, gid): (u8, &str)| {
            let local = if index == 0 { String::new() } else { format!("gid.0 = ['fe80::{lid}', 'ib', 0]\n") };
            format!(
                "[[device]]\nname = '{name}'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = {lid}\n\
                 {local}gid.{index} = ['{gid}', 'ib', 0]\n"
            )
        };
        let machine = Machine::new(&(port("a", 7, near_gid) + &port("b", 9, far_gid)));
        let mut pair = machine.pair(&Wish::default());
        let (near, far) = machine.both_lanes();
        assert_eq!((route(&near).0, route(&near).1), near_route, "{near_gid:?} to {far_gid:?}");
        assert_eq!((route(&far).0, route(&far).1), far_route, "{far_gid:?} to {near_gid:?}");
        if near_route.1 == 1 {
            assert_eq!((route(&near).2, route(&far).2), (near_gid.0, far_gid.0));
            assert_eq!(target(&near), far_gid.1.parse::<std::net::Ipv6Addr>().unwrap().octets());
        }
        pair.exchange();
    }
}

#[test]
fn what_the_settings_say_is_given_to_both_ends() {
    let keys = "pkeys = [0xffff, 0x8001, 0x8002]\n";
    let machine = Machine::new(&format!(
        "[[device]]\nname = 'a'\n[[device.port]]\n{keys}[[device]]\nname = 'b'\n\
        [[device.port]]\n{keys}"
    ));
    let config = VerbsConfig {
        timeout: 14,
        retry_count: 3,
        pkey_index: 2,
        service_level: Some(5),
        traffic_class: Some(96),
        ..VerbsConfig::default()
    };
    let mut pair = machine.pair(&Wish::of(config));
    for lane in machine.fake.queue_pairs() {
        let (given, address) = (lane.attributes, lane.attributes.ah_attr);
        assert_eq!((given.timeout, given.retry_cnt, given.rnr_retry, given.pkey_index), (14, 3, 7, 2));
        assert_eq!((address.sl, address.grh.traffic_class), (5, 96));
    }
    pair.exchange();
    drop(pair);
    let refused = machine.try_pair(&Wish::of(VerbsConfig { pkey_index: 3, ..config })).err().unwrap();
    let SetupError::Refused { port, what, error } = &refused else { panic!("{refused:?}") };
    assert_eq!((port.as_str(), error.errno), ("a", Some(libc::EINVAL)));
    assert!(matches!(what, SetupStep::Init { partition_key: 3, port: 1, .. }), "{what:?}");
}

#[test]
fn partitions_that_differ_let_nothing_through() {
    let machine = Machine::new(
        "[[device]]\nname = 'a'\n[[device.port]]\npkeys = [0xffff, 0x8001]\n\
        [[device]]\nname = 'b'\n[[device.port]]\n",
    );
    let mut wish = Wish::default();
    wish.sender.pkey_index = 1;
    let mut pair = machine.pair(&wish);
    let (from, to) = (pair.near.block(10, Access::SOURCE), pair.far.block(10, Access::DATA));
    pair.near.post(0, from.source(10), to.place()).unwrap();
    assert_says(&machine.fake.complaint(), &["partition keys"]);
    assert_eq!(pair.near.failures().len(), 1);
}

/// The settings: service level, traffic class, and the traffic class of CTS.
type Settings = (Option<u8>, Option<u8>, Option<u8>);

/// Service level and traffic class of one end's packets.
type Classes = (u8, u8);

/// The settings, the connection's traffic class, and the classes of the sender's and the receiver's packets.
type ClassCase = (Settings, Option<u8>, Classes, Classes);

#[test]
fn a_traffic_class_is_the_one_set_or_the_one_of_the_connection_and_cts_have_their_own() {
    let roce: [ClassCase; 6] = [
        ((None, None, None), None, (0, 0), (0, 0)),
        ((None, None, None), Some(0x68), (0, 0x68), (0, 0x68)),
        ((None, Some(32), None), Some(0x68), (0, 32), (0, 32)),
        ((None, None, Some(64)), Some(0x68), (0, 0x68), (0, 64)),
        ((None, Some(32), Some(64)), None, (0, 32), (0, 64)),
        ((Some(3), None, None), Some(0x68), (3, 0x68), (3, 0x68)),
    ];
    let infiniband: [ClassCase; 3] = [
        ((None, None, None), None, (0, 0), (0, 0)),
        ((None, None, None), Some(0x63), (3, 0x63), (3, 0x63)),
        ((Some(7), None, Some(1)), Some(0x63), (7, 0x63), (7, 1)),
    ];
    let with_header = INFINIBAND.replace("[[device.port]]\n", "[[device.port]]\ngrh_required = true\n");
    for (description, cases) in [(ROCE, &roce[..]), (&with_header, &infiniband[..])] {
        for ((service_level, traffic_class, cts_traffic_class), of_job, sender, receiver) in cases.iter().copied() {
            let machine = Machine::new(description);
            let config = VerbsConfig { service_level, traffic_class, cts_traffic_class, ..VerbsConfig::default() };
            let mut pair = machine.pair(&Wish { traffic_class: of_job, ..Wish::of(config) });
            let (near, far) = machine.both_lanes();
            let classes = |lane: QpReport| (lane.attributes.ah_attr.sl, lane.attributes.ah_attr.grh.traffic_class);
            assert_eq!((classes(near), classes(far)), (sender, receiver), "{config:?} {of_job:?}");
            pair.exchange();
        }
    }
}

/// A machine whose ports have these addresses, best first.
fn addressed(near: &[&str], far: &[&str]) -> String {
    let port = |name: &str, addresses: &[&str]| {
        let gids =
            addresses.iter().enumerate().map(|(index, address)| format!("gid.{index} = ['{address}', 'roce2', 1]\n"));
        format!("[[device]]\nname = '{name}'\n[[device.port]]\n{}", gids.collect::<String>())
    };
    port("a", near) + &port("b", far)
}

#[test]
fn a_port_on_two_subnets_uses_the_address_on_the_subnet_of_its_peer() {
    // The addresses of both ports, and the indices that the sender and the receiver use.
    type Addresses = &'static [&'static str];
    let cases: [(Addresses, Addresses, u8, u8); 6] = [
        (&["10.0.1.1", "10.0.2.1"], &["10.0.2.2", "10.0.3.2"], 1, 0),
        // The receiver offers its best, which the sender does not share, and then follows the sender.
        (&["10.0.1.1", "10.0.2.1"], &["10.0.9.2", "10.0.1.2"], 0, 1),
        // The sender's best would reach the receiver's second, but the sender follows the receiver's offer.
        (&["10.0.1.1", "10.0.2.1"], &["10.0.2.2", "10.0.1.2"], 1, 0),
        (&["10.0.1.1", "10.0.2.1"], &["10.0.8.2", "10.0.9.2"], 0, 0),
        (&["fd00:1::1", "fd00:2::1"], &["fd00:2::2"], 1, 0),
        (&["10.0.1.1"], &["10.0.9.2", "10.0.1.2"], 0, 1),
    ];
    for (near_addresses, far_addresses, near_index, far_index) in cases {
        let machine = Machine::new(&addressed(near_addresses, far_addresses));
        let mut pair = machine.pair(&Wish { lanes: 2, ..Wish::default() });
        for (device, index) in [("a", near_index), ("b", far_index)] {
            let used: Vec<u8> = machine.lanes(device).iter().map(|lane| route(lane).2).collect();
            assert_eq!(used, [index; 2], "{device} of {near_addresses:?} and {far_addresses:?}");
        }
        pair.exchange();
    }
}

/// The index with which the device's last lane was brought up.
fn index_of(machine: &Machine, device: &str) -> u8 {
    route(machine.lanes(device).last().unwrap()).2
}

#[test]
fn a_gid_table_is_read_again_for_each_connection() {
    let machine = Machine::new(&addressed(&["10.0.0.1"], &["10.0.0.2"]));
    let (a, b) = (machine.port("a"), machine.port("b"));
    let mut old = Pair::open(&a, &b, &Wish::default()).unwrap();
    assert_eq!((index_of(&machine, "a"), index_of(&machine, "b")), (0, 0));
    // The same addresses at other places, as after `ip link set down` and up again.
    for (device, address) in [("a", [10, 0, 0, 1]), ("b", [10, 0, 0, 2])] {
        machine.fake.set_gid(device, 1, 0, None).unwrap();
        machine.fake.set_gid(device, 1, 2, Some(ipv4([10, 0, 9, 9]))).unwrap();
        machine.fake.set_gid(device, 1, 4, Some(ipv4(address))).unwrap();
    }
    drop(old);
    let mut new = Pair::open(&a, &b, &Wish::default()).unwrap();
    assert_eq!((index_of(&machine, "a"), index_of(&machine, "b")), (4, 4));
    new.exchange();
    // An entirely different address.
    drop(new);
    machine.fake.set_gid("a", 1, 4, None).unwrap();
    old = Pair::open(&a, &b, &Wish::default()).unwrap();
    assert_eq!((index_of(&machine, "a"), target(&machine.lanes("b")[0])), (2, ipv4([10, 0, 9, 9])));
    old.exchange();
}

/// Returns the GID of lanes that are opened at a port now.
fn gid_of_new_lanes(domain: &Arc<VerbsDomain>) -> Vec<u8> {
    let spec = RailSpec {
        role: Role::Sender,
        lanes: 1,
        send_depth: 8,
        receive_depth: 0,
        lane_receives: 0,
        traffic_class: None,
        peer: None,
    };
    domain.open_rail(&spec).unwrap().endpoints()[0].0[16..32].to_vec()
}

#[test]
fn a_gid_table_that_is_empty_for_a_moment_leaves_what_was_there() {
    let machine = Machine::new(&addressed(&["10.0.0.1"], &["10.0.0.2"]));
    let domain = open(&machine.port("a"), VerbsConfig::default(), |_| ()).unwrap();
    machine.fake.set_gid("a", 1, 0, None).unwrap();
    assert_eq!(gid_of_new_lanes(&domain), ipv4([10, 0, 0, 1]));
}

#[test]
fn what_was_excluded_while_an_address_was_there_does_not_take_its_place() {
    let link_local = Some("fe80::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
    for place in [0, 1] {
        let machine = Machine::new(&addressed(&["10.0.0.1"], &["10.0.0.2"]));
        machine.fake.set_gid("a", 1, 3, link_local).unwrap();
        let domain = open(&machine.port("a"), VerbsConfig::default(), |_| ()).unwrap();
        let gid = || gid_of_new_lanes(&domain);
        assert_eq!(gid(), ipv4([10, 0, 0, 1]));
        machine.fake.set_gid("a", 1, 0, None).unwrap();
        assert_eq!(gid(), ipv4([10, 0, 0, 1]), "link-local stays out");
        machine.fake.set_gid("a", 1, place, Some(ipv4([10, 0, 0, 9]))).unwrap();
        assert_eq!(gid(), ipv4([10, 0, 0, 9]), "another address is taken");
    }
}

#[test]
fn unlike_link_layers_are_told_apart_before_anything_is_connected() {
    let machine = Machine::new(
        "[[device]]\nname = 'a'\n[[device.port]]\n\
        [[device]]\nname = 'b'\n[[device.port]]\nlink_layer = 'infiniband'\n",
    );
    let refused = machine.try_pair(&Wish::default()).err().unwrap();
    let (ours, theirs) = (LinkLayer::InfiniBand, LinkLayer::Roce);
    assert_eq!(refused, SetupError::LinkLayers { port: "b".to_owned(), ours, theirs });
}

#[test]
fn a_port_that_went_down_since_it_was_found_is_not_opened() {
    let machine = Machine::new(ROCE);
    let (a, b) = (machine.port("a"), machine.port("b"));
    for (state, word) in [(sys::PORT_DOWN, "down"), (sys::PORT_INIT, "initialising"), (sys::PORT_ARMED, "armed")] {
        machine.fake.set_port_state("b", 1, state).unwrap();
        let refused = Pair::open(&a, &b, &Wish::default()).err().unwrap();
        let SetupError::PortDown { port, state } = &refused else { panic!("{refused:?}") };
        assert_eq!((port.as_str(), state.starts_with(word)), ("b", true), "{state}");
    }
    machine.fake.set_port_state("b", 1, sys::PORT_ACTIVE).unwrap();
    Pair::open(&a, &b, &Wish::default()).unwrap().exchange();
}

#[test]
fn a_rail_whose_lanes_are_not_all_connected_is_refused() {
    let machine = Machine::new(ROCE);
    let spec = RailSpec {
        role: Role::Sender,
        lanes: 2,
        send_depth: 8,
        receive_depth: 0,
        lane_receives: 0,
        traffic_class: None,
        peer: None,
    };
    let domain = open(&machine.port("a"), VerbsConfig::default(), |_| ()).unwrap();
    let mut pending = domain.open_rail(&spec).unwrap();
    // A peer that describes only one lane of two.
    let other = domain.open_rail(&RailSpec { lanes: 1, ..spec }).unwrap();
    pending.connect(&other.endpoints()).unwrap();
    assert!(!pending.is_ready());
    assert_eq!(pending.into_rail().err(), Some(SetupError::NotConnected { port: "a".to_owned() }));
}

#[test]
fn a_named_entry_is_found_again_after_another_address_had_its_place_for_a_moment() {
    let machine = Machine::new(&addressed(&["10.0.0.1"], &["10.0.0.2"]));
    let mut port = machine.port("a");
    port.table.rules.index = Some(0);
    let domain = open(&port, VerbsConfig::default(), |_| ()).unwrap();
    let gid = || gid_of_new_lanes(&domain);
    // The address goes, that of a container gets its place, an attempt looks, and it comes elsewhere.
    machine.fake.set_gid("a", 1, 0, Some(ipv4([10, 9, 9, 9]))).unwrap();
    assert_eq!(gid(), ipv4([10, 9, 9, 9]));
    machine.fake.set_gid("a", 1, 4, Some(ipv4([10, 0, 0, 1]))).unwrap();
    assert_eq!(gid(), ipv4([10, 0, 0, 1]));
}
