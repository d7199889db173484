//! The plan of one seed: its processes, their connections, and their messages.

use std::fmt;

use clap::ValueEnum;
use railweave_fabric::PolicyName;
use railweave_fabric_sim::Chance;

use super::habits::Habits;
use super::injection::Injection;
use super::orders::OrderPlan;
use crate::faults::{Death, DeathKind, Faults};

/// Patterns of traffic. The order is part of a seed's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub enum Workload {
    /// Every process sends to the next.
    Ring,
    /// A binary tree, up and down.
    Tree,
    /// Every process sends to every other.
    AllToAll,
    /// Grouped receives of 1 to 8 buffers, as PXN uses them.
    Grouped,
    /// Everything at random: hints, flushes, truncated messages, memory registered again.
    Random,
    /// As many requests as a connection has, several times round its rings and slots, and a leak probe.
    Flood,
    /// Something dies.
    Deaths,
    /// Each kind of failure in each situation.
    Cables,
    /// Calls that break NCCL's contract, and a peer that breaks the protocol.
    Breakers,
    /// Handshakes that are slow, refused, broken off, or run out of time.
    Handshake,
}

impl Workload {
    /// Returns the workload of a seed when all workloads are mixed.
    pub fn of_seed(seed: u64) -> Self {
        let all = Self::value_variants();
        all[(seed % all.len() as u64) as usize]
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |name| out.write_str(name.get_name()))
    }
}

/// A call that NCCL never makes, or something that no peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trespass {
    /// `test` of a request that has ended.
    TestTwice,
    /// `test` of a flush that never existed.
    TestUnknown,
    /// `irecv` with no buffer, and with nine.
    WrongCount,
    /// `irecv` of more than 1 GiB.
    TooLong,
    /// `isend` from memory that is not registered.
    SourceKeys,
    /// `irecv` into memory that is not registered.
    TargetKeys,
    /// `deregMr` of the source of a send in progress.
    DeregisterSource,
    /// `deregMr` of the buffers of a receive in progress.
    DeregisterTarget,
    /// More flushes in progress than a connection has requests for.
    ManyFlushes,
    /// An immediate for a slot that is not open.
    HostileSlot,
    /// An immediate whose mask names no rail, not even its own.
    HostileMask,
}

impl Trespass {
    pub(crate) const ALL: [Self; 11] = [
        Self::TestTwice,
        Self::TestUnknown,
        Self::WrongCount,
        Self::TooLong,
        Self::SourceKeys,
        Self::TargetKeys,
        Self::DeregisterSource,
        Self::DeregisterTarget,
        Self::ManyFlushes,
        Self::HostileSlot,
        Self::HostileMask,
    ];

    /// Returns true if the sender does it.
    pub(crate) fn by_sender(self) -> bool {
        matches!(self, Self::SourceKeys | Self::DeregisterSource)
    }
}

/// A receive, and the sends that match it.
#[derive(Clone, Debug)]
pub(crate) struct GroupPlan {
    /// Tag and capacity of each buffer.
    pub(crate) buffers: Vec<(u32, u64)>,
    /// Tag and size of each send.
    pub(crate) sends: Vec<(u32, u64)>,
    /// True if its completion is optional.
    pub(crate) hinted: bool,
    /// True if it is flushed, unless its completion is optional.
    pub(crate) flush: bool,
}

