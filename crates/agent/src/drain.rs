//! Ports that are to be empty: who says so, and how far that is.

use crate::findings::{Finding, Severity};
use crate::ports::PortUse;
use railweave_telemetry::RailState;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time for which a port has to have sent nothing until it counts as empty: a process writes its counters ten times
/// a second while messages move.
const QUIET: Duration = Duration::from_millis(1500);

/// The time after the first look that follows an order within which jobs follow it and their files show that: an idle
/// process notices a policy file after a second, and writes its own after two more.
const FOLLOWED: Duration = Duration::from_secs(5);

/// The names that a sentence repeats.
const NAMED: usize = 8;

/// The reason for which a port is to be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// An operator said so through the API.
    Operator,
    /// The configuration says so.
    Configuration,
    /// Its link is sick.
    Sick,
}

impl Reason {
    /// Returns the word of it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Configuration => "configuration",
            Self::Sick => "sick",
        }
    }

    /// Returns the way in which a port is given back: the end of a sentence.
    fn end(self, port: &str) -> String {
        match self {
            Self::Operator => format!("order `railweave policy clear {port}`"),
            Self::Configuration => "take it out of `drain` in the configuration, and reload it".to_owned(),
            Self::Sick => {
                "mend its link: the agent uses it once it was well for long enough (avoid-sick in docs/agent.md)"
                    .to_owned()
            }
        }
    }
}

/// A port that began or ceased to be drained by the configuration, or for being sick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainChange {
    /// The port.
    pub port: String,
    /// The reason: never an operator.
    pub reason: Reason,
    /// True if it began.
    pub begins: bool,
}

/// The progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Jobs are to leave the port, or what they have posted is still being sent.
    Emptying,
    /// Rails go on using the port, because their connections have no other, or because their processes do not follow
    /// policy files.
    InVain,
    /// No job that the agent watches sends anything over the port.
    Empty,
}

impl Phase {
    /// Returns the word of it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Emptying => "emptying",
            Self::InVain => "in_vain",
            Self::Empty => "empty",
        }
    }
}

/// Everything that may use a port without saying so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unseen {
    /// The use of ports whose names are not known.
    pub(crate) nameless: PortUse,
    /// The files and folders that cannot be used.
    pub(crate) files: usize,
}

/// The reason for which a port that seems to be empty does not count as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// Nothing on this host has its name.
    Unknown,
    /// These rails and files do not say which ports they use.
    Unseen { rails: u32, files: usize },
}

/// A port that is to be empty.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    /// The reasons, and the time since which each holds by the host's clock.
    pub(crate) reasons: BTreeMap<Reason, Duration>,
    /// The time of the first look after the order, by the agent's own clock. The order itself may come between two
    /// looks that are rare, or before the first one of all.
    looked: Option<Duration>,
    /// The times of the first and the last look, since it was free, that found rails which use it: those of a job that
    /// begins do so until it has read its policy file.
    used: Option<(Duration, Duration)>,
    pub(crate) phase: Phase,
    /// The time since which it has its phase, by the host's clock.
    pub(crate) since: Duration,
    /// The reason for which it does not count as empty, once that has lasted.
    pub(crate) doubt: Option<Doubt>,
    /// True once anything on this host had its name.
    was_known: bool,
}

impl Drain {
    pub(crate) fn new(clock: Duration) -> Self {
        Self {
            reasons: BTreeMap::new(),
            looked: None,
            used: None,
            phase: Phase::Emptying,
            since: clock,
            doubt: None,
            was_known: false,
        }
    }

