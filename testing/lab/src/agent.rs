//! The program in a guest: starts the processes that the lab asks for, and reports their output and their ends.
//!
//! It ends when the lab is gone; then the guest's init script turns the guest off.

use crate::frame::{self, End, Frame, Program};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The start of the name of the guest's only serial line to the lab.
const LINE: &str = "vport";

/// The longest time until the kernel finds it.
const LINE_LIMIT: Duration = Duration::from_secs(30);

/// The most bytes of output in one frame.
const CHUNK_BYTES: usize = 16 << 10;

/// The place of the agent.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The lab is at standard input and output, and not at the serial line of an emulated machine
    #[arg(long)]
    here: bool,
}

/// Serves the lab until it is gone, and then ends all processes.
pub(crate) fn serve(arguments: &Arguments) -> Result<ExitCode, String> {
    let cannot = |error: io::Error| format!("the line to the lab: {error}");
    let (mut input, output) = if arguments.here {
        let input = io::stdin().as_fd().try_clone_to_owned().map_err(cannot)?;
        let output = io::stdout().as_fd().try_clone_to_owned().map_err(cannot)?;
        (File::from(input), File::from(output))
    } else {
        let line = File::options().read(true).write(true).open(find_line()?).map_err(cannot)?;
        (line.try_clone().map_err(cannot)?, line)
    };
    let agent = Agent { line: Arc::new(Mutex::new(output)), processes: Arc::default() };
    agent.send(0, &Frame::Ready);
    let result = loop {
        match frame::read(&mut input) {
            Ok((channel, frame)) => agent.handle(channel, frame),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break Ok(ExitCode::SUCCESS),
            Err(error) => break Err(cannot(error)),
        }
    };
    for running in agent.processes().values() {
        kill_group(running.pid, Signal::KILL.as_raw());
    }
    result
}

fn find_line() -> Result<PathBuf, String> {
    let begin = Instant::now();
    while begin.elapsed() < LINE_LIMIT {
        let mut devices = fs::read_dir("/dev").into_iter().flatten().flatten();
        if let Some(line) = devices.find(|device| device.file_name().to_string_lossy().starts_with(LINE)) {
            return Ok(line.path());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(format!("there is no /dev/{LINE}*; this subcommand is for the guests of cargo xtask lab"))
}

#[derive(Clone)]
struct Agent {
    line: Arc<Mutex<File>>,
    processes: Arc<Mutex<HashMap<u32, Running>>>,
}

/// A running process.
struct Running {
    /// Its number, which is also its group's.
    pid: u32,
    /// Takes bytes for its standard input; `None` closes it.
    input: Option<Sender<Option<Vec<u8>>>>,
}

impl Agent {
    fn handle(&self, channel: u32, frame: Frame) {
        if let Frame::Start(program) = frame {
            if let Err(error) = self.start(channel, &program) {
                let reason = format!("{}: {error}", program.words.join(" "));
                self.send(channel, &Frame::Ended(End::NotStarted(reason)));
            }
            return;
        }
        let processes = self.processes();
        // Frames for a process that has ended are ignored.
        let Some(running) = processes.get(&channel) else { return };
        let give = |what| {
            // Fails only if the process no longer reads.
            let _ = running.input.as_ref().map(|input| input.send(what));
        };
        match frame {
            Frame::Input(bytes) => give(Some(bytes)),
            Frame::InputEnd => give(None),
            Frame::Signal(signal) => kill_group(running.pid, signal),
            _ => {}
        }
    }

    fn start(&self, channel: u32, program: &Program) -> io::Result<()> {
        let (first, rest) = program.words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(first);
        command.args(rest).env_clear().envs(program.environment.iter().cloned()).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ours = None;
        if program.socket {
            let (socket, theirs) = UnixStream::pair()?;
            command.stdin(Stdio::from(OwnedFd::from(theirs)));
            ours = Some((socket.try_clone()?, socket));
        }
        let mut child = command.spawn()?;
        // Closes this process's copy of the socket's other end.
        drop(command);
        let mut pumps = Vec::new();
        if let (Some(output), Some(error)) = (child.stdout.take(), child.stderr.take()) {
            pumps.push(self.pump(channel, output, Frame::Output));
            pumps.push(self.pump(channel, error, Frame::Error));
        }
        let input = ours.map(|(reader, mut writer)| {
            pumps.push(self.pump(channel, reader, Frame::Answer));
            let (sender, receiver) = mpsc::channel::<Option<Vec<u8>>>();
            thread::spawn(move || {
                while let Ok(Some(bytes)) = receiver.recv() {
                    if writer.write_all(&bytes).is_err() {
                        return;
                    }
                }
                // Fails only if the other end is gone too.
                let _ = writer.shutdown(Shutdown::Write);
            });
            sender
        });
        self.processes().insert(channel, Running { pid: child.id(), input });
        let agent = self.clone();
        thread::spawn(move || agent.see_off(channel, child, pumps));
        Ok(())
    }

    /// Sends everything from `source` to the lab.
    fn pump(
        &self,
        channel: u32,
        mut source: impl Read + Send + 'static,
        frame: impl Fn(Vec<u8>) -> Frame + Send + 'static,
    ) -> JoinHandle<()> {
        let agent = self.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; CHUNK_BYTES];
            while let Ok(length @ 1..) = source.read(&mut buffer) {
                agent.send(channel, &frame(buffer[..length].to_vec()));
            }
        })
    }

    /// Waits for the end of a process and of its output, and tells the lab.
    fn see_off(&self, channel: u32, mut child: Child, pumps: Vec<JoinHandle<()>>) {
        let status = child.wait();
        // Nothing that it started outlives it, so its output ends.
        kill_group(child.id(), Signal::KILL.as_raw());
        for pump in pumps {
            // It has not panicked: it only reads and writes.
            let _ = pump.join();
        }
        self.processes().remove(&channel);
        let end = match status.map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => End::Status(code),
            Ok((None, signal)) => End::Signal(signal.unwrap_or(0)),
            Err(error) => End::NotStarted(format!("its end cannot be waited for: {error}")),
        };
        self.send(channel, &Frame::Ended(end));
    }

    fn send(&self, channel: u32, frame: &Frame) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // If the lab is gone, there is nobody left to tell, and the reading side ends this process.
        let _ = frame::write(&mut *line, channel, frame);
    }

    fn processes(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a signal to a group of processes; it may have ended already.
fn kill_group(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        let _ = kill_process_group(pid, signal);
    }
}
