//! The measurements of a sending connection: what each rail was given, when, and when it was done with it.

use railweave_fabric::{Clock, MAX_RAILS, PolicyName, RailId, RailSet};
use railweave_policy::{MEASURED_FROM, Order, Policy, Sent, Shares, Splitter};

use crate::SLOTS;
use crate::measured::Measured;
use crate::rails::RailSide;
use crate::sequence::Sequence;

/// The work of one slot on one rail: the bytes of all its messages, the number of messages with a piece on the rail,
/// and the number of signalled writes that are not complete.
#[derive(Clone, Copy, Default)]
struct Given(u64);

impl Given {
    const ONE_PIECE: u64 = 1 << 8;
    const ONE_WRITE: u64 = 1;

    /// Returns `bytes` bytes in no piece and no write.
    #[inline(always)]
    fn of(bytes: u64) -> Self {
        Self(bytes << 16)
    }

    #[inline(always)]
    fn bytes(self) -> u64 {
        self.0 >> 16
    }

    fn pieces(self) -> u32 {
        (self.0 >> 8 & 0xff) as u32
    }

    fn writes(self) -> u64 {
        self.0 & 0xff
    }
}

/// The split, the clock that it needs, and the measurements.
///
/// A slot is measured if one of its messages has [`MEASURED_FROM`] bytes or more, and was split by [`Self::split`].
pub(super) struct Meter<C> {
    splitter: Splitter,
    clock: C,
    /// The time of the present split.
    now: u64,
    /// The time at which each slot was posted, in ticks.
    posted: Box<[u64; SLOTS]>,
    /// By slot, then by rail, with a power of two of places for each slot.
    given: Box<[Given]>,
    rail_bits: u32,
    /// True if the next measured slot is a sample.
    wants_sample: bool,
    /// The rails whose latency is not known well; empty if there is only one rail, or the policy needs none.
    unknown: RailSet,
    usable: RailSet,
    split_min: u64,
    ticks_per_second: u64,
    /// The rails with an empty write in progress, and the times at which these were posted.
    pinged: RailSet,
    ping_posted: [u64; MAX_RAILS],
    /// The number of messages for which each rail was not idle, at most [`MOST_LOOKS`].
    looks: [u16; MAX_RAILS],
}

/// The messages for which an idle moment of a rail is looked for, after its first empty write.
const MOST_LOOKS: u16 = 1000;

impl<C: Clock> Meter<C> {
    /// Returns the measurements of a connection of `count` rails, of which those in `usable` came up. Its split begins
    /// with this order.
    pub(super) fn new(order: &Order, split_min: u64, clock: C, count: usize, usable: RailSet) -> Self {
        let ticks_per_second = clock.ticks_per_second();
        let rail_bits = count.next_power_of_two().trailing_zeros();
        let mut meter = Self {
            splitter: Splitter::new(order, split_min, ticks_per_second),
            clock,
            now: 0,
            posted: Box::new([0; SLOTS]),
            given: vec![Given::default(); SLOTS << rail_bits].into(),
            rail_bits,
            wants_sample: false,
            unknown: RailSet::EMPTY,
            usable,
            split_min: split_min.max(MEASURED_FROM),
            ticks_per_second,
            pinged: RailSet::EMPTY,
            ping_posted: [0; MAX_RAILS],
            looks: [0; MAX_RAILS],
        };
        meter.find_unknown();
        meter
    }

    /// Finds the rails whose latency has to be found out.
    fn find_unknown(&mut self) {
        // A rail that is not to be used may be out of order.
        let allowed = self.splitter.of_allowed(self.usable);
        let adapts = self.splitter.name() == PolicyName::Adaptive && !allowed.is_single();
        let rails = self.splitter.rails();
        let unknown = allowed.iter().filter(|rail| adapts && !rails.knows_latency(*rail));
        self.unknown = unknown.collect();
    }

    /// Follows another order, from the next message on, and takes the time of the next message that is measured.
    pub(super) fn follow(&mut self, order: &Order) {
        self.splitter.follow(order);
        self.wants_sample = true;
        self.find_unknown();
    }

