//! The limits of set-ups in progress. A set-up takes memory before its peer has proved anything, so both ends have a
//! limit. Beyond it, this process's connects and its peers' offers wait, and the peers' sessions take turns.

use std::collections::{BTreeSet, VecDeque};

use railweave_transport::Offer;
use railweave_transport::progress::OfferWait;

use super::agenda::Agenda;
use super::command::ConnectRequest;
use crate::comm::Route;

/// Connections that peers may set up at once in this process; at most a quarter of all descriptors.
const MOST_AT_ONCE: usize = 1024;

/// Connections of one listener that may wait for `accept`; at most a quarter of all descriptors.
const MOST_UNACCEPTED: usize = 4096;
/// If no set-up has ended for this long while offers wait, set-ups of silent peers make room. A peer is silent if no
/// step of any of its set-ups came for a third of the handshake timeout or for [`SHORTEST_SILENCE_NS`], whichever is
/// longer. WAIT does not count: a peer that says nothing else would hold its place.
const STALL_NS: u64 = 500_000_000;
pub(super) const SHORTEST_SILENCE_NS: u64 = 1_000_000_000;

/// An offer waiting for its turn.
pub(super) struct WaitingOffer {
    pub(super) connection: u32,
    pub(super) offer: Offer,
    pub(super) wait: OfferWait,
}

/// The set-ups of one session, in progress and waiting.
#[derive(Default)]
pub(super) struct SessionSetups {
    pub(super) in_progress: usize,
    /// The connects that wait for the session or for their turn.
    pub(super) queued_connects: VecDeque<ConnectRequest>,
    pub(super) offers: VecDeque<WaitingOffer>,
    /// The time of the last step of a set-up of this session.
    pub(super) stepped_ns: u64,
}

impl SessionSetups {
    /// Returns true if a set-up is in progress.
    pub(super) fn has_any(&self) -> bool {
        self.in_progress > 0
    }

    /// Returns true if offers wait.
    pub(super) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Queues a connect.
    pub(super) fn queue_connect(&mut self, request: ConnectRequest) {
        self.queued_connects.push_back(request);
    }

    /// Takes the queued connects.
    pub(super) fn take_queued_connects(&mut self) -> VecDeque<ConnectRequest> {
        std::mem::take(&mut self.queued_connects)
    }
}

/// The set-ups that peers have begun in this process.
pub(super) struct ProcessSetups {
    pub(super) most: usize,
    pub(super) most_unaccepted: usize,
    /// Set-ups in progress, by the time of their last step.
    pub(super) in_progress: Agenda<Route>,
    /// Set-ups that ended while the set-up thread had them, by the numbers of their tasks. They keep their places until
    /// the thread has finished these tasks.
    pub(super) abandoned_tasks: BTreeSet<u64>,
    /// The number of waiting offers.
    pub(super) waiting_offers: usize,
    /// The sessions with waiting offers, each once, in turn.
    pub(super) sessions_with_offers: VecDeque<usize>,
    /// The times to tell peers that their offers wait, in order, for fabrics whose set-ups take long.
    pub(super) wait_notices: VecDeque<(u64, Route)>,
    /// Sessions with waiting connects that may begin.
    pub(super) sessions_with_connects: Vec<usize>,
    pub(super) ended_ns: u64,
    /// The time to look for room again.
    pub(super) again_ns: Option<u64>,
}

impl ProcessSetups {
    pub(super) fn new(most_files: u64) -> Self {
        let quarter = usize::try_from(most_files / 4).unwrap_or(usize::MAX);
        Self {
            most: quarter.clamp(1, MOST_AT_ONCE),
            most_unaccepted: quarter.clamp(1, MOST_UNACCEPTED),
            in_progress: Agenda::default(),
            abandoned_tasks: BTreeSet::new(),
            waiting_offers: 0,
            sessions_with_offers: VecDeque::new(),
            wait_notices: VecDeque::new(),
            sessions_with_connects: Vec::new(),
            ended_ns: 0,
            again_ns: None,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_progress.len() + self.abandoned_tasks.len() < self.most
    }

    /// Returns true if set-ups that have ended, but are still on the set-up thread, hold all places. Only that thread
    /// can then give one back.
    pub(super) fn are_all_places_abandoned(&self) -> bool {
        self.abandoned_tasks.len() >= self.most
    }

    /// Notes that an offer waits. If it is the first, the time without progress counts from now.
    pub(super) fn note_waiting_offer(&mut self, now_ns: u64) {
        if self.again_ns.is_none() {
            self.ended_ns = now_ns;
            self.again_ns = Some(now_ns);
        }
    }

    /// Notes that a place has become free.
    pub(super) fn note_free_place(&mut self, now_ns: u64) {
        self.ended_ns = now_ns;
        if self.again_ns.is_some() {
            self.again_ns = Some(now_ns);
        }
    }

    /// Returns true if no set-up has ended for [`STALL_NS`], so that some must make room.
    pub(super) fn are_stalled(&self, now_ns: u64) -> bool {
        self.ended_ns.saturating_add(STALL_NS) <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn set_ups_are_stalled_if_none_has_ended_for_half_a_second_while_others_wait() {
        let mut setups = ProcessSetups::new(4096);
        // None has ever ended, and no offer has waited.
        setups.note_waiting_offer(10 * SECOND);
        assert!(!setups.are_stalled(10 * SECOND + STALL_NS - 1));
        setups.note_waiting_offer(10 * SECOND + 1);
        assert!(setups.are_stalled(10 * SECOND + STALL_NS), "the second that waits changes nothing");
    }
}
