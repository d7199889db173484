//! A fabric with its devices, behind traits without type parameters: dynamic at this edge, generic inside. Its
//! connections are behind [`End`].

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use railweave_discovery::Routes;
use railweave_fabric::{Fabric, LinkLayer, PortFacts, Route, Step};
use railweave_topology::{Between, ChosenPort, Endpoint, NetworkAddress, Ports};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, ConnectionEnd, Connector, Handle, Handshake, HandshakePort,
    MAX_OFFERED_PORTS, MAX_TARGETS, MakesConnection, Offer, PortOffer, RailInfo, RecvConnection, SendConnection, Token,
    Wanted, Ways,
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
                registrar: Arc::new(RegistrarOf::<F> { rails: rails.iter().map(shared).collect() }),
                fate: Arc::clone(end.fate()),
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
    /// Begins a connection from a device to the listener of a handle, from this step of the ladder on.
    fn connect(&self, device: usize, to: &Handle, first_step: Step, params: HandshakeParams) -> Box<dyn AnyHandshake>;
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
    /// The weight by the port's place in its device; `None` uses the speed.
    pub(crate) weight: Box<dyn Fn(usize) -> Option<u32> + Send + Sync>,
    /// True if ports of one adapter share its traffic evenly, whatever speeds they report.
    pub(crate) halves_share_evenly: bool,
}

impl<F: Fabric> NetworkOf<F> {
    /// Returns the indices of a device's ports, then of those that may stand in for them, and the number of the latter.
    fn offered(&self, device: usize) -> (Vec<usize>, usize) {
        let device = self.devices.at(device);
        let is_like = |facts: &PortFacts| {
            device.ports.iter().any(|index| self.ports[*index].facts.link_layer == facts.link_layer)
                && (facts.pointers.cuda || !device.pointers.cuda)
                && (facts.pointers.dma_buf || !device.pointers.dma_buf)
                // NCCL flushes for a device that it was told to flush for.
                && (device.pointers.data_direct || !facts.pointers.data_direct)
        };
        let others = (0..self.ports.len()).filter(|index| !device.ports.contains(index));
        let others = others.filter(|index| is_like(&self.ports[*index].facts));
        let others: Vec<usize> = others.take(MAX_OFFERED_PORTS - device.ports.len()).collect();
        let count = others.len();
        ([device.ports.clone(), others].concat(), count)
    }

    fn handshake_ports(&self, offered: &[usize]) -> Vec<HandshakePort<F>> {
        let ports = offered.iter().enumerate();
        ports
            .map(|(place, index)| {
                let port = &self.ports[*index];
                HandshakePort {
                    offer: PortOffer {
                        link_layer: port.facts.link_layer,
                        prefix_len: port.facts.prefix_len,
                        lanes: (self.lanes)(place),
                        speed_mbps: speed(&port.facts),
                        mtu: port.facts.mtu,
                        rail_id: port.rail_id.unwrap_or(-1),
                        plane_id: port.plane_id.unwrap_or(-1),
                        address: port.facts.wire_address(),
                    },
                    domain: Arc::clone(self.registrations[*index].domain()),
                    weight: (self.weight)(place).or_else(|| self.weight_among_halves(*index, offered)),
                }
            })
            .collect()
    }

    /// Returns the weight of a port that shares its adapter's link with others of the device, if halves of a link share
    /// evenly: each reports the speed of the whole.
    fn weight_among_halves(&self, index: usize, offered: &[usize]) -> Option<u32> {
        let on_adapter = offered.iter().filter(|other| self.ports[**other].is_on_adapter_of(&self.ports[index]));
        let speeds: Vec<u64> = on_adapter.map(|other| u64::from(speed(&self.ports[*other].facts))).collect();
        let mean = speeds.iter().sum::<u64>() / speeds.len().max(1) as u64;
        (self.halves_share_evenly && speeds.len() > 1).then(|| u32::try_from(mean).unwrap_or(u32::MAX))
    }

    /// Returns a connection's configuration as it is for this network, where it stands in for another.
    fn own(&self, config: ConnectionConfig) -> ConnectionConfig {
        // The bytes of TCP arrive in order.
        let adaptive_routing_above = config.adaptive_routing_above.filter(|_| !self.is_tcp());
        ConnectionConfig { adaptive_routing_above, ..config }
    }

