//! The exchange of halves between two processes of `railweave topo`: the dialler shows its ports, the listener opens a
//! session of its own and shows its ports and ways, and the dialler its ways. No rail is made.

use super::about::{self, Nonce, SEEN};
use super::half::{Half, Own};
use super::link::{Link, News};
use super::received::Received;
use railweave_fabric::{Fault, Step};
use railweave_transport::{Hello, Message, Offer, ProcessId, SessionAction, SessionConfig, Unreachable, Ways};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The most addresses of a peer in an offer.
const MOST_TARGETS: usize = railweave_transport::MAX_TARGETS;

/// The most times that each session is looked at in one turn.
const TURNS: usize = 4096;

/// The result of an exchange.
pub(crate) enum Outcome {
    /// Both halves are complete: this host's and the peer's.
    Halves(Box<(Half, Half)>),
    /// There is none, for this reason.
    Failed(String),
}

/// An exchange with one peer.
pub(crate) struct Exchange {
    /// True if this end dialled first.
    is_dialler: bool,
    /// The session that this end opened.
    to: Option<Link>,
    /// The session that the peer opened.
    from: Option<Link>,
    /// The port at which this process listens.
    port: u16,
    peer: Option<Hello>,
    received: [Received; 2],
    /// This host's half, with the ways to the peer.
    own: Option<Half>,
    /// The connections of this end's last round that have no answer yet.
    unanswered: Vec<u32>,
    deadline_ns: u64,
    pub(crate) outcome: Option<Outcome>,
    is_reported: bool,
}

impl Exchange {
    /// Begins as the dialler.
    pub(crate) fn dial(
        config: &Arc<SessionConfig>,
        addresses: Vec<SocketAddr>,
        sources: Option<&[IpAddr]>,
        port: u16,
        now_ns: u64,
        limit_ns: u64,
    ) -> Self {
        let link = Link::open(Arc::clone(config), ProcessId::default(), addresses, now_ns).dialling_from(sources);
        // The session has a limit of its own for each of its parts, which says more.
        Self::new(true, Some(link), None, port, now_ns.saturating_add(2 * limit_ns))
    }

    /// Begins as the listener, on the session that a peer has opened.
    pub(crate) fn accepted(from: Link, port: u16, now_ns: u64, limit_ns: u64) -> Self {
        let peer = from.session.as_ref().and_then(|session| session.peer()).cloned();
        Self { peer, ..Self::new(false, None, Some(from), port, now_ns.saturating_add(2 * limit_ns)) }
    }

    fn new(is_dialler: bool, to: Option<Link>, from: Option<Link>, port: u16, deadline_ns: u64) -> Self {
        Self {
            is_dialler,
            to,
            from,
            port,
            peer: None,
            received: Default::default(),
            own: None,
            unanswered: Vec::new(),
            deadline_ns,
            outcome: None,
            is_reported: false,
        }
    }

