//! Children of a process that has registered memory, on a kernel that withholds registered pages from children: they
//! still get everything else that the process has allocated.

mod common;

use std::hint::black_box;
use std::sync::Arc;

use common::{Machine, open};
use railweave_fabric::{Access, Domain as _, Memory, Region};
use railweave_fabric_verbs::VerbsConfig;

/// Two devices on a kernel before 5.12.
const OLD: &str = "[[device]]\nname = 'a'\nwithholds_pages = true\n[[device.port]]\n\
    [[device]]\nname = 'b'\nwithholds_pages = true\n[[device.port]]\n";

/// Returns the signal that ends a child that runs `act`; `None` if it exits normally.
fn signal_of_a_child(act: impl FnOnce()) -> Option<i32> {
    // SAFETY: the child touches memory and ends, without a lock or an allocation.
    let child = unsafe { libc::fork() };
    if child == 0 {
        act();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "a child was forked");
    let mut status = 0;
    // SAFETY: the child's number came from fork, and the pointer to the status is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

#[test]
fn a_child_has_all_that_lies_beside_registered_memory() {
    let machine = Machine::new(OLD);
    machine.prepare_for_forks();
    let pair = machine.pair(&common::Wish::default());
    let mut neighbours: Vec<Box<[u8]>> = Vec::new();
    let mut blocks = Vec::new();
    // Blocks of the sizes of a flush target, of records and of a CTS ring, between ordinary allocations.
    for round in 0..40 {
        for length in [64, 16 << 10, 32 << 10] {
            neighbours.push(vec![round; length - 16].into());
            blocks.push(pair.far.block(length, Access::CONTROL));
            neighbours.push(vec![round; 48].into());
        }
    }
    let signal = signal_of_a_child(|| {
        for byte in neighbours.iter_mut().flatten() {
            *byte = black_box(*byte).wrapping_add(1);
        }
    });
    assert_eq!(signal, None, "the child died of this signal at its first touch of what is its own");
    // The pages themselves are missing; otherwise the check above shows nothing.
    let signal = signal_of_a_child(|| blocks[0].region.write(0, &[1]));
    assert_eq!(signal, Some(libc::SIGSEGV));
}

#[test]
fn a_child_gets_memory_again_once_it_is_deregistered() {
    let machine = Machine::new(OLD);
    machine.prepare_for_forks();
    let domain = open(&machine.port("a"), VerbsConfig::default(), |_| ()).unwrap();
    let region = Arc::new(Region::new(100));
    let register = || domain.register(Memory::from_region(&region), Access::DATA).unwrap();
    let (first, second) = (register(), register());
    drop(first);
    assert_eq!(signal_of_a_child(|| region.write(0, &[1])), Some(libc::SIGSEGV), "one registration is left");
    drop(second);
    assert_eq!(signal_of_a_child(|| region.write(0, &[1])), None);
}
