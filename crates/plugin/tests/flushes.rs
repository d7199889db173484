//! Flushes over TCP, where iflush has nothing to do, but must preserve the debt.

mod common;

use common::{Pair, TWO_RAILS, alone, noise, start, until, warnings};
use railweave_nccl_host::net::NetApi;
use std::sync::mpsc::channel;
use std::thread;

/// A thread tests one of two receives, so that it owes an acknowledgement. Its last call is a flush, which takes the
/// debt over and must preserve it.
#[test]
fn what_is_owed_before_a_flush_is_sent_after_it_without_another_call() {
    const BYTES: usize = 100_000;
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, BYTES)), pair.incoming(BYTES));
        for _ in 0..20 {
            let ((tell_posted, posted), (give, taken)) = (channel(), channel());
            thread::scope(|scope| {
                let (net, pair, to) = (&net, &pair, &to);
                scope.spawn(move || {
                    let recvs = [pair.irecv(&[to.part(7)]), pair.irecv(&[to.part(7)])];
                    tell_posted.send(()).unwrap();
                    until("the first receive", || pair.test_recv(&recvs[0]).unwrap());
                    // SAFETY: the buffer stays registered on this connection until the end of the test.
                    let flush = unsafe { net.iflush(&pair.recv, &[to.part(7)]) }.expect("iflush succeeds");
                    assert!(flush.is_none(), "host memory needs no flush");
                    // This thread makes no further call.
                    give.send(recvs).unwrap();
                });
                posted.recv().unwrap();
                let first = pair.isend(&from, BYTES, 7);
                let [_, recv] = taken.recv().unwrap();
                assert_eq!(until("the acknowledgement", || pair.test_send(&first).unwrap()), BYTES as i32);
                let second = pair.isend(&from, BYTES, 7);
                pair.finish(&[second], &[recv]);
            });
        }
        assert_eq!(warnings(), Vec::<String>::new());
    });
}
