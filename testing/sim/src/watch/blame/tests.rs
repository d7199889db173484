use std::sync::Arc;

use railweave_fabric::{LaneId, RailId, WorkFailure};
use railweave_transport::{Ended, Gone, Lost, Misuse};

use super::*;

const GRACE_NS: u64 = 1000;

fn rail_error(status: WorkStatus) -> RailError {
    RailError::Work(WorkFailure { status, code: 1, vendor: 0, number: 1, peer: 2, path: "port 1".to_owned() })
}

fn lane(rail: usize, status: WorkStatus) -> Error {
    let (name, peer) = (format!("rail {rail}"), "node2".to_owned());
    let rail = RailId::new(rail).unwrap();
    Cause::Lane { rail, name, peer, lane: LaneId::FIRST, error: rail_error(status) }.into()
}

fn lost(cause: LostCause) -> Error {
    Lost { peer: "node2".to_owned(), cause }.into()
}

fn gone() -> Error {
    lost(LostCause::Gone(Gone::Silent { for_ns: 9, limit_ns: 8 }))
}

const HELD_BACK_NS: u64 = 7;
const CALL: Call = Call {
    sender: true,
    grace_ns: GRACE_NS,
    needs_peer: true,
    is_flush: false,
    settling_ns: HELD_BACK_NS,
    recovers: false,
    may_not_open: false,
    outage_ns: 600,
    is_recovering: false,
};

/// Returns the checker that an error of the sending end at this time falls foul of.
fn found(blame: &Blame, now_ns: u64, error: &Error) -> Option<Checker> {
    blame.judge(now_ns, CALL, error).err().map(|(checker, _)| checker)
}

#[test]
fn a_dead_rail_causes_the_errors_of_its_own_dead_lanes_and_no_others() {
    let mut blame = Blame::default();
    let error = lane(1, WorkStatus::RetriesExceeded);
    assert_eq!(found(&blame, 5, &error), Some(Checker::Errors), "nothing has happened");
    blame.strike(5, true, Strike::RailSilent(1));
    assert_eq!(found(&blame, 5, &error), Some(Checker::Blame), "the lane has not died");
    blame.lane_died(5, true, (1, 0), &rail_error(WorkStatus::RetriesExceeded));
    assert_eq!(found(&blame, 5, &error), None);
    blame.lane_died(5, true, (2, 0), &rail_error(WorkStatus::RetriesExceeded));
    assert_eq!(found(&blame, 5, &lane(2, WorkStatus::RetriesExceeded)), Some(Checker::Blame), "another rail");
    assert_eq!(found(&blame, 5, &lane(1, WorkStatus::Flushed)), Some(Checker::Blame), "another status");
    assert_eq!(found(&blame, 5, &lost(LostCause::Bye)), Some(Checker::Blame), "the peer has not closed");
    let elsewhere = blame.judge(5, Call { sender: false, ..CALL }, &error);
    assert!(matches!(elsewhere, Err((Checker::Errors, _))), "the other end was not struck");
}

#[test]
fn a_loss_waits_for_the_grace_and_needs_something_of_the_peer() {
    let mut blame = Blame::default();
    blame.strike(0, true, Strike::PeerClosed);
    assert_eq!(found(&blame, 9000, &lost(LostCause::Bye)), Some(Checker::Blame), "no BYE has come");
    blame.bye_arrived(10, true);
    assert_eq!(found(&blame, 10 + GRACE_NS - 1, &lost(LostCause::Bye)), Some(Checker::Blame), "too early");
    assert_eq!(found(&blame, 10 + GRACE_NS, &lost(LostCause::Bye)), None);
    let judged = blame.judge(9000, Call { needs_peer: false, ..CALL }, &lost(LostCause::Bye));
    assert!(matches!(judged, Err((Checker::Blame, _))), "everything has landed");
    let gave_up = lost(LostCause::GaveUp("no".to_owned()));
    assert_eq!(found(&blame, 9000, &gave_up), Some(Checker::Blame), "the peer was never in set-up");
    blame.strike(0, true, Strike::PeerDied);
    let judged = blame.judge(9000, Call { needs_peer: false, ..CALL }, &lost(LostCause::Bye));
    assert!(matches!(judged, Err((Checker::Blame, _))), "its BYE has said what it had received");
    let judged = blame.judge(9000, Call { needs_peer: false, ..CALL }, &gone());
    assert_eq!(judged, Ok(()), "its acknowledgements died with it");
}

