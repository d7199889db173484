//! Adapters that reach GPU memory past the processor, as libmlx5 and the kernel describe them. No such adapter has run
//! this.

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;

use common::{Machine, Pair, Wish, assert_says};
use railweave_discovery::rdma_ports::VerbsDiscovery;
use railweave_fabric::conformance::Completion;
use railweave_fabric::{Access, DataDirect, Domain as _, Memory, MemoryKind, PointerSupport, Registration as _};
use railweave_fabric::{Rail as _, RemoteSlice, WorkId};
use railweave_fake_ibverbs::profiles;

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

fn names(found: &VerbsDiscovery) -> Vec<&str> {
    found.ports.iter().map(|port| port.facts.name.as_str()).collect()
}

/// The ports found when the fake library also takes libmlx5's place.
fn found(machine: &Machine, data_direct: DataDirect) -> VerbsDiscovery {
    machine.discover(data_direct, machine.library())
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
fn without_all_that_it_takes_the_adapter_is_like_any_other() {
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
    assert_eq!(names(&machine.discover(DataDirect::Only, "/no/such/library.so")), ["mlx5_0", "mlx5_1", "mlx5_2"]);
}

#[test]
fn an_engine_that_the_kernel_does_not_place_is_left_out_with_the_reason() {
    let machine = Machine::new(&format!("faults = ['mlx5dv_get_data_direct_sysfs_path:1:EIO']\n{MACHINE}"));
    let found = found(&machine, DataDirect::Only);
    assert_eq!(names(&found), ["mlx5_0", "mlx5_1_dma", "mlx5_2"]);
    assert_eq!(found.left_out[0].name, "mlx5_0_dma");
    assert_says(&found.left_out[0].reason, &["Data Direct", "Input/output error", "kernel log"]);
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
    machine.discover(DataDirect::Only, name);
    assert!(!is_loaded(name), "another vendor's device");
    machine.fake.describe(Some(MACHINE)).unwrap();
    machine.discover(DataDirect::Off, name);
    assert!(!is_loaded(name), "switched off");
    machine.discover(DataDirect::Only, name);
    assert!(is_loaded(name));
    std::fs::remove_file(&copy).unwrap();
}

/// Memory behind a descriptor, as a dma-buf is, of three pages of 4 KiB.
fn memory_file() -> File {
    // SAFETY: the name ends in zero; the descriptor is new and nobody else's.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"railweave-test".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(3 * 4096).unwrap();
    file
}

fn dma_buf(file: &File, address: u64, offset: u64, length: usize) -> Memory {
    // SAFETY: only the file's memory is registered, which nobody else uses; the address only names it.
    unsafe { Memory::from_raw(address, length, MemoryKind::DmaBuf { fd: file.as_raw_fd(), offset }) }
}

/// The ports with this setting; the last one is the receiver.
fn pair(machine: &Machine, data_direct: DataDirect) -> Pair {
    let ports = found(machine, data_direct).ports;
    Pair::open(&ports[1], &ports[0], &Wish::default()).unwrap()
}

#[test]
fn dma_bufs_go_through_the_engine_and_nothing_else_does() {
    let machine = Machine::new(MACHINE);
    let file = memory_file();
    for (data_direct, used, unused) in [
        (DataDirect::Only, "mlx5dv_reg_dmabuf_mr", "reg_dmabuf_mr"),
        (DataDirect::Off, "reg_dmabuf_mr", "mlx5dv_reg_dmabuf_mr"),
    ] {
        let pair = pair(&machine, data_direct);
        let register = || pair.far.domain.register(dma_buf(&file, 0x7000_0000_0000, 0, 4096), Access::DATA);
        machine.fail(&format!("faults = ['{used}:*:EIO']\n"));
        let refused = register().err().unwrap_or_else(|| panic!("{used} is not used")).to_string();
        assert_says(&refused, &["4096 bytes of dma-buf memory", "Input/output error"]);
        pair.far.block(100, Access::DATA);
        machine.fail(&format!("faults = ['{unused}:*:EIO']\n"));
        register().unwrap();
        machine.fake.describe(Some(MACHINE)).unwrap();
    }
}

#[test]
fn a_dma_buf_is_written_where_its_address_says_wherever_it_begins_in_a_page() {
    let machine = Machine::new(MACHINE);
    let base = 0x7000_0000_0000_u64;
    // The address, the offset passed by the application, the length; and the place of the first byte in the dma-buf.
    let cases = [
        (base, 0, 4096, 0),
        (base, 4096, 4096, 4096),
        (base + 0x100, 0x100, 1000, 0x100),
        (base + 0x100, 4096 + 0x100, 1000, 4096 + 0x100),
        (base + 0x100, 4096 + 0x100, 4096, 4096 + 0x100),
        // As NCCL's own transport passes it: the offset of the page in which the memory begins.
        (base + 0x100, 0, 1000, 0x100),
        (base + 0xff0, 4096, 1000, 4096 + 0xff0),
    ];
    for data_direct in [DataDirect::Off, DataDirect::Only] {
        let mut pair = pair(&machine, data_direct);
        let from = pair.near.block(16, Access::SOURCE);
        for (number, (address, offset, length, place)) in cases.into_iter().enumerate() {
            let file = memory_file();
            let target = pair.far.domain.register(dma_buf(&file, address, offset, length), Access::DATA).unwrap();
            let text = format!("case number {number:04}");
            from.region.write(0, text.as_bytes());
            for at in [0, length as u64 - 16] {
                assert_eq!(pair.far.rail.post_receives(1), Ok(1));
                let remote = RemoteSlice { address: address + at, key: target.remote_key() };
                pair.near.post(0, from.source(16), remote).unwrap();
                assert_eq!(pair.near.poll(), [Completion::Sent { id: WorkId(0) }], "{}", machine.fake.complaint());
                assert_eq!(pair.far.poll().len(), 1);
                let mut there = [0; 16];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, place + at).unwrap();
                assert_eq!(there, text.as_bytes(), "{data_direct:?}, case {number}, byte {at}");
            }
        }
    }
}

#[test]
fn a_dma_buf_that_begins_elsewhere_in_its_page_is_refused_with_what_to_do() {
    let machine = Machine::new(MACHINE);
    let file = memory_file();
    for data_direct in [DataDirect::Off, DataDirect::Only] {
        let pair = pair(&machine, data_direct);
        for (address, offset) in [(0x7000_0000_0000_u64, 0x10_u64), (0x7000_0000_0010, 0x20)] {
            let refused = pair.far.domain.register(dma_buf(&file, address, offset, 100), Access::DATA).err().unwrap();
            let place = format!("{address:#x} cannot begin at offset {offset:#x}");
            assert_says(&refused.to_string(), &["mlx5_0", &place, "from the start of a page"]);
        }
    }
}
