//! Two network namespaces, joined by one cable (a veth pair) for each rail, slowed if a measurement asks for that. The
//! programs of iproute2 make them.
//!
//! A process of its own removes them when this one ends, even by a signal: it waits for the end of a pipe. Names hold
//! the id of the process that made the namespaces, so that those which a dead process left behind are recognised.

use crate::shape::{Course, Shape};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The hidden subcommand that removes the namespaces of a process.
pub(crate) const SUBCOMMAND: &str = "remove-namespaces";

/// The beginning of every name.
const PREFIX: &str = "railweave-";
/// The largest packet on a cable in bytes: headers then take less than 1 % of it.
const MTU: &str = "9000";
/// The time in which all cables must be up.
const UP_LIMIT: Duration = Duration::from_secs(10);

/// The two namespaces. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct Namespaces {
    names: [String; 2],
    /// The number of rails.
    rails: usize,
    /// The highest speed of each rail in the whole course; empty if they are not slowed.
    highest: Vec<u32>,
    remover: Child,
}

impl Namespaces {
    /// Makes the namespaces, with cables of the course's first speeds. Removes first the namespaces that dead processes
    /// left behind.
    ///
    /// # Errors
    /// If this process is not root, iproute2 is missing, or the kernel refuses something.
    pub(crate) fn make(course: &Course) -> Result<Self, String> {
        if !is_root() {
            return Err("slowed rails need root, to make network namespaces; try the same command with sudo".into());
        }
        let mut namespaces = Self::with_cables(course.first.speeds().len())?;
        namespaces.highest = course.highest();
        namespaces.slow("add", &course.first)?;
        namespaces.wait()?;
        Ok(namespaces)
    }

    /// Makes the namespaces, with this number of cables that are as fast as this machine.
    ///
    /// # Errors
    /// As for [`Self::make`].
    pub(crate) fn unslowed(rails: usize) -> Result<Self, String> {
        let namespaces = Self::with_cables(rails)?;
        namespaces.wait()?;
        Ok(namespaces)
    }

