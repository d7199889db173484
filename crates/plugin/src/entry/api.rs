//! NCCL's net calls except those of the data path, the same for all API versions: every table in `tables.rs` leads
//! here. Arguments are checked as far as possible. No panic escapes; each error becomes one log line and one result
//! code.
#![allow(clippy::disallowed_types, reason = "these are service threads' calls")]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use railweave_abi::ProfilerCallback;
use railweave_abi::net::{HANDLE_MAX_BYTES, MAX_DEVICES_PER_NIC, PTR_CUDA, PTR_DMABUF, PTR_HOST};
use railweave_fabric::{Memory, MemoryKind};
use railweave_identity::random_u64;
use railweave_transport::{Climb, Error, Handle, MAX_BUFFERS, MAX_MESSAGE_BYTES};

use super::guard::{null, put};
use crate::comm::{Comm, ControlHandle, Established, MemoryHandle};
use crate::control::ConnectRequest;
use crate::forks::ProcessMark;
use crate::listen_comm::ListenComm;
use crate::listener::Listener;
use crate::log;
use crate::per_process::PerProcess;
use crate::process::{self, Context};

/// The plugin's name, which users give to NCCL_NET.
pub(crate) const NAME: &CStr = c"railweave";

/// The number of connections per device that NCCL may open: more than any job opens. The real limits are memory and
/// descriptors.
const MAX_COMMS: c_int = 65_536;

/// `init`: makes a context. `forces_flushes`: NCCL's API version can force flushes.
pub(crate) fn init(
    traffic_class: c_int,
    forces_flushes: bool,
    profiler: Option<ProfilerCallback>,
) -> Result<*mut c_void, Error> {
    let traffic_class = u8::try_from(traffic_class).ok();
    let context = process::acquire(traffic_class, forces_flushes, profiler)?;
    Ok(Box::into_raw(Box::new(context)).cast())
}

/// The one context of v6 to v10, whose `init` does not return one.
static IMPLICIT: PerProcess<OnceLock<usize>> = PerProcess::new();

/// `init` of v6 to v10: there is no `finalize`, so the context stays.
pub(crate) fn init_implicit(forces_flushes: bool, profiler: Option<ProfilerCallback>) -> Result<(), Error> {
    if IMPLICIT.get().get().is_none() {
        let context = init(-1, forces_flushes, profiler)?;
        if IMPLICIT.get().set(context.expose_provenance()).is_err() {
            // SAFETY: made above, and another thread's context is the one that stays.
            unsafe { finalize(context) }?;
        }
    }
    Ok(())
}

/// Returns the context of v6 to v10; NULL before `init`.
pub(crate) fn implicit() -> *mut c_void {
    IMPLICIT.get().get().map_or(std::ptr::null_mut(), |address| std::ptr::with_exposed_provenance_mut(*address))
}

/// `finalize`.
///
/// # Safety
/// `context` must come from [`init`], and neither it nor anything made from it may be used again.
pub(crate) unsafe fn finalize(context: *mut c_void) -> Result<(), Error> {
    if context.is_null() {
        return Err(null("finalize", "the context"));
    }
    // SAFETY: init made it from a box, and NCCL hands it back once.
    process::release(*unsafe { Box::from_raw(context.cast::<Context>()) });
    Ok(())
}

/// # Safety
/// `pointer` must be NULL or come from [`init`] and not be finalized.
unsafe fn context<'a>(call: &str, pointer: *mut c_void) -> Result<&'a Context, Error> {
    // SAFETY: the caller's promise; NULL becomes `None`.
    let context = unsafe { pointer.cast::<Context>().as_ref() };
    let context = context.ok_or_else(|| null(call, "the context, which init returns: call init first"))?;
    if context.owner != ProcessMark::own() {
        return Err(Error::protocol(format!(
            "{call} was called with the context of the parent after a fork; call init again in the child"
        )));
    }
    Ok(context)
}

