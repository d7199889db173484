//! Connections that go on without a rail that fails, and have it back later.

use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::{FakeVerbs, QpReport};

use crate::common::{Pair, alone, each, info_lines, noise, start, until, warnings, warnings_with};
use crate::machine::{EVEN, FUSED, ONE_PORT, ROCE, finish, machine, with};

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
    alone(&with(&[FUSED, EVEN]), || {
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
    alone(&with(&[]), || {
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
    alone(&with(&[FUSED, EVEN]), || {
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
fn a_fence_that_hangs_holds_up_its_own_connection_alone_and_is_told() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(&format!("faults = ['modify_qp/RESET@mlx5_1:1:7000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let pairs: Vec<_> = (0..20).map(|_| Pair::open(&net, &net, 0)).collect();
        let message = noise(3, 600_000);
        let buffers: Vec<_> =
            pairs.iter().map(|pair| (pair.outgoing(&message), pair.incoming(message.len()))).collect();
        let ends = pairs.iter().zip(&buffers);
        let recvs: Vec<_> = ends.clone().map(|(pair, (_, to))| pair.irecv(&[to.part(7)])).collect();
        fake.cut("mlx5_1", 1).unwrap();
        let sends: Vec<_> = ends.map(|(pair, (from, _))| pair.isend(from, message.len(), 7)).collect();
        fake.raise("mlx5_1", sys::EVENT_PORT_ERR, 1).unwrap();
        let is_late = |pair: usize| pairs[pair].test_recv(&recvs[pair]).unwrap().is_none();
        let mut late: Vec<_> = (0..pairs.len()).collect();
        until("all but one", || {
            late.retain(|pair| is_late(*pair));
            (late.len() <= 1).then_some(())
        });
        assert_eq!(warnings_with(&["has not ended"]), Vec::<String>::new(), "it was held up");
        until("the line", || (warnings_with(&["has not ended", "rail 1 to", "adapter"]).len() == 1).then_some(()));
        until("the last one", || {
            late.retain(|pair| is_late(*pair));
            late.is_empty().then_some(())
        });
        for (number, (pair, (from, to))) in pairs.into_iter().zip(buffers).enumerate() {
            until("the send", || pair.test_send(&sends[number]).unwrap());
            to.assert_holds(&message);
            pair.release_outgoing(from);
            pair.release_incoming(to);
            pair.close();
        }
        finish(&fake, net);
    });
}

#[test]
fn a_rail_that_falls_silent_is_given_up_although_its_adapter_reports_nothing() {
    alone(&with(&[FUSED, EVEN]), || {
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
    alone(&with(&[]), || {
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
    alone(&with(&[FUSED, EVEN, ("RAILWEAVE_RAIL_TIMEOUT", "0")]), || {
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

/// Returns the number of a queue pair of the receiving end on a device.
fn receiving_lane(fake: &FakeVerbs, device: &str) -> u32 {
    let pairs = fake.queue_pairs();
    let receives = |pair: &&QpReport| pair.shared_receives || pair.capabilities.max_recv_wr > 1;
    pairs.iter().filter(receives).find(|pair| pair.device == device).expect("the end has a lane").number
}

#[test]
fn a_queue_that_fails_costs_new_lanes_and_nothing_else() {
    each(
        &[sys::EVENT_QP_FATAL, sys::EVENT_CQ_ERR],
        |_| with(&[]),
        |event| {
            let fake = machine(ONE_PORT);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            exchange(&pair);
            let to = pair.incoming(1000);
            // An end that waits has no work in progress, so polling would never report the failure.
            let recv = pair.irecv(&[to.part(7)]);
            // The new lanes have queues of their own, which may fail as well.
            for failures in 1..=2 {
                fake.raise_only("mlx5_0", *event, receiving_lane(&fake, "mlx5_0")).unwrap();
                until_back(2 * failures);
            }
            let message = noise(3, 1000);
            let from = pair.outgoing(&message);
            let send = pair.isend(&from, 1000, 7);
            assert_eq!(pair.finish(&[send], &[recv]).0, [1000]);
            to.assert_holds(&message);
            pair.release_outgoing(from);
            pair.release_incoming(to);
            exchange(&pair);
            pair.close();
            finish(&fake, net);
        },
    );
}

#[test]
fn a_device_that_fails_costs_its_rail_for_good_and_the_only_one_the_connection() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let message = noise(3, 1_000_000);
        let (from, to) = (pair.outgoing(&message), pair.incoming(1_000_000));
        let recv = pair.irecv(&[to.part(7)]);
        fake.cut("mlx5_1", 1).unwrap();
        let send = pair.isend(&from, 1_000_000, 7);
        fake.raise_only("mlx5_1", sys::EVENT_DEVICE_FATAL, 0).unwrap();
        assert_eq!(pair.finish(&[send], &[recv]).0, [1_000_000]);
        to.assert_holds(&message);
        exchange(&pair);
        let recv = pair.irecv(&[to.part(7)]);
        fake.raise_only("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
        let failed = until("the receive's failure", || pair.test_recv(&recv).err());
        assert!(failed.to_string().contains("ncclSystemError"), "{failed}");
        let said = warnings_with(&["test: ", "mlx5_0: the device failed", "this connection uses it and is lost"]);
        assert_eq!(said.len(), 1, "nobody waits for what cannot come back");
        assert!(info_lines().iter().all(|line| !line.contains("is back after")));
        fake.mend("mlx5_1", 1).unwrap();
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn memory_that_was_deregistered_in_use_ends_the_connection_after_a_few_attempts() {
    alone(&with(&[]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        let recv = pair.irecv(&[to.part(7)]);
        pair.release_incoming(to);
        let send = pair.isend(&from, 100_000, 7);
        let failed = until("the send's failure", || {
            // The receiver's calls find its lanes in their error state.
            let _ = pair.test_recv(&recv);
            pair.test_send(&send).err()
        });
        assert!(failed.to_string().contains("ncclRemoteError"), "{failed}");
        let said = warnings_with(&["test: rail 0", "WC error status=10 (remote access error)", "deregMr"]);
        assert_eq!(said.len(), 1, "{:?}", warnings());
        pair.release_outgoing(from);
        pair.close();
        let again = Pair::open(&net, &net, 0);
        exchange(&again);
        again.close();
        finish(&fake, net);
    });
}

#[test]
fn many_connections_over_a_rail_have_one_line_each_second() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pairs: Vec<_> = (0..4).map(|_| Pair::open(&net, &net, 0)).collect();
        pairs.iter().for_each(exchange);
        fake.cut("mlx5_1", 1).unwrap();
        fake.raise("mlx5_1", sys::EVENT_PORT_ERR, 1).unwrap();
        // The ends of this process that dialled, and those that were dialled, have a session each.
        until("both sums", || {
            let sums = warnings_with(&["rails from 10.1.0.1 went down 3 more times within a second"]);
            (sums.len() == 2).then_some(())
        });
        assert_eq!(warnings_with(&["rail 1", "is down"]).len(), 2, "{:?}", warnings());
        pairs.iter().for_each(exchange);
        fake.mend("mlx5_1", 1).unwrap();
        fake.raise("mlx5_1", sys::EVENT_PORT_ACTIVE, 1).unwrap();
        until_back(2);
        until("both sums", || {
            let sums = info_lines().iter().filter(|line| line.contains("came back 3 more times")).count();
            (sums == 2).then_some(())
        });
        pairs.into_iter().for_each(Pair::close);
        finish(&fake, net);
    });
}

#[test]
fn a_rail_whose_new_lanes_hang_does_not_keep_another_one_of_its_peer_from_coming_back() {
    alone(&with(&[FUSED, EVEN, ("RAILWEAVE_FLUSH", "0")]), || {
        // Once all lanes are connected, the kernel takes far longer on one port than a rail needs to be back.
        let (pairs, lanes) = (12, 24);
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_1:{}-1000:2000ms']\n{ROCE}", lanes + 1));
        let (_plugin, net) = start();
        let pairs: Vec<_> = (0..pairs).map(|_| Pair::open(&net, &net, 0)).collect();
        pairs.iter().for_each(exchange);
        assert_eq!(fake.queue_pairs().iter().filter(|pair| pair.device == "mlx5_1").count(), lanes);
        let last = fake.queue_pairs().iter().map(|lane| lane.number).max();
        let is_new = |lane: &QpReport| lane.device == "mlx5_1" && Some(lane.number) > last;
        let new = || fake.queue_pairs().into_iter().filter(is_new).collect::<Vec<_>>();
        fake.raise("mlx5_1", sys::EVENT_PORT_ERR, 1).unwrap();
        until("a lane that hangs, and one that waits for it", || {
            let made = new().iter().filter(|lane| lane.state == sys::QPS_INIT).count();
            (made >= 2).then_some(())
        });
        fake.raise("mlx5_0", sys::EVENT_PORT_ERR, 1).unwrap();
        until("the other rail's failure", || (!warnings_with(&["rail 0", "is down"]).is_empty()).then_some(()));
        fake.raise("mlx5_0", sys::EVENT_PORT_ACTIVE, 1).unwrap();
        pairs.iter().for_each(exchange);
        assert!(new().iter().all(|lane| lane.state == sys::QPS_INIT), "they have waited until it is connected");
        pairs.into_iter().for_each(Pair::close);
        finish(&fake, net);
    });
}
