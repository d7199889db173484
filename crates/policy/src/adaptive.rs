//! The policy `adaptive`: the rails themselves tell how fast they are.
//!
//! It has two ideas. *Rate while busy*: a rail's rate is the bytes that it completed, divided by the time in which it
//! had work, less its latency. *Pour over what is in flight*: a message's bytes go where they make all rails that it
//! uses finish at the same time, given what they still have to do. So no weight and no reported speed is needed, and a
//! rail that becomes slower gets less from the next message on.
//!
//! # Formulas
//! Times are in ticks of the fabric's clock, rates in bytes per 2^24 ticks; everything is an integer.
//!
//! * **A piece is posted** on a rail. If the rail is idle, its work begins at `since` = now + `latency`. If it was idle
//!   for more than a second, the sums below are divided by 4, because they may be out of date.
//! * **A piece is complete.** It took `dt` = now − max(`since`, post + `latency`), but at least a sixteenth of the time
//!   since it was posted, or since the completion before it: a latency that is too high must not make a rail look fast.
//!   `bytes` and `ticks` lose 5/32 of themselves and gain the piece's size and `dt`; their quotient is the rate. So
//!   half of it comes from the last four pieces. A second completion in the same tick adds its bytes only.
//! * **A message is split.** An idle rail hides `rate` × `latency` bytes, which take no time of its own; a busy rail
//!   has `flight` bytes to do, less the progress of the piece at its head, which is at most the whole piece. If all of
//!   these are poured into vessels as wide as the rails' rates, and the message on top, its surface gives each rail's
//!   share. A rail whose share is not worth a piece (less than 512 bytes, or 1/128 of the message) gets none.
//! * **A rail that is not used** for 32 measured messages gets a probe: a 32nd of a split message, 2 KiB or more, or a
//!   whole message. After that it is left alone for 64 times as long as the probe took, so that probes cost less than
//!   2 %. If the probe was stuck, that is at most 4 s, or 64 times as long as was to be expected if this is longer. The
//!   sums before it count for a quarter, so that a rail that was a thousand times slower is back after five probes.
//! * **Messages that travel whole** go to the rail that finishes first. They say little of a rate. So those below
//!   [`MEASURED_FROM`] are not measured at all, and all go where the first of them went, until a longer message is
//!   split. Others count only until a piece of a split message has, or as probes.
//! * **The latency** is 15/16 of the shortest time of an empty write, or of a piece on an idle rail: twice too high
//!   costs 19 % of the bandwidth at worst, half of it 12 %. One that is too short makes a rail look slow while there is
//!   little on it.
//! * **Unknown rates** are the mean of the known ones; if none is known, all are equal.
//!
//! # Bounds
//! In simulated worlds that nobody looked at while the constants were chosen, with rates that jump
//! (testing/split), the bandwidth is at least 0.80 of that with the right weights with one message in flight, and 0.88
//! with more; 0.80 if these are too few to keep all rails busy. In a world that stays the same, the share of a rail
//! moves within 0.15 from 32 messages to the next 32, and within 0.03 in 99 of 100 worlds.

use railweave_fabric::{MAX_RAILS, RailId, RailSet};

use crate::policy::{Policy, Sent};
use crate::{GRANULE, Shares};

/// Messages below this many bytes are not measured: their time is that of a packet, whatever the rail's rate is.
pub const MEASURED_FROM: u64 = 256;

/// A piece has at least this many bytes, unless it is the whole message.
const LEAST_PIECE: u64 = 512;

/// A piece has at least this part of its message: 1/128.
const LEAST_PART_BITS: u32 = 7;

/// The messages after which a rail that carries none of them is probed.
const PROBE_AFTER: u32 = 32;

/// The part of a message that probes a rail: 1/32, at least [`LEAST_PROBE`] bytes, at most half of the message.
const PROBE_PART_BITS: u32 = 5;

