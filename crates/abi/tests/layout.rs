//! Compares the structures of the net API with a table that was measured with NCCL's headers. The table has all
//! structures but the device handle.

use railweave_abi::net;
use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

/// Maps (version, C structure, C field or empty for the whole structure) to (offset, size).
type Layout = BTreeMap<(u32, String, String), (usize, usize)>;

/// Returns the C name of a field: `pciPath` for `pci_path`.
fn c_name(field: &str) -> String {
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

fn field_size<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! rows {
    ($layout:ident, $version:literal, $c:literal, $rust:ty, { $($field:ident)* }) => {{
        let structure = format!("{}_v{}_t", $c, $version);
        $layout.insert(($version, structure.clone(), String::new()), (0, size_of::<$rust>()));
        $($layout.insert(
            ($version, structure.clone(), c_name(stringify!($field))),
            (offset_of!($rust, $field), field_size(|all: &$rust| &all.$field)),
        );)*
    }};
}

macro_rules! properties {
    ($layout:ident, $version:literal, $module:ident, { $($more:ident)* }) => {
        rows!($layout, $version, "ncclNetProperties", net::$module::NetProperties,
            { name pci_path guid ptr_support speed port latency max_comms max_recvs $($more)* });
    };
}

macro_rules! table {
    ($layout:ident, $version:literal, $module:ident, { $($more:ident)* }) => {
        rows!($layout, $version, "ncclNet", net::$module::Net,
            { name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend irecv iflush
              test close_send close_recv close_listen $($more)* });
    };
}

macro_rules! attributes {
    ($layout:ident, $version:literal, $module:ident) => {
        rows!($layout, $version, "ncclNetCommAttr", net::$module::CommAttr,
            { max_concurrent_peers min_concurrent_peers max_flows_per_peer min_flows_per_peer });
        rows!($layout, $version, "ncclNetAttr", net::$module::NetAttr,
            { send_comm_attr recv_comm_attr op algo proto });
    };
}

fn ours() -> Layout {
    let mut all = Layout::new();
    properties!(all, 6, v6, {});
    table!(all, 6, v6, {});
    properties!(all, 7, v7, { net_device_type net_device_version });
    table!(all, 7, v7, { get_device_mr irecv_consumed });
    properties!(all, 8, v8, { net_device_type net_device_version reg_is_global });
    table!(all, 8, v8, { get_device_mr irecv_consumed });
    macro_rules! from_v9 {
        ($version:literal, $module:ident, { $($property:ident)* }, { $($call:ident)* }) => {
            rows!(all, $version, "ncclNetVDeviceProps", net::$module::VDeviceProps, { ndevs devs });
            properties!(all, $version, $module,
                { net_device_type net_device_version reg_is_global force_flush v_props max_p2p_bytes max_coll_bytes
                  $($property)* });
            table!(all, $version, $module, { get_device_mr irecv_consumed make_v_device $($call)* });
        };
    }
    from_v9!(9, v9, {}, {});
    from_v9!(10, v10, {}, {});
    from_v9!(11, v11, { max_multi_request_size }, { finalize set_net_attr });
    from_v9!(12, v12, { max_multi_request_size rail_id plane_id }, { finalize set_net_attr });
    rows!(all, 10, "ncclNetCommConfig", net::v10::CommConfig, { traffic_class });
    rows!(all, 11, "ncclNetCommConfig", net::v11::CommConfig, { traffic_class });
    rows!(all, 12, "ncclNetCommConfig", net::v12::CommConfig, { traffic_class });
    attributes!(all, 11, v11);
    attributes!(all, 12, v12);
    all
}

fn measured() -> Layout {
    let text = include_str!("nccl-net-abi-layout.csv");
    let mut all = Layout::new();
    for line in text.lines().skip(1) {
        let [version, structure, field, offset, size] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("not five columns: {line}");
        };
        let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("not a number in: {line}"));
        let field = if field == "(sizeof)" { "" } else { field };
        let offset = if offset.is_empty() { 0 } else { number(offset) };
        let key = (version.parse().expect("a version"), structure.to_owned(), field.to_owned());
        assert!(all.insert(key, (offset, number(size))).is_none(), "twice: {line}");
    }
    all
}

#[test]
fn every_measured_row_has_its_counterpart_here_and_the_other_way_round() {
    let (measured, ours) = (measured(), ours());
    assert_eq!(measured.len(), 293);
    for (key, place) in &measured {
        assert_eq!(ours.get(key), Some(place), "{key:?}");
    }
    for key in ours.keys() {
        assert!(measured.contains_key(key), "no measured row for {key:?}");
    }
}
