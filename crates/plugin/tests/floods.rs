//! Strangers that do not stop: the cost of each flood to the process, and a check that meanwhile an open connection has
//! no pause, an honest peer connects, and accept has no error. docs/edge.md shows the table; `cargo xtask stress table`
//! prints it.

mod common;

use common::{
    Buffer, OUR_VERSIONS, Pair, Stranger, TWO_RAILS, accept, connect, descriptors, each, heap_bytes, listen, noise,
    start, until_freed, until_heap_is_freed, warnings,
};
use railweave_fabric::LinkLayer;
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Handle as HandleBytes, NetApi, Request};
use railweave_transport::{
    Frame, Handle, Hello, Lanes, MAX_HELLO_BYTES, Message, Offer, PortOffer, Preface, Pulse, RailLanes, Ways,
};
use std::fs::{OpenOptions, Permissions, set_permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// An open connection is watched for `WINDOWS` windows, and the `LEFT_OUT` worst of them do not count: a shared machine
/// causes pauses too, but not in every window.
const WINDOWS: usize = 12;
const LEFT_OUT: usize = 3;
const WINDOW: Duration = Duration::from_millis(250);

/// The longest allowed pause of an open connection, and the longest allowed time of an honest connect; of `CONNECTS`,
/// the slowest does not count.
const MOST_PAUSE: Duration = Duration::from_millis(50);
const MOST_CONNECT: Duration = Duration::from_secs(1);
const CONNECTS: usize = 5;

/// Freed memory that still counts as in use: kept by allocators, or as spare room in the tables of keys, lanes and
/// set-ups, 375 to 482 KiB after the largest flood, which takes 56 MiB; and in the records of telemetry, some 100 KiB.
const SLACK_BYTES: usize = 1 << 20;

/// The most log lines: two kinds, each ten times per minute, and a few at the end.
const MOST_LINES: usize = 24;

/// One kind of flood.
struct Case {
    name: &'static str,
    keyed: bool,
    /// The process's hard limit of open files.
    files: Option<u64>,
    /// One step of one stranger, called until the test ends. Sockets in the list stay open.
    flood: fn(&Target, &mut Vec<TcpStream>),
    /// The limits: the control thread's share of a core, and the process's descriptors and memory.
    most_cpu: f64,
    /// The sockets accepted in one turn (64, unless a flood has another limit), and 20 of honest connections.
    most_files: usize,
    most_bytes: usize,
}

/// The target of a flood.
struct Target {
    bytes: HandleBytes,
    handle: Handle,
    garbage: Vec<u8>,
}

impl Target {
    fn dial(&self) -> Stranger {
        Stranger::dial(&self.bytes)
    }

    fn greeted(&self) -> Stranger {
        let mut stranger = self.dial();
        stranger.shake_hands();
        stranger
    }

    /// Returns a stranger that has sent a HELLO with these features, of at least `bytes` bytes.
    fn with_hello(&self, features: u32, bytes: usize) -> Stranger {
        let mut stranger = self.dial();
        let Message::Hello(hello) = stranger.hello(OUR_VERSIONS) else { unreachable!("it makes a HELLO") };
        let mut hello = Hello::decode(&hello).expect("its own HELLO");
        hello.features = features;
        let mut hello = hello.encode();
        hello.resize(hello.len().max(bytes), 0);
        stranger.begin();
        stranger.send(0, Message::Hello(hello));
        stranger
    }

    fn offer(&self, connection: u32) -> Vec<u8> {
        let port = PortOffer {
            link_layer: LinkLayer::Tcp,
            prefix_len: 8,
            lanes: 1,
            speed_mbps: 10_000,
            mtu: 65_536,
            rail_id: -1,
            plane_id: -1,
            address: Ipv4Addr::new(127, 0, 0, 9).to_ipv6_mapped(),
        };
        let offer = Offer {
            nonce: self.handle.nonce,
            striped: false,
            traffic_class: None,
            ports: vec![port],
            ways: Ways::default(),
        };
        Frame { connection, message: Message::Offer(offer) }.encode()
    }

    /// Sends an offer, followed by LANES if there is a `rail`, for each of `count` connections on one session, and
    /// reads the answers.
    fn offers(&self, count: u32, rail: Option<&RailLanes>) -> Stranger {
        let mut stranger = self.greeted();
        for connection in 1..=count {
            let mut bytes = self.offer(connection);
            if let Some(rail) = rail {
                let lanes = Lanes { byte_counts: false, stream: 0x1000, rails: vec![rail.clone()] };
                bytes.extend(Frame { connection, message: Message::Lanes(lanes) }.encode());
            }
            if !pour(&mut stranger.socket, &bytes) {
                break;
            }
        }
        stranger
    }
}

/// Sends bytes and reads pending input. Returns true if the bytes were taken.
fn pour(socket: &mut TcpStream, bytes: &[u8]) -> bool {
    let _ = socket.set_write_timeout(Some(Duration::from_secs(2)));
    let taken = socket.write_all(bytes).is_ok();
    let _ = socket.set_nonblocking(true);
    let mut answers = [0; 1 << 14];
    while socket.read(&mut answers).is_ok_and(|count| count > 0) {}
    let _ = socket.set_nonblocking(false);
    taken
}

/// Shuts down the sending side and waits until the other side has read all and closes, so that the next session finds
/// no earlier one.
fn until_closed(mut socket: TcpStream) {
    let _ = socket.shutdown(Shutdown::Write);
    let mut answers = [0; 1 << 14];
    while socket.read(&mut answers).is_ok_and(|count| count > 0) {}
}

/// Sends the same message for a second, or until it is no longer taken.
fn repeat(mut socket: TcpStream, message: Message) {
    let bytes = Frame { connection: 77, message }.encode().repeat(1000);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) && pour(&mut socket, &bytes) {}
}

