//! The fence of a rail: what it reports, what it leaves behind, and the time that it takes.

mod common;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use common::{Machine, Pair, ROCE, Wish, open, strict};
use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    Access, Domain as _, EventSource as _, LaneId, LocalSlice, Rail as _, RailSpec, RemoteSlice, Role, WorkId, Write,
};
use railweave_fabric_verbs::{DeviceEvents, VerbsConfig, VerbsRail, sys};

/// Far more than a fence takes if everything that it waits for comes, and less than it waits for what does not come.
const SWIFT: Duration = Duration::from_millis(300);
/// The time for which a fence waits if the receives are shared, and at a lane that cannot say that it is over.
const QUIET: Duration = Duration::from_millis(10);
/// The time for which a fence waits for work that should come back.
const LIMIT: Duration = Duration::from_millis(400);
/// The time for which a fence that has read nothing back shortens others.
const VAIN_TIME: Duration = Duration::from_secs(3);
/// More than a fence ever takes.
const BOUND: Duration = Duration::from_secs(3);

/// The end of a rail: its result, its reports, and the time that it took.
struct Ended {
    is_flushed: bool,
    reports: Vec<Completion>,
    time: Duration,
}

fn end(rail: VerbsRail, flushes: &[RemoteSlice]) -> Ended {
    let (begun, mut reports) = (Instant::now(), Vec::new());
    let ended = rail.end(flushes, &mut reports);
    Ended { is_flushed: ended.is_visible, reports, time: begun.elapsed() }
}

/// Two RoCE devices of an adapter, after these faults.
fn devices(profile: &str, faults: &str) -> String {
    let device = |name| format!("[[device]]\nname = '{name}'\nprofile = '{profile}'\n[[device.port]]\n");
    format!("faults = [{faults}]\n{}{}", device("a"), device("b"))
}

fn wish(lanes: u8, shared_receives: Option<bool>) -> Wish {
    let config = VerbsConfig { shared_receives, flush: true, ..VerbsConfig::default() };
    Wish { lanes, ..Wish::of(config) }
}

/// The same for an end without a queue pair that flushes.
fn unflushed(lanes: u8, shared_receives: Option<bool>) -> Wish {
    Wish { lanes, ..Wish::of(VerbsConfig { shared_receives, flush: false, ..VerbsConfig::default() }) }
}

/// Posts a signalled write with its number as id and immediate, and an unsignalled one before it if `is_pair`.
fn post(rail: &mut VerbsRail, lane: u8, number: u32, local: LocalSlice, remote: RemoteSlice, is_pair: bool) {
    let plain = Write { local, remote, host: true, ..Write::default() };
    let work = Write { signalled: true, immediate: Some(number), id: WorkId(number.into()), ..plain };
    let chain = [plain, work];
    rail.post(LaneId(lane), if is_pair { &chain } else { &chain[1..] }).unwrap();
}

fn sent(numbers: impl IntoIterator<Item = u32>) -> Vec<Completion> {
    numbers.into_iter().map(|number| Completion::Sent { id: WorkId(number.into()) }).collect()
}

fn received(numbers: impl IntoIterator<Item = (u8, u32)>, bytes: u32) -> Vec<Completion> {
    let arrival = |(lane, immediate)| Completion::Received { lane: LaneId(lane), immediate, bytes };
    numbers.into_iter().map(arrival).collect()
}

/// The numbers of the immediates among the reports.
fn immediates(reports: &[Completion]) -> BTreeSet<u32> {
    let immediate = |one: &Completion| match one {
        Completion::Received { immediate, .. } => *immediate,
        other => panic!("{other}"),
    };
    let all: BTreeSet<u32> = reports.iter().map(immediate).collect();
    assert_eq!(all.len(), reports.len(), "an immediate came twice: {reports:?}");
    all
}

