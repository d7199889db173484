//! The timeline of a run: its ranks on one clock, with the connections between their events.

use crate::clock::{Clocks, Errors};
use crate::rank::{Facts, Rank};
use crate::runs;
use railweave_trace::Kind;
use std::collections::{BTreeMap, HashMap};

/// The choice among the runs whose files are in one folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The newest one.
    #[default]
    Newest,
    /// The one with this number: 1 is the newest.
    Number(usize),
    /// All of them, on one timeline.
    All,
}

/// The timeline of a run.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The hosts, in the order of their ranks.
    pub hosts: Vec<Host>,
    /// The ranks, by the job's id, the rank, the host and the process id.
    pub ranks: Vec<Rank>,
    /// The time between the first event and the last one, in nanoseconds.
    pub span_ns: u64,
    /// The time of the first event, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Sentences about everything that the timeline lacks or may have wrong.
    pub warnings: Vec<String>,
    /// The errors of clocks, and the clock of each rank.
    errors: (Vec<Errors>, Vec<usize>),
    /// The ranks by their process ids and the boot of their host (its name if that is unknown). Containers of one host
    /// number their processes each for itself.
    by_pid: HashMap<(Vec<u8>, u32), Vec<usize>>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The most that its times may be wrong, in nanoseconds, next to those of the first rank's host. `None` if that is
    /// unknown, because only the wall clocks connect the hosts.
    pub within_ns: Option<u64>,
}

/// The run that was asked for is not among the traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchRun {
    /// The run's number.
    pub asked: usize,
    /// The number of runs.
    pub runs: usize,
}

impl std::fmt::Display for NoSuchRun {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { asked, runs } = self;
        write!(out, "there is no run {asked}; allowed: 1, the newest one, to {runs}")
    }
}

impl std::error::Error for NoSuchRun {}

impl Timeline {
    /// Joins the traces of processes to the timeline of one run.
    ///
    /// # Errors
    /// If the run that was asked for does not exist.
    pub fn join(ranks: Vec<Rank>, choice: Choice) -> Result<Self, NoSuchRun> {
        let mut warnings = Vec::new();
        let mut ranks = choose(ranks, choice, &mut warnings)?;
        ranks.sort_by(|one, other| key(one).cmp(&key(other)));
        let clocks = Clocks::find(&ranks);
        let place = |rank: usize, ns: u64| clocks.clocks[clocks.of_ranks[rank]].place(ns.into());
        let spans = ranks.iter().enumerate().filter_map(|(number, rank)| {
            let (first, last) = rank.span?;
            Some((place(number, first), place(number, last)))
        });
        let (first, last) =
            spans.reduce(|(first, last), (from, to)| (first.min(from), last.max(to))).unwrap_or_else(|| {
                ranks.first().map_or((0, 0), |rank| (rank.process.at_ns.into(), rank.process.at_ns.into()))
            });
        let since = |ns: i128| (ns - first).clamp(0, i64::MAX.into()) as u64;
        let mut timeline = Self { span_ns: since(last), warnings, ..Self::default() };
        if let Some(rank) = ranks.first() {
            let ahead = i128::from(rank.process.wall_ns) - i128::from(rank.process.at_ns);
            timeline.wall_ns = u64::try_from(first.saturating_add(ahead)).unwrap_or(0);
        }
        for (number, rank) in ranks.iter_mut().enumerate() {
            rank.place(|ns| since(place(number, ns)));
        }
        timeline.ranks = ranks;
        timeline.find_hosts(&clocks);
        timeline.find_peers();
        timeline.lengthen();
        timeline.tell_missing(&clocks);
        timeline.errors = (clocks.clocks.iter().map(|clock| clock.errors(first)).collect(), clocks.of_ranks);
        Ok(timeline)
    }

    /// Returns a rank's host.
    #[must_use]
    pub fn host_of(&self, rank: &Rank) -> &str {
        self.hosts.get(rank.host).map_or("", |host| host.name.as_str())
    }

    /// Returns the most by which a time of a rank may be wrong, in nanoseconds, next to those of the first rank's host.
    /// `None` if that is unknown.
    #[must_use]
    pub fn within_ns(&self, rank: usize, at: u64) -> Option<u64> {
        let (errors, of_ranks) = &self.errors;
        errors.get(*of_ranks.get(rank)?)?.within(at)
    }

