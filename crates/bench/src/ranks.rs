//! Ranks as processes: the parent starts them, relays between them, and learns how each ended; a rank does not outlive
//! its parent by more than about ten seconds.

use crate::bootstrap::{BootstrapError, Event, Link, Relay};
use crate::error::RAN_OUT;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// The time that a rank may take to end after it was told to stop, or after its socket closed.
const GRACE: Duration = Duration::from_secs(10);

/// The running processes, one per rank. Dropping this kills those that still run.
#[derive(Debug)]
pub struct Ranks {
    children: Vec<Child>,
    relay: Relay,
}

impl Ranks {
    /// Starts `ranks` processes. `command` returns the program, arguments and environment of each; its standard input
    /// becomes the socket to the parent, and its standard output goes to the parent's standard error. `job` is sent to
    /// every rank.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn spawn(ranks: usize, job: &[u8], mut command: impl FnMut(usize) -> Command) -> Result<Self, RanksError> {
        let mut children = Children(Vec::with_capacity(ranks));
        let mut streams = Vec::with_capacity(ranks);
        for rank in 0..ranks {
            let mut start = || -> io::Result<(UnixStream, Child)> {
                let (ours, theirs) = UnixStream::pair()?;
                let output = io::stderr().as_fd().try_clone_to_owned()?;
                let mut command = command(rank);
                let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(output).spawn()?;
                Ok((ours, child))
            };
            let (stream, child) = start().map_err(|error| RanksError::Spawn { rank, reason: error.to_string() })?;
            streams.push(stream);
            children.0.push(child);
        }
        let relay = Relay::start(streams, job).map_err(|error| RanksError::Relay { reason: error.to_string() })?;
        Ok(Self { children: std::mem::take(&mut children.0), relay })
    }

    /// Relays until all ranks have ended, and passes every report to `on_report`. If a rank fails, or no rank sends
    /// anything for `silence`, all ranks are told to stop, and those that do not are killed.
    ///
    /// # Errors
    /// If ranks fail: their failures, the likely cause first.
    pub fn run(mut self, silence: Duration, mut on_report: impl FnMut(usize, &[u8])) -> Result<(), RanksError> {
        let mut open = vec![true; self.children.len()];
        let mut reasons: Vec<Option<Reason>> = vec![None; self.children.len()];
        let mut stopping: Option<Instant> = None;
        let mut silent = false;
        while open.contains(&true) {
            let wait = stopping.map_or(silence, |since| GRACE.saturating_sub(since.elapsed()));
            match self.relay.next_event(wait) {
                Some(Event::Report { rank, body }) => on_report(rank, &body),
                Some(Event::Failed { rank, reason }) => {
                    let order = match stopping {
                        Some(_) => CONSEQUENCE,
                        None if reason.starts_with(RAN_OUT) => OUT_OF_TIME,
                        None => OWN_ERROR,
                    };
                    reasons[rank].get_or_insert(Reason { order, text: format!("rank {rank}: {reason}") });
                }
                Some(Event::Closed { rank }) => open[rank] = false,
                None if stopping.is_some() => break,
                None => silent = true,
            }
            let failed = silent || reasons.iter().any(Option::is_some) || self.has_bad_end(&open);
            if failed && stopping.is_none() {
                stopping = Some(Instant::now());
                self.relay.abort("another rank failed");
            }
        }
        let mut failures = Vec::new();
        for (rank, (child, reason)) in self.children.iter_mut().zip(reasons).enumerate() {
            if open[rank] {
                // This fails only for a process that has ended.
                let _ = child.kill();
                let text = format!("rank {rank} did not stop when told to, and its parent killed it");
                failures.push(Reason { order: CONSEQUENCE, text });
            } else {
                failures.extend(bad_end(rank, end(child), reason));
            }
        }
        failures.sort_by_key(|failure| failure.order);
        let ranks = failures.iter().map(|failure| failure.text.as_str()).collect::<Vec<_>>().join("; ");
        if silent {
            return Err(RanksError::Silent { seconds: silence.as_secs_f64(), ranks });
        }
        if failures.is_empty() { Ok(()) } else { Err(RanksError::Failed { ranks }) }
    }

    /// Returns true if a rank whose socket is closed ended with a failure.
    fn has_bad_end(&mut self, open: &[bool]) -> bool {
        let closed = self.children.iter_mut().zip(open).filter(|(_, open)| !**open);
        closed.map(|(child, _)| end(child)).any(|status| !status.is_some_and(|status| status.success()))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        drop(Children(std::mem::take(&mut self.children)));
    }
}