    /// Returns both sessions, as far as they are there.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.to.iter().chain(&self.from)
    }

    /// Returns the time at which the next turn is due.
    pub(crate) fn timeout_ns(&self) -> u64 {
        self.links().filter_map(Link::timeout_ns).min().unwrap_or(u64::MAX).min(self.deadline_ns)
    }

    /// Returns true if nothing is left to be done.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.is_reported && (self.links().all(Link::is_over) || self.deadline_ns <= now_ns)
    }

    /// Returns the outcome, once.
    pub(crate) fn report(&mut self) -> Option<&Outcome> {
        if self.is_reported {
            return None;
        }
        self.is_reported = self.outcome.is_some();
        self.outcome.as_ref()
    }

    /// Returns true if this is the peer's session back to this end.
    pub(crate) fn expects(&self, process: ProcessId) -> bool {
        self.is_dialler && self.from.is_none() && self.peer.as_ref().is_some_and(|peer| peer.process == process)
    }

    /// Takes the peer's session back to this end.
    pub(crate) fn take_back(&mut self, from: Link) {
        self.from = Some(from);
    }

    /// Returns the peer's name and address.
    pub(crate) fn peer_name(&self) -> String {
        let session = self.links().find_map(|link| link.session.as_ref());
        session.map_or_else(String::new, railweave_transport::Session::peer_name)
    }

    /// Does everything that can be done now. `lines` takes what is worth a line.
    pub(crate) fn turn(&mut self, own: &Own, config: &Arc<SessionConfig>, now_ns: u64, lines: &mut Vec<String>) {
        // An action on one session makes frames for the other, and each turn ends with an action.
        for _ in 0..TURNS {
            let mut is_idle = true;
            for is_to in [true, false] {
                let link = if is_to { &mut self.to } else { &mut self.from };
                let Some(News { actions, lines: news }) = link.as_mut().map(|link| link.turn(now_ns)) else { continue };
                lines.extend(news);
                is_idle &= actions.is_empty();
                for action in actions {
                    if is_to { self.handle_own(action, own, now_ns) } else { self.handle(action, own, config, now_ns) }
                }
            }
            if is_idle {
                break;
            }
        }
        if self.outcome.is_none() && self.deadline_ns <= now_ns {
            let missing = if self.is_dialler && self.from.is_none() {
                format!(
                    "did not dial this host back in time; check that no firewall blocks its connection to this host's \
                     port {}, and that `railweave topo --listen` runs there",
                    self.port
                )
            } else if self.received[1].is_complete() {
                "has shown its ports, but did not say in time that it has seen this host's; run both again".to_owned()
            } else {
                "did not show its ports in time; check that `railweave topo` of the same version runs there".to_owned()
            };
            self.fail(format!("{}: it has said who it is, but {missing}", self.peer_name()));
        }
    }

    fn fail(&mut self, reason: String) {
        if self.outcome.is_none() {
            self.outcome = Some(Outcome::Failed(reason));
        }
    }

    /// Handles an action of the session that this end opened.
    fn handle_own(&mut self, action: SessionAction, own: &Own, now_ns: u64) {
        match action {
            SessionAction::Up => {
                let session = self.to.as_ref().and_then(|link| link.session.as_ref());
                self.peer = session.and_then(|session| session.peer()).cloned();
                if self.is_dialler {
                    self.show(own.half().clone(), 1, &[], now_ns);
                } else {
                    self.show_ways(own, 1, now_ns);
                }
            }
            SessionAction::Unreachable(reason) => self.unreachable(&reason, &own.half().host, now_ns),
            SessionAction::Ended(ended) => {
                let text = format!("{}: the session ended before the exchange was complete: {ended}", self.peer_name());
                self.fail(text);
            }
            SessionAction::Interrupted(connection) => self.with_own(|session| session.failed(connection, now_ns)),
            SessionAction::Message { connection, message: Message::Refuse { reason, .. } } => {
                self.with_own(|session| session.failed(connection, now_ns));
                self.answered(connection, &reason);
            }
            _ => {}
        }
    }

    fn with_own(&mut self, act: impl FnOnce(&mut railweave_transport::Session)) {
        if let Some(session) = self.to.as_mut().and_then(|link| link.session.as_mut()) {
            act(session);
        }
    }

    fn with_theirs(&mut self, act: impl FnOnce(&mut railweave_transport::Session)) {
        if let Some(session) = self.from.as_mut().and_then(|link| link.session.as_mut()) {
            act(session);
        }
    }

    fn answered(&mut self, connection: u32, reason: &str) {
        if reason != SEEN {
            let peer = self.peer_name();
            return self.fail(format!(
                "{peer}: {reason}. Run `railweave topo --listen` there, and give its port: --peer HOST:PORT"
            ));
        }
        self.unanswered.retain(|other| *other != connection);
        if self.unanswered.is_empty() && self.is_dialler && self.received[1].is_complete() {
            self.complete();
        }
    }

    fn unreachable(&mut self, reason: &Unreachable, host: &str, now_ns: u64) {
        if self.is_dialler {
            return self.fail(format!("{reason}; `railweave topo --listen` must run there"));
        }
        let text = format!(
            "{host} cannot open a session back to this host, and NCCL's connections go both ways: {reason}; set \
             RAILWEAVE_CONTROL_PORT on both hosts to a range that the firewall lets through"
        );
        self.refuse_all(0, &text, now_ns);
        let peer = self.peer_name();
        self.fail(format!("{peer} cannot be dialled back, and NCCL's connections go both ways: {reason}"));
    }

    fn refuse_all(&mut self, round: usize, text: &str, now_ns: u64) {
        for connection in self.received[round].connections().to_vec() {
            self.with_theirs(|session| session.refuse(connection, Fault::Configuration, text.to_owned(), now_ns));
        }
    }

    /// Sends the offers of a half, each with its names.
    fn show(&mut self, half: Half, round: u8, targets: &[Ipv6Addr], now_ns: u64) {
        let count = half.offers().count().min(usize::from(u8::MAX));
        let devices = half.devices.len();
        let port = self.port;
        self.unanswered.clear();
        let Some(session) = self.to.as_mut().and_then(|link| link.session.as_mut()) else { return };
        for (number, device) in half.offers().take(count).enumerate() {
            let Some(connection) = session.begin(now_ns) else { return };
            let first_step = if number >= devices { Step::Tcp } else { Step::Subnet };
            let routes = device.ports.iter().flat_map(|port| targets.iter().map(|target| port.route(*target)));
            let offer = Offer {
                nonce: Nonce { round, port, number: number as u8, count: count as u8 }.encode(),
                striped: false,
                traffic_class: None,
                ports: device.ports.iter().map(|port| port.offer).collect(),
                ways: Ways {
                    first_step,
                    others: device.others as u8,
                    targets: targets.to_vec(),
                    routes: routes.collect(),
                },
            };
            session.send(connection, Message::Offer(offer));
            let reason = about::describe(device, half.forwards);
            session.send(connection, Message::Refuse { fault: Fault::Local, of_rails: false, reason });
            self.unanswered.push(connection);
        }
        self.own = Some(half);
    }

    /// Sends the second round: the ways to the addresses that the peer has shown in this one.
    fn show_ways(&mut self, own: &Own, round: usize, now_ns: u64) {
        let Some(peer) = &self.peer else { return };
        let mut targets = self.received[round - 1].half(peer).addresses();
        targets.truncate(MOST_TARGETS);
        let half = own.towards(&targets);
        self.show(half, 2, &targets, now_ns);
    }

    /// Handles an action of the session that the peer opened.
    fn handle(&mut self, action: SessionAction, own: &Own, config: &Arc<SessionConfig>, now_ns: u64) {
        match action {
            SessionAction::Offer { connection, offer } => self.handle_offer(connection, offer, now_ns),
            SessionAction::Message { connection, message: Message::Refuse { reason, .. } } => {
                for round in 0..2 {
                    if !self.received[round].connections().contains(&connection) {
                        continue;
                    }
                    match self.received[round].take_names(connection, &reason) {
                        Ok(Some(nonce)) => self.handle_round(nonce, own, config, now_ns),
                        Ok(None) => {}
                        Err(reason) => self.fail(format!("{}: {reason}", self.peer_name())),
                    }
                }
            }
            SessionAction::Interrupted(connection) => self.with_theirs(|session| session.failed(connection, now_ns)),
            // All of its ports are here; its answer to this end's comes on the other session.
            SessionAction::Ended(_) if self.received[1].is_complete() => {}
            SessionAction::Ended(ended) => {
                let text = format!("{}: the session ended before the exchange was complete: {ended}", self.peer_name());
                self.fail(text);
            }
            _ => {}
        }
    }

    fn handle_offer(&mut self, connection: u32, offer: Offer, now_ns: u64) {
        let nonce = Nonce::decode(offer.nonce);
        let known: usize = self.received.iter().map(|received| received.connections().len()).sum();
        let Some(nonce) = nonce.filter(|_| known < 2 * usize::from(u8::MAX)) else {
            let reason = "this is `railweave topo`, which shows rails and makes none; there is no such listener here";
            return self.with_theirs(|session| session.refuse(connection, Fault::Protocol, reason.to_owned(), now_ns));
        };
        self.with_theirs(|session| session.accept_offer(connection, now_ns));
        self.received[usize::from(nonce.round) - 1].take(connection, nonce, offer);
    }

    /// Handles the last offer of a round.
    fn handle_round(&mut self, nonce: Nonce, own: &Own, config: &Arc<SessionConfig>, now_ns: u64) {
        match (self.is_dialler, nonce.round) {
            (false, 1) if self.to.is_none() => {
                let address = self.from.as_ref().map(|link| link.address.ip().to_canonical());
                let (Some(address), Some(peer)) = (address, &self.peer) else { return };
                let address = SocketAddr::new(address, nonce.port);
                self.to = Some(Link::open(Arc::clone(config), peer.process, vec![address], now_ns));
            }
            (false, 2) if self.own.is_some() => {
                self.refuse_all(0, SEEN, now_ns);
                self.refuse_all(1, SEEN, now_ns);
                self.complete();
            }
            (true, 2) => {
                self.refuse_all(1, SEEN, now_ns);
                self.show_ways(own, 2, now_ns);
            }
            _ => self.fail(format!("{} sent its offers out of turn", self.peer_name())),
        }
    }

    fn complete(&mut self) {
        if let (Some(peer), Some(own), None) = (&self.peer, &self.own, &self.outcome) {
            self.outcome = Some(Outcome::Halves(Box::new((own.clone(), self.received[1].half(peer)))));
        }
    }
}
