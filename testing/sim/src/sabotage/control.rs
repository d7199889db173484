//! Sabotage of sessions and handshakes: of the frames between their ends, and of the grace that connections have.

use railweave_transport::{Frame, Message};

use super::kind::Sabotage;
use super::plot::Plot;

impl Plot {
    /// Returns the frame that arrives in place of this one; `None` if it is lost.
    pub(crate) fn carried(&self, mut frame: Frame) -> Option<Frame> {
        match &mut frame.message {
            Message::Pong if self.is(Sabotage::PongForgotten) => return None,
            Message::Bye if self.is(Sabotage::ByeForgotten) => return None,
            Message::Lanes(lanes) if self.is(Sabotage::ByteSumTrusted) => lanes.byte_counts = true,
            _ => {}
        }
        Some(frame)
    }

    /// Returns the time, in nanoseconds, for which a connection outlives its peer's BYE or its session: `grace_ns`,
    /// unless that is sabotaged.
    pub(crate) fn grace_ns(&self, grace_ns: u64) -> u64 {
        if self.is(Sabotage::GraceForgotten) { 0 } else { grace_ns }
    }
}
