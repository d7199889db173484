//! The bond of two ports, or the obstacle to one.

use railweave_fabric::{LinkLayer, MAX_RAILS, SettingId};

use crate::NetworkAddress;
use crate::endpoint::{Endpoint, Side};

/// The way in which two ports reach each other, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bond {
    /// The same address, on a network that both processes share.
    SameAddress,
    SameSubnet,
    /// Perhaps reachable through a router.
    Routed,
}

/// The reason why two ports are not a pair. Ports with a later variant are closer to a pair, so that variant is
/// reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    NoPort,
    LinkLayer,
    NotUnicast,
    Family,
    Plane,
    Loopback,
    LinkLocal,
    Identical,
    Subnet,
    /// The route between them leaves by another port, or is not known.
    Route,
    /// A rail between them was left out a moment ago.
    Failed,
    Taken,
    Limit,
}

impl Obstacle {
    /// Returns the reason why `port` has no pair, if this is the obstacle to its closest candidate on the other side.
    pub(crate) fn describe(self, port: &Endpoint, other: Side) -> String {
        let network = port.network();
        let address = network.address();
        match self {
            Self::NoPort => format!("the {other} has no ports"),
            Self::LinkLayer => format!("no port of the {other} is {}", port.link_layer.name()),
            Self::NotUnicast if network.is_unicast() => format!("no port of the {other} has an address of one host"),
            Self::NotUnicast => format!("{address} is not the address of one host"),
            Self::Family => {
                format!("no port of the {other} has an IPv{} address", if address.is_ipv4() { 4 } else { 6 })
            }
            Self::Plane => format!("no port of the {other} is in plane {}", port.plane_id),
            Self::Loopback if network.is_loopback() => {
                format!("the loopback address {address} reaches only its own host")
            }
            Self::Loopback => format!("the {other} offers loopback addresses, which reach only its own host"),
            Self::LinkLocal if network.is_link_local() => format!("{address} is a link-local address"),
            Self::LinkLocal => format!("the {other} offers link-local addresses"),
            Self::Identical => {
                format!("the {other} has the address {address} too; each host needs one of its own")
            }
            Self::Subnet => {
                format!("no port of the {other} is on the subnet of {network}, while other ports share one")
            }
            Self::Route => format!(
                "no port of the {other} is on the subnet of {network}, and packets to none of them leave by this port \
                 (`ip route get` shows the way)"
            ),
            Self::Failed => {
                format!("a rail to the {other} was left out a moment ago (an earlier line says why)")
            }
            Self::Taken => format!("each port of the {other} that it could pair with has a partner"),
            Self::Limit => format!("a connection has at most {MAX_RAILS} rails"),
        }
    }

    /// Returns the remedy if no port came closer to a rail than this.
    pub(crate) fn remedy(self) -> String {
        let rails = SettingId::Rails;
        match self {
            Self::LinkLayer => format!(
                "choose ports of one kind on both hosts ({} or {}), or set {}=tcp on both",
                SettingId::RdmaRails.nccls(),
                SettingId::RdmaRails,
                SettingId::Fabric
            ),
            Self::Family => format!(
                "give the ports of both hosts addresses of one family; on RoCE, {} chooses among GIDs",
                SettingId::AddressFamily
            ),
            Self::Plane => format!(
                "connect ports of one plane, or remove the planes from the list of rails ({rails} or {})",
                SettingId::RdmaRails.nccls()
            ),
            Self::Loopback => {
                format!("name ports in {rails} that reach other hosts; loopback addresses are for trials on one host")
            }
            Self::LinkLocal => format!(
                "give the interfaces of both ports an IPv4 or a global IPv6 address on a common subnet; on RoCE, both \
                 hosts can also name a link-local entry in {}",
                SettingId::GidIndex
            ),
            Self::Identical => format!(
                "give each host an address of its own, and exclude those that every host has (docker0, bridges) from \
                 {rails}"
            ),
            Self::Route => format!(
                "give both hosts an address on a common subnet, or add routes both ways (`railweave topo --routes` \
                 prints them), or set {}=1 on both hosts, which uses TCP where RDMA does not reach; if a switch \
                 answers for far hosts (proxy ARP), set {}=0 on both",
                SettingId::Hybrid,
                SettingId::Routes
            ),
            Self::Failed => {
                "look at the cables, at the firewalls (UDP port 4791) and at the MTU on the way between both".to_owned()
            }
            Self::NoPort | Self::NotUnicast | Self::Subnet | Self::Taken | Self::Limit => share_a_subnet(),
        }
    }
}

pub(crate) fn share_a_subnet() -> String {
    format!("give both hosts an address on a common subnet, and name those ports in {}", SettingId::Rails)
}

/// Returns the bond of two ports, or the obstacle. `same_network`: both processes share a network namespace.
pub(crate) fn bond(connector: &Endpoint, acceptor: &Endpoint, same_network: bool) -> Result<Bond, Obstacle> {
    let (ours, theirs) = (connector.network(), acceptor.network());
    let either = |is: fn(&NetworkAddress) -> bool| is(&ours) || is(&theirs);
    if connector.link_layer != acceptor.link_layer {
        return Err(Obstacle::LinkLayer);
    }
    if !ours.is_unicast() || !theirs.is_unicast() {
        return Err(Obstacle::NotUnicast);
    }
    if !ours.same_family(&theirs) {
        return Err(Obstacle::Family);
    }
    if connector.plane_id >= 0 && acceptor.plane_id >= 0 && connector.plane_id != acceptor.plane_id {
        return Err(Obstacle::Plane);
    }
    let is_infiniband = connector.link_layer == LinkLayer::InfiniBand;
    let is_here = same_network || is_infiniband;
    if !is_here && either(NetworkAddress::is_loopback) {
        return Err(Obstacle::Loopback);
    }
    if !is_here
        && connector.link_layer == LinkLayer::Tcp
        && either(|network| network.address().is_ipv6() && network.is_link_local())
    {
        return Err(Obstacle::LinkLocal);
    }
    if ours.address() == theirs.address() {
        return if is_here { Ok(Bond::SameAddress) } else { Err(Obstacle::Identical) };
    }
    if ours.shares_subnet(&theirs) {
        return Ok(Bond::SameSubnet);
    }
    if either(NetworkAddress::is_loopback) {
        return Err(Obstacle::Loopback);
    }
    if !is_infiniband && either(NetworkAddress::is_link_local) {
        return Err(Obstacle::LinkLocal);
    }
    Ok(Bond::Routed)
}
