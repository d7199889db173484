//! A pairing as one end sees it, ready for print: this host's column first.

use super::half::{Half, HalfPort};
use super::pairing::{Paired, pair_all, step_name};
use railweave_topology::{NetworkAddress, Side};
use serde::Serialize;
use std::net::IpAddr;

/// Two hosts and their pairing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct View {
    /// This host, then the peer.
    pub(crate) hosts: [Host; 2],
    /// Each device of this host with each of the peer's.
    pub(crate) pairs: Vec<DevicePair>,
}

/// A host and its devices.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Host {
    /// Its name, made different from the other's.
    pub(crate) name: String,
    /// True if its kernel forwards IPv4 packets.
    pub(crate) forwards: Option<bool>,
    pub(crate) devices: Vec<Device>,
    /// TCP for the peers that RDMA does not reach, if it may be used.
    pub(crate) tcp: Option<Device>,
}

/// A device with its ports.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) speed_mbps: u64,
    pub(crate) ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) interface: Option<String>,
    pub(crate) address: String,
    pub(crate) subnet: String,
    pub(crate) link_layer: &'static str,
    pub(crate) speed_mbps: u32,
    pub(crate) mtu: u32,
}

/// A device of each host, with the connection that they would make.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DevicePair {
    /// The numbers of this host's device and of the peer's.
    pub(crate) devices: [usize; 2],
    /// The step of the ladder, 1 to 5; `None` if there is no rail.
    pub(crate) step: Option<u8>,
    pub(crate) step_name: Option<&'static str>,
    pub(crate) rails: Vec<Rail>,
    pub(crate) unpaired: Vec<Lone>,
    pub(crate) refusal: Option<String>,
}

/// A rail.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rail {
    /// This host's port, then the peer's.
    pub(crate) ports: [Port; 2],
    /// The subnet that both are on, `None` if packets cross a router.
    pub(crate) subnet: Option<String>,
    /// The speed of the slower port, in Mbit/s.
    pub(crate) speed_mbps: u32,
    /// The part of the connection's traffic, 0 to 1, from the end that dialled.
    pub(crate) share: f64,
}

/// A port without a rail.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lone {
    /// 0 for this host, 1 for the peer.
    pub(crate) host: usize,
    pub(crate) port: Port,
    /// True if it belongs to the device, false if it is another port of the host, which may take a place there.
    pub(crate) of_device: bool,
    pub(crate) reason: String,
}

impl View {
    /// Returns the view of one end. `dialled` is true if this end dialled: it is then the connector of the pairing, so
    /// that both ends show the same one.
    pub(crate) fn new(here: &Half, there: &Half, dialled: bool) -> Self {
        let [ours, theirs] = names(here, there);
        // The sentences of the pairing name the sides.
        let sides = if dialled { [ours.clone(), theirs.clone()] } else { [theirs.clone(), ours.clone()] };
        let all = if dialled { pair_all(here, there) } else { pair_all(there, here) };
        let mut pairs: Vec<DevicePair> = all.iter().map(|paired| device_pair(paired, dialled, &sides)).collect();
        pairs.sort_by_key(|pair| pair.devices);
        Self { hosts: [Host::new(here, ours), Host::new(there, theirs)], pairs }
    }

    /// Returns the pairs that a drawing shows in full: each device of either host with that of the same place, where
    /// the host with fewer devices begins again.
    pub(crate) fn main_pairs(&self) -> Vec<&DevicePair> {
        let [ours, theirs] = [&self.hosts[0], &self.hosts[1]].map(|host| host.devices.len().max(1));
        let places = (0..ours.max(theirs)).map(|place| [place % ours, place % theirs]);
        places.filter_map(|devices| self.pairs.iter().find(|pair| pair.devices == devices)).collect()
    }
}

/// Returns different names for two hosts.
fn names(here: &Half, there: &Half) -> [String; 2] {
    if here.host == there.host {
        return [format!("{} (this end)", here.host), format!("{} (the peer)", there.host)];
    }
    [here.host.clone(), there.host.clone()]
}

impl Host {
    fn new(half: &Half, name: String) -> Self {
        let device = |device: &super::half::HalfDevice| Device {
            name: device.name.clone(),
            speed_mbps: device.speed_mbps(),
            ports: device.own_ports().iter().map(Port::new).collect(),
        };
        Self {
            name,
            forwards: half.forwards,
            devices: half.devices.iter().map(device).collect(),
            tcp: half.fallback.as_ref().map(device),
        }
    }
}

impl Port {
    fn new(port: &HalfPort) -> Self {
        Self {
            name: port.name.clone(),
            interface: port.interface.clone(),
            address: port.network().to_string(),
            subnet: subnet(&port.network(), port.offer.prefix_len),
            link_layer: port.offer.link_layer.name(),
            speed_mbps: port.offer.speed_mbps,
            mtu: port.offer.mtu,
        }
    }
}

