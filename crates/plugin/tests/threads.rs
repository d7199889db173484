//! Threads like NCCL's: each communicator has a service thread, which connects, registers and closes, and a progress
//! thread, which moves data on the same connections at the same time.
//!
//! `cargo xtask stress` runs this with more rounds (`RAILWEAVE_TEST_ROUNDS`), under AddressSanitizer and under
//! valgrind.

#![allow(clippy::disallowed_types, reason = "tests are not the data path")]

mod common;

use common::{
    Random, TWO_RAILS, control_threads, descriptors, each, listen, load, until, until_freed, until_within, warnings,
};
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::memory::HostMemory;
use railweave_nccl_host::net::{Comm, Handle, ListenComm, NetApi, Part, RecvComm, Registration, Request, SendComm};
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const VERSIONS: [u32; 7] = [6, 7, 8, 9, 10, 11, 12];
/// Connections of a communicator in each direction.
const CHANNELS: usize = 3;
/// Receives posted ahead, like NCCL's steps.
const STEPS: usize = 8;
const MESSAGE_BYTES: usize = 100_000;

/// The amount of work.
#[derive(Clone, Copy)]
struct Load {
    /// The number of lives of each communicator.
    rounds: usize,
    /// Communicators of this process; each has two ranks, both in this process.
    communicators: usize,
    /// Messages of each connection in one life of a communicator.
    messages: usize,
}

fn load_to_carry() -> Load {
    if std::env::var_os("RAILWEAVE_TEST_SMALL").is_some() {
        return Load { rounds: 1, communicators: 1, messages: 6 };
    }
    let rounds = std::env::var("RAILWEAVE_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    Load { rounds, communicators: 3, messages: 25 }
}

/// A connection's buffers, one for each step as in NCCL, registered once when the connection is up.
struct Steps {
    memory: HostMemory,
    registration: Registration,
}

impl Steps {
    fn new(net: &LoadedNet, comm: Comm<'_>) -> Self {
        let memory = HostMemory::new(STEPS * MESSAGE_BYTES);
        // SAFETY: the memory stays until `end` ends the registration.
        let registration = unsafe { net.reg_mr(comm, memory.start(), memory.bytes()) }.expect("memory is registered");
        Self { memory, registration }
    }

    fn end(self, net: &LoadedNet, comm: Comm<'_>) {
        // SAFETY: made in `new` with this connection.
        unsafe { net.dereg_mr(comm, self.registration) }.expect("memory is deregistered");
    }

    fn part(&self, step: usize) -> Part {
        // SAFETY: the memory holds every step.
        let data = unsafe { self.memory.start().add(step % STEPS * MESSAGE_BYTES) };
        Part { data, bytes: MESSAGE_BYTES, tag: 5, registration: self.registration }
    }

    /// Returns the step's bytes, which no transfer may be using.
    #[expect(clippy::mut_from_ref, reason = "the progress thread alone uses the buffers")]
    fn bytes(&self, step: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: as in `part`; the request that used the step is done.
        unsafe { std::slice::from_raw_parts_mut(self.part(step).data.as_ptr(), bytes) }
    }
}

/// Returns the size of a connection's message `number`, and the seed of its bytes.
fn message(channel: usize, number: usize) -> (usize, u64) {
    let seed = (channel * 1_000_003 + number) as u64;
    (Random::new(seed).below(MESSAGE_BYTES + 1), seed)
}

fn pattern(seed: u64) -> impl Fn(usize) -> u8 {
    move |index| (index as u64).wrapping_mul(0x9e37_79b9).wrapping_add(seed.wrapping_mul(0x85eb_ca6b)).to_le_bytes()[2]
}

/// One connection as its progress thread sees it.
enum Channel<'a> {
    Send { comm: &'a SendComm, steps: &'a Steps, posted: usize, in_progress: VecDeque<Request> },
    Recv { comm: &'a RecvComm, steps: &'a Steps, posted: usize, done: usize, in_progress: VecDeque<Request> },
}

