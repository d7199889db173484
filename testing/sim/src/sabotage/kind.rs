//! The kinds of sabotage, and the checkers that find each.

use crate::Checker;

/// Each line has a kind, its words, and its checkers. One of the checkers must find it; which of them reports first
/// depends on the seed. If a checker has many rules, words of its finding follow.
macro_rules! sabotages {
    ($($name:ident = $words:literal => $($checker:ident $(($says:literal))?),+;)*) => {
        /// Something that goes wrong at the edge of the protocol, as if the protocol did it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Sabotage { $(#[doc = $words] $name,)* }

        impl Sabotage {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns what goes wrong, in words.
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }

            /// Returns the checkers, one of which must find it, each with words that its finding must contain.
            pub fn found_by(self) -> &'static [(Checker, &'static str)] {
                match self { $(Self::$name => &[$((Checker::$checker, concat!($($says)?))),+],)* }
            }
        }
    };
}

sabotages! {
    MaskBitLost = "the immediate's mask lacks one of the active rails" => Wire, Delivery;
    StaleMask = "the immediate has the mask of the previous write, of whichever connection: a stale rail set"
        => Wire, Delivery, Progress;
    SplitNot128 = "a rail's piece is not a multiple of 128 bytes" => Pieces;
    LanesNot128 = "a lane's piece is not a multiple of 128 bytes" => Pieces;
    WrongSource = "a write takes its bytes from 8 bytes further on" => Bytes, Size;
    WrongPlace = "a write goes 128 bytes further on" => Window;
    RecordFirst = "the record and its immediate go out before the data" => Delivery;
    RecordFilledLate = "the record is filled in after it was posted" => Size;
    GroupSizesSwapped = "the record has the sizes of a group in reverse order" => Size;
    EmptyNotSent = "a message of zero bytes is not sent" => Progress, Leaks;
    LastWriteDropped = "a rail's part in several writes loses all but the first" => Delivery;
    KeyOfOtherRail = "every rail uses the first rail's keys" => Errors("the key is not registered on this port");
    CtsNotPosted = "one CTS write of 64 is not posted" => Promise;
    CtsPastEnd = "CTS entries that wrap round the ring's end go out in one write"
        => Errors("the range ends beyond the registration");
    CtsNeverSignalled = "no CTS is ever signalled" => Leaks;
    RoomForOne = "a chain is posted when there is room for one write" => Queues;
    ShortQueues = "send queues are sized by their own port's longest write, not by the connection's"
        => Leaks, Progress, Death;
    LaneStarved = "a lane has receives for only one in 16 of the slots that may bring it immediates" => Receives;
    DeregInFlight = "the protocol's own memory is deregistered while rails use it"
        => Errors("the key is not registered on this port");
    SizeOffByOne = "the receiver counts one byte too many" => Size, Errors("exceed the buffers'");
    ImmediateWrongRail = "an immediate is attributed to a rail other than the one it came on"
        => Errors("the peer breaks the protocol");
    SequenceWrapped = "completions count slots modulo 128" => Panic("a completion came for slot");
    FlushOneRail = "a flush goes over only one of the rails that wrote" => Flush;
    DebtForgotten = "acknowledgements count as sent although the rail did not send them" => Promise;
    ByteSumTrusted = "byte counts of ports that do not count are summed" => Wire;
    PongForgotten = "nobody answers a PING" => Errors("an error without a reason");
    ByeForgotten = "a connection is closed without a BYE" => Leaks, Death;
    KeyIgnored = "a session accepts any proof" => Errors("the keys of its processes differ");
    GraceForgotten = "a connection is lost as soon as its peer has closed it" => Errors("has closed the connection");
    LossIgnored = "nobody checks whether the peer is lost" => Death;
    LossEndsFlush = "an incomplete flush fails once the peer is lost" => Errors("has closed the connection");
}
