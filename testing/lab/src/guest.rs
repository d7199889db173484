//! A guest: a small virtual machine, and the processes that run in it.

use crate::frame::{self, End, Frame, Program};
use crate::monitor;
use crate::site::Site;
use railweave_patience::sentence;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time until a guest is up; emulated on a busy machine it takes about 5 s.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// QEMU's view of one end of a cable.
#[derive(Clone, Debug)]
pub(crate) struct Plug {
    /// The datagram socket of this end.
    pub(crate) here: String,
    /// The datagram socket of the other end; `None` if nothing is plugged in there.
    pub(crate) there: Option<String>,
    /// The hardware address.
    pub(crate) mac: String,
}

/// A running guest; dropping it turns it off.
#[derive(Debug)]
pub(crate) struct Guest {
    machine: Child,
    /// The socket of the emulator's monitor; `None` if there is no emulator but the agent in a namespace.
    monitor: Option<PathBuf>,
    line: Arc<Line>,
    ready: Receiver<Frame>,
}

/// The connection to the processes of a guest, for any thread.
#[derive(Debug)]
pub(crate) struct Line {
    guest: usize,
    /// The log files of the guest's kernel and QEMU.
    logs: String,
    input: Mutex<Option<ChildStdin>>,
    /// Takes the frames of each channel; `None` once the guest is gone.
    channels: Mutex<Channels>,
}

#[derive(Debug, Default)]
struct Channels {
    last: u32,
    open: Option<HashMap<u32, Sender<Frame>>>,
}

/// A process in a guest. Dropping it kills the process if it still runs.
#[derive(Debug)]
pub(crate) struct Process {
    line: Arc<Line>,
    channel: u32,
    frames: Receiver<Frame>,
}

/// A process's output and its end.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// Standard output and standard error, in the order of arrival.
    pub(crate) text: String,
    /// Its end.
    pub(crate) end: End,
}

impl Guest {
    /// Starts guest `number` with this much memory in MiB; the messages of its kernel and QEMU go to files in the
    /// folder `logs`.
    pub(crate) fn boot(
        number: usize,
        site: &Site,
        memory_mib: u32,
        plugs: &[Plug],
        logs: &Path,
    ) -> Result<Self, String> {
        let image = site.image.as_ref().ok_or("there is no image for emulated guests")?;
        let monitor = site.scratch.join(format!("monitor{number}"));
        let log = |what: &str| logs.join(format!("guest{number}.{what}.log"));
        let (console, qemu) = (log("console"), log("qemu"));
        let errors = File::create(&qemu).map_err(|error| format!("cannot write {}: {error}", qemu.display()))?;
        // If the lab dies without a chance to clean up, the kernel ends the machine.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        // Always emulated, so that figures mean the same on every machine.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", &memory_mib.to_string()]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
        // On a busy host an emulated timer may be late for the kernel's check of it, which then panics.
        let kernel = format!(
            "console=ttyS0 panic=1 quiet no_timer_check net.ifnames=0 lab_guest={number} lab_agent={}",
            site.program.display()
        );
        command.arg("-append").arg(kernel);
        command.args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]);
        command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        command.args(["-chardev", "stdio,id=lab,signal=off", "-device", "virtserialport,chardev=lab,name=lab"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", monitor.display()));
        for (index, Plug { here, there, mac }) in plugs.iter().enumerate() {
            let cable = match there {
                Some(there) => format!(
                    "dgram,id=cable{index},local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
                ),
                None => format!("hubport,id=cable{index},hubid={index}"),
            };
            command.args(["-netdev", &cable, "-device", &format!("virtio-net-pci,netdev=cable{index},mac={mac}")]);
        }
        command.stderr(errors);
        Self::start(number, command, format!("{} and {}", console.display(), qemu.display()), Some(monitor))
    }

    /// Makes network namespace `number`, which root can do, with the agent in it; the agent's messages go to a file in
    /// the folder `logs`.
    pub(crate) fn inside_namespace(number: usize, agent: &Path, logs: &Path) -> Result<Self, String> {
        let log = logs.join(format!("guest{number}.agent.log"));
        let errors = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        // The namespaces end with the last process in them. unshare becomes the agent.
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "sh", "-ec"]);
        command.arg("hostname \"guest$1\"; ip link set lo up; exec \"$0\" agent --here");
        command.arg(agent).arg(number.to_string()).stderr(errors);
        Self::start(number, command, log.display().to_string(), None)
    }

    /// Starts the machine or the agent with this command. Its messages are in `logs`.
    fn start(number: usize, mut command: Command, logs: String, monitor: Option<PathBuf>) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = command.spawn();
        let mut machine =
            spawned.map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
        let (Some(input), Some(output)) = (machine.stdin.take(), machine.stdout.take()) else {
            unreachable!("both were asked for");
        };
        let (sender, ready) = channel();
        let channels = Channels { last: 0, open: Some(HashMap::from([(0, sender)])) };
        let line =
            Arc::new(Line { guest: number, logs, input: Mutex::new(Some(input)), channels: Mutex::new(channels) });
        let reader = Arc::clone(&line);
        thread::spawn(move || reader.hand_out(output));
        Ok(Self { machine, monitor, line, ready })
    }

    /// Waits until the guest is up.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        match self.ready.recv_timeout(BOOT_LIMIT) {
            Ok(_) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(self.line.gone()),
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{}; the messages of its kernel and QEMU are in {}",
                sentence(format_args!("guest {} did not come up", self.line.guest), BOOT_LIMIT),
                self.line.logs
            )),
        }
    }

    /// Plugs the cable of its port `index` in here, or pulls it; only an emulated machine can.
    ///
    /// # Errors
    /// If its emulator does not: a sentence.
    pub(crate) fn plug(&self, index: usize, plugged_in: bool) -> Result<(), String> {
        let monitor = self.monitor.as_ref().ok_or("the port of a namespace has no cable that can be pulled")?;
        monitor::set_link(monitor, &format!("cable{index}"), plugged_in)
    }

    /// Returns the id of its process.
    pub(crate) fn process(&self) -> u32 {
        self.machine.id()
    }

    /// Returns the connection to its processes.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // An agent in a namespace ends its processes when its input ends, and then itself; a machine does not take long
        // either, but is not waited for. Both fail only for a process that has ended and was waited for.
        if self.monitor.is_none() {
            self.line.close();
        } else {
            let _ = self.machine.kill();
        }
        let _ = self.machine.wait();
    }
}

