//! What travels between a guest and the lab, and between the lab and the stand-in of a rank: frames, each of one channel.
//!
//! A channel is one process in a guest, from its start to its end. A frame is its channel (four bytes, little-endian), one
//! byte of kind, four of length, then the body.

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// The largest body; a longer one means that the stream is garbled.
const MAX_BODY_BYTES: usize = 16 << 20;

/// One frame, without its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// From a guest, on channel 0: it is up.
    Ready,
    /// To a guest: start this process.
    Start(Program),
    /// To a guest: bytes for the process's standard input.
    Input(Vec<u8>),
    /// To a guest: nothing more comes for standard input.
    InputEnd,
    /// To a guest: send the process and all it started this signal.
    Signal(i32),
    /// From a guest: what the process wrote to its standard input, where that is a socket.
    Answer(Vec<u8>),
    /// From a guest: what it wrote to standard output.
    Output(Vec<u8>),
    /// From a guest: what it wrote to standard error.
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
    /// Whether its standard input is a socket, which leads both ways; else there is none.
    pub(crate) socket: bool,
}

/// How a process ended.
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
    /// Whether all went well.
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
    let (kind, body) = match frame {
        Frame::Ready => (READY, Vec::new()),
        Frame::Start(program) => (START, serde_json::to_vec(program)?),
        Frame::Input(bytes) => (INPUT, bytes.clone()),
        Frame::InputEnd => (INPUT_END, Vec::new()),
        Frame::Signal(signal) => (SIGNAL, signal.to_le_bytes().to_vec()),
        Frame::Answer(bytes) => (ANSWER, bytes.clone()),
        Frame::Output(bytes) => (OUTPUT, bytes.clone()),
        Frame::Error(bytes) => (ERROR, bytes.clone()),
        Frame::Ended(end) => (ENDED, serde_json::to_vec(end)?),
    };
    let mut all = Vec::with_capacity(9 + body.len());
    all.extend_from_slice(&channel.to_le_bytes());
    all.push(kind);
    all.extend_from_slice(&(body.len() as u32).to_le_bytes());
    all.extend_from_slice(&body);
    stream.write_all(&all)?;
    stream.flush()
}

/// Reads one frame. The end of the stream is an error of kind `UnexpectedEof`.
pub(crate) fn read(stream: &mut impl Read) -> io::Result<(u32, Frame)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (channel, kind, length) = (number(0), head[4], number(5) as usize);
    let garbled = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > MAX_BODY_BYTES {
        return Err(garbled(format!("a frame of {length} bytes")));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let frame = match kind {
        READY => Frame::Ready,
        START => Frame::Start(serde_json::from_slice(&body)?),
        INPUT => Frame::Input(body),
        INPUT_END => Frame::InputEnd,
        SIGNAL => {
            let bytes = body.try_into().map_err(|_| garbled("a signal without its number".to_owned()))?;
            Frame::Signal(i32::from_le_bytes(bytes))
        }
        ANSWER => Frame::Answer(body),
        OUTPUT => Frame::Output(body),
        ERROR => Frame::Error(body),
        ENDED => Frame::Ended(serde_json::from_slice(&body)?),
        kind => return Err(garbled(format!("a frame of the unknown kind {kind}"))),
    };
    Ok((channel, frame))
}

const READY: u8 = 1;
const START: u8 = 2;
const INPUT: u8 = 3;
const INPUT_END: u8 = 4;
const SIGNAL: u8 = 5;
const ANSWER: u8 = 6;
const OUTPUT: u8 = 7;
const ERROR: u8 = 8;
const ENDED: u8 = 9;

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
        for bytes in [
            [0, 0, 0, 0, 99, 0, 0, 0, 0].as_slice(),
            &[0, 0, 0, 0, INPUT, 255, 255, 255, 255],
            &[0, 0, 0, 0, START, 1, 0, 0, 0, b'{'],
            &[0, 0, 0, 0, SIGNAL, 1, 0, 0, 0, 9],
        ] {
            assert!(read(&mut &*bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(read(&mut [0, 0].as_slice()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
