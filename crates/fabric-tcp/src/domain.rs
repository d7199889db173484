//! The domain of a local address, and rails whose sockets are still coming.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Domain, Fault, LaneId, MAX_LANES, Memory, PendingRail, RailSpec, RegisterError, SetupError,
};

use crate::keys::{KEY_CAPACITY, KeyTable};
use crate::socket::{Socket, SocketOptions};
use crate::{Tcp, TcpRail, TcpRegistration};

/// The longest send queue, and the largest pool of receives: more than any connection needs, little enough to allocate.
const DEPTH_LIMIT: u32 = 1 << 16;

/// How a domain's sockets are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Size of the kernel's buffers per socket and direction in bytes. None leaves it to the kernel, which then adapts
    /// it to the path; a fixed size ends that, and is cut to `net.core.wmem_max` and `net.core.rmem_max`.
    pub socket_buffer: Option<u32>,
    /// After how long without an answer from the peer's host a lane fails; a peer whose host answers may read nothing for
    /// as long as it likes. Noticed when the lane is polled. None leaves the kernel's own limits, about 15 minutes.
    pub peer_timeout: Option<Duration>,
    /// Traffic class of every packet; None takes the connection's.
    pub traffic_class: Option<u8>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self { socket_buffer: None, peer_timeout: Some(Duration::from_secs(60)), traffic_class: None }
    }
}

/// Where memory is registered for one local address.
pub struct TcpDomain {
    config: TcpConfig,
    keys: Arc<KeyTable>,
}

impl TcpDomain {
    /// A domain without registrations.
    pub fn new(config: TcpConfig) -> Arc<Self> {
        Arc::new(Self { config, keys: KeyTable::new(KEY_CAPACITY) })
    }
}

impl Domain for TcpDomain {
    type Fabric = Tcp;

    fn register(&self, memory: Memory, access: Access) -> Result<TcpRegistration, RegisterError> {
        self.keys.register(memory, access)
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<TcpPendingRail, SetupError> {
        let lanes = usize::from(spec.lanes);
        if lanes == 0 || lanes > MAX_LANES {
            return Err(wrong(format!("a rail of {lanes} lanes; 1 to {MAX_LANES} are allowed")));
        }
        if spec.send_depth == 0 || spec.send_depth > DEPTH_LIMIT {
            return Err(wrong(format!("a send queue of {}; 1 to {DEPTH_LIMIT} are allowed", spec.send_depth)));
        }
        if spec.receive_depth > DEPTH_LIMIT {
            return Err(wrong(format!("a pool of {} receives; 0 to {DEPTH_LIMIT} are allowed", spec.receive_depth)));
        }
        let options = SocketOptions {
            buffer: self.config.socket_buffer,
            peer_timeout: self.config.peer_timeout,
            traffic_class: self.config.traffic_class.or(spec.traffic_class),
        };
        let sockets = (0..lanes).map(|_| None).collect();
        Ok(TcpPendingRail { spec: spec.clone(), options, keys: Arc::clone(&self.keys), sockets })
    }
}

/// A rail that waits for its sockets ([`TcpPendingRail::attach`]).
pub struct TcpPendingRail {
    spec: RailSpec,
    options: SocketOptions,
    keys: Arc<KeyTable>,
    /// One per lane.
    sockets: Vec<Option<Socket>>,
}

impl TcpPendingRail {
    /// Returns true if this lane of the rail has no socket, or one that the peer has closed.
    pub fn awaits_socket(&self, lane: LaneId) -> bool {
        let place = self.sockets.get(lane.index());
        place.is_some_and(|place| place.as_ref().is_none_or(Socket::is_closed_by_peer))
    }

