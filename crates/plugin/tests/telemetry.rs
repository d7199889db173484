//! The telemetry file of a process: it agrees with the counters, and nothing about it hurts a job.

mod common;

use common::{
    Buffer, Pair, Peer, TWO_RAILS, alone, each, in_namespace, listen, load, measures, noise, report, run_dir, start,
    until, warnings, with_peer,
};
use railweave_nccl_host::net::{Comm, Handle, NetApi};
use railweave_telemetry::{ConnectionState, Direction, EventKind, Policy, Presence, RailState, RunDir, Snapshot, read};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns the telemetry files in a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    RunDir::named(Some(dir)).files().unwrap_or_default()
}

/// Returns the content of the only telemetry file, once there is one.
fn only() -> Snapshot {
    until("a telemetry file", || match &files(&run_dir())[..] {
        [] => None,
        [file] => read(file).ok(),
        many => panic!("one process has many files: {many:?}"),
    })
}

/// Returns the content of the only telemetry file, once it is so.
fn once(expected: &str, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
    until(expected, || Some(only()).filter(&is_so))
}

fn kinds(snapshot: &Snapshot) -> Vec<EventKind> {
    snapshot.events.iter().map(|event| event.kind).collect()
}

/// Moves messages of one size.
fn traffic(pair: &Pair<'_>, count: usize, bytes: usize) {
    let (from, to) = (pair.outgoing(&noise(5, bytes)), pair.incoming(bytes));
    (0..count).for_each(|_| assert_eq!(pair.transfer(&from, bytes, &to), (bytes as i32, bytes as i32)));
    pair.release_outgoing(from);
    pair.release_incoming(to);
}

#[test]
fn the_file_agrees_with_the_counters_and_goes_at_the_end() {
    let settings = [TWO_RAILS, ("RANK", "3"), ("WORLD_SIZE", "8"), ("SLURM_JOB_ID", "4711")];
    alone(&settings, || {
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        traffic(&pair, 20, 1_000_000);
        traffic(&pair, 20, 100);
        let counted = plugin.rail_counters().unwrap();
        let sum = |snapshot: &Snapshot| {
            let rails = &snapshot.state.rails;
            let sum = |count: fn(&railweave_telemetry::Rail) -> u64| rails.iter().map(count).sum::<u64>();
            [
                sum(|rail| rail.bytes_sent),
                sum(|rail| rail.writes_sent),
                sum(|rail| rail.cts_writes),
                sum(|rail| rail.bytes_received),
            ]
        };
        let expected = counted.iter().fold([0; 4], |sum, rail| {
            [
                sum[0] + rail.data_bytes,
                sum[1] + rail.data_writes,
                sum[2] + rail.cts_writes,
                sum[3] + rail.received_bytes,
            ]
        });
        assert_eq!(expected[0], 20_002_000);
        let snapshot = once("all counts", |snapshot| sum(snapshot) == expected);
        let process = &snapshot.state.process;
        assert_eq!((process.pid, process.rank, process.world), (std::process::id(), Some(3), Some(8)));
        assert_eq!((&*process.job, &*process.job_variable), ("4711", "SLURM_JOB_ID"));
        assert_eq!(process.presence(), Presence::Running);
        let [device] = &snapshot.state.devices[..] else { panic!("{:?}", snapshot.state.devices) };
        assert_eq!((&device.name, device.port_count, &*device.fabric), (&net.properties(0).unwrap().name, 2, "tcp"));
        let connections = &snapshot.state.connections;
        assert_eq!(connections.len(), 2);
        for direction in [Direction::Send, Direction::Receive] {
            let connection = connections.iter().find(|connection| connection.direction == direction).unwrap();
            assert_eq!((connection.state, connection.policy), (ConnectionState::Open, Policy::Adaptive));
            assert_eq!((connection.device, connection.peer_rank), (Some(0), Some(3)));
            assert_eq!((connection.peer_pid, &connection.peer_host), (Some(std::process::id()), &process.host));
            assert_eq!(connection.peer_process, Some(process.id));
            assert_eq!(connection.messages, (direction == Direction::Receive).then_some(40), "{connection:?}");
            let rails: Vec<_> =
                snapshot.state.rails.iter().filter(|rail| rail.connection == connection.number).collect();
            assert_eq!(
                rails.iter().map(|rail| (rail.number, rail.state)).collect::<Vec<_>>(),
                [(0, RailState::Up), (1, RailState::Up)]
            );
            assert!(rails.iter().all(|rail| rail.lanes == Some(1) && !rail.local.is_empty()), "{rails:?}");
            let ports = rails.iter().map(|rail| snapshot.state.port_of(rail).map(|port| (&*port.name, &*port.fabric)));
            assert!(ports.eq(device.ports.split(',').map(|name| Some((name, "tcp")))), "{:?}", snapshot.state.ports);
            let shares: Vec<_> = rails.iter().map(|rail| rail.share.expect("it has moved something")).collect();
            assert!((65_534..=65_536).contains(&shares.iter().sum::<u32>()), "{shares:?}");
        }
        assert_eq!(kinds(&snapshot), [EventKind::OPENED; 2]);
        pair.close();
        let snapshot = once("no connection", |snapshot| snapshot.state.connections.is_empty());
        assert_eq!(snapshot.state.rails.len(), 0);
        assert_eq!(kinds(&snapshot)[2..], [EventKind::CLOSED; 2]);
        net.finalize().unwrap();
        assert_eq!(files(&run_dir()), Vec::<PathBuf>::new());
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_sender_is_sampled_while_it_moves_and_counts_messages_that_wait_for_cts() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        // Asked for many times, each of two messages waits once; the others do not.
        for _ in 0..2 {
            for _ in 0..100 {
                assert!(pair.try_isend(&from, 100_000, 7).unwrap().is_none(), "no receive is posted");
            }
            pair.transfer(&from, 100_000, &to);
        }
        once("two waits", |snapshot| {
            snapshot.state.connections.iter().map(|connection| connection.waited_for_cts).sum::<u64>() == 2
        });
        // One that waits while nothing moves, as in a job that hangs.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(pair.try_isend(&from, 100_000, 7).unwrap().is_none(), "no receive is posted");
        once("three waits", |snapshot| {
            snapshot.state.connections.iter().map(|connection| connection.waited_for_cts).sum::<u64>() == 3
        });
        until("latencies", || {
            pair.transfer(&from, 100_000, &to);
            let snapshot = only();
            let count: u64 = snapshot.state.rails.iter().map(|rail| rail.latencies.count()).sum();
            (count >= 3).then_some(())
        });
    });
}

