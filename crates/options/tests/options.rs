//! Each setting: a good value, the edges of its range, a bad value, and the precedence of its variables.

use proptest::prelude::*;
use railweave_fabric::{DataDirect, Family, Mode};
use railweave_options::{
    AdaptiveRouting, Congestion, Entry, Fabric, Lanes, OptionErrors, Options, PortRange, RailFilter, RunDir, Source,
    TABLE, Warning, Weights,
};
use std::ffi::OsString;
use std::time::Duration;

type Variables<'a> = &'a [(&'a str, &'a str)];

fn read(variables: Variables<'_>) -> Result<(Options, Vec<Warning>), OptionErrors> {
    Options::from_variables(variables.iter().copied())
}

fn good(variables: Variables<'_>) -> Options {
    let (options, warnings) = read(variables).unwrap_or_else(|errors| panic!("{variables:?}: {errors}"));
    assert_eq!(warnings, [], "{variables:?}");
    options
}

fn is_nccls(variable: &'static str) -> bool {
    Source::Variable(variable).is_nccls()
}

/// Reads `variables`, which must cause one warning; returns the options and the warning's text.
fn odd(variables: Variables<'_>) -> (Options, String) {
    let (options, warnings) = read(variables).unwrap_or_else(|errors| panic!("{variables:?}: {errors}"));
    assert_eq!(warnings.len(), 1, "{variables:?}: {warnings:?}");
    assert!(warnings[0].needs_attention());
    (options, warnings[0].to_string())
}

/// Reads `variables`, which must cause one error; returns its text.
fn bad(variables: Variables<'_>) -> String {
    let errors = read(variables).expect_err("the value should be refused");
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0].contains('\n'));
    lines.into_iter().next().unwrap()
}

#[test]
fn defaults() {
    let options = good(&[]);
    assert_eq!(options, Options::default());
    assert!(options.rows().iter().all(|row| row.source == Source::Default));
    assert_eq!(options.fabric.value, Fabric::Auto);
    assert_eq!(options.lanes.value, Lanes::on_every_rail(1));
    assert_eq!(options.split_min.value, 8192);
    assert_eq!(options.peer_timeout.value, Duration::from_secs(30));
}

#[test]
fn an_empty_value_counts_as_unset() {
    let options = good(&[("RAILWEAVE_LANES", " "), ("NCCL_IB_QPS_PER_CONNECTION", "4"), ("RAILWEAVE_FABRIC", "")]);
    assert_eq!(options.lanes.source, Source::Variable("NCCL_IB_QPS_PER_CONNECTION"));
    assert_eq!(options.fabric.source, Source::Default);
}

#[test]
fn every_variable_of_the_table_is_read_and_every_example_is_good() {
    for entry in TABLE {
        let options = good(&[(entry.variable(), entry.example)]);
        for row in options.rows() {
            let reads_it = row.entry.all_variables().any(|variable| variable == entry.variable());
            let expected = if reads_it { Source::Variable(entry.variable()) } else { Source::Default };
            assert_eq!(row.source, expected, "{} after setting {}", row.entry.name, entry.name);
        }
    }
    for name in TABLE.iter().flat_map(Entry::all_variables) {
        match read(&[(name, "\u{7f}no such value\u{7f}:::::/")]) {
            Err(errors) => assert!(errors.iter().all(|error| error.variable == name && !is_nccls(name)), "{errors}"),
            // One line, however many settings read it.
            Ok((options, warnings)) => {
                assert!(is_nccls(name) && options == Options::default(), "{name}");
                assert_eq!(warnings.len(), 1, "{warnings:?}");
                assert!(warnings[0].to_string().starts_with(name), "{warnings:?}");
            }
        }
    }
}

#[test]
fn fabric() {
    assert_eq!(good(&[("RAILWEAVE_FABRIC", "TCP")]).fabric.value, Fabric::Tcp);
    assert_eq!(good(&[("RAILWEAVE_FABRIC", "verbs")]).fabric.value, Fabric::Verbs);
    assert_eq!(
        bad(&[("RAILWEAVE_FABRIC", "rdma\n")]),
        "RAILWEAVE_FABRIC: \"rdma\\n\" is not one of the known words; allowed: auto, tcp or verbs; \
         try RAILWEAVE_FABRIC=auto"
    );
}

