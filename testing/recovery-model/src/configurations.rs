//! The configurations that are searched, and those that refute the mutations.

use crate::config::{Config, Habit, Message, Split};
use crate::mutation::Mutation;
use crate::property::Property;

const PLAIN: Config = Config::PLAIN;
const TWO: &[Message] = &[Message::PLAIN; 2];
const THREE: &[Message] = &[Message::PLAIN; 3];
const SENDER: Config = Config { sender_faults: 1, ..PLAIN };
const RECEIVER: Config = Config { receiver_faults: 1, ..PLAIN };
const BACK: Config = Config { comes_back: true, ..PLAIN };

/// Returns the configurations of the tests: each plays one or two features, with all faults of one or two kinds.
#[must_use]
pub fn small() -> Vec<Config> {
    vec![
        Config { name: "no fault", messages: THREE, ..PLAIN },
        Config { name: "a rail fails at the sender", messages: TWO, ..SENDER },
        Config { name: "a rail fails at the receiver", messages: TWO, split: Split::Usable, ..RECEIVER },
        Config { name: "an adapter keeps completions", habit: Habit::Keeps, is_torn: true, ..RECEIVER },
        Config { name: "a rail fails at each end", sender_faults: 1, receiver_faults: 1, ..BACK },
        Config { name: "the session breaks", sender_faults: 1, breaks: 1, is_late: true, ..BACK },
        Config { name: "stripes", lanes: 2, is_torn: true, split: Split::Usable, ..RECEIVER },
        Config { name: "records", messages: &[Message::RECORD; 2], slots: 1, ..SENDER },
        Config { name: "a group", messages: &[Message::GROUP], ..RECEIVER },
        Config { name: "the ring", messages: TWO, places: 1, split: Split::One, receiver_faults: 1, ..BACK },
        Config { name: "early receives", messages: EARLY, buffers: 1, is_torn: true, split: Split::One, ..RECEIVER },
        Config { name: "a flush", messages: &[Message::GPU], is_torn: true, ..RECEIVER },
        Config { name: "a device dies", messages: &[Message::GPU, Message::PLAIN], device_deaths: 1, ..PLAIN },
        Config { name: "a close", closes: true, breaks: 1, is_late: true, ..SENDER },
        Config { name: "a close after early receives", messages: &[Message::EARLY], closes: true, ..RECEIVER },
    ]
}

const EARLY: &[Message] = &[Message::EARLY; 2];

/// Returns the configurations that take minutes.
#[must_use]
pub fn large() -> Vec<Config> {
    let both_ends = Config { sender_faults: 1, receiver_faults: 1, ..BACK };
    let sessions = Config { breaks: 2, is_late: true, ..BACK };
    vec![
        Config { name: "three messages, two slots", messages: THREE, split: Split::Usable, ..SENDER },
        Config { name: "three slots", messages: THREE, slots: 3, places: 3, split: Split::One, ..RECEIVER },
        Config { name: "one slot, at each end", messages: TWO, slots: 1, split: Split::One, ..both_ends.clone() },
        Config { name: "torn, at each end", is_torn: true, ..both_ends.clone() },
        Config { name: "torn, an adapter keeps", is_torn: true, habit: Habit::Keeps, ..both_ends.clone() },
        Config { name: "twice at the receiver", receiver_faults: 2, ..BACK },
        Config { name: "twice at the sender", sender_faults: 2, messages: TWO, split: Split::One, ..BACK },
        Config { name: "two breaks, sender", sender_faults: 1, ..sessions.clone() },
        Config { name: "two breaks, receiver", receiver_faults: 1, ..sessions.clone() },
        Config { name: "stripes", lanes: 2, messages: TWO, ..SENDER },
        Config { name: "stripes, torn", lanes: 2, is_torn: true, split: Split::One, ..both_ends.clone() },
        Config { name: "stripes with records", lanes: 2, messages: &[Message::RECORD], ..both_ends.clone() },
        Config { name: "records", messages: &[Message::RECORD; 2], slots: 1, ..both_ends.clone() },
        Config {
            name: "a group round the ring",
            messages: &[Message::PLAIN, Message::GROUP],
            split: Split::One,
            ..both_ends.clone()
        },
        Config { name: "the ring", messages: TWO, places: 1, ..both_ends.clone() },
        Config {
            name: "early receives",
            messages: EARLY,
            buffers: 1,
            is_torn: true,
            split: Split::One,
            ..both_ends.clone()
        },
        Config { name: "flushes", messages: &[Message::GPU; 2], buffers: 1, split: Split::One, ..both_ends.clone() },
        Config { name: "a device and a rail", messages: &[Message::GPU], device_deaths: 1, ..both_ends.clone() },
        Config { name: "a close", closes: true, breaks: 1, is_late: true, ..both_ends.clone() },
        Config { name: "a close after early", messages: &[Message::EARLY], closes: true, breaks: 1, ..both_ends },
    ]
    .into_iter()
    .map(|config| Config { is_reduced: true, ..config })
    .collect()
}

