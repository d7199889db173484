//! The RDMA devices' work, if they are those of the fake libibverbs: nothing else counts it.

use libloading::os::unix::{Library, RTLD_NOW};
pub use railweave_abi::fake_ibverbs::OpenObjects;
use railweave_abi::fake_ibverbs::{
    DEVICE_COUNTS_SYMBOL, DeviceCounts, DeviceCountsFn, FAKE_IBVERBS_NAME, OPEN_OBJECTS_SYMBOL, OpenObjectsFn,
};
use std::ffi::CStr;

/// The work of one device for both ends of a connection together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceWork {
    /// The device's name.
    pub device: String,
    /// Work requests that were posted to send queues.
    pub sends: u64,
    /// The writes with an immediate among them.
    pub sends_with_immediate: u64,
    /// Receives that were posted.
    pub receives: u64,
    /// Completions that were polled.
    pub completions: u64,
}

/// The fake libibverbs in this process.
#[derive(Debug)]
pub(crate) struct FakeVerbs {
    counts: DeviceCountsFn,
    objects: OpenObjectsFn,
    /// Keeps the functions loaded.
    _library: Library,
}

impl FakeVerbs {
    /// Returns the fake libibverbs if a transport has loaded it; loads nothing itself.
    pub(crate) fn loaded() -> Option<Self> {
        let name = FAKE_IBVERBS_NAME.to_str().ok()?;
        // SAFETY: nothing is loaded, so no code runs.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | libc::RTLD_NOLOAD) }.ok()?;
        // SAFETY: a library of this name has these functions, of these types.
        let (counts, objects) = unsafe {
            (
                *library.get::<DeviceCountsFn>(DEVICE_COUNTS_SYMBOL.to_bytes_with_nul()).ok()?,
                *library.get::<OpenObjectsFn>(OPEN_OBJECTS_SYMBOL.to_bytes_with_nul()).ok()?,
            )
        };
        Some(Self { counts, objects, _library: library })
    }

    /// Returns the objects that are open now.
    pub(crate) fn open(&self) -> OpenObjects {
        let mut objects = OpenObjects::default();
        // SAFETY: the place is writable.
        unsafe { (self.objects)(&raw mut objects) };
        objects
    }

    /// Returns each device's work since the fake libibverbs was loaded, in the order of their names.
    pub(crate) fn work(&self) -> Vec<DeviceWork> {
        let mut devices = Vec::new();
        loop {
            // SAFETY: the vector has room for this many devices.
            let count = unsafe { (self.counts)(devices.as_mut_ptr(), devices.len()) };
            if count <= devices.len() {
                devices.truncate(count);
                return devices.iter().map(DeviceWork::from).collect();
            }
            devices.resize(count, DeviceCounts::ZERO);
        }
    }
}

impl DeviceWork {
    /// Returns the work between two readings, `before` and `after`.
    pub(crate) fn between(before: &[Self], after: Vec<Self>) -> Vec<Self> {
        let rest = |work: Self| match before.iter().find(|before| before.device == work.device) {
            None => work,
            Some(before) => Self {
                sends: work.sends - before.sends,
                sends_with_immediate: work.sends_with_immediate - before.sends_with_immediate,
                receives: work.receives - before.receives,
                completions: work.completions - before.completions,
                device: work.device,
            },
        };
        after.into_iter().map(rest).collect()
    }
}

impl From<&DeviceCounts> for DeviceWork {
    fn from(counts: &DeviceCounts) -> Self {
        let DeviceCounts { device, sends, sends_with_immediate, receives, completions } = *counts;
        let device = CStr::from_bytes_until_nul(&device).unwrap_or_default().to_string_lossy().into_owned();
        Self { device, sends, sends_with_immediate, receives, completions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(device: &str, sends: u64, completions: u64) -> DeviceWork {
        DeviceWork { device: device.to_owned(), sends, sends_with_immediate: 1, receives: 0, completions }
    }

    unsafe extern "C" fn two(devices: *mut DeviceCounts, room: usize) -> usize {
        for (index, letter) in (0..room.min(2)).zip(b'a'..) {
            let mut counts = DeviceCounts { sends: 5, sends_with_immediate: 1, ..DeviceCounts::ZERO };
            counts.device[0] = letter;
            // SAFETY: the caller has room for this many.
            unsafe { devices.add(index).write(counts) };
        }
        2
    }

    unsafe extern "C" fn three_queue_pairs(objects: *mut OpenObjects) {
        // SAFETY: the caller's place is writable.
        unsafe { objects.write(OpenObjects { queue_pairs: 3, ..OpenObjects::default() }) };
    }

    #[test]
    fn all_devices_are_read_however_many() {
        let fake = FakeVerbs { counts: two, objects: three_queue_pairs, _library: Library::this() };
        assert_eq!(fake.work(), [work("a", 5, 0), work("b", 5, 0)]);
        assert_eq!(fake.open().queue_pairs, 3);
    }

    #[test]
    fn earlier_work_is_subtracted_device_by_device() {
        let [before, after] = [vec![work("b", 3, 4)], vec![work("a", 7, 8), work("b", 10, 4)]];
        let mut idle = work("b", 7, 0);
        idle.sends_with_immediate = 0;
        assert_eq!(DeviceWork::between(&before, after), [work("a", 7, 8), idle]);
    }

    #[test]
    fn without_the_fake_none_is_found_and_none_is_loaded() {
        assert!(FakeVerbs::loaded().is_none());
    }
}
