//! The exchange of handshakes with the set-up thread.

use std::sync::Arc;

use railweave_transport::{Ended, Error, Message};

use super::clock::nanoseconds;
use super::connection::{Connection, Setting};
use super::control_loop::ControlLoop;
use super::worker::{Done, HandshakeStep, Task};
use crate::comm::Route;
use crate::network::AnyHandshake;

/// Messages that a peer may send while its handshake is at the set-up thread; a correct peer sends fewer.
const MOST_WAITING: usize = 4;

impl ControlLoop {
    /// Passes a peer's message to its connection's handshake, on the set-up thread if the handshake may block.
    pub(super) fn handshake_message(&mut self, route: Route, message: Message) {
        self.setup_goes_on(route);
        let Some(setting) = self.setting(route) else {
            return;
        };
        match &setting.handshake {
            Some(handshake) if handshake.may_block() => self.give_step(route, HandshakeStep::Message(message)),
            Some(_) => {
                self.with_handshake(route, |handshake| handshake.handle_message(message));
            }
            None if setting.waiting.len() < MOST_WAITING => setting.waiting.push_back(message),
            None => {
                self.with_session(route.session, |session, now| session.end(Ended::TooManyMessages, now));
            }
        }
    }

    /// Gives a handshake to the set-up thread.
    pub(super) fn give_step(&mut self, route: Route, step: HandshakeStep) {
        let (given_ns, wait_ns) = (self.now_ns(), self.next_wait_ns());
        let Some(setting) = self.setting(route) else {
            return;
        };
        let Some(handshake) = setting.handshake.take() else {
            return;
        };
        setting.go_on_ns = None;
        setting.is_ready = matches!(step, HandshakeStep::Message(Message::Ready { .. }));
        setting.wait_ns.get_or_insert(wait_ns);
        // The set-up thread has no earlier step of it.
        setting.away = None;
        let (node, is_wanted) = (setting.node, Arc::clone(&setting.is_wanted));
        match self.workers.give(Task { number: 0, route, is_wanted, handshake, step, node, given_ns }) {
            Ok(number) => {
                if let Some(setting) = self.setting(route) {
                    setting.away = Some(number);
                }
            }
            Err(reason) => self.refuse_setting(route, Error::local(reason)),
        }
    }

    /// Drops `over`, on the freeing thread if its fabric may block.
    pub(super) fn free(&mut self, over: impl Send + 'static) {
        self.workers.free(Box::new(over));
    }

    /// Takes back the handshakes that the set-up thread has finished with.
    pub(super) fn take_handshakes(&mut self) {
        while let Some(Done { number, route, handshake }) = self.workers.take_done() {
            let setting = self.setting(route).filter(|setting| setting.away == Some(number));
            let (is_awaited, is_orphan) =
                (setting.is_some(), setting.is_some_and(|setting| setting.orphaned.is_some()));
            if is_orphan {
                self.setup_left_worker(number);
            }
            match handshake {
                // Its set-up has ended, and the number may already be another connection's.
                over if !is_awaited => {
                    self.setup_left_worker(number);
                    self.free(over);
                }
                Some(handshake) => self.take_handshake(number, route, handshake),
                None => {
                    if let Some(setting) = self.setting(route) {
                        setting.away = None;
                    }
                    let text =
                        "a bug in Railweave ended the set-up of a connection; please report it with the job's log";
                    self.refuse_setting(route, Error::local(text.to_owned()));
                }
            }
            self.failures.forget(self.workers.oldest_number());
        }
    }

    fn take_handshake(&mut self, number: u64, route: Route, mut handshake: Box<dyn AnyHandshake>) {
        let failed = self.failures.of(&handshake.parts(), number);
        let (now_ns, deadline_ns) = (self.now_ns(), self.deadline_ns());
        let Some(setting) = self.setting(route) else {
            return self.free(handshake);
        };
        match handshake.pause() {
            Some(pause) => setting.go_on_ns = Some(now_ns.saturating_add(nanoseconds(pause))),
            None => {
                // The peer's time begins now.
                handshake.set_deadline(deadline_ns);
                setting.wait_ns = None;
            }
        }
        setting.handshake = Some(handshake);
        if let Some(error) = failed {
            return self.refuse_setting(route, error);
        }
        // The peer was waiting for this process.
        self.setup_goes_on(route);
        self.with_handshake(route, |_| ());
        while let Some(setting) = self.setting(route)
            && setting.handshake.is_some()
            && let Some(message) = setting.waiting.pop_front()
        {
            self.handshake_message(route, message);
        }
        // Its session has ended, and no message will follow.
        if let Some(error) = self.setting(route).and_then(|setting| setting.orphaned.clone()) {
            self.fail_setting(route, error);
        }
    }

    pub(super) fn setting(&mut self, route: Route) -> Option<&mut Setting> {
        match self.session(route.session)?.connections.get_mut(&route.connection)? {
            Connection::Setup(setting) => Some(setting),
            _ => None,
        }
    }
}
