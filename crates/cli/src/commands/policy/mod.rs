//! `railweave policy`: the orders that steer jobs while they run.

mod arguments;
mod change;
mod empty;
mod history;
mod names;
mod rails;
mod show;

pub(crate) use self::arguments::Arguments;

use self::arguments::{Action, Common, Ordering, Target};
use self::change::{Report, Wanted};
use crate::orders::OrderedRule;
use crate::output::{print, printable};
use railweave_agent::matchers_key;
use railweave_telemetry::create_seed_policy;
use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

/// The exit code if `--wait` ended while a port was still in use.
const IN_USE: u8 = 3;

/// The largest file of rules, in bytes: that of a policy file.
const LARGEST: u64 = 1 << 20;

/// Does what the arguments say. Returns the exit code.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    match &arguments.action {
        Action::Show { common } => show::run(common)?,
        Action::Set { rules, file, orders, common } => {
            let rules = all_rules(rules, file.as_deref()).map(|rules| vec![Wanted::Set(rules)]);
            run_orders(rules, *orders, common)?.print(common.json)?;
        }
        Action::Drain { ports, wait, orders, common } => {
            let wanted = ports.iter().cloned().map(Wanted::Drain).collect();
            let mut report = run_orders(Ok(wanted), *orders, common)?;
            if let (Some(wait), true) = (wait, report.is_whole()) {
                match empty::wait(&mut report.orders_taker, ports, *wait) {
                    Ok(waited) => report.waited = waited,
                    // The orders are given all the same.
                    Err(reason) => report.fail(reason),
                }
            }
            let is_in_use = report.waited.iter().any(|port| !port.empty);
            report.print(common.json)?;
            if is_in_use {
                return Ok(ExitCode::from(IN_USE));
            }
        }
        Action::Clear { targets, all, dry_run, common } => {
            let wanted = if *all {
                vec![Wanted::ClearAll]
            } else {
                let wanted = |target: &Target| match target {
                    Target::Port(port) => Wanted::GiveBack(port.clone()),
                    Target::Matchers(matchers) => Wanted::Clear(matchers.clone()),
                };
                targets.iter().map(wanted).collect()
            };
            let orders = Ordering { dry_run: *dry_run, ttl: None };
            run_orders(Ok(wanted), orders, common)?.print(common.json)?;
        }
        Action::History { count, common } => history::run(*count, common)?,
        Action::Init { ranks, path } => {
            create_seed_policy(path, *ranks)?;
            let shown = path.display();
            print(format_args!(
                "made {shown} for {ranks} ranks; it steers nothing until an agent sets a weight, and no more once it \
                 is removed"
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives orders, or asks what they would do.
///
/// # Errors
/// If there are none, or nobody takes them: a sentence, which is printed as JSON too if that is asked for.
fn run_orders(
    wanted: Result<Vec<Wanted>, String>,
    orders: Ordering,
    common: &Common,
) -> Result<Report, Box<dyn Error>> {
    match wanted.and_then(|wanted| change::run(wanted, orders.dry_run, orders.ttl, common)) {
        Ok(report) => Ok(report),
        Err(reason) => {
            if common.json {
                change::print_refusal(&reason, orders.dry_run, common)?;
            }
            Err(reason.into())
        }
    }
}

/// Returns the rules of the command and then those of a file.
///
/// # Errors
/// If the file is wrong, or two have the same matchers, of which only one can come first: a sentence.
fn all_rules(rules: &[OrderedRule], file: Option<&Path>) -> Result<Vec<OrderedRule>, String> {
    let mut rules = rules.to_vec();
    rules.extend(file.map(read_rules).transpose()?.unwrap_or_default());
    let mut keys = HashSet::new();
    match rules.iter().find(|rule| !keys.insert(matchers_key(&rule.matchers))) {
        None => Ok(rules),
        Some(OrderedRule { matchers, .. }) => Err(printable(&format!(
            "two rules have the matchers {matchers}, and the second would never hold; allowed: one rule for each; try \
             the first alone"
        ))),
    }
}

/// Reads a file of rules, one in each line.
fn read_rules(path: &Path) -> Result<Vec<OrderedRule>, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("\"{shown}\" cannot be read: {error}; allowed: text in UTF-8; try another");
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        File::open(path).map_err(failed)?.take(LARGEST + 1).read_to_string(&mut text)
    };
    read.map_err(failed)?;
    if text.len() as u64 > LARGEST {
        return Err(format!("\"{shown}\" has more than {LARGEST} bytes; allowed: up to {LARGEST}; try a smaller one"));
    }
    let lines = text.lines().map(str::trim).enumerate();
    let rules = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let rules = rules
        .map(|(index, line)| arguments::rule(line).map_err(|error| format!("\"{shown}\" line {}: {error}", index + 1)));
    let rules = rules.collect::<Result<Vec<_>, String>>()?;
    if rules.is_empty() {
        return Err(format!(
            "\"{shown}\" has no rules; allowed: one rule in each line; try peer=node3 -> weights 80,20"
        ));
    }
    Ok(rules)
}
