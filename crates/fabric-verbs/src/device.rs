//! An RDMA device of this host, open: its attributes and those of its ports, and its events.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sys::{self, Functions};

/// A device of this host, open for as long as this lives. Everything made from it keeps it alive.
pub struct Device {
    functions: Arc<Functions>,
    context: NonNull<sys::Context>,
    name: String,
    sysfs: PathBuf,
    is_infiniband: bool,
}

// SAFETY: libibverbs may be called from any thread with any of its objects (verbs(7), "thread safe"), and nothing here
// is changed after `open_all`.
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

impl Device {
    /// Opens every RDMA device of this host, in libibverbs' order; for a device that cannot be opened, returns its name
    /// and the reason.
    ///
    /// # Errors
    /// If the list is not available: the kernel has no RDMA support, or this process has no right to it.
    #[allow(clippy::type_complexity, reason = "devices, each open or not: a type of its own would not be clearer")]
    pub fn open_all(functions: &Arc<Functions>) -> io::Result<Vec<Result<Arc<Self>, (String, io::Error)>>> {
        let mut count = 0;
        // SAFETY: the pointer to the count is valid; the list is freed below, once.
        let list = unsafe { (functions.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut devices = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` devices, each valid until the list is freed.
            devices.push(unsafe { Self::open(functions, *list.add(index)) });
        }
        // SAFETY: the list came from get_device_list; opened devices stay valid after this (ibv_get_device_list(3)).
        unsafe { (functions.free_device_list)(list) };
        Ok(devices)
    }

    /// # Safety
    /// `device` comes from a list that is not yet freed.
    unsafe fn open(functions: &Arc<Functions>, device: *mut sys::Device) -> Result<Arc<Self>, (String, io::Error)> {
        // SAFETY: the caller's promise; the arrays hold strings that end in zero.
        let (name, sysfs, is_infiniband, context) = unsafe {
            let name = text(&(*device).name);
            let sysfs = PathBuf::from(text(&(*device).ibdev_path));
            let is_infiniband = (*device).transport_type == sys::TRANSPORT_IB;
            (name, sysfs, is_infiniband, (functions.open_device)(device))
        };
        match NonNull::new(context) {
            Some(context) => {
                Ok(Arc::new(Self { functions: Arc::clone(functions), context, name, sysfs, is_infiniband }))
            }
            None => Err((name, io::Error::last_os_error())),
        }
    }

    /// Returns the kernel's name for it: `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its directory below /sys/class/infiniband, as the library names it.
    pub fn sysfs(&self) -> &std::path::Path {
        &self.sysfs
    }

    /// Returns true if it speaks the InfiniBand transport, as RoCE does; iWARP and others have no write with an
    /// immediate.
    pub fn is_infiniband_transport(&self) -> bool {
        self.is_infiniband
    }

    /// Returns the device's attributes: ibv_query_device(3).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attributes(&self) -> io::Result<sys::DeviceAttributes> {
        // SAFETY: all zero is a valid value of plain numbers.
        let mut attributes: sys::DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and the pointer is valid.
        check(unsafe { (self.functions.query_device)(self.context.as_ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }

    /// Returns the attributes of port `port`, counted from 1: ibv_query_port(3).
    ///
    /// # Errors
    /// If there is no such port, or the kernel refuses.
    pub fn port_attributes(&self, port: u8) -> io::Result<sys::PortAttributes> {
        let mut attributes = sys::PortAttributes::default();
        let context = self.context.as_ptr();
        // SAFETY: the context is open. If its `abi_compat` says so, it is the last field of a VerbsContext of which the
        // last `size` bytes exist (infiniband/verbs.h, verbs_get_ctx_op). `attributes` has room for the whole
        // structure; the older function writes only its first part.
        check(unsafe {
            let extended = (*context).abi_compat as usize == usize::MAX;
            let whole = context.byte_sub(std::mem::offset_of!(sys::VerbsContext, context)).cast::<sys::VerbsContext>();
            match extended && (*whole).size >= size_of::<sys::VerbsContext>() {
                true => match (*whole).query_port {
                    Some(query) => query(context, port, &raw mut attributes, size_of::<sys::PortAttributes>()),
                    None => (self.functions.query_port)(context, port, &raw mut attributes),
                },
                false => (self.functions.query_port)(context, port, &raw mut attributes),
            }
        })?;
        Ok(attributes)
    }

    /// Returns the port's speed in Mbit/s, if the library can tell: ibv_query_port_speed(3).
    pub fn port_speed_mbps(&self, port: u8) -> Option<u64> {
        let query = self.functions.query_port_speed?;
        let mut hundreds = 0;
        // SAFETY: the context is open and the pointer is valid.
        let result = unsafe { query(self.context.as_ptr(), u32::from(port), &raw mut hundreds) };
        (result == 0 && hundreds > 0).then(|| hundreds.saturating_mul(100))
    }

    /// Returns entry `index` of the port's GID table with its type, one of `sys::GID_TYPE_*`, and its network
    /// interface; `None` if the entry is empty. Older libraries do not know types: then `kind` is `None`.
    pub fn gid(&self, port: u8, index: u32) -> Option<Gid> {
        if let Some(query) = self.functions.query_gid_ex {
            let mut entry = sys::GidEntry::default();
            // SAFETY: the context is open, the pointer is valid, and the entry's length is passed.
            let result = unsafe {
                let length = size_of::<sys::GidEntry>();
                query(self.context.as_ptr(), u32::from(port), index, &raw mut entry, 0, length)
            };
            match result {
                0 => {
                    let kind = Some(entry.gid_type);
                    let interface = (entry.ndev_ifindex != 0).then_some(entry.ndev_ifindex);
                    return (entry.gid.0 != [0; 16]).then_some(Gid { bytes: entry.gid.0, index, kind, interface });
                }
                libc::ENODATA => return None,
                // A kernel before 5.11, or a container without the right: ask the older way.
                _ => {}
            }
        }
        let mut gid = sys::Gid::default();
        let number = c_int::try_from(index).ok()?;
        // SAFETY: the context is open and the pointer is valid.
        let result = unsafe { (self.functions.query_gid)(self.context.as_ptr(), port, number, &raw mut gid) };
        (result == 0 && gid.0 != [0; 16]).then_some(Gid { bytes: gid.0, index, kind: None, interface: None })
    }

    /// Makes the device's event descriptor non-blocking and returns it; it becomes readable when the device has an
    /// event.
    ///
    /// # Errors
    /// If the descriptor cannot be made non-blocking.
    pub fn event_descriptor(&self) -> io::Result<RawFd> {
        // SAFETY: the context is open.
        let descriptor = unsafe { (*self.context.as_ptr()).async_fd };
        // SAFETY: plain calls on a descriptor that the context owns.
        unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFL);
            if flags < 0 || libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(descriptor)
    }

    /// Takes and acknowledges the next event; `None` if none is pending. Call it only after [`Self::event_descriptor`].
    pub fn next_event(&self) -> Option<Event> {
        let mut event = sys::AsyncEvent { element: sys::AsyncElement { port_num: 0 }, event_type: 0 };
        // SAFETY: the context is open and the pointer is valid; the descriptor does not block.
        if unsafe { (self.functions.get_async_event)(self.context.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the type determines the member of the union (ibv_get_async_event(3)); a queue pair is not destroyed
        // before the event is acknowledged.
        let about = unsafe {
            match event.event_type {
                sys::EVENT_QP_FATAL
                | sys::EVENT_QP_REQ_ERR
                | sys::EVENT_QP_ACCESS_ERR
                | sys::EVENT_COMM_EST
                | sys::EVENT_SQ_DRAINED
                | sys::EVENT_PATH_MIG
                | sys::EVENT_PATH_MIG_ERR
                | sys::EVENT_QP_LAST_WQE_REACHED => About::QueuePair((*event.element.qp).qp_num),
                sys::EVENT_CQ_ERR => About::CompletionQueue(event.element.cq.addr() as u64),
                sys::EVENT_SRQ_ERR | sys::EVENT_SRQ_LIMIT_REACHED => {
                    About::ReceiveQueue(event.element.srq.addr() as u64)
                }
                sys::EVENT_PORT_ACTIVE
                | sys::EVENT_PORT_ERR
                | sys::EVENT_LID_CHANGE
                | sys::EVENT_PKEY_CHANGE
                | sys::EVENT_SM_CHANGE
                | sys::EVENT_CLIENT_REREGISTER
                | sys::EVENT_GID_CHANGE => About::Port(u8::try_from(event.element.port_num).unwrap_or(0)),
                _ => About::Device,
            }
        };
        // SAFETY: the event was taken above and is acknowledged once.
        unsafe { (self.functions.ack_async_event)(&raw mut event) };
        Some(Event { kind: event.event_type, about })
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(crate) fn context(&self) -> *mut sys::Context {
        self.context.as_ptr()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made from the context held an Arc of this and is gone.
        unsafe { (self.functions.close_device)(self.context.as_ptr()) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Device({})", self.name)
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID, in network order.
    pub bytes: [u8; 16],
    /// Its place in the table.
    pub index: u32,
    /// One of `sys::GID_TYPE_*`; `None` if the library does not know.
    pub kind: Option<u32>,
    /// Index of the network interface that it belongs to.
    pub interface: Option<u32>,
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The whole device.
    Device,
    /// A completion queue, by its address.
    CompletionQueue(u64),
    /// A shared receive queue, by its address.
    ReceiveQueue(u64),
    /// A port, counted from 1.
    Port(u8),
    /// The queue pair with this number.
    QueuePair(u32),
}

/// An asynchronous event: ibv_get_async_event(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// One of `sys::EVENT_*`.
    pub kind: c_int,
    /// The subject.
    pub about: About,
}

/// Returns ibstat's name for a port's state.
pub fn port_state(state: i32) -> &'static str {
    match state {
        sys::PORT_DOWN => "down",
        sys::PORT_INIT => "initialising (no subnet manager?)",
        sys::PORT_ARMED => "armed",
        sys::PORT_ACTIVE => "active",
        _ => "in an unknown state",
    }
}

/// Converts the result of a function that returns 0 or an errno.
pub(crate) fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        // Some functions return -1 and set errno instead.
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
