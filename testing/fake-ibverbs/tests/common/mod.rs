//! Queue pairs with their memory, through the loaded library, as the fabric uses it.
#![allow(dead_code)] // each test file uses a part of it
#![allow(unreachable_pub)] // the module is private to each test file

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use railweave_fabric_verbs::sys::{self, Functions};
use railweave_fake_ibverbs::{FakeVerbs, Open, build};

/// Held by one machine at a time: the library's state belongs to the process.
static TURN: Mutex<()> = Mutex::new(());

/// The description of two devices that reach each other.
pub const TWO: &str = "[[device]]\nname = 'sim0'\n[[device.port]]\n[[device]]\nname = 'sim1'\n[[device.port]]\n";

pub const ACCESS: c_int = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ;

/// A described machine, held by one test.
pub struct Machine {
    pub functions: Functions,
    pub fake: FakeVerbs,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    pub fn new(description: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = build();
        let fake = FakeVerbs::load(&path).expect("the library loads");
        let functions = Functions::load(&[path.to_str().expect("a path in UTF-8")]).expect("all functions are there");
        fake.describe(Some(description)).expect("the description is well-formed");
        Self { functions, fake, _turn: turn }
    }

    /// Opens a device and returns its context.
    pub fn open(&self, index: usize) -> *mut sys::Context {
        let mut count = 0;
        // SAFETY: the list has `count` devices and is freed after one of them is open.
        unsafe {
            let list = (self.functions.get_device_list)(&raw mut count);
            assert!(!list.is_null() && index < count as usize, "{}", self.fake.complaint());
            let context = (self.functions.open_device)(*list.add(index));
            (self.functions.free_device_list)(list);
            context
        }
    }

    /// Checks that nothing is left open.
    pub fn assert_closed(&self) {
        assert_eq!(self.fake.open(), Open::default());
    }
}

/// The properties of an end.
#[derive(Clone, Copy)]
pub struct Wish {
    pub device: usize,
    pub shared: bool,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_inline: u32,
    pub cq_entries: c_int,
    /// The access flags of the memory.
    pub access: c_int,
    /// The access flags of the queue pair.
    pub qp_access: c_int,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            device: 0,
            shared: false,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_inline: 64,
            cq_entries: 64,
            access: ACCESS,
            qp_access: ACCESS,
        }
    }
}

/// The attributes that `connect` passes; tests spoil one of them.
#[derive(Clone, Copy)]
pub struct Plan {
    pub init: sys::QpAttributes,
    pub rtr: sys::QpAttributes,
    pub rts: sys::QpAttributes,
}

pub const TO_INIT: c_int = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
pub const TO_RTR: c_int = sys::QP_STATE
    | sys::QP_AV
    | sys::QP_PATH_MTU
    | sys::QP_DEST_QPN
    | sys::QP_RQ_PSN
    | sys::QP_MAX_DEST_RD_ATOMIC
    | sys::QP_MIN_RNR_TIMER;
pub const TO_RTS: c_int =
    sys::QP_STATE | sys::QP_TIMEOUT | sys::QP_RETRY_CNT | sys::QP_RNR_RETRY | sys::QP_SQ_PSN | sys::QP_MAX_QP_RD_ATOMIC;

/// The length of an end's memory, in bytes.
pub const BYTES: usize = 4096;

/// One queue pair with all the objects that it needs.
pub struct End<'machine> {
    machine: &'machine Machine,
    wish: Wish,
    pub context: *mut sys::Context,
    pub pd: *mut sys::Pd,
    pub send_cq: *mut sys::Cq,
    pub recv_cq: *mut sys::Cq,
    pub srq: *mut sys::Srq,
    pub qp: *mut sys::Qp,
    pub mr: *mut sys::Mr,
    memory: Box<[u8]>,
}

/// One work request.
#[derive(Clone, Copy)]
pub struct Work {
    pub opcode: c_int,
    pub id: u64,
    pub from: usize,
    pub length: u32,
    pub lkey: u32,
    pub remote: u64,
    pub rkey: u32,
    pub immediate: u32,
    pub flags: u32,
}

