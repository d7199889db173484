//! The rows of the table: jobs, below them their peers, and below these their rails; sorted, filtered and folded.

use super::history::Histories;
use super::key::Key;
use crate::host::{Job, JobRail, Peer, RailSum};
use railweave_telemetry::{ConnectionState, Direction, RailState};
use std::cmp::Ordering;
use std::collections::HashSet;

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// By name, and rails by number.
    #[default]
    Name,
    Sent,
    Received,
    Share,
    Latency,
    /// The most urgent state first.
    State,
}

impl Sort {
    const ALL: [Self; 6] = [Self::Name, Self::Sent, Self::Received, Self::Share, Self::Latency, Self::State];

    /// Returns the next order.
    pub(super) fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Share => "share",
            Self::Latency => "latency",
            Self::State => "state",
        }
    }
}

/// The thing that a row is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum About<'a> {
    Job(&'a Job),
    Peer(&'a Peer),
    Rail(&'a JobRail),
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) key: Key,
    pub(super) about: About<'a>,
    /// Bytes per second; `None` if they are not known.
    pub(super) sent: Option<f64>,
    pub(super) received: Option<f64>,
    /// The recent latencies in microseconds that half and 99 % of the writes did not exceed; for a job or a peer those
    /// of its slowest rail.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) share: Option<f64>,
    /// The urgency of its state: 0 is well.
    pub(super) urgency: usize,
    pub(super) is_folded: bool,
}

/// The view that rows are made for.
pub(super) struct View<'a> {
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    /// In lower case.
    pub(super) filter: &'a str,
    pub(super) folded: &'a HashSet<Key>,
    /// True if jobs of several users are shown.
    pub(super) has_users: bool,
}

/// The states of rails, the most urgent first.
pub(super) const URGENT: [RailState; 7] = [
    RailState::Down,
    RailState::NeverUp,
    RailState::Suspected,
    RailState::Repairing,
    RailState::Drained,
    RailState::Unknown,
    RailState::Up,
];

/// Returns the most urgent state that a rail of the sum has.
pub(super) fn worst(sum: &RailSum) -> RailState {
    URGENT.into_iter().find(|state| sum.in_state(*state) > 0).unwrap_or(RailState::Unknown)
}

fn urgency(state: RailState) -> usize {
    URGENT.len() - 1 - URGENT.iter().position(|other| *other == state).unwrap_or(0)
}

/// Returns the number of connections of a peer that have failed.
pub(super) fn failed(peer: &Peer) -> u32 {
    peer.connections.iter().map(|states| states[ConnectionState::Failed as usize]).sum()
}

/// Returns the rows of the jobs that the view shows.
pub(super) fn rows<'a>(jobs: &'a [Job], histories: &Histories, view: &View<'_>) -> Vec<Row<'a>> {
    let mut trees: Vec<Tree<'_>> = jobs.iter().map(|job| Tree::of_job(job, histories, view)).collect();
    let mut rows = Vec::new();
    trees.retain_mut(|tree| tree.filter(view.filter, false));
    trees.iter_mut().for_each(|tree| tree.sort(view));
    trees.sort_by(|one, other| view.compare(&one.row, &other.row));
    trees.into_iter().for_each(|tree| tree.into_rows(&mut rows));
    rows
}

/// A row with those below it.
struct Tree<'a> {
    row: Row<'a>,
    /// The texts in which a filter looks, in lower case.
    texts: String,
    below: Vec<Tree<'a>>,
}

impl<'a> Tree<'a> {
    fn of_job(job: &'a Job, histories: &Histories, view: &View<'_>) -> Self {
        let key = Key::of_job(job);
        let below = job.peers.iter().map(|peer| Self::of_peer(peer, key.with_peer(peer), histories, view)).collect();
        let texts = view.texts(|| {
            let hosts = job.processes.iter().map(|process| format!("{} {}", process.host, process.presence));
            let user = if view.has_users { format!("user {}", job.user) } else { String::new() };
            format!("{} {user} {}", key.job, hosts.collect::<Vec<_>>().join(" "))
        });
        Self::above(key, About::Job(job), texts, below, view)
    }

