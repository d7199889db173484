//! The messages by which two ends agree on what a rail that failed had carried, and bring it up again.
//!
//! The sender and the receiver are those of the data.

use std::fmt;

use railweave_fabric::{LaneEndpoint, MAX_LANES, MAX_RAILS, RailId, RailSet};

use crate::codec::{DecodeError, Reader, Writer, count};
use crate::preface::Token;
use crate::{MAX_MESSAGE_BYTES, SLOTS};

/// The number of a rail's incarnation: one lasts from the rail's set-up to its fence. Numbers go round after 2^16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u16);

impl Incarnation {
    /// Returns the next one.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns true if it came before `other`.
    pub fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// One step of the recovery of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailNews {
    /// The rail.
    pub rail: RailId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The step.
    pub message: RailMessage,
}

/// The content of a step of the recovery of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RailMessage {
    /// Receiver to sender: this end has given the rail up.
    Suspect,
    /// Sender to receiver: this end's lanes of the rail are gone. At most one entry for each slot.
    Down(Vec<Listed>),
    /// Receiver to sender, the answer to [`Self::Down`]: this end's lanes of the rail are gone too, and this is what
    /// they brought. One entry for each one with unsure parts, in the same order.
    State(Vec<Seen>),
    /// Sender to receiver: the end points of new lanes.
    Offer(Vec<LaneEndpoint>),
    /// Receiver to sender, the answer to [`Self::Offer`].
    Lanes {
        /// The token that lanes present if they are sockets.
        token: Token,
        /// The end points of its lanes.
        endpoints: Vec<LaneEndpoint>,
    },
    /// Sender to receiver: the new lanes are connected, and CTS may use them.
    Up,
}

/// The parts of one slot that the lanes of a rail carried, or were to carry. A part is what one rail was given of a
/// slot's data, and has its rail's number, whatever rail carries it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The number of the receive.
    pub sequence: u32,
    /// The slot's active rails, as its immediates say.
    pub mask: RailSet,
    /// The parts whose fate the sender does not know.
    pub unsure: RailSet,
    /// The parts that the rail had placed.
    pub placed: RailSet,
    /// The exact size of the message; `None` if the completion record has the sizes.
    pub size: Option<u32>,
    /// True if an adapter refused a part of it: its buffer is no longer registered.
    pub is_refused: bool,
}

/// The parts of one slot that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of the receive.
    pub sequence: u32,
    /// The parts that have come; all of them if the receive is complete.
    pub parts: RailSet,
}

impl RailMessage {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Suspect => 16,
            Self::Down(_) => 17,
            Self::State(_) => 18,
            Self::Offer(_) => 19,
            Self::Lanes { .. } => 20,
            Self::Up => 21,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Suspect => "RAIL_SUSPECT",
            Self::Down(_) => "RAIL_DOWN",
            Self::State(_) => "RAIL_STATE",
            Self::Offer(_) => "RAIL_OFFER",
            Self::Lanes { .. } => "RAIL_LANES",
            Self::Up => "RAIL_UP",
        }
    }

    /// Returns about how many bytes of memory it takes beyond its own size.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Suspect | Self::Up => 0,
            Self::Down(parts) => size_of_val(&**parts),
            Self::State(parts) => size_of_val(&**parts),
            Self::Offer(endpoints) | Self::Lanes { endpoints, .. } => size_of_val(&**endpoints),
        }
    }
}

impl RailNews {
    pub(super) fn write(&self, out: &mut Writer) {
        let entries = match &self.message {
            RailMessage::Suspect | RailMessage::Up => 0,
            RailMessage::Down(parts) => parts.len(),
            RailMessage::State(parts) => parts.len(),
            RailMessage::Offer(endpoints) | RailMessage::Lanes { endpoints, .. } => endpoints.len(),
        };
        out.u8(self.rail.index() as u8).zeros(1).u16(self.incarnation.0).u16(entries as u16).zeros(2);
        match &self.message {
            RailMessage::Suspect | RailMessage::Up => {}
            RailMessage::Down(parts) => parts.iter().for_each(|listed| listed.write(out)),
            RailMessage::State(parts) => parts.iter().for_each(|seen| {
                out.u32(seen.sequence).u8(seen.parts.bits()).zeros(3);
            }),
            RailMessage::Offer(endpoints) => write_endpoints(endpoints, out),
            RailMessage::Lanes { token, endpoints } => {
                out.put(&token.0);
                write_endpoints(endpoints, out);
            }
        }
    }

