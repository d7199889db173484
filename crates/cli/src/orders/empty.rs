//! Ports that nothing is sent over, as the telemetry files of a run dir show it.

use super::effect::covers;
use super::files;
use railweave_telemetry::{Folder, RailState, Rules};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The time for which a port has to have sent nothing until it counts as empty: a process writes its counters ten times
/// a second while messages move. The agent waits as long.
const QUIET: Duration = Duration::from_millis(1500);

/// The use of a port, look by look.
pub(crate) struct PortWatch {
    /// The rules that drain it.
    drain: Rules,
    /// The bytes that each file's rails over it have sent.
    sent: HashMap<PathBuf, u64>,
    /// The time since which nothing was sent.
    quiet_since: Instant,
}

/// The use of a port at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// The rails that may send over it.
    pub(crate) rails: u32,
    /// The bytes that were posted and have not completed.
    pub(crate) in_flight: u64,
    /// Rails that may be over it, because their files name no ports for them, and files that cannot be read.
    pub(crate) unknown: u32,
    /// True if nothing uses it, and nothing was sent for long enough.
    pub(crate) is_empty: bool,
}

impl PortWatch {
    /// Returns the watch of a port that these rules drain.
    pub(crate) fn new(drain: Rules) -> Self {
        Self { drain, sent: HashMap::new(), quiet_since: Instant::now() }
    }

    /// Looks at the files.
    ///
    /// # Errors
    /// If the folder cannot be listed: a sentence.
    pub(crate) fn look(&mut self, folder: &Folder) -> Result<Use, String> {
        let mut usage = Use::default();
        let mut sent = HashMap::new();
        let damaged = files::read(folder, |path, snapshot| {
            let mut bytes: u64 = 0;
            for rail in &snapshot.state.rails {
                let may_send = matches!(rail.state, RailState::Up | RailState::Suspected);
                match snapshot.state.port_of(rail) {
                    None => usage.unknown += u32::from(may_send),
                    Some(port) if covers(&self.drain, &port.name) => {
                        bytes = bytes.saturating_add(rail.bytes_sent);
                        usage.rails += u32::from(may_send);
                        usage.in_flight = usage.in_flight.saturating_add(rail.in_flight.unwrap_or(0));
                    }
                    Some(_) => {}
                }
            }
            sent.insert(path.to_owned(), bytes);
        })?;
        usage.unknown = usage.unknown.saturating_add(u32::try_from(damaged.len()).unwrap_or(u32::MAX));
        // A file that went took its counters with it, and one that came begins at any number.
        let has_sent = |(path, bytes): (&PathBuf, &u64)| self.sent.get(path).is_some_and(|before| before != bytes);
        if usage.rails > 0 || usage.in_flight > 0 || sent.iter().any(has_sent) {
            self.quiet_since = Instant::now();
        }
        self.sent = sent;
        usage.is_empty = usage.unknown == 0 && self.quiet_since.elapsed() >= QUIET;
        Ok(usage)
    }
}