#[test]
fn mode() {
    assert_eq!(good(&[("RAILWEAVE_MODE", "ports")]).mode.value, Some(Mode::Ports));
    assert_eq!(good(&[("RAILWEAVE_MODE", "fused")]).mode.value, Some(Mode::Fused));
    assert_eq!(good(&[("RAILWEAVE_MODE", "adapters")]).mode.value, Some(Mode::Adapters));
    for variable in [("NCCL_MESH_GID_INDEX", "3"), ("NCCL_MESH_TIMEOUT_MS", "500"), ("NCCL_MESH_DEBUG", "0")] {
        assert_eq!(good(&[variable]).mode.value, Some(Mode::Mesh));
        assert_eq!(good(&[variable, ("RAILWEAVE_MODE", "ports")]).mode.value, Some(Mode::Ports));
    }
    bad(&[("RAILWEAVE_MODE", "0")]);
}

#[test]
fn rails_and_the_interface_out_of_band() {
    let options = good(&[("NCCL_SOCKET_IFNAME", "^docker,lo")]);
    let nccl = RailFilter::parse("^docker,lo").unwrap();
    assert_eq!(options.rails.value.as_ref(), Some(&nccl));
    assert_eq!(options.oob_interface.value, Some(nccl));

    let options =
        good(&[("NCCL_SOCKET_IFNAME", "eth"), ("RAILWEAVE_RAILS", "=ib0,10.0.0.0/8"), ("MPIB_OOB_IF", "eno1")]);
    assert_eq!(options.rails.source, Source::Variable("RAILWEAVE_RAILS"));
    assert_eq!(options.oob_interface.source, Source::Variable("MPIB_OOB_IF"));
    let options = good(&[("RAILWEAVE_OOB_IF", "eth1"), ("MPIB_OOB_IF", "eno1")]);
    assert_eq!(options.oob_interface.source, Source::Variable("RAILWEAVE_OOB_IF"));

    // Two settings may read this variable. An odd value causes one warning, or none if both have a value from another
    // variable.
    odd(&[("NCCL_SOCKET_IFNAME", "^")]);
    odd(&[("NCCL_SOCKET_IFNAME", "^"), ("RAILWEAVE_RAILS", "eth0")]);
    good(&[("NCCL_SOCKET_IFNAME", "^"), ("RAILWEAVE_RAILS", "eth0"), ("MPIB_OOB_IF", "eno1")]);
    bad(&[("RAILWEAVE_RAILS", "^")]);
}

#[test]
fn an_address_alone_means_itself() {
    for name in ["RAILWEAVE_RAILS", "NCCL_SOCKET_IFNAME"] {
        let filter = |text| good(&[(name, text)]).rails.value.map(|filter| filter.to_string());
        assert_eq!(filter("127.0.0.1,eth0").as_deref(), Some("127.0.0.1/32,eth0"), "{name}");
        assert_eq!(filter("fd00::1, ::ffff:10.0.0.1").as_deref(), Some("fd00::1/128,10.0.0.1/32"));
        assert_eq!(filter("10.0.0.1:").as_deref(), Some("10.0.0.1:-1"), "a field makes it a name");
    }
    let list = good(&[("NCCL_IB_HCA", "^10.0.0.1")]).rdma_rails.value.unwrap();
    assert_eq!(list.to_string(), "^10.0.0.1/32");
    bad(&[("RAILWEAVE_RAILS", "10.0.0.1/33")]);
}

#[test]
fn where_the_control_port_listens() {
    assert_eq!(good(&[]).control_address.value, None);
    let list = good(&[("RAILWEAVE_CONTROL_ADDRESS", "=eth0,127.0.0.1")]).control_address.value.unwrap();
    assert_eq!(list.to_string(), "=eth0,127.0.0.1/32");
    bad(&[("RAILWEAVE_CONTROL_ADDRESS", "10.0.0.0/64")]);
}

