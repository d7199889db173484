//! A telemetry file while it is written: everything arrives, nothing torn is believed, and no damage lasts.

mod common;

use common::{ID, NOW, Scratch, state};
use railweave_telemetry::{
    Damage, Event, EventKind, IDLE_NS, MOST_EVENTS, Notice, Publisher, ReadError, RunDir, State, create_seed_policy,
    read,
};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const TICK: u64 = 100_000_000;

/// Something that somebody does to a file.
type Spoil<'a> = &'a dyn Fn(&Path);

fn event(number: u64) -> Event {
    Event {
        time_ns: number,
        connection: number.is_multiple_of(2).then_some(number as u32),
        rail: number.is_multiple_of(3).then_some(1),
        kind: EventKind::RAIL_STATE,
        text: format!("event {number}"),
    }
}

/// Publishes, which must give no notice.
fn publish(publisher: &mut Publisher, state: &State, now_ns: u64) {
    if let Some(notice) = publisher.publish(state, now_ns) {
        panic!("{notice}");
    }
}

#[test]
fn everything_that_is_written_is_read() {
    let scratch = Scratch::new("everything");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publisher.add(&event(7));
    publish(&mut publisher, &state(3), NOW);
    let snapshot = read(publisher.path()).unwrap();
    assert_eq!(snapshot.state, state(3));
    assert_eq!((snapshot.events, snapshot.events_ever), (vec![event(7)], 1));
    assert_eq!((snapshot.written_ns, snapshot.generation, snapshot.left_out), (NOW, 1, [0; 3]));
    assert_eq!(publisher.path(), scratch.path("run").join(format!("{}.railweave", "ab".repeat(16))));
    assert_eq!(fs::metadata(publisher.path()).unwrap().permissions().mode() & 0o7777, 0o600);
    publisher.remove();
    assert_eq!(scratch.run_dir().files().unwrap(), [""; 0].map(Into::<std::path::PathBuf>::into));
}

#[test]
fn changes_additions_and_removals_are_followed() {
    let scratch = Scratch::new("changes");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    // More than the places of the sections hold at first, and back.
    for (step, connections) in (0_u64..).zip([0, 1, 40, 200, 199, 3, 70]) {
        let mut state = state(connections);
        for rail in &mut state.rails {
            rail.bytes_sent += step;
        }
        publisher.add(&event(step));
        publish(&mut publisher, &state, NOW + step * TICK);
        let snapshot = read(publisher.path()).unwrap();
        assert_eq!(snapshot.state, state, "step {step}");
        assert_eq!(snapshot.events, (0..=step).map(event).collect::<Vec<_>>());
    }
}

#[test]
fn an_unchanged_state_is_written_every_five_seconds() {
    let scratch = Scratch::new("idle");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    let written = |publisher: &mut Publisher, now_ns| {
        publish(publisher, &state(1), now_ns);
        read(publisher.path()).unwrap().written_ns
    };
    assert_eq!(written(&mut publisher, NOW), NOW);
    assert_eq!(written(&mut publisher, NOW + IDLE_NS - 1), NOW);
    assert_eq!(written(&mut publisher, NOW + IDLE_NS), NOW + IDLE_NS);
    // The clock was set back.
    assert_eq!(written(&mut publisher, NOW - IDLE_NS), NOW - IDLE_NS);
}

#[test]
fn the_ring_keeps_the_last_events_in_order() {
    let scratch = Scratch::new("ring");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    let most = MOST_EVENTS as u64;
    let mut ever = 0;
    for upto in [most - 1, most, most + 5, 3 * most + 17] {
        (ever..upto).for_each(|number| publisher.add(&event(number)));
        ever = upto;
        publish(&mut publisher, &state(1), NOW + upto);
        let snapshot = read(publisher.path()).unwrap();
        assert_eq!(snapshot.events, (upto.saturating_sub(most)..upto).map(event).collect::<Vec<_>>());
        assert_eq!(snapshot.events_ever, upto);
    }
}

