//! Everything that an agent refuses.

use crate::host::{Agent, Scratch, exchange, free_port, is_root, over_tcp, set_mode, until};
use railweave_patience::in_time;
use rustix::process::Signal;
use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A token of the length that is asked for.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Writes the file of the token, with these permissions, and returns its path.
fn token_file(scratch: &Scratch, mode: u32) -> String {
    let path = scratch.file(&format!("token-{mode:o}"), &format!("{TOKEN}\n"));
    set_mode(&path, mode);
    path
}

/// Returns the status and the body of a request over TCP.
fn status(port: u16, method: &str, path: &str, headers: &[&str]) -> (u16, String) {
    in_time(over_tcp(port, method, path, headers), "an answer of the agent")
}

#[test]
fn orders_over_tcp_need_the_token_and_names_of_others_get_nothing() {
    let scratch = Scratch::new("open");
    let port = free_port();
    let agent = Agent::start(&scratch, "", &["--listen", &format!("127.0.0.1:{port}")]);
    let here = "Host: localhost";
    assert_eq!(status(port, "GET", "/metrics", &[here]).0, 200);
    assert_eq!(status(port, "GET", "/metrics", &[&format!("Host: 127.0.0.1:{port}")]).0, 200);
    for (method, path) in [("PUT", "drains/rail1"), ("DELETE", "drains/rail1"), ("POST", "reload")] {
        let (status, body) = status(port, method, &format!("/api/v1/{path}"), &[here]);
        assert!(status == 403 && body.contains("orders over TCP need a token"), "{method}: {status} {body}");
    }
    for name in ["railweave.example.org", "localhost.example.org:80", "127.0.0.1.example.org"] {
        let (status, body) = status(port, "GET", "/api/v1/state", &[&format!("Host: {name}")]);
        assert!(status == 403 && body.contains("names another host"), "{name}: {status} {body}");
    }
    assert_eq!(status(port, "GET", "/healthz", &["Host: railweave.example.org"]).0, 200);
    assert!(!scratch.has_policy());
    agent.terminate();
}

#[test]
fn with_a_token_everything_but_probes_needs_it() {
    let scratch = Scratch::new("token");
    let port = free_port();
    let token = token_file(&scratch, 0o600);
    let agent = Agent::start(&scratch, "", &["--listen", &format!("127.0.0.1:{port}"), "--token-file", &token]);
    let host = "Host: 127.0.0.1";
    let right = format!("Authorization: Bearer {TOKEN}");
    let wrong = format!("Authorization: Bearer {}", TOKEN.replace('f', "e"));
    let long = format!("{right}0");
    for (method, path) in [("GET", "/metrics"), ("PUT", "/api/v1/drains/rail1")] {
        for headers in [&[host][..], &[host, &wrong], &[host, &long], &[host, "Authorization: Bearer "]] {
            let (status, body) = status(port, method, path, headers);
            assert!(status == 401 && body.contains("the token is missing or wrong"), "{headers:?}: {status} {body}");
        }
    }
    assert!(!scratch.has_policy());
    assert_eq!(status(port, "GET", "/readyz", &[host]).0, 200);
    assert_eq!(status(port, "GET", "/metrics", &[host, &right]).0, 200);
    assert_eq!(status(port, "PUT", "/api/v1/drains/rail1", &[host, &right]).0, 202);
    scratch.until_policy("rail=rail1,");
    assert_eq!(status(port, "PUT", "/api/v1/drains/a%20b", &[host, &right]).0, 400);
    assert_eq!(status(port, "DELETE", "/api/v1/drains/rail2", &[host, &right]).0, 404);
    assert!(!agent.log().contains(TOKEN));
    agent.terminate();
}

