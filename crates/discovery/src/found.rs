//! The findings on a machine.

use std::net::IpAddr;

use railweave_fabric::{Fabric as _, LeftOut, Mode};
use railweave_fabric_verbs::gid::PortGid;
use railweave_fabric_verbs::{OpenPort, Verbs};
use railweave_options::Weights;
use railweave_topology::{ChosenPort, DEFAULT_SPEED_MBPS, Device};

/// A machine's ports and devices with some options, and what is left out.
#[derive(Debug)]
pub struct Found {
    /// The fabric in use, with the open ports if it needs them.
    pub fabric: FoundFabric,
    /// The mode in which ports became devices.
    pub mode: Mode,
    /// The ports in use, at least one, in the order of devices and of rails.
    pub ports: Vec<ChosenPort>,
    /// The devices made of them, in NCCL's numbering.
    pub devices: Vec<Device>,
    /// Ports that were seen but are not used.
    pub left_out: Vec<LeftOut>,
    /// The address that reaches this host when none of its ports does.
    pub out_of_band: Option<OutOfBand>,
    /// The addresses that the control port listens on; `None` for all.
    pub listens_on: Option<Vec<IpAddr>>,
}

/// A fabric that can be used here.
#[derive(Debug)]
pub enum FoundFabric {
    /// TCP, which needs only the ports' addresses.
    Tcp,
    /// RDMA, with the ports open, one for each of [`Found::ports`].
    Verbs(Vec<OpenPort>),
}

/// An address of this host for control sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBand {
    /// The address.
    pub address: IpAddr,
    /// Length of its network's prefix in bits, in the address's own family.
    pub prefix_len: u8,
    /// True if it is dialled before the ports' own addresses, because the user named it for RDMA ports.
    pub comes_first: bool,
}

impl Found {
    /// Returns the name of the fabric in use.
    pub fn fabric_name(&self) -> &'static str {
        match self.fabric {
            FoundFabric::Tcp => "tcp",
            FoundFabric::Verbs(_) => Verbs::NAME,
        }
    }

    /// Returns the GIDs that the lanes of a port may use, best first; none on TCP. `port` is an index into
    /// [`Found::ports`].
    pub fn gids(&self, port: usize) -> &[PortGid] {
        match &self.fabric {
            FoundFabric::Tcp => &[],
            FoundFabric::Verbs(open) => &open[port].port().gids,
        }
    }

    /// Returns the part of a device's traffic that each of its ports carries, 0 to 1, in their order, if the other end
    /// is as fast.
    pub fn shares(&self, device: &Device, weights: Weights) -> Vec<f64> {
        let weight = |(place, port): (usize, &usize)| match weights {
            Weights::Fixed(weights) => f64::from(weights[place]),
            Weights::Unset => f64::from(self.ports[*port].facts.speed_mbps.unwrap_or(DEFAULT_SPEED_MBPS)),
        };
        let weights: Vec<f64> = device.ports.iter().enumerate().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric::PortFacts;

    use super::*;
    use crate::tcp_ports::loopback_port;

    fn shares(speeds: &[Option<u32>], weights: Weights) -> Vec<f64> {
        let port = |speed_mbps: &Option<u32>| {
            let facts = PortFacts { speed_mbps: *speed_mbps, ..loopback_port("127.0.0.1".parse().unwrap()) };
            ChosenPort { facts, group: None, rail_id: None, plane_id: None }
        };
        let ports: Vec<_> = speeds.iter().map(port).collect();
        let devices = railweave_topology::devices(&ports, Mode::Fused);
        let found = Found {
            fabric: FoundFabric::Tcp,
            mode: Mode::Fused,
            ports,
            devices,
            left_out: Vec::new(),
            out_of_band: None,
            listens_on: None,
        };
        found.shares(&found.devices[0], weights)
    }

    #[test]
    fn shares_follow_the_speeds_unless_weights_are_given() {
        // A port of unknown speed counts as 10 Gbit/s.
        assert_eq!(shares(&[Some(30_000), None], Weights::Unset), [0.75, 0.25]);
        let fixed = |weights: [u32; 3]| {
            let mut all = [0; railweave_fabric::MAX_RAILS];
            all[..3].copy_from_slice(&weights);
            Weights::Fixed(all)
        };
        assert_eq!(shares(&[Some(30_000), None, None], fixed([1, 3, 0])), [0.25, 0.75, 0.0]);
    }
}
