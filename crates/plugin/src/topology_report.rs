//! What the plugin would use on this machine, for programs that show it.

use std::net::IpAddr;

use railweave_fabric::{LeftOut, PortFacts};
use railweave_options::{Options, Weights};
use railweave_topology::DEFAULT_SPEED_MBPS;

use crate::fabrics;

/// One port of a device, which becomes a rail of each of its connections.
#[derive(Clone, Debug)]
pub struct ReportedPort {
    /// What the fabric read.
    pub facts: PortFacts,
    /// NCCL's rail id, where one is given.
    pub rail_id: Option<i16>,
    /// NCCL's plane id, where one is given.
    pub plane_id: Option<i16>,
    /// Its share of the device's traffic, 0 to 1, if the other end is as fast.
    pub share: f64,
    /// Lanes that this end wishes for.
    pub lanes: u8,
    /// The GIDs that its lanes may use, best first; none on TCP.
    pub gids: Vec<ReportedGid>,
}

/// A GID of an RDMA port.
#[derive(Clone, Debug)]
pub struct ReportedGid {
    /// Its place in the port's table.
    pub index: u32,
    /// The GID as an address: IPv4 where it is a mapped one.
    pub address: IpAddr,
    /// Length of its network's prefix in bits, in the address's own family.
    pub prefix_len: u8,
    /// The version of RoCE; None on InfiniBand.
    pub roce_version: Option<u8>,
    /// The network interface that it belongs to, where the machine says.
    pub interface: Option<String>,
}

/// One device, as NCCL sees it.
#[derive(Clone, Debug)]
pub struct ReportedDevice {
    /// Its name.
    pub name: String,
    /// Its speed in Mbit/s.
    pub speed_mbps: u32,
    /// Its ports, in order.
    pub ports: Vec<ReportedPort>,
}

/// What this machine has to offer, and what it has not.
#[derive(Clone, Debug)]
pub struct TopologyReport {
    /// The fabric in use.
    pub fabric: &'static str,
    /// The devices, in NCCL's numbering.
    pub devices: Vec<ReportedDevice>,
    /// What was seen but is not used.
    pub left_out: Vec<LeftOut>,
    /// The address for control sessions where no port reaches the peer.
    pub out_of_band: Option<IpAddr>,
}

impl TopologyReport {
    /// Looks at this machine with these options, exactly as `init` does for net API v9 and later.
    ///
    /// # Errors
    /// Why `init` would fail.
    pub fn new(options: &Options) -> Result<Self, String> {
        let found = fabrics::find(options, true).map_err(|error| error.to_string())?;
        let (network, all) = (&found.network, found.network.ports());
        let devices = network.devices().iter().map(|device| {
            let weight = |(place, index): (usize, &usize)| match options.weights.value {
                Weights::Fixed(weights) => f64::from(weights[place]),
                Weights::BySpeed => f64::from(all[*index].facts.speed_mbps.unwrap_or(DEFAULT_SPEED_MBPS)),
            };
            let weights: Vec<f64> = device.ports.iter().enumerate().map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let ports = device.ports.iter().enumerate().map(|(place, index)| ReportedPort {
                facts: all[*index].facts.clone(),
                rail_id: all[*index].rail_id,
                plane_id: all[*index].plane_id,
                share: weights[place] / sum,
                lanes: options.lanes.value.on(place),
                gids: found.gids[*index].clone(),
            });
            ReportedDevice { name: device.name.clone(), speed_mbps: device.speed_mbps, ports: ports.collect() }
        });
        Ok(Self {
            fabric: found.name,
            devices: devices.collect(),
            left_out: found.left_out,
            out_of_band: found.out_of_band.map(|address| address.address),
        })
    }
}