#[test]
fn a_fence_reports_what_is_complete_once_and_nothing_lands_later() {
    for (profile, lanes, shared) in [
        ("plain", 1, None),
        ("plain", 1, Some(true)),
        ("plain", 3, None),
        ("plain", 3, Some(false)),
        ("connectx-7", 1, None),
        ("connectx-7", 2, None),
        ("rxe", 1, None),
        ("rxe", 2, Some(true)),
        ("rxe", 2, Some(false)),
    ] {
        let machine = Machine::new(&devices(profile, ""));
        // A busy machine may hold a thread up, so one of several swift fences is enough.
        let mut times = Vec::new();
        for _ in 0..4 {
            let Pair { mut near, mut far } = machine.pair(&wish(lanes, shared));
            let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
            assert_eq!(far.rail.post_receives(40), Ok(40));
            let places: Vec<_> = (0..3).flat_map(|round| (0..lanes).map(move |lane| (lane, round))).collect();
            let number = |&(lane, round): &(u8, u32)| u32::from(lane) + 10 * round;
            for place in &places {
                post(&mut near.rail, place.0, number(place), from.source(100), to.place(), true);
            }
            // The first of each end is polled, the others are not.
            let mut reports = [Vec::new(), Vec::new()];
            near.rail.report(1, &mut reports[0]);
            far.rail.report(1, &mut reports[1]);
            machine.fake.cut("b", 1).unwrap();
            for place in &places {
                post(&mut near.rail, place.0, 100 + number(place), from.source(100), to.place(), true);
            }
            let is_far_first = times.len() % 2 == 0;
            let (first, second) = if is_far_first { (far.rail, near.rail) } else { (near.rail, far.rail) };
            // The loop-back of a port whose cable is cut carries nothing either.
            let first = end(first, &[]);
            machine.fake.mend("b", 1).unwrap();
            to.region.write(0, &[0xab; 100]);
            let second = end(second, &[to.place(); 3][..if is_far_first { 0 } else { 3 }]);
            assert!(first.is_flushed && second.is_flushed, "{profile}, {lanes} lanes, {shared:?}");
            let (near_end, far_end) = if is_far_first { (second, first) } else { (first, second) };
            reports[0].extend(near_end.reports);
            reports[1].extend(far_end.reports);
            assert_eq!(reports[0], sent(places.iter().map(number)), "{profile}, {lanes} lanes, {shared:?}");
            let arrived = places.iter().map(|place| (place.0, number(place)));
            assert_eq!(reports[1], received(arrived, 100), "{profile}, {lanes} lanes, {shared:?}");
            let mut there = [0; 100];
            to.region.read(0, &mut there);
            assert_eq!(there, [0xab; 100], "{profile}, {lanes} lanes, {shared:?}");
            assert!(machine.fake.queue_pairs().is_empty());
            if shared.unwrap_or(lanes > 1) {
                assert!(far_end.time >= QUIET, "nothing tells that no more immediates come: {:?}", far_end.time);
            }
            times.push(near_end.time.max(far_end.time));
        }
        assert!(times.iter().any(|time| *time < SWIFT), "{profile}, {lanes} lanes, {shared:?}: {times:?}");
    }
}

#[test]
fn a_fence_does_not_wait_for_unsignalled_writes_that_are_through() {
    let machine = Machine::new(&strict(ROCE));
    // None, some, and all but one of the places of the send queue are taken by writes that never complete.
    for (plain, signalled) in [(0, 0), (3, 0), (3, 2), (7, 0), (6, 1), (7, 1)] {
        let mut times = Vec::new();
        for _ in 0..3 {
            let mut pair = machine.pair(&Wish { depth: 8, ..Wish::default() });
            let (from, to) = (pair.near.block(100, Access::SOURCE), pair.far.block(100, Access::DATA));
            assert_eq!(pair.far.rail.post_receives(8), Ok(8));
            let write = Write { local: from.source(100), remote: to.place(), host: true, ..Write::default() };
            (0..signalled).for_each(|id| post(&mut pair.near.rail, 0, id, from.source(100), to.place(), false));
            (0..plain).for_each(|_| pair.near.rail.post(LaneId::FIRST, &[write]).unwrap());
            let ended = end(pair.near.rail, &[]);
            assert_eq!(ended.reports, sent(0..signalled), "the marker is nobody's work");
            times.push(ended.time);
        }
        assert!(times.iter().any(|time| *time < SWIFT), "{plain} and {signalled}: {times:?}");
    }
}

