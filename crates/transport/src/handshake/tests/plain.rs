//! A fabric that only has a set-up: its rails come up, or not, as their port says, and carry nothing but the first
//! packets.

#![allow(clippy::disallowed_types, reason = "tests are not the data path")]

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use railweave_fabric::{
    Access, ClosedAt, Connecting, Domain, Ended, Fabric, Joining, LaneEndpoint, LaneId, LinkLayer, Memory, Part,
    PendingRail, Piece, PostError, ProcessorClock, Rail, RailError, RailSpec, RegisterError, Registration, RemoteSlice,
    Reports, SetupError, WorkId, Write,
};

use super::super::HandshakePort;
use crate::PortOffer;

/// The fabric. Its lanes are sockets, or are connected by end points.
pub(super) struct Plain<const SOCKETS: bool>;

impl<const SOCKETS: bool> Fabric for Plain<SOCKETS> {
    const NAME: &'static str = "plain";
    const ONE_SIDED: bool = !SOCKETS;
    const JOINING: Joining<Pending<SOCKETS>> = if SOCKETS {
        Joining::BySockets { awaits: Pending::awaits_socket, attach: Pending::attach, address: Pending::address }
    } else {
        Joining::ByExchange { endpoints: Pending::endpoints, connect: Pending::connect }
    };
    type Domain = Port<SOCKETS>;
    type PendingRail = Pending<SOCKETS>;
    type Rail = Open;
    type Registration = Key;
    type Clock = ProcessorClock;
}

/// The writes over a port, with the lane of each.
pub(super) type Writes = Arc<Mutex<Vec<(LaneId, Write)>>>;

/// A port, and the way in which its rails come up.
#[derive(Clone)]
pub(super) struct Port<const SOCKETS: bool> {
    /// Names the port, and is part of its address, its end points and its keys.
    pub(super) number: u8,
    pub(super) lanes: u8,
    pub(super) byte_counts: bool,
    /// True if no rail can be opened.
    pub(super) is_full: bool,
    /// True if no lane can be connected, or take its socket.
    pub(super) is_deaf: bool,
    /// The pauses before a rail is connected, in milliseconds, each asked for by one attempt.
    pub(super) pauses: &'static [u64],
    /// The fate of the first packets.
    pub(super) packets: Packets,
    /// The MTU that it offers.
    pub(super) mtu: u32,
    /// The writes over it, with the lane of each.
    pub(super) writes: Writes,
    /// Each registration has a copy.
    pub(super) registrations: Arc<()>,
}

impl<const SOCKETS: bool> Port<SOCKETS> {
    /// Returns a port whose rails come up at once.
    pub(super) fn new(number: u8, lanes: u8) -> Self {
        Self {
            number,
            lanes,
            byte_counts: true,
            is_full: false,
            is_deaf: false,
            pauses: &[],
            packets: Packets::Carried,
            mtu: 1500,
            writes: Arc::default(),
            registrations: Arc::default(),
        }
    }

    /// Returns the number of registrations that its copies have made, and that were not dropped.
    pub(super) fn registered(&self) -> usize {
        // Each copy of the port has one too: the test's, and its domain.
        Arc::strong_count(&self.registrations) - 2
    }

    /// Returns its address: an IPv4 address, as such offers have it.
    pub(super) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self.number)
    }

    /// Returns the port as a handshake takes it.
    pub(super) fn offered(self) -> HandshakePort<Plain<SOCKETS>> {
        let offer = PortOffer {
            link_layer: LinkLayer::Tcp,
            prefix_len: 24,
            lanes: self.lanes,
            speed_mbps: 1000,
            mtu: self.mtu,
            rail_id: -1,
            plane_id: -1,
            address: self.address().to_ipv6_mapped(),
        };
        HandshakePort { offer, domain: Arc::new(self), weight: None, fixed: None }
    }

    /// Returns the only part of its rails.
    pub(super) fn part(&self) -> Part {
        Part { device: format!("port{}", self.number).into(), piece: Piece::Device }
    }

    /// Returns the error of every call that this port refuses. This host is at fault.
    pub(super) fn refusal(&self) -> SetupError {
        SetupError::PortDown { port: format!("port{}", self.number), state: "scripted" }
    }
}

