//! The sockets at which the agent serves: a TCP address, and a Unix socket in its own run dir.

use super::log;
use super::server;
use super::shared::Shared;
use axum::serve::Listener;
use railweave_telemetry::RunDir;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep};

/// The most connections at a time on each socket; others wait.
const MOST_CONNECTIONS: usize = 64;

/// The time after which a connection is closed on which nothing moves.
const IDLE: Duration = Duration::from_secs(30);

/// The pause between two attempts to listen.
const PAUSE: Duration = Duration::from_secs(1);

/// Allows as many open files as this user may have.
pub(super) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The present limit does for most hosts.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Listens at an address. One that is in use may be that of an agent that this one replaces: it is waited for.
///
/// # Errors
/// If the address cannot be used: a sentence.
pub(super) async fn listen(address: SocketAddr) -> Result<Tcp, Box<dyn Error>> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Tcp::Ready(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            log::say(&format!(
                "listen: {address} is in use, perhaps by another agent; metrics and API are served once it is free, or \
                 try another address with --listen"
            ));
            Ok(Tcp::Waits(address))
        }
        Err(error) => Err(format!(
            "listen: {address} cannot be used: {error}; allowed: an address of this host and a port; try 127.0.0.1:9470"
        )
        .into()),
    }
}

/// A TCP address, in use by somebody else or not.
pub(super) enum Tcp {
    Ready(TcpListener),
    Waits(SocketAddr),
}

impl Tcp {
    /// Returns the listener, once there is one.
    pub(super) async fn ready(self) -> TcpListener {
        let address = match self {
            Self::Ready(listener) => return listener,
            Self::Waits(address) => address,
        };
        loop {
            sleep(PAUSE).await;
            if let Ok(listener) = TcpListener::bind(address).await {
                log::say(&format!("listen: {address} is free, and serves metrics and API now"));
                return listener;
            }
        }
    }
}

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
            if std::os::unix::net::UnixStream::connect(&self.path).is_ok() {
                return Ok(None);
            }
            std::fs::remove_file(&self.path)?;
        }
        let listener = UnixListener::bind(&self.path)?;
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Some(listener))
    }
}

/// A listener with a bound for its connections.
pub(super) struct Limited<L> {
    listener: L,
    room: Arc<Semaphore>,
}

impl<L> Limited<L> {
    pub(super) fn new(listener: L) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(MOST_CONNECTIONS)) }
    }
}

impl<L: Listener> Listener for Limited<L>
where
    L::Io: Unpin,
{
    type Io = Bounded<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            // It is never closed.
            let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { continue };
            let (io, address) = self.listener.accept().await;
            return (Bounded { io, idle: Box::pin(sleep(IDLE)), _room: room }, address);
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing moves on it for long.
pub(super) struct Bounded<T> {
    io: T,
    idle: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl<T> Bounded<T> {
    /// Returns the result of an attempt to move something; an error if nothing has moved for long.
    fn moved<R>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE);
            return result;
        }
        match self.idle.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Bounded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_read(context, buffer);
        self.moved(context, result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Bounded<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(context, bytes);
        self.moved(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
