//! Each rule of pairing, with a near miss that must fail; then properties of any pairing.

mod common;

use proptest::collection::vec;
use proptest::prelude::*;
use railweave_fabric::{MAX_RAILS, Route, Step};
use railweave_topology::{Between, Endpoint, Pair, Pairing, Ports, Side};

use common::{any_address, any_endpoint, endpoint, network};

/// Pairs the ports of two devices, about whose ways nothing is known.
fn pair(connector: &[Endpoint], acceptor: &[Endpoint], same_network: bool) -> Pairing {
    let between =
        Between { same_network, first_step: Step::Subnet, route: &|_| Route::Unknown, has_failed: &|_| false };
    railweave_topology::pair(Ports::of_device(connector), Ports::of_device(acceptor), &between)
}

fn paired(connector: &[&str], acceptor: &[&str], same_network: bool) -> Pairing {
    let ends = [connector, acceptor].map(|end| end.iter().map(|text| endpoint(text)).collect::<Vec<_>>());
    pair(&ends[0], &ends[1], same_network)
}

#[track_caller]
fn check(connector: &[&str], acceptor: &[&str], same_network: bool, expected: &[(usize, usize)]) {
    let found = paired(connector, acceptor, same_network);
    let pairs: Vec<_> = found.pairs.iter().map(|pair| (pair.connector, pair.acceptor)).collect();
    assert_eq!(pairs, expected, "{connector:?} {acceptor:?} {found:?}");
}

#[track_caller]
fn apart(connector: &[&str], acceptor: &[&str], expected: &[(usize, usize)]) {
    check(connector, acceptor, false, expected);
}

#[track_caller]
fn together(connector: &[&str], acceptor: &[&str], expected: &[(usize, usize)]) {
    check(connector, acceptor, true, expected);
}

#[track_caller]
fn reason(found: &Pairing, side: Side, index: usize) -> &str {
    &found.unpaired.iter().find(|lone| (lone.side, lone.index) == (side, index)).expect("paired").reason
}

#[test]
fn link_layers_must_be_equal() {
    apart(&["10.0.0.1/24 roce"], &["10.0.0.2/24 roce"], &[(0, 0)]);
    apart(&["10.0.0.1/24 roce"], &["10.0.0.2/24"], &[]);
    apart(&["10.0.0.1/24 ib"], &["10.0.0.2/24 roce"], &[]);
    together(&["10.0.0.1/24 roce"], &["10.0.0.1/24"], &[]);
}

#[test]
fn defined_planes_must_be_equal() {
    apart(&["10.0.0.1/24 p1"], &["10.0.0.2/24 p1"], &[(0, 0)]);
    apart(&["10.0.0.1/24 p1"], &["10.0.0.2/24"], &[(0, 0)]);
    apart(&["10.0.0.1/24"], &["10.0.0.2/24 p1"], &[(0, 0)]);
    apart(&["10.0.0.1/24 p1"], &["10.0.0.2/24 p2"], &[]);
    apart(&["10.0.0.1/24 p0"], &["10.0.0.2/24 p1"], &[]);
    apart(&["10.0.0.1/24 p1"], &["10.0.0.2/24 p0"], &[]);
    apart(&["10.0.0.1/24 p1"], &["10.9.0.2/24 p2"], &[]);
    together(&["10.0.0.1/24 p1"], &["10.0.0.1/24 p2"], &[]);
    apart(&["10.0.0.1/24 p0", "10.0.0.2/24 p1"], &["10.0.0.3/24 p1", "10.0.0.4/24 p0"], &[(0, 1), (1, 0)]);
}

#[test]
fn identical_addresses_are_one_only_on_the_same_network() {
    together(&["172.17.0.1/16"], &["172.17.0.1/16"], &[(0, 0)]);
    apart(&["172.17.0.1/16"], &["172.17.0.1/16"], &[]);
    apart(&["172.17.0.1/16", "10.0.0.1/24"], &["172.17.0.1/16", "10.0.0.2/24"], &[(1, 1)]);
    apart(&["172.17.0.1/16"], &["172.17.0.2/16"], &[(0, 0)]);
    // A partner on the subnet is not shared with the port of its own address.
    apart(&["10.0.0.1/24", "10.0.0.9/24"], &["10.0.0.9/24"], &[(0, 0)]);
}

