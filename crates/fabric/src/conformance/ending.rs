//! The end of a rail, its fence: what it has reported adds up, and nothing lands after it.

use super::bench::{Bench, Block, SPEC, bytes, immediate, signalled, write};
use super::{Completion, Harness};
use crate::{Access, PostError, Rail, RailSpec, RemoteSlice, WorkId};

const LANES: u8 = 2;
/// Writes per lane, of which each third has no immediate and is not signalled.
const WRITES: u32 = 24;
const LENGTH: usize = 3000;
const BLOCK: usize = LANES as usize * WRITES as usize * LENGTH;

/// A rail with writes in progress on all its lanes, from the near end to the far one.
struct Busy<'h, H: Harness> {
    bench: Bench<'h, H>,
    source: Block<H::Fabric>,
    target: Block<H::Fabric>,
    /// The id of each signalled write, with its lane and its immediate.
    posted: Vec<(u64, u8, u32)>,
}

impl<'h, H: Harness> Busy<'h, H> {
    /// Posts the writes, and polls both ends this many times.
    fn new(harness: &'h mut H, seed: u64, polls: u32) -> Self {
        let mut bench = Bench::new(harness, &RailSpec { lanes: LANES, ..SPEC });
        let source = bench.near.block(BLOCK, Access::SOURCE).filled(seed);
        let target = bench.far.block(BLOCK, Access::DATA);
        bench.far.post_receives(u32::from(LANES) * WRITES);
        let mut posted = Vec::new();
        for number in 0..WRITES {
            for lane in 0..LANES {
                let value = number * u32::from(LANES) + u32::from(lane);
                let place = value as usize * LENGTH;
                let (local, remote) = (source.source(place, LENGTH), target.place(place));
                match number % 3 {
                    1 => drop(bench.near.post(lane, &[write(local, remote)])),
                    _ => posted.push((bench.near.post(lane, &[immediate(local, remote, value)]), lane, value)),
                }
            }
        }
        (0..polls).for_each(|_| bench.step());
        Self { bench, source, target, posted }
    }

    /// Checks the far end's arrivals: on each lane they are the first of those that were posted, each once.
    fn check_arrivals(&self) {
        for lane in 0..LANES {
            let posted =
                self.posted.iter().filter(|posted| posted.1 == lane).map(|posted| (lane, posted.2, LENGTH as u32));
            let arrived: Vec<_> = self.bench.far.received().into_iter().filter(|arrived| arrived.0 == lane).collect();
            let expected: Vec<_> = posted.take(arrived.len()).collect();
            assert_eq!(arrived, expected, "an immediate was lost, or came twice or in another order");
        }
    }

    /// Checks the near end's completions: each comes once, and its immediate has been reported by the far end.
    fn check_completions(&self) {
        let mut sent = self.bench.near.sent();
        let received = self.bench.far.received();
        for id in &sent {
            let (_, lane, value) = self.posted.iter().find(|posted| posted.0 == *id).expect("a signalled write");
            let arrival = (*lane, *value, LENGTH as u32);
            assert!(
                received.contains(&arrival),
                "immediate {value} was acknowledged, and never reported: {received:?}"
            );
        }
        sent.sort_unstable();
        assert!(sent.windows(2).all(|two| two[0] != two[1]), "work completed twice: {sent:?}");
    }

    /// Checks that each write whose immediate the far end has reported is in its memory.
    fn check_bytes(&self) {
        for (_, value, _) in self.bench.far.received() {
            let place = value as usize * LENGTH;
            assert!(self.target.read(place, LENGTH) == self.source.read(place, LENGTH), "the bytes of {value}");
        }
    }
}

/// Numbers of polls after which a case ends its rail: at once, on the way, and late.
const POLLS: [u32; 7] = [0, 1, 2, 5, 13, 40, 300];

pub(super) fn an_ended_receiver_has_reported_all_that_the_sender_knows<H: Harness>(harness: &mut H) {
    for (seed, polls) in POLLS.into_iter().enumerate() {
        let mut busy = Busy::new(harness, 40 + seed as u64, polls);
        assert!(busy.bench.far.end(&[]));
        busy.check_arrivals();
        busy.check_bytes();
        busy.bench.until_near_is_quiet();
        assert!(busy.bench.near.end(&[]));
        busy.check_completions();
        assert!(!busy.bench.far.has_failed(), "{:?}", busy.bench.far.log);
    }
}

