//! The rules for every message under the adaptive policy, whatever the rails do, and a few stories of its rates.

use proptest::prelude::*;
use railweave_fabric::{MAX_RAILS, PolicyName, RailId, RailSet};
use railweave_policy::{Adaptive, GRANULE, Order, Policy, Sent, Shares, Splitter};

const SPLIT_MIN: u64 = 8192;
const SECOND: u64 = 1_000_000_000;

fn rail(number: usize) -> RailId {
    RailId::new(number).expect("a rail's number")
}

fn split(policy: &mut Adaptive, now: u64, bytes: u64, usable: RailSet) -> Shares {
    let mut shares = Shares::default();
    policy.split(now, bytes, usable, &mut shares);
    shares.pieces().filter(|_| bytes >= 256).for_each(|piece| {
        policy.posted(now, piece.rail, piece.bytes);
    });
    shares
}

/// Checks the rules for every result.
fn check(shares: &Shares, bytes: u64, usable: RailSet, split_min: u64) -> Result<(), TestCaseError> {
    prop_assert_eq!(shares.mask.is_empty(), usable.is_empty());
    prop_assert!(shares.mask.is_within(usable));
    prop_assert_eq!(shares.bytes.iter().sum::<u64>(), if usable.is_empty() { 0 } else { bytes });
    prop_assert!(bytes >= split_min.max(GRANULE + 1) || shares.mask.len() <= 1);
    for id in RailId::all() {
        prop_assert_eq!(shares.mask.contains(id), shares.bytes[id] > 0 || bytes == 0 && shares.mask.contains(id));
        let ends_message = shares.mask.last() == Some(id);
        prop_assert!(!shares.mask.contains(id) || ends_message || shares.bytes[id].is_multiple_of(GRANULE));
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Step {
    Split { bytes: u64, usable: u8 },
    Complete { rail: usize },
    Ping { rail: usize, ticks: u64 },
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..1024, 0_u64..65536, (0_u32..=30).prop_map(|bits| 1 << bits), 0_u64..=1 << 30]
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let usable = prop_oneof![Just(0xff_u8), any::<u8>()];
    let step = prop_oneof![
        3 => (size(), usable).prop_map(|(bytes, usable)| Step::Split { bytes, usable }),
        3 => (0..MAX_RAILS).prop_map(|rail| Step::Complete { rail }),
        1 => (0..MAX_RAILS, any::<u32>()).prop_map(|(rail, ticks)| Step::Ping { rail, ticks: u64::from(ticks) }),
    ];
    let pause = prop_oneof![Just(0_u64), 0_u64..1000, 0_u64..1 << 20, 0_u64..1 << 40];
    (pause, step)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_message_is_split_by_the_rules(
        split_min in prop_oneof![Just(SPLIT_MIN), Just(0_u64), 0_u64..1 << 20],
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut policy = Adaptive::new(split_min, SECOND);
        let mut now = 1000_u64;
        let mut flights: [Vec<Sent>; MAX_RAILS] = Default::default();
        for (pause, step) in steps {
            now += pause;
            match step {
                Step::Split { bytes, usable } => {
                    let usable = RailSet::from_bits(usable);
                    let shares = split(&mut policy, now, bytes, usable);
                    check(&shares, bytes, usable, split_min)?;
                    for piece in shares.pieces().filter(|_| bytes >= 256) {
                        let is_split = bytes >= split_min;
                        flights[piece.rail].push(Sent { posted: now, bytes: piece.bytes, pieces: 1, is_split });
                    }
                }
                Step::Complete { rail: number } => {
                    if !flights[number].is_empty() {
                        let sent = flights[number].remove(0);
                        let in_flight = policy.sent(now, rail(number), &sent);
                        prop_assert_eq!(in_flight, policy.in_flight(rail(number)));
                    }
                }
                Step::Ping { rail: number, ticks } => policy.note_ping(rail(number), now.saturating_sub(ticks), ticks),
            }
            for (number, flight) in flights.iter().enumerate() {
                prop_assert_eq!(policy.in_flight(rail(number)), flight.iter().map(|sent| sent.bytes).sum::<u64>());
            }
        }
    }
}

/// Plays messages of `bytes` bytes, one at a time, over rails that need this many ticks for a granule. Returns the
/// bytes of each rail in each message.
fn play(policy: &mut Adaptive, now: &mut u64, bytes: u64, ticks: &[u64], messages: usize) -> Vec<[u64; MAX_RAILS]> {
    let usable = RailSet::first_of(ticks.len());
    let one = |_| {
        let posted = *now;
        let shares = split(policy, posted, bytes, usable);
        let mut ends: Vec<_> =
            shares.pieces().map(|piece| (piece.bytes / GRANULE * ticks[piece.rail], piece)).collect();
        ends.sort_by_key(|(ticks, _)| *ticks);
        for (ticks, piece) in ends {
            *now = posted + ticks;
            policy.sent(*now, piece.rail, &Sent { posted, bytes: piece.bytes, pieces: 1, is_split: true });
        }
        shares.bytes
    };
    (0..messages).map(one).collect()
}

#[test]
fn shares_follow_the_rates_and_a_change_within_some_ten_messages() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, u64::MAX), 0);
    let share = |bytes: &[u64; MAX_RAILS]| bytes[0] * 100 / bytes.iter().sum::<u64>();
    let unlike = play(&mut policy, &mut now, 1 << 20, &[10, 40], 12);
    assert_eq!(share(&unlike[0]), 50, "nothing is known");
    assert_eq!(share(&unlike[1]), 80, "the rates are known");
    let equal = play(&mut policy, &mut now, 1 << 20, &[40, 40], 20);
    assert!((70..80).contains(&share(&equal[1])) && share(&equal[11]) <= 56, "{:?}", equal.map_shares());
    let back = play(&mut policy, &mut now, 1 << 20, &[10, 40], 20);
    assert!(share(&back[0]) < 56 && share(&back[11]) >= 74, "{:?}", back.map_shares());
}

