//! What the kernel's files under /sys say about an RDMA device and the library does not.

use std::fs;
use std::path::{Path, PathBuf};

/// What all functions here take: the file system's root (`/`, or a test's own) and the device's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sysfs<'a> {
    pub(crate) root: &'a Path,
    pub(crate) device: &'a str,
}

impl Sysfs<'_> {
    /// The PCI device's directory below /sys; None for a device without one, such as soft-RoCE.
    ///
    /// The functions of one adapter have one path, that of function 0, as they have for NCCL's own transport; with
    /// `merge_vfs` its virtual functions, which have device numbers of their own, have it too.
    pub(crate) fn pci_path(&self, merge_vfs: bool) -> Option<PathBuf> {
        let real = fs::canonicalize(self.directory().join("device")).ok()?;
        let bus = PciBus::parse(real.file_name()?.to_str()?)?;
        let device = if merge_vfs { "00" } else { bus.device };
        let real = real.with_file_name(format!("{}:{device}.0", bus.bus));
        let root = fs::canonicalize(self.root).ok()?;
        Some(Path::new("/").join(real.strip_prefix(root).ok()?))
    }

    /// The version of RoCE of an entry of a port's GID table. Containers may have no such files, or fail the read.
    pub(crate) fn roce_version(&self, port: u8, index: u32) -> Option<u8> {
        match self.port_file(port, &format!("gid_attrs/types/{index}"))?.as_str() {
            "RoCE v2" => Some(2),
            "IB/RoCE v1" => Some(1),
            _ => None,
        }
    }

    /// The network interface of an entry of a port's GID table.
    pub(crate) fn interface(&self, port: u8, index: u32) -> Option<String> {
        self.port_file(port, &format!("gid_attrs/ndevs/{index}"))
    }

    /// A port's speed in Mbit/s, from a text like `200 Gb/sec (4X HDR)`.
    pub(crate) fn rate_mbps(&self, port: u8) -> Option<u32> {
        let text = self.port_file(port, "rate")?;
        let (number, unit) = text.split_once(' ')?;
        let gigabits: f64 = number.parse().ok().filter(|_| unit.starts_with("Gb/sec"))?;
        // The cast cannot go wrong: it saturates.
        Some((gigabits * 1000.0) as u32).filter(|speed| *speed > 0)
    }

    fn directory(&self) -> PathBuf {
        self.root.join("sys/class/infiniband").join(self.device)
    }

    fn port_file(&self, port: u8, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.directory().join(format!("ports/{port}/{file}"))).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
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
