//! A small host for tests of the agent: jobs that follow its rules, ports with capacities, and a clock that may jump.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod metrics;

use railweave_agent::{Agent, Config, Now, Steers};
use railweave_counters::{Counter, Fabric, PortReading};
use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Order, Policy, Port, Presence, Process, Rail,
    RailState, Rules, Snapshot, State, Subject,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// One Mbit/s in bytes per second.
pub(crate) const MEGABIT: f64 = 125_000.0;

/// The host's time when a test begins, since 1970 and since its start: neither is 0 on a real host.
const CLOCK: u64 = 1_790_000_000;
const UP: Duration = Duration::from_secs(1_000_000);

/// The rounds after which the ports are as good as shared.
const ROUNDS: usize = 12;

/// A port: its capacity in bytes per second, the load from which its data meets congestion, and its counters.
pub(crate) struct Link {
    pub(crate) capacity: f64,
    pub(crate) knee: f64,
    pub(crate) is_present: bool,
    pub(crate) reading: PortReading,
}

impl Link {
    /// Adds to a counter of the port.
    pub(crate) fn count(&mut self, counter: Counter, more: u64) {
        let place = self.reading.counters.binary_search_by_key(&counter, |(counter, _)| *counter).unwrap();
        self.reading.counters[place].1 = self.reading.counters[place].1.wrapping_add(more);
    }
}

/// A job with one process and one connection that sends.
pub(crate) struct Job {
    pub(crate) user: u32,
    pub(crate) file: String,
    pub(crate) ports: Vec<String>,
    /// Seconds of data and of silence, again and again; `None` if it never pauses.
    pub(crate) bursts: Option<(u64, u64)>,
    /// The bytes per second that it has to send while it sends.
    pub(crate) demand: f64,
    /// The bytes that it has yet to send.
    pub(crate) left: f64,
    pub(crate) ended: Option<Duration>,
    pub(crate) presence: Presence,
    /// True if it writes no file any more, and sends nothing.
    pub(crate) hangs: bool,
    /// False if its settings keep it from following policy files.
    pub(crate) follows: bool,
    pub(crate) snapshot: Snapshot,
    order: Option<Order>,
    sent: Vec<f64>,
    is_new: bool,
}

impl Job {
    /// Returns the bytes that it has sent over a rail.
    pub(crate) fn sent(&self, rail: usize) -> u64 {
        self.snapshot.state.rails[rail].bytes_sent
    }

    fn decide(&mut self, rules: Option<&Rules>) {
        let names: Vec<&str> = self.ports.iter().map(String::as_str).collect();
        let state = &self.snapshot.state;
        let subject = Subject {
            job: &state.process.job,
            peer_host: &state.connections[0].peer_host,
            device: &state.devices[0].name,
            rails: &names,
            ..Subject::default()
        };
        self.order = rules.filter(|_| self.follows).and_then(|rules| rules.decide(&subject));
    }

    fn is_sending(&self, up: Duration) -> bool {
        let is_on = self.bursts.is_none_or(|(on, off)| (up - UP).as_secs() % (on + off) < on);
        is_on && !self.hangs && self.left > 0.0 && self.presence != Presence::Gone
    }

    fn drained(&self) -> u8 {
        self.order.map_or(0, |order| order.drained)
    }

    /// Returns the weights that an order gives its rails; `None` if the rails decide.
    fn weights(&self) -> Option<Vec<f64>> {
        let weights = self.order?.weights?;
        let usable = (0..self.ports.len()).filter(|rail| self.drained() & (1 << rail) == 0);
        let sum: u32 = usable.clone().map(|rail| weights[rail]).sum();
        if sum == 0 {
            return None;
        }
        let mut parts = vec![0.0; self.ports.len()];
        usable.for_each(|rail| parts[rail] = f64::from(weights[rail]) / f64::from(sum));
        Some(parts)
    }

