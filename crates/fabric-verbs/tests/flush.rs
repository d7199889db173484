//! The loop-back lane, on which one byte is read back so that earlier writes are visible to the GPU.

mod common;

use common::{INFINIBAND, Machine, Pair, ROCE, Wish, assert_says, failed_work};
use railweave_fabric::conformance::Completion;
use railweave_fabric::{Access, PostError, Rail as _, RailError, RemoteSlice, WorkFailure, WorkId, WorkStatus};
use railweave_fabric_verbs::sys;

fn wish() -> Wish {
    let mut wish = Wish::default();
    wish.sender.flush = true;
    wish.receiver.flush = true;
    wish
}

#[test]
fn the_lane_is_connected_to_itself_and_allows_only_reads() {
    for (description, is_global) in [
        (ROCE, 1),
        (INFINIBAND, 0),
        (&INFINIBAND.replace("[[device.port]]\n", "[[device.port]]\ngrh_required = true\n"), 1),
    ] {
        let machine = Machine::new(description);
        let _pair = machine.pair(&wish());
        assert_eq!(machine.lanes("a").len(), 1, "the sender has nothing to flush");
        let lanes = machine.lanes("b");
        let own = lanes.iter().find(|lane| lane.attributes.dest_qp_num == lane.number).expect("a loop-back lane");
        let attributes = own.attributes;
        assert_eq!((lanes.len(), own.state), (2, sys::QPS_RTS));
        assert_eq!(attributes.qp_access_flags, sys::ACCESS_REMOTE_READ.cast_unsigned());
        assert_eq!(
            (attributes.max_dest_rd_atomic, attributes.max_rd_atomic, attributes.rq_psn),
            (1, 1, attributes.sq_psn)
        );
        assert_eq!((attributes.ah_attr.is_global, attributes.ah_attr.sl), (is_global, 0), "{description}");
        assert_eq!((own.capabilities.max_recv_wr, own.capabilities.max_inline_data), (1, 0), "mana needs one");
    }
}

#[test]
fn the_lane_has_the_service_level_of_the_connection() {
    let machine = Machine::new(INFINIBAND);
    for (set, of_job, service_level) in [(None, None, 0), (None, Some(3), 3), (Some(5), Some(3), 5)] {
        let mut wish = Wish { traffic_class: of_job, ..wish() };
        wish.receiver.service_level = set;
        let _pair = machine.pair(&wish);
        for lane in machine.lanes("b") {
            assert_eq!(lane.attributes.ah_attr.sl, service_level, "{set:?} {of_job:?} {lane:?}");
        }
    }
}

#[test]
fn a_flush_reads_one_byte_and_completes_once() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&wish());
    let target = pair.far.block(1000, Access::DATA);
    pair.exchange();
    for id in 0..200 {
        let before = machine.fake.counts();
        pair.far.rail.post_flush(target.place(), WorkId(id)).unwrap();
        let counts = machine.fake.counts().since(&before);
        assert_eq!((counts.reads, counts.bytes, counts.work_requests()), (1, 1, 1));
        assert_eq!(pair.far.poll(), [Completion::Sent { id: WorkId(id) }]);
    }
    assert!(pair.far.poll().is_empty() && pair.far.rail.is_drained());
    pair.exchange();
}

#[test]
fn without_a_lane_for_it_a_flush_is_refused() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&Wish::default());
    let target = pair.far.block(1000, Access::DATA);
    let refused = pair.far.rail.post_flush(target.place(), WorkId(1));
    let Err(PostError::Invalid(text)) = refused else { panic!("{refused:?}") };
    assert_says(&text, &["b has no loop-back lane", "GPU memory"]);
    drop(pair);
    let mut pair = machine.pair(&wish());
    assert!(matches!(pair.near.rail.post_flush(target.place(), WorkId(1)), Err(PostError::Invalid(_))));
}

#[test]
fn no_more_flushes_are_in_progress_than_the_lane_holds() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&wish());
    let target = pair.far.block(1000, Access::DATA);
    machine.fake.cut("b", 1).unwrap();
    let mut posted = 0;
    while pair.far.rail.post_flush(target.place(), WorkId(posted)).is_ok() {
        posted += 1;
        assert!(posted < 10_000, "there is no limit");
    }
    assert_eq!((posted, pair.far.rail.post_flush(target.place(), WorkId(0))), (64, Err(PostError::Full)));
    assert!(!pair.far.rail.is_drained());
    machine.fake.mend("b", 1).unwrap();
    let done: Vec<_> = (0..10).flat_map(|_| pair.far.poll()).collect();
    let expected: Vec<_> = (0..posted).map(|id| Completion::Sent { id: WorkId(id) }).collect();
    assert_eq!(done, expected);
    assert!(pair.far.rail.is_drained());
    pair.far.rail.post_flush(target.place(), WorkId(7)).unwrap();
    assert_eq!(pair.far.poll(), [Completion::Sent { id: WorkId(7) }]);
}

fn failed_flush(pair: &mut Pair, target: RemoteSlice) -> WorkFailure {
    pair.far.rail.post_flush(target, WorkId(42)).unwrap();
    let failures = pair.far.failures();
    assert_eq!((failures.len(), failures[0].1), (1, Some(WorkId(42))), "{failures:?}");
    assert_eq!(pair.far.rail.post_flush(target, WorkId(43)), Err(PostError::Broken));
    failed_work(failures[0].2.clone())
}

#[test]
fn a_flush_of_memory_that_is_not_there_breaks_the_rail_once() {
    let machine = Machine::new(ROCE);
    let mut pair = machine.pair(&wish());
    let target = pair.far.block(1000, Access::DATA);
    let place = target.place();
    drop(target);
    let failure = failed_flush(&mut pair, place);
    assert_eq!(failure.status, WorkStatus::RemoteAccess);
    assert_says(&failure.path, &["b, GID 10.1.0.1"]);
    let mut pair = machine.pair(&wish());
    let unreadable = pair.far.block(1000, Access::CONTROL);
    assert_eq!(failed_flush(&mut pair, unreadable.place()).status, WorkStatus::RemoteAccess);
}

#[test]
fn a_flush_that_the_library_refuses_is_a_failure_with_its_reason() {
    // The test posts no data and no CTS, so the flush is the first call.
    let machine = Machine::new(&format!("faults = ['post_send:1:EIO']\n{ROCE}"));
    let mut pair = machine.pair(&wish());
    let target = pair.far.block(1000, Access::DATA);
    assert_eq!(pair.far.rail.post_flush(target.place(), WorkId(1)), Err(PostError::Broken));
    let failures = pair.far.failures();
    assert_eq!(failures.len(), 1, "the completion says why: {failures:?}");
    let error = &failures[0].2;
    assert!(matches!(error, RailError::TakesNoWork { port, errno: libc::EIO, .. } if port == "b"), "{error:?}");
}
