//! What the lab needs of Debian.

use crate::Outcome;
use crate::process::run;
use std::process::{Command, Stdio};

/// The packages, and what each is for.
const PACKAGES: &[&str] = &[
    // Runs the guests.
    "qemu-system-x86",
    // Makes their initial file system, with the modules of their kernel.
    "busybox-static",
    "cpio",
    "kmod",
    // Kills them when the lab dies.
    "util-linux",
    // Sets up addresses, soft-RoCE devices and shapers in them.
    "iproute2",
    "rdma-core",
    // RDMA for the plugin, and programs to compare it with.
    "libibverbs1",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
];

/// Makes sure that all packages are here: installs the missing ones if `may_install`, else says how to.
pub(crate) fn require(may_install: bool) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        let arch = std::env::consts::ARCH;
        return Err(format!(
            "the lab emulates x86_64 and shares its programs with this machine, which is {arch}; use an x86_64 machine"
        ));
    }
    let missing = missing()?;
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !may_install {
        return Err(format!(
            "the lab needs packages that are not here: {names}; install them with \"apt-get install {names}\", or as root \
             with \"cargo xtask lab --install\""
        ));
    }
    eprintln!("installing {names}");
    apt_get(&["update", "--quiet"])?;
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    apt_get(&[install.as_slice(), &missing].concat())
}

/// Whether this process may install packages when nobody asked it to: on a machine for continuous integration.
pub(crate) fn is_continuous_integration() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root()
}

fn missing() -> Result<Vec<&'static str>, String> {
    let mut missing = Vec::new();
    for name in PACKAGES {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat=${db:Status-Status}", name]).stderr(Stdio::null());
        let output = query.output().map_err(|error| {
            format!("cannot run dpkg-query: {error}; the lab takes kernel and programs from Debian 12, so run it there")
        })?;
        if output.stdout != b"installed" {
            missing.push(*name);
        }
    }
    Ok(missing)
}

fn apt_get(arguments: &[&str]) -> Outcome {
    let mut command = Command::new("apt-get");
    // With --json, standard output is for the results.
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(std::io::stderr());
    run(command)
}
