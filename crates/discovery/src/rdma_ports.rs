//! The RDMA ports of this host that can be rails. This module collects facts and makes the obvious exclusions; filters,
//! order and pairing belong to topology.

#[cfg(test)]
mod machines;

use std::io;
use std::path::Path;
use std::sync::Arc;

use railweave_fabric::{DataDirect, LeftOut, LinkLayer, PointerSupport, PortFacts};
use railweave_fabric_verbs::gid::{GidRules, eligible};
use railweave_fabric_verbs::sys::{self, Functions};
use railweave_fabric_verbs::{
    Device, Engine, GidTable, HostAddresses, Mlx5, RoceVersions, VerbsPort, port_state, takes_dma_bufs,
};

use crate::sysfs::{RdmaDevice, has_peer_memory};

/// The user's rules for ports, and facts about the rest of this host.
pub(crate) struct DiscoveryRules<'a> {
    /// The rules for the GIDs of the device with this name.
    pub(crate) gids: &'a dyn Fn(&str) -> GidRules,
    /// The addresses of this host.
    pub(crate) addresses: HostAddresses,
    /// True if an adapter's virtual functions count as one PCI device with it.
    pub(crate) merge_vfs: bool,
    /// The way in which ports with a Data Direct engine are shown.
    pub(crate) data_direct: DataDirect,
    /// The library of NVIDIA's adapters: its name for the dynamic linker, or its path. It is loaded if a device could
    /// have such an engine.
    pub(crate) mlx5_library: &'a str,
}

/// The RDMA ports of this host.
#[derive(Debug, Default)]
pub(crate) struct VerbsDiscovery {
    /// The ports that can carry traffic, by the names of their devices.
    pub(crate) ports: Vec<VerbsPort>,
    /// The ports that were seen but cannot be used.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Opens every device of this host and sorts its ports into those that can be rails and those left out, with the facts
/// from sysfs. `root` is `/`; tests pass a tree of their own.
///
/// # Errors
/// If this host shows no RDMA device at all.
pub(crate) fn discover(
    root: &Path,
    functions: &Arc<Functions>,
    rules: &DiscoveryRules<'_>,
) -> Result<VerbsDiscovery, NoDevice> {
    let mut devices = Device::open_all(functions).map_err(NoDevice::NotListed)?;
    if devices.is_empty() {
        return Err(NoDevice::NoneThere);
    }
    // If nothing else orders them, rxe2 comes before rxe10.
    let name = |device: &Result<Arc<Device>, (String, io::Error)>| match device {
        Ok(device) => device.name().to_owned(),
        Err((name, _)) => name.clone(),
    };
    devices.sort_by_cached_key(|device| (name(device).len(), name(device)));
    let mut found = VerbsDiscovery::default();
    let mlx5 = Mlx5::new(rules.mlx5_library);
    for device in devices {
        match device {
            Ok(device) => found.add(root, &device, rules, &mlx5),
            Err((name, error)) => found.leave_out(
                &name,
                format!(
                    "the device cannot be opened: {error}; give this process access to /dev/infiniband (in a \
                     container: --device=/dev/infiniband)"
                ),
            ),
        }
    }
    Ok(found)
}

/// The reason why no RDMA device was found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoDevice {
    /// The library cannot list devices.
    #[error("the RDMA devices cannot be listed (ibv_get_device_list): {0}; load the kernel module ib_uverbs")]
    NotListed(io::Error),
    /// The list is empty.
    #[error(
        "libibverbs lists no RDMA device; `rdma link` lists the kernel's, and each needs its provider in libibverbs"
    )]
    NoneThere,
}

impl VerbsDiscovery {
    fn add(&mut self, root: &Path, device: &Arc<Device>, rules: &DiscoveryRules<'_>, mlx5: &Mlx5<'_>) {
        if !device.is_infiniband_transport() {
            let reason = "it speaks iWARP or another transport that has no writes with an immediate; only InfiniBand \
                          and RoCE do";
            return self.leave_out(device.name(), reason.to_owned());
        }
        let attributes = match device.attributes() {
            Ok(attributes) => attributes,
            Err(error) => {
                return self
                    .leave_out(device.name(), format!("the device cannot be queried: {error}; is it still there?"));
            }
        };
        let adapter = Adapter {
            root,
            sysfs: RdmaDevice { root, name: device.name() },
            device,
            // In the byte order of libibverbs, as NCCL's own transport has it: NCCL's topology files show it.
            guid: attributes.sys_image_guid,
            has_several_ports: attributes.phys_port_cnt > 1,
            pointers: PointerSupport {
                cuda: has_peer_memory(root),
                dma_buf: takes_dma_bufs(device),
                data_direct: false,
            },
        };
        let engine = match rules.data_direct {
            DataDirect::Only | DataDirect::Both if adapter.pointers.dma_buf => mlx5.engine(device, &attributes),
            _ => Ok(None),
        };
        let engine = engine.unwrap_or_else(|error| {
            let reason =
                format!("the kernel does not say where its Data Direct engine is: {error}; look at the kernel log");
            self.leave_out(&format!("{}_dma", device.name()), reason);
            None
        });
        let plain = (engine.is_none() || rules.data_direct == DataDirect::Both).then_some(None);
        let shown: Vec<Option<Engine>> = plain.into_iter().chain(engine.map(Some)).collect();
        for number in 1..=attributes.phys_port_cnt {
            for engine in &shown {
                match adapter.port(number, rules, engine.as_ref()) {
                    Ok(port) => self.ports.push(port),
                    Err(reason) => self.leave_out(&adapter.port_name(number, engine.as_ref()), reason),
                }
            }
        }
    }

