//! Orders that stand in a policy file, with or without an agent that writes it again.

use crate::config::{MOST_DRAINED, check_port};
use crate::operator::{Operator, OperatorRule};
use crate::rules::{Head, Inherited, Orders, Origin, command_mark, origin};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The orders of an operator that stand in a policy file.
///
/// The first agent that takes over the run dir knows them too: see [`crate::origin`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    operator: Operator,
    /// The ports that an agent found to be sick, each with the reason.
    sick: BTreeMap<String, String>,
}

impl Standing {
    /// Reads a policy file. Returns `None` if neither an agent nor `railweave policy` wrote it. Lines that are wrong,
    /// and those beyond the bounds, are left out.
    pub fn of(text: &str) -> Option<Self> {
        let (Origin::Agent(before) | Origin::Command(before)) = origin(text) else { return None };
        let Inherited { drained, rules, sick, .. } = before;
        let mut standing = Self::default();
        for port in &drained {
            let _ = standing.operator.drain(port);
        }
        for rule in rules.into_iter().rev() {
            let _ = standing.operator.set(rule);
        }
        let sick = sick.into_iter().filter(|(port, _)| check_port("port", port).is_ok());
        standing.sick.extend(sick.take(MOST_DRAINED));
        Some(standing)
    }

    /// Empties a port. Returns false if an operator has drained it already.
    ///
    /// # Errors
    /// If no rule can name it, too many are drained, or the file has no room: a sentence.
    pub fn drain(&mut self, port: &str) -> Result<bool, String> {
        self.change(|operator| operator.drain(port))
    }

    /// Gives a port back, also if it is sick. Returns false if it was neither drained nor sick.
    pub fn give_back(&mut self, port: &str) -> bool {
        let was_sick = self.sick.remove(port).is_some();
        self.operator.give_back(port) || was_sick
    }

    /// Forgets which ports are sick: without an agent, nobody sees when they are well.
    pub fn forget_sick(&mut self) {
        self.sick.clear();
    }

    /// Sets a rule, such as `peer=node3 -> weights 80,20`. It comes first, in place of one with the same matchers in
    /// whatever order. Returns false if that changes nothing.
    ///
    /// # Errors
    /// If it is no rule, is too long, one too many, or the file has no room: a sentence.
    pub fn set(&mut self, rule: &str) -> Result<bool, String> {
        let rule = OperatorRule::parse(rule)?;
        self.change(|operator| operator.set(rule))
    }

    /// Clears the rule with these matchers, in whatever order. Returns false if there is none.
    pub fn clear(&mut self, matchers: &str) -> bool {
        self.operator.clear(matchers).is_some()
    }

    /// Returns the ports that an operator has drained, sorted.
    pub fn drained(&self) -> impl Iterator<Item = &str> {
        self.operator.drained()
    }

    /// Returns the rules, the newest first.
    pub fn rules(&self) -> impl Iterator<Item = &OperatorRule> {
        self.operator.rules().iter()
    }

    /// Returns the ports that an agent found to be sick, sorted, each with the reason: the end of a sentence that
    /// begins with the port. They are to be empty too.
    pub fn sick(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sick.iter().map(|(port, reason)| (port.as_str(), reason.as_str()))
    }

    /// Returns true if the same is ordered, whatever the order of matchers in a rule.
    pub fn is_like(&self, other: &Self) -> bool {
        let rules =
            |standing: &Self| -> Vec<_> { standing.rules().map(|rule| (rule.key(), rule.actions.clone())).collect() };
        let drained = |standing: &Self| -> Vec<_> { standing.drained().map(str::to_owned).collect() };
        drained(self) == drained(other) && self.sick == other.sick && rules(self) == rules(other)
    }

    /// Returns true if nothing is ordered.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the rules of the file, one line each: drains hold together with rules that name no rails.
    pub fn orders(&self) -> String {
        let drained = self.drained_with(&self.operator);
        // No rule of a file that nobody is named in depends on the user.
        Orders { ordered: self.operator.rules(), drained, ..Orders::default() }.rules(0).0
    }

    /// Returns the text of the file, as `railweave policy` writes it. `who` has the version and the host, such as
    /// `0.1.0 on node1`, and `clock` is the time since 1970. With `ttl_s`, the file holds for this many seconds from
    /// then on, 1 to 86,400; otherwise, until it is removed.
    pub fn file(&self, who: &str, clock: Duration, ttl_s: Option<u64>) -> String {
        let head = Head { mark: command_mark(who), operator: &self.operator, sick: self.sick().collect(), ttl_s };
        head.file(&self.orders(), clock)
    }

    /// Changes the orders, unless the file would have no room for all of them.
    fn change(&mut self, change: impl FnOnce(&mut Operator) -> Result<bool, String>) -> Result<bool, String> {
        let mut operator = self.operator.clone();
        let is_changed = change(&mut operator)?;
        Orders::check_room(&operator, self.drained_with(&operator))?;
        self.operator = operator;
        Ok(is_changed)
    }

    /// Returns the ports that are to be empty with these orders of an operator.
    fn drained_with<'a>(&'a self, operator: &'a Operator) -> Vec<&'a str> {
        let drained: BTreeSet<&str> = operator.drained().chain(self.sick.keys().map(String::as_str)).collect();
        drained.into_iter().collect()
    }
}
