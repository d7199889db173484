//! NCCL's own IB transport: the table inside NCCL's library through which NCCL calls its own code for RDMA.
//!
//! It is laid out like a plugin's table of NCCL's newest version, but the library does not export it, so `dlsym` does
//! not find it. The symbol table of the file names it, unless the file was stripped. The table is checked before any of
//! its functions is called.

use object::read::elf::{ElfFile64, ProgramHeader};
use object::read::{Object, ObjectSymbol, ReadCache};
use object::{Endianness, elf};
use railweave_nccl_host::Plugin;
use railweave_nccl_host::library::{LoadError, address, open};
use std::ffi::{CStr, c_void};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Loads the IB transport inside NCCL's library at `path`, to be called like a plugin. The library stays loaded while
/// the process lives: its IB transport starts threads that nothing ends.
///
/// # Errors
/// If the file is not NCCL's library, or holds no such table that this program can call.
pub fn load(path: &Path) -> Result<Plugin, NcclError> {
    let layout = Layout::read(path)?;
    let library = open(path)?;
    let anchor = address(&library, ANCHOR).ok_or_else(|| NcclError::Foreign { path: path.to_owned() })?;
    let no_table = |what| NcclError::NoTable { path: path.to_owned(), version: layout.version, what };
    // SAFETY: the file that was read is the one just loaded, and the address is the anchor's in it.
    let table = unsafe { layout.table(anchor) }.map_err(no_table)?;
    let _stays_loaded = library.into_raw();
    // SAFETY: the version's number of words is there, the first a string and each other NULL or a function; NCCL itself
    // relies on their having the version's types.
    unsafe { Plugin::at(path, layout.version, table) }.ok_or_else(|| no_table(UNKNOWN_VERSION))
}

/// The reason for refusing a table of another version.
const UNKNOWN_VERSION: &str = "this program knows net v6 to v12";
/// The table's symbol.
const TABLE: &str = "ncclNetIb";
/// The name in the table.
const NAME: &CStr = c"IB";
/// A function that every NCCL exports: its address tells where the library is loaded.
const ANCHOR: &CStr = c"ncclGetVersion";
/// NCCL has one such function for each version of plugins that it supports; the newest is that of its own table.
const VERSION_FUNCTION: &str = "getNcclNet_v";
/// Every page size of Linux is a multiple of this.
const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = size_of::<usize>();

/// The positions in the library, as offsets from the address where it is loaded.
struct Layout {
    version: u32,
    table: Range<u64>,
    anchor: u64,
    segments: Vec<Segment>,
}

/// A part of the library that is loaded into memory.
struct Segment {
    range: Range<u64>,
    executable: bool,
}

impl Layout {
    fn read(path: &Path) -> Result<Self, NcclError> {
        let unreadable = |reason: String| NcclError::Unreadable { path: path.to_owned(), reason };
        let file = ReadCache::new(File::open(path).map_err(|error| unreadable(error.to_string()))?);
        let elf = ElfFile64::<Endianness, _>::parse(&file).map_err(|error| unreadable(error.to_string()))?;
        let anchor = elf.dynamic_symbols().find(|symbol| symbol.name_bytes() == Ok(ANCHOR.to_bytes()));
        let anchor = anchor.ok_or_else(|| NcclError::Foreign { path: path.to_owned() })?.address();
        let (mut table, mut version) = (None, None);
        for symbol in elf.symbols().filter(ObjectSymbol::is_definition) {
            // An unreadable name is not the one searched for.
            let name = symbol.name().unwrap_or_default();
            if name == TABLE {
                table = Some(symbol.address()..symbol.address().saturating_add(symbol.size()));
            }
            version = version.max(version_of(name));
        }
        let (Some(table), Some(version)) = (table, version) else {
            return Err(NcclError::Stripped { path: path.to_owned() });
        };
        let headers = elf.elf_program_headers().iter();
        let segments = headers.filter(|header| header.p_type(elf.endian()) == elf::PT_LOAD).map(|header| {
            let start = header.p_vaddr(elf.endian());
            let executable = header.p_flags(elf.endian()).contains(elf::PF_X);
            Segment { range: start..start.saturating_add(header.p_memsz(elf.endian())), executable }
        });
        Ok(Self { version, table, anchor, segments: segments.collect() })
    }