#[test]
fn bytes_in_flight_are_gone_from_the_file_once_they_are_complete() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100_000)), pair.incoming(100_000));
        let in_flight =
            |snapshot: &Snapshot| snapshot.state.rails.iter().filter_map(|rail| rail.in_flight).sum::<u64>();
        let receive = pair.irecv(&[to.part(7)]);
        let send = pair.isend(&from, 100_000, 7);
        once("bytes in flight", |snapshot| in_flight(snapshot) == 100_000);
        until("the receive", || pair.test_recv(&receive).unwrap());
        // Later than the look after the last one that found a change: at the sender, the end changes no counter.
        std::thread::sleep(Duration::from_millis(500));
        until("the send", || pair.test_send(&send).unwrap());
        once("nothing in flight", |snapshot| in_flight(snapshot) == 0);
    });
}

#[test]
fn an_idle_process_writes_every_five_seconds_and_a_removed_file_comes_back() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let _listening = listen(&net, 0);
        let first = only();
        let later = once("another write", |snapshot| snapshot.generation > first.generation);
        assert!(later.written_ns - first.written_ns >= 4_900_000_000, "nothing has changed");
        let file = files(&run_dir()).remove(0);
        fs::remove_file(&file).unwrap();
        until("the file", || file.exists().then_some(()));
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_busy_process_goes_on_writing_several_times_a_second() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let busy = |time: Duration| {
            let begin = Instant::now();
            while begin.elapsed() < time {
                traffic(&pair, 10, 1000);
                std::thread::sleep(Duration::from_millis(10));
            }
            only().generation
        };
        busy(Duration::from_secs(2));
        until("five writes in a second", || {
            let before = only().generation;
            (busy(Duration::from_secs(1)) >= before + 5).then_some(())
        });
    });
}

/// Opens a connection whose peer is then killed, and calls `see` once a call has failed. Closes the connection and ends
/// in good order.
fn outlive(mut peer: Peer, see: fn()) {
    let (_plugin, net) = start();
    let mut handle = Handle::default();
    peer.link.read_exact(&mut handle.0).unwrap();
    let send = common::connect(&net, 0, &handle);
    once("a connection", |snapshot| snapshot.state.connections.len() == 1);
    peer.kill();
    let memory = Buffer::new(&net, Comm::Send(&send), 1000);
    // SAFETY: the buffer stays until the connection is closed.
    until("an error", || unsafe { net.isend(&send, memory.start(), 1000, 7, memory.registration()) }.err());
    memory.release(&net, Comm::Send(&send));
    see();
    net.close_send(send).unwrap();
    net.finalize().unwrap();
    assert!(kinds(&only()).contains(&EventKind::FAILED), "the last state stays");
}

