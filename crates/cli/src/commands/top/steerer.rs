//! The agent, or the policy file, that takes the orders for a run dir.

use super::hands::{Action, Order, Standing, Steerer};
use crate::orders::{By, InForce, OrderedRule, Orders, Outcome};
use railweave_telemetry::RunDir;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time after which it is looked again for an agent where there was none.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Those who take orders for run dirs.
#[derive(Default)]
pub(super) struct AtRunDirs {
    found: HashMap<PathBuf, Found>,
}

struct Found {
    orders: Orders,
    /// The beginning of a line.
    who: String,
    at: Instant,
}

impl AtRunDirs {
    /// Returns the one who takes orders for a run dir.
    fn find(&mut self, run_dir: &Path) -> Result<&mut Found, String> {
        let is_good = |found: &Found| found.orders.has_agent() || found.at.elapsed() < LOOK_AGAIN;
        if !self.found.get(run_dir).is_some_and(is_good) {
            let orders = Orders::find(&RunDir::named(Some(run_dir)))?;
            let who = match (orders.by(), orders.version()) {
                (By::Agent { .. }, Some(version)) => format!("agent {version}"),
                (By::Agent { .. }, None) => "agent".to_owned(),
                (By::File { .. }, _) => "no agent".to_owned(),
            };
            self.found.insert(run_dir.to_owned(), Found { orders, who, at: Instant::now() });
        }
        self.found.get_mut(run_dir).ok_or_else(|| "nobody takes orders".to_owned())
    }

    /// Returns an answer; after an error, somebody else may take the next order.
    fn answer<T>(&mut self, run_dir: &Path, give: impl FnOnce(&mut Found) -> Result<T, String>) -> Result<T, String> {
        let answer = self.find(run_dir).and_then(give);
        if answer.is_err() {
            self.found.remove(run_dir);
        }
        answer
    }
}

impl Steerer for AtRunDirs {
    fn order(&mut self, order: &Order) -> Result<String, String> {
        self.answer(&order.run_dir, |found| {
            let mut outcomes = Vec::new();
            match &order.action {
                Action::Drain(port) => outcomes.push(found.orders.drain(port, false)?),
                Action::GiveBack(port) => outcomes.push(found.orders.give_back(port, false)?),
                Action::Clear(matchers) => outcomes.push(found.orders.clear(matchers, false)?),
                Action::Set(matchers, actions) => {
                    let rule = OrderedRule { matchers: matchers.clone(), actions: actions.clone() };
                    found.orders.set(&[rule], false, |outcome| outcomes.push(outcome))?;
                }
            }
            let by = match found.orders.by() {
                By::Agent { .. } => "by the agent".to_owned(),
                By::File { path } => format!("in \"{}\", until it is taken back", path.display()),
            };
            let texts = outcomes.into_iter().map(|Outcome { order, is_changed, notes, .. }| {
                let done = if is_changed { format!("{order}: ordered {by}") } else { format!("{order}: unchanged") };
                std::iter::once(done).chain(notes).collect::<Vec<_>>().join("; ")
            });
            Ok(texts.collect::<Vec<_>>().join("; "))
        })
    }

    fn standing(&mut self, run_dir: &Path) -> Result<Standing, String> {
        self.answer(run_dir, |found| {
            let InForce { drains, rules } = found.orders.standing()?;
            let phase = |phase: Option<String>| phase.unwrap_or_default().replace('_', " ");
            Ok(Standing {
                who: found.who.clone(),
                drained: drains.into_iter().map(|drained| (drained.port, phase(drained.phase))).collect(),
                rules: rules.into_iter().map(|rule| (rule.matchers, rule.actions)).collect(),
            })
        })
    }
}
