//! A session and its socket.

use std::collections::HashMap;
use std::io;

use railweave_transport::{
    FRAME_HEADER_BYTES, KnownWays, MAX_FRAME_BYTES, MAX_HELLO_BYTES, ProcessId, Session as Protocol, Side,
};

use super::connection::Connection;
use super::setups::SessionSetups;
use super::stream::Stream;

/// Bytes that a peer may send while it has no connection: a failed connect takes a few hundred bytes, and its session
/// is closed a second later.
pub(super) const MOST_FROM_STRANGERS: usize = 64 << 10;

/// A session that a peer opened is not read while more than this many bytes wait to be written. Otherwise the answers
/// to a peer that asks and does not read would pile up here.
const MOST_UNREAD_BY_PEER: usize = 64 << 10;

/// The time for pending output to go out once the session has ended.
const CLOSING_NS: u64 = 1_000_000_000;

/// Returns true if a session is not read while this many bytes are unsent. Its opener always reads, so the ends cannot
/// wait for each other.
fn is_left_unread(side: Side, unsent: usize) -> bool {
    side == Side::Acceptor && unsent > MOST_UNREAD_BY_PEER
}

/// Added to the times of sessions that make room last; greater than any time of the clock.
pub(super) const LAST_NS: u64 = 1 << 62;

/// The socket of a session.
pub(super) struct Socket {
    pub(super) stream: Stream,
    /// True while it is dialled and not known to be connected.
    pub(super) is_dialled: bool,
    /// Its number among the session's sockets.
    pub(super) number: u64,
    /// True once nothing more can be sent.
    pub(super) is_broken: bool,
}

/// A session.
pub(super) struct Session {
    pub(super) protocol: Protocol,
    /// `None` while the session waits before it dials again, and once it has ended.
    pub(super) socket: Option<Socket>,
    /// The number of sockets it has had.
    sockets: u64,
    /// The process that it was opened to reach.
    pub(super) wanted_process: Option<ProcessId>,
    /// Bytes received while it had no connection, since its peer last began one.
    stranger_bytes: usize,
    /// True while it rests because it had more input than is read at once.
    pub(super) is_resting: bool,
    /// True while its actions are being carried out.
    pub(super) is_driven: bool,
    /// The error of its socket, until it is handled.
    pub(super) socket_error: Option<io::Error>,
    pub(super) setups: SessionSetups,
    pub(super) connections: HashMap<u32, Connection>,
    pub(super) ways: KnownWays,
    /// The time at which it was last said that it has lost its socket, and true if that was said for the last loss.
    pub(super) away_said_ns: Option<u64>,
    pub(super) is_away_said: bool,
    /// The time at which it last left the path of a silent rail.
    pub(super) left_ns: Option<u64>,
    /// True once its connections that nobody has accepted count as left, because it has been away for long.
    pub(super) is_left: bool,
}

impl Session {
    pub(super) fn new(protocol: Protocol, wanted_process: Option<ProcessId>) -> Self {
        Self {
            protocol,
            socket: None,
            sockets: 0,
            wanted_process,
            stranger_bytes: 0,
            is_resting: false,
            is_driven: false,
            socket_error: None,
            setups: SessionSetups::default(),
            connections: HashMap::new(),
            ways: KnownWays::default(),
            away_said_ns: None,
            left_ns: None,
            is_away_said: false,
            is_left: false,
        }
    }

    /// Gives the session a socket in place of the previous one.
    pub(super) fn take_socket(&mut self, stream: Stream, is_dialled: bool) {
        self.sockets += 1;
        (self.socket_error, self.is_resting) = (None, false);
        if !is_dialled && (self.protocol.is_away() || self.protocol.is_up()) {
            stream.insist_on_acknowledgements();
        }
        self.socket = Some(Socket { stream, is_dialled, number: self.sockets, is_broken: false });
    }

    /// Returns the time at which it has something to do without an event.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        // Usually no connection is in set-up, and thousands may be up.
        let connections = if self.setups.has_any() { Some(self.connections.values()) } else { None };
        let setups = connections.into_iter().flatten().filter_map(|connection| match connection {
            Connection::Setup(setup) => setup.next_ns(),
            _ => None,
        });
        setups.chain(self.connects_late_ns()).chain(self.protocol.timeout_ns()).min()
    }

    /// Returns the time at which the first of its connects has waited too long for it, while it is away.
    pub(super) fn connects_late_ns(&self) -> Option<u64> {
        let connects = if self.protocol.is_away() { Some(&self.setups.queued_connects) } else { None };
        connects.into_iter().flatten().map(|request| request.until_ns).min()
    }

    /// Returns true if a peer opened it and has no connection on it: the peer may be a stranger.
    pub(super) fn is_of_stranger(&self) -> bool {
        self.protocol.side() == Side::Acceptor && self.socket.is_some() && !self.protocol.has_connections()
    }

    /// Counts bytes from a stranger. Returns true if they exceed the limit.
    pub(super) fn count_stranger_bytes(&mut self, bytes: usize) -> bool {
        self.stranger_bytes += bytes;
        self.stranger_bytes > MOST_FROM_STRANGERS
    }

    /// Notes that the peer has begun a connection.
    pub(super) fn note_new_connection(&mut self, now_ns: u64) {
        self.stranger_bytes = 0;
        self.protocol.touch(now_ns);
    }

    /// Returns the most bytes that are read at once, and kept until a frame is complete.
    pub(super) fn most_unread(&self) -> usize {
        if self.protocol.is_up() { MAX_FRAME_BYTES } else { MAX_HELLO_BYTES + FRAME_HEADER_BYTES }
    }

    /// Returns the time of the last step of a stranger's session towards a connection; `None` for other sessions.
    /// [`LAST_NS`] is added if offers wait for this process, so that such a session makes room last.
    pub(super) fn newcomer_since_ns(&self) -> Option<u64> {
        let class_ns = if self.setups.has_offers() { LAST_NS } else { 0 };
        self.is_of_stranger().then_some(self.protocol.idle_since_ns() + class_ns)
    }

    /// Returns the unsent bytes, if the session is not read until its peer takes them.
    pub(super) fn unsent_if_left_unread(&self) -> Option<usize> {
        let unsent = self.socket.as_ref().map_or(0, |socket| socket.stream.unsent());
        is_left_unread(self.protocol.side(), unsent).then_some(unsent)
    }
}

/// The socket of an ended session while its output goes out.
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
            // If the opener stopped too, each end could wait for the other to read.
            (Side::Opener, MOST_UNREAD_BY_PEER + 1, false),
            (Side::Opener, usize::MAX, false),
        ] {
            assert_eq!(is_left_unread(side, unsent), expected, "{side:?} {unsent}");
        }
    }
}
