//! The demands that a program or a library makes on the machine that loads it, and whether old systems can meet them.

use std::fs;
use std::path::Path;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// The newest version of glibc whose symbols may be used: that of Red Hat Enterprise Linux 8.
pub(crate) const GLIBC: Version = Version { major: 2, minor: 28 };

/// glibc's libraries: before 2.34 there are several.
const GLIBC_LIBRARIES: [&str; 6] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-aarch64.so.1"];

/// The largest page of aarch64. On a system with such pages, a segment with a smaller alignment cannot be loaded.
const LARGEST_PAGE: u64 = 64 << 10;

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Returns the version of a symbol version such as `GLIBC_2.17`; `GLIBC_2.2.5` counts as 2.2.
    fn of_symbol(name: &str) -> Option<Self> {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
        Some(Self { major: numbers.next()??, minor: numbers.next()?? })
    }
}

/// The parts of a file that the loader reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    is_aarch64: bool,
    /// The libraries that it is linked with.
    libraries: Vec<String>,
    /// The versions of their symbols that it uses, such as `GLIBC_2.17`.
    versions: Vec<String>,
    /// True if it stays in a process that has loaded it once.
    never_unloads: bool,
    /// The smallest alignment of its loaded segments, in bytes.
    alignment: u64,
}

impl Binary {
    /// Reads a 64-bit file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&bytes).map_err(|error| format!("cannot read {} as a program or library: {error}", path.display()))
    }

    fn parse(bytes: &[u8]) -> object::read::Result<Self> {
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        let (endian, header) = (file.endian(), file.elf_header());
        let sections = header.sections(endian, bytes)?;
        let mut binary = Self {
            is_aarch64: header.e_machine(endian) == elf::EM_AARCH64,
            libraries: Vec::new(),
            versions: Vec::new(),
            never_unloads: false,
            alignment: u64::MAX,
        };
        let dynamic = sections.dynamic_table(endian, bytes)?;
        for entry in dynamic.iter() {
            if entry.tag == elf::DT_NEEDED {
                binary.libraries.push(text(dynamic.string(entry)?));
            } else if entry.tag == elf::DT_FLAGS_1 {
                binary.never_unloads = entry.val & elf::DF_1_NODELETE.0 != 0;
            }
        }
        if let Some((needs, link)) = sections.gnu_verneed(endian, bytes)? {
            let strings = sections.strings(endian, bytes, link)?;
            for need in needs {
                for version in need?.1 {
                    binary.versions.push(text(version?.name(endian, strings)?));
                }
            }
        }
        for segment in header.program_headers(endian, bytes)? {
            if segment.p_type(endian) == elf::PT_LOAD {
                binary.alignment = binary.alignment.min(segment.p_align(endian));
            }
        }
        Ok(binary)
    }

    /// Checks that every aarch64 system with [`GLIBC`] or newer can load it, whatever the size of its pages.
    pub(crate) fn check_portable(&self) -> Result<(), String> {
        if !self.is_aarch64 {
            return Err("it is for another processor than aarch64".into());
        }
        if let Some(library) = self.libraries.iter().find(|library| !GLIBC_LIBRARIES.contains(&library.as_str())) {
            return Err(format!("it is linked with {library}, which is not glibc's: not every system has it"));
        }
        let fits = |name: &str| Version::of_symbol(name).is_some_and(|version| version <= GLIBC);
        if let Some(version) = self.versions.iter().find(|version| !fits(version)) {
            return Err(format!("it uses symbols of {version}, but may use only glibc's, up to {GLIBC}"));
        }
        if self.alignment < LARGEST_PAGE {
            let (is, least) = (self.alignment, LARGEST_PAGE);
            return Err(format!("a segment is aligned to {is} bytes: with pages of {least} bytes it cannot be loaded"));
        }
        Ok(())
    }

    /// Checks that its code stays where it is after dlclose.
    pub(crate) fn check_stays(&self) -> Result<(), String> {
        if self.never_unloads { Ok(()) } else { Err("it is not marked NODELETE, so dlclose may unload it".into()) }
    }

    /// Returns the newest version of glibc that it needs and its libraries, in words.
    pub(crate) fn needs(&self) -> String {
        let newest = self.versions.iter().filter_map(|version| Version::of_symbol(version)).max();
        let glibc = newest.map_or_else(|| "no glibc".to_owned(), |version| format!("glibc {version}"));
        format!("{glibc} ({})", self.libraries.join(", "))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> Binary {
        Binary {
            is_aarch64: true,
            libraries: ["libc.so.6", "libpthread.so.0", "ld-linux-aarch64.so.1"].map(str::to_owned).into(),
            versions: ["GLIBC_2.17", "GLIBC_2.28"].map(str::to_owned).into(),
            never_unloads: true,
            alignment: 65_536,
        }
    }

    fn wrong(change: impl FnOnce(&mut Binary)) -> String {
        let mut binary = plugin();
        change(&mut binary);
        binary.check_portable().and_then(|()| binary.check_stays()).unwrap_err()
    }

    #[test]
    fn what_an_old_system_cannot_load_is_named() {
        assert_eq!(plugin().check_portable().and_then(|()| plugin().check_stays()), Ok(()));
        assert_eq!(plugin().needs(), "glibc 2.28 (libc.so.6, libpthread.so.0, ld-linux-aarch64.so.1)");
        assert!(wrong(|binary| binary.is_aarch64 = false).contains("another processor"));
        assert!(wrong(|binary| binary.libraries.push("libgcc_s.so.1".into())).contains("libgcc_s.so.1"));
        for version in ["GLIBC_2.29", "GLIBC_3.0", "GLIBC_ABI_DT_RELR", "GCC_3.0", "GLIBCXX_3.4", "GLIBC_2"] {
            assert!(wrong(|binary| binary.versions.push(version.into())).contains(version), "{version}");
        }
        assert!(wrong(|binary| binary.alignment = 4096).contains("aligned to 4096 bytes"));
        assert!(wrong(|binary| binary.never_unloads = false).contains("NODELETE"));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let version = |name| Version::of_symbol(name).unwrap();
        assert!(version("GLIBC_2.3.4") < version("GLIBC_2.17") && version("GLIBC_2.28") == GLIBC);
    }

    #[test]
    fn a_real_program_is_read() {
        let program = Binary::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(program.libraries.iter().any(|library| library == "libc.so.6"), "{program:?}");
        assert!(program.versions.iter().any(|version| version.starts_with("GLIBC_2.")), "{program:?}");
        assert!(!program.never_unloads && program.alignment.is_power_of_two(), "{program:?}");
        assert_eq!(program.is_aarch64, std::env::consts::ARCH == "aarch64");
        let text = Binary::read(&crate::process::root().join("Cargo.toml")).unwrap_err();
        assert!(text.contains("Cargo.toml"), "{text}");
    }
}
