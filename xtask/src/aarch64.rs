//! The plugin and the program for aarch64: built for an old glibc, inspected, and run under qemu's emulation.

mod binary;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::process::{Outcome, find, root, run as run_command, target};
use crate::suite;
use crate::{flaky, packages};
use binary::Binary;
use clap::Args;

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// Cargo's profile (Cargo.toml of the workspace), and the folder of its results.
const PROFILE: &str = "emulated";

/// Cargo with zig as its linker and C compiler; zig brings the stubs of every glibc.
const PIP_PACKAGES: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.1"];

/// The folder in which Debian's package for cross compilers keeps glibc for aarch64.
const SYSTEM: &str = "/usr/aarch64-linux-gnu";

/// The longest time without progress, in seconds, that the demo allows its ranks. They are emulated, on a machine that
/// may be busy.
const STALL_SECONDS: &str = "180";

/// The factor by which emulated tests may take longer than usual.
const SLOWER: &str = "3";

/// Deadlines of the plugin that an emulated peer on a busy machine might miss.
const PATIENCE: [(&str, &str); 2] = [("RAILWEAVE_HANDSHAKE_TIMEOUT", "120"), ("RAILWEAVE_PEER_TIMEOUT", "120")];

/// Crates whose tests run emulated in the long form: those that share memory with a peer or with C.
const TESTED: [&str; 3] = ["railweave-abi", "railweave-transport", "railweave-fabric-tcp"];

/// One more: it calls getifaddrs. Only its unit tests in modules named `tests` run; the others, those of
/// `rdma_ports::machines`, link the fake libibverbs with this machine's compiler.
const UNIT_TESTED: [&str; 4] = ["--package", "railweave-discovery", "--lib", "::tests::"];

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Also run the unit tests of the crates that share memory with a peer or with C
    #[arg(long)]
    tests: bool,
    /// As root: install missing packages
    #[arg(long)]
    install: bool,
}

/// Runs the step of the test run by itself, and with `--tests` the unit tests too.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let may_install = arguments.install || packages::is_continuous_integration();
    let tools = Tools::require(may_install, may_install, "aarch64")?;
    let mut flaky = Vec::new();
    let result = tools.check(&mut flaky).and_then(|()| if arguments.tests { tools.test(&mut flaky) } else { Ok(()) });
    flaky::list(&flaky);
    result.map(|()| ExitCode::SUCCESS)
}

/// The tools that build and run programs for aarch64.
pub(crate) struct Tools {
    /// The folder into which pip installed cargo-zigbuild and zig.
    folder: PathBuf,
    /// Runs programs for aarch64; `None` if this machine runs them itself.
    emulator: Option<PathBuf>,
}

impl Tools {
    /// Finds everything, or returns a sentence that names the missing tool and how to get it. `may_fetch` allows
    /// installing without root, `may_install` installing Debian packages. `command` is the chore that needs them and
    /// takes --install.
    pub(crate) fn require(may_fetch: bool, may_install: bool, command: &str) -> Result<Self, String> {
        require_target(may_fetch)?;
        let emulator = if std::env::consts::ARCH == "aarch64" { None } else { Some(emulator(may_install, command)?) };
        Ok(Self { folder: zigbuild(may_fetch)?, emulator })
    }

    /// Builds the plugin and the program, inspects both, and runs them. Tests that passed only when repeated are added
    /// to `flaky`.
    pub(crate) fn check(&self, flaky: &mut Vec<String>) -> Outcome {
        run_command(self.cargo("zigbuild", &["--package", "railweave-plugin", "--package", "railweave-cli"]))?;
        let built = builds().join(TRIPLE).join(PROFILE);
        let (library, program) = (built.join("libnccl_net_railweave.so"), built.join("railweave"));
        for (path, stays) in [(&library, true), (&program, false)] {
            let binary = Binary::read(path)?;
            binary
                .check_portable()
                .and_then(|()| if stays { binary.check_stays() } else { Ok(()) })
                .map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{} needs {}", path.file_name().unwrap_or_default().display(), binary.needs());
        }
        self.run_tests(self.cargo("test", &["--package", "railweave-abi", "--test", "layout"]), flaky)?;
        suite::run_program("demo for aarch64", || self.demo(&program, &library), flaky)
    }

    /// Runs the unit tests, and compares our types of libibverbs with its header as a compiler for aarch64 sees it.
    fn test(&self, flaky: &mut Vec<String>) -> Outcome {
        let packages: Vec<&str> = TESTED.iter().flat_map(|name| ["--package", name]).collect();
        self.run_tests(self.cargo("test", &[&["--no-fail-fast"], packages.as_slice()].concat()), flaky)?;
        self.run_tests(self.cargo("test", &[&["--no-fail-fast"], UNIT_TESTED.as_slice()].concat()), flaky)?;
        let mut layout = self.cargo("test", &["--package", "railweave-fabric-verbs", "--test", "layout"]);
        // zig has only the headers of the C library and the kernel.
        let (zig, glibc) = (self.zig(), binary::GLIBC);
        layout.env("CC", format!("{} cc -target aarch64-linux-gnu.{glibc} -idirafter /usr/include", zig.display()));
        self.run_tests(layout, flaky)
    }

