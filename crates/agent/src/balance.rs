//! The policy `balance`: ports are shared so that the slowest job of the host is as fast as it can be.
//!
//! Each connection by itself splits its messages by the rates of its rails. A job with two rails then takes as much of
//! the port that it shares as a job that has no other. Here the rates show for some seconds while the rails decide;
//! then each port's rate is given to its jobs again, less to those that have other ports. That is only worth an order
//! if the slowest job gains by it: otherwise the rails go on deciding, because they notice changes at once.
//!
//! A rate says nothing of a job that wants no more. So the orders have to prove themselves: if the slowest job does not
//! gain, or all lose, they end, for longer each time. While fewer than two of the jobs send, they rest.

use crate::config::BalanceConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The rounds after which the shares are as good as equal.
const ROUNDS: usize = 400;

/// The exponent by which a job that is faster than the others gives way in a round.
const PUSH: f64 = 0.3;

/// The part of a rail's rate below which it is left out.
const LEAST: f64 = 0.02;

/// The most rails that are shared: more would take long.
const MOST_RAILS: usize = 4096;

/// The part of the measured rates below which orders end, because something has changed.
const LOSS: f64 = 0.8;

/// The time after which jobs follow another order and their rates show it.
const SETTLE: Duration = Duration::from_secs(3);

/// The time for which fewer than two jobs have to send until orders rest.
const CALM: Duration = Duration::from_secs(3);

/// The largest number of times that the time without orders doubles.
const MOST_DOUBLINGS: u32 = 6;

/// A user's job: senders of one share their fate.
type Job = (u32, String);

/// A sender: the rails of one group of connections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sender<G> {
    /// Its group.
    pub(crate) group: G,
    /// Its job.
    pub(crate) job: Job,
    /// Its rails: number, port, and bytes per second in the last look.
    pub(crate) rails: Vec<(u8, String, f64)>,
}

/// The weights of a group's rails, by their numbers.
pub(crate) type Weights = Vec<(u8, f64)>;

/// The state of the policy.
#[derive(Clone, Debug)]
pub(crate) struct Balance<G> {
    phase: Phase<G>,
    /// The rates since the last look at them.
    rates: Rates<G>,
    /// True from the first orders until a measurement finds none: they are measured again and again in between.
    is_active: bool,
    /// The orders in a row that did not prove themselves.
    failures: u32,
}

#[derive(Clone, Debug)]
enum Phase<G> {
    /// The rails decide; their rates count from this time on. `None` before the first look.
    Measuring(Option<Duration>),
    Holding(Holding<G>),
    /// The rails decide until then, because orders for these groups have brought nothing.
    Resting(Duration, BTreeSet<G>),
}

/// Orders that hold.
#[derive(Clone, Debug)]
struct Holding<G> {
    since: Duration,
    orders: BTreeMap<G, Weights>,
    /// The rates of jobs before.
    before: BTreeMap<Job, f64>,
    /// The part by which the slowest has to gain to prove them; `None` once it has.
    to_prove: Option<f64>,
    /// The time from which rates count.
    settled: Duration,
    /// The last time at which two jobs sent, and true if none do, so that the rails decide.
    contended: Duration,
    rests: bool,
}

/// The sums of a sender's rates over the looks in which it sent, each by its time.
#[derive(Clone, Debug)]
struct Sum {
    job: Job,
    rails: BTreeMap<(u8, String), f64>,
    seconds: f64,
}

/// The mean rates of senders while they send.
#[derive(Clone, Debug)]
struct Rates<G> {
    since: Option<Duration>,
    last: Option<Duration>,
    sums: BTreeMap<G, Sum>,
}

impl<G: Clone + Ord> Rates<G> {
    fn new() -> Self {
        Self { since: None, last: None, sums: BTreeMap::new() }
    }

    /// Adds the rates of a look. Returns true if they are those of as much time as this.
    fn add(&mut self, senders: &[Sender<G>], up: Duration, time: Duration) -> bool {
        // A look that soon follows another repeats its rates.
        let last = self.last.replace(up);
        let seconds = last.map_or(1.0, |last| up.saturating_sub(last).as_secs_f64());
        for sender in senders {
            let sum = self.sums.entry(sender.group.clone()).or_insert_with(|| Sum {
                job: sender.job.clone(),
                rails: BTreeMap::new(),
                seconds: 0.0,
            });
            sum.seconds += seconds;
            for (rail, port, rate) in &sender.rails {
                *sum.rails.entry((*rail, port.clone())).or_default() += rate * seconds;
            }
        }
        up.saturating_sub(*self.since.get_or_insert(up)) >= time
    }