    /// Returns the rail of a message that travels whole and is not measured: see [`Policy::whole`].
    #[inline(always)]
    pub(super) fn whole(&self, bytes: u64, usable: RailSet) -> Option<RailId> {
        self.splitter.whole(bytes, usable)
    }

    /// Counts a message that was sent over the rail from [`Self::whole`].
    #[inline(always)]
    pub(super) fn count_whole(&mut self, bytes: u64) {
        self.splitter.count_whole(bytes);
    }

    /// Reads the clock, for the messages of one slot.
    #[inline(always)]
    pub(super) fn look(&mut self) {
        self.now = self.clock.ticks();
    }

    /// Splits a message between the usable rails, at the time of the last [look](Self::look). If it [is
    /// measured](Self::measures), [`Self::posted`] must hear of each piece.
    #[inline]
    pub(super) fn split(&mut self, bytes: u64, usable: RailSet, shares: &mut Shares) {
        self.splitter.split(self.now, bytes, usable, shares);
    }

    /// Returns true if a message of this many bytes is measured.
    #[inline(always)]
    pub(super) fn measures(bytes: u64) -> bool {
        bytes >= MEASURED_FROM
    }

    #[inline(always)]
    fn place(&self, sequence: Sequence, rail: RailId) -> usize {
        usize::from(sequence.slot().number()) << self.rail_bits | rail.index()
    }

    /// Returns the place of the work of a slot on a rail.
    #[inline(always)]
    fn given(&mut self, sequence: Sequence, rail: RailId) -> &mut Given {
        &mut self.given[self.place(sequence, rail)]
    }

    /// Returns the bytes that a slot which [began](Self::begin_one) has given a rail.
    pub(super) fn given_to(&self, sequence: Sequence, rail: RailId) -> u64 {
        self.given[self.place(sequence, rail)].bytes()
    }

    /// Begins the measurement of a slot with one message of `bytes` bytes, and one write on each active rail. Returns
    /// its kind.
    #[inline(always)]
    pub(super) fn begin_one(&mut self, sequence: Sequence, bytes: u64) -> Measured {
        if bytes < self.split_min || self.wants_sample {
            return self.begin(sequence, bytes, 0);
        }
        self.posted[sequence.slot()] = self.now;
        Measured::PLAIN
    }

    /// Notes that a slot that [began](Self::begin_one) gives the rail of this side a piece.
    #[inline(always)]
    pub(super) fn give_one(&mut self, sequence: Sequence, side: &RailSide, bytes: u64) {
        self.posted(side, bytes);
        let rail = side.id;
        *self.given(sequence, rail) = Given(Given::of(bytes).0 | Given::ONE_PIECE | Given::ONE_WRITE);
    }

    /// Begins the measurement of a slot whose longest message has `longest` bytes, and whose rails may have several
    /// messages and writes. Returns its kind.
    pub(super) fn begin_several(&mut self, sequence: Sequence, longest: u64) -> Measured {
        self.begin(sequence, longest, Measured::SEVERAL)
    }

    #[cold]
    fn begin(&mut self, sequence: Sequence, longest: u64, bits: u8) -> Measured {
        if longest < MEASURED_FROM {
            return Measured::NOT;
        }
        self.posted[sequence.slot()] = self.now;
        let mut measured = Measured::PLAIN.with(bits);
        if longest < self.split_min {
            measured = measured.with(Measured::WHOLE);
        }
        if std::mem::take(&mut self.wants_sample) {
            measured = measured.with(Measured::SAMPLE);
        }
        measured
    }

    /// Notes that a piece of the message that was split last is posted on the rail of this side.
    #[inline(always)]
    pub(super) fn posted(&mut self, side: &RailSide, bytes: u64) {
        let in_flight = self.splitter.posted(self.now, side.id, bytes);
        side.info.counters.set_in_flight(in_flight);
    }

    /// Notes that a slot that [began](Self::begin_several) gives a rail `bytes` bytes of `pieces` messages, in `writes`
    /// signalled writes.
    pub(super) fn give(&mut self, sequence: Sequence, rail: RailId, bytes: u64, pieces: u8, writes: u8) {
        let counts = u64::from(pieces) * Given::ONE_PIECE + u64::from(writes) * Given::ONE_WRITE;
        *self.given(sequence, rail) = Given(Given::of(bytes).0 | counts);
    }

