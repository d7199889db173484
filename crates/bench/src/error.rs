//! What goes wrong while something is measured or carried, and the words that say that time ran out.

use crate::bootstrap::BootstrapError;
use crate::numbers::Mismatch;
use railweave_nccl_host::NetError;

/// What an error begins with that says only that time ran out. Among ranks that failed, one that waited too long is
/// rarely the cause, and the test run repeats a test that failed for no other reason.
pub const RAN_OUT: &str = "ran out of time: ";

/// What goes wrong in a communicator.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommunicatorError {
    /// The plugin failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The exchange with the other ranks failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Nothing moved for too long.
    #[error(
        "{}{stuck} after {seconds} s without progress of rank {rank}; check that the peer is alive and that no \
         firewall stands between, or allow more time",
        RAN_OUT
    )]
    Stalled {
        /// The rank that waits.
        rank: usize,
        /// How long it waited.
        seconds: f64,
        /// What it waits for.
        stuck: String,
    },
    /// Another rank failed, or the parent is gone.
    #[error(
        "rank {rank} was told to stop, because another rank failed or the parent is gone; look for the first error"
    )]
    Aborted {
        /// The rank that stops.
        rank: usize,
    },
    /// The plugin reported another size than was sent.
    #[error("slice {index} from rank {peer} has {bytes} bytes by test, but {expected} were sent; sizes must be exact")]
    WrongSize {
        /// The sender.
        peer: usize,
        /// The number of the slice in its stream.
        index: usize,
        /// What the plugin reported.
        bytes: i64,
        /// What was sent.
        expected: usize,
    },
    /// What arrived is not what was sent.
    #[error("the messages of {connections} connections arrived changed: {mismatch}; a plugin must move exact bytes")]
    WrongData {
        /// How many connections carried one each, in order.
        connections: usize,
        /// The difference, over all messages one after the other.
        mismatch: Mismatch,
    },
    /// A message of this process to itself is not what was sent.
    #[error(
        "a message arrived changed: byte {place} of those in flight was sent as {sent:#04x} and received as \
         {received:#04x}; a plugin must move exact bytes"
    )]
    WrongByte {
        /// The first byte that differs, over all messages in flight one after the other.
        place: usize,
        /// What was sent.
        sent: u8,
        /// What was received.
        received: u8,
    },
    /// A call after an error.
    #[error("the communicator of rank {rank} is closed since its first error; make a new one")]
    Closed {
        /// The rank.
        rank: usize,
    },
    /// No thread could be started.
    #[error("no progress thread could be started: {reason}; check the limits of this process")]
    Thread {
        /// What the kernel says.
        reason: String,
    },
    /// A call with arguments that do not fit.
    #[error("{what} is not possible; allowed are {allowed}")]
    Usage {
        /// What was asked for.
        what: String,
        /// What would be right.
        allowed: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_waited_too_long_is_what_tests_take_for_one() {
        let stalled = CommunicatorError::Stalled { rank: 1, seconds: 30.0, stuck: "a receive".to_owned() };
        assert!(railweave_patience::late_rank(&format!("rank 1: {stalled}")), "{stalled}");
        assert!(!railweave_patience::late_rank(&format!("rank 1: {}", CommunicatorError::Aborted { rank: 1 })));
        assert_eq!(RAN_OUT, railweave_patience::RAN_OUT);
    }
}
