//! Delivery: bytes arrive whole, in order, and nowhere else.

use std::sync::atomic::Ordering;

use super::bench::{Bench, Block, Numbers, SPEC, Side, bytes, immediate, signalled, write};
use super::harness::Harness;
use crate::{Access, Fabric, LaneId, Rail, RailSpec, RemoteSlice, Write};

const MIB: usize = 1 << 20;

pub(super) fn bytes_land_exactly<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(4096, Access::SOURCE).filled(1);
    let target = bench.far.block(4096, Access::DATA).filled(2);
    let mut expected = target.all();
    for (from, to, length) in [(0, 1000, 100), (7, 2001, 333), (4095, 0, 1), (0, 4095, 1), (64, 3072, 64)] {
        expected[to..to + length].copy_from_slice(&source.read(from, length));
        let id = bench.near.post(0, &[signalled(source.source(from, length), target.place(to))]);
        bench.until("the write to complete", |bench| bench.near.has_sent(id));
        assert!(target.all() == expected, "{length} bytes to offset {to} changed other bytes, or not their own");
    }
    assert!(source.all() == bytes(1, 4096), "the source was changed");
    bench.finish();
}

pub(super) fn every_size_arrives<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(MIB + 200, Access::SOURCE).filled(3);
    let target = bench.far.block(MIB + 200, Access::DATA);
    bench.far.post_receives(64);
    let sizes = [0, 1, 7, 8, 127, 128, 4095, 4096, 4097, 16_352, 16_384, 65_536, MIB - 1, MIB, MIB + 1];
    for (number, size) in sizes.into_iter().enumerate() {
        for offset in [0, 13] {
            target.region.write(0, &vec![0xee; MIB + 200]);
            let value = (number * 2 + offset) as u32;
            let work = immediate(source.source(offset, size), target.place(offset + 50), value);
            let id = bench.near.post(0, &[work]);
            let arrived = (0, value, size as u32);
            bench.until("the immediate", |bench| bench.far.received().last() == Some(&arrived));
            assert!(target.read(offset + 50, size) == source.read(offset, size), "{size} bytes arrived altered");
            assert_eq!(target.read(offset + 42, 8), [0xee; 8], "bytes before the destination changed");
            assert_eq!(target.read(offset + 50 + size, 8), [0xee; 8], "bytes after the destination changed");
            bench.until("the completion", |bench| bench.near.has_sent(id));
        }
    }
    assert_eq!(bench.far.received().len(), sizes.len() * 2);
    bench.finish();
}

/// A flag that is written after the bytes shows that the bytes have arrived; the last word of a 64-byte entry shows
/// that the whole entry has arrived.
pub(super) fn later_writes_imply_earlier_ones<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { send_depth: 16, ..SPEC });
    let source = bench.near.block(16 << 10, Access::SOURCE);
    let target = bench.far.block(16 << 10, Access::CONTROL);
    let flag = 8192;
    for round in 1..=100u64 {
        let payload = bytes(round, 8192);
        source.region.write(0, &payload);
        source.region.write(flag, &bytes(round, 56));
        source.region.store(flag + 56, round, Ordering::Release);
        let rest = write(source.source(0, 8192), target.place(0));
        let entry = signalled(source.source(flag, 64), target.place(flag));
        let id = bench.near.post(0, &[rest, entry]);
        let seen =
            |bench: &Bench<'_, H>| target.region.load(flag + 56, Ordering::Acquire) == round || bench.near.has_failed();
        bench.until("the flag", seen);
        assert!(target.read(0, 8192) == payload, "round {round}: the flag came before the bytes");
        assert!(target.read(flag, 56) == bytes(round, 56), "round {round}: the entry's last word came first");
        bench.until("the completion", |bench| bench.near.has_sent(id));
    }
    bench.finish();
}

pub(super) fn an_immediate_follows_its_bytes<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(64 << 10, Access::SOURCE).filled(4);
    let target = bench.far.block(64 << 10, Access::DATA);
    bench.far.post_receives(20);
    for round in 0..20u32 {
        target.region.write(0, &vec![0; 64 << 10]);
        let (first, second) = (30_000 + round as usize, 20_000);
        // The immediate's byte count covers its own write only.
        let plain = write(source.source(0, first), target.place(0));
        let last = immediate(source.source(first, second), target.place(first), 0xffff_fff0 + round % 16);
        bench.near.post(0, &[plain, last]);
        bench.until("the immediate", |bench| bench.far.received().len() == round as usize + 1);
        assert_eq!(bench.far.received().last(), Some(&(0, 0xffff_fff0 + round % 16, second as u32)));
        assert!(
            target.read(0, first + second) == source.read(0, first + second),
            "the immediate came before its bytes"
        );
    }
    bench.finish();
}

