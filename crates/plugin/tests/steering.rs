//! Policy files that steer a running transfer.

mod common;

use common::{
    Buffer, Pair, TWO_RAILS, alone, each, in_namespace, info_lines, measures, noise, report, run_dir, start, until,
    warnings, warnings_with,
};
use railweave_nccl_host::Plugin;
use railweave_telemetry::{Policy, RailState, RunDir, SEED_POLICY_PATH, create_seed_policy, read};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BYTES: usize = 400_000;

/// The agent that the design of MPIB prints, with its loop slower or faster.
const AGENT: &str = r#"
import mmap, struct, time

SHM_PATH = "/dev/shm/mpib_policy"
MAGIC = 0x4D504942

def set_weight(rank, weight):
    with open(SHM_PATH, "r+b") as f:
        mm = mmap.mmap(f.fileno(), 0)
        # header: magic(4) + nranks(4)
        offset = 8 + rank * 8  # entry: weight(4) + version(4)
        mm[offset:offset+4] = struct.pack('f', weight)
        ver = struct.unpack('I', mm[offset+4:offset+8])[0]
        mm[offset+4:offset+8] = struct.pack('I', ver + 1)
        mm.close()

# Example: toggle weight every 5 seconds
while True:
    set_weight(0, 0.0); time.sleep(PAUSE)
    set_weight(0, 1.0); time.sleep(PAUSE)
"#;

/// A stream of messages over two rails.
struct Stream<'a> {
    plugin: &'a Plugin,
    pair: &'a Pair<'a>,
    from: Buffer,
    to: Buffer,
}

impl<'a> Stream<'a> {
    fn new(plugin: &'a Plugin, pair: &'a Pair<'a>) -> Self {
        Self { plugin, pair, from: pair.outgoing(&noise(7, BYTES)), to: pair.incoming(BYTES) }
    }

    /// Sends a message. Returns the parts of a thousand of its bytes that each rail carried, and the CTS of each.
    fn send(&self) -> [[u64; 2]; 2] {
        let counts = || {
            let mut rails = self.plugin.rail_counters().unwrap();
            rails.sort_by(|one, other| one.local.cmp(&other.local));
            [[rails[0].data_bytes, rails[1].data_bytes], [rails[0].cts_writes, rails[1].cts_writes]]
        };
        let before = counts();
        self.pair.transfer(&self.from, BYTES, &self.to);
        let after = counts();
        let part = |rail: usize| (after[0][rail] - before[0][rail]) * 1000 / BYTES as u64;
        [[part(0), part(1)], [after[1][0] - before[1][0], after[1][1] - before[1][1]]]
    }

    /// Sends messages until one is split so, in parts of a thousand.
    fn until_split(&self, expected: &str, is_so: impl Fn([u64; 2]) -> bool) {
        until(expected, || is_so(self.send()[0]).then_some(()));
    }

    /// Sends messages for a while, and checks that no file steers them. (Adaptive may give nearly all to one rail.)
    fn stays_unsteered(&self, time: Duration) {
        let (begin, mut sum) = (Instant::now(), [0; 2]);
        while begin.elapsed() < time {
            let [parts, _] = self.send();
            sum = [sum[0] + parts[0], sum[1] + parts[1]];
        }
        assert!(sum.iter().all(|part| *part > 0), "{sum:?}");
        let lines: Vec<_> = info_lines().into_iter().filter(|line| line.contains("a policy file orders")).collect();
        assert!(lines.is_empty(), "{lines:?}");
    }
}

/// Puts the policy file in place, with these rules.
fn order(rules: &str) {
    put(&format!("railweave-policy 1\nttl forever\n{rules}\n"));
}

fn put(text: &str) {
    let dir = run_dir();
    if !dir.exists() {
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    }
    fs::write(dir.join("new"), text).unwrap();
    fs::rename(dir.join("new"), dir.join("policy")).unwrap();
}

fn remove() {
    fs::remove_file(run_dir().join("policy")).unwrap();
}

/// Waits until the telemetry shows this policy for every connection and rail. The split alone does not tell which one
/// holds: the adaptive policy may give everything to one rail too.
fn until_policy(policy: Policy) {
    until("the policy in the telemetry", || {
        let file = RunDir::named(Some(&run_dir())).files().ok()?.pop()?;
        let state = read(&file).ok()?.state;
        let connections = state.connections.iter().all(|connection| connection.policy == policy);
        let rails = state.rails.iter().all(|rail| rail.policy == policy);
        (!state.connections.is_empty() && connections && rails).then_some(())
    });
}

