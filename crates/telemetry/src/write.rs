//! The writing of a telemetry file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::image::Image;
use crate::layout::HEADER;
use crate::run_dir::{RunDir, RunDirError, unfinished};
use crate::snapshot::{Event, State};

/// The longest time between two writes of a file, also while nothing changes, in nanoseconds.
pub const IDLE_NS: u64 = 5_000_000_000;

/// The age from which a file of a process that is not gone counts as silent: two times the longest time between two
/// writes.
pub const SILENT: Duration = Duration::from_nanos(2 * IDLE_NS);

/// The time between two attempts to write while none succeeds, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// A telemetry file that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The folder cannot be used.
    #[error("no telemetry for now: RAILWEAVE_RUN_DIR: {0}")]
    RunDir(#[from] RunDirError),
    /// The file cannot be written.
    #[error(
        "no telemetry for now: \"{}\" cannot be written: {error}; allowed: a folder that this process can write, \
         with room; try to make that so, or another RAILWEAVE_RUN_DIR (the job goes on, and so does its telemetry once \
         the file can be written)", path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// A change that is worth a line in the log.
#[derive(Debug)]
pub enum Notice {
    /// The file cannot be written. Said once, until it can be again.
    Failed(WriteError),
    /// The file, at this path, is written again.
    Recovered(PathBuf),
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Recovered(path) => write!(f, "telemetry is written again to \"{}\"", path.display()),
        }
    }
}

/// The file in use.
struct Open {
    file: File,
    device: u64,
    inode: u64,
    /// Its size: if it is smaller, somebody has truncated it.
    size: u64,
}

/// Writes the telemetry file of this process.
///
/// It keeps a copy of the file in memory, and writes only records that changed. It never maps the file, and never
/// waits for anybody: a reader that comes in between finds that the checksum is wrong, and reads again. A file that
/// somebody removed, replaced or truncated is made again.
pub struct Publisher {
    dir: RunDir,
    path: PathBuf,
    image: Image,
    open: Option<Open>,
    /// True once the file was made: its name is this process's own.
    is_made: bool,
    /// True if something changed since the last write.
    is_changed: bool,
    written_ns: u64,
    tried_ns: u64,
    is_failing: bool,
}

impl Publisher {
    /// Returns the publisher of the process with this random id. Touches no file yet.
    pub fn new(dir: RunDir, process: [u8; 16]) -> Self {
        Self {
            path: dir.file_of(process),
            dir,
            image: Image::new(),
            open: None,
            is_made: false,
            is_changed: false,
            written_ns: 0,
            tried_ns: 0,
            is_failing: false,
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds an event, which the next write writes.
    pub fn add(&mut self, event: &Event) {
        self.image.add(event);
        self.is_changed = true;
    }

    /// Writes the state if it changed, if the last write is 5 s ago, or if the file is damaged. `now_ns` is the time in
    /// nanoseconds since 1970. Call it ten times a second.
    ///
    /// Returns something to log if writing begins to fail or succeeds again. While it fails, it is tried once a second.
    pub fn publish(&mut self, state: &State, now_ns: u64) -> Option<Notice> {
        self.is_changed |= self.image.set(state);
        if self.image.grow() || self.open.as_ref().is_some_and(|open| !is_intact(open, &self.path)) {
            self.open = None;
        }
        // The clock may also be set back.
        let is_due = self.is_changed || self.open.is_none() || now_ns.abs_diff(self.written_ns) >= IDLE_NS;
        if !is_due || (self.is_failing && now_ns.abs_diff(self.tried_ns) < PAUSE_NS) {
            return None;
        }
        self.tried_ns = now_ns;
        let header = self.image.header(state, now_ns);
        let result = match self.open.take() {
            Some(open) => self.write_changes(open, &header),
            None => self.write_whole(&header),
        };
        match result {
            Ok(open) => {
                (self.open, self.is_made) = (Some(open), true);
                self.image.written();
                self.is_changed = false;
                self.written_ns = now_ns;
                std::mem::take(&mut self.is_failing).then(|| Notice::Recovered(self.path.clone()))
            }
            Err(error) => (!std::mem::replace(&mut self.is_failing, true)).then_some(Notice::Failed(error)),
        }
    }

    /// Removes the file, for a process that ends in good order.
    pub fn remove(self) {
        // One that could not be written lately goes too.
        if self.is_made {
            // A file that is already gone is as good.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Writes the records that changed, and the header last. The header of the last write goes with the records that it
    /// counts until one of them is overwritten. So records that it does not count come first: if the disk is full, the
    /// last image stays as it is.
    fn write_changes(&mut self, mut open: Open, header: &[u8; HEADER]) -> Result<Open, WriteError> {
        let failed = |error| WriteError::File { path: self.path.clone(), error };
        for piece in self.image.added() {
            if let Err(error) = open.file.write_all_at(piece.bytes, piece.place) {
                self.open = Some(open);
                return Err(failed(error));
            }
        }
        for piece in self.image.changed() {
            open.file.write_all_at(piece.bytes, piece.place).map_err(failed)?;
        }
        open.file.write_all_at(header, 0).map_err(failed)?;
        open.size = open.size.max(self.image.size());
        Ok(open)
    }

    /// Makes the file again, whole, and puts it in its place.
    fn write_whole(&self, header: &[u8; HEADER]) -> Result<Open, WriteError> {
        self.dir.make()?;
        let failed = |error| WriteError::File { path: self.path.clone(), error };
        let unfinished = unfinished(&self.path);
        // It is left from an attempt that failed, if there is one.
        let _ = fs::remove_file(&unfinished);
        let write = || {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            for piece in self.image.all() {
                file.write_all_at(piece.bytes, piece.place)?;
            }
            file.write_all_at(header, 0)?;
            let facts = file.metadata()?;
            fs::rename(&unfinished, &self.path)?;
            Ok(Open { file, device: facts.dev(), inode: facts.ino(), size: facts.len() })
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            failed(error)
        })
    }
}

/// Returns true if the path still leads to the file in use, and nothing of it was cut off.
fn is_intact(open: &Open, path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|facts| (facts.dev(), facts.ino()) == (open.device, open.inode) && facts.len() >= open.size)
}
