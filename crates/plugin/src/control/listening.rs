//! The listening for rails that fall silent: open connections are looked at a few times in the time that a rail may be
//! silent, as long as they have something on its way. A session leaves the path of a silent rail.

use std::io;

use railweave_transport::{Event, GivenUp, Hearing, Hush, Side};

use super::connection::Connection;
use super::control_loop::ControlLoop;
use super::hearing::LOOKS;
use crate::comm::{NoTurn, Route};

/// The time for which a session that has left a path asks its peer before it leaves another one.
const LEAVES_AGAIN_NS: u64 = 1_000_000_000;

impl ControlLoop {
    /// Looks at the open connections with something on its way, if it is time to.
    pub(super) fn listen_to_peers(&mut self) {
        let now = self.now_ns();
        let is_due = self.listening.next_ns.is_some_and(|at_ns| at_ns <= now);
        let missed = self.listening.take_missed(now);
        let routes = if is_due { self.open_routes() } else { missed };
        let is_needed = !routes.is_empty();
        let mut is_any_busy = false;
        for route in routes {
            self.look_at_debts();
            is_any_busy |= self.listen_to(route);
        }
        if is_due {
            // After a look that found nothing, work may have been on its way for a whole pause before it is seen.
            let pause_ns = self.listening.timeout_ns / if is_any_busy { LOOKS } else { 1 };
            self.listening.next_ns = is_needed.then_some(now.saturating_add(pause_ns.max(1)));
        }
        self.listening.rest(self.now_ns());
    }

    /// Looks at a connection. Returns true if something is on its way.
    fn listen_to(&mut self, route: Route) -> bool {
        let Some(session) = self.session(route.session) else { return false };
        let heard_ns = session.protocol.heard_ns();
        let Some(Connection::Open { heard, .. }) = session.connections.get_mut(&route.connection) else { return false };
        let posted = heard.posted();
        if heard.idle_since == Some(posted) {
            return false;
        }
        let hearing = Hearing { now_ns: self.now_ns(), heard_ns };
        let hush = match self.with_open_end(route, |end| end.look_for_silence(hearing)) {
            Ok(hush) => hush,
            Err(why) => {
                if why == NoTurn::Busy {
                    self.listening.miss(route);
                }
                return true;
            }
        };
        if let Some(session) = self.session(route.session)
            && let Some(Connection::Open { heard, .. }) = session.connections.get_mut(&route.connection)
        {
            heard.idle_since = (hush == Hush::Idle).then_some(posted);
        }
        if hush == Hush::Doubtful {
            let answer_ns = self.listening.timeout_ns / LOOKS;
            self.with_session(route.session, |session, now| session.doubt(answer_ns, now));
        }
        hush != Hush::Idle
    }

