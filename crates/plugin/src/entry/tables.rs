//! The tables that NCCL looks up, one per version. No logic: each entry adapts a version's arguments to those of `api`
//! and `data_path`.

use std::ffi::{c_int, c_void};
use std::ptr;

use railweave_abi::net::parts::{CommConfig, DeviceHandle, VDeviceProps4, VDeviceProps8};
use railweave_abi::net::{self, DEVICE_HOST, DEVICE_INVALID_VERSION, v6, v7, v8, v9, v10, v11, v12};
use railweave_abi::{NcclLogger, NcclResult, ProfilerCallback};
use railweave_fabric::MemoryKind;
use railweave_transport::{Error, MAX_BUFFERS};

use super::api::{self, NAME};
use super::data_path::{self, Buffers, negative_size};
use super::guard::{failed, guard, null};
use crate::log;

// NCCL calls every function below. Its promises (net.h of each version) are the ones that `api` and `data_path`
// require: pointers are NULL or valid for the call, objects are this plugin's and not closed, and one thread at a time
// uses the data path of a connection.

unsafe extern "C" fn init_v6(logger: Option<NcclLogger>) -> NcclResult {
    log::set_logger(logger);
    guard("init", || api::init_implicit(v6::NetProperties::FORCES_FLUSHES, None))
}

unsafe extern "C" fn init_v9(logger: Option<NcclLogger>) -> NcclResult {
    log::set_logger(logger);
    guard("init", || api::init_implicit(v9::NetProperties::FORCES_FLUSHES, None))
}

unsafe extern "C" fn init_v10(logger: Option<NcclLogger>, profiler: Option<ProfilerCallback>) -> NcclResult {
    log::set_logger(logger);
    guard("init", || api::init_implicit(v10::NetProperties::FORCES_FLUSHES, profiler))
}

unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm_id: u64,
    config: *mut CommConfig,
    logger: Option<NcclLogger>,
    profiler: Option<ProfilerCallback>,
) -> NcclResult {
    log::set_logger(logger);
    guard("init", || {
        // SAFETY: NCCL's promise; NULL becomes `None`.
        let class = unsafe { config.as_ref() }.map_or(net::TRAFFIC_CLASS_UNDEF, |config| config.traffic_class);
        if context.is_null() {
            return Err(Error::protocol("init was called with NULL for the context"));
        }
        let made = api::init(class, v11::NetProperties::FORCES_FLUSHES, profiler)?;
        // SAFETY: not NULL, and NCCL's promise.
        unsafe { context.write(made) };
        Ok(())
    })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("finalize", || unsafe { api::finalize(context) })
}

unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("devices", || unsafe { api::devices(count) })
}

/// The properties structure of one version.
trait Fill: Sized {
    /// True if this version's properties can ask for flushes on GPUs for which NCCL omits them.
    const FORCES_FLUSHES: bool;

    fn from_properties(from: &api::Properties) -> Self;
}

unsafe extern "C" fn get_properties<P: Fill>(device: c_int, properties: *mut P) -> NcclResult {
    guard("getProperties", || {
        if properties.is_null() {
            return Err(Error::protocol("getProperties was called with NULL for the properties"));
        }
        let found = api::properties(device, P::FORCES_FLUSHES)?;
        // SAFETY: not NULL, and NCCL's promise.
        unsafe { properties.write(P::from_properties(&found)) };
        Ok(())
    })
}

/// Fills one version's structure: the fields common to all, then those that the version adds.
macro_rules! fill {
    ($version:ident, $forces_flushes:literal { $($more:ident: $value:expr),* $(,)? }) => {
        impl Fill for $version::NetProperties {
            const FORCES_FLUSHES: bool = $forces_flushes;

            fn from_properties(from: &api::Properties) -> Self {
                Self {
                    name: from.name,
                    pci_path: from.pci_path,
                    guid: from.guid,
                    ptr_support: from.ptr_support,
                    speed: from.speed,
                    port: from.port,
                    latency: 0.0,
                    max_comms: from.max_comms,
                    max_recvs: from.max_recvs,
                    $($more: $value(from),)*
                }
            }
        }
    };
}

