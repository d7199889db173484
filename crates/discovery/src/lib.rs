//! Options and this machine, to what is found: the fabric in use, its ports and devices, and what is left out and why.
//!
//! [`find()`] is what the plugin does when NCCL initialises it, and what programs do that show a machine. It reads
//! the network interfaces, sysfs and the RDMA devices, each in one module, and hands facts to the rules of topology.
//! Whatever else it has to say goes to the caller, each as a [`Note`].
//!
//! What this crate is not: it opens no socket and makes no rail. It leaves RDMA ports open, each with a protection
//! domain, because only that tells whether they can be used.

#![deny(unsafe_code)]

mod control_address;
mod error;
mod find;
mod found;
mod interface;
mod note;
pub mod rdma_ports;
mod selection;
mod sysfs;
mod tcp;
mod tcp_ports;
mod verbs;

pub use error::Error;
pub use find::find;
pub use found::{Found, FoundFabric, OutOfBand};
pub use note::{Note, Say};
