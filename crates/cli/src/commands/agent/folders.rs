//! A run dir that the agent watches, and its policy file.

use super::files::File;
use super::found::{Found, foreign};
use super::log;
use super::shared::Shared;
use railweave_agent::{Agent, Keeper, Keeping, Steers};
use railweave_telemetry::{FileError, Files, Folder, FolderError, FoundPolicy, HistoryEntry, Lock};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A run dir.
pub(super) struct Watched {
    folder: Folder,
    files: BTreeMap<String, File>,
    lock: Option<Lock>,
    keeper: Keeper,
    /// The policy file that this agent wrote last.
    written: Option<String>,
    /// The policy file of the last look.
    found: Option<Found>,
    /// The last say of the agent.
    steers: Steers,
    /// True if files that are there at the first look are older than the agent.
    is_old: bool,
    /// True once the file of an agent before this one was taken over.
    is_inherited: bool,
    /// True if there is something that is not followed; and if that is because there are too many files.
    is_refused: bool,
    is_crowded: bool,
    /// The time of the last look at its files, and the name of the file with which the next one begins.
    pub(super) read_at: Instant,
    next: String,
}

impl Watched {
    /// Returns a folder. With `is_old`, files that are there now are older than the agent. `written` is the policy file
    /// that this agent wrote there last, if it did: it says nothing new.
    pub(super) fn new(folder: Folder, is_old: bool, written: Option<String>) -> Self {
        Self {
            folder,
            files: BTreeMap::new(),
            lock: None,
            keeper: Keeper::new(written.is_some()),
            written,
            found: None,
            steers: Steers::Unknown,
            is_old,
            is_inherited: false,
            is_refused: false,
            is_crowded: false,
            read_at: Instant::now(),
            next: String::new(),
        }
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.folder.is_in_place()
    }

