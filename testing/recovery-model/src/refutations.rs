//! The configurations that refute the mutations.

use crate::config::{Config, Habit, Message, Split};
use crate::configurations::{BACK, EARLY, GPU, ONE, PLAIN, RECEIVER, SENDER, TWO};
use crate::mutation::Mutation as M;
use crate::property::Property as P;

type Row = (M, P, Config);

/// Returns each mutation with the property that refutes it, and a configuration in which it does.
#[must_use]
pub fn refutations() -> Vec<Row> {
    let rows = [fences_and_repairs(), cts_and_receives(), frames_and_closes()];
    let name = |(mutation, property, config)| {
        (mutation, property, Config { name: "mutation", mutation: Some(mutation), ..config })
    };
    rows.into_iter().flatten().map(name).collect()
}

fn fences_and_repairs() -> Vec<Row> {
    vec![
        (M::AnswerBeforeDestroy, P::Fenced, RECEIVER),
        (M::DestroyBeforePoll, P::SenderKnows, RECEIVER),
        (M::NoPollAfterDestroy, P::AnsweredFirst, Config { habit: Habit::Keeps, ..RECEIVER }),
        (M::NoReceiverFence, P::Fenced, SENDER),
        (M::DownBeforeDestroy, P::RingMovesOn, Config { messages: TWO, places: 1, split: Split::One, ..SENDER }),
        (M::RepairBeforeAnswer, P::AnsweredFirst, SENDER),
        (M::RepairsSummed, P::ExactSize, Config { lanes: 2, ..SENDER }),
        (M::EntryWithoutMask, P::Done, Config { slots: 1, ..SENDER }),
        (M::SeenIsRepaired, P::CountedOnce, Config { lanes: 2, split: Split::All, sender_faults: 1, ..BACK }),
        (M::RepairWithoutRecord, P::ExactSize, Config { messages: &[Message::RECORD], ..SENDER }),
        (M::RepairsUnlisted, P::OpenBuffer, Config { sender_faults: 2, split: ONE, ..BACK }),
        (M::LaneSpeaksForPart, P::Placed, Config { lanes: 2, ..PLAIN }),
        (M::AnswerOnlyOnce, P::Done, Config { breaks: 1, ..SENDER }),
        (
            M::RepeatJudgesAgain,
            P::Done,
            Config { messages: GPU, device_deaths: 1, sender_faults: 1, breaks: 1, split: Split::Usable, ..BACK },
        ),
        (M::AcknowledgedUnlisted, P::Done, Config { device_deaths: 1, ..PLAIN }),
        (M::MaskOfUsableRails, P::Survives, RECEIVER),
        (M::UnflushableIsSeen, P::Visible, Config { messages: &[Message::GPU], device_deaths: 1, ..PLAIN }),
        (M::FlushByMask, P::Visible, Config { messages: &[Message::GPU], ..SENDER }),
        (M::FlushWholeMask, P::Survives, Config { messages: GPU, device_deaths: 1, ..PLAIN }),
    ]
}

fn cts_and_receives() -> Vec<Row> {
    vec![
        (M::PlaceReusedAtOnce, P::RingMovesOn, Config { messages: TWO, places: 1, split: Split::One, ..RECEIVER }),
        (
            M::PlaceIgnoresSlowRail,
            P::RingMovesOn,
            Config { comes_back: true, messages: TWO, places: 1, split: Split::One, ..RECEIVER },
        ),
        (M::GivenUpIsSettled, P::RingMovesOn, Config { messages: TWO, places: 1, split: ONE, ..RECEIVER }),
        (M::CtsNotRepeated, P::Done, RECEIVER),
        (
            M::DueSinceFailure,
            P::RingMovesOn,
            Config { messages: TWO, places: 1, split: Split::One, sender_faults: 1, receiver_faults: 1, ..BACK },
        ),
        (M::RewritesUnsignalled, P::Done, Config { messages: TWO, places: 1, split: ONE, receiver_faults: 1, ..BACK }),
        (
            M::CompletionSpeaksForItself,
            P::Done,
            Config { messages: TWO, places: 1, split: ONE, receiver_faults: 1, ..BACK },
        ),
        (M::CtsNotProbed, P::Done, Config { messages: TWO, places: 1, split: Split::One, receiver_faults: 1, ..BACK }),
        (M::CtsBeforeUp, P::PeerReady, Config { sender_faults: 1, split: ONE, ..BACK }),
        (M::OfferBeforeAnswer, P::SenderKnows, Config { split: ONE, receiver_faults: 1, ..BACK }),
        (M::NoReceivesForRepairs, P::ReceivePosted, Config { slots: 1, ..SENDER }),
        (
            M::OneReceiveForRepairs,
            P::ReceivePosted,
            Config { rails: 3, sender_faults: 2, slots: 1, split: Split::Usable, ..PLAIN },
        ),
        (M::CreditByAcknowledgement, P::ReceivePosted, Config { messages: TWO, split: Split::Usable, ..SENDER }),
        (M::ReuseUnnoticed, P::OpenBuffer, Config { messages: EARLY, buffers: 1, is_torn: true, ..RECEIVER }),
        (M::ReuseUnhindered, P::OpenBuffer, Config { messages: EARLY, buffers: 1, is_torn: true, ..RECEIVER }),
        (M::EarlySlotFreed, P::OwnSlot, Config { messages: EARLY, buffers: 1, is_torn: true, ..PLAIN }),
        (M::EarlyAlwaysSeen, P::Placed, Config { messages: &[Message::EARLY], ..RECEIVER }),
    ]
}

