//! The choice of the fabric and its ports, and the effect of the settings on them. The fake libibverbs presents the
//! machine that a description gives it.

mod common;

use std::sync::OnceLock;

use common::{Pair, each, info_lines, init_refused, listen, load, noise, start, until_freed, warnings, warnings_with};
use railweave_abi::NcclResult;
use railweave_abi::net::{PTR_DMABUF, PTR_HOST};
use railweave_fake_ibverbs::{FakeVerbs, Open, QpReport, build};
use railweave_nccl_host::NetError;
use railweave_nccl_host::net::{NetApi, Properties};

/// An InfiniBand port, a RoCE port on two subnets, a port that is down, and a port with only a link-local address.
const MACHINE: &str = "\
[[device]]
name = 'mlx5_0'
guid = 0x100
dma_buf = false
[[device.port]]
link_layer = 'infiniband'
speed = 'ndr'
pkeys = [0xffff, 0x8001]
[[device]]
name = 'mlx5_1'
guid = 0x200
[[device.port]]
speed = 'edr'
pkeys = [0xffff, 0x8001]
gid.0 = ['fe80::1', 'roce2', 0]
gid.1 = ['10.1.0.1', 'roce1', 0]
gid.2 = ['10.1.0.1', 'roce2', 0]
gid.3 = ['10.2.0.1', 'roce2', 0]
[[device]]
name = 'mlx5_2'
[[device.port]]
state = 'down'
[[device]]
name = 'mlx5_3'
[[device.port]]
gid.0 = ['fe80::2', 'roce2', 0]
";

/// A library that does not exist.
const NONE: &str = "/no/such/library.so";

type Settings = &'static [(&'static str, &'static str)];

/// Returns the path of the fake libibverbs, which the first call links.
fn library() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| build().to_str().expect("the path is text").to_owned())
}

/// The interface for tests that connect: the made-up addresses of descriptions lead nowhere.
const LOOPBACK: (&str, &str) = ("RAILWEAVE_OOB_IF", "lo");

/// Returns the settings with the fake in place of libibverbs. If a variable has several values, the last is used.
fn with<'a>(settings: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("RAILWEAVE_IBVERBS_LIB", library())], settings, more].concat()
}

/// Gives this process the described machine.
fn machine(description: &str) -> FakeVerbs {
    let fake = FakeVerbs::load(library().as_ref()).expect("the fake libibverbs loads");
    fake.describe(Some(description)).expect("the description is well-formed");
    fake
}

fn devices(net: &dyn NetApi) -> Vec<Properties> {
    let count = net.devices().expect("devices succeeds");
    (0..count).map(|device| net.properties(device).expect("properties succeeds")).collect()
}

fn names(net: &dyn NetApi) -> Vec<String> {
    devices(net).into_iter().map(|device| device.name).collect()
}

