//! The state of a socket that will become a lane, and of an accepted socket that has not said what it is.

use std::fmt;
use std::net::SocketAddr;

use railweave_transport::{Dial, LANE_PROOF_BYTES, LanePreface, Preface, Recovers, Redials};

use super::stream::{Fill, Stream, is_closed};
use crate::comm::Route;

/// The acceptor's answer to a lane that it takes.
pub(super) const LANE_TAKEN: [u8; 8] = *b"RWLNTKN1";

/// An accepted socket that has not said what it is.
pub(super) struct Inbound {
    pub(super) stream: Stream,
    pub(super) address: SocketAddr,
    pub(super) accepted_ns: u64,
    pub(super) deadline_ns: u64,
}

/// A lane that the peer has dialled for a rail of an open connection, until its end may take it. The socket is not
/// watched any more.
pub(super) struct DialledLane {
    pub(super) stream: Stream,
    pub(super) address: SocketAddr,
    pub(super) rail: u8,
    pub(super) lane: u8,
}

/// A lane that this side dials.
pub(super) struct LaneDial {
    pub(super) stream: Stream,
    pub(super) route: Route,
    pub(super) dial: Dial,
    pub(super) proof: [u8; LANE_PROOF_BYTES],
    pub(super) remote: SocketAddr,
    pub(super) presented: bool,
    pub(super) redials: Redials,
    /// The time that each attempt has, in nanoseconds.
    pub(super) patience_ns: u64,
    pub(super) deadline_ns: u64,
}

/// A lane that will be dialled again because the peer closed it without an answer, or did not answer: if strangers
/// flood the peer, its kernel drops connections that do not fit into the queue.
pub(super) struct LaneRedial {
    pub(super) route: Route,
    pub(super) dial: Dial,
    pub(super) port: u16,
    pub(super) redials: Redials,
    /// The time that each attempt has, in nanoseconds.
    pub(super) patience_ns: u64,
    pub(super) at_ns: u64,
}

/// The failure of a dialled lane.
pub(super) struct Broken {
    pub(super) reason: String,
    /// True if the peer has closed the socket without an answer.
    pub(super) is_closed: bool,
}

/// Answers a dialled lane that its connection awaits.
///
/// # Errors
/// If the socket is broken: the words for a line.
pub(super) fn answer_taken(stream: &mut Stream) -> Result<(), &'static str> {
    // Eight bytes always fit into a fresh socket's buffer.
    if stream.send(&LANE_TAKEN).is_err() || stream.has_unsent() { Err(BROKE) } else { Ok(()) }
}

/// The words for a socket that broke.
pub(super) const BROKE: &str = "a lane broke while it was answered";

/// Returns the words for a lane that is not taken.
pub(super) fn refused(lane: u8, rail: u8, reason: &impl fmt::Display) -> String {
    format!("lane {lane} of rail {rail} was refused: {reason}")
}

impl DialledLane {
    /// Returns true if the dialler has closed the socket: its attempt has timed out, and it dials again.
    pub(super) fn is_closed(&self) -> bool {
        self.stream.is_closed_by_peer()
    }

    /// Hands the socket to the end. The peer uses the lane from the answer on, so the answer comes first, and not
    /// before the end can take the socket.
    ///
    /// # Errors
    /// If the end does not take it: the words for a line.
    pub(super) fn give(mut self, end: &mut (impl Recovers + ?Sized)) -> Result<(), String> {
        if self.is_closed() {
            return Ok(());
        }
        let (rail, lane) = (self.rail, self.lane);
        end.awaits_lane(rail, lane).map_err(|reason| refused(lane, rail, &reason))?;
        answer_taken(&mut self.stream)?;
        end.handle_lane(rail, lane, self.stream.into_socket()).map_err(|reason| refused(lane, rail, &reason))
    }
}