/// The percentages of the first rail.
trait MapShares {
    fn map_shares(&self) -> Vec<u64>;
}

impl MapShares for Vec<[u64; MAX_RAILS]> {
    fn map_shares(&self) -> Vec<u64> {
        self.iter().map(|bytes| bytes[0] * 100 / bytes.iter().sum::<u64>()).collect()
    }
}

#[test]
fn a_rail_that_is_not_worth_a_piece_is_probed_and_comes_back() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, u64::MAX), 0);
    let slow = play(&mut policy, &mut now, 1 << 20, &[10, 10_000], 20);
    assert_eq!(slow[15][1], 0, "a thousandth is not worth a piece");
    let probes = play(&mut policy, &mut now, 1 << 20, &[10, 10], 250);
    let first = probes.iter().position(|bytes| bytes[1] > 0).expect("a probe");
    assert_eq!(probes[first][1], 1 << 15, "a probe is a 32nd of the message");
    assert!(probes.last().expect("250 messages")[1] > 1 << 18, "it carries its part again: {:?}", probes.map_shares());
}

#[test]
fn short_messages_do_not_spoil_the_rates_of_split_ones() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, u64::MAX), 0);
    play(&mut policy, &mut now, 1 << 20, &[10, 40], 12);
    for _ in 0..100 {
        let posted = now;
        let shares = split(&mut policy, posted, 512, RailSet::first_of(2));
        let piece = shares.pieces().next().expect("it travels whole");
        now += 100_000;
        policy.sent(now, piece.rail, &Sent { posted, bytes: 512, pieces: 1, is_split: false });
    }
    let after = play(&mut policy, &mut now, 1 << 20, &[10, 40], 1);
    assert_eq!(after.map_shares(), [80]);
}

