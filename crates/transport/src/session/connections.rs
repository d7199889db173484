//! The connections of a session, each from its first message until nothing of it is left, which may be after the end of
//! the session.

use std::collections::{BTreeMap, BTreeSet};

use super::doubt::Probing;
use super::ended::LostCause;

/// The state of a connection.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The peer has offered it; the caller has neither begun it nor refused it.
    Offered,
    /// It is being set up. `outlives_socket` is true if this end has begun it, or the peer may have it already.
    SetUp { outlives_socket: bool },
    /// This end is up. `peer_left` is the reason if the peer has left; otherwise `probing` is the state of its probe
    /// while the session is away.
    Open { peer_left: Option<LostCause>, probing: Probing },
    /// This side has closed it. Until the given time it checks, after growing pauses, if the connection has ended.
    Closed { peer_left: bool, pause_ns: u64, until_ns: u64 },
    /// Nothing of it is left here, but the peer has not closed it yet: it still occupies its number and keeps the
    /// session in use.
    ByeAwaited,
}

/// A connection, and the time at which something is due for it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    pub(super) due_ns: Option<u64>,
}

impl From<State> for Connection {
    fn from(state: State) -> Self {
        Self { state, due_ns: None }
    }
}

impl Connection {
    /// Returns true if the peer may still have something to say about it, so that the session is in use.
    fn is_used(&self) -> bool {
        !matches!(self.state, State::Closed { peer_left: true, .. })
    }

    /// Returns true if it is open, and the peer has not left it.
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open { peer_left: None, .. })
    }

    /// Returns true if it is lost when the peer is gone.
    fn needs_peer(&self) -> bool {
        matches!(
            self.state,
            State::Open { peer_left: None, .. } | State::Closed { peer_left: false, .. } | State::ByeAwaited
        )
    }

    /// Returns true if the session goes on for its sake when it loses its socket.
    fn outlives_socket(&self) -> bool {
        self.needs_peer() || matches!(self.state, State::SetUp { outlives_socket: true })
    }
}

/// All connections of a session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: BTreeMap<u32, Connection>,
    due: BTreeSet<(u64, u32)>,
    offered: usize,
    used: usize,
    needing: usize,
    outliving: usize,
    open: usize,
}

impl Connections {
    /// Replaces the connection with this number, or removes it.
    pub(super) fn set(&mut self, number: u32, connection: Option<Connection>) {
        let after = connection.clone();
        let before = match connection {
            Some(connection) => self.all.insert(number, connection),
            None => self.all.remove(&number),
        };
        if let Some(due_ns) = before.as_ref().and_then(|connection| connection.due_ns) {
            self.due.remove(&(due_ns, number));
        }
        if let Some(due_ns) = after.as_ref().and_then(|connection| connection.due_ns) {
            self.due.insert((due_ns, number));
        }
        let counted = |counter: &mut usize, which: fn(&Connection) -> bool| {
            *counter += usize::from(after.as_ref().is_some_and(which));
            *counter -= usize::from(before.as_ref().is_some_and(which));
        };
        counted(&mut self.offered, |connection| matches!(connection.state, State::Offered));
        counted(&mut self.used, Connection::is_used);
        counted(&mut self.needing, Connection::needs_peer);
        counted(&mut self.outliving, Connection::outlives_socket);
        counted(&mut self.open, Connection::is_open);
    }

    pub(super) fn state(&self, number: u32) -> Option<&State> {
        self.all.get(&number).map(|connection| &connection.state)
    }

    /// Returns when the first connection is due, and its number.
    pub(super) fn first_due(&self) -> Option<(u64, u32)> {
        self.due.first().copied()
    }

