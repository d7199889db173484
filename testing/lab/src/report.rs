//! The results of runs and scenarios, for people and as JSON.

use crate::failure::Failure;
use crate::figure::{Figures, Threshold};
use serde::{Serialize, Serializer};

/// The number of lines of a run's output that a report keeps.
const LINES: usize = 12;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunReport {
    /// Its duration; the sum of those of its rounds.
    pub(crate) seconds: f64,
    /// The load of this machine at its end, the kernel's average over a minute. Each guest makes about one; any further
    /// load slows the guests down.
    pub(crate) load: f64,
    /// Its figures; bandwidths in Mbit/s.
    pub(crate) figures: Figures,
    /// The conditions that did not hold; the run passed if this is empty.
    pub(crate) failures: Vec<Failure>,
    /// The last lines of its output.
    pub(crate) text: String,
}

/// The result of a scenario.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScenarioReport {
    /// Its name.
    #[serde(skip)]
    pub(crate) name: String,
    /// Its duration, with the guests' boot.
    pub(crate) seconds: f64,
    /// The timeouts of the first attempt, if it was repeated.
    pub(crate) earlier: Vec<Failure>,
    /// The reason why it could not begin or go on.
    pub(crate) failure: Option<Failure>,
    /// Its runs by name, in their order; those after a failure are absent.
    #[serde(serialize_with = "by_name")]
    pub(crate) runs: Vec<(String, RunReport)>,
}

impl RunReport {
    /// Makes the report of a run that has ended with the output `text`.
    pub(crate) fn new(text: &str) -> Self {
        let mut report =
            Self { seconds: 0.0, load: load(), figures: Figures::default(), failures: Vec::new(), text: String::new() };
        report.add_text(text);
        report
    }

    /// Makes the report of a run with several rounds: the medians of its figures, all failures, and the last round's
    /// lines. `None` without rounds.
    pub(crate) fn of_rounds(mut rounds: Vec<Self>) -> Option<Self> {
        let figures = Figures::medians(rounds.iter().map(|round| &round.figures));
        let seconds = rounds.iter().map(|round| round.seconds).sum();
        let failures = rounds.iter_mut().flat_map(|round| std::mem::take(&mut round.failures)).collect();
        let last = rounds.pop()?;
        Some(Self { seconds, load: last.load, figures, failures, text: last.text })
    }

    /// Adds the last lines of `text`.
    pub(crate) fn add_text(&mut self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    /// Adds the conditions on figures that do not hold. A run that has already failed has no useful figures. `earlier`
    /// are the runs before it.
    pub(crate) fn check(&mut self, thresholds: &[Threshold], earlier: &[(String, Self)]) {
        if self.failures.is_empty() {
            let figure = |run: &str, figure: &str| {
                earlier.iter().find(|(name, _)| name == run).and_then(|(_, report)| report.figures.get(figure))
            };
            self.failures =
                thresholds.iter().filter_map(|threshold| threshold.check(&self.figures, figure).err()).collect();
        }
    }

    /// Returns the report for people, with the conditions.
    pub(crate) fn describe(&self, name: &str, thresholds: &[Threshold]) -> String {
        let verdict = if self.failures.is_empty() { "passed" } else { "FAILED" };
        let mut text = format!("  {name}: {verdict} in {:.1} s\n", self.seconds);
        for (figure, value) in self.figures.iter() {
            let wanted = thresholds.iter().filter(|threshold| threshold.figure() == figure);
            let wanted: String = wanted.map(|threshold| format!("  ({})", threshold.wanted())).collect();
            text += &format!("    {figure:<28}{value:>12.1}{wanted}\n");
        }
        for failure in &self.failures {
            text += &format!("    failed: {failure}\n");
        }
        if !self.failures.is_empty() {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            text += &format!("    the load of this machine: {:.1} on {processors} processors\n", self.load);
            text.extend(self.text.lines().map(|line| format!("    | {line}\n")));
        }
        text
    }
}

impl ScenarioReport {
    /// Returns all failures; each names the scenario, and the run if there is one.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Failure> {
        let own = self.failure.iter().map(|failure| failure.about(&self.name));
        let runs = self.runs.iter().flat_map(|(run, report)| report.failures.iter().map(move |failure| (run, failure)));
        own.chain(runs.map(|(run, failure)| failure.about(format_args!("{}, {run}", self.name))))
    }

    /// Returns true if it only ran out of time.
    pub(crate) fn ran_out(&self) -> bool {
        let mut failures = self.failures().peekable();
        failures.peek().is_some() && failures.all(|failure| failure.is_late)
    }

