//! The speeds to which a measurement's rails are slowed, as users write them, and their changes over time.

use crate::span;
use clap::Args;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The largest number of rails.
const MAX_RAILS: usize = 8;
/// The highest speed of a rail in Mbit/s.
const MAX_SPEED: u32 = 100_000;
/// The latest time of a change.
const LATEST_CHANGE: Duration = Duration::from_secs(86_400);

/// The arguments about slowed rails.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShapeArguments {
    /// As root: makes two network namespaces with a cable (veth) for each of these speeds in Mbit/s, such as 80,20;
    /// slows the cables to them, and runs the ranks there. Implies --every 500ms
    #[arg(long, value_name = "LIST", conflicts_with_all = ["rails", "rank_command", "nccl"])]
    shape: Option<Shape>,
    /// With --shape: from this time on, the cables have these speeds, such as 5s:20,20; may be given several times
    #[arg(long, value_name = "TIME:LIST", requires = "shape")]
    then: Vec<Change>,
}

/// The speed of each rail in Mbit/s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape(Vec<u32>);

/// A change of all speeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The time from the beginning of the traffic.
    pub(crate) after: Duration,
    /// The speeds from then on.
    pub(crate) shape: Shape,
}

/// The speeds over the time of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    /// The speeds at the beginning.
    pub(crate) first: Shape,
    /// The changes in order of time.
    pub(crate) changes: Vec<Change>,
}

impl ShapeArguments {
    /// Returns the user's request; `None` if rails are not to be slowed.
    ///
    /// # Errors
    /// If a change has another number of rails, or is not later than the one before.
    pub(crate) fn course(&self) -> Result<Option<Course>, String> {
        let Some(first) = &self.shape else { return Ok(None) };
        let mut earlier = Duration::ZERO;
        for Change { after, shape } in &self.then {
            let (rails, expected) = (shape.speeds().len(), first.speeds().len());
            if rails != expected {
                return Err(format!(
                    "--then {after:?} has {rails} speeds; allowed: {expected}, one for each rail of --shape {first}"
                ));
            }
            if *after <= earlier {
                return Err(format!(
                    "--then {after:?} is not later than {earlier:?}; allowed: changes in order of time, all after 0s"
                ));
            }
            earlier = *after;
        }
        Ok(Some(Course { first: first.clone(), changes: self.then.clone() }))
    }
}

impl Shape {
    /// Returns the speed of each rail in Mbit/s.
    pub(crate) fn speeds(&self) -> &[u32] {
        &self.0
    }

    /// Returns the speed of all rails together in Mbit/s.
    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().map(|speed| f64::from(*speed)).sum()
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let speeds: Option<Vec<u32>> = text.split(',').map(|speed| speed.trim().parse().ok()).collect();
        let speeds = speeds.filter(|speeds| speeds.iter().all(|speed| (1..=MAX_SPEED).contains(speed)));
        speeds.filter(|speeds| speeds.len() <= MAX_RAILS).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not a list of speeds; allowed: 1 to {MAX_RAILS} whole numbers of Mbit/s with commas \
                 between, each 1 to {MAX_SPEED}, such as 80,20"
            )
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((after, shape)) = text.split_once(':') else {
            return Err(format!("{text:?} is not a change; allowed: a time, a colon and speeds, such as 5s:20,20"));
        };
        let (after, shape) = (span::parse(after)?, shape.parse()?);
        if after > LATEST_CHANGE {
            return Err(format!("a change after {after:?} is not possible; allowed: up to {LATEST_CHANGE:?}, a day"));
        }
        Ok(Self { after, shape })
    }
}

impl Course {
    /// Returns the course of rails that keep their speeds.
    pub(crate) fn steady(first: Shape) -> Self {
        Self { first, changes: Vec::new() }
    }

    /// Returns the highest speed of each rail in Mbit/s.
    pub(crate) fn highest(&self) -> Vec<u32> {
        let mut highest = self.first.speeds().to_vec();
        for change in &self.changes {
            highest.iter_mut().zip(change.shape.speeds()).for_each(|(most, speed)| *most = (*most).max(*speed));
        }
        highest
    }