    /// Returns the numbers of all connections that are due by now, in the order in which they are due.
    pub(super) fn due(&self, now_ns: u64) -> Vec<u32> {
        self.due.range(..=(now_ns, u32::MAX)).map(|(_, number)| *number).collect()
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.all.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns true if the session is in use.
    pub(super) fn are_used(&self) -> bool {
        self.used > 0
    }

    /// Returns true if any connection is more than an offer, and has not ended for the peer.
    pub(super) fn are_begun(&self) -> bool {
        self.used > self.offered
    }

    /// Returns true if there is nothing but offers, or nothing at all.
    pub(super) fn are_offers(&self) -> bool {
        self.all.len() == self.offered
    }

    /// Returns true if any connection needs the peer to be there: it is open, or the peer has yet to close it.
    pub(super) fn need_peer(&self) -> bool {
        self.needing > 0
    }

    /// Returns true if any connection needs the session to go on when it loses its socket.
    pub(super) fn outlive_socket(&self) -> bool {
        self.outliving > 0
    }

    /// Returns true if any connection is open, and the peer has not left it.
    pub(super) fn has_open(&self) -> bool {
        self.open > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(peer_left: bool) -> State {
        State::Closed { peer_left, pause_ns: 1, until_ns: 9 }
    }

    fn due(state: State, due_ns: u64) -> Option<Connection> {
        Some(Connection { state, due_ns: Some(due_ns) })
    }

    #[test]
    fn each_state_says_if_it_uses_the_session_is_begun_and_needs_the_peer() {
        let open = |peer_left| State::Open { peer_left, probing: Probing::default() };
        for (state, is_used, is_begun, needs_peer) in [
            (State::Offered, true, false, false),
            (State::SetUp { outlives_socket: false }, true, true, false),
            (State::SetUp { outlives_socket: true }, true, true, false),
            (open(None), true, true, true),
            (open(Some(LostCause::Bye)), true, true, false),
            (closed(false), true, true, true),
            (closed(true), false, false, false),
            (State::ByeAwaited, true, true, true),
        ] {
            let mut connections = Connections::default();
            let says = |connections: &Connections| {
                (connections.are_used(), connections.are_begun(), connections.need_peer(), connections.len())
            };
            assert_eq!(says(&connections), (false, false, false, 0));
            // Two count like one, and as long as one of them is left.
            connections.set(1, Some(state.clone().into()));
            connections.set(2, Some(state.clone().into()));
            assert_eq!(says(&connections), (is_used, is_begun, needs_peer, 2), "{state:?}");
            let outlives_socket = needs_peer || matches!(state, State::SetUp { outlives_socket: true });
            assert_eq!(connections.outlive_socket(), outlives_socket, "{state:?}");
            assert_eq!(connections.are_offers(), matches!(state, State::Offered), "{state:?}");
            assert_eq!(connections.has_open(), needs_peer && matches!(state, State::Open { .. }), "{state:?}");
            connections.set(1, None);
            assert_eq!(says(&connections), (is_used, is_begun, needs_peer, 1), "{state:?}");
            // An offer that waits beside it changes nothing but that the session is in use.
            connections.set(3, Some(State::Offered.into()));
            assert_eq!(says(&connections), (true, is_begun, needs_peer, 2), "{state:?}");
            connections.set(3, None);
            // Its next state takes the place of this one.
            connections.set(2, Some(closed(true).into()));
            assert_eq!(says(&connections), (false, false, false, 1), "{state:?}");
            connections.set(2, None);
            assert!(connections.is_empty());
        }
    }

    #[test]
    fn the_earliest_is_due_first_and_only_at_its_latest_time() {
        let mut connections = Connections::default();
        connections.set(5, due(closed(true), 30));
        connections.set(4, due(closed(true), 20));
        connections.set(6, Some(State::SetUp { outlives_socket: false }.into()));
        assert_eq!((connections.first_due(), connections.numbers()), (Some((20, 4)), vec![4, 5, 6]));
        for (now_ns, due) in [(19, vec![]), (20, vec![4]), (29, vec![4]), (30, vec![4, 5]), (u64::MAX, vec![4, 5])] {
            assert_eq!(connections.due(now_ns), due, "{now_ns}");
        }
        connections.set(4, due(closed(true), 40));
        assert_eq!(connections.first_due(), Some((30, 5)));
        connections.set(5, Some(State::ByeAwaited.into()));
        assert_eq!(connections.first_due(), Some((40, 4)));
        connections.set(4, None);
        assert_eq!((connections.first_due(), connections.numbers()), (None, vec![5, 6]));
        assert!(matches!(connections.state(5), Some(State::ByeAwaited)) && connections.state(4).is_none());
    }
}
