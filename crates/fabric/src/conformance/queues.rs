//! Queues: they are bounded, a full queue is a normal result, and every completion is reported once.

use super::bench::{Bench, SPEC, immediate, signalled, write};
use super::{Completion, Harness, poll};
use crate::{Access, Fabric, LaneId, PostError, Rail, RailSpec};

pub(super) fn unsignalled_writes_give_their_room_back<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { send_depth: 8, ..SPEC });
    let source = bench.near.block(64, Access::SOURCE).filled(20);
    let target = bench.far.block(64, Access::DATA);
    let depth = bench.near.rail().send_room(LaneId::FIRST);
    assert!(depth >= 8, "room for {depth} writes where 8 were asked for");
    for _ in 0..5 {
        let mut chain = vec![write(source.source(0, 8), target.place(0)); depth as usize - 1];
        bench.near.post(0, &chain);
        assert_eq!(bench.near.rail().send_room(LaneId::FIRST), 1);
        chain.truncate(1);
        chain[0].signalled = true;
        let id = bench.near.post(0, &chain);
        bench.until("the completion", |bench| bench.near.has_sent(id));
        assert_eq!(
            bench.near.rail().send_room(LaneId::FIRST),
            depth,
            "the room of unsignalled writes did not come back"
        );
    }
    assert_eq!(bench.near.sent().len(), 5, "unsignalled writes must not complete");
    bench.finish();
}

pub(super) fn a_full_queue_posts_nothing_and_recovers<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { send_depth: 4, ..SPEC });
    let source = bench.near.block(64, Access::SOURCE).filled(21);
    let target = bench.far.block(64, Access::DATA);
    bench.far.post_receives(64);
    let mut posted = 0;
    for round in 0..4 {
        // Without polls no room comes back.
        let mut full = false;
        for _ in 0..64 {
            let work = immediate(source.source(0, 8), target.place(0), posted);
            match bench.near.try_post(0, &[work]) {
                Ok(_) => posted += 1,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    full = true;
                    break;
                }
            }
        }
        assert!(full && bench.near.rail().send_room(LaneId::FIRST) == 0, "round {round}: the queue never became full");
        let wanted = posted as usize;
        bench.until("everything", |bench| bench.near.sent().len() == wanted && bench.far.received().len() == wanted);
        bench.far.post_receives(4);
    }
    let arrived: Vec<u32> = bench.far.received().into_iter().map(|arrived| arrived.1).collect();
    assert_eq!(arrived, (0..posted).collect::<Vec<_>>(), "refused work arrived, or accepted work did not");
    bench.finish();
}

pub(super) fn a_chain_is_posted_whole_or_not_at_all<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { send_depth: 8, ..SPEC });
    let source = bench.near.block(64, Access::SOURCE).filled(22);
    let target = bench.far.block(64, Access::DATA);
    bench.far.post_receives(64);
    let room = bench.near.rail().send_room(LaneId::FIRST) as usize;
    let refused = vec![immediate(source.source(0, 8), target.place(0), 1); 3];
    let accepted = vec![immediate(source.source(0, 8), target.place(0), 2); 2];
    bench.near.post(0, &vec![write(source.source(8, 8), target.place(8)); room - 2]);
    assert_eq!(bench.near.try_post(0, &refused), Err(PostError::Full));
    assert_eq!(bench.near.rail().send_room(LaneId::FIRST), 2, "a refused chain took room");
    bench.near.post(0, &accepted);
    bench.until("the chain", |bench| bench.near.sent().len() == 2 && bench.far.received().len() == 2);
    assert_eq!(bench.far.received(), [(0, 2, 8); 2], "part of a refused chain arrived");
    bench.finish();
}

