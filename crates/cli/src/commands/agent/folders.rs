//! A run dir that the agent watches, and its policy file.

use super::log;
use super::shared::Shared;
use railweave_agent::{Agent, Keeper, Keeping, Origin, Steers, origin};
use railweave_telemetry::{Files, Folder, FolderError, Follower, Lock, Look, Presence, Process, Rules, Snapshot};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time without a write after which a process is looked for again: one that writes is there.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// Attempts to read a file that is being written, and the pause between two.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(1);

/// The name by which a folder stands among its files.
const ITSELF: &str = ".";

/// A run dir.
pub(super) struct Watched {
    folder: Folder,
    files: BTreeMap<String, Followed>,
    lock: Option<Lock>,
    keeper: Keeper,
    /// The policy file that this agent wrote last.
    written: Option<String>,
    /// True until the first look: files that are there then are older than the agent.
    is_new: bool,
    /// True once the file of an agent before this one was taken over.
    is_inherited: bool,
    /// True if it has more files than are followed.
    is_crowded: bool,
}

struct Followed {
    follower: Follower,
    process: Option<Process>,
    presence: Presence,
    checked: Instant,
    /// True if the file was there at the folder's first look, and was not read yet: it is older than the agent.
    is_old: bool,
}

/// A file after a look.
enum Seen {
    Changed(Box<Snapshot>, Presence),
    Kept(Presence),
    Refused(String),
}

impl Watched {
    pub(super) fn new(folder: Folder) -> Self {
        Self {
            folder,
            files: BTreeMap::new(),
            lock: None,
            keeper: Keeper::default(),
            written: None,
            is_new: true,
            is_inherited: false,
            is_crowded: false,
        }
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.folder.is_in_place()
    }

