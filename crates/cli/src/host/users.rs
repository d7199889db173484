//! The run dirs of all users of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder in which the run dirs of all users are, unless their settings name others.
pub(crate) const USERS: &str = "/dev/shm";

/// The most users whose run dirs are watched: a user with a range of numbers for containers could make one for each.
const MOST_USERS: usize = 1024;

/// The run dirs of all users.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// Those that were found last, and those that were found before that if these were all that there were.
    found: BTreeSet<PathBuf>,
    before: Option<BTreeSet<PathBuf>>,
    is_listed: bool,
    /// The folder that has more of them, and the end of a sentence that begins with it.
    pub(crate) more: Option<(PathBuf, String)>,
}

impl Users {
    /// Finds the run dirs of all users in a folder. If it cannot be listed, for example because too many files are
    /// open, those that were found last stay.
    pub(crate) fn find(&mut self, shm: &Path) {
        let mut found = BTreeMap::new();
        let mut is_more = false;
        let Ok(entries) = std::fs::read_dir(shm) else { return };
        for entry in entries {
            let Ok(entry) = entry else { return };
            let Some(user) = entry.file_name().to_str().and_then(user_of) else { continue };
            // Everybody may make folders there: a name that is not of its owner says nothing, and would only cost time.
            let is_owners = match entry.metadata() {
                Ok(facts) => facts.uid() == user,
                Err(error) => error.kind() != io::ErrorKind::NotFound && self.found.contains(&entry.path()),
            };
            if is_owners {
                // Whoever is watched stays so. Numbers for containers are large ones.
                found.insert((!self.found.contains(&entry.path()), user), entry.path());
            }
            if found.len() > MOST_USERS {
                found.pop_last();
                is_more = true;
            }
        }
        let was_whole = self.is_listed && self.more.is_none();
        self.before = was_whole.then(|| std::mem::take(&mut self.found));
        (self.found, self.is_listed) = (found.into_values().collect(), true);
        self.more = is_more.then(|| {
            let reason = format!("has run dirs of more than {MOST_USERS} users; try removing some");
            (shm.to_owned(), reason)
        });
    }

    /// Returns those that were found last.
    pub(crate) fn found(&self) -> impl Iterator<Item = &PathBuf> {
        self.found.iter()
    }

    /// Returns true if none is left out because they could not be listed yet.
    pub(crate) fn are_known(&self) -> bool {
        self.is_listed || !rustix::process::geteuid().is_root()
    }

    /// Returns true if it is certain that a folder was not there before.
    pub(crate) fn began(&self, path: &Path) -> bool {
        self.found.contains(path) && self.before.as_ref().is_some_and(|before| !before.contains(path))
    }
}

/// Returns the user whose run dir has this name.
fn user_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("railweave-")?;
    number.parse().ok().filter(|user: &u32| user.to_string() == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::scratch::Scratch;
    use std::fs;

    #[test]
    fn a_run_dir_has_the_number_of_its_owner_and_outlives_a_folder_that_cannot_be_listed() {
        let scratch = Scratch::new("users");
        let shm = scratch.path();
        let user = rustix::process::geteuid().as_raw();
        for name in [format!("{user}"), format!("0{user}"), format!("{}", user + 1), String::new(), format!("{user}x")]
        {
            fs::create_dir(shm.join(format!("railweave-{name}"))).unwrap();
        }
        let mut users = Users::default();
        users.find(shm);
        let own = shm.join(format!("railweave-{user}"));
        assert!(users.found.iter().eq([&own]) && !users.began(&own), "it was there before");
        users.find(&shm.join("missing"));
        assert_eq!(users.found.len(), 1);
        fs::remove_dir(&own).unwrap();
        users.find(shm);
        fs::create_dir(&own).unwrap();
        users.find(shm);
        assert!(users.began(&own));
        users.find(shm);
        assert!(!users.began(&own));
    }

    #[test]
    fn the_run_dirs_of_many_users_are_bounded() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = Scratch::new("many-users");
        let shm = scratch.path();
        let last = 100_000 + MOST_USERS as u32;
        let path = |user: u32| shm.join(format!("railweave-{user}"));
        let make = |user: u32| {
            fs::create_dir(path(user)).unwrap();
            std::os::unix::fs::chown(path(user), Some(user), None).unwrap();
        };
        (100_001..=last).for_each(make);
        let mut users = Users::default();
        users.find(shm);
        assert_eq!((users.found.len(), &users.more), (MOST_USERS, &None));
        make(1000);
        users.find(shm);
        assert!(!users.found.contains(&path(1000)), "whoever is watched stays so");
        let more = users.more.clone();
        fs::remove_dir(path(100_001)).unwrap();
        users.find(shm);
        assert!(users.found.contains(&path(1000)) && !users.began(&path(1000)), "it was there before");
        make(100_001);
        assert!(more.is_some_and(|(_, reason)| reason.contains("more than 1024 users")));
        let mut users = Users::default();
        users.find(shm);
        assert!(users.found.contains(&path(1000)) && !users.found.contains(&path(last)), "people come first");
    }
}
