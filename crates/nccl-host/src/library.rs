//! Loads a library as NCCL loads plugins, and finds its exported symbols.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

/// Loads a library as NCCL loads plugins. Its initialisers run, so the caller must trust the file.
///
/// # Errors
/// If there is no such file, or the dynamic linker refuses it: [`LoadError::Unloadable`].
pub fn open(path: &Path) -> Result<Library, LoadError> {
    // The path is absolute, so that dlopen never searches elsewhere for a name without a slash.
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // SAFETY: the initialisers of the .so run; the user decides which file that is, as with NCCL itself.
    unsafe { Library::open(Some(&absolute), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| LoadError::Unloadable { path: path.to_owned(), reason: whole(&error) })
}

/// Returns the address of an exported symbol; `None` if there is no such symbol, or if it is NULL.
#[must_use]
pub fn address(library: &Library, symbol: &CStr) -> Option<*mut c_void> {
    // SAFETY: only the address is taken here; the caller converts it to the type that belongs to the symbol's name.
    let found = unsafe { library.get::<*mut c_void>(symbol) }.ok()?;
    let address = found.as_raw_ptr();
    (!address.is_null()).then_some(address)
}

/// Returns versions as a reader sees them: `v12, v11`.
pub(crate) fn list(versions: &[u32]) -> String {
    versions.iter().map(|version| format!("v{version}")).collect::<Vec<_>>().join(", ")
}

/// Returns an error's text with its causes: the dynamic linker's own words are the cause of libloading's error.
fn whole(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The reason why a plugin was not loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// There is no such file.
    #[error(
        "cannot load the plugin {path}: there is no such file; build it with `cargo build --release`, or give the path \
         of another"
    )]
    Missing {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The dynamic linker refused the file.
    #[error(
        "cannot load {path}: the dynamic linker says: {reason}; check that it was built for this processor and that \
         the libraries it needs are installed"
    )]
    Unloadable {
        /// The path that was tried.
        path: PathBuf,
        /// The dynamic linker's message.
        reason: String,
    },
    /// The file has none of the tables.
    #[error(
        "{path} is not an NCCL net plugin that this program can use: it has none of the data symbols \
         ncclNetPlugin_v12 down to ncclNetPlugin_v6; check the path, or build the plugin for net v6 or later"
    )]
    NoPlugin {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The file has tables, but none of the requested version.
    #[error(
        "{path} has no ncclNetPlugin_v{wanted}: it exports {versions}; ask for one of these, or for no version to get \
         the newest"
    )]
    NoVersion {
        /// The path that was tried.
        path: PathBuf,
        /// The requested version.
        wanted: u32,
        /// The versions that it exports.
        versions: String,
    },
    /// The file has no profiler.
    #[error(
        "{path} has no NCCL profiler that this program can use: it has none of the data symbols ncclProfiler_v7 down \
         to ncclProfiler_v1; check the path"
    )]
    NoProfiler {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The file has a profiler, but not of the requested version.
    #[error(
        "{path} has no ncclProfiler_v{wanted}: it exports {versions}; ask for one of these, or for no version to get \
         the newest"
    )]
    NoProfilerVersion {
        /// The path that was tried.
        path: PathBuf,
        /// The requested version.
        wanted: u32,
        /// The versions that it exports.
        versions: String,
    },
    /// The profiler's table lacks its name.
    #[error("{path} has NULL as the name in ncclProfiler_v{version}, which NCCL would read; it must be a string")]
    NoProfilerName {
        /// The path that was tried.
        path: PathBuf,
        /// The version of the table.
        version: u32,
    },
    /// Too many profilers are loaded.
    #[error(
        "cannot load the profiler {path}: {limit} profilers are loaded in this process, which is the most; NCCL loads \
         one"
    )]
    TooManyProfilers {
        /// The path that was tried.
        path: PathBuf,
        /// The largest number.
        limit: usize,
    },
    /// The table lacks the plugin's name.
    #[error("{path} has NULL as the name in ncclNetPlugin_v{version}, which NCCL would read; it must be a string")]
    NoName {
        /// The path that was tried.
        path: PathBuf,
        /// The version of the table.
        version: u32,
    },
}
