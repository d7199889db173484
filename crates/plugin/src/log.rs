//! Lines for NCCL's logger. Never called per message.

use std::ffi::{CString, c_int, c_ulong};
use std::sync::atomic::{AtomicPtr, Ordering};

use railweave_abi::NcclLogger;
use railweave_abi::log::{Level, subsystem};
use railweave_transport::Event;

/// The logger's address, or NULL. No lock: a fork while another thread holds it would leave it locked in the child.
static LOGGER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Stores the logger that NCCL passed to `init`; the latest is used.
pub(crate) fn set_logger(logger: Option<NcclLogger>) {
    if let Some(logger) = logger {
        LOGGER.store(logger as *mut (), Ordering::Release);
    }
}

fn logger() -> Option<NcclLogger> {
    let address = LOGGER.load(Ordering::Acquire);
    // SAFETY: only `set_logger` stores here, and it stores a function of this type; NULL is `None`.
    unsafe { std::mem::transmute::<*mut (), Option<NcclLogger>>(address) }
}

/// Returns the log line for an event of a connection or session with this peer.
pub(crate) fn line(event: &Event, peer: &str) -> String {
    match event {
        Event::Unwelcome(unwelcome) => unwelcome.to_string(),
        Event::RailLeftOut { rail, name, reason } => format!("rail {rail} to {peer} ({name}) is left out: {reason}"),
        Event::RailDown { .. } | Event::RailAway { .. } | Event::RailUp { .. } | Event::MessageTruncated(_) => {
            format!("to {peer}: {event}")
        }
    }
}

/// Logs that something is wrong and what to do about it: shown with NCCL_DEBUG=WARN.
pub(crate) fn warn(text: &str) {
    write(Level::WARN, c_ulong::MAX, text);
}

/// Logs something that helps to find a problem: shown with NCCL_DEBUG=INFO.
pub(crate) fn info(text: &str) {
    write(Level::INFO, subsystem::INIT | subsystem::NET, text);
}

/// Logs a detail: shown with NCCL_DEBUG=TRACE, or with NCCL_DEBUG=INFO if the user asks for this kind of detail.
pub(crate) fn detail(is_wanted: bool, text: &str) {
    write(if is_wanted { Level::INFO } else { Level::TRACE }, subsystem::INIT | subsystem::NET, text);
}

fn write(level: Level, flags: c_ulong, text: &str) {
    let Some(logger) = logger() else {
        return;
    };
    // A peer's text may contain a NUL, which would cut the line short.
    let line = format!("NET/Railweave : {text}").replace('\0', "\u{fffd}");
    let Ok(line) = CString::new(line) else {
        return;
    };
    // SAFETY: the logger is NCCL's, which stays loaded while any plugin is used; it takes a printf format and its
    // arguments, here one string, and all of these live until it returns (nccl_common.h, ncclDebugLogger_t).
    unsafe { logger(level.0, flags, c"railweave".as_ptr(), 0 as c_int, c"%s".as_ptr(), line.as_ptr()) };
}