#[test]
fn an_agent_that_would_not_be_safe_does_not_start() {
    let scratch = Scratch::new("refuses");
    let (open, good) = (token_file(&scratch, 0o640), token_file(&scratch, 0o400));
    let missing = scratch.path().join("missing").to_str().unwrap().to_owned();
    for (config, arguments, words) in [
        ("", &["--token-file", &open][..], "may be read by others than this user; allowed: a regular file"),
        ("", &["--token-file", &missing], "cannot be read"),
        ("", &["--token-file", "/dev/null"], "\"/dev/null\" is not a regular file; allowed: a regular file with mode"),
        ("", &["--listen", "0.0.0.0:0"], "is not an address of this host alone, and there is no token"),
        ("", &["--listen", "192.0.2.1:0", "--token-file", &good], "192.0.2.1:0 cannot be used"),
        ("ttl = 3\n", &[], "unknown field `ttl`"),
        ("fixed = [\"any -> fly\"]\n", &["--check"], "action: \"fly\" is not known"),
    ] {
        let agent = Agent::spawn(&scratch, &mut Agent::command(&scratch, config, arguments));
        let (code, text) = agent.end();
        assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.starts_with("railweave: ") && text.contains(words), "{text}");
    }
    let checked = Agent::command(&scratch, "[balance]\n", &["--check"]).output().unwrap();
    assert_eq!(String::from_utf8(checked.stdout).unwrap(), "the configuration is right\n");
    assert!(checked.status.success() && !scratch.run_dir().join("agent.sock").exists());
}

#[test]
fn a_wrong_configuration_is_not_taken_while_the_agent_runs() {
    let scratch = Scratch::new("reload");
    let agent = Agent::start(&scratch, "fixed = [\"any -> policy speed\"]\n", &[]);
    scratch.until_policy("any -> policy speed");
    agent.put_config("fixed = [\"any -> fly\"]\n");
    agent.signal(Signal::HUP);
    agent.until_said("the configuration was not taken, and the last one stays in force: ");
    assert!(agent.log().contains("action: \"fly\" is not known"), "{}", agent.log());
    scratch.until_policy("any -> policy speed");
    agent.put_config("fixed = [\"any -> policy static\"]\n");
    agent.signal(Signal::HUP);
    scratch.until_policy("any -> policy static");
    agent.put_config("");
    let (status, body) = in_time(agent.ask("POST", "/api/v1/reload"), "an answer of the agent");
    assert_eq!(status, 202, "{body}");
    until("no policy", || (!scratch.has_policy()).then_some(()));
    agent.terminate();
}

#[test]
fn an_agent_that_others_reach_keeps_its_token() {
    let scratch = Scratch::new("keep-token");
    let port = free_port();
    let open = format!("listen = \"0.0.0.0:{port}\"\ntoken_file = \"{}\"\n", token_file(&scratch, 0o600));
    let agent = Agent::start(&scratch, &open, &[]);
    let host = "Host: 127.0.0.1";
    assert_eq!(status(port, "GET", "/metrics", &[host]).0, 401);
    let token = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(status(port, "GET", "/metrics", &["Host: node1.example.org", &token]).0, 200, "others use its name");
    agent.put_config(&format!("listen = \"127.0.0.1:{port}\"\n"));
    agent.signal(Signal::HUP);
    agent.until_said("the configuration was not taken, and the last one stays in force: listen: 0.0.0.0:");
    assert_eq!(status(port, "GET", "/metrics", &[host]).0, 401);
    agent.terminate();
}

#[test]
fn a_configuration_that_is_a_pipe_stops_no_look() {
    let scratch = Scratch::new("pipe");
    let agent = Agent::start(&scratch, "fixed = [\"any -> policy speed\"]\n", &[]);
    agent.replace_config_by_pipe();
    agent.signal(Signal::HUP);
    agent.until_said("toml\" is a pipe; allowed: a file that can be read again");
    fs::remove_file(scratch.run_dir().join("policy")).unwrap();
    scratch.until_policy("any -> policy speed");
    agent.terminate();
}

