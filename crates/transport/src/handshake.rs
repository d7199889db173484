//! What the two state machines of a connection's set-up have in common.
//!
//! [`crate::Connector`] and [`crate::Acceptor`] take messages, sockets and the time, and give [`Action`]s. They may be
//! moved to another thread between any two calls, which is how set-up calls that block stay off the control thread.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Connecting, Domain, Fabric, Joining, LaneEndpoint, Memory, Region, Registration, Role, Setting, SetupError,
};

use crate::connection::{RailCounters, RailInfo, RailName};
use crate::plant::{Plant, planted};
use crate::{ConnectionConfig, Error, MAX_BUFFERS, MAX_MESSAGE_BYTES, Message, PortOffer, SLOTS};

/// Sixteen random bytes that only the two ends of a connection know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token(..)") // a secret: it must not reach a log
    }
}

/// One port of the device that a connection is made on.
pub struct HandshakePort<F: Fabric> {
    /// The port as it is offered.
    pub offer: PortOffer,
    /// Where its memory is registered.
    pub domain: Arc<F::Domain>,
    /// The weight that the options give the port; None takes the speed.
    pub weight: Option<u32>,
}

impl<F: Fabric> Clone for HandshakePort<F> {
    fn clone(&self) -> Self {
        Self { offer: self.offer, domain: Arc::clone(&self.domain), weight: self.weight }
    }
}

/// A lane that is to be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// The rail.
    pub rail: u8,
    /// The lane.
    pub lane: u8,
    /// Address to dial from.
    pub local: IpAddr,
    /// Address to dial; the port is the session's.
    pub remote: IpAddr,
    /// What to present.
    pub token: Token,
}

/// What a handshake wants done. `C` is the connection that it makes.
#[derive(Debug)]
pub enum Action<C> {
    /// Send this to the peer, over the session.
    Send(Message),
    /// Dial this lane and hand the socket, or the reason why there is none, to `handle_dialed`.
    Dial(Dial),
    /// A rail was left out; worth a line in the log.
    RailDropped {
        /// Which.
        rail: u8,
        /// Why.
        reason: String,
    },
    /// The connection is there. The handshake is over.
    Ready(Box<C>),
    /// There will be no connection. The handshake is over.
    Failed(Error),
}

/// The depth of queues at each end.
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    /// Receives of which one lane has a use.
    pub(crate) lane_receive: u32,
}

/// Every 32nd CTS of a lane is signalled.
pub(crate) const CTS_SIGNAL_EVERY: u32 = 32;

impl Depths {
    /// The queues of one end of a rail. Each must hold the longest chain that is ever posted at once.
    pub(crate) fn new(role: Role, lanes: u8, striped: bool, max_write: u32) -> Self {
        match role {
            Role::Sender => {
                let writes = MAX_MESSAGE_BYTES.div_ceil(u64::from(max_write)) as u32;
                Self { send: (SLOTS as u32).max(longest_chain(writes)), receive: 0, lane_receive: 0 }
            }
            // A CTS that goes round the ring's end takes two writes, and of 32 only the last is signalled. A slot brings no
            // lane more than one immediate.
            Role::Receiver => {
                let (slots, owed) = (SLOTS as u32, if striped { u32::from(lanes) } else { 1 });
                let lane_receive = if planted(Plant::LaneStarved) { slots / 16 } else { slots };
                Self { send: 4 * CTS_SIGNAL_EVERY, receive: slots * owed, lane_receive }
            }
        }
    }
}

/// Work requests of the longest chain for one slot on one lane, when one buffer takes at most `writes` of them.
pub(crate) fn longest_chain(writes: u32) -> u32 {
    MAX_BUFFERS as u32 * writes + 1
}

/// Registers a region on a rail's domain.
pub(crate) fn register<F: Fabric>(
    domain: &F::Domain,
    region: &Arc<Region>,
    access: Access,
) -> Result<F::Registration, Error> {
    domain.register(Memory::from_region(region), access).map_err(Error::from)
}

/// A stream's registration on one rail and its keys.
pub(crate) fn keys<R: Registration>(registration: &R) -> (u32, u32) {
    (registration.local_key(), registration.remote_key())
}

/// Weights of the rails: what the options give the local port, else the slower of both ports' speeds, shared evenly
/// among the rails of one port. Scaled so that sharing loses nothing.
pub(crate) fn weights(rails: &[RailPlan]) -> [u32; railweave_fabric::MAX_RAILS] {
    let mut out = [0; railweave_fabric::MAX_RAILS];
    for (weight, rail) in out.iter_mut().zip(rails) {
        let sharing = |key: fn(&RailPlan) -> u8| rails.iter().filter(|other| key(other) == key(rail)).count() as u64;
        let by_local = |value: u64| value * 840 / sharing(|plan| plan.local_port);
        let full = match rail.weight {
            Some(weight) => by_local(u64::from(weight)),
            None => by_local(u64::from(rail.local.speed_mbps.max(1)))
                .min(u64::from(rail.remote.speed_mbps.max(1)) * 840 / sharing(|plan| plan.remote_port)),
        };
        *weight = u32::try_from(full).unwrap_or(u32::MAX);
    }
    out
}

