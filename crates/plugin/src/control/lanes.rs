//! Dialling and accepting lanes, and accepted sockets that have not said what they are.

use std::net::SocketAddr;

use mio::Token as PollToken;
use mio::net::TcpStream;
use railweave_fabric::RailId;
use railweave_transport::{Dial, LANE_PROOF_BYTES, LanePreface, PREFACE_BYTES, Preface, Redials};

use super::clock::nanoseconds;
use super::connection::Connection;
use super::control_loop::{ControlLoop, Entry};
use super::lane_socket::{BROKE, DialledLane, Inbound, LaneDial, LaneRedial, answer_taken, refused};
use super::rail_inbox::Input;
use super::strangers::Kind;
use super::stream::{Fill, Stream};
use crate::comm::Route;
use crate::descriptors;

/// Each attempt waits for an eighth of the handshake timeout, but at least this long, and at most half of the timeout.
const SHORTEST_PATIENCE_NS: u64 = 1_000_000_000;

/// The time that new lanes of a rail that comes up again have to be dialled (docs/wire.md): the next attempt follows.
const ATTEMPT_NS: u64 = 3_000_000_000;

impl ControlLoop {
    pub(super) fn accept_socket(&mut self, socket: TcpStream, address: SocketAddr) {
        // The listener takes both families and reports IPv4 addresses as mapped ones.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let mut stream = Stream::new(socket);
        let token = self.fresh_token();
        if stream.register(self.registry(), PollToken(token)).is_ok() {
            let (accepted_ns, deadline_ns) = (self.now_ns(), self.deadline_ns());
            self.add_newcomer(token, accepted_ns);
            // Its first bytes are usually there already.
            self.handle_inbound(token, Inbound { stream, address, accepted_ns, deadline_ns });
        }
    }

    pub(super) fn handle_inbound(&mut self, token: usize, mut inbound: Inbound) {
        let filled = inbound.stream.fill(PREFACE_BYTES);
        let Some(bytes) = inbound.stream.input().first_chunk::<PREFACE_BYTES>() else {
            if matches!(filled, Ok(Fill::Open)) {
                self.entries.insert(token, Entry::Inbound(inbound));
                return;
            }
            // A peer that sent nothing only checked that the port is open. One that sent some bytes broke off.
            if !inbound.stream.input().is_empty() {
                let count = inbound.stream.input().len();
                self.report_stranger(
                    Kind::Preface,
                    inbound.address,
                    &format!("closed after {count} of the first {PREFACE_BYTES} bytes"),
                );
            }
            return;
        };
        match Preface::decode(bytes) {
            Err(error) => {
                let text = format!("{error}; the program that connects is not Railweave, or another version of it");
                self.report_stranger(Kind::Preface, inbound.address, &text);
            }
            Ok(Preface::Session) => {
                inbound.stream.consume(PREFACE_BYTES);
                self.accept_session(token, inbound.stream, inbound.address);
            }
            Ok(Preface::Lane(lane)) => self.accept_lane(inbound, lane),
        }
    }

    pub(super) fn handle_inbound_timeout(&mut self, inbound: Inbound) {
        let count = inbound.stream.input().len();
        self.report_stranger(
            Kind::Preface,
            inbound.address,
            &format!("sent only {count} of the first {PREFACE_BYTES} bytes in time"),
        );
    }

    pub(super) fn close_inbound_for_others(&mut self, inbound: Inbound, others: usize) {
        let text = format!("has not said what it is, like {others} others, and more peers wait");
        self.report_stranger(Kind::Preface, inbound.address, &text);
    }

    fn report_stranger(&mut self, kind: Kind, address: SocketAddr, what: &str) {
        let now = self.now_ns();
        self.strangers.report(now, kind, &format!("{address} on the control port: {what}; the socket was closed"));
    }

