//! The trace thread: it empties the rings, looks at the counters of rails, and writes the files.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use railweave_trace::{
    EarlierFiles, Frame, RECORD_BYTES, RailSample, Record, Records, Sample, Thread, Writer, Written,
};

use super::shared::{Reader, Shared, WatchedRail, lock, now_ns, wall_ns};
use crate::log;

/// The time between two looks of the trace thread at the rings. A ring has room for what a thread notes in many times
/// this time.
const LOOK: Duration = Duration::from_millis(20);

/// The most records of one frame.
const MOST_RECORDS: usize = 8192;

/// The looks after which the counters of rails are sampled: ten times a second.
const LOOKS_PER_SAMPLE: u32 = 5;

/// The trace thread's own state.
pub(super) struct Drain {
    shared: Arc<Shared>,
    writer: Writer,
    looks: u32,
    /// The counters of each rail at the last sample, by connection and rail.
    seen: HashMap<(u32, u32), RailSample>,
    /// The number of files at that time.
    parts: u32,
}

impl Drain {
    pub(super) fn new(shared: Arc<Shared>, writer: Writer) -> Self {
        Self { shared, writer, looks: 0, seen: HashMap::new(), parts: 0 }
    }

    /// Runs until the trace is over. Returns the files that are left.
    pub(super) fn run(mut self) -> EarlierFiles {
        loop {
            let is_last = self.wait();
            self.look(is_last);
            if is_last {
                return self.writer.into_files();
            }
        }
    }

    /// Waits for the next look. Returns true if it is the last one.
    fn wait(&self) -> bool {
        let (mutex, condvar) = &self.shared.over;
        let is_over = || self.shared.is_over.load(Ordering::Acquire);
        let guard = lock(mutex);
        if !is_over() {
            drop(condvar.wait_timeout(guard, LOOK).unwrap_or_else(PoisonError::into_inner));
        }
        is_over()
    }

    /// Writes what was noted since the last look.
    fn look(&mut self, is_last: bool) {
        // The records first: a frame that names something is added before the first record that uses its number, so it
        // is there by now, and it goes into the file before them.
        let (mut records, mut ended) = (Vec::new(), Vec::new());
        {
            let mut rings = lock(&self.shared.rings);
            for reader in rings.iter_mut() {
                take(reader, &mut records);
            }
            let is_over = |reader: &mut Reader| reader.records.is_abandoned() && reader.records.is_empty();
            ended.extend(rings.extract_if(.., is_over).map(|reader| reader.number));
        }
        // The rails before the frames: those of a rail's connection are there by then.
        let rails = lock(&self.shared.rails).clone();
        for frame in std::mem::take(&mut *lock(&self.shared.frames)) {
            self.writer.add(&frame);
        }
        records.iter().for_each(|frame| self.writer.add(frame));
        ended.into_iter().for_each(|thread| self.writer.end_thread(thread));
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_PER_SAMPLE) || is_last {
            self.sample(&rails);
        }
        match self.writer.flush(now_ns(), wall_ns()) {
            Some(failed @ Written::Failed { .. }) => log::warn(&failed.to_string()),
            Some(recovered @ Written::Recovered { .. }) => log::info(&recovered.to_string()),
            None => {}
        }
    }

    /// Adds the state of those of these rails that have changed; of all if a file has begun, as the older ones may be
    /// gone.
    fn sample(&mut self, rails: &[WatchedRail]) {
        let mut samples: Vec<RailSample> = rails.iter().map(WatchedRail::sample).collect();
        for of_connection in samples.chunk_by_mut(|one, other| one.connection == other.connection) {
            self.set_shares(of_connection);
        }
        let parts = self.writer.parts();
        let is_new = std::mem::replace(&mut self.parts, parts) != parts;
        let seen = std::mem::take(&mut self.seen);
        samples.retain(|sample| {
            let key = (sample.connection, sample.number);
            let has_changed = seen.get(&key) != Some(sample);
            self.seen.insert(key, sample.clone());
            has_changed || is_new
        });
        if !samples.is_empty() {
            self.writer.add(&Frame::Sample(Sample { at_ns: now_ns(), rails: samples }));
        }
    }

    /// Sets the share of each rail of a connection: its part of the bytes since the last sample, or its last share if
    /// there were none.
    fn set_shares(&self, rails: &mut [RailSample]) {
        let before = |rail: &RailSample| self.seen.get(&(rail.connection, rail.number));
        let since = |rail: &RailSample| rail.sent.saturating_sub(before(rail).map_or(0, |before| before.sent));
        let all: u64 = rails.iter().map(since).sum();
        for rail in rails {
            rail.share = match all {
                0 => before(rail).and_then(|before| before.share),
                all => u32::try_from(u128::from(since(rail)) * 1_000_000 / u128::from(all)).ok(),
            };
        }
    }
}

