//! Registering memory: the functions that the library must have, and the messages of refusals.

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use common::{Machine, ROCE, Wish, assert_says, open, strict};
use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    Access, Domain as _, Fault, LaneId, LocalSlice, Memory, MemoryKind, Rail as _, Region, RegisterError,
    Registration as _, RelaxedOrdering, RemoteSlice, WorkId, WorkStatus, Write,
};
use railweave_fabric_verbs::{VerbsConfig, VerbsDomain};

fn domain(machine: &Machine, relaxed_ordering: RelaxedOrdering) -> Arc<VerbsDomain> {
    open(&machine.port("a"), VerbsConfig { relaxed_ordering, ..VerbsConfig::default() }, |_| ()).unwrap()
}

/// Returns the function that registers the next block: the one whose failure is noticed.
fn function_for(machine: &Machine, domain: &VerbsDomain, access: Access) -> &'static str {
    let region = Arc::new(Region::new(100));
    let mut used = Vec::new();
    for function in ["reg_mr", "reg_mr_iova2"] {
        machine.fail(&format!("faults = ['{function}:*:EIO']\n"));
        if domain.register(Memory::from_region(&region), access).is_err() {
            used.push(function);
        }
    }
    machine.fail("");
    drop(domain.register(Memory::from_region(&region), access).unwrap());
    assert_eq!(used.len(), 1, "{used:?}");
    used[0]
}

#[test]
fn data_is_written_in_any_order_where_that_is_wanted_and_control_never() {
    use RelaxedOrdering::{Off, On, WhereKnown};
    let older = &["ibv_reg_mr_iova2"][..];
    let cases = [
        (&[][..], WhereKnown, "reg_mr_iova2"),
        (&[], On, "reg_mr_iova2"),
        (&[], Off, "reg_mr"),
        (older, WhereKnown, "reg_mr"),
        (older, Off, "reg_mr"),
    ];
    for (absent, ordering, data) in cases {
        let machine = Machine::without(absent, &strict(ROCE));
        let domain = domain(&machine, ordering);
        assert_eq!(function_for(&machine, &domain, Access::DATA), data, "{absent:?} {ordering:?}");
        assert_eq!(function_for(&machine, &domain, Access::CONTROL), "reg_mr", "{absent:?} {ordering:?}");
        assert_eq!(function_for(&machine, &domain, Access::SOURCE), "reg_mr", "{absent:?} {ordering:?}");
    }
}

#[test]
fn relaxed_ordering_that_an_older_library_cannot_do_is_refused_with_the_setting() {
    let machine = Machine::without(&["ibv_reg_mr_iova2"], ROCE);
    let domain = domain(&machine, RelaxedOrdering::On);
    let region = Arc::new(Region::new(100));
    let refused = domain.register(Memory::from_region(&region), Access::DATA).err().unwrap();
    assert_eq!(refused, RegisterError::NoRelaxedOrdering { port: "a".to_owned() });
    domain.register(Memory::from_region(&region), Access::CONTROL).unwrap();
}

/// Memory behind a descriptor, as a dma-buf is, of two pages.
fn memory_file() -> File {
    // SAFETY: the name ends in zero; the descriptor is new and nobody else's.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"railweave-test".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(8192).unwrap();
    file
}

fn dma_buf(file: &File, address: u64, offset: u64, length: usize) -> Memory {
    // SAFETY: only the file's memory is registered, which nobody else uses; the address only names it.
    unsafe { Memory::from_raw(address, length, MemoryKind::DmaBuf { fd: file.as_raw_fd(), offset }) }
}

#[test]
fn a_dma_buf_is_written_at_its_offset_and_its_descriptor_may_go() {
    let machine = Machine::new(
        "[[device]]\nname = 'a'\n[[device.port]]\n\
        [[device]]\nname = 'b'\ndma_buf = true\n[[device.port]]\n",
    );
    let mut pair = machine.pair(&Wish::default());
    let file = memory_file();
    let other = file.try_clone().unwrap();
    let address = 0x7000_0000_0000;
    let target = pair.far.domain.register(dma_buf(&file, address, 4096, 4096), Access::DATA).unwrap();
    drop(file);
    let from = pair.near.block(16, Access::SOURCE);
    from.region.write(0, b"through the card");
    assert_eq!(pair.far.rail.post_receives(1), Ok(1));
    let place = RemoteSlice { address: address + 100, key: target.remote_key() };
    pair.near.post(0, from.source(16), place).unwrap();
    assert_eq!(pair.near.poll(), [Completion::Sent { id: WorkId(0) }]);
    let mut there = [0; 16];
    std::os::unix::fs::FileExt::read_exact_at(&other, &mut there, 4096 + 100).unwrap();
    assert_eq!(&there, b"through the card");
}

