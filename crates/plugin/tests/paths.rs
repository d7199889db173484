//! Paths: rails over IPv6, and connections of which one path breaks.

mod common;

use common::{
    Pair, alone, each, in_namespace, info_lines, ip, noise, run_dir, start, until, until_carrier, warnings,
    warnings_with,
};
use railweave_abi::NcclResult;
use railweave_nccl_host::NetError;
use railweave_telemetry::{Rail, RailState, RunDir, read};
use std::net::{Ipv6Addr, TcpListener};

/// Moves messages of sizes that take every path through the protocol, and checks each.
fn converse(pair: &Pair<'_>) {
    for (seed, bytes) in [0, 1, 100, 8192, 65_537, 4_194_304].into_iter().enumerate() {
        pair.exchange(seed as u64, bytes);
    }
}

#[test]
fn a_rail_over_ipv6_carries_what_one_over_ipv4_does_alone_or_beside_it() {
    let cases = [("::1/128", vec!["::1"]), ("127.0.0.1/32,::1/128", vec!["127.0.0.1", "::1"])];
    each(
        &cases,
        |(rails, _)| vec![("RAILWEAVE_RAILS", *rails), BY_SPEED],
        |(_, addresses)| {
            if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
                return eprintln!("skipped: this machine has no IPv6 (::1: {error})");
            }
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            converse(&pair);
            let mut rails = plugin.rail_counters().expect("the plugin counts");
            rails.sort_by(|one, other| one.local.cmp(&other.local));
            let used: Vec<_> = rails.iter().map(|rail| rail.local.as_str()).collect();
            assert_eq!(used, *addresses);
            assert!(rails.iter().all(|rail| rail.local == rail.remote && rail.data_bytes > 1_000_000), "{rails:?}");
            pair.close();
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}

/// Creates two interfaces with an IPv6 address each. Returns false if this kernel cannot.
fn two_interfaces() -> bool {
    let made = [
        "link set lo up",
        "link add rw0 type veth peer name rw1",
        "link set rw0 up",
        "link set rw1 up",
        "-6 addr add fd77:1::1/64 dev rw0 nodad",
        "-6 addr add fd77:2::1/64 dev rw1 nodad",
    ];
    let all = made.into_iter().all(ip);
    if all {
        ["rw0", "rw1"].into_iter().for_each(until_carrier);
    } else {
        eprintln!("skipped: this machine has no veth interfaces with IPv6");
    }
    all
}

const TWO_INTERFACES: (&str, &str) = ("RAILWEAVE_RAILS", "=rw0,rw1");

/// Both rails carry half of each message, however fast they are.
const BY_SPEED: (&str, &str) = ("RAILWEAVE_POLICY", "speed");

#[test]
fn two_interfaces_with_ipv6_addresses_make_two_rails() {
    alone(&[TWO_INTERFACES, BY_SPEED], || {
        in_namespace("--net", || {
            if !two_interfaces() {
                return;
            }
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            converse(&pair);
            let rails = plugin.rail_counters().expect("the plugin counts");
            let carried: Vec<_> = rails.iter().map(|rail| (rail.local.as_str(), rail.data_bytes > 1_000_000)).collect();
            assert_eq!(carried, [("fd77:1::1", true), ("fd77:2::1", true)]);
            let is_said = |text: &str| info_lines().iter().any(|line| line.contains(text));
            assert!(is_said("fd77:1::1, fd77:2::1"), "{:?}", info_lines());
            // An address that comes and goes and that nothing uses is no reason to worry.
            for (change, text) in [
                ("-6 addr add fd77:2::9/64 dev rw1 nodad", "rw1: the interface has the address fd77:2::9"),
                ("-6 addr del fd77:2::9/64 dev rw1", "rw1: the interface has lost the address fd77:2::9"),
            ] {
                assert!(ip(change));
                until("the kernel's word", || is_said(text).then_some(()));
            }
            pair.close();
            assert_eq!(warnings(), Vec::<String>::new());
        });
    });
}

#[test]
fn a_path_that_breaks_while_the_peer_is_well_fails_what_needs_it_in_time() {
    alone(&[TWO_INTERFACES, BY_SPEED, ("RAILWEAVE_PEER_TIMEOUT", "1"), ("RAILWEAVE_RECOVERY", "0")], || {
        in_namespace("--net", || {
            if !two_interfaces() {
                return;
            }
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let message = noise(1, 4 << 20);
            let (from, to) = (pair.outgoing(&message), pair.incoming(message.len()));
            let recv = pair.irecv(&[to.part(7)]);
            // The session uses the other interface and goes on.
            assert!(ip("-6 addr del fd77:2::1/64 dev rw1"));
            let send = pair.isend(&from, message.len(), 7);
            let (mut sending, mut receiving) = (None, None);
            until("both failures", || {
                sending = sending.take().or_else(|| pair.test_send(&send).map(|size| assert_eq!(size, None)).err());
                receiving = receiving.take().or_else(|| pair.test_recv(&recv).map(|size| assert_eq!(size, None)).err());
                (sending.is_some() && receiving.is_some()).then_some(())
            });
            for error in [sending, receiving].into_iter().flatten() {
                assert!(matches!(error, NetError::Call { code: NcclResult::REMOTE_ERROR, .. }), "{error}");
            }
            assert_eq!(warnings_with(&["test: rail 1", "fd77:2::1"]).len(), 2);
            until("the kernel's word", || (warnings_with(&["rw1: the interface has lost"]).len() == 1).then_some(()));
            assert_eq!(warnings().len(), 3, "{:?}", warnings());
            // The kernel may report that there is no route, but need not.
            assert!(!warnings_with(&["has not acknowledged a byte for"]).is_empty(), "{:?}", warnings());
        });
    });
}

/// Waits until this is true of the telemetry's rails with this number, one at each end.
fn until_rails(number: u8, is_so: impl Fn(&Rail) -> bool) {
    until("the telemetry", || {
        let files = RunDir::named(Some(&run_dir())).files().ok()?;
        let snapshot = read(files.first()?).ok()?;
        let rails: Vec<_> = snapshot.state.rails.iter().filter(|rail| rail.number == number).collect();
        (rails.len() == 2 && rails.into_iter().all(&is_so)).then_some(())
    });
}

/// Waits until the telemetry gives the rails of the second interface this state.
fn until_states(state: RailState) {
    until_rails(1, |rail| rail.state == state);
}

#[test]
fn a_path_that_breaks_costs_its_rail_and_one_that_is_back_has_it_again() {
    alone(&[TWO_INTERFACES, BY_SPEED], || {
        in_namespace("--net", || {
            if !two_interfaces() {
                return;
            }
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let message = noise(1, 4 << 20);
            let (from, to) = (pair.outgoing(&message), pair.incoming(message.len()));
            for round in 1..=2 {
                let recv = pair.irecv(&[to.part(7)]);
                // The kernel drops what goes to this address, and reports nothing.
                assert!(ip("-6 addr del fd77:2::1/64 dev rw1"));
                let send = pair.isend(&from, message.len(), 7);
                assert_eq!(pair.finish(&[send], &[recv]).0, [4 << 20]);
                to.assert_holds(&message);
                assert!(!warnings_with(&["fd77:2::1", "is down", "rail 0 carries its load"]).is_empty());
                let usable = || {
                    plugin
                        .rail_counters()
                        .expect("the plugin counts")
                        .iter()
                        .map(|rail| rail.usable)
                        .collect::<Vec<_>>()
                };
                assert_eq!((usable(), until_states(RailState::Down)), (vec![true, false], ()));
                assert!(ip("-6 addr add fd77:2::1/64 dev rw1 nodad"));
                let is_back = || info_lines().iter().filter(|line| line.contains("is back after")).count() >= 2 * round;
                until("the rail", || is_back().then_some(()));
                assert_eq!((usable(), until_states(RailState::Up)), (vec![true, true], ()));
                let before = plugin.rail_counters().expect("the plugin counts")[1].data_bytes;
                converse(&pair);
                let after = plugin.rail_counters().expect("the plugin counts")[1].data_bytes;
                assert!(after - before > 1_000_000, "it carries {} bytes again", after - before);
            }
            pair.release_outgoing(from);
            pair.release_incoming(to);
            pair.close();
        });
    });
}

#[test]
fn a_session_whose_path_is_silent_goes_on_over_another() {
    alone(&[TWO_INTERFACES, BY_SPEED], || {
        in_namespace("--net", || {
            if !two_interfaces() {
                return;
            }
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let message = noise(1, 4 << 20);
            let (from, to) = (pair.outgoing(&message), pair.incoming(message.len()));
            let recv = pair.irecv(&[to.part(7)]);
            assert!(ip("-6 addr del fd77:1::1/64 dev rw0"));
            let send = pair.isend(&from, message.len(), 7);
            assert_eq!(pair.finish(&[send], &[recv]).0, [4 << 20]);
            to.assert_holds(&message);
            let has = |parts: &[&str]| info_lines().iter().any(|line| parts.iter().all(|part| line.contains(part)));
            assert!(has(&["fd77:2::1", "goes on over another socket"]), "{:?}", info_lines());
            pair.release_outgoing(from);
            pair.release_incoming(to);
            pair.close();
        });
    });
}

#[test]
fn an_interface_with_another_address_has_its_rail_again() {
    alone(&[TWO_INTERFACES, BY_SPEED], || {
        in_namespace("--net", || {
            if !two_interfaces() {
                return;
            }
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            converse(&pair);
            for (round, (before, after)) in [("2::1", "2::9"), ("2::9", "2::8"), ("2::8", "2::1")].iter().enumerate() {
                assert!(ip(&format!("-6 addr del fd77:{before}/64 dev rw1")));
                assert!(ip(&format!("-6 addr add fd77:{after}/64 dev rw1 nodad")));
                let is_back =
                    || info_lines().iter().filter(|line| line.contains("is back after")).count() >= 2 * (round + 1);
                until("the rail", || {
                    pair.exchange(7, 65_537);
                    is_back().then_some(())
                });
                let carried = || plugin.rail_counters().expect("the plugin counts")[1].data_bytes;
                let carried_before = carried();
                converse(&pair);
                assert!(carried() - carried_before > 1_000_000, "it carries {} bytes", carried() - carried_before);
                let (moved, other) = (format!("fd77:{after}"), "fd77:1::1");
                for (number, address) in [(1, moved.as_str()), (0, other)] {
                    until_rails(number, |rail| rail.local == address && rail.remote == address);
                }
            }
            pair.close();
        });
    });
}

#[test]
fn an_interface_that_goes_down_or_loses_its_address_takes_its_rail_along_at_once() {
    // Nothing else would notice: what this host sends to itself needs no link, and nothing is sent.
    let cases = [
        ("link set rw1 down", "rw1: the interface is down"),
        ("-6 addr del fd77:2::1/64 dev rw1", "rw1: the interface has lost the address fd77:2::1"),
    ];
    each(
        &cases,
        |_| vec![TWO_INTERFACES, BY_SPEED],
        |(act, said)| {
            in_namespace("--net", || {
                if !two_interfaces() {
                    return;
                }
                let (_plugin, net) = start();
                let pair = Pair::open(&net, &net, 0);
                converse(&pair);
                assert_eq!(warnings(), Vec::<String>::new());
                assert!(ip(act));
                until(said, || (!warnings_with(&["rail 1", "is down", said]).is_empty()).then_some(()));
                pair.close();
            });
        },
    );
}
