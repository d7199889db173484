//! The kinds of sabotage, and the checkers that find each.

use crate::Checker;

/// A rule: its checker, and words that its findings contain; no words if the checker has no other rule.
pub type Rule = (Checker, &'static str);

/// Each line has a kind, its words, and the rules that find it. Every one of them must; which of them is the first in a
/// seed depends on the seed.
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

            /// Returns the rules that must find it.
            pub fn found_by(self) -> &'static [Rule] {
                match self { $(Self::$name => &[$((Checker::$checker, concat!($($says)?))),+],)* }
            }
        }
    };
}

sabotages! {
    MaskBitLost = "the immediate's mask lacks one of the active rails"
        => Wire("the mask lacks rail"), Delivery("is said to be there");
    StaleMask = "the immediate has the mask of the previous write, of whichever connection: a stale rail set"
        => Wire("other rails than"), Wire("an earlier immediate had"), Wire("the leader is");
    OtherSlot = "an immediate names the next slot" => Wire("no open receive"), Wire("is not filled");
    OtherSize = "size_q is one too large" => Wire("the message has");
    SizeDespiteRecord = "size_q has the size although there is a record"
        => Wire("of a group belong"), Wire("a size of its own");
    ImmediateTwice = "each immediate is sent twice" => Wire("has already sent");
    OtherLane = "a message goes over the lane after its own" => Wire("on another lane");
    SplitNot128 = "a rail's piece is not a multiple of 128 bytes" => Pieces;
    LanesNot128 = "a lane's piece is not a multiple of 128 bytes" => Pieces;
    RailWithoutBytes = "an active rail carries no bytes, and the next one carries them too"
        => Wire("the rails that carried bytes");
    WeightsIgnored = "all rails have the same weight" => Split("from its share of one message");
    WeightDecides = "the weights of all rails but the first count as 0" => Split("from its share of all messages");
    WeightlessRailUsed = "a rail without weight carries data" => Split("a rail without weight");
    OrdersIgnored = "an order that changes the split of an open connection is not followed"
        => Split("a rail without weight"), Split("from its share of one message"), Wire("CTS belong on lane 0");
    ShortSplit = "messages of any size are split" => Split("too short for more than one rail");
    WrongSource = "a write takes its bytes from 8 bytes further on" => Bytes;
    WrongPlace = "a write goes 128 bytes further on"
        => Window("landed outside"), Window("was written up to"), Window("were written outside");
    LaterBuffer = "data goes to the buffer of a later receive" => Delivery("before any send");
    DataTwice = "the first write of a message goes out twice" => Window("written twice");
    RecordFirst = "the record and its immediate go out before the data" => Delivery("is said to be there");
    RecordFilledLate = "the record is filled in after it was posted" => Size("the record of slot");
    RecordMisplaced = "a record goes 8 bytes further on" => Wire("are not a record");
    RecordAlone = "the immediate follows the record in a write of its own" => Wire("came without an immediate");
    RecordMissing = "the record is not sent" => Wire("no record came");
    GroupSizesSwapped = "the record has the sizes of a group in reverse order" => Size("the record of slot");
    EmptyNotSent = "a message of zero bytes is not sent" => Progress("nothing has moved"), Leaks("nothing has moved");
    LastWriteDropped = "a rail's part in several writes loses all but the first" => Delivery("is said to be there");
    SentEarly = "a write is reported as sent as soon as it is posted" => Delivery("is done for the sender");
    KeyOfOtherRail = "every rail uses the first rail's keys"
        => Errors("the key is not registered on this port"), Errors("the lane is broken");
    CtsNotPosted = "one CTS write of 64 is not posted" => Promise("CTS entries posted");
    CtsPastEnd = "CTS entries that wrap round the ring's end go out in one write"
        => Errors("the range ends beyond the registration");
    CtsNeverSignalled = "no CTS is ever signalled" => Leaks("wait for a signalled write");
    CtsOtherSize = "a CTS entry says 128 bytes too many" => Wire("(address, size, tag)");
    CtsAhead = "a CTS entry has the number of the next lap" => Wire("is of no receive");
    CtsMisplaced = "a CTS entry goes to the next place of the ring" => Wire("at place");
    CtsAcross = "a CTS entry goes to the middle between two places of the ring" => Wire("are no CTS entries");
    CtsWeightsIgnored = "CTS take turns over rails of different weights" => Wire("CTS belong on lane 0");
    RoomForOne = "a chain is posted when there is room for one write" => Queues("a chain of");
    ShortQueues = "send queues are sized by their own port's longest write, not the connection's"
        => Leaks("wait for a signalled write"), Progress("nothing has moved");
    FlushRepeated = "a flush is posted 4,097 times" => Queues("a completion queue");
    LaneStarved = "a lane has receives for only one in 16 of the slots that may bring it immediates" => Receives;
    DeregInFlight = "the protocol's own memory is deregistered while rails use it"
        => Errors("the key is not registered on this port");
    RegistrationLeaked = "the protocol's own memory is not deregistered" => Leaks("registrations");
    SizeOffByOne = "the receiver counts one byte too many" => Size("these are its messages"), Counters;
    ImmediateWrongRail = "an immediate is attributed to a rail other than the one it came on"
        => Errors("the peer breaks the protocol");
    ImmediateEarly = "the last rail's immediate is reported with the leader's" => Delivery("was reported done with");
    ViolationIgnored = "an immediate that names no rail is ignored" => Errors("a hostile immediate was no error");
    SequenceWrapped = "completions count slots modulo 128" => Panic("a completion came for slot");
    FlushOneRail = "a flush goes over only one of the rails that wrote" => Flush;
    DebtForgotten = "acknowledgements count as sent although the rail did not send them"
        => Promise("the last receive is done"), Promise("and may last");
    CountersShared = "all rails of a connection count together" => Counters;
    PostsAtEnd = "an end posts a write when it is closed"
        => Errors("although its application"), Errors("although a call");
    ByteSumTrusted = "byte counts of ports that do not count are summed" => Wire("does not count bytes");
    LanesForgotten = "nobody sends LANES" => Errors("no connection was made");
    RailDropped = "LANES says that its last rail could not be opened" => Errors("did not open");
    LanesAgain = "LANES is sent 14 times" => Errors("too many messages");
    ReadyLacksRail = "READY lacks a rail" => Wire("usable rails are");
    LeftOutUnreported = "nobody is told of the rails that are left out" => Errors("it lacks rails");
    ProofAgain = "PROOF comes in place of LANES" => Errors("its session ended during set-up");
    FrameCut = "the last byte of a session's frame is lost" => Wire("a frame was decoded");
    ReceivedForgotten = "nobody hears what a peer that closes has received" => Blame("needs nothing more");
    SignBelieved = "a sign that the peer's process has ended counts although its rails work"
        => Blame("may cause this error now");
    SilenceCondemns = "silence alone ends connections" => Blame("may cause this error now");
    MessageSkipped = "an end that goes on with its session says that it has one message more"
        => Leaks("a session of process");
    ByeForgotten = "a connection is closed without a BYE" => Leaks("a session of process"), Death;
    KeyIgnored = "a session accepts any proof" => Errors("the keys of its processes differ");
    GraceForgotten = "a connection is lost as soon as its peer has closed it" => Blame("may cause this error now");
    LossIgnored = "nobody checks whether the peer is lost" => Death;
    LossUnexplained = "the loss of a peer has no text" => Errors("an error without a text");
    OverForgotten = "nobody is told that a connection has ended" => Progress("no event is left");
    ReasonGarbled = "a failed lane is reported with another reason" => Blame("did not fail with this error");
    QuietAfterFailure = "rails report nothing more once one of them has reported a failure" => Errors("more to report");
    LossEndsFlush = "an incomplete flush fails once the peer is lost"
        => Errors("has closed the connection"), Blame("for its peer's sake");
    ReceiverNotFenced = "RAIL_STATE is said although the receiver's lanes of the rail are still there"
        => Wire("although its receiver has said");
    SenderNotFenced = "RAIL_DOWN is said although the sender's lanes of the rail are still there"
        => Wire("although its sender has said");
    FenceForgets = "a rail's last reports are lost with its lanes" => Blame("may cause this error now");
    AllUnseen = "RAIL_STATE says that nothing has come" => Blame("may cause this error now");
    AllSeen = "RAIL_STATE says that everything has come" => Delivery("is done for the sender");
    StateOfBefore = "RAIL_STATE has the entries of the one before" => Blame("may cause this error now");
    IdleDownLost = "RAIL_DOWN of a rail that has carried nothing is lost" => Progress("has been down since");
    RailNewsLost = "steps of a recovery that were lost with a session's socket are not sent again"
        => Blame("may cause this error now");
    SilenceUnnoticed = "nobody looks for rails that fall silent" => Death;
    PeerUnheard = "nobody hears that the peer of a silent rail is alive" => Death;
    RepairTwice = "a part that comes again comes twice" => Wire("came again, but");
    RepairMisnamed = "a part that comes again has the number of the next" => Wire("came again, but");
    RepairWithoutRecord = "a part that comes again lacks the record" => Wire("no record came with it");
}