#[test]
fn a_dma_buf_that_cannot_be_registered_is_told_with_what_to_load() {
    let device = "[[device]]\nname = 'a'\ndma_buf = false\n[[device.port]]\n";
    let cases = [
        (&[][..], device, "Operation not supported"),
        (&["ibv_reg_dmabuf_mr"][..], ROCE, "ibv_reg_dmabuf_mr of version IBVERBS_1.12"),
    ];
    for (absent, description, reason) in cases {
        let machine = Machine::without(absent, description);
        assert!(!machine.port("a").facts.pointers.dma_buf);
        let domain = domain(&machine, RelaxedOrdering::WhereKnown);
        let file = memory_file();
        let refused = domain.register(dma_buf(&file, 0x1000, 0, 4096), Access::DATA).err().unwrap();
        assert_says(&refused.to_string(), &["a: ", "dma-buf", reason, "nvidia_peermem"]);
    }
    let machine = Machine::new("[[device]]\nname = 'a'\ndma_buf = true\n[[device.port]]\n");
    assert!(machine.port("a").facts.pointers.dma_buf);
}

#[test]
fn gpu_memory_that_the_adapter_cannot_reach_is_told_with_what_to_load() {
    let machine = Machine::new(ROCE);
    let domain = domain(&machine, RelaxedOrdering::WhereKnown);
    // SAFETY: nothing touches this memory, because its registration fails: the kernel does not know the address.
    let memory = unsafe { Memory::from_raw(0x10_0000, 4096, MemoryKind::Cuda) };
    let refused = domain.register(memory, Access::DATA).err().unwrap();
    let RegisterError::Refused { kind, address, errno, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((kind, address, errno), (MemoryKind::Cuda, 0x10_0000, libc::EFAULT));
}

#[test]
fn what_the_kernel_refuses_is_told_with_its_remedy() {
    let region = Arc::new(Region::new(100));
    let cases = [
        ("ENOMEM", "Cannot allocate memory", "ulimit -l unlimited"),
        ("EAGAIN", "Resource temporarily unavailable", "memlock=-1"),
        ("EFAULT", "Bad address", "mapped and writable"),
        ("EINVAL", "Invalid argument", "mapped and writable"),
        ("EIO", "Input/output error", "kernel log"),
    ];
    for function in ["reg_mr", "reg_mr_iova2"] {
        for (error, text, advice) in cases {
            let machine = Machine::new(&format!("faults = ['{function}:*:{error}']\n{ROCE}"));
            let domain = domain(&machine, RelaxedOrdering::WhereKnown);
            let access = if function == "reg_mr" { Access::CONTROL } else { Access::DATA };
            if function == "reg_mr_iova2" && error == "EINVAL" {
                // Perhaps the driver only does not know relaxed ordering, so the call is repeated without it.
                domain.register(Memory::from_region(&region), access).unwrap();
                continue;
            }
            let refused = domain.register(Memory::from_region(&region), access).err().unwrap();
            assert_says(&refused.to_string(), &["a: 100 bytes of host memory at 0x", text, advice]);
        }
    }
}

#[test]
fn relaxed_ordering_that_an_adapter_does_not_know_is_left_out_unless_it_is_asked_for() {
    let machine = Machine::new("[[device]]\nname = 'a'\nprofile = 'mana'\n[[device.port]]\n");
    let region = Arc::new(Region::new(100));
    let register = |ordering| domain(&machine, ordering).register(Memory::from_region(&region), Access::DATA);
    for ordering in [RelaxedOrdering::Off, RelaxedOrdering::WhereKnown] {
        register(ordering).unwrap();
    }
    let refused = register(RelaxedOrdering::On).err().unwrap();
    assert!(matches!(refused, RegisterError::Refused { relaxed: true, errno: libc::EINVAL, .. }), "{refused:?}");
}

#[test]
fn an_adapter_that_refused_relaxed_ordering_is_not_asked_for_it_again() {
    let machine = Machine::new("[[device]]\nname = 'a'\nprofile = 'plain'\n[[device.port]]\n");
    let region = Arc::new(Region::new(100));
    let domain = domain(&machine, RelaxedOrdering::WhereKnown);
    // A second request for relaxed ordering would fail with EIO, which no driver returns for an unknown flag.
    machine.fail("faults = ['reg_mr_iova2:1:EINVAL', 'reg_mr_iova2:*:EIO']\n");
    for _ in 0..3 {
        domain.register(Memory::from_region(&region), Access::DATA).unwrap();
    }
}

#[test]
fn the_limit_of_the_device_is_told_as_one() {
    let machine = Machine::new("[[device]]\nname = 'a'\nmax_mr = 2\n[[device.port]]\n");
    let domain = domain(&machine, RelaxedOrdering::WhereKnown);
    let region = Arc::new(Region::new(100));
    let register = || domain.register(Memory::from_region(&region), Access::DATA);
    let (_first, second) = (register().unwrap(), register().unwrap());
    assert!(matches!(register(), Err(RegisterError::Refused { errno: libc::ENOMEM, .. })));
    drop(second);
    register().unwrap();
}

#[test]
fn a_range_that_is_none_is_not_handed_to_the_library() {
    let machine = Machine::new(&format!("faults = ['reg_mr:*:EIO', 'reg_mr_iova2:*:EIO']\n{ROCE}"));
    let domain = domain(&machine, RelaxedOrdering::WhereKnown);
    // SAFETY: the memory is refused before anything reads it.
    let memory = unsafe { Memory::from_raw(u64::MAX - 10, 100, MemoryKind::Host) };
    let refused = domain.register(memory, Access::DATA).err().unwrap();
    assert_eq!((matches!(refused, RegisterError::Range { .. }), refused.fault()), (true, Fault::Protocol));
}

/// The number of work requests for these writes that were posted with their bytes inside.
fn inline(machine: &Machine, pair: &mut common::Pair, writes: &[Write]) -> u64 {
    let before = machine.fake.counts();
    pair.near.rail.post(LaneId(0), writes).unwrap();
    let counts = machine.fake.counts().since(&before);
    assert_eq!(counts.work_requests(), writes.len() as u64);
    counts.inline
}

#[test]
fn short_writes_from_host_memory_travel_inside_and_no_others() {
    let machine = Machine::new(&strict(ROCE));
    let mut pair = machine.pair(&Wish::default());
    let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
    from.region.write(0, &[7; 100]);
    let write = |length, host| Write {
        local: LocalSlice { length, ..from.source(0) },
        remote: to.place(),
        host,
        signalled: true,
        ..Write::default()
    };
    for (length, host, expected) in
        [(1, true, 1), (64, true, 1), (65, true, 0), (100, true, 0), (1, false, 0), (64, false, 0), (65, false, 0)]
    {
        assert_eq!(
            inline(&machine, &mut pair, &[write(length, host)]),
            expected,
            "{length} bytes, host memory: {host}"
        );
    }
    assert_eq!(inline(&machine, &mut pair, &[write(64, true), write(64, false), write(80, true)]), 1);
    // A source inside the work request needs no key; every other source needs one.
    let mut unregistered = write(64, true);
    unregistered.local.key = 0;
    assert_eq!(inline(&machine, &mut pair, &[unregistered]), 1);
    assert!(pair.near.failures().is_empty());
    unregistered.host = false;
    pair.near.rail.post(LaneId(0), &[unregistered]).unwrap();
    assert_eq!(pair.near.work_failure().status, WorkStatus::LocalProtection);
}

#[test]
fn a_device_that_carries_less_inside_is_given_nothing_to_carry() {
    for limit in [0, 32, 63] {
        let machine = Machine::new(&format!(
            "[[device]]\nname = 'a'\nmax_inline = {limit}\n[[device.port]]\n\
            [[device]]\nname = 'b'\n[[device.port]]\n"
        ));
        let mut pair = machine.pair(&Wish::default());
        let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
        let write = Write { local: from.source(16), remote: to.place(), host: true, ..Write::default() };
        assert_eq!(inline(&machine, &mut pair, &[write]), 0, "{limit}");
        assert_eq!(machine.lanes("a")[0].capabilities.max_inline_data, 0);
        assert_eq!(machine.lanes("b")[0].capabilities.max_inline_data, 64, "the other end is not concerned");
        pair.exchange();
    }
}

#[test]
fn writes_are_as_long_as_the_port_carries_and_no_longer() {
    let machine = Machine::new(
        "[[device]]\nname = 'a'\n[[device.port]]\nmax_message = 4096\n\
            [[device]]\nname = 'b'\n[[device.port]]\nmax_message = 0x40000000\n",
    );
    let mut pair = machine.pair(&Wish::default());
    assert_eq!((pair.near.domain.max_write(), pair.near.rail.max_write()), (4096, 4096));
    assert_eq!(pair.far.domain.max_write(), 1 << 30);
    let (from, to) = (pair.near.block(8192, Access::SOURCE), pair.far.block(8192, Access::DATA));
    let long = pair.near.post(0, from.source(4097), to.place()).unwrap_err();
    assert_says(&long.to_string(), &["a write of 4097 bytes", "at most 4096"]);
    assert_eq!(pair.far.rail.post_receives(1), Ok(1));
    pair.near.post(0, from.source(4096), to.place()).unwrap();
    assert_eq!(pair.far.poll(), [Completion::Received { lane: LaneId(0), immediate: 0x1234, bytes: 4096 }]);
}

#[test]
fn byte_counts_are_what_the_setting_says() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish::of(VerbsConfig { byte_counts: false, ..VerbsConfig::default() }));
    assert!(!pair.far.domain.byte_counts());
    pair.exchange();
    drop(pair);
    let pair = machine.pair(&Wish::default());
    assert!(pair.far.domain.byte_counts());
}