/// Keeps the newest `most` sockets.
fn keep(held: &mut Vec<TcpStream>, socket: TcpStream, most: usize) {
    held.push(socket);
    if held.len() > most {
        held.remove(0);
    }
}

fn prefaces(target: &Target, held: &mut Vec<TcpStream>) {
    let mut stranger = target.dial();
    stranger.write(&Preface::Session.encode());
    keep(held, stranger.socket, 1500);
}

const CASES: &[Case] = &[
    Case {
        name: "BYE without end",
        keyed: false,
        files: None,
        flood: |target, _| repeat(target.greeted().socket, Message::Bye(None)),
        most_cpu: 0.8,
        most_files: 64 + 20,
        most_bytes: 1 << 20,
    },
    Case {
        name: "PING without end, the answers read",
        keyed: false,
        files: None,
        flood: |target, _| repeat(target.greeted().socket, Message::Ping(Pulse::default())),
        most_cpu: 0.8,
        most_files: 64 + 20,
        most_bytes: 1 << 20,
    },
    Case {
        name: "garbage without end, on three sockets at once",
        keyed: false,
        files: None,
        flood: |target, _| {
            let mut strangers: Vec<_> = (0..3).map(|_| target.greeted()).collect();
            for stranger in &mut strangers {
                pour(&mut stranger.socket, &target.garbage);
            }
        },
        most_cpu: 0.8,
        most_files: 64 + 20,
        most_bytes: 1 << 20,
    },
    Case {
        name: "no key where one is required, then BYE without end, on three sockets",
        keyed: true,
        files: None,
        flood: |target, _| {
            let bytes = Frame { connection: 77, message: Message::Bye(None) }.encode().repeat(1000);
            let mut strangers: Vec<_> = (0..3).map(|_| target.with_hello(0, 0)).collect();
            while strangers.iter_mut().any(|stranger| pour(&mut stranger.socket, &bytes)) {}
        },
        most_cpu: 0.8,
        most_files: 64 + 20,
        most_bytes: 1 << 20,
    },
    Case {
        name: "1,500 silent sockets, always renewed, in a process with 1,024 files",
        keyed: false,
        files: Some(1024),
        flood: |target, held| keep(held, target.dial().socket, 1500),
        most_cpu: 0.95,
        most_files: 256 + 20,
        most_bytes: 1 << 20,
    },
    Case {
        name: "1,500 silent sessions, always renewed, in a process with 1,024 files",
        keyed: false,
        files: Some(1024),
        flood: prefaces,
        most_cpu: 0.95,
        most_files: 256 + 20,
        most_bytes: 2 << 20,
    },
    Case {
        name: "the same where a key is required",
        keyed: true,
        files: Some(1024),
        flood: prefaces,
        most_cpu: 0.95,
        most_files: 256 + 20,
        most_bytes: 2 << 20,
    },
    Case {
        name: "1,000 HELLOs of 512 bytes that nothing proves",
        keyed: true,
        files: None,
        flood: |target, held| keep(held, target.with_hello(Hello::KEYED, MAX_HELLO_BYTES).socket, 1000),
        most_cpu: 0.95,
        // The flood keeps 1,000 sockets open, and older ones stay until the control thread has seen them close: the
        // limit is 4,096.
        most_files: 4096 + 20,
        most_bytes: 8 << 20,
    },
    Case {
        name: "with a handle: 20,000 OFFERs on each session",
        keyed: false,
        files: None,
        flood: |target, held| keep(held, target.offers(20_000, None).socket, 8),
        most_cpu: 0.95,
        most_files: 64 + 20,
        most_bytes: 24 << 20,
    },
    Case {
        name: "with a handle: 20,000 OFFERs with LANES on each session",
        keyed: false,
        files: None,
        flood: |target, held| {
            let rail = RailLanes::Open { key: 1, endpoints: vec![Default::default()] };
            keep(held, target.offers(20_000, Some(&rail)).socket, 8);
        },
        most_cpu: 0.95,
        most_files: 64 + 20,
        most_bytes: 96 << 20,
    },
    Case {
        name: "with a handle: an OFFER and its end, without end",
        keyed: false,
        files: None,
        flood: |target, _| {
            target.greeted().offer(1);
        },
        most_cpu: 0.95,
        most_files: 64 + 20,
        most_bytes: 1 << 20,
    },
    Case {
        name: "with a handle: rails that are left out for reasons, without end",
        keyed: false,
        files: None,
        flood: |target, _| {
            let rail = RailLanes::Dropped { reason: "for a reason ".repeat(15), is_of_way: false };
            until_closed(target.offers(500, Some(&rail)).socket);
        },
        most_cpu: 0.95,
        most_files: 64 + 20,
        most_bytes: 32 << 20,
    },
    Case {
        name: "the same, sessions begun without waiting for the last one's end",
        keyed: false,
        files: None,
        flood: |target, _| {
            let rail = RailLanes::Dropped { reason: "for a reason ".repeat(15), is_of_way: false };
            target.offers(500, Some(&rail));
        },
        most_cpu: 0.95,
        // Sessions whose peers have left stay until all their input is read: up to 4,096, and those of 1,024 set-ups.
        most_files: 4096 + 1024 + 20,
        // Mostly 1,024 set-ups of 54 KiB each, and 131,072 waiting offers of 1 KiB each.
        most_bytes: (54 + 128) << 20,
    },
    Case {
        name: "with a handle: PING without end next to a connection in set-up",
        keyed: false,
        files: None,
        flood: |target, _| {
            let mut stranger = target.greeted();
            stranger.offer(1);
            repeat(stranger.socket, Message::Ping(Pulse::default()));
        },
        most_cpu: 0.95,
        most_files: 64 + 20,
        most_bytes: 2 << 20,
    },
];

