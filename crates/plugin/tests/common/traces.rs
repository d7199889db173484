//! The traces of a scenario's processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use railweave_trace::{Frame, RECORD_BYTES, Record, TraceFile, is_trace};

use super::run_dir;

/// Returns the folder of this scenario's traces.
pub(crate) fn dir() -> PathBuf {
    run_dir().with_file_name("traces")
}

/// Sets the folder of traces, before a plugin starts.
pub(crate) fn trace() {
    // SAFETY: this is the only thread of the scenario that reads or writes the environment by now.
    unsafe { std::env::set_var("RAILWEAVE_TRACE", dir()) };
}

pub(crate) fn files() -> Vec<TraceFile> {
    let Ok(entries) = fs::read_dir(dir()) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.iter().all(|path| is_trace(&path.display().to_string())), "{paths:?}");
    paths.iter().map(|path| TraceFile::read(&fs::read(path).unwrap()).unwrap()).collect()
}

pub(crate) fn file() -> TraceFile {
    let [file] = <[TraceFile; 1]>::try_from(files()).expect("one process has one file");
    assert_eq!(file.rest_bytes, 0);
    file
}

/// Returns the records of all threads. The file knows each thread before its first ones, and has lost none.
pub(crate) fn records(file: &TraceFile) -> Vec<Record> {
    let (mut threads, mut records) = (BTreeSet::new(), Vec::new());
    for frame in &file.frames {
        match frame {
            Frame::Thread(thread) => assert!(threads.insert(thread.number), "{thread:?}"),
            Frame::Records(of_thread) => {
                assert!(threads.contains(&of_thread.thread) && of_thread.lost == 0);
                let (all, rest) = of_thread.bytes.as_chunks::<RECORD_BYTES>();
                assert!(rest.is_empty());
                records.extend(all.iter().map(|bytes| Record::of(Record::words_in(bytes)).expect("a known record")));
            }
            _ => {}
        }
    }
    records.sort_by_key(|record| record.at_ns);
    records
}

pub(crate) fn names(file: &TraceFile) -> BTreeMap<u16, String> {
    let name = |frame: &Frame| match frame {
        Frame::Name(name) => Some((u16::try_from(name.number).unwrap(), name.text.clone())),
        _ => None,
    };
    file.frames.iter().filter_map(name).collect()
}

/// Returns the bytes that the rails of a connection had sent and received at their last samples.
pub(crate) fn sampled(file: &TraceFile, connection: u32) -> u64 {
    file.frames
        .iter()
        .filter_map(|frame| if let Frame::Sample(sample) = frame { Some(&sample.rails) } else { None })
        .flatten()
        .filter(|rail| rail.connection == connection)
        .map(|rail| (rail.number, rail.sent + rail.received))
        .collect::<BTreeMap<_, _>>()
        .values()
        .sum()
}
