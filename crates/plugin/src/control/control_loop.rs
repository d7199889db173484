//! The thread's loop: sockets, commands and deadlines, each passed to its handler.
#![allow(clippy::disallowed_types, reason = "this is the control thread")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token as PollToken, Waker};
use railweave_fabric::EventSource;
use railweave_identity::Key;
use railweave_transport::{Error, Hello, ProcessId, Prover, SessionConfig, SessionId, Token};

use super::agenda::Agenda;
use super::clock::nanoseconds;
use super::command::{Command, Listeners};
use super::config::ControlConfig;
use super::failures::{Failures, MakingFailures};
use super::hearing::Listening;
use super::lane_socket::{Inbound, LaneDial, LaneRedial};
use super::left_queue::LeftQueue;
use super::pending::UnclaimedConnect;
use super::port::ControlPort;
use super::port_lines::PortLines;
use super::rail_inbox::Called;
use super::rail_lines::RailLines;
use super::resting_sessions::RestingSessions;
use super::session::{Closing, LAST_NS, Session};
use super::settling::Settling;
use super::setups::ProcessSetups;
use super::strangers::{Kind, Strangers};
use super::tracing::Tracing;
use super::worker::Workers;
use crate::comm::owing::Owing;
use crate::comm::{Comm, Route};
use crate::congestion::LaneCongestion;
use crate::descriptors;
use crate::log;
use crate::publish::Publish;

const WAKER: PollToken = PollToken(0);
const LISTENER: PollToken = PollToken(1);
const FIRST: usize = 2;

/// Queues keep room for this many entries when they shrink.
const FEW_ENTRIES: usize = 32;

/// The limit of newcomers, which are accepted sockets on which no connection has begun. It is at most a quarter of all
/// descriptors, because the application needs descriptors too.
const MOST_NEWCOMERS: usize = 4096;

/// The time that a newcomer has for its next step while others wait for its place. A welcome peer needs less.
const NEWCOMER_GRACE_NS: u64 = 100_000_000;

/// Sockets accepted in one turn.
const MOST_ACCEPTED_AT_ONCE: usize = 64;

/// An entry that waits for its socket or for its deadline.
pub(super) enum Entry {
    /// An accepted socket that has not said what it is.
    Inbound(Inbound),
    /// A session: being opened, up, or ended while connections of it are left.
    Session(Box<Session>),
    /// A lane that this side dials.
    LaneDial(LaneDial),
    /// A lane that will be dialled again.
    LaneRedial(LaneRedial),
    /// The socket of a session that has ended.
    Closing(Closing),
}

impl Entry {
    /// Returns the time at which it has something to do without an event.
    fn deadline_ns(&self) -> Option<u64> {
        match self {
            Self::Inbound(inbound) => Some(inbound.deadline_ns),
            Self::LaneDial(dial) => Some(dial.deadline_ns),
            Self::LaneRedial(redial) => Some(redial.at_ns),
            Self::Closing(closing) => Some(closing.deadline_ns()),
            Self::Session(session) => session.next_deadline(),
        }
    }

    /// Returns the time of the dialler's last step, while no connection has begun on the socket. For a session that
    /// makes room last, [`LAST_NS`] is added.
    fn newcomer_since_ns(&self) -> Option<u64> {
        match self {
            Self::Inbound(inbound) => Some(inbound.accepted_ns),
            Self::LaneDial(_) | Self::LaneRedial(_) => None,
            Self::Closing(closing) => Some(closing.since_ns()),
            Self::Session(session) => session.newcomer_since_ns(),
        }
    }
}

/// The pause before accepting again after the kernel refused, and while there is no place.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;
const PLACE_AGAIN_NS: u64 = 5_000_000;

/// The time for which an ending thread waits for its peers. What it has sent by then is with their kernels or adapters,
/// unless they are away.
const STOPPING_NS: u64 = 900_000_000;

/// The interval at which an ending thread checks that all debts are sent.
const SETTLED_AGAIN_NS: u64 = 1_000_000;

