//! Asynchronous events of adapters: one line each, and if a part has failed for good, the connections that use it are
//! lost.

use railweave_abi::NcclResult;
use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::{FakeVerbs, QpReport};
use railweave_nccl_host::NetError;
use railweave_nccl_host::net::{Comm, NetApi};

use crate::common::{
    Buffer, Pair, accept, alone, connect, control_threads, each, info_lines, listen, noise, start, until, warnings,
    warnings_with,
};
use crate::machine::{FAILS, ONE_PORT, ROCE, finish, machine, strict, with};

/// Returns the number of lines of either level that contain all of these words.
fn lines(words: &[&str]) -> usize {
    let all = warnings().into_iter().chain(info_lines());
    all.filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn an_event_of_a_port_is_one_line_and_connections_go_on() {
    alone(&with(&[FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        type Raise = fn(&FakeVerbs);
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
            raise(&fake);
            until(words[0], || (lines(words) == 1).then_some(()));
            warned += warns;
            assert_eq!(warnings().len(), warned, "{words:?}: {:?}", warnings());
        }
        pair.exchange(1, 100_000);
        pair.close();
        finish(&fake, net);
        assert_eq!((warnings().len(), control_threads()), (warned, 0), "{:?}", warnings());
    });
}

/// Returns the number of events that lines with these words stand for.
fn counted(words: &[&str]) -> usize {
    let is_it = |line: &&String| words.iter().all(|word| line.contains(word));
    let count = |line: &String| {
        let more = line.rsplit_once("; ").and_then(|(_, more)| more.split_once(" more time"));
        more.map_or(1, |(count, _)| count.parse().expect("it is a number"))
    };
    info_lines().iter().filter(is_it).map(count).sum()
}

#[test]
fn many_events_at_once_have_a_few_lines_and_are_all_counted() {
    alone(&with(&[]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        for _ in 0..100 {
            fake.raise("mlx5_0", sys::EVENT_PKEY_CHANGE, 1).unwrap();
            fake.raise("mlx5_1", sys::EVENT_PKEY_CHANGE, 1).unwrap();
        }
        for name in ["mlx5_0", "mlx5_1"] {
            let words = [name, "the port's partition keys changed"];
            until("all of them", || (counted(&words) == 100).then_some(()));
            assert!(lines(&words) <= 8, "{}", lines(&words));
        }
        pair.exchange(1, 1000);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn an_event_of_a_queue_pair_is_one_line_and_its_end_waits_for_nobody() {
    alone(&with(&[FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let number = fake.queue_pairs()[0].number;
        let place = format!("mlx5_0 queue pair {number:#x}");
        // Events that every connection causes are not logged; the one raised after them is.
        for event in [sys::EVENT_COMM_EST, sys::EVENT_SQ_DRAINED, sys::EVENT_QP_LAST_WQE_REACHED] {
            fake.raise_on_queue_pair(number, event).unwrap();
        }
        fake.raise("mlx5_0", sys::EVENT_SM_CHANGE, 1).unwrap();
        until("a line", || (lines(&["new subnet manager"]) == 1).then_some(()));
        assert_eq!(lines(&[&place]), 0);
        pair.exchange(1, 1000);
        assert!(warnings().is_empty());
        fake.raise_on_queue_pair(number, sys::EVENT_QP_FATAL).unwrap();
        until("a line", || (lines(&[&place, "the queue pair failed; look at the kernel log"]) == 1).then_some(()));
        // The connection itself fails when it is used.
        let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
        let failed = until("the connection's failure", || {
            pair.try_irecv(&[to.part(7)], false).err().or_else(|| pair.try_isend(&from, 1000, 7).err())
        });
        assert!(!failed.to_string().is_empty());
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        // An event that was not taken, or not acknowledged, would keep the library's end waiting.
        finish(&fake, net);
        assert!(!fake.complaint().contains("never acknowledged"), "{}", fake.complaint());
    });
}

#[test]
fn events_before_anyone_connects_wait_and_those_after_the_end_concern_nobody() {
    alone(&with(&[]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        fake.raise("mlx5_0", sys::EVENT_SM_CHANGE, 1).unwrap();
        assert_eq!((control_threads(), lines(&["new subnet manager"])), (0, 0));
        let pair = Pair::open(&net, &net, 0);
        until("the line", || (lines(&["new subnet manager"]) == 1).then_some(()));
        pair.close();
        finish(&fake, net);
        assert!(fake.raise("mlx5_0", sys::EVENT_SM_CHANGE, 1).is_err(), "nothing has the device open");
        assert!(warnings().is_empty());
    });
}

/// Two lanes share a receive queue if the adapter has shared ones, so that there is one to fail.
const TWO_LANES: (&str, &str) = ("RAILWEAVE_LANES", "2");

fn code(error: &NetError) -> NcclResult {
    match error {
        NetError::Call { code, .. } => *code,
        other => panic!("{other}"),
    }
}

/// Returns the number of a queue pair on a device: of the receiving end if `receives`, otherwise of the sending end.
fn lane(fake: &FakeVerbs, device: &str, receives: bool) -> u32 {
    // An end that only sends asks for one receive at most.
    let of_end = |pair: &QpReport| (pair.shared_receives || pair.capabilities.max_recv_wr > 1) == receives;
    let pairs = fake.queue_pairs();
    let pair = pairs.iter().find(|pair| pair.device == device && of_end(pair));
    pair.expect("the end has a lane").number
}

#[test]
fn what_failed_ends_the_connections_that_use_it_and_no_others() {
    let cases = [
        (sys::EVENT_QP_FATAL, "the queue pair failed"),
        (sys::EVENT_QP_REQ_ERR, "a request that makes no sense"),
        (sys::EVENT_QP_ACCESS_ERR, "memory that it may not touch"),
        (sys::EVENT_CQ_ERR, "a completion queue"),
        (sys::EVENT_SRQ_ERR, "a receive queue failed"),
        (sys::EVENT_DEVICE_FATAL, "the device failed"),
    ];
    each(
        &cases,
        |_| with(&[TWO_LANES, FAILS]),
        |(event, words)| {
            // Not every adapter has a shared receive queue, to which this event belongs.
            let fake = machine(&if *event == sys::EVENT_SRQ_ERR { strict(ROCE) } else { ROCE.to_owned() });
            let (_plugin, net) = start();
            let [first, other, same] = [0, 1, 0].map(|device| Pair::open(&net, &net, device));
            first.exchange(1, 1000);
            let to = first.incoming(1000);
            // An end that waits has no work in progress, so polling would never report the failure.
            let recv = first.irecv(&[to.part(7)]);
            let number = if *event == sys::EVENT_DEVICE_FATAL { 0 } else { lane(&fake, "mlx5_0", true) };
            fake.raise_only("mlx5_0", *event, number).unwrap();
            let failed = until("the receive's failure", || first.test_recv(&recv).err());
            assert_eq!(code(&failed), NcclResult::SYSTEM_ERROR);
            let said = warnings_with(&["test: ", "mlx5_0", words, "this connection uses it and is lost"]);
            assert_eq!(said.len(), 1, "{:?}", warnings());
            other.exchange(2, 100_000);
            if *event != sys::EVENT_DEVICE_FATAL {
                same.exchange(3, 100_000);
            }
            first.release_incoming(to);
            [first, other, same].into_iter().for_each(Pair::close);
            finish(&fake, net);
            assert!(!fake.complaint().contains("never acknowledged"), "{}", fake.complaint());
        },
    );
}

#[test]
fn what_failed_fails_the_sends_of_its_connections_too() {
    each(
        &[(sys::EVENT_QP_FATAL, false), (sys::EVENT_CQ_ERR, false), (sys::EVENT_DEVICE_FATAL, true)],
        |_| with(&[TWO_LANES, FAILS]),
        |(event, is_device)| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let [pair, other] = [0, 1].map(|device| Pair::open(&net, &net, device));
            let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
            let _recv = pair.irecv(&[to.part(7)]);
            // The adapter takes work and never completes it, like one that is gone.
            fake.cut("mlx5_0", 1).unwrap();
            let send = pair.isend(&from, 1000, 7);
            let number = if *is_device { 0 } else { lane(&fake, "mlx5_0", false) };
            fake.raise_only("mlx5_0", *event, number).unwrap();
            let failed = until("the send's failure", || pair.test_send(&send).err());
            assert_eq!(code(&failed), NcclResult::SYSTEM_ERROR);
            other.exchange(2, 100_000);
            fake.mend("mlx5_0", 1).unwrap();
            pair.release_outgoing(from);
            pair.release_incoming(to);
            [pair, other].into_iter().for_each(Pair::close);
            finish(&fake, net);
        },
    );
}

#[test]
fn with_the_setting_at_0_what_failed_is_a_line_and_nothing_more() {
    alone(&with(&[("NCCL_IB_RETURN_ASYNC_EVENTS", "0")]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let number = fake.queue_pairs()[0].number;
        fake.raise_only("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
        fake.raise_only("mlx5_0", sys::EVENT_QP_FATAL, number).unwrap();
        until("both lines", || (warnings_with(&["mlx5_0", "failed"]).len() == 2).then_some(()));
        let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
        let recv = pair.irecv(&[to.part(7)]);
        for _ in 0..100 {
            assert!(pair.test_recv(&recv).unwrap().is_none());
        }
        let send = pair.isend(&from, 1000, 7);
        pair.finish(&[send], &[recv]);
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        finish(&fake, net);
        assert_eq!(warnings().len(), 2, "{:?}", warnings());
    });
}

#[test]
fn an_only_device_that_fails_while_a_connection_is_set_up_fails_it_and_every_later_one() {
    alone(&with(&[("NCCL_GDR_FLUSH_DISABLE", "1")]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:1-6:ETIMEDOUT']\n{ONE_PORT}"));
        let (_plugin, net) = start();
        let ((listening, mut handle), (later, mut later_handle)) = (listen(&net, 0), listen(&net, 0));
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        until("both ends' lanes", || (fake.open().queue_pairs == 2).then_some(()));
        fake.raise_only("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
        let connect_failed = until("connect's failure", || net.connect(0, &mut handle).err());
        assert!(!connect_failed.to_string().is_empty());
        // Accept has no error and waits for another connection.
        assert!(net.accept(&listening).unwrap().is_none());
        // Either end may be told first, and then tells the other.
        for end in ["connect: ", "accept keeps waiting: "] {
            until(end, || (warnings_with(&[end]).len() == 1).then_some(()));
        }
        assert!(!warnings_with(&[" is left out: ", "mlx5_0: the device failed"]).is_empty(), "{:?}", warnings());
        let failed = until("the later connect's failure", || net.connect(0, &mut later_handle).err());
        assert!(!failed.to_string().is_empty());
        [listening, later].into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        finish(&fake, net);
    });
}

/// Without lanes for flushes, each end of a connection has one queue pair.
const PLAIN: (&str, &str) = ("NCCL_GDR_FLUSH_DISABLE", "1");

/// The failures of a single part, not of its device.
const PIECES: &[i32] = &[sys::EVENT_QP_FATAL, sys::EVENT_CQ_ERR];

#[test]
fn what_fails_in_the_last_step_of_a_set_up_ends_the_connecting_end() {
    each(
        PIECES,
        |_| with(&[PLAIN, FAILS]),
        |event| {
            // The accepting end's lane is connected first.
            let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:2:3000ms']\n{ONE_PORT}"));
            let (_plugin, net) = start();
            let (listening, mut handle) = listen(&net, 0);
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            until("the accepting end's lane", || {
                fake.queue_pairs().iter().any(|pair| pair.state == sys::QPS_RTS).then_some(())
            });
            fake.raise_only("mlx5_0", *event, lane(&fake, "mlx5_0", false)).unwrap();
            // The connection does not come up, or it is lost. Nothing is received, so only the event reports the
            // failure.
            let send = until("connect's answer", || net.connect(0, &mut handle).transpose());
            if let Ok(send) = &send {
                let from = Buffer::new(&net, Comm::Send(send), 8);
                // SAFETY: the buffer stays until the end.
                let isend = || unsafe { net.isend(send, from.start(), 8, 7, from.registration()) };
                until("the failure", || isend().map(|sent| assert!(sent.is_none())).err());
                from.release(&net, Comm::Send(send));
            }
            send.into_iter().for_each(|send| net.close_send(send).unwrap());
            net.close_listen(listening).unwrap();
            finish(&fake, net);
        },
    );
}

#[test]
fn what_fails_in_the_last_step_of_a_set_up_ends_the_accepting_end() {
    each(
        PIECES,
        |_| with(&[PLAIN, FAILS]),
        |event| {
            // While the connecting end's lane is being connected, another set-up is queued, which then delays the
            // set-up thread's work for READY.
            let fake = machine(&format!(
                "faults = ['modify_qp/RTR@mlx5_0:2:1500ms', 'create_qp:3:4000ms']\n\
                {ROCE}"
            ));
            let (_plugin, net) = start();
            let ((listening, mut handle), (other, mut other_handle)) = (listen(&net, 0), listen(&net, 1));
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            until("the accepting end's lane", || {
                fake.queue_pairs().iter().any(|pair| pair.state == sys::QPS_RTS).then_some(())
            });
            let number = lane(&fake, "mlx5_0", true);
            assert!(net.connect(1, &mut other_handle).unwrap().is_none());
            let send = connect(&net, 0, &handle);
            fake.raise_only("mlx5_0", *event, number).unwrap();
            let recv = accept(&net, &listening);
            let to = Buffer::new(&net, Comm::Recv(&recv), 1000);
            // SAFETY: the buffer stays until the end.
            let irecv = || unsafe { net.irecv(&recv, &[to.part(7)], false) };
            if let Ok(request) = until("a receive, or its failure", || irecv().transpose()) {
                // SAFETY: it is not tested again after its error.
                until("the failure", || unsafe { net.test(&request, None) }.err());
            }
            to.release(&net, Comm::Recv(&recv));
            net.close_send(send).unwrap();
            net.close_recv(recv).unwrap();
            [listening, other].into_iter().for_each(|listen| net.close_listen(listen).unwrap());
            finish(&fake, net);
        },
    );
}

#[test]
fn an_event_of_a_queue_pair_that_is_gone_concerns_nobody() {
    alone(&with(&[]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        for round in 0..20 {
            let pair = Pair::open(&net, &net, 0);
            let number = fake.queue_pairs()[0].number;
            pair.exchange(round, 1000);
            fake.raise_only("mlx5_0", sys::EVENT_QP_FATAL, number).unwrap();
            pair.close();
            let next = Pair::open(&net, &net, 0);
            next.exchange(round, 1000);
            next.close();
            until("the end of both", || (fake.open().queue_pairs == 0).then_some(()));
        }
        finish(&fake, net);
    });
}

#[test]
fn a_closed_connections_failure_ends_none_that_is_set_up_meanwhile_or_later() {
    alone(&with(&[("NCCL_GDR_FLUSH_DISABLE", "1")]), || {
        // The closed connection's queue pairs take long to be destroyed, and another connection is in set-up meanwhile.
        let fake = machine(&format!("faults = ['destroy_qp:*:1500ms', 'modify_qp/RTR@mlx5_1:1:1000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let numbers: Vec<u32> = fake.queue_pairs().iter().map(|pair| pair.number).collect();
        pair.exchange(1, 1000);
        pair.close();
        let (listening, mut handle) = listen(&net, 1);
        assert!(net.connect(1, &mut handle).unwrap().is_none());
        until("lanes", || fake.queue_pairs().iter().any(|pair| pair.device == "mlx5_1").then_some(()));
        for number in &numbers {
            // Queue pairs that are already destroyed can no longer fail.
            let _ = fake.raise_only("mlx5_0", sys::EVENT_QP_FATAL, *number);
        }
        let (mut send, mut recv) = (None, None);
        let (send, recv) = until("the connection", || {
            send = send.take().or_else(|| net.connect(1, &mut handle).unwrap());
            recv = recv.take().or_else(|| net.accept(&listening).unwrap());
            if send.is_some() && recv.is_some() { send.take().zip(recv.take()) } else { None }
        });
        net.close_listen(listening).unwrap();
        let slow = Pair { from: &net, to: &net, send, recv };
        slow.exchange(2, 1000);
        let next = Pair::open(&net, &net, 0);
        next.exchange(3, 1000);
        [slow, next].into_iter().for_each(Pair::close);
        finish(&fake, net);
    });
}
