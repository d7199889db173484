//! What adapters say of their own accord: one line each, and nothing else happens.

use railweave_fabric_verbs::sys;
use railweave_verbs_stand_in::StandIn;

use crate::common::{Pair, alone, control_threads, info_lines, noise, start, until, warnings};
use crate::machine::{ROCE, finish, machine, with};

/// Lines of either level that contain all of these words.
fn lines(words: &[&str]) -> usize {
    let all = warnings().into_iter().chain(info_lines());
    all.filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn an_event_of_a_port_is_one_line_and_connections_go_on() {
    alone(&with(&[]), || {
        let stand_in = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        type Raise = fn(&StandIn);
        let events: [(&[&str], usize, Raise); 6] = [
            (&["mlx5_0 port 1: the port is down"], 1, |it| it.set_port_state("mlx5_0", 1, sys::PORT_DOWN).unwrap()),
            (&["mlx5_0 port 1: the port is up"], 0, |it| it.set_port_state("mlx5_0", 1, sys::PORT_ACTIVE).unwrap()),
            (&["mlx5_1 port 1: the port is down"], 1, |it| it.set_port_state("mlx5_1", 1, sys::PORT_DOWN).unwrap()),
            (&["mlx5_0 port 1: the port's GID table changed"], 0, |it| {
                it.set_gid("mlx5_0", 1, 9, Some([7; 16])).unwrap();
            }),
            (&["mlx5_0 port 1: the port has a new subnet manager"], 0, |it| {
                it.raise("mlx5_0", sys::EVENT_SM_CHANGE, 1).unwrap();
            }),
            (&["mlx5_1 port 1: the port's LID changed"], 1, |it| it.raise("mlx5_1", sys::EVENT_LID_CHANGE, 1).unwrap()),
        ];
        let mut warned = 0;
        for (words, warns, raise) in events {
            raise(&stand_in);
            until(words[0], || (lines(words) == 1).then_some(()));
            warned += warns;
            assert_eq!(warnings().len(), warned, "{words:?}: {:?}", warnings());
        }
        pair.exchange(1, 100_000);
        pair.close();
        finish(&stand_in, net);
        assert_eq!((warnings().len(), control_threads()), (warned, 0), "{:?}", warnings());
    });
}

#[test]
fn many_events_at_once_are_all_told() {
    alone(&with(&[]), || {
        let stand_in = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        for _ in 0..100 {
            stand_in.raise("mlx5_0", sys::EVENT_PKEY_CHANGE, 1).unwrap();
            stand_in.raise("mlx5_1", sys::EVENT_PKEY_CHANGE, 1).unwrap();
        }
        for name in ["mlx5_0", "mlx5_1"] {
            let words = [name, "the port's partition keys changed"];
            until("all lines", || (lines(&words) == 100).then_some(()));
        }
        pair.exchange(1, 1000);
        pair.close();
        finish(&stand_in, net);
    });
}

#[test]
fn an_event_of_a_queue_pair_is_one_line_and_its_end_waits_for_nobody() {
    alone(&with(&[]), || {
        let stand_in = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let number = stand_in.queue_pairs()[0].number;
        let place = format!("mlx5_0 queue pair {number:#x}");
        stand_in.raise_on_queue_pair(number, sys::EVENT_COMM_EST).unwrap();
        until("a line", || (lines(&[&place, "no consequence"]) == 1).then_some(()));
        pair.exchange(1, 1000);
        assert!(warnings().is_empty());
        stand_in.raise_on_queue_pair(number, sys::EVENT_QP_FATAL).unwrap();
        until("a line", || {
            (lines(&[&place, "the queue pair failed; its connection reports the cause"]) == 1).then_some(())
        });
        assert_eq!(warnings().len(), 1);
        // The connection itself fails when it is used, and only then.
        let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
        let failed = until("the connection's failure", || {
            pair.try_irecv(&[to.part(7)], false).err().or_else(|| pair.try_isend(&from, 1000, 7).err())
        });
        assert!(!failed.to_string().is_empty());
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        // An event that was not taken, or not acknowledged, would keep the library's end waiting.
        finish(&stand_in, net);
        assert!(!stand_in.complaint().contains("never acknowledged"), "{}", stand_in.complaint());
    });
}

#[test]
fn events_before_anyone_connects_wait_and_those_after_the_end_concern_nobody() {
    alone(&with(&[]), || {
        let stand_in = machine(ROCE);
        let (_plugin, net) = start();
        stand_in.raise("mlx5_0", sys::EVENT_SM_CHANGE, 1).unwrap();
        assert_eq!((control_threads(), lines(&["new subnet manager"])), (0, 0));
        let pair = Pair::open(&net, &net, 0);
        until("the line", || (lines(&["new subnet manager"]) == 1).then_some(()));
        pair.close();
        finish(&stand_in, net);
        assert!(stand_in.raise("mlx5_0", sys::EVENT_SM_CHANGE, 1).is_err(), "nothing has the device open");
        assert!(warnings().is_empty());
    });
}
