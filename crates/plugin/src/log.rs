//! Lines to NCCL's logger. Never called per message.

use std::ffi::{CString, c_int, c_ulong};
use std::sync::atomic::{AtomicPtr, Ordering};

use railweave_abi::NcclLogger;
use railweave_abi::log::{Level, subsystem};
use railweave_transport::Event;

/// The logger's address, or 0. No lock: a fork while another thread holds one would leave it locked in the child.
static LOGGER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps the logger that NCCL gave to `init`; the newest counts.
pub(crate) fn set_logger(logger: Option<NcclLogger>) {
    if let Some(logger) = logger {
        LOGGER.store(logger as *mut (), Ordering::Release);
    }
}

fn logger() -> Option<NcclLogger> {
    let address = LOGGER.load(Ordering::Acquire);
    // SAFETY: only `set_logger` stores here, and what it stores is a function of this type; NULL is None.
    unsafe { std::mem::transmute::<*mut (), Option<NcclLogger>>(address) }
}

/// The line that tells of an event of a connection or session to this peer.
pub(crate) fn line(event: &Event, peer: &str) -> String {
    match event {
        Event::Unwelcome(unwelcome) => unwelcome.to_string(),
        Event::RailLeftOut { rail, reason } => format!("rail {rail} to {peer} is left out: {reason}"),
        Event::MessageCut(_) => format!("to {peer}: {event}"),
    }
}

/// Something is wrong, and the line says what to do: shown with NCCL_DEBUG=WARN.
pub(crate) fn warn(text: &str) {
    write(Level::WARN, c_ulong::MAX, text);
}

/// Good to know when looking for a problem: shown with NCCL_DEBUG=INFO.
pub(crate) fn info(text: &str) {
    write(Level::INFO, subsystem::INIT | subsystem::NET, text);
}

fn write(level: Level, flags: c_ulong, text: &str) {
    let Some(logger) = logger() else {
        return;
    };
    // A peer's text may hold anything; a NUL would cut the line short.
    let line = format!("NET/Railweave : {text}").replace('\0', "\u{fffd}");
    let Ok(line) = CString::new(line) else {
        return;
    };
    // SAFETY: the logger is NCCL's, which stays loaded while any plugin is used; it takes a printf format and what the
    // format names, here one text, all of which live until it returns (nccl_common.h, ncclDebugLogger_t).
    unsafe { logger(level.0, flags, c"railweave".as_ptr(), 0 as c_int, c"%s".as_ptr(), line.as_ptr()) };
}
