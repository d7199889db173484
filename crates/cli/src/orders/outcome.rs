//! Orders, and the answers to them.

use super::effect::stands_for;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// An order of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// A port is to be empty.
    Drain { port: String },
    /// A port is given back.
    GiveBack { port: String },
    /// A rule holds before all others.
    Set { matchers: String, actions: String },
    /// The rule with these matchers holds no more.
    Clear { matchers: String },
}

impl fmt::Display for Order {
    /// The order as histories have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain { port } => write!(f, "drain {port}"),
            Self::GiveBack { port } => write!(f, "give back {port}"),
            Self::Set { matchers, actions } => write!(f, "set {matchers} -> {actions}"),
            Self::Clear { matchers } => write!(f, "clear {matchers}"),
        }
    }
}

/// The one who carries out the orders for a run dir.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum By {
    /// The agent that listens at this socket.
    Agent { socket: PathBuf },
    /// Nobody but the jobs, which read this policy file.
    File { path: PathBuf },
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent { socket } => write!(f, "the agent at \"{}\"", socket.display()),
            Self::File { path } => write!(f, "the policy file \"{}\"", path.display()),
        }
    }
}

/// The rules for a run dir, one line each, before and after an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preview {
    pub(crate) before: String,
    pub(crate) after: String,
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The order.
    pub(crate) order: Order,
    /// True if it changes anything.
    pub(crate) is_changed: bool,
    /// Sentences about it that an operator should read.
    pub(crate) notes: Vec<String>,
    /// Sick ports that are in use again with it, in a file of an agent that is gone.
    pub(crate) freed: Vec<String>,
    /// The reason why it may not be carried out, although it is taken.
    pub(crate) trouble: Option<Trouble>,
    /// The rules, if it was only asked about.
    pub(crate) preview: Option<Preview>,
}

impl Outcome {
    /// Returns true if nobody knows yet if it is carried out.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self.trouble, Some(Trouble::Late(_)))
    }
}

/// Notes which sick ports are in use again after all orders of a command.
pub(crate) fn note_freed(outcomes: &mut [Outcome]) {
    let mut freed: Vec<String> = Vec::new();
    for outcome in &*outcomes {
        if let Order::Drain { port } = &outcome.order {
            freed.retain(|freed| !stands_for(port, freed));
        }
        freed.extend(outcome.freed.iter().cloned());
    }
    if let (false, Some(last)) = (freed.is_empty(), outcomes.last_mut()) {
        let ports = freed.join(", ");
        last.notes.push(format!(
            "sick ports are in use again ({ports}): without an agent, nobody sees when they are well; try `railweave \
             policy drain`"
        ));
    }
}

/// The reason why an order that is taken may not be carried out: a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is not.
    Failed(String),
    /// Nobody knows yet.
    Late(String),
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> Self {
        let (Trouble::Failed(text) | Trouble::Late(text)) = trouble;
        text
    }
}

/// A port that is to be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Drained {
    pub(crate) port: String,
    /// The reasons, such as `operator`.
    pub(crate) reasons: Vec<String>,
    /// The progress: `emptying`, `in_vain` or `empty`; only an agent knows it.
    pub(crate) phase: Option<String>,
}

impl Drained {
    /// Returns true if an operator said so.
    pub(crate) fn is_ordered(&self) -> bool {
        self.reasons.iter().any(|reason| reason == "operator")
    }
}

/// A rule of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OrderedRule {
    pub(crate) matchers: String,
    pub(crate) actions: String,
}

/// The orders that stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct InForce {
    pub(crate) drains: Vec<Drained>,
    pub(crate) rules: Vec<OrderedRule>,
}
