//! The ports that are found, on machines that the fake libibverbs describes.

mod data_direct;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_fabric::{DataDirect, LinkLayer, PointerSupport, PortFacts};
use railweave_fabric_verbs::VerbsPort;
use railweave_fabric_verbs::gid::GidRules;
use railweave_fabric_verbs::sys::Functions;
use railweave_fake_ibverbs::{FakeVerbs, Open, build_without};

use super::{DiscoveryRules, NoDevice, VerbsDiscovery, discover};
use crate::tree::Tree;

/// One machine at a time, because the library's state belongs to the process.
static TURN: Mutex<()> = Mutex::new(());

/// A machine, held by one test at a time: the library and a file system's root.
struct Machine {
    functions: Arc<Functions>,
    fake: FakeVerbs,
    tree: Tree,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    fn new(description: &str) -> Self {
        Self::without(&[], description)
    }

    /// A machine with a library that lacks these functions.
    fn without(absent: &[&str], description: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let library = build_without(absent);
        let fake = FakeVerbs::load(&library).unwrap();
        fake.describe(Some(description)).unwrap();
        let functions = Arc::new(Functions::load(&[library.to_str().unwrap()]).unwrap());
        Self { functions, fake, tree: Tree::new(), _turn: turn }
    }

    /// Discovers without Data Direct, which has tests of its own.
    fn try_discover(&self, gids: &dyn Fn(&str) -> GidRules) -> Result<VerbsDiscovery, NoDevice> {
        let addresses = Arc::new(|| vec![(IpAddr::from([10, 1, 0, 1]), 16)]);
        let data_direct = DataDirect::Off;
        let rules = DiscoveryRules { gids, addresses, merge_vfs: true, data_direct, mlx5_library: "" };
        discover(self.tree.root(), &self.functions, &rules)
    }

    fn discover(&self) -> VerbsDiscovery {
        self.try_discover(&|_| GidRules::default()).unwrap()
    }

    /// Discovers with this setting of Data Direct, and the library of this name in libmlx5's place.
    fn discover_engines(&self, data_direct: DataDirect, mlx5_library: &str) -> VerbsDiscovery {
        let (gids, addresses) = (&|_: &str| GidRules::default(), Arc::new(Vec::new));
        let rules = DiscoveryRules { gids, addresses, merge_vfs: true, data_direct, mlx5_library };
        discover(self.tree.root(), &self.functions, &rules).unwrap()
    }

    /// The library's file.
    fn library(&self) -> &str {
        self.functions.name()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.fake.open(), Open::default(), "something is left open");
        }
    }
}

fn names(found: &VerbsDiscovery) -> Vec<&str> {
    found.ports.iter().map(|port| port.facts.name.as_str()).collect()
}

fn port<'a>(found: &'a VerbsDiscovery, name: &str) -> &'a VerbsPort {
    found.ports.iter().find(|port| port.facts.name == name).unwrap_or_else(|| panic!("no {name} in {found:?}"))
}

fn reason<'a>(found: &'a VerbsDiscovery, name: &str) -> &'a str {
    &found.left_out.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no {name} in {found:?}")).reason
}

#[test]
fn facts_come_from_the_library_and_from_sysfs() {
    let machine = Machine::new(
        "[[device]]\nname = 'mlx5_0'\nguid = 0x1070fd0300a1b2c4\nsystem_guid = 0x1070fd0300a1b2c0\ndma_buf = true\n\
         [[device.port]]\nmtu = 4096\nspeed = 'ndr'\nwidth = 4\nport_speed = 0\n\
         gid.0 = ['fe80::1', 'roce1', 2]\ngid.1 = ['fe80::1', 'roce2', 2]\ngid.2 = ['10.1.0.1', 'roce1', 2]\n\
         gid.3 = ['10.1.0.1', 'roce2', 2]\n",
    );
    machine
        .tree
        .device("infiniband", "mlx5_0", "pci0000:00/0000:3b:00.1")
        .file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "eth2\n");
    let found = machine.discover();
    assert!(found.left_out.is_empty(), "{found:?}");
    let port = port(&found, "mlx5_0");
    let expected = PortFacts {
        name: "mlx5_0".to_owned(),
        device: "mlx5_0".to_owned(),
        link_layer: LinkLayer::Roce,
        address: "10.1.0.1".parse().unwrap(),
        prefix_len: 16,
        speed_mbps: Some(400_000),
        mtu: 4096,
        pci_path: Some("/sys/devices/pci0000:00/0000:3b:00.0".into()),
        bus_id: Some("0000:3b:00.1".to_owned()),
        guid: 0xc0b2_a100_03fd_7010,
        port_number: 1,
        pointers: PointerSupport { cuda: false, dma_buf: true, data_direct: false },
    };
    assert_eq!(port.facts, expected);
    assert_eq!(port.number, 1);
    assert_eq!(port.gids.len(), 1);
    assert_eq!((port.gids[0].index, port.gids[0].version), (3, Some(2)));
    assert_eq!(port.gids[0].interface.as_deref(), Some("eth2"));
}