    pub(super) fn read(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError> {
        let what = match kind {
            16 => "RAIL_SUSPECT",
            17 => "RAIL_DOWN",
            18 => "RAIL_STATE",
            19 => "RAIL_OFFER",
            20 => "RAIL_LANES",
            _ => "RAIL_UP",
        };
        let mut reader = Reader::new(what, bytes);
        let number = reader.u8()?;
        let rail = RailId::new(number.into()).filter(|rail| rail.index() < MAX_RAILS).ok_or(DecodeError::Value {
            what: "a rail's number",
            value: number.into(),
            allowed: "0 to 7",
        })?;
        reader.zeros(1)?;
        let incarnation = Incarnation(reader.u16()?);
        let entries = reader.u16()?;
        reader.zeros(2)?;
        let most = match kind {
            17 | 18 => SLOTS,
            19 | 20 => MAX_LANES,
            _ => 0,
        };
        if usize::from(entries) > most {
            let allowed = "at most 256 slots, or 16 lanes";
            return Err(DecodeError::Value { what: "a rail's number of entries", value: entries.into(), allowed });
        }
        let message = match kind {
            16 => RailMessage::Suspect,
            17 => RailMessage::Down((0..entries).map(|_| Listed::read(&mut reader)).collect::<Result<_, _>>()?),
            18 => RailMessage::State((0..entries).map(|_| Seen::read(&mut reader)).collect::<Result<_, _>>()?),
            19 => RailMessage::Offer(read_endpoints(entries, &mut reader)?),
            20 => {
                let token = Token(reader.array()?);
                RailMessage::Lanes { token, endpoints: read_endpoints(entries, &mut reader)? }
            }
            _ => RailMessage::Up,
        };
        reader.end().map(|()| Self { rail, incarnation, message })
    }
}

impl Listed {
    fn write(&self, out: &mut Writer) {
        out.u32(self.sequence).u8(self.mask.bits()).u8(self.unsure.bits()).u8(self.placed.bits());
        out.u8(u8::from(self.size.is_none()) | u8::from(self.is_refused) << 1).u32(self.size.unwrap_or(0));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let sequence = reader.u32()?;
        let [mask, unsure, placed] = reader.array()?.map(RailSet::from_bits);
        let (form, size) = (reader.u8()?, reader.u32()?);
        let size = match form {
            0 | 2 => Some(size),
            1 | 3 if size == 0 => None,
            _ => {
                let (what, allowed) = ("the form of a slot's entry", "0 or 2, or 1 or 3 without a size");
                return Err(DecodeError::Value { what, value: form.into(), allowed });
            }
        };
        if size.is_some_and(|size| u64::from(size) > MAX_MESSAGE_BYTES) {
            let value = size.unwrap_or_default().into();
            return Err(DecodeError::Value { what: "a message's size", value, allowed: "at most 1 GiB" });
        }
        if !(unsure | placed).is_within(mask) || !(unsure & placed).is_empty() || (unsure | placed).is_empty() {
            let (what, allowed) = ("the parts of a slot", "some of its rails, each either unsure or placed");
            return Err(DecodeError::Value { what, value: (unsure | placed).bits().into(), allowed });
        }
        Ok(Self { sequence, mask, unsure, placed, size, is_refused: form & 2 != 0 })
    }
}

impl Seen {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (sequence, parts) = (reader.u32()?, RailSet::from_bits(reader.u8()?));
        reader.zeros(3)?;
        Ok(Self { sequence, parts })
    }
}

fn write_endpoints(endpoints: &[LaneEndpoint], out: &mut Writer) {
    endpoints.iter().for_each(|endpoint| {
        out.put(&endpoint.0);
    });
}

fn read_endpoints(entries: u16, reader: &mut Reader<'_>) -> Result<Vec<LaneEndpoint>, DecodeError> {
    count("a rail's number of lanes", entries.to_le_bytes()[0], MAX_LANES, "1 to 16")?;
    (0..entries).map(|_| reader.array().map(LaneEndpoint)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_are_compared_by_their_difference() {
        for (earlier, later) in [(0, 1), (u16::MAX, 0), (0x7fff, 0x8000), (0xfff0, 0x10)] {
            assert!(Incarnation(earlier).is_before(Incarnation(later)));
            assert!(!Incarnation(later).is_before(Incarnation(earlier)));
            assert!(!Incarnation(later).is_before(Incarnation(later)));
        }
        assert_eq!(Incarnation(u16::MAX).next(), Incarnation(0));
    }

    #[test]
    fn a_part_is_unsure_or_placed_and_of_an_active_rail() {
        let read = |mask, unsure, placed, form, size: u32| {
            let mut bytes = vec![0, 0, 0, 0, mask, unsure, placed, form];
            bytes.extend(size.to_le_bytes());
            Listed::read(&mut Reader::new("RAIL_DOWN", &bytes))
        };
        assert!(read(3, 1, 2, 0, 1 << 30).is_ok() && read(3, 1, 0, 1, 0).is_ok() && read(3, 0, 2, 0, 0).is_ok());
        for (mask, unsure, placed, form, size) in [
            (3, 3, 1, 0, 9),
            (1, 2, 0, 0, 9),
            (3, 0, 0, 0, 9),
            (3, 1, 0, 4, 0),
            (3, 1, 0, 1, 1),
            (3, 1, 0, 0, u32::MAX),
        ] {
            assert!(read(mask, unsure, placed, form, size).is_err(), "{mask} {unsure} {placed} {form} {size}");
        }
    }
}
