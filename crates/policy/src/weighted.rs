//! The policies `static`, `speed` and `agent`: from weights to the bytes of each rail.
//!
//! Each rail has a *due*: the bytes that its weight entitled it to in earlier messages and that it did not get
//! (negative if it got more). Dues are in units of 2^-16 byte, so that a share of a few bytes per message is not
//! rounded away. A message's ideal shares come from the weights by one multiplication each; a rail then gets its ideal
//! share plus part of its due, rounded to 128 bytes, and the difference becomes its new due. So the effects of
//! rounding, of small messages that travel whole, and of remainders too small for a piece even out over time.
//!
//! Paying back costs time: a slow rail that gets more than its share delays the message. So a message pays back at most
//! a quarter of the smallest share (but at least [`MIN_CORRECTION`]), and small messages put their rail ahead by no
//! more than [`SMALL_AHEAD`] before they move to another. Dues are not updated for each small message, but once for
//! each [`SETTLE_BYTES`].

use railweave_fabric::{MAX_RAILS, RailId, RailSet};

use crate::policy::{Policy, Sent};
use crate::{GRANULE, Shares};

/// One byte in the units of dues.
const BYTE: i64 = 1 << 16;

/// The maximum by which small messages may put their preferred rail ahead of its weight.
const SMALL_AHEAD: i64 = (256 << 10) * BYTE;

/// The bytes of small messages that go to one rail before their rail is chosen again.
const SETTLE_BYTES: u64 = 16 << 10;

/// The amount of its due that a rail may always get in one message. It must be at least half a granule; otherwise a
/// rail whose share is less than a granule would never carry anything.
const MIN_CORRECTION: i64 = 2 * GRANULE as i64 * BYTE;

/// The smallest bound on dues; see [`Weighted::due_limit`].
const MIN_DUE_LIMIT: i64 = (1 << 20) * BYTE;

/// The largest bound on dues, so far below the limit of an `i64` that a sum of a few cannot overflow.
const MAX_DUE_LIMIT: i64 = i64::MAX / 16;

/// The split of messages between the rails of one connection, in one direction.
#[derive(Debug, Clone)]
pub struct Weighted {
    weights: [u32; MAX_RAILS],
    split_min: u64,
    /// The due of each rail, negative if it is ahead, in units of 2^-16 byte; between `-due_limit` and `due_limit`.
    due: [i64; MAX_RAILS],
    /// The largest absolute value of an active rail's due.
    most_due: i64,
    /// The bound on dues. Whole messages of up to `split_min` bytes need eight times that to even out between eight
    /// rails; a larger due would be out of date.
    due_limit: i64,
    plan: Plan,
    /// The rail for messages that travel whole.
    small_rail: RailId,
    /// The bytes that it has carried since the dues were updated.
    small_bytes: u64,
}

/// The consequences of the weights for one set of usable rails.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// The usable rails that the plan is for. The plan is kept until other rails are usable, because its divisions are
    /// too slow for each message.
    usable: RailSet,
    /// The rails to use: the usable ones with a weight; if there are none, the first usable one.
    active: RailSet,
    /// The active rail, if there is only one.
    only: Option<RailId>,
    /// The first active rail.
    first: RailId,
    /// The last active rail, which carries the rest of each message.
    last: RailId,
    /// The active rail with the largest weight, the first of equals.
    heaviest: RailId,
    /// The rails that take turns with CTS: all active ones if their weights are equal, otherwise the heaviest.
    turns: [RailId; MAX_RAILS],
    turn_count: u32,
    /// The share of each active rail in units of 2^-32, rounded down: at most 2^32.
    share: [u64; MAX_RAILS],
    /// The smallest of the active rails' shares, in the same units.
    smallest_share: u64,
}

