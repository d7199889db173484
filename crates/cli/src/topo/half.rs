//! One host as the other sees it: the devices with the ports that they offer, and the ways that its kernel knows.

use railweave_discovery::{Fallback, Found, FoundFabric, Routes};
use railweave_fabric::{Mode, PortFacts, Route};
use railweave_offers::{offered, place_in_device, port_offer, weight_among_halves};
use railweave_options::{Options, Weights};
use railweave_topology::{ChosenPort, Device, NetworkAddress};
use railweave_transport::PortOffer;
use std::net::{IpAddr, Ipv6Addr};

/// A host's part of a drawing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Half {
    /// The host's name.
    pub(crate) host: String,
    /// HELLO's network number: equal for two processes in one network namespace.
    pub(crate) network: u64,
    /// True if its kernel forwards IPv4 packets; `None` if that is not known.
    pub(crate) forwards: Option<bool>,
    /// The devices, in NCCL's numbering.
    pub(crate) devices: Vec<HalfDevice>,
    /// TCP for the peers that RDMA does not reach, if it may be used.
    pub(crate) fallback: Option<HalfDevice>,
}

/// A device, with the ports that it offers.
#[derive(Clone, Debug, Default)]
pub(crate) struct HalfDevice {
    pub(crate) name: String,
    /// The device's ports, then others of the host that may take their place.
    pub(crate) ports: Vec<HalfPort>,
    /// The number of others.
    pub(crate) others: usize,
}

/// A port, as the offer shows it, and its names.
#[derive(Clone, Debug)]
pub(crate) struct HalfPort {
    pub(crate) offer: PortOffer,
    pub(crate) name: String,
    /// The network interface of its address, if known.
    pub(crate) interface: Option<String>,
    /// The weight of its rails if its host sends; `None` for the speed.
    pub(crate) weight: Option<u32>,
    /// The answers of its kernel about the ways to the other host's addresses.
    pub(crate) routes: Vec<(Ipv6Addr, Route)>,
}

impl HalfPort {
    /// Returns the address with its network's prefix.
    pub(crate) fn network(&self) -> NetworkAddress {
        NetworkAddress::new(self.offer.address.into(), self.offer.prefix_len)
    }

    /// Returns the kernel's answer about the way to an address of the other host.
    pub(crate) fn route(&self, to: Ipv6Addr) -> Route {
        self.routes.iter().find(|(target, _)| *target == to).map_or(Route::Unknown, |(_, route)| *route)
    }
}

impl HalfDevice {
    /// Returns the device's own ports, without the others of its host.
    pub(crate) fn own_ports(&self) -> &[HalfPort] {
        &self.ports[..self.ports.len() - self.others]
    }

    /// Returns the sum of its ports' speeds, in Mbit/s.
    pub(crate) fn speed_mbps(&self) -> u64 {
        self.own_ports().iter().map(|port| u64::from(port.offer.speed_mbps)).sum()
    }
}

impl Half {
    /// Returns all offers: those of the devices, then that of TCP.
    pub(crate) fn offers(&self) -> impl Iterator<Item = &HalfDevice> {
        self.devices.iter().chain(&self.fallback)
    }

    /// Returns each address of the ports of all offers once, in their order.
    pub(crate) fn addresses(&self) -> Vec<Ipv6Addr> {
        let mut addresses = Vec::new();
        for port in self.offers().flat_map(|device| &device.ports) {
            if !addresses.contains(&port.offer.address) {
                addresses.push(port.offer.address);
            }
        }
        addresses
    }
}

/// This host: its half, and the facts by which its kernel can be asked for ways.
pub(crate) struct Own {
    half: Half,
    /// True if the kernel's routes count.
    asks_kernel: bool,
    /// The facts of each offer's ports.
    facts: Vec<Vec<PortFacts>>,
}

