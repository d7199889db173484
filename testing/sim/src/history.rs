//! The history of a seed, one line per event: always hashed, and kept in words if asked for. docs/simulation.md has the
//! legend.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Post,
    Land,
    Torn,
    Sent,
    Received,
    Failed,
    Refused,
    Lost,
    AckLost,
    Outage,
    NoReceive,
    Flush,
    Flushed,
    Receives,
    Register,
    Deregister,
    Control,
    Up,
    Over,
    Isend,
    Irecv,
    SendDone,
    RecvDone,
    Early,
    Iflush,
    FlushDone,
    Error,
    Close,
    Gone,
    Death,
    ConnectionLost,
    Settle,
    Silent,
    Trespass,
    Order,
    Recovery,
    Violation,
}

/// One event: its time, its subject, and up to four numbers whose meaning depends on the kind (see its `Display`).
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Event {
    pub(crate) at_ns: u64,
    pub(crate) kind: Kind,
    pub(crate) who: Who,
    pub(crate) numbers: [u64; 4],
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Who {
    /// One end of a rail of a connection.
    Rail { connection: usize, sender: bool, rail: u8, lane: u8 },
    /// One end of a connection.
    End { connection: usize, sender: bool },
    /// A process.
    Process(usize),
}

impl fmt::Display for Who {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |sender: &bool| if *sender { 's' } else { 'r' };
        match self {
            Self::Rail { connection, sender, rail, lane } => {
                write!(out, "c{connection}{} rail {rail}.{lane}", side(sender))
            }
            Self::End { connection, sender } => write!(out, "c{connection}{}", side(sender)),
            Self::Process(process) => write!(out, "p{process}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.numbers;
        let micros = self.at_ns / 1000;
        write!(out, "{micros:>8}.{:03} {:<14} ", self.at_ns % 1000, self.who.to_string())?;
        let immediate = |value: u64| if value == u64::MAX { String::new() } else { format!(" imm {value:#010x}") };
        match self.kind {
            Kind::Post => {
                let signalled = if c == 1 { " signalled" } else { "" };
                write!(out, "post {a} B{}{signalled}, arrives at {}.{:03}", immediate(b), d / 1000, d % 1000)
            }
            Kind::Land => write!(out, "land {a} B at {b:#x}{}", immediate(c)),
            Kind::Torn => write!(out, "torn {a} of {b} B"),
            Kind::Sent => write!(out, "sent id {a:#x}"),
            Kind::Received => write!(out, "received {b} B{}", immediate(a)),
            Kind::Failed => write!(out, "FAILED"),
            Kind::Refused => write!(out, "refused: {}", ["room", "receives", "flush"][a as usize]),
            Kind::Lost => write!(out, "lost on the way, fails at {}.{:03}", a / 1000, a % 1000),
            Kind::AckLost => write!(out, "acknowledgement lost, sent again at {}.{:03}", a / 1000, a % 1000),
            Kind::Outage => {
                let lost = ["", "writes", "acknowledgements", "writes and acknowledgements"][a as usize];
                let until = if c == u64::MAX { "the end".to_owned() } else { format!("{}.{:03}", c / 1000, c % 1000) };
                write!(out, "outage of {lost} from {}.{:03} to {until}", b / 1000, b % 1000)
            }
            Kind::NoReceive => write!(out, "NO RECEIVE for an immediate"),
            Kind::Flush => write!(out, "flush id {a:#x}"),
            Kind::Flushed => write!(out, "flushed id {a:#x}"),
            Kind::Receives => write!(out, "post receives: {b} of {a}"),
            Kind::Register => write!(out, "register {b} B at {a:#x}, port {c}"),
            Kind::Deregister => write!(out, "deregister {a:#x}, port {c}"),
            Kind::Control => write!(out, "control message {a} to the {}", if b == 1 { "sender" } else { "receiver" }),
            Kind::Up => write!(out, "up, rails {a:#b}"),
            Kind::Over => write!(out, "handshake ended without a connection"),
            Kind::Isend => write!(out, "isend {b} B, tag {c} -> message {a}"),
            Kind::Irecv => write!(out, "irecv {b} buffers, first at {c:#x} -> group {a}"),
            Kind::SendDone => write!(out, "send done: message {a}, {b} B"),
            Kind::RecvDone => write!(out, "receive done: group {a}, first {b} B"),
            Kind::Early => write!(out, "receive done early: group {a}"),
            Kind::Iflush => write!(out, "iflush group {a}: {}", if b == 1 { "in progress" } else { "nothing to do" }),
            Kind::FlushDone => write!(out, "flush done: group {a}"),
            Kind::Error => write!(out, "ERROR"),
            Kind::Close => write!(out, "close"),
            Kind::Gone => write!(out, "gone"),
            Kind::Death => write!(out, "DEATH {a}"),
            Kind::Settle => {
                let (by, what) = (["thread", "control"][b as usize], ["not all", "all"][a as usize]);
                write!(out, "settled by {by}: {what} is sent")
            }
            Kind::Silent => write!(out, "silent until {}.{:03}", a / 1000, a % 1000),
            Kind::ConnectionLost => write!(out, "connection declared lost"),
            Kind::Trespass => write!(out, "breaks the contract"),
            Kind::Recovery => write!(out, "rail {b} {}", if a == 1 { "is back" } else { "is down" }),
            Kind::Order => write!(out, "order, rails {b:#b}"),
            Kind::Violation => write!(out, "VIOLATION"),
        }
    }
}

/// The events of one seed.
#[derive(Debug, Default)]
pub(crate) struct History {
    hasher: DefaultHasher,
    pub(crate) events: u64,
    /// The lines; `None` if they are not kept.
    pub(crate) lines: Option<Vec<String>>,
}

impl History {
    pub(crate) fn record(&mut self, event: Event) {
        event.hash(&mut self.hasher);
        self.events += 1;
        if let Some(lines) = &mut self.lines {
            lines.push(event.to_string());
        }
    }

    /// Adds a remark below the last event. Remarks are not hashed, because they may hold addresses.
    pub(crate) fn remark(&mut self, words: &str) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>28}{words}", ""));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hasher.finish()
    }
}
