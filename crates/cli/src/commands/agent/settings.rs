//! The settings of the agent: its configuration, with the arguments over it.

use super::arguments::Arguments;
use super::log;
use crate::environment;
use crate::host::{USERS, Users};
use railweave_agent::Config;
use railweave_telemetry::RunDir;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest configuration, in bytes.
const LARGEST_CONFIG: u64 = 1 << 20;

/// The bytes that a token has.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

/// The settings of the agent.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) token: Option<String>,
    /// The run dir that is made if it is missing, and has the agent's socket: the first of the settings, otherwise
    /// this user's own.
    own: RunDir,
}

impl Settings {
    /// Reads the configuration.
    ///
    /// # Errors
    /// If it is missing or wrong: a sentence.
    pub(super) fn read(arguments: &Arguments) -> Result<Self, String> {
        let mut config = match &arguments.config {
            Some(path) => {
                let text = read_text(path, LARGEST_CONFIG)?;
                Config::parse(&text).map_err(|error| format!("\"{}\": {error}", path.display()))?
            }
            None => Config::default(),
        };
        config.listen = arguments.listen.unwrap_or(config.listen);
        if !arguments.run_dir.is_empty() {
            config.run_dirs.clone_from(&arguments.run_dir);
        }
        for run_dir in &mut config.run_dirs {
            *run_dir = std::path::absolute(&*run_dir)
                .map_err(|error| format!("run_dirs: \"{}\": {error}; try an absolute path", run_dir.display()))?;
        }
        if arguments.token_file.is_some() {
            config.token_file.clone_from(&arguments.token_file);
        }
        let token = config.token_file.as_deref().map(read_token).transpose()?;
        check_access(config.listen, token.as_deref())?;
        let own = match config.run_dirs.first() {
            Some(first) => RunDir::named(Some(first)),
            None => environment::run_dir()?,
        };
        Ok(Self { config, token, own })
    }

    /// Reads the configuration again.
    ///
    /// # Errors
    /// If it is wrong, a sentence: the present one stays in force.
    pub(super) fn read_again(&self, arguments: &Arguments) -> Result<Self, String> {
        // The agent goes on listening where it does, which the new token has to permit too.
        let read = Self::read(arguments).and_then(|new| match check_access(self.config.listen, new.token.as_deref()) {
            Ok(()) => Ok(new),
            Err(error) if new.config.listen == self.config.listen => Err(error),
            Err(error) => Err(format!("{error} until the next start, from which on the new address holds")),
        });
        let mut new =
            read.map_err(|error| format!("the configuration was not taken, and the last one stays in force: {error}"))?;
        if new.config.listen != self.config.listen {
            log::say(&format!(
                "listen: {} holds from the next start on; until then, it is {}",
                new.config.listen, self.config.listen
            ));
            new.config.listen = self.config.listen;
        }
        log::say("the configuration was read again");
        Ok(new)
    }

    /// Returns the address of metrics and API.
    pub(super) fn listen(&self) -> SocketAddr {
        self.config.listen
    }

    /// Returns the run dir that is made if it is missing, and has the agent's socket.
    pub(super) fn own_run_dir(&self) -> &RunDir {
        &self.own
    }
}

/// Refuses to serve other hosts without a token.
fn check_access(listen: SocketAddr, token: Option<&str>) -> Result<(), String> {
    if token.is_some() || listen.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "listen: {listen} is not an address of this host alone, and there is no token; allowed: a loopback address, or \
         any with a token; try token_file"
    ))
}

fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let shown = path.display();
    let failed = |error| format!("\"{shown}\" cannot be read: {error}; allowed: a file that this user can read");
    let mut file = open(path).map_err(failed)?;
    if file.metadata().is_ok_and(|facts| facts.file_type().is_fifo()) {
        return Err(format!("\"{shown}\" is a pipe; allowed: a file that can be read again; try a regular file"));
    }
    read_bounded(&mut file, path, most)
}

/// Opens a file to read it. Does not wait for the writer of a pipe: looks would wait with it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)
}

fn read_bounded(file: &mut File, path: &Path, most: u64) -> Result<String, String> {
    let shown = path.display();
    let mut text = String::new();
    let read = file.take(most + 1).read_to_string(&mut text);
    read.map_err(|error| format!("\"{shown}\" cannot be read: {error}; allowed: text in UTF-8"))?;
    if text.len() as u64 > most {
        return Err(format!("\"{shown}\" has more than {most} bytes; allowed: up to {most}; try a smaller one"));
    }
    Ok(text)
}

/// Reads a token, which nobody but its owner may be able to read.
fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error| format!("token_file: \"{shown}\" cannot be read: {error}; try one that this user can read");
    let mut file = open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    let user = rustix::process::geteuid().as_raw();
    if !facts.is_file() {
        return Err(format!(
            "token_file: \"{shown}\" is not a regular file; allowed: a regular file with mode 0600 or 0400; try another"
        ));
    }
    if facts.mode() & 0o077 != 0 || (facts.uid() != user && facts.uid() != 0) {
        return Err(format!(
            "token_file: \"{shown}\" may be read by others than this user; allowed: a regular file of this user or \
             root with mode 0600 or 0400; try `chmod 600 {shown}`"
        ));
    }
    let text = read_bounded(&mut file, path, 1 << 16)?;
    let token = text.trim();
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    if !TOKEN_BYTES.contains(&token.len()) || !is_plain {
        return Err(format!(
            "token_file: \"{shown}\" has no token of the right form; allowed: 16 to 1024 letters, digits and signs \
             without spaces; try `openssl rand -hex 32 > {shown}`"
        ));
    }
    Ok(token.to_owned())
}

/// Returns the folders to watch now: those of the settings, otherwise this user's own, and as root those of all users,
/// which `users` holds on to while they cannot be listed.
pub(super) fn run_dirs(settings: &Settings, users: &mut Users) -> Vec<PathBuf> {
    if !settings.config.run_dirs.is_empty() {
        return settings.config.run_dirs.clone();
    }
    let mut found = vec![settings.own.path().to_owned()];
    if rustix::process::geteuid().is_root() {
        users.find(Path::new(USERS));
        found.extend(users.found().cloned());
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn root_watches_the_run_dirs_of_all_users() {
        let user = 3_000_000_000 + std::process::id();
        let other = Path::new(USERS).join(format!("railweave-{user}"));
        let own = RunDir::named(None);
        let mut settings = Settings { config: Config::default(), token: None, own: own.clone() };
        let is_root = rustix::process::geteuid().is_root();
        let _ = fs::create_dir(&other);
        if is_root {
            std::os::unix::fs::chown(&other, Some(user), None).unwrap();
        }
        let found = run_dirs(&settings, &mut Users::default());
        settings.config.run_dirs = vec![other.clone()];
        let named = run_dirs(&settings, &mut Users::default());
        // An agent that runs here may have put its lock there.
        let _ = fs::remove_dir_all(&other);
        assert!(found.contains(&own.path().to_owned()));
        assert_eq!(found.contains(&other), is_root);
        assert_eq!(named, [other], "these alone");
    }
}
