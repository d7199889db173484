//! The opening of files that steer a job: only those that this user or root has put there.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// A file that is not opened. The text is the end of a sentence that begins with the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("is missing")]
    Missing,
    #[error(
        "is a symbolic link; allowed: a regular file of this user or root; try removing it, and writing a file there"
    )]
    Link,
    #[error("is not a regular file; allowed: a regular file of this user or root; try removing it")]
    NotRegular,
    #[error("belongs to user {owner}; allowed: a file of this user ({user}) or root; try making it as one of them")]
    Owner { owner: u32, user: u32 },
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

/// Opens a regular file of this user or root to read it. Follows no symbolic link, and does not block on a pipe.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), Unusable> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path).map_err(|error| {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Unusable::Missing,
            Some(Errno::LOOP) => Unusable::Link,
            // A socket.
            Some(Errno::NXIO) => Unusable::NotRegular,
            _ => Unusable::Io(error),
        }
    })?;
    let facts = file.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    if !facts.is_file() {
        return Err(Unusable::NotRegular);
    }
    if facts.uid() != user && facts.uid() != 0 {
        return Err(Unusable::Owner { owner: facts.uid(), user });
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
