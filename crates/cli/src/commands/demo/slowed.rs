//! The part of the demonstration on rails that are slowed on purpose: checked messages from one rank to the other, the
//! split over time, and the rate that was reached next to that of all rails.

use super::steered::{Steered, Steering};
use crate::commands::flow::{Flow, Job, OfRank};
use crate::device::{Device, Fuse};
use crate::job::Part;
use crate::measurement::{self, Subject};
use crate::output::{print, table};
use crate::over_time::{Period, RailShare, say};
use crate::shape::{Course, Shape};
use crate::size::Size;
use crate::watch::Prepared;
use railweave_bench::flow::BIN;
use serde::Serialize;
use std::error::Error;
use std::time::Duration;

/// The size of a message: a step of NCCL's buffers.
const MESSAGE_BYTES: usize = 512 << 10;
/// Messages in flight, as in NCCL.
const IN_FLIGHT: usize = 8;

/// The user's request.
pub(crate) struct Wanted<'a> {
    /// The speeds of the rails.
    pub(crate) course: &'a Course,
    /// The devices to fuse.
    pub(crate) fuse: Fuse,
    /// The time of the traffic.
    pub(crate) time: Duration,
    /// The period in which the split is shown.
    pub(crate) every: Option<Duration>,
    /// True if an order is to empty the first rail meanwhile.
    pub(crate) steers: bool,
    /// True if standard output is for JSON.
    pub(crate) json: bool,
}

/// The results; part of the output of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// The number of messages, every byte of which was checked.
    messages: usize,
    /// The size of a message.
    message_bytes: usize,
    /// Messages in flight.
    in_flight: usize,
    /// The rate of the whole time.
    mbit_per_second: f64,
    /// One entry for each time in which the speeds were the same.
    stages: Vec<Stage>,
    /// The share of each rail in all bytes; empty if the plugin has no counters.
    rails: Vec<RailShare>,
    /// The traffic of each rank's rails.
    over_time: Vec<Period>,
    /// The course of the rail that an order emptied, if one did.
    steered: Option<Steered>,
}

/// A time in which the speeds of the rails were the same.
#[derive(Debug, PartialEq, Serialize)]
struct Stage {
    begin_s: f64,
    end_s: f64,
    /// The speed of each rail in Mbit/s.
    shape: Shape,
    /// Their sum.
    mbit_possible: f64,
    /// The rate at which messages came.
    mbit_per_second: f64,
    /// The same in the second half of the time, when a split has had time to adapt.
    second_half_mbit_per_second: f64,
}

/// Runs this part over rails that were just made.
pub(crate) fn run(prepared: Prepared, wanted: Wanted<'_>) -> Result<Outcome, Box<dyn Error>> {
    let Wanted { course, fuse, time, every, steers, json } = wanted;
    let Prepared { network, mut watch } = prepared;
    say(json, title(course, time))?;
    let job = Job {
        network: network.network()?,
        device: Device::first(fuse),
        sizes: vec![MESSAGE_BYTES],
        small: 0,
        in_flight: IN_FLIGHT,
        seconds: time.as_secs_f64(),
        warm_up: 0.0,
        checked: true,
        every,
    };
    let mut steering = None;
    if steers {
        let (made, begun) = Steering::start(time, json)?;
        watch.tell_begin(begun);
        steering = Some(made);
    }
    let ranks: Result<Vec<OfRank>, _> = measurement::watched(&network, 2, Part::Flow, &job, &mut watch);
    let over_time = watch.finish();
    // Its order is taken back whatever went wrong.
    let steered = steering.map(|steering| steering.finish(over_time.as_deref().unwrap_or_default(), time));
    let (ranks, over_time, steered) = (ranks?, over_time?, steered.transpose()?);
    let mut flows = Vec::new();
    let mut subject = None;
    for rank in ranks {
        subject = subject.or(Some(rank.subject));
        flows.extend(rank.flows);
    }
    let (Some(subject), Ok([sender, receiver])) = (subject, <[Flow; 2]>::try_from(flows)) else {
        unreachable!("two ranks have one flow each")
    };
    Ok(Outcome {
        subject,
        messages: receiver.messages,
        message_bytes: MESSAGE_BYTES,
        in_flight: receiver.in_flight,
        mbit_per_second: receiver.mbit_per_second,
        stages: stages(course, &receiver.bins, time),
        rails: sender.rails,
        over_time,
        steered,
    })
}

