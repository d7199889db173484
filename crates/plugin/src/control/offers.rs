//! Turns of set-ups: connects of this process and offers of its peers begin if there is room, and otherwise wait.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use railweave_fabric::Fault;
use railweave_transport::progress::OfferWait;
use railweave_transport::{Error, Message, Offer, Token};

use super::clock::nanoseconds;
use super::command::ConnectRequest;
use super::connection::{Connection, ConnectionSetup};
use super::control_loop::ControlLoop;
use super::setups::{SHORTEST_SILENCE_NS, WaitingOffer};
use crate::comm::Route;

/// Connections that this process sets up at once on one session that it opened.
const MOST_OWN: usize = 512;

/// Connections that a peer may set up at once on one session: twice as many as a peer of this version begins.
const MOST_ON_A_SESSION: usize = 1024;

/// Offers that may wait in this process, and offers of one session that may wait in any case.
const MOST_WAITING: usize = 131_072;
const FEW_WAITING: usize = 16;

/// The refusal of an offer if too many connections of the same listener already wait.
pub(super) const TOO_MANY_UNACCEPTED: &str =
    "too many connections of this listener wait to be accepted; has the process stopped calling accept?";

/// Offers begun in one turn.
const MOST_BEGUN_AT_ONCE: usize = 64;

/// The interval between searches for set-ups that must make room.
const MAKE_ROOM_INTERVAL_NS: u64 = 50_000_000;

/// Peers told in one turn that their offers wait.
const MOST_NOTICES_AT_ONCE: usize = 256;

/// Returns the time that a peer may be silent about its set-ups before they must make room.
fn longest_silence_ns(handshake_timeout: Duration) -> u64 {
    (nanoseconds(handshake_timeout) / 3).max(SHORTEST_SILENCE_NS)
}

impl ControlLoop {
    /// Begins a connection on a session, or queues it behind others, or until the session is up again.
    pub(super) fn begin_or_queue_connect(&mut self, token: usize, request: ConnectRequest) {
        match self.session(token) {
            Some(session) if session.setups.in_progress >= MOST_OWN || session.protocol.is_away() => {
                session.setups.queue_connect(request);
            }
            _ => self.begin_connecting(token, request),
        }
    }

    /// Handles a peer's offer: begins, queues or refuses it.
    pub(super) fn handle_offer(&mut self, token: usize, connection: u32, offer: Offer) {
        let (now, deadline_ns, timeout_ns) = (self.now_ns(), self.deadline_ns(), self.handshake_ns());
        let listener = super::lock(&self.listeners).get(&offer.nonce).cloned();
        let crowded = self.setups.waiting_offers >= MOST_WAITING;
        let is_full = listener.as_ref().is_some_and(|it| it.unaccepted() >= self.setups.most_unaccepted);
        let at_once = self.setups.has_room() && self.setups.sessions_with_offers.is_empty();
        let Some(session) = self.session(token) else {
            return;
        };
        let setups = &mut session.setups;
        let refusal = if listener.is_none() {
            Some("there is no such listener: it was closed, or the handle is from another run")
        } else if is_full {
            Some(TOO_MANY_UNACCEPTED)
        } else if setups.in_progress + setups.offers.len() >= MOST_ON_A_SESSION {
            Some("1024 connections of this session are in set-up or waiting, the most allowed; begin fewer at once")
        } else if crowded && setups.offers.len() >= FEW_WAITING {
            Some("too many connections of all peers wait to be set up; begin fewer at once")
        } else {
            None
        };
        if let Some(reason) = refusal {
            return self.refuse(Route { session: token, connection }, reason);
        }
        if at_once {
            session.note_new_connection(now);
            return self.begin_accepting(token, connection, &offer, deadline_ns);
        }
        let wait = OfferWait::new(timeout_ns, now);
        setups.offers.push_back(WaitingOffer { connection, offer, wait });
        let is_first = setups.offers.len() == 1;
        session.note_new_connection(now);
        self.setups.waiting_offers += 1;
        if listener.is_some_and(|listener| listener.network.may_block()) {
            self.prune_wait_notices();
            self.setups.wait_notices.push_back((wait.first_wait_ns(), Route { session: token, connection }));
        }
        if is_first {
            self.setups.sessions_with_offers.push_back(token);
        }
        self.setups.note_waiting_offer(now);
    }

    pub(super) fn refuse(&mut self, route: Route, reason: &str) {
        let reason = reason.to_owned();
        self.with_session(route.session, |session, now| session.refuse(route.connection, Fault::Protocol, reason, now));
    }