/// A process that floods until this value is dropped.
struct Flood {
    pid: libc::pid_t,
    link: UnixStream,
}

impl Flood {
    /// Forks the process. Call this first: the child holds a copy of everything that this process has opened.
    fn fork(flood: fn(&Target, &mut Vec<TcpStream>)) -> Self {
        let (link, mut theirs) = UnixStream::pair().expect("sockets can be made");
        // SAFETY: the child allocates, which glibc allows after a fork, and takes no lock that this process's other
        // threads may hold.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "a process can be forked");
        if pid > 0 {
            return Self { pid, link };
        }
        drop(link);
        // SAFETY: the arguments are numbers. The child ends with its parent, however the parent ends.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        set_most_files(4096);
        std::panic::set_hook(Box::new(|_| {}));
        let mut bytes = HandleBytes::default();
        if theirs.read_exact(&mut bytes.0).is_ok() {
            let handle = Handle::decode(&bytes.0).expect("the plugin's own handle");
            let target = Target { bytes, handle, garbage: noise(1, 1 << 16) };
            let mut held = Vec::new();
            loop {
                // A step panics when the plugin, rightly, closes its socket in the middle of a message.
                let _ = catch_unwind(AssertUnwindSafe(|| flood(&target, &mut held)));
            }
        }
        // SAFETY: ends the child; no destructor of the parent's may run in it.
        unsafe { libc::_exit(0) }
    }

