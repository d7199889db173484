//! Refusals: settings, machines without a usable rail, misuse of the API. Each has an error code and one line that a
//! user can act upon, and is never a crash.

mod common;

use common::{
    ONE_RAIL, Pair, TWO_RAILS, alone, connect, each, info_lines, init_refused, library, listen, load, noise, start,
    until, warnings,
};
use railweave_abi::NcclResult;
use railweave_nccl_host::net::{Handle, NetApi};
use railweave_nccl_host::{LoadError, NetError, Plugin};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

/// Variables with invalid values. NCCL's own variables accept any.
const WRONG: &[(&str, &str)] = &[
    ("RAILWEAVE_FABRIC", "ethernet"),
    ("RAILWEAVE_MODE", "fuse"),
    ("RAILWEAVE_RAILS", "mlx5_0+"),
    ("RAILWEAVE_RAILS", "10.0.0.0/33"),
    ("RAILWEAVE_RAILS", "eth0,10.0.0.1:::::"),
    ("RAILWEAVE_WEIGHTS", "0,0"),
    ("RAILWEAVE_WEIGHTS", "80;20"),
    ("RAILWEAVE_WEIGHTS", "1,1,1,1,1,1,1,1,1"),
    ("RAILWEAVE_LANES", "0"),
    ("RAILWEAVE_LANES", "17"),
    ("RAILWEAVE_OOB_IF", "^"),
    ("RAILWEAVE_CONTROL_ADDRESS", "="),
    ("RAILWEAVE_CONTROL_PORT", "65536"),
    ("RAILWEAVE_CONTROL_PORT", "5100-5000"),
    ("RAILWEAVE_HANDSHAKE_TIMEOUT", "0"),
    ("RAILWEAVE_HANDSHAKE_TIMEOUT", "soon"),
    ("RAILWEAVE_SPLIT_MIN", "2G"),
    ("RAILWEAVE_SPLIT_DATA_ON_LANES", "yes"),
    ("RAILWEAVE_SOCKET_BUFFER", "512M"),
    ("RAILWEAVE_TCP_CONGESTION", "two words"),
    ("RAILWEAVE_TRAFFIC_CLASS", "256"),
    ("RAILWEAVE_PEER_TIMEOUT", "0.5"),
    // keys.rs tests files that exist.
    ("RAILWEAVE_KEY_FILE", "railweave.key"),
    ("RAILWEAVE_KEY_FILE", ""),
    ("MPIB_SOUT_QP", "none"),
    ("MPIB_SUP_QP", "17"),
    ("MPIB_OOB_IF", "eth0:1:2:3:4"),
    ("NCCL_MESH_TIMEOUT_MS", "99"),
    ("RAILWEAVE_RDMA_RAILS", "mlx5_0,^mlx5_1"),
    ("MPIB_HCA_SOUT", "mlx5_0,mlx5_1"),
    ("MPIB_HCA_SUP", "^mlx5_1"),
    ("RAILWEAVE_IBVERBS_LIB", "/opt/rdma/lib/"),
    ("RAILWEAVE_GID_INDEX", "256"),
    ("RAILWEAVE_GID_INDEX", "mlx5_0:3,mlx5_0:5"),
    ("NCCL_MESH_GID_INDEX", "mlx5_0:3"),
    ("NCCL_MESH_DEBUG", "yes"),
    ("RAILWEAVE_LOG_LANES", "2"),
    ("RAILWEAVE_HYBRID", "2"),
    ("RAILWEAVE_ROUTES", "yes"),
    ("RAILWEAVE_PROBE_TIMEOUT", "0"),
    ("RAILWEAVE_RECOVERY", "maybe"),
    ("RAILWEAVE_RAIL_TIMEOUT", "0.04"),
    ("RAILWEAVE_OUTAGE_TIMEOUT", "0.5"),
    ("RAILWEAVE_ROCE_VERSION", "0"),
    ("RAILWEAVE_ADDRESS_FAMILY", "inet"),
    ("RAILWEAVE_ADDRESS_RANGE", "10.0.0.0/33"),
    ("RAILWEAVE_PREFIX_LENGTH", "0"),
    ("RAILWEAVE_FLID_GID_INDEX", "-1"),
    ("RAILWEAVE_MERGE_NICS", "2"),
    ("RAILWEAVE_MERGE_VFS", "2"),
    ("RAILWEAVE_PCI_ORDER", "2"),
    ("RAILWEAVE_ACK_TIMEOUT", "32"),
    ("RAILWEAVE_RETRY_COUNT", "8"),
    ("RAILWEAVE_SRQ", "2"),
    ("RAILWEAVE_DATA_DIRECT", "3"),
    ("RAILWEAVE_MLX5_LIB", "/opt/rdma/lib/"),
    ("RAILWEAVE_MODIFY_RETRIES", "1000001"),
    ("RAILWEAVE_MODIFY_RETRY_PAUSE", "3601"),
    ("RAILWEAVE_MODIFY_RETRY_ALL", "2"),
    ("RAILWEAVE_RETURN_ASYNC_EVENTS", "2"),
    ("RAILWEAVE_PKEY_INDEX", "65536"),
    ("RAILWEAVE_SERVICE_LEVEL", "16"),
    ("RAILWEAVE_CTS_TRAFFIC_CLASS", "256"),
    ("RAILWEAVE_ECE", "2"),
    ("RAILWEAVE_RELAXED_ORDERING", "3"),
    ("RAILWEAVE_BYTE_COUNTS", "2"),
    ("RAILWEAVE_ADAPTIVE_ROUTING", "-2"),
    ("RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", "2G"),
    ("RAILWEAVE_FLUSH", "2"),
    ("RAILWEAVE_POLICY", "fastest"),
    ("RAILWEAVE_RUN_DIR", "relative"),
    ("RAILWEAVE_TRACE", "relative"),
    ("RAILWEAVE_TRACE_MAX", "1023K"),
];