#[test]
fn identical_addresses_go_before_rails_speeds_and_order() {
    let ends = ["10.0.0.1/24 r0 1g", "10.0.0.2/24 r1 2g"];
    together(&ends, &["10.0.0.2/24 r0 1g", "10.0.0.1/24 r1 2g"], &[(0, 1), (1, 0)]);
    apart(&["10.0.0.1/24 r0 1g"], &["10.0.0.2/24 r0 1g", "10.0.0.1/24 r0 1g"], &[(0, 0)]);
}

#[test]
fn loopback_pairs_with_itself_on_one_host() {
    let both = ["127.0.0.1/8", "127.0.0.2/8"];
    together(&both, &both, &[(0, 0), (1, 1)]);
    together(&both, &["127.0.0.2/8", "127.0.0.1/8"], &[(0, 1), (1, 0)]);
    together(&both[..1], &both[..1], &[(0, 0)]);
    together(&both[..1], &both[1..], &[(0, 0)]);
    together(&both, &both[..1], &[(0, 0)]);
    together(&both[1..], &both, &[(0, 1)]);
    together(&["::1/128"], &["::1/128"], &[(0, 0)]);
    apart(&both, &both, &[]);
    apart(&both[..1], &both[1..], &[]);
    apart(&["::1/128"], &["::1/128"], &[]);
    together(&["127.0.0.1/8"], &["10.0.0.1/24"], &[]);
    together(&["10.0.0.1/24"], &["127.0.0.1/8"], &[]);
    together(&["127.0.0.1/8"], &["::1/128"], &[]);
}

#[test]
fn ipv6_link_local_pairs_only_on_the_same_network() {
    together(&["fe80::1/64"], &["fe80::1/64"], &[(0, 0)]);
    together(&["fe80::1/64"], &["fe80::2/64"], &[(0, 0)]);
    apart(&["fe80::1/64"], &["fe80::2/64"], &[]);
    apart(&["fe80::1/64"], &["2001:db8::2/64"], &[]);
}

#[test]
fn addresses_that_stay_on_their_host_or_link_do_so_whatever_their_prefix() {
    for [inside, outside] in [["127.0.0.1/1", "10.0.0.1/1"], ["fe80::1/1", "fd00::1/1"]] {
        apart(&[inside], &[outside], &[]);
        apart(&[outside], &[inside], &[]);
    }
}

#[test]
fn link_local_gids_of_roce_pair_on_one_segment_and_not_beyond_it() {
    apart(&["fe80::1/64 roce"], &["fe80::2/64 roce"], &[(0, 0)]);
    apart(&["fe80::1/64 roce"], &["fe80::1/64 roce"], &[]);
    apart(&["fe80::1/64 roce"], &["fe80:0:0:1::2/64 roce"], &[]);
    apart(&["fe80::1/64 roce"], &["2001:db8::2/64 roce"], &[]);
    apart(&["fe80::1/64 roce"], &["10.0.0.1/24 roce"], &[]);
    apart(&["fe80::1/64 roce", "fd00::1/64 roce"], &["fd00::2/64 roce"], &[(1, 0)]);
}

#[test]
fn ipv4_link_local_pairs_on_its_subnet_but_not_across_routers() {
    apart(&["169.254.1.1/16"], &["169.254.2.2/16"], &[(0, 0)]);
    apart(&["169.254.1.1/24"], &["169.254.2.2/24"], &[]);
    apart(&["169.254.1.1/16"], &["10.0.0.2/24"], &[]);
    apart(&["10.0.0.2/24"], &["169.254.1.1/16"], &[]);
}

#[test]
fn gids_of_infiniband_are_not_ip_addresses() {
    apart(&["fe80::1:1/64 ib"], &["fe80::2:1/64 ib"], &[(0, 0)]);
    apart(&["fe80::1:1/64 ib"], &["fe80::1:1/64 ib"], &[(0, 0)]);
    apart(&["fe80::1:1/64 ib"], &["fe80:0:0:1::2:1/64 ib"], &[(0, 0)]);
    apart(&["fe80::1:1/64 ib"], &["fec0:0:0:1::2:1/64 ib"], &[(0, 0)]);
    apart(&["fe80::1:1/64 ib", "fec0:0:0:1::1:2/64 ib"], &["fec0:0:0:1::2:1/64 ib"], &[(1, 0)]);
    apart(&["fec0::1:1/64 ib"], &["fec0:0:0:1::2:1/64 ib"], &[(0, 0)]);
}