    /// Returns the rank and the id of the event that an event of a rank is a part of, if it is in the timeline.
    ///
    /// The parent of a proxy operation may be an event of another process of its host, which sends through this one. If
    /// several may be the one, there is no parent.
    #[must_use]
    pub fn parent(&self, rank: usize, event: u64) -> Option<(usize, u64)> {
        let found = self.ranks.get(rank)?.events.get(&event)?;
        let pid = match found.facts {
            Facts::Op(op) if op.pid != 0 => op.pid,
            _ => self.ranks[rank].process.pid,
        };
        let has_it = |rank: &usize| found.parent != 0 && self.ranks[*rank].events.contains_key(&found.parent);
        if pid == self.ranks[rank].process.pid {
            return has_it(&rank).then_some((rank, found.parent));
        }
        let mut owners = self.by_pid.get(&(boot(&self.ranks[rank]), pid))?.iter().filter(|rank| has_it(rank));
        match (owners.next(), owners.next()) {
            (Some(owner), None) => Some((*owner, found.parent)),
            _ => None,
        }
    }

    /// Returns the collective, or the send or receive of two ranks, that an event is a part of, and its rank.
    #[must_use]
    pub fn collective(&self, rank: usize, event: u64) -> Option<(usize, u64)> {
        let mut at = (rank, event);
        // A step is part of an operation, and that of a collective; a damaged file may have a circle.
        for _ in 0..4 {
            let found = self.ranks.get(at.0)?.events.get(&at.1)?;
            if matches!(found.kind, Kind::Coll | Kind::P2p) {
                return Some(at);
            }
            at = self.parent(at.0, at.1)?;
        }
        None
    }

    fn find_hosts(&mut self, clocks: &Clocks) {
        let mut known: BTreeMap<(Vec<u8>, String), usize> = BTreeMap::new();
        for (rank, clock) in self.ranks.iter_mut().zip(&clocks.of_ranks) {
            let within_ns = clocks.clocks[*clock].within_ns;
            let host = known.entry((rank.process.boot_id.clone(), rank.process.host.clone())).or_insert_with(|| {
                self.hosts.push(Host { name: rank.process.host.clone(), within_ns });
                self.hosts.len() - 1
            });
            rank.host = *host;
            let place = &mut self.hosts[*host].within_ns;
            *place = place.zip(within_ns).map(|(one, other)| one.max(other));
        }
        for (number, rank) in self.ranks.iter().enumerate() {
            self.by_pid.entry((boot(rank), rank.process.pid)).or_default().push(number);
        }
    }

    fn find_peers(&mut self) {
        let facts = |(number, rank): (usize, &Rank)| (number, rank.process.pid, rank.number());
        let known = |(number, rank): (usize, &Rank)| (rank.process.id.clone(), facts((number, rank)));
        let by_id: HashMap<_, _> = self.ranks.iter().enumerate().map(known).collect();
        for rank in &mut self.ranks {
            for connection in rank.connections.values_mut() {
                if let Some((number, pid, rank)) = by_id.get(&connection.facts.peer) {
                    (connection.peer, connection.peer_pid, connection.peer_rank) = (Some(*number), Some(*pid), *rank);
                }
            }
        }
    }

    /// Lets each event last until its last part ends: steps first, then operations, then the rest.
    fn lengthen(&mut self) {
        for rank in &mut self.ranks {
            let last = rank.last();
            for event in rank.events.values_mut().filter(|event| event.is_unfinished) {
                event.until = last.max(event.begin);
            }
        }
        for kind in [Kind::ProxyStep, Kind::ProxyOp] {
            let mut parts = Vec::new();
            for (number, rank) in self.ranks.iter().enumerate() {
                for (id, event) in rank.events.iter().filter(|(_, event)| event.kind == kind) {
                    if let Some(parent) = self.parent(number, *id) {
                        parts.push((parent, (number, *id), event.until, event.is_unfinished));
                    }
                }
            }
            for ((rank, id), (of_part, part), until, is_unfinished) in parts {
                // NCCL does not end an operation before its steps: one that goes on is one that was never used.
                let end = self.ranks[rank].events.get(&id).filter(|_| kind == Kind::ProxyStep).and_then(|it| it.end);
                if let (Some(end), true, Some(step)) = (end, is_unfinished, self.ranks[of_part].events.get_mut(&part)) {
                    step.until = end.max(step.begin).min(step.until);
                    continue;
                }
                if let Some(event) = self.ranks[rank].events.get_mut(&id) {
                    event.until = event.until.max(until);
                    event.is_unfinished |= is_unfinished;
                }
            }
        }
    }

