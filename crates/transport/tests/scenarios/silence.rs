//! Rails that fall silent: nothing reports it, and the ends notice.

use std::time::Duration;

use railweave_fabric_sim::{Faults, Outage};
use railweave_transport::{ConnectionConfig, ConnectionEnd, Hearing, Hush, Recovers};

use crate::pair::{Pair, Setup};

on_both_fabrics!(
    a_rail_that_answers_nothing_is_given_up_although_another_works,
    a_peer_that_nobody_hears_is_asked_for_and_its_rails_are_kept,
);

/// The time for which a rail may be silent, in nanoseconds.
const TIME_NS: u64 = 1_000_000;

/// Bytes of a message that is split.
const SIZE: u64 = 64 << 10;

/// The looks at an end, in which rails that are silent must be found.
const LOOKS: u64 = 8;

/// Returns a setup of this many rails, which report no silence themselves.
fn patient(rails: usize) -> Setup {
    let both = Setup::two_rails().recovers();
    Setup {
        from: both.from[..rails].to_vec(),
        to: both.to[..rails].to_vec(),
        config: ConnectionConfig { rail_timeout: Duration::from_nanos(TIME_NS), ..both.config },
        faults: Faults { retry_ns: 1 << 40, ..Faults::none() },
        bytes: SIZE as usize,
        ..both
    }
}

/// Lets the control thread look at an end, whose peer is heard all the time or not. Returns the rails that are down,
/// and the last result.
fn look<const ONE_SIDED: bool>(pair: &mut Pair<ONE_SIDED>, sender: bool, is_heard: bool) -> (Vec<usize>, Hush) {
    let mut hush = Hush::Idle;
    for _ in 0..LOOKS {
        pair.world.advance(TIME_NS / 2);
        let now_ns = pair.world.lock().now_ns;
        let hearing = Hearing { now_ns, heard_ns: if is_heard { now_ns } else { 0 } };
        let end: &mut dyn Recovers = if sender { &mut pair.sender } else { &mut pair.receiver };
        hush = end.look_for_silence(hearing);
    }
    let rails = if sender { pair.sender.rails() } else { pair.receiver.rails() };
    (rails.iter().filter(|rail| rail.counters.is_down()).map(|rail| rail.index).collect(), hush)
}

impl<const ONE_SIDED: bool> Pair<ONE_SIDED> {
    /// Cuts a rail: nothing comes through any more.
    fn cut(&self, rail: u8) {
        let mut state = self.world.lock();
        for sender in [true, false] {
            let end = state.connected_end(0, sender, rail).expect("the rail is up");
            state.cut(end);
        }
    }

    /// Loses the acknowledgements of what the receiver writes over a rail.
    fn lose_acknowledgements(&self, rail: u8) {
        let mut state = self.world.lock();
        let (end, from_ns) = (state.connected_end(0, false, rail).expect("the rail is up"), state.now_ns);
        let outage = Outage { writes: false, acknowledgements: true, from_ns, until_ns: u64::MAX, is_long: true };
        state.begin_outage(end, outage);
    }
}

fn a_rail_that_answers_nothing_is_given_up_although_another_works<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(patient(2));
    let receive = pair.irecv_of([SIZE]);
    pair.drive();
    assert_eq!(look(&mut pair, true, true), (vec![], Hush::Idle), "nothing is on its way");
    pair.cut(1);
    let send = pair.isend_of(SIZE, 0);
    assert_eq!(look(&mut pair, true, true).0, [1]);
    assert!(pair.sender.test(send).unwrap().is_none() && pair.receiver.test(receive).unwrap().is_none());
}

fn a_peer_that_nobody_hears_is_asked_for_and_its_rails_are_kept<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(patient(1));
    pair.irecv_of([SIZE]);
    pair.drive();
    pair.cut(0);
    pair.isend_of(SIZE, 0);
    assert_eq!(look(&mut pair, true, false), (vec![], Hush::Doubtful));
    assert_eq!(look(&mut pair, true, true).0, [0]);
}

#[test]
fn a_receiver_whose_queue_is_full_of_cts_notices_although_no_receive_is_open() {
    let mut pair = Pair::<true>::new(patient(1));
    pair.lose_acknowledgements(0);
    let buffer = pair.target.buffer(8, 0);
    let mut receives = 0;
    while let Some(receive) = pair.receiver.irecv(&[buffer], false).unwrap() {
        pair.world.advance(20_000);
        let send = pair.sender.isend(&pair.source.message(8, 0)).unwrap().expect("the CTS is there");
        pair.world.advance(20_000);
        assert!(pair.sender.test(send).unwrap().is_some() && pair.receiver.test(receive).unwrap().is_some());
        receives += 1;
    }
    assert!(receives > 64, "{receives} CTS fill a queue");
    assert_eq!(look(&mut pair, false, true).0, [0]);
}