    /// Returns the senders with their mean rates.
    fn take(&mut self) -> Vec<Sender<G>> {
        let sums = std::mem::replace(self, Self::new()).sums;
        let senders = sums.into_iter().map(|(group, Sum { job, rails, seconds })| {
            let mean = |((rail, port), sum): ((u8, String), f64)| (rail, port, sum / seconds.max(f64::MIN_POSITIVE));
            Sender { group, job, rails: rails.into_iter().map(mean).collect() }
        });
        senders.collect()
    }
}

impl<G: Clone + Ord> Default for Balance<G> {
    fn default() -> Self {
        Self { phase: Phase::Measuring(None), rates: Rates::new(), is_active: false, failures: 0 }
    }
}

impl<G: Clone + Ord> Balance<G> {
    /// Looks at the senders that send now.
    pub(crate) fn look(&mut self, config: &BalanceConfig, senders: &[Sender<G>], up: Duration) {
        let measure = Duration::from_secs(config.measure_s);
        let hold = Duration::from_secs(config.hold_s);
        match &mut self.phase {
            Phase::Measuring(from) => {
                if up >= *from.get_or_insert(up) && self.rates.add(senders, up, measure) {
                    let senders = self.rates.take();
                    let orders = orders(&senders, config.gain);
                    self.is_active = !orders.is_empty();
                    // Without orders nothing has to settle: the next measurement begins at once.
                    if !orders.is_empty() {
                        let before = by_job(&senders);
                        self.phase = Phase::Holding(Holding {
                            since: up,
                            orders,
                            before,
                            to_prove: Some(config.gain / 2.0),
                            settled: up + SETTLE,
                            contended: up,
                            rests: false,
                        });
                    }
                }
            }
            Phase::Holding(holding) => {
                let is_over = up.saturating_sub(holding.since) >= hold;
                if is_over || senders.iter().any(|sender| !holding.orders.contains_key(&sender.group)) {
                    return self.measure(up);
                }
                holding.notice_rest(senders, up);
                if holding.rests || up < holding.settled {
                    self.rates = Rates::new();
                } else if self.rates.add(senders, up, measure) {
                    let now = by_job(&self.rates.take());
                    if holding.is_good(&now) {
                        (holding.to_prove, self.failures) = (None, 0);
                    } else if holding.to_prove.is_some() {
                        let groups = holding.orders.keys().cloned().collect();
                        self.failures = self.failures.saturating_add(1);
                        let rest = hold * (1 << self.failures.min(MOST_DOUBLINGS));
                        (self.phase, self.is_active) = (Phase::Resting(up + rest, groups), false);
                    } else {
                        self.measure(up);
                    }
                }
            }
            Phase::Resting(until, groups) => {
                if up >= *until || senders.iter().any(|sender| !groups.contains(&sender.group)) {
                    self.measure(up);
                }
            }
        }
    }

    fn measure(&mut self, up: Duration) {
        self.rates = Rates::new();
        self.phase = Phase::Measuring(Some(up + SETTLE));
    }

    /// Returns the weights that are to be ordered for a group.
    pub(crate) fn weights(&self, group: &G) -> Option<&Weights> {
        match &self.phase {
            Phase::Holding(holding) if !holding.rests => holding.orders.get(group),
            _ => None,
        }
    }

    /// Returns true if there are orders, even if they rest or are measured again.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }
}

impl<G: Clone + Ord> Holding<G> {
    /// Lets the orders rest while fewer than two jobs send.
    fn notice_rest(&mut self, senders: &[Sender<G>], up: Duration) {
        let is_contended = senders.iter().any(|sender| sender.job != senders[0].job);
        if is_contended {
            self.contended = up;
        }
        let rests = up.saturating_sub(self.contended) >= CALM;
        if rests != self.rests {
            (self.rests, self.settled) = (rests, up + SETTLE);
        }
    }