fn host_device(_: &api::Properties) -> c_int {
    DEVICE_HOST
}

fn no_offload(_: &api::Properties) -> c_int {
    DEVICE_INVALID_VERSION
}

fn yes(_: &api::Properties) -> c_int {
    1
}

fn max_bytes(from: &api::Properties) -> usize {
    from.max_bytes
}

/// The first four members: a device with more exists only if NCCL made it by v12 of its API.
fn members4(from: &api::Properties) -> VDeviceProps4 {
    let [first, second, third, fourth, ..] = from.members;
    VDeviceProps4 { ndevs: from.member_count.min(4) as c_int, devs: [first, second, third, fourth] }
}

fn members8(from: &api::Properties) -> VDeviceProps8 {
    VDeviceProps8 { ndevs: from.member_count as c_int, devs: from.members }
}

fn rail_of(from: &api::Properties) -> i16 {
    from.rail_id
}

fn plane_of(from: &api::Properties) -> i16 {
    from.plane_id
}

fn flush_of(from: &api::Properties) -> c_int {
    c_int::from(from.force_flush)
}

fill!(v6, false {});
fill!(v7, false { net_device_type: host_device, net_device_version: no_offload });
fill!(v8, false { net_device_type: host_device, net_device_version: no_offload, reg_is_global: yes });
fill!(v9, true {
    net_device_type: host_device,
    net_device_version: no_offload,
    reg_is_global: yes,
    force_flush: flush_of,
    v_props: members4,
    max_p2p_bytes: max_bytes,
    max_coll_bytes: max_bytes,
});
fill!(v10, true {
    net_device_type: host_device,
    net_device_version: no_offload,
    reg_is_global: yes,
    force_flush: flush_of,
    v_props: members4,
    max_p2p_bytes: max_bytes,
    max_coll_bytes: max_bytes,
});
fill!(v11, true {
    net_device_type: host_device,
    net_device_version: no_offload,
    reg_is_global: yes,
    force_flush: flush_of,
    v_props: members4,
    max_p2p_bytes: max_bytes,
    max_coll_bytes: max_bytes,
    max_multi_request_size: yes,
});
fill!(v12, true {
    net_device_type: host_device,
    net_device_version: no_offload,
    reg_is_global: yes,
    force_flush: flush_of,
    v_props: members8,
    max_p2p_bytes: max_bytes,
    max_coll_bytes: max_bytes,
    max_multi_request_size: yes,
    rail_id: rail_of,
    plane_id: plane_of,
});

unsafe extern "C" fn listen_v6(device: c_int, handle: *mut c_void, listen: *mut *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("listen", || unsafe { api::listen(api::implicit(), device, handle, listen) })
}

unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listen: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("listen", || unsafe { api::listen(context, device, handle, listen) })
}

unsafe extern "C" fn connect_v6(device: c_int, handle: *mut c_void, send: *mut *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("connect", || unsafe { api::connect(api::implicit(), device, None, handle, send) })
}

unsafe extern "C" fn connect_v7(
    device: c_int,
    handle: *mut c_void,
    send: *mut *mut c_void,
    _device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("connect", || unsafe { api::connect(api::implicit(), device, None, handle, send) })
}

unsafe extern "C" fn connect_v10(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    send: *mut *mut c_void,
    _device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: NCCL's promise; NULL becomes `None`.
    let class = unsafe { config.as_ref() }.map(|config| config.traffic_class);
    // SAFETY: NCCL's promise.
    guard("connect", || unsafe { api::connect(api::implicit(), device, class, handle, send) })
}

unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    send: *mut *mut c_void,
    _device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("connect", || unsafe { api::connect(context, device, None, handle, send) })
}

unsafe extern "C" fn accept_v6(listen: *mut c_void, receive: *mut *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("accept", || unsafe { api::accept(listen, receive) })
}

unsafe extern "C" fn accept_v7(
    listen: *mut c_void,
    receive: *mut *mut c_void,
    _device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("accept", || unsafe { api::accept(listen, receive) })
}

unsafe extern "C" fn reg_mr_v6(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    guard("regMr", || {
        let bytes = usize::try_from(bytes).map_err(|_| negative_size("regMr", bytes))?;
        // SAFETY: NCCL's promise.
        unsafe { api::reg_mr(comm, data, bytes, api::memory_kind(kind)?, memory) }
    })
}

