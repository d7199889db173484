//! From port facts to ordered ports, devices and rail pairings.
//!
//! Discovery finds the ports of a machine. [`select()`] picks and orders those to use, [`devices`] turns them into the
//! devices that NCCL sees, and [`virtual_device()`] fuses those that NCCL wants to be one. [`dial_order`] orders the
//! addresses of a peer, and [`pair()`] pairs both ends' ports into rails. Each is a pure function: equal facts give
//! equal results on every host.
//!
//! This crate reads no sysfs and opens no device (discovery does), parses no setting (options does), and does not
//! decide how much each rail carries (policy does).

#![forbid(unsafe_code)]

mod bond;
mod chosen;
mod device;
mod dial;
mod endpoint;
mod pair;
mod select;
#[cfg(test)]
mod test_ports;
mod virtual_device;

pub use chosen::ChosenPort;
pub use device::{DEFAULT_SPEED_MBPS, Device, MAX_NAME_BYTES, devices};
pub use dial::{DialAddress, dial_order};
pub use endpoint::{Endpoint, Side};
pub use pair::{Between, Pair, Pairing, Ports, Unpaired, pair};
pub use railweave_fabric::NetworkAddress;
pub use select::{Filter, NoUsablePort, Order, Selected, Selection, select};
pub use virtual_device::{NotFused, virtual_device};
