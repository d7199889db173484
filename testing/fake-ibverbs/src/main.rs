//! Links the fake libibverbs and prints its path, for `NCCL_IBVERBS_LIB`.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let linked = railweave_fake_ibverbs::link(&[]);
    let written = match &linked {
        Ok(path) => writeln!(std::io::stdout(), "{}", path.display()),
        Err(error) => writeln!(std::io::stderr(), "railweave-fake-ibverbs: {error}"),
    };
    if linked.is_ok() && written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
