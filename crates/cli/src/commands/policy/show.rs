//! `railweave policy show`: who steers a run dir, and by which orders.

use super::arguments::Common;
use super::rails::{self, RailView, UnsteeredView};
use crate::orders::effect::{Effects, Steering, rules};
use crate::orders::{By, Drained, Found, InForce, OrderedRule, Orders, State, files};
use crate::output::{print, print_as, printable};
use railweave_telemetry::{Folder, Rules, RunDir, SEED_POLICY_PATH, SeedPolicy};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The output of `--json`.
#[derive(Serialize)]
struct View {
    run_dir: String,
    /// The one who takes orders; `None` if nobody can be asked, for the reason in `trouble`.
    by: Option<By>,
    /// The version of the agent, if there is one.
    agent_version: Option<String>,
    trouble: Option<String>,
    policy_file: Option<FileView>,
    table: Option<TableView>,
    drains: Vec<Drained>,
    rules: Vec<OrderedRule>,
    /// The part of each rail, by the policy file and the table that are there.
    rails: Vec<RailView>,
    unsteered: Vec<UnsteeredView>,
    damaged: Vec<String>,
    /// The rails, for people.
    #[serde(skip)]
    effects: Effects,
}

/// The policy file.
#[derive(Serialize)]
struct FileView {
    path: String,
    /// `None` if neither an agent nor `railweave policy` wrote it.
    written_by: Option<String>,
    /// In seconds since 1970.
    written: Option<u64>,
    ttl_s: Option<u64>,
    /// `in_force`, `stale`, `wrong` or `unusable`.
    state: &'static str,
    /// The reason for the last two: the end of a sentence that begins with the file.
    reason: Option<String>,
    rules: Vec<String>,
}

/// The table of weights.
#[derive(Serialize)]
struct TableView {
    path: &'static str,
    ranks: u32,
    trouble: Option<String>,
}

/// Shows who steers a run dir.
pub(super) fn run(common: &Common) -> Result<(), Box<dyn Error>> {
    print_as(&View::new(&common.run_dir()?)?, common.json, show)
}

