//! The sabotages that there are.

macro_rules! sabotages {
    ($($name:ident = $words:literal;)*) => {
        /// Something that goes wrong at the edge of the protocol, as if the protocol did it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Sabotage { $(#[doc = $words] $name,)* }

        impl Sabotage {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The words for it.
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

sabotages! {
    MaskBitLost = "the immediate's mask lacks one of the active rails";
    StaleMask = "the immediate's mask is that of the write before, of whichever connection: a stale rail set";
    SplitNot128 = "a rail's piece is no multiple of 128 bytes";
    LanesNot128 = "a lane's piece is no multiple of 128 bytes";
    WrongSource = "a write takes its bytes from 8 bytes further on";
    WrongPlace = "a write goes 128 bytes further on";
    RecordFirst = "the record and its immediate go out before the data";
    RecordFilledLate = "the record is filled in after it was posted";
    GroupSizesSwapped = "the record has the sizes of a group in reverse order";
    EmptyNotSent = "a message of zero bytes is not sent";
    LastWriteDropped = "a part in several writes loses all but the first";
    KeyOfOtherRail = "every rail uses the first rail's keys";
    CtsNotPosted = "one CTS write of 64 is not posted";
    CtsPastEnd = "CTS entries that go round the ring's end go out in one write";
    CtsNeverSignalled = "no CTS is ever signalled";
    RoomForOne = "a chain is posted where there is room for one write";
    ShortQueues = "send queues are sized by their own port's longest write, not by the connection's";
    LaneStarved = "a lane has receives for one of 16 slots that may bring it immediates";
    DeregInFlight = "the protocol's own memory is deregistered while rails use it";
    SizeOffByOne = "the receiver counts a byte too many";
    ImmediateWrongRail = "an immediate is attributed to another rail than it came on";
    SequenceWrapped = "completions count slots modulo 128";
    FlushOneRail = "a flush goes over one of the rails that wrote only";
    DebtForgotten = "acknowledgements count as sent though the rail did not send them";
    ByteSumTrusted = "byte counts are summed up from ports that do not count";
    PongForgotten = "nobody answers a PING";
    ByeForgotten = "a connection is closed without a BYE";
    KeyIgnored = "a session takes any proof";
    GraceForgotten = "a connection is lost as soon as its peer has closed it";
    LinkIgnored = "nobody looks whether the peer is lost";
    FlushAsksLink = "a flush that is not complete looks whether the peer is lost";
}
