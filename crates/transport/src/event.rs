//! The events of sessions and connections that are worth a report: one list, handed out by polling. Log lines and all
//! other reports on a process's connections are made from it.

use std::fmt;

use railweave_fabric::{RailId, RailSet};

use crate::{GivenUp, LeftOut, RailName, Unwelcome};

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
    /// A rail was given up, and the connection goes on without it.
    RailDown {
        /// The rail.
        rail: RailId,
        /// Its name, with its number.
        name: String,
        /// The reason.
        why: GivenUp,
        /// The rails that carry its load now.
        left: RailSet,
        /// True if it never comes back, because its device has failed for good.
        is_gone: bool,
    },
    /// A rail that was given up does not come back: the first attempt that has failed after ten seconds.
    RailAway {
        /// The rail.
        rail: RailId,
        /// Its name, with its number.
        name: String,
        /// The time for which it has been down, in nanoseconds.
        for_ns: u64,
        /// The reason of the last failure.
        reason: String,
    },
    /// A rail carries data again.
    RailUp {
        /// The rail.
        rail: RailId,
        /// Its name, with its number.
        name: String,
        /// The time for which it was down, in nanoseconds.
        after_ns: u64,
        /// The bytes that went again over other rails meanwhile; `None` at the receiving end, which does not know.
        repaired: Option<u64>,
    },
    /// The first message of a connection that was truncated to its receive: [`crate::SendConnection::poll_event`].
    MessageTruncated(Truncated),
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwelcome(unwelcome) => unwelcome.fmt(out),
            Self::RailLeftOut { rail, name, reason } => write!(out, "rail {rail} ({name}) is left out: {reason}"),
            Self::RailDown { name, why, left, .. } if left.is_empty() => {
                write!(out, "{name} is down: {why}; no rail is left, so the connection waits until one is back")
            }
            Self::RailDown { name, why, left, is_gone, .. } => {
                let left: Vec<_> = left.iter().map(|rail| rail.to_string()).collect();
                let (rails, carry) = if left.len() == 1 { ("rail", "carries") } else { ("rails", "carry") };
                let until = if *is_gone {
                    "from now on; restart the job once the device works again"
                } else {
                    "until it is back"
                };
                write!(out, "{name} is down: {why}; {rails} {} {carry} its load {until}", left.join(", "))
            }
            Self::RailAway { name, for_ns, reason, .. } => {
                let seconds = *for_ns as f64 / 1e9;
                write!(out, "{name} has not come back for {seconds:.0} s: {reason}; it is opened again until it does")
            }
            Self::RailUp { name, after_ns, repaired, .. } => {
                write!(out, "{name} is back after {:.2} s", *after_ns as f64 / 1e9)?;
                match repaired {
                    Some(bytes) => write!(out, "; {bytes} bytes were sent again"),
                    None => Ok(()),
                }
            }
            Self::MessageTruncated(Truncated { tag, message, receive }) => write!(
                out,
                "a message of {message} bytes (tag {tag:#x}) was truncated to the {receive} bytes of its receive; the \
                 application's send and receive sizes differ (said once per connection)"
            ),
        }
    }
}
