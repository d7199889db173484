//! The monitor of an emulated machine (QEMU's QMP), by which its cables are pulled and plugged in.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest time for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Gives the cable `name` of the machine whose monitor has its socket at `monitor` a link, or takes it: nothing passes
/// any more in either direction, and the machine's port says so. All of this happens at once.
///
/// # Errors
/// If the monitor refuses or does not answer: a sentence.
pub(crate) fn set_link(monitor: &Path, name: &str, up: bool) -> Result<(), String> {
    let unanswered = |error| format!("the emulator's monitor at {} does not answer: {error}", monitor.display());
    let mut lines = connect(monitor).map_err(unanswered)?;
    for words in [
        json!({ "execute": "qmp_capabilities" }),
        json!({ "execute": "set_link", "arguments": { "name": name, "up": up } }),
    ] {
        let answer = ask(&mut lines, &words).map_err(unanswered)?;
        if let Some(error) = answer.get("error") {
            return Err(format!("the emulator refuses {words}: {error}"));
        }
    }
    Ok(())
}

fn connect(monitor: &Path) -> io::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(monitor)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(BufReader::new(stream))
}

/// Sends a command and returns its answer, past the monitor's greeting and its events.
fn ask(lines: &mut BufReader<UnixStream>, words: &Value) -> io::Result<Value> {
    lines.get_mut().write_all(format!("{words}\n").as_bytes())?;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer: Value = serde_json::from_str(&line)?;
        if answer.get("return").is_some() || answer.get("error").is_some() {
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// Serves one connection as a monitor that answers the second command so, and returns that command.
    fn serve(listener: &UnixListener, answer: &str) -> Value {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream);
        lines.get_mut().write_all(b"{\"QMP\": {}}\n").unwrap();
        let mut asked = String::new();
        for answer in ["{\"return\": {}}\n", answer] {
            asked.clear();
            lines.read_line(&mut asked).unwrap();
            lines.get_mut().write_all(answer.as_bytes()).unwrap();
        }
        serde_json::from_str(&asked).unwrap()
    }

    #[test]
    fn a_link_is_set_once_the_monitor_says_so() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.folder().join("monitor");
        assert!(set_link(&path, "cable1", true).unwrap_err().contains("does not answer"), "nobody is there");
        let listener = UnixListener::bind(&path).unwrap();
        let emulator = thread::spawn(move || {
            let done = "{\"event\": \"NIC_RX_FILTER_CHANGED\"}\n{\"return\": {}}\n";
            let refused = "{\"error\": {\"desc\": \"Device 'cable7' not found\"}}\n";
            [done, refused, ""].map(|answer| serve(&listener, answer))
        });
        assert_eq!(set_link(&path, "cable1", false), Ok(()));
        assert!(set_link(&path, "cable7", true).unwrap_err().contains("'cable7' not found"));
        assert!(set_link(&path, "cable1", true).unwrap_err().contains("does not answer"), "it went away");
        let [down, ..] = emulator.join().unwrap();
        assert_eq!(down, json!({ "execute": "set_link", "arguments": { "name": "cable1", "up": false } }));
    }
}
