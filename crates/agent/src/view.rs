//! The state of a host as the JSON API and the policy script see it: docs/agent-api.json describes each field.

use crate::agent::Agent;
use crate::congestion::Congestion;
use crate::drain::{Phase, Reason};
use crate::findings::Severity;
use crate::names::counted_name;
use crate::ports::{PortCounters, PortUse};
use crate::series::{GroupKey, Series, SeriesKey};
use crate::user::Steers;
use railweave_counters::{Counter, Unit};
use railweave_telemetry::{BUCKETS, ConnectionState, Direction, Latencies, RailState};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Everything that the agent knows.
#[derive(Debug, Serialize)]
pub struct State {
    /// The agent itself.
    pub agent: AgentView,
    /// The users whose run dirs it watches.
    pub users: Vec<UserView>,
    /// Their jobs.
    pub jobs: Vec<JobView>,
    /// The ports of the host, and those that rails name.
    pub ports: Vec<PortView>,
    /// Things that an operator should know.
    pub findings: Vec<FindingView>,
}

/// The agent.
#[derive(Debug, Serialize)]
pub struct AgentView {
    /// The version of the program.
    pub version: String,
    /// The time of the last look, in seconds since 1970.
    pub looked_at: f64,
    /// The seconds that it took.
    pub look_seconds: f64,
    /// The policies that are switched on.
    pub policies: Vec<&'static str>,
}

/// A user.
#[derive(Debug, Serialize)]
pub struct UserView {
    /// The number of the user.
    pub user: u32,
    /// The run dirs.
    pub run_dirs: Vec<RunDirView>,
    /// The rules that the agent orders there, one for each line.
    pub rules: Vec<String>,
}

/// A run dir.
#[derive(Debug, Serialize)]
pub struct RunDirView {
    /// The folder.
    pub run_dir: String,
    /// True if the agent writes the policy file there when anything is ordered.
    pub steers: bool,
    /// True if it would, and its last attempt has failed: it takes orders, and each look retries it.
    pub write_failed: bool,
    /// The reason why it does not.
    pub reason: Option<String>,
}

/// A job of a user.
#[derive(Debug, Serialize)]
pub struct JobView {
    /// The number of the user.
    pub user: u32,
    /// The job's id; `None` if it is not known.
    pub job: Option<String>,
    /// Its processes on this host.
    pub processes: Vec<ProcessView>,
    /// Its connections, by the peer's host and the device.
    pub groups: Vec<GroupView>,
}

/// A process.
#[derive(Debug, Serialize)]
pub struct ProcessView {
    /// The name of its telemetry file.
    pub file: String,
    /// Its process id.
    pub pid: u32,
    /// Its rank in the job.
    pub rank: Option<u32>,
    /// The host that its file names.
    pub host: String,
    /// `running`, `silent`, `gone` or `unknown`.
    pub presence: &'static str,
}

/// Connections to one host by one device.
#[derive(Debug, Serialize)]
pub struct GroupView {
    /// The name of the peer's host.
    pub peer_host: String,
    /// The name of the device.
    pub device: String,
    /// The number of connections that send, by state.
    pub sending: BTreeMap<&'static str, u32>,
    /// The number of connections that receive, by state.
    pub receiving: BTreeMap<&'static str, u32>,
    /// The weights that the agent orders, by the rails' numbers, 0 to 1.
    pub weights: Option<BTreeMap<u8, f64>>,
    /// The rails.
    pub rails: Vec<RailView>,
}

