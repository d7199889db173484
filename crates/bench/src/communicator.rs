//! A communicator: the connections between ranks and the collectives over them, in NCCL's two roles.
//!
//! The calling thread plays NCCL's service thread: it sets connections up, registers and closes. The progress loop runs
//! on a thread of its own, as NCCL's does, so a plugin sees the same calls from the same kinds of threads.

use crate::announcement::{Addresses, Announcement, Operation};
use crate::bootstrap::{BootstrapError, Link};
use crate::error::CommunicatorError;
use crate::patience::Patience;
use crate::plan::{Place, Plan, Ring, chunks};
use crate::progress::{Buffers, ELEMENT_BYTES, run};
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::connection::{Connection, StepShape};
use railweave_nccl_host::net::{Handle, ListenComm, NetApi, NetError, RecvComm, SendComm};
use railweave_nccl_host::profiler::{DataType, Function, Profiler};
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The path of data between a user's buffer and the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Through staging buffers, registered once per connection: what NCCL does by default.
    Staged,
    /// Straight from and to the user's buffers, registered for each collective; sums still go through staging buffers.
    Direct,
}

/// The settings of a communicator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The devices to use: a ring over each, with the peers spread over them. Not empty, and the same on all ranks.
    pub devices: Vec<i32>,
    /// The path of data.
    pub mode: Mode,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The size of a slice of direct transfers between two peers: larger than any staging slot, so that a slice staged by
/// mistake would not fit.
const DIRECT_SLICE_BYTES: usize = 8 << 20;

/// The number of functions that NCCL counts.
const FUNCTIONS: usize = 8;

/// The connections of one rank with all others. An error closes them, and every later call then returns an error.
#[derive(Debug)]
pub struct Communicator<'net, N: NetApi> {
    net: &'net N,
    rank: usize,
    ranks: usize,
    settings: Settings,
    abort: Arc<AtomicBool>,
    /// One per device to the next rank, then one to each other rank in order.
    senders: Vec<Connection<'net, N, SendComm>>,
    /// One per device from the previous rank, then one from each other rank in order.
    receivers: Vec<Connection<'net, N, RecvComm>>,
    profiler: Option<&'net Profiler>,
    /// The number of collectives so far, by the number of their function.
    sequences: [u64; FUNCTIONS],
}

impl<'net, N: NetApi> Communicator<'net, N> {
    /// Connects this rank with all others; all ranks call this together.
    ///
    /// # Errors
    /// If the plugin or another rank fails, or the set-up makes no progress for the time allowed.
    pub fn connect(net: &'net N, link: &mut Link, settings: Settings) -> Result<Self, CommunicatorError> {
        Self::connect_by(net, link, settings, &|_| Ok(()))
    }

    /// As [`Self::connect`], but `announce` may change each handle of this rank before the others get it, so that they
    /// connect to a relay instead of the plugin.
    ///
    /// # Errors
    /// If [`Self::connect`] or `announce` fails: a sentence.
    pub fn connect_by(
        net: &'net N,
        link: &mut Link,
        settings: Settings,
        announce: &dyn Fn(&mut Handle) -> Result<(), String>,
    ) -> Result<Self, CommunicatorError> {
        let (rank, ranks) = (link.rank(), link.ranks());
        if ranks < 2 || settings.devices.is_empty() {
            let what = format!("a communicator of {ranks} ranks over {} devices", settings.devices.len());
            return Err(CommunicatorError::Usage { what, allowed: "at least 2 ranks and 1 device" });
        }
        let abort = link.abort_flag();
        let (senders, receivers, sequences) = (Vec::new(), Vec::new(), [0; FUNCTIONS]);
        let mut this = Self { net, rank, ranks, settings, abort, senders, receivers, profiler: None, sequences };
        this.set_up(link, announce)?;
        // No rank starts to send before all have accepted, so that the times of collectives do not include the set-up.
        link.barrier()?;
        Ok(this)
    }

    /// Returns the number of this rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Announces every later collective to `profiler`, as NCCL does, and gives its handles to the net plugin. The
    /// plugin's callback must be that of the same profiler (`railweave_nccl_host::Plugin::init_with`).
    pub fn set_profiler(&mut self, profiler: Option<&'net Profiler>) {
        self.profiler = profiler;
    }

    /// Sums `data` of all ranks, element by element, into `data` of every rank.
    ///
    /// # Errors
    /// If a transfer fails, which also closes the communicator.
    pub fn all_reduce(&mut self, data: &mut [f32]) -> Result<(), CommunicatorError> {
        let mut plan = Plan::default();
        for (connection, part) in chunks(&(0..data.len()), self.settings.devices.len()).iter().enumerate() {
            let chunks = chunks(part, self.ranks);
            self.ring().all_reduce(&mut plan, connection, &chunks, RING_SLICE);
        }
        let operation = coll(Function::ALL_REDUCE, data.len(), (data.len(), DataType::FLOAT32));
        self.run(operation, &plan, Buffers::in_place(data))
    }

