//! Scenarios whose best bandwidth is known, each with other weights that must miss the bound.

use railweave_split::{After, Load, QUANTUM, Split, Stage, rate};

use railweave_fabric_sim::Wire;

const MS: u64 = 1_000_000;
const KIB: u64 = 1 << 10;

/// The fast and the slow rail of most scenarios, in kbit/s.
const RATES: [u64; 2] = [80_000, 20_000];

/// Returns the wire of a rail with a latency of 0.1 ms.
fn wire(rate_kbps: u64) -> Wire {
    Wire { rate_kbps, quantum: QUANTUM, delay_ns: MS / 20, jitter_ns: 0, ack_delay_ns: MS / 20 }
}

/// Returns the bytes per nanosecond of all rails.
fn sum(rates_kbps: &[u64]) -> f64 {
    rates_kbps.iter().sum::<u64>() as f64 / 8e6
}

/// Sets the rates between all hosts.
fn set(stage: &mut Stage, hosts: usize, rates_kbps: &[u64]) {
    for (rail, rate_kbps) in rates_kbps.iter().enumerate() {
        (0..hosts).for_each(|host| stage.set_wire(host, rail, wire(*rate_kbps)));
    }
}

/// Returns two hosts with these rails and one flow.
fn pair(rates_kbps: &[u64], split: Split, load: Load) -> Stage {
    let mut stage = Stage::new(1, 2, rates_kbps.len());
    stage.connect(0, 1, split, load);
    set(&mut stage, 2, rates_kbps);
    stage
}

/// Returns the bandwidth of the flow, once its first messages are through.
fn steady(mut stage: Stage) -> f64 {
    stage.run_messages(0, 200);
    let from_ns = stage.now_ns();
    stage.run_messages(0, 600);
    rate(stage.sent(0), from_ns, stage.now_ns())
}

#[test]
fn each_size_and_depth_gets_what_the_rails_carry() {
    for rates in [&RATES[..], &[60_000, 30_000, 10_000]] {
        for (depth, kib) in [(1, 64), (1, 512), (2, 64), (2, 512), (8, 64), (8, 512)] {
            let play = |split| steady(pair(rates, split, Load::of(kib * KIB, depth)));
            // The best weights for a lone message are the right ones, because the latencies are alike.
            let best = if depth == 1 { play(Split::right(rates)) } else { sum(rates) };
            let (adaptive, equal) = (play(Split::Adaptive) / best, play(Split::EQUAL) / best);
            assert!(adaptive >= 0.97, "{rates:?}, {depth} x {kib} KiB: {adaptive:.3}");
            assert!(equal < 0.5, "{rates:?}, {depth} x {kib} KiB, equal weights: {equal:.3}");
        }
    }
}

#[test]
fn equal_rails_with_jitter_lose_next_to_nothing() {
    for depth in [1, 2, 8] {
        let play = |split| {
            let (rates, bytes) = ([50_000; 2], 64 * KIB);
            let mut stage = pair(&rates, split, Load::of(bytes, depth));
            let jitter_ns = (bytes as f64 / sum(&rates) / 20.0) as u64;
            let wire = Wire { jitter_ns, ..wire(rates[0]) };
            (0..2).for_each(|rail| stage.set_wire(0, rail, wire));
            steady(stage)
        };
        let equal = play(Split::EQUAL);
        let (adaptive, wrong) = (play(Split::Adaptive) / equal, play(Split::right(&[11, 10])) / equal);
        assert!(adaptive >= 0.995, "{depth} in flight: {adaptive:.4}");
        assert!(wrong < 0.995, "{depth} in flight, one weight a tenth too high: {wrong:.4}");
    }
}

/// Returns the bandwidth next to the sum of the rates, from as soon after now as the bound for a change allows: when
/// all bytes in flight are through, and 16 messages.
fn settled(stage: &mut Stage, rates: &[u64], bytes: u64, depth: usize) -> f64 {
    let message_ns = bytes as f64 / sum(rates);
    let from_ns = stage.now_ns() + ((depth + 16) as f64 * message_ns) as u64;
    let until_ns = from_ns + (40.0 * message_ns) as u64;
    stage.run_until(until_ns);
    rate(stage.sent(0), from_ns, until_ns) / sum(rates)
}

