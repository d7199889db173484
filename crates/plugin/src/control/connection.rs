//! A connection of a session, from its set-up to its close.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use railweave_fabric::Part;
use railweave_transport::{Error, Fate, Message, Token};

use super::pending::PendingConnect;
use crate::comm::End;
use crate::listener::{Listener, Ready};
use crate::network::AnyHandshake;

/// The recipient of a connection once it is up.
pub(super) enum Target {
    Connect(Arc<PendingConnect>),
    Accept(Arc<Listener>),
}

impl Target {
    /// Hands a connection to its recipient. Returns it if nobody waits for it.
    pub(super) fn give(&self, connection: Ready) -> Option<Ready> {
        match self {
            Self::Connect(pending) => pending.give(Ok(connection)).and_then(Result::ok),
            Self::Accept(listener) => listener.give(connection),
        }
    }
}

/// A connection of a session.
pub(super) enum Connection {
    /// Being set up.
    Setup(ConnectionSetup),
    /// Up.
    Open {
        fate: Arc<Fate>,
        /// The parts of this host that it uses.
        parts: Vec<Part>,
        /// The listener that it was handed to, if a peer began it.
        listener: Weak<Listener>,
    },
    /// Closed by this side, and lingering: the peer may still need its lanes.
    Closed(Box<dyn End>),
}

/// A connection that is being set up.
pub(super) struct ConnectionSetup {
    /// `None` while the set-up thread has it.
    pub(super) handshake: Option<Box<dyn AnyHandshake>>,
    /// The number of its task on the set-up thread, or of its last one there.
    pub(super) last_task: Option<u64>,
    /// True while the connection is wanted; otherwise the set-up thread skips its work for it.
    pub(super) is_wanted: Arc<AtomicBool>,
    /// True if the last message given to the set-up thread for it was READY: the peer's end is up.
    pub(super) is_ready: bool,
    /// The peer's messages that came while the set-up thread had it.
    pub(super) waiting: VecDeque<Message>,
    pub(super) target: Target,
    /// The token that its lanes present, if the peer began it.
    pub(super) token: Option<Token>,
    /// The NUMA node of the device, if it has one.
    pub(super) node: Option<u32>,
    /// The error that says why its session ended, if it ended while the set-up thread had the peer's READY. For the
    /// peer the connection was up, and the peer has left it; so the set-up goes on. If it fails, this is its error.
    pub(super) orphaned: Option<Error>,
    pub(super) began_ns: u64,
    /// The time to retry a step that this host could not do.
    pub(super) go_on_ns: Option<u64>,
    /// The time to tell the peer that this end is busy.
    pub(super) wait_ns: Option<u64>,
}

impl ConnectionSetup {
    pub(super) fn new(
        handshake: Box<dyn AnyHandshake>,
        target: Target,
        token: Option<Token>,
        node: Option<u32>,
        began_ns: u64,
    ) -> Self {
        Self {
            handshake: Some(handshake),
            last_task: None,
            is_wanted: Arc::new(AtomicBool::new(true)),
            is_ready: false,
            waiting: VecDeque::new(),
            target,
            token,
            node,
            orphaned: None,
            began_ns,
            go_on_ns: None,
            wait_ns: None,
        }
    }

    /// Returns the number of its task, while the set-up thread has it.
    pub(super) fn current_task(&self) -> Option<u64> {
        self.last_task.filter(|_| self.handshake.is_none())
    }

    /// Returns its deadline; `None` while the set-up thread has it, because it gets a new one when it comes back.
    pub(super) fn timeout_ns(&self) -> Option<u64> {
        self.handshake.as_ref()?.timeout_ns()
    }

    /// Returns the next time when there is something to do.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.timeout_ns().into_iter().chain(self.go_on_ns).chain(self.wait_ns).min()
    }
}
