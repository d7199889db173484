//! The small scenario of the exhaustive runs, in several variants: nothing in it is drawn.

use railweave_fabric::PolicyName;

use super::habits::Habits;
use super::injection::Injection;
use super::plan::{ConnectionPlan, GroupPlan, Plan, PortPlan};
use crate::faults::{Death, DeathKind, Faults};

/// The bounds of a message that goes over all rails, in bytes.
const SPLIT_MIN: u64 = 8192;

/// The variants of the scenario. The order is part of a run's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// One lane per rail, rails of the same weight.
    Plain,
    /// Two lanes per rail, and large messages striped over them.
    Striped,
    /// Two rails, of which one carries three times as much as the other.
    Weighted,
    /// Ports whose longest write is 4 KiB: several writes to a message.
    ShortWrites,
    /// Ports that do not count bytes, so that every message has a record.
    NoByteCounts,
    /// The adaptive-routing form.
    Adaptive,
    /// Nobody is told of a death or of a broken session: only a PING finds out.
    Mute,
    /// Sources are read at landing, writes land in two steps, and acknowledgements are put off.
    Late,
    /// Writes land after the end of their lane, keys come again, and completions vanish with their lane.
    CutOff,
    /// The connections go on without rails that fail, and last until these are back.
    Recovers,
    /// The same with the faults of [`Self::CutOff`], striped messages, and work on lanes that takes its time.
    RecoversCutOff,
}

impl Variant {
    pub(crate) const ALL: [Self; 11] = [
        Self::Plain,
        Self::Striped,
        Self::Weighted,
        Self::ShortWrites,
        Self::NoByteCounts,
        Self::Adaptive,
        Self::Mute,
        Self::Late,
        Self::CutOff,
        Self::Recovers,
        Self::RecoversCutOff,
    ];

    fn recovers(self) -> bool {
        matches!(self, Self::Recovers | Self::RecoversCutOff)
    }

    fn faults(self) -> Faults {
        let mut faults = Faults { pause_ns: 14_000_000, ..Faults::none() };
        match self {
            Self::Mute => (faults.is_mute, faults.peer_timeouts_ns) = (true, [3_000_000; 2]),
            Self::Late => {
                (faults.fabric.late_read_permille, faults.fabric.torn_permille) = (1000, 1000);
                faults.fabric.acks_put_off = true;
            }
            Self::CutOff | Self::RecoversCutOff => {
                faults.fabric.late_landing_ns = 300_000;
                faults.fabric.key_reuse_permille = 1000;
                faults.fabric.destroy_purges = true;
            }
            _ => {}
        }
        if self.recovers() {
            faults.recovers = true;
            faults.heal_ns = 100_000;
            faults.fabric.delay_ns = 40_000;
            faults.session_delay_ns = 5_000;
            faults.work_ns = if self == Self::Recovers { 5_000 } else { 60_000 };
        }
        faults
    }

    fn port(self) -> PortPlan {
        PortPlan {
            max_write: if self == Self::ShortWrites { 4096 } else { 1 << 30 },
            byte_counts: self != Self::NoByteCounts,
        }
    }

    fn connection(self, from: usize, to: usize, mut groups: Vec<GroupPlan>) -> ConnectionPlan {
        let lanes = if matches!(self, Self::Striped | Self::RecoversCutOff) { 2 } else { 1 };
        if self.recovers() {
            groups.extend(groups.clone());
        }
        ConnectionPlan {
            from,
            to,
            pairs: vec![(0, 0), (1, 1)],
            lanes: (vec![lanes; 2], vec![lanes; 2]),
            weights: if self == Self::Weighted { vec![Some(3), Some(1)] } else { vec![None; 2] },
            policy: PolicyName::Speed,
            orders: Vec::new(),
            speeds: vec![100_000; 2],
            striped: lanes > 1,
            split_min: SPLIT_MIN,
            adaptive_above: (self == Self::Adaptive).then_some(1000),
            groups,
            window: if self.recovers() { 1 } else { 2 },
            probe: 0,
            cuda: true,
            reregister_permille: 0,
            connect_at_ns: 1000,
            deadline_ns: 60_000_000,
            close_early: None,
            trespass: None,
            habits: Habits::none(),
        }
    }
}