#[test]
fn a_broken_session_harms_nothing_while_rails_work_and_the_peer_lives() {
    let mut blame = Blame::default();
    blame.strike(0, true, Strike::SessionBroke);
    let ended = lost(LostCause::Session(Arc::new(Ended::Socket("reset".to_owned()))));
    let forgotten = lost(LostCause::Session(Arc::new(Ended::Forgotten)));
    for error in [gone(), ended.clone(), forgotten.clone()] {
        assert_eq!(found(&blame, u64::MAX, &error), Some(Checker::Blame), "{error}");
    }
    blame.strike(5, true, Strike::RailSilent(0));
    assert_eq!((found(&blame, 9, &gone()), found(&blame, 9, &ended)), (None, Some(Checker::Blame)));
    assert_eq!(found(&blame, 9, &forgotten), None);
    let mut blame = Blame::default();
    blame.strike(5, true, Strike::RailSilent(0));
    assert_eq!(found(&blame, 9, &gone()), Some(Checker::Blame), "its session was well");
    let mut blame = Blame::default();
    blame.strike(5, true, Strike::CameUpLate);
    assert_eq!((found(&blame, 9, &gone()), found(&blame, 9, &ended)), (None, None));
}

#[test]
fn each_cause_has_its_result_code() {
    let post = |error| -> Error {
        let (rail, name, peer) = (RailId::new(0).unwrap(), "rail 0".to_owned(), "node2".to_owned());
        Cause::Post { rail, name, peer, error }.into()
    };
    let mut blame = Blame::default();
    blame.strike(0, true, Strike::NoSource);
    assert_eq!(found(&blame, 5, &post(PostError::Invalid("no key".to_owned()))), None);
    assert_eq!(found(&blame, 5, &post(PostError::Full)), Some(Checker::Blame));
    assert_eq!(check_code(&gone(), Fault::Peer), Ok(()));
    for (error, wrong) in [
        (gone(), Fault::Local),
        (Error::from(Misuse::ReceiveTooLong(9)), Fault::Protocol),
        (Error::from(Misuse::Buffers(9)), Fault::Configuration),
    ] {
        assert!(matches!(check_code(&error, wrong), Err((Checker::Blame, _))), "{error}");
    }
}

#[test]
fn a_strike_explains_only_what_happens_while_it_has_effects() {
    let mut blame = Blame::default();
    blame.lane_died(4, true, (1, 0), &rail_error(WorkStatus::RetriesExceeded));
    blame.strike(5, true, Strike::RailSilent(1));
    let error = lane(1, WorkStatus::RetriesExceeded);
    assert_eq!(found(&blame, 9, &error), Some(Checker::Blame), "the lane had died before");
    blame.lane_died(7, true, (1, 0), &rail_error(WorkStatus::RetriesExceeded));
    assert_eq!(found(&blame, 9, &error), None);
    let mut blame = Blame::default();
    blame.strike_until(5, 9000, false, Strike::AcknowledgementLost(1));
    blame.bye_arrived(10, false);
    let receiving = Call { sender: false, needs_peer: false, ..CALL };
    let at = |now_ns| blame.judge(now_ns, receiving, &lost(LostCause::Bye));
    assert_eq!(at(9000 + HELD_BACK_NS), Ok(()));
    assert!(matches!(at(9001 + HELD_BACK_NS), Err((Checker::Blame, _))), "it has come");
}

#[test]
fn a_peer_that_is_gone_is_no_reason_once_everything_has_landed_and_none_for_a_flush() {
    let mut blame = Blame::default();
    blame.strike(0, true, Strike::PeerClosed);
    blame.bye_arrived(0, true);
    blame.landed(GRACE_NS);
    let done = Call { needs_peer: false, ..CALL };
    let at = |now_ns, call| blame.judge(now_ns, call, &lost(LostCause::Bye));
    assert_eq!(at(GRACE_NS + HELD_BACK_NS, done), Ok(()), "its completion may be on its way");
    assert!(matches!(at(GRACE_NS + HELD_BACK_NS + 1, done), Err((Checker::Blame, _))));
    assert_eq!(at(GRACE_NS + HELD_BACK_NS + 1, CALL), Ok(()));
    let flush = Call { is_flush: true, ..CALL };
    assert!(matches!(at(GRACE_NS + 1, flush), Err((Checker::Blame, _))), "a flush needs no peer");
}

