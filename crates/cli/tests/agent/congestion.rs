//! The policy `avoid-congestion`, with counters of a tree instead of `/`.

use crate::host::{Agent, Scratch, until};
use crate::job::{Job, can_slow};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The pause frames of a port that is congested, per write.
const MARKS: u64 = 1000;

/// Writes the counters of a port, as `ethtool -S` prints them.
fn put_pauses(tree: &Path, port: &str, pauses: u64) {
    let text = format!("NIC statistics:\n     rx_prio3_pause: {pauses}\n");
    fs::write(tree.join("ethtool").join("new"), text).unwrap();
    fs::rename(tree.join("ethtool").join("new"), tree.join("ethtool").join(port)).unwrap();
}

fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("ethtool")).unwrap();
    for port in ["rail0", "rail1"] {
        let folder = tree.join("sys/class/net").join(port);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("operstate"), "up\n").unwrap();
        fs::write(folder.join("speed"), "1000\n").unwrap();
        put_pauses(tree, port, 0);
    }
}

/// Returns the part of its share that a port keeps.
fn weight(agent: &Agent, port: &str) -> f64 {
    let ports = agent.get("/api/v1/ports");
    let port = ports.as_array().unwrap().iter().find(|it| it["port"] == port).unwrap().clone();
    port["weight"].as_f64().unwrap()
}

#[test]
fn data_leaves_a_congested_port_and_comes_back() {
    if !can_slow() {
        return;
    }
    let scratch = Scratch::new("congestion");
    let tree = scratch.path().join("tree");
    make_tree(&tree);
    let mut job = Job::start(&scratch, "50,50");
    let config = "[avoid_congestion]\nenter_s = 1\nleave_s = 1\nleast = 0.4\n";
    let agent = Agent::start(&scratch, config, &["--root", tree.to_str().unwrap()]);
    until("about a half", || (0.4..0.6).contains(&job.share("rail1", "rail0")).then_some(()));
    assert!(!scratch.has_policy());
    let is_congested = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            for pauses in (0..).step_by(MARKS as usize) {
                if !is_congested.load(Ordering::Relaxed) {
                    break;
                }
                put_pauses(&tree, "rail1", pauses);
                thread::sleep(Duration::from_millis(300));
            }
        });
        // The thread ends even if this does not.
        let ends = Ends(&is_congested);
        until("less than a third", || (job.share("rail1", "rail0") < 1.0 / 3.0).then_some(()));
        assert!(agent.until_finding("port-congested").starts_with("data over port rail1 meets congestion"));
        assert!((weight(&agent, "rail0") - 1.0).abs() < 1e-9);
        drop(ends);
    });
    let least = weight(&agent, "rail1");
    assert!(least < 0.5, "{least}");
    until("a share that grows again", || (job.share("rail1", "rail0") > 0.35).then_some(()));
    assert!(weight(&agent, "rail1") > least);
    job.check();
}

/// Ends the congestion when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