    /// Returns the time of the last change; 0 if there is none.
    pub(crate) fn last_change(&self) -> Duration {
        self.changes.last().map_or(Duration::ZERO, |change| change.after)
    }

    /// Returns the speeds with the times at which they begin and end, until `end`.
    pub(crate) fn stages(&self, end: Duration) -> Vec<(Duration, Duration, &Shape)> {
        let begins = std::iter::once((Duration::ZERO, &self.first));
        let begins: Vec<_> = begins.chain(self.changes.iter().map(|change| (change.after, &change.shape))).collect();
        let ends = begins.iter().skip(1).map(|(begin, _)| *begin).chain([Duration::MAX]);
        let stages = begins.iter().zip(ends).map(|((begin, shape), next)| (*begin, next.min(end), *shape));
        stages.filter(|(begin, end, _)| begin < end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        shape: ShapeArguments,
        #[arg(long)]
        rails: Option<String>,
        #[arg(long)]
        rank_command: Option<String>,
        #[arg(long)]
        nccl: Option<String>,
    }

    fn course(arguments: &[&str]) -> Result<Option<Course>, String> {
        let line = Line::try_parse_from([&["test"], arguments].concat()).map_err(|error| error.to_string())?;
        line.shape.course()
    }

    #[test]
    fn speeds_and_their_changes_are_read_in_order() {
        assert_eq!(course(&[]), Ok(None));
        let found = course(&["--shape", "80, 20", "--then", "5s:20,20", "--then", "7500ms:1,100000"]).unwrap().unwrap();
        assert_eq!((found.first.speeds(), found.first.sum().to_bits()), (&[80, 20][..], 100.0_f64.to_bits()));
        let ms = Duration::from_millis;
        assert_eq!(found.last_change(), ms(7500));
        assert_eq!(found.highest(), [80, 100_000]);
        let stages = found.stages(ms(9000)).into_iter().map(|(begin, end, shape)| (begin, end, shape.to_string()));
        let expected = [(0, 5000, "80,20"), (5000, 7500, "20,20"), (7500, 9000, "1,100000")];
        assert_eq!(stages.collect::<Vec<_>>(), expected.map(|(begin, end, shape)| (ms(begin), ms(end), shape.into())));
        assert_eq!(found.stages(ms(4000)), [(ms(0), ms(4000), &found.first)]);
    }

    #[test]
    fn speeds_and_changes_that_cannot_be_are_refused_with_a_sentence() {
        for wrong in ["", "80,", "0,20", "100001", "80;20", "80,-1", "1,1,1,1,1,1,1,1,1", "fast"] {
            let error = course(&["--shape", wrong]).unwrap_err();
            assert!(error.contains("allowed: 1 to 8 whole numbers of Mbit/s"), "{error}");
        }
        for (then, words) in [
            (&["5s"][..], "is not a change; allowed: a time, a colon and speeds, such as 5s:20,20"),
            (&["soon:20,20"], "is not a time; allowed"),
            (&["86401s:20,20"], "a change after 86401s is not possible; allowed: up to 86400s"),
            (&["1e19s:20,20"], "is not possible; allowed: up to 86400s"),
            (&["5s:20"], "--then 5s has 1 speeds; allowed: 2, one for each rail of --shape 80,20"),
            (&["0s:20,20"], "not later than 0ns; allowed: changes in order of time"),
            (&["5s:20,20", "4s:80,20"], "--then 4s is not later than 5s; allowed"),
        ] {
            let then: Vec<&str> = then.iter().flat_map(|change| ["--then", *change]).collect();
            let error = course(&[&["--shape", "80,20"], &then[..]].concat()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(course(&["--then", "5s:20,20"]).unwrap_err().contains("--shape"));
        assert!(course(&["--shape", "80", "--rails", "lo"]).unwrap_err().contains("cannot be used with"));
    }
}
