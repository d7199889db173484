//! Over verbs, a promise that an accepted call makes to the peer is kept without a later call: a thread posts receives,
//! and then makes no call, or only unrelated ones.

use railweave_nccl_host::net::Request;

use crate::common::{Pair, each, start, until, warnings};
use crate::machine::{EVEN, FUSED, ROCE, finish, machine, with};

/// The receiver's behaviour once its receives are posted.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// It makes no call.
    Nothing,
    /// It only sends on another connection, whose receiver has posted nothing.
    SendsElsewhere,
    /// It tests the first until it is done, and then makes no call.
    TestsOne,
}

type Settings = &'static [(&'static str, &'static str)];

#[test]
fn receives_that_were_posted_are_filled_and_their_sends_done_without_another_call() {
    let mut cases: Vec<(Settings, Then)> = Vec::new();
    for settings in [&[] as Settings, &[FUSED, EVEN]] {
        cases.extend([Then::Nothing, Then::SendsElsewhere, Then::TestsOne].map(|then| (settings, then)));
    }
    each(
        &cases,
        |(settings, _)| with(settings),
        |(_, then)| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let (pair, other) = (Pair::open(&net, &net, 0), Pair::open(&net, &net, 0));
            let (from, to, from_other) = (pair.outgoing(&[1; 8]), pair.incoming(8), other.outgoing(&[1; 8]));
            // In rounds, because state learnt from earlier messages must change nothing.
            for ahead in [1, 2, 3, 8, 8, 8] {
                let mut recvs: Vec<Request> = (0..ahead).map(|_| pair.irecv(&[to.part(7)])).collect();
                if let Then::SendsElsewhere = then {
                    assert!(other.try_isend(&from_other, 8, 7).unwrap().is_none());
                }
                let mut sends: Vec<Request> = Vec::new();
                if let Then::TestsOne = then {
                    sends.push(pair.isend(&from, 8, 7));
                    let first = recvs.remove(0);
                    until("the first receive", || pair.test_recv(&first).unwrap());
                }
                // From here on only the sender calls.
                while sends.len() < ahead {
                    sends.push(pair.isend(&from, 8, 7));
                }
                for send in &sends {
                    assert_eq!(until("a send", || pair.test_send(send).unwrap()), 8);
                }
                pair.finish(&[], &recvs);
            }
            pair.release_outgoing(from);
            pair.release_incoming(to);
            other.release_outgoing(from_other);
            pair.close();
            other.close();
            assert_eq!(warnings(), Vec::<String>::new());
            finish(&fake, net);
        },
    );
}
