//! Log lines about peers that are unwelcome or not known yet, limited so that a thousand of them do not fill the log.

use crate::log;

/// The subject of a line. Each kind has its own count, so that many lines of one kind do not hide the only line of
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A connection that cannot be accepted.
    Accept,
    /// A socket that did not say what it is, or is not Railweave's.
    Preface,
    /// A session whose HELLO was wrong or missing.
    Hello,
    /// A peer that does not have the key.
    Key,
    /// A session that broke the protocol after its HELLO.
    Session,
    /// A connection that a peer began and that failed.
    Setup,
    /// A rail left out of a peer's connection.
    Rail,
    /// A lane that is not awaited.
    Lane,
}

impl Kind {
    const COUNT: usize = Self::Lane as usize + 1;
}

/// The lines of one kind.
#[derive(Clone, Copy, Default)]
struct LineQuota {
    window_ns: u64,
    said: u32,
    unsaid: u32,
}

/// The limited lines about strangers.
#[derive(Default)]
pub(super) struct Strangers {
    quotas: [LineQuota; Kind::COUNT],
}

impl Strangers {
    const WINDOW_NS: u64 = 60_000_000_000;
    const MOST: u32 = 10;

    /// Logs a line about an unwelcome peer, at most ten of a kind per minute; the next one says how many were left out.
    /// Returns false if the line is left out.
    pub(super) fn report(&mut self, now_ns: u64, kind: Kind, text: &str) -> bool {
        match self.quotas[kind as usize].take(now_ns) {
            None => return false,
            Some(0) => log::warn(text),
            Some(count) => log::warn(&format!("{text} ({count} lines like this one were left out before it)")),
        }
        true
    }
}

impl LineQuota {
    /// Returns the number of lines left out before, if a line may be logged now; otherwise counts it as left out.
    fn take(&mut self, now_ns: u64) -> Option<u32> {
        if now_ns >= self.window_ns + Strangers::WINDOW_NS {
            self.window_ns = now_ns;
            self.said = 0;
        }
        if self.said >= Strangers::MOST {
            self.unsaid = self.unsaid.saturating_add(1);
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_of_a_kind_in_a_minute_and_the_next_counts_the_others() {
        let mut quota = LineQuota::default();
        let said = (0..1000).filter(|at| quota.take(*at) == Some(0)).count();
        assert_eq!(said, 10);
        assert_eq!(quota.take(Strangers::WINDOW_NS - 1), None);
        assert_eq!(quota.take(Strangers::WINDOW_NS), Some(991));
        assert_eq!(quota.take(Strangers::WINDOW_NS), Some(0));
    }

    #[test]
    fn many_lines_of_one_kind_leave_room_for_the_one_of_another() {
        let mut strangers = Strangers::default();
        let said = (0..1000).filter(|at| strangers.report(*at, Kind::Preface, "GET /")).count();
        assert_eq!(said, 10);
        assert_eq!(strangers.quotas[Kind::Key as usize].take(1000), Some(0), "the one that matters is said");
        assert_eq!(strangers.quotas[Kind::Preface as usize].take(1000), None);
    }
}