impl Channel<'_> {
    /// Plays one round of NCCL's progress: posts a message if there is room and tests the oldest request. Returns true
    /// once all is done.
    fn advance(&mut self, net: &LoadedNet, channel: usize, messages: usize) -> bool {
        match self {
            Channel::Send { comm, steps, posted, in_progress } => {
                if *posted < messages && in_progress.len() < STEPS {
                    let (bytes, seed) = message(channel, *posted);
                    let pattern = pattern(seed);
                    steps.bytes(*posted, bytes).iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
                    let part = steps.part(*posted);
                    // SAFETY: the buffer stays until the request is done.
                    let request = unsafe { net.isend(comm, part.data, bytes, part.tag, part.registration) };
                    if let Some(request) = request.expect("isend succeeds") {
                        in_progress.push_back(request);
                        *posted += 1;
                    }
                }
                // SAFETY: a request that is done is not tested again.
                if in_progress.front().is_some_and(|oldest| unsafe { net.test(oldest, None) }.expect("a send goes on"))
                {
                    in_progress.pop_front();
                }
                *posted == messages && in_progress.is_empty()
            }
            Channel::Recv { comm, steps, posted, done, in_progress } => {
                if *posted < messages && in_progress.len() < STEPS {
                    // SAFETY: as above.
                    let request = unsafe { net.irecv(comm, &[steps.part(*posted)], false) }.expect("irecv succeeds");
                    if let Some(request) = request {
                        in_progress.push_back(request);
                        *posted += 1;
                    }
                }
                let mut sizes = [-1; 8];
                // SAFETY: as above.
                let over = |oldest| unsafe { net.test(oldest, Some(&mut sizes)) }.expect("a receive goes on");
                if in_progress.front().is_some_and(over) {
                    in_progress.pop_front();
                    let (bytes, seed) = message(channel, *done);
                    assert_eq!(sizes[0], bytes as i32, "message {done} of channel {channel}");
                    let pattern = pattern(seed);
                    let wrong = steps.bytes(*done, bytes).iter().enumerate().find(|(at, byte)| **byte != pattern(*at));
                    assert_eq!(wrong, None, "message {done} of channel {channel} has {bytes} bytes");
                    *done += 1;
                }
                *done == messages
            }
        }
    }
}

