//! Stories of a [`Source`] over trees of files, and over this machine's own.

#[path = "tree/mod.rs"]
mod tree;

use std::path::Path;

use railweave_counters::{Counter, Fabric, Pcie, PortReading, Source};
use tree::Tree;

fn names(readings: &[PortReading]) -> Vec<&str> {
    readings.iter().map(|reading| reading.name.as_str()).collect()
}

fn port<'a>(readings: &'a [PortReading], name: &str) -> &'a PortReading {
    readings.iter().find(|reading| reading.name == name).unwrap_or_else(|| panic!("no {name} in {:?}", names(readings)))
}

#[test]
fn interfaces_without_an_adapter_are_read_only_if_they_are_used() {
    let tree = Tree::new();
    for name in ["eth0", "veth1", "bond0"] {
        tree.file(&format!("sys/class/net/{name}/operstate"), "up\n");
        tree.file(&format!("sys/class/net/{name}/statistics/rx_bytes"), "7\n");
    }
    tree.file("sys/class/net/eth0/device/vendor", "0x15b3\n");
    let mut source = Source::new(tree.root());
    assert_eq!(names(&source.read_used(|name| name == "bond0")), ["bond0", "eth0"]);
    assert_eq!(names(&source.read_used(|_| false)), ["eth0"]);
    assert_eq!(names(&source.read()), ["bond0", "eth0", "veth1"]);
}

#[test]
fn an_adapter_tells_its_link_and_its_counters() {
    let tree = Tree::new();
    tree.mlx5_port("mlx5_0", 1, "eth2");
    let readings = Source::new(tree.root()).read();
    let expected = PortReading {
        name: "mlx5_0".to_owned(),
        fabric: Fabric::Verbs,
        is_up: Some(true),
        state_id: Some(4),
        physical_state_id: Some(5),
        rate: Some(12_500_000_000),
        width: Some(4),
        pcie: Some(Pcie { speed: Some(8_000), max_speed: Some(16_000), width: Some(16), max_width: Some(16) }),
        interface: Some("eth2".to_owned()),
        counters: vec![
            (Counter::PortDataReceived, 4_000),
            (Counter::PortDataTransmitted, 8_000),
            (Counter::PortPacketsReceived, 30),
            (Counter::RpCnpHandled, 11),
            (Counter::NpEcnMarked, 12),
            (Counter::NpCnpSent, 13),
            (Counter::PortTransmitWait, 77),
            (Counter::LocalAckTimeouts, 15),
            (Counter::OutOfSequence, 14),
            (Counter::LinkDowned, 1),
            (Counter::RxIcrcEncapsulated, 16),
        ],
    };
    assert_eq!(readings, [expected]);
    let reading = &readings[0];
    assert_eq!((reading.bytes_received(), reading.bytes_sent()), (Some(4_000), Some(8_000)), "words of four bytes");
    assert_eq!(reading.value(Counter::PortTransmitWait), Some(77), "which are no words");
    assert_eq!(reading.value(Counter::NetworkReceiveBytes), None, "a counter of interfaces");
}

#[test]
fn ports_have_the_names_of_rails() {
    let tree = Tree::new();
    tree.mlx5_port("mlx5_1", 2, "eth3")
        .mlx5_port("mlx5_1", 1, "eth2")
        .mlx5_port("mlx5_0", 1, "eth1")
        .rxe("rxe0", "eth0")
        .interface("eth0", 1, 2)
        .interface("lo", 5, 5)
        .file("sys/class/net/bonding_masters", "\n")
        .interface("vrf-loop", 5, 5)
        .file("sys/class/net/vrf-loop/type", "772\n")
        .file("sys/class/infiniband/mlx5_0/ports/none/state", "4: ACTIVE\n")
        .file("sys/class/infiniband/mlx5_0/ports/300/state", "4: ACTIVE\n");
    let readings = Source::new(tree.root()).read();
    assert_eq!(names(&readings), ["mlx5_0", "mlx5_1:1", "mlx5_1:2", "rxe0", "eth0"]);
    assert_eq!(port(&readings, "mlx5_1:2").interface.as_deref(), Some("eth3"));
    assert_eq!(port(&readings, "eth0").fabric, Fabric::Tcp);
    assert_eq!(Source::new(&tree.root().join("missing")).read(), []);
}

#[test]
fn software_roce_counts_packets_and_has_no_adapter() {
    let tree = Tree::new();
    tree.rxe("rxe0", "eth0");
    let readings = Source::new(tree.root()).read();
    let reading = port(&readings, "rxe0");
    assert_eq!((reading.pcie, reading.rate, reading.width), (None, Some(312_500_000), Some(1)));
    let expected = [
        (Counter::PortPacketsReceived, 22),
        (Counter::PortPacketsTransmitted, 21),
        (Counter::PacketSequenceErrors, 24),
        (Counter::CompleterRetries, 23),
        (Counter::LinkDowned, 25),
    ];
    assert_eq!(reading.counters, expected);
    assert_eq!(reading.bytes_received(), None);
}