    /// Returns the address of the table of the loaded library, or the reason why it is refused.
    ///
    /// # Safety
    /// `anchor` is the address of [`ANCHOR`] in the library of this layout, which stays loaded.
    unsafe fn table(&self, anchor: *mut c_void) -> Result<*const c_void, &'static str> {
        let base = anchor.addr().wrapping_sub(self.anchor as usize);
        if !base.is_multiple_of(PAGE_BYTES) {
            return Err("the file is not the one that was loaded");
        }
        let bytes = Plugin::table_bytes(self.version).ok_or(UNKNOWN_VERSION)?;
        if self.table.end - self.table.start != bytes as u64 {
            return Err("its size is wrong");
        }
        if !self.table.start.is_multiple_of(WORD_BYTES as u64) || !self.is_loaded(&self.table, false) {
            return Err("it does not lie in one segment, aligned");
        }
        let start = anchor.with_addr(base.wrapping_add(self.table.start as usize));
        // SAFETY: this many bytes lie inside a loaded segment, the start is aligned, and any bits are a word.
        let words = unsafe { std::slice::from_raw_parts(start.cast::<usize>(), bytes / WORD_BYTES) };
        let offset = |word: usize| word.wrapping_sub(base) as u64;
        let name = NAME.to_bytes_with_nul();
        let place = offset(words[0])..offset(words[0]).saturating_add(name.len() as u64);
        // SAFETY: read only if this many bytes lie inside a loaded segment.
        let is_named = self.is_loaded(&place, false)
            && unsafe { std::slice::from_raw_parts(anchor.with_addr(words[0]).cast::<u8>(), name.len()) } == name;
        if !is_named {
            return Err("it does not begin with its name");
        }
        let is_function =
            |word: &usize| *word == 0 || self.is_loaded(&(offset(*word)..offset(*word).saturating_add(1)), true);
        if !words[1..].iter().all(is_function) {
            return Err("it has a pointer that does not lead to code of the library");
        }
        Ok(start)
    }

    /// Returns true if the bytes lie inside one segment, of code if `executable`.
    fn is_loaded(&self, bytes: &Range<u64>, executable: bool) -> bool {
        self.segments.iter().any(|segment| {
            segment.range.start <= bytes.start
                && bytes.end <= segment.range.end
                && bytes.start < bytes.end
                && (segment.executable || !executable)
        })
    }
}

/// Returns the version in the name of a [`VERSION_FUNCTION`], with or without C++'s decoration.
fn version_of(name: &str) -> Option<u32> {
    let (_, rest) = name.split_once(VERSION_FUNCTION)?;
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// The reason why NCCL's own IB transport cannot be called.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NcclError {
    /// The dynamic linker refuses the file.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The file cannot be read, or has another format.
    #[error("cannot read NCCL's library {path}: {reason}; give the path of a libnccl.so.2")]
    Unreadable {
        /// The path that was tried.
        path: PathBuf,
        /// The message of the kernel or of the parser.
        reason: String,
    },
    /// The file is another library.
    #[error("{path} is not NCCL's library: it does not export ncclGetVersion; give the path of a libnccl.so.2")]
    Foreign {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The names of symbols that are not exported are missing.
    #[error(
        "{path} does not tell where ncclNetIb is, or its version, because its symbol table was stripped; give a \
         libnccl.so.2 that has one (.symtab), such as that of the PyPI package nvidia-nccl-cu12"
    )]
    Stripped {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The table at the symbol is not one that this program can call.
    #[error(
        "ncclNetIb of {path} is not a usable table of net v{version}: {what}; give a libnccl.so.2 whose newest net is \
         v12 or older, such as that of NCCL 2.32"
    )]
    NoTable {
        /// The path that was tried.
        path: PathBuf,
        /// The version of NCCL's newest net.
        version: u32,
        /// The reason.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_decorated_names() {
        assert_eq!(version_of("_Z14getNcclNet_v12Pv"), Some(12));
        assert_eq!(version_of("getNcclNet_v6"), Some(6));
        assert_eq!(version_of("getNcclNet_vPv"), None);
        assert_eq!(version_of("ncclNet_v12"), None);
    }
}
