//! The ranks of a run on one clock, and the connections between their events.

mod made;

use made::{Made, begins, join, send};
use railweave_timeline::{Choice, Timeline};
use railweave_trace::{Communicator, Frame, Kind, Op, What};

const SECOND: u64 = 1_000_000_000;

/// A rank that notes one event at this time.
fn at(rank: u8, host: u8, ns: u64) -> Made {
    Made::new(rank, host).records(1, 0, &[(ns, begins(1, 0, Kind::Group, 0)), (ns, What::EventEnd { event: 1 })])
}

/// Returns the time of each rank's event 1.
fn times(timeline: &Timeline) -> Vec<u64> {
    timeline.ranks.iter().map(|rank| rank.events[&1].begin).collect()
}

#[test]
fn ranks_of_one_boot_share_a_clock() {
    let timeline = join([at(0, 0, 5 * SECOND), at(1, 0, 7 * SECOND)]);
    assert_eq!(times(&timeline), [0, 2 * SECOND]);
    assert_eq!((timeline.span_ns, timeline.hosts.len(), timeline.hosts[0].within_ns), (2 * SECOND, 1, Some(0)));
    assert_eq!(timeline.wall_ns, 1_700_000_005 * SECOND);
    assert_eq!(timeline.warnings, [""; 0]);
}

#[test]
fn a_measured_offset_moves_the_other_host() {
    // Rank 1's sessions began at 101 s of its host's clock, when rank 0's clock showed 1.5 s: ahead by 99.5 s.
    let mut other = at(1, 1, 105 * SECOND);
    other.process.sessions_from_ns = 101 * SECOND;
    // At 2 s of rank 0's sessions (3 s of its host), the other's sessions show 1.5 s (102.5 s of its host).
    let own = at(0, 0, 5 * SECOND).peer_clock(1, 2 * SECOND, -500_000_000, 300);
    let timeline = join([own, other.clone()]);
    assert_eq!(times(&timeline), [0, 500_000_000]);
    // The event is 2.5 s later, in which the clocks may have drifted.
    assert_eq!(timeline.hosts[1].within_ns, Some(250_300));
    // The same, measured by the other one: its time of 1.5 s is 2 s here.
    let timeline = join([at(0, 0, 5 * SECOND), other.peer_clock(0, 1_500_000_000, 500_000_000, 400)]);
    assert_eq!((times(&timeline), timeline.hosts[1].within_ns), (vec![0, 500_000_000], Some(250_400)));
    assert_eq!(timeline.warnings, [""; 0]);
}

#[test]
fn the_measurement_with_the_smallest_error_counts() {
    let own = at(0, 0, 2 * SECOND)
        .peer_clock(1, SECOND, 900_000, 1_000_000)
        .peer_clock(1, SECOND + 5, 1000, 100)
        .peer_clock(1, SECOND + 9, -70_000, 90_000);
    let timeline = join([own, at(1, 1, 2 * SECOND + 1000)]);
    assert_eq!((times(&timeline), timeline.hosts[1].within_ns), (vec![0, 0], Some(100)));
}

#[test]
fn drift_is_interpolated_between_measurements() {
    // The other clock gains 1 ms in 100 s.
    let own = |ns| at(0, 0, ns).peer_clock(1, 0, 0, 10).peer_clock(1, 100 * SECOND, 1_000_000, 20);
    let timeline = join([own(51 * SECOND), at(1, 1, 51 * SECOND + 500_000)]);
    // The clocks may have drifted by 5 ms to one side in 50 s, and the line went by 0.5 ms to the other.
    assert_eq!((times(&timeline), timeline.hosts[1].within_ns), (vec![0, 0], Some(5_500_071)));
    // Outside, the nearest one holds.
    let timeline = join([own(201 * SECOND), at(1, 1, 201 * SECOND + 1_000_000)]);
    assert_eq!(times(&timeline), [0, 0]);
}

#[test]
fn offsets_add_up_along_the_way_with_the_smallest_errors() {
    let own = at(0, 0, 2 * SECOND).peer_clock(1, 0, 1000, 10).peer_clock(2, 0, 9_999, 5000);
    let between = at(1, 1, 2 * SECOND + 1000).peer_clock(2, 0, 2000, 7);
    let timeline = join([own, between, at(2, 2, 2 * SECOND + 3000)]);
    assert_eq!(times(&timeline), [0, 0, 0]);
    let errors: Vec<_> = timeline.hosts.iter().map(|host| host.within_ns).collect();
    // One second after the measurements.
    assert_eq!(errors, [Some(0), Some(100_010), Some(100_017)]);
}