#[test]
fn an_empty_name_of_a_key_file_is_refused() {
    for empty in ["", " "] {
        let error = bad(&[("RAILWEAVE_KEY_FILE", empty)]);
        assert!(error.contains("is empty") && error.contains("unset it"), "{error}");
    }
    bad(&[("RAILWEAVE_KEY_FILE", "key")]);
    let path = good(&[("RAILWEAVE_KEY_FILE", "/etc/railweave/key")]).key_file.value;
    assert_eq!(path.as_deref(), Some(std::path::Path::new("/etc/railweave/key")));
}

#[test]
fn the_run_dir_is_an_absolute_path() {
    assert_eq!(good(&[]).run_dir.value.path(), None);
    let dir = good(&[("RAILWEAVE_RUN_DIR", "/run/job")]).run_dir;
    assert_eq!(dir.value, RunDir::At("/run/job".into()));
    assert_eq!(dir.value.path(), Some(std::path::Path::new("/run/job")));
    assert_eq!(dir.source, Source::Variable("RAILWEAVE_RUN_DIR"));
    assert_eq!(good(&[("RAILWEAVE_RUN_DIR", " None")]).run_dir.value, RunDir::Off);
    assert_eq!(
        bad(&[("RAILWEAVE_RUN_DIR", "job")]),
        "RAILWEAVE_RUN_DIR: \"job\" is not an absolute path; allowed: the absolute path of a folder, or none; \
         try RAILWEAVE_RUN_DIR=/dev/shm/railweave-job"
    );
}

#[test]
fn nccl_can_leave_rdma_out() {
    assert_eq!(good(&[("NCCL_IB_DISABLE", "1")]).fabric.value, Fabric::Tcp);
    assert_eq!(good(&[("NCCL_IB_DISABLE", "0")]).fabric.value, Fabric::Auto);
    assert_eq!(good(&[("NCCL_IB_DISABLE", "1"), ("RAILWEAVE_FABRIC", "verbs")]).fabric.value, Fabric::Verbs);
}

#[test]
fn the_library_for_rdma() {
    assert_eq!(good(&[]).ibverbs_library.value, "libibverbs.so.1");
    let both = [("NCCL_IBVERBS_LIB", "/opt/lib/libibverbs.so"), ("RAILWEAVE_IBVERBS_LIB", " libibverbs.so ")];
    assert_eq!(good(&both[..1]).ibverbs_library.value, "/opt/lib/libibverbs.so");
    assert_eq!(good(&both).ibverbs_library.value, "libibverbs.so");
    bad(&[("RAILWEAVE_IBVERBS_LIB", "/opt/rdma/lib/")]);
}

