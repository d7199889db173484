//! Frames, each of one channel, between a guest and the lab, and between the lab and the proxy of a rank.
//!
//! A channel is one process in a guest, from its start to its end. The stream holds the length of the rest (four bytes,
//! little-endian), then the channel and the frame in postcard's encoding. Both ends are always the same build.

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// The longest frame, in bytes; a longer one means that the stream is garbled.
const MAX_BYTES: usize = 16 << 20;

/// The size of the length before each frame, in bytes.
const LENGTH_BYTES: usize = size_of::<u32>();

/// One frame, without its channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// From a guest, on channel 0: it is up.
    Ready,
    /// To a guest: start this process.
    Start(Program),
    /// To a guest: bytes for the process's standard input.
    Input(Vec<u8>),
    /// To a guest: end of standard input.
    InputEnd,
    /// To a guest: send this signal to the process and everything that it started.
    Signal(i32),
    /// From a guest: bytes that the process wrote to its standard input, if that is a socket.
    Answer(Vec<u8>),
    /// From a guest: bytes of its standard output.
    Output(Vec<u8>),
    /// From a guest: bytes of its standard error.
    Error(Vec<u8>),
    /// From a guest: it ended; the last frame of a channel.
    Ended(End),
}

/// A program to start in a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The program's name, then its arguments.
    pub(crate) words: Vec<String>,
    /// Its whole environment.
    pub(crate) environment: Vec<(String, String)>,
    /// True if its standard input is a socket, which carries both ways; otherwise it has none.
    pub(crate) socket: bool,
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It never began, for this reason.
    NotStarted(String),
}

impl End {
    /// Returns true if it ended with status 0.
    pub(crate) fn is_success(&self) -> bool {
        *self == Self::Status(0)
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::NotStarted(reason) => write!(f, "did not start: {reason}"),
        }
    }
}

/// Writes one frame, in one call.
pub(crate) fn write(stream: &mut impl Write, channel: u32, frame: &Frame) -> io::Result<()> {
    let mut all = postcard::to_extend(&(channel, frame), vec![0; LENGTH_BYTES]).map_err(io::Error::other)?;
    let length = (all.len() - LENGTH_BYTES) as u32;
    all[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&all)?;
    stream.flush()
}

/// Reads one frame. The end of the stream is an error of kind `UnexpectedEof`.
pub(crate) fn read(stream: &mut impl Read) -> io::Result<(u32, Frame)> {
    let mut length = [0; LENGTH_BYTES];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    let garbled = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > MAX_BYTES {
        return Err(garbled(format!("a frame of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| garbled(format!("a frame that cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_comes_out_as_it_went_in() {
        let program = Program {
            words: vec!["a b".into(), String::new()],
            environment: vec![("NAME".into(), "ü=\n".into())],
            socket: true,
        };
        let frames = [
            Frame::Ready,
            Frame::Start(program),
            Frame::Input(vec![0, 255]),
            Frame::InputEnd,
            Frame::Signal(-9),
            Frame::Answer(Vec::new()),
            Frame::Output(vec![7; 100_000]),
            Frame::Error(vec![1]),
            Frame::Ended(End::Status(3)),
            Frame::Ended(End::Signal(9)),
            Frame::Ended(End::NotStarted("no such file".into())),
        ];
        let mut stream = Vec::new();
        for (channel, frame) in frames.iter().enumerate() {
            write(&mut stream, channel as u32, frame).unwrap();
        }
        let mut rest = stream.as_slice();
        for (channel, frame) in frames.iter().enumerate() {
            assert_eq!(read(&mut rest).unwrap(), (channel as u32, frame.clone()));
        }
        assert_eq!(read(&mut rest).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn garbage_is_an_error() {
        let kind = |kind: u8| [2, 0, 0, 0, 0, kind];
        assert_eq!(read(&mut kind(0).as_slice()).unwrap(), (0, Frame::Ready));
        for bytes in [kind(99).as_slice(), &[255; 4], &[1, 0, 0, 0, 0], &[4, 0, 0, 0, 0, 1, 1, 9]] {
            let error = read(&mut &*bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}: {error}");
        }
        for cut in [&[0, 0][..], &[9, 0, 0, 0, 1]] {
            assert_eq!(read(&mut &*cut).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