fn frames_and_closes() -> Vec<Row> {
    vec![
        (
            M::StaleStateTaken,
            P::StaleIgnored,
            Config { sender_faults: 2, breaks: 1, is_late: true, split: ONE, ..BACK },
        ),
        (M::StaleSuspectTaken, P::StaleIgnored, Config { receiver_faults: 1, breaks: 1, is_late: true, ..BACK }),
        (M::StaleDownTaken, P::StaleIgnored, Config { sender_faults: 1, breaks: 1, is_late: true, split: ONE, ..BACK }),
        (
            M::StaleLanesTaken,
            P::StaleIgnored,
            Config { sender_faults: 2, breaks: 1, is_late: true, split: ONE, ..BACK },
        ),
        (M::StaleUpTaken, P::StaleIgnored, Config { sender_faults: 2, breaks: 1, is_late: true, split: ONE, ..BACK }),
        (
            M::IncarnationsDoNotWrap,
            P::StaleIgnored,
            Config { first_e: 255, sender_faults: 1, breaks: 1, is_late: true, split: ONE, ..BACK },
        ),
        (
            M::SuspectIgnoredInOffer,
            P::Done,
            Config { receiver_faults: 2, breaks: 1, split: Split::One, slots: 1, ..BACK },
        ),
        (M::UnopenedDownIgnored, P::Done, Config { sender_faults: 2, breaks: 1, ..BACK }),
        (
            M::OfferOpensTwice,
            P::Done,
            Config { sender_faults: 2, split: Split::One, slots: 1, breaks: 1, is_late: true, ..BACK },
        ),
        (M::OfferAnsweredOnce, P::Done, Config { sender_faults: 1, breaks: 1, split: ONE, ..BACK }),
        (M::FramesNotRepeated, P::Done, Config { breaks: 1, ..SENDER }),
        (M::SuspectSaidOnce, P::Done, Config { breaks: 1, ..RECEIVER }),
        (M::DownSaidOnce, P::Done, Config { breaks: 1, ..SENDER }),
        (M::OfferSaidOnce, P::Done, Config { sender_faults: 1, breaks: 1, split: ONE, ..BACK }),
        (M::UpSaidOnce, P::Done, Config { sender_faults: 1, breaks: 1, split: ONE, ..BACK }),
        (M::ByeSaidOnce, P::Done, Config { closes: true, breaks: 1, ..PLAIN }),
        (M::ByeWithoutState, P::CloseIsClean, Config { closes: true, ..PLAIN }),
        (M::ByeForgetsEarly, P::CloseIsClean, Config { messages: &[Message::EARLY], closes: true, ..PLAIN }),
        (M::RefusalEnds, P::Survives, Config { messages: &[Message::EARLY], closes: true, is_torn: true, ..RECEIVER }),
        (M::LateByeUnanswered, P::Done, Config { closes: true, breaks: 1, ..PLAIN }),
        (M::NoneIsIgnored, P::Done, Config { closes: true, breaks: 1, is_late: true, ..PLAIN }),
        (M::NoneIsAnswered, P::RunEnds, Config { closes: true, breaks: 1, is_late: true, ..PLAIN }),
    ]
}
