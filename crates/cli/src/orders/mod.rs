//! Orders of an operator for a run dir: to the agent that steers it, or otherwise in its policy file.
//!
//! Nothing here prints. Sentences that come from elsewhere are fit for a terminal; other texts are as they came.

mod agent;
mod client;
mod direct;
pub(crate) mod effect;
mod empty;
pub(crate) mod files;
mod found;
mod outcome;
mod sentences;

pub(crate) use self::client::Failure;
pub(crate) use self::empty::{PortWatch, Use};
pub(crate) use self::found::{Found, State};
pub(crate) use self::outcome::{By, Drained, InForce, Order, OrderedRule, Outcome, Trouble, note_freed};

use self::agent::{Agent, Say};
use self::client::Client;
use self::direct::Direct;
use crate::environment;
use crate::output::printable;
use railweave_telemetry::{Folder, RunDir};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Looks at a lock, and the pause between two: an agent that does not steer may have it for a moment.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// The advice if an agent steers that takes no orders here.
const ELSEWHERE: &str = "try `railweave policy` as root or as the user of that agent, or its API with the token";

/// The one who takes orders for a run dir.
#[derive(Debug)]
pub(crate) struct Orders {
    run_dir: RunDir,
    taker: Taker,
    /// The reason why the agent could not write the policy file the last time: a sentence.
    failure: Option<String>,
}

#[derive(Debug)]
enum Taker {
    Agent(Agent),
    File(Direct),
    /// An agent that cannot be asked, for this reason: a sentence. Its policy file says what is ordered.
    Elsewhere(Direct, String),
}

impl Orders {
    /// Finds the one who takes orders for a run dir: an agent that steers it and listens there or in this user's own
    /// run dir, and otherwise its policy file.
    ///
    /// # Errors
    /// If an agent steers it that cannot be asked, or the folder cannot be used: a sentence.
    pub(crate) fn find(run_dir: &RunDir) -> Result<Self, String> {
        let orders = Self::seek(run_dir, |folder| {
            // Without the file, nobody has the lock, and none is made.
            Ok(folder.path().join("agent.lock").exists() && direct::lock(folder)?.is_none())
        })?;
        match orders.taker {
            Taker::Elsewhere(_, reason) => Err(reason),
            taker => Ok(Self { taker, ..orders }),
        }
    }

    /// Finds the one who takes orders, to look at those that stand: agents are not kept from steering meanwhile, as
    /// [`Self::find`] does for a moment. If an agent steers that cannot be asked, orders fail, and [`Self::standing`]
    /// has those of its policy file.
    ///
    /// # Errors
    /// If the folder cannot be used: a sentence.
    pub(crate) fn look(run_dir: &RunDir) -> Result<Self, String> {
        Self::seek(run_dir, |folder| {
            for _ in 0..LOOKS {
                match folder.is_locked() {
                    Ok(true) => thread::sleep(PAUSE),
                    Ok(false) => return Ok(false),
                    // There are no such lists here.
                    Err(_) => return Ok(folder.path().join("agent.lock").exists() && direct::lock(folder)?.is_none()),
                }
            }
            Ok(true)
        })
    }

    /// Finds the one who takes orders. `is_taken` says if an agent has the right to steer a folder.
    fn seek(run_dir: &RunDir, is_taken: impl FnOnce(&Folder) -> Result<bool, String>) -> Result<Self, String> {
        // The agent's run dirs are absolute.
        let path = std::path::absolute(run_dir.path())
            .map_err(|error| format!("\"{}\": {error}; try an absolute path", run_dir.path().display()))?;
        let run_dir = RunDir::named(Some(&path));
        let folder = match Folder::open(&path) {
            Ok(folder) => folder,
            Err(error) if error.is_missing() => return Ok(Self::direct(run_dir)),
            Err(error) => return Err(printable(&error.to_string())),
        };
        let reason = match find_agent(&folder) {
            Ok((agent, failure)) => return Ok(Self { run_dir, taker: Taker::Agent(agent), failure }),
            Err(reason) => reason,
        };
        if !is_taken(&folder)? {
            return Ok(Self::direct(run_dir));
        }
        let reason = reason.unwrap_or_else(|| {
            let shown = printable(&path.display().to_string());
            format!("an agent steers \"{shown}\", and does not listen where this user can reach it; {ELSEWHERE}")
        });
        let direct = Direct::new(run_dir.clone());
        Ok(Self { run_dir, taker: Taker::Elsewhere(direct, reason), failure: None })
    }

