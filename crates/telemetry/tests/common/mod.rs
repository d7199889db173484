//! Parts that the tests share: a folder of their own, a state with something in every field, and Python.

#![allow(dead_code)] // Each test program uses some.

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Latencies, Policy, Port, Process, Rail, RailState, RunDir, State,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The random id of the process in the tests.
pub(crate) const ID: [u8; 16] = [0xab; 16];

/// A time, in nanoseconds since 1970.
pub(crate) const NOW: u64 = 1_790_000_000_000_000_000;

/// A folder that is removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-telemetry-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns a run dir in the folder, made.
    pub(crate) fn run_dir(&self) -> RunDir {
        let dir = RunDir::named(Some(&self.path("run")));
        dir.make().unwrap();
        dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a state with this many connections of two rails each.
pub(crate) fn state(connections: u32) -> State {
    let process = Process {
        id: ID,
        pid: 4711,
        start_ticks: Some(123_456),
        boot_id: Some([3; 16]),
        pid_namespace: Some(4_026_531_836),
        host: "node7".into(),
        rank: Some(3),
        world: None,
        job: "job ü".into(),
        job_variable: "SLURM_JOB_ID".into(),
        version: "0.1.0".into(),
    };
    let device = Device {
        name: "mlx5_0+mlx5_1".into(),
        speed_mbps: Some(400_000),
        port_count: 2,
        fabric: "verbs".into(),
        ports: "mlx5_0:1, mlx5_1:1".into(),
    };
    let connection = |number| Connection {
        number,
        direction: Direction::Send,
        state: ConnectionState::Open,
        policy: Policy::Adaptive,
        device: Some(0),
        peer_rank: Some(9),
        peer_pid: Some(99),
        since_ns: NOW - 5,
        messages: Some(1000),
        waited_for_cts: 10,
        peer_host: "node8".into(),
        peer_process: Some([9; 16]),
    };
    let rail = |index: u32| Rail {
        connection: index / 2,
        number: (index % 2) as u8,
        state: RailState::Up,
        policy: Policy::Adaptive,
        lanes: Some(1),
        since_ns: NOW - 4,
        speed_mbps: Some(200_000),
        share: Some(32_768),
        in_flight: None,
        bytes_sent: 1 << 40,
        writes_sent: 77,
        cts_writes: 5,
        bytes_received: 6,
        waited_for_cts: Some(7),
        retransmitted: 8,
        failovers: 9,
        port: Some((index % 2) as u16),
        local: "fe80::1234:5678:9abc:def0".into(),
        remote: "10.0.0.2".into(),
        latencies: Latencies(std::array::from_fn(|bucket| index + bucket as u32)),
    };
    State {
        process,
        devices: vec![device],
        connections: (0..connections).map(connection).collect(),
        rails: (0..2 * connections).map(rail).collect(),
        ports: ["mlx5_0", "mlx5_1"].map(|name| Port { name: name.into(), fabric: "verbs".into() }).to_vec(),
    }
}

/// Runs a program of Python with an argument and returns its output. `None` if there is no Python here, which must not
/// happen in continuous integration.
pub(crate) fn python(program: &str, argument: &Path) -> Option<String> {
    let output = match Command::new("python3").arg("-c").arg(program).arg(argument).output() {
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!("skipped: python3 cannot be started: {error}");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}
