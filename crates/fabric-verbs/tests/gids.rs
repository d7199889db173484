//! The GIDs of a port's table that are used: real hosts' tables, and users' settings.

use std::net::IpAddr;

use railweave_fabric::{AddressRange, Family, LinkLayer};
use railweave_fabric_verbs::gid::{GidRules, PortGid, eligible, for_peer, named_again, reason_for_none};

/// An entry as `show_gids` lists it: index, address, version (0 if the machine does not say).
fn entry(index: u32, text: &str, version: u8) -> PortGid {
    let address: IpAddr = text.parse().unwrap();
    let bytes = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let prefix_len = if address.is_ipv4() { 24 } else { 64 };
    PortGid { bytes, index, version: (version > 0).then_some(version), prefix_len, interface: None, is_here: false }
}

/// The table of an adapter with one IPv4 and one IPv6 address.
fn both_families() -> Vec<PortGid> {
    vec![
        entry(0, "fe80::1", 1),
        entry(1, "fe80::1", 2),
        entry(2, "10.0.0.1", 1),
        entry(3, "10.0.0.1", 2),
        entry(4, "2001:db8::1", 1),
        entry(5, "2001:db8::1", 2),
    ]
}

fn roce(table: &[PortGid], rules: GidRules) -> Vec<u32> {
    eligible(table, LinkLayer::Roce, &rules).iter().map(|gid| gid.index).collect()
}

fn why(table: &[PortGid], rules: GidRules) -> String {
    assert_eq!(roce(table, rules), [0; 0], "the rules should leave none");
    let reason = reason_for_none(table, LinkLayer::Roce, &rules);
    assert!(!reason.contains('\n'));
    reason
}

fn range(text: &str, prefix_len: u8) -> GidRules {
    GidRules { range: Some(AddressRange { address: text.parse().unwrap(), prefix_len }), ..GidRules::default() }
}

#[test]
fn ipv4_of_version_2_comes_first() {
    assert_eq!(roce(&both_families(), GidRules::default()), [3, 5]);
    assert_eq!(roce(&both_families(), GidRules { roce_version: 1, ..GidRules::default() }), [2, 4]);
}

