//! The counters and link facts of this host's ports, from sysfs and ethtool.
//!
//! A [`Source`] reads them all, as often as its owner likes; once a second is usual. Each [`PortReading`] is one port:
//! its link's state and rate, its adapter's place on PCIe, and its counters. The table behind [`Counter`] says of each
//! its name in metrics, its unit, its meaning, the files that it is read from, and by its [`Kind`] the conclusion that
//! it permits.
//!
//! Nothing here fails: a file that is missing, unreadable or no number is a fact that the reading lacks.

#![deny(unsafe_code)]

mod counter;
mod ethtool;
mod file;
mod kind;
mod link;
mod net;
mod private;
mod rdma;
mod reading;
mod source;
mod values;

pub use counter::Counter;
pub use kind::{Kind, Origin, Unit};
pub use link::Pcie;
pub use reading::{Fabric, PortReading};
pub use source::Source;
