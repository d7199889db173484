//! The proxy of a rank on this machine: `railweave bench` starts it with `--rank-command`, and the rank itself runs in
//! a guest. The rank's parent sees the rank's own behaviour: the socket on standard input, output, exit status.

use crate::frame::{self, End, Frame, Program};
use clap::Args;
use rustix::process::{Signal, getpid, kill_process};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

/// The rank whose place it takes.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The lab's socket
    socket: String,
    /// The number of the rank
    number: u32,
    /// The rank's command line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// Runs a rank.
pub(crate) fn run(arguments: Arguments) -> Result<ExitCode, String> {
    let Arguments { socket, number, words } = arguments;
    let gone = |error: io::Error| format!("the proxy of rank {number} lost the lab ({socket}): {error}");
    let mut lab = UnixStream::connect(&socket).map_err(gone)?;
    let environment =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let program = Program { words, environment: environment.collect(), socket: true };
    // The channel is the rank's number here.
    frame::write(&mut lab, number, &Frame::Start(program)).map_err(gone)?;
    let to_parent = io::stdin().as_fd().try_clone_to_owned().map_err(gone)?;
    let mut to_parent = UnixStream::from(to_parent);
    let (mut from_parent, mut to_lab) = (to_parent.try_clone().map_err(gone)?, lab.try_clone().map_err(gone)?);
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_parent.read(&mut buffer) {
            if frame::write(&mut to_lab, number, &Frame::Input(buffer[..length].to_vec())).is_err() {
                return;
            }
        }
        // The main thread notices by itself when the lab is gone.
        let _ = frame::write(&mut to_lab, number, &Frame::InputEnd);
    });
    loop {
        // A parent that no longer listens must not keep this process from learning the rank's end.
        let _ = match frame::read(&mut lab).map_err(gone)?.1 {
            Frame::Answer(bytes) => to_parent.write_all(&bytes),
            Frame::Output(bytes) | Frame::Error(bytes) => io::stderr().write_all(&bytes),
            Frame::Ended(end) => return Ok(end_as(&end)),
            _ => Ok(()),
        };
    }
}

/// Ends as the rank did: with its status, or by its signal.
fn end_as(end: &End) -> ExitCode {
    match end {
        End::Status(status) => u8::try_from(*status).map_or(ExitCode::FAILURE, ExitCode::from),
        End::Signal(signal) => {
            if let Some(signal) = Signal::from_named_raw(*signal) {
                // Returns only if it fails; then a plain failure must do.
                let _ = kill_process(getpid(), signal);
            }
            ExitCode::FAILURE
        }
        End::NotStarted(_) => {
            eprintln!("the rank {end}");
            ExitCode::FAILURE
        }
    }
}
