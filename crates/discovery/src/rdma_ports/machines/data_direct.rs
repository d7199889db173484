//! Adapters with Data Direct, as libmlx5 and the kernel describe them. None of this has run on such an adapter.

use std::path::PathBuf;

use railweave_fabric::{DataDirect, PointerSupport};
use railweave_fake_ibverbs::profiles;

use super::{Machine, names, reason};
use crate::rdma_ports::VerbsDiscovery;

/// Two adapters with an engine, and one without.
const MACHINE: &str = "\
[[device]]
name = 'mlx5_0'
profile = 'connectx-8'
data_direct = '/devices/pci0002:00/0002:00:00.0/0002:01:00.0'
[[device.port]]
[[device]]
name = 'mlx5_1'
profile = 'connectx-8'
data_direct = '/devices/pci0003:00/0003:00:00.0/0003:01:00.0'
[[device.port]]
[[device]]
name = 'mlx5_2'
profile = 'connectx-7'
[[device.port]]
";

/// The ports found when the fake library also takes libmlx5's place.
fn found(machine: &Machine, data_direct: DataDirect) -> VerbsDiscovery {
    machine.discover_engines(data_direct, machine.library())
}

#[test]
fn the_engine_is_a_device_of_its_own() {
    let machine = Machine::new(MACHINE);
    for (data_direct, expected) in [
        (DataDirect::Off, &["mlx5_0", "mlx5_1", "mlx5_2"][..]),
        (DataDirect::Only, &["mlx5_0_dma", "mlx5_1_dma", "mlx5_2"]),
        (DataDirect::Both, &["mlx5_0", "mlx5_0_dma", "mlx5_1", "mlx5_1_dma", "mlx5_2"]),
    ] {
        let found = found(&machine, data_direct);
        assert_eq!(names(&found), expected);
        assert!(found.left_out.is_empty(), "{:?}", found.left_out);
        for port in &found.ports {
            let has_engine = port.facts.name.ends_with("_dma");
            assert_eq!(port.facts.pointers, PointerSupport { cuda: false, dma_buf: true, data_direct: has_engine });
            let path = has_engine.then(|| match port.facts.device.as_str() {
                "mlx5_0" => PathBuf::from("/sys/devices/pci0002:00/0002:00:00.0/0002:01:00.0"),
                _ => PathBuf::from("/sys/devices/pci0003:00/0003:00:00.0/0003:01:00.0"),
            });
            assert_eq!(port.facts.pci_path, path, "NCCL places the device by it");
            assert!(["mlx5_0", "mlx5_1", "mlx5_2"].contains(&port.facts.device.as_str()), "as filters name it");
        }
    }
    let several = "[[device]]\nname = 'mlx5_0'\nprofile = 'connectx-8'\ndata_direct = 'devices/x'\n[[device.port]]\n\
        [[device.port]]\nstate = 'down'\n";
    let machine = {
        drop(machine);
        Machine::new(several)
    };
    let found = found(&machine, DataDirect::Only);
    assert_eq!((names(&found), found.left_out[0].name.as_str()), (vec!["mlx5_0_dma:1"], "mlx5_0_dma:2"));
    assert_eq!(found.ports[0].facts.pci_path, Some("/sys/devices/x".into()));
}

#[test]
fn a_connectx_8_has_an_engine_and_no_other_adapter_has_one() {
    for (profile, title) in profiles() {
        let machine = Machine::new(&format!("[[device]]\nname = 'a'\nprofile = '{profile}'\n[[device.port]]\n"));
        let found = found(&machine, DataDirect::Only);
        let name = if profile == "connectx-8" { "a_dma" } else { "a" };
        assert_eq!((names(&found), found.left_out.len()), (vec![name], 0), "{title}");
    }
}

#[test]
fn an_adapter_that_lacks_a_requirement_of_data_direct_is_like_any_other() {
    let engine = "data_direct = '/devices/x'\n[[device.port]]\n";
    let cases = [
        (&[][..], format!("[[device]]\nname = 'a'\nprofile = 'connectx-8'\ndma_buf = false\n{engine}"), "no dma-bufs"),
        (
            &[],
            format!(
                "[[device]]\nname = 'a'\nprofile = 'connectx-8'\nvendor_id = 0x8086\n\
            {engine}"
            ),
            "another vendor",
        ),
        (&[], format!("[[device]]\nname = 'a'\nprofile = 'plain'\n{engine}"), "not of this library"),
        (
            &["mlx5dv_reg_dmabuf_mr"],
            format!(
                "[[device]]\nname = 'a'\nprofile = 'connectx-8'\n\
            {engine}"
            ),
            "an older library",
        ),
        (
            &["mlx5dv_is_supported"],
            format!(
                "[[device]]\nname = 'a'\nprofile = 'connectx-8'\n\
            {engine}"
            ),
            "a library much older",
        ),
        (
            &[],
            format!(
                "faults = ['mlx5dv_reg_dmabuf_mr:*:EOPNOTSUPP']\n\
                [[device]]\nname = 'a'\nprofile = 'connectx-8'\n{engine}"
            ),
            "an older kernel, which knows no flags of mlx5",
        ),
        (
            &[],
            format!(
                "faults = ['mlx5dv_get_data_direct_sysfs_path:*:EPROTONOSUPPORT']\n\
                 [[device]]\nname = 'a'\nprofile = 'connectx-8'\n{engine}"
            ),
            "an older kernel, which knows no engine",
        ),
    ];
    for (absent, description, what) in cases {
        let machine = Machine::without(absent, &description);
        let found = found(&machine, DataDirect::Only);
        assert_eq!((names(&found), found.left_out.len()), (vec!["a"], 0), "{what}");
        assert!(!found.ports[0].facts.pointers.data_direct, "{what}");
    }
    let machine = Machine::new(MACHINE);
    assert_eq!(
        names(&machine.discover_engines(DataDirect::Only, "/no/such/library.so")),
        ["mlx5_0", "mlx5_1", "mlx5_2"]
    );
}

#[test]
fn an_engine_that_the_kernel_does_not_place_is_left_out_with_the_reason() {
    let machine = Machine::new(&format!("faults = ['mlx5dv_get_data_direct_sysfs_path:1:EIO']\n{MACHINE}"));
    let found = found(&machine, DataDirect::Only);
    assert_eq!(names(&found), ["mlx5_0", "mlx5_1_dma", "mlx5_2"]);
    let reason = reason(&found, "mlx5_0_dma");
    assert!(!reason.contains('\n'), "{reason}");
    for words in ["Data Direct", "Input/output error", "kernel log"] {
        assert!(reason.contains(words), "{words} is not in: {reason}");
    }
}

/// Returns true if this process has loaded the file.
fn is_loaded(path: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(path)
}

#[test]
fn libmlx5_is_loaded_where_a_device_could_use_it_and_not_before() {
    let machine = Machine::new("[[device]]\nname = 'a'\nvendor_id = 0x8086\n[[device.port]]\n");
    let copy = std::env::temp_dir().join(format!("railweave-mlx5-{}.so", std::process::id()));
    std::fs::copy(machine.library(), &copy).unwrap();
    let name = copy.to_str().unwrap();
    machine.discover_engines(DataDirect::Only, name);
    assert!(!is_loaded(name), "another vendor's device");
    machine.fake.describe(Some(MACHINE)).unwrap();
    machine.discover_engines(DataDirect::Off, name);
    assert!(!is_loaded(name), "switched off");
    machine.discover_engines(DataDirect::Only, name);
    assert!(is_loaded(name));
    std::fs::remove_file(&copy).unwrap();
}
