//! The messages that set up a connection, read from their bytes.

use std::net::Ipv6Addr;

use railweave_fabric::{Fault, LaneEndpoint, MAX_LANES, MAX_RAILS, Route, Step};

use super::rail::RailNews;
use super::resume::{Pulse, Resume, read_resumed};
use super::{
    Lanes, MAX_OFFERED_PORTS, MAX_TARGETS, MOST_REASON, MOST_TEXT, Message, Offer, PortOffer, RailAnswer, RailLanes,
    Ways, fault_code,
};
use crate::codec::{DecodeError, Reader, count};
use crate::preface::Token;
use crate::received::Received;

impl Message {
    pub(super) fn read(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError> {
        match kind {
            1 => Ok(Self::Hello(bytes.to_vec())),
            2 => read_offer(bytes),
            3 => read_answer(bytes),
            4 => read_lanes(bytes),
            5 => read_mask("READY", bytes).map(|usable| Self::Ready { usable }),
            6 => read_refuse(bytes),
            7 if bytes.is_empty() => Ok(Self::Bye(None)),
            7 => Received::decode(bytes).map(|received| Self::Bye(Some(received))),
            8 => {
                let mut reader = Reader::new("PROOF", bytes);
                let proof = reader.array()?;
                reader.end().map(|()| Self::Proof(proof))
            }
            9 => Pulse::read("PING", bytes).map(Self::Ping),
            10 => Pulse::read("PONG", bytes).map(Self::Pong),
            11 => Reader::new("WAIT", bytes).end().map(|()| Self::Wait),
            12 => read_mask("PROBE", bytes).map(|rails| Self::Probe { rails }),
            13 => Resume::read(bytes).map(Self::Resume),
            14 => read_resumed(bytes).map(Self::Resumed),
            15 => {
                let mut reader = Reader::new("HAVE", bytes);
                let received = reader.u64()?;
                reader.end().map(|()| Self::Have(received))
            }
            kind @ 16..=21 => RailNews::read(kind, bytes).map(Self::Rail),
            kind => Err(DecodeError::Value { what: "a frame's kind", value: kind.into(), allowed: "1 to 21" }),
        }
    }
}

fn read_mask(message: &'static str, bytes: &[u8]) -> Result<u8, DecodeError> {
    let mut reader = Reader::new(message, bytes);
    let mask = reader.u8()?;
    reader.zeros(3)?;
    reader.end().map(|()| mask)
}

fn read_offer(bytes: &[u8]) -> Result<Message, DecodeError> {
    let mut reader = Reader::new("OFFER", bytes);
    let nonce = reader.u64()?;
    let flags = reader.u16()?;
    if flags > 1 {
        return Err(DecodeError::Value { what: "OFFER's flags", value: flags.into(), allowed: "0 or 1" });
    }
    let class = reader.i16()?;
    let traffic_class = match class {
        -1 => None,
        0..=255 => Some(class as u8),
        _ => {
            let value = class as u64;
            return Err(DecodeError::Value { what: "OFFER's traffic class", value, allowed: "-1 to 255" });
        }
    };
    let ports = count("OFFER's number of ports", reader.u8()?, MAX_OFFERED_PORTS, "1 to 16")?;
    let others = reader.u8()?;
    let of_device = ports.saturating_sub(others.into());
    if !(1..=MAX_RAILS).contains(&of_device) {
        let allowed = "1 to 8 fewer than there are ports";
        return Err(DecodeError::Value { what: "OFFER's number of other ports", value: others.into(), allowed });
    }
    let first_step = read_step(&mut reader, "OFFER's first step")?;
    let targets = usize::from(reader.u8()?);
    if targets > MAX_TARGETS {
        let value = targets as u64;
        return Err(DecodeError::Value { what: "OFFER's number of targets", value, allowed: "at most 15" });
    }
    let ports = (0..ports).map(|_| PortOffer::read(&mut reader)).collect::<Result<Vec<_>, _>>()?;
    let of_targets = 0..targets;
    let targets = of_targets.map(|_| reader.array::<16>().map(Ipv6Addr::from)).collect::<Result<Vec<_>, _>>()?;
    let routes = (0..ports.len() * targets.len()).map(|_| {
        let code = reader.u8()?;
        let allowed = "0 unknown, 1 leaves by the port, 2 elsewhere, 3 has failed";
        Route::from_code(code).ok_or(DecodeError::Value { what: "a route", value: code.into(), allowed })
    });
    let routes = routes.collect::<Result<_, _>>()?;
    reader.end()?;
    let ways = Ways { first_step, others, targets, routes };
    Ok(Message::Offer(Offer { nonce, striped: flags == 1, traffic_class, ports, ways }))
}

fn read_step(reader: &mut Reader<'_>, what: &'static str) -> Result<Step, DecodeError> {
    let code = reader.u8()?;
    Step::from_code(code).ok_or(DecodeError::Value { what, value: code.into(), allowed: "1 to 5" })
}

fn read_answer(bytes: &[u8]) -> Result<Message, DecodeError> {
    let mut reader = Reader::new("ANSWER", bytes);
    let token = Token(reader.array()?);
    let rails = count("ANSWER's number of rails", reader.u8()?, MAX_RAILS, "1 to 8")?;
    let step = read_step(&mut reader, "ANSWER's step")?;
    reader.zeros(2)?;
    let mut answers = Vec::with_capacity(rails);
    for _ in 0..rails {
        let connector_port = reader.u8()?;
        let lanes = count("a rail's number of lanes", reader.u8()?, MAX_LANES, "1 to 16")? as u8;
        reader.zeros(2)?;
        answers.push(RailAnswer { connector_port, lanes, port: PortOffer::read(&mut reader)? });
    }
    reader.end()?;
    Ok(Message::Answer { token, step, rails: answers })
}

fn read_lanes(bytes: &[u8]) -> Result<Message, DecodeError> {
    let mut reader = Reader::new("LANES", bytes);
    let flags = reader.u8()?;
    if flags > 1 {
        return Err(DecodeError::Value { what: "LANES' flags", value: flags.into(), allowed: "0 or 1" });
    }
    let rails = count("LANES' number of rails", reader.u8()?, MAX_RAILS, "1 to 8")?;
    reader.zeros(6)?;
    let stream = reader.u64()?;
    let mut lanes = Vec::with_capacity(rails);
    for _ in 0..rails {
        match reader.u8()? {
            1 => {
                let endpoints = count("a rail's number of lanes", reader.u8()?, MAX_LANES, "1 to 16")?;
                reader.zeros(2)?;
                let key = reader.u32()?;
                let endpoints = (0..endpoints).map(|_| reader.array().map(LaneEndpoint)).collect::<Result<_, _>>()?;
                lanes.push(RailLanes::Open { key, endpoints });
            }
            state @ (0 | 2) => {
                reader.zeros(1)?;
                let reason = reader.text("a dropped rail's reason", MOST_REASON)?;
                lanes.push(RailLanes::Dropped { reason, is_of_way: state == 2 });
            }
            state => {
                return Err(DecodeError::Value { what: "a rail's state", value: state.into(), allowed: "0 to 2" });
            }
        }
    }
    reader.end()?;
    Ok(Message::Lanes(Lanes { byte_counts: flags == 1, stream, rails: lanes }))
}

fn read_refuse(bytes: &[u8]) -> Result<Message, DecodeError> {
    let mut reader = Reader::new("REFUSE", bytes);
    let code = reader.u8()?;
    let fault = [Fault::Local, Fault::Peer, Fault::Protocol, Fault::Configuration]
        .into_iter()
        .find(|fault| fault_code(*fault) == code)
        .ok_or(DecodeError::Value { what: "REFUSE's fault", value: code.into(), allowed: "0 to 3" })?;
    let flags = reader.u8()?;
    if flags > 1 {
        return Err(DecodeError::Value { what: "REFUSE's flags", value: flags.into(), allowed: "0 or 1" });
    }
    let reason = reader.text("REFUSE's reason", MOST_TEXT)?;
    reader.end()?;
    Ok(Message::Refuse { fault, of_rails: flags == 1, reason })
}
