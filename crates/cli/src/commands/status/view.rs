//! The status as `--json` shows it: docs/telemetry.md explains each field.

use super::readings::{Reading, Readings};
use railweave_telemetry::{Connection, Direction, Latencies, Presence, Rail, RunDir, SILENT, Snapshot};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Serialize)]
pub(super) struct View {
    pub(super) run_dir: String,
    pub(super) processes: Vec<ProcessView>,
    pub(super) damaged: Vec<DamagedView>,
}

/// A file that cannot be read.
#[derive(Serialize)]
pub(super) struct DamagedView {
    pub(super) file: String,
    pub(super) reason: String,
}

#[derive(Serialize)]
pub(super) struct ProcessView {
    pub(super) file: String,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) presence: &'static str,
    pub(super) silent: bool,
    pub(super) written_s_ago: f64,
    pub(super) rank: Option<u32>,
    pub(super) world: Option<u32>,
    pub(super) job: Option<String>,
    pub(super) job_variable: Option<String>,
    pub(super) version: String,
    pub(super) devices: Vec<DeviceView>,
    pub(super) groups: Vec<GroupView>,
    pub(super) events: Vec<EventView>,
    pub(super) events_ever: u64,
    pub(super) left_out: LeftOutView,
}

#[derive(Serialize)]
pub(super) struct DeviceView {
    name: String,
    speed_mbps: Option<u32>,
    fabric: String,
    ports: String,
}

/// The connections of one direction to one peer by one device.
#[derive(Serialize)]
pub(super) struct GroupView {
    pub(super) peer_host: String,
    pub(super) peer_rank: Option<u32>,
    pub(super) device: Option<String>,
    pub(super) direction: &'static str,
    pub(super) states: BTreeMap<&'static str, u32>,
    pub(super) messages: Option<u64>,
    pub(super) waited_for_cts: u64,
    pub(super) rails: Vec<RailView>,
}

/// The rails of one number between the same ends, of all connections of a group.
#[derive(Serialize)]
pub(super) struct RailView {
    pub(super) number: u8,
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) states: BTreeMap<&'static str, u32>,
    pub(super) policies: BTreeMap<&'static str, u32>,
    pub(super) since_s_ago: Option<f64>,
    pub(super) speed_mbps: Option<u32>,
    pub(super) share: Option<f64>,
    pub(super) rate_mbps: Option<f64>,
    pub(super) in_flight: Option<u64>,
    pub(super) bytes_sent: u64,
    pub(super) writes_sent: u64,
    pub(super) cts_writes: u64,
    pub(super) bytes_received: u64,
    pub(super) waited_for_cts: Option<u64>,
    pub(super) retransmitted: u64,
    pub(super) failovers: u64,
    pub(super) latency_p50_us: Option<f64>,
    pub(super) latency_p99_us: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct EventView {
    pub(super) s_ago: f64,
    pub(super) kind: String,
    pub(super) connection: Option<u32>,
    pub(super) rail: Option<u8>,
    pub(super) text: String,
}

/// The records that had no room in the file.
#[derive(Serialize)]
pub(super) struct LeftOutView {
    pub(super) devices: u32,
    pub(super) connections: u32,
    pub(super) rails: u32,
}

impl View {
    /// Returns the status at the time `now`, with rates since the readings `before`, and this many events of each
    /// process.
    pub(super) fn new(dir: &RunDir, before: &Readings, readings: &Readings, now: SystemTime, events: usize) -> Self {
        let now_ns = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let processes = readings.processes.iter().map(|(path, reading)| {
            let before = before.processes.get(path).map(|before| &before.snapshot);
            ProcessView::new(path.display().to_string(), before, reading, now_ns, events)
        });
        let mut processes: Vec<_> = processes.collect();
        let order = |process: &ProcessView| (process.job.clone(), process.rank, process.host.clone(), process.pid);
        processes.sort_by_cached_key(order);
        let damaged = readings.damaged.iter();
        Self {
            run_dir: dir.path().display().to_string(),
            processes,
            damaged: damaged
                .map(|(path, reason)| DamagedView { file: path.display().to_string(), reason: reason.clone() })
                .collect(),
        }
    }
}

/// Returns the time since then in seconds; 0 if it is in the future.
fn seconds_since(then_ns: u64, now_ns: u64) -> f64 {
    now_ns.saturating_sub(then_ns) as f64 / 1e9
}

