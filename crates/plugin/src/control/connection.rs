//! A connection of a session, from its set-up to its end.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use railweave_fabric::Part;
use railweave_transport::{Error, Link, Message, Token};

use super::pending::PendingConnect;
use crate::comm::End;
use crate::listener::{Listener, Ready};
use crate::network::AnyHandshake;

/// Where a connection goes once it is there.
pub(super) enum Target {
    Connect(Arc<PendingConnect>),
    Accept(Arc<Listener>),
}

impl Target {
    /// Hands a connection on; gives it back when nobody waits for it any more.
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
    Setup(Setting),
    /// Up.
    Open {
        link: Arc<Link>,
        /// What of this host it is made of.
        parts: Vec<Part>,
        /// The listener that it was handed to, where a peer began it.
        listener: Weak<Listener>,
    },
    /// Closed by this side, and not over: the peer may still need its lanes.
    Closed(Box<dyn End>),
}

/// A connection that is being set up.
pub(super) struct Setting {
    /// None while the set-up worker has it.
    pub(super) handshake: Option<Box<dyn AnyHandshake>>,
    /// The number under which the worker has it, or had it last.
    pub(super) away: Option<u64>,
    /// What the worker looks at before it works for it.
    pub(super) is_wanted: Arc<AtomicBool>,
    /// What the worker has, or had last, is READY: the peer's end is up.
    pub(super) is_ready: bool,
    /// What came from the peer meanwhile.
    pub(super) waiting: VecDeque<Message>,
    pub(super) target: Target,
    /// What its lanes present, where the peer began it.
    pub(super) token: Option<Token>,
    /// The NUMA node of the device, where it has one.
    pub(super) node: Option<u32>,
    /// Its session ended while the worker had its READY. The peer had no error: it has left what is up. Why it is lost
    /// if nothing comes of it.
    pub(super) orphaned: Option<Error>,
    pub(super) began_ns: u64,
    /// When to try again what this host could not do.
    pub(super) go_on_ns: Option<u64>,
    /// When to tell the peer that this end is busy.
    pub(super) wait_ns: Option<u64>,
}

impl Setting {
    pub(super) fn new(
        handshake: Box<dyn AnyHandshake>,
        target: Target,
        token: Option<Token>,
        node: Option<u32>,
        began_ns: u64,
    ) -> Self {
        Self {
            handshake: Some(handshake),
            away: None,
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

    /// Its number at the worker, while that has it.
    pub(super) fn at_worker(&self) -> Option<u64> {
        self.away.filter(|_| self.handshake.is_none())
    }

    /// When its time is over. One that the worker has gets its time when it is back.
    pub(super) fn timeout_ns(&self) -> Option<u64> {
        self.handshake.as_ref()?.timeout_ns()
    }

    /// When there is something to do.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.timeout_ns().into_iter().chain(self.go_on_ns).chain(self.wait_ns).min()
    }
}