/// Returns the line that says what follows.
fn title(course: &Course, time: Duration) -> String {
    let rails = course.first.speeds().len();
    format!(
        "Slowed rails: {rails} between two network namespaces. Rank 0 sends messages of {} to rank 1, {IN_FLIGHT} in \
         flight, for {time:?}. A rate is of bytes handed to a rail: at first also of those that fill its queue.",
        Size(MESSAGE_BYTES)
    )
}

/// Returns the rates between changes of speed, from the bytes of each bin.
fn stages(course: &Course, bins: &[u64], end: Duration) -> Vec<Stage> {
    let of_stage = |(begin, end, shape): (Duration, Duration, &Shape)| Stage {
        begin_s: begin.as_secs_f64(),
        end_s: end.as_secs_f64(),
        shape: shape.clone(),
        mbit_possible: shape.sum(),
        mbit_per_second: rate(bins, begin, end),
        second_half_mbit_per_second: rate(bins, begin + (end - begin) / 2, end),
    };
    course.stages(end).into_iter().map(of_stage).collect()
}

/// Returns the rate in Mbit/s over the bins that lie inside this time; 0 if there are none.
fn rate(bins: &[u64], begin: Duration, end: Duration) -> f64 {
    let first = begin.as_nanos().div_ceil(BIN.as_nanos()) as usize;
    let last = (end.as_nanos() / BIN.as_nanos()) as usize;
    if first >= last {
        return 0.0;
    }
    let bytes: u64 = bins.iter().take(last).skip(first).sum();
    bytes as f64 * 8.0 / 1e6 / (BIN.as_secs_f64() * (last - first) as f64)
}

impl Outcome {
    /// Shows the results for people.
    pub(crate) fn show(&self) -> std::io::Result<()> {
        let mut stages = table(&["from", "to", "rails", "sum", "reached", "in the second half"], 0);
        for stage in &self.stages {
            let of_sum = |rate: f64| format!("{rate:.1} Mbit/s ({:.1} %)", rate * 100.0 / stage.mbit_possible);
            stages.add_row([
                format!("{:.1} s", stage.begin_s),
                format!("{:.1} s", stage.end_s),
                stage.shape.to_string(),
                format!("{} Mbit/s", stage.mbit_possible),
                of_sum(stage.mbit_per_second),
                of_sum(stage.second_half_mbit_per_second),
            ]);
        }
        print(stages)?;
        let (messages, size, subject) = (self.messages, Size(self.message_bytes), self.subject.short());
        let shares: Vec<String> = self.rails.iter().map(|rail| format!("{:.1} %", rail.share * 100.0)).collect();
        let shares = if shares.is_empty() { String::new() } else { format!(", split {}", shares.join(" to ")) };
        print(format_args!(
            "Passed: {messages} messages of {size} over {subject}{shares}; every byte was checked; {:.1} Mbit/s.",
            self.mbit_per_second
        ))?;
        self.steered.as_ref().map_or(Ok(()), |steered| print(steered.sentence()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_count_the_bins_inside_them() {
        let course = Course { first: "80,20".parse().unwrap(), changes: vec!["1s:20,20".parse().unwrap()] };
        // 40 Mbit/s, then 100 Mbit/s, then 20.
        let bins: Vec<u64> = [500_000; 5].into_iter().chain([1_250_000; 5]).chain([250_000; 10]).collect();
        let stages = stages(&course, &bins, Duration::from_secs(2));
        let figures: Vec<_> = stages
            .iter()
            .map(|stage| {
                [
                    stage.begin_s,
                    stage.end_s,
                    stage.mbit_possible,
                    stage.mbit_per_second,
                    stage.second_half_mbit_per_second,
                ]
            })
            .collect();
        assert_eq!(figures, [[0.0, 1.0, 100.0, 70.0, 100.0], [1.0, 2.0, 40.0, 20.0, 20.0]]);
    }

    #[test]
    fn bins_that_are_missing_are_empty_and_a_time_without_bins_has_no_rate() {
        let ms = Duration::from_millis;
        assert!((rate(&[1_250_000], ms(0), ms(200)) - 50.0).abs() < 1e-9);
        assert!(rate(&[1, 1], ms(10), ms(150)).abs() < 1e-9);
    }
}