/// `devices`.
///
/// # Safety
/// `count` must be NULL or valid for writing.
pub(crate) unsafe fn devices(count: *mut c_int) -> Result<(), Error> {
    let number = process::current()?.network.devices().count();
    // SAFETY: the caller's promise.
    unsafe { put("devices", "the count", count, number as c_int) }
}

/// A device's properties in the newest form; each version's table picks the fields that it has.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) name: *const c_char,
    pub(crate) pci_path: *const c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) speed: c_int,
    pub(crate) port: c_int,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) max_bytes: usize,
    pub(crate) rail_id: i16,
    pub(crate) plane_id: i16,
    pub(crate) force_flush: bool,
    /// The indices of the devices that it is fused of, in the first `member_count` places.
    pub(crate) members: [c_int; MAX_DEVICES_PER_NIC],
    pub(crate) member_count: usize,
}

/// Returns text that stays valid for the life of the process, as NCCL requires of names and paths. The same text is
/// kept once.
fn keep(text: &str) -> *const c_char {
    static KEPT: PerProcess<Mutex<HashMap<String, &'static CStr>>> = PerProcess::new();
    let mut kept = KEPT.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = kept.get(text) {
        return text.as_ptr();
    }
    let c_text = CString::new(text.replace('\0', "")).unwrap_or_default();
    let c_text: &'static CStr = Box::leak(c_text.into_boxed_c_str());
    kept.insert(text.to_owned(), c_text);
    c_text.as_ptr()
}

fn device_index(call: &str, device: c_int, count: usize) -> Result<usize, Error> {
    let index = usize::try_from(device).ok().filter(|index| *index < count);
    index.ok_or_else(|| {
        let last = count.saturating_sub(1);
        Error::protocol(format!("{call} was called for device {device}, which does not exist; allowed: 0 to {last}"))
    })
}

/// `getProperties`. `forces_flushes`: NCCL's API version can force flushes.
pub(crate) fn properties(device: c_int, forces_flushes: bool) -> Result<Properties, Error> {
    let process = process::current()?;
    let devices = process.network.devices();
    let index = device_index("getProperties", device, devices.count())?;
    let found = devices.at(index);
    let pci_path = found.pci_path.as_ref().and_then(|path| path.to_str()).map_or(std::ptr::null(), keep);
    // If a newer NCCL in the same process was offered the Data Direct engines, an older NCCL uses them too. It would
    // not flush data received into GPU memory, so it is offered host memory only.
    let takes_gpu_memory = forces_flushes || !found.pointers.data_direct;
    let cuda = if found.pointers.cuda && takes_gpu_memory { PTR_CUDA } else { 0 };
    let dma_buf = if found.pointers.dma_buf && takes_gpu_memory { PTR_DMABUF } else { 0 };
    let mut members = [0; MAX_DEVICES_PER_NIC];
    let fused_of = devices.members(index);
    for (place, member) in members.iter_mut().zip(&fused_of) {
        *place = *member as c_int;
    }
    Ok(Properties {
        name: keep(&found.name),
        pci_path,
        guid: found.guid,
        ptr_support: PTR_HOST | cuda | dma_buf,
        speed: c_int::try_from(found.speed_mbps).unwrap_or(c_int::MAX),
        port: c_int::from(found.port_number),
        max_comms: MAX_COMMS,
        max_recvs: MAX_BUFFERS as c_int,
        max_bytes: MAX_MESSAGE_BYTES as usize,
        rail_id: found.rail_id.unwrap_or(-1),
        plane_id: found.plane_id.unwrap_or(-1),
        // NCCL omits flushes on newer GPUs, where flags and data take one path. With Data Direct engines they take two.
        force_flush: found.pointers.data_direct,
        members,
        member_count: fused_of.len().min(MAX_DEVICES_PER_NIC),
    })
}

