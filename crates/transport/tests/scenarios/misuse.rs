//! Calls that a connection cannot carry out have their cause each, and change nothing: it works afterwards.

use crate::pair::{Process, connect};
use railweave_fabric::MemoryKind;
use railweave_fabric_sim::{Faults, World};
use railweave_transport::{
    Cause, ConnectionConfig, Flushed, Incoming, MAX_BUFFERS, MAX_MESSAGE_BYTES, Misuse, Outgoing,
};

/// Time for anything to arrive.
const SOON_NS: u64 = 100_000;

#[test]
fn each_wrong_call_has_its_cause_and_the_connection_goes_on() {
    let world = World::new(1, Faults::none());
    let (near, far) = (Process::new(&world, &[1 << 30; 2]), Process::new(&world, &[1 << 30; 2]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
    let (source, target) = (near.memory(64), far.memory_of(MemoryKind::Cuda, 64));
    let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
    let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };

    let long = MAX_MESSAGE_BYTES + 1;
    assert_eq!(receiver.irecv(&[], false), Err(Misuse::Buffers(0).into()));
    assert_eq!(receiver.irecv(&[buffer; MAX_BUFFERS + 1], false), Err(Misuse::Buffers(MAX_BUFFERS + 1).into()));
    assert_eq!(receiver.irecv(&[Incoming { size: long, ..buffer }], false), Err(Misuse::ReceiveTooLong(long).into()));
    let too_long = Misuse::MessageTooLong { size: long, peer: "the receiver".into() };
    assert_eq!(sender.isend(&Outgoing { size: long, ..message }), Err(too_long.into()));

    let receive = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    world.advance(SOON_NS);
    let send = sender.isend(&message).unwrap().expect("the CTS is there");
    world.advance(SOON_NS);
    assert_eq!(sender.test(send), Ok(Some(8)));
    assert_eq!(receiver.test(receive), Ok(Some(&[8][..])));
    let error = sender.test(send).expect_err("it is over");
    assert!(matches!(*error, Cause::Misuse(Misuse::NoSend(_))), "{error}");
    let error = receiver.test(receive).expect_err("it is over");
    assert!(matches!(*error, Cause::Misuse(Misuse::NoReceive(_))), "{error}");

    for _ in 0..32 {
        assert!(matches!(receiver.iflush(&[buffer]), Ok(Flushed::Pending(_))));
    }
    assert_eq!(receiver.iflush(&[buffer]).map(drop), Err(Misuse::Flushes(32).into()));
    let receive = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    world.advance(SOON_NS);
    sender.isend(&message).unwrap().expect("the CTS is there");
    world.advance(SOON_NS);
    // The flushes' completions come first, more than one look takes.
    let is_done = (0..32).any(|_| receiver.test(receive).unwrap().is_some());
    assert!(is_done, "it works as before");
}
