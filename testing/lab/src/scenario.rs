//! The content of a scenario file (docs/lab.md).

use crate::cable::Cable;
use crate::figure::{Pattern, Threshold};
use crate::step::{CableEnd, Deed, Flaps, Loss, Rate, Shell, Silence, Step};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The folder of the scenarios in the repository.
pub(crate) const FOLDER: &str = "testing/lab/scenarios";

/// The most guests of a scenario.
const MAX_GUESTS: usize = 4;

/// One scenario: guests, the cables between them, and the runs, one after the other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The name of its file.
    #[serde(skip)]
    pub(crate) name: String,
    /// Its purpose, in a line.
    pub(crate) about: String,
    /// True if it belongs to the ordinary test run.
    #[serde(default)]
    pub(crate) short: bool,
    /// True if the guests are network namespaces of this machine, which root can make, and not emulated machines.
    #[serde(default)]
    pub(crate) namespaces: bool,
    /// The number of guests, 1 to 4.
    #[serde(default = "two")]
    pub(crate) guests: usize,
    /// The memory of each guest in MiB, 256 to 16384.
    #[serde(default = "memory")]
    pub(crate) memory_mib: u32,
    /// The cables.
    #[serde(default, rename = "cable")]
    pub(crate) cables: Vec<Cable>,
    /// Environment variables of all runs.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// The runs.
    #[serde(rename = "run")]
    pub(crate) runs: Vec<Run>,
}

/// One run, of one of four kinds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Its name, for results and log files.
    pub(crate) name: String,
    /// The longest time that it may take, in seconds, at least 1.
    #[serde(default = "limit")]
    pub(crate) limit_s: u64,
    /// The number of rounds, 1 to 20. The run takes turns with its neighbours that have the same number, and its
    /// figures are the medians: drift affects all of them alike.
    #[serde(default = "once")]
    pub(crate) rounds: u32,
    /// More environment variables.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// The first kind: `railweave bench` with these arguments, rank 0 in guest 0 and rank 1 in guest 1.
    bench: Option<String>,
    /// The second kind: `railweave demo` with these arguments, and a rank in each guest.
    demo: Option<String>,
    /// The third kind: a test of the workspace.
    test: Option<Test>,
    /// The fourth kind: commands in guests.
    #[serde(default, rename = "command")]
    commands: Vec<Command>,
    /// The conditions on the run's figures.
    #[serde(default)]
    pub(crate) hold: Vec<Threshold>,
    /// With `bench` or `demo`: true if the ranks learn of each other's fate only over the cables after the first step.
    #[serde(default)]
    pub(crate) alone: bool,
    /// With `bench` or `demo`: the steps taken meanwhile.
    #[serde(default, rename = "step")]
    pub(crate) steps: Vec<Step>,
    /// With `bench` or `demo`, instead of steps: ports that go down and up at random.
    flaps: Option<Flaps>,
    /// With `bench` or `demo`: the required ends of ranks. A rank without one may end in any way. The program itself
    /// must fail if a rank is required to fail or to be killed, and must succeed otherwise.
    #[serde(default, rename = "end")]
    pub(crate) ends: Vec<RankEnd>,
}

/// The kinds of run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    /// A program of `railweave` that runs ranks: its name, and its arguments.
    Ranks(RanksOf, &'a str),
    /// A test.
    Test(&'a Test),
    /// Commands.
    Commands(&'a [Command]),
}

/// The programs that run ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RanksOf {
    /// `railweave bench`: pairs of ranks, in the first two guests.
    Bench,
    /// `railweave demo`: a rank in each guest.
    Demo,
}

impl RanksOf {
    /// Returns the program's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bench => "bench",
            Self::Demo => "demo",
        }
    }

    /// Returns the guest of each rank, with these arguments and this many guests. Every other pair of a bench sends
    /// from guest 1 to guest 0.
    pub(crate) fn guests(self, arguments: &str, guests: usize) -> Vec<usize> {
        let mut words = arguments.split_whitespace();
        let pairs = words.find(|word| *word == "--pairs").and_then(|_| words.next()?.parse().ok());
        match self {
            Self::Bench => (0..2 * pairs.unwrap_or(1)).map(|rank: usize| (rank + rank / 2) % 2).collect(),
            Self::Demo => (0..guests).collect(),
        }
    }
}

/// A test program of the workspace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Test {
    /// The package it belongs to.
    pub(crate) package: String,
    /// Its name, as for `cargo test --test`.
    pub(crate) name: String,
    /// Its arguments.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// The guest in which it runs.
    #[serde(default)]
    pub(crate) guest: usize,
}