    /// Returns true if the jobs that send are as fast as the orders promise. Those that pause say nothing.
    fn is_good(&self, now: &BTreeMap<Job, f64>) -> bool {
        let pairs = || now.iter().filter_map(|(job, now)| Some((*now, *self.before.get(job)?)));
        let (mut sum, mut least) = ((0.0, 0.0), (f64::INFINITY, f64::INFINITY));
        for (now, before) in pairs() {
            sum = (sum.0 + now, sum.1 + before);
            least = (least.0.min(now), least.1.min(before));
        }
        if now.len() < 2 {
            return true;
        }
        sum.0 >= LOSS * sum.1 && self.to_prove.is_none_or(|gain| least.0 >= least.1 * (1.0 + gain))
    }
}

/// Returns the bytes per second of each job.
fn by_job<G>(senders: &[Sender<G>]) -> BTreeMap<Job, f64> {
    let mut jobs = BTreeMap::new();
    for sender in senders {
        *jobs.entry(sender.job.clone()).or_default() += sender.rails.iter().map(|(.., rate)| rate).sum::<f64>();
    }
    jobs
}

/// Returns the weights that make the slowest job as fast as it can be; none if it gains less than this part.
fn orders<G: Clone + Ord>(senders: &[Sender<G>], gain: f64) -> BTreeMap<G, Weights> {
    let mut jobs: Vec<&Job> = senders.iter().map(|sender| &sender.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let all: Vec<(&String, f64)> =
        senders.iter().flat_map(|sender| &sender.rails).map(|(_, port, rate)| (port, *rate)).collect();
    let mut ports: Vec<&String> = all.iter().map(|(port, _)| *port).collect();
    ports.sort_unstable();
    ports.dedup();
    if jobs.len() < 2 || ports.len() < 2 || all.len() > MOST_RAILS {
        return BTreeMap::new();
    }
    // By rail: its job, its port, and its rate.
    let job_of = |sender: &Sender<G>| jobs.binary_search(&&sender.job).unwrap_or(0);
    let job_of: Vec<usize> =
        senders.iter().flat_map(|sender| std::iter::repeat_n(job_of(sender), sender.rails.len())).collect();
    let port_of: Vec<usize> = all.iter().map(|(port, _)| ports.binary_search(port).unwrap_or(0)).collect();
    let sums = |of: &[usize], count: usize, rates: &[f64]| {
        let mut sums = vec![0.0; count];
        for (place, rate) in of.iter().zip(rates) {
            sums[*place] += rate;
        }
        sums
    };
    let before: Vec<f64> = all.iter().map(|(_, rate)| *rate).collect();
    let capacities = sums(&port_of, ports.len(), &before);
    // Everybody begins with a little of each port, because what is nothing stays nothing.
    let mut rates: Vec<f64> =
        before.iter().zip(&port_of).map(|(rate, port)| rate.max(capacities[*port] * 0.01)).collect();
    for _ in 0..ROUNDS {
        let by_job = sums(&job_of, jobs.len(), &rates);
        let mean = by_job.iter().sum::<f64>() / by_job.len() as f64;
        let pushes: Vec<f64> = by_job.iter().map(|sum| (mean / sum.max(1.0)).powf(PUSH)).collect();
        rates.iter_mut().zip(&job_of).for_each(|(rate, job)| *rate *= pushes[*job]);
        let used = sums(&port_of, ports.len(), &rates);
        for (rate, port) in rates.iter_mut().zip(&port_of) {
            *rate *= capacities[*port] / used[*port].max(f64::MIN_POSITIVE);
        }
    }
    let least = |rates: &[f64]| sums(&job_of, jobs.len(), rates).into_iter().fold(f64::INFINITY, f64::min);
    if least(&rates) < least(&before) * (1.0 + gain) {
        return BTreeMap::new();
    }
    let mut rates = rates.into_iter();
    let weights = senders.iter().map(|sender| {
        let rates: Vec<f64> = rates.by_ref().take(sender.rails.len()).collect();
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

    impl<G> Balance<G> {
        fn has_orders(&self) -> bool {
            matches!(&self.phase, Phase::Holding(_))
        }
    }

    fn sender(group: &'static str, job: &str, rails: &[(&str, f64)]) -> Sender<&'static str> {
        let rails = rails.iter().enumerate().map(|(rail, (port, rate))| (rail as u8, (*port).to_owned(), *rate));
        Sender { group, job: (0, job.to_owned()), rails: rails.collect() }
    }

    #[test]
    fn a_look_that_soon_follows_another_weighs_little() {
        let mut rates = Rates::new();
        let mut add = |millis, rate| {
            rates.add(&[sender("g", "one", &[("p", rate)])], Duration::from_millis(millis), Duration::from_secs(3))
        };
        assert!(!add(1000, 100.0) && !add(2000, 100.0) && !add(2001, 900.0) && !add(3000, 100.0) && add(4000, 100.0));
        let mean = rates.take()[0].rails[0].2;
        assert!((mean - 100.0).abs() < 1.0, "{mean}");
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
        // A host is up for long when an agent begins.
        let mut look = |seconds: std::ops::Range<u64>, senders: &[Sender<&'static str>]| {
            let looks = seconds.map(|second| {
                balance.look(&config, senders, Duration::from_secs(100_000 + second));
                balance.has_orders()
            });
            looks.collect::<Vec<_>>()
        };
        assert_eq!(look(0..5, &senders), [false, false, false, false, true]);
        assert_eq!(look(5..65, &held).iter().position(|holds| !holds), Some(59), "the time is over");
        assert_eq!(look(65..73, &senders).iter().position(|holds| *holds), Some(6), "3 s to settle, and 4 s");
        assert_eq!(look(73..80, &held), [true; 7]);
        assert_eq!(look(80..90, &slow).iter().position(|holds| !holds), Some(3), "less than four fifths");
        assert!(look(90..100, &senders).contains(&true));
        let more = [&held[..], &[sender("c", "three", &[("q", 1.0)])]].concat();
        assert_eq!(look(100..101, &more), [false], "a job that begins");
    }

    #[test]
    fn orders_that_bring_nothing_end_for_longer_each_time() {
        let config = BalanceConfig { measure_s: 4, hold_s: 60, gain: 0.1 };
        let senders = [sender("a", "one", &[("p", 80.0), ("q", 10.0)]), sender("b", "two", &[("q", 10.0)])];
        let vain = [sender("a", "one", &[("p", 80.0), ("q", 0.0)]), sender("b", "two", &[("q", 10.0)])];
        let mut balance = Balance::default();
        let mut begins = Vec::new();
        for second in 0..3600 {
            let had = balance.has_orders();
            balance.look(&config, if had { &vain } else { &senders }, Duration::from_secs(second));
            if balance.has_orders() && !had {
                begins.push(second);
            }
        }
        let pauses: Vec<u64> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.len() < 6 && pauses.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{pauses:?}");
        let three = [&senders[..], &[sender("c", "three", &[("q", 10.0)])]].concat();
        let looks: Vec<bool> = (3600..3610)
            .map(|second| {
                balance.look(&config, &three, Duration::from_secs(second));
                balance.has_orders()
            })
            .collect();
        assert!(looks.contains(&true), "another job is another chance");
    }

    #[test]
    fn orders_rest_while_one_job_sends() {
        let config = BalanceConfig { measure_s: 4, hold_s: 600, gain: 0.1 };
        let senders = [sender("a", "one", &[("p", 80.0), ("q", 10.0)]), sender("b", "two", &[("q", 10.0)])];
        let held = [sender("a", "one", &[("p", 80.0), ("q", 0.0)]), sender("b", "two", &[("q", 20.0)])];
        let mut balance = Balance::default();
        let mut look = |seconds: std::ops::Range<u64>, senders: &[Sender<&'static str>]| {
            let looks = seconds.map(|second| {
                balance.look(&config, senders, Duration::from_secs(second));
                balance.weights(&"a").is_some()
            });
            looks.collect::<Vec<_>>()
        };
        assert_eq!(look(0..5, &senders), [false, false, false, false, true]);
        assert_eq!(look(5..30, &held), [true; 25]);
        assert_eq!(look(30..34, &held[..1]), [true, true, false, false]);
        assert_eq!(look(34..35, &held), [true], "at once");
        assert_eq!(look(35..38, &held[1..]), [true, true, false]);
        assert_eq!(look(38..50, &held), [true; 12]);
    }
}