impl Line {
    /// Starts a program.
    pub(crate) fn start(self: &Arc<Self>, program: Program) -> Result<Process, String> {
        let (sender, frames) = channel();
        let channel = {
            let mut channels = self.channels();
            channels.last += 1;
            let number = channels.last;
            channels.open.as_mut().ok_or_else(|| self.gone())?.insert(number, sender);
            number
        };
        let process = Process { line: Arc::clone(self), channel, frames };
        process.send(&Frame::Start(program))?;
        Ok(process)
    }

    /// Runs shell commands to their end and returns their output; fails unless they succeed.
    pub(crate) fn shell(self: &Arc<Self>, commands: &str, limit: Duration) -> Result<String, String> {
        let output = self.start(shell(commands, &[]))?.wait(limit)?;
        if output.end.is_success() {
            return Ok(output.text);
        }
        Err(format!("in guest {}, \"{commands}\" {}: {}", self.guest, output.end, output.text.trim()))
    }

    /// Returns an error if the guest is gone.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.channels().open.is_some() { Ok(()) } else { Err(self.gone()) }
    }

    /// Returns the guest's number.
    pub(crate) fn guest(&self) -> usize {
        self.guest
    }

    fn hand_out(&self, mut output: ChildStdout) {
        while let Ok((channel, frame)) = frame::read(&mut output) {
            if let Some(sender) = self.channels().open.as_ref().and_then(|open| open.get(&channel)) {
                // Fails only for a process that was given up; its frames are dropped.
                let _ = sender.send(frame);
            }
        }
        self.channels().open = None;
    }

    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> String {
        format!("guest {} is gone; the messages of its kernel and QEMU are in {}", self.guest, self.logs)
    }
}

impl Process {
    /// Sends the guest a frame about this process.
    pub(crate) fn send(&self, frame: &Frame) -> Result<(), String> {
        self.line.send(self.channel, frame)
    }

    /// Returns a handle by which another thread can send the guest frames about this process.
    pub(crate) fn remote(&self) -> Remote {
        Remote { line: Arc::clone(&self.line), channel: self.channel }
    }

    /// Waits for the next frame; `None` if none comes within `limit`.
    pub(crate) fn next(&self, limit: Duration) -> Result<Option<Frame>, String> {
        match self.frames.recv_timeout(limit) {
            Ok(frame) => Ok(Some(frame)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.line.gone()),
        }
    }

    /// Waits for the process's end and returns its output; fails, and kills it, if it still runs after `limit`.
    pub(crate) fn wait(self, limit: Duration) -> Result<Output, String> {
        let mut text = Vec::new();
        let end = self.wait_into(&mut text, limit)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let slow = || {
            let what = format!("a process in guest {} did not end", self.line.guest);
            format!("{}, and was killed; it wrote: {}", sentence(what, limit), text.trim())
        };
        Ok(Output { end: end.ok_or_else(slow)?, text })
    }

    /// Waits for the process's end and adds its output to `text`; `None` if it still runs after `limit`.
    pub(crate) fn wait_into(&self, text: &mut Vec<u8>, limit: Duration) -> Result<Option<End>, String> {
        let begin = Instant::now();
        loop {
            match self.next(limit.saturating_sub(begin.elapsed()))? {
                Some(Frame::Output(bytes) | Frame::Error(bytes)) => text.extend(bytes),
                Some(Frame::Ended(end)) => return Ok(Some(end)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has no effect on a process that has ended; without its guest it has ended too.
        let _ = self.send(&Frame::Signal(KILL));
        if let Some(open) = self.line.channels().open.as_mut() {
            open.remove(&self.channel);
        }
    }
}

/// The signal that no process survives.
pub(crate) const KILL: i32 = 9;

/// Sends a guest frames about one process.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    line: Arc<Line>,
    channel: u32,
}

impl Remote {
    /// Does the same as [`Process::send`].
    pub(crate) fn send(&self, frame: &Frame) -> Result<(), String> {
        self.line.send(self.channel, frame)
    }
}

impl Line {
    /// Ends the input of the agent.
    fn close(&self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn send(&self, channel: u32, frame: &Frame) -> Result<(), String> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let input = input.as_mut().ok_or_else(|| self.gone())?;
        frame::write(input, channel, frame).map_err(|_: io::Error| self.gone())
    }
}

/// Returns the program that runs shell commands, with `variables` and the few that every program needs.
pub(crate) fn shell(commands: &str, variables: &[(String, String)]) -> Program {
    let common = [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root")];
    let common = common.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let words = ["/bin/sh", "-ec", commands].map(str::to_owned).to_vec();
    Program { words, environment: common.into_iter().chain(variables.iter().cloned()).collect(), socket: false }
}
