//! A net in memory, for ranks that are threads: it keeps the rules of the API and fails if the host breaks one.
#![allow(dead_code, reason = "no test needs all of it")]

use railweave_bench::bootstrap::{Event, Link, Relay};
use railweave_bench::communicator::{Mode, Settings};
use railweave_bench::{Communicator, CommunicatorError};
use railweave_nccl_host::net::{
    Comm, Handle, ListenComm, MAX_PARTS, NetApi, NetError, Part, ProfilerHandle, Properties, RecvComm, Registration,
    Request, SendComm,
};
use railweave_nccl_host::profiler::{CommunicatorInfo, EventCall, ProfilerCallback, ProfilerPlugin};
use railweave_patience::until;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::os::unix::net::UnixStream;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The faults. Each names a message by its number, in the order of all sends of the world.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One bit of this message's data is flipped.
    pub(crate) flip_bit: Option<usize>,
    /// This message and all later ones never arrive.
    pub(crate) lose_from: Option<usize>,
    /// The receiver's size of this message is one byte too small.
    pub(crate) short_size: Option<usize>,
    /// The send of this message fails.
    pub(crate) fail: Option<usize>,
}

/// The state shared by all ranks.
#[derive(Default)]
pub(crate) struct World {
    faults: Faults,
    wires: Mutex<HashMap<u64, Arc<Wire>>>,
    /// Messages sent.
    pub(crate) messages: AtomicUsize,
    /// Messages of no bytes.
    pub(crate) empty: AtomicUsize,
    /// The largest message.
    pub(crate) largest: AtomicUsize,
    /// Listens, connections and registrations that are open.
    pub(crate) open: AtomicI64,
    /// The callback for the profiler, if the nets report their requests to one.
    callback: Option<ProfilerCallback>,
}

/// One connection.
#[derive(Default)]
struct Wire {
    state: Mutex<WireState>,
}

#[derive(Default)]
struct WireState {
    connected: bool,
    closed: bool,
    receives: VecDeque<Arc<Receive>>,
}

struct Receive {
    data: NonNull<u8>,
    bytes: usize,
    tag: i32,
    size: AtomicUsize,
    done: AtomicBool,
}

// SAFETY: the address is used only under the wire's lock, while the wire is open.
unsafe impl Send for Receive {}
// SAFETY: as above.
unsafe impl Sync for Receive {}

/// The object behind every pointer of a listen or a connection.
struct End {
    wire: Arc<Wire>,
    registrations: Mutex<Vec<usize>>,
}

/// The object behind a registration.
struct Memory {
    start: usize,
    bytes: usize,
}

/// The object behind a request.
enum Pending {
    Send {
        wire: Arc<Wire>,
        receive: Arc<Receive>,
        data: NonNull<u8>,
        bytes: usize,
        number: usize,
        polls: AtomicUsize,
        event: *mut c_void,
    },
    Receive(Arc<Receive>, *mut c_void),
}

/// One rank's net.
pub(crate) struct Loopback(pub(crate) Arc<World>);

fn end<'a>(pointer: *mut c_void) -> &'a End {
    // SAFETY: every pointer was made from a box of this type and is freed only by close.
    unsafe { &*pointer.cast() }
}

fn boxed<T>(value: T) -> NonNull<c_void> {
    NonNull::from(Box::leak(Box::new(value))).cast()
}

fn failed(call: &'static str, what: &'static str) -> NetError {
    NetError::Broken { plugin: "loopback".to_owned(), call, what }
}

impl Loopback {
    /// Starts the event of a request, and returns its handle. The kind of network is one that NCCL does not know.
    fn start_event(&self, profiler: ProfilerHandle) -> *mut c_void {
        let mut event = null_mut();
        if let Some(callback) = self.0.callback.filter(|_| profiler != ProfilerHandle::NONE) {
            // SAFETY: the host keeps the step in place while the request is outstanding.
            let _ = unsafe { callback(&raw mut event, EventCall::START.0, profiler.pointer(), 0x3_0001, null_mut()) };
        }
        event
    }

