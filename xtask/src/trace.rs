//! The trace of a demonstration, read with Perfetto's own definitions: builds plugin and program, traces a demo, and
//! runs `testing/perfetto/check.py` with it (docs/tracing.md).

use crate::dist::dist;
use crate::packages;
use crate::process::{code, root, run, status, target};
use std::process::{Command, ExitCode, Stdio};

/// Perfetto's definitions, and what reads them. Neither needs others.
const PACKAGES: [&str; 2] = ["perfetto==0.59.1", "protobuf==7.36.2"];

/// Traces a demo and checks the file that is made of it. Returns the check's exit status.
pub(crate) fn check() -> Result<ExitCode, String> {
    let folder = target().join("perfetto");
    if !folder.join("google").exists() {
        packages::pip(&PACKAGES, &folder, true)?;
    }
    let built = dist()?;
    let traces = target().join("trace");
    let emptied = std::fs::remove_dir_all(&traces);
    if let Err(error) = emptied.or_else(|error| if traces.exists() { Err(error) } else { Ok(()) }) {
        return Err(format!("the old traces in {} cannot be removed: {error}", traces.display()));
    }
    let mut demo = built.demo(&[]);
    demo.env("RAILWEAVE_TRACE", &traces).stdout(Stdio::null());
    run(demo)?;
    let mut check = Command::new("python3");
    // -B: no compiled files next to the sources.
    check.arg("-B").arg(root().join("testing").join("perfetto").join("check.py")).env("PYTHONPATH", folder);
    check.arg("--railweave").arg(built.program).arg(traces);
    status(check).map(code)
}
