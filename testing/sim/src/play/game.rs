//! The game of one seed: it gives turns, ends connections, and notices when something is stuck.

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use railweave_fabric::RailSet;
use railweave_fabric_sim::Chance;
use railweave_transport::{Acceptor, Connector, Error, RecvConnection, SendConnection};

use super::comm::Threads;
use super::context::{Context, Step};
use super::injection::Injection;
use super::memory::SharedBuffers;
use super::net::Net;
use super::plan::{ConnectionPlan, Plan};
use super::rail_work::Recovery;
use super::receiver::RecvApp;
use super::sender::SendApp;
use super::sessions::Sessions;
use super::stage::Stage;
use crate::faults::{DeathKind, Faults};
use crate::history::{Kind, Who};
use crate::sabotage::Plot;
use crate::task::Task;
use crate::watch::{Connection as Watched, Strike};
use crate::witness::{Note, SimDomain, Witness, World};
use crate::{Checker, Seen};

/// The time without any movement, and with no write on its way, after which an unharmed connection is stuck.
const STUCK_NS: u64 = 60_000_000;

/// The most silences of one end's application, so that a seed does not take too long.
const MOST_SILENCES: u32 = 2;

/// The time for which an application looks for the data of a receive that it took early, once that may never come.
const LOOKS_NS: u64 = 3_000_000;

/// The time after the end of all connections within which every session must end.
const KEPT_NS: u64 = 10_000_000_000;

/// The time, and the number of events, within which a game must end.
const LONGEST_NS: u64 = 60_000_000_000;
const MOST_STEPS: u64 = 1_000_000;

/// One end of a connection, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) connection: usize,
    pub(super) sender: bool,
}

impl Side {
    pub(super) fn who(self) -> Who {
        Who::End { connection: self.connection, sender: self.sender }
    }
}

/// An end of a connection.
pub(super) struct End<S> {
    pub(super) stage: S,
    /// The end of the session that its connection is on, and the connection's number there.
    pub(super) route: Option<(usize, u32)>,
    /// The time from which the present step of its set-up has its whole time, at the earliest.
    pub(super) step_since_ns: u64,
    /// The time for which the next event of its set-up is scheduled.
    pub(super) timer_ns: Option<u64>,
    /// True once its set-up has run out of time.
    pub(super) missed: bool,
    /// True once its application has given it up, though its set-up goes on.
    pub(super) unwanted: bool,
    /// The rails that its handshake reported as left out.
    pub(super) left_out: RailSet,
    /// The time at which its application last made progress.
    pub(super) last_ns: Option<u64>,
    /// True once a call on it returned an error, or its application gave up.
    pub(super) failed: bool,
    /// True once its close is scheduled because everything is done.
    closing: bool,
    /// The time before which its application makes no call.
    pub(super) silent_until_ns: u64,
    /// The number of silences that its application may still have.
    pub(super) silences: u32,
    /// True while a check is scheduled that what it owes leaves in time.
    pub(super) is_debt_watched: bool,
    /// The work of its process on the recovery of its rails.
    pub(super) recovery: Recovery,
}

impl<S> End<S> {
    fn new(stage: S) -> Self {
        Self {
            stage,
            route: None,
            step_since_ns: 0,
            timer_ns: None,
            missed: false,
            unwanted: false,
            left_out: RailSet::EMPTY,
            last_ns: None,
            failed: false,
            closing: false,
            silent_until_ns: 0,
            silences: MOST_SILENCES,
            is_debt_watched: false,
            recovery: Recovery::default(),
        }
    }
}

impl<H, C, A, const O: bool> End<Stage<H, C, A, O>> {
    /// Returns true if its application makes no more calls.
    fn has_ended(&self) -> bool {
        self.failed || !matches!(self.stage, Stage::Up(..))
    }
}

type SendStage<const O: bool> = Stage<Connector<Net<O>>, SendConnection<Net<O>>, SendApp<O>, O>;
type RecvStage<const O: bool> = Stage<Acceptor<Net<O>>, RecvConnection<Net<O>>, RecvApp<O>, O>;

/// A connection with both its ends.
pub(super) struct Pair<const O: bool> {
    pub(super) plan: ConnectionPlan,
    pub(super) sender: End<SendStage<O>>,
    pub(super) receiver: End<RecvStage<O>>,
}

