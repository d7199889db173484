//! A host with ports, processes and an agent, for the tests.

use crate::http::{Answer, TIMEOUT, exchange};
use railweave_patience::until;
use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Latencies, Port, Process, Publisher, Rail, RailState, RunDir, State,
};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The token of agents that have one.
pub(crate) const TOKEN: &str = "a-token-of-32-letters-and-signs.";

/// A folder with the files of a host, which is removed at the end.
pub(crate) struct Host(PathBuf);

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-agent-api-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn run_dir(&self, name: &str) -> RunDir {
        let dir = RunDir::named(Some(&self.0.join(name)));
        dir.make().unwrap();
        dir
    }

    /// Sets the number of congestion notifications that a port's adapter has had, and makes the port.
    pub(crate) fn set_port(&self, device: &str, notifications: u64) {
        let port = self.0.join(format!("root/sys/class/infiniband/{device}/ports/1"));
        for folder in ["counters", "hw_counters"] {
            fs::create_dir_all(port.join(folder)).unwrap();
        }
        let files = [
            ("state", "4: ACTIVE\n".to_owned()),
            ("phys_state", "5: LinkUp\n".to_owned()),
            ("rate", "100 Gb/sec (4X EDR)\n".to_owned()),
            ("counters/port_xmit_data", "2000\n".to_owned()),
            ("hw_counters/rp_cnp_handled", format!("{notifications}\n")),
        ];
        for (file, text) in files {
            // A reader never sees half of it.
            fs::write(port.join("new"), text).unwrap();
            fs::rename(port.join("new"), port.join(file)).unwrap();
        }
    }

    /// Starts an agent with a configuration.
    pub(crate) fn start(&self, config: &str) -> Agent {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (file, log) = (self.0.join("agent.toml"), self.0.join("log"));
        fs::write(&file, format!("every_ms = 100\n{config}")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
        command.arg("agent").arg("--config").arg(file).arg("--root").arg(self.0.join("root"));
        command.arg("--run-dir").arg(self.0.join("run")).arg("--run-dir").arg(self.0.join("other"));
        command.args(["--listen", &address.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Agent { child: child.spawn().unwrap(), address, socket: self.0.join("run/agent.sock"), log }
    }

    /// Starts an agent, and waits until it is ready, and its socket with it.
    pub(crate) fn start_ready(&self, config: &str) -> Agent {
        let agent = self.start(config);
        until("an agent that is ready", || agent.own("GET", "/readyz").ok().filter(|answer| answer.status == 200));
        agent
    }

    /// Writes a token, and returns the line of the configuration that names it.
    pub(crate) fn token(&self) -> String {
        let path = self.0.join("token");
        fs::write(&path, TOKEN).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        format!("token_file = {path:?}\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An agent, which is killed at the end.
pub(crate) struct Agent {
    child: Child,
    address: SocketAddr,
    socket: PathBuf,
    log: PathBuf,
}

impl Agent {
    /// Asks over the agent's socket.
    pub(crate) fn own(&self, method: &str, path: &str) -> io::Result<Answer> {
        self.own_with(method, path, "")
    }

    /// Asks over the agent's socket, with a body.
    pub(crate) fn own_with(&self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        exchange(stream, method, path, &["Host: localhost"], body)
    }

    /// Returns its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it as an operator does, and waits until it has.
    pub(crate) fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        until("the end of an agent", || self.child.try_wait().unwrap());
    }

    /// Asks over TCP, with these headers.
    pub(crate) fn tcp(&self, method: &str, path: &str, headers: &[&str]) -> io::Result<Answer> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        exchange(stream, method, path, headers, "")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent said:\n{}", self.log());
        }
    }
}

/// A process with a connection in each direction, over two ports.
pub(crate) struct Job {
    publisher: Publisher,
    state: State,
}

impl Job {
    /// Makes the file of a process, which `change` makes another one than this.
    pub(crate) fn new(dir: &RunDir, id: u8, change: impl FnOnce(&mut Process)) -> Self {
        let mut process = Process::of_this_process([id; 16], Some(3), None, |_| None);
        process.job = "4711".to_owned();
        change(&mut process);
        let connection = |number, direction| Connection {
            number,
            direction,
            state: ConnectionState::Open,
            device: Some(0),
            peer_host: "node8".into(),
            ..Connection::default()
        };
        let rail = |connection, number: u8| Rail {
            connection,
            number,
            state: RailState::Up,
            speed_mbps: Some(100_000),
            in_flight: Some(1 << 20),
            port: Some(number.into()),
            ..Rail::default()
        };
        let port = |name: &str| Port { name: name.to_owned(), fabric: "verbs".to_owned() };
        let state = State {
            process,
            devices: vec![Device { name: "mlx5_0+mlx5_1".into(), ..Device::default() }],
            connections: vec![connection(1, Direction::Send), connection(2, Direction::Receive)],
            rails: vec![rail(1, 0), rail(1, 1), rail(2, 0), rail(2, 1)],
            ports: vec![port("mlx5_0"), port("mlx5_1")],
        };
        let mut job = Self { publisher: Publisher::new(dir.clone(), [id; 16]), state };
        job.publish();
        job
    }

    /// Moves some data over each rail.
    pub(crate) fn go_on(&mut self) {
        for rail in &mut self.state.rails {
            let count = if rail.connection == 1 { &mut rail.bytes_sent } else { &mut rail.bytes_received };
            *count += 1 << 20;
            rail.retransmitted += 1;
            let Latencies(counts) = &mut rail.latencies;
            counts[5] += 1;
        }
        self.publish();
    }

    fn publish(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        assert!(self.publisher.publish(&self.state, now.as_nanos() as u64).is_none());
    }
}