    /// Concatenates the inputs of all ranks in `output` of every rank.
    ///
    /// # Errors
    /// If a transfer fails, which also closes the communicator, or the lengths are wrong.
    pub fn all_gather(&mut self, input: &[f32], output: &mut [f32]) -> Result<(), CommunicatorError> {
        self.check_lengths("all-gather: output", output.len(), input.len() * self.ranks)?;
        let block = input.len();
        output[self.rank * block..][..block].copy_from_slice(input);
        let mut plan = Plan::default();
        for (connection, chunks) in self.blocks(block).iter().enumerate() {
            self.ring().all_gather(&mut plan, connection, chunks, RING_SLICE);
        }
        // NCCL gathers bytes.
        let operation = coll(Function::ALL_GATHER, block, (block * ELEMENT_BYTES, DataType::INT8));
        self.run(operation, &plan, Buffers::in_place(output))
    }

    /// Sums `data` of all ranks and returns the range of this rank's own block of sums. The rest of `data` then holds
    /// partial sums.
    ///
    /// # Errors
    /// If a transfer fails, which also closes the communicator, or the length is wrong.
    pub fn reduce_scatter(&mut self, data: &mut [f32]) -> Result<Range<usize>, CommunicatorError> {
        let block = data.len() / self.ranks;
        self.check_lengths("reduce-scatter: data", data.len(), block * self.ranks)?;
        let mut plan = Plan::default();
        for (connection, chunks) in self.blocks(block).iter().enumerate() {
            self.ring().reduce_scatter(&mut plan, connection, chunks, RING_SLICE);
        }
        let operation = coll(Function::REDUCE_SCATTER, block, (block, DataType::FLOAT32));
        self.run(operation, &plan, Buffers::in_place(data))?;
        Ok(self.rank * block..(self.rank + 1) * block)
    }

    /// Sends block p of `input` to rank p and puts the block from rank p into block p of `output`.
    ///
    /// # Errors
    /// If a transfer fails, which also closes the communicator, or the lengths are wrong.
    pub fn all_to_all(&mut self, input: &[f32], output: &mut [f32]) -> Result<(), CommunicatorError> {
        let block = input.len() / self.ranks;
        self.check_lengths("all-to-all: input", input.len(), block * self.ranks)?;
        self.check_lengths("all-to-all: output", output.len(), input.len())?;
        let range = |peer: usize| peer * block..(peer + 1) * block;
        output[range(self.rank)].copy_from_slice(&input[range(self.rank)]);
        let mut plan = Plan::default();
        for peer in (0..self.ranks).filter(|peer| *peer != self.rank) {
            plan.send(self.peer_connection(peer), &range(peer), self.peer_slice());
            plan.receive(self.peer_connection(peer), &range(peer), self.peer_slice());
        }
        self.run(Operation::Peers, &plan, Buffers::new(input, output))
    }

    /// Sends `input` to rank `to` and receives `output` from rank `from`, at the same time.
    ///
    /// # Errors
    /// If a transfer fails, which also closes the communicator, or a rank is wrong.
    pub fn send_recv(
        &mut self,
        to: usize,
        input: &[f32],
        from: usize,
        output: &mut [f32],
    ) -> Result<(), CommunicatorError> {
        for peer in [to, from] {
            if peer >= self.ranks || peer == self.rank {
                let what = format!("send and receive between rank {} and rank {peer} of {}", self.rank, self.ranks);
                return Err(CommunicatorError::Usage { what, allowed: "two different ranks" });
            }
        }
        let mut plan = Plan::default();
        plan.send(self.peer_connection(to), &(0..input.len()), self.peer_slice());
        plan.receive(self.peer_connection(from), &(0..output.len()), self.peer_slice());
        self.run(Operation::Peers, &plan, Buffers::new(input, output))
    }

    /// Closes all connections; all ranks call this after their last collective.
    ///
    /// # Errors
    /// If the plugin returns an error: the first one. The remaining connections are still closed.
    pub fn close(mut self) -> Result<(), CommunicatorError> {
        let mut result = Ok(());
        for sender in self.senders.drain(..) {
            result = result.and(sender.close());
        }
        for receiver in self.receivers.drain(..) {
            result = result.and(receiver.close());
        }
        Ok(result?)
    }