/// Returns the code of a refused call.
fn code<T: std::fmt::Debug>(result: Result<T, NetError>) -> NcclResult {
    match result {
        Err(NetError::Call { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_wrong_value_stops_init_with_one_line_that_names_variable_value_and_what_is_allowed() {
    let named: BTreeSet<_> = WRONG.iter().map(|(variable, _)| *variable).collect();
    let all = railweave_options::TABLE.iter().flat_map(railweave_options::Entry::all_variables);
    let all: BTreeSet<_> = all.filter(|name| !railweave_options::Source::Variable(name).is_nccls()).collect();
    assert_eq!(named, all, "every variable has a wrong value here");
    each(
        WRONG,
        |wrong| vec![*wrong],
        |(variable, value)| {
            let said = init_refused(&load(None), &[(variable, value)]);
            let named = format!("init: {variable}: \"{value}\"");
            assert!(said.contains(&named) && said.contains("; allowed: "), "{said}");
            let entry = railweave_options::TABLE.iter().find(|entry| entry.variable() == *variable);
            assert!(entry.is_none_or(|entry| said.contains(entry.allowed)), "{said}");
        },
    );
}

#[test]
fn values_that_nccl_tolerates_stop_nothing_and_are_logged() {
    let odd = [
        TWO_RAILS,
        ("NCCL_IB_RETRY_CNT", "13"),
        ("NCCL_IB_TC", "fast"),
        // A variable that two settings read.
        ("NCCL_SOCKET_IFNAME", "^"),
        ("NCCL_IB_OOO_RQ", "1"),
        ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"),
    ];
    alone(&odd, || {
        let (_plugin, net) = start();
        let warnings = warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        for text in ["NCCL_SOCKET_IFNAME: \"^\" names nothing", "NCCL_IB_TC: \"fast\"", "NCCL_IB_RETRY_CNT: \"13\""] {
            let said = warnings.iter().filter(|warning| warning.contains(text) && warning.contains("; allowed: "));
            assert_eq!(said.count(), 1, "{text}: {warnings:?}");
        }
        let named = |line: &&String| line.contains("NCCL_IB_OOO_RQ, NCCL_IB_RESILIENCY_PORT_FAILOVER");
        assert_eq!(info_lines().iter().filter(named).count(), 1);
        Pair::open(&net, &net, 0).exchange(1, 1000);
    });
}

#[test]
fn each_of_several_wrong_values_has_its_line() {
    alone(&[("RAILWEAVE_LANES", "x"), ("RAILWEAVE_MODE", "y"), ("MPIB_SUP_QP", "z")], || {
        assert_eq!(code(load(None).init(1, None)), NcclResult::INVALID_USAGE);
        let warnings = warnings();
        assert_eq!(warnings.len(), 2, "a variable without effect is not an error: {warnings:?}");
        for (warning, variable) in warnings.iter().zip(["RAILWEAVE_MODE", "RAILWEAVE_LANES"]) {
            assert!(warning.contains(variable), "{warnings:?}");
        }
    });
}

#[test]
fn an_unknown_setting_is_warned_of_and_stops_nothing() {
    alone(&[TWO_RAILS, ("RAILWEAVE_LANE", "2")], || {
        let (_plugin, net) = start();
        assert_eq!(warnings().len(), 1);
        assert!(warnings()[0].contains("RAILWEAVE_LANE ") && warnings()[0].contains("RAILWEAVE_LANES"));
        Pair::open(&net, &net, 0).exchange(1, 1000);
    });
}

#[test]
fn settings_that_leave_no_rail_stop_init() {
    let cases = [
        (vec![("RAILWEAVE_RAILS", "203.0.113.0/24")], ["No usable port", "RAILWEAVE_RAILS=203.0.113.0/24"]),
        (vec![("RAILWEAVE_RAILS", "=no-such-interface")], ["No usable port", "RAILWEAVE_RAILS==no-such-interface"]),
        (
            vec![ONE_RAIL, ("RAILWEAVE_CONTROL_ADDRESS", "203.0.113.0/24")],
            ["RAILWEAVE_CONTROL_ADDRESS=203.0.113.0/24 names no address of this host", "lo (127.0.0.1)"],
        ),
        (
            vec![TWO_RAILS, ("RAILWEAVE_CONTROL_ADDRESS", "127.0.0.1")],
            ["RAILWEAVE_CONTROL_ADDRESS=127.0.0.1/32 leaves out 127.0.0.2", "name it too"],
        ),
        (
            vec![TWO_RAILS, ("RAILWEAVE_CONTROL_ADDRESS", "127.0.0.2,127.0.0.1/32"), ("RAILWEAVE_OOB_IF", "^lo")],
            ["RAILWEAVE_OOB_IF=^lo", "for control sessions"],
        ),
        (vec![TWO_RAILS, ("RAILWEAVE_WEIGHTS", "0,0,5")], ["RAILWEAVE_WEIGHTS", "2 rail(s)"]),
        (vec![TWO_RAILS, ("RAILWEAVE_TCP_CONGESTION", "no-such")], ["RAILWEAVE_TCP_CONGESTION=no-such", "reno"]),
        (vec![TWO_RAILS, ("RAILWEAVE_OOB_IF", "=no-such-interface")], ["RAILWEAVE_OOB_IF", "lo (127.0.0.1)"]),
        (vec![("RAILWEAVE_FABRIC", "verbs")], ["RAILWEAVE_FABRIC=verbs", "RAILWEAVE_FABRIC=tcp"]),
    ];
    each(
        &cases,
        |(settings, _)| settings.clone(),
        |(settings, words)| {
            let plugin = load(None);
            let said = init_refused(&plugin, settings);
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
            // It says the same again.
            assert_eq!(code(plugin.init(1, None)), NcclResult::INVALID_USAGE);
            assert_eq!(warnings(), [said.clone(), said]);
        },
    );
}

#[test]
fn a_control_port_that_is_taken_makes_listen_fail_and_a_range_goes_on_to_the_next() {
    // Bound by the test while its scenarios run.
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let first = taken.local_addr().unwrap().port();
    let (one, range) = (first.to_string(), format!("{first}-{}", first.saturating_add(20)));
    each(
        &[one, range],
        |ports| vec![ONE_RAIL, ("RAILWEAVE_CONTROL_PORT", ports)],
        |ports| {
            let (_plugin, net) = start();
            if ports.contains('-') {
                return Pair::open(&net, &net, 0).exchange(1, 1000);
            }
            for round in 1..=2 {
                assert_eq!(code(net.listen(0, &mut Handle::default())), NcclResult::SYSTEM_ERROR);
                let warnings = warnings();
                assert_eq!(warnings.len(), round, "{warnings:?}");
                let setting = std::env::var("RAILWEAVE_CONTROL_PORT").unwrap();
                assert!(warnings[0].contains(&format!("RAILWEAVE_CONTROL_PORT={setting}")), "{warnings:?}");
                assert!(warnings[0].contains("give a range"), "{warnings:?}");
            }
        },
    );
}

/// Returns the addresses on which sockets of this process listen at this port, as the kernel lists them.
fn listening(port: u16) -> BTreeSet<String> {
    let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let lines = [text("/proc/self/net/tcp"), text("/proc/self/net/tcp6")].concat();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open: BTreeSet<_> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?.to_owned(), words.nth(1)?.to_owned());
        // After the state: queues, timer, retransmissions, user, timeout.
        let is_ours = open.contains(std::path::Path::new(&format!("socket:[{}]", words.nth(5)?)));
        let (address, number) = local.split_once(':')?;
        // 0A: TCP_LISTEN in the kernel's include/net/tcp_states.h.
        (is_ours && state == "0A" && u16::from_str_radix(number, 16) == Ok(port)).then(|| address.to_owned())
    };
    lines.lines().filter_map(listens).collect()
}

#[test]
fn the_control_port_listens_where_it_is_told_and_at_loopback_where_all_rails_are() {
    let hex = |address: Ipv4Addr| format!("{:08X}", u32::from_ne_bytes(address.octets()));
    let (first, second) = (hex(Ipv4Addr::LOCALHOST), hex(Ipv4Addr::new(127, 0, 0, 2)));
    let everywhere = [&"0".repeat(32), &"0".repeat(8)].map(String::clone);
    let cases = [
        (vec![ONE_RAIL], vec![&first]),
        (vec![TWO_RAILS], vec![&first, &second]),
        (vec![ONE_RAIL, ("RAILWEAVE_CONTROL_ADDRESS", "127.0.0.1")], vec![&first]),
        (vec![ONE_RAIL, ("RAILWEAVE_CONTROL_ADDRESS", "^203.0.113.0/24")], vec![]),
    ];
    each(
        &cases,
        |(settings, _)| settings.clone(),
        |(settings, expected)| {
            let (_plugin, net) = start();
            let (_listen, handle) = listen(&net, 0);
            let port = u16::from_le_bytes([handle.0[32], handle.0[33]]);
            let found = listening(port);
            assert!(!found.iter().any(|address| everywhere.contains(address)), "{settings:?}: {found:?}");
            assert!(expected.is_empty() || found == expected.iter().map(|address| (*address).clone()).collect());
            assert!(found.contains(&first));
            Pair::open(&net, &net, 0).exchange(1, 1000);
        },
    );
}

#[test]
fn an_invalid_handle_makes_connect_fail_at_once() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (listen, good) = listen(&net, 0);
        let mut other_version = good.clone();
        other_version.0[4] = 9;
        let mut many_addresses = good.clone();
        many_addresses.0[6] = 200;
        let cases = [
            (Handle([0; 128]), "magic number"),
            (Handle(noise(1, 128).try_into().unwrap()), "another plugin"),
            (other_version, "protocol version"),
            (many_addresses, "the handle ends after"),
        ];
        for (mut handle, words) in cases {
            let before = warnings().len();
            assert_eq!(code(net.connect(0, &mut handle)), NcclResult::INTERNAL_ERROR);
            let warnings = warnings();
            assert!(warnings.len() == before + 1 && warnings[before].contains(words), "{warnings:?}");
        }
        let pair = Pair { from: &net, to: &net, send: connect(&net, 0, &good), recv: common::accept(&net, &listen) };
        pair.exchange(1, 1000);
    });
}

