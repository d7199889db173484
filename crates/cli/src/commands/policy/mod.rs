//! `railweave policy`: the orders that steer jobs while they run.

mod arguments;
mod change;
mod empty;
mod history;
mod names;
mod rails;
mod show;

pub(crate) use self::arguments::Arguments;

use self::arguments::{Action, Target};
use self::change::Wanted;
use crate::orders::OrderedRule;
use crate::output::print;
use railweave_telemetry::create_seed_policy;
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
            let mut rules = rules.clone();
            if let Some(path) = file {
                rules.extend(read_rules(path)?);
            }
            change::run(vec![Wanted::Set(rules)], orders.dry_run, orders.ttl, common)?.print(common.json)?;
        }
        Action::Drain { ports, wait, orders, common } => {
            let wanted = ports.iter().cloned().map(Wanted::Drain).collect();
            let mut report = change::run(wanted, orders.dry_run, orders.ttl, common)?;
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
            change::run(wanted, *dry_run, None, common)?.print(common.json)?;
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
