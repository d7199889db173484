//! The ports of the host: their counters, and what jobs send over them.

use crate::series::{Series, SeriesKey};
use railweave_counters::{Counter, Fabric, Kind, PortReading, Unit};
use railweave_telemetry::RailState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The time over which link errors are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// The time over which a link's downs are counted.
const FIVE_MINUTES: Duration = Duration::from_secs(300);

/// The time for which data counts as having come lately.
const RECENT: Duration = Duration::from_secs(2);

/// The time for which a port that is not there is remembered.
const REMEMBERED: Duration = Duration::from_secs(900);

/// The shortest time over which a rate says anything: an order brings a look soon after another, and counters are
/// written ten times a second at most.
pub(crate) const SHORTEST: Duration = Duration::from_millis(500);

/// The share of its largest rate below which a link is slow.
const SLOW: f64 = 0.9;

/// The use of a port by the jobs of the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PortUse {
    /// Bytes per second; those sent, also in the last look alone.
    pub(crate) sent_now: f64,
    pub(crate) sent_rate: f64,
    pub(crate) received_rate: f64,
    pub(crate) in_flight: u64,
    /// Rails by state.
    pub(crate) states: [u32; RailState::ALL.len()],
    /// The last time at which a rail sent data or CTS over it.
    pub(crate) sent_at: Option<Duration>,
    /// The hosts from which data came over it lately.
    pub(crate) senders: BTreeSet<String>,
}

impl PortUse {
    /// Adds a series of rails.
    pub(crate) fn add(&mut self, key: &SeriesKey, series: &Series, up: Duration) {
        self.sent_now += series.sent_now;
        self.sent_rate += series.sent_rate;
        self.received_rate += series.received_rate;
        self.in_flight = self.in_flight.saturating_add(series.in_flight);
        for (sum, more) in self.states.iter_mut().zip(series.states) {
            *sum += more;
        }
        self.sent_at = self.sent_at.max(series.sent_at);
        let is_receiving = series.received_at.is_some_and(|at| up.saturating_sub(at) < RECENT);
        if is_receiving && !self.senders.contains(&key.group.peer_host) {
            self.senders.insert(key.group.peer_host.clone());
        }
    }

    /// Adds the use of another name of the port.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.sent_now += other.sent_now;
        self.sent_rate += other.sent_rate;
        self.received_rate += other.received_rate;
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        for (sum, more) in self.states.iter_mut().zip(other.states) {
            *sum += more;
        }
        self.sent_at = self.sent_at.max(other.sent_at);
        self.senders.extend(other.senders.iter().cloned());
    }

    /// Returns the number of rails in a state.
    pub(crate) fn in_state(&self, state: RailState) -> u32 {
        self.states[state as usize]
    }
}

/// A port's counters over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortCounters {
    pub(crate) reading: Option<PortReading>,
    /// The largest rate of its link so far, in bytes per second, and its largest width.
    pub(crate) largest_rate: Option<u64>,
    pub(crate) largest_width: Option<u32>,
    /// Signs of congestion per second lately, and those that are not yet part of it, with their time.
    marks: f64,
    window: (u64, Duration),
    /// The link errors, and the times that it went down, by the time of the look that found them.
    errors: VecDeque<(Duration, u64)>,
    downs: VecDeque<(Duration, u64)>,
    /// The number of times that a counter of link errors came to its largest value.
    fills: u64,
    /// The time since which the link is slower than it was.
    slow_since: Option<Duration>,
    /// The time of the last reading.
    seen: Duration,
}

/// The signs of a port that policies look at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Signs {
    /// Congestion notifications, pause frames and discards of what this host sends, per second.
    pub(crate) marks: f64,
    /// Link errors in the last minute.
    pub(crate) errors: u64,
    /// Times that the link went down in the last five minutes.
    pub(crate) downs: u64,
    /// The time for which the link has been slower or narrower than it was.
    pub(crate) slow_for: Option<Duration>,
    /// True if a counter of link errors is at its largest value, from where it does not move; and the number of times
    /// that one came there.
    pub(crate) is_full: bool,
    pub(crate) fills: u64,
}

impl PortCounters {
    /// Notes that the port is not there. Returns true if it is remembered all the same: a driver that is loaded again
    /// makes no port well, and no slow link a fast one.
    pub(crate) fn miss(&mut self, up: Duration) -> bool {
        (self.reading, self.marks, self.slow_since) = (None, 0.0, None);
        self.window = (0, Duration::ZERO);
        up.saturating_sub(self.seen) < REMEMBERED
    }

