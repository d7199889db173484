//! Slow set-ups: steps that the kernel cannot do yet are retried, and nothing else in the process waits for them.
#![allow(clippy::disallowed_types, reason = "tests are not the data path")]

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use railweave_fabric_verbs::sys::{EVENT_QP_FATAL, QPS_ERR, QPS_RTS};
use railweave_fake_ibverbs::{FakeVerbs, QpReport};
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Comm, Handle, ListenComm, NetApi};

use crate::common::{
    Buffer, Pair, accept, alone, connect, descriptors, each, listen, noise, start, until, until_within, warnings,
    warnings_with,
};
use crate::machine::{EVEN, FUSED, ONE_PORT, ROCE, finish, machine, with};

/// Without lanes for flushes, each end of a connection has one queue pair.
pub(super) const PLAIN: (&str, &str) = ("NCCL_GDR_FLUSH_DISABLE", "1");

/// The two ends of connections that are being set up.
struct Setups {
    listens: Vec<ListenComm>,
    handles: Vec<Handle>,
}

impl Setups {
    fn begin(net: &LoadedNet, device: i32, count: usize) -> Self {
        let (listens, handles) = (0..count).map(|_| listen(net, device)).unzip();
        let mut setups = Self { listens, handles };
        for handle in &mut setups.handles {
            assert!(net.connect(device, handle).unwrap().is_none());
        }
        setups
    }

    /// Waits until all are up, and closes them. Returns their number.
    fn finish(mut self, net: &LoadedNet, device: i32) -> usize {
        let count = self.listens.len();
        let (mut sends, mut recvs): (Vec<_>, Vec<_>) = (0..count).map(|_| (None, None)).unzip();
        until_within(Duration::from_secs(60), "all connections", || {
            for index in 0..count {
                sends[index] = sends[index].take().or_else(|| net.connect(device, &mut self.handles[index]).unwrap());
                recvs[index] = recvs[index].take().or_else(|| net.accept(&self.listens[index]).unwrap());
            }
            thread::sleep(Duration::from_millis(1));
            (sends.iter().all(Option::is_some) && recvs.iter().all(Option::is_some)).then_some(())
        });
        self.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        for (index, (send, recv)) in sends.into_iter().flatten().zip(recvs.into_iter().flatten()).enumerate() {
            let pair = Pair { from: net, to: net, send, recv };
            if index % 10 == 0 {
                pair.exchange(index as u64, 10_000);
            }
            pair.close();
        }
        count
    }

    /// Returns the error of the first connection's connect. Accept has no error and waits for another connection.
    fn error(&mut self, net: &LoadedNet, device: i32) -> String {
        let error = until("connect's failure", || net.connect(device, &mut self.handles[0]).err());
        assert!(net.accept(&self.listens[0]).unwrap().is_none());
        error.to_string()
    }
}

/// Waits until a device has at least this many queue pairs.
fn until_lanes_are_made(fake: &FakeVerbs, device: &str, count: usize) {
    until("queue pairs", || {
        (fake.queue_pairs().iter().filter(|pair| pair.device == device).count() >= count).then_some(())
    });
}

#[test]
fn a_change_that_times_out_a_few_times_costs_nothing_but_time() {
    let cases = ["modify_qp/RTR:1-4:ETIMEDOUT", "modify_qp/RTS:1-4:ETIMEDOUT", "modify_qp/INIT:1-4:ETIMEDOUT"];
    each(
        &cases,
        |_| with(&[("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20")]),
        |fault| {
            let fake = machine(&format!("faults = ['{fault}']\n{ROCE}"));
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(1, 100_000);
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty(), "{:?}", warnings());
        },
    );
}

#[test]
fn a_change_that_times_out_forever_fails_at_the_deadline_with_its_reason_at_both_ends() {
    alone(&with(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "3")]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:*:ETIMEDOUT']\n{ONE_PORT}"));
        let (_plugin, net) = start();
        let mut setups = Setups::begin(&net, 0, 1);
        setups.error(&net, 0);
        for end in ["connect: ", "accept keeps waiting: "] {
            // Either end may be told first.
            let said = until(end, || warnings().into_iter().find(|line| line.contains(end)));
            for word in ["Handshake timeout", "QP transition failed", "to RTR", "times", "Connection timed out"] {
                assert!(said.contains(word), "{word} is not in {said}");
            }
        }
        setups.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        finish(&fake, net);
    });
}