/// One direction between two processes.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlan {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// For each rail the port of the connector and the port of the acceptor; empty if the acceptor refuses.
    pub(crate) pairs: Vec<(u8, u8)>,
    /// The number of lanes that each port of the connector offers, and each port of the acceptor.
    pub(crate) lanes: (Vec<u8>, Vec<u8>),
    /// The weight of each port, if one is set.
    pub(crate) weights: Vec<Option<u32>>,
    /// The policy with which both ends begin: one that follows the weights, or the adaptive one.
    pub(crate) policy: PolicyName,
    /// The orders that change the policies of its ends.
    pub(crate) orders: Vec<OrderPlan>,
    /// The speed of each port, in Mbit/s.
    pub(crate) speeds: Vec<u32>,
    pub(crate) striped: bool,
    pub(crate) split_min: u64,
    pub(crate) adaptive_above: Option<u64>,
    pub(crate) groups: Vec<GroupPlan>,
    /// The most receives in progress at once.
    pub(crate) window: usize,
    /// The number of receives in the leak probe at the end.
    pub(crate) probe: usize,
    /// True if receives go into GPU memory.
    pub(crate) cuda: bool,
    pub(crate) reregister_permille: u32,
    pub(crate) connect_at_ns: u64,
    /// The time that the handshake may take at each end.
    pub(crate) deadline_ns: u64,
    /// The end that closes although there is more to do (true for the sender), and the time.
    pub(crate) close_early: Option<(bool, u64)>,
    /// The trespass, and the number of messages (at the sender) or receives that are done before it.
    pub(crate) trespass: Option<(Trespass, u64)>,
    pub(crate) habits: Habits,
}

/// The bytes of a connection's messages whose sizes are at limits of the protocol, at most.
const LIMITS_BUDGET: u64 = 1 << 20;

impl ConnectionPlan {
    /// Gives some single messages sizes at limits of the protocol, in a third of the connections: multiples of the
    /// longest write, and the size above which the adaptive-routing form is used.
    fn add_sizes_at_limits(&mut self, chance: &mut Chance, max_write: u32) {
        let multiples = (1..=8).map(|pieces| pieces * u64::from(max_write));
        let limits: Vec<u64> = multiples.chain(self.adaptive_above).filter(|size| *size <= LIMITS_BUDGET / 2).collect();
        if limits.is_empty() || !chance.permille(330) {
            return;
        }
        let mut left = LIMITS_BUDGET;
        let singles = self.groups.len() - self.probe;
        for group in self.groups[..singles].iter_mut().filter(|group| group.sends.len() == 1) {
            let near = chance.pick(&limits) + chance.pick(&[0, 127, 128, 129, 130, 255, 256, 257]);
            let size = near.saturating_sub(128);
            if chance.permille(300) && size <= left {
                left -= size;
                (group.sends[0].1, group.buffers[0].1) = (size, size);
            }
        }
    }

    /// Returns the weights of the rails at one end: the weight of its port, if one is set, otherwise the slower of both
    /// ports' speeds; the rails of a port share its weight, or its speed, evenly.
    pub(crate) fn rail_weights(&self, sender: bool) -> [u64; 8] {
        // Every number of rails divides this.
        const WHOLE: u64 = 840;
        let ports = |pair: &(u8, u8)| if sender { (pair.0, pair.1) } else { (pair.1, pair.0) };
        let (mut weights, pairs) = ([0; 8], self.pairs.iter().map(ports));
        for (weight, (own, other)) in weights.iter_mut().zip(pairs.clone()) {
            let part = |value: u32, sharing: usize| u64::from(value) * WHOLE / sharing as u64;
            let own_sharing = pairs.clone().filter(|pair| pair.0 == own).count();
            let other_sharing = pairs.clone().filter(|pair| pair.1 == other).count();
            *weight = match self.weights[usize::from(own)] {
                Some(given) => part(given, own_sharing),
                None => part(self.speeds[usize::from(own)], own_sharing)
                    .min(part(self.speeds[usize::from(other)], other_sharing)),
            };
        }
        weights
    }
}

/// A port of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortPlan {
    /// The longest write, in bytes.
    pub(crate) max_write: u32,
    pub(crate) byte_counts: bool,
}

/// Everything that a seed decides beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) one_sided: bool,
    pub(crate) faults: Faults,
    /// The ports of each process.
    pub(crate) ports: Vec<Vec<PortPlan>>,
    /// The key of each process, 0 for none.
    pub(crate) keys: Vec<u8>,
    /// The number of addresses at which each process can be reached.
    pub(crate) addresses: Vec<u8>,
    pub(crate) connections: Vec<ConnectionPlan>,
    /// In an exhaustive run: the number of the event before which a fault strikes, and the fault.
    pub(crate) injection: Option<(u64, Injection)>,
}