    /// Stops an event, unless the profiler did not want it.
    fn stop_event(&self, mut event: *mut c_void) {
        if let Some(callback) = self.0.callback.filter(|_| !event.is_null()) {
            // SAFETY: the handle was written by a start.
            let _ = unsafe { callback(&raw mut event, EventCall::STOP.0, null_mut(), 0, null_mut()) };
        }
    }

    fn open_end(&self, wire: Arc<Wire>) -> NonNull<c_void> {
        self.0.open.fetch_add(1, SeqCst);
        boxed(End { wire, registrations: Mutex::default() })
    }

    fn close_end(&self, pointer: *mut c_void) {
        assert!(end(pointer).registrations.lock().unwrap().is_empty(), "closed before its registrations ended");
        end(pointer).wire.state.lock().unwrap().closed = true;
        // SAFETY: see `end`; this is the pointer's last use.
        drop(unsafe { Box::from_raw(pointer.cast::<End>()) });
        self.0.open.fetch_sub(1, SeqCst);
    }
}

fn check_registered(comm: Comm<'_>, registration: Registration, data: NonNull<u8>, bytes: usize) {
    let known = end(comm.pointer()).registrations.lock().unwrap().contains(&registration.0.addr());
    assert!(known, "a registration of another connection");
    // SAFETY: it is known, so it has not been freed.
    let memory = unsafe { &*registration.0.cast::<Memory>() };
    let start = data.addr().get();
    assert!(memory.start <= start && start + bytes <= memory.start + memory.bytes, "outside the registration");
}

impl NetApi for Loopback {
    fn devices(&self) -> Result<i32, NetError> {
        Ok(1)
    }

    fn properties(&self, _device: i32) -> Result<Properties, NetError> {
        Err(failed("getProperties", "not needed here"))
    }

    fn listen(&self, _device: i32, handle: &mut Handle) -> Result<ListenComm, NetError> {
        let wire = Arc::new(Wire::default());
        let mut wires = self.0.wires.lock().unwrap();
        let id = wires.len() as u64 + 1;
        handle.0[..8].copy_from_slice(&id.to_le_bytes());
        wires.insert(id, Arc::clone(&wire));
        Ok(ListenComm::new(self.open_end(wire)))
    }

    fn connect(&self, _device: i32, handle: &mut Handle) -> Result<Option<SendComm>, NetError> {
        // The handle counts some polls, so it must persist.
        handle.0[100] += 1;
        if handle.0[100] < 3 {
            return Ok(None);
        }
        let id = u64::from_le_bytes(handle.0[..8].try_into().unwrap());
        let wire = Arc::clone(self.0.wires.lock().unwrap().get(&id).expect("a handle of a listen"));
        let connected = std::mem::replace(&mut wire.state.lock().unwrap().connected, true);
        assert!(!connected, "one listen is for one connection");
        Ok(Some(SendComm::new(self.open_end(wire))))
    }

    fn accept(&self, listen: &ListenComm) -> Result<Option<RecvComm>, NetError> {
        let wire = &end(listen.pointer()).wire;
        let connected = wire.state.lock().unwrap().connected;
        Ok(connected.then(|| RecvComm::new(self.open_end(Arc::clone(wire)))))
    }

    unsafe fn reg_mr(&self, comm: Comm<'_>, data: NonNull<u8>, bytes: usize) -> Result<Registration, NetError> {
        self.0.open.fetch_add(1, SeqCst);
        let memory = boxed(Memory { start: data.addr().get(), bytes }).as_ptr();
        end(comm.pointer()).registrations.lock().unwrap().push(memory.addr());
        Ok(Registration(memory))
    }

    unsafe fn dereg_mr(&self, comm: Comm<'_>, registration: Registration) -> Result<(), NetError> {
        self.0.open.fetch_sub(1, SeqCst);
        let mut known = end(comm.pointer()).registrations.lock().unwrap();
        let index = known.iter().position(|known| *known == registration.0.addr()).expect("a registration of this one");
        known.remove(index);
        // SAFETY: made by `reg_mr`, and no longer known.
        drop(unsafe { Box::from_raw(registration.0.cast::<Memory>()) });
        Ok(())
    }

