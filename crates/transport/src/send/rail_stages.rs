//! The stages of a sending connection's rails, from their failure until they are back.

use std::collections::VecDeque;
use std::time::Duration;

use railweave_fabric::{Fabric, LaneId, MAX_RAILS, RailError, RailId};

use super::refusals::Refusals;
use crate::message::{Incarnation, Listed, RailMessage, RailNews};
use crate::recovery::{Pauses, RailWork, RecoveryAction};
use crate::{Message, Token};

/// The recovery of all rails of a sending connection.
pub(super) struct Recovery<F: Fabric> {
    pub(super) rails: [OneRail<F>; MAX_RAILS],
    pub(super) actions: VecDeque<RecoveryAction>,
    pub(super) refusals: Refusals,
    /// The first pause before a rail is brought up again, in nanoseconds.
    pub(super) pause_ns: u64,
}

/// The recovery of one rail.
pub(super) struct OneRail<F: Fabric> {
    pub(super) incarnation: Incarnation,
    pub(super) stage: Stage<F>,
    pub(super) pauses: Pauses,
    /// True if something has said that its path may be back since new lanes were last opened.
    pub(super) is_hurried: bool,
    /// The bytes that were sent again for it since it went down.
    pub(super) repaired: u64,
    /// The refusal for which it was given up last, if one was the reason.
    pub(super) refused: Option<(LaneId, RailError)>,
}

/// The stage of a rail.
pub(super) enum Stage<F: Fabric> {
    /// It carries data, or it never came up.
    Up,
    /// Its lanes are on their way to their end.
    Fencing,
    /// RAIL_DOWN with these entries is out.
    Asked(Vec<Listed>),
    /// The peer has answered; new lanes are opened at this time.
    Resting { until_ns: u64 },
    /// New lanes are being opened.
    Opening,
    /// New lanes are offered.
    Offered(F::PendingRail),
    /// The lanes are being connected. `is_wanted` is false once the peer has given them up.
    Connecting { is_wanted: bool },
    /// Their sockets are being dialled, with this token.
    Dialling { pending: F::PendingRail, token: Token, missing: u32 },
}

impl<F: Fabric> Recovery<F> {
    /// Returns the recovery of a connection that brings rails up again after this first pause.
    pub(super) fn new(pause: Duration) -> Self {
        let rails = std::array::from_fn(|_| OneRail {
            incarnation: Incarnation::default(),
            stage: Stage::Up,
            pauses: Pauses::new(pause),
            is_hurried: false,
            repaired: 0,
            refused: None,
        });
        let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        Self { rails, actions: VecDeque::new(), refusals: Refusals::default(), pause_ns }
    }

    pub(super) fn say(&mut self, rail: RailId, message: RailMessage) {
        let incarnation = self.rails[rail].incarnation;
        self.actions.push_back(RecoveryAction::Send(Message::Rail(RailNews { rail, incarnation, message })));
    }

    /// Has lanes dropped that are of no use any more.
    pub(super) fn free(&mut self, lanes: impl Send + 'static) {
        self.actions.push_back(RecoveryAction::Free(Box::new(lanes)));
    }

    pub(super) fn work(&mut self, work: impl RailWork + 'static) {
        self.actions.push_back(RecoveryAction::Work(Box::new(work)));
    }

    /// Shortens the pauses of rails that are down: no other carries anything.
    pub(super) fn rest_less(&mut self, now_ns: u64) {
        for rail in RailId::all() {
            let OneRail { stage, pauses, .. } = &mut self.rails[rail];
            if let Stage::Resting { until_ns } = stage
                && *until_ns < u64::MAX
            {
                *until_ns = (*until_ns).min(pauses.latest_ns(now_ns));
            }
        }
    }

    /// Says that the lanes of an incarnation are gone that never carried anything.
    pub(super) fn say_never_up(&mut self, rail: RailId) {
        self.rails[rail].stage = Stage::Asked(Vec::new());
        self.say(rail, RailMessage::Down(Vec::new()));
    }
}
