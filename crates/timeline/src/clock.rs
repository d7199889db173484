//! One clock for all hosts: the offsets between their clocks, out of the measurements of their processes.
//!
//! The measurements between two clocks are spread over windows of equal length, and the best of each window (the one
//! with the smallest error) counts. Between two of them the offset is interpolated linearly: two clocks drift apart
//! steadily, by some microseconds per second, so that the nearest measurement alone would be wrong by half a window's
//! drift. Before the first and after the last one, the offset stays. Many windows rather than one line over all,
//! because the drift changes with the temperature.

use crate::rank::Rank;
use std::collections::{BTreeMap, HashMap};

/// The shortest window of measurements, in nanoseconds.
const WINDOW: i128 = 10_000_000_000;

/// The most windows between two clocks.
const MOST_WINDOWS: i128 = 64;

/// Times beyond this are none of a clock's 64 bits, whatever files claim. Sums of a few of them fit in an `i128`.
const FARTHEST: i128 = 1 << 80;

/// The way from one clock to the timeline's: times at which its offset is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Times of this clock with the offset to add, in their order. Empty for an offset of 0.
    points: Vec<(i128, i128)>,
    /// The most that a time may be wrong; `None` if that is unknown, because only wall clocks connect the clocks.
    pub(crate) within_ns: Option<u64>,
}

impl Clock {
    /// Returns the timeline's time for a time of this clock.
    pub(crate) fn place(&self, ns: i128) -> i128 {
        let after = self.points.partition_point(|(at, _)| *at <= ns);
        let offset = match (after.checked_sub(1).and_then(|it| self.points.get(it)), self.points.get(after)) {
            (None, None) => 0,
            (Some((_, offset)), None) | (None, Some((_, offset))) => *offset,
            (Some((from, one)), Some((to, other))) => {
                let turned = (other - one).saturating_mul(ns - from) / (to - from).max(1);
                one.saturating_add(turned)
            }
        };
        ns.saturating_add(offset).clamp(-FARTHEST, FARTHEST)
    }
}

/// A measurement of two clocks: the same moment on both, and the most by which this may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    one: i128,
    other: i128,
    within_ns: u64,
}

/// The clocks of the ranks of one run.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// The clocks: the first is the timeline's own.
    pub(crate) clocks: Vec<Clock>,
    /// The clock of each rank.
    pub(crate) of_ranks: Vec<usize>,
    /// The clocks that no measurement connects with the first one.
    pub(crate) by_wall: Vec<usize>,
}

impl Clocks {
    /// Finds the clocks of these ranks, and the offset of each. Ranks of the same boot of a host share a clock; a rank
    /// whose host's boot is unknown has one of its own.
    pub(crate) fn find(ranks: &[Rank]) -> Self {
        let mut by_boot = HashMap::new();
        let mut count = 0;
        let mut of_ranks = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let mut next = || {
                count += 1;
                count - 1
            };
            let boot = &rank.process.boot_id;
            of_ranks.push(if boot.is_empty() { next() } else { *by_boot.entry(boot).or_insert_with(next) });
        }
        let edges = edges(ranks, &of_ranks);
        let mut placed: Vec<Option<Clock>> = vec![None; count];
        let mut by_wall = Vec::new();
        let walls = walls(ranks, &of_ranks, count);
        while let Some(start) = placed.iter().position(Option::is_none) {
            // The first clock is the timeline's; one that nothing connects with it is placed by the wall clocks.
            let is_first = start == 0;
            let offset = walls[0].zip(walls[start]).map_or(0, |(first, own)| own - first);
            let points = if is_first { Vec::new() } else { vec![(0, offset)] };
            placed[start] = Some(Clock { points, within_ns: is_first.then_some(0) });
            if !is_first {
                by_wall.push(start);
            }
            while let Some((from, to, moments)) = best(&edges, &placed) {
                let Some(near) = &placed[from] else { break };
                let far = beyond(near, &moments);
                if near.within_ns.is_none() {
                    by_wall.push(to);
                }
                placed[to] = Some(far);
            }
        }
        Self { clocks: placed.into_iter().flatten().collect(), of_ranks, by_wall }
    }
}

