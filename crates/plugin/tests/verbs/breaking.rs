//! Connections that break: one line with the reason, an error for NCCL, and nothing left behind.

use railweave_abi::NcclResult;
use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::FakeVerbs;
use railweave_nccl_host::net::{Comm, NetApi};
use railweave_nccl_host::{LoadedNet, NetError};

use crate::common::{Buffer, Pair, alone, each, listen, noise, start, until, warnings, warnings_with};
use crate::machine::{EVEN, FAILS, FUSED, ONE_PORT, ROCE, finish, machine, strict, with};

fn code<T>(result: Result<T, NetError>) -> NcclResult {
    match result {
        Err(NetError::Call { code, .. }) => code,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the call succeeded"),
    }
}

/// Tests a send until it fails. Returns the code.
fn send_fails(pair: &Pair<'_>, send: &railweave_nccl_host::net::Request) -> NcclResult {
    until("the send's failure", || pair.test_send(send).err().map(|error| code::<()>(Err(error))))
}

fn recv_fails(pair: &Pair<'_>, recv: &railweave_nccl_host::net::Request) -> NcclResult {
    until("the receive's failure", || pair.test_recv(recv).err().map(|error| code::<()>(Err(error))))
}

/// Checks that exactly one line has all of these words, and returns it.
fn said_once(words: &[&str]) -> String {
    let said = warnings_with(words);
    assert_eq!(said.len(), 1, "{words:?}: {:?}", warnings());
    assert!(!said[0].contains('\n'));
    said[0].clone()
}

/// Checks that after a failure a new connection works, and that everything is closed at the end.
fn another_works(fake: &FakeVerbs, net: LoadedNet) {
    let pair = Pair::open(&net, &net, 0);
    pair.exchange(9, 300_000);
    pair.close();
    finish(fake, net);
}

#[test]
fn a_cut_cable_fails_the_connection_with_a_line_that_names_both_ends() {
    alone(&with(&[FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 1000);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        let recvs = [pair.irecv(&[to.part(7)]), pair.irecv(&[to.part(7)]), pair.irecv(&[to.part(7)])];
        fake.cut("mlx5_0", 1).unwrap();
        let sends = [pair.isend(&from, 100_000, 7), pair.isend(&from, 100_000, 7)];
        assert!(pair.test_send(&sends[0]).unwrap().is_none() && pair.test_recv(&recvs[0]).unwrap().is_none());
        fake.time_out("mlx5_0", 1).unwrap();
        assert_eq!(send_fails(&pair, &sends[0]), NcclResult::REMOTE_ERROR);
        let line = said_once(&["WC error status=12"]);
        for word in ["test: rail 0 (mlx5_0 10.0.0.1 - 10.0.0.1)", "lane 0", "vendor code 0x5c", "check connectivity"] {
            assert!(line.contains(word), "{word} is not in {line}");
        }
        // All further calls fail in the same way.
        assert_eq!(code(pair.test_send(&sends[1])), NcclResult::REMOTE_ERROR);
        assert_eq!(code(pair.try_isend(&from, 100_000, 7)), NcclResult::REMOTE_ERROR);
        fake.mend("mlx5_0", 1).unwrap();
        assert_eq!(code(pair.try_isend(&from, 100_000, 7)), NcclResult::REMOTE_ERROR, "a failure is final");
        pair.release_outgoing(from);
        let Pair { send, recv, .. } = pair;
        net.close_send(send).unwrap();
        // The receiver learns of the failure from the sender.
        // SAFETY: the request is not done.
        let error = until("the receive's failure", || unsafe { net.test(&recvs[0], None) }.err());
        assert_eq!(code::<()>(Err(error)), NcclResult::REMOTE_ERROR);
        to.release(&net, Comm::Recv(&recv));
        net.close_recv(recv).unwrap();
        another_works(&fake, net);
    });
}

#[test]
fn a_cable_that_is_mended_in_time_is_not_noticed() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let message = noise(1, 1_000_000);
        let (from, to) = (pair.outgoing(&message), pair.incoming(1_000_000));
        for port in ["mlx5_0", "mlx5_1"] {
            let recv = pair.irecv(&[to.part(7)]);
            fake.cut(port, 1).unwrap();
            let send = pair.isend(&from, 1_000_000, 7);
            for _ in 0..100 {
                assert!(pair.test_send(&send).unwrap().is_none() && pair.test_recv(&recv).unwrap().is_none());
            }
            fake.mend(port, 1).unwrap();
            assert_eq!(pair.finish(&[send], &[recv]).0, [1_000_000]);
            to.assert_holds(&message);
        }
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}