    /// Announces an operation to the profiler, if there is one.
    fn announce(&mut self, operation: Operation, plan: &Plan, buffers: Buffers) -> Option<Announcement<'net>> {
        let sequence = match operation {
            Operation::Coll { function, .. } => {
                let next = &mut self.sequences[usize::from(function.number())];
                *next += 1;
                *next - 1
            }
            Operation::Peers => 0,
        };
        let address = |place| buffers.whole(place).0.as_ptr().cast();
        let addresses = Addresses { input: address(Place::Input), output: address(Place::Output) };
        let connections = (&self.senders[..], &self.receivers[..]);
        Some(Announcement::begin(self.profiler?, operation, sequence, addresses, plan, connections))
    }

    fn ring(&self) -> Ring {
        Ring { rank: self.rank, ranks: self.ranks }
    }

    fn peer_slice(&self) -> usize {
        let bytes = if self.settings.mode == Mode::Direct { DIRECT_SLICE_BYTES } else { StepShape::PEER.slice_bytes };
        bytes / ELEMENT_BYTES
    }

    /// Returns the index of the connections with `peer`, the same among senders and receivers.
    fn peer_connection(&self, peer: usize) -> usize {
        self.settings.devices.len() + if peer < self.rank { peer } else { peer - 1 }
    }

    /// Returns, for each device's ring, its part of the block of every rank.
    fn blocks(&self, block: usize) -> Vec<Vec<Range<usize>>> {
        let parts = chunks(&(0..block), self.settings.devices.len());
        let shift = |part: &Range<usize>, rank: usize| part.start + rank * block..part.end + rank * block;
        parts.iter().map(|part| (0..self.ranks).map(|rank| shift(part, rank)).collect()).collect()
    }

    fn check_lengths(&self, what: &str, length: usize, expected: usize) -> Result<(), CommunicatorError> {
        if length == expected {
            return Ok(());
        }
        let what = format!("{what} of {length} elements on rank {} of {}, not {expected}", self.rank, self.ranks);
        Err(CommunicatorError::Usage { what, allowed: "lengths that divide evenly among the ranks" })
    }

    /// Executes a plan: this thread registers and announces, the progress thread moves data, this thread deregisters.
    fn run(&mut self, operation: Operation, plan: &Plan, buffers: Buffers) -> Result<(), CommunicatorError> {
        if self.senders.is_empty() {
            return Err(CommunicatorError::Closed { rank: self.rank });
        }
        assert!(buffers.hold(plan), "a plan stays inside the buffers that it was made for");
        // Requests point into it, so it is dropped after the connections that an error closes.
        let mut announcement = None;
        let result = self.register(plan, buffers).and_then(|()| {
            announcement = self.announce(operation, plan, buffers);
            let announcement = announcement.as_mut();
            let patience = Patience::new(self.rank, self.settings.stall, &self.abort);
            let (net, senders, receivers) = (self.net, &self.senders[..], &self.receivers[..]);
            std::thread::scope(|scope| {
                // SAFETY: the buffers are borrowed by our caller and hold the plan; after an error the connections are
                // closed below, before the borrow ends. Registrations are of whole buffers.
                let progress = move || unsafe { run(net, plan, senders, receivers, buffers, announcement, patience) };
                let thread = std::thread::Builder::new().name("progress".to_owned()).spawn_scoped(scope, progress);
                match thread {
                    Ok(thread) => thread.join(),
                    Err(error) => Ok(Err(CommunicatorError::Thread { reason: error.to_string() })),
                }
            })
            .unwrap_or_else(|panic| {
                self.abandon();
                resume_unwind(panic)
            })
        });
        let result = result.and_then(|()| self.deregister());
        if result.is_err() {
            self.abandon();
        }
        result
    }

    /// Closes everything, even with transfers in flight, as NCCL does on abort.
    fn abandon(&mut self) {
        self.senders.clear();
        self.receivers.clear();
    }

    fn register(&mut self, plan: &Plan, buffers: Buffers) -> Result<(), CommunicatorError> {
        if self.settings.mode == Mode::Staged {
            return Ok(());
        }
        for stream in &plan.sends {
            let (data, bytes) = buffers.whole(stream.place);
            // SAFETY: `run` deregisters or closes before the buffers' borrow ends.
            unsafe { self.senders[stream.connection].register_user(data, bytes) }?;
        }
        for stream in &plan.receives {
            let (data, bytes) = buffers.whole(Place::Output);
            // SAFETY: as above.
            unsafe { self.receivers[stream.connection].register_user(data, bytes) }?;
        }
        Ok(())
    }

    fn deregister(&mut self) -> Result<(), CommunicatorError> {
        self.senders.iter_mut().try_for_each(Connection::deregister_user)?;
        Ok(self.receivers.iter_mut().try_for_each(Connection::deregister_user)?)
    }

    /// Listens for every connection, exchanges the handles, then polls all connects and accepts until all are done.
    fn set_up(
        &mut self,
        link: &mut Link,
        announce: &dyn Fn(&mut Handle) -> Result<(), String>,
    ) -> Result<(), CommunicatorError> {
        let (net, rank, ranks) = (self.net, self.rank, self.ranks);
        let rings = self.settings.devices.len();
        let peers = || (0..ranks).filter(move |peer| *peer != rank);
        let previous = (rank + ranks - 1) % ranks;
        let sources = std::iter::repeat_n(previous, rings).chain(peers());
        let mut mine = Vec::new();
        let mut accepts = Vec::new();
        for (index, peer) in sources.enumerate() {
            let mut handle = Handle::default();
            let listen = net.listen(self.device(index, peer), &mut handle)?;
            announce(&mut handle).map_err(|reason| CommunicatorError::Announcement { reason })?;
            mine.extend_from_slice(&handle.0);
            accepts.push(Accepting { net, listen: Some(listen), peer, ready: None });
        }
        let all = link.all_gather(&mine)?;
        let next = (rank + 1) % ranks;
        let targets = std::iter::repeat_n(next, rings).chain(peers());
        let mut connects = Vec::new();
        for (index, peer) in targets.enumerate() {
            // The peer listens in the same order as this rank, but leaves itself out instead of this rank: ranks after
            // the peer move down by one place.
            let place = if index < rings { index } else { rings + if rank < peer { rank } else { rank - 1 } };
            let bytes = all[peer].get(place * HANDLE_MAX_BYTES..(place + 1) * HANDLE_MAX_BYTES);
            let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
            let bytes = bytes.ok_or_else(|| BootstrapError::Garbled { what: format!("the handles of rank {peer}") })?;
            let device = self.device(index, peer);
            connects.push(Connecting { device, handle: Box::new(Handle(bytes)), peer, ready: None });
        }
        let shape = |index: usize| if index < rings { StepShape::RING } else { StepShape::PEER };
        let mut patience = Patience::new(rank, self.settings.stall, &self.abort);
        loop {
            let (mut missing, mut moved) = (Vec::new(), false);
            for (index, connect) in connects.iter_mut().enumerate().filter(|(_, connect)| connect.ready.is_none()) {
                match net.connect(connect.device, &mut connect.handle)? {
                    Some(comm) => {
                        connect.ready = Some(Connection::new(net, comm, connect.peer, shape(index))?);
                        moved = true;
                    }
                    None => missing.push(("connect to", connect.peer)),
                }
            }
            for (index, accept) in accepts.iter_mut().enumerate().filter(|(_, accept)| accept.ready.is_none()) {
                if accept.poll(shape(index))? {
                    moved = true;
                } else {
                    missing.push(("accept from", accept.peer));
                }
            }
            if missing.is_empty() {
                break;
            }
            patience.after_round(moved, || {
                let missing = missing.iter().map(|(what, peer)| format!("{what} rank {peer}"));
                missing.collect::<Vec<_>>().join("; ")
            })?;
        }
        self.senders = connects.into_iter().filter_map(|connect| connect.ready).collect();
        self.receivers = accepts.into_iter().filter_map(|mut accept| accept.ready.take()).collect();
        Ok(())
    }

    /// Returns the device of a connection with `peer`; both sides choose the same.
    fn device(&self, index: usize, peer: usize) -> i32 {
        let devices = &self.settings.devices;
        devices[if index < devices.len() { index } else { (self.rank + peer) % devices.len() }]
    }
}

