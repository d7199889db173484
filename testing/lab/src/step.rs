//! The steps that disturb a run.

use serde::Deserialize;

/// A step during a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// Its time after the start of both ranks in seconds, 0 to 3600.
    pub(crate) after_s: f64,
    kill: Option<usize>,
    loss: Option<Loss>,
    down: Option<CableEnd>,
    up: Option<CableEnd>,
    rate: Option<Rate>,
    restore: Option<usize>,
    shell: Option<Shell>,
}

/// The kinds of step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deed {
    /// Kills the rank in this guest.
    Kill(usize),
    /// Makes a cable lose packets in both directions.
    Loss(Loss),
    /// Takes the port at one end of a cable down.
    Down(CableEnd),
    /// Takes the port up again.
    Up(CableEnd),
    /// Gives a cable another rate, in both directions; what waits in it stays.
    Rate(Rate),
    /// Restores a cable to its original state, with both its ports up.
    Restore(usize),
    /// Runs a command line in a guest; it must succeed.
    Shell(Shell),
}

/// A shell command line in one guest, as a step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shell {
    /// The guest.
    pub(crate) guest: usize,
    /// The command line.
    pub(crate) line: String,
}

/// The loss of packets on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Loss {
    /// The cable.
    pub(crate) cable: usize,
    /// The percentage of packets that are lost, 0 to 100.
    pub(crate) percent: f64,
}

/// The rate of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rate {
    /// The cable, which has a rate.
    pub(crate) cable: usize,
    /// The new rate in Mbit/s, 0.1 to 100000.
    pub(crate) mbit: f64,
}

/// The port of a guest into which a cable is plugged.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CableEnd {
    /// The cable.
    pub(crate) cable: usize,
    /// The guest.
    pub(crate) guest: usize,
}

impl Step {
    /// Returns the step's deed.
    ///
    /// # Errors
    /// If there is not exactly one deed, which `Scenario::parse` refuses.
    pub(crate) fn deed(&self) -> Result<Deed, String> {
        let Self { after_s, kill, loss, down, up, rate, restore, shell } = self.clone();
        let all = [
            kill.map(Deed::Kill),
            loss.map(Deed::Loss),
            down.map(Deed::Down),
            up.map(Deed::Up),
            rate.map(Deed::Rate),
            restore.map(Deed::Restore),
            shell.map(Deed::Shell),
        ];
        let mut given = all.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(deed), None) => Ok(deed),
            _ => {
                let deeds = "kill, loss, down, up, rate, restore and shell";
                Err(format!("the step after {after_s} s must have exactly one of {deeds}"))
            }
        }
    }
}