#[test]
fn the_gid_of_a_port() {
    let index = |variables: Variables<'_>| good(variables).gid_index.value.on("mlx5_1");
    assert_eq!(index(&[]), None);
    assert_eq!(index(&[("NCCL_IB_GID_INDEX", "3")]), Some(3));
    assert_eq!(index(&[("NCCL_IB_GID_INDEX", "-1")]), None);
    assert_eq!(index(&[("NCCL_IB_GID_INDEX", "mlx5_0:3,mlx5_1:5")]), Some(5));
    assert_eq!(index(&[("NCCL_IB_GID_INDEX", "3"), ("NCCL_MESH_GID_INDEX", "4")]), Some(4));
    assert_eq!(index(&[("NCCL_MESH_GID_INDEX", "4"), ("RAILWEAVE_GID_INDEX", "mlx5_0:3")]), None);
    bad(&[("RAILWEAVE_GID_INDEX", "256")]);
    bad(&[("NCCL_MESH_GID_INDEX", "mlx5_0:3")]);

    assert_eq!(good(&[("NCCL_IB_ROCE_VERSION_NUM", "1")]).roce_version.value, 1);
    bad(&[("RAILWEAVE_ROCE_VERSION", "3")]);

    let family = |variables: Variables<'_>| good(variables).address_family.value;
    assert_eq!(family(&[]), None);
    assert_eq!(family(&[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]), Some(Family::Ipv6));
    assert_eq!(
        family(&[("NCCL_IB_ADDR_FAMILY", "AF_INET6"), ("RAILWEAVE_ADDRESS_FAMILY", "IPv4")]),
        Some(Family::Ipv4)
    );
    bad(&[("RAILWEAVE_ADDRESS_FAMILY", "AF_INET")]);

    let range = |text| good(&[("RAILWEAVE_ADDRESS_RANGE", text)]).address_range.value.map(|range| range.to_string());
    assert_eq!(range("10.0.0.0/8").as_deref(), Some("10.0.0.0/8"));
    assert_eq!(range("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1/32"));
    assert_eq!(range("fd00::/8").as_deref(), Some("fd00::/8"));
    let error = bad(&[("RAILWEAVE_ADDRESS_RANGE", "10.0.0.0/33")]);
    assert!(error.contains("\"33\" is not a prefix length from 0 to 32"), "{error}");
    bad(&[("RAILWEAVE_ADDRESS_RANGE", "ten")]);

    let length = |text| good(&[("NCCL_IB_SUBNET_PREFIX_LEN", text)]).prefix_length.value;
    assert_eq!([length("-1"), length("1"), length("32")], [None, Some(1), Some(32)]);
    bad(&[("RAILWEAVE_PREFIX_LENGTH", "0")]);
    bad(&[("RAILWEAVE_PREFIX_LENGTH", "33")]);

    assert_eq!(good(&[]).flid_gid_index.value, 1);
    assert_eq!(good(&[("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "255")]).flid_gid_index.value, 255);
    bad(&[("RAILWEAVE_FLID_GID_INDEX", "256")]);
}

#[test]
fn numbers_for_rdma_have_the_adapters_ranges() {
    /// A setting's variable, NCCL's, the default, the smallest and the largest value, and the values just beyond them.
    type Range = (&'static str, &'static str, &'static str, &'static str, &'static str, [&'static str; 2]);
    let ranges: [Range; 10] = [
        ("RAILWEAVE_ACK_TIMEOUT", "NCCL_IB_TIMEOUT", "20", "0", "31", ["-1", "32"]),
        ("RAILWEAVE_RETRY_COUNT", "NCCL_IB_RETRY_CNT", "7", "0", "7", ["-1", "8"]),
        ("RAILWEAVE_PKEY_INDEX", "NCCL_IB_PKEY", "0", "0", "65535", ["-1", "65536"]),
        ("RAILWEAVE_SERVICE_LEVEL", "NCCL_IB_SL", "-1", "-1", "15", ["-2", "16"]),
        ("RAILWEAVE_CTS_TRAFFIC_CLASS", "NCCL_IB_FIFO_TC", "-1", "-1", "255", ["-2", "256"]),
        ("RAILWEAVE_RELAXED_ORDERING", "NCCL_IB_PCI_RELAXED_ORDERING", "2", "0", "2", ["-1", "3"]),
        ("RAILWEAVE_ECE", "NCCL_IB_ECE_ENABLE", "1", "0", "1", ["-1", "2"]),
        ("RAILWEAVE_MERGE_NICS", "NCCL_IB_MERGE_NICS", "1", "0", "1", ["-1", "2"]),
        ("RAILWEAVE_MERGE_VFS", "NCCL_IB_MERGE_VFS", "1", "0", "1", ["-1", "2"]),
        ("RAILWEAVE_PCI_ORDER", "NCCL_IB_DEVICE_PCI_ORDER", "1", "0", "1", ["-1", "2"]),
    ];
    for (own, nccl, default, least, most, beyond) in ranges {
        let shown = |variables: Variables<'_>| {
            let rows = good(variables).rows();
            rows.into_iter().find(|row| row.entry.variable() == own).map(|row| row.value).unwrap_or_default()
        };
        assert_eq!(shown(&[]), default, "{own}");
        for value in [least, most] {
            assert_eq!(shown(&[(nccl, value)]), value, "{nccl}");
            assert_eq!(shown(&[(nccl, "x"), (own, value)]), value, "{own}");
        }
        for value in beyond {
            bad(&[(own, value)]);
            odd(&[(nccl, value)]);
        }
    }
}

#[test]
fn changes_of_a_queue_pairs_state_are_retried_as_in_nccl() {
    let options = good(&[]);
    assert_eq!((options.modify_retries.value, options.modify_retry_all.value), (34, false));
    assert_eq!(options.modify_retry_pause.value, Duration::from_millis(100));
    assert!(options.return_events.value);
    let options = good(&[
        ("NCCL_IB_MQP_RETRY_CNT", "7"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "250"),
        ("NCCL_IB_MQP_RETRY_ALL", "1"),
        ("NCCL_IB_RETURN_ASYNC_EVENTS", "0"),
    ]);
    assert_eq!((options.modify_retries.value, options.modify_retry_all.value), (7, true));
    assert_eq!(options.modify_retry_pause.value, Duration::from_millis(250));
    assert!(!options.return_events.value);
    let own = good(&[("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "250"), ("RAILWEAVE_MODIFY_RETRY_PAUSE", "0")]);
    assert_eq!(own.modify_retry_pause.value, Duration::ZERO);
    bad(&[("RAILWEAVE_MODIFY_RETRIES", "-1")]);
    bad(&[("RAILWEAVE_MODIFY_RETRIES", "1000001")]);
    bad(&[("RAILWEAVE_MODIFY_RETRY_PAUSE", "3601")]);
    bad(&[("RAILWEAVE_MODIFY_RETRY_ALL", "2")]);
    bad(&[("RAILWEAVE_RETURN_ASYNC_EVENTS", "yes")]);
}

#[test]
fn adaptive_routing() {
    let routing = |variables| good(variables).adaptive_routing.value;
    assert_eq!(routing(&[]), AdaptiveRouting::Auto);
    assert_eq!(routing(&[("NCCL_IB_ADAPTIVE_ROUTING", "-2")]), AdaptiveRouting::Auto);
    assert_eq!(routing(&[("NCCL_IB_ADAPTIVE_ROUTING", "1")]), AdaptiveRouting::On);
    assert_eq!(routing(&[("RAILWEAVE_ADAPTIVE_ROUTING", "0")]), AdaptiveRouting::Off);
    bad(&[("RAILWEAVE_ADAPTIVE_ROUTING", "2")]);
    let threshold = |text| good(&[("RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", text)]).adaptive_routing_threshold.value;
    assert_eq!([threshold("0"), threshold("8K"), threshold("1G")], [0, 8192, 1 << 30]);
    bad(&[("RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", "2G")]);
}

#[test]
fn flushing_and_byte_counts_can_be_switched_off() {
    let options = good(&[]);
    assert!(options.flush.value && options.byte_counts.value);
    assert!(!good(&[("NCCL_GDR_FLUSH_DISABLE", "1")]).flush.value);
    assert!(good(&[("NCCL_GDR_FLUSH_DISABLE", "1"), ("RAILWEAVE_FLUSH", "1")]).flush.value);
    assert!(!good(&[("RAILWEAVE_BYTE_COUNTS", "0")]).byte_counts.value);
    bad(&[("RAILWEAVE_FLUSH", "yes")]);
}

#[test]
fn weights() {
    let options = good(&[("RAILWEAVE_WEIGHTS", "80,20")]);
    assert_eq!(options.weights.value, Weights::Fixed([80, 20, 0, 0, 0, 0, 0, 0]));
    good(&[("RAILWEAVE_WEIGHTS", "1000000")]);
    bad(&[("RAILWEAVE_WEIGHTS", "0,0")]);
    bad(&[("RAILWEAVE_WEIGHTS", "1000001")]);
}

#[test]
fn lanes() {
    assert_eq!(good(&[("RAILWEAVE_LANES", "16")]).lanes.value, Lanes::on_every_rail(16));
    bad(&[("RAILWEAVE_LANES", "0")]);
    bad(&[("RAILWEAVE_LANES", "17")]);

    let seeds = [("MPIB_SOUT_QP", "2"), ("MPIB_SUP_QP", "3"), ("NCCL_IB_QPS_PER_CONNECTION", "4")];
    let lanes = good(&seeds).lanes;
    assert_eq!([lanes.value.on(0), lanes.value.on(1)], [2, 3]);
    assert_eq!(lanes.source.to_string(), "MPIB_SOUT_QP and MPIB_SUP_QP");
    let lanes = good(&seeds[1..]).lanes;
    assert_eq!([lanes.value.on(0), lanes.value.on(1)], [1, 3]);
    assert_eq!(lanes.source, Source::Variable("MPIB_SUP_QP"));
    assert_eq!(good(&seeds[2..]).lanes.value, Lanes::on_every_rail(4));
    let all = [seeds.as_slice(), &[("RAILWEAVE_LANES", "5,6")]].concat();
    assert_eq!(good(&all).lanes.source, Source::Variable("RAILWEAVE_LANES"));

    let error = bad(&[("MPIB_SOUT_QP", "2"), ("MPIB_SUP_QP", "x")]);
    assert_eq!(
        error,
        "MPIB_SUP_QP: \"x\" is not a whole number; allowed: a number from 1 to 16; \
         try MPIB_SUP_QP=1, or set RAILWEAVE_LANES, which wins"
    );
}

#[test]
fn more_queue_pairs_than_lanes_are_limited_with_a_warning() {
    let (options, warning) = odd(&[("NCCL_IB_QPS_PER_CONNECTION", "32")]);
    assert_eq!(options.lanes.value, Lanes::on_every_rail(16));
    assert_eq!(options.lanes.source, Source::Variable("NCCL_IB_QPS_PER_CONNECTION"));
    assert_eq!(
        warning,
        "NCCL_IB_QPS_PER_CONNECTION: \"32\" is more than 16, so 16 is used; allowed: a number from 1 to 16; \
         try NCCL_IB_QPS_PER_CONNECTION=1, or set RAILWEAVE_LANES, which wins"
    );
}

#[test]
fn control_port() {
    assert!(good(&[("RAILWEAVE_CONTROL_PORT", "0")]).control_port.value.is_any());
    let range = PortRange { first: 5000, last: 5100 };
    assert_eq!(good(&[("RAILWEAVE_CONTROL_PORT", "5000-5100")]).control_port.value, range);
    good(&[("RAILWEAVE_CONTROL_PORT", "65535")]);
    bad(&[("RAILWEAVE_CONTROL_PORT", "65536")]);
    bad(&[("RAILWEAVE_CONTROL_PORT", "5100-5000")]);
}

#[test]
fn handshake_timeout() {
    let timeout = |variables| good(variables).handshake_timeout.value;
    assert_eq!(timeout(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "5")]), Duration::from_secs(5));
    assert_eq!(timeout(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "100ms")]), Duration::from_millis(100));
    assert_eq!(timeout(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "3600s")]), Duration::from_secs(3600));
    assert_eq!(timeout(&[("NCCL_MESH_TIMEOUT_MS", "5000")]), Duration::from_secs(5));
    let both = [("NCCL_MESH_TIMEOUT_MS", "5000"), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "7")];
    assert_eq!(timeout(&both), Duration::from_secs(7));
    bad(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "99ms")]);
    bad(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "3601")]);
    bad(&[("NCCL_MESH_TIMEOUT_MS", "5s")]);
}

