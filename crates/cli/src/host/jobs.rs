//! Jobs, their peers, and the rails to these: the sums over all processes of a job on this host.

use super::rates::{ByRail, Rates, id};
use super::sum::RailSum;
use railweave_telemetry::{ConnectionState, Direction, Latencies, Presence, Rail, SILENT, State};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// The file of a process, and what it carried lately.
pub(crate) struct Source<'a> {
    /// The owner of its run dir.
    pub(crate) user: u32,
    /// Its run dir: orders for a job go there.
    pub(crate) run_dir: &'a Path,
    /// The path of the file.
    pub(crate) file: &'a str,
    pub(crate) state: &'a State,
    pub(crate) presence: Presence,
    /// The age of its last write in seconds.
    pub(crate) written_s_ago: f64,
    pub(crate) rates: Rates<'a>,
    /// The latencies of each rail that came since the last look, if somebody looks again and again.
    pub(crate) fresh: Option<&'a ByRail<Latencies>>,
}

impl<'a> Source<'a> {
    fn job_key(&self) -> JobKey<'a> {
        (self.user, self.run_dir, &self.state.process.job)
    }

    /// Returns true if it may run, but has not written for long.
    fn is_silent(&self) -> bool {
        self.presence != Presence::Gone && self.written_s_ago > SILENT.as_secs_f64()
    }
}

/// A job on this host, as far as its files are in one run dir.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) user: u32,
    pub(crate) run_dir: PathBuf,
    /// Its id; `None` if it is not known.
    pub(crate) job: Option<String>,
    /// The variable with the id.
    pub(crate) job_variable: Option<String>,
    /// Its processes, by rank.
    pub(crate) processes: Vec<ProcessFacts>,
    /// The connections of those that are not gone, by the peer's host and the device.
    pub(crate) peers: Vec<Peer>,
}

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessFacts {
    pub(crate) rank: Option<u32>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) file: String,
    /// `running`, `silent`, `gone` or `unknown`.
    pub(crate) presence: &'static str,
}

/// The connections of a job to one host by one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The name of the host; empty if it is not known.
    pub(crate) host: String,
    /// The name of the device; empty if it is not known.
    pub(crate) device: String,
    /// The ranks there.
    pub(crate) ranks: BTreeSet<u32>,
    /// The connections that send, receive, or of which neither is known, by state.
    pub(crate) connections: [[u32; ConnectionState::ALL.len()]; Direction::ALL.len()],
    /// Receives that were posted.
    pub(crate) messages: Option<u64>,
    /// Messages that waited for their CTS.
    pub(crate) waited_for_cts: u64,
    pub(crate) rails: Vec<JobRail>,
}

impl Peer {
    /// Returns the number of connections of a direction.
    pub(crate) fn count(&self, direction: Direction) -> u32 {
        self.connections[direction as usize].iter().sum()
    }

    /// Returns the number of connections of a direction by the word of their state.
    pub(crate) fn by_state(&self, direction: Direction) -> BTreeMap<&'static str, u32> {
        let counts = &self.connections[direction as usize];
        let words = ConnectionState::ALL.iter().map(|state| (state.word(), counts[*state as usize]));
        words.filter(|(_, count)| *count > 0).collect()
    }
}

/// The rails of one number and port.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobRail {
    pub(crate) number: u8,
    /// The name of this end's port, if its file has it.
    pub(crate) port: Option<String>,
    /// The addresses of both ends, up to [`MOST_ENDS`].
    pub(crate) ends: BTreeSet<(String, String)>,
    pub(crate) sum: RailSum,
    /// The part of the peer's data that is sent over it, 0 to 1: that of the bytes while any are sent, otherwise that
    /// of the shares which the connections that send had last.
    pub(crate) share: Option<f64>,
    /// The latencies that came since the last look.
    pub(crate) fresh: Latencies,
}

