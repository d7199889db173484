//! From options and this machine to a fabric: its ports and devices, and what is left out and why.
//!
//! The plugin calls [`find()`] when NCCL initialises it, and so do programs that show a machine. It reads the network
//! interfaces, sysfs and the RDMA devices, each in one module, and hands facts to the rules of topology. Everything
//! else worth telling goes to the caller as a [`Note`].
//!
//! This crate makes no rail, and opens no socket but those by which [`Routes`] asks the kernel and [`LinkEvents`] hears
//! from it. It leaves RDMA ports open, each with a protection domain, because only that shows whether they can be used.

#![deny(unsafe_code)]

mod control_address;
mod error;
mod find;
mod found;
mod interface;
mod links;
mod note;
mod port_address;
mod rdma_ports;
mod routes;
mod selection;
mod sysfs;
mod tcp;
mod tcp_ports;
#[cfg(test)]
mod tree;
mod verbs;

pub use error::Error;
pub use find::find;
pub use found::{Found, FoundFabric, OutOfBand};
pub use interface::{interface_addresses, interface_of};
pub use links::{LinkEvents, interface_part, is_link_up};
pub use note::{Note, Say};
pub use port_address::PortAddress;
pub use routes::Routes;
pub use tcp::{Fallback, fallback};
