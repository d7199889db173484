//! The symbols that the fake libibverbs (crate fake-ibverbs) exports beside its functions: counters per
//! device and what is open, for programs that measure what a transport asks of it.

use core::ffi::CStr;

/// The work done with one device since the library was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCounts {
    /// The device's name, which ends with a zero byte.
    pub device: [u8; 64],
    /// Work requests that were posted to send queues.
    pub sends: u64,
    /// Of these the writes with an immediate.
    pub sends_with_immediate: u64,
    /// Receives that were posted.
    pub receives: u64,
    /// Completions that were polled.
    pub completions: u64,
}

impl DeviceCounts {
    /// Nothing was done with a device without a name.
    pub const ZERO: Self = Self { device: [0; 64], sends: 0, sends_with_immediate: 0, receives: 0, completions: 0 };
}

const _: () = assert!(size_of::<DeviceCounts>() == 96);

/// Type of the function under [`DEVICE_COUNTS_SYMBOL`]: writes at most `room` devices to `devices` (may be NULL when
/// `room` is 0), in the order of their names, and answers how many there are in all.
pub type DeviceCountsFn = unsafe extern "C" fn(devices: *mut DeviceCounts, room: usize) -> usize;

/// The name of the symbol that gives a [`DeviceCountsFn`].
pub const DEVICE_COUNTS_SYMBOL: &CStr = c"fake_ibverbs_device_counts";

/// The objects that are open of all devices together, and how much they hold.
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
    /// Bytes of these.
    pub region_bytes: u64,
    /// Places in send and receive queues, shared ones too.
    pub work_places: u64,
    /// Places in completion queues.
    pub completion_places: u64,
}

const _: () = assert!(size_of::<OpenObjects>() == 56);

/// Type of the function under [`OPEN_OBJECTS_SYMBOL`].
pub type OpenObjectsFn = unsafe extern "C" fn(objects: *mut OpenObjects);

/// The name of the symbol that gives an [`OpenObjectsFn`].
pub const OPEN_OBJECTS_SYMBOL: &CStr = c"fake_ibverbs_open_objects";

/// The name by which a loaded library of this kind is found: its DT_SONAME.
pub const FAKE_IBVERBS_NAME: &CStr = c"libibverbs-fake.so";