#[test]
fn a_host_with_ipv6_only_is_as_good_unless_ipv4_is_asked_for() {
    let table = [entry(0, "fe80::1", 1), entry(1, "fe80::1", 2), entry(2, "fd00::1", 1), entry(3, "fd00::1", 2)];
    assert_eq!(roce(&table, GidRules::default()), [3]);
    assert_eq!(roce(&table, GidRules { family: Some(Family::Ipv6), ..GidRules::default() }), [3]);
    let reason = why(&table, GidRules { family: Some(Family::Ipv4), ..GidRules::default() });
    for part in ["3 (fd00::1 is not of the requested", "1 (fe80::1 is not of the requested", "set address_family to"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn a_family_that_is_asked_for_leaves_the_other_out() {
    assert_eq!(roce(&both_families(), GidRules { family: Some(Family::Ipv4), ..GidRules::default() }), [3]);
    assert_eq!(roce(&both_families(), GidRules { family: Some(Family::Ipv6), ..GidRules::default() }), [5]);
}

#[test]
fn link_local_gids_are_for_ports_without_others() {
    let table = [entry(0, "fe80::1", 1), entry(1, "fe80::1", 2)];
    assert_eq!(roce(&table, GidRules::default()), [1]);
    assert_eq!(roce(&table, GidRules { roce_version: 1, ..GidRules::default() }), [0]);
    assert_eq!(roce(&table, GidRules { index: Some(0), ..GidRules::default() }), [0]);
    // The user's other settings still hold.
    why(&table, GidRules { family: Some(Family::Ipv4), ..GidRules::default() });
    why(&table, range("fd00::", 8));
    assert_eq!(roce(&table, range("fe80::", 10)), [1]);
    why(&table[..1], GidRules::default());
    let cable = [entry(0, "fe80::1", 2), entry(1, "169.254.0.1", 2), entry(2, "2001:db8::1", 2)];
    assert_eq!(roce(&cable, GidRules::default()), [2, 1]);
}

#[test]
fn where_versions_are_not_known_the_kernels_order_tells() {
    let lone = [entry(0, "fe80::1", 0), entry(1, "10.0.0.1", 0)];
    assert_eq!(roce(&lone, GidRules::default()), [1]);
    let twice = [entry(0, "fe80::1", 0), entry(1, "fe80::1", 0), entry(2, "10.0.0.1", 0), entry(3, "10.0.0.1", 0)];
    assert_eq!(roce(&twice, GidRules::default()), [3]);
    assert_eq!(roce(&twice, GidRules { roce_version: 1, ..GidRules::default() }), [2]);
    let ipv6 = [entry(0, "fe80::1", 0), entry(1, "fd00::1", 0)];
    assert_eq!(roce(&ipv6, GidRules::default()), [1]);
    assert_eq!(eligible(&lone, LinkLayer::Roce, &GidRules::default())[0].version, Some(2));
}

#[test]
fn a_version_that_is_not_there_is_named() {
    let table = [entry(0, "fe80::1", 1), entry(1, "10.0.0.1", 1)];
    let reason = why(&table, GidRules::default());
    for part in ["1 (10.0.0.1 is RoCE v1, not v2)", "set roce_version to"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn a_range_picks_one_of_several_subnets() {
    let table = [entry(0, "10.0.0.1", 2), entry(1, "192.168.7.1", 2), entry(2, "fd00::1", 2)];
    assert_eq!(roce(&table, range("192.168.0.0", 16)), [1]);
    assert_eq!(roce(&table, range("fd00::", 8)), [2]);
    assert_eq!(roce(&table, range("0.0.0.0", 0)), [0, 1]);
    assert_eq!(roce(&table, range("::ffff:10.0.0.0", 8)), [0]);
    let reason = why(&table, range("172.16.0.0", 12));
    for part in ["0 (10.0.0.1 is not in 172.16.0.0/12)", "set address_range to"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn an_index_that_is_asked_for_wins_over_all_rules() {
    let table = both_families();
    let index = |index| GidRules { index: Some(index), ..range("172.16.0.0", 12) };
    assert_eq!(roce(&table, index(2)), [2]);
    assert_eq!(roce(&table, index(0)), [0]);
    let reason = why(&table, index(9));
    for part in ["no entry 9", "3 (10.0.0.1)", "set gid_index to"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn an_entry_that_is_asked_for_is_followed_to_where_it_is_again() {
    let before = entry(3, "10.0.0.1", 2);
    let again = |table: &[PortGid]| {
        let gid = named_again(table, 3, &before, &before);
        (gid.index, gid.address().to_string())
    };
    let found = |index, address: &str| (index, address.to_owned());
    assert_eq!(again(&both_families()), found(3, "10.0.0.1"));
    // Both addresses went and came in the other order, after one of a container.
    let moved = [
        entry(0, "fe80::1", 1),
        entry(1, "fe80::1", 2),
        entry(2, "10.9.9.9", 1),
        entry(3, "10.9.9.9", 2),
        entry(6, "10.0.0.1", 1),
        entry(7, "10.0.0.1", 2),
    ];
    assert_eq!(again(&moved), found(7, "10.0.0.1"));
    assert_eq!(again(&moved[..4]), found(3, "10.9.9.9"), "the port has another address");
    assert_eq!(again(&[]), found(3, "10.0.0.1"), "it may be gone for a moment");
    for other in [entry(3, "fe80::1", 2), entry(3, "10.9.9.9", 1)] {
        assert_eq!(again(&[other]), found(3, "10.0.0.1"));
    }
    let link_local = entry(1, "fe80::1", 2);
    assert_eq!(named_again(&[entry(1, "fe80::2", 2)], 1, &link_local, &link_local).bytes, entry(1, "fe80::2", 2).bytes);
}

#[test]
fn a_peer_is_reached_from_the_subnet_that_it_is_on() {
    let table =
        [entry(0, "10.0.0.1", 2), entry(1, "10.0.1.1", 2), entry(2, "fd00::1", 2), entry(3, "fd00:0:0:1::1", 2)];
    let gids = eligible(&table, LinkLayer::Roce, &GidRules::default());
    let index = |peer: &str| for_peer(&gids, entry(0, peer, 2).bytes).index;
    assert_eq!(index("10.0.1.2"), 1);
    assert_eq!(index("10.0.0.2"), 0);
    assert_eq!(index("fd00:0:0:1::2"), 3);
    assert_eq!(index("10.9.0.1"), 0);
    assert_eq!(index("fe80::1"), 0);
}

#[test]
fn an_address_of_this_network_namespace_comes_before_those_of_others() {
    let table = |here: &[u32]| -> Vec<PortGid> {
        let rest = ["10.0.0.1", "10.0.0.2", "fd00::1", "169.254.0.1", "10.0.0.5"];
        let entries = rest.iter().enumerate().map(|(index, address)| entry(index as u32, address, 2));
        entries.map(|gid| PortGid { is_here: here.contains(&gid.index), ..gid }).collect()
    };
    assert_eq!(roce(&table(&[]), GidRules::default()), [0, 1, 4, 2, 3], "where nothing is known");
    assert_eq!(roce(&table(&[4]), GidRules::default()), [4, 0, 1, 2, 3]);
    assert_eq!(roce(&table(&[2]), GidRules::default()), [2, 0, 1, 4, 3]);
    assert_eq!(roce(&table(&[3, 4]), GidRules::default()), [4, 3, 0, 1, 2]);
    // The user's settings take precedence over it.
    assert_eq!(roce(&table(&[4]), GidRules { index: Some(1), ..GidRules::default() }), [1]);
    assert_eq!(roce(&table(&[2]), GidRules { family: Some(Family::Ipv4), ..GidRules::default() }), [0, 1, 4, 3]);
    // Both share the peer's network.
    let gids = eligible(&table(&[4]), LinkLayer::Roce, &GidRules::default());
    assert_eq!(for_peer(&gids, entry(0, "10.0.0.9", 2).bytes).index, 4);
}

#[test]
fn a_prefix_of_no_bits_is_no_subnet() {
    let mut wide = entry(1, "10.0.1.1", 2);
    wide.prefix_len = 0;
    let gids = [entry(0, "10.0.0.1", 2), wide.clone()];
    assert_eq!(for_peer(&gids, entry(0, "10.0.1.2", 2).bytes).index, 0);
    wide.prefix_len = 200;
    assert_eq!(for_peer(&[gids[0].clone(), wide], entry(0, "10.0.1.1", 2).bytes).index, 1);
}

#[test]
fn infiniband_uses_the_entry_that_routers_know() {
    let infiniband = |table: &[PortGid], rules: GidRules| -> Vec<u32> {
        eligible(table, LinkLayer::InfiniBand, &rules).iter().map(|gid| gid.index).collect()
    };
    let plain = [entry(0, "fe80::2:c903:1", 0), entry(1, "fe80::2:c903:2", 0)];
    assert_eq!(infiniband(&plain, GidRules::default()), [0]);
    let routable = [entry(0, "fe80::2:c903:1", 0), entry(1, "fec0:0:17:1::2:c903:1", 0)];
    assert_eq!(infiniband(&routable, GidRules::default()), [1]);
    assert_eq!(infiniband(&routable, GidRules { flid_index: 0, ..GidRules::default() }), [0]);
    assert_eq!(infiniband(&routable, GidRules { flid_index: 7, ..GidRules::default() }), [0]);
    // Settings for RoCE have no effect here.
    assert_eq!(infiniband(&plain, GidRules { index: Some(1), roce_version: 1, ..range("10.0.0.0", 8) }), [0]);
    assert_eq!(infiniband(&routable[1..], GidRules { flid_index: 7, ..GidRules::default() }), [0; 0]);
    let reason = reason_for_none(&[], LinkLayer::InfiniBand, &GidRules::default());
    assert!(reason.contains("no entry 0"), "{reason}");
}

#[test]
fn an_empty_table_and_a_long_one_are_told() {
    assert!(why(&[], GidRules::default()).contains("its GID table is empty"));
    let many: Vec<PortGid> = (0..20).map(|index| entry(index, "fd00::1", 1)).collect();
    let reason = why(&many, GidRules::default());
    assert!(reason.contains("7 (fd00::1 is RoCE v1, not v2) and 12 more"), "{reason}");
}