#[test]
fn a_rail_that_times_out_forever_is_left_out_and_the_other_carries_on() {
    alone(&with(&[FUSED, EVEN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "3")]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_1:*:ETIMEDOUT']\n{ROCE}"));
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        assert!(warnings().iter().any(|line| line.contains("rail 1") && line.contains("Handshake timeout: QP tran")));
        pair.close();
        finish(&fake, net);
    });
}

/// Settings, the calls that fail, and true if the connection comes up all the same.
type Retries = (&'static [(&'static str, &'static str)], &'static str, bool);

#[test]
fn nccls_settings_take_effect() {
    const QUICK: (&str, &str) = ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1");
    let cases: [Retries; 4] = [
        (&[QUICK, ("NCCL_IB_MQP_RETRY_CNT", "2")], "1-2:ETIMEDOUT", true),
        (&[QUICK, ("NCCL_IB_MQP_RETRY_CNT", "1")], "1-2:ETIMEDOUT", false),
        (&[QUICK], "1:EINVAL", false),
        (&[QUICK, ("NCCL_IB_MQP_RETRY_ALL", "1")], "1-5:EINVAL", true),
    ];
    each(
        &cases,
        |(settings, ..)| with(settings),
        |(_, calls, comes_up)| {
            let fake = machine(&format!("faults = ['modify_qp/RTR:{calls}']\n{ONE_PORT}"));
            let (_plugin, net) = start();
            let mut setups = Setups::begin(&net, 0, 1);
            if *comes_up {
                setups.finish(&net, 0);
            } else {
                setups.error(&net, 0);
                setups.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
            }
            finish(&fake, net);
        },
    );
}

#[test]
fn others_are_set_up_while_one_waits_for_its_next_try() {
    alone(&with(&[PLAIN]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:*:ETIMEDOUT']\n{ROCE}"));
        let (_plugin, net) = start();
        let mut waiting = Setups::begin(&net, 0, 3);
        until_lanes_are_made(&fake, "mlx5_0", 6);
        for _ in 0..3 {
            let pair = Pair::open(&net, &net, 1);
            pair.exchange(1, 100_000);
            pair.close();
        }
        for (handle, listen) in waiting.handles.iter_mut().zip(&waiting.listens) {
            assert!(net.connect(0, handle).unwrap().is_none() && net.accept(listen).unwrap().is_none());
        }
        waiting.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        // Connections that were never up are freed too.
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn a_hundred_behind_a_slow_one_come_up_though_they_wait_for_longer_than_a_handshake_has() {
    alone(&with(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "5")]), || {
        // Two seconds, then eight for a hundred connections with two ends each.
        let fake = machine(&format!("faults = ['modify_qp/RTR:1:2000ms', 'modify_qp/RTR:*:40ms']\n{ROCE}"));
        let (_plugin, net) = start();
        assert_eq!(Setups::begin(&net, 0, 101).finish(&net, 0), 101);
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn offers_that_wait_for_their_turn_come_up_though_they_wait_for_longer_than_a_handshake_has() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "4")]), || {
        // Peers may have a quarter as many set-ups at once as there are descriptors.
        let few = libc::rlimit { rlim_cur: 96, rlim_max: 96 };
        // SAFETY: the call reads a variable of this function (setrlimit(2)).
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        // Eight seconds for a hundred connections with two ends each.
        let fake = machine(&format!("faults = ['modify_qp/RTR:*:40ms']\n{ROCE}"));
        let (_plugin, net) = start();
        assert_eq!(Setups::begin(&net, 0, 100).finish(&net, 0), 100);
        finish(&fake, net);
        let said = warnings();
        assert!(said.len() == 1 && said[0].contains("only 96 files may be open"), "{said:?}");
    });
}

