//! The cost of a message: the work requests posted to the adapter, counted by the fake libibverbs.

use railweave_fake_ibverbs::{Counts, FakeVerbs};
use railweave_nccl_host::Plugin;

use crate::common::{Buffer, Pair, each, noise, start, warnings};
use crate::machine::{EVEN, FUSED, INFINIBAND, ROCE, finish, machine, with};

/// The number of messages whose cost is counted.
const COUNT: u64 = 64;

/// Returns the work requests posted for `COUNT` messages, each with one buffer.
fn cost(fake: &FakeVerbs, pair: &Pair<'_>, bytes: usize) -> Counts {
    let message = noise(1, bytes);
    let (from, to) = (pair.outgoing(&message), pair.incoming(bytes));
    let before = fake.counts();
    for _ in 0..COUNT {
        assert_eq!(pair.transfer(&from, bytes, &to), (bytes as i32, bytes as i32));
    }
    let counts = fake.counts().since(&before);
    to.assert_holds(&message);
    pair.release_outgoing(from);
    pair.release_incoming(to);
    counts
}

/// Returns plain writes, writes with an immediate, and inline work requests, each per message.
fn per_message(counts: &Counts) -> (u64, u64, u64) {
    let each = |count: u64| {
        assert!(count.is_multiple_of(COUNT), "{counts:?}");
        count / COUNT
    };
    assert_eq!(counts.reads, 0);
    assert_eq!(counts.receives_consumed, counts.writes_with_immediate);
    (each(counts.writes), each(counts.writes_with_immediate), each(counts.inline))
}

/// Returns the work requests of each rail, in the order of the ports: messages and CTS.
fn requests_of_rails(plugin: &Plugin) -> Vec<(u64, u64)> {
    let mut rails = plugin.rail_counters().expect("the plugin counts");
    rails.sort_by(|one, other| one.local.cmp(&other.local));
    rails.iter().map(|rail| (rail.data_writes, rail.cts_writes)).collect()
}

type Settings = &'static [(&'static str, &'static str)];

