//! The types of the functions in a table. A name ends with the first version that has this form; a name without a
//! version is for all versions that have the function. Pointers passed to a function are valid only during the call,
//! unless its comment says otherwise.

use super::parts::{CommConfig, DeviceHandle};
use crate::{NcclLogger, NcclResult, ProfilerCallback};
use core::ffi::{c_int, c_void};

/// `init` of v6 to v9.
pub type InitV6 = unsafe extern "C" fn(logger: Option<NcclLogger>) -> NcclResult;
/// `init` of v10, with the profiler's callback.
pub type InitV10 = unsafe extern "C" fn(logger: Option<NcclLogger>, profiler: Option<ProfilerCallback>) -> NcclResult;
/// `init` of v11 on: writes a context for the communicator with the hash `comm_id`.
pub type InitV11 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    comm_id: u64,
    config: *mut CommConfig,
    logger: Option<NcclLogger>,
    profiler: Option<ProfilerCallback>,
) -> NcclResult;
/// `devices`: writes the number of devices.
pub type Devices = unsafe extern "C" fn(count: *mut c_int) -> NcclResult;
/// `getProperties`: writes the properties of device `device`; `P` is the version's own structure.
pub type GetProperties<P> = unsafe extern "C" fn(device: c_int, properties: *mut P) -> NcclResult;
/// `listen` of v6 to v10: writes a handle of 128 bytes, and a listener, which NCCL uses for one connection.
pub type ListenV6 = unsafe extern "C" fn(device: c_int, handle: *mut c_void, listen: *mut *mut c_void) -> NcclResult;
/// `listen` of v11 on, with the communicator's context first.
pub type ListenV11 = unsafe extern "C" fn(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listen: *mut *mut c_void,
) -> NcclResult;
/// `connect` of v6: writes NULL until the connection is ready. The handle's memory is the same at each poll, and the
/// plugin may write to it.
pub type ConnectV6 = unsafe extern "C" fn(device: c_int, handle: *mut c_void, send: *mut *mut c_void) -> NcclResult;
/// `connect` of v7 to v9, with a device handle for offload.
pub type ConnectV7 = unsafe extern "C" fn(
    device: c_int,
    handle: *mut c_void,
    send: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult;
/// `connect` of v10, with the communicator's configuration.
pub type ConnectV10 = unsafe extern "C" fn(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    send: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult;
/// `connect` of v11 on, with the communicator's context.
pub type ConnectV11 = unsafe extern "C" fn(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    send: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult;
/// `accept` of v6: writes NULL until the connection is ready.
pub type AcceptV6 = unsafe extern "C" fn(listen: *mut c_void, receive: *mut *mut c_void) -> NcclResult;
/// `accept` of v7 on, with a device handle for offload.
pub type AcceptV7 = unsafe extern "C" fn(
    listen: *mut c_void,
    receive: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult;
/// `regMr` of v6 and v7; `kind` is one of `PTR_*`, and the size is an `int`.
pub type RegMrV6 = unsafe extern "C" fn(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult;
/// `regMr` of v8 on.
pub type RegMrV8 = unsafe extern "C" fn(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult;
/// `regMrDmaBuf`: the caller closes `fd` right after the call.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    memory: *mut *mut c_void,
) -> NcclResult;
/// `deregMr`: ends a registration of the connection; on abort, transfers may still be in flight.
pub type DeregMr = unsafe extern "C" fn(connection: *mut c_void, memory: *mut c_void) -> NcclResult;
/// `isend` of v6 to v8: writes a request, or NULL if the caller must retry.
pub type IsendV6 = unsafe extern "C" fn(
    send: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `isend` of v9.
pub type IsendV9 = unsafe extern "C" fn(
    send: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `isend` of v10 on, with the profiler's parent event (may be NULL).
pub type IsendV10 = unsafe extern "C" fn(
    send: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    profiler: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `irecv` of v6 to v8: `n` buffers, each with its size, tag and registration, in one request.
pub type IrecvV6 = unsafe extern "C" fn(
    receive: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `irecv` of v9; `*request` may be preset to [`OPTIONAL_RECV_COMPLETION`](super::OPTIONAL_RECV_COMPLETION).
pub type IrecvV9 = unsafe extern "C" fn(
    receive: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `irecv` of v10 on, with the profiler's parent events (the array itself may be NULL).
pub type IrecvV10 = unsafe extern "C" fn(
    receive: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `iflush`: takes the buffers of an irecv; a request of NULL means that there is nothing to do.
pub type Iflush = unsafe extern "C" fn(
    receive: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult;
/// `test`: once the request is complete, writes 1 to `done`, and the sizes of its messages to `bytes`, which may be
/// NULL. The caller must not test the request again after that.
pub type Test = unsafe extern "C" fn(request: *mut c_void, done: *mut c_int, bytes: *mut c_int) -> NcclResult;
/// `closeSend`, `closeRecv` and `closeListen`.
pub type Close = unsafe extern "C" fn(connection: *mut c_void) -> NcclResult;
/// `getDeviceMr`: writes the device's form of a registration.
pub type GetDeviceMr =
    unsafe extern "C" fn(connection: *mut c_void, memory: *mut c_void, device_memory: *mut *mut c_void) -> NcclResult;
/// `irecvConsumed`: tells the plugin that the device has used the receive.
pub type IrecvConsumed = unsafe extern "C" fn(receive: *mut c_void, n: c_int, request: *mut c_void) -> NcclResult;
/// `makeVDevice`: fuses the devices in `members` and writes the new one's index; `V` is the version's own structure.
pub type MakeVDevice<V> = unsafe extern "C" fn(device: *mut c_int, members: *mut V) -> NcclResult;
/// `finalize`: ends the context that init wrote.
pub type Finalize = unsafe extern "C" fn(context: *mut c_void) -> NcclResult;
/// `setNetAttr`: passes hints for a context; two threads may call it.
pub type SetNetAttr<A> = unsafe extern "C" fn(context: *mut c_void, attributes: *mut A) -> NcclResult;
