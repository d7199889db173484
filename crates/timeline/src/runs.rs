//! The runs in one folder: processes that belong together, apart from those of older traces.

use crate::rank::Rank;
use std::collections::HashMap;

/// Returns the numbers of the ranks of each run, the newest run first: the one whose first process began last.
///
/// Two processes belong to one run if they have the same job's id and overlap in time, or if one names the other as a
/// peer. Wall clocks decide about the overlap: other clocks begin again with their host.
pub(crate) fn find(ranks: &[Rank]) -> Vec<Vec<usize>> {
    let spans: Vec<(i128, i128)> = ranks.iter().map(wall_span).collect();
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|number| spans[*number]);
    let mut groups = Groups((0..ranks.len()).collect());
    // The rank of each job that lasts longest, among those that began before.
    let mut longest: HashMap<&str, usize> = HashMap::new();
    for number in &order {
        let before = longest.entry(&ranks[*number].process.job).or_insert(*number);
        if spans[*before].1 >= spans[*number].0 {
            groups.join(*before, *number);
        }
        if spans[*before].1 <= spans[*number].1 {
            *before = *number;
        }
    }
    let by_id: HashMap<&[u8], usize> =
        ranks.iter().enumerate().map(|(number, rank)| (rank.process.id.as_slice(), number)).collect();
    for (number, rank) in ranks.iter().enumerate() {
        let connected = rank.connections.values().map(|it| &it.facts.peer);
        for peer in connected.chain(rank.peer_clocks.iter().map(|it| &it.peer)) {
            if let Some(peer) = by_id.get(peer.as_slice()) {
                groups.join(number, *peer);
            }
        }
    }
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut of_group: HashMap<usize, usize> = HashMap::new();
    // In the order of their begins, so that the last run is the newest.
    for number in order {
        let run = *of_group.entry(groups.of(number)).or_insert_with(|| {
            runs.push(Vec::new());
            runs.len() - 1
        });
        runs[run].push(number);
    }
    runs.reverse();
    runs
}

/// Returns the times since 1970 at which a rank's trace begins and ends.
pub(crate) fn wall_span(rank: &Rank) -> (i128, i128) {
    let ahead = i128::from(rank.process.wall_ns) - i128::from(rank.process.at_ns);
    let (first, last) = rank.span.unwrap_or((rank.process.at_ns, rank.process.at_ns));
    (i128::from(first) + ahead, i128::from(last) + ahead)
}

/// Groups of numbers: each number's way to the one that stands for its group.
struct Groups(Vec<usize>);

impl Groups {
    fn of(&mut self, mut number: usize) -> usize {
        while self.0[number] != number {
            self.0[number] = self.0[self.0[number]];
            number = self.0[number];
        }
        number
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        self.0[one.max(other)] = one.min(other);
    }
}