/// Draws sizes of messages: any, until the connection's bytes are used up, and small ones from then on.
struct Sizes {
    left: u64,
    split_min: u64,
    /// True if all messages are a little too short to be split.
    are_whole: bool,
}

impl Sizes {
    fn draw(&mut self, chance: &mut Chance) -> u64 {
        if self.are_whole {
            return chance.between(self.split_min / 2, self.split_min - 1);
        }
        let around = |chance: &mut Chance, middle: u64| (middle + chance.below(260)).saturating_sub(130);
        let size = match chance.below(24) {
            0 | 1 => 0,
            2 => 1,
            3 => chance.between(127, 129),
            4 => 128 * chance.between(1, 40),
            5..=7 => around(chance, self.split_min),
            8..=9 => around(chance, 64 << 10),
            10 => around(chance, 16 << 10),
            11..=15 => chance.between(1, 2000),
            16..=20 => chance.between(1, 24 << 10),
            21 | 22 => chance.between(32 << 10, 200 << 10),
            _ => chance.between(256 << 10, 2 << 20),
        };
        let size = if size > self.left { chance.below(600) } else { size };
        self.left = self.left.saturating_sub(size);
        size
    }
}

impl Plan {
    pub(crate) fn new(seed: u64, workload: Workload) -> Self {
        let mut chance = Chance::new(seed ^ 0x9a7e_11ed);
        let chance = &mut chance;
        let mut faults = if chance.permille(100) { Faults::none() } else { Faults::random(chance) };
        let processes = processes(chance, workload);
        let (ports, max_write) = ports(chance, processes);
        let port_count = ports[0].len();
        let pairs = pairs(chance, workload, processes);
        let budget = (3 << 20) / pairs.len() as u64;
        let mut connections: Vec<ConnectionPlan> =
            pairs.iter().map(|pair| connection(chance, workload, *pair, port_count, budget)).collect();
        let many_writes = matches!(workload, Workload::Random | Workload::Grouped | Workload::Ring);
        if many_writes && max_write == 4096 && chance.permille(700) {
            // One message of more writes than a short send queue has room for.
            let size = 1_100_000 + chance.below(400_000);
            connections[0].groups.insert(0, GroupPlan::of_one(size, true));
        }
        faults.deaths = deaths(chance, workload);
        if workload == Workload::Handshake && chance.permille(400) {
            faults.fabric.open_fails_permille = chance.pick(&[100, 500, 1000]);
        }
        let one_sided = chance.permille(550);
        // These faults have generators of their own, so that they change nothing else in the plan.
        faults.add_silence(&mut Chance::new(seed ^ 0x0511_e9ce));
        faults.add_late_closes(&mut Chance::new(seed ^ 0x00c1_05e5));
        faults.add_high_numbers(&mut Chance::new(seed ^ 0x0f1d_c0de));
        faults.add_repeated_connects(&mut Chance::new(seed ^ 0x001a_7e12));
        if !matches!(workload, Workload::Flood | Workload::Breakers) {
            let at_limits = &mut Chance::new(seed ^ 0x11_a175);
            connections.iter_mut().for_each(|plan| plan.add_sizes_at_limits(at_limits, max_write));
        }
        faults.add_network(&mut Chance::new(seed ^ 0x0ff_11e5));
        let of_waits = &mut Chance::new(seed ^ 0x0b10_cced);
        faults.add_set_up_waits(of_waits);
        if workload == Workload::Handshake && of_waits.permille(300) {
            faults.break_blocked_set_ups();
        }
        if workload == Workload::Handshake && of_waits.permille(300) {
            faults.wait_out_offers();
        }
        let of_sessions = &mut Chance::new(seed ^ 0x5e55_1045);
        faults.add_session_faults(of_sessions);
        faults.add_resumptions(one_sided, &mut Chance::new(seed ^ 0x0e5_0e5));
        let key = of_sessions.pick(&[0, 0, 1, 2]);
        // In some seeds one process alone has another key than the rest (0 is none), so that no other process reaches
        // it.
        let odd = (workload == Workload::Handshake && of_sessions.permille(100)).then(|| of_sessions.index(processes));
        let keys = (0..processes).map(|process| if odd == Some(process) { (key + 1) % 3 } else { key }).collect();
        let addresses = (0..processes).map(|_| of_sessions.between(1, 3) as u8).collect();
        let of_habits = &mut Chance::new(seed ^ 0x4ab1_7500);
        for connection in &mut connections {
            connection.habits = Habits::draw(of_habits);
            // A buffer that one connection has deregistered too early would be another's error.
            connection.habits.shares_buffers &= workload != Workload::Breakers;
        }
        if workload != Workload::Breakers {
            let of_orders = &mut Chance::new(seed ^ 0x0bde_45ed);
            connections.iter_mut().for_each(|plan| plan.orders = OrderPlan::draw_all(of_orders));
        }
        let may_fail = workload != Workload::Breakers;
        faults.add_recovery(&mut Chance::new(seed ^ 0x4ec0_7e45), may_fail);
        if workload == Workload::Cables {
            faults.aim(&mut Chance::new(seed ^ 0xca_b1e5));
        }
        Self { one_sided, faults, ports, keys, addresses, connections, injection: None }
    }
}