const LEAST_PROBE: u64 = 2 << 10;

/// The pause after a probe, as a multiple of its duration, and its limit in seconds, unless the rail was known to be
/// that slow: a probe that was stuck for long must not keep its rail out of use for much longer.
const PROBE_PAUSE: u64 = 64;
const LONGEST_PAUSE_S: u64 = 4;

/// The unit of rates: bytes per 2^24 ticks.
const RATE_BITS: u32 = 24;

/// The sum of bytes is kept below this power of two, so that a rate's dividend fits 64 bits.
const SUM_BITS: u32 = 38;

/// The sum of the widths of all vessels is below this power of two, and above a sixteenth of it if the rates allow.
const WIDTH_BITS: u32 = 24;
const LEAST_WIDTH: u64 = 1 << (WIDTH_BITS - 4);

/// The largest rate: more than any adapter's on a clock of 1 MHz.
const MOST_RATE: u64 = 1 << 42;

/// The longest latency in ticks: more than a minute on any clock.
const MOST_TICKS: u64 = 1 << 40;

/// The bytes in all vessels of a message are below this.
const MOST_BYTES: u64 = (1 << (u64::BITS - WIDTH_BITS)) - 1;

/// The empty writes from which a rail's latency is known well.
const PINGS: u8 = 3;

/// The state of one rail.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(128))] // a shift finds it
struct Rail {
    /// Bytes posted and not complete.
    flight: u64,
    /// Pieces posted and not complete.
    pieces: u32,
    /// True if the sums have changed since the rate was computed.
    is_changed: bool,
    /// True if a completion may be of another kind than those before: the first, or that of a probe.
    is_unusual: bool,
    /// True once a piece of a split message is in the sums.
    is_solid: bool,
    /// The number of empty writes that told the latency, at most [`PINGS`].
    pings: u8,
    /// The size of the piece that was last complete, which is a guess at that of the next.
    last: u64,
    /// The time at which the work on the piece at the head began: the last completion, or the post plus the latency.
    since: u64,
    /// Bytes and ticks of what is complete; both are forgotten alike.
    bytes: u64,
    ticks: u64,
    /// Bytes per 2^24 ticks; 0 while it is unknown.
    rate: u64,
    /// The rail as a vessel in the present split: its width, which is its rate without the lowest bits, and the bytes
    /// in it.
    width: u64,
    filled: u64,
    /// The time in which nothing but the path delays a piece.
    latency: u64,
    /// The number of measured messages that others have carried since it was last used.
    skipped: u32,
    /// The time before which it is not probed, and the time at which the present probe was posted, 0 for none.
    next_probe: u64,
    probed: u64,
}

/// The policy's state for one connection, in one direction.
#[derive(Debug, Clone)]
pub struct Adaptive {
    rails: [Rail; MAX_RAILS],
    usable: RailSet,
    /// The usable rail, if there is only one.
    only: Option<RailId>,
    /// The rail for messages below [`MEASURED_FROM`]; `None` once it may be another.
    small: Option<RailId>,
    /// The shift that makes widths of rates, so that their sum has at most [`WIDTH_BITS`] bits.
    shift: u32,
    split_min: u64,
    /// The ticks of a second.
    second: u64,
}

/// All vessels of a split together.
struct Vessels {
    /// The sum of their widths.
    width: u64,
    /// The bytes in them.
    filled: u64,
}

impl Adaptive {
    /// Returns the policy for a connection whose rails nothing is known of. Messages of fewer than `split_min` bytes,
    /// or of at most [`GRANULE`], travel whole on one rail. A second has `second` ticks of the clock.
    pub fn new(split_min: u64, second: u64) -> Self {
        Self {
            rails: [Rail { is_unusual: true, ..Rail::default() }; MAX_RAILS],
            usable: RailSet::EMPTY,
            only: None,
            small: None,
            shift: 0,
            split_min: split_min.max(GRANULE + 1),
            second,
        }
    }