#[test]
fn a_peer_that_went_before_the_last_completion_came_leaves_its_end_waiting() {
    let done = Call { sender: false, needs_peer: false, ..CALL };
    for (went_ns, is_excused) in [(GRACE_NS + HELD_BACK_NS, true), (GRACE_NS + HELD_BACK_NS + 1, false)] {
        let mut blame = Blame::default();
        blame.strike(0, false, Strike::PeerClosed);
        blame.bye_arrived(0, false);
        blame.landed(GRACE_NS);
        blame.strike(went_ns, false, Strike::PeerGone);
        assert_eq!(blame.judge(9000, done, &lost(LostCause::Bye)).is_ok(), is_excused, "it went at {went_ns} ns");
    }
}

#[test]
fn a_failed_device_explains_the_error_of_its_event_and_nothing_before_it() {
    let mut blame = Blame::default();
    blame.strike(5, true, Strike::DeviceFailed);
    let error = Error::local("port 1: its device has failed");
    assert_eq!(found(&blame, 9, &error), Some(Checker::Blame), "no event has come");
    blame.device_event(7, true);
    assert_eq!(found(&blame, 9, &error), None);
    assert_eq!(found(&blame, 9, &Error::peer("it is gone")), Some(Checker::Blame), "it is this end's device");
    blame.lane_died(8, true, (1, 0), &rail_error(WorkStatus::RetriesExceeded));
    assert_eq!(found(&blame, 9, &lane(1, WorkStatus::RetriesExceeded)), Some(Checker::Blame), "it tells nothing");
}

#[test]
fn a_set_up_fails_only_for_its_circumstances_and_for_what_struck_it() {
    let set_up = SetUp { planned: 0b11, ..SetUp::default() };
    let of = |failure| -> Error { Cause::Handshake { peer: "node2".to_owned(), failure }.into() };
    let no_rail = of(HandshakeFailure::NoRail { failed_here: true, first: railweave_transport::LeftOut::NotReady });
    let late_here = SetUp { missed_short: true, ..set_up };
    let mut blame = Blame::default();
    blame.not_opened(true, 0);
    assert!(blame.judge_set_up(true, &no_rail, set_up).is_err(), "rail 1 did open");
    assert_eq!(blame.judge_set_up(true, &no_rail, late_here), Ok(()), "and was late");
    blame.not_opened(false, 0);
    assert_eq!(blame.judge_set_up(true, &no_rail, set_up), Ok(()));
    let none_there = of(HandshakeFailure::NoRail { failed_here: false, first: railweave_transport::LeftOut::NotReady });
    let late_there = SetUp { peer_missed_short: true, ..set_up };
    assert_eq!(Blame::default().judge_set_up(true, &none_there, late_here), Ok(()));
    assert!(Blame::default().judge_set_up(true, &no_rail, late_here).is_err(), "all its rails did open");
    assert!(Blame::default().judge_set_up(true, &none_there, SetUp { missed: true, ..set_up }).is_err());
    assert_eq!(Blame::default().judge_set_up(true, &none_there, late_there), Ok(()));
    assert!(Blame::default().judge_set_up(true, &no_rail, late_there).is_err(), "the peer's time is not this end's");
    let unpaired = of(HandshakeFailure::Unpaired("no port fits".to_owned()));
    assert!(blame.judge_set_up(false, &unpaired, set_up).is_err(), "ports pair");
    let none_pairs = SetUp::default();
    assert_eq!(blame.judge_set_up(false, &unpaired, none_pairs), Ok(()));
    assert!(blame.judge_set_up(true, &unpaired, none_pairs).is_err(), "only the acceptor pairs ports");
    let closed = of(HandshakeFailure::Closed);
    let late = SetUp { has_failed_dial: true, missed: true, missed_short: true, ..set_up };
    assert!(blame.judge_set_up(true, &closed, late).is_err());
    // A peer that closes does not break its set-up off, but its listener refuses what it is offered.
    let [gave_up, refused] = [
        HandshakeFailure::GaveUp("late".to_owned()),
        HandshakeFailure::Refused { fault: Fault::Protocol, reason: "no listener".to_owned() },
    ]
    .map(of);
    for sender in [true, false] {
        blame.strike(0, sender, Strike::PeerClosed);
        assert!(blame.judge_set_up(sender, &closed, set_up).is_err());
        assert!(blame.judge_set_up(sender, &gave_up, set_up).is_err());
        assert_eq!(blame.judge_set_up(sender, &refused, set_up).is_ok(), sender);
        blame.strike(0, sender, Strike::PeerFailed);
        assert!(blame.judge_set_up(sender, &closed, set_up).is_err());
        assert_eq!(blame.judge_set_up(sender, &gave_up, set_up), Ok(()));
        assert_eq!(blame.judge_set_up(sender, &refused, set_up), Ok(()));
    }
}

