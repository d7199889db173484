//! Life in an application's process: forks, signals, few descriptors, no writable disk, other process ids, sudden
//! exits, and libraries that are unloaded and loaded again.

mod common;

use common::{
    Buffer, ONE_RAIL, Pair, Stranger, TWO_RAILS, accept, alone, connect, control_threads, descriptors, each,
    in_namespace, info_lines, listen, load, noise, start, until, until_freed, warnings, warnings_with, with_peer,
};
use railweave_nccl_host::net::{Comm, Handle, NetApi};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Forks a child that runs `act` and exits without destructors. Returns true if `act` succeeded.
fn in_a_child(act: impl FnOnce() -> bool) -> bool {
    // SAFETY: the C library keeps its allocator usable in the child. The child then uses only this library and the
    // plugin, as the test intends, and exits without running the parent's destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if well { 0 } else { 1 }) };
    }
    assert!(child > 0, "a child was forked");
    let mut status = 0;
    until("the child's end", || {
        // SAFETY: the process id is from fork, and the status is a variable of this function.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        (ended == child).then_some(())
    });
    status == 0
}

#[test]
fn a_forked_child_begins_afresh_and_its_parent_goes_on_while_messages_move() {
    alone(&[TWO_RAILS], || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (pair, over) = (&pair, &over);
            let mover = scope.spawn(move || {
                let mut seed = 0;
                while !over.load(Ordering::Relaxed) {
                    pair.exchange(seed, 50_000);
                    seed += 1;
                }
            });
            for round in 0..10 {
                assert!(
                    in_a_child(|| {
                        // The parent's context and control thread do not exist here.
                        let before = control_threads();
                        let net = plugin.init(7, None).unwrap();
                        let own = Pair::open(&net, &net, 0);
                        own.exchange(round, 30_000);
                        own.close();
                        let during = control_threads();
                        net.finalize().unwrap();
                        (before, during, control_threads()) == (0, 1, 0)
                    }),
                    "child {round}"
                );
            }
            over.store(true, Ordering::Relaxed);
            mover.join().unwrap();
        });
        pair.exchange(1, 50_000);
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn what_a_child_does_with_its_parents_connections_changes_nothing_for_the_parent() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (listening, mut handle) = listen(&net, 0);
        for round in 0..5 {
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(round, 50_000);
            let Pair { send, recv, .. } = &pair;
            let (send, recv) = (send.pointer(), recv.pointer());
            let well = in_a_child(|| {
                let wrap = |pointer| std::ptr::NonNull::new(pointer).unwrap();
                // The child must not connect with the parent's context: connect fails.
                let refused = net.connect(0, &mut handle).is_err() || net.connect(0, &mut handle).is_err();
                // The child closes only its own copies.
                net.close_send(railweave_nccl_host::net::SendComm::new(wrap(send))).unwrap();
                net.close_recv(railweave_nccl_host::net::RecvComm::new(wrap(recv))).unwrap();
                refused
            });
            assert!(well, "child {round}");
            pair.exchange(round + 100, 50_000);
            pair.close();
        }
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listening));
        Pair { from: &net, to: &net, send, recv }.exchange(1, 1000);
        net.finalize().unwrap();
        assert_eq!((control_threads(), warnings()), (0, vec![]));
    });
}

