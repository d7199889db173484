//! The arguments of `railweave policy`.

use crate::environment;
use crate::orders::OrderedRule;
use crate::span;
use clap::{Args, Subcommand};
use railweave_agent::Standing;
use railweave_telemetry::{MOST_RANKS, RunDir, SEED_POLICY_PATH};
use std::path::PathBuf;
use std::time::Duration;

/// The exit codes, at the end of the help.
const EXIT_CODES: &str = "Exit codes: 0 done, also if nothing had to change; 1 it cannot be done; 2 wrong arguments; 3 \
                          --wait ended while a port was still in use";

/// Arguments of `railweave policy`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(super) action: Action,
}

#[derive(Subcommand, Debug)]
pub(super) enum Action {
    /// Shows who steers the jobs of a run dir, the orders, and what each rail carries by them
    #[command(after_help = EXIT_CODES)]
    Show {
        #[command(flatten)]
        common: Common,
    },
    /// Sets rules, which come before all others: 'peer=node3 -> weights 80,20' (docs/policy.md)
    #[command(after_help = EXIT_CODES)]
    Set {
        /// The rules, each as one word of the command; the first that fits a connection holds
        #[arg(value_name = "RULE", value_parser = rule, required_unless_present = "file")]
        rules: Vec<OrderedRule>,
        /// A file with one rule in each line, after those of the command; - for standard input; # begins a comment
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        orders: Ordering,
        #[command(flatten)]
        common: Common,
    },
    /// Takes ports out of use while jobs run; they are given back by clear
    #[command(after_help = EXIT_CODES)]
    Drain {
        /// The ports: names as in `railweave topo`, such as mlx5_2 or eth0
        #[arg(value_name = "PORT", value_parser = port, required = true)]
        ports: Vec<String>,
        /// Waits until nothing uses the ports any more, for 60 s at most or for --wait=TIME, such as 90s or 10min
        #[arg(long, value_name = "TIME", value_parser = span::wait, num_args = 0..=1, require_equals = true)]
        #[arg(default_missing_value = "60s", conflicts_with = "dry_run")]
        wait: Option<Duration>,
        #[command(flatten)]
        orders: Ordering,
        #[command(flatten)]
        common: Common,
    },
    /// Takes orders back: ports of drain, and rules of set by their matchers
    #[command(after_help = EXIT_CODES)]
    Clear {
        /// Ports, and the matchers of rules as one word of the command, such as 'peer=node3 rank=0'
        #[arg(value_name = "PORT|MATCHERS", value_parser = target, required_unless_present = "all")]
        targets: Vec<Target>,
        /// Takes back all orders of operators
        #[arg(long, conflicts_with = "targets")]
        all: bool,
        /// Changes nothing, and shows what would change
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Shows the orders so far, and what jobs took up
    #[command(after_help = EXIT_CODES)]
    History {
        /// The number of the last entries to show
        #[arg(short = 'n', value_name = "N", default_value_t = 20)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        #[command(flatten)]
        common: Common,
    },
    /// Makes the table of weights that agents of MPIB write (docs/policy.md); touches none that is there
    Init {
        /// The number of ranks of the table: those of the largest job
        #[arg(long, value_name = "N", default_value_t = 1024)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
        ranks: u32,
        /// The path of the table: jobs look at the default only
        #[arg(long, value_name = "FILE", default_value = SEED_POLICY_PATH)]
        path: PathBuf,
    },
}

/// The way in which new orders are given.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Ordering {
    /// Changes nothing, and shows what would change
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Without an agent: all orders of the file end after this time, such as 30s or 2h; 1s to 24h
    #[arg(long = "for", value_name = "TIME", value_parser = span::hold)]
    pub(super) ttl: Option<Duration>,
}

/// The arguments of all that orders or shows.
#[derive(Args, Clone, Debug)]
pub(super) struct Common {
    /// Prints JSON (docs/policy.md)
    #[arg(long)]
    pub(super) json: bool,
    /// The run dir [default: RAILWEAVE_RUN_DIR, otherwise /dev/shm/railweave-UID of this user]
    #[arg(long, value_name = "FOLDER")]
    run_dir: Option<PathBuf>,
}

impl Common {
    /// Returns the run dir.
    ///
    /// # Errors
    /// If the setting is wrong: a sentence.
    pub(super) fn run_dir(&self) -> Result<RunDir, String> {
        Ok(match &self.run_dir {
            Some(path) => RunDir::named(Some(path)),
            None => environment::run_dir()?,
        })
    }

    /// Returns the run dir as the arguments and settings name it; `None` if they are wrong. Warns of nothing.
    pub(super) fn named_run_dir(&self) -> Option<RunDir> {
        self.run_dir.as_ref().map_or_else(environment::run_dir_quietly, |path| Some(RunDir::named(Some(path))))
    }
}

/// An order that is to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Port(String),
    Matchers(String),
}

/// Reads a rule.
///
/// # Errors
/// If it is wrong: a sentence.
pub(super) fn rule(text: &str) -> Result<OrderedRule, String> {
    let mut standing = Standing::default();
    standing.set(text)?;
    let rule = standing.rules().next().ok_or("the rule orders nothing; allowed: a rule; try another")?;
    Ok(OrderedRule { matchers: rule.matchers.clone(), actions: rule.actions.clone() })
}

fn port(text: &str) -> Result<String, String> {
    if text == "any" {
        return Err(
            "port: \"any\" stands for every connection in rules, so `clear` could not name it; allowed: other \
                    names; try one as `railweave topo` shows it"
                .to_owned(),
        );
    }
    Standing::default().drain(text).map(|_| text.to_owned())
}

fn target(text: &str) -> Result<Target, String> {
    let matchers: Vec<&str> = text.split("->").next().unwrap_or_default().split_whitespace().collect();
    if text.contains(char::is_control) {
        let shown = text.escape_debug();
        return Err(format!("\"{shown}\" has control characters; allowed: ports and matchers; try `policy show`"));
    }
    if text.contains("->") || text.contains('=') || matchers.first() == Some(&"any") {
        let matchers = matchers.join(" ");
        // No rule can have others; `rail=` goes with some actions only.
        let actions = if matchers.contains("rail=") { "drain" } else { "policy speed" };
        Standing::default().set(&format!("{matchers} -> {actions}"))?;
        return Ok(Target::Matchers(matchers));
    }
    port(text).map(Target::Port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_port_or_matchers() {
        assert_eq!(target("eth0@10.0.0.1"), Ok(Target::Port("eth0@10.0.0.1".into())));
        for (text, matchers) in [
            ("peer=node3  rank=0", "peer=node3 rank=0"),
            ("any", "any"),
            (" peer=node3 -> weights 80,20", "peer=node3"),
        ] {
            assert_eq!(target(text), Ok(Target::Matchers(matchers.into())), "{text}");
        }
        for right in ["rail=eth1", "job=a rail=eth1,eth2*", "any peer=b"] {
            assert_eq!(target(right), Ok(Target::Matchers(right.into())));
        }
        for wrong in ["", "a b", "7", "a,b", "\u{1b}[2J=x", "foo=bar", "peer=", "eth1=", "-> drain", "any foo"] {
            assert!(target(wrong).unwrap_err().contains("allowed: "), "{wrong}");
        }
    }

    #[test]
    fn a_rule_has_single_spaces_and_a_wrong_one_is_named() {
        let right = rule("  job=a   peer=b->weights 80,20").unwrap();
        assert_eq!((&*right.matchers, &*right.actions), ("job=a peer=b", "weights 80,20"));
        assert!(rule("peer=b -> weights 0,0").unwrap_err().contains("is not a list of weights"));
    }
}