impl Weighted {
    /// Makes a split by `weights`, one per rail; 0 means that the rail is unused while another one is usable. The
    /// weight of a rail that the connection does not have is ignored: it is never usable. Messages of fewer than
    /// `split_min` bytes, or of at most [`GRANULE`], travel whole on one rail.
    pub fn new(weights: [u32; MAX_RAILS], split_min: u64) -> Weighted {
        let due_limit = in_due_units(split_min.saturating_mul(8));
        let plan = Plan::new(&weights, RailSet::ALL);
        Weighted {
            weights,
            split_min,
            due: [0; MAX_RAILS],
            most_due: 0,
            due_limit: due_limit.clamp(MIN_DUE_LIMIT, MAX_DUE_LIMIT),
            small_rail: plan.heaviest,
            small_bytes: 0,
            plan,
        }
    }

    /// Changes the weights, from the next message on. The dues stay, but those of the rails that are active from then
    /// on are made to cancel out.
    pub fn set_weights(&mut self, weights: [u32; MAX_RAILS]) {
        if weights != self.weights {
            self.settle();
            self.weights = weights;
            self.replan(self.plan.usable);
        }
    }

    /// Returns the rail of a message of `bytes` bytes that travels whole, as most do; call [`Weighted::count_whole`]
    /// once it is sent. `None`: call [`Weighted::split`].
    #[inline]
    pub fn whole(&self, bytes: u64, usable: RailSet) -> Option<RailId> {
        if usable != self.plan.usable {
            return None;
        }
        if self.plan.only.is_some() {
            return self.plan.only;
        }
        let is_split = bytes >= self.split_min && bytes > GRANULE;
        if is_split || self.plan.active.is_empty() || self.small_bytes >= SETTLE_BYTES {
            return None;
        }
        Some(if bytes == 0 { self.plan.first } else { self.small_rail })
    }

    /// Counts a message of `bytes` bytes that was sent over the rail from [`Weighted::whole`].
    #[inline]
    pub fn count_whole(&mut self, bytes: u64) {
        // May wrap if there is only one rail: that is harmless, because its due does not change whatever it carries.
        self.small_bytes = self.small_bytes.wrapping_add(bytes);
    }

    /// Forgets the messages that were [counted](Self::count_whole) and are not in the dues yet.
    pub(crate) fn forget_small(&mut self) {
        self.small_bytes = 0;
    }

    /// Splits a message of `bytes` bytes between the rails in `usable`.
    ///
    /// The size of every piece is a multiple of 128 bytes, except that of the last active rail, which ends the message.
    /// A rail with weight 0 carries nothing, unless no usable rail has a weight: then the first usable rail carries
    /// everything. A message of 0 bytes activates one rail. The mask is empty only if `usable` is.
    #[inline]
    pub fn split(&mut self, bytes: u64, usable: RailSet) -> Shares {
        if usable != self.plan.usable {
            self.replan(usable);
        } else if self.small_bytes >= SETTLE_BYTES {
            self.settle();
        }
        if let Some(rail) = self.whole(bytes, usable) {
            self.count_whole(bytes);
            return Shares::whole(bytes, rail);
        }
        if self.plan.active.is_empty() {
            return Shares::default();
        }
        if self.small_bytes != 0 {
            self.settle();
        }
        let ideal = self.plan.ideal(bytes);
        let shares = self.pieces(bytes, &ideal);
        self.most_due = 0;
        for rail in self.plan.active {
            self.owe(rail, ideal[rail].saturating_sub(in_due_units(shares.bytes[rail])));
        }
        shares
    }

    /// Returns the rail whose first lane carries the CTS of the receive with this number. Active rails of equal weight
    /// take turns; otherwise it is the heaviest, because a CTS on a slow rail delays the whole message. `None` if no
    /// rail is usable.
    pub fn cts_rail(&mut self, receive: u32, usable: RailSet) -> Option<RailId> {
        if usable != self.plan.usable {
            self.replan(usable);
        }
        self.planned_cts_rail(receive, usable)
    }

    /// Returns the same as [`Weighted::cts_rail`] if the current plan is for `usable`; otherwise `None`.
    #[inline]
    pub fn planned_cts_rail(&self, receive: u32, usable: RailSet) -> Option<RailId> {
        match self.plan.turn_count {
            _ if usable != self.plan.usable => None,
            1 => Some(self.plan.turns[0]),
            0 => None,
            count => Some(self.plan.turns[(receive % count) as usize]),
        }
    }

