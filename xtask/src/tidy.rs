//! What no compiler refuses and every reader stumbles over: the program of testing/tidy.

use crate::process::{cargo, root};
use std::process::Command;

/// Looks at the whole tree.
pub(crate) fn command() -> Command {
    let mut command = cargo(&["run", "--quiet", "--package", "railweave-tidy", "--"]);
    command.arg(root());
    command
}
