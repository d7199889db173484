//! The files that users install: `target/dist` with the plugin and the program, from a release build.

use crate::process::{cargo, run, target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The plugin's file, by cargo's name for it.
const BUILT: &str = "libnccl_net_railweave.so";

/// The plugin's file, by the name that NCCL looks for with `NCCL_NET_PLUGIN=railweave`.
const LIBRARY: &str = "libnccl-net-railweave.so";

/// The name that NCCL looks for when no plugin is named: a link to the library.
const DEFAULT_LIBRARY: &str = "libnccl-net.so";

/// The program.
const PROGRAM: &str = "railweave";

/// The results of `dist`.
#[derive(Clone)]
pub(crate) struct Dist {
    /// The plugin.
    pub(crate) library: PathBuf,
    /// The program.
    pub(crate) program: PathBuf,
}

impl Dist {
    /// Returns the command `railweave demo` with `arguments`.
    pub(crate) fn demo(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("demo").args(arguments);
        command
    }
}

/// Builds the plugin and the program, and lays them out as users install them.
pub(crate) fn dist() -> Result<Dist, String> {
    run(cargo(&["build", "--release", "--package", "railweave-plugin", "--package", "railweave-cli"]))?;
    let (release, dist) = (target().join("release"), target().join("dist"));
    let (library, program) = (dist.join("lib").join(LIBRARY), dist.join("bin").join(PROGRAM));
    place(&library, |new| fs::copy(release.join(BUILT), new).map(drop))?;
    place(&program, |new| fs::copy(release.join(PROGRAM), new).map(drop))?;
    place(&dist.join("lib").join(DEFAULT_LIBRARY), |new| std::os::unix::fs::symlink(LIBRARY, new))?;
    Ok(Dist { library, program })
}

/// Makes `path` with `make`, in one move: a program that has the old file open keeps it whole.
fn place(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), String> {
    let new = path.with_extension("new");
    let placed = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        make(&new)?;
        fs::rename(&new, path)
    });
    placed.map_err(|error| format!("cannot place {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placing_replaces_what_is_there_and_survives_a_broken_try() {
        let folder = std::env::temp_dir().join(format!("railweave-xtask-{}", std::process::id()));
        let path = folder.join("lib").join("a.so");
        place(&path, |new| fs::write(new, "one")).unwrap();
        let error = place(&path, |new| fs::copy(folder.join("absent"), new).map(drop)).unwrap_err();
        assert!(error.contains("cannot place"), "{error}");
        fs::write(path.with_extension("new"), "left by a broken try").unwrap();
        place(&path, |new| std::os::unix::fs::symlink("b.so", new)).unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("b.so"));
        place(&path, |new| fs::write(new, "two")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        fs::remove_dir_all(&folder).unwrap();
    }
}