    /// Plans again, after a change of the usable rails or of the weights.
    #[cold]
    fn replan(&mut self, usable: RailSet) {
        self.settle();
        self.plan = Plan::new(&self.weights, usable);
        self.cancel_out();
        self.most_due = self.plan.active.iter().map(|rail| self.due[rail].abs()).max().unwrap_or(0);
        self.small_rail = self.rail_for_small();
    }

    /// Takes from each active rail's due the same part of their sum. Without that, the last one would have to pay back
    /// what rails that are no longer active owe, or owe the others.
    fn cancel_out(&mut self) {
        let count = i64::from(self.plan.active.len()).max(1);
        let mean = self.plan.active.iter().map(|rail| self.due[rail] / count).sum::<i64>();
        self.plan.active.iter().for_each(|rail| self.due[rail] -= mean);
    }

    /// Updates the dues for the small messages since the last time, and chooses their rail again.
    #[cold]
    fn settle(&mut self) {
        let bytes = std::mem::take(&mut self.small_bytes);
        let ideal = self.plan.ideal(bytes);
        self.most_due = 0;
        for rail in self.plan.active {
            let carried = if rail == self.small_rail { in_due_units(bytes) } else { 0 };
            self.owe(rail, ideal[rail].saturating_sub(carried));
        }
        self.small_rail = self.rail_for_small();
    }

    /// Adds to an active rail's due. Callers set `most_due` to 0 and then call this for each active rail.
    #[inline]
    fn owe(&mut self, rail: RailId, missing: i64) {
        let due = self.due[rail].saturating_add(missing).clamp(-self.due_limit, self.due_limit);
        self.due[rail] = due;
        self.most_due = self.most_due.max(due.abs());
    }

    /// Returns the rail for messages that travel whole: the heaviest, which usually has the lowest latency, until it is
    /// too far ahead; then the one with the largest due.
    fn rail_for_small(&self) -> RailId {
        let heaviest = self.plan.heaviest;
        if self.due[heaviest] >= -SMALL_AHEAD {
            return heaviest;
        }
        self.plan.active.iter().fold(heaviest, |most, rail| if self.due[rail] > self.due[most] { rail } else { most })
    }

    /// Cuts a message into pieces as close to `ideal` plus the dues as granules and bounds allow.
    #[inline]
    fn pieces(&self, bytes: u64, ideal: &[i64; MAX_RAILS]) -> Shares {
        let mut shares = Shares::default();
        let payable = self.payable(bytes);
        let mut left = bytes;
        let mut end = None;
        for rail in self.plan.active.without(self.plan.last) {
            let owed = payable.map_or(self.due[rail], |part| pay_back(self.due[rail], part));
            let wanted = ideal[rail].saturating_add(owed).max(0).unsigned_abs() / BYTE.unsigned_abs() + GRANULE / 2;
            let piece = (wanted - wanted % GRANULE).min(left);
            if piece >= GRANULE {
                shares.bytes[rail] = piece;
                shares.mask.insert(rail);
                end = Some(rail);
                left -= piece;
            }
        }
        // Less than a granule is not worth a piece of its own: the rail of the piece before takes it. There is such a
        // piece, because the message is longer than a granule.
        let taker = if left < GRANULE { end.unwrap_or(self.plan.last) } else { self.plan.last };
        shares.bytes[taker] += left;
        shares.mask.insert(taker);
        shares
    }

    /// Returns the part of every due that a message of `bytes` bytes pays back, in units of 2^-32; `None` for all of
    /// it. It is the same for all rails, so that their gains and losses cancel out.
    #[inline]
    fn payable(&self, bytes: u64) -> Option<i64> {
        let bound = (scaled(bytes, self.plan.smallest_share) / 4).max(MIN_CORRECTION);
        if self.most_due <= bound { None } else { Some(part_of(bound, self.most_due)) }
    }
}

