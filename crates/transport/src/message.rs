//! Everything that travels over a control socket after its preface, except HELLO's contents: frames, and the messages
//! that set up and close a connection. All of it comes from a peer, so every count is checked before it is used.

mod rail;
mod reading;
mod resume;
mod weight;

use std::net::Ipv6Addr;

use railweave_fabric::{Fault, LaneEndpoint, LinkLayer, MAX_LANES, Route, Step};

use crate::codec::{DecodeError, Reader, Writer, count};
use crate::hello::MAX_HELLO_BYTES;
use crate::preface::Token;
use crate::received::Received;
pub use rail::{Incarnation, Listed, RailMessage, RailNews, Seen};
use resume::write_resumed;
pub use resume::{Pulse, Resume, SessionId};

const MOST_TEXT: usize = 1024;
const MOST_REASON: usize = 512;

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 12;

/// The longest frame, header included. LANES with 8 rails of 16 lanes is the longest message.
pub const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The most ports of an offer: those of a device, and others of its host.
pub const MAX_OFFERED_PORTS: usize = 16;

/// The most addresses of a peer to which an offer has routes, as many as a handle has.
pub const MAX_TARGETS: usize = 15;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes that follow the header.
    pub length: u32,
    /// The kind of the message.
    pub kind: u16,
    /// The connection that it is about, in the numbering of the session's opener; 0 for a message about the session.
    pub connection: u32,
}

impl FrameHeader {
    /// Reads a header and bounds the length.
    ///
    /// # Errors
    /// If the length is beyond [`MAX_FRAME_BYTES`], or [`MAX_HELLO_BYTES`] for HELLO, or reserved bytes are set.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("a frame's header", bytes);
        let length = reader.u32()?;
        if length as usize > MAX_FRAME_BYTES - FRAME_HEADER_BYTES {
            return Err(DecodeError::Value {
                what: "a frame's length",
                value: length.into(),
                allowed: "at most 16372 bytes",
            });
        }
        let kind = reader.u16()?;
        if kind == 1 && length as usize > MAX_HELLO_BYTES {
            let value = length.into();
            return Err(DecodeError::Value { what: "HELLO's length", value, allowed: "at most 512 bytes" });
        }
        reader.zeros(2)?;
        Ok(Self { length, kind, connection: reader.u32()? })
    }
}

/// A message and the connection that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The connection, 0 for a message about the session.
    pub connection: u32,
    /// The message.
    pub message: Message,
}

/// A port that a connector offers, or that an acceptor chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOffer {
    /// The layer that carries packets.
    pub link_layer: LinkLayer,
    /// Length of the network's prefix in bits, in the address's own family.
    pub prefix_len: u8,
    /// Lanes that this end wishes for on a rail of this port, 1 to 16.
    pub lanes: u8,
    /// Speed in Mbit/s.
    pub speed_mbps: u32,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// NCCL's rail id, -1 when undefined.
    pub rail_id: i16,
    /// NCCL's plane id, -1 when undefined. Different planes never connect to each other.
    pub plane_id: i16,
    /// IP address (TCP) or GID (RDMA); IPv4 as an IPv4-mapped address.
    pub address: Ipv6Addr,
}

/// The connector's wish for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The listener, from its handle.
    pub nonce: u64,
    /// True if large messages are striped over all lanes of a rail.
    pub striped: bool,
    /// Traffic class that NCCL asks for at the connector, `None` for none.
    pub traffic_class: Option<u8>,
    /// The device's ports, in the order of the device, then the host's other ports.
    pub ports: Vec<PortOffer>,
    /// The other ports and what the connector knows of the ways from all of them.
    pub ways: Ways,
}

/// The ways to the peer, as its connector knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// The first step of the ladder that the acceptor may take.
    pub first_step: Step,
    /// The number of ports, the last of the offer, that do not belong to the device that NCCL chose.
    pub others: u8,
    /// The addresses of the peer that the routes lead to, at most [`MAX_TARGETS`].
    pub targets: Vec<Ipv6Addr>,
    /// The routes to each target in turn, for each port in turn; `targets` × `ports` of them.
    pub routes: Vec<Route>,
}

impl Ways {
    /// Returns what the connector's kernel says about the way from this port to this address.
    pub fn route(&self, port: usize, target: Ipv6Addr) -> Route {
        let place = self.targets.iter().position(|known| *known == target);
        let route = place.and_then(|place| self.routes.get(port * self.targets.len() + place));
        route.copied().unwrap_or_default()
    }
}

/// One rail in the acceptor's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailAnswer {
    /// Index of the connector's port in its offer.
    pub connector_port: u8,
    /// Lanes of the rail: the smaller of both wishes.
    pub lanes: u8,
    /// The acceptor's port.
    pub port: PortOffer,
}