    /// Makes namespaces with cables whose ports are about to come up.
    fn with_cables(rails: usize) -> Result<Self, String> {
        for owner in remove_abandoned(None)? {
            eprintln!("railweave: removed the network namespaces that process {owner} left behind");
        }
        let owner = std::process::id();
        let names = [0, 1].map(|side| format!("{PREFIX}{owner}-{side}"));
        let namespaces = Self { names, rails, highest: Vec::new(), remover: remover(owner)? };
        for name in &namespaces.names {
            command("ip", &["netns", "add", name])?;
            command("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        let [first, second] = &namespaces.names;
        for rail in 0..rails {
            let cable = cable(rail);
            let ends = ["link", "add", &cable, "mtu", MTU, "netns", first, "type", "veth"];
            let peer = ["peer", "name", &cable, "mtu", MTU, "netns", second];
            command("ip", &[&ends[..], &peer].concat())?;
            for (side, name) in namespaces.names.iter().enumerate() {
                let address = format!("{}/30", Self::addresses(rail)[side]);
                command("ip", &["-n", name, "address", "add", &address, "dev", &cable])?;
                command("ip", &["-n", name, "link", "set", &cable, "up"])?;
            }
        }
        Ok(namespaces)
    }

    /// Waits until the kernel says that all cables are up, which it does a little after both their ends are.
    fn wait(&self) -> Result<(), String> {
        let begin = Instant::now();
        for name in &self.names {
            loop {
                let cables = command("ip", &["-n", name, "-o", "link", "show", "type", "veth"])?;
                if cables.lines().filter(|line| line.contains("state UP")).count() == self.rails {
                    break;
                }
                if begin.elapsed() > UP_LIMIT {
                    return Err(format!(
                        "the cables between network namespaces are not up after {UP_LIMIT:?}; try again on a machine \
                         with less load"
                    ));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    /// Returns the names of both.
    pub(crate) fn names(&self) -> &[String; 2] {
        &self.names
    }

    /// Returns the addresses of the rails, as a list of ranges with commas between.
    pub(crate) fn ranges(&self) -> String {
        (0..self.rails).map(|rail| format!("10.231.{rail}.0/30")).collect::<Vec<_>>().join(",")
    }

    /// Gives the cables other speeds.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn reshape(&self, shape: &Shape) -> Result<(), String> {
        self.slow("change", shape)
    }

    /// Returns the addresses of a rail's two ends.
    pub(crate) fn addresses(rail: usize) -> [String; 2] {
        [1, 2].map(|end| format!("10.231.{rail}.{end}"))
    }

    /// Takes the port of a rail in the first namespace up or down. Its other port then has no carrier either.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn switch(&self, rail: usize, up: bool) -> Result<(), String> {
        let state = if up { "up" } else { "down" };
        command("ip", &["-n", &self.names[0], "link", "set", &cable(rail), state]).map(drop)
    }

    /// Slows both ends of each cable.
    fn slow(&self, action: &str, shape: &Shape) -> Result<(), String> {
        for (rail, (speed, highest)) in shape.speeds().iter().zip(&self.highest).enumerate() {
            let (cable, [rate, burst, limit]) = (cable(rail), shaper(*speed, *highest));
            for name in &self.names {
                let place = ["-n", name, "qdisc", action, "dev", &cable, "root", "tbf"];
                let values = ["rate", &rate, "burst", &burst, "limit", &limit];
                command("tc", &[&place[..], &values].concat())?;
            }
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        // This fails only if the process was already waited for.
        let _ = self.remover.wait();
    }
}

/// Returns true if this process may make namespaces, as far as its user decides that.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the name of a rail's interface in both namespaces, which is that of its port.
pub(crate) fn cable(rail: usize) -> String {
    format!("rail{rail}")
}

/// Returns the rate, the burst and the limit of a token bucket (tc-tbf(8)) for a speed in Mbit/s of a rail that has
/// this highest speed. The burst lasts 1 ms at that speed, which timers can keep up with, but has at least 32 KiB. It
/// stays as it is when the speed changes: a packet in the queue that is larger than the burst never leaves it. The
/// queue holds 100 ms more, and at least 128 KiB: TCP gives it packets of up to 64 KiB.
fn shaper(speed: u32, highest: u32) -> [String; 3] {
    let bytes_per_ms = |speed: u32| u64::from(speed) * 1_000_000 / 8 / 1000;
    let burst = bytes_per_ms(highest).max(32 << 10);
    let limit = burst + (100 * bytes_per_ms(speed)).max(128 << 10);
    [format!("{speed}mbit"), burst.to_string(), limit.to_string()]
}

/// Starts the process that removes the namespaces of `owner` when its standard input ends. It is in a process group of
/// its own, because Ctrl-C ends the whole group of this process.
fn remover(owner: u32) -> Result<Child, String> {
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([SUBCOMMAND, &owner.to_string()]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.process_group(0).spawn()
    };
    start().map_err(|error| format!("the process that removes the network namespaces cannot be started: {error}"))
}

/// Waits for the end of standard input, then removes the namespaces of `owner`.
pub(crate) fn remove_at_end_of_input(owner: u32) -> Result<(), String> {
    // An error ends the input too.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    remove_abandoned(Some(owner)).map(drop)
}

/// Removes the namespaces of processes that are dead, and those of `ended`. Returns the processes whose namespaces were
/// found, each once.
fn remove_abandoned(ended: Option<u32>) -> Result<Vec<u32>, String> {
    let mut owners = Vec::new();
    for line in command("ip", &["netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let Some(owner) = owner(name) else { continue };
        if ended == Some(owner) || !Path::new(&format!("/proc/{owner}")).exists() {
            // If another process removes it at the same time, this fails, and it is gone all the same.
            let _ = command("ip", &["netns", "delete", name]);
            owners.push(owner);
        }
    }
    owners.dedup();
    Ok(owners)
}

/// Returns the process that made the namespace with this name; `None` if it is not one of ours.
fn owner(name: &str) -> Option<u32> {
    let (owner, side) = name.strip_prefix(PREFIX)?.split_once('-')?;
    owner.parse().ok().filter(|_| side == "0" || side == "1")
}

/// Runs a program of iproute2 and returns its standard output.
fn command(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "network namespaces need the program {program}, which is not on the PATH; add /usr/sbin to it, or install \
             the package iproute2"
        ),
        _ => format!("{program} cannot be run: {error}"),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(format!(
        "network namespaces cannot be made: \"{program} {}\" says: {said}; it needs root with CAP_SYS_ADMIN and \
         CAP_NET_ADMIN, and a kernel with veth and sch_tbf",
        words.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("railweave-17-0"), Some(17));
        assert_eq!(owner("railweave-17-1"), Some(17));
        for other in ["railweave-17-2", "railweave--0", "railweave-x-0", "railweave-17", "host0", ""] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn a_shaper_has_a_short_burst_and_a_queue_of_a_tenth_of_a_second() {
        assert_eq!(shaper(800, 800), ["800mbit", "100000", "10100000"]);
        assert_eq!(shaper(200, 800), ["200mbit", "100000", "2600000"]);
        assert_eq!(shaper(80, 80), ["80mbit", "32768", "1032768"]);
        assert_eq!(shaper(1, 80), ["1mbit", "32768", "163840"]);
        assert_eq!(shaper(100_000, 100_000), ["100000mbit", "12500000", "1262500000"]);
    }
}
