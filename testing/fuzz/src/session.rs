//! Both ends of a session, and between them an adversary who changes, drops, repeats and invents their frames, ends
//! their sockets, lets time pass, and says what becomes of the probes of their rails. The ends of a session that has
//! lost its socket find each other again.
//!
//! Whatever the adversary does: no panic; nothing is sent without a socket; the session reports only events that fit
//! the state of a connection, and its end once; when it has ended, it has reported that to each connection, and open
//! ones are lost; and when its connections are closed and time has passed, each end has ended.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use railweave_fabric::{Fault, RailId};
use railweave_transport::{
    Frame, Hello, Incarnation, LostCause, Message, Offer, PROTOCOL_VERSION, Probe, ProcessId, Prover, RailMessage,
    RailNews, Resume, Session, SessionAction, SessionConfig, Side, SocketEnd, SocketEndKind, Ways,
};

use crate::input::Input;
use crate::peer::port_offer;

const MOST_STEPS: usize = 600;
/// The first byte of steps in which an end says a step of a recovery.
const TELLS: u8 = 0xf0;
const MOST_QUEUED: usize = 64;
const MILLISECOND: u64 = 1_000_000;

const SOCKET_ENDS: [SocketEndKind; 5] = [
    SocketEndKind::Other,
    SocketEndKind::Mute,
    SocketEndKind::NoRoute,
    SocketEndKind::Refused,
    SocketEndKind::NoAnswer,
];

const PROBES: [Probe; 9] = [
    Probe::Unposted,
    Probe::Unseen,
    Probe::Outstanding { by_adapter: true },
    Probe::Outstanding { by_adapter: false },
    Probe::Blocked { by_adapter: true },
    Probe::Blocked { by_adapter: false },
    Probe::CutOff,
    Probe::Carried,
    Probe::Broken,
];

/// A proof that consists of its maker's role and key.
struct Password(u8);

impl Prover for Password {
    fn proof(&self, side: Side, _opener_hello: &[u8], _acceptor_hello: &[u8]) -> [u8; 32] {
        [self.0 * 2 + u8::from(side == Side::Opener); 32]
    }

    fn is_proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8], proof: &[u8; 32]) -> bool {
        self.proof(side, opener_hello, acceptor_hello) == *proof
    }
}

/// The state of a connection, as the session's caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Offered,
    SetUp,
    /// Its session has ended meanwhile.
    Interrupted,
    Open {
        left: bool,
        lost: bool,
    },
    Closed,
}

/// One end, and its caller's knowledge.
struct End {
    session: Session,
    known: BTreeMap<u32, Known>,
    has_socket: bool,
    is_dialling: bool,
    has_ended: bool,
    /// True if lingering connections have sent everything.
    is_drained: bool,
    /// The state of every connection's probe.
    probe: Probe,
    /// The peer's wish to go on with another session.
    resume: Option<Resume>,
}

struct Script {
    now_ns: u64,
    configs: [Arc<SessionConfig>; 2],
    opener: End,
    acceptor: Option<End>,
    /// The acceptor of an earlier socket, if its session may go on.
    old: Option<End>,
    /// Frames in flight: from the opener, from the acceptor.
    wires: [VecDeque<Vec<u8>>; 2],
    nonce: u8,
}

fn config(process: u8, key: Option<u8>) -> Arc<SessionConfig> {
    let hello = Hello {
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        features: if key.is_some() { Hello::KEYED } else { 0 },
        mode: 1,
        fabrics: 1,
        network: 1,
        process: ProcessId([process; 16]),
        wanted: ProcessId::default(),
        nonce: [0; 32],
        pid: 1,
        rank: 0,
        world: 2,
        host: "node".to_owned(),
        build: "fuzz".to_owned(),
        control_port: 7,
    };
    let prover = key.map(|key| Arc::new(Password(key)) as Arc<dyn Prover>);
    Arc::new(SessionConfig::new(hello, prover, 8000 * MILLISECOND, 4000 * MILLISECOND))
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (flags, addresses) = (input.u8(), 1 + input.u8() % 3);
    let key = (flags & 1 != 0).then_some(3);
    let other = if flags & 6 == 6 { key.map(|key| key + 1) } else { key };
    let configs = [config(1, key), config(2, other)];
    let addresses = (0..addresses).map(|last| SocketAddr::from(([10, 0, 0, last], 7)));
    let session = Session::open(Arc::clone(&configs[0]), ProcessId([2; 16]), addresses, 0);
    let mut script = Script {
        now_ns: 0,
        configs,
        opener: End::new(session),
        acceptor: None,
        old: None,
        wires: Default::default(),
        nonce: 0,
    };
    script.drain();
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        script.step(&mut input);
        script.drain();
    }
    script.end();
}