#[test]
fn the_calls_of_a_child_fail_at_once_whatever_its_parents_threads_were_doing() {
    alone(&[TWO_RAILS, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        // This address never answers.
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut unanswered = Stranger::handle(silent.local_addr().unwrap());
        let pair = Pair::open(&net, &net, 0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (net, over, listening, pair) = (&net, &over, &listening, &pair);
            let mut polled = unanswered.clone();
            let poller = scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert!(net.connect(0, &mut polled).unwrap().is_none());
                }
            });
            let accepter = scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert!(net.accept(listening).unwrap().is_none());
                }
            });
            let registrar = scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    pair.release_outgoing(pair.outgoing(&[1; 1000]));
                }
            });
            let all_well = (0..50).all(|_| {
                in_a_child(|| {
                    let mut byte = 0u8;
                    let data = std::ptr::NonNull::from(&mut byte);
                    // SAFETY: the call is refused and does not use the memory.
                    let register = unsafe { net.reg_mr(Comm::Send(&pair.send), data, 1) };
                    let listen = net.listen(0, &mut Handle::default());
                    let (connect, accept) = (net.connect(0, &mut unanswered), net.accept(listening));
                    register.is_err() && listen.is_err() && connect.is_err() && accept.is_err()
                })
            });
            over.store(true, Ordering::Relaxed);
            [poller, accepter, registrar].into_iter().for_each(|thread| thread.join().unwrap());
            assert!(all_well);
        });
        pair.close();
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listening));
        Pair { from: &net, to: &net, send, recv }.exchange(1, 1000);
    });
}