#[test]
fn rdma_is_used_where_the_list_for_it_lets_a_port_in() {
    let cases: [(Settings, &[&str]); 19] = [
        // NCCL's list is a set, Railweave's has an order.
        (&[("NCCL_IB_HCA", "mlx5_1,mlx5_0")], &["mlx5_0", "mlx5_1"]),
        (&[("RAILWEAVE_RDMA_RAILS", "mlx5_1,mlx5_0"), ("NCCL_IB_HCA", "mlx5_0")], &["mlx5_1", "mlx5_0"]),
        (&[], &["mlx5_0", "mlx5_1"]),
        (&[("RAILWEAVE_FABRIC", "verbs")], &["mlx5_0", "mlx5_1"]),
        (&[("RAILWEAVE_MODE", "fused")], &["mlx5_0+mlx5_1"]),
        (&[("NCCL_IB_HCA", "mlx5_1")], &["mlx5_1"]),
        (&[("NCCL_IB_HCA", "^=mlx5_1:1")], &["mlx5_0"]),
        (&[("NCCL_SOCKET_IFNAME", "lo")], &["mlx5_0", "mlx5_1"]),
        (&[("RAILWEAVE_RAILS", "mlx5_1,mlx5_0")], &["mlx5_1", "mlx5_0"]),
        (&[("RAILWEAVE_RAILS", "10.2.0.0/16")], &["mlx5_1"]),
        (&[("RAILWEAVE_RAILS", "mlx5_1+mlx5_0")], &["mlx5_1+mlx5_0"]),
        (&[("RAILWEAVE_RDMA_RAILS", "mlx5_1,mlx5_0"), ("RAILWEAVE_MODE", "mesh")], &["mlx5_1+mlx5_0"]),
        (&[("NCCL_MESH_GID_INDEX", "-1")], &["mlx5_0+mlx5_1"]),
        (&[("RAILWEAVE_MODE", "adapters")], &["mlx5_0", "mlx5_1"]),
        (&[("MPIB_HCA_SOUT", "mlx5_1"), ("MPIB_HCA_SUP", "mlx5_0")], &["mlx5_1+mlx5_0"]),
        (
            &[("MPIB_HCA_SOUT", "mlx5_1"), ("MPIB_HCA_SUP", "mlx5_0"), ("RAILWEAVE_MODE", "ports")],
            &["mlx5_1", "mlx5_0"],
        ),
        (&[("RAILWEAVE_RAILS", "127.0.0.1/32")], &["lo@127.0.0.1"]),
        (
            &[("RAILWEAVE_FABRIC", "tcp"), ("RAILWEAVE_RAILS", "127.0.0.1/32"), ("NCCL_IB_HCA", "mlx5_1")],
            &["lo@127.0.0.1"],
        ),
        (&[("NCCL_IB_DISABLE", "1"), ("NCCL_SOCKET_IFNAME", "lo")], &["lo@127.0.0.1"]),
    ];
    each(
        &cases,
        |(settings, _)| with(settings, &[]),
        |(_, expected)| {
            machine(MACHINE);
            let (_plugin, net) = start();
            assert_eq!(names(&net), *expected);
            assert_eq!(warnings(), [""; 0]);
        },
    );
}

#[test]
fn an_item_of_a_list_that_has_no_port_is_named() {
    let cases = [
        ("mlx5_1+mlx5_2", "the item mlx5_2 has no effect, because no usable port"),
        ("mlx5_0,mlx5_0+mlx5_1", "the item mlx5_0 has no effect, because earlier items have all"),
    ];
    each(
        &cases,
        |(list, _)| with(&[("RAILWEAVE_RAILS", list)], &[]),
        |(list, said)| {
            machine(MACHINE);
            let (_plugin, _net) = start();
            assert_eq!((warnings().len(), warnings_with(&[list, said]).len()), (1, 1), "{:?}", warnings());
        },
    );
}

#[test]
fn an_invalid_rail_id_is_ignored_in_nccls_list_and_refused_in_ours() {
    const LIST: &str = "mlx5_0:1:40000:2,mlx5_1:1:3:-2";
    // The rail and plane ids of the devices; `None` if init fails.
    type Ids = Option<[(i16, i16); 2]>;
    let cases: [(Settings, Ids); 2] = [
        (&[("NCCL_IB_HCA", LIST)], Some([(-1, 2), (3, -1)])),
        (&[("RAILWEAVE_RDMA_RAILS", LIST), ("NCCL_IB_HCA", "mlx5_1")], None),
    ];
    each(
        &cases,
        |(settings, _)| with(settings, &[]),
        |(_, expected)| {
            machine(MACHINE);
            let init = load(None).init(1, None);
            match (init, expected) {
                (Ok(net), Some(expected)) => {
                    let ids: Vec<_> = devices(&net).iter().map(|device| (device.rail_id, device.plane_id)).collect();
                    assert_eq!(ids, *expected);
                    assert_eq!(warnings_with(&["NCCL_IB_HCA: ", "rail \"40000\"", "0 to 32767", "1 more"]).len(), 1);
                }
                (Err(NetError::Call { code: NcclResult::INVALID_USAGE, .. }), None) => {
                    assert_eq!(warnings_with(&["RAILWEAVE_RDMA_RAILS: ", "rail \"40000\"", "0 to 32767"]).len(), 1);
                }
                (init, _) => panic!("{:?}", init.err()),
            }
            assert_eq!(warnings().len(), 1, "{:?}", warnings());
        },
    );
}