#[test]
fn addresses_that_name_no_host_never_pair() {
    together(&["0.0.0.0/24"], &["0.0.0.0/24"], &[]);
    apart(&["224.0.0.1/24"], &["224.0.0.2/24"], &[]);
    apart(&["::/64"], &["::2/64"], &[]);
    apart(&["10.0.0.1/24"], &["255.255.255.255/24"], &[]);
}

#[test]
fn direct_cables_pair_by_subnet_whatever_their_order() {
    let ends = ["10.0.1.1/24", "10.0.2.1/24"];
    apart(&ends, &["10.0.2.2/24", "10.0.1.2/24"], &[(0, 1), (1, 0)]);
    apart(&ends, &["10.0.2.2/24", "10.0.3.2/24"], &[(1, 0)]);
    apart(&ends, &["10.0.2.2/24", "10.0.1.2/16"], &[(0, 1), (1, 0)]);
    apart(&["10.0.1.0/31"], &["10.0.1.1/31", "10.0.1.2/31"], &[(0, 0)]);
}

#[test]
fn on_one_subnet_rails_then_speeds_then_order_decide() {
    let flat = ["10.0.0.1/24", "10.0.0.2/24"];
    apart(&flat, &["10.0.0.3/24", "10.0.0.4/24"], &[(0, 0), (1, 1)]);
    let speeds = ["10.0.0.1/24 100g", "10.0.0.2/24 25g"];
    apart(&speeds, &["10.0.0.3/24 25g", "10.0.0.4/24 100g"], &[(0, 1), (1, 0)]);
    apart(&speeds, &["10.0.0.3/24 40g", "10.0.0.4/24 80g"], &[(0, 1), (1, 0)]);
    let rails = ["10.0.0.1/24 r0 100g", "10.0.0.2/24 r1 25g"];
    apart(&rails, &["10.0.0.3/24 r0 25g", "10.0.0.4/24 r1 100g"], &[(0, 0), (1, 1)]);
    apart(&rails, &["10.0.0.3/24 r1 100g", "10.0.0.4/24 r0 25g"], &[(0, 1), (1, 0)]);
    // An undefined rail is nearer than a different one, and a different one is better than none.
    apart(&["10.0.0.1/24 r0"], &["10.0.0.3/24 r1", "10.0.0.4/24"], &[(0, 0), (0, 1)]);
    apart(&["10.0.0.1/24 r0", "10.0.0.2/24"], &["10.0.0.3/24 r1", "10.0.0.4/24"], &[(0, 1), (1, 0)]);
    apart(&["10.0.0.1/24 r0"], &["10.0.0.3/24 r1"], &[(0, 0)]);
}

#[test]
fn a_port_moves_to_another_partner_where_that_makes_one_more_pair() {
    let (either, of_plane_1) = ("10.0.0.1/24", "10.0.0.2/24 p1");
    let there = ["10.0.0.3/24 p1", "10.0.0.4/24 p2"];
    apart(&[either, of_plane_1], &there, &[(0, 1), (1, 0)]);
    apart(&there, &[either, of_plane_1], &[(0, 1), (1, 0)]);
}

#[test]
fn ports_in_order_keep_their_partners_where_the_other_end_has_more() {
    let (two, three) = (["10.0.0.1/24", "10.0.0.2/24"], ["10.0.0.3/24", "10.0.0.4/24", "10.0.0.5/24"]);
    apart(&two, &three, &[(0, 0), (0, 2), (1, 1)]);
    apart(&three, &two, &[(0, 0), (1, 1), (2, 0)]);
}

#[test]
fn the_last_rail_is_shared_by_the_end_with_the_lowest_address() {
    let host = |number: u8| -> Vec<String> {
        let common = [format!("10.1.0.{number}/24"), format!("10.2.0.{number}/24")];
        let cables = (0..5).map(|cable| format!("10.3.{cable}.{number}/24"));
        // One more port on the subnet of the host's number has no partner of its own.
        common.into_iter().chain(cables).chain([format!("10.{number}.0.9/24")]).collect()
    };
    let [low, high] = [host(1), host(2)];
    let [low, high] = [&low, &high].map(|end| end.iter().map(String::as_str).collect::<Vec<_>>());
    let eight = |extra: (usize, usize)| {
        let mut pairs: Vec<_> = (0..7).map(|port| (port, port)).chain([extra]).collect();
        pairs.sort_unstable();
        pairs
    };
    apart(&low, &high, &eight((7, 0)));
    apart(&high, &low, &eight((0, 7)));
}

