//! Work that the peer's adapter refuses, because the memory is gone there.

use railweave_fabric::{RailId, RailSet};
use railweave_transport::{
    ConnectionConfig, Event, GivenUp, Incarnation, Listed, RailMessage, RailNews, Recovers, Seen, SendRequest,
};

use crate::pair::{Pair, Setup};
use crate::recovery::{Tasks, lose_early, say_down, split};

/// Bytes of a message that takes several writes on one rail, and of the longest of them.
const LONG: u64 = 2 * MAX_WRITE as u64;
const MAX_WRITE: u32 = 2048;

/// Returns a pair whose sender has such a message on its way that the receiver's adapter has refused, if it
/// `is_refused`; otherwise its rail has failed. No poll has seen that.
fn failed(is_refused: bool) -> (Pair<true>, SendRequest, u8) {
    fail(short_writes(), is_refused)
}

/// Returns a pair whose rails take several writes for such a message.
fn short_writes() -> Pair<true> {
    let max_writes = vec![MAX_WRITE; 2];
    split::<true>(Setup { from: max_writes.clone(), to: max_writes, ..Setup::default() })
}

/// Sends such a message, which the receiver's adapter refuses, or whose rail fails. Returns its rail as well.
fn fail(mut pair: Pair<true>, is_refused: bool) -> (Pair<true>, SendRequest, u8) {
    pair.irecv_of([LONG]);
    pair.drive();
    if is_refused {
        pair.target.deregister();
    }
    pair.posted(true);
    let send = pair.isend_of(LONG, 0);
    let rail = pair.posted(true)[0].0.rail;
    if !is_refused {
        pair.fail_rail(rail);
    }
    pair.drive();
    (pair, send, rail)
}

fn news(rail: u8, message: RailMessage) -> RailNews {
    let rail = RailId::new(rail.into()).expect("it is a rail");
    RailNews { rail, incarnation: Incarnation(0), message }
}

#[test]
fn the_receiver_hears_of_a_refusal_whichever_end_gives_the_rail_up_first() {
    for is_first in [true, false] {
        for is_refused in [true, false] {
            let (mut pair, send, rail) = failed(is_refused);
            let (mut tasks, now_ns) = (Tasks::default(), pair.now_ns());
            if is_first {
                assert_eq!(pair.sender.test(send), Ok(None), "a rail is left");
                pair.sender.recover(now_ns);
            } else {
                pair.sender.handle_rail_news(news(rail, RailMessage::Suspect), now_ns);
            }
            tasks.take(&mut pair.sender, true);
            assert!(matches!(&tasks.events[..], [Event::RailDown { why: GivenUp::Lane { .. }, .. }]));
            pair.work(&mut tasks, true);
            let RailMessage::Down(listed) = &tasks.to_receiver[0].message else { panic!("it asks") };
            assert_eq!(listed.iter().map(|slot| slot.is_refused).collect::<Vec<_>>(), [is_refused]);
        }
    }
}

#[test]
fn a_refused_part_is_sent_again_after_a_pause_and_any_other_at_once() {
    for is_refused in [true, false] {
        let (mut pair, send, rail) = failed(is_refused);
        assert_eq!(pair.sender.test(send), Ok(None), "a rail is left");
        let mut tasks = Tasks::default();
        let now_ns = pair.now_ns();
        pair.sender.recover(now_ns);
        tasks.take(&mut pair.sender, true);
        pair.work(&mut tasks, true);
        pair.posted(true);
        let seen = vec![Seen { sequence: 0, parts: RailSet::EMPTY }];
        let now_ns = pair.now_ns();
        pair.sender.handle_rail_news(news(rail, RailMessage::State(seen)), now_ns);
        assert_eq!(pair.posted(true).is_empty(), is_refused);
        let pause_ns = 2 * ConnectionConfig::default().rail_pause.as_nanos() as u64;
        pair.sender.recover(now_ns + pause_ns - 1);
        assert_eq!(pair.posted(true), []);
        pair.sender.recover(now_ns + pause_ns);
        let again = pair.posted(true);
        assert_eq!(again.is_empty(), !is_refused);
        assert!(again.iter().all(|(place, _)| place.rail == 1 - rail), "{again:?}");
    }
}

#[test]
fn a_part_that_is_refused_when_it_comes_again_is_named_too() {
    let mut pair = short_writes();
    let receive = pair.irecv();
    pair.drive();
    let first = pair.isend();
    assert_eq!((pair.received(receive), pair.sent(first)), (vec![8], 8));
    let (mut pair, send, rail) = fail(pair, false);
    assert_eq!(pair.sender.test(send), Ok(None), "a rail is left");
    let (mut tasks, now_ns) = (Tasks::default(), pair.now_ns());
    pair.sender.recover(now_ns);
    tasks.take(&mut pair.sender, true);
    pair.work(&mut tasks, true);
    let RailMessage::Down(listed) = tasks.to_receiver.pop_front().expect("it asks").message else { panic!("it asks") };
    let seen = listed.iter().filter(|listed| !listed.unsure.is_empty());
    let seen = seen.map(|listed| Seen { sequence: listed.sequence, parts: RailSet::EMPTY }).collect();
    pair.target.deregister();
    pair.posted(true);
    pair.sender.handle_rail_news(news(rail, RailMessage::State(seen)), now_ns);
    assert!(pair.posted(true).len() > 1, "the first of its writes is refused");
    pair.drive();
    assert_eq!(pair.sender.test(send), Ok(None), "it waits for a rail");
    pair.sender.recover(now_ns);
    tasks.take(&mut pair.sender, true);
    pair.work(&mut tasks, true);
    let RailMessage::Down(listed) = tasks.to_receiver.pop_front().expect("it asks again").message else {
        panic!("it asks")
    };
    let unsure = listed.iter().find(|listed| !listed.unsure.is_empty()).expect("the part is lost again");
    assert_eq!((unsure.sequence, unsure.is_refused), (1, true));
}

#[test]
fn the_refused_part_of_an_early_receive_counts_as_seen() {
    for is_refused in [true, false] {
        let mut pair = split::<true>(Setup::two_rails());
        let lost = lose_early(&mut pair);
        say_down(&mut pair, vec![Listed { is_refused, ..lost }]);
        let mut tasks = Tasks::default();
        tasks.take(&mut pair.receiver, false);
        let said = tasks.to_sender.pop_back().expect("it answers").message;
        let parts = if is_refused { lost.unsure } else { RailSet::EMPTY };
        assert_eq!(said, RailMessage::State(vec![Seen { sequence: 1, parts }]));
    }
}
