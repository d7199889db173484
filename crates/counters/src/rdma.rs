//! The ports of RDMA devices below /sys/class/infiniband.

use std::path::{Path, PathBuf};

use crate::counter::Counter;
use crate::file::{Entry, Reader, entries};
use crate::kind::Origin;
use crate::link::{PcieFiles, rate_and_width};
use crate::net::Interfaces;
use crate::reading::{Fabric, PortReading};
use crate::values::Values;

/// The number of the state of a port that is active (`IB_PORT_ACTIVE` in include/rdma/ib_verbs.h).
const ACTIVE: u32 = 4;
/// The words that some counters count have four bytes.
const WORD: u64 = 4;
/// The entries of a GID table in which an interface is sought. The first ones are those of the port's own interface.
const GIDS: usize = 64;

/// All ports of RDMA devices.
#[derive(Debug)]
pub(crate) struct RdmaPorts {
    directory: PathBuf,
    /// The directory's entries when it was listed.
    entries: Vec<Entry>,
    ports: Vec<RdmaPort>,
}

/// A port and the files that are read of it.
#[derive(Debug)]
struct RdmaPort {
    name: String,
    interface: Option<String>,
    state: PathBuf,
    physical_state: PathBuf,
    rate: PathBuf,
    pcie: PcieFiles,
    /// The files in `counters/`, with the factor of each number.
    counters: Vec<(Counter, u64, PathBuf)>,
    /// The files in `hw_counters/`.
    hardware: Vec<(Counter, PathBuf)>,
}

impl RdmaPorts {
    pub(crate) fn new(root: &Path) -> Self {
        Self { directory: root.join("sys/class/infiniband"), entries: Vec::new(), ports: Vec::new() }
    }

    /// Lists the ports again if a device came, went or got a name, and always if `is_due`.
    pub(crate) fn list(&mut self, is_due: bool, reader: &mut Reader) {
        let entries = entries(&self.directory);
        if entries == self.entries && !is_due {
            return;
        }
        let devices = entries.iter().map(|entry| entry.name.as_str());
        self.ports = devices.flat_map(|device| ports(&self.directory, device, reader)).collect();
        self.entries = entries;
    }

    /// Reads all ports, after their interfaces.
    pub(crate) fn read(&self, interfaces: &Interfaces, reader: &mut Reader) -> Vec<PortReading> {
        let readings = self.ports.iter().map(|port| port.read(interfaces, reader));
        readings.filter(|reading| !reading.is_empty()).collect()
    }
}

/// Lists the ports of a device, in the order of their numbers.
fn ports(directory: &Path, device: &str, reader: &mut Reader) -> Vec<RdmaPort> {
    let directory = directory.join(device);
    // A port's number has 8 bits (struct ibv_qp_attr in libibverbs).
    let numbers = entries(&directory.join("ports")).into_iter().filter_map(|entry| entry.name.parse::<u8>().ok());
    let mut numbers: Vec<u8> = numbers.collect();
    numbers.sort_unstable();
    let has_several = numbers.len() > 1;
    let name = |number| if has_several { format!("{device}:{number}") } else { device.to_owned() };
    numbers.iter().map(|number| RdmaPort::new(&directory, *number, name(*number), reader)).collect()
}

impl RdmaPort {
    fn new(device: &Path, number: u8, name: String, reader: &mut Reader) -> Self {
        let directory = device.join("ports").join(number.to_string());
        let (counters, hardware) = (directory.join("counters"), directory.join("hw_counters"));
        let port_counter = |Entry { name, .. }| {
            let words = Counter::find(|origin| matches!(origin, Origin::PortWords(file) if file == name));
            let single = || Counter::find(|origin| matches!(origin, Origin::Port(file) if file == name));
            let (counter, factor) = words.map(|counter| (counter, WORD)).or_else(|| Some((single()?, 1)))?;
            Some((counter, factor, counters.join(name)))
        };
        let hardware_counter = |Entry { name, .. }| {
            let counter = Counter::find(|origin| matches!(origin, Origin::Hardware(file) if file == name))?;
            Some((counter, hardware.join(name)))
        };
        Self {
            name,
            interface: interface(device, &directory, number, reader),
            state: directory.join("state"),
            physical_state: directory.join("phys_state"),
            rate: directory.join("rate"),
            pcie: PcieFiles::new(&device.join("device")),
            counters: entries(&counters).into_iter().filter_map(port_counter).collect(),
            hardware: entries(&hardware).into_iter().filter_map(hardware_counter).collect(),
        }
    }

    fn read(&self, interfaces: &Interfaces, reader: &mut Reader) -> PortReading {
        let (mut values, mut hardware) = (Values::new(), Values::new());
        for (counter, factor, file) in &self.counters {
            if let Some(value) = reader.number(file) {
                values.add(*counter, value.wrapping_mul(*factor));
            }
        }
        for (counter, file) in &self.hardware {
            if let Some(value) = reader.number(file) {
                hardware.add(*counter, value);
            }
        }
        values.fill(&hardware);
        if let Some(private) = self.interface.as_deref().and_then(|name| interfaces.private(name)) {
            values.fill(private);
        }
        let state_id = reader.text(&self.state).and_then(state_number);
        let (rate, width) = reader.text(&self.rate).map_or((None, None), rate_and_width);
        PortReading {
            name: self.name.clone(),
            fabric: Fabric::Verbs,
            is_up: state_id.map(|state| state == ACTIVE),
            state_id,
            physical_state_id: reader.text(&self.physical_state).and_then(state_number),
            rate,
            width,
            pcie: self.pcie.read(reader),
            interface: self.interface.clone(),
            counters: values.to_vec(),
        }
    }
}

/// Returns the number of a text like `4: ACTIVE`.
fn state_number(text: &str) -> Option<u32> {
    text.split(':').next()?.trim().parse().ok()
}

/// Returns the interface of a port: that of its first GID that has one; or the one of its device, if that has one only
/// or says which belongs to the port.
fn interface(device: &Path, port: &Path, number: u8, reader: &mut Reader) -> Option<String> {
    let gids = port.join("gid_attrs/ndevs");
    let numbers = entries(&gids).into_iter().filter_map(|entry| entry.name.parse::<u32>().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    // The kernel refuses to read the entries of GIDs that are not used.
    let mut names = numbers.iter().take(GIDS).filter_map(|gid| {
        let name = reader.text(&gids.join(gid.to_string()))?;
        (name.len() < libc::IFNAMSIZ && !name.contains('/')).then(|| name.to_owned())
    });
    if let Some(name) = names.next() {
        return Some(name);
    }
    let directory = device.join("device/net");
    let mut names: Vec<String> = entries(&directory).into_iter().map(|entry| entry.name).collect();
    if names.len() > 1 {
        // IPoIB has one for each port; `dev_port` counts from 0.
        let port = u64::from(number).checked_sub(1);
        names.retain(|name| reader.number(&directory.join(name).join("dev_port")) == port);
    }
    names.into_iter().next()
}
