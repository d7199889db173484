//! The program of the policy `script`: started, asked after each look, and started again if it fails.

use super::log;
use super::shared::Shared;
use railweave_agent::{LONGEST_ANSWER, ScriptConfig};
use rustix::process::{Pid, Signal, kill_process_group};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// The pause after the first failure, and the longest: each is twice the one before, unless the program ran for longer
/// than the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Runs the program as long as the configuration names one.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut pause = PAUSE;
    loop {
        shared.look.notified().await;
        let config = shared.agent().config().script.clone();
        let Some(config) = config else {
            pause = PAUSE;
            continue;
        };
        let begin = Instant::now();
        let Some(reason) = serve(&shared, &config).await else {
            pause = PAUSE;
            continue;
        };
        // One that answers once and ends would otherwise fill the log.
        if begin.elapsed() >= LONGEST_PAUSE {
            pause = PAUSE;
        }
        log::say(&format!("script: \"{}\" {reason}; it is started again in {} s", config.program[0], pause.as_secs()));
        shared.agent().script_failed(reason);
        let is_other = timeout(pause, changed(&shared, &config)).await.is_ok();
        pause = if is_other { PAUSE } else { LONGEST_PAUSE.min(pause * 2) };
    }
}

/// Waits until the configuration has another program.
async fn changed(shared: &Shared, config: &ScriptConfig) {
    while shared.agent().config().script.as_ref() == Some(config) {
        shared.look.notified().await;
    }
}

/// Runs the program until it fails or the configuration changes. Returns the reason of a failure, the end of a sentence
/// that begins with the program.
async fn serve(shared: &Shared, config: &ScriptConfig) -> Option<String> {
    let mut program = match Program::start(config) {
        Ok(program) => program,
        Err(reason) => return Some(reason),
    };
    let is_present = || shared.agent().config().script.as_ref() == Some(config);
    while is_present() {
        let question = serde_json::to_string(&*shared.state()).unwrap_or_default();
        let mut has_looked = false;
        let answer = {
            let answer = timeout(Duration::from_secs(config.timeout_s), program.ask(&question));
            tokio::pin!(answer);
            loop {
                tokio::select! {
                    answer = &mut answer => break answer,
                    () = shared.look.notified() => has_looked = true,
                }
                // Nobody waits for the answer of a program that another configuration does not name.
                if !is_present() {
                    return None;
                }
            }
        };
        match answer {
            _ if !is_present() => return None,
            Err(_) => return Some(format!("did not answer within {} s", config.timeout_s)),
            Ok(Err(reason)) => return Some(reason),
            Ok(Ok(answer)) => {
                let mut agent = shared.agent();
                // It may be the answer of a program that the configuration does not name any more.
                if agent.config().script.as_ref() == Some(config) {
                    agent.script_answered(&answer, shared.now());
                }
            }
        }
        if !has_looked {
            shared.look.notified().await;
        }
    }
    None
}

/// The program that runs. It is killed when this is dropped, with its children.
struct Program {
    child: Child,
    group: Option<Pid>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Program {
    fn drop(&mut self) {
        // Also if it has ended: it was waited for just before, so nobody else has the number of its group yet.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Program {
    fn start(config: &ScriptConfig) -> Result<Self, String> {
        let (name, arguments) = config.program.split_first().ok_or_else(|| "has no name".to_owned())?;
        let mut child = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Its children end with it, unless they leave its group.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot be started: {error}; allowed: a program that this user can run"))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self { child, group, input, output: BufReader::new(output) }),
            _ => Err("has no standard input or output".to_owned()),
        }
    }

    /// Returns true if the program has written something that nobody asked for, which would be taken for its next
    /// answer. One that has ended has not.
    fn has_more(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let read = Pin::new(&mut self.output).poll_fill_buf(&mut context);
        matches!(read, Poll::Ready(Ok(bytes)) if !bytes.is_empty())
    }

    /// Writes a line, and returns the line that comes back.
    async fn ask(&mut self, question: &str) -> Result<String, String> {
        if self.has_more() {
            return Err("answered with more than a line; allowed: one line of JSON for each of its input".to_owned());
        }
        let mut line = Vec::new();
        let written = self.input.write_all(format!("{question}\n").as_bytes()).await;
        let read = match written {
            Ok(()) => (&mut self.output).take(LONGEST_ANSWER as u64 + 1).read_until(b'\n', &mut line).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(0) | Err(_) => Err(match timeout(Duration::from_secs(1), self.child.wait()).await {
                Ok(Ok(status)) => format!("ended ({status})"),
                _ => "closed its standard input or output".to_owned(),
            }),
            Ok(_) if line.len() > LONGEST_ANSWER => {
                Err(format!("answered with more than {LONGEST_ANSWER} bytes; allowed: one line of JSON"))
            }
            Ok(_) => String::from_utf8(line).map_err(|_| "answered with bytes that are no text in UTF-8".to_owned()),
        }
    }
}