    fn leave_out(&mut self, name: &str, reason: String) {
        self.left_out.push(LeftOut { name: name.to_owned(), reason });
    }
}

/// The facts that all ports of one device share.
struct Adapter<'a> {
    root: &'a Path,
    sysfs: RdmaDevice<'a>,
    device: &'a Arc<Device>,
    guid: u64,
    has_several_ports: bool,
    pointers: PointerSupport,
}

impl Adapter<'_> {
    fn port_name(&self, number: u8, engine: Option<&Engine>) -> String {
        let device = self.device.name();
        let engine = if engine.is_some() { "_dma" } else { "" };
        if self.has_several_ports { format!("{device}{engine}:{number}") } else { format!("{device}{engine}") }
    }

    /// Returns the port with this number, with the device's Data Direct engine or without, or the reason why it cannot
    /// be a rail.
    fn port(&self, number: u8, rules: &DiscoveryRules<'_>, engine: Option<&Engine>) -> Result<VerbsPort, String> {
        let attributes = self
            .device
            .port_attributes(number)
            .map_err(|error| format!("the port cannot be queried: {error}; is it still there?"))?;
        if attributes.state != sys::PORT_ACTIVE {
            let state = port_state(attributes.state);
            return Err(format!(
                "the port is {state}; check its cable and its switch (`rdma link` and `ibstat` say more)"
            ));
        }
        let link_layer = match attributes.link_layer {
            sys::LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            sys::LINK_LAYER_ETHERNET => LinkLayer::Roce,
            other => return Err(format!("its link layer {other} is neither InfiniBand (1) nor Ethernet (2)")),
        };
        let table = GidTable {
            device: Arc::clone(self.device),
            port: number,
            link_layer,
            rules: (rules.gids)(self.device.name()),
            addresses: Arc::clone(&rules.addresses),
            versions: self.versions(number),
            filter: None,
        };
        let entries = table.read(attributes.gid_tbl_len);
        let mut gids = eligible(&entries, link_layer, &table.rules);
        gids.iter_mut().for_each(|gid| gid.interface = self.sysfs.interface(number, gid.index));
        let Some(best) = gids.first() else {
            return Err(table.reason_for_none(&entries, attributes.gid_tbl_len));
        };
        let facts = PortFacts {
            name: self.port_name(number, engine),
            device: self.device.name().to_owned(),
            link_layer,
            address: best.address(),
            prefix_len: best.prefix_len,
            speed_mbps: self.speed_mbps(number, &attributes),
            mtu: mtu_bytes(attributes.active_mtu),
            pci_path: match engine {
                Some(engine) => Some(engine.pci_path.clone()),
                None => self.sysfs.pci_path(rules.merge_vfs),
            },
            bus_id: self.sysfs.bus_id(),
            guid: self.guid,
            port_number: number,
            pointers: PointerSupport { data_direct: engine.is_some(), ..self.pointers },
        };
        let engine = engine.cloned();
        Ok(VerbsPort { facts, device: Arc::clone(self.device), number, attributes, gids, table, engine })
    }

    fn versions(&self, port: u8) -> RoceVersions {
        let (root, name) = (self.root.to_owned(), self.device.name().to_owned());
        Arc::new(move |index| RdmaDevice { root: &root, name: &name }.roce_version(port, index))
    }

    fn speed_mbps(&self, port: u8, attributes: &sys::PortAttributes) -> Option<u32> {
        let queried = self.device.port_speed_mbps(port).and_then(|speed| u32::try_from(speed).ok());
        let computed = || Some(lanes(attributes.active_width)? * lane_mbps(attributes.active_speed)?);
        queried.or_else(computed).or_else(|| self.sysfs.rate_mbps(port))
    }
}

/// Returns the number of lanes of a link, from its encoded width (`ibv_port_attr.active_width`).
fn lanes(width: u8) -> Option<u32> {
    match width {
        1 => Some(1),
        2 => Some(4),
        4 => Some(8),
        8 => Some(12),
        16 => Some(2),
        _ => None,
    }
}

/// Returns the speed of one lane of a link, in Mbit/s, from the encoded speed (`ibv_port_attr.active_speed`). Speeds
/// above NDR do not fit there; ibv_query_port_speed(3) or sysfs reports XDR.
fn lane_mbps(speed: u8) -> Option<u32> {
    match speed {
        1 => Some(2_500),
        2 => Some(5_000),
        4 | 8 => Some(10_000),
        16 => Some(14_000),
        32 => Some(25_000),
        64 => Some(50_000),
        128 => Some(100_000),
        _ => None,
    }
}

/// Returns the bytes that an `enum ibv_mtu` means; for other values, the smallest MTU that a port may have.
fn mtu_bytes(mtu: i32) -> u32 {
    match mtu {
        2..=5 => 128 << mtu,
        _ => 256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_those_of_the_specification() {
        let speed = |width, speed| Some(lanes(width)? * lane_mbps(speed)?);
        assert_eq!(speed(2, 1), Some(10_000));
        assert_eq!(speed(2, 16), Some(56_000));
        assert_eq!(speed(2, 32), Some(100_000));
        assert_eq!(speed(2, 64), Some(200_000));
        assert_eq!(speed(2, 128), Some(400_000));
        assert_eq!(speed(16, 64), Some(100_000));
        assert_eq!(speed(0, 128), None);
        assert_eq!(speed(2, 0), None);
    }

    #[test]
    fn mtus_are_in_bytes() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!([0, 6, -1].map(mtu_bytes), [256; 3]);
    }
}