    fn accept_lane(&mut self, mut inbound: Inbound, lane: LanePreface) {
        let address = inbound.address;
        inbound.stream.consume(PREFACE_BYTES);
        let Some(route) = self.lane_routes.get(&lane.token).copied() else {
            return self.refuse_lane(address, "presented a token that no connection here awaits");
        };
        if !self.key.as_ref().map_or(lane.proof == [0; LANE_PROOF_BYTES], |key| key.is_lane(&lane)) {
            return self.refuse_lane(address, "presented a token without proof that it has the key");
        }
        let inside_host = self.is_inside_host(route.session);
        if inbound.stream.set_congestion(&self.congestion, inside_host).is_err() {
            return self.refuse_lane(address, BROKE);
        }
        self.with_session(route.session, |session, _| session.prove(address.ip()));
        if self.recovery(route).is_some() {
            inbound.stream.deregister(self.registry());
            let (rail, lane, stream) = (lane.rail, lane.lane, inbound.stream);
            return self.recover(route, Input::Lane(Box::new(DialledLane { stream, address, rail, lane })));
        }
        match self.with_handshake(route, |handshake| handshake.awaits_lane(lane.rail, lane.lane)) {
            Some(Ok(())) => {}
            Some(Err(reason)) => return self.refuse_lane(address, &refused(lane.lane, lane.rail, &reason)),
            None => {
                let reason = "no lane is awaited at this point";
                return self.refuse_lane(address, &refused(lane.lane, lane.rail, &reason));
            }
        }
        if inbound.stream.is_closed_by_peer() {
            // The dialler's attempt has timed out, and it dials again.
            return;
        }
        if let Err(broke) = answer_taken(&mut inbound.stream) {
            return self.refuse_lane(address, broke);
        }
        inbound.stream.deregister(self.registry());
        let socket = inbound.stream.into_socket();
        match self.with_handshake(route, |handshake| handshake.handle_lane(lane.rail, lane.lane, socket)) {
            Some(Err(reason)) => self.refuse_lane(address, &refused(lane.lane, lane.rail, &reason)),
            Some(Ok(())) => {
                self.note_setup_step(route);
                self.with_session(route.session, |session, _| session.peer_may_have(route.connection));
            }
            None => {}
        }
    }

    /// Says that a dialled lane was not taken.
    pub(super) fn refuse_lane(&mut self, address: SocketAddr, what: &str) {
        self.report_stranger(Kind::Lane, address, what);
    }

    /// Begins to dial a lane of the connection at `route`, which is being set up.
    pub(super) fn dial_lane(&mut self, route: Route, dial: Dial, port: u16) -> Result<(), String> {
        let handshake_ns = nanoseconds(self.handshake_timeout);
        // A rail whose lanes are closed every time is left out early enough for the other rails to be used.
        let redials = Redials::until(self.now_ns().saturating_add(handshake_ns / 2));
        self.start_lane_dial(route, dial, port, redials, patience_ns(handshake_ns))
    }

    /// Begins to dial a lane of a rail that comes up again.
    pub(super) fn dial_lane_again(&mut self, route: Route, dial: Dial, port: u16) -> Result<(), String> {
        let redials = Redials::until(self.now_ns().saturating_add(ATTEMPT_NS));
        self.start_lane_dial(route, dial, port, redials, SHORTEST_PATIENCE_NS)
    }

    /// Dials a lane again, if its connection is still being set up.
    pub(super) fn redial_lane(&mut self, redial: LaneRedial) {
        let LaneRedial { route, dial, port, redials, patience_ns, .. } = redial;
        if !self.needs_lanes(route) {
            return;
        }
        if let Err(reason) = self.start_lane_dial(route, dial, port, redials, patience_ns) {
            self.hand_dialled(route, dial, Err(reason));
        }
    }

