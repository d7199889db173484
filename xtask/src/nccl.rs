//! NCCL's own library, for measurements beside it: fetched by pip into `target/nccl`, never part of the repository.

use crate::packages;
use crate::process::target;
use std::path::PathBuf;

/// The package, and the version whose figures the documentation has.
const PACKAGE: &str = "nvidia-nccl-cu12==2.32.3";

/// Where the package keeps the library.
const LIBRARY: &str = "nvidia/nccl/lib/libnccl.so.2";

/// The library, fetched first if it is not there yet: about 250 MB.
pub(crate) fn library() -> Result<PathBuf, String> {
    let folder = target().join("nccl");
    let library = folder.join(LIBRARY);
    if library.exists() {
        return Ok(library);
    }
    packages::pip(&[PACKAGE], &folder, true)?;
    if library.exists() { Ok(library) } else { Err(format!("{PACKAGE} has no {LIBRARY}; is it for this processor?")) }
}
