//! The messages of a sweep: every message of every phase follows from the seed, so that both ranks know it.

use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

/// The settings of a sweep.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on both ranks.
    pub device: i32,
    /// The largest size in bytes; a few messages are up to 128 bytes longer.
    pub max_bytes: usize,
    /// The source of the noise, of the random sizes and of the order of tests; the same on both ranks.
    pub seed: u64,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// Bytes on each side of a receive's buffer that must not change.
pub(super) const GUARD_BYTES: usize = 256;
/// Messages begin anywhere in this many bytes of the noise, so that two of them are rarely alike.
const OFFSETS: usize = 64 << 10;
/// The buffers of receives begin at any of this many distances from an aligned address.
const ALIGNMENTS: usize = 128;
/// The number of bytes by which a few messages are longer than the largest size.
const BEYOND: usize = 128;
/// The number of bytes by which the noise is longer than the largest size.
pub(super) const NOISE_BEYOND_BYTES: usize = GUARD_BYTES + OFFSETS + BEYOND + GUARD_BYTES;
/// The largest random size.
const MAX_RANDOM_BYTES: usize = 1 << 20;
/// The number of grouped receives.
const GROUPS: usize = 64;
/// The number of messages of the phase with many outstanding.
const PIPELINED: usize = 400;
/// The largest number of outstanding receives, as in NCCL.
const MAX_AHEAD: usize = 32;

/// One message of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) tag: i32,
    /// The bytes that the sender offers.
    pub(super) offered: usize,
    /// The bytes of the receive's buffer.
    pub(super) room: usize,
    /// Its start in the noise.
    pub(super) offset: usize,
}

impl Message {
    /// Returns the bytes that arrive: a message that is longer than its receive is truncated.
    pub(super) fn carried(self) -> usize {
        self.offered.min(self.room)
    }

    /// Returns the bytes of memory for its buffer with its guards, at any alignment.
    fn place_bytes(self) -> usize {
        ALIGNMENTS + GUARD_BYTES + self.room + GUARD_BYTES
    }
}

/// The messages sent in one direction in one phase.
pub(super) struct Plan {
    pub(super) name: &'static str,
    /// Each receive with the messages that it groups, in the order of their buffers.
    pub(super) receives: Vec<Vec<Message>>,
    /// The messages in the order in which they are sent.
    pub(super) sends: Vec<Message>,
    /// The limit of outstanding receives.
    pub(super) receives_ahead: usize,
    /// The limit of outstanding sends: the most messages that `receives_ahead` receives can take.
    pub(super) sends_ahead: usize,
    /// The bytes of memory for one receive.
    pub(super) place_bytes: usize,
}

impl Plan {
    fn new(name: &'static str, receives_ahead: usize, receives: Vec<Vec<Message>>, chance: &mut Chance) -> Self {
        let sends = receives.iter().flat_map(|messages| shuffled(messages, chance)).collect();
        let most_parts = receives.iter().map(Vec::len).max().unwrap_or(0);
        let place_bytes = receives.iter().map(|messages| messages.iter().map(|message| message.place_bytes()).sum());
        let place_bytes = place_bytes.max().unwrap_or(0);
        Self { name, receives_ahead, sends_ahead: receives_ahead * most_parts, place_bytes, sends, receives }
    }
}

