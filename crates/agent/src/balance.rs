//! The policy `balance`: ports are shared so that the slowest job of the host is as fast as it can be.
//!
//! Each connection by itself splits its messages by the rates of its rails. A job with two rails then takes as much of
//! the port that it shares as a job that has no other. Here the rates show for some seconds while the rails decide;
//! then each port's rate is given to its jobs again, less to those that have other ports. That is only worth an order
//! if the slowest job gains by it: otherwise the rails go on deciding, because they notice changes at once.

use crate::config::BalanceConfig;
use std::collections::BTreeMap;
use std::time::Duration;

/// The rounds after which the shares are as good as equal.
const ROUNDS: usize = 400;

/// The exponent by which a job that is faster than the others gives way in a round.
const PUSH: f64 = 0.3;

/// The part of a rail's rate below which it is left out.
const LEAST: f64 = 0.02;

/// The part of the measured rates below which orders end, because something has changed.
const LOSS: f64 = 0.8;

/// Looks in a row that have to show that loss.
const LOSS_LOOKS: u32 = 3;

/// A sender: the rails of one group of connections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sender<G> {
    /// Its group.
    pub(crate) group: G,
    /// Its job: senders of one job share their fate.
    pub(crate) job: (u32, String),
    /// Its rails: number, port, and bytes per second now.
    pub(crate) rails: Vec<(u8, String, f64)>,
}

/// The weights of a group's rails, by their numbers.
pub(crate) type Weights = Vec<(u8, f64)>;

/// The state of the policy.
#[derive(Clone, Debug)]
pub(crate) struct Balance<G> {
    phase: Phase<G>,
    /// The bytes per second that all senders together had at the last measurement.
    measured: f64,
    losses: u32,
}

#[derive(Clone, Debug)]
enum Phase<G> {
    /// The rails decide, since this time.
    Measuring(Duration),
    /// Orders hold since this time; none if they would bring nothing.
    Holding(Duration, BTreeMap<G, Weights>),
}

impl<G> Default for Balance<G> {
    fn default() -> Self {
        Self { phase: Phase::Measuring(Duration::ZERO), measured: 0.0, losses: 0 }
    }
}

impl<G: Clone + Ord> Balance<G> {
    /// Looks at the senders that send now.
    pub(crate) fn look(&mut self, config: &BalanceConfig, senders: &[Sender<G>], up: Duration) {
        let total: f64 = senders.iter().flat_map(|sender| &sender.rails).map(|(_, _, rate)| rate).sum();
        match &self.phase {
            Phase::Measuring(since) if up.saturating_sub(*since) < Duration::from_secs(config.measure_s) => {}
            Phase::Measuring(_) => {
                (self.measured, self.losses) = (total, 0);
                self.phase = Phase::Holding(up, orders(senders, config.gain));
            }
            Phase::Holding(since, orders) => {
                self.losses = if total < LOSS * self.measured { self.losses + 1 } else { 0 };
                let is_new = |sender: &Sender<G>| !orders.is_empty() && !orders.contains_key(&sender.group);
                let is_over = up.saturating_sub(*since) >= Duration::from_secs(config.hold_s);
                // Without orders there is nothing to lose; and a new measurement changes nothing but the result.
                let has_lost = self.losses >= LOSS_LOOKS && !orders.is_empty();
                if is_over || has_lost || senders.iter().any(is_new) {
                    self.phase = Phase::Measuring(up);
                }
            }
        }
    }

    /// Returns the weights that are to be ordered for a group.
    pub(crate) fn weights(&self, group: &G) -> Option<&Weights> {
        match &self.phase {
            Phase::Measuring(_) => None,
            Phase::Holding(_, orders) => orders.get(group),
        }
    }

    /// Returns true if orders hold.
    pub(crate) fn has_orders(&self) -> bool {
        matches!(&self.phase, Phase::Holding(_, orders) if !orders.is_empty())
    }
}

