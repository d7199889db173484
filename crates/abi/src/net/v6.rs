//! Net API v6, of NCCL 2.13 to 2.18.

use super::calls::{
    AcceptV6, Close, ConnectV6, DeregMr, Devices, GetProperties, Iflush, InitV6, IrecvV6, IsendV6, ListenV6,
    RegMrDmaBuf, RegMrV6, Test,
};
use core::ffi::{c_char, c_float, c_int};

/// `ncclNetProperties_v6_t`: the properties of one device.
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
}

/// `ncclNet_v6_t`: the table that a plugin exports as the data symbol `ncclNetPlugin_v6`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// The name of the plugin, as the user gives it in NCCL_NET; never NULL.
    pub name: *const c_char,
    /// Starts the plugin; not called again while a communicator exists.
    pub init: Option<InitV6>,
    /// Writes the number of devices.
    pub devices: Option<Devices>,
    /// Describes one device.
    pub get_properties: Option<GetProperties<NetProperties>>,
    /// Makes a handle for accepting one connection.
    pub listen: Option<ListenV6>,
    /// Connects to a handle; called until the connection is ready.
    pub connect: Option<ConnectV6>,
    /// Accepts the connection of a listener; called until the connection is ready.
    pub accept: Option<AcceptV6>,
    /// Registers memory.
    pub reg_mr: Option<RegMrV6>,
    /// Registers memory by dma-buf; may be NULL without [`PTR_DMABUF`](super::PTR_DMABUF).
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// Ends a registration.
    pub dereg_mr: Option<DeregMr>,
    /// Starts a send.
    pub isend: Option<IsendV6>,
    /// Starts a receive.
    pub irecv: Option<IrecvV6>,
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
}

// SAFETY: a table holds only pointers to functions and to a constant string, and nobody writes to it.
unsafe impl Sync for Net {}

const _: () = assert!(size_of::<NetProperties>() == 48 && size_of::<Net>() == 136);