impl ProcessView {
    fn new(file: String, before: Option<&Snapshot>, reading: &Reading, now_ns: u64, events: usize) -> Self {
        let Reading { snapshot, presence } = reading;
        let process = &snapshot.state.process;
        let written_s_ago = seconds_since(snapshot.written_ns, now_ns);
        let silent = *presence != Presence::Gone && written_s_ago > SILENT.as_secs_f64();
        let has_rates = *presence != Presence::Gone && !silent;
        let named = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let skipped = snapshot.events.len().saturating_sub(events);
        let devices = snapshot.state.devices.iter().map(|device| DeviceView {
            name: device.name.clone(),
            speed_mbps: device.speed_mbps,
            fabric: device.fabric.clone(),
            ports: device.ports.clone(),
        });
        let events = snapshot.events[skipped..].iter().map(|event| EventView {
            s_ago: seconds_since(event.time_ns, now_ns),
            kind: event.kind.to_string(),
            connection: event.connection,
            rail: event.rail,
            text: event.text.clone(),
        });
        let [left_out_devices, left_out_connections, left_out_rails] = snapshot.left_out;
        Self {
            file,
            host: process.host.clone(),
            pid: process.pid,
            presence: match presence {
                Presence::Running => "running",
                Presence::Gone => "gone",
                Presence::Unknown => "unknown",
            },
            silent,
            written_s_ago,
            rank: process.rank,
            world: process.world,
            job: named(&process.job),
            job_variable: named(&process.job_variable),
            version: process.version.clone(),
            devices: devices.collect(),
            groups: groups(before.filter(|_| has_rates), snapshot, now_ns),
            events: events.collect(),
            events_ever: snapshot.events_ever,
            left_out: LeftOutView {
                devices: left_out_devices,
                connections: left_out_connections,
                rails: left_out_rails,
            },
        }
    }
}

/// Rails that are shown as one: their number, and the addresses of both ends.
type Path<'a> = (u8, &'a str, &'a str);

/// Connections that are shown as one: the peer's host and rank, the device, and the direction.
type Group<'a> = (&'a str, Option<u32>, Option<u32>, Direction);

fn group(connection: &Connection) -> Group<'_> {
    (&connection.peer_host, connection.peer_rank, connection.device, connection.direction)
}

/// Returns the connections of a process by peer, device and direction.
fn groups(before: Option<&Snapshot>, snapshot: &Snapshot, now_ns: u64) -> Vec<GroupView> {
    let mut connections: BTreeMap<Group<'_>, Vec<&Connection>> = BTreeMap::new();
    let mut group_of = HashMap::new();
    for connection in &snapshot.state.connections {
        connections.entry(group(connection)).or_default().push(connection);
        group_of.insert(connection.number, group(connection));
    }
    let mut rails: BTreeMap<Group<'_>, BTreeMap<Path<'_>, Vec<&Rail>>> = BTreeMap::new();
    for rail in &snapshot.state.rails {
        // A rail whose connection had no room in the file belongs to no group.
        if let Some(group) = group_of.get(&rail.connection) {
            let path = (rail.number, &*rail.local, &*rail.remote);
            rails.entry(*group).or_default().entry(path).or_default().push(rail);
        }
    }
    let rates = Rates::new(before, snapshot, now_ns);
    let views = connections.into_iter().map(|(key, connections)| {
        let (peer_host, peer_rank, device, direction) = key;
        let device = device.map(|index| match snapshot.state.devices.get(index as usize) {
            Some(device) => device.name.clone(),
            None => format!("device {index}"),
        });
        GroupView {
            peer_host: peer_host.to_owned(),
            peer_rank,
            device,
            direction: direction.word(),
            states: counted(connections.iter().map(|connection| connection.state.word())),
            messages: connections.iter().filter_map(|connection| connection.messages).reduce(u64::saturating_add),
            waited_for_cts: connections
                .iter()
                .fold(0, |sum, connection| u64::saturating_add(sum, connection.waited_for_cts)),
            rails: rails.remove(&key).unwrap_or_default().into_values().map(|all| rail(&all, &rates, now_ns)).collect(),
        }
    });
    views.collect()
}

/// Returns the rails of one path as one. There is at least one.
fn rail(rails: &[&Rail], rates: &Rates, now_ns: u64) -> RailView {
    let sum = |count: fn(&Rail) -> u64| rails.iter().fold(0_u64, |sum, rail| sum.saturating_add(count(rail)));
    let mut latencies = Latencies::default();
    rails.iter().for_each(|rail| latencies.merge(&rail.latencies));
    let shares: Vec<f64> =
        rails.iter().filter_map(|rail| rail.share).map(|share| f64::from(share) / 65_536.0).collect();
    let since = rails.iter().map(|rail| rail.since_ns).filter(|since_ns| *since_ns > 0).max();
    RailView {
        number: rails[0].number,
        local: rails[0].local.clone(),
        remote: rails[0].remote.clone(),
        states: counted(rails.iter().map(|rail| rail.state.word())),
        policies: counted(rails.iter().map(|rail| rail.policy.word())),
        since_s_ago: since.map(|since_ns| seconds_since(since_ns, now_ns)),
        speed_mbps: rails.iter().find_map(|rail| rail.speed_mbps),
        share: (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64),
        rate_mbps: rails.iter().filter_map(|rail| rates.of(rail)).reduce(|sum, rate| sum + rate),
        in_flight: rails.iter().filter_map(|rail| rail.in_flight).reduce(u64::saturating_add),
        bytes_sent: sum(|rail| rail.bytes_sent),
        writes_sent: sum(|rail| rail.writes_sent),
        cts_writes: sum(|rail| rail.cts_writes),
        bytes_received: sum(|rail| rail.bytes_received),
        waited_for_cts: rails.iter().filter_map(|rail| rail.waited_for_cts).reduce(u64::saturating_add),
        retransmitted: sum(|rail| rail.retransmitted),
        failovers: sum(|rail| rail.failovers.into()),
        latency_p50_us: latencies.quantile(0.5),
        latency_p99_us: latencies.quantile(0.99),
    }
}