#[test]
fn infiniband_is_known_by_its_first_gid() {
    let machine = Machine::new(
        "[[device]]\nname = 'mlx5_0'\n\
         [[device.port]]\nlink_layer = 'infiniband'\nlid = 7\nwidth = 4\nspeed = 'hdr'\nport_speed = 0\nmtu = 4096\n\
         gid.0 = ['fe80::2:c903:1', 'ib', 0]\n\
         [[device]]\nname = 'mlx5_1'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = 8\n\
         gid.0 = ['fe80::2:c903:2', 'ib', 0]\ngid.1 = ['fec0:0:17:1::2:c903:2', 'ib', 0]\n",
    );
    let found = machine.discover();
    let first = port(&found, "mlx5_0");
    assert_eq!((first.facts.link_layer, first.attributes.lid), (LinkLayer::InfiniBand, 7));
    assert_eq!(first.facts.address, "fe80::2:c903:1".parse::<IpAddr>().unwrap());
    assert_eq!((first.facts.prefix_len, first.facts.speed_mbps), (64, Some(200_000)));
    assert_eq!((first.gids[0].index, first.gids[0].version), (0, None));
    assert_eq!(port(&found, "mlx5_1").gids[0].index, 1);
}

#[test]
fn a_device_with_several_ports_gives_each_its_number() {
    let machine = Machine::new(
        "[[device]]\nname = 'mlx4_0'\n[[device.port]]\nlink_layer = 'infiniband'\n\
         [[device.port]]\ngid.0 = ['10.1.0.1', 'roce2', 0]\n\
         [[device]]\nname = 'mlx4_1'\n[[device.port]]\nstate = 'down'\n[[device.port]]\n",
    );
    let found = machine.discover();
    assert_eq!(names(&found), ["mlx4_0:1", "mlx4_0:2", "mlx4_1:2"]);
    assert_eq!(port(&found, "mlx4_0:2").facts.device, "mlx4_0");
    assert_eq!(port(&found, "mlx4_0:2").facts.port_number, 2);
    assert!(reason(&found, "mlx4_1:1").contains("the port is down"));
    assert_eq!(port(&found, "mlx4_0:1").facts.guid, port(&found, "mlx4_0:2").facts.guid);
}

#[test]
fn what_cannot_carry_traffic_is_left_out_with_the_reason() {
    let machine = Machine::new(
        "[[device]]\nname = 'a0'\n[[device.port]]\nstate = 'down'\n\
         [[device]]\nname = 'b0'\n[[device.port]]\nlink_layer = 'infiniband'\nstate = 'init'\n\
         [[device]]\nname = 'c0'\ntransport = 'iwarp'\n[[device.port]]\n\
         [[device]]\nname = 'd0'\n[[device.port]]\nlink_layer = 'unspecified'\n\
         [[device]]\nname = 'e0'\n[[device.port]]\ngid.0 = ['fe80::1', 'roce1', 0]\ngid.1 = ['10.1.0.1', 'roce1', 0]\n\
         [[device]]\nname = 'f0'\n[[device.port]]\n",
    );
    let found = machine.discover();
    assert_eq!(names(&found), ["f0"]);
    for (name, part) in [
        ("a0", "the port is down"),
        ("b0", "no subnet manager"),
        ("c0", "iWARP"),
        ("d0", "neither InfiniBand (1) nor Ethernet (2)"),
        ("e0", "0 (fe80::1 is RoCE v1, not v2), 1 (10.1.0.1 is RoCE v1, not v2); set roce_version"),
    ] {
        assert!(reason(&found, name).contains(part), "{name}: {}", reason(&found, name));
    }
}

#[test]
fn what_cannot_be_asked_is_left_out_with_the_kernels_reason() {
    let devices = "[[device]]\nname = 'a0'\n[[device.port]]\n[[device]]\nname = 'b0'\n[[device.port]]\n\
        [[device]]\nname = 'c0'\n[[device.port]]\n";
    for (fault, left, part) in [
        ("open_device:2:EACCES", "b0", "Permission denied (os error 13); give this process access to /dev/infiniband"),
        ("query_device:1:EIO", "a0", "the device cannot be queried: Input/output error"),
        ("query_port:3:ENODEV", "c0", "the port cannot be queried: No such device"),
    ] {
        let machine = Machine::new(&format!("faults = ['{fault}']\n{devices}"));
        let found = machine.discover();
        assert_eq!(found.ports.len(), 2, "{fault}: {found:?}");
        assert!(reason(&found, left).contains(part), "{fault}: {}", reason(&found, left));
    }
}

