//! The stages of a receiving connection's rails, from their failure until they are back.

use std::collections::VecDeque;
use std::time::Duration;

use railweave_fabric::{Fabric, MAX_RAILS, RailId, RailSet};

use crate::message::{Incarnation, Listed, RailMessage, RailNews, Seen};
use crate::recovery::{Pauses, RailWork, RecoveryAction};
use crate::sequence::Sequence;
use crate::{Message, Token};

/// The recovery of all rails of a receiving connection.
pub(super) struct Recovery<F: Fabric> {
    pub(super) rails: [OneRail<F>; MAX_RAILS],
    pub(super) actions: VecDeque<RecoveryAction>,
    /// The token that lanes present if they are sockets.
    pub(super) token: Token,
    /// True while CTS entries have to be written again, because a rail was given up that may have lost some.
    pub(super) repeats_cts: bool,
    /// The oldest receive that was not complete at the last look at the rails.
    pub(super) stuck: Option<Sequence>,
    /// The number of checks of each rail so far, and the bytes that it had brought at the last look.
    pub(super) checks: [u64; MAX_RAILS],
    pub(super) received: [u64; MAX_RAILS],
    /// The rails during whose fences no receive into GPU memory may be posted.
    pub(super) holds_receives: RailSet,
}

/// The recovery of one rail.
pub(super) struct OneRail<F: Fabric> {
    pub(super) incarnation: Incarnation,
    pub(super) stage: Stage<F>,
    /// The entries of RAIL_DOWN that wait for the answer.
    pub(super) question: Option<Vec<Listed>>,
    pub(super) pauses: Pauses,
    /// True from the news that it is back until it is down: new lanes may fail before the sender uses them.
    pub(super) is_in_use: bool,
    /// True if an event since the last offer, while the rail was down, says that its path may be back, or that a port
    /// may have another address.
    pub(super) is_hurried: bool,
}

/// The stage of a rail.
pub(super) enum Stage<F: Fabric> {
    /// It may bring data, or it never came up.
    Up,
    /// Its lanes are on their way to their end.
    Fencing,
    /// Its lanes are gone, and the sender has not said that its own are.
    Fenced,
    /// The sender has been answered.
    Answered,
    /// New lanes are being opened and connected.
    Opening,
    /// The sockets of new lanes are awaited.
    Awaiting(F::PendingRail),
}

impl<F: Fabric> Recovery<F> {
    /// Returns the recovery of a connection whose lanes have presented this token, and whose sender brings rails up
    /// again after this first pause.
    pub(super) fn new(token: Token, pause: Duration) -> Self {
        let rails = std::array::from_fn(|_| OneRail {
            incarnation: Incarnation::default(),
            stage: Stage::Up,
            question: None,
            pauses: Pauses::new(pause),
            is_in_use: true,
            is_hurried: false,
        });
        Self {
            rails,
            actions: VecDeque::new(),
            token,
            repeats_cts: false,
            stuck: None,
            checks: [0; MAX_RAILS],
            received: [0; MAX_RAILS],
            holds_receives: RailSet::EMPTY,
        }
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

    /// Returns the rail whose sockets are the first to be given up, and when: they are awaited, and a port may have
    /// another address.
    pub(super) fn late(&self) -> Option<(u64, RailId)> {
        let late = RailId::all().take(MAX_RAILS).filter_map(|rail| {
            let one = &self.rails[rail];
            let is_late = one.is_hurried && matches!(one.stage, Stage::Awaiting(_));
            is_late.then(|| (one.pauses.long_ns(), rail))
        });
        late.min()
    }

    /// Answers the sender. If the path may be back, asks for an offer soon.
    pub(super) fn say_state(&mut self, rail: RailId, seen: Vec<Seen>) {
        self.say(rail, RailMessage::State(seen));
        if self.rails[rail].is_hurried {
            self.say(rail, RailMessage::Suspect);
        }
    }

    /// Notes that the path of a rail may be back. A sender that rests between two attempts is asked for an offer, once:
    /// it may see no event of its own. Sockets that are awaited have little time left ([`Self::late`]): the sender may
    /// dial an address that the port no longer has.
    pub(super) fn hurry(&mut self, rail: RailId) {
        let one = &mut self.rails[rail];
        if matches!(one.stage, Stage::Up) || std::mem::replace(&mut one.is_hurried, true) {
            return;
        }
        if matches!(one.stage, Stage::Answered) {
            self.say(rail, RailMessage::Suspect);
        }
    }

    /// Gives new lanes up that are gone already.
    pub(super) fn give_up_new(&mut self, rail: RailId) {
        self.rails[rail].stage = Stage::Fenced;
        self.say(rail, RailMessage::Suspect);
    }
}