#[test]
fn a_port_left_over_shares_the_partner_with_the_most_speed_left() {
    let two = ["10.0.0.1/24 100g", "10.0.0.2/24 100g"];
    apart(&two, &["10.0.0.9/24 200g"], &[(0, 0), (1, 0)]);
    apart(&["10.0.0.9/24 200g"], &two, &[(0, 0), (0, 1)]);
    apart(&two, &["10.0.0.9/32 200g"], &[(0, 0)]);
    let three = ["10.0.0.1/24 100g", "10.0.0.2/24 100g", "10.0.0.3/24 100g"];
    apart(&three, &["10.0.0.8/24 100g", "10.0.0.9/24 200g"], &[(0, 0), (1, 1), (2, 1)]);
    apart(&three, &["10.0.0.8/24 100g", "10.0.0.9/24 100g"], &[(0, 0), (1, 1), (2, 0)]);
    apart(&three, &["10.0.0.8/24 100g", "10.0.1.9/24 900g"], &[(0, 0), (1, 0), (2, 0)]);
    // Two left over: the second goes where the first did not.
    let four = [three[0], three[1], three[2], "10.0.0.4/24 100g"];
    apart(&four, &["10.0.0.8/24 200g", "10.0.0.9/24 200g"], &[(0, 0), (1, 1), (2, 0), (3, 1)]);
    // A rail takes no more than its port has: none of these two has any left, whatever their partners could use.
    let fast = ["10.0.0.1/24 400g", "10.0.0.2/24 400g", "10.0.0.3/24 400g"];
    apart(&fast, &["10.0.0.8/24 100g", "10.0.0.9/24 200g"], &[(0, 1), (1, 0), (2, 0)]);
    // The same rail id goes before the most speed.
    let rails = ["10.0.0.1/24 r0", "10.0.0.2/24 r1", "10.0.0.3/24 r0"];
    apart(&rails, &["10.0.0.8/24 r0 10g", "10.0.0.9/24 r1 90g"], &[(0, 0), (1, 1), (2, 0)]);
    // Partners are shared on one network too, except for loopback.
    together(&["10.0.0.1/24"], &["10.0.0.1/24", "10.0.0.2/24"], &[(0, 0), (0, 1)]);
}

#[test]
fn across_routers_only_where_no_subnet_is_shared() {
    let ends = ["10.0.1.1/24", "10.0.2.1/24"];
    apart(&ends, &["10.0.3.2/24", "10.0.4.2/24"], &[(0, 0), (1, 1)]);
    apart(&ends, &["10.0.3.2/24", "10.0.2.2/24"], &[(1, 1)]);
    // One to one: across routers nothing is shared.
    apart(&ends, &["10.0.3.2/24"], &[(0, 0)]);
    apart(&["10.0.1.1/24 r0", "10.0.2.1/24 r1"], &["10.0.3.2/24 r1", "10.0.4.2/24 r0"], &[(0, 1), (1, 0)]);
    // Neither loopback nor another family is routed.
    apart(&["127.0.0.1/8", "10.0.1.1/24"], &["10.0.3.2/24"], &[(1, 0)]);
    apart(&["10.0.1.1/24"], &["2001:db8::2/64", "10.0.3.2/24"], &[(0, 1)]);
    apart(&["10.0.1.1/24"], &["2001:db8::2/64"], &[]);
    apart(&["2001:db8::1/64"], &["2001:db8:1::2/64"], &[(0, 0)]);
    apart(&["10.0.0.1/0"], &["10.0.0.2/0"], &[(0, 0)]);
}

#[test]
fn a_connection_has_at_most_eight_rails() {
    let many =
        |host: u8, count: u8| -> Vec<String> { (0..count).map(|index| format!("10.0.{index}.{host}/24")).collect() };
    let (nine, others) = (many(1, 9), many(2, 9));
    let [nine, others] = [&nine, &others].map(|end| end.iter().map(String::as_str).collect::<Vec<_>>());
    let eight: Vec<_> = (0..8).map(|index| (index, index)).collect();
    apart(&nine[..8], &others[..8], &eight);
    apart(&nine, &others, &eight);
    let found = paired(&nine, &others, false);
    assert!(reason(&found, Side::Connector, 8).contains("at most 8 rails"));
    assert!(reason(&found, Side::Acceptor, 8).contains("at most 8 rails"));
    let flat: Vec<_> = (1..=9).map(|host| format!("10.0.0.{host}/24")).collect();
    let flat: Vec<_> = flat.iter().map(String::as_str).collect();
    let found = paired(&flat, &["10.0.0.99/24"], false);
    assert_eq!((found.pairs.len(), found.unpaired.len()), (8, 1));
}

