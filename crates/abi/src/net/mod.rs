//! The net API: one module per version, the parts that versions share, and the constants of `nccl_net.h`.

pub mod calls;
pub mod parts;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use core::ffi::{CStr, c_int, c_void};

/// The versions of the API with the data symbols of their tables, newest first, in the order in which NCCL tries them.
pub const NET_SYMBOLS: [(u32, &CStr); 7] = [
    (12, c"ncclNetPlugin_v12"),
    (11, c"ncclNetPlugin_v11"),
    (10, c"ncclNetPlugin_v10"),
    (9, c"ncclNetPlugin_v9"),
    (8, c"ncclNetPlugin_v8"),
    (7, c"ncclNetPlugin_v7"),
    (6, c"ncclNetPlugin_v6"),
];

/// `NCCL_NET_HANDLE_MAXSIZE`: size in bytes of the handle that listen writes and connect reads.
pub const HANDLE_MAX_BYTES: usize = 128;
/// `NCCL_NET_MAX_REQUESTS`: the maximum number of outstanding requests on one connection; for receives, times
/// `maxRecvs`.
pub const MAX_REQUESTS: usize = 32;
/// `NCCL_NET_MAX_REQUESTS` of v6.
pub const MAX_REQUESTS_V6: usize = 8;
/// `NCCL_NET_MAX_DEVS_PER_NIC` of v12: the maximum number of members of a virtual device.
pub const MAX_DEVICES_PER_NIC: usize = 8;
/// `NCCL_NET_MAX_DEVS_PER_NIC` of v9 to v11.
pub const MAX_DEVICES_PER_NIC_V9: usize = 4;
/// `NCCL_NET_OPTIONAL_RECV_COMPLETION`: preset in irecv's `*request` from v9 on if the receiver does not need the
/// completion. The plugin must write `*request` in this case too.
pub const OPTIONAL_RECV_COMPLETION: usize = 0x1;
/// `NCCL_NET_MULTI_REQUEST`: the hint for several messages in one request.
pub const MULTI_REQUEST: usize = 0x2;
/// `NCCL_PTR_HOST`: host memory.
pub const PTR_HOST: c_int = 0x1;
/// `NCCL_PTR_CUDA`: GPU memory.
pub const PTR_CUDA: c_int = 0x2;
/// `NCCL_PTR_DMABUF`: memory given as a dma-buf.
pub const PTR_DMABUF: c_int = 0x4;
/// `NCCL_MAX_NET_SIZE_BYTES`: the upper bound of `maxP2pBytes` and `maxCollBytes`, 1 TiB. NCCL refuses 0 and larger
/// values.
pub const MAX_NET_SIZE_BYTES: usize = 1 << 40;
/// `MAX_NET_SIZE`: the largest message that NCCL passes to a plugin that does not declare more, 1 GiB.
pub const MAX_NET_SIZE: usize = 1 << 30;
/// `NCCL_NET_ID_UNDEF`: no rail or plane is set.
pub const ID_UNDEF: i16 = -1;
/// `NCCL_NET_TRAFFIC_CLASS_UNDEF`: no traffic class is set.
pub const TRAFFIC_CLASS_UNDEF: c_int = -1;
/// `NCCL_NET_DEVICE_HOST`: a proxy thread on the host drives the network.
pub const DEVICE_HOST: c_int = 0;
/// `NCCL_NET_DEVICE_UNPACK`: the device unpacks received data.
pub const DEVICE_UNPACK: c_int = 1;
/// `NCCL_NET_DEVICE_GIN_PROXY`: device-initiated transfers, through a proxy.
pub const DEVICE_GIN_PROXY: c_int = 2;
/// `NCCL_NET_DEVICE_GIN_GDAKI`: device-initiated transfers, direct.
pub const DEVICE_GIN_GDAKI: c_int = 3;
/// `NCCL_NET_DEVICE_GIN_GPI`: device-initiated transfers, through a GPU packet interface.
pub const DEVICE_GIN_GPI: c_int = 4;
/// `NCCL_NET_DEVICE_INVALID_VERSION`: no offload.
pub const DEVICE_INVALID_VERSION: c_int = 0x0;
/// `NCCL_NET_DEVICE_UNPACK_VERSION`: the version of unpack.
pub const DEVICE_UNPACK_VERSION: c_int = 0x7;

/// Returns the value that NCCL presets in irecv's `*request` for [`OPTIONAL_RECV_COMPLETION`].
#[must_use]
pub const fn optional_recv_completion() -> *mut c_void {
    core::ptr::without_provenance_mut(OPTIONAL_RECV_COMPLETION)
}
