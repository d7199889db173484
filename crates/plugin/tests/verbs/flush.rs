//! GPU memory: never read by the processor, and flushed when NCCL asks. The adapters of the fake libibverbs accept any
//! memory as GPU memory.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use railweave_abi::NcclResult;
use railweave_abi::net::v12;
use railweave_fabric_verbs::sys;
use railweave_fake_ibverbs::{Counts, FakeVerbs};
use railweave_nccl_host::memory::HostMemory;
use railweave_nccl_host::net::{Comm, NetApi, Part, Registration};
use railweave_transport::Message;

use crate::common::{
    Buffer, Pair, Stranger, accept, alone, each, library as plugin_library, listen, noise, start, until, warnings,
    warnings_with,
};
use crate::machine::{EVEN, FUSED, ROCE, finish, machine, with};
use crate::strangers::{greeted, lanes_of, probe};

/// NCCL's number for GPU memory (NCCL_PTR_CUDA).
const CUDA: i32 = 2;

/// Returns the plugin's own table, because the loader registers only host memory.
fn table() -> &'static v12::Net {
    let path = CString::new(plugin_library().into_os_string().into_encoded_bytes()).unwrap();
    let symbol: &CStr = c"ncclNetPlugin_v12";
    // SAFETY: both texts end with a NUL, and the plugin's symbol is a table of the type that its name says.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "the library loads");
        libc::dlsym(library, symbol.as_ptr()).cast::<v12::Net>().as_ref().expect("the table is there")
    }
}

/// Memory registered as GPU memory with one end of a connection.
struct GpuMemory {
    memory: HostMemory,
    registration: Registration,
    comm: *mut c_void,
}

impl GpuMemory {
    fn new(comm: *mut c_void, bytes: usize) -> Self {
        let memory = HostMemory::new(bytes);
        let mut handle = null_mut();
        // SAFETY: the memory stays until `release`.
        let result = unsafe {
            table().reg_mr.unwrap()(comm, memory.start().as_ptr().cast(), memory.bytes(), CUDA, &raw mut handle)
        };
        assert_eq!(result, NcclResult::SUCCESS);
        Self { memory, registration: Registration(handle), comm }
    }

    fn part(&self, bytes: usize) -> Part {
        Part { data: self.memory.start(), bytes, tag: 7, registration: self.registration }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialised, and no transfer is in progress when this is called.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.memory.bytes()) }
    }

    fn release(self) {
        // SAFETY: registered in `new` with this end, which is still open.
        assert_eq!(unsafe { table().dereg_mr.unwrap()(self.comm, self.registration.0) }, NcclResult::SUCCESS);
    }
}

/// Makes two adapters that accept GPU memory, whatever the profile; other adapters have nothing to flush. `habits` are
/// further lines of the description.
fn takes_gpu_memory(habits: &str) -> FakeVerbs {
    machine(&format!("{habits}{}", ROCE.replace("[[device.port]]\n", "dma_buf = true\n[[device.port]]\n")))
}

/// Moves a message from GPU memory to GPU memory and flushes it. Returns the cost, and true if there was a flush.
fn flushed_transfer(fake: &FakeVerbs, pair: &Pair<'_>, bytes: usize) -> (Counts, bool) {
    let message = noise(bytes as u64, bytes);
    let (mut from, mut to) =
        (GpuMemory::new(pair.send.pointer(), bytes.max(1)), GpuMemory::new(pair.recv.pointer(), bytes.max(1)));
    from.bytes_mut()[..bytes].copy_from_slice(&message);
    let before = fake.counts();
    let recv = pair.irecv(&[to.part(bytes)]);
    let part = from.part(bytes);
    let send = until("a receive for this send", || {
        // SAFETY: the memory stays until the request is done.
        unsafe { pair.from.isend(&pair.send, part.data, bytes, 7, part.registration) }.unwrap()
    });
    assert_eq!(pair.finish(&[send], &[recv]).0, [bytes as i32]);
    // SAFETY: as above.
    let flush = unsafe { pair.to.iflush(&pair.recv, &[to.part(bytes)]) }.unwrap();
    if let Some(flush) = &flush {
        // SAFETY: the request is not done.
        until("the flush", || unsafe { pair.to.test(flush, None) }.unwrap().then_some(()));
    }
    let counts = fake.counts().since(&before);
    assert!(to.bytes_mut()[..bytes] == message, "{bytes} bytes arrived otherwise");
    from.release();
    to.release();
    (counts, flush.is_some())
}