#[test]
fn auto_says_once_why_rdma_is_not_used() {
    let cases: [(Settings, &str, &str); 5] = [
        (&[("RAILWEAVE_IBVERBS_LIB", NONE)], MACHINE, NONE),
        (&[("RAILWEAVE_IBVERBS_LIB", "libc.so.6")], MACHINE, "ibv_get_device_list of version IBVERBS_1.1"),
        (&[], "# no device\n", "libibverbs lists no RDMA device"),
        (&[], "[[device]]\nname = 'a0'\n[[device.port]]\nstate = 'down'\n", "a0 left out: the port is down"),
        (
            &[("NCCL_IB_HCA", "mlx5_2")],
            MACHINE,
            "NCCL_IB_HCA=mlx5_2: No usable port: mlx5_2 left out: the port is down",
        ),
    ];
    each(
        &cases,
        |(settings, ..)| with(settings, &[("NCCL_SOCKET_IFNAME", "lo")]),
        |(_, description, reason)| {
            machine(description);
            let (_plugin, net) = start();
            assert_eq!(names(&net), ["lo@127.0.0.1"]);
            let lines: Vec<_> = info_lines().into_iter().filter(|line| line.contains("RDMA cannot be")).collect();
            assert!(lines.len() == 1 && lines[0].contains(reason), "{lines:?}");
        },
    );
}

#[test]
fn verbs_fails_in_a_sentence_where_there_is_no_port() {
    let cases: [(Settings, &str, &[&str]); 7] = [
        (&[("RAILWEAVE_IBVERBS_LIB", NONE)], MACHINE, &[NONE, "install libibverbs"]),
        (&[("RAILWEAVE_IBVERBS_LIB", "libc.so.6")], MACHINE, &["libc.so.6 has no function ibv_get_device_list"]),
        (&[], "# no device\n", &["libibverbs lists no RDMA device", "`rdma link`"]),
        (
            &[],
            "faults = ['get_device_list:*:ENOSYS']\n\
            [[device]]\nname = 'a0'\n[[device.port]]\n",
            &["Function not implemented", "ib_uverbs"],
        ),
        (&[], "[[device]]\nname = 'a0'\n[[device.port]]\nstate = 'down'\n", &["a0 left out: the port is down"]),
        (
            &[("RAILWEAVE_RAILS", "mlx5_7")],
            MACHINE,
            &["RAILWEAVE_RAILS=mlx5_7: No usable port", "mlx5_2 left out", "(mlx5_0, mlx5_1, mlx5_3)"],
        ),
        (
            &[],
            "faults = ['alloc_pd:*:ENOMEM']\n\
            [[device]]\nname = 'a0'\n[[device.port]]\n",
            &["a0 left out", "no protection domain"],
        ),
    ];
    each(
        &cases,
        |(settings, ..)| with(settings, &[("RAILWEAVE_FABRIC", "verbs")]),
        |(settings, description, words)| {
            let fake = machine(description);
            let said = init_refused(&load(None), &[*settings, &[("RAILWEAVE_FABRIC", "verbs")]].concat());
            let all = ["RAILWEAVE_FABRIC=verbs: ", "; or set RAILWEAVE_FABRIC=tcp or auto"];
            assert!(words.iter().chain(&all).all(|word| said.contains(word)), "{said}");
            assert_eq!(fake.open(), Open::default(), "something is left open");
        },
    );
}

#[test]
fn a_port_that_cannot_be_opened_is_left_out_and_the_others_are_used() {
    each(
        &[()],
        |()| with(&[], &[]),
        |()| {
            // The first four protection domains, one for each device, query dma-buf support; the ports' follow.
            machine(&format!("faults = ['alloc_pd:5:ENOMEM']\n{MACHINE}"));
            let (_plugin, net) = start();
            assert_eq!(names(&net), ["mlx5_1"]);
            let reason = "mlx5_0 is left out: mlx5_0: no protection domain can be allocated: Cannot allocate memory";
            assert!(info_lines().iter().any(|line| line.contains(reason)), "{:?}", info_lines());
        },
    );
}