    fn begin(&mut self, handle: &HandleBytes) {
        self.link.write_all(&handle.0).expect("the flood waits for its target");
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // SAFETY: it is this process's child, and nothing else waits for it.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Sets the soft and the hard limit of open files, if that is allowed.
fn set_most_files(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the call reads a variable of this function (setrlimit(2)).
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Returns the processor time of the control thread so far.
fn control_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let task = tasks
        .filter_map(Result::ok)
        .map(|task| task.path())
        .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "railweave-ctl"))
        .expect("there is a control thread");
    let stat = std::fs::read_to_string(task.join("schedstat")).expect("the kernel counts");
    Duration::from_nanos(stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("a number"))
}

/// The highest memory use and number of descriptors seen.
#[derive(Default)]
struct Most {
    bytes: usize,
    files: usize,
}

impl Most {
    fn look(&mut self) {
        self.bytes = self.bytes.max(heap_bytes());
        self.files = self.files.max(descriptors());
    }
}

/// An open connection that carries messages, and another one whose receiver tests the first of two receives and then
/// makes no call, so that the control thread must send the acknowledgement.
struct Honest<'n> {
    busy: Pair<'n>,
    silent: Pair<'n>,
    from: Buffer,
    to: Buffer,
    /// The receive posted ahead.
    ahead: Request,
}

impl<'n> Honest<'n> {
    fn new(net: &'n LoadedNet) -> Self {
        let (busy, silent) = (Pair::open(net, net, 0), Pair::open(net, net, 0));
        let (from, to) = (silent.outgoing(&[1; 8]), silent.incoming(8));
        let ahead = silent.irecv(&[to.part(7)]);
        Self { busy, silent, from, to, ahead }
    }

    fn owed(&mut self) -> Duration {
        self.silent.owed(&self.from, &self.to, &mut self.ahead)
    }

    /// Returns the longest time of a message or an acknowledgement in these windows, without the worst ones.
    fn pause(&mut self, windows: usize, most: &mut Most) -> Duration {
        let longest = |_| {
            let (begin, mut longest) = (Instant::now(), Duration::ZERO);
            while begin.elapsed() < WINDOW {
                let one = Instant::now();
                self.busy.exchange(1, 1000);
                longest = longest.max(one.elapsed()).max(self.owed());
                most.look();
            }
            longest
        };
        let mut longest: Vec<Duration> = (0..windows).map(longest).collect();
        longest.sort_unstable_by(|one, other| other.cmp(one));
        longest[windows * LEFT_OUT / WINDOWS]
    }
}

const KEY: &[u8] = b"a key of some length";

