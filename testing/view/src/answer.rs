//! The answer of one side about one host with one setting.

use std::collections::BTreeMap;

use railweave_nccl_host::net::Properties;
use serde::{Deserialize, Serialize};

/// The fields of a device, by the names in NCCL's `ncclNetProperties_v12_t`, in the order of the page.
pub(crate) const FIELDS: [&str; 17] = [
    "name",
    "pciPath",
    "guid",
    "port",
    "speed",
    "ptrSupport",
    "regIsGlobal",
    "forceFlush",
    "latency",
    "maxComms",
    "maxRecvs",
    "netDeviceType",
    "vProps",
    "maxP2pBytes",
    "maxCollBytes",
    "railId",
    "planeId",
];

/// The values of a device's fields, by the names of [`FIELDS`].
pub(crate) type Device = BTreeMap<String, String>;

/// The answer of one side.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Answer {
    /// The code with which `init` refused to start, if it did; then there are no devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) init: Option<String>,
    /// The devices, in NCCL's numbering, before any is fused.
    pub(crate) devices: Vec<Device>,
    /// The results of makeVDevice for each group of devices, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) fused: Vec<Fused>,
}

/// The result of one makeVDevice.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Fused {
    /// The names of the devices to fuse.
    pub(crate) of: Vec<String>,
    /// The new device's fields, or `makeVDevice` alone with the code of its refusal.
    pub(crate) device: Device,
}

/// The name of the value that a refused makeVDevice has in place of all fields.
pub(crate) const REFUSED: &str = "makeVDevice";

impl Answer {
    /// Returns the names of the devices, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.devices.iter().map(|device| device["name"].as_str()).collect()
    }
}

/// Returns the fields of a device as they are compared and shown.
pub(crate) fn fields(properties: &Properties) -> Device {
    let values = [
        properties.name.clone(),
        properties.pci_path.clone().unwrap_or_else(|| "NULL".to_owned()),
        format!("{:#x}", properties.guid),
        properties.port.to_string(),
        properties.speed_mbps.to_string(),
        pointers(properties.ptr_support),
        i32::from(properties.reg_is_global).to_string(),
        i32::from(properties.force_flush).to_string(),
        properties.latency_us.to_string(),
        properties.max_comms.to_string(),
        properties.max_recvs.to_string(),
        properties.device_type.to_string(),
        format!("{:?}", properties.members),
        size(properties.max_p2p_bytes),
        size(properties.max_coll_bytes),
        properties.rail_id.to_string(),
        properties.plane_id.to_string(),
    ];
    FIELDS.iter().map(|field| (*field).to_owned()).zip(values).collect()
}

/// Returns the kinds of memory in a mask of NCCL_PTR_*.
fn pointers(mask: i32) -> String {
    let names: Vec<&str> = [(1, "HOST"), (2, "CUDA"), (4, "DMABUF")]
        .into_iter()
        .filter(|(bit, _)| mask & bit != 0)
        .map(|it| it.1)
        .collect();
    if mask & !7 == 0 { names.join("+") } else { format!("{mask:#x}") }
}

/// Returns a number of bytes in the largest unit that leaves no rest.
fn size(bytes: usize) -> String {
    [(40, "TiB"), (30, "GiB"), (20, "MiB")]
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_masks_are_shown_without_loss() {
        assert_eq!([1 << 40, 1 << 30, 3 << 29, 1_000_000, 0].map(size), ["1 TiB", "1 GiB", "1536 MiB", "1000000", "0"]);
        assert_eq!([1, 5, 7, 9].map(pointers), ["HOST", "HOST+DMABUF", "HOST+CUDA+DMABUF", "0x9"]);
    }
}