    /// Looks at the use of the port. `is_known` is true if anything on this host has its name.
    pub(crate) fn look(&mut self, usage: &PortUse, unseen: &Unseen, is_known: bool, up: Duration, clock: Duration) {
        self.was_known |= is_known;
        let age = up.saturating_sub(*self.looked.get_or_insert(up));
        let using = using(usage);
        self.used = match self.used {
            used if using > 0 => Some((used.map_or(up, |(first, _)| first), up)),
            // Rails that are down for a moment go on using it.
            used => used.filter(|(_, last)| up.saturating_sub(*last) < FOLLOWED),
        };
        let used_for = self.used.map_or(Duration::ZERO, |(first, _)| up.saturating_sub(first));
        let doubt = if self.was_known { unseen.doubt(up) } else { Some(Doubt::Unknown) };
        let is_quiet = is_quiet(usage, up);
        self.doubt = doubt.filter(|_| using == 0 && is_quiet && age >= FOLLOWED);
        let phase = match (using, is_quiet) {
            (0, true) if age >= QUIET && doubt.is_none() => Phase::Empty,
            (0, _) => Phase::Emptying,
            _ if used_for >= FOLLOWED => Phase::InVain,
            _ => Phase::Emptying,
        };
        if phase == Phase::Empty {
            self.used = None;
        }
        if phase != self.phase {
            (self.phase, self.since) = (phase, clock);
        }
    }

    /// Returns the findings about the drain of a port, from its use and the ports of this host.
    pub(crate) fn findings(&self, port: &str, usage: &PortUse, known: &BTreeSet<&str>) -> Vec<Finding> {
        let finding = |kind, severity, text| Finding { kind, about: port.to_owned(), severity, text };
        let words: Vec<_> = self.reasons.keys().map(|reason| reason.word()).collect();
        let ways: Vec<_> = self.reasons.keys().map(|reason| reason.end(port)).collect();
        let text =
            format!("port {port} is to be empty ({}); to give it back, {}", words.join(", "), ways.join(", and "));
        let mut findings = vec![finding("port-drained", Severity::Info, text)];
        let more = match (self.phase, self.doubt) {
            (Phase::Emptying, None) => None,
            (Phase::Emptying, Some(Doubt::Unknown)) => {
                let known = few(known).unwrap_or_else(|| "none".to_owned());
                let text = format!(
                    "port {port} is not known on this host, so nobody can say that it is empty; known: {known}; try \
                     one of these"
                );
                Some(finding("port-unknown", Severity::Warning, text))
            }
            (Phase::Emptying, Some(Doubt::Unseen { rails, files })) => {
                let rails = (rails > 0).then(|| {
                    format!(
                        "{rails} rails of processes whose files name no ports for them (they have an older version, \
                         or too many rails)"
                    )
                });
                let files = (files > 0).then(|| format!("{files} files that cannot be used (file-refused)"));
                let all: Vec<String> = rails.into_iter().chain(files).collect();
                let text = format!(
                    "port {port} may be in use by {}; try ending these processes, or removing the files",
                    all.join(" and ")
                );
                Some(finding("drain-in-vain", Severity::Warning, text))
            }
            (Phase::Empty, _) => {
                let rest = few(&usage.senders).map_or(String::new(), |peers| {
                    format!("; data from {peers} still comes over it: drain the port at its other end too")
                });
                let text = format!("port {port} is empty: no job that this agent watches sends over it{rest}");
                Some(finding("port-empty", Severity::Info, text))
            }
            (Phase::InVain, _) => {
                let text = format!(
                    "{} rails go on using port {port}: their connections have no other, or their processes follow \
                     RAILWEAVE_POLICY or RAILWEAVE_WEIGHTS; try giving them another port",
                    using(usage)
                );
                Some(finding("drain-in-vain", Severity::Warning, text))
            }
        };
        findings.extend(more);
        findings
    }
}

impl Unseen {
    fn doubt(&self, up: Duration) -> Option<Doubt> {
        let rails = using(&self.nameless).max(u32::from(!is_quiet(&self.nameless, up)));
        (rails > 0 || self.files > 0).then_some(Doubt::Unseen { rails, files: self.files })
    }
}

/// Returns the number of rails that may send.
fn using(usage: &PortUse) -> u32 {
    usage.in_state(RailState::Up).saturating_add(usage.in_state(RailState::Suspected))
}

