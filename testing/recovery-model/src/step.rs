//! The steps of a run, and their sentences.

use crate::set::Set;
use std::fmt;

/// A step of one part of the model. Rails, messages, lanes and places are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The application posts the next receive; its CTS leaves on a rail.
    Irecv(u8),
    /// The receiver writes CTS again, on a rail.
    Rewrite(u8),
    /// A CTS lands.
    LandCts(u8, u8),
    /// The receiver polls the completion of a CTS.
    CtsSent(u8, u8),
    /// The application sends the next message over these rails.
    Isend(Set),
    /// The sender repairs a message's part over a rail.
    Repair(u8, u8, u8),
    /// A write on a rail takes its next step.
    Land(u8, u8),
    /// The sender polls the completion of a write.
    Sent(u8, u8),
    /// The receiver polls an immediate.
    Poll(u8),
    /// The application flushes a receive.
    Flush(u8),
    /// A rail fails at the sender.
    SenderFails(u8),
    /// The sender's lanes are destroyed.
    SenderDestroys(u8),
    /// The sender offers the next incarnation.
    Offer(u8),
    /// A rail fails at the receiver.
    ReceiverFails(u8),
    /// A device of the receiver dies.
    DeviceDies(u8),
    /// The receiver's lanes take no more immediates, or the wait for that is over.
    Quiet(u8),
    /// The receiver's lanes are destroyed.
    ReceiverDestroys(u8),
    /// The receiver answers.
    Answer(u8),
    /// The application closes the sending end.
    CloseSender,
    /// The application closes the receiving end.
    CloseReceiver,
    /// The sender takes a frame of a channel.
    ToSender(u8),
    /// The receiver takes a frame of a channel.
    ToReceiver(u8),
    /// The sender takes a frame of a session that has ended.
    LateToSender(u8),
    /// The receiver takes a frame of a session that has ended.
    LateToReceiver(u8),
    /// The session breaks.
    Break,
    /// The sender notices that the session has ended.
    SenderNotices,
    /// The receiver notices that the session has ended.
    ReceiverNotices,
}

impl Step {
    /// Returns true for a step that need never happen, because it is a fault.
    #[must_use]
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::SenderFails(_)
                | Self::ReceiverFails(_)
                | Self::DeviceDies(_)
                | Self::LateToSender(_)
                | Self::LateToReceiver(_)
                | Self::Break
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Irecv(rail) => write!(f, "irecv, CTS on rail {rail}"),
            Self::Rewrite(rail) => write!(f, "CTS again on rail {rail}"),
            Self::LandCts(rail, _) => write!(f, "a CTS lands on rail {rail}"),
            Self::CtsSent(rail, _) => write!(f, "the receiver polls a CTS as sent on rail {rail}"),
            Self::Isend(mask) => write!(f, "isend over {:?}", mask.iter().collect::<Vec<_>>()),
            Self::Repair(message, part, rail) => write!(f, "repair of message {message} part {part} over rail {rail}"),
            Self::Land(rail, place) => write!(f, "write {place} of rail {rail} lands"),
            Self::Sent(rail, _) => write!(f, "the sender polls a write as sent on rail {rail}"),
            Self::Poll(rail) => write!(f, "the receiver polls an immediate of rail {rail}"),
            Self::Flush(message) => write!(f, "flush of message {message}"),
            Self::SenderFails(rail) => write!(f, "FAULT: rail {rail} fails at the sender"),
            Self::SenderDestroys(rail) => write!(f, "the sender destroys its lanes of rail {rail}"),
            Self::Offer(rail) => write!(f, "the sender offers rail {rail}"),
            Self::ReceiverFails(rail) => write!(f, "FAULT: rail {rail} fails at the receiver"),
            Self::DeviceDies(rail) => write!(f, "FAULT: the receiver's device of rail {rail} dies"),
            Self::Quiet(rail) => write!(f, "rail {rail} takes no more immediates"),
            Self::ReceiverDestroys(rail) => write!(f, "the receiver destroys its lanes of rail {rail}"),
            Self::Answer(rail) => write!(f, "the receiver answers for rail {rail}"),
            Self::CloseSender => f.write_str("the sender closes"),
            Self::CloseReceiver => f.write_str("the receiver closes"),
            Self::ToSender(_) => f.write_str("the sender takes a frame"),
            Self::ToReceiver(_) => f.write_str("the receiver takes a frame"),
            Self::LateToSender(_) => f.write_str("FAULT: the sender takes a late frame"),
            Self::LateToReceiver(_) => f.write_str("FAULT: the receiver takes a late frame"),
            Self::Break => f.write_str("FAULT: the session breaks"),
            Self::SenderNotices => f.write_str("the sender notices that the session has ended"),
            Self::ReceiverNotices => f.write_str("the receiver notices that the session has ended"),
        }
    }
}