/// The rails of one number and port.
#[derive(Debug, Serialize)]
pub struct RailView {
    /// The number in the connections.
    pub rail: u8,
    /// The name of this end's port.
    pub port: Option<String>,
    /// The number of rails in each state.
    pub states: BTreeMap<&'static str, u32>,
    /// Data bytes sent and received since the agent began.
    pub sent_bytes: u64,
    /// See above.
    pub received_bytes: u64,
    /// Bytes per second now.
    pub sent_bytes_per_second: f64,
    /// See above.
    pub received_bytes_per_second: f64,
    /// The part of the group's data that is sent over it, 0 to 1; `None` while nothing is sent.
    pub share: Option<f64>,
    /// The part that its reported speed would give it among the rails that are up.
    pub expected_share: Option<f64>,
    /// Bytes that were posted and have not completed.
    pub in_flight_bytes: u64,
    /// Parts of messages that were sent again.
    pub retransmitted_parts: u64,
    /// The latency that half, and 99 %, of the sampled writes did not exceed, in seconds.
    pub latency_p50_seconds: Option<f64>,
    /// See above.
    pub latency_p99_seconds: Option<f64>,
}

/// A port.
#[derive(Debug, Serialize)]
pub struct PortView {
    /// Its name.
    pub port: String,
    /// True if its link is up; `None` if it is not known.
    pub up: Option<bool>,
    /// Its link's rate in bytes per second, and the largest that the agent has seen.
    pub rate_bytes_per_second: Option<u64>,
    /// See above.
    pub largest_rate_bytes_per_second: Option<u64>,
    /// Bytes per second that jobs send and receive over it now.
    pub sent_bytes_per_second: f64,
    /// See above.
    pub received_bytes_per_second: f64,
    /// Signs of congestion of what it sends, per second.
    pub congestion_marks_per_second: f64,
    /// Errors of its link in the last minute.
    pub link_errors: u64,
    /// The part of its share that it keeps; below 1, `avoid-congestion` moves data off it.
    pub weight: f64,
    /// The drain, if it is to be empty.
    pub drain: Option<DrainView>,
    /// Its counters: in bytes, packets or events, and times in microseconds, as their names say.
    pub counters: BTreeMap<String, u64>,
}

/// A port that is to be empty.
#[derive(Debug, Serialize)]
pub struct DrainView {
    /// The reasons.
    pub reasons: Vec<ReasonView>,
    /// The progress.
    pub phase: Phase,
    /// The time since which it has this phase, in seconds since 1970.
    pub since: f64,
}

/// A reason for which a port is to be empty.
#[derive(Debug, Serialize)]
pub struct ReasonView {
    /// The reason.
    pub reason: Reason,
    /// The time since which it holds, in seconds since 1970.
    pub since: f64,
}

/// A finding.
#[derive(Debug, Serialize)]
pub struct FindingView {
    /// Its kind.
    pub kind: &'static str,
    /// The thing that it is about.
    pub about: String,
    /// Its urgency.
    pub severity: Severity,
    /// The sentence.
    pub text: String,
    /// The time since which it is there, in seconds since 1970.
    pub since: f64,
}

/// The rails of a group, with the shares that they have and that their speeds would give them.
pub(crate) struct Shared<'a> {
    pub(crate) rails: Vec<(&'a SeriesKey, &'a Series, Option<f64>, Option<f64>)>,
}

