//! One state of the model: both ends, the memory that they share, and everything between them.

use crate::config::{Config, MESSAGES, PLACES, RAILS, SLOTS};
use crate::mutation::Mutation;
use crate::set::{List, Set};
use std::fmt;

/// Returns true if incarnation `a` is older than `b`. Their numbers wrap.
pub(crate) fn is_before(c: &Config, a: u8, b: u8) -> bool {
    if c.breaks_rule(Mutation::IncarnationsDoNotWrap) { a < b } else { is_older(a, b) }
}

/// Returns true if `b` comes after `a`, and not much later.
pub(crate) fn is_older(a: u8, b: u8) -> bool {
    b.wrapping_sub(a).wrapping_sub(1) < 127
}

/// The stage of a rail at the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Sending {
    /// Its lanes are connected.
    #[default]
    Up,
    /// Its lanes are in the error state, and all work has come back.
    Erring,
    /// Its lanes are destroyed, `RAIL_DOWN` is said, and the answer has not come.
    Waiting,
    /// The answer has come.
    Idle,
    /// The next incarnation is offered.
    Offered,
}

/// The stage of a rail at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Receiving {
    /// Its lanes are open.
    #[default]
    Live,
    /// Its lanes are in the error state, and may still take immediates.
    Erring,
    /// Its adapter says that no more immediates come, or that cannot be known.
    Quiet,
    /// Its lanes are destroyed.
    Gone,
}

/// The stage of a part at the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Stage {
    /// Not sent.
    #[default]
    Unsent,
    /// Sent, and not all of its lanes are acknowledged.
    Out,
    /// Came back without an acknowledgement.
    Unsure,
    /// Called unseen by the receiver.
    Lost,
    /// Acknowledged by the receiver's adapter.
    Acknowledged,
    /// Called seen by the receiver.
    Told,
}

/// A part at the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Part {
    pub(crate) stage: Stage,
    /// The rail that carries it now.
    pub(crate) carrier: u8,
    /// The writes with an immediate that are not acknowledged.
    pub(crate) left: u8,
}

/// The stage of an end's close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Close {
    /// This end has said BYE.
    pub(crate) has_said: bool,
    /// The peer's BYE has come.
    pub(crate) has_heard: bool,
}

impl Close {
    /// Returns true if nothing of the connection is left at this end.
    pub(crate) fn is_over(self) -> bool {
        self.has_said && self.has_heard
    }

