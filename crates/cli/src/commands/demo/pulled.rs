//! The part of the demonstration in which a rail is pulled: the cables, their pull and return, and what the ranks'
//! records say about it.

use super::rank::Report;
use super::recorder::{Pull, Record, Turn, now_us};
use crate::namespaces::{Namespaces, is_root};
use crate::network::NetworkArguments;
use crate::output::{print, table};
use crate::over_time::say;
use crate::relay::{LOOPBACK, Relay};
use crate::shape::Course;
use crate::size::Size;
use clap::ValueEnum;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of rails between namespaces.
const RAILS: usize = 2;
/// The rail that is pulled, counted from 0.
const PULLED: usize = 1;

/// The ways to take a rail away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// As root: the ranks are in two network namespaces, joined by two cables (veth), and the port of one goes down
    Link,
    /// Without root: a relay before the plugin closes all TCP sockets of a rail and refuses new ones
    Sockets,
}

/// The rails of the demonstration.
#[derive(Debug)]
enum Cables {
    Links(Arc<Namespaces>),
    Relays(Vec<Relay>),
}

/// The pull of a rail while ranks work.
#[derive(Debug)]
pub(crate) struct Pulling {
    cables: Cables,
    away: Duration,
    json: bool,
    /// The time of the ranks' first report.
    begin: Option<Instant>,
    /// The times of the events so far, as in the ranks' records.
    events: Events,
    /// The first error.
    error: Option<String>,
}

/// The times of the events in microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Events {
    pulled: Option<u64>,
    given_back: Option<u64>,
}

/// The results; part of the output of `--json`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// The addresses of the rails' ends: on rank 0, and on the other rank.
    rails: Vec<[String; 2]>,
    /// The rail that was pulled, an index in `rails`.
    pulled: usize,
    stages: Vec<Stage>,
    /// The longest such time after the pull.
    longest_pause_ms: f64,
    /// The time from the rail's return until it carried data for all ranks.
    carries_after_s: f64,
}

/// A part of the time of the demonstration.
#[derive(Debug, PartialEq, Serialize)]
struct Stage {
    name: &'static str,
    seconds: f64,
    /// The bytes that each rail brought, to all ranks together.
    received: Vec<u64>,
    /// The longest time in this stage, and inside a collective, in which a rank neither sent nor received anything.
    longest_pause_ms: f64,
}

impl Pulling {
    /// Makes the rails. Without a wish, takes links if this process can make them.
    ///
    /// # Errors
    /// If they cannot be made: the reason.
    pub(crate) fn prepare(
        network: &NetworkArguments,
        (way, away, course): (Option<Way>, Duration, Option<&Course>),
        ranks: usize,
        json: bool,
    ) -> Result<(NetworkArguments, Self), String> {
        let links = match (way, course) {
            (Some(Way::Sockets), Some(_)) => {
                return Err(
                    "--shape with --pull=sockets is not possible; allowed: --pull, which takes a link down".into()
                );
            }
            (_, Some(course)) if course.first.speeds().len() <= PULLED => {
                return Err("--shape with --pull needs two speeds or more, such as 80,20".into());
            }
            (_, Some(course)) => Some(Namespaces::make(course)?),
            (Some(Way::Sockets), None) => None,
            (Some(Way::Link), None) => Some(Namespaces::unslowed(RAILS)?),
            (None, None) if !is_root() => None,
            (None, None) => match Namespaces::unslowed(RAILS) {
                Ok(namespaces) => Some(namespaces),
                Err(reason) => {
                    say(json, format!("No cables of their own: {reason}.")).map_err(|error| error.to_string())?;
                    None
                }
            },
        };
        let network = network.pulled();
        let (network, cables) = match links.map(Arc::new) {
            Some(namespaces) => (network.inside(&namespaces), Cables::Links(namespaces)),
            None => {
                let relays = (0..ranks).map(|_| Relay::open(&LOOPBACK)).collect::<Result<_, _>>()?;
                (network, Cables::Relays(relays))
            }
        };
        let pulling = Self { cables, away, json, begin: None, events: Events::default(), error: None };
        say(json, pulling.title()).map_err(|error| error.to_string())?;
        Ok((network, pulling))
    }

    /// Returns the namespaces whose cables may be slowed.
    pub(crate) fn slowed(&self) -> Option<Arc<Namespaces>> {
        match &self.cables {
            Cables::Links(namespaces) => Some(Arc::clone(namespaces)),
            Cables::Relays(_) => None,
        }
    }

    /// Returns the part of the ranks' job.
    pub(crate) fn job(&self) -> Pull {
        let (addresses, relays) = match &self.cables {
            Cables::Links(_) => (Namespaces::addresses(PULLED).to_vec(), Vec::new()),
            Cables::Relays(relays) => (vec![LOOPBACK[PULLED].to_string()], relays.iter().map(Relay::port).collect()),
        };
        Pull { addresses, away: self.away, relays }
    }