#[test]
fn the_names_of_other_drivers_are_the_same_counters() {
    let tree = Tree::new();
    let directory = |device: &str| format!("sys/class/infiniband/{device}/ports/1/hw_counters");
    tree.files(
        &directory("bnxt_re0"),
        &[("rx_bytes", "100"), ("rx_ecn_marked_pkts", "2"), ("to_retransmits", "3"), ("active_qps", "9")],
    )
    .files(
        &directory("irdma0"),
        &[("ip4InOctets", "100"), ("ip6InOctets", "50"), ("cnpHandled", "2"), ("Nak Sequence Error", "3")],
    )
    .files(&directory("rdmap0s6"), &[("rx_bytes", "7"), ("retrans_timeout_events", "8"), ("alloc_pd_err", "9")]);
    let readings = Source::new(tree.root()).read();
    let (bnxt, irdma, efa) = (&readings[0].counters, &readings[1].counters, &readings[2].counters);
    let bytes = Counter::PortDataReceived;
    assert_eq!(*bnxt, [(bytes, 100), (Counter::NpEcnMarked, 2), (Counter::LocalAckTimeouts, 3)], "bytes are no words");
    assert_eq!(
        *irdma,
        [(bytes, 150), (Counter::RpCnpHandled, 2), (Counter::PacketSequenceErrors, 3)],
        "a sum of parts"
    );
    assert_eq!(*efa, [(bytes, 7), (Counter::LocalAckTimeouts, 8)]);
}

#[test]
fn the_general_counters_go_before_those_of_the_driver() {
    let tree = Tree::new();
    let port = "sys/class/infiniband/new0/ports/1";
    tree.files(
        port,
        &[
            ("counters/port_rcv_data", "10\n"),
            ("hw_counters/rx_bytes", "41\n"),
            ("counters/port_xmit_data", "N/A (no PMA)\n"),
            ("hw_counters/tx_bytes", "42\n"),
        ],
    );
    let readings = Source::new(tree.root()).read();
    assert_eq!(readings[0].counters, [(Counter::PortDataReceived, 40), (Counter::PortDataTransmitted, 42)]);
}

#[test]
fn an_interface_tells_its_state_and_its_counters() {
    let tree = Tree::new();
    tree.interface("eth0", 1_000, 2_000)
        .interface("tap0", 1, 1)
        .file("sys/class/net/tap0/operstate", "unknown\n")
        .file("sys/class/net/tap0/speed", "4294967295\n")
        .interface("tap1", 1, 1)
        .file("sys/class/net/tap1/operstate", "unknown\n")
        .file("sys/class/net/tap1/carrier", "0\n")
        .interface("eth1", 1, 1)
        .file("sys/class/net/eth1/operstate", "down\n")
        .file("sys/class/net/eth1/speed", "-1\n")
        .interface("odd", 1, 1)
        .file("sys/class/net/odd/operstate", "something newer\n")
        .remove("sys/class/net/odd/carrier");
    let readings = Source::new(tree.root()).read();
    let eth0 = port(&readings, "eth0");
    assert_eq!((eth0.bytes_received(), eth0.bytes_sent()), (Some(1_000), Some(2_000)), "no words of four bytes");
    assert_eq!(eth0.value(Counter::NetworkReceiveDrop), Some(3));
    assert_eq!(eth0.counters.len(), 3, "{:?}", eth0.counters);
    assert_eq!((eth0.rate, eth0.state_id, eth0.pcie, eth0.width), (Some(1_250_000_000), None, None, None));
    let states = ["eth0", "eth1", "odd", "tap0", "tap1"].map(|name| port(&readings, name).is_up);
    assert_eq!(states, [Some(true), Some(false), None, Some(true), Some(false)]);
    assert_eq!((port(&readings, "eth1").rate, port(&readings, "tap0").rate), (None, None), "unknown speeds");
}

