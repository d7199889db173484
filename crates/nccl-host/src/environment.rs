//! The environment of this process, which a plugin reads when it is loaded.

use std::ffi::OsStr;
use std::fs;

/// Sets variables for the libraries that this process loads later. For another process, set them when it is started.
///
/// # Errors
/// If this process has more than one thread, or cannot tell: another thread could read the environment at the same
/// time.
pub fn set<K: AsRef<OsStr>, V: AsRef<OsStr>>(variables: &[(K, V)]) -> Result<(), EnvironmentError> {
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return Err(EnvironmentError { threads });
    }
    for (name, value) in variables {
        // SAFETY: this is the only thread, so nothing reads or writes the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// The environment can no longer be changed safely.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "this process has {threads} threads (/proc/self/task), and its environment can only be set while it has 1; set \
     the variables before it starts"
)]
pub struct EnvironmentError {
    /// The number of threads; 0 if /proc is missing.
    pub threads: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_other_threads_nothing_is_set() {
        let (give, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        let error = set(&[("RAILWEAVE_TEST_OF_THREADS", "1")]).unwrap_err();
        assert!(error.threads >= 2, "{error}");
        assert_eq!(std::env::var_os("RAILWEAVE_TEST_OF_THREADS"), None);
        drop(give);
        let _ = other.join();
    }
}
