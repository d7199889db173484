//! The drawing of a timeline, looked at in Chrome's format: `perfetto.rs` writes the same tracks and slices.

mod made;

use made::{Made, begins, join, send};
use railweave_timeline::{Timeline, write_chrome};
use railweave_trace::{Ended, Frame, Happened, Kind, RailSample, Setup, What};
use serde_json::Value;

fn events(timeline: &Timeline) -> Vec<Value> {
    let mut bytes = Vec::new();
    write_chrome(timeline, &mut bytes).unwrap();
    let mut whole: Value = serde_json::from_slice(&bytes).unwrap();
    whole["traceEvents"].as_array_mut().map(std::mem::take).unwrap()
}

/// Returns the name of an event's thread.
fn thread<'a>(events: &'a [Value], event: &Value) -> &'a str {
    let names = |it: &&Value| it["name"] == "thread_name" && it["tid"] == event["tid"] && it["pid"] == event["pid"];
    events.iter().find(names).and_then(|it| it["args"]["name"].as_str()).unwrap_or("no thread")
}

/// Returns thread, name, begin and length of each slice, in microseconds.
fn slices(events: &[Value]) -> Vec<(&str, &str, f64, f64)> {
    let slices = events.iter().filter(|event| event["ph"] == "X");
    slices
        .map(|it| {
            (thread(events, it), it["name"].as_str().unwrap(), it["ts"].as_f64().unwrap(), it["dur"].as_f64().unwrap())
        })
        .collect()
}

fn one() -> Made {
    let mut records = vec![(1150, What::Belongs { connection: 1, request: 7, event: 3 })];
    records.push((1140, What::State { event: 3, state: 9, bytes: 0 }));
    records.push((1100, What::CtsWait { connection: 1, request: 7, for_ns: 60 }));
    records.extend(send(7, 1100, [(600, 1100, 1300), (400, 1120, 2000)], 2000));
    Made::new(0, 0).connected(1, 1, true).collective(12, [1000, 1001, 1002, 2100]).records(2, 0, &records)
}

#[test]
fn tracks_are_named_as_a_person_thinks() {
    let events = events(&join([one()]));
    let process = events.iter().find(|it| it["name"] == "process_name").unwrap();
    assert_eq!(process["args"]["name"], "node0, rank 0 (pid 100)");
    let connection = "sends to node1, rank 1 (connection 1), ";
    let expected = [
        ("default: collectives", "AllReduce #12", 0.0, 1.1),
        ("default: channel 2, to 1, operations", "send to 1, 1 steps", 0.001, 1.099),
        ("default: channel 2, to 1, steps", "step 0", 0.002, 1.098),
        ("default: channel 2, to 1, steps", "waits until the message is sent", 0.14, 0.96),
        (&format!("{connection}waits for CTS"), "waits for CTS", 0.04, 0.06),
        (&format!("{connection}requests"), "send", 0.1, 0.9),
        (&format!("{connection}rail 0 eth0 -> ens0"), "piece", 0.1, 0.2),
        (&format!("{connection}rail 1 eth1 -> ens1"), "piece", 0.12, 0.88),
    ];
    assert_eq!(slices(&events), expected);
    let request = events.iter().find(|it| it["name"] == "send").unwrap();
    let facts = &request["args"];
    assert_eq!((&facts["bytes"], &facts["collective"]), (&1000.into(), &"AllReduce #12".into()));
    assert_eq!(
        (&facts["waited for CTS (us)"], &facts["step"], &facts["channel"]),
        (&0.06.into(), &0.into(), &2.into())
    );
    let coll = &events.iter().find(|it| it["name"] == "AllReduce #12").unwrap()["args"];
    assert_eq!(
        (&coll["algorithm"], &coll["protocol"], &coll["count"]),
        (&"RING".into(), &"SIMPLE".into(), &1024.into())
    );
}