    fn path(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// Returns the policy file that this agent wrote last, if its drains would count again in a folder that is opened
    /// again.
    pub(super) fn written(&self) -> Option<&str> {
        self.written.as_deref().filter(|_| self.is_own())
    }

    /// Returns true if this agent's policy file is there, as far as it knows.
    pub(super) fn has_written(&self) -> bool {
        self.written.is_some()
    }

    /// Returns true if it belongs to the agent's user.
    pub(super) fn is_own(&self) -> bool {
        self.folder.owner() == rustix::process::geteuid().as_raw()
    }

    /// Adds an entry to the folder's history of orders.
    ///
    /// # Errors
    /// If it cannot be written: a sentence.
    pub(super) fn append_history(&self, entry: &HistoryEntry) -> Result<(), String> {
        self.folder.append_history(entry).map_err(|error| format!("\"{}/history\" {error}", self.path()))
    }

    /// Forgets everything: the folder is gone.
    pub(super) fn forget(&self, agent: &mut Agent) {
        let user = self.folder.owner();
        for name in self.files.keys() {
            agent.forget(user, name);
        }
        if self.is_refused {
            agent.forget(user, &self.path());
        }
        agent.remove_run_dir(user, &self.path());
    }

    /// Reads its files for this time, at least one, and hands them to the agent. Those for which there is no time come
    /// first the next time.
    pub(super) fn read(&mut self, shared: &Shared, buffer: &mut Vec<u8>, longest: Duration) {
        self.read_at = Instant::now();
        let Files { mut names, more } = match self.folder.files() {
            Ok(files) => files,
            Err(error) => {
                return self.refuse(
                    shared,
                    Some(format!("cannot be listed: {error}; allowed: a folder that this user can read; try `ls`")),
                );
            }
        };
        let user = self.folder.owner();
        self.files.retain(|name, _| {
            let is_there = names.binary_search(name).is_ok();
            if !is_there {
                shared.agent().forget(user, name);
            }
            is_there
        });
        // Of too many, those that were left out may come back.
        let is_old = std::mem::take(&mut self.is_old) || self.is_crowded || more.is_some();
        self.is_crowded = more.is_some();
        for name in &names {
            self.files.entry(name.clone()).or_insert_with(|| File::new(is_old));
        }
        let first = names.partition_point(|name| *name < self.next);
        names.rotate_left(first);
        let mut late = None;
        for (count, name) in names.iter().enumerate() {
            // At least one, however long the folder itself takes.
            if count > 0 && self.read_at.elapsed() >= longest {
                late = Some(names.len() - count);
                self.next.clone_from(name);
                break;
            }
            if let Some(file) = self.files.get_mut(name) {
                file.report(&self.folder, name, shared, buffer);
            }
        }
        let late = late.map(|late| {
            format!(
                "has files that take long to read, so {late} of them wait for the next look; allowed: as many as can \
                 be read in {} ms; try removing those that no process writes",
                longest.as_millis()
            )
        });
        self.refuse(shared, late.or(more));
    }

    /// Notes that it was not read in a look, because others took the time.
    pub(super) fn wait(&mut self, shared: &Shared) {
        let reason = "waits for the next look, because files of other folders take long to read; try removing those \
                      that no process writes";
        self.refuse(shared, Some(reason.to_owned()));
    }

    /// Tells the agent that there is something in the folder that it does not know, and why; or that there is nothing.
    fn refuse(&mut self, shared: &Shared, reason: Option<String>) {
        let user = self.folder.owner();
        match &reason {
            Some(reason) => shared.agent().refuse(user, &self.path(), reason),
            None if self.is_refused => shared.agent().forget(user, &self.path()),
            None => {}
        }
        self.is_refused = reason.is_some();
    }

    /// Takes the right to steer if nobody has it, and writes the policy file if it has to be. Returns the agent's say.
    pub(super) fn steer(&mut self, shared: &Shared) -> Steers {
        let (user, path) = (self.folder.owner(), self.path());
        let steers = match self.prepare(shared) {
            Ok(()) if self.is_inherited && shared.agent().is_undecided() => Steers::Yes,
            Ok(()) => self.write(shared),
            Err(reason) => {
                // Its owner may clear it with `railweave policy`, which needs the lock.
                if self.is_kept_out() {
                    drop(self.lock.take());
                }
                Steers::No(reason)
            }
        };
        shared.agent().set_steers(user, &path, steers.clone());
        self.steers.clone_from(&steers);
        steers
    }

    /// Returns true if this agent has the right to steer.
    fn has_lock(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| self.folder.honours(lock))
    }

    /// Returns true if the policy file of the last look was that of somebody else.
    fn is_kept_out(&self) -> bool {
        self.found.as_ref().is_some_and(|found| !found.is_agents)
    }

    /// Takes the right to steer.
    ///
    /// # Errors
    /// If somebody else has it: a sentence.
    fn take_lock(&mut self) -> Result<(), String> {
        let path = self.path();
        let was_kept_out = self.is_kept_out();
        // Whoever has it meanwhile may leave orders in the file; one of somebody else is known until it changes.
        self.found = self.found.take().filter(|found| !found.is_agents);
        (self.lock, self.is_inherited) = (None, false);
        match self.folder.lock() {
            Ok(Some(lock)) => self.lock = Some(lock),
            // Most likely `railweave policy` has it for a moment, to change that file.
            Ok(None) if was_kept_out => {
                let stamp = self.found.as_ref().map(|found| found.stamp);
                if !matches!(self.folder.policy_since(stamp), Ok(None)) {
                    self.found = None;
                }
                return Err(foreign(&path));
            }
            Ok(None) => {
                return Err(format!(
                    "another agent steers \"{path}\", or an order is being given there; this agent only watches there \
                     until that ends"
                ));
            }
            Err(error) => return Err(format!("\"{path}/agent.lock\" {error}")),
        }
        Ok(())
    }

