//! The work that a message gives each rail's device, counted by the fake libibverbs.

use railweave_fake_ibverbs::Counts;
use serde::Serialize;

/// The work of one device for one message, for both ends together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Work {
    /// The device's name.
    pub(crate) device: String,
    /// Work requests posted to send queues.
    pub(crate) sends: f64,
    /// The number of these that are writes with an immediate.
    pub(crate) sends_with_immediate: f64,
    /// Receives posted.
    pub(crate) receives: f64,
    /// Completions polled.
    pub(crate) completions: f64,
}

/// A column of a table: its name, and its number for a device.
pub(crate) type Column = (&'static str, fn(&Work) -> f64);

/// The columns of the table.
pub(crate) const COLUMNS: [Column; 4] = [
    ("work requests", |work| work.sends),
    ("of them with immediate", |work| work.sends_with_immediate),
    ("receives", |work| work.receives),
    ("completions", |work| work.completions),
];

impl Work {
    /// Returns one message's share of the work that `messages` messages gave a device.
    pub(crate) fn of(device: &str, counts: &Counts, messages: u32) -> Self {
        let each = |count: u64| count as f64 / f64::from(messages);
        Self {
            device: device.to_owned(),
            sends: each(counts.work_requests()),
            sends_with_immediate: each(counts.writes_with_immediate),
            receives: each(counts.receives),
            completions: each(counts.completions),
        }
    }
}

/// Returns one column's cell: a number for each rail.
pub(crate) fn cell(works: &[Work], (_, number): Column) -> String {
    works.iter().map(|work| format!("{:.2}", number(work))).collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_each_device_is_shown_for_one_message() {
        let counts = Counts { reads: 50, writes: 0, writes_with_immediate: 100, receives: 25, ..Counts::default() };
        let first = Work::of("sim0", &Counts { completions: 202, ..counts }, 100);
        let second = Work::of("sim1", &Counts { writes: 50, completions: 2, ..Counts::default() }, 100);
        assert_eq!((first.device.as_str(), second.device.as_str()), ("sim0", "sim1"));
        let cells = COLUMNS.map(|column| cell(&[first.clone(), second.clone()], column));
        assert_eq!(cells, ["1.50 + 0.50", "1.00 + 0.00", "0.25 + 0.00", "2.02 + 0.02"]);
        assert_eq!(cell(&[], COLUMNS[0]), "");
    }
}
