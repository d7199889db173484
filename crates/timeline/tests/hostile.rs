//! Files with any content: nothing panics, and every output is whole.

mod made;

use made::Made;
use proptest::prelude::*;
use railweave_timeline::{Choice, Rank, Summary, Timeline, write_chrome, write_perfetto};
use railweave_trace::{Frame, Happened, PeerClock, RECORD_BYTES, RailSample, Records, Setup, TraceFile};

/// Numbers as files have them, and those at the ends of their range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, 1000..5000_u64, Just(u64::MAX), Just(i64::MAX as u64), any::<u64>()]
}

/// A record's bytes: of a known kind more often than not, and about the same few things.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop_oneof![1..9_u64, 16..22_u64, any::<u64>()];
    let head = (tag, 0..12_u64, 0..30_u64, 0..3_u64)
        .prop_map(|(tag, byte, half, number)| tag & 0xff | byte << 8 | half << 16 | number << 32);
    (number(), head, number(), number())
        .prop_map(|(at, head, a, b)| [at, head, a, b].iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn frame() -> impl Strategy<Value = Frame> {
    let records = (0..3_u32, number(), prop::collection::vec(record(), 0..30)).prop_map(|(thread, lost, records)| {
        let bytes: Vec<u8> = records.concat();
        assert_eq!(bytes.len() % RECORD_BYTES, 0);
        Frame::Records(Records { thread, lost, bytes })
    });
    let clock = (0..3_u8, number(), any::<i64>(), number()).prop_map(|(peer, at_ns, ahead_ns, within_ns)| {
        Frame::PeerClock(PeerClock { peer: vec![peer; 16], at_ns, ahead_ns, within_ns })
    });
    let happened = (number(), 9..14_u32, 0..3_u32, 0..3_u32).prop_map(|(at_ns, kind, connection, rail)| {
        let (connection, rail) = (Some(connection), Some(rail));
        Frame::Happened(Happened { at_ns, kind, connection, rail, ..Happened::default() })
    });
    let setup =
        (number(), number()).prop_map(|(from_ns, to_ns)| Frame::Setup(Setup { from_ns, to_ns, ..Setup::default() }));
    let sample = (number(), 0..3_u32, number(), any::<u32>()).prop_map(|(at_ns, number, received, share)| {
        let state = RailSample { received, share: Some(share), in_flight: Some(received), ..RailSample::default() };
        let made = Made::new(0, 0).sample(at_ns, number, state);
        made.frames.into_iter().next().unwrap()
    });
    prop_oneof![4 => records, 1 => clock, 1 => happened, 1 => setup, 1 => sample]
}

fn file() -> impl Strategy<Value = TraceFile> {
    let words = (0..3_u8, 0..3_u8, number(), number(), number());
    (words, any::<bool>(), prop::collection::vec(frame(), 0..8), prop_oneof![0..3_u32, any::<u32>()]).prop_map(
        |((rank, host, at_ns, wall_ns, sessions_from_ns), sends, frames, part)| {
            let mut made = Made::new(rank, host).connected(1 - rank.min(1), host, sends).named();
            made.frames.extend(frames);
            let process = &mut made.process;
            process.pid = 100 + u32::from(rank % 2);
            (process.at_ns, process.wall_ns, process.sessions_from_ns) = (at_ns, wall_ns, sessions_from_ns);
            process.part = part;
            made.file()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_records_are_drawn_and_summed_up(parts in prop::collection::vec(prop::collection::vec(file(), 1..3), 0..4)) {
        let ranks = parts.into_iter().map(Rank::read).collect();
        let timeline = Timeline::join(ranks, Choice::All).unwrap();
        let mut json = Vec::new();
        write_chrome(&timeline, &mut json).unwrap();
        serde_json::from_slice::<serde_json::Value>(&json).unwrap();
        let mut packets = Vec::new();
        write_perfetto(&timeline, &mut packets).unwrap();
        let summary = Summary::of(&timeline, 10);
        prop_assert!(summary.waits.len() <= 10);
        for rail in &summary.rails {
            prop_assert!(rail.busy_ns <= rail.span_ns, "{:?}", rail);
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        let bytes = [b"railweave trace 1\n".as_slice(), &bytes].concat();
        let files = TraceFile::read(&bytes).ok().into_iter().collect();
        Timeline::join(vec![Rank::read(files)], Choice::Newest).unwrap();
    }
}
