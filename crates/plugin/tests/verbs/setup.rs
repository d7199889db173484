//! Set-up while the kernel is slow or refuses, and while peers or processes end.
#![allow(clippy::disallowed_types, reason = "tests are not the data path")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use railweave_fabric_verbs::Device;
use railweave_fabric_verbs::sys::Functions;
use railweave_fake_ibverbs::FakeVerbs;
use railweave_nccl_host::net::{Handle, ListenComm, NetApi, RecvComm, SendComm};
use railweave_nccl_host::{LoadedNet, NetError};
use railweave_transport::{LANE_PROOF_BYTES, LanePreface, Message, Preface};

use crate::common::{
    Pair, Relay, accept, alone, connect, each, in_time, info_lines, listen, noise, start, trace_lines, until, warnings,
    warnings_with, with_peer,
};
use crate::machine::{EVEN, FUSED, ONE_PORT, ROCE, finish, library, machine, strict, with};

/// Both results of one set-up: connect's, and accept's, which is `None` if connect failed.
type Outcome = (Result<SendComm, NetError>, Option<RecvComm>);

/// Polls connect and accept for several connections at once until each is up or has failed.
fn outcomes(net: &LoadedNet, count: usize) -> Vec<Outcome> {
    let (listens, mut handles): (Vec<ListenComm>, Vec<Handle>) = (0..count).map(|_| listen(net, 0)).unzip();
    let (mut sends, mut recvs): (Vec<_>, Vec<_>) = (0..count).map(|_| (None, None)).unzip();
    let lines = || warnings_with(&["accept keeps waiting"]).len();
    let told = lines();
    until("an answer for every connection", || {
        for index in 0..count {
            sends[index] = sends[index].take().or_else(|| net.connect(0, &mut handles[index]).transpose());
            recvs[index] = recvs[index].take().or_else(|| net.accept(&listens[index]).expect("accept has no error"));
        }
        let over =
            |(send, recv): (&Option<_>, &Option<_>)| matches!(send, Some(Err(_))) || send.is_some() && recv.is_some();
        sends.iter().zip(&recvs).all(over).then_some(())
    });
    // The acceptor learns of a failure after connect, and logs nothing about a closed listener.
    let failed = sends.iter().flatten().filter(|send| send.is_err()).count();
    until("the acceptor's line for each that failed", || (lines() >= told + failed).then_some(()));
    listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
    sends.into_iter().flatten().zip(recvs).collect()
}

/// Uses and closes a connection if it came up. Returns true if it did. Panics if only one end is up.
fn used(net: &LoadedNet, outcome: Outcome) -> bool {
    match outcome {
        (Ok(send), Some(recv)) => {
            let pair = Pair { from: net, to: net, send, recv };
            pair.exchange(1, 300_000);
            pair.close();
            true
        }
        (Err(_), None) => false,
        (send, _) => panic!("one end is up, the other is not: {:?}", send.err()),
    }
}

/// Returns the number of lines that say why this end leaves a rail out. The other end's lines quote the peer.
fn refusals() -> usize {
    let told = warnings_with(&["is left out: ", "Invalid argument"]);
    told.iter().filter(|line| !line.contains("the peer says: ")).count()
}

#[test]
fn a_refusal_at_any_step_is_one_line_and_the_other_rail_carries_on() {
    alone(&with(&[FUSED, EVEN, ("NCCL_GDR_FLUSH_DISABLE", "1")]), || {
        let functions = [
            ("reg_mr", 8),
            ("query_port", 4),
            ("create_cq", 4),
            ("modify_qp/INIT", 4),
            ("modify_qp/RTR", 4),
            ("modify_qp/RTS", 4),
        ];
        for (function, calls) in functions {
            // Discovery has already queried both ports.
            let from = if function == "query_port" { 2 } else { 0 };
            for call in 1..=calls {
                let fake = machine(&strict(&format!("faults = ['{function}:{}:EINVAL']\n{ROCE}", from + call)));
                let (_plugin, net) = start();
                let before = refusals();
                let up = outcomes(&net, 1).into_iter().all(|outcome| used(&net, outcome));
                assert!(up, "{function}:{call}: the other rail is there");
                assert_eq!(refusals() - before, 1, "{function}:{call}: {:?}", warnings());
                finish(&fake, net);
            }
            // One connection makes no more calls of this function.
            let fake = machine(&strict(&format!("faults = ['{function}:{}:EINVAL']\n{ROCE}", from + calls + 1)));
            let (_plugin, net) = start();
            let before = warnings().len();
            let pair = Pair::open(&net, &net, 0);
            assert_eq!(warnings().len(), before, "{function}");
            pair.close();
            finish(&fake, net);
        }
    });
}

