//! Running a program to its end while its output is shown and kept.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time until the output of an ended program closes.
const GRACE: Duration = Duration::from_secs(10);

/// The interval between two checks for the end of a program.
const LOOK: Duration = Duration::from_millis(50);

/// A program's output.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// On standard output.
    pub(crate) out: String,
    /// On standard error; in a test program, also that of threads unknown to libtest.
    pub(crate) err: String,
}

/// A part of a program's output.
enum Piece {
    Out(Vec<u8>),
    Err(Vec<u8>),
}

impl Said {
    /// Returns all of it, standard output first.
    pub(crate) fn all(&self) -> String {
        format!("{}\n{}", self.out, self.err)
    }

    /// Adds a piece; returns true if no more will come.
    fn take(&mut self, piece: Result<Piece, RecvTimeoutError>) -> bool {
        match piece {
            Ok(Piece::Out(bytes)) => self.out.push_str(&String::from_utf8_lossy(&bytes)),
            Ok(Piece::Err(bytes)) => self.err.push_str(&String::from_utf8_lossy(&bytes)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return true,
        }
        false
    }
}

/// Runs `command` to its end, and shows its output if `shows`. Kills it if `hangs`, which sees the output so far,
/// returns true; then there is no status.
pub(crate) fn watch(
    mut command: Command,
    shows: bool,
    hangs: impl FnMut(&Said) -> bool,
) -> io::Result<(Option<ExitStatus>, Said)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, pieces) = channel();
    if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
        pump(out, shows.then(io::stdout), sender.clone(), Piece::Out);
        pump(err, shows.then(io::stderr), sender, Piece::Err);
    }
    let mut said = Said::default();
    let status = listen(&mut child, &pieces, &mut said, hangs)?;
    Ok((status, said))
}

fn listen(
    child: &mut Child,
    pieces: &Receiver<Piece>,
    said: &mut Said,
    mut hangs: impl FnMut(&Said) -> bool,
) -> io::Result<Option<ExitStatus>> {
    let mut looked = Instant::now();
    let status = loop {
        let is_over = said.take(pieces.recv_timeout(LOOK));
        if is_over {
            thread::sleep(LOOK);
        }
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if looked.elapsed() < LOOK {
            continue;
        }
        looked = Instant::now();
        if hangs(said) {
            // A program that it started sees its own standard input close, and ends.
            child.kill()?;
            child.wait()?;
            break None;
        }
    };
    // A program that it started may hold its output open.
    let begin = Instant::now();
    while begin.elapsed() < GRACE && !said.take(pieces.recv_timeout(LOOK)) {}
    Ok(status)
}

/// Keeps the output that comes, on a thread of its own, and shows it if wanted.
fn pump(
    mut from: impl Read + Send + 'static,
    mut show: Option<impl Write + Send + 'static>,
    to: Sender<Piece>,
    kind: fn(Vec<u8>) -> Piece,
) {
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if let Some(show) = &mut show {
                // Output that cannot be shown still counts.
                let _ = show.write_all(&buffer[..length]).and_then(|()| show.flush());
            }
            if to.send(kind(buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
}
