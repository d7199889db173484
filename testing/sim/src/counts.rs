//! What a run has exercised, so that a path never taken is visible.

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident = $group:literal, $words:literal;)*) => {
        /// Something that a run may exercise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Seen { $($(#[$doc])* #[doc = $words] $name,)* }

        impl Seen {
            /// All of them, in the order of the summary.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Group and words for the summary.
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
    ShortPoll = "fault", "a poll that reported less than there was";
    AckPutOff = "fault", "acknowledgements put off until the next call";
    AckRefused = "fault", "an acknowledgement that did not leave when it was to";
    Silence = "fault", "an application that makes no call for long";
    SlowControl = "fault", "a control message held back";
    RailNotOpened = "fault", "a rail dropped in the handshake";
    ConnectedLater = "fault", "a rail that was not connected at the first try";
    RailDiedSilent = "fault", "a rail died silently";
    RailDiedLoud = "fault", "a rail died with an error";
    PortDied = "fault", "a port died silently";
    ProcessDied = "fault", "a process died";
    ProcessKilled = "fault", "a process killed between two calls";
    SessionBroke = "fault", "a control session broke";
    DialFailed = "fault", "a dialled socket that brought no session";
    PeerSilent = "fault", "a peer that did not answer when it was asked";
    Unwelcome = "fault", "a peer that is not welcome on a session";
    ClosedEarly = "fault", "an end closed while its peer waited";
    ContractBroken = "fault", "a call that breaks NCCL's contract";
    HostileImmediate = "fault", "an immediate that no sender would send";

    SessionShared = "path", "several connections on one session";
    SessionIdle = "path", "a session that ended because no connection used it";
    Asked = "path", "a quiet peer asked whether it is there";
    OneWrite = "path", "no record: sizes from the immediates";
    Record = "path", "a completion record";
    NoByteCounts = "path", "a port without byte counts";
    AdaptiveRouting = "path", "the adaptive-routing form";
    SeveralWrites = "path", "a part in several writes";
    HugeSize = "path", "a size that size_q cannot say";
    OneRail = "path", "a message on one rail of several";
    ManyRails = "path", "a message split over rails";
    Striped = "path", "a message striped over lanes";
    OneLaneOfMany = "path", "a small message on a striped connection";
    Grouped = "path", "a grouped receive";
    GroupedEmpty = "path", "a group with an empty message";
    ZeroBytes = "path", "a message of zero bytes";
    AllEmpty = "path", "a group of empty messages only";
    Cut = "path", "a message cut to its receive";
    EarlyDone = "path", "an optional completion, early";
    HintedDone = "path", "an optional completion, exact";
    FlushPending = "path", "a flush under way";
    FlushNothing = "path", "a flush with nothing to do";
    RingWrapped = "path", "the CTS ring went round";
    CtsSplit = "path", "CTS entries round the ring's end";
    Settled = "path", "the control thread sends what an end owes";
    SlotsWrapped = "path", "slots used again";
    Reregistered = "path", "memory registered anew";
    LeakProbe = "path", "a leak probe of all slots and requests";
    GappyRails = "path", "a connection with a rail missing";

    NoReceive = "refusal", "isend: no receive is posted";
    NoTag = "refusal", "isend: the oldest receive has no buffer with this tag";
    NotYet = "refusal", "isend: the receive is not known here yet, or no room";
    NoSlot = "refusal", "irecv: all slots are open";
    NoEntry = "refusal", "irecv: no CTS entry is free";
    NoReceives = "refusal", "irecv: no receives, or no room";
    RoomWithheld = "refusal", "a send queue that says it is full";
    QueueFull = "refusal", "a send queue that is full";
    ReceivesShort = "refusal", "post_receives takes fewer";
    FlushFull = "refusal", "post_flush finds no room";
    RequestsOut = "refusal", "isend: 256 sends under way";

    Clean = "ending", "connections closed cleanly";
    Failed = "ending", "connection ends that ended in an error";
    Refused = "ending", "handshakes that ended without a connection";
    Unreachable = "ending", "processes that could not be reached";
    TimedOut = "ending", "handshakes that ran out of time";
    Messages = "ending", "messages received";
    Bytes = "ending", "bytes received";
}

/// How often each was seen.
#[derive(Clone, Debug)]
pub struct Counts([u64; Seen::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Seen::ALL.len()])
    }
}

impl Counts {
    pub(crate) fn add(&mut self, seen: Seen, count: u64) {
        self.0[seen as usize] += count;
    }

    pub(crate) fn saw(&mut self, seen: Seen) {
        self.add(seen, 1);
    }

    /// How often.
    pub fn of(&self, seen: Seen) -> u64 {
        self.0[seen as usize]
    }

    /// Adds those of another run.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// What no run has exercised.
    pub fn never(&self) -> impl Iterator<Item = Seen> {
        Seen::ALL.iter().copied().filter(|seen| self.of(*seen) == 0)
    }
}