impl Agent {
    /// Returns the groups with their rails.
    pub(crate) fn shared(&self) -> BTreeMap<&GroupKey, Shared<'_>> {
        let mut groups: BTreeMap<&GroupKey, Vec<(&SeriesKey, &Series)>> = BTreeMap::new();
        for (key, series) in self.world.series.iter() {
            groups.entry(&key.group).or_default().push((key, series));
        }
        let shared = groups.into_iter().map(|(group, mut rails)| {
            rails.sort_unstable_by_key(|(key, _)| (key.rail, &key.port));
            let sent: f64 = rails.iter().map(|(_, series)| series.sent_rate).sum();
            let is_usable = |series: &Series| series.in_state(RailState::Up) > 0;
            let usable = || rails.iter().filter(|(_, series)| is_usable(series));
            let speeds: Option<f64> = usable().map(|(_, series)| series.speed_mbps.map(f64::from)).sum();
            let speeds = speeds.filter(|speeds| *speeds > 0.0);
            let is_whole = usable().count() > 0;
            let views = rails.iter().map(|(key, series)| {
                let share = (sent > 0.0).then(|| series.sent_rate / sent);
                let speed = series.speed_mbps.filter(|_| is_whole && is_usable(series));
                let expected = speed.zip(speeds).map(|(speed, speeds)| f64::from(speed) / speeds);
                (*key, *series, share, expected)
            });
            (group, Shared { rails: views.collect() })
        });
        shared.collect()
    }

    /// Returns all names of ports: those that have counters and those that rails name.
    pub(crate) fn port_names(&self) -> BTreeSet<&str> {
        let counted: BTreeSet<String> = self.uses.keys().map(|port| counted_name(port)).collect();
        // One whose rails have names of their own is shown under these.
        let own = self.counters.keys().map(String::as_str);
        let own = own.filter(|name| !counted.contains(*name) || self.uses.contains_key(*name));
        let drained = self.drains.keys().map(String::as_str);
        own.chain(self.uses.keys().map(String::as_str)).chain(drained).collect()
    }

    /// Returns everything that the agent knows.
    pub fn state(&self) -> State {
        State {
            agent: AgentView {
                version: self.version.clone(),
                looked_at: self.now.clock.as_secs_f64(),
                look_seconds: self.look_took.as_secs_f64(),
                policies: self.policies(),
            },
            users: self.user_views(),
            jobs: self.job_views(),
            ports: self.port_names().into_iter().map(|port| self.port_view(port)).collect(),
            findings: self
                .findings
                .iter()
                .map(|(finding, since)| FindingView {
                    kind: finding.kind,
                    about: finding.about.clone(),
                    severity: finding.severity,
                    text: finding.text.clone(),
                    since: since.as_secs_f64(),
                })
                .collect(),
        }
    }

    /// Returns the names of the policies that are switched on.
    fn policies(&self) -> Vec<&'static str> {
        let config = &self.config;
        let all = [
            ("operator", self.operator_rules().next().is_some()),
            ("fixed", !config.fixed.is_empty()),
            ("drain", !self.drains.is_empty()),
            ("balance", config.balance.is_some()),
            ("avoid-congestion", config.avoid_congestion.is_some()),
            ("avoid-sick", config.avoid_sick.is_some()),
            ("script", config.script.is_some()),
        ];
        all.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect()
    }

    fn user_views(&self) -> Vec<UserView> {
        let views = self.users.iter().map(|(number, user)| UserView {
            user: *number,
            run_dirs: user
                .run_dirs
                .iter()
                .map(|(run_dir, steers)| RunDirView {
                    run_dir: run_dir.clone(),
                    steers: *steers == Steers::Yes,
                    write_failed: matches!(steers, Steers::Failing(_)),
                    reason: match steers {
                        Steers::No(reason) | Steers::Failing(reason) => Some(reason.clone()),
                        Steers::Yes | Steers::Unknown => None,
                    },
                })
                .collect(),
            rules: self.rules(*number).lines().map(str::to_owned).collect(),
        });
        views.collect()
    }

    fn job_views(&self) -> Vec<JobView> {
        let mut jobs: BTreeMap<(u32, &str), JobView> = BTreeMap::new();
        fn job<'a, 'b>(jobs: &'b mut BTreeMap<(u32, &'a str), JobView>, user: u32, name: &'a str) -> &'b mut JobView {
            jobs.entry((user, name)).or_insert_with(|| JobView {
                user,
                job: (!name.is_empty()).then(|| name.to_owned()),
                processes: Vec::new(),
                groups: Vec::new(),
            })
        }
        for ((user, file), process) in &self.world.processes {
            let facts = &process.facts;
            job(&mut jobs, *user, &facts.job).processes.push(ProcessView {
                file: file.clone(),
                pid: facts.pid,
                rank: facts.rank,
                host: facts.host.clone(),
                presence: process.life.word(),
            });
        }
        for (group, shared) in self.shared() {
            let number = self.world.groups.find(group);
            let states = number.and_then(|number| self.world.groups.get(number)).map(|(_, group)| group.states);
            let counted = |direction: Direction| {
                let counts = states.map_or([0; ConnectionState::ALL.len()], |states| states[direction as usize]);
                let named = ConnectionState::ALL.iter().map(|state| (state.word(), counts[*state as usize]));
                named.filter(|(_, count)| *count > 0).collect()
            };
            job(&mut jobs, group.user, &group.job).groups.push(GroupView {
                peer_host: group.peer_host.clone(),
                device: group.device.clone(),
                sending: counted(Direction::Send),
                receiving: counted(Direction::Receive),
                weights: self.weights.get(group).map(|weights| weights.iter().copied().collect()),
                rails: shared.rails.into_iter().map(rail_view).collect(),
            });
        }
        jobs.into_values().collect()
    }

    fn port_view(&self, port: &str) -> PortView {
        let counted = counted_name(port);
        let counters = self.counters.get(&counted);
        let reading = counters.and_then(|counters| counters.reading.as_ref());
        let signs = counters.map(|counters| counters.signs(self.now.up)).unwrap_or_default();
        let none = PortUse::default();
        let usage = self.uses.get(port).unwrap_or(&none);
        let drain = self.drain_of(port).map(|drain| DrainView {
            reasons: drain
                .reasons
                .iter()
                .map(|(reason, since)| ReasonView { reason: *reason, since: since.as_secs_f64() })
                .collect(),
            phase: drain.phase,
            since: drain.since.as_secs_f64(),
        });
        PortView {
            port: port.to_owned(),
            up: reading.and_then(|reading| reading.is_up),
            rate_bytes_per_second: reading.and_then(|reading| reading.rate),
            largest_rate_bytes_per_second: counters.and_then(|counters: &PortCounters| counters.largest_rate),
            sent_bytes_per_second: usage.sent_rate,
            received_bytes_per_second: usage.received_rate,
            congestion_marks_per_second: signs.marks,
            link_errors: signs.errors,
            weight: self.congestion.get(&counted).map_or(1.0, Congestion::factor),
            drain,
            counters: reading
                .iter()
                .flat_map(|reading| &reading.counters)
                .map(|(counter, value)| (counter_name(*counter), *value))
                .collect(),
        }
    }
}