#[test]
fn without_any_rail_both_ends_are_told_and_the_next_try_may_succeed() {
    alone(&with(&[]), || {
        let steps = ["create_cq", "modify_qp/INIT", "modify_qp/RTR", "modify_qp/RTS"];
        for (round, step) in steps.into_iter().enumerate() {
            let fake = machine(&strict(&format!("faults = ['{step}:1:EINVAL']\n{ONE_PORT}")));
            let (_plugin, net) = start();
            assert!(!outcomes(&net, 1).into_iter().any(|outcome| used(&net, outcome)), "{step}");
            let failed =
                [&["connect: ", "no rail to ", "came up"][..], &["accept keeps waiting", "gave the connection up"]];
            for words in failed {
                assert_eq!(warnings_with(words).len(), round + 1, "{step}: {:?}", warnings());
            }
            assert!(outcomes(&net, 1).into_iter().all(|outcome| used(&net, outcome)), "{step}");
            finish(&fake, net);
        }
    });
}

#[test]
fn of_many_connections_at_once_only_those_fail_that_the_kernel_refused() {
    alone(&with(&[]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR:3:EINVAL', 'create_cq:9:ENOMEM']\n{ONE_PORT}"));
        let (_plugin, net) = start();
        let up: Vec<bool> = outcomes(&net, 12).into_iter().map(|outcome| used(&net, outcome)).collect();
        assert_eq!(up.iter().filter(|up| !**up).count(), 2, "{up:?}");
        assert_eq!(warnings_with(&["connect: ", "no rail to "]).len(), 2);
        finish(&fake, net);
    });
}

/// A slow kernel: until [`Self::end`], every call of the library waits, except those of the data path.
/// The fake reads its machine from a pipe and holds its lock meanwhile; this value has the pipe's writing end.
struct Stall {
    fake: FakeVerbs,
    pipe: File,
    reader: JoinHandle<()>,
}

/// Returns the path of the pipe, which RAILWEAVE_TEST_MACHINE names to the fake.
fn pipe_path() -> String {
    std::env::temp_dir().join(format!("railweave-stall-{}", std::process::id())).to_str().unwrap().to_owned()
}

