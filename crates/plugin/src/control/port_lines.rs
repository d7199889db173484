//! Log lines about the events of ports. A cable that is loose brings the same ones again and again, so those beyond a
//! few are counted.

use std::collections::BTreeMap;

use super::repeats::{Repeats, Unsaid};

/// The lines of the last time.
#[derive(Default)]
pub(super) struct PortLines {
    said: BTreeMap<String, Said>,
}

/// A line that was said, and those like it.
struct Said {
    is_warning: bool,
    repeats: Repeats,
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
            said.is_warning |= is_warning;
            return said.repeats.take();
        }
        let repeats = Repeats::new(now_ns);
        self.said.entry(message.to_owned()).or_insert(Said { is_warning, repeats }).repeats.take()
    }

    /// Returns the next time at which [`Self::sums`] may have something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.said.values().map(|said| said.repeats.until_ns).min()
    }

    /// Returns the lines that stand for those that were counted, once their time is over. One that came too often is
    /// not said in the next time, which is longer.
    pub(super) fn sums(&mut self, now_ns: u64) -> Vec<Sum> {
        let mut sums = Vec::new();
        self.said.retain(|message, Said { is_warning, repeats }| {
            if repeats.until_ns > now_ns {
                return true;
            }
            let (unsaid, goes_on) = repeats.end(now_ns);
            sums.extend(unsaid.map(|unsaid| sum(*is_warning, message, &unsaid)));
            goes_on
        });
        sums
    }
}

/// Returns the line that stands for those that were not said.
fn sum(is_warning: bool, message: &str, unsaid: &Unsaid) -> Sum {
    Sum { is_warning, text: format!("{message} ({unsaid})") }
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
        let expected = [sum(true, "port 1 is down (36 more times within a second)")];
        assert_eq!(lines.sums(WINDOW_NS + 6), expected);
        assert!(!lines.take(false, "port 1 is down", WINDOW_NS + 7), "it goes on");
        assert!(lines.take(false, "port 2 is down", WINDOW_NS + 7), "it was said once, and forgotten");
        let next_ns = 3 * WINDOW_NS + 6;
        assert_eq!(lines.sums(next_ns), [sum(true, "port 1 is down (1 more time within 2 s)")]);
        assert_eq!(lines.sums(next_ns + 4 * WINDOW_NS), []);
        assert!(lines.take(false, "port 1 is down", next_ns + 4 * WINDOW_NS), "it has stopped meanwhile");
    }
}
