//! Refusals: forbidden work changes nothing, and the end that posted it gets an error.

use super::bench::{Bench, Block, SPEC, bytes, immediate, signalled};
use super::{Completion, Harness};
use crate::{Access, Fabric, LaneId, PostError, Rail, RailSpec, RemoteSlice, Write};

const LENGTH: usize = 4096;

/// Writes `length` bytes to a place where that is forbidden. If `access` lets the peer write at all, an allowed write
/// to the same memory comes first, to show that nothing else is the reason for the refusal.
fn refuse<H: Harness>(
    harness: &mut H,
    access: Access,
    length: usize,
    wrong: impl FnOnce(&Block<H::Fabric>) -> RemoteSlice,
) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(LENGTH, Access::SOURCE).filled(30);
    let target = bench.far.block(LENGTH, access);
    bench.far.post_receives(1);
    let mut expected = vec![0; LENGTH];
    if access.remote_write {
        let id = bench.near.post(0, &[signalled(source.source(0, LENGTH), target.place(0))]);
        bench.until("the write that may be", |bench| bench.near.has_sent(id));
        expected = bytes(30, LENGTH);
    }
    assert!(target.all() == expected);
    source.region.write(0, &bytes(31, LENGTH));
    let id = bench.near.post(0, &[immediate(source.source(0, length), wrong(&target), 1)]);
    expect_failure(&mut bench);
    assert!(target.all() == expected, "a refused write changed memory");
    assert!(!bench.near.has_sent(id), "a refused write completed");
    assert!(bench.far.received().is_empty(), "a refused write delivered its immediate");
}

/// Waits until the lane's death is reported, and checks that no end reports it twice and that the lane stays dead.
fn expect_failure<H: Harness>(bench: &mut Bench<'_, H>) {
    // On a one-sided fabric the peer need not notice that a write was refused.
    bench.until("the failure, at both ends", |bench| {
        bench.near.has_failed() && (H::Fabric::ONE_SIDED || bench.far.has_failed())
    });
    bench.until_quiet();
    for side in [&mut bench.near, &mut bench.far] {
        let messages: Vec<String> = side.failures().iter().map(ToString::to_string).collect();
        assert!(messages.len() <= 1, "one lane failed several times: {messages:?}");
        if let Some(message) = messages.first() {
            assert!(message.len() > 10, "a failure without words: {message:?}");
            assert_eq!(side.try_post(0, &[signalled(Default::default(), Default::default())]), Err(PostError::Broken));
        }
    }
}

pub(super) fn a_wrong_key_is_refused<H: Harness>(harness: &mut H) {
    for flip in [1, 0x100, 0x1_0000, 0x8000_0000] {
        let wrong = |target: &Block<H::Fabric>| {
            let right = target.place(0);
            RemoteSlice { key: right.key ^ flip, ..right }
        };
        refuse(harness, Access::DATA, 64, wrong);
    }
    refuse(harness, Access::DATA, 64, |target| RemoteSlice { key: 0, ..target.place(0) });
}

pub(super) fn bytes_beyond_the_registration_are_refused<H: Harness>(harness: &mut H) {
    refuse(harness, Access::DATA, LENGTH, |target| target.place(1));
    refuse(harness, Access::DATA, 64, |target| target.place(LENGTH - 63));
    refuse(harness, Access::DATA, 1, |target| target.place(LENGTH));
}

pub(super) fn bytes_before_the_registration_are_refused<H: Harness>(harness: &mut H) {
    refuse(harness, Access::DATA, 64, |target| target.place(usize::MAX));
    // A range that wraps around.
    refuse(harness, Access::DATA, 64, |target| RemoteSlice { address: u64::MAX - 10, ..target.place(0) });
}

pub(super) fn memory_without_the_right_is_refused<H: Harness>(harness: &mut H) {
    refuse(harness, Access::SOURCE, 64, |target| target.place(0));
}

pub(super) fn deregistered_memory_is_not_written<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(LENGTH, Access::SOURCE).filled(32);
    let target = bench.far.block(LENGTH, Access::DATA);
    let id = bench.near.post(0, &[signalled(source.source(0, 64), target.place(0))]);
    bench.until("the write before", |bench| bench.near.has_sent(id));
    let place = target.place(64);
    let Block { region, registration } = target;
    drop(registration);
    let before = bytes(33, LENGTH);
    region.write(0, &before);
    // New registrations may reuse the old one's place, but not its key.
    let others: Vec<_> = (0..20).map(|_| bench.far.block(64, Access::DATA)).collect();
    bench.near.post(0, &[signalled(source.source(0, 64), place)]);
    expect_failure(&mut bench);
    let mut after = vec![0; LENGTH];
    region.read(0, &mut after);
    assert!(after == before, "deregistered memory was written");
    assert!(others.iter().all(|other| other.all() == [0; 64]));
}

