//! The checks of testing/tidy, for mistakes that no compiler refuses and every reader stumbles over.

use crate::process::{cargo, root};
use std::process::Command;

/// Returns the command that checks the whole tree.
pub(crate) fn command() -> Command {
    let mut command = cargo(&["run", "--quiet", "--package", "railweave-tidy", "--"]);
    command.arg(root());
    command
}
