//! The description of an event in NCCL's own transport over verbs (`profiler/net_ib_v1.h`). A profiler that knows it
//! shows the events of other plugins that use it.

use core::ffi::c_int;

/// `NCCL_PROFILER_NET_VER_BITS`: the number of low bits of a plugin's id that hold the version of its description.
pub const VERSION_BITS: u32 = 16;
/// `NCCL_PROFILER_NET_TYPE_IB`: the kind of network, verbs, in a plugin's id.
pub const TYPE_IB: i64 = 1 << VERSION_BITS;
/// `NCCL_PROFILER_NET_TYPE_SOCK`: the kind of network, sockets, in a plugin's id.
pub const TYPE_SOCKET: i64 = 2 << VERSION_BITS;
/// The id of a plugin whose events are described by a [`NetIbDescr`].
pub const PLUGIN_ID_V1: i64 = TYPE_IB | 1;
/// `ncclProfileQp`: the [`NetIbDescr::kind`] of a request on one queue pair.
pub const KIND_QP: u8 = 1;

/// `ncclProfilerNetIbDescr_v1_t`: an event of a net plugin. The union of the C type has one member, so it is a
/// structure here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetIbDescr {
    /// `type`: the kind of event, [`KIND_QP`].
    pub kind: u8,
    /// The request.
    pub qp: Qp,
}

/// `ncclProfilerNetIbDescr_v1_t::qp`: a request on one queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    /// The index of the device.
    pub device: c_int,
    /// The id of the work request.
    pub wr_id: u64,
    /// The operation, in the numbers of libibverbs (`IBV_WR_*`).
    pub opcode: c_int,
    /// The number of the queue pair.
    pub qp_num: c_int,
    /// The size of the data in bytes.
    pub length: usize,
}

const _: () = assert!(size_of::<NetIbDescr>() == 40);
