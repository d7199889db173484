//! Over TCP, a promise that an accepted call makes to the peer is kept without a later call: the receiving thread posts
//! or tests, and then makes no call, calls elsewhere, ends, closes, or finalizes.

mod common;

use common::{ONE_RAIL, Pair, TWO_RAILS, accept, alone, connect, control_threads, each, listen, noise};
use common::{start, until, warnings, with_peer};
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Comm, Handle, MAX_PARTS, NetApi, RecvComm, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for two rails.
const BYTES: usize = 100_000;

/// The receiving thread's behaviour after the first of its two receives is done.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// It makes no call.
    Nothing,
    /// It only sends on another connection, whose receiver has posted nothing.
    SendsElsewhere,
    /// The thread ends.
    Ends,
    /// It closes the connection.
    Closes,
}

type Settings = &'static [(&'static str, &'static str)];

/// No heartbeat and no deadline wakes the control thread in time: the thread that leaves a debt must do so.
const UNWOKEN: Settings = &[("RAILWEAVE_PEER_TIMEOUT", "3600"), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "3600")];

/// Posts two receives on a connection and tests the first until it is done.
fn take_one_of_two(net: &LoadedNet, recv: &RecvComm, buffers: &[common::Buffer; 2], posted: impl FnOnce()) {
    let mut requests = Vec::new();
    for buffer in buffers {
        // SAFETY: the buffers stay until the connection is closed.
        let irecv = || unsafe { net.irecv(recv, &[buffer.part(7)], false) }.expect("irecv succeeds");
        requests.push(until("room for a receive", irecv));
    }
    posted();
    let mut sizes = [-1; MAX_PARTS];
    // SAFETY: the request is not tested again once it is done.
    until("the first receive", || unsafe { net.test(&requests[0], Some(&mut sizes)) }.unwrap().then_some(()));
    assert_eq!(sizes[0], BYTES as i32);
}

#[test]
fn a_receive_that_was_tested_is_acknowledged_whatever_its_thread_does_then() {
    let mut cases: Vec<(Settings, usize, Then)> = Vec::new();
    for rails in [&[ONE_RAIL] as Settings, &[TWO_RAILS]] {
        // A thread may leave debts on more than one connection.
        for connections in [1, 2] {
            let thens = [Then::Nothing, Then::SendsElsewhere, Then::Ends, Then::Closes];
            cases.extend(thens.map(|then| (rails, connections, then)));
        }
    }
    each(
        &cases,
        |(rails, ..)| [rails, UNWOKEN].concat(),
        |(_, connections, then)| {
            let (_plugin, net) = start();
            let other = Pair::open(&net, &net, 0);
            let from_other = other.outgoing(&[1; 8]);
            let (mut sending, mut receiving) = (Vec::new(), Vec::new());
            for _ in 0..*connections {
                let pair = Pair::open(&net, &net, 0);
                let from = pair.outgoing(&noise(1, BYTES));
                let to = [pair.incoming(BYTES), pair.incoming(BYTES)];
                sending.push((pair.send, from));
                receiving.push((pair.recv, to));
            }
            let ((tell_posted, posted), (tell_done, done), (tell_over, over)) = (channel(), channel(), channel::<()>());
            thread::scope(|scope| {
                let (net, other, from_other) = (&net, &other, &from_other);
                scope.spawn(move || {
                    for (recv, to) in &receiving {
                        take_one_of_two(net, recv, to, || tell_posted.send(()).unwrap());
                    }
                    if let Then::Ends = then {
                        // The connections outlive this thread, as NCCL's outlive its progress thread.
                        std::mem::forget(receiving);
                        return tell_done.send(()).unwrap();
                    }
                    if let Then::SendsElsewhere = then {
                        assert!(other.try_isend(from_other, 8, 1).unwrap().is_none());
                    }
                    if let Then::Closes = then {
                        receiving.drain(..).for_each(|(recv, _)| net.close_recv(recv).unwrap());
                    }
                    tell_done.send(()).unwrap();
                    let _ = over.recv();
                    receiving.into_iter().for_each(|(recv, _)| net.close_recv(recv).unwrap());
                });
                let mut sends = Vec::new();
                for (send, from) in &sending {
                    posted.recv().unwrap();
                    // SAFETY: the buffer stays until the connection is closed.
                    let isend = || unsafe { net.isend(send, from.start(), BYTES, 7, from.registration()) };
                    sends.push(until("a receive for this send", || isend().expect("isend succeeds")));
                }
                done.recv().unwrap();
                // From here on only the sender calls.
                for request in &sends {
                    // SAFETY: the request is not tested again once it is done.
                    until("the acknowledgement", || unsafe { net.test(request, None) }.unwrap().then_some(()));
                }
                drop(tell_over);
            });
            sending.into_iter().for_each(|(send, _)| net.close_send(send).unwrap());
            other.close();
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}

#[test]
fn receives_that_are_posted_before_a_silence_are_known_to_the_sender() {
    each(
        &[&[ONE_RAIL] as Settings, &[TWO_RAILS]],
        |rails| rails.to_vec(),
        |_| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&[1; 8]), pair.incoming(8));
            let recvs: Vec<Request> = thread::scope(|scope| {
                scope.spawn(|| (0..3).map(|_| pair.irecv(&[to.part(7)])).collect()).join().expect("it posts and ends")
            });
            let sends: Vec<Request> = (0..3).map(|_| pair.isend(&from, 8, 7)).collect();
            pair.finish(&sends, &recvs);
            pair.close();
        },
    );
}