#[test]
fn a_device_says_what_its_port_is() {
    each(
        &[()],
        |()| with(&[], &[]),
        |()| {
            machine(MACHINE);
            let (_plugin, net) = start();
            let facts: Vec<_> = devices(&net)
                .into_iter()
                .map(|device| (device.guid, device.speed_mbps, device.port, device.ptr_support, device.pci_path))
                .collect();
            // The byte order is that of libibverbs, as in NCCL's own transport.
            let guid = u64::to_be;
            assert_eq!(facts, [(guid(0x100), 400_000, 1, 1, None), (guid(0x200), 100_000, 1, 5, None)]);
            let lines = info_lines();
            assert!(
                lines.iter().any(|line| line.contains("device mlx5_1 over verbs 10.1.0.1 (100000 Mbit/s)")),
                "{lines:?}"
            );
            for (name, reason) in [("mlx5_2", "the port is down"), ("mlx5_3", "link-local")] {
                let is_told = |line: &String| line.contains(&format!("{name} is left out: ")) && line.contains(reason);
                assert!(lines.iter().any(is_told), "{name}: {lines:?}");
            }
        },
    );
}

#[test]
fn ports_with_link_local_gids_alone_are_used_where_there_are_no_others_or_the_user_names_one() {
    let lonely = "[[device]]\nname = 'mlx5_4'\n\
        [[device.port]]\ngid.0 = ['fe80::3', 'roce1', 0]\ngid.1 = ['fe80::3', 'roce2', 0]\n";
    let cases: [(Settings, String, &[&str]); 5] = [
        (&[], lonely.to_owned(), &["mlx5_4"]),
        (&[], format!("{MACHINE}{lonely}"), &["mlx5_0", "mlx5_1"]),
        (&[("NCCL_IB_HCA", "mlx5_3,mlx5_4")], format!("{MACHINE}{lonely}"), &["mlx5_3", "mlx5_4"]),
        (&[("NCCL_IB_GID_INDEX", "0"), ("NCCL_IB_HCA", "mlx5_3")], MACHINE.to_owned(), &["mlx5_3"]),
        (&[("RAILWEAVE_GID_INDEX", "mlx5_4:1")], format!("{MACHINE}{lonely}"), &["mlx5_0", "mlx5_1", "mlx5_4"]),
    ];
    each(
        &cases,
        |(settings, ..)| with(settings, &[("RAILWEAVE_FABRIC", "verbs"), LOOPBACK]),
        |(_, description, expected)| {
            machine(description);
            let (_plugin, net) = start();
            assert_eq!(names(&net), *expected);
            let last = expected.len() as i32 - 1;
            exchange(&net, last, 1, 1000);
        },
    );
}

#[test]
fn a_handle_names_what_sockets_reach_and_first_what_the_user_named() {
    // The settings, and the port indices and addresses of the handle; `None` is the host's own address.
    type Entries = &'static [(u8, Option<&'static str>)];
    let cases: [(Settings, Entries); 5] = [
        (&[("NCCL_IB_HCA", "mlx5_0")], &[(255, None)]),
        (&[("NCCL_IB_HCA", "mlx5_1")], &[(0, Some("10.1.0.1")), (255, None)]),
        (&[("NCCL_IB_HCA", "mlx5_0"), ("NCCL_SOCKET_IFNAME", "lo")], &[(254, Some("127.0.0.1"))]),
        (&[("NCCL_IB_HCA", "mlx5_1"), ("RAILWEAVE_OOB_IF", "lo")], &[(0, Some("10.1.0.1")), (254, Some("127.0.0.1"))]),
        // An interface to leave out is not the name of one to use.
        (&[("NCCL_IB_HCA", "mlx5_0"), ("NCCL_SOCKET_IFNAME", "^docker")], &[(255, None)]),
    ];
    each(
        &cases,
        |(settings, _)| with(settings, &[("RAILWEAVE_FABRIC", "verbs")]),
        |(_, expected)| {
            machine(MACHINE);
            let (_plugin, net) = start();
            let (_listen, handle) = listen(&net, 0);
            let entries = railweave_transport::Handle::decode(&handle.0).expect("a handle").addresses;
            assert_eq!(entries.len(), expected.len(), "{entries:?}");
            for (entry, (port, address)) in entries.iter().zip(expected.iter()) {
                assert_eq!(entry.port, *port, "{entries:?}");
                let shown = entry.address.to_string();
                assert!(address.is_none_or(|address| address == shown), "{entries:?}");
            }
        },
    );
}

