//! Mutations: one rule of the protocol each, wrong or left out.

use std::fmt;

/// A rule that is wrong or left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    /// The receiver answers before its lanes are destroyed.
    AnswerBeforeDestroy,
    /// The receiver destroys its lanes before it has polled the queue empty.
    DestroyBeforePoll,
    /// The receiver does not poll again after it has destroyed its lanes.
    NoPollAfterDestroy,
    /// The receiver answers without a fence.
    NoReceiverFence,
    /// The sender says `RAIL_DOWN` while its lanes still take CTS.
    DownBeforeDestroy,
    /// The sender repairs unsure parts before the answer.
    RepairBeforeAnswer,
    /// The receiver adds the bytes of repairs to those of originals, and ignores the size of the entry.
    RepairsSummed,
    /// The sender also repairs parts that were called seen.
    SeenIsRepaired,
    /// A repair of the leader's part comes without the record.
    RepairWithoutRecord,
    /// The immediate of one lane counts for all lanes of a striped part.
    LaneSpeaksForPart,
    /// A place of the CTS ring is used again as soon as its slot is complete.
    PlaceReusedAtOnce,
    /// A place of the CTS ring waits only for copies on rails that the receiver has given up.
    PlaceIgnoresSlowRail,
    /// CTS are not written again when a rail is given up.
    CtsNotRepeated,
    /// The entries to be written again are chosen when the rail is given up, not when they are written.
    DueSinceFailure,
    /// No empty signalled write follows the CTS on other rails when entries are written again.
    CtsNotProbed,
    /// An incarnation has receives for originals only.
    NoReceivesForRepairs,
    /// As many repairs may be without acknowledgement as the receiver posted receives for when it answered.
    CreditByAcknowledgement,
    /// The receiver does not notice that a later receive has taken an early one's buffer.
    ReuseUnnoticed,
    /// A receive may take an early one's buffer although a part of that was called unseen.
    ReuseUnhindered,
    /// An early slot is free as soon as its buffer is taken again.
    EarlySlotFreed,
    /// A `RAIL_STATE` counts for whichever incarnation is current.
    StaleStateTaken,
    /// A `RAIL_SUSPECT` counts for whichever incarnation is current.
    StaleSuspectTaken,
    /// `RAIL_SUSPECT` of a rail that is offered has no effect.
    SuspectIgnoredInOffer,
    /// `RAIL_DOWN` of an incarnation that the receiver never opened has no effect.
    UnopenedDownIgnored,
    /// A repeated `RAIL_OFFER` opens a fenced incarnation again.
    OfferOpensTwice,
    /// A repeated `RAIL_DOWN` has no answer.
    AnswerOnlyOnce,
    /// Nothing is sent again when a session is dialled again.
    FramesNotRepeated,
    /// A mask may name only rails that the receiver uses now.
    MaskOfUsableRails,
    /// The receiver ignores which parts are listed as acknowledged.
    AcknowledgedUnlisted,
    /// A part that can no longer be flushed still counts as seen.
    UnflushableIsSeen,
    /// A flush uses the rails of the mask, not those that carried the parts.
    FlushByMask,
    /// A BYE says nothing about what has been received.
    ByeWithoutState,
    /// The BYE calls parts of an early receive unseen, although its application has closed.
    ByeForgetsEarly,
    /// A write that the peer refuses ends the connection, and is not taken as the failure of its rail.
    RefusalEnds,
    /// A BYE that comes after the end of its connection has no answer.
    LateByeUnanswered,
    /// The answer that a connection does not exist has itself an answer.
    NoneIsAnswered,
}

impl Mutation {
    /// All mutations, in the order of the page.
    pub const ALL: [Self; 36] = [
        Self::AnswerBeforeDestroy,
        Self::DestroyBeforePoll,
        Self::NoPollAfterDestroy,
        Self::NoReceiverFence,
        Self::DownBeforeDestroy,
        Self::RepairBeforeAnswer,
        Self::RepairsSummed,
        Self::SeenIsRepaired,
        Self::RepairWithoutRecord,
        Self::LaneSpeaksForPart,
        Self::PlaceReusedAtOnce,
        Self::PlaceIgnoresSlowRail,
        Self::CtsNotRepeated,
        Self::DueSinceFailure,
        Self::CtsNotProbed,
        Self::NoReceivesForRepairs,
        Self::CreditByAcknowledgement,
        Self::ReuseUnnoticed,
        Self::ReuseUnhindered,
        Self::EarlySlotFreed,
        Self::StaleStateTaken,
        Self::StaleSuspectTaken,
        Self::SuspectIgnoredInOffer,
        Self::UnopenedDownIgnored,
        Self::OfferOpensTwice,
        Self::AnswerOnlyOnce,
        Self::FramesNotRepeated,
        Self::MaskOfUsableRails,
        Self::AcknowledgedUnlisted,
        Self::UnflushableIsSeen,
        Self::FlushByMask,
        Self::ByeWithoutState,
        Self::ByeForgetsEarly,
        Self::RefusalEnds,
        Self::LateByeUnanswered,
        Self::NoneIsAnswered,
    ];
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
