//! A connection of a session, from its set-up to its close.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use railweave_fabric::{Part, RailId};
use railweave_transport::progress::Progress;
use railweave_transport::{Fate, Lingering, RailName, Side, Token};

use super::command::ConnectRequest;
use super::hearing::Heard;
use super::rail_inbox::Recovery;
use crate::comm::{Comm, End, Registrar};
use crate::listener::{Listener, Ready};
use crate::network::{AnyHandshake, Network};

/// The recipient of a connection once it is up.
pub(super) enum Target {
    /// The connect that it is for.
    Connect(Box<ConnectRequest>),
    /// The listener that it is for, and true if the offer follows others of its session that have failed.
    Accept(Arc<Listener>, bool),
}

impl Target {
    /// Hands a connection to its recipient. Returns it if nobody waits for it.
    pub(super) fn give(&self, connection: Ready) -> Option<Ready> {
        match self {
            Self::Connect(request) => request.result.give(Ok(connection)).and_then(Result::ok),
            Self::Accept(listener, _) => listener.give(connection),
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
        /// NCCL's connection; `None` until NCCL has it.
        comm: Option<Weak<Comm>>,
        recovery: Recovery,
        heard: Heard,
        /// The ports of its rails.
        registrar: Arc<dyn Registrar>,
    },
    /// Closed by this side, and lingering: the peer may still need its lanes.
    Closed(Lingering<Box<dyn End>>),
}

/// This end's place in the host.
pub(super) struct Place {
    pub(super) network: Arc<dyn Network>,
    pub(super) device: usize,
    /// The NUMA node of the device, if it has one.
    pub(super) node: Option<u32>,
}

/// A connection that is being set up.
pub(super) struct ConnectionSetup {
    /// `None` while the set-up thread has it.
    pub(super) handshake: Option<Box<dyn AnyHandshake>>,
    /// The number of its task on the set-up thread, or of its last one there.
    pub(super) last_task: Option<u64>,
    /// True while the connection is wanted; otherwise the set-up thread skips its work for it.
    pub(super) is_wanted: Arc<AtomicBool>,
    /// The steps of the handshake, and the messages that came while the set-up thread had it.
    pub(super) progress: Progress,
    pub(super) target: Target,
    /// The token that its lanes present, if the peer began it.
    pub(super) token: Option<Token>,
    pub(super) place: Place,
    /// The rails that were left out.
    pub(super) left_out: Vec<(RailId, RailName)>,
    /// The time at which it began.
    pub(super) begun_ns: u64,
}

impl ConnectionSetup {
    pub(super) fn new(
        handshake: Box<dyn AnyHandshake>,
        target: Target,
        token: Option<Token>,
        place: Place,
        (timeout_ns, now_ns): (u64, u64),
    ) -> Self {
        let side = match target {
            Target::Connect(_) => Side::Opener,
            Target::Accept(..) => Side::Acceptor,
        };
        let progress = Progress::new(side, handshake.may_block(), timeout_ns, now_ns);
        Self {
            handshake: Some(handshake),
            last_task: None,
            is_wanted: Arc::new(AtomicBool::new(true)),
            progress,
            target,
            token,
            place,
            left_out: Vec::new(),
            begun_ns: now_ns,
        }
    }

    /// Returns the number of its task, while the set-up thread has it.
    pub(super) fn current_task(&self) -> Option<u64> {
        self.last_task.filter(|_| self.handshake.is_none())
    }

    /// Returns its deadline; `None` while the set-up thread has it.
    pub(super) fn timeout_ns(&self) -> Option<u64> {
        self.handshake.as_ref()?.timeout_ns()
    }

    /// Returns the next time when there is something to do.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.progress.next_ns(self.timeout_ns())
    }
}
