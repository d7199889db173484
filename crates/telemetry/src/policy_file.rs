//! Railweave's own policy file.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::rules::{Order, RuleError, Rules, Subject};
use crate::run_dir::objection;
use crate::trusted::{self, FileError, Stamp};

/// The largest policy file, in bytes.
pub const LARGEST_POLICY: u64 = 1 << 20;

/// The time by which the clock that wrote a file may be ahead, in seconds.
const AHEAD_S: u64 = 60;

/// A policy file that is not taken. The text is the end of a sentence that begins with the file.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    File(#[from] FileError),
    #[error(
        "is in a folder that {0}; allowed: a folder of this user that nobody else may write (mode 0700); try another \
         one with RAILWEAVE_RUN_DIR"
    )]
    Folder(String),
    #[error("has {0} bytes; allowed: up to {LARGEST_POLICY}; try fewer rules")]
    Large(u64),
    #[error("is not text in UTF-8; allowed: text; try the example of docs/policy.md")]
    NotText,
    #[error("{0}")]
    Rule(#[from] RuleError),
}

/// The time after which a sentence is said again, if the file was right in between: a file that is written in place is
/// wrong each time it is read halfway.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// The most sentences about the file in that time. A file may be wrong in another way each time it is read.
const MOST_SENTENCES: u32 = 5;

/// The policy file, read whenever it is polled and has changed.
///
/// It is checked as a whole. One that is wrong leaves the last good one in force. One that is stale, because its time
/// to live is over, or was written in the future, orders nothing.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    seen: Option<Stamp>,
    good: Option<Rules>,
    is_stale: bool,
    /// True if something was wrong at the last read.
    is_wrong: bool,
    /// True if the file that was seen may be read.
    is_readable: bool,
    /// The number of times that orders may have changed.
    revision: u64,
    /// The last complaint, which is not repeated.
    said: Option<(String, SystemTime)>,
    /// The beginning of the present minute, and the number of sentences in it.
    minute: (SystemTime, u32),
    /// The last sentence that was left out in it.
    unsaid: Option<String>,
    to_say: VecDeque<String>,
}

