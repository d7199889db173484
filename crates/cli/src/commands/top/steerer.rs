//! The agent, or the policy file, that takes the orders for a run dir.

use super::hands::{Action, Drained, Order, Standing, Steerer};
use crate::orders::{By, InForce, OrderedRule, Orders, Outcome, note_freed};
use railweave_telemetry::RunDir;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time after which it is looked again who takes orders: an agent may begin, end, or lose the folder.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The time after which somebody who gave no good answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The time after which a folder that cannot be used is looked at again.
const OPEN_AGAIN: Duration = Duration::from_secs(2);

/// The time for which an agent counts as that of the same version.
const SAME_VERSION: Duration = Duration::from_secs(60);

/// Those who take orders for run dirs.
#[derive(Default)]
pub(super) struct AtRunDirs {
    found: HashMap<PathBuf, Found>,
    /// The errors of the last attempts, and the times until which they stand.
    failed: HashMap<PathBuf, (String, Instant)>,
    /// The versions of agents by their sockets, if they say it, and the times at which they were asked: the answer is
    /// large.
    versions: HashMap<PathBuf, (Option<String>, Instant)>,
}

impl AtRunDirs {
    /// Returns the beginning of the line about the one who takes orders.
    fn who(&mut self, orders: &Orders) -> String {
        let socket = match orders.by() {
            _ if orders.trouble().is_some() => return "another user's agent".to_owned(),
            By::File { .. } => return "no agent".to_owned(),
            By::Agent { socket } => socket,
        };
        let is_known = |(version, at): &&(Option<String>, Instant)| {
            at.elapsed() < if version.is_some() { SAME_VERSION } else { ASK_AGAIN }
        };
        let version = match self.versions.get(&socket).filter(is_known) {
            Some((version, _)) => version.clone(),
            None => {
                let version = orders.version();
                self.versions.insert(socket, (version.clone(), Instant::now()));
                version
            }
        };
        let version = version.map_or(String::new(), |version| format!(" {version}"));
        let failure = if orders.failure().is_some() { " cannot write its policy file" } else { "" };
        format!("agent{version}{failure}")
    }
}

struct Found {
    orders: Orders,
    /// The beginning of a line.
    who: String,
    at: Instant,
}

impl Found {
    fn new(orders: Orders, who: String) -> Self {
        Self { orders, who, at: Instant::now() }
    }

    fn standing(&self) -> Result<Standing, String> {
        let InForce { drains, rules } = self.orders.standing()?;
        let phase = |phase: Option<String>| phase.unwrap_or_default().replace('_', " ");
        let drained = drains.into_iter().take(MOST_DRAINED);
        // Without an agent, sick ports can be given back too.
        let is_file = !self.orders.has_agent() && self.orders.trouble().is_none();
        let drained = drained.map(|it| Drained::new(&it.port, phase(it.phase), &it.reasons, is_file));
        let rules = rules.into_iter().map(|rule| (rule.matchers, rule.actions));
        Ok(Standing { who: self.who.clone(), drained: drained.collect(), rules: rules.collect() })
    }
}

/// The most drained ports that are taken in.
const MOST_DRAINED: usize = 256;

impl Steerer for AtRunDirs {
    fn order(&mut self, order: &Order) -> Result<String, String> {
        // Whoever took the last one may be gone.
        let mut orders = Orders::find(&RunDir::named(Some(&order.run_dir)))?;
        self.found.remove(&order.run_dir);
        self.failed.remove(&order.run_dir);
        let mut outcomes = Vec::new();
        match &order.action {
            Action::Drain(port) => outcomes.push(orders.drain(port, false)?),
            Action::GiveBack(port) => outcomes.push(orders.give_back(port, false)?),
            Action::Clear(matchers) => outcomes.push(orders.clear(matchers, false)?),
            Action::Set(matchers, actions) => {
                let rule = OrderedRule { matchers: matchers.clone(), actions: actions.clone() };
                orders.set(&[rule], false, |outcome| outcomes.push(outcome))?;
            }
        }
        note_freed(&mut outcomes);
        let gives = matches!(order.action, Action::Drain(_) | Action::Set(..));
        let by = match orders.by() {
            By::Agent { .. } => "ordered by the agent".to_owned(),
            By::File { path } if gives => format!("ordered in \"{}\", until it is taken back", path.display()),
            By::File { path } => format!("taken out of \"{}\"", path.display()),
        };
        if let Some(trouble) = outcomes.iter().find_map(|outcome| outcome.trouble.clone()) {
            return Err(trouble.into());
        }
        let texts = outcomes.into_iter().map(|Outcome { order, is_changed, notes, .. }| {
            let done = if is_changed { format!("{order}: {by}") } else { format!("{order}: unchanged") };
            std::iter::once(done).chain(notes).collect::<Vec<_>>().join("; ")
        });
        Ok(texts.collect::<Vec<_>>().join("; "))
    }

    fn standing(&mut self, run_dir: &Path) -> Result<Standing, String> {
        if let Some((error, _)) = self.failed.get(run_dir).filter(|(_, until)| Instant::now() < *until) {
            return Err(error.clone());
        }
        let mut longest = ASK_AGAIN;
        let standing = match self.found.get(run_dir).filter(|found| found.at.elapsed() < LOOK_AGAIN) {
            Some(found) => found.standing(),
            None => match Orders::look(&RunDir::named(Some(run_dir))) {
                Ok(orders) => {
                    let who = self.who(&orders);
                    let found = Found::new(orders, who);
                    let standing = found.standing();
                    self.found.insert(run_dir.to_owned(), found);
                    standing
                }
                Err(error) => {
                    longest = OPEN_AGAIN;
                    Err(error)
                }
            },
        };
        if let Err(error) = &standing {
            self.found.remove(run_dir);
            self.failed.insert(run_dir.to_owned(), (error.clone(), Instant::now() + longest));
        } else {
            self.failed.remove(run_dir);
        }
        standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_is_right_again_is_looked_at_soon() {
        let scratch = Scratch::new("steerer");
        let run_dir = scratch.path().join("run");
        RunDir::named(Some(&run_dir)).make().unwrap();
        let set_mode = |mode| fs::set_permissions(&run_dir, fs::Permissions::from_mode(mode)).unwrap();
        let mut steerer = AtRunDirs::default();
        set_mode(0o777);
        assert!(steerer.standing(&run_dir).unwrap_err().contains("may be written by others"));
        set_mode(0o700);
        assert!(steerer.standing(&run_dir).is_err(), "not at once");
        steerer.failed.values_mut().for_each(|(_, until)| *until -= OPEN_AGAIN);
        assert_eq!(steerer.standing(&run_dir).unwrap().who, "no agent");
        assert!(steerer.failed.is_empty());
    }
}
