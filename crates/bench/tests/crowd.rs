//! Many ranks with connections to several others each, over the net in memory.

mod support;

use railweave_bench::CommunicatorError;
use railweave_bench::bootstrap::{Event, Link, Relay};
use railweave_bench::crowd::{Results, Settings, run};
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
    connections: usize,
    faults: Faults,
) -> (Vec<Result<Results<usize>, CommunicatorError>>, Arc<World>) {
    let world = World::with(faults);
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..ranks).map(|_| UnixStream::pair().unwrap()).unzip();
    let mut relay = Relay::start(ours, b"").unwrap();
    let rank = |stream: UnixStream| {
        let mut link = Link::open(stream).unwrap();
        let settings = Settings { device: 0, connections, message_bytes: 1000, stall: Duration::from_secs(60) };
        run(Loopback(Arc::clone(&world)), &mut link, &settings, |_, _| {}, || 7, |_| Ok(()))
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = theirs.into_iter().map(|stream| scope.spawn(|| rank(stream))).collect();
        for _ in 0..ranks {
            let event = until("the end of a rank", || relay.next_event(Duration::from_secs(1)));
            assert!(matches!(event, Event::Closed { .. }), "{event:?}");
            if faults.flip_bit.is_some() {
                relay.abort("a rank is gone");
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, world)
}

#[test]
fn every_connection_of_every_rank_carries_its_message_and_is_closed() {
    // Connections to the only other rank, to each other rank once, and to some more than once.
    for (ranks, connections) in [(2, 1), (2, 3), (5, 2), (4, 3), (3, 7)] {
        let (results, world) = play(ranks, connections, Faults::default());
        for result in results {
            assert_eq!(result.unwrap().seen, 7);
        }
        assert_eq!((world.messages.load(SeqCst), world.open.load(SeqCst)), (ranks * connections, 0));
    }
}

#[test]
fn a_message_that_changes_on_its_way_is_noticed() {
    let (results, _) = play(3, 4, Faults { flip_bit: Some(5), ..Faults::default() });
    let wrong = |result: &Result<_, _>| matches!(result, Err(CommunicatorError::WrongData { .. }));
    assert_eq!(results.iter().filter(|result| wrong(result)).count(), 1, "{results:?}");
}

#[test]
fn one_rank_or_no_connection_is_refused() {
    for (ranks, connections) in [(1, 1), (2, 0)] {
        let (results, _) = play(ranks, connections, Faults::default());
        assert!(results.iter().all(|result| matches!(result, Err(CommunicatorError::Usage { .. }))), "{results:?}");
    }
}
