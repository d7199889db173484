//! From port facts to ordered ports, devices and rail pairings.
//!
//! Discovery says which ports a machine has. [`select()`] picks and orders those to use, [`devices`] turns them into
//! what NCCL sees, [`dial_order`] says where to look for a peer, and [`pair()`] weaves both ends' ports into rails.
//! Each is a function of its arguments alone: equal facts give equal answers on every host.
//!
//! What this crate is not: it reads no sysfs and opens no device (discovery does), it parses no setting (options does),
//! and it does not say how much each rail carries (policy does).

#![forbid(unsafe_code)]

mod device;
mod dial;
mod network;
mod pair;
mod select;

pub use device::{DEFAULT_SPEED_MBPS, Device, MAX_NAME_BYTES, devices};
pub use dial::{DialAddress, Purpose, dial_order};
pub use network::NetworkAddress;
pub use pair::{Endpoint, Pair, Pairing, Side, Unpaired, pair};
pub use select::{ChosenPort, Filter, NoUsablePort, Order, Selected, Selection, only_loopback, select};