    /// Makes sure that this agent may write the policy file.
    ///
    /// # Errors
    /// If it may not: a sentence.
    fn prepare(&mut self, shared: &Shared) -> Result<(), String> {
        let path = self.path();
        if !self.has_lock() {
            self.take_lock()?;
        }
        // Users may write large ones, so each is read once.
        match self.folder.policy_since(self.found.as_ref().map(|found| found.stamp)) {
            Err(FolderError::File(FileError::Missing)) => {
                self.found = None;
                // Somebody has removed it.
                if self.written.take().is_some() {
                    self.keeper.lost();
                }
                return Ok(());
            }
            Err(error) => return Err(format!("\"{path}/policy\" {error}")),
            Ok(None) => {}
            Ok(Some(policy)) => self.take_in(&policy, shared),
        }
        let clock_s = shared.now().clock.as_secs();
        match &self.found {
            Some(found) if found.keeps_out(clock_s) => Err(foreign(&path)),
            _ => Ok(()),
        }
    }

    /// Takes in a policy file that was not there at the last look.
    fn take_in(&mut self, policy: &FoundPolicy, shared: &Shared) {
        let FoundPolicy { text, owner, stamp } = policy;
        if self.written.as_ref() == Some(text) {
            self.found = Some(Found::own(*stamp));
            return;
        }
        // Whatever this agent wrote before is gone.
        self.written = None;
        // A drain is for the whole host, and every user may write a file that looks like an agent's: only this user's
        // own says what an operator ordered, however old it is.
        let is_own = self.is_own() && *owner == self.folder.owner();
        let found = self.found.insert(Found::new(policy, is_own));
        self.keeper = Keeper::new(found.is_agents);
        if !found.is_agents || std::mem::replace(&mut self.is_inherited, true) || !is_own {
            return;
        }
        let Some((before, had_end)) = found.inherited(text, shared.now().clock.as_secs()) else { return };
        shared.inherit(&before).iter().for_each(|line| log::say(line));
        if had_end {
            let path = self.path();
            log::say(&format!(
                "the orders of \"{path}/policy\" were to end with --for, and hold until they are cleared"
            ));
        }
    }

    /// Writes or removes the policy file if it has to be.
    fn write(&mut self, shared: &Shared) -> Steers {
        let (user, path, now) = (self.folder.owner(), self.path(), shared.now());
        // A file system may hang: nobody waits for the agent meanwhile.
        let (orders, ttl_s, keeping, text) = {
            let agent = shared.agent();
            let (rules, ttl_s) = (agent.rules(user), agent.config().ttl_s);
            // With what it says to the next agent.
            let orders = if rules.is_empty() { rules.clone() } else { agent.policy_orders(&rules) };
            let keeping = self.keeper.next(&orders, ttl_s, now);
            let text = (keeping == Keeping::Write).then(|| agent.policy_file(&rules, now.clock));
            (orders, ttl_s, keeping, text)
        };
        let result = match (keeping, text) {
            (Keeping::Remove, _) => self.remove(shared),
            (Keeping::Write, Some(text)) => self.put(text, shared),
            _ => return Steers::Yes,
        };
        match result {
            Ok(()) => {
                self.keeper.done(keeping, &orders, ttl_s, now);
                Steers::Yes
            }
            Err(error) => Steers::Failing(format!(
                "\"{path}/policy\" {error}; jobs follow the last one until its time to live of {ttl_s} s is over"
            )),
        }
    }

    fn put(&mut self, text: String, shared: &Shared) -> Result<(), FolderError> {
        let result = self.folder.put_policy(&text);
        shared.agent().count_write(self.folder.owner(), result.is_ok());
        result.map(|()| self.written = Some(text))
    }

    fn remove(&mut self, shared: &Shared) -> Result<(), FolderError> {
        let result = self.folder.remove_policy();
        shared.agent().count_write(self.folder.owner(), result.is_ok());
        result.map(|()| self.written = None)
    }

