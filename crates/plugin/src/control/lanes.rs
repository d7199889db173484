//! Sockets that are, or are to become, lanes; and accepted sockets that have not said what they are.

use std::net::SocketAddr;

use mio::Token as PollToken;
use mio::net::TcpStream;
use railweave_transport::{Dial, LANE_PROOF_BYTES, LanePreface, PREFACE_BYTES, Preface};

use super::Route;
use super::heartbeat::Heartbeat;
use super::sessions::Session;
use super::strangers::Kind;
use super::stream::{Fill, Stream};
use super::thread::{Entry, Thread};
use crate::descriptors;

/// What the acceptor of a lane answers: it is taken.
const LANE_TAKEN: [u8; 8] = *b"RWLNTKN1";

/// An accepted socket that has not said what it is.
pub(super) struct Inbound {
    stream: Stream,
    address: SocketAddr,
    pub(super) accepted_ns: u64,
    pub(super) deadline_ns: u64,
}

/// A lane that this side dials.
pub(super) struct LaneDial {
    stream: Stream,
    route: Route,
    dial: Dial,
    proof: [u8; LANE_PROOF_BYTES],
    remote: SocketAddr,
    presented: bool,
    pub(super) deadline_ns: u64,
}

impl Thread {
    pub(super) fn accept_socket(&mut self, socket: TcpStream, address: SocketAddr) {
        // The listener takes both families, and shows IPv4 addresses as mapped ones.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let mut stream = Stream::new(socket);
        let token = self.fresh_token();
        if stream.register(self.registry(), PollToken(token)).is_ok() {
            let (accepted_ns, deadline_ns) = (self.now_ns(), self.deadline_ns());
            self.welcome(token, accepted_ns);
            self.entries.insert(token, Entry::Inbound(Inbound { stream, address, accepted_ns, deadline_ns }));
        }
    }

    pub(super) fn handle_inbound(&mut self, token: usize, mut inbound: Inbound) {
        let filled = inbound.stream.fill(PREFACE_BYTES);
        let Some(bytes) = inbound.stream.input().first_chunk::<PREFACE_BYTES>() else {
            if matches!(filled, Ok(Fill::Open)) {
                self.entries.insert(token, Entry::Inbound(inbound));
                return;
            }
            // Whoever sent not even a byte looked whether the port is open; whoever sent some, broke off.
            if !inbound.stream.input().is_empty() {
                let count = inbound.stream.input().len();
                self.stranger(
                    Kind::Preface,
                    inbound.address,
                    &format!("closed after {count} of the {PREFACE_BYTES} first bytes"),
                );
            }
            return;
        };
        match Preface::decode(bytes) {
            Err(error) => {
                let text = format!("{error}; whoever connects there is not Railweave, or of another version");
                self.stranger(Kind::Preface, inbound.address, &text);
            }
            Ok(Preface::Session) => {
                inbound.stream.consume(PREFACE_BYTES);
                let heartbeat = Heartbeat::new(self.peer_timeout, self.now_ns());
                let now = self.now_ns();
                let session =
                    Box::new(Session::new(inbound.stream, inbound.address, now, self.deadline_ns(), heartbeat));
                self.begin_session(token, session);
            }
            Ok(Preface::Lane(lane)) => self.accept_lane(inbound, lane),
        }
    }

    pub(super) fn inbound_too_late(&mut self, inbound: Inbound) {
        let count = inbound.stream.input().len();
        self.stranger(
            Kind::Preface,
            inbound.address,
            &format!("sent {count} of the {PREFACE_BYTES} first bytes in time"),
        );
    }

    pub(super) fn inbound_makes_place(&mut self, inbound: Inbound, others: usize) {
        let text = format!("has not said what it is, as {others} others, while more wait");
        self.stranger(Kind::Preface, inbound.address, &text);
    }

    fn stranger(&mut self, kind: Kind, address: SocketAddr, what: &str) {
        let now = self.now_ns();
        self.strangers.report(now, kind, &format!("{address} on the control port: {what}; the socket was closed"));
    }

