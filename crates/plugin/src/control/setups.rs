//! How many connections are set up at once. Each costs memory before anything is proved of whoever began it, so both
//! ends have a bound, and what is beyond it waits: connects of this process, and offers of its peers, whose sessions
//! take turns.

use std::collections::{BTreeSet, VecDeque};

use railweave_transport::Offer;

use super::agenda::Agenda;
use super::command::ConnectRequest;
use crate::comm::Route;

/// Connections that peers may set up at once in this process, and no more than a quarter of all descriptors.
const MOST_AT_ONCE: usize = 1024;

/// Connections of one listener that may wait for `accept`, and no more than a quarter of all descriptors.
const MOST_UNACCEPTED: usize = 4096;
/// When no set-up has ended for this long while offers wait, those make room of whose peers nothing has come, for any
/// of their set-ups, for a third of the handshake's time-out, and for no less than [`SHORTEST_SILENCE_NS`]. WAIT is
/// nothing here: whoever says nothing else would keep a place for nothing.
const STALL_NS: u64 = 500_000_000;
pub(super) const SHORTEST_SILENCE_NS: u64 = 1_000_000_000;

/// An offer that waits for its turn.
pub(super) struct WaitingOffer {
    pub(super) connection: u32,
    pub(super) offer: Offer,
    pub(super) deadline_ns: u64,
    /// Until when the peer may be told that it waits.
    pub(super) wait_until_ns: u64,
}

/// What is being set up on one session, and what waits.
#[derive(Default)]
pub(super) struct SessionSetups {
    pub(super) under_way: usize,
    pub(super) requests: VecDeque<ConnectRequest>,
    pub(super) offers: VecDeque<WaitingOffer>,
    /// When a set-up of this session last took a step.
    pub(super) stepped_ns: u64,
}

impl SessionSetups {
    /// Whether anything is being set up on it.
    pub(super) fn has_any(&self) -> bool {
        self.under_way > 0
    }

    /// Whether offers wait on it.
    pub(super) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Lets a connect wait until the session is up.
    pub(super) fn wait_for_session(&mut self, request: ConnectRequest) {
        self.requests.push_back(request);
    }

    /// The connects that wait.
    pub(super) fn take_requests(&mut self) -> VecDeque<ConnectRequest> {
        std::mem::take(&mut self.requests)
    }
}

/// What peers set up in this process.
pub(super) struct Setups {
    pub(super) most: usize,
    pub(super) most_unaccepted: usize,
    /// By when their peers were last heard of.
    pub(super) under_way: Agenda<Route>,
    /// Set-ups of peers that are over while the set-up thread has them, by their numbers there: until it is rid of them
    /// they take the place of others.
    pub(super) at_worker: BTreeSet<u64>,
    /// Offers that wait.
    pub(super) waiting: usize,
    /// The sessions with such offers, each once, in turn.
    pub(super) turns: VecDeque<usize>,
    /// When to tell peers that their offers wait, where set-ups take long: in the order of the times.
    pub(super) telling: VecDeque<(u64, Route)>,
    /// Sessions with connects that wait and may go on.
    pub(super) connecting: Vec<usize>,
    pub(super) ended_ns: u64,
    /// When to look again whether there is room.
    pub(super) again_ns: Option<u64>,
}

impl Setups {
    pub(super) fn new(most_files: u64) -> Self {
        let quarter = usize::try_from(most_files / 4).unwrap_or(usize::MAX);
        Self {
            most: quarter.clamp(1, MOST_AT_ONCE),
            most_unaccepted: quarter.clamp(1, MOST_UNACCEPTED),
            under_way: Agenda::default(),
            at_worker: BTreeSet::new(),
            waiting: 0,
            turns: VecDeque::new(),
            telling: VecDeque::new(),
            connecting: Vec::new(),
            ended_ns: 0,
            again_ns: None,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() + self.at_worker.len() < self.most
    }

    /// Whether all places are those of set-ups that are over, so that only the set-up thread can give any back.
    pub(super) fn is_worker_in_all(&self) -> bool {
        self.at_worker.len() >= self.most
    }

    /// An offer waits. Where it is the first, standing still counts from now.
    pub(super) fn begins_to_wait(&mut self, now_ns: u64) {
        if self.again_ns.is_none() {
            self.ended_ns = now_ns;
            self.again_ns = Some(now_ns);
        }
    }

    /// A place is free now.
    pub(super) fn has_ended(&mut self, now_ns: u64) {
        self.ended_ns = now_ns;
        if self.again_ns.is_some() {
            self.again_ns = Some(now_ns);
        }
    }

    /// Whether no set-up has ended for so long that some must make room.
    pub(super) fn stands_still(&self, now_ns: u64) -> bool {
        self.ended_ns.saturating_add(STALL_NS) <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn set_ups_stand_still_when_none_has_ended_for_half_a_second_while_others_wait() {
        let mut setups = Setups::new(4096);
        // None has ever ended, and nobody has waited.
        setups.begins_to_wait(10 * SECOND);
        assert!(!setups.stands_still(10 * SECOND + STALL_NS - 1));
        setups.begins_to_wait(10 * SECOND + 1);
        assert!(setups.stands_still(10 * SECOND + STALL_NS), "the second that waits changes nothing");
    }
}
