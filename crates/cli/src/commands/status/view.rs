//! The status as `--json` shows it: docs/telemetry.md explains each field.

use crate::host::{
    Counts, Job, JobRail, Peer, RailSum, Rates, Reading, Readings, Source, counted, jobs, seconds_since,
};
use railweave_telemetry::{Connection, Direction, Presence, RunDir, SILENT, Snapshot};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Serialize)]
pub(super) struct View {
    pub(super) run_dir: String,
    /// The jobs as `railweave top` shows them.
    jobs: Vec<JobView>,
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

/// A job: the sums over its processes that are not gone.
#[derive(Serialize)]
struct JobView {
    job: Option<String>,
    job_variable: Option<String>,
    processes: Vec<JobProcessView>,
    peers: Vec<PeerView>,
}

#[derive(Serialize)]
struct JobProcessView {
    file: String,
    host: String,
    pid: u32,
    rank: Option<u32>,
    presence: &'static str,
}

/// The connections of a job to one host by one device.
#[derive(Serialize)]
struct PeerView {
    peer_host: String,
    peer_ranks: Vec<u32>,
    device: String,
    sending: BTreeMap<&'static str, u32>,
    receiving: BTreeMap<&'static str, u32>,
    messages: Option<u64>,
    waited_for_cts: u64,
    rails: Vec<JobRailView>,
}

/// The rails of one number and port.
#[derive(Serialize)]
struct JobRailView {
    number: u8,
    port: Option<String>,
    ends: Vec<EndsView>,
    states: BTreeMap<&'static str, u32>,
    policies: BTreeMap<&'static str, u32>,
    since_s_ago: Option<f64>,
    speed_mbps: Option<u32>,
    share: Option<f64>,
    sent_mbps: Option<f64>,
    received_mbps: Option<f64>,
    in_flight: Option<u64>,
    bytes_sent: u64,
    bytes_received: u64,
    retransmitted: u64,
    failovers: u64,
    latency_p50_us: Option<f64>,
    latency_p99_us: Option<f64>,
}

#[derive(Serialize)]
struct EndsView {
    local: String,
    remote: String,
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
        let counts: BTreeMap<_, _> =
            before.processes.iter().map(|(path, before)| (path, Counts::of(&before.snapshot))).collect();
        let files: Vec<String> = readings.processes.keys().map(|path| path.display().to_string()).collect();
        let rates = |path, reading: &Reading| Rates::new(counts.get(path), reading.snapshot.written_ns, now_ns);
        let sources = readings.processes.iter().zip(&files).map(|((path, reading), file)| Source {
            user: 0,
            run_dir: dir.path(),
            file,
            state: &reading.snapshot.state,
            presence: reading.presence,
            written_s_ago: seconds_since(reading.snapshot.written_ns, now_ns),
            rates: rates(path, reading),
            fresh: None,
        });
        let jobs = jobs(&sources.collect::<Vec<_>>());
        let processes = readings.processes.iter().zip(&files).map(|((path, reading), file)| {
            ProcessView::new(file.clone(), &rates(path, reading), reading, now_ns, events)
        });
        let mut processes: Vec<_> = processes.collect();
        let order = |process: &ProcessView| (process.job.clone(), process.rank, process.host.clone(), process.pid);
        processes.sort_by_cached_key(order);
        let damaged = readings.damaged.iter();
        Self {
            run_dir: dir.path().display().to_string(),
            jobs: jobs.into_iter().map(|job| JobView::new(job, now_ns)).collect(),
            processes,
            damaged: damaged
                .map(|(path, reason)| DamagedView { file: path.display().to_string(), reason: reason.clone() })
                .collect(),
        }
    }
}

/// Returns a rate in Mbit/s.
fn mbps(bytes_per_s: f64) -> f64 {
    bytes_per_s * 8.0 / 1e6
}

impl JobView {
    fn new(job: Job, now_ns: u64) -> Self {
        let processes = job.processes.into_iter().map(|process| JobProcessView {
            file: process.file,
            host: process.host,
            pid: process.pid,
            rank: process.rank,
            presence: process.presence,
        });
        Self {
            job: job.job,
            job_variable: job.job_variable,
            processes: processes.collect(),
            peers: job.peers.into_iter().map(|peer| PeerView::new(peer, now_ns)).collect(),
        }
    }
}

