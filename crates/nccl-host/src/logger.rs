//! The logger for plugins: a variadic C function in `logger.c`, which calls back here with finished text.

use railweave_abi::NcclLogger;
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

pub use railweave_abi::log::Level;

/// The level of lines that a user must see.
pub const WARN: Level = Level::WARN;
/// The level of lines that help to find a problem.
pub const INFO: Level = Level::INFO;
/// The level of the finest details.
pub const TRACE: Level = Level::TRACE;

/// One line that a plugin logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its importance.
    pub level: Level,
    /// The subsystems it is about: a mask of `railweave_abi::log::subsystem`.
    pub flags: u64,
    /// The source file that the plugin names.
    pub file: String,
    /// The line in that file.
    pub line: i32,
    /// The finished text, at most 4095 bytes; a longer one ends with three dots.
    pub text: String,
}

type Sink = dyn Fn(Line) + Send + Sync;

static SINK: RwLock<Option<Arc<Sink>>> = RwLock::new(None);

/// Sends every later line of every plugin in this process to `sink`, which may be called from any thread. Lines before
/// the first call are dropped.
pub fn set_sink(sink: impl Fn(Line) + Send + Sync + 'static) {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(sink));
}

/// Returns the function to pass to a plugin's `init`.
#[must_use]
pub fn function() -> NcclLogger {
    railweave_nccl_host_logger
}

unsafe extern "C" {
    fn railweave_nccl_host_logger(
        level: c_int,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    );
}

/// Hands a line to the sink; called by `logger.c` with valid strings that end with a NUL and live until this returns.
///
/// # Safety
/// `file` and `text` are such strings.
#[unsafe(no_mangle)]
unsafe extern "C" fn railweave_nccl_host_log_line(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(sink) = sink else { return };
    // SAFETY: logger.c passes two strings that end with a NUL and outlive this call.
    let (file, text) = unsafe { (CStr::from_ptr(file), CStr::from_ptr(text)) };
    let line = Line {
        level: Level(level),
        flags,
        file: file.to_string_lossy().into_owned(),
        line,
        text: text.to_string_lossy().into_owned(),
    };
    // A panic must not unwind into the plugin; only this line is lost.
    let _ = catch_unwind(AssertUnwindSafe(|| sink(line)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::sync::Mutex;

    #[test]
    fn lines_are_formatted_cut_and_whole_from_many_threads() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        set_sink(move |line| sink.lock().unwrap().push(line));
        let log = function();
        std::thread::scope(|scope| {
            for thread in 0..4_i32 {
                scope.spawn(move || {
                    for number in 0..100_i32 {
                        // SAFETY: the arguments match the format: one string, two ints and a double.
                        unsafe {
                            let (file, text) = (c"file.c".as_ptr(), c"rail".as_ptr());
                            log(2, 0x10, file, number, c"%s %d of %d at %.1f".as_ptr(), text, number, thread, 2.5_f64);
                        }
                    }
                });
            }
        });
        let long = CString::new("x".repeat(10_000)).unwrap();
        // SAFETY: the format takes one string. The logger must survive a NULL file and a NULL format.
        unsafe {
            log(3, 0, std::ptr::null(), 0, c"%s".as_ptr(), long.as_ptr());
            log(3, 0, std::ptr::null(), 0, std::ptr::null());
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 402);
        for thread in 0..4 {
            for number in 0..100 {
                let text = format!("rail {number} of {thread} at 2.5");
                assert_eq!(seen.iter().filter(|line| line.text == text && line.line == number).count(), 1);
            }
        }
        assert_eq!(seen[0].level, Level::WARN);
        assert_eq!((seen[0].flags, seen[0].file.as_str()), (0x10, "file.c"));
        assert_eq!(seen[400].text.len(), 4095);
        assert!(seen[400].text.ends_with("x..."));
        assert_eq!(seen[401].text, "");
    }
}
