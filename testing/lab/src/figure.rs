//! Figures of a run, by name, and the conditions on them.

use crate::failure::Failure;
use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Named figures, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures(Vec<(String, f64)>);

impl Figures {
    /// Collects every number in the JSON of `railweave bench` or `demo` under its path, with dots between the names.
    /// Bandwidths are in Mbit/s, each under the size of its messages in bytes; so are the longest pauses, as
    /// `pause.SIZE_ms`.
    pub(crate) fn of_program(json: &Value) -> Self {
        let mut figures = Self::default();
        figures.collect("", json);
        figures
    }

    /// Adds `cableN.percent`, the part of the bytes of all rails that were sent over cable N, from the
    /// `rails` of `railweave demo`'s JSON: cable N is the one of the address 10.0.N.X at a rail's own end.
    pub(crate) fn add_parts_of_cables(&mut self, rails: &Value) {
        let mut sent: BTreeMap<u8, f64> = BTreeMap::new();
        for rail in rails.as_array().into_iter().flatten() {
            let local = rail.get("local").and_then(Value::as_str).and_then(|address| address.parse().ok());
            let bytes = rail.get("sent").and_then(Value::as_f64);
            if let (Some([10, 0, cable, _]), Some(bytes)) = (local.map(|address: Ipv4Addr| address.octets()), bytes) {
                *sent.entry(cable).or_default() += bytes;
            }
        }
        let all: f64 = sent.values().sum();
        for (cable, bytes) in sent {
            self.add(&format!("cable{cable}.percent"), 100.0 * bytes / all.max(1.0));
        }
    }

    /// Adds, for each step, `stepN.pause_ms`, the longest pause between two messages that had not ended at this step
    /// and began before the next one, and `stepN.resumed_s`, the time from this step until a message came, if none had
    /// come since before it. Both are 0 without such a pause in the JSON of `railweave bench --pairs`. `steps` are the
    /// begins and ends of the steps in seconds since 1970.
    pub(crate) fn add_pauses(&mut self, json: &Value, steps: &[[f64; 2]]) {
        let of_sizes = json["bandwidth"].as_array().into_iter().flatten();
        let lists: Vec<&Vec<Value>> = of_sizes.filter_map(|of_size| of_size["pauses"].as_array()).collect();
        if lists.is_empty() {
            return;
        }
        let ends = |pause: &Value| {
            let (begin, ms) = (pause["unix_seconds"].as_f64()?, pause["ms"].as_f64()?);
            Some([begin, begin + ms / 1e3])
        };
        let pauses: Vec<[f64; 2]> = lists.into_iter().flatten().filter_map(ends).collect();
        for (index, [step, done]) in steps.iter().enumerate() {
            let next = steps.get(index + 1).map_or(f64::INFINITY, |[next, _]| *next);
            let meanwhile = pauses.iter().filter(|[begin, end]| end > step && *begin < next);
            let longest = meanwhile.map(|[begin, end]| (end - begin) * 1e3).fold(0.0, f64::max);
            let around = pauses.iter().filter(|[begin, end]| begin < done && done < end);
            let resumed = around.map(|[_, end]| end - done).fold(0.0, f64::max);
            self.add(&format!("step{index}.pause_ms"), longest);
            self.add(&format!("step{index}.resumed_s"), resumed);
        }
    }