#[test]
fn peers_that_cannot_be_reached_do_not_keep_others_from_coming_up() {
    alone(&with(&[PLAIN, ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1"), ("NCCL_IB_MQP_RETRY_CNT", "1000")]), || {
        // The first round is quick. Then each of forty accepting ends occupies the set-up thread for a second, again
        // and again.
        let fake = machine(&format!(
            "faults = ['modify_qp/RTR@mlx5_0:41-1000:1000ms', 'modify_qp/RTR@mlx5_0:*:ETIMEDOUT']\n{ROCE}"
        ));
        let (_plugin, net) = start();
        let hopeless = Setups::begin(&net, 0, 40);
        until_lanes_are_made(&fake, "mlx5_0", 80);
        let begin = Instant::now();
        let pair = Pair::open(&net, &net, 1);
        // The set-up thread does four steps for this connection. Each waits for at most one change of state, not for a
        // round of forty.
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(35), "it took {took:?}");
        pair.exchange(1, 100_000);
        pair.close();
        hopeless.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        finish(&fake, net);
    });
}

#[test]
fn a_kernel_that_never_comes_back_fails_what_waits_for_it() {
    alone(&with(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "1")]), || {
        machine(&format!("faults = ['modify_qp/RTR:1:600000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let mut setups = Setups::begin(&net, 0, 1);
        setups.error(&net, 0);
        let told =
            |line: &String| line.contains("a call of the kernel that sets up a connection has not returned for 1 s");
        assert!(warnings().iter().any(told), "{:?}", warnings());
        setups.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        net.finalize().unwrap();
        let left =
            |line: &String| line.contains("sets up a connection and has not returned for 5 s; set-ups left to it: ");
        assert!(warnings().iter().any(left), "{:?}", warnings());
    });
}