/// Returns the name under which the raw value of a counter is shown.
fn counter_name(counter: Counter) -> String {
    let name = counter.name();
    match (counter.unit(), name.strip_suffix("_seconds")) {
        // Metrics have seconds.
        (Unit::Microseconds, Some(name)) => format!("{name}_microseconds"),
        _ => name.to_owned(),
    }
}

fn rail_view((key, series, share, expected_share): (&SeriesKey, &Series, Option<f64>, Option<f64>)) -> RailView {
    let states = RailState::ALL.iter().map(|state| (state.word(), series.in_state(*state)));
    RailView {
        rail: key.rail,
        port: (!key.port.is_empty()).then(|| key.port.clone()),
        states: states.filter(|(_, count)| *count > 0).collect(),
        sent_bytes: series.counters[0],
        received_bytes: series.counters[1],
        sent_bytes_per_second: series.sent_rate,
        received_bytes_per_second: series.received_rate,
        share,
        expected_share,
        in_flight_bytes: series.in_flight,
        retransmitted_parts: series.counters[4],
        latency_p50_seconds: quantile(&series.latencies, 0.5),
        latency_p99_seconds: quantile(&series.latencies, 0.99),
    }
}

/// Returns the estimate of a quantile in seconds.
fn quantile(latencies: &[u64; BUCKETS], part: f64) -> Option<f64> {
    // Their proportions are enough, so counts that no histogram of a file could have are made smaller.
    let most = latencies.iter().copied().max().unwrap_or(0);
    let divisor = (most / u64::from(u32::MAX)).saturating_add(1);
    let counts = latencies.map(|count| u32::try_from(count / divisor).unwrap_or(u32::MAX));
    Latencies(counts).quantile(part).map(|micros| Duration::from_secs_f64(micros / 1e6).as_secs_f64())
}
