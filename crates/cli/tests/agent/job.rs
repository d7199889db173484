//! A job that sends checked messages over rails between two network namespaces.

use crate::host::{Scratch, is_root, until};
use railweave_telemetry::{RunDir, Snapshot, read};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The counts of the rails over one port, of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    pub(crate) cts: u64,
}

/// Returns true if this machine can slow rails. Otherwise says why not; with `CI=true` that is a failure.
pub(crate) fn can_slow() -> bool {
    let runs = |program: &str| {
        let version = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    if !is_root() {
        return false;
    }
    let can = runs("ip") && runs("tc");
    if !can {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, agents must be tested with iproute2");
        eprintln!("skipped: slowed rails need the package iproute2");
    }
    can
}

/// A job, which is killed at the end. A wrong byte in any message ends it before.
pub(crate) struct Job {
    child: Child,
    log: PathBuf,
    run_dir: RunDir,
}

impl Job {
    /// Starts a job over rails of these speeds in Mbit/s, and waits until all rails have carried data.
    pub(crate) fn start(scratch: &Scratch, shape: &str) -> Self {
        let mut job = Self::spawn(scratch, shape);
        for rail in 0..shape.split(',').count() {
            job.until_more(&format!("rail{rail}"), 1);
        }
        job
    }

    fn spawn(scratch: &Scratch, shape: &str) -> Self {
        let library = std::env::var_os("RAILWEAVE_TEST_LIB")
            .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from);
        let log = scratch.path().join("job.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
        command.args(["demo", "--verbose", "--seconds", "3600", "--shape", shape, "--lib"]).arg(library);
        command.env("RAILWEAVE_RUN_DIR", scratch.run_dir()).env("SLURM_JOB_ID", "4711");
        for variable in ["RAILWEAVE_RAILS", "RAILWEAVE_FABRIC", "RAILWEAVE_POLICY", "RAILWEAVE_WEIGHTS"] {
            command.env_remove(variable);
        }
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log, run_dir: RunDir::named(Some(&scratch.run_dir())) }
    }

    /// Returns the file of each rank, as soon as none is being written.
    fn snapshots(&self) -> Vec<Snapshot> {
        until("whole telemetry files", || {
            self.run_dir.files().ok()?.iter().map(|path| read(path).ok()).collect::<Option<Vec<_>>>()
        })
    }

    /// Returns the counts of all rails over a port.
    pub(crate) fn counts(&self, port: &str) -> Counts {
        let mut counts = Counts::default();
        for Snapshot { state, .. } in self.snapshots() {
            for rail in state.rails.iter().filter(|rail| state.port_of(rail).is_some_and(|it| it.name == port)) {
                counts.bytes += rail.bytes_sent;
                counts.writes += rail.writes_sent;
                counts.cts += rail.cts_writes;
            }
        }
        counts
    }

    /// Waits until the rails over a port have sent this many bytes more.
    pub(crate) fn until_more(&mut self, port: &str, bytes: u64) {
        let before = self.counts(port).bytes;
        until(&format!("{bytes} bytes more over {port}"), || {
            self.check();
            (self.counts(port).bytes >= before + bytes).then_some(())
        });
    }

    /// Returns the share of a port in the next bytes of two ports.
    pub(crate) fn share(&mut self, port: &str, other: &str) -> f64 {
        const ENOUGH: u64 = 8 << 20;
        let before = [port, other].map(|port| self.counts(port).bytes);
        until("enough bytes to see a share", || {
            self.check();
            let [one, two] = [self.counts(port).bytes - before[0], self.counts(other).bytes - before[1]];
            (one + two >= ENOUGH).then(|| one as f64 / (one + two) as f64)
        })
    }

    /// Checks that no message was wrong so far.
    pub(crate) fn check(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            railweave_patience::fail(format!("the job ended: {status}"), &self.log());
        }
    }

    /// Returns everything that it has said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the number of lines with these words that its ranks have said.
    pub(crate) fn count_said(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }

    /// Returns the bytes that have left both ends of a cable, with all headers.
    pub(crate) fn cable_bytes(&self, cable: &str) -> u64 {
        let of_side = |side: u32| -> u64 {
            let (name, file) = (
                format!("railweave-{}-{side}", self.child.id()),
                format!("/sys/class/net/{cable}/statistics/tx_bytes"),
            );
            let output = Command::new("ip").args(["netns", "exec", &name, "cat", &file]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        of_side(0) + of_side(1)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the job said:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}
