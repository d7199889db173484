//! `railweave topo` between two processes, and with peers that are not what they should be.

use railweave_fabric::{Fault, LinkLayer};
use railweave_fake_ibverbs::build;
use railweave_patience::until;
use railweave_transport::{
    Frame, Hello, Message, Offer, PREFACE_BYTES, PROTOCOL_VERSION, PortOffer, Preface, ProcessId, Ways,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// Two rails that every Linux host has.
const RAILS: [(&str, &str); 2] = [("RAILWEAVE_FABRIC", "tcp"), ("RAILWEAVE_RAILS", "127.0.0.1,127.0.0.2")];

fn topo(settings: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.arg("topo").args(arguments).env_remove("RAILWEAVE_KEY_FILE").env_remove("RAILWEAVE_CONTROL_PORT");
    command.envs(RAILS).envs(settings.iter().copied());
    command
}

/// A `railweave topo --listen` that serves.
struct Listening {
    child: Child,
    port: u16,
    /// The lines on standard error and on standard output, as they come.
    lines: [Arc<Mutex<Vec<String>>>; 2],
}

fn collect(stream: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&lines);
    std::thread::spawn(move || {
        BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| to.lock().unwrap().push(line));
    });
    lines
}

/// Returns a port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Listening {
    fn start(settings: &[(&str, &str)], arguments: &[&str]) -> Self {
        // Another program may take the port meanwhile.
        (0..10).find_map(|_| Self::try_start(settings, arguments)).expect("a port is free")
    }

    fn try_start(settings: &[(&str, &str)], arguments: &[&str]) -> Option<Self> {
        let port = free_port();
        let mut command = topo(settings, &[&["--listen", "--port", &port.to_string()], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = [collect(child.stderr.take().unwrap()), collect(child.stdout.take().unwrap())];
        let mut listening = Self { child, port, lines };
        let waits = until("topo --listen waits", || {
            let said = listening.said(0, "waits at port");
            if said.is_some() {
                return Some(true);
            }
            listening.child.try_wait().unwrap().map(|_| false)
        });
        waits.then_some(listening)
    }

    fn said(&self, stream: usize, words: &str) -> Option<String> {
        self.lines[stream].lock().unwrap().iter().find(|line| line.contains(words)).cloned()
    }

    /// Waits for a line with these words on standard error.
    fn says(&self, words: &str) -> String {
        until(&format!("a line with {words:?}"), || self.said(0, words))
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn peer(&self, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
        topo(settings, &[&["--peer", &self.address().to_string()], arguments].concat()).output().unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the one line on standard error of a run that must fail.
fn error(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(output.stdout.is_empty());
    text
}

/// Writes a key that only its owner may read.
fn key(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("railweave-topo-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(bytes).unwrap();
    path
}

/// Checks that both ends show the same pairing, each from its side.
fn check_pairing(here: &Value, there: &Value) {
    assert_eq!(
        (&here["hosts"][0]["devices"], &here["hosts"][1]["devices"]),
        (&there["hosts"][1]["devices"], &there["hosts"][0]["devices"])
    );
    let rails = |view: &Value| view["pairs"][0]["rails"].as_array().unwrap().clone();
    assert_eq!(rails(here).len(), 2, "{here}");
    for (ours, theirs) in rails(here).iter().zip(rails(there)) {
        assert_eq!((&ours["ports"][0], &ours["ports"][1]), (&theirs["ports"][1], &theirs["ports"][0]));
        assert_eq!((&ours["subnet"], &ours["share"]), (&"127.0.0.0/8".into(), &0.5.into()));
    }
    assert_eq!((&here["pairs"][0]["step"], &there["pairs"][0]["step"]), (&1.into(), &1.into()));
}

#[test]
fn two_processes_show_the_same_pairing_one_peer_after_another() {
    let listening = Listening::start(&[], &["--json"]);
    for peers in 1..=2 {
        let here = json(&listening.peer(&[], &["--json"]));
        let there = until("a line for the peer", || listening.lines[1].lock().unwrap().get(peers - 1).cloned());
        check_pairing(&here, &serde_json::from_str(&there).unwrap());
    }
    let text = listening.peer(&[], &[]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("by step 1, a common subnet") && text.contains("lo@127.0.0.2"), "{text}");
}

#[test]
fn a_rail_that_only_one_side_has_is_named_on_both_with_its_reason() {
    let listening = Listening::start(&[("RAILWEAVE_RAILS", "127.0.0.1")], &[]);
    let output = listening.peer(&[("RAILWEAVE_RAILS", "127.0.0.1,127.0.0.2")], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("no rail: ")).expect("the port has no rail");
    assert!(line.contains("(this end) lo@127.0.0.2") && line.contains("has a partner"), "{line}");
    let line = until("the line of the other end", || listening.said(1, "no rail: "));
    assert!(line.contains("(the peer) lo@127.0.0.2") && line.contains("has a partner"), "{line}");
}

#[test]
fn a_peer_dials_from_an_address_at_which_it_can_be_dialled_back() {
    // Loopback rails alone: neither process listens anywhere else.
    let listening = Listening::start(&[("RAILWEAVE_RAILS", "127.0.0.1")], &[]);
    let output = listening.peer(&[("RAILWEAVE_RAILS", "127.0.0.2")], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().contains("lo@127.0.0.2"));
}

#[test]
fn a_peer_that_cannot_be_dialled_back_is_told_so() {
    let listening = Listening::start(&[], &["--timeout", "1"]);
    let mut peer = TcpStream::connect(listening.address()).unwrap();
    peer.set_read_timeout(Some(railweave_patience::LIMIT)).unwrap();
    let [low, high] = free_port().to_le_bytes();
    let port = PortOffer {
        link_layer: LinkLayer::Tcp,
        prefix_len: 8,
        lanes: 1,
        speed_mbps: 1,
        mtu: 1500,
        rail_id: -1,
        plane_id: -1,
        address: Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
    };
    let offer = Offer {
        nonce: u64::from_le_bytes([b'R', b'W', b'T', 1, low, high, 0, 1]),
        striped: false,
        traffic_class: None,
        ports: vec![port],
        ways: Ways::default(),
    };
    let reason = "railweave topo: device=x port=x/x/-".to_owned();
    peer.write_all(&Preface::Session.encode()).unwrap();
    peer.write_all(&frame(0, Message::Hello(hello(PROTOCOL_VERSION).encode()))).unwrap();
    peer.write_all(&frame(1, Message::Offer(offer))).unwrap();
    peer.write_all(&frame(1, Message::Refuse { fault: Fault::Local, of_rails: false, reason })).unwrap();
    let mut input = Vec::new();
    let told = loop {
        match Frame::decode(&input).unwrap() {
            Some((Frame { message: Message::Refuse { reason, .. }, .. }, _)) => break reason,
            Some((_, length)) => drop(input.drain(..length)),
            None => {
                let mut chunk = [0; 4096];
                let count = railweave_patience::in_time(peer.read(&mut chunk), "the refusal");
                assert!(count > 0, "the listener closed the session");
                input.extend_from_slice(&chunk[..count]);
            }
        }
    };
    assert!(told.contains("go both ways") && told.contains("RAILWEAVE_CONTROL_PORT"), "{told}");
    listening.says("cannot be dialled back");
}

#[test]
fn with_a_key_both_ends_need_it() {
    let one = key("one", b"one key of thirty-two characters");
    let other = key("other", b"two keys: sixteen or more");
    let [one, other] = [&one, &other].map(|path| [("RAILWEAVE_KEY_FILE", path.to_str().unwrap())]);
    let listening = Listening::start(&one, &[]);
    let text = error(&listening.peer(&other, &[]));
    assert!(text.contains("has another key") && text.contains("RAILWEAVE_KEY_FILE"), "{text}");
    listening.says("has another key");
    let text = error(&listening.peer(&[], &[]));
    assert!(text.contains("asks for a shared key, and this process has none"), "{text}");
    check_pairing(&json(&listening.peer(&one, &["--json"])), &{
        let again = Listening::start(&one, &["--json"]);
        again.peer(&one, &[]);
        serde_json::from_str(&until("a line for the peer", || again.lines[1].lock().unwrap().first().cloned())).unwrap()
    });
}

fn hello(version: u16) -> Hello {
    Hello {
        protocol_min: version,
        protocol_max: version,
        features: 0,
        mode: 1,
        fabrics: 1,
        network: 0,
        process: ProcessId([9; 16]),
        wanted: ProcessId::default(),
        nonce: [3; 32],
        pid: 4711,
        rank: -1,
        world: -1,
        host: "stranger".to_owned(),
        build: "test".to_owned(),
        control_port: 7,
    }
}

fn frame(connection: u32, message: Message) -> Vec<u8> {
    Frame { connection, message }.encode()
}

#[test]
fn strangers_get_a_line_each_and_the_next_peer_is_served() {
    let listening = Listening::start(&[], &["--timeout", "1"]);
    let dial = || TcpStream::connect(listening.address()).unwrap();
    let mut garbage = dial();
    garbage.write_all(&[b'x'; 100]).unwrap();
    listening.says("is not Railweave");
    let mut garbled = dial();
    garbled.write_all(&Preface::Session.encode()).unwrap();
    garbled.write_all(&[0xff; 100]).unwrap();
    listening.says("broke the control protocol");
    let mut newer = dial();
    newer.write_all(&Preface::Session.encode()).unwrap();
    newer.write_all(&frame(0, Message::Hello(hello(PROTOCOL_VERSION + 1).encode()))).unwrap();
    listening.says(&format!("speaks protocol versions {0} to {0}", PROTOCOL_VERSION + 1));
    let silent = dial();
    listening.says("did not say who it is");
    let mut early = dial();
    early.write_all(&Preface::Session.encode()).unwrap();
    early.write_all(&frame(0, Message::Hello(hello(PROTOCOL_VERSION).encode()))).unwrap();
    listening.says("did not show its ports in time");
    assert!(listening.peer(&[], &[]).status.success());
    drop((silent, early));
}

/// Accepts one session after another, and does `act` once HELLO has come.
fn fake_peer(act: impl Fn(&mut TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            socket.read_exact(&mut [0; PREFACE_BYTES]).unwrap();
            act(&mut socket);
            open.push(socket);
        }
    });
    address
}

fn ask(address: SocketAddr) -> String {
    error(&topo(&[], &["--peer", &address.to_string(), "--timeout", "1"]).output().unwrap())
}

#[test]
fn peers_that_do_not_answer_as_they_should_are_errors_with_a_remedy() {
    let silent = ask(fake_peer(|_| ()));
    assert!(silent.contains("no HELLO or proof came in time"), "{silent}");
    let other_version = ask(fake_peer(|socket| {
        let newer = hello(PROTOCOL_VERSION + 1);
        socket.write_all(&frame(0, Message::Hello(newer.encode()))).unwrap();
    }));
    assert!(other_version.contains("install the same version of Railweave"), "{other_version}");
    let tongue_tied = ask(fake_peer(|socket| {
        socket.write_all(&frame(0, Message::Hello(hello(PROTOCOL_VERSION).encode()))).unwrap();
    }));
    assert!(tongue_tied.contains("did not dial this host back in time"), "{tongue_tied}");
    // A process of a job refuses an offer for a listener that it does not have.
    let plugin = ask(fake_peer(|socket| {
        socket.write_all(&frame(0, Message::Hello(hello(PROTOCOL_VERSION).encode()))).unwrap();
        let reason = "there is no such listener".to_owned();
        let refuse = Message::Refuse { fault: Fault::Protocol, of_rails: false, reason };
        socket.write_all(&frame(1, refuse)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        socket
            .write_all(&frame(
                1,
                Message::Refuse {
                    fault: Fault::Protocol,
                    of_rails: false,
                    reason: "there is no such listener".to_owned(),
                },
            ))
            .unwrap();
    }));
    assert!(plugin.contains("there is no such listener") && plugin.contains("topo --listen"), "{plugin}");
    let nobody = ask(SocketAddr::from(([127, 0, 0, 1], free_port())));
    assert!(nobody.contains("Connection refused"), "{nobody}");
}

/// Returns the path of the built plugin: `RAILWEAVE_TEST_LIB` if it is set, otherwise the library that cargo builds
/// next to this program's tests.
fn library() -> PathBuf {
    std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from)
}

#[test]
fn a_process_of_a_job_says_that_it_has_no_such_listener() {
    let port = free_port();
    let mut job = Command::new(env!("CARGO_BIN_EXE_railweave"));
    job.args(["bench", "--sizes", "64KiB", "--seconds", "60", "--lib"]).arg(library()).envs(RAILS);
    job.env("RAILWEAVE_CONTROL_PORT", format!("{port}-{}", port.saturating_add(8)));
    let mut job = job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let said = until("the answer of the job's process", || {
        let output = topo(&[], &["--peer", &format!("127.0.0.1:{port}")]).output().unwrap();
        let text = error(&output);
        (!text.contains("refused (os error")).then_some(text)
    });
    job.kill().unwrap();
    job.wait().unwrap();
    assert!(said.contains("there is no such listener") && said.contains("topo --listen"), "{said}");
}

#[test]
fn a_port_in_use_and_a_peer_without_a_name_are_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let text = error(&topo(&[], &["--listen", "--port", &port]).output().unwrap());
    assert!(text.contains(&port) && text.contains("--port") && text.contains("in use"), "{text}");
    let text = error(&topo(&[], &["--peer", "no-such-host.invalid"]).output().unwrap());
    assert!(text.contains("no-such-host.invalid") && text.contains("allowed: a name or an address"), "{text}");
}

/// Takes SIGTERM, because a shell's background job, as this test may be, ignores that of Ctrl-C.
#[test]
fn a_signal_ends_the_listener() {
    let mut listening = Listening::start(&[], &[]);
    kill_process(Pid::from_child(&listening.child), Signal::TERM).unwrap();
    until("the listener ends", || listening.child.try_wait().unwrap());
}

/// Two adapters, one of them on a subnet that no peer has.
const MACHINE: &str = "\
[[device]]
name = 'mlx5_0'
guid = 0x100
[[device.port]]
speed = 'edr'
gid.0 = ['10.1.0.1', 'roce2', 0]
[[device]]
name = 'mlx5_1'
guid = 0x200
[[device.port]]
speed = 'edr'
gid.0 = ['10.2.0.1', 'roce2', 0]
[[device]]
name = 'mlx5_2'
[[device.port]]
state = 'down'
";

/// Settings by which the fake libibverbs presents the described machine. Its addresses lead nowhere, so that control
/// sessions use loopback.
fn rdma(name: &str, description: &str) -> Vec<(&'static str, String)> {
    let machine = std::env::temp_dir().join(format!("railweave-topo-{}-{name}.toml", std::process::id()));
    std::fs::write(&machine, description).unwrap();
    let library = build().to_str().unwrap().to_owned();
    vec![
        ("RAILWEAVE_IBVERBS_LIB", library),
        ("RAILWEAVE_TEST_MACHINE", machine.to_str().unwrap().to_owned()),
        ("RAILWEAVE_FABRIC", "verbs".to_owned()),
        ("RAILWEAVE_RAILS", "mlx5_0,mlx5_1,mlx5_2".to_owned()),
        ("RAILWEAVE_OOB_IF", "lo".to_owned()),
    ]
}

#[test]
fn rdma_devices_are_shown_with_those_that_are_not_used_and_pair_by_subnet() {
    let peers = MACHINE.replace(".0.1'", ".0.2'");
    let (ours, theirs) = (rdma("ours", MACHINE), rdma("theirs", &peers));
    let [ours, theirs] = [&ours, &theirs].map(|settings| -> Vec<(&str, &str)> {
        settings.iter().map(|(name, value)| (*name, value.as_str())).collect()
    });
    let shown = json(&topo(&ours, &["--json"]).output().unwrap());
    let names: Vec<&Value> = shown["devices"].as_array().unwrap().iter().map(|device| &device["name"]).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_1"], "{shown}");
    let subnet = &shown["devices"][0]["rails"][0]["subnet"];
    assert!(subnet.as_str().unwrap().starts_with("10.1.0."), "{shown}");
    assert_eq!(shown["mode"], "ports", "{shown}");
    let left_out = &shown["left_out"][0];
    assert!(left_out["name"].as_str().unwrap().contains("mlx5_2") && left_out["reason"].is_string(), "{shown}");
    let listening = Listening::start(&theirs, &[]);
    let view = json(&listening.peer(&ours, &["--json"]));
    let pairs = view["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 4, "{view}");
    for pair in pairs {
        let is_same = pair["devices"][0] == pair["devices"][1];
        assert_eq!(pair["rails"].as_array().unwrap().len(), 1, "{pair}");
        // Devices on different subnets are routed as far as anybody knows.
        assert_eq!(pair["step"] == 1, is_same, "{pair}");
    }
}

#[test]
fn the_drawing_is_written_and_a_file_that_cannot_be_is_named() {
    let file = std::env::temp_dir().join(format!("railweave-topo-{}.svg", std::process::id()));
    let output = topo(&[], &["--svg", file.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success());
    let local = std::fs::read_to_string(&file).unwrap();
    assert!(local.starts_with("<svg xmlns=") && local.contains("127.0.0.2/8"), "{local}");
    let listening = Listening::start(&[], &[]);
    assert!(listening.peer(&[], &["--svg", file.to_str().unwrap()]).status.success());
    let pairing = std::fs::read_to_string(&file).unwrap();
    assert!(pairing.contains("(this end) ↔ ") && pairing.contains("127.0.0.0/8"), "{pairing}");
    let output = topo(&[], &["--svg", "/no/such/directory/x.svg"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("/no/such/directory/x.svg"), "{text}");
}

#[test]
fn the_plan_of_two_hosts_on_one_subnet_needs_nothing() {
    let listening = Listening::start(&[], &[]);
    let plan = json(&listening.peer(&[], &["--routes", "--json"]));
    assert_eq!(plan["hosts"].as_array().unwrap().len(), 2);
    let text = listening.peer(&[], &["--routes"]);
    assert!(String::from_utf8(text.stdout).unwrap().contains("nothing is needed"));
    let output = topo(&[], &["--routes"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "--routes needs a peer");
}
