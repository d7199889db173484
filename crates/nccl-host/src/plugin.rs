//! Finds and loads a plugin's .so as NCCL does: `dlopen` with RTLD_NOW and RTLD_LOCAL, then the data symbols of the
//! tables, newest version first.

use crate::counters::{RailCount, read_counters};
use crate::library::{LoadError, address, list, open};
use crate::table::{Table, text};
use libloading::os::unix::Library;
use railweave_abi::net::NET_SYMBOLS;
use railweave_abi::railweave::{RAIL_COUNTERS_SYMBOL, RailCountersFn};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A loaded plugin; its code stays in memory while this or a [`LoadedNet`](crate::LoadedNet) of it exists.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Loaded while `table`, `counters` and every pointer of the plugin are in use; `None` if the library stays loaded
    /// forever.
    _library: Option<Library>,
    pub(crate) table: Table,
    pub(crate) name: String,
    /// The number of communicators that use it. NCCL calls `init` of v6 to v10 only for the first of them.
    pub(crate) starts: Mutex<usize>,
    counters: Option<RailCountersFn>,
    pub(crate) path: PathBuf,
    versions: Vec<u32>,
}

impl Plugin {
    /// Loads the plugin at `path`, with API version `wanted`, or with the newest that it exports if `wanted` is `None`.
    ///
    /// Loading runs the initialisers of the .so, so the caller must trust that file, as a user of NCCL trusts the one
    /// that NCCL_NET_PLUGIN names.
    ///
    /// # Errors
    /// If the file is missing, cannot be loaded or is not a plugin, or lacks the requested version or a name.
    pub fn load(path: &Path, wanted: Option<u32>) -> Result<Self, LoadError> {
        if !path.exists() {
            return Err(LoadError::Missing { path: path.to_owned() });
        }
        let library = open(path)?;
        let found: Vec<(u32, *mut c_void)> =
            NET_SYMBOLS.iter().filter_map(|(version, symbol)| Some((*version, address(&library, symbol)?))).collect();
        let versions: Vec<u32> = found.iter().map(|(version, _)| *version).collect();
        if found.is_empty() {
            return Err(LoadError::NoPlugin { path: path.to_owned() });
        }
        let chosen = found.iter().find(|(version, _)| wanted.is_none_or(|wanted| wanted == *version));
        let Some((version, address)) = chosen else {
            let wanted = wanted.unwrap_or_default();
            return Err(LoadError::NoVersion { path: path.to_owned(), wanted, versions: list(&versions) });
        };
        // SAFETY: the address is this version's symbol, and `Inner` keeps the library loaded with the table.
        let table =
            unsafe { Table::at(*version, *address) }.ok_or_else(|| LoadError::NoPlugin { path: path.to_owned() })?;
        // SAFETY: the API requires a constant string there.
        let name = unsafe { text(table.name()) }
            .ok_or_else(|| LoadError::NoName { path: path.to_owned(), version: *version })?;
        let counters = self::address(&library, RAIL_COUNTERS_SYMBOL)
            // SAFETY: the symbol's name ends with the version of this type; an address is not NULL.
            .map(|address| unsafe { std::mem::transmute::<*mut c_void, RailCountersFn>(address) });
        let inner = Inner {
            _library: Some(library),
            table,
            name,
            starts: Mutex::default(),
            counters,
            path: path.to_owned(),
            versions,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns a plugin whose table of `version` lies at `table`, without a symbol of the API, in the file `path`.
    /// `None` for a version that does not exist, or if `table` is NULL.
    ///
    /// # Safety
    /// `table` points to a table of that version, which stays loaded while the process lives.
    #[must_use]
    pub unsafe fn at(path: &Path, version: u32, table: *const c_void) -> Option<Self> {
        // SAFETY: the caller promises it.
        Some(Self::of_table(path, unsafe { Table::at(version, table) }?))
    }

    /// Returns a plugin with a table that stays loaded.
    pub(crate) fn of_table(path: &Path, table: Table) -> Self {
        // SAFETY: every table begins with a constant string, or NULL.
        let name = unsafe { text(table.name()) }.unwrap_or_default();
        let (path, versions) = (path.to_owned(), vec![table.version()]);
        let inner = Inner { _library: None, table, name, starts: Mutex::default(), counters: None, path, versions };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the size in bytes of the API's table of `version`; `None` for a version that does not exist.
    #[must_use]
    pub fn table_bytes(version: u32) -> Option<usize> {
        Table::bytes(version)
    }

    /// Returns the plugin's own name, which a user passes in NCCL_NET.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the file that it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the version of the API in use.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.inner.table.version()
    }

    /// Returns all versions that it exports, newest first.
    #[must_use]
    pub fn versions(&self) -> &[u32] {
        &self.inner.versions
    }

    /// Returns the counters of every rail of this process; `None` if the plugin does not export them, as only
    /// Railweave's does.
    #[must_use]
    pub fn rail_counters(&self) -> Option<Vec<RailCount>> {
        // SAFETY: the function is the plugin's, of this type, and the plugin is loaded.
        self.inner.counters.map(|counters| unsafe { read_counters(counters) })
    }
}