    fn of_peer(peer: &'a Peer, key: Key, histories: &Histories, view: &View<'_>) -> Self {
        let below = peer.rails.iter().map(|rail| Self::of_rail(rail, key.with_rail(rail), histories, view)).collect();
        let texts = view.texts(|| {
            let states = [Direction::Send, Direction::Receive].map(|direction| peer.by_state(direction));
            let states = states.iter().flat_map(|states| states.keys().copied()).collect::<Vec<_>>().join(" ");
            format!("{} {} {states}", peer.host, peer.device)
        });
        let mut tree = Self::above(key, About::Peer(peer), texts, below, view);
        if failed(peer) > 0 {
            tree.row.urgency = URGENT.len();
        }
        tree
    }

    /// Returns the row above others, with their sums.
    fn above(key: Key, about: About<'a>, texts: String, below: Vec<Self>, view: &View<'_>) -> Self {
        let sum = |of: fn(&Row<'_>) -> Option<f64>| {
            below.iter().filter_map(|tree| of(&tree.row)).reduce(|sum, more| sum + more)
        };
        let most = |of: fn(&Row<'_>) -> Option<f64>| below.iter().filter_map(|tree| of(&tree.row)).reduce(f64::max);
        let row = Row {
            // A filter looks below folded rows too.
            is_folded: view.filter.is_empty() && view.folded.contains(&key),
            key,
            about,
            sent: sum(|row| row.sent),
            received: sum(|row| row.received),
            p50: most(|row| row.p50),
            p99: most(|row| row.p99),
            share: None,
            urgency: below.iter().map(|tree| tree.row.urgency).max().unwrap_or(0),
        };
        Self { row, texts, below }
    }

    fn of_rail(rail: &'a JobRail, key: Key, histories: &Histories, view: &View<'_>) -> Self {
        let history = histories.of(&key);
        let texts = view.texts(|| {
            let words = rail.sum.words();
            let words = words.iter().flat_map(|words| words.keys().copied());
            let ends = rail.ends.iter().flat_map(|(local, remote)| [&**local, &**remote]);
            let port = rail.port.as_deref();
            port.into_iter().chain(words).chain(ends).collect::<Vec<_>>().join(" ")
        });
        let row = Row {
            key,
            about: About::Rail(rail),
            sent: rail.sum.rate.map(|rate| rate.sent),
            received: rail.sum.rate.map(|rate| rate.received),
            p50: history.and_then(|history| history.latency(0.5)),
            p99: history.and_then(|history| history.latency(0.99)),
            share: rail.share,
            urgency: urgency(worst(&rail.sum)),
            is_folded: false,
        };
        Self { row, texts, below: Vec::new() }
    }

    /// Keeps the row and those below it that fit, and all below one that fits. Returns false if nothing does.
    fn filter(&mut self, filter: &str, fits_above: bool) -> bool {
        let fits = fits_above || self.texts.contains(filter);
        self.below.retain_mut(|tree| tree.filter(filter, fits));
        fits || !self.below.is_empty()
    }

    fn sort(&mut self, view: &View<'_>) {
        self.below.iter_mut().for_each(|tree| tree.sort(view));
        self.below.sort_by(|one, other| view.compare(&one.row, &other.row));
    }

    fn into_rows(self, rows: &mut Vec<Row<'a>>) {
        let is_folded = self.row.is_folded;
        rows.push(self.row);
        if !is_folded {
            self.below.into_iter().for_each(|tree| tree.into_rows(rows));
        }
    }
}

impl View<'_> {
    /// Returns the texts of a row in lower case, if they are needed.
    fn texts(&self, texts: impl FnOnce() -> String) -> String {
        if self.filter.is_empty() { String::new() } else { texts().to_lowercase() }
    }

    fn compare(&self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        // The largest first; what has no value comes last.
        let by = |of: fn(&Row<'_>) -> Option<f64>| {
            let value = |row| of(row).unwrap_or(-1.0);
            value(other).total_cmp(&value(one))
        };
        let order = match self.sort {
            Sort::Name => Ordering::Equal,
            Sort::Sent => by(|row| row.sent),
            Sort::Received => by(|row| row.received),
            Sort::Share => by(|row| row.share.or(row.sent)),
            Sort::Latency => by(|row| row.p99),
            Sort::State => other.urgency.cmp(&one.urgency),
        };
        let order = order.then_with(|| one.key.cmp(&other.key));
        if self.is_reversed { order.reverse() } else { order }
    }
}

/// Returns the connections that send and receive, and those of which neither is known.
pub(super) fn counts(peer: &Peer) -> [u32; 3] {
    [Direction::Send, Direction::Receive, Direction::Unknown].map(|direction| peer.count(direction))
}
