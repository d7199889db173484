//! The arguments of the agent.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Arguments of `railweave agent`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The configuration (docs/agent.md); without one, the agent watches, and steers only what its API is told
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The address of metrics and API [default: 127.0.0.1:9470]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(super) listen: Option<SocketAddr>,
    /// A folder of telemetry files, once for each [default: this user's; as root, those of all users in /dev/shm]
    #[arg(long, value_name = "FOLDER")]
    pub(super) run_dir: Vec<PathBuf>,
    /// The file with the token that callers have to show; nobody else may read it
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// The folder below which `sys` is read, instead of /
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub(super) root: PathBuf,
    /// Checks the configuration, and ends
    #[arg(long)]
    pub(super) check: bool,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "allowed: an address and a port, without names; try 127.0.0.1:9470".to_owned())
}