#[test]
fn a_machine_without_devices_says_so() {
    let machine = Machine::new("faults = ['get_device_list:1:ENOSYS']\n[[device]]\nname = 'a0'\n[[device.port]]\n");
    let error = machine.try_discover(&|_| GidRules::default()).unwrap_err().to_string();
    assert!(error.contains("Function not implemented") && error.contains("ib_uverbs"), "{error}");
    drop(machine);
    let machine = Machine::new("# nothing\n");
    let error = machine.try_discover(&|_| GidRules::default()).unwrap_err().to_string();
    assert!(error.contains("no RDMA device") && error.contains("`rdma link`"), "{error}");
}

#[test]
fn devices_come_by_name() {
    let machine = Machine::new(
        "[[device]]\nname = 'rxe10'\n[[device.port]]\n\
        [[device]]\nname = 'rxe2'\n[[device.port]]\n[[device]]\nname = 'rxe1'\n[[device.port]]\n",
    );
    assert_eq!(names(&machine.discover()), ["rxe1", "rxe2", "rxe10"]);
}

#[test]
fn each_adapter_can_have_an_index_of_its_own() {
    let table = "[[device.port]]\ngid.0 = ['fe80::1', 'roce2', 0]\ngid.1 = ['10.1.0.1', 'roce2', 0]\n\
        gid.2 = ['10.2.0.1', 'roce2', 0]\n";
    let machine = Machine::new(&format!(
        "[[device]]\nname = 'a0'\n{table}[[device]]\nname = 'a1'\n\
        {table}[[device]]\nname = 'a2'\n{table}"
    ));
    let index = |device: &str| match device {
        "a0" => Some(2),
        "a1" => Some(7),
        _ => None,
    };
    let found = machine.try_discover(&|device| GidRules { index: index(device), ..GidRules::default() }).unwrap();
    let first = |name: &str| (port(&found, name).gids[0].index, port(&found, name).facts.prefix_len);
    assert_eq!([first("a0"), first("a2")], [(2, 24), (1, 16)]);
    assert_eq!(port(&found, "a2").gids.len(), 2);
    assert!(reason(&found, "a1").contains("no entry 7"), "{}", reason(&found, "a1"));
}

#[test]
fn an_address_of_this_network_namespace_is_the_ports_and_its_prefix_the_interfaces_or_the_users() {
    let machine = Machine::new(
        "[[device]]\nname = 'a0'\n\
        [[device.port]]\ngid.0 = ['10.0.0.7', 'roce2', 0]\ngid.5 = ['10.1.0.1', 'roce2', 0]\n",
    );
    for (set, prefix_lens) in [(None, [16, 24]), (Some(30), [30, 30])] {
        let found = machine.try_discover(&|_| GidRules { prefix_len: set, ..GidRules::default() }).unwrap();
        let gids = &port(&found, "a0").gids;
        assert_eq!([gids[0].index, gids[1].index], [5, 0], "{gids:?}");
        assert_eq!([gids[0].prefix_len, gids[1].prefix_len], prefix_lens);
        assert_eq!(port(&found, "a0").facts.address, IpAddr::from([10, 1, 0, 1]));
    }
}

#[test]
fn entries_that_a_queue_pair_cannot_name_are_left_out() {
    // The last is the address of this network namespace, and would come first.
    let last = "gid.255 = ['10.2.0.1', 'roce2', 0]\ngid.256 = ['10.1.0.1', 'roce2', 0]\n";
    let machine = Machine::new(&format!(
        "[[device]]\nname = 'a0'\n[[device.port]]\n{last}[[device]]\nname = 'b0'\n\
         [[device.port]]\ngid.300 = ['10.3.0.1', 'roce2', 0]\n[[device]]\nname = 'c0'\n[[device.port]]\n\
         gid.7 = ['10.4.0.1', 'roce1', 0]\ngid.1023 = ['10.4.0.1', 'roce2', 0]\n"
    ));
    let found = machine.discover();
    let indices: Vec<u32> = port(&found, "a0").gids.iter().map(|gid| gid.index).collect();
    assert_eq!((names(&found), indices), (vec!["a0"], vec![255]));
    assert_eq!(port(&found, "a0").facts.address, IpAddr::from([10, 2, 0, 1]));
    for (name, words) in [("b0", "has only entries above 255"), ("c0", "7 (10.4.0.1 is RoCE v1, not v2)")] {
        let reason = reason(&found, name);
        assert!(reason.contains(words) && reason.contains("a queue pair cannot name"), "{name}: {reason}");
    }
}

