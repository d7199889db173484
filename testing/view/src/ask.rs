//! Starting this program in a namespace of its own: the host's files are /sys, and the network has only loopback.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::answer::Answer;

/// The settings of other programs are not this host's.
const FOREIGN: [&str; 3] = ["NCCL_", "RAILWEAVE_", "MPIB_"];

/// The commands inside the namespace: the first argument becomes /sys, the others are run.
const INSIDE: &str = "mount --rbind \"$1\" /sys && ip link set lo up && shift && exec \"$@\"";

/// The program that makes the namespaces. Any user is root in a user namespace, and may mount there.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--net", "--fork", "--kill-child"]);
    command
}

/// The sentence of a machine where nothing can be asked; tests look for its first words.
pub(crate) const NOT_HERE: &str = "this user may not create namespaces";

/// Fails if this user may not create namespaces, or a tool is missing.
pub(crate) fn can_be_asked() -> Result<(), String> {
    let status = unshare().args(["sh", "-c", INSIDE, "sh", "/sys", "true"]).output();
    if status.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(format!(
        "{NOT_HERE}, or unshare, mount or ip is missing: run this as root, or allow user namespaces (sysctl \
         kernel.unprivileged_userns_clone=1), and install util-linux and iproute2"
    ))
}

/// One question.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    /// The library to ask, and the argument that says which kind it is.
    pub(crate) side: (&'static str, &'a Path),
    /// The folder that becomes /sys.
    pub(crate) sys: &'a Path,
    /// The fake libibverbs, and the description of its machine.
    pub(crate) verbs: (&'a Path, PathBuf),
    /// The folder in which libmlx5 is found.
    pub(crate) mlx5: &'a Path,
    /// The host's variables.
    pub(crate) settings: &'a [(String, String)],
    /// Further arguments of `observe`.
    pub(crate) arguments: Vec<String>,
}

impl Question<'_> {
    /// Asks, and returns the answer.
    pub(crate) fn ask(&self) -> Result<Answer, String> {
        let cannot = |error: std::io::Error| format!("cannot start the process that asks: {error}");
        let (kind, library) = self.side;
        let mut command = unshare();
        command.args(["sh", "-c", INSIDE, "sh"]).arg(self.sys).arg(env::current_exe().map_err(cannot)?);
        command.arg("observe").arg(kind).arg(library).args(&self.arguments);
        for (name, _) in env::vars_os() {
            if FOREIGN.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = std::iter::once(self.mlx5.to_owned()).chain(env::split_paths(&others));
        command.env("LD_LIBRARY_PATH", env::join_paths(folders).map_err(|error| error.to_string())?);
        command.env("NCCL_IBVERBS_LIB", self.verbs.0).env("RAILWEAVE_TEST_MACHINE", &self.verbs.1);
        command.envs([("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_CONF_FILE", "/dev/null"), ("RAILWEAVE_FABRIC", "verbs")]);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let output = command.output().map_err(cannot)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{}: {}; it said:\n{said}", crate::fixture::line(self.settings), output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("the answer is no JSON: {error}; {said}"))
    }
}
