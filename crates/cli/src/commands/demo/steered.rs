//! The steering of the demonstration: in the middle of the traffic an order empties the first rail, and gives it back.

use crate::environment;
use crate::namespaces::cable;
use crate::orders::{InForce, Orders};
use crate::output::printable;
use crate::over_time::{Period, say, share};
use railweave_options::RunDir as Setting;
use railweave_telemetry::RunDir;
use serde::Serialize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The time that jobs have to follow an order: they look for a policy file once a second while there is none.
const SOON: Duration = Duration::from_millis(1200);

/// The time by which an order ends of itself after the traffic, if nobody is left to take it back.
const LATER: Duration = Duration::from_secs(10);

/// The thread that gives the orders.
pub(super) struct Steering {
    /// Dropped to end the thread.
    stop: Sender<()>,
    thread: JoinHandle<Result<(f64, f64), String>>,
}

/// The time for which the first rail was to be empty; part of the output of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Steered {
    port: String,
    /// The times of both orders, in seconds since the first rank began to look.
    from_s: f64,
    to_s: f64,
    /// The rail's share of the data before, meanwhile and afterwards, 0 to 1, but for the time just after each order;
    /// `None` if nothing was counted.
    shares: [Option<f64>; 3],
}

impl Steering {
    /// Begins to steer traffic of this length, once its beginning comes over the channel that is returned.
    ///
    /// # Errors
    /// If no job here follows orders, or there is no thread: a sentence.
    pub(super) fn start(time: Duration, json: bool) -> Result<(Self, Sender<Instant>), String> {
        let setting = environment::options_with(std::iter::empty())?.run_dir.value;
        if setting == Setting::Off {
            return Err(
                "--steer gives orders, which jobs follow only with a run dir; allowed: RAILWEAVE_RUN_DIR with a \
                        folder, or not set; try without it"
                    .to_owned(),
            );
        }
        let run_dir = RunDir::named(setting.path());
        let (begun, begin) = channel();
        let (stop, stopped) = channel();
        let work = move || steer(&run_dir, time, &begin, &stopped, json);
        let thread = Builder::new().name("steering".to_owned()).spawn(work);
        let thread = thread.map_err(|error| format!("the thread that steers cannot be started: {error}"))?;
        Ok((Self { stop, thread }, begun))
    }

    /// Ends it, and takes its order back. `over_time` is the traffic.
    ///
    /// # Errors
    /// If an order could not be carried out: a sentence.
    pub(super) fn finish(self, over_time: &[Period], time: Duration) -> Result<Steered, String> {
        drop(self.stop);
        let result = self.thread.join().map_err(|_| "the thread that steers panicked; this is a bug of railweave")?;
        let (from_s, to_s) = result?;
        let soon = SOON.as_secs_f64();
        let times = [(soon, from_s), (from_s + soon, to_s), (to_s + soon, time.as_secs_f64())];
        let shares = times.map(|(from_s, to_s)| share(over_time, 0, 0, from_s..to_s));
        Ok(Steered { port: cable(0), from_s, to_s, shares })
    }
}

impl Steered {
    /// Returns the sentence for people.
    pub(crate) fn sentence(&self) -> String {
        let Self { port, from_s, to_s, shares } = self;
        let [before, meanwhile, after] =
            shares.map(|share| share.map_or("nothing known".to_owned(), |share| format!("{:.1} %", share * 100.0)));
        format!(
            "Steered: {port} was to be empty from {from_s:.1} s to {to_s:.1} s. It carried {before} of the data \
             before, {meanwhile} meanwhile and {after} afterwards."
        )
    }
}

/// Empties the first rail after a third of the traffic, and gives it back after two. Returns the times of both, in
/// seconds since the beginning.
fn steer(
    run_dir: &RunDir,
    time: Duration,
    begin: &Receiver<Instant>,
    stopped: &Receiver<()>,
    json: bool,
) -> Result<(f64, f64), String> {
    let ended = || "the traffic ended before --steer had given both orders; try a longer --seconds".to_owned();
    let begin = begin.recv().map_err(|_| ended())?;
    let is_stopped = |after: Duration| {
        let wait = (begin + after).saturating_duration_since(Instant::now());
        !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
    };
    if is_stopped(time / 3) {
        return Err(ended());
    }
    let port = cable(0);
    let tell = |text: String| -> Result<f64, String> {
        let seconds = begin.elapsed().as_secs_f64();
        say(json, format!("{seconds:6.2} s  {}", printable(&text))).map_err(|error| error.to_string())?;
        Ok(seconds)
    };
    let mut orders = Orders::find(run_dir)?;
    // The end is for the whole file, and others may have orders in it. An agent keeps orders until they are cleared.
    if !orders.has_agent() && orders.standing()? == InForce::default() {
        orders.set_ttl(time + LATER)?;
    }
    let outcome = orders.drain(&port, false)?;
    if !outcome.is_changed {
        return Err(format!(
            "port {port} was drained before --steer could do it; allowed: a port that is in use; try `railweave policy \
             clear {port}`"
        ));
    }
    let from_s = tell(format!("port {port} is to be empty, by {}", orders.by()));
    let is_early = is_stopped(time * 2 / 3);
    // Whoever took the first order may be gone. This one comes whatever happened meanwhile.
    let given_back = Orders::find(run_dir).and_then(|mut orders| orders.give_back(&port, false));
    let advice = |error| format!("{error}; port {port} may be drained still: try `railweave policy clear {port}`");
    if let Some(trouble) = given_back.map_err(advice)?.trouble {
        return Err(advice(trouble.into()));
    }
    let to_s = tell(format!("port {port} is given back"));
    if let Some(trouble) = outcome.trouble {
        return Err(trouble.into());
    }
    if is_early { Err(ended()) } else { Ok((from_s?, to_s?)) }
}
