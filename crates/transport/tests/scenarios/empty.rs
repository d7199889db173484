//! Buffers without bytes: they arrive with their message and post nothing of their own.

use railweave_transport::ConnectionEnd;

use crate::pair::{Pair, Setup};

on_both_fabrics!(an_empty_buffer_makes_no_further_rail_active, a_slot_without_bytes_makes_one_rail_active);

/// Sends groups of these sizes. Returns the largest number of rails that posted writes for one of them.
fn most_rails_of_a_group<const ONE_SIDED: bool>(sizes: [u64; 2]) -> usize {
    let mut pair = Pair::<ONE_SIDED>::new(Setup { bytes: 8192, ..Setup::two_rails() });
    let mut most = 0;
    // Messages that travel whole change their rail now and then; each change is a chance to pick two.
    for _ in 0..200 {
        let receive = pair.irecv_of(sizes);
        pair.drive();
        let writes = |pair: &Pair<ONE_SIDED>| -> Vec<u64> {
            pair.sender.rails().iter().map(|rail| rail.counters.data_writes()).collect()
        };
        let before = writes(&pair);
        let sends = [pair.isend_of(sizes[0], 0), pair.isend_of(sizes[1], 1)];
        assert_eq!(pair.received(receive), sizes);
        assert_eq!(sends.map(|send| pair.sent(send)), sizes);
        most = most.max(writes(&pair).iter().zip(&before).filter(|(after, before)| after > before).count());
    }
    most
}

fn an_empty_buffer_makes_no_further_rail_active<const ONE_SIDED: bool>() {
    assert_eq!(most_rails_of_a_group::<ONE_SIDED>([7000, 0]), 1);
    assert_eq!(most_rails_of_a_group::<ONE_SIDED>([8192, 8192]), 2, "messages of this size are split");
}

fn a_slot_without_bytes_makes_one_rail_active<const ONE_SIDED: bool>() {
    assert_eq!(most_rails_of_a_group::<ONE_SIDED>([0, 0]), 1);
}
