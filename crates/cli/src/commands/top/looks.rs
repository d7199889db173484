//! The looks: files of run dirs in, findings for the board out.

use super::board::Found;
use super::hands::Hands;
use super::steerer::AtRunDirs;
use crate::environment;
use crate::host::{Live, USERS, Users};
use railweave_telemetry::RunDir;
use std::error::Error;
use std::path::{Path, PathBuf};
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
            None => RunDir::named(environment::options()?.run_dir.value.path()),
        };
        let named = named.iter().map(|path| RunDir::named(Some(path)).path().to_owned()).collect();
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
        Found { jobs: self.live.jobs(now_ns), noted, troubles: self.live.troubles(), now_ns }
    }

    /// Returns the folders that are looked at.
    pub(super) fn run_dirs(&mut self) -> &[PathBuf] {
        self.search();
        &self.run_dirs
    }

    /// Returns the folders that are looked at, as words.
    pub(super) fn shown(&mut self) -> Vec<String> {
        self.run_dirs().iter().map(|path| path.display().to_string()).collect()
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

/// Returns the name of this host.
pub(super) fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Returns the time in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