#[test]
fn a_handle_that_leads_nowhere_makes_connect_fail_with_what_to_check() {
    alone(&[TWO_RAILS, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "3s")], || {
        let (_plugin, net) = start();
        let (_listen, good) = listen(&net, 0);
        let mut closed_port = good.clone();
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        closed_port.0[32..34].copy_from_slice(&unused.to_le_bytes());
        closed_port.0[8] ^= 1;
        let mut other_process = good.clone();
        other_process.0[8] ^= 2;
        let mut no_address = good.clone();
        no_address.0[8] ^= 4;
        no_address.0[6..8].fill(0);
        let mute = TcpListener::bind("0.0.0.0:0").unwrap();
        let mut silent = good.clone();
        silent.0[8] ^= 8;
        silent.0[32..34].copy_from_slice(&mute.local_addr().unwrap().port().to_le_bytes());
        let cases = [
            (closed_port, "Connection refused"),
            (other_process, "answered instead of the process"),
            (no_address, "names no address"),
            (silent, "Handshake timeout"),
        ];
        for (mut handle, words) in cases {
            let before = warnings().len();
            let refused =
                until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(|e| Some(Err(e))));
            assert_eq!(code::<()>(refused), NcclResult::REMOTE_ERROR);
            let warnings = warnings();
            assert!(
                warnings[before..].iter().any(|text| text.contains("connect: ") && text.contains(words)),
                "{warnings:?}"
            );
        }
        connect(&net, 0, &good);
    });
}