#[test]
fn a_fence_does_not_wait_for_the_destruction_of_its_lanes() {
    for (profile, lanes, shared) in [("rxe", 1, None), ("rxe", 2, Some(true)), ("connectx-7", 2, None)] {
        let machine = Machine::new(&devices(profile, "'destroy_qp@b:*:400ms'"));
        let Pair { mut near, mut far } = machine.pair(&unflushed(lanes, shared));
        let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
        assert_eq!(far.rail.post_receives(40), Ok(40));
        post(&mut near.rail, 0, 7, from.source(100), to.place(), false);
        machine.fake.cut("b", 1).unwrap();
        post(&mut near.rail, 0, 8, from.source(100), to.place(), false);
        let (begun, mut reports) = (Instant::now(), Vec::new());
        let ended = far.rail.end(&[], &mut reports);
        assert!(begun.elapsed() < Duration::from_millis(400 * u64::from(lanes)), "{profile}: {:?}", begun.elapsed());
        assert_eq!(reports, received([(0, 7)], 100), "{profile}, {lanes} lanes, {shared:?}");
        assert!(ended.is_visible);
        let states: Vec<_> = machine.lanes("b").iter().map(|lane| lane.state).collect();
        assert_eq!(states, vec![sys::QPS_RESET; usize::from(lanes)], "{profile}: they are there, and do nothing");
        // The peer goes on sending, and reaches nothing.
        machine.fake.mend("b", 1).unwrap();
        assert_eq!(near.failures().len(), 1);
        drop(ended);
        assert!(machine.lanes("b").is_empty());
    }
}

#[test]
fn lanes_that_are_not_shown_to_be_reset_are_destroyed_by_the_fence() {
    for (profile, faults, are_destroyed) in [
        ("plain", "", false),
        ("plain", "'modify_qp/RESET@b:*:EIO'", true),
        ("plain", "'modify_qp/ERR@b:*:EIO'", true),
        ("plain", "'query_qp@b:*:EIO'", true),
        // Three queue pairs are stopped once each.
        ("plain", "'modify_qp/ERR@b:4-9:EIO'", false),
        // The reset changes nothing, and nobody says what it has changed.
        ("irdma", "", true),
        ("mana", "", true),
        ("connectx-7", "", false),
        ("bnxt_re", "", false),
        ("rxe", "", false),
    ] {
        let machine = Machine::new(&devices(profile, faults));
        let Pair { near, far } = machine.pair(&wish(2, None));
        let mut reports = Vec::new();
        let ended = far.rail.end(&[], &mut reports);
        assert!(ended.is_over && ended.is_visible && reports.is_empty(), "{profile}, {faults}");
        let states: Vec<_> = machine.lanes("b").iter().map(|lane| lane.state).collect();
        // Two lanes, and the one that flushes.
        let expected = if are_destroyed { Vec::new() } else { vec![sys::QPS_RESET; 3] };
        assert_eq!(states, expected, "{profile}, {faults}: while the rest is there");
        drop((near, ended));
        assert!(machine.fake.queue_pairs().is_empty());
    }
}

#[test]
fn a_fence_that_can_neither_reset_nor_destroy_says_so_unless_the_device_is_gone() {
    for (error, is_over) in [("EBUSY", false), ("EINVAL", false), ("EIO", true), ("ENODEV", true)] {
        let faults = format!("'modify_qp/RESET@b:*:{error}', 'destroy_qp@b:1:{error}'");
        let machine = Machine::new(&devices("plain", &faults));
        let Pair { near, far } = machine.pair(&wish(2, None));
        let ended = far.rail.end(&[], &mut Vec::<Completion>::new());
        assert_eq!((ended.is_over, machine.lanes("b").len()), (is_over, 1), "{error}");
        drop((near, ended));
        assert!(machine.lanes("b").is_empty(), "its destruction was retried");
    }
}

#[test]
fn an_immediate_that_comes_while_the_lanes_end_is_reported_if_the_adapter_keeps_it() {
    for (profile, keeps, ending) in [
        ("rxe", true, "'modify_qp/RESET@b:*:200ms'"),
        ("plain", false, "'modify_qp/RESET@b:*:200ms'"),
        ("rxe", true, "'modify_qp/RESET@b:*:EIO', 'destroy_qp@b:*:200ms'"),
        ("plain", false, "'modify_qp/RESET@b:*:EIO', 'destroy_qp@b:*:200ms'"),
    ] {
        // The far end's lane goes on, and takes long to end.
        let faults = format!("'modify_qp/ERR@b:*:EIO', {ending}");
        let machine = Machine::new(&devices(profile, &faults));
        let Pair { mut near, mut far } = machine.pair(&Wish::default());
        let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
        assert_eq!(far.rail.post_receives(60), Ok(60));
        let (local, remote) = (from.source(100), to.place());
        post(&mut near.rail, 0, 0, local, remote, false);
        let (near_reports, far_end) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                (1..40).for_each(|number| post(&mut near.rail, 0, number, local, remote, false));
                let mut reports = Vec::new();
                while near.rail.report(16, &mut reports) {}
                reports
            });
            let far_end = end(far.rail, &[]);
            (writer.join().unwrap(), far_end)
        });
        let known = near_reports.iter().filter_map(|one| match one {
            Completion::Sent { id } => Some(id.0 as u32),
            _ => None,
        });
        let (known, seen) = (known.collect::<BTreeSet<u32>>(), immediates(&far_end.reports));
        assert!(seen.contains(&0) && seen.is_subset(&known), "{profile}: {seen:?} of {known:?}");
        assert!(!keeps || seen == known, "{profile}: {seen:?} of {known:?}");
        assert!(far_end.is_flushed && far_end.time < BOUND);
    }
}

