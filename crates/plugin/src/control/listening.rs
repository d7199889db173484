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
    /// set-up needs the socket, or it has left one just before: there may be no other path, and other connections lose
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
    use railweave_transport::{Event, GivenUp, RailCounters, RailInfo, RailName};

    use crate::control::connection::Connection;
    use crate::control::events::tests::Site;
    use crate::control::recovery::tests::{ROUTE, control_loop, open};

    #[test]
    fn an_end_that_has_no_turn_for_a_look_is_looked_at_again() {
        let mut thread = control_loop();
        open(&mut thread);
        let connection = thread.session(ROUTE.session).and_then(|it| it.connections.get_mut(&ROUTE.connection));
        let Some(Connection::Open { heard, .. }) = connection else { panic!("it is open") };
        // As after a look that found nothing, with other work before it.
        heard.idle_since = Some(7);
        for _ in 0..2 {
            assert!(thread.listen_to(ROUTE), "something may be on its way");
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
            heard.rails = vec![RailInfo {
                index: 0,
                local_port: 0,
                name: RailName { local: local.to_owned(), remote: remote.to_owned() },
                speed_mbps: None,
                lanes: 1,
                counters: Arc::new(RailCounters::default()),
            }];
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
        let name = || "127.0.0.1".to_owned();
        heard.rails = vec![RailInfo {
            index: 0,
            local_port: 0,
            name: RailName { local: name(), remote: name() },
            speed_mbps: None,
            lanes: 1,
            counters: Arc::new(RailCounters::default()),
        }];
        let has_end = |site: &mut Site| site.session().socket.as_ref().and_then(|it| it.stream.local());
        until("the socket has an address", || has_end(&mut site));
        let left = RailSet::only(RailId::new(1).unwrap());
        let event = |why| Event::RailDown { rail: RailId::new(0).unwrap(), name: name(), why, left, is_gone: false };
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