    /// Hands over the connected socket of a lane that [awaits](Self::awaits_socket) one, in place of a closed one.
    ///
    /// # Errors
    /// When the lane does not exist, has a socket that the peer has not closed, or the socket cannot be configured.
    pub fn attach(&mut self, lane: LaneId, socket: OwnedFd) -> Result<(), SetupError> {
        let lanes = self.sockets.len();
        if lane.index() >= lanes {
            return Err(misused(format!("a socket for lane {lane} of a rail with {lanes} lanes, counted from 0")));
        }
        if !self.awaits_socket(lane) {
            return Err(misused(format!("a second socket for lane {lane}, whose first is open")));
        }
        let socket = Socket::open(socket, &self.options).map_err(|(step, error)| SetupError {
            fault: if error.raw_os_error() == Some(libc::ENOTCONN) { Fault::Peer } else { Fault::Local },
            message: format!(
                "the socket of lane {lane} could not be set up: {step}: {error}; if the peer has closed it, see \
                 the peer's log"
            ),
        })?;
        self.sockets[lane.index()] = Some(socket);
        Ok(())
    }
}

impl PendingRail for TcpPendingRail {
    type Fabric = Tcp;

    fn is_ready(&self) -> bool {
        self.sockets.iter().all(Option::is_some)
    }

    fn into_rail(self) -> Result<TcpRail, SetupError> {
        let missing = self.sockets.iter().position(Option::is_none);
        if let Some(lane) = missing {
            return Err(misused(format!("lane {lane} has no socket yet; attach one per lane first")));
        }
        let sockets = self.sockets.into_iter().flatten().collect();
        Ok(TcpRail::new(sockets, &self.spec, self.options.peer_timeout, self.keys))
    }
}

fn wrong(message: String) -> SetupError {
    SetupError { fault: Fault::Configuration, message }
}

fn misused(message: String) -> SetupError {
    SetupError { fault: Fault::Protocol, message }
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

    fn refusal<T>(result: Result<T, SetupError>) -> String {
        result.err().expect("refused").message
    }

    #[test]
    fn specifications_outside_the_limits_are_refused() {
        let domain = TcpDomain::new(TcpConfig::default());
        let open = |spec: RailSpec| refusal(domain.open_rail(&spec));
        assert_eq!(open(RailSpec { lanes: 0, ..SPEC }), "a rail of 0 lanes; 1 to 16 are allowed");
        assert_eq!(open(RailSpec { lanes: 17, ..SPEC }), "a rail of 17 lanes; 1 to 16 are allowed");
        assert_eq!(open(RailSpec { send_depth: 0, ..SPEC }), "a send queue of 0; 1 to 65536 are allowed");
        assert!(open(RailSpec { send_depth: u32::MAX, ..SPEC }).contains("4294967295"));
        assert!(open(RailSpec { receive_depth: u32::MAX, ..SPEC }).contains("4294967295"));
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
        assert_eq!(refusal(again), "a second socket for lane 0, whose first is open");
        let beyond = pending.attach(LaneId(2), TcpStream::connect(address).unwrap().into());
        assert!(refusal(beyond).contains("lane 2 of a rail with 2 lanes"));
        pending.attach(LaneId(1), TcpStream::connect(address).unwrap().into()).unwrap();
        assert!(pending.is_ready());
        let rail = pending.into_rail().unwrap();
        assert_eq!(rail.describe(), format!("{local} - {address}"));
        assert_eq!((rail.lanes(), rail.send_room(LaneId(1)), rail.send_room(LaneId(2))), (2, 4, 0));

        let missing = domain.open_rail(&SPEC).unwrap().into_rail();
        assert!(refusal(missing).contains("lane 0 has no socket"));
        let mut pending = domain.open_rail(&SPEC).unwrap();
        assert!(refusal(pending.attach(LaneId(0), listener.into())).contains("getpeername"));
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
        // With bytes that nobody has read before its end.
        let (mut theirs, ours) = dial();
        theirs.write_all(b"unread").unwrap();
        pending.attach(LaneId(0), ours.into()).unwrap();
        assert!(!pending.awaits_socket(LaneId(0)));
        drop(theirs);
        until("the end of the first", || pending.awaits_socket(LaneId(0)).then_some(()));
        // Reset: its peer has left bytes unread.
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