#[test]
fn a_start_from_nothing_and_a_rate_that_changes_are_soon_over() {
    let cut = [20_000, 20_000];
    for (kib, in_order) in [(64, true), (64, false), (512, true), (512, false)] {
        let (bytes, depth) = (kib * KIB, 8);
        let play = |split| {
            let mut stage = pair(&RATES, split, Load { in_order, ..Load::of(bytes, depth) });
            let start = settled(&mut stage, &RATES, bytes, depth);
            set(&mut stage, 2, &cut);
            let slow = settled(&mut stage, &cut, bytes, depth);
            set(&mut stage, 2, &RATES);
            [start, slow, settled(&mut stage, &RATES, bytes, depth)]
        };
        let (adaptive, old) = (play(Split::Adaptive), play(Split::right(&RATES)));
        assert!(adaptive.iter().all(|part| *part >= 0.95), "{kib} KiB, in order {in_order}: {adaptive:.3?}");
        assert!(old[1] < 0.95 && play(Split::EQUAL)[0] < 0.95, "{kib} KiB: {old:.3?}");
    }
}

#[test]
fn tiny_messages_in_between_do_not_spoil_the_rates() {
    let sizes = [vec![8; 20], vec![KIB * KIB]].concat();
    for depth in [1, 2, 8] {
        let play = |split| {
            let mut stage = pair(&RATES, split, Load { sizes: sizes.clone(), ..Load::of(8, depth) });
            stage.run_messages(0, 21 * 40);
            let from_ns = stage.now_ns();
            stage.run_messages(0, 21 * 140);
            rate(stage.sent(0), from_ns, stage.now_ns())
        };
        let right = play(Split::right(&RATES));
        let (adaptive, equal) = (play(Split::Adaptive) / right, play(Split::EQUAL) / right);
        assert!(adaptive >= 0.97, "{depth} in flight: {adaptive:.3}");
        assert!(equal < 0.6, "{depth} in flight, equal weights: {equal:.3}");
    }
}

#[test]
fn a_ring_whose_steps_need_each_other_is_as_fast_as_with_fixed_weights() {
    for (lag, channels) in [(1, 1), (2, 1), (4, 1), (2, 2)] {
        let play = |split| {
            let mut stage = Stage::new(1, 3, 2);
            for channel in 0..channels {
                for host in 0..3 {
                    let after = Some(After { flow: channel * 3 + (host + 2) % 3, lag, period: 16 });
                    stage.connect(host, (host + 1) % 3, split, Load { after, ..Load::of(512 * KIB, 8) });
                }
            }
            set(&mut stage, 3, &RATES);
            stage.run_messages(0, 100);
            let from_ns = stage.now_ns();
            stage.run_messages(0, 400);
            (0..channels).map(|channel| rate(stage.sent(channel * 3), from_ns, stage.now_ns())).sum::<f64>()
        };
        let right = play(Split::right(&RATES));
        let (adaptive, equal) = (play(Split::Adaptive) / right, play(Split::EQUAL) / right);
        assert!(adaptive >= 0.97, "lag {lag}, {channels} channels: {adaptive:.3}");
        assert!(equal < 0.6, "lag {lag}, {channels} channels, equal weights: {equal:.3}");
    }
}

/// The figures of several connections over the same two ports.
#[derive(Debug)]
struct Several {
    /// The bandwidth of all next to the sum of the rates.
    total: f64,
    /// The least and the greatest bandwidth of one next to its fair part.
    least: f64,
    most: f64,
}

