//! Compares the structures of the profiler's interface with a table that was measured with NCCL's headers.

use railweave_abi::profiler::{self, ib};
use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

/// Maps (version, C structure, C field or empty for the whole structure) to (offset, size).
type Layout = BTreeMap<(String, String, String), (usize, usize)>;

/// Returns the C name of a field: `sendBuff` for `send_buff`.
fn c_name(field: &str) -> String {
    match field {
        "kind" => return "type".to_owned(),
        "wr_id" => return field.to_owned(),
        _ => {}
    }
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

fn field_size<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Adds the size of a structure or union.
macro_rules! whole {
    ($all:ident, $version:expr, $c:expr, $rust:ty) => {
        $all.insert(($version.to_string(), $c.to_owned(), String::new()), (0, size_of::<$rust>()))
    };
}

/// Adds fields of a structure that lies at `$base` in the C structure; `$prefix` comes before their names.
macro_rules! fields {
    ($all:ident, $version:expr, $c:expr, $base:expr, $prefix:expr, $rust:ty, { $($field:ident)* }) => {
        $($all.insert(
            ($version.to_string(), $c.to_owned(), format!("{}{}", $prefix, c_name(stringify!($field)))),
            ($base + offset_of!($rust, $field), field_size(|all: &$rust| &all.$field)),
        );)*
    };
}

/// Adds members of a union that lies at `$base` in the C structure, and the fields of each member.
macro_rules! members {
    ($all:ident, $version:literal, $module:ident, $c:expr, $base:expr, $union:ident,
     { $($member:ident: $rust:ident $fields:tt)* }) => {
        $({
            // Does not compile if the member has another type.
            let _ = |value: profiler::$module::$rust| profiler::$module::$union { $member: value };
            let name = c_name(stringify!($member));
            let offset = $base + offset_of!(profiler::$module::$union, $member);
            let size = size_of::<profiler::$module::$rust>();
            $all.insert(($version.to_string(), $c.to_owned(), name.clone()), (offset, size));
            fields!($all, $version, $c, offset, format!("{name}."), profiler::$module::$rust, $fields);
        })*
    };
}

/// Adds the structures of a version: its table and its description of events, with these members and those that every
/// version has.
macro_rules! version {
    ($all:ident, $version:literal, $module:ident, $members:tt) => {{
        let table = concat!("ncclProfiler_v", $version, "_t");
        whole!($all, $version, table, profiler::$module::Profiler);
        fields!($all, $version, table, 0, "", profiler::$module::Profiler,
            { name init start_event stop_event record_event_state finalize });
        let event = concat!("ncclProfilerEventDescr_v", $version, "_t");
        whole!($all, $version, event, profiler::$module::EventDescr);
        fields!($all, $version, event, 0, "", profiler::$module::EventDescr, { kind parent_obj rank });
        event!($all, $version, $module, $members);
        event!($all, $version, $module, {
            proxy_op: ProxyOp { pid channel_id peer n_steps chunk_size is_send }
            proxy_step: ProxyStep { step }
        });
    }};
}

macro_rules! event {
    ($all:ident, $version:literal, $module:ident, $members:tt) => {
        members!(
            $all,
            $version,
            $module,
            concat!("ncclProfilerEventDescr_v", $version, "_t"),
            offset_of!(profiler::$module::EventDescr, event),
            Event,
            $members
        );
    };
}

/// Adds the arguments of states, which v1 to v3 and v4 to v7 have in common.
macro_rules! arguments {
    ($all:ident, $members:tt, $($version:literal $module:ident)*) => {
        $({
            let args = concat!("ncclProfilerEventStateArgs_v", $version, "_t");
            whole!($all, $version, args, profiler::$module::StateArgs);
            members!($all, $version, $module, args, 0, StateArgs, $members);
        })*
    };
}

/// The versions without the user's calls.
fn versions_without_calls(all: &mut Layout) {
    version!(all, 1, v1, {
        coll: Coll { name comm_hash seq_number func send_buff recv_buff count root datatype op traffic_bytes
            n_max_channels n_warps algo proto is_collnet is_nvls }
        p2p: P2p { name comm_hash func buff datatype count peer }
    });
    version!(all, 2, v2, {
        coll: Coll { name comm_hash seq_number func send_buff recv_buff count root datatype traffic_bytes
            n_max_channels n_warps algo proto }
        p2p: P2p { name comm_hash func buff datatype count peer }
    });
    version!(all, 3, v3, {
        coll: Coll { name comm_hash seq_number func send_buff recv_buff count root datatype n_max_channels n_warps
            algo proto }
        p2p: P2p { name comm_hash func buff datatype count peer }
        kernel_ch: KernelCh { channel_id }
        net_plugin: NetPlugin { id data }
    });
    version!(all, 4, v4, {
        coll: Coll { seq_number func send_buff recv_buff count root datatype n_channels n_warps algo proto }
        p2p: P2p { func buff datatype count peer n_channels }
        kernel_ch: KernelCh { channel_id p_timer }
        net_plugin: NetPlugin { id data }
    });
}

/// The versions that have the user's calls.
fn versions_with_calls(all: &mut Layout) {
    macro_rules! from_v5 {
        ($version:literal, $module:ident, $members:tt) => {
            version!(all, $version, $module, $members);
            event!(all, $version, $module, {
                group_api: GroupApi { graph_captured group_depth }
                kernel_launch: KernelLaunch { stream }
                kernel_ch: KernelCh { channel_id p_timer }
                net_plugin: NetPlugin { id data }
            });
        };
    }
    macro_rules! v5_and_v6 {
        ($version:literal, $module:ident) => {
            from_v5!($version, $module, {
                coll_api: CollApi { func count datatype root stream graph_captured }
                p2p_api: P2pApi { func count datatype stream graph_captured }
                coll: Coll { seq_number func send_buff recv_buff count root datatype n_channels n_warps algo proto
                    parent_group }
                p2p: P2p { func buff datatype count peer n_channels parent_group }
            });
        };
    }
    v5_and_v6!(5, v5);
    v5_and_v6!(6, v6);
    event!(all, 6, v6, {
        ce_coll: CeColl { seq_number func send_buff recv_buff count root datatype sync_strategy intra_batch_sync
            batch_size num_batches ce_seq_num stream }
        ce_coll_sync: CeCollSync { is_complete n_ranks }
        ce_coll_batch: CeCollBatch { num_ops total_bytes use_intra_sync }
    });
    from_v5!(7, v7, {
        coll_api: CollApi { func count datatype root stream graph_captured user_tag }
        p2p_api: P2pApi { func count datatype stream graph_captured user_tag }
        coll: Coll { seq_number func send_buff recv_buff count root datatype n_channels n_warps algo proto
            parent_group kernel_variant is_sym_coll user_tag }
        p2p: P2p { func buff datatype count peer n_channels parent_group user_tag }
        ce_coll: CeColl { seq_number func send_buff recv_buff count root datatype sync_strategy intra_batch_sync
            batch_size num_batches ce_seq_num stream user_tag }
        ce_coll_sync: CeCollSync { is_complete n_ranks }
        ce_coll_batch: CeCollBatch { num_ops total_bytes use_intra_sync }
        kernel_phase: KernelPhase { channel_id phase_id phase_name p_timer }
    });
}

fn ours() -> Layout {
    let mut all = Layout::new();
    versions_without_calls(&mut all);
    versions_with_calls(&mut all);
    arguments!(all, {
        proxy_op: ProxyOpArgs { trans_size steps }
        proxy_ctrl: ProxyCtrlArgs { appended_proxy_ops }
    }, 1 v1 2 v2 3 v3);
    arguments!(all, {
        proxy_step: ProxyStepArgs { trans_size }
        proxy_ctrl: ProxyCtrlArgs { appended_proxy_ops }
        net_plugin: NetPluginArgs { data }
        kernel_ch: KernelChArgs { p_timer }
    }, 4 v4 5 v5 6 v6 7 v7);
    let ib = "ncclProfilerNetIbDescr_v1_t";
    whole!(all, "ib1", ib, ib::NetIbDescr);
    fields!(all, "ib1", ib, 0, "", ib::NetIbDescr, { kind qp });
    fields!(all, "ib1", ib, offset_of!(ib::NetIbDescr, qp), "qp.", ib::Qp, { device wr_id opcode qp_num length });
    all
}

fn measured() -> Layout {
    let text = include_str!("nccl-profiler-abi-layout.csv");
    let mut all = Layout::new();
    for line in text.lines().skip(1) {
        let [version, structure, field, offset, size] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("not five columns: {line}");
        };
        let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("not a number in: {line}"));
        let field = if field == "(sizeof)" { "" } else { field };
        let offset = if offset.is_empty() { 0 } else { number(offset) };
        let key = (version.to_owned(), structure.to_owned(), field.to_owned());
        assert!(all.insert(key, (offset, number(size))).is_none(), "twice: {line}");
    }
    all
}

#[test]
fn every_measured_row_has_its_counterpart_here_and_the_other_way_round() {
    let (measured, ours) = (measured(), ours());
    assert_eq!(measured.len(), 492);
    for (key, place) in &measured {
        assert_eq!(ours.get(key), Some(place), "{key:?}");
    }
    for key in ours.keys() {
        assert!(measured.contains_key(key), "no measured row for {key:?}");
    }
}

#[test]
fn symbols_name_their_versions_newest_first() {
    let symbols = profiler::PROFILER_SYMBOLS;
    for (version, symbol) in symbols {
        assert_eq!(symbol.to_str(), Ok(format!("ncclProfiler_v{version}").as_str()));
    }
    assert!(symbols.windows(2).all(|pair| pair[0].0 == pair[1].0 + 1) && symbols[6].0 == 1);
}
