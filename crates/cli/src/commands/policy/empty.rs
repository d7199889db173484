//! The wait until ports are empty.

use crate::orders::effect::drain;
use crate::orders::{Orders, PortWatch, Use};
use crate::size::Size;
use railweave_telemetry::Folder;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// A port that was waited for.
#[derive(Debug, Serialize)]
pub(super) struct Waited {
    pub(super) port: String,
    pub(super) empty: bool,
    /// The seconds until it was, or until the wait ended.
    pub(super) seconds: f64,
    /// With an agent: the progress of the drain.
    phase: Option<String>,
    /// Without one: the rails that may send, the bytes in flight, and the rails and files of which nobody knows.
    rails: u32,
    in_flight_bytes: u64,
    unknown: u32,
}

impl Waited {
    /// Returns the sentence for people.
    pub(super) fn words(&self) -> String {
        let Self { port, empty, seconds, phase, rails, in_flight_bytes, unknown } = self;
        if *empty {
            return format!("port {port} is empty, after {seconds:.1} s");
        }
        let reason = match phase.as_deref() {
            Some("in_vain") => "connections have no other port, or their processes do not follow orders".to_owned(),
            Some(_) => "jobs are leaving it, or may use it unseen; see the findings of the agent".to_owned(),
            None if *unknown > 0 && *rails == 0 => {
                format!("{unknown} rails or files do not say which ports they use; see `railweave status`")
            }
            None => format!("{rails} rails use it, with {} in flight", Size(*in_flight_bytes as usize)),
        };
        format!("port {port} is still in use after {seconds:.1} s: {reason}")
    }
}

/// Waits until all ports are empty at once, for this time at most: if none were left for a connection, those that it
/// has left already would be in use again.
///
/// # Errors
/// If nobody can say at the end of the wait: a sentence.
pub(super) fn wait(orders: &mut Orders, ports: &[String], longest: Duration) -> Result<Vec<Waited>, String> {
    let begin = Instant::now();
    let mut ports: Vec<Port> = ports.iter().filter_map(|port| Port::new(port)).collect();
    loop {
        let result = look(orders, &mut ports, begin);
        let is_over = begin.elapsed() >= longest;
        if ports.iter().all(|port| port.waited.empty) || is_over {
            // The agent may have been started again in between.
            result?;
            return Ok(ports.into_iter().map(|port| port.waited).collect());
        }
        thread::sleep(PAUSE.min(longest.saturating_sub(begin.elapsed())));
    }
}

struct Port {
    watch: PortWatch,
    waited: Waited,
}

impl Port {
    fn new(port: &str) -> Option<Self> {
        let waited = Waited {
            port: port.to_owned(),
            empty: false,
            seconds: 0.0,
            phase: None,
            rails: 0,
            in_flight_bytes: 0,
            unknown: 0,
        };
        Some(Self { watch: PortWatch::new(drain(port)?), waited })
    }
}

/// Looks at all ports once.
fn look(orders: &Orders, ports: &mut [Port], begin: Instant) -> Result<(), String> {
    // Also those that are left out elsewhere, because the names of others stand for them.
    let drains = orders.drains()?;
    let folder = match &drains {
        Some(_) => None,
        None => Some(Folder::open(orders.run_dir().path()).map_err(|error| error.to_string())?),
    };
    for Port { watch, waited } in ports {
        let was_empty = waited.empty;
        if let Some(folder) = &folder {
            let Use { rails, in_flight, unknown, is_empty } = watch.look(folder)?;
            (waited.rails, waited.in_flight_bytes, waited.unknown, waited.empty) =
                (rails, in_flight, unknown, is_empty);
        } else {
            let drained = drains.iter().flatten().find(|drained| drained.port == waited.port);
            waited.phase = drained.and_then(|drained| drained.phase.clone());
            waited.empty = waited.phase.as_deref() == Some("empty");
        }
        if !(was_empty && waited.empty) {
            waited.seconds = begin.elapsed().as_secs_f64();
        }
    }
    Ok(())
}