    /// Runs a cargo command that runs tests, each test program under the emulator.
    fn run_tests(&self, command: Command, flaky: &mut Vec<String>) -> Outcome {
        let mut repeated = Vec::new();
        let result = suite::guarded(command, self.emulator.as_deref(), &mut repeated, run_command);
        flaky.extend(repeated.iter().map(|name| format!("{name}, for aarch64")));
        result?
    }

    fn zig(&self) -> PathBuf {
        self.folder.join("ziglang/zig")
    }

    /// Returns a cargo command for aarch64.
    fn cargo(&self, command: &str, arguments: &[&str]) -> Command {
        let mut cargo_zigbuild = Command::new(self.folder.join("bin/cargo-zigbuild"));
        cargo_zigbuild.arg(command).env("CARGO_ZIGBUILD_ZIG_PATH", self.zig()).current_dir(root());
        cargo_zigbuild.args(["--profile", PROFILE, "--target"]).arg(format!("{TRIPLE}.{}", binary::GLIBC));
        cargo_zigbuild.arg("--target-dir").arg(builds()).args(arguments);
        if self.emulator.is_some() {
            cargo_zigbuild.env("QEMU_LD_PREFIX", SYSTEM).env(railweave_patience::FACTOR_VARIABLE, SLOWER);
        }
        cargo_zigbuild
    }

    /// Returns the demo: a process that starts two more, each emulated by itself.
    fn demo(&self, program: &Path, library: &Path) -> Command {
        let mut command = match &self.emulator {
            Some(emulator) => {
                let mut command = Command::new(emulator);
                command.env("QEMU_LD_PREFIX", SYSTEM).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["demo", "--quick", "--stall", STALL_SECONDS, "--lib"]).arg(library).envs(PATIENCE);
        if let Some(emulator) = &self.emulator {
            command.arg("--rank-command").arg(emulator);
        }
        command
    }
}

/// Returns cargo's build directory for aarch64.
fn builds() -> PathBuf {
    target().join("aarch64")
}

/// Checks that the standard library for aarch64 is here, or fetches it.
fn require_target(may_fetch: bool) -> Result<(), String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", TRIPLE]).current_dir(root());
    let output = rustc.output().map_err(|error| format!("cannot run rustc: {error}"))?;
    if Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir() {
        return Ok(());
    }
    let rustup = find("rustup").ok_or_else(|| {
        format!(
            "this Rust has no standard library for {TRIPLE}, and rustup, which could fetch it, is not here; get Rust \
             from rustup.rs"
        )
    })?;
    if !may_fetch {
        return Err(format!(
            "Rust's standard library for {TRIPLE} is not here; get it with: rustup target add {TRIPLE}"
        ));
    }
    let mut add = Command::new(rustup);
    add.args(["target", "add", TRIPLE]).current_dir(root());
    run_command(add)
}

/// Returns the folder with cargo-zigbuild and zig, fetched first if it is missing and `may_fetch`.
fn zigbuild(may_fetch: bool) -> Result<PathBuf, String> {
    let folder = target().join("tools").join(PIP_PACKAGES.join("-").replace("==", "-"));
    if !["bin/cargo-zigbuild", "ziglang/zig"].iter().all(|file| folder.join(file).is_file()) {
        packages::pip(&PIP_PACKAGES, &folder, may_fetch)?;
    }
    Ok(folder)
}

/// Returns the program that emulates aarch64, once it and a glibc for emulated programs are here.
fn emulator(may_install: bool, command: &str) -> Result<PathBuf, String> {
    // Debian 13's static program has the name of Debian 12's dynamic one.
    let here = || ["qemu-aarch64", "qemu-aarch64-static"].iter().find_map(|name| find(name));
    let has_glibc = || Path::new(SYSTEM).join("lib/ld-linux-aarch64.so.1").exists();
    if here().is_none() || !has_glibc() {
        packages::require(packages::AARCH64, may_install, command)?;
    }
    here().ok_or_else(|| format!("the packages {} brought no qemu-aarch64", packages::AARCH64.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_emulated_too() {
        let tools = Tools { folder: "zig".into(), emulator: Some("qemu-aarch64".into()) };
        let demo = tools.demo(Path::new("program"), Path::new("library"));
        let words: Vec<_> = std::iter::once(demo.get_program()).chain(demo.get_args()).collect();
        assert_eq!(words[..2], ["qemu-aarch64", "program"]);
        assert!(words.windows(2).any(|two| two == ["--rank-command", "qemu-aarch64"]), "{words:?}");
        let native = Tools { folder: "zig".into(), emulator: None }.demo(Path::new("program"), Path::new("library"));
        assert!(native.get_program() == "program" && !native.get_args().any(|word| word == "--rank-command"));
    }
}