#[test]
fn a_set_up_ends_with_its_session_only_if_that_broke_or_the_peer_had_given_up() {
    let ended = Arc::new(Ended::Socket("reset".to_owned()));
    let error: Error = Cause::SessionEnded { peer: "node2".to_owned(), ended }.into();
    let set_up = SetUp::default();
    let mut blame = Blame::default();
    blame.strike(0, true, Strike::PeerClosed);
    blame.strike(0, true, Strike::PeerFailed);
    assert!(blame.judge_set_up(true, &error, set_up).is_err(), "no REFUSE has come");
    blame.refuse_arrived(5, true);
    assert_eq!(blame.judge_set_up(true, &error, set_up), Ok(()));
    let mut blame = Blame::default();
    blame.refuse_arrived(5, true);
    assert!(blame.judge_set_up(true, &error, set_up).is_err(), "nobody has given up");
    blame.strike(6, true, Strike::SessionBroke);
    assert_eq!(blame.judge_set_up(true, &error, set_up), Ok(()));
}

#[test]
fn a_peer_without_an_answer_is_gone_for_long() {
    use Strike::{PeerClosed, PeerDied, SessionBroke};
    for (strikes, for_ns, is_excused) in [
        (&[PeerClosed, SessionBroke][..], 600, true),
        (&[PeerClosed, SessionBroke], 599, false),
        (&[PeerClosed], 600, false),
        (&[PeerDied], 600, true),
        (&[PeerDied], 599, false),
        (&[SessionBroke], 600, false),
    ] {
        let mut blame = Blame::default();
        for strike in strikes {
            blame.strike(5, true, *strike);
        }
        let (rail, name, peer) = (RailId::new(0).unwrap(), "rail 0".to_owned(), "node2".to_owned());
        let error = Cause::Unanswered { rail, name, peer, for_ns }.into();
        assert_eq!(found(&blame, 9000, &error).is_none(), is_excused, "{strikes:?} {for_ns}");
    }
}

#[test]
fn a_sender_does_not_know_what_has_landed_if_nobody_answers_it() {
    let done = Call { needs_peer: false, recovers: true, ..CALL };
    for (mute, is_excused) in
        [(None, false), (Some((true, Strike::SessionBroke)), true), (Some((false, Strike::Forged)), true)]
    {
        let mut blame = Blame::default();
        blame.strike_until(1, 9, true, Strike::RailSilent(1));
        blame.strike(5, true, Strike::PeerClosed);
        blame.bye_arrived(5, true);
        blame.landed(4);
        if let Some((sender, strike)) = mute {
            blame.strike(5, sender, strike);
        }
        assert_eq!(blame.judge(9000, done, &lost(LostCause::Bye)).is_ok(), is_excused, "{mute:?}");
        // The parts that the peer had placed before it closed fail with those that come after.
        blame.lane_died(6, true, (1, 0), &rail_error(WorkStatus::RetriesExceeded));
        let without_a_rail = Call { is_recovering: true, ..done };
        assert_eq!(blame.judge(9000, without_a_rail, &lost(LostCause::Bye)), Ok(()));
        assert_eq!(blame.judge(9000, done, &lost(LostCause::Bye)).is_ok(), is_excused, "its rail is back: {mute:?}");
    }
}
