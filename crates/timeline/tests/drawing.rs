//! The drawing of a timeline, looked at in Chrome's format: `perfetto.rs` writes the same tracks and slices.

mod made;

use made::{Made, join, send};
use railweave_timeline::{Timeline, write_chrome};
use railweave_trace::{RailSample, Setup, What};
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
        ("default: channel 2, to 1, steps", "sends", 0.14, 0.96),
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
        railweave_trace::Frame::Setup(Setup {
            from_ns: 10,
            to_ns: 2000,
            connection: None,
            connects: true,
            peer,
            failure,
        })
    };
    let begun = [(1500, What::SendBegin { connection: 1, request: 1, bytes: 5 })];
    let made = Made::new(0, 0).connected(1, 1, true).records(1, 0, &begun).with(setup("")).with(setup("no route"));
    let events = events(&join([made]));
    let names: Vec<_> = slices(&events).iter().map(|slice| (slice.1.to_owned(), slice.3)).collect();
    let expected =
        [("connects to node1 pid 9", 1.99), ("connects to node1 pid 9 (failed)", 1.99), ("send (unfinished)", 0.5)];
    assert_eq!(names, expected.map(|(name, length)| (name.to_owned(), length)));
}
