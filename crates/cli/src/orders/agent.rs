//! Orders that an agent carries out.

use super::client::{Client, Failure, encoded};
use super::direct::now;
use super::effect::{covers, drain};
use super::found::Found;
use super::outcome::{By, Drained, InForce, Order, OrderedRule, Outcome, Preview, Trouble};
use super::sentences::{drained_before, no_drain, no_rule, set_before};
use crate::host::is_same_folder;
use hyper::Method;
use railweave_agent::{LONGEST_RULE, Standing, matchers_key as key};
use railweave_telemetry::{Folder, LARGEST_POLICY, Rules};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most entries of a list that are looked at: an agent has fewer.
const MOST: usize = 4096;

/// The most drains among which those that stand for others are found.
const FEW: usize = 256;

/// The most drains and rules: an agent has fewer.
const MOST_ORDERS: usize = 1024;

/// The longest wait for an order that the agent has to be in the policy file, and the pause between two looks.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// The most letters of a reason that is repeated.
const LONGEST_REASON: usize = 1000;

/// The most letters of a word such as a phase, and the most reasons of a drain: an agent has fewer.
const LONGEST_PHASE: usize = 64;
const MOST_REASONS: usize = 8;

/// A user of the agent.
#[derive(Deserialize)]
struct User {
    user: u32,
    #[serde(default)]
    run_dirs: Vec<RunDir>,
    rules: Vec<String>,
}

#[derive(Deserialize)]
struct RunDir {
    run_dir: String,
    steers: bool,
    /// Agents before this release did not say so.
    #[serde(default)]
    write_failed: bool,
    reason: Option<String>,
}

/// The answer to an order that was given. Agents before this release answered before anything was carried out.
#[derive(Deserialize)]
struct Given {
    #[serde(default)]
    carried_out: Option<bool>,
    #[serde(default)]
    late: bool,
    #[serde(default)]
    failed: Vec<FailedRunDir>,
    #[serde(default)]
    not_steered: Vec<FailedRunDir>,
}

#[derive(Deserialize)]
struct FailedRunDir {
    run_dir: String,
    reason: String,
}

/// An order that the agent has, or was asked about.
#[derive(Default)]
struct Sent {
    trouble: Option<Trouble>,
    /// Sentences about other run dirs.
    notes: Vec<String>,
    preview: Option<Preview>,
}

/// The answer to an order that was only asked about.
#[derive(Deserialize)]
struct Trial {
    users: Vec<TrialUser>,
}

#[derive(Deserialize)]
struct TrialUser {
    user: u32,
    before: Vec<String>,
    rules: Vec<String>,
}

#[derive(Deserialize)]
struct Port {
    port: String,
    drain: Drain,
}

#[derive(Deserialize)]
struct Drain {
    reasons: Vec<Reason>,
    phase: String,
}

#[derive(Deserialize)]
struct Reason {
    reason: String,
}

#[derive(Deserialize)]
struct Rule {
    matchers: String,
    actions: String,
}

/// The agent's say in a run dir.
pub(super) enum Say {
    /// It writes the policy file there.
    Steers,
    /// It takes orders, and could not write the policy file the last time: a sentence.
    Fails(String),
    /// It does not, for this reason: a sentence.
    Watches(String),
    /// It does not know the folder.
    Unknown,
}

/// An agent that takes the orders for a run dir.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    client: Client,
    run_dir: PathBuf,
    /// The owner of the run dir.
    user: u32,
}

impl Agent {
    /// Returns the agent of a client as the one for a run dir.
    pub(super) fn new(client: Client, folder: &Folder) -> Self {
        Self { client, run_dir: folder.path().to_owned(), user: folder.owner() }
    }

    pub(super) fn by(&self) -> By {
        By::Agent { socket: self.client.socket().to_owned() }
    }

    /// Returns the agent's say in the run dir.
    pub(super) fn say(&self) -> Result<Say, Failure> {
        let users: Vec<User> = self.client.get("/api/v1/users")?;
        let mut all = users.iter().flat_map(|user| &user.run_dirs).take(MOST);
        let Some(found) = all.find(|found| self.is_run_dir(&found.run_dir)) else {
            return Ok(Say::Unknown);
        };
        Ok(match &found.reason {
            Some(reason) if !found.steers && !found.write_failed => Say::Watches(cut(reason, LONGEST_REASON)),
            Some(reason) if found.write_failed => Say::Fails(cut(reason, LONGEST_REASON)),
            // One that has not looked yet refuses orders itself.
            _ => Say::Steers,
        })
    }

