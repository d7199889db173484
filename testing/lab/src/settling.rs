//! The time that a split needs to settle, from the traffic over time that `railweave bench --every` prints.

use serde_json::Value;

/// The time over which the rate is averaged: the shaper's burst and whole messages even out.
const WINDOW_S: f64 = 1.0;

/// The part of the cables' rates that a window must reach: 0.95 of them, less what the grain of whole messages costs.
const REACHED: f64 = 0.95 * 0.985;

/// The number of windows in a row that must reach it, each beginning with another period.
const IN_A_ROW: usize = 3;

/// The rate of a sender over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    /// Beginning and end of each period in seconds since 1970, and the bytes handed to the rails in it, in Mbit. The
    /// first counts nothing: in it the rails' queues fill, and only later does a message follow each one that is done.
    periods: Vec<(f64, f64, f64)>,
}

impl Course {
    /// Reads the course of rank 0 from the `over_time` of a bench's JSON.
    pub(crate) fn of_sender(over_time: &Value) -> Self {
        let of_sender = |period: &&Value| period["rank"] == 0;
        let mut periods: Vec<(f64, f64, f64)> = Vec::new();
        let mut last = None;
        for period in over_time.as_array().into_iter().flatten().filter(of_sender) {
            let (Some(end), Some(seconds)) = (period["unix_seconds"].as_f64(), period["seconds"].as_f64()) else {
                continue;
            };
            let rates = period["rails"].as_array().into_iter().flatten();
            let rate: f64 = rates.filter_map(|rail| rail["mbit_per_second"].as_f64()).sum();
            let length = seconds - last.replace(seconds).unwrap_or(0.0);
            let mbit = if periods.is_empty() { 0.0 } else { rate * length };
            periods.push((end - length, end, mbit));
        }
        Self { periods }
    }

    /// Returns the beginning of the traffic, in seconds since 1970; `None` if there was none.
    pub(crate) fn begin(&self) -> Option<f64> {
        self.periods.first().map(|(begin, ..)| *begin)
    }

    /// Returns the time from `from` until the sender stays near `mbit` Mbit/s, the sum of its cables' rates; `None` if
    /// that does not happen before `until`. Both are in seconds since 1970.
    pub(crate) fn settled_after(&self, from: f64, until: f64, mbit: f64) -> Option<f64> {
        let begins = self.periods.iter().map(|(begin, ..)| *begin).filter(|begin| *begin > from);
        let mut row: Vec<f64> = Vec::new();
        for begin in std::iter::once(from).chain(begins) {
            if begin + WINDOW_S > until {
                return None;
            }
            if self.mbit_within(begin, begin + WINDOW_S) < REACHED * mbit * WINDOW_S {
                row.clear();
                continue;
            }
            row.push(begin);
            if row.len() == IN_A_ROW {
                return Some(row[0] - from);
            }
        }
        None
    }

    /// Returns the Mbit between two moments.
    fn mbit_within(&self, from: f64, until: f64) -> f64 {
        let part = |(begin, end, mbit): &(f64, f64, f64)| {
            let common = end.min(until) - begin.max(from);
            if common > 0.0 { mbit * common / (end - begin) } else { 0.0 }
        };
        self.periods.iter().map(part).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns a course of periods of 100 ms with these rates, which begins at second 1000.
    fn course(rates: &[f64]) -> Course {
        let period = |(index, rate): (usize, &f64)| {
            let seconds = (index + 1) as f64 / 10.0;
            let rails = json!([{ "mbit_per_second": rate * 0.75 }, { "mbit_per_second": rate * 0.25 }]);
            json!({ "seconds": seconds, "unix_seconds": 1000.0 + seconds, "rank": 0, "rails": rails })
        };
        let mut periods: Vec<Value> = rates.iter().enumerate().map(period).collect();
        periods.push(json!({ "seconds": 0.1, "unix_seconds": 1000.1, "rank": 1, "rails": [] }));
        Course::of_sender(&Value::Array(periods))
    }

    #[test]
    fn a_course_settles_when_its_windows_begin_to_reach_the_sum() {
        // The first period is that of the queues that fill.
        let rates = [vec![900.0], vec![100.0; 19], vec![30.0; 5], vec![40.0; 30]].concat();
        let course = course(&rates);
        assert_eq!(course.begin().map(f64::round), Some(1000.0));
        let settled = |from: f64, until: f64, mbit| course.settled_after(from, until, mbit);
        assert_eq!(settled(1000.0, 1002.0, 100.0).map(|s| (s * 10.0).round()), Some(1.0));
        assert_eq!(settled(1000.2, 1002.0, 100.0).map(|s| (s * 10.0).round()), Some(0.0));
        // A window may lack 6 %, which is a quarter of the five slow periods.
        assert_eq!(settled(1002.0, 1005.5, 40.0).map(|s| (s * 10.0).round()), Some(3.0));
        assert_eq!(settled(1002.0, 1005.5, 50.0), None, "it never gets there");
        assert_eq!(settled(1002.0, 1002.9, 40.0), None, "the time is over");
    }
}