    /// Adds a figure.
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }

    /// Returns the last figure of this name; `None` if there is none.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| *value)
    }

    /// Returns all figures with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Returns the medians over several rounds, of the figures that all rounds have.
    pub(crate) fn medians<'a>(rounds: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut medians = Self::default();
        let Some(first) = rounds.clone().next() else {
            return medians;
        };
        for (name, _) in first.iter() {
            if let Some(mut values) = rounds.clone().map(|figures| figures.get(name)).collect::<Option<Vec<f64>>>() {
                values.sort_by(f64::total_cmp);
                let middle = values.len() / 2;
                let upper = values[middle];
                let lower = if values.len().is_multiple_of(2) { values[middle - 1] } else { upper };
                medians.add(name, f64::midpoint(lower, upper));
            }
        }
        medians
    }

    fn collect(&mut self, path: &str, json: &Value) {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match json {
            Value::Number(number) => self.add(path, number.as_f64().unwrap_or(f64::NAN)),
            Value::Object(fields) => {
                let rate = fields.get("gigabits_per_second").and_then(Value::as_f64);
                if let (Some(rate), Some(bytes)) = (rate, fields.get("bytes").and_then(Value::as_u64)) {
                    self.add(&below(&bytes.to_string()), rate * 1000.0);
                    let pause = fields.get("longest_pause_ms").and_then(Value::as_f64);
                    return pause.into_iter().for_each(|pause| self.add(&format!("pause.{bytes}_ms"), pause));
                }
                for (name, value) in fields {
                    self.collect(&below(name), value);
                }
            }
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    let is_rate = value.get("gigabits_per_second").is_some();
                    self.collect(&if is_rate { path.to_owned() } else { below(&index.to_string()) }, value);
                }
            }
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// A condition on one figure, such as `bandwidth.524288 >= 97.5`, or compared with a figure of an earlier run, such as
/// `bandwidth.524288 >= 0.995 * nccl/bandwidth.524288`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Threshold {
    figure: String,
    at_least: bool,
    /// The limit, or the factor on the other figure that gives the limit.
    limit: f64,
    /// The other figure: its run and its name.
    other: Option<(String, String)>,
}

impl Threshold {
    /// Returns the name of the figure.
    pub(crate) fn figure(&self) -> &str {
        &self.figure
    }

    /// Fails if the condition does not hold. `earlier` returns a figure of an earlier run. Missing a fixed speed is a
    /// matter of time; being slower than another run of the same scenario is not.
    pub(crate) fn check(&self, figures: &Figures, earlier: impl Fn(&str, &str) -> Option<f64>) -> Result<(), Failure> {
        let limit = match &self.other {
            None => self.limit,
            Some((run, figure)) => {
                let other = earlier(run, figure)
                    .ok_or_else(|| Failure::wrong(format!("no run {run} before had a figure {figure}")))?;
                self.limit * other
            }
        };
        match figures.get(&self.figure) {
            Some(value) if self.at_least && value >= limit => Ok(()),
            Some(value) if !self.at_least && value <= limit => Ok(()),
            Some(value) if self.other.is_some() => Err(Failure::wrong(format!(
                "{} is {value:.1}, but should be {}, which is {limit:.1}",
                self.figure,
                self.wanted()
            ))),
            Some(value) => {
                let text = format!("{} is {value:.1}, but should be {}", self.figure, self.wanted());
                Err(Failure { text, is_late: self.is_of_speed() })
            }
            None => {
                let known: Vec<&str> = figures.iter().map(|(name, _)| name).collect();
                Err(Failure::wrong(format!("there is no figure {}; there are: {}", self.figure, known.join(", "))))
            }
        }
    }

    /// Returns true if a breach of the condition means slowness: too little bandwidth, or too long a time.
    fn is_of_speed(&self) -> bool {
        if self.at_least {
            self.figure.starts_with("bandwidth.")
        } else {
            self.figure.ends_with("_us")
                || self.figure.starts_with("pause.")
                || self.figure.ends_with(".pause_ms")
                || self.figure.ends_with(".settled_s")
                || self.figure.ends_with(".resumed_s")
        }
    }

    /// Returns the comparison and the limit, as the scenario states them.
    pub(crate) fn wanted(&self) -> String {
        let comparison = if self.at_least { ">=" } else { "<=" };
        match &self.other {
            None => format!("{comparison} {}", self.limit),
            Some((run, figure)) => format!("{comparison} {} * {run}/{figure}", self.limit),
        }
    }
}