/// The most pairs of addresses of a rail.
const MOST_ENDS: usize = 8;

impl JobRail {
    /// Adds the addresses of a rail, unless they are there or there is no room.
    fn add_ends(&mut self, rail: &Rail) {
        let is_same = |(local, remote): &(String, String)| *local == rail.local && *remote == rail.remote;
        // All but the first rails end here: a comparison of texts for each would cost more than all sums.
        if self.ends.len() < MOST_ENDS && !self.ends.iter().any(is_same) {
            self.ends.insert((rail.local.clone(), rail.remote.clone()));
        }
    }
}

/// The connections to one host by one device, while they are summed. The shares are those of connections that send.
#[derive(Default)]
struct PeerSum<'a> {
    peer: Peer,
    rails: BTreeMap<(u8, &'a str), (JobRail, f64)>,
}

/// A user, a run dir and a job.
type JobKey<'a> = (u32, &'a Path, &'a str);

/// A job, while it is summed.
struct JobSum<'a> {
    job: Job,
    peers: Vec<PeerSum<'a>>,
    /// The places of peers, by the host and the device.
    places: BTreeMap<(&'a str, &'a str), usize>,
}

/// Returns the jobs to which the processes belong, sorted by user and id, each with its peers by name.
pub(crate) fn jobs(sources: &[Source<'_>]) -> Vec<Job> {
    let mut sums: BTreeMap<JobKey<'_>, JobSum<'_>> = BTreeMap::new();
    for source in sources {
        let sum = sums.entry(source.job_key()).or_insert_with(|| JobSum::new(source));
        sum.job.processes.push(facts(source));
        if source.presence != Presence::Gone {
            sum.add(source);
        }
    }
    sums.into_values().map(JobSum::finished).collect()
}

fn facts(source: &Source<'_>) -> ProcessFacts {
    let process = &source.state.process;
    let presence = match source.presence {
        Presence::Gone => "gone",
        _ if source.is_silent() => "silent",
        Presence::Running => "running",
        Presence::Unknown => "unknown",
    };
    let (host, file) = (process.host.clone(), source.file.to_owned());
    ProcessFacts { rank: process.rank, host, pid: process.pid, file, presence }
}

impl<'a> JobSum<'a> {
    /// Returns the job of a process, without any.
    fn new(source: &Source<'_>) -> Self {
        let process = &source.state.process;
        let named = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let job = Job {
            user: source.user,
            run_dir: source.run_dir.to_owned(),
            job: named(&process.job),
            job_variable: named(&process.job_variable),
            processes: Vec::new(),
            peers: Vec::new(),
        };
        Self { job, peers: Vec::new(), places: BTreeMap::new() }
    }

    /// Adds the connections and rails of a process.
    fn add(&mut self, source: &Source<'a>) {
        let state = source.state;
        let mut found = HashMap::with_capacity(state.connections.len());
        for connection in &state.connections {
            let device = connection.device.and_then(|device| state.devices.get(device as usize));
            let device = device.map_or("", |device| &device.name);
            let key = (&*connection.peer_host, device);
            let place = *self.places.entry(key).or_insert_with(|| {
                let peer = Peer { host: connection.peer_host.clone(), device: device.to_owned(), ..Peer::default() };
                self.peers.push(PeerSum { peer, rails: BTreeMap::new() });
                self.peers.len() - 1
            });
            found.insert(connection.number, (place, connection.direction));
            let peer = &mut self.peers[place].peer;
            peer.ranks.extend(connection.peer_rank);
            peer.connections[connection.direction as usize][connection.state as usize] += 1;
            if let Some(messages) = connection.messages {
                peer.messages = Some(peer.messages.unwrap_or(0).saturating_add(messages));
            }
            peer.waited_for_cts = peer.waited_for_cts.saturating_add(connection.waited_for_cts);
        }
        let has_rates = !source.is_silent();
        for rails in state.rails.chunk_by(|one, other| one.connection == other.connection) {
            // A rail whose connection had no room in the file belongs to nothing.
            let Some((place, direction)) = found.get(&rails[0].connection) else { continue };
            for rail in rails {
                let port = state.port_of(rail).map_or("", |port| &port.name);
                let (sum, shares) = self.peers[*place].rails.entry((rail.number, port)).or_insert_with(|| {
                    let port = Some(port.to_owned()).filter(|port| !port.is_empty());
                    (JobRail { number: rail.number, port, ..JobRail::default() }, 0.0)
                });
                sum.sum.add(rail, source.rates.of(rail).filter(|_| has_rates));
                // That of a connection that receives is a part of what it has received.
                if *direction == Direction::Send {
                    *shares += f64::from(rail.share.unwrap_or(0).min(65_536));
                }
                if let Some(fresh) = source.fresh.and_then(|fresh| fresh.get(id(rail))) {
                    sum.fresh.merge(fresh);
                }
                sum.add_ends(rail);
            }
        }
    }

    /// Returns the job, with its processes by rank and its peers by name.
    fn finished(mut self) -> Job {
        self.job.processes.sort();
        let mut peers = self.peers;
        let places = self.places.into_values();
        self.job.peers = places.map(|place| finished(std::mem::take(&mut peers[place]))).collect();
        self.job
    }
}

/// Returns a peer whose rails are all there.
fn finished(sum: PeerSum<'_>) -> Peer {
    let mut peer = sum.peer;
    let sent = |rail: &JobRail| rail.sum.rate.map_or(0.0, |rate| rate.sent);
    let all: f64 = sum.rails.values().map(|(rail, _)| sent(rail)).sum();
    let all_shares: f64 = sum.rails.values().map(|(_, shares)| shares).sum();
    let rails = sum.rails.into_values().map(|(mut rail, shares)| {
        let of_bytes = (all > 0.0).then(|| sent(&rail) / all);
        rail.share = of_bytes.or_else(|| (all_shares > 0.0).then(|| shares / all_shares));
        rail
    });
    peer.rails = rails.collect();
    peer
}

#[cfg(test)]
mod tests {
    use super::super::rates::Counts;
    use super::*;
    use railweave_telemetry::{Connection, Device, Port, Process, RailState, Snapshot};

    /// A process of a job with two connections to node8, each of two rails that have carried `bytes`.
    fn state(job: &str, bytes: u64) -> State {
        let connection = |number: u32| Connection {
            number,
            direction: if number == 0 { Direction::Send } else { Direction::Receive },
            state: ConnectionState::Open,
            device: Some(0),
            peer_host: "node8".into(),
            peer_rank: Some(9),
            ..Connection::default()
        };
        let rail = |connection: u32, number: u8| Rail {
            connection,
            number,
            state: if number == 1 { RailState::Down } else { RailState::Up },
            port: Some(number.into()),
            // Received data comes over the second rail alone.
            share: Some(match (connection, number) {
                (0, 0) => 49_152,
                (0, _) => 16_384,
                (_, number) => 65_536 * u32::from(number),
            }),
            bytes_sent: if connection == 0 { bytes * (4 - 2 * u64::from(number)) } else { 0 },
            bytes_received: if connection == 1 { bytes } else { 0 },
            ..Rail::default()
        };
        let port = |name: &str| Port { name: name.into(), ..Port::default() };
        State {
            process: Process { job: job.into(), rank: Some(3), ..Process::default() },
            devices: vec![Device { name: "eth0+eth1".into(), ..Device::default() }],
            connections: vec![connection(0), connection(1)],
            rails: vec![rail(0, 0), rail(0, 1), rail(1, 0), rail(1, 1)],
            ports: vec![port("eth0"), port("eth1")],
        }
    }

    fn source<'a>(state: &'a State, before: Option<&'a Counts>, presence: Presence) -> Source<'a> {
        let rates = Rates::new(before, 1_000_000_000, 1_000_000_000);
        Source {
            user: 0,
            run_dir: Path::new("/run"),
            file: "a",
            state,
            presence,
            written_s_ago: 0.0,
            rates,
            fresh: None,
        }
    }

    #[test]
    fn rails_of_all_processes_of_a_job_are_summed_by_peer_and_port() {
        let before = Counts::of(&Snapshot { state: state("", 0), ..Snapshot::default() });
        let states = [state("7", 100), state("7", 200), state("8", 100), state("7", 999)];
        let presences = [Presence::Running, Presence::Unknown, Presence::Running, Presence::Gone];
        let sources: Vec<_> = states.iter().zip(presences).map(|(it, life)| source(it, Some(&before), life)).collect();
        let jobs = jobs(&sources);
        assert_eq!(jobs.iter().map(|job| job.job.as_deref()).collect::<Vec<_>>(), [Some("7"), Some("8")]);
        let words: Vec<_> = jobs[0].processes.iter().map(|process| process.presence).collect();
        assert_eq!(words, ["gone", "running", "unknown"]);
        let [peer] = &jobs[0].peers[..] else { panic!("{:?}", jobs[0].peers) };
        assert_eq!((&*peer.host, &*peer.device, peer.count(Direction::Send)), ("node8", "eth0+eth1", 2));
        assert_eq!(peer.by_state(Direction::Receive), BTreeMap::from([("open", 2)]));
        let [first, second] = &peer.rails[..] else { panic!("{:?}", peer.rails) };
        assert_eq!((first.port.as_deref(), second.port.as_deref()), (Some("eth0"), Some("eth1")));
        assert_eq!(first.sum.rate, Some(super::super::rates::Rate { sent: 1200.0, received: 300.0 }));
        assert_eq!((first.share, second.share), (Some(1200.0 / 1800.0), Some(600.0 / 1800.0)), "by the bytes");
        assert_eq!((first.sum.in_state(RailState::Up), second.sum.in_state(RailState::Down)), (4, 4));
    }

    #[test]
    fn shares_without_traffic_are_the_last_ones_and_silence_has_no_rate() {
        let state = state("", 5);
        let before = Counts::of(&Snapshot { state: self::state("", 0), ..Snapshot::default() });
        let mut silent = source(&state, Some(&before), Presence::Running);
        silent.written_s_ago = SILENT.as_secs_f64() + 1.0;
        let jobs = jobs(&[silent]);
        let rail = &jobs[0].peers[0].rails[0];
        assert_eq!((jobs[0].processes[0].presence, rail.sum.rate, rail.share), ("silent", None, Some(0.75)));
        assert_eq!(jobs[0].job, None);
    }

    #[test]
    fn one_job_in_two_run_dirs_is_two() {
        let states = [state("7", 5), state("7", 5)];
        let mut sources: Vec<_> = states.iter().map(|state| source(state, None, Presence::Running)).collect();
        sources[1].run_dir = Path::new("/other");
        let jobs = jobs(&sources);
        let dirs: Vec<_> = jobs.iter().map(|job| (job.run_dir.to_str().unwrap(), job.processes.len())).collect();
        assert_eq!(dirs, [("/other", 1), ("/run", 1)], "orders for them go to different places");
    }

    #[test]
    fn fresh_latencies_are_summed_by_rail() {
        let state = state("7", 5);
        // Not in the order of files.
        let fresh = [((1, 1), Latencies([3; 16])), ((0, 1), Latencies([2; 16]))].into_iter().collect();
        let mut source = source(&state, None, Presence::Running);
        source.fresh = Some(&fresh);
        let jobs = jobs(&[source]);
        let rails = &jobs[0].peers[0].rails;
        assert_eq!((rails[0].fresh, rails[1].fresh), (Latencies::default(), Latencies([5; 16])));
    }
}