#[test]
fn without_measurements_the_wall_clocks_decide_with_a_warning() {
    let mut other = at(1, 1, 500 * SECOND);
    (other.process.at_ns, other.process.wall_ns) = (499 * SECOND, 1_700_000_004 * SECOND);
    let timeline = join([at(0, 0, 5 * SECOND), other]);
    assert_eq!((times(&timeline), timeline.hosts[1].within_ns), (vec![0, 0], None));
    let [warning] = &timeline.warnings[..] else { panic!("{:?}", timeline.warnings) };
    assert!(warning.starts_with("node1: no measurement connects its clock with that of node0"), "{warning}");
}

#[test]
fn a_collective_lasts_until_its_last_part_ends() {
    let timeline = join([Made::new(0, 0).collective(12, [100, 200, 300, 900])]);
    let rank = &timeline.ranks[0];
    let coll = &rank.events[&1];
    assert_eq!((coll.begin, coll.end, coll.until, coll.is_unfinished), (0, Some(1), 800, false));
    assert_eq!(rank.event_name(coll), "AllReduce #12");
    assert_eq!(timeline.collective(0, 3), Some((0, 1)));
}

#[test]
fn an_operation_may_be_a_part_of_another_process_s_collective() {
    let own = Made::new(0, 0).collective(1, [100, 200, 300, 400]);
    let facts = Op { sends: true, channel: 0, peer: 3, steps: 1, chunk: 0, pid: 100 };
    let through = Made::new(1, 0).records(
        1,
        0,
        &[
            (500, begins(7, 1, Kind::ProxyOp, 5)),
            (500, What::Op(facts)),
            (600, begins(8, 7, Kind::ProxyStep, 0)),
            (1100, What::EventEnd { event: 8 }),
            (1000, What::EventEnd { event: 7 }),
        ],
    );
    let timeline = join([own.clone(), through.clone()]);
    assert_eq!(timeline.collective(1, 8), Some((0, 1)));
    assert_eq!(timeline.ranks[0].events[&1].until, 1000);
    // A process of the same id on another host is another one.
    let mut elsewhere = through;
    (elsewhere.process.host, elsewhere.process.boot_id) = ("node1".into(), vec![9; 16]);
    assert_eq!(join([own, elsewhere]).collective(1, 8), None);
}

#[test]
fn an_event_without_an_end_lasts_until_the_trace_ends() {
    let mut records = vec![(100, begins(1, 0, Kind::Coll, 5)), (101, What::EventEnd { event: 1 })];
    records.push((150, begins(2, 1, Kind::ProxyOp, 5)));
    records.extend(send(7, 1000, [(600, 1010, 1100), (400, 1020, 1200)], 1300));
    let timeline = join([Made::new(0, 0).connected(1, 1, true).records(1, 0, &records)]);
    let coll = &timeline.ranks[0].events[&1];
    assert_eq!((coll.end, coll.until, coll.is_unfinished), (Some(1), 1200, true));
}

#[test]
fn older_runs_are_left_out_with_a_sentence() {
    let old = |rank| {
        let mut made = at(rank, 0, 5 * SECOND);
        made.process.id = vec![rank + 100; 16];
        made
    };
    let all = || vec![old(0).rank(), at(0, 0, 65 * SECOND).rank(), old(1).rank()];
    // Both of the old run overlap.
    let timeline = Timeline::join(all(), Choice::Newest).unwrap();
    assert_eq!((timeline.ranks.len(), timeline.ranks[0].process.id[0]), (1, 0));
    let [warning] = &timeline.warnings[..] else { panic!("{:?}", timeline.warnings) };
    assert_eq!(warning, "left out: a run with 2 processes that began 60 s before this one; --run 2 shows it");
    let timeline = Timeline::join(all(), Choice::Number(2)).unwrap();
    assert_eq!(timeline.ranks.iter().map(|rank| rank.process.id[0]).collect::<Vec<_>>(), [100, 101]);
    assert_eq!(Timeline::join(all(), Choice::All).unwrap().ranks.len(), 3);
    for asked in [0, 3] {
        let error = Timeline::join(all(), Choice::Number(asked)).unwrap_err().to_string();
        assert_eq!(error, format!("there is no run {asked}; allowed: 1, the newest one, to 2"));
    }
}

