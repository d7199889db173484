//! The shared library as those who test with it see it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::path::Path;

use railweave_abi::stand_in::{DEVICE_COUNTS_SYMBOL, DeviceCounts, DeviceCountsFn};
use railweave_fabric_verbs::sys;

use crate::inspection::{LINK_CUT, LINK_MEND, LINK_TIME_OUT};
use crate::reports::{Counts, Open, QpReport};

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be loaded.
    #[error("{0}; the library is what railweave_fake_ibverbs::build() answers")]
    NotLoaded(String),
    /// It is another library.
    #[error("{path} has no function {symbol}: it is no stand-in; load what railweave_fake_ibverbs::build() answers")]
    NotAStandIn {
        /// The file.
        path: String,
        /// What it lacks.
        symbol: &'static str,
    },
}

/// There is no such device, port or queue pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stand-in has no {0}; what is there is in its description and in queue_pairs()")]
pub struct NoSuchThing(String);

/// The loaded library. The same file loaded by other means, such as NCCL's, is the same library with the same state.
///
/// All of a process shares that state: tests that describe different machines must not run at the same time.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    describe: unsafe extern "C" fn(*const c_char) -> c_int,
    counts: unsafe extern "C" fn(*mut Counts),
    device_counts: DeviceCountsFn,
    open: unsafe extern "C" fn(*mut Open),
    queue_pairs: unsafe extern "C" fn(*mut u32, usize) -> usize,
    queue_pair: unsafe extern "C" fn(u32, *mut QpReport) -> c_int,
    raise: unsafe extern "C" fn(*const c_char, c_int, u32, c_int) -> c_int,
    port_state: unsafe extern "C" fn(*const c_char, u8, c_int) -> c_int,
    port_gid: unsafe extern "C" fn(*const c_char, u8, usize, *const sys::Gid) -> c_int,
    link: unsafe extern "C" fn(*const c_char, u8, c_int) -> c_int,
    queue_pair_link: unsafe extern "C" fn(u32, c_int) -> c_int,
    complaint: unsafe extern "C" fn(*mut c_char, usize) -> usize,
}