// tidy: ControlLoop's methods call each other across files: each file has the handlers of one kind of event, and an
// event of one kind, such as a session's end, has effects on the others.
/// The thread's state.
pub(super) struct ControlLoop {
    poll: Poll,
    waker: Arc<Waker>,
    commands: Receiver<Command>,
    listener: ControlPort,
    epoch: Instant,
    next_token: usize,
    /// The time by which the thread ends, once it has been told to stop.
    stop_by_ns: Option<u64>,
    /// The time to accept: at once if sockets wait; later if the kernel refused or all places are taken, because no
    /// event tells when to retry.
    accept_ns: Option<u64>,
    pub(super) handshake_timeout: Duration,
    pub(super) congestion: LaneCongestion,
    /// The configuration of all sessions.
    pub(super) sessions: Arc<SessionConfig>,
    pub(super) key: Option<Key>,
    /// A tree gives back the memory of entries that are gone. A `HashMap` would have to be shrunk, and its capacity
    /// does not count the places that removed entries leave behind.
    pub(super) entries: BTreeMap<usize, Entry>,
    /// The entries that may have changed since their places in `deadlines` and `newcomers` were updated.
    touched: Vec<usize>,
    /// The time at which each entry has something to do.
    deadlines: Agenda<usize>,
    /// The accepted sockets on which no connection has begun, by the time of their last step.
    newcomers: Agenda<usize>,
    most_newcomers: usize,
    /// Sessions with unread input.
    resting_sessions: RestingSessions,
    pub(super) listeners: Listeners,
    /// The sessions to the processes that this one connects to.
    pub(super) sessions_by_process: HashMap<ProcessId, usize>,
    /// The sessions that peers have opened, by their names.
    pub(super) sessions_by_id: HashMap<SessionId, usize>,
    /// Connections that await lanes, by their token.
    pub(super) lane_routes: HashMap<Token, Route>,
    /// The number of closed connections that linger.
    pub(super) lingering_connections: usize,
    pub(super) setups: ProcessSetups,
    pub(super) strangers: Strangers,
    /// The event sources, by their poll tokens.
    pub(super) port_events: HashMap<usize, Arc<dyn EventSource>>,
    /// The event sources that may have more events.
    pub(super) more_events: Vec<usize>,
    /// The times to ask the sources again that could not find out what has happened.
    pub(super) sources_behind: Agenda<usize>,
    pub(super) return_events: bool,
    /// True if connections go on without rails that fail.
    pub(super) recovers: bool,
    pub(super) log_lanes: bool,
    pub(super) listening: Listening,
    pub(super) port_lines: PortLines,
    pub(super) rail_lines: RailLines,
    pub(super) failures: Failures,
    pub(super) making_failures: MakingFailures,
    /// In the order of their times.
    pub(super) unclaimed_connects: VecDeque<UnclaimedConnect>,
    pub(super) left_queue: LeftQueue,
    pub(super) settling: Settling,
    pub(super) workers: Workers,
    /// The connections whose calls have found that a rail failed.
    pub(super) called: Arc<Called>,
    /// The times at which the recovery of connections has something to do.
    pub(super) recoveries: Agenda<Route>,
    /// The telemetry and the policy files; `None` if the user wants none.
    pub(super) publish: Option<Publish>,
    /// The trace; `None` if the process is not traced.
    pub(super) tracing: Option<Tracing>,
}

