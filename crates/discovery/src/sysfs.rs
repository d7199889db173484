//! The kernel's files under /sys on network interfaces, RDMA devices and GPU memory.

use std::fs;
use std::path::{Path, PathBuf};

/// The directories of network interfaces and RDMA devices, below the root.
const NET: &str = "sys/class/net";
const RDMA: &str = "sys/class/infiniband";

/// A network interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetDevice<'a> {
    /// The file system's root: `/`, or a test's own.
    pub(crate) root: &'a Path,
    pub(crate) name: &'a str,
}

impl NetDevice<'_> {
    /// Returns true if the kernel says that no packet gets through.
    pub(crate) fn is_down(&self) -> bool {
        let state = fs::read_to_string(self.directory().join("operstate")).unwrap_or_default();
        matches!(state.trim(), "down" | "lowerlayerdown" | "notpresent" | "dormant")
    }

    /// Returns true for a bridge whose members are only virtual: docker0, virbr0 and the like. A bridge over a real
    /// interface carries that interface's address and is as good as the interface.
    pub(crate) fn is_virtual_bridge(&self) -> bool {
        let is_id = |id: &str| id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_docker_network = self.name.strip_prefix("br-").is_some_and(is_id);
        if self.name.starts_with("docker") || self.name.starts_with("virbr") || is_docker_network {
            return true;
        }
        if !self.directory().join("bridge").is_dir() {
            return false;
        }
        let Ok(members) = fs::read_dir(self.directory().join("brif")) else { return true };
        // `bonding` and `device`: a bond has no device of its own but represents real ones.
        !members.flatten().any(|member| {
            let member = self.root.join(NET).join(member.file_name());
            member.join("device").exists() || member.join("bonding").exists()
        })
    }

    /// Returns its speed in Mbit/s, `None` for an interface without one: it reports -1, or 4294967295 on older kernels,
    /// or the read fails.
    pub(crate) fn speed_mbps(&self) -> Option<u32> {
        self.number("speed").filter(|&speed| speed > 0 && speed != u32::MAX)
    }

    /// Returns the size of its largest packet, in bytes.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.number("mtu")
    }

    /// Returns the directory of its PCI device below /sys; `None` for a virtual interface. The device of a virtio
    /// interface is a child of the PCI device.
    pub(crate) fn pci_path(&self) -> Option<PathBuf> {
        let real = fs::canonicalize(self.directory().join("device")).ok()?;
        let name = real.file_name()?.to_str()?;
        let real = if name.starts_with("virtio") { real.parent()? } else { &real };
        PciBus::parse(real.file_name()?.to_str()?)?;
        below(self.root, real)
    }

    fn directory(&self) -> PathBuf {
        self.root.join(NET).join(self.name)
    }

    fn number(&self, file: &str) -> Option<u32> {
        fs::read_to_string(self.directory().join(file)).ok()?.trim().parse().ok()
    }
}

/// An RDMA device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdmaDevice<'a> {
    /// The file system's root: `/`, or a test's own.
    pub(crate) root: &'a Path,
    pub(crate) name: &'a str,
}

impl RdmaDevice<'_> {
    /// Returns the PCI device's directory below /sys; `None` for a device without one, such as soft-RoCE.
    ///
    /// The functions of one adapter share one path, that of function 0, as in NCCL's own transport. With `merge_vfs`
    /// this includes its virtual functions, which have device numbers of their own.
    pub(crate) fn pci_path(&self, merge_vfs: bool) -> Option<PathBuf> {
        let real = fs::canonicalize(self.directory().join("device")).ok()?;
        let bus = PciBus::parse(real.file_name()?.to_str()?)?;
        let device = if merge_vfs { "00" } else { bus.device };
        let real = real.with_file_name(format!("{}:{device}.0", bus.bus));
        below(self.root, &real)
    }

    /// Returns the device's name on its bus; `None` for one without a bus, such as soft-RoCE.
    pub(crate) fn bus_id(&self) -> Option<String> {
        let real = fs::canonicalize(self.directory().join("device")).ok()?;
        Some(real.file_name()?.to_str()?.to_owned())
    }

    /// Returns the RoCE version of an entry of a port's GID table; `None` if it is unknown, or if the file is missing,
    /// as in some containers, or cannot be read.
    pub(crate) fn roce_version(&self, port: u8, index: u32) -> Option<u8> {
        match self.port_file(port, &format!("gid_attrs/types/{index}"))?.as_str() {
            "RoCE v2" => Some(2),
            "IB/RoCE v1" => Some(1),
            _ => None,
        }
    }

    /// Returns the network interface of an entry of a port's GID table.
    pub(crate) fn interface(&self, port: u8, index: u32) -> Option<String> {
        self.port_file(port, &format!("gid_attrs/ndevs/{index}"))
    }

    /// Returns a port's speed in Mbit/s, from a text like `200 Gb/sec (4X HDR)`.
    pub(crate) fn rate_mbps(&self, port: u8) -> Option<u32> {
        let text = self.port_file(port, "rate")?;
        let (number, unit) = text.split_once(' ')?;
        let gigabits: f64 = number.parse().ok().filter(|_| unit.starts_with("Gb/sec"))?;
        // The cast saturates.
        Some((gigabits * 1000.0) as u32).filter(|speed| *speed > 0)
    }

    fn directory(&self) -> PathBuf {
        self.root.join(RDMA).join(self.name)
    }

    fn port_file(&self, port: u8, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.directory().join(format!("ports/{port}/{file}"))).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// Returns a real path below `root` as it is seen from there.
