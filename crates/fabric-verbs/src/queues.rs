//! Owned objects of libibverbs: each is destroyed when dropped and keeps the objects alive that it was made from.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use railweave_fabric::{Part, Piece};

use crate::device::{Device, check};
use crate::sys;

/// A protection domain: only its own queue pairs can use the memory registered in it.
pub(crate) struct ProtectionDomain {
    pd: NonNull<sys::Pd>,
    device: Arc<Device>,
}

// SAFETY: libibverbs is thread-safe (verbs(7)), and the pointer never changes.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for Send.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let pd = unsafe { (device.functions().alloc_pd)(device.context()) };
        let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { pd, device: Arc::clone(device) })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::Pd {
        self.pd.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything made from it held an Arc of this and is gone.
        unsafe { (self.device.functions().dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// A completion queue without interrupts: it is polled.
pub(crate) struct CompletionQueue {
    cq: NonNull<sys::Cq>,
    poll: unsafe extern "C" fn(*mut sys::Cq, c_int, *mut sys::Wc) -> c_int,
    device: Arc<Device>,
}

// SAFETY: as for ProtectionDomain.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Makes a queue that holds at least `entries` completions.
    pub(crate) fn new(device: &Arc<Device>, entries: u32) -> io::Result<Self> {
        let entries = c_int::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the context is open; no completion channel is requested.
        let cq =
            unsafe { (device.functions().create_cq)(device.context(), entries, ptr::null_mut(), ptr::null_mut(), 0) };
        let cq = NonNull::new(cq).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: an open context's table of functions is filled.
        let poll = unsafe { (*device.context()).ops.poll_cq };
        let device = Arc::clone(device);
        match poll {
            Some(poll) => Ok(Self { cq, poll, device }),
            None => {
                // SAFETY: it was just made and nothing uses it.
                unsafe { (device.functions().destroy_cq)(cq.as_ptr()) };
                Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
            }
        }
    }

    /// Returns an identifier that no other open queue has.
    pub(crate) fn id(&self) -> u64 {
        self.cq.as_ptr().addr() as u64
    }

    /// Takes completions into `out` and returns their number. A broken queue is an error.
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [MaybeUninit<sys::Wc>]) -> Result<usize, c_int> {
        // SAFETY: the queue is valid, and `out` has room for `out.len()` completions.
        let count = unsafe { (self.poll)(self.cq.as_ptr(), out.len() as c_int, out.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| count)
    }

    fn as_ptr(&self) -> *mut sys::Cq {
        self.cq.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that used it are gone: their owner drops them first.
        unsafe { (self.device.functions().destroy_cq)(self.cq.as_ptr()) };
    }
}

/// A receive queue that several queue pairs share.
pub(crate) struct SharedReceives {
    srq: NonNull<sys::Srq>,
    post: unsafe extern "C" fn(*mut sys::Srq, *mut sys::RecvWr, *mut *mut sys::RecvWr) -> c_int,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: as for ProtectionDomain.
unsafe impl Send for SharedReceives {}

impl SharedReceives {
    /// Makes a queue of at least `depth` receives without memory.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, depth: u32) -> io::Result<Self> {
        // Some providers need at least one piece.
        let attr = sys::SrqAttributes { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut attributes = sys::SrqInitAttributes { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain and the attributes are valid.
        let srq = unsafe { (pd.device.functions().create_srq)(pd.as_ptr(), &raw mut attributes) };
        let srq = NonNull::new(srq).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: an open context's table of functions is filled.
        let post = unsafe { (*pd.device.context()).ops.post_srq_recv };
        match post {
            Some(post) => Ok(Self { srq, post, pd: Arc::clone(pd) }),
            None => {
                // SAFETY: it was just made and nothing uses it.
                unsafe { (pd.device.functions().destroy_srq)(srq.as_ptr()) };
                Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
            }
        }
    }

    /// Returns an identifier that no other open queue has.
    pub(crate) fn id(&self) -> u64 {
        self.srq.as_ptr().addr() as u64
    }

    /// Posts a chain of receives.
    ///
    /// # Safety
    /// `chain` is the first of a chain of valid requests that ends in a null pointer.
    #[inline]
    pub(crate) unsafe fn post(&mut self, chain: *mut sys::RecvWr) -> c_int {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue is valid; so is the chain, by the caller's promise.
        unsafe { (self.post)(self.srq.as_ptr(), chain, bad.as_mut_ptr()) }
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that shared it are gone: their owner drops them first.
        unsafe { (self.pd.device.functions().destroy_srq)(self.srq.as_ptr()) };
    }
}

/// The parameters of a new queue pair.
pub(crate) struct QueuePairSpec<'a> {
    pub(crate) completions: &'a CompletionQueue,
    pub(crate) shared: Option<&'a SharedReceives>,
    pub(crate) send_depth: u32,
    /// Receives of its own; 0 with a shared queue.
    pub(crate) receive_depth: u32,
    /// Bytes that a write may carry in its work request.
    pub(crate) inline: u32,
}

/// The most work requests that a queue pair may hold: as many as 16 bits of a request's id can tell apart.
const MAX_SEND_DEPTH: u32 = u16::MAX as u32;

/// A reliably connected queue pair.
pub(crate) struct QueuePair {
    qp: NonNull<sys::Qp>,
    number: u32,
    inline: u32,
    /// True once it is in the error or the reset state for good.
    is_stopped: bool,
    /// True once it is destroyed.
    is_destroyed: bool,
    post_send: unsafe extern "C" fn(*mut sys::Qp, *mut sys::SendWr, *mut *mut sys::SendWr) -> c_int,
    post_receive: unsafe extern "C" fn(*mut sys::Qp, *mut sys::RecvWr, *mut *mut sys::RecvWr) -> c_int,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: as for ProtectionDomain.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, spec: &QueuePairSpec<'_>) -> io::Result<Self> {
        if spec.send_depth > MAX_SEND_DEPTH {
            let message = format!("{} sends are more than {MAX_SEND_DEPTH}", spec.send_depth);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // An end that only sends asks for one receive: mana's provider cannot make an empty queue and returns ENOMEM
        // (rdma-core, providers/mana/qp.c, mana_create_qp_rnic).
        let receives = if spec.shared.is_some() { 0 } else { spec.receive_depth.max(1) };
        let mut attributes = sys::QpInitAttributes {
            qp_context: ptr::null_mut(),
            send_cq: spec.completions.as_ptr(),
            recv_cq: spec.completions.as_ptr(),
            srq: spec.shared.map_or(ptr::null_mut(), |shared| shared.srq.as_ptr()),
            cap: sys::QpCapabilities {
                max_send_wr: spec.send_depth,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: u32::from(receives > 0),
                max_inline_data: spec.inline,
            },
            qp_type: sys::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: everything that the attributes point to is valid.
        let qp = unsafe { (pd.device.functions().create_qp)(pd.as_ptr(), &raw mut attributes) };
        let qp = NonNull::new(qp).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the queue pair is valid, and an open context's table of functions is filled.
        let (number, post_send, post_receive) = unsafe {
            let ops = &(*pd.device.context()).ops;
            ((*qp.as_ptr()).qp_num, ops.post_send, ops.post_recv)
        };
        match (post_send, post_receive) {
            (Some(post_send), Some(post_receive)) => {
                let inline = attributes.cap.max_inline_data.min(spec.inline);
                let pd = Arc::clone(pd);
                Ok(Self { qp, number, inline, is_stopped: false, is_destroyed: false, post_send, post_receive, pd })
            }
            _ => {
                // SAFETY: it was just made and nothing uses it.
                unsafe { (pd.device.functions().destroy_qp)(qp.as_ptr()) };
                Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
            }
        }
    }

    /// Returns its number, as the peer and completions name it.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the bytes that a write may carry in its work request.
    pub(crate) fn inline(&self) -> u32 {
        self.inline
    }

    /// Changes its attributes: ibv_modify_qp(3).
    pub(crate) fn modify(&mut self, attributes: &mut sys::QpAttributes, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair and the attributes are valid.
        check(unsafe { (self.pd.device.functions().modify_qp)(self.qp.as_ptr(), attributes, mask) })
    }

    /// Returns the device's options for enhanced connection establishment; `None` if the device or the library knows
    /// none.
    pub(crate) fn ece(&self) -> Option<sys::Ece> {
        let mut ece = sys::Ece::default();
        // SAFETY: the queue pair and the pointer are valid.
        let result = unsafe { (self.pd.device.functions().query_ece?)(self.qp.as_ptr(), &raw mut ece) };
        (result == 0).then_some(ece)
    }

    /// Sets the peer's options for enhanced connection establishment, before the change to RTR.
    pub(crate) fn set_ece(&mut self, mut ece: sys::Ece) -> io::Result<()> {
        let Some(set) = self.pd.device.functions().set_ece else {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        };
        // SAFETY: the queue pair and the value are valid.
        check(unsafe { set(self.qp.as_ptr(), &raw mut ece) })
    }

    /// Puts it into the error state: it sends nothing more, places nothing more, and its work comes back.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.leave(sys::QPS_ERR)?;
        self.is_stopped = true;
        Ok(())
    }

    /// Takes it out of service: after this call it sends and places nothing more. Its completions may be purged.
    ///
    /// Returns it in the reset state, in which it drops what comes (IBTA volume 1, 10.3.1.1), because its destruction
    /// may take longer: soft-RoCE's waits until the last packets of the queue pair have gone, which without a cable is
    /// once the kernel gives up on the peer's hardware address, after 3 s. A reset ends as much as a destruction does:
    /// mlx5, mlx4 and hns destroy a queue pair by resetting it first (Linux, drivers/infiniband/hw/mlx5/qp.c,
    /// destroy_qp_common), and soft-RoCE waits until no packet is in work (sw/rxe/rxe_qp.c, rxe_qp_reset).
    ///
    /// Destroys it if it does not say that it is in that state: irdma accepts the reset of a queue pair in the error
    /// state and does nothing (hw/irdma/verbs.c, irdma_modify_qp_roce), and mana cannot say (rdma-core,
    /// providers/mana/mana.c, mana_ctx_ops).
    ///
    /// # Errors
    /// If it can neither be reset nor destroyed although its device is there: itself, still in service.
    pub(crate) fn retire(mut self) -> Result<Option<Self>, Self> {
        let is_stopped = self.is_stopped || self.stop().is_ok();
        if is_stopped && self.leave(sys::QPS_RESET).is_ok() && self.is_reset() {
            return Ok(Some(self));
        }
        match self.destroy() {
            // The kernel has destroyed what a device had when it was taken away (Linux,
            // drivers/infiniband/core/rdma_core.c, uverbs_destroy_ufile_hw), and answers so from then on.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV)) => Ok(Some(self)),
            Err(_) => Err(self),
            Ok(()) => Ok(None),
        }
    }

    fn leave(&mut self, state: c_int) -> io::Result<()> {
        let mut attributes = sys::QpAttributes { qp_state: state, ..Default::default() };
        self.modify(&mut attributes, sys::QP_STATE)
    }

    /// Returns true if it says that it is in the reset state.
    fn is_reset(&self) -> bool {
        let mut attributes = sys::QpAttributes { qp_state: sys::QPS_ERR, ..Default::default() };
        let mut created = MaybeUninit::uninit();
        let query = self.pd.device.functions().query_qp;
        // SAFETY: the queue pair is valid, and there is room for both kinds of attributes.
        let result = unsafe { query(self.qp.as_ptr(), &raw mut attributes, sys::QP_STATE, created.as_mut_ptr()) };
        result == 0 && attributes.qp_state == sys::QPS_RESET
    }

    fn destroy(&mut self) -> io::Result<()> {
        // SAFETY: it was made once and is destroyed once, because a refusal keeps it; it is owned here, so no call on
        // it is in progress.
        check(unsafe { (self.pd.device.functions().destroy_qp)(self.qp.as_ptr()) })?;
        self.is_destroyed = true;
        Ok(())
    }

    /// Posts a chain of work requests.
    ///
    /// # Safety
    /// `chain` is the first of a chain of valid requests that ends in a null pointer. The requests' sources stay
    /// registered until they are complete.
    #[inline]
    pub(crate) unsafe fn post(&mut self, chain: *mut sys::SendWr) -> c_int {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue pair is valid; so is the chain, by the caller's promise.
        unsafe { (self.post_send)(self.qp.as_ptr(), chain, bad.as_mut_ptr()) }
    }

    /// Posts a chain of receives of its own.
    ///
    /// # Safety
    /// The conditions of [`SharedReceives::post`].
    #[inline]
    pub(crate) unsafe fn post_receives(&mut self, chain: *mut sys::RecvWr) -> c_int {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue pair is valid; so is the chain, by the caller's promise.
        unsafe { (self.post_receive)(self.qp.as_ptr(), chain, bad.as_mut_ptr()) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // A queue pair that keeps sending to a peer that is gone can keep the kernel from destroying it: soft-RoCE
        // waits for its own packets. In the error state it sends nothing more. If even this change is refused, there is
        // nothing to stop.
        if self.is_destroyed {
            return;
        }
        if !self.is_stopped {
            let _ = self.stop();
        }
        // After a refusal it is the kernel's, until the process ends.
        let _ = self.destroy();
    }
}

/// Returns the parts of a rail.
pub(crate) fn parts(
    (device, port): (&Device, u8),
    pairs: impl Iterator<Item = u32>,
    completions: &CompletionQueue,
    shared: Option<&SharedReceives>,
) -> Vec<Part> {
    let name: Arc<str> = device.name().into();
    let pieces = pairs
        .map(Piece::QueuePair)
        .chain([Piece::CompletionQueue(completions.id()), Piece::Port(port)])
        .chain(shared.map(|shared| Piece::ReceiveQueue(shared.id())));
    pieces.map(|piece| Part { device: Arc::clone(&name), piece }).collect()
}