    /// Takes in a reading.
    pub(crate) fn take(&mut self, reading: PortReading, up: Duration, period: Duration) {
        let mut gains: BTreeMap<Cause, u64> = BTreeMap::new();
        for (counter, value) in &reading.counters {
            let Some(before) = self.reading.as_ref().and_then(|before| before.value(*counter)) else { continue };
            // A counter that goes back was set to zero, perhaps long after its new value was counted: a driver that is
            // loaded again makes no port sick.
            let gained = value.saturating_sub(before);
            let Some(cause) = cause(*counter) else { continue };
            self.fills += u64::from(gained > 0 && is_full(*counter, *value));
            let gain = gains.entry(cause).or_default();
            *gain = gained.max(*gain);
        }
        let sum = |is_one: fn(&Cause) -> bool| {
            let gains = gains.iter().filter(|(cause, _)| is_one(cause)).map(|(_, gain)| *gain);
            gains.fold(0, u64::saturating_add)
        };
        let marks = sum(|cause| matches!(cause, Cause::Notified(_) | Cause::Paused | Cause::Discarded));
        let errors = sum(|cause| matches!(cause, Cause::Damaged | Cause::Error(_)));
        let downs = sum(|cause| *cause == Cause::Down);
        self.window = (self.window.0.saturating_add(marks), self.window.1 + period);
        if self.window.1 >= SHORTEST {
            let (marks, time) = std::mem::take(&mut self.window);
            self.marks = marks as f64 / time.as_secs_f64();
        }
        note(&mut self.errors, up, errors, MINUTE);
        note(&mut self.downs, up, downs, FIVE_MINUTES);
        self.slow_since = if self.is_slow(&reading) { self.slow_since.or(Some(up)) } else { None };
        (self.reading, self.seen) = (Some(reading), up);
    }

    /// Notes the rate of the link. Returns true if it is less than it was.
    fn is_slow(&mut self, reading: &PortReading) -> bool {
        // A link that is down reports a rate that it may never have: RoCE ports of mlx5 one of 40 Gbit/s over 4 lanes.
        if reading.is_up != Some(true) {
            return false;
        }
        self.largest_rate = self.largest_rate.max(reading.rate);
        self.largest_width = self.largest_width.max(reading.width);
        match reading.rate.zip(self.largest_rate) {
            Some((now, most)) => (now as f64) < SLOW * most as f64,
            // The same rate over fewer lanes is another kind of link.
            None => reading.width.zip(self.largest_width).is_some_and(|(now, most)| now < most),
        }
    }

    /// Returns true if it is a port for RDMA.
    pub(crate) fn is_rdma(&self) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.fabric == Fabric::Verbs)
    }

    /// Returns the counters of link errors that count no more: those of InfiniBand stay at their largest value.
    pub(crate) fn full(&self) -> impl Iterator<Item = Counter> {
        let counters = self.reading.iter().flat_map(|reading| &reading.counters);
        counters.filter(|(counter, value)| is_full(*counter, *value)).map(|(counter, _)| *counter)
    }

    pub(crate) fn signs(&self, up: Duration) -> Signs {
        let sum = |list: &VecDeque<(Duration, u64)>| list.iter().fold(0, |sum: u64, (_, it)| sum.saturating_add(*it));
        Signs {
            marks: self.marks,
            errors: sum(&self.errors),
            downs: sum(&self.downs),
            slow_for: self.slow_since.map(|since| up.saturating_sub(since)),
            is_full: self.full().next().is_some(),
            fills: self.fills,
        }
    }
}

/// The cause of what a counter counts. Several counters of a port count the same: those of its RDMA device, of its
/// interface and of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// The link went down.
    Down,
    /// Something arrived damaged.
    Damaged,
    /// Another error of the link.
    Error(Counter),
    /// A congestion notification came back.
    Notified(Counter),
    /// The other end told this one to pause.
    Paused,
    /// Something that was to be sent was dropped.
    Discarded,
}

