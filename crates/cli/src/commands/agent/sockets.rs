//! The TCP address at which the agent serves, and the bounds for connections.

use super::log;
use axum::serve::Listener;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The most connections at a time on each socket. Another one takes the place of the one on which nothing has moved for
/// the longest time.
const MOST_CONNECTIONS: usize = 256;

/// The time after which a connection is closed on which nothing moves.
const IDLE: Duration = Duration::from_secs(30);

/// The time within which a request has to come: from the beginning of its connection, or from its first byte if others
/// came before it.
const REQUEST: Duration = Duration::from_secs(5);

/// The time within which an answer has to be taken: a reader that takes a byte now and then keeps a text that others
/// share, and soon keeps them from a newer one.
const ANSWER: Duration = Duration::from_secs(60);

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
    /// Returns the address: with port 0, the kernel has chosen one.
    pub(super) fn address(&self) -> SocketAddr {
        match self {
            // Without it, the listener does not work either.
            Self::Ready(listener) => listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([0; 4], 0))),
            Self::Waits(address) => *address,
        }
    }

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
    places: Places,
}

type Places = Arc<Mutex<Taken>>;

/// The places of connections.
#[derive(Default)]
struct Taken {
    /// By numbers in the order in which the connections came. None comes twice: a connection that has lost its place
    /// may last until its task runs.
    by_number: BTreeMap<u64, Place>,
    /// The number of the next connection.
    next: u64,
}

/// The place of a connection.
struct Place {
    /// The time at which something moved last.
    moved: Instant,
    /// Wakes the connection's task.
    waker: Option<Waker>,
}

/// Nothing panics while these are locked.
fn locked(places: &Places) -> MutexGuard<'_, Taken> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new connection a place, and returns its number. If there is no room, the one that has been idle for the
/// longest time loses its place, by which it ends.
fn take_place(places: &Places) -> u64 {
    let mut places = locked(places);
    let Taken { by_number, next } = &mut *places;
    if by_number.len() >= MOST_CONNECTIONS
        && let Some(number) = by_number.iter().min_by_key(|(_, place)| place.moved).map(|(number, _)| *number)
        && let Some(Place { waker: Some(waker), .. }) = by_number.remove(&number)
    {
        waker.wake();
    }
    let number = *next;
    *next += 1;
    by_number.insert(number, Place { moved: Instant::now(), waker: None });
    number
}

impl<L> Limited<L> {
    pub(super) fn new(listener: L) -> Self {
        Self { listener, places: Places::default() }
    }
}

impl<L: Listener> Listener for Limited<L>
where
    L::Io: Unpin,
{
    type Io = Bounded<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (io, address) = self.listener.accept().await;
        let number = take_place(&self.places);
        (Bounded::new(io, Arc::clone(&self.places), number), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing moves on it for long, when a request takes too long to come, or when it loses
/// its place.
pub(super) struct Bounded<T> {
    io: T,
    places: Places,
    number: u64,
    idle: Pin<Box<Sleep>>,
    /// The time until which the request that is expected has to be here. `None` while it is answered, and from then on
    /// until the first byte of the next.
    due: Option<Instant>,
    /// The time until which the answer has to be taken.
    answer_due: Option<Instant>,
}

impl<T> Drop for Bounded<T> {
    fn drop(&mut self) {
        locked(&self.places).by_number.remove(&self.number);
    }
}

impl<T> Bounded<T> {
    fn new(io: T, places: Places, number: u64) -> Self {
        let due = Instant::now() + REQUEST;
        Self { io, places, number, idle: Box::pin(sleep_until(due)), due: Some(due), answer_due: None }
    }

    /// Returns the time at which the connection ends unless something moves before.
    fn end(&self, now: Instant) -> Instant {
        [self.due, self.answer_due].into_iter().flatten().fold(now + IDLE, Instant::min)
    }

    /// Returns the result of an attempt to move something; an error if the connection has to end.
    fn moved<R>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        let now = Instant::now();
        {
            let mut places = locked(&self.places);
            let Some(place) = places.by_number.get_mut(&self.number) else {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            };
            if result.is_ready() {
                place.moved = now;
            } else if !place.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                place.waker = Some(context.waker().clone());
            }
        }
        if result.is_ready() {
            let end = self.end(now);
            self.idle.as_mut().reset(end);
            if now < end {
                return result;
            }
        }
        match self.idle.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => result,
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
        // Bytes that come during an answer neither prolong nor end it.
        if result.is_ready() && self.answer_due.is_none() {
            self.due.get_or_insert_with(|| Instant::now() + REQUEST);
        }
        self.moved(context, result)
    }
}

