//! The telemetry of this process, and the policy files that steer its connections, as the control thread handles them.
//!
//! The data path takes no part in it: its counters are read from outside, and orders reach it through cells that it
//! looks at anyway ([`railweave_transport::Steering`]).

mod orders;
mod ports;
mod records;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use railweave_telemetry::{
    Event, EventKind, IDLE_NS, Notice, Process, Publisher, RunDir, SEED_POLICY_PATH, Steering, sweep,
};
use railweave_transport::RailInfo;

pub(crate) use records::{Opened, Peer};

use self::orders::Orders;
use self::records::Records;
use crate::comm::Route;
use crate::log;
use crate::network::Network;
use crate::trace::Tracer;

/// The time between two writes while something changes.
const BUSY_NS: u64 = 100_000_000;

/// The time between two writes after calls that failed.
const FAILED_NS: u64 = 1_000_000;

/// The number of failed calls in a second after which the next write comes that soon.
const MOST_HURRIES: u32 = 10;

const SECOND_NS: u64 = 1_000_000_000;

/// The time between two looks at the counters while nothing changes.
const QUIET_NS: u64 = 1_000_000_000;

/// The longest time between two looks, and the time between them in times of what a look takes: with many connections
/// it comes later, so that it costs about 0.4 % of a core while messages move, and 0.1 % otherwise.
const LONGEST_NS: u64 = 2_000_000_000;
const BUSY_TIMES: u64 = 250;
const QUIET_TIMES: u64 = 1000;

/// The number of looks without a change after which the next one comes later: a job's messages come in bursts.
const LOOKS_UNTIL_QUIET: u32 = 10;

/// The configuration, from the settings.
#[derive(Clone)]
pub(crate) struct PublishConfig {
    /// The folder of the telemetry file and of the policy file.
    pub(crate) dir: RunDir,
    pub(crate) process: Process,
    /// The process's network, and TCP for peers that RDMA does not reach.
    pub(crate) networks: Vec<Arc<dyn Network>>,
    /// True if the policy files count.
    pub(crate) reads_policies: bool,
    /// The trace of the process, which has the events that are found here.
    pub(crate) tracer: Option<Arc<Tracer>>,
}

/// The telemetry file, and the policy files.
pub(crate) struct Publish {
    records: Records,
    dir: RunDir,
    publisher: Publisher,
    /// `None` if the settings leave no say to the files.
    orders: Option<Orders>,
    /// The time of the next look at the counters, on the caller's clock.
    next_ns: u64,
    /// The time of the next look at the policy files.
    next_poll_ns: u64,
    /// The time of the last look at the counters, and the time from one look to the next while something changes.
    last_ns: u64,
    busy_ns: u64,
    /// The time of the last write since 1970, and true if writing fails.
    written_ns: u64,
    is_failing: bool,
    /// The number of looks since anything changed.
    quiet_looks: u32,
    /// True if something apart from counters has changed since the last look.
    is_changed: bool,
    /// True if a connection has failed: then the file stays when the process ends.
    has_failed: bool,
    /// The second of the last failed call, and the number of those in it.
    hurried: (u64, u32),
    /// True once old files of other processes were removed.
    is_swept: bool,
    tracer: Option<Arc<Tracer>>,
}

impl Publish {
    pub(crate) fn new(config: PublishConfig) -> Self {
        let PublishConfig { dir, process, networks, reads_policies, tracer } = config;
        let files = || Steering::new(dir.policy_file(), SEED_POLICY_PATH);
        Self {
            orders: reads_policies.then(|| Orders::new(files())),
            publisher: Publisher::new(dir.clone(), process.id),
            records: Records::new(process, networks),
            dir,
            next_ns: 0,
            next_poll_ns: 0,
            last_ns: 0,
            busy_ns: BUSY_NS,
            written_ns: 0,
            is_failing: false,
            quiet_looks: 0,
            is_changed: true,
            has_failed: false,
            hurried: (0, 0),
            is_swept: false,
            tracer,
        }
    }

