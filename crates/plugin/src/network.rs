//! A fabric with its devices, behind traits without type parameters: dynamic at this edge, generic inside. Its
//! connections are behind [`End`].

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use railweave_discovery::Routes;
use railweave_fabric::{Fabric, LinkLayer, Route, Step};
use railweave_offers::{Answer, Offered, OwnPorts, answer, offered, place_in_device, port_offer, weight_among_halves};
use railweave_topology::ChosenPort;
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, ConnectionEnd, Connector, Handle, Handshake, HandshakePort,
    MakesConnection, Offer, RailInfo, RecvConnection, SendConnection, Token, Wanted, Ways,
};

use crate::comm::{End, Established, RegistrarOf, Registrations};
use crate::counters;
use crate::devices::Devices;

/// A handshake of any fabric and side.
pub(crate) trait AnyHandshake: Send {
    fn get(&self) -> &(dyn Handshake + 'static);
    fn get_mut(&mut self) -> &mut (dyn Handshake + 'static);
    /// Returns the next action.
    fn poll_action(&mut self) -> Option<Action<Established>>;
}

impl Deref for dyn AnyHandshake {
    type Target = dyn Handshake;

    fn deref(&self) -> &Self::Target {
        self.get()
    }
}

impl DerefMut for dyn AnyHandshake {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.get_mut()
    }
}

/// A handshake of a fabric, and the registrations of its device's ports.
struct HandshakeOf<F: Fabric, H> {
    handshake: H,
    registrations: Vec<Arc<Registrations<F>>>,
}

impl<F: Fabric, H: MakesConnection<Connection: End + 'static> + 'static> AnyHandshake for HandshakeOf<F, H> {
    fn get(&self) -> &(dyn Handshake + 'static) {
        &self.handshake
    }

    fn get_mut(&mut self) -> &mut (dyn Handshake + 'static) {
        &mut self.handshake
    }

    fn poll_action(&mut self) -> Option<Action<Established>> {
        let (registrations, step) = (&self.registrations, self.handshake.step());
        let action = self.handshake.poll_action()?;
        Some(action.map(|end| {
            let rails = end.rails();
            let shared = |rail: &RailInfo| (rail.index, Arc::clone(&registrations[rail.local_port]));
            Box::new(Established {
                trace: None,
                registrar: Arc::new(RegistrarOf::<F> { rails: rails.iter().map(shared).collect() }),
                fate: Arc::clone(end.fate()),
                steering: Arc::clone(end.steering()),
                parts: end.parts(),
                peer: end.peer().to_owned(),
                step,
                rails,
                end,
            })
        }))
    }
}

/// A handshake's configuration, peer and deadline.
pub(crate) struct HandshakeParams {
    pub(crate) config: ConnectionConfig,
    pub(crate) peer: String,
    pub(crate) deadline_ns: u64,
}

/// The listener that a connection leads to.
#[derive(Clone, Copy)]
pub(crate) struct To<'a> {
    pub(crate) handle: &'a Handle,
    /// The first step of the ladder to try.
    pub(crate) first_step: Step,
    /// The ways that are not tried: an address of this host, and one of the peer's.
    pub(crate) avoided: &'a [[IpAddr; 2]],
}

/// A fabric with its devices.
pub(crate) trait Network: Send + Sync {
    /// Returns the devices, in NCCL's numbering.
    fn devices(&self) -> &Devices;
    /// Returns the ports that the devices consist of.
    fn ports(&self) -> &[ChosenPort];
    /// Returns true if its handshakes may block, as creating queue pairs does.
    fn may_block(&self) -> bool;
    /// Returns true if its ports are addresses of TCP.
    fn is_tcp(&self) -> bool {
        self.ports().first().is_some_and(|port| port.facts.link_layer == LinkLayer::Tcp)
    }
    /// Returns the name of the port at a place among those that a device offers.
    fn port_name(&self, device: usize, place: usize) -> Option<String> {
        let offered = offered(&self.devices().at(device), self.ports());
        offered.ports.get(place).map(|index| self.ports()[*index].facts.name.clone())
    }
    /// Begins a connection from a device.
    fn connect(&self, device: usize, to: To<'_>, params: HandshakeParams) -> Box<dyn AnyHandshake>;
    /// Answers an offer to a device. `same_network`: both processes share a network namespace.
    fn accept(
        &self,
        device: usize,
        offer: &Offer,
        same_network: bool,
        token: Token,
        params: HandshakeParams,
    ) -> Box<dyn AnyHandshake>;
}

/// A fabric's ports and domains.
pub(crate) struct NetworkOf<F: Fabric> {
    pub(crate) devices: Devices,
    pub(crate) ports: Vec<ChosenPort>,
    /// One per port.
    pub(crate) registrations: Vec<Arc<Registrations<F>>>,
    /// The number of lanes that this side asks for, by the port's place in its device.
    pub(crate) lanes: Box<dyn Fn(usize) -> u8 + Send + Sync>,
    /// The user's weight by the port's place in its device; `None` without weights.
    pub(crate) weight: Box<dyn Fn(usize) -> Option<u32> + Send + Sync>,
    /// True if ports of one adapter share its traffic evenly, whatever speeds they report.
    pub(crate) halves_share_evenly: bool,
    /// True if the kernel's routes count.
    pub(crate) asks_kernel: bool,
}

impl<F: Fabric> NetworkOf<F> {
    /// Returns the ports that a device offers.
    fn offered(&self, device: usize) -> Offered {
        offered(&self.devices.at(device), &self.ports)
    }

