//! The events by which a collective is announced to a profiler, in NCCL's order: the user's calls, the launch, and the
//! operations with their group; then, on the progress thread, the work of each channel and of each connection.

use crate::plan::{Place, Plan, RecvStream, SendStream};
use railweave_nccl_host::connection::{Connection, Side};
use railweave_nccl_host::net::{NetApi, RecvComm, SendComm};
use railweave_nccl_host::profiler::{
    Algorithm, Call, Coll, CollCall, DataType, Direction, Event, Function, KernelEvent, Op, OpShape, P2p, P2pCall,
    Parent, Profiler, Protocol,
};
use std::ffi::c_void;
use std::time::{SystemTime, UNIX_EPOCH};

/// The bytes of one element.
const ELEMENT_BYTES: usize = size_of::<f32>();

/// All connections that send, and all that receive.
pub(crate) type Sides<'a, 'net, N> = (&'a [Connection<'net, N, SendComm>], &'a [Connection<'net, N, RecvComm>]);

/// A user's call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A collective over the rings.
    Coll {
        /// The collective.
        function: Function,
        /// The number of elements that the user gives.
        given: usize,
        /// The number of elements of the operation, and their type: NCCL gathers bytes.
        moved: (usize, DataType),
    },
    /// A group of sends and receives, one for each stream of the plan.
    Peers,
}

/// The addresses of the user's buffers, which profilers only show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    /// The buffer that is only read.
    pub(crate) input: *mut c_void,
    /// The buffer that is written.
    pub(crate) output: *mut c_void,
}

/// The parents of the work of each stream.
#[derive(Debug)]
struct Parents<'p> {
    sends: Vec<Parent<'p>>,
    receives: Vec<Parent<'p>>,
}

/// An operation that was announced, with the work of its connections. Net plugins have pointers into it while requests
/// are in flight, so it must outlive them, or their connections.
#[derive(Debug)]
pub(crate) struct Announcement<'p> {
    call: Call<'p>,
    parents: Parents<'p>,
    /// True if each stream is an operation of its own.
    peers: bool,
    kernels: Vec<KernelEvent<'p>>,
    sends: Vec<Op<'p>>,
    receives: Vec<Op<'p>>,
}

impl<'p> Announcement<'p> {
    /// Announces an operation, up to the point where the progress thread takes over. `sequence` is the number of
    /// earlier collectives of its kind.
    pub(crate) fn begin<N: NetApi>(
        profiler: &'p Profiler,
        operation: Operation,
        sequence: u64,
        addresses: Addresses,
        plan: &Plan,
        (senders, receivers): Sides<'_, '_, N>,
    ) -> Self {
        let call = profiler.call();
        let peers = matches!(operation, Operation::Peers);
        // A collective is in a group of its own; sends and receives are in a group that the user opens around it.
        let group_api = call.group_api(false, if peers { 2 } else { 1 });
        group_api.group_began();
        let parents = match operation {
            Operation::Coll { function, given, moved: (count, data_type) } => {
                let api =
                    CollCall { function, count: given, data_type: DataType::FLOAT32, root: 0, graph_captured: false };
                let api = stopped(call.coll_api(group_api.parent(), &api));
                let group = launched(call, &group_api);
                let coll = Coll {
                    sequence,
                    function,
                    input: addresses.input,
                    output: addresses.output,
                    count,
                    root: 0,
                    data_type,
                    channels: short(plan.sends.len()),
                    // There is no kernel.
                    warps: 0,
                    algorithm: Algorithm::RING,
                    protocol: Protocol::SIMPLE,
                };
                let coll = stopped(call.coll(group.parent(), api, &coll));
                group.stop();
                Parents { sends: vec![coll; plan.sends.len()], receives: vec![coll; plan.receives.len()] }
            }
            Operation::Peers => {
                let sends = plan.sends.iter().map(|stream| Peer::send(stream, addresses, senders));
                let receives = plan.receives.iter().map(|stream| Peer::receive(stream, addresses, receivers));
                announce_peers(call, &group_api, &sends.collect::<Vec<_>>(), &receives.collect::<Vec<_>>())
            }
        };
        group_api.stop();
        Self { call, parents, peers, kernels: Vec::new(), sends: Vec::new(), receives: Vec::new() }
    }

