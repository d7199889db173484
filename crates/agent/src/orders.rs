//! Orders of an operator: through the API, or left by an agent before this one.

use crate::agent::Agent;
use crate::config::{MOST_DRAINED, check_port};
use crate::drain::Reason;
use crate::operator::{Operator, OperatorRule, key};
use crate::rules::{Inherited, Orders};
use crate::time::Now;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The most ports that are known as given back, and the most rules that are known as cleared.
const MOST_TAKEN_BACK: usize = 1024;

/// An order of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorOrder<'a> {
    /// Empties a port.
    Drain(&'a str),
    /// Gives a port back.
    GiveBack(&'a str),
    /// Sets a rule.
    Set(&'a str),
    /// Clears the rule with these matchers.
    Clear(&'a str),
}

/// The rules of a user's policy file before and after an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserRules {
    /// The number of the user.
    pub user: u32,
    /// The present rules, one for each line.
    pub before: Vec<String>,
    /// The rules after the order, one for each line.
    pub rules: Vec<String>,
}

impl Agent {
    /// Returns the rules that the policy file of each user has, and would have after an order, which is not given.
    /// Returns `None` if there is nothing to give back or to clear.
    ///
    /// # Errors
    /// If the order would fail: its sentence.
    pub fn dry_run(&self, order: OperatorOrder<'_>) -> Result<Option<Vec<UserRules>>, String> {
        let mut operator = self.operator.clone();
        let is_there = match order {
            OperatorOrder::Drain(port) => operator.drain(port).map(|_| true)?,
            OperatorOrder::GiveBack(port) => operator.give_back(port),
            OperatorOrder::Set(rule) => operator.set(OperatorRule::parse(rule)?).map(|_| true)?,
            OperatorOrder::Clear(matchers) => operator.clear(matchers).is_some(),
        };
        if !is_there {
            return Ok(None);
        }
        if matches!(order, OperatorOrder::Drain(_) | OperatorOrder::Set(_)) {
            self.check_room(&operator)?;
        }
        let wanted = self.wanted(&operator);
        let orders = self.orders_with(&operator, wanted.keys().map(String::as_str).collect());
        let lines = |rules: String| rules.lines().map(str::to_owned).collect();
        let rules = |user: &u32| UserRules {
            user: *user,
            before: lines(self.rules(*user)),
            rules: lines(orders.rules(*user).0),
        };
        Ok(Some(self.users.keys().map(rules).collect()))
    }

    /// Refuses orders of an operator that the policy files have no room for, unless they are those of now.
    fn check_room(&self, operator: &Operator) -> Result<(), String> {
        if *operator == self.operator {
            return Ok(());
        }
        Orders::check_room(operator, self.wanted(operator).keys().map(String::as_str).collect())
    }

    /// Empties a port, for an operator.
    ///
    /// # Errors
    /// If no rule can name it, too many are drained, or the policy files have no room: a sentence.
    pub fn drain(&mut self, port: &str) -> Result<(), String> {
        let mut operator = self.operator.clone();
        operator.drain(port)?;
        self.check_room(&operator)?;
        (self.operator, self.is_ordered) = (operator, true);
        self.given_back.remove(port);
        self.set_drains();
        Ok(())
    }

    /// Gives a port back that an operator has drained. Returns false if none has.
    pub fn give_back(&mut self, port: &str, now: Now) -> bool {
        let was_drained = self.operator.give_back(port);
        if was_drained {
            self.is_ordered = true;
            note(&mut self.given_back, port.to_owned(), now.up);
        }
        self.set_drains();
        was_drained
    }

    /// Sets a rule of an operator, such as `peer=node3 -> weights 80,20`. It comes first, in place of one with the same
    /// matchers. Returns it as it is kept.
    ///
    /// # Errors
    /// If it is no rule, is too long, one too many, or the policy files have no room: a sentence.
    pub fn set_rule(&mut self, rule: &str, now: Now) -> Result<OperatorRule, String> {
        let rule = OperatorRule::parse(rule)?;
        let mut operator = self.operator.clone();
        let is_new = operator.set(rule.clone())?;
        self.check_room(&operator)?;
        (self.operator, self.is_ordered) = (operator, true);
        let at = self.set.entry(rule.key()).or_insert(now);
        // One that was set before goes on, and yet no older file says otherwise.
        *at = Now { clock: if is_new { now.clock } else { at.clock }, up: now.up };
        self.cleared.remove(&rule.key());
        Ok(rule)
    }

    /// Clears the rule of an operator that has these matchers, in whatever order. Returns it if there was one.
    pub fn clear_rule(&mut self, matchers: &str, now: Now) -> Option<OperatorRule> {
        let rule = self.operator.clear(matchers)?;
        self.is_ordered = true;
        self.set.remove(&rule.key());
        note(&mut self.cleared, rule.key(), now.up);
        Some(rule)
    }

    /// Returns the rules of an operator, the newest first, each with the time of its order by the host's clock. For
    /// those of an agent before this one, it is the time at which this one took them over.
    pub fn operator_rules(&self) -> impl Iterator<Item = (&OperatorRule, Duration)> {
        self.operator
            .rules()
            .iter()
            .map(|rule| (rule, self.set.get(&key(&rule.matchers)).map_or(Duration::ZERO, |at| at.clock)))
    }

    /// Takes over the orders of an agent before this one, but for ports that were given back and rules that were set or
    /// cleared since. Returns the sentences to log.
    ///
    /// In doubt, because the clock was set, a port is drained, and a rule holds.
    pub fn inherit(&mut self, before: &Inherited, now: Now) -> Vec<String> {
        let mut lines = Vec::new();
        // By the present clock, whatever it said then.
        let is_over = |at: &Duration| {
            let then = now.clock.saturating_sub(now.up.saturating_sub(*at));
            Duration::from_secs(before.written_s) <= then
        };
        let is_given_back = |port: &&String| self.given_back.get(*port).is_some_and(is_over);
        let drained: Vec<_> = before.drained.iter().filter(|port| !is_given_back(port)).collect();
        for port in drained {
            // However little room there is: what was in a file has some.
            lines.push(match self.operator.drain(port) {
                Ok(_) => {
                    self.given_back.remove(port);
                    format!("port {port} stays drained, as an agent before this one was told")
                }
                Err(error) => error,
            });
        }
        lines.extend(self.inherit_rules(&before.rules, is_over, now));
        if self.config.avoid_sick.is_some() {
            let sick = before.sick.iter().filter(|(port, _)| check_port("port", port).is_ok()).take(MOST_DRAINED);
            for (port, reason) in sick {
                if self.health.entry(port.clone()).or_default().inherit(reason, self.now.up) {
                    lines.push(format!("port {port} stays drained: it {reason}, as an agent before this one saw"));
                }
            }
        }
        let changes = self.drain_changes.len();
        self.set_drains();
        // That agent has seen these begin.
        let mut place = 0;
        self.drain_changes.retain(|change| {
            place += 1;
            place <= changes || change.reason != Reason::Sick
        });
        lines
    }

    /// Takes over rules, the newest first, of an agent before this one. `is_over` is true of times [`Now::up`] at which
    /// that agent did not write any more. Returns the sentences to log.
    fn inherit_rules(&mut self, rules: &[OperatorRule], is_over: impl Fn(&Duration) -> bool, now: Now) -> Vec<String> {
        let mut lines = Vec::new();
        let is_set_since = |key: &str| self.set.get(key).is_some_and(|at| is_over(&at.up));
        let is_cleared_since = |key: &str| self.cleared.get(key).is_some_and(&is_over);
        let taken: Vec<_> = rules.iter().map(|rule| (rule, rule.key())).collect();
        let taken: Vec<_> = taken.into_iter().filter(|(_, key)| !is_set_since(key) && !is_cleared_since(key)).collect();
        // After those that this agent was told since, and before its older ones.
        let own = self.operator.rules();
        let mut place = own.iter().take_while(|rule| is_set_since(&rule.key())).count();
        for (rule, key) in taken {
            match self.operator.put(place, rule.clone()) {
                Ok(is_new) => {
                    place += 1;
                    self.cleared.remove(&key);
                    if is_new {
                        self.set.insert(key, now);
                        lines.push(format!("rule {rule} goes on, as an agent before this one was told"));
                    }
                }
                Err(error) => lines.push(error),
            }
        }
        lines
    }

    /// Returns the ports that an operator has drained.
    pub fn drained_by_operator(&self) -> impl Iterator<Item = &str> {
        self.operator.drained()
    }
}

/// Notes that something was taken back at a time.
fn note(taken_back: &mut BTreeMap<String, Duration>, name: String, up: Duration) {
    taken_back.insert(name, up);
    // Names may be made up, and the oldest are those that matter least.
    if taken_back.len() > MOST_TAKEN_BACK
        && let Some(oldest) = taken_back.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone())
    {
        taken_back.remove(&oldest);
    }
}
