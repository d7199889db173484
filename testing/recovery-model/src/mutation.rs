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
    /// An entry of `RAIL_DOWN` does not tell the active rails.
    EntryWithoutMask,
    /// The sender also repairs parts that were called seen.
    SeenIsRepaired,
    /// A repair of the leader's part comes without the record.
    RepairWithoutRecord,
    /// `RAIL_DOWN` lists only the originals that its rail carried, not the repairs.
    RepairsUnlisted,
    /// The immediate of one lane counts for all lanes of a striped part.
    LaneSpeaksForPart,
    /// A repeated `RAIL_DOWN` has no answer.
    AnswerOnlyOnce,
    /// A repeated `RAIL_DOWN` is answered by what is seen now, and not by the same answer.
    RepeatJudgesAgain,
    /// The receiver ignores which parts are listed as acknowledged.
    AcknowledgedUnlisted,
    /// A mask may name only rails that the receiver uses now.
    MaskOfUsableRails,
    /// A part that can no longer be flushed still counts as seen.
    UnflushableIsSeen,
    /// A flush uses the rails of the mask, not those that carried the parts.
    FlushByMask,
    /// A flush also uses the rails of the mask whose parts were called unseen.
    FlushWholeMask,
    /// A place of the CTS ring is used again as soon as its slot is complete.
    PlaceReusedAtOnce,
    /// A place of the CTS ring waits only for copies on rails that the receiver has given up.
    PlaceIgnoresSlowRail,
    /// A place waits only for copies on rails that are in use.
    GivenUpIsSettled,
    /// CTS are not written again when a rail is given up.
    CtsNotRepeated,
    /// The entries to be written again are chosen when the rail is given up, not when they are written.
    DueSinceFailure,
    /// CTS that are written again are not signalled.
    RewritesUnsignalled,
    /// The completion of a CTS says nothing about those before it.
    CompletionSpeaksForItself,
    /// No empty signalled write follows the CTS on other rails when entries are written again.
    CtsNotProbed,
    /// CTS use a rail before `RAIL_UP`.
    CtsBeforeUp,
    /// The sender offers the next incarnation before it has the answer for the one before.
    OfferBeforeAnswer,
    /// An incarnation has receives for originals only.
    NoReceivesForRepairs,
    /// An incarnation has one receive for repairs per slot, and not one for each other rail.
    OneReceiveForRepairs,
    /// As many repairs may be without acknowledgement as the receiver posted receives for when it answered.
    CreditByAcknowledgement,
    /// The receiver does not notice that a later receive has taken an early one's buffer.
    ReuseUnnoticed,
    /// A receive may take an early one's buffer although a part of that was called unseen.
    ReuseUnhindered,
    /// An early slot is free as soon as its buffer is taken again.
    EarlySlotFreed,
    /// An unsure part of an early receive counts as seen although its buffer was not taken again.
    EarlyAlwaysSeen,
    /// A `RAIL_STATE` counts for whichever incarnation is current.
    StaleStateTaken,
    /// A `RAIL_SUSPECT` counts for whichever incarnation is current.
    StaleSuspectTaken,
    /// A `RAIL_DOWN` counts for whichever incarnation is current.
    StaleDownTaken,
    /// A `RAIL_LANES` counts for whichever incarnation is current.
    StaleLanesTaken,
    /// A `RAIL_UP` counts for whichever incarnation is current.
    StaleUpTaken,
    /// Incarnations are compared without wrapping.
    IncarnationsDoNotWrap,
    /// `RAIL_SUSPECT` of a rail that is offered has no effect.
    SuspectIgnoredInOffer,
    /// `RAIL_DOWN` of an incarnation that the receiver never opened has no effect.
    UnopenedDownIgnored,
    /// A repeated `RAIL_OFFER` opens a fenced incarnation again.
    OfferOpensTwice,
    /// A repeated `RAIL_OFFER` has no answer.
    OfferAnsweredOnce,
    /// Nothing is sent again when a session is dialled again.
    FramesNotRepeated,
    /// `RAIL_SUSPECT` is not said again on a new session.
    SuspectSaidOnce,
    /// `RAIL_DOWN` is not said again on a new session.
    DownSaidOnce,
    /// `RAIL_OFFER` is not said again on a new session.
    OfferSaidOnce,
    /// `RAIL_UP` is not said again on a new session.
    UpSaidOnce,
    /// A BYE is not said again on a new session.
    ByeSaidOnce,
    /// A BYE says nothing about what has been received.
    ByeWithoutState,
    /// The BYE calls parts of an early receive unseen, although its application has closed.
    ByeForgetsEarly,
    /// A write that the peer refuses ends the connection, and is not taken as the failure of its rail.
    RefusalEnds,
    /// A BYE that comes after the end of its connection has no answer.
    LateByeUnanswered,
    /// "No such connection" does not count as BYE.
    NoneIsIgnored,
    /// The answer that a connection does not exist has itself an answer.
    NoneIsAnswered,
}

impl Mutation {
    /// All mutations, in the order of the page.
    pub const ALL: [Self; 58] = [
        Self::AnswerBeforeDestroy,
        Self::DestroyBeforePoll,
        Self::NoPollAfterDestroy,
        Self::NoReceiverFence,
        Self::DownBeforeDestroy,
        Self::RepairBeforeAnswer,
        Self::RepairsSummed,
        Self::EntryWithoutMask,
        Self::SeenIsRepaired,
        Self::RepairWithoutRecord,
        Self::RepairsUnlisted,
        Self::LaneSpeaksForPart,
        Self::AnswerOnlyOnce,
        Self::RepeatJudgesAgain,
        Self::AcknowledgedUnlisted,
        Self::MaskOfUsableRails,
        Self::UnflushableIsSeen,
        Self::FlushByMask,
        Self::FlushWholeMask,
        Self::PlaceReusedAtOnce,
        Self::PlaceIgnoresSlowRail,
        Self::GivenUpIsSettled,
        Self::CtsNotRepeated,
        Self::DueSinceFailure,
        Self::RewritesUnsignalled,
        Self::CompletionSpeaksForItself,
        Self::CtsNotProbed,
        Self::CtsBeforeUp,
        Self::OfferBeforeAnswer,
        Self::NoReceivesForRepairs,
        Self::OneReceiveForRepairs,
        Self::CreditByAcknowledgement,
        Self::ReuseUnnoticed,
        Self::ReuseUnhindered,
        Self::EarlySlotFreed,
        Self::EarlyAlwaysSeen,
        Self::StaleStateTaken,
        Self::StaleSuspectTaken,
        Self::StaleDownTaken,
        Self::StaleLanesTaken,
        Self::StaleUpTaken,
        Self::IncarnationsDoNotWrap,
        Self::SuspectIgnoredInOffer,
        Self::UnopenedDownIgnored,
        Self::OfferOpensTwice,
        Self::OfferAnsweredOnce,
        Self::FramesNotRepeated,
        Self::SuspectSaidOnce,
        Self::DownSaidOnce,
        Self::OfferSaidOnce,
        Self::UpSaidOnce,
        Self::ByeSaidOnce,
        Self::ByeWithoutState,
        Self::ByeForgetsEarly,
        Self::RefusalEnds,
        Self::LateByeUnanswered,
        Self::NoneIsIgnored,
        Self::NoneIsAnswered,
    ];
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