impl PolicyFile {
    /// Returns the policy file at this path, not yet read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            seen: None,
            good: None,
            is_stale: false,
            is_readable: false,
            is_wrong: false,
            revision: 0,
            said: None,
            minute: (UNIX_EPOCH, 0),
            unsaid: None,
            to_say: VecDeque::new(),
        }
    }

    /// Reads the file if it changed, and looks at its age. Returns a sentence to log if it is wrong or stale, once.
    pub fn poll(&mut self, now: SystemTime) -> Option<String> {
        match self.refresh() {
            Ok(()) => {}
            Err(Trouble::File(FileError::Missing)) => self.forget(),
            Err(trouble) => {
                self.is_readable = !matches!(trouble, Trouble::File(_) | Trouble::Folder(_));
                self.report(&trouble, now);
            }
        }
        let now_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let staleness = self.good.as_ref().and_then(|rules| staleness(rules, now_s));
        if self.is_stale != staleness.is_some() {
            self.is_stale = staleness.is_some();
            self.revision += 1;
            if let Some(sentence) = staleness {
                self.say(format!("\"{}\" {sentence}", self.path.display()), now);
            }
        }
        if self.is_in_force() && !self.is_wrong {
            self.unsaid = None;
        } else if let Some(sentence) = self.unsaid.take() {
            self.say(sentence, now);
        }
        self.to_say.pop_front()
    }

    /// Returns the time until the next poll: 10 ms while there is a file that may be read, otherwise a second.
    pub fn next_poll(&self) -> Duration {
        if self.is_readable { Duration::from_millis(10) } else { Duration::from_secs(1) }
    }

    /// Returns true if the last poll found something at the path, good or bad.
    pub fn exists(&self) -> bool {
        self.seen.is_some()
    }

    /// Returns true if the rules of a good file hold.
    pub fn is_in_force(&self) -> bool {
        self.good.is_some() && !self.is_stale
    }

    /// Returns the order for a connection; `None` if no rule fits, or none is in force.
    pub fn decide(&self, subject: &Subject) -> Option<Order> {
        self.good.as_ref().filter(|_| !self.is_stale)?.decide(subject)
    }

    /// Returns a number that changes whenever orders may have changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn forget(&mut self) {
        self.is_readable = false;
        self.seen = None;
        self.said = None;
        self.unsaid = None;
        self.is_wrong = false;
        self.revision += u64::from(self.good.take().is_some());
    }

    fn report(&mut self, trouble: &Trouble, now: SystemTime) {
        let rest = if self.is_in_force() { "the last good file holds" } else { "it orders nothing" };
        let sentence = format!("\"{}\" {trouble} ({rest})", self.path.display());
        let is_recent = |at: SystemTime| now.duration_since(at).is_ok_and(|since| since < SAID_AGAIN);
        if !self.said.as_ref().is_some_and(|(said, at)| *said == sentence && (self.is_wrong || is_recent(*at))) {
            self.said = Some((sentence.clone(), now));
            self.say(sentence, now);
        }
        self.is_wrong = true;
    }

    /// Says a sentence, unless there were too many in this minute: then it is said in the next one, if it still holds.
    fn say(&mut self, sentence: String, now: SystemTime) {
        if !now.duration_since(self.minute.0).is_ok_and(|since| since < SAID_AGAIN) {
            self.minute = (now, 0);
        }
        if self.minute.1 == MOST_SENTENCES {
            self.unsaid = Some(sentence);
        } else {
            self.minute.1 += 1;
            self.to_say.push_back(sentence);
        }
    }

    /// Whoever may write in the folder may put an old file of this user there.
    fn check_folder(&self) -> Result<(), Trouble> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match objection(&fs::symlink_metadata(folder).map_err(FileError::Io)?, rustix::process::geteuid().as_raw()) {
            Some(reason) => Err(Trouble::Folder(reason)),
            None => Ok(()),
        }
    }

    fn refresh(&mut self) -> Result<(), Trouble> {
        let facts = fs::symlink_metadata(&self.path).map_err(|error| match error.kind() {
            // Nothing counts in a folder of somebody else, which the lines about telemetry name.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied => {
                FileError::Missing
            }
            _ => FileError::Io(error),
        })?;
        if self.seen.replace(Stamp::of(&facts)) == Some(Stamp::of(&facts)) {
            return Ok(());
        }
        // The folder may be mended without a change of the file.
        self.check_folder().inspect_err(|_| self.seen = Some(Stamp::default()))?;
        let (file, facts) = trusted::open(&self.path).inspect_err(|unusable| {
            // Too many open files, for example: the next poll may be able to read it.
            if matches!(unusable, FileError::Io(_)) {
                self.seen = Some(Stamp::default());
            }
        })?;
        self.is_readable = true;
        // Of the file that is read, so that one that changes meanwhile is read again.
        self.seen = Some(Stamp::of(&facts));
        if facts.len() > LARGEST_POLICY {
            return Err(Trouble::Large(facts.len()));
        }
        let mut bytes = vec![0; facts.len() as usize];
        let filled = trusted::read(&file, &mut bytes).map_err(FileError::Io)?;
        let text = std::str::from_utf8(&bytes[..filled]).map_err(|_| Trouble::NotText)?;
        let rules = Rules::parse(text)?;
        self.is_wrong = false;
        // A heartbeat alone changes no order.
        self.revision += u64::from(!self.good.as_ref().is_some_and(|good| good.orders_as(&rules)));
        self.good = Some(rules);
        Ok(())
    }
}

/// Returns the reason why the rules do not hold now, if there is one: the end of a sentence that begins with the file.
fn staleness(rules: &Rules, now_s: u64) -> Option<String> {
    let written_s = rules.written_s?;
    if written_s > now_s.saturating_add(AHEAD_S) {
        return Some(format!(
            "orders nothing: it was written {} s in the future; allowed: up to {AHEAD_S} s; try setting the clock, and \
             writing it again",
            written_s - now_s
        ));
    }
    let ttl_s = rules.ttl_s?;
    let age_s = now_s.saturating_sub(written_s);
    (age_s > ttl_s).then(|| {
        format!(
            "orders nothing: it was written {age_s} s ago; allowed: up to its ttl of {ttl_s} s; try starting the agent \
             that writes it, or `ttl forever`"
        )
    })
}
