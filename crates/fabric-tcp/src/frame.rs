//! The frames of a lane: a header of 32 bytes, followed by the payload if it is a write. Pure: bytes in, bytes out.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 write, 2 acknowledgement |
//! | 1 | 1 | flags of a write: 1 it carries an immediate, 2 it wants an acknowledgement |
//! | 2 | 2 | zero |
//! | 4 | 4 | immediate, zero without one |
//! | 8 | 4 | length of the payload in bytes, at most [`MAX_WRITE`] |
//! | 12 | 4 | key of the destination |
//! | 16 | 8 | address of the destination |
//! | 24 | 8 | writes that wanted an acknowledgement and that the frame's sender has placed so far |
//!
//! All fields are little-endian. In an acknowledgement, all fields but the kind and the last one are zero.

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 32;

/// The longest payload in bytes.
pub const MAX_WRITE: u32 = 1 << 30;

const KIND_WRITE: u8 = 1;
const KIND_ACKNOWLEDGEMENT: u8 = 2;
const FLAG_IMMEDIATE: u8 = 1;
const FLAG_WANTS_ACKNOWLEDGEMENT: u8 = 2;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of writes that wanted an acknowledgement and that the frame's sender has placed since the lane began.
    pub acknowledged: u64,
    /// The kind of frame, with its fields.
    pub body: Body,
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The frame only carries the acknowledgement.
    Acknowledgement,
    /// A payload follows.
    Write(WriteFrame),
}

/// The header of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFrame {
    /// The immediate, which consumes a receive.
    pub immediate: Option<u32>,
    /// True if the sender waits for the acknowledgement of this write.
    pub wants_acknowledgement: bool,
    /// Length of the payload in bytes.
    pub length: u32,
    /// Key of the destination; ignored if the length is 0.
    pub key: u32,
    /// Address of the destination; ignored if the length is 0.
    pub address: u64,
}