/// Listens until the process is killed.
fn listen_for_good(mut link: UnixStream) {
    let (_plugin, net) = start();
    let (_listen, handle) = listen(&net, 0);
    link.write_all(&handle.0).unwrap();
    let _ = link.read(&mut [0]);
}

#[test]
fn a_failed_connection_and_its_reason_stay_in_the_file_after_the_end() {
    let see = || {
        let snapshot = once("a failed connection", |snapshot| {
            snapshot.state.connections.iter().any(|record| record.state == ConnectionState::Failed)
        });
        assert!(snapshot.state.rails.iter().all(|rail| rail.state == RailState::Down), "{:?}", snapshot.state.rails);
        let failed: Vec<_> = snapshot.events.iter().filter(|event| event.kind == EventKind::FAILED).collect();
        assert!(failed.len() == 1 && failed[0].text.len() > 10 && failed[0].connection == Some(0), "{failed:?}");
    };
    with_peer(&[TWO_RAILS], &[("RAILWEAVE_RUN_DIR", "none")], |peer| outlive(peer, see), listen_for_good);
}

#[test]
fn a_failed_connection_that_is_closed_at_once_is_in_the_file_too() {
    with_peer(&[TWO_RAILS], &[("RAILWEAVE_RUN_DIR", "none")], |peer| outlive(peer, || {}), listen_for_good);
}

#[test]
fn two_processes_have_a_file_each_and_that_of_a_killed_one_stays() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let _listening = listen(&net, 0);
            let mut ready = [0];
            peer.link.read_exact(&mut ready).unwrap();
            let both = until("two files", || {
                let all: Vec<_> = files(&run_dir()).iter().filter_map(|file| read(file).ok()).collect();
                (all.len() == 2).then_some(all)
            });
            let own = std::process::id();
            let theirs =
                both.iter().find(|snapshot| snapshot.state.process.pid != own).expect("theirs").state.process.clone();
            assert!(both.iter().any(|snapshot| snapshot.state.process.pid == own));
            assert_eq!(theirs.presence(), Presence::Running);
            peer.kill();
            assert_eq!(theirs.presence(), Presence::Gone);
            net.finalize().unwrap();
            let left = only();
            assert_eq!((left.state.process.pid, left.state.process.presence()), (theirs.pid, Presence::Gone));
        },
        |mut link| {
            let (_plugin, net) = start();
            let _listening = listen(&net, 0);
            until("its own file", || {
                let is_own = |snapshot: Snapshot| snapshot.state.process.pid == std::process::id();
                files(&run_dir()).iter().any(|file| read(file).is_ok_and(is_own)).then_some(())
            });
            link.write_all(&[1]).unwrap();
            let _ = link.read(&mut [0]);
        },
    );
}