/// Returns the subnet of an address, as `address/length`.
pub(crate) fn subnet(network: &NetworkAddress, prefix_len: u8) -> String {
    let bits = u32::from(prefix_len);
    match network.address() {
        IpAddr::V4(v4) => {
            let kept = u32::MAX.checked_shl(32_u32.saturating_sub(bits)).unwrap_or(0);
            format!("{}/{}", std::net::Ipv4Addr::from_bits(v4.to_bits() & kept), bits.min(32))
        }
        IpAddr::V6(v6) => {
            let kept = u128::MAX.checked_shl(128_u32.saturating_sub(bits)).unwrap_or(0);
            format!("{}/{}", std::net::Ipv6Addr::from_bits(v6.to_bits() & kept), bits.min(128))
        }
    }
}

fn device_pair(paired: &Paired<'_>, dialled: bool, sides: &[String; 2]) -> DevicePair {
    let own_first = |mut both: [Port; 2]| {
        if !dialled {
            both.reverse();
        }
        both
    };
    let named = |text: &str| text.replace("the connector", &sides[0]).replace("the acceptor", &sides[1]);
    let rails = paired.rails.iter().map(|rail| {
        let [ours, theirs] = rail.ports.map(HalfPort::network);
        let shared = ours.shares_subnet(&theirs) || ours.address() == theirs.address();
        Rail {
            ports: own_first(rail.ports.map(Port::new)),
            subnet: shared.then(|| {
                subnet(&ours, rail.ports.map(|port| port.offer.prefix_len).into_iter().max().unwrap_or_default())
            }),
            speed_mbps: rail.speed_mbps,
            share: rail.share,
        }
    });
    let unpaired = paired.unpaired.iter().map(|lone| Lone {
        host: usize::from((lone.side == Side::Connector) != dialled),
        port: Port::new(lone.port),
        of_device: lone.is_own,
        reason: named(&lone.reason),
    });
    let mut unpaired: Vec<Lone> = unpaired.collect();
    unpaired.sort_by_key(|lone| lone.host);
    let [connector, acceptor] = paired.numbers;
    DevicePair {
        devices: if dialled { [connector, acceptor] } else { [acceptor, connector] },
        step: paired.step.map(|step| step as u8),
        step_name: paired.step.map(step_name),
        rails: rails.collect(),
        unpaired,
        refusal: paired.refusal.as_deref().map(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::examples::half;

    #[test]
    fn both_ends_show_the_same_pairing_each_from_its_side() {
        let ours = half("a", &[&["10.0.0.1/24", "10.9.0.1/24"]]);
        let theirs = half("b", &[&["10.0.0.2/24"], &["10.5.0.2/24"]]);
        let (from_a, from_b) = (View::new(&ours, &theirs, true), View::new(&theirs, &ours, false));
        assert_eq!((from_a.pairs.len(), from_b.pairs.len()), (2, 2));
        for (a, b) in from_a.pairs.iter().zip(&from_b.pairs) {
            assert_eq!(([a.devices[1], a.devices[0]], a.step, &a.refusal), (b.devices, b.step, &b.refusal));
            for (a, b) in a.rails.iter().zip(&b.rails) {
                assert_eq!((&a.ports[0], &a.ports[1], &a.subnet), (&b.ports[1], &b.ports[0], &b.subnet));
            }
        }
        let lone = &from_a.pairs[0].unpaired[0];
        assert_eq!(lone.host, 0);
        assert!(lone.reason.starts_with("no port of b is on the subnet of 10.9.0.1/24"), "{lone:?}");
        assert_eq!(from_b.pairs[0].unpaired[0].host, 1);
        assert_eq!(from_a.main_pairs().len(), 2, "the lone device of a stands next to both of b");
    }

    #[test]
    fn two_hosts_of_one_name_are_told_apart() {
        let one = half("a", &[&["10.0.0.1/24"]]);
        let view = View::new(&one, &half("a", &[&["10.0.0.2/24"]]), true);
        assert_eq!([&view.hosts[0].name, &view.hosts[1].name], ["a (this end)", "a (the peer)"]);
    }

    #[test]
    fn subnets_have_no_bits_of_the_host() {
        let of = |address: &str, length: u8| subnet(&NetworkAddress::new(address.parse().unwrap(), length), length);
        assert_eq!(of("10.1.2.3", 22), "10.1.0.0/22");
        assert_eq!(of("10.1.2.3", 32), "10.1.2.3/32");
        assert_eq!(of("10.1.2.3", 0), "0.0.0.0/0");
        assert_eq!(of("2001:db8::5", 64), "2001:db8::/64");
        assert_eq!(of("2001:db8::5", 0), "::/0");
    }
}