#[test]
fn a_device_that_is_gone_ends_in_bounded_time_and_cannot_flush() {
    for (shared, lanes) in [(None, 1), (None, 2), (Some(false), 2)] {
        for is_asked in [false, true] {
            let machine = Machine::new(&strict(ROCE));
            let Pair { mut near, mut far } = machine.pair(&wish(lanes, shared));
            let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
            let (back, place) = (far.block(100, Access::SOURCE), near.block(100, Access::DATA));
            assert_eq!(far.rail.post_receives(40), Ok(40));
            post(&mut near.rail, 0, 7, from.source(100), to.place(), false);
            machine.fake.silence("b").unwrap();
            post(&mut near.rail, 0, 8, from.source(100), to.place(), false);
            let write = Write { local: back.source(100), remote: place.place(), signalled: true, ..Write::default() };
            far.rail.post(LaneId::FIRST, &[write]).unwrap();
            let ended = end(far.rail, &[to.place()][..usize::from(is_asked)]);
            assert_eq!(ended.is_flushed, !is_asked, "{shared:?}, {lanes} lanes");
            assert_eq!(ended.reports, received([(0, 7)], 100), "what it had completed before");
            assert!(ended.time < BOUND, "{shared:?}, {lanes} lanes: {:?}", ended.time);
            assert!(machine.lanes("b").is_empty());
        }
    }
}

#[test]
fn a_device_that_refuses_calls_ends_in_bounded_time() {
    // The fence's marker or flush, its polls, the change to the error state.
    for (faults, is_cut, is_flushed) in [
        ("'post_send:2-9:EIO'", false, false),
        ("'poll_cq:*:EIO'", false, false),
        ("'modify_qp/ERR:*:EIO'", false, true),
        ("'modify_qp/ERR:*:EIO'", true, false),
        ("'modify_qp/ERR:*:EIO', 'post_send:2-9:EIO'", false, false),
    ] {
        let machine = Machine::new(&devices("plain", faults));
        let Pair { mut near, mut far } = machine.pair(&wish(1, None));
        let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
        assert_eq!(far.rail.post_receives(40), Ok(40));
        post(&mut near.rail, 0, 7, from.source(100), to.place(), false);
        if is_cut {
            machine.fake.cut("b", 1).unwrap();
        }
        let (far_end, near_end) = (end(far.rail, &[to.place()]), end(near.rail, &[]));
        assert_eq!((far_end.is_flushed, near_end.is_flushed), (is_flushed, true), "{faults}, {is_cut}");
        let is_polled = !faults.contains("poll_cq");
        assert_eq!(far_end.reports, received(is_polled.then_some((0, 7)), 100), "{faults}, {is_cut}");
        assert_eq!(near_end.reports, sent(is_polled.then_some(7)), "{faults}, {is_cut}");
        assert!(far_end.time < BOUND && near_end.time < BOUND, "{faults}, {is_cut}");
    }
}

#[test]
fn a_lane_that_cannot_say_that_it_is_over_has_to_be_quiet() {
    // It is not stopped, or takes no marker: the one after that would be the fence's second.
    for (faults, is_sender) in [("'modify_qp/ERR:*:EIO'", false), ("'post_send:2:EIO'", true)] {
        // Without the wait, a fence may be held up for this long, but not each of several.
        for _ in 0..4 {
            let machine = Machine::new(&devices("plain", faults));
            let Pair { mut near, mut far } = machine.pair(&unflushed(1, None));
            let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
            assert_eq!(far.rail.post_receives(40), Ok(40));
            let write = Write { local: from.source(100), remote: to.place(), host: true, ..Write::default() };
            near.rail.post(LaneId::FIRST, &[write]).unwrap();
            let ended = end(if is_sender { near.rail } else { far.rail }, &[]);
            assert!(ended.time >= QUIET && ended.reports.is_empty(), "{faults}: {:?}", ended.time);
        }
    }
}

