//! Ports that are to be empty: who says so, and how far that is.

use crate::ports::PortUse;
use railweave_telemetry::RailState;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time for which a port has to have sent nothing until it counts as empty: a process writes its counters ten times
/// a second while messages move.
const QUIET: Duration = Duration::from_millis(1500);

/// The time after the first look that follows an order within which jobs follow it and their files show that: an idle
/// process notices a policy file after a second, and writes its own after two more.
const FOLLOWED: Duration = Duration::from_secs(5);

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
    /// This host sends nothing over the port.
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

/// A port that is to be empty.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    /// The reasons, and the time since which each holds by the host's clock.
    pub(crate) reasons: BTreeMap<Reason, Duration>,
    /// The time of the first look after the order, by the agent's own clock. The order itself may come between two
    /// looks that are rare, or before the first one of all.
    looked: Option<Duration>,
    pub(crate) phase: Phase,
    /// The time since which it has its phase, by the host's clock.
    pub(crate) since: Duration,
}

impl Drain {
    pub(crate) fn new(clock: Duration) -> Self {
        Self { reasons: BTreeMap::new(), looked: None, phase: Phase::Emptying, since: clock }
    }

    /// Returns the progress, from the use of the port.
    pub(crate) fn look(&mut self, usage: &PortUse, up: Duration, clock: Duration) {
        let age = up.saturating_sub(*self.looked.get_or_insert(up));
        let using = usage.in_state(RailState::Up) + usage.in_state(RailState::Suspected);
        let is_quiet = usage.sent_at.is_none_or(|at| up.saturating_sub(at) >= QUIET) && usage.in_flight == 0;
        let phase = match (using, is_quiet) {
            (0, true) if age >= QUIET => Phase::Empty,
            (0, _) => Phase::Emptying,
            _ if age >= FOLLOWED => Phase::InVain,
            _ => Phase::Emptying,
        };
        if phase != self.phase {
            (self.phase, self.since) = (phase, clock);
        }
    }
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
            drain.look(usage, Duration::from_secs(second), Duration::from_secs(second));
            drain.phase
        };
        assert_eq!(look(11, &usage(2, 0, 5, Some(11))), Phase::Emptying);
        assert_eq!(look(12, &usage(0, 2, 5, Some(11))), Phase::Emptying, "bytes are in flight");
        assert_eq!(look(13, &usage(0, 2, 0, Some(12))), Phase::Emptying, "it has just sent something");
        assert_eq!(look(14, &usage(0, 2, 0, Some(12))), Phase::Empty);
        assert_eq!(look(15, &usage(1, 2, 0, Some(12))), Phase::Emptying, "a job that has just begun");
        assert_eq!(look(16, &usage(1, 2, 0, Some(12))), Phase::InVain, "a connection that has no other");
        assert_eq!(look(17, &usage(0, 2, 0, Some(12))), Phase::Empty);
        assert_eq!(look(18, &PortUse::default()), Phase::Empty, "nobody uses it");
        assert_eq!(look(30, &usage(0, 2, 5, Some(12))), Phase::Emptying, "long silent, and yet in flight");
        let mut suspected = usage(0, 2, 0, Some(12));
        suspected.states[RailState::Suspected as usize] = 1;
        assert_eq!(look(31, &suspected), Phase::InVain, "it may send again");
    }

    #[test]
    fn a_port_that_nobody_uses_is_empty_soon() {
        let mut drain = Drain::new(Duration::ZERO);
        drain.look(&PortUse::default(), Duration::from_secs(1), Duration::ZERO);
        assert_eq!(drain.phase, Phase::Emptying);
        drain.look(&PortUse::default(), Duration::from_secs(3), Duration::from_secs(9));
        assert_eq!((drain.phase, drain.since), (Phase::Empty, Duration::from_secs(9)));
    }
}
