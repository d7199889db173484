//! The connections of a session: how they are offered, set up, and told of their end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use railweave_fabric::Part;
use railweave_transport::{Error, Link, Message, Offer, Token};

use super::setups::TOO_MANY_UNACCEPTED;
use super::strangers::Kind;
use super::thread::Thread;
use super::worker::Work;
use super::{ConnectRequest, Route, nanoseconds, numa};
use crate::identity::random;
use crate::listener::{Listener, Ready};
use crate::log;
use crate::network::{Established, Handshake, Network, Setup, Step};
use crate::process::PendingConnect;

/// Connections that one session may have.
const MOST_CONNECTIONS: usize = 65_536;

/// A peer that says WAIT may keep a connection in set-up for so many times the handshake's time-out.
const MOST_WAITS: u64 = 20;

/// An end that is busy says WAIT after this part of the handshake's time-out, and each time it has passed again.
const WAIT_PART: u64 = 4;

/// Where a connection goes once it is there.
pub(super) enum Target {
    Connect(Arc<PendingConnect>),
    Accept(Arc<Listener>),
}

impl Target {
    /// Hands a connection on; gives it back when nobody waits for it any more.
    fn give(&self, connection: Ready) -> Option<Ready> {
        match self {
            Self::Connect(pending) => pending.give(Ok(connection)).and_then(Result::ok),
            Self::Accept(listener) => listener.give(connection),
        }
    }
}

/// A connection of a session.
pub(super) enum Connection {
    /// Being set up.
    Setup(Setting),
    /// Up.
    Open {
        link: Arc<Link>,
        peer_said_bye: bool,
        /// What of this host it is made of.
        parts: Vec<Part>,
        /// The listener that it was handed to, where a peer began it.
        listener: Weak<Listener>,
    },
    /// Closed by this side; the peer's BYE is awaited.
    Closed,
}

/// A connection that is being set up.
pub(super) struct Setting {
    /// None while the set-up worker has it.
    pub(super) handshake: Option<Box<dyn Handshake>>,
    /// The number under which the worker has it, or had it last.
    pub(super) away: Option<u64>,
    /// What the worker looks at before it works for it.
    pub(super) is_wanted: Arc<AtomicBool>,
    /// What the worker has, or had last, is READY: the peer's end is up.
    pub(super) is_ready: bool,
    /// What came from the peer meanwhile.
    pub(super) waiting: VecDeque<Message>,
    pub(super) target: Target,
    /// What its lanes present, where the peer began it.
    pub(super) token: Option<Token>,
    /// The NUMA node of the device, where it has one.
    pub(super) node: Option<u32>,
    began_ns: u64,
    /// When to try again what this host could not do.
    pub(super) go_on_ns: Option<u64>,
    /// When to tell the peer that this end is busy.
    pub(super) wait_ns: Option<u64>,
}

impl Setting {
    fn new(
        handshake: Box<dyn Handshake>,
        target: Target,
        token: Option<Token>,
        node: Option<u32>,
        began_ns: u64,
    ) -> Self {
        Self {
            handshake: Some(handshake),
            away: None,
            is_wanted: Arc::new(AtomicBool::new(true)),
            is_ready: false,
            waiting: VecDeque::new(),
            target,
            token,
            node,
            began_ns,
            go_on_ns: None,
            wait_ns: None,
        }
    }

    /// Whether the worker has it.
    pub(super) fn is_at_worker(&self) -> bool {
        self.handshake.is_none() && self.away.is_some()
    }

    /// When its time is over. One that the worker has gets its time when it is back.
    fn timeout_ns(&self) -> Option<u64> {
        self.handshake.as_ref()?.timeout_ns()
    }

    /// When there is something to do.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.timeout_ns().into_iter().chain(self.go_on_ns).chain(self.wait_ns).min()
    }
}

/// A connection that a peer began, whose session ended while the set-up thread had its READY. The peer had no error: it has
/// left what is up.
pub(super) struct Orphan {
    listener: Arc<Listener>,
    error: Error,
}

/// Begins a handshake, whose memory comes from the NUMA node of its device where the fabric's adapter is there too; and that
/// node, for what it makes later.
fn placed(
    network: &dyn Network,
    device: usize,
    begin: impl FnOnce(&dyn Network, usize) -> Box<dyn Handshake>,
) -> (Box<dyn Handshake>, Option<u32>) {
    let node = if network.may_block() { numa::node_of(network, device) } else { None };
    let _placed = numa::Placed::on(node);
    (begin(network, device), node)
}

