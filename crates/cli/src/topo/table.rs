//! The port at which `railweave topo` listens, and the exchanges in progress.

use super::exchange::{Exchange, Outcome};
use super::half::{Half, Own};
use super::link::Link;
use railweave_options::PortRange;
use railweave_transport::{Session, SessionAction, SessionConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most sockets of peers that have not said who they are.
const MOST_STRANGERS: usize = 64;

/// The most exchanges at once.
const MOST_EXCHANGES: usize = 64;

/// The most lines on strangers in a minute.
const MOST_LINES: usize = 10;

/// Attempts with another port of the kernel's choice, when a port that is free on one address is taken on another.
const TRIES: usize = 16;

/// The longest wait without a look at the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The listening sockets and the exchanges.
pub(crate) struct Table {
    listeners: Vec<TcpListener>,
    /// Their addresses; `None` for all.
    addresses: Option<Vec<IpAddr>>,
    port: u16,
    config: Arc<SessionConfig>,
    limit_ns: u64,
    start: Instant,
    strangers: Vec<Link>,
    exchanges: Vec<Exchange>,
    /// The minute of the last line on strangers, and the number of lines in it.
    said: (u64, usize),
}

impl Table {
    /// Binds the first free port of the range, on these addresses or on all.
    ///
    /// # Errors
    /// If none is free: the port, and the remedy.
    pub(crate) fn bind(
        ports: PortRange,
        addresses: Option<&[IpAddr]>,
        config: SessionConfig,
        limit: Duration,
    ) -> Result<Self, Box<dyn Error>> {
        let (listeners, port) = bind_first(ports, addresses).map_err(|error| {
            format!(
                "port {ports} cannot be bound: {error}; another `railweave topo --listen` or a job may use it: give \
                 another with --port, and the same in --peer HOST:PORT on the other host"
            )
        })?;
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 4);
        Ok(Self {
            listeners,
            addresses: addresses.map(<[IpAddr]>::to_vec),
            port,
            config: Arc::new(config),
            limit_ns,
            start: Instant::now(),
            strangers: Vec::new(),
            exchanges: Vec::new(),
            said: (0, 0),
        })
    }

    /// Returns the port's number.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Serves peers until `on_halves` fails, which is called with this host's half and a peer's.
    ///
    /// # Errors
    /// Those of `on_halves`, and of the sockets that listen.
    pub(crate) fn serve(
        &mut self,
        own: &Own,
        mut on_halves: impl FnMut(&Half, &Half) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        loop {
            self.wait()?;
            self.turn(own, true);
            let mut lines = Vec::new();
            for exchange in &mut self.exchanges {
                match exchange.report() {
                    Some(Outcome::Halves(halves)) => on_halves(&halves.0, &halves.1)?,
                    // A stranger can cause any number of these.
                    Some(Outcome::Failed(reason)) => lines.push(reason.clone()),
                    None => {}
                }
            }
            let now_ns = self.now_ns();
            lines.iter().for_each(|line| self.say(line, now_ns));
        }
    }

    /// Exchanges halves with the process at these addresses. Returns this host's half and the peer's.
    ///
    /// # Errors
    /// If that is not possible: the reason.
    pub(crate) fn meet(&mut self, own: &Own, addresses: Vec<SocketAddr>) -> Result<(Half, Half), Box<dyn Error>> {
        let now_ns = self.now_ns();
        let sources = self.addresses.as_deref();
        self.exchanges.push(Exchange::dial(&self.config, addresses, sources, self.port, now_ns, self.limit_ns));
        loop {
            self.turn(own, false);
            match self.exchanges.last_mut().and_then(Exchange::report) {
                Some(Outcome::Halves(halves)) => return Ok((**halves).clone()),
                Some(Outcome::Failed(reason)) => return Err(reason.clone().into()),
                None => self.wait()?,
            }
        }
    }

    /// Does everything that can be done now.
    fn turn(&mut self, own: &Own, serves: bool) {
        self.accept();
        let now_ns = self.now_ns();
        let mut lines = Vec::new();
        for mut link in std::mem::take(&mut self.strangers) {
            let news = link.turn(now_ns);
            lines.extend(news.lines);
            if news.actions.contains(&SessionAction::Up) {
                self.welcome(link, serves, now_ns);
            } else if !link.is_over() {
                self.strangers.push(link);
            }
        }
        let config = Arc::clone(&self.config);
        self.exchanges.iter_mut().for_each(|exchange| exchange.turn(own, &config, now_ns, &mut lines));
        self.exchanges.retain(|exchange| !exchange.is_over(now_ns));
        lines.iter().for_each(|line| self.say(line, now_ns));
    }

    /// Gives a session that is up to its exchange.
    fn welcome(&mut self, link: Link, serves: bool, now_ns: u64) {
        let Some(process) = link.session.as_ref().and_then(Session::peer).map(|hello| hello.process) else { return };
        if let Some(exchange) = self.exchanges.iter_mut().find(|exchange| exchange.expects(process)) {
            exchange.take_back(link);
        } else if serves {
            // An exchange takes no time, so the oldest of many is stuck.
            if self.exchanges.len() >= MOST_EXCHANGES {
                self.exchanges.remove(0);
            }
            self.exchanges.push(Exchange::accepted(link, self.port, now_ns, self.limit_ns));
        }
    }

    /// Writes a line to standard error, unless there were many.
    fn say(&mut self, line: &str, now_ns: u64) {
        let minute = now_ns / 60_000_000_000;
        self.said = if self.said.0 == minute { (minute, self.said.1 + 1) } else { (minute, 1) };
        match self.said.1 {
            count if count <= MOST_LINES => eprintln!("railweave: {line}"),
            count if count == MOST_LINES + 1 => eprintln!("railweave: more lines of this minute are left out"),
            _ => {}
        }
    }

    /// Waits until something comes, or is due.
    fn wait(&self) -> Result<(), Box<dyn Error>> {
        let now_ns = self.now_ns();
        let links = self.strangers.iter().filter_map(Link::timeout_ns);
        let due_ns = links.chain(self.exchanges.iter().map(Exchange::timeout_ns)).min().unwrap_or(u64::MAX);
        let pause = Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(LONGEST_WAIT);
        let links = self.strangers.iter().chain(self.exchanges.iter().flat_map(Exchange::links));
        let listeners = self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let mut sockets: Vec<PollFd<'_>> = listeners.chain(links.filter_map(Link::poll_fd)).collect();
        let pause = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        match poll(&mut sockets, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(format!("cannot wait for sockets: {error}").into()),
        }
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            while self.strangers.len() < MOST_STRANGERS {
                match listener.accept() {
                    Ok((socket, address)) => {
                        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                        let now_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                        self.strangers.push(Link::accepted(socket, address, Arc::clone(&self.config), now_ns));
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        }
        // With no place for another, the sockets would be ready at once, again and again.
        if self.strangers.len() >= MOST_STRANGERS {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn bind_first(ports: PortRange, addresses: Option<&[IpAddr]>) -> std::io::Result<(Vec<TcpListener>, u16)> {
    let mut last = std::io::Error::from(ErrorKind::AddrInUse);
    for port in ports.first..=ports.last {
        let tries = if port == 0 && addresses.is_some() { TRIES } else { 1 };
        for _ in 0..tries {
            match bind(port, addresses) {
                Ok(bound) => return Ok(bound),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

fn bind(port: u16, addresses: Option<&[IpAddr]>) -> std::io::Result<(Vec<TcpListener>, u16)> {
    let mut number = port;
    let mut one = |address: IpAddr| {
        let listener = TcpListener::bind((address, number))?;
        listener.set_nonblocking(true)?;
        number = listener.local_addr()?.port();
        Ok(listener)
    };
    let listeners = match addresses {
        Some(addresses) => addresses.iter().map(|address| one(*address)).collect::<std::io::Result<Vec<_>>>()?,
        // If the host has IPv6, the socket takes both families: a port in use is not retried for IPv4.
        None => match one(Ipv6Addr::UNSPECIFIED.into()) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => vec![one(Ipv4Addr::UNSPECIFIED.into())?],
            listener => vec![listener?],
        },
    };
    Ok((listeners, number))
}
