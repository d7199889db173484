//! Messages that carry a record next to their data.

use railweave_transport::{ConnectionConfig, ConnectionEnd};

use crate::pair::{Pair, Setup};

on_both_fabrics!(above_the_limit_of_adaptive_routing_each_message_has_a_record);

/// The packets of such a message may arrive in any order, so one write carries its data, and another the record with
/// the immediate.
fn above_the_limit_of_adaptive_routing_each_message_has_a_record<const ONE_SIDED: bool>() {
    for (above, size, writes) in [(None, 1024, 1), (Some(1000), 1000, 1), (Some(1000), 1001, 2), (Some(0), 0, 1)] {
        let config = ConnectionConfig { adaptive_routing_above: above, ..ConnectionConfig::default() };
        let mut pair = Pair::<ONE_SIDED>::new(Setup { config, bytes: 2048, ..Setup::default() });
        let receive = pair.irecv_of([size]);
        pair.drive();
        let send = pair.isend_of(size, 0);
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![size], size));
        assert_eq!(pair.sender.rails()[0].counters.data_writes(), writes, "{size} bytes, above {above:?}");
    }
}