fn is_on_both(parts: [u64; 2]) -> bool {
    parts.iter().all(|part| *part > 0)
}

#[test]
fn the_own_file_steers_a_running_transfer_and_its_removal_gives_the_settings_back() {
    alone(&[TWO_RAILS, ("SLURM_JOB_ID", "4711"), ("RANK", "2")], || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let stream = Stream::new(&plugin, &pair);
        stream.until_split("both rails", is_on_both);
        order("job=4711 rank=2 -> weights 0,1");
        until_policy(Policy::Agent);
        stream.until_split("all on the second", |parts| parts == [0, 1000]);
        order("any -> weights 3,1");
        stream.until_split("the weights", |parts| (740..=760).contains(&parts[0]));
        order("rail=127.0.0.2 -> drain\nany -> weights 0,1");
        // The name of a port over TCP is that of its interface.
        stream.until_split("the second rule", |parts| parts == [0, 1000]);
        // There are a few lines about orders in a second.
        sleep(Duration::from_millis(1100));
        order("rail=1 -> drain");
        stream.until_split("a drained rail", |parts| parts == [1000, 0]);
        until("CTS on the first rail only", || {
            (stream.send()[1] == [1, 0] && stream.send()[1] == [1, 0]).then_some(())
        });
        until("drained in the telemetry", || {
            let file = RunDir::named(Some(&run_dir())).files().ok()?.pop()?;
            let rails = read(&file).ok()?.state.rails;
            let of = |number: u8| rails.iter().filter(move |rail| rail.number == number);
            let ok =
                of(1).all(|rail| rail.state == RailState::Drained) && of(0).all(|rail| rail.state == RailState::Up);
            (rails.len() == 4 && ok && rails.iter().all(|rail| rail.policy == Policy::Adaptive)).then_some(())
        });
        order("any -> policy speed");
        stream.until_split("an even split", |parts| (490..=510).contains(&parts[0]));
        order("peer=nobody -> weights 1,0\nrank=3 -> weights 1,0\njob=4712 -> weights 1,0");
        sleep(Duration::from_millis(300));
        stream.until_split("both rails", is_on_both);
        order("any -> weights 1,0");
        stream.until_split("all on the first", |parts| parts == [1000, 0]);
        until_policy(Policy::Agent);
        remove();
        stream.until_split("both rails", is_on_both);
        assert!(warnings().is_empty(), "{:?}", warnings());
        let lines: Vec<_> = info_lines().into_iter().filter(|line| line.contains("policy file")).collect();
        assert!(lines.iter().any(|line| line.contains("weights 0,1")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("without rail 1")), "{lines:?}");
        pair.close();
    });
}

#[test]
fn a_new_connection_follows_the_file_from_its_first_message_on() {
    alone(&[TWO_RAILS], || {
        order("any -> weights 0,1");
        let (plugin, net) = start();
        let first = Pair::open(&net, &net, 0);
        until_policy(Policy::Agent);
        Stream::new(&plugin, &first).until_split("the file was read", |parts| parts == [0, 1000]);
        let pair = Pair::open(&net, &net, 0);
        assert_eq!(Stream::new(&plugin, &pair).send()[0], [0, 1000]);
    });
}

#[test]
fn the_order_that_holds_is_named_even_if_many_came_within_a_second() {
    alone(&[TWO_RAILS], || {
        order("any -> weights 1,1");
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let stream = Stream::new(&plugin, &pair);
        for first in [9_u64, 8, 7, 6, 4, 3, 2, 1] {
            order(&format!("any -> weights {first},{}", 10 - first));
            stream.until_split("the weights", |parts| (100 * first - 9..=100 * first + 9).contains(&parts[0]));
        }
        until("the last order in the log and in the telemetry", || {
            let lines = info_lines();
            let last = lines.iter().rfind(|line| line.contains("a policy file orders"))?;
            let file = RunDir::named(Some(&run_dir())).files().ok()?.pop()?;
            let events = read(&file).ok()?.events;
            let event = events.iter().rfind(|event| event.text.contains("a policy file orders"))?;
            (last.contains("weights 1,9") && event.text.contains("weights 1,9")).then_some(())
        });
        pair.close();
    });
}