/// Plays NCCL's progress thread: only it calls isend, irecv and test on a rank's connections.
fn progress(net: &LoadedNet, channels: &mut [Channel<'_>], messages: usize) {
    until_within(Duration::from_secs(100), "all messages of a communicator", || {
        let mut over = true;
        for (number, channel) in channels.iter_mut().enumerate() {
            // A send has the number of the other rank's receive.
            over &= channel.advance(net, number % CHANNELS, messages);
        }
        over.then_some(())
    });
}

/// Registers and deregisters at random on connections whose progress thread is running, and opens and closes other
/// connections meanwhile, until `over`.
fn registrations_and_visitors(net: &LoadedNet, sends: &[SendComm], recvs: &[RecvComm], over: &AtomicBool, seed: u64) {
    let mut random = Random::new(seed);
    let user = HostMemory::new(1 << 20);
    let mut held: Vec<(usize, bool, Registration)> = Vec::new();
    let comm = |index: usize, send: bool| if send { Comm::Send(&sends[index]) } else { Comm::Recv(&recvs[index]) };
    let mut turns = 0;
    while !over.load(Ordering::Acquire) || turns < 5 {
        let (index, send) = (random.below(CHANNELS), random.below(2) == 0);
        let at = random.below(1 << 19);
        // SAFETY: the range lies inside the memory, which outlives its registrations.
        let start = unsafe { user.start().add(at) };
        // SAFETY: as above.
        let registration = unsafe { net.reg_mr(comm(index, send), start, 1 + random.below(1 << 19)) };
        held.push((index, send, registration.expect("memory is registered")));
        if held.len() > 20 {
            let (index, send, registration) = held.swap_remove(random.below(held.len()));
            // SAFETY: registered above with the same connection.
            unsafe { net.dereg_mr(comm(index, send), registration) }.expect("memory is deregistered");
        }
        if turns % 50 == 3 {
            let (listening, mut handle) = listen(net, 0);
            let send = until("a visitor's connect", || net.connect(0, &mut handle).expect("connect succeeds"));
            let recv = until("a visitor's accept", || net.accept(&listening).expect("accept succeeds"));
            net.close_listen(listening).expect("a listen is closed");
            net.close_send(send).expect("a connection is closed");
            net.close_recv(recv).expect("a connection is closed");
        }
        assert!(net.devices().is_ok() && net.properties(0).is_ok());
        turns += 1;
        // On a machine with few cores this thread would otherwise leave none to the others.
        thread::yield_now();
    }
    for (index, send, registration) in held {
        // SAFETY: as above.
        unsafe { net.dereg_mr(comm(index, send), registration) }.expect("memory is deregistered");
    }
}

/// Plays NCCL's service thread of one rank: listens, sends its handles, polls connects and accepts in turn, registers,
/// starts the progress thread and works alongside it, and closes everything.
fn service(net: &LoadedNet, tell: Sender<Vec<Handle>>, hear: Receiver<Vec<Handle>>, messages: usize, seed: u64) {
    let (listens, handles): (Vec<ListenComm>, Vec<Handle>) = (0..CHANNELS).map(|_| listen(net, 0)).unzip();
    tell.send(handles).expect("the other rank listens");
    let mut handles = hear.recv().expect("the other rank tells its handles");
    let (mut sends, mut recvs): (Vec<_>, Vec<_>) = (0..CHANNELS).map(|_| (None, None)).unzip();
    let mut listens: Vec<_> = listens.into_iter().map(Some).collect();
    until("every connection", || {
        for index in 0..CHANNELS {
            if sends[index].is_none() {
                sends[index] = net.connect(0, &mut handles[index]).expect("connect succeeds");
            }
            if let Some(listening) = &listens[index] {
                recvs[index] = net.accept(listening).expect("accept succeeds");
            }
            if recvs[index].is_some()
                && let Some(listening) = listens[index].take()
            {
                net.close_listen(listening).expect("a listen is closed");
            }
        }
        (sends.iter().all(Option::is_some) && recvs.iter().all(Option::is_some)).then_some(())
    });
    let (sends, recvs): (Vec<_>, Vec<_>) =
        (sends.into_iter().flatten().collect(), recvs.into_iter().flatten().collect());
    let send_steps: Vec<_> = sends.iter().map(|comm| Steps::new(net, Comm::Send(comm))).collect();
    let recv_steps: Vec<_> = recvs.iter().map(|comm| Steps::new(net, Comm::Recv(comm))).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (sends, recvs, over) = (&sends, &recvs, &over);
        let (send_steps, recv_steps) = (&send_steps, &recv_steps);
        scope.spawn(move || {
            // It is set also if an assertion ends this thread.
            let _over = SetWhenDropped(over);
            let sending = sends.iter().zip(send_steps).map(|(comm, steps)| Channel::Send {
                comm,
                steps,
                posted: 0,
                in_progress: VecDeque::new(),
            });
            let receiving = recvs.iter().zip(recv_steps).map(|(comm, steps)| Channel::Recv {
                comm,
                steps,
                posted: 0,
                done: 0,
                in_progress: VecDeque::new(),
            });
            progress(net, &mut sending.chain(receiving).collect::<Vec<_>>(), messages);
        });
        registrations_and_visitors(net, sends, recvs, over, seed);
    });
    for (comm, steps) in sends.into_iter().zip(send_steps) {
        steps.end(net, Comm::Send(&comm));
        net.close_send(comm).expect("a connection is closed");
    }
    for (comm, steps) in recvs.into_iter().zip(recv_steps) {
        steps.end(net, Comm::Recv(&comm));
        net.close_recv(comm).expect("a connection is closed");
    }
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn service_and_progress_threads_of_many_communicators_work_beside_each_other_in_every_version() {
    each(
        &VERSIONS,
        |_| vec![TWO_RAILS],
        |version| {
            let (plugin, load) = (load(Some(*version)), load_to_carry());
            let nothing = descriptors();
            for round in 0..load.rounds {
                let ready = Barrier::new(2 * load.communicators);
                thread::scope(|scope| {
                    for communicator in 0..load.communicators {
                        let (ours, theirs) = (channel(), channel());
                        for (rank, tell, hear) in [(0, ours.0, theirs.1), (1, theirs.0, ours.1)] {
                            let (plugin, ready) = (&plugin, &ready);
                            // One rank's application thread calls init before the rank's other threads start, and
                            // finalize after they have ended.
                            scope.spawn(move || {
                                let net = plugin.init(communicator as u64, None).expect("init succeeds");
                                ready.wait();
                                let seed = (round * 100 + communicator * 2 + rank) as u64;
                                let net_for_service = &net;
                                let service = move || service(net_for_service, tell, hear, load.messages, seed);
                                thread::scope(|scope| scope.spawn(service).join())
                                    .expect("the service thread ends well");
                                net.finalize().expect("finalize succeeds");
                            });
                        }
                    }
                });
                if *version >= 11 {
                    assert_eq!((descriptors(), control_threads()), (nothing, 0), "finalize frees everything");
                    continue;
                }
                // Before v11 there is no finalize: the control thread stays.
                assert_eq!(control_threads(), 1);
            }
            // The control thread that stays keeps its port on both rails' addresses, its poll and its waker.
            let kept = if *version >= 11 { nothing } else { nothing + 4 };
            until_freed("sessions without connections close", || descriptors() == kept);
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}
