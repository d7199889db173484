//! The time that the split of a message takes under fixed weights and under the policy `adaptive`, with what it is told
//! of each piece: `cargo run --release -p railweave-policy --example split_cost`.

#![expect(clippy::disallowed_types, clippy::print_stdout, reason = "it measures, and shows the figures")]

use std::hint::black_box;
use std::time::Instant;

use railweave_fabric::{MAX_RAILS, PolicyName, RailSet};
use railweave_policy::{Order, Policy, Sent, Shares, Splitter};

const CALLS: u64 = 2_000_000;

/// Returns the nanoseconds for one message of `bytes` bytes over rails of unlike rates, eight in flight, the median of
/// nine runs.
fn cost(policy: PolicyName, rails: usize, bytes: u64) -> f64 {
    let usable = RailSet::first_of(rails);
    let mut splitter = Splitter::new(&Order::new(policy, [4, 1, 3, 2, 4, 1, 3, 2]), 8192, 1_000_000_000);
    let mut shares = [Shares::default(); 8];
    let mut runs = [0.0; 9];
    let mut now = 1 << 20;
    for run in &mut runs {
        let begin = Instant::now();
        for call in 0..CALLS {
            let oldest = &mut shares[(call % 8) as usize];
            for piece in oldest.pieces() {
                let sent = Sent { posted: now - 8000, bytes: piece.bytes, pieces: 1, is_split: true };
                black_box(splitter.sent(now, piece.rail, &sent));
            }
            splitter.split(now, black_box(bytes), usable, oldest);
            for piece in oldest.pieces() {
                black_box(splitter.posted(now, piece.rail, piece.bytes));
            }
            now += 1000;
        }
        *run = begin.elapsed().as_nanos() as f64 / CALLS as f64;
    }
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn main() {
    println!("rails    bytes  weights ns  adaptive ns");
    for (rails, bytes) in [(2, 64 << 10), (2, 1 << 20), (8, 64 << 10), (MAX_RAILS, 1 << 20)] {
        let (weights, adaptive) = (cost(PolicyName::Static, rails, bytes), cost(PolicyName::Adaptive, rails, bytes));
        println!("{rails:5} {bytes:8} {weights:11.1} {adaptive:12.1}");
    }
}
