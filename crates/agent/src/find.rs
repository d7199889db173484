//! The search for findings: the sentences that an operator should read now.

use crate::balance::Balance;
use crate::config::{Config, check_port};
use crate::congestion::Congestion;
use crate::drain::Drain;
use crate::findings::{Finding, MORE, Severity};
use crate::names::counted_name;
use crate::ports::{PortCounters, PortUse};
use crate::process::{Life, Process};
use crate::rules::Orders;
use crate::script::Script;
use crate::series::GroupKey;
use crate::sick::Health;
use crate::user::{Steers, User};
use crate::world::World;
use railweave_counters::Counter;
use railweave_telemetry::RailState;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The part of its share from which a port counts as congested for people.
const CONGESTED: f64 = 0.999;

/// The most files of a user, and the most run dirs, that findings name one by one.
const NAMED_FILES: usize = 16;

/// The most jobs of a user that findings name one by one.
const NAMED_JOBS: usize = 16;

/// The findings so far.
#[derive(Default)]
struct Found(Vec<Finding>);

impl Found {
    fn add(&mut self, kind: &'static str, about: &str, severity: Severity, text: String) {
        self.0.push(Finding { kind, about: about.to_owned(), severity, text });
    }
}

/// Everything in which there may be something to find, as the agent has it.
pub(crate) struct Seen<'a> {
    pub(crate) config: &'a Config,
    pub(crate) world: &'a World,
    pub(crate) users: &'a BTreeMap<u32, User>,
    pub(crate) refused_config: Option<&'a str>,
    pub(crate) refused_folders: &'a BTreeMap<String, String>,
    pub(crate) counters: &'a BTreeMap<String, PortCounters>,
    pub(crate) uses: &'a BTreeMap<String, PortUse>,
    pub(crate) health: &'a BTreeMap<String, Health>,
    pub(crate) congestion: &'a BTreeMap<String, Congestion>,
    pub(crate) drains: &'a BTreeMap<String, Drain>,
    /// The use of the ports that are to be empty.
    pub(crate) usages: &'a BTreeMap<String, PortUse>,
    pub(crate) balance: &'a Balance<GroupKey>,
    pub(crate) script: &'a Script,
    pub(crate) orders: Orders<'a>,
    pub(crate) up: Duration,
}

