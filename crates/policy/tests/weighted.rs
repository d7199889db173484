//! The rules for every message, and those for the long run.

use proptest::prelude::*;
use railweave_fabric::{MAX_RAILS, RailSet};
use railweave_policy::{GRANULE, Shares, Weighted};

/// Checks the rules for every result.
fn check(shares: &Shares, bytes: u64, weights: &[u32; MAX_RAILS], usable: u8) -> Result<(), TestCaseError> {
    let is_usable = |rail: usize| usable & (1 << rail) != 0;
    let has_weight = |rail: usize| is_usable(rail) && weights[rail] > 0;
    let weighted = (0..MAX_RAILS).any(has_weight);
    let sum: u128 = shares.bytes.iter().map(|bytes| u128::from(*bytes)).sum();
    let mask = shares.mask.bits();
    prop_assert_eq!(mask == 0, usable == 0);
    prop_assert_eq!(sum, if usable == 0 { 0 } else { u128::from(bytes) });
    let first = (0..MAX_RAILS).find(|rail| if weighted { has_weight(*rail) } else { is_usable(*rail) });
    for rail in 0..MAX_RAILS {
        let active = mask & (1 << rail) != 0;
        let may_be = has_weight(rail) || (!weighted && Some(rail) == first);
        prop_assert!(may_be || !active, "rail {} must not be used", rail);
        prop_assert_eq!(active, shares.bytes[rail] > 0 || (bytes == 0 && Some(rail) == first));
        let ends_message = mask >> rail == 1;
        prop_assert!(!active || ends_message || shares.bytes[rail].is_multiple_of(GRANULE));
    }
    Ok(())
}

/// Generates sizes of every order of magnitude, often round.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0_u64),
        0_u64..1024,
        0_u64..65536,
        0_u64..=1 << 30,
        (0_u32..=30).prop_map(|bits| 1 << bits),
        any::<u64>(),
    ]
}

/// Generates one rail's weight: often small, sometimes 0, sometimes anything.
fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0_u32), 1_u32..=100, 1_u32..=1_000_000, any::<u32>()]
}

/// Generates a message, the usable rails, and sometimes new weights before it.
fn message() -> impl Strategy<Value = (u64, u8, Option<[u32; MAX_RAILS]>)> {
    (size(), any::<u8>(), prop::option::weighted(0.1, prop::array::uniform8(weight())))
}

/// Returns the bytes of each rail after at least `total` bytes in messages whose sizes repeat.
fn carry(split: &mut Weighted, usable: u8, sizes: &[u64], total: u64) -> [u64; MAX_RAILS] {
    let mut carried = [0; MAX_RAILS];
    let mut sent = 0;
    for size in sizes.iter().cycle() {
        if sent >= total {
            break;
        }
        let shares = split.split(*size, RailSet::from_bits(usable));
        for (carried, bytes) in carried.iter_mut().zip(shares.bytes) {
            *carried += bytes;
        }
        sent += size;
    }
    carried
}