/// A shell command line in one guest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    /// The guest in which it runs.
    pub(crate) guest: usize,
    /// The command line.
    pub(crate) line: String,
    /// True if the next command starts while this one runs.
    #[serde(default)]
    pub(crate) background: bool,
    /// The next command starts once a program listens on this TCP port of the guest.
    pub(crate) listens: Option<u16>,
    /// Figures to read from its output.
    #[serde(default, rename = "figure")]
    pub(crate) figures: Vec<Reading>,
}

/// The way to read a figure from text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reading {
    /// Its name.
    pub(crate) name: String,
    /// A regular expression whose first group is the number; its last match counts.
    pub(crate) pattern: Pattern,
    /// The factor that converts the number into the unit of other figures.
    #[serde(default = "one")]
    pub(crate) times: f64,
}

/// The required end of a rank.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankEnd {
    /// The rank.
    pub(crate) rank: usize,
    /// The kind of end.
    pub(crate) status: Status,
    /// The longest time after the last step, in seconds.
    pub(crate) within_s: Option<f64>,
    /// A pattern in its output or in its messages to its parent.
    pub(crate) says: Option<Pattern>,
}

/// The ways to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// With status 0.
    Succeeds,
    /// By itself with another status.
    Fails,
    /// By a signal.
    Killed,
}

impl Scenario {
    /// Reads all scenarios in a folder, in the order of their names.
    pub(crate) fn read_all(folder: &Path) -> Result<Vec<Self>, String> {
        let cannot = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
        let mut scenarios = Vec::new();
        for entry in fs::read_dir(folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            let stem = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
            if let (Some(name), Some("toml")) = (stem, path.extension().and_then(|extension| extension.to_str())) {
                let text = fs::read_to_string(&path);
                let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                scenarios.push(Self::parse(&name, &text)?);
            }
        }
        scenarios.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(scenarios)
    }

    /// Reads the text of the scenario `name`.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut scenario: Self = toml::from_str(text).map_err(|error| {
            let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or_default();
            let (line, reason) = (before.matches('\n').count() + 1, error.message().replace('\n', ", "));
            format!("{FOLDER}/{name}.toml, line {line}: {reason}; see docs/lab.md for what a scenario may hold")
        })?;
        name.clone_into(&mut scenario.name);
        scenario.add_flaps().map_err(|reason| format!("{FOLDER}/{name}.toml: {reason}"))?;
        scenario.check().map_err(|reason| format!("{FOLDER}/{name}.toml: {reason}"))?;
        Ok(scenario)
    }

    /// Makes steps of the flaps of all runs.
    fn add_flaps(&mut self) -> Result<(), String> {
        let ends = |(cable, Cable { between, .. }): (usize, &Cable)| -> Vec<CableEnd> {
            between.iter().map(|guest| CableEnd { cable, guest: *guest }).collect()
        };
        let ports: Vec<CableEnd> = self.cables.iter().enumerate().flat_map(ends).collect();
        for run in &mut self.runs {
            let Some(flaps) = &run.flaps else { continue };
            let about = |reason| format!("run \"{}\": {reason}", run.name.escape_debug());
            if !run.steps.is_empty() {
                return Err(about("it has both step and flaps; choose one".to_owned()));
            }
            run.steps = flaps.steps(&ports).map_err(about)?;
        }
        Ok(())
    }

    /// Returns true if a run has ranks.
    pub(crate) fn has_ranks(&self) -> bool {
        self.runs.iter().any(|run| matches!(run.kind(), Kind::Ranks(..)))
    }

    /// Returns true if a variable, an argument or a command line contains `word`.
    pub(crate) fn mentions(&self, word: &str) -> bool {
        let of_run = |run: &Run| match run.kind() {
            Kind::Ranks(_, arguments) => arguments.contains(word),
            Kind::Test(_) => false,
            Kind::Commands(commands) => commands.iter().any(|command| command.line.contains(word)),
        };
        let environments = std::iter::once(&self.environment).chain(self.runs.iter().map(|run| &run.environment));
        environments.flat_map(BTreeMap::values).any(|value| value.contains(word)) || self.runs.iter().any(of_run)
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_GUESTS).contains(&self.guests) {
            return Err(format!("guests = {} is not possible; allowed: 1 to {MAX_GUESTS}", self.guests));
        }
        if !(256..=16_384).contains(&self.memory_mib) {
            return Err(format!("memory_mib = {} is not possible; allowed: 256 to 16384", self.memory_mib));
        }
        for (index, cable) in self.cables.iter().enumerate() {
            cable.check(self.guests).map_err(|reason| format!("cable {index}: {reason}"))?;
        }
        for (index, run) in self.runs.iter().enumerate() {
            if self.runs[..index].iter().any(|other| other.name == run.name) {
                return Err(format!(
                    "two runs have the name \"{}\"; results are kept by name, so change one",
                    run.name
                ));
            }
            run.check(self).map_err(|reason| format!("run \"{}\": {reason}", run.name.escape_debug()))?;
        }
        Ok(())
    }

    fn check_end(&self, CableEnd { cable, guest }: CableEnd) -> Result<(), String> {
        self.check_cable(cable)?;
        if self.cables[cable].between.contains(&guest) {
            return Ok(());
        }
        Err(format!("cable {cable} has no end in guest {guest}; it joins {:?}", self.cables[cable].between))
    }

    fn check_cable(&self, cable: usize) -> Result<(), String> {
        let count = self.cables.len();
        if cable < count { Ok(()) } else { Err(format!("there is no cable {cable}; there are {count}, from 0")) }
    }

    fn check_guest(&self, guest: usize) -> Result<(), String> {
        let count = self.guests;
        if guest < count { Ok(()) } else { Err(format!("there is no guest {guest}; there are {count}, from 0")) }
    }
}