/// A process.
pub(super) struct Process<const O: bool> {
    pub(super) domains: Vec<Arc<SimDomain<O>>>,
    pub(super) dead: bool,
    pub(super) aborted: bool,
    /// The buffers that its connections share, as long as one of them does.
    pub(super) shared: Weak<SharedBuffers>,
    /// The ports, by their numbers in the world, of which it knows that their devices have failed.
    pub(super) failed_ports: Vec<usize>,
    /// True while a turn of its progress thread is scheduled.
    awake: bool,
    /// The number of addresses at which it can be reached.
    pub(super) addresses: u8,
    /// The longest pause before its progress thread's next turn; it grows while nothing moves.
    idle_ns: u64,
    pub(super) threads: Rc<Threads<O>>,
}

// tidy: Game's methods call each other across files: each file plays one part of the seed, and what happens in one has
// effects on the others.
/// Everything of one seed.
pub(super) struct Game<const O: bool> {
    pub(super) world: Arc<World>,
    pub(super) faults: Faults,
    pub(super) plot: Arc<Plot>,
    pub(super) chance: Chance,
    pub(super) processes: Vec<Process<O>>,
    pub(super) connections: Vec<Pair<O>>,
    pub(super) sessions: Sessions,
    /// The handshakes that the set-up threads have, and whose set-ups have ended, by connection and end (true for the
    /// sender).
    pub(super) abandoned: BTreeMap<(usize, bool), Box<dyn Any>>,
    /// The closed ends that the freeing threads of their processes have to destroy.
    pub(super) freeing: BTreeMap<(usize, bool), Box<dyn Any>>,
    /// The time at which it was first seen that nothing of any connection is left; `None` before.
    over_since_ns: Option<u64>,
    /// The number of calls that all applications have made.
    pub(super) calls: u64,
    /// The number of events so far.
    pub(super) steps: u64,
    /// The fault of an exhaustive run, and the number of the event before which it strikes; `None` once it has struck.
    pub(super) injection: Option<(u64, Injection)>,
    /// The fault, once it has struck, and as long as it may strike again.
    pub(super) injection_again: Option<Injection>,
    /// True once the fault of an exhaustive run has struck, or a process was killed after a call.
    pub(super) has_struck: bool,
    description: String,
}

impl<const O: bool> Game<O> {
    pub(super) fn new(seed: u64, plan: Plan, plot: Arc<Plot>) -> Self {
        let description = format!(
            "seed {seed}: {} processes, {} connections, {}, {:?}",
            plan.ports.len(),
            plan.connections.len(),
            if O { "one-sided" } else { "two-sided" },
            plan.faults
        );
        let faults = plan.faults;
        let world = World::observed(seed, faults.fabric.clone(), Witness::default());
        let mut processes = Vec::new();
        let sessions = Sessions::new(&plan.keys, &faults, &plot);
        for (ports, addresses) in plan.ports.iter().zip(plan.addresses) {
            let process = world.add_process();
            let domain =
                |port: &super::plan::PortPlan| SimDomain::new(&world, process, port.max_write, port.byte_counts);
            let domains = ports.iter().map(domain).collect();
            processes.push(Process {
                domains,
                dead: false,
                aborted: false,
                shared: Weak::new(),
                failed_ports: Vec::new(),
                awake: false,
                addresses,
                idle_ns: 500,
                threads: Threads::new(&world, process),
            });
        }
        let mut state = world.lock();
        state.observer.watch.retry_ns = faults.fabric.retry_ns;
        let mut connections = Vec::new();
        for (number, plan) in plan.connections.into_iter().enumerate() {
            let mut watched = Watched::new(faults.first_number);
            watched.recovers = faults.recovers;
            state.observer.watch.connections.push(watched);
            state.at(plan.connect_at_ns, Task::Connect(number));
            if sessions.keys_differ(plan.from, plan.to) {
                for sender in [true, false] {
                    state.observer.watch.strike(0, number, sender, Strike::KeysDiffer);
                }
            }
            if let Some((sender, at_ns)) = plan.close_early {
                state.at(at_ns, Task::Close { connection: number, sender, early: true });
            }
            connections.push(Pair { plan, sender: End::new(Stage::Waiting), receiver: End::new(Stage::Waiting) });
        }
        let timed = faults.deaths.iter().filter(|death| death.kind != DeathKind::Killed).chain(&faults.rail_deaths);
        timed.for_each(|death| state.at(death.at, Task::Death(death.kind)));
        for (number, aimed) in faults.aimed.iter().enumerate() {
            state.at(aimed.from_ns, Task::Aim { number, looks: 0 });
        }
        for (at_ns, which) in &faults.break_times_ns {
            state.at(*at_ns, Task::Break { connection: which % connections.len() });
        }
        faults.stranger_times_ns.iter().for_each(|at_ns| state.at(*at_ns, Task::Stranger));
        drop(state);
        Self {
            world,
            faults,
            plot,
            chance: Chance::new(seed ^ 0x7e57_ab1e),
            processes,
            connections,
            sessions,
            abandoned: BTreeMap::new(),
            freeing: BTreeMap::new(),
            over_since_ns: None,
            calls: 0,
            steps: 0,
            injection: plan.injection,
            injection_again: None,
            has_struck: false,
            description,
        }
    }

