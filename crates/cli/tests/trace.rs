//! `railweave trace` and `railweave trace summary`, with files as processes write them.

use railweave_trace::{Connection, EarlierFiles, Frame, Happened, Process, Rail, Record, Records, What, Writer};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-cli-trace-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn trace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railweave")).arg("trace").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes the trace of a process: two sends to node1 over rails 0 and 1, of 1,000 bytes each, 600 of them over rail 0.
/// The second one had waited 3 ms for its CTS. Times begin at `from_ns`.
fn write(dir: &Path, rank: u8, host: &str, from_ns: u64) {
    let process = Process {
        id: vec![rank; 16],
        pid: 100 + u32::from(rank),
        host: host.into(),
        boot_id: vec![7; 16],
        rank: Some(rank.into()),
        ..Process::default()
    };
    let mut writer = Writer::new(dir, process, 1 << 20, EarlierFiles::default());
    let peer = Connection { number: 1, sends: true, host: "node1".into(), rank: Some(9), ..Connection::default() };
    writer.add(&Frame::Connection(peer));
    for number in 0..2 {
        let (local, remote) = (format!("eth{number}"), format!("ens{number}"));
        writer.add(&Frame::Rail(Rail { connection: 1, number, local, remote }));
    }
    let mut records = Vec::new();
    for (request, at) in [(1, 0), (2, 10_000_000)] {
        let piece = |rail, bytes| What::PieceBegin { connection: 1, rail, request, bytes };
        if request == 2 {
            records.push((at, What::CtsWait { connection: 1, request, for_ns: 3_000_000 }));
        }
        records.push((at, What::SendBegin { connection: 1, request, bytes: 1000 }));
        records.push((at, piece(0, 600)));
        records.push((at, piece(1, 400)));
        records.push((at + 100_000, What::PieceEnd { connection: 1, rail: 0, request }));
        records.push((at + 1_000_000, What::PieceEnd { connection: 1, rail: 1, request }));
        records.push((at + 1_000_000, What::RequestEnd { connection: 1, request, bytes: 1000 }));
    }
    let bytes =
        records.iter().flat_map(|(at, what)| Record::bytes(Record { at_ns: from_ns + at, what: *what }.words()));
    writer.add(&Frame::Records(Records { thread: 1, lost: 0, bytes: bytes.collect() }));
    let text = "cable\u{1b}[2J pulled".into();
    let happened =
        Happened { at_ns: from_ns, kind: 11, name: "rail-down".into(), connection: Some(1), rail: Some(1), text };
    writer.add(&Frame::Happened(happened));
    assert!(writer.flush(from_ns, 1_700_000_000_000_000_000 + from_ns).is_none());
}