fn counted<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u32> {
    let mut counts = BTreeMap::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

/// The seconds after which a file that was not written says that nothing moves: no process looks at its counters later.
const QUIET_S: f64 = 2.5;

/// The bytes of each rail in an earlier snapshot.
struct Rates {
    bytes: HashMap<(u32, u8), u64>,
    seconds: f64,
    is_quiet: bool,
}

impl Rates {
    fn new(before: Option<&Snapshot>, now: &Snapshot, now_ns: u64) -> Self {
        let rails = before.into_iter().flat_map(|before| &before.state.rails);
        Self {
            bytes: rails.map(|rail| ((rail.connection, rail.number), carried(rail))).collect(),
            seconds: before.map_or(0.0, |before| seconds_since(before.written_ns, now.written_ns)),
            is_quiet: seconds_since(now.written_ns, now_ns) > QUIET_S,
        }
    }

    /// Returns the rate of a rail in Mbit/s; `None` if it was not there before, or the file was not written since.
    fn of(&self, rail: &Rail) -> Option<f64> {
        let bytes = carried(rail).saturating_sub(*self.bytes.get(&(rail.connection, rail.number))?);
        if self.is_quiet {
            return Some(0.0);
        }
        (self.seconds > 0.0).then(|| bytes as f64 * 8.0 / 1e6 / self.seconds)
    }
}

fn carried(rail: &Rail) -> u64 {
    rail.bytes_sent.saturating_add(rail.bytes_received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::{ConnectionState, RailState, State};

    const SECOND: u64 = 1_000_000_000;

    /// Two connections to a peer and one to another, with two rails each that have carried `bytes`.
    fn snapshot(written_ns: u64, bytes: u64) -> Snapshot {
        let connection = |number: u32| Connection {
            number,
            direction: Direction::Send,
            state: if number == 1 { ConnectionState::Closing } else { ConnectionState::Open },
            peer_host: if number == 2 { "node9".into() } else { "node8".into() },
            messages: Some(10),
            ..Connection::default()
        };
        let rail = |connection: u32, number: u8| Rail {
            connection,
            number,
            state: if connection == 0 { RailState::Down } else { RailState::Up },
            share: (connection == 0).then_some(16_384),
            bytes_sent: bytes * (u64::from(connection) + 1),
            ..Rail::default()
        };
        let rails = (0..3).flat_map(|connection| [rail(connection, 0), rail(connection, 1)]);
        let state = State { connections: (0..3).map(connection).collect(), rails: rails.collect(), ..State::default() };
        Snapshot { state, written_ns, ..Snapshot::default() }
    }

    #[test]
    fn connections_are_grouped_by_peer_and_their_rails_by_number() {
        let groups = groups(None, &snapshot(SECOND, 100), SECOND);
        assert_eq!(groups.iter().map(|group| &*group.peer_host).collect::<Vec<_>>(), ["node8", "node9"]);
        assert_eq!(groups[0].states, BTreeMap::from([("closing", 1), ("open", 1)]));
        assert_eq!((groups[0].messages, groups[0].rails.len()), (Some(20), 2));
        let rail = &groups[0].rails[1];
        assert_eq!(rail.states, BTreeMap::from([("down", 1), ("up", 1)]));
        assert_eq!((rail.number, rail.bytes_sent, rail.share, rail.rate_mbps), (1, 300, Some(0.25), None));
        assert_eq!((groups[1].rails[0].bytes_sent, groups[1].rails[0].share), (300, None));
    }

    #[test]
    fn rates_come_from_two_readings() {
        let before = snapshot(SECOND, 0);
        let at = |now: &Snapshot, now_ns| groups(Some(&before), now, now_ns)[0].rails[0].rate_mbps;
        let rate = |now: &Snapshot| at(now, now.written_ns + SECOND);
        // 3 MB in half a second.
        assert_eq!(rate(&snapshot(SECOND * 3 / 2, 1_000_000)), Some(48.0));
        assert_eq!(rate(&snapshot(2 * SECOND, 0)), Some(0.0));
        assert_eq!(rate(&snapshot(SECOND, 1_000_000)), None, "the file was not written since");
        assert_eq!(at(&snapshot(2 * SECOND, 1_000_000), 5 * SECOND), Some(0.0), "it has moved before, and no more");
        let mut without = snapshot(2 * SECOND, 0);
        without.state.rails.iter_mut().for_each(|rail| rail.connection += 3);
        without.state.connections.iter_mut().for_each(|connection| connection.number += 3);
        assert_eq!(rate(&without), None, "these connections are new");
    }
}