impl Thread {
    /// Offers a connection on the session to its process.
    pub(super) fn begin_connecting(&mut self, token: usize, request: ConnectRequest) {
        let (now, deadline_ns) = (self.now_ns(), self.deadline_ns());
        let Some(session) = self.session(token) else {
            let error = Error::peer("the session to the peer has just ended; it closed or died");
            return self.fail(&Target::Connect(request.result), error);
        };
        session.next_connection += 1;
        session.touch(now);
        let route = Route { session: token, connection: session.next_connection };
        let setup = Setup { config: request.config, peer: session.peer_name(), deadline_ns };
        let (handshake, node) =
            placed(&*request.network, request.device, |it, device| it.connect(device, request.handle.nonce, setup));
        let setting = Setting::new(handshake, Target::Connect(request.result), None, node, now);
        self.setup_begins(route, setting);
        self.with_handshake(route, |_| ());
    }

    /// Answers a peer's offer.
    pub(super) fn begin_accepting(&mut self, token: usize, connection: u32, offer: &Offer, deadline_ns: u64) {
        let listener = super::lock(&self.listeners).get(&offer.nonce).cloned();
        let (now, lane_token) = (self.now_ns(), Token(random()));
        let same_network = self.is_inside_host(token);
        let route = Route { session: token, connection };
        let Some(session) = self.session(token) else {
            return;
        };
        let refusal = if session.connections.contains_key(&connection) {
            "the connection's number is in use already"
        } else if session.connections.len() >= MOST_CONNECTIONS {
            "the session has 65536 connections, which is all that it can have"
        } else {
            "there is no such listener: it was closed, or the handle is from another run"
        };
        let is_free = !session.connections.contains_key(&connection) && session.connections.len() < MOST_CONNECTIONS;
        let Some(listener) = listener.filter(|_| is_free) else {
            return self.refuse(route, refusal);
        };
        let setup = Setup { config: listener.config.clone(), peer: session.peer_name(), deadline_ns };
        let (handshake, node) = placed(&*listener.network, listener.device, |it, device| {
            it.accept(device, offer, same_network, lane_token, setup)
        });
        let setting = Setting::new(handshake, Target::Accept(Arc::clone(&listener)), Some(lane_token), node, now);
        self.setup_begins(route, setting);
        self.lanes.insert(lane_token, route);
        self.with_handshake(route, |_| ());
    }

    /// The peer gave up on a connection that came up on this side, as when READY came too late. It says no BYE of it.
    pub(super) fn handle_late_refusal(&mut self, route: Route, reason: &str) {
        let Some(session) = self.session(route.session) else {
            return;
        };
        let text = format!("{} gave the connection up: {reason}", session.peer_name());
        match session.connections.get_mut(&route.connection) {
            Some(Connection::Open { link, peer_said_bye: peer_said_bye @ false, listener, .. }) => {
                *peer_said_bye = true;
                link.set_lost(Error::peer(text));
                let listener = Weak::clone(listener);
                self.peer_left(route, listener);
            }
            Some(Connection::Closed) => self.handle_bye(route),
            _ => {}
        }
    }

    pub(super) fn handle_bye(&mut self, route: Route) {
        let now = self.now_ns();
        let Some(session) = self.session(route.session) else {
            return;
        };
        // What names no connection does not keep the session either.
        if session.connections.contains_key(&route.connection) {
            session.touch(now);
        }
        match session.connections.get_mut(&route.connection) {
            // It says it once; what it says again changes nothing, and is not kept.
            Some(Connection::Open { peer_said_bye: true, .. }) => {}
            Some(Connection::Open { peer_said_bye, link, listener, .. }) => {
                *peer_said_bye = true;
                // What the peer sent before is there, or will never be: what is still stuck then has nothing to wait for.
                let (link, listener) = (Arc::clone(link), Weak::clone(listener));
                let peer = session.peer_name();
                let text = format!("{peer} has closed the connection; look at that process's own log for the reason");
                self.begin_losing(link, Error::peer(text), Vec::new());
                self.peer_left(route, listener);
            }
            Some(Connection::Closed) => {
                session.connections.remove(&route.connection);
                self.peer_said_bye(route);
            }
            Some(Connection::Setup(_)) => {
                self.handshake_message(route, Message::Bye);
            }
            None => self.forget_offer(route),
        }
    }

    /// Lets `act` do something with a connection's handshake, then carries out what the handshake wants. None when the
    /// connection is not being set up.
    pub(super) fn with_handshake<R>(&mut self, route: Route, act: impl FnOnce(&mut dyn Handshake) -> R) -> Option<R> {
        let session = self.session(route.session)?;
        let Some(Connection::Setup(setting)) = session.connections.get_mut(&route.connection) else {
            return None;
        };
        let result = act(setting.handshake.as_mut()?.as_mut());
        self.carry_out(route);
        Some(result)
    }

