//! Paths and programs that all scenarios share.

use crate::image::Image;
use std::path::PathBuf;

/// The placeholder for the path of NCCL's own library in a scenario.
pub(crate) const NCCL: &str = "{nccl}";

/// The place where scenarios are played.
#[derive(Debug)]
pub(crate) struct Site {
    /// The paths that scenarios may name.
    pub(crate) paths: Paths,
    /// The `railweave` program, with its plugin as users install both.
    pub(crate) railweave: Option<PathBuf>,
    /// The guests' boot image; `None` if no scenario has emulated guests.
    pub(crate) image: Option<Image>,
    /// A copy of this program that no build replaces.
    pub(crate) program: PathBuf,
    /// A folder for sockets, with a short name.
    pub(crate) scratch: PathBuf,
    /// A folder with a folder of log files for each scenario.
    pub(crate) logs: PathBuf,
}

/// The paths behind {root}, {target} and {nccl} in a scenario.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The repository.
    pub(crate) root: PathBuf,
    /// Cargo's build directory.
    pub(crate) target: PathBuf,
    /// NCCL's own library, if it could be fetched or was named.
    pub(crate) nccl: Option<PathBuf>,
}

impl Paths {
    /// Returns `text` with the paths in it.
    ///
    /// # Errors
    /// If `text` names NCCL's library and there is none: a sentence.
    pub(crate) fn fill_in(&self, text: &str) -> Result<String, String> {
        let Self { root, target, nccl } = self;
        let text =
            text.replace("{root}", &root.display().to_string()).replace("{target}", &target.display().to_string());
        match nccl {
            _ if !text.contains(NCCL) => Ok(text),
            Some(nccl) => Ok(text.replace(NCCL, &nccl.display().to_string())),
            None => Err("NCCL's own library is not here; name a libnccl.so.2 with --nccl".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_filled_in_as_far_as_they_are_known() {
        let mut paths = Paths { root: "/r".into(), target: "/t".into(), nccl: None };
        assert_eq!(paths.fill_in("a {root}/b {target} {other}").unwrap(), "a /r/b /t {other}");
        assert!(paths.fill_in("--nccl {nccl}").unwrap_err().contains("--nccl"));
        paths.nccl = Some("/n/libnccl.so.2".into());
        assert_eq!(paths.fill_in("--nccl {nccl}").unwrap(), "--nccl /n/libnccl.so.2");
    }
}
