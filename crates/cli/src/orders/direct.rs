//! Orders without an agent: in the policy file itself.

use super::effect::stands_for;
use super::found::Found;
use super::outcome::{By, Drained, InForce, Order, OrderedRule, Outcome, Preview};
use super::sentences::{drained_before, no_drain, no_rule, set_before};
use crate::environment;
use railweave_agent::Standing;
use railweave_telemetry::{Folder, HistoryEntry, Lock, RunDir};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Attempts to lock a folder, and the pause between two: another `railweave policy` has the lock for a moment.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// The policy file of a run dir that no agent steers.
#[derive(Debug)]
pub(super) struct Direct {
    run_dir: RunDir,
    /// The time for which the file holds; `None` if until it is removed.
    ttl: Option<Duration>,
    /// The state after the orders that were only asked about.
    trial: Option<Trial>,
}

/// The state after orders that were only asked about.
#[derive(Debug)]
struct Trial {
    standing: Standing,
    /// True if they hold until they are cleared.
    holds: bool,
}

/// The longest time for which a file may hold, in seconds.
const LONGEST_TTL_S: u64 = 86_400;

/// Takes the right to steer a run dir for a moment. Returns `None` if an agent has it.
///
/// # Errors
/// If the lock cannot be used: a sentence.
pub(super) fn lock(folder: &Folder) -> Result<Option<Lock>, String> {
    let path = folder.path().join("agent.lock");
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        if let Some(lock) = folder.lock().map_err(|error| format!("\"{}\" {error}", path.display()))? {
            return Ok(Some(lock));
        }
    }
    Ok(None)
}

/// A change of the orders that stand. Returns false if they are as they were.
type Apply<'a> = Box<dyn Fn(&mut Standing) -> Result<bool, String> + 'a>;

/// An order and its effect on those that stand.
struct Change<'a> {
    order: Order,
    apply: Apply<'a>,
    /// The sentence if the orders are as they were.
    same: String,
    /// True if orders come, and do not go: then the file has to hold for the time that was asked for.
    is_new: bool,
}

fn giving_back(port: &str) -> Change<'_> {
    Change {
        order: Order::GiveBack { port: port.to_owned() },
        apply: Box::new(|standing| Ok(standing.give_back(port))),
        same: no_drain(port),
        is_new: false,
    }
}

fn clearing(matchers: &str) -> Change<'_> {
    Change {
        order: Order::Clear { matchers: matchers.to_owned() },
        apply: Box::new(|standing| Ok(standing.clear(matchers))),
        same: no_rule(matchers),
        is_new: false,
    }
}

impl Direct {
    pub(super) fn new(run_dir: RunDir) -> Self {
        Self { run_dir, ttl: None, trial: None }
    }