    fn carry_out(&mut self, route: Route) {
        loop {
            let Some(session) = self.session(route.session) else {
                return;
            };
            let peer = session.peer_name();
            let port = session.address.port();
            let Some(Connection::Setup(setting)) = session.connections.get_mut(&route.connection) else {
                return;
            };
            match setting.handshake.as_mut().and_then(|handshake| handshake.poll_step()) {
                None => return,
                Some(Step::Send(message)) => {
                    let _ = self.send(route, message);
                }
                Some(Step::Dial(dial)) => {
                    if let Err(reason) = self.dial_lane(route, dial, port) {
                        self.with_handshake(route, |h| h.handle_dialed(dial.rail, dial.lane, Err(reason)));
                    }
                }
                Some(Step::RailDropped { rail, reason }) => {
                    let text = format!("rail {rail} to {peer} is left out: {reason}");
                    match setting.target {
                        Target::Connect(_) => log::warn(&text),
                        // A peer of the other side's choice could have any number of them.
                        Target::Accept(_) => {
                            let now = self.now_ns();
                            self.strangers.report(now, Kind::Rail, &text);
                        }
                    }
                }
                Some(Step::Ready(established)) => return self.open(route, established),
                Some(Step::Failed(error)) => return self.fail_setting(route, error),
            }
        }
    }

    /// A connection is up.
    fn open(&mut self, route: Route, mut established: Box<Established>) {
        let parts = std::mem::take(&mut established.parts);
        // What failed while the set-up thread had the last step was not known to be this connection's.
        let number = self.setting(route).and_then(|setting| setting.away).unwrap_or(self.workers.next_number());
        if let Some(error) = self.failures.of(&parts, number) {
            established.link.set_failed(error);
        }
        let Some(session) = self.session(route.session) else {
            return;
        };
        let Some(Connection::Setup(setting)) = session.connections.remove(&route.connection) else {
            return;
        };
        let link = Arc::clone(&established.link);
        let listener = match &setting.target {
            Target::Accept(listener) => Arc::downgrade(listener),
            Target::Connect(_) => Weak::new(),
        };
        let open = Connection::Open { link, peer_said_bye: false, parts, listener };
        session.connections.insert(route.connection, open);
        self.setup_ends(route, &setting);
        if let Target::Accept(listener) = &setting.target
            && listener.unaccepted() >= self.setups.most_unaccepted
        {
            // Others of this listener came up since it was offered.
            let text = format!("a connection was closed, because {TOO_MANY_UNACCEPTED}: {}", established.peer);
            self.strangers.report(self.now_ns(), Kind::Setup, &text);
            self.close(route, established.end);
        } else {
            match (setting.target.give((established, route)), setting.target) {
                (Some((unwanted, route)), _) => self.close(route, unwanted.end),
                (None, Target::Connect(connect)) => self.watch_connect(route, connect),
                (None, Target::Accept(_)) => {}
            }
        }
        // What the peer said while the set-up thread had the last step is about the connection that came of it.
        for message in setting.waiting {
            match message {
                Message::Refuse { reason, .. } => self.handle_late_refusal(route, &reason),
                Message::Bye => self.handle_bye(route),
                _ => {}
            }
        }
    }

