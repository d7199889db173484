//! Programs for development that cargo can install.

use crate::process::{cargo, find, run, target};
use std::path::PathBuf;

/// Returns a program such as cargo-fuzz; installs it into target/tools if it is neither there nor on the path.
pub(crate) fn require(name: &str) -> Result<PathBuf, String> {
    if let Some(program) = find(name) {
        return Ok(program);
    }
    let tools = target().join("tools");
    println!("{name} is not here; installing it into {}", tools.display());
    let mut install = cargo(&["install", name, "--locked", "--root"]);
    install.arg(&tools);
    run(install)?;
    Ok(tools.join("bin").join(name))
}
