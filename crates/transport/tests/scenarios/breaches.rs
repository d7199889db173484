//! Peers that break the rules of a recovery.

use railweave_fabric::{LaneEndpoint, RailId, RailSet};
use railweave_transport::{ConnectionConfig, Incarnation, Listed, RailMessage, RailNews, Recovers, Token};

use crate::pair::{Pair, Setup};
use crate::recovery::{Tasks, split};

/// Lets an end hear a message of a peer about rail 0.
fn say(pair: &mut Pair<true>, to_sender: bool, incarnation: u16, message: RailMessage) {
    let (rail, now_ns) = (RailId::default(), pair.now_ns());
    let news = RailNews { rail, incarnation: Incarnation(incarnation), message };
    if to_sender {
        pair.sender.handle_rail_news(news, now_ns);
    } else {
        pair.receiver.handle_rail_news(news, now_ns);
    }
}

/// Returns the error that an end is broken with.
fn error_of(pair: &mut Pair<true>, sender: bool) -> Option<String> {
    let error = if sender {
        pair.sender.isend(&pair.source.message(8, 0)).err()
    } else {
        pair.receiver.irecv(&[pair.target.buffer(8, 0)], false).err()
    };
    error.map(|error| error.to_string())
}

/// Lets both ends agree that rail 0 is down.
fn bring_down(pair: &mut Pair<true>) -> Tasks {
    pair.give_up(0, true);
    pair.give_up(0, false);
    pair.agree()
}

#[test]
fn an_end_takes_no_other_number_of_new_lanes_than_was_agreed() {
    for (lanes, is_breach) in [(1, true), (2, false), (3, true)] {
        for to_sender in [true, false] {
            let mut pair = split::<true>(Setup::two_rails());
            let mut tasks = bring_down(&mut pair);
            let endpoints = vec![LaneEndpoint::default(); lanes];
            if to_sender {
                pair.world.advance(ConnectionConfig::default().rail_pause.as_nanos() as u64);
                pair.take_due(&mut tasks);
                pair.work(&mut tasks, true);
                say(&mut pair, true, 1, RailMessage::Lanes { token: Token([1; 16]), endpoints });
            } else {
                say(&mut pair, false, 1, RailMessage::Offer(endpoints));
            }
            let error = error_of(&mut pair, to_sender);
            let expected = format!("{lanes} lanes were opened, and the rail has 2");
            assert_eq!(error.as_ref().is_some_and(|error| error.contains(&expected)), is_breach, "{error:?}");
        }
    }
}

#[test]
fn a_sender_asks_only_about_receives_that_were_posted() {
    for (sequence, is_breach) in [(0, false), (1, true), (2, true), (u32::MAX, false)] {
        let mut pair = split::<true>(Setup::two_rails());
        pair.irecv();
        pair.drive();
        let (mask, unsure, placed) =
            (RailSet::only(RailId::default()), RailSet::only(RailId::default()), RailSet::EMPTY);
        let listed = Listed { sequence, mask, unsure, placed, size: Some(8), is_refused: false };
        say(&mut pair, false, 0, RailMessage::Down(vec![listed]));
        let mut tasks = Tasks::default();
        tasks.take(&mut pair.receiver, false);
        pair.work(&mut tasks, false);
        let error = error_of(&mut pair, false);
        assert_eq!(error.as_ref().is_some_and(|error| error.contains("was never posted")), is_breach, "{error:?}");
    }
}

#[test]
fn a_breach_that_only_the_fence_of_a_rail_finds_ends_the_connection() {
    for is_forged in [false, true] {
        let mut pair = split::<true>(Setup::two_rails());
        pair.irecv();
        pair.drive();
        // No receive is open in slot 7.
        assert!(!is_forged || pair.world.lock().forge(0, u8::MAX, |_| 7));
        say(&mut pair, false, 0, RailMessage::Down(Vec::new()));
        let mut tasks = Tasks::default();
        tasks.take(&mut pair.receiver, false);
        assert_eq!(error_of(&mut pair, false), None, "nobody has seen it");
        pair.work(&mut tasks, false);
        assert_eq!(error_of(&mut pair, false).is_some(), is_forged);
    }
}
