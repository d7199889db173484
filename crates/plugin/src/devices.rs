//! The devices of a process: those that discovery made, and the virtual ones that NCCL asks for.
#![allow(clippy::disallowed_types, reason = "NCCL asks for devices on its service threads; the data path does not")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_topology::{ChosenPort, Device, virtual_device};
use railweave_transport::Error;

use crate::log;

/// The maximum number of devices, virtual ones included, the same as in NCCL's own transport (`MAX_IB_VDEVS`).
const MAX_DEVICES: usize = 256;

/// The devices, in NCCL's numbering. A device that is there stays, with its number.
pub(crate) struct Devices {
    /// The number of those that discovery made.
    found: usize,
    all: Mutex<Vec<Arc<Device>>>,
    /// The reason why NCCL may not fuse any, if the settings say so.
    forbidden: Option<String>,
}

impl Devices {
    /// Begins with the devices that discovery made. `forbidden` is the reason why NCCL may not fuse them, if any.
    pub(crate) fn new(found: Vec<Device>, forbidden: Option<String>) -> Self {
        Self { found: found.len(), all: Mutex::new(found.into_iter().map(Arc::new).collect()), forbidden }
    }

    /// Returns the number of devices.
    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    /// Returns the device with this index, which the entry of NCCL's call has checked.
    pub(crate) fn at(&self, index: usize) -> Arc<Device> {
        Arc::clone(&self.all()[index])
    }

    /// Returns the devices that discovery made.
    pub(crate) fn found(&self) -> Vec<Arc<Device>> {
        self.all()[..self.found].to_vec()
    }

    /// Returns the indices of the devices that a device is fused of; its own if it is not virtual.
    pub(crate) fn members(&self, index: usize) -> Vec<usize> {
        // Virtual devices exist only if each device that discovery made has one port, that of its own index.
        if index < self.found { vec![index] } else { self.at(index).ports.clone() }
    }

    /// Returns the index of the device over these members' ports, which is made if it is not there yet. So NCCL gets
    /// the same device in each communicator, and no two devices have one name.
    ///
    /// # Errors
    /// If the settings forbid it, the members cannot be rails of one connection, or there are [`MAX_DEVICES`] already.
    pub(crate) fn fuse(&self, ports: &[ChosenPort], members: &[usize]) -> Result<usize, Error> {
        if let Some(reason) = &self.forbidden {
            return Err(Error::configuration(reason.clone()));
        }
        let mut all = self.all();
        let known: Vec<&Device> = all.iter().map(Arc::as_ref).collect();
        let device =
            virtual_device(ports, &known, members).map_err(|reason| Error::configuration(reason.to_string()))?;
        if let Some(index) = all.iter().position(|other| other.ports == device.ports) {
            return Ok(index);
        }
        if all.len() == MAX_DEVICES {
            return Err(Error::configuration(format!(
                "there are {MAX_DEVICES} devices already, which is the most; fuse fewer groups of ports, or set \
                 NCCL_NET_MERGE_LEVEL=LOC, so that NCCL fuses none"
            )));
        }
        log::info(&format!("virtual device {}: {} ({} Mbit/s)", all.len(), device.name, device.speed_mbps));
        all.push(Arc::new(device));
        Ok(all.len() - 1)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Device>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use railweave_fabric::{LinkLayer, Mode, PointerSupport, PortFacts};

    use super::*;

    fn ports(count: usize) -> Vec<ChosenPort> {
        let port = |index: usize| {
            let facts = PortFacts {
                name: format!("eth{index}"),
                device: format!("eth{index}"),
                link_layer: LinkLayer::Tcp,
                address: IpAddr::from([10, 0, 0, 1]),
                prefix_len: 24,
                speed_mbps: None,
                mtu: 1500,
                pci_path: None,
                bus_id: None,
                guid: 0,
                port_number: 1,
                pointers: PointerSupport::default(),
            };
            ChosenPort { facts, group: None, rail_id: None, plane_id: None }
        };
        (0..count).map(port).collect()
    }

    #[test]
    fn devices_stay_and_the_same_members_are_the_same_device() {
        let ports = ports(3);
        let devices = Devices::new(railweave_topology::devices(&ports, Mode::Ports), None);
        let fuse = |members: &[usize]| devices.fuse(&ports, members).unwrap();
        assert_eq!([fuse(&[2, 0]), fuse(&[0, 1]), fuse(&[0, 2])], [3, 4, 3], "whatever their order");
        assert_eq!(fuse(&[1]), 1, "one member alone is that member");
        assert_eq!((devices.count(), devices.members(3), devices.members(1)), (5, vec![0, 2], vec![1]));
        assert_eq!(devices.at(3).name, "eth0+eth2");
    }

    #[test]
    fn there_are_not_more_devices_than_nccl_has_places_for() {
        let ports = ports(32);
        let devices = Devices::new(railweave_topology::devices(&ports, Mode::Ports), None);
        let mut pairs =
            (0..32).flat_map(|one| (0..32).map(move |other| [one, other])).filter(|[one, other]| one < other);
        let made = pairs.by_ref().take_while(|pair| devices.fuse(&ports, pair).is_ok()).count();
        assert_eq!((made, devices.count()), (MAX_DEVICES - 32, MAX_DEVICES));
        let refused = devices.fuse(&ports, &pairs.next().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("256 devices already"), "{refused}");
        assert_eq!(devices.fuse(&ports, &[0, 1]).unwrap(), 32, "those that are there can be had");
    }
}