    /// Has a session go on over another path if its socket is on that of a rail which this end has found silent, or the
    /// peer: both ends have to speak over the session now, and its socket would be found silent only a second later.
    /// The session asks its peer first, and goes on elsewhere without an answer, if they have only one end in common, a
    /// set-up is in progress, or it has left one just before: there may be no other path, and other connections lose
    /// their rails on this one too.
    pub(super) fn leave_silent_path(&mut self, route: Route, event: &Event) {
        let Event::RailDown { rail, name, why: GivenUp::Silent(_) | GivenUp::Peer, left, .. } = event else {
            return;
        };
        let (answer_ns, now_ns) = (self.listening.timeout_ns / LOOKS, self.now_ns());
        let Some(session) = self.session(route.session) else {
            return;
        };
        // The acceptor cannot dial, and without another rail there may be no other path.
        let may_leave = session.protocol.side() == Side::Opener && !left.is_empty() && answer_ns > 0;
        let has_just_left = session.left_ns.is_some_and(|at_ns| now_ns < at_ns.saturating_add(LEAVES_AGAIN_NS));
        let is_sure = !session.setups.has_any() && !has_just_left && !session.protocol.is_away();
        let local = session.socket.as_ref().and_then(|socket| socket.stream.local());
        let Some(Connection::Open { heard, .. }) = session.connections.get(&route.connection).filter(|_| may_leave)
        else {
            return;
        };
        match heard.ends_in_common(*rail, local, session.protocol.address().ip()) {
            2 if is_sure => {
                session.left_ns = Some(now_ns);
                let text = format!("{name} has failed on the same path");
                self.lose_socket(route.session, &io::Error::new(io::ErrorKind::TimedOut, text));
            }
            1 | 2 => {
                self.with_session(route.session, |session, now| session.doubt(answer_ns, now));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use railweave_fabric::{RailId, RailSet};
    use railweave_patience::until;
    use railweave_transport::{Event, GivenUp, Hush, RailCounters, RailInfo, RailName, Side};

    use crate::control::clock::nanoseconds;
    use crate::control::connection::Connection;
    use crate::control::control_loop::ControlLoop;
    use crate::control::events::tests::Site;
    use crate::control::hearing::{Heard, LOOKS};
    use crate::control::recovery::tests::{ROUTE, control_loop, open};
    use crate::control::test_ends::Application;
    use crate::control::test_errands::HOUR;

    /// Returns the looks at the connection.
    fn heard(thread: &mut ControlLoop) -> &mut Heard {
        match thread.session(ROUTE.session).and_then(|it| it.connections.get_mut(&ROUTE.connection)) {
            Some(Connection::Open { heard, .. }) => heard,
            _ => panic!("it is open"),
        }
    }

    /// Returns a rail between these addresses.
    fn rail_between(local: &str, remote: &str) -> RailInfo {
        RailInfo {
            index: 0,
            local_port: 0,
            name: RailName { local: local.to_owned(), remote: remote.to_owned() },
            speed_mbps: None,
            lanes: 1,
            counters: Arc::new(RailCounters::default()),
        }
    }

    #[test]
    fn an_end_that_has_no_turn_for_a_look_is_looked_at_again() {
        let mut thread = control_loop();
        open(&mut thread);
        // As after a look that found nothing, with other work before it.
        heard(&mut thread).idle_since = Some(7);
        for _ in 0..2 {
            assert!(thread.listen_to(ROUTE), "something may be on its way");
        }
    }

    #[test]
    fn an_end_whose_application_is_in_a_call_is_looked_at_again_before_the_next_look() {
        let mut thread = control_loop();
        open(&mut thread);
        heard(&mut thread).idle_since = None;
        let next_ns = Some(u64::MAX);
        (thread.listening.timeout_ns, thread.listening.next_ns) = (1, next_ns);
        assert!(thread.listen_to(ROUTE));
        assert_eq!(thread.listening.due_ns(), next_ns, "NCCL does not have it yet");
        let application = Application::take_connection(&mut thread, Hush::Busy);
        let call = application.call();
        assert!(thread.listen_to(ROUTE));
        for _ in 0..2 {
            // The pause is over at once.
            thread.listening.rest(0);
            assert_eq!(thread.listening.due_ns(), Some(1));
            thread.listen_to_peers();
            assert_eq!(application.script().looks, 0);
        }
        drop(call);
        thread.listening.rest(0);
        thread.listen_to_peers();
        assert_eq!((application.script().looks, thread.listening.due_ns()), (1, next_ns));
        drop(application);
        assert!(thread.listen_to(ROUTE));
        assert_eq!(thread.listening.due_ns(), next_ns, "it is closed");
    }

    #[test]
    fn connections_are_looked_at_more_than_once_in_the_time_of_a_rail_if_something_is_on_its_way() {
        for (hush, looks) in [(Hush::Busy, LOOKS), (Hush::Idle, 1)] {
            let mut thread = control_loop();
            open(&mut thread);
            heard(&mut thread).idle_since = None;
            let application = Application::take_connection(&mut thread, hush);
            (thread.listening.timeout_ns, thread.listening.next_ns) = (nanoseconds(HOUR), Some(0));
            let (pause_ns, before_ns) = (nanoseconds(HOUR) / looks, thread.now_ns());
            thread.listen_to_peers();
            let at_ns = before_ns + pause_ns..=thread.now_ns() + pause_ns;
            assert_eq!(application.script().looks, 1, "{hush:?}");
            assert!(thread.listening.next_ns.is_some_and(|next_ns| at_ns.contains(&next_ns)), "{hush:?}");
            thread.listen_to_peers();
            assert_eq!(application.script().looks, 1, "{hush:?}: the next is not due yet");
        }
    }

    #[test]
    fn a_session_asks_its_peer_if_a_look_at_a_rail_leaves_a_doubt() {
        for (hush, asks) in [(Hush::Doubtful, true), (Hush::Busy, false), (Hush::Idle, false)] {
            let mut site = Site::new();
            let _application = Application::take_connection(&mut site.thread, hush);
            heard(&mut site.thread).idle_since = None;
            let before = site.session().protocol.timeout_ns();
            assert_eq!(site.thread.listen_to(ROUTE), hush != Hush::Idle);
            assert!(!site.session().protocol.is_away());
            assert_eq!(site.session().protocol.timeout_ns() < before, asks, "{hush:?}");
        }
    }

    #[test]
    fn a_session_leaves_no_path_during_a_set_up_nor_if_it_cannot_dial_or_nobody_looks_for_silence() {
        let usual_ns = control_loop().listening.timeout_ns;
        let cases = [
            (Side::Opener, 0, usual_ns, (true, false)),
            (Side::Opener, 1, usual_ns, (false, true)),
            (Side::Acceptor, 0, usual_ns, (false, false)),
            (Side::Opener, 0, 0, (false, false)),
        ];
        for (side, setups, timeout_ns, (leaves, asks)) in cases {
            let mut site = Site::of(side);
            site.thread.listening.timeout_ns = timeout_ns;
            site.session().setups.in_progress = setups;
            heard(&mut site.thread).rails = vec![rail_between("127.0.0.1", "127.0.0.1")];
            until("the socket has an address", || site.session().socket.as_ref().and_then(|it| it.stream.local()));
            let before = site.session().protocol.timeout_ns();
            let (rail, name) = (RailId::new(0).unwrap(), "rail 0".to_owned());
            let left = RailSet::only(RailId::new(1).unwrap());
            let event = Event::RailDown { rail, name, why: GivenUp::Peer, left, is_gone: false };
            site.thread.leave_silent_path(ROUTE, &event);
            let protocol = &site.session().protocol;
            let is_asked = !protocol.is_away() && protocol.timeout_ns() < before;
            assert_eq!((protocol.is_away(), is_asked), (leaves, asks), "{side:?} {setups} {timeout_ns}");
        }
    }

    #[test]
    fn a_session_leaves_the_path_of_a_silent_rail_and_asks_if_only_an_end_of_it_is_the_same() {
        let left = RailSet::only(RailId::new(1).unwrap());
        let cases = [
            (("127.0.0.1", "127.0.0.1"), left, false, (true, false)),
            (("127.0.0.1", "127.0.0.1"), left, true, (false, true)),
            (("127.0.0.1", "127.0.0.2"), left, false, (false, true)),
            (("127.0.0.2", "127.0.0.1"), left, false, (false, true)),
            (("127.0.0.2", "127.0.0.2"), left, false, (false, false)),
            (("127.0.0.1", "127.0.0.1"), RailSet::EMPTY, false, (false, false)),
        ];
        for ((local, remote), left, has_just_left, (leaves, asks)) in cases {
            let mut site = Site::new();
            let now_ns = site.thread.now_ns();
            site.session().left_ns = has_just_left.then_some(now_ns);
            let connection = site.session().connections.get_mut(&ROUTE.connection);
            let Some(Connection::Open { heard, .. }) = connection else { panic!("it is open") };
            heard.rails = vec![rail_between(local, remote)];
            let has_end = |site: &mut Site| site.session().socket.as_ref().and_then(|it| it.stream.local());
            until("the socket has an address", || has_end(&mut site));
            let before = site.session().protocol.timeout_ns();
            let (rail, name) = (RailId::new(0).unwrap(), "rail 0".to_owned());
            let event = Event::RailDown { rail, name, why: GivenUp::Peer, left, is_gone: false };
            site.thread.leave_silent_path(ROUTE, &event);
            let protocol = &site.session().protocol;
            let is_asked = !protocol.is_away() && protocol.timeout_ns() < before;
            assert_eq!((protocol.is_away(), is_asked), (leaves, asks), "{local} {remote} {left:?} {has_just_left}");
        }
    }

    #[test]
    fn a_session_leaves_once_for_a_rail_that_this_end_finds_silent_and_goes_on_with_the_dial_that_follows() {
        let mut site = Site::new();
        let connection = site.session().connections.get_mut(&ROUTE.connection);
        let Some(Connection::Open { heard, .. }) = connection else { panic!("it is open") };
        let address = "127.0.0.1";
        heard.rails = vec![rail_between(address, address)];
        let has_end = |site: &mut Site| site.session().socket.as_ref().and_then(|it| it.stream.local());
        until("the socket has an address", || has_end(&mut site));
        let left = RailSet::only(RailId::new(1).unwrap());
        let event = |why| Event::RailDown {
            rail: RailId::new(0).unwrap(),
            name: address.to_owned(),
            why,
            left,
            is_gone: false,
        };
        let no_path = GivenUp::Part("its port is down".to_owned());
        site.thread.leave_silent_path(ROUTE, &event(no_path));
        assert!(!site.session().protocol.is_away(), "the event says so to sessions");
        site.thread.leave_silent_path(ROUTE, &event(GivenUp::Silent(Duration::from_millis(500))));
        assert!(site.session().protocol.is_away());
        until("the next socket has an address", || has_end(&mut site));
        let number = |site: &mut Site| site.session().socket.as_ref().map(|socket| socket.number);
        let before = number(&mut site);
        site.session().left_ns = None;
        site.thread.leave_silent_path(ROUTE, &event(GivenUp::Peer));
        assert_eq!(number(&mut site), before);
    }
}
