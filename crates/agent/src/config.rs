//! The configuration: a file in TOML, checked as a whole.

use railweave_telemetry::Rules;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The address at which the agent listens unless it is told another.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9470";

/// The most ports that are kept empty, of each reason: all are in one rule.
pub(crate) const MOST_DRAINED: usize = 256;

/// The most rules of the configuration. Each may be two in the policy file, which has 4,096 at most with those of
/// others.
const MOST_FIXED: u64 = 500;

/// The configuration of the agent. docs/agent.md explains each key.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The address of metrics and API.
    pub listen: SocketAddr,
    /// The file with the token that callers have to show.
    pub token_file: Option<PathBuf>,
    /// The run dirs; if empty, those that [`Self::run_dirs`] documents as default.
    pub run_dirs: Vec<PathBuf>,
    /// The time between two looks, in milliseconds: 100 to 60,000.
    pub every_ms: u64,
    /// The time to live of the policy files, in seconds: 3 to 86,400. They are written again three times in it.
    pub ttl_s: u64,
    /// The most series of rails in the metrics: 16 to 100,000. The rails beyond are summed by user.
    pub series: usize,
    /// Ports that are kept empty.
    pub drain: Vec<String>,
    /// Rules in the language of policy files. They come before those of all other policies, and after those
    /// that an operator sets.
    pub fixed: Vec<String>,
    /// Shares the ports between jobs; `None` if it is off.
    pub balance: Option<BalanceConfig>,
    /// Moves data off congested ports; `None` if it is off.
    pub avoid_congestion: Option<CongestionConfig>,
    /// Keeps ports empty that have link errors; `None` if it is off.
    pub avoid_sick: Option<SickConfig>,
    /// A program that decides; `None` if there is none.
    pub script: Option<ScriptConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9470)),
            token_file: None,
            run_dirs: Vec::new(),
            every_ms: 1000,
            ttl_s: 30,
            series: 4096,
            drain: Vec::new(),
            fixed: Vec::new(),
            balance: None,
            avoid_congestion: None,
            avoid_sick: None,
            script: None,
        }
    }
}

/// The policy `balance`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalanceConfig {
    /// The time for which the rails decide themselves, so that their rates show, in seconds: 2 to 600.
    pub measure_s: u64,
    /// The time for which weights hold before rates are measured again, in seconds: 5 to 86,400.
    pub hold_s: u64,
    /// The part by which the slowest job has to gain: 0.01 to 1. Otherwise the rails go on deciding.
    pub gain: f64,
}

impl Default for BalanceConfig {
    fn default() -> Self {
        Self { measure_s: 4, hold_s: 60, gain: 0.1 }
    }
}

/// The policy `avoid-congestion`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CongestionConfig {
    /// Congestion notifications, pause frames and discards of a port per second from which it is congested: above 0.
    pub marks_per_s: f64,
    /// The time for which it has to be so, in seconds: 1 to 3,600.
    pub enter_s: u64,
    /// The time for which there may be no more than a tenth of that until it counts as free, in seconds: 1 to 86,400.
    pub leave_s: u64,
    /// The smallest part of its share that a congested port keeps: 0 to 1.
    pub least: f64,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self { marks_per_s: 100.0, enter_s: 3, leave_s: 10, least: 0.1 }
    }
}

/// The policy `avoid-sick`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SickConfig {
    /// Errors of a link in a minute from which it is sick: 1 and more.
    pub errors_per_min: u64,
    /// Times that a link went down within five minutes from which it is sick: 1 and more.
    pub downs: u64,
    /// True if a link that is slower than it was counts as sick.
    pub slow: bool,
    /// The time for which a link has to be well until it is used again, in seconds: 1 to 86,400.
    pub leave_s: u64,
}

impl Default for SickConfig {
    fn default() -> Self {
        Self { errors_per_min: 60, downs: 3, slow: true, leave_s: 300 }
    }
}

/// The policy `script`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptConfig {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The time within which it has to answer, in seconds: 1 to 3,600. Its last rules hold as long.
    #[serde(default = "script_timeout")]
    pub timeout_s: u64,
}

fn script_timeout() -> u64 {
    10
}

