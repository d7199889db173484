//! The sweep over a net in memory: it accepts exact bytes, and notices everything else.

use railweave_bench::bootstrap::{Event, Link, Relay};
use railweave_bench::sweep::{Results, Settings, run};
use railweave_nccl_host::net::{
    Comm, Handle, ListenComm, MAX_PARTS, NetApi, NetError, Part, ProfilerHandle, Properties, RecvComm, Registration,
    Request, SendComm,
};
use railweave_patience::until;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::unix::net::UnixStream;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A fault of one message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    FlippedBit,
    ByteBeyond,
    ByteBefore,
    MissingByte,
    SizeOfReceive,
    SizeOfSend,
    Swapped,
    Failure,
    Loss,
}

/// The state shared by both ranks. A fault names its message by the message's number, in the order of sends; a loss
/// also affects all later messages.
struct World {
    fault: Option<(usize, Fault)>,
    wires: Mutex<Vec<Arc<Wire>>>,
    messages: AtomicUsize,
    /// Listens, connections, registrations and requests that are open.
    open: AtomicI64,
    max_parts: i32,
}

/// One connection, with the receives that wait for messages.
type Wire = Mutex<VecDeque<Arc<Receive>>>;

struct Receive {
    parts: Vec<Part>,
    sizes: Mutex<Vec<Option<usize>>>,
}

// SAFETY: the parts' addresses are used under the wire's lock, by the sender only, before the receiver sees the sizes,
// and the receiver's close forgets them.
unsafe impl Send for Receive {}
// SAFETY: as above.
unsafe impl Sync for Receive {}

enum Pending {
    Send(usize),
    Receive(Arc<Receive>),
    Lost,
}

struct Memory(Arc<World>);

impl Memory {
    fn open<T>(&self, value: T) -> NonNull<c_void> {
        self.0.open.fetch_add(1, SeqCst);
        NonNull::from(Box::leak(Box::new(value))).cast()
    }

    fn close<T>(&self, pointer: *mut c_void) {
        self.0.open.fetch_sub(1, SeqCst);
        // SAFETY: made by `open` with this type, and closed once.
        drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
    }
}

fn wire<'a>(pointer: *mut c_void) -> &'a Arc<Wire> {
    // SAFETY: every pointer of a listen or a connection was made from such a box and is open.
    unsafe { &*pointer.cast() }
}

impl NetApi for Memory {
    fn devices(&self) -> Result<i32, NetError> {
        Ok(1)
    }

    fn properties(&self, _device: i32) -> Result<Properties, NetError> {
        let (name, max_recvs) = ("memory".to_owned(), self.0.max_parts);
        Ok(Properties {
            name,
            pci_path: None,
            guid: 0,
            ptr_support: 1,
            reg_is_global: false,
            force_flush: false,
            speed_mbps: 1,
            port: 1,
            latency_us: 0.0,
            max_comms: 2,
            max_recvs,
            device_type: 0,
            members: Vec::new(),
            max_p2p_bytes: 1 << 30,
            max_coll_bytes: 1 << 30,
            rail_id: -1,
            plane_id: -1,
        })
    }

    fn listen(&self, _device: i32, handle: &mut Handle) -> Result<ListenComm, NetError> {
        let mut wires = self.0.wires.lock().unwrap();
        handle.0[0] = wires.len() as u8;
        wires.push(Arc::default());
        Ok(ListenComm::new(self.open(Arc::clone(&wires[wires.len() - 1]))))
    }

    fn connect(&self, _device: i32, handle: &mut Handle) -> Result<Option<SendComm>, NetError> {
        let wire = Arc::clone(&self.0.wires.lock().unwrap()[usize::from(handle.0[0])]);
        Ok(Some(SendComm::new(self.open(wire))))
    }

    fn accept(&self, listen: &ListenComm) -> Result<Option<RecvComm>, NetError> {
        Ok(Some(RecvComm::new(self.open(Arc::clone(wire(listen.pointer()))))))
    }

    unsafe fn reg_mr(&self, _comm: Comm<'_>, _data: NonNull<u8>, _bytes: usize) -> Result<Registration, NetError> {
        self.0.open.fetch_add(1, SeqCst);
        Ok(Registration(null_mut()))
    }

    unsafe fn dereg_mr(&self, _comm: Comm<'_>, _registration: Registration) -> Result<(), NetError> {
        self.0.open.fetch_sub(1, SeqCst);
        Ok(())
    }