    /// Returns the time at which [`Self::look`] has something to do, in nanoseconds on the caller's clock.
    pub(crate) fn next_ns(&self) -> u64 {
        if self.orders.is_some() { self.next_ns.min(self.next_poll_ns) } else { self.next_ns }
    }

    /// Reads the policy files and writes the telemetry file, each if it is time to.
    pub(crate) fn look(&mut self, now_ns: u64) {
        if !std::mem::replace(&mut self.is_swept, true) {
            // Without the folder there is nothing to sweep, which is said already.
            let _ = sweep(&self.dir, SystemTime::now());
            self.tell_unread_policies();
        }
        if self.next_poll_ns <= now_ns {
            self.poll_policies(now_ns);
        }
        if self.next_ns <= now_ns {
            self.write(now_ns);
        }
    }

    /// Says which policy files are there and steer nothing, because the settings name a policy.
    fn tell_unread_policies(&self) {
        if self.orders.is_some() {
            return;
        }
        for path in [self.dir.policy_file(), SEED_POLICY_PATH.into()].iter().filter(|path| path.exists()) {
            log::info(&format!(
                "\"{}\" steers nothing here, because RAILWEAVE_POLICY or RAILWEAVE_WEIGHTS decides; \
                 RAILWEAVE_POLICY=agent lets it steer",
                path.display()
            ));
        }
    }

    fn poll_policies(&mut self, now_ns: u64) {
        let Some(orders) = &mut self.orders else {
            return;
        };
        let (sentences, is_changed) = orders.poll(SystemTime::now());
        self.next_poll_ns = now_ns + orders.next_poll_ns();
        sentences.iter().for_each(|sentence| log::warn(sentence));
        if is_changed {
            self.follow_orders(0);
            self.hurry();
        } else {
            self.tell_orders();
        }
    }

    /// Orders the connections from this place on as the policy files say.
    fn follow_orders(&mut self, from: usize) {
        let Some(orders) = &mut self.orders else {
            return;
        };
        if let Some(warning) = orders.apply(&mut self.records, from, time_ns()) {
            log::warn(&warning);
        }
        self.tell_orders();
    }

    /// Says which orders have changed.
    fn tell_orders(&mut self) {
        let Some(orders) = &mut self.orders else {
            return;
        };
        for line in orders.lines(&mut self.records, time_ns()) {
            log::info(&line);
            self.trace(EventKind::POLICY, &line);
            self.add(EventKind::POLICY, None, None, line);
            self.hurry();
        }
    }

    fn write(&mut self, now_ns: u64) {
        let (time_ns, begin) = (time_ns(), Instant::now());
        // The look after the last message still finds how long it took. A message that waits for its CTS changes no
        // counter that looks compare, so that the write that is due finds it.
        let is_due = time_ns.abs_diff(self.written_ns) >= IDLE_NS;
        let is_thorough = self.is_changed || self.quiet_looks == 0 || self.records.has_flights || is_due;
        let moved = self.records.refresh(time_ns, is_thorough);
        for (number, text) in moved.broken {
            self.fail(number, text);
        }
        let is_changed = std::mem::take(&mut self.is_changed) || moved.any;
        if is_changed || is_thorough || self.is_failing {
            self.written_ns = time_ns;
            self.publish(time_ns);
        }
        self.quiet_looks = if is_changed { 0 } else { self.quiet_looks.saturating_add(1) };
        let took_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(LONGEST_NS);
        let at_least = |least_ns: u64, times: u64| took_ns.saturating_mul(times).min(LONGEST_NS).max(least_ns);
        self.busy_ns = at_least(BUSY_NS, BUSY_TIMES);
        self.last_ns = now_ns;
        let is_quiet = self.quiet_looks >= LOOKS_UNTIL_QUIET;
        self.next_ns = now_ns + if is_quiet { at_least(QUIET_NS, QUIET_TIMES) } else { self.busy_ns };
    }

    /// Writes the file, if something in it has changed or it was not written for long.
    fn publish(&mut self, time_ns: u64) {
        match self.publisher.publish(&self.records.state, time_ns) {
            Some(notice @ Notice::Failed(_)) => {
                self.is_failing = true;
                log::warn(&notice.to_string());
            }
            Some(notice @ Notice::Recovered(_)) => {
                self.is_failing = false;
                log::info(&notice.to_string());
            }
            None => {}
        }
    }