#[test]
fn devices_that_are_not_there_are_refused() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (_listen, mut handle) = listen(&net, 0);
        for device in [-1, 1, i32::MIN, i32::MAX] {
            let before = warnings().len();
            assert_eq!(code(net.properties(device)), NcclResult::INTERNAL_ERROR);
            assert_eq!(code(net.listen(device, &mut Handle::default())), NcclResult::INTERNAL_ERROR);
            assert_eq!(code(net.connect(device, &mut handle)), NcclResult::INTERNAL_ERROR);
            let said = warnings().split_off(before);
            let named =
                |text: &&String| text.contains(&format!("device {device}, which does not exist; allowed: 0 to 0"));
            assert_eq!((said.len(), said.iter().filter(named).count()), (3, 3), "{said:?}");
        }
    });
}

#[test]
fn what_cannot_be_loaded_is_named_with_the_reason() {
    let missing = library().with_file_name("no-such-library.so");
    assert!(matches!(Plugin::load(&missing, None), Err(LoadError::Missing { path }) if path == missing));
    let program = std::env::current_exe().unwrap();
    assert!(matches!(Plugin::load(&program, None), Err(LoadError::Unloadable { .. })));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    let error = Plugin::load(libc.unwrap().as_ref(), None).unwrap_err();
    assert!(matches!(error, LoadError::NoPlugin { .. }), "{error}");
}
