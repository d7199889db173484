//! Log lines about rails that go down and come back. A cable that is pulled takes a rail of every connection over it,
//! so only the first of them has lines of its own; the others are counted. So are its own lines beyond a few a second,
//! because a peer can have a rail go down and come back as often as it likes. A rail of an honest peer does so less
//! often.

use std::collections::BTreeMap;

use super::repeats::Repeats;

/// The subject of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    /// The token of the session to the peer.
    pub(super) session: usize,
    /// This end of the rail. The peer chooses the other one, and may have a new one each time.
    pub(super) local: String,
    pub(super) news: News,
}

/// The news of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    /// It is down.
    Down,
    /// It does not come back.
    Away,
    /// It is back.
    Back,
}

/// A line that was said, and those like it.
struct Said {
    /// The connection that it was about.
    connection: u32,
    repeats: Repeats,
    peer: String,
}

/// A line that stands for several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) news: News,
    pub(super) text: String,
}

/// The lines of the last time.
#[derive(Default)]
pub(super) struct RailLines {
    said: BTreeMap<Subject, Said>,
}

impl RailLines {
    /// Returns true if a line with this subject, about this connection, is to be said now. Otherwise it is counted.
    pub(super) fn take(&mut self, subject: Subject, connection: u32, peer: &str, now_ns: u64) -> bool {
        let new = || Said { connection, repeats: Repeats::new(now_ns), peer: peer.to_owned() };
        let one = self.said.entry(subject).or_insert_with(new);
        if one.connection == connection {
            return one.repeats.take();
        }
        one.repeats.count();
        false
    }

    /// Returns the next time at which [`Self::sums`] may have something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.said.values().map(|said| said.repeats.until_ns).min()
    }

    /// Returns the lines that stand for those that were counted, once their time is over. A connection that had too
    /// many lines has none in the next time, which is longer.
    pub(super) fn sums(&mut self, now_ns: u64) -> Vec<Sum> {
        let mut sums = Vec::new();
        self.said.retain(|Subject { local, news, .. }, one| {
            if one.repeats.until_ns > now_ns {
                return true;
            }
            let (unsaid, goes_on) = one.repeats.end(now_ns);
            if let Some(unsaid) = unsaid {
                let went = match news {
                    News::Down => "went down",
                    News::Away => "did not come back",
                    News::Back => "came back",
                };
                let text = format!("to {}: rails from {local} {went} {unsaid}", one.peer);
                sums.push(Sum { news: *news, text });
            }
            goes_on
        });
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::repeats::WINDOW_NS;

    fn subject(session: usize, local: &str, news: News) -> Subject {
        Subject { session, local: local.to_owned(), news }
    }

    #[test]
    fn the_first_line_is_said_and_those_like_it_are_counted_for_a_second() {
        let mut lines = RailLines::default();
        assert_eq!(lines.next_ns(), None);
        let first = [
            subject(1, "a", News::Down),
            subject(2, "a", News::Down),
            subject(1, "c", News::Down),
            subject(1, "a", News::Back),
        ];
        for one in &first {
            assert!(lines.take(one.clone(), 7, "host", 100), "{one:?}");
        }
        for now_ns in [100, 200, WINDOW_NS] {
            assert!(!lines.take(first[0].clone(), 8, "host", now_ns));
            assert!(lines.take(first[0].clone(), 7, "host", now_ns), "it is the same connection");
        }
        assert!(!lines.take(first[3].clone(), 9, "host", 500));
        assert_eq!((lines.sums(WINDOW_NS), lines.next_ns()), (Vec::new(), Some(100 + WINDOW_NS)));
        let sums: Vec<_> = lines.sums(100 + WINDOW_NS).into_iter().map(|sum| (sum.news, sum.text)).collect();
        let text = |what: &str| format!("to host: rails from a {what} within a second");
        assert_eq!(sums, [(News::Down, text("went down 3 more times")), (News::Back, text("came back 1 more time"))]);
        assert!(lines.take(first[0].clone(), 8, "host", 100 + WINDOW_NS), "its second is over");
    }

    #[test]
    fn a_rail_of_one_connection_that_goes_up_and_down_has_a_few_lines_and_then_sums() {
        let mut lines = RailLines::default();
        let (mut said, mut sums) = (0, Vec::new());
        // A hundred times a second, for ten minutes.
        for now_ns in (0..60_000).map(|count| count * 10_000_000) {
            said += usize::from(lines.take(subject(1, "a", News::Down), 7, "host", now_ns));
            sums.extend(lines.sums(now_ns).into_iter().map(|sum| sum.text));
        }
        assert_eq!(said, 4);
        assert_eq!(sums[0], "to host: rails from a went down 97 more times within a second");
        assert_eq!(sums[2], "to host: rails from a went down 400 more times within 4 s");
        // After 1, 3, 7, 15, 31, 63 and 127 s, and then every 64 s.
        assert_eq!(sums.len(), 14);
        assert_eq!(lines.sums(u64::MAX - 1).len(), 1);
        assert_eq!((lines.sums(u64::MAX), lines.next_ns()), (Vec::new(), None), "it has stopped");
    }
}
