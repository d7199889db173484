//! The random worlds of the judge: one number, the seed, decides everything.

use railweave_fabric_sim::{Chance, Wire};

use crate::flow::Load;
use crate::stage::{Split, Stage};

/// The bytes of one end that pass a wire before another has its turn.
pub const QUANTUM: u32 = 8 << 10;

/// The shortest time that a message may take at the sum of all rates: the clock's ticks are nanoseconds.
const SHORTEST_NS: f64 = 4_000.0;

/// A world with one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The seed.
    pub seed: u64,
    /// The rates of the rails.
    pub rates_kbps: Vec<u64>,
    /// The time from the end of a piece on the wire to its acknowledgement, for each rail.
    pub latencies_ns: Vec<u64>,
    /// The sends in progress.
    pub depth: usize,
    /// The messages that travel alone before others do: none is drawn.
    pub alone: u64,
    /// The receives that are in progress beyond that.
    pub ahead: usize,
    /// True if the applications test only the oldest request.
    pub in_order: bool,
    /// The size of the messages.
    pub bytes: u64,
    /// The mean of the jitter.
    pub jitter_ns: u64,
    /// The time between two looks of an application; 0 if it looks at once.
    pub poll_ns: u64,
    /// The time of the first look.
    pub phase_ns: u64,
    /// The change of a rail's rate, if there is one.
    pub jump: Option<Jump>,
}

/// A rail's rate changes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The rail.
    pub rail: usize,
    /// Its rate in thousandths of the old one.
    pub permille: u64,
}

