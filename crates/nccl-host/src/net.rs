//! The net API without its versions: the calls of a loaded plugin, or of a test's substitute for one.

use railweave_abi::NcclResult;
use railweave_abi::net::HANDLE_MAX_BYTES;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;

/// The largest number of receives that one irecv may group here; NCCL's own transports allow at most 8.
pub const MAX_PARTS: usize = 8;

/// The bytes that a listen passes to the connecting side. The plugin may write to them at each poll of connect, so they
/// stay in one place until the connection exists.
#[repr(C, align(8))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; HANDLE_MAX_BYTES]);

impl Default for Handle {
    fn default() -> Self {
        Self([0; HANDLE_MAX_BYTES])
    }
}

macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(NonNull<c_void>);

        // SAFETY: the plugin's pointer is only passed back to it, and NCCL itself passes it from thread to thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; NCCL's service and progress threads use one connection at the same time.
        unsafe impl Sync for $name {}

        impl $name {
            /// Wraps the plugin's pointer.
            #[must_use]
            pub fn new(pointer: NonNull<c_void>) -> Self {
                Self(pointer)
            }

            /// Returns the plugin's pointer.
            #[must_use]
            pub fn pointer(&self) -> *mut c_void {
                self.0.as_ptr()
            }
        }
    };
}

opaque! {
    /// A listen that accepts one connection.
    ListenComm
}
opaque! {
    /// The sending side of a connection.
    SendComm
}
opaque! {
    /// The receiving side of a connection.
    RecvComm
}
opaque! {
    /// A transfer in progress.
    Request
}

/// Either side of a connection, for registrations.
#[derive(Clone, Copy, Debug)]
pub enum Comm<'a> {
    /// The sending side.
    Send(&'a SendComm),
    /// The receiving side.
    Recv(&'a RecvComm),
}

impl Comm<'_> {
    /// Returns the plugin's pointer.
    #[must_use]
    pub fn pointer(self) -> *mut c_void {
        match self {
            Self::Send(comm) => comm.pointer(),
            Self::Recv(comm) => comm.pointer(),
        }
    }
}

/// A registration: the plugin's own pointer, which may be NULL if it needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration(pub *mut c_void);

// SAFETY: the pointer is only passed back to the plugin, which NCCL does from two threads.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// The handle of a message for NCCL's profiler: the API's `phandle`. A net plugin starts events of its own with it
/// while the request is outstanding (v10 on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfilerHandle(*mut c_void);

// SAFETY: the pointer is only passed to the plugin, and NCCL's callback, to which the plugin passes it, may be called
// from any thread.
unsafe impl Send for ProfilerHandle {}
// SAFETY: as above.
unsafe impl Sync for ProfilerHandle {}

impl ProfilerHandle {
    /// NULL: the plugin must not start events.
    pub const NONE: Self = Self(std::ptr::null_mut());

    /// Wraps the host's pointer.
    #[must_use]
    pub fn new(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    /// Returns the host's pointer.
    #[must_use]
    pub fn pointer(self) -> *mut c_void {
        self.0
    }
}

/// One buffer of a receive.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The memory for the message.
    pub data: NonNull<u8>,
    /// The largest size of the message in bytes.
    pub bytes: usize,
    /// The tag of the message.
    pub tag: c_int,
    /// The registration that covers the buffer.
    pub registration: Registration,
}

/// The properties of a device, in the fields of the newest version; a field that an older version lacks has the value
/// that NCCL uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    /// The unique name.
    pub name: String,
    /// The directory of the PCI device; `None` for a virtual interface.
    pub pci_path: Option<String>,
    /// The number that all ports of one adapter share.
    pub guid: u64,
    /// The kinds of memory it can register: a mask of `PTR_*`.
    pub ptr_support: i32,
    /// True if a registration is not tied to one connection (v8 on).
    pub reg_is_global: bool,
    /// True if received data in GPU memory always needs a flush (v9 on).
    pub force_flush: bool,
    /// Speed in Mbit/s.
    pub speed_mbps: i32,
    /// The number of the port on its adapter.
    pub port: i32,
    /// Latency in microseconds, 0 if unknown.
    pub latency_us: f32,
    /// The largest number of connections.
    pub max_comms: i32,
    /// The largest number of receives in one irecv.
    pub max_recvs: i32,
    /// The kind of device that drives the network, 0 for the host (v7 on).
    pub device_type: i32,
    /// The indices of the devices that are fused into it; empty before v9.
    pub members: Vec<i32>,
    /// The largest message of send and receive in bytes; 1 GiB before v9.
    pub max_p2p_bytes: usize,
    /// The largest message of a collective in bytes; 1 GiB before v9.
    pub max_coll_bytes: usize,
    /// The rail that the user set, -1 for none (v12 on).
    pub rail_id: i16,
    /// The plane that the user set, -1 for none (v12 on).
    pub plane_id: i16,
}

/// The calls of a net plugin. The methods are those of the API, one for one, with results in Rust's types.
///
/// The unsafe ones follow the API's own rules: a registration belongs to the connection that it was made with,
/// registered memory stays where it is until the registration or the connection ends, a transfer's buffer lies inside
/// its registration and is not touched until the transfer is done, and a request that is done is not tested again. A
/// profiler's handle is NULL, or points to a step of the profiler whose callback the plugin has; the step stays in
/// place until the request is done or the connection is closed.
pub trait NetApi: Sync {
    /// Returns the number of devices.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn devices(&self) -> Result<i32, NetError>;

    /// Returns the properties of device `device`.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn properties(&self, device: i32) -> Result<Properties, NetError>;