/// Returns the weights that make the slowest job as fast as it can be; none if it gains less than this part.
fn orders<G: Clone + Ord>(senders: &[Sender<G>], gain: f64) -> BTreeMap<G, Weights> {
    let mut jobs: Vec<&(u32, String)> = senders.iter().map(|sender| &sender.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let job_of = |sender: &Sender<G>| jobs.iter().position(|job| **job == sender.job).unwrap_or(0);
    let mut ports: BTreeMap<&str, f64> = BTreeMap::new();
    for (_, port, rate) in senders.iter().flat_map(|sender| &sender.rails) {
        *ports.entry(port).or_default() += rate;
    }
    if jobs.len() < 2 || ports.len() < 2 {
        return BTreeMap::new();
    }
    let sums = |rates: &[Vec<f64>]| {
        let mut sums = vec![0.0; jobs.len()];
        for (sender, rates) in senders.iter().zip(rates) {
            sums[job_of(sender)] += rates.iter().sum::<f64>();
        }
        sums
    };
    let least = |sums: &[f64]| sums.iter().copied().fold(f64::INFINITY, f64::min);
    let before: Vec<Vec<f64>> =
        senders.iter().map(|sender| sender.rails.iter().map(|(_, _, rate)| *rate).collect()).collect();
    // Everybody begins with a little of each port, because what is nothing stays nothing.
    let mut rates: Vec<Vec<f64>> = senders
        .iter()
        .map(|sender| sender.rails.iter().map(|(_, port, rate)| rate.max(ports[&**port] * 0.01)).collect())
        .collect();
    for _ in 0..ROUNDS {
        let sums = sums(&rates);
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        let mut used: BTreeMap<&str, f64> = BTreeMap::new();
        for (sender, rates) in senders.iter().zip(&mut rates) {
            let push = (mean / sums[job_of(sender)].max(1.0)).powf(PUSH);
            for ((_, port, _), rate) in sender.rails.iter().zip(rates) {
                *rate *= push;
                *used.entry(port).or_default() += *rate;
            }
        }
        for (sender, rates) in senders.iter().zip(&mut rates) {
            for ((_, port, _), rate) in sender.rails.iter().zip(rates) {
                *rate *= ports[&**port] / used[&**port].max(f64::MIN_POSITIVE);
            }
        }
    }
    if least(&sums(&rates)) < least(&sums(&before)) * (1.0 + gain) {
        return BTreeMap::new();
    }
    let weights = senders.iter().zip(&rates).map(|(sender, rates)| {
        let sum: f64 = rates.iter().sum();
        let kept: Vec<f64> = rates.iter().map(|rate| if *rate < LEAST * sum { 0.0 } else { *rate }).collect();
        let sum: f64 = kept.iter().sum();
        let rails = sender.rails.iter().zip(kept);
        (sender.group.clone(), rails.map(|((rail, ..), rate)| (*rail, rate / sum)).collect())
    });
    weights.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(group: &'static str, job: &str, rails: &[(&str, f64)]) -> Sender<&'static str> {
        let rails = rails.iter().enumerate().map(|(rail, (port, rate))| (rail as u8, (*port).to_owned(), *rate));
        Sender { group, job: (0, job.to_owned()), rails: rails.collect() }
    }

    fn rounded(weights: Option<&Weights>) -> Vec<f64> {
        weights.into_iter().flatten().map(|(_, weight)| (weight * 100.0).round() / 100.0).collect()
    }

    #[test]
    fn a_job_with_two_ports_leaves_the_shared_one_to_a_job_that_has_no_other() {
        // Ports of 80 and 20: as the rails decide, the first job has 90 and the second 10.
        let senders = [sender("a", "one", &[("p", 80.0), ("q", 10.0)]), sender("b", "two", &[("q", 10.0)])];
        let orders = orders(&senders, 0.1);
        assert_eq!(rounded(orders.get("a")), [1.0, 0.0]);
        assert_eq!(rounded(orders.get("b")), [1.0]);
    }

    #[test]
    fn jobs_that_share_all_ports_gain_nothing() {
        let senders =
            [sender("a", "one", &[("p", 40.0), ("q", 10.0)]), sender("b", "two", &[("p", 40.0), ("q", 10.0)])];
        assert_eq!(orders(&senders, 0.1), BTreeMap::new());
        let one_job = [sender("a", "one", &[("p", 80.0), ("q", 10.0)]), sender("b", "one", &[("q", 10.0)])];
        assert_eq!(orders(&one_job, 0.1), BTreeMap::new(), "connections of one job are not jobs");
    }

    #[test]
    fn three_jobs_over_three_ports_end_as_equal_as_they_can() {
        let senders = [
            sender("a", "one", &[("p", 60.0), ("q", 20.0), ("r", 30.0)]),
            sender("b", "two", &[("q", 20.0), ("r", 30.0)]),
            sender("c", "three", &[("q", 20.0)]),
        ];
        let orders = orders(&senders, 0.1);
        // 60 for the first, 60 of r for the second, 60 of q for the third.
        assert_eq!(rounded(orders.get("a")), [1.0, 0.0, 0.0]);
        assert_eq!(rounded(orders.get("b")), [0.0, 1.0]);
        assert_eq!(rounded(orders.get("c")), [1.0]);
    }

    #[test]
    fn rates_are_measured_again_after_a_while_or_if_something_changed() {
        let config = BalanceConfig { measure_s: 4, hold_s: 60, gain: 0.1 };
        let senders = [sender("a", "one", &[("p", 80.0), ("q", 10.0)]), sender("b", "two", &[("q", 10.0)])];
        let held = [sender("a", "one", &[("p", 80.0), ("q", 0.0)]), sender("b", "two", &[("q", 20.0)])];
        let slow = [sender("a", "one", &[("p", 40.0), ("q", 0.0)]), sender("b", "two", &[("q", 20.0)])];
        let mut balance = Balance::default();
        let mut look = |second, senders: &[Sender<&'static str>]| {
            balance.look(&config, senders, Duration::from_secs(second));
            balance.has_orders()
        };
        assert!(!look(0, &senders) && !look(3, &senders) && look(4, &senders));
        assert!(look(63, &held) && !look(64, &held), "the time is over");
        assert!(!look(67, &senders) && look(68, &senders));
        assert!(look(69, &slow) && look(70, &slow) && !look(71, &slow), "less than four fifths for three looks");
        assert!(look(75, &senders));
        let more = [&held[..], &[sender("c", "three", &[("q", 1.0)])]].concat();
        assert!(!look(76, &more), "a job that begins");
    }
}
