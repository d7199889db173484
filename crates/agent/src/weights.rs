//! The weights of groups that policies order: shares as the rails have them, changed by balance and congestion.

use crate::balance::{Balance, Sender};
use crate::names::counted_name;
use crate::rules::GroupWeights;
use crate::series::{GroupKey, Series, SeriesKey};
use crate::world::{OTHER, World};
use railweave_telemetry::RailState;
use std::collections::BTreeMap;
use std::time::Duration;

/// The bytes per second from which a group sends.
const SENDS: f64 = 1000.0;

/// The part of a share that a second decides.
const SMOOTHING: f64 = 0.2;

/// The time after which rates are those that the rails themselves give: they are smoothed over some looks.
const SETTLE: Duration = Duration::from_secs(8);

/// Factors from here on are none.
const WHOLE: f64 = 0.999;

/// The rails of a group: number, port, and series.
pub(crate) type Rails<'a> = Vec<(u8, &'a str, &'a Series)>;

/// Returns the groups with their rails. Left out are those whose rails of one number have several ports, because a rule
/// cannot tell them apart, and those that stand for others.
pub(crate) fn groups(world: &World) -> BTreeMap<&GroupKey, Rails<'_>> {
    let mut groups: BTreeMap<&GroupKey, Rails<'_>> = BTreeMap::new();
    for (SeriesKey { group, rail, port }, series) in world.series.iter() {
        if group.job != OTHER && series.senders > 0 {
            groups.entry(group).or_default().push((*rail, port, series));
        }
    }
    groups.retain(|_, rails| {
        rails.sort_unstable_by_key(|(rail, port, _)| (*rail, *port));
        rails.windows(2).all(|pair| pair[0].0 != pair[1].0) && rails.iter().all(|(_, port, _)| !port.is_empty())
    });
    groups
}

/// Returns the senders that send now.
pub(crate) fn senders(groups: &BTreeMap<&GroupKey, Rails<'_>>) -> Vec<Sender<GroupKey>> {
    let mut senders = Vec::new();
    for (key, rails) in groups {
        let usable = rails.iter().filter(|(.., series)| series.in_state(RailState::Up) > 0);
        let rails: Vec<(u8, String, f64)> =
            usable.map(|(rail, port, series)| (*rail, (*port).to_owned(), series.sent_now)).collect();
        if rails.iter().map(|(.., rate)| rate).sum::<f64>() >= SENDS {
            senders.push(Sender { group: (*key).clone(), job: (key.user, key.job.clone()), rails });
        }
    }
    senders
}

/// The shares that groups have if nobody orders any.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    groups: BTreeMap<GroupKey, Learnt>,
    /// The time of the last look.
    looked: Option<Duration>,
}

/// The shares of a group.
#[derive(Debug, Default)]
struct Learnt {
    shares: BTreeMap<u8, f64>,
    /// The last time at which something else than the rails decided.
    disturbed: Option<Duration>,
}

impl Shares {
    /// Learns the shares of groups that send and that nothing orders.
    pub(crate) fn learn(&mut self, groups: &BTreeMap<&GroupKey, Rails<'_>>, up: Duration) {
        let period = self.looked.replace(up).map_or(Duration::ZERO, |last| up.saturating_sub(last));
        let part = 1.0 - (1.0 - SMOOTHING).powf(period.as_secs_f64());
        self.groups.retain(|key, _| groups.contains_key(key));
        for (key, rails) in groups {
            let sum: f64 = rails.iter().map(|(.., series)| series.sent_rate).sum();
            let is_steered = rails.iter().any(|(.., series)| series.steered > 0);
            // A rail that is drained or down has a share of another cause.
            let is_whole = rails.iter().all(|(.., series)| series.in_state(RailState::Up) > 0);
            if !self.groups.contains_key(*key) {
                self.groups.insert((*key).clone(), Learnt::default());
            }
            let Some(learnt) = self.groups.get_mut(*key) else { continue };
            if is_steered || !is_whole {
                learnt.disturbed = Some(up);
            }
            let is_settled = learnt.disturbed.is_none_or(|at| up.saturating_sub(at) >= SETTLE);
            if sum < SENDS || !is_settled {
                continue;
            }
            for (rail, _, series) in rails {
                let now = series.sent_rate / sum;
                let share = learnt.shares.entry(*rail).or_insert(now);
                *share += (now - *share) * part;
            }
        }
    }

    /// Returns the share of each rail of a group: as learnt, otherwise by the speeds that the ports report, otherwise
    /// all equal.
    fn of(&self, key: &GroupKey, rails: &Rails<'_>) -> Vec<(u8, f64)> {
        let learnt = self.groups.get(key).map(|learnt| &learnt.shares);
        // A rail that has come up since has none, which does not mean that it can do nothing.
        let learnt = learnt.filter(|shares| rails.iter().all(|(rail, ..)| shares.contains_key(rail)));
        let speeds: Option<Vec<f64>> = rails.iter().map(|(.., it)| it.speed_mbps.map(f64::from)).collect();
        rails
            .iter()
            .enumerate()
            .map(|(place, (rail, ..))| {
                let by_speed = speeds.as_ref().map_or(1.0, |speeds| speeds[place]);
                (*rail, learnt.map_or(by_speed, |shares| shares.get(rail).copied().unwrap_or(0.0)))
            })
            .collect()
    }
}

/// Returns the weights to order. `factor` is the part of its share that a port keeps, by its counted name.
pub(crate) fn orders(
    groups: &BTreeMap<&GroupKey, Rails<'_>>,
    shares: &Shares,
    balance: &Balance<GroupKey>,
    factor: impl Fn(&str) -> f64,
) -> GroupWeights {
    let mut orders = GroupWeights::new();
    for (key, rails) in groups.iter().filter(|(_, rails)| rails.len() > 1) {
        let factors: Vec<f64> = rails.iter().map(|(_, port, _)| factor(&counted_name(port))).collect();
        // If all ports are congested alike, there is nowhere to go.
        let most = factors.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let is_congested = factors.iter().any(|factor| factor / most < WHOLE);
        let balanced = balance.weights(key);
        if !is_congested && balanced.is_none() {
            continue;
        }
        let base = balanced.cloned().unwrap_or_else(|| shares.of(key, rails));
        let weight = |rail: u8| base.iter().find(|(number, _)| *number == rail).map_or(0.0, |(_, weight)| *weight);
        let weights: Vec<(u8, f64)> =
            rails.iter().zip(&factors).map(|((rail, ..), factor)| (*rail, weight(*rail) * factor / most)).collect();
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        if sum > 0.0 {
            orders.insert((*key).clone(), weights.into_iter().map(|(rail, weight)| (rail, weight / sum)).collect());
        }
    }
    orders
}
