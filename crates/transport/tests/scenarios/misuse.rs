//! Calls that a connection cannot carry out: each has its cause and changes nothing, and the connection works
//! afterwards.

use railweave_transport::{Cause, Flushed, Incoming, MAX_BUFFERS, MAX_MESSAGE_BYTES, Misuse};

use crate::pair::{Pair, Setup};

/// One byte more than a message may have.
const LONG: u64 = MAX_MESSAGE_BYTES + 1;

/// Receives a message, which shows that the connection works.
fn works<const ONE_SIDED: bool>(pair: &mut Pair<ONE_SIDED>) {
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
}

on_both_fabrics!(
    a_receive_that_no_connection_can_have_is_refused,
    a_message_that_is_too_long_is_refused,
    a_request_that_has_ended_cannot_be_tested_again,
    more_flushes_than_a_connection_has_are_refused,
);

fn a_receive_that_no_connection_can_have_is_refused<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
    let (buffer, long) = (pair.target.buffer(8, 0), pair.target.buffer(LONG, 0));
    let many: [Incoming<'_>; MAX_BUFFERS + 1] = [buffer; MAX_BUFFERS + 1];
    assert_eq!(pair.receiver.irecv(&[], false), Err(Misuse::Buffers(0).into()));
    assert_eq!(pair.receiver.irecv(&many, false), Err(Misuse::Buffers(MAX_BUFFERS + 1).into()));
    assert_eq!(pair.receiver.irecv(&[long], false), Err(Misuse::ReceiveTooLong(LONG).into()));
    works(&mut pair);
}

fn a_message_that_is_too_long_is_refused<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
    let error = Misuse::MessageTooLong { size: LONG, peer: "the receiver".into() };
    assert_eq!(pair.sender.isend(&pair.source.message(LONG, 0)), Err(error.into()));
    works(&mut pair);
}

fn a_request_that_has_ended_cannot_be_tested_again<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
    let error = pair.sender.test(send).expect_err("it has ended");
    assert!(matches!(*error, Cause::Misuse(Misuse::NoSend(_))), "{error}");
    let error = pair.receiver.test(receive).expect_err("it has ended");
    assert!(matches!(*error, Cause::Misuse(Misuse::NoReceive(_))), "{error}");
    works(&mut pair);
}

fn more_flushes_than_a_connection_has_are_refused<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails().gpu());
    // A flush goes over the rails that carried data.
    works(&mut pair);
    let buffer = pair.target.buffer(8, 0);
    for _ in 0..32 {
        assert!(matches!(pair.receiver.iflush(&[buffer]), Ok(Flushed::Pending(_))));
    }
    assert_eq!(pair.receiver.iflush(&[buffer]).map(drop), Err(Misuse::Flushes(32).into()));
    let receive = pair.irecv();
    pair.drive();
    pair.isend();
    pair.drive();
    // The flushes' completions come first, more than one poll takes.
    assert!((0..32).any(|_| pair.receiver.test(receive).unwrap().is_some()), "it works as before");
}