#[test]
fn private_statistics_count_for_the_interface_and_its_rdma_port() {
    let tree = Tree::new();
    tree.mlx5_port("mlx5_0", 1, "eth2").mlx5_port("mlx5_1", 1, "eth3").interface("eth2", 1, 1).interface("eth3", 1, 1);
    let lines = [
        "NIC statistics:",
        "     rx_packets: 5",
        "     rx_prio0_pause: 100",
        "     rx_prio3_pause: 20",
        "     rx_prio_pause: 900",
        "     rx_prio3_pause_duration: 7",
        "     tx_prio3_pause: 4",
        "     rx_prio5_buf_discard: 6",
        "     rx_prio5_marked: 8",
        "     rx_prio6_marked: x",
        "     tx_pause_storm_error_events: 2",
        "     rx_discards_phy: -3",
        "     [0]: rx_pause_ctrl_phy: 1",
        "     rx_pause_ctrl_phy",
    ];
    tree.file("ethtool/eth2", lines.join("\n"));
    let mut source = Source::new(tree.root());
    assert_eq!(source.read(), source.read(), "each reading sums for itself");
    let readings = source.read();
    let expected = [
        (Counter::RxPrioMarked, 8),
        (Counter::RxPrioPause, 120),
        (Counter::RxPrioPauseDuration, 7),
        (Counter::TxPrioPause, 4),
        (Counter::TxPauseStormErrors, 2),
        (Counter::RxPrioBufDiscard, 6),
    ];
    for name in ["mlx5_0", "eth2"] {
        let reading = port(&readings, name);
        for (counter, value) in expected {
            assert_eq!(reading.value(counter), Some(value), "{name}: {counter}");
        }
        assert_eq!(reading.value(Counter::RxDiscardsPhy), None, "{name}: no number");
        assert_eq!(reading.value(Counter::RxPauseCtrlPhy), None, "{name}: another name");
        assert!(reading.counters.is_sorted_by(|a, b| a.0 < b.0), "{name}: {:?}", reading.counters);
    }
    assert_eq!(port(&readings, "mlx5_1").value(Counter::RxPrioPause), None, "another interface's");
    assert_eq!(port(&readings, "mlx5_0").value(Counter::NetworkReceiveBytes), None, "the interface's own");
}

#[test]
fn ports_and_gids_are_in_the_order_of_their_numbers() {
    let tree = Tree::new();
    for number in [10, 9] {
        tree.mlx5_port("mlx5_0", number, "eth10")
            .remove(&format!("sys/class/infiniband/mlx5_0/ports/{number}/gid_attrs/ndevs/1"));
    }
    let gids = "sys/class/infiniband/mlx5_0/ports/9/gid_attrs/ndevs";
    tree.files(gids, &[("10", "vlan10\n"), ("9", "eth9\n")]);
    let readings = Source::new(tree.root()).read();
    assert_eq!(names(&readings), ["mlx5_0:9", "mlx5_0:10"]);
    assert_eq!((readings[0].interface.as_deref(), readings[1].interface.as_deref()), (Some("eth9"), None));
}

