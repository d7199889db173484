//! The process that a file is about: its facts, and the answer to whether it still runs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::layout::places;

/// The variables with the id of a job: of Slurm, torchrun and Open MPI. The first that is set wins.
const JOB_VARIABLES: [&str; 4] = ["SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];

/// The facts about a process that do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its random id, which names its file.
    pub id: [u8; 16],
    /// Its process id on this host.
    pub pid: u32,
    /// The time of its start, in clock ticks since the host's start (field 22 of /proc/PID/stat).
    pub start_ticks: Option<u64>,
    /// The random id of the host's run (/proc/sys/kernel/random/boot_id).
    pub boot_id: Option<[u8; 16]>,
    /// The inode of its namespace of process ids: `pid` has a meaning only in there.
    pub pid_namespace: Option<u64>,
    /// The host's name.
    pub host: String,
    /// Its rank in the job, if known.
    pub rank: Option<u32>,
    /// The number of ranks in the job, if known.
    pub world: Option<u32>,
    /// The id of the job; empty if unknown.
    pub job: String,
    /// The variable with the id of the job.
    pub job_variable: String,
    /// The version of the library.
    pub version: String,
}

places! {
    Process {
        56..72 => id, 72..76 => pid, 76..80 => rank, 80..84 => world, 88..96 => start_ticks, 96..112 => boot_id,
        112..120 => pid_namespace, 120..184 => host, 184..216 => version, 216..248 => job_variable, 248..376 => job,
    }
}

impl Process {
    /// Returns the facts about this process, from /proc and from the variables that `lookup` returns. A fact that
    /// cannot be found is unknown.
    pub fn of_this_process(
        id: [u8; 16],
        rank: Option<u32>,
        world: Option<u32>,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let set = |name| lookup(name).filter(|value| !value.is_empty()).map(|value| (name, value));
        let job = JOB_VARIABLES.into_iter().find_map(set);
        let pid = std::process::id();
        Self {
            id,
            pid,
            start_ticks: start_ticks(pid),
            boot_id: boot_id(),
            pid_namespace: pid_namespace(),
            host: fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            rank,
            world,
            job: job.as_ref().map(|(_, value)| value.to_string_lossy().into_owned()).unwrap_or_default(),
            job_variable: job.map(|(name, _): (&str, _)| name.to_owned()).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Returns the answer to whether the process still runs, seen from the process that calls.
    pub fn presence(&self) -> Presence {
        match (self.boot_id, boot_id()) {
            (Some(theirs), Some(ours)) if theirs == ours => {}
            // The folder may be shared between hosts, so another run of a kernel is no proof that the process ended.
            (Some(_), Some(_)) if !self.is_host() => return Presence::Unknown,
            (Some(_), Some(_)) => return Presence::Gone,
            _ => return Presence::Unknown,
        }
        if self.pid_namespace.is_none() || self.pid_namespace != pid_namespace() || self.start_ticks.is_none() {
            return Presence::Unknown;
        }
        if start_ticks(self.pid) == self.start_ticks { Presence::Running } else { Presence::Gone }
    }

    fn is_host(&self) -> bool {
        fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|host| host.trim() == self.host)
    }
}

/// The answer to whether a process still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It runs.
    Running,
    /// It has ended.
    Gone,
    /// It cannot be seen from here: it belongs to another container or host.
    Unknown,
}

/// Returns the start of a process in clock ticks: field 22 of proc(5)'s stat.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, which may itself have spaces and parentheses; the third follows.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    // A process that has ended but was not waited for yet runs no more.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn boot_id() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|facts| facts.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(variables: &[(&str, &str)]) -> Process {
        let lookup = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value))
        };
        Process::of_this_process([7; 16], Some(3), None, lookup)
    }

    #[test]
    fn the_job_is_that_of_the_first_variable() {
        let process = here(&[("TORCHELASTIC_RUN_ID", "run"), ("SLURM_JOB_ID", "4711")]);
        assert_eq!((&*process.job, &*process.job_variable), ("4711", "SLURM_JOB_ID"));
        let process = here(&[("PMIX_NAMESPACE", "prterun-1"), ("SLURM_JOB_ID", "")]);
        assert_eq!((&*process.job, &*process.job_variable), ("prterun-1", "PMIX_NAMESPACE"));
        assert_eq!(here(&[]).job, "");
    }

    #[test]
    fn a_process_is_there_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process { pid: child.id(), start_ticks: start_ticks(child.id()), ..here(&[]) };
        assert_eq!(process.presence(), Presence::Running);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.presence(), Presence::Gone);
        assert_eq!(here(&[]).presence(), Presence::Running);
    }

    #[test]
    fn an_equal_pid_is_not_enough() {
        let own = here(&[]);
        let later = Process { start_ticks: own.start_ticks.map(|ticks| ticks + 1), ..own.clone() };
        assert_eq!(later.presence(), Presence::Gone);
        let before_boot = Process { boot_id: Some([1; 16]), ..own.clone() };
        assert_eq!(before_boot.presence(), Presence::Gone);
        let elsewhere = Process { boot_id: Some([1; 16]), host: "elsewhere".into(), ..own.clone() };
        assert_eq!(elsewhere.presence(), Presence::Unknown);
        let contained = Process { pid_namespace: Some(1), ..own };
        assert_eq!(contained.presence(), Presence::Unknown);
    }
}