/// Returns a collective of which the user gives `given` elements, and which moves a number of elements of a type.
fn coll(function: Function, given: usize, moved: (usize, DataType)) -> Operation {
    Operation::Coll { function, given, moved }
}

/// The length of a ring's slice in elements.
const RING_SLICE: usize = StepShape::RING.slice_bytes / ELEMENT_BYTES;

/// A connect being polled. The handle is on the heap: the plugin writes to it, so it must not move.
struct Connecting<'net, N: NetApi> {
    device: i32,
    handle: Box<Handle>,
    peer: usize,
    ready: Option<Connection<'net, N, SendComm>>,
}

/// A listen being polled for its connection. It is closed as soon as the connection exists, or when this is dropped.
struct Accepting<'net, N: NetApi> {
    net: &'net N,
    listen: Option<ListenComm>,
    peer: usize,
    ready: Option<Connection<'net, N, RecvComm>>,
}

impl<N: NetApi> Accepting<'_, N> {
    fn poll(&mut self, shape: StepShape) -> Result<bool, NetError> {
        let Some(listen) = &self.listen else { return Ok(true) };
        let Some(comm) = self.net.accept(listen)? else { return Ok(false) };
        self.ready = Some(Connection::new(self.net, comm, self.peer, shape)?);
        self.listen.take().map_or(Ok(()), |listen| self.net.close_listen(listen))?;
        Ok(true)
    }
}

impl<N: NetApi> Drop for Accepting<'_, N> {
    fn drop(&mut self) {
        if let Some(listen) = self.listen.take() {
            // The set-up has already failed, and the caller gets that error.
            let _ = self.net.close_listen(listen);
        }
    }
}
