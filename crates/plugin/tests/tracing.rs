//! The trace of a process: what its files say of connections, messages and NCCL's events, and what they hold after a
//! crash.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use common::traces::{dir, file, files, records, sampled, trace};
use common::{Pair, TWO_RAILS, alone, load, noise, warnings, warnings_with, with_peer};
use railweave_trace::{Frame, Record, TraceFile, What};

const BIG: usize = 4 << 20;

#[test]
fn a_trace_has_the_connections_of_a_process_and_each_message_with_its_rails() {
    alone(&[TWO_RAILS], || {
        trace();
        let plugin = load(None);
        let net = plugin.init(1, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let sizes = [BIG, 8, 0, BIG / 2];
        for (seed, bytes) in sizes.into_iter().enumerate() {
            pair.exchange(seed as u64, bytes);
        }
        let counted: u64 = plugin.rail_counters().unwrap().iter().map(|rail| rail.data_bytes).sum();
        pair.close();
        net.finalize().unwrap();
        let file = file();
        assert_eq!((file.process.pid, file.process.part), (std::process::id(), 0));
        assert!(file.process.wall_ns > 0 && file.process.id.len() == 16);

        let connections: Vec<_> = file
            .frames
            .iter()
            .filter_map(|frame| match frame {
                Frame::Connection(connection) => Some((connection.number, connection.sends)),
                _ => None,
            })
            .collect();
        let (sender, receiver) = match connections[..] {
            [(one, true), (other, false)] | [(other, false), (one, true)] => (one, other),
            _ => panic!("one end sends, the other receives: {connections:?}"),
        };
        let rails = |number: u32| {
            let rail = |frame: &Frame| match frame {
                Frame::Rail(rail) if rail.connection == number => Some(rail.local.clone()),
                _ => None,
            };
            file.frames.iter().filter_map(rail).collect::<Vec<_>>()
        };
        assert_eq!(rails(sender), ["127.0.0.1", "127.0.0.2"]);
        let ends = |of: fn(&Frame) -> Option<u32>| file.frames.iter().filter_map(of).collect::<BTreeSet<_>>();
        let both = BTreeSet::from([sender, receiver]);
        assert_eq!(ends(|frame| if let Frame::Ended(ended) = frame { Some(ended.connection) } else { None }), both);
        assert_eq!(ends(|frame| if let Frame::Setup(setup) = frame { setup.connection } else { None }), both);
        assert_eq!([sender, receiver].map(|number| sampled(&file, number)), [counted; 2]);

        let records = records(&file);
        let begun = |connection: u32| {
            let begin = |record: &Record| match record.what {
                What::SendBegin { connection: its, bytes, .. } if its == connection => Some(bytes),
                _ => None,
            };
            records.iter().filter_map(begin).collect::<Vec<_>>()
        };
        assert_eq!(begun(sender), sizes.map(|bytes| bytes as u64));
        assert_eq!(begun(receiver), [0; 0]);
        // Each request of either end has its parts, each of which ends once, before the request does.
        for connection in [sender, receiver] {
            for (number, size) in (1..).zip(sizes) {
                let of_request: Vec<_> = records
                    .iter()
                    .filter_map(|record| match record.what {
                        What::PieceBegin { connection: its, rail, request, bytes }
                            if (its, request) == (connection, number) =>
                        {
                            Some(("begin", rail, bytes))
                        }
                        What::PieceEnd { connection: its, rail, request } if (its, request) == (connection, number) => {
                            Some(("end", rail, 0))
                        }
                        What::RequestEnd { connection: its, request, bytes }
                            if (its, request) == (connection, number) =>
                        {
                            Some(("done", 0, bytes))
                        }
                        _ => None,
                    })
                    .collect();
                let (last, parts) = of_request.split_last().expect("it has records");
                assert_eq!(*last, ("done", 0, size as u64));
                let rails = |kind: &str| {
                    let rail = |(its, rail, _): &(&str, u8, u64)| (*its == kind).then_some(*rail);
                    let rails: Vec<u8> = parts.iter().filter_map(rail).collect();
                    assert_eq!(rails.len(), if size > 1 << 20 { 2 } else { 1 }, "{parts:?}");
                    rails.into_iter().collect::<BTreeSet<_>>()
                };
                assert_eq!(rails("begin"), rails("end"));
                let bytes: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
                assert_eq!(bytes, if connection == sender { size as u64 } else { 0 });
            }
        }
        let traced: u64 = records
            .iter()
            .filter_map(|record| if let What::PieceBegin { bytes, .. } = record.what { Some(bytes) } else { None })
            .sum();
        assert_eq!(traced, counted, "the rails' own counters say the same");
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_send_that_waits_for_its_receive_says_for_how_long() {
    alone(&[TWO_RAILS], || {
        trace();
        let net = load(None).init(1, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100)), pair.incoming(100));
        assert!(pair.try_isend(&from, 100, 0).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(50));
        assert!(pair.try_isend(&from, 100, 0).unwrap().is_none());
        // The second message finds its receive, and waits for nothing.
        for _ in 0..2 {
            let recv = pair.irecv(&[to.part(0)]);
            std::thread::sleep(Duration::from_millis(20));
            let send = pair.isend(&from, 100, 0);
            pair.finish(&[send], &[recv]);
        }
        pair.close();
        net.finalize().unwrap();
        let waits: Vec<_> = records(&file())
            .into_iter()
            .filter_map(|record| if let What::CtsWait { for_ns, .. } = record.what { Some(for_ns) } else { None })
            .collect();
        assert!(matches!(waits[..], [for_ns] if (50_000_000..5_000_000_000).contains(&for_ns)), "{waits:?}");
    });
}

#[test]
fn a_process_that_is_killed_leaves_what_happened_up_to_a_second_before() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let mut byte = [0];
            peer.link.read_exact(&mut byte).expect("the peer says that messages move");
            std::thread::sleep(Duration::from_millis(1200));
            let killed_ns = railweave_trace_now();
            peer.kill();
            let [file] = <[TraceFile; 1]>::try_from(files()).expect("the peer's file");
            let records = records(&file);
            let last = records.last().expect("it has records").at_ns;
            assert!(killed_ns.saturating_sub(last) < 1_000_000_000, "{} ms", (killed_ns - last) / 1_000_000);
            let begun = records.iter().filter(|record| matches!(record.what, What::SendBegin { .. })).count();
            assert!(begun > 10, "{begun} messages");
        },
        |mut link| {
            trace();
            let net = load(None).init(1, None).unwrap();
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(0, BIG);
            std::io::Write::write_all(&mut link, &[1]).unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(60) {
                pair.exchange(1, BIG);
            }
        },
    );
}

