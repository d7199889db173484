//! From init to finalize: connections come and go, and leave nothing behind.

mod common;

use common::{
    Buffer, ONE_RAIL, Pair, Random, Stranger, TWO_RAILS, accept, alone, connect, control_threads, descriptors, each,
    listen, load, noise,
};
use common::{start, until, warnings, warnings_with};
use railweave_nccl_host::net::{Comm, NetApi, Part};
use railweave_transport::Message;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_listener_serves_several_connections() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (listen, handle) = listen(&net, 0);
        let sends: Vec<_> = (0..5).map(|_| connect(&net, 0, &handle)).collect();
        for (seed, send) in sends.into_iter().enumerate() {
            let pair = Pair { from: &net, to: &net, send, recv: accept(&net, &listen) };
            pair.exchange(seed as u64, 50_000);
            pair.close();
        }
        net.close_listen(listen).unwrap();
        assert!(warnings().is_empty());
    });
}

#[test]
fn connect_needs_no_poll_of_accept_and_accept_none_of_connect() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (listen, mut handle) = listen(&net, 0);
        for _ in 0..1000 {
            assert!(net.accept(&listen).unwrap().is_none());
        }
        // One call begins the set-up; the rest happens while only accept is polled.
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        let recv = accept(&net, &listen);
        let send = connect(&net, 0, &handle);
        Pair { from: &net, to: &net, send, recv }.exchange(1, 20_000);
        // The other way round: connect is done before accept is called again.
        let send = connect(&net, 0, &handle);
        Pair { from: &net, to: &net, send, recv: accept(&net, &listen) }.exchange(2, 20_000);
    });
}

#[test]
fn sixty_four_connections_at_once_come_up_and_carry_messages() {
    alone(&[TWO_RAILS], || {
        let (plugin, net) = start();
        let before = descriptors();
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let plugin = &plugin;
                scope.spawn(move || {
                    let net = plugin.init(rank, None).unwrap();
                    let (listens, mut handles): (Vec<_>, Vec<_>) = (0..16).map(|_| listen(&net, 0)).unzip();
                    let (mut sends, mut recvs): (Vec<_>, Vec<_>) = (0..16).map(|_| (None, None)).unzip();
                    until("16 connections", || {
                        for index in 0..16 {
                            sends[index] = sends[index].take().or_else(|| net.connect(0, &mut handles[index]).unwrap());
                            recvs[index] = recvs[index].take().or_else(|| net.accept(&listens[index]).unwrap());
                        }
                        sends.iter().all(Option::is_some).then_some(())?;
                        recvs.iter().all(Option::is_some).then_some(())
                    });
                    listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
                    let pairs = sends.into_iter().flatten().zip(recvs.into_iter().flatten());
                    let pairs: Vec<_> = pairs.map(|(send, recv)| Pair { from: &net, to: &net, send, recv }).collect();
                    for (index, pair) in pairs.iter().enumerate() {
                        pair.exchange(rank * 100 + index as u64, 30_000 + index);
                    }
                    pairs.into_iter().for_each(Pair::close);
                });
            }
        });
        drop(net);
        assert_eq!((descriptors(), control_threads()), (before, 0));
        assert!(warnings().is_empty());
    });
}

#[test]
fn the_three_objects_close_in_any_order_with_messages_untested() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let before = descriptors();
        for order in ["lsr", "lrs", "slr", "srl", "rls", "rsl"] {
            let (listen, handle) = listen(&net, 0);
            let pair = Pair { from: &net, to: &net, send: connect(&net, 0, &handle), recv: accept(&net, &listen) };
            let (from, to) = (pair.outgoing(&noise(1, 500_000)), pair.incoming(500_000));
            // A message that is sent and never tested, and a receive without a send.
            let _recv = pair.irecv(&[to.part(7)]);
            let _send = pair.isend(&from, 500_000, 7);
            let _more = pair.irecv(&[to.part(7)]);
            pair.release_outgoing(from);
            pair.release_incoming(to);
            let Pair { send, recv, .. } = pair;
            let (mut listen, mut send, mut recv) = (Some(listen), Some(send), Some(recv));
            for object in order.chars() {
                match object {
                    'l' => net.close_listen(listen.take().unwrap()).unwrap(),
                    's' => net.close_send(send.take().unwrap()).unwrap(),
                    _ => net.close_recv(recv.take().unwrap()).unwrap(),
                }
            }
            let next = Pair::open(&net, &net, 0);
            next.exchange(2, 1000);
            next.close();
        }
        net.finalize().unwrap();
        assert_eq!((descriptors(), control_threads(), warnings()), (before, 0, vec![]));
    });
}

#[test]
fn what_is_closed_without_use_leaves_nothing() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let before = descriptors();
        // A listen without a connect, one with a connect that is never accepted, and an idle connection.
        net.close_listen(listen(&net, 0).0).unwrap();
        let (unaccepted, handle) = listen(&net, 0);
        let send = connect(&net, 0, &handle);
        net.close_listen(unaccepted).unwrap();
        net.close_send(send).unwrap();
        Pair::open(&net, &net, 0).close();
        net.finalize().unwrap();
        assert_eq!((descriptors(), control_threads(), warnings()), (before, 0, vec![]));
    });
}