#[test]
fn pieces_that_overlap_on_a_rail_have_lines_of_their_own() {
    let mut records = send(1, 0, [(1, 0, 100), (1, 0, 1)], 100);
    records.extend(send(2, 50, [(1, 50, 80), (1, 2, 3)], 100));
    let events = events(&join([Made::new(0, 0).connected(1, 1, true).records(1, 0, &records)]));
    let on_rail = |event: &&Value| event["name"] == "piece" && thread(&events, event).contains("rail 0");
    let lines: Vec<_> = events.iter().filter(on_rail).map(|event| &event["tid"]).collect();
    assert!(lines.len() == 2 && lines[0] != lines[1], "{lines:?}");
    let on_other = |event: &&Value| event["name"] == "piece" && thread(&events, event).contains("rail 1");
    let lines: Vec<_> = events.iter().filter(on_other).map(|event| &event["tid"]).collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
}

#[test]
fn a_rail_that_is_down_has_a_slice_and_so_has_one_that_was_down_before() {
    let down = |made: Made| {
        let events = events(&join([made]));
        let found = slices(&events).into_iter().filter(|slice| slice.0.ends_with("down"));
        found.map(|(thread, name, from, length)| (thread.to_owned(), name.to_owned(), from, length)).collect::<Vec<_>>()
    };
    let made = one().happened(1200, 11, "rail-down", 1).happened(1700, 12, "rail-up", 1);
    let track = "sends to node1, rank 1 (connection 1), rail 1: down".to_owned();
    assert_eq!(down(made.clone()), [(track.clone(), "down".to_owned(), 0.2, 0.5)]);
    let again = down(made.happened(1900, 11, "rail-down", 1));
    assert_eq!(again[1], (track.clone(), "down (unfinished)".to_owned(), 0.9, 0.2));
    assert_eq!(down(one().happened(1700, 12, "rail-up", 1)), [(track, "down".to_owned(), 0.0, 0.7)]);
    let events = events(&join([one().happened(1200, 11, "rail-down", 1)]));
    let instant = events.iter().find(|it| it["ph"] == "i").unwrap();
    assert_eq!((&instant["name"], &instant["ts"]), (&"rail-down: rail-down it is".into(), &0.2.into()));
}

