//! The reading of one process's files: parts, losses, and records that no begin belongs to.

mod made;

use made::{Made, begins, join, send};
use railweave_timeline::{Asked, Facts, Rank};
use railweave_trace::{Coll, Kind, What};

#[test]
fn a_send_is_read_with_its_pieces() {
    let rank = Made::new(0, 0)
        .connected(1, 1, true)
        .records(1, 0, &[(990, What::CtsWait { connection: 1, request: 7, for_ns: 50 })])
        .records(1, 0, &send(7, 1000, [(600, 1010, 1100), (400, 1020, 1200)], 1300))
        .records(2, 0, &[(980, What::Belongs { connection: 1, request: 7, event: 3 })])
        .rank();
    let [request] = &rank.connections[&1].requests[..] else { panic!("one request") };
    assert_eq!((request.number, request.asked, request.bytes, request.event), (7, Asked::Send, 1000, 3));
    assert_eq!((request.begin, request.end, request.cts_wait), (1000, Some(1300), Some(50)));
    let pieces: Vec<_> = request.pieces.iter().map(|it| (it.rail, it.begin, it.end, it.bytes)).collect();
    assert_eq!(pieces, [(0, 1010, Some(1100), 600), (1, 1020, Some(1200), 400)]);
    assert_eq!(rank.span, Some((980, 1300)));
    assert_eq!(rank.missing, Default::default());
}

#[test]
fn an_end_may_stand_before_its_begin_if_threads_note_them() {
    let rank = Made::new(0, 0)
        .connected(1, 1, true)
        .records(
            2,
            0,
            &[
                (1300, What::RequestEnd { connection: 1, request: 7, bytes: 10 }),
                (1250, What::PieceEnd { connection: 1, rail: 1, request: 7 }),
                (1260, What::EventEnd { event: 9 }),
            ],
        )
        .records(
            1,
            0,
            &[
                (1000, What::SendBegin { connection: 1, request: 7, bytes: 10 }),
                (1100, What::PieceBegin { connection: 1, rail: 1, request: 7, bytes: 10 }),
                (1000, begins(9, 0, Kind::Group, 0)),
            ],
        )
        .rank();
    let request = &rank.connections[&1].requests[0];
    assert_eq!((request.end, request.pieces[0].begin, request.pieces[0].end), (Some(1300), 1100, Some(1250)));
    assert_eq!(rank.events[&9].end, Some(1260));
    assert_eq!(rank.missing.without_begin, 0);
}

#[test]
fn parts_are_joined_in_their_order_and_a_repeated_one_counts_once() {
    let whole = Made::new(0, 0).connected(1, 1, true);
    let mut parts: Vec<_> = send(7, 1000, [(600, 1010, 1100), (400, 1020, 1200)], 1300)
        .chunks(2)
        .zip(0..)
        .map(|(records, part)| {
            let mut made = whole.clone().records(1, 0, records);
            made.process.part = part;
            made.file()
        })
        .collect();
    parts.reverse();
    let repeated = parts[0].clone();
    parts.push(repeated);
    let rank = Rank::read(parts);
    let request = &rank.connections[&1].requests[0];
    assert_eq!((request.pieces.len(), request.end), (2, Some(1300)));
    assert_eq!(rank.missing, Default::default());
}

#[test]
fn ends_without_begins_are_left_out_and_counted() {
    let mut made = Made::new(0, 0).connected(1, 1, true).records(
        1,
        0,
        &[
            (10, What::RequestEnd { connection: 1, request: 1, bytes: 5 }),
            (11, What::EventEnd { event: 4 }),
            (12, What::Coll(Coll::default())),
            (13, What::FlushBegin { connection: 99, request: 1 }),
            (20, What::SendBegin { connection: 1, request: 2, bytes: 5 }),
            (21, What::PieceEnd { connection: 1, rail: 0, request: 2 }),
        ],
    );
    made.process.part = 3;
    made.rest_bytes = 17;
    let rank = made.clone().rank();
    assert_eq!(rank.connections[&1].requests.len(), 1);
    assert!(rank.connections[&1].requests[0].pieces.is_empty() && rank.events.is_empty());
    let missing = rank.missing;
    assert_eq!((missing.files, missing.without_begin, missing.without_connection, missing.rest_bytes), (3, 4, 1, 17));
    let warnings = join([made]).warnings;
    let has = |text: &str| warnings.iter().any(|it| it.starts_with("rank 0 (pid 100) on node0: ") && it.contains(text));
    assert!(has("3 of its files are gone") && has("RAILWEAVE_TRACE_MAX"), "{warnings:?}");
    assert!(has("17 bytes at the ends") && has("5 ends and facts are left out"), "{warnings:?}");
}

#[test]
fn facts_belong_to_the_event_before_them_unless_records_were_lost_between() {
    let coll = What::Coll(Coll { count: 77, ..Coll::default() });
    let begin = |event| (event, begins(event, 0, Kind::Coll, 0));
    let rank = Made::new(0, 0)
        .records(1, 0, &[begin(1)])
        .records(2, 0, &[begin(2)])
        .records(1, 0, &[(5, coll)])
        .records(2, 8, &[(6, coll)])
        .rank();
    assert!(matches!(rank.events[&1].facts, Facts::Coll(Coll { count: 77, .. })));
    assert_eq!(rank.events[&2].facts, Facts::None);
    assert_eq!((rank.missing.lost, rank.missing.without_begin), (8, 1));
    // Records may have been lost behind the last one of a frame, too.
    let rank = Made::new(0, 0).records(1, 8, &[begin(1)]).records(1, 0, &[(5, coll)]).rank();
    assert_eq!((rank.events[&1].facts, rank.missing.without_begin), (Facts::None, 1));
}

#[test]
fn the_first_end_of_an_event_counts() {
    let ends = [500, 400, 900].map(|at| (at, What::EventEnd { event: 1 }));
    let rank = Made::new(0, 0).records(1, 0, &[(10, begins(1, 0, Kind::Group, 0))]).records(2, 0, &ends).rank();
    assert_eq!(rank.events[&1].end, Some(400));
}

#[test]
fn attempts_of_a_step_are_left_out_if_a_later_one_is_there() {
    let step = |event| (event * 10, begins(event, 2, Kind::ProxyStep, 4));
    let state = |event| (event * 10 + 1, What::State { event, state: 10, bytes: 0 });
    let mut records = vec![step(11), step(12), state(12), step(13), step(14), step(15)];
    records.push((140, What::Belongs { connection: 1, request: 1, event: 13 }));
    records.push((141, What::EventEnd { event: 14 }));
    // Those of another number, or another parent, are others.
    records.push((1, begins(21, 2, Kind::ProxyStep, 5)));
    records.push((1, begins(22, 3, Kind::ProxyStep, 4)));
    records.push((1, begins(23, 2, Kind::ProxyOp, 4)));
    let rank = Made::new(0, 0).connected(1, 1, true).records(1, 0, &records).rank();
    let mut left: Vec<_> = rank.events.keys().copied().collect();
    left.sort_unstable();
    assert_eq!(left, [12, 13, 14, 15, 21, 22, 23]);
}