    /// Returns the bytes that a rail was given and has not completed.
    pub fn in_flight(&self, rail: RailId) -> u64 {
        self.rails[rail].flight
    }

    /// Returns true once as many empty writes have told a rail's latency as are wanted.
    pub fn knows_latency(&self, rail: RailId) -> bool {
        self.rails[rail].pings >= PINGS
    }

    /// Returns true once an empty write has told a rail's latency.
    pub fn has_ping(&self, rail: RailId) -> bool {
        self.rails[rail].pings > 0
    }

    /// Returns true if an empty write on this rail now would tell its latency better than known.
    pub fn wants_ping(&self, rail: RailId) -> bool {
        let rail = &self.rails[rail];
        rail.pings < PINGS && rail.flight == 0
    }

    /// Notes that an empty write took from `posted` on this many ticks, on a rail that had nothing else to do then.
    pub fn note_ping(&mut self, rail: RailId, posted: u64, ticks: u64) {
        let rail = &mut self.rails[rail];
        let ticks = ticks.min(MOST_TICKS);
        let latency = ticks - ticks / 16;
        // A piece may have told since that it is shorter.
        rail.latency = if rail.pings == 0 { latency } else { rail.latency.min(latency) };
        rail.pings = (rail.pings + 1).min(PINGS);
        // The piece behind it was posted with another latency in mind, and must not seem to begin in the future.
        if rail.flight > 0 {
            rail.since = rail.since.min(posted.saturating_add(rail.latency));
        }
    }

    #[cold]
    fn replan(&mut self, usable: RailSet) {
        self.usable = usable;
        self.only = if usable.is_single() { usable.first() } else { None };
        self.small = None;
    }

    /// Makes vessels of the usable rails at `now`.
    #[inline]
    fn vessels(&mut self, now: u64) -> Vessels {
        let mut all = Vessels { width: 0, filled: 0 };
        let mut least = u64::MAX;
        for id in self.usable {
            let rail = &mut self.rails[id];
            if rail.is_changed {
                rail.is_changed = false;
                rail.rate = ((rail.bytes << RATE_BITS) / (rail.ticks | 1)).min(MOST_RATE) | 1;
            }
            least = least.min(rail.rate);
            rail.width = rail.rate >> self.shift | 1;
            rail.filled = rail.filled_at(now);
            all.width += rail.width;
            all.filled += rail.filled;
        }
        let is_narrow = all.width < LEAST_WIDTH && self.shift > 0;
        if least == 0 || all.width >> WIDTH_BITS != 0 || is_narrow {
            self.rescale(&mut all);
        }
        all
    }

    /// Computes the widths again, because some rates are unknown or their sum has changed much.
    #[cold]
    fn rescale(&mut self, all: &mut Vessels) {
        let known = self.usable.iter().filter(|id| self.rails[*id].rate > 0).count() as u64;
        let sum: u64 = self.usable.iter().map(|id| self.rails[id].rate).sum();
        let mean = sum.checked_div(known).unwrap_or(1 << RATE_BITS).max(1);
        let rates = self.rails.map(|rail| if rail.rate == 0 { mean } else { rail.rate });
        let sum: u64 = self.usable.iter().map(|id| rates[id]).sum();
        // One bit is left for what the smallest width adds.
        self.shift = (u64::BITS - sum.leading_zeros()).saturating_sub(WIDTH_BITS - 1);
        all.width = 0;
        for id in self.usable {
            self.rails[id].width = rates[id] >> self.shift | 1;
            all.width += self.rails[id].width;
        }
    }

    /// Returns the rail on which a message of `bytes` bytes finishes first. A rail of which nothing is known comes
    /// first, if it is idle and the message can tell anything.
    fn soonest(&self, bytes: u64) -> Option<RailId> {
        let finish = |id: &RailId| {
            let rail = &self.rails[*id];
            let is_unknown = rail.rate == 0 && rail.flight == 0 && bytes >= MEASURED_FROM;
            let full = u128::from(rail.filled) + u128::from(bytes);
            if is_unknown { 0 } else { (full << 16) / u128::from(rail.width) }
        };
        self.usable.iter().min_by_key(finish)
    }