#[test]
fn the_smallest_messages_stay_on_one_rail_without_being_measured() {
    let mut policy = Adaptive::new(SPLIT_MIN, SECOND);
    let usable = RailSet::first_of(2);
    assert_eq!(policy.whole(8, usable), None, "no rail was chosen yet");
    let chosen = split(&mut policy, 0, 8, usable).mask.first();
    assert_eq!((policy.whole(8, usable), policy.whole(255, usable)), (chosen, chosen));
    assert_eq!((policy.whole(256, usable), policy.whole(8, RailSet::first_of(3))), (None, None));
    split(&mut policy, 0, 1 << 20, usable);
    assert_eq!(policy.whole(8, usable), None, "another rail may be better now");
    let alone = RailSet::only(rail(1));
    split(&mut policy, 0, 8, alone);
    assert_eq!(policy.whole(1 << 20, alone), Some(rail(1)), "there is no choice");
}

/// Plays messages of 4 KiB over two equal rails, 64 in flight. One of the first takes `stall` ticks longer than the
/// others. Returns the messages that each rail carried, of the hundred thousand from 1.1 times that time on.
fn whole_messages(stall: u64) -> [usize; 2] {
    let mut policy = Adaptive::new(SPLIT_MIN, SECOND);
    (0..2).for_each(|id| policy.note_ping(rail(id), 0, 5_000));
    let (mut now, mut free, mut carried) = (10_000, [0_u64; 2], [0; 2]);
    let mut flights: Vec<(u64, usize, u64)> = Vec::new();
    let mut number = 0;
    while carried[0] + carried[1] < 100_000 {
        if flights.len() == 64 {
            let next = flights.iter().enumerate().min_by_key(|(_, (end, ..))| *end).expect("64 are in flight").0;
            let (end, id, posted) = flights.remove(next);
            now = now.max(end);
            policy.sent(now, rail(id), &Sent { posted, bytes: 4096, pieces: 1, is_split: false });
        }
        let id = split(&mut policy, now, 4096, RailSet::first_of(2)).mask.first().expect("it travels").index();
        let late = if number == 50 { stall } else { 0 };
        free[id] = free[id].max(now) + 320 + late;
        flights.push((free[id] + 5_000, id, now));
        carried[id] += usize::from(now > stall + stall / 10);
        number += 1;
    }
    carried
}

#[test]
fn a_stall_takes_no_rail_out_of_use_for_long_even_if_all_messages_travel_whole() {
    for stall in [0, 100_000, 1_000_000, 10_000_000, 300_000_000] {
        let carried = whole_messages(stall);
        assert!(carried.iter().all(|messages| *messages > 40_000), "{carried:?} after a stall of {stall}");
    }
}

#[test]
fn a_probe_that_is_stuck_does_not_keep_its_rail_away_for_much_longer() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
    play(&mut policy, &mut now, 1 << 20, &[10, 10_000], 40);
    let usable = RailSet::first_of(2);
    let (posted, probe) = loop {
        let posted = now;
        let shares = split(&mut policy, posted, 1 << 20, usable);
        now += 40_960;
        for piece in shares.pieces().filter(|piece| piece.rail == rail(0)) {
            policy.sent(now, piece.rail, &Sent { posted, bytes: piece.bytes, pieces: 1, is_split: true });
        }
        if shares.bytes[1] > 0 {
            break (posted, shares.bytes[1]);
        }
    };
    assert_eq!(probe, 1 << 15, "a probe is a 32nd of the message");
    now += 30 * SECOND;
    policy.sent(now, rail(1), &Sent { posted, bytes: probe, pieces: 1, is_split: true });
    let back = now + 10 * SECOND;
    while now < back {
        play(&mut policy, &mut now, 1 << 20, &[10, 10], 1);
        now += SECOND / 100;
    }
    let share = play(&mut policy, &mut now, 1 << 20, &[10, 10], 1)[0][1];
    assert!(share > 1 << 18, "{share} bytes after ten seconds");
}