    /// Returns true if a path that the agent has named leads to the run dir.
    fn is_run_dir(&self, path: &str) -> bool {
        let path = Path::new(path);
        // Paths that another user has made up are not followed.
        let is_own = self.client.owner() == rustix::process::geteuid().as_raw();
        path == self.run_dir || (is_own && is_same_folder(path, &self.run_dir))
    }

    /// Returns the version of the agent.
    pub(super) fn version(&self) -> Result<String, Failure> {
        #[derive(Deserialize)]
        struct State {
            agent: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let state: State = self.client.get("/api/v1/state")?;
        Ok(cut(&state.agent.version, LONGEST_PHASE))
    }

    pub(super) fn standing(&self) -> Result<InForce, Failure> {
        let rules = self.rules()?.unwrap_or_default().into_iter();
        let drains = self.drains()?;
        // Each name that stands for others comes together with these.
        let few = if drains.len() > FEW { &[][..] } else { &drains[..] };
        let names: Vec<(&Drained, Option<Rules>)> = few.iter().map(|drained| (drained, drain(&drained.port))).collect();
        let is_part = |one: &Drained| {
            let stands = |other: &&Drained| other.port != one.port && other.reasons == one.reasons;
            let mut others = names.iter().filter(|(other, _)| stands(other));
            others.any(|(_, rules)| rules.as_ref().is_some_and(|rules| covers(rules, &one.port)))
        };
        Ok(InForce {
            drains: drains.iter().filter(|drained| !is_part(drained)).cloned().collect(),
            rules: rules
                .take(MOST_ORDERS)
                .map(|rule| OrderedRule {
                    matchers: cut(&rule.matchers, LONGEST_RULE),
                    actions: cut(&rule.actions, LONGEST_RULE),
                })
                .collect(),
        })
    }

    /// Returns the ports that an operator may have drained: those, and the ports for which their names stand.
    pub(super) fn maybe_ordered(&self) -> Result<Vec<String>, Failure> {
        let drains = self.drains()?.into_iter().filter(Drained::is_ordered);
        Ok(drains.map(|drained| drained.port).collect())
    }

    /// Returns true if an operator has drained the port by this very name.
    fn is_ordered(&self, port: &str) -> Result<bool, Failure> {
        if self.rules()?.is_none() {
            return Ok(self.maybe_ordered()?.iter().any(|ordered| ordered == port));
        }
        let path = format!("/api/v1/drains/{}?dry_run=true", encoded(port));
        match self.client.order(&Method::DELETE, &path, None) {
            Err(Failure::Refused(404, _)) => Ok(false),
            given_back => given_back.map(|_| true),
        }
    }

    /// Returns all ports that are to be empty, also those for which the names of others stand.
    pub(super) fn drains(&self) -> Result<Vec<Drained>, Failure> {
        let ports: Vec<Port> = self.client.get("/api/v1/drains")?;
        let drained = |Port { port, drain: Drain { reasons, phase } }: Port| Drained {
            port: cut(&port, LONGEST_RULE),
            reasons: reasons.iter().take(MOST_REASONS).map(|reason| cut(&reason.reason, LONGEST_PHASE)).collect(),
            phase: Some(cut(&phase, LONGEST_PHASE)),
        };
        Ok(ports.into_iter().take(MOST_ORDERS).map(drained).collect())
    }

    /// Returns the operator's rules; `None` if the agent is too old to have any.
    fn rules(&self) -> Result<Option<Vec<Rule>>, Failure> {
        match self.client.get("/api/v1/rules") {
            Err(Failure::Refused(404, _)) => Ok(None),
            rules => rules.map(Some),
        }
    }

    pub(super) fn drain(&self, port: &str, is_trial: bool) -> Result<Outcome, Failure> {
        let is_changed = !self.is_ordered(port)?;
        let order = Order::Drain { port: port.to_owned() };
        if !is_changed {
            return self.unchanged(order, drained_before(port), is_trial);
        }
        Ok(self.send(&Method::PUT, "drains", port, None, is_trial)?.outcome(order, Vec::new()))
    }

    pub(super) fn give_back(&self, port: &str, is_trial: bool) -> Result<Outcome, Failure> {
        let order = Order::GiveBack { port: port.to_owned() };
        let drained = self.drains()?.into_iter().find(|drained| drained.port == port);
        if !self.is_ordered(port)? {
            let note = match drained {
                None => no_drain(port),
                Some(drained) if drained.is_ordered() => {
                    format!("port {port} stays drained, by the name of its adapter or interface: try `policy show`")
                }
                Some(drained) => {
                    let reasons = drained.reasons.join(", ");
                    format!("port {port} stays drained, by no order of an operator ({reasons}): see docs/agent.md")
                }
            };
            return self.unchanged(order, note, is_trial);
        }
        let mut notes = Vec::new();
        if let Some(drained) = drained.filter(|drained| drained.reasons.len() > 1) {
            let reasons: Vec<_> = drained.reasons.iter().filter(|reason| *reason != "operator").cloned().collect();
            notes.push(format!("port {port} stays drained for another reason ({})", reasons.join(", ")));
        }
        match self.send(&Method::DELETE, "drains", port, None, is_trial) {
            // Somebody else has given it back meanwhile.
            Err(Failure::Refused(404, _)) => self.unchanged(order, no_drain(port), is_trial),
            sent => Ok(sent?.outcome(order, notes)),
        }
    }

    /// Sets rules, the last first, and calls `done` with each outcome.
    pub(super) fn set(
        &self,
        rules: &[OrderedRule],
        is_trial: bool,
        mut done: impl FnMut(Outcome),
    ) -> Result<(), String> {
        let present = self.rules()?.ok_or_else(|| self.too_old())?;
        let present: Vec<_> = present.iter().take(MOST).map(|it| (key(&it.matchers), &it.actions)).collect();
        // All together may be as they are, although each would come first.
        let new = rules.iter().map(|rule| (key(&rule.matchers), &rule.actions));
        let mut keys = HashSet::new();
        let after: Vec<_> = new.chain(present.iter().cloned()).filter(|(key, _)| keys.insert(key.clone())).collect();
        let is_same = after == present;
        for (count, rule) in rules.iter().rev().enumerate() {
            let outcome = if is_same { self.set_before(rule, is_trial)? } else { self.set_one(rule, is_trial)? };
            let is_late = outcome.is_late();
            done(outcome);
            if is_late && is_same {
                return Ok(());
            }
            if is_late && count + 1 < rules.len() {
                return Err("the rules before that one in the command were not set; try again".to_owned());
            }
        }
        Ok(())
    }

    fn set_before(&self, OrderedRule { matchers, actions }: &OrderedRule, is_trial: bool) -> Result<Outcome, Failure> {
        let order = Order::Set { matchers: matchers.clone(), actions: actions.clone() };
        self.unchanged(order, set_before(matchers, actions), is_trial)
    }

    fn set_one(&self, rule: &OrderedRule, is_trial: bool) -> Result<Outcome, Failure> {
        let OrderedRule { matchers, actions } = rule;
        let present = self.rules()?.ok_or_else(|| self.too_old())?;
        // One that is not the first comes first again.
        let is_same = |it: &Rule| key(&it.matchers) == key(matchers);
        let is_first = present.first().is_some_and(|first| is_same(first) && first.actions == *actions);
        if is_first {
            return self.set_before(rule, is_trial);
        }
        let order = Order::Set { matchers: matchers.clone(), actions: actions.clone() };
        let mut notes = Vec::new();
        if let Some(before) = present.iter().find(|it| is_same(it) && it.actions != *actions) {
            notes.push(format!("it replaces {matchers} -> {}", before.actions));
        }
        let body = json!({ "actions": actions });
        Ok(self.send(&Method::PUT, "rules", matchers, Some(&body), is_trial)?.outcome(order, notes))
    }

    pub(super) fn clear(&self, matchers: &str, is_trial: bool) -> Result<Outcome, Failure> {
        let order = Order::Clear { matchers: matchers.to_owned() };
        let present = self.rules()?.ok_or_else(|| self.too_old())?;
        let Some(rule) = present.iter().find(|rule| key(&rule.matchers) == key(matchers)) else {
            return self.unchanged(order, no_rule(matchers), is_trial);
        };
        match self.send(&Method::DELETE, "rules", &rule.matchers, None, is_trial) {
            Err(Failure::Refused(404, _)) => self.unchanged(order, no_rule(matchers), is_trial),
            sent => Ok(sent?.outcome(order, Vec::new())),
        }
    }

    /// Takes back all orders of operators, and calls `done` with each outcome.
    pub(super) fn clear_all(&self, is_trial: bool, mut done: impl FnMut(Outcome)) -> Result<(), String> {
        let InForce { rules, .. } = self.standing()?;
        let ports = self.maybe_ordered()?;
        let mut left = ports.len() + rules.len();
        let mut take = |outcome: Outcome, is_told: bool| {
            left -= 1;
            let late = outcome.trouble.clone().filter(|_| outcome.is_late());
            if is_told || late.is_some() {
                done(outcome);
            }
            // Each of the others would be waited for as long.
            match late {
                Some(late) if left > 0 => Err(format!(
                    "{}; whatever else stands was not taken back; try again once that is done",
                    String::from(late)
                )),
                _ => Ok(()),
            }
        };
        for port in &ports {
            let outcome = self.give_back(port, is_trial)?;
            let is_told = outcome.is_changed;
            take(outcome, is_told)?;
        }
        for rule in &rules {
            take(self.clear(&rule.matchers, is_trial)?, true)?;
        }
        if is_trial {
            return Ok(());
        }
        // The agent may have taken back what its file still says.
        let is_empty = |file: &Standing, _| Ok(file.drained().next().is_none() && file.rules().next().is_none());
        self.settle(is_empty)?.map_or(Ok(()), |trouble| Err(trouble.into()))
    }

    /// Sends an order, or asks about it.
    fn send(
        &self,
        method: &Method,
        kind: &str,
        name: &str,
        body: Option<&Value>,
        is_trial: bool,
    ) -> Result<Sent, Failure> {
        let path = format!("/api/v1/{kind}/{}", encoded(name));
        if !is_trial {
            let answer = self.client.order(method, &path, body)?;
            return Ok(self.sent(self.client.read(&answer)?));
        }
        // One that does not know `dry_run` would carry out the order.
        if self.rules()?.is_none() {
            return Err(self.too_old());
        }
        let answer = self.client.order(method, &format!("{path}?dry_run=true"), body)?;
        let Trial { users } = self.client.read(&answer)?;
        let before = users.iter().map(|user| (user.user, user.before.clone()));
        let after = users.iter().map(|user| (user.user, user.rules.clone()));
        let preview = Preview { before: self.lines(before)?, after: self.lines(after)? };
        Ok(Sent { preview: Some(preview), ..Sent::default() })
    }

    /// Returns the say of an answer for the run dir, and for others.
    fn sent(&self, Given { carried_out, late, failed, not_steered }: Given) -> Sent {
        let is_here = |it: &&FailedRunDir| self.is_run_dir(&it.run_dir);
        let others = failed.iter().take(MOST).filter(|it| !is_here(it)).count();
        let trouble = if late {
            Some(self.late())
        } else {
            let mut here = failed.iter().chain(&not_steered).take(MOST).filter(is_here);
            let is_gone = carried_out == Some(false) && failed.is_empty();
            let gone = || is_gone.then(|| self.failed("it steers no folder now"));
            here.next().map(|it| self.failed(&it.reason)).or_else(gone)
        };
        let notes = (others > 0).then(|| {
            format!("the policy files of {others} other folders could not be written; see the findings of the agent")
        });
        Sent { trouble, notes: notes.into_iter().collect(), preview: None }
    }

    /// Returns the trouble of an order that is not in the policy file, for this reason.
    fn failed(&self, reason: &str) -> Trouble {
        let reason = cut(reason, LONGEST_REASON);
        let by = self.by();
        Trouble::Failed(format!("{by} has the order, and cannot carry it out yet: {reason}; each look retries it"))
    }

    /// Returns the rules of the run dir's user, of those of all users.
    fn lines(&self, users: impl Iterator<Item = (u32, Vec<String>)>) -> Result<String, Failure> {
        let rules = users.filter(|(user, _)| *user == self.user).flat_map(|(_, rules)| rules);
        let lines: String = rules.map(|rule| format!("{rule}\n")).collect();
        if lines.len() as u64 > LARGEST_POLICY {
            return Err(self.client.useless("has answered with more rules than a policy file may have"));
        }
        Ok(lines)
    }

    /// Returns the outcome of an order that changes nothing, for this reason.
    fn unchanged(&self, order: Order, note: String, is_trial: bool) -> Result<Outcome, Failure> {
        let (mut preview, mut trouble) = (None, None);
        if is_trial {
            let users: Vec<User> = self.client.get("/api/v1/users")?;
            let present = self.lines(users.into_iter().map(|user| (user.user, user.rules)))?;
            preview = Some(Preview { before: present.clone(), after: present });
        } else {
            trouble = self.settle(|standing, is_in_force| {
                let rules = match order {
                    // Others may set rules meanwhile.
                    Order::Set { .. } => self.rules()?.unwrap_or_default(),
                    _ => Vec::new(),
                };
                Ok(holds(standing, is_in_force, &order, &rules))
            })?;
        }
        Ok(Outcome { order, is_changed: false, notes: vec![note], freed: Vec::new(), trouble, preview })
    }

    /// Waits until the policy file is as an order wants it that the agent has already: its look may be awaited still,
    /// or have no room. Returns the trouble if it is not.
    pub(super) fn settle(
        &self,
        is_so: impl Fn(&Standing, bool) -> Result<bool, Failure>,
    ) -> Result<Option<Trouble>, Failure> {
        let begin = Instant::now();
        loop {
            if let Some((standing, is_in_force)) = self.file()
                && is_so(&standing, is_in_force)?
            {
                return Ok(None);
            }
            let users: Vec<User> = self.client.get("/api/v1/users")?;
            let mut run_dirs = users.iter().flat_map(|user| &user.run_dirs).take(MOST);
            let here = run_dirs.find(|it| self.is_run_dir(&it.run_dir) && !it.steers);
            if let Some(reason) = here.and_then(|it| it.reason.as_deref()) {
                return Ok(Some(self.failed(reason)));
            }
            if begin.elapsed() >= LONGEST_WAIT {
                return Ok(Some(self.late()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the orders that stand in the policy file, and true if they are in force; `None` if that is not known.
    fn file(&self) -> Option<(Standing, bool)> {
        let found = match Folder::open(&self.run_dir) {
            Ok(folder) => Found::read(&folder, now()).ok()?,
            Err(error) if error.is_missing() => None,
            Err(_) => return None,
        };
        match found {
            Some(found) => Some((found.standing().ok()?, found.is_in_force())),
            None => Some((Standing::default(), false)),
        }
    }

    fn late(&self) -> Trouble {
        Trouble::Late(format!(
            "{} has the order, and has not carried it out within 2 s, because its files take long; allowed: some time \
             more; try `railweave policy show`",
            self.by()
        ))
    }

    fn too_old(&self) -> Failure {
        self.client.useless("is an agent that takes drains alone, without trials")
    }
}

impl Sent {
    fn outcome(self, order: Order, mut notes: Vec<String>) -> Outcome {
        notes.extend(self.notes);
        Outcome { order, is_changed: true, notes, freed: Vec::new(), trouble: self.trouble, preview: self.preview }
    }
}

/// Returns true if a policy file with these orders has that order. `all` are the agent's rules: the place of a rule
/// among others matters too.
fn holds(standing: &Standing, is_in_force: bool, order: &Order, all: &[Rule]) -> bool {
    let mut drained = standing.drained();
    let mut rules = standing.rules().map(|rule| (key(&rule.matchers), &rule.actions));
    match order {
        Order::Drain { port } => is_in_force && drained.any(|drained| drained == port),
        Order::GiveBack { port } => drained.all(|drained| drained != port),
        Order::Set { .. } => is_in_force && rules.eq(all.iter().map(|rule| (key(&rule.matchers), &rule.actions))),
        Order::Clear { matchers } => rules.all(|(known, _)| known != key(matchers)),
    }
}

/// Returns a text of the agent, cut: another user may have made it up.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}
