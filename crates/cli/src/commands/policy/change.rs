//! Orders, or what they would change.

use super::arguments::Common;
use super::empty::Waited;
use super::names::Names;
use super::rails::{self, RailView, UnsteeredView};
use crate::orders::effect::{Effects, Place, Rails, Steering, drain, rules};
use crate::orders::{By, Order, OrderedRule, Orders, Outcome, Trouble, files, note_freed};
use crate::output::{print, printable};
use railweave_telemetry::{Folder, Rules, SEED_POLICY_PATH, SeedPolicy};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::time::Duration;

/// An order that is to be given.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Drain(String),
    GiveBack(String),
    Set(Vec<OrderedRule>),
    Clear(String),
    ClearAll,
}

/// The answer to orders.
pub(super) struct Report {
    pub(super) orders_taker: Orders,
    is_trial: bool,
    outcomes: Vec<Outcome>,
    /// The effects of each, if they were only asked about.
    effects: Vec<Effects>,
    warnings: Vec<String>,
    damaged: Vec<String>,
    pub(super) waited: Vec<Waited>,
    /// The reason why nobody knows if the orders are carried out: a sentence.
    late: Option<String>,
    /// The reason why an order is not given, or not carried out: a sentence.
    error: Option<String>,
}

/// Gives orders, or asks what they would do.
///
/// # Errors
/// If nobody takes them, or no effect can be known: a sentence. The error of an order is in the report.
pub(super) fn run(
    wanted: Vec<Wanted>,
    is_trial: bool,
    ttl: Option<Duration>,
    common: &Common,
) -> Result<Report, String> {
    let run_dir = common.run_dir()?;
    let mut orders = if is_trial { Orders::look(&run_dir)? } else { Orders::find(&run_dir)? };
    if let Some(ttl) = ttl {
        orders.set_ttl(ttl)?;
    }
    let folder = Folder::open(orders.run_dir().path()).ok();
    let warnings = warnings(&wanted, folder.as_ref());
    let (mut outcomes, mut error): (Vec<Outcome>, _) = (Vec::new(), None);
    for order in &wanted {
        if outcomes.last().is_some_and(Outcome::is_late) {
            error = Some("the orders after that were not given".to_owned());
            break;
        }
        let outcome = match order {
            Wanted::Drain(port) => orders.drain(port, is_trial).map(|outcome| outcomes.push(outcome)),
            Wanted::GiveBack(port) => orders.give_back(port, is_trial).map(|outcome| outcomes.push(outcome)),
            Wanted::Set(rules) => orders.set(rules, is_trial, |outcome| outcomes.push(outcome)),
            Wanted::Clear(matchers) => orders.clear(matchers, is_trial).map(|outcome| outcomes.push(outcome)),
            Wanted::ClearAll => orders.clear_all(is_trial, |outcome| outcomes.push(outcome)),
        };
        if let Err(reason) = outcome {
            error = Some(reason);
            break;
        }
    }
    note_freed(&mut outcomes);
    let (late, failed) = match trouble(&outcomes) {
        // The file was looked at in the end.
        _ if matches!(wanted[..], [Wanted::ClearAll]) => (None, None),
        Some(Trouble::Late(reason)) => (Some(reason), None),
        Some(Trouble::Failed(reason)) => (None, Some(reason)),
        None => (None, None),
    };
    let error = match (&late, error) {
        (Some(late), Some(error)) => Some(format!("{late}; {error}")),
        (_, error) => error.or(failed),
    };
    let (effects, damaged) = match (&folder, is_trial) {
        (Some(folder), true) => effects(folder, &outcomes)?,
        _ => (Vec::new(), Vec::new()),
    };
    let mut report = Report {
        orders_taker: orders,
        is_trial,
        outcomes,
        effects,
        warnings,
        damaged,
        waited: Vec::new(),
        late,
        error,
    };
    // The last rule of a command is set first.
    if matches!(wanted[..], [Wanted::Set(_)]) {
        report.outcomes.reverse();
        report.effects.reverse();
    }
    Ok(report)
}