    /// Notes that a signalled write of a measured slot is complete. `now` is the time of the poll that found it, 0 if
    /// the clock was not read in it yet.
    #[inline(always)]
    pub(super) fn handle_sent(&mut self, sequence: Sequence, measured: Measured, side: &RailSide, now: &mut u64) {
        if *now == 0 {
            *now = self.clock.ticks();
        }
        if measured != Measured::PLAIN {
            return self.handle_other(sequence, measured, side, *now);
        }
        let (posted, rail) = (self.posted[sequence.slot()], side.id);
        let sent = Sent { posted, bytes: self.given(sequence, rail).bytes(), pieces: 1, is_split: true };
        let in_flight = self.splitter.sent(*now, rail, &sent);
        side.info.counters.set_in_flight(in_flight);
    }

    /// Does the same as [`Self::handle_sent`] for a slot that is not plain.
    #[cold]
    #[inline(never)]
    fn handle_other(&mut self, sequence: Sequence, measured: Measured, side: &RailSide, now: u64) {
        let (slot, rail) = (sequence.slot(), side.id);
        let given = self.given(sequence, rail);
        given.0 -= given.writes().min(1) * Given::ONE_WRITE;
        let given = *given;
        // A slot of several messages may give a rail only those that are too short to be measured.
        if given.writes() > 0 || given.bytes() == 0 {
            return;
        }
        let posted = self.posted[slot];
        let is_split = !measured.is(Measured::WHOLE);
        let sent = Sent { posted, bytes: given.bytes(), pieces: given.pieces(), is_split };
        let in_flight = self.splitter.sent(now, rail, &sent);
        let counters = &side.info.counters;
        counters.set_in_flight(in_flight);
        if measured.is(Measured::SAMPLE) {
            let micros = u128::from(now.saturating_sub(posted)) * 1_000_000 / u128::from(self.ticks_per_second);
            counters.count_latency(u64::try_from(micros).unwrap_or(u64::MAX));
        }
    }

    /// Notes that everything in flight on the rail of this side is lost.
    pub(super) fn forget(&mut self, side: &RailSide) {
        self.splitter.rails().forget(side.id);
        self.pinged.remove(side.id);
        side.info.counters.set_in_flight(0);
    }

    /// Notes that other rails than before carry data.
    pub(super) fn use_rails(&mut self, usable: RailSet) {
        self.usable = usable;
        self.find_unknown();
    }

    /// Returns the rails whose latency is not known well.
    #[inline(always)]
    pub(super) fn unknown(&self) -> RailSet {
        self.unknown
    }

    /// Returns true if an empty write should tell this rail's latency now.
    pub(super) fn wants_ping(&mut self, rail: RailId) -> bool {
        self.splitter.rails().wants_ping(rail)
    }

    /// Returns the rails with an empty write in progress.
    pub(super) fn pinged(&self) -> RailSet {
        self.pinged
    }

    /// Notes that a rail was not idle when a message came. A rail that never is keeps what its first empty write told,
    /// and no longer costs each message a look.
    pub(super) fn note_no_ping(&mut self, rail: RailId) {
        self.looks[rail] = (self.looks[rail] + 1).min(MOST_LOOKS);
        if self.looks[rail] == MOST_LOOKS && self.splitter.rails().has_ping(rail) {
            self.unknown.remove(rail);
        }
    }

    /// Notes that an empty write is about to be posted on a rail.
    pub(super) fn note_ping(&mut self, rail: RailId) {
        self.pinged.insert(rail);
        self.ping_posted[rail] = self.clock.ticks();
    }

    /// Notes that the empty write of a rail is complete.
    #[cold]
    pub(super) fn handle_ping_sent(&mut self, rail: RailId, now: &mut u64) {
        if *now == 0 {
            *now = self.clock.ticks();
        }
        self.pinged.remove(rail);
        let (rails, posted) = (self.splitter.rails(), self.ping_posted[rail]);
        rails.note_ping(rail, posted, now.saturating_sub(posted));
        if rails.knows_latency(rail) {
            self.unknown.remove(rail);
        }
    }
}