/// A thread tests one of two receives, so that it owes an acknowledgement, and forks at once. The child waits until the
/// parent has sent this acknowledgement and the next, and then uses connections of its own; each of its calls would
/// send a debt that it inherited.
#[test]
fn a_child_that_is_forked_while_something_is_owed_sends_nothing_of_it() {
    const BYTES: usize = 100_000;
    alone(&[TWO_RAILS], || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let from = pair.outgoing(&noise(1, BYTES));
        let to = pair.incoming(BYTES);
        for round in 0..20 {
            let ((tell_posted, posted), (give, taken)) = (channel(), channel());
            let (mut gate, mut open) = io::pipe().expect("a pipe can be made");
            thread::scope(|scope| {
                let (pair, plugin, to) = (&pair, &plugin, &to);
                scope.spawn(move || {
                    let recvs = [pair.irecv(&[to.part(7)]), pair.irecv(&[to.part(7)])];
                    tell_posted.send(()).unwrap();
                    until("the first receive", || pair.test_recv(&recvs[0]).unwrap());
                    give.send(recvs).unwrap();
                    let well = in_a_child(|| {
                        let _ = gate.read(&mut [0]);
                        let net = plugin.init(7, None).unwrap();
                        let own = Pair::open(&net, &net, 0);
                        own.exchange(round, 30_000);
                        own.close();
                        net.finalize().is_ok()
                    });
                    assert!(well, "child {round}");
                });
                posted.recv().unwrap();
                let first = pair.isend(&from, BYTES, 7);
                assert_eq!(until("the first acknowledgement", || pair.test_send(&first).unwrap()), BYTES as i32);
                let [_, recv] = taken.recv().unwrap();
                let second = pair.isend(&from, BYTES, 7);
                pair.finish(&[second], &[recv]);
                open.write_all(&[1]).expect("the child reads");
            });
            pair.exchange(round, 1000);
        }
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn an_unloaded_library_is_loaded_again_and_works_in_the_oldest_and_the_newest_version() {
    each(
        &[6, 12],
        |_| vec![TWO_RAILS],
        |version| {
            let nothing = descriptors();
            for round in 0..3 {
                let plugin = load(Some(*version));
                let net = plugin.init(round, None).unwrap();
                let pair = Pair::open(&net, &net, 0);
                pair.exchange(round, 100_000);
                pair.close();
                net.finalize().unwrap();
                drop(plugin);
                // Before v11 there is no finalize: the thread stays, with its port on both rails' addresses, its poll
                // and its waker, and the next round uses it again.
                let kept = usize::from(*version < 11);
                assert_eq!(control_threads(), kept);
                until_freed("sessions without connections close", || descriptors() == nothing + 4 * kept);
            }
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}

fn send_handle(link: &mut UnixStream, handle: &Handle) {
    link.write_all(&handle.0).unwrap();
}

fn hear_handle(link: &mut UnixStream) -> Handle {
    let mut handle = Handle::default();
    link.read_exact(&mut handle.0).unwrap();
    handle
}

#[test]
fn a_process_that_exits_without_finalize_ends_well_and_at_once() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            send_handle(&mut peer.link, &handle);
            let recv = accept(&net, &listening);
            let to = Buffer::new(&net, Comm::Recv(&recv), 1000);
            // SAFETY: the buffer stays until the connection is closed.
            let request = unsafe { net.irecv(&recv, &[to.part(1)], false) }.unwrap().unwrap();
            peer.wait();
            // SAFETY: as above; the request is not done.
            let error =
                until("the end to show", || unsafe { net.test(&request, None) }.map(|_| None).unwrap_or_else(Some));
            assert!(error.to_string().contains("ncclRemoteError"), "{error}");
            assert!(!warnings_with(&["test: ", "(pid "]).is_empty(), "{:?}", warnings());
        },
        |mut link| {
            let (plugin, net) = start();
            let send = connect(&net, 0, &hear_handle(&mut link));
            // Threads are running, and one connect never ends.
            let (_listening, mut handle) = listen(&net, 0);
            let _ = net.connect(0, &mut handle);
            std::mem::forget((plugin, net, send));
            // This runs the handlers and destructors of an ordinary exit.
            std::process::exit(0);
        },
    );
}

/// The number of runs of the handler.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_disturb_no_call_and_the_control_thread_takes_none() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        // SAFETY: the handler only counts; without SA_RESTART calls are interrupted.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count_signal as *const () as usize;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
            let every = libc::timeval { tv_sec: 0, tv_usec: 500 };
            let timer = libc::itimerval { it_interval: every, it_value: every };
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        }
        for seed in 0..30 {
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(seed, 1_000_000);
            pair.close();
        }
        assert!(SIGNALS.load(Ordering::Relaxed) > 0, "signals came");
        let statuses = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("status"));
        let control =
            statuses.map(|path| fs::read_to_string(path).unwrap()).find(|text| text.contains("railweave-ctl"));
        let blocked = control.unwrap().lines().find_map(|line| Some(line.strip_prefix("SigBlk:")?.trim().to_owned()));
        let blocked = u64::from_str_radix(&blocked.unwrap(), 16).unwrap();
        for signal in [libc::SIGALRM, libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGCHLD] {
            assert!(blocked & 1 << (signal - 1) != 0, "signal {signal}: {blocked:#x}");
        }
        // SAFETY: the set is initialised, and the kernel writes it.
        let ours = unsafe {
            let mut ours: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut ours);
            libc::sigismember(&raw const ours, libc::SIGALRM)
        };
        assert_eq!(ours, 0, "this thread's own signals are as they were");
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn a_peer_that_vanishes_while_it_is_sent_to_kills_nobody_with_sigpipe() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            // SAFETY: no handler is involved. This is the default of C programs.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            send_handle(&mut peer.link, &handle);
            let send = connect(&net, 0, &hear_handle(&mut peer.link));
            let recv = accept(&net, &listening);
            let from = Buffer::holding(&net, Comm::Send(&send), &noise(1, 8 << 20));
            // SAFETY: the buffer stays until the connection is closed.
            let isend = || unsafe { net.isend(&send, from.start(), from.bytes(), 1, from.registration()) };
            let request = until("the peer's receive", || isend().unwrap());
            peer.kill();
            // SAFETY: as above; the request is not done.
            let test = || unsafe { net.test(&request, None) };
            until("the failure", || test().map(|_| None).unwrap_or_else(Some));
            net.close_send(send).unwrap();
            net.close_recv(recv).unwrap();
            net.finalize().unwrap();
        },
        |mut link| {
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            let send = connect(&net, 0, &hear_handle(&mut link));
            send_handle(&mut link, &handle);
            let recv = accept(&net, &listening);
            let to = Buffer::new(&net, Comm::Recv(&recv), 8 << 20);
            // SAFETY: the buffer stays until this process is killed.
            let _request = unsafe { net.irecv(&recv, &[to.part(1)], false) }.unwrap();
            let _ = link.read(&mut [0]);
            net.close_send(send).unwrap();
        },
    );
}