impl<'machine> End<'machine> {
    pub fn new(machine: &'machine Machine, wish: Wish) -> Self {
        let functions = &machine.functions;
        let context = machine.open(wish.device);
        let memory = vec![0_u8; BYTES].into_boxed_slice();
        // SAFETY: every pointer was returned just before; drop destroys the objects in the opposite order.
        unsafe {
            let pd = (functions.alloc_pd)(context);
            let mr = (functions.reg_mr)(pd, memory.as_ptr().cast_mut().cast(), BYTES, wish.access);
            let send_cq = (functions.create_cq)(context, wish.cq_entries, ptr::null_mut(), ptr::null_mut(), 0);
            let recv_cq = (functions.create_cq)(context, wish.cq_entries, ptr::null_mut(), ptr::null_mut(), 0);
            let mut attributes: sys::SrqInitAttributes = zeroed();
            attributes.attr.max_wr = wish.max_recv_wr;
            attributes.attr.max_sge = 1;
            let srq = if wish.shared { (functions.create_srq)(pd, &raw mut attributes) } else { ptr::null_mut() };
            let mut attributes: sys::QpInitAttributes = zeroed();
            (attributes.send_cq, attributes.recv_cq, attributes.srq) = (send_cq, recv_cq, srq);
            attributes.cap = sys::QpCapabilities {
                max_send_wr: wish.max_send_wr,
                max_recv_wr: if wish.shared { 0 } else { wish.max_recv_wr },
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: wish.max_inline,
            };
            attributes.qp_type = sys::QPT_RC;
            let qp = (functions.create_qp)(pd, &raw mut attributes);
            assert!(!mr.is_null() && !send_cq.is_null() && !qp.is_null(), "{}", machine.fake.complaint());
            Self { machine, wish, context, pd, send_cq, recv_cq, srq, qp, mr, memory }
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is not destroyed.
        unsafe { (*self.qp).qp_num }
    }

    pub fn state(&self) -> c_int {
        // SAFETY: the queue pair is not destroyed.
        unsafe { (*self.qp).state }
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is not deregistered.
        unsafe { (*self.mr).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is not deregistered.
        unsafe { (*self.mr).rkey }
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Reads memory that the other end may have written.
    pub fn byte(&self, index: usize) -> u8 {
        // SAFETY: the index is checked. The library may write the memory at any time, so the read is volatile.
        unsafe { ptr::from_ref(&self.memory[index]).read_volatile() }
    }

    pub fn fill(&mut self, value: u8) {
        self.memory.fill(value);
    }

    /// Returns the attributes that connect this end to `peer`.
    pub fn plan(&self, peer: &End<'_>) -> Plan {
        let mut gid = sys::Gid::default();
        // SAFETY: the peer's device is open.
        unsafe { (self.machine.functions.query_gid)(peer.context, 1, 1, &raw mut gid) };
        let init = sys::QpAttributes {
            qp_state: sys::QPS_INIT,
            port_num: 1,
            qp_access_flags: self.wish.qp_access as u32,
            ..sys::QpAttributes::default()
        };
        let mut rtr = sys::QpAttributes {
            qp_state: sys::QPS_RTR,
            path_mtu: 5,
            dest_qp_num: peer.number(),
            rq_psn: peer.number() * 3 % 0xf0_0000,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..sys::QpAttributes::default()
        };
        rtr.ah_attr.is_global = 1;
        rtr.ah_attr.port_num = 1;
        rtr.ah_attr.grh.dgid = gid;
        rtr.ah_attr.grh.sgid_index = 1;
        rtr.ah_attr.grh.hop_limit = 255;
        let rts = sys::QpAttributes {
            qp_state: sys::QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: self.number() * 3 % 0xf0_0000,
            max_rd_atomic: 1,
            ..sys::QpAttributes::default()
        };
        Plan { init, rtr, rts }
    }

    pub fn modify(&self, attributes: &sys::QpAttributes, mask: c_int) -> c_int {
        let mut attributes = *attributes;
        // SAFETY: the queue pair is not destroyed.
        unsafe { (self.machine.functions.modify_qp)(self.qp, &raw mut attributes, mask) }
    }

    pub fn follow(&self, plan: &Plan) {
        for (attributes, mask) in [(&plan.init, TO_INIT), (&plan.rtr, TO_RTR), (&plan.rts, TO_RTS)] {
            assert_eq!(self.modify(attributes, mask), 0, "{}", self.machine.fake.complaint());
        }
    }

    pub fn connect(&self, peer: &End<'_>) {
        self.follow(&self.plan(peer));
    }

    /// Returns a signalled write of `length` bytes from the start of this memory to the start of the peer's.
    pub fn write_to(&self, peer: &End<'_>, length: u32) -> Work {
        Work {
            opcode: sys::WR_RDMA_WRITE,
            id: 1,
            from: 0,
            length,
            lkey: self.lkey(),
            remote: peer.address(),
            rkey: peer.rkey(),
            immediate: 0,
            flags: sys::SEND_SIGNALED,
        }
    }

    /// Posts work as one chain. Returns the error, or 0, and the number of requests accepted.
    pub fn post_all(&self, works: &[Work]) -> (c_int, usize) {
        let mut pieces: Vec<sys::Sge> = works
            .iter()
            .map(|work| sys::Sge { address: self.address() + work.from as u64, length: work.length, lkey: work.lkey })
            .collect();
        let mut requests: Vec<sys::SendWr> = works
            .iter()
            .zip(&mut pieces)
            .map(|(work, piece)| sys::SendWr {
                wr_id: work.id,
                next: ptr::null_mut(),
                sg_list: piece,
                num_sge: 1,
                opcode: work.opcode,
                send_flags: work.flags,
                imm_data: work.immediate.to_be(),
                rdma: sys::RdmaTarget { remote_address: work.remote, rkey: work.rkey },
                others: [0; 9],
            })
            .collect();
        let start = requests.as_mut_ptr();
        for index in 1..requests.len() {
            // SAFETY: both lie inside the vector.
            unsafe { (*start.add(index - 1)).next = start.add(index) };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the chain and its pieces outlive the call; the table of an open context has the function.
        unsafe {
            let post = (*self.context).ops.post_send.expect("there is ibv_post_send");
            let errno = post(self.qp, start, &raw mut bad);
            (errno, if errno == 0 { works.len() } else { bad.offset_from(start) as usize })
        }
    }

    pub fn post(&self, work: Work) -> c_int {
        self.post_all(&[work]).0
    }

    /// Posts receives with these identifiers to the queue from which this end takes them. Returns the first error, or
    /// 0.
    pub fn receive(&self, ids: impl IntoIterator<Item = u64>) -> c_int {
        for id in ids {
            let mut request = sys::RecvWr { wr_id: id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
            let mut bad = ptr::null_mut();
            // SAFETY: the request outlives the call; the table of an open context has the functions.
            let errno = unsafe {
                let ops = &(*self.context).ops;
                if self.srq.is_null() {
                    ops.post_recv.expect("there is ibv_post_recv")(self.qp, &raw mut request, &raw mut bad)
                } else {
                    ops.post_srq_recv.expect("there is ibv_post_srq_recv")(self.srq, &raw mut request, &raw mut bad)
                }
            };
            if errno != 0 {
                assert_eq!(bad, &raw mut request);
                return errno;
            }
        }
        0
    }

    pub fn sent(&self) -> Vec<sys::Wc> {
        poll(self.send_cq)
    }

    pub fn received(&self) -> Vec<sys::Wc> {
        poll(self.recv_cq)
    }

    /// Polls the send queue. Returns the identifier and status of each completion.
    pub fn outcomes(&self) -> Vec<(u64, c_int)> {
        self.sent().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    /// Takes and acknowledges all pending events, without waiting for more.
    pub fn events(&self) -> Vec<c_int> {
        let mut kinds = Vec::new();
        // SAFETY: the device is open; events are taken only while the descriptor is readable.
        unsafe {
            let mut ready = libc_poll((*self.context).async_fd);
            while ready {
                let mut event: sys::AsyncEvent = zeroed();
                assert_eq!((self.machine.functions.get_async_event)(self.context, &raw mut event), 0);
                kinds.push(event.event_type);
                (self.machine.functions.ack_async_event)(&raw mut event);
                ready = libc_poll((*self.context).async_fd);
            }
        }
        kinds
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let functions = &self.machine.functions;
        // SAFETY: `new` made each of them, and each is destroyed once, the users of others first.
        let status = unsafe {
            [
                (functions.destroy_qp)(self.qp),
                if self.srq.is_null() { 0 } else { (functions.destroy_srq)(self.srq) },
                (functions.destroy_cq)(self.send_cq),
                (functions.destroy_cq)(self.recv_cq),
                (functions.dereg_mr)(self.mr),
                (functions.dealloc_pd)(self.pd),
                (functions.close_device)(self.context),
            ]
        };
        if !std::thread::panicking() {
            assert_eq!(status, [0; 7], "{}", self.machine.fake.complaint());
        }
    }
}

/// Polls a queue until it is empty.
pub fn poll(cq: *mut sys::Cq) -> Vec<sys::Wc> {
    let mut all = Vec::new();
    loop {
        let mut some = [sys::Wc::default(); 4];
        let count = poll_once(cq, &mut some);
        assert!(count >= 0, "the queue is broken");
        if count == 0 {
            return all;
        }
        all.extend_from_slice(&some[..count as usize]);
    }
}

pub fn poll_once(cq: *mut sys::Cq, room: &mut [sys::Wc]) -> c_int {
    // SAFETY: the queue is not destroyed, and the slice has the room that is passed.
    unsafe {
        let poll = (*(*cq).context).ops.poll_cq.expect("there is ibv_poll_cq");
        poll(cq, room.len() as c_int, room.as_mut_ptr())
    }
}

fn libc_poll(descriptor: c_int) -> bool {
    let mut descriptor = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor is passed, and the call does not wait.
    unsafe { libc::poll(&raw mut descriptor, 1, 0) > 0 }
}

/// Returns a C pointer to the start of the memory.
pub fn raw(memory: &mut [u8]) -> *mut c_void {
    memory.as_mut_ptr().cast()
}