/// Returns the time since 1970 minus that of the clock, for each clock, if one of its ranks knows it.
fn walls(ranks: &[Rank], of_ranks: &[usize], count: usize) -> Vec<Option<i128>> {
    let mut walls = vec![None; count];
    for (rank, clock) in ranks.iter().zip(of_ranks) {
        if rank.process.wall_ns != 0 {
            walls[*clock].get_or_insert(i128::from(rank.process.wall_ns) - i128::from(rank.process.at_ns));
        }
    }
    walls
}

/// Returns the measurements that count, for each pair of clocks: the lower number first.
fn edges(ranks: &[Rank], of_ranks: &[usize]) -> BTreeMap<(usize, usize), Vec<Moment>> {
    let by_id: HashMap<&[u8], usize> =
        ranks.iter().enumerate().map(|(number, rank)| (rank.process.id.as_slice(), number)).collect();
    let mut edges: BTreeMap<(usize, usize), Vec<Moment>> = BTreeMap::new();
    for (rank, own) in ranks.iter().zip(of_ranks) {
        for measured in &rank.peer_clocks {
            let Some(peer) = by_id.get(measured.peer.as_slice()) else { continue };
            let theirs = of_ranks[*peer];
            if theirs == *own {
                continue;
            }
            let at = i128::from(measured.at_ns);
            let one = i128::from(rank.process.sessions_from_ns) + at;
            let other = i128::from(ranks[*peer].process.sessions_from_ns) + at + i128::from(measured.ahead_ns);
            let within_ns = measured.within_ns;
            let (pair, moment) = if *own < theirs {
                ((*own, theirs), Moment { one, other, within_ns })
            } else {
                ((theirs, *own), Moment { one: other, other: one, within_ns })
            };
            edges.entry(pair).or_default().push(moment);
        }
    }
    edges.values_mut().for_each(|moments| *moments = best_of_windows(moments));
    edges
}

/// Returns the best measurement of each window of time, in their order.
fn best_of_windows(moments: &[Moment]) -> Vec<Moment> {
    let first = moments.iter().map(|it| it.one).min().unwrap_or(0);
    let last = moments.iter().map(|it| it.one).max().unwrap_or(0);
    let window = ((last - first) / MOST_WINDOWS).max(WINDOW);
    let mut best: BTreeMap<i128, Moment> = BTreeMap::new();
    for moment in moments {
        let place = best.entry((moment.one - first) / window).or_insert(*moment);
        if moment.within_ns < place.within_ns {
            *place = *moment;
        }
    }
    best.into_values().collect()
}

/// Returns the most that an offset out of these measurements may be wrong.
fn worst(moments: &[Moment]) -> u64 {
    moments.iter().map(|it| it.within_ns).max().unwrap_or(u64::MAX)
}

/// Returns the edge with the smallest error from a clock that has a place to one that has none: both clocks, and its
/// measurements from the first one's side.
fn best(
    edges: &BTreeMap<(usize, usize), Vec<Moment>>,
    placed: &[Option<Clock>],
) -> Option<(usize, usize, Vec<Moment>)> {
    let leads_out = |pair: &(usize, usize)| placed[pair.0].is_some() != placed[pair.1].is_some();
    let (pair, moments) = edges.iter().filter(|(pair, _)| leads_out(pair)).min_by_key(|(_, moments)| worst(moments))?;
    let turned = |it: &Moment| Moment { one: it.other, other: it.one, ..*it };
    Some(match placed[pair.0].is_some() {
        true => (pair.0, pair.1, moments.clone()),
        false => (pair.1, pair.0, moments.iter().map(turned).collect()),
    })
}

/// Returns the clock at the other end of these measurements, whose nearer end is a clock with a place.
fn beyond(near: &Clock, moments: &[Moment]) -> Clock {
    let mut points: Vec<_> = moments.iter().map(|it| (it.other, near.place(it.one) - it.other)).collect();
    // The nearer clock's way may bend where this one's has no measurement.
    let across = Clock { points: moments.iter().map(|it| (it.one, it.other - it.one)).collect(), within_ns: None };
    points.extend(near.points.iter().map(|(at, offset)| {
        let other = across.place(*at);
        (other, at + offset - other)
    }));
    points.sort_unstable();
    points.dedup_by_key(|(at, _)| *at);
    Clock { points, within_ns: near.within_ns.map(|near| near.saturating_add(worst(moments))) }
}
