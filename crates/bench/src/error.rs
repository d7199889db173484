//! The errors of measurements and collectives, and the prefix of those that say that time ran out.

use crate::bootstrap::BootstrapError;
use crate::numbers::Mismatch;
use railweave_nccl_host::NetError;

/// The prefix of an error that only says that time ran out. If several ranks fail, one that waited too long is rarely
/// the cause. The test run repeats a test that failed only for this reason.
pub const RAN_OUT: &str = "ran out of time: ";

/// An error of a communicator.
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
         firewall blocks it, or allow more time",
        RAN_OUT
    )]
    Stalled {
        /// The rank that waits.
        rank: usize,
        /// The time that it waited.
        seconds: f64,
        /// The event that it waits for.
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
    /// The plugin reported a size other than that sent.
    #[error(
        "slice {index} from rank {peer} has {bytes} bytes according to test, but {expected} were sent; sizes must be \
         exact"
    )]
    WrongSize {
        /// The sender.
        peer: usize,
        /// The number of the slice in its stream.
        index: usize,
        /// The size that the plugin reported.
        bytes: i64,
        /// The size that was sent.
        expected: usize,
    },
    /// A message on one of several connections arrived changed.
    #[error("the messages of {connections} connections arrived changed: {mismatch}; a plugin must move exact bytes")]
    WrongData {
        /// The number of connections that carried one message each, in order.
        connections: usize,
        /// The difference, in all these messages one after the other.
        mismatch: Mismatch,
    },
    /// A call after an error.
    #[error("the communicator of rank {rank} was closed by its first error; make a new one")]
    Closed {
        /// The rank.
        rank: usize,
    },
    /// No thread could be started.
    #[error("no progress thread could be started: {reason}; check the limits of this process")]
    Thread {
        /// The kernel's message.
        reason: String,
    },
    /// A handle could not be changed for the other ranks.
    #[error("a handle of the plugin cannot be announced: {reason}")]
    Announcement {
        /// A sentence.
        reason: String,
    },
    /// A call with invalid arguments.
    #[error("{what} is not possible; allowed: {allowed}")]
    Usage {
        /// The request.
        what: String,
        /// The valid arguments.
        allowed: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_recognise_a_rank_that_waited_too_long() {
        let stalled = CommunicatorError::Stalled { rank: 1, seconds: 30.0, stuck: "a receive".to_owned() };
        assert!(railweave_patience::late_rank(&format!("rank 1: {stalled}")), "{stalled}");
        assert!(!railweave_patience::late_rank(&format!("rank 1: {}", CommunicatorError::Aborted { rank: 1 })));
        assert_eq!(RAN_OUT, railweave_patience::RAN_OUT);
    }
}