#[test]
fn nobody_waits_for_a_connection_that_is_being_closed() {
    alone(&with(&[PLAIN]), || {
        // The delay is far longer than the set-up of the second connection.
        let fake = machine(&format!("faults = ['destroy_qp@mlx5_0:1:15000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 1000);
        pair.close();
        let pair = Pair::open(&net, &net, 0);
        let lanes = fake.open().queue_pairs;
        assert!(lanes > 2, "the old lanes are still being destroyed, but only {lanes} lanes are there");
        pair.exchange(2, 1000);
        pair.close();
        // This may take longer than finalize waits for a kernel that hangs.
        until("the end of all lanes", || (fake.open().queue_pairs == 0).then_some(()));
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn finalize_waits_for_a_slow_end_while_it_makes_progress() {
    alone(&with(&[PLAIN]), || {
        // Twelve ends take more than seven seconds in all.
        let fake = machine(&format!("faults = ['destroy_qp:*:600ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let pairs: Vec<_> = (0..6).map(|_| Pair::open(&net, &net, 0)).collect();
        pairs.into_iter().for_each(Pair::close);
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn a_closed_end_is_over_once_its_work_is_done() {
    alone(&with(&[PLAIN]), || {
        let fake = machine(ROCE);
        // Finalize waits for three seconds if a closed end still has work.
        let quick = (0..3).any(|_| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&noise(1, 10_000)), pair.incoming(10_000));
            let _recv = pair.irecv(&[to.part(7)]);
            // The send is not tested, so that its completion is left to the closed end.
            let _send = pair.isend(&from, 10_000, 7);
            pair.release_outgoing(from);
            pair.release_incoming(to);
            pair.close();
            let begin = Instant::now();
            finish(&fake, net);
            begin.elapsed() < Duration::from_secs(2)
        });
        assert!(quick, "it waited for work that was done");
    });
}

#[test]
fn time_in_which_the_process_is_stopped_does_not_count_in_finalize() {
    alone(&with(&[PLAIN]), || {
        let fake = machine(&format!("faults = ['destroy_qp:1:8000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        Pair::open(&net, &net, 0).close();
        // The kernel needs 8 s from here, and the process is stopped for 6 of them.
        let is_being_freed = |lane: &QpReport| lane.state == QPS_ERR;
        until("an end is being freed", || fake.queue_pairs().iter().any(is_being_freed).then_some(()));
        let script = "sleep 1; kill -STOP $0; sleep 6; kill -CONT $0";
        let stopping = Command::new("sh").args(["-c", script, &std::process::id().to_string()]).spawn();
        finish(&fake, net);
        assert!(stopping.expect("a shell").wait().expect("it ends").success());
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

/// Waits until the accepting end's lane is connected, which happens before the connecting end's is. Returns the number
/// of its queue pair.
fn until_accepting_lane(fake: &FakeVerbs) -> u32 {
    let connected = |pair: &QpReport| pair.state == QPS_RTS && pair.capabilities.max_recv_wr > 1;
    until("the accepting end's lane", || fake.queue_pairs().into_iter().find(connected)).number
}

#[test]
fn a_refusal_that_comes_in_the_last_step_of_the_connecting_end_ends_it() {
    alone(&with(&[PLAIN]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:2:3000ms']\n{ONE_PORT}"));
        let (_plugin, net) = start();
        let (listening, mut handle) = listen(&net, 0);
        let before = descriptors();
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        let lane = until_accepting_lane(&fake);
        // LANES must be on its way; otherwise the refusal would arrive before the last step.
        thread::sleep(Duration::from_millis(300));
        fake.raise_only("mlx5_0", EVENT_QP_FATAL, lane).unwrap();
        // Either connect fails, or it returns a connection that fails.
        let send = until("connect's answer", || net.connect(0, &mut handle).transpose());
        if let Ok(send) = &send {
            let from = Buffer::new(&net, Comm::Send(send), 8);
            // SAFETY: the buffer stays until the end.
            let isend = || unsafe { net.isend(send, from.start(), 8, 7, from.registration()) };
            until("the failure", || isend().map(|sent| assert!(sent.is_none())).err());
            from.release(&net, Comm::Send(send));
        }
        send.into_iter().for_each(|send| net.close_send(send).unwrap());
        // The accepting end was never up and sends no BYE. No BYE is awaited, so the opener ends the session.
        until_within(Duration::from_secs(40), "the end of the session", || (descriptors() == before).then_some(()));
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn a_close_that_comes_in_the_last_step_of_the_accepting_end_is_not_forgotten() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "4")]), || {
        // While the connecting end's lane is being connected, another set-up is queued, which then delays the set-up
        // thread's work for READY.
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:2:1000ms', 'create_qp:3:2000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let ((listening, mut handle), (other, mut other_handle)) = (listen(&net, 0), listen(&net, 1));
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        until_accepting_lane(&fake);
        assert!(net.connect(1, &mut other_handle).unwrap().is_none());
        // Of two connections that were not accepted and whose peers have left, one is closed two handshake timeouts
        // later.
        (0..2).for_each(|_| net.close_send(connect(&net, 0, &handle)).unwrap());
        Pair { from: &net, to: &net, send: connect(&net, 1, &other_handle), recv: accept(&net, &other) }.close();
        until("the line", || (!warnings_with(&["nobody had accepted was closed"]).is_empty()).then_some(()));
        net.close_recv(accept(&net, &listening)).unwrap();
        [listening, other].into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        finish(&fake, net);
    });
}

#[test]
fn time_in_the_queue_counts_for_neither_end() {
    let settings = [PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "4"), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20")];
    alone(&with(&settings), || {
        // Twelve seconds for four connections, in steps shorter than a handshake timeout; then a connection whose steps
        // are retried.
        let fake = machine(&format!(
            "faults = ['modify_qp/RTR@mlx5_0:*:1500ms', 'modify_qp/RTR@mlx5_1:1-3:ETIMEDOUT']\n\
                {ROCE}"
        ));
        let (_plugin, net) = start();
        let busy = Setups::begin(&net, 0, 4);
        until_lanes_are_made(&fake, "mlx5_0", 5);
        let behind = Setups::begin(&net, 1, 1);
        thread::scope(|scope| {
            let busy = scope.spawn(|| busy.finish(&net, 0));
            assert_eq!((behind.finish(&net, 1), busy.join().unwrap()), (1, 4));
        });
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn a_retry_after_a_long_queue_has_its_whole_time_again() {
    let settings = [PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "4"), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "500")];
    alone(&with(&settings), || {
        // The change of state fails. Its retry, half a second later, must wait for twelve seconds of other work, and
        // fails too.
        let fake = machine(&format!(
            "faults = ['modify_qp/RTR@mlx5_1:1-2:ETIMEDOUT', 'modify_qp/RTR@mlx5_0:*:1500ms']\n\
                {ROCE}"
        ));
        let (_plugin, net) = start();
        let first = Setups::begin(&net, 1, 1);
        until_lanes_are_made(&fake, "mlx5_1", 1);
        let busy = Setups::begin(&net, 0, 4);
        thread::scope(|scope| {
            let busy = scope.spawn(|| busy.finish(&net, 0));
            assert_eq!((first.finish(&net, 1), busy.join().unwrap()), (1, 4));
        });
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn idle_time_before_a_slow_call_does_not_count_as_time_in_the_kernel() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "4")]), || {
        let fake = machine(&format!("faults = ['create_qp:1:1500ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        // The rest must be longer than the handshake timeout, after which a kernel counts as stuck.
        thread::sleep(Duration::from_secs(5));
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listening));
        net.close_listen(listening).unwrap();
        let pair = Pair { from: &net, to: &net, send, recv };
        pair.exchange(1, 100_000);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn an_end_that_makes_no_progress_is_given_up_and_the_rest_is_counted_in_a_line() {
    alone(&with(&[PLAIN]), || {
        let fake = machine(&format!("faults = ['destroy_qp:3:600000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let pairs: Vec<_> = (0..3).map(|_| Pair::open(&net, &net, 0)).collect();
        pairs.into_iter().for_each(Pair::close);
        net.finalize().unwrap();
        let said = warnings();
        assert_eq!(said.len(), 1, "{said:?}");
        for word in ["for 5 s", "ends of connections and of rails left to it: 1", "kernel log"] {
            assert!(said[0].contains(word), "{word} is not in {said:?}");
        }
        assert_eq!(fake.open().queue_pairs, 1, "it holds up no other");
    });
}

#[test]
fn a_connect_that_is_given_up_ends_both_ends_and_what_is_used_stays() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2")]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let kept = Pair::open(&net, &net, 0);
        let own = fake.open().queue_pairs;
        let mut setups = Setups::begin(&net, 1, 1);
        // The connecting end's lane is created first, and has only one receive.
        until("the end of the connecting end, and the other one alone", || {
            let lanes: Vec<_> = fake.queue_pairs().into_iter().filter(|lane| lane.device == "mlx5_1").collect();
            matches!(&lanes[..], [lane] if lane.capabilities.max_recv_wr > 1).then_some(())
        });
        // Another call of connect returns an error. Accept may come late: it returns the connection, whose peer is
        // gone.
        let recv = until("accept", || net.accept(&setups.listens[0]).expect("accept has no error"));
        net.close_recv(recv).expect("it can be closed");
        until("the end of the connection that was not asked for", || (fake.open().queue_pairs == own).then_some(()));
        let connect = setups.error(&net, 1);
        assert!(connect.contains("ncclSystemError"), "{connect}");
        assert_eq!(warnings_with(&["connect was not called again for 4 s"]).len(), 1, "{:?}", warnings());
        setups.listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        kept.exchange(1, 100_000);
        kept.close();
        finish(&fake, net);
    });
}

#[test]
fn accept_may_come_many_handshake_times_after_connect_is_done() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2")]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let (listening, mut handle) = listen(&net, 0);
        let send = until("connect", || net.connect(0, &mut handle).unwrap());
        // Accept is called only after five handshake timeouts.
        thread::sleep(Duration::from_secs(10));
        let recv = until("accept", || net.accept(&listening).unwrap());
        net.close_listen(listening).unwrap();
        let pair = Pair { from: &net, to: &net, send, recv };
        pair.exchange(1, 100_000);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}