/// `makeVDevice`: writes the index of the device that has the ports of all `members`.
///
/// # Safety
/// `device` must be NULL or valid for writing.
pub(crate) unsafe fn make_v_device(device: *mut c_int, members: &[c_int]) -> Result<(), Error> {
    let process = process::current()?;
    let devices = process.network.devices();
    let index = |member: &c_int| device_index("makeVDevice", *member, devices.count());
    let members = members.iter().map(index).collect::<Result<Vec<_>, _>>()?;
    let fused = devices.fuse(process.network.ports(), &members)?;
    // SAFETY: the caller's promise.
    unsafe { put("makeVDevice", "the device's index", device, fused as c_int) }
}

/// `listen`.
///
/// # Safety
/// `context` as for [`context`]; `handle` must be NULL or valid for writing 128 bytes, `listen` NULL or valid for
/// writing.
pub(crate) unsafe fn listen(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listen: *mut *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    let context = unsafe { self::context("listen", context) }?;
    let process = &context.process;
    let device = device_index("listen", device, process.network.devices().count())?;
    let control = process.control()?;
    control.check()?;
    let nonce = random_u64();
    let bytes = process.handle(device, nonce, control.port()).encode();
    let config = process.connection_config(device, context.traffic_class);
    let listener =
        Arc::new(Listener::new(nonce, device, Arc::clone(&process.network), process.fallback.clone(), config));
    let (listener_of_comm, control_of_comm) = (Arc::clone(&listener), Arc::clone(&control));
    let listen_comm =
        Arc::new(ListenComm { listener: listener_of_comm, control: control_of_comm, profiler: context.profiler });
    // SAFETY: the caller's promises.
    unsafe {
        put("listen", "the handle", handle.cast::<[u8; HANDLE_MAX_BYTES]>(), bytes)?;
        put("listen", "the listener", listen, Arc::into_raw(Arc::clone(&listen_comm)).cast_mut().cast())?;
    }
    context.remember(&listen_comm);
    control.listen(listener);
    Ok(())
}

/// `connect`: never blocks; writes NULL until the connection is up.
///
/// # Safety
/// `context` as for [`context`]; `handle` must be NULL or valid for reading 128 bytes, `send` NULL or valid for
/// writing.
pub(crate) unsafe fn connect(
    context: *mut c_void,
    device: c_int,
    traffic_class: Option<c_int>,
    handle: *mut c_void,
    send: *mut *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let context = unsafe {
        put("connect", "the connection", send, std::ptr::null_mut())?;
        self::context("connect", context)
    }?;
    let process = &context.process;
    let device = device_index("connect", device, process.network.devices().count())?;
    // SAFETY: the caller's promise; NULL becomes `None`.
    let bytes =
        unsafe { handle.cast::<[u8; HANDLE_MAX_BYTES]>().as_ref() }.ok_or_else(|| null("connect", "the handle"))?;
    let handle = Handle::decode(bytes).map_err(|error| Error::protocol(error.to_string()))?;
    let key = (device, handle.nonce);
    let mut connects = context.connects.lock().unwrap_or_else(PoisonError::into_inner);
    let control = process.control()?;
    let Some(pending) = connects.get(&key) else {
        let pending = Arc::default();
        connects.insert(key, Arc::clone(&pending));
        let traffic_class = traffic_class.and_then(|class| u8::try_from(class).ok()).or(context.traffic_class);
        control.connect(ConnectRequest {
            addresses: process.dial_order(&handle),
            handle,
            network: Arc::clone(&process.network),
            fallback: process.fallback.clone(),
            device,
            climb: Climb::default(),
            config: process.connection_config(device, traffic_class),
            result: pending,
            until_ns: 0,
        });
        return Ok(());
    };
    let Some(result) = pending.take() else {
        return control.check();
    };
    connects.remove(&key);
    let (established, route) = result?;
    log_connection("sends to", &established);
    // SAFETY: checked above not to be NULL, and the caller's promise.
    unsafe { send.write(Comm::into_raw(*established, route, control, context.profiler)) };
    Ok(())
}

fn log_connection(what: &str, established: &Established) {
    let rails: Vec<_> = established.rails.iter().map(|rail| format!("rail {} ({})", rail.index, rail.name)).collect();
    log::info(&format!("a connection {what} {} over {}", established.peer, rails.join(", ")));
}