impl ControlLoop {
    pub(super) fn new(
        config: ControlConfig,
        commands: Receiver<Command>,
        listeners: Listeners,
        owing: Arc<Owing<Comm>>,
        most_files: u64,
    ) -> Result<Self, Error> {
        let local = |what: &str, error: io::Error| Error::local(format!("the control thread cannot {what}: {error}"));
        let poll = Poll::new().map_err(|error| local("poll sockets", error))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(|error| local("be woken", error))?;
        let mut listener = ControlPort::bind(config.ports, config.listens_on.as_deref())?;
        listener.register(poll.registry(), LISTENER).map_err(|error| local("watch its port", error))?;
        let mut port_events = HashMap::new();
        let mut next_token = FIRST;
        for source in config.events {
            poll.registry()
                .register(&mut SourceFd(&source.descriptor()), PollToken(next_token), Interest::READABLE)
                .map_err(|error| local("watch a port's events", error))?;
            port_events.insert(next_token, source);
            next_token += 1;
        }
        // The trace names the time at which the clock of sessions began.
        let epoch = config.tracer.as_ref().map_or_else(Instant::now, |tracer| tracer.epoch);
        let waker = Arc::new(waker);
        let workers = Workers::new(epoch, config.handshake_timeout, Arc::clone(&waker));
        let waker_of_calls = Arc::clone(&waker);
        let setups = ProcessSetups::new(most_files);
        let prover = config.key.clone().map(|key| Arc::new(key) as Arc<dyn Prover>);
        let (handshake_ns, peer_ns) = (nanoseconds(config.handshake_timeout), nanoseconds(config.peer_timeout));
        let hello = Hello { control_port: listener.number_for_checks(&config.own), ..config.hello };
        let mut sessions = SessionConfig::new(hello, prover, handshake_ns, peer_ns);
        sessions.own = config.own;
        Ok(Self {
            poll,
            waker,
            commands,
            listener,
            epoch,
            next_token,
            stop_by_ns: None,
            accept_ns: None,
            handshake_timeout: config.handshake_timeout,
            congestion: config.congestion,
            sessions: Arc::new(sessions),
            key: config.key,
            entries: BTreeMap::new(),
            touched: Vec::new(),
            deadlines: Agenda::default(),
            newcomers: Agenda::default(),
            most_newcomers: usize::try_from(most_files / 4).unwrap_or(usize::MAX).clamp(1, MOST_NEWCOMERS),
            resting_sessions: RestingSessions::default(),
            listeners,
            sessions_by_process: HashMap::new(),
            sessions_by_id: HashMap::new(),
            lane_routes: HashMap::new(),
            lingering_connections: 0,
            left_queue: LeftQueue::new(setups.most_unaccepted),
            setups,
            strangers: Strangers::default(),
            port_events,
            more_events: Vec::new(),
            sources_behind: Agenda::default(),
            return_events: config.return_events,
            recovers: config.recovers,
            log_lanes: config.log_lanes,
            port_lines: PortLines::default(),
            rail_lines: RailLines::default(),
            listening: Listening::new(if config.recovers { nanoseconds(config.rail_timeout) } else { 0 }),
            failures: Failures::default(),
            making_failures: MakingFailures::default(),
            unclaimed_connects: VecDeque::new(),
            settling: Settling::new(owing),
            called: Called::new(Arc::clone(&waker_of_calls)),
            recoveries: Agenda::default(),
            workers,
            publish: config.publish.map(Publish::new),
            tracing: config.tracer.map(Tracing::new),
        })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    pub(super) fn port(&self) -> u16 {
        self.listener.number()
    }

    pub(super) fn now_ns(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        self.now_ns().saturating_add(nanoseconds(self.handshake_timeout))
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    pub(super) fn fresh_token(&mut self) -> usize {
        self.next_token += 1;
        self.next_token - 1
    }

    /// Runs until [`Command::Stop`], and then until connections are drained and debts sent, or the time for that has
    /// passed. Ends earlier if a turn fails.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while self.turn(&mut events) {
            let is_over = (self.lingering_connections == 0) && !self.settling.owes();
            if self.stop_by_ns.is_some_and(|until| is_over || self.now_ns() >= until) {
                self.end_publishing();
                return self.free_connections();
            }
        }
    }

    /// Waits for something to do, and does it. Returns false if the poll fails, or all senders of commands are gone.
    fn turn(&mut self, events: &mut Events) -> bool {
        let timeout = self.next_deadline().map(|at| Duration::from_nanos(at.saturating_sub(self.now_ns())));
        match self.settling.wait(&mut self.poll, events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(error) => {
                log::warn(&format!("the control thread ends, and no further connection can be made: poll: {error}"));
                return false;
            }
        }
        for token in std::mem::take(&mut self.more_events) {
            self.take_events(token);
        }
        for event in &*events {
            match event.token() {
                WAKER => {}
                // Sockets are accepted once, later in this turn, so that closed sockets are seen before others are
                // accepted.
                LISTENER => self.accept_ns = Some(0),
                PollToken(token) if self.port_events.contains_key(&token) => self.take_events(token),
                PollToken(token) => self.handle_ready(token),
            }
        }
        self.ask_sources_behind();
        self.read_resting_sessions();
        if !self.take_commands() {
            return false;
        }
        self.take_handshakes();
        self.look_after_rails();
        self.listen_to_peers();
        self.sum_up_rails();
        self.sum_up_ports();
        self.handle_deadlines();
        self.begin_waiting_setups();
        self.look_at_telemetry();
        self.trace_clocks();
        self.update_touched_entries();
        self.shrink_unclaimed_connects();
        true
    }

    /// Settles debts that are due. Called between the steps of every loop that may be long, so that debts do not wait.
    pub(super) fn look_at_debts(&mut self) {
        self.settling.look(Instant::now());
    }

