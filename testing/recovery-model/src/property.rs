//! The properties that every run must keep.

use std::fmt;

/// A property that the model checks in every state or step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Property {
    /// A receive that completes has all of its bytes in its buffer.
    Placed,
    /// A part counts once: each lane of it, or its repair.
    CountedOnce,
    /// A write lands in a buffer only while it belongs to the receive that the write is for.
    OpenBuffer,
    /// A receive reports the size that was sent.
    ExactSize,
    /// Each part of a send that is done was seen by the receiver, or waits in its queue.
    SenderKnows,
    /// A repair comes only for a part that the receiver called unseen, and the original of that part comes no more.
    AnsweredFirst,
    /// Nothing of an incarnation lands once the receiver has answered.
    Fenced,
    /// A place of the CTS ring never shows an older entry after a newer one.
    RingMovesOn,
    /// A write leaves only for a lane that the peer has opened.
    PeerReady,
    /// Each immediate finds a posted receive.
    ReceivePosted,
    /// An immediate counts for that use of its slot for which it was sent.
    OwnSlot,
    /// A frame of an earlier incarnation changes nothing.
    StaleIgnored,
    /// A connection ends early only if a device died with data, or completions, that nobody sends again.
    Survives,
    /// A flush makes every byte of its receive visible.
    Visible,
    /// A close fails no send whose data the receiver has.
    CloseIsClean,
    /// A run rests only when everything is done and every close has ended.
    Done,
    /// Every run comes to rest.
    RunEnds,
}

impl Property {
    /// All properties.
    pub const ALL: [Self; 17] = [
        Self::Placed,
        Self::CountedOnce,
        Self::OpenBuffer,
        Self::ExactSize,
        Self::SenderKnows,
        Self::AnsweredFirst,
        Self::Fenced,
        Self::RingMovesOn,
        Self::PeerReady,
        Self::ReceivePosted,
        Self::OwnSlot,
        Self::StaleIgnored,
        Self::Survives,
        Self::Visible,
        Self::CloseIsClean,
        Self::Done,
        Self::RunEnds,
    ];
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Placed => "every byte is placed before its receive completes",
            Self::CountedOnce => "no part counts twice",
            Self::OpenBuffer => "no write lands in a buffer that is the application's again",
            Self::ExactSize => "sizes are exact",
            Self::SenderKnows => {
                "a send is done only if the receiver sees every part of it, unless a device of the receiver died"
            }
            Self::AnsweredFirst => "no repair before the answer",
            Self::Fenced => "nothing of an incarnation lands after its fence",
            Self::RingMovesOn => "no place of the CTS ring shows an older entry again",
            Self::PeerReady => "no write leaves before the peer's lane is open",
            Self::ReceivePosted => "no immediate without a receive",
            Self::OwnSlot => "no immediate counts for another use of its slot",
            Self::StaleIgnored => "a stale frame changes nothing",
            Self::Survives => "a connection ends only if a device of the receiver died",
            Self::Visible => "a flush makes every byte visible",
            Self::CloseIsClean => "a close fails no send that was received",
            Self::Done => "a run rests only when everything is done",
            Self::RunEnds => "every run ends",
        })
    }
}