impl Run {
    /// Returns true if ports go down and up at random meanwhile.
    pub(crate) fn is_flapping(&self) -> bool {
        self.flaps.is_some()
    }

    /// Returns the kind of the run.
    pub(crate) fn kind(&self) -> Kind<'_> {
        match (&self.bench, &self.demo, &self.test) {
            (Some(arguments), ..) => Kind::Ranks(RanksOf::Bench, arguments),
            (None, Some(arguments), _) => Kind::Ranks(RanksOf::Demo, arguments),
            (None, None, Some(test)) => Kind::Test(test),
            (None, None, None) => Kind::Commands(&self.commands),
        }
    }

    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if self.name.is_empty() || !self.name.chars().all(is_plain) {
            return Err("a name has only lower-case letters, digits, - and _, because log files have it too".to_owned());
        }
        let kinds = [self.bench.is_some(), self.demo.is_some(), self.test.is_some(), !self.commands.is_empty()];
        if kinds.into_iter().filter(|given| *given).count() != 1 {
            return Err("it must have exactly one of bench, demo, test and command".to_owned());
        }
        if !(1..=20).contains(&self.rounds) {
            return Err(format!("rounds = {} is not possible; allowed: 1 to 20", self.rounds));
        }
        if self.limit_s == 0 {
            return Err("limit_s = 0 leaves no time; allowed: numbers from 1".to_owned());
        }
        let needs_ranks = self.alone || !self.steps.is_empty() || !self.ends.is_empty();
        match self.kind() {
            Kind::Ranks(of, _) if scenario.guests < 2 => return Err(format!("a {} needs 2 guests", of.name())),
            Kind::Ranks(..) => {}
            Kind::Test(_) | Kind::Commands(_) if needs_ranks => {
                return Err("alone, step and end are about ranks, so they go with bench and demo only".to_owned());
            }
            Kind::Test(test) => scenario.check_guest(test.guest)?,
            Kind::Commands(commands) => {
                for command in commands {
                    scenario.check_guest(command.guest)?;
                    let has_no_group = |reading: &&Reading| !reading.pattern.has_group();
                    if let Some(reading) = command.figures.iter().find(has_no_group) {
                        let (name, pattern) = (&reading.name, &reading.pattern);
                        return Err(format!(
                            "the pattern of figure {name} has no group for the number, (...): {pattern}"
                        ));
                    }
                }
            }
        }
        let ranks = match self.kind() {
            Kind::Ranks(of, arguments) => of.guests(arguments, scenario.guests).len(),
            Kind::Test(_) | Kind::Commands(_) => 0,
        };
        for step in &self.steps {
            match step.deed()? {
                Deed::Kill(rank) => check_rank(rank, ranks)?,
                Deed::Loss(Loss { cable, percent }) => {
                    scenario.check_cable(cable)?;
                    if !(0.0..=100.0).contains(&percent) {
                        return Err(format!("percent = {percent} is not possible; allowed: 0 to 100"));
                    }
                }
                Deed::Down(end) | Deed::Up(end) => scenario.check_end(end)?,
                Deed::Rate(Rate { cable, mbit }) => {
                    scenario.check_cable(cable)?;
                    let reason = |reason| format!("cable {cable}: {reason}");
                    scenario.cables[cable].check_rate(mbit).map_err(reason)?;
                }
                Deed::Silence(Silence { cable, from, .. }) => {
                    scenario.check_cable(cable)?;
                    from.map_or(Ok(()), |guest| scenario.check_end(CableEnd { cable, guest }))?;
                }
                Deed::Restore(cable) => scenario.check_cable(cable)?,
                Deed::Shell(Shell { guest, .. }) if guest >= scenario.guests => {
                    return Err(format!("there is no guest {guest}; there are {}, from 0", scenario.guests));
                }
                Deed::Shell(_) => {}
            }
            if !(0.0..=3600.0).contains(&step.after_s) {
                return Err(format!("after_s = {} is not possible; allowed: 0 to 3600", step.after_s));
            }
        }
        if !self.steps.is_sorted_by(|a, b| a.after_s <= b.after_s) {
            return Err("its steps are not in the order of after_s; sort them".to_owned());
        }
        self.ends.iter().try_for_each(|end| check_rank(end.rank, ranks))
    }
}

