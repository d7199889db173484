//! NCCL's own library, for comparisons: pip fetches it into `target/nccl`; it is never part of the repository.

use crate::packages;
use crate::process::target;
use clap::Args;
use std::path::{Path, PathBuf};

/// The package, in the version of the documentation's figures.
const PACKAGE: &str = "nvidia-nccl-cu12==2.32.3";

/// The library's path in the package.
const LIBRARY: &str = "nvidia/nccl/lib/libnccl.so.2";

/// The source of the library, for a chore that can do without it.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct Nccl {
    /// Also run NCCL's own transport, in this libnccl.so.2
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
    /// Also run NCCL's own transport, in the library that pip fetches
    #[arg(long)]
    fetch: bool,
}

impl Nccl {
    /// Returns the library if one is named or must be fetched.
    pub(crate) fn library(&self) -> Result<Option<PathBuf>, String> {
        match &self.nccl {
            Some(path) => file(path).map(Some),
            None if self.fetch => library().map(Some),
            None => Ok(None),
        }
    }
}

/// Returns `path` if a file is there.
fn file(path: &Path) -> Result<PathBuf, String> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    Err(format!("{} is no file; name a libnccl.so.2 with --nccl, or pass --fetch", path.display()))
}

/// Returns the library, fetched first if it is not here yet: about 250 MB.
pub(crate) fn library() -> Result<PathBuf, String> {
    let folder = target().join("nccl");
    let library = folder.join(LIBRARY);
    if library.exists() {
        return Ok(library);
    }
    packages::pip(&[PACKAGE], &folder, true)?;
    if library.exists() { Ok(library) } else { Err(format!("{PACKAGE} has no {LIBRARY}; is it for this processor?")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_a_file() {
        let program = std::env::current_exe().unwrap();
        let nccl = |path: &Path| Nccl { nccl: Some(path.to_owned()), fetch: false };
        assert_eq!(nccl(&program).library().unwrap(), Some(program.clone()));
        for path in [program.parent().unwrap(), Path::new("no/such/libnccl.so.2")] {
            let error = nccl(path).library().unwrap_err();
            assert!(error.contains("is no file; name a libnccl.so.2"), "{error}");
        }
        assert_eq!(Nccl { nccl: None, fetch: false }.library().unwrap(), None);
    }
}