impl Drawn {
    /// Draws the world of a seed.
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let mut unit = || (chance.any() >> 11) as f64 / (1_u64 << 53) as f64;
        let rails = 1 + (unit() * 8.0) as usize;
        let top_kbps: f64 = if unit() < 0.5 { 100e3 } else { 400e6 };
        let mut pick = |from: &[f64]| from[(unit() * from.len() as f64) as usize];
        let spread = pick(&[1.0, 2.0, 4.0, 10.0, 30.0]);
        let kib = pick(&[8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0]) as u64;
        let bytes = (kib << 10).max(4096 * rails as u64);
        let depth = pick(&[1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0]) as usize;
        let latency = pick(&[0.001, 0.03, 0.1, 0.3, 1.0, 2.0]);
        let unlike = pick(&[1.0, 1.0, 1.5, 4.0]);
        let ahead = pick(&[0.0, 8.0]) as usize;
        let in_order = pick(&[1.0, 0.0]) > 0.0;
        let (jitter, poll) = (pick(&[1.0, 0.0, 0.0]), pick(&[1.0, 0.0, 0.0]));
        let (jumps, permille) = (pick(&[1.0, 0.0]) > 0.0, pick(&[100.0, 250.0, 500.0, 2000.0, 4000.0]) as u64);
        let mut rates: Vec<f64> = (0..rails).map(|_| top_kbps / spread.powf(unit())).collect();
        let shortest_ns = bytes as f64 * 8e6 / rates.iter().sum::<f64>();
        let scale = (shortest_ns / SHORTEST_NS).min(1.0);
        rates.iter_mut().for_each(|rate| *rate = (*rate * scale).floor());
        let message_ns = bytes as f64 * 8e6 / rates.iter().sum::<f64>();
        let latencies_ns = (0..rails).map(|_| (message_ns * latency * unlike.powf(unit())) as u64).collect();
        let jitter_ns = (message_ns * 0.1 * jitter * unit()) as u64;
        let poll_ns = (message_ns * 0.2 * poll * unit()) as u64 + poll as u64;
        let phase_ns = (poll_ns as f64 * unit()) as u64;
        let jump = Jump { rail: (unit() * rails as f64) as usize, permille };
        Self {
            seed,
            rates_kbps: rates.into_iter().map(|rate| rate as u64).collect(),
            latencies_ns,
            depth,
            alone: 0,
            ahead,
            in_order,
            bytes,
            jitter_ns,
            poll_ns,
            phase_ns,
            jump: jumps.then_some(jump),
        }
    }

    /// Returns the rates after the jump.
    pub fn rates_after(&self) -> Vec<u64> {
        let mut rates = self.rates_kbps.clone();
        if let Some(Jump { rail, permille }) = self.jump {
            rates[rail] = (rates[rail] * permille / 1000).max(1);
        }
        rates
    }

    /// Returns the world, with a flow of this split.
    pub fn stage(&self, split: Split) -> Stage {
        let mut stage = Stage::new(self.seed, 2, self.rates_kbps.len());
        let load = Load {
            receives: self.depth + self.ahead,
            in_order: self.in_order,
            alone: self.alone,
            poll_ns: self.poll_ns,
            phase_ns: self.phase_ns,
            ..Load::of(self.bytes, self.depth)
        };
        stage.connect(0, 1, split, load);
        self.set_rates(&mut stage, &self.rates_kbps);
        stage
    }

    /// Gives the rails of a stage these rates, in both directions.
    pub fn set_rates(&self, stage: &mut Stage, rates_kbps: &[u64]) {
        for (rail, (rate_kbps, latency_ns)) in rates_kbps.iter().zip(&self.latencies_ns).enumerate() {
            let delay_ns = latency_ns / 2;
            let ack_delay_ns = latency_ns - delay_ns;
            let (rate_kbps, quantum, jitter_ns) = (*rate_kbps, QUANTUM, self.jitter_ns);
            let wire = Wire { rate_kbps, quantum, delay_ns, jitter_ns, ack_delay_ns };
            (0..2).for_each(|host| stage.set_wire(host, rail, wire));
        }
    }

    /// Returns the class of the world.
    pub fn class(&self) -> Class {
        let most = self.latencies_ns.iter().max().unwrap_or(&0);
        let least = self.latencies_ns.iter().min().unwrap_or(&0);
        let flight = match self.depth {
            1 => Flight::Alone,
            _ if !self.is_roomy() => Flight::Tight,
            2..=4 => Flight::Few,
            _ => Flight::Many,
        };
        let is_noisy = self.jitter_ns > 0 || self.poll_ns > 0;
        Class { flight, is_unlike: most * 100 > least * 101 + 100, is_noisy }
    }

    /// Returns true if there is enough in flight for all rails: the bytes that they carry in the longest latency and in
    /// what comes on top of it. Without receives ahead, that is half a latency more, for the CTS.
    fn is_roomy(&self) -> bool {
        let sum = |rates: &[u64]| rates.iter().sum::<u64>() as f64;
        let most_kbps = sum(&self.rates_kbps).max(sum(&self.rates_after()));
        let latency_ns = self.latencies_ns.iter().max().copied().unwrap_or(0);
        let (latency_ns, looks) = if self.ahead > 0 { (latency_ns, 1) } else { (latency_ns * 3 / 2, 3) };
        let busy_ns = (latency_ns + 2 * self.jitter_ns + looks * self.poll_ns) as f64;
        (self.depth as u64 - 1) as f64 * self.bytes as f64 * 8e6 >= busy_ns * most_kbps
    }
}

/// The messages in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flight {
    /// One.
    Alone,
    /// Two to four, which are enough to keep all rails busy.
    Few,
    /// Eight or more, which are enough to keep all rails busy.
    Many,
    /// Two or more, which are too few to keep all rails busy.
    Tight,
}

/// A kind of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// The messages in flight.
    pub flight: Flight,
    /// True if the latencies differ.
    pub is_unlike: bool,
    /// True if there is jitter, or the applications look late.
    pub is_noisy: bool,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let depth = match self.flight {
            Flight::Alone => "D=1",
            Flight::Few => "D=2..4",
            Flight::Many => "D>=8",
            Flight::Tight => "tight",
        };
        let latency = if self.is_unlike { "unlike" } else { "like" };
        let noise = if self.is_noisy { "noisy" } else { "calm" };
        f.pad(&format!("{depth} {latency} {noise}"))
    }
}