impl StandIn {
    /// Loads the library, for the life of the process.
    ///
    /// # Errors
    /// When the file cannot be loaded, or is no stand-in.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| LoadError::NotLoaded(format!("{}: a file name has no zero byte", path.display())))?;
        // SAFETY: the library's initialisers are those of Rust's standard library.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(LoadError::NotLoaded(dl_error()));
        }
        let find = |symbol: &'static CStr| {
            // SAFETY: the handle is open, the string ends in zero.
            let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            let name = symbol.to_str().unwrap_or_default();
            if address.is_null() {
                return Err(LoadError::NotAStandIn { path: path.display().to_string(), symbol: name });
            }
            Ok(address)
        };
        // SAFETY: `inspection` defines the functions of these names with these types.
        unsafe {
            Ok(Self {
                describe: transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(find(
                    c"stand_in_describe",
                )?),
                counts: transmute::<*mut c_void, unsafe extern "C" fn(*mut Counts)>(find(c"stand_in_counts")?),
                device_counts: transmute::<*mut c_void, DeviceCountsFn>(find(DEVICE_COUNTS_SYMBOL)?),
                open: transmute::<*mut c_void, unsafe extern "C" fn(*mut Open)>(find(c"stand_in_open")?),
                queue_pairs: transmute::<*mut c_void, unsafe extern "C" fn(*mut u32, usize) -> usize>(find(
                    c"stand_in_queue_pairs",
                )?),
                queue_pair: transmute::<*mut c_void, unsafe extern "C" fn(u32, *mut QpReport) -> c_int>(find(
                    c"stand_in_queue_pair",
                )?),
                raise: transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_int, u32, c_int) -> c_int>(find(
                    c"stand_in_raise",
                )?),
                port_state: transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, u8, c_int) -> c_int>(find(
                    c"stand_in_port_state",
                )?),
                port_gid: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_char, u8, usize, *const sys::Gid) -> c_int,
                >(find(c"stand_in_port_gid")?),
                link: transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, u8, c_int) -> c_int>(find(
                    c"stand_in_link",
                )?),
                queue_pair_link: transmute::<*mut c_void, unsafe extern "C" fn(u32, c_int) -> c_int>(find(
                    c"stand_in_queue_pair_link",
                )?),
                complaint: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, usize) -> usize>(find(
                    c"stand_in_complaint",
                )?),
            })
        }
    }

    /// Describes the machine in place of the file, from the next device list on; none goes back to the file. Failures are
    /// counted from here.
    ///
    /// # Errors
    /// When the description is wrong: what is, and where.
    pub fn describe(&self, text: Option<&str>) -> Result<(), String> {
        let text =
            text.map(|text| CString::new(text).map_err(|_| "a description has no zero byte".to_owned())).transpose()?;
        let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        // SAFETY: a string of C, or NULL.
        if unsafe { (self.describe)(text) } == 0 { Ok(()) } else { Err(self.complaint()) }
    }

    /// What has been done since the library was loaded.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // SAFETY: the place is writable.
        unsafe { (self.counts)(&raw mut counts) };
        counts
    }

    /// What has been done with each device since the library was loaded.
    #[must_use]
    pub fn device_counts(&self) -> BTreeMap<String, DeviceCounts> {
        let mut devices = Vec::new();
        loop {
            // SAFETY: there is room for as many devices as the vector has.
            let count = unsafe { (self.device_counts)(devices.as_mut_ptr(), devices.len()) };
            if count <= devices.len() {
                devices.truncate(count);
                return devices.into_iter().map(|counts| (name_of(&counts), counts)).collect();
            }
            devices.resize(count, DeviceCounts::ZERO);
        }
    }

    /// What is open; [`Open::default`] after a clean shutdown.
    #[must_use]
    pub fn open(&self) -> Open {
        let mut open = Open::default();
        // SAFETY: the place is writable.
        unsafe { (self.open)(&raw mut open) };
        open
    }

    /// All open queue pairs, in the order in which they were created.
    #[must_use]
    pub fn queue_pairs(&self) -> Vec<QpReport> {
        let mut numbers = Vec::new();
        loop {
            // SAFETY: there is room for as many numbers as the vector has.
            let count = unsafe { (self.queue_pairs)(numbers.as_mut_ptr(), numbers.len()) };
            if count <= numbers.len() {
                numbers.truncate(count);
                break;
            }
            numbers.resize(count, 0);
        }
        numbers.into_iter().filter_map(|number| self.queue_pair(number)).collect()
    }

    /// One queue pair; none if there is none of this number.
    #[must_use]
    pub fn queue_pair(&self, number: u32) -> Option<QpReport> {
        let mut report = std::mem::MaybeUninit::uninit();
        // SAFETY: the place is writable; it has been written when the answer is 0.
        unsafe { ((self.queue_pair)(number, report.as_mut_ptr()) == 0).then(|| report.assume_init()) }
    }

    /// Raises an asynchronous event (a `sys::EVENT_` value) about a port, or about the device itself with port 0. A fatal
    /// error of the device puts all its queue pairs into the error state.
    ///
    /// # Errors
    /// When nothing has the device open.
    pub fn raise(&self, device: &str, kind: c_int, port: u8) -> Result<(), NoSuchThing> {
        let name = c_name(device);
        // SAFETY: a string of C.
        answer(unsafe { (self.raise)(name.as_ptr(), kind, port.into(), 0) }, || format!("open device {device}"))
    }

    /// Raises an asynchronous event (a `sys::EVENT_` value) about a queue pair, or about the completion queue or
    /// shared receive queue that it uses. Errors of the queue pair put it into the error state.
    ///
    /// # Errors
    /// When there is no such queue pair.
    pub fn raise_on_queue_pair(&self, number: u32, kind: c_int) -> Result<(), NoSuchThing> {
        // SAFETY: a string of C.
        answer(unsafe { (self.raise)(c"".as_ptr(), kind, number, 0) }, || format!("queue pair {number:#x}"))
    }

    /// Raises an event as [`Self::raise`] and [`Self::raise_on_queue_pair`] do, of this device or of a queue pair of it, and does
    /// nothing else: an adapter that is gone completes no work, not even with an error.
    ///
    /// # Errors
    /// When nothing has the device open, or there is no such queue pair.
    pub fn raise_only(&self, device: &str, kind: c_int, number: u32) -> Result<(), NoSuchThing> {
        let name = c_name(device);
        // SAFETY: a string of C.
        answer(unsafe { (self.raise)(name.as_ptr(), kind, number, 1) }, || format!("{device} or {number:#x}"))
    }

    /// Sets a port's state (a `sys::PORT_` value) and raises the event that tells of it. While a port is not active,
    /// work waits as if its cable were cut.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn set_port_state(&self, device: &str, port: u8, state: c_int) -> Result<(), NoSuchThing> {
        let name = c_name(device);
        // SAFETY: a string of C.
        answer(unsafe { (self.port_state)(name.as_ptr(), port, state) }, || format!("port {device}:{port}"))
    }

    /// Sets a place of a port's GID table, or empties it, and raises the event that tells of it.
    ///
    /// # Errors
    /// When there is no such place.
    pub fn set_gid(&self, device: &str, port: u8, index: usize, gid: Option<[u8; 16]>) -> Result<(), NoSuchThing> {
        let name = c_name(device);
        let gid = gid.map(sys::Gid);
        let gid = gid.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a string of C, and a GID or NULL.
        let status = unsafe { (self.port_gid)(name.as_ptr(), port, index, gid) };
        answer(status, || format!("GID {index} at port {device}:{port}"))
    }

    /// Cuts the cable of a port: what is sent to or from it waits.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn cut(&self, device: &str, port: u8) -> Result<(), NoSuchThing> {
        self.link(device, port, LINK_CUT)
    }

    /// Mends the cable of a port: what waits is carried out.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn mend(&self, device: &str, port: u8) -> Result<(), NoSuchThing> {
        self.link(device, port, LINK_MEND)
    }

    /// Lets the oldest work that waits fail on each queue pair of a port and on their peers, with status 12 (retries
    /// exceeded), and flushes the rest. Where nothing waits nothing happens, as on a card.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn time_out(&self, device: &str, port: u8) -> Result<(), NoSuchThing> {
        self.link(device, port, LINK_TIME_OUT)
    }

    /// As [`Self::cut`], for one queue pair and its peer.
    ///
    /// # Errors
    /// When there is no such queue pair.
    pub fn cut_queue_pair(&self, number: u32) -> Result<(), NoSuchThing> {
        self.link_queue_pair(number, LINK_CUT)
    }

    /// As [`Self::mend`], for one queue pair and its peer.
    ///
    /// # Errors
    /// When there is no such queue pair.
    pub fn mend_queue_pair(&self, number: u32) -> Result<(), NoSuchThing> {
        self.link_queue_pair(number, LINK_MEND)
    }

    /// As [`Self::time_out`], for one queue pair and its peer.
    ///
    /// # Errors
    /// When there is no such queue pair.
    pub fn time_out_queue_pair(&self, number: u32) -> Result<(), NoSuchThing> {
        self.link_queue_pair(number, LINK_TIME_OUT)
    }

    /// The last thing that a program did wrong, in words: an attribute that ibv_modify_qp does not take, say, or why nothing
    /// gets through from one queue pair to another. Empty if there was none.
    #[must_use]
    pub fn complaint(&self) -> String {
        let mut text = vec![0_u8; 1024];
        // SAFETY: there is room for as many bytes as the vector has.
        let length = unsafe { (self.complaint)(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(length.min(text.len() - 1));
        String::from_utf8_lossy(&text).into_owned()
    }

    fn link(&self, device: &str, port: u8, action: c_int) -> Result<(), NoSuchThing> {
        let name = c_name(device);
        // SAFETY: a string of C.
        answer(unsafe { (self.link)(name.as_ptr(), port, action) }, || format!("port {device}:{port}"))
    }

    fn link_queue_pair(&self, number: u32, action: c_int) -> Result<(), NoSuchThing> {
        // SAFETY: the function takes any numbers.
        answer(unsafe { (self.queue_pair_link)(number, action) }, || format!("queue pair {number:#x}"))
    }
}

/// A device's name for C; one with a zero byte is nobody's, and so is the empty one.
fn c_name(device: &str) -> CString {
    CString::new(device).unwrap_or_default()
}

/// The name of a device that was counted; it ends with a zero byte.
fn name_of(counts: &DeviceCounts) -> String {
    CStr::from_bytes_until_nul(&counts.device).unwrap_or_default().to_string_lossy().into_owned()
}

fn answer(status: c_int, what: impl FnOnce() -> String) -> Result<(), NoSuchThing> {
    if status == 0 { Ok(()) } else { Err(NoSuchThing(what())) }
}

fn dl_error() -> String {
    // SAFETY: dlerror answers NULL or a string that stays valid until the next dl call of this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "the library cannot be loaded".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