#[test]
fn probes_of_a_rail_that_is_slow_for_good_cost_little() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
    // A probe takes a third of a second, more than a 64th of the longest pause after one that was stuck.
    let mut seconds = |messages, ticks| {
        let begin = now;
        let probes = play(&mut policy, &mut now, 1 << 20, &[10, ticks], messages);
        assert!(probes.iter().any(|bytes| bytes[1] > 0), "there are probes");
        (now - begin) as f64 / SECOND as f64
    };
    // Some seconds to find out.
    seconds(100_000, 1_300_000);
    let (with, without) = (seconds(2_000_000, 1_300_000), 2e6 * 81_920.0 / SECOND as f64);
    assert!(with < 1.02 * without, "{with} s, without the slow rail {without} s");
}

#[test]
fn what_travels_whole_while_the_split_adapts_is_not_due_to_weights() {
    let order = |policy| Order::new(policy, [1; MAX_RAILS]);
    let mut splitter = Splitter::new(&order(PolicyName::Adaptive), SPLIT_MIN, SECOND);
    let usable = RailSet::first_of(2);
    let mut shares = Shares::default();
    splitter.split(0, 8, usable, &mut shares);
    assert!(splitter.whole(8, usable).is_some());
    (0..1 << 18).for_each(|_| splitter.count_whole(8));
    splitter.follow(&order(PolicyName::Agent));
    splitter.split(0, 1 << 20, usable, &mut shares);
    assert_eq!(shares.bytes[..2], [1 << 19; 2]);
}

#[test]
fn an_idle_rail_of_which_nothing_is_known_gets_the_first_message_that_tells_something() {
    let mut policy = Adaptive::new(SPLIT_MIN, SECOND);
    let usable = RailSet::first_of(2);
    for (now, expected) in [(0, rail(0)), (1000, rail(1))] {
        let shares = split(&mut policy, now, 4096, usable);
        assert_eq!(shares.mask.first(), Some(expected));
        policy.sent(now + 1, expected, &Sent { posted: now, bytes: 4096, pieces: 1, is_split: false });
    }
}

#[test]
fn short_messages_do_not_follow_a_probe_to_a_slow_rail() {
    let mut policy = Adaptive::new(SPLIT_MIN, SECOND);
    let (usable, mut now) = (RailSet::first_of(2), 0);
    let whole = |policy: &mut Adaptive, now: &mut u64| {
        let posted = *now;
        let used = split(policy, posted, 4096, usable).mask.first().expect("it travels");
        *now += if used == rail(0) { 1_000 } else { 1_000_000 };
        policy.sent(*now, used, &Sent { posted, bytes: 4096, pieces: 1, is_split: false });
        used
    };
    let mut probes = 0;
    for _ in 0..100_000 {
        if whole(&mut policy, &mut now) == rail(1) {
            probes += 1;
            assert_eq!(policy.whole(64, usable), None, "after probe {probes}");
        }
    }
    assert!((2..100).contains(&probes), "{probes} messages on the slow rail");
}

/// The rail with the largest share takes what rounding leaves. It stays in use if another one has too much to do.
#[test]
fn no_rail_is_left_out_because_another_has_more_to_do_than_its_part() {
    for flight in (120 << 10..140 << 10).step_by(64) {
        let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
        play(&mut policy, &mut now, 3 << 20, &[10, 10, 10], 40);
        policy.posted(now, rail(2), flight);
        let shares = split(&mut policy, now, 64 << 10, RailSet::first_of(3));
        assert_eq!(shares.bytes[..3], [32 << 10, 32 << 10, 0], "with {flight} bytes in flight");
    }
}

#[test]
fn a_latency_that_was_measured_too_high_is_corrected_by_a_piece() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
    (0..3).for_each(|_| policy.note_ping(rail(0), 0, 1_000_000));
    let shares = play(&mut policy, &mut now, 1 << 20, &[10, 10], 20).map_shares();
    assert!((48..=52).contains(&shares[19]), "{shares:?}");
}