    pub(super) fn world(&self) -> Arc<World> {
        Arc::clone(&self.world)
    }

    /// Describes the seed in one line, and each connection in another.
    pub(super) fn describe(&self) -> String {
        let mut text = self.description.clone();
        for (number, pair) in self.connections.iter().enumerate() {
            let plan = &pair.plan;
            text += &format!(
                "\nc{number}: p{} -> p{}, rails {:?}, lanes {:?}, striped {}, split from {}, adaptive {:?}, \
                 {} receives, window {}, probe {}, cuda {}, weights {:?}, {:?}, {:?}",
                plan.from,
                plan.to,
                plan.pairs,
                plan.lanes,
                plan.striped,
                plan.split_min,
                plan.adaptive_above,
                plan.groups.len(),
                plan.window,
                plan.probe,
                plan.cuda,
                plan.weights,
                plan.trespass,
                plan.habits
            );
        }
        text
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    pub(super) fn violate(&self, checker: Checker, message: String) {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.observer.watch.violate(now_ns, checker, message);
    }

    /// Plays to the end, or to the first violation, or to an injected fault that finds nothing to strike.
    pub(super) fn play(&mut self) {
        loop {
            self.steps += 1;
            if self.injection.is_some_and(|(at, _)| at == self.steps) && !self.inject() && !self.has_struck {
                return;
            }
            let mut state = self.world.lock();
            if state.observer.watch.violation.is_some() {
                state.record(Kind::Violation, Who::Process(0), [0; 4]);
                return;
            }
            let pending = state.next_at().is_some();
            let task = state.step();
            let now_ns = state.now_ns;
            drop(state);
            if now_ns > LONGEST_NS || self.steps > MOST_STEPS {
                let text = format!("the game does not end: {} events in {now_ns} ns", self.steps);
                self.violate(Checker::Progress, text);
            }
            if let Some(task) = task {
                self.handle(task);
            }
            if !pending {
                break;
            }
        }
        self.check_end();
    }

    fn handle(&mut self, task: Task) {
        match task {
            Task::Turn(process) => self.handle_turn(process),
            Task::Connect(connection) => self.handle_connect(connection),
            Task::Timer { end } => self.handle_timer(end),
            Task::Arrive { socket, to } => self.handle_arrival(socket, to),
            Task::Connected { socket } => self.handle_connected(socket),
            Task::Frame { socket, to_opener, bytes } => self.handle_frame(socket, to_opener, &bytes),
            Task::SocketEnd { socket, to_opener } => self.handle_socket_end(socket, to_opener),
            Task::SetUpDue { connection, sender } => self.handle_set_up_due(Side { connection, sender }),
            Task::OfferNotice { end, number } => self.handle_offer_notice(end, number),
            Task::TakeOffer { end, number } => self.handle_take_offer(end, number),
            Task::StepDone { connection, sender, step, given_ns } => {
                self.handle_step_done(Side { connection, sender }, step, given_ns);
            }
            Task::Close { connection, sender, early } => self.handle_close(Side { connection, sender }, early),
            Task::Look(process) => self.processes[process].threads.look(),
            Task::DebtDue(connection) => self.handle_debt_due(connection),
            Task::Free { connection, sender } => self.handle_free(Side { connection, sender }),
            Task::Closed { connection, sender } => self.handle_closed(Side { connection, sender }),
            Task::Abort(process) => self.handle_abort(process),
            Task::Break { connection } => self.handle_break(connection),
            Task::DeviceEvent(port) => self.handle_device_event(port),
            Task::Order { connection, number } => self.handle_order(connection, number),
            Task::Stranger => self.handle_stranger(),
            Task::Death(kind) => self.handle_death(kind),
            Task::Aim { number, looks } => self.handle_aim(number, looks),
            Task::Heal(port) => self.handle_heal(port),
            Task::Recover { connection, sender } => self.handle_recover(Side { connection, sender }),
            Task::Listen { connection, sender } => self.handle_listen(Side { connection, sender }),
            Task::Work { connection, sender, number } => self.handle_work(Side { connection, sender }, number),
        }
    }

    /// Wakes up the process's progress thread.
    pub(super) fn wake(&mut self, process: usize) {
        let state = &mut self.processes[process];
        if !state.dead && !std::mem::replace(&mut state.awake, true) {
            self.world.lock().later(100, Task::Turn(process));
        }
    }

    fn handle_turn(&mut self, process: usize) {
        self.processes[process].awake = false;
        if self.processes[process].dead {
            return;
        }
        let (mut moved, mut up) = (false, false);
        for connection in 0..self.connections.len() {
            for sender in [true, false] {
                let side = Side { connection, sender };
                if self.process_of(side) != process {
                    continue;
                }
                if self.is_silent(side) {
                    up = true;
                    continue;
                }
                let step = self.step(side);
                self.look_after_recovery(side);
                match step {
                    None => continue,
                    Some(Ok(Step::Killed)) => {
                        self.has_struck = true;
                        self.world.lock().saw(Seen::ProcessKilled);
                        return self.kill(process);
                    }
                    Some(Ok(step)) => moved |= step == Step::Moved,
                    Some(Err(error)) => {
                        self.fail(side, &error);
                        self.insist(side, &error);
                    }
                }
                up = true;
                self.fall_silent(side);
                if !sender {
                    self.watch_debt(connection);
                }
            }
        }
        if !up {
            return;
        }
        let state = &mut self.processes[process];
        state.idle_ns = if moved { 300 } else { (state.idle_ns * 2).min(20_000) };
        let mut next_ns = self.chance.between(state.idle_ns / 2, state.idle_ns);
        if self.chance.permille(5) {
            // The thread is busy elsewhere.
            next_ns += self.chance.below(150_000);
        }
        state.awake = true;
        self.world.lock().later(next_ns, Task::Turn(process));
    }

    /// Gives one application a turn. Returns its result; `None` if it has nothing to do.
    fn step(&mut self, side: Side) -> Option<Result<Step, Error>> {
        let pair = &mut self.connections[side.connection];
        let killed = self.faults.deaths.iter().find(|death| death.kind == DeathKind::Killed);
        let killed_at = killed.map(|death| death.at);
        let mut context = Context {
            world: &self.world,
            chance: &mut self.chance,
            connection: side.connection,
            who: side.who(),
            plan: &pair.plan,
            calls: &mut self.calls,
            killed_at,
        };
        let (result, done, closing) = match (side.sender, &mut pair.sender, &mut pair.receiver) {
            (true, End { stage: Stage::Up(comm, app), failed: false, closing: closing @ false, .. }, _) => {
                (app.step(comm, &mut context), app.is_done(), closing)
            }
            (false, _, End { stage: Stage::Up(comm, app), failed: false, closing: closing @ false, .. }) => {
                (app.step(comm, &mut context), app.is_done(), closing)
            }
            _ => return None,
        };
        if done && result.is_ok() {
            *closing = true;
            let silence_ns = self.faults.silence_ns;
            let idle_ns = pair.plan.habits.idle_ns[usize::from(side.sender)];
            if idle_ns > 0 {
                self.world.lock().saw(Seen::Idle);
            }
            let delay_ns = self.chance.below(80_000) + self.chance.below(silence_ns + 1) + idle_ns;
            let task = Task::Close { connection: side.connection, sender: side.sender, early: false };
            let mut state = self.world.lock();
            state.later(delay_ns, task);
            state.observer.watch.posts_no_more(side.connection, side.sender, "its application has finished");
            return Some(result);
        }
        if matches!(result, Ok(Step::Idle | Step::Moved)) {
            self.check_progress(side, matches!(result, Ok(Step::Moved)));
        }
        Some(result)
    }

    /// Checks that an application that waits makes progress or gets an error in time.
    fn check_progress(&mut self, side: Side, moved: bool) {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let pair = &mut self.connections[side.connection];
        let last_ns = if side.sender { &mut pair.sender.last_ns } else { &mut pair.receiver.last_ns };
        let Some(last_ns) = last_ns.filter(|_| !moved) else {
            *last_ns = Some(now_ns);
            return;
        };
        if self.faults.fabric.open_fails_permille == 0 {
            let limit_ns = self.faults.rail_limit_ns();
            state.observer.watch.rails_come_back(now_ns, side.connection, side.sender, limit_ns);
        }
        let (waits, probing, only_looks) = match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(_, app), _) => (app.waits_for(), app.is_probing(), false),
            (false, _, Stage::Up(_, app)) => (app.waits_for(), app.is_probing(), app.only_looks()),
            _ => return,
        };
        match state.observer.watch.connections[side.connection].blame.first(side.sender) {
            Some((since_ns, strike)) => {
                let recovers = self.faults.recovers;
                let limit_ns = if recovers { self.faults.recovery_limit_ns() } else { self.faults.death_limit_ns() };
                let passed_ns = now_ns.saturating_sub(last_ns.max(since_ns));
                let has_dead_rail = state.observer.watch.connections[side.connection].blame.has_dead_rail(now_ns);
                // A forged immediate may have taken the receive that it needs.
                let is_forlorn = has_dead_rail || pair.sender.has_ended() || strike == Strike::Forged;
                if only_looks && passed_ns > LOOKS_NS && is_forlorn {
                    // No call here could report the loss. As in NCCL, other connections must report it.
                    drop(state);
                    return self.give_up(side, "the application gave up looking for the data of an early receive");
                }
                if passed_ns > limit_ns {
                    let text = format!(
                        "{}: {limit_ns} ns after {strike:?} neither a completion nor an error has come; it waits for \
                         {waits}",
                        side.who()
                    );
                    state.observer.watch.violate(now_ns, Checker::Death, text);
                }
            }
            None if now_ns.saturating_sub(last_ns.max(state.moved_ns).max(state.arrives_ns)) > STUCK_NS => {
                let checker = if probing { Checker::Leaks } else { Checker::Progress };
                let text = format!(
                    "{}: nothing has moved for {STUCK_NS} ns; it waits for {waits}; the next send matches {:?}; {}",
                    side.who(),
                    state.observer.watch.filling(side.connection),
                    self.describe_waits()
                );
                state.observer.watch.violate(now_ns, checker, text);
            }
            None => {}
        }
    }

    /// Describes what every application waits for.
    fn describe_waits(&self) -> String {
        let mut text = String::new();
        for (number, pair) in self.connections.iter().enumerate() {
            if let Stage::Up(_, app) = &pair.sender.stage {
                text += &format!("c{number}s: {}; ", app.waits_for());
            }
            if let Stage::Up(_, app) = &pair.receiver.stage {
                text += &format!("c{number}r: {}; ", app.waits_for());
            }
        }
        text
    }

    pub(super) fn is_closed(&self, side: Side) -> bool {
        let pair = &self.connections[side.connection];
        let name = if side.sender { pair.sender.stage.name() } else { pair.receiver.stage.name() };
        matches!(name, "closing" | "lingering" | "over")
    }

    /// Returns true if an end's application has done everything that it had to do.
    pub(super) fn is_finished(&mut self, side: Side) -> bool {
        let pair = &mut self.connections[side.connection];
        match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(_, app), _) => app.is_done(),
            (false, _, Stage::Up(comm, app)) => {
                let condemned = self.world.lock().observer.watch.connections[side.connection].condemned;
                // If the poll that brought the hostile immediate also brought the last receive, no call has failed yet:
                // this one must.
                let is_done = app.is_done();
                if is_done && condemned && comm.iflush(&[]).is_ok() {
                    self.violate(Checker::Errors, format!("{}: a hostile immediate was no error", side.who()));
                }
                is_done
            }
            _ => false,
        }
    }

    /// Returns the connections of which something is left, and the stages of their ends.
    fn left(&self) -> Vec<(usize, [&'static str; 2])> {
        let is_left = |(number, pair): (usize, &Pair<O>)| {
            let blame = &self.world.lock().observer.watch.connections[number].blame;
            let stages = [pair.sender.stage.name(), pair.receiver.stage.name()];
            let is_over = |sender: bool, stage: &str| match stage {
                "waiting" => blame.may_never_begin(sender),
                stage => stage == "over",
            };
            (!is_over(true, stages[0]) || !is_over(false, stages[1])).then_some((number, stages))
        };
        self.connections.iter().enumerate().filter_map(is_left).collect()
    }

    /// Checks that sessions end within [`KEPT_NS`] after all connections. The timers of one that stayed would never let
    /// the game end.
    pub(super) fn check_kept(&mut self) {
        if self.over_since_ns.is_none() && !self.left().is_empty() {
            return;
        }
        let now_ns = self.now_ns();
        if now_ns - *self.over_since_ns.get_or_insert(now_ns) > KEPT_NS {
            self.check_sessions();
        }
    }

    /// Checks that nothing is left over when no event is left.
    fn check_end(&mut self) {
        for (number, stages) in self.left() {
            let text = format!("c{number}: no event is left, but its ends are {stages:?}");
            self.violate(Checker::Progress, text);
        }
        self.check_sessions();
        let state = self.world.lock();
        let (keys, ends) = state.left();
        drop(state);
        if keys > 0 || ends > 0 {
            let text = format!("{keys} registrations and {ends} ends of rails are left when everything is closed");
            self.violate(Checker::Leaks, text);
        }
    }
}