/// Draws the number of processes.
fn processes(chance: &mut Chance, workload: Workload) -> usize {
    let count = match workload {
        Workload::Ring => chance.between(2, 4),
        Workload::Tree => chance.between(3, 5),
        Workload::AllToAll => chance.between(3, 4),
        Workload::Deaths | Workload::Random | Workload::Handshake | Workload::Cables => chance.between(2, 3),
        Workload::Grouped | Workload::Flood | Workload::Breakers => 2,
    };
    count as usize
}

/// Draws the ports of each process, all of which have the same number. Returns them with the seed's longest write,
/// which most of them have.
fn ports(chance: &mut Chance, processes: usize) -> (Vec<Vec<PortPlan>>, u32) {
    let count = chance.pick(&[1, 2, 2, 2, 3, 4, 8]);
    let max_write =
        if chance.permille(350) { chance.pick(&[4096, 4096, 16 << 10, 64 << 10, 256 << 10]) } else { 1 << 30 };
    let byte_counts = !chance.permille(200);
    let mut port = || PortPlan {
        max_write: if chance.permille(700) { max_write } else { 1 << 30 },
        byte_counts: byte_counts || chance.permille(500),
    };
    let ports = (0..processes).map(|_| (0..count).map(|_| port()).collect()).collect();
    (ports, max_write)
}

/// Draws the processes that connect: from the first of a pair to the second.
fn pairs(chance: &mut Chance, workload: Workload, processes: usize) -> Vec<(usize, usize)> {
    match workload {
        Workload::Ring => (0..processes).map(|from| (from, (from + 1) % processes)).collect(),
        Workload::Tree => {
            (1..processes).flat_map(|child| [(child, (child - 1) / 2), ((child - 1) / 2, child)]).collect()
        }
        Workload::AllToAll => (0..processes)
            .flat_map(|from| (0..processes).filter(move |to| *to != from).map(move |to| (from, to)))
            .collect(),
        Workload::Random | Workload::Deaths | Workload::Handshake | Workload::Cables => {
            let count = chance.between(1, 4);
            let mut pair = || {
                let from = chance.index(processes);
                // A process may connect to itself: ncclCommRegister does.
                let is_own = chance.permille(50);
                (from, if is_own { from } else { (from + 1 + chance.index(processes - 1)) % processes })
            };
            (0..count).map(|_| pair()).collect()
        }
        Workload::Grouped | Workload::Flood => vec![(0, 1)],
        Workload::Breakers => vec![(0, 1), (1, 0)],
    }
}

