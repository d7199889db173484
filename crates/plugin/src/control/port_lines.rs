//! Log lines about the events of ports. One that comes again and again, more than a few times a second, is counted.

use std::collections::BTreeMap;

use super::repeats::Repeats;

/// The lines of the last time.
#[derive(Default)]
pub(super) struct PortLines {
    said: BTreeMap<String, Said>,
}

/// A line that was said, and those like it.
struct Said {
    is_warning: bool,
    repeats: Repeats,
    last_ns: u64,
}

/// A line that stands for several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) is_warning: bool,
    pub(super) text: String,
}

impl PortLines {
    /// Returns true if a line is to be said now. Otherwise it is counted.
    pub(super) fn take(&mut self, is_warning: bool, message: &str, now_ns: u64) -> bool {
        if let Some(said) = self.said.get_mut(message) {
            (said.is_warning, said.last_ns) = (said.is_warning | is_warning, now_ns);
            return said.repeats.take();
        }
        let said = Said { is_warning, repeats: Repeats::new(now_ns), last_ns: now_ns };
        self.said.entry(message.to_owned()).or_insert(said).repeats.take()
    }

    /// Returns the next time at which [`Self::sums`] may have something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.said.values().map(|said| said.repeats.until_ns).min()
    }

    /// Returns the lines that stand for those that were counted, once their time is over, in the order in which they
    /// last came. One that came too often is not said in the next time, which is longer.
    pub(super) fn sums(&mut self, now_ns: u64) -> Vec<Sum> {
        if self.next_ns().is_none_or(|next_ns| next_ns > now_ns) {
            return Vec::new();
        }
        let mut sums = Vec::new();
        self.said.retain(|message, Said { is_warning, repeats, last_ns }| {
            // Others that were counted are said too, so that the last line is that of the last event.
            if repeats.until_ns > now_ns && !repeats.has_any() {
                return true;
            }
            let (unsaid, goes_on) = repeats.end(now_ns);
            let sum = |unsaid| Sum { is_warning: *is_warning, text: format!("{message}; {unsaid}") };
            sums.extend(unsaid.map(|unsaid| (*last_ns, sum(unsaid))));
            goes_on
        });
        sums.sort_by_key(|(last_ns, _)| *last_ns);
        sums.into_iter().map(|(_, sum)| sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::repeats::WINDOW_NS;

    #[test]
    fn events_that_come_again_and_again_have_a_few_lines_and_then_sums() {
        let mut lines = PortLines::default();
        assert_eq!(lines.next_ns(), None);
        let said = (0..40).filter(|count| lines.take(*count == 30, "port 1 is down", 5)).count();
        assert_eq!(said, 4);
        assert!(lines.take(false, "port 2 is down", 6));
        assert_eq!((lines.sums(WINDOW_NS), lines.next_ns()), (Vec::new(), Some(WINDOW_NS + 5)));
        let sum = |is_warning, text: &str| Sum { is_warning, text: text.to_owned() };
        let expected = [sum(true, "port 1 is down; 36 more times within a second")];
        assert_eq!(lines.sums(WINDOW_NS + 6), expected);
        assert!(!lines.take(false, "port 1 is down", WINDOW_NS + 7), "it goes on");
        assert!(lines.take(false, "port 2 is down", WINDOW_NS + 7), "it was said once, and forgotten");
        let next_ns = 3 * WINDOW_NS + 6;
        assert_eq!(lines.sums(next_ns), [sum(true, "port 1 is down; 1 more time within 2 s")]);
        assert_eq!(lines.sums(next_ns + 4 * WINDOW_NS), []);
        assert!(lines.take(false, "port 1 is down", next_ns + 4 * WINDOW_NS), "it has stopped meanwhile");
    }

    #[test]
    fn the_last_sum_is_that_of_the_last_event() {
        let mut lines = PortLines::default();
        let words = ["it is up", "it is down"];
        let said = (0..20).filter(|count| lines.take(false, words[*count as usize % 2], *count)).count();
        assert_eq!(said, 8);
        let sums: Vec<_> = lines.sums(2 * WINDOW_NS).into_iter().map(|sum| sum.text).collect();
        assert_eq!(sums, words.map(|words| format!("{words}; 6 more times within a second")));
    }

    #[test]
    fn the_last_line_is_that_of_the_last_event_when_each_time_ends_for_itself() {
        // A link goes down, and then up and down twenty times a second.
        let (mut lines, mut said) = (PortLines::default(), Vec::new());
        let words = ["it is down", "it is up"];
        let sum_up = |lines: &mut PortLines, said: &mut Vec<String>, now_ns: u64| {
            while let Some(at_ns) = lines.next_ns().filter(|at_ns| *at_ns <= now_ns) {
                said.extend(lines.sums(at_ns).into_iter().map(|sum| sum.text));
            }
        };
        for count in 0..19 {
            let now_ns = count * WINDOW_NS / 20;
            sum_up(&mut lines, &mut said, now_ns);
            let words = words[count as usize % 2];
            if lines.take(false, words, now_ns) {
                said.push(words.to_owned());
            }
        }
        sum_up(&mut lines, &mut said, 10 * WINDOW_NS);
        assert!(said.last().is_some_and(|last| last.starts_with("it is down; ")), "{said:?}");
    }
}