#[test]
fn idle_and_wild_connections_do_not_keep_others_from_working() {
    let scratch = Scratch::new("crowd");
    let port = free_port();
    let agent = Agent::start(&scratch, "", &["--listen", &format!("127.0.0.1:{port}")]);
    let idle: Vec<_> = (0..80).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
    assert!(agent.try_get("/metrics").unwrap().1.ends_with("# EOF\n"));
    drop(idle);
    assert_eq!(status(port, "GET", "/readyz", &["Host: localhost"]).0, 200);
    let garbage: Vec<u8> = (0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..10 {
        // It answers or closes before it has read everything.
        let mut tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut own = UnixStream::connect(scratch.run_dir().join("agent.sock")).unwrap();
        let _ = (tcp.write_all(&garbage), own.write_all(&garbage));
        let _ = (tcp.read(&mut [0; 64]), own.read(&mut [0; 64]));
    }
    assert_eq!(status(port, "GET", "/healthz", &["Host: localhost"]).0, 200);
    assert!(agent.try_get("/metrics").unwrap().1.ends_with("# EOF\n"));
    agent.terminate();
}

/// The time after which a connection without a request may not be kept, with much of it for a slow machine.
const NOT_KEPT: Duration = Duration::from_secs(20);

#[test]
fn connections_that_idle_give_their_places_to_new_ones() {
    let scratch = Scratch::new("places");
    let port = free_port();
    let agent = Agent::start(&scratch, "", &["--listen", &format!("127.0.0.1:{port}")]);
    let connect = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(NOT_KEPT)).unwrap();
        stream
    };
    // These have had an answer, and may idle for longer than the others.
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answered = |mut stream: &TcpStream| {
        stream.write_all(request.as_bytes())?;
        let mut answer = [0; 1024];
        let count = stream.read(&mut answer)?;
        answer[..count].starts_with(b"HTTP/1.1 200").then_some(()).ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    let idle: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    for stream in &idle[250..] {
        in_time(answered(stream), "an answer of the agent");
    }
    let answers: Vec<_> = (0..300).map(|_| connect()).inspect(|it| in_time(answered(it), "an answer")).collect();
    assert_eq!(status(port, "GET", "/healthz", &["Host: localhost"]).0, 200);
    assert_eq!((&answers[0]).read(&mut [0; 1]).unwrap(), 0, "it has lost its place");
    in_time(answered(&answers[299]), "an answer on a connection that was used lately");
    in_time(answered(&answers[100]), "an answer on a connection that is still there");
    let _more: Vec<_> = (0..100).map(|_| connect()).inspect(|it| in_time(answered(it), "an answer")).collect();
    in_time(answered(&answers[100]), "an answer on an older connection that was used lately");
    agent.terminate();
}

#[test]
fn a_request_that_does_not_come_ends_its_connection() {
    let scratch = Scratch::new("drops");
    let port = free_port();
    let agent = Agent::start(&scratch, "", &["--listen", &format!("127.0.0.1:{port}")]);
    let begin = Instant::now();
    let mut silent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    silent.set_read_timeout(Some(NOT_KEPT)).unwrap();
    let mut slow = UnixStream::connect(scratch.run_dir().join("agent.sock")).unwrap();
    // A byte at a time.
    until("the end of a connection whose request is slow", || {
        std::thread::sleep(Duration::from_millis(100));
        slow.write_all(b"G").is_err().then_some(())
    });
    assert_eq!(silent.read(&mut [0; 64]).unwrap(), 0);
    assert!(begin.elapsed() < NOT_KEPT, "{:?}", begin.elapsed());
    agent.terminate();
}