    fn tell_missing(&mut self, clocks: &Clocks) {
        let mut sentences = Vec::new();
        for rank in &self.ranks {
            let (host, label, missing) = (self.host_of(rank), rank.label(), rank.missing);
            let mut tell = |what: String| sentences.push(format!("{label} on {host}: {what}"));
            if missing.files > 0 {
                tell(format!(
                    "{} of its files are gone, and what was in them; a greater RAILWEAVE_TRACE_MAX keeps more",
                    missing.files
                ));
            }
            if missing.rest_bytes > 0 {
                tell(format!(
                    "{} bytes at the ends of its files are no whole frames and are left out: it was stopped while it \
                     wrote them, or they are damaged",
                    missing.rest_bytes
                ));
            }
            if missing.lost > 0 {
                tell(format!("{} records were lost, because its threads were faster than the files", missing.lost));
            }
            let unplaced = missing.without_begin.saturating_add(missing.without_connection);
            if unplaced > 0 {
                tell(format!("{unplaced} ends and facts are left out, because the trace lacks their begins"));
            }
            if missing.unknown > 0 {
                let version = "try the railweave program of the job's version";
                tell(format!("{} records are of kinds that this version does not know; {version}", missing.unknown));
            }
        }
        for clock in &clocks.by_wall {
            let hosts = self.ranks.iter().zip(&clocks.of_ranks).filter(|(_, of)| *of == clock);
            if let Some((rank, _)) = hosts.into_iter().next() {
                let sentence = format!(
                    "{}: no measurement connects its clock with that of {}, so its times are by the wall clocks, and \
                     may be wrong by as much as these are",
                    self.host_of(rank),
                    self.ranks.first().map_or("", |first| self.host_of(first))
                );
                sentences.push(sentence);
            }
        }
        self.warnings.append(&mut sentences);
    }
}

/// Returns the id of a rank's boot; the host's name if it is unknown.
fn boot(rank: &Rank) -> Vec<u8> {
    let process = &rank.process;
    if process.boot_id.is_empty() { process.host.clone().into_bytes() } else { process.boot_id.clone() }
}

/// The place of a rank among the others.
fn key(rank: &Rank) -> (&str, u32, &str, u32, &[u8]) {
    let it = &rank.process;
    (&it.job, rank.number().unwrap_or(u32::MAX), &it.host, it.pid, &it.id)
}

/// Returns the ranks of the run that was chosen, and tells of those that are left out.
fn choose(ranks: Vec<Rank>, choice: Choice, warnings: &mut Vec<String>) -> Result<Vec<Rank>, NoSuchRun> {
    let runs = runs::find(&ranks);
    let chosen = match choice {
        Choice::All => return Ok(ranks),
        Choice::Newest => 0,
        Choice::Number(number) => number.wrapping_sub(1),
    };
    let Some(run) = runs.get(chosen) else {
        return match choice {
            Choice::Number(asked) => Err(NoSuchRun { asked, runs: runs.len() }),
            _ => Ok(Vec::new()),
        };
    };
    for (number, other) in runs.iter().enumerate().filter(|(number, _)| *number != chosen) {
        let begin = |run: &[usize]| run.iter().map(|rank| runs::wall_span(&ranks[*rank]).0).min().unwrap_or(0);
        let seconds = (begin(run) - begin(other)) / 1_000_000_000;
        let when = if number > chosen { "before" } else { "after" };
        let job = other.first().map_or("", |rank| ranks[*rank].process.job.as_str());
        let job = if job.is_empty() { String::new() } else { format!(" of job {job}") };
        warnings.push(format!(
            "left out: a run{job} with {} that began {} s {when} this one; --run {} shows it",
            if other.len() == 1 { "1 process".to_owned() } else { format!("{} processes", other.len()) },
            seconds.abs(),
            number + 1
        ));
    }
    let mut is_chosen = vec![false; ranks.len()];
    run.iter().for_each(|number| is_chosen[*number] = true);
    Ok(ranks.into_iter().zip(is_chosen).filter(|(_, is_chosen)| *is_chosen).map(|(rank, _)| rank).collect())
}

impl Rank {
    /// Moves all times.
    fn place(&mut self, to: impl Fn(u64) -> u64) {
        let end = |end: &mut Option<u64>| *end = end.map(&to);
        self.span = self.span.map(|(first, last)| (to(first), to(last)));
        for event in self.events.values_mut() {
            (event.begin, event.until) = (to(event.begin), to(event.until));
            end(&mut event.end);
            event.states.iter_mut().for_each(|(at, _)| *at = to(*at));
        }
        for connection in self.connections.values_mut() {
            connection.facts.at_ns = to(connection.facts.at_ns);
            end(&mut connection.ended);
            for request in &mut connection.requests {
                request.begin = to(request.begin);
                end(&mut request.end);
                for piece in &mut request.pieces {
                    piece.begin = to(piece.begin);
                    end(&mut piece.end);
                }
            }
            for rail in connection.rails.values_mut() {
                rail.samples.iter_mut().for_each(|(at, _)| *at = to(*at));
            }
        }
        self.happened.iter_mut().for_each(|it| it.at_ns = to(it.at_ns));
        for setup in &mut self.setups {
            (setup.from_ns, setup.to_ns) = (to(setup.from_ns), to(setup.to_ns));
        }
    }
}