impl End {
    fn new(session: Session) -> Self {
        Self {
            session,
            known: BTreeMap::new(),
            has_socket: false,
            is_dialling: false,
            has_ended: false,
            is_drained: false,
            probe: Probe::Unposted,
            resume: None,
        }
    }

    /// Carries out the session's actions and returns the frames that it sends.
    fn drain(&mut self, now_ns: u64) -> Vec<Frame> {
        let mut sent = Vec::new();
        if let Some(event) = self.session.poll_event() {
            is_sentence(&event.to_string());
        }
        while let Some(action) = self.session.poll_action() {
            match action {
                SessionAction::Dial { .. } => {
                    assert!(!self.has_socket && !self.is_dialling && !self.has_ended, "it dials without a socket");
                    self.is_dialling = true;
                }
                SessionAction::Send(frame) => {
                    assert!(self.has_socket, "sending needs a socket: {frame:?}");
                    sent.push(frame);
                }
                SessionAction::HangUp { .. } => {
                    assert!(self.has_socket || self.is_dialling, "there is a socket to close");
                    (self.has_socket, self.is_dialling) = (false, false);
                }
                SessionAction::Up => assert!(self.has_socket && self.session.is_up()),
                SessionAction::Away(why) => {
                    assert!(!self.has_socket && self.session.is_away(), "it has lost its socket");
                    is_sentence(&why.to_string());
                }
                // It may have ended in the same step.
                SessionAction::StillAway => assert!(!self.has_socket && !self.session.is_up()),
                SessionAction::Back { .. } => assert!(self.has_socket && self.session.is_up()),
                SessionAction::Resume(resume) => self.resume = Some(resume),
                SessionAction::Judge { connection, .. } => {
                    let open = Some(&Known::Open { left: false, lost: false });
                    assert_eq!(self.known.get(&connection), open, "only open connections are judged");
                    self.session.handle_judged(connection, self.probe, now_ns);
                }
                SessionAction::Received { connection, .. } | SessionAction::Rail { connection, .. } => {
                    assert!(matches!(self.known.get(&connection), Some(Known::Open { .. })), "it is open");
                }
                SessionAction::Unreachable(unreachable) => is_sentence(&unreachable.to_string()),
                SessionAction::Ended(why) => {
                    assert!(!std::mem::replace(&mut self.has_ended, true), "a session ends once");
                    assert!(!self.has_socket && !self.is_dialling, "its socket is gone");
                    is_sentence(&why.to_string());
                }
                SessionAction::Offer { connection, .. } => {
                    assert_eq!(self.known.insert(connection, Known::Offered), None, "the number is free");
                }
                SessionAction::Withdrawn(number) => {
                    assert_eq!(self.known.remove(&number), Some(Known::Offered), "only offers are taken back");
                }
                SessionAction::Message { connection, .. } | SessionAction::Waits(connection) => {
                    assert_eq!(self.known.get(&connection), Some(&Known::SetUp), "a handshake is there");
                }
                SessionAction::Interrupted(number) => {
                    assert!(self.has_ended);
                    assert_eq!(self.known.insert(number, Known::Interrupted), Some(Known::SetUp));
                }
                SessionAction::PeerLeft(number) => {
                    let left = self.known.insert(number, Known::Open { left: true, lost: false });
                    assert_eq!(left, Some(Known::Open { left: false, lost: false }), "a peer leaves once");
                }
                SessionAction::Lost { connection, lost } => {
                    is_sentence(&lost.to_string());
                    if matches!(lost.cause, LostCause::Gone(_)) {
                        self.session.peer_is_gone(now_ns);
                    }
                    let before = self.known.insert(connection, Known::Open { left: true, lost: true });
                    assert_eq!(before, Some(Known::Open { left: true, lost: false }), "it is lost once");
                }
                SessionAction::Linger(number) => {
                    assert_eq!(self.known.get(&number), Some(&Known::Closed), "only closed connections linger");
                    self.session.handle_lingered(number, self.is_drained, now_ns);
                }
                SessionAction::Over(number) => {
                    assert_eq!(self.known.remove(&number), Some(Known::Closed), "it is over once");
                }
            }
        }
        sent
    }

