//! A telemetry file that the agent follows.

use super::shared::Shared;
use railweave_telemetry::{Folder, Follower, Look, Presence, Process, Snapshot};
use std::time::{Duration, Instant};

/// The time without a write after which a process is looked for again: one that writes is there.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// Attempts to read a file that is being written, and the pause between two.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(1);

/// A telemetry file.
pub(super) struct Followed {
    follower: Follower,
    process: Option<Process>,
    presence: Presence,
    checked: Instant,
    /// True if the file was there at the folder's first look, and was not read yet: it is older than the agent.
    is_old: bool,
}

/// A file after a look.
enum Seen {
    Changed(Box<Snapshot>, Presence),
    Kept(Presence),
    Refused(String),
}

impl Followed {
    pub(super) fn new(is_old: bool) -> Self {
        let (process, presence) = (None, Presence::Unknown);
        Self { follower: Follower::default(), process, presence, checked: Instant::now(), is_old }
    }

    /// Looks at the file, and hands it to the agent.
    pub(super) fn report(&mut self, folder: &Folder, name: &str, shared: &Shared, buffer: &mut Vec<u8>) {
        let user = folder.owner();
        match self.look(folder, name, buffer) {
            Some(Seen::Changed(snapshot, presence)) => {
                let is_taken = shared.agent().see(user, name, &snapshot, presence, self.is_old, shared.now());
                self.is_old &= !is_taken;
            }
            Some(Seen::Kept(presence)) => shared.agent().keep(user, name, presence),
            Some(Seen::Refused(reason)) => {
                // Its process may have been killed while it wrote.
                if let Some(Seen::Kept(presence)) = self.kept() {
                    shared.agent().keep(user, name, presence);
                }
                shared.agent().refuse(user, name, &reason);
            }
            None => {}
        }
    }

    /// Looks at the file. Returns `None` if nothing is known of it yet.
    fn look(&mut self, folder: &Folder, name: &str, buffer: &mut Vec<u8>) -> Option<Seen> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match self.follower.look(folder, name, buffer) {
                Look::BeingWritten => {}
                Look::Refused(reason) => return Some(Seen::Refused(reason)),
                Look::Unchanged => return self.kept(),
                Look::Changed(snapshot) => {
                    let process = &snapshot.state.process;
                    if self.process.as_ref() != Some(process) || self.presence == Presence::Gone {
                        (self.process, self.presence) = (Some(process.clone()), process.presence());
                    }
                    self.checked = Instant::now();
                    return Some(Seen::Changed(snapshot, self.presence));
                }
            }
        }
        self.kept()
    }

    fn kept(&mut self) -> Option<Seen> {
        let process = self.process.as_ref()?;
        if self.checked.elapsed() >= LOOK_FOR {
            (self.presence, self.checked) = (process.presence(), Instant::now());
        }
        Some(Seen::Kept(self.presence))
    }
}
