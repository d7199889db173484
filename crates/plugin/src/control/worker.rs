//! The set-up worker: a thread beside the control thread for handshakes whose fabric may block, as verbs do for seconds
//! while the kernel looks an address up. A handshake goes there with a message and comes back with what it made of it.
#![allow(clippy::disallowed_types, reason = "the control thread and its worker talk here")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use mio::Waker;
use railweave_transport::{Error, Message};

use super::sessions::Connection;
use super::thread::Thread;
use super::{Route, signals};
use crate::network::Handshake;

/// What a peer may send while a handshake is away; more than a peer has to say.
const MOST_WAITING: usize = 4;

struct Job {
    route: Route,
    handshake: Box<dyn Handshake>,
    message: Message,
}

/// A handshake that is back; None where a bug ended it.
struct Done {
    route: Route,
    handshake: Option<Box<dyn Handshake>>,
}

/// The thread; it ends, and is joined, when this is dropped.
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(waker: Arc<Waker>) -> io::Result<Self> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (back, done) = mpsc::channel();
        let _blocked = signals::Blocked::all();
        let thread = std::thread::Builder::new().name("railweave-setup".to_owned()).spawn(move || {
            for Job { route, mut handshake, message } in todo {
                let handled = catch_unwind(AssertUnwindSafe(|| {
                    handshake.handle_message(message);
                    handshake
                }));
                if back.send(Done { route, handshake: handled.ok() }).is_err() || waker.wake().is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic was caught and told already.
            let _ = thread.join();
        }
    }
}

impl Thread {
    /// Gives a peer's message to its connection's handshake, at the worker where that may block.
    pub(super) fn handshake_message(&mut self, route: Route, message: Message) {
        let Some(setting) = self.setting(route) else {
            return;
        };
        let Some(handshake) = setting.handshake.take_if(|handshake| handshake.may_block()) else {
            if setting.handshake.is_some() {
                self.with_handshake(route, |handshake| handshake.handle_message(message));
            } else if setting.waiting.len() < MOST_WAITING {
                setting.waiting.push_back(message);
            } else {
                self.end_session(route.session, "too many control messages came out of turn");
            }
            return;
        };
        let job = Job { route, handshake, message };
        let worker = match &self.worker {
            Some(worker) => Ok(worker),
            None => Worker::start(self.waker()).map(|worker| &*self.worker.insert(worker)),
        };
        let given = worker.map_err(|error| format!("the set-up thread cannot be started: {error}")).and_then(|worker| {
            let jobs = worker.jobs.as_ref().expect("it is dropped with the worker");
            jobs.send(job).map_err(|_| "a bug in Railweave ended the set-up thread; please report it".to_owned())
        });
        if let Err(reason) = given {
            self.fail_setting(route, Error::local(reason));
        }
    }

    /// Takes back the handshakes that the worker is done with.
    pub(super) fn take_handshakes(&mut self) {
        while let Some(Ok(done)) = self.worker.as_ref().map(|worker| worker.done.try_recv()) {
            let Done { route, handshake } = done;
            let Some(handshake) = handshake else {
                let text = "a bug in Railweave ended the set-up of a connection; please report it with the job's log";
                self.fail_setting(route, Error::local(text.to_owned()));
                continue;
            };
            // Nobody waits for one whose session is over.
            let Some(setting) = self.setting(route) else {
                continue;
            };
            setting.handshake = Some(handshake);
            self.with_handshake(route, |_| ());
            while let Some(setting) = self.setting(route)
                && setting.handshake.is_some()
                && let Some(message) = setting.waiting.pop_front()
            {
                self.handshake_message(route, message);
            }
        }
    }

    fn setting(&mut self, route: Route) -> Option<&mut super::sessions::Setting> {
        match self.session(route.session)?.connections.get_mut(&route.connection)? {
            Connection::Setup(setting) => Some(setting),
            _ => None,
        }
    }
}
