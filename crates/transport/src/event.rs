//! The events of sessions and connections that are worth a report: one list, handed out by polling. Log lines and all
//! other reports on a process's connections are made from it.

use std::fmt;

use railweave_fabric::RailId;

use crate::{LeftOut, RailName, Unwelcome};

/// A message that was longer than its receive, and was truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// The tag.
    pub tag: u32,
    /// Bytes of the message.
    pub message: u64,
    /// Bytes of the receive, to which it was truncated.
    pub receive: u64,
}

/// Something that happened. The text of a connection's event does not name the peer, which the caller knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer is not welcome on a session: [`crate::Session::poll_event`].
    Unwelcome(Unwelcome),
    /// A connection is set up without one of its rails: [`crate::Handshake::poll_event`].
    RailLeftOut {
        /// The rail.
        rail: RailId,
        /// Its two ends.
        name: RailName,
        /// The reason.
        reason: LeftOut,
    },
    /// The first message of a connection that was truncated to its receive: [`crate::SendConnection::poll_event`].
    MessageTruncated(Truncated),
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwelcome(unwelcome) => unwelcome.fmt(out),
            Self::RailLeftOut { rail, name, reason } => write!(out, "rail {rail} ({name}) is left out: {reason}"),
            Self::MessageTruncated(Truncated { tag, message, receive }) => write!(
                out,
                "a message of {message} bytes (tag {tag:#x}) was truncated to the {receive} bytes of its receive; the \
                 application's send and receive sizes differ (said once per connection)"
            ),
        }
    }
}