#[test]
fn a_fence_waits_for_receives_that_should_come_back() {
    for receives in [1, 40] {
        let machine = Machine::new(&strict(ROCE));
        let Pair { near: _near, mut far } = machine.pair(&wish(2, Some(false)));
        assert_eq!(far.rail.post_receives(receives), Ok(receives));
        machine.fake.silence("b").unwrap();
        let ended = end(far.rail, &[]);
        assert!((LIMIT..BOUND).contains(&ended.time) && ended.reports.is_empty(), "{receives}: {:?}", ended.time);
    }
}

#[test]
fn a_queue_that_cannot_be_polled_is_not_waited_for() {
    // The third poll would report what has arrived, but after the second the lanes are out of service.
    let machine = Machine::new(&devices("plain", "'poll_cq:1-2:EIO'"));
    let Pair { mut near, mut far } = machine.pair(&unflushed(1, None));
    let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
    assert_eq!(far.rail.post_receives(40), Ok(40));
    post(&mut near.rail, 0, 7, from.source(100), to.place(), false);
    let (far_end, near_end) = (end(far.rail, &[]), end(near.rail, &[]));
    assert_eq!((far_end.reports, near_end.reports), (Vec::new(), sent([7])));
}

#[test]
fn a_flush_that_fails_is_not_waited_for() {
    let machine = Machine::new(&strict(ROCE));
    let mut times = Vec::new();
    for _ in 0..4 {
        let Pair { near: _near, far } = machine.pair(&wish(1, None));
        let to = far.block(100, Access::DATA);
        let place = to.place();
        drop(to);
        let ended = end(far.rail, &[place]);
        assert!(!ended.is_flushed);
        times.push(ended.time);
    }
    assert!(times.iter().any(|time| *time < SWIFT), "{times:?}");
}

#[test]
fn only_the_first_fence_waits_long_for_a_port_that_reads_nothing_back() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b, wish) = (machine.port("a"), machine.port("b"), wish(1, None));
    let domain = open(&b, wish.receiver, |_| ()).unwrap();
    let pairs: Vec<_> = (0..7).map(|_| Pair::open_into(&a, &b, &domain, &wish).unwrap()).collect();
    let mut took_long = Vec::new();
    for (number, Pair { near: _near, far }) in pairs.into_iter().enumerate() {
        let (is_up, block) = (number == 5, far.block(100, Access::DATA));
        machine.fake.set_port_state("b", 1, if is_up { sys::PORT_ACTIVE } else { sys::PORT_DOWN }).unwrap();
        let ended = end(far.rail, &[block.place()]);
        assert_eq!(ended.is_flushed, is_up);
        took_long.push(ended.time >= LIMIT);
    }
    // After the fence that found the port up again, the next one has all of the time.
    assert_eq!((took_long[0], took_long[6]), (true, true));
    // A busy machine may hold a thread up.
    assert!(took_long[1..5].iter().any(|is_long| !is_long), "{took_long:?}");
}

#[test]
fn a_fence_has_all_of_its_time_after_a_read_that_failed_and_long_after_one_in_vain() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b, wish) = (machine.port("a"), machine.port("b"), wish(1, None));
    let domain = open(&b, wish.receiver, |_| ()).unwrap();
    let [first, second, third] = [(); 3].map(|()| Pair::open_into(&a, &b, &domain, &wish).unwrap());
    let gone = first.far.block(100, Access::DATA).place();
    let ended = end(first.far.rail, &[gone]);
    assert!(!ended.is_flushed && ended.time < LIMIT, "its memory is not registered any more");
    machine.fake.set_port_state("b", 1, sys::PORT_DOWN).unwrap();
    for Pair { near: _near, far } in [second, third] {
        let block = far.block(100, Access::DATA);
        let ended = end(far.rail, &[block.place()]);
        assert!(!ended.is_flushed && ended.time >= LIMIT, "{:?}", ended.time);
        thread::sleep(VAIN_TIME);
    }
}