fn below(root: &Path, real: &Path) -> Option<PathBuf> {
    let root = fs::canonicalize(root).ok()?;
    Some(Path::new("/").join(real.strip_prefix(root).ok()?))
}

/// A PCI address, `domain:bus:device.function` in hexadecimal, without its function.
struct PciBus<'a> {
    /// `domain:bus`.
    bus: &'a str,
    device: &'a str,
}

impl<'a> PciBus<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (bus, slot) = name.rsplit_once(':')?;
        let (domain, number) = bus.split_once(':')?;
        let (device, function) = slot.split_once('.')?;
        let is_hex = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
            lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_address =
            is_hex(domain, 4..=8) && is_hex(number, 2..=2) && is_hex(device, 2..=2) && is_hex(function, 1..=2);
        is_address.then_some(Self { bus, device })
    }
}

/// The files of the kernel modules that let an adapter reach GPU memory by its CUDA address: nv_peer_mem and its
/// successor under the kernel's registry of such modules, in MLNX_OFED and in distributions' kernels, and
/// nvidia_peermem as an ordinary module. NCCL's own transport checks the same three (NCCL 2.30, net_ib/gdr.cc).
const PEER_MEMORY: [&str; 3] = [
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
];

/// Returns true if an adapter can reach GPU memory by its CUDA address.
pub(crate) fn has_peer_memory(root: &Path) -> bool {
    PEER_MEMORY.iter().any(|file| root.join(file).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn rdma<'a>(tree: &'a Tree, name: &'a str) -> RdmaDevice<'a> {
        RdmaDevice { root: tree.root(), name }
    }

    fn pci(tree: &Tree, device: &str, merge_vfs: bool) -> Option<String> {
        Some(rdma(tree, device).pci_path(merge_vfs)?.to_str()?.to_owned())
    }

    #[test]
    fn functions_of_one_adapter_have_one_path() {
        let tree = Tree::new();
        tree.device("infiniband", "mlx5_0", "pci0000:00/0000:00:01.0/0000:3b:00.0")
            .device("infiniband", "mlx5_1", "pci0000:00/0000:00:01.0/0000:3b:00.1")
            .device("infiniband", "mlx5_2", "pci0000:00/0000:00:01.0/0000:3b:02.3")
            .device("infiniband", "mlx5_3", "pci0002:00/0002:00:01.0/0002:3b:00.0");
        let adapter = "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0";
        for device in ["mlx5_0", "mlx5_1"] {
            for merge_vfs in [false, true] {
                assert_eq!(pci(&tree, device, merge_vfs).as_deref(), Some(adapter), "{device}");
            }
        }
        assert_eq!(pci(&tree, "mlx5_2", true).as_deref(), Some(adapter));
        let own = "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:02.0";
        assert_eq!(pci(&tree, "mlx5_2", false).as_deref(), Some(own));
        assert_eq!(rdma(&tree, "mlx5_1").bus_id().as_deref(), Some("0000:3b:00.1"), "its own all the same");
        assert_eq!(rdma(&tree, "mlx5_2").bus_id().as_deref(), Some("0000:3b:02.3"));
        let other = "/sys/devices/pci0002:00/0002:00:01.0/0002:3b:00.0";
        assert_eq!(pci(&tree, "mlx5_3", true).as_deref(), Some(other));
    }

    #[test]
    fn what_is_no_pci_device_has_no_path() {
        let tree = Tree::new();
        tree.device("infiniband", "hns_0", "platform/HISI00D1:00").device(
            "infiniband",
            "usb_0",
            "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0",
        );
        for device in ["hns_0", "usb_0", "rxe0"] {
            assert_eq!(pci(&tree, device, true), None, "{device}");
        }
        assert_eq!(rdma(&tree, "hns_0").bus_id().as_deref(), Some("HISI00D1:00"), "which NCCL sorts by as well");
        assert_eq!(rdma(&tree, "rxe0").bus_id(), None);
    }

    #[test]
    fn gids_and_rates_are_read_where_the_kernel_gives_them() {
        let tree = Tree::new();
        tree.file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n")
            .file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", "RoCE v2\n")
            .file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/2", "something newer\n")
            .file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth2\n")
            .file("sys/class/infiniband/mlx5_0/ports/1/rate", "800 Gb/sec (4X XDR)\n")
            .file("sys/class/infiniband/rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n")
            .file("sys/class/infiniband/odd/ports/1/rate", "fast\n");
        let device = rdma(&tree, "mlx5_0");
        assert_eq!([0, 1, 2, 3].map(|index| device.roce_version(1, index)), [Some(1), Some(2), None, None]);
        assert_eq!(device.interface(1, 1).as_deref(), Some("eth2"));
        assert_eq!(device.interface(1, 0), None);
        assert_eq!(device.rate_mbps(1), Some(800_000));
        assert_eq!(rdma(&tree, "rxe0").rate_mbps(1), Some(2_500));
        assert_eq!(rdma(&tree, "odd").rate_mbps(1), None);
        assert_eq!(device.rate_mbps(2), None);
    }

    #[test]
    fn pci_addresses_are_told_from_other_names() {
        for name in ["0000:3b:00.0", "10000:e1:00.1"] {
            assert!(PciBus::parse(name).is_some(), "{name}");
        }
        for name in ["2-1:1.0", "virtio0", "0000:3b:00", "0000:3b", "net:3b:00.0", ""] {
            assert!(PciBus::parse(name).is_none(), "{name}");
        }
    }
}
