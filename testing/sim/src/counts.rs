//! Counts of what a run exercised, so that a path that was never taken is visible.

use crate::blows::{Blow, Blows, Situation};

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident = $group:literal, $words:literal;)*) => {
        /// Something that a run may exercise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Seen { $($(#[$doc])* #[doc = $words] $name,)* }

        impl Seen {
            /// All of them, in the order of the summary.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the group under which the summary lists it, and its description there.
            pub fn words(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($group, $words),)* }
            }
        }
    };
}

seen! {
    Stall = "fault", "a write stalled";
    Torn = "fault", "a write landed in two steps";
    LateRead = "fault", "a source read only at landing";
    RailsOvertook = "fault", "a rail overtaken by another";
    LateCompletion = "fault", "a completion held back";
    ShortPoll = "fault", "a poll that reported fewer completions than there were";
    BlindPoll = "fault", "a poll that came just before a completion";
    AckPutOff = "fault", "acknowledgements put off until the next call";
    AckRefused = "fault", "an acknowledgement that did not leave when due";
    SettledInVain = "fault", "a debt that could not be sent completely";
    CloseLate = "fault", "a close that the control thread handled late";
    AckRefusedLong = "fault", "an acknowledgement that did not leave for over a millisecond";
    AckStalled = "fault", "an acknowledgement that came late, alone";
    AckLost = "fault", "an acknowledgement lost, perhaps beyond the grace";
    RateDrift = "fault", "a rail's rate drifted";
    RateJump = "fault", "a rail's rate jumped";
    Standstill = "fault", "a rail that nearly stands still";
    Outage = "fault", "an outage at an end, shorter than the retries";
    OutageLong = "fault", "an outage at an end, perhaps longer than the retries";
    WriteLostOneWay = "fault", "a write lost in an outage of one direction";
    AckLostOneWay = "fault", "an acknowledgement lost in an outage of one direction";
    LostInOutage = "fault", "a write or acknowledgement lost in an outage of both";
    Recovered = "fault", "a lane that recovered from an outage";
    RetriesEnded = "fault", "a lane whose retries ended in an outage";
    LandedLate = "fault", "a write that landed after the end of its lane";
    PlacedInPart = "fault", "a write placed in part, or without its completion, at the end";
    Fenced = "fault", "a late write that found its target fenced";
    CompletionsLost = "fault", "completions that were lost with their lane, end or device";
    KeyReused = "fault", "a key that came again";
    AddressReused = "fault", "an address that came again";
    Silence = "fault", "an application that makes no call for a long time";
    LongPause = "fault", "an application that pauses beyond every grace and linger";
    Idle = "fault", "an application that is done and makes no call for 150 ms";
    TestedOldest = "fault", "a test of the oldest request first";
    TestedNewest = "fault", "a test of the newest request first";
    MixedGroup = "fault", "a receive into host and GPU memory";
    BufferShared = "fault", "a buffer used by another connection before";
    SlowControl = "fault", "a control message held back";
    RailNotOpened = "fault", "a rail dropped in the handshake";
    ConnectedLater = "fault", "a rail that was not connected at the first attempt";
    RailDiedSilent = "fault", "a rail died silently";
    RailDiedLoud = "fault", "a rail died with an error";
    RailDiedOneEnd = "fault", "a rail failed at one end only";
    PortDied = "fault", "a port died silently";
    DeviceFailed = "fault", "a device failed, and only an event told";
    LoopBackFailed = "fault", "a loop-back failed";
    ProcessDied = "fault", "a process died";
    ProcessKilled = "fault", "a process killed between two calls";
    SessionBroke = "fault", "a session broke";
    SessionAway = "fault", "a session that lost its socket while connections needed it";
    Stranger = "fault", "a stranger who wants to go on with the session of others";
    DialFailed = "fault", "a dial that failed";
    PeerSilent = "fault", "a peer that did not answer a PING in time";
    Unwelcome = "fault", "a peer that is unwelcome on a session";
    OfferWaited = "fault", "an offer that waited for its place";
    SetUpBlocked = "fault", "a step that blocked a set-up";
    ClosedEarly = "fault", "an end closed while its peer waited";
    ContractBroken = "fault", "a call that breaks NCCL's contract";
    HostileImmediate = "fault", "an immediate that no sender would send";

    SessionShared = "path", "several connections on one session";
    Redialled = "path", "an address that was dialled again";
    RailDown = "path", "a rail that was given up";
    AllRailsDown = "path", "the last rail given up";
    RailUp = "path", "a rail that came up again";
    RailUnsure = "path", "a part whose fate its sender did not know";
    RailSeen = "path", "such a part that had come";
    RailRepaired = "path", "a part that was sent again";
    RepairedRepair = "path", "a part that was sent again more than once";
    Unanswered = "path", "messages that waited for the peer's word for too long";
    CtsRepeated = "path", "CTS entries that were written again";
    SessionResumed = "path", "a session that went on over another socket";
    ResumeRefused = "path", "a session that was not to be gone on with";
    OpenerChecked = "path", "an opener that was found to be there";
    ProbeUnposted = "path", "a probe that no stuck call has posted yet";
    ProbeUnseen = "path", "a probe that nobody has looked for";
    ProbeOut = "path", "a probe on its way";
    ProbeCarried = "path", "a probe that a rail has carried";
    ProbeBroken = "path", "a probe of a connection that has ended";
    SessionIdle = "path", "a session that ended because no connection used it";
    OfferWithdrawn = "path", "an offer that was withdrawn while it waited";
    OfferExpired = "path", "an offer whose time was over when it had its place";
    WaitSaid = "path", "a WAIT to a peer whose connection is still set up";
    Prolonged = "path", "a set-up that a WAIT prolonged";
    MessageKept = "path", "a message kept while a step blocked its set-up";
    CameUpLate = "path", "a connection that came up after its session had ended";
    CameUpUnwanted = "path", "a connection that came up after its application had given it up";
    Asked = "path", "a PING to a quiet peer";
    OneWrite = "path", "no record: sizes from the immediates";
    Record = "path", "a completion record";
    NoByteCounts = "path", "a port without byte counts";
    AdaptiveRouting = "path", "the adaptive-routing form";
    SeveralWrites = "path", "a rail's part in several writes";
    HugeSize = "path", "a size that size_q cannot express";
    Ping = "path", "an empty write that tells a rail's latency";
    OneRail = "path", "a message on one rail of several";
    ManyRails = "path", "a message split over rails";
    Striped = "path", "a message striped over lanes";
    UnlikeLanes = "path", "a message striped over a rail of several lanes and one of a single lane";
    OneLaneOfMany = "path", "a small message on a striped connection";
    Grouped = "path", "a grouped receive";
    GroupedEmpty = "path", "a group with an empty message";
    ZeroBytes = "path", "a message of zero bytes";
    AllEmpty = "path", "a group of empty messages only";
    Truncated = "path", "a message truncated to its receive";
    EarlyDone = "path", "an optional completion, early";
    HintedDone = "path", "an optional completion, exact";
    FlushPending = "path", "a flush in progress";
    FlushNothing = "path", "a flush with nothing to do";
    RingWrapped = "path", "the CTS ring wrapped round";
    CtsSplit = "path", "CTS entries split at the ring's end";
    Settled = "path", "the control thread sent what an end owed";
    SettledByThread = "path", "a thread's call on another connection sent what an end owed";
    DebtTakenOver = "path", "a call took over what its own end owed";
    ControlSlept = "path", "the control thread forgot all debtors and slept";
    SlotsWrapped = "path", "slots reused";
    NumbersWrapped = "path", "the number of a receive wrapped round";
    ConnectionsWrapped = "path", "a connection whose number wrapped round";
    Reregistered = "path", "memory registered again";
    AllSends = "path", "256 sends in progress, all that a connection has";
    LeakProbe = "path", "a leak probe of all slots and requests";
    GappyRails = "path", "a connection with a rail missing";
    OrderOfShares = "path", "an order of shares that a message followed";
    OrderToAdapt = "path", "an order to adapt that a message followed";
    OrderOfCts = "path", "an order that CTS followed";
    OrderVoid = "path", "an order without a share for any usable rail";
    OrderReplaced = "path", "an order that another one replaced before any message";
    FirstPacket = "path", "packets by which a set-up tries its rails";
    PacketAgain = "path", "packets by which new lanes of a rail are tried";

    NoReceive = "refusal", "isend: no receive is posted";
    NoTag = "refusal", "isend: the oldest receive has no buffer with this tag";
    NotYet = "refusal", "isend: the receive is not known here yet, or no room";
    NoSlot = "refusal", "irecv: all slots are open";
    NoEntry = "refusal", "irecv: no CTS entry is free";
    NoReceives = "refusal", "irecv: too few posted receives, or no room";
    RoomWithheld = "refusal", "a send queue that claims to be full";
    QueueFull = "refusal", "a send queue that is full";
    ReceivesShort = "refusal", "post_receives: fewer taken than asked for";
    FlushFull = "refusal", "post_flush: no room";

    Clean = "ending", "connections closed cleanly";
    Failed = "ending", "ends of connections that failed";
    Refused = "ending", "handshakes that ended without a connection";
    Unreachable = "ending", "connections whose peer could not be reached";
    TimedOut = "ending", "handshakes that timed out";
    Messages = "ending", "messages received";
    Bytes = "ending", "bytes received";
}