    fn accept_lane(&mut self, mut inbound: Inbound, lane: LanePreface) {
        let address = inbound.address;
        inbound.stream.consume(PREFACE_BYTES);
        let Some(route) = self.lanes.get(&lane.token).copied() else {
            return self.stranger(Kind::Lane, address, "presented a token that no connection here awaits");
        };
        if !self.key.as_ref().map_or(lane.proof == [0; LANE_PROOF_BYTES], |key| key.is_lane(&lane)) {
            return self.stranger(Kind::Lane, address, "presented a token without the proof that it has the key, too");
        }
        let refused = |reason| format!("lane {} of rail {} was refused: {reason}", lane.lane, lane.rail);
        match self.with_handshake(route, |handshake| handshake.awaits_lane(lane.rail, lane.lane)) {
            Some(Ok(())) => {}
            Some(Err(reason)) => return self.stranger(Kind::Lane, address, &refused(reason)),
            None => return self.stranger(Kind::Lane, address, &refused("none is awaited yet, or any more".to_owned())),
        }
        let inside_host = self.is_inside_host(route.session);
        let set = inbound.stream.set_congestion(&self.congestion, inside_host);
        // Eight bytes always fit into a fresh socket's buffer.
        if set.is_err() || inbound.stream.send(&LANE_TAKEN).is_err() || inbound.stream.has_unsent() {
            return self.stranger(Kind::Lane, address, "a lane broke while it was answered");
        }
        inbound.stream.deregister(self.registry());
        let socket = inbound.stream.into_socket();
        let taken = self.with_handshake(route, |handshake| handshake.handle_lane(lane.rail, lane.lane, socket));
        if let Some(Err(reason)) = taken {
            self.stranger(Kind::Lane, address, &refused(reason));
        }
    }

    /// Begins to dial a lane of the connection at `route`.
    pub(super) fn dial_lane(&mut self, route: Route, dial: Dial, port: u16) -> Result<(), String> {
        let remote = SocketAddr::new(dial.remote, port);
        let refused = |error: std::io::Error| {
            format!("{} cannot reach {remote}: {error}{}", dial.local, descriptors::hint(&error))
        };
        let mut stream = Stream::dial(Some(dial.local), remote).map_err(refused)?;
        let inside_host = self.is_inside_host(route.session);
        stream.set_congestion(&self.congestion, inside_host).map_err(refused)?;
        let token = self.fresh_token();
        stream.register(self.registry(), PollToken(token)).map_err(refused)?;
        let deadline_ns = self.deadline_ns();
        let proof = self.key.as_ref().map(|key| key.lane_proof(dial.token, dial.rail, dial.lane)).unwrap_or_default();
        let entry = LaneDial { stream, route, dial, proof, remote, presented: false, deadline_ns };
        self.entries.insert(token, Entry::LaneDial(entry));
        self.touch(token);
        Ok(())
    }

    pub(super) fn handle_lane_dial(&mut self, token: usize, mut dial: LaneDial) {
        match dial.advance() {
            Ok(false) => {
                self.entries.insert(token, Entry::LaneDial(dial));
            }
            Ok(true) => {
                dial.stream.deregister(self.registry());
                let LaneDial { stream, route, dial, .. } = dial;
                let socket = stream.into_socket();
                self.with_handshake(route, |handshake| handshake.handle_dialed(dial.rail, dial.lane, Ok(socket)));
            }
            Err(reason) => self.lane_failed(&dial, reason),
        }
    }

    pub(super) fn lane_too_late(&mut self, dial: LaneDial) {
        let what = if dial.presented { "did not answer" } else { "cannot be reached" };
        let reason = format!("{} {what} from {} in time; check routes and firewalls", dial.remote, dial.dial.local);
        self.lane_failed(&dial, reason);
    }

    fn lane_failed(&mut self, dial: &LaneDial, reason: String) {
        let (rail, lane) = (dial.dial.rail, dial.dial.lane);
        self.with_handshake(dial.route, |handshake| handshake.handle_dialed(rail, lane, Err(reason)));
    }
}

impl LaneDial {
    /// Goes on; true when the lane is there.
    fn advance(&mut self) -> Result<bool, String> {
        let (local, remote) = (self.dial.local, self.remote);
        let broken = |error: std::io::Error| format!("{local} cannot reach {remote}: {error}");
        if !self.presented {
            if !self.stream.is_connected().map_err(broken)? {
                return Ok(false);
            }
            let Dial { token, rail, lane, .. } = self.dial;
            let lane = LanePreface { token, rail, lane, proof: self.proof };
            self.stream.send(&Preface::Lane(lane).encode()).map_err(broken)?;
            self.presented = true;
        }
        self.stream.flush().map_err(broken)?;
        let filled = self.stream.fill(LANE_TAKEN.len()).map_err(broken)?;
        if self.stream.input() == LANE_TAKEN && !self.stream.has_unsent() {
            self.stream.consume(LANE_TAKEN.len());
            return Ok(true);
        }
        if filled == Fill::Closed || self.stream.input().len() == LANE_TAKEN.len() {
            return Err(format!(
                "{remote} did not take the lane from {local}: the peer gave the connection up, or it is none"
            ));
        }
        Ok(false)
    }
}
