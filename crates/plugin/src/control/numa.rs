//! Memory next to the adapter that uses it. While a connection is set up, the memory of its queues and of the buffers
//! that its peer writes comes from its device's NUMA node, no matter which thread of the application started the
//! plugin's threads. This holds for the set-up thread, for those of rails, and for the control thread while it begins
//! a handshake.

use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log;
use crate::network::Network;

/// The number of bits in a mask of nodes: Linux has at most 1024 nodes (CONFIG_NODES_SHIFT).
const MOST_NODES: u32 = 1024;

/// Returns the node of the PCI device with this directory below /sys; `None` if the machine has no nodes or does not
/// say.
fn node_at(pci_path: &Path) -> Option<u32> {
    // -1 means none (Linux, Documentation/ABI/testing/sysfs-bus-pci).
    std::fs::read_to_string(pci_path.join("numa_node")).ok()?.trim().parse().ok()
}

/// Returns the node of a device's first port.
pub(super) fn node_of(network: &dyn Network, device: usize) -> Option<u32> {
    let port = *network.devices().at(device).ports.first()?;
    node_at(network.ports().get(port)?.facts.pci_path.as_deref()?)
}

/// While this lives, memory that this thread touches first comes from one node, if the node has any left.
pub(super) struct Placed {
    is_set: bool,
}

impl Placed {
    /// Prefers this node. A thread that already has a policy (numactl) keeps it; if the kernel refuses, nothing
    /// changes.
    pub(super) fn on(node: Option<u32>) -> Self {
        let Some(node) = node.filter(|_| policy() == Some(libc::MPOL_DEFAULT)) else {
            return Self { is_set: false };
        };
        let is_set = node < MOST_NODES && set_preferred(node);
        if !is_set {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Ordering::Relaxed) {
                log::info(&format!(
                    "queues cannot be placed in the memory of their adapter's NUMA node {node} (set_mempolicy: {}); \
                     they are placed on any node, and are a little slower",
                    std::io::Error::last_os_error()
                ));
            }
        }
        Self { is_set }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.is_set {
            // SAFETY: without a mask no memory is read (set_mempolicy(2)); only this thread's policy changes.
            unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, ptr::null::<u64>(), 0_usize) };
        }
    }
}

/// Returns this thread's policy, one of `MPOL_*`; `None` if the kernel has no policies.
fn policy() -> Option<libc::c_int> {
    let mut policy: libc::c_int = -1;
    let nothing = ptr::null_mut::<u64>();
    // SAFETY: the pointer is to an int, as get_mempolicy(2) requires; no mask and no address are passed.
    let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, nothing, 0_usize, nothing, 0_usize) };
    (result == 0).then_some(policy)
}

/// Prefers a node for memory that this thread touches first. Returns true if the kernel accepted it.
fn set_preferred(node: u32) -> bool {
    let mut mask = [0_u64; (MOST_NODES / 64) as usize];
    mask[(node / 64) as usize] = 1 << (node % 64);
    // SAFETY: the kernel reads one bit fewer than the number passed, so exactly the bits of the mask
    // (set_mempolicy(2)).
    let result = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), (MOST_NODES + 1) as usize)
    };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_from_numbers_and_from_no_other_text() {
        let folder = std::env::temp_dir().join(format!("railweave-numa-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(node_at(&folder), None);
        for (text, node) in [("1\n", Some(1)), ("0", Some(0)), ("-1\n", None), ("", None), ("first", None)] {
            std::fs::write(folder.join("numa_node"), text).unwrap();
            assert_eq!(node_at(&folder), node, "{text:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_policy_is_the_nodes_while_it_is_needed_and_the_old_one_afterwards() {
        // Every machine has a node 0. A kernel or container without policies refuses, which changes nothing.
        let before = policy();
        let placed = Placed::on(Some(0));
        if before == Some(libc::MPOL_DEFAULT) && placed.is_set {
            assert_eq!(policy(), Some(libc::MPOL_PREFERRED));
        } else {
            assert_eq!(policy(), before);
        }
        drop(placed);
        assert_eq!(policy(), before);
    }

    #[test]
    fn nothing_changes_without_a_node_or_with_an_impossible_one() {
        let before = policy();
        for node in [None, Some(MOST_NODES - 1), Some(MOST_NODES), Some(u32::MAX)] {
            let placed = Placed::on(node);
            assert!(!placed.is_set, "{node:?}");
            assert_eq!(policy(), before, "{node:?}");
        }
    }

    #[test]
    fn what_the_user_chose_is_kept() {
        if policy() != Some(libc::MPOL_DEFAULT) || !set_preferred(0) {
            return;
        }
        let user = Placed { is_set: true };
        drop(Placed::on(Some(0)));
        assert_eq!(policy(), Some(libc::MPOL_PREFERRED));
        drop(user);
        assert_eq!(policy(), Some(libc::MPOL_DEFAULT));
    }
}