/// The reason why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The kind does not exist.
    #[error("a frame of kind {0}; only 1 (write) and 2 (acknowledgement) exist")]
    Kind(u8),
    /// Some of the flags do not exist for the kind.
    #[error("flags {flags:#04x} in a frame of kind {kind}")]
    Flags {
        /// The frame's kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// A field that must be zero is not.
    #[error("the frame's {0} is not zero")]
    NotZero(&'static str),
    /// The payload is longer than any write.
    #[error("a write of {0} bytes; allowed: at most {MAX_WRITE}")]
    TooLong(u32),
}

impl Frame {
    /// Returns the header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (kind, write) = match self.body {
            Body::Acknowledgement => (KIND_ACKNOWLEDGEMENT, WriteFrame::default()),
            Body::Write(write) => (KIND_WRITE, write),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = kind;
        bytes[1] = if write.immediate.is_some() { FLAG_IMMEDIATE } else { 0 }
            | if write.wants_acknowledgement { FLAG_WANTS_ACKNOWLEDGEMENT } else { 0 };
        bytes[4..8].copy_from_slice(&write.immediate.unwrap_or(0).to_le_bytes());
        bytes[8..12].copy_from_slice(&write.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&write.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&write.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }

    /// Returns the header in these bytes.
    ///
    /// # Errors
    /// If they are not a valid header; every bit is checked.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [kind, flags, zero @ ..] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let known = match kind {
            KIND_WRITE => FLAG_IMMEDIATE | FLAG_WANTS_ACKNOWLEDGEMENT,
            KIND_ACKNOWLEDGEMENT => 0,
            _ => return Err(FrameError::Kind(kind)),
        };
        if flags & !known != 0 {
            return Err(FrameError::Flags { kind, flags });
        }
        if zero != [0, 0] {
            return Err(FrameError::NotZero("reserved field"));
        }
        let (immediate, length, key, address) = (word(4), word(8), word(12), long(16));
        let has_immediate = flags & FLAG_IMMEDIATE != 0;
        if !has_immediate && immediate != 0 {
            return Err(FrameError::NotZero("absent immediate"));
        }
        let body = if kind == KIND_ACKNOWLEDGEMENT {
            if length != 0 || key != 0 || address != 0 {
                return Err(FrameError::NotZero("destination in an acknowledgement"));
            }
            Body::Acknowledgement
        } else {
            if length > MAX_WRITE {
                return Err(FrameError::TooLong(length));
            }
            Body::Write(WriteFrame {
                immediate: has_immediate.then_some(immediate),
                wants_acknowledgement: flags & FLAG_WANTS_ACKNOWLEDGEMENT != 0,
                length,
                key,
                address,
            })
        };
        Ok(Self { acknowledged: long(24), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(length: u32) -> Frame {
        Frame {
            acknowledged: 0x0102_0304_0506_0708,
            body: Body::Write(WriteFrame {
                immediate: Some(0xa1b2_c3d4),
                wants_acknowledgement: true,
                length,
                key: 0x1122_3344,
                address: 0x5566_7788_99aa_bbcc,
            }),
        }
    }

    #[test]
    fn every_byte_of_a_write_has_its_place() {
        let expected = [
            1, 3, 0, 0, 0xd4, 0xc3, 0xb2, 0xa1, 5, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99, 0x88, 0x77,
            0x66, 0x55, 8, 7, 6, 5, 4, 3, 2, 1,
        ];
        assert_eq!(write(5).encode(), expected);
        assert_eq!(Frame::decode(&expected), Ok(write(5)));
    }

    #[test]
    fn invalid_headers_are_refused_in_words() {
        let good = write(5).encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Frame::decode(&bytes)
        };
        assert_eq!(with(0, 0), Err(FrameError::Kind(0)));
        assert_eq!(with(0, 3), Err(FrameError::Kind(3)));
        assert_eq!(with(0, 2), Err(FrameError::Flags { kind: 2, flags: 3 }));
        assert_eq!(with(1, 4), Err(FrameError::Flags { kind: 1, flags: 4 }));
        assert_eq!(with(1, 2), Err(FrameError::NotZero("absent immediate")));
        assert_eq!(with(3, 1), Err(FrameError::NotZero("reserved field")));
        assert_eq!(with(11, 0x80), Err(FrameError::TooLong(0x8000_0005)));
        assert!(Frame::decode(&write(MAX_WRITE).encode()).is_ok());
        assert_eq!(Frame::decode(&write(MAX_WRITE + 1).encode()), Err(FrameError::TooLong(MAX_WRITE + 1)));
        let mut bytes = Frame { acknowledged: 1, body: Body::Acknowledgement }.encode();
        assert!(Frame::decode(&bytes).is_ok());
        bytes[20] = 1;
        assert_eq!(Frame::decode(&bytes), Err(FrameError::NotZero("destination in an acknowledgement")));
    }

    /// Generates bytes that are often nearly a header, so that not all of them fail at the first check.
    fn nearly_a_header() -> impl Strategy<Value = [u8; HEADER_BYTES]> {
        (any::<[u8; HEADER_BYTES]>(), 0u8..4, 0u8..5, any::<[bool; 3]>()).prop_map(|(mut bytes, kind, flags, zero)| {
            bytes[0] = kind;
            bytes[1] = flags;
            if zero[0] {
                bytes[2..4].fill(0);
            }
            if zero[1] {
                bytes[4..8].fill(0);
            }
            if zero[2] {
                bytes[8..24].fill(0);
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn a_frame_comes_back(
            immediate: Option<u32>, wants_acknowledgement: bool, length in 0..=MAX_WRITE, key: u32, address: u64,
            acknowledged: u64,
        ) {
            let write = WriteFrame { immediate, wants_acknowledgement, length, key, address };
            let frame = Frame { acknowledged, body: Body::Write(write) };
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            bytes in prop_oneof![any::<[u8; HEADER_BYTES]>(), nearly_a_header()],
        ) {
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }
}