    /// Begins waiting connects and offers, as far as there is room.
    pub(super) fn begin_waiting_setups(&mut self) {
        for token in std::mem::take(&mut self.setups.sessions_with_connects) {
            while let Some(session) = self.session(token)
                && session.setups.in_progress < MOST_OWN
                && !session.protocol.is_away()
                && let Some(request) = session.setups.queued_connects.pop_front()
            {
                self.look_at_debts();
                self.begin_connecting(token, request);
            }
        }
        let now = self.now_ns();
        if self.setups.again_ns.is_none_or(|at| now < at) {
            return;
        }
        // No place becomes free while the kernel hangs, and peers are told why.
        let stuck = if self.setups.are_all_places_abandoned() { self.stuck_kernel(now) } else { None };
        for _ in 0..MOST_BEGUN_AT_ONCE {
            self.look_at_debts();
            if !self.setups.has_room() && stuck.is_none() {
                break;
            }
            let Some(token) = self.setups.sessions_with_offers.pop_front() else {
                break;
            };
            let Some(session) = self.session(token) else {
                continue;
            };
            let Some(WaitingOffer { connection, offer, wait }) = session.setups.offers.pop_front() else {
                continue;
            };
            let has_more = !session.setups.offers.is_empty();
            session.protocol.touch(now);
            self.setups.waiting_offers -= 1;
            if has_more {
                self.setups.sessions_with_offers.push_back(token);
            }
            if let Some(reason) = &stuck {
                self.refuse(Route { session: token, connection }, reason);
            } else if let Some(deadline_ns) = wait.begin(now) {
                self.begin_accepting(token, connection, &offer, deadline_ns);
            } else {
                // Its peer has given up.
                self.with_session(token, |session, now| session.failed(connection, now));
            }
        }
        self.setups.again_ns = None;
        if self.setups.sessions_with_offers.is_empty() {
            self.setups.wait_notices = VecDeque::new();
            return;
        }
        self.send_wait_notices(now);
        if self.setups.has_room() {
            self.setups.again_ns = Some(now);
            return;
        }
        if self.setups.are_stalled(now) {
            self.give_up_silent_setups(now);
        }
        self.setups.again_ns = Some(now + MAKE_ROOM_INTERVAL_NS);
    }

    /// Drops the entries of `wait_notices` whose offers no longer wait, once there are many.
    fn prune_wait_notices(&mut self) {
        if self.setups.wait_notices.len() <= 2 * self.setups.waiting_offers + MOST_NOTICES_AT_ONCE {
            return;
        }
        let mut waiting = HashSet::with_capacity(self.setups.waiting_offers);
        for session in self.setups.sessions_with_offers.clone() {
            let offers = self.session(session).into_iter().flat_map(|known| &known.setups.offers);
            waiting.extend(offers.map(|offer| Route { session, connection: offer.connection }));
        }
        let mut wait_notices = std::mem::take(&mut self.setups.wait_notices);
        // Keeps each route once: an offer that was withdrawn and made again is listed twice.
        wait_notices.retain(|(_, route)| waiting.remove(route));
        wait_notices.shrink_to(wait_notices.len() * 2);
        self.setups.wait_notices = wait_notices;
    }

    /// Tells peers that their offers wait, so that they keep waiting while set-ups take long. Each offer's time begins
    /// again.
    fn send_wait_notices(&mut self, now: u64) {
        for _ in 0..MOST_NOTICES_AT_ONCE {
            let Some((_, route)) = self.setups.wait_notices.front().copied().filter(|(at, _)| *at <= now) else {
                return;
            };
            self.setups.wait_notices.pop_front();
            let offers = self.session(route.session).map(|session| &mut session.setups.offers);
            let offer = offers.and_then(|all| all.iter_mut().find(|offer| offer.connection == route.connection));
            if let Some(next_ns) = offer.and_then(|offer| offer.wait.wait(now)) {
                self.setups.wait_notices.push_back((next_ns, route));
                // If this ends the session, its offers go with it.
                self.send(route, Message::Wait);
            }
        }
    }