#[test]
fn finalize_frees_all_and_init_works_again() {
    each(
        &[TWO_RAILS, ONE_RAIL],
        |rails| vec![*rails],
        |_| {
            let plugin = load(None);
            let before = descriptors();
            for round in 0..4 {
                let (first, second) = (plugin.init(1, None).unwrap(), plugin.init(2, None).unwrap());
                let pairs = [Pair::open(&first, &second, 0), Pair::open(&second, &first, 0)];
                pairs.iter().for_each(|pair| pair.exchange(round, 200_000));
                assert_eq!(control_threads(), 1);
                pairs.into_iter().for_each(Pair::close);
                first.finalize().unwrap();
                assert_eq!(control_threads(), 1, "the second communicator needs it still");
                second.finalize().unwrap();
                assert_eq!((descriptors(), control_threads(), warnings()), (before, 0, vec![]));
            }
        },
    );
}

#[test]
fn without_listen_or_connect_there_is_no_control_thread() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        assert_eq!((net.devices().unwrap(), control_threads()), (1, 0));
        let (listen, _) = listen(&net, 0);
        // The thread names itself, so the name appears later.
        until("the control thread", || (control_threads() == 1).then_some(()));
        net.close_listen(listen).unwrap();
        net.finalize().unwrap();
        assert_eq!(control_threads(), 0);
    });
}

#[test]
fn finalize_ends_what_an_aborted_communicator_left_open() {
    alone(&[TWO_RAILS], || {
        let (plugin, net) = start();
        // If NCCL aborts while it connects, it forgets the listen and the connect in progress.
        let (_forgotten, _) = listen(&net, 0);
        let (_connected, mut handle) = listen(&net, 0);
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        net.finalize().unwrap();
        assert_eq!(control_threads(), 0);
        let net = plugin.init(2, None).unwrap();
        Pair::open(&net, &net, 0).exchange(1, 1000);
    });
}

#[test]
fn a_connect_to_a_closed_listener_says_so() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (closed, mut handle) = listen(&net, 0);
        net.close_listen(closed).unwrap();
        let error = until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some));
        assert!(error.to_string().contains("ncclRemoteError"), "{error}");
        assert_eq!((warnings().len(), warnings_with(&["connect", "there is no such listener"]).len()), (1, 1));
        Pair::open(&net, &net, 0).exchange(1, 1000);
    });
}

#[test]
fn closing_at_once_after_the_last_test_loses_nothing_of_the_peer() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        for round in 0..50 {
            let pair = Pair::open(&net, &net, 0);
            let message = noise(round, 400_000);
            let (from, to) = (pair.outgoing(&message), pair.incoming(400_000));
            let recv = pair.irecv(&[to.part(0)]);
            let send = pair.isend(&from, 400_000, 0);
            // The receiver is done first, and closes; the sender must still learn that everything arrived.
            let (mut received, mut sent) = (None, None);
            until("the receive", || {
                sent = sent.or_else(|| pair.test_send(&send).unwrap());
                received = received.or_else(|| pair.test_recv(&recv).unwrap());
                received
            });
            to.assert_holds(&message);
            pair.release_incoming(to);
            let Pair { send: comm, recv, .. } = pair;
            net.close_recv(recv).unwrap();
            let mut sizes = [0; 8];
            // SAFETY: the buffer stays, and the request is not done yet.
            until("the send", || sent.or_else(|| unsafe { net.test(&send, Some(&mut sizes)) }.unwrap().then_some(0)));
            net.close_send(comm).unwrap();
        }
        assert!(warnings().is_empty());
    });
}

#[test]
fn memory_is_registered_and_given_back_while_messages_move() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (pair, over) = (&pair, &over);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    while !over.load(Ordering::Relaxed) {
                        let bytes = 1 + random.below(300_000);
                        let (from, to) = (pair.outgoing(&[1; 64]), pair.incoming(bytes));
                        pair.release_outgoing(from);
                        pair.release_incoming(to);
                    }
                });
            }
            for seed in 0..200 {
                pair.exchange(seed, 100_000);
            }
            over.store(true, Ordering::Relaxed);
        });
        pair.close();
        assert!(warnings().is_empty());
    });
}

#[test]
fn without_any_setting_a_connection_comes_up() {
    alone(&[], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 1_000_000);
        pair.close();
        assert!(warnings().is_empty());
    });
}

