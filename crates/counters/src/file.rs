//! Files of the kernel, read within bounds.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirEntryExt, OpenOptionsExt};
use std::path::Path;

/// The most bytes of a file: sysfs gives at most a page, and no fact here needs more.
const SHORT: usize = 4096;
/// The most bytes of a long text, such as the one that `ethtool -S` prints: some 20,000 lines.
const LONG: u64 = 1 << 20;
/// The most entries of a directory.
const ENTRIES: usize = 4096;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The inode's number. sysfs gives a device that leaves and returns another one.
    pub(crate) inode: u64,
}

/// Returns a directory's entries, sorted by name; none if it is missing. Names that are no UTF-8 are left out.
pub(crate) fn entries(directory: &Path) -> Vec<Entry> {
    let Ok(all) = fs::read_dir(directory) else { return Vec::new() };
    let entry = |entry: fs::DirEntry| Some(Entry { inode: entry.ino(), name: entry.file_name().into_string().ok()? });
    let mut entries: Vec<Entry> = all.take(ENTRIES).flatten().filter_map(entry).collect();
    entries.sort_unstable();
    entries
}

/// Reads files into one buffer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    /// Returns a file's text without the space around it, at most its first 4096 bytes; `None` if it is empty, or
    /// cannot be read, as the files of a device that has just left.
    pub(crate) fn text(&mut self, path: &Path) -> Option<&str> {
        let mut file = open(path)?;
        if self.buffer.len() < SHORT {
            self.buffer.resize(SHORT, 0);
        }
        // One call is enough: sysfs gives all that it has, and a second call would ask the driver again.
        let length = loop {
            match file.read(&mut self.buffer[..SHORT]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.ok()?,
            }
        };
        trimmed(&self.buffer[..length])
    }

    /// Returns the text of a file that is no file of sysfs, at most its first MiB.
    pub(crate) fn long_text(&mut self, path: &Path) -> Option<&str> {
        self.buffer.clear();
        open(path)?.take(LONG).read_to_end(&mut self.buffer).ok()?;
        trimmed(&self.buffer)
    }

    /// Returns the number that a file holds, and nothing else; `None` for every other content.
    pub(crate) fn number(&mut self, path: &Path) -> Option<u64> {
        self.text(path)?.parse().ok()
    }
}

/// Opens a file. `O_NONBLOCK` means nothing to a file of sysfs, but a pipe in its place would be waited for.
fn open(path: &Path) -> Option<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
}

fn trimmed(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let directory = std::env::temp_dir().join(format!("railweave-counters-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn numbers_are_told_from_everything_else() {
        let (directory, mut reader) = (directory("numbers"), Reader::default());
        let mut number = |content: &[u8]| {
            let path = directory.join("file");
            fs::write(&path, content).unwrap();
            reader.number(&path)
        };
        assert_eq!(number(b"18446744073709551615\n"), Some(u64::MAX));
        assert_eq!(number(b"0"), Some(0));
        for content in [
            &b""[..],
            b"\n",
            b"-1\n",
            b"N/A (no PMA)\n",
            b"18446744073709551616",
            b"1.5",
            b"1 2",
            b"0x10",
            b"\xff\xfe",
            &[b'1'; 10_000],
        ] {
            assert_eq!(number(content), None, "{:?}", String::from_utf8_lossy(content));
        }
        assert_eq!(number(b"7\n"), Some(7), "after longer contents");
        assert_eq!(reader.number(&directory.join("missing")), None);
        assert_eq!(reader.number(&directory), None, "a directory");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn texts_end_where_they_must_and_pipes_are_not_waited_for() {
        let (directory, mut reader) = (directory("texts"), Reader::default());
        let path = directory.join("file");
        fs::write(&path, "x".repeat(3 << 20)).unwrap();
        assert_eq!(reader.text(&path).unwrap().len(), SHORT);
        assert_eq!(reader.long_text(&path).unwrap().len(), 1 << 20);
        assert_eq!(reader.text(&path).unwrap().len(), SHORT, "the buffer serves both");
        let pipe = directory.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(reader.text(&pipe), None);
        let names: Vec<String> = entries(&directory).into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["file", "pipe"]);
        assert_eq!(entries(&path), [], "no directory");
        fs::remove_dir_all(directory).unwrap();
    }
}