impl TryFrom<String> for Threshold {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = || {
            format!(
                "\"{}\" is no condition; write the name of a figure, >= or <=, and a number, such as \
                 \"bandwidth.524288 >= 97.5\", or a number * RUN/FIGURE of an earlier run",
                text.escape_debug()
            )
        };
        let (figure, comparison, limit, other) = match words[..] {
            [figure, comparison @ (">=" | "<="), limit] => (figure, comparison, limit, None),
            [figure, comparison @ (">=" | "<="), limit, "*", other] => {
                (figure, comparison, limit, Some(other.split_once('/').ok_or_else(wrong)?))
            }
            _ => return Err(wrong()),
        };
        let limit = limit.parse().ok().filter(|limit: &f64| limit.is_finite()).ok_or_else(wrong)?;
        let other = other.map(|(run, figure)| (run.to_owned(), figure.to_owned()));
        Ok(Self { figure: figure.to_owned(), at_least: comparison == ">=", limit, other })
    }
}

/// A regular expression, line by line.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Returns true if it matches somewhere in `text`.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// Returns the number in its first group at the last match in `text`; `None` if there is none.
    pub(crate) fn number_in(&self, text: &str) -> Option<f64> {
        self.0.captures_iter(text).last()?.get(1)?.as_str().parse().ok()
    }

    /// Returns true if it has a group for a number.
    pub(crate) fn has_group(&self) -> bool {
        self.0.captures_len() > 1
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let pattern = RegexBuilder::new(&text).multi_line(true).build();
        pattern.map(Self).map_err(|error| format!("\"{}\" is no regular expression: {error}", text.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figures() -> Figures {
        Figures::of_program(&json!({
            "plugin": "Railweave", "api": 12,
            "latency": {"count": 3, "median_us": 510.5},
            "bandwidth": [
                {"bytes": 8, "in_flight": 8, "gigabits_per_second": 0.001},
                {"bytes": 524_288, "in_flight": 8, "gigabits_per_second": 0.0985, "longest_pause_ms": 7.5},
            ],
            "raw": null, "rails": [{"bytes": 7}],
        }))
    }

    #[test]
    fn a_pause_belongs_to_the_steps_around_which_no_message_came() {
        let pauses = json!([
            { "unix_seconds": 9.9, "ms": 400 },
            { "unix_seconds": 12.0, "ms": 100 },
            { "unix_seconds": 20.0, "ms": 5000 }
        ]);
        let json = json!({ "bandwidth": [{ "bytes": 8, "gigabits_per_second": 1, "pauses": pauses }] });
        let mut figures = Figures::default();
        figures.add_pauses(&json, &[[10.0, 10.1], [14.0, 14.0], [20.5, 20.5], [24.0, 24.0]]);
        let figure = |name: &str| figures.get(name).map(|value| (value * 10.0).round() / 10.0);
        let of_steps = |what: &str| [0, 1, 2, 3].map(|step| figure(&format!("step{step}.{what}")).unwrap());
        assert_eq!(of_steps("pause_ms"), [400.0, 5000.0, 5000.0, 5000.0]);
        assert_eq!(of_steps("resumed_s"), [0.2, 0.0, 4.5, 1.0]);
        let mut none = Figures::default();
        none.add_pauses(&json!({ "bandwidth": [] }), &[[1.0, 1.0]]);
        assert_eq!(none, Figures::default());
    }

    #[test]
    fn numbers_are_found_by_their_path_and_rates_by_their_size() {
        let names: Vec<_> = figures().iter().map(|(name, _)| name.to_owned()).collect();
        let wanted = [
            "api",
            "bandwidth.8",
            "bandwidth.524288",
            "pause.524288_ms",
            "latency.count",
            "latency.median_us",
            "rails.0.bytes",
        ];
        assert_eq!(names, wanted);
        assert_eq!(figures().get("latency.median_us"), Some(510.5));
        assert!((figures().get("bandwidth.524288").unwrap() - 98.5).abs() < 1e-9);
        assert_eq!(serde_json::to_value(figures()).unwrap()["api"], json!(12.0));
    }

    #[test]
    fn a_cable_is_known_by_the_address_of_a_rails_own_end() {
        let rail = |local: &str, sent: u32| json!({"rank": 0, "local": local, "remote": "10.0.9.1", "sent": sent});
        let rails = [rail("10.0.2.1", 10), rail("10.0.2.3", 20), rail("10.0.0.1", 70), rail("10.1.0.1", 100)];
        let mut figures = Figures::default();
        figures.add_parts_of_cables(&json!(rails));
        let found: Vec<_> = figures.iter().collect();
        assert_eq!(found, [("cable0.percent", 70.0), ("cable2.percent", 30.0)]);
        figures.add_parts_of_cables(&json!(null));
        assert_eq!(figures.iter().count(), 2);
    }

    #[test]
    fn thresholds_hold_or_say_why_not() {
        let earlier = |run: &str, figure: &str| (run == "nccl" && figure == "x").then_some(100.0);
        let check = |text: &str| Threshold::try_from(text.to_owned()).unwrap().check(&figures(), earlier);
        assert_eq!(check("bandwidth.524288 >= 98.5"), Ok(()));
        assert_eq!(check("latency.median_us <= 510.5"), Ok(()));
        let slow = check("bandwidth.524288 >= 98.6").unwrap_err();
        assert_eq!(slow.text, "bandwidth.524288 is 98.5, but should be >= 98.6");
        assert!(slow.is_late && check("latency.median_us <= 510.4").unwrap_err().is_late);
        for wrong in ["bandwidth.524288 <= 98", "latency.median_us >= 511", "latency.count <= 2", "api >= 13"] {
            assert!(!check(wrong).unwrap_err().is_late, "{wrong}");
        }
        let absent = check("bandwidth.9 >= 1").map_err(|failure| (failure.is_late, failure.text)).unwrap_err();
        assert!(!absent.0);
        let absent = absent.1;
        assert!(absent.contains("no figure bandwidth.9") && absent.contains("latency.count"), "{absent}");
        assert_eq!(check("bandwidth.524288 >= 0.98 * nccl/x"), Ok(()));
        let less = check("bandwidth.524288 >= 0.99 * nccl/x").unwrap_err();
        assert_eq!(less.text, "bandwidth.524288 is 98.5, but should be >= 0.99 * nccl/x, which is 99.0");
        assert!(!less.is_late, "a comparison with another run does not depend on time");
        assert!(check("bandwidth.524288 >= 1 * other/x").unwrap_err().text.contains("no run other before"));
        let mut nothing = figures();
        nothing.add("bandwidth.9", f64::NAN);
        assert!(Threshold::try_from("bandwidth.9 >= 0".to_owned()).unwrap().check(&nothing, earlier).is_err());
        for wrong in ["", "a", "a >= b", "a > 1", "a >= 1 2", "a >= NaN", ">= 1", "a >= 1 * b", "a >= 1 + b/c"] {
            let error = Threshold::try_from(wrong.to_owned()).unwrap_err();
            assert!(error.contains("bandwidth.524288 >= 97.5"), "{error}");
        }
    }

    #[test]
    fn patterns_read_the_last_number() {
        let pattern = Pattern::try_from(r"^\s*524288 +\d+ +(\S+)$".to_owned()).unwrap();
        let text = " #bytes n rate\n 524288 10 0.07\n 524288 11 0.079\n end";
        assert_eq!(pattern.number_in(text), Some(0.079));
        assert_eq!(pattern.number_in("nothing"), None);
        assert!(pattern.has_group() && !Pattern::try_from("a".to_owned()).unwrap().has_group());
        let error = Pattern::try_from("(".to_owned()).unwrap_err();
        assert!(error.ends_with("found open group without closing ')'") && !error.contains('\n'), "{error}");
    }
}