/// A rail as both ends have agreed on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RailPlan {
    pub(crate) local_port: u8,
    pub(crate) remote_port: u8,
    pub(crate) local: PortOffer,
    pub(crate) remote: PortOffer,
    pub(crate) weight: Option<u32>,
    pub(crate) lanes: u8,
}

impl RailPlan {
    pub(crate) fn local_address(&self) -> IpAddr {
        self.local.address.to_canonical()
    }

    pub(crate) fn remote_address(&self) -> IpAddr {
        self.remote.address.to_canonical()
    }

    pub(crate) fn info(&self, index: usize, counters: &CounterSource) -> RailInfo {
        let name = RailName { local: self.local_address().to_string(), remote: self.remote_address().to_string() };
        RailInfo { index, local_port: usize::from(self.local_port), counters: counters(&name), name }
    }
}

/// Where a rail's counters are kept: the process adds up what its connections count.
pub(crate) type CounterSource = Box<dyn Fn(&RailName) -> Arc<RailCounters> + Send>;

/// This end's end points of a rail's lanes, for LANES. Lanes that are sockets have none; zeros say how many there are.
pub(crate) fn endpoints<F: Fabric>(pending: &F::PendingRail, lanes: u8) -> Vec<LaneEndpoint> {
    match F::JOINING {
        Joining::ByExchange { endpoints, .. } => endpoints(pending),
        Joining::BySockets { .. } => vec![LaneEndpoint::default(); usize::from(lanes)],
    }
}

/// What connects a rail's lanes to the peer's end points: [`Joining::ByExchange`].
type Connect<F> = fn(&mut <F as Fabric>::PendingRail, &[LaneEndpoint]) -> Result<Connecting, SetupError>;

/// The peer's end points of a rail that the fabric is still connecting.
pub(crate) struct Exchange<F: Fabric> {
    connect: Connect<F>,
    endpoints: Vec<LaneEndpoint>,
    /// Why it is not connected yet, once it was tried.
    reason: Option<SetupError>,
}

impl<F: Fabric> Exchange<F> {
    pub(crate) fn new(connect: Connect<F>, endpoints: Vec<LaneEndpoint>) -> Self {
        Self { connect, endpoints, reason: None }
    }

    /// Goes on; the pause until the next try, or None once it is connected.
    pub(crate) fn go_on(&mut self, pending: &mut F::PendingRail) -> Result<Option<Duration>, SetupError> {
        match (self.connect)(pending, &self.endpoints)? {
            Connecting::Done => Ok(None),
            Connecting::Later { pause, reason } => {
                self.reason = Some(reason);
                Ok(Some(pause))
            }
        }
    }

    /// Why it is given up when there is no more time.
    pub(crate) fn too_late(&self) -> String {
        let reason = self.reason.as_ref().map_or_else(|| "it was not tried".to_owned(), ToString::to_string);
        format!("Handshake timeout: {reason}; or raise {}", Setting::HandshakeTimeout)
    }
}

/// What the two ends of a handshake keep alike.
pub(crate) struct Common {
    pub(crate) config: ConnectionConfig,
    pub(crate) peer: String,
    pub(crate) deadline_ns: u64,
    pub(crate) counters: CounterSource,
}

impl Common {
    pub(crate) fn timeout_error(&self, waiting_for: &str) -> Error {
        Error::peer(format!(
            "Handshake timeout: {} did not send {waiting_for} in time; check that no firewall blocks TCP between the \
             hosts, that the peer still runs, and raise {} if the hosts are slow",
            self.peer,
            Setting::HandshakeTimeout
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use railweave_fabric::LinkLayer;

    use super::*;

    fn plan(local_port: u8, local: u32, remote_port: u8, remote: u32, weight: Option<u32>) -> RailPlan {
        let port = |speed_mbps| PortOffer {
            link_layer: LinkLayer::Tcp,
            prefix_len: 24,
            lanes: 1,
            speed_mbps,
            mtu: 1500,
            rail_id: -1,
            plane_id: -1,
            address: Ipv6Addr::LOCALHOST,
        };
        RailPlan { local_port, remote_port, local: port(local), remote: port(remote), weight, lanes: 1 }
    }

    #[test]
    fn weights_follow_the_slower_end_unless_they_are_given() {
        let by_speed = weights(&[plan(0, 100_000, 0, 25_000, None), plan(1, 10_000, 1, 10_000, None)]);
        assert_eq!(by_speed[0] * 10, by_speed[1] * 25);
        let given = weights(&[plan(0, 1, 0, 1, Some(3)), plan(1, 9, 1, 9, Some(1)), plan(2, 9, 2, 9, Some(0))]);
        assert_eq!((given[0], given[2]), (3 * given[1], 0));
    }

    #[test]
    fn rails_of_one_port_share_its_weight() {
        let shared = weights(&[plan(0, 200, 0, 100, None), plan(0, 200, 1, 100, None), plan(1, 50, 2, 100, None)]);
        assert_eq!((shared[0], shared[1]), (2 * shared[2], 2 * shared[2]));
    }
}
