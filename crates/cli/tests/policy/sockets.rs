//! Whatever listens at the place of an agent's socket.

use crate::host::{Scratch, now_s};
use railweave_telemetry::Folder;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

/// Answers each request to the socket in the run dir by a function of its first line, on threads that end with the
/// test program.
fn listen(scratch: &Scratch, answer: impl Fn(&str, &mut UnixStream) + Send + Sync + Copy + 'static) {
    let listener = UnixListener::bind(scratch.made().path().join("agent.sock")).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut request = vec![0; 4096];
                let size = stream.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..size]).into_owned();
                answer(request.lines().next().unwrap_or_default(), &mut stream);
            });
        }
    });
}

/// Sends an answer with this status and body.
fn send(stream: &mut UnixStream, status: u16, body: &str) {
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

/// Writes until nobody reads any more.
fn flood(stream: &mut UnixStream, head: &[u8]) {
    let _ = stream.write_all(head);
    while stream.write_all(&[b'['; 4096]).is_ok() {}
}

#[test]
fn a_socket_of_no_use_leaves_the_orders_to_the_file() {
    for (name, answer) in [
        ("rubbish", (|_, stream| drop(stream.write_all(b"\x7fELF\r\n\r\n"))) as fn(&str, &mut UnixStream)),
        ("silent", |_, _| {}),
        ("endless", |_, stream| flood(stream, b"HTTP/1.1 200 OK\r\n\r\n")),
        ("endless-head", |_, stream| flood(stream, b"HTTP/1.1 200 OK\r\nx: ")),
        ("other", |_, stream| send(stream, 200, "{\"users\": []}")),
        ("empty", |_, stream| send(stream, 200, "[]")),
        ("refuses", |_, stream| send(stream, 503, "{\"error\": \"not \\u001b[31mnow\"}")),
    ] {
        let scratch = Scratch::new(&format!("socket-{name}"));
        listen(&scratch, answer);
        let text = scratch.said(&["drain", "eth1"]);
        assert!(text.contains("by the policy file"), "{name}: {text}");
        assert!(scratch.file().unwrap().contains("# drained eth1\n"), "{name}");
    }
    let scratch = Scratch::new("socket-dead");
    drop(UnixListener::bind(scratch.made().path().join("agent.sock")).unwrap());
    assert!(scratch.said(&["drain", "eth1"]).contains("by the policy file"));
}

#[test]
fn an_agent_that_cannot_be_asked_keeps_its_folder() {
    let scratch = Scratch::new("unreachable");
    let folder = Folder::open(scratch.made().path()).unwrap();
    let lock = folder.lock().unwrap().unwrap();
    for words in
        [&["drain", "eth1"][..], &["clear", "--all"], &["drain", "eth1", "--dry-run"], &["clear", "--all", "--dry-run"]]
    {
        let error = scratch.error(words);
        assert!(error.contains("an agent steers \"") && error.contains("does not listen where"), "{error}");
        assert!(error.contains("; try `railweave policy` as root or as the user of that agent"), "{error}");
    }
    assert!(scratch.said(&["show"]).contains("an agent steers \""));
    // Its policy file says what is ordered.
    let mut standing = railweave_agent::Standing::default();
    standing.drain("eth5").unwrap();
    scratch.write(&standing.file("0.1.0 on node1", Duration::from_secs(1000), None));
    let json = scratch.json(&["show"]);
    assert_eq!((&json["by"], &json["drains"][0]["port"]), (&serde_json::json!(null), &serde_json::json!("eth5")));
    fs::remove_file(scratch.run_dir().policy_file()).unwrap();
    // One that is stopped.
    listen(&scratch, |_, stream| {
        let _ = stream.read(&mut [0; 1]);
        thread::sleep(Duration::from_secs(600));
    });
    let error = scratch.error(&["drain", "eth1"]);
    assert!(error.contains("has not answered within 5 s"), "{error}");
    assert_eq!(scratch.file(), None);
    drop(lock);
    assert!(scratch.said(&["drain", "eth1"]).contains("by the policy file"));
}

/// Answers as an agent that steers the only run dir of these tests, with this answer to everything else.
fn pretend(scratch: &Scratch, answer: impl Fn(&str, &mut UnixStream) + Send + Sync + Copy + 'static) {
    static FOLDERS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    FOLDERS.lock().unwrap().push(scratch.made().path().display().to_string());
    listen(scratch, move |request, stream| {
        if request.contains("/api/v1/users ") {
            let folders = FOLDERS.lock().unwrap().clone();
            let run_dirs =
                folders.iter().map(|path| serde_json::json!({"run_dir": path, "steers": true, "reason": null}));
            let run_dirs: Vec<_> = run_dirs.collect();
            send(stream, 200, &serde_json::json!([{"user": 0, "run_dirs": run_dirs, "rules": []}]).to_string());
        } else {
            answer(request, stream);
        }
    });
}

#[test]
fn whoever_says_to_be_an_agent_can_only_refuse() {
    let scratch = Scratch::new("liar");
    pretend(&scratch, |_, stream| send(stream, 200, "[{\"port\": 7}]"));
    let error = scratch.error(&["drain", "eth1"]);
    assert!(error.contains("has answered with something else"), "{error}");
    let text = scratch.said(&["show"]);
    assert!(text.contains("has answered with something else") && !text.contains('\u{1b}'), "{text}");
    let scratch = Scratch::new("refuser");
    pretend(&scratch, |_, stream| send(stream, 400, "{\"error\": \"never\\u001b[2J\\nnever\"}"));
    assert!(scratch.error(&["drain", "eth1"]).contains("never\u{fffd}[2J\u{fffd}never"));
    let scratch = Scratch::new("painter");
    pretend(&scratch, |request, stream| {
        let drain = "{\"reasons\": [{\"reason\": \"\\u001b[31m\"}], \"phase\": \"\\u001b[2J\"}";
        let body = format!("[{{\"port\": \"eth1\\u001b[31m\", \"drain\": {drain}}}]");
        send(stream, 200, if request.contains("drains") { &body } else { "[]" });
    });
    let text = scratch.said(&["show"]);
    assert!(text.contains("drained: eth1\u{fffd}[31m") && !text.contains('\u{1b}'), "{text}");
    assert!(!scratch.run_dir().policy_file().exists());
}

#[test]
fn an_agent_without_dry_runs_is_not_asked_for_one() {
    static ORDERS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let scratch = Scratch::new("older");
    pretend(&scratch, |request, stream| {
        if request.starts_with("GET /api/v1/drains ") {
            return send(stream, 200, "[]");
        }
        if !request.starts_with("GET ") {
            ORDERS.lock().unwrap().push(request.to_owned());
            return send(stream, 202, "{\"port\": \"eth1\"}");
        }
        send(stream, 404, "{\"error\": \"there is no such path\"}");
    });
    for words in [&["drain", "eth1", "--dry-run"][..], &["set", "any -> policy speed"], &["clear", "any"]] {
        assert!(scratch.error(words).contains("is an agent that takes drains alone"));
    }
    assert_eq!(*ORDERS.lock().unwrap(), [""; 0]);
    scratch.said(&["drain", "eth1"]);
    assert_eq!(*ORDERS.lock().unwrap(), ["PUT /api/v1/drains/eth1 HTTP/1.1"]);
}

/// Answers as an agent that has two drains and two rules. Returns false for orders, which it leaves to others.
fn has_two_of_each(request: &str, stream: &mut UnixStream) -> bool {
    let reasons = "{\"reasons\": [{\"reason\": \"operator\"}], \"phase\": \"empty\"}";
    let drains = ["eth1", "eth2"].map(|port| format!("{{\"port\": \"{port}\", \"drain\": {reasons}}}")).join(",");
    let rules = ["a", "b"].map(|peer| format!("{{\"matchers\": \"peer={peer}\", \"actions\": \"policy speed\"}}"));
    match request {
        _ if request.starts_with("GET /api/v1/drains ") => send(stream, 200, &format!("[{drains}]")),
        _ if request.starts_with("GET /api/v1/rules ") => send(stream, 200, &format!("[{}]", rules.join(","))),
        _ if request.contains("dry_run=true") => send(stream, 200, "{\"users\": []}"),
        _ => return false,
    }
    true
}

#[test]
fn orders_that_are_gone_meanwhile_do_not_end_the_others() {
    static ORDERS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let scratch = Scratch::new("meanwhile");
    pretend(&scratch, |request, stream| {
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        if !has_two_of_each(request, stream) {
            let is_gone = path.contains("eth1") || path.contains("peer%3Da");
            ORDERS.lock().unwrap().push(path);
            send(stream, if is_gone { 404 } else { 202 }, "{\"error\": \"none\"}");
        }
    });
    let json = scratch.json(&["clear", "--all"]);
    let changed = json["orders"].as_array().unwrap().iter().map(|order| order["changed"] == true);
    assert_eq!(changed.collect::<Vec<_>>(), [true, false, true], "eth2, and both rules: {json}");
    assert_eq!(
        *ORDERS.lock().unwrap(),
        ["drains/eth1", "drains/eth2", "rules/peer%3Da", "rules/peer%3Db"].map(|path| format!("/api/v1/{path}"))
    );
}

#[test]
fn orders_after_a_late_one_are_said_to_be_missing() {
    static ORDERS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let given = || std::mem::take(&mut *ORDERS.lock().unwrap());
    let scratch = Scratch::new("late");
    pretend(&scratch, |request, stream| {
        if !has_two_of_each(request, stream) {
            ORDERS.lock().unwrap().push(request.split(' ').nth(1).unwrap_or_default().to_owned());
            send(stream, 202, "{\"carried_out\": false, \"late\": true}");
        }
    });
    // No file is there, which is no proof: the second port and the rules still stand.
    let error = scratch.error(&["clear", "--all"]);
    assert!(
        error.contains("has not carried it out") && error.contains("whatever else stands was not taken back"),
        "{error}"
    );
    assert_eq!(given(), ["/api/v1/drains/eth1"]);
    let error = scratch.error(&["set", "peer=x -> policy speed", "peer=y -> policy speed"]);
    assert!(error.contains("the rules before that one in the command were not set"), "{error}");
    assert_eq!(given(), ["/api/v1/rules/peer%3Dy"]);
}

#[test]
fn rules_that_others_set_meanwhile_do_not_hide_that_one_holds() {
    static ASKED: std::sync::Mutex<u32> = std::sync::Mutex::new(0);
    let scratch = Scratch::new("beside");
    let rules = ["peer=a -> policy speed", "peer=b -> policy speed"];
    scratch.write(&format!(
        "railweave-policy 1\n# railweave agent 0.1.0 on here, process 1 wrote this\n# ordered {}\n# ordered {}\n\
         written {}\nttl 3600\n{}\n{}\n",
        rules[0],
        rules[1],
        now_s(),
        rules[0],
        rules[1],
    ));
    pretend(&scratch, |request, stream| {
        // The second rule comes once the first one has been looked for.
        let is_rules = request.starts_with("GET /api/v1/rules ");
        let mut asked = ASKED.lock().unwrap();
        *asked += u32::from(is_rules);
        let count = if *asked > 2 { 2 } else { 1 };
        let rules = ["a", "b"].map(|peer| format!("{{\"matchers\": \"peer={peer}\", \"actions\": \"policy speed\"}}"));
        send(stream, 200, &if is_rules { format!("[{}]", rules[..count].join(",")) } else { "[]".to_owned() });
    });
    let said = scratch.said(&["set", rules[0]]);
    assert!(said.contains("nothing had to change"), "{said}");
}

#[test]
fn a_link_leads_to_no_other_service() {
    let scratch = Scratch::new("link");
    let other = Scratch::new("linked");
    static ASKED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    listen(&other, |_, _| ASKED.store(true, std::sync::atomic::Ordering::Relaxed));
    let socket = scratch.made().path().join("agent.sock");
    std::os::unix::fs::symlink(other.run_dir().path().join("agent.sock"), &socket).unwrap();
    assert!(scratch.said(&["drain", "eth1"]).contains("by the policy file"));
    assert!(!ASKED.load(std::sync::atomic::Ordering::Relaxed));
    fs::remove_file(socket).unwrap();
}