#[test]
fn jobs_of_other_ids_are_other_runs_unless_they_are_peers() {
    let of_job = |rank, job: &str| {
        let mut made = at(rank, 0, (5 + u64::from(rank)) * SECOND);
        made.process.job = job.into();
        made
    };
    let ranks = |other: Made| vec![of_job(0, "1").rank(), other.rank()];
    assert_eq!(Timeline::join(ranks(of_job(1, "2")), Choice::Newest).unwrap().ranks.len(), 1);
    let peers = of_job(1, "2").connected(0, 0, true);
    assert_eq!(Timeline::join(ranks(peers), Choice::Newest).unwrap().ranks.len(), 2);
}

#[test]
fn a_peer_without_a_rank_has_its_process_id_as_its_name() {
    let mut made = Made::new(0, 0).connected(1, 1, true);
    for frame in &mut made.frames {
        if let Frame::Connection(it) = frame {
            it.rank = None;
        }
    }
    assert_eq!(join([made.clone()]).ranks[0].connections[&1].peer_name(), "node1");
    let mut peer = Made::new(1, 1);
    peer.process.rank = None;
    let timeline = join([made, peer]);
    let connection = &timeline.ranks[0].connections[&1];
    assert_eq!((connection.peer_name().as_str(), connection.peer), ("node1, pid 101", Some(1)));
}

#[test]
fn a_rank_that_only_its_communicators_know_has_their_number() {
    let with = |ranks: [Option<u32>; 2]| {
        let communicator = |(rank, number)| {
            Frame::Communicator(Communicator { number, rank, ranks: Some(2), ..Communicator::default() })
        };
        let mut made = ranks.into_iter().zip(1..).map(communicator).fold(Made::new(1, 1), Made::with);
        made.process.rank = None;
        made
    };
    let mut own = Made::new(0, 0).connected(1, 1, true);
    for frame in &mut own.frames {
        if let Frame::Connection(it) = frame {
            it.rank = None;
        }
    }
    let timeline = join([own, with([Some(3), Some(3)])]);
    assert_eq!(timeline.ranks[1].label(), "rank 3 (pid 101)");
    assert_eq!(timeline.ranks[0].connections[&1].peer_name(), "node1, rank 3");
    for unclear in [[Some(3), Some(4)], [Some(3), None], [None, None]] {
        assert_eq!(join([with(unclear)]).ranks[0].label(), "pid 101");
    }
}

#[test]
fn containers_of_one_host_may_have_processes_of_the_same_id() {
    let owner = |rank: u8, event| {
        let mut made = Made::new(rank, 0).records(1, 0, &[(100, begins(event, 0, Kind::Coll, 5))]);
        (made.process.pid, made.process.host) = (100, format!("container{rank}"));
        made
    };
    let facts = Op { sends: true, channel: 0, peer: 3, steps: 1, chunk: 0, pid: 100 };
    let through = Made::new(2, 0).records(1, 0, &[(500, begins(7, 1, Kind::ProxyOp, 5)), (500, What::Op(facts))]);
    // Only one of them has the event, and it is known which.
    let timeline = join([owner(0, 1), owner(1, 2), through.clone()]);
    assert_eq!(timeline.collective(2, 7), Some((0, 1)));
    let timeline = join([owner(0, 2), owner(1, 1), through.clone()]);
    assert_eq!(timeline.collective(2, 7), Some((1, 1)));
    assert_eq!(join([owner(0, 1), owner(1, 1), through]).collective(2, 7), None);
}

#[test]
fn a_step_that_never_ends_leaves_its_ended_operation_ended() {
    let records = [
        (100, begins(1, 0, Kind::Coll, 5)),
        (101, What::EventEnd { event: 1 }),
        (150, begins(2, 1, Kind::ProxyOp, 5)),
        (200, begins(3, 2, Kind::ProxyStep, 0)),
        (900, What::EventEnd { event: 2 }),
        (5000, begins(9, 0, Kind::Group, 0)),
    ];
    let timeline = join([Made::new(0, 0).records(1, 0, &records)]);
    let events = &timeline.ranks[0].events;
    assert_eq!((events[&1].until, events[&1].is_unfinished), (800, false));
    assert_eq!((events[&2].until, events[&2].is_unfinished), (800, false));
    assert_eq!((events[&3].until, events[&3].is_unfinished), (800, true));
    // An operation that goes on is as unfinished as its step.
    let timeline = join([Made::new(0, 0).records(1, 0, &[&records[..4], &records[5..]].concat())]);
    let events = &timeline.ranks[0].events;
    assert!([1, 2, 3].iter().all(|id| (events[id].until, events[id].is_unfinished) == (4900, true)));
}
