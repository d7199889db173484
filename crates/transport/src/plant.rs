//! Bugs that can be planted in the protocol, one at a time, so that the simulation can show that its checkers bite
//! (docs/simulation.md). Only with the feature `plants`, which is never on where the plugin is built for use: without
//! it every question here is answered at compile time, and nothing is left of it.

// Without the feature nobody outside can name these.
#![cfg_attr(not(feature = "plants"), allow(unreachable_pub, dead_code))]

use railweave_fabric::RailSet;
use railweave_policy::Shares;

macro_rules! plants {
    ($($name:ident = $words:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Plant { $(#[doc = $words] $name,)* }

        impl Plant {
            /// All of them.
            #[cfg(feature = "plants")]
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What goes wrong, in words.
            #[cfg(feature = "plants")]
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

plants! {
    Nothing = "nothing; only the protocol's own checks are off";
    MaskBitLost = "the immediate's mask lacks one of the active rails";
    StaleMask = "the immediate's mask is that of the message before, of whichever connection: a stale rail set";
    SizeOffByOne = "the receiver reports a byte too many";
    GroupSizesSwapped = "the record has the sizes of a group in reverse order";
    SplitNot128 = "a rail's piece is no multiple of 128 bytes";
    LanesNot128 = "a lane's piece is no multiple of 128 bytes";
    DoneBeforeLastRail = "a receive is complete before its last rail has spoken";
    DoneBeforeLastLane = "a rail counts as seen before its last lane has spoken";
    SendDoneEarly = "a send is done when the first of its rails is";
    SlotReusedEarly = "a slot is opened again while immediates for it are owed";
    OptionalFreesSlot = "an optional completion frees its slot before its immediates are there";
    TagIgnored = "a send goes into the first unfilled buffer, whatever its tag";
    StaleCts = "a CTS entry of the ring's last round is taken for a new one";
    TornGroup = "a group is taken before all of its CTS entries are there";
    CtsRingOverwritten = "CTS entries are written over ones that are still needed";
    OldestForgotten = "the oldest receive is forgotten once its slot is used again, and its CTS entries written over";
    CtsPastEnd = "CTS entries that go round the ring's end go out in one write";
    CtsNeverSignalled = "no CTS is ever signalled";
    RecordByWrongRail = "the record comes over the last active rail, not the leader";
    RecordFirst = "the record and its immediate go out before the data";
    RecordFilledLate = "the record is filled in after it was posted";
    ByteSumTrusted = "byte counts are summed up from ports that do not count";
    ImmediateWrongRail = "an immediate is attributed to another rail than it came on";
    ReceiveNotReserved = "irecv does not reserve the immediates that it may bring";
    ReservationLeaked = "a grouped receive never gives back the immediates that it reserved";
    RequestLeaked = "a send of zero bytes never gives its request back";
    FlushOneRail = "a flush goes over one of the rails that wrote only";
    DeregInFlight = "the protocol's own memory is deregistered while rails use it";
    SequenceWrapped = "completions count slots modulo 128";
    CutIgnored = "a message is not cut to its receive";
    EmptyNotSent = "a message of zero bytes is not sent";
    LastWriteDropped = "a part in several writes loses all but the first";
    RoomForOne = "a chain is posted where there is room for one write";
    ShortQueues = "send queues are sized by their own port's longest write, not by the connection's";
    LaneStarved = "a lane has receives for one of 16 slots that may bring it immediates";
    KeyOfOtherRail = "every rail uses the first rail's keys";
    LinkIgnored = "nobody looks whether the peer is lost";
    CtsNotPosted = "the CTS of one receive of 64 is not posted";
    LastOwes = "the last receive is done while its acknowledgement is owed";
    OneRailOwes = "only the last rail that was polled is taken to owe acknowledgements";
    DebtForgotten = "acknowledgements count as sent though the rail did not send them";
    FlushAsksLink = "a flush that is not complete looks whether the peer is lost";
    KeyIgnored = "a session takes any proof";
    PongForgotten = "nobody answers a PING";
    ByeForgotten = "a connection is closed without a BYE";
    GraceForgotten = "a connection is lost as soon as its peer has closed it";
    LingerForgotten = "a closed connection is over before its peer has closed it";
    SessionKept = "a session that no connection uses is kept";
    LeftOutUnsaid = "a rail is left out and no event says so";
}

#[cfg(feature = "plants")]
mod ground {
    use std::cell::Cell;

    use railweave_fabric::RailSet;

    use super::Plant;

    thread_local! {
        static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
        static LAST_MASK: Cell<RailSet> = const { Cell::new(RailSet::EMPTY) };
    }

    /// Plants a bug in this thread's protocol, or none. While one is planted the protocol's own checks are off, so
    /// that somebody else has to find it.
    pub fn set_plant(plant: Option<Plant>) {
        PLANTED.set(plant);
        LAST_MASK.set(RailSet::EMPTY);
    }

    pub(crate) fn planted(plant: Plant) -> bool {
        PLANTED.get() == Some(plant)
    }

    pub(crate) fn checks() -> bool {
        PLANTED.get().is_none()
    }

    pub(super) fn last_mask(mask: RailSet) -> RailSet {
        let last = LAST_MASK.replace(mask);
        if last.is_empty() { mask } else { last }
    }
}

#[cfg(not(feature = "plants"))]
mod ground {
    use railweave_fabric::RailSet;

    use super::Plant;

    #[inline(always)]
    pub(crate) const fn planted(_: Plant) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn checks() -> bool {
        true
    }

    #[inline(always)]
    pub(super) const fn last_mask(mask: RailSet) -> RailSet {
        mask
    }
}

/// Whether the protocol checks what it is given: always, but while a bug is planted.
pub(crate) use ground::checks;
/// Whether this bug is planted.
pub(crate) use ground::planted;
#[cfg(feature = "plants")]
pub use ground::set_plant;

/// The mask that an immediate says.
#[inline(always)]
pub(crate) fn said_mask(mask: RailSet) -> RailSet {
    if planted(Plant::MaskBitLost) && mask.len() > 1 {
        mask.iter().skip(1).collect()
    } else if planted(Plant::StaleMask) {
        ground::last_mask(mask)
    } else {
        mask
    }
}

/// The split of a message.
#[inline(always)]
pub(crate) fn shared(mut shares: Shares) -> Shares {
    if planted(Plant::SplitNot128)
        && let (Some(first), Some(last)) = (shares.mask.first(), shares.mask.last())
        && first != last
    {
        shares.bytes[first] -= 8;
        shares.bytes[last] += 8;
    }
    shares
}

/// The set of the one rail that an immediate is attributed to.
#[inline(always)]
pub(crate) fn attributed(alone: RailSet, came_up: RailSet) -> RailSet {
    if planted(Plant::ImmediateWrongRail) { came_up.first_only() } else { alone }
}

/// What a connection keeps registered.
#[inline(always)]
pub(crate) fn kept<R>(mut registrations: Vec<R>) -> Vec<R> {
    if planted(Plant::DeregInFlight) {
        registrations.clear();
    }
    registrations
}
