//! Facts about ports, as discovery reads them from the machine. What follows from them is topology's business.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// What carries packets on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkLayer {
    /// The kernel's TCP.
    Tcp = 0,
    /// RDMA over converged Ethernet.
    Roce = 1,
    /// InfiniBand.
    InfiniBand = 2,
}

impl LinkLayer {
    /// The link layer with this code on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Tcp, Self::Roce, Self::InfiniBand].into_iter().find(|layer| *layer as u8 == code)
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Roce => "RoCE",
            Self::InfiniBand => "InfiniBand",
        }
    }
}

/// Which pointers a port can send from and receive into (`NCCL_PTR_*`). Host memory always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerSupport {
    /// GPU memory by its CUDA address.
    pub cuda: bool,
    /// GPU memory through a dma-buf.
    pub dma_buf: bool,
    /// GPU memory behind a dma-buf is reached past the processor (Data Direct of ConnectX-8), while flags for it go
    /// through the processor: what was received must be flushed on every GPU.
    pub data_direct: bool,
}

/// One physical RDMA port or network interface of this host, or one address of it on TCP.
#[derive(Clone, Debug, PartialEq)]
pub struct PortFacts {
    /// Unique and stable: the interface's or RDMA device's name, with the address or port where one has several.
    pub name: String,
    /// The interface or RDMA device that the port belongs to, as filters name it.
    pub device: String,
    /// What carries its packets.
    pub link_layer: LinkLayer,
    /// Its address: an IP address on TCP, the GID on RDMA (IPv4 as a mapped address).
    pub address: IpAddr,
    /// Length of the network's prefix in bits, in the address's own family.
    pub prefix_len: u8,
    /// Speed in Mbit/s; None when the machine does not say.
    pub speed_mbps: Option<u32>,
    /// Largest packet in bytes, as the link layer counts it.
    pub mtu: u32,
    /// Directory of the PCI device below /sys, as a real path; None for a virtual interface.
    pub pci_path: Option<PathBuf>,
    /// What its device is called on its bus, on PCI `domain:bus:device.function`: of the very function, where
    /// `pci_path` may stand for all functions of an adapter. None for a virtual interface.
    pub bus_id: Option<String>,
    /// Identifies the adapter: ports of one adapter share it. 0 where there is none.
    pub guid: u64,
    /// Number of the port on its adapter, from 1.
    pub port_number: u8,
    /// Which pointers it takes.
    pub pointers: PointerSupport,
}

impl PortFacts {
    /// The address as it travels on the wire: IPv4 as an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
    pub fn wire_address(&self) -> Ipv6Addr {
        match self.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
    }
}

/// A port or address that is there but not used, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// Its name, with the address.
    pub name: String,
    /// Why, as a clause that follows "left out:".
    pub reason: String,
}

/// A piece of this host that rails are made of, and that can fail by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device's name.
    pub device: Arc<str>,
    /// Which piece of it.
    pub piece: Piece,
}

/// A piece of a device, as its events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// All of it.
    Device,
    /// The queue pair of this number.
    QueuePair(u32),
    /// A completion queue, by what tells it from others that are open.
    CompletionQueue(u64),
    /// A receive queue that several queue pairs share, by the same.
    ReceiveQueue(u64),
}

impl Part {
    /// Whether the failure of `failed` is this part's.
    pub fn fails_with(&self, failed: &Self) -> bool {
        self.device == failed.device && (failed.piece == Piece::Device || failed.piece == self.piece)
    }
}

/// Something that happened to a port, a device or a lane of it, outside of any work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortEvent {
    /// Whether it breaks connections, so that someone should look at it; else it is only worth knowing.
    pub is_fault: bool,
    /// What has failed for good: nothing that is made of it moves any more. None where ports come back, or adapters say
    /// themselves what became of each piece of work.
    pub failed: Option<Part>,
    /// What happened, to what, and what to look at, in one sentence.
    pub message: String,
}

/// What tells of events: a device of this host. One thread waits for its descriptor to become readable and then takes
/// events until there is none.
pub trait EventSource: Send + Sync {
    /// The descriptor; it stays open for as long as the source lives.
    fn descriptor(&self) -> RawFd;

    /// The next event; never blocks.
    fn take_event(&self) -> Option<PortEvent>;
}

/// The ports of one fabric on this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovery {
    /// Ports that can carry traffic, in the machine's own order.
    pub ports: Vec<PortFacts>,
    /// What was seen but cannot or should not be used.
    pub left_out: Vec<LeftOut>,
}