/// One rail's lanes, from either end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RailLanes {
    /// The lanes are open.
    Open {
        /// The remote key of the stream (of CTS entries, or of completion records) on this rail.
        key: u32,
        /// The end point of each lane.
        endpoints: Vec<LaneEndpoint>,
    },
    /// The rail is left out.
    Dropped {
        /// The reason, in words.
        reason: String,
        /// True if its sender waited for packets that did not come through.
        is_of_way: bool,
    },
}

/// The lanes of all rails, and the memory that the other end writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// True if the sender of this message gets byte counts with its receive completions.
    pub byte_counts: bool,
    /// Address of the CTS stream (from the connector) or of the completion records (from the acceptor).
    pub stream: u64,
    /// The rails, in the order of the answer.
    pub rails: Vec<RailLanes>,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// [`crate::Hello`], encoded.
    Hello(Vec<u8>),
    /// Connector to acceptor: the wish for a connection.
    Offer(Offer),
    /// Acceptor to connector: the rails.
    Answer {
        /// The token that lanes present if they are sockets.
        token: Token,
        /// The step of the ladder that gave the rails.
        step: Step,
        /// The rails, at least one.
        rails: Vec<RailAnswer>,
    },
    /// Both: the lanes.
    Lanes(Lanes),
    /// Connector to acceptor: these rails are up.
    Ready {
        /// One bit per rail of the answer.
        usable: u8,
    },
    /// Either: this connection cannot be made.
    Refuse {
        /// The party at fault, as the sender of this message sees it.
        fault: Fault,
        /// True if no pair of ports became a rail, so that others may: the connector may offer again.
        of_rails: bool,
        /// The reason, in words.
        reason: String,
    },
    /// Both, if a shared key is required: proof that its sender has the key ([`crate::Hello::KEYED`]).
    Proof([u8; 32]),
    /// Either: this connection is closed; whatever the other end still sends is discarded. The receiver of data says
    /// what it has received.
    Bye(Option<Received>),
    /// Either: is this session's other end still there?
    Ping(Pulse),
    /// The answer to PING, with its number.
    Pong(Pulse),
    /// Either: this end is still setting up the connection, so the other end restarts its timeout.
    Wait,
    /// Connector to acceptor: these rails are connected, and their first packets are on their way. Acceptor to
    /// connector: its own first packets have come through on these.
    Probe {
        /// One bit per rail of the answer.
        rails: u8,
    },
    /// Opener to acceptor, on a new socket: go on with this session.
    Resume(Resume),
    /// The answer to RESUME: the number of frames about connections that its sender has received on the session;
    /// `None` if it knows no such session.
    Resumed(Option<u64>),
    /// Either: the number of frames about connections that its sender has received on the session.
    Have(u64),
    /// Either: one step of the recovery of a rail.
    Rail(RailNews),
}

fn fault_code(fault: Fault) -> u8 {
    match fault {
        Fault::Local => 0,
        Fault::Peer => 1,
        Fault::Protocol => 2,
        Fault::Configuration => 3,
    }
}

impl PortOffer {
    fn write(&self, out: &mut Writer) {
        out.u8(self.link_layer as u8).u8(self.prefix_len).u8(self.lanes).u8(0);
        out.u32(self.speed_mbps).u32(self.mtu).i16(self.rail_id).i16(self.plane_id);
        out.put(&self.address.octets());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let code = reader.u8()?;
        let link_layer = LinkLayer::from_code(code).ok_or(DecodeError::Value {
            what: "a port's link layer",
            value: code.into(),
            allowed: "0 TCP, 1 RoCE, 2 InfiniBand",
        })?;
        let prefix_len = reader.u8()?;
        if prefix_len > 128 {
            let value = prefix_len.into();
            return Err(DecodeError::Value { what: "a port's prefix length", value, allowed: "at most 128" });
        }
        let lanes = count("a port's number of lanes", reader.u8()?, MAX_LANES, "1 to 16")? as u8;
        reader.zeros(1)?;
        Ok(Self {
            link_layer,
            prefix_len,
            lanes,
            speed_mbps: reader.u32()?,
            mtu: reader.u32()?,
            rail_id: reader.i16()?,
            plane_id: reader.i16()?,
            address: Ipv6Addr::from(reader.array::<16>()?),
        })
    }
}