/// Returns the present time in nanoseconds of CLOCK_MONOTONIC.
fn railweave_trace_now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is a variable of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[test]
fn a_folder_that_cannot_be_written_is_said_once_and_the_job_goes_on() {
    alone(&[TWO_RAILS], || {
        fs::create_dir_all(dir().parent().unwrap()).unwrap();
        fs::write(dir(), "in the way").unwrap();
        trace();
        let net = load(None).init(1, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            pair.exchange(1, BIG);
        }
        pair.close();
        net.finalize().unwrap();
        let path = dir().display().to_string();
        assert_eq!(warnings_with(&[&path, "RAILWEAVE_TRACE", "the job goes on"]).len(), 1);
        assert_eq!(warnings().len(), 1);
    });
}

#[test]
fn the_files_of_a_process_stay_below_the_limit() {
    alone(&[TWO_RAILS, ("RAILWEAVE_TRACE_MAX", "1M")], || {
        trace();
        let net = load(None).init(1, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let begun = Instant::now();
        let newest = || files().last().map_or(0, |file| file.process.part);
        while newest() < 3 {
            (0..200).for_each(|_| pair.exchange(1, 8));
            let bytes: u64 = fs::read_dir(dir())
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|it| it.metadata().ok())
                .map(|it| it.len())
                .sum();
            assert!(bytes <= 1 << 20, "{bytes} bytes");
            assert!(begun.elapsed() < Duration::from_secs(120), "the files do not grow");
        }
        pair.close();
        net.finalize().unwrap();
        let files = files();
        assert_eq!(files.len(), 2);
        for file in files {
            assert!(file.frames.iter().any(|frame| matches!(frame, Frame::Connection(_))), "each has the definitions");
            assert!(file.frames.iter().any(|frame| matches!(frame, Frame::Thread(_))));
        }
    });
}

#[test]
fn what_a_traced_receiver_owes_leaves_soon_without_any_call() {
    alone(&[TWO_RAILS], || {
        trace();
        let net = load(None).init(1, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 8)), pair.incoming(8));
        let mut ahead = pair.irecv(&[to.part(7)]);
        let mut times: Vec<Duration> = (0..50).map(|_| pair.owed(&from, &to, &mut ahead)).collect();
        times.sort();
        assert!(times[25] < Duration::from_millis(50), "half of the acknowledgements took {:?}", times[25]);
    });
}