/// The number of times that each [`Seen`] occurred, and each blow in each situation.
#[derive(Clone, Debug)]
pub struct Counts {
    seen: [u64; Seen::ALL.len()],
    blows: Blows,
}

impl Default for Counts {
    fn default() -> Self {
        Self { seen: [0; Seen::ALL.len()], blows: Blows::default() }
    }
}

impl Counts {
    pub(crate) fn add(&mut self, seen: Seen, count: u64) {
        self.seen[seen as usize] += count;
    }

    pub(crate) fn saw(&mut self, seen: Seen) {
        self.add(seen, 1);
    }

    /// Returns the number of times that this was seen.
    pub fn of(&self, seen: Seen) -> u64 {
        self.seen[seen as usize]
    }

    /// Counts a blow that fell in these situations.
    pub(crate) fn fell(&mut self, blow: Blow, situations: &[Situation]) {
        self.blows.fell(blow, situations);
    }

    /// Returns the counts of blows by situation.
    pub fn blows(&self) -> &Blows {
        &self.blows
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.seen.iter_mut().zip(other.seen).for_each(|(sum, more)| *sum += more);
        self.blows.merge(&other.blows);
    }

    /// Returns everything that was never seen.
    pub fn never(&self) -> impl Iterator<Item = Seen> {
        Seen::ALL.iter().copied().filter(|seen| self.of(*seen) == 0)
    }
}