/// Returns all messages of `sender`, phase by phase; both ranks compute the same.
pub(super) fn plans(settings: &Settings, sender: usize, max_parts: usize) -> [Plan; 4] {
    let mut chance = Chance::new(settings.seed, &format!("plan of rank {sender}"));
    let largest_random = settings.max_bytes.min(MAX_RANDOM_BYTES);
    let of_sizes = sizes(settings.max_bytes).into_iter().map(|size| vec![chance.message(size, size)]).collect();
    let of_sizes = Plan::new("sizes one by one", 1, of_sizes, &mut chance);
    let of_cuts = cuts(settings.max_bytes).into_iter().map(|(offered, room)| vec![chance.message(offered, room)]);
    let of_cuts = of_cuts.collect();
    let of_cuts = Plan::new("longer and shorter than the receive", 2, of_cuts, &mut chance);
    let groups = (0..GROUPS).map(|index| chance.group(1 + index % max_parts, largest_random)).collect();
    let groups = Plan::new("grouped receives", 4, groups, &mut chance);
    let pipelined = (0..PIPELINED).map(|_| {
        let size = chance.size(largest_random);
        vec![chance.message(size, size)]
    });
    let pipelined = pipelined.collect();
    [of_sizes, of_cuts, groups, Plan::new("many outstanding", MAX_AHEAD, pipelined, &mut chance)]
}

/// Returns the sizes of the first phase: 0, powers of two and multiples of 128, with their neighbours.
fn sizes(max_bytes: usize) -> BTreeSet<usize> {
    let mut sizes = BTreeSet::from([0, 1, 2]);
    for power in powers(2, max_bytes).chain([max_bytes]) {
        sizes.extend([power.saturating_sub(1), power, power + 1, power + BEYOND]);
        sizes.extend(power.checked_sub(BEYOND));
    }
    // Every multiple up to a page, and then one between each two powers of two.
    let multiples = (128..=4096).step_by(128).chain(powers(2, max_bytes).skip(12).map(|power| power / 2 * 3));
    for multiple in multiples.filter(|multiple| *multiple < max_bytes) {
        sizes.extend([multiple - 1, multiple, multiple + 1]);
    }
    sizes
}

/// Returns the sizes of the second phase: the bytes offered, and the room for them.
fn cuts(max_bytes: usize) -> Vec<(usize, usize)> {
    let around = |size: usize| {
        let apart = [(size + 128, size.saturating_sub(128)), (size.saturating_sub(128), size + 128)];
        let twice = [(2 * size, size), (size, 2 * size)].into_iter().filter(move |(a, b)| *a.max(b) <= max_bytes);
        [(size + 1, size), (size, size + 1), (size, 0), (0, size)].into_iter().chain(apart).chain(twice)
    };
    powers(4, max_bytes).flat_map(around).collect()
}

/// Returns the powers of `base` up to `max`, from 1 on.
fn powers(base: usize, max: usize) -> impl Iterator<Item = usize> {
    iter::successors(Some(1), move |power: &usize| power.checked_mul(base)).take_while(move |power| *power <= max)
}

/// Returns the messages of one receive in a random order that keeps those of one tag in sequence: they go to the
/// buffers of that tag in order.
fn shuffled(messages: &[Message], chance: &mut Chance) -> Vec<Message> {
    let mut left = messages.to_vec();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let tag = left[chance.below(left.len())].tag;
        let first = left.iter().position(|message| message.tag == tag);
        order.extend(first.map(|first| left.remove(first)));
    }
    order
}

/// The random numbers drawn from the seed.
pub(super) struct Chance(u64);

impl Chance {
    /// Returns the random numbers for one purpose; each purpose has its own stream.
    pub(super) fn new(seed: u64, purpose: &str) -> Self {
        Self(purpose.bytes().fold(seed, |state, byte| Self(state ^ u64::from(byte)).next()))
    }

    /// Returns the next number of SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }

    /// Returns a size up to `largest`: small ones about as often as large ones, and sometimes 0.
    fn size(&mut self, largest: usize) -> usize {
        let limit = largest >> self.below(8);
        if self.below(10) == 0 { 0 } else { 1 + self.below(limit) }
    }

    fn message(&mut self, offered: usize, room: usize) -> Message {
        Message { tag: self.below(1 << 16) as i32, offered, room, offset: GUARD_BYTES + self.below(OFFSETS) }
    }