#[test]
fn split_min() {
    let bytes = |text| good(&[("RAILWEAVE_SPLIT_MIN", text)]).split_min.value;
    assert_eq!(bytes("0"), 0);
    assert_eq!(bytes("64K"), 65536);
    assert_eq!(bytes("1GiB"), 1 << 30);
    bad(&[("RAILWEAVE_SPLIT_MIN", "1073741825")]);
    bad(&[("RAILWEAVE_SPLIT_MIN", "8KB")]);
}

#[test]
fn socket_buffer() {
    let bytes = |text| good(&[("RAILWEAVE_SOCKET_BUFFER", text)]).socket_buffer.value;
    assert_eq!(bytes("0"), 0);
    assert_eq!(bytes("256M"), 256 << 20);
    assert_eq!(bytes("64K"), 64 << 10);
    bad(&[("RAILWEAVE_SOCKET_BUFFER", "257M")]);
    bad(&[("RAILWEAVE_SOCKET_BUFFER", "63K")]);
}

#[test]
fn tcp_congestion() {
    let congestion = |text| good(&[("RAILWEAVE_TCP_CONGESTION", text)]).tcp_congestion.value;
    assert_eq!(good(&[]).tcp_congestion.value, Congestion::Auto);
    assert_eq!(congestion("AUTO"), Congestion::Auto);
    assert_eq!(congestion("Kernel"), Congestion::Kernel);
    assert_eq!(congestion(" cubic "), Congestion::Named("cubic".into()));
    assert_eq!(["auto", "kernel", "cubic"].map(|text| congestion(text).to_string()), ["auto", "kernel", "cubic"]);
    assert_eq!([false, true].map(|inside| Congestion::Auto.name(inside)), [None, Some("reno")]);
    assert_eq!([false, true].map(|inside| Congestion::Kernel.name(inside)), [None, None]);
    assert_eq!([false, true].map(|inside| congestion("cubic").name(inside).map(str::len)), [Some(5), Some(5)]);
    bad(&[("RAILWEAVE_TCP_CONGESTION", "two words")]);
    bad(&[("RAILWEAVE_TCP_CONGESTION", "longer_than_a_name")]);
}