#[test]
fn groups_and_the_two_variables_that_cannot_be_met_are_refused() {
    let cases: [(Settings, &[&str]); 4] = [
        (
            &[("MPIB_HCA_SOUT", "mlx5_1"), ("MPIB_HCA_SUP", "mlx5_2")],
            &["MPIB_HCA_SUP=mlx5_2 names no RDMA port that can be used", "there is mlx5_1"],
        ),
        (&[("MPIB_HCA_SOUT", "mlx5")], &["MPIB_HCA_SUP", "is not set, although MPIB_HCA_SOUT is"]),
        (
            &[("RAILWEAVE_RAILS", "mlx5_0+mlx5_1"), ("RAILWEAVE_MODE", "ports")],
            &["RAILWEAVE_RAILS=mlx5_0+mlx5_1 groups ports with +", "RAILWEAVE_MODE=ports"],
        ),
        (
            &[("RAILWEAVE_RAILS", "mlx5_0,mlx5_1"), ("RAILWEAVE_MODE", "adapters"), ("RAILWEAVE_WEIGHTS", "0,1")],
            &["RAILWEAVE_WEIGHTS", "any of the 1 rail(s) of mlx5_0"],
        ),
    ];
    each(
        &cases,
        |(settings, _)| with(settings, &[]),
        |(settings, words)| {
            machine(MACHINE);
            let said = init_refused(&load(None), settings);
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        },
    );
}

/// Sends messages over a device of this process to itself. Returns the lanes.
fn exchange(net: &railweave_nccl_host::LoadedNet, device: i32, count: usize, bytes: usize) -> Vec<QpReport> {
    let fake = FakeVerbs::load(library().as_ref()).expect("the fake libibverbs is loaded");
    let pair = Pair::open(net, net, device);
    let message = noise(5, bytes);
    let (from, mut to) = (pair.outgoing(&message), pair.incoming(bytes));
    for _ in 0..count {
        assert_eq!(pair.transfer(&from, bytes, &to), (bytes as i32, bytes as i32));
        to.assert_holds(&message);
        to.clear();
    }
    let lanes = fake.queue_pairs();
    pair.release_outgoing(from);
    pair.release_incoming(to);
    pair.close();
    // Otherwise they could be taken for another device's.
    until_freed("the lanes are destroyed", || fake.queue_pairs().is_empty());
    lanes
}

#[test]
fn settings_reach_the_lanes() {
    let settings = [
        ("NCCL_IB_TIMEOUT", "14"),
        ("NCCL_IB_RETRY_CNT", "5"),
        ("NCCL_IB_PKEY", "1"),
        ("NCCL_IB_SL", "3"),
        ("NCCL_IB_TC", "96"),
        ("NCCL_IB_GID_INDEX", "mlx5_1:3"),
        ("NCCL_IB_QPS_PER_CONNECTION", "2"),
        ("RAILWEAVE_FABRIC", "verbs"),
        ("NCCL_IB_HCA", "mlx5_1"),
        ("NCCL_GDR_FLUSH_DISABLE", "1"),
    ];
    each(
        &[()],
        |()| with(&settings, &[LOOPBACK]),
        |()| {
            machine(MACHINE);
            let (_plugin, net) = start();
            let lanes = exchange(&net, 0, 1, 1000);
            assert_eq!(lanes.len(), 4, "two lanes with two ends each, and none for flushes: {lanes:?}");
            for lane in lanes {
                let (given, address) = (lane.attributes, lane.attributes.ah_attr);
                assert_eq!((given.timeout, given.retry_cnt, given.pkey_index), (14, 5, 1));
                assert_eq!((address.sl, address.grh.traffic_class, address.grh.sgid_index), (3, 96, 3));
            }
        },
    );
}

/// Opens a connection for a job with this traffic class. Returns its lanes.
fn lanes_of_job(plugin: &railweave_nccl_host::Plugin, class: Option<i32>, device: i32) -> Vec<QpReport> {
    let net = plugin.init(3, class).expect("init succeeds");
    let lanes = exchange(&net, device, 1, 1000);
    net.finalize().expect("finalize succeeds");
    lanes
}