    /// Returns true if either end has said BYE, as far as this end knows. Frames about rails then have no effect.
    pub(crate) fn has_begun(self) -> bool {
        self.has_said || self.has_heard
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct SendingRail {
    pub(crate) stage: Sending,
    /// The incarnation.
    pub(crate) e: u8,
    /// The CTS of this incarnation may land.
    pub(crate) takes_cts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Sender {
    pub(crate) rails: [SendingRail; RAILS],
    pub(crate) parts: [[Part; RAILS]; MESSAGES],
    /// The active rails of each message that was sent.
    pub(crate) masks: [Set; MESSAGES],
    /// The messages that were sent.
    pub(crate) next: u8,
    pub(crate) done: Set,
    pub(crate) close: Close,
}

/// A question of the sender: a `RAIL_DOWN` without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Question {
    pub(crate) unsure: Set,
    pub(crate) acknowledged: Set,
}

/// An immediate in a queue of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Arrival {
    pub(crate) message: u8,
    pub(crate) part: u8,
    pub(crate) lane: u8,
    pub(crate) is_repair: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ReceivingRail {
    pub(crate) stage: Receiving,
    /// The incarnation.
    pub(crate) e: u8,
    /// The sender has said `RAIL_UP`, so CTS may use the rail.
    pub(crate) is_up: bool,
    pub(crate) question: Option<Question>,
    pub(crate) has_answered: bool,
    /// The completion queue of this incarnation.
    pub(crate) queue: List<Arrival, 8>,
    /// The receives for repairs, if they are posted with answers.
    pub(crate) credit: u8,
    /// The device is dead.
    pub(crate) is_dead: bool,
    /// Writes of CTS in flight, oldest first, of all incarnations.
    pub(crate) copies: List<Copied, 12>,
}

/// A CTS entry on a rail whose completion the receiver has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Copied {
    pub(crate) entry: u8,
    pub(crate) e: u8,
    pub(crate) has_landed: bool,
    /// It completes, and with it those before it.
    pub(crate) is_signalled: bool,
    /// `RAIL_DOWN` of its incarnation has come, so it lands no more.
    pub(crate) is_settled: bool,
}

/// A slot during one use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Slot {
    /// The active rails; empty until an immediate or an entry of `RAIL_DOWN` tells them.
    pub(crate) mask: Set,
    pub(crate) seen: Set,
    /// The parts that were called unseen and have not been repaired.
    pub(crate) unseen: Set,
    /// The lanes that have spoken, per part.
    pub(crate) lanes: [Set; RAILS],
    /// The size is that of an entry of `RAIL_DOWN`.
    pub(crate) is_told_size: bool,
    /// The sum of the byte counts, in units of one lane's share.
    pub(crate) sum: u8,
    /// The rails whose immediates spoke for each part, unless it was called unseen later.
    pub(crate) through: [Set; RAILS],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Receiver {
    pub(crate) rails: [ReceivingRail; RAILS],
    /// The slots, one for each message.
    pub(crate) slots: [Slot; MESSAGES],
    /// The receives that were posted.
    pub(crate) next: u8,
    pub(crate) complete: Set,
    pub(crate) flushed: Set,
    /// CTS entries that are to be written.
    pub(crate) due: Set,
    /// CTS entries that were written, and those that were written more than once.
    pub(crate) written: Set,
    pub(crate) written_again: Set,
    pub(crate) close: Close,
}

/// A write with an immediate, from the sender's post until nothing can come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Write {
    pub(crate) carried: Arrival,
    pub(crate) e: u8,
    pub(crate) at: Reach,
    /// The sender's lane is in the error state.
    pub(crate) is_flushed: bool,
}

/// The progress of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Reach {
    #[default]
    Posted,
    /// Its bytes are in memory.
    Placed,
    /// Its immediate is in the queue.
    Arrived,
}

/// Memory that the network writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Memory {
    /// The lanes' shares of each part that are in the buffer.
    pub(crate) placed: [[Set; RAILS]; MESSAGES],
    /// The rail through which each part came last; none before it comes.
    pub(crate) through: [[Set; RAILS]; MESSAGES],
    /// The message whose record each slot has, plus 1.
    pub(crate) records: [u8; SLOTS],
    /// The newest entry at each place of the CTS ring, plus 1.
    pub(crate) ring: [u8; PLACES],
}

/// A frame of the session. The parts in sets are numbered by [`crate::config::part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum Frame {
    Suspect {
        rail: u8,
        e: u8,
    },
    Down {
        rail: u8,
        e: u8,
        unsure: Set,
        acknowledged: Set,
    },
    State {
        rail: u8,
        e: u8,
        seen: Set,
    },
    Offer {
        rail: u8,
        e: u8,
    },
    Lanes {
        rail: u8,
        e: u8,
    },
    Up {
        rail: u8,
        e: u8,
    },
    Bye {
        seen: Set,
    },
    /// The connection does not exist, or no more.
    #[default]
    None,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspect { rail, e } => write!(f, "RAIL_SUSPECT(rail {rail}, {e})"),
            Self::Down { rail, e, unsure, .. } => write!(f, "RAIL_DOWN(rail {rail}, {e}, parts {:b})", unsure.0),
            Self::State { rail, e, seen } => write!(f, "RAIL_STATE(rail {rail}, {e}, seen {:b})", seen.0),
            Self::Offer { rail, e } => write!(f, "RAIL_OFFER(rail {rail}, {e})"),
            Self::Lanes { rail, e } => write!(f, "RAIL_LANES(rail {rail}, {e})"),
            Self::Up { rail, e } => write!(f, "RAIL_UP(rail {rail}, {e})"),
            Self::Bye { seen } => write!(f, "BYE(seen {:b})", seen.0),
            Self::None => f.write_str("no such connection"),
        }
    }
}

