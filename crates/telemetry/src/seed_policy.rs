//! The table of weights by which agents of an earlier plugin (MPIB) steer a job, usually `/dev/shm/mpib_policy`.
//!
//! It has a magic number, the number of ranks, and for each rank the weight of the second rail and a version, 8 bytes
//! together. Agents map the file and write in place: first the weight, then the version plus one.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::layout::Field;
use crate::trusted::{self, FileError};

/// The path that those agents know.
pub const SEED_POLICY_PATH: &str = "/dev/shm/mpib_policy";

/// The first four bytes of the table, as a little-endian number.
pub const SEED_POLICY_MAGIC: u32 = 0x4d50_4942;

/// The most ranks of a table that are read.
pub const MOST_RANKS: u32 = 65_536;

/// The bytes before the first entry.
const HEAD: usize = 8;

/// The bytes of an entry.
const ENTRY: usize = 8;

/// Something that is wrong with the table. The text is the end of a sentence that begins with the file.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    File(#[from] FileError),
    #[error(
        "begins with {0:#010x}; allowed: {SEED_POLICY_MAGIC:#010x}; try removing it, and then `railweave policy init`"
    )]
    Magic(u32),
    #[error(
        "has {bytes} bytes, too few for {}; allowed: 8 bytes, and 8 for each rank; try removing it, and then {}",
        .ranks.map_or_else(|| "a table".to_owned(), |ranks| format!("its {ranks} ranks")), remedy(*.ranks)
    )]
    Short { bytes: u64, ranks: Option<u32> },
    #[error("has {0} ranks, of which the first {MOST_RANKS} are read; allowed: up to {MOST_RANKS}; try fewer")]
    Ranks(u32),
    #[error(
        "has the weight {weight} for rank {rank}; allowed: 0 (all on the first rail) to 1 (all on the second); \
             try 0.5"
    )]
    Weight { rank: usize, weight: f32 },
}

/// Returns the command that makes a table for this many ranks: with its default, if no table can have that many.
pub(crate) fn remedy(ranks: Option<u32>) -> String {
    match ranks {
        Some(ranks @ 1..=MOST_RANKS) => format!("`railweave policy init --ranks {ranks}`"),
        _ => "`railweave policy init`".to_owned(),
    }
}

impl Trouble {
    /// Returns a bit for the kind of trouble.
    fn kind(&self) -> u16 {
        1 << match self {
            Self::File(FileError::Missing) => 0,
            Self::File(FileError::Link { .. }) => 1,
            Self::File(FileError::NotRegular { .. }) => 2,
            Self::File(FileError::Owner { .. }) => 3,
            Self::File(FileError::Io(_)) => 4,
            Self::Magic(_) => 5,
            Self::Short { .. } => 6,
            Self::Ranks(_) => 7,
            Self::Weight { .. } => 8,
        }
    }
}

/// The table of weights, read whenever it is polled.
///
/// The file is read with pread and never mapped, so that nobody can crash the job by truncating it. Whatever is wrong
/// with it, each rank keeps the last good weight that it had, as long as a file is there.
#[derive(Debug)]
pub struct SeedPolicy {
    path: PathBuf,
    /// The user whose file counts, besides one of root.
    user: u32,
    /// True if there is something at the path.
    is_there: bool,
    /// The open file with its device and inode.
    open: Option<(File, u64, u64)>,
    /// The bytes that the weights come from.
    bytes: Vec<u8>,
    /// A place for the next bytes, kept so that a poll does not allocate.
    next: Vec<u8>,
    weights: Vec<Option<f32>>,
    /// The number of times that the weights changed.
    revision: u64,
    /// The kinds of trouble that were said since the file came.
    said: u16,
    to_say: VecDeque<String>,
}