impl Stall {
    fn begin(fake: &FakeVerbs) -> Self {
        let path = std::env::var("RAILWEAVE_TEST_MACHINE").unwrap();
        let name = CString::new(path.as_str()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{path}");
        fake.describe(None).unwrap();
        let reader = thread::spawn(|| {
            let functions = Arc::new(Functions::load(&[library()]).unwrap());
            drop(Device::open_all(&functions).unwrap());
        });
        // Opening the pipe blocks until the fake opens it for reading (fifo(7)).
        let pipe = OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Self { fake: *fake, pipe, reader }
    }

    fn end(mut self) {
        self.pipe.write_all(ROCE.as_bytes()).unwrap();
        drop(self.pipe);
        self.reader.join().unwrap();
        self.fake.describe(Some(ROCE)).unwrap();
    }
}

/// Waits until the set-up thread runs and has had time to begin its work.
fn until_setup_works() {
    until("the set-up thread", || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.any(|name| name.trim() == "railweave-setup").then_some(())
    });
    thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_slow_kernel_holds_up_connections_that_come_up_and_nothing_else() {
    alone(&with(&[("RAILWEAVE_TEST_MACHINE", &pipe_path())]), || {
        const COUNT: usize = 8;
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let open = Pair::open(&net, &net, 0);
        let (from, to) = (open.outgoing(&noise(1, 50_000)), open.incoming(50_000));
        open.transfer(&from, 50_000, &to);
        let (listens, mut handles): (Vec<_>, Vec<_>) = (0..COUNT).map(|_| listen(&net, 0)).unzip();
        let stall = Stall::begin(&fake);
        for _ in 0..50 {
            for (listen, handle) in listens.iter().zip(&mut handles) {
                assert!(net.connect(0, handle).unwrap().is_none() && net.accept(listen).unwrap().is_none());
            }
            assert_eq!(open.transfer(&from, 50_000, &to), (50_000, 50_000), "an open connection goes on");
        }
        until_setup_works();
        // The control thread still works: listeners come and go.
        net.close_listen(listen(&net, 1).0).unwrap();
        stall.end();
        for (index, (listen, handle)) in listens.into_iter().zip(&handles).enumerate() {
            let (send, recv) = (connect(&net, 0, handle), accept(&net, &listen));
            let pair = Pair { from: &net, to: &net, send, recv };
            pair.exchange(index as u64, 100_000);
            pair.close();
            net.close_listen(listen).unwrap();
        }
        open.release_outgoing(from);
        open.release_incoming(to);
        open.close();
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}

#[test]
fn finalize_waits_for_what_the_kernel_has_and_leaves_nothing() {
    alone(&with(&[("RAILWEAVE_TEST_MACHINE", &pipe_path())]), || {
        let fake = machine(ROCE);
        let (plugin, net) = start();
        let (listens, mut handles): (Vec<_>, Vec<_>) = (0..4).map(|_| listen(&net, 0)).unzip();
        let stall = Stall::begin(&fake);
        for handle in &mut handles {
            assert!(net.connect(0, handle).unwrap().is_none());
        }
        until_setup_works();
        let ender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            stall.end();
        });
        listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
        net.finalize().unwrap();
        // The thread that reads the pipe opens the devices too; it has ended once `join` returns.
        ender.join().unwrap();
        assert_eq!(fake.open(), railweave_fake_ibverbs::Open::default());
        let net = plugin.init(2, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 1000);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
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
fn a_peer_that_dies_while_its_connection_is_being_made_is_told_of() {
    with_peer(
        &with(&[("RAILWEAVE_TEST_MACHINE", &pipe_path())]),
        &[],
        |mut peer| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            // The peer connects to this end, and this end to the peer.
            let (listening, own) = listen(&net, 0);
            let mut theirs = hear_handle(&mut peer.link);
            let stall = Stall::begin(&fake);
            send_handle(&mut peer.link, &own);
            assert!(net.connect(0, &mut theirs).unwrap().is_none());
            until_setup_works();
            assert!(net.accept(&listening).unwrap().is_none() && net.connect(0, &mut theirs).unwrap().is_none());
            peer.kill();
            let connect_failed = until("connect's failure", || net.connect(0, &mut theirs).err());
            assert!(connect_failed.to_string().contains("ncclRemoteError"), "{connect_failed}");
            assert!(net.accept(&listening).unwrap().is_none());
            // Each direction has its own session, and the ends of the two sockets are noticed one after the other.
            let ended = || warnings_with(&["ended while a connection was set up"]).len();
            until("both sessions' ends", || (ended() >= 2).then_some(()));
            assert_eq!(ended(), 2, "{:?}", warnings());
            stall.end();
            net.close_listen(listening).unwrap();
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(1, 100_000);
            pair.close();
            finish(&fake, net);
        },
        |mut link| {
            machine(ROCE);
            let (_plugin, net) = start();
            let (listening, own) = listen(&net, 0);
            send_handle(&mut link, &own);
            let mut theirs = hear_handle(&mut link);
            // The peer is killed while it waits here.
            until("a connection that never comes", || {
                let connected = net.connect(0, &mut theirs).unwrap();
                let accepted = net.accept(&listening).unwrap();
                (connected.is_some() || accepted.is_some()).then_some(())
            });
        },
    );
}

#[test]
fn a_socket_for_a_lane_is_closed_without_a_byte() {
    alone(&with(&[]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let (listen, handle) = listen(&net, 0);
        let relay = Arc::new(Relay::before(&handle));
        let mut handle = relay.handle();
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        let session = relay.accept();
        let theirs = relay.dial(&session);
        // Dials a lane after LANES and before READY, as a connection over TCP would.
        let (give, said) = mpsc::channel();
        let lane = Arc::new(Mutex::new(None));
        session.pass_frames(theirs, move |message| match message {
            Message::Answer { token, .. } => {
                let preface = LanePreface { token: *token, rail: 0, lane: 0, proof: [0; LANE_PROOF_BYTES] };
                *lane.lock().unwrap() = Some(Preface::Lane(preface).encode());
            }
            Message::Ready { .. } => {
                let preface = lane.lock().unwrap().expect("ANSWER comes before READY");
                let mut socket = relay.present(Ipv4Addr::LOCALHOST.into(), &preface);
                let mut answer = Vec::new();
                let _ = give.send(socket.read_to_end(&mut answer).map(|_| answer));
            }
            _ => {}
        });
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listen));
        assert_eq!(in_time(said.recv().expect("READY was seen"), "the socket's end"), [0_u8; 0]);
        let words = ["lane 0 of rail 0 was refused", "no lane of rail 0 is awaited"];
        assert_eq!((warnings().len(), warnings_with(&words).len()), (1, 1), "{:?}", warnings());
        let pair = Pair { from: &net, to: &net, send, recv };
        pair.exchange(1, 300_000);
        pair.close();
        net.close_listen(listen).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn each_queue_pair_has_a_line_of_its_own() {
    // With NCCL_DEBUG=TRACE, or for those who ask for it.
    each(
        &[("RAILWEAVE_LOG_LANES", "0"), ("RAILWEAVE_LOG_LANES", "1"), ("NCCL_MESH_DEBUG", "1")],
        |setting| with(&[FUSED, EVEN, ("RAILWEAVE_LANES", "2"), *setting]),
        |(_, value)| {
            let fake = machine(&strict(ROCE));
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let lines = if *value == "1" { info_lines() } else { trace_lines() };
            for (rail, port, address) in [(0, "mlx5_0", "10.0.0.1"), (1, "mlx5_1", "10.1.0.1")] {
                for lane in 0..2 {
                    let head = format!("rail {rail}, lane {lane}: queue pair 0x");
                    let said: Vec<_> = lines.iter().filter(|line| line.contains(&head)).collect();
                    assert_eq!(said.len(), 2, "one at each end: {lines:?}");
                    let tail = format!("(GID {address}), path MTU 4096");
                    assert!(said.iter().all(|line| line.contains(port) && line.ends_with(&tail)), "{said:?}");
                }
            }
            let numbers: Vec<_> =
                fake.queue_pairs().iter().map(|pair| format!("queue pair {:#x} ", pair.number)).collect();
            let named = |number: &String| lines.iter().filter(|line| line.contains(number.as_str())).count();
            // The others are the lanes by which the receiving end flushes.
            let times: Vec<_> = numbers.iter().map(named).filter(|times| *times > 0).collect();
            assert_eq!(times, [1; 8], "{numbers:?}: {lines:?}");
            let others = if *value == "1" { trace_lines() } else { info_lines() };
            assert!(!others.iter().any(|line| line.contains("queue pair 0x")));
            pair.close();
            finish(&fake, net);
        },
    );
}

#[test]
fn the_log_says_which_variable_has_chosen_the_mode() {
    each(
        &[("NCCL_MESH_DEBUG", "1"), ("RAILWEAVE_MODE", "mesh")],
        |setting| with(&[*setting]),
        |(variable, _)| {
            machine(&strict(ROCE));
            let (_plugin, _net) = start();
            let said = format!("mode mesh (from {variable})");
            assert_eq!(info_lines().iter().filter(|line| line.contains(&said)).count(), 1, "{:?}", info_lines());
        },
    );
}
