//! Net API v7, of NCCL 2.19: adds device offload.

use super::calls::{
    AcceptV7, Close, ConnectV7, DeregMr, Devices, GetDeviceMr, GetProperties, Iflush, InitV6, IrecvConsumed, IrecvV6,
    IsendV6, ListenV6, RegMrDmaBuf, RegMrV6, Test,
};
use core::ffi::{c_char, c_float, c_int};

pub use super::parts::DeviceHandle as NetDeviceHandle;

/// `ncclNetProperties_v7_t`: what one device is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetProperties {
    /// The name of the device: unique, the same at every call, valid for the life of the process.
    pub name: *const c_char,
    /// The directory of the PCI device under `/sys`; NULL for a virtual interface.
    pub pci_path: *const c_char,
    /// A number that ports of one adapter share; two devices with the same one are the same chip to NCCL.
    pub guid: u64,
    /// The kinds of memory that can be registered: a mask of [`PTR_HOST`](super::PTR_HOST),
    /// [`PTR_CUDA`](super::PTR_CUDA), [`PTR_DMABUF`](super::PTR_DMABUF).
    pub ptr_support: c_int,
    /// The speed of the port in Mbit/s.
    pub speed: c_int,
    /// The number of the port on its adapter.
    pub port: c_int,
    /// The latency of the network in microseconds; 0 when unknown.
    pub latency: c_float,
    /// How many connections the device can have.
    pub max_comms: c_int,
    /// The most receives that one irecv may group.
    pub max_recvs: c_int,
    /// Who drives the network: [`DEVICE_HOST`](super::DEVICE_HOST), or a kind of offload.
    pub net_device_type: c_int,
    /// The version of that offload; [`DEVICE_INVALID_VERSION`](super::DEVICE_INVALID_VERSION) when there is none.
    pub net_device_version: c_int,
}

/// `ncclNet_v7_t`: the table that a plugin exports as the data symbol `ncclNetPlugin_v7`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// The name of the plugin; never NULL, and what the user gives to NCCL_NET.
    pub name: *const c_char,
    /// Starts the plugin; called once while any communicator exists.
    pub init: Option<InitV6>,
    /// How many devices there are.
    pub devices: Option<Devices>,
    /// What one device is.
    pub get_properties: Option<GetProperties<NetProperties>>,
    /// Makes a handle for one connection to be accepted.
    pub listen: Option<ListenV6>,
    /// Connects to a handle; polled.
    pub connect: Option<ConnectV7>,
    /// Accepts the connection of a listen; polled.
    pub accept: Option<AcceptV7>,
    /// Registers memory.
    pub reg_mr: Option<RegMrV6>,
    /// Registers memory by DMA-BUF; NULL is allowed without [`PTR_DMABUF`](super::PTR_DMABUF).
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// Ends a registration.
    pub dereg_mr: Option<DeregMr>,
    /// Starts a send.
    pub isend: Option<IsendV6>,
    /// Starts a receive.
    pub irecv: Option<IrecvV6>,
    /// Makes received data visible to the GPU.
    pub iflush: Option<Iflush>,
    /// Asks whether a request is done.
    pub test: Option<Test>,
    /// Closes a sending connection.
    pub close_send: Option<Close>,
    /// Closes a receiving connection.
    pub close_recv: Option<Close>,
    /// Closes a listen.
    pub close_listen: Option<Close>,
    /// A registration for use on the device; NULL when there is no offload.
    pub get_device_mr: Option<GetDeviceMr>,
    /// Tells that the device has used a receive; NULL when there is no offload.
    pub irecv_consumed: Option<IrecvConsumed>,
}

// SAFETY: a table holds only pointers to functions and to a constant text, and nobody writes to it.
unsafe impl Sync for Net {}

const _: () = assert!(size_of::<NetProperties>() == 56 && size_of::<Net>() == 152);