/// Returns the trouble that the orders have in the end: a file that is written with a later order has those before it.
fn trouble(outcomes: &[Outcome]) -> Option<Trouble> {
    let mut trouble: Option<Trouble> = None;
    for outcome in outcomes {
        match &outcome.trouble {
            Some(other) => trouble = Some(other.clone()),
            None if outcome.is_changed => trouble = None,
            None => {}
        }
    }
    trouble
}

/// Prints as JSON why no order could be given.
pub(super) fn print_refusal(reason: &str, dry_run: bool, common: &Common) -> io::Result<()> {
    let refusal = ReportView {
        run_dir: common.named_run_dir().map(|run_dir| run_dir.path().display().to_string()),
        by: None,
        dry_run,
        orders: Vec::new(),
        warnings: &[],
        unsteered: Vec::new(),
        damaged: &[],
        waited: &[],
        error: Some(reason),
    };
    print(serde_json::to_string_pretty(&refusal)?)
}

/// Returns warnings about names that nothing here has.
fn warnings(wanted: &[Wanted], folder: Option<&Folder>) -> Vec<String> {
    if !wanted.iter().any(|order| matches!(order, Wanted::Drain(_) | Wanted::Set(_))) {
        return Vec::new();
    }
    let names = Names::read(folder);
    let warn = |order: &Wanted| match order {
        Wanted::Drain(port) => names.warn_of_port(port).into_iter().collect(),
        Wanted::Set(rules) => rules.iter().flat_map(|rule| names.warn_of_rule(rule)).collect(),
        _ => Vec::new(),
    };
    wanted.iter().flat_map(warn).collect()
}

/// Returns the effects of each order that was asked about, and sentences about files that cannot be read.
fn effects(folder: &Folder, outcomes: &[Outcome]) -> Result<(Vec<Effects>, Vec<String>), String> {
    let wrong = |error| printable(&format!("the rules are wrong, so their effect is not known: {error}"));
    let mut all: Vec<(Rules, Rules, Option<Rules>, Effects)> = Vec::new();
    for Outcome { order, preview, .. } in outcomes {
        let preview = preview.clone().unwrap_or_default();
        let drain = if let Order::Drain { port } = order { drain(port) } else { None };
        all.push((
            rules(&preview.before).map_err(wrong)?,
            rules(&preview.after).map_err(wrong)?,
            drain,
            Effects::default(),
        ));
    }
    let mut seed = SeedPolicy::of_user(SEED_POLICY_PATH, folder.owner());
    seed.poll();
    let weight = |rank: u32| seed.weight(rank);
    let table = Some(&weight as &dyn Fn(u32) -> Option<f32>);
    let damaged = files::read(folder, |_, snapshot| {
        for (before, after, drain, effects) in &mut all {
            let [before, after] = [before, after].map(|rules| Steering { rules: Some(rules), table });
            effects.add(&snapshot, before, after, drain.as_ref());
        }
    })?;
    Ok((all.into_iter().map(|(.., effects)| effects).collect(), damaged))
}

/// The output of `--json`.
#[derive(Serialize)]
struct ReportView<'a> {
    run_dir: Option<String>,
    /// `None` if nobody takes orders.
    by: Option<By>,
    dry_run: bool,
    orders: Vec<OrderView<'a>>,
    warnings: &'a [String],
    /// The processes that follow no orders; only known of a dry run.
    unsteered: Vec<UnsteeredView>,
    damaged: &'a [String],
    waited: &'a [Waited],
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct OrderView<'a> {
    #[serde(flatten)]
    order: &'a Order,
    changed: bool,
    notes: &'a [String],
    /// The rails for which something would change; `None` if it was done.
    rails: Option<Vec<RailView>>,
    /// Connections that would go on using a port that is to be drained.
    kept_connections: u32,
}

impl Report {
    /// Notes the reason why no more is done: a sentence.
    pub(super) fn fail(&mut self, reason: String) {
        self.error = Some(reason);
    }

    /// Returns true if all orders were given, and none is known to fail.
    pub(super) fn is_whole(&self) -> bool {
        self.error.is_none()
    }