unsafe extern "C" fn reg_mr_v8(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("regMr", || unsafe { api::reg_mr(comm, data, bytes, api::memory_kind(kind)?, memory) })
}

unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    _kind: c_int,
    offset: u64,
    fd: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("regMrDmaBuf", || unsafe { api::reg_mr(comm, data, bytes, MemoryKind::DmaBuf { fd, offset }, memory) })
}

unsafe extern "C" fn dereg_mr(_comm: *mut c_void, memory: *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("deregMr", || unsafe { api::dereg_mr(memory) })
}

unsafe extern "C" fn isend_v6(
    send: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let Ok(size) = usize::try_from(bytes) else {
        return failed("isend", negative_size("isend", bytes));
    };
    // SAFETY: NCCL's promise.
    unsafe { data_path::isend(send, data, size, tag, memory, ptr::null_mut(), request) }
}

unsafe extern "C" fn isend_v9(
    send: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    unsafe { data_path::isend(send, data, bytes, tag, memory, ptr::null_mut(), request) }
}

unsafe extern "C" fn isend_v10(
    send: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    profiler: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    unsafe { data_path::isend(send, data, bytes, tag, memory, profiler, request) }
}

unsafe extern "C" fn irecv_v6(
    receive: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // `data_path` refuses a count that is negative or too large.
    let count_here = usize::try_from(count).unwrap_or(0);
    let mut wide = [0; MAX_BUFFERS];
    for (index, place) in wide.iter_mut().enumerate().take(if sizes.is_null() { 0 } else { count_here }) {
        // SAFETY: NCCL's promise: there are as many sizes as buffers.
        let size = unsafe { *sizes.add(index) };
        match usize::try_from(size) {
            Ok(size) => *place = size,
            Err(_) => return failed("irecv", negative_size("irecv", size)),
        }
    }
    let sizes = if sizes.is_null() { ptr::null_mut() } else { wide.as_mut_ptr() };
    let buffers = Buffers { count, data, sizes, tags, memory };
    // SAFETY: NCCL's promise. Before v9 the request may hold anything, so it is cleared before `data_path` reads it.
    unsafe {
        if !request.is_null() {
            request.write(ptr::null_mut());
        }
        data_path::irecv(receive, buffers, ptr::null_mut(), request)
    }
}

unsafe extern "C" fn irecv_v9(
    receive: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let buffers = Buffers { count, data, sizes, tags, memory };
    // SAFETY: NCCL's promise.
    unsafe { data_path::irecv(receive, buffers, ptr::null_mut(), request) }
}

unsafe extern "C" fn irecv_v10(
    receive: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let buffers = Buffers { count, data, sizes, tags, memory };
    // SAFETY: NCCL's promise.
    unsafe { data_path::irecv(receive, buffers, profiler, request) }
}

unsafe extern "C" fn iflush(
    receive: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let buffers = Buffers { count, data, sizes, tags: ptr::null_mut(), memory };
    // SAFETY: NCCL's promise.
    guard("iflush", || unsafe { data_path::iflush(receive, &buffers, request) })
}

unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> NcclResult {
    // SAFETY: NCCL's promise.
    unsafe { data_path::test(request, done, sizes) }
}

unsafe extern "C" fn close(comm: *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("close", || unsafe { api::close(comm) })
}

unsafe extern "C" fn close_listen(listen: *mut c_void) -> NcclResult {
    // SAFETY: NCCL's promise.
    guard("closeListen", || unsafe { api::close_listen(listen) })
}

/// The members of a virtual device, as one version passes them.
trait Members {
    fn parts(&self) -> (c_int, &[c_int]);
}

impl Members for VDeviceProps4 {
    fn parts(&self) -> (c_int, &[c_int]) {
        (self.ndevs, &self.devs)
    }
}

impl Members for VDeviceProps8 {
    fn parts(&self) -> (c_int, &[c_int]) {
        (self.ndevs, &self.devs)
    }
}