#[test]
fn an_older_library_leaves_the_types_of_gids_to_sysfs() {
    let table = "gid.0 = ['fe80::1', 'roce1', 0]\ngid.1 = ['fe80::1', 'roce2', 0]\ngid.2 = ['10.1.0.1', 'roce1', 0]\n\
         gid.3 = ['10.1.0.1', 'roce2', 0]\n";
    let machine = Machine::without(
        &["_ibv_query_gid_ex"],
        &format!(
            "[[device]]\nname = 'a0'\n\
        [[device.port]]\n{table}"
        ),
    );
    // A container may lack these files: then the kernel's order decides.
    assert_eq!(port(&machine.discover(), "a0").gids[0].index, 3);
    let types = "sys/class/infiniband/a0/ports/1/gid_attrs/types";
    for (index, kind) in [(0, "IB/RoCE v1"), (1, "RoCE v2"), (2, "RoCE v2"), (3, "IB/RoCE v1")] {
        machine.tree.file(&format!("{types}/{index}"), kind);
    }
    let found = machine.discover();
    assert_eq!((port(&found, "a0").gids[0].index, port(&found, "a0").gids[0].version), (2, Some(2)));
}

#[test]
fn a_refused_query_of_types_does_not_end_discovery() {
    let machine = Machine::new(
        "faults = ['query_gid_ex:*:EOPNOTSUPP']\n\
        [[device]]\nname = 'a0'\n[[device.port]]\ngid.2 = ['10.1.0.1', 'roce2', 0]\n",
    );
    assert_eq!(port(&machine.discover(), "a0").gids[0].index, 2);
}

#[test]
fn speeds_beyond_the_tables_are_asked_for() {
    let machine = Machine::new(
        "[[device]]\nname = 'a0'\n[[device.port]]\nport_speed = 8000\n\
         [[device]]\nname = 'b0'\n[[device.port]]\nwidth = 4\nspeed = 'edr'\nport_speed = 1000\n",
    );
    let found = machine.discover();
    let speed = |name: &str| port(&found, name).facts.speed_mbps;
    assert_eq!([speed("a0"), speed("b0")], [Some(800_000), Some(100_000)]);
}

#[test]
fn gpu_memory_is_offered_where_kernel_and_device_can() {
    let machine = Machine::new(
        "[[device]]\nname = 'a0'\ndma_buf = true\n[[device.port]]\n\
        [[device]]\nname = 'b0'\ndma_buf = false\n[[device.port]]\n",
    );
    let pointers = |found: &VerbsDiscovery, name: &str| port(found, name).facts.pointers;
    let found = machine.discover();
    assert_eq!(pointers(&found, "a0"), PointerSupport { cuda: false, dma_buf: true, data_direct: false });
    assert_eq!(pointers(&found, "b0"), PointerSupport::default());
    drop(found);
    machine.tree.file("sys/module/nvidia_peermem/version", "550.54\n");
    let found = machine.discover();
    assert_eq!(pointers(&found, "a0"), PointerSupport { cuda: true, dma_buf: true, data_direct: false });
    assert_eq!(pointers(&found, "b0"), PointerSupport { cuda: true, dma_buf: false, data_direct: false });
}

#[test]
fn without_protection_domain_or_function_there_is_no_dma_buf() {
    let device = "[[device]]\nname = 'a0'\ndma_buf = true\n[[device.port]]\n";
    let machine = Machine::new(&format!("faults = ['alloc_pd:1:ENOMEM']\n{device}"));
    assert!(!port(&machine.discover(), "a0").facts.pointers.dma_buf);
    drop(machine);
    let machine = Machine::without(&["ibv_reg_dmabuf_mr"], device);
    assert!(!port(&machine.discover(), "a0").facts.pointers.dma_buf);
    drop(machine);
    // The first error that a driver finds in an invalid call says nothing about valid calls.
    for (error, can) in [("EINVAL", true), ("ENOMEM", true), ("EOPNOTSUPP", false), ("EPROTONOSUPPORT", false)] {
        let machine = Machine::new(&format!("faults = ['reg_dmabuf_mr:1:{error}']\n{device}"));
        assert_eq!(port(&machine.discover(), "a0").facts.pointers.dma_buf, can, "{error}");
    }
}
