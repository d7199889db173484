//! The numbers of a summary, of traces whose numbers can be told by hand.

mod made;

use made::{Made, begins, id, join, send};
use railweave_timeline::{Summary, Timeline, Why};
use railweave_trace::{Communicator, Connection, Ended, Frame, Kind, RailSample, What};

/// Rank 0 sends three messages to rank 1 on another host.
///
/// 7: rail 1 ends 700 ns after rail 0, of 900 ns in all. 8: it had waited 5,000 ns for its CTS. 9: it does not end.
fn three() -> Timeline {
    let mut records = vec![(1150, What::Belongs { connection: 1, request: 7, event: 3 })];
    records.extend(send(7, 1100, [(600, 1100, 1300), (400, 1100, 2000)], 2000));
    records.push((9000, What::CtsWait { connection: 1, request: 8, for_ns: 5000 }));
    records.extend(send(8, 9000, [(900, 9000, 10_000), (100, 9000, 9100)], 10_000));
    records.push((20_000, What::SendBegin { connection: 1, request: 9, bytes: 1 }));
    records.push((23_000, begins(99, 0, Kind::Group, 0)));
    let made = Made::new(0, 0).connected(1, 1, true).collective(12, [1000, 1001, 1002, 2100]);
    join([made.records(2, 0, &records)])
}

#[test]
fn the_longest_waits_come_first_with_their_reasons() {
    let summary = Summary::of(&three(), 10);
    let waits: Vec<_> = summary.waits.iter().map(|it| (it.request, it.why, it.since_ns, it.for_ns)).collect();
    // Request 8 took 1,000 ns as a whole: its last rail was 900 ns late.
    let expected = [
        (8, Why::Cts, 3000, 5000),
        (9, Why::Request, 19_000, 3000),
        (8, Why::Rail, 8100, 900),
        (7, Why::Rail, 300, 700),
    ];
    assert_eq!(waits, expected);
    assert!(summary.waits[1].is_unfinished && !summary.waits[2].is_unfinished);
    let last = &summary.waits[3];
    assert_eq!(
        (last.rank.to_string(), last.peer.as_str(), last.bytes),
        ("node0, rank 0".into(), "node1, rank 1", 1000)
    );
    assert_eq!(last.rail.as_deref(), Some("rail 1 eth1 -> ens1"));
    let of = last.of.as_ref().unwrap();
    assert_eq!((of.name.as_str(), of.communicator.as_str(), of.sequence), ("AllReduce #12", "default", Some(12)));
    assert_eq!(summary.waits[0].of, None);
    assert_eq!(Summary::of(&three(), 2).waits[..], summary.waits[..2]);
    assert_eq!(Summary::of(&three(), 0).waits, []);
    assert_eq!((summary.ranks, summary.collectives, summary.requests, summary.span_ns), (1, 1, 3, 22_000));
}

#[test]
fn the_use_of_a_rail_counts_overlapping_pieces_once() {
    // Pieces of rail 0: 1100 to 1300 and 9000 to 10,000 ns. The connection's pieces reach from 1100 to 10,000 ns.
    let [zero, one] = &Summary::of(&three(), 0).rails[..] else { panic!("two rails") };
    assert_eq!((zero.bytes, zero.pieces, zero.busy_ns, zero.span_ns, zero.ended_last), (1500, 2, 1200, 8900, 1));
    assert_eq!((one.bytes, one.busy_ns, one.ended_last), (500, 1000, 1));
    assert_eq!((zero.share, one.share), (Some(0.75), Some(0.25)));
    assert_eq!(zero.idle, Some(7700.0 / 8900.0));
    let mut records = send(1, 0, [(1, 0, 100), (1, 100, 200)], 200);
    records.extend(send(2, 0, [(1, 50, 100), (1, 150, 250)], 250));
    let timeline = join([Made::new(0, 0).connected(1, 1, true).records(1, 0, &records)]);
    let busy: Vec<_> = Summary::of(&timeline, 0).rails.iter().map(|it| it.busy_ns).collect();
    assert_eq!(busy, [100, 150]);
}

#[test]
fn host_pairs_sum_up_their_connections_by_the_ends_of_rails() {
    let sender = |rank: u8| {
        Made::new(rank, 0).connected(2, 1, true).records(1, 0, &send(1, 0, [(30, 0, 100), (10, 0, 50)], 100))
    };
    let [zero, one] = &Summary::of(&join([sender(0), sender(1)]), 0).host_pairs[..] else { panic!("two rails") };
    assert_eq!((zero.rail.as_str(), zero.bytes, zero.share, zero.connections), ("eth0 -> ens0", 60, Some(0.75), 2));
    assert_eq!((one.rail.as_str(), one.idle, one.rank.is_none()), ("eth1 -> ens1", Some(0.5), true));
}