/// Draws the deaths: none, one, or in a third of the seeds with one, a second.
fn deaths(chance: &mut Chance, workload: Workload) -> Vec<Death> {
    let dies = match workload {
        Workload::Deaths => !chance.permille(100),
        Workload::Handshake => chance.permille(400),
        Workload::Flood | Workload::Breakers | Workload::Cables => false,
        _ => chance.permille(60),
    };
    let count = if dies { 1 + usize::from(chance.permille(330)) } else { 0 };
    let mut deaths: Vec<Death> = Vec::new();
    for _ in 0..count {
        let kind = chance.pick(&DeathKind::ALL);
        let at = match kind {
            DeathKind::Killed => chance.between(1, 600),
            _ if workload == Workload::Handshake => chance.between(1, 2_000_000),
            _ => chance.between(1_000, 4_000_000),
        };
        if kind != DeathKind::Killed || deaths.iter().all(|death| death.kind != kind) {
            deaths.push(Death { kind, at });
        }
    }
    deaths
}

fn connection(
    chance: &mut Chance,
    workload: Workload,
    (from, to): (usize, usize),
    ports: usize,
    budget: u64,
) -> ConnectionPlan {
    let mut pairs: Vec<(u8, u8)> = (0..ports as u8).map(|port| (port, port)).collect();
    if chance.permille(200) {
        // Several ports of one end may share a port of the other.
        pairs.iter_mut().for_each(|pair| pair.1 = chance.index(ports) as u8);
    }
    if workload == Workload::Handshake && chance.permille(60) {
        pairs.clear();
    }
    let has_lanes = chance.permille(400);
    let lanes = if has_lanes { (chance.between(1, 4) as u8, chance.between(1, 4) as u8) } else { (1, 1) };
    let mut port_lanes = (vec![lanes.0; ports], vec![lanes.1; ports]);
    // A copy draws those of unlike rails, so that the rest of the plan is the same with either.
    let mut copy = chance.clone();
    if has_lanes && copy.permille(500) {
        port_lanes.0.iter_mut().chain(&mut port_lanes.1).for_each(|lanes| *lanes = copy.between(1, 4) as u8);
    }
    let split_min = chance.pick(&[0, 1024, 8192, 8192, 64 << 10]);
    let weights =
        (0..ports).map(|_| if chance.permille(200) { Some(chance.pick(&[0, 1, 1, 3, 10])) } else { None }).collect();
    let speed = chance.pick(&[1_000, 100_000]);
    let speeds = (0..ports).map(|_| if chance.permille(300) { speed / 4 } else { speed }).collect();
    // A copy draws it, so that the rest of the plan is the same with either.
    let policy = if chance.clone().permille(500) { PolicyName::Adaptive } else { PolicyName::Speed };
    let cuda = chance.permille(500);
    let are_whole = split_min > 8192 && chance.permille(250);
    let sizes = Sizes { left: budget, split_min, are_whole };
    let Messages { mut groups, groups_last } = Messages::draw(chance, workload, sizes);
    if workload == Workload::Random && ports == 8 && chance.permille(330) {
        // More than size_q can express on eight rails.
        groups.push(GroupPlan::of_one((8 << 20) + chance.below(1 << 20), true));
    }
    let probe = match workload {
        Workload::Flood => 256,
        Workload::Random | Workload::Grouped | Workload::Ring if chance.permille(150) => 256,
        _ => 0,
    };
    groups.extend((0..probe).map(|_| GroupPlan::of_one(chance.pick(&[0, 8]), false)));
    let flood = workload == Workload::Flood;
    let handshake = workload == Workload::Handshake;
    ConnectionPlan {
        from,
        to,
        pairs,
        lanes: port_lanes,
        weights,
        policy,
        orders: Vec::new(),
        speeds,
        striped: lanes != (1, 1) && chance.permille(600),
        split_min,
        adaptive_above: chance.permille(300).then(|| chance.pick(&[0, 1000, 8192])),
        groups,
        window: if groups_last {
            300
        } else if flood {
            chance.pick(&[256, 300, 40])
        } else {
            chance.pick(&[1, 2, 8, 8, 32])
        },
        probe,
        cuda,
        reregister_permille: if chance.permille(300) { 200 } else { 0 },
        connect_at_ns: chance.below(if handshake { 1_000_000 } else { 20_000 }),
        deadline_ns: if handshake && chance.permille(300) { chance.between(1_000, 1_500_000) } else { 60_000_000 },
        close_early: (workload == Workload::Deaths && chance.permille(100)
            || workload == Workload::Cables && chance.permille(300)
            || handshake && chance.permille(200))
        .then(|| (chance.permille(500), chance.between(1_000, 2_000_000))),
        trespass: (workload == Workload::Breakers).then(|| (chance.pick(&Trespass::ALL), chance.between(1, 25))),
        habits: Habits::none(),
    }
}