#[test]
fn data_direct() {
    let shown = |variables| good(variables).data_direct.value;
    assert_eq!(shown(&[]), DataDirect::Only);
    assert_eq!(shown(&[("NCCL_IB_DATA_DIRECT", "0")]), DataDirect::Off);
    assert_eq!(shown(&[("NCCL_IB_DATA_DIRECT", "2")]), DataDirect::Both);
    assert_eq!(shown(&[("NCCL_IB_DATA_DIRECT", "2"), ("RAILWEAVE_DATA_DIRECT", "1")]), DataDirect::Only);
    bad(&[("RAILWEAVE_DATA_DIRECT", "3")]);
    assert_eq!(good(&[("RAILWEAVE_MLX5_LIB", "/opt/lib/libmlx5.so.1")]).mlx5_library.value, "/opt/lib/libmlx5.so.1");
}

#[test]
fn shared_receive_queues() {
    let shared = |variables| good(variables).shared_receives.value;
    assert_eq!(shared(&[]), None);
    assert_eq!(shared(&[("RAILWEAVE_SRQ", "auto")]), None);
    assert_eq!(shared(&[("RAILWEAVE_SRQ", "0")]), Some(false));
    assert_eq!(shared(&[("RAILWEAVE_SRQ", "1")]), Some(true));
    bad(&[("RAILWEAVE_SRQ", "2")]);
}