#[test]
fn processes_with_other_folders_do_not_meet() {
    alone(&[TWO_RAILS], || {
        let other = run_dir().with_file_name("other");
        fs::DirBuilder::new().mode(0o700).create(&other).unwrap();
        fs::write(other.join("policy"), "railweave-policy 1\nttl forever\nany -> weights 0,1\n").unwrap();
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 100_000);
        let snapshot = once("two connections", |snapshot| snapshot.state.connections.len() == 2);
        assert!(snapshot.state.connections.iter().all(|connection| connection.policy == Policy::Adaptive));
        assert_eq!(files(&other), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_folder_that_cannot_be_used_is_said_once_and_hurts_no_job() {
    type Make = fn(&Path);
    let cases: [(&str, Make); 4] = [
        ("is not a folder", |path| fs::write(path, "").unwrap()),
        ("is a symbolic link", |path| symlink("/tmp", path).unwrap()),
        ("may be written by others", |path| {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        }),
        ("cannot be made", |path| fs::remove_dir(path.parent().unwrap()).unwrap()),
    ];
    each(
        &cases,
        |_| vec![TWO_RAILS],
        |(words, make)| {
            make(&run_dir());
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            // Longer than two attempts to write.
            std::thread::sleep(Duration::from_millis(2500));
            pair.exchange(1, 300_000);
            pair.close();
            net.finalize().unwrap();
            let said = warnings();
            assert!(said.len() == 1 && said[0].contains(words) && said[0].contains("RAILWEAVE_RUN_DIR"), "{said:?}");
            assert_eq!(files(&run_dir()), Vec::<PathBuf>::new());
        },
    );
}

#[test]
fn with_none_there_is_no_file_and_no_word_about_it() {
    alone(&[TWO_RAILS, ("RAILWEAVE_RUN_DIR", "none")], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        pair.close();
        net.finalize().unwrap();
        assert!(!run_dir().exists() && warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn a_full_folder_is_said_once_and_the_file_comes_once_there_is_room() {
    alone(&[TWO_RAILS], || {
        in_namespace("--mount", || {
            let dir = run_dir();
            fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
            let options = ["-t", "tmpfs", "-o", "size=64k,mode=0700", "none"];
            let status = std::process::Command::new("mount").args(options).arg(&dir).status().unwrap();
            assert!(status.success(), "a file system can be mounted");
            let filler = dir.join("filler");
            let mut file = fs::File::create(&filler).unwrap();
            while file.write_all(&[1; 4096]).is_ok() {}
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            std::thread::sleep(Duration::from_millis(2500));
            pair.exchange(1, 300_000);
            let said = warnings();
            assert!(said.len() == 1 && said[0].contains("cannot be written"), "{said:?}");
            fs::remove_file(&filler).unwrap();
            drop(file);
            once("two connections", |snapshot| snapshot.state.connections.len() == 2);
            assert_eq!(warnings().len(), 1);
        });
    });
}

#[test]
fn a_forked_child_leaves_the_file_to_its_parent() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let _listening = listen(&net, 0);
        let before = only();
        // SAFETY: the child makes its own state, and ends without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let net = load(None).init(1, None);
            let ok = net.is_ok_and(|net| {
                let _listening = listen(&net, 0);
                until("a file", || (files(&run_dir()).len() == 2).then_some(()));
                net.finalize().is_ok()
            });
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 0;
        // SAFETY: the child's id is from fork, and the status is a variable of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has a file of its own");
        let after = only();
        assert_eq!((after.state.process.pid, after.state.process.id), (std::process::id(), before.state.process.id));
    });
}

/// Returns the processor time of the control thread so far.
fn control_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_control =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "railweave-ctl");
    let task = tasks.into_iter().find(is_control).expect("there is a control thread");
    // The first number is the time on a processor in nanoseconds (Documentation/scheduler/sched-stats.rst).
    let stat = fs::read_to_string(task.join("schedstat")).unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Measures the part of a core that the control thread takes with 500 connection ends, idle and busy, with and without
/// telemetry, if RAILWEAVE_TEST_TABLE names a file for the results.
#[test]
fn the_cost_of_500_connection_ends() {
    if !measures() {
        return;
    }
    let cases = [("none", false), ("telemetry", false), ("telemetry and a policy file", true)];
    let settings = |(case, _): &(&'static str, bool)| match *case {
        "none" => vec![TWO_RAILS, ("RAILWEAVE_RUN_DIR", "none")],
        _ => vec![TWO_RAILS],
    };
    each(&cases, settings, |(case, has_policy)| {
        if *has_policy {
            fs::DirBuilder::new().mode(0o700).create(run_dir()).unwrap();
            fs::write(run_dir().join("policy"), "railweave-policy 1\nttl forever\npeer=nobody -> weights 1,0\n")
                .unwrap();
        }
        let (_plugin, net) = start();
        let pairs: Vec<_> = (0..250).map(|_| Pair::open(&net, &net, 0)).collect();
        let buffers: Vec<_> =
            pairs.iter().map(|pair| (pair.outgoing(&noise(1, 20_000)), pair.incoming(20_000))).collect();
        let seconds = Duration::from_secs(20);
        let part = |work: &dyn Fn()| {
            std::thread::sleep(Duration::from_secs(3));
            let (begin, before) = (Instant::now(), control_time());
            while begin.elapsed() < seconds {
                work();
            }
            (control_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0
        };
        let idle = part(&|| std::thread::sleep(Duration::from_millis(500)));
        let busy = part(&|| {
            for (pair, (from, to)) in pairs.iter().zip(&buffers) {
                pair.transfer(from, 20_000, to);
            }
            // Each connection moves at least ten times a second, and the control thread has a core to itself.
            std::thread::sleep(Duration::from_millis(20));
        });
        report(&format!("{case}: idle {idle:.3} %, busy {busy:.3} % of a core"));
    });
}