#[test]
fn each_unpaired_port_has_a_reason() {
    for (connector, acceptor, part) in [
        ("10.0.0.1/24", "10.0.0.2/24 roce", "no port of the acceptor is TCP"),
        ("10.0.0.1/24 p3", "10.0.0.2/24 p4", "no port of the acceptor is in plane 3"),
        ("0.0.0.0/0", "10.0.0.2/24", "0.0.0.0 is not the address of one host"),
        ("10.0.0.1/24", "0.0.0.0/0", "no port of the acceptor has an address of one host"),
        ("10.0.0.1/24", "2001:db8::1/64", "no port of the acceptor has an IPv4 address"),
        ("2001:db8::1/64", "10.0.0.1/24", "no port of the acceptor has an IPv6 address"),
        ("127.0.0.1/8", "127.0.0.1/8", "the loopback address 127.0.0.1 reaches only its own host"),
        ("10.0.0.1/24", "127.0.0.1/8", "the acceptor offers loopback addresses"),
        ("fe80::1/64", "fe80::2/64", "fe80::1 is a link-local address"),
        ("2001:db8::1/64", "fe80::2/64", "the acceptor offers link-local addresses"),
        ("10.0.0.1/24", "10.0.0.1/24", "the acceptor has the address 10.0.0.1 too"),
    ] {
        let found = paired(&[connector], &[acceptor], false);
        let text = reason(&found, Side::Connector, 0);
        assert!(text.contains(part), "{connector} {acceptor}: {text}");
    }
    let found = paired(&["10.0.0.1/24", "10.0.1.1/24"], &["10.0.0.2/24", "10.0.2.2/24"], false);
    assert!(reason(&found, Side::Connector, 1).contains("subnet of 10.0.1.1/24"));
    assert!(reason(&found, Side::Acceptor, 1).contains("no port of the connector is on the subnet of 10.0.2.2/24"));
    let found = paired(&["10.0.0.1/24", "10.0.1.1/24"], &["10.0.2.2/24"], false);
    assert!(reason(&found, Side::Connector, 1).contains("has a partner"));
    let found = paired(&["10.0.0.1/24"], &[], false);
    assert!(reason(&found, Side::Connector, 0).contains("the acceptor has no ports"));
}

#[test]
fn the_closest_port_gives_the_reason_and_the_remedy() {
    let ends = ["10.0.0.1/24 roce", "2001:db8::1/64"];
    for ends in [ends, [ends[1], ends[0]]] {
        let found = paired(&ends, &["10.0.0.2/24"], false);
        assert!(reason(&found, Side::Acceptor, 0).contains("no port of the connector has an IPv4 address"));
        let text = found.refusal().unwrap();
        assert!(text.contains("addresses of one family") && !text.contains("ports of one kind"), "{text}");
    }
}

#[test]
fn a_refusal_of_many_ports_still_ends_with_the_remedy() {
    let host = |ports: u8, layer: &str| (0..ports).map(|port| format!("10.0.0.{port}/24{layer}")).collect::<Vec<_>>();
    for (ours, theirs, hidden) in [(3, 3, [0, 0]), (9, 16, [3, 10]), (1, 16, [0, 10])] {
        let ends = [host(ours, ""), host(theirs, " roce")];
        let [tcp, roce] = [0, 1].map(|end| ends[end].iter().map(String::as_str).collect::<Vec<_>>());
        let text = paired(&tcp, &roce, false).refusal().unwrap();
        assert!(text.len() <= 1024 && text.ends_with("or set fabric=tcp on both"), "{} bytes: {text}", text.len());
        for (end, hidden) in ["connector", "acceptor"].iter().zip(hidden) {
            let more = format!("; {hidden} more of the {end}'s ports; ");
            assert_eq!(text.contains(&more), hidden > 0, "{text}");
        }
    }
}

#[test]
fn without_a_rail_the_refusal_says_what_there_was() {
    let text = paired(&["10.0.0.1/24"], &["10.0.0.2/24 roce"], false).refusal().unwrap();
    for part in ["No local NIC found", "the connector's 10.0.0.1/24: ", "the acceptor's 10.0.0.2/24: "] {
        assert!(text.contains(part), "{text}");
    }
    assert!(paired(&[], &[], false).refusal().unwrap().contains("in rails"));
    assert_eq!(paired(&["10.0.0.1/24"], &["10.0.0.2/24"], false).refusal(), None);
}

