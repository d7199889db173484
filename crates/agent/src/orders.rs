//! Orders of an operator: through the API, or left by an agent before this one.

use crate::agent::Agent;
use crate::config::{MOST_DRAINED, check_port};
use crate::rules::Inherited;
use crate::time::Now;
use std::time::Duration;

/// The most ports that are known as given back.
const MOST_GIVEN_BACK: usize = 1024;

impl Agent {
    /// Empties a port, for an operator.
    ///
    /// # Errors
    /// If no rule can name it, or too many are drained: a sentence.
    pub fn drain(&mut self, port: &str) -> Result<(), String> {
        check_port("port", port)?;
        if self.operator.len() >= MOST_DRAINED && !self.operator.contains(port) {
            return Err(format!(
                "port: \"{port}\" is one too many; allowed: {MOST_DRAINED} ports that are drained; try giving one back"
            ));
        }
        self.operator.insert(port.to_owned());
        self.given_back.remove(port);
        self.set_drains();
        Ok(())
    }

    /// Gives a port back that an operator has drained. Returns false if none has.
    pub fn give_back(&mut self, port: &str, now: Now) -> bool {
        let was_drained = self.operator.remove(port);
        if was_drained {
            self.given_back.insert(port.to_owned(), now.up);
            // Names may be made up, and the oldest are those that matter least.
            if self.given_back.len() > MOST_GIVEN_BACK
                && let Some(oldest) = self.given_back.iter().min_by_key(|(_, at)| **at).map(|(port, _)| port.clone())
            {
                self.given_back.remove(&oldest);
            }
        }
        self.set_drains();
        was_drained
    }

    /// Takes over the orders of an agent before this one, but for ports that were given back since. Returns the
    /// sentences to log.
    ///
    /// In doubt, because the clock was set, a port is drained.
    pub fn inherit(&mut self, before: &Inherited, now: Now) -> Vec<String> {
        let mut lines = Vec::new();
        // By the present clock, whatever it said then.
        let is_over = |at: &Duration| {
            let given_back = now.clock.saturating_sub(now.up.saturating_sub(*at));
            Duration::from_secs(before.written_s) <= given_back
        };
        let is_given_back = |port: &&String| self.given_back.get(*port).is_some_and(is_over);
        let drained: Vec<_> = before.drained.iter().filter(|port| !is_given_back(port)).collect();
        for port in drained {
            lines.push(match self.drain(port) {
                Ok(()) => format!("port {port} stays drained, as an agent before this one was told"),
                Err(error) => error,
            });
        }
        if self.config.avoid_sick.is_some() {
            let sick = before.sick.iter().filter(|(port, _)| check_port("port", port).is_ok()).take(MOST_DRAINED);
            for (port, reason) in sick {
                if self.health.entry(port.clone()).or_default().inherit(reason, self.now.up) {
                    lines.push(format!("port {port} stays drained: it {reason}, as an agent before this one saw"));
                }
            }
        }
        self.set_drains();
        lines
    }

    /// Returns the ports that an operator has drained.
    pub fn drained_by_operator(&self) -> impl Iterator<Item = &str> {
        self.operator.iter().map(String::as_str)
    }
}
