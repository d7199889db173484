//! Bugs that the simulation has found, each as the shortest sequence of calls that shows it.

use crate::pair::{Process, connect};
use railweave_fabric_sim::{Faults, World};
use railweave_transport::{ConnectionConfig, Incoming, Outgoing};

/// A connection cuts its writes to what its weakest port carries, but a send queue was only as deep as its own port's
/// writes ask for: a message of more writes than that was never posted.
#[test]
fn ports_of_different_longest_writes_carry_long_messages() {
    const SIZE: usize = 4 << 20;
    let world = World::new(1, Faults::none());
    let (from, to) = (Process::new(&world, &[1 << 30, 4096]), Process::new(&world, &[1 << 30, 1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &from, &to);
    let (source, target) = (from.memory(SIZE), to.memory(SIZE));
    let bytes: Vec<u8> = (0..SIZE).map(|index| (index / 100) as u8).collect();
    source.region.write(0, &bytes);
    let buffer = Incoming { address: target.region.address(), size: SIZE as u64, tag: 0, keys: &target.keys };
    let receive = receiver.irecv(&[buffer], false).unwrap().unwrap();
    world.advance(100_000);
    let message = Outgoing { address: source.region.address(), size: SIZE as u64, tag: 0, keys: &source.keys };
    let send = sender.isend(&message).unwrap().expect("the message fits into the queues");
    world.advance(10_000_000);
    assert_eq!(receiver.test(receive).unwrap(), Some(&[SIZE as u64][..]));
    assert_eq!(sender.test(send).unwrap(), Some(SIZE as u64));
    let mut arrived = vec![0; SIZE];
    target.region.read(0, &mut arrived);
    assert!(arrived == bytes);
}

/// The receiver took the slot of its oldest receive, once it was opened again, for the oldest one still: it found room
/// in the ring of CTS entries where there was none, and wrote over entries that the sender had not read.
#[test]
fn entries_of_open_receives_are_never_written_over() {
    let world = World::new(1, Faults::none());
    let (from, to) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &from, &to);
    let (source, target) = (from.memory(64), to.memory(64));
    let buffer = |tag| Incoming { address: target.region.address(), size: 8, tag, keys: &target.keys };
    let eight: Vec<Incoming<'_>> = (0..8).map(buffer).collect();
    let message = |tag| Outgoing { address: source.region.address(), size: 8, tag, keys: &source.keys };
    // All slots are open once; 256 of the ring's 512 entries are taken.
    let mut open = Vec::new();
    while open.len() < 256 {
        open.extend(receiver.irecv(&[buffer(0)], false).unwrap());
        world.advance(10_000);
    }
    let send = |sender: &mut railweave_transport::SendConnection<crate::pair::Fabric>, tag| {
        let request = sender.isend(&message(tag)).unwrap().expect("a receive is open");
        world.advance(10_000);
        assert_eq!(sender.test(request).unwrap(), Some(8));
    };
    for request in open.drain(..40) {
        send(&mut sender, 0);
        assert_eq!(receiver.test(request).unwrap(), Some(&[8][..]));
    }
    // Groups of eight until the ring is full: 216 entries of open receives are left, 37 groups fit beside them.
    let mut groups = Vec::new();
    for _ in 0..40 {
        if let Some(request) = receiver.irecv(&eight, false).unwrap() {
            groups.push(request);
        }
        world.advance(10_000);
    }
    assert_eq!(groups.len(), 37, "(512 - 216) / 8");
    for request in open {
        send(&mut sender, 0);
        assert_eq!(receiver.test(request).unwrap(), Some(&[8][..]));
    }
    for request in groups {
        let sends: Vec<_> = (0..8).map(|tag| sender.isend(&message(tag)).unwrap().expect("a group is open")).collect();
        world.advance(10_000);
        assert_eq!(receiver.test(request).unwrap(), Some(&[8; 8][..]));
        assert!(sends.into_iter().all(|request| sender.test(request).unwrap() == Some(8)));
    }
}

/// A rail broke, but its failed completion was not there yet: refilling its receives failed, which polled for the
/// reason, which refilled, and so on until the stack was full.
#[test]
fn a_broken_rail_that_has_not_said_why_does_not_loop() {
    let late = 1_000_000_000;
    let world = World::new(1, Faults { completion_late_ns: late, ..Faults::none() });
    let (from, to) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &from, &to);
    let (source, target) = (from.memory(64), to.memory(64));
    let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
    let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
    let requests: Vec<_> =
        (0..40).map(|_| receiver.irecv(&[buffer], false).unwrap().expect("there is a slot")).collect();
    world.advance(10_000);
    for _ in &requests {
        assert!(sender.isend(&message).unwrap().is_some());
    }
    world.advance(2 * late);
    drop(sender);
    // The lanes break while these entries are on their way, and 40 receives are to be posted again.
    let last = receiver.irecv(&[buffer], false).unwrap().expect("there is a slot");
    world.advance(200_000);
    for request in requests {
        let mut done = receiver.test(request).unwrap().is_some();
        while !done {
            done = receiver.test(request).unwrap().is_some();
        }
    }
    world.advance(2 * late);
    assert!(receiver.test(last).is_err());
}
