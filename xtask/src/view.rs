//! NCCL's view of a host's adapters (docs/nccl-view.md): builds the plugin and the program that asks (testing/view).

use crate::nccl::Nccl;
use crate::process::{become_program, cargo, root, run, target};
use clap::Args;
use std::process::{Command, ExitCode};

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    nccl: Nccl,
}

/// Asks Railweave, and NCCL if its library is given, and writes the page.
pub(crate) fn run_view(arguments: &Arguments) -> Result<ExitCode, String> {
    let nccl = arguments.nccl.library()?;
    run(cargo(&["build", "--quiet", "--package", "railweave-plugin", "--package", "railweave-view"]))?;
    let built = target().join("debug");
    let mut command = Command::new(built.join("railweave-view"));
    command.arg("compare").arg("--plugin").arg(built.join("libnccl_net_railweave.so"));
    command.arg("--package").arg(root().join("testing").join("view"));
    command.arg("--page").arg(root().join("docs").join("nccl-view.md")).arg("--folder").arg(target().join("view"));
    if let Some(nccl) = nccl {
        command.arg("--nccl").arg(nccl);
    }
    become_program(command)
}