    /// Writes its file.
    fn write(&mut self, rates: &[f64], seconds: f64, clock: Duration) -> bool {
        let drained = self.drained();
        let policy = if self.weights().is_some() { Policy::Agent } else { Policy::Adaptive };
        let moved: f64 = rates.iter().sum::<f64>() * seconds;
        self.left -= moved;
        let mut is_changed = moved > 0.0 || self.is_new;
        for (number, rail) in self.snapshot.state.rails.iter_mut().enumerate() {
            self.sent[number] += rates[number] * seconds;
            let is_drained = drained & (1 << number) != 0;
            let state = match rail.state {
                RailState::Up | RailState::Drained if is_drained => RailState::Drained,
                RailState::Drained => RailState::Up,
                other => other,
            };
            is_changed |= rail.state != state || rail.policy != policy;
            (rail.state, rail.policy) = (state, policy);
            rail.writes_sent = rail.writes_sent.wrapping_add(u64::from(rates[number] > 0.0));
            rail.bytes_sent = self.sent[number] as u64;
        }
        is_changed |= clock.as_nanos() as u64 >= self.snapshot.written_ns + 5_000_000_000;
        if is_changed {
            (self.snapshot.written_ns, self.is_new) = (clock.as_nanos() as u64, false);
            self.snapshot.generation += 1;
        }
        is_changed
    }
}

/// The host.
pub(crate) struct Host {
    pub(crate) agent: Agent,
    pub(crate) links: BTreeMap<String, Link>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) up: Duration,
    /// Seconds that the clock was set forward.
    pub(crate) jump: i64,
    pub(crate) step: Duration,
    /// The sentences that the agent has logged, and those of the last look.
    pub(crate) log: Vec<String>,
    pub(crate) lines: usize,
    /// The times that the rules of a user have changed.
    pub(crate) changes: u32,
    rules: BTreeMap<u32, (String, Rules)>,
    /// True until an agent that was started again has looked once.
    is_old: bool,
}

impl Host {
    /// Returns a host with these ports, in Mbit/s, and an agent with this configuration that looks once a second.
    pub(crate) fn new(config: &str, ports: &[(&str, f64)]) -> Self {
        let links = ports.iter().map(|(name, megabits)| ((*name).to_owned(), link(name, megabits * MEGABIT)));
        Self {
            agent: agent(config),
            links: links.collect(),
            jobs: Vec::new(),
            up: UP,
            jump: 0,
            step: Duration::from_secs(1),
            log: Vec::new(),
            lines: 0,
            changes: 0,
            rules: BTreeMap::new(),
            is_old: false,
        }
    }

    /// Starts a job; returns its place. Its connection leads over these ports, in this order.
    pub(crate) fn job(&mut self, user: u32, name: &str, ports: &[&str]) -> usize {
        let number = self.jobs.len() as u32;
        let rail = |(place, port): (usize, &&str)| Rail {
            number: place as u8,
            state: RailState::Up,
            policy: Policy::Adaptive,
            speed_mbps: self.links.get(*port).map(|link| (link.capacity / MEGABIT) as u32),
            port: Some(place as u16),
            ..Rail::default()
        };
        let state = State {
            process: Process { pid: 1000 + number, host: "node1".into(), job: name.into(), ..Process::default() },
            devices: vec![Device { name: ports.join("+"), ..Device::default() }],
            connections: vec![Connection {
                direction: Direction::Send,
                state: ConnectionState::Open,
                device: Some(0),
                peer_host: "node2".into(),
                ..Connection::default()
            }],
            rails: ports.iter().enumerate().map(rail).collect(),
            ports: ports.iter().map(|port| Port { name: (*port).to_owned(), fabric: "verbs".into() }).collect(),
        };
        self.jobs.push(Job {
            user,
            file: format!("{number:032x}.railweave"),
            ports: ports.iter().map(|port| (*port).to_owned()).collect(),
            bursts: None,
            demand: f64::INFINITY,
            left: f64::INFINITY,
            ended: None,
            presence: Presence::Running,
            hangs: false,
            follows: true,
            sent: vec![0.0; ports.len()],
            snapshot: Snapshot { state, ..Snapshot::default() },
            order: None,
            is_new: true,
        });
        self.agent.set_steers(user, &format!("/dev/shm/railweave-{user}"), Steers::Yes);
        self.jobs.len() - 1
    }

    pub(crate) fn now(&self) -> Now {
        let clock = (CLOCK.saturating_add_signed(self.jump)) + (self.up - UP).as_secs();
        Now { clock: Duration::from_secs(clock), up: self.up }
    }

