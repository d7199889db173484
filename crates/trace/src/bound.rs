//! The bounds of frames: a reader ends at a frame that is too long, so longer ones are split, and their texts cut.

use crate::frame::{RailSample, Records, Sample};
use crate::{Frame, RECORD_BYTES};

/// The most rails of one [`Sample`].
pub const MOST_SAMPLED: usize = 4096;

/// The most bytes of a text.
pub(crate) const MOST_TEXT: usize = 1000;

/// The bytes of an id of a process.
const ID_BYTES: usize = 16;

/// The most bytes of a frame that cannot be split, once its texts are cut: three texts and a few numbers.
pub(crate) const MOST_WHOLE: usize = 4096;

/// The most bytes of a [`RailSample`], with its tag and its length: eight tags, four numbers of 32 bits or fewer and
/// three of 64 bits.
const MOST_SAMPLE: usize = 64;

/// The bytes of a frame of records or samples besides these.
const AROUND: usize = 64;

/// Cuts a text, at the border of a character.
fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MOST_TEXT));
}

impl Frame {
    /// Returns frames that say the same as this one and have at most this many bytes, which are at least
    /// [`MOST_WHOLE`]. Texts are cut to [`MOST_TEXT`] bytes.
    pub(crate) fn bounded(mut self, most: usize) -> Vec<Self> {
        match &mut self {
            Self::Records(it) if it.bytes.len() + AROUND > most => return split_records(it, most),
            Self::Sample(it) if it.rails.len() > most_rails(most) => return split_sample(it, most),
            Self::Records(_) | Self::Sample(_) | Self::Ended(_) => {}
            Self::Process(it) => {
                it.id.truncate(ID_BYTES);
                it.boot_id.truncate(ID_BYTES);
                [&mut it.host, &mut it.job, &mut it.version].into_iter().for_each(cut);
            }
            Self::Thread(it) => cut(&mut it.name),
            Self::Name(it) => cut(&mut it.text),
            Self::Communicator(it) => cut(&mut it.name),
            Self::Connection(it) => {
                it.peer.truncate(ID_BYTES);
                [&mut it.host, &mut it.device].into_iter().for_each(cut);
            }
            Self::Rail(it) => [&mut it.local, &mut it.remote].into_iter().for_each(cut),
            Self::Happened(it) => [&mut it.name, &mut it.text].into_iter().for_each(cut),
            Self::Setup(it) => [&mut it.peer, &mut it.failure].into_iter().for_each(cut),
            Self::PeerClock(it) => it.peer.truncate(ID_BYTES),
        }
        vec![self]
    }
}

/// Returns the most rails of a sample of at most this many bytes.
fn most_rails(most: usize) -> usize {
    (most.saturating_sub(AROUND) / MOST_SAMPLE).clamp(1, MOST_SAMPLED)
}

fn split_records(records: &Records, most: usize) -> Vec<Frame> {
    let bytes = (most.saturating_sub(AROUND) / RECORD_BYTES).max(1) * RECORD_BYTES;
    let parts = records.bytes.chunks(bytes).enumerate();
    let part = |(number, bytes): (usize, &[u8])| {
        // The losses are no later than the first of them.
        let lost = if number == 0 { records.lost } else { 0 };
        Frame::Records(Records { thread: records.thread, lost, bytes: bytes.to_vec() })
    };
    parts.map(part).collect()
}

fn split_sample(sample: &Sample, most: usize) -> Vec<Frame> {
    let part = |rails: &[RailSample]| Frame::Sample(Sample { at_ns: sample.at_ns, rails: rails.to_vec() });
    sample.rails.chunks(most_rails(most)).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Connection, Happened, Process, Rail, Setup};

    #[test]
    fn every_frame_has_at_most_the_bytes_of_its_bound() {
        let text = || "é".repeat(2_000_000);
        let id = vec![7; 2_000_000];
        let number = Some(u32::MAX);
        let rail = RailSample {
            connection: u32::MAX,
            number: u32::MAX,
            is_up: true,
            share: number,
            sent: u64::MAX,
            received: u64::MAX,
            in_flight: Some(u64::MAX),
        };
        let connection =
            Connection { peer: id.clone(), host: text(), device: text(), rank: number, ..Connection::default() };
        let process = Process { id, host: text(), job: text(), version: text(), rank: number, ..Process::default() };
        let frames = [
            Frame::Process(process),
            Frame::Connection(connection),
            Frame::Rail(Rail { local: text(), remote: text(), ..Rail::default() }),
            Frame::Happened(Happened { name: text(), text: text(), ..Happened::default() }),
            Frame::Setup(Setup { peer: text(), failure: text(), ..Setup::default() }),
            Frame::Sample(Sample { at_ns: u64::MAX, rails: vec![rail; 30_000] }),
            Frame::Records(Records { thread: u32::MAX, lost: u64::MAX, bytes: vec![1; RECORD_BYTES * 40_000] }),
        ];
        for most in [MOST_WHOLE, 10_000, crate::file::MOST_FRAME] {
            for frame in &frames {
                let longest = frame.clone().bounded(most).iter().map(|it| it.to_bytes().len()).max().unwrap();
                assert!(longest <= most, "{longest} bytes, {most} are allowed");
            }
        }
    }

    #[test]
    fn the_parts_of_a_split_frame_say_the_same_as_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(RECORD_BYTES * 1000).collect();
        let whole = Records { thread: 3, lost: 9, bytes };
        let (mut joined, mut lost) = (Vec::new(), 0);
        for part in Frame::Records(whole.clone()).bounded(MOST_WHOLE) {
            let Frame::Records(part) = part else { panic!("{part:?}") };
            assert_eq!((part.thread, part.bytes.len() % RECORD_BYTES), (3, 0));
            joined.extend(part.bytes);
            lost += part.lost;
        }
        assert_eq!((joined, lost), (whole.bytes, 9));
        let rail = |number| RailSample { number, ..RailSample::default() };
        let whole = Sample { at_ns: 5, rails: (0..1000).map(rail).collect() };
        let mut rails = Vec::new();
        for part in Frame::Sample(whole.clone()).bounded(MOST_WHOLE) {
            let Frame::Sample(part) = part else { panic!("{part:?}") };
            assert_eq!(part.at_ns, 5);
            rails.extend(part.rails);
        }
        assert_eq!(rails, whole.rails);
    }
}
