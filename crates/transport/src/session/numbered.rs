//! The frames about connections, which survive the loss of their socket: both ends count them, each keeps its own until
//! the peer has them, and a new socket begins with those that it has not.

use std::collections::VecDeque;

use crate::Frame;

/// The most bytes of frames that are kept until the peer says that it has them, and as many more for each connection. A
/// correct peer says so at once. For one that does not, they are let go, and the session ends with its socket. A peer
/// that stands still while 512 connections of 8 rails with 16 lanes are set up leaves 3 MiB. One that cannot be reached
/// while all 8 rails of a connection are down leaves 40 KiB: each RAIL_DOWN lists up to 256 messages.
const MOST_KEPT: usize = 4 << 20;
const MOST_KEPT_EACH: usize = 64 << 10;

/// The most bytes of frames that are kept after some that were let go: the peer may be one that never says what it has.
const MOST_KEPT_ON: usize = 64 << 10;

/// The frames about connections of one end of a session.
#[derive(Debug, Default)]
pub(super) struct Numbered {
    /// The last ones of those that the peer is not known to have.
    kept: VecDeque<Frame>,
    kept_bytes: usize,
    /// The number of the last frame that was let go.
    gone: u64,
    /// The number of frames sent, or to be sent.
    sent: u64,
    /// The number of frames that the peer is known to have.
    has: u64,
    /// The number of frames that this end has received.
    received: u64,
    /// The last such number that it has told.
    told: u64,
}

impl Numbered {
    /// Counts a frame that is sent, or that will be once there is a socket, and keeps it. The session has this many
    /// connections.
    pub(super) fn keep(&mut self, frame: Frame, connections: usize) {
        self.sent += 1;
        self.kept_bytes += frame.message.weight();
        self.kept.push_back(frame);
        let most = if self.lacks_some() { MOST_KEPT_ON } else { MOST_KEPT + connections * MOST_KEPT_EACH };
        if self.kept_bytes > most {
            self.let_go();
        }
    }

    /// Counts a frame that is sent, and does not keep it, nor those before it.
    pub(super) fn pass(&mut self) {
        self.sent += 1;
        self.let_go();
    }

    fn let_go(&mut self) {
        (self.kept, self.kept_bytes, self.gone) = (VecDeque::new(), 0, self.sent);
    }

    /// Returns true if frames that the peer is not known to have are not kept, so that the session cannot go on over
    /// another socket.
    pub(super) fn lacks_some(&self) -> bool {
        self.gone > self.has
    }

    /// Returns true if no frame has come or gone.
    pub(super) fn is_new(&self) -> bool {
        self.received == 0 && self.sent == 0
    }

    /// Notes that a frame came.
    pub(super) fn handle_received(&mut self) {
        self.received += 1;
    }

    /// Returns the number of frames received, if the peer has not been told.
    pub(super) fn untold(&mut self) -> Option<u64> {
        (self.told != self.received).then(|| self.tell())
    }

    /// Returns the number of frames received; the peer is told now.
    pub(super) fn tell(&mut self) -> u64 {
        self.told = self.received;
        self.received
    }

    /// Returns true if the peer may have received this many frames: no fewer than it has said before, and no more than
    /// were sent.
    pub(super) fn may_have(&self, received: u64) -> bool {
        (self.has..=self.sent).contains(&received)
    }

    /// Returns true if all frames after this many are kept.
    pub(super) fn is_kept_after(&self, received: u64) -> bool {
        received >= self.gone
    }

    /// Forgets the frames that the peer says it has. Returns false, and changes nothing, if it
    /// [cannot](Self::may_have).
    #[must_use]
    pub(super) fn handle_has(&mut self, received: u64) -> bool {
        if !self.may_have(received) {
            return false;
        }
        self.has = received;
        while self.kept.len() as u64 > self.sent - received
            && let Some(frame) = self.kept.pop_front()
        {
            self.kept_bytes -= frame.message.weight();
        }
        if self.kept.is_empty() {
            // Most sessions are quiet most of the time, and then keep no memory.
            self.kept = VecDeque::new();
        }
        true
    }