    /// Prints the report.
    ///
    /// # Errors
    /// If an order could not be given or carried out.
    pub(super) fn print(mut self, json: bool) -> Result<(), Box<dyn Error>> {
        // Ports that are empty say that the orders hold.
        if self.waited.is_empty() {
            self.error = self.error.or(self.late.take());
        }
        if json {
            print(serde_json::to_string_pretty(&self.view())?)?;
        } else {
            self.show()?;
        }
        match self.error {
            Some(error) => Err(printable(&error).into()),
            None => Ok(()),
        }
    }

    fn unsteered(&self) -> Vec<UnsteeredView> {
        // They are the same under all orders that were asked about, but for those that a rule before them steered.
        self.effects.first().map_or_else(Vec::new, |effects| effects.unsteered.iter().map(Into::into).collect())
    }

    fn view(&self) -> ReportView<'_> {
        let orders = self.outcomes.iter().enumerate().map(|(index, outcome)| {
            let effects = self.effects.get(index);
            OrderView {
                order: &outcome.order,
                changed: outcome.is_changed,
                notes: &outcome.notes,
                rails: self
                    .is_trial
                    .then(|| effects.map_or_else(Vec::new, |effects| effects.changes().map(RailView::new).collect())),
                kept_connections: effects.map_or(0, |effects| effects.kept.values().sum()),
            }
        });
        ReportView {
            run_dir: Some(self.orders_taker.run_dir().path().display().to_string()),
            by: Some(self.orders_taker.by()),
            dry_run: self.is_trial,
            orders: orders.collect(),
            warnings: &self.warnings,
            unsteered: self.unsteered(),
            damaged: &self.damaged,
            waited: &self.waited,
            error: self.error.as_deref(),
        }
    }

    fn show(&self) -> io::Result<()> {
        for warning in &self.warnings {
            print(format_args!("warning: {warning}"))?;
        }
        let by = printable(&self.orders_taker.by().to_string());
        if self.outcomes.is_empty() && self.error.is_none() {
            print("nothing is ordered, so nothing had to change")?;
        }
        for (index, outcome) in self.outcomes.iter().enumerate() {
            print(printable(&if self.is_trial { would(outcome) } else { done(outcome, &by) }))?;
            for note in &outcome.notes {
                print(format_args!("  {}", printable(note)))?;
            }
            if let Some(effects) = self.effects.get(index) {
                show_effects(effects, &outcome.order)?;
            } else if self.is_trial {
                print("  no process of Railweave has a file here")?;
            }
        }
        if self.is_trial && self.outcomes.len() > 1 && self.orders_taker.has_agent() {
            print("the agent was asked about each order alone; together, they may do less than each")?;
        }
        for process in self.unsteered() {
            print(format_args!("note: {}", rails::unsteered(&process)))?;
        }
        for damaged in &self.damaged {
            print(format_args!("skipped: {}", printable(damaged)))?;
        }
        self.waited.iter().try_for_each(|port| print(port.words()))
    }
}

/// Returns the sentence about an order that was given.
fn done(outcome: &Outcome, by: &str) -> String {
    if !outcome.is_changed {
        return format!("{}: nothing had to change", outcome.order);
    }
    match &outcome.order {
        Order::Drain { port } => format!("port {port} is to be empty, by {by}"),
        Order::GiveBack { port } => format!("port {port} is given back, by {by}"),
        Order::Set { matchers, actions } => format!("{matchers} -> {actions} comes first, by {by}"),
        Order::Clear { matchers } => format!("the rule for {matchers} is cleared, by {by}"),
    }
}

/// Returns the sentence about an order that was only asked about.
fn would(outcome: &Outcome) -> String {
    let order = &outcome.order;
    if outcome.is_changed { format!("{order} would change:") } else { format!("{order} would change nothing") }
}

fn show_effects(effects: &Effects, order: &Order) -> io::Result<()> {
    let change =
        |place: &Place, found: &Rails| format!("{} -> {}", rails::carries(place.before, found), place.after.words());
    match rails::rails(effects.changes(), "change", change) {
        Some(table) => print(table)?,
        None => print("  nothing for the connections that are there now")?,
    }
    if let Order::Drain { port } = order {
        for kept in &effects.kept {
            print(format_args!("  {}", rails::kept(kept, port)))?;
        }
    }
    match rails::left_out(effects) {
        Some(left_out) => print(format_args!("  {left_out}")),
        None => Ok(()),
    }
}