    /// Takes the commands of service threads. Returns false if all senders are gone.
    fn take_commands(&mut self) -> bool {
        loop {
            self.look_at_debts();
            match self.commands.try_recv() {
                Ok(Command::Connect(request)) => self.connect(*request),
                Ok(Command::Opened(route, comm)) => self.handle_opened(route, comm),
                Ok(Command::Close(route, end)) => self.close(route, end),
                Ok(Command::Note(route, event)) => self.note_reported(route, &event),
                Ok(Command::Failed) => self.publish_soon(),
                Ok(Command::Stop) => self.stop_by_ns = Some(self.now_ns() + STOPPING_NS),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Accepts up to [`MOST_ACCEPTED_AT_ONCE`] waiting sockets.
    fn accept_sockets(&mut self) {
        for _ in 0..MOST_ACCEPTED_AT_ONCE {
            self.look_at_debts();
            if !self.has_newcomer_place() {
                // The others wait in the kernel meanwhile.
                self.accept_ns = Some(self.now_ns() + PLACE_AGAIN_NS);
                return;
            }
            match self.listener.accept() {
                Ok((socket, address)) => self.accept_socket(socket, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer has already closed it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A newcomer has given up its descriptor.
                Err(error) if descriptors::is_short(&error) && self.close_oldest_newcomer() => {}
                Err(error) => {
                    let now = self.now_ns();
                    let text = format!("a connection cannot be accepted: {error}{}", descriptors::hint(&error));
                    self.strangers.report(now, Kind::Accept, &text);
                    self.accept_ns = Some(now + ACCEPT_AGAIN_NS);
                    return;
                }
            }
        }
        // The kernel does not report the rest again.
        self.accept_ns = Some(self.now_ns());
    }

    /// Returns true if another socket may be accepted. Makes room if there is none.
    fn has_newcomer_place(&mut self) -> bool {
        if self.newcomers.len() < self.most_newcomers {
            return true;
        }
        // Some may have ceased to be newcomers.
        self.update_touched_entries();
        self.newcomers.len() < self.most_newcomers || self.close_oldest_newcomer()
    }

    /// Closes the newcomer whose last step is oldest, unless even that step is recent. Returns true if it closed one.
    fn close_oldest_newcomer(&mut self) -> bool {
        // A socket that has just taken a step must not be closed because of the age of its previous step.
        self.update_touched_entries();
        let now = self.now_ns();
        let Some((_, token)) =
            self.newcomers.first().filter(|(since_ns, _)| since_ns % LAST_NS + NEWCOMER_GRACE_NS <= now)
        else {
            return false;
        };
        let others = self.newcomers.len() - 1;
        self.newcomers.set(token, None);
        self.touch(token);
        match self.entries.remove(&token) {
            Some(Entry::Inbound(inbound)) => self.close_inbound_for_others(inbound, others),
            Some(session @ Entry::Session(_)) => {
                self.entries.insert(token, session);
                self.close_session_for_others(token, others);
            }
            _ => {}
        }
        true
    }

    /// Marks an entry as new, changed or gone: its deadline and its place among newcomers are updated before the thread
    /// waits.
    pub(super) fn touch(&mut self, token: usize) {
        if self.touched.last() != Some(&token) {
            self.touched.push(token);
        }
    }

    /// Updates the deadline of each touched entry, and its place among newcomers.
    fn update_touched_entries(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for token in touched.drain(..) {
            let entry = self.entries.get(&token);
            self.deadlines.set(token, entry.and_then(Entry::deadline_ns));
            self.newcomers.set(token, entry.and_then(Entry::newcomer_since_ns));
        }
        touched.shrink_to(FEW_ENTRIES);
        self.touched = touched;
    }

    /// Counts a socket that was just accepted.
    pub(super) fn add_newcomer(&mut self, token: usize, now_ns: u64) {
        self.newcomers.set(token, Some(now_ns));
        self.touch(token);
    }

    /// Lets a session rest that has more input than is read at once.
    pub(super) fn rest_session(&mut self, token: usize) {
        self.resting_sessions.add(token, self.now_ns());
    }

    /// Reads on from resting sessions.
    fn read_resting_sessions(&mut self) {
        let Some(mut round) = self.resting_sessions.begin(self.now_ns()) else {
            return;
        };
        while let Some(token) = self.resting_sessions.next(&mut round, self.now_ns()) {
            if let Some(session) = self.session(token) {
                session.is_resting = false;
                self.handle_ready(token);
            }
        }
        self.resting_sessions.end(&round, self.now_ns());
    }

    pub(super) fn handle_ready(&mut self, token: usize) {
        self.look_at_debts();
        self.touch(token);
        // Removed while it is handled, so that its handler may borrow everything else.
        match self.entries.remove(&token) {
            None => {}
            Some(Entry::Inbound(inbound)) => self.handle_inbound(token, inbound),
            Some(Entry::LaneDial(dial)) => self.handle_lane_dial(token, dial),
            // The event is of the closed socket, not of the next one.
            Some(redial @ Entry::LaneRedial(_)) => {
                self.entries.insert(token, redial);
            }
            Some(Entry::Closing(closing)) => self.handle_closing(token, closing),
            Some(session @ Entry::Session(_)) => {
                self.entries.insert(token, session);
                self.handle_session(token);
            }
        }
    }

    /// Shrinks the queue after a burst of connects.
    fn shrink_unclaimed_connects(&mut self) {
        let (length, capacity) = (self.unclaimed_connects.len(), self.unclaimed_connects.capacity());
        if capacity > FEW_ENTRIES && length < capacity / 8 {
            self.unclaimed_connects.shrink_to(length * 2);
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let entries = self.deadlines.first().map(|(at, _)| at);
        let unclaimed = self.unclaimed_connects.front().map(|connect| connect.next_ns);
        let again = self.accept_ns.into_iter().chain(self.resting_sessions.again_ns).chain(self.setups.again_ns);
        let settling = self.stop_by_ns.filter(|_| self.settling.owes()).map(|_| self.now_ns() + SETTLED_AGAIN_NS);
        let stopping = self.stop_by_ns.into_iter().chain(settling);
        let again = again.chain((!self.more_events.is_empty()).then_some(0));
        let again = again.chain(self.sources_behind.first().map(|(at, _)| at));
        let unclaimed = unclaimed.into_iter().chain(self.left_queue.next_ns());
        let again = again.chain(self.recoveries.first().map(|(at, _)| at)).chain(self.workers.next_rail_ns());
        let again =
            again.chain(self.listening.due_ns()).chain(self.rail_lines.next_ns()).chain(self.port_lines.next_ns());
        let again = again.chain(self.publish.as_ref().map(Publish::next_ns));
        unclaimed.chain(entries).chain(stopping).chain(again).min()
    }

    fn handle_deadlines(&mut self) {
        let now = self.now_ns();
        self.close_unclaimed_connects(now);
        self.close_left_connections(now);
        if self.accept_ns.is_some_and(|at| at <= now) {
            self.accept_ns = None;
            self.accept_sockets();
        }
        // Entries touched above may have another deadline.
        self.update_touched_entries();
        while let Some((_, token)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.look_at_debts();
            self.deadlines.set(token, None);
            self.touch(token);
            match self.entries.remove(&token) {
                None => {}
                Some(Entry::Inbound(inbound)) => self.handle_inbound_timeout(inbound),
                Some(Entry::LaneDial(dial)) => self.handle_lane_timeout(token, dial),
                Some(Entry::LaneRedial(redial)) => self.redial_lane(redial),
                // The time for its output has passed.
                Some(Entry::Closing(_)) => {}
                Some(session @ Entry::Session(_)) => {
                    self.entries.insert(token, session);
                    self.handle_session_deadline(token, now);
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpStream};
    use std::sync::mpsc;

    use railweave_identity::hello;
    use railweave_options::Options;

    use super::*;

    pub(in crate::control) fn config() -> ControlConfig {
        let (options, _) = Options::parse(|_| None).expect("the defaults are allowed");
        ControlConfig {
            hello: hello(1, 1, false),
            key: None,
            ports: options.control_port.value,
            listens_on: Some(vec![Ipv4Addr::LOCALHOST.into()]),
            own: Vec::new(),
            handshake_timeout: Duration::from_secs(60),
            peer_timeout: Duration::from_secs(60),
            recovers: true,
            rail_timeout: Duration::from_millis(500),
            congestion: LaneCongestion::new(&options.tcp_congestion).expect("the default is there"),
            events: Vec::new(),
            return_events: true,
            publish: None,
            tracer: None,
            log_lanes: false,
        }
    }

    #[test]
    fn no_more_than_64_sockets_are_accepted_in_one_turn() {
        let (_commands, receiver) = mpsc::channel();
        let mut thread = ControlLoop::new(config(), receiver, Listeners::default(), Arc::new(Owing::new()), 4096)
            .expect("a thread can be made");
        // Fewer than fit into the shortest default accept queue of Linux (128, net.core.somaxconn).
        let dialled: Vec<_> = (0..100)
            .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, thread.port())).expect("the port listens"))
            .collect();
        let mut events = Events::with_capacity(256);
        let mut accepted = Vec::new();
        while thread.entries.len() < dialled.len() {
            let before = thread.entries.len();
            assert!(thread.turn(&mut events));
            accepted.push(thread.entries.len() - before);
        }
        assert_eq!(accepted.iter().max(), Some(&MOST_ACCEPTED_AT_ONCE), "{accepted:?}");
    }
}