pub(super) fn an_empty_write_carries_its_immediate<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let target = bench.far.block(64, Access::DATA).filled(5);
    bench.far.post_receives(3);
    // Neither side looks at an empty write's key and address.
    let nothing = immediate(Default::default(), RemoteSlice { address: u64::MAX, key: 0xdead_beef }, 0);
    let somewhere = immediate(Default::default(), target.place(0), u32::MAX);
    let unsignalled = Write { signalled: false, ..immediate(Default::default(), target.place(64), 7) };
    let id = bench.near.post(0, &[nothing, unsignalled, somewhere]);
    bench.until("all", |bench| bench.far.received().len() == 3 && bench.near.has_sent(id));
    assert_eq!(bench.far.received(), [(0, 0, 0), (0, 7, 0), (0, u32::MAX, 0)]);
    assert!(target.all() == bytes(5, 64), "an empty write wrote something");
    bench.finish();
}

pub(super) fn a_write_completes_only_when_placed<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(MIB, Access::SOURCE).filled(6);
    let target = bench.far.block(MIB, Access::DATA);
    for size in [8, 4096, MIB] {
        target.region.write(0, &vec![0; MIB]);
        let id = bench.near.post(0, &[signalled(source.source(0, size), target.place(0))]);
        if !H::Fabric::ONE_SIDED {
            bench.until_near_is_quiet();
            assert!(!bench.near.has_sent(id), "{size} bytes are complete although the peer has not polled");
        }
        bench.until("the completion", |bench| bench.near.has_sent(id));
        assert!(target.read(0, size) == source.read(0, size), "complete before the bytes were placed");
    }
    bench.finish();
}

pub(super) fn lanes_are_told_apart<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { lanes: 4, ..SPEC });
    assert_eq!((bench.near.rail().lanes(), bench.far.rail().lanes()), (4, 4));
    let source = bench.near.block(4096, Access::SOURCE).filled(7);
    let target = bench.far.block(4096, Access::DATA);
    bench.far.post_receives(40);
    for round in 0..10 {
        for lane in 0..4u8 {
            let at = usize::from(lane) * 1024;
            let value = round * 10 + u32::from(lane);
            bench.near.post(lane, &[immediate(source.source(at, 1000), target.place(at), value)]);
        }
    }
    bench.until("all", |bench| bench.far.received().len() == 40 && bench.near.sent().len() == 40);
    for lane in 0..4u8 {
        let of_lane = bench.far.received().into_iter().filter(|arrived| arrived.0 == lane).collect::<Vec<_>>();
        let expected: Vec<_> = (0..10).map(|round| (lane, round * 10 + u32::from(lane), 1000)).collect();
        assert_eq!(of_lane, expected, "lane {lane}: in order, and with its own number");
        let at = usize::from(lane) * 1024;
        assert!(target.read(at, 1000) == source.read(at, 1000));
    }
    bench.finish();
}

/// The messages of one direction in `both_directions_carry_random_sizes`.
struct Stream<F: Fabric> {
    source: Block<F>,
    target: Block<F>,
    numbers: Numbers,
    /// Offset and length of each message, by its number.
    posted: Vec<(usize, usize)>,
    /// True for each message that has arrived. Messages arrive in any order, because nothing orders the lanes.
    seen: Vec<bool>,
    checked: usize,
}

impl<F: Fabric> Stream<F> {
    const AREA: usize = 200_000;
    const IN_FLIGHT: usize = 24;
    const COUNT: usize = 600;

    fn new(from: &Side<F>, to: &mut Side<F>, seed: u64) -> Self {
        let length = Self::AREA * Self::IN_FLIGHT;
        to.post_receives(Self::IN_FLIGHT as u32 * 2);
        Self {
            source: from.block(length, Access::SOURCE).filled(seed),
            target: to.block(length, Access::DATA),
            numbers: Numbers(seed),
            posted: Vec::new(),
            seen: Vec::new(),
            checked: 0,
        }
    }