#[test]
fn counters_have_rates_shares_and_bytes_in_flight() {
    let state = RailSample { share: Some(250_000), in_flight: Some(77), is_up: true, ..RailSample::default() };
    let events = events(&join([one().sample(1400, 0, state)]));
    let counter = |name: &str| {
        let its = events.iter().filter(|it| it["ph"] == "C" && it["name"].as_str().unwrap().ends_with(name));
        its.map(|it| (it["ts"].as_f64().unwrap(), it["args"]["value"].as_f64().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(counter("rail 0: share"), [(0.4, 25.0)]);
    assert_eq!(counter("rail 0: in flight"), [(0.4, 77.0)]);
    // 600 bytes in a bin of 100 us are 48 Mbit/s.
    assert_eq!(counter("rail 0: rate"), [(0.0, 48.0), (100.0, 0.0)]);
}

#[test]
fn set_ups_and_what_does_not_end_say_how_they_went() {
    let setup = |failure: &str| {
        let (peer, failure) = ("node1 pid 9".into(), failure.into());
        Frame::Setup(Setup { from_ns: 10, to_ns: 2000, connection: None, connects: true, peer, failure })
    };
    let begun = [(1500, What::SendBegin { connection: 1, request: 1, bytes: 5 })];
    let made = Made::new(0, 0).connected(1, 1, true).records(1, 0, &begun).with(setup("")).with(setup("no route"));
    let events = events(&join([made]));
    let names: Vec<_> = slices(&events).iter().map(|slice| (slice.1.to_owned(), slice.3)).collect();
    let expected =
        [("connects to node1 pid 9", 1.99), ("connects to node1 pid 9 (failed)", 1.99), ("send (unfinished)", 0.5)];
    assert_eq!(names, expected.map(|(name, length)| (name.to_owned(), length)));
}

/// Returns the slices and instants of rail 1's "down" track: name, begin, length.
fn downs(made: Made) -> Vec<(String, f64, f64)> {
    let events = events(&join([made]));
    let its = events.iter().filter(|it| ["X", "i"].iter().any(|ph| it["ph"] == *ph));
    let its = its.filter(|it| thread(&events, it).ends_with("rail 1: down"));
    its.map(|it| {
        (it["name"].as_str().unwrap().to_owned(), it["ts"].as_f64().unwrap(), it["dur"].as_f64().unwrap_or(-1.0))
    })
    .collect()
}

#[test]
fn samples_tell_that_a_rail_is_down_if_the_event_is_gone() {
    const SECOND: u64 = 1_000_000_000;
    let state = |is_up| RailSample { is_up, ..RailSample::default() };
    let made = |samples: &[(u64, bool)]| {
        let last = (20 * SECOND, begins(77, 0, Kind::Group, 0));
        let made = Made::new(0, 0).connected(1, 1, true).records(9, 0, &[(0, begins(76, 0, Kind::Group, 0)), last]);
        samples.iter().fold(made, |made, (second, is_up)| made.sample(second * SECOND, 1, state(*is_up)))
    };
    let down = |from: f64, length: f64| ("down".to_owned(), from * 1e6, length * 1e6);
    let unfinished = |from: f64, length: f64| ("down (unfinished)".to_owned(), from * 1e6, length * 1e6);
    assert_eq!(downs(made(&[(1, true), (2, false), (3, false), (5, true), (6, true)])), [down(2.0, 3.0)]);
    assert_eq!(downs(made(&[(1, true), (2, true)])), []);
    assert_eq!(downs(made(&[(2, false)])), [unfinished(2.0, 18.0)]);
    // The event is later than the sample, or earlier: there is one slice.
    let told = |samples, down, up| {
        let made = made(samples).happened(down, 11, "rail-down", 1);
        downs(made.happened(up, 12, "rail-up", 1))
    };
    assert_eq!(told(&[(2, false), (9, false)], 2 * SECOND + 5000, 9 * SECOND), [down(2.0, 7.0)]);
    assert_eq!(told(&[(3, false), (9, false)], 2 * SECOND, 8 * SECOND + 500_000_000), [down(2.0, 6.5)]);
    // The event of its return is gone, and that of its next failure.
    let gone = made(&[(5, true), (8, false)]).happened(2 * SECOND, 11, "rail-down", 1);
    assert_eq!(downs(gone), [down(2.0, 3.0), unfinished(8.0, 12.0)]);
}

#[test]
fn bytes_that_went_again_over_other_rails_are_an_instant() {
    let up = |text: &str| {
        let happened = Happened {
            at_ns: 1700,
            kind: 12,
            name: "rail-up".into(),
            connection: Some(1),
            rail: Some(1),
            text: text.into(),
        };
        downs(one().happened(1200, 11, "rail-down", 1).with(Frame::Happened(happened)))
    };
    let slice = ("down".to_owned(), 0.2, 0.5);
    let instant = ("65536 bytes were sent again over other rails".to_owned(), 0.7, -1.0);
    assert_eq!(up("rail 1 is back after 0.05 s; 65536 bytes were sent again"), [slice.clone(), instant]);
    assert_eq!(up("rail 1 is back after 0.05 s; 0 bytes were sent again").len(), 1);
    assert_eq!(up("rail 1 is back after 0.05 s"), [slice]);
}

#[test]
fn what_has_no_end_says_so_if_records_were_lost() {
    let begun = [
        (1500, What::SendBegin { connection: 1, request: 1, bytes: 5 }),
        (1600, What::PieceBegin { connection: 1, rail: 0, request: 1, bytes: 5 }),
        (4000, begins(7, 0, Kind::Group, 0)),
    ];
    let ended = Frame::Ended(Ended { at_ns: 2000, connection: 1 });
    let made = Made::new(0, 0).connected(1, 1, true).records(1, 3, &begun).with(ended);
    let events = events(&join([made]));
    let names: Vec<_> = slices(&events).iter().map(|slice| (slice.1.to_owned(), slice.3)).collect();
    let expected = [("group (end not seen)", 0.0), ("send (end not seen)", 0.5), ("piece (end not seen)", 0.4)];
    assert_eq!(names, expected.map(|(name, length)| (name.to_owned(), length)));
}
