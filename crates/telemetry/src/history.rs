//! The history of orders: a file of a run dir with a line for each.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::folder::{Folder, FolderError};
use crate::trusted::{self, FileError};

/// The name of the file.
const HISTORY: &str = "history";

/// The name under which the newer half is written before it takes the place of the file.
const UNFINISHED: &str = "history.new";

/// The longest line, in bytes, with its end: rules have up to 1,024 bytes.
const LONGEST_LINE: usize = 2048;

/// The largest file, in bytes.
const LARGEST: u64 = 256 << 10;

/// The flags of every open to add to it. It is read too, to drop its older half.
const ADD: OFlags =
    OFlags::RDWR.union(OFlags::APPEND).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An order that was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The time of the order, since 1970, in whole milliseconds.
    pub at: Duration,
    /// The one who gave it, such as `api`, `configuration` or `railweave policy, user 0, process 4711`.
    pub who: String,
    /// The order, as a part of a sentence, such as `drain eth1` or `set peer=node3 -> weights 80,20`.
    pub order: String,
}

impl HistoryEntry {
    /// Returns the line of the file, cut to [`LONGEST_LINE`]. Nobody's text makes a line or a column of its own.
    fn line(&self) -> String {
        let plain = |text: &str| text.replace(char::is_control, " ");
        let Self { at, who, order } = self;
        let mut line = format!("{}.{:03}\t{}\t{}", at.as_secs(), at.subsec_millis(), plain(who), plain(order));
        line.truncate(line.floor_char_boundary(LONGEST_LINE - 1));
        line.push('\n');
        line
    }

    /// Reads a line without its end. Returns `None` if it is no entry.
    fn of(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok().filter(|line| line.len() < LONGEST_LINE)?;
        let (at, rest) = line.split_once('\t')?;
        let (who, order) = rest.split_once('\t')?;
        let (seconds, millis) = at.split_once('.')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_text = |text: &str| !text.is_empty() && !text.contains(char::is_control);
        if !(is_number(seconds) && is_number(millis) && millis.len() == 3 && is_text(who) && is_text(order)) {
            return None;
        }
        let at = Duration::new(seconds.parse().ok()?, millis.parse::<u32>().ok()? * 1_000_000);
        Some(Self { at, who: who.to_owned(), order: order.to_owned() })
    }
}

impl Folder {
    /// Adds an entry to the file `history`, which is made if it is missing and belongs to the folder's owner. When it
    /// would have more than 256 KiB, its older half is dropped. An entry that takes more than 2,048 bytes is cut.
    ///
    /// # Errors
    /// If the file cannot be made or written, is not a regular file of the folder's owner or of root, or has a second
    /// name.
    pub fn append_history(&self, entry: &HistoryEntry) -> Result<(), FolderError> {
        let mut line = entry.line();
        let (mut file, mut facts) = self.open_history()?;
        if facts.len() + line.len() as u64 + 1 > LARGEST {
            self.drop_half(&file, facts.len())?;
            (file, facts) = self.open_history()?;
        }
        // A disk that was full has room for a part of a line only.
        if facts.len() > 0 && newest(&file, facts.len(), 1)? != b"\n" {
            line.insert(0, '\n');
        }
        // In one go, so that lines of two programs do not mix.
        let written = loop {
            match file.write(line.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => break written?,
            }
        };
        if written < line.len() {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        Ok(())
    }

    /// Returns the entries of the file `history`, the oldest first; none if it is missing. Lines that are no entries
    /// are left out, and of a file that is too large all but the newest.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a regular file of the folder's owner or of root.
    pub fn history(&self) -> Result<Vec<HistoryEntry>, FolderError> {
        let (file, facts) = match self.read_file(HISTORY, u64::MAX) {
            Err(FolderError::File(FileError::Missing)) => return Ok(Vec::new()),
            read => read?,
        };
        let text = whole_lines(newest(&file, facts.len(), LARGEST)?, facts.len());
        Ok(text.split(|byte| *byte == b'\n').filter_map(HistoryEntry::of).collect())
    }

    /// Opens the file to add to it.
    fn open_history(&self) -> Result<(File, Metadata), FolderError> {
        let opened = match rustix::fs::openat(&self.handle, HISTORY, ADD, Mode::empty()) {
            // A folder.
            Err(Errno::ISDIR) => return Err(FileError::NotRegular { allowed: self.owner() }.into()),
            Err(Errno::NOENT) => match self.make(HISTORY, ADD) {
                // Somebody else has made it meanwhile.
                Err(Errno::EXIST) => rustix::fs::openat(&self.handle, HISTORY, ADD, Mode::empty()),
                made => made.map(Into::into),
            },
            opened => opened,
        };
        let (file, facts) = trusted::judge(opened, self.owner())?;
        // In a folder of another user, it may be any file of root that this user has linked there.
        if facts.nlink() != 1 {
            return Err(FolderError::Linked { names: facts.nlink() });
        }
        Ok((file, facts))
    }

    /// Puts the newer half of the file in its place.
    fn drop_half(&self, file: &File, size: u64) -> Result<(), FolderError> {
        let kept = whole_lines(newest(file, size, LARGEST / 2)?, size);
        self.remove(UNFINISHED)?;
        let mut new = self.make(UNFINISHED, ADD).map_err(io::Error::from)?;
        let mut write = || -> io::Result<()> {
            new.write_all(&kept)?;
            Ok(rustix::fs::renameat(&self.handle, UNFINISHED, &self.handle, HISTORY)?)
        };
        write().inspect_err(|_| drop(self.remove(UNFINISHED)))?;
        Ok(())
    }

    /// Makes a file that is not there, which nobody but the folder's owner may open.
    fn make(&self, name: &str, flags: OFlags) -> rustix::io::Result<File> {
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        let file = rustix::fs::openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?;
        if rustix::process::geteuid().as_raw() != self.owner() {
            // Where it may not, root can use the file all the same.
            let _ = rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(self.owner())), None);
        }
        Ok(file.into())
    }

    /// Removes a file, whatever it is. One that is gone is as good.
    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the last bytes of a file of this size, at most as many as `most`.