    /// Gives up set-ups whose peers are silent, at most as many as offers wait.
    fn give_up_silent_setups(&mut self, now: u64) {
        let silence_ns = longest_silence_ns(self.handshake_timeout);
        for _ in 0..self.setups.waiting_offers {
            self.look_at_debts();
            let Some((_, route)) = self.setups.in_progress.first().filter(|(at, _)| at + silence_ns <= now) else {
                return;
            };
            let session = self.session(route.session);
            let stepped_ns = session.as_ref().map_or(0, |session| session.setups.stepped_ns);
            let setup = session.and_then(|session| session.connections.get(&route.connection));
            // The set-up thread has it: the peer waits for this process.
            if matches!(setup, Some(Connection::Setup(setup)) if setup.handshake.is_none()) {
                self.setups.in_progress.set(route, Some(now));
                continue;
            }
            // A peer with many set-ups takes the same step of each before the next step of any.
            if now < stepped_ns + silence_ns {
                self.setups.in_progress.set(route, Some(stepped_ns));
                continue;
            }
            let reason = format!(
                "its set-up made no progress for {:.0} s while others waited; if the connecting process is that slow, \
                 raise RAILWEAVE_HANDSHAKE_TIMEOUT on the accepting host",
                Duration::from_nanos(silence_ns).as_secs_f64()
            );
            self.setups.in_progress.set(route, None);
            let peer = self.session(route.session).map(|session| session.protocol.peer_name()).unwrap_or_default();
            self.send(route, Message::Refuse { fault: Fault::Protocol, of_rails: false, reason: reason.clone() });
            self.fail_setup(route, Error::peer(format!("{peer}: {reason}")));
        }
    }

    /// Stores a connection that is being set up.
    pub(super) fn begin_setup(&mut self, route: Route, setup: ConnectionSetup) {
        let now = self.now_ns();
        let is_peers = setup.token.is_some();
        if let Some(session) = self.session(route.session) {
            session.setups.in_progress += 1;
            session.connections.insert(route.connection, Connection::Setup(setup));
            if is_peers {
                self.setups.in_progress.set(route, Some(now));
            }
        }
    }

    /// Notes a step of a set-up: a message of its peer was handled, or a lane accepted.
    pub(super) fn note_setup_step(&mut self, route: Route) {
        if !self.setups.in_progress.contains(route) {
            return;
        }
        let now = self.now_ns();
        self.setups.in_progress.set(route, Some(now));
        if let Some(session) = self.session(route.session) {
            session.setups.stepped_ns = now;
        }
    }

    /// Forgets a waiting offer that its peer has withdrawn.
    pub(super) fn forget_offer(&mut self, route: Route) {
        let Some(session) = self.session(route.session) else {
            return;
        };
        let offers = &mut session.setups.offers;
        if let Some(place) = offers.iter().position(|offer| offer.connection == route.connection) {
            offers.remove(place);
            if offers.is_empty() {
                self.setups.sessions_with_offers.retain(|token| *token != route.session);
            }
            self.setups.waiting_offers -= 1;
        }
    }

    /// Gives back the place of a set-up that has succeeded or failed. `token` is presented by its lanes, if a peer
    /// began it; `task` is the number of its task, while the set-up thread has it.
    pub(super) fn release_setup_place(&mut self, route: Route, token: Option<Token>, task: Option<u64>) {
        let now = self.now_ns();
        if let Some(token) = token {
            self.lane_routes.remove(&token);
            self.setups.in_progress.set(route, None);
            match task {
                Some(number) => drop(self.setups.abandoned_tasks.insert(number)),
                None => self.setups.note_free_place(now),
            }
        }
        let Some(session) = self.session(route.session) else {
            return;
        };
        session.setups.in_progress -= 1;
        if !session.setups.queued_connects.is_empty() {
            self.setups.sessions_with_connects.push(route.session);
        }
    }

    /// Gives back the place of an ended set-up that kept it until the set-up thread had finished this task, if there is
    /// one.
    pub(super) fn release_abandoned_task(&mut self, number: u64) {
        let now = self.now_ns();
        if self.setups.abandoned_tasks.remove(&number) {
            self.setups.note_free_place(now);
        }
    }

    /// Forgets the offers and connects that waited on an ended session. Returns the connects.
    pub(super) fn forget_waiting(&mut self, token: usize) -> VecDeque<ConnectRequest> {
        let Some(session) = self.session(token) else {
            return VecDeque::new();
        };
        let offers = std::mem::take(&mut session.setups.offers).len();
        let requests = session.setups.take_queued_connects();
        if offers > 0 {
            self.setups.sessions_with_offers.retain(|session| *session != token);
            self.setups.waiting_offers -= offers;
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_may_be_silent_for_a_third_of_the_handshake_and_a_second_at_least() {
        for (timeout_ms, silence_ms) in [(24_000, 8000), (3000, 1000), (600, 1000), (0, 1000)] {
            assert_eq!(longest_silence_ns(Duration::from_millis(timeout_ms)), silence_ms * 1_000_000);
        }
        let longest = longest_silence_ns(Duration::MAX);
        assert!(longest.checked_add(longest).is_some(), "{longest}");
    }
}