pub(super) fn nothing_lands_after_the_end<H: Harness>(harness: &mut H) {
    for (seed, polls) in POLLS.into_iter().enumerate() {
        let mut busy = Busy::new(harness, 50 + seed as u64, polls);
        // More that has not left yet, or is on its way.
        let more = write(busy.source.source(0, LENGTH), busy.target.place(0));
        let posted = busy.bench.near.try_post(0, &[more]);
        assert!(matches!(posted, Ok(_) | Err(PostError::Broken)), "{posted:?}");
        assert!(busy.bench.far.end(&[]));
        // The memory stays registered: its next owner is another rail.
        let owned = bytes(60, BLOCK);
        busy.target.region.write(0, &owned);
        busy.bench.until_near_is_quiet();
        for lane in 0..LANES {
            let _ = busy.bench.near.try_post(lane, &[more]);
        }
        busy.bench.until_near_is_quiet();
        assert!(busy.target.all() == owned, "a write landed after the end, with {polls} polls before it");
    }
}

pub(super) fn an_ended_sender_sends_nothing_more<H: Harness>(harness: &mut H) {
    for (seed, polls) in POLLS.into_iter().enumerate() {
        let mut busy = Busy::new(harness, 70 + seed as u64, polls);
        assert!(busy.bench.near.end(&[]));
        assert!(!busy.bench.near.has_failed(), "{:?}", busy.bench.near.log);
        let first = busy.source.all();
        busy.source.region.write(0, &vec![0xee; BLOCK]);
        // Packets that are in the network already may still land, with the bytes that they had.
        busy.bench.until_quiet();
        busy.check_arrivals();
        busy.check_completions();
        let there = busy.target.all();
        let is_old = there.iter().zip(&first).all(|(there, first)| there == first || *there == 0);
        assert!(is_old, "something left after the end, with {polls} polls before it");
        assert!(busy.bench.far.end(&[]));
        busy.check_arrivals();
        busy.check_completions();
    }
}

pub(super) fn the_end_reports_no_failure<H: Harness>(harness: &mut H) {
    // The peer drops its end, and this end may notice before or during its own.
    for is_noticed in [false, true] {
        let mut bench = Bench::new(harness, &SPEC);
        let source = bench.near.block(64, Access::SOURCE).filled(80);
        let target = bench.far.block(64, Access::DATA);
        let done = bench.near.post(0, &[signalled(source.source(0, 64), target.place(0))]);
        bench.until("the write before", |bench| bench.near.has_sent(done));
        let lost = bench.near.try_post(0, &[signalled(source.source(0, 64), RemoteSlice::default())]);
        bench.far.rail = None;
        if is_noticed {
            // Polls with room for nothing report nothing.
            bench.near.most = 0;
            bench.until_near_is_quiet();
        }
        assert!(bench.near.end(&[]));
        assert_eq!(bench.near.log, [Completion::Sent { id: WorkId(done) }], "{lost:?}");
    }
}

pub(super) fn the_peer_of_an_ended_rail_fails<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { lanes: LANES, ..SPEC });
    let source = bench.near.block(64, Access::SOURCE).filled(81);
    let target = bench.far.block(64, Access::DATA);
    let done = bench.near.post(0, &[signalled(source.source(0, 64), target.place(0))]);
    bench.until("the write before", |bench| bench.near.has_sent(done));
    assert!(bench.far.end(&[]) && bench.far.log.is_empty(), "{:?}", bench.far.log);
    for lane in 0..LANES {
        let posted = bench.near.try_post(lane, &[signalled(source.source(0, 64), target.place(0))]);
        assert!(matches!(posted, Ok(_) | Err(PostError::Broken)), "lane {lane}: {posted:?}");
    }
    bench.until("all lanes to fail", |bench| bench.near.failures().len() == usize::from(LANES));
    assert_eq!(bench.near.sent(), [done], "work completed although the peer has ended its rail");
}

pub(super) fn the_end_flushes<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let target = bench.far.block(1 << 16, Access::DATA);
    // More than any queue holds.
    let places: Vec<RemoteSlice> = (0..1000).map(|place| target.place(place * 64)).collect();
    assert!(bench.far.end(&places), "memory that may be flushed");
    assert!(bench.far.log.is_empty(), "the flushes of the end were reported: {:?}", bench.far.log);
    let mut bench = Bench::new(harness, &SPEC);
    let (good, gone) = (bench.far.block(64, Access::DATA), bench.far.block(64, Access::DATA));
    let places = [good.place(0), gone.place(0), good.place(1)];
    drop(gone);
    let flushes = bench.far.rail().flushes();
    assert_eq!(bench.far.end(&places), !flushes, "memory that is not registered any more");
}