impl View {
    fn new(run_dir: &RunDir) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let folder = match Folder::open(run_dir.path()) {
            Ok(folder) => Some(folder),
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(printable(&error.to_string())),
        };
        let look = || {
            let orders = Orders::look(run_dir)?;
            let standing = orders.standing();
            Ok((orders, standing))
        };
        let looked = match look() {
            // The agent may have ended in between.
            Ok((_, Err(_))) => look(),
            looked => looked,
        };
        let (by, agent_version, mut trouble, mut in_force) = match looked {
            Ok((orders, standing)) => {
                let trouble = orders.trouble().or(orders.failure()).map(str::to_owned);
                let trouble = trouble.or_else(|| standing.as_ref().err().cloned());
                let by = orders.trouble().is_none().then(|| orders.by());
                (by, orders.version(), trouble, standing.unwrap_or_default())
            }
            Err(reason) => (None, None, Some(reason), InForce::default()),
        };
        in_force.drains.sort_by(|one, other| one.port.cmp(&other.port));
        let (found, unusable) = match folder.as_ref().map(|folder| Found::read(folder, now)) {
            Some(Ok(found)) => (found, None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let followed = found.as_ref().filter(|found| found.is_in_force()).map(Found::lines);
        let policy_file = file_view(run_dir, found.as_ref(), unusable);
        let mut effects = Effects::default();
        // Jobs of the folder's owner follow one of that user or of root.
        let mut seed = match &folder {
            Some(folder) => SeedPolicy::of_user(SEED_POLICY_PATH, folder.owner()),
            None => SeedPolicy::new(SEED_POLICY_PATH),
        };
        let said = seed.poll();
        let own: Option<Rules> = followed.and_then(|lines| rules(&lines).ok());
        let weight = |rank: u32| seed.weight(rank);
        let steering = Steering { rules: own.as_ref(), table: Some(&weight) };
        let read = folder
            .as_ref()
            .map(|folder| files::read(folder, |_, snapshot| effects.add(&snapshot, steering, steering, None)));
        let damaged = read.unwrap_or_else(|| Ok(Vec::new())).unwrap_or_else(|reason| {
            trouble.get_or_insert_with(|| reason.clone());
            vec![reason]
        });
        Ok(Self {
            run_dir: run_dir.path().display().to_string(),
            by,
            agent_version,
            trouble,
            policy_file,
            table: seed.exists().then(|| TableView { path: SEED_POLICY_PATH, ranks: seed.ranks(), trouble: said }),
            drains: in_force.drains,
            rules: in_force.rules,
            rails: effects.places.iter().map(RailView::new).collect(),
            unsteered: effects.unsteered.iter().map(Into::into).collect(),
            damaged,
            effects,
        })
    }
}

fn file_view(run_dir: &RunDir, found: Option<&Found>, unusable: Option<String>) -> Option<FileView> {
    let path = run_dir.policy_file().display().to_string();
    if unusable.is_some() {
        let (written_by, written, ttl_s, rules) = (None, None, None, Vec::new());
        return Some(FileView { path, written_by, written, ttl_s, state: "unusable", reason: unusable, rules });
    }
    let found = found?;
    let (state, reason) = match &found.state {
        State::InForce => ("in_force", None),
        State::Stale => ("stale", None),
        State::Wrong(reason) => ("wrong", Some(reason.clone())),
    };
    Some(FileView {
        path,
        written_by: found.writer(),
        written: found.written_s,
        ttl_s: found.ttl_s,
        state,
        reason,
        rules: found.lines().lines().map(str::to_owned).collect(),
    })
}

fn show(view: &View) -> io::Result<()> {
    let line = |text: &str| print(printable(text));
    line(&format!("run dir: \"{}\"", view.run_dir))?;
    match (&view.by, &view.policy_file) {
        (Some(by @ By::Agent { .. }), _) => {
            let version = view.agent_version.as_ref().map(|version| format!(", version {version}")).unwrap_or_default();
            line(&format!("steered by {by}{version}"))?;
        }
        (Some(By::File { .. }), Some(file)) if file.state == "in_force" => line("steered by its policy file alone")?,
        (Some(By::File { .. }), _) => line("steered by nobody: jobs follow their own settings")?,
        (None, _) => {}
    }
    if let Some(trouble) = &view.trouble {
        line(trouble)?;
    }
    if let Some(file) = &view.policy_file {
        line(&file_words(file))?;
    }
    if let Some(TableView { path, ranks, trouble }) = &view.table {
        line(&format!("the table \"{path}\" has {ranks} ranks, and steers where no rule fits"))?;
        trouble.iter().try_for_each(|trouble| line(trouble))?;
    }
    print("")?;
    if view.drains.is_empty() && view.rules.is_empty() {
        print("no operator has ordered anything")?;
    }
    for Drained { port, reasons, phase } in &view.drains {
        let phase = phase.as_ref().map(|phase| format!(", {}", phase.replace('_', " "))).unwrap_or_default();
        line(&format!("drained: {port} ({}){phase}", reasons.join(", ")))?;
    }
    for OrderedRule { matchers, actions } in &view.rules {
        line(&format!("rule: {matchers} -> {actions}"))?;
    }
    let is_file = matches!(view.by, Some(By::File { .. }));
    let holds = view.policy_file.as_ref().is_some_and(|file| file.state == "in_force");
    if is_file && !holds && !(view.drains.is_empty() && view.rules.is_empty()) {
        print("these hold again with the next order, or once an agent starts")?;
    }
    let places = view.effects.places.iter();
    if let Some(table) = rails::rails(places, "carries", |place, found| rails::carries(place.before, found)) {
        print("")?;
        print(table)?;
    }
    rails::left_out(&view.effects).iter().try_for_each(print)?;
    for process in &view.unsteered {
        print(format_args!("note: {}", rails::unsteered(process)))?;
    }
    view.damaged.iter().try_for_each(|damaged| line(&format!("skipped: {damaged}")))
}

/// Returns the sentence about the policy file.
fn file_words(file: &FileView) -> String {
    let FileView { path, written_by, written, ttl_s, state, reason, rules } = file;
    if *state == "unusable" {
        return reason.clone().unwrap_or_default();
    }
    let by = written_by.as_deref().unwrap_or("somebody else");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let written = written.map(|written| match now.checked_sub(written) {
        Some(age) => format!(", {:?} ago", Duration::from_secs(age)),
        None => ", in the future".to_owned(),
    });
    let written = written.unwrap_or_default();
    let ttl = ttl_s.map_or_else(|| "until it is removed".to_owned(), |ttl_s| format!("for {ttl_s} s"));
    let rules = rules.len();
    match (*state, reason) {
        ("wrong", Some(reason)) => format!(
            "policy file: \"{path}\" of {by}{written}: it orders nothing, and jobs keep the last good one: {reason}"
        ),
        ("stale", _) => format!(
            "policy file: \"{path}\" of {by}{written}, {ttl}: it is stale, so it orders nothing (rules: {rules})"
        ),
        _ => format!("policy file: \"{path}\" of {by}{written}, {ttl}: it is in force (rules: {rules})"),
    }
}