fn newest(file: &File, size: u64, most: u64) -> io::Result<Vec<u8>> {
    let count = size.min(most);
    let mut bytes = vec![0; count as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], size - count + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Returns the last bytes of a file of this size without the line whose beginning they do not have.
fn whole_lines(mut bytes: Vec<u8>, size: u64) -> Vec<u8> {
    if (bytes.len() as u64) < size {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("railweave-history-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join(HISTORY)
        }

        fn folder(&self) -> Folder {
            Folder::open(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn entry(millis: u64, who: &str, order: &str) -> HistoryEntry {
        HistoryEntry { at: Duration::from_millis(millis), who: who.to_owned(), order: order.to_owned() }
    }

    #[test]
    fn orders_are_kept_in_their_order_by_whoever_gave_them() {
        let scratch = Scratch::new("order");
        let folder = scratch.folder();
        assert_eq!(folder.history().unwrap(), []);
        let entries = [
            entry(1_796_000_000_250, "api", "set peer=node3 -> weights 80,20"),
            entry(1_796_000_001_007, "railweave policy, user 0, process 4711", "drain eth1"),
        ];
        entries.iter().for_each(|entry| folder.append_history(entry).unwrap());
        assert_eq!(folder.history().unwrap(), entries);
        let text = fs::read_to_string(scratch.file()).unwrap();
        assert!(text.starts_with("1796000000.250\tapi\tset peer=node3 -> weights 80,20\n"), "{text}");
        assert_eq!(fs::metadata(scratch.file()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn no_text_makes_a_line_of_its_own_and_a_long_one_is_cut() {
        let scratch = Scratch::new("lines");
        let folder = scratch.folder();
        folder.append_history(&entry(0, "a\tb", "drain x\n1.000\tapi\tdrain y\u{1b}[2J")).unwrap();
        folder.append_history(&entry(1, "api", &"é".repeat(1500))).unwrap();
        let entries = folder.history().unwrap();
        assert_eq!(entries[0], entry(0, "a b", "drain x 1.000 api drain y [2J"));
        assert_eq!(entries.len(), 2);
        let lengths: Vec<usize> = fs::read_to_string(scratch.file()).unwrap().lines().map(str::len).collect();
        assert!(lengths[1] < LONGEST_LINE && lengths[1] > LONGEST_LINE - 4, "{lengths:?}");
    }

    #[test]
    fn lines_that_are_no_entries_are_left_out() {
        let scratch = Scratch::new("hostile");
        let long = format!("1.000\tapi\t{}", "o".repeat(LONGEST_LINE));
        let wrong = [
            "",
            "1.000",
            "1.000\tapi",
            "1.000\tapi\t",
            "1.000\t\tdrain x",
            "1\tapi\tdrain x",
            "1.0\tapi\tdrain x",
            "-1.000\tapi\tdrain x",
            "+1.000\tapi\tdrain x",
            "99999999999999999999.000\tapi\tdrain x",
            "1.000\tapi\tdrain\tx",
            "1.000\tapi\tdrain \u{1b}[2J",
            &long,
        ];
        let mut bytes = wrong.join("\n").into_bytes();
        bytes.extend(b"\n1.000\tapi\tdrain \xff\n18446744073709551615.999\tapi\tdrain x\n2.000\tapi\tdr");
        fs::write(scratch.file(), bytes).unwrap();
        let folder = scratch.folder();
        let orders = |folder: &Folder| -> Vec<String> {
            folder.history().unwrap().into_iter().map(|entry| entry.order).collect()
        };
        assert_eq!(orders(&folder), ["drain x", "dr"]);
        folder.append_history(&entry(3000, "api", "drain y")).unwrap();
        assert_eq!(orders(&folder), ["drain x", "dr", "drain y"], "the part of a line has its end now");
    }

    #[test]
    fn the_older_half_of_a_large_file_is_dropped() {
        let scratch = Scratch::new("large");
        let folder = scratch.folder();
        fs::write(scratch.0.join(UNFINISHED), "left by one that was killed").unwrap();
        let order = "o".repeat(200);
        for number in 0..2000 {
            folder.append_history(&entry(number, "api", &order)).unwrap();
            assert!(fs::metadata(scratch.file()).unwrap().len() <= LARGEST);
        }
        let entries = folder.history().unwrap();
        assert!((500..1300).contains(&entries.len()), "{}", entries.len());
        let first = 2000 - entries.len() as u64;
        assert!(entries.iter().zip(first..).all(|(entry, number)| entry.at == Duration::from_millis(number)));
        assert!(!scratch.0.join(UNFINISHED).exists());
        assert_eq!(fs::metadata(scratch.file()).unwrap().permissions().mode() & 0o777, 0o600);
        // One that no program of ours has made so large.
        File::options().write(true).open(scratch.file()).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(folder.history().unwrap(), []);
        folder.append_history(&entry(1, "api", "drain x")).unwrap();
        assert_eq!(folder.history().unwrap(), [entry(1, "api", "drain x")]);
    }

    #[test]
    fn only_a_regular_file_with_one_name_is_written() {
        let scratch = Scratch::new("links");
        let folder = scratch.folder();
        let elsewhere = scratch.0.join("elsewhere");
        fs::write(&elsewhere, "untouched").unwrap();
        let error = |folder: &Folder| folder.append_history(&HistoryEntry::default()).unwrap_err().to_string();
        symlink(&elsewhere, scratch.file()).unwrap();
        assert!(error(&folder).contains("is a symbolic link"), "{}", error(&folder));
        assert!(folder.history().unwrap_err().to_string().contains("is a symbolic link"));
        fs::remove_file(scratch.file()).unwrap();
        fs::hard_link(&elsewhere, scratch.file()).unwrap();
        assert!(error(&folder).contains("has 2 names; allowed: a file with one"), "{}", error(&folder));
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
        fs::remove_file(scratch.file()).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, scratch.file(), pipe, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(error(&folder).contains("is not a regular file"), "{}", error(&folder));
        assert!(folder.history().unwrap_err().to_string().contains("is not a regular file"));
        fs::remove_file(scratch.file()).unwrap();
        fs::create_dir(scratch.file()).unwrap();
        assert!(error(&folder).contains("is not a regular file"), "{}", error(&folder));
        if rustix::process::geteuid().is_root() {
            fs::remove_dir(scratch.file()).unwrap();
            fs::write(scratch.file(), "").unwrap();
            std::os::unix::fs::chown(scratch.file(), Some(4711), None).unwrap();
            assert!(error(&folder).contains("belongs to user 4711"), "{}", error(&folder));
            // In a folder of that user, root makes it for that user.
            fs::remove_file(scratch.file()).unwrap();
            std::os::unix::fs::chown(&scratch.0, Some(4711), None).unwrap();
            scratch.folder().append_history(&HistoryEntry::default()).unwrap();
            assert_eq!(fs::metadata(scratch.file()).unwrap().uid(), 4711);
        }
    }
}
