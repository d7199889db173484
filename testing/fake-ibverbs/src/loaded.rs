//! The loaded shared library, as tests use it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::de::DeserializeOwned;

use crate::reports::{Counts, Open, QpReport};
use crate::requests::{AskFn, Link, Request};

/// The reason why the library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be loaded.
    #[error("{0}; load the file that railweave_fake_ibverbs::build() returns")]
    NotLoaded(libloading::Error),
    /// It is another library.
    #[error("{0}: this is not the fake libibverbs; load the file that railweave_fake_ibverbs::build() returns")]
    NotFake(libloading::Error),
}

/// The loaded library. The same file loaded by other means, such as by NCCL, is the same library with the same state.
///
/// That state belongs to the whole process: tests that describe different machines must not run at the same time.
#[derive(Clone, Copy, Debug)]
pub struct FakeVerbs {
    ask: AskFn,
}

impl FakeVerbs {
    /// Loads the library, for the life of the process.
    ///
    /// # Errors
    /// If the file cannot be loaded, or is not the fake libibverbs.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: the library's initialisers are those of Rust's standard library. `inspection` defines the function
        // of this name with this type; it stays, because the library is linked with -z nodelete.
        unsafe {
            let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL).map_err(LoadError::NotLoaded)?;
            let ask = *library.get::<AskFn>(b"fake_ibverbs\0").map_err(LoadError::NotFake)?;
            Ok(Self { ask })
        }
    }

    /// Describes the machine in place of the file, from the next device list on; `None` goes back to the file. Faults
    /// start counting again.
    ///
    /// # Errors
    /// If the description is wrong: a sentence that names the line and the mistake.
    pub fn describe(&self, text: Option<&str>) -> Result<(), String> {
        self.ask(&Request::Describe(text.map(str::to_owned)))
    }

    /// Returns the work done since the library was loaded.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::sum(self.device_counts().values())
    }

    /// Returns the work done with each device since the library was loaded, by the device's name.
    #[must_use]
    pub fn device_counts(&self) -> BTreeMap<String, Counts> {
        self.learn(&Request::Counts)
    }

    /// Returns the numbers of open objects; [`Open::default`] after a clean shutdown.
    #[must_use]
    pub fn open(&self) -> Open {
        self.learn(&Request::Open)
    }

    /// Returns all open queue pairs, in rising order of their numbers.
    #[must_use]
    pub fn queue_pairs(&self) -> Vec<QpReport> {
        self.learn(&Request::QueuePairs)
    }

    /// Returns the open queue pair with this number; `None` if there is none.
    #[must_use]
    pub fn queue_pair(&self, number: u32) -> Option<QpReport> {
        self.queue_pairs().into_iter().find(|report| report.number == number)
    }

    /// Raises an asynchronous event (a `sys::EVENT_` value) about a port, counted from 1, or about the device itself,
    /// for which `port` does not matter. A fatal error of the device puts all its queue pairs into the error state.
    ///
    /// # Errors
    /// If nothing has the device open.
    pub fn raise(&self, device: &str, kind: c_int, port: u8) -> Result<(), String> {
        self.ask(&Request::Raise { device: device.to_owned(), kind, number: port.into(), only: false })
    }

    /// Raises an asynchronous event (a `sys::EVENT_` value) about a queue pair, or about the completion queue or
    /// shared receive queue that it uses. Errors of the queue pair put it into the error state.
    ///
    /// # Errors
    /// If there is no such queue pair.
    pub fn raise_on_queue_pair(&self, number: u32, kind: c_int) -> Result<(), String> {
        self.ask(&Request::Raise { device: String::new(), kind, number, only: false })
    }

    /// Raises an event like [`Self::raise`] or [`Self::raise_on_queue_pair`] and does nothing else: an adapter that is
    /// gone completes no work, not even with an error. `number` is that of the port or of the queue pair.
    ///
    /// # Errors
    /// If nothing has the device open, or there is no such queue pair.
    pub fn raise_only(&self, device: &str, kind: c_int, number: u32) -> Result<(), String> {
        self.ask(&Request::Raise { device: device.to_owned(), kind, number, only: true })
    }

    /// Lets no work on the device's open completion queues complete any more, not even with an error, as with an
    /// adapter that is gone. Completions that lie in them stay.
    ///
    /// # Errors
    /// If the device has no completion queue.
    pub fn silence(&self, device: &str) -> Result<(), String> {
        self.ask(&Request::Silence { device: device.to_owned() })
    }

    /// Sets a port's state (a `sys::PORT_` value) and raises the event that reports it. While a port is not active,
    /// work waits as if its cable were cut.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn set_port_state(&self, device: &str, port: u8, state: c_int) -> Result<(), String> {
        self.ask(&Request::PortState { device: device.to_owned(), port, state })
    }

    /// Sets or empties an entry of a port's GID table, and raises the event that reports it.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn set_gid(&self, device: &str, port: u8, index: usize, gid: Option<[u8; 16]>) -> Result<(), String> {
        self.ask(&Request::Gid { device: device.to_owned(), port, index, gid })
    }

    /// Cuts the cable of a port: work to or from it waits.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn cut(&self, device: &str, port: u8) -> Result<(), String> {
        self.ask(&Request::PortLink { device: device.to_owned(), port, link: Link::Cut })
    }

    /// Mends the cable of a port: pending work is carried out.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn mend(&self, device: &str, port: u8) -> Result<(), String> {
        self.ask(&Request::PortLink { device: device.to_owned(), port, link: Link::Mend })
    }

    /// Fails the oldest pending work on each queue pair of a port and on their peers, with status 12 (retries
    /// exceeded), and flushes the rest. A queue pair without pending work is left alone, as on a card.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn time_out(&self, device: &str, port: u8) -> Result<(), String> {
        self.ask(&Request::PortLink { device: device.to_owned(), port, link: Link::TimeOut })
    }

    /// Takes and acknowledges the work that waits on the queue pairs of a port whose cable is cut, as a peer that is
    /// not in this process would.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn take(&self, device: &str, port: u8) -> Result<(), String> {
        self.ask(&Request::PortLink { device: device.to_owned(), port, link: Link::Take })
    }

    /// Cuts the cable of one queue pair and its peer.
    ///
    /// # Errors
    /// If there is no such queue pair.
    pub fn cut_queue_pair(&self, number: u32) -> Result<(), String> {
        self.ask(&Request::PairLink { number, link: Link::Cut })
    }

    /// Does the same as [`Self::time_out`], for one queue pair and its peer.
    ///
    /// # Errors
    /// If there is no such queue pair.
    pub fn time_out_queue_pair(&self, number: u32) -> Result<(), String> {
        self.ask(&Request::PairLink { number, link: Link::TimeOut })
    }

    /// Returns a sentence about the last mistake of a program, such as an attribute that ibv_modify_qp refuses, or the
    /// reason why one queue pair does not reach another. Empty if there was none.
    #[must_use]
    pub fn complaint(&self) -> String {
        self.learn(&Request::Complaint)
    }

    /// Sends a request that is never refused.
    fn learn<T: DeserializeOwned>(&self, request: &Request) -> T {
        self.ask(request).unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, String> {
        let text = serde_json::to_string(request).map_err(|error| error.to_string())?;
        let text = CString::new(text).map_err(|error| error.to_string())?;
        // SAFETY: the argument is a C string, and so is the result, which is copied and then freed once.
        let answer = unsafe {
            let answer = (self.ask)(text.as_ptr());
            let copy = CStr::from_ptr(answer).to_owned();
            libc::free(answer.cast());
            copy
        };
        serde_json::from_slice::<Result<T, String>>(answer.to_bytes()).map_err(|error| error.to_string())?
    }
}
