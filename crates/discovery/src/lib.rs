//! What this machine has: its network interfaces and RDMA devices, the ports of these that can be rails, and what is left
//! out and why.

#![deny(unsafe_code)]

mod interface;
pub mod rdma_ports;
mod sysfs;
pub mod tcp_ports;

pub use interface::Interface;