    /// Returns the frames that the peer is not known to have, in their order.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Frame> {
        self.kept.iter()
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric::{RailId, RailSet};

    use super::*;
    use crate::{Incarnation, Listed, Message, RailMessage, RailNews};

    fn frame(connection: u32) -> Frame {
        Frame { connection, message: Message::Wait }
    }

    fn kept(numbered: &Numbered) -> Vec<u32> {
        numbered.kept().map(|frame| frame.connection).collect()
    }

    #[test]
    fn frames_are_kept_until_the_peer_has_them() {
        let mut numbered = Numbered::default();
        (1..=3).for_each(|connection| numbered.keep(frame(connection), 0));
        assert!(numbered.handle_has(2) && numbered.handle_has(2));
        assert_eq!(kept(&numbered), [3]);
        for lie in [0, 1, 4, u64::MAX] {
            assert!(!numbered.may_have(lie) && !numbered.handle_has(lie), "{lie}");
        }
        assert!(numbered.handle_has(3));
        assert_eq!((kept(&numbered), numbered.kept_bytes), (vec![], 0));
    }

    #[test]
    fn what_came_is_told_once() {
        let mut numbered = Numbered::default();
        assert_eq!(numbered.untold(), None);
        (0..5).for_each(|_| numbered.handle_received());
        assert_eq!((numbered.untold(), numbered.untold()), (Some(5), None));
        numbered.handle_received();
        assert_eq!((numbered.tell(), numbered.untold()), (6, None));
    }

    #[test]
    fn for_a_peer_that_never_says_what_it_has_not_everything_is_kept() {
        let mut numbered = Numbered::default();
        let text = "x".repeat(1000);
        let refuse =
            || Message::Refuse { fault: railweave_fabric::Fault::Local, of_rails: false, reason: text.clone() };
        let most = (0..10_000).take_while(|number| {
            numbered.keep(Frame { connection: *number, message: refuse() }, 0);
            !numbered.lacks_some()
        });
        let most = most.count() as u64;
        assert!((3000..4500).contains(&most), "{most}");
        assert!(kept(&numbered).is_empty());
        for number in 0..10_000 {
            numbered.keep(Frame { connection: number, message: refuse() }, 0);
            assert!(numbered.kept_bytes <= MOST_KEPT_ON && numbered.lacks_some());
        }
        let most = most + 10_000;
        assert!(numbered.may_have(most + 1) && !numbered.may_have(most + 2));
        assert!(numbered.handle_has(1) && numbered.lacks_some(), "the rest is gone");
        assert!(numbered.handle_has(most + 1) && !numbered.lacks_some(), "nothing is missing any more");
    }

    #[test]
    fn each_connection_may_have_its_rails_down_while_the_peer_cannot_be_reached() {
        let (mask, none) = (RailSet::ALL, RailSet::EMPTY);
        let listed = Listed { sequence: 1, mask, unsure: none, placed: mask, size: Some(8), is_refused: false };
        let message = RailMessage::Down(vec![listed; 256]);
        let (rail, incarnation) = (RailId::new(0).unwrap(), Incarnation(0));
        let mut numbered = Numbered::default();
        for _ in 0..2000 {
            for connection in 1..=8 {
                let news = RailNews { rail, incarnation, message: message.clone() };
                numbered.keep(Frame { connection, message: Message::Rail(news) }, 2000);
            }
        }
        assert!(!numbered.lacks_some(), "{} bytes", numbered.kept_bytes);
    }

    #[test]
    fn a_frame_that_is_not_kept_is_missing_until_the_peer_has_it() {
        let mut numbered = Numbered::default();
        numbered.keep(frame(1), 0);
        numbered.pass();
        numbered.keep(frame(2), 0);
        assert!(numbered.handle_has(1) && numbered.lacks_some());
        assert_eq!([1, 2, 3].map(|received| numbered.is_kept_after(received)), [false, true, true]);
        assert!(numbered.handle_has(2) && !numbered.lacks_some(), "later ones are kept");
        assert_eq!(kept(&numbered), [2]);
        assert!(numbered.handle_has(3));
        assert_eq!((kept(&numbered), numbered.kept_bytes), (vec![], 0));
    }
}