/// Sets this process's limits of open files.
fn limit_files(soft: u64, hard: u64) {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the call reads a variable of this function (setrlimit(2)).
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

#[test]
fn a_low_soft_limit_of_files_is_raised_and_a_low_hard_one_is_named() {
    let limits = [(64, 5000, 0), (64, 100, 1)];
    each(
        &limits,
        |_| vec![TWO_RAILS],
        |(soft, hard, lines)| {
            limit_files(*soft, *hard);
            let (_plugin, net) = start();
            Pair::open(&net, &net, 0).exchange(1, 1000);
            let raised = format!("was raised from {soft} to {hard}");
            assert_eq!(info_lines().iter().filter(|line| line.contains(&raised)).count(), 1);
            let words = [&*format!("only {hard} files may be open"), "ulimit -Hn", "4096"];
            assert_eq!((warnings().len(), warnings_with(&words).len()), (*lines, *lines));
        },
    );
}

#[test]
fn a_process_without_descriptors_says_so_and_goes_on_when_it_has_some() {
    alone(&[ONE_RAIL], || {
        limit_files(200, 200);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let spare: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        let (listening, mut handle) = listen(&net, 0);
        let failed = until("connect", || match net.connect(0, &mut handle) {
            Ok(None) => None,
            Ok(Some(_)) => Some(false),
            Err(_) => Some(true),
        });
        assert!(failed, "there is no descriptor for a lane");
        let hints = warnings_with(&["may open no more files", "ulimit -Hn"]);
        assert!(!hints.is_empty(), "{:?}", warnings());
        pair.exchange(1, 100_000);
        drop(spare);
        net.close_listen(listening).unwrap();
        let again = Pair::open(&net, &net, 0);
        again.exchange(2, 1000);
        pair.exchange(3, 1000);
    });
}

#[test]
fn strangers_cannot_take_every_descriptor_nor_keep_a_peer_out() {
    alone(&[TWO_RAILS], || {
        limit_files(400, 400);
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let port = railweave_transport::Handle::decode(&handle.0).unwrap().control_port;
        let before = descriptors();
        // More newcomers than a quarter of 400 on the plugin's side. Their other ends are in this process too and take
        // as many descriptors.
        let held: Vec<_> = (0..140).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        thread::sleep(Duration::from_millis(300));
        assert!(descriptors() <= before + held.len() + 101, "{} files", descriptors());
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listening));
        Pair { from: &net, to: &net, send, recv }.exchange(1, 1000);
        assert!(!warnings_with(&["has not said what it is", "more peers wait"]).is_empty(), "{:?}", warnings());
        drop(held);
    });
}

#[test]
fn without_telemetry_nothing_is_ever_written_to_a_file() {
    alone(&[TWO_RAILS, ("RAILWEAVE_RUN_DIR", "none")], || {
        std::env::set_current_dir("/proc").unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call reads a variable of this function. The limit's signal, SIGXFSZ, would end this process at
        // the first write to a file.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) }, 0);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        let links =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        // Only sockets, pipes, the kernel's own objects and this listing are open, and nothing on a disk.
        let on_disk =
            |path: &std::path::PathBuf| path.is_absolute() && !path.starts_with("/proc") && !path.starts_with("/dev");
        assert_eq!(links.filter(on_disk).collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
        pair.close();
        net.finalize().unwrap();
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn a_limit_of_the_size_of_files_costs_the_telemetry_and_not_the_job() {
    alone(&[TWO_RAILS], || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) }, 0);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        until("a warning", || warnings().pop());
        pair.close();
        net.finalize().unwrap();
        assert!(warnings().len() == 1 && warnings()[0].contains("no telemetry for now"), "{:?}", warnings());
    });
}