fn check_rank(rank: usize, ranks: usize) -> Result<(), String> {
    if rank < ranks { Ok(()) } else { Err(format!("there is no rank {rank}; there are {ranks}, from 0")) }
}

fn once() -> u32 {
    1
}

fn two() -> usize {
    2
}

fn memory() -> u32 {
    2048
}

fn limit() -> u64 {
    300
}

fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
about = "all there is"
short = true
guests = 3
memory_mib = 512
environment = { A = "1" }

[[cable]]
rate_mbit = 80
burst_kib = 32
delay_ms = 1.5
loss_percent = 0.1

[[cable]]
between = [1, 2]

[[run]]
name = "first"
limit_s = 60
rounds = 3
bench = "--sizes 8"
environment = { A = "2" }
hold = ["bandwidth.8 >= 1", "latency.median_us <= 3"]
alone = true
step = [
    { after_s = 1, loss = { cable = 1, percent = 100 } },
    { after_s = 1.5, down = { cable = 0, guest = 1 } },
    { after_s = 2, up = { cable = 0, guest = 1 } },
    { after_s = 3, restore = 1 },
    { after_s = 4, kill = 1 },
    { after_s = 4, shell = { guest = 0, line = "pkill x" } },
]
end = [{ rank = 0, status = "fails", within_s = 20, says = "peer" }, { rank = 1, status = "killed" }]

[[run]]
name = "second"
test = { package = "p", name = "t", arguments = ["a"], guest = 2 }