#[test]
fn settings_that_name_a_policy_read_no_file() {
    let cases = [
        ("RAILWEAVE_POLICY", "adaptive"),
        ("RAILWEAVE_POLICY", "speed"),
        ("RAILWEAVE_WEIGHTS", "1,1"),
        ("RAILWEAVE_RUN_DIR", "none"),
    ];
    each(
        &cases,
        |case| vec![TWO_RAILS, *case],
        |(name, _)| {
            order("any -> weights 0,1");
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            // Without a file, the thread would look for one every second.
            Stream::new(&plugin, &pair).stays_unsteered(Duration::from_millis(1500));
            put("nonsense");
            Stream::new(&plugin, &pair).stays_unsteered(Duration::from_millis(1500));
            assert!(warnings().is_empty(), "{:?}", warnings());
            let said: Vec<_> =
                info_lines().into_iter().filter(|line| line.contains("/policy\" steers nothing")).collect();
            assert_eq!(said.len(), usize::from(*name != "RAILWEAVE_RUN_DIR"), "{said:?}");
        },
    );
}

#[test]
fn the_policy_agent_reads_the_files_even_if_there_are_weights() {
    alone(&[TWO_RAILS, ("RAILWEAVE_WEIGHTS", "1,0"), ("RAILWEAVE_POLICY", "agent")], || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let stream = Stream::new(&plugin, &pair);
        stream.until_split("adaptive", is_on_both);
        order("any -> policy static");
        stream.until_split("the user's weights", |parts| parts == [1000, 0]);
        order("any -> policy adaptive");
        stream.until_split("adaptive", is_on_both);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn static_without_weights_is_adaptive_and_said_once() {
    alone(&[TWO_RAILS], || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let stream = Stream::new(&plugin, &pair);
        for _ in 0..2 {
            order("any -> weights 1,0");
            until_policy(Policy::Agent);
            stream.until_split("the weights", |parts| parts == [1000, 0]);
            order("any -> policy static");
            until_policy(Policy::Adaptive);
            stream.until_split("adaptive", is_on_both);
        }
        let said = warnings_with(&["RAILWEAVE_WEIGHTS is not set"]);
        assert_eq!(said.len(), 1, "{said:?}");
    });
}

#[test]
fn a_bad_file_leaves_the_last_good_one_in_force_and_a_stale_one_orders_nothing() {
    alone(&[TWO_RAILS], || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let stream = Stream::new(&plugin, &pair);
        order("any -> weights 1,0");
        // The adaptive policy may give everything to one rail too, so the split alone does not tell that it holds.
        until("the order", || info_lines().into_iter().find(|line| line.contains("a policy file orders")));
        stream.until_split("the weights", |parts| parts == [1000, 0]);
        put("railweave-policy 1\nttl forever\nany -> weights 0,2000000\n");
        until("a warning", || warnings_with(&["line 3", "2000000"]).pop());
        assert_eq!(stream.send()[0], [1000, 0], "the last good file holds");
        // It is written again as long as nothing follows it: until then it may have become stale.
        until("the good file", || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            put(&format!("railweave-policy 1\nwritten {now}\nttl 1\nany -> weights 0,1\n"));
            sleep(Duration::from_millis(50));
            (stream.send()[0] == [0, 1000]).then_some(())
        });
        stream.until_split("its end", is_on_both);
        until("a warning", || warnings_with(&["ttl"]).pop());
        assert!(warnings().iter().all(|line| line.contains("2000000") || line.contains("ttl")), "{:?}", warnings());
    });
}

/// The agent while it runs; `None` if there is no Python.
struct Agent(Child);