#[test]
fn a_reader_believes_nothing_torn() {
    let scratch = Scratch::new("torn");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    let path = publisher.path().to_owned();
    // As large as it takes for a write to last about as long as a read.
    let mut current = state(2000);
    current.rails.iter_mut().for_each(|rail| rail.bytes_sent = 0);
    publish(&mut publisher, &current, NOW);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut believed = 0;
            while !is_done.load(Ordering::Relaxed) {
                match read(&path) {
                    Ok(snapshot) => {
                        let bytes = snapshot.state.rails[0].bytes_sent;
                        assert!(snapshot.state.rails.iter().all(|rail| rail.bytes_sent == bytes), "torn at {bytes}");
                        assert_eq!(snapshot.written_ns, NOW + bytes, "the header is that of another write");
                        believed += 1;
                    }
                    // The second if the writer had no processor all the while.
                    Err(ReadError::BeingWritten { .. } | ReadError::Content { damage: Damage::Checksum, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            believed
        });
        for step in 1..1500 {
            current.rails.iter_mut().for_each(|rail| rail.bytes_sent = step);
            publish(&mut publisher, &current, NOW + step);
            if step % 100 == 0 {
                thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        is_done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0, "the reader never found a complete image");
    });
}

#[test]
fn a_file_that_somebody_spoils_is_made_again() {
    let scratch = Scratch::new("spoiled");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    let path = publisher.path().to_owned();
    let spoil: [(&str, Spoil<'_>); 5] = [
        ("removed", &|path| fs::remove_file(path).unwrap()),
        ("truncated", &|path| OpenOptions::new().write(true).open(path).unwrap().set_len(700).unwrap()),
        ("emptied", &|path| fs::write(path, "").unwrap()),
        ("replaced", &|path| {
            fs::remove_file(path).unwrap();
            fs::write(path, vec![0; 1 << 20]).unwrap();
        }),
        ("linked elsewhere", &|path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/dev/null", path).unwrap();
        }),
    ];
    for (step, (what, spoil)) in (0..).zip(spoil) {
        let now = NOW + step * 10 * IDLE_NS;
        publish(&mut publisher, &state(2), now);
        spoil(&path);
        assert!(read(&path).is_err(), "{what}");
        publish(&mut publisher, &state(2), now + TICK);
        assert_eq!(read(&path).unwrap().state, state(2), "{what}");
    }
}

#[test]
fn a_folder_that_goes_is_made_again_and_trouble_is_said_once() {
    let scratch = Scratch::new("folder");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publish(&mut publisher, &state(2), NOW);
    fs::remove_dir_all(scratch.path("run")).unwrap();
    publish(&mut publisher, &state(2), NOW + TICK);
    assert!(read(publisher.path()).is_ok());
    // Now something else is in its place.
    fs::remove_dir_all(scratch.path("run")).unwrap();
    fs::write(scratch.path("run"), "").unwrap();
    let notice = publisher.publish(&state(2), NOW + 2 * TICK).expect("trouble is said").to_string();
    assert!(notice.starts_with("no telemetry for now: ") && notice.contains("is not a folder"), "{notice}");
    assert_eq!(notice.lines().count(), 1);
    for step in 3..40 {
        publish(&mut publisher, &state(2), NOW + step * TICK);
    }
    fs::remove_file(scratch.path("run")).unwrap();
    // The next attempt is a second after the last.
    publish(&mut publisher, &state(2), NOW + 40 * TICK);
    let notice = publisher.publish(&state(2), NOW + 60 * TICK);
    assert!(matches!(notice, Some(Notice::Recovered(_))), "{notice:?}");
    assert_eq!(read(publisher.path()).unwrap().state, state(2));
}

#[test]
fn a_file_that_could_not_be_written_lately_goes_at_the_end_too() {
    let scratch = Scratch::new("end");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publish(&mut publisher, &state(2), NOW);
    let path = publisher.path().to_owned();
    // The folder may not be used any more, and the file has to be made again because it must grow.
    fs::set_permissions(scratch.path("run"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(publisher.publish(&state(2000), NOW + TICK).is_some(), "trouble is said");
    publisher.remove();
    assert!(!path.exists());
}

/// Runs the next test in a mount namespace with a tiny disk, if this user may make one.
#[test]
fn a_full_disk_leaves_the_last_image() {
    let scratch = Scratch::new("full");
    let script = "mount -t tmpfs -o size=160k none \"$1\" || { echo skipped; exit 0; }; shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-r", "-m", "sh", "-c", script, "sh"]).arg(&scratch.0).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "inside_a_full_disk", "--ignored", "--nocapture"]).env("RAILWEAVE_FULL_DISK", &scratch.0);
    let Ok(output) = command.output() else { return eprintln!("skipped: there is no unshare here") };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("skipped") || text.contains("unshare: ") {
        return eprintln!("skipped: this user cannot mount a disk in a namespace: {text}");
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a_full_disk_leaves_the_last_image runs it, with a tiny disk"]
fn inside_a_full_disk() {
    let Some(disk) = std::env::var_os("RAILWEAVE_FULL_DISK") else { return };
    let mut publisher = Publisher::new(RunDir::named(Some(&Path::new(&disk).join("run"))), ID);
    publish(&mut publisher, &state(30), NOW);
    // Whatever is left.
    let filler = Path::new(&disk).join("filler");
    while OpenOptions::new()
        .append(true)
        .create(true)
        .open(&filler)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4096]))
        .is_ok()
    {}
    (0..200).for_each(|number| publisher.add(&event(number)));
    let mut later = state(30);
    later.rails[0].bytes_sent += 1;
    let notice = publisher.publish(&later, NOW + TICK).expect("trouble is said").to_string();
    assert!(notice.contains("cannot be written"), "{notice}");
    assert_eq!(read(publisher.path()).unwrap().state, state(30), "the last image stays");
    publish(&mut publisher, &later, NOW + 20 * TICK);
    // A new file has no room either.
    publish(&mut publisher, &state(300), NOW + 40 * TICK);
    assert_eq!(fs::read_dir(Path::new(&disk).join("run")).unwrap().count(), 1, "nothing unfinished is left");
    assert_eq!(read(publisher.path()).unwrap().state, state(30), "the last image stays");
    let refused = create_seed_policy(&Path::new(&disk).join("table"), 65_536).unwrap_err().to_string();
    assert!(refused.contains("cannot be made"), "{refused}");
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 2, "and nothing of the table");
    fs::remove_file(&filler).unwrap();
    let notice = publisher.publish(&later, NOW + 60 * TICK);
    assert!(matches!(notice, Some(Notice::Recovered(_))), "{notice:?}");
    let snapshot = read(publisher.path()).unwrap();
    assert_eq!((snapshot.state, snapshot.events.len()), (later, 200));
}
