//! Once a connection is up, isend, irecv, test and iflush neither allocate nor free, also if the connection is watched
//! by NCCL's profiler or traced: the library is linked into this test, with an allocator that counts both for the
//! calling thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use nccl_net_railweave::ncclNetPlugin_v12 as net;
use railweave_abi::profiler::EventCall;
use railweave_abi::{NcclResult, ProfilerCallback};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// The events that NCCL's callback has started.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn ok(result: NcclResult) {
    assert!(result.is_success(), "{result}");
}

/// Both ends of one connection, in one process and one thread.
struct Loop {
    context: *mut c_void,
    send: *mut c_void,
    receive: *mut c_void,
    buffers: [Vec<u8>; 2],
    memory: [*mut c_void; 2],
    /// NCCL's handle of each request for its profiler.
    handle: *mut c_void,
}

const BYTES: usize = 4 << 20;

impl Loop {
    /// Connects both ends, with a callback for events if this is the handle of requests.
    fn connect(profiled: *mut c_void) -> Self {
        let callback: Option<ProfilerCallback> = if profiled.is_null() { None } else { Some(event) };
        let [mut context, mut listen, mut send, mut receive] = [null_mut::<c_void>(); 4];
        let mut handle = [0_u8; 128];
        // SAFETY: the arguments are as the API requires, and every pointer is valid during the call.
        unsafe {
            ok(net.init.unwrap()(&raw mut context, 0, null_mut(), None, callback));
            ok(net.listen.unwrap()(context, 0, handle.as_mut_ptr().cast(), &raw mut listen));
            while send.is_null() || receive.is_null() {
                if send.is_null() {
                    ok(net.connect.unwrap()(context, 0, handle.as_mut_ptr().cast(), &raw mut send, null_mut()));
                }
                if receive.is_null() {
                    ok(net.accept.unwrap()(listen, &raw mut receive, null_mut()));
                }
            }
            ok(net.close_listen.unwrap()(listen));
        }
        let mut buffers = [vec![7; BYTES], vec![0; BYTES]];
        let mut memory = [null_mut(); 2];
        for ((comm, buffer), memory) in [send, receive].into_iter().zip(&mut buffers).zip(&mut memory) {
            // SAFETY: as above; the buffers outlive their registrations.
            ok(unsafe { net.reg_mr.unwrap()(comm, buffer.as_mut_ptr().cast(), BYTES, 1, memory) });
        }
        Self { context, send, receive, buffers, memory, handle: profiled }
    }

    /// Moves one group of messages. Returns its size as the receiver sees it.
    fn round(&mut self, count: usize, size: usize) -> usize {
        let part = BYTES / 8;
        let (mut sends, mut received, mut sizes) = ([null_mut::<c_void>(); 8], null_mut::<c_void>(), [0 as c_int; 8]);
        // SAFETY: as above; each request is tested until it is done, and not afterwards.
        unsafe {
            let mut data: [*mut c_void; 8] = std::array::from_fn(|i| self.buffers[1].as_mut_ptr().add(i * part).cast());
            let (mut room, mut tags) = ([part; 8], std::array::from_fn::<c_int, 8, _>(|i| i as c_int));
            let (mut memory, mut handles) = ([self.memory[1]; 8], [self.handle; 8]);
            while received.is_null() {
                ok(net.irecv.unwrap()(
                    self.receive,
                    count as c_int,
                    data.as_mut_ptr(),
                    room.as_mut_ptr(),
                    tags.as_mut_ptr(),
                    memory.as_mut_ptr(),
                    handles.as_mut_ptr(),
                    &raw mut received,
                ));
            }
            for (index, request) in sends.iter_mut().enumerate().take(count) {
                let start = self.buffers[0].as_mut_ptr().add(index * part).cast();
                while request.is_null() {
                    let tag = index as c_int;
                    ok(net.isend.unwrap()(self.send, start, size, tag, self.memory[0], self.handle, request));
                }
            }
            let mut left = count + 1;
            while left > 0 {
                for request in sends.iter_mut().take(count).chain([&mut received]) {
                    let mut done = 0;
                    if !request.is_null() {
                        ok(net.test.unwrap()(*request, &raw mut done, sizes.as_mut_ptr()));
                    }
                    if done == 1 {
                        *request = null_mut();
                        left -= 1;
                    }
                }
            }
            let mut flush = null_mut();
            let memory = memory.as_mut_ptr();
            ok(net.iflush.unwrap()(self.receive, 1, data.as_mut_ptr(), sizes.as_mut_ptr(), memory, &raw mut flush));
            assert!(flush.is_null(), "host memory needs no flush");
        }
        sizes[..count].iter().map(|size| *size as usize).sum()
    }

    fn close(self) {
        // SAFETY: nothing is in progress, and nothing is used again.
        unsafe {
            ok(net.dereg_mr.unwrap()(self.send, self.memory[0]));
            ok(net.dereg_mr.unwrap()(self.receive, self.memory[1]));
            ok(net.close_send.unwrap()(self.send));
            ok(net.close_recv.unwrap()(self.receive));
            ok(net.finalize.unwrap()(self.context));
        }
    }
}

/// NCCL's callback, which starts every event.
unsafe extern "C" fn event(event: *mut *mut c_void, call: c_int, _: *mut c_void, _: i64, _: *mut c_void) -> NcclResult {
    if call == EventCall::START.0 {
        // SAFETY: the plugin passes a place for the event.
        unsafe { event.write(without_provenance_mut(1)) };
        EVENTS.with(|events| events.set(events.get() + 1));
    }
    NcclResult::SUCCESS
}

/// Checks that rounds allocate nothing once the first one is over: a thread that is traced gets its ring with it.
fn does_not_allocate(mut pair: Loop) {
    pair.round(1, 8);
    let before = COUNT.with(Cell::get);
    assert!(before > 0, "the allocator counts");
    for _ in 0..100 {
        for (count, size) in [(1, 0), (1, 8), (1, 100_000), (1, 512 << 10), (8, 1000), (3, 200_000)] {
            assert_eq!(pair.round(count, size), count * size);
        }
    }
    assert_eq!(COUNT.with(Cell::get) - before, 0, "allocations in 600 rounds of isend, irecv, test and iflush");
    pair.close();
}

#[test]
fn the_data_path_does_not_allocate() {
    // SAFETY: no other thread of this process reads the environment at this point.
    unsafe {
        std::env::set_var("RAILWEAVE_FABRIC", "tcp");
        std::env::set_var("RAILWEAVE_RAILS", "127.0.0.1/32,127.0.0.2/32");
    }
    does_not_allocate(Loop::connect(null_mut()));
    does_not_allocate(Loop::connect(without_provenance_mut(1)));
    assert!(EVENTS.with(Cell::get) > 1000, "the events of rails");
    let dir = std::env::temp_dir().join(format!("railweave-allocations-{}", std::process::id()));
    // SAFETY: as above: the plugin's threads have ended.
    unsafe { std::env::set_var("RAILWEAVE_TRACE", &dir) };
    does_not_allocate(Loop::connect(null_mut()));
    assert_eq!(std::fs::read_dir(&dir).expect("the traces' folder").count(), 1);
    std::fs::remove_dir_all(&dir).expect("the folder is this test's");
}
