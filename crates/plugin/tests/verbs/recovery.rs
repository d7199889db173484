//! Connections that go on without a rail that fails, and have it back later.

use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::FakeVerbs;

use crate::common::{Pair, alone, info_lines, noise, start, until, warnings_with};
use crate::machine::{EVEN, FUSED, ONE_PORT, ROCE, finish, machine, with};

const RECOVERS: (&str, &str) = ("RAILWEAVE_RECOVERY", "1");

/// Waits until this many lines say that a rail is back. Messages need not flow meanwhile.
fn until_back(count: usize) {
    let is_back = || info_lines().iter().filter(|line| line.contains("is back after")).count() >= count;
    until("the rail", || is_back().then_some(()));
}

/// Checks that messages of several sizes come whole.
fn exchange(pair: &Pair<'_>) {
    for (seed, bytes) in [0, 1, 8, 5000, 1_000_000].into_iter().enumerate() {
        pair.exchange(seed as u64, bytes);
    }
}

/// Cuts the port while a message is on its way, and lets what is in work there time out.
fn lose(fake: &FakeVerbs, pair: &Pair<'_>, device: &str) {
    let message = noise(3, 1_000_000);
    let (from, to) = (pair.outgoing(&message), pair.incoming(1_000_000));
    let recv = pair.irecv(&[to.part(7)]);
    fake.cut(device, 1).unwrap();
    let send = pair.isend(&from, 1_000_000, 7);
    fake.time_out(device, 1).unwrap();
    assert_eq!(pair.finish(&[send], &[recv]).0, [1_000_000]);
    to.assert_holds(&message);
    pair.release_outgoing(from);
    pair.release_incoming(to);
}

#[test]
fn a_message_comes_whole_over_the_other_rail_and_the_first_is_back_once_its_cable_is() {
    alone(&with(&[FUSED, EVEN, RECOVERS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        exchange(&pair);
        for (count, device) in ["mlx5_1", "mlx5_0", "mlx5_1"].into_iter().enumerate() {
            lose(&fake, &pair, device);
            assert!(!warnings_with(&["is down", device]).is_empty());
            exchange(&pair);
            fake.mend(device, 1).unwrap();
            // Both ends say so.
            until_back(2 * (count + 1));
            exchange(&pair);
        }
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn a_connection_whose_only_rail_failed_waits_until_it_is_back() {
    alone(&with(&[RECOVERS]), || {
        let fake = machine(ONE_PORT);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        exchange(&pair);
        let message = noise(3, 100_000);
        let (from, to) = (pair.outgoing(&message), pair.incoming(100_000));
        let recv = pair.irecv(&[to.part(7)]);
        fake.cut("mlx5_0", 1).unwrap();
        let send = pair.isend(&from, 100_000, 7);
        fake.time_out("mlx5_0", 1).unwrap();
        until("the rail's failure", || {
            assert!(pair.test_send(&send).unwrap().is_none() && pair.test_recv(&recv).unwrap().is_none());
            (warnings_with(&["is down", "the connection waits until one is back"]).len() >= 2).then_some(())
        });
        fake.mend("mlx5_0", 1).unwrap();
        assert_eq!(pair.finish(&[send], &[recv]).0, [100_000]);
        to.assert_holds(&message);
        until_back(2);
        pair.release_outgoing(from);
        pair.release_incoming(to);
        exchange(&pair);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn a_port_that_is_down_loses_its_rails_at_once() {
    alone(&with(&[FUSED, EVEN, RECOVERS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        exchange(&pair);
        fake.cut("mlx5_1", 1).unwrap();
        fake.raise("mlx5_1", sys::EVENT_PORT_ERR, 1).unwrap();
        // Nothing that waits on the cut cable has timed out.
        exchange(&pair);
        assert!(!warnings_with(&["rail 1", "is down", "mlx5_1 port 1: the port is down"]).is_empty());
        fake.mend("mlx5_1", 1).unwrap();
        fake.raise("mlx5_1", sys::EVENT_PORT_ACTIVE, 1).unwrap();
        until_back(2);
        exchange(&pair);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn a_rail_that_falls_silent_is_given_up_although_its_adapter_reports_nothing() {
    alone(&with(&[FUSED, EVEN, RECOVERS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        exchange(&pair);
        for (count, device) in ["mlx5_1", "mlx5_0"].into_iter().enumerate() {
            fake.cut(device, 1).unwrap();
            exchange(&pair);
            let said = warnings_with(&["is down", "although the peer is alive"]);
            assert!(!said.is_empty(), "nobody said why {device} is not used");
            fake.mend(device, 1).unwrap();
            until_back(2 * (count + 1));
            exchange(&pair);
        }
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn the_only_rail_that_fell_silent_is_back_once_its_cable_is() {
    alone(&with(&[RECOVERS]), || {
        let fake = machine(ONE_PORT);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        exchange(&pair);
        // A receive whose CTS is lost: the sender has nothing on its way.
        let to = pair.incoming(100_000);
        fake.cut("mlx5_0", 1).unwrap();
        let recv = pair.irecv(&[to.part(7)]);
        until("the rail's failure", || {
            assert!(pair.test_recv(&recv).unwrap().is_none());
            (warnings_with(&["is down", "the connection waits until one is back"]).len() >= 2).then_some(())
        });
        fake.mend("mlx5_0", 1).unwrap();
        let message = noise(3, 100_000);
        let from = pair.outgoing(&message);
        let send = pair.isend(&from, 100_000, 7);
        assert_eq!(pair.finish(&[send], &[recv]).0, [100_000]);
        to.assert_holds(&message);
        until_back(2);
        pair.release_outgoing(from);
        pair.release_incoming(to);
        exchange(&pair);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn without_a_time_for_silence_the_adapter_decides() {
    alone(&with(&[FUSED, EVEN, RECOVERS, ("RAILWEAVE_RAIL_TIMEOUT", "0")]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let message = noise(3, 1_000_000);
        let (from, to) = (pair.outgoing(&message), pair.incoming(1_000_000));
        let recv = pair.irecv(&[to.part(7)]);
        fake.cut("mlx5_1", 1).unwrap();
        let send = pair.isend(&from, 1_000_000, 7);
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(1500) {
            assert!(pair.test_send(&send).unwrap().is_none() && pair.test_recv(&recv).unwrap().is_none());
        }
        assert!(warnings_with(&["is down"]).is_empty());
        fake.time_out("mlx5_1", 1).unwrap();
        assert_eq!(pair.finish(&[send], &[recv]).0, [1_000_000]);
        to.assert_holds(&message);
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        finish(&fake, net);
    });
}