    unsafe fn isend_profiled(
        &self,
        comm: &SendComm,
        data: NonNull<u8>,
        bytes: usize,
        tag: i32,
        registration: Registration,
        profiler: ProfilerHandle,
    ) -> Result<Option<Request>, NetError> {
        check_registered(Comm::Send(comm), registration, data, bytes);
        let wire = Arc::clone(&end(comm.pointer()).wire);
        let receive = wire.state.lock().unwrap().receives.pop_front();
        let Some(receive) = receive else { return Ok(None) };
        assert!(bytes <= receive.bytes && tag == receive.tag, "a send fits its receive");
        let number = self.0.messages.fetch_add(1, SeqCst);
        self.0.empty.fetch_add(usize::from(bytes == 0), SeqCst);
        self.0.largest.fetch_max(bytes, SeqCst);
        if self.0.faults.fail == Some(number) {
            return Err(failed("isend", "a failure that the test asked for"));
        }
        let (polls, event) = (AtomicUsize::new(0), self.start_event(profiler));
        Ok(Some(Request::new(boxed(Pending::Send { wire, receive, data, bytes, number, polls, event }))))
    }

    unsafe fn irecv_profiled(
        &self,
        comm: &RecvComm,
        parts: &[Part],
        _optional: bool,
        profiler: &[ProfilerHandle],
    ) -> Result<Option<Request>, NetError> {
        let [part] = parts else { panic!("one part") };
        check_registered(Comm::Recv(comm), part.registration, part.data, part.bytes);
        let mut state = end(comm.pointer()).wire.state.lock().unwrap();
        if state.receives.len() == 2 {
            return Ok(None);
        }
        let (size, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let receive = Arc::new(Receive { data: part.data, bytes: part.bytes, tag: part.tag, size, done });
        state.receives.push_back(Arc::clone(&receive));
        let event = profiler.first().map_or(null_mut(), |handle| self.start_event(*handle));
        Ok(Some(Request::new(boxed(Pending::Receive(receive, event)))))
    }

    unsafe fn iflush(&self, _comm: &RecvComm, _parts: &[Part]) -> Result<Option<Request>, NetError> {
        Ok(None)
    }

    unsafe fn test(&self, request: &Request, sizes: Option<&mut [c_int; MAX_PARTS]>) -> Result<bool, NetError> {
        // SAFETY: made by `isend` or `irecv`, and freed only below, when it is done.
        let pending = unsafe { &*request.pointer().cast::<Pending>() };
        let faults = self.0.faults;
        let done = match pending {
            Pending::Receive(receive, _) => {
                let done = receive.done.load(SeqCst);
                if let Some(sizes) = sizes.filter(|_| done) {
                    sizes[0] = receive.size.load(SeqCst) as c_int;
                }
                done
            }
            Pending::Send { number, .. } if faults.lose_from.is_some_and(|from| *number >= from) => false,
            Pending::Send { wire, receive, data, bytes, number, polls, .. } => {
                if polls.fetch_add(1, SeqCst) < 2 {
                    return Ok(false);
                }
                let state = wire.state.lock().unwrap();
                if state.closed {
                    return Err(failed("test", "the peer closed"));
                }
                // SAFETY: the sender waits for this request, and the receiver's side is open, so both buffers are
                // there.
                unsafe {
                    receive.data.copy_from_nonoverlapping(*data, *bytes);
                    if faults.flip_bit == Some(*number) && *bytes > 0 {
                        *receive.data.add(bytes / 2).as_ptr() ^= 0x10;
                    }
                }
                receive.size.store(bytes - usize::from(faults.short_size == Some(*number)), SeqCst);
                receive.done.store(true, SeqCst);
                true
            }
        };
        if done {
            match pending {
                Pending::Send { event, .. } | Pending::Receive(_, event) => self.stop_event(*event),
            }
            // SAFETY: a request is not tested again after it is done.
            drop(unsafe { Box::from_raw(request.pointer().cast::<Pending>()) });
        }
        Ok(done)
    }

    fn close_send(&self, comm: SendComm) -> Result<(), NetError> {
        self.close_end(comm.pointer());
        Ok(())
    }

    fn close_recv(&self, comm: RecvComm) -> Result<(), NetError> {
        self.close_end(comm.pointer());
        Ok(())
    }

    fn close_listen(&self, listen: ListenComm) -> Result<(), NetError> {
        // SAFETY: see `end`; a listen's end does not close the connection.
        drop(unsafe { Box::from_raw(listen.pointer().cast::<End>()) });
        self.0.open.fetch_sub(1, SeqCst);
        Ok(())
    }
}

impl World {
    /// Returns a world with these faults.
    pub(crate) fn with(faults: Faults) -> Arc<Self> {
        Arc::new(Self { faults, ..Self::default() })
    }
}

/// Returns a net for a single rank.
pub(crate) fn alone(faults: Faults) -> (Loopback, Arc<World>) {
    let world = Arc::new(World { faults, ..World::default() });
    (Loopback(Arc::clone(&world)), world)
}

/// Runs `body` on `ranks` ranks over `devices` rings, and returns the result of each.
pub(crate) fn with_ranks(
    ranks: usize,
    devices: i32,
    mode: Mode,
    faults: Faults,
    body: impl Fn(&mut Communicator<'_, Loopback>) -> Result<(), String> + Sync,
) -> (Vec<Result<(), String>>, Arc<World>) {
    with_profiled_ranks(None, ranks, devices, mode, faults, body)
}

/// As [`with_ranks`], but every rank has a profiler, which its net reports to as well.
pub(crate) fn with_profiled_ranks(
    plugin: Option<&ProfilerPlugin>,
    ranks: usize,
    devices: i32,
    mode: Mode,
    faults: Faults,
    body: impl Fn(&mut Communicator<'_, Loopback>) -> Result<(), String> + Sync,
) -> (Vec<Result<(), String>>, Arc<World>) {
    let callback = plugin.map(ProfilerPlugin::callback);
    let world = Arc::new(World { faults, callback, ..World::default() });
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..ranks).map(|_| UnixStream::pair().unwrap()).unzip();
    let mut relay = Relay::start(ours, b"").unwrap();
    let failed = AtomicBool::new(false);
    let play = |link: &mut Link| -> Result<(), String> {
        let text = |error: CommunicatorError| error.to_string();
        let net = Loopback(Arc::clone(&world));
        // Only a lost message makes a rank wait this long.
        let stall = Duration::from_secs(if faults.lose_from.is_some() { 2 } else { 60 });
        let settings = Settings { devices: (0..devices).collect(), mode, stall };
        let info = CommunicatorInfo { ranks: ranks as i32, rank: link.rank() as i32, ..CommunicatorInfo::default() };
        let profiler = plugin.map(|plugin| plugin.init(info).expect("init succeeds"));
        let mut communicator = Communicator::connect(&net, link, settings).map_err(text)?;
        communicator.set_profiler(profiler.as_ref());
        body(&mut communicator)?;
        // Connections close once all ranks are done; here a close ends the wire for both sides.
        link.barrier().map_err(|error| error.to_string())?;
        communicator.close().map_err(text)
    };
    let rank = |stream: UnixStream| -> Result<(), String> {
        let mut link = Link::open(stream).unwrap();
        let result = play(&mut link);
        // The flag is set before the link closes, so that the parent sees it when it sees the end of the link.
        failed.fetch_or(result.is_err(), SeqCst);
        result
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = theirs.into_iter().map(|stream| scope.spawn(|| rank(stream))).collect();
        for _ in 0..ranks {
            let event = until("the end of a rank", || relay.next_event(Duration::from_secs(1)));
            assert!(matches!(event, Event::Closed { .. }), "unexpected: {event:?}");
            if failed.load(SeqCst) {
                // A rank that failed never reaches the barrier, so the others must stop waiting.
                relay.abort("a rank is gone");
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, world)
}