#[test]
fn lanes_that_have_failed_end_like_others_and_report_no_failure() {
    let machine = Machine::new(&strict(ROCE));
    for is_reported in [false, true] {
        let mut times = Vec::new();
        for _ in 0..3 {
            // The writes fill the send queues.
            let Pair { mut near, mut far } = machine.pair(&Wish { depth: 6, ..wish(2, Some(false)) });
            let (from, to) = (near.block(100, Access::SOURCE), far.block(100, Access::DATA));
            assert_eq!(far.rail.post_receives(6), Ok(6));
            let number = machine.lanes("a")[0].number;
            machine.fake.cut_queue_pair(number).unwrap();
            (1..=3).for_each(|number| post(&mut near.rail, 0, number, from.source(100), to.place(), true));
            machine.fake.time_out_queue_pair(number).unwrap();
            // The peer's lane fails too: its receives come back.
            let peer = machine.lanes("b").into_iter().find(|lane| lane.attributes.dest_qp_num == number).unwrap();
            machine.fake.raise_on_queue_pair(peer.number, sys::EVENT_QP_FATAL).unwrap();
            if is_reported {
                assert_eq!((near.failures().len(), far.failures().len()), (1, 1));
            }
            (4..=6).for_each(|number| post(&mut near.rail, 1, number, from.source(100), to.place(), true));
            let (near_end, far_end) = (end(near.rail, &[]), end(far.rail, &[to.place()]));
            assert!(near_end.is_flushed && far_end.is_flushed);
            assert_eq!(near_end.reports, sent(4..=6), "{is_reported}");
            assert_eq!(far_end.reports, received([(1, 4), (1, 5), (1, 6)], 100), "{is_reported}");
            times.push(near_end.time.max(far_end.time));
        }
        assert!(times.iter().any(|time| *time < SWIFT), "{is_reported}: {times:?}");
    }
}

#[test]
fn flushes_in_progress_are_reported_and_those_of_the_fence_are_not() {
    let machine = Machine::new(&strict(ROCE));
    let Pair { near, mut far } = machine.pair(&wish(2, None));
    let to = far.block(100, Access::DATA);
    (0..64).for_each(|id| far.rail.post_flush(to.place(), WorkId(id)).unwrap());
    let before = machine.fake.counts();
    let ended = end(far.rail, &[to.place(); 500]);
    assert!(ended.is_flushed);
    assert_eq!(ended.reports, sent(0..64));
    assert_eq!(machine.fake.counts().since(&before).reads, 500);
    drop(near);
    // A flush that has failed has broken the loop-back lane.
    let Pair { near: _near, mut far } = machine.pair(&wish(1, None));
    let to = far.block(100, Access::DATA);
    let place = to.place();
    drop(to);
    let other = far.block(100, Access::DATA);
    far.rail.post_flush(place, WorkId(1)).unwrap();
    let ended = end(far.rail, &[other.place()]);
    assert!(!ended.is_flushed && ended.reports.is_empty(), "{:?}", ended.reports);
    assert!(ended.time < BOUND);
}

#[test]
fn events_of_lanes_that_end_are_taken_by_another_thread() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b) = (machine.port("a"), machine.port("b"));
    let events = DeviceEvents::new(&b.device).unwrap();
    for _ in 0..20 {
        let Pair { near, mut far } = Pair::open(&a, &b, &wish(3, None)).unwrap();
        assert_eq!(far.rail.post_receives(40), Ok(40));
        thread::scope(|scope| {
            let ended = scope.spawn(|| end(far.rail, &[]));
            while !ended.is_finished() {
                assert_eq!(events.take_event(), None, "it is of no consequence");
            }
            assert!(ended.join().unwrap().reports.is_empty());
        });
        drop((near, far.domain));
    }
    assert!(!machine.fake.complaint().contains("never acknowledged"), "{}", machine.fake.complaint());
}

#[test]
fn a_rail_without_a_peer_ends() {
    let machine = Machine::new(&strict(ROCE));
    let Pair { near, far } = machine.pair(&wish(1, None));
    drop(near);
    let spec = RailSpec {
        role: Role::Receiver,
        lanes: 1,
        send_depth: 8,
        receive_depth: 8,
        lane_receives: 8,
        traffic_class: None,
        peer: None,
    };
    // Another connection of the port goes on meanwhile.
    let domain = open(&machine.port("b"), VerbsConfig::default(), |_| ()).unwrap();
    let other = domain.open_rail(&spec).unwrap();
    let ended = end(far.rail, &[]);
    assert!(ended.is_flushed && ended.reports.is_empty());
    assert_eq!(machine.lanes("b").len(), 1);
    drop(other);
    machine.pair(&wish(2, None)).exchange();
}