/// Returns the cause of what a counter counts, if it is one that policies look at: errors of the link, and signs that
/// data which this host sends meets congestion. Marks on data that arrives say that of the peer's data, about which the
/// peer's adapter hears by congestion notifications.
fn cause(counter: Counter) -> Option<Cause> {
    match (counter, counter.kind()) {
        (Counter::LinkDowned | Counter::LinkDownEventsPhy, _) => Some(Cause::Down),
        (
            Counter::SymbolErrors
            | Counter::LocalLinkIntegrityErrors
            | Counter::PortErrorsReceived
            | Counter::RxIcrcEncapsulated
            | Counter::RxCrcErrorsPhy
            | Counter::RxSymbolErrorsPhy
            | Counter::NetworkReceiveErrors,
            _,
        ) => Some(Cause::Damaged),
        (_, Kind::LinkError) => Some(Cause::Error(counter)),
        // The adapter handles a notification or ignores it, so each counts its own.
        (_, Kind::CongestionSent) => Some(Cause::Notified(counter)),
        // Not the times and ticks of pauses, whose lengths differ.
        (_, Kind::Pause) if matches!(counter.unit(), Unit::Packets) => Some(Cause::Paused),
        (Counter::PortDiscardsTransmitted | Counter::TxDiscardsPhy | Counter::NetworkTransmitDrop, _) => {
            Some(Cause::Discarded)
        }
        _ => None,
    }
}

/// Returns true if it is a counter of link errors that counts no more.
fn is_full(counter: Counter, value: u64) -> bool {
    matches!(cause(counter), Some(Cause::Down | Cause::Damaged | Cause::Error(_))) && counter.largest() == Some(value)
}