/// The key of registered memory.
pub(super) struct Key(u32, #[expect(dead_code, reason = "it is counted")] Arc<()>);

impl Registration for Key {
    fn local_key(&self) -> u32 {
        self.0
    }

    fn remote_key(&self) -> u32 {
        self.0
    }
}

impl<const SOCKETS: bool> Domain for Port<SOCKETS> {
    type Fabric = Plain<SOCKETS>;

    fn register(&self, _memory: Memory, access: Access) -> Result<Key, RegisterError> {
        Ok(Key(u32::from(self.number) * 10 + u32::from(access.remote_write), Arc::clone(&self.registrations)))
    }

    fn byte_counts(&self) -> bool {
        self.byte_counts
    }

    fn clock(&self) -> ProcessorClock {
        ProcessorClock
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<Pending<SOCKETS>, SetupError> {
        if self.is_full {
            return Err(self.refusal());
        }
        let sockets = (0..spec.lanes).map(|_| None).collect();
        Ok(Pending { port: Arc::clone(self), spec: spec.clone(), attempts: 0, is_connected: false, sockets })
    }
}

/// A rail while it comes up.
pub(super) struct Pending<const SOCKETS: bool> {
    port: Arc<Port<SOCKETS>>,
    spec: RailSpec,
    attempts: usize,
    is_connected: bool,
    sockets: Vec<Option<UnixStream>>,
}

impl<const SOCKETS: bool> Pending<SOCKETS> {
    fn endpoints(&self) -> Vec<LaneEndpoint> {
        vec![LaneEndpoint([self.port.number; LaneEndpoint::BYTES]); usize::from(self.spec.lanes)]
    }

    fn connect(&mut self, remote: &[LaneEndpoint]) -> Result<Connecting, SetupError> {
        assert_eq!(remote.len(), usize::from(self.spec.lanes), "one end point per lane");
        assert!(!self.is_connected, "a rail is connected once");
        if self.port.is_deaf {
            return Err(self.port.refusal());
        }
        let Some(pause) = self.port.pauses.get(self.attempts) else {
            self.is_connected = true;
            return Ok(Connecting::Done);
        };
        self.attempts += 1;
        Ok(Connecting::Later { pause: Duration::from_millis(*pause), reason: self.port.refusal() })
    }

    fn awaits_socket(&self, lane: LaneId) -> bool {
        self.sockets[lane.index()].as_ref().is_none_or(|mut socket| {
            socket.set_nonblocking(true).expect("it is a socket");
            match socket.read(&mut [0]) {
                Ok(count) => count == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            }
        })
    }

    #[expect(clippy::unused_self, reason = "Joining names it as a method of a pending rail")]
    fn address(&self) -> Option<IpAddr> {
        None
    }

    fn attach(&mut self, lane: LaneId, socket: OwnedFd) -> Result<(), SetupError> {
        assert!(self.awaits_socket(lane), "a socket comes for a lane that awaits one");
        if self.port.is_deaf {
            return Err(self.port.refusal());
        }
        self.sockets[lane.index()] = Some(socket.into());
        Ok(())
    }
}

impl<const SOCKETS: bool> PendingRail for Pending<SOCKETS> {
    type Fabric = Plain<SOCKETS>;

    fn parts(&self) -> Vec<Part> {
        vec![self.port.part()]
    }

    fn is_ready(&self) -> bool {
        self.is_connected || self.sockets.iter().all(Option::is_some)
    }

    fn into_rail(self) -> Result<Open, SetupError> {
        if !self.is_ready() {
            return Err(self.port.refusal());
        }
        let Port { packets, writes, .. } = &*self.port;
        Ok(Open {
            lanes: self.spec.lanes,
            packets: *packets,
            writes: Arc::clone(writes),
            part: self.port.part(),
            unreported: 0,
        })
    }
}

/// The fate of the packets over a rail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Packets {
    Carried,
    /// They come through once there are as many writes.
    CarriedWith(usize),
    Lost,
    /// The lane fails.
    Broken,
}

/// A rail, which carries nothing but packets of a set-up.
pub(super) struct Open {
    lanes: u8,
    packets: Packets,
    writes: Writes,
    part: Part,
    unreported: usize,
}

impl Rail for Open {
    fn lanes(&self) -> u8 {
        self.lanes
    }

    fn send_room(&self, _lane: LaneId) -> u32 {
        u32::MAX
    }

    fn max_write(&self) -> u32 {
        1 << 30
    }

    fn is_broken(&self, _lane: LaneId) -> bool {
        false
    }

    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        self.writes.lock().unwrap().extend(chain.iter().map(|write| (lane, *write)));
        self.unreported += chain.len();
        Ok(())
    }

    fn post_flush(&mut self, _target: RemoteSlice, _id: WorkId) -> Result<(), PostError> {
        Ok(())
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        Ok(count)
    }

    fn report(&mut self, _most: usize, reports: &mut impl Reports) -> bool {
        let is_carried = match self.packets {
            Packets::Carried => true,
            Packets::CarriedWith(writes) => self.writes.lock().unwrap().len() >= writes,
            Packets::Lost => false,
            Packets::Broken => {
                reports.handle_failed(LaneId::FIRST, None, Box::new(RailError::PeerClosed(ClosedAt::Rest(0))));
                return true;
            }
        };
        let count = if is_carried { std::mem::take(&mut self.unreported) } else { 0 };
        (0..count).for_each(|_| reports.handle_sent(WorkId(0)));
        count > 0
    }

    fn parts(&self) -> Vec<Part> {
        vec![self.part.clone()]
    }

    fn end(self, _flushes: &[RemoteSlice], _reports: &mut impl Reports) -> Ended {
        Ended::whole()
    }

    fn describe(&self) -> String {
        "plain".to_owned()
    }
}
