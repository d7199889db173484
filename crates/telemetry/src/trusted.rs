//! The opening of files in run dirs: only those that the user in question or root has put there.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The facts by which a file that changed is recognised: device, inode, size, and the times of its last changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u64, u64, u64, [i64; 4]);

impl Stamp {
    pub(crate) fn of(facts: &Metadata) -> Self {
        let times = [facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec()];
        Self(facts.dev(), facts.ino(), facts.len(), times)
    }
}

/// A file that is not opened. The text is the end of a sentence that begins with the file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is missing.
    #[error("is missing")]
    Missing,
    /// It is a symbolic link.
    #[error("is a symbolic link; allowed: a regular file of user {allowed} or root; try removing it")]
    Link {
        /// The user whose files are allowed.
        allowed: u32,
    },
    /// It is a folder, a pipe, a socket or a device.
    #[error("is not a regular file; allowed: a regular file of user {allowed} or root; try removing it")]
    NotRegular {
        /// The user whose files are allowed.
        allowed: u32,
    },
    /// It belongs to somebody who has no say here.
    #[error("belongs to user {owner}; allowed: a file of user {allowed} or root; try making it as one of them")]
    Owner {
        /// The owner of the file.
        owner: u32,
        /// The user whose files are allowed.
        allowed: u32,
    },
    /// It cannot be read.
    #[error("cannot be read: {0}; allowed: a file that this user can read; try {remedy}", remedy = remedy(.0))]
    Io(#[from] io::Error),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => "a higher limit of open files (`ulimit -n`)",
        Some(Errno::ACCESS | Errno::PERM) => "`chmod` or `chown`",
        _ => "writing it again",
    }
}

/// The flags of every open. Without NONBLOCK, opening a pipe that has no writer would wait forever.
pub(crate) const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a regular file of this user or root to read it. Follows no symbolic link, and does not block on a pipe.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), FileError> {
    open_as(path, rustix::process::geteuid().as_raw())
}

/// Opens a regular file of a user or of root to read it, in the same way.
pub(crate) fn open_as(path: &Path, allowed: u32) -> Result<(File, Metadata), FileError> {
    judge(rustix::fs::open(path, READ, Mode::empty()), allowed)
}

/// Returns a file that was opened with [`READ`], if it is a regular file of this user or root.
pub(crate) fn judge(opened: Result<OwnedFd, Errno>, allowed: u32) -> Result<(File, Metadata), FileError> {
    let file = File::from(opened.map_err(|error| match error {
        Errno::NOENT => FileError::Missing,
        Errno::LOOP => FileError::Link { allowed },
        // A socket.
        Errno::NXIO => FileError::NotRegular { allowed },
        error => FileError::Io(error.into()),
    })?);
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(FileError::NotRegular { allowed });
    }
    if facts.uid() != allowed && facts.uid() != 0 {
        return Err(FileError::Owner { owner: facts.uid(), allowed });
    }
    Ok((file, facts))
}

/// Reads from the beginning of the file until `bytes` is full or the file ends. Returns the number of bytes.
pub(crate) fn read(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
