//! The agent: what it knows of a host, and its decisions.

use crate::balance::Balance;
use crate::config::{Config, MOST_DRAINED, check_port};
use crate::congestion::Congestion;
use crate::drain::{Drain, DrainChange, Reason, Unseen};
use crate::find::Seen;
use crate::findings::{Findings, Severity};
use crate::names::{counted_name, covering};
use crate::operator::Operator;
use crate::ports::{PortCounters, PortUse};
use crate::process::Life;
use crate::rules::{GroupWeights, Head, Orders, mark};
use crate::script::Script;
use crate::series::GroupKey;
use crate::sick::Health;
use crate::time::Now;
use crate::user::{Steers, User};
use crate::weights::{Shares, groups, orders, senders};
use crate::world::{FileKey, World};
use railweave_counters::PortReading;
use railweave_telemetry::{Presence, Snapshot};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The most changes of drains that are kept for the owner.
const MOST_CHANGES: usize = 4096;

/// An agent.
///
/// Its owner looks at everything about once a second: [`Self::see`], [`Self::keep`] or [`Self::refuse`] for each file,
/// then [`Self::end_look`].
#[derive(Debug)]
pub struct Agent {
    pub(crate) config: Config,
    /// The reason why another configuration was not taken since: a sentence.
    refused_config: Option<String>,
    /// The version, host and process id, for people.
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) world: World,
    pub(crate) users: BTreeMap<u32, User>,
    /// The run dirs that cannot be used, each with a sentence.
    refused_folders: BTreeMap<String, String>,
    /// The counters of ports, by the names under which ports have counters.
    pub(crate) counters: BTreeMap<String, PortCounters>,
    /// The use of ports, by the names that rails have.
    pub(crate) uses: BTreeMap<String, PortUse>,
    pub(crate) health: BTreeMap<String, Health>,
    pub(crate) congestion: BTreeMap<String, Congestion>,
    pub(crate) drains: BTreeMap<String, Drain>,
    /// The changes of drains that nobody has asked for yet.
    pub(crate) drain_changes: Vec<DrainChange>,
    /// The orders of an operator, and the time of each of its rules, by the rule's key.
    pub(crate) operator: Operator,
    pub(crate) set: BTreeMap<String, Now>,
    /// The ports that were given back, and the keys of the rules that were cleared, since the agent began, and the
    /// times [`Now::up`]: files that were written before may have them.
    pub(crate) given_back: BTreeMap<String, Duration>,
    pub(crate) cleared: BTreeMap<String, Duration>,
    /// True once an operator has ordered something since the agent began.
    pub(crate) is_ordered: bool,
    shares: Shares,
    balance: Balance<GroupKey>,
    pub(crate) weights: GroupWeights,
    script: Script,
    pub(crate) findings: Findings,
    pub(crate) now: Now,
    begin: Option<Duration>,
    /// The time that the last look took.
    pub(crate) look_took: Duration,
}

impl Agent {
    /// Returns an agent that has seen nothing yet. `version` is that of the program; `host` and `pid` say to people
    /// which agent it is.
    pub fn new(config: Config, version: &str, host: &str, pid: u32) -> Self {
        let series = config.series;
        Self {
            config,
            refused_config: None,
            name: format!("{version} on {host}, process {pid}"),
            version: version.to_owned(),
            world: World::new(series),
            users: BTreeMap::new(),
            refused_folders: BTreeMap::new(),
            counters: BTreeMap::new(),
            uses: BTreeMap::new(),
            health: BTreeMap::new(),
            congestion: BTreeMap::new(),
            drains: BTreeMap::new(),
            drain_changes: Vec::new(),
            operator: Operator::default(),
            set: BTreeMap::new(),
            given_back: BTreeMap::new(),
            cleared: BTreeMap::new(),
            is_ordered: false,
            shares: Shares::default(),
            balance: Balance::default(),
            weights: GroupWeights::new(),
            script: Script::default(),
            findings: Findings::default(),
            now: Now::default(),
            begin: None,
            look_took: Duration::ZERO,
        }
    }

