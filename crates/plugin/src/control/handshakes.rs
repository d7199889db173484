//! The exchange of handshakes with the set-up thread.

use std::sync::Arc;

use railweave_transport::progress::{Received, Step};
use railweave_transport::{Ended, Error, Message};

use super::connection::{Connection, ConnectionSetup};
use super::control_loop::ControlLoop;
use super::worker::{Done, Task};
use crate::comm::Route;
use crate::network::AnyHandshake;

impl ControlLoop {
    /// Passes a peer's message to its connection's handshake, on the set-up thread if the handshake may block.
    pub(super) fn handshake_message(&mut self, route: Route, message: Message) {
        self.note_setup_step(route);
        let Some(setup) = self.setup(route) else {
            return;
        };
        match setup.progress.handle_message(message) {
            Received::Step(step) => self.take_step(route, step),
            Received::Kept => {}
            Received::TooMany => {
                self.with_session(route.session, |session, now| session.end(Ended::TooManyMessages, now));
            }
        }
    }

    /// Takes a step of a handshake, on the set-up thread if the handshake may block.
    pub(super) fn take_step(&mut self, route: Route, step: Step) {
        let given_ns = self.now_ns();
        let Some(setup) = self.setup(route) else {
            return;
        };
        if !setup.progress.begin(&step, given_ns) {
            self.with_handshake(route, |handshake| step.take(handshake, given_ns));
            return;
        }
        let Some(handshake) = setup.handshake.take() else {
            return;
        };
        // The set-up thread has no earlier step of this handshake.
        setup.last_task = None;
        let (node, is_wanted) = (setup.place.node, Arc::clone(&setup.is_wanted));
        match self.workers.give(Task { number: 0, route, is_wanted, handshake, step, node, given_ns }) {
            Ok(number) => {
                if let Some(setup) = self.setup(route) {
                    setup.last_task = Some(number);
                }
            }
            Err(reason) => self.refuse_setup(route, Error::local(reason)),
        }
    }

    /// Drops `over`, on a freeing thread if its fabric may block.
    pub(super) fn free(&mut self, over: impl Send + 'static) {
        self.workers.free(Box::new(over));
    }

    /// Takes back the handshakes that the set-up thread has finished with.
    pub(super) fn take_handshakes(&mut self) {
        while let Some(Done { number, route, handshake }) = self.workers.take_done() {
            let setup = self.setup(route).filter(|setup| setup.last_task == Some(number));
            let (is_awaited, is_orphan) =
                (setup.is_some(), setup.is_some_and(|setup| setup.progress.orphaned().is_some()));
            if is_orphan {
                self.release_abandoned_task(number);
            }
            match handshake {
                // Its set-up has ended, and its route may already be another connection's.
                over if !is_awaited => {
                    self.release_abandoned_task(number);
                    self.free(over);
                }
                Some(handshake) => self.take_handshake(number, route, handshake),
                None => {
                    if let Some(setup) = self.setup(route) {
                        setup.last_task = None;
                    }
                    let text =
                        "a bug in Railweave ended the set-up of a connection; please report it with the job's log";
                    self.refuse_setup(route, Error::local(text.to_owned()));
                }
            }
            self.failures.forget(self.workers.oldest_task_number());
        }
    }

    fn take_handshake(&mut self, number: u64, route: Route, mut handshake: Box<dyn AnyHandshake>) {
        let failed = self.failures.of(&handshake.parts(), number);
        let now_ns = self.now_ns();
        let Some(setup) = self.setup(route) else {
            return self.free(handshake);
        };
        if let Some(deadline_ns) = setup.progress.come_back(handshake.pause(), now_ns) {
            handshake.set_deadline(deadline_ns);
        }
        setup.handshake = Some(handshake);
        for failure in failed {
            self.leave_out_failed(route, &failure);
        }
        // The peer was waiting for this process.
        self.note_setup_step(route);
        self.with_handshake(route, |_| ());
        while let Some(setup) = self.setup(route)
            && let Some(message) = setup.progress.next_kept()
        {
            self.handshake_message(route, message);
        }
        // Its session has ended, and no message will follow.
        if let Some(error) = self.setup(route).and_then(|setup| setup.progress.orphaned().cloned()) {
            self.fail_setup(route, error);
        }
    }

    pub(super) fn setup(&mut self, route: Route) -> Option<&mut ConnectionSetup> {
        match self.session(route.session)?.connections.get_mut(&route.connection)? {
            Connection::Setup(setup) => Some(setup),
            _ => None,
        }
    }
}