#[test]
fn traffic_class() {
    let class = |variables| good(variables).traffic_class.value;
    assert_eq!(class(&[("NCCL_IB_TC", "0x60")]), Some(96));
    assert_eq!(class(&[("NCCL_IB_TC", "96"), ("RAILWEAVE_TRAFFIC_CLASS", "-1")]), None);
    assert_eq!(class(&[("RAILWEAVE_TRAFFIC_CLASS", "255")]), Some(255));
    bad(&[("RAILWEAVE_TRAFFIC_CLASS", "256")]);
}

#[test]
fn a_name_that_looks_like_an_address_is_written_so_that_it_stays_a_name() {
    for (text, written) in
        [("fd00::0:", "fd00:-1:0"), ("fd00: :0:1", "fd00:-1:0:1"), ("10.0.0.0:", "10.0.0.0:-1"), ("mlx::2", "mlx::2")]
    {
        let filter = RailFilter::parse(text).unwrap();
        assert_eq!(filter.to_string(), written);
        assert_eq!(RailFilter::parse(written), Ok(filter));
    }
}

#[test]
fn peer_timeout() {
    let timeout = |text| good(&[("RAILWEAVE_PEER_TIMEOUT", text)]).peer_timeout.value;
    assert_eq!(timeout("1"), Duration::from_secs(1));
    assert_eq!(timeout("2.5s"), Duration::from_millis(2500));
    bad(&[("RAILWEAVE_PEER_TIMEOUT", "0")]);
    bad(&[("RAILWEAVE_PEER_TIMEOUT", "3601")]);
}

