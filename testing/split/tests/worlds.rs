//! Random worlds, whose seeds nobody has tuned the policy with, hold the bounds, and equal weights do not.

use railweave_split::{Drawn, LEAST_OF_99, Split, Table, judge};

const FROM: u64 = 70_000_000;

fn play(worlds: u64, split: Split) -> Table {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Table::play(FROM, worlds, threads, |drawn| judge(&drawn, split))
}

#[test]
fn the_bounds_hold_in_random_worlds() {
    let table = play(400, Split::Adaptive);
    assert!(table.breaches().is_empty(), "{table}\n{}", table.breaches().join("\n"));
}

#[test]
fn equal_weights_break_the_bounds() {
    let breaches = play(60, Split::EQUAL).breaches();
    let of_99 = format!("below {} of the right weights", LEAST_OF_99[0]);
    assert!(breaches.len() > 20 && breaches.iter().any(|breach| breach.ends_with(&of_99)), "{breaches:?}");
}

#[test]
fn the_same_seed_has_the_same_world_and_verdict() {
    for seed in FROM..FROM + 5 {
        let verdict = || judge(&Drawn::new(seed), Split::Adaptive);
        assert_eq!(verdict().ratio.to_bits(), verdict().ratio.to_bits());
    }
}