    /// Ends the agent and starts another, which finds the files of the last.
    pub(crate) fn restart(&mut self, config: &str) {
        let texts: Vec<String> = self.rules.keys().map(|user| self.policy(*user)).collect();
        let old = std::mem::replace(&mut self.agent, agent(config));
        drop(old);
        for text in texts {
            if let railweave_agent::Origin::Agent(before) = railweave_agent::origin(&text) {
                let now = self.now();
                self.log.extend(self.agent.inherit(&before, now));
            }
        }
        self.is_old = true;
        for job in &mut self.jobs {
            job.is_new = true;
            self.agent.set_steers(job.user, &format!("/dev/shm/railweave-{}", job.user), Steers::Yes);
        }
    }

    /// Returns the text of a user's policy file.
    pub(crate) fn policy(&self, user: u32) -> String {
        self.agent.policy_file(&self.agent.rules(user), self.now().clock)
    }

    /// Gives a port back, as an operator does.
    pub(crate) fn give_back(&mut self, port: &str) -> bool {
        self.agent.give_back(port, self.now())
    }

    /// Plays for this many seconds.
    pub(crate) fn play(&mut self, seconds: u64) {
        let end = self.up + Duration::from_secs(seconds);
        while self.up < end {
            self.look();
        }
    }

    /// Plays one step: data moves, then the agent looks and writes its rules.
    pub(crate) fn look(&mut self) {
        self.up += self.step;
        let (now, seconds) = (self.now(), self.step.as_secs_f64());
        let rates = self.rates();
        for (job, rates) in self.jobs.iter_mut().zip(&rates) {
            let (user, presence) = (job.user, job.presence);
            for (port, rate) in job.ports.iter().zip(rates) {
                if let Some(link) = self.links.get_mut(port) {
                    link.count(Counter::PortDataTransmitted, (rate * seconds) as u64);
                }
            }
            let is_alive = presence != Presence::Gone && !job.hangs && job.ended.is_none();
            // A file is there when the agent begins, even if nobody writes it any more.
            let is_written = is_alive && job.write(rates, seconds, now.clock);
            if is_written || std::mem::take(&mut job.is_new) && job.ended.is_none() {
                self.agent.see(user, &job.file, &job.snapshot, presence, self.is_old, now);
            } else {
                self.agent.keep(user, &job.file, presence);
            }
            if job.left <= 0.0 && job.ended.is_none() {
                job.ended = Some(self.up);
                self.agent.forget(user, &job.file);
            }
        }
        self.is_old = false;
        for (name, link) in &mut self.links {
            let load = self.jobs.iter().zip(&rates).flat_map(|(job, rates)| job.ports.iter().zip(rates));
            let load: f64 = load.filter(|(port, _)| *port == name).map(|(_, rate)| rate).sum();
            if load > link.knee {
                link.count(Counter::RpCnpHandled, (500.0 * seconds) as u64);
            }
        }
        let readings = self.links.values().filter(|link| link.is_present).map(|link| link.reading.clone()).collect();
        let lines = self.agent.end_look(readings, now);
        self.lines = lines.len();
        self.log.extend(lines.into_iter().map(|(_, line)| line));
        self.follow();
    }

    /// Lets processes follow the rules, which have to be right.
    fn follow(&mut self) {
        let mut users: Vec<u32> = self.jobs.iter().map(|job| job.user).collect();
        users.sort_unstable();
        users.dedup();
        for user in users {
            let rules = self.agent.rules(user);
            if self.rules.get(&user).is_some_and(|(before, _)| *before == rules) {
                continue;
            }
            let text = self.agent.policy_file(&rules, self.now().clock);
            let parsed = Rules::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let is_first = self.rules.insert(user, (rules.clone(), parsed)).is_none();
            self.changes += u32::from(!(is_first && rules.is_empty()));
            let rules = self.rules.get(&user).map(|(_, rules)| rules);
            self.jobs.iter_mut().filter(|job| job.user == user).for_each(|job| job.decide(rules));
        }
        for job in self.jobs.iter_mut().filter(|job| job.order.is_none()) {
            job.decide(self.rules.get(&job.user).map(|(_, rules)| rules));
        }
    }

