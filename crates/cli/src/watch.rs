//! The parent's view of a measurement while it runs: the traffic of the rails over time, and the changes of their
//! speeds, each at its time.

use crate::namespaces::Namespaces;
use crate::network::NetworkArguments;
use crate::over_time::{OverTime, Period, Seen, say};
use crate::shape::{Change, Course, Shape, ShapeArguments};
use crate::span;
use clap::Args;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

/// The period if rails are slowed and the user gives none.
const DEFAULT_PERIOD: Duration = Duration::from_millis(500);

/// The arguments about the view of a measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct WatchArguments {
    /// While there is traffic, shows the rate and the share of each rail once in each period of this length, such as
    /// 100ms, counted when data is handed to the rail; 10ms to 60s
    #[arg(long, value_name = "TIME", value_parser = span::period)]
    every: Option<Duration>,
    #[command(flatten)]
    shape: ShapeArguments,
}

/// A measurement that is about to begin.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The network in which its ranks run.
    pub(crate) network: NetworkArguments,
    /// Its view.
    pub(crate) watch: Watch,
}

impl WatchArguments {
    /// Returns the speeds of the rails; `None` if they are not to be slowed.
    ///
    /// # Errors
    /// If the changes do not fit.
    pub(crate) fn course(&self) -> Result<Option<Course>, String> {
        self.shape.course()
    }

    /// Returns the period; `None` if the traffic is not to be shown. It always is on rails that are `slowed`.
    pub(crate) fn every(&self, slowed: bool) -> Option<Duration> {
        self.every.or(slowed.then_some(DEFAULT_PERIOD))
    }
}

impl Prepared {
    /// Makes the rails of `course`, if there is one.
    ///
    /// # Errors
    /// If they cannot be made: the reason.
    pub(crate) fn new(network: &NetworkArguments, course: Option<&Course>, json: bool) -> Result<Self, String> {
        let Some(course) = course else {
            return Ok(Self { network: network.clone(), watch: Watch::new(json, None) });
        };
        let namespaces = Arc::new(Namespaces::make(course)?);
        let network = network.inside(&namespaces);
        Ok(Self { network, watch: Watch::new(json, Some((namespaces, course.clone()))) })
    }
}

/// The view of one measurement.
#[derive(Debug)]
pub(crate) struct Watch {
    over_time: OverTime,
    json: bool,
    /// The rails that are slowed, and their speeds.
    slowed: Option<(Arc<Namespaces>, Course)>,
    changes: Option<Changes>,
    /// The time when each step began, in seconds since 1970.
    begins: Vec<f64>,
    /// The way to somebody who waits for the beginning of the traffic.
    begun: Option<Sender<Instant>>,
    /// The first error.
    error: Option<String>,
}

/// The thread that makes the changes.
#[derive(Debug)]
struct Changes {
    /// Dropped to end the thread.
    stop: Sender<()>,
    thread: JoinHandle<Result<Vec<Change>, String>>,
}

impl Watch {
    /// Returns the view of a measurement that has not begun. With `json`, standard output is not written.
    pub(crate) fn new(json: bool, slowed: Option<(Arc<Namespaces>, Course)>) -> Self {
        Self {
            over_time: OverTime::new(json),
            json,
            slowed,
            changes: None,
            begins: Vec::new(),
            begun: None,
            error: None,
        }
    }

    /// Has the beginning of the traffic told.
    pub(crate) fn tell_begin(&mut self, begun: Sender<Instant>) {
        self.begun = Some(begun);
    }

    /// Takes in a rank's report.
    pub(crate) fn take(&mut self, rank: usize, seen: Seen) {
        let result = match self.over_time.take(rank, seen) {
            Ok(Some(begin)) => self.begin(begin),
            Ok(None) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        self.error = self.error.take().or(result.err());
    }

    /// Returns true if the traffic is being shown.
    pub(crate) fn has_begun(&self) -> bool {
        self.over_time.begin().is_some()
    }

    /// Notes that a step begins now.
    pub(crate) fn note_begin(&mut self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.begins.push(now.as_secs_f64());
    }

    /// Returns the time when each step began, in seconds since 1970.
    pub(crate) fn begins(&self) -> &[f64] {
        &self.begins
    }

    /// Shows which step begins, between the lines of traffic.
    pub(crate) fn phase(&mut self, phase: &str) {
        let seconds = self.over_time.begin().map_or(0.0, |begin| begin.elapsed().as_secs_f64());
        let result = say(self.json, format!("{seconds:6.2} s  {phase}"));
        self.error = self.error.take().or(result.err().map(|error| error.to_string()));
    }

    /// Returns the traffic over time, when the measurement has ended.
    ///
    /// # Errors
    /// If a speed could not be changed, or standard output not be written.
    pub(crate) fn finish(self) -> Result<Vec<Period>, Box<dyn Error>> {
        if let Some(Changes { stop, thread }) = self.changes {
            drop(stop);
            let left =
                thread.join().map_err(|_| "the thread that changes speeds panicked; this is a bug of railweave")??;
            for Change { after, .. } in left {
                say(self.json, format!("the change of --then {after:?} was not made: the traffic had ended"))?;
            }
        }
        match self.error {
            Some(error) => Err(error.into()),
            None => Ok(self.over_time.into_periods()),
        }
    }

    /// Tells the beginning, shows the speeds, and starts the thread that changes them.
    fn begin(&mut self, begin: Instant) -> Result<(), String> {
        if let Some(begun) = self.begun.take() {
            // Nobody waits any more if the thread has failed, which its end says.
            let _ = begun.send(begin);
        }
        let Some((namespaces, Course { first, changes })) = &self.slowed else { return Ok(()) };
        let json = self.json;
        say(json, speeds(0.0, first)).map_err(|error| error.to_string())?;
        if changes.is_empty() {
            return Ok(());
        }
        let (namespaces, changes) = (Arc::clone(namespaces), changes.clone());
        let (stop, stopped) = channel::<()>();
        let thread = Builder::new().name("speeds".to_owned()).spawn(move || {
            for (number, Change { after, shape }) in changes.iter().enumerate() {
                let wait = (begin + *after).saturating_duration_since(Instant::now());
                if !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                    return Ok(changes[number..].to_vec());
                }
                namespaces.reshape(shape)?;
                say(json, speeds(begin.elapsed().as_secs_f64(), shape)).map_err(|error| error.to_string())?;
            }
            Ok(Vec::new())
        });
        let thread = thread.map_err(|error| format!("the thread that changes speeds cannot be started: {error}"))?;
        self.changes = Some(Changes { stop, thread });
        Ok(())
    }
}

fn speeds(seconds: f64, shape: &Shape) -> String {
    let each = shape.speeds().iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ");
    format!("{seconds:6.2} s  the rails can carry {each} = {} Mbit/s", shape.sum())
}
