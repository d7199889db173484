//! The search for the plugin if the user does not name it.

use std::path::{Path, PathBuf};

/// The installed name, then the name of cargo's output.
const NAMES: [&str; 2] = ["libnccl-net-railweave.so", "libnccl_net_railweave.so"];

/// Returns `given`, the user's choice. If it is `None`, finds the plugin that belongs to this program: next to it, in
/// `../lib`, or in a build directory below the current one.
pub(crate) fn find(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let program =
        std::env::current_exe().map_err(|error| format!("this program's own path is unknown: {error}; use --lib"))?;
    let beside = program.parent().unwrap_or(Path::new("."));
    find_in(&places(beside)).ok_or_else(|| {
        format!(
            "the plugin {} is not next to this program ({}), nor in ../lib, target/release or target/debug; build it \
             with `cargo build --release`, or give its path with --lib",
            NAMES[0],
            beside.display()
        )
    })
}

fn places(beside: &Path) -> [PathBuf; 4] {
    [beside.to_owned(), beside.join("../lib"), PathBuf::from("target/release"), PathBuf::from("target/debug")]
}

fn find_in(places: &[PathBuf]) -> Option<PathBuf> {
    let mut files = places.iter().flat_map(|place| NAMES.map(|name| place.join(name)));
    files.find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_path_is_used_as_it_is() {
        assert_eq!(find(Some(Path::new("/some/where.so"))), Ok(PathBuf::from("/some/where.so")));
    }

    #[test]
    fn the_directory_of_the_program_comes_first() {
        let root = std::env::temp_dir().join(format!("railweave-library-{}", std::process::id()));
        let places = places(&root.join("bin"));
        assert_eq!(places[1], root.join("bin/../lib"));
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("lib")).unwrap();
        assert_eq!(find_in(&places[..2]), None);
        std::fs::write(root.join("lib").join(NAMES[0]), "").unwrap();
        assert_eq!(find_in(&places[..2]), Some(places[1].join(NAMES[0])));
        std::fs::write(root.join("bin").join(NAMES[1]), "").unwrap();
        assert_eq!(find_in(&places[..2]), Some(places[0].join(NAMES[1])));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
