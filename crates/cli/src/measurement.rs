//! A measurement between ranks: the reports of the ranks to their parent.

use crate::job::{Part, report};
use crate::network::NetworkArguments;
use crate::over_time::{self, Seen};
use crate::watch::Watch;
use railweave_bench::bootstrap::Link;
use railweave_bench::samples::Sampler;
use railweave_nccl_host::Plugin;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// A report of a rank to its parent.
#[derive(Debug, Serialize, Deserialize)]
enum Report<T> {
    /// A step begins.
    Phase(String),
    /// The traffic of the rank's rails.
    Seen(Seen),
    /// The results.
    Done(Box<T>),
}

/// The plugin and device that were measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// The name of the plugin.
    plugin: String,
    /// The file that it was loaded from.
    path: String,
    /// The version of the net API.
    api: u32,
    /// The name of the device.
    device: String,
}

impl Subject {
    /// Returns the subject for a device of a plugin.
    pub(crate) fn new(plugin: &Plugin, device: String) -> Self {
        let (name, path) = (plugin.name().to_owned(), plugin.path().display().to_string());
        Self { plugin: name, path, api: plugin.version(), device }
    }

    /// Returns the plugin's name and the version of the API.
    pub(crate) fn short(&self) -> String {
        format!("{} (net v{})", self.plugin, self.api)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugin, path, api, device } = self;
        write!(f, "{plugin} (net v{api}, device {device}), {path}")
    }
}

/// Makes two ranks do a job and returns the results of each.
pub(crate) fn run<T: DeserializeOwned>(
    network: &NetworkArguments,
    part: Part,
    job: &impl Serialize,
) -> Result<[T; 2], Box<dyn Error>> {
    let found = run_all(network, 2, part, job)?;
    found.try_into().map_err(|_| unreachable!("two ranks have two results"))
}

/// Makes `count` ranks do a job and returns the results of each.
pub(crate) fn run_all<T: DeserializeOwned>(
    network: &NetworkArguments,
    count: usize,
    part: Part,
    job: &impl Serialize,
) -> Result<Vec<T>, Box<dyn Error>> {
    watched(network, count, part, job, &mut Watch::new(false, None))
}

/// Makes `count` ranks do a job, shows the traffic of their rails, and returns the results of each.
pub(crate) fn watched<T: DeserializeOwned>(
    network: &NetworkArguments,
    count: usize,
    part: Part,
    job: &impl Serialize,
    watch: &mut Watch,
) -> Result<Vec<T>, Box<dyn Error>> {
    let ranks = network.spawn(count, part, job)?;
    let show_phases = io::stderr().is_terminal();
    let mut found: Vec<Option<T>> = (0..count).map(|_| None).collect();
    network.supervise(ranks, |rank, body| match serde_json::from_slice(body) {
        Ok(Report::Phase(phase)) if rank == 0 => {
            watch.note_begin();
            if watch.has_begun() {
                watch.phase(&phase);
            } else if show_phases {
                eprintln!("measuring: {phase}");
            }
        }
        Ok(Report::Phase(_)) => {}
        Ok(Report::Seen(seen)) => watch.take(rank, seen),
        Ok(Report::Done(done)) => found[rank] = Some(*done),
        Err(error) => eprintln!("railweave: cannot read a report of rank {rank}: {error}"),
    })?;
    let found: Option<Vec<T>> = found.into_iter().collect();
    found.ok_or_else(|| "a rank ended without results; this is a bug of railweave".into())
}

/// Tells the parent which step begins.
pub(crate) fn phase(link: &mut Link, what: &str) {
    // If the parent is gone, the next exchange fails.
    let _ = report(link, &Report::<()>::Phase(what.to_owned()));
}

/// Starts to report the traffic of this rank's rails to the parent, if a period is given.
pub(crate) fn look(every: Option<Duration>, link: &Link, plugin: &Plugin) -> io::Result<Option<Sampler>> {
    over_time::look(every, link, plugin, Report::<()>::Seen)
}

/// Sends the results to the parent.
pub(crate) fn done<T: Serialize>(link: &mut Link, outcome: T) -> Result<(), Box<dyn Error>> {
    report(link, &Report::Done(Box::new(outcome)))
}
