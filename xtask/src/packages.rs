//! Debian's and Python's packages: finds the missing ones and installs them where that is allowed.

use crate::process::{Outcome, run};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Packages for the comparison of our types with libibverbs' own.
pub(crate) const HEADERS: &[&str] = &["libibverbs-dev"];

/// Packages that slow rails and join network namespaces by cables, for tests and the demonstration.
pub(crate) const RAILS: &[&str] = &["iproute2"];

/// Packages that run programs for aarch64 on another processor: the emulator, and a glibc for them.
pub(crate) const AARCH64: &[&str] = &["qemu-user", "libc6-arm64-cross"];

/// Packages that try metrics, alert rules and units: Prometheus, Python's environments, and systemd's own checks.
pub(crate) const MONITORING: &[&str] = &["prometheus", "python3-venv", "systemd"];

/// The lab's packages.
pub(crate) const LAB: &[&str] = &[
    // Runs the guests.
    "qemu-system-x86",
    // Makes their initial file system, with the modules of their kernel.
    "busybox-static",
    "cpio",
    "kmod",
    // Kills them when the lab dies.
    "util-linux",
    // Sets up addresses, soft-RoCE devices and shapers in them.
    "ethtool",
    "iproute2",
    "rdma-core",
    // RDMA for the plugin, and programs to compare it with.
    "libibverbs1",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
];

/// Makes sure that `packages` are here: installs the missing ones if `may_install`, otherwise says how to. `command` is
/// the chore that needs them and takes --install.
pub(crate) fn require(packages: &[&'static str], may_install: bool, command: &str) -> Outcome {
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !may_install {
        return Err(format!(
            "packages are missing: {names}; install them with \"apt-get install {names}\", or as root with \
             \"cargo xtask {command} --install\""
        ));
    }
    eprintln!("installing {names}");
    apt_get(&["update", "--quiet"])?;
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    apt_get(&[install.as_slice(), &missing].concat())
}

/// Returns true if this process may install packages without being asked to: on a machine for continuous integration.
pub(crate) fn is_continuous_integration() -> bool {
    // The folder belongs to this process's effective user (proc_pid(5)).
    let is_root = || std::fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0);
    std::env::var("CI").is_ok_and(|ci| ci == "true") && is_root()
}

/// Fetches Python's `packages`, without their dependencies, into `folder` if `may_fetch`; otherwise says how to fetch
/// them.
pub(crate) fn pip(packages: &[&str], folder: &Path, may_fetch: bool) -> Outcome {
    let (names, shown) = (packages.join(" "), folder.display());
    if !may_fetch {
        return Err(format!("{names}: not in {shown}; get them with: python3 -m pip install --target {shown} {names}"));
    }
    let pip = |arguments: &[&str]| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip"]).args(arguments).env("PIP_ROOT_USER_ACTION", "ignore");
        pip
    };
    let version = pip(&["--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Err(format!(
            "pip, which fetches {names}, does not run as \"python3 -m pip\"; install python3 and python3-pip"
        ));
    }
    eprintln!("fetching {names} with pip into {shown}");
    let mut install = pip(&["install", "--quiet", "--no-deps", "--disable-pip-version-check", "--upgrade", "--target"]);
    install.arg(folder).args(packages);
    run(install).map_err(|error| format!("{names} cannot be fetched: {error}; see pip's output above"))
}

fn missing(packages: &[&'static str]) -> Result<Vec<&'static str>, String> {
    let mut missing = Vec::new();
    for name in packages {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat=${db:Status-Status}", name]).stderr(Stdio::null());
        let output = query.output().map_err(|error| {
            format!("cannot run dpkg-query: {error}; the packages are Debian's, so run this on Debian 12")
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