impl Message {
    /// Returns the number that stands for the kind of message in a frame's header.
    pub fn kind(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::Offer(_) => 2,
            Self::Answer { .. } => 3,
            Self::Lanes(_) => 4,
            Self::Ready { .. } => 5,
            Self::Refuse { .. } => 6,
            Self::Bye(_) => 7,
            Self::Proof(_) => 8,
            Self::Ping(_) => 9,
            Self::Pong(_) => 10,
            Self::Wait => 11,
            Self::Probe { .. } => 12,
            Self::Resume(_) => 13,
            Self::Resumed(_) => 14,
            Self::Have(_) => 15,
            Self::Rail(news) => news.message.kind(),
        }
    }

    /// Returns the message's name in the protocol.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Offer(_) => "OFFER",
            Self::Answer { .. } => "ANSWER",
            Self::Lanes(_) => "LANES",
            Self::Ready { .. } => "READY",
            Self::Refuse { .. } => "REFUSE",
            Self::Bye(_) => "BYE",
            Self::Proof(_) => "PROOF",
            Self::Ping(_) => "PING",
            Self::Pong(_) => "PONG",
            Self::Wait => "WAIT",
            Self::Probe { .. } => "PROBE",
            Self::Resume(_) => "RESUME",
            Self::Resumed(_) => "RESUMED",
            Self::Have(_) => "HAVE",
            Self::Rail(news) => news.message.name(),
        }
    }

    /// Returns true if it is about a connection. Such messages are numbered, and survive the loss of their socket.
    pub fn is_about_connection(&self) -> bool {
        match self {
            Self::Hello(_)
            | Self::Proof(_)
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::Resume(_)
            | Self::Resumed(_)
            | Self::Have(_) => false,
            Self::Offer(_)
            | Self::Answer { .. }
            | Self::Lanes(_)
            | Self::Ready { .. }
            | Self::Refuse { .. }
            | Self::Bye(_)
            | Self::Wait
            | Self::Probe { .. }
            | Self::Rail(_) => true,
        }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Self::Hello(bytes) => {
                out.put(bytes);
            }
            Self::Offer(offer) => {
                out.u64(offer.nonce).u16(u16::from(offer.striped));
                let ways = &offer.ways;
                out.i16(offer.traffic_class.map_or(-1, i16::from)).u8(offer.ports.len() as u8);
                out.u8(ways.others).u8(ways.first_step as u8).u8(ways.targets.len() as u8);
                offer.ports.iter().for_each(|port| port.write(out));
                ways.targets.iter().for_each(|target| {
                    out.put(&target.octets());
                });
                ways.routes.iter().for_each(|route| {
                    out.u8(*route as u8);
                });
            }
            Self::Answer { token, step, rails } => {
                out.put(&token.0).u8(rails.len() as u8).u8(*step as u8).zeros(2);
                for rail in rails {
                    out.u8(rail.connector_port).u8(rail.lanes).zeros(2);
                    rail.port.write(out);
                }
            }
            Self::Lanes(lanes) => {
                out.u8(u8::from(lanes.byte_counts)).u8(lanes.rails.len() as u8).zeros(6).u64(lanes.stream);
                for rail in &lanes.rails {
                    match rail {
                        RailLanes::Open { key, endpoints } => {
                            out.u8(1).u8(endpoints.len() as u8).zeros(2).u32(*key);
                            endpoints.iter().for_each(|endpoint| {
                                out.put(&endpoint.0);
                            });
                        }
                        RailLanes::Dropped { reason, is_of_way } => {
                            out.u8(if *is_of_way { 2 } else { 0 }).zeros(1).text(reason, MOST_REASON);
                        }
                    }
                }
            }
            Self::Ready { usable: rails } | Self::Probe { rails } => {
                out.u8(*rails).zeros(3);
            }
            Self::Refuse { fault, of_rails, reason } => {
                out.u8(fault_code(*fault)).u8(u8::from(*of_rails)).text(reason, MOST_TEXT);
            }
            Self::Bye(None) | Self::Wait => {}
            Self::Bye(Some(received)) => {
                out.put(&received.encode());
            }
            Self::Ping(pulse) | Self::Pong(pulse) => pulse.write(out),
            Self::Proof(proof) => {
                out.put(proof);
            }
            Self::Resume(resume) => resume.write(out),
            Self::Resumed(received) => write_resumed(*received, out),
            Self::Have(received) => {
                out.u64(*received);
            }
            Self::Rail(news) => news.write(out),
        }
    }
}

impl Frame {
    /// Returns the bytes, header included.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.message.write(&mut body);
        assert!(body.bytes.len() + FRAME_HEADER_BYTES <= MAX_FRAME_BYTES, "{} is too long", self.message.name());
        let mut out = Writer::default();
        out.u32(body.bytes.len() as u32).u16(self.message.kind()).zeros(2).u32(self.connection);
        out.put(&body.bytes);
        out.bytes
    }

    /// Reads the first frame of `bytes`. Returns the frame and the number of bytes that it took, `None` while it is not
    /// complete.
    ///
    /// # Errors
    /// If the bytes are not a frame; the session cannot go on.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some(header) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::decode(header)?;
        let end = FRAME_HEADER_BYTES + header.length as usize;
        let Some(body) = bytes.get(FRAME_HEADER_BYTES..end) else {
            return Ok(None);
        };
        let message = Message::read(header.kind, body)?;
        Ok(Some((Self { connection: header.connection, message }, end)))
    }
}

#[cfg(test)]
mod tests;