    /// Returns the number of the first connection whose state satisfies `is_it`.
    fn find(&self, is_it: impl Fn(Known) -> bool) -> Option<u32> {
        self.known.iter().find(|(_, known)| is_it(**known)).map(|(number, _)| *number)
    }

    fn open(&mut self, number: u32, now_ns: u64) {
        self.known.insert(number, Known::Open { left: false, lost: false });
        assert!(self.session.opened(number, now_ns), "it was being set up");
    }

    /// Ends the set-up of a connection, if there is one: it works, or it fails.
    fn set_up(&mut self, works: bool, now_ns: u64) {
        let Some(number) = self.find(|known| matches!(known, Known::SetUp | Known::Interrupted)) else { return };
        if works {
            self.open(number, now_ns);
        } else {
            self.known.remove(&number);
            self.session.failed(number, now_ns);
        }
    }

    fn close(&mut self, number: u32, now_ns: u64) {
        self.known.insert(number, Known::Closed);
        assert!(self.session.close(number, None, now_ns), "it was open");
    }

    fn lose_socket(&mut self, kind: SocketEndKind, now_ns: u64) {
        if self.has_socket || self.is_dialling {
            (self.has_socket, self.is_dialling) = (false, false);
            self.session.handle_lost(SocketEnd { kind, text: "it ended".to_owned() }, now_ns);
        }
    }
}

fn is_sentence(text: &str) {
    assert!(text.len() > 3 && !text.contains(char::is_control), "{text:?}");
}

impl Script {
    fn end_at(&mut self, which: u8) -> &mut End {
        match (&mut self.acceptor, &mut self.old, which % 3) {
            (Some(acceptor), _, 1) => acceptor,
            (_, Some(old), 2) => old,
            _ => &mut self.opener,
        }
    }

    fn drain(&mut self) {
        if let Some(old) = &mut self.old {
            let sent = old.drain(self.now_ns);
            assert!(sent.is_empty(), "it has no socket: {sent:?}");
        }
        // Each may respond to the other's frames, but nothing arrives by itself.
        let sent =
            [self.opener.drain(self.now_ns), self.acceptor.as_mut().map_or(vec![], |end| end.drain(self.now_ns))];
        for (wire, frames) in self.wires.iter_mut().zip(sent) {
            for frame in frames {
                let bytes = frame.encode();
                assert_eq!(Frame::decode(&bytes), Ok(Some((frame, bytes.len()))), "a sent frame can be read");
                if wire.len() < MOST_QUEUED {
                    wire.push_back(bytes);
                }
            }
        }
        if let Some(resume) = self.acceptor.as_mut().and_then(|acceptor| acceptor.resume.take()) {
            self.resume(&resume);
            self.drain();
        }
    }