unsafe extern "C" fn make_v_device<V: Members>(device: *mut c_int, members: *mut V) -> NcclResult {
    guard("makeVDevice", || {
        // SAFETY: NCCL's promise; NULL becomes `None`.
        let members = unsafe { members.as_ref() }.ok_or_else(|| null("makeVDevice", "the members"))?;
        let (count, places) = members.parts();
        let members = usize::try_from(count).ok().and_then(|count| places.get(..count)).ok_or_else(|| {
            Error::protocol(format!(
                "makeVDevice was called with {count} members; allowed: 1 to {}, the places in this version of the API",
                places.len()
            ))
        })?;
        // SAFETY: NCCL's promise.
        unsafe { api::make_v_device(device, members) }
    })
}

/// Ignores NCCL's hints about the traffic to come.
unsafe extern "C" fn set_net_attr<A>(_context: *mut c_void, _attributes: *mut A) -> NcclResult {
    NcclResult::SUCCESS
}

/// Defines one table: the fields that all versions share, then the version's own.
macro_rules! table {
    ($symbol:ident: $version:ident { $($field:ident: $value:expr),* $(,)? }) => {
        /// The table of this version of NCCL's net API; NCCL looks it up by name.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "the name is NCCL's")]
        pub static $symbol: $version::Net = $version::Net {
            name: NAME.as_ptr(),
            devices: Some(devices),
            get_properties: Some(get_properties::<$version::NetProperties>),
            reg_mr_dma_buf: Some(reg_mr_dma_buf),
            dereg_mr: Some(dereg_mr),
            iflush: Some(iflush),
            test: Some(test),
            close_send: Some(close),
            close_recv: Some(close),
            close_listen: Some(close_listen),
            $($field: $value,)*
        };
    };
}

table!(ncclNetPlugin_v6: v6 {
    init: Some(init_v6), listen: Some(listen_v6), connect: Some(connect_v6), accept: Some(accept_v6),
    reg_mr: Some(reg_mr_v6), isend: Some(isend_v6), irecv: Some(irecv_v6),
});
table!(ncclNetPlugin_v7: v7 {
    init: Some(init_v6), listen: Some(listen_v6), connect: Some(connect_v7), accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v6), isend: Some(isend_v6), irecv: Some(irecv_v6),
    get_device_mr: None, irecv_consumed: None,
});
table!(ncclNetPlugin_v8: v8 {
    init: Some(init_v6), listen: Some(listen_v6), connect: Some(connect_v7), accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v8), isend: Some(isend_v6), irecv: Some(irecv_v6),
    get_device_mr: None, irecv_consumed: None,
});
table!(ncclNetPlugin_v9: v9 {
    init: Some(init_v9), listen: Some(listen_v6), connect: Some(connect_v7), accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v8), isend: Some(isend_v9), irecv: Some(irecv_v9),
    get_device_mr: None, irecv_consumed: None, make_v_device: Some(make_v_device::<VDeviceProps4>),
});
table!(ncclNetPlugin_v10: v10 {
    init: Some(init_v10), listen: Some(listen_v6), connect: Some(connect_v10), accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v8), isend: Some(isend_v10), irecv: Some(irecv_v10),
    get_device_mr: None, irecv_consumed: None, make_v_device: Some(make_v_device::<VDeviceProps4>),
});
table!(ncclNetPlugin_v11: v11 {
    init: Some(init_v11), listen: Some(listen_v11), connect: Some(connect_v11), accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v8), isend: Some(isend_v10), irecv: Some(irecv_v10),
    get_device_mr: None, irecv_consumed: None, make_v_device: Some(make_v_device::<VDeviceProps4>),
    finalize: Some(finalize), set_net_attr: Some(set_net_attr::<v11::NetAttr>),
});
table!(ncclNetPlugin_v12: v12 {
    init: Some(init_v11), listen: Some(listen_v11), connect: Some(connect_v11), accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v8), isend: Some(isend_v10), irecv: Some(irecv_v10),
    get_device_mr: None, irecv_consumed: None, make_v_device: Some(make_v_device::<VDeviceProps8>),
    finalize: Some(finalize), set_net_attr: Some(set_net_attr::<v12::NetAttr>),
});
