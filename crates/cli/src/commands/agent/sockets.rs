//! The TCP address at which the agent serves, and the bounds for connections.

use super::log;
use axum::serve::Listener;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