    /// Removes what agents have left there: the folder is not to be watched any more.
    pub(super) fn give_up(&mut self, shared: &Shared) {
        // Otherwise somebody else may have left what is there.
        if !self.has_lock() {
            return;
        }
        let path = self.path();
        if self.prepare(shared).is_ok() && self.found.as_ref().is_some_and(|found| found.is_agents) {
            match self.remove(shared) {
                Ok(()) => log::say(&format!("\"{path}\" is not watched any more, so its policy file is removed")),
                Err(error) => log::say(&format!("\"{path}/policy\" {error}")),
            }
        }
        if let Some(lock) = self.lock.take() {
            self.folder.remove_lock(lock);
        }
    }

    /// Writes the policy file once more, so that it holds for its whole time to live after the agent's end.
    pub(super) fn leave(&mut self, shared: &Shared) {
        if self.lock.is_none() && !self.is_kept_out() {
            return;
        }
        let before = self.steers.clone();
        // Orders may have come since the last look, and somebody else's file.
        let steers = self.steer(shared);
        if let Steers::No(reason) | Steers::Failing(reason) = &steers {
            // Otherwise a finding has said it.
            if steers != before {
                log::say(reason);
            }
            return;
        }
        if self.written.is_none() {
            return;
        }
        let text = {
            let agent = shared.agent();
            let rules = agent.rules(self.folder.owner());
            (!rules.is_empty()).then(|| agent.policy_file(&rules, shared.now().clock))
        };
        if let Some(Err(error)) = text.map(|text| self.put(text, shared)) {
            log::say(&format!("\"{}/policy\" {error}", self.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::scratch::Scratch;
    use crate::commands::agent::shared::tests::shared;
    use railweave_agent::{Config, Standing};
    use railweave_telemetry::RunDir;
    use std::fs;
    use std::path::{Path, PathBuf};

    const FOREIGN: &str = "railweave-policy 1\nttl forever\nany -> policy static\n";

    /// Makes a run dir, and returns its path and that of its policy file.
    fn run_dir(scratch: &Scratch) -> (PathBuf, PathBuf) {
        let path = scratch.path().join("run");
        RunDir::named(Some(&path)).make().unwrap();
        (path.clone(), path.join("policy"))
    }

    fn watch(path: &Path) -> Watched {
        Watched::new(Folder::open(path).unwrap(), false, None)
    }

    /// Returns the file of an agent that was told to drain rail1, and wrote it at this time.
    fn drained(written: Duration) -> String {
        let shared = shared();
        let mut agent = shared.agent();
        agent.drain("rail1").unwrap();
        agent.policy_file(&agent.rules(0), written)
    }

    #[test]
    fn orders_that_came_since_the_last_look_are_in_the_file_that_is_left() {
        let scratch = Scratch::new("leave");
        let (path, policy) = run_dir(&scratch);
        let shared = shared();
        let mut watched = watch(&path);
        watched.leave(&shared);
        assert!(!policy.exists() && !path.join("agent.lock").exists(), "it has not looked yet");
        watched.steer(&shared);
        watched.leave(&shared);
        assert!(!policy.exists(), "nothing is ordered");
        shared.agent().drain("rail1").unwrap();
        watched.leave(&shared);
        assert!(fs::read_to_string(&policy).unwrap().contains("rail=rail1,"));
        shared.agent().give_back("rail1", shared.now());
        watched.leave(&shared);
        assert!(!policy.exists());
        shared.agent().drain("rail1").unwrap();
        fs::write(&policy, FOREIGN).unwrap();
        watched.leave(&shared);
        assert_eq!(fs::read_to_string(&policy).unwrap(), FOREIGN);
    }

    #[test]
    fn a_folder_that_is_given_up_keeps_the_files_of_others() {
        let scratch = Scratch::new("give-up");
        let (path, policy) = run_dir(&scratch);
        let shared = shared();
        shared.agent().drain("rail1").unwrap();
        let mut watched = watch(&path);
        watched.give_up(&shared);
        assert!(!path.join("agent.lock").exists(), "it has not looked yet");
        watched.steer(&shared);
        assert!(watch(&path).steer(&shared) != Steers::Yes, "another agent only watches");
        watch(&path).give_up(&shared);
        assert!(policy.exists(), "the other one steers");
        // It has seen its own file once.
        watched.steer(&shared);
        fs::write(&policy, FOREIGN).unwrap();
        watched.give_up(&shared);
        assert_eq!(fs::read_to_string(&policy).unwrap(), FOREIGN);
        let lock = path.join("agent.lock");
        assert!(!lock.exists(), "its owner may not be able to open it");
        fs::remove_file(&policy).unwrap();
        watched.steer(&shared);
        fs::remove_file(&lock).unwrap();
        fs::write(&policy, drained(shared.now().clock)).unwrap();
        watched.give_up(&shared);
        assert!(policy.exists(), "another agent has had the lock meanwhile");
        watched.steer(&shared);
        watched.give_up(&shared);
        assert!(!policy.exists() && !lock.exists());
        // That of an agent before this one, which it has not replaced yet.
        fs::write(&policy, drained(shared.now().clock)).unwrap();
        watched.lock = watched.folder.lock().unwrap();
        watched.give_up(&shared);
        assert!(!policy.exists());
    }

    #[test]
    fn what_another_agent_was_told_while_it_had_the_lock_holds() {
        let scratch = Scratch::new("lost-lock");
        let (path, policy) = run_dir(&scratch);
        let (first, second) = (shared(), shared());
        let mut watched = watch(&path);
        first.agent().drain("rail0").unwrap();
        fs::write(&policy, drained(Duration::ZERO)).unwrap();
        watched.steer(&first);
        first.agent().give_back("rail1", first.now());
        watched.steer(&first);
        let mut other = watch(&path);
        fs::remove_file(path.join("agent.lock")).unwrap();
        second.agent().drain("rail2").unwrap();
        assert_eq!(other.steer(&second), Steers::Yes);
        assert!(watched.steer(&first) != Steers::Yes);
        drop(other);
        assert_eq!(watched.steer(&first), Steers::Yes);
        assert_eq!(first.agent().drained_by_operator().collect::<Vec<_>>(), ["rail0", "rail2"]);
        assert!(fs::read_to_string(&policy).unwrap().contains("# drained rail2\n"));
    }

    #[test]
    fn the_file_of_railweave_policy_is_taken_over_in_a_folder_of_this_user_only() {
        let scratch = Scratch::new("command");
        let (path, policy) = run_dir(&scratch);
        let shared = shared();
        let mut standing = Standing::default();
        standing.drain("rail1").unwrap();
        standing.set("peer=node3 -> weights 80,20").unwrap();
        let text = standing.file("0.1.0 on node1", shared.now().clock, None);
        fs::write(&policy, &text).unwrap();
        let mut watched = watch(&path);
        assert_eq!(watched.steer(&shared), Steers::Yes);
        let after = fs::read_to_string(&policy).unwrap();
        assert!(after.contains("# railweave agent") && Standing::of(&after) == Some(standing), "{after}");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        drop(watched);
        let root = super::super::shared::tests::shared();
        fs::write(&policy, &text).unwrap();
        for file in [&path, &policy] {
            std::os::unix::fs::chown(file, Some(4711), None).unwrap();
        }
        let Steers::No(reason) = watch(&path).steer(&root) else { panic!("it steers") };
        assert!(reason.contains("was written by somebody else"), "{reason}");
        assert!(root.agent().operator_rules().next().is_none() && fs::read_to_string(&policy).unwrap() == text);
    }

    #[test]
    fn orders_that_have_ended_leave_nothing_and_others_lose_their_end() {
        let scratch = Scratch::new("ended");
        let (path, policy) = run_dir(&scratch);
        let mut standing = Standing::default();
        standing.drain("rail1").unwrap();
        for (age_s, drained) in [(100, false), (10, true)] {
            let shared = shared();
            let written = shared.now().clock - Duration::from_secs(age_s);
            fs::write(&policy, standing.file("0.1.0 on node1", written, Some(60))).unwrap();
            assert_eq!(watch(&path).steer(&shared), Steers::Yes);
            assert_eq!(shared.agent().drained_by_operator().count(), usize::from(drained), "{age_s}");
            let text = fs::read_to_string(&policy).unwrap_or_default();
            assert_eq!(text.contains("# railweave agent"), drained, "{age_s}: {text}");
            assert_eq!(policy.exists(), drained);
        }
    }

    #[test]
    fn a_foreign_file_leaves_the_lock_to_others() {
        let scratch = Scratch::new("kept-out");
        let (path, policy) = run_dir(&scratch);
        let shared = shared();
        shared.agent().drain("rail1").unwrap();
        fs::write(&policy, FOREIGN).unwrap();
        let mut watched = watch(&path);
        let kept_out = watched.steer(&shared);
        assert!(matches!(&kept_out, Steers::No(reason) if reason.contains("was written by somebody else")));
        let folder = Folder::open(&path).unwrap();
        let lock = folder.lock().unwrap().expect("the agent has given the lock back");
        assert_eq!(watched.steer(&shared), kept_out, "somebody has the lock, and changes the file");
        fs::remove_file(&policy).unwrap();
        assert_eq!(watched.steer(&shared), kept_out);
        assert!(matches!(watched.steer(&shared), Steers::No(reason) if reason.contains("another agent steers")));
        drop(lock);
        assert_eq!(watched.steer(&shared), Steers::Yes);
        assert!(folder.lock().unwrap().is_none(), "the agent steers");
        fs::write(&policy, FOREIGN).unwrap();
        assert_eq!(watched.steer(&shared), kept_out);
        drop(folder.lock().unwrap().expect("the lock is given back again"));
        fs::remove_file(&policy).unwrap();
        watched.leave(&shared);
        assert!(fs::read_to_string(&policy).unwrap().contains("# drained rail1\n"));
    }

    #[test]
    fn a_foreign_file_is_left_alone_until_it_is_over() {
        let scratch = Scratch::new("over");
        let (path, policy) = run_dir(&scratch);
        let shared = shared();
        shared.agent().drain("rail1").unwrap();
        let mut watched = watch(&path);
        let written_s = shared.now().clock.as_secs();
        fs::write(&policy, format!("railweave-policy 1\nwritten {written_s}\nttl 1\nany -> policy static\n")).unwrap();
        assert!(watched.steer(&shared) != Steers::Yes);
        railweave_patience::until("the end of the file", || {
            std::thread::sleep(Duration::from_millis(10));
            (watched.steer(&shared) == Steers::Yes).then_some(())
        });
        assert!(shared.now().clock.as_secs() > written_s + 1);
        assert!(fs::read_to_string(&policy).unwrap().contains("# drained rail1\n"));
    }

    #[test]
    fn the_policy_of_the_agent_before_outlives_a_lost_lock_while_a_script_is_awaited() {
        let scratch = Scratch::new("awaited");
        let (path, policy) = run_dir(&scratch);
        let shared = shared();
        shared.agent().set_config(Config::parse("[script]\nprogram = [\"sleep\"]\n").unwrap());
        let before = drained(shared.now().clock - Duration::from_secs(5));
        fs::write(&policy, &before).unwrap();
        let mut watched = watch(&path);
        assert_eq!(watched.steer(&shared), Steers::Yes);
        fs::remove_file(path.join("agent.lock")).unwrap();
        assert_eq!(watched.steer(&shared), Steers::Yes);
        assert_eq!(fs::read_to_string(&policy).unwrap(), before);
    }
}