    /// Starts to listen for one connection and writes the handle for the other side.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn listen(&self, device: i32, handle: &mut Handle) -> Result<ListenComm, NetError>;

    /// Connects; returns `None` while the connection is not ready. Call it again with the same handle at the same
    /// place.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn connect(&self, device: i32, handle: &mut Handle) -> Result<Option<SendComm>, NetError>;

    /// Accepts the connection of a listen; returns `None` while it is not ready.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn accept(&self, listen: &ListenComm) -> Result<Option<RecvComm>, NetError>;

    /// Registers host memory for a connection.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn reg_mr(&self, comm: Comm<'_>, data: NonNull<u8>, bytes: usize) -> Result<Registration, NetError>;

    /// Ends a registration.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn dereg_mr(&self, comm: Comm<'_>, registration: Registration) -> Result<(), NetError>;

    /// Starts a send; returns `None` if it must be retried.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn isend(
        &self,
        comm: &SendComm,
        data: NonNull<u8>,
        bytes: usize,
        tag: i32,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller promises it, and NULL is allowed.
        unsafe { self.isend_profiled(comm, data, bytes, tag, registration, ProfilerHandle::NONE) }
    }

    /// As [`Self::isend`], with the profiler's handle of the message, which only plugins of v10 on get.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn isend_profiled(
        &self,
        comm: &SendComm,
        data: NonNull<u8>,
        bytes: usize,
        tag: i32,
        registration: Registration,
        profiler: ProfilerHandle,
    ) -> Result<Option<Request>, NetError>;

    /// Starts a receive of one to [`MAX_PARTS`] messages; returns `None` if it must be retried. With
    /// `completion_optional`, the request of a single message is preset to NCCL's hint for protocols whose receivers
    /// poll flags in the data (v9 on).
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn irecv(
        &self,
        comm: &RecvComm,
        parts: &[Part],
        completion_optional: bool,
    ) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller promises it, and NULL is allowed.
        unsafe { self.irecv_profiled(comm, parts, completion_optional, &[]) }
    }

    /// As [`Self::irecv`], with the profiler's handle of each part, which only plugins of v10 on get; none stands for
    /// NULL instead of an array.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn irecv_profiled(
        &self,
        comm: &RecvComm,
        parts: &[Part],
        completion_optional: bool,
        profiler: &[ProfilerHandle],
    ) -> Result<Option<Request>, NetError>;

    /// Makes received data visible to the GPU; returns `None` if nothing is left to do.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn iflush(&self, comm: &RecvComm, parts: &[Part]) -> Result<Option<Request>, NetError>;

    /// Returns true if a request is done; then the sizes of its messages are in `sizes`, unless that is `None`.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn test(&self, request: &Request, sizes: Option<&mut [c_int; MAX_PARTS]>) -> Result<bool, NetError>;

    /// Closes the sending side, even with transfers in flight.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn close_send(&self, comm: SendComm) -> Result<(), NetError>;

    /// Closes the receiving side, even with transfers in flight.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn close_recv(&self, comm: RecvComm) -> Result<(), NetError>;

    /// Closes a listen.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn close_listen(&self, listen: ListenComm) -> Result<(), NetError>;
}

/// A call of the API that failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetError {
    /// The plugin returned an error.
    #[error("{call} of plugin {plugin:?} returned {code}; the plugin's own WARN lines say why")]
    Call {
        /// The plugin's name.
        plugin: String,
        /// The function's name in C.
        call: &'static str,
        /// The code that it returned.
        code: NcclResult,
    },
    /// The plugin's table has no such function.
    #[error(
        "plugin {plugin:?} has NULL for {call} in its table for net v{version}, which NCCL would call; it must be set"
    )]
    NullFunction {
        /// The plugin's name.
        plugin: String,
        /// The function's name in C.
        call: &'static str,
        /// The version of the API.
        version: u32,
    },
    /// A size is larger than this version of the API allows.
    #[error("{call} of {bytes} bytes: net v{version} allows at most {limit}; use less, or a newer version of the API")]
    TooLarge {
        /// The function's name in C.
        call: &'static str,
        /// The requested size.
        bytes: usize,
        /// The largest allowed size.
        limit: usize,
        /// The version of the API.
        version: u32,
    },
    /// The plugin started without finding any device.
    #[error(
        "plugin {plugin:?} of {path} has no device: init succeeded and devices returned {answer}, so it found no \
         active port or interface that it may use; its log lines of level INFO say which ones it saw, and settings \
         such as NCCL_IB_HCA and NCCL_SOCKET_IFNAME control which ones it may use"
    )]
    NoDevice {
        /// The plugin's name.
        plugin: String,
        /// The file that it was loaded from.
        path: PathBuf,
        /// The number of devices that it reports.
        answer: i32,
    },
    /// The plugin cannot fuse devices.
    #[error(
        "plugin {plugin:?} cannot fuse devices: its table of net v{version} has no makeVDevice, which is optional in \
         v9 to v12; use one device"
    )]
    CannotFuse {
        /// The plugin's name.
        plugin: String,
        /// The version of the API.
        version: u32,
    },
    /// The number of devices is 0, or more than this version of the API allows.
    #[error("cannot fuse {members} devices: net v{version} allows 1 to {limit}; choose another number")]
    Members {
        /// The requested number.
        members: usize,
        /// The largest number.
        limit: usize,
        /// The version of the API.
        version: u32,
    },
    /// The plugin did something that the API does not allow.
    #[error("plugin {plugin:?} breaks the API in {call}: {what}")]
    Broken {
        /// The plugin's name.
        plugin: String,
        /// The function's name in C.
        call: &'static str,
        /// The violation.
        what: &'static str,
    },
}
