//! The choice of the plugin's device.

use clap::Args;
use railweave_nccl_host::net::Properties;
use railweave_nccl_host::{LoadedNet, NetApi};
use serde::{Deserialize, Serialize};
use std::error::Error;

/// The devices to fuse, which are passed to every rank.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fuse {
    /// Fuses these devices into one with the plugin's makeVDevice, and uses that: names with commas between, or all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    fuse: Vec<String>,
}

impl Fuse {
    /// Returns true if nothing is to be fused.
    pub(crate) fn is_empty(&self) -> bool {
        self.fuse.is_empty()
    }

    /// Fuses the devices. Returns the index of the one that they are then; `None` if there is nothing to fuse.
    pub(crate) fn fused(&self, net: &LoadedNet) -> Result<Option<i32>, Box<dyn Error>> {
        if self.fuse.is_empty() {
            return Ok(None);
        }
        Ok(Some(net.fuse(&members(&self.fuse, &properties(net)?)?)?))
    }
}

/// The arguments about the device, which are passed to every rank.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    /// The device to use
    #[arg(long, value_name = "INDEX", default_value_t = 0, conflicts_with = "fuse")]
    #[arg(value_parser = clap::value_parser!(i32).range(0..=255))]
    device: i32,
    #[command(flatten)]
    #[serde(flatten)]
    fuse: Fuse,
}

impl Device {
    /// Returns the first device, or the one that is fused.
    pub(crate) fn first(fuse: Fuse) -> Self {
        Self { device: 0, fuse }
    }

    /// Returns the index and the name of the device. With `--fuse`, fuses the device first.
    pub(crate) fn choose(&self, net: &LoadedNet) -> Result<(i32, String), Box<dyn Error>> {
        if let Some(fused) = self.fuse.fused(net)? {
            return Ok((fused, net.properties(fused)?.name));
        }
        match properties(net)?.into_iter().nth(self.device as usize) {
            Some(properties) => Ok((self.device, properties.name)),
            None => Err(format!("there is no device {}; allowed: 0 to {}", self.device, net.devices()? - 1).into()),
        }
    }
}

/// Returns the properties of all devices.
fn properties(net: &LoadedNet) -> Result<Vec<Properties>, Box<dyn Error>> {
    let devices = 0..net.devices()?;
    Ok(devices.map(|index| net.properties(index)).collect::<Result<_, _>>()?)
}

/// Returns the indices of the devices with these names, in that order.
fn members(names: &[String], devices: &[Properties]) -> Result<Vec<i32>, String> {
    let all = (0..).zip(devices);
    if names == ["all"] {
        // A device with more than one member is already fused.
        return Ok(all.filter(|(_, device)| device.members.len() <= 1).map(|(index, _)| index).collect());
    }
    let mut members = Vec::with_capacity(names.len());
    for name in names.iter().map(|name| name.trim()) {
        let Some((index, _)) = all.clone().find(|(_, device)| device.name == name) else {
            let known = devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(format!("--fuse names the device {name:?}, which does not exist; allowed: {known}, or all"));
        };
        if members.contains(&index) {
            return Err(format!("--fuse names the device {name:?} twice; name each device once"));
        }
        members.push(index);
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, members: &[i32]) -> Properties {
        Properties {
            name: name.to_owned(),
            pci_path: None,
            guid: 0,
            ptr_support: 1,
            reg_is_global: true,
            force_flush: false,
            speed_mbps: 10_000,
            port: 1,
            latency_us: 0.0,
            max_comms: 1,
            max_recvs: 8,
            device_type: 0,
            members: members.to_vec(),
            max_p2p_bytes: 1,
            max_coll_bytes: 1,
            rail_id: -1,
            plane_id: -1,
        }
    }

    #[test]
    fn members_are_found_by_name_in_the_requested_order() {
        let devices = [device("a", &[0]), device("b", &[]), device("a+b", &[0, 1])];
        let members = |names: &[&str]| members(&names.iter().map(ToString::to_string).collect::<Vec<_>>(), &devices);
        assert_eq!(members(&["b", " a"]), Ok(vec![1, 0]));
        assert_eq!(members(&["all"]), Ok(vec![0, 1]), "a fused device is left out");
        assert!(members(&["a", "c"]).unwrap_err().contains("\"c\", which does not exist; allowed: a, b, a+b"));
        assert!(members(&["a", "a"]).unwrap_err().contains("twice"));
    }
}
