//! The lab (docs/lab.md): gets what the scenarios need, and starts the program that plays them (testing/lab).

use crate::dist::{Dist, dist};
use crate::flaky::FlakyFile;
use crate::process::{Outcome, become_program, program, root, status, target};
use crate::{nccl, packages};
use clap::Args;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// The arguments of the chore.
#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    /// Play only scenarios with these names
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Play only the scenarios of the ordinary test run
    #[arg(long)]
    short: bool,
    /// List the scenarios and play none
    #[arg(long)]
    list: bool,
    /// Print results as JSON on standard output, everything else on standard error
    #[arg(long)]
    json: bool,
    /// As root: first install missing Debian packages
    #[arg(long)]
    install: bool,
}

/// Becomes the lab.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let lab = Lab::build(arguments)?;
    if arguments.list {
        return become_program(lab.command("list"));
    }
    let Some(needs) = lab.needs()? else { return Ok(ExitCode::FAILURE) };
    require(arguments.install || packages::is_continuous_integration(), "lab")?;
    let mut play = lab.play(&needs, dist)?;
    if arguments.json {
        play.arg("--json");
    }
    become_program(play)
}

/// Plays the scenarios of the ordinary test run with the release build `built`. Those that passed only when repeated
/// are added to `flaky`.
pub(crate) fn run_short(built: &Dist, flaky: &mut Vec<String>) -> Outcome {
    let arguments = Arguments { short: true, ..Arguments::default() };
    let lab = Lab::build(&arguments)?;
    let needs = lab.needs()?.ok_or("the lab does not start, see above")?;
    let mut play = lab.play(&needs, || Ok(built.clone()))?;
    let file = FlakyFile::new();
    play.arg("--flaky").arg(file.path());
    let ended = status(play)?;
    flaky.extend(file.read().iter().map(|name| format!("lab: {name}")));
    if ended.success() { Ok(()) } else { Err("a scenario failed, see above".to_owned()) }
}

/// Makes sure that the lab can run here, or returns a sentence that says why not. `command` is the chore that needs it
/// and takes --install.
pub(crate) fn require(may_install: bool, command: &str) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        let arch = std::env::consts::ARCH;
        return Err(format!(
            "the lab emulates x86_64 and shares its programs with this machine, which is {arch}; use an x86_64 machine"
        ));
    }
    packages::require(packages::LAB, may_install, command)
}

/// The lab, built, for some scenarios.
struct Lab<'a> {
    program: PathBuf,
    chosen: &'a Arguments,
}

impl<'a> Lab<'a> {
    fn build(chosen: &'a Arguments) -> Result<Self, String> {
        Ok(Self { program: program("railweave-lab")?, chosen })
    }

    /// Returns one of the program's commands, for these scenarios.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name).arg("--root").arg(root()).args(self.chosen.short.then_some("--short"));
        command.args(&self.chosen.names);
        command
    }

    /// Returns the command that plays, with the options that `needs` names; `dist` makes the release build if
    /// `railweave` is one of them.
    fn play(&self, needs: &str, dist: impl FnOnce() -> Result<Dist, String>) -> Result<Command, String> {
        let mut play = self.command("play");
        play.arg("--target").arg(target());
        if needs.lines().any(|need| need == "railweave") {
            play.arg("--railweave").arg(dist()?.program);
        }
        if needs.lines().any(|need| need == "nccl") {
            match nccl::library() {
                Ok(library) => {
                    play.arg("--nccl").arg(library);
                }
                // Other scenarios can be played without it.
                Err(error) => eprintln!("{error}"),
            }
        }
        Ok(play)
    }

    /// Returns the names of the options that playing needs, a line each; `None` if the program refused the scenarios
    /// and printed the reason.
    fn needs(&self) -> Result<Option<String>, String> {
        let output = self.command("needs").stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("cannot run {}: {error}", self.program.display()))?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}