/// Kills and reaps its processes when dropped.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only for a process that has ended and was waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for a process that is about to end, and kills it if it does not. Returns `None` if waiting fails.
fn end(child: &mut Child) -> Option<ExitStatus> {
    let since = Instant::now();
    while since.elapsed() < GRACE {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
    child.kill().and_then(|()| child.wait()).ok()
}

/// The failure of one rank.
#[derive(Clone, Debug)]
struct Reason {
    /// Sorts the likely cause first: one of the constants below.
    order: u8,
    text: String,
}

/// A signal that killed the rank: from outside, or by its own crash.
const SIGNAL: u8 = 0;
/// An error that the rank found itself.
const OWN_ERROR: u8 = 1;
/// A wait that took too long, possibly because of another rank's error.
const OUT_OF_TIME: u8 = 2;
/// An error after all ranks were told to stop.
const CONSEQUENCE: u8 = 3;

/// Returns the failure of a rank whose process has ended; `None` if it succeeded.
fn bad_end(rank: usize, status: Option<ExitStatus>, reason: Option<Reason>) -> Option<Reason> {
    if let Some(signal) = status.and_then(|status| status.signal()) {
        let text = format!("rank {rank} was killed by signal {signal} ({})", signal_name(signal));
        return Some(Reason { order: SIGNAL, text });
    }
    reason.or_else(|| match status.map(|status| status.code()) {
        Some(Some(0)) => None,
        Some(Some(code)) => Some(Reason { order: OWN_ERROR, text: format!("rank {rank} ended with status {code}") }),
        _ => Some(Reason { order: OWN_ERROR, text: format!("rank {rank} ended in an unknown way") }),
    })
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => "see signal(7)",
    }
}

/// Runs a rank's process: opens the link on standard input, does the work, and tells the parent of an error. If the
/// parent dies, the process ends within about ten seconds, even inside a call that never returns.
pub fn serve<E: Display>(work: impl FnOnce(&mut Link) -> Result<(), E>) -> ExitCode {
    let link = io::stdin().as_fd().try_clone_to_owned().map_err(BootstrapError::from);
    let mut link = match link.and_then(|socket| Link::open(UnixStream::from(socket))) {
        Ok(link) => link,
        Err(error) => {
            eprintln!("railweave: only railweave itself may run this subcommand: {error}");
            return ExitCode::FAILURE;
        }
    };
    let orphaned = link.orphaned_flag();
    thread::spawn(move || {
        while !orphaned.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(200));
        }
        thread::sleep(GRACE);
        std::process::exit(1);
    });
    match work(&mut link) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // This fails only if the parent is gone, and then nobody reads the error.
            let _ = link.fail(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// An error of ranks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RanksError {
    /// A process could not be started.
    #[error("the process of rank {rank} could not be started: {reason}; check the limits of this user")]
    Spawn {
        /// The rank.
        rank: usize,
        /// The kernel's message.
        reason: String,
    },
    /// The relay could not be started.
    #[error("the relay between the ranks could not be started: {reason}")]
    Relay {
        /// The kernel's message.
        reason: String,
    },
    /// Ranks failed.
    #[error("{ranks}")]
    Failed {
        /// The ranks and their failures, the likely cause first.
        ranks: String,
    },
    /// No rank said anything for too long.
    #[error(
        "no rank reported anything for {seconds} s, so all were stopped; the plugin may hang inside a call: {ranks}"
    )]
    Silent {
        /// The length of the silence.
        seconds: f64,
        /// The ranks and their failures, the likely cause first.
        ranks: String,
    },
}