impl Config {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// If it is wrong: a sentence without the file's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let reason = one_line(&error.to_string());
            format!("{reason}; allowed: the keys and values of docs/agent.md; try the example packaging/agent.toml")
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks all values.
    ///
    /// # Errors
    /// If one is not allowed: a sentence.
    pub fn check(&self) -> Result<(), String> {
        within("every_ms", self.every_ms, 100, 60_000)?;
        within("ttl_s", self.ttl_s, 3, 86_400)?;
        if self.ttl_s.saturating_mul(1000) < 3 * self.every_ms {
            return Err(format!(
                "ttl_s: {} is shorter than three looks (every_ms is {}); allowed: three looks and more; try a larger \
                 ttl_s",
                self.ttl_s, self.every_ms
            ));
        }
        within("series", self.series as u64, 16, 100_000)?;
        within("drain (its length)", self.drain.len() as u64, 0, MOST_DRAINED as u64)?;
        within("fixed (its length)", self.fixed.len() as u64, 0, MOST_FIXED)?;
        for port in &self.drain {
            check_port("drain", port)?;
        }
        for rule in &self.fixed {
            check_rule("fixed", rule)?;
        }
        if let Some(balance) = &self.balance {
            within("balance.measure_s", balance.measure_s, 2, 600)?;
            within("balance.hold_s", balance.hold_s, 5, 86_400)?;
            within_parts("balance.gain", balance.gain, 0.01)?;
        }
        if let Some(congestion) = &self.avoid_congestion {
            if !(congestion.marks_per_s > 0.0 && congestion.marks_per_s.is_finite()) {
                let marks = congestion.marks_per_s;
                return Err(format!(
                    "avoid_congestion.marks_per_s: {marks} is not allowed; allowed: numbers above 0; try 100"
                ));
            }
            within("avoid_congestion.enter_s", congestion.enter_s, 1, 3600)?;
            within("avoid_congestion.leave_s", congestion.leave_s, 1, 86_400)?;
            within_parts("avoid_congestion.least", congestion.least, 0.0)?;
        }
        if let Some(sick) = &self.avoid_sick {
            within("avoid_sick.errors_per_min", sick.errors_per_min, 1, u64::MAX)?;
            within("avoid_sick.downs", sick.downs, 1, 1_000_000)?;
            within("avoid_sick.leave_s", sick.leave_s, 1, 86_400)?;
        }
        if let Some(script) = &self.script {
            within("script.timeout_s", script.timeout_s, 1, 3600)?;
            // It is asked once in a look, and its answer is taken in at the next one.
            if script.timeout_s.saturating_mul(1000) < 2 * self.every_ms {
                return Err(format!(
                    "script.timeout_s: {} is shorter than two looks (every_ms is {}); allowed: two looks and more; try \
                     {}",
                    script.timeout_s,
                    self.every_ms,
                    (2 * self.every_ms).div_ceil(1000)
                ));
            }
            if script.program.first().is_none_or(String::is_empty) {
                return Err("script.program: it is empty; allowed: a list of the program and its arguments; try \
                            [\"/usr/local/bin/steer\"]"
                    .to_owned());
            }
        }
        Ok(())
    }
}

/// Checks one rule, which must not be anything but a rule.
pub(crate) fn check_rule(key: &str, rule: &str) -> Result<(), String> {
    let is_rule = !rule.contains(['\n', '\r']) && rule.contains("->") && !rule.trim_start().starts_with('#');
    if !is_rule {
        return Err(format!(
            "{key}: \"{}\" is not a rule; allowed: one line such as peer=node3 -> weights 80,20 (docs/policy.md); try \
             one rule in each text",
            rule.escape_debug()
        ));
    }
    let text = format!("railweave-policy 1\nttl forever\n{rule}\n");
    match Rules::parse(&text) {
        Ok(_) => Ok(()),
        // The number of the line in a file that nobody has seen says nothing.
        Err(error) => {
            let error = error.to_string();
            let error = error.trim_start_matches("line 3: ");
            Err(format!("{key}: {}", error.trim_start_matches("rule: ")))
        }
    }
}

