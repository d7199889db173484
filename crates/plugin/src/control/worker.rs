//! The set-up worker: a thread beside the control thread for what may block in a fabric, as verbs do for seconds while the
//! kernel looks an address up, or waits for a queue pair's last packets. A handshake goes there with a message and comes
//! back with what it made of it; the end of a connection goes there to be freed.
#![allow(clippy::disallowed_types, reason = "the control thread and its worker talk here")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::Waker;
use railweave_transport::{Error, Message};

use super::connections::Connection;
use super::thread::Thread;
use super::{Route, signals};
use crate::log;
use crate::network::Handshake;

/// What a peer may send while a handshake is away; more than a peer has to say.
const MOST_WAITING: usize = 4;

/// How long the last `finalize` waits for the worker.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);

enum Job {
    Handle { route: Route, handshake: Box<dyn Handshake>, message: Message },
    Free(Box<dyn Send>),
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
            for job in todo {
                let (route, mut handshake, message) = match job {
                    Job::Handle { route, handshake, message } => (route, handshake, message),
                    Job::Free(over) => {
                        drop(over);
                        continue;
                    }
                };
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
        let Some(thread) = self.thread.take() else {
            return;
        };
        let begin = Instant::now();
        while !thread.is_finished() {
            if begin.elapsed() >= PATIENCE {
                let text = "the kernel has not let go of a connection's queue pairs for 5 s; they are left to it. Look at the \
                            kernel log, and at the port's link";
                return log::warn(text);
            }
            std::thread::sleep(LOOK);
        }
        // A panic was caught and told already.
        let _ = thread.join();
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
        let job = Job::Handle { route, handshake, message };
        let worker = match &self.worker {
            Some(worker) => Ok(worker),
            None => Worker::start(self.waker()).map(|worker| &*self.worker.insert(worker)),
        };
        let given =
            worker.map_err(|error| format!("the set-up thread cannot be started: {error}")).and_then(|worker| {
                let jobs = worker.jobs.as_ref().expect("it is dropped with the worker");
                jobs.send(job).map_err(|_| "a bug in Railweave ended the set-up thread; please report it".to_owned())
            });
        if let Err(reason) = given {
            self.fail_setting(route, Error::local(reason));
        }
    }

    /// Drops what is over, at the worker where there is one: then its fabric may block.
    pub(super) fn free(&self, over: impl Send + 'static) {
        if let Some(jobs) = self.worker.as_ref().and_then(|worker| worker.jobs.as_ref()) {
            // Where the worker is gone it is dropped in the attempt.
            let _ = jobs.send(Job::Free(Box::new(over)));
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
                self.free(handshake);
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

    fn setting(&mut self, route: Route) -> Option<&mut super::connections::Setting> {
        match self.session(route.session)?.connections.get_mut(&route.connection)? {
            Connection::Setup(setting) => Some(setting),
            _ => None,
        }
    }
}