impl Frame {
    /// Returns the channel of the frame: its rail, or `RAILS` for a frame of the connection.
    pub(crate) fn channel(self) -> usize {
        match self {
            Self::Suspect { rail, .. }
            | Self::Down { rail, .. }
            | Self::State { rail, .. }
            | Self::Offer { rail, .. }
            | Self::Lanes { rail, .. }
            | Self::Up { rail, .. } => rail.into(),
            Self::Bye { .. } | Self::None => RAILS,
        }
    }

    /// Returns the incarnation that a frame of a rail names.
    pub(crate) fn incarnation_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Suspect { e, .. }
            | Self::Down { e, .. }
            | Self::State { e, .. }
            | Self::Offer { e, .. }
            | Self::Lanes { e, .. }
            | Self::Up { e, .. } => Some(e),
            Self::Bye { .. } | Self::None => None,
        }
    }
}

/// The frames on their way to one end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Inbox {
    /// Those of the session, by channel. Only those of one channel come in order.
    pub(crate) channels: [List<Frame, 4>; RAILS + 1],
    /// Those of sessions that have ended, sorted.
    pub(crate) late: List<Frame, 10>,
    /// The peer has not noticed yet that the session has ended. What it says is lost with it.
    pub(crate) is_cut: bool,
}

impl Inbox {
    /// The peer says something. If it does not know yet that the session has ended, that is lost, or comes late.
    pub(crate) fn push(&mut self, c: &Config, frame: Frame) {
        if !self.is_cut {
            self.channels[frame.channel()].push(frame);
        } else if c.is_late {
            self.push_late(frame);
        }
    }

    /// The session ends. Its frames are lost, or come late.
    pub(crate) fn cut(&mut self, c: &Config) {
        self.is_cut = true;
        for channel in 0..=RAILS {
            let frames = std::mem::take(&mut self.channels[channel]);
            frames.items().iter().filter(|_| c.is_late).for_each(|frame| self.push_late(*frame));
        }
    }

    /// Returns all frames, those of the session and those that come late.
    pub(crate) fn frames_mut(&mut self) -> impl Iterator<Item = &mut Frame> {
        self.channels.iter_mut().flat_map(List::items_mut).chain(self.late.items_mut())
    }

    fn push_late(&mut self, frame: Frame) {
        self.late.push(frame);
        self.late.items_mut().sort_unstable();
    }
}

/// The faults that are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Faults {
    pub(crate) sender: u8,
    pub(crate) receiver: u8,
    pub(crate) devices: u8,
    pub(crate) breaks: u8,
}

/// One state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// The writes on each rail, oldest first.
    pub(crate) writes: [List<Write, 12>; RAILS],
    pub(crate) memory: Memory,
    pub(crate) to_sender: Inbox,
    pub(crate) to_receiver: Inbox,
    pub(crate) faults: Faults,
    /// The connection ended with an error.
    pub(crate) has_ended: bool,
}

impl State {
    /// Returns the first state of `config`: both rails are up and nothing has been posted.
    pub(crate) fn first(config: &Config) -> Self {
        let faults = Faults {
            sender: config.sender_faults,
            receiver: config.receiver_faults,
            devices: config.device_deaths,
            breaks: config.breaks,
        };
        let mut state = Self { faults, ..Self::default() };
        for rail in 0..config.rails {
            state.sender.rails[rail].e = config.first_e;
            state.receiver.rails[rail].e = config.first_e;
            state.sender.rails[rail].takes_cts = true;
            state.receiver.rails[rail].is_up = true;
        }
        state
    }

    /// Returns true if every byte of `message` is in its buffer.
    pub(crate) fn has_all_bytes(&self, config: &Config, message: usize) -> bool {
        let mask = self.sender.masks[message];
        !mask.is_empty() && mask.iter().all(|part| self.memory.placed[message][part] == config.lanes())
    }

    /// Returns true if a device has died.
    pub(crate) fn has_dead_device(&self) -> bool {
        self.receiver.rails.iter().any(|rail| rail.is_dead)
    }
}