    fn path(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// Forgets everything: the folder is gone.
    pub(super) fn forget(&self, agent: &mut Agent) {
        let user = self.folder.owner();
        for name in self.files.keys() {
            agent.forget(user, name);
        }
        if self.is_crowded {
            agent.forget(user, ITSELF);
        }
        agent.remove_run_dir(user, &self.path());
    }

    /// Reads all files, and hands them to the agent.
    pub(super) fn read(&mut self, shared: &Shared, buffer: &mut Vec<u8>) {
        // Otherwise, it is found not to be in its place at the next look.
        let Ok(Files { names, more }) = self.folder.files() else { return };
        let user = self.folder.owner();
        if let Some(reason) = &more {
            shared.agent().refuse(user, ITSELF, reason);
        } else if self.is_crowded {
            shared.agent().forget(user, ITSELF);
        }
        self.is_crowded = more.is_some();
        self.files.retain(|name, _| {
            let is_there = names.binary_search(name).is_ok();
            if !is_there {
                shared.agent().forget(user, name);
            }
            is_there
        });
        let is_old = std::mem::take(&mut self.is_new);
        for name in names {
            let file = self.files.entry(name.clone()).or_insert_with(|| Followed::new(is_old));
            // One by one: all of them together may be large.
            match file.look(&self.folder, &name, buffer) {
                Some(Seen::Changed(snapshot, presence)) => {
                    let is_old = std::mem::take(&mut file.is_old);
                    shared.agent().see(user, &name, &snapshot, presence, is_old, shared.now());
                }
                Some(Seen::Kept(presence)) => shared.agent().keep(user, &name, presence),
                Some(Seen::Refused(reason)) => shared.agent().refuse(user, &name, &reason),
                None => {}
            }
        }
    }

    /// Takes the right to steer if nobody has it, and writes the policy file if it has to be.
    pub(super) fn steer(&mut self, shared: &Shared) {
        let (user, path) = (self.folder.owner(), self.path());
        let steers = match self.prepare(shared) {
            Ok(()) if self.is_inherited && is_undecided(shared) => Steers::Yes,
            Ok(()) => self.write(shared),
            Err(reason) => Steers::No(reason),
        };
        shared.agent().set_steers(user, &path, steers);
    }

    /// Makes sure that this agent may write the policy file.
    ///
    /// # Errors
    /// If it may not: a sentence.
    fn prepare(&mut self, shared: &Shared) -> Result<(), String> {
        let path = self.path();
        if !self.lock.as_ref().is_some_and(|lock| self.folder.honours(lock)) {
            self.lock = None;
            match self.folder.lock() {
                Ok(Some(lock)) => self.lock = Some(lock),
                Ok(None) => {
                    return Err(format!(
                        "another agent steers \"{path}\"; this one only watches there until that ends"
                    ));
                }
                Err(error) => return Err(format!("\"{path}/agent.lock\" {error}")),
            }
        }
        let (text, owner) = match self.folder.policy_and_owner() {
            Err(FolderError::Missing) => {
                // Somebody has removed it.
                if self.written.take().is_some() {
                    self.keeper.lost();
                }
                return Ok(());
            }
            Err(error) => return Err(format!("\"{path}/policy\" {error}")),
            Ok(found) => found,
        };
        if self.written.as_ref() == Some(&text) {
            return Ok(());
        }
        match origin(&text) {
            Origin::Agent(before) => {
                // A drain is for the whole host, and every user may write a file that looks like an agent's: only this
                // user's own says what an operator ordered.
                let user = rustix::process::geteuid().as_raw();
                let is_own = self.folder.owner() == user && owner == user;
                if !std::mem::replace(&mut self.is_inherited, true) && is_own {
                    let lines = shared.agent().inherit(&before);
                    lines.iter().for_each(|line| log::say(line));
                }
                self.keeper = Keeper::new(true);
                Ok(())
            }
            Origin::Other => {
                // Whatever this agent wrote before is gone.
                (self.keeper, self.written) = (Keeper::new(false), None);
                let clock_s = shared.now().clock.as_secs();
                if Rules::parse(&text).is_ok_and(|rules| rules.are_over(clock_s)) {
                    return Ok(());
                }
                Err(format!(
                    "\"{path}/policy\" was written by somebody else, and this agent leaves it alone; try removing it, \
                     or its rules in `fixed` of the agent's configuration"
                ))
            }
        }
    }

    /// Writes or removes the policy file if it has to be.
    fn write(&mut self, shared: &Shared) -> Steers {
        let (user, path, now) = (self.folder.owner(), self.path(), shared.now());
        // A file system may hang: nobody waits for the agent meanwhile.
        let (rules, ttl_s, keeping, text) = {
            let agent = shared.agent();
            let (rules, ttl_s) = (agent.rules(user), agent.config().ttl_s);
            let keeping = self.keeper.next(&rules, ttl_s, now);
            let text = (keeping == Keeping::Write).then(|| agent.policy_file(&rules, now.clock));
            (rules, ttl_s, keeping, text)
        };
        let result = match (keeping, text) {
            (Keeping::Remove, _) => self.folder.remove_policy().map(|()| self.written = None),
            (Keeping::Write, Some(text)) => self.put(text),
            _ => return Steers::Yes,
        };
        shared.agent().count_write(user, result.is_ok());
        match result {
            Ok(()) => {
                self.keeper.done(keeping, &rules, ttl_s, now);
                Steers::Yes
            }
            Err(error) => Steers::No(format!(
                "\"{path}/policy\" {error}; jobs follow the last one until its time to live of {ttl_s} s is over"
            )),
        }
    }

    fn put(&mut self, text: String) -> Result<(), FolderError> {
        self.folder.put_policy(&text)?;
        self.written = Some(text);
        Ok(())
    }

    /// Writes the policy file once more, so that it holds for its whole time to live after the agent's end.
    pub(super) fn leave(&mut self, shared: &Shared) {
        if self.lock.is_none() || self.written.is_none() {
            return;
        }
        let text = {
            let agent = shared.agent();
            let rules = agent.rules(self.folder.owner());
            (!rules.is_empty()).then(|| agent.policy_file(&rules, shared.now().clock))
        };
        if let Some(Err(error)) = text.map(|text| self.put(text)) {
            log::say(&format!("\"{}/policy\" {error}", self.path()));
        }
    }
}

/// Returns true while orders wait for the first answer of a script ([`Agent::is_undecided`]).
fn is_undecided(shared: &Shared) -> bool {
    shared.agent().is_undecided()
}

impl Followed {
    fn new(is_old: bool) -> Self {
        let (process, presence) = (None, Presence::Unknown);
        Self { follower: Follower::default(), process, presence, checked: Instant::now(), is_old }
    }

    /// Looks at the file. Returns `None` if nothing is known of it yet.
    fn look(&mut self, folder: &Folder, name: &str, buffer: &mut Vec<u8>) -> Option<Seen> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match self.follower.look(folder, name, buffer) {
                Look::BeingWritten => {}
                Look::Refused(reason) => return Some(Seen::Refused(reason)),
                Look::Unchanged => return self.kept(),
                Look::Changed(snapshot) => {
                    let process = &snapshot.state.process;
                    if self.process.as_ref() != Some(process) || self.presence == Presence::Gone {
                        (self.process, self.presence) = (Some(process.clone()), process.presence());
                    }
                    self.checked = Instant::now();
                    return Some(Seen::Changed(snapshot, self.presence));
                }
            }
        }
        self.kept()
    }

    fn kept(&mut self) -> Option<Seen> {
        let process = self.process.as_ref()?;
        if self.checked.elapsed() >= LOOK_FOR {
            (self.presence, self.checked) = (process.presence(), Instant::now());
        }
        Some(Seen::Kept(self.presence))
    }
}
