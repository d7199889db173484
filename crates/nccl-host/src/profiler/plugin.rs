//! Finds and loads a profiler as NCCL does, in a library of its own or in that of the net plugin.

use super::callback::{MAX_PROFILERS, Place};
use super::table::Table;
use crate::library::{LoadError, address, list, open};
use crate::table::text;
use libloading::os::unix::Library;
use railweave_abi::profiler::PROFILER_SYMBOLS;
use railweave_abi::{NcclResult, ProfilerCallback};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// A loaded profiler; its code stays in memory while this, a [`Profiler`](super::Profiler) of it or a
/// [`LoadedNet`](crate::LoadedNet) with its callback exists.
#[derive(Clone, Debug)]
pub struct ProfilerPlugin {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Ends before the library does.
    place: Place,
    pub(super) table: Table,
    name: String,
    /// The mask of the wanted events. All communicators share it, as in NCCL: its example profiler writes it in the
    /// first `init` of the process only. The profiler may change it at any time.
    pub(super) mask: AtomicI32,
    path: PathBuf,
    versions: Vec<u32>,
    /// Loaded while every pointer of the profiler is in use; `None` if the library stays loaded forever.
    _library: Option<Library>,
}

impl Inner {
    /// Returns the callback that passes the events of a net plugin to this profiler.
    pub(crate) fn callback(&self) -> ProfilerCallback {
        self.place.callback()
    }

    pub(super) fn failed(&self, call: &'static str, code: NcclResult) -> ProfilerError {
        ProfilerError::Call { profiler: self.name.clone(), call, code }
    }

    /// Returns an error if a function is NULL.
    pub(super) fn complete(&self) -> Result<(), ProfilerError> {
        match self.table.missing() {
            Some(call) => {
                let (profiler, version) = (self.name.clone(), self.table.version());
                Err(ProfilerError::NullFunction { profiler, call, version })
            }
            None => Ok(()),
        }
    }
}

impl ProfilerPlugin {
    /// Loads the profiler at `path`, with version `wanted` of the interface, or with the newest that it exports if
    /// `wanted` is `None`. The file may be one that is loaded as a net plugin already.
    ///
    /// Loading runs the initialisers of the .so, so the caller must trust that file. NCCL's forks have tables of their
    /// own under the name `ncclProfiler_v7`; they cannot be told from NCCL's.
    ///
    /// # Errors
    /// If the file is missing, cannot be loaded or has no profiler, or lacks the requested version or a name.
    pub fn load(path: &Path, wanted: Option<u32>) -> Result<Self, LoadError> {
        if !path.exists() {
            return Err(LoadError::Missing { path: path.to_owned() });
        }
        let library = open(path)?;
        let found: Vec<(u32, *mut c_void)> = PROFILER_SYMBOLS
            .iter()
            .filter_map(|(version, symbol)| Some((*version, address(&library, symbol)?)))
            .collect();
        let versions: Vec<u32> = found.iter().map(|(version, _)| *version).collect();
        if found.is_empty() {
            return Err(LoadError::NoProfiler { path: path.to_owned() });
        }
        let chosen = found.iter().find(|(version, _)| wanted.is_none_or(|wanted| wanted == *version));
        let Some((version, address)) = chosen else {
            let wanted = wanted.unwrap_or_default();
            return Err(LoadError::NoProfilerVersion { path: path.to_owned(), wanted, versions: list(&versions) });
        };
        // SAFETY: the address is this version's symbol, and `Inner` keeps the library loaded with the table.
        let table =
            unsafe { Table::at(*version, *address) }.ok_or_else(|| LoadError::NoProfiler { path: path.to_owned() })?;
        Self::new(path, table, versions, Some(library))
    }

    /// Returns the profiler whose table of `version` lies at `table`, without a symbol, in the file `path`. `None` for
    /// a version that does not exist, or if `table` is NULL.
    ///
    /// # Errors
    /// If the table has no name, or too many profilers are loaded.
    ///
    /// # Safety
    /// `table` points to a table of that version, which stays loaded while the process lives.
    pub unsafe fn at(path: &Path, version: u32, table: *const c_void) -> Result<Option<Self>, LoadError> {
        // SAFETY: the caller promises it.
        match unsafe { Table::at(version, table) } {
            Some(table) => Self::new(path, table, vec![version], None).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn new(
        path: &Path,
        table: Table,
        versions: Vec<u32>,
        library: Option<Library>,
    ) -> Result<Self, LoadError> {
        let (path, version) = (path.to_owned(), table.version());
        // SAFETY: every table begins with a constant string, or NULL.
        let Some(name) = (unsafe { text(table.name()) }) else {
            return Err(LoadError::NoProfilerName { path, version });
        };
        let Some(place) = Place::take(table) else {
            return Err(LoadError::TooManyProfilers { path, limit: MAX_PROFILERS });
        };
        let mask = AtomicI32::new(0);
        Ok(Self { inner: Arc::new(Inner { place, table, name, mask, path, versions, _library: library }) })
    }

    /// Returns the callback that net plugins get, for a test's substitute for one. It does nothing once the profiler is
    /// unloaded.
    #[must_use]
    pub fn callback(&self) -> ProfilerCallback {
        self.inner.callback()
    }

    /// Returns what a net plugin needs that has its callback.
    pub(crate) fn shared(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    /// Returns the profiler's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the file that it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the version of the interface in use.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.inner.table.version()
    }

    /// Returns all versions that it exports, newest first.
    #[must_use]
    pub fn versions(&self) -> &[u32] {
        &self.inner.versions
    }
}

/// A profiler that cannot be used. NCCL then goes on without one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProfilerError {
    /// The profiler returned an error.
    #[error("{call} of profiler {profiler:?} returned {code}; its own log lines may say why")]
    Call {
        /// The profiler's name.
        profiler: String,
        /// The function's name in C.
        call: &'static str,
        /// The code that it returned.
        code: NcclResult,
    },
    /// The profiler's table has no such function.
    #[error(
        "profiler {profiler:?} has NULL for {call} in its table ncclProfiler_v{version}, which NCCL would call; it \
         must be set"
    )]
    NullFunction {
        /// The profiler's name.
        profiler: String,
        /// The function's name in C.
        call: &'static str,
        /// The version of the interface.
        version: u32,
    },
}