/// The messages of a connection.
struct Messages {
    groups: Vec<GroupPlan>,
    /// True if many single receives come first, and the grouped ones after them.
    groups_last: bool,
}

impl Messages {
    fn draw(chance: &mut Chance, workload: Workload, mut sizes: Sizes) -> Self {
        let hints = if chance.permille(if workload == Workload::Cables { 700 } else { 300 }) { 400 } else { 0 };
        let count = match workload {
            Workload::Ring => chance.between(5, 40),
            Workload::Tree | Workload::AllToAll => chance.between(3, 20),
            Workload::Grouped => chance.between(5, 30),
            Workload::Random => chance.between(1, 60),
            Workload::Flood => chance.between(610, 920),
            Workload::Deaths | Workload::Cables => chance.between(24, 130),
            Workload::Breakers => chance.between(6, 30),
            Workload::Handshake => chance.between(0, 5),
        };
        let grouped = match workload {
            Workload::Grouped => 900,
            Workload::Random | Workload::Deaths => chance.pick(&[0, 0, 300]),
            Workload::Cables => chance.pick(&[0, 300]),
            Workload::Flood => chance.pick(&[0, 300, 900]),
            _ => 0,
        };
        let steady = sizes.draw(chance);
        let flood = workload == Workload::Flood;
        // Many single receives and then grouped ones, or grouped ones from the start.
        let groups_last = flood && chance.permille(500);
        let count = if groups_last || (flood && grouped > 500) { count / 2 } else { count };
        let mut groups = Vec::new();
        for number in 0..count {
            let grouped = match groups_last {
                true if number < 270 => 0,
                true => 950,
                false => grouped,
            };
            groups.push(GroupPlan::draw(chance, workload, (grouped, hints), steady, &mut sizes));
        }
        Self { groups, groups_last }
    }
}

impl GroupPlan {
    /// Returns a receive of one message, which fills it.
    fn of_one(size: u64, flush: bool) -> Self {
        Self { buffers: vec![(0, size)], sends: vec![(0, size)], hinted: false, flush }
    }

    /// Draws a receive: out of 1000, `grouped` have several buffers and `hinted` may complete early. `steady` is the
    /// size of most messages of a ring.
    fn draw(
        chance: &mut Chance,
        workload: Workload,
        (grouped, hinted): (u32, u32),
        steady: u64,
        sizes: &mut Sizes,
    ) -> Self {
        let cuts = if matches!(workload, Workload::Random | Workload::Grouped) { 150 } else { 0 };
        let buffers = if chance.permille(grouped) { chance.between(1, 8) as usize } else { 1 };
        let same_tags = chance.permille(200);
        let first_tag = if buffers > 1 { chance.below(5) as u32 } else { 0 };
        let mut group = Self {
            buffers: Vec::new(),
            sends: Vec::new(),
            hinted: chance.permille(hinted),
            flush: chance.permille(600),
        };
        let all_empty = chance.permille(20);
        for number in 0..buffers {
            let tag = if same_tags { first_tag } else { first_tag + number as u32 };
            let size = match workload {
                _ if all_empty => 0,
                Workload::Flood => chance.pick(&[0, 1, 8, 64, 128, 200, 1000]),
                Workload::Ring if chance.permille(700) && steady <= sizes.left => {
                    sizes.left -= steady;
                    steady
                }
                _ => sizes.draw(chance),
            };
            let capacity = match chance.below(1000) {
                cut if cut < cuts => chance.below(size + 1),
                exact if exact < 600 => size,
                _ => size + chance.below(1000),
            };
            group.buffers.push((tag, capacity));
            group.sends.push((tag, size));
        }
        chance.shuffle(&mut group.sends);
        group
    }
}
