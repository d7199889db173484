//! Flows between pairs of ranks, over the net in memory.

mod support;

use railweave_bench::CommunicatorError;
use railweave_bench::bootstrap::{Event, Link, Relay};
use railweave_bench::flow::{Results, Settings, run};
use railweave_patience::until;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;
use support::{Faults, Loopback, World};

/// Returns every rank's results, and their shared world.
fn play(
    ranks: usize,
    (message_bytes, small): (usize, usize),
    faults: Faults,
) -> (Vec<Result<Results, CommunicatorError>>, Arc<World>) {
    let world = World::with(faults);
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..ranks).map(|_| UnixStream::pair().unwrap()).unzip();
    let mut relay = Relay::start(ours, b"").unwrap();
    let rank = |stream: UnixStream| {
        let mut link = Link::open(stream).unwrap();
        let time = Duration::from_millis(30);
        let stall = Duration::from_secs(60);
        let settings =
            Settings { device: 0, message_bytes, small, in_flight: 4, warm_up: time, time, checked: true, stall };
        run(&Loopback(Arc::clone(&world)), &mut link, &settings, |_| ())
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = theirs.into_iter().map(|stream| scope.spawn(|| rank(stream))).collect();
        for _ in 0..ranks {
            let event = until("the end of a rank", || relay.next_event(Duration::from_secs(1)));
            assert!(matches!(event, Event::Closed { .. }), "{event:?}");
            if faults.flip_bit.is_some() || faults.short_size.is_some() {
                relay.abort("a rank is gone");
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, world)
}

#[test]
fn every_receiver_gets_all_messages_of_its_sender() {
    for (ranks, bytes) in [(2, 1000), (2, 1), (6, 4096)] {
        let (results, world) = play(ranks, (bytes, 0), Faults::default());
        let results: Vec<Results> = results.into_iter().map(Result::unwrap).collect();
        for pair in results.chunks(2) {
            assert_eq!(pair[0].messages, pair[1].messages);
            assert!(pair[1].messages > 0 && pair[0].bins.is_empty());
            assert_eq!(pair[1].bins.iter().sum::<u64>(), (pair[1].messages * bytes) as u64);
        }
        assert_eq!((world.empty.load(SeqCst), world.open.load(SeqCst)), (ranks / 2 * 4, 0));
    }
}

#[test]
fn small_messages_come_in_between() {
    for (bytes, small) in [(1000, 3), (4, 1)] {
        let (results, _) = play(2, (bytes, small), Faults::default());
        let results: Vec<Results> = results.into_iter().map(Result::unwrap).collect();
        let count = results[1].messages;
        let (rounds, rest) = (count / (small + 1), count % (small + 1));
        assert_eq!((results[0].messages, results[0].in_flight), (count, 4));
        assert!(rounds > 1);
        assert_eq!(results[1].bins.iter().sum::<u64>(), (rounds * bytes + (rounds * small + rest) * 8) as u64);
    }
    for (fault, index) in [(5, 5), (7, 7)] {
        let (results, _) = play(2, (1000, 3), Faults { short_size: Some(fault), ..Faults::default() });
        let bytes = if index == 7 { 999 } else { 7 };
        assert!(
            matches!(results[1], Err(CommunicatorError::WrongSize { index: at, bytes: found, .. })
                if (at, found) == (index, bytes)),
            "{results:?}"
        );
        let (results, _) = play(2, (1000, 3), Faults { flip_bit: Some(fault), ..Faults::default() });
        assert!(matches!(results[1], Err(CommunicatorError::WrongData { .. })), "{results:?}");
    }
}

#[test]
fn a_message_that_changes_and_a_size_that_is_wrong_are_noticed() {
    let (results, _) = play(2, (1000, 0), Faults { flip_bit: Some(5), ..Faults::default() });
    assert!(matches!(results[1], Err(CommunicatorError::WrongData { .. })), "{results:?}");
    let (results, _) = play(2, (1000, 0), Faults { short_size: Some(5), ..Faults::default() });
    assert!(matches!(results[1], Err(CommunicatorError::WrongSize { index: 5, bytes: 999, .. })), "{results:?}");
}

#[test]
fn an_odd_rank_and_a_message_without_bytes_are_refused() {
    for (ranks, bytes) in [(3, 8), (2, 0)] {
        let (results, _) = play(ranks, (bytes, 0), Faults::default());
        for result in results {
            assert!(result.unwrap_err().to_string().contains("1 byte and more, and an even number of ranks"));
        }
    }
}