    /// Notes that something has changed: it is written soon.
    fn hurry(&mut self) {
        self.is_changed = true;
        self.next_ns = self.next_ns.min(self.last_ns + self.busy_ns);
    }

    /// Writes nearly at once: a connection may have failed, and the process may end soon.
    ///
    /// An application may go on calling a connection that has failed, so only some calls of each second hurry.
    pub(crate) fn hurry_most(&mut self) {
        let second = self.last_ns / SECOND_NS;
        if std::mem::replace(&mut self.hurried.0, second) != second {
            self.hurried.1 = 0;
        }
        self.hurried.1 += 1;
        if self.hurried.1 > MOST_HURRIES {
            return self.hurry();
        }
        self.is_changed = true;
        self.next_ns = self.next_ns.min(self.last_ns + FAILED_NS);
    }

    /// Adds a connection that has come up. It follows the policy files from its first message on.
    pub(crate) fn open(&mut self, opened: &Opened<'_>) {
        let place = self.records.open(opened, time_ns());
        self.follow_orders(place);
        let rails: Vec<_> = opened.rails.iter().map(|rail| rail.name.to_string()).collect();
        let text = format!("to {}: {}", opened.peer.host, rails.join(", "));
        self.note(EventKind::OPENED, Some(opened.route), text);
    }

    /// Shows the addresses that the rails of a connection have now.
    pub(crate) fn rename(&mut self, route: Route, rails: &[RailInfo]) {
        let Some(number) = self.records.number(route) else { return };
        let records = &mut self.records.state.rails;
        let from = records.partition_point(|record| record.connection < number);
        for record in records[from..].iter_mut().take_while(|record| record.connection == number) {
            if let Some(rail) = rails.iter().find(|rail| rail.index == usize::from(record.number)) {
                (record.local, record.remote) = (rail.name.local.clone(), rail.name.remote.clone());
            }
        }
        self.hurry();
    }

    /// Notes that a connection is closed.
    pub(crate) fn close(&mut self, route: Route) {
        if let Some((number, broken)) = self.records.close(route, time_ns()) {
            broken.into_iter().for_each(|text| self.fail(number, text));
            self.add(EventKind::CLOSED, Some(number), None, String::new());
            self.hurry();
        }
    }

    /// Forgets a connection that is freed.
    pub(crate) fn forget(&mut self, route: Route) {
        if let Some((number, text)) = self.records.forget(route) {
            self.fail(number, text);
        }
        self.hurry();
    }

    fn fail(&mut self, number: u32, reason: String) {
        self.has_failed = true;
        self.trace(EventKind::FAILED, &reason);
        self.add(EventKind::FAILED, Some(number), None, reason);
    }

    /// Notes an event, of this connection if it is known.
    pub(crate) fn note(&mut self, kind: EventKind, route: Option<Route>, text: String) {
        self.add(kind, route.and_then(|route| self.records.number(route)), None, text);
        self.hurry();
    }

    /// Notes an event of a rail of a connection that is not up yet.
    pub(crate) fn note_rail(&mut self, kind: EventKind, rail: u8, text: String) {
        self.add(kind, None, Some(rail), text);
        self.hurry();
    }

    /// Adds an event to the trace. Those that the control thread notes are there already.
    fn trace(&self, kind: EventKind, text: &str) {
        if let Some(tracer) = &self.tracer {
            tracer.happened(kind, None, None, text);
        }
    }

    fn add(&mut self, kind: EventKind, connection: Option<u32>, rail: Option<u8>, text: String) {
        self.publisher.add(&Event { time_ns: time_ns(), connection, rail, kind, text });
    }

    /// Ends the telemetry of a process that ends in good order: the file goes, unless a connection has failed. Then the
    /// last state stays, for whoever wants to know why.
    pub(crate) fn end(mut self) {
        self.write(0);
        if !self.has_failed {
            self.publisher.remove();
        }
    }
}

/// Returns the time in nanoseconds since 1970.
fn time_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
