//! A session and its socket.

use std::collections::HashMap;
use std::io;

use railweave_transport::{FRAME_HEADER_BYTES, MAX_FRAME_BYTES, MAX_HELLO_BYTES, ProcessId, Session as Protocol, Side};

use super::connection::Connection;
use super::setups::SessionSetups;
use super::stream::Stream;

/// What a peer may send while it has no connection: a connect that fails takes some hundred bytes, and its session is
/// closed a second later.
pub(super) const MOST_FROM_STRANGERS: usize = 64 << 10;

/// A session that a peer opened is not read from while more than this waits to be written: whoever asks and does not
/// read the answers would have them kept here.
const MOST_UNREAD_BY_PEER: usize = 64 << 10;

/// How long what was sent has to go out once nothing is read any more.
const CLOSING_NS: u64 = 1_000_000_000;

/// Tells whether a session is left unread while so many bytes find no room in its socket. Its opener reads at all
/// times, so both ends cannot wait for each other.
fn is_left_unread(side: Side, unsent: usize) -> bool {
    side == Side::Acceptor && unsent > MOST_UNREAD_BY_PEER
}

/// Added to the times of sessions that make place last: later than any time of the clock.
pub(super) const LAST_NS: u64 = 1 << 62;

/// The socket of a session.
pub(super) struct Socket {
    pub(super) stream: Stream,
    /// It is dialled, and not known to be connected yet.
    pub(super) is_dialled: bool,
    /// Which of the session's sockets it is.
    pub(super) number: u64,
    /// Nothing more can be sent.
    pub(super) is_broken: bool,
}

/// A session.
pub(super) struct Session {
    pub(super) protocol: Protocol,
    /// None while the session waits before it dials again, and once it is over.
    pub(super) socket: Option<Socket>,
    /// How many sockets it has had.
    sockets: u64,
    /// The process that it was opened to.
    pub(super) wanted: Option<ProcessId>,
    /// Bytes that came since it had a connection.
    unwelcome_bytes: usize,
    /// It has more to say than was read at once, and is left alone for a while.
    pub(super) resting: bool,
    /// What it wants done is being done.
    pub(super) is_driven: bool,
    /// Why its socket is broken, until that is looked after.
    pub(super) broken: Option<io::Error>,
    pub(super) setups: SessionSetups,
    pub(super) connections: HashMap<u32, Connection>,
}

impl Session {
    pub(super) fn new(protocol: Protocol, wanted: Option<ProcessId>) -> Self {
        Self {
            protocol,
            socket: None,
            sockets: 0,
            wanted,
            unwelcome_bytes: 0,
            resting: false,
            is_driven: false,
            broken: None,
            setups: SessionSetups::default(),
            connections: HashMap::new(),
        }
    }

    /// Gives the session a socket in place of the last one.
    pub(super) fn take_socket(&mut self, stream: Stream, is_dialled: bool) {
        self.sockets += 1;
        (self.broken, self.resting) = (None, false);
        self.socket = Some(Socket { stream, is_dialled, number: self.sockets, is_broken: false });
    }

    /// When it has something to do though nothing comes.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        // Nearly always there is none, and there may be thousands that are up.
        let connections = if self.setups.has_any() { Some(self.connections.values()) } else { None };
        let settings = connections.into_iter().flatten().filter_map(|connection| match connection {
            Connection::Setup(setting) => setting.next_ns(),
            _ => None,
        });
        settings.chain(self.protocol.timeout_ns()).min()
    }

    /// Whether nobody has proved to be welcome on it: a peer opened it, and no listener of ours has a connection on it.
    pub(super) fn is_strangers(&self) -> bool {
        self.protocol.side() == Side::Acceptor && self.socket.is_some() && !self.protocol.has_connections()
    }

    /// Counts what came from a stranger; whether it has said more than one may.
    pub(super) fn has_said_enough(&mut self, bytes: usize) -> bool {
        self.unwelcome_bytes += bytes;
        self.unwelcome_bytes > MOST_FROM_STRANGERS
    }

    /// The peer has begun a connection.
    pub(super) fn is_welcome(&mut self, now_ns: u64) {
        self.unwelcome_bytes = 0;
        self.protocol.touch(now_ns);
    }

    /// How much is read at once, and kept until it is whole.
    pub(super) fn most_unread(&self) -> usize {
        if self.protocol.is_up() { MAX_FRAME_BYTES } else { MAX_HELLO_BYTES + FRAME_HEADER_BYTES }
    }

    /// Since when the peer could have begun a connection, and has none. One whose offers wait for this process comes
    /// after all others, at [`LAST_NS`] and more.
    pub(super) fn newcomer_since_ns(&self) -> Option<u64> {
        let class_ns = if self.setups.has_offers() { LAST_NS } else { 0 };
        self.is_strangers().then_some(self.protocol.idle_since_ns() + class_ns)
    }

    /// The bytes that wait to be sent, where the session is not read from until its peer takes them.
    pub(super) fn left_unread(&self) -> Option<usize> {
        let unsent = self.socket.as_ref().map_or(0, |socket| socket.stream.unsent());
        is_left_unread(self.protocol.side(), unsent).then_some(unsent)
    }
}

/// A socket whose session is over, while what was sent goes out.
pub(super) struct Closing {
    pub(super) stream: Stream,
    pub(super) since_ns: u64,
}

impl Closing {
    pub(super) fn deadline_ns(&self) -> u64 {
        self.since_ns + CLOSING_NS
    }

    pub(super) fn since_ns(&self) -> u64 {
        self.since_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_that_did_not_open_the_session_stops_reading() {
        for (side, unsent, expected) in [
            (Side::Acceptor, MOST_UNREAD_BY_PEER, false),
            (Side::Acceptor, MOST_UNREAD_BY_PEER + 1, true),
            // If it stopped too, each end could wait for the other to read.
            (Side::Opener, MOST_UNREAD_BY_PEER + 1, false),
            (Side::Opener, usize::MAX, false),
        ] {
            assert_eq!(is_left_unread(side, unsent), expected, "{side:?} {unsent}");
        }
    }
}
