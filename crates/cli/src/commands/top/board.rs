//! Everything that the screen shows: the jobs of the last look, their past, and what the user has chosen.

use super::events::{Events, Shown, TOP, Weight};
use super::hands::{Action, AllStanding, Answer, Drained, Order};
use super::history::Histories;
use super::key::Key;
use super::rows::{About, Row, Sort, View, rows};
use crate::host::{Job, Noted};
use railweave_agent::matchers_key;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// The findings of a look.
#[derive(Default)]
pub(super) struct Found {
    pub(super) jobs: Vec<Job>,
    pub(super) noted: Vec<Noted>,
    /// Folders and files that cannot be used, a sentence each.
    pub(super) troubles: Vec<String>,
    /// The folders that were looked at.
    pub(super) run_dirs: Vec<PathBuf>,
    /// The time in nanoseconds since 1970.
    pub(super) now_ns: u64,
}

/// A line that the user writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Filter(String),
    /// Weights for the connections of a peer, and the matchers of the rule that they become.
    Weights {
        text: String,
        matchers: String,
        /// True if such a rule is known to stand, so that an empty line ends it.
        stands: bool,
        /// The run dir of the peer's job.
        run_dir: PathBuf,
    },
}

/// The most letters of a prompt.
const LONGEST_PROMPT: usize = 200;

/// The state of the screen.
#[derive(Default)]
pub(super) struct Board {
    pub(super) host: String,
    /// The folders that are shown.
    pub(super) run_dirs: Vec<PathBuf>,
    pub(super) jobs: Vec<Job>,
    pub(super) histories: Histories,
    pub(super) events: Events,
    pub(super) troubles: Vec<String>,
    pub(super) standing: AllStanding,
    pub(super) now_ns: u64,
    /// The answer to the last order, or a hint.
    pub(super) answer: Option<Answer>,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) folded: HashSet<Key>,
    pub(super) selected: Option<Key>,
    /// The first row of the table that is shown.
    pub(super) first: Cell<usize>,
    pub(super) hides_events: bool,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) prompt: Option<Prompt>,
    /// True if jobs of several users are shown.
    pub(super) has_users: bool,
    is_begun: bool,
    processes: Processes,
}