impl LaneDial {
    /// Advances as far as possible. Returns true once the peer has taken the lane.
    pub(super) fn advance(&mut self) -> Result<bool, Broken> {
        let (local, remote) = (self.dial.local, self.remote);
        let broken = |error: std::io::Error| Broken {
            reason: format!("{local} cannot reach {remote}: {error}"),
            is_closed: is_closed(&error),
        };
        if !self.presented {
            if !self.stream.is_connected().map_err(broken)? {
                return Ok(false);
            }
            let Dial { token, rail, lane, .. } = self.dial;
            let (rail, lane) = (rail.index() as u8, lane.0);
            let lane = LanePreface { token, rail, lane, proof: self.proof };
            self.stream.send(&Preface::Lane(lane).encode()).map_err(broken)?;
            self.presented = true;
        }
        self.stream.flush().map_err(broken)?;
        let filled = self.stream.fill(LANE_TAKEN.len()).map_err(broken)?;
        if self.stream.input() == LANE_TAKEN && !self.stream.has_unsent() {
            self.stream.consume(LANE_TAKEN.len());
            return Ok(true);
        }
        if filled == Fill::Closed || self.stream.input().len() == LANE_TAKEN.len() {
            let reason = format!(
                "{remote} did not take the lane from {local}: the peer gave the connection up, or is not Railweave"
            );
            return Err(Broken { reason, is_closed: self.stream.input().is_empty() });
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use railweave_fabric::Part;
    use railweave_transport::{Hearing, Hush, LaneRefused, RailNews, RailWork, RecoveryAction};

    use super::*;

    /// An end that takes one lane, or none.
    struct OneLane {
        awaits: bool,
        taken: Option<OwnedFd>,
    }

    impl Recovers for OneLane {
        fn handle_lane(&mut self, _rail: u8, _lane: u8, socket: OwnedFd) -> Result<(), LaneRefused> {
            self.taken = Some(socket);
            Ok(())
        }

        fn awaits_lane(&mut self, rail: u8, _lane: u8) -> Result<(), LaneRefused> {
            if self.awaits { Ok(()) } else { Err(LaneRefused::NotAwaited(rail)) }
        }

        fn recover(&mut self, _now_ns: u64) {}
        fn handle_rail_news(&mut self, _news: RailNews, _now_ns: u64) {}
        fn handle_worked(&mut self, _work: Box<dyn RailWork>, _now_ns: u64) {}
        fn handle_lane_dialled(&mut self, _dial: &Dial, _socket: Result<OwnedFd, String>, _now_ns: u64) {}
        fn handle_part_failed(&mut self, _part: &Part, _message: &str) -> bool {
            false
        }
        fn hurry_recovery(&mut self, _now_ns: u64) {}
        fn look_for_silence(&mut self, _hearing: Hearing) -> Hush {
            Hush::Idle
        }
        fn recovery_timeout_ns(&self) -> Option<u64> {
            None
        }
        fn poll_recovery(&mut self) -> Option<RecoveryAction> {
            None
        }
    }

    /// Returns a dialler's socket, and the lane that came of it.
    fn dial() -> (TcpStream, DialledLane) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dialler = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, address) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let stream = Stream::new(mio::net::TcpStream::from_std(socket));
        (dialler, DialledLane { stream, address, rail: 0, lane: 0 })
    }

    #[test]
    fn only_a_lane_that_its_end_takes_has_an_answer() {
        for awaits in [true, false] {
            let ((mut dialler, lane), mut end) = (dial(), OneLane { awaits, taken: None });
            assert_eq!((lane.give(&mut end).is_ok(), end.taken.is_some()), (awaits, awaits));
            drop(end);
            let mut answer = Vec::new();
            dialler.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, if awaits { &LANE_TAKEN[..] } else { &[] });
        }
    }

    #[test]
    fn a_lane_whose_dialler_has_given_up_is_dropped_without_a_word() {
        let ((dialler, lane), mut end) = (dial(), OneLane { awaits: true, taken: None });
        drop(dialler);
        while !lane.is_closed() {
            std::thread::yield_now();
        }
        assert_eq!((lane.give(&mut end), end.taken.is_some()), (Ok(()), false));
    }
}
