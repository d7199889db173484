//! The domain of a local address, and rails that wait for their sockets.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Domain, LaneId, MAX_LANES, Memory, Part, PendingRail, Piece, ProcessorClock, RailSpec, RegisterError,
    SetupError,
};

use crate::keys::{KEY_CAPACITY, KeyTable, TcpRegistration};
use crate::rail::TcpRail;
use crate::socket::{Socket, SocketOptions};
use crate::tcp::Tcp;

/// The longest send queue and the largest pool of receives: more than any connection needs, yet cheap to allocate.
const DEPTH_LIMIT: u32 = 1 << 16;

/// The options of a domain's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Size of the kernel's buffers in bytes, per socket and direction. `None` lets the kernel adapt it to the path. A
    /// fixed size turns that off, and is limited by `net.core.wmem_max` and `net.core.rmem_max`.
    pub socket_buffer: Option<u32>,
    /// Time without an answer from the peer's host after which a lane fails; a peer whose host answers may pause
    /// reading for as long as it likes. Checked when the lane is polled. `None` leaves the kernel's own limits, about
    /// 15 minutes.
    pub peer_timeout: Option<Duration>,
    /// Traffic class of every packet; `None` uses the class that the connection asks for.
    pub traffic_class: Option<u8>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self { socket_buffer: None, peer_timeout: Some(Duration::from_secs(60)), traffic_class: None }
    }
}

/// The network interface that has a local address.
#[derive(Clone)]
pub struct TcpLink {
    /// The interface, as its events name it.
    pub part: Part,
    /// Returns false if its link is known to be down, or the address to be gone.
    pub is_up: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Returns the address that it has now instead; `None` if it is not known to have another one. It is asked between
    /// two calls of NCCL, so it may not wait for the kernel.
    pub other_address: Arc<dyn Fn() -> Option<IpAddr> + Send + Sync>,
}

/// The place where memory is registered for one local address.
pub struct TcpDomain {
    config: TcpConfig,
    link: Option<TcpLink>,
    keys: Arc<KeyTable>,
}

impl TcpDomain {
    /// Makes a domain without registrations, for an address whose interface nobody knows.
    pub fn new(config: TcpConfig) -> Arc<Self> {
        Self::over(config, None)
    }

    /// Makes a domain without registrations, for an address of this interface, if it is known.
    pub fn over(config: TcpConfig, link: Option<TcpLink>) -> Arc<Self> {
        Arc::new(Self { config, link, keys: KeyTable::new(KEY_CAPACITY) })
    }
}

impl Domain for TcpDomain {
    type Fabric = Tcp;

    fn register(&self, memory: Memory, access: Access) -> Result<TcpRegistration, RegisterError> {
        self.keys.register(memory, access)
    }

    fn is_link_up(&self) -> bool {
        self.link.as_ref().is_none_or(|link| (link.is_up)())
    }

    fn clock(&self) -> ProcessorClock {
        ProcessorClock
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<TcpPendingRail, SetupError> {
        let lanes = usize::from(spec.lanes);
        if lanes == 0 || lanes > MAX_LANES {
            return Err(SetupError::LaneCount { lanes, most: MAX_LANES });
        }
        if spec.send_depth == 0 || spec.send_depth > DEPTH_LIMIT {
            return Err(SetupError::SendQueue { depth: spec.send_depth, most: DEPTH_LIMIT });
        }
        if spec.receive_depth > DEPTH_LIMIT {
            return Err(SetupError::ReceivePool { count: spec.receive_depth, most: DEPTH_LIMIT });
        }
        let options = SocketOptions {
            buffer: self.config.socket_buffer,
            peer_timeout: self.config.peer_timeout,
            traffic_class: self.config.traffic_class.or(spec.traffic_class),
        };
        let sockets = (0..lanes).map(|_| None).collect();
        let (keys, link) = (Arc::clone(&self.keys), self.link.clone());
        Ok(TcpPendingRail { spec: spec.clone(), options, keys, link, sockets })
    }
}

/// A rail that waits for its sockets ([`TcpPendingRail::attach`]).
pub struct TcpPendingRail {
    spec: RailSpec,
    options: SocketOptions,
    keys: Arc<KeyTable>,
    link: Option<TcpLink>,
    /// One per lane.
    sockets: Vec<Option<Socket>>,
}

impl TcpPendingRail {
    /// Returns true if this lane of the rail has no socket, or one that the peer has closed.
    pub fn awaits_socket(&self, lane: LaneId) -> bool {
        let place = self.sockets.get(lane.index());
        place.is_some_and(|place| place.as_ref().is_none_or(Socket::is_closed_by_peer))
    }

    /// Returns the address that the interface has now instead of the domain's; `None` if it is not known to have
    /// another one.
    pub fn address(&self) -> Option<IpAddr> {
        self.link.as_ref().and_then(|link| (link.other_address)())
    }

    /// Hands over the connected socket of a lane that [awaits](Self::awaits_socket) one; it replaces a closed one.
    ///
    /// # Errors
    /// If the lane does not exist, if it has a socket that the peer has not closed, or if the socket cannot be
    /// configured.
    pub fn attach(&mut self, lane: LaneId, socket: OwnedFd) -> Result<(), SetupError> {
        let lanes = self.sockets.len();
        if lane.index() >= lanes {
            return Err(SetupError::NoSuchLane { lane, lanes });
        }
        if !self.awaits_socket(lane) {
            return Err(SetupError::SecondSocket(lane));
        }
        let socket = Socket::open(socket, &self.options).map_err(|(step, error)| {
            // Errors of a socket's system calls always have an error number.
            SetupError::Socket { lane, step, errno: error.raw_os_error().unwrap_or(libc::EIO) }
        })?;
        self.sockets[lane.index()] = Some(socket);
        Ok(())
    }
}

impl PendingRail for TcpPendingRail {
    type Fabric = Tcp;

