//! The moments at which a policy file is written.

use crate::time::Now;
use std::time::Duration;

/// The time by which the clock may drift against the agent's own between two writes.
const DRIFT: Duration = Duration::from_secs(2);

/// The next thing to do with a policy file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Nothing.
    Rest,
    /// Write it.
    Write,
    /// Remove it: nothing is ordered any more.
    Remove,
}

/// Decides when one policy file is written: when its rules or its time to live change, three times in its time to live,
/// and when the clock has jumped, because a file from the future orders nothing.
#[derive(Debug, Default)]
pub struct Keeper {
    /// The rules of the file, its time to live, and the time of its last write.
    written: Option<(String, u64, Now)>,
    /// True if a file of an agent is there.
    exists: bool,
}

impl Keeper {
    /// Returns the keeper of a file that is there, if `exists`, with rules that are not known.
    pub fn new(exists: bool) -> Self {
        Self { written: None, exists }
    }

    /// Returns what is to be done. Tell [`Self::done`] once it is.
    pub fn next(&self, rules: &str, ttl_s: u64, now: Now) -> Keeping {
        if rules.is_empty() {
            return if self.exists { Keeping::Remove } else { Keeping::Rest };
        }
        let Some((written, written_ttl_s, then)) = &self.written else { return Keeping::Write };
        let passed = now.up.saturating_sub(then.up);
        let jumped = now.clock.abs_diff(then.clock + passed) > DRIFT;
        let is_due = passed >= Duration::from_secs(ttl_s) / 3;
        let is_other = written != rules || *written_ttl_s != ttl_s;
        if is_other || is_due || jumped { Keeping::Write } else { Keeping::Rest }
    }

    /// Notes that it was done.
    pub fn done(&mut self, keeping: Keeping, rules: &str, ttl_s: u64, now: Now) {
        match keeping {
            Keeping::Rest => {}
            Keeping::Write => (self.written, self.exists) = (Some((rules.to_owned(), ttl_s, now)), true),
            Keeping::Remove => (self.written, self.exists) = (None, false),
        }
    }

    /// Notes that the file is not as it was left: it is written again.
    pub fn lost(&mut self) {
        self.written = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_time_to_live_is_written_at_once() {
        let at = |second| Now { clock: Duration::from_secs(1000 + second), up: Duration::from_secs(second) };
        let mut keeper = Keeper::new(false);
        keeper.done(Keeping::Write, "a", 3, at(0));
        assert_eq!(keeper.next("a", 3, at(0)), Keeping::Rest);
        assert_eq!(keeper.next("a", 86_400, at(1)), Keeping::Write, "the file lives for 3 s, not for a day");
        keeper.done(Keeping::Write, "a", 86_400, at(1));
        assert_eq!(keeper.next("a", 86_400, at(2)), Keeping::Rest);
    }

    #[test]
    fn a_file_is_written_when_it_has_to_be() {
        let at = |clock, up| Now { clock: Duration::from_secs(clock), up: Duration::from_secs(up) };
        let mut keeper = Keeper::new(false);
        let mut next = |rules: &str, now| {
            let next = keeper.next(rules, 30, now);
            keeper.done(next, rules, 30, now);
            next
        };
        assert_eq!(next("", at(1000, 0)), Keeping::Rest);
        assert_eq!(next("a", at(1001, 1)), Keeping::Write);
        assert_eq!(next("a", at(1010, 10)), Keeping::Rest);
        assert_eq!(next("a", at(1011, 11)), Keeping::Write, "a third of the time to live");
        assert_eq!(next("b", at(1012, 12)), Keeping::Write);
        assert_eq!(next("b", at(13, 13)), Keeping::Write, "the clock was set back");
        assert_eq!(next("b", at(14, 14)), Keeping::Rest);
        assert_eq!(next("b", at(2014, 15)), Keeping::Write, "and forward");
        assert_eq!(next("", at(2015, 16)), Keeping::Remove);
        assert_eq!(next("", at(2016, 17)), Keeping::Rest);
        assert_eq!(Keeper::new(true).next("", 30, at(1, 1)), Keeping::Remove, "left by an agent before");
        assert_eq!(Keeper::new(true).next("a", 30, at(1, 1)), Keeping::Write);
    }
}