impl Policy for Weighted {
    #[inline]
    fn whole(&self, bytes: u64, usable: RailSet) -> Option<RailId> {
        Weighted::whole(self, bytes, usable)
    }

    #[inline]
    fn count_whole(&mut self, bytes: u64) {
        Weighted::count_whole(self, bytes);
    }

    #[inline]
    fn split(&mut self, _now: u64, bytes: u64, usable: RailSet, shares: &mut Shares) {
        *shares = Weighted::split(self, bytes, usable);
    }

    fn posted(&mut self, _now: u64, _rail: RailId, _bytes: u64) -> u64 {
        0
    }

    fn sent(&mut self, _now: u64, _rail: RailId, _sent: &Sent) -> u64 {
        0
    }
}

/// Returns `bound` / `due` in units of 2^-32; `due` must be larger.
#[cold]
fn part_of(bound: i64, due: i64) -> i64 {
    ((i128::from(bound) << 32) / i128::from(due)) as i64
}

/// Returns `part`, in units of 2^-32, of a due; at most the due itself.
#[cold]
fn pay_back(due: i64, part: i64) -> i64 {
    ((i128::from(due) * i128::from(part)) >> 32) as i64
}

impl Plan {
    #[cold]
    fn new(weights: &[u32; MAX_RAILS], usable: RailSet) -> Plan {
        let weighted: RailSet = usable.iter().filter(|rail| weights[*rail] > 0).collect();
        let active = if weighted.is_empty() { usable.first_only() } else { weighted };
        let first = active.first().unwrap_or_default();
        let last = active.last().unwrap_or_default();
        let heaviest = active.iter().fold(first, |most, rail| if weights[rail] > weights[most] { rail } else { most });
        let sum: u64 = active.iter().map(|rail| u64::from(weights[rail])).sum();
        let mut share = [0; MAX_RAILS];
        for rail in active {
            share[rail] = (u64::from(weights[rail]) << 32).checked_div(sum).unwrap_or(1 << 32);
        }
        let equal = active.iter().all(|rail| weights[rail] == weights[first]);
        let taking_turns = if equal { active } else { RailSet::only(heaviest) };
        let mut turns = [RailId::default(); MAX_RAILS];
        turns.iter_mut().zip(taking_turns).for_each(|(turn, rail)| *turn = rail);
        Plan {
            usable,
            active,
            only: active.is_single().then_some(first),
            first,
            last,
            heaviest,
            turns,
            turn_count: taking_turns.len(),
            share,
            smallest_share: active.iter().map(|rail| share[rail]).min().unwrap_or(0),
        }
    }

    /// Returns each active rail's ideal share of `bytes` bytes in units of 2^-16 byte; their sum is exact.
    #[inline]
    fn ideal(&self, bytes: u64) -> [i64; MAX_RAILS] {
        let mut ideal = [0; MAX_RAILS];
        let mut left = in_due_units(bytes);
        for rail in self.active.without(self.last) {
            ideal[rail] = scaled(bytes, self.share[rail]);
            left = left.saturating_sub(ideal[rail]);
        }
        ideal[self.last] = left;
        ideal
    }
}

/// Returns `bytes` times `share` (in units of 2^-32) in units of 2^-16 byte; saturates.
#[inline]
fn scaled(bytes: u64, share: u64) -> i64 {
    i64::try_from((u128::from(bytes) * u128::from(share)) >> 16).unwrap_or(i64::MAX)
}

