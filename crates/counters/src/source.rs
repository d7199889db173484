//! The source of readings.

use std::path::Path;

use crate::file::Reader;
use crate::net::Interfaces;
use crate::rdma::RdmaPorts;
use crate::reading::PortReading;

/// The readings after which all files are listed again, even if no device came or went: a device may have been listed
/// before its driver had made all of its files, and the interface of an RDMA port may change.
const READINGS_PER_LIST: u32 = 60;

/// Reads the ports of this host.
///
/// It keeps the names of all files between readings, and lists them again when a device or an interface comes, goes or
/// is renamed, and every 60th time. A reading opens, reads and closes some 60 files per RDMA port and 15 per interface,
/// and asks the driver of an interface once for its private statistics, if it has any that are counters here: that
/// may take milliseconds, because drivers ask their adapters.
///
/// Below a root that is not `/`, the file `ethtool/IF`, a text as `ethtool -S IF` prints it, takes the place of the
/// private statistics of the interface `IF`.
#[derive(Debug)]
pub struct Source {
    interfaces: Interfaces,
    rdma: RdmaPorts,
    reader: Reader,
    /// The readings until everything is listed again.
    until_list: u32,
}

impl Source {
    /// Reads below `root`, which has `sys/class/infiniband` and `sys/class/net`: `/`, or a tree of a test.
    pub fn new(root: &Path) -> Self {
        Self { interfaces: Interfaces::new(root), rdma: RdmaPorts::new(root), reader: Reader::default(), until_list: 0 }
    }

    /// Reads all ports: the RDMA ports by device and number, then the interfaces by name. Ports that are down are among
    /// them. Left out are the loopback, and a port of which nothing can be read, because it has just left.
    pub fn read(&mut self) -> Vec<PortReading> {
        self.read_used(|_| true)
    }

    /// Reads the ports of adapters, and of the interfaces without one, such as bridges, bonds and the hundreds of veths
    /// of a host with containers, only those that are used: `is_used` gets their names.
    pub fn read_used(&mut self, is_used: impl Fn(&str) -> bool) -> Vec<PortReading> {
        let is_due = self.until_list == 0;
        self.until_list = if is_due { READINGS_PER_LIST - 1 } else { self.until_list - 1 };
        // The name of an interface is also a fact of its RDMA port.
        let is_due = self.interfaces.list(is_due, &mut self.reader);
        self.rdma.list(is_due, &mut self.reader);
        let interfaces = self.interfaces.read(&mut self.reader, &is_used);
        let mut readings = self.rdma.read(&self.interfaces, &mut self.reader);
        readings.extend(interfaces);
        readings
    }
}