    /// Something of a connection in set-up is due.
    pub(super) fn setting_due(&mut self, route: Route, now_ns: u64) {
        let wait_ns = self.next_wait_ns();
        let Some(setting) = self.setting(route) else {
            return;
        };
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now_ns);
        let (is_late, goes_on, waits) =
            (is_due(setting.timeout_ns()), is_due(setting.go_on_ns), is_due(setting.wait_ns));
        if waits {
            setting.wait_ns = Some(wait_ns);
            let is_away = setting.handshake.is_none();
            if is_away && let Some(text) = self.stuck_kernel(now_ns) {
                return self.refuse_setting(route, Error::local(text));
            }
            if self.send(route, Message::Wait).is_err() {
                return;
            }
        }
        if is_late {
            let may_block = self.setting(route).and_then(|setting| setting.handshake.as_ref()).map(|it| it.may_block());
            if may_block == Some(true) {
                self.give_work(route, Work::Timeout);
            } else {
                self.with_handshake(route, |handshake| handshake.handle_timeout(now_ns));
            }
        } else if goes_on {
            self.give_work(route, Work::GoOn);
        }
    }

    /// What to say when the set-up thread has been in one call of the kernel for a handshake's time.
    pub(super) fn stuck_kernel(&mut self, now_ns: u64) -> Option<String> {
        let seconds = self.handshake_timeout.as_secs_f64();
        self.workers.is_stuck(now_ns).then(|| {
            format!(
                "the kernel has not come back from setting up a connection for {seconds} s; look at the kernel log, \
                 and at the port's link"
            )
        })
    }

    /// When an end that is busy from now on tells its peer.
    pub(super) fn next_wait_ns(&self) -> u64 {
        self.now_ns().saturating_add((nanoseconds(self.handshake_timeout) / WAIT_PART).max(1))
    }

    /// Until when a set-up that began at this time may last where an end says that it waits or works.
    pub(super) fn last_wait_ns(&self, began_ns: u64) -> u64 {
        began_ns.saturating_add(nanoseconds(self.handshake_timeout).saturating_mul(MOST_WAITS))
    }

    /// The peer still works at a connection's set-up. It is no step, so that a peer that says nothing else makes room where
    /// others wait.
    pub(super) fn handle_wait(&mut self, route: Route) {
        let (now, deadline_ns) = (self.now_ns(), self.deadline_ns());
        let began_ns = self.setting(route).map_or(0, |setting| setting.began_ns);
        let last_ns = self.last_wait_ns(began_ns);
        if let Some(setting) = self.setting(route)
            && setting.go_on_ns.is_none()
            && now < last_ns
            && let Some(handshake) = &mut setting.handshake
            && handshake.may_block()
        {
            handshake.set_deadline(deadline_ns);
        }
    }

    /// What was being set up when its session ended.
    pub(super) fn lose_setting(&mut self, route: Route, setting: Setting, error: Error) {
        let away = setting.away.filter(|_| setting.is_ready && setting.is_at_worker());
        match (&setting.target, away) {
            (Target::Accept(listener), Some(number)) => {
                let orphan = Orphan { listener: Arc::clone(listener), error };
                self.setup_ends(route, &setting);
                self.orphans.insert(number, orphan);
            }
            _ => self.setting_over(route, setting, error),
        }
    }

    /// The set-up thread is done with what nobody waits for any more, or with an orphan, which accept gives out all the same.
    pub(super) fn take_over(&mut self, number: u64, route: Route, handshake: Option<Box<dyn Handshake>>) {
        let Some(Orphan { listener, error }) = self.orphans.remove(&number) else {
            return self.free(handshake);
        };
        let mut handshake = handshake;
        let steps = std::iter::from_fn(|| handshake.as_mut()?.poll_step());
        let opened = steps.filter_map(|step| if let Step::Ready(made) = step { Some(made) } else { None }).last();
        let Some(mut established) = opened else {
            self.fail(&Target::Accept(listener), error);
            return self.free(handshake);
        };
        let parts = std::mem::take(&mut established.parts);
        if let Some(error) = self.failures.of(&parts, number) {
            established.link.set_failed(error);
        }
        self.begin_losing(Arc::clone(&established.link), error, parts);
        let is_full = listener.unaccepted() >= self.setups.most_unaccepted;
        let unwanted = if is_full { Some((established, route)) } else { listener.give((established, route)) };
        match unwanted {
            Some((unwanted, route)) => self.close(route, unwanted.end),
            None => self.peer_left(route, Arc::downgrade(&listener)),
        }
    }

    /// There will be no such connection, and the peer is told why.
    pub(super) fn refuse_setting(&mut self, route: Route, error: Error) {
        let reason = error.message.clone();
        // A session that ends with this fails the connection itself.
        let _ = self.send(route, Message::Refuse { fault: error.fault, reason });
        self.fail_setting(route, error);
    }

    /// There will be no such connection.
    pub(super) fn fail_setting(&mut self, route: Route, error: Error) {
        let removed = self.session(route.session).and_then(|session| session.connections.remove(&route.connection));
        if let Some(Connection::Setup(setting)) = removed {
            self.setting_over(route, setting, error);
        }
    }

    /// Ends what was being set up, and tells whoever waits for it.
    pub(super) fn setting_over(&mut self, route: Route, setting: Setting, error: Error) {
        setting.is_wanted.store(false, Ordering::Relaxed);
        self.setup_ends(route, &setting);
        self.fail(&setting.target, error);
        if let Some(handshake) = setting.handshake {
            self.free(handshake);
        }
    }

    /// Tells whoever waits for a connection that there will be none. `accept` does not wait for this one in particular: there
    /// it is a line, for the connection that it does wait for may come yet.
    pub(super) fn fail(&mut self, target: &Target, error: Error) {
        match target {
            // An error that nobody waits for concerns nobody.
            Target::Connect(pending) => drop(pending.give(Err(error))),
            Target::Accept(listener) if listener.is_open() => {
                let now = self.now_ns();
                let text = format!("a connection that a peer began was not set up, and accept waits on: {error}");
                self.strangers.report(now, Kind::Setup, &text);
            }
            Target::Accept(_) => {}
        }
    }
}