/// Notes an increase, and forgets those before `window`.
fn note(list: &mut VecDeque<(Duration, u64)>, up: Duration, gained: u64, window: Duration) {
    list.retain(|(at, _)| up.saturating_sub(*at) < window);
    if gained > 0 {
        list.push_back((up, gained));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a reading of a port that is up, with these counters.
    pub(crate) fn reading(name: &str, rate: u64, counters: &[(Counter, u64)]) -> PortReading {
        let mut counters = counters.to_vec();
        counters.sort_unstable();
        PortReading {
            name: name.to_owned(),
            fabric: Fabric::Verbs,
            is_up: Some(true),
            state_id: Some(4),
            physical_state_id: Some(5),
            rate: Some(rate),
            width: Some(4),
            pcie: None,
            interface: None,
            counters,
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_down_that_two_counters_tell_is_one() {
        let mut port = PortCounters::default();
        for (second, downs) in [(1, 5), (2, 6)] {
            let counters = [(Counter::LinkDowned, downs), (Counter::LinkDownEventsPhy, downs + 9)];
            port.take(reading("mlx5_0", 100, &counters), second * SECOND, SECOND);
        }
        assert_eq!(port.signs(2 * SECOND).downs, 1);
    }

    #[test]
    fn one_cause_that_several_counters_tell_counts_once() {
        let mut port = PortCounters::default();
        for second in [1_u32, 2] {
            let damaged = [Counter::SymbolErrors, Counter::RxCrcErrorsPhy, Counter::NetworkReceiveErrors];
            let paused = [Counter::RxPrioPause, Counter::RxPauseCtrlPhy];
            let dropped = [Counter::TxDiscardsPhy, Counter::NetworkTransmitDrop];
            let mut counters: Vec<_> = damaged.iter().map(|it| (*it, u64::from(second) * 40)).collect();
            counters.extend(paused.iter().map(|it| (*it, u64::from(second) * 60)));
            counters.extend(dropped.iter().map(|it| (*it, u64::from(second) * 5)));
            counters.push((Counter::LinkErrorRecoveries, u64::from(second)));
            counters.push((Counter::RpCnpHandled, u64::from(second) * 100));
            port.take(reading("mlx5_0", 100, &counters), second * SECOND, SECOND);
        }
        assert_eq!(
            port.signs(2 * SECOND),
            Signs { marks: 165.0, errors: 41, downs: 0, slow_for: None, ..Signs::default() }
        );
    }

    #[test]
    fn signs_are_increases_and_not_values() {
        let mut port = PortCounters::default();
        let look = |port: &mut PortCounters, second: u32, cnp, errors, downs| {
            let counters =
                [(Counter::RpCnpHandled, cnp), (Counter::SymbolErrors, errors), (Counter::LinkDowned, downs)];
            port.take(reading("mlx5_0", 100, &counters), second * SECOND, SECOND);
            port.signs(second * SECOND)
        };
        assert_eq!(look(&mut port, 1, 1000, 1000, 7), Signs::default(), "before the agent began");
        assert_eq!(
            look(&mut port, 2, 1050, 1003, 8),
            Signs { marks: 50.0, errors: 3, downs: 1, slow_for: None, ..Signs::default() }
        );
        assert_eq!(
            look(&mut port, 3, 1050, 1004, 8),
            Signs { marks: 0.0, errors: 4, downs: 1, slow_for: None, ..Signs::default() }
        );
        let signs = look(&mut port, 4, 20, 900, 5);
        assert_eq!(
            signs,
            Signs { marks: 0.0, errors: 4, downs: 1, slow_for: None, ..Signs::default() },
            "the driver was loaded again"
        );
        assert_eq!(
            look(&mut port, 62, 20, 900, 5),
            Signs { marks: 0.0, errors: 1, downs: 1, slow_for: None, ..Signs::default() }
        );
        assert_eq!(look(&mut port, 303, 20, 900, 5), Signs::default());
    }

    #[test]
    fn a_link_is_slow_once_it_was_faster() {
        let mut port = PortCounters::default();
        let mut look = |second: u32, rate, is_up| {
            // 25 Gbit/s come over one lane, and the rate of a link that is down over four.
            let width = Some(if is_up { 1 } else { 4 });
            let reading = PortReading { is_up: Some(is_up), width, ..reading("mlx5_0", rate, &[]) };
            port.take(reading, second * SECOND, SECOND);
            port.signs(second * SECOND).slow_for
        };
        assert_eq!([look(0, 400, false), look(1, 50, true), look(2, 100, true), look(3, 95, true)], [None; 4]);
        assert_eq!([look(4, 50, true), look(9, 50, true)], [Some(Duration::ZERO), Some(5 * SECOND)]);
        assert_eq!([look(10, 5, false), look(11, 100, true)], [None; 2]);
    }

    #[test]
    fn a_port_that_is_not_there_is_remembered_for_a_while_without_its_signs() {
        let mut port = PortCounters::default();
        for (second, rate, marks) in [(1, 100, 0), (2, 50, 70)] {
            port.take(reading("mlx5_0", rate, &[(Counter::RpCnpHandled, marks)]), second * SECOND, SECOND);
        }
        let signs = |port: &PortCounters| (port.signs(2 * SECOND).marks, port.signs(2 * SECOND).slow_for);
        assert_eq!(signs(&port), (70.0, Some(Duration::ZERO)));
        assert!(port.miss(3 * SECOND));
        assert_eq!(signs(&port), (0.0, None));
        assert!(port.miss(901 * SECOND) && !port.miss(902 * SECOND));
    }

    #[test]
    fn the_use_of_all_names_of_a_port_is_that_of_the_port() {
        let of = |in_flight, second: u32, sender: &str| PortUse {
            in_flight,
            sent_at: Some(second * SECOND),
            senders: [sender.to_owned()].into(),
            ..PortUse::default()
        };
        let mut usage = of(1, 5, "node2");
        usage.merge(&of(2, 7, "node3"));
        let senders = ["node2", "node3"].map(str::to_owned).into();
        assert_eq!(usage, PortUse { senders, ..of(3, 7, "") });
    }

    #[test]
    fn fewer_lanes_count_if_the_rate_is_not_known() {
        let mut port = PortCounters::default();
        let mut look = |second: u32, rate, width| {
            port.take(PortReading { rate, width, ..reading("mlx5_0", 0, &[]) }, second * SECOND, SECOND);
            port.signs(second * SECOND).slow_for.is_some()
        };
        assert_eq!([look(1, None, Some(4)), look(2, None, Some(2)), look(3, None, Some(4))], [false, true, false]);
        assert!(!look(4, Some(100), Some(2)), "100 Gbit/s come over two lanes or four");
    }

    #[test]
    fn a_counter_that_comes_to_its_largest_value_fills_once() {
        let mut port = PortCounters::default();
        let mut look = |second: u32, recoveries, downs| {
            let counters = [(Counter::LinkErrorRecoveries, recoveries), (Counter::LinkDowned, downs)];
            port.take(reading("mlx5_0", 100, &counters), second * SECOND, SECOND);
            let signs = port.signs(second * SECOND);
            (signs.is_full, signs.fills)
        };
        assert_eq!(look(1, 255, 0), (true, 0), "full before the agent began");
        assert_eq!([look(2, 255, 254), look(3, 255, 255), look(4, 255, 255)], [(true, 0), (true, 1), (true, 1)]);
        assert_eq!(look(5, 0, 0), (false, 1));
        assert_eq!(port.full().count(), 0);
        assert!(port.miss(6 * SECOND));
        port.take(reading("mlx5_0", 100, &[(Counter::LinkDowned, 255)]), 7 * SECOND, SECOND);
        assert_eq!(port.signs(7 * SECOND).fills, 1, "nobody knows when");
    }
}
