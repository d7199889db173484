//! Railweave under the real NCCL, on one GPU: builds the plugin and runs `testing/gpu/check.py` with it (docs/gpu.md).

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use crate::dist::dist;
use crate::process::{code, root, status};

/// The variable that names the Python with PyTorch.
const PYTHON: &str = "PYTHON";

/// Runs the check and returns its exit status.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = command(std::env::var_os(PYTHON), arguments);
    if wants_built_plugin(arguments) {
        command.arg("--plugin").arg(dist()?.library);
    }
    let program = command.get_program().to_owned();
    let hint = |error| format!("{error}; {PYTHON} names the program ({}), which needs PyTorch", program.display());
    status(command).map_err(hint).map(code)
}

/// Returns the check with `arguments`, run by `python` or by the one on the path.
fn command(python: Option<OsString>, arguments: &[String]) -> Command {
    let python = python.filter(|name| !name.is_empty()).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    // -B: no compiled files next to the sources.
    command.arg("-B").arg(root().join("testing").join("gpu").join("check.py")).args(arguments);
    command
}

/// Returns true if the check should use the plugin that is built here.
fn wants_built_plugin(arguments: &[String]) -> bool {
    !arguments.iter().any(|argument| {
        let name = argument.split('=').next().unwrap_or_default();
        // Help needs no plugin, nor does gloo.
        matches!(name, "--plugin" | "--help" | "-h") || matches!(argument.as_str(), "gloo" | "--backend=gloo")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_built_plugin_is_added_unless_another_is_named_or_none_is_needed() {
        for line in ["", "--quick --json", "--only all_reduce --nccl somewhere"] {
            assert!(wants_built_plugin(&words(line)), "{line}");
        }
        for line in ["--plugin a.so", "--plugin=a.so --quick", "--backend gloo", "--backend=gloo", "--help", "-h"] {
            assert!(!wants_built_plugin(&words(line)), "{line}");
        }
    }

    #[test]
    fn the_variable_chooses_the_python() {
        let line = |python: Option<&str>| {
            let command = command(python.map(OsString::from), &words("--quick"));
            let last = command.get_args().last().map(ToOwned::to_owned);
            (command.get_program().to_owned(), last)
        };
        assert_eq!(line(Some("pythons/3.12")), ("pythons/3.12".into(), Some("--quick".into())));
        assert_eq!(line(Some("")).0, "python3");
        assert_eq!(line(None).0, "python3");
    }
}
