//! The refusals of connections whose ports do not pair, one of each kind: docs/refusals.md has the same sentences.
//! `RAILWEAVE_TEST_TABLE` names a file that they are written to.

use railweave_fabric::{LinkLayer, Route, Step};
use railweave_topology::{Between, Endpoint, Ports};
use railweave_transport::LeftOut;
use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A refusal: the kind, and a port of the connector's and one of the acceptor's.
struct Case {
    kind: &'static str,
    ports: [Endpoint; 2],
    route: Route,
    has_failed: bool,
}

fn port(link_layer: LinkLayer, address: &str, prefix_len: u8) -> Endpoint {
    let address = match address.parse().unwrap() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    Endpoint { link_layer, address, prefix_len, speed_mbps: 100_000, rail_id: -1, plane_id: -1 }
}

fn roce(address: &str) -> Endpoint {
    port(LinkLayer::Roce, address, 24)
}

fn cases() -> Vec<Case> {
    let case = |kind, connector, acceptor| Case {
        kind,
        ports: [connector, acceptor],
        route: Route::Unknown,
        has_failed: false,
    };
    let tcp = |address, prefix_len| port(LinkLayer::Tcp, address, prefix_len);
    let in_plane = |address, plane_id| Endpoint { plane_id, ..roce(address) };
    vec![
        case("RoCE against TCP", roce("10.0.0.1"), tcp("10.0.0.2", 24)),
        case("IPv4 against IPv6", roce("10.0.0.1"), port(LinkLayer::Roce, "fd00::2", 64)),
        case("unlike planes", in_plane("10.0.0.1", 1), in_plane("10.0.0.2", 2)),
        case("a loopback address", tcp("127.0.0.1", 8), tcp("10.0.0.2", 24)),
        case("link-local addresses", tcp("fe80::1", 64), tcp("fe80::2", 64)),
        case("one address on both hosts", tcp("172.17.0.1", 16), tcp("172.17.0.1", 16)),
        Case { route: Route::Elsewhere, ..case("no subnet and no route", roce("10.1.0.1"), roce("10.9.0.2")) },
        Case { has_failed: true, ..case("a cable that failed", roce("10.0.0.1"), roce("10.0.0.2")) },
    ]
}

#[test]
fn each_kind_of_refusal_is_on_the_page_and_takes_no_time() {
    railweave_options::name_settings();
    let mut lines = Vec::new();
    for Case { kind, ports: [connector, acceptor], route, has_failed } in &cases() {
        let between =
            Between { same_network: false, first_step: Step::Subnet, route: &|_| *route, has_failed: &|_| *has_failed };
        let [connector, acceptor] = [connector, acceptor].map(std::slice::from_ref);
        let begun = Instant::now();
        let found = railweave_topology::pair(Ports::of_device(connector), Ports::of_device(acceptor), &between);
        let text = found.refusal().unwrap_or_else(|| panic!("{kind}: {found:?}"));
        assert!(begun.elapsed() < Duration::from_secs(1), "{kind}");
        lines.push(format!("* {kind}: {text}"));
    }
    let silent = LeftOut::Silent { bytes: 4096, timeout: Duration::from_secs(10) };
    lines.push(format!("* a rail that brings nothing through: {silent}"));
    if let Some(file) = std::env::var_os("RAILWEAVE_TEST_TABLE") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        lines.iter().for_each(|line| writeln!(file, "{line}").unwrap());
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md")).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in lines {
        assert!(page.contains(&line), "docs/refusals.md does not have: {line}");
    }
}