#[test]
fn a_flush_reads_one_byte_through_each_rail_that_wrote() {
    each(
        &[(&[FUSED, EVEN][..], 2), (&[FUSED, ("RAILWEAVE_WEIGHTS", "1,0")], 1), (&[], 1)],
        |(settings, _)| with(settings),
        |(_, rails)| {
            let fake = takes_gpu_memory("");
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            for _ in 0..100 {
                let (counts, flushed) = flushed_transfer(&fake, &pair, 100_000);
                assert_eq!((counts.reads, flushed), (*rails, true));
            }
            // A short message travels over one rail and is not sent inline; only its CTS is.
            let (counts, flushed) = flushed_transfer(&fake, &pair, 64);
            assert_eq!((counts.reads, counts.inline, flushed), (1, 1, true));
            let (counts, flushed) = flushed_transfer(&fake, &pair, 0);
            assert_eq!((counts.reads, flushed), (0, false), "there is nothing to flush");
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn a_flush_in_progress_fails_with_its_adapter() {
    alone(&with(&[]), || {
        let fake = takes_gpu_memory("");
        let (_plugin, net) = start();
        let [pair, other] = [0, 1].map(|device| Pair::open(&net, &net, device));
        let (from, to) = (GpuMemory::new(pair.send.pointer(), 1000), GpuMemory::new(pair.recv.pointer(), 1000));
        let recv = pair.irecv(&[to.part(1000)]);
        let part = from.part(1000);
        let send = until("a receive for this send", || {
            // SAFETY: the memory stays until the request is done.
            unsafe { pair.from.isend(&pair.send, part.data, 1000, 7, part.registration) }.unwrap()
        });
        pair.finish(&[send], &[recv]);
        // The adapter takes work and never completes it, like one that is gone. NCCL waits only for the flush.
        fake.cut("mlx5_0", 1).unwrap();
        // SAFETY: as above.
        let flush = unsafe { pair.to.iflush(&pair.recv, &[to.part(1000)]) }.unwrap().expect("a flush");
        // SAFETY: the request is not done.
        let test = || unsafe { pair.to.test(&flush, None) };
        assert!(!test().unwrap());
        fake.raise_only("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
        until("the flush's failure", || test().err());
        assert_eq!(warnings_with(&["test: ", "mlx5_0: the device failed"]).len(), 1, "{:?}", warnings());
        other.exchange(1, 100_000);
        fake.mend("mlx5_0", 1).unwrap();
        from.release();
        to.release();
        [pair, other].into_iter().for_each(Pair::close);
        finish(&fake, net);
    });
}

/// Sets up a stranger's connection until only its READY is missing.
fn until_ready(fake: &FakeVerbs, stranger: &mut Stranger, connection: u32) {
    stranger.offer(connection);
    stranger.send(connection, lanes_of(5));
    assert!(matches!(stranger.receive(), Message::Lanes(_)));
    probe(fake, stranger, connection);
}

#[test]
fn a_flush_in_progress_fails_with_its_adapter_when_the_peer_is_gone() {
    // The peer leaves while its READY waits for the set-up thread, later, or after it has closed the connection.
    each(
        &[(true, false), (false, false), (false, true)],
        // With these timeouts no PING comes between the expected messages.
        |_| with(&[("RAILWEAVE_HANDSHAKE_TIMEOUT", "600"), ("RAILWEAVE_PEER_TIMEOUT", "3600")]),
        |(is_early, says_bye)| {
            let fake = takes_gpu_memory(if *is_early { "faults = ['create_qp:3:5000ms']\n" } else { "" });
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            let (mut peer, mut other) = (greeted(&handle), greeted(&handle));
            let mut ends = Vec::new();
            if *is_early {
                until_ready(&fake, &mut peer, 1);
                // The other peer's set-up delays the set-up thread's work for READY.
                other.offer(1);
                other.send(1, lanes_of(6));
                other.until_read();
                peer.send(1, Message::Ready { usable: 1 });
                peer.until_read();
                drop(peer);
                ends.push(accept(&net, &listening));
            } else {
                for connection in [1, 2] {
                    until_ready(&fake, &mut peer, connection);
                    peer.send(connection, Message::Ready { usable: 1 });
                    ends.push(accept(&net, &listening));
                }
                if *says_bye {
                    peer.send(1, Message::Bye(None));
                }
                drop(peer);
                // The stranger's lane leads back to this process, whose adapter answers for it.
                fake.cut("mlx5_0", 1).unwrap();
                let last = Buffer::new(&net, Comm::Recv(&ends[1]), 1000);
                // SAFETY: the buffer stays until the end.
                let irecv = || unsafe { net.irecv(&ends[1], &[last.part(7)], false) };
                if let Ok(request) = until("a receive, or its failure", || irecv().transpose()) {
                    // SAFETY: it is not tested again after its error.
                    until("the loss of the peer", || unsafe { net.test(&request, None) }.err());
                }
                last.release(&net, Comm::Recv(&ends[1]));
            }
            let to = GpuMemory::new(ends[0].pointer(), 1000);
            fake.cut("mlx5_0", 1).unwrap();
            // SAFETY: the memory stays until the end.
            let flush = unsafe { net.iflush(&ends[0], &[to.part(1000)]) }.unwrap().expect("a flush");
            // SAFETY: the request is not done.
            let test = || unsafe { net.test(&flush, None) };
            assert!(!test().unwrap());
            fake.raise_only("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
            until("the flush's failure", || test().err());
            fake.mend("mlx5_0", 1).unwrap();
            to.release();
            drop(other);
            ends.into_iter().for_each(|end| net.close_recv(end).unwrap());
            net.close_listen(listening).unwrap();
            finish(&fake, net);
        },
    );
}

#[test]
fn host_memory_needs_no_flush() {
    each(
        &[()],
        |()| with(&[]),
        |()| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&noise(1, 1000)), pair.incoming(1000));
            pair.transfer(&from, 1000, &to);
            // SAFETY: the memory stays until the end.
            assert!(unsafe { net.iflush(&pair.recv, &[to.part(7)]) }.unwrap().is_none());
            assert_eq!(fake.counts().reads, 0);
            pair.release_outgoing(from);
            pair.release_incoming(to);
            pair.close();
            finish(&fake, net);
        },
    );
}

#[test]
fn where_flushes_are_off_there_is_nothing_to_wait_for() {
    each(
        &["NCCL_GDR_FLUSH_DISABLE", "RAILWEAVE_FLUSH"],
        |name| with(&[(*name, if *name == "RAILWEAVE_FLUSH" { "0" } else { "1" })]),
        |_| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            for _ in 0..3 {
                let (counts, flushed) = flushed_transfer(&fake, &pair, 100_000);
                assert_eq!((counts.reads, flushed), (0, false));
            }
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}