    fn registrations_of(&self, offered: &[usize]) -> Vec<Arc<Registrations<F>>> {
        offered.iter().map(|index| Arc::clone(&self.registrations[*index])).collect()
    }

    /// Returns what the kernel says of the ways to a peer. It is asked only if no port of the device is on a subnet of
    /// the peer's, or these were tried.
    fn ways(&self, offered: &[usize], others: usize, to: &Handle, first_step: Step) -> Ways {
        let entries = || to.addresses.iter().filter(|entry| !entry.is_out_of_band());
        let facts = |index: &usize| &self.ports[*index].facts;
        let mut of_device = offered[..offered.len() - others].iter().map(facts);
        let is_near = of_device.any(|port| {
            let ours = NetworkAddress::from(port);
            entries().any(|entry| ours.shares_subnet(&NetworkAddress::new(entry.address, entry.prefix_len)))
        });
        let mut ways = Ways { first_step, others: others as u8, ..Ways::default() };
        if is_near && first_step == Step::Subnet {
            return ways;
        }
        let Some(routes) = Routes::open() else { return ways };
        let targets: Vec<IpAddr> = entries().map(|entry| entry.address).take(MAX_TARGETS).collect();
        ways.targets = targets.iter().map(|target| mapped(*target)).collect();
        let ports = offered.iter().map(facts);
        ways.routes = ports.flat_map(|port| targets.iter().map(|target| routes.route(port, *target))).collect();
        ways
    }
}

/// Returns an address as a port's is on the wire.
fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn speed(port: &PortFacts) -> u32 {
    port.speed_mbps.unwrap_or(railweave_topology::DEFAULT_SPEED_MBPS)
}

fn endpoint(port: &PortOffer) -> Endpoint {
    Endpoint {
        link_layer: port.link_layer,
        address: port.address,
        prefix_len: port.prefix_len,
        speed_mbps: port.speed_mbps,
        rail_id: port.rail_id,
        plane_id: port.plane_id,
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

    fn connect(&self, device: usize, to: &Handle, first_step: Step, params: HandshakeParams) -> Box<dyn AnyHandshake> {
        let (offered, others) = self.offered(device);
        let ports = self.handshake_ports(&offered);
        let wanted = Wanted { nonce: to.nonce, ways: self.ways(&offered, others, to, first_step) };
        let HandshakeParams { config, peer, deadline_ns } = params;
        let connector = Connector::<F>::new(self.own(config), ports, wanted, peer, deadline_ns, counters::of);
        Box::new(HandshakeOf { handshake: connector, registrations: self.registrations_of(&offered) })
    }

    fn accept(
        &self,
        device: usize,
        offer: &Offer,
        same_network: bool,
        token: Token,
        params: HandshakeParams,
    ) -> Box<dyn AnyHandshake> {
        let (offered, others) = self.offered(device);
        let ports = self.handshake_ports(&offered);
        let theirs: Vec<_> = offer.ports.iter().map(endpoint).collect();
        let ours: Vec<_> = ports.iter().map(|port| endpoint(&port.offer)).collect();
        let routes = OnceCell::new();
        let route = |pair: railweave_topology::Pair| {
            let (theirs, ours) = (offer.ports[pair.connector].address, ours[pair.acceptor].address);
            let back = || {
                let routes = routes.get_or_init(Routes::open).as_ref();
                let port = &self.ports[offered[pair.acceptor]].facts;
                routes.map_or(Route::Unknown, |routes| routes.route(port, theirs.into()))
            };
            match offer.ways.route(pair.connector, ours) {
                Route::Elsewhere => Route::Elsewhere,
                there => there.and(back()),
            }
        };
        // Over TCP, the ladder begins again.
        let by_tcp = offer.ways.first_step == Step::Tcp;
        let first_step = if by_tcp { Step::Subnet } else { offer.ways.first_step };
        let pairing = railweave_topology::pair(
            Ports { all: &theirs, others: offer.ways.others.into() },
            Ports { all: &ours, others },
            &Between { same_network, first_step, route: &route },
        );
        let pairs: Vec<_> = pairing
            .pairs
            .iter()
            .map(|pair| AcceptPairing { connector_port: pair.connector as u8, acceptor_port: pair.acceptor as u8 })
            .collect();
        let step = if by_tcp { Step::Tcp } else { pairing.step.unwrap_or_default() };
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
        Box::new(HandshakeOf { handshake: acceptor, registrations: self.registrations_of(&offered) })
    }
}