/// A machine, settings, the size of a message, and its cost: plain writes, writes with an immediate, inline ones.
type Case = (&'static str, Settings, usize, (u64, u64, u64));

#[test]
fn a_message_of_one_buffer_costs_one_write_on_each_active_rail_and_its_cts() {
    let cases: [Case; 14] = [
        // One rail: the CTS is the plain write, and inline like short messages.
        (ROCE, &[], 1 << 20, (1, 1, 1)),
        (ROCE, &[], 100, (1, 1, 1)),
        (ROCE, &[], 64, (1, 1, 2)),
        (ROCE, &[], 0, (1, 1, 2)),
        // Two rails.
        (ROCE, &[FUSED, EVEN], 1 << 20, (1, 2, 1)),
        (ROCE, &[FUSED, EVEN], 8191, (1, 1, 1)),
        (ROCE, &[FUSED, EVEN], 0, (1, 1, 2)),
        (ROCE, &[FUSED, ("RAILWEAVE_WEIGHTS", "1,0")], 1 << 20, (1, 1, 1)),
        // More lanes carry more messages, not more parts, unless these are striped.
        (ROCE, &[FUSED, EVEN, ("RAILWEAVE_LANES", "3")], 1 << 20, (1, 2, 1)),
        (ROCE, &[FUSED, EVEN, ("RAILWEAVE_LANES", "3"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")], 1 << 20, (1, 6, 1)),
        (ROCE, &[FUSED, EVEN, ("RAILWEAVE_LANES", "3"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")], 65_000, (1, 2, 1)),
        // If the receiver does not learn sizes from its adapter, a record after the data carries them.
        (ROCE, &[("RAILWEAVE_BYTE_COUNTS", "0")], 1 << 20, (2, 1, 2)),
        // If packets may overtake each other, all data comes before the immediates.
        (INFINIBAND, &[FUSED, EVEN], 1 << 20, (3, 2, 2)),
        (INFINIBAND, &[FUSED, EVEN], 8192, (1, 2, 1)),
    ];
    each(
        &cases,
        |(_, settings, ..)| with(settings),
        |(description, _, bytes, expected)| {
            let fake = machine(description);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            // The first messages are not counted: they find the queues empty.
            cost(&fake, &pair, *bytes);
            assert_eq!(per_message(&cost(&fake, &pair, *bytes)), *expected);
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn a_rail_without_weight_is_given_no_work_at_all() {
    let cases = [("100,0", 0), ("0,100", 1)];
    each(
        &cases,
        |(weights, _)| with(&[FUSED, ("RAILWEAVE_WEIGHTS", weights)]),
        |(_, heavy)| {
            let fake = machine(ROCE);
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            for bytes in [0, 100, 8192, 1 << 20] {
                cost(&fake, &pair, bytes);
            }
            let rails = requests_of_rails(&plugin);
            let used: Vec<_> = rails.iter().filter(|rail| **rail != (0, 0)).collect();
            assert_eq!((rails[*heavy], used.len()), ((4 * COUNT, 4 * COUNT), 1), "{rails:?}");
            // The other rail is not even tried: with its cable cut, all messages arrive.
            fake.cut(["mlx5_1", "mlx5_0"][*heavy], 1).unwrap();
            cost(&fake, &pair, 1 << 20);
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn few_completions_are_asked_for() {
    each(
        &[()],
        |()| with(&[FUSED, EVEN]),
        |()| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            cost(&fake, &pair, 1 << 20);
            let counts = cost(&fake, &pair, 1 << 20);
            // Each part of a message is signalled, and so is every 32nd CTS of a rail.
            assert_eq!(counts.signalled, 2 * COUNT + COUNT / 32, "{counts:?}");
            assert_eq!(counts.completions, counts.signalled + counts.receives_consumed, "{counts:?}");
            // Receives are posted in batches, of at least 16 on average.
            assert!(counts.receives >= COUNT && counts.receive_posts * 16 <= counts.receives, "{counts:?}");
            pair.close();
            finish(&fake, net);
        },
    );
}

/// Returns the cost of one group of buffers of these sizes.
fn cost_of_group(fake: &FakeVerbs, pair: &Pair<'_>, sizes: &[usize]) -> (u64, u64) {
    let from: Vec<Buffer> = sizes.iter().map(|bytes| pair.outgoing(&noise(2, *bytes))).collect();
    let to: Vec<Buffer> = sizes.iter().map(|bytes| pair.incoming(*bytes)).collect();
    let before = fake.counts();
    let parts: Vec<_> = to.iter().enumerate().map(|(tag, buffer)| buffer.part(tag as i32)).collect();
    let recv = pair.irecv(&parts);
    let sends: Vec<_> = from
        .iter()
        .zip(sizes)
        .enumerate()
        .map(|(tag, (buffer, bytes))| pair.isend(buffer, *bytes, tag as i32))
        .collect();
    pair.finish(&sends, &[recv]);
    let counts = fake.counts().since(&before);
    for (buffer, bytes) in to.iter().zip(sizes) {
        buffer.assert_holds(&noise(2, *bytes));
    }
    from.into_iter().for_each(|buffer| pair.release_outgoing(buffer));
    to.into_iter().for_each(|buffer| pair.release_incoming(buffer));
    (counts.writes, counts.writes_with_immediate)
}

#[test]
fn a_group_costs_a_write_for_each_piece_one_immediate_for_each_rail_and_one_record() {
    each(
        &[()],
        |()| with(&[FUSED, EVEN]),
        |()| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            // One CTS for all, two pieces for each buffer; the record is one of the two immediates.
            assert_eq!(cost_of_group(&fake, &pair, &[100_000; 4]), (1 + 8, 2));
            assert_eq!(cost_of_group(&fake, &pair, &[100_000; 8]), (1 + 16, 2));
            assert_eq!(cost_of_group(&fake, &pair, &[100_000, 0]), (1 + 2, 2));
            // Nothing to send but the record.
            assert_eq!(cost_of_group(&fake, &pair, &[0, 0, 0]), (1, 1));
            // A group of one is a message like any other.
            assert_eq!(cost_of_group(&fake, &pair, &[100_000]), (1, 2));
            pair.close();
            finish(&fake, net);
        },
    );
}

#[test]
fn a_part_that_is_longer_than_the_longest_write_goes_in_several_with_a_record() {
    each(
        &[()],
        |()| with(&[]),
        |()| {
            // The shortest limit of a message's size among the known adapters.
            let longest = 8 << 20;
            let fake = machine(&format!("[[device]]\nname = 'small'\n[[device.port]]\nmax_message = {longest}\n"));
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            // The CTS, then writes of 8 MiB, then the record. A single byte left over is inline.
            assert_eq!(per_message(&cost(&fake, &pair, 3 * longest)), (1 + 3, 1, 2));
            assert_eq!(per_message(&cost(&fake, &pair, longest + 1)), (1 + 2, 1, 2 + 1));
            // A message that fits needs no record.
            assert_eq!(per_message(&cost(&fake, &pair, longest)), (1, 1, 1));
            pair.close();
            finish(&fake, net);
        },
    );
}
