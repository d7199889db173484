//! The control thread: one per process, started on first need and joined at the last `finalize`. It accepts, dials,
//! shakes hands, keeps the sessions, and sees closed connections off. Of an open connection's data path it touches what
//! is owed to the peer, and only while no call is on it (`settling`).
#![allow(clippy::disallowed_types, reason = "service threads and the control thread talk here")]

mod agenda;
mod connections;
mod events;
mod lanes;
mod left;
mod linger;
mod numa;
mod port;
mod reaching;
mod resting;
mod sessions;
mod settling;
mod setups;
mod signals;
mod strangers;
mod stream;
mod thread;
mod unasked;
mod worker;

use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use railweave_fabric::EventSource;
use railweave_options::PortRange;
use railweave_transport::{Error, Handle, Hello};

use crate::comm::Comm;
use crate::congestion::LaneCongestion;
use crate::descriptors;
use crate::key::Key;
use crate::listener::Listener;
use crate::log;
use crate::network::{End, Established, Network};
use crate::owing::Owing;
use crate::per_process::ProcessMark;
use crate::process::PendingConnect;

/// What the control thread is told at its start.
pub(crate) struct ControlConfig {
    pub(crate) hello: Hello,
    pub(crate) key: Option<Key>,
    pub(crate) ports: PortRange,
    /// The addresses that the control port listens on; None for all.
    pub(crate) listens_on: Option<Vec<IpAddr>>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) congestion: LaneCongestion,
    /// What tells of events of the ports.
    pub(crate) events: Vec<Arc<dyn EventSource>>,
    /// Whether connections are lost when an event says that what they are made of failed.
    pub(crate) return_events: bool,
}

/// Names an open connection to the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The session's token.
    pub(crate) session: usize,
    /// The connection in the numbering of the session's opener.
    pub(crate) connection: u32,
}

/// A connection that was set up, or why there is none.
pub(crate) type Outcome = Result<(Box<Established>, Route), Error>;

/// A connection that is wanted.
pub(crate) struct ConnectRequest {
    pub(crate) handle: Handle,
    /// The addresses to try, in this order.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) device: usize,
    pub(crate) config: railweave_transport::ConnectionConfig,
    pub(crate) result: Arc<PendingConnect>,
}

/// The listeners of this process by their nonce. Shared, so that one is known before its handle leaves `listen`.
pub(crate) type Listeners = Arc<Mutex<HashMap<u64, Arc<Listener>>>>;

/// What service threads ask of the control thread.
pub(crate) enum Command {
    Connect(Box<ConnectRequest>),
    Close(Route, Box<dyn End>),
    Stop,
}

/// A duration as the control thread counts time.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The control thread, seen from outside.
pub(crate) struct Control {
    commands: Sender<Command>,
    listeners: Listeners,
    owing: Arc<Owing<Comm>>,
    waker: Arc<Waker>,
    port: u16,
    /// Whose thread it is: a forked child has none.
    process: ProcessMark,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Starts the thread; its control port is bound when this returns.
    ///
    /// # Errors
    /// When no port can be bound, or the thread cannot be started.
    pub(crate) fn start(config: ControlConfig) -> Result<Self, Error> {
        let most_files = descriptors::raise_limit();
        let (commands, receiver) = mpsc::channel();
        let listeners = Listeners::default();
        let owing = Arc::new(Owing::new());
        let thread = thread::Thread::new(config, receiver, Arc::clone(&listeners), Arc::clone(&owing), most_files)?;
        let (waker, port) = (thread.waker(), thread.port());
        // The application's signals are for the application's threads.
        let _blocked = signals::Blocked::all();
        let handle = std::thread::Builder::new()
            .name("railweave-ctl".to_owned())
            .spawn(move || {
                // Its absence shows in `check`; what was being set up then fails with a sentence.
                if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
                    log::warn("a bug in Railweave ended the control thread; please report it with the job's log");
                }
            })
            .map_err(|error| Error::local(format!("the control thread cannot be started: {error}")))?;
        let (process, thread) = (ProcessMark::own(), Mutex::new(Some(handle)));
        Ok(Self { commands, listeners, owing, waker, port, process, thread })
    }

    /// TCP port of the control socket.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the thread is there to do what it was asked.
    ///
    /// # Errors
    /// When it ended before its time (its last words are in the log), or this is a forked child.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        match &*lock(&self.thread) {
            Some(thread) if thread.is_finished() => {
                Err(Error::local("the control thread has ended; the lines before this one say why"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what belongs to the parent, without a lock that one of the parent's threads may have held.
    ///
    /// # Errors
    /// When this is a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_ours() {
            return Ok(());
        }
        Err(Error::protocol("what the parent made was used after a fork; call init again in the child"))
    }

    /// Whether this is the process that the thread runs in, and not a forked child, which has no such thread and must
    /// not touch what its parent's threads may have held at that moment.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == ProcessMark::own()
    }

    fn tell(&self, command: Command) {
        if !self.is_ours() {
            // What it holds is the parent's.
            return std::mem::forget(command);
        }
        // After the last finalize nobody listens: what is closed then is closed by dropping it.
        if self.commands.send(command).is_ok() {
            let _ = self.waker.wake();
        }
    }

    /// Offers that name the listener's nonce go to it from now on.
    pub(crate) fn listen(&self, listener: Arc<Listener>) {
        lock(&self.listeners).insert(listener.nonce, listener);
    }

    /// Ends a listener, and what nobody accepted from it.
    pub(crate) fn unlisten(&self, nonce: u64) {
        if !self.is_ours() {
            return;
        }
        if let Some(listener) = lock(&self.listeners).remove(&nonce) {
            // What became ready but was never accepted is closed like any other connection.
            for (established, route) in listener.close() {
                self.close(route, established.end);
            }
        }
    }

    /// Begins a connection.
    pub(crate) fn connect(&self, request: ConnectRequest) {
        self.tell(Command::Connect(Box::new(request)));
    }

    /// Looks after what a connection owes while no call is on it.
    pub(crate) fn look_after(&self, comm: Arc<Comm>) {
        if self.is_ours() && self.owing.push(comm) {
            let _ = self.waker.wake();
        }
    }

    /// Takes over a connection that is to be closed.
    pub(crate) fn close(&self, route: Route, end: Box<dyn End>) {
        self.tell(Command::Close(route, end));
    }

    /// Ends the thread, once closed connections are seen off, and waits for it.
    pub(crate) fn stop(&self) {
        self.tell(Command::Stop);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
