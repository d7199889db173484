//! Structures with the same layout in several versions of the net API.

use super::{MAX_DEVICES_PER_NIC, MAX_DEVICES_PER_NIC_V9};
use core::ffi::{c_int, c_void};

/// `ncclNetDeviceHandle_v7_t` to `_v12_t`: the data with which a device drives a connection by itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceHandle {
    /// The kind of offload, such as [`DEVICE_UNPACK`](super::DEVICE_UNPACK).
    pub net_device_type: c_int,
    /// The version of the offload.
    pub net_device_version: c_int,
    /// Memory for the device's side.
    pub handle: *mut c_void,
    /// The size of `handle`'s memory in bytes.
    pub size: usize,
    /// 1 if the proxy thread must still call isend, irecv and test.
    pub needs_proxy_progress: c_int,
}

/// `ncclNetVDeviceProps_v9_t` to `_v11_t`: the members of a virtual device, at most four.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VDeviceProps4 {
    /// The number of valid entries in `devs`, 0 to 4.
    pub ndevs: c_int,
    /// The indices of the members.
    pub devs: [c_int; MAX_DEVICES_PER_NIC_V9],
}

/// `ncclNetVDeviceProps_v12_t`: the members of a virtual device, at most eight.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VDeviceProps8 {
    /// The number of valid entries in `devs`, 0 to 8.
    pub ndevs: c_int,
    /// The indices of the members.
    pub devs: [c_int; MAX_DEVICES_PER_NIC],
}

/// `ncclNetCommConfig_v10_t` to `_v12_t`: the user's configuration of a communicator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommConfig {
    /// The traffic class; [`TRAFFIC_CLASS_UNDEF`](super::TRAFFIC_CLASS_UNDEF) for none.
    pub traffic_class: c_int,
}

/// `ncclNetCommAttr_v11_t` and `_v12_t`: the expected numbers of peers and flows in one direction; -1 if unknown.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommAttr {
    /// The maximum number of peers at one time.
    pub max_concurrent_peers: i32,
    /// The minimum number of peers at one time.
    pub min_concurrent_peers: i32,
    /// The maximum number of connections to one peer.
    pub max_flows_per_peer: i32,
    /// The minimum number of connections to one peer.
    pub min_flows_per_peer: i32,
}

/// `ncclNetAttr_v11_t` and `_v12_t`: hints about the expected traffic.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetAttr {
    /// Expectations for sends.
    pub send_comm_attr: CommAttr,
    /// Expectations for receives.
    pub recv_comm_attr: CommAttr,
    /// A mask of operations; all bits are set if unknown.
    pub op: u32,
    /// A mask of algorithms; all bits are set if unknown.
    pub algo: u32,
    /// A mask of protocols; all bits are set if unknown.
    pub proto: u32,
}

const _: () = {
    assert!(size_of::<DeviceHandle>() == 32);
    assert!(core::mem::offset_of!(DeviceHandle, handle) == 8);
    assert!(core::mem::offset_of!(DeviceHandle, size) == 16);
    assert!(core::mem::offset_of!(DeviceHandle, needs_proxy_progress) == 24);
    assert!(size_of::<VDeviceProps4>() == 20 && size_of::<VDeviceProps8>() == 36);
    assert!(size_of::<CommConfig>() == 4);
    assert!(size_of::<CommAttr>() == 16 && size_of::<NetAttr>() == 44);
};