    pub(super) fn by(&self) -> By {
        By::File { path: self.run_dir.policy_file() }
    }

    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = Some(ttl);
    }

    pub(super) fn standing(&self) -> Result<InForce, String> {
        let (standing, _) = Self::before(self.found()?.as_ref())?;
        let drains = standing.drained().map(|port| (port, "operator"));
        let drains = drains.chain(standing.sick().map(|(port, _)| (port, "sick")));
        let mut all: Vec<Drained> = Vec::new();
        for (port, reason) in drains {
            match all.iter_mut().find(|drained| drained.port == port) {
                Some(drained) => drained.reasons.push(reason.to_owned()),
                None => all.push(Drained { port: port.to_owned(), reasons: vec![reason.to_owned()], phase: None }),
            }
        }
        let rules = standing.rules();
        let rules =
            rules.map(|rule| OrderedRule { matchers: rule.matchers.clone(), actions: rule.actions.clone() }).collect();
        Ok(InForce { drains: all, rules })
    }

    pub(super) fn drain(&mut self, port: &str, is_trial: bool) -> Result<Outcome, String> {
        let change = Change {
            order: Order::Drain { port: port.to_owned() },
            apply: Box::new(|standing| standing.drain(port)),
            same: drained_before(port),
            is_new: true,
        };
        self.one(change, is_trial)
    }

    pub(super) fn give_back(&mut self, port: &str, is_trial: bool) -> Result<Outcome, String> {
        self.one(giving_back(port), is_trial)
    }

    /// Sets all rules at once, the last first.
    pub(super) fn set(&mut self, rules: &[OrderedRule], is_trial: bool) -> Result<Vec<Outcome>, String> {
        let changes = rules.iter().rev().map(|OrderedRule { matchers, actions }| Change {
            order: Order::Set { matchers: matchers.clone(), actions: actions.clone() },
            apply: Box::new(move |standing| standing.set(&format!("{matchers} -> {actions}"))),
            same: set_before(matchers, actions),
            is_new: true,
        });
        self.change(&changes.collect::<Vec<_>>(), is_trial)
    }

    pub(super) fn clear(&mut self, matchers: &str, is_trial: bool) -> Result<Outcome, String> {
        self.one(clearing(matchers), is_trial)
    }

    /// Takes back all orders at once, also drains of sick ports: nobody sees that they are well.
    pub(super) fn clear_all(&mut self, is_trial: bool) -> Result<Vec<Outcome>, String> {
        let InForce { drains, rules } = self.standing()?;
        let drains = drains.iter().map(|drained| giving_back(&drained.port));
        let changes: Vec<_> = drains.chain(rules.iter().map(|rule| clearing(&rule.matchers))).collect();
        if changes.is_empty() { Ok(Vec::new()) } else { self.change(&changes, is_trial) }
    }

    /// Refuses to make a missing folder that is not this user's own: one that root made in the place of another user's
    /// would keep that user's jobs from telemetry.
    fn check_own(&self) -> Result<(), String> {
        let path = self.run_dir.path();
        if !rustix::process::geteuid().is_root() || path == RunDir::named(None).path() {
            return Ok(());
        }
        let own = environment::run_dir_quietly().and_then(|own| std::path::absolute(own.path()).ok());
        if own.is_some_and(|own| own == path) {
            return Ok(());
        }
        let shown = path.display();
        Err(format!("\"{shown}\" is missing; allowed: the folder of a job; try once a job runs, or as its user"))
    }

    /// Returns the policy file that is there; `None` if there is none.
    fn found(&self) -> Result<Option<Found>, String> {
        match Folder::open(self.run_dir.path()) {
            Ok(folder) => Found::read(&folder, now()),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn one(&mut self, change: Change, is_trial: bool) -> Result<Outcome, String> {
        let mut outcomes = self.change(&[change], is_trial)?;
        outcomes.pop().ok_or_else(|| "nothing was ordered; this is a bug of railweave".to_owned())
    }

    /// Carries out changes as one, or only says what they would do.
    fn change(&mut self, changes: &[Change], is_trial: bool) -> Result<Vec<Outcome>, String> {
        if is_trial {
            if Folder::open(self.run_dir.path()).is_err_and(|error| error.is_missing()) {
                self.check_own()?;
            }
            return self.judge(changes);
        }
        let path = self.run_dir.path();
        let folder = match Folder::open(path) {
            Err(error) if error.is_missing() => {
                self.check_own()?;
                self.run_dir.make().map_err(|error| error.to_string())?;
                Folder::open(path)
            }
            folder => folder,
        };
        let folder = folder.map_err(|error| error.to_string())?;
        let Some(lock) = lock(&folder)? else {
            let shown = path.display();
            return Err(format!("an agent steers \"{shown}\" since a moment ago; allowed: orders to it; try again"));
        };
        let outcomes = self.write(&folder, changes);
        // An agent may take it from now on.
        drop(lock);
        outcomes
    }

    /// Returns the orders that stand in a file, and a sentence if they are those of an agent that is gone.
    fn before(found: Option<&Found>) -> Result<(Standing, Option<String>), String> {
        let Some(found) = found else { return Ok((Standing::default(), None)) };
        let mut standing = found.standing()?;
        // Those of a file that has ended are in use again; others until an order changes the file.
        if !found.is_in_force() {
            standing.forget_sick();
        }
        let note =
            "the file is that of an agent that is gone: its operator's orders stay, and those of its policies end";
        Ok((standing, found.by_agent().then(|| note.to_owned())))
    }

    fn judge(&mut self, changes: &[Change]) -> Result<Vec<Outcome>, String> {
        let found = self.found()?;
        let mut notes = Vec::new();
        let (mut standing, mut before, holds) = match self.trial.take() {
            Some(Trial { standing, holds }) => (standing.clone(), standing.orders(), holds),
            None => {
                let (standing, note) = Self::before(found.as_ref())?;
                notes.extend(note);
                // Jobs follow the file that is there, whoever wrote it.
                let before = found.as_ref().filter(|found| found.is_in_force()).map(Found::lines);
                (standing, before.unwrap_or_default(), found.as_ref().is_some_and(holds))
            }
        };
        let first = before.clone();
        let (mut outcomes, has_changed) = apply(changes, &mut standing, |change, is_changed, standing| {
            let after = if is_changed || change.is_new { kept(standing).orders() } else { before.clone() };
            Some(Preview { before: std::mem::replace(&mut before, after.clone()), after })
        })?;
        if !has_changed {
            outcomes.iter_mut().for_each(|outcome| {
                outcome.preview = Some(Preview { before: first.clone(), after: before.clone() });
            });
        }
        let is_new = changes.iter().any(|change| change.is_new);
        let is_moved = is_new && (self.ttl.is_some() || !holds);
        settle(&mut outcomes, changes, is_moved);
        let is_written = has_changed || is_moved;
        if is_written && kept(&standing).is_empty() {
            notes.clear();
        }
        if is_moved {
            notes.extend(end(found.as_ref(), self.ttl_s()));
        }
        if let Some(last) = outcomes.last_mut() {
            last.notes.extend(notes);
        }
        free(&standing, is_written, &mut outcomes);
        let standing = if is_written { kept(&standing) } else { standing };
        self.trial = Some(Trial { standing, holds: if is_new { self.ttl.is_none() } else { holds } });
        Ok(outcomes)
    }

    fn ttl_s(&self) -> Option<u64> {
        self.ttl.map(|ttl| ttl.as_secs().clamp(1, LONGEST_TTL_S))
    }

    fn write(&mut self, folder: &Folder, changes: &[Change]) -> Result<Vec<Outcome>, String> {
        let shown = folder.path().join("policy");
        let found = Found::read(folder, now())?;
        let (mut standing, note) = Self::before(found.as_ref())?;
        let (mut outcomes, has_changed) = apply(changes, &mut standing, |_, _, _| None)?;
        let is_new = changes.iter().any(|change| change.is_new);
        let is_moved = is_new && (self.ttl.is_some() || !found.as_ref().is_some_and(holds));
        settle(&mut outcomes, changes, is_moved);
        if !has_changed && !is_moved {
            return Ok(outcomes);
        }
        let failed = |error| format!("\"{}\" {error}; the orders are as they were", shown.display());
        free(&standing, true, &mut outcomes);
        let standing = kept(&standing);
        let mut notes: Vec<String> = note.filter(|_| !standing.is_empty()).into_iter().collect();
        if standing.is_empty() {
            folder.remove_policy().map_err(failed)?;
        } else {
            // Orders that go do not change the time for which the others hold.
            let ttl_s = if is_new { self.ttl_s() } else { remaining(found.as_ref()) };
            folder.put_policy(&standing.file(&who(), now(), ttl_s)).map_err(failed)?;
            notes.extend(end(found.as_ref(), ttl_s).filter(|_| is_new));
        }
        let user = rustix::process::geteuid().as_raw();
        let who = format!("railweave policy, user {user}, process {}", std::process::id());
        for outcome in outcomes.iter().filter(|outcome| outcome.is_changed || is_new) {
            let entry = HistoryEntry { at: now(), who: who.clone(), order: outcome.order.to_string() };
            if let Err(error) = folder.append_history(&entry) {
                notes.push(format!("the order is carried out, but the file \"history\" {error}"));
                break;
            }
        }
        if let Some(last) = outcomes.last_mut() {
            last.notes.extend(notes);
        }
        Ok(outcomes)
    }
}

/// Says which sick ports are in use again once the file `is_written`, because no order keeps them drained.
fn free(standing: &Standing, is_written: bool, outcomes: &mut [Outcome]) {
    if let (true, Some(last)) = (is_written, outcomes.last_mut()) {
        let sick = standing.sick().map(|(port, _)| port);
        let is_free = |port: &&str| !standing.drained().any(|drained| stands_for(drained, port));
        last.freed = sick.filter(is_free).map(str::to_owned).collect();
    }
}

/// Returns the orders that a file keeps once it is written again: without an agent, nobody sees when sick ports are
/// well.
fn kept(standing: &Standing) -> Standing {
    let mut kept = standing.clone();
    kept.forget_sick();
    kept
}

/// Returns true if a file holds until it is cleared.
fn holds(found: &Found) -> bool {
    found.is_in_force() && found.ttl_s.is_none()
}

/// Applies changes, and returns their outcomes without notes, and true if anything is another way than before: several
/// rules may come in the order that they have already. `look` has the preview of each change.
fn apply(
    changes: &[Change],
    standing: &mut Standing,
    mut look: impl FnMut(&Change, bool, &Standing) -> Option<Preview>,
) -> Result<(Vec<Outcome>, bool), String> {
    let first = standing.clone();
    let mut outcomes = Vec::new();
    for change in changes {
        let is_changed = (change.apply)(standing)?;
        let preview = look(change, is_changed, standing);
        let order = change.order.clone();
        outcomes.push(Outcome { order, is_changed, notes: Vec::new(), freed: Vec::new(), trouble: None, preview });
    }
    if standing.is_like(&first) {
        *standing = first;
        outcomes.iter_mut().for_each(|outcome| outcome.is_changed = false);
    }
    let has_changed = outcomes.iter().any(|outcome| outcome.is_changed);
    Ok((outcomes, has_changed))
}

/// Notes which orders stood before. With `is_moved`, the end of all orders is another one, which is a change too.
fn settle(outcomes: &mut [Outcome], changes: &[Change], is_moved: bool) {
    for (outcome, change) in outcomes.iter_mut().zip(changes).filter(|(outcome, _)| !outcome.is_changed) {
        outcome.notes.push(change.same.clone());
        outcome.is_changed = is_moved && change.is_new;
    }
}

/// Returns the time for which the orders of a file that `railweave policy` wrote still hold; `None` if until they are
/// cleared.
fn remaining(found: Option<&Found>) -> Option<u64> {
    let found = found.filter(|found| !found.is_over && !found.by_agent())?;
    let end_s = found.written_s?.saturating_add(found.ttl_s?);
    // The clock may have been set back since.
    Some(end_s.saturating_sub(now().as_secs()).clamp(1, LONGEST_TTL_S))
}

/// Returns a sentence about the end of all orders of a file, if it is another one than before.
fn end(found: Option<&Found>, ttl_s: Option<u64>) -> Option<String> {
    match (ttl_s, remaining(found)) {
        (Some(ttl_s), _) => Some(format!("all orders of the file end in {ttl_s} s")),
        (None, Some(_)) => Some("orders that were to end with --for hold until they are cleared".to_owned()),
        (None, None) => None,
    }
}

/// Returns the time since 1970.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the words by which a policy file names its writer.
fn who() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|letter| !letter.is_control()).collect();
    format!("{} on {host}", env!("CARGO_PKG_VERSION"))
}