/// `finalize` of an aborted communicator: its connections are not closed.
#[test]
fn what_is_owed_at_the_last_finalize_is_sent() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let mut handle = Handle::default();
            peer.link.read_exact(&mut handle.0).unwrap();
            let send = connect(&net, 0, &handle);
            let from = common::Buffer::holding(&net, Comm::Send(&send), &noise(1, BYTES));
            // SAFETY: the buffer stays until the connection is closed.
            let isend = || unsafe { net.isend(&send, from.start(), BYTES, 7, from.registration()) };
            let request = until("the peer's receive", || isend().unwrap());
            peer.link.write_all(&[1]).unwrap();
            peer.link.read_exact(&mut [0]).unwrap();
            // SAFETY: the request is not tested again once it is done.
            until("the acknowledgement", || unsafe { net.test(&request, None) }.unwrap().then_some(()));
            drop(peer.link.shutdown(std::net::Shutdown::Both));
            peer.wait();
        },
        |mut link: UnixStream| {
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            link.write_all(&handle.0).unwrap();
            let recv = accept(&net, &listening);
            let to = [(); 2].map(|()| common::Buffer::new(&net, Comm::Recv(&recv), BYTES));
            take_one_of_two(&net, &recv, &to, || {});
            net.finalize().expect("finalize succeeds");
            link.read_exact(&mut [0]).unwrap();
            link.write_all(&[1]).unwrap();
            // The process and its sockets stay until the sender has seen the completion.
            let _ = link.read(&mut [0]);
        },
    );
}

#[test]
fn what_is_owed_is_sent_within_a_millisecond() {
    each(
        &[&[ONE_RAIL] as Settings, &[TWO_RAILS]],
        |rails| rails.to_vec(),
        |_| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&[1; 8]), pair.incoming(8));
            let mut ahead = pair.irecv(&[to.part(7)]);
            let mut times: Vec<Duration> = (0..200).map(|_| pair.owed(&from, &to, &mut ahead)).collect();
            // The fifth shortest time counts: other programs use the processors too, but they can only lengthen a time.
            times.sort_unstable();
            assert!(times[4] <= Duration::from_millis(1), "{times:?}");
            pair.close();
        },
    );
}

/// Returns the control thread's folder in /proc.
fn control_task() -> PathBuf {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let mut tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
    let name = |task: &PathBuf| std::fs::read_to_string(task.join("comm"));
    let is_control = |task: &PathBuf| name(task).is_ok_and(|name| name.trim() == "railweave-ctl");
    tasks.find(is_control).expect("there is a control thread")
}

