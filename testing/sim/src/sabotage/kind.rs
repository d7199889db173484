//! The kinds of sabotage.

macro_rules! sabotages {
    ($($name:ident = $words:literal;)*) => {
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
        }
    };
}

sabotages! {
    MaskBitLost = "the immediate's mask lacks one of the active rails";
    StaleMask = "the immediate has the mask of the previous write, of whichever connection: a stale rail set";
    SplitNot128 = "a rail's piece is not a multiple of 128 bytes";
    LanesNot128 = "a lane's piece is not a multiple of 128 bytes";
    WrongSource = "a write takes its bytes from 8 bytes further on";
    WrongPlace = "a write goes 128 bytes further on";
    RecordFirst = "the record and its immediate go out before the data";
    RecordFilledLate = "the record is filled in after it was posted";
    GroupSizesSwapped = "the record has the sizes of a group in reverse order";
    EmptyNotSent = "a message of zero bytes is not sent";
    LastWriteDropped = "a rail's part in several writes loses all but the first";
    KeyOfOtherRail = "every rail uses the first rail's keys";
    CtsNotPosted = "one CTS write of 64 is not posted";
    CtsPastEnd = "CTS entries that wrap round the ring's end go out in one write";
    CtsNeverSignalled = "no CTS is ever signalled";
    RoomForOne = "a chain is posted when there is room for one write";
    ShortQueues = "send queues are sized by their own port's longest write, not by the connection's";
    LaneStarved = "a lane has receives for only one in 16 of the slots that may bring it immediates";
    DeregInFlight = "the protocol's own memory is deregistered while rails use it";
    SizeOffByOne = "the receiver counts one byte too many";
    ImmediateWrongRail = "an immediate is attributed to a rail other than the one it came on";
    SequenceWrapped = "completions count slots modulo 128";
    FlushOneRail = "a flush goes over only one of the rails that wrote";
    DebtForgotten = "acknowledgements count as sent although the rail did not send them";
    ByteSumTrusted = "byte counts of ports that do not count are summed";
    PongForgotten = "nobody answers a PING";
    ByeForgotten = "a connection is closed without a BYE";
    KeyIgnored = "a session accepts any proof";
    GraceForgotten = "a connection is lost as soon as its peer has closed it";
    LossIgnored = "nobody checks whether the peer is lost";
    LossEndsFlush = "an incomplete flush fails once the peer is lost";
}
