//! `railweave agent`: watches the jobs of a host, steers them by policies, and serves metrics and an API.
//!
//! `railweave-agent` decides; here is the work around it: files, counters, signals, sockets and a script's process.

mod access;
mod arguments;
mod folders;
mod log;
mod looks;
mod own_socket;
mod script;
mod server;
mod settings;
mod shared;
mod sockets;

pub(crate) use self::arguments::Arguments;
use self::looks::Looks;
use self::own_socket::OwnSocket;
use self::settings::Settings;
use self::shared::Shared;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

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
    let mut socket = OwnSocket::new(settings.own_run_dir());
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