#[test]
fn a_receiver_whose_ring_is_held_back_notices_although_no_receive_is_open() {
    let mut pair = Pair::<true>::new(patient(2));
    let receive = pair.irecv();
    pair.drive();
    pair.lose_acknowledgements(0);
    let end = pair.world.lock().connected_end(0, false, 1).expect("the rail is up");
    pair.world.lock().fail(end);
    // The rail is given up, and the CTS is written again over the other one.
    pair.world.advance(20_000);
    assert!(pair.receiver.test(receive).unwrap().is_none());
    let now_ns = pair.world.lock().now_ns;
    pair.receiver.recover(now_ns);
    let send = pair.isend();
    pair.world.advance(20_000);
    assert!(pair.sender.test(send).unwrap().is_some() && pair.receiver.test(receive).unwrap().is_some());
    assert_eq!(look(&mut pair, false, true).0, [0, 1]);
}

#[test]
fn an_end_whose_application_makes_no_calls_sees_what_its_rails_have_answered() {
    let mut pair = Pair::<true>::new(patient(2));
    pair.irecv_of([SIZE]);
    assert_eq!(look(&mut pair, false, true), (vec![], Hush::Busy), "each check is answered in time");
    pair.isend_of(SIZE, 0);
    pair.world.advance(TIME_NS);
    assert_eq!(look(&mut pair, true, true), (vec![], Hush::Idle));
}

#[test]
fn a_rail_that_answers_nothing_is_given_up_although_more_is_sent_over_it_all_the_time() {
    let mut pair = Pair::<true>::new(patient(2));
    for _ in 0..LOOKS {
        pair.irecv_of([SIZE]);
    }
    pair.drive();
    pair.cut(1);
    for _ in 0..LOOKS {
        let is_down = pair.sender.rails()[1].counters.is_down();
        assert!(is_down || pair.sender.isend(&pair.source.message(SIZE, 0)).unwrap().is_some());
        pair.world.advance(TIME_NS / 2);
        let now_ns = pair.world.lock().now_ns;
        pair.sender.look_for_silence(Hearing { now_ns, heard_ns: now_ns });
    }
    assert!(pair.sender.rails()[1].counters.is_down());
}

#[test]
fn data_that_comes_over_one_rail_shows_that_the_peer_of_a_silent_one_is_alive() {
    for comes in [false, true] {
        let mut pair = Pair::<true>::new(patient(2));
        for _ in 0..LOOKS {
            pair.irecv();
        }
        pair.drive();
        pair.lose_acknowledgements(0);
        pair.cut(1);
        for look in 0..LOOKS {
            // The first looks find that nothing has come, and have both rails checked.
            if comes && look >= 2 {
                pair.sender.isend(&pair.source.message(8, 0)).unwrap().expect("its CTS is there");
                assert_eq!(pair.posted(true)[0].0.rail, 0);
            }
            pair.world.advance(TIME_NS / 2);
            let now_ns = pair.world.lock().now_ns;
            pair.receiver.look_for_silence(Hearing { now_ns, heard_ns: 0 });
        }
        let down: Vec<_> = pair.receiver.rails().iter().map(|rail| rail.counters.is_down()).collect();
        assert_eq!(down, [false, comes]);
    }
}

#[test]
fn a_receiver_whose_ring_is_held_back_stays_busy_although_nothing_is_on_its_way() {
    for is_held in [true, false] {
        let mut pair = Pair::<false>::new(patient(2));
        let receive = pair.irecv();
        pair.drive();
        if is_held {
            pair.give_up(1, false);
            let now_ns = pair.now_ns();
            // The CTS is written again over the other rail, and the sender has not said that its lanes are gone.
            pair.receiver.recover(now_ns);
            pair.drive();
        }
        let send = pair.isend();
        pair.drive();
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
        let expected = if is_held { Hush::Busy } else { Hush::Idle };
        assert_eq!(look(&mut pair, false, true), (if is_held { vec![1] } else { vec![] }, expected));
    }
}

#[test]
fn a_receiver_with_room_for_one_write_counts_as_full() {
    // Posts this many CTS whose acknowledgements are lost; fewer if there is no room. Returns their number.
    let fill = |pair: &mut Pair<true>, most: u32| {
        pair.lose_acknowledgements(0);
        let buffer = pair.target.buffer(8, 0);
        (0..most).find(|_| {
            let Some(receive) = pair.receiver.irecv(&[buffer], false).unwrap() else { return true };
            pair.world.advance(20_000);
            let send = pair.sender.isend(&pair.source.message(8, 0)).unwrap().expect("the CTS is there");
            pair.world.advance(20_000);
            assert!(pair.sender.test(send).unwrap().is_some() && pair.receiver.test(receive).unwrap().is_some());
            false
        })
    };
    let most = fill(&mut Pair::new(patient(1)), 10_000).expect("a queue has an end");
    for (left, down) in [(1, vec![0]), (2, vec![])] {
        let mut pair = Pair::new(patient(1));
        assert_eq!(fill(&mut pair, most - left), None);
        assert_eq!(look(&mut pair, false, true).0, down, "room for {left}");
    }
}

#[test]
fn a_look_sends_the_acknowledgements_that_its_poll_has_put_off() {
    let mut pair = Pair::<false>::new(patient(1).acks_put_off());
    pair.irecv();
    pair.drive();
    let send = pair.isend();
    pair.drive();
    let now_ns = pair.now_ns();
    pair.receiver.look_for_silence(Hearing { now_ns, heard_ns: now_ns });
    assert_eq!(pair.sent(send), 8);
}
