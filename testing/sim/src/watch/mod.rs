//! The checkers. They see what the fabric carries and what the players call and get, never the inside of `transport`,
//! and they know docs/wire.md and NCCL's contract by themselves.

mod messages;
mod wire;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use messages::{Buffer, Group};

use crate::counts::Counts;
use wire::Wire;

/// What a checker watches over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Checker {
    /// Every message is delivered once, in matching order, and only when all of it is there.
    Delivery,
    /// Sizes are exact at both ends.
    Size,
    /// Bytes are the sender's.
    Bytes,
    /// Nothing is written into a receive buffer but its message, once, while its request is open.
    Window,
    /// Pieces are multiples of 128 bytes but for the one that ends a message.
    Pieces,
    /// What the rails wrote into GPU memory is visible after its flush.
    Flush,
    /// No send queue or completion queue is overrun.
    Queues,
    /// No immediate finds the receive pool empty.
    Receives,
    /// No slot, request, key, rail or queue entry is left behind.
    Leaks,
    /// What an accepted call owes the peer leaves in that call, or in time without another one.
    Promise,
    /// What can go on goes on.
    Progress,
    /// After a death every request ends in time.
    Death,
    /// Nothing fails for which there is no reason, and what must fail does.
    Errors,
    /// What travels is what docs/wire.md says.
    Wire,
    /// Nothing panics.
    Panic,
}

impl Checker {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::Size => "size",
            Self::Bytes => "bytes",
            Self::Window => "window",
            Self::Pieces => "pieces",
            Self::Flush => "flush",
            Self::Queues => "queues",
            Self::Receives => "receives",
            Self::Leaks => "leaks",
            Self::Promise => "promise",
            Self::Progress => "progress",
            Self::Death => "death",
            Self::Errors => "errors",
            Self::Wire => "wire",
            Self::Panic => "panic",
        }
    }
}

/// What a checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who found it.
    pub checker: Checker,
    /// What, in words.
    pub message: String,
    /// When, in virtual nanoseconds.
    pub at_ns: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} (at {} ns)", self.checker.name(), self.message, self.at_ns)
    }
}

/// A write of a connection's sender that has landed.
pub(crate) struct Landing {
    pub(crate) connection: usize,
    pub(crate) rail: u8,
    pub(crate) lane: u8,
    /// Of data the address, of control memory the offset.
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) control: bool,
    pub(crate) immediate: Option<u32>,
}

/// What is watched of one connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) groups: Vec<Group>,
    /// The oldest group with unfilled buffers.
    filling: usize,
    /// Open buffers by address: group and number in it.
    windows: BTreeMap<u64, (usize, usize)>,
    pub(crate) wire: Wire,
    /// The receiving end is closed: where its processor places what arrives, it is thrown away.
    pub(crate) discards: bool,
    /// A call of the sender failed: of the message that it was about, some may be on its way.
    pub(crate) sender_failed: bool,
    /// The receiver was given something that no peer may send, and must end in an error.
    pub(crate) condemned: bool,
    /// CTS entries that accepted receives have promised, and those that were posted.
    pub(crate) cts: [u64; 2],
    /// Why errors may be expected on it, and since when.
    pub(crate) harm: Option<(u64, String)>,
}

/// All checkers of a seed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The first thing that was found.
    pub(crate) violation: Option<Violation>,
    pub(crate) connections: Vec<Connection>,
}

impl Watch {
    pub(crate) fn violate(&mut self, at_ns: u64, checker: Checker, message: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { checker, message, at_ns });
        }
    }

    /// A receive of so many buffers was accepted: their CTS must be on their way.
    pub(crate) fn promised(&mut self, at_ns: u64, connection: usize, buffers: usize) {
        let watched = &mut self.connections[connection];
        watched.cts[0] += buffers as u64;
        let [promised, posted] = watched.cts;
        if promised != posted && watched.harm.is_none() {
            let message =
                format!("c{connection}: receives of {promised} buffers were accepted, {posted} CTS entries posted");
            self.violate(at_ns, Checker::Promise, message);
        }
    }

    /// From now on errors are no surprise on this connection.
    pub(crate) fn harm(&mut self, at_ns: u64, connection: usize, why: &str) {
        if let Some(watched) = self.connections.get_mut(connection) {
            watched.harm.get_or_insert_with(|| (at_ns, why.to_owned()));
        }
    }

    pub(crate) fn harmed(&self, connection: usize) -> Option<&(u64, String)> {
        self.connections.get(connection).and_then(|watched| watched.harm.as_ref())
    }

    /// A write lands, or half of it: it must be inside an open buffer.
    pub(crate) fn touched(&mut self, at_ns: u64, connection: usize, address: u64, length: u64) {
        if self.connections[connection].window(address, length).is_none() {
            let message =
                format!("c{connection}: {length} bytes at {address:#x} were written outside any open receive buffer");
            self.violate(at_ns, Checker::Window, message);
        }
    }

    /// A write of a sender has landed, whole. `bytes` are what it wrote.
    pub(crate) fn landed(&mut self, at_ns: u64, landing: &Landing, bytes: &[u8], counts: &mut Counts) {
        let Some(watched) = self.connections.get_mut(landing.connection) else { return };
        let result = (|| {
            if landing.control {
                watched.record_landed(landing, bytes)?;
            } else if landing.length > 0 {
                watched.data_landed(landing)?;
            }
            match landing.immediate {
                Some(immediate) => watched.immediate_landed(landing, immediate, counts),
                None => Ok(()),
            }
        })();
        if let Err((checker, message)) = result {
            let message = format!("c{} rail {}.{}: {message}", landing.connection, landing.rail, landing.lane);
            self.violate(at_ns, checker, message);
        }
    }
}

/// What a check answers.
pub(crate) type Checked<T = ()> = Result<T, (Checker, String)>;