#[test]
fn all_errors_come_at_once_and_in_order() {
    let errors = read(&[("RAILWEAVE_PEER_TIMEOUT", "x"), ("RAILWEAVE_MODE", "x"), ("RAILWEAVE_LANES", "x")]);
    let errors = errors.unwrap_err();
    let variables: Vec<&str> = errors.iter().map(|error| error.variable).collect();
    assert_eq!(variables, ["RAILWEAVE_MODE", "RAILWEAVE_LANES", "RAILWEAVE_PEER_TIMEOUT"]);
    assert_eq!(errors.to_string().lines().count(), 3);
}

#[test]
fn unknown_variables_are_warned_of() {
    let (_, warnings) = read(&[
        ("RAILWEAVE_LANE", "2"),
        ("RAILWEAVE_COLOUR", "blue"),
        ("NCCL_UNKNOWN", "1"),
        ("MPIB_UNKNOWN", "1"),
        ("RAILWEAVE_TEST_LIB", "/tmp/x.so"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "RAILWEAVE_COLOUR is not a setting of Railweave and has no effect; docs/options.md lists them all",
            "RAILWEAVE_LANE is not a setting of Railweave and has no effect; did you mean RAILWEAVE_LANES?",
        ]
    );
}

#[test]
fn what_nccls_own_transport_alone_understands_is_named_in_one_line() {
    let variables = [
        ("NCCL_IB_OOO_RQ", "1"),
        ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"),
        ("NCCL_IB_USE_INLINE", ""),
        ("NCCL_IB_TIMEOUT", "22"),
    ];
    let (options, warnings) = read(&variables).unwrap();
    assert_eq!(options.ack_timeout.value, 22);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(!warnings[0].needs_attention());
    assert_eq!(
        warnings[0].to_string(),
        "without effect here, because they apply only to NCCL's own IB transport: NCCL_IB_OOO_RQ, \
         NCCL_IB_RESILIENCY_PORT_FAILOVER"
    );
    // A variable that a setting reads is not named.
    good(&variables[2..]);
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let value = || OsString::from_vec(vec![b'a', 0xff]);
    let errors = Options::from_variables([("RAILWEAVE_RAILS", value())]).unwrap_err();
    assert!(errors.to_string().starts_with("RAILWEAVE_RAILS: \"a\u{fffd}\" is not valid UTF-8; "), "{errors}");
    let (options, warnings) = Options::from_variables([("NCCL_IB_HCA", value())]).unwrap();
    assert_eq!((options, warnings.len()), (Options::default(), 1));
}

/// Generates text that is often nearly valid: pieces of good values in any order, and arbitrary strings.
fn nearly_right() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "^",
        "=",
        ",",
        ":",
        "/",
        "-",
        "+",
        ".",
        " ",
        "0",
        "1",
        "8",
        "16",
        "99999999999999999999",
        "eth0",
        "10.0.0.0",
        "fd00::",
        "::ffff:1.2.3.4",
        "K",
        "GiB",
        "ms",
        "s",
        "0x",
        "auto",
        "é",
    ]);
    prop_oneof![prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat()), any::<String>()]
}

proptest! {
    #[test]
    fn no_value_panics_and_every_error_is_one_line(values in prop::collection::vec(nearly_right(), 96)) {
        let names = TABLE.iter().flat_map(Entry::all_variables);
        match Options::from_variables(names.zip(values)) {
            Ok((options, _)) => prop_assert_eq!(options.rows().len(), TABLE.len()),
            Err(errors) => for error in &errors {
                prop_assert!(!error.to_string().contains(['\n', '\r']), "{}", error);
            },
        }
    }

    #[test]
    fn a_filter_written_out_reads_the_same(text in nearly_right(), name in "[a-z0-9_]{1,8}", port in any::<u32>()) {
        if let Ok(filter) = RailFilter::parse(&text) {
            let again = RailFilter::parse(&filter.to_string());
            prop_assert_eq!(again.as_ref(), Ok(&filter));
            let included = filter.matches(&name, None, Some(port)).is_some();
            let turned = RailFilter { exclude: !filter.exclude, ..filter };
            prop_assert_eq!(turned.matches(&name, None, Some(port)).is_some(), !included);
        }
    }
}
