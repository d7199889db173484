//! The policy file that is in a run dir, as the agent has found it.

use railweave_agent::{Inherited, Origin, Writer, origin, writer};
use railweave_telemetry::{FoundPolicy, Rules, Stamp};

/// A policy file that is there.
pub(super) struct Found {
    pub(super) stamp: Stamp,
    /// True if an agent wrote it, or `railweave policy` for this agent. Otherwise somebody else did, and it is left
    /// alone.
    pub(super) is_agents: bool,
    /// The last second in which it holds, since 1970; `None` if it holds until it is removed, or is the file of an
    /// agent, whose end is no order: its drains hold however old they are.
    end_s: Option<u64>,
}

impl Found {
    /// Returns the file of this agent.
    pub(super) fn own(stamp: Stamp) -> Self {
        Self { stamp, is_agents: true, end_s: None }
    }

    /// Returns a file. Only one that is this user's own, in a folder of this user, counts if `railweave policy` wrote
    /// it: other users steer their own jobs so.
    pub(super) fn new(policy: &FoundPolicy, is_own: bool) -> Self {
        let FoundPolicy { text, stamp, .. } = policy;
        let writer = writer(text);
        let is_agents = writer == Writer::Agent || (writer == Writer::Command && is_own);
        let end_s =
            if writer == Writer::Agent { None } else { Rules::parse(text).ok().and_then(|rules| rules.end_s()) };
        Self { stamp: *stamp, is_agents, end_s }
    }

    /// Returns true if it keeps the agent from steering at this time, in seconds since 1970.
    pub(super) fn keeps_out(&self, clock_s: u64) -> bool {
        !self.is_agents && self.end_s.is_none_or(|end_s| clock_s <= end_s)
    }

    /// Returns the orders in its text to take over, and true if they were to end later; `None` if there are none.
    pub(super) fn inherited(&self, text: &str, clock_s: u64) -> Option<(Inherited, bool)> {
        match origin(text) {
            Origin::Agent(before) => Some((before, false)),
            Origin::Command(_) if self.end_s.is_some_and(|end_s| end_s < clock_s) => None,
            Origin::Command(before) => Some((before, self.end_s.is_some())),
            Origin::Other => None,
        }
    }
}

/// Returns the sentence about a policy file of somebody else.
pub(super) fn foreign(path: &str) -> String {
    format!(
        "\"{path}/policy\" was written by somebody else, and this agent leaves it alone; try removing it, or its rules \
         in `fixed` of the agent's configuration"
    )
}
