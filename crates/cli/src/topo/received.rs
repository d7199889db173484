//! The offers of a peer, gathered into its half of the drawing.

use super::about::{self, Nonce};
use super::half::{Half, HalfDevice, HalfPort};
use railweave_fabric::Step;
use railweave_transport::{Hello, Offer, PortOffer};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// The offers of one round, as they come.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The offers whose names have not come yet, by their connections.
    nameless: BTreeMap<u32, (Nonce, Offer)>,
    /// The offers that are complete, by their numbers.
    complete: BTreeMap<u8, (HalfDevice, bool)>,
    /// The connections of both.
    connections: Vec<u32>,
    forwards: Option<bool>,
    is_complete: bool,
}

impl Received {
    /// Takes an offer.
    pub(crate) fn take(&mut self, connection: u32, nonce: Nonce, offer: Offer) {
        self.nameless.insert(connection, (nonce, offer));
        self.connections.push(connection);
    }

    /// Takes the names that belong to an offer. Returns its nonce if all of its round have come.
    ///
    /// # Errors
    /// If the text is a refusal, or there is no such offer.
    pub(crate) fn take_names(&mut self, connection: u32, text: &str) -> Result<Option<Nonce>, String> {
        let Some((nonce, offer)) = self.nameless.remove(&connection) else {
            return Err(format!("it sent names for an offer that it has not made: {text}"));
        };
        let mut device = device(&offer);
        self.forwards = about::read(text, &mut device)?;
        self.complete.insert(nonce.number, (device, offer.ways.first_step == Step::Tcp));
        self.is_complete = self.complete.len() == usize::from(nonce.count);
        Ok(self.is_complete.then_some(nonce))
    }

    /// Returns true if all offers of the round have come.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the connections of all offers.
    pub(crate) fn connections(&self) -> &[u32] {
        &self.connections
    }

    /// Returns the half of the peer that sent this HELLO.
    pub(crate) fn half(&self, hello: &Hello) -> Half {
        let of = |tcp: bool| self.complete.values().filter(move |(_, is_tcp)| *is_tcp == tcp);
        Half {
            host: hello.host.clone(),
            network: hello.network,
            forwards: self.forwards,
            devices: of(false).map(|(device, _)| device.clone()).collect(),
            fallback: of(true).map(|(device, _)| device.clone()).next(),
        }
    }
}

/// Returns the device of an offer, with addresses for names.
fn device(offer: &Offer) -> HalfDevice {
    let targets = &offer.ways.targets;
    let port = |(place, port): (usize, &PortOffer)| {
        let route = |target: &Ipv6Addr| (*target, offer.ways.route(place, *target));
        HalfPort {
            offer: *port,
            name: port.address.to_canonical().to_string(),
            interface: None,
            weight: None,
            routes: targets.iter().map(route).collect(),
        }
    };
    let ports = offer.ports.iter().enumerate().map(port).collect();
    HalfDevice { name: "device".to_owned(), ports, others: offer.ways.others.into() }
}
