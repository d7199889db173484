//! One socket of the control protocol, with its session.

use railweave_identity::random;
use railweave_transport::{
    Ended, Frame, PREFACE_BYTES, Preface, ProcessId, Session, SessionAction, SessionConfig, SocketEnd, SocketEndKind,
};
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

/// Bytes that are read in one turn.
const MOST_READ: usize = 64 << 10;

/// Unsent bytes after which a peer counts as one that does not read.
const MOST_UNSENT: usize = 1 << 20;

/// The time for which a socket stays open for its last bytes, in nanoseconds.
const LINGER_NS: u64 = 1_000_000_000;

/// The state of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The kernel connects it.
    Connecting,
    /// The dialler's preface is awaited.
    Preface,
    /// Frames come and go.
    Open,
    /// The last bytes go out, and what still comes is discarded, until then.
    Closing { until_ns: u64 },
    /// There is no socket.
    Closed,
}

/// A socket and its session.
pub(crate) struct Link {
    pub(crate) session: Option<Session>,
    /// The other end of an accepted socket.
    pub(crate) address: SocketAddr,
    config: Arc<SessionConfig>,
    /// The addresses of this host at which the peer may dial it back; `None` for all.
    sources: Option<Vec<IpAddr>>,
    stage: Stage,
    socket: Option<TcpStream>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The end of what the peer sends, once it has been read.
    end: Option<std::io::Result<()>>,
    /// True once a byte has come.
    heard: bool,
    preface_until_ns: u64,
}

/// A turn's news: actions that are left for the caller, and events worth a line.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) actions: Vec<SessionAction>,
    pub(crate) lines: Vec<String>,
}

impl Link {
    /// Takes an accepted socket.
    pub(crate) fn accepted(socket: TcpStream, address: SocketAddr, config: Arc<SessionConfig>, now_ns: u64) -> Self {
        let usable = socket.set_nonblocking(true).is_ok();
        let preface_until_ns = now_ns.saturating_add(config.handshake_ns);
        let (stage, socket) = if usable { (Stage::Preface, Some(socket)) } else { (Stage::Closed, None) };
        Self { preface_until_ns, ..Self::new(None, address, config, stage, socket) }
    }

    /// Has this end dial from one of these addresses, at which the peer will dial it back.
    pub(crate) fn dialling_from(self, sources: Option<&[IpAddr]>) -> Self {
        Self { sources: sources.map(<[IpAddr]>::to_vec), ..self }
    }

    /// Opens a session to a process at these addresses; the default id stands for any process.
    pub(crate) fn open(config: Arc<SessionConfig>, wanted: ProcessId, addresses: Vec<SocketAddr>, now_ns: u64) -> Self {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let session = Session::open(Arc::clone(&config), wanted, addresses, now_ns);
        Self::new(Some(session), nowhere, config, Stage::Closed, None)
    }

