//! The form of a trace file, and its reading. A file may be damaged, or written by somebody else: whatever its bytes,
//! reading it ends with what is whole in it.

use crate::Frame;
use crate::frame::Process;

/// The first bytes of each file.
pub(crate) const MAGIC: &[u8] = b"railweave trace 1\n";

/// The bytes before each frame: its length and its checksum (CRC-32), both little-endian.
pub(crate) const HEAD_BYTES: usize = 8;

/// The most bytes of a frame.
pub(crate) const MOST_FRAME: usize = 1 << 20;

/// The ending of the files' names.
pub(crate) const ENDING: &str = ".rwtrace";

/// Adds a frame to the bytes of a file. Returns false, and adds nothing, if it is longer than [`MOST_FRAME`]: a reader
/// would end there.
#[must_use]
pub(crate) fn put(bytes: &mut Vec<u8>, frame: &[u8]) -> bool {
    if frame.len() > MOST_FRAME {
        return false;
    }
    bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(frame).to_le_bytes());
    bytes.extend_from_slice(frame);
    true
}

/// A trace file that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceFile {
    /// The process that wrote it.
    pub process: Process,
    /// Its other frames, in their order. Kinds that this version does not know are left out.
    pub frames: Vec<Frame>,
    /// The bytes at its end that are no whole frame: 0 unless the process was in the middle of one, or the file is
    /// damaged there.
    pub rest_bytes: usize,
}

/// The reason why a file is none that this version can read. The text is the end of a sentence that begins with the
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is something else.
    #[error("is no trace file; allowed: files that a job with RAILWEAVE_TRACE set has written (*{ENDING})")]
    Foreign,
    /// It is of another version.
    #[error("is a trace file of another version; allowed: version 1; try the railweave program of the job's version")]
    Version,
    /// It ends before it says whose it is.
    #[error("ends before it says which process has written it; remove it, or try again if its job has just begun")]
    Empty,
}

impl TraceFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is no trace file, or of another version, or does not begin with its process.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
            let is_ours = bytes.starts_with(&MAGIC[..MAGIC.len() - 2]);
            let is_short = MAGIC.starts_with(bytes);
            return Err(match (is_short, is_ours) {
                (true, _) => ReadError::Empty,
                (false, true) => ReadError::Version,
                (false, false) => ReadError::Foreign,
            });
        };
        let mut frames = Vec::new();
        while let Some((frame, after)) = next(rest) {
            // A frame that is whole and cannot be decoded is of a version with other fields.
            frames.extend(Frame::of_bytes(frame).ok().flatten());
            rest = after;
        }
        if frames.is_empty() {
            return Err(ReadError::Empty);
        }
        match frames.remove(0) {
            Frame::Process(process) => Ok(Self { process, frames, rest_bytes: rest.len() }),
            _ => Err(ReadError::Empty),
        }
    }
}

/// Returns the next frame, and the bytes behind it; `None` if there is no whole one.
fn next(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let ([length, sum], []) = head.as_chunks::<4>() else { return None };
    let length = usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= MOST_FRAME)?;
    let (frame, rest) = rest.split_at_checked(length)?;
    (crc32fast::hash(frame) == u32::from_le_bytes(*sum)).then_some((frame, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Name, Thread};
    use proptest::prelude::*;

    fn process() -> Frame {
        Frame::Process(Process { id: vec![7; 16], pid: 4711, host: "node0".into(), ..Process::default() })
    }

    fn file(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        frames.iter().for_each(|frame| assert!(put(&mut bytes, &frame.to_bytes())));
        bytes
    }

    #[test]
    fn the_frames_of_a_file_are_read_up_to_the_first_that_is_not_whole() {
        let thread = Frame::Thread(Thread { number: 1, tid: 5, name: "proxy".into() });
        let name = Frame::Name(Name { number: 1, text: "AllReduce".into() });
        let whole = file(&[process(), thread.clone(), name.clone()]);
        let read = TraceFile::read(&whole).unwrap();
        assert_eq!((read.frames, read.rest_bytes), (vec![thread.clone(), name], 0));
        assert_eq!(read.process.pid, 4711);
        let short = TraceFile::read(&whole[..whole.len() - 1]).unwrap();
        assert_eq!(short.frames, std::slice::from_ref(&thread));
        assert!(short.rest_bytes > 0);
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(TraceFile::read(&damaged).unwrap().frames, [thread]);
    }

    #[test]
    fn a_file_that_is_none_says_why() {
        assert_eq!(TraceFile::read(b"hello"), Err(ReadError::Foreign));
        assert_eq!(TraceFile::read(b"railweave trace 2\n"), Err(ReadError::Version));
        assert_eq!(TraceFile::read(b""), Err(ReadError::Empty));
        assert_eq!(TraceFile::read(&MAGIC[..4]), Err(ReadError::Empty));
        assert_eq!(TraceFile::read(MAGIC), Err(ReadError::Empty));
        assert_eq!(TraceFile::read(&file(&[Frame::Thread(Thread::default())])), Err(ReadError::Empty));
    }

    #[test]
    fn a_frame_of_a_later_version_is_left_out() {
        // Field 99, a length of 0: a kind of frame that this version does not know.
        let mut bytes = file(&[process()]);
        assert!(put(&mut bytes, &[0x9a, 0x06, 0x00]));
        assert!(put(&mut bytes, &Frame::Thread(Thread { number: 3, ..Thread::default() }).to_bytes()));
        let read = TraceFile::read(&bytes).unwrap();
        assert_eq!((read.frames.len(), read.rest_bytes), (1, 0));
    }

    #[test]
    fn a_frame_that_a_reader_would_end_at_is_refused() {
        let mut bytes = file(&[process()]);
        let before = bytes.len();
        assert!(!put(&mut bytes, &vec![0; MOST_FRAME + 1]));
        assert_eq!(bytes.len(), before);
        assert!(put(&mut bytes, &vec![0; MOST_FRAME]));
        assert_eq!(TraceFile::read(&bytes).unwrap().rest_bytes, 0);
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_without_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = TraceFile::read(&bytes);
            let _ = TraceFile::read(&[MAGIC, &bytes].concat());
            let mut whole = file(&[process()]);
            prop_assert!(put(&mut whole, &bytes));
            prop_assert_eq!(TraceFile::read(&whole).unwrap().rest_bytes, 0);
        }
    }
}