    /// Ends the dials of lanes that a rail of an open connection needs no more. The peer may await those of the next
    /// attempt, and cannot tell one from another.
    pub(super) fn end_lane_dials(&mut self, route: Route, rail: RailId) {
        let is_its = |dialled: Route, dial: &Dial| (dialled, dial.rail) == (route, rail);
        let its = self.entries.iter().filter(|(_, entry)| match entry {
            Entry::LaneDial(entry) => is_its(entry.route, &entry.dial),
            Entry::LaneRedial(entry) => is_its(entry.route, &entry.dial),
            _ => false,
        });
        for token in its.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.entries.remove(&token);
            self.touch(token);
        }
    }

    /// Returns true if a connection is being set up, or is open and may bring a rail up again.
    fn needs_lanes(&mut self, route: Route) -> bool {
        let session = self.session(route.session);
        let connection = session.and_then(|session| session.connections.get(&route.connection));
        matches!(connection, Some(Connection::Setup(_) | Connection::Open { .. }))
    }

    fn start_lane_dial(
        &mut self,
        route: Route,
        dial: Dial,
        port: u16,
        redials: Redials,
        patience_ns: u64,
    ) -> Result<(), String> {
        let remote = SocketAddr::new(dial.remote, port);
        let refused = |error: std::io::Error| {
            format!("{} cannot reach {remote}: {error}{}", dial.local, descriptors::hint(&error))
        };
        let mut stream = Stream::dial(Some(dial.local), remote).map_err(refused)?;
        let inside_host = self.is_inside_host(route.session);
        stream.set_congestion(&self.congestion, inside_host).map_err(refused)?;
        let token = self.fresh_token();
        stream.register(self.registry(), PollToken(token)).map_err(refused)?;
        let deadline_ns = self.now_ns().saturating_add(patience_ns);
        let proof = self
            .key
            .as_ref()
            .map(|key| key.lane_proof(dial.token, dial.rail.index() as u8, dial.lane.0))
            .unwrap_or_default();
        let entry =
            LaneDial { stream, route, dial, proof, remote, presented: false, redials, patience_ns, deadline_ns };
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
                let LaneDial { stream, route, dial, remote, .. } = dial;
                self.with_session(route.session, |session, _| {
                    session.prove(dial.remote);
                    // Its control port listens there, perhaps at an address that the port has had only since.
                    session.learn([remote]);
                });
                let socket = stream.into_socket();
                self.hand_dialled(route, dial, Ok(socket));
            }
            Err(broken) if broken.is_closed => self.redial_lane_later(token, dial, broken.reason),
            Err(broken) => self.fail_lane(&dial, broken.reason),
        }
    }

    pub(super) fn handle_lane_timeout(&mut self, token: usize, dial: LaneDial) {
        // If this process was stopped, the answer may already be in the socket.
        self.handle_lane_dial(token, dial);
        if !matches!(self.entries.get(&token), Some(Entry::LaneDial(_))) {
            return;
        }
        let Some(Entry::LaneDial(dial)) = self.entries.remove(&token) else {
            return;
        };
        let what = if dial.presented { "did not answer" } else { "cannot be reached" };
        let reason = format!("{} {what} from {} in time; check routes and firewalls", dial.remote, dial.dial.local);
        self.redial_lane_later(token, dial, reason);
    }

    /// Dials a lane again after a pause, or gives it up for this reason after the last attempt.
    fn redial_lane_later(&mut self, token: usize, dial: LaneDial, reason: String) {
        let mut redials = dial.redials;
        let Some(at_ns) = redials.next_ns(self.now_ns()) else {
            return self.fail_lane(&dial, reason);
        };
        let LaneDial { route, dial, remote, patience_ns, .. } = dial;
        let redial = LaneRedial { route, dial, port: remote.port(), redials, patience_ns, at_ns };
        self.entries.insert(token, Entry::LaneRedial(redial));
        self.touch(token);
    }

    fn fail_lane(&mut self, dial: &LaneDial, reason: String) {
        self.hand_dialled(dial.route, dial.dial, Err(reason));
    }
}

/// Returns the time that one attempt waits for its answer. A rail without an answer is left out before the handshake
/// itself times out.
fn patience_ns(handshake_timeout_ns: u64) -> u64 {
    (handshake_timeout_ns / 8).max(SHORTEST_PATIENCE_NS).min(handshake_timeout_ns / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_of_a_lane_leaves_time_to_do_without_its_rail() {
        for (timeout_ms, patience_ms) in [(100, 50), (1000, 500), (2000, 1000), (8000, 1000), (30_000, 3750)] {
            assert_eq!(patience_ns(timeout_ms * 1_000_000), patience_ms * 1_000_000, "{timeout_ms} ms");
        }
    }
}