impl Seen<'_> {
    /// Returns everything that an operator should know now.
    pub(crate) fn find(&self) -> Vec<Finding> {
        // Processes can make up names of ports: only those are repeated that a rule could have.
        let used = self.uses.keys().map(String::as_str).filter(|port| check_port("port", port).is_ok());
        let known: BTreeSet<&str> = self.counters.keys().map(String::as_str).chain(used).collect();
        let mut found = Found::default();
        for (port, usage) in self.uses {
            let down = usage.in_state(RailState::Down) + usage.in_state(RailState::Repairing);
            if down > 0 {
                let all = usage.states.iter().sum::<u32>();
                let text = format!("{down} of {all} rails over port {port} are down; try its cable, and `dmesg`");
                found.add("rail-down", port, Severity::Warning, text);
            }
        }
        for (port, health) in self.health {
            if let Some(reason) = health.reason() {
                let text = format!("port {port} {reason}, so jobs leave it; try its cable and transceiver");
                found.add("port-sick", port, Severity::Warning, text);
            }
        }
        for (port, congestion) in self.congestion.iter().filter(|(_, it)| it.factor() < CONGESTED) {
            let text = format!(
                "data over port {port} meets congestion, so it has {:.0} % of its share; try the switches on its way",
                congestion.factor() * 100.0
            );
            found.add("port-congested", port, Severity::Warning, text);
        }
        let used: BTreeSet<String> = self.uses.keys().map(|port| counted_name(port)).collect();
        for (port, counters) in self.counters.iter().filter(|(port, it)| it.is_rdma() || used.contains(*port)) {
            if let Some(text) = slowness(port, counters, self.up) {
                found.add("port-slow", port, Severity::Warning, text);
            }
            let full: Vec<&str> = counters.full().map(Counter::name).collect();
            if !full.is_empty() {
                let text = format!(
                    "port {port} counts no more errors, because {} is at its largest value; try `perfquery -R`, which \
                     sets its counters to zero",
                    full.join(", ")
                );
                found.add("counter-full", port, Severity::Info, text);
            }
        }
        for (port, drain) in self.drains {
            let none = PortUse::default();
            found.0.extend(drain.findings(port, self.usages.get(port).unwrap_or(&none), &known));
        }
        self.find_silent(&mut found);
        self.find_users(&mut found);
        if self.config.balance.is_some() && self.balance.is_active() {
            let text = "ports are shared between jobs so that the slowest gains".to_owned();
            found.add("balance", "", Severity::Info, text);
        }
        if let Some(reason) = self.refused_config {
            found.add("config-refused", "", Severity::Warning, reason.to_owned());
        }
        if let Some(config) = &self.config.script
            && let Some(trouble) = self.script.trouble(config.timeout_s, self.up)
        {
            let text = format!("\"{}\" {trouble}", config.program.first().map_or("", String::as_str));
            found.add("script", "", Severity::Critical, text);
        }
        found.0
    }

    /// Finds the files that cannot be used, and the users for whom nothing, or not everything, is ordered.
    fn find_users(&self, found: &mut Found) {
        // First: users may have any number of files that cannot be used, and few findings of a kind have room.
        for (path, reason) in self.refused_folders.iter().take(NAMED_FILES) {
            found.add("file-refused", path, Severity::Warning, reason.clone());
        }
        if let Some(more) = self.refused_folders.len().checked_sub(NAMED_FILES + 1) {
            let text = format!("{} more run dirs cannot be used", more + 1);
            found.add("file-refused", MORE, Severity::Warning, text);
        }
        for (number, user) in self.users {
            for (file, reason) in user.refused.iter().take(NAMED_FILES) {
                let text = format!("\"{file}\" of user {number} {reason}");
                found.add("file-refused", &format!("{number}/{file}"), Severity::Warning, text);
            }
            if let Some(more) = user.refused.len().checked_sub(NAMED_FILES + 1) {
                let text = format!("{} more files of user {number} cannot be used", more + 1);
                found.add("file-refused", &format!("{number}/{MORE}"), Severity::Warning, text);
            }
            for (run_dir, steers) in &user.run_dirs {
                if let Steers::No(reason) | Steers::Failing(reason) = steers {
                    found.add("not-steering", run_dir, Severity::Warning, reason.clone());
                }
            }
            let (_, left_out) = self.orders.rules(*number);
            if left_out > 0 {
                let text = format!(
                    "{left_out} rules for user {number} have no room in a policy file, so they hold for no job; try \
                     fewer drained ports, or fewer rules"
                );
                found.add("not-steering", &number.to_string(), Severity::Warning, text);
            }
        }
    }

    /// Finds the jobs whose processes are silent.
    fn find_silent(&self, found: &mut Found) {
        let mut jobs: BTreeMap<(u32, &str), (usize, &Process)> = BTreeMap::new();
        for ((user, _), process) in self.world.processes.iter().filter(|(_, it)| it.life == Life::Silent) {
            let (count, first) = jobs.entry((*user, &process.facts.job)).or_insert((0, process));
            *count += 1;
            if process.written < first.written {
                *first = process;
            }
        }
        let mut users: BTreeMap<u32, usize> = BTreeMap::new();
        for ((user, job), (count, first)) in jobs {
            let jobs = users.entry(user).or_default();
            *jobs += 1;
            if *jobs > NAMED_JOBS {
                continue;
            }
            let text = format!(
                "{count} processes of job \"{job}\" of user {user} have not written their files, process {} on {} for \
                 {} s; they are stopped or hang, or ended in another container",
                first.facts.pid,
                first.facts.host,
                self.up.saturating_sub(first.written).as_secs()
            );
            found.add("process-silent", &format!("{user}/{job}"), Severity::Warning, text);
        }
        for (user, count) in users.into_iter().filter(|(_, count)| *count > NAMED_JOBS) {
            let text =
                format!("processes of {} more jobs of user {user} have not written their files", count - NAMED_JOBS);
            found.add("process-silent", &format!("{user}/{MORE}"), Severity::Warning, text);
        }
    }
}

/// Returns the sentence about a port that is slower than it could be.
fn slowness(port: &str, counters: &PortCounters, up: Duration) -> Option<String> {
    let reading = counters.reading.as_ref()?;
    if counters.signs(up).slow_for.is_some() {
        let gigabits = |rate: Option<u64>| rate.map_or(0.0, |rate| rate as f64 * 8.0 / 1e9);
        return Some(format!(
            "the link of port {port} has {} Gbit/s, and had {}; try its cable and transceiver",
            gigabits(reading.rate),
            gigabits(counters.largest_rate)
        ));
    }
    let pcie = reading.pcie?;
    let is_less = |now: Option<u32>, most: Option<u32>| now.zip(most).is_some_and(|(now, most)| now < most);
    (is_less(pcie.width, pcie.max_width) || is_less(pcie.speed, pcie.max_speed)).then(|| {
        let number = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
        format!(
            "the adapter of port {port} has {} lanes of PCIe at {} MT/s, and could have {} at {}; try another slot",
            number(pcie.width),
            number(pcie.speed),
            number(pcie.max_width),
            number(pcie.max_speed)
        )
    })
}