[[run]]
name = "third"
command = [
    { guest = 1, line = "server", background = true, listens = 18515 },
    { guest = 0, line = "client", figure = [{ name = "f", pattern = '(\d+)', times = 1000 }] },
]
"#;

    #[test]
    fn everything_that_a_scenario_may_hold_is_understood() {
        let scenario = Scenario::parse("full", FULL).unwrap();
        assert_eq!((scenario.name.as_str(), scenario.guests, scenario.short), ("full", 3, true));
        assert_eq!((&scenario.cables[0].between[..], &scenario.cables[1].between[..]), (&[0, 1][..], &[1, 2][..]));
        let [first, second, third] = &scenario.runs[..] else { panic!("three runs") };
        assert!(matches!(first.kind(), Kind::Ranks(RanksOf::Bench, "--sizes 8")));
        assert_eq!((first.rounds, second.rounds), (3, 1));
        let deeds: Vec<_> = first.steps.iter().map(|step| step.deed().unwrap()).collect();
        let end = CableEnd { cable: 0, guest: 1 };
        let loss = Deed::Loss(Loss { cable: 1, percent: 100.0 });
        let shell = Deed::Shell(Shell { guest: 0, line: "pkill x".to_owned() });
        assert_eq!(deeds, [loss, Deed::Down(end), Deed::Up(end), Deed::Restore(1), Deed::Kill(1), shell]);
        assert!(matches!(second.kind(), Kind::Test(test) if test.guest == 2));
        assert!(matches!(third.kind(), Kind::Commands([server, _]) if server.background));
    }

    #[test]
    fn every_other_pair_of_a_bench_sends_the_other_way() {
        assert_eq!(RanksOf::Bench.guests("--sizes 8", 3), [0, 1]);
        assert_eq!(RanksOf::Bench.guests("--pairs 3 --sizes 8", 2), [0, 1, 1, 0, 0, 1]);
        assert_eq!(RanksOf::Demo.guests("--quick", 3), [0, 1, 2]);
    }

    #[test]
    fn a_demo_has_a_rank_in_each_guest() {
        let demo = FULL.replacen("bench = \"--sizes 8\"", "demo = \"--quick\"", 1);
        let scenario = Scenario::parse("full", &demo.replacen("kill = 1 }", "kill = 2 }", 1)).unwrap();
        assert!(matches!(scenario.runs[0].kind(), Kind::Ranks(RanksOf::Demo, "--quick")));
        let error = Scenario::parse("full", &demo.replacen("kill = 1 }", "kill = 3 }", 1)).map(drop).unwrap_err();
        assert!(error.contains("there is no rank 3; there are 3, from 0"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_a_sentence() {
        let cases = [
            ("memory_mib = 512", "memory = 512", "line 5: unknown field `memory`"),
            ("guests = 3", "guests = 9", "guests = 9 is not possible; allowed: 1 to 4"),
            ("guests = 3", "guests = 2", "cable 1: "),
            ("guests = 3", "guests = \"3\"", "line 4: invalid type: string"),
            ("rounds = 3", "rounds = 0", "run \"first\": rounds = 0 is not possible; allowed: 1 to 20"),
            ("memory_mib = 512", "memory_mib = 1", "allowed: 256 to 16384"),
            ("rate_mbit = 80", "rate_mbit = 0", "rate_mbit = 0 is not possible"),
            ("rate_mbit = 80", "rate = 80", "line 9: unknown field `rate`"),
            ("delay_ms = 1.5", "delay_ms = -1", "delay_ms = -1 is not possible"),
            ("loss_percent = 0.1", "loss_percent = 101", "loss_percent = 101 is not possible"),
            ("between = [1, 2]", "between = [1, 1]", "cable 1: "),
            ("bandwidth.8 >= 1", "bandwidth.8 > 1", "is no condition"),
            ("name = \"second\"", "name = \"first\"", "two runs have the name \"first\""),
            ("name = \"second\"", "name = \"a/b\"", "lower-case letters"),
            ("limit_s = 60", "limit_s = 0", "leaves no time"),
            ("bench = \"--sizes 8\"", "", "exactly one of bench, demo, test and command"),
            ("bench = \"--sizes 8\"", "bench = \"\"\ndemo = \"\"", "exactly one of bench, demo, test and command"),
            ("name = \"second\"", "name = \"second\"\nbench = \"\"", "exactly one of bench, demo, test and command"),
            ("name = \"second\"", "name = \"second\"\nalone = true", "go with bench and demo only"),
            ("after_s = 4", "after_s = 0", "not in the order"),
            ("after_s = 4", "after_s = 4000", "allowed: 0 to 3600"),
            ("kill = 1 }", "kill = 2 }", "there is no rank 2; there are 2, from 0"),
            ("kill = 1 }", "kill = 1, restore = 1 }", "exactly one of kill"),
            ("restore = 1", "rate = { cable = 0, mbit = 0 }", "mbit = 0 is not possible"),
            ("restore = 1", "rate = { cable = 1, mbit = 20 }", "cable 1: it has no rate_mbit"),
            ("restore = 1", "restore = 2", "there is no cable 2; there are 2, from 0"),
            ("restore = 1", "silence = { cable = 0, from = 2 }", "cable 0 has no end in guest 2"),
            ("restore = 1", "silence = { cable = 0, only = \"some\" }", "unknown variant `some`"),
            ("alone = true", "flaps = { from_s = 1, until_s = 2, up_s = [1, 1], down_s = [1, 1], seed = 1 }", "both"),
            ("percent = 100", "percent = 200", "percent = 200 is not possible"),
            ("up = { cable = 0, guest = 1 }", "up = { cable = 0, guest = 2 }", "cable 0 has no end in guest 2"),
            ("status = \"killed\"", "status = \"dead\"", "unknown variant `dead`"),
            ("says = \"peer\"", "says = \"(\"", "is no regular expression: "),
            ("guest = 2 }", "guest = 3 }", "there is no guest 3; there are 3, from 0"),
            (r"(\d+)", r"\d+", "has no group for the number"),
        ];
        for (from, to, wanted) in cases {
            assert!(FULL.contains(from), "{from}");
            let error = Scenario::parse("full", &FULL.replacen(from, to, 1)).map(drop).unwrap_err();
            assert!(error.starts_with("testing/lab/scenarios/full.toml") && error.contains(wanted), "{to}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn every_scenario_of_the_repository_can_be_read() {
        assert!(!Scenario::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")).unwrap().is_empty());
    }
}
