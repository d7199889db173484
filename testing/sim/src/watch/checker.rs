//! The checkers by name, and their findings.

use std::fmt;

/// The checkers, each with the rule that it watches over.
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
    /// Pieces are multiples of 128 bytes, except for the one that ends a message.
    Pieces,
    /// The bytes of the rails follow their weights.
    Split,
    /// The counters of a rail say what it carried.
    Counters,
    /// Data that rails wrote into GPU memory is visible after its flush.
    Flush,
    /// No send queue or completion queue is overrun.
    Queues,
    /// Every immediate finds a receive of its rail and of its lane.
    Receives,
    /// No slot, request, key, rail or queue entry is left behind.
    Leaks,
    /// Everything that an accepted call owes the peer leaves in that call, or in time without another one.
    Promise,
    /// Everything that can proceed does proceed.
    Progress,
    /// After a death every request ends in time.
    Death,
    /// Nothing fails without a reason, everything that must fail does, and nothing is posted after an error.
    Errors,
    /// Every failure is one that the things that struck its end may cause, and has the result code of that cause.
    Blame,
    /// Everything on the wire is as docs/wire.md says.
    Wire,
    /// Nothing panics.
    Panic,
}

impl Checker {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Delivery,
        Self::Size,
        Self::Bytes,
        Self::Window,
        Self::Pieces,
        Self::Split,
        Self::Counters,
        Self::Flush,
        Self::Queues,
        Self::Receives,
        Self::Leaks,
        Self::Promise,
        Self::Progress,
        Self::Death,
        Self::Errors,
        Self::Blame,
        Self::Wire,
        Self::Panic,
    ];

    /// Returns its name in findings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::Size => "size",
            Self::Bytes => "bytes",
            Self::Window => "window",
            Self::Pieces => "pieces",
            Self::Split => "split",
            Self::Counters => "counters",
            Self::Flush => "flush",
            Self::Queues => "queues",
            Self::Receives => "receives",
            Self::Leaks => "leaks",
            Self::Promise => "promise",
            Self::Progress => "progress",
            Self::Death => "death",
            Self::Errors => "errors",
            Self::Blame => "blame",
            Self::Wire => "wire",
            Self::Panic => "panic",
        }
    }
}

/// The finding of a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The checker that found it.
    pub checker: Checker,
    /// The finding, in words.
    pub message: String,
    /// Its time, in virtual nanoseconds.
    pub at_ns: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} (at {} ns)", self.checker.name(), self.message, self.at_ns)
    }
}

/// The outcome of a check.
pub(crate) type Checked<T = ()> = Result<T, (Checker, String)>;