pub(super) fn receives_are_counted<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &RailSpec { lanes: 2, receive_depth: 8, ..SPEC });
    assert_eq!(bench.far.rail().post_receives(5), Ok(5));
    assert_eq!(bench.far.rail().post_receives(5), Ok(3), "the pool holds 8");
    assert_eq!(bench.far.rail().post_receives(1), Ok(0), "the pool is full");
    let nothing = |value| immediate(Default::default(), Default::default(), value);
    bench.near.post(0, &[nothing(1), nothing(2)]);
    bench.near.post(1, &[nothing(3)]);
    bench.until("three immediates", |bench| bench.far.received().len() == 3);
    assert_eq!(bench.far.rail().post_receives(8), Ok(3), "three receives were consumed, over both lanes");
    bench.near.post(1, &[nothing(4); 8]);
    bench.until("eight more", |bench| bench.far.received().len() == 11);
    assert_eq!(bench.far.rail().post_receives(0), Ok(0));
    bench.finish();
    // Two lanes, each of which consumes at most half of the pool between two calls.
    let mut bench = Bench::new(harness, &RailSpec { lanes: 2, receive_depth: 8, lane_receives: 4, ..SPEC });
    for round in 1..=3 {
        assert_eq!(bench.far.rail().post_receives(9), Ok(8), "the pool holds 8 in round {round}");
        for lane in 0..2 {
            bench.near.post(lane, &[nothing(1); 4]);
        }
        bench.until("half of them on each lane", |bench| bench.far.received().len() == 8 * round);
    }
    bench.finish();
}

pub(super) fn a_poll_of_few_loses_nothing<H: Harness>(harness: &mut H) {
    for most in [1, 2, 3] {
        let mut bench = Bench::new(harness, &RailSpec { lanes: 2, ..SPEC });
        let source = bench.near.block(4096, Access::SOURCE).filled(23);
        let target = bench.far.block(4096, Access::DATA);
        (bench.near.most, bench.far.most) = (most, most);
        bench.far.post_receives(64);
        for value in 0..32 {
            for lane in 0..2 {
                let work = immediate(source.source(0, 100), target.place(0), value);
                bench.near.post(lane, &[work]);
            }
        }
        // Room for nothing: progress, but no report.
        for _ in 0..50 {
            assert_eq!(poll(bench.near.rail(), 0), []);
            assert_eq!(poll(bench.far.rail(), 0), []);
        }
        bench.until("all", |bench| bench.near.sent().len() == 64 && bench.far.received().len() == 64);
        for lane in 0..2 {
            let of_lane: Vec<u32> =
                bench.far.received().iter().filter(|arrived| arrived.0 == lane).map(|arrived| arrived.1).collect();
            assert_eq!(of_lane, (0..32).collect::<Vec<_>>());
        }
        bench.finish();
    }
}

pub(super) fn completions_come_once<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(4096, Access::SOURCE).filled(24);
    let target = bench.far.block(4096, Access::DATA);
    bench.far.post_receives(16);
    let ids: Vec<u64> =
        (0..16).map(|value| bench.near.post(0, &[immediate(source.source(0, 1000), target.place(0), value)])).collect();
    bench.until("all", |bench| bench.near.sent().len() >= 16 && bench.far.received().len() >= 16);
    bench.until_quiet();
    assert_eq!(bench.near.sent(), ids, "each once, in the order of the lane");
    assert_eq!(bench.far.received().len(), 16);
    assert!(!bench.far.log.iter().any(|one| matches!(one, Completion::Sent { .. })), "the far end sent nothing");
    bench.finish();
}

pub(super) fn an_empty_chain_is_nothing<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let room = bench.near.rail().send_room(LaneId::FIRST);
    assert_eq!(bench.near.rail().post(LaneId::FIRST, &[]), Ok(()));
    assert_eq!(bench.near.rail().send_room(LaneId::FIRST), room);
    bench.until_quiet();
    assert!(bench.near.log.is_empty() && bench.far.log.is_empty());
    bench.finish();
}

pub(super) fn a_drained_rail_says_so<H: Harness>(harness: &mut H) {
    let mut bench = Bench::new(harness, &SPEC);
    let source = bench.near.block(4096, Access::SOURCE).filled(25);
    let target = bench.far.block(4096, Access::DATA);
    assert!(bench.near.rail().is_drained() && bench.far.rail().is_drained());
    let id = bench.near.post(0, &[signalled(source.source(0, 4096), target.place(0))]);
    if !H::Fabric::ONE_SIDED {
        bench.until_near_is_quiet();
        assert!(!bench.near.rail().is_drained(), "drained, although the peer has placed nothing");
    }
    bench.until("the completion", |bench| bench.near.has_sent(id));
    bench.until_quiet();
    assert!(bench.near.rail().is_drained() && bench.far.rail().is_drained());
    bench.finish();
}