    /// Starts the work of each channel, which the GPU would do, and that of each connection. Returns the latter for
    /// each stream that sends and that receives.
    pub(crate) fn start<N: NetApi>(
        &mut self,
        plan: &Plan,
        (senders, receivers): Sides<'_, '_, N>,
    ) -> (&mut [Op<'p>], &mut [Op<'p>]) {
        let (call, now) = (self.call, now_ns());
        let kernel = |(parent, connection): (&Parent<'p>, usize)| call.kernel_ch(*parent, short(connection), now);
        let sends = self.parents.sends.iter().zip(plan.sends.iter().map(|stream| stream.connection));
        let receives = self.parents.receives.iter().zip(plan.receives.iter().map(|stream| stream.connection));
        // The two streams of a ring are one channel of one operation.
        self.kernels = sends.chain(receives.filter(|_| self.peers)).map(kernel).collect();
        // As NCCL saves them: first those that receive.
        for (stream, parent) in plan.receives.iter().zip(&self.parents.receives) {
            let lengths = stream.slices.iter().map(|slice| slice.length);
            let shape = shape(stream.connection, &receivers[stream.connection], lengths, Direction::Receive);
            self.receives.push(call.proxy_op(*parent, shape));
        }
        for (stream, parent) in plan.sends.iter().zip(&self.parents.sends) {
            let lengths = stream.slices.iter().map(|slice| slice.length);
            let shape = shape(stream.connection, &senders[stream.connection], lengths, Direction::Send);
            self.sends.push(call.proxy_op(*parent, shape));
        }
        self.receives.iter().chain(&self.sends).for_each(Op::in_progress);
        (&mut self.sends, &mut self.receives)
    }

    /// Stops the work of the channels.
    pub(crate) fn end(&mut self) {
        let now = now_ns();
        self.kernels.drain(..).for_each(|kernel| kernel.stop(now));
    }
}

/// A send or a receive of a group.
#[derive(Clone, Copy)]
struct Peer {
    function: Function,
    buffer: *mut c_void,
    count: usize,
    peer: i32,
}

impl Peer {
    fn send<N: NetApi>(stream: &SendStream, buffers: Addresses, all: &[Connection<'_, N, SendComm>]) -> Self {
        let base = if stream.place == Place::Input { buffers.input } else { buffers.output };
        let slices = stream.slices.iter().map(|slice| (slice.offset, slice.length));
        Self::new(Function::SEND, base, slices, all[stream.connection].peer())
    }

    fn receive<N: NetApi>(stream: &RecvStream, buffers: Addresses, all: &[Connection<'_, N, RecvComm>]) -> Self {
        let slices = stream.slices.iter().map(|slice| (slice.offset, slice.length));
        Self::new(Function::RECV, buffers.output, slices, all[stream.connection].peer())
    }

    fn new(
        function: Function,
        base: *mut c_void,
        mut slices: impl Iterator<Item = (usize, usize)>,
        peer: usize,
    ) -> Self {
        let (start, first) = slices.next().unwrap_or_default();
        let count = first + slices.map(|(_, length)| length).sum::<usize>();
        Self { function, buffer: base.wrapping_byte_add(start * ELEMENT_BYTES), count, peer: number(peer) }
    }
}

/// Announces a group of sends and receives. The user calls them in pairs.
fn announce_peers<'p>(call: Call<'p>, group_api: &Event<'p>, sends: &[Peer], receives: &[Peer]) -> Parents<'p> {
    let api = |peer: &Peer| {
        let Peer { function, count, .. } = *peer;
        let api = P2pCall { function, count, data_type: DataType::FLOAT32, graph_captured: false };
        stopped(call.p2p_api(group_api.parent(), &api))
    };
    let apis: Vec<_> = sends.iter().zip(receives).map(|(send, receive)| (api(send), api(receive))).collect();
    let group = launched(call, group_api);
    let start = |(peer, api): (&Peer, Parent<'p>)| {
        let Peer { function, buffer, count, peer } = *peer;
        call.p2p(group.parent(), api, &P2p { function, buffer, data_type: DataType::FLOAT32, count, peer, channels: 1 })
    };
    let sends: Vec<_> = sends.iter().zip(apis.iter().map(|(send, _)| *send)).map(start).collect();
    let receives: Vec<_> = receives.iter().zip(apis.iter().map(|(_, receive)| *receive)).map(start).collect();
    let [sends, receives] = [sends, receives].map(|events| events.into_iter().map(stopped).collect());
    group.stop();
    Parents { sends, receives }
}

/// Ends the user's group, launches, and starts the group of operations.
fn launched<'p>(call: Call<'p>, group_api: &Event<'p>) -> Event<'p> {
    group_api.group_ends();
    call.kernel_launch(group_api.parent()).stop();
    call.group()
}

/// Stops an event that was only started to be a parent.
fn stopped(event: Event<'_>) -> Parent<'_> {
    let parent = event.parent();
    event.stop();
    parent
}

fn shape<N: NetApi, S: Side>(
    index: usize,
    connection: &Connection<'_, N, S>,
    lengths: impl ExactSizeIterator<Item = usize>,
    direction: Direction,
) -> OpShape {
    let (steps, shape) = (lengths.len(), connection.shape());
    let largest = lengths.max().unwrap_or(0) * ELEMENT_BYTES;
    OpShape {
        channel: short(index),
        peer: number(connection.peer()),
        steps,
        chunk_bytes: largest.max(shape.slice_bytes),
        direction,
        in_flight: shape.in_flight,
    }
}

fn short(value: usize) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

fn number(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Returns the time of a clock that takes the place of the GPU's, in nanoseconds since 1970, as a GPU's is too.
fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}
