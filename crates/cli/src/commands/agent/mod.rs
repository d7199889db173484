//! `railweave agent`: watches the jobs of a host, steers them by policies, and serves metrics and an API.
//!
//! `railweave-agent` decides; here is the work around it: files, counters, signals, sockets and a script's process.

mod access;
mod folders;
mod log;
mod looks;
mod script;
mod server;
mod settings;
mod shared;
mod sockets;

use self::looks::Looks;
use self::settings::Settings;
use self::shared::Shared;
use clap::Args;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Arguments of `railweave agent`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The configuration (docs/agent.md); without one, the agent watches, and steers only what its API is told
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of metrics and API [default: 127.0.0.1:9470]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// A folder of telemetry files, once for each [default: this user's; as root, those of all users in /dev/shm]
    #[arg(long, value_name = "FOLDER")]
    run_dir: Vec<PathBuf>,
    /// The file with the token that callers have to show; nobody else may read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The folder below which `sys` is read, instead of /
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// Checks the configuration, and ends
    #[arg(long)]
    check: bool,
}

/// Runs the agent until it is told to end.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(arguments)?;
    if arguments.check {
        return Ok(crate::output::print("the configuration is right")?);
    }
    // One thread serves; looks, which wait for files, have another.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build().map_err(
            |error| format!("the agent cannot start: {error}; try a higher limit of open files (`ulimit -n`)"),
        )?;
    let result = runtime.block_on(serve(arguments, settings));
    // A look that hangs in a file system does not keep the agent from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(arguments: &Arguments, settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    sockets::raise_limit();
    let shared = Arc::new(Shared::new(&settings));
    let mut looks = Some(Looks::new(&arguments.root, &settings));
    let tcp = sockets::listen(settings.listen()).await?;
    let _servers = server::start(&shared, tcp, settings.listen());
    let mut socket = sockets::OwnSocket::new(settings.own_run_dir());
    let script = tokio::spawn(script::run(Arc::clone(&shared)));
    log::say(&format!("listens at {}; docs/agent.md says for what", settings.listen()));
    let mut settings = settings;
    let mut last = false;
    while let Some(mut work) = looks.take() {
        let taken = Arc::clone(&shared);
        // A look reads files, which may take long if their file system does.
        let look = tokio::task::spawn_blocking(move || {
            work.look(&taken);
            work
        });
        tokio::pin!(look);
        let done = loop {
            tokio::select! {
                done = &mut look => break Some(done),
                _ = end.recv() => last = true,
                _ = interrupt.recv() => last = true,
                // A look that hangs: there is no policy to leave.
                () = tokio::time::sleep(Duration::from_secs(5)), if last => break None,
            }
        };
        let Some(done) = done else { break };
        let mut work = done.map_err(|error| format!("a look failed: {error}; this is a bug of railweave"))?;
        if last {
            work.leave(&shared);
            break;
        }
        socket.keep(&shared);
        shared.looked();
        let mut reload = false;
        tokio::select! {
            _ = end.recv() => last = true,
            _ = interrupt.recv() => last = true,
            _ = hang_up.recv() => reload = true,
            () = shared.reloads() => reload = true,
            () = shared.waits_for_change() => {}
            () = tokio::time::sleep(Duration::from_millis(settings.config.every_ms)) => {}
        }
        if reload && let Some(new) = settings.read_again(arguments) {
            shared.set_settings(&new);
            work.set_settings(&new);
            settings = new;
        }
        if last {
            work.leave(&shared);
            break;
        }
        looks = Some(work);
    }
    script.abort();
    log::say("ends; the last policies hold for their time to live");
    Ok(())
}