    /// Returns `parts` messages for one receive: all with one tag, with two tags, or each with its own tag.
    fn group(&mut self, parts: usize, largest: usize) -> Vec<Message> {
        let first_tag = self.below(1 << 16);
        let tags = [1, 2, parts][self.below(3)];
        let part = |index| {
            let offered = self.size(largest);
            let room = if self.below(4) == 0 { self.size(largest) } else { offered };
            Message { tag: (first_tag + index % tags) as i32, ..self.message(offered, room) }
        };
        (0..parts).map(part).collect()
    }
}

/// Returns the starts of a receive's buffers with their guards, one after the other from `place` on.
pub(super) fn windows(place: usize, messages: &[Message]) -> impl Iterator<Item = (usize, Message)> {
    messages.iter().scan(place, |end, message| {
        let start = *end + message.offset % ALIGNMENTS;
        *end += message.place_bytes();
        Some((start, *message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_nccl_host::net::MAX_PARTS;
    use std::time::Duration;

    #[test]
    fn the_sizes_are_around_powers_of_two_and_multiples_of_128() {
        let sizes = sizes(1 << 20);
        let wanted = [0, 1, 2, 3, 127, 128, 129, 255, 256, 257, 383, 640, 4095, 4097, 4224, 65408, 65664, 98303, 98305];
        assert!(wanted.iter().all(|size| sizes.contains(size)), "{sizes:?}");
        assert_eq!((sizes.last(), sizes.contains(&((1 << 20) - 1))), (Some(&((1 << 20) + 128)), true));
        assert!(super::sizes(1000).is_superset(&BTreeSet::from([999, 1000, 1001, 1128])), "the largest size too");
        let cuts = cuts(1 << 20);
        assert!(cuts.iter().any(|(offered, room)| offered > room) && cuts.iter().any(|(offered, room)| offered < room));
    }

    #[test]
    fn a_plan_follows_from_its_seed_and_fits_its_memory() {
        let settings = Settings { device: 0, max_bytes: 1 << 16, seed: 3, stall: Duration::ZERO };
        let [ours, same, other] =
            [(3, 0), (3, 0), (4, 0)].map(|(seed, sender)| plans(&Settings { seed, ..settings.clone() }, sender, 8));
        for ((plan, same), other) in ours.iter().zip(&same).zip(&other) {
            assert!(plan.sends == same.sends && plan.receives == same.receives && plan.sends != other.sends);
            assert_eq!(plan.sends.len(), plan.receives.iter().map(Vec::len).sum::<usize>());
            for messages in &plan.receives {
                let end = windows(0, messages).map(|(start, message)| start + 2 * GUARD_BYTES + message.room).max();
                assert!(end <= Some(plan.place_bytes) && messages.len() <= MAX_PARTS);
            }
        }
        let groups = &ours[2].receives;
        let parts: BTreeSet<usize> = groups.iter().map(Vec::len).collect();
        assert_eq!(parts, (1..=8).collect());
        let tags = |messages: &Vec<Message>| messages.iter().map(|message| message.tag).collect::<BTreeSet<_>>().len();
        assert!(groups.iter().any(|messages| messages.len() == 8 && tags(messages) == 8));
        assert!(groups.iter().any(|messages| messages.len() == 8 && tags(messages) == 1));
        assert!(groups.iter().flatten().any(|message| message.offered == 0));
    }

    #[test]
    fn messages_of_one_tag_stay_in_order_when_shuffled() {
        let mut chance = Chance::new(1, "a test");
        let mut orders = BTreeSet::new();
        for _ in 0..100 {
            let message = |tag, offered| Message { tag, offered, room: 10, offset: 0 };
            let order = shuffled(&[message(1, 0), message(2, 1), message(1, 2), message(3, 3)], &mut chance);
            let order: Vec<usize> = order.iter().map(|message| message.offered).collect();
            let at = |offered| order.iter().position(|other| *other == offered).unwrap();
            assert!(order.len() == 4 && at(0) < at(2), "{order:?}");
            orders.insert(order);
        }
        assert_eq!(orders.len(), 12, "every allowed order");
    }
}