/// Checks the name of a port: it has to be one that a rule can name.
///
/// # Errors
/// If it cannot be: a sentence.
pub(crate) fn check_port(key: &str, port: &str) -> Result<(), String> {
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || !is_name(port) || port.len() > 64 {
        return Err(format!(
            "{key}: \"{}\" is not the name of a port; allowed: names as in `railweave topo`, such as mlx5_2 or eth0; \
             try one of those",
            port.escape_debug()
        ));
    }
    Ok(())
}

/// Returns true if a rule can name this text and nothing else with it.
pub fn is_name(text: &str) -> bool {
    let is_plain = |letter: char| !letter.is_whitespace() && !letter.is_control() && !matches!(letter, ',' | '*' | '=');
    !text.is_empty() && text.chars().all(is_plain) && !text.contains("->")
}

fn within(key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{key}: {value} is not allowed; allowed: {least} to {most}; try {}", value.clamp(least, most)))
}

fn within_parts(key: &str, value: f64, least: f64) -> Result<(), String> {
    if (least..=1.0).contains(&value) {
        return Ok(());
    }
    Err(format!("{key}: {value} is not allowed; allowed: {least} to 1; try 0.1"))
}

/// Returns the lines of a text as one: toml shows the wrong line with a mark below.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.chars().all(|c| "|^ ".contains(c)));
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_watches_and_steers_nothing() {
        let config = Config::parse("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.listen, DEFAULT_LISTEN.parse().unwrap());
        assert!(config.balance.is_none() && config.avoid_sick.is_none() && config.script.is_none());
    }

    #[test]
    fn a_table_switches_its_policy_on() {
        let config = Config::parse("[balance]\n[avoid_congestion]\nleast = 0\n[avoid_sick]\nslow = false\n").unwrap();
        assert_eq!(config.balance, Some(BalanceConfig::default()));
        assert_eq!(config.avoid_congestion.unwrap().least, 0.0);
        assert!(!config.avoid_sick.unwrap().slow);
        let script = Config::parse("[script]\nprogram = [\"/bin/true\", \"x\"]\n").unwrap().script.unwrap();
        assert_eq!((script.program.len(), script.timeout_s), (2, 10));
    }

    #[test]
    fn each_wrong_value_is_named_in_one_line() {
        let many = format!("fixed = [{}]", "'any -> policy speed',".repeat(501));
        for (text, expected) in [
            (&*many, "fixed (its length): 501 is not allowed; allowed: 0 to 500"),
            ("ttl = 3", "unknown field `ttl`"),
            ("ttl_s = 2", "ttl_s: 2 is not allowed; allowed: 3 to 86400; try 3"),
            ("every_ms = 50", "every_ms: 50 is not allowed"),
            ("every_ms = 60000", "ttl_s: 30 is shorter than three looks"),
            ("listen = \"here\"", "listen"),
            ("drain = [\"a b\"]", "drain: \"a b\" is not the name of a port"),
            ("drain = [\"1\"]", "drain: \"1\" is not the name of a port"),
            ("drain = [\"eth*\"]", "drain: \"eth*\" is not the name of a port"),
            ("fixed = [\"peer=x -> weights 0,0\"]", "fixed: weights: \"0,0\" is not a list of weights"),
            ("fixed = [\"any -> policy adaptive\\nrail=1 -> drain\"]", "is not a rule"),
            ("fixed = [\"ttl 5\"]", "is not a rule"),
            ("fixed = [\"# a -> b\"]", "is not a rule"),
            ("[balance]\nhold_s = 1", "balance.hold_s: 1 is not allowed"),
            ("[balance]\ngain = 2", "balance.gain: 2 is not allowed"),
            ("[avoid_congestion]\nmarks_per_s = nan", "marks_per_s: NaN is not allowed"),
            ("[avoid_congestion]\nleast = 1.5", "avoid_congestion.least: 1.5 is not allowed"),
            ("[avoid_sick]\ndowns = 0", "avoid_sick.downs: 0 is not allowed"),
            ("[script]\nprogram = []", "script.program: it is empty"),
            (
                "every_ms = 8000\n[script]\nprogram = [\"x\"]",
                "script.timeout_s: 10 is shorter than two looks (every_ms is 8000); allowed: two looks and more",
            ),
            ("[script]\n", "missing field `program`"),
            ("series = 1", "series: 1 is not allowed"),
            ("= 3", "TOML parse error at line 1"),
        ] {
            let error = Config::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
