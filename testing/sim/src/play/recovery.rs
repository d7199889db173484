//! The recovery of rails, as the control thread of a process looks after it: messages over the session, and work on
//! lanes on threads that take their time.

use std::sync::atomic::Ordering;

use railweave_fabric::{Part, Piece};
use railweave_fabric_sim::Opening;
use railweave_transport::{Event, Message, RailNews, Recovers, RecoveryAction};

use super::game::{Game, Side};
use super::rail_work::Recovery;
use super::stage::Stage;
use crate::history::Kind;
use crate::task::Task;
use crate::witness::{Note, Witness};
use crate::{Blow, Seen};

/// The time that a control thread takes to wake up, and between two looks at a recovery that is due.
const WAKE_NS: u64 = 5_000;
const AGAIN_NS: u64 = 20_000;

/// The message of the event of a device that has failed.
const DEVICE_EVENT: &str = "its device has failed";

impl<const O: bool> Game<O> {
    fn recovery(&mut self, side: Side) -> &mut Recovery {
        let pair = &mut self.connections[side.connection];
        if side.sender { &mut pair.sender.recovery } else { &mut pair.receiver.recovery }
    }

    /// Returns true if rails of an end are down, or threads work on them: then nobody polls some of its lanes.
    pub(super) fn is_recovering(&self, side: Side) -> bool {
        let pair = &self.connections[side.connection];
        let recovery = if side.sender { &pair.sender.recovery } else { &pair.receiver.recovery };
        !recovery.works.is_empty() || !recovery.down.is_empty()
    }