    /// Gives the acceptor's socket to the end of the session with which the opener wants to go on.
    fn resume(&mut self, resume: &Resume) {
        let now_ns = self.now_ns;
        let Some(mut newcomer) = self.acceptor.take() else { return };
        let peer = newcomer.session.peer().expect("it is up").clone();
        let may = |old: &End| match old.session.check_resume(resume, &peer) {
            Ok(()) => true,
            Err(fault) => {
                is_sentence(&fault.to_string());
                false
            }
        };
        match self.old.take() {
            Some(mut old) if may(&old) => {
                old.lose_socket(SocketEndKind::Other, now_ns);
                // It may have been about to end.
                if !may(&old) {
                    newcomer.session.refuse_resume(now_ns);
                    (self.acceptor, self.old) = (Some(newcomer), Some(old));
                    return;
                }
                drop(old.drain(now_ns));
                old.has_socket = true;
                old.session.resume(resume, newcomer.session.address(), now_ns);
                newcomer.session.discard();
                assert!(newcomer.session.is_over(), "nothing of it is left");
                self.acceptor = Some(old);
            }
            old => {
                newcomer.session.refuse_resume(now_ns);
                (self.acceptor, self.old) = (Some(newcomer), old);
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let now_ns = self.now_ns;
        let what = input.u8();
        if what >= TELLS {
            return self.tell(what);
        }
        match what % 21 {
            0..=4 => {
                let wire = input.u8() % 2;
                if let Some(bytes) = self.wires[usize::from(wire)].pop_front() {
                    self.arrive(wire, &bytes);
                }
            }
            5 => {
                let (wire, at, value) = (usize::from(input.u8() % 2), usize::from(input.u16()), input.u8());
                if let Some(bytes) = self.wires[wire].front_mut() {
                    let at = at % bytes.len();
                    bytes[at] ^= value;
                }
            }
            6 => {
                let wire = usize::from(input.u8() % 2);
                let first = self.wires[wire].front().cloned();
                self.wires[wire].extend(first.filter(|_| self.wires[wire].len() < MOST_QUEUED));
            }
            7 => drop(self.wires[usize::from(input.u8() % 2)].pop_front()),
            8 => self.invent(input),
            9 => self.connect(),
            10 => self.begin(),
            11 => self.answer(input.u8().is_multiple_of(2)),
            12 | 13 => {
                let (which, works) = (input.u8(), !input.u8().is_multiple_of(4));
                self.end_at(which).set_up(works, now_ns);
            }
            14 => {
                let which = input.u8();
                let end = self.end_at(which);
                if let Some(number) = end.find(|known| matches!(known, Known::Open { .. })) {
                    end.close(number, now_ns);
                }
            }
            15 => {
                let (which, drained) = (input.u8(), input.u8().is_multiple_of(2));
                self.end_at(which).is_drained = drained;
            }
            16 => {
                let (which, kind) = (input.u8(), input.choose(&SOCKET_ENDS));
                self.end_at(which).lose_socket(kind, now_ns);
            }
            17 => {
                let which = input.u8();
                self.end_at(which).session.handle_all_read(now_ns);
            }
            18 => {
                let (which, probe) = (input.u8(), input.choose(&PROBES));
                self.end_at(which).probe = probe;
            }
            _ => self.wait(input.u8()),
        }
    }

    /// Lets an end say a step of a recovery, also while the session is away.
    fn tell(&mut self, what: u8) {
        let end = self.end_at(what);
        if let Some(number) = end.find(|known| matches!(known, Known::Open { .. })) {
            let (rail, incarnation) = (RailId::default(), Incarnation(u16::from(what)));
            let news = RailNews { rail, incarnation, message: RailMessage::Suspect };
            end.session.send(number, Message::Rail(news));
        }
    }

    /// Delivers a frame that nobody sent.
    fn invent(&mut self, input: &mut Input<'_>) {
        let (wire, kind, connection, length) = (input.u8() % 2, input.u8() % 24, input.u8(), input.u8());
        let body = input.take(usize::from(length));
        let header =
            [&(body.len() as u32).to_le_bytes()[..], &[kind, 0, 0, 0], &u32::from(connection % 6).to_le_bytes()];
        self.arrive(wire, &[&header.concat(), body].concat());
    }

    /// Connects the socket that is being dialled; another end takes it.
    fn connect(&mut self) {
        let now_ns = self.now_ns;
        if std::mem::take(&mut self.opener.is_dialling) {
            self.nonce = self.nonce.wrapping_add(1);
            self.opener.has_socket = true;
            self.opener.session.handle_connected([self.nonce; 32], now_ns);
            if let Some(mut before) = self.acceptor.take() {
                before.lose_socket(SocketEndKind::Other, now_ns);
                drop(before.drain(now_ns));
                let over = if before.session.is_away() { self.old.replace(before) } else { Some(before) };
                over.into_iter().for_each(|mut over| over.finish(now_ns));
            }
            let config = Arc::clone(&self.configs[1]);
            let session = Session::accept(config, [!self.nonce; 32], SocketAddr::from(([10, 0, 0, 9], 7)), now_ns);
            self.acceptor = Some(End { has_socket: true, ..End::new(session) });
            self.wires = Default::default();
        }
    }

    /// Begins a connection at the opener, unless it has many.
    fn begin(&mut self) {
        let opener = &mut self.opener;
        let is_up = opener.session.is_up();
        if opener.known.len() < 5
            && let Some(number) = opener.session.begin(self.now_ns)
        {
            assert!(is_up, "a session that is not up begins nothing");
            assert_eq!(opener.known.insert(number, Known::SetUp), None);
            let ports = vec![port_offer(0, 1, 1)];
            let offer = Offer { nonce: 5, striped: false, traffic_class: None, ports, ways: Ways::default() };
            opener.session.send(number, Message::Offer(offer));
        }
    }

    /// Lets the acceptor accept or refuse an offer.
    fn answer(&mut self, accepts: bool) {
        let now_ns = self.now_ns;
        if let Some(acceptor) = &mut self.acceptor
            && let Some(number) = acceptor.find(|known| known == Known::Offered)
        {
            if accepts {
                acceptor.known.insert(number, Known::SetUp);
                acceptor.session.accept_offer(number, now_ns);
            } else {
                acceptor.known.remove(&number);
                acceptor.session.refuse(number, Fault::Protocol, "no".to_owned(), now_ns);
            }
        }
    }

    /// Lets time pass: a little, or up to the next deadline.
    fn wait(&mut self, step: u8) {
        let now_ns = self.now_ns;
        let ends = [Some(&self.opener), self.acceptor.as_ref(), self.old.as_ref()];
        let due = ends.map(|end| end.and_then(|end| end.session.timeout_ns()));
        self.now_ns = match step {
            0..64 => now_ns + u64::from(step) * MILLISECOND,
            64..200 => due.into_iter().flatten().min().unwrap_or(now_ns).max(now_ns),
            _ => now_ns + u64::from(step - 199) * 500 * MILLISECOND,
        };
        for which in 0..3 {
            let now_ns = self.now_ns;
            self.end_at(which).session.handle_timeout(now_ns);
        }
    }

    fn arrive(&mut self, wire: u8, bytes: &[u8]) {
        let now_ns = self.now_ns;
        // Bytes from the opener arrive at the acceptor.
        let end = match (wire, &mut self.acceptor) {
            (0, Some(acceptor)) => acceptor,
            (0, None) => return,
            _ => &mut self.opener,
        };
        if !end.has_socket {
            return;
        }
        match Frame::decode(bytes) {
            Ok(Some((frame, _))) => end.session.handle_frame(frame, now_ns),
            // The session waits for bytes that never come.
            Ok(None) => {}
            Err(error) => end.session.end(error.into(), now_ns),
        }
    }

    fn end(mut self) {
        let now_ns = self.now_ns;
        self.drain();
        for acceptor in self.acceptor.iter_mut().chain(&mut self.old) {
            acceptor.finish(now_ns);
        }
        self.opener.finish(now_ns);
    }
}

impl End {
    /// Asserts that an ended session has reported its end to each of its connections, and that open ones are lost in
    /// time.
    fn assert_told(&mut self, now_ns: u64) {
        let knows = |known| !matches!(known, Known::Offered | Known::SetUp | Known::Open { left: false, .. });
        assert!(self.known.values().copied().all(knows), "{:?} were not told", self.known);
        let later_ns = now_ns + 10_000 * MILLISECOND;
        self.session.handle_timeout(later_ns);
        self.drain(later_ns);
        let knows = |known| !matches!(known, Known::Open { lost: false, .. });
        assert!(self.known.values().copied().all(knows), "{:?} were not lost", self.known);
    }

    /// Closes everything as the caller, and lets time pass: nothing may be left.
    fn finish(&mut self, now_ns: u64) {
        self.drain(now_ns);
        if self.has_ended {
            self.assert_told(now_ns);
        }
        let known: Vec<_> = self.known.iter().map(|(number, known)| (*number, *known)).collect();
        for (number, known) in known {
            match known {
                Known::Offered => {
                    self.known.remove(&number);
                    self.session.refuse(number, Fault::Protocol, "it ends".to_owned(), now_ns);
                }
                Known::SetUp | Known::Interrupted => {
                    self.known.remove(&number);
                    self.session.failed(number, now_ns);
                }
                Known::Open { .. } => self.close(number, now_ns),
                Known::Closed => {}
            }
            self.drain(now_ns);
        }
        let mut now_ns = now_ns;
        for _ in 0..10_000 {
            self.drain(now_ns);
            // Nobody is there to take its dialled socket.
            self.lose_socket(SocketEndKind::Other, now_ns);
            self.drain(now_ns);
            if self.session.is_over() {
                assert!(self.has_ended && self.known.is_empty(), "{:?} are left", self.known);
                return;
            }
            now_ns = self.session.timeout_ns().expect("an end that has not ended has a deadline").max(now_ns);
            self.session.handle_timeout(now_ns);
        }
        panic!("{:?} does not end", self.session);
    }
}