#[test]
fn a_folder_becomes_a_file_for_each_viewer() {
    let scratch = Scratch::new("viewers");
    write(&scratch.0.join("traces"), 0, "node0", 1_000_000_000);
    let traces = scratch.path("traces");
    for (name, viewer) in
        [("a.pftrace", "ui.perfetto.dev"), ("a.perfetto-trace", "ui.perfetto.dev"), ("a.json", "chrome")]
    {
        let path = scratch.path(name);
        let said = stdout(&trace(&[&traces, "-o", &path]));
        assert!(said.starts_with(&format!("{path}: 1 rank on 1 host, 11.0 ms; open it in ")), "{said}");
        assert!(said.contains(viewer), "{said}");
    }
    assert_eq!(scratch.names(), ["a.json", "a.perfetto-trace", "a.pftrace", "traces"], "no unfinished file is left");
    let packets = fs::read(scratch.path("a.pftrace")).unwrap();
    assert!(packets.windows(4).any(|bytes| bytes == b"eth1"));
    assert_eq!(fs::read(scratch.path("a.perfetto-trace")).unwrap(), packets);
    let json: Value = serde_json::from_slice(&fs::read(scratch.path("a.json")).unwrap()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let bytes: u64 =
        events.iter().filter(|it| it["name"] == "piece").map(|it| it["args"]["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 2000);
    // A file alone, and standard output.
    let file = fs::read_dir(scratch.0.join("traces")).unwrap().next().unwrap().unwrap().path();
    let output = trace(&[file.to_str().unwrap(), "-o", "-"]);
    assert_eq!((output.status.success(), output.stdout), (true, packets));
    let chrome = stdout(&trace(&[&traces, "-o", "-", "--format", "chrome"]));
    assert_eq!(serde_json::from_str::<Value>(&chrome).unwrap(), json);
}

#[test]
fn a_summary_has_the_longest_waits_and_the_use_of_rails() {
    let scratch = Scratch::new("summary");
    write(&scratch.0, 0, "node0", 1_000_000_000);
    let dir = scratch.path("");
    let shown = stdout(&trace(&["summary", &dir]));
    assert!(shown.starts_with("1 rank on 1 host, 11.0 ms; collectives: 0, requests: 2\n"), "{shown}");
    for text in ["no receive posted", "last rail late", "rail 1 eth1 -> ens1", "60.0 %", "to node1, rank 9", "3.0 ms"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let json: Value = serde_json::from_str(&stdout(&trace(&["summary", &dir, "--json", "-n", "1"]))).unwrap();
    let [wait] = &json["waits"].as_array().unwrap()[..] else { panic!("one wait") };
    assert_eq!(
        (&wait["why"], &wait["for_ns"], &wait["since_ns"]),
        (&"cts".into(), &3_000_000.into(), &7_000_000.into())
    );
    let rails: Vec<_> = json["rails"].as_array().unwrap().iter().map(|it| (&it["bytes"], &it["busy_ns"])).collect();
    assert_eq!(rails, [(&1200.into(), &200_000.into()), (&800.into(), &2_000_000.into())]);
    assert_eq!(json["rails"][1]["ended_last"], 2);
}

#[test]
fn texts_of_files_do_not_steer_the_terminal() {
    let scratch = Scratch::new("texts");
    write(&scratch.0, 0, "no\u{1b}[2Jde\n0", 1_000_000_000);
    let output = trace(&["summary", &scratch.path("")]);
    let shown = stdout(&output);
    assert!(shown.contains("no\u{fffd}[2Jde\u{fffd}0, rank 0") && !shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn older_runs_are_left_out_unless_they_are_asked_for() {
    let scratch = Scratch::new("runs");
    write(&scratch.0, 0, "old", 1_000_000_000);
    write(&scratch.0, 1, "new", 61_000_000_000);
    let host = |arguments: &[&str]| {
        let dir = scratch.path("");
        let output = trace(&[&["summary", &dir, "--json"], arguments].concat());
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let hosts = json["hosts"].as_array().unwrap().iter().map(|host| host["name"].as_str().unwrap().to_owned());
        (hosts.collect::<Vec<_>>(), stderr(&output))
    };
    let (hosts, said) = host(&[]);
    assert_eq!(hosts, ["new"]);
    assert_eq!(said, "railweave: left out: a run with 1 process that began 60 s before this one; --run 2 shows it\n");
    assert_eq!(host(&["--run", "2"]).0, ["old"]);
    assert_eq!(host(&["--run", "all"]), (vec!["old".to_owned(), "new".to_owned()], String::new()));
    let refused = |run: &str| {
        let output = trace(&["summary", &scratch.path(""), "--run", run]);
        (output.status.code(), stderr(&output))
    };
    let (code, said) = refused("3");
    assert_eq!((code, said.as_str()), (Some(1), "railweave: there is no run 3; allowed: 1, the newest one, to 2\n"));
    let (code, said) = refused("0");
    assert!(code == Some(2) && said.contains("\"0\" is no run; allowed: 1 for the newest"), "{said}");
}

#[test]
fn a_cut_file_is_a_warning_and_a_foreign_one_too() {
    let scratch = Scratch::new("cut");
    write(&scratch.0, 0, "node0", 1_000_000_000);
    let path = scratch.0.join(&scratch.names()[0]);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    fs::write(scratch.0.join("b.rwtrace"), "something else entirely").unwrap();
    let output = trace(&["summary", &scratch.path("")]);
    let said = stderr(&output);
    assert!(stdout(&output).contains("requests: 2"));
    assert!(said.contains("rank 0 (pid 100) on node0: ") && said.contains("bytes at the ends of its files"), "{said}");
    assert!(said.contains("railweave: skipped: \"") && said.contains("b.rwtrace\" is no trace file"), "{said}");
}

#[test]
fn a_folder_without_traces_says_how_to_get_some() {
    let scratch = Scratch::new("none");
    let refused = |arguments: &[&str]| {
        let output = trace(arguments);
        (output.status.code(), stderr(&output))
    };
    let (code, said) = refused(&["summary", &scratch.path("")]);
    assert_eq!(code, Some(1));
    assert!(said.contains("has no trace files (*.rwtrace)") && said.contains("RAILWEAVE_TRACE=FOLDER"), "{said}");
    let (code, said) = refused(&["summary", &scratch.path("missing")]);
    assert!(code == Some(1) && said.contains("missing\" cannot be read: No such file"), "{said}");
    let (code, said) = refused(&["summary", "/dev/null"]);
    assert!(code == Some(1) && said.contains("\"/dev/null\" is neither a regular file nor a folder"), "{said}");
    fs::write(scratch.0.join("b.rwtrace"), "").unwrap();
    let (code, said) = refused(&["summary", &scratch.path("")]);
    assert!(code == Some(1) && said.contains("none of the trace files can be read"), "{said}");
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing() {
    let scratch = Scratch::new("made");
    write(&scratch.0.join("traces"), 0, "node0", 1_000_000_000);
    let traces = scratch.path("traces");
    let refused = |path: &str| {
        let output = trace(&[&traces, "-o", path]);
        (output.status.code(), stderr(&output))
    };
    let (code, said) = refused(&scratch.path("a.txt"));
    assert!(code == Some(1) && said.contains("says no format; allowed: .pftrace"), "{said}");
    let (code, said) = refused(&scratch.path("no/such/a.json"));
    assert!(code == Some(1) && said.contains("a.json\" cannot be made: No such file"), "{said}");
    // The traces themselves are never written.
    let [name] = &fs::read_dir(&traces).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..] else {
        panic!("one trace")
    };
    let before = fs::read(name).unwrap();
    std::os::unix::fs::symlink(name, scratch.0.join("in.json")).unwrap();
    for path in [scratch.path("in.json"), name.display().to_string(), scratch.path("new.rwtrace")] {
        let output = trace(&[&traces, "-o", &path, "--format", "chrome"]);
        let said = stderr(&output);
        assert!(
            output.status.code() == Some(1) && said.contains("is one of the traces, or has their ending"),
            "{said}"
        );
    }
    assert_eq!(fs::read(name).unwrap(), before);
    fs::remove_file(scratch.0.join("in.json")).unwrap();
    // A device that is always full is written as it is; a file's disk that gets full leaves nothing behind.
    let output = trace(&[&traces, "-o", "/dev/full", "--format", "chrome"]);
    let said = stderr(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("\"/dev/full\" cannot be written: No space left"),
        "{said}"
    );
    // An older file stays as it is if the new one fails, and what a link leads to is replaced.
    let old = scratch.0.join("old.json");
    fs::write(&old, "old").unwrap();
    std::os::unix::fs::symlink(&old, scratch.0.join("link.json")).unwrap();
    stdout(&trace(&[&traces, "-o", &scratch.path("link.json")]));
    assert!(fs::read(&old).unwrap().starts_with(b"{\"displayTimeUnit\""));
    assert!(fs::symlink_metadata(scratch.0.join("link.json")).unwrap().is_symlink());
    assert_eq!(scratch.names(), ["link.json", "old.json", "traces"]);
    assert_ne!(fs::metadata(&old).unwrap().permissions().mode() & 0o444, 0);
}

#[test]
fn a_file_limit_in_the_middle_leaves_the_old_file() {
    let scratch = Scratch::new("limit");
    write(&scratch.0.join("traces"), 0, "node0", 1_000_000_000);
    let old = scratch.path("a.json");
    fs::write(&old, "old").unwrap();
    // A limit of 512 bytes stands for a full disk; the signal that it sends by default is ignored.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" trace \"$1\" -o \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_railweave"), &scratch.path("traces"), &old]);
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert!(output.status.code() == Some(1) && said.contains("a.json\" cannot be written: File too large"), "{said}");
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(scratch.names(), ["a.json", "traces"]);
}

/// Returns the library that the demonstration loads: `RAILWEAVE_TEST_LIB` if it is set, otherwise the one that cargo
/// builds next to this program's tests.
fn library() -> PathBuf {
    std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from)
}

#[test]
fn the_trace_of_a_demo_has_every_byte_that_the_rails_carried() {
    let scratch = Scratch::new("demo");
    let file = scratch.path("demo.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["demo", "--json", "--quick", "--bytes", "4MiB", "--bucket", "1MiB", "--trace", &file]);
    command.current_dir(&scratch.0).env("TMPDIR", ".");
    let output = command.arg("--lib").arg(library()).output().unwrap();
    if !output.status.success() {
        railweave_patience::fail(output.status, &String::from_utf8_lossy(&output.stderr));
    }
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sent: u64 = results["rails"].as_array().unwrap().iter().map(|rail| rail["sent"].as_u64().unwrap()).sum();
    let trace: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    let traced: u64 = named("piece").map(|piece| piece["args"]["bytes"].as_u64().unwrap_or(0)).sum();
    assert!(sent > 4 << 20);
    assert_eq!(traced, sent);
    // Each bucket is an all-reduce of both ranks.
    assert_eq!(named("AllReduce called").count(), 8);
    assert_eq!(scratch.names(), ["demo.json"]);
}

#[test]
fn a_demo_whose_trace_cannot_be_made_does_not_begin() {
    for (file, sentence) in [
        ("x.txt", "\"x.txt\" says no format; allowed: .pftrace"),
        ("/no/such/x.json", "\"/no/such/x.json\" cannot be made: No such file"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_railweave")).args(["demo", "--trace", file]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
        assert!(text.contains(sentence), "{text}");
    }
}