/// Takes the records of a thread as frames. The number of those that it has lost is in the first frame, which has no
/// records if there are no others.
fn take(reader: &mut Reader, frames: &mut Vec<Frame>) {
    // Not more than there are now: the thread goes on. Those that it lost before the last of these are counted by now.
    let mut left = reader.records.slots();
    let lost = reader.lost.load(Ordering::Relaxed);
    let mut since = lost - std::mem::replace(&mut reader.told, lost);
    if left == 0 && since == 0 {
        return;
    }
    if !std::mem::replace(&mut reader.is_known, true) {
        let name = std::mem::take(&mut reader.name);
        frames.push(Frame::Thread(Thread { number: reader.number, tid: reader.tid, name }));
    }
    while left > 0 || since > 0 {
        let count = left.min(MOST_RECORDS);
        let mut bytes = Vec::with_capacity(count * RECORD_BYTES);
        while bytes.len() < count * RECORD_BYTES
            && let Ok(words) = reader.records.pop()
        {
            bytes.extend_from_slice(&Record::bytes(words));
        }
        frames.push(Frame::Records(Records { thread: reader.number, lost: std::mem::take(&mut since), bytes }));
        left -= count;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU64;

    use railweave_trace::{Process, TraceFile, What};
    use rtrb::RingBuffer;

    use super::*;
    use crate::trace::ring::note_all;

    /// Returns the frames of records, as the number of their losses and their records.
    fn taken(reader: &mut Reader) -> Vec<(u64, usize)> {
        let mut frames = Vec::new();
        take(reader, &mut frames);
        let records = frames.iter().filter_map(|frame| match frame {
            Frame::Records(it) => Some((it.lost, it.bytes.len() / RECORD_BYTES)),
            _ => None,
        });
        records.collect()
    }

    #[test]
    fn the_losses_of_a_thread_are_told_once_with_its_records_or_without() {
        let (mut producer, records) = RingBuffer::new(MOST_RECORDS + 1);
        let lost = Arc::new(AtomicU64::new(0));
        let name = String::new();
        let mut reader = Reader { records, lost: Arc::clone(&lost), told: 0, number: 1, tid: 1, name, is_known: false };
        assert_eq!(taken(&mut reader), []);
        assert!(!reader.is_known);
        while producer.push(Default::default()).is_ok() {}
        lost.store(3, Ordering::Relaxed);
        assert_eq!(taken(&mut reader), [(3, MOST_RECORDS), (0, 1)]);
        assert_eq!(taken(&mut reader), []);
        lost.store(5, Ordering::Relaxed);
        assert_eq!(taken(&mut reader), [(2, 0)]);
        assert_eq!(taken(&mut reader), []);
    }

    #[test]
    fn a_thread_never_waits_for_the_disk() {
        let shared = Shared::new(u64::MAX);
        let record = Record { at_ns: 1, what: What::EventEnd { event: 1 } };
        // Nobody empties the ring.
        let noted = 2 * crate::trace::ring::RECORDS;
        (0..noted).for_each(|_| note_all(&shared, &[record]));
        let mut rings = lock(&shared.rings);
        let taken = taken(&mut rings[0]);
        let (lost, kept) = taken.iter().fold((0, 0), |(lost, kept), it| (lost + it.0, kept + it.1));
        assert_eq!((lost, kept), (noted as u64 / 2, noted / 2));
    }

    #[test]
    fn the_ring_of_a_thread_that_has_ended_goes_once_it_is_written() {
        let dir = std::env::temp_dir().join(format!("railweave-rings-{}", std::process::id()));
        let shared = Arc::new(Shared::new(u64::MAX));
        let writer = Writer::new(&dir, Process::default(), 64 << 10, EarlierFiles::default());
        let mut drain = Drain::new(Arc::clone(&shared), writer);
        let record = Record { at_ns: 1, what: What::EventEnd { event: 1 } };
        std::thread::scope(|scope| _ = scope.spawn(|| note_all(&shared, &[record])).join());
        assert_eq!(lock(&shared.rings).len(), 1);
        drain.look(false);
        assert!(lock(&shared.rings).is_empty());
        let file = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
        let frames = TraceFile::read(&fs::read(file).unwrap()).unwrap().frames;
        assert!(frames.iter().any(|frame| matches!(frame, Frame::Records(it) if it.bytes.len() == RECORD_BYTES)));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_state_of_each_rail_is_in_each_file() {
        let dir = std::env::temp_dir().join(format!("railweave-drain-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let shared = Arc::new(Shared::new(u64::MAX));
        let counters = Arc::default();
        lock(&shared.rails).push(WatchedRail { connection: 1, number: 0, sends: true, counters });
        let writer = Writer::new(&dir, Process::default(), 64 << 10, EarlierFiles::default());
        let mut drain = Drain::new(Arc::clone(&shared), writer);
        let samples = || {
            let mut paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            let of = |path: &PathBuf| {
                let frames = TraceFile::read(&fs::read(path).unwrap()).unwrap().frames;
                frames.iter().filter(|frame| matches!(frame, Frame::Sample(_))).count()
            };
            paths.iter().map(of).collect::<Vec<_>>()
        };
        (0..3).for_each(|_| drain.look(true));
        assert_eq!(samples(), [2], "once more, as a file has begun since; then nothing has changed");
        let bytes = vec![0; 40 << 10];
        lock(&shared.frames).push(Frame::Records(Records { thread: 1, lost: 0, bytes }));
        (0..3).for_each(|_| drain.look(true));
        assert_eq!(samples(), [2, 1], "the second file may be the only one that is left");
        fs::remove_dir_all(&dir).unwrap();
    }
}