    fn new(
        session: Option<Session>,
        address: SocketAddr,
        config: Arc<SessionConfig>,
        stage: Stage,
        socket: Option<TcpStream>,
    ) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        let (end, heard, preface_until_ns) = (None, false, u64::MAX);
        let sources = None;
        Self { session, address, config, sources, stage, socket, input, output, end, heard, preface_until_ns }
    }

    /// Returns true if nothing is left of the socket and the session.
    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Closed && self.session.as_ref().is_none_or(Session::is_over)
    }

    /// Returns the socket and the events to wait for.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let wants_out = self.stage == Stage::Connecting || !self.output.is_empty();
        let out = if wants_out { PollFlags::OUT } else { PollFlags::empty() };
        self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN | out))
    }

    /// Returns when [`Self::turn`] must be called though nothing has come.
    pub(crate) fn timeout_ns(&self) -> Option<u64> {
        let own = match self.stage {
            Stage::Preface => Some(self.preface_until_ns),
            Stage::Closing { until_ns } => Some(until_ns),
            _ => None,
        };
        own.into_iter().chain(self.session.as_ref().and_then(Session::timeout_ns)).min()
    }

    /// Does everything that can be done now.
    pub(crate) fn turn(&mut self, now_ns: u64) -> News {
        let mut news = News::default();
        self.carry_out(now_ns, &mut news);
        match self.stage {
            Stage::Connecting => self.connecting(now_ns),
            Stage::Preface | Stage::Open => self.read(now_ns, &mut news),
            Stage::Closing { until_ns } => self.discard(until_ns, now_ns),
            Stage::Closed => {}
        }
        self.carry_out(now_ns, &mut news);
        if let Some(session) = &mut self.session
            && session.timeout_ns().is_some_and(|at_ns| at_ns <= now_ns)
        {
            session.handle_timeout(now_ns);
        }
        self.carry_out(now_ns, &mut news);
        self.write(now_ns);
        self.carry_out(now_ns, &mut news);
        news
    }

    /// Carries out the session's actions that are about the socket, and leaves the others to the caller.
    fn carry_out(&mut self, now_ns: u64, news: &mut News) {
        while let Some(session) = &mut self.session {
            if let Some(event) = session.poll_event() {
                news.lines.push(event.to_string());
            }
            match session.poll_action() {
                Some(SessionAction::Dial { to, .. }) => self.dial(to, now_ns),
                Some(SessionAction::Send(frame)) => self.output.extend(frame.encode()),
                Some(SessionAction::HangUp { flush }) => self.hang_up(flush, now_ns),
                // It has no connections that could have lost their session.
                Some(SessionAction::Resume(_)) => session.refuse_resume(now_ns),
                Some(action) => news.actions.push(action),
                None => return,
            }
        }
    }

    fn dial(&mut self, address: SocketAddr, now_ns: u64) {
        (self.input, self.output, self.end, self.heard) = (Vec::new(), Vec::new(), None, false);
        let begin = || {
            let kind = Type::STREAM.nonblocking().cloexec();
            let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
            if let Some(source) = other_source(address, self.sources.as_deref()) {
                socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
            }
            match socket.connect(&SockAddr::from(address)) {
                Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
                _ => Ok(TcpStream::from(socket)),
            }
        };
        match begin() {
            Ok(socket) => (self.socket, self.stage) = (Some(socket), Stage::Connecting),
            Err(error) => self.lost(&error, now_ns),
        }
    }

    fn connecting(&mut self, now_ns: u64) {
        let Some(socket) = &self.socket else { return };
        match socket.take_error().and_then(|error| error.map_or(Ok(()), Err)).and_then(|()| socket.peer_addr()) {
            Ok(_) => {
                self.stage = Stage::Open;
                self.output.extend(Preface::Session.encode());
                if let Some(session) = &mut self.session {
                    session.handle_connected(random(), now_ns);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => {}
            Err(error) => self.lost(&error, now_ns),
        }
    }

    fn lost(&mut self, error: &std::io::Error, now_ns: u64) {
        let kind = match error.kind() {
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => SocketEndKind::NoRoute,
            _ => SocketEndKind::Other,
        };
        self.end_socket(kind, error.to_string(), now_ns);
    }

    fn end_socket(&mut self, kind: SocketEndKind, text: String, now_ns: u64) {
        (self.socket, self.stage) = (None, Stage::Closed);
        if let Some(session) = &mut self.session {
            session.handle_lost(SocketEnd { kind, text }, now_ns);
        }
    }

    fn hang_up(&mut self, flush: bool, now_ns: u64) {
        if flush && self.socket.is_some() {
            self.stage = Stage::Closing { until_ns: now_ns.saturating_add(LINGER_NS) };
        } else {
            (self.socket, self.stage) = (None, Stage::Closed);
        }
    }

    /// Reads, and handles frames up to one that has an action for the caller: the session must know what became of that
    /// before it sees the next frame.
    fn read(&mut self, now_ns: u64, news: &mut News) {
        // The rest of one turn is handled by the next ones, before they read more.
        if self.end.is_none() && self.input.len() < MOST_READ {
            self.end = self.fill();
        }
        if self.stage == Stage::Preface {
            self.read_preface(now_ns, news);
        }
        while self.stage == Stage::Open
            && let Some(session) = &mut self.session
        {
            match Frame::decode(&self.input) {
                Ok(Some((frame, length))) => {
                    self.input.drain(..length);
                    session.handle_frame(frame, now_ns);
                }
                Ok(None) => {
                    session.handle_all_read(now_ns);
                    break;
                }
                Err(error) => session.end(Ended::Garbled(error), now_ns),
            }
            self.carry_out(now_ns, news);
            if !news.actions.is_empty() {
                return;
            }
        }
        // The session may have hung up meanwhile.
        if self.socket.is_none() || !matches!(self.stage, Stage::Open | Stage::Preface) {
            return;
        }
        match self.end.take() {
            Some(Ok(())) => {
                let kind = if self.heard { SocketEndKind::Other } else { SocketEndKind::Mute };
                self.end_socket(kind, "the peer closed the connection".to_owned(), now_ns);
            }
            Some(Err(error)) => self.lost(&error, now_ns),
            None => {}
        }
    }

    /// Reads what has come. Returns the end of the socket, if it has ended.
    fn fill(&mut self) -> Option<std::io::Result<()>> {
        let socket = self.socket.as_mut()?;
        let mut chunk = [0; 4096];
        let before = self.input.len();
        while self.input.len() < before + MOST_READ {
            match socket.read(&mut chunk) {
                Ok(0) => return Some(Ok(())),
                Ok(count) => {
                    self.heard = true;
                    self.input.extend_from_slice(&chunk[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    fn read_preface(&mut self, now_ns: u64, news: &mut News) {
        let Some(bytes) = self.input.first_chunk::<PREFACE_BYTES>() else {
            if self.preface_until_ns <= now_ns {
                news.lines.push(format!(
                    "{} connected but did not say who it is within {} s; it was closed",
                    self.address,
                    self.config.handshake_ns / 1_000_000_000
                ));
                self.hang_up(false, now_ns);
            }
            return;
        };
        match Preface::decode(bytes) {
            Ok(Preface::Session) => {
                self.input.drain(..PREFACE_BYTES);
                self.stage = Stage::Open;
                self.session = Some(Session::accept(Arc::clone(&self.config), random(), self.address, now_ns));
                self.carry_out(now_ns, news);
            }
            Ok(Preface::Lane(_)) => {
                news.lines.push(format!("{} dialled a lane, and this is no plugin; it was closed", self.address));
                self.hang_up(false, now_ns);
            }
            Err(error) => {
                news.lines.push(format!("{} is not Railweave: {error}; it was closed", self.address));
                self.hang_up(false, now_ns);
            }
        }
    }

    fn write(&mut self, now_ns: u64) {
        while !self.output.is_empty()
            && let (Some(socket), Stage::Open | Stage::Closing { .. }) = (&mut self.socket, self.stage)
        {
            match socket.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.output.len() <= MOST_UNSENT => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.lost(&error, now_ns),
            }
        }
        if let (Stage::Closing { .. }, true, Some(socket)) = (self.stage, self.output.is_empty(), &self.socket) {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    fn discard(&mut self, until_ns: u64, now_ns: u64) {
        let end = self.fill();
        self.input.clear();
        if end.is_some() || until_ns <= now_ns {
            (self.socket, self.stage) = (None, Stage::Closed);
        }
    }
}

/// Returns the address to dial from, if the kernel's choice is not one of these.
fn other_source(to: SocketAddr, sources: Option<&[IpAddr]>) -> Option<IpAddr> {
    let sources = sources?;
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    // A datagram socket that is connected sends nothing, but has the address from which it would.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let chosen = socket.local_addr().ok()?.ip();
    let of_family = || sources.iter().copied().find(|source| source.is_ipv4() == to.is_ipv4());
    if sources.contains(&chosen) { None } else { of_family() }
}