    /// Returns the bytes per second of each rail of each job: ports are shared between the rails that want more.
    fn rates(&self) -> Vec<Vec<f64>> {
        let mut rates: Vec<Vec<f64>> = self.jobs.iter().map(|job| vec![0.0; job.ports.len()]).collect();
        let mut wants = rates.clone();
        let weights: Vec<Option<Vec<f64>>> = self.jobs.iter().map(Job::weights).collect();
        for (job, wants) in self.jobs.iter().zip(&mut wants) {
            let is_sending = job.is_sending(self.up);
            for (rail, want) in wants.iter_mut().enumerate() {
                let is_usable = is_sending
                    && job.drained() & (1 << rail) == 0
                    && job.snapshot.state.rails[rail].state != RailState::Down;
                *want = if is_usable { job.demand } else { 0.0 };
            }
        }
        for _ in 0..ROUNDS {
            self.share(&wants, &mut rates);
            for (((job, wants), rates), weights) in self.jobs.iter().zip(&mut wants).zip(&mut rates).zip(&weights) {
                let all: f64 = match weights {
                    Some(weights) => {
                        let most = rates.iter().zip(weights).filter(|(_, weight)| **weight > 0.0);
                        most.map(|(rate, weight)| rate / weight).fold(f64::INFINITY, f64::min)
                    }
                    None => rates.iter().sum(),
                };
                let all = all.min(job.demand);
                let sum = rates.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                for (rail, (rate, want)) in rates.iter_mut().zip(wants).enumerate() {
                    match weights {
                        // It takes no more than its weights let it, and leaves the rest to others.
                        Some(weights) => (*rate, *want) = (all * weights[rail], all * weights[rail]),
                        None => *rate *= all / sum,
                    }
                }
            }
        }
        rates
    }

    /// Shares each port between the rails over it: equally, but none gets more than it wants.
    fn share(&self, wants: &[Vec<f64>], rates: &mut [Vec<f64>]) {
        for (name, link) in &self.links {
            let mut rails: Vec<(usize, usize)> = Vec::new();
            for (place, job) in self.jobs.iter().enumerate() {
                rails.extend(
                    job.ports.iter().enumerate().filter(|(_, port)| *port == name).map(|(rail, _)| (place, rail)),
                );
            }
            rails.sort_by(|a, b| wants[a.0][a.1].total_cmp(&wants[b.0][b.1]));
            let (mut left, mut others) = (link.capacity, rails.len());
            for (job, rail) in rails {
                rates[job][rail] = wants[job][rail].min(left / others as f64);
                (left, others) = (left - rates[job][rail], others - 1);
            }
        }
    }

    /// Adds an event to a job's file.
    pub(crate) fn event(&mut self, job: usize, kind: EventKind) {
        self.jobs[job].snapshot.events = vec![Event { kind, ..Event::default() }];
    }

    /// Returns the kinds of the present findings about something.
    pub(crate) fn findings(&self, about: &str) -> Vec<&'static str> {
        self.agent.state().findings.iter().filter(|it| it.about == about).map(|it| it.kind).collect()
    }

    /// Returns the phase of a port's drain.
    pub(crate) fn phase(&self, port: &str) -> Option<railweave_agent::Phase> {
        let ports = self.agent.state().ports;
        ports.into_iter().find(|it| it.port == port).and_then(|it| it.drain).map(|drain| drain.phase)
    }
}

/// Returns the values of `rail=` by which a rule drains an interface or adapter.
pub(crate) fn patterns(port: &str) -> String {
    format!("{port},{port}@*,{port}:*,{port}_dma,{port}_dma:*")
}

fn agent(config: &str) -> Agent {
    Agent::new(Config::parse(config).unwrap(), "0.1.0", "node1", 42)
}

fn link(name: &str, capacity: f64) -> Link {
    let counters = [Counter::PortDataTransmitted, Counter::RpCnpHandled, Counter::SymbolErrors, Counter::LinkDowned];
    let mut counters = counters.map(|counter| (counter, 1000)).to_vec();
    counters.sort_unstable();
    let reading = PortReading {
        name: name.to_owned(),
        fabric: Fabric::Verbs,
        is_up: Some(true),
        state_id: Some(4),
        physical_state_id: Some(5),
        rate: Some(capacity as u64),
        width: Some(4),
        pcie: None,
        interface: None,
        counters,
    };
    Link { capacity, knee: f64::INFINITY, is_present: true, reading }
}