#[test]
fn a_device_without_gids_has_the_interface_of_its_port() {
    let tree = Tree::new();
    tree.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
        .file("sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n")
        .file("sys/class/infiniband/mlx5_0/device/net/ib0/dev_port", "0\n")
        .file("sys/class/infiniband/mlx5_0/device/net/ib1/dev_port", "1\n")
        .file("sys/class/infiniband/mlx5_1/ports/1/state", "5: ACTIVE_DEFER\n")
        .file("sys/class/infiniband/mlx5_1/device/net/ib2/mtu", "2044\n")
        .file("sys/class/infiniband/mlx5_2/ports/1/state", "ACTIVE\n")
        .file("sys/class/infiniband/mlx5_2/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    let readings = Source::new(tree.root()).read();
    let interfaces: Vec<_> = readings.iter().map(|reading| reading.interface.as_deref()).collect();
    assert_eq!(interfaces, [Some("ib0"), Some("ib1"), Some("ib2"), None]);
    let states: Vec<_> = readings.iter().map(|reading| (reading.is_up, reading.state_id)).collect();
    assert_eq!(states, [(Some(true), Some(4)), (Some(false), Some(1)), (Some(false), Some(5)), (None, None)]);
}

#[test]
fn devices_come_and_go_between_readings() {
    let tree = Tree::new();
    tree.mlx5_port("mlx5_0", 1, "eth2").interface("eth2", 10, 10);
    let mut source = Source::new(tree.root());
    assert_eq!(names(&source.read()), ["mlx5_0", "eth2"]);
    tree.mlx5_port("mlx5_1", 1, "eth3").interface("eth3", 10, 10);
    assert_eq!(names(&source.read()), ["mlx5_0", "mlx5_1", "eth2", "eth3"]);
    tree.remove("sys/class/infiniband/mlx5_0").interface("eth2", 11, 10);
    let readings = source.read();
    assert_eq!(names(&readings), ["mlx5_1", "eth2", "eth3"]);
    assert_eq!(port(&readings, "eth2").bytes_received(), Some(11), "numbers are read each time");
    tree.remove("sys/class/net/eth3").interface("enp3s0", 12, 10);
    tree.file("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/1", "enp3s0\n");
    let readings = source.read();
    assert_eq!(names(&readings), ["mlx5_1", "enp3s0", "eth2"]);
    assert_eq!(port(&readings, "mlx5_1").interface.as_deref(), Some("enp3s0"), "its new name");
}

#[test]
fn a_device_that_leaves_and_returns_may_have_other_files() {
    let tree = Tree::new();
    tree.rxe("rxe0", "eth0").file("elsewhere/ports/1/hw_counters/duplicate_request", "31\n");
    let mut source = Source::new(tree.root());
    assert_eq!(source.read()[0].value(Counter::PortPacketsReceived), Some(22));
    tree.remove("sys/class/infiniband/rxe0").rename("elsewhere", "sys/class/infiniband/rxe0");
    assert_eq!(source.read()[0].counters, [(Counter::DuplicateRequests, 31)]);
}

#[test]
fn a_device_that_leaves_during_a_reading_is_left_out() {
    let tree = Tree::new();
    tree.mlx5_port("mlx5_0", 1, "eth2").rxe("rxe0", "eth0");
    let mut source = Source::new(tree.root());
    assert_eq!(names(&source.read()), ["mlx5_0", "rxe0"]);
    // The entry is still there, its files are not.
    tree.remove("sys/class/infiniband/mlx5_0/ports/1");
    assert_eq!(names(&source.read()), ["rxe0"]);
}

#[test]
fn files_that_come_late_are_found_after_a_while() {
    let tree = Tree::new();
    tree.rxe("rxe0", "eth0").remove("sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts");
    let mut source = Source::new(tree.root());
    assert_eq!(source.read()[0].value(Counter::PortPacketsTransmitted), None);
    tree.rxe("rxe0", "eth0");
    let found = (1..200).find(|_| source.read()[0].value(Counter::PortPacketsTransmitted) == Some(21));
    assert_eq!(found, Some(60), "readings later");
}

#[test]
fn content_of_any_sort_is_read_without_harm() {
    let tree = Tree::new();
    tree.mlx5_port("mlx5_0", 1, "eth2").interface("eth2", 1, 1);
    let port_directory = "sys/class/infiniband/mlx5_0/ports/1";
    tree.file(&format!("{port_directory}/counters/port_rcv_data"), b"\xff\xfe\n")
        .file(&format!("{port_directory}/counters/port_xmit_data"), "18446744073709551615\n")
        .file(&format!("{port_directory}/counters/port_rcv_packets"), "")
        .remove(&format!("{port_directory}/counters/link_downed"))
        .file(&format!("{port_directory}/counters/link_downed/a_directory"), "1\n")
        .file(&format!("{port_directory}/state"), "4294967296: ACTIVE\n")
        .file(&format!("{port_directory}/rate"), "9".repeat(100_000))
        .file(&format!("{port_directory}/gid_attrs/ndevs/1"), "../../../etc\n")
        .file("ethtool/eth2", "rx_prio0_pause: 1\n".repeat(200_000))
        .file("sys/class/net/eth2/speed", "fast\n");
    let readings = Source::new(tree.root()).read();
    let mlx5 = port(&readings, "mlx5_0");
    for counter in [Counter::PortDataReceived, Counter::PortPacketsReceived, Counter::LinkDowned] {
        assert_eq!(mlx5.value(counter), None, "{counter}");
    }
    assert_eq!(mlx5.value(Counter::PortDataTransmitted), Some(u64::MAX - 3), "wraps");
    assert_eq!(mlx5.value(Counter::PortTransmitWait), Some(77), "its neighbours are read");
    assert_eq!((mlx5.is_up, mlx5.rate, mlx5.width), (None, None, None));
    assert_eq!(mlx5.interface, None, "a path is no name");
    let lines = (1 << 20) / "rx_prio0_pause: 1\n".len();
    assert_eq!(port(&readings, "eth2").value(Counter::RxPrioPause), Some(lines as u64), "the first MiB");
}

#[test]
fn this_machine_is_read() {
    let mut source = Source::new(Path::new("/"));
    let first = source.read();
    assert!(first.iter().all(|reading| reading.name != "lo"), "{:?}", names(&first));
    let readings = source.read();
    assert_eq!(names(&first), names(&readings));
    for (reading, before) in readings.iter().zip(&first) {
        assert!(reading.counters.is_sorted_by(|a, b| a.0 < b.0), "{reading:?}");
        if reading.fabric == Fabric::Tcp {
            assert!(reading.bytes_received() >= before.bytes_received(), "{reading:?}");
        }
    }
    if Path::new("/sys/class/net/eth0/statistics/rx_bytes").exists() {
        assert!(port(&readings, "eth0").bytes_received().is_some_and(|bytes| bytes > 0), "{readings:?}");
    }
}