#[test]
fn a_traffic_class_of_the_environment_chooses_no_service_level() {
    // The settings, the job's traffic class, and the resulting service level of InfiniBand and traffic class of RoCE.
    let cases: [(Settings, Option<i32>, u8, u8); 7] = [
        (&[], None, 0, 0),
        (&[("NCCL_IB_TC", "106")], None, 0, 106),
        (&[("RAILWEAVE_TRAFFIC_CLASS", "136")], None, 0, 136),
        (&[("NCCL_IB_TC", "106")], Some(3), 3, 106),
        (&[], Some(3), 3, 3),
        (&[("NCCL_IB_TC", "106"), ("NCCL_IB_SL", "5")], Some(3), 5, 106),
        (&[("NCCL_IB_SL", "5")], Some(3), 5, 3),
    ];
    each(
        &cases,
        |(settings, ..)| with(settings, &[("NCCL_IB_HCA", "mlx5_0,mlx5_1"), LOOPBACK]),
        |(_, class, service_level, traffic_class)| {
            machine(MACHINE);
            let (plugin, net) = start();
            let devices = names(&net);
            for (device, name) in devices.iter().enumerate() {
                for lane in lanes_of_job(&plugin, *class, device as i32) {
                    let address = lane.attributes.ah_attr;
                    match name.as_str() {
                        "mlx5_0" => assert_eq!(address.sl, *service_level, "InfiniBand"),
                        _ => assert_eq!(address.grh.traffic_class, *traffic_class, "RoCE"),
                    }
                }
            }
            assert_eq!(devices.len(), 2);
        },
    );
}

/// Two adapters with Data Direct engines.
const DATA_DIRECT: &str = "\
[[device]]
name = 'mlx5_0'
profile = 'connectx-8'
data_direct = '/devices/pci0002:00/0002:01:00.0'
[[device.port]]
[[device]]
name = 'mlx5_1'
profile = 'connectx-8'
data_direct = '/devices/pci0003:00/0003:01:00.0'
[[device.port]]
";

#[test]
fn an_adapter_with_data_direct_is_shown_as_the_setting_says_and_wants_flushes() {
    let cases: [(Settings, &[&str]); 7] = [
        (&[], &["mlx5_0_dma", "mlx5_1_dma"]),
        (&[("NCCL_IB_DATA_DIRECT", "1"), ("NCCL_IB_HCA", "=mlx5_1")], &["mlx5_1_dma"]),
        (&[("NCCL_IB_DATA_DIRECT", "0")], &["mlx5_0", "mlx5_1"]),
        (&[("NCCL_IB_DATA_DIRECT", "2")], &["mlx5_0", "mlx5_0_dma", "mlx5_1", "mlx5_1_dma"]),
        (&[("RAILWEAVE_DATA_DIRECT", "0"), ("NCCL_IB_DATA_DIRECT", "2")], &["mlx5_0", "mlx5_1"]),
        (&[("RAILWEAVE_MODE", "fused")], &["mlx5_0_dma+mlx5_1_dma"]),
        (&[("RAILWEAVE_MODE", "fused"), ("NCCL_IB_DATA_DIRECT", "2")], &["mlx5_0_dma+mlx5_1_dma"]),
    ];
    each(
        &cases,
        |(settings, _)| with(&[("RAILWEAVE_MLX5_LIB", library()), LOOPBACK], settings),
        |(_, expected)| {
            machine(DATA_DIRECT);
            let (_plugin, net) = start();
            let devices = devices(&net);
            let mut names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
            // The plugin orders devices by PCI function, not by name.
            names.sort_unstable();
            assert_eq!(names, *expected);
            for (number, device) in devices.iter().enumerate() {
                let has_engine = device.name.contains("_dma");
                assert_eq!(device.force_flush, has_engine, "{}", device.name);
                let path = device.pci_path.as_deref();
                let is_engines = path.is_some_and(|path| path.starts_with("/sys/devices/pci000"));
                assert_eq!(is_engines, has_engine, "{path:?}");
                exchange(&net, number as i32, 3, 10_000);
            }
        },
    );
}

