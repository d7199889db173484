//! A host's part of a pairing: the ports that it offers, the ways that it knows, its answer to an offer.
//!
//! The plugin makes its offers and answers with these functions, and `railweave topo` shows what they would be. They
//! are pure: the kernel's routes come in as a function.

#![forbid(unsafe_code)]

mod answer;
mod ports;
#[cfg(test)]
mod test_ports;
mod ways;

pub use answer::{Answer, OwnPorts, answer};
pub use ports::{Offered, offered, place_in_device, port_offer, speed, weight_among_halves};
pub use ways::{handle_addresses, mapped, ways};