pub(super) fn an_unregistered_source_is_not_read<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(LENGTH, Access::SOURCE).filled(34);
    let target = bench.far.block(LENGTH, Access::DATA);
    let beyond = source.source(LENGTH - 8, 16);
    let mut unknown = source.source(0, 16);
    unknown.key ^= 0x8000;
    for wrong in [beyond, unknown] {
        // With `host`, the processor may copy the bytes even if they are not registered; the network may not.
        let work = Write { host: false, ..signalled(wrong, target.place(0)) };
        // A fabric that checks keys only while sending reports a failed completion instead.
        match bench.near.try_post(0, &[work]) {
            Ok(_) => {
                bench.until("the failure", |bench| bench.near.has_failed());
                break;
            }
            Err(error) => assert!(matches!(error, PostError::Invalid(_)), "{error}"),
        }
    }
    bench.until_quiet();
    assert!(target.all() == [0; LENGTH], "memory that is not registered was sent");
    assert!(bench.near.sent().is_empty());
}

pub(super) fn impossible_work_is_refused<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(64, Access::SOURCE).filled(35);
    let target = bench.far.block(64, Access::DATA);
    let good = signalled(source.source(0, 64), target.place(0));
    let refused = bench.near.try_post(1, &[good]);
    assert!(matches!(refused, Err(PostError::Invalid(_))), "lane 1 of a rail with one lane: {refused:?}");
    if let Some(length) = bench.near.rail().max_write().checked_add(1) {
        let mut long = good;
        long.local.length = length;
        let refused = bench.near.try_post(0, &[good, long]);
        assert!(matches!(refused, Err(PostError::Invalid(_))), "{length} bytes: {refused:?}");
    }
    bench.until_quiet();
    assert!(target.all() == [0; 64] && bench.near.log.is_empty(), "part of a refused chain was posted");
    let id = bench.near.post(0, &[good]);
    bench.until("the good write", |bench| bench.near.has_sent(id));
    assert!(target.all() == source.all());
    bench.finish();
}

pub(super) fn an_immediate_without_a_receive_is_not_lost<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    bench.far.post_receives(1);
    let nothing = |value| immediate(Default::default(), Default::default(), value);
    let first = bench.near.post(0, &[nothing(1)]);
    bench.until("the first", |bench| bench.near.has_sent(first) && bench.far.received().len() == 1);
    let second = bench.near.post(0, &[nothing(2)]);
    bench.until_quiet();
    assert_eq!(bench.far.received().len(), 1, "an immediate arrived without a receive");
    assert!(!bench.near.has_sent(second), "an immediate without a receive completed");
    if bench.near.has_failed() || bench.far.has_failed() {
        expect_failure(&mut bench);
        return;
    }
    // A fabric may also hold the immediate back until there is a receive.
    bench.far.post_receives(1);
    bench.until("the second", |bench| bench.near.has_sent(second) && bench.far.received().len() == 2);
    bench.finish();
}

pub(super) fn a_dropped_peer_is_a_failure<H: Harness>(harness: &mut H) {
    for size in [64, 1 << 20] {
        let mut bench = Bench::new(harness, &RailSpec { lanes: 2, ..SPEC });
        let source = bench.near.block(1 << 20, Access::SOURCE).filled(36);
        let target = bench.far.block(1 << 20, Access::DATA);
        let done = bench.near.post(0, &[signalled(source.source(0, size), target.place(0))]);
        bench.until("the write before", |bench| bench.near.has_sent(done));
        bench.far.rail = None;
        drop(target);
        for lane in 0..2 {
            // A fabric may have noticed already.
            let place = RemoteSlice::default();
            match bench.near.try_post(lane, &[signalled(source.source(0, size), place)]) {
                Ok(_) | Err(PostError::Broken) => {}
                Err(error) => panic!("lane {lane}: {error}"),
            }
        }
        bench.until("both lanes to fail", |bench| bench.near.failures().len() == 2);
        bench.until_quiet();
        let mut lanes = Vec::new();
        for completion in &bench.near.log {
            if let Completion::Failed { lane, .. } = completion {
                lanes.push(*lane);
            }
        }
        lanes.sort_unstable();
        assert_eq!(lanes, [LaneId(0), LaneId(1)], "each lane fails once");
        assert_eq!(bench.near.sent(), [done], "work completed although the peer is gone");
        assert_eq!(bench.near.rail().post_receives(1), Err(PostError::Broken));
    }
}

pub(super) fn a_lingering_end_discards_and_never_fails<H: Harness>(harness: &mut H) {
    if H::Fabric::ONE_SIDED {
        return;
    }
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(100_000, Access::SOURCE).filled(37);
    let target = bench.far.block(100_000, Access::DATA);
    let place = target.place(0);
    let Block { region, registration } = target;
    bench.near.post(0, &[signalled(source.source(0, 100_000), place)]);
    bench.far.rail().start_linger();
    drop(registration);
    let last = bench.near.post(0, &[immediate(source.source(0, 64), place, 1)]);
    bench.until("the acknowledgements", |bench| bench.near.has_sent(last));
    assert_eq!(region.load(0, std::sync::atomic::Ordering::Acquire), 0, "a lingering end placed bytes");
    assert!(bench.far.log.is_empty(), "a lingering end reported {:?}", bench.far.log);
    // Only the lingering end reports no failures.
    bench.far.rail = None;
    let _ = bench.near.try_post(0, &[signalled(Default::default(), Default::default())]);
    bench.until("the near end's failure", |bench| bench.near.has_failed());
}
