//! A port at one moment.

use crate::counter::Counter;
use crate::link::Pcie;

/// The fabric that a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fabric {
    /// An RDMA port.
    Verbs,
    /// A network interface.
    Tcp,
}

/// The facts and counters of a port at one moment. `None` is a fact that the port does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReading {
    /// The port's name as Railweave has it: an RDMA device, `mlx5_0`, with the port's number if it has several,
    /// `mlx5_0:2`; or an interface, `eth0`, whose ports on several addresses (`eth0@10.0.0.1`) share its counters. The
    /// Data Direct engine of an adapter (`mlx5_0_dma`) has no counters of its own: its traffic is in those of `mlx5_0`.
    pub name: String,
    /// The port's fabric.
    pub fabric: Fabric,
    /// True if the port can carry packets: an RDMA port whose state is 4 (active), an interface whose `operstate` is
    /// `up`, or unknown with a carrier.
    pub is_up: Option<bool>,
    /// The logical state of an RDMA port, 1 to 5: down, initialising, armed, active, active with a deferred error. From
    /// its file `state`.
    pub state_id: Option<u32>,
    /// The physical state of an RDMA port, 1 to 7: sleeping, polling, disabled, training, link up, recovering from an
    /// error, physical test. From its file `phys_state`.
    pub physical_state_id: Option<u32>,
    /// The rate of the link, in bytes per second and one direction. From the file `rate` of an RDMA port, `speed` of an
    /// interface; virtual interfaces have none.
    pub rate: Option<u64>,
    /// The lanes of an RDMA port's link, such as 1, 2, 4, 8 or 12. From the file `rate`.
    pub width: Option<u32>,
    /// The adapter's link on PCIe.
    pub pcie: Option<Pcie>,
    /// The network interface of an RDMA port: that of its first GID, or of its device.
    pub interface: Option<String>,
    /// The counters that could be read, sorted, each at most once. The private statistics of an RDMA port's interface
    /// (those that `ethtool -S` prints) are among those of the RDMA port too, because they are its physical port's.
    pub counters: Vec<(Counter, u64)>,
}

impl PortReading {
    /// Returns a counter's value; `None` if it could not be read, or the port lacks it.
    pub fn value(&self, counter: Counter) -> Option<u64> {
        let place = self.counters.binary_search_by_key(&counter, |(counter, _)| *counter).ok()?;
        Some(self.counters[place].1)
    }

    /// Returns the bytes that the port has received, by the counter of its fabric. Software RoCE does not count them.
    pub fn bytes_received(&self) -> Option<u64> {
        self.value(match self.fabric {
            Fabric::Verbs => Counter::PortDataReceived,
            Fabric::Tcp => Counter::NetworkReceiveBytes,
        })
    }

    /// Returns the bytes that the port has sent, by the counter of its fabric. Software RoCE does not count them.
    pub fn bytes_sent(&self) -> Option<u64> {
        self.value(match self.fabric {
            Fabric::Verbs => Counter::PortDataTransmitted,
            Fabric::Tcp => Counter::NetworkTransmitBytes,
        })
    }

    /// Returns true if nothing at all could be read, as of a port that has just left.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_up.is_none() && self.state_id.is_none() && self.rate.is_none() && self.counters.is_empty()
    }
}
