//! The messages about a session itself, but for HELLO and PROOF: the heartbeat, and going on over another socket.

use crate::codec::{DecodeError, Reader, Writer};

/// The content of PING and PONG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// The number of the PING, counted from 1 by its sender.
    pub number: u64,
    /// The time of the sender's clock when it sent this, in nanoseconds; the clock's beginning is the sender's own.
    pub clock_ns: u64,
}

/// A session's name on the wire: the beginning of the nonce in its opener's first HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

/// The content of RESUME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The session.
    pub session: SessionId,
    /// The number of this attempt, counted from 1: an older one that comes late changes nothing.
    pub attempt: u32,
    /// The number of frames about connections that the opener has received on the session.
    pub received: u64,
}

impl Pulse {
    pub(super) fn write(self, out: &mut Writer) {
        out.u64(self.number).u64(self.clock_ns);
    }

    pub(super) fn read(message: &'static str, bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(message, bytes);
        let pulse = Self { number: reader.u64()?, clock_ns: reader.u64()? };
        reader.end().map(|()| pulse)
    }
}

impl Resume {
    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&self.session.0).u32(self.attempt).zeros(4).u64(self.received);
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("RESUME", bytes);
        let (session, attempt) = (SessionId(reader.array()?), reader.u32()?);
        reader.zeros(4)?;
        let received = reader.u64()?;
        reader.end().map(|()| Self { session, attempt, received })
    }
}

pub(super) fn write_resumed(received: Option<u64>, out: &mut Writer) {
    out.u8(u8::from(received.is_some())).zeros(7).u64(received.unwrap_or_default());
}

pub(super) fn read_resumed(bytes: &[u8]) -> Result<Option<u64>, DecodeError> {
    let mut reader = Reader::new("RESUMED", bytes);
    let known = reader.u8()?;
    reader.zeros(7)?;
    let received = reader.u64()?;
    if known > 1 || known == 0 && received != 0 {
        return Err(DecodeError::Value { what: "RESUMED's state", value: known.into(), allowed: "0 or 1" });
    }
    reader.end().map(|()| (known == 1).then_some(received))
}
