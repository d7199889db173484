//! The connections of a session, each from its first message until nothing of it is left, which may be after the
//! session.

use std::collections::{BTreeMap, BTreeSet};

use super::ended::LostCause;

/// How far a connection is.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The peer has offered it; the caller has neither begun it nor refused it.
    Offered,
    /// It is being set up.
    SetUp,
    /// This end is up. The peer may have left, and why.
    Open { left: Option<LostCause> },
    /// This side has closed it, and looks until then, after growing pauses, whether it is over.
    Closed { peer_left: bool, pause_ns: u64, until_ns: u64 },
    /// Nothing of it is left here, and the peer has not closed it yet: it has its number and its session still.
    ByeAwaited,
}

/// A connection, and when something of it is due.
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
    /// Its peer has something to say of it still, so that the session is in use.
    fn is_used(&self) -> bool {
        !matches!(self.state, State::Closed { peer_left: true, .. })
    }

    /// It is lost with a peer that is gone.
    fn needs_peer(&self) -> bool {
        matches!(self.state, State::Open { left: None } | State::Closed { peer_left: false, .. } | State::ByeAwaited)
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
}

impl Connections {
    /// Puts a connection in the place of that with its number, or takes that away.
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
    }

    pub(super) fn state(&self, number: u32) -> Option<&State> {
        self.all.get(&number).map(|connection| &connection.state)
    }

    /// The number of the connection that is due first, and when.
    pub(super) fn first_due(&self) -> Option<(u64, u32)> {
        self.due.first().copied()
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

    /// Whether the session is in use.
    pub(super) fn are_used(&self) -> bool {
        self.used > 0
    }

    /// Whether any is more than an offer, and not over for the peer.
    pub(super) fn are_begun(&self) -> bool {
        self.used > self.offered
    }

    /// Whether any needs the peer to be there: it is open, or the peer has still to say that it is over.
    pub(super) fn need_peer(&self) -> bool {
        self.needing > 0
    }
}
