//! Ports that an operator empties.

use crate::host::{Agent, Scratch};
use crate::job::{Job, can_slow};
use std::time::Instant;

/// The bytes that a cable without data may carry in a second: keep-alives, and the neighbours' greetings of IPv6.
const IDLE_BYTES_PER_S: f64 = 5_000.0;

#[test]
fn a_drained_port_carries_nothing_until_it_is_given_back() {
    if !can_slow() {
        return;
    }
    let scratch = Scratch::new("drain");
    let mut job = Job::start(&scratch, "50,50");
    let agent = Agent::start(&scratch, "", &[]);
    agent.drain("rail1");
    agent.until_phase("rail1", "empty");
    agent.until_said("port-empty: port rail1 is empty");
    let (counts, cable, begin) = (job.counts("rail1"), job.cable_bytes("rail1"), Instant::now());
    job.until_more("rail0", 12 << 20);
    assert_eq!(job.counts("rail1"), counts, "neither data nor CTS");
    let (grown, seconds) = (job.cable_bytes("rail1") - cable, begin.elapsed().as_secs_f64());
    eprintln!("a drained cable carried {grown} bytes in {seconds:.1} s");
    assert!((grown as f64) < IDLE_BYTES_PER_S * (seconds + 1.0), "{grown} bytes in {seconds} s");
    agent.give_back("rail1");
    job.until_more("rail1", 4 << 20);
    job.check();
    assert_eq!(agent.get("/api/v1/drains").as_array().map(Vec::len), Some(0));
}
