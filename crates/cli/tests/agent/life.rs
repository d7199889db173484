//! Agents that die, hang, and follow each other, while a job goes on.

use crate::host::{Agent, Scratch, free_port, until};
use crate::job::{Job, can_slow};
use rustix::process::Signal;
use std::time::{SystemTime, UNIX_EPOCH};

/// The words of a rank whose policy file is too old, and those of one that follows a policy file.
const STALE: &str = "orders nothing: it was written";
const FOLLOWS: &str = ": a policy file orders the policy adaptive, without rail 1";

fn clock_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns the time in seconds since 1970 at which the policy file was written.
pub(crate) fn written_s(policy: &str) -> u64 {
    policy.lines().find_map(|line| line.strip_prefix("written ")).unwrap().parse().unwrap()
}

/// Waits until both ranks have said more often than this that their policy is too old, and send over rail1 again.
fn until_fallen_back(job: &mut Job, before: usize) {
    until("both ranks to say that the policy is too old", || (job.count_said(STALE) >= before + 2).then_some(()));
    job.until_more("rail1", 1 << 20);
}

/// Checks that each rank has said in turn that it follows a policy, and that the policy is too old.
fn check_turns(job: &Job) {
    let log = job.log();
    for rank in ["rank 0: ", "rank 1: "] {
        let of_rank = log.lines().filter(|line| line.starts_with(rank));
        let turns: Vec<bool> = of_rank
            .filter(|line| line.contains(FOLLOWS) || line.contains(STALE))
            .map(|line| line.contains(FOLLOWS))
            .collect();
        assert!(turns.len() >= 6 && turns.iter().enumerate().all(|(at, turn)| *turn == (at % 2 == 0)), "{log}");
    }
}

#[test]
fn a_job_goes_on_without_its_agent_and_follows_the_next_one() {
    if !can_slow() {
        return;
    }
    let scratch = Scratch::new("life");
    let mut job = Job::start(&scratch, "50,50");
    // Policies that are soon too old.
    let config = "ttl_s = 3\n";
    let first = Agent::start(&scratch, config, &[]);
    first.drain("rail1");
    first.until_phase("rail1", "empty");
    let before = job.count_said(STALE);
    first.kill();
    until_fallen_back(&mut job, before);
    let second = Agent::start(&scratch, config, &[]);
    second.until_phase("rail1", "empty");
    assert_eq!(second.count_said("port rail1 stays drained"), 1);
    let before = job.count_said(STALE);
    second.signal(Signal::STOP);
    until_fallen_back(&mut job, before);
    second.signal(Signal::CONT);
    second.until_phase("rail1", "empty");
    let (before, ended) = (job.count_said(STALE), clock_s());
    second.terminate();
    let policy = scratch.until_policy("rail=rail1,");
    assert!(written_s(&policy) >= ended, "the policy holds for its whole time after the end: {policy}");
    until_fallen_back(&mut job, before);
    check_turns(&job);
    job.check();
}

/// Waits until the policy is that of an agent, and some more data has moved under it.
fn until_written_by(agent: &Agent, scratch: &Scratch, job: &mut Job) {
    let policy = scratch.until_policy(&format!("process {} wrote this", agent.id()));
    assert!(policy.contains("rail=rail1,"), "{policy}");
    job.until_more("rail0", 4 << 20);
}

#[test]
fn the_next_agent_takes_over_what_an_operator_has_drained_without_a_gap() {
    if !can_slow() {
        return;
    }
    let scratch = Scratch::new("next");
    let mut job = Job::start(&scratch, "50,50");
    let port = free_port();
    let listen = ["--listen", &format!("127.0.0.1:{port}")];
    let first = Agent::start(&scratch, "", &listen);
    first.drain("rail1");
    first.until_phase("rail1", "empty");
    let counts = job.counts("rail1");
    let second = Agent::spawn(&scratch, &mut Agent::command(&scratch, "", &listen));
    second.until_said("another agent steers");
    assert_eq!(second.count_said(&format!("listen: 127.0.0.1:{port} is in use")), 1, "{}", second.log());
    assert_eq!(first.finding("not-steering"), None);
    first.kill();
    second.until_said("port rail1 stays drained");
    second.until_said(&format!("listen: 127.0.0.1:{port} is free"));
    second.until_said("is over");
    until_written_by(&second, &scratch, &mut job);
    until("the socket of the second agent", || second.try_get("/readyz").ok().filter(|(status, _)| *status == 200));
    assert_eq!(job.counts("rail1"), counts, "no gap");
    second.terminate();
    let third = Agent::start(&scratch, "", &listen);
    until_written_by(&third, &scratch, &mut job);
    assert_eq!(job.counts("rail1"), counts, "no gap");
    assert_eq!(job.count_said(STALE), 0, "{}", job.log());
    third.give_back("rail1");
    job.until_more("rail1", 1 << 20);
    job.check();
}
