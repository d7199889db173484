//! The Unix socket in the agent's own run dir.

use super::log;
use super::server;
use super::shared::Shared;
use super::sockets::Limited;
use railweave_telemetry::RunDir;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// The socket in this user's own run dir, at which nobody but this user needs no token.
pub(super) struct OwnSocket {
    path: PathBuf,
    dir: RunDir,
    server: Option<JoinHandle<()>>,
    /// The device and inode of the socket.
    identity: Option<(u64, u64)>,
    said: bool,
}

impl OwnSocket {
    pub(super) fn new(dir: &RunDir) -> Self {
        let path = dir.path().join("agent.sock");
        Self { path, dir: dir.clone(), server: None, identity: None, said: false }
    }

    /// Makes the socket if it is not there. The socket of another agent that answers is left alone.
    pub(super) fn keep(&mut self, shared: &Arc<Shared>) {
        if self.identity.is_some() && self.identity == self.present() {
            return;
        }
        if let Some(server) = self.server.take() {
            server.abort();
        }
        self.identity = None;
        match self.make() {
            Ok(Some(listener)) => {
                self.identity = self.present();
                self.server = Some(tokio::spawn(server::serve_own(Arc::clone(shared), Limited::new(listener))));
                self.said = false;
            }
            Ok(None) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.said, true) {
                    log::say(&format!(
                        "\"{}\" cannot be used: {error}; the API is at its address only",
                        self.path.display()
                    ));
                }
            }
        }
    }

    fn present(&self) -> Option<(u64, u64)> {
        std::fs::symlink_metadata(&self.path).ok().map(|facts| (facts.dev(), facts.ino()))
    }

    fn make(&self) -> io::Result<Option<UnixListener>> {
        self.dir.check().map_err(io::Error::other)?;
        if self.present().is_some() {
            // Somebody listens: an agent that this one will replace.
            if answers(&self.path) {
                return Ok(None);
            }
            std::fs::remove_file(&self.path)?;
        }
        let listener = UnixListener::bind(&self.path)?;
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Some(listener))
    }
}

/// Returns true if somebody listens at a socket. Does not wait, even if whoever listens is stopped, and connections
/// that it has not accepted have no more room.
fn answers(path: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let attempt =
        || connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &SocketAddrUnix::new(path)?);
    matches!(attempt(), Ok(()) | Err(Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_stopped_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("railweave-own-socket-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(!answers(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // More than there is room for (net.core.somaxconn is 4096).
        assert!((0..5000).all(|_| answers(&path)));
        drop(listener);
        assert!(!answers(&path));
        std::fs::remove_file(&path).unwrap();
    }
}
