//! The control thread: one per process, started on first need and joined at the last `finalize`. It accepts, dials,
//! shakes hands, keeps the sessions, and drains closed connections. It touches an open connection's data path only
//! while no call uses the connection: for its debt to the peer (`settling`), and when a rail fails or comes back
//! (`recovery`).
#![allow(clippy::disallowed_types, reason = "service threads and the control thread exchange commands here")]

mod agenda;
mod clock;
mod command;
mod config;
mod connection;
mod connections;
mod connects;
mod control_loop;
mod events;
mod failures;
mod handshakes;
mod hearing;
mod jobs;
mod ladder;
mod lane_socket;
mod lanes;
mod left_connections;
mod left_queue;
mod linger;
mod listening;
mod numa;
mod offers;
mod pending;
mod port;
mod port_lines;
mod publishing;
mod rail_inbox;
mod rail_lines;
mod rail_threads;
mod recovery;
mod repeats;
mod resting_sessions;
mod resuming;
mod session;
mod sessions;
mod settling;
mod setups;
mod signals;
mod strangers;
mod stream;
#[cfg(test)]
mod test_ends;
#[cfg(test)]
mod test_errands;
mod tracing;
mod unclaimed;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use mio::Waker;
use railweave_transport::{Error, Event};

pub(crate) use command::ConnectRequest;
pub(crate) use config::ControlConfig;
pub(crate) use pending::PendingConnect;

use crate::comm::owing::Owing;
use crate::comm::{Comm, ControlHandle, End, Route};
use crate::descriptors;
use crate::forks::ProcessMark;
use crate::listener::Listener;
use crate::log;
use command::{Command, Listeners, lock};
use control_loop::ControlLoop;

/// The control thread, as other threads see it.
pub(crate) struct Control {
    commands: Sender<Command>,
    listeners: Listeners,
    owing: Arc<Owing<Comm>>,
    waker: Arc<Waker>,
    port: u16,
    /// The process that the thread runs in: a forked child has no such thread.
    process: ProcessMark,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Starts the thread; its control port is bound when this returns.
    ///
    /// # Errors
    /// If no port can be bound, or the thread cannot be started.
    pub(crate) fn start(config: ControlConfig) -> Result<Self, Error> {
        let most_files = descriptors::raise_limit();
        let (commands, receiver) = mpsc::channel();
        let listeners = Listeners::default();
        let owing = Arc::new(Owing::new());
        let thread = ControlLoop::new(config, receiver, Arc::clone(&listeners), Arc::clone(&owing), most_files)?;
        let (waker, port) = (thread.waker(), thread.port());
        // The application's signal handlers must run on the application's threads.
        let _blocked = signals::Blocked::all();
        let handle = std::thread::Builder::new()
            .name("railweave-ctl".to_owned())
            .spawn(move || {
                // `check` notices that the thread is gone; calls that wait for it then fail with a message.
                if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
                    log::warn("a bug in Railweave ended the control thread; please report it with the job's log");
                }
            })
            .map_err(|error| Error::local(format!("the control thread cannot be started: {error}")))?;
        let (process, thread) = (ProcessMark::own(), Mutex::new(Some(handle)));
        Ok(Self { commands, listeners, owing, waker, port, process, thread })
    }

    /// Returns the TCP port of the control socket.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn send_command(&self, command: Command) {
        if !self.is_ours() {
            // The contents of the command are the parent's.
            return std::mem::forget(command);
        }
        // After the last finalize there is no receiver: dropping the command closes its connection.
        if self.commands.send(command).is_ok() {
            let _ = self.waker.wake();
        }
    }

    /// Adds a listener: offers with its nonce go to it.
    pub(crate) fn listen(&self, listener: Arc<Listener>) {
        lock(&self.listeners).insert(listener.nonce, listener);
    }

    /// Closes a listener and the connections that were not accepted.
    pub(crate) fn unlisten(&self, nonce: u64) {
        if !self.is_ours() {
            return;
        }
        if let Some(listener) = lock(&self.listeners).remove(&nonce) {
            for (established, route) in listener.close() {
                self.close(route, established.end);
            }
        }
    }

    /// Begins a connection.
    pub(crate) fn connect(&self, request: ConnectRequest) {
        self.send_command(Command::Connect(Box::new(request)));
    }

    /// Reports that a call has failed: the telemetry is written soon, because the process may end.
    pub(crate) fn note_failed_call(&self) {
        self.send_command(Command::Failed);
    }

    /// Stops the thread, and waits for its end: it first drains closed connections and sends debts, for a limited time.
    pub(crate) fn stop(&self) {
        self.send_command(Command::Stop);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl ControlHandle for Control {
    fn is_ours(&self) -> bool {
        self.process == ProcessMark::own()
    }

    fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        match &*lock(&self.thread) {
            Some(thread) if thread.is_finished() => {
                Err(Error::local("the control thread has ended; the lines before this one say why"))
            }
            _ => Ok(()),
        }
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.is_ours() {
            return Ok(());
        }
        Err(Error::protocol("an object of the parent was used after a fork; call init again in the child"))
    }

    fn look_after(&self, comm: Arc<Comm>) {
        if self.is_ours() && self.owing.push(comm) {
            let _ = self.waker.wake();
        }
    }

    fn opened(&self, route: Route, comm: Weak<Comm>) {
        self.send_command(Command::Opened(route, comm));
    }

    fn close(&self, route: Route, end: Box<dyn End>) {
        self.send_command(Command::Close(route, end));
    }

    fn note(&self, route: Route, event: Event) {
        self.send_command(Command::Note(route, event));
    }
}