fn several(connections: usize, depth: usize, bytes: u64, quantum: u32, split: Split) -> Several {
    let mut stage = Stage::new(1, 2, 2);
    let message_ns = bytes as f64 / sum(&RATES);
    for number in 0..connections {
        let start_ns = (0.37 * message_ns * number as f64) as u64;
        stage.connect(0, 1, split, Load { start_ns, ..Load::of(bytes, depth) });
    }
    let jitter_ns = (message_ns / 50.0) as u64;
    for (rail, rate_kbps) in RATES.into_iter().enumerate() {
        (0..2).for_each(|host| stage.set_wire(host, rail, Wire { quantum, jitter_ns, ..wire(rate_kbps) }));
    }
    let [from_ns, until_ns] = [200.0, 600.0].map(|messages| (messages * message_ns * connections as f64) as u64);
    stage.run_until(until_ns);
    let parts: Vec<f64> =
        (0..connections).map(|flow| rate(stage.sent(flow), from_ns, until_ns) / sum(&RATES)).collect();
    let fair = |part: f64| part * connections as f64;
    Several {
        total: parts.iter().sum(),
        least: fair(parts.iter().copied().fold(f64::MAX, f64::min)),
        most: fair(parts.iter().copied().fold(0.0, f64::max)),
    }
}

#[test]
fn several_connections_share_two_ports() {
    // Where whole writes pass in the order of posts, nothing but the applications keeps a connection to its part.
    for (quantum, total, least, most) in [(QUANTUM, 0.97, 0.97, 1.02), (0, 0.96, 0.95, 1.15)] {
        for (connections, depth, kib) in
            [2, 3, 8].into_iter().flat_map(|count| [(count, 1, 64), (count, 2, 512), (count, 8, 64), (count, 8, 512)])
        {
            let play = |split| several(connections, depth, kib * KIB, quantum, split);
            let adaptive = play(Split::Adaptive);
            let name = format!("{connections} connections, {depth} x {kib} KiB, quantum {quantum}: {adaptive:.3?}");
            let is_fair = adaptive.least >= least && adaptive.most <= most;
            assert!(adaptive.total >= total && is_fair, "{name}");
            assert!(play(Split::EQUAL).total < 0.6, "{name}");
        }
    }
}

#[test]
fn after_a_pause_in_which_the_rates_swap_the_first_messages_tell() {
    let swapped = [RATES[1], RATES[0]];
    for (depth, in_order, most) in [(1, true, 1.2), (8, true, 1.3), (8, false, 1.05)] {
        let play = |split| {
            let mut stage = pair(&RATES, split, Load { in_order, messages: 200, ..Load::of(256 * KIB, depth) });
            stage.run_messages(0, 200);
            stage.run_until(stage.now_ns() + 3_000 * MS);
            set(&mut stage, 2, &swapped);
            let from_ns = stage.now_ns();
            stage.limit(0, 264);
            stage.run_messages(0, 264);
            (stage.now_ns() - from_ns) as f64 * sum(&swapped) / (64 * 256 * KIB) as f64
        };
        let (adaptive, old) = (play(Split::Adaptive), play(Split::right(&RATES)));
        assert!(adaptive <= most, "{depth} in flight: {adaptive:.3} times the shortest time");
        assert!(old > 2.0, "{depth} in flight, the old weights: {old:.3}");
    }
}

#[test]
fn a_rail_that_was_of_no_use_comes_back() {
    let useless = [80_000, 500];
    for depth in [1, 8] {
        let play = |split| {
            let mut stage = pair(&useless, split, Load::of(64 * KIB, depth));
            stage.run_until(20_000 * MS);
            set(&mut stage, 2, &RATES);
            // A probe of 2 KiB takes 33 ms, and the pause after it 64 times that.
            let from_ns = stage.now_ns() + 2_500 * MS;
            stage.run_until(from_ns + 1_000 * MS);
            rate(stage.sent(0), from_ns, from_ns + 1_000 * MS)
        };
        let right = {
            let mut stage = pair(&RATES, Split::right(&RATES), Load::of(64 * KIB, depth));
            stage.run_until(3_000 * MS);
            rate(stage.sent(0), 2_000 * MS, 3_000 * MS)
        };
        let (adaptive, old) = (play(Split::Adaptive) / right, play(Split::right(&useless)) / right);
        assert!(adaptive >= 0.95, "{depth} in flight: {adaptive:.3}");
        assert!(old < 0.9, "{depth} in flight, the old weights: {old:.3}");
    }
}