    fn title(&self) -> String {
        let rail = self.job().addresses.join(" - ");
        let (rails, event) = match self.cables {
            Cables::Links(_) => {
                ("two cables between two network namespaces", format!("a port of the cable {rail} goes down"))
            }
            Cables::Relays(_) => (
                "127.0.0.1 and 127.0.0.2, through a relay",
                format!("the relay closes all sockets at {rail} and refuses new ones"),
            ),
        };
        format!(
            "Two rails: {rails}. When a third of the data has moved, {event}, for {:?}.\nThe ranks go on meanwhile, \
             and repeat the collectives until the rail carries data again.",
            self.away
        )
    }

    /// Does what a rank's report asks for.
    pub(crate) fn take(&mut self, rank: usize, report: &Report) {
        match report {
            Report::ListensOn(port) => {
                if let Cables::Relays(relays) = &mut self.cables
                    && let Some(relay) = relays.get(rank)
                {
                    relay.lead_to(*port);
                }
            }
            Report::Bucket { .. } => _ = self.begin.get_or_insert_with(Instant::now),
            Report::Turn(Turn::Pull) => self.pull(),
            Report::Turn(Turn::GiveBack) => self.give_back(),
            Report::Turn(Turn::Back) => self.say(Ok(()), "it carries data again"),
            Report::Seen(_) | Report::Done(_) => {}
        }
    }

    /// Takes the rail away.
    fn pull(&mut self) {
        self.events.pulled = Some(now_us());
        let result = match &mut self.cables {
            Cables::Links(namespaces) => namespaces.switch(PULLED, false),
            Cables::Relays(relays) => relays.iter_mut().try_for_each(|relay| relay.fail(LOOPBACK[PULLED])),
        };
        self.say(result, "the rail is pulled");
    }

    /// Gives the rail back.
    fn give_back(&mut self) {
        let result = match &mut self.cables {
            Cables::Links(namespaces) => namespaces.switch(PULLED, true),
            Cables::Relays(relays) => relays.iter_mut().try_for_each(|relay| relay.mend(LOOPBACK[PULLED])),
        };
        self.events.given_back = Some(now_us());
        self.say(result, "the rail is given back");
    }

    fn say(&mut self, result: Result<(), String>, what: &str) {
        let seconds = self.begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
        let rail = self.job().addresses.join(" - ");
        let line = || say(self.json, format!("{seconds:6.2} s  {rail}: {what}")).map_err(|error| error.to_string());
        let result = result.and_then(|()| line());
        self.error = self.error.take().or(result.err());
    }

    /// Returns the results.
    ///
    /// # Errors
    /// If the rail could not be pulled or given back, or did not carry anything afterwards: a sentence.
    pub(crate) fn finish(self, records: &[Record]) -> Result<Outcome, String> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let addresses = self.job().addresses;
        let (Some(pulled), Some(given_back)) = (self.events.pulled, self.events.given_back) else {
            return Err("the data had moved before the rail was pulled; try more with --bytes".to_owned());
        };
        Outcome::of(records, &addresses, pulled, given_back)
    }
}

impl Outcome {
    /// Returns what these records say about the rail with an end at one of these addresses.
    fn of(records: &[Record], addresses: &[String], pulled_us: u64, given_back_us: u64) -> Result<Self, String> {
        let rails = records.first().map(|record| record.rails.clone()).unwrap_or_default();
        let place = |record: &Record| record.rails.iter().position(|[local, _]| addresses.contains(local));
        let mut back_us = given_back_us;
        for (rank, record) in records.iter().enumerate() {
            let pulled = place(record).ok_or_else(|| format!("rank {rank} has no rail {}", addresses.join(" - ")))?;
            let before = record.at(given_back_us, pulled);
            let first = record.points.iter().find(|point| {
                point.at_us > given_back_us && point.rails.get(pulled).is_some_and(|carried| *carried != before)
            });
            let first = first.ok_or_else(|| {
                format!("rail {} was given back, but carried nothing for rank {rank}", addresses.join(" - "))
            })?;
            back_us = back_us.max(first.at_us);
        }
        let begins = records.iter().filter_map(|record| record.collectives.first()).map(|[begin, _]| *begin);
        let ends = records.iter().filter_map(|record| record.collectives.last()).map(|[_, end]| *end);
        let (begin, end) = (begins.min().unwrap_or(pulled_us), ends.max().unwrap_or(back_us));
        let stages = [
            ("both rails", begin, pulled_us),
            ("one is pulled", pulled_us, given_back_us),
            ("given back", given_back_us, back_us),
            ("both again", back_us, end),
        ];
        let longest_pause_ms = |from: u64, to: u64| {
            records.iter().map(|record| record.longest_pause_us(from, to)).max().unwrap_or(0) as f64 / 1e3
        };
        let of_stage = |(name, from, to): (&'static str, u64, u64)| Stage {
            name,
            seconds: to.saturating_sub(from) as f64 / 1e6,
            received: (0..rails.len())
                .map(|rail| records.iter().map(|record| record.at(to, rail)[1] - record.at(from, rail)[1]).sum())
                .collect(),
            longest_pause_ms: longest_pause_ms(from, to),
        };
        Ok(Self {
            pulled: records.first().and_then(place).unwrap_or_default(),
            stages: stages.into_iter().map(of_stage).collect(),
            rails,
            longest_pause_ms: longest_pause_ms(pulled_us, end),
            carries_after_s: (back_us - given_back_us) as f64 / 1e6,
        })
    }