    fn direct(run_dir: RunDir) -> Self {
        Self { run_dir: run_dir.clone(), taker: Taker::File(Direct::new(run_dir)), failure: None }
    }

    /// Returns the run dir.
    pub(crate) fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// Returns the one who carries out orders.
    pub(crate) fn by(&self) -> By {
        match &self.taker {
            Taker::Agent(agent) => agent.by(),
            Taker::File(direct) | Taker::Elsewhere(direct, _) => direct.by(),
        }
    }

    /// Returns the reason why orders fail, a sentence: an agent steers that cannot be asked.
    pub(crate) fn trouble(&self) -> Option<&str> {
        match &self.taker {
            Taker::Elsewhere(_, reason) => Some(reason),
            Taker::Agent(_) | Taker::File(_) => None,
        }
    }

    /// Returns the reason why orders are taken and not carried out, a sentence: the agent could not write the policy
    /// file the last time.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns true if an agent carries out orders.
    pub(crate) fn has_agent(&self) -> bool {
        matches!(self.taker, Taker::Agent(_))
    }

    /// Returns the version of the agent; `None` if there is none, or it does not say.
    pub(crate) fn version(&self) -> Option<String> {
        match &self.taker {
            Taker::Agent(agent) => agent.version().ok(),
            Taker::File(_) | Taker::Elsewhere(..) => None,
        }
    }

    /// Returns the folder with the history of the orders.
    pub(crate) fn history_folder(&self) -> PathBuf {
        let path = match self.by() {
            By::Agent { socket: path } | By::File { path } => path,
        };
        path.parent().map_or_else(|| self.run_dir.path().to_owned(), Path::to_owned)
    }

    /// Has the policy file hold for this time only.
    ///
    /// # Errors
    /// If an agent takes the orders, which hold until they are cleared: a sentence.
    pub(crate) fn set_ttl(&mut self, ttl: Duration) -> Result<(), String> {
        match &mut self.taker {
            Taker::File(direct) => {
                direct.set_ttl(ttl);
                Ok(())
            }
            Taker::Elsewhere(_, reason) => Err(reason.clone()),
            Taker::Agent(agent) => Err(format!(
                "{} keeps orders until they are cleared; allowed: a time only without an agent; try `railweave policy \
                 clear` when it is over",
                agent.by()
            )),
        }
    }

    /// Returns the orders that stand.
    ///
    /// # Errors
    /// If they cannot be read: a sentence.
    pub(crate) fn standing(&self) -> Result<InForce, String> {
        match &self.taker {
            Taker::Agent(agent) => Ok(agent.standing()?),
            Taker::File(direct) | Taker::Elsewhere(direct, _) => direct.standing(),
        }
    }

    /// Returns the drained ports of an agent, also those for which the names of others stand; `None` without one.
    ///
    /// # Errors
    /// If they cannot be read: a sentence.
    pub(crate) fn drains(&self) -> Result<Option<Vec<Drained>>, String> {
        match &self.taker {
            Taker::Agent(agent) => Ok(Some(agent.drains()?)),
            Taker::File(_) | Taker::Elsewhere(..) => Ok(None),
        }
    }

    /// Empties a port. With `dry_run`, only says what that would do: without an agent, after what it was asked before.
    ///
    /// # Errors
    /// If the order is wrong or cannot be carried out: a sentence.
    pub(crate) fn drain(&mut self, port: &str, dry_run: bool) -> Result<Outcome, String> {
        match &mut self.taker {
            Taker::Agent(agent) => Ok(agent.drain(port, dry_run)?),
            Taker::File(direct) => direct.drain(port, dry_run),
            Taker::Elsewhere(_, reason) => Err(reason.clone()),
        }
    }

