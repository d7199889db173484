//! The configuration, the token, and the requests that they permit.

use crate::host::{Agent, Scratch, free_port, is_root, over_tcp, set_mode, until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::Command;
use std::time::{Duration, Instant};

/// Writes the file of a token, and returns its path.
fn put_token(scratch: &Scratch, token: &str) -> String {
    let path = scratch.file("token", token);
    set_mode(&path, 0o600);
    path
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let scratch = Scratch::new("limit");
    let command = Agent::command(&scratch, "", &[]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -S -n 64; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    let agent = Agent::spawn(&scratch, &mut limited);
    until("an agent that is ready", || agent.try_get("/readyz").ok().filter(|(status, _)| *status == 200));
    let limits = fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
    agent.terminate();
}

#[test]
fn a_token_has_16_to_1024_letters_and_nobody_else_owns_it() {
    let scratch = Scratch::new("tokens");
    let path = scratch.path().join("token");
    let words = |token: &str, mode: u32, owner: u32| {
        let _ = fs::remove_file(&path);
        fs::write(&path, token).unwrap();
        set_mode(&path, mode);
        chown(&path, Some(owner), None).unwrap();
        let arguments = ["--token-file", path.to_str().unwrap(), "--check"];
        let output = Agent::command(&scratch, "", &arguments).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let own = fs::metadata(scratch.path()).unwrap().uid();
    let right = "a".repeat(16);
    for (token, is_right) in [
        ("a".repeat(15), false),
        (right.clone(), true),
        (format!("\n{right}\n"), true),
        ("a".repeat(1024), true),
        ("a".repeat(1025), false),
        ("a".repeat(8) + " " + &"b".repeat(8), false),
        ("é".repeat(16), false),
    ] {
        let words = words(&token, 0o600, own);
        let is_refused = words.contains("has no token of the right form; allowed: 16 to 1024");
        assert!(if is_right { words.is_empty() } else { is_refused }, "{token}: {words}");
    }
    let open = "may be read by others than this user";
    for mode in [0o601, 0o602, 0o604, 0o610, 0o620, 0o640] {
        assert!(words(&right, mode, own).contains(open), "{mode:o}");
    }
    if is_root() {
        assert!(words(&right, 0o600, 65_534).contains(open));
    }
}

#[test]
fn a_configuration_has_up_to_a_mebibyte() {
    let scratch = Scratch::new("largest");
    for (size, code) in [(1 << 20, 0), ((1 << 20) + 1, 1)] {
        let beginning = "every_ms = 200\n".len();
        let output = Agent::command(&scratch, &"#".repeat(size - beginning), &["--check"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{size}");
    }
}

#[test]
fn a_token_that_was_changed_holds_at_once() {
    let scratch = Scratch::new("new-token");
    let port = free_port();
    let (first, second) = ("a".repeat(32), "b".repeat(32));
    let token = put_token(&scratch, &first);
    let agent = Agent::start(&scratch, "", &["--listen", &format!("127.0.0.1:{port}"), "--token-file", &token]);
    put_token(&scratch, &second);
    agent.signal(Signal::HUP);
    agent.until_said("the configuration was read again");
    let status = |token: &str| {
        let headers = ["Host: localhost", &format!("Authorization: Bearer {token}")];
        over_tcp(port, "GET", "/metrics", &headers).unwrap().0
    };
    assert_eq!((status(&first), status(&second)), (401, 200));
    agent.terminate();
}

#[test]
fn a_token_that_was_needed_is_needed_until_the_next_start() {
    let scratch = Scratch::new("twice");
    let port = free_port();
    let token = format!("token_file = {:?}\n", put_token(&scratch, &"a".repeat(32)));
    let agent = Agent::start(&scratch, &format!("listen = \"0.0.0.0:{port}\"\n{token}"), &[]);
    agent.put_config(&format!("listen = \"127.0.0.1:{port}\"\n{token}"));
    agent.signal(Signal::HUP);
    agent.until_said(&format!("127.0.0.1:{port} holds from the next start on; until then, it is 0.0.0.0:{port}"));
    agent.put_config(&format!("listen = \"127.0.0.1:{port}\"\n"));
    agent.signal(Signal::HUP);
    agent.until_said("the configuration was not taken, and the last one stays in force: listen: 0.0.0.0:");
    assert!(agent.until_finding("config-refused").contains("try token_file"));
    // The next reason is said too.
    agent.put_config("series = 1\n");
    agent.signal(Signal::HUP);
    agent.until_said("the last one stays in force: \"");
    assert_eq!(agent.count_said("was not taken"), 2, "{}", agent.log());
    agent.put_config(&format!("listen = \"0.0.0.0:{port}\"\n{token}"));
    agent.signal(Signal::HUP);
    agent.until_said("config-refused: is over");
    agent.terminate();
}

#[test]
fn hosts_and_schemes_of_requests_are_told_apart() {
    let scratch = Scratch::new("hosts");
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let agent = Agent::start(&scratch, "", &["--listen", &listen]);
    let status = |method: &str, headers: &[&str]| over_tcp(port, method, "/metrics", headers).unwrap().0;
    for (method, headers, expected) in [
        ("HEAD", &["Host: localhost"][..], 200),
        ("GET", &["Host: 192.0.2.1"], 200),
        ("GET", &["Host: é"], 403),
        ("GET", &[], 200),
    ] {
        assert_eq!(status(method, headers), expected, "{method} {headers:?}");
    }
    agent.terminate();
    let token = put_token(&scratch, &"a".repeat(32));
    let agent = Agent::start(&scratch, "", &["--listen", &listen, "--token-file", &token]);
    let digest = format!("Authorization: Digest {}", "a".repeat(32));
    assert_eq!(status("GET", &["Host: localhost", &digest]), 401);
    agent.terminate();
}

#[test]
fn an_order_does_not_wait_for_the_next_look() {
    let scratch = Scratch::new("at-once");
    let config = scratch.file("agent.toml", "every_ms = 60000\nttl_s = 86400\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["agent", "--listen", "127.0.0.1:0", "--config", &config, "--run-dir"]).arg(scratch.run_dir());
    let agent = Agent::spawn(&scratch, &mut command);
    until("an agent that is ready", || agent.try_get("/readyz").ok().filter(|(status, _)| *status == 200));
    let begin = Instant::now();
    agent.drain("rail1");
    scratch.until_policy("rail=rail1,");
    agent.give_back("rail1");
    until("no policy", || (!scratch.has_policy()).then_some(()));
    assert!(begin.elapsed() < Duration::from_secs(30), "half of the time between two looks: {:?}", begin.elapsed());
    agent.terminate();
}

#[test]
fn lines_of_the_log_are_whole_and_say_how_urgent_they_are() {
    let scratch = Scratch::new("lines");
    let [other, named] = ["other", "two\nlines"].map(|name| scratch.path().join(name));
    fs::create_dir(&other).unwrap();
    set_mode(&other, 0o777);
    let folders = ["--run-dir", other.to_str().unwrap(), "--run-dir", named.to_str().unwrap()];
    let agent = Agent::start(&scratch, "", &folders);
    agent.until_said("railweave agent: warning: file-refused: ");
    set_mode(&other, 0o700);
    agent.until_said("railweave agent: file-refused ");
    assert!(agent.log().lines().all(|line| line.starts_with("railweave agent: ")), "{}", agent.log());
    agent.terminate();
}

#[test]
fn the_socket_is_that_of_the_first_agent_and_in_a_safe_folder_only() {
    let scratch = Scratch::new("first");
    let first = Agent::start(&scratch, "", &[]);
    let socket = scratch.run_dir().join("agent.sock");
    let identity = || fs::metadata(&socket).map(|facts| facts.ino()).ok();
    let before = identity();
    let second = Agent::spawn(&scratch, &mut Agent::command(&scratch, "", &[]));
    second.until_said("another agent steers");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(identity(), before);
    first.kill();
    until("the second agent's socket", || second.try_get("/readyz").ok());
    set_mode(scratch.run_dir(), 0o777);
    fs::remove_file(&socket).unwrap();
    second.until_said("agent.sock\" cannot be used");
    std::thread::sleep(Duration::from_millis(600));
    assert!(!socket.exists());
    assert_eq!(second.count_said("agent.sock\" cannot be used"), 1, "{}", second.log());
    set_mode(scratch.run_dir(), 0o700);
    until("the socket", || second.try_get("/readyz").ok());
    set_mode(scratch.run_dir(), 0o777);
    fs::remove_file(&socket).unwrap();
    until("another line", || (second.count_said("agent.sock\" cannot be used") == 2).then_some(()));
    second.terminate();
}
