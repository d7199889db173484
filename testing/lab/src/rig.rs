//! The guests of a scenario with the cables between them.

use crate::cable::{Cable, Port};
use crate::guest::{Guest, Line, Plug};
use crate::scenario::Scenario;
use crate::site::Site;
use crate::step::{CableEnd, Deed, Loss, Rate, Shell, Silence};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The longest time for a guest to set up its ports.
const SET_UP_LIMIT: Duration = Duration::from_secs(60);

/// The longest time for a guest to report its state.
const STATE_LIMIT: Duration = Duration::from_secs(20);

/// The shell commands that report a guest's state: the processes that wait in the kernel and where, the counters of the
/// RDMA ports, the queues in front of the ports, and the kernel's last messages.
const TELL_STATE: &str = "\
cat /proc/loadavg
echo w > /proc/sysrq-trigger
for counter in /sys/class/infiniband/*/ports/1/hw_counters/*; do
    value=$(cat $counter)
    [ $value = 0 ] || echo $counter $value
done
rdma resource show qp
tc -s qdisc show
ip -s link show
cat /proc/interrupts /proc/softirqs
dmesg | tail -n 120
";

/// Running guests. Dropping this turns them off.
#[derive(Debug)]
pub(crate) struct Rig {
    guests: Vec<Guest>,
    cables: Vec<Cable>,
    ports: Vec<Port>,
    /// True if the guests are network namespaces.
    in_namespaces: bool,
}

impl Rig {
    /// Boots the guests and plugs in the cables. Log files go to the folder `logs`.
    pub(crate) fn boot(scenario: &Scenario, site: &Site, logs: &Path) -> Result<Self, String> {
        let ports = Port::all(&scenario.cables);
        let mut guests = Vec::with_capacity(scenario.guests);
        for guest in 0..scenario.guests {
            if scenario.namespaces {
                guests.push(Guest::inside_namespace(guest, &site.program, logs)?);
                continue;
            }
            let plugs: Vec<Plug> =
                ports.iter().filter(|port| port.guest == guest).map(|port| plug_of(site, &ports, *port)).collect();
            guests.push(Guest::boot(guest, site, scenario.memory_mib, &plugs, logs)?);
        }
        let rig = Self { guests, cables: scenario.cables.clone(), ports, in_namespaces: scenario.namespaces };
        rig.guests.iter().try_for_each(Guest::wait_ready)?;
        if scenario.namespaces {
            rig.plug_namespaces()?;
        }
        rig.each_guest(|port| port.set_up(scenario.namespaces) + &rig.cables[port.cable].shape(port, None))?;
        Ok(rig)
    }

    /// Joins namespaces by their cables.
    fn plug_namespaces(&self) -> Result<(), String> {
        for (cable, _) in self.cables.iter().enumerate() {
            let mut ends = self.ports.iter().filter(|port| port.cable == cable);
            let words = |port: &Port| {
                let (name, place) = (format!("eth{}", port.index), self.guests[port.guest].process().to_string());
                [name, "netns".to_owned(), place]
            };
            let mut command = Command::new("ip");
            command.args(["link", "add"]).args(ends.next().map(words).into_iter().flatten()).args(["type", "veth"]);
            if let Some(other) = ends.next() {
                command.args(["peer", "name"]).args(words(other));
            }
            let output = command.output().map_err(|error| format!("cannot run ip: {error}"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("cable {cable} cannot be made between namespaces: {}", said.trim()));
            }
        }
        Ok(())
    }

    /// Returns an error if a guest is gone.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.guests.iter().try_for_each(|guest| guest.line().check())
    }

    /// Asks every guest for its state, and writes it to files whose names begin with `log`.
    pub(crate) fn keep_state(&self, log: &Path) {
        for line in self.lines() {
            let told = line.shell(&format!("set +e\n{TELL_STATE}"), STATE_LIMIT).unwrap_or_else(|error| error);
            let file = PathBuf::from(format!("{}.state{}.log", log.display(), line.guest()));
            match fs::write(&file, told) {
                Ok(()) => eprintln!("  the state of guest {}: {}", line.guest(), file.display()),
                Err(error) => eprintln!("  cannot write {}: {error}", file.display()),
            }
        }
    }

    /// Returns the connection to a guest's processes.
    pub(crate) fn line(&self, guest: usize) -> &Arc<Line> {
        self.guests[guest].line()
    }

    /// Returns the connections to all guests' processes, in the order of the guests.
    pub(crate) fn lines(&self) -> Vec<Arc<Line>> {
        self.guests.iter().map(|guest| Arc::clone(guest.line())).collect()
    }

    /// Returns the original rates of all cables in Mbit/s, 0 for a cable without one.
    pub(crate) fn rates(&self) -> Vec<f64> {
        self.cables.iter().map(|cable| cable.rate().unwrap_or(0.0)).collect()
    }

    /// Carries out a step on cables, ports and guests; killing a rank is not the rig's work.
    pub(crate) fn carry_out(&self, deed: Deed) -> Result<(), String> {
        let here = |end: CableEnd| move |port: Port| (port.cable, port.guest) == (end.cable, end.guest);
        match deed {
            Deed::Kill(_) => Ok(()),
            Deed::Loss(Loss { cable, percent }) => {
                self.at(|port| port.cable == cable, |port| self.cables[cable].shape(port, Some(percent)))
            }
            Deed::Down(end) => self.plug(here(end), false),
            Deed::Up(end) => self.plug(here(end), true),
            Deed::Silence(Silence { cable, from, only }) => {
                let is_meant = |port: Port| port.cable == cable && from.is_none_or(|guest| port.guest != guest);
                self.at(is_meant, |port| port.drop_packets(only))
            }
            Deed::Rate(Rate { cable, mbit }) => {
                self.at(|port| port.cable == cable, |port| self.cables[cable].change_rate(port, mbit))
            }
            Deed::Shell(Shell { guest, line }) => {
                let lines = self.lines();
                lines[guest].shell(&line, SET_UP_LIMIT).map(drop)
            }
            Deed::Restore(cable) => {
                self.plug(|port| port.cable == cable, true)?;
                self.at(|port| port.cable == cable, |port| self.cables[cable].shape(port, None))
            }
        }
    }

    /// Restores every cable to its original state.
    pub(crate) fn restore(&self) -> Result<(), String> {
        self.plug(|_| true, true)?;
        self.each_guest(|port| self.cables[port.cable].shape(port, None))
    }

    /// Plugs cables in at the ports that `is_meant` selects, or pulls them there. The other end notices nothing.
    fn plug(&self, is_meant: impl Fn(Port) -> bool, plugged_in: bool) -> Result<(), String> {
        if self.in_namespaces {
            return self.at(is_meant, |port| port.switch(plugged_in));
        }
        let mut meant = self.ports.iter().copied().filter(|port| is_meant(*port));
        meant.try_for_each(|port| self.guests[port.guest].plug(port.index, plugged_in))
    }

    fn each_guest(&self, commands: impl Fn(Port) -> String) -> Result<(), String> {
        self.at(|_| true, commands)
    }

    /// Runs the commands for the ports that `is_meant` selects, in all guests at the same time.
    fn at(&self, is_meant: impl Fn(Port) -> bool, commands: impl Fn(Port) -> String) -> Result<(), String> {
        let of = |guest: usize| -> String {
            let meant = self.ports.iter().copied().filter(|port| port.guest == guest && is_meant(*port));
            meant.map(&commands).collect()
        };
        let all: Vec<(Arc<Line>, String)> = self
            .lines()
            .into_iter()
            .map(|line| {
                let commands = of(line.guest());
                (line, commands)
            })
            .collect();
        thread::scope(|scope| {
            let meant = all.iter().filter(|(_, commands)| !commands.is_empty());
            let threads: Vec<_> =
                meant.map(|(line, commands)| scope.spawn(|| line.shell(commands, SET_UP_LIMIT).map(drop))).collect();
            let mut ends = threads.into_iter().map(thread::ScopedJoinHandle::join);
            ends.try_for_each(|end| end.unwrap_or_else(|_| Err("a thread of the lab panicked".to_owned())))
        })
    }
}

/// Returns the plug of a port. The guests at both ends of a cable know its two sockets.
fn plug_of(site: &Site, ports: &[Port], port: Port) -> Plug {
    let socket = |guest: usize| site.scratch.join(format!("cable{}.{guest}", port.cable)).display().to_string();
    let other = ports.iter().find(|other| other.cable == port.cable && other.guest != port.guest);
    Plug { here: socket(port.guest), there: other.map(|other| socket(other.guest)), mac: port.mac() }
}