proptest! {
    #[test]
    fn every_split_is_sound(
        weights in prop::array::uniform8(weight()),
        split_min in size(),
        messages in prop::collection::vec(message(), 1..64),
    ) {
        let mut weights = weights;
        let mut split = Weighted::new(weights, split_min);
        for (bytes, usable, change) in messages {
            if let Some(change) = change {
                weights = change;
                split.set_weights(weights);
            }
            let shares = split.split(bytes, RailSet::from_bits(usable));
            check(&shares, bytes, &weights, usable)?;
            prop_assert_eq!(shares.pieces().map(|piece| piece.bytes).sum::<u64>(), if usable == 0 { 0 } else { bytes });
            if bytes < split_min && usable != 0 {
                prop_assert!(shares.mask.is_single());
            }
        }
    }

    #[test]
    fn cts_goes_over_a_rail_that_may_be_used(
        weights in prop::array::uniform8(weight()), turn in any::<u32>(), usable in any::<u8>(),
    ) {
        match Weighted::new(weights, 0).cts_rail(turn, RailSet::from_bits(usable)) {
            None => prop_assert_eq!(usable, 0),
            Some(rail) => {
                prop_assert!(usable & (1 << rail.index()) != 0);
                let most = (0..MAX_RAILS).filter(|rail| usable & (1 << rail) != 0).map(|rail| weights[rail]).max();
                prop_assert_eq!(Some(weights[rail]), most);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_long_run_follows_the_weights(
        weights in prop::array::uniform8(0_u32..=100),
        usable in 1_u8..,
        split_min in prop_oneof![Just(0_u64), Just(8192), 0_u64..=65536],
        sizes in prop::collection::vec(prop_oneof![1_u64..65536, 1_u64..=4 << 20, Just(1 << 19)], 1..20),
    ) {
        let usable_rails = || (0..MAX_RAILS).filter(|rail| usable & (1 << rail) != 0);
        let sum: u128 = usable_rails().map(|rail| u128::from(weights[rail])).sum();
        prop_assume!(sum > 0);
        // It would take too many tiny messages to reach the total.
        prop_assume!(sizes.iter().sum::<u64>() / sizes.len() as u64 >= 4096);
        let carried = carry(&mut Weighted::new(weights, split_min), usable, &sizes, 4 << 30);
        let all: u128 = carried.iter().map(|bytes| u128::from(*bytes)).sum();
        for rail in usable_rails() {
            let ideal = all * u128::from(weights[rail]) / sum;
            let off = u128::from(carried[rail]).abs_diff(ideal);
            prop_assert!(off * 100 <= ideal, "rail {}: {} bytes instead of {}", rail, carried[rail], ideal);
        }
    }
}

#[test]
fn eighty_to_twenty_at_half_a_mebibyte() {
    let mut split = Weighted::new([80, 20, 0, 0, 0, 0, 0, 0], 8192);
    let carried = carry(&mut split, 0b11, &[512 << 10], 100 * (512 << 10));
    let all = carried[0] + carried[1];
    assert!((all / 5).abs_diff(carried[1]) * 1000 < all / 5, "{carried:?}");
}

#[test]
fn a_share_below_one_granule_is_still_carried() {
    let mut split = Weighted::new([1_000_000, 1_000, 0, 0, 0, 0, 0, 0], 0);
    let carried = carry(&mut split, 0b11, &[8192], 1 << 28);
    let ideal = (1 << 28) / 1001;
    assert!(carried[1].abs_diff(ideal) * 100 < ideal, "{} bytes instead of {ideal}", carried[1]);
}

#[test]
fn a_rail_that_comes_back_causes_no_burst() {
    let mut split = Weighted::new([1, 1, 0, 0, 0, 0, 0, 0], 8192);
    for _ in 0..1000 {
        split.split(1 << 20, RailSet::from_bits(0b01));
    }
    let shares = split.split(1 << 20, RailSet::from_bits(0b11));
    assert_eq!(shares.bytes[..2], [1 << 19, 1 << 19]);
}

#[test]
fn whole_large_messages_follow_the_weights_too() {
    let mut split = Weighted::new([80, 20, 0, 0, 0, 0, 0, 0], 1 << 30);
    let carried = carry(&mut split, 0b11, &[256 << 20], 1000 * (256 << 20));
    let all = carried[0] + carried[1];
    assert!((all / 5).abs_diff(carried[1]) * 100 < all / 5, "{carried:?}");
}

#[test]
fn usable_rails_that_come_and_go_leave_no_lasting_error() {
    let mut split = Weighted::new([50, 30, 20, 0, 0, 0, 0, 0], 8192);
    for round in 0..100_u8 {
        split.split(300_000, RailSet::from_bits(1 + round % 7));
    }
    let carried = carry(&mut split, 0b111, &[100_000, 3000, 64], 1 << 30);
    for (carried, weight) in carried.iter().zip([50, 30, 20]) {
        let ideal = (1 << 30) / 100 * weight;
        assert!(carried.abs_diff(ideal) * 100 < ideal, "{carried} bytes instead of {ideal}");
    }
}