    /// Posts one message, in one write or two, unless too many are in flight. Message `n` has area `n % IN_FLIGHT`.
    fn post(&mut self, from: &mut Side<F>, lanes: usize) {
        let number = self.posted.len();
        if number == Self::COUNT || (number >= Self::IN_FLIGHT && !self.seen[number - Self::IN_FLIGHT]) {
            return;
        }
        let small = self.numbers.below(3) > 0;
        let length = self.numbers.below(if small { 3000 } else { Self::AREA - 64 });
        let offset = number % Self::IN_FLIGHT * Self::AREA + self.numbers.below(64);
        let cut = self.numbers.below(length + 1);
        let part = |at, length| (self.source.source(at, length), self.target.place(at));
        let (head, tail) = (part(offset, cut), part(offset + cut, length - cut));
        let signal = self.numbers.below(4) > 0;
        let last = Write { signalled: signal, ..immediate(tail.0, tail.1, number as u32) };
        let chain = if self.numbers.below(2) == 0 {
            vec![write(head.0, head.1), last]
        } else {
            let whole = part(offset, length);
            vec![Write { local: whole.0, remote: whole.1, ..last }]
        };
        let lane = (number % lanes) as u8;
        if from.rail().send_room(LaneId(lane)) as usize > chain.len() {
            from.post(lane, &chain);
            self.posted.push((offset, length));
            self.seen.push(false);
        } else if from.rail().send_room(LaneId(lane)) > 0 {
            // The queue may be nearly full of unsignalled writes; a signalled write gets their room back.
            from.post(lane, &[signalled(Default::default(), Default::default())]);
        }
    }

    /// Checks the messages that have arrived, and posts a new receive for each.
    fn check(&mut self, to: &mut Side<F>) {
        for (lane, number, _) in to.received().drain(..).skip(self.checked) {
            let (offset, length) = self.posted[number as usize];
            assert!(!self.seen[number as usize], "message {number} arrived twice");
            self.seen[number as usize] = true;
            let same = self.target.read(offset, length) == self.source.read(offset, length);
            assert!(same, "message {number} of {length} bytes on lane {lane} arrived altered");
            self.target.region.write(offset, &vec![0; length]);
            self.checked += 1;
            to.post_receives(1);
        }
    }
}

pub(super) fn both_directions_carry_random_sizes<H: Harness>(harness: &mut H) {
    const LANES: usize = 3;
    let spec = RailSpec { lanes: LANES as u8, send_depth: 20, receive_depth: 64, ..SPEC };
    let mut bench = Bench::new(harness, &spec);
    let mut out = Stream::new(&bench.near, &mut bench.far, 11);
    let mut back = Stream::new(&bench.far, &mut bench.near, 12);
    let count = Stream::<H::Fabric>::COUNT;
    let mut steps = 0u32;
    while out.checked < count || back.checked < count {
        out.post(&mut bench.near, LANES);
        back.post(&mut bench.far, LANES);
        bench.step();
        out.check(&mut bench.far);
        back.check(&mut bench.near);
        steps += 1;
        assert!(
            steps < 1_000_000 && !bench.near.has_failed() && !bench.far.has_failed(),
            "{} and {} of {count} messages after {steps} polls; near: {:?}, far: {:?}",
            out.checked,
            back.checked,
            bench.near.failures(),
            bench.far.failures()
        );
    }
    bench.finish();
}

pub(super) fn an_end_that_acknowledged_may_stop_polling<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(1000, Access::SOURCE).filled(6);
    let target = bench.far.block(1000, Access::DATA);
    bench.far.post_receives(10);
    for round in 0..10 {
        let last = Write { signalled: true, ..immediate(source.source(0, 1000), target.place(0), round) };
        let id = bench.near.post(0, &[last]);
        let arrived = |bench: &Bench<'_, H>| bench.far.received().len() == round as usize + 1;
        bench.until("the immediate", arrived);
        bench.until_near("the acknowledgement to leave", |bench| bench.far.rail().acknowledge());
        // From here on only the sender polls.
        bench.until_near("the completion", |bench| bench.near.has_sent(id));
    }
    bench.finish();
}
