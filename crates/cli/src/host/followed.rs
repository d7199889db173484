//! A telemetry file that is looked at again and again.

use railweave_telemetry::{Folder, Follower, Look, Presence, Process, Snapshot};
use std::time::{Duration, Instant};

/// The time without a write after which a process is looked for again: one that writes is there.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// Attempts to read a file that is being written, and the pause between two.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(1);

/// A telemetry file.
#[derive(Default)]
pub(crate) struct Followed {
    follower: Follower,
    /// The process and its presence, once the file was read.
    process: Option<(Process, Presence)>,
    /// The time at which it was looked for last.
    checked: Option<Instant>,
}

/// A file after a look.
pub(crate) enum Seen {
    /// It was written.
    Changed(Box<Snapshot>, Presence),
    /// It was not.
    Kept(Presence),
    /// It cannot be used: the end of a sentence that begins with it.
    Refused(String),
}

impl Followed {
    /// Looks at the file. Returns `None` if nothing is known of it yet.
    pub(crate) fn look(&mut self, folder: &Folder, name: &str, buffer: &mut Vec<u8>) -> Option<Seen> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match self.follower.look(folder, name, buffer) {
                Look::BeingWritten => {}
                Look::Refused(reason) => return Some(Seen::Refused(reason)),
                Look::Unchanged => break,
                Look::Changed(snapshot) => {
                    let presence = self.wrote(&snapshot.state.process);
                    return Some(Seen::Changed(snapshot, presence));
                }
            }
        }
        self.presence().map(Seen::Kept)
    }

    /// Takes back a snapshot of the file that nobody needs any more: the next one uses its room.
    pub(crate) fn reuse(&mut self, old: Snapshot) {
        self.follower.reuse(old);
    }

    /// Notes a write of this process. Returns its presence.
    fn wrote(&mut self, process: &Process) -> Presence {
        self.checked = Some(Instant::now());
        match &self.process {
            Some((known, presence)) if known == process && *presence != Presence::Gone => *presence,
            _ => {
                let presence = process.presence();
                self.process = Some((process.clone(), presence));
                presence
            }
        }
    }

    /// Returns the presence of the process, which is looked for if it has not written for some time; `None` if nothing
    /// is known of it yet.
    pub(crate) fn presence(&mut self) -> Option<Presence> {
        let (process, presence) = self.process.as_mut()?;
        if self.checked.is_none_or(|checked| checked.elapsed() >= LOOK_FOR) {
            (*presence, self.checked) = (process.presence(), Some(Instant::now()));
        }
        Some(*presence)
    }
}
