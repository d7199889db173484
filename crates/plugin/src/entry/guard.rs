//! The edge of every call: an error becomes one log line and one result code, and a panic never escapes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use railweave_abi::NcclResult;
use railweave_fabric::Fault;
use railweave_transport::Error;

use crate::log;
use crate::process;

/// Returns the result code for a fault. Only this function maps them (NCCL's nccl.h says what each code means).
fn code(fault: Fault) -> NcclResult {
    match fault {
        Fault::Local => NcclResult::SYSTEM_ERROR,
        Fault::Peer => NcclResult::REMOTE_ERROR,
        Fault::Protocol => NcclResult::INTERNAL_ERROR,
        Fault::Configuration => NcclResult::INVALID_USAGE,
    }
}

/// Runs an entry point: errors and panics are logged and become codes.
#[inline(always)]
pub(crate) fn guard(call: &'static str, run: impl FnOnce() -> Result<(), Error>) -> NcclResult {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => NcclResult::SUCCESS,
        Ok(Err(error)) => failed(call, error),
        Err(panic) => panicked(call, panic),
    }
}

// The error is passed by value so that it needs no place in the callers' stack frames.
#[cold]
#[inline(never)]
pub(crate) fn failed(call: &str, error: Error) -> NcclResult {
    log::warn(&format!("{call}: {error}"));
    process::note_failed_call();
    code(error.fault())
}

#[cold]
#[inline(never)]
fn panicked(call: &str, panic: Box<dyn Any + Send>) -> NcclResult {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    log::warn(&format!("{call}: a bug in Railweave: {text}; please report it with the job's log"));
    NcclResult::INTERNAL_ERROR
}

#[cold]
pub(crate) fn null(call: &str, what: &str) -> Error {
    Error::protocol(format!("{call} was called with NULL for {what}"))
}

/// Writes through one of NCCL's pointers.
///
/// # Safety
/// The pointer must be NULL or valid for writing.
#[inline]
pub(crate) unsafe fn put<T>(call: &str, what: &str, place: *mut T, value: T) -> Result<(), Error> {
    if place.is_null() {
        return Err(null(call, what));
    }
    // SAFETY: not NULL, and the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}
