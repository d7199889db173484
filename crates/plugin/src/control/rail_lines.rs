//! Log lines about rails that go down and come back. A cable that is pulled takes a rail of every connection over it,
//! so only the first of them has a line of its own; the others are counted.

use std::collections::BTreeMap;

use railweave_transport::RailName;

/// The time for which lines like the first are counted.
const WINDOW_NS: u64 = 1_000_000_000;

/// The subject of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    /// The token of the session to the peer.
    pub(super) session: usize,
    /// The ends of the rail.
    pub(super) rail: RailName,
    /// True if it is back, false if it is down.
    pub(super) is_back: bool,
}

/// A line that was said, and the number of those that were not, because they are like it.
struct Said {
    until_ns: u64,
    /// The connection that it was about.
    connection: u32,
    unsaid: u32,
    peer: String,
}

/// A line that stands for several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) is_back: bool,
    pub(super) text: String,
}

/// The lines of the last second.
#[derive(Default)]
pub(super) struct RailLines {
    said: BTreeMap<Subject, Said>,
}

impl RailLines {
    /// Returns true if a line with this subject, about this connection, is to be said now. Otherwise it is counted. A
    /// rail of one connection that goes up and down is not opened again so soon that its lines would be many.
    pub(super) fn take(&mut self, subject: Subject, connection: u32, peer: &str, now_ns: u64) -> bool {
        match self.said.get_mut(&subject) {
            Some(said) if said.connection == connection => true,
            Some(said) => {
                said.unsaid = said.unsaid.saturating_add(1);
                false
            }
            None => {
                let until_ns = now_ns.saturating_add(WINDOW_NS);
                self.said.insert(subject, Said { until_ns, connection, unsaid: 0, peer: peer.to_owned() });
                true
            }
        }
    }

    /// Returns the next time at which [`Self::sums`] may have something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.said.values().map(|said| said.until_ns).min()
    }

    /// Returns the lines that stand for those that were counted, once their second is over.
    pub(super) fn sums(&mut self, now_ns: u64) -> Vec<Sum> {
        let over = self.said.extract_if(.., |_, said| said.until_ns <= now_ns);
        let with_more = over.filter(|(_, said)| said.unsaid > 0);
        let sum = |(Subject { rail, is_back, .. }, Said { unsaid, peer, .. })| {
            let (went, times) =
                (if is_back { "came back" } else { "went down" }, if unsaid == 1 { "time" } else { "times" });
            let text =
                format!("to {peer}: rail {rail} {went} {unsaid} more {times} within a second, once per connection");
            Sum { is_back, text }
        };
        with_more.map(sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(session: usize, local: &str, is_back: bool) -> Subject {
        Subject { session, rail: RailName { local: local.to_owned(), remote: "b".to_owned() }, is_back }
    }

    #[test]
    fn the_first_line_is_said_and_those_like_it_are_counted_for_a_second() {
        let mut lines = RailLines::default();
        assert_eq!(lines.next_ns(), None);
        let first = [subject(1, "a", false), subject(2, "a", false), subject(1, "c", false), subject(1, "a", true)];
        for one in &first {
            assert!(lines.take(one.clone(), 7, "host", 100), "{one:?}");
        }
        for now_ns in [100, 200, WINDOW_NS] {
            assert!(!lines.take(first[0].clone(), 8, "host", now_ns));
            assert!(lines.take(first[0].clone(), 7, "host", now_ns), "it is the same connection");
        }
        assert!(!lines.take(first[3].clone(), 9, "host", 500));
        assert_eq!((lines.sums(WINDOW_NS), lines.next_ns()), (Vec::new(), Some(100 + WINDOW_NS)));
        let sums: Vec<_> = lines.sums(100 + WINDOW_NS).into_iter().map(|sum| (sum.is_back, sum.text)).collect();
        let text = |what: &str| format!("to host: rail a - b {what} within a second, once per connection");
        assert_eq!(sums, [(false, text("went down 3 more times")), (true, text("came back 1 more time"))]);
        assert!(lines.take(first[0].clone(), 8, "host", 100 + WINDOW_NS), "its second is over");
    }
}
