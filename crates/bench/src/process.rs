//! The resources of this process, as /proc reports them: memory, descriptors, threads, and the processor time of each
//! thread.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// The resources that this process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Memory in use (its resident set), in bytes.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Those of them that are sockets.
    pub sockets: usize,
    /// Threads.
    pub threads: usize,
}

/// The processor time of one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadTime {
    /// Its name.
    pub name: String,
    /// The time that it ran on a processor.
    pub ran: Duration,
    /// The time that it was watched.
    pub watched: Duration,
}

impl Held {
    /// Returns the resources held now; zeros if /proc is missing.
    pub(crate) fn now() -> Self {
        let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        Self { memory: resident_bytes(), descriptors: descriptors(), sockets: sockets(), threads }
    }
}

/// Returns the memory of this process that is in use, in bytes; 0 if /proc is missing.
#[must_use]
pub fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0u64) * 1024
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    // One of the descriptors is that of the listing itself.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// Returns the number of sockets among them.
fn sockets() -> usize {
    let is_socket = |path: PathBuf| path.to_str().is_some_and(|path| path.starts_with("socket:"));
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(is_socket)).count()
}

/// Leaves everything idle for `time` and returns the processor time of each thread meanwhile.
pub(crate) fn left_alone(time: Duration) -> Vec<ThreadTime> {
    let begin = Instant::now();
    let before = thread_times();
    thread::sleep(time);
    let after = thread_times();
    let watched = begin.elapsed();
    let ran_before = |id: &str| before.iter().find(|(other, ..)| other == id).map_or(Duration::ZERO, |found| found.2);
    let mut threads: Vec<ThreadTime> = after
        .into_iter()
        .map(|(id, name, ran)| ThreadTime { ran: ran.saturating_sub(ran_before(&id)), name, watched })
        .collect();
    threads.sort_by(|a, b| b.ran.cmp(&a.ran).then_with(|| a.name.cmp(&b.name)));
    threads
}

/// Returns the ID, name and processor time of every thread of this process.
fn thread_times() -> Vec<(String, String, Duration)> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
            let ran = read("schedstat").and_then(|text| nanoseconds(&text)).or_else(|| ticks(&read("stat")?))?;
            let name = read("comm").unwrap_or_default().trim().to_owned();
            Some((task.file_name().to_string_lossy().into_owned(), name, ran))
        })
        .collect()
}

/// Parses the first number of `schedstat`: nanoseconds on a processor.
fn nanoseconds(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Parses numbers 14 and 15 of `stat`, user and system time, in ticks of 10 ms (proc(5); Linux reports 100 a second
/// everywhere except on Alpha and ia64).
fn ticks(stat: &str) -> Option<Duration> {
    // The name, in parentheses, may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut numbers = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Duration::from_millis(10 * (user + system)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_patience::until;

    #[test]
    fn both_of_the_kernels_forms_of_a_threads_time_are_parsed() {
        assert_eq!(nanoseconds("123456 789 12\n"), Some(Duration::from_nanos(123_456)));
        assert_eq!(nanoseconds(""), None);
        let stat = "17 (a name) of) S 1 2 3 4 5 6 7 8 9 10 250 3 0 0 20 0 1 0";
        assert_eq!(ticks(stat), Some(Duration::from_millis(2530)));
        assert_eq!(ticks("17 (short) S 1"), None);
    }

    #[test]
    fn a_thread_that_works_is_told_from_one_that_sleeps() {
        let times = |name: &str| thread_times().into_iter().find(|(_, other, _)| other == name).map(|found| found.2);
        let (give, wait) = std::sync::mpsc::channel::<()>();
        let sleeper = thread::Builder::new().name("sleeper".to_owned()).spawn(move || wait.recv()).unwrap();
        let worker = thread::Builder::new().name("worker".to_owned());
        let worker = worker
            .spawn(move || {
                until("20 ms of a processor", || times("worker").filter(|ran| *ran >= Duration::from_millis(20)))
            })
            .unwrap();
        let worked = worker.join().unwrap();
        let slept = thread_times().into_iter().find(|(_, name, _)| name == "sleeper").unwrap().2;
        drop(give);
        let _ = sleeper.join();
        assert!(worked > slept, "{worked:?} and {slept:?}");
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        assert!(resident_bytes() > 100_000 && descriptors() >= 3);
    }
}
