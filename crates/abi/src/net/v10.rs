//! Net API v10, of NCCL 2.26 and 2.27: adds the profiler and the traffic class.

use super::calls::{
    AcceptV7, Close, ConnectV10, DeregMr, Devices, GetDeviceMr, GetProperties, Iflush, InitV10, IrecvConsumed,
    IrecvV10, IsendV10, ListenV6, MakeVDevice, RegMrDmaBuf, RegMrV8, Test,
};
use core::ffi::{c_char, c_float, c_int};

pub use super::parts::{CommConfig, DeviceHandle as NetDeviceHandle, VDeviceProps4 as VDeviceProps};

/// `ncclNetProperties_v10_t`: the properties of one device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetProperties {
    /// The name of the device: unique, the same at every call, valid for the life of the process.
    pub name: *const c_char,
    /// The directory of the PCI device under `/sys`; NULL for a virtual interface.
    pub pci_path: *const c_char,
    /// A number that the ports of one adapter share; NCCL treats devices with the same number as one chip.
    pub guid: u64,
    /// The kinds of memory that can be registered: a mask of [`PTR_HOST`](super::PTR_HOST),
    /// [`PTR_CUDA`](super::PTR_CUDA), [`PTR_DMABUF`](super::PTR_DMABUF).
    pub ptr_support: c_int,
    /// 1 if a registration is not tied to one connection; needed for buffers that users register.
    pub reg_is_global: c_int,
    /// 1 if a message received into GPU memory always needs a flush.
    pub force_flush: c_int,
    /// The speed of the port in Mbit/s.
    pub speed: c_int,
    /// The number of the port on its adapter.
    pub port: c_int,
    /// The latency of the network in microseconds; 0 if unknown.
    pub latency: c_float,
    /// The maximum number of connections of the device.
    pub max_comms: c_int,
    /// The maximum number of receives that one irecv may group.
    pub max_recvs: c_int,
    /// The driver of the network: [`DEVICE_HOST`](super::DEVICE_HOST), or a kind of offload.
    pub net_device_type: c_int,
    /// The version of the offload; [`DEVICE_INVALID_VERSION`](super::DEVICE_INVALID_VERSION) if there is none.
    pub net_device_version: c_int,
    /// The physical devices that form a virtual device; for a physical device, one entry: itself.
    pub v_props: VDeviceProps,
    /// The largest message of send and receive in bytes, 1 to [`MAX_NET_SIZE_BYTES`](super::MAX_NET_SIZE_BYTES).
    pub max_p2p_bytes: usize,
    /// The largest message of a collective in bytes.
    pub max_coll_bytes: usize,
}

/// `ncclNet_v10_t`: the table that a plugin exports as the data symbol `ncclNetPlugin_v10`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// The name of the plugin, as the user gives it in NCCL_NET; never NULL.
    pub name: *const c_char,
    /// Starts the plugin; not called again while a communicator exists.
    pub init: Option<InitV10>,
    /// Writes the number of devices.
    pub devices: Option<Devices>,
    /// Describes one device.
    pub get_properties: Option<GetProperties<NetProperties>>,
    /// Makes a handle for accepting one connection.
    pub listen: Option<ListenV6>,
    /// Connects to a handle; called until the connection is ready.
    pub connect: Option<ConnectV10>,
    /// Accepts the connection of a listener; called until the connection is ready.
    pub accept: Option<AcceptV7>,
    /// Registers memory.
    pub reg_mr: Option<RegMrV8>,
    /// Registers memory by dma-buf; may be NULL without [`PTR_DMABUF`](super::PTR_DMABUF).
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// Ends a registration.
    pub dereg_mr: Option<DeregMr>,
    /// Starts a send.
    pub isend: Option<IsendV10>,
    /// Starts a receive.
    pub irecv: Option<IrecvV10>,
    /// Makes received data visible to the GPU.
    pub iflush: Option<Iflush>,
    /// Tests if a request is done.
    pub test: Option<Test>,
    /// Closes a sending connection.
    pub close_send: Option<Close>,
    /// Closes a receiving connection.
    pub close_recv: Option<Close>,
    /// Closes a listener.
    pub close_listen: Option<Close>,
    /// Makes the device's form of a registration; NULL without offload.
    pub get_device_mr: Option<GetDeviceMr>,
    /// Tells the plugin that the device has used a receive; NULL without offload.
    pub irecv_consumed: Option<IrecvConsumed>,
    /// Fuses devices; NULL if the plugin cannot.
    pub make_v_device: Option<MakeVDevice<VDeviceProps>>,
}

// SAFETY: a table holds only pointers to functions and to a constant string, and nobody writes to it.
unsafe impl Sync for Net {}

const _: () = assert!(size_of::<NetProperties>() == 104 && size_of::<Net>() == 160);
