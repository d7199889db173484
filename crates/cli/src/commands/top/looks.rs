//! The looks: files of run dirs in, findings for the board out.

use super::board::Found;
use super::hands::Hands;
use super::steerer::AtRunDirs;
use crate::environment;
use crate::host::{Live, USERS, Users, is_same_folder};
use railweave_telemetry::RunDir;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time between two searches for run dirs of other users.
const SEARCH: Duration = Duration::from_secs(2);

/// The work of looks.
pub(super) struct Looks {
    /// The folders that the arguments name; if there are none, those of the users are searched for.
    named: Vec<PathBuf>,
    /// The folder of this user, or the first that the arguments name.
    own: RunDir,
    users: Users,
    run_dirs: Vec<PathBuf>,
    searched: Option<Instant>,
    live: Live,
}

impl Looks {
    /// Returns looks at these folders, or at those of the users.
    ///
    /// # Errors
    /// If a setting has a wrong value: a sentence.
    pub(super) fn new(named: &[PathBuf]) -> Result<Self, String> {
        let own = match named.first() {
            Some(first) => RunDir::named(Some(first)),
            None => environment::run_dir()?,
        };
        let mut folders: Vec<PathBuf> = Vec::new();
        for path in named {
            let path = RunDir::named(Some(path)).path().to_owned();
            // One that is named twice counts once.
            if !folders.iter().any(|other| is_same_folder(other, &path)) {
                folders.push(path);
            }
        }
        let named = folders;
        let live = Live::default();
        Ok(Self { named, own, users: Users::default(), run_dirs: Vec::new(), searched: None, live })
    }

    /// Returns hands for orders.
    ///
    /// # Errors
    /// If there is no room for their thread: a sentence.
    pub(super) fn hands() -> Result<Hands, Box<dyn Error>> {
        let hands = Hands::new(AtRunDirs::default());
        Ok(hands.map_err(|error| format!("no thread can be started: {error}; try a higher limit (`ulimit -u`)"))?)
    }

    /// Looks at everything once.
    pub(super) fn look(&mut self) -> Found {
        self.search();
        let noted = self.live.look(&self.run_dirs);
        let now_ns = now_ns();
        let (jobs, troubles, run_dirs) = (self.live.jobs(now_ns), self.live.troubles(), self.run_dirs.clone());
        Found { jobs, noted, troubles, run_dirs, now_ns }
    }

    fn search(&mut self) {
        if !self.named.is_empty() {
            self.run_dirs.clone_from(&self.named);
            return;
        }
        if self.searched.is_some_and(|searched| searched.elapsed() < SEARCH) {
            return;
        }
        self.searched = Some(Instant::now());
        self.run_dirs = vec![self.own.path().to_owned()];
        if rustix::process::geteuid().is_root() {
            self.users.find(Path::new(USERS));
            self.run_dirs.extend(self.users.found().cloned());
            self.run_dirs.sort();
            self.run_dirs.dedup();
        }
    }
}

/// Looks by a thread of their own: a file system that hangs stops no keys.
pub(super) struct Watcher {
    ask: Sender<()>,
    found: Receiver<Found>,
    /// True if there was no answer yet.
    pub(super) is_asked: bool,
}

impl Watcher {
    /// Returns a watcher that looks when it is asked.
    ///
    /// # Errors
    /// If there is no room for a thread.
    pub(super) fn new(mut looks: Looks) -> std::io::Result<Self> {
        let (ask, asked) = channel();
        let (send, found) = channel();
        let thread = std::thread::Builder::new().name("looks".to_owned());
        thread.spawn(move || {
            while asked.recv().is_ok() {
                if send.send(looks.look()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { ask, found, is_asked: false })
    }

    /// Asks for a look, unless one is awaited.
    pub(super) fn ask(&mut self) {
        if !self.is_asked {
            // If nobody looks any more, waiting says so.
            let _ = self.ask.send(());
            self.is_asked = true;
        }
    }

    /// Returns the look that was asked for, if it comes within this time.
    ///
    /// # Errors
    /// If nobody looks any more: a sentence.
    pub(super) fn wait(&mut self, longest: Duration) -> Result<Option<Found>, String> {
        if !self.is_asked {
            return Ok(None);
        }
        match self.found.recv_timeout(longest) {
            Ok(found) => {
                self.is_asked = false;
                Ok(Some(found))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("a look has failed; this is a bug of railweave".to_owned()),
        }
    }
}

/// Returns the name of this host.
pub(super) fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Returns the time in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