fn is_quiet(usage: &PortUse, up: Duration) -> bool {
    usage.sent_at.is_none_or(|at| up.saturating_sub(at) >= QUIET) && usage.in_flight == 0
}

/// Returns some of the names as words; `None` if there are none.
fn few(names: &BTreeSet<impl AsRef<str>>) -> Option<String> {
    let named: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    let more = names.len() - named.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("{}{rest}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(up: u32, drained: u32, in_flight: u64, sent_at: Option<u64>) -> PortUse {
        let mut states = [0; RailState::ALL.len()];
        (states[RailState::Up as usize], states[RailState::Drained as usize]) = (up, drained);
        PortUse { states, in_flight, sent_at: sent_at.map(Duration::from_secs), ..PortUse::default() }
    }

    #[test]
    fn a_port_is_empty_once_nothing_can_come_any_more() {
        let mut drain = Drain::new(Duration::ZERO);
        let mut look = |second, usage: &PortUse| {
            let now = Duration::from_secs(second);
            drain.look(usage, &Unseen::default(), true, now, now);
            drain.phase
        };
        assert_eq!(look(11, &usage(2, 0, 5, Some(11))), Phase::Emptying);
        assert_eq!(look(12, &usage(0, 2, 5, Some(11))), Phase::Emptying, "bytes are in flight");
        assert_eq!(look(13, &usage(0, 2, 0, Some(12))), Phase::Emptying, "it has just sent something");
        assert_eq!(look(14, &usage(0, 2, 0, Some(12))), Phase::Empty);
        assert_eq!(look(15, &usage(1, 2, 0, Some(12))), Phase::Emptying, "a job that has just begun");
        assert_eq!(look(19, &usage(1, 2, 0, Some(12))), Phase::Emptying, "it may not have read its policy file yet");
        assert_eq!(look(20, &usage(1, 2, 0, Some(12))), Phase::InVain, "a connection that has no other");
        assert_eq!(look(21, &usage(0, 2, 0, Some(12))), Phase::Empty);
        assert_eq!(look(22, &PortUse::default()), Phase::Empty, "nobody uses it");
        assert_eq!(look(30, &usage(0, 2, 5, Some(12))), Phase::Emptying, "long silent, and yet in flight");
        let mut suspected = usage(0, 2, 0, Some(12));
        suspected.states[RailState::Suspected as usize] = 1;
        assert_eq!(look(31, &suspected), Phase::Emptying);
        assert_eq!(look(36, &suspected), Phase::InVain, "it may send again");
    }

    #[test]
    fn a_job_that_begins_has_its_time_however_long_the_drain_goes_on() {
        let mut drain = Drain::new(Duration::ZERO);
        let unseen = Unseen { files: 1, ..Unseen::default() };
        let mut look = |second, usage: &PortUse| {
            let now = Duration::from_secs(second);
            drain.look(usage, &unseen, true, now, now);
            drain.phase
        };
        let (used, free) = (usage(1, 0, 0, None), PortUse::default());
        assert_eq!(look(1, &used), Phase::Emptying);
        assert_eq!(look(5, &free), Phase::Emptying);
        assert_eq!(look(6, &used), Phase::InVain, "its rail was down for a moment");
        assert_eq!(look(11, &free), Phase::Emptying, "a file cannot be used");
        assert_eq!(look(12, &used), Phase::Emptying, "another job");
        assert_eq!(look(17, &used), Phase::InVain);
        assert_eq!(look(77, &used), Phase::InVain, "looks may be rare");
    }

    #[test]
    fn a_port_that_nobody_uses_is_empty_soon() {
        let mut drain = Drain::new(Duration::ZERO);
        let mut look = |up, clock| {
            let (up, clock) = (Duration::from_secs(up), Duration::from_secs(clock));
            drain.look(&PortUse::default(), &Unseen::default(), true, up, clock);
            (drain.phase, drain.since)
        };
        assert_eq!(look(1, 0), (Phase::Emptying, Duration::ZERO));
        assert_eq!(look(3, 9), (Phase::Empty, Duration::from_secs(9)));
    }
}