    /// Returns true if it passed only when repeated.
    pub(crate) fn is_flaky(&self) -> bool {
        !self.earlier.is_empty() && self.failures().next().is_none()
    }
}

/// Returns the load of this machine; zero if the kernel does not say.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

fn by_name<S: Serializer>(runs: &[(String, RunReport)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(runs.iter().map(|(name, report)| (name, report)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_the_medians_of_their_figures_and_all_their_failures() {
        let round = |value: f64, failure: Option<&str>| {
            let mut report = RunReport::new("");
            report.figures.add("a", value);
            report.seconds = 2.0;
            report.failures.extend(failure.map(Failure::wrong));
            report
        };
        let mut odd = RunReport::of_rounds(vec![round(9.0, None), round(1.0, None), round(2.0, None)]).unwrap();
        assert_eq!((odd.figures.get("a"), odd.seconds), (Some(2.0), 6.0));
        odd.figures.add("b", 1.0);
        let even = vec![odd, round(3.0, Some("x")), round(4.0, Some("y")), round(9.0, None)];
        let even = RunReport::of_rounds(even).unwrap();
        assert_eq!(even.figures.get("a"), Some(3.5));
        assert_eq!(even.figures.get("b"), None, "not all rounds have it");
        assert_eq!(even.failures, ["x", "y"].map(Failure::wrong));
        assert!(RunReport::of_rounds(Vec::new()).is_none());
    }

    #[test]
    fn a_report_says_what_failed_and_keeps_the_runs_in_order() {
        let thresholds = vec![Threshold::try_from("a >= 2".to_owned()).unwrap()];
        let mut good = RunReport::new("one\ntwo");
        good.figures.add("a", 3.0);
        good.check(&thresholds, &[]);
        let mut bad = RunReport::new(&"line\n".repeat(100));
        bad.figures.add("a", 1.0);
        bad.check(&thresholds, &[]);
        assert_eq!(bad.text.lines().count(), LINES);
        assert!(good.describe("z", &thresholds).contains("3.0  (>= 2)"), "{}", good.describe("z", &thresholds));
        assert!(bad.describe("b", &thresholds).contains("failed: a is 1.0, but should be >= 2"));
        let report = ScenarioReport {
            name: "s".to_owned(),
            seconds: 1.0,
            earlier: Vec::new(),
            failure: None,
            runs: vec![("z".to_owned(), good), ("b".to_owned(), bad)],
        };
        let failures: Vec<_> = report.failures().map(String::from).collect();
        assert_eq!(failures, ["s, b: a is 1.0, but should be >= 2"]);
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.find("\"z\"").unwrap() < json.find("\"b\"").unwrap(), "{json}");
        assert!(json.contains(r#""figures":{"a":3.0}"#), "{json}");
    }

    #[test]
    fn only_what_ran_out_of_time_in_everything_that_failed_is_repeated() {
        let report = |failure: Option<Failure>, of_runs: &[Failure]| {
            let mut run = RunReport::new("");
            run.failures = of_runs.to_vec();
            let runs = vec![("r".to_owned(), run)];
            ScenarioReport { name: "s".to_owned(), seconds: 1.0, earlier: Vec::new(), failure, runs }
        };
        let (late, wrong) = (Failure::late("the end of a rank"), Failure::wrong("wrong bytes"));
        assert!(!report(None, &[]).ran_out());
        assert!(report(None, &[late.clone(), late.clone()]).ran_out());
        assert!(report(Some(late.clone()), &[]).ran_out());
        assert!(!report(None, &[late.clone(), wrong.clone()]).ran_out());
        assert!(!report(Some(wrong.clone()), std::slice::from_ref(&late)).ran_out());
        assert!(!report(Some(late.clone()), std::slice::from_ref(&wrong)).ran_out());
        assert!(Failure::of_lab("run a: ran out of time: guest 1 did not come up after 180 s".to_owned()).is_late);
        assert!(!Failure::of_lab("guest 1 is gone".to_owned()).is_late);
        let again = |failures: &[Failure]| ScenarioReport { earlier: vec![late.clone()], ..report(None, failures) };
        assert!(again(&[]).is_flaky() && !again(std::slice::from_ref(&late)).is_flaky());
        assert!(!report(None, &[]).is_flaky());
        let json = serde_json::to_value(again(&[wrong])).unwrap();
        assert_eq!(json["earlier"][0], "ran out of time: the end of a rank");
        assert_eq!(json["runs"]["r"]["failures"][0], "wrong bytes");
    }
}