/// Processes by their files, each with its name and its presence.
type Processes = BTreeMap<String, (String, &'static str)>;

fn processes(jobs: &[Job]) -> Processes {
    let mut processes = Processes::new();
    for job in jobs {
        let of_job = job.job.as_ref().map_or(String::new(), |job| format!(" of job {job}"));
        for process in &job.processes {
            let name = match process.rank {
                Some(rank) => format!("rank {rank}{of_job} (pid {})", process.pid),
                None => format!("pid {}{of_job}", process.pid),
            };
            processes.insert(process.file.clone(), (name, process.presence));
        }
    }
    processes
}

impl Board {
    /// Returns a board on this host, which has not looked yet.
    pub(super) fn new(host: String) -> Self {
        Self { host, events: Events::new(true), ..Self::default() }
    }

    /// Returns a board whose events are written as lines, so that none stands for others.
    pub(super) fn of_lines() -> Self {
        Self { events: Events::new(false), ..Self::default() }
    }

    /// Takes in a look.
    pub(super) fn take(&mut self, found: Found) {
        let Found { jobs, noted, troubles, run_dirs, now_ns } = found;
        self.events.note(noted);
        self.note_processes(&jobs, now_ns);
        for change in self.histories.look(&jobs, now_ns) {
            let job = if jobs.len() > 1 && !change.key.job.is_empty() {
                format!(" of job {}", change.key.job)
            } else {
                String::new()
            };
            let (host, device) = change.key.peer.clone().unwrap_or_default();
            let (number, port) = change.key.rail.clone().unwrap_or_default();
            let [before, now] = [change.before, change.now].map(|share| share * 100.0);
            let text = format!("{before:.0} % → {now:.0} %: rail {number} {port} to {host} by {device}{job}");
            self.say(now_ns, Weight::Change, "share", &format!("{:?}", change.key.parent()), text);
        }
        let known: BTreeSet<&String> = self.troubles.iter().collect();
        let new: Vec<String> = troubles.iter().filter(|trouble| !known.contains(trouble)).cloned().collect();
        new.into_iter().for_each(|trouble| self.say(now_ns, Weight::Wrong, "file-refused", "", trouble));
        (self.jobs, self.troubles, self.run_dirs) = (jobs, troubles, run_dirs);
        (self.now_ns, self.is_begun) = (now_ns, true);
        let users: BTreeSet<u32> = self.jobs.iter().map(|job| job.user).collect();
        self.has_users = users.len() > 1;
    }

    /// Takes in the answers to orders, and the orders that stand.
    pub(super) fn take_answers(&mut self, answers: Vec<Answer>, standing: AllStanding) {
        for answer in answers {
            let weight = if answer.is_done { Weight::Change } else { Weight::Wrong };
            self.say(self.now_ns, weight, "order", "", answer.text.clone());
            self.answer = Some(answer);
        }
        self.standing = standing;
    }

    fn say(&mut self, time_ns: u64, weight: Weight, kind: &str, topic: &str, text: String) {
        let (from, kind, topic) = (TOP.to_owned(), kind.to_owned(), topic.to_owned());
        self.events.add(Shown { time_ns, weight, from, kind, text, topic, job: String::new(), others: 0, number: 0 });
    }

    /// Notes the processes that came, ended or fell silent since the last look.
    fn note_processes(&mut self, jobs: &[Job], now_ns: u64) {
        let before = std::mem::replace(&mut self.processes, processes(jobs));
        if !self.is_begun {
            return;
        }
        let mut said = Vec::new();
        for (file, (name, presence)) in &self.processes {
            let was = before.get(file).map(|(_, presence)| *presence);
            said.push(match (was, *presence) {
                (Some(was), presence) if was == presence => continue,
                (None, "gone") => continue,
                (None, _) => (Weight::Usual, "begun", format!("{name} has begun")),
                (Some(_), "gone") => (Weight::Wrong, "gone", format!("{name} is gone, and has left its file")),
                (Some(_), "silent") => {
                    (Weight::Wrong, "silent", format!("{name} is silent: it has not written for 10 s"))
                }
                (Some(_), presence) => (Weight::Well, "well", format!("{name} is {presence}")),
            });
        }
        for (_, (name, _)) in before.iter().filter(|(file, _)| !self.processes.contains_key(*file)) {
            said.push((Weight::Usual, "ended", format!("{name} has ended")));
        }
        said.into_iter().for_each(|(weight, topic, text)| self.say(now_ns, weight, "process", topic, text));
    }

    /// Returns the rows of the table.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let filter = self.filter.to_lowercase();
        let view = View {
            sort: self.sort,
            is_reversed: self.is_reversed,
            filter: &filter,
            folded: &self.folded,
            has_users: self.has_users,
        };
        rows(&self.jobs, &self.histories, &view)
    }

    /// Returns the place of the selected row, or of the nearest one above that is still there.
    pub(super) fn place(&self, rows: &[Row<'_>]) -> Option<usize> {
        let mut key = self.selected.clone()?;
        loop {
            if let Some(place) = rows.iter().position(|row| row.key == key) {
                return Some(place);
            }
            key = key.parent()?;
        }
    }

    /// Moves the selection by this number of rows.
    pub(super) fn go(&mut self, by: isize) {
        let rows = self.rows();
        // The first step down selects the first row.
        let place = self.place(&rows).map_or(by.max(1).unsigned_abs() - 1, |place| place.saturating_add_signed(by));
        let key = rows.get(place.min(rows.len().saturating_sub(1))).map(|row| row.key.clone());
        self.selected = key;
    }

    /// Folds or unfolds the selected row; of a rail, which has nothing below, its peer.
    pub(super) fn fold(&mut self, folds: Option<bool>) {
        if !self.filter.is_empty() {
            return self.hint("fold: a filter shows everything below; Esc ends it");
        }
        let rows = self.rows();
        let Some(row) = self.place(&rows).and_then(|place| rows.get(place)) else { return };
        let (key, is_folded) = (row.key.clone(), row.is_folded);
        let is_rail = matches!(row.about, About::Rail(_));
        let folds = folds.unwrap_or(!is_folded && !is_rail);
        if folds && (is_rail || is_folded) {
            // As in other trees of files: the row above is next.
            self.selected = key.parent().or(Some(key));
        } else if folds {
            self.folded.insert(key);
        } else {
            self.folded.remove(&key);
        }
    }

    /// Folds or unfolds all peers.
    pub(super) fn fold_all(&mut self) {
        let of_job = |job: &Job| {
            let key = Key::of_job(job);
            job.peers.iter().map(|peer| key.with_peer(peer)).collect::<Vec<_>>()
        };
        let peers: Vec<Key> = self.jobs.iter().flat_map(of_job).collect();
        let is_any_open = peers.iter().any(|key| !self.folded.contains(key));
        if is_any_open {
            self.folded.extend(peers);
        } else {
            self.folded.clear();
        }
    }

    /// Adds a letter to the line that the user writes.
    pub(super) fn write(&mut self, letter: char) {
        let text = match &mut self.prompt {
            Some(Prompt::Filter(text) | Prompt::Weights { text, .. }) => text,
            None => return,
        };
        if text.chars().count() < LONGEST_PROMPT && !letter.is_control() {
            text.push(letter);
        }
        self.follow_prompt();
    }

    /// Takes the last letter away.
    pub(super) fn erase(&mut self) {
        if let Some(Prompt::Filter(text) | Prompt::Weights { text, .. }) = &mut self.prompt {
            text.pop();
        }
        self.follow_prompt();
    }

    /// Takes all letters away.
    pub(super) fn erase_all(&mut self) {
        if let Some(Prompt::Filter(text) | Prompt::Weights { text, .. }) = &mut self.prompt {
            text.clear();
        }
        self.follow_prompt();
    }

    /// A filter holds while it is written.
    fn follow_prompt(&mut self) {
        if let Some(Prompt::Filter(text)) = &self.prompt {
            self.filter.clone_from(text);
        }
    }

    /// Answers the user at once.
    pub(super) fn hint(&mut self, text: impl Into<String>) {
        self.answer = Some(Answer { text: text.into(), is_done: false });
    }

    /// Returns the folders that are shown, that of the selected row first.
    pub(super) fn run_dirs_by_use(&self) -> Vec<PathBuf> {
        let mut run_dirs = self.run_dirs.clone();
        if let Some(key) = &self.selected
            && let Some(place) = run_dirs.iter().position(|run_dir| *run_dir == key.run_dir)
        {
            run_dirs[..=place].rotate_right(1);
        }
        run_dirs
    }

    /// Returns the folders that are shown, as words.
    pub(super) fn shown_dirs(&self) -> String {
        self.run_dirs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the drain of a port: that of its own name, or of one that stands for it (docs/agent.md).
    pub(super) fn drain_of(&self, run_dir: &Path, port: &str) -> Option<&Drained> {
        let Some(Ok(standing)) = self.standing.get(run_dir) else { return None };
        // One that can be given back comes first.
        let mut found = standing.drained.iter().filter(|drained| drained.covers(port));
        found.clone().find(|drained| drained.is_ordered).or_else(|| found.next())
    }

    /// Returns the actions of the rule that stands for these matchers.
    pub(super) fn actions_of(&self, run_dir: &Path, matchers: &str) -> Option<&str> {
        let Some(Ok(standing)) = self.standing.get(run_dir) else { return None };
        let key = matchers_key(matchers);
        standing.rules.iter().find(|(known, _)| matchers_key(known) == key).map(|(_, actions)| &**actions)
    }

    /// Takes the line that the user has written. Returns the order that it is, if it is one.
    pub(super) fn finish_prompt(&mut self) -> Option<Order> {
        let Some(Prompt::Weights { text, matchers, stands, run_dir }) = self.prompt.take() else { return None };
        let weights: String = text.split_whitespace().collect();
        let action = match &*weights {
            "" if !stands => {
                self.hint("weights: none are given and none are known to stand, so nothing is ordered");
                return None;
            }
            "" => Action::Clear(matchers),
            weights => Action::Set(matchers, format!("weights {weights}")),
        };
        Some(Order { run_dir, action })
    }
}