    /// Pours a message of `bytes` bytes into the vessels of the rails in `active`. The shares are rounded to granules.
    /// Returns the smallest of them, before it is rounded: 0 if a vessel stands out of the surface.
    #[inline]
    fn pour(&self, bytes: u64, active: RailSet, all: &Vessels, shares: &mut Shares) -> u64 {
        let whole = bytes & !(GRANULE - 1);
        let level = all.level(whole);
        shares.mask = active;
        let (mut left, mut least, mut most, mut largest) = (whole, u64::MAX, 0, RailId::default());
        for id in active {
            let share = self.rails[id].room(level);
            least = least.min(share);
            let share = (share + GRANULE / 2) & !(GRANULE - 1);
            shares.bytes[id] = share;
            left = left.wrapping_sub(share);
            if share >= most {
                (most, largest) = (share, id);
            }
        }
        // The largest share takes what rounding leaves or lacks. It suffices if all are worth a piece.
        shares.bytes[largest] = most.wrapping_add(left);
        // Only the last piece may end within a granule.
        shares.bytes[active.last().unwrap_or_default()] += bytes - whole;
        least
    }

    /// Pours a message again without the vessels that stand out of the surface, and then without those whose shares are
    /// below `least`, the smallest first.
    #[cold]
    #[inline(never)]
    fn pour_into_some(&mut self, now: u64, bytes: u64, least: u64, shares: &mut Shares) {
        let (mut active, mut smallest) = (self.usable, 0);
        while smallest < least && !active.is_single() {
            // Not by the shares: the largest of them lacks what the vessels that stand out have too much.
            let level = self.vessels_of(active).level(bytes & !(GRANULE - 1));
            let dry: RailSet = active.iter().filter(|id| self.rails[*id].room(level) < GRANULE / 2).collect();
            active = match active.iter().min_by_key(|id| shares.bytes[*id]) {
                Some(smallest) if dry.is_empty() || dry == active => active.without(smallest),
                _ => RailSet::from_bits(active.bits() & !dry.bits()),
            };
            *shares = Shares::default();
            smallest = self.pour(bytes, active, &self.vessels_of(active), shares);
        }
        self.count_skipped(active);
        let Some(probe) = self.due_probe(now, active) else { return };
        let piece = (bytes >> PROBE_PART_BITS).max(LEAST_PROBE).min(bytes / 2) & !(GRANULE - 1);
        let largest = active.iter().max_by_key(|id| shares.bytes[*id]).unwrap_or_default();
        let rest = shares.bytes[largest].saturating_sub(piece);
        if piece > 0 && rest >= LEAST_PIECE {
            let tail = bytes % GRANULE;
            shares.bytes[largest] = rest;
            shares.bytes[active.last().unwrap_or_default()] -= tail;
            shares.bytes[probe] = piece;
            shares.mask.insert(probe);
            shares.bytes[shares.mask.last().unwrap_or_default()] += tail;
            self.probe(now, probe);
        }
    }

    /// Returns the vessels of these rails together.
    fn vessels_of(&self, active: RailSet) -> Vessels {
        let sum = |of: fn(&Rail) -> u64| active.iter().map(|id| of(&self.rails[id])).sum();
        Vessels { width: sum(|rail| rail.width), filled: sum(|rail| rail.filled) }
    }

    /// Returns an idle rail outside `active` that has not been used for long and may be probed.
    fn due_probe(&self, now: u64, active: RailSet) -> Option<RailId> {
        let unused = RailSet::from_bits(self.usable.bits() & !active.bits());
        unused.iter().find(|id| {
            let rail = &self.rails[*id];
            rail.flight == 0 && rail.skipped >= PROBE_AFTER && now >= rail.next_probe
        })
    }