    unsafe fn isend_profiled(
        &self,
        comm: &SendComm,
        data: NonNull<u8>,
        bytes: usize,
        tag: i32,
        _registration: Registration,
        _profiler: ProfilerHandle,
    ) -> Result<Option<Request>, NetError> {
        let mut wire = wire(comm.pointer()).lock().unwrap();
        let Some(receive) = wire.front().map(Arc::clone) else { return Ok(None) };
        let mut sizes = receive.sizes.lock().unwrap();
        let fits = |(part, size): (&Part, &Option<usize>)| part.tag == tag && size.is_none();
        let Some(index) = receive.parts.iter().zip(&*sizes).position(fits) else { return Ok(None) };
        let number = self.0.messages.fetch_add(1, SeqCst);
        let lost = self.0.fault.is_some_and(|(from, fault)| fault == Fault::Loss && number >= from);
        let fault = self.0.fault.and_then(|(message, fault)| (message == number).then_some(fault));
        if fault == Some(Fault::Failure) {
            return Err(NetError::Broken {
                plugin: "memory".to_owned(),
                call: "isend",
                what: "a failure to be noticed",
            });
        }
        if lost {
            return Ok(Some(Request::new(self.open(Pending::Lost))));
        }
        let (part, carried) = (receive.parts[index], bytes.min(receive.parts[index].bytes));
        let (mut of_receive, mut of_send) = (carried, carried);
        // SAFETY: the parts are inside memory that waits for them, with guards on both sides; so is the noise.
        unsafe {
            match fault {
                None => part.data.copy_from_nonoverlapping(data, carried),
                Some(Fault::MissingByte) => part.data.copy_from_nonoverlapping(data, carried - 1),
                // One byte too many, as if the size were rounded up.
                Some(Fault::ByteBeyond) => part.data.copy_from_nonoverlapping(data, carried + 1),
                Some(Fault::ByteBefore) => part.data.sub(1).copy_from_nonoverlapping(data.sub(1), carried + 1),
                Some(Fault::Swapped) => part.data.copy_from_nonoverlapping(data.add(1), carried),
                Some(fault) => {
                    part.data.copy_from_nonoverlapping(data, carried);
                    match fault {
                        Fault::SizeOfReceive => of_receive += 1,
                        Fault::SizeOfSend => of_send += 1,
                        _ => *part.data.add(carried / 2).as_ptr() ^= 0x10,
                    }
                }
            }
        }
        sizes[index] = Some(of_receive);
        if sizes.iter().all(Option::is_some) {
            wire.pop_front();
        }
        Ok(Some(Request::new(self.open(Pending::Send(of_send)))))
    }

    unsafe fn irecv_profiled(
        &self,
        comm: &RecvComm,
        parts: &[Part],
        _optional: bool,
        _profiler: &[ProfilerHandle],
    ) -> Result<Option<Request>, NetError> {
        let mut wire = wire(comm.pointer()).lock().unwrap();
        // Fewer receives than the sweep posts at a time, so that it must retry.
        if wire.len() == 20 {
            return Ok(None);
        }
        let receive = Arc::new(Receive { parts: parts.to_vec(), sizes: Mutex::new(vec![None; parts.len()]) });
        wire.push_back(Arc::clone(&receive));
        Ok(Some(Request::new(self.open(Pending::Receive(receive)))))
    }

    unsafe fn iflush(&self, _comm: &RecvComm, _parts: &[Part]) -> Result<Option<Request>, NetError> {
        Ok(None)
    }

    unsafe fn test(&self, request: &Request, sizes: Option<&mut [c_int; MAX_PARTS]>) -> Result<bool, NetError> {
        // SAFETY: made by `isend` or `irecv`, and closed only below, when it is done.
        let arrived = match unsafe { &*request.pointer().cast::<Pending>() } {
            Pending::Lost => None,
            Pending::Send(size) => Some(vec![*size]),
            Pending::Receive(receive) => receive.sizes.lock().unwrap().iter().copied().collect(),
        };
        let Some(arrived) = arrived else { return Ok(false) };
        for (size, arrived) in sizes.into_iter().flatten().zip(arrived) {
            *size = arrived as c_int;
        }
        self.close::<Pending>(request.pointer());
        Ok(true)
    }

    fn close_send(&self, comm: SendComm) -> Result<(), NetError> {
        self.close::<Arc<Wire>>(comm.pointer());
        Ok(())
    }

    fn close_recv(&self, comm: RecvComm) -> Result<(), NetError> {
        // The memory of receives in progress may be freed once their connection is closed.
        wire(comm.pointer()).lock().unwrap().clear();
        self.close::<Arc<Wire>>(comm.pointer());
        Ok(())
    }