    /// Takes up another configuration.
    pub fn set_config(&mut self, config: Config) {
        self.world.set_most_series(config.series);
        if config.balance != self.config.balance {
            self.balance = Balance::default();
        }
        if config.script != self.config.script {
            self.script = Script::default();
        }
        (self.config, self.refused_config) = (config, None);
    }

    /// Notes that another configuration was not taken, with a sentence. Returns true if there is a finding already, so
    /// that the log will not say this one.
    pub fn refuse_config(&mut self, reason: String) -> bool {
        self.refused_config.replace(reason).is_some()
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Notes the agent's say in a run dir of a user, which it watches from now on.
    pub fn set_steers(&mut self, user: u32, run_dir: &str, steers: Steers) {
        self.users.entry(user).or_default().run_dirs.insert(run_dir.to_owned(), steers);
    }

    /// Returns the agent's say in each run dir that it watches.
    pub fn says(&self) -> impl Iterator<Item = (&str, &Steers)> {
        let run_dirs = self.users.values().flat_map(|user| &user.run_dirs);
        run_dirs.map(|(run_dir, steers)| (run_dir.as_str(), steers))
    }

    /// Forgets a run dir that is gone. Its files are forgotten one by one ([`Self::forget`]).
    pub fn remove_run_dir(&mut self, user: u32, run_dir: &str) {
        let Some(entry) = self.users.get_mut(&user) else { return };
        entry.run_dirs.remove(run_dir);
        if entry.run_dirs.is_empty() {
            self.users.remove(&user);
        }
    }

    /// Counts a policy file that was written, or could not be.
    pub fn count_write(&mut self, user: u32, is_written: bool) {
        let user = self.users.entry(user).or_default();
        if is_written { user.writes += 1 } else { user.failures += 1 }
    }

    /// Takes in the file of a process that was written. The events are those that are new. With `is_old`, the file was
    /// there when the agent began to watch: what it has counted so far does not count again. Returns false if the agent
    /// has no room for it, which is a finding.
    pub fn see(
        &mut self,
        user: u32,
        file: &str,
        snapshot: &Snapshot,
        presence: Presence,
        is_old: bool,
        now: Now,
    ) -> bool {
        let key = (user, file.to_owned());
        if let Some(reason) = self.world.objection(&key, snapshot) {
            self.refuse(user, file, &reason);
            return false;
        }
        if let Some(user) = self.users.get_mut(&user) {
            user.refused.remove(file);
        }
        self.world.take(key, snapshot, presence, is_old, now);
        true
    }

    /// Notes that the file of a process was not written since the last look.
    pub fn keep(&mut self, user: u32, file: &str, presence: Presence) {
        self.world.keep(&(user, file.to_owned()), presence);
    }

    /// Notes that a file cannot be used: the end of a sentence that begins with it.
    pub fn refuse(&mut self, user: u32, file: &str, reason: &str) {
        self.users.entry(user).or_default().refused.insert(file.to_owned(), reason.to_owned());
        self.world.refuse(&(user, file.to_owned()));
    }

    /// Notes which run dirs cannot be used, each with a sentence: their jobs are not known.
    pub fn set_refused_folders(&mut self, folders: BTreeMap<String, String>) {
        self.refused_folders = folders;
    }

    /// Forgets a file that is gone.
    pub fn forget(&mut self, user: u32, file: &str) {
        if let Some(user) = self.users.get_mut(&user) {
            user.refused.remove(file);
        }
        self.world.forget(&(user, file.to_owned()));
    }

    /// Returns the names under which the ports that jobs use, or that are to be empty, have counters.
    pub fn used_ports(&self) -> BTreeSet<String> {
        self.uses.keys().chain(self.drains.keys()).map(|port| counted_name(port)).collect()
    }

    /// Takes in a line of the policy script's program.
    pub fn script_answered(&mut self, line: &str, now: Now) {
        self.script.answer(line, now.up);
    }

    /// Notes that the program of the policy script cannot be asked: the end of a sentence that begins with it.
    pub fn script_failed(&mut self, reason: String) {
        self.script.fail(reason);
    }

    /// Ends a look: decides. Returns the sentences to log, each with its urgency.
    pub fn end_look(&mut self, readings: Vec<PortReading>, now: Now) -> Vec<(Severity, String)> {
        let period = now.up.saturating_sub(self.now.up);
        let period = if self.begin.is_some() { period } else { Duration::ZERO };
        self.begin.get_or_insert(now.up);
        self.now = now;
        self.world.finish(now);
        self.take_readings(readings, period);
        self.uses.clear();
        for (key, series) in self.world.series.iter().filter(|(key, _)| !key.port.is_empty()) {
            self.uses.entry(key.port.clone()).or_default().add(key, series, now.up);
        }
        self.look_at_links();
        let groups = groups(&self.world);
        self.shares.learn(&groups, now.up);
        if let Some(config) = &self.config.balance {
            self.balance.look(config, &senders(&groups), now.up);
        }
        let congestion = &self.congestion;
        let factor = |port: &str| congestion.get(port).map_or(1.0, Congestion::factor);
        self.weights = orders(&groups, &self.shares, &self.balance, factor);
        if self.config.script.is_some() {
            self.script.look(now.up);
        }
        self.set_drains();
        let usages = self.look_at_drains();
        let findings = self.seen(&usages).find();
        self.findings.set(findings, now.clock)
    }

    /// Notes the time that the last look took, with all that was read.
    pub fn set_look_took(&mut self, took: Duration) {
        self.look_took = took;
    }

    /// Returns true while the program of the policy `script` has not answered for the first time. Until then, the rules
    /// of an agent before this one are as good as any. Other policies wait too, so that lasts for a third of the time
    /// to live at most, and an order of an operator ends it.
    pub fn is_undecided(&self) -> bool {
        // An order has to be in the file once it is answered.
        if self.is_ordered {
            return false;
        }
        let age = self.now.up.saturating_sub(self.begin.unwrap_or(self.now.up));
        let most_s = self.config.script.as_ref().map(|config| config.timeout_s.min(self.config.ttl_s / 3));
        most_s.is_some_and(|most_s| self.script.is_awaited(most_s, age))
    }

    /// Returns the rules for a user's policy file; empty if nothing is ordered.
    pub fn rules(&self, user: u32) -> String {
        self.orders().rules(user).0
    }

    fn orders(&self) -> Orders<'_> {
        self.orders_with(&self.operator, self.drains.keys().map(String::as_str).collect())
    }