    /// Notes that a message is split between the rails in `active`.
    fn count_skipped(&mut self, active: RailSet) {
        for id in RailSet::from_bits(self.usable.bits() & !active.bits()) {
            let rail = &mut self.rails[id];
            rail.skipped = rail.skipped.saturating_add(1);
        }
    }

    /// Begins the probe of a rail.
    fn probe(&mut self, now: u64, rail: RailId) {
        let rail = &mut self.rails[rail];
        (rail.probed, rail.is_unusual) = (now.max(1), true);
    }

    /// Splits a message that travels whole.
    #[inline(never)]
    fn split_whole(&mut self, now: u64, bytes: u64, shares: &mut Shares) {
        let rail = match self.only {
            Some(only) => Some(only),
            None if bytes < MEASURED_FROM => {
                self.vessels(now);
                self.soonest(bytes)
            }
            None => self.whole_rail(now, bytes),
        };
        self.small = rail.filter(|_| bytes < MEASURED_FROM);
        if let Some(rail) = rail {
            *shares = Shares::whole(bytes, rail);
        }
    }

    /// Returns the rail of a whole message that is measured: the one that finishes first, or one that is probed.
    fn whole_rail(&mut self, now: u64, bytes: u64) -> Option<RailId> {
        self.vessels(now);
        let soonest = self.soonest(bytes)?;
        self.count_skipped(RailSet::only(soonest));
        // A short message says too little of a rail that has carried pieces of long ones.
        let tells = |id: &RailId| bytes >= LEAST_PROBE || !self.rails[*id].is_solid;
        let Some(probe) = self.due_probe(now, RailSet::only(soonest)).filter(tells) else {
            return Some(soonest);
        };
        self.probe(now, probe);
        Some(probe)
    }

    /// Forgets what is in flight on a rail: it is lost, and nothing of it completes any more. What the rail has shown
    /// of itself stays.
    pub fn forget(&mut self, rail: RailId) {
        let rail = &mut self.rails[rail];
        (rail.flight, rail.pieces, rail.filled, rail.probed) = (0, 0, 0, 0);
    }

    /// Handles a completion after which a rail is no longer unusual. Returns false if it does not count.
    #[cold]
    fn settle(rail: &mut Rail, now: u64, second: u64, sent: &Sent) -> bool {
        let (was_probe, is_split) = (rail.probed != 0, sent.is_split);
        if was_probe {
            let expected = (sent.bytes << RATE_BITS).checked_div(rail.rate).unwrap_or(0).min(MOST_TICKS);
            let longest = second.saturating_mul(LONGEST_PAUSE_S).max(expected * PROBE_PAUSE);
            let pause = now.saturating_sub(rail.probed).saturating_mul(PROBE_PAUSE);
            rail.next_probe = now.saturating_add(pause.min(longest));
            rail.probed = 0;
            // The sums are out of date: it was not used for long.
            rail.bytes >>= 2;
            rail.ticks >>= 2;
        }
        if is_split && !rail.is_solid {
            rail.is_solid = true;
            (rail.bytes, rail.ticks) = (0, 0);
        }
        rail.is_unusual = !rail.is_solid;
        is_split || was_probe || !rail.is_solid
    }
}

impl Vessels {
    /// Returns the height of the surface, in bytes of a vessel of width 2^24, with `bytes` more in the vessels.
    #[inline]
    fn level(&self, bytes: u64) -> u64 {
        // More than that is never in flight, unless a rail is stuck.
        ((self.filled + bytes).min(MOST_BYTES) << WIDTH_BITS) / self.width
    }
}

impl Rail {
    /// Returns the bytes that fit into the rail's vessel below a surface at this height.
    #[inline]
    fn room(&self, level: u64) -> u64 {
        let surface = ((u128::from(level) * u128::from(self.width)) >> WIDTH_BITS) as u64;
        surface.saturating_sub(self.filled)
    }