fn key_file() -> String {
    let path = format!("{}/key-of-floods", env!("CARGO_TARGET_TMPDIR"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).expect("a key file");
    file.write_all(KEY).expect("the key file is written");
    set_permissions(&path, Permissions::from_mode(0o600)).expect("the key file is closed to others");
    path
}

#[test]
fn whatever_a_flood_sends_the_process_stays_small_and_nobody_else_waits() {
    let key = key_file();
    each(
        CASES,
        |case| {
            // The shortest timeout: it detects a flood that keeps the control thread from its heartbeats.
            let mut settings = vec![TWO_RAILS, ("RAILWEAVE_PEER_TIMEOUT", "1")];
            if case.keyed {
                settings.push(("RAILWEAVE_KEY_FILE", &key));
            }
            settings
        },
        |case| {
            let mut flood = Flood::fork(case.flood);
            if let Some(files) = case.files {
                set_most_files(files);
            }
            let (_plugin, net) = start();
            let mut honest = Honest::new(&net);
            let (listening, handle) = listen(&net, 0);
            let before = honest.pause(WINDOWS / 3, &mut Most::default());
            let said = warnings().len();
            let (files, heap) = (descriptors(), heap_bytes());
            let mut most = Most::default();
            let (begin, ran) = (Instant::now(), control_time());
            flood.begin(&handle);
            let pause = honest.pause(WINDOWS, &mut most);
            let mut connects: Vec<Duration> = (0..CONNECTS as u64)
                .map(|round| {
                    let (own, handle) = listen(&net, 0);
                    let one = Instant::now();
                    let (send, recv) = (connect(&net, 0, &handle), accept(&net, &own));
                    let took = one.elapsed();
                    let other = Pair { from: &net, to: &net, send, recv };
                    other.exchange(round, 1000);
                    other.close();
                    net.close_listen(own).expect("the listen is closed");
                    most.look();
                    // The listener whose handle the stranger has reports no error either.
                    assert!(net.accept(&listening).expect("accept has no error").is_none());
                    took
                })
                .collect();
            let cpu = (control_time() - ran).as_secs_f64() / begin.elapsed().as_secs_f64();
            drop(flood);
            connects.sort_unstable();
            let cost = Cost {
                cpu,
                bytes: most.bytes.saturating_sub(heap),
                files: most.files.saturating_sub(files),
                connect: connects[CONNECTS - 2],
                pause,
                lines: warnings().len() - said,
            };
            eprintln!("{}: {}", case.name, cost.row());
            until_freed("its sockets are closed", || descriptors() <= files);
            until_heap_is_freed(heap + SLACK_BYTES);
            honest.busy.exchange(2, 100_000);
            honest.owed();
            // A shared machine may miss these limits once: `cargo xtask test` repeats a test that only ran out of time.
            let what = format!("a pause of {:?}, before the flood {before:?},", cost.pause);
            on_time(cost.pause <= MOST_PAUSE, &what, MOST_PAUSE);
            on_time(cost.connect <= MOST_CONNECT, &format!("an honest connect ({connects:?})"), MOST_CONNECT);
            assert!(cost.cpu <= case.most_cpu && cost.lines <= MOST_LINES);
            assert!(cost.bytes <= case.most_bytes && cost.files <= case.most_files);
            if let Some(path) = std::env::var_os("RAILWEAVE_TEST_TABLE") {
                let mut file =
                    OpenOptions::new().append(true).create(true).open(path).expect("the table can be written");
                file.write_all(format!("| {} {}\n", case.name, cost.row()).as_bytes())
                    .expect("the table can be written");
            }
        },
    );
}

/// Fails with the sentence of a timeout unless the limit was kept, or RAILWEAVE_TEST_PATIENCE is above 1.
fn on_time(is_so: bool, what: &str, limit: Duration) {
    assert!(is_so || railweave_patience::factor() > 1, "{}", railweave_patience::sentence(what, limit));
}

/// The cost of a flood.
struct Cost {
    cpu: f64,
    bytes: usize,
    files: usize,
    connect: Duration,
    pause: Duration,
    lines: usize,
}

impl Cost {
    fn row(&self) -> String {
        format!(
            "| {:.0} % | {} KiB | {} | {} ms | {} ms | {} |",
            self.cpu * 100.0,
            self.bytes.div_ceil(1024),
            self.files,
            self.connect.as_millis(),
            self.pause.as_millis(),
            self.lines
        )
    }
}
