//! One clock for all hosts: the offsets between their clocks, out of the measurements of their processes.
//!
//! The measurements between two clocks are spread over windows of equal length, and the best of each window (the one
//! with the smallest error) counts, unless one nearby says more. Between two of them the offset is interpolated
//! linearly: two clocks drift apart steadily, by some microseconds per second, so that the nearest measurement alone
//! would be wrong by half a window's drift. Before the first and after the last one, the offset stays. Many windows
//! rather than one line over all, because the drift changes with the temperature.
//!
//! The error of a time is that of the measurements around it, and the most by which the clocks may have drifted since
//! the nearer one.

use crate::rank::Rank;
use std::collections::{BTreeMap, HashMap};

/// The shortest window of measurements, in nanoseconds.
const WINDOW: i128 = 1_000_000_000;

/// The most windows between two clocks.
const MOST_WINDOWS: i128 = 1024;

/// Two clocks drift apart by at most a nanosecond in this many: 100 millionths, as the transport takes it.
const DRIFT_PART: u64 = 10_000;

/// Times beyond this are none of a clock's 64 bits, whatever files claim. Sums of a few of them fit in an `i128`.
const FARTHEST: i128 = 1 << 80;

/// The way from one clock to the timeline's: times at which its offset is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Times of this clock with the offset to add, in their order. Empty for an offset of 0.
    points: Vec<Point>,
    /// The most that a time of its ranks may be wrong; `None` if that is unknown, because only wall clocks connect the
    /// clocks.
    pub(crate) within_ns: Option<u64>,
}

/// The most by which the times of a clock may be wrong on the timeline.
#[derive(Debug)]
pub(crate) struct Errors(Option<Clock>);

impl Errors {
    /// Returns the most by which a time of the timeline may be wrong; `None` if that is unknown.
    pub(crate) fn within(&self, ns: u64) -> Option<u64> {
        self.0.as_ref().map(|clock| clock.within(ns.into()))
    }
}

/// The offset of a clock at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    at: i128,
    offset: i128,
    /// The most that the offset may be wrong.
    within_ns: u64,
}

impl Clock {
    /// Returns the points before and after a time.
    fn around(&self, ns: i128) -> (Option<&Point>, Option<&Point>) {
        let after = self.points.partition_point(|it| it.at <= ns);
        (after.checked_sub(1).and_then(|before| self.points.get(before)), self.points.get(after))
    }

    /// Returns the timeline's time for a time of this clock.
    pub(crate) fn place(&self, ns: i128) -> i128 {
        let offset = match self.around(ns) {
            (None, None) => 0,
            (Some(it), None) | (None, Some(it)) => it.offset,
            (Some(one), Some(other)) => {
                let turned = (other.offset - one.offset).saturating_mul(ns - one.at) / (other.at - one.at).max(1);
                one.offset.saturating_add(turned)
            }
        };
        ns.saturating_add(offset).clamp(-FARTHEST, FARTHEST)
    }

    /// Returns the most by which [`Self::place`] of a time may be wrong.
    ///
    /// From a measurement on, the offset is wrong by the drift since then. Between two of them, the clocks may have
    /// drifted one way and the line the other, but no farther than back to the nearer measurement.
    fn within(&self, ns: i128) -> u64 {
        let drift = |ns: i128| u64::try_from(ns / i128::from(DRIFT_PART)).unwrap_or(u64::MAX);
        match self.around(ns) {
            (None, None) => 0,
            (Some(it), None) | (None, Some(it)) => it.within_ns.saturating_add(drift((ns - it.at).abs())),
            (Some(one), Some(other)) => {
                let (since, until) = (ns - one.at, other.at - ns);
                let near = since.min(until);
                // The offset's own change over that time, rounded up.
                let span = (other.at - one.at).max(1);
                let turned = (other.offset - one.offset).abs().saturating_mul(near) / span + 1;
                let turned = if near == 0 { 0 } else { u64::try_from(turned).unwrap_or(u64::MAX) };
                one.within_ns.max(other.within_ns).saturating_add(drift(near)).saturating_add(turned)
            }
        }
    }

    /// Returns the errors of the clock by the timeline's times, which begin at `first`.
    pub(crate) fn errors(&self, first: i128) -> Errors {
        let moved = |it: &Point| Point { at: self.place(it.at).saturating_sub(first), ..*it };
        let points = self.points.iter().map(moved).collect();
        Errors(self.within_ns.map(|within_ns| Self { points, within_ns: Some(within_ns) }))
    }