    /// Returns everything that is ordered, with these orders of an operator, if these ports are to be empty.
    pub(crate) fn orders_with<'a>(&'a self, operator: &'a Operator, drained: Vec<&'a str>) -> Orders<'a> {
        let mut rules: Vec<&str> = self.config.fixed.iter().map(String::as_str).collect();
        if let Some(script) = &self.config.script {
            rules.extend(self.script.rules(script.timeout_s, self.now.up).iter().map(String::as_str));
        }
        Orders { ordered: operator.rules(), rules, weights: Cow::Borrowed(&self.weights), drained }
    }

    /// Returns the text of a policy file with these rules.
    pub fn policy_file(&self, rules: &str, clock: Duration) -> String {
        self.head(self.sick().collect()).file(rules, clock)
    }

    /// Returns the orders of a policy file with these rules: its text without the time, and without the reasons for
    /// which ports are sick, whose numbers are others at each look.
    pub fn policy_orders(&self, rules: &str) -> String {
        self.head(self.sick().map(|(port, _)| (port, "")).collect()).file(rules, Duration::ZERO)
    }

    fn head<'a>(&'a self, sick: Vec<(&'a str, &'a str)>) -> Head<'a> {
        Head { mark: mark(&self.name), operator: &self.operator, sick, ttl_s: Some(self.config.ttl_s) }
    }

    /// Returns the ports that are sick, each with the reason.
    fn sick(&self) -> impl Iterator<Item = (&str, &str)> {
        self.health.iter().filter_map(|(port, health)| Some((&**port, health.reason()?))).take(MOST_DRAINED)
    }

    fn take_readings(&mut self, readings: Vec<PortReading>, period: Duration) {
        let present: BTreeSet<String> = readings.iter().map(|reading| reading.name.clone()).collect();
        let up = self.now.up;
        self.counters.retain(|name, counters| present.contains(name) || counters.miss(up));
        for reading in readings {
            self.counters.entry(reading.name.clone()).or_default().take(reading, self.now.up, period);
        }
    }

    /// Looks at the links of ports for sickness and congestion.
    fn look_at_links(&mut self) {
        let up = self.now.up;
        let Self { config, counters, health, congestion, uses, .. } = self;
        let sending: BTreeSet<String> =
            uses.iter().filter(|(_, usage)| usage.sent_now > 0.0).map(|(port, _)| counted_name(port)).collect();
        let used: BTreeSet<String> = uses.keys().map(|port| counted_name(port)).collect();
        // Not those of the host's management, which no job will use.
        let is_of_jobs = |port: &String, counters: &PortCounters| counters.is_rdma() || used.contains(port);
        match &config.avoid_sick {
            Some(config) => {
                for port in counters.iter().filter(|(port, it)| is_of_jobs(port, it)).map(|(port, _)| port) {
                    health.entry(port.clone()).or_default();
                }
                for (port, health) in health.iter_mut() {
                    let signs = counters.get(port).map(|counters| counters.signs(up)).unwrap_or_default();
                    health.look(config, &signs, up);
                }
                // A sick one that is not there yet, or not any more, is no better for that.
                health.retain(|port, health| {
                    health.reason().is_some() || counters.get(port).is_some_and(|it| is_of_jobs(port, it))
                });
            }
            None => health.clear(),
        }
        match &config.avoid_congestion {
            Some(config) => {
                congestion.retain(|port, _| counters.contains_key(port));
                for (port, counters) in counters.iter() {
                    let marks = counters.signs(up).marks;
                    congestion.entry(port.clone()).or_default().look(config, marks, sending.contains(port), up);
                }
            }
            None => congestion.clear(),
        }
    }

    /// Returns the ports that are to be empty with these orders of an operator, each with the reasons.
    pub(crate) fn wanted(&self, operator: &Operator) -> BTreeMap<String, BTreeSet<Reason>> {
        let mut wanted: BTreeMap<String, BTreeSet<Reason>> = BTreeMap::new();
        let mut want = |port: &str, reason| {
            wanted.entry(port.to_owned()).or_default().insert(reason);
        };
        operator.drained().for_each(|port| want(port, Reason::Operator));
        self.config.drain.iter().for_each(|port| want(port, Reason::Configuration));
        let is_sick = |port: &str| self.health.get(port).is_some_and(|health| health.reason().is_some());
        // These are names that counters have. Those that rails have are made by processes: no rule repeats them.
        let sick = self.health.keys().filter(|port| is_sick(port) && check_port("port", port).is_ok());
        sick.take(MOST_DRAINED).for_each(|port| want(port, Reason::Sick));
        wanted
    }

    /// Brings the ports that are to be empty up to date.
    pub(crate) fn set_drains(&mut self) {
        let wanted = self.wanted(&self.operator);
        self.note_changes(&wanted);
        self.drains.retain(|port, _| wanted.contains_key(port));
        let clock = self.now.clock;
        for (port, reasons) in wanted {
            let drain = self.drains.entry(port).or_insert_with(|| Drain::new(clock));
            drain.reasons.retain(|reason, _| reasons.contains(reason));
            for reason in reasons {
                drain.reasons.entry(reason).or_insert(clock);
            }
        }
    }

    /// Notes the drains that begin and cease if these ports are to be empty.
    fn note_changes(&mut self, wanted: &BTreeMap<String, BTreeSet<Reason>>) {
        let had = |port: &str, reason| self.drains.get(port).is_some_and(|drain| drain.reasons.contains_key(reason));
        let has = |port: &str, reason| wanted.get(port).is_some_and(|reasons| reasons.contains(reason));
        let begun = wanted.iter().flat_map(|(port, reasons)| reasons.iter().map(move |reason| (port, reason)));
        let begun = begun.filter(|(port, reason)| !had(port, reason)).map(|it| (it, true));
        let old = self.drains.iter().flat_map(|(port, drain)| drain.reasons.keys().map(move |reason| (port, reason)));
        let ended = old.filter(|(port, reason)| !has(port, reason)).map(|it| (it, false));
        let changes = begun.chain(ended).filter(|((_, reason), _)| **reason != Reason::Operator);
        let changes =
            changes.map(|((port, reason), begins)| DrainChange { port: port.clone(), reason: *reason, begins });
        let room = MOST_CHANGES.saturating_sub(self.drain_changes.len());
        let changes: Vec<_> = changes.take(room).collect();
        self.drain_changes.extend(changes);
    }

    /// Returns the drains that began and ceased since the last call, but for those that an operator ordered and those
    /// that an agent before this one had begun. The first 4,096 are kept until then.
    pub fn take_drain_changes(&mut self) -> Vec<DrainChange> {
        std::mem::take(&mut self.drain_changes)
    }

    /// Returns the drain of a port: its own, or that of a name which stands for it.
    pub(crate) fn drain_of(&self, port: &str) -> Option<&Drain> {
        covering(port).iter().find_map(|name| self.drains.get(name))
    }

    /// Returns true if a port is to be empty for a reason.
    pub(crate) fn is_drained(&self, port: &str, reason: Reason) -> bool {
        let mut drains = covering(port).into_iter().filter_map(|name| self.drains.get(&name));
        drains.any(|drain| drain.reasons.contains_key(&reason))
    }

    /// Returns the use of the ports that are to be empty.
    fn usages(&self) -> BTreeMap<String, PortUse> {
        let mut usages: BTreeMap<String, PortUse> = BTreeMap::new();
        for (port, usage) in &self.uses {
            for name in covering(port).into_iter().filter(|name| self.drains.contains_key(name)) {
                usages.entry(name).or_default().merge(usage);
            }
        }
        usages
    }

    /// Looks at the progress of drains. Returns the use of their ports.
    fn look_at_drains(&mut self) -> BTreeMap<String, PortUse> {
        if self.drains.is_empty() {
            return BTreeMap::new();
        }
        let usages = self.usages();
        let unseen = Unseen { nameless: self.world.nameless(), files: self.refused_files() };
        let counted: BTreeSet<String> = self.counters.keys().flat_map(|port| covering(port)).collect();
        let none = PortUse::default();
        for (port, drain) in &mut self.drains {
            // The counters of an adapter are also those of its Data Direct engine; but an address is one of several.
            let is_counted = || !port.contains('@') && self.counters.contains_key(&counted_name(port));
            let is_known = usages.contains_key(port) || counted.contains(port) || is_counted();
            drain.look(usages.get(port).unwrap_or(&none), &unseen, is_known, self.now.up, self.now.clock);
        }
        usages
    }

    /// Returns everything in which there may be something to find. `usages` has the use of ports that are to be empty.
    fn seen<'a>(&'a self, usages: &'a BTreeMap<String, PortUse>) -> Seen<'a> {
        Seen {
            config: &self.config,
            world: &self.world,
            users: &self.users,
            refused_config: self.refused_config.as_deref(),
            refused_folders: &self.refused_folders,
            counters: &self.counters,
            uses: &self.uses,
            health: &self.health,
            congestion: &self.congestion,
            drains: &self.drains,
            usages,
            balance: &self.balance,
            script: &self.script,
            orders: self.orders(),
            up: self.now.up,
        }
    }

    /// Returns the number of files that cannot be used, of processes that may run, and of folders.
    fn refused_files(&self) -> usize {
        let files = self.users.iter().flat_map(|(user, it)| it.refused.keys().map(|file| (*user, file.clone())));
        let is_live = |key: &FileKey| self.world.processes.get(key).is_none_or(|process| process.life != Life::Gone);
        files.filter(is_live).count() + self.refused_folders.len()
    }
}