    /// Shows the results for people.
    pub(crate) fn show(&self) -> std::io::Result<()> {
        let names = self.rails.iter().map(|[local, remote]| format!("{local} - {remote}"));
        let header: Vec<String> = ["", "time"].map(str::to_owned).into_iter().chain(names).collect();
        let mut header: Vec<&str> = header.iter().map(String::as_str).collect();
        header.push("longest pause");
        let mut stages = table(&header, 1);
        for Stage { name, seconds, received, longest_pause_ms } in &self.stages {
            let all: u64 = received.iter().sum();
            let share = |bytes: u64| bytes as f64 * 100.0 / all.max(1) as f64;
            let mut row = vec![(*name).to_owned(), format!("{seconds:.2} s")];
            row.extend(received.iter().map(|bytes| format!("{} ({:.1} %)", Size(*bytes as usize), share(*bytes))));
            row.push(format!("{longest_pause_ms:.0} ms"));
            stages.add_row(row);
        }
        print(stages)
    }

    /// Returns the last sentence for people.
    pub(crate) fn sentence(&self) -> String {
        let [local, remote] = &self.rails[self.pulled];
        format!(
            "No byte was lost with the rail {local} - {remote}; nothing moved for {:.0} ms at most, and the rail \
             carried data again {:.2} s after it was given back.",
            self.longest_pause_ms, self.carries_after_s
        )
    }
}

impl Record {
    /// Returns the bytes that this rail had carried at this time.
    fn at(&self, at_us: u64, rail: usize) -> [u64; 2] {
        let after = self.points.partition_point(|point| point.at_us <= at_us);
        let point = after.checked_sub(1).and_then(|last| self.points.get(last));
        point.and_then(|point| point.rails.get(rail)).copied().unwrap_or_default()
    }

    /// Returns the longest time inside a collective and between these two in which nothing moved.
    fn longest_pause_us(&self, from_us: u64, to_us: u64) -> u64 {
        let in_collective = |[begin, end]: &[u64; 2]| {
            let first = self.points.partition_point(|point| point.at_us <= *begin);
            let moments = self.points[first..].iter().map(|point| point.at_us).take_while(|at| at < end);
            let mut last = *begin;
            let pauses = moments.chain([*end]).map(|moment| {
                let pause = moment.min(to_us).saturating_sub(last.max(from_us));
                last = moment;
                pause
            });
            pauses.max().unwrap_or(0)
        };
        self.collectives.iter().map(in_collective).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::recorder::Point;

    /// Returns a record of two rails with these looks: the time, and the bytes that each rail had brought.
    fn record(looks: &[(u64, u64, u64)]) -> Record {
        let rails = ["10.0.0.1", "10.0.1.1"].map(|local| [local.to_owned(), "peer".to_owned()]).to_vec();
        let point = |(at_us, first, second): &(u64, u64, u64)| {
            let rails = vec![[0, *first], [0, *second]];
            Point { at_us: *at_us, rails }
        };
        Record { rails, points: looks.iter().map(point).collect(), collectives: vec![[1000, 4000], [5000, 12_000]] }
    }

    #[test]
    fn the_stages_of_a_pull_have_the_bytes_of_each_rail_and_the_pauses_inside_collectives() {
        let looks = [(1000, 0, 0), (2000, 10, 10), (3900, 20, 20), (6000, 30, 20), (8500, 60, 20), (10_000, 70, 25)];
        let rail = ["10.0.1.1".to_owned()];
        let outcome = Outcome::of(&[record(&looks)], &rail, 4000, 9000).unwrap();
        let stages: Vec<_> = outcome
            .stages
            .iter()
            .map(|stage| (stage.name, stage.seconds, &stage.received[..], stage.longest_pause_ms))
            .collect();
        // From 4000 to 5000 no collective ran.
        let wanted: [(_, _, &[u64], _); 4] = [
            ("both rails", 0.003, &[20, 20], 1.9),
            ("one is pulled", 0.005, &[40, 0], 2.5),
            ("given back", 0.001, &[10, 5], 1.0),
            ("both again", 0.002, &[0, 0], 2.0),
        ];
        assert_eq!(stages, wanted);
        assert_eq!((outcome.pulled, outcome.carries_after_s), (1, 0.001));
        assert!(outcome.sentence().contains("10.0.1.1 - peer; nothing moved for 2 ms"), "{}", outcome.sentence());
    }

    #[test]
    fn a_rail_that_carries_nothing_after_its_return_is_an_error() {
        let rail = ["10.0.1.1".to_owned()];
        let error = Outcome::of(&[record(&[(1000, 1, 1), (9500, 2, 1)])], &rail, 2000, 9000).unwrap_err();
        assert!(error.contains("carried nothing for rank 0"), "{error}");
    }
}