#[test]
fn the_rail_that_failed_is_named() {
    alone(&with(&[FUSED, EVEN, FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        let _recv = pair.irecv(&[to.part(7)]);
        fake.cut("mlx5_1", 1).unwrap();
        let send = pair.isend(&from, 100_000, 7);
        fake.time_out("mlx5_1", 1).unwrap();
        assert_eq!(send_fails(&pair, &send), NcclResult::REMOTE_ERROR);
        said_once(&["WC error status=12", "rail 1 (mlx5_1 10.1.0.1 - 10.1.0.1)"]);
        fake.mend("mlx5_1", 1).unwrap();
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        another_works(&fake, net);
    });
}

#[test]
fn a_receiver_whose_cts_does_not_arrive_fails_too() {
    alone(&with(&[FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
        fake.cut("mlx5_0", 1).unwrap();
        let recv = pair.irecv(&[to.part(7)]);
        assert!(pair.try_isend(&from, 1000, 7).unwrap().is_none(), "there is no receive yet");
        fake.time_out("mlx5_0", 1).unwrap();
        assert_eq!(recv_fails(&pair, &recv), NcclResult::REMOTE_ERROR);
        said_once(&["test: rail 0", "WC error status=12"]);
        assert_eq!(code(pair.try_irecv(&[to.part(7)], false)), NcclResult::REMOTE_ERROR);
        fake.mend("mlx5_0", 1).unwrap();
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        another_works(&fake, net);
    });
}

#[test]
fn memory_deregistered_in_use_is_reported_by_the_side_that_lost_it() {
    alone(&with(&[FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        // The receiver's memory.
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        let _recv = pair.irecv(&[to.part(7)]);
        pair.release_incoming(to);
        let send = pair.isend(&from, 100_000, 7);
        assert_eq!(send_fails(&pair, &send), NcclResult::REMOTE_ERROR);
        said_once(&["WC error status=10 (remote access error)", "deregMr"]);
        // The receiver's adapter reports the failed access there.
        until("the receiver's line", || {
            (warnings_with(&["mlx5_0 queue pair 0x", "memory that it may not touch"]).len() == 1).then_some(())
        });
        pair.release_outgoing(from);
        pair.close();
        // The sender's memory, whose bytes leave only once the cable is mended.
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        let _recv = pair.irecv(&[to.part(7)]);
        fake.cut("mlx5_0", 1).unwrap();
        let send = pair.isend(&from, 100_000, 7);
        pair.release_outgoing(from);
        fake.mend("mlx5_0", 1).unwrap();
        assert_eq!(send_fails(&pair, &send), NcclResult::SYSTEM_ERROR);
        said_once(&["WC error status=4 (local protection error)", "deregMr"]);
        pair.release_incoming(to);
        pair.close();
        another_works(&fake, net);
    });
}

#[test]
fn an_adapter_that_does_not_count_bytes_is_found_out_with_the_setting_to_try() {
    alone(&with(&[]), || {
        let fake = machine("[[device]]\nname = 'old'\nbyte_counts = false\n[[device.port]]\n");
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
        // An empty message has nothing to count.
        assert_eq!(pair.transfer(&from, 0, &to), (0, 0));
        let recv = pair.irecv(&[to.part(7)]);
        let _send = pair.isend(&from, 1000, 7);
        assert_eq!(recv_fails(&pair, &recv), NcclResult::INTERNAL_ERROR);
        said_once(&["rail 0 (old 10.0.0.1 - 10.0.0.1)", "0 bytes", "RAILWEAVE_BYTE_COUNTS=0"]);
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn a_connection_without_a_rail_is_an_error_of_the_host_that_could_not_make_it() {
    // Queues that exceed the adapter's limit, and a peer's queue pair that cannot be created, with and without inline
    // data.
    let cases = [
        (ROCE.replace("[[device.port]]\n", "max_qp_wr = 200\n[[device.port]]\n"), NcclResult::SYSTEM_ERROR),
        (format!("faults = ['create_qp:2-3:ENOMEM']\n{ONE_PORT}"), NcclResult::REMOTE_ERROR),
    ];
    each(
        &cases,
        |_| with(&[]),
        |(description, expected)| {
            let fake = machine(&strict(description));
            let (_plugin, net) = start();
            let (listening, mut handle) = listen(&net, 0);
            let failed = until("connect's failure", || net.connect(0, &mut handle).err());
            assert_eq!(code::<()>(Err(failed)), *expected);
            said_once(&["connect: no rail to ", "the lines before this one name the reason"]);
            net.close_listen(listening).unwrap();
            finish(&fake, net);
        },
    );
}

#[test]
fn an_adapter_that_takes_no_work_fails_the_call_that_brought_it() {
    // The first posts are the packets by which each end tries the rail; then come the CTS of the first receives.
    let cases = [("post_send:3:EIO", "irecv"), ("post_send:4:ENOMEM", "isend"), ("post_recv:1:EIO", "irecv")];
    each(
        &cases,
        |_| with(&[FAILS]),
        |(fault, call)| {
            let fake = machine(&strict(&format!("faults = ['{fault}']\n{ROCE}")));
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
            let failed = until("a failure", || {
                let receives = pair.try_irecv(&[to.part(7)], false);
                let sends = if receives.is_ok() { pair.try_isend(&from, 1000, 7).map(|_| ()) } else { Ok(()) };
                receives.map(|_| ()).and(sends).err()
            });
            assert_eq!(code::<()>(Err(failed)), NcclResult::SYSTEM_ERROR, "{fault}");
            said_once(&[&format!("{call}: rail 0"), "mlx5_0: the adapter accepts no work", "kernel log"]);
            pair.release_outgoing(from);
            pair.release_incoming(to);
            pair.close();
            another_works(&fake, net);
        },
    );
}

#[test]
fn a_rail_that_takes_no_work_fails_the_send_of_which_another_has_its_part_already() {
    alone(&with(&[FUSED, EVEN, FAILS]), || {
        // After the four packets by which both ends try the rails come the CTS of the receive and the first rail's
        // part.
        let fake = machine(&strict(&format!("faults = ['post_send:7:EIO']\n{ROCE}")));
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 1_000_000)), pair.incoming(1_000_000));
        let _recv = pair.irecv(&[to.part(7)]);
        let failed = until("a failure", || pair.try_isend(&from, 1_000_000, 7).map(|_| ()).err());
        assert_eq!(code::<()>(Err(failed)), NcclResult::SYSTEM_ERROR);
        said_once(&["isend: rail 1", "mlx5_1: the adapter accepts no work", "kernel log"]);
        pair.release_outgoing(from);
        pair.release_incoming(to);
        pair.close();
        another_works(&fake, net);
    });
}

#[test]
fn an_adapter_that_is_gone_ends_its_connections_and_no_others() {
    alone(&with(&[FAILS]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pairs = [Pair::open(&net, &net, 0), Pair::open(&net, &net, 1)];
        let (from, to) = (pairs[0].outgoing(&noise(1, 1000)), pairs[0].incoming(1000));
        let _recv = pairs[0].irecv(&[to.part(7)]);
        fake.cut("mlx5_0", 1).unwrap();
        let send = pairs[0].isend(&from, 1000, 7);
        fake.raise("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
        assert_eq!(send_fails(&pairs[0], &send), NcclResult::REMOTE_ERROR);
        said_once(&["WC error status=5 (work request flushed)", "the port's events"]);
        until("the event's line", || (warnings_with(&["mlx5_0: the device failed"]).len() == 1).then_some(()));
        pairs[1].exchange(1, 100_000);
        pairs[0].release_outgoing(from);
        pairs[0].release_incoming(to);
        pairs.into_iter().for_each(Pair::close);
        finish(&fake, net);
    });
}

#[test]
fn memory_that_cannot_be_registered_is_refused_and_the_connection_lives_on() {
    alone(&with(&[("NCCL_IB_PCI_RELAXED_ORDERING", "0"), ("NCCL_GDR_FLUSH_DISABLE", "1")]), || {
        // Set-up registers two regions at each end.
        let fake = machine(&format!("faults = ['reg_mr:5:ENOMEM']\n{ROCE}"));
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let memory = railweave_nccl_host::memory::HostMemory::new(4096);
        // SAFETY: the memory stays until the end.
        let refused = unsafe { net.reg_mr(Comm::Send(&pair.send), memory.start(), memory.bytes()) };
        assert_eq!(code(refused), NcclResult::SYSTEM_ERROR);
        said_once(&["regMr: mlx5_0: 4096 bytes of host memory", "Cannot allocate memory", "ulimit -l"]);
        pair.exchange(1, 100_000);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn a_connection_is_closed_in_any_order_with_work_in_progress() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        for (round, order) in ["lsr", "lrs", "slr", "srl", "rls", "rsl"].into_iter().enumerate() {
            let (_plugin, net) = start();
            let (listen, handle) = listen(&net, 0);
            let (send, recv) = (crate::common::connect(&net, 0, &handle), crate::common::accept(&net, &listen));
            let pair = Pair { from: &net, to: &net, send, recv };
            let (from, to): (Buffer, Buffer) = (pair.outgoing(&noise(1, 500_000)), pair.incoming(500_000));
            // A message that is sent and never tested, one that is done, and a receive without a send.
            pair.transfer(&from, 500_000, &to);
            let _recv = pair.irecv(&[to.part(7)]);
            let _send = pair.isend(&from, 500_000, 7);
            let _more = pair.irecv(&[to.part(7)]);
            if round % 2 == 1 {
                // In every second round the work cannot even leave.
                fake.cut("mlx5_1", 1).unwrap();
            }
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
            finish(&fake, net);
            fake.mend("mlx5_1", 1).unwrap();
        }
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}