/// Returns `bytes` in units of 2^-16 byte; saturates.
#[inline]
fn in_due_units(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(number: usize) -> RailId {
        RailId::new(number).expect("a rail's number")
    }

    fn rails(bits: u8) -> RailSet {
        RailSet::from_bits(bits)
    }

    fn split(weights: &[u32], split_min: u64) -> Weighted {
        let mut all = [0; MAX_RAILS];
        all[..weights.len()].copy_from_slice(weights);
        Weighted::new(all, split_min)
    }

    #[test]
    fn two_equal_rails_halve() {
        let shares = split(&[1, 1], 8192).split(1 << 20, rails(0b11));
        assert_eq!(shares.bytes[..2], [1 << 19, 1 << 19]);
        assert_eq!(shares.mask, rails(0b11));
    }

    #[test]
    fn the_last_rail_takes_the_odd_bytes() {
        let shares = split(&[1, 1], 0).split(10_001, rails(0b11));
        assert_eq!(shares.bytes[0] % GRANULE, 0);
        assert_eq!(shares.bytes[0] + shares.bytes[1], 10_001);
    }

    #[test]
    fn less_than_a_granule_joins_the_rail_before() {
        let shares = split(&[1, 1], 0).split(133, rails(0b11));
        assert_eq!(shares, Shares::whole(133, rail(0)));
        assert_eq!(split(&[1, 1], 0).split(256, rails(0b11)).bytes[..2], [128, 128]);
    }

    #[test]
    fn an_empty_message_activates_the_first_rail_with_a_weight() {
        let mut split = split(&[0, 1, 2], 8192);
        assert_eq!(split.split(0, rails(0b111)), Shares::whole(0, rail(1)));
        assert_eq!(split.split(0, rails(0b101)), Shares::whole(0, rail(2)));
        assert_eq!(split.split(0, rails(0b001)), Shares::whole(0, rail(0)));
        assert_eq!(split.split(0, rails(0)), Shares::default());
    }

    #[test]
    fn a_rail_without_weight_steps_in_when_it_must() {
        let mut split = split(&[0, 1, 0], 0);
        assert_eq!(split.split(1 << 20, rails(0b111)), Shares::whole(1 << 20, rail(1)));
        assert_eq!(split.split(1 << 20, rails(0b101)), Shares::whole(1 << 20, rail(0)));
        assert_eq!(split.split(1 << 20, rails(0b100)), Shares::whole(1 << 20, rail(2)));
        assert_eq!(split.split(1 << 20, rails(0)), Shares::default());
    }

    #[test]
    fn small_messages_stay_on_the_heaviest_rail_until_it_is_too_far_ahead() {
        let mut split = split(&[20, 80], 8192);
        let mut bytes = [0; 2];
        for _ in 0..20 {
            assert_eq!(split.split(4096, rails(0b11)).mask, rails(0b10));
        }
        for _ in 0..100_000 {
            let shares = split.split(4096, rails(0b11));
            assert!(shares.mask.is_single());
            bytes[0] += shares.bytes[0];
            bytes[1] += shares.bytes[1];
        }
        let part = bytes[0] * 1000 / (bytes[0] + bytes[1]);
        assert!((198..=202).contains(&part), "{part} thousandths on the light rail instead of 200");
    }

    /// Returns true if these are the same, apart from the rounding to granules.
    fn is_about(bytes: u64, expected: u64) -> bool {
        bytes.abs_diff(expected) <= GRANULE / 2
    }

    #[test]
    fn small_messages_stay_on_a_rail_until_it_is_256_kib_ahead() {
        let mut split = split(&[1, 1, 2], 8192);
        // A quarter of these messages is due to each of the first two rails, half of them to the last one, which is
        // ahead by the other half.
        let stays = |_: &u64| split.split(4096, rails(0b111)).mask == rails(0b100);
        let sent = 4096 * (0..1000).take_while(stays).count() as u64;
        assert!((2 * (256 << 10)..2 * (256 << 10) + 3 * SETTLE_BYTES).contains(&sent), "moved after {sent} bytes");
        assert_eq!(split.small_rail, rail(0), "the first of those with the largest due");
    }

    #[test]
    fn a_message_of_a_granule_is_as_small_as_one_below_the_split_min() {
        let mut split = split(&[1, 1], 0);
        assert!((0..100).all(|_| split.split(GRANULE, rails(0b11)) == Shares::whole(GRANULE, rail(0))));
        assert!(split.whole(GRANULE + 1, rails(0b11)).is_none());
    }

    #[test]
    fn a_message_below_the_split_min_travels_whole_however_large_it_is() {
        let mut split = split(&[1, 1], 1 << 20);
        for _ in 0..100 {
            assert!(split.split((1 << 20) - 1, rails(0b11)).mask.is_single());
        }
        assert_eq!(split.split(1 << 20, rails(0b11)).mask, rails(0b11));
    }

    #[test]
    fn a_large_message_pays_back_what_small_ones_took() {
        let mut split = split(&[20, 80], 8192);
        for _ in 0..3 {
            split.split(4096, rails(0b11));
        }
        let light = split.split(512 << 10, rails(0b11)).bytes[0];
        let ideal = ((512 << 10) + 3 * 4096) / 5;
        assert!(is_about(light, ideal), "{light} bytes on the light rail instead of {ideal}");
    }

    #[test]
    fn a_large_message_pays_back_at_most_a_quarter_of_the_smallest_share() {
        let mut split = split(&[20, 80], 8192);
        for _ in 0..60 {
            split.split(4096, rails(0b11));
        }
        let light = split.split(512 << 10, rails(0b11)).bytes[0];
        let most = (512 << 10) / 5 * 5 / 4;
        assert!(is_about(light, most), "{light} bytes on the light rail instead of {most}");
    }

    #[test]
    fn a_rail_may_get_two_granules_of_its_due_in_any_message() {
        let mut split = split(&[1, 1], 8192);
        // All of these go over the first rail, and half of them are due to the second.
        for _ in 0..4 {
            split.split(8191, rails(0b11));
        }
        split.set_weights([1_000_000, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(split.split(64 << 10, rails(0b11)).bytes[1], 2 * GRANULE);
    }

    #[test]
    fn no_rail_pays_for_one_that_is_no_longer_active() {
        let mut split = split(&[1, 1, 1, 1], 8192);
        // The first rail gets ahead of the other three.
        (0..32).for_each(|_| assert_eq!(split.split(8191, rails(0b1111)).mask, rails(0b1)));
        split.set_weights([0, 1, 1, 1, 0, 0, 0, 0]);
        let bytes = split.split(96 << 10, rails(0b1111)).bytes;
        assert!(bytes[1..4].iter().all(|carried| is_about(*carried, 32 << 10)), "{bytes:?}");
    }

    #[test]
    fn a_plan_for_other_rails_names_no_rail() {
        let mut split = split(&[1, 1], 0);
        assert_eq!(split.cts_rail(0, rails(0b11)), Some(rail(0)));
        assert_eq!(split.planned_cts_rail(1, rails(0b11)), Some(rail(1)));
        assert_eq!(split.planned_cts_rail(1, rails(0b01)), None);
        assert_eq!((split.whole(1, rails(0b11)), split.whole(1, rails(0b01))), (Some(rail(0)), None));
    }

    #[test]
    fn changed_weights_hold_from_the_next_message() {
        let mut split = split(&[1, 1], 0);
        split.split(1 << 20, rails(0b11));
        split.set_weights([0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(split.split(1 << 20, rails(0b11)), Shares::whole(1 << 20, rail(1)));
    }

    #[test]
    fn cts_takes_turns_between_equals_or_goes_over_the_heaviest() {
        let mut equal = split(&[3, 3, 3], 0);
        let turns: Vec<_> = (0..4).map(|receive| equal.cts_rail(receive, rails(0b111))).collect();
        assert_eq!(turns, [Some(rail(0)), Some(rail(1)), Some(rail(2)), Some(rail(0))]);
        let turns: Vec<_> = (0..3).map(|receive| equal.cts_rail(receive, rails(0b101))).collect();
        assert_eq!(turns, [Some(rail(0)), Some(rail(2)), Some(rail(0))]);
        let mut unequal = split(&[1, 4, 4], 0);
        assert!((0..9).all(|receive| unequal.cts_rail(receive, rails(0b111)) == Some(rail(1))));
        assert_eq!(unequal.cts_rail(0, rails(0b001)), Some(rail(0)));
        assert_eq!(split(&[0, 0], 0).cts_rail(5, rails(0b10)), Some(rail(1)));
        assert_eq!(unequal.cts_rail(0, rails(0)), None);
    }
}
