//! Trace files: any bytes behind a right beginning, and two processes that note anything about the same few things.
//!
//! Whatever they note, it is drawn and summed up, and the sums are in their range.

use railweave_timeline::{Choice, Rank, Summary, Timeline, write_chrome, write_perfetto};
use railweave_trace::{
    Connection, Frame, Happened, PeerClock, Process, Rail, RailSample, Record, Records, Sample, TraceFile,
};

use crate::input::Input;

/// The numbers that records and frames choose from, besides any: times that meet, and those at the ends.
const NUMBERS: [u64; 12] = [0, 1, 2, 3, 4, 1000, 1001, 5000, 1_000_000, 1 << 62, i64::MAX as u64, u64::MAX];

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.u8().is_multiple_of(2) {
        let bytes = [b"railweave trace 1\n", input.rest()].concat();
        look(TraceFile::read(&bytes).into_iter().map(|file| Rank::read(vec![file])).collect());
        return;
    }
    let mut files = [process(&mut input, 0), process(&mut input, 1)];
    while !input.is_empty() {
        let file = &mut files[usize::from(input.u8() % 2)];
        let frame = frame(&mut input);
        file.frames.push(frame);
    }
    look(files.into_iter().map(|file| Rank::read(vec![file])).collect());
}

fn number(input: &mut Input<'_>) -> u64 {
    let choice = usize::from(input.u8());
    NUMBERS.get(choice % (NUMBERS.len() + 1)).copied().unwrap_or_else(|| input.u64())
}

/// A process with connection 0, to or from the other one.
fn process(input: &mut Input<'_>, rank: u8) -> TraceFile {
    let process = Process {
        id: vec![rank; 16],
        pid: u32::from(rank),
        boot_id: vec![input.u8() % 2; 16],
        rank: Some(rank.into()),
        part: u32::from(input.u8() % 2),
        at_ns: number(input),
        wall_ns: number(input),
        sessions_from_ns: number(input),
        ..Process::default()
    };
    let connection = Connection { sends: rank == 0, peer: vec![1 - rank; 16], ..Connection::default() };
    let mut frames = vec![Frame::Connection(connection)];
    frames.extend((0..2).map(|number| Frame::Rail(Rail { number, ..Rail::default() })));
    TraceFile { process, frames, rest_bytes: 0 }
}

fn frame(input: &mut Input<'_>) -> Frame {
    match input.u8() % 8 {
        0 => Frame::PeerClock(PeerClock {
            peer: vec![input.u8() % 2; 16],
            at_ns: number(input),
            ahead_ns: number(input) as i64,
            within_ns: number(input),
        }),
        1 => {
            let kind = 10 + u32::from(input.u8() % 3);
            let rail = Some(u32::from(input.u8() % 3));
            Frame::Happened(Happened { at_ns: number(input), kind, connection: Some(0), rail, ..Happened::default() })
        }
        2 => {
            let rail = RailSample {
                number: u32::from(input.u8() % 3),
                share: Some(input.u32()),
                received: number(input),
                in_flight: Some(number(input)),
                ..RailSample::default()
            };
            Frame::Sample(Sample { at_ns: number(input), rails: vec![rail] })
        }
        _ => {
            let mut bytes = Vec::new();
            for _ in 0..input.u8() % 16 {
                let at = number(input);
                // The kind of the record, its small fields, and the lower part of its number.
                let head =
                    u64::from_le_bytes([input.u8() % 24, input.u8() % 12, input.u8(), 0, input.u8() % 3, 0, 0, 0]);
                bytes.extend(Record::bytes([at, head, number(input), number(input)]));
            }
            Frame::Records(Records { thread: u32::from(input.u8() % 2), lost: number(input), bytes })
        }
    }
}

/// Draws and sums up.
fn look(ranks: Vec<Rank>) {
    let timeline = Timeline::join(ranks, Choice::All).expect("all runs exist");
    let mut drawn = Vec::new();
    write_perfetto(&timeline, &mut drawn).expect("memory takes all bytes");
    write_chrome(&timeline, &mut drawn).expect("memory takes all bytes");
    let summary = Summary::of(&timeline, 5);
    assert!(summary.waits.is_sorted_by(|one, other| one.for_ns >= other.for_ns) && summary.waits.len() <= 5);
    for rail in summary.rails.iter().chain(&summary.host_pairs) {
        let is_part = |part: Option<f64>| part.is_none_or(|part| (0.0..=1.0).contains(&part));
        assert!(rail.busy_ns <= rail.span_ns && is_part(rail.share) && is_part(rail.idle), "{rail:?}");
    }
}