    /// Gives a port back that an operator has drained.
    ///
    /// # Errors
    /// If that cannot be done: a sentence.
    pub(crate) fn give_back(&mut self, port: &str, dry_run: bool) -> Result<Outcome, String> {
        match &mut self.taker {
            Taker::Agent(agent) => Ok(agent.give_back(port, dry_run)?),
            Taker::File(direct) => direct.give_back(port, dry_run),
            Taker::Elsewhere(_, reason) => Err(reason.clone()),
        }
    }

    /// Sets rules: they come first in this order, each in the place of one with the same matchers. Without an agent,
    /// all or none are set. Calls `done` with each outcome, so that those before an error are known.
    ///
    /// # Errors
    /// If one is wrong or cannot be set: a sentence.
    pub(crate) fn set(
        &mut self,
        rules: &[OrderedRule],
        dry_run: bool,
        done: impl FnMut(Outcome),
    ) -> Result<(), String> {
        match &mut self.taker {
            // Each comes before those that are there.
            Taker::Agent(agent) => agent.set(rules, dry_run, done),
            Taker::Elsewhere(_, reason) => Err(reason.clone()),
            Taker::File(direct) => {
                direct.set(rules, dry_run)?.into_iter().for_each(done);
                Ok(())
            }
        }
    }

    /// Clears the rule with these matchers.
    ///
    /// # Errors
    /// If that cannot be done: a sentence.
    pub(crate) fn clear(&mut self, matchers: &str, dry_run: bool) -> Result<Outcome, String> {
        match &mut self.taker {
            Taker::Agent(agent) => Ok(agent.clear(matchers, dry_run)?),
            Taker::File(direct) => direct.clear(matchers, dry_run),
            Taker::Elsewhere(_, reason) => Err(reason.clone()),
        }
    }

    /// Takes back all orders of operators; without an agent, all at once. Calls `done` with each outcome, so that those
    /// before an error are known.
    ///
    /// # Errors
    /// If that cannot be done: a sentence.
    pub(crate) fn clear_all(&mut self, dry_run: bool, done: impl FnMut(Outcome)) -> Result<(), String> {
        match &mut self.taker {
            Taker::Agent(agent) => agent.clear_all(dry_run, done),
            Taker::Elsewhere(_, reason) => Err(reason.clone()),
            Taker::File(direct) => {
                direct.clear_all(dry_run)?.into_iter().for_each(done);
                Ok(())
            }
        }
    }
}

/// Returns the agent that takes orders for a folder.
///
/// # Errors
/// If there is none: the reason why one that listens does not, a sentence.
fn find_agent(folder: &Folder) -> Result<(Agent, Option<String>), Option<String>> {
    // Where this user's agent may have its socket.
    let own = [environment::run_dir_quietly(), Some(RunDir::named(None))];
    let mut folders: Vec<PathBuf> = own.into_iter().flatten().map(|own| own.path().to_owned()).collect();
    folders.dedup();
    folders.retain(|own| own != folder.path());
    let own = folders.iter().filter_map(|own| Folder::open(own).ok());
    let user = rustix::process::geteuid().as_raw();
    let own = own.filter(|own| own.owner() == user);
    let mut clients: Vec<Client> = std::iter::once(Client::of(folder)).chain(own.map(|own| Client::of(&own))).collect();
    // In a folder of another user, anybody may say to be an agent, so one of this user, root, comes first.
    if folder.owner() != rustix::process::geteuid().as_raw() {
        clients.reverse();
    }
    let shown = folder.path().display().to_string();
    let mut reason = None;
    for client in clients {
        let agent = Agent::new(client, folder);
        match agent.say() {
            Ok(Say::Steers) => return Ok((agent, None)),
            Ok(Say::Fails(reason)) => return Ok((agent, Some(printable(&reason)))),
            Ok(Say::Watches(why)) => {
                let advice = if why.contains("; try ") { String::new() } else { format!("; {ELSEWHERE}") };
                reason = Some(format!("{} carries out no orders in \"{shown}\": {why}{advice}", agent.by()));
            }
            Ok(Say::Unknown) | Err(Failure::Nobody(_)) => {}
            Err(failure) => {
                let why = || format!("an agent steers \"{shown}\", and cannot be asked: {failure}; {ELSEWHERE}");
                reason = reason.or_else(|| Some(why()));
            }
        }
    }
    Err(reason.map(|reason| printable(&reason)))
}