impl SeedPolicy {
    /// Returns the table at this path, not yet read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::of_user(path, rustix::process::geteuid().as_raw())
    }

    /// Returns the reader of a table as the processes of this user see it: only one of this user or of root counts.
    pub fn of_user(path: impl Into<PathBuf>, user: u32) -> Self {
        Self {
            path: path.into(),
            user,
            is_there: false,
            open: None,
            bytes: Vec::new(),
            next: Vec::new(),
            weights: Vec::new(),
            revision: 0,
            said: 0,
            to_say: VecDeque::new(),
        }
    }

    /// Reads the table if it is there. Returns a sentence to log if something is wrong with it: each kind of trouble
    /// once, until the file goes.
    pub fn poll(&mut self) -> Option<String> {
        match self.refresh() {
            Ok(()) => self.is_there = true,
            Err(Trouble::File(FileError::Missing)) => self.forget(),
            Err(trouble) => {
                self.is_there = true;
                self.report(&trouble);
            }
        }
        self.to_say.pop_front()
    }

    /// Returns the time until the next poll: 10 ms while there is a file that may be read, otherwise a second. So the
    /// file of another user costs nothing.
    pub fn next_poll(&self) -> Duration {
        if self.open.is_some() { Duration::from_millis(10) } else { Duration::from_secs(1) }
    }

    /// Returns true if the last poll found something at the path, good or bad.
    pub fn exists(&self) -> bool {
        self.is_there
    }

    /// Returns the weight of the second rail towards a rank, from 0 (all on the first rail) to 1 (all on the second).
    /// `None` if there is no file, if the rank is not in it, or if nobody has set its weight yet.
    pub fn weight(&self, rank: u32) -> Option<f32> {
        self.weights.get(rank as usize).copied().flatten()
    }

    /// Returns the number of ranks in the table.
    pub fn ranks(&self) -> u32 {
        self.weights.len() as u32
    }

    /// Returns a number that changes whenever a weight does.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the path of the table.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn forget(&mut self) {
        self.is_there = false;
        self.open = None;
        self.bytes.clear();
        self.said = 0;
        self.set(Vec::new());
    }

    fn set(&mut self, weights: Vec<Option<f32>>) {
        self.revision += u64::from(weights != self.weights);
        self.weights = weights;
    }

    fn report(&mut self, trouble: &Trouble) {
        if self.said & trouble.kind() == 0 {
            self.said |= trouble.kind();
            let rest = match trouble {
                Trouble::Weight { rank, .. } if self.weight(*rank as u32).is_none() => "the rank has no weight",
                Trouble::Weight { .. } => "the rank's last good weight holds",
                Trouble::Ranks(_) => "the other ranks are not steered",
                Trouble::Short { ranks: Some(_), .. } => "ranks that are cut off keep the weights that they had",
                _ if self.weights.iter().all(Option::is_none) => "it orders nothing",
                _ => "the last good weights hold",
            };
            self.to_say.push_back(format!("\"{}\" {trouble} ({rest}; said once)", self.path.display()));
        }
    }

    fn refresh(&mut self) -> Result<(), Trouble> {
        let facts = fs::symlink_metadata(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FileError::Missing,
            _ => FileError::Io(error),
        })?;
        let is_same = |(_, device, inode): &(File, u64, u64)| (*device, *inode) == (facts.dev(), facts.ino());
        if !self.open.as_ref().is_some_and(is_same) {
            self.open = None;
            self.bytes.clear();
            let (file, facts) = trusted::open_as(&self.path, self.user)?;
            self.open = Some((file, facts.dev(), facts.ino()));
        }
        let Some((file, ..)) = &self.open else { return Ok(()) };
        let size = file.metadata().map_err(FileError::Io)?.len();
        let mut head = [0; HEAD];
        let head_bytes = trusted::read(file, &mut head).map_err(FileError::Io)?;
        let (magic, ranks) = (u32::get(&head[..4]), u32::get(&head[4..]));
        if head_bytes < HEAD {
            return Err(Trouble::Short { bytes: head_bytes as u64, ranks: None });
        }
        if magic != SEED_POLICY_MAGIC {
            return Err(Trouble::Magic(magic));
        }
        let needed = HEAD + ENTRY * ranks.min(MOST_RANKS) as usize;
        self.next.resize(needed.min(usize::try_from(size).unwrap_or(needed)), 0);
        let filled = trusted::read(file, &mut self.next).map_err(FileError::Io)?;
        self.next.truncate(filled);
        if self.next != self.bytes {
            std::mem::swap(&mut self.next, &mut self.bytes);
            self.parse(ranks.min(MOST_RANKS) as usize);
        }
        if filled < needed {
            return Err(Trouble::Short { bytes: filled as u64, ranks: Some(ranks) });
        }
        if ranks > MOST_RANKS { Err(Trouble::Ranks(ranks)) } else { Ok(()) }
    }

    /// Takes the weights over. An entry that is wrong or cut off leaves its rank the last good weight.
    fn parse(&mut self, ranks: usize) {
        let mut entries = self.bytes.get(HEAD..).unwrap_or_default().chunks_exact(ENTRY);
        let mut wrong = None;
        let weights = (0..ranks)
            .map(|rank| {
                let last_good = self.weights.get(rank).copied().flatten();
                let Some(entry) = entries.next() else { return last_good };
                let (weight, version) = (f32::from_bits(u32::get(&entry[..4])), u32::get(&entry[4..]));
                if version == 0 && weight == 0.0 {
                    // Nobody has set it.
                    None
                } else if (0.0..=1.0).contains(&weight) {
                    Some(weight)
                } else {
                    wrong.get_or_insert(Trouble::Weight { rank, weight });
                    last_good
                }
            })
            .collect();
        self.set(weights);
        if let Some(trouble) = wrong {
            self.report(&trouble);
        }
    }
}

/// A table that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The number of ranks is not allowed.
    #[error("the table cannot have {0} ranks; allowed: 1 to {MOST_RANKS}; try the number of ranks of the job")]
    Ranks(u32),
    /// There is something at the path.
    #[error(
        "\"{}\" is there already, and is left as it is; allowed: a path without a file; try removing it", .0.display()
    )]
    Exists(PathBuf),
    /// The file cannot be written.
    #[error("\"{}\" cannot be made: {error}; allowed: a folder that this user can write, with room; try another --path",
            path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// Makes a table for this many ranks, with mode 0600. Its entries steer nothing until an agent sets them: weight and
/// version are 0. The table appears whole, and nothing that is already there is touched, truncated or followed.
///
/// # Errors
/// If there is something at the path, or the file cannot be made.
pub fn create_seed_policy(path: &Path, ranks: u32) -> Result<(), CreateError> {
    if !(1..=MOST_RANKS).contains(&ranks) {
        return Err(CreateError::Ranks(ranks));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let unfinished = path.with_file_name(name);
    let mut bytes = vec![0; HEAD + ENTRY * ranks as usize];
    bytes[..4].copy_from_slice(&SEED_POLICY_MAGIC.to_le_bytes());
    bytes[4..HEAD].copy_from_slice(&ranks.to_le_bytes());
    // It is left from a process of the same id that was killed, if there is one.
    let _ = fs::remove_file(&unfinished);
    let write = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?.write_all(&bytes);
    write().map_err(|error| {
        // It may be half written: the disk may be full.
        let _ = fs::remove_file(&unfinished);
        CreateError::Io { path: unfinished.clone(), error }
    })?;
    // Unlike rename(2), link(2) replaces nothing.
    let result = fs::hard_link(&unfinished, path);
    let _ = fs::remove_file(&unfinished);
    result.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CreateError::Exists(path.to_owned()),
        _ => CreateError::Io { path: path.to_owned(), error },
    })
}
