//! The network interfaces below /sys/class/net.

use std::path::{Path, PathBuf};

use crate::counter::Counter;
use crate::file::{Entry, Reader, entries};
use crate::kind::Origin;
use crate::link::{PcieFiles, rate_of_speed};
use crate::private::{Places, Private};
use crate::reading::{Fabric, PortReading};
use crate::values::Values;

/// `ARPHRD_LOOPBACK` of include/uapi/linux/if_arp.h, in an interface's file `type`.
const LOOPBACK: &str = "772";

/// All network interfaces but the loopback.
#[derive(Debug)]
pub(crate) struct Interfaces {
    directory: PathBuf,
    /// The directory's entries when it was listed.
    entries: Vec<Entry>,
    interfaces: Vec<Interface>,
    private: Private,
}

/// A network interface and the files that are read of it.
#[derive(Debug)]
struct Interface {
    name: String,
    /// True if it has an adapter, unlike bridges, bonds, and the veths of containers.
    is_physical: bool,
    operstate: PathBuf,
    carrier: PathBuf,
    speed: PathBuf,
    pcie: PcieFiles,
    counters: Vec<(Counter, PathBuf)>,
    places: Option<Places>,
    /// The private statistics of the last reading, for its RDMA port.
    private: Values,
}

impl Interfaces {
    pub(crate) fn new(root: &Path) -> Self {
        let directory = root.join("sys/class/net");
        Self { directory, entries: Vec::new(), interfaces: Vec::new(), private: Private::new(root) }
    }

    /// Lists the interfaces again if one came, went or got a name, and always if `is_due`. Returns true if it did.
    pub(crate) fn list(&mut self, is_due: bool, reader: &mut Reader) -> bool {
        let entries = entries(&self.directory);
        if entries == self.entries && !is_due {
            return false;
        }
        // The directory also has files: bonding_masters.
        let is_interface = |entry: &&Entry| entry.name != "lo" && self.directory.join(&entry.name).is_dir();
        self.interfaces = entries
            .iter()
            .filter(is_interface)
            .map(|entry| Interface::new(&self.directory, &entry.name))
            .filter(|interface| reader.text(&interface.operstate.with_file_name("type")) != Some(LOOPBACK))
            .collect();
        self.entries = entries;
        true
    }

    /// Reads the interfaces of adapters, and of the others those that are used.
    pub(crate) fn read(&mut self, reader: &mut Reader, is_used: &dyn Fn(&str) -> bool) -> Vec<PortReading> {
        let wanted = self.interfaces.iter_mut().filter(|interface| interface.is_physical || is_used(&interface.name));
        let readings = wanted.map(|interface| interface.read(&mut self.private, reader));
        readings.filter(|reading| !reading.is_empty()).collect()
    }

    /// Returns the private statistics of an interface at the last reading.
    pub(crate) fn private(&self, name: &str) -> Option<&Values> {
        self.interfaces.iter().find(|interface| interface.name == name).map(|interface| &interface.private)
    }
}

impl Interface {
    fn new(directory: &Path, name: &str) -> Self {
        let directory = directory.join(name);
        let statistics = directory.join("statistics");
        let files = Counter::ALL.iter().flat_map(|counter| counter.origins().iter().map(|origin| (*counter, *origin)));
        let counters = files.filter_map(|(counter, origin)| match origin {
            Origin::Interface(file) => Some((counter, statistics.join(file))),
            _ => None,
        });
        Self {
            name: name.to_owned(),
            is_physical: directory.join("device").exists(),
            operstate: directory.join("operstate"),
            carrier: directory.join("carrier"),
            speed: directory.join("speed"),
            pcie: PcieFiles::new(&directory.join("device")),
            counters: counters.collect(),
            places: None,
            private: Values::new(),
        }
    }

    fn read(&mut self, private: &mut Private, reader: &mut Reader) -> PortReading {
        self.private.clear();
        private.read(&self.name, &mut self.places, reader, &mut self.private);
        let mut values = Values::new();
        for (counter, file) in &self.counters {
            if let Some(value) = reader.number(file) {
                values.add(*counter, value);
            }
        }
        values.fill(&self.private);
        PortReading {
            name: self.name.clone(),
            fabric: Fabric::Tcp,
            is_up: self.is_up(reader),
            state_id: None,
            physical_state_id: None,
            rate: reader.text(&self.speed).and_then(rate_of_speed),
            width: None,
            pcie: self.pcie.read(reader),
            interface: None,
            counters: values.to_vec(),
        }
    }

    /// Returns true if packets get through. Drivers that do not keep `operstate` leave it unknown
    /// (Documentation/ABI/testing/sysfs-class-net).
    fn is_up(&self, reader: &mut Reader) -> Option<bool> {
        match reader.text(&self.operstate) {
            Some("up") => Some(true),
            Some("down" | "lowerlayerdown" | "notpresent" | "dormant" | "testing") => Some(false),
            _ => reader.number(&self.carrier).map(|carrier| carrier == 1),
        }
    }
}