    /// Lets the control thread use an end that is up; `None` if it is not.
    pub(super) fn with_recovering<R>(&mut self, side: Side, use_end: impl FnOnce(&mut dyn Recovers) -> R) -> Option<R> {
        let pair = &self.connections[side.connection];
        match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => comm.with_end(|end| use_end(end)),
            (false, _, Stage::Up(comm, _)) => comm.with_end(|end| use_end(end)),
            _ => None,
        }
    }

    /// Wakes up the control thread if a call on an end has asked for it.
    pub(super) fn look_after_recovery(&mut self, side: Side) {
        if self.recovery(side).is_called.swap(false, Ordering::Relaxed) {
            self.schedule_recovery(side, WAKE_NS);
        }
    }

    fn schedule_recovery(&mut self, side: Side, after_ns: u64) {
        let mut state = self.world.lock();
        let at_ns = state.now_ns + after_ns;
        let pair = &mut self.connections[side.connection];
        let recovery = if side.sender { &mut pair.sender.recovery } else { &mut pair.receiver.recovery };
        if recovery.timer_ns.is_none_or(|timer_ns| at_ns < timer_ns) {
            recovery.timer_ns = Some(at_ns);
            state.at(at_ns, Task::Recover { connection: side.connection, sender: side.sender });
        }
    }

    /// Lets the control thread do what an end's recovery has due.
    pub(super) fn handle_recover(&mut self, side: Side) {
        let now_ns = self.now_ns();
        let recovery = self.recovery(side);
        if recovery.timer_ns.is_some_and(|timer_ns| timer_ns <= now_ns) {
            recovery.timer_ns = None;
        }
        self.with_recovering(side, |end| end.recover(now_ns));
        self.carry_recovery(side);
    }

    /// Hands an end a step of its peer.
    pub(super) fn handle_rail_news(&mut self, side: Side, news: RailNews) {
        let now_ns = self.now_ns();
        self.with_recovering(side, |end| end.handle_rail_news(news, now_ns));
        self.carry_recovery(side);
    }

    /// Gives up the rails of an end whose devices are known to have failed.
    pub(super) fn give_up_failed(&mut self, side: Side) {
        for port in self.processes[self.process_of(side)].failed_ports.clone() {
            self.give_up_port(side, port, Piece::Device, DEVICE_EVENT);
        }
        self.look_after_recovery(side);
    }

    /// Carries out the actions of an end's recovery, and schedules its timer.
    pub(super) fn carry_recovery(&mut self, side: Side) {
        while let Some(action) = self.with_recovering(side, |end| end.poll_recovery()).flatten() {
            match action {
                RecoveryAction::Send(message) => {
                    if let Message::Rail(news) = &message {
                        let mut state = self.world.lock();
                        let Witness { watch, counts, .. } = &mut state.observer;
                        watch.connections[side.connection].said(side.sender, news, counts);
                    }
                    self.tell(side, |session, number, _| session.send(number, message));
                }
                RecoveryAction::Work(work) => {
                    let recovery = self.recovery(side);
                    recovery.last_work += 1;
                    let number = recovery.last_work;
                    recovery.works.insert(number, work);
                    let after_ns = self.chance.below(self.faults.work_ns + 1);
                    let Side { connection, sender } = side;
                    self.world.lock().later(after_ns, Task::Work { connection, sender, number });
                }
                RecoveryAction::Free(lanes) => drop(lanes),
                RecoveryAction::Event(event) => self.note_event(side, &event),
                RecoveryAction::Dial(_) | RecoveryAction::Await(_) => unreachable!("no lane is a socket"),
            }
        }
        self.look_after_recovery(side);
        if self.fate(side).is_some_and(|fate| fate.broken().is_some()) {
            let mut state = self.world.lock();
            let now_ns = state.now_ns;
            state.observer.watch.broke(now_ns, side.connection, side.sender);
        }
        let due_ns = self.with_recovering(side, |end| end.recovery_timeout_ns()).flatten();
        if let Some(due_ns) = due_ns {
            let after_ns = due_ns.saturating_sub(self.now_ns()).max(AGAIN_NS);
            self.schedule_recovery(side, after_ns);
        }
    }

    fn note_event(&mut self, side: Side, event: &Event) {
        match event {
            Event::RailDown { rail, .. } => self.recovery(side).down.insert(*rail),
            Event::RailUp { rail, .. } => self.recovery(side).down.remove(*rail),
            _ => {}
        }
        if let Event::RailDown { rail, why, .. } = event {
            let blow = Blow::of(why, DEVICE_EVENT);
            self.count_blow(blow, side.connection, &[side.sender], Some(rail.index() as u8));
        }
        let mut state = self.world.lock();
        let (seen, numbers) = match event {
            Event::RailDown { rail, left, .. } => {
                let now_ns = state.now_ns;
                let watched = &mut state.observer.watch.connections[side.connection];
                watched.went_down(now_ns, side.sender, rail.index() as u8);
                let seen = if left.is_empty() { Seen::AllRailsDown } else { Seen::RailDown };
                (seen, [0, rail.index() as u64, 0, 0])
            }
            Event::RailUp { rail, .. } => {
                let now_ns = state.now_ns;
                let watched = &mut state.observer.watch.connections[side.connection];
                watched.came_up(now_ns, side.sender, rail.index() as u8);
                (Seen::RailUp, [1, rail.index() as u64, 0, 0])
            }
            _ => return,
        };
        state.saw(seen);
        state.record(Kind::Recovery, side.who(), numbers);
        state.observer.history.remark(&event.to_string());
        drop(state);
        if let Event::RailUp { rail, .. } = event {
            self.strike_again(side, rail.index() as u8);
        }
    }

    /// Returns the port of a rail at an end, by the port's number in the world.
    pub(super) fn port_of(&self, side: Side, rail: u8) -> usize {
        let (sending, receiving) = self.connections[side.connection].plan.pairs[usize::from(rail)];
        let port = if side.sender { sending } else { receiving };
        self.processes[self.process_of(side)].domains[usize::from(port)].port()
    }

    /// Lets an end give up a rail that works. Returns false if the end is not up, or does not use the rail.
    pub(super) fn suspect(&mut self, side: Side, rail: u8) -> bool {
        let port = self.port_of(side, rail);
        let gives_up = self.give_up_port(side, port, Piece::Port(1), "it may have failed");
        self.look_after_recovery(side);
        gives_up
    }

    /// Lets an end give up its rails through a port: forever, if its device has failed.
    fn give_up_port(&mut self, side: Side, port: usize, piece: Piece, why: &str) -> bool {
        let part = Part { device: format!("port {port}").into(), piece };
        let message = format!("port {port}: {why}");
        let before = self.down(side);
        let gives_up = self.with_recovering(side, |end| end.handle_part_failed(&part, &message)) == Some(true);
        self.note_given_up(side, before);
        gives_up
    }

    /// Lets a thread do work on a rail.
    pub(super) fn handle_work(&mut self, side: Side, number: u32) {
        let Some(mut work) = self.recovery(side).works.remove(&number) else { return };
        let now_ns = self.now_ns();
        if self.with_recovering(side, |_| ()).is_none() {
            return;
        }
        let rail = work.rail().index();
        let opening = Opening { connection: side.connection, sender: side.sender, next_rail: rail as u8 };
        let before = self.world.lock().opening.replace(opening);
        self.plot.opening_again(self.connections[side.connection].plan.pairs.len(), rail);
        let pause = work.run(now_ns);
        self.world.lock().opening = before;
        match pause {
            Some(pause) => {
                self.recovery(side).works.insert(number, work);
                let after_ns = pause.as_nanos() as u64 + 1;
                let Side { connection, sender } = side;
                self.world.lock().later(after_ns, Task::Work { connection, sender, number });
            }
            None => {
                self.with_recovering(side, |end| end.handle_worked(work, now_ns));
                self.carry_recovery(side);
            }
        }
    }
}