/// Returns a receive of messages of these sizes with tags from 0 on.
fn group(sizes: &[u64], hinted: bool, flush: bool) -> GroupPlan {
    let buffers: Vec<(u32, u64)> = sizes.iter().enumerate().map(|(tag, size)| (tag as u32, *size)).collect();
    GroupPlan { sends: buffers.iter().rev().copied().collect(), buffers, hinted, flush }
}

impl Plan {
    /// Returns the plan of the scenario: two processes with two ports each, and a connection in each direction. Each
    /// has four receives into GPU memory: one whose completion is optional, one of a message that is split over both
    /// rails, one of a group, and one of a small message; two of them are flushed. `injection` is the fault, and the
    /// number of the event before which it strikes; `None` for none.
    pub(crate) fn scenario(variant: Variant, one_sided: bool, injection: Option<(u64, Injection)>) -> Self {
        let hinted = group(&[3000], true, false);
        let split = group(&[2 * SPLIT_MIN + 200], false, true);
        let grouped = group(&[700, 0, SPLIT_MIN], false, false);
        let small = group(&[8], false, true);
        let there = vec![hinted.clone(), split.clone(), grouped.clone(), small.clone()];
        let back = vec![split, small, hinted, grouped];
        let mut faults = variant.faults();
        let injection = match injection {
            Some((at, Injection::Killed)) => {
                faults.deaths = vec![Death { kind: DeathKind::Killed, at }];
                None
            }
            other => other,
        };
        Self {
            one_sided,
            faults,
            ports: vec![vec![variant.port(); 2]; 2],
            keys: vec![1; 2],
            addresses: vec![1; 2],
            connections: vec![variant.connection(0, 1, there), variant.connection(1, 0, back)],
            injection,
        }
    }

    /// Returns all faults that can strike this plan, each with everything that it can strike.
    pub(crate) fn injections(&self) -> Vec<Injection> {
        let mut all = vec![Injection::Killed];
        for (connection, found) in self.connections.iter().enumerate() {
            for rail in 0..found.pairs.len() as u8 {
                all.extend([
                    Injection::RailSilent { connection, rail },
                    Injection::RailError { connection, rail },
                    Injection::RailAndSession { connection, rail },
                ]);
                if self.faults.recovers {
                    all.push(Injection::RailAgain { connection, rail });
                    all.extend([4, 12, 40].map(|after| Injection::BothRails { connection, first: rail, after }));
                }
                for sender in [true, false] {
                    if self.faults.recovers {
                        all.push(Injection::Suspicion { connection, sender, rail });
                    }
                    all.push(Injection::Slow { connection, sender, rail });
                    all.push(Injection::RailOneEnd { connection, sender, rail });
                    for (writes, forever) in [(true, false), (true, true), (false, false), (false, true)] {
                        all.push(Injection::Outage { connection, sender, rail, writes, forever });
                    }
                }
            }
            for sender in [true, false] {
                all.extend([Injection::Close { connection, sender }, Injection::Silence { connection, sender }]);
            }
            all.push(Injection::AllRails { connection });
            let session = Injection::Session { from: found.from, to: found.to };
            if !all.contains(&session) {
                all.push(session);
            }
        }
        for port in 0..self.ports.iter().flatten().count() {
            all.extend([Injection::PortSilent(port), Injection::LoopBack(port)]);
            if self.one_sided {
                all.push(Injection::Device(port));
            }
        }
        all.extend((0..self.ports.len()).flat_map(|process| [Injection::Process(process), Injection::Abort(process)]));
        all
    }
}
