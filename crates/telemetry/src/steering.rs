//! Both policy files, and the one that counts.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::policy_file::PolicyFile;
use crate::rules::{Order, RAILS, Subject};
use crate::seed_policy::{MOST_RANKS, SeedPolicy, remedy};

/// The weight of both rails together in an order that comes from the table.
const WHOLE: u32 = 1_000_000;

/// The policy files of a process. A rule of Railweave's own file wins; where none fits, the table of weights counts.
#[derive(Debug)]
pub struct Steering {
    own: PolicyFile,
    seed: SeedPolicy,
    /// True if it was said that a rank is not in the table.
    is_unknown_said: bool,
    to_say: Option<String>,
}

impl Steering {
    /// Returns the files at these paths, not yet read.
    pub fn new(own: impl Into<PathBuf>, seed: impl Into<PathBuf>) -> Self {
        Self { own: PolicyFile::new(own), seed: SeedPolicy::new(seed), is_unknown_said: false, to_say: None }
    }

    /// Reads what has changed. Returns the sentences to log: usually none.
    pub fn poll(&mut self, now: SystemTime) -> Vec<String> {
        let own = self.own.poll(now);
        let seed = self.seed.poll();
        self.is_unknown_said &= self.seed.exists();
        [own, seed, self.to_say.take()].into_iter().flatten().collect()
    }

    /// Returns the time until the next poll: 10 ms while there is a file, otherwise a second.
    pub fn next_poll(&self) -> Duration {
        self.own.next_poll().min(self.seed.next_poll())
    }

    /// Returns a number that changes whenever orders may have changed.
    pub fn revision(&self) -> u64 {
        self.own.revision() + self.seed.revision()
    }

    /// Returns the order for a connection; `None` if no file steers it.
    pub fn decide(&mut self, subject: &Subject) -> Option<Order> {
        self.own.decide(subject).or_else(|| self.table_order(subject))
    }

    /// Returns the order of the table: the weight of the second rail, and the rest for the first.
    fn table_order(&mut self, subject: &Subject) -> Option<Order> {
        if self.seed.ranks() == 0 || subject.rails.len() < 2 {
            return None;
        }
        let Some(rank) = subject.peer_rank.filter(|rank| *rank < self.seed.ranks()) else {
            self.miss(subject);
            return None;
        };
        let second = (self.seed.weight(rank)? * WHOLE as f32).round() as u32;
        let mut weights = [0; RAILS];
        (weights[0], weights[1]) = (WHOLE - second.min(WHOLE), second.min(WHOLE));
        Some(Order { weights: Some(weights), ..Order::default() })
    }

    /// Notes, once, that a peer has no entry.
    fn miss(&mut self, subject: &Subject) {
        if std::mem::replace(&mut self.is_unknown_said, true) {
            return;
        }
        let (path, ranks) = (self.seed.path().display(), self.seed.ranks());
        let host = subject.peer_host;
        self.to_say = Some(match subject.peer_rank {
            Some(rank @ 0..MOST_RANKS) => format!(
                "\"{path}\" does not steer rank {rank} on {host}; allowed: ranks below {ranks}; try removing it, and \
                 then {} (said once)",
                remedy(Some(rank + 1))
            ),
            Some(rank) => format!(
                "\"{path}\" does not steer rank {rank} on {host}; allowed: ranks below {MOST_RANKS}; try a rule with \
                 peer={host} in Railweave's own policy file (said once)"
            ),
            None => format!(
                "\"{path}\" does not steer the peer on {host}, whose rank is not known; allowed: ranks below {ranks}; \
                 try setting RANK in the processes of that host, or a rule with peer={host} in Railweave's own policy \
                 file (said once)"
            ),
        });
    }
}
