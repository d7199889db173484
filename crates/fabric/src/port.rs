//! Facts about ports, as discovery reads them from the machine; `topology` draws the conclusions.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The technology that carries a port's packets.
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
    /// Returns the link layer with this code on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Tcp, Self::Roce, Self::InfiniBand].into_iter().find(|layer| *layer as u8 == code)
    }

    /// Returns its name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Roce => "RoCE",
            Self::InfiniBand => "InfiniBand",
        }
    }
}

/// The kinds of memory that a port can send from and receive into (`NCCL_PTR_*`), besides host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerSupport {
    /// GPU memory by its CUDA address.
    pub cuda: bool,
    /// GPU memory through a dma-buf.
    pub dma_buf: bool,
    /// True if the adapter reaches GPU memory behind a dma-buf without going through the processor (Data Direct of
    /// ConnectX-8). The flags that announce data do go through it, so received data must be flushed on every GPU.
    pub data_direct: bool,
}

/// One physical RDMA port of this host, or one address of one of its network interfaces.
#[derive(Clone, Debug, PartialEq)]
pub struct PortFacts {
    /// Unique and stable name: the interface's or RDMA device's, followed by the address or port number if the device
    /// has several.
    pub name: String,
    /// The name of the port's interface or RDMA device, as filters use it.
    pub device: String,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's address: an IP address on TCP, the GID on RDMA (IPv4 as a mapped address).
    pub address: IpAddr,
    /// Length of the network's prefix in bits, in the address's own family: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix_len: u8,
    /// Speed in Mbit/s; `None` if unknown.
    pub speed_mbps: Option<u32>,
    /// Largest packet in bytes, as the link layer counts it.
    pub mtu: u32,
    /// Directory of the PCI device below /sys, without symbolic links; `None` for a virtual interface.
    pub pci_path: Option<PathBuf>,
    /// Name of the device on its bus; on PCI, `domain:bus:device.function`. It names one function, whereas `pci_path`
    /// may stand for all functions of an adapter. `None` for a virtual interface.
    pub bus_id: Option<String>,
    /// Identifier of the adapter, shared by its ports; 0 if there is none.
    pub guid: u64,
    /// Number of the port on its adapter, counted from 1.
    pub port_number: u8,
    /// The kinds of memory that the port can send from and receive into.
    pub pointers: PointerSupport,
}

impl PortFacts {
    /// Returns the address as sent on the wire: IPv4 as an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
    pub fn wire_address(&self) -> Ipv6Addr {
        match self.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
    }
}

/// The purpose of an address that a host announces to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressPurpose {
    /// The address of a port of the device.
    Port,
    /// The address of another port of the host, which may be the only one that reaches it.
    OtherPort,
    /// An address for control sessions, which may also be the address of a port.
    OutOfBand,
    /// Like [`Self::OutOfBand`], but named by the user of the announcing host, whose ports are RDMA ports. It is
    /// dialled first: if the ports' networks do not carry TCP, trying their addresses first would waste time.
    NamedOutOfBand,
}

/// A port or address that exists but is not used, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// Name, with the address.
    pub name: String,
    /// The reason, as a clause that follows "left out:".
    pub reason: String,
}

/// A part of this host that rails use, and that can fail by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device's name.
    pub device: Arc<str>,
    /// The piece of the device.
    pub piece: Piece,
}

/// A piece of a device, as its events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The whole device.
    Device,
    /// The port with this number.
    Port(u8),
    /// The queue pair with this number.
    QueuePair(u32),
    /// The completion queue with this identifier, unique among those that are open.
    CompletionQueue(u64),
    /// The shared receive queue with this identifier, unique among those that are open.
    ReceiveQueue(u64),
    /// This address of the network interface.
    Address(IpAddr),
}

impl Part {
    /// Returns true if this part fails together with `failed`.
    pub fn fails_with(&self, failed: &Self) -> bool {
        self.device == failed.device && (failed.piece == Piece::Device || failed.piece == self.piece)
    }
}

/// An event of a port, a device or a lane, independent of any posted work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortEvent {
    /// True if the event breaks connections and needs attention; otherwise it is only worth knowing.
    pub is_fault: bool,
    /// Its meaning for rails.
    pub effect: Effect,
    /// One sentence: the event, its device, and what to look at.
    pub message: String,
}

/// The meaning of an event for rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing, or the adapter itself reports the end of each piece of work.
    None,
    /// The part has failed for good: nothing that uses it will ever make progress.
    Failed(Part),
    /// The peer asked the part for something that it refused, and the part has failed with that. The peer learns of it
    /// from its own work, unless the network loses the answer.
    Refused(Part),
    /// The part carries nothing for now, and may come back.
    Down(Part),
    /// A part carries something again, or may have another address: what did not come up before may come up now.
    Back,
}

/// A device of this host that reports events. One thread waits for its descriptor to become readable, and then takes
/// events until there are none left.
pub trait EventSource: Send + Sync {
    /// Returns the descriptor; it stays open for as long as the source exists.
    fn descriptor(&self) -> RawFd;

    /// Returns the next event, if there is one. Never blocks.
    fn take_event(&self) -> Option<PortEvent>;

    /// Returns true if something has happened, and the last attempt to find out what it was has failed: take events
    /// again soon, because the descriptor does not become readable for them.
    fn is_behind(&self) -> bool {
        false
    }
}

/// The ports of one fabric on this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovery {
    /// Ports that can carry traffic, in the machine's own order.
    pub ports: Vec<PortFacts>,
    /// Ports and addresses that exist but cannot or should not be used.
    pub left_out: Vec<LeftOut>,
}