/// Returns an agent of user 65,534.
fn unprivileged(scratch: &Scratch) -> Agent {
    // That user may not be able to start the program where it lies.
    let program = scratch.path().join("railweave");
    fs::copy(env!("CARGO_BIN_EXE_railweave"), &program).unwrap();
    set_mode(scratch.path(), 0o755);
    let command = Agent::command(scratch, "drain = [\"rail1\"]\n", &[]);
    let mut unprivileged = Command::new(program);
    unprivileged.args(command.get_args()).current_dir("/").uid(65_534).gid(65_534);
    Agent::spawn(scratch, &mut unprivileged)
}

#[test]
fn an_agent_of_another_user_cannot_use_the_folder_and_says_so() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("nobody");
    let agent = unprivileged(&scratch);
    agent.until_said("not watched: ");
    agent.until_said("agent.sock\" cannot be used");
    assert_eq!(agent.count_said("not watched: "), 1, "{}", agent.log());
    assert_eq!(fs::read_dir(scratch.run_dir()).unwrap().count(), 0);
    agent.terminate();
}

#[test]
fn a_lock_that_may_not_be_opened_is_named_with_those_who_may_remove_it() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("denied");
    std::os::unix::fs::chown(scratch.run_dir(), Some(65_534), None).unwrap();
    let lock = scratch.run_dir().join("agent.lock");
    fs::write(&lock, "").unwrap();
    set_mode(&lock, 0o600);
    let agent = unprivileged(&scratch);
    agent.until_said("not-steering");
    let words = "belongs to user 0, and this user may not open it";
    assert!(agent.log().contains(words) && agent.log().contains("as user 65534 or root"), "{}", agent.log());
    fs::remove_file(&lock).unwrap();
    scratch.until_policy("rail=rail1,");
    agent.terminate();
}

/// Writes a policy file that looks like an agent's, and says that an operator has drained a port.
fn drain_by_file(run_dir: &Path, port: &str, owner: u32) {
    let text = format!(
        "railweave-policy 1\n# railweave agent 0.1.0 on here, process 1 wrote this\n# drained {port}\nttl forever\n\
         rail={port} -> drain\n"
    );
    let path = run_dir.join("policy.whole");
    fs::write(&path, text).unwrap();
    std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
    fs::rename(path, run_dir.join("policy")).unwrap();
}

#[test]
fn only_the_agents_own_file_says_that_an_operator_drained_a_port() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("inherit");
    let other = scratch.path().join("other");
    DirBuilder::new().mode(0o700).create(&other).unwrap();
    std::os::unix::fs::chown(&other, Some(65_534), None).unwrap();
    drain_by_file(&scratch.run_dir(), "rail1", 0);
    drain_by_file(&other, "rail2", 65_534);
    let agent = Agent::start(&scratch, "", &["--run-dir", other.to_str().unwrap()]);
    assert_eq!(agent.count_said("stays drained"), 1, "{}", agent.log());
    let drains = agent.get("/api/v1/drains");
    assert_eq!((drains.as_array().map(Vec::len), &drains[0]["port"]), (Some(1), &"rail1".into()), "{drains}");
    // It is an agent's all the same, so this one replaces it.
    until("the agent's own orders", || {
        fs::read_to_string(other.join("policy")).ok().filter(|text| text.contains("rail=rail1,"))
    });
    // Had it not known them at its first look, it would have removed the other policy file and written it again.
    let metrics = in_time(agent.try_get("/metrics"), "an answer of the agent").1;
    assert!(metrics.contains("railweave_agent_policy_writes_total{user=\"65534\"} 1\n"), "{metrics}");
    // A file of root in the folder of another user may be one that this user has moved there.
    agent.give_back("rail1");
    until("no policy", || (!other.join("policy").exists()).then_some(()));
    agent.terminate();
    drain_by_file(&other, "rail2", 0);
    let agent = Agent::start(&scratch, "", &["--run-dir", other.to_str().unwrap()]);
    until("no policy", || (!other.join("policy").exists()).then_some(()));
    assert_eq!(agent.count_said("stays drained"), 0, "{}", agent.log());
    agent.terminate();
    // Without a folder of its own, it can keep none.
    std::os::unix::fs::chown(scratch.run_dir(), Some(65_534), None).unwrap();
    let agent = Agent::spawn(&scratch, &mut Agent::command(&scratch, "drain = [\"rail1\"]\nttl_s = 3\n", &[]));
    let first = scratch.until_policy("written ");
    until("the next policy", || (scratch.until_policy("written ") != first).then_some(()));
    assert_eq!(agent.count_said("no run dir belongs to this agent's user"), 1, "{}", agent.log());
    agent.terminate();
}

