//! A run dir as an agent sees it: opened once, and used through that handle, so that nobody can lead it elsewhere.

use std::fs::{File, Metadata, TryLockError};
use std::io::{self, BufRead, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::policy_file::LARGEST_POLICY;
use crate::run_dir::{self, RunDirError, is_telemetry, objection};
use crate::trusted::{self, FileError, READ, Stamp};

/// The name of the policy file.
const POLICY: &str = "policy";

/// The name under which the policy file is written before it takes its place.
const UNFINISHED: &str = "policy.new";

/// The file that the agent that steers keeps locked. It is only read, so that agents of root and of the folder's owner
/// can use each other's.
const LOCK: &str = "agent.lock";

/// The most telemetry files of a folder that are read: a user may make more than any host has processes.
pub const MOST_FILES: usize = 1024;

/// The most entries of a folder, of any kind, that are looked at to find these files.
pub const MOST_ENTRIES: usize = 8192;

/// The list of the locks of this host, and the most bytes of it that are read.
const LOCKS: &str = "/proc/locks";
const MOST_LOCKS: u64 = 4 << 20;

/// The telemetry files of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Their names, sorted.
    pub names: Vec<String>,
    /// The reason why there may be more, the end of a sentence that begins with the folder.
    pub more: Option<String>,
}

/// A policy file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPolicy {
    /// Its text; empty if it is no text in UTF-8.
    pub text: String,
    /// The number of its owner: the folder's owner or root.
    pub owner: u32,
    /// Its stamp: until it changes, the file is this one.
    pub stamp: Stamp,
}

/// A file of a run dir that is not used. The text is the end of a sentence that begins with the file.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It is not opened.
    #[error("{0}")]
    File(#[from] FileError),
    /// This user may not open it.
    #[error(
        "belongs to user {owner}, and this user may not open it; allowed: a file that its owner may read; try removing \
         it as user {remover} or root"
    )]
    Denied {
        /// The owner of the file.
        owner: u32,
        /// The owner of the folder, who may remove it.
        remover: u32,
    },
    /// It is too large.
    #[error("has {size} bytes; allowed: up to {most}; try removing it")]
    Large {
        /// Its size.
        size: u64,
        /// The largest that is read.
        most: u64,
    },
    /// It has more than one name, so it may be a file of another folder.
    #[error("has {names} names; allowed: a file with one; try removing it")]
    Linked {
        /// The number of its names.
        names: u64,
    },
    /// It cannot be read or written.
    #[error("cannot be used: {0}; allowed: a file that this user can read and write; try making room, or removing it")]
    Io(#[from] io::Error),
}

/// An open run dir. Root may open that of any user; another user only its own.
#[derive(Debug)]
pub struct Folder {
    pub(crate) handle: File,
    path: PathBuf,
    owner: u32,
    /// The device and the inode.
    identity: (u64, u64),
}