#[test]
fn a_slower_empty_write_does_not_raise_the_latency() {
    let played = |pings: &[u64]| {
        let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
        pings.iter().for_each(|ticks| policy.note_ping(rail(0), 0, *ticks));
        play(&mut policy, &mut now, 1 << 16, &[10, 10], 1);
        policy.note_ping(rail(0), now, *pings.last().expect("some pings"));
        play(&mut policy, &mut now, 1 << 20, &[10, 10], 1)
    };
    assert_eq!(played(&[500, 9_000]), played(&[500, 500]));
    assert_ne!(played(&[500, 500]), played(&[100, 100]), "the latency counts");
}

#[test]
fn a_piece_behind_an_empty_write_does_not_begin_in_the_future() {
    let mut policy = Adaptive::new(SPLIT_MIN, SECOND);
    policy.note_ping(rail(0), 0, 1_000_000);
    let shares = split(&mut policy, 1_000_000, 1 << 20, RailSet::first_of(2));
    // The second empty write, posted just before the piece, tells a shorter latency.
    policy.note_ping(rail(0), 1_000_000, 100);
    for piece in shares.pieces() {
        let now = 1_000_000 + piece.bytes / GRANULE * 10;
        policy.sent(now, piece.rail, &Sent { posted: 1_000_000, bytes: piece.bytes, pieces: 1, is_split: true });
    }
    let mut now = 2_000_000;
    let share = play(&mut policy, &mut now, 1 << 20, &[10, 10], 1).map_shares()[0];
    assert!((48..=52).contains(&share), "{share} %");
}

#[test]
fn what_was_measured_before_a_pause_counts_for_less() {
    let after = |pause: u64| {
        let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
        play(&mut policy, &mut now, 1 << 20, &[10, 40], 40);
        now += pause;
        play(&mut policy, &mut now, 1 << 20, &[40, 40], 3).map_shares()[2]
    };
    let (at_once, soon, late) = (after(0), after(SECOND / 2), after(2 * SECOND));
    assert_eq!(at_once, soon, "a second is no pause");
    assert!(late + 5 < soon, "{late} % after a pause, and {soon} % without");
}

#[test]
fn a_rail_is_probed_only_after_thirty_two_messages_without_it() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
    play(&mut policy, &mut now, 1 << 20, &[10, 10_000], 20);
    // It is fast again, so that no pause after a probe delays the next one: the messages without it do.
    let used = play(&mut policy, &mut now, 1 << 20, &[10, 1], 400);
    let used: Vec<_> = (0..).zip(&used).filter(|(_, bytes)| bytes[1] > 0).map(|(message, _)| message).collect();
    let gaps: Vec<_> = used.windows(2).map(|pair| pair[1] - pair[0]).take_while(|gap| *gap > 1).collect();
    assert!(!gaps.is_empty() && gaps.iter().all(|gap| *gap == 32), "{gaps:?}");
}

#[test]
fn shares_are_as_exact_after_all_rails_became_far_slower() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, u64::MAX), 0);
    play(&mut policy, &mut now, 1 << 20, &[1, 1], 10);
    let shares = play(&mut policy, &mut now, 1 << 20, &[1_000_000, 4_000_000], 60).map_shares();
    assert!((79..=81).contains(&shares[59]), "{shares:?}");
}

#[test]
fn a_probe_leaves_every_other_piece_worth_its_write() {
    let (mut policy, mut now) = (Adaptive::new(SPLIT_MIN, SECOND), 0);
    // A seventh of such a message is less than a probe, a third is more.
    for (ticks, is_probed) in [(&[10, 10, 10, 10, 10, 10, 10, 5_000][..], false), (&[10, 10, 10, 5_000][..], true)] {
        play(&mut policy, &mut now, 1 << 20, ticks, 20);
        let messages = play(&mut policy, &mut now, SPLIT_MIN, ticks, 20_000);
        let last = ticks.len() - 1;
        assert_eq!(messages.iter().any(|bytes| bytes[last] > 0), is_probed);
        for bytes in messages {
            let pieces = &bytes[..ticks.len()];
            assert!(pieces[..last].iter().all(|piece| *piece >= 512), "{pieces:?}");
        }
    }
}