#[test]
fn a_file_of_root_says_nothing_about_drains_to_the_agent_of_a_user() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("of-root");
    std::os::unix::fs::chown(scratch.run_dir(), Some(65_534), None).unwrap();
    drain_by_file(&scratch.run_dir(), "rail2", 0);
    let agent = unprivileged(&scratch);
    let policy = scratch.until_policy("rail=rail1,");
    assert!(!policy.contains("rail2"), "{policy}");
    assert_eq!(agent.count_said("stays drained"), 0, "{}", agent.log());
    agent.terminate();
}

#[test]
fn a_log_on_a_full_disk_ends_no_agent() {
    let scratch = Scratch::new("full-log");
    let mut command = Agent::command(&scratch, "", &[]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(Stdio::null()).stderr(full).spawn().unwrap();
    let ask = |method: &str, path: &str| {
        let stream = UnixStream::connect(scratch.run_dir().join("agent.sock"))?;
        exchange(stream, &format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    };
    until("an agent that is ready", || ask("GET", "/readyz").ok().filter(|(status, _)| *status == 200));
    assert_eq!(in_time(ask("PUT", "/api/v1/drains/eth0"), "an answer of the agent").0, 202);
    scratch.until_policy("rail=eth0,");
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_folder_that_is_refused_is_a_finding() {
    let scratch = Scratch::new("refused-folder");
    let other = scratch.path().join("other");
    DirBuilder::new().mode(0o777).create(&other).unwrap();
    set_mode(&other, 0o777);
    let missing = scratch.path().join("missing");
    let folders = ["--run-dir", other.to_str().unwrap(), "--run-dir", missing.to_str().unwrap()];
    let agent = Agent::start(&scratch, "", &folders);
    assert!(agent.until_finding("file-refused").contains("may be written by others"));
    assert_eq!(agent.get("/api/v1/findings").as_array().map(Vec::len), Some(1), "one that is missing has no jobs");
    set_mode(&other, 0o700);
    until("no finding", || agent.finding("file-refused").is_none().then_some(()));
    agent.terminate();
}

#[test]
fn files_that_take_long_to_read_wait_for_their_turn() {
    let scratch = Scratch::new("long");
    // A look at each waits twice for its writer.
    let name = |number: u32| scratch.run_dir().join(format!("{number:032x}.railweave"));
    (0..400).for_each(|number| fs::write(name(number), "").unwrap());
    let agent = Agent::start(&scratch, "", &[]);
    agent.until_said("of them wait for the next look; allowed: as many as can be read in 250 ms");
    // All of them had their turn.
    let is_said = |text: &str| text.lines().any(|line| line.contains("unreadable_files{") && line.ends_with(" 400.0"));
    until("findings about all files", || agent.try_get("/metrics").ok().filter(|(_, text)| is_said(text)));
    agent.until_said("/run\": is over");
    (0..400).for_each(|number| fs::remove_file(name(number)).unwrap());
    until("no finding", || agent.finding("file-refused").is_none().then_some(()));
    agent.terminate();
}

/// Makes the run dir one that the agent may not use, and waits until it knows.
fn lose_run_dir(scratch: &Scratch, agent: &Agent) {
    set_mode(scratch.run_dir(), 0o777);
    agent.until_said("may be written by others");
}

#[test]
fn the_agents_own_file_drains_no_port_that_was_given_back() {
    let scratch = Scratch::new("own-file");
    let agent = Agent::start(&scratch, "", &[]);
    agent.drain("rail1");
    scratch.until_policy("rail=rail1,");
    lose_run_dir(&scratch, &agent);
    agent.give_back("rail1");
    set_mode(scratch.run_dir(), 0o700);
    agent.until_said("is watched now");
    until("no policy", || (!scratch.has_policy()).then_some(()));
    assert_eq!((agent.get("/api/v1/drains"), agent.count_said("stays drained")), (serde_json::json!([]), 0));
    agent.terminate();
}

#[test]
fn a_file_that_another_agent_wrote_meanwhile_is_taken_over() {
    let scratch = Scratch::new("meanwhile");
    let agent = Agent::start(&scratch, "", &[]);
    agent.drain("rail1");
    scratch.until_policy("rail=rail1,");
    lose_run_dir(&scratch, &agent);
    drain_by_file(&scratch.run_dir(), "rail2", fs::metadata(scratch.run_dir()).unwrap().uid());
    set_mode(scratch.run_dir(), 0o700);
    agent.until_said("port rail2 stays drained");
    assert!(scratch.until_policy(",rail2,").contains("rail=rail1,"), "both are drained");
    agent.terminate();
}

#[test]
fn a_socket_that_somebody_removed_is_made_again() {
    let scratch = Scratch::new("socket");
    let agent = Agent::start(&scratch, "", &[]);
    fs::remove_file(scratch.run_dir().join("agent.sock")).unwrap();
    until("the socket", || agent.try_get("/readyz").ok().filter(|(status, _)| *status == 200));
    let mode = fs::metadata(scratch.run_dir().join("agent.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    agent.terminate();
}

#[test]
fn an_own_run_dir_that_cannot_be_made_is_a_finding() {
    let scratch = Scratch::new("unmade");
    let parent = scratch.path().join("missing");
    let config = scratch.file("agent.toml", "every_ms = 200\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["agent", "--listen", "127.0.0.1:0", "--config", &config, "--run-dir"]).arg(parent.join("run"));
    let agent = Agent::spawn(&scratch, &mut command);
    agent.until_said("not watched: ");
    agent.until_said("file-refused: ");
    assert_eq!(agent.count_said("run\" cannot be made: No such file or directory"), 2, "{}", agent.log());
    fs::create_dir(parent).unwrap();
    agent.until_said("is watched now");
    agent.terminate();
}

#[test]
fn a_log_that_nobody_reads_stops_neither_metrics_nor_probes() {
    let scratch = Scratch::new("log");
    let (log, end) = io::pipe().unwrap();
    let mut command = Agent::command(&scratch, "", &[]);
    let mut child = command.stdout(Stdio::null()).stderr(end.try_clone().unwrap()).spawn().unwrap();
    let get = |path: &str| {
        let stream = UnixStream::connect(scratch.run_dir().join("agent.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        exchange(stream, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    };
    until("an agent that is ready", || get("/readyz").ok().filter(|(status, _)| *status == 200));
    // Ends with the pipe.
    std::thread::spawn(move || while (&end).write_all(&[b'.'; 16]).is_ok() {});
    let mut last = 0;
    until("a pipe that is full", || {
        std::thread::sleep(Duration::from_millis(300));
        let bytes = rustix::io::ioctl_fionread(&log).unwrap();
        (bytes >= 4096 && bytes == std::mem::replace(&mut last, bytes)).then_some(())
    });
    drain_by_file(&scratch.run_dir(), "rail1", fs::metadata(scratch.run_dir()).unwrap().uid());
    // The agent is about to say so.
    until("the port to be drained", || get("/api/v1/drains").ok().filter(|(_, body)| body.contains("rail1")));
    for path in ["/healthz", "/metrics"] {
        assert_eq!(in_time(get(path), "an answer of the agent").0, 200);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