    fn close_listen(&self, listen: ListenComm) -> Result<(), NetError> {
        self.close::<Arc<Wire>>(listen.pointer());
        Ok(())
    }
}

/// Returns both ranks' results of a sweep up to 64 KiB, and their shared world.
fn sweep(fault: Option<(usize, Fault)>, max_parts: i32) -> ([Result<Results, String>; 2], Arc<World>) {
    let (messages, open) = (AtomicUsize::new(0), AtomicI64::new(0));
    let world = Arc::new(World { fault, wires: Mutex::default(), messages, open, max_parts });
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().unwrap()).unzip();
    let mut relay = Relay::start(ours, b"").unwrap();
    let rank = |stream| {
        let mut link = Link::open(stream).unwrap();
        // Only a lost message makes a rank wait this long.
        let stall = Duration::from_secs(if matches!(fault, Some((_, Fault::Loss))) { 2 } else { 60 });
        let settings = Settings { device: 0, max_bytes: 64 << 10, seed: 1, stall };
        run(&Memory(Arc::clone(&world)), &mut link, &settings, |_, _| {}).map_err(|error| error.to_string())
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = theirs.into_iter().map(|stream| scope.spawn(|| rank(stream))).collect();
        for _ in 0..2 {
            let event = until("the end of a rank", || relay.next_event(Duration::from_secs(1)));
            assert!(matches!(event, Event::Closed { .. }), "{event:?}");
            // If one of the two ranks ends before the other, either it has failed or both are done.
            relay.abort("a rank is gone");
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    (results.try_into().unwrap(), world)
}

#[test]
fn exact_bytes_are_no_mismatch_and_everything_is_closed() {
    for max_parts in [8, 1] {
        let (results, world) = sweep(None, max_parts);
        let phases: Vec<_> = results.iter().flat_map(|of_rank| of_rank.as_ref().unwrap().phases.clone()).collect();
        assert_eq!(phases.len(), 8);
        assert!(phases.iter().all(|phase| phase.mismatches == 0 && phase.messages > 50 && phase.bytes > 1 << 17));
        let messages: usize = phases.iter().map(|phase| phase.messages).sum();
        assert_eq!((world.messages.load(SeqCst), world.open.load(SeqCst)), (messages, 0));
    }
}

#[test]
fn every_inexact_result_is_noticed_once_and_the_sweep_continues() {
    let clean = sweep(None, 8).1.messages.load(SeqCst);
    // Both are messages of the first phase, whose messages are in the order of their sizes.
    for (fault, words) in [
        (Fault::FlippedBit, "was sent as"),
        (Fault::MissingByte, "was sent as"),
        (Fault::Swapped, "was sent as"),
        (Fault::ByteBeyond, "beyond the end of the message, was changed"),
        (Fault::ByteBefore, "1 before its buffer was changed"),
        (Fault::SizeOfReceive, "it must be exactly"),
        (Fault::SizeOfSend, "it must be exactly"),
    ] {
        for message in [20, 101] {
            let (results, world) = sweep(Some((message, fault)), 8);
            let results = results.map(Result::unwrap);
            let found: Vec<_> = results.iter().flat_map(|of_rank| &of_rank.phases).map(|of| of.mismatches).collect();
            assert_eq!(found.iter().sum::<usize>(), 1, "{fault:?} of message {message}: {found:?}");
            let told: Vec<_> = results.into_iter().filter_map(|of_rank| of_rank.first_mismatch).collect();
            assert!(told.len() == 1 && told[0].starts_with("phase sizes one by one, a "), "{told:?}");
            assert!(told[0].contains(words), "{fault:?}: {told:?}");
            assert_eq!((world.messages.load(SeqCst), world.open.load(SeqCst)), (clean, 0));
        }
    }
}

#[test]
fn messages_that_do_not_arrive_and_calls_that_fail_end_it_with_phase_and_size() {
    let (results, _) = sweep(Some((20, Fault::Loss)), 8);
    let errors = results.map(Result::unwrap_err);
    let error = errors.iter().find(|error| error.contains(" after 2 s without progress of rank ")).expect("a stall");
    assert!(error.contains("phase sizes one by one of the sweep waits for a receive of"), "{error}");
    let (results, _) = sweep(Some((20, Fault::Failure)), 8);
    let errors = results.map(Result::unwrap_err);
    let error = errors.iter().find(|error| error.contains("a failure to be noticed")).expect("the failure");
    assert!(error.starts_with("phase sizes one by one of the sweep, a send of "), "{error}");
}
