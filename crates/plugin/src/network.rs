//! A fabric with its devices, behind traits without type parameters: dynamic at this edge, generic inside. Its
//! connections are behind [`End`].

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use railweave_fabric::Fabric;
use railweave_topology::{ChosenPort, Endpoint};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, ConnectionEnd, Connector, Handshake, HandshakePort,
    MakesConnection, Offer, PortOffer, RailInfo, RecvConnection, SendConnection, Token,
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
        let registrations = &self.registrations;
        let action = self.handshake.poll_action()?;
        Some(action.map(|end| {
            let rails = end.rails();
            let shared = |rail: &RailInfo| (rail.index, Arc::clone(&registrations[rail.local_port]));
            Box::new(Established {
                registrar: Arc::new(RegistrarOf::<F> { rails: rails.iter().map(shared).collect() }),
                fate: Arc::clone(end.fate()),
                parts: end.parts(),
                peer: end.peer().to_owned(),
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
    /// Begins a connection from a device to the listener with this nonce.
    fn connect(&self, device: usize, nonce: u64, params: HandshakeParams) -> Box<dyn AnyHandshake>;
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
}

impl<F: Fabric> NetworkOf<F> {
    fn handshake_ports(&self, device: usize) -> Vec<HandshakePort<F>> {
        let device = self.devices.at(device);
        let ports = device.ports.iter().enumerate();
        ports
            .map(|(place, index)| {
                let port = &self.ports[*index];
                HandshakePort {
                    offer: PortOffer {
                        link_layer: port.facts.link_layer,
                        prefix_len: port.facts.prefix_len,
                        lanes: (self.lanes)(place),
                        speed_mbps: port.facts.speed_mbps.unwrap_or(railweave_topology::DEFAULT_SPEED_MBPS),
                        mtu: port.facts.mtu,
                        rail_id: port.rail_id.unwrap_or(-1),
                        plane_id: port.plane_id.unwrap_or(-1),
                        address: port.facts.wire_address(),
                    },
                    domain: Arc::clone(self.registrations[*index].domain()),
                    weight: (self.weight)(place),
                }
            })
            .collect()
    }

    fn device_registrations(&self, device: usize) -> Vec<Arc<Registrations<F>>> {
        self.devices.at(device).ports.iter().map(|index| Arc::clone(&self.registrations[*index])).collect()
    }
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

    fn connect(&self, device: usize, nonce: u64, params: HandshakeParams) -> Box<dyn AnyHandshake> {
        let ports = self.handshake_ports(device);
        let connector = Connector::<F>::new(params.config, ports, nonce, params.peer, params.deadline_ns, counters::of);
        Box::new(HandshakeOf { handshake: connector, registrations: self.device_registrations(device) })
    }

    fn accept(
        &self,
        device: usize,
        offer: &Offer,
        same_network: bool,
        token: Token,
        params: HandshakeParams,
    ) -> Box<dyn AnyHandshake> {
        let ports = self.handshake_ports(device);
        let theirs: Vec<_> = offer.ports.iter().map(endpoint).collect();
        let ours: Vec<_> = ports.iter().map(|port| endpoint(&port.offer)).collect();
        let pairing = railweave_topology::pair(&theirs, &ours, same_network);
        let pairs: Vec<_> = pairing
            .pairs
            .iter()
            .map(|pair| AcceptPairing { connector_port: pair.connector as u8, acceptor_port: pair.acceptor as u8 })
            .collect();
        let acceptor = Acceptor::<F>::new(
            params.config,
            ports,
            offer,
            pairing.refusal().map_or(Ok(pairs.as_slice()), Err),
            token,
            params.peer,
            params.deadline_ns,
            counters::of,
        );
        Box::new(HandshakeOf { handshake: acceptor, registrations: self.device_registrations(device) })
    }
}