impl Own {
    /// Returns this host as the plugin would offer it.
    ///
    /// # Errors
    /// If the kernel does not list the addresses.
    pub(crate) fn new(
        found: &Found,
        options: &Options,
        host: &str,
        network: u64,
    ) -> Result<Self, railweave_discovery::Error> {
        let standing_by = if matches!(found.fabric, FoundFabric::Tcp) {
            None
        } else {
            railweave_discovery::fallback(options, &found.devices, found.listens_on.as_deref(), &|_| ())?
        };
        let mut own = Self {
            half: Half { host: host.to_owned(), network, forwards: forwards(), ..Half::default() },
            asks_kernel: options.routes.value,
            facts: Vec::new(),
        };
        for device in &found.devices {
            let interface = |port: usize| interface(found, port);
            let made = own.device(device, &found.devices, &found.ports, options, found.mode, interface);
            own.half.devices.push(made);
        }
        if let Some(Fallback { ports, devices }) = standing_by {
            let interface = |port: usize| Some(name(&ports[port]));
            own.half.fallback =
                devices.first().map(|device| own.device(device, &devices, &ports, options, Mode::Fused, interface));
        }
        Ok(own)
    }

    fn device(
        &mut self,
        device: &Device,
        devices: &[Device],
        ports: &[ChosenPort],
        options: &Options,
        mode: Mode,
        interface: impl Fn(usize) -> Option<String>,
    ) -> HalfDevice {
        let offered = offered(device, ports);
        let indices = &offered.ports;
        self.facts.push(indices.iter().map(|index| ports[*index].facts.clone()).collect());
        let port = |(place, index): (usize, &usize)| {
            let place = place_in_device(&offered, place, devices);
            let given = match options.weights.value {
                Weights::Unset => None,
                Weights::Fixed(weights) => weights.get(place).copied(),
            };
            let halves = || (mode == Mode::Mesh).then(|| weight_among_halves(ports, *index, indices)).flatten();
            HalfPort {
                offer: port_offer(&ports[*index], options.lanes.value.on(place)),
                name: ports[*index].facts.name.clone(),
                interface: interface(*index),
                weight: given.or_else(halves),
                routes: Vec::new(),
            }
        };
        let ports = indices.iter().enumerate().map(port).collect();
        HalfDevice { name: device.name.clone(), ports, others: offered.others }
    }

    /// Returns this host's half.
    pub(crate) fn half(&self) -> &Half {
        &self.half
    }

    /// Returns this host's half with the kernel's answers about the ways to these addresses.
    pub(crate) fn towards(&self, targets: &[Ipv6Addr]) -> Half {
        let mut half = self.half.clone();
        let Some(routes) = self.asks_kernel.then(Routes::open).flatten() else { return half };
        let offers = half.devices.iter_mut().chain(&mut half.fallback);
        for (device, facts) in offers.zip(&self.facts) {
            for (port, facts) in device.ports.iter_mut().zip(facts) {
                port.routes = targets
                    .iter()
                    .map(|target| (*target, routes.route(facts, IpAddr::from(*target).to_canonical())))
                    .collect();
            }
        }
        half
    }
}

/// Returns the network interface of the address of a port in use, if known.
pub(crate) fn interface(found: &Found, port: usize) -> Option<String> {
    match found.fabric {
        FoundFabric::Tcp => Some(name(&found.ports[port])),
        FoundFabric::Verbs(_) => {
            let best = found.gids(port).first();
            let reported = best.and_then(|gid| gid.interface.clone());
            reported.or_else(|| railweave_discovery::interface_of(found.ports[port].facts.address))
        }
    }
}

fn name(port: &ChosenPort) -> String {
    // An address's label is not part of its interface's name.
    port.facts.device.split(':').next().unwrap_or_default().to_owned()
}

/// Returns true if this kernel forwards IPv4 packets; `None` if it does not say.
fn forwards() -> Option<bool> {
    let value = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").ok()?;
    Some(value.trim() != "0")
}