#[test]
fn a_receiving_rail_has_the_bytes_of_its_samples() {
    let received = |received| RailSample { received, is_up: true, ..RailSample::default() };
    let made = Made::new(1, 1)
        .connected(0, 0, false)
        .records(
            1,
            0,
            &[
                (10, What::ReceiveBegin { connection: 1, request: 1, bytes: 5000, buffers: 1 }),
                (500, What::PieceBegin { connection: 1, rail: 0, request: 1, bytes: 0 }),
                (500, What::PieceBegin { connection: 1, rail: 1, request: 1, bytes: 0 }),
                (600, What::PieceEnd { connection: 1, rail: 1, request: 1 }),
                (900, What::PieceEnd { connection: 1, rail: 0, request: 1 }),
                (900, What::RequestEnd { connection: 1, request: 1, bytes: 4000 }),
            ],
        )
        .sample(100, 0, received(1000))
        .sample(950, 0, received(4000));
    let summary = Summary::of(&join([made.clone()]), 10);
    assert_eq!((summary.rails[0].bytes, summary.rails[0].share), (4000, Some(1.0)));
    // If the first files are gone, so are their pieces.
    let mut later = made;
    later.process.part = 1;
    assert_eq!(Summary::of(&join([later]), 10).rails[0].bytes, 3000);
    assert_eq!(summary.rails[0].rail, "rail 0 eth0 <- ens0");
    // The receive was posted long before; the wait counts from the message's first sign.
    let [wait] = &summary.waits[..] else { panic!("{:?}", summary.waits) };
    assert_eq!((wait.why, wait.since_ns, wait.for_ns, wait.sends), (Why::Rail, 590, 300, false));
    let [peer] = &summary.stragglers.peers[..] else { panic!("one peer") };
    assert_eq!((peer.peer.as_str(), peer.late_messages, peer.late_ns, peer.cts_ns), ("node0, rank 0", 1, 300, 0));
}

#[test]
fn stragglers_are_the_peer_without_receives_and_the_rail_that_ends_last() {
    let stragglers = Summary::of(&three(), 0).stragglers;
    let [peer] = &stragglers.peers[..] else { panic!("one peer") };
    assert_eq!((peer.peer.as_str(), peer.cts_waits, peer.cts_ns, peer.late_ns), ("node1, rank 1", 1, 5000, 0));
    let rails: Vec<_> = stragglers.rails.iter().map(|it| (it.rail.as_str(), it.last, it.of, it.average_ns)).collect();
    assert_eq!(rails, [("rail 0 eth0 -> ens0", 1, 2, 900), ("rail 1 eth1 -> ens1", 1, 2, 700)]);
}

#[test]
fn the_last_rank_of_a_collective_is_told_if_the_clocks_can_tell() {
    let late = |rank, host, begin| Made::new(rank, host).collective(1, [begin, begin + 1, begin + 2, begin + 10]);
    let last = |within| {
        let mut made = [late(0, 0, 1000).peer_clock(1, 1000, 0, within), late(1, 1, 1500)];
        made.iter_mut().for_each(|it| it.process.sessions_from_ns = 0);
        Summary::of(&join(made), 0).stragglers.collectives
    };
    let [delays] = &last(499)[..] else { panic!("one rank") };
    assert_eq!(delays.rank.rank, Some(1));
    assert_eq!((delays.of, delays.began_last, delays.began_after_ns, delays.ended_last), (1, 1, 500, 1));
    assert_eq!(last(500), []);
    // A measurement of a second before tells less.
    let made = [late(0, 0, 1000).peer_clock(1, 0, 0, 10), late(1, 1, 1500)];
    assert_eq!(Summary::of(&join(made), 0).stragglers.collectives, []);
    // Another communicator's collective of the same number is another one.
    let mut other = late(1, 0, 1500);
    for frame in &mut other.frames {
        if let Frame::Communicator(it) = frame {
            *it = Communicator { id: 0xc1, ..it.clone() };
        }
    }
    assert_eq!(Summary::of(&join([late(0, 0, 1000), other]), 0).stragglers.collectives, []);
}

#[test]
fn a_connection_without_rails_or_requests_has_no_use() {
    let connection = Connection { number: 1, peer: id(1), host: "node1".into(), ..Connection::default() };
    let summary = Summary::of(&join([Made::new(0, 0).with(Frame::Connection(connection))]), 10);
    assert_eq!((summary.rails.len(), summary.waits.len(), summary.span_ns), (0, 0, 0));
    assert_eq!(Summary::of(&join([]), 10).ranks, 0);
}

#[test]
fn what_has_no_end_lasts_until_its_connection_is_closed() {
    let records = [
        (1000, What::SendBegin { connection: 1, request: 1, bytes: 5 }),
        (1000, What::PieceBegin { connection: 1, rail: 0, request: 1, bytes: 5 }),
        (9000, begins(99, 0, Kind::Group, 0)),
    ];
    let of = |lost, ended: Option<u64>| {
        let made = Made::new(0, 0).connected(1, 1, true).records(1, lost, &records);
        let ended = ended.map(|at_ns| Frame::Ended(Ended { at_ns, connection: 1 }));
        let summary = Summary::of(&join([ended.into_iter().fold(made, Made::with)]), 10);
        let wait = &summary.waits[0];
        (wait.for_ns, wait.is_unfinished, wait.may_have_ended, summary.rails[0].busy_ns, summary.rails[0].span_ns)
    };
    assert_eq!(of(0, None), (8000, true, false, 8000, 8000));
    assert_eq!(of(0, Some(3000)), (2000, true, false, 2000, 2000));
    assert_eq!(of(7, Some(3000)), (2000, true, true, 2000, 2000));
}
