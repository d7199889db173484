//! The ranks of a bench, seen from this machine: the lab passes everything on between each rank's proxy and the rank in
//! its guest, and records output and ends.

use crate::frame::{self, End, Frame};
use crate::guest::{KILL, Line, Process, Remote};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which waiting threads look for changes.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for proxies on a socket, for one bench. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Ranks {
    socket: PathBuf,
    shared: Arc<Shared>,
}

/// The state of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    /// The time of its process's start.
    pub(crate) started: Instant,
    /// The text of its output and of its messages to its parent.
    pub(crate) said: String,
    /// The time and kind of its end.
    pub(crate) ended: Option<(Instant, End)>,
    process: Remote,
}

#[derive(Debug)]
struct Shared {
    lines: Vec<Arc<Line>>,
    /// The path of each rank's log, to which the rank's number is added.
    log: PathBuf,
    ranks: Mutex<Vec<Option<Rank>>>,
    alone: AtomicBool,
    over: AtomicBool,
}

impl Ranks {
    /// Listens on `socket` for ranks, each of which runs behind its own of `lines`. Log files have names that begin
    /// with `log`.
    pub(crate) fn listen(socket: &Path, lines: Vec<Arc<Line>>, log: &Path) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("cannot listen on {}: {error}", socket.display());
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        let listener = UnixListener::bind(socket).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let shared = Arc::new(Shared {
            ranks: Mutex::new(lines.iter().map(|_| None).collect()),
            lines,
            log: log.to_owned(),
            alone: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&shared);
        thread::spawn(move || for_thread.accept(&listener));
        Ok(Self { socket: socket.to_owned(), shared })
    }

    /// Returns the path at which proxies find the lab.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns a rank's state; `None` until its process was started.
    pub(crate) fn rank(&self, number: usize) -> Option<Rank> {
        self.shared.ranks()[number].clone()
    }

    /// Kills a rank.
    pub(crate) fn kill(&self, number: usize) -> Result<(), String> {
        let process = self.shared.ranks()[number].as_ref().map(|rank| rank.process.clone());
        let process = process.ok_or_else(|| format!("rank {number} cannot be killed: it never started"))?;
        process.send(&Frame::Signal(KILL))
    }

    /// If `alone`, starts to hold back everything that ranks and their parent tell each other; otherwise stops that.
    pub(crate) fn leave_alone(&self, alone: bool) {
        self.shared.alone.store(alone, Ordering::SeqCst);
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.leave_alone(false);
        self.shared.over.store(true, Ordering::SeqCst);
        for rank in self.shared.ranks().iter().flatten().filter(|rank| rank.ended.is_none()) {
            // The next bench must have the guests for itself. Sending fails only if the guest is gone, and the rank
            // with it.
            let _ = rank.process.send(&Frame::Signal(KILL));
        }
        // Somebody may have removed it already, with its folder.
        let _ = fs::remove_file(&self.socket);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        while !self.over.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let shared = Arc::clone(self);
                    thread::spawn(move || {
                        if let Err(error) = shared.serve(stream) {
                            eprintln!("the lab cannot serve a rank: {error}");
                        }
                    });
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    /// Serves one proxy until its rank has ended.
    fn serve(self: &Arc<Self>, mut proxy: UnixStream) -> Result<(), String> {
        let lost = |error: io::Error| format!("its proxy is gone: {error}");
        proxy.set_nonblocking(false).map_err(lost)?;
        let (number, Frame::Start(program)) = frame::read(&mut proxy).map_err(lost)? else {
            return Err("its proxy does not begin with a program".to_owned());
        };
        let number = number as usize;
        let is_new = self.ranks().get(number).is_some_and(Option::is_none);
        let line = self.lines.get(number).filter(|_| is_new);
        let line = line.ok_or_else(|| format!("each rank is there once, and this is one more of number {number}"))?;
        let log = PathBuf::from(format!("{}.rank{number}.log", self.log.display()));
        let log = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let process = line.start(program)?;
        let rank = Rank { started: Instant::now(), said: String::new(), ended: None, process: process.remote() };
        self.ranks()[number] = Some(rank);
        let (reader, remote, shared) = (proxy.try_clone().map_err(lost)?, process.remote(), Arc::clone(self));
        thread::spawn(move || shared.pass_on_to_guest(reader, &remote));
        let passed_on = self.pass_on_from_guest(number, &process, &mut proxy, log);
        // Also ends the thread that reads from it. Fails only for a proxy that is gone.
        let _ = proxy.shutdown(Shutdown::Both);
        passed_on
    }

    fn pass_on_to_guest(&self, mut proxy: UnixStream, process: &Remote) {
        while let Ok((_, frame)) = frame::read(&mut proxy) {
            while self.alone.load(Ordering::SeqCst) {
                thread::sleep(LOOK);
            }
            if process.send(&frame).is_err() {
                return;
            }
        }
        // Without its proxy a rank has no parent. Has no effect on a rank that has ended.
        let _ = process.send(&Frame::Signal(KILL));
    }

    fn pass_on_from_guest(
        &self,
        number: usize,
        process: &Process,
        proxy: &mut UnixStream,
        mut log: File,
    ) -> Result<(), String> {
        let (mut held, mut is_over) = (Vec::new(), false);
        while !(is_over && held.is_empty()) {
            let frame = if is_over { None } else { process.next(LOOK)? };
            if let Some(frame) = frame {
                is_over = matches!(frame, Frame::Ended(_));
                if let Frame::Output(bytes) | Frame::Error(bytes) = &frame {
                    log.write_all(bytes).map_err(|error| format!("cannot write a log file: {error}"))?;
                }
                self.note(number, &frame);
                held.push(frame);
            } else if is_over {
                thread::sleep(LOOK);
            }
            if !self.alone.load(Ordering::SeqCst) {
                for frame in held.drain(..) {
                    // The other direction notices a proxy that is gone too, and then the rank is killed.
                    let _ = frame::write(proxy, 0, &frame);
                }
            }
        }
        Ok(())
    }

    fn note(&self, number: usize, frame: &Frame) {
        let mut ranks = self.ranks();
        let Some(rank) = &mut ranks[number] else { return };
        match frame {
            Frame::Answer(bytes) | Frame::Output(bytes) | Frame::Error(bytes) => {
                rank.said.extend(String::from_utf8_lossy(bytes).chars().filter(|c| is_text(*c)));
            }
            Frame::Ended(end) => rank.ended = Some((Instant::now(), end.clone())),
            _ => {}
        }
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<Option<Rank>>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if a character can be part of a rank's text: its messages to its parent are not all text.
fn is_text(c: char) -> bool {
    c == '\n' || !c.is_control() && c != char::REPLACEMENT_CHARACTER
}