    fn parts(&self) -> Vec<Part> {
        self.link.iter().map(|link| link.part.clone()).collect()
    }

    fn is_ready(&self) -> bool {
        self.sockets.iter().all(Option::is_some)
    }

    fn into_rail(self) -> Result<TcpRail, SetupError> {
        let missing = self.sockets.iter().position(Option::is_none);
        if let Some(lane) = missing {
            return Err(SetupError::NoSocket(LaneId::at(lane)));
        }
        let mut parts = self.parts();
        let sockets: Vec<Socket> = self.sockets.into_iter().flatten().collect();
        // The address may be another one than the domain's, and the interface may lose it while its link is up.
        if let (Some(link), Some(socket)) = (&self.link, sockets.first()) {
            let piece = Piece::Address(socket.local().ip().to_canonical());
            parts.push(Part { device: Arc::clone(&link.part.device), piece });
        }
        Ok(TcpRail::new(sockets, &self.spec, self.options.peer_timeout, self.keys, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use railweave_fabric::{Rail, Role};
    use railweave_patience::until;

    const SPEC: RailSpec = RailSpec {
        role: Role::Sender,
        lanes: 2,
        send_depth: 4,
        receive_depth: 4,
        lane_receives: 4,
        traffic_class: None,
        peer: None,
    };

    fn refusal<T>(result: Result<T, SetupError>) -> SetupError {
        result.err().expect("refused")
    }

    #[test]
    fn specifications_outside_the_limits_are_refused() {
        let domain = TcpDomain::new(TcpConfig::default());
        let open = |spec: RailSpec| refusal(domain.open_rail(&spec));
        for lanes in [0, 17] {
            let refused = open(RailSpec { lanes, ..SPEC });
            assert_eq!(refused, SetupError::LaneCount { lanes: lanes.into(), most: 16 });
        }
        for depth in [0, u32::MAX] {
            let refused = open(RailSpec { send_depth: depth, ..SPEC });
            assert_eq!(refused, SetupError::SendQueue { depth, most: 65_536 });
        }
        let refused = open(RailSpec { receive_depth: u32::MAX, ..SPEC });
        assert_eq!(refused, SetupError::ReceivePool { count: u32::MAX, most: 65_536 });
    }

    #[test]
    fn a_rail_is_ready_when_every_lane_has_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let domain = TcpDomain::new(TcpConfig::default());
        let mut pending = domain.open_rail(&SPEC).unwrap();
        let first = TcpStream::connect(address).unwrap();
        let local = first.local_addr().unwrap();
        pending.attach(LaneId(0), first.into()).unwrap();
        assert!(!pending.is_ready());
        let again = pending.attach(LaneId(0), TcpStream::connect(address).unwrap().into());
        assert_eq!(refusal(again), SetupError::SecondSocket(LaneId(0)));
        let beyond = pending.attach(LaneId(2), TcpStream::connect(address).unwrap().into());
        assert_eq!(refusal(beyond), SetupError::NoSuchLane { lane: LaneId(2), lanes: 2 });
        pending.attach(LaneId(1), TcpStream::connect(address).unwrap().into()).unwrap();
        assert!(pending.is_ready());
        let rail = pending.into_rail().unwrap();
        assert_eq!(rail.describe(), format!("{local} - {address}"));
        assert_eq!(rail.ends(), Some((local.ip(), address.ip())));
        assert_eq!((rail.lanes(), rail.send_room(LaneId(1)), rail.send_room(LaneId(2))), (2, 4, 0));

        let missing = domain.open_rail(&SPEC).unwrap().into_rail();
        assert_eq!(refusal(missing), SetupError::NoSocket(LaneId(0)));
        let mut pending = domain.open_rail(&SPEC).unwrap();
        let refused = refusal(pending.attach(LaneId(0), listener.into()));
        let (lane, step, errno) = (LaneId(0), "getpeername", libc::ENOTCONN);
        assert_eq!(refused, SetupError::Socket { lane, step, errno });
    }

    #[test]
    fn a_socket_that_the_peer_has_closed_makes_way_for_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let dial = || {
            let socket = TcpStream::connect(address).unwrap();
            (socket, listener.accept().unwrap().0)
        };
        let mut pending = TcpDomain::new(TcpConfig::default()).open_rail(&RailSpec { lanes: 1, ..SPEC }).unwrap();
        assert!(pending.awaits_socket(LaneId(0)) && !pending.awaits_socket(LaneId(1)));
        // Closed, with unread bytes before its end.
        let (mut theirs, ours) = dial();
        theirs.write_all(b"unread").unwrap();
        pending.attach(LaneId(0), ours.into()).unwrap();
        assert!(!pending.awaits_socket(LaneId(0)));
        drop(theirs);
        until("the end of the first", || pending.awaits_socket(LaneId(0)).then_some(()));
        // Reset, because its peer has left bytes unread.
        let (theirs, mut ours) = dial();
        ours.write_all(b"unread").unwrap();
        pending.attach(LaneId(0), ours.into()).unwrap();
        until("its bytes", || (theirs.peek(&mut [0; 6]).unwrap() == 6).then_some(()));
        assert!(!pending.awaits_socket(LaneId(0)));
        drop(theirs);
        until("the reset of the second", || pending.awaits_socket(LaneId(0)).then_some(()));
        let (theirs, ours) = dial();
        pending.attach(LaneId(0), ours.into()).unwrap();
        assert!(pending.is_ready() && !pending.awaits_socket(LaneId(0)));
        let rail = pending.into_rail().unwrap();
        assert_eq!(rail.describe(), format!("{address} - {}", theirs.local_addr().unwrap()));
    }
}
