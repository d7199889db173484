//! The preface: the first bytes on every socket to a control port, which say what the socket is for. They come from
//! strangers.

use std::fmt;

use crate::codec::{DecodeError, Reader, Writer};

const PREFACE_MAGIC: u32 = u32::from_le_bytes(*b"RWCT");

/// Bytes of the preface that opens every control socket.
pub const PREFACE_BYTES: usize = 40;

/// Bytes of the proof in a lane's preface.
pub const LANE_PROOF_BYTES: usize = 14;

/// Sixteen random bytes that only the two ends of a connection know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(..)") // a secret: it must not reach a log
    }
}

/// The first bytes on a socket to the control port: they say what the socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preface {
    /// A session: frames follow.
    Session,
    /// A lane of a TCP rail.
    Lane(LanePreface),
}

/// The lane that a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePreface {
    /// Shows that the dialler has the connection's ANSWER.
    pub token: Token,
    /// The rail.
    pub rail: u8,
    /// The lane.
    pub lane: u8,
    /// If both ends have a key, the proof that the dialler has it too; otherwise zero. The token alone would not do: it
    /// crosses the network in clear.
    pub proof: [u8; LANE_PROOF_BYTES],
}

impl Preface {
    /// Returns the bytes.
    pub fn encode(&self) -> [u8; PREFACE_BYTES] {
        let mut out = Writer::default();
        out.u32(PREFACE_MAGIC).u16(crate::PROTOCOL_VERSION);
        match self {
            Self::Session => out.u16(1),
            Self::Lane(lane) => out.u16(2).put(&lane.token.0).u8(lane.rail).u8(lane.lane).put(&lane.proof),
        };
        let mut bytes = [0; PREFACE_BYTES];
        bytes[..out.bytes.len()].copy_from_slice(&out.bytes);
        bytes
    }

    /// Reads a preface.
    ///
    /// # Errors
    /// If the bytes are not a preface: the dialler is not Railweave, or is another version of it.
    pub fn decode(bytes: &[u8; PREFACE_BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("the preface", bytes);
        let magic = reader.u32()?;
        if magic != PREFACE_MAGIC {
            return Err(DecodeError::Value {
                what: "the preface's magic number",
                value: u64::from(magic),
                allowed: "that of Railweave",
            });
        }
        // Sessions say their versions in HELLO, so that both ends can name the difference.
        let version = reader.u16()?;
        match reader.u16()? {
            1 => Ok(Self::Session),
            2 if version == crate::PROTOCOL_VERSION => {
                let token = Token(reader.array()?);
                let (rail, lane, proof) = (reader.u8()?, reader.u8()?, reader.array()?);
                Ok(Self::Lane(LanePreface { token, rail, lane, proof }))
            }
            2 => Err(DecodeError::Version { what: "the preface's protocol version", version }),
            kind => Err(DecodeError::Value { what: "the preface's kind", value: kind.into(), allowed: "1 or 2" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefaces_come_out_as_they_went_in() {
        let lane =
            Preface::Lane(LanePreface { token: Token([8; 16]), rail: 1, lane: 15, proof: [4; LANE_PROOF_BYTES] });
        for preface in [Preface::Session, lane] {
            assert_eq!(Preface::decode(&preface.encode()), Ok(preface));
        }
        let http = *b"GET / HTTP/1.1\r\nHost: node7\r\n\r\n.........";
        assert!(Preface::decode(&http).unwrap_err().to_string().contains("magic"));
        let mut older = lane.encode();
        older[4..6].copy_from_slice(&(crate::PROTOCOL_VERSION - 1).to_le_bytes());
        let text = Preface::decode(&older).unwrap_err().to_string();
        assert!(text.contains(&format!("allowed: {}; install", crate::PROTOCOL_VERSION)), "{text}");
    }
}