/// Returns each mutation with the property that refutes it, and a configuration in which it does.
#[must_use]
pub fn mutations() -> Vec<(Mutation, Property, Config)> {
    use Mutation as M;
    use Property as P;
    let rows = vec![
        (M::AnswerBeforeDestroy, P::Fenced, RECEIVER),
        (M::DestroyBeforePoll, P::SenderKnows, RECEIVER),
        (M::NoPollAfterDestroy, P::AnsweredFirst, Config { habit: Habit::Keeps, ..RECEIVER }),
        (M::NoReceiverFence, P::Fenced, SENDER),
        (M::DownBeforeDestroy, P::RingMovesOn, Config { messages: TWO, places: 1, split: Split::One, ..SENDER }),
        (M::RepairBeforeAnswer, P::AnsweredFirst, SENDER),
        (M::RepairsSummed, P::ExactSize, Config { lanes: 2, ..SENDER }),
        (M::SeenIsRepaired, P::CountedOnce, Config { lanes: 2, split: Split::All, sender_faults: 1, ..BACK }),
        (M::RepairWithoutRecord, P::ExactSize, Config { messages: &[Message::RECORD], ..SENDER }),
        (M::LaneSpeaksForPart, P::Placed, Config { lanes: 2, ..PLAIN }),
        (M::PlaceReusedAtOnce, P::RingMovesOn, Config { messages: TWO, places: 1, split: Split::One, ..RECEIVER }),
        (
            M::PlaceIgnoresSlowRail,
            P::RingMovesOn,
            Config { comes_back: true, messages: TWO, places: 1, split: Split::One, ..RECEIVER },
        ),
        (M::CtsNotRepeated, P::Done, RECEIVER),
        (
            M::DueSinceFailure,
            P::RingMovesOn,
            Config { messages: TWO, places: 1, split: Split::One, sender_faults: 1, receiver_faults: 1, ..BACK },
        ),
        (M::CtsNotProbed, P::Done, Config { messages: TWO, places: 1, split: Split::One, receiver_faults: 1, ..BACK }),
        (M::NoReceivesForRepairs, P::ReceivePosted, Config { slots: 1, ..SENDER }),
        (M::CreditByAcknowledgement, P::ReceivePosted, Config { messages: TWO, split: Split::Usable, ..SENDER }),
        (M::ReuseUnnoticed, P::OpenBuffer, Config { messages: EARLY, buffers: 1, is_torn: true, ..RECEIVER }),
        (M::ReuseUnhindered, P::OpenBuffer, Config { messages: EARLY, buffers: 1, is_torn: true, ..RECEIVER }),
        (M::EarlySlotFreed, P::OwnSlot, Config { messages: EARLY, buffers: 1, is_torn: true, ..PLAIN }),
        (M::StaleStateTaken, P::StaleIgnored, Config { sender_faults: 2, breaks: 1, is_late: true, ..BACK }),
        (M::StaleSuspectTaken, P::StaleIgnored, Config { receiver_faults: 1, breaks: 1, is_late: true, ..BACK }),
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
        (M::AnswerOnlyOnce, P::Done, Config { breaks: 1, ..SENDER }),
        (M::FramesNotRepeated, P::Done, Config { breaks: 1, ..SENDER }),
        (M::MaskOfUsableRails, P::Survives, RECEIVER),
        (M::AcknowledgedUnlisted, P::Done, Config { device_deaths: 1, ..PLAIN }),
        (M::UnflushableIsSeen, P::Visible, Config { messages: &[Message::GPU], device_deaths: 1, ..PLAIN }),
        (M::FlushByMask, P::Visible, Config { messages: &[Message::GPU], ..SENDER }),
        (M::ByeWithoutState, P::CloseIsClean, Config { closes: true, ..PLAIN }),
        (M::ByeForgetsEarly, P::CloseIsClean, Config { messages: &[Message::EARLY], closes: true, ..PLAIN }),
        (M::RefusalEnds, P::Survives, Config { messages: &[Message::EARLY], closes: true, is_torn: true, ..RECEIVER }),
        (M::LateByeUnanswered, P::Done, Config { closes: true, breaks: 1, ..PLAIN }),
        (M::NoneIsAnswered, P::RunEnds, Config { closes: true, breaks: 1, is_late: true, ..PLAIN }),
    ];
    let name = |(mutation, property, config)| {
        (mutation, property, Config { name: "mutation", mutation: Some(mutation), ..config })
    };
    rows.into_iter().map(name).collect()
}