#[test]
fn a_child_with_its_parents_process_id_begins_afresh_too() {
    alone(&[TWO_RAILS], || {
        in_namespace("--pid", || {
            assert_eq!(std::process::id(), 1);
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(1, 50_000);
            // SAFETY: the call affects only processes forked afterwards.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0, "{}", io::Error::last_os_error());
            let well = in_a_child(|| {
                let net = plugin.init(2, None).unwrap();
                let own = Pair::open(&net, &net, 0);
                own.exchange(2, 50_000);
                own.close();
                net.finalize().unwrap();
                std::process::id() == 1
            });
            assert!(well, "the child had no state of its own");
            pair.exchange(3, 50_000);
            pair.close();
            assert_eq!(warnings(), Vec::<String>::new());
        });
    });
}

/// The variable that is set in the process with its own process namespace.
const INSIDE: &str = "RAILWEAVE_TEST_INSIDE";

#[test]
fn processes_in_other_process_namespaces_understand_one_another() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let mut there = [0];
            peer.link.read_exact(&mut there).unwrap();
            if there == [0] {
                eprintln!("skipped: this user may not create process namespaces (unshare)");
                return;
            }
            let (listening, handle) = listen(&net, 0);
            send_handle(&mut peer.link, &handle);
            let send = connect(&net, 0, &hear_handle(&mut peer.link));
            let recv = accept(&net, &listening);
            // One connection each way, each with a message of its own.
            let message = noise(1, 300_000);
            let from = Buffer::holding(&net, Comm::Send(&send), &message);
            let to = Buffer::new(&net, Comm::Recv(&recv), message.len());
            pass(&net, (&send, &from), (&recv, &to));
            to.assert_holds(&noise(2, 300_000));
            assert!(info_lines().iter().any(|line| line.contains("(pid 1)")), "the peer's own number");
            peer.wait();
            assert_eq!(warnings(), Vec::<String>::new());
        },
        |mut link| {
            if std::env::var_os(INSIDE).is_none() {
                let mut unshare = Command::new("unshare");
                unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
                let may = unshare.args(["true"]).status().is_ok_and(|status| status.success());
                if !may {
                    return link.write_all(&[0]).unwrap();
                }
                let mut unshare = Command::new("unshare");
                unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
                unshare.arg(std::env::current_exe().unwrap()).args(std::env::args_os().skip(1)).env(INSIDE, "1");
                // The new process inherits the link as its standard input.
                let status = unshare.status().unwrap();
                assert!(status.success(), "{status}");
                return;
            }
            assert_eq!(std::process::id(), 1);
            link.write_all(&[1]).unwrap();
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            let theirs = hear_handle(&mut link);
            send_handle(&mut link, &handle);
            let send = connect(&net, 0, &theirs);
            let recv = accept(&net, &listening);
            let from = Buffer::holding(&net, Comm::Send(&send), &noise(2, 300_000));
            let to = Buffer::new(&net, Comm::Recv(&recv), 300_000);
            pass(&net, (&send, &from), (&recv, &to));
            to.assert_holds(&noise(1, 300_000));
            net.close_send(send).unwrap();
            net.close_recv(recv).unwrap();
            net.finalize().unwrap();
            io::stderr().flush().unwrap();
        },
    );
}

/// Sends one buffer and receives another.
fn pass(
    net: &railweave_nccl_host::LoadedNet,
    (send, from): (&railweave_nccl_host::net::SendComm, &Buffer),
    (recv, to): (&railweave_nccl_host::net::RecvComm, &Buffer),
) {
    // SAFETY: the buffers stay until both requests are done.
    let receiving = unsafe { net.irecv(recv, &[to.part(1)], false) }.unwrap().unwrap();
    // SAFETY: as above.
    let isend = || unsafe { net.isend(send, from.start(), from.bytes(), 1, from.registration()) };
    let sending = until("the peer's receive", || isend().unwrap());
    let (mut sent, mut received) = (false, false);
    until("both messages", || {
        // SAFETY: neither is tested once it is done.
        sent = sent || unsafe { net.test(&sending, None) }.unwrap();
        // SAFETY: as above.
        received = received || unsafe { net.test(&receiving, None) }.unwrap();
        (sent && received).then_some(())
    });
}