/// `accept`: never blocks; writes NULL until a connection is ready. A failed set-up is logged and is not an error of
/// `accept` (ARCHITECTURE.md, "A set-up that breaks off is the connector's error"). A connection that its peer has
/// already left comes last; its calls return the error.
///
/// # Safety
/// `listen` must be NULL or come from [`listen`] and not be closed; `receive` must be NULL or valid for writing.
pub(crate) unsafe fn accept(listen: *mut c_void, receive: *mut *mut c_void) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let ListenComm { listener, control, profiler } = unsafe {
        put("accept", "the connection", receive, std::ptr::null_mut())?;
        ListenComm::from_raw(listen)
    }?;
    control.check_process()?;
    let Some((established, route)) = listener.pop() else {
        return control.check();
    };
    log_connection("receives from", &established);
    // SAFETY: checked above not to be NULL, and the caller's promise.
    unsafe { receive.write(Comm::into_raw(*established, route, control.clone(), *profiler)) };
    Ok(())
}

/// `closeListen`.
///
/// # Safety
/// `listen` must be NULL or come from [`listen`], and not be used again.
pub(crate) unsafe fn close_listen(listen: *mut c_void) -> Result<(), Error> {
    if listen.is_null() {
        return Ok(());
    }
    // SAFETY: listen made it with Arc::into_raw, and NCCL hands it back once.
    unsafe { Arc::from_raw(listen.cast::<ListenComm>().cast_const()) }.close();
    Ok(())
}

/// `closeSend` and `closeRecv`. After an error NCCL would not free the rest of the communicator, so only a wrong
/// pointer is an error.
///
/// # Safety
/// `comm` must be NULL or come from [`connect`] or [`accept`], and neither it nor its requests may be used again.
pub(crate) unsafe fn close(comm: *mut c_void) -> Result<(), Error> {
    if comm.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { Comm::close(comm) }
}

/// `regMr` and `regMrDmaBuf`.
///
/// # Safety
/// `comm` must be a connection of this plugin; `data` must stay memory of `bytes` bytes until `deregMr`; `memory` must
/// be NULL or valid for writing.
pub(crate) unsafe fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: MemoryKind,
    memory: *mut *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    let comm = unsafe { Comm::from_raw(comm) }?;
    comm.check_process()?;
    // SAFETY: NCCL keeps the memory registered and in place until deregMr (net.h).
    let range = unsafe { Memory::from_raw(data.expose_provenance() as u64, bytes, kind) };
    let handle: MemoryHandle = comm.registrar.register(&range)?;
    let handle = Box::into_raw(Box::new(handle));
    // SAFETY: the caller's promise.
    let written = unsafe { put("regMr", "the memory handle", memory, handle.cast()) };
    if written.is_err() {
        // SAFETY: made above, and nobody else has it.
        drop(unsafe { Box::from_raw(handle) });
    }
    written
}

/// Returns the kind of memory for `regMr`'s type.
pub(crate) fn memory_kind(kind: c_int) -> Result<MemoryKind, Error> {
    match kind {
        PTR_HOST => Ok(MemoryKind::Host),
        PTR_CUDA => Ok(MemoryKind::Cuda),
        other => Err(Error::protocol(format!(
            "regMr was called with memory type {other}; allowed: 1 (NCCL_PTR_HOST) and 2 (NCCL_PTR_CUDA)"
        ))),
    }
}

/// `deregMr`. After an error NCCL would not free the rest of the communicator, so this never fails.
///
/// # Safety
/// `memory` must be NULL or come from [`reg_mr`], and not be used again.
pub(crate) unsafe fn dereg_mr(memory: *mut c_void) -> Result<(), Error> {
    if !memory.is_null() {
        // SAFETY: reg_mr made it from a box, and NCCL hands it back once.
        unsafe { Box::from_raw(memory.cast::<MemoryHandle>()) }.end();
    }
    Ok(())
}
