//! Rails over TCP, so that everything runs on any machine: each lane is one socket, and a write is one frame.
//!
//! This crate neither dials nor accepts: the plugin's control thread hands over connected sockets
//! ([`TcpPendingRail::attach`]). It knows nothing of slots and CTS, which belong to the transport, and owns no thread.
//! Bytes move only while both ends poll: [`railweave_fabric::Fabric::ONE_SIDED`] is false.
//!
//! The main types are [`TcpDomain`], which holds the keys of registered memory, and [`TcpRail`], which moves bytes.
//!
//! A write completes when the peer has placed its bytes, not when the kernel has taken them: each frame carries the
//! number of signalled writes that its sender has placed so far ([`frame`]).

#![deny(unsafe_code)]

mod domain;
mod entry;
mod fabric;
mod failure;
pub mod frame;
mod incoming;
mod keys;
mod lane;
mod outgoing;
mod pinned;
mod rail;
mod silence;
mod socket;
mod sync;
mod tcp;

pub use domain::{TcpConfig, TcpDomain, TcpLink, TcpPendingRail};
pub use keys::{KEY_CAPACITY, TcpRegistration};
pub use rail::TcpRail;
pub use tcp::Tcp;