#[test]
fn the_refusal_ends_with_a_remedy_for_the_obstacle() {
    for (connector, acceptor, remedy) in [
        ("10.0.0.1/24", "10.0.0.2/24 roce", "choose ports of one kind"),
        ("10.0.0.1/24", "2001:db8::1/64", "addresses of one family"),
        ("10.0.0.1/24 p3", "10.0.0.2/24 p4", "ports of one plane"),
        ("127.0.0.1/8", "127.0.0.1/8", "loopback addresses are for trials"),
        ("fe80::1/64 roce", "2001:db8::1/64 roce", "gid_index"),
        ("172.17.0.1/16", "172.17.0.1/16", "an address of its own"),
    ] {
        let text = paired(&[connector], &[acceptor], false).refusal().unwrap();
        assert!(text.contains(remedy), "{text}");
        assert!(!text.contains("common subnet, and name"), "{text}");
    }
    let text = paired(&["10.0.0.1/24"], &[], false).refusal().unwrap();
    assert!(text.contains("the acceptor has no ports; give both hosts an address on a common subnet"), "{text}");
}

proptest! {
    #[test]
    fn any_pairing_is_sound(
        connector in vec(any_endpoint(), 0..12),
        acceptor in vec(any_endpoint(), 0..12),
        same_network: bool,
    ) {
        let found = pair(&connector, &acceptor, same_network);
        prop_assert_eq!(&found, &pair(&connector, &acceptor, same_network));
        prop_assert!(found.pairs.len() <= MAX_RAILS);
        prop_assert!(found.pairs.is_sorted_by(|one, next| one < next), "in order and unique");
        let near = |p: &Pair| network(&connector[p.connector]).shares_subnet(&network(&acceptor[p.acceptor]))
            || connector[p.connector].address == acceptor[p.acceptor].address;
        prop_assert!(found.pairs.iter().all(near) || !found.pairs.iter().any(near), "near and routed do not mix");
        for pair in &found.pairs {
            let (ours, theirs) = (&connector[pair.connector], &acceptor[pair.acceptor]);
            prop_assert_eq!(ours.link_layer, theirs.link_layer);
            prop_assert!(ours.plane_id < 0 || theirs.plane_id < 0 || ours.plane_id == theirs.plane_id);
            prop_assert_eq!(network(ours).address().is_ipv4(), network(theirs).address().is_ipv4());
            if !same_network {
                prop_assert_ne!(ours.address, theirs.address);
                prop_assert!(!network(ours).address().is_loopback());
            }
        }
        for (side, ports) in [(Side::Connector, &connector), (Side::Acceptor, &acceptor)] {
            for index in 0..ports.len() {
                let is_paired = found.pairs.iter().any(|pair| pair.port(side) == index);
                let lone = found.unpaired.iter().filter(|lone| (lone.side, lone.index) == (side, index)).count();
                prop_assert_eq!(lone, usize::from(!is_paired));
            }
        }
    }

    #[test]
    fn ports_that_pair_with_nothing_change_nothing(
        connector in vec(any_endpoint(), 0..7),
        acceptor in vec(any_endpoint(), 0..7),
        strangers in vec((any::<bool>(), 0..8_usize, any_address()), 1..4),
        same_network: bool,
    ) {
        let before = pair(&connector, &acceptor, same_network);
        // Each end's ports with their earlier index, `None` for a stranger. All strangers are of one end, so that they
        // do not pair with each other.
        let number = |ports: &[Endpoint]| -> Vec<_> {
            ports.iter().enumerate().map(|(index, port)| (Some(index), *port)).collect()
        };
        let mut ends = [number(&connector), number(&acceptor)];
        let end = &mut ends[usize::from(strangers[0].0)];
        for (_, at, address) in strangers {
            let mut stranger = endpoint("10.0.0.1/24 ib");
            stranger.address = address;
            end.insert(at.min(end.len()), (None, stranger));
        }
        let [connector, acceptor] = ends.clone().map(|end| end.into_iter().map(|(_, port)| port).collect::<Vec<_>>());
        let after = pair(&connector, &acceptor, same_network);
        let earlier = |pair: &Pair| Some(Pair {
            connector: ends[0][pair.connector].0?,
            acceptor: ends[1][pair.acceptor].0?,
        });
        let after: Option<Vec<_>> = after.pairs.iter().map(earlier).collect();
        prop_assert_eq!(after, Some(before.pairs));
    }
}
