//! The functions of libibverbs, and three of libmlx5, under their names. Each looks up the program's pointers and
//! converts the result to C.
//!
//! The manual page of each name describes the function. A pointer to an open object is looked up before it is followed;
//! other pointers are followed as the manual page says.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use railweave_fabric_verbs::sys;

use crate::devices::write_old_port;
use crate::memory::Wish;
use crate::{events, lifecycle, world};

/// Converts the result of a function that returns a pointer: on failure NULL, with the error in errno.
fn pointer<T>(answer: Result<*mut T, c_int>) -> *mut T {
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// Converts the result of a function that returns a status: on failure the error.
fn status(answer: Result<(), c_int>) -> c_int {
    answer.err().unwrap_or(0)
}

/// Converts the result of an older query: on failure -1, with the error in errno.
fn minus_one(answer: Result<(), c_int>) -> c_int {
    answer.map_or_else(
        |errno| {
            set_errno(errno);
            -1
        },
        |()| 0,
    )
}

fn set_errno(errno: c_int) {
    // SAFETY: the place of this thread's errno is always there.
    unsafe { *libc::__errno_location() = errno };
}

/// Writes a result to the program's place for it.
///
/// # Safety
/// `place` must be writable.
unsafe fn give<T>(place: *mut T, answer: Result<T, c_int>) -> Result<(), c_int> {
    // SAFETY: the caller vouches for it.
    answer.map(|value| unsafe { place.write(value) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut sys::Device {
    let answer = world::lock().get_device_list();
    pointer(answer.map(|(list, found)| {
        if !count.is_null() {
            // SAFETY: ibv_get_device_list(3): a place for the number, or NULL.
            unsafe { count.write(found as c_int) };
        }
        list
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::Device) {
    world::lock().free_device_list(list);
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut sys::Device) -> *const c_char {
    // SAFETY: ibv_get_device_name(3): a device of a list that is not freed, or of an open device.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut sys::Device) -> *mut sys::Context {
    pointer(world::lock().open_device(device))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut sys::Context) -> c_int {
    status(world::lock().close_device(context.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(context: *mut sys::Context, event: *mut sys::AsyncEvent) -> c_int {
    // The lock is not held while this waits. The events outlive the device if it is closed meanwhile.
    let events = world::lock().context(context.addr()).map(|open| open.events.clone());
    let answer = events.and_then(|events| events.take().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)));
    // SAFETY: ibv_get_async_event(3): a place for the event.
    minus_one(unsafe { give(event, answer) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut sys::AsyncEvent) {
    // SAFETY: ibv_ack_async_event(3): an event that ibv_get_async_event has written.
    events::acknowledge(unsafe { &*event });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut sys::Context,
    attributes: *mut sys::DeviceAttributes,
) -> c_int {
    // SAFETY: ibv_query_device(3): a place for the attributes.
    status(unsafe { give(attributes, world::lock().query_device(context.addr())) })
}

/// Writes the older, shorter structure.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut sys::Context,
    port: u8,
    attributes: *mut sys::PortAttributes,
) -> c_int {
    let answer = world::lock().query_port(context.addr(), port.into());
    // SAFETY: ibv_query_port(3): a place for at least the older attributes.
    status(answer.map(|facts| unsafe { write_old_port(&facts, attributes) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(context: *mut sys::Context, port: u32, speed: *mut u64) -> c_int {
    // SAFETY: ibv_query_port_speed(3): a place for the speed.
    status(unsafe { give(speed, world::lock().query_port_speed(context.addr(), port)) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut sys::Context,
    port: u8,
    index: c_int,
    gid: *mut sys::Gid,
) -> c_int {
    let answer = world::lock().query_gid(context.addr(), port.into(), u32::try_from(index).unwrap_or(u32::MAX));
    // SAFETY: ibv_query_gid(3): a place for the GID, perhaps not aligned for one.
    minus_one(answer.map(|found| unsafe { gid.write_unaligned(found) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut sys::Context,
    port: u32,
    index: u32,
    entry: *mut sys::GidEntry,
    flags: u32,
    length: usize,
) -> c_int {
    if flags != 0 || length < size_of::<sys::GidEntry>() {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: ibv_query_gid_ex(3): a place for the entry, of the length given.
    status(unsafe { give(entry, world::lock().query_gid_ex(context.addr(), port, index)) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut sys::Context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    // SAFETY: ibv_query_pkey(3): a place for the key.
    minus_one(unsafe { give(key, world::lock().query_pkey(context.addr(), port.into(), index)) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::Context) -> *mut sys::Pd {
    pointer(world::lock().alloc_pd(context.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::Pd) -> c_int {
    status(world::lock().dealloc_pd(pd.addr()))
}

/// Registers memory. It begins at `address` in this process or in the descriptor, and at `iova` for work requests.
fn register(
    function: &'static str,
    pd: *mut sys::Pd,
    [address, iova]: [u64; 2],
    length: usize,
    access: c_int,
    (descriptor, mlx5_access): (Option<c_int>, c_int),
) -> *mut sys::Mr {
    let domain = pd.addr();
    let wish = Wish { function, domain, address, length, iova, access, descriptor, mlx5_access };
    pointer(world::lock().register(&wish))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::Pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::Mr {
    register("reg_mr", pd, [address.expose_provenance() as u64; 2], length, access, (None, 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut sys::Pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut sys::Mr {
    let addresses = [address.expose_provenance() as u64, iova];
    register("reg_mr_iova2", pd, addresses, length, access as c_int, (None, 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut sys::Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut sys::Mr {
    register("reg_dmabuf_mr", pd, [offset, iova], length, access, (Some(fd), 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_is_supported(device: *mut sys::Device) -> bool {
    world::lock().device(device).is_ok_and(|device| device.facts().habits.libmlx5)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_get_data_direct_sysfs_path(
    context: *mut sys::Context,
    path: *mut c_char,
    length: usize,
) -> c_int {
    let answer = world::lock().data_direct_path(context.addr());
    status(answer.and_then(|found| {
        let bytes = found.as_bytes();
        if bytes.len() >= length {
            return Err(libc::ENOSPC);
        }
        // SAFETY: mlx5dv_get_data_direct_sysfs_path(3): a place of this length.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), path.cast(), bytes.len());
            path.add(bytes.len()).write(0);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_reg_dmabuf_mr(
    pd: *mut sys::Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut sys::Mr {
    register("mlx5dv_reg_dmabuf_mr", pd, [offset, iova], length, access, (Some(fd), mlx5_access))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::Mr) -> c_int {
    status(world::lock().deregister(mr.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut sys::Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut c_void,
    vector: c_int,
) -> *mut sys::Cq {
    let wish = lifecycle::CqWish { context: context.addr(), entries, cq_context, channel, vector };
    pointer(world::lock().create_cq(&wish))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::Cq) -> c_int {
    status(lifecycle::destroy_cq(cq.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut sys::Pd,
    attributes: *mut sys::SrqInitAttributes,
) -> *mut sys::Srq {
    // SAFETY: ibv_create_srq(3): the attributes.
    pointer(world::lock().create_srq(pd.addr(), unsafe { &*attributes }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut sys::Srq) -> c_int {
    status(lifecycle::destroy_srq(srq.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut sys::Pd,
    attributes: *mut sys::QpInitAttributes,
) -> *mut sys::Qp {
    world::tarry("create_qp", None, 0);
    // SAFETY: ibv_create_qp(3): the attributes, in which the capabilities granted replace those asked for.
    pointer(unsafe {
        let answer = world::lock().create_qp(pd.addr(), &*attributes);
        answer.map(|(qp, granted)| {
            (*attributes).cap = granted;
            qp
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut sys::Qp,
    attributes: *mut sys::QpAttributes,
    mask: c_int,
) -> c_int {
    // SAFETY: ibv_modify_qp(3): the attributes.
    let attributes = unsafe { &*attributes };
    world::tarry("modify_qp", (mask & sys::QP_STATE != 0).then_some(attributes.qp_state), qp.addr());
    status(world::lock().modify_qp(qp.addr(), attributes, mask))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut sys::Qp,
    attributes: *mut sys::QpAttributes,
    _mask: c_int,
    init: *mut sys::QpInitAttributes,
) -> c_int {
    let answer = world::lock().query_qp(qp.addr());
    // SAFETY: ibv_query_qp(3): places for both kinds of attributes.
    status(answer.map(|(found, created)| unsafe {
        attributes.write(found);
        init.write(created);
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::Qp) -> c_int {
    world::tarry("destroy_qp", None, qp.addr());
    status(lifecycle::destroy_qp(qp.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut sys::Qp, ece: *mut sys::Ece) -> c_int {
    // SAFETY: ibv_query_ece(3): a place for the options.
    status(unsafe { give(ece, world::lock().query_ece(qp.addr())) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut sys::Qp, ece: *mut sys::Ece) -> c_int {
    // SAFETY: ibv_set_ece(3): the options.
    status(world::lock().set_ece(qp.addr(), unsafe { *ece }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    status(world::lock().prepare_for_forks())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    let text: &CStr = match event {
        sys::EVENT_CQ_ERR => c"CQ error",
        sys::EVENT_QP_FATAL => c"local work queue catastrophic error",
        sys::EVENT_QP_REQ_ERR => c"invalid request local work queue error",
        sys::EVENT_QP_ACCESS_ERR => c"local access violation work queue error",
        sys::EVENT_COMM_EST => c"communication established",
        sys::EVENT_DEVICE_FATAL => c"local catastrophic error",
        sys::EVENT_PORT_ACTIVE => c"port active",
        sys::EVENT_PORT_ERR => c"port error",
        sys::EVENT_LID_CHANGE => c"LID change",
        sys::EVENT_PKEY_CHANGE => c"P_Key change",
        sys::EVENT_SM_CHANGE => c"SM change",
        sys::EVENT_SRQ_ERR => c"SRQ catastrophic error",
        sys::EVENT_SRQ_LIMIT_REACHED => c"SRQ limit reached",
        sys::EVENT_QP_LAST_WQE_REACHED => c"last WQE reached",
        sys::EVENT_CLIENT_REREGISTER => c"client reregistration",
        sys::EVENT_GID_CHANGE => c"GID table change",
        _ => c"unknown",
    };
    text.as_ptr()
}