    /// Returns the bytes that the rail has to do at `now`, or that its latency hides.
    #[inline]
    fn filled_at(&self, now: u64) -> u64 {
        let hidden = bytes_in(self.latency, self.rate);
        if self.flight == 0 {
            return hidden;
        }
        if self.rate == 0 {
            return self.flight;
        }
        let head = if self.pieces == 1 { self.flight } else { self.last.min(self.flight) };
        let progress = bytes_in(now.saturating_sub(self.since), self.rate).min(head);
        (self.flight - progress).max(hidden)
    }
}

impl Policy for Adaptive {
    #[inline]
    fn whole(&self, bytes: u64, usable: RailSet) -> Option<RailId> {
        if usable != self.usable {
            None
        } else if self.only.is_some() {
            self.only
        } else if bytes < MEASURED_FROM {
            self.small
        } else {
            None
        }
    }

    #[inline]
    fn count_whole(&mut self, _bytes: u64) {}

    #[inline]
    fn split(&mut self, now: u64, bytes: u64, usable: RailSet, shares: &mut Shares) {
        if usable != self.usable {
            self.replan(usable);
        }
        if bytes < self.split_min || self.only.is_some() {
            return self.split_whole(now, bytes, shares);
        }
        if usable.is_empty() {
            return;
        }
        self.small = None;
        let all = self.vessels(now);
        let least = LEAST_PIECE.max(bytes >> LEAST_PART_BITS);
        if self.pour(bytes, self.usable, &all, shares) < least {
            self.pour_into_some(now, bytes, least, shares);
        }
    }

    #[inline]
    fn posted(&mut self, now: u64, id: RailId, bytes: u64) -> u64 {
        let rail = &mut self.rails[id];
        if rail.flight == 0 {
            if now.saturating_sub(rail.since) > self.second {
                rail.bytes >>= 2;
                rail.ticks >>= 2;
            }
            rail.since = now + rail.latency;
        }
        rail.flight += bytes;
        rail.pieces += 1;
        rail.skipped = 0;
        rail.flight
    }

    #[inline]
    fn sent(&mut self, now: u64, id: RailId, sent: &Sent) -> u64 {
        let rail = &mut self.rails[id];
        let start = sent.posted + rail.latency;
        let mut ticks = now.saturating_sub(rail.since);
        if rail.since <= start {
            let raw = if rail.since == start {
                // The rail was idle when this piece was posted.
                let raw = now.saturating_sub(sent.posted);
                if raw > 0 {
                    rail.latency = rail.latency.min(raw - raw / 16);
                }
                raw
            } else {
                now.saturating_sub(rail.since.max(sent.posted))
            };
            ticks = now.saturating_sub(sent.posted + rail.latency).max(raw / 16);
        }
        rail.since = now;
        rail.flight = rail.flight.wrapping_sub(sent.bytes);
        rail.pieces = rail.pieces.wrapping_sub(sent.pieces);
        debug_assert_eq!(rail.flight == 0, rail.pieces == 0, "every piece has bytes");
        rail.last = sent.bytes;
        if (rail.is_unusual || !sent.is_split) && !Self::settle(rail, now, self.second, sent) {
            return rail.flight;
        }
        if ticks > 0 {
            rail.bytes = rail.bytes * 27 / 32;
            rail.ticks = rail.ticks * 27 / 32 + ticks;
        }
        rail.bytes += sent.bytes;
        if rail.bytes >> SUM_BITS != 0 {
            rail.bytes >>= 2;
            rail.ticks >>= 2;
        }
        rail.is_changed = true;
        rail.flight
    }
}

/// Returns the bytes that a rail of this rate carries in this many ticks, which are less than a day.
#[inline]
fn bytes_in(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> RATE_BITS) as u64
}
