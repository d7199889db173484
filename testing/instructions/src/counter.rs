//! Counting: the loop over messages of one process under callgrind, over the fake libibverbs.

use crate::cost::{Cost, Objects};
use crate::in_process::Watch;
use crate::in_process::message_loop::Results;
use crate::profile::Profile;
use crate::tools::{self, Tools, Transport};
use crate::work::Work;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The function whose instructions are counted, with everything that it calls: the loop over the messages
/// (`in_process/message_loop.rs`). It is called once, after messages that are not counted.
const LOOP: &str = "railweave_message_loop";

/// The names of callgrind's files. It writes a profile of each thread when the loop begins, and a second one when it
/// has ended; the loop runs in the first thread.
const PROFILE: &str = "callgrind";
const LOOP_PROFILE: &str = "callgrind.2-01";

/// The name of the file that describes a machine to the fake libibverbs.
const MACHINE: &str = "machine";

/// One way to carry messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// The number of rails, each on an adapter of its own; several are fused into one device of NCCL's.
    pub(crate) rails: usize,
    /// The size of a message in bytes.
    pub(crate) message_bytes: usize,
    /// The number of messages in flight.
    pub(crate) in_flight: usize,
    /// The number of messages that are counted.
    pub(crate) messages: u32,
    /// The profiler that watches them.
    pub(crate) watch: Watch,
}

/// The tools for counting.
#[derive(Debug)]
pub(crate) struct Counter {
    valgrind: PathBuf,
    plugin: PathBuf,
    program: PathBuf,
    fake: PathBuf,
    nccl: Option<PathBuf>,
    /// The folder that has a folder for each run, with the machine's description and the profiles.
    folder: PathBuf,
}

impl Counter {
    /// Creates a counter that runs `valgrind` on these tools.
    ///
    /// # Errors
    /// A sentence, if one of the tools is missing.
    pub(crate) fn new(valgrind: &Path, tools: &Tools) -> Result<Self, String> {
        let Tools { plugin, nccl, folder } = tools;
        let nccl = nccl.as_deref().map(real).transpose()?;
        let [plugin, program, fake] = [real(plugin)?, real(&tools::program()?)?, real(&tools::fake()?)?];
        Ok(Self { valgrind: valgrind.to_owned(), plugin, program, fake, nccl, folder: folder.clone() })
    }

    /// Returns the plugin.
    pub(crate) fn railweave(&self) -> Transport<'_> {
        Transport::Railweave(&self.plugin)
    }

    /// Returns NCCL's own IB transport, if it is to be counted too.
    pub(crate) fn nccl(&self) -> Option<Transport<'_>> {
        self.nccl.as_deref().map(Transport::Nccl)
    }

    /// Counts the cost of a message. Fails with a sentence if the run fails or its output cannot be read.
    pub(crate) fn count(&self, transport: Transport<'_>, case: &Case) -> Result<Cost, String> {
        let Case { rails, message_bytes, in_flight, messages, watch } = *case;
        let name = match transport {
            Transport::Railweave(_) => "railweave",
            Transport::Nccl(_) => "nccl",
        };
        let name = format!("{name}-{rails}-rails-{message_bytes}-bytes-{in_flight}-in-flight-{}", watch.name());
        let folder = self.folder.join(&name);
        self.prepare(&folder, rails)?;
        let mut command = self.callgrind(&folder);
        command.arg(&self.program);
        transport.measured_by(&mut command, &self.fake, &folder.join(MACHINE), rails > 1);
        command.args(["--watch", &watch.name()]);
        if watch == Watch::Trace {
            command.env("RAILWEAVE_TRACE", folder.join("traces"));
        }
        command.args(["messages", "--messages", &messages.to_string(), "--bytes", &message_bytes.to_string()]);
        command.args(["--in-flight", &in_flight.to_string()]);
        let output = command.output().map_err(|error| format!("cannot run {}: {error}", self.valgrind.display()))?;
        if !output.status.success() {
            return Err(format!(
                "counting {name} failed with {}: {}",
                output.status,
                tools::last_words(&output.stderr)
            ));
        }
        let path = folder.join(LOOP_PROFILE);
        let text = fs::read_to_string(&path).map_err(|error| {
            format!("cannot read {}: {error}; is {LOOP} still a function of the program?", path.display())
        })?;
        let profile = Profile::read(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let objects = Objects { transport: transport.library(), fake: &self.fake, program: &self.program };
        let cost = Cost::of(&profile, messages, objects)?;
        let Results { devices, .. } = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("counting {name}: the results cannot be read: {error}"))?;
        let devices = devices.iter().map(|(device, counts)| Work::of(device, counts, messages)).collect();
        Ok(Cost { devices, ..cost })
    }

    /// Prepares a folder for a run: empties it, and describes a machine with one device per rail in it.
    fn prepare(&self, folder: &Path, rails: usize) -> Result<(), String> {
        let device = |index| format!("[[device]]\nname = 'sim{index}'\n[[device.port]]\n");
        let text: String = (0..rails).map(device).collect();
        let prepared = match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(MACHINE), text)),
        };
        prepared.map_err(|error| format!("cannot prepare {}: {error}", folder.display()))
    }

    /// Returns a command that runs callgrind in a folder; the caller adds the program and its arguments.
    fn callgrind(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.valgrind);
        // --toggle-collect would count only the loop's instructions, but all calls, and the number of polls while the
        // ends connect is random. Therefore callgrind writes profiles before and after the loop.
        command.args(["--tool=callgrind", "--separate-threads=yes"]);
        command.args([format!("--dump-before={LOOP}"), format!("--dump-after={LOOP}")]);
        // A name without its folder, because valgrind interprets some characters in it.
        command.arg(format!("--callgrind-out-file={PROFILE}")).current_dir(folder).stdin(Stdio::null());
        command
    }
}

/// Returns a file's path with links resolved, which is the name that callgrind uses.
fn real(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("cannot use {}: {error}", path.display()))
}