impl Folder {
    /// Opens a run dir that is there.
    ///
    /// # Errors
    /// If it cannot be opened, is a symbolic link or no folder, or if anybody but its owner may write there. Its owner
    /// is this user, unless this is root.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        let path = &run_dir::plain(path);
        let failed = |error: io::Error| RunDirError::Read { path: path.to_owned(), error };
        let refused = |reason: &str| RunDirError::Refused { path: path.to_owned(), reason: reason.to_owned() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle: File = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(handle) => handle.into(),
            // Linux says so of a symbolic link too, if it has to be a folder.
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused("is not a folder, or is a symbolic link")),
            Err(error) => return Err(failed(error.into())),
        };
        let facts = handle.metadata().map_err(failed)?;
        let user = rustix::process::geteuid().as_raw();
        let owner = if user == 0 { facts.uid() } else { user };
        match objection(&facts, owner) {
            Some(reason) => Err(refused(&reason)),
            None => Ok(Self { handle, path: path.to_owned(), owner, identity: (facts.dev(), facts.ino()) }),
        }
    }

    /// Returns the path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of its owner.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns true if its path still leads to it, and only its owner may write there.
    pub fn is_in_place(&self) -> bool {
        let is_same =
            |facts: Metadata| (facts.dev(), facts.ino()) == self.identity && objection(&facts, self.owner).is_none();
        std::fs::symlink_metadata(&self.path).is_ok_and(is_same)
    }

    /// Returns the telemetry files: at most [`MOST_FILES`], the newest among the first [`MOST_ENTRIES`] entries.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn files(&self) -> io::Result<Files> {
        let (mut names, mut more) = (Vec::new(), None);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A name has 255 bytes at most (readdir(3)), so some always have room.
        let mut room = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(rustix::fs::openat(&self.handle, ".", flags, Mode::empty())?, &mut room);
        let mut count = 0;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            count += 1;
            // The folder itself and the one above it come too.
            if count > MOST_ENTRIES + 2 {
                more = Some(format!("has more than {MOST_ENTRIES} entries; allowed: fewer; try removing others"));
                break;
            }
            if let Some(name) = entry.file_name().to_str().ok().filter(|name| is_telemetry(name)) {
                names.push(name.to_owned());
            }
        }
        if names.len() > MOST_FILES {
            more = Some(format!("has more than {MOST_FILES} telemetry files; allowed: fewer; try removing old ones"));
            // Jobs that crash leave theirs behind, while those of processes that run are written every few seconds.
            names.sort_by_cached_key(|name| {
                let facts = rustix::fs::statat(&self.handle, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
                std::cmp::Reverse(facts.map_or((0, 0), |facts| (facts.st_mtime, facts.st_mtime_nsec)))
            });
            names.truncate(MOST_FILES);
        }
        names.sort();
        Ok(Files { names, more })
    }

    /// Opens a file to read it.
    ///
    /// # Errors
    /// If it is no regular file of the folder's owner or of root, or is larger than this.
    pub(crate) fn read_file(&self, name: &str, most: u64) -> Result<(File, Metadata), FolderError> {
        let (file, facts) = trusted::judge(rustix::fs::openat(&self.handle, name, READ, Mode::empty()), self.owner)?;
        if facts.len() > most {
            return Err(FolderError::Large { size: facts.len(), most });
        }
        Ok((file, facts))
    }

    /// Returns the policy file; `None` if it is still the one with this stamp.
    ///
    /// # Errors
    /// If there is none, or it is not a regular file of the folder's owner or of root, or is too large.
    pub fn policy_since(&self, seen: Option<Stamp>) -> Result<Option<FoundPolicy>, FolderError> {
        let (file, facts) = self.read_file(POLICY, LARGEST_POLICY)?;
        let stamp = Stamp::of(&facts);
        if seen == Some(stamp) {
            return Ok(None);
        }
        let mut bytes = vec![0; facts.len() as usize];
        let filled = trusted::read(&file, &mut bytes)?;
        bytes.truncate(filled);
        let text = String::from_utf8(bytes).unwrap_or_default();
        Ok(Some(FoundPolicy { text, owner: facts.uid(), stamp }))
    }

    /// Puts a policy file in place, whole: readers see the one before or this one. A policy that root writes into
    /// another user's folder can be read by everybody who can reach it, which is that user.
    ///
    /// # Errors
    /// If it cannot be written. The one before stays in force.
    pub fn put_policy(&self, text: &str) -> Result<(), FolderError> {
        // Left by an agent that was killed; whatever it is, the new file does not follow it.
        match rustix::fs::unlinkat(&self.handle, UNFINISHED, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let opened = rustix::fs::openat(&self.handle, UNFINISHED, flags, mode).map_err(io::Error::from)?;
        let mut file = File::from(opened);
        let mut write = || -> io::Result<()> {
            file.write_all(text.as_bytes())?;
            // The umask may have taken bits away.
            rustix::fs::fchmod(&file, mode)?;
            Ok(rustix::fs::renameat(&self.handle, UNFINISHED, &self.handle, POLICY)?)
        };
        write().inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&self.handle, UNFINISHED, AtFlags::empty());
        })?;
        Ok(())
    }

    /// Removes the policy file. One that is gone is as good.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove_policy(&self) -> Result<(), FolderError> {
        match rustix::fs::unlinkat(&self.handle, POLICY, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Returns true if the right to steer is still that of this lock: its file may have been removed.
    pub fn honours(&self, lock: &Lock) -> bool {
        rustix::fs::statat(&self.handle, LOCK, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|facts| (facts.st_dev, facts.st_ino) == lock.identity)
    }

    /// Takes the right to steer: only one agent at a time has it, until it drops what is returned or ends, however it
    /// ends. Returns `None` if another has it. Jobs neither lock nor look at this file. If root makes it, it belongs to
    /// the folder's owner, whose agent can use it too.
    ///
    /// # Errors
    /// If the file of the lock cannot be made or opened, or belongs to neither the folder's owner nor root.
    pub fn lock(&self) -> Result<Option<Lock>, FolderError> {
        let opened = match self.make_lock() {
            Ok(made) => Ok(made),
            // Nothing about it is changed: in a folder of another user, it may be any file that this user has linked
            // there.
            Err(Errno::EXIST) => rustix::fs::openat(&self.handle, LOCK, READ, Mode::empty()),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        if matches!(opened, Err(Errno::ACCESS))
            && let Ok(facts) = rustix::fs::statat(&self.handle, LOCK, AtFlags::SYMLINK_NOFOLLOW)
        {
            return Err(FolderError::Denied { owner: facts.st_uid, remover: self.owner });
        }
        let (file, facts) = trusted::judge(opened, self.owner)?;
        match file.try_lock() {
            Ok(()) => {
                let lock = Lock { file, identity: (facts.dev(), facts.ino()) };
                // Whoever had it before may have removed it just now.
                Ok(self.honours(&lock).then_some(lock))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Returns true if somebody has the right to steer. Takes nothing, unlike [`Self::lock`]. On file systems whose
    /// files have other device numbers than `/proc/locks` says, such as btrfs, and for a process of another PID
    /// namespace, it does not see that.
    ///
    /// # Errors
    /// If the list of locks cannot be read.
    pub fn is_locked(&self) -> io::Result<bool> {
        let facts = match rustix::fs::statat(&self.handle, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(false),
            facts => facts?,
        };
        let (major, minor) = (rustix::fs::major(facts.st_dev), rustix::fs::minor(facts.st_dev));
        // Such as `1: FLOCK  ADVISORY  WRITE 4711 00:1b:835379 0 EOF` (proc_locks(5)).
        let place = format!("{major:02x}:{minor:02x}:{}", facts.st_ino);
        for line in io::BufReader::new(File::open(LOCKS)?.take(MOST_LOCKS)).lines() {
            let line = line?;
            let mut words = line.split_whitespace().skip(1);
            // Those that only wait for a lock have an arrow here.
            if words.next() == Some("FLOCK") && words.nth(3) == Some(&place) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the file of this lock, if it still is: one that root's agent made may be closed to the folder's owner.
    pub fn remove_lock(&self, lock: Lock) {
        if self.honours(&lock) {
            // Somebody without it makes it again.
            let _ = rustix::fs::unlinkat(&self.handle, LOCK, AtFlags::empty());
        }
    }

    /// Makes the file of the lock, which is not there. Nobody else may open it: whoever can may lock it.
    fn make_lock(&self) -> rustix::io::Result<OwnedFd> {
        let file =
            rustix::fs::openat(&self.handle, LOCK, READ | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)?;
        if rustix::process::geteuid().as_raw() != self.owner {
            // Where it may not, root's agent can use the file all the same.
            let _ = rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(self.owner)), None);
        }
        Ok(file)
    }
}

/// The right to steer the jobs of a run dir. It ends with this value, or with the process.
#[derive(Debug)]
pub struct Lock {
    file: File,
    /// The device and the inode.
    identity: (u64, u64),
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is too little: a process that is being started, by the agent's script policy, may have the file open
        // too, and with it the lock (flock(2)).
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::RunDir;

    #[test]
    fn a_lock_is_seen_by_those_who_only_look() {
        let scratch = Scratch::new("look");
        let (folder, other) = (Folder::open(&scratch.0).unwrap(), Scratch::new("look-other"));
        assert!(!folder.is_locked().unwrap() && !scratch.0.join(LOCK).exists());
        let lock = folder.lock().unwrap().unwrap();
        assert!(folder.is_locked().unwrap());
        assert!(!Folder::open(&other.0).unwrap().is_locked().unwrap(), "another folder");
        drop(lock);
        assert!(!folder.is_locked().unwrap() && scratch.0.join(LOCK).exists());
    }

    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("railweave-folder-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn text(folder: &Folder) -> Result<String, FolderError> {
        Ok(folder.policy_since(None)?.unwrap().text)
    }

    #[test]
    fn only_a_folder_that_nobody_else_may_write_is_opened() {
        let scratch = Scratch::new("open");
        let folder = Folder::open(&scratch.0).unwrap();
        assert!(folder.is_in_place());
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!folder.is_in_place());
        assert!(Folder::open(&scratch.0).unwrap_err().to_string().contains("may be written by others"));
        let link = scratch.0.join("link");
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&scratch.0, &link).unwrap();
        for ending in ["", "/", "//", "/.", "/./"] {
            let mut path = link.clone().into_os_string();
            path.push(ending);
            assert!(Folder::open(Path::new(&path)).unwrap_err().to_string().contains("symbolic link"), "{ending}");
            let made = RunDir::named(Some(Path::new(&path))).make();
            assert!(made.unwrap_err().to_string().contains("symbolic link"), "{ending}");
        }
        fs::write(scratch.0.join("file"), "").unwrap();
        assert!(Folder::open(&scratch.0.join("file")).unwrap_err().to_string().contains("is not a folder"));
        assert!(Folder::open(&scratch.0.join("none")).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn a_policy_is_put_in_place_whole_and_follows_no_link() {
        let scratch = Scratch::new("policy");
        let folder = Folder::open(&scratch.0).unwrap();
        assert!(matches!(text(&folder), Err(FolderError::File(FileError::Missing))));
        fs::write(scratch.0.join("elsewhere"), "untouched").unwrap();
        for name in [POLICY, UNFINISHED] {
            symlink(scratch.0.join("elsewhere"), scratch.0.join(name)).unwrap();
        }
        assert!(matches!(text(&folder), Err(FolderError::File(FileError::Link { .. }))));
        folder.put_policy("one").unwrap();
        let stamp = folder.policy_since(None).unwrap().unwrap().stamp;
        assert_eq!(folder.policy_since(Some(stamp)).unwrap(), None);
        folder.put_policy("two").unwrap();
        assert_eq!(folder.policy_since(Some(stamp)).unwrap().unwrap().text, "two");
        assert_eq!(text(&folder).unwrap(), "two");
        assert_eq!(fs::read_to_string(scratch.0.join("elsewhere")).unwrap(), "untouched");
        assert_eq!(fs::metadata(scratch.0.join(POLICY)).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!scratch.0.join(UNFINISHED).exists());
        fs::create_dir(scratch.0.join(UNFINISHED)).unwrap();
        assert!(matches!(folder.put_policy("three"), Err(FolderError::Io(_))));
        assert_eq!(text(&folder).unwrap(), "two");
        folder.remove_policy().unwrap();
        folder.remove_policy().unwrap();
        assert!(!scratch.0.join(POLICY).exists());
    }

    #[test]
    fn a_folder_with_too_many_entries_is_not_read_to_its_end() {
        let scratch = Scratch::new("entries");
        let folder = Folder::open(&scratch.0).unwrap();
        let file = |number: usize| scratch.0.join(format!("{number:032x}.railweave"));
        (0..MOST_FILES).for_each(|number| drop(fs::write(file(number), "")));
        let files = folder.files().unwrap();
        assert_eq!((files.names.len(), files.more), (MOST_FILES, None));
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        File::open(file(7)).unwrap().set_modified(old).unwrap();
        fs::write(file(MOST_FILES), "").unwrap();
        let files = folder.files().unwrap();
        assert_eq!(files.names.len(), MOST_FILES);
        let has = |number| files.names.iter().any(|name| file(number).ends_with(name));
        assert!(has(MOST_FILES) && !has(7), "the oldest one is left out");
        assert!(files.more.is_some_and(|reason| reason.contains("more than 1024 telemetry files")));
        (0..=MOST_FILES).for_each(|number| drop(fs::remove_file(file(number))));
        (0..MOST_ENTRIES).for_each(|number| drop(fs::write(scratch.0.join(format!("other-{number}")), "")));
        assert_eq!(folder.files().unwrap(), Files { names: Vec::new(), more: None });
        fs::write(scratch.0.join("one-more"), "").unwrap();
        assert!(folder.files().unwrap().more.is_some_and(|reason| reason.contains("more than 8192 entries")));
    }

    #[test]
    fn pipes_and_large_files_are_refused_without_waiting() {
        let scratch = Scratch::new("pipes");
        let folder = Folder::open(&scratch.0).unwrap();
        for name in [POLICY, LOCK] {
            let pipe = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, scratch.0.join(name), pipe, Mode::RUSR, 0).unwrap();
        }
        assert!(text(&folder).unwrap_err().to_string().contains("is not a regular file"));
        assert!(folder.lock().unwrap_err().to_string().contains("is not a regular file"));
        fs::remove_file(scratch.0.join(POLICY)).unwrap();
        File::create(scratch.0.join(POLICY)).unwrap().set_len(LARGEST_POLICY + 1).unwrap();
        assert!(text(&folder).unwrap_err().to_string().contains("has 1048577 bytes; allowed: up to 1048576"));
        fs::write(scratch.0.join(POLICY), b"railweave-policy 1\n\xff").unwrap();
        assert_eq!(text(&folder).unwrap(), "");
        fs::remove_file(scratch.0.join(POLICY)).unwrap();
        fs::create_dir(scratch.0.join(POLICY)).unwrap();
        assert!(folder.put_policy("one").is_err() && !scratch.0.join(UNFINISHED).exists());
    }

    #[test]
    fn a_folder_and_a_lock_that_took_the_place_of_others_are_not_those() {
        let scratch = Scratch::new("places");
        let make = || {
            let path = scratch.0.join("run");
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            path
        };
        let path = make();
        let folder = Folder::open(&path).unwrap();
        let lock = folder.lock().unwrap().unwrap();
        fs::rename(path.join(LOCK), scratch.0.join("lock")).unwrap();
        let other = folder.lock().unwrap().unwrap();
        assert!(!folder.honours(&lock) && folder.honours(&other));
        fs::rename(&path, scratch.0.join("moved")).unwrap();
        make();
        assert!(!folder.is_in_place());
    }

    #[test]
    fn one_agent_at_a_time_may_steer() {
        let scratch = Scratch::new("lock");
        let folder = Folder::open(&scratch.0).unwrap();
        let other = Folder::open(&scratch.0).unwrap();
        let lock = folder.lock().unwrap();
        let lock = lock.filter(|lock| folder.honours(lock)).unwrap();
        assert!(other.lock().unwrap().is_none());
        // A process that is being started has it open as well.
        let _inherited = lock.file.try_clone().unwrap();
        drop(lock);
        let lock = other.lock().unwrap().unwrap();
        let path = scratch.0.join(LOCK);
        fs::rename(&path, path.with_extension("old")).unwrap();
        let new = folder.lock().unwrap().unwrap();
        other.remove_lock(lock);
        assert!(folder.honours(&new), "that of another agent stays");
        folder.remove_lock(new);
        assert!(!path.exists());
        let lock = other.lock().unwrap().unwrap();
        fs::remove_file(scratch.0.join(LOCK)).unwrap();
        assert!(!other.honours(&lock), "a second agent could take it now");
        symlink("/dev/null", scratch.0.join(LOCK)).unwrap();
        assert!(matches!(folder.lock(), Err(FolderError::File(FileError::Link { .. }))));
    }

    #[test]
    fn nobody_else_may_open_the_lock() {
        let scratch = Scratch::new("lock-mode");
        let folder = Folder::open(&scratch.0).unwrap();
        let mode = |folder: &Folder| {
            let lock = folder.lock().unwrap();
            assert!(lock.is_some_and(|lock| folder.honours(&lock)));
            let facts = fs::metadata(scratch.0.join(LOCK)).unwrap();
            (facts.permissions().mode() & 0o777, facts.uid())
        };
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(mode(&folder), (0o600, user));
        if user != 0 {
            return;
        }
        let chown = |name: &str, user| std::os::unix::fs::chown(scratch.0.join(name), Some(user), None).unwrap();
        chown(LOCK, 4711);
        let error = folder.lock().unwrap_err().to_string();
        assert!(error.contains("belongs to user 4711; allowed: a file of user 0 or root"), "{error}");
        // Root makes it for the folder's owner, and uses that of an agent of root.
        fs::remove_file(scratch.0.join(LOCK)).unwrap();
        chown("", 4711);
        let folder = Folder::open(&scratch.0).unwrap();
        assert_eq!(mode(&folder), (0o600, 4711));
        chown(LOCK, 0);
        assert_eq!(mode(&folder), (0o600, 0));
        // A file of somebody else that was linked there stays as it is.
        fs::remove_file(scratch.0.join(LOCK)).unwrap();
        fs::write(scratch.0.join("linked"), "").unwrap();
        fs::set_permissions(scratch.0.join("linked"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::hard_link(scratch.0.join("linked"), scratch.0.join(LOCK)).unwrap();
        assert_eq!(mode(&folder), (0o644, 0));
    }

    #[test]
    fn files_of_others_are_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = Scratch::new("others");
        fs::write(scratch.0.join(POLICY), "x").unwrap();
        std::os::unix::fs::chown(scratch.0.join(POLICY), Some(4711), None).unwrap();
        let folder = Folder::open(&scratch.0).unwrap();
        let error = text(&folder).unwrap_err().to_string();
        assert!(error.contains("belongs to user 4711; allowed: a file of user 0 or root"), "{error}");
        // Root opens the folder of another user, and takes that user's files.
        std::os::unix::fs::chown(&scratch.0, Some(4711), None).unwrap();
        let folder = Folder::open(&scratch.0).unwrap();
        assert_eq!((folder.owner(), text(&folder).unwrap()), (4711, "x".to_owned()));
        assert_eq!(folder.policy_since(None).unwrap().unwrap().owner, 4711);
        folder.put_policy("y").unwrap();
        let found = folder.policy_since(None).unwrap().unwrap();
        assert_eq!((found.text, found.owner), ("y".to_owned(), 0));
    }
}
