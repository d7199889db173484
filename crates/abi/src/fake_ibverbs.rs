//! The symbols that the fake libibverbs (crate fake-ibverbs) exports alongside its verbs: counters per device, and the
//! open objects, for programs that measure what a transport asks of it.

use core::ffi::CStr;

/// The work done with one device since the library was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCounts {
    /// The device's name, which ends with a NUL.
    pub device: [u8; 64],
    /// Work requests posted to send queues.
    pub sends: u64,
    /// The writes with an immediate among them.
    pub sends_with_immediate: u64,
    /// Posted receives.
    pub receives: u64,
    /// Polled completions.
    pub completions: u64,
}

impl DeviceCounts {
    /// All counters are 0, and the name is empty.
    pub const ZERO: Self = Self { device: [0; 64], sends: 0, sends_with_immediate: 0, receives: 0, completions: 0 };
}

const _: () = assert!(size_of::<DeviceCounts>() == 96);

/// The type of the function [`DEVICE_COUNTS_SYMBOL`], which writes at most `room` devices to `devices` (may be NULL if
/// `room` is 0), in the order of their names, and returns the total number of devices.
pub type DeviceCountsFn = unsafe extern "C" fn(devices: *mut DeviceCounts, room: usize) -> usize;

/// The name of the exported [`DeviceCountsFn`].
pub const DEVICE_COUNTS_SYMBOL: &CStr = c"fake_ibverbs_device_counts";

/// The open objects of all devices, and their sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenObjects {
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Completion queues.
    pub completion_queues: u64,
    /// Shared receive queues.
    pub shared_receive_queues: u64,
    /// Memory regions.
    pub regions: u64,
    /// Total size of the memory regions in bytes.
    pub region_bytes: u64,
    /// Entries in send and receive queues, shared ones included.
    pub work_places: u64,
    /// Entries in completion queues.
    pub completion_places: u64,
}

const _: () = assert!(size_of::<OpenObjects>() == 56);

/// The type of the function [`OPEN_OBJECTS_SYMBOL`], which writes the numbers of open objects to `objects` (never
/// NULL).
pub type OpenObjectsFn = unsafe extern "C" fn(objects: *mut OpenObjects);

/// The name of the exported [`OpenObjectsFn`].
pub const OPEN_OBJECTS_SYMBOL: &CStr = c"fake_ibverbs_open_objects";

/// The DT_SONAME by which a loaded library of this kind is found.
pub const FAKE_IBVERBS_NAME: &CStr = c"libibverbs-fake.so";