/// Returns the control thread's processor time so far: a clock that stands still while others have the processor.
fn control_time() -> Duration {
    static CLOCK: OnceLock<libc::clockid_t> = OnceLock::new();
    let clock = *CLOCK.get_or_init(|| {
        let task = control_task();
        let number = task.file_name().and_then(|name| name.to_str()?.parse::<libc::clockid_t>().ok());
        // The id of a thread's CPU-time clock, encoded as in the kernel's include/linux/posix-timers.h.
        (!number.expect("a thread's number")) << 3 | 6
    });
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to a variable of this function (clock_gettime(2)).
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut now) }, 0);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
fn what_is_owed_does_not_wait_for_many_connections_that_come_up_and_end() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&[1; 8]), pair.incoming(8));
        let mut ahead = pair.irecv(&[to.part(7)]);
        let mut longest = || {
            let mut longest = Duration::ZERO;
            thread::scope(|scope| {
                let crowd = scope.spawn(|| come_and_go(&net, 400));
                loop {
                    longest = longest.max(pair.owed_by(control_time, &from, &to, &mut ahead));
                    if crowd.is_finished() {
                        break longest;
                    }
                }
            })
        };
        // One good round is enough: while other programs have this thread's processor, the control thread goes on with
        // other work, and its clock counts that.
        let rounds: Vec<Duration> =
            (0..30).map(|_| longest()).take_while(|it| *it > Duration::from_millis(5)).collect();
        assert!(rounds.len() < 30, "{rounds:?}");
        pair.close();
    });
}

/// Sets up `count` connections at the same time, then closes all of them.
fn come_and_go(net: &LoadedNet, count: usize) {
    let (listens, mut handles): (Vec<_>, Vec<_>) = (0..count).map(|_| listen(net, 0)).unzip();
    let mut begin = |handle: &mut Handle| net.connect(0, handle).expect("connect begins");
    // Every connect begins before the first is waited for.
    let mut sends: Vec<_> = handles.iter_mut().map(&mut begin).collect();
    for (send, handle) in sends.iter_mut().zip(&handles) {
        send.get_or_insert_with(|| connect(net, 0, handle));
    }
    let recvs: Vec<_> = listens.iter().map(|listen| accept(net, listen)).collect();
    sends.into_iter().flatten().for_each(|send| net.close_send(send).expect("the sending end is closed"));
    recvs.into_iter().for_each(|recv| net.close_recv(recv).expect("the receiving end is closed"));
    listens.into_iter().for_each(|listen| net.close_listen(listen).expect("the listen is closed"));
}

/// Returns the number of times that the control thread has gone to sleep.
fn control_sleeps() -> u64 {
    let status = std::fs::read_to_string(control_task().join("status")).expect("the control thread runs");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("Linux counts them").trim().parse().expect("a number")
}

#[test]
fn the_control_thread_is_not_woken_for_each_message_and_sleeps_when_nothing_is_owed() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&[1; 8]), pair.incoming(8));
        assert_eq!(control_threads(), 1);
        let mut recvs: std::collections::VecDeque<Request> = (0..8).map(|_| pair.irecv(&[to.part(7)])).collect();
        // Messages are sent in portions, and the fastest counts: while a machine is slow, the control thread looks
        // between any two messages.
        let (portions, messages) = (200, 100);
        let counted = (0..portions).map(|_| {
            let (begin, before) = (Instant::now(), control_sleeps());
            for _ in 0..messages {
                // Like NCCL: waits for the oldest, and posts another one behind it.
                let send = pair.isend(&from, 8, 7);
                pair.finish(&[send], &[recvs.pop_front().unwrap()]);
                recvs.push_back(pair.irecv(&[to.part(7)]));
            }
            (begin.elapsed(), control_sleeps() - before)
        });
        let (elapsed, sleeps) = counted.min().expect("some portions");
        // The control thread looks every 400 us. After 12 looks without a debt it may forget the connection; the next
        // debt then wakes it early.
        let looks = elapsed.as_micros() as u64 / 400;
        assert!(sleeps <= 2 * looks + 10, "{sleeps} in {elapsed:?} for {messages} messages");
        until("the control thread to sleep", || {
            let before = control_sleeps();
            thread::sleep(Duration::from_millis(50));
            (control_sleeps() == before).then_some(())
        });
        pair.close();
    });
}
