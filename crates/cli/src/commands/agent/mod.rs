//! `railweave agent`: watches the jobs of a host, steers them by policies, and serves metrics and an API.
//!
//! `railweave-agent` decides; here is the work around it: files, counters, signals, sockets and a script's process.

mod access;
mod answers;
mod arguments;
mod files;
mod folders;
mod found;
mod log;
mod looks;
mod orders;
mod own_socket;
#[cfg(test)]
pub(crate) mod scratch;
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
use self::sockets::Tcp;
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

/// The time for which the end waits for a look that hangs.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// The time for answers to orders that the last look has carried out.
const LAST_ANSWERS: Duration = Duration::from_millis(50);

/// Everything that reads and writes files. A thread of its own does, because a file system may take long.
struct Work {
    looks: Looks,
    socket: OwnSocket,
    settings: Settings,
}

async fn serve(arguments: &Arguments, settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    sockets::raise_limit();
    let shared = Arc::new(Shared::new(&settings));
    let tcp = sockets::listen(settings.listen()).await?;
    if let Tcp::Ready(_) = tcp {
        log::say(&format!("serves metrics and the API at http://{} (docs/agent.md)", tcp.address()));
    }
    let _servers = server::start(&shared, tcp, settings.listen());
    let script = tokio::spawn(script::run(Arc::clone(&shared)));
    let looks = Looks::new(&arguments.root, &settings);
    let mut work = Some(Work { looks, socket: OwnSocket::new(settings.own_run_dir()), settings });
    let (mut last, mut reload, mut has_left) = (false, false, false);
    while let Some(mut taken) = work.take() {
        let (shares, arguments) = (Arc::clone(&shared), arguments.clone());
        let (is_last, reloads) = (last, std::mem::take(&mut reload));
        if is_last {
            // Orders that come from now on would be lost.
            shared.end();
        }
        shared.look_begins();
        let look = tokio::task::spawn_blocking(move || {
            if reloads {
                taken.reload(&arguments, &shares);
            }
            if is_last {
                taken.looks.leave(&shares);
            } else {
                taken.looks.look(&shares);
                taken.socket.keep(&shares);
            }
            taken
        });
        tokio::pin!(look);
        let done = loop {
            tokio::select! {
                done = &mut look => break Some(done),
                _ = end.recv(), if !last => last = true,
                _ = interrupt.recv(), if !last => last = true,
                // A look that hangs: there is no policy to leave.
                () = tokio::time::sleep(LAST_LOOK), if last => break None,
            }
        };
        let Some(done) = done else { break };
        let done = done.map_err(|error| format!("a look failed: {error}; this is a bug of railweave"))?;
        if is_last {
            has_left = true;
            shared.looked();
            // Orders that this look has carried out are answered.
            tokio::time::sleep(LAST_ANSWERS).await;
            break;
        }
        let every = Duration::from_millis(done.settings.config.every_ms);
        shared.looked();
        work = Some(done);
        if last {
            continue;
        }
        tokio::select! {
            _ = end.recv() => last = true,
            _ = interrupt.recv() => last = true,
            _ = hang_up.recv() => reload = true,
            () = shared.reloads() => reload = true,
            () = shared.waits_for_change() => {}
            () = tokio::time::sleep(every) => {}
        }
    }
    script.abort();
    log::say(if has_left {
        "ends; the last policies hold for their time to live"
    } else {
        "ends while a look hangs; the last policies hold for what is left of their time to live"
    });
    Ok(())
}

impl Work {
    /// Reads the configuration again.
    fn reload(&mut self, arguments: &Arguments, shared: &Shared) {
        match self.settings.read_again(arguments) {
            Ok(new) => {
                shared.set_settings(&new);
                self.looks.set_settings(&new);
                self.settings = new;
            }
            Err(reason) => {
                if shared.agent().refuse_config(reason.clone()) {
                    log::say(&reason);
                }
            }
        }
    }
}
