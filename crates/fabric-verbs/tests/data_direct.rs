//! Memory behind dma-bufs, reached through a Data Direct engine and without one. None of this has run on such an
//! adapter.

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use common::{Machine, Pair, Wish, assert_says};
use railweave_fabric::conformance::Completion;
use railweave_fabric::{Access, Domain as _, Memory, MemoryKind, Registration as _};
use railweave_fabric::{Rail as _, RemoteSlice, WorkId};

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

/// A rail to the first adapter, with the engines or without.
fn pair(machine: &Machine, has_engines: bool) -> Pair {
    let ports = machine.ports(has_engines);
    Pair::open(&ports[1], &ports[0], &Wish::default()).unwrap()
}

#[test]
fn dma_bufs_go_through_the_engine_and_nothing_else_does() {
    let machine = Machine::new(MACHINE);
    let file = memory_file();
    for (has_engines, used, unused) in
        [(true, "mlx5dv_reg_dmabuf_mr", "reg_dmabuf_mr"), (false, "reg_dmabuf_mr", "mlx5dv_reg_dmabuf_mr")]
    {
        let pair = pair(&machine, has_engines);
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
    for has_engines in [false, true] {
        let mut pair = pair(&machine, has_engines);
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
                assert_eq!(there, text.as_bytes(), "engine: {has_engines}, case {number}, byte {at}");
            }
        }
    }
}

#[test]
fn a_dma_buf_that_begins_elsewhere_in_its_page_is_refused_with_what_to_do() {
    let machine = Machine::new(MACHINE);
    let file = memory_file();
    for has_engines in [false, true] {
        let pair = pair(&machine, has_engines);
        for (address, offset) in [(0x7000_0000_0000_u64, 0x10_u64), (0x7000_0000_0010, 0x20)] {
            let refused = pair.far.domain.register(dma_buf(&file, address, offset, 100), Access::DATA).err().unwrap();
            let place = format!("{address:#x} cannot begin at offset {offset:#x}");
            assert_says(&refused.to_string(), &["mlx5_0", &place, "from the start of a page"]);
        }
    }
}