    /// Returns the most by which [`Self::place`] of any time between these may be wrong.
    fn worst(&self, (first, last): (i128, i128)) -> u64 {
        let middles = self.points.windows(2).map(|pair| i128::midpoint(pair[0].at, pair[1].at));
        let inside = self.points.iter().map(|it| it.at).chain(middles).filter(|at| (first..=last).contains(at));
        inside.chain([first, last]).map(|at| self.within(at)).max().unwrap_or(0)
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
            let points = if is_first { Vec::new() } else { vec![Point { at: 0, offset, within_ns: 0 }] };
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
        let mut clocks: Vec<Clock> = placed.into_iter().flatten().collect();
        for (number, clock) in clocks.iter_mut().enumerate() {
            let its = ranks.iter().zip(&of_ranks).filter(|(_, of)| **of == number).filter_map(|(rank, _)| rank.span);
            let worst = its.map(|(first, last)| clock.worst((first.into(), last.into()))).max();
            clock.within_ns = clock.within_ns.map(|_| worst.unwrap_or(0));
        }
        Self { clocks, of_ranks, by_wall }
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

/// Returns the best measurement of each window of time, in their order, but those that say less than a better one
/// nearby: one that is right to a microsecond is right to two microseconds 10 ms later.
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
    let mut best: Vec<Moment> = best.into_values().collect();
    best.sort_by_key(|it| it.one);
    for _ in 0..2 {
        let mut before: Option<Moment> = None;
        best.retain(|it| {
            let bound = before.map(|before| {
                let since = (it.one - before.one).unsigned_abs() / u128::from(DRIFT_PART);
                before.within_ns.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
            });
            let says_more = bound.is_none_or(|bound| it.within_ns <= bound);
            if says_more {
                before = Some(*it);
            }
            says_more
        });
        // Once forwards, and once backwards.
        best.reverse();
    }
    best
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
    let point = |it: &Moment| {
        let within_ns = it.within_ns.saturating_add(near.within(it.one));
        Point { at: it.other, offset: near.place(it.one) - it.other, within_ns }
    };
    let mut points: Vec<_> = moments.iter().map(point).collect();
    // The nearer clock's way may bend where this one's has no measurement.
    let measured = |it: &Moment| Point { at: it.one, offset: it.other - it.one, within_ns: it.within_ns };
    let across = Clock { points: moments.iter().map(measured).collect(), within_ns: None };
    points.extend(near.points.iter().map(|it| {
        let other = across.place(it.at);
        let within_ns = it.within_ns.saturating_add(across.within(it.at));
        Point { at: other, offset: it.at + it.offset - other, within_ns }
    }));
    points.sort_unstable();
    points.dedup_by_key(|it| it.at);
    Clock { points, within_ns: near.within_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    fn clock(points: &[(i128, i128, u64)]) -> Clock {
        let points = points.iter().map(|&(at, offset, within_ns)| Point { at: at * SECOND, offset, within_ns });
        Clock { points: points.collect(), within_ns: None }
    }

    #[test]
    fn the_error_grows_by_the_drift_since_the_nearest_measurement() {
        let clock = clock(&[(10, 0, 300), (20, 0, 500)]);
        assert_eq!([5, 10, 20, 23].map(|at| clock.within(at * SECOND)), [500_300, 500, 500, 300_500]);
        // Half of the ten seconds between them.
        assert_eq!(clock.within(15 * SECOND), 500_501);
        assert_eq!(clock.worst((9 * SECOND, 21 * SECOND)), 500_501);
        assert_eq!(clock.worst((5 * SECOND, 21 * SECOND)), 500_501);
        assert_eq!(clock.worst((11 * SECOND, 12 * SECOND)), 200_501);
    }

    #[test]
    fn no_drift_within_the_bound_is_wrong_by_more_than_the_error() {
        // The true offset rises and falls as fast as it may, and is measured at every tenth second.
        let rate = SECOND / i128::from(DRIFT_PART);
        let truth = |at: i128| match at.rem_euclid(14) {
            phase @ 0..7 => phase * rate,
            phase => (14 - phase) * rate,
        };
        let measured: Vec<_> = (0..10).map(|it| (it * 10, truth(it * 10), 0)).collect();
        let clock = clock(&measured);
        for at in -20..120 {
            let wrong = (clock.place(at * SECOND) - at * SECOND - truth(at)).unsigned_abs();
            let within = clock.within(at * SECOND);
            assert!(wrong <= within.into(), "{wrong} ns at {at} s, {within} claimed");
        }
    }

    #[test]
    fn a_measurement_that_says_less_than_its_neighbour_does_not_count() {
        let moment = |second: i128, within_ns| Moment { one: second * SECOND, other: second * SECOND, within_ns };
        let moments = [moment(0, 900_000), moment(2, 100), moment(4, 200_101), moment(6, 100), moment(20, 1_000_000)];
        let left: Vec<_> = best_of_windows(&moments).iter().map(|it| it.one / SECOND).collect();
        assert_eq!(left, [2, 6, 20]);
    }
}