    fn handshake_ports(&self, offered: &Offered) -> Vec<HandshakePort<F>> {
        let found = if offered.others > 0 { self.devices.found() } else { Vec::new() };
        let port = |(place, index): (usize, &usize)| {
            let place = place_in_device(offered, place, found.iter().map(Arc::as_ref));
            HandshakePort {
                offer: port_offer(&self.ports[*index], (self.lanes)(place)),
                domain: Arc::clone(self.registrations[*index].domain()),
                weight: self.weight_among_halves(*index, &offered.ports),
                fixed: (self.weight)(place),
            }
        };
        offered.ports.iter().enumerate().map(port).collect()
    }

    /// Returns the weight of a port that shares its adapter's link with others of the device, if halves of a link share
    /// evenly: each reports the speed of the whole.
    fn weight_among_halves(&self, index: usize, offered: &[usize]) -> Option<u32> {
        let is_even = self.halves_share_evenly;
        is_even.then(|| weight_among_halves(&self.ports, index, offered)).flatten()
    }

    /// Returns a connection's configuration as it is for this network, where it takes the place of another.
    fn own(&self, config: ConnectionConfig) -> ConnectionConfig {
        // The bytes of TCP arrive in order.
        let adaptive_routing_above = config.adaptive_routing_above.filter(|_| !self.is_tcp());
        ConnectionConfig { adaptive_routing_above, ..config }
    }

    fn registrations_of(&self, offered: &[usize]) -> Vec<Arc<Registrations<F>>> {
        offered.iter().map(|index| Arc::clone(&self.registrations[*index])).collect()
    }

    /// Returns the kernel's routes, if they count and it shows them.
    fn routes(&self) -> Option<Routes> {
        self.asks_kernel.then(Routes::open).flatten()
    }

    /// Returns what the kernel says of the ways to a peer.
    fn ways(&self, offered: &Offered, ports: &[HandshakePort<F>], to: To<'_>) -> Ways {
        let ports: Vec<_> = ports.iter().map(|port| port.offer).collect();
        let own = OwnPorts { all: &ports, others: offered.others };
        railweave_offers::ways(own, &to.handle.addresses, to.first_step, to.avoided, || {
            let routes = self.routes()?;
            Some(move |place: usize, to: IpAddr| routes.route(&self.ports[offered.ports[place]].facts, to))
        })
    }
}

impl<F: Fabric> Network for NetworkOf<F>
where
    SendConnection<F>: Send,
    RecvConnection<F>: Send,
    Connector<F>: Send,
    Acceptor<F>: Send,
{
    fn devices(&self) -> &Devices {
        &self.devices
    }

    fn ports(&self) -> &[ChosenPort] {
        &self.ports
    }

    fn may_block(&self) -> bool {
        F::JOINING.may_block()
    }

    fn connect(&self, device: usize, to: To<'_>, params: HandshakeParams) -> Box<dyn AnyHandshake> {
        let offered = self.offered(device);
        let ports = self.handshake_ports(&offered);
        let wanted = Wanted { nonce: to.handle.nonce, ways: self.ways(&offered, &ports, to) };
        let HandshakeParams { config, peer, deadline_ns } = params;
        let connector = Connector::<F>::new(self.own(config), ports, wanted, peer, deadline_ns, counters::of);
        Box::new(HandshakeOf { handshake: connector, registrations: self.registrations_of(&offered.ports) })
    }

    fn accept(
        &self,
        device: usize,
        offer: &Offer,
        same_network: bool,
        token: Token,
        params: HandshakeParams,
    ) -> Box<dyn AnyHandshake> {
        let offered = self.offered(device);
        let ports = self.handshake_ports(&offered);
        let ours: Vec<_> = ports.iter().map(|port| port.offer).collect();
        let routes = OnceCell::new();
        let back = |place: usize, to: Ipv6Addr| {
            let routes = routes.get_or_init(|| self.routes()).as_ref();
            let port = &self.ports[offered.ports[place]].facts;
            routes.map_or(Route::Unknown, |routes| routes.route(port, to.into()))
        };
        let own = OwnPorts { all: &ours, others: offered.others };
        let Answer { pairing, step } = answer(offer, own, same_network, back);
        let pairs: Vec<_> = pairing
            .pairs
            .iter()
            .map(|pair| AcceptPairing { connector_port: pair.connector as u8, acceptor_port: pair.acceptor as u8 })
            .collect();
        let acceptor = Acceptor::<F>::new(
            self.own(params.config),
            ports,
            offer,
            pairing.refusal().map_or(Ok((step, pairs.as_slice())), Err),
            token,
            params.peer,
            params.deadline_ns,
            counters::of,
        );
        Box::new(HandshakeOf { handshake: acceptor, registrations: self.registrations_of(&offered.ports) })
    }
}
