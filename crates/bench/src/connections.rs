//! Many connections at once between two ranks: how long they take to come up, what memory they take, and what they cost
//! while nobody uses them.
//!
//! All of them lead from rank 0 to rank 1, so that what one rank takes is what that kind of end takes.

use crate::bootstrap::Link;
use crate::communicator::CommunicatorError;
use crate::ends::{self, Ends, all};
use crate::messages::Messages;
use crate::pair::slower;
use crate::patience::Patience;
use railweave_nccl_host::net::{NetApi, NetError, Part, Registration, Request};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on both ranks.
    pub device: i32,
    /// How many connections.
    pub connections: usize,
    /// The size of the one message that each of them carries, a multiple of 4.
    pub message_bytes: usize,
    /// How long to leave them alone afterwards; nothing of it is measured when this is zero.
    pub idle: Duration,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// What one rank measured. The times are those of the slower rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// From the first listen until every connection is there.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all were checked.
    pub messages: Duration,
    /// Memory in use by this process (its resident set) before the first listen, in bytes. The messages' own memory is in it.
    pub memory_before: u64,
    /// Memory in use with every connection used once, in bytes.
    pub memory_after: u64,
    /// Open descriptors before the first listen.
    pub descriptors_before: usize,
    /// Open descriptors with every connection there.
    pub descriptors_after: usize,
    /// What each thread of this process took while the connections were left alone.
    pub idle: Vec<ThreadTime>,
}

/// The processor time of one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadTime {
    /// Its name.
    pub name: String,
    /// How long it ran on a processor.
    pub ran: Duration,
    /// How long it was watched.
    pub watched: Duration,
}

/// Both ranks of `link` call this together. `progress` is told what begins.
///
/// # Errors
/// As a communicator's calls; when a message is not what was sent; and when there are not exactly two ranks.
pub fn run<N: NetApi>(
    net: &N,
    link: &mut Link,
    settings: &Settings,
    mut progress: impl FnMut(&mut Link, &str),
) -> Result<Results, CommunicatorError> {
    ends::check_ranks(link, "a measurement of many connections")?;
    let abort = link.abort_flag();
    let mut patience = Patience::new(link.rank(), settings.stall, &abort);
    let (bytes, count) = (settings.message_bytes, settings.connections);
    let messages = if link.rank() == 0 { Messages::from(0, bytes, count) } else { Messages::room(bytes, count) };
    progress(link, &format!("set-up of {} connections", settings.connections));
    let (memory_before, descriptors_before) = (resident_bytes(), descriptors());
    link.barrier()?;
    let begin = Instant::now();
    let (ends, _) = Ends::open(net, link, settings.device, settings.connections, 0, &mut patience)?;
    let set_up = slower(link, begin.elapsed())?;
    let descriptors_after = descriptors();
    progress(link, "one message on each");
    let begin = Instant::now();
    let registrations = register(net, &ends, &messages)?;
    link.barrier()?;
    transfer(net, &ends, &messages, &registrations, &mut patience)?;
    if link.rank() == 1 {
        messages.check(0..count, 0)?;
    }
    let carried = slower(link, begin.elapsed())?;
    let memory_after = resident_bytes();
    let mut idle = Vec::new();
    if !settings.idle.is_zero() {
        progress(link, &format!("{} s without any call", settings.idle.as_secs_f64()));
        link.barrier()?;
        idle = left_alone(settings.idle);
    }
    link.barrier()?;
    deregister(net, &ends, registrations)?;
    ends.close(net)?;
    Ok(Results { set_up, messages: carried, memory_before, memory_after, descriptors_before, descriptors_after, idle })
}

/// Registers each connection's message for it.
fn register<N: NetApi>(net: &N, ends: &Ends, messages: &Messages) -> Result<Vec<Registration>, NetError> {
    // SAFETY: the messages' memory outlives the connections, which end the registrations at the latest.
    let register = |(index, comm)| unsafe { net.reg_mr(comm, messages.start(index), messages.bytes()) };
    ends.comms().into_iter().enumerate().map(register).collect()
}

/// Starts the message of every connection, then tests all until all are done.
fn transfer<N: NetApi>(
    net: &N,
    ends: &Ends,
    messages: &Messages,
    registrations: &[Registration],
    patience: &mut Patience<'_>,
) -> Result<(), CommunicatorError> {
    let requests: Vec<Request> = match ends {
        Ends::Send(comms) => all(comms.len(), patience, "a receive for a send", |index| {
            let (start, registration) = (messages.start(index), registrations[index]);
            // SAFETY: the message lies inside its registration and stays until the connection is closed.
            unsafe { net.isend(&comms[index], start, messages.bytes(), 0, registration) }
        })?,
        Ends::Recv(comms) => all(comms.len(), patience, "room for a receive", |index| {
            let registration = registrations[index];
            let part = Part { data: messages.start(index), bytes: messages.bytes(), tag: 0, registration };
            // SAFETY: as for a send.
            unsafe { net.irecv(&comms[index], &[part], false) }
        })?,
    };
    all(requests.len(), patience, "the end of a message", |index| {
        // SAFETY: `all` asks no more once the answer was yes.
        Ok(unsafe { net.test(&requests[index], None) }?.then_some(()))
    })?;
    Ok(())
}

fn deregister<N: NetApi>(net: &N, ends: &Ends, registrations: Vec<Registration>) -> Result<(), NetError> {
    ends.comms().into_iter().zip(registrations).try_for_each(|(comm, registration)| {
        // SAFETY: made in `register` for this connection.
        unsafe { net.dereg_mr(comm, registration) }
    })
}

/// The memory of this process that is in use, in bytes; 0 where /proc is missing.
pub(crate) fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0u64) * 1024
}

/// The open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    // One of them is the one that lists them.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// Leaves everything alone for `time` and says what each thread did meanwhile.
fn left_alone(time: Duration) -> Vec<ThreadTime> {
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

/// Number, name and processor time of every thread of this process.
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

/// The first number of `schedstat`: nanoseconds on a processor.
fn nanoseconds(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The numbers 14 and 15 of `stat`, user and system time, in ticks of 10 ms (proc(5); Linux reports 100 a second
/// everywhere but on Alpha and ia64).
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
    fn the_kernels_two_ways_to_tell_a_threads_time_are_read() {
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