impl<T: AsyncWrite + Unpin> Bounded<T> {
    /// Notes the result of a write: whatever was to come is here.
    fn written(&mut self, context: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        // Requests that came together are answered one after another, without a read in between.
        if self.due.take().is_some() || self.answer_due.is_none() {
            let now = Instant::now();
            self.answer_due = Some(now + ANSWER);
            let end = self.end(now);
            self.idle.as_mut().reset(end);
        }
        self.moved(context, result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Bounded<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(context, parts);
        self.written(context, result)
    }

    /// Otherwise the server would copy what many connections share.
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(context);
        if result.is_ready() {
            self.answer_due = None;
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    #[test]
    fn a_connection_that_has_lost_its_place_does_not_have_that_of_the_next_one() {
        let places = Places::default();
        let mut last = 0;
        for _ in 0..MOST_CONNECTIONS {
            last = take_place(&places);
        }
        // Something has moved on all others since the last one came.
        let now = Instant::now() + PAUSE;
        locked(&places).by_number.iter_mut().filter(|(it, _)| **it != last).for_each(|(_, place)| place.moved = now);
        assert_ne!(take_place(&places), last);
        assert!(locked(&places).by_number.len() == MOST_CONNECTIONS && !locked(&places).by_number.contains_key(&last));
    }

    /// Returns the two ends of a connection with room for this many bytes.
    fn pair(room: usize) -> (DuplexStream, Bounded<DuplexStream>) {
        let places = Places::default();
        let number = take_place(&places);
        let (peer, io) = tokio::io::duplex(room);
        (peer, Bounded::new(io, places, number))
    }

    #[tokio::test]
    async fn each_answer_has_its_time_even_if_the_requests_came_together() {
        let (mut peer, mut connection) = pair(64);
        peer.write_all(b"two requests").await.unwrap();
        connection.read_exact(&mut [0; 12]).await.unwrap();
        assert!(connection.due.is_some() && connection.answer_due.is_none());
        for _ in 0..2 {
            connection.write_all(b"an answer").await.unwrap();
            assert!(connection.due.is_none() && connection.answer_due.is_some());
            connection.flush().await.unwrap();
            assert!(connection.answer_due.is_none(), "it is taken");
        }
    }

    #[tokio::test]
    async fn a_connection_ends_when_it_idles_or_something_is_due() {
        let (mut peer, mut connection) = pair(64);
        peer.write_all(b"a request").await.unwrap();
        connection.read_exact(&mut [0; 9]).await.unwrap();
        connection.write_all(b"an answer").await.unwrap();
        let due = connection.answer_due;
        connection.write_all(b" goes on").await.unwrap();
        assert!(connection.answer_due == due && due.is_some(), "a write does not prolong it");
        peer.write_all(b"more").await.unwrap();
        connection.read_exact(&mut [0; 4]).await.unwrap();
        assert!(connection.due.is_none(), "bytes that come during an answer");
        let now = Instant::now();
        let second = now + Duration::from_secs(1);
        connection.answer_due = Some(second);
        assert_eq!(connection.end(now), second);
        connection.flush().await.unwrap();
        assert_eq!(connection.end(now), now + IDLE);
        connection.due = Some(now - Duration::from_secs(1));
        peer.write_all(b"late").await.unwrap();
        assert_eq!(connection.read(&mut [0; 4]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn an_answer_that_has_no_room_yet_does_not_end_when_its_request_was_due() {
        let (mut peer, mut connection) = pair(8);
        connection.write_all(b"8 bytes.").await.unwrap();
        connection.flush().await.unwrap();
        peer.write_all(b"a").await.unwrap();
        connection.read_exact(&mut [0; 1]).await.unwrap();
        let due = connection.due.unwrap();
        assert_eq!(connection.idle.deadline(), due);
        assert!(tokio::time::timeout(Duration::from_millis(1), connection.write_all(b"b")).await.is_err());
        assert!(connection.idle.deadline() > due);
    }
}