#[test]
fn an_nccl_that_cannot_be_told_to_flush_is_shown_no_engine() {
    let plain: &[&str] = &["mlx5_0", "mlx5_1"];
    let engines: &[&str] = &["mlx5_0_dma", "mlx5_1_dma"];
    // The version of the API, the settings, the devices, and true if a line says why they differ from the settings.
    let cases: [(u32, Settings, &[&str], bool); 10] = [
        (6, &[], plain, false),
        (7, &[], plain, false),
        (8, &[], plain, false),
        (8, &[("NCCL_IB_DATA_DIRECT", "1")], plain, true),
        (8, &[("RAILWEAVE_DATA_DIRECT", "2")], plain, true),
        (8, &[("RAILWEAVE_DATA_DIRECT", "0")], plain, false),
        (9, &[], engines, false),
        (10, &[], engines, false),
        (11, &[], engines, false),
        (12, &[], engines, false),
    ];
    each(
        &cases,
        |(_, settings, ..)| with(&[("RAILWEAVE_MLX5_LIB", library()), LOOPBACK], settings),
        |(version, _, expected, is_said)| {
            machine(DATA_DIRECT);
            let net = load(Some(*version)).init(1, None).expect("init succeeds");
            let mut names = names(&net);
            // The plugin orders devices by PCI function, not by name.
            names.sort_unstable();
            assert_eq!(names, *expected);
            for device in devices(&net) {
                assert_eq!(device.force_flush, device.name.contains("_dma"), "{}", device.name);
                assert_eq!(device.ptr_support, PTR_HOST | PTR_DMABUF, "{}", device.name);
            }
            let said = info_lines().into_iter().filter(|line| line.contains("Data Direct (from ")).count();
            assert_eq!(said, usize::from(*is_said));
        },
    );
}

#[test]
fn an_older_nccl_next_to_a_newer_one_is_offered_no_gpu_memory_on_an_engine() {
    each(
        &[[12, 8], [8, 12]],
        |_| with(&[("RAILWEAVE_MLX5_LIB", library())], &[]),
        |versions| {
            machine(DATA_DIRECT);
            let nets = versions.map(|version| load(Some(version)).init(1, None).expect("init succeeds"));
            let has_engine = versions[0] == 12;
            for (version, net) in versions.iter().zip(&nets) {
                for device in devices(net) {
                    assert_eq!(device.name.contains("_dma"), has_engine, "what the first was shown");
                    let gpu_memory = if has_engine && *version == 8 { 0 } else { PTR_DMABUF };
                    assert_eq!(device.ptr_support, PTR_HOST | gpu_memory, "v{version}: {}", device.name);
                }
            }
        },
    );
}

#[test]
fn where_gpu_memory_can_be_reached_the_receiver_has_a_lane_for_flushes() {
    let cases = [("mlx5_0", "1", 2), ("mlx5_1", "1", 3), ("mlx5_1", "0", 2)];
    each(
        &cases,
        |(device, flush, _)| with(&[("NCCL_IB_HCA", device), ("RAILWEAVE_FLUSH", flush)], &[LOOPBACK]),
        |(_, _, lanes)| {
            machine(MACHINE);
            let (_plugin, net) = start();
            assert_eq!(exchange(&net, 0, 1, 1000).len(), *lanes);
        },
    );
}

#[test]
fn adaptive_routing_ends_large_messages_of_infiniband_in_a_write_of_their_own() {
    const COUNT: u64 = 20;
    // The settings, the device, and true if its messages of 10,000 bytes end in a write of their own.
    let cases: [(Settings, &str, bool); 6] = [
        (&[], "mlx5_0", true),
        (&[], "mlx5_1", false),
        (&[("NCCL_IB_ADAPTIVE_ROUTING", "0")], "mlx5_0", false),
        (&[("NCCL_IB_ADAPTIVE_ROUTING", "1")], "mlx5_1", true),
        (&[("NCCL_IB_AR_THRESHOLD", "10000")], "mlx5_0", false),
        (&[("NCCL_IB_AR_THRESHOLD", "9999")], "mlx5_0", true),
    ];
    each(
        &cases,
        |(settings, device, _)| with(settings, &[("NCCL_IB_HCA", device), LOOPBACK]),
        |(_, _, adaptive)| {
            let fake = machine(MACHINE);
            let (_plugin, net) = start();
            let before = fake.counts();
            exchange(&net, 0, COUNT as usize, 10_000);
            let counts = fake.counts().since(&before);
            assert_eq!(counts.writes_with_immediate, COUNT);
            // The receiver's CTS are plain writes too, and so is the first packet of each end.
            assert_eq!(counts.writes, if *adaptive { 2 * COUNT } else { COUNT } + 2, "{counts:?}");
        },
    );
}