impl Agent {
    fn start(pause_s: f64) -> Option<Self> {
        let program = AGENT.replace("PAUSE", &pause_s.to_string());
        match Command::new("python3").args(["-c", &program]).spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "python3 cannot be started: {error}");
                eprintln!("skipped: python3 cannot be started: {error}");
                None
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_agent_of_the_design_moves_the_traffic_from_rail_to_rail() {
    alone(&[TWO_RAILS, ("RANK", "0")], || {
        with_own_shm(|| {
            create_seed_policy(Path::new(SEED_POLICY_PATH), 4).unwrap();
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let stream = Stream::new(&plugin, &pair);
            stream.until_split("both rails", is_on_both);
            let Some(agent) = Agent::start(0.5) else { return };
            for _ in 0..3 {
                stream.until_split("all on the first", |parts| parts == [1000, 0]);
                stream.until_split("all on the second", |parts| parts == [0, 1000]);
            }
            drop(agent);
            // Its last weight may not be read yet.
            sleep(Duration::from_millis(300));
            let last = stream.send()[0];
            sleep(Duration::from_millis(300));
            assert_eq!(stream.send()[0], last, "a weight needs no heartbeat");
            fs::remove_file(SEED_POLICY_PATH).unwrap();
            stream.until_split("both rails", is_on_both);
            assert!(warnings().is_empty(), "{:?}", warnings());
        });
    });
}

#[test]
fn the_own_file_comes_before_the_table_and_a_peer_without_a_rank_is_not_in_it() {
    each(
        &[Some("0"), None],
        |rank| [TWO_RAILS].into_iter().chain(rank.map(|rank| ("RANK", rank))).collect(),
        |rank| {
            with_own_shm(|| {
                create_seed_policy(Path::new(SEED_POLICY_PATH), 1).unwrap();
                let (plugin, net) = start();
                let pair = Pair::open(&net, &net, 0);
                let stream = Stream::new(&plugin, &pair);
                set_weight(1.0, 1);
                if rank.is_none() {
                    until("a warning", || warnings_with(&["rank is not known"]).pop());
                    return stream.stays_unsteered(Duration::from_millis(200));
                }
                until_policy(Policy::Agent);
                stream.until_split("the table", |parts| parts == [0, 1000]);
                order("any -> weights 1,0");
                stream.until_split("the own file", |parts| parts == [1000, 0]);
                remove();
                stream.until_split("the table", |parts| parts == [0, 1000]);
                set_weight(f32::NAN, 2);
                until("a warning", || warnings_with(&["NaN"]).pop());
                assert_eq!(stream.send()[0], [0, 1000], "the last good weight holds");
            });
        },
    );
}

/// Runs a scenario with an empty /dev/shm of its own, because the table of weights has a fixed path.
fn with_own_shm(body: impl FnOnce()) {
    in_namespace("--mount", || {
        let status = Command::new("mount").args(["-t", "tmpfs", "none", "/dev/shm"]).status().unwrap();
        assert!(status.success(), "a file system can be mounted");
        body();
    });
}

/// Sets the weight of rank 0 as an agent does.
fn set_weight(weight: f32, version: u32) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).open(SEED_POLICY_PATH).unwrap();
    file.write_all_at(&weight.to_le_bytes(), 8).unwrap();
    file.write_all_at(&version.to_le_bytes(), 12).unwrap();
}

/// Measures the time from a store into the table to the first message that is split by it, if RAILWEAVE_TEST_TABLE
/// names a file for the result.
#[test]
fn the_time_from_a_store_to_the_first_split() {
    if !measures() {
        return;
    }
    alone(&[TWO_RAILS, ("RANK", "0")], || {
        with_own_shm(|| {
            create_seed_policy(Path::new(SEED_POLICY_PATH), 1).unwrap();
            let (plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let stream = Stream::new(&plugin, &pair);
            let mut times: Vec<Duration> = (1..=400)
                .map(|version| {
                    let on_second = version % 2 == 0;
                    set_weight(if on_second { 1.0 } else { 0.0 }, version);
                    let begin = Instant::now();
                    let wanted = if on_second { [0, 1000] } else { [1000, 0] };
                    while stream.send()[0] != wanted {}
                    let took = begin.elapsed();
                    // So that stores come at any time between two looks.
                    sleep(Duration::from_micros(u64::from(version * 7919 % 15_000)));
                    took
                })
                .collect();
            times.remove(0);
            times.sort();
            let ms = |place: usize| times[place].as_secs_f64() * 1e3;
            let last = times.len() - 1;
            let (median, p99) = (ms(last / 2), ms(last * 99 / 100));
            report(&format!("store to split: median {median:.2} ms, 99 % {p99:.2} ms, max {:.2} ms", ms(last)));
        });
    });
}