impl PeerView {
    fn new(peer: Peer, now_ns: u64) -> Self {
        Self {
            peer_ranks: peer.ranks.iter().copied().collect(),
            sending: peer.by_state(Direction::Send),
            receiving: peer.by_state(Direction::Receive),
            messages: peer.messages,
            waited_for_cts: peer.waited_for_cts,
            rails: peer.rails.into_iter().map(|rail| JobRailView::new(rail, now_ns)).collect(),
            peer_host: peer.host,
            device: peer.device,
        }
    }
}

impl JobRailView {
    fn new(rail: JobRail, now_ns: u64) -> Self {
        let JobRail { number, port, ends, sum, share, .. } = rail;
        let [states, policies] = sum.words();
        Self {
            number,
            port,
            ends: ends.into_iter().map(|(local, remote)| EndsView { local, remote }).collect(),
            states,
            policies,
            since_s_ago: sum.since_ns.map(|since_ns| seconds_since(since_ns, now_ns)),
            speed_mbps: sum.speed_mbps,
            share,
            sent_mbps: sum.rate.map(|rate| mbps(rate.sent)),
            received_mbps: sum.rate.map(|rate| mbps(rate.received)),
            in_flight: sum.in_flight,
            bytes_sent: sum.bytes_sent,
            bytes_received: sum.bytes_received,
            retransmitted: sum.retransmitted,
            failovers: sum.failovers,
            latency_p50_us: sum.latencies.quantile(0.5),
            latency_p99_us: sum.latencies.quantile(0.99),
        }
    }
}

impl ProcessView {
    fn new(file: String, rates: &Rates<'_>, reading: &Reading, now_ns: u64, events: usize) -> Self {
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
            groups: groups(has_rates.then_some(rates), snapshot, now_ns),
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
fn groups(rates: Option<&Rates<'_>>, snapshot: &Snapshot, now_ns: u64) -> Vec<GroupView> {
    let mut connections: BTreeMap<Group<'_>, Vec<&Connection>> = BTreeMap::new();
    let mut group_of = HashMap::new();
    for connection in &snapshot.state.connections {
        connections.entry(group(connection)).or_default().push(connection);
        group_of.insert(connection.number, group(connection));
    }
    let mut rails: BTreeMap<Group<'_>, BTreeMap<Path<'_>, RailSum>> = BTreeMap::new();
    for rail in &snapshot.state.rails {
        // A rail whose connection had no room in the file belongs to no group.
        if let Some(group) = group_of.get(&rail.connection) {
            let path = (rail.number, &*rail.local, &*rail.remote);
            let sum = rails.entry(*group).or_default().entry(path).or_default();
            sum.add(rail, rates.and_then(|rates| rates.of(rail)));
        }
    }
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
            rails: rails
                .remove(&key)
                .unwrap_or_default()
                .into_iter()
                .map(|(path, sum)| RailView::new(path, &sum, now_ns))
                .collect(),
        }
    });
    views.collect()
}

impl RailView {
    fn new((number, local, remote): Path<'_>, sum: &RailSum, now_ns: u64) -> Self {
        let [states, policies] = sum.words();
        Self {
            number,
            local: local.to_owned(),
            remote: remote.to_owned(),
            states,
            policies,
            since_s_ago: sum.since_ns.map(|since_ns| seconds_since(since_ns, now_ns)),
            speed_mbps: sum.speed_mbps,
            share: sum.mean_share(),
            rate_mbps: sum.rate.map(|rate| mbps(rate.sent + rate.received)),
            in_flight: sum.in_flight,
            bytes_sent: sum.bytes_sent,
            writes_sent: sum.writes_sent,
            cts_writes: sum.cts_writes,
            bytes_received: sum.bytes_received,
            waited_for_cts: sum.waited_for_cts,
            retransmitted: sum.retransmitted,
            failovers: sum.failovers,
            latency_p50_us: sum.latencies.quantile(0.5),
            latency_p99_us: sum.latencies.quantile(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::{ConnectionState, Rail, RailState, State};

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
        let counts = Counts::of(&before);
        let at = |now: &Snapshot, now_ns| {
            let rates = Rates::new(Some(&counts), now.written_ns, now_ns);
            groups(Some(&rates), now, now_ns)[0].rails[0].rate_mbps
        };
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