#[test]
fn an_end_that_waits_for_a_closed_peer_is_told_so() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let Pair { send, recv, .. } = Pair::open(&net, &net, 0);
        let to = Buffer::new(&net, Comm::Recv(&recv), 1000);
        // SAFETY: the buffer stays until the end.
        let waiting = unsafe { net.irecv(&recv, &[to.part(7)], false) }.unwrap().unwrap();
        net.close_send(send).unwrap();
        // SAFETY: the request is not done.
        let error =
            until("the receive's failure", || unsafe { net.test(&waiting, None) }.map(|_| None).unwrap_or_else(Some));
        assert!(error.to_string().contains("ncclRemoteError"), "{error}");
        assert_eq!(warnings_with(&["test: ", "closed"]).len(), 1, "{:?}", warnings());
        net.close_recv(recv).unwrap();

        let Pair { send, recv, .. } = Pair::open(&net, &net, 0);
        let from = Buffer::holding(&net, Comm::Send(&send), &noise(1, 1000));
        net.close_recv(recv).unwrap();
        // SAFETY: the buffer stays until the end.
        let isend = || unsafe { net.isend(&send, from.start(), 1000, 7, from.registration()) };
        let error = until("the send's failure", || isend().map(|_| None).unwrap_or_else(Some));
        assert!(error.to_string().contains("ncclRemoteError"), "{error}");
        net.close_send(send).unwrap();
        net.finalize().unwrap();
    });
}

#[test]
fn what_came_before_the_peer_closed_is_received_however_late() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
        let requests = [pair.irecv(&[to.part(7)]), pair.irecv(&[to.part(7)])];
        let mut sends = vec![pair.isend(&from, 1000, 7), pair.isend(&from, 1000, 7)];
        // Testing the first receive places both messages; the second receive stays untested until long after the peer
        // has closed.
        let mut first = Some(&requests[0]);
        until("the first receive and both sends", || {
            first = first.filter(|first| pair.test_recv(first).unwrap().is_none());
            sends.retain(|send| pair.test_send(send).unwrap().is_none());
            (first.is_none() && sends.is_empty()).then_some(())
        });
        let Pair { send, recv, .. } = pair;
        net.close_send(send).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        // SAFETY: the request is not done.
        assert!(unsafe { net.test(&requests[1], None) }.unwrap(), "it was there before the peer closed");
        net.close_recv(recv).unwrap();
        net.finalize().unwrap();
    });
}

#[test]
fn what_arrives_for_a_closed_connection_changes_no_memory_that_others_have_registered() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (closed, open) = (Pair::open(&net, &net, 0), Pair::open(&net, &net, 0));
        let message = noise(1, 100_000);
        let (from, to) = (closed.outgoing(&message), open.incoming(message.len()));
        // SAFETY: the buffer stays until the end; the same memory has the same keys for both connections.
        let registration = unsafe { net.reg_mr(Comm::Recv(&closed.recv), to.start(), to.bytes()) }.unwrap();
        let _recv = closed.irecv(&[Part { registration, ..to.part(7) }]);
        // SAFETY: registered with this end above. NCCL deregisters memory before it closes, whatever is in progress.
        unsafe { net.dereg_mr(Comm::Recv(&closed.recv), registration) }.unwrap();
        let Pair { send, recv, .. } = closed;
        net.close_recv(recv).unwrap();
        // The sender has not noticed the close, or has one more second.
        // SAFETY: the buffer stays until the send is done.
        let isend = || unsafe { net.isend(&send, from.start(), message.len(), 7, from.registration()) };
        let request = until("the receive", || isend().unwrap());
        // SAFETY: the request is not tested again once it is done.
        until("the end of the send", || unsafe { net.test(&request, None) }.unwrap_or(true).then_some(()));
        assert!(to.contents().iter().all(|byte| *byte == to.contents()[0]), "it was written to");
        from.release(&net, Comm::Send(&send));
        net.close_send(send).unwrap();
        open.release_incoming(to);
        open.exchange(2, 1000);
        open.close();
    });
}

#[test]
fn finalize_waits_no_longer_than_closed_connections_need() {
    alone(&[TWO_RAILS], || {
        let plugin = load(None);
        // finalize waits for three seconds for a peer that does not close.
        let quick = (0..3).any(|_| {
            let net = plugin.init(1, None).unwrap();
            Pair::open(&net, &net, 0).close();
            let begin = Instant::now();
            net.finalize().unwrap();
            begin.elapsed() < Duration::from_secs(2)
        });
        assert!(quick, "it waited although no peer needed it to");
    });
}

#[test]
fn finalize_waits_until_the_peers_of_closed_connections_have_closed_them_too() {
    alone(&[ONE_RAIL], || {
        // Repeated, because a machine may stall for a second.
        let waited = (0..3).any(|_| {
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            let mut stranger = Stranger::greeted(&handle);
            let token = stranger.offer(1);
            let _lane = stranger.go_on(1, token);
            net.close_recv(accept(&net, &listening)).unwrap();
            net.close_listen(listening).unwrap();
            let closes = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                let closed = Instant::now();
                stranger.send(1, Message::Bye(None));
                closed
            });
            net.finalize().unwrap();
            let over = Instant::now();
            closes.join().expect("the session is there until its peer has closed") < over
        });
        assert!(waited, "the peer was left before it closed");
    });
}
