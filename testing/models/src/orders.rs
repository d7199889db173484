//! The order by which the control thread changes the split of an open connection.

use loom::sync::Arc;
use loom::thread;
use railweave_fabric::{PolicyName, RailSet};
use railweave_policy::Order;

use crate::steering::{OwnWeights, Steering};

/// A connection that sees the number of a change sees the whole order.
pub fn an_order_whose_number_is_seen_is_seen_whole() {
    loom::model(|| {
        let own = OwnWeights { speed: [1; 8], fixed: None };
        let begin = own.order(PolicyName::Adaptive);
        let order = Order { allowed: RailSet::from_bits(0b10), ..Order::new(PolicyName::Agent, [7; 8]) };
        let steering = Arc::new(Steering::new(&begin, own));
        let connection = {
            let steering = Arc::clone(&steering);
            thread::spawn(move || {
                if steering.changes() == 1 {
                    assert_eq!(steering.current(), order);
                }
            })
        };
        steering.order(&order);
        connection.join().unwrap();
    });
}
