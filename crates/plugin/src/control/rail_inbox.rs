//! Things that wait for the recovery of an end until the control thread may use the end.
#![allow(clippy::disallowed_types, reason = "a call hands a connection whose rail failed to the control thread here")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use mio::Waker;
use railweave_fabric::{MAX_LANES, MAX_RAILS, Part};
use railweave_transport::{Dial, RailNews, RailWork, Token};

use super::command::lock;
use super::lane_socket::DialledLane;
use super::rail_threads::RailOwner;
use crate::comm::{End, Route};

/// The connections whose calls have found that a rail failed.
pub(super) struct Called {
    routes: Mutex<Vec<Route>>,
    waker: Arc<Waker>,
}

impl Called {
    pub(super) fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Self { routes: Mutex::default(), waker })
    }

    /// Has the control thread look after a connection. Called on the application's threads, when a rail has failed.
    pub(super) fn call(&self, route: Route) {
        lock(&self.routes).push(route);
        let _ = self.waker.wake();
    }

    pub(super) fn take(&self) -> Vec<Route> {
        std::mem::take(&mut *lock(&self.routes))
    }
}

/// The fault of a peer that sends more steps than may wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flood;

/// Something for the recovery of an end.
pub(super) enum Input {
    /// Something is due.
    Due,
    /// A step of the peer.
    News(RailNews),
    /// Work that is done.
    Worked(Box<dyn RailWork>),
    /// The socket of a lane that was dialled, or the reason why there is none.
    Dialled(Dial, Result<OwnedFd, String>),
    /// A lane that the peer has dialled.
    Lane(Box<DialledLane>),
    /// A part of this host has failed, with this message.
    PartFailed(Part, String),
    /// The paths of rails that are down may be back.
    Hurry,
}

/// The steps of the peer about one rail that may wait. An honest peer has to hear of this end's steps, after two of its
/// own or three.
const MOST_NEWS: usize = 8;

/// The dialled lanes that may wait: those of all rails, once.
const MOST_LANES: usize = MAX_RAILS * MAX_LANES;

/// The recovery of an open connection.
pub(super) struct Recovery {
    inbox: VecDeque<Input>,
    /// True once the peer has sent more steps than may wait. They are dropped from then on.
    is_flooded: bool,
    /// False once the connection is closed: then its work on the threads for rails is not done any more.
    pub(super) is_open: Arc<AtomicBool>,
    /// The NUMA node of the connection's device.
    node: Option<u32>,
    /// The token with which the peer dials lanes again, once it may.
    pub(super) token: Option<Token>,
}

impl Recovery {
    pub(super) fn new(node: Option<u32>) -> Self {
        let is_open = Arc::new(AtomicBool::new(true));
        Self { inbox: VecDeque::new(), is_flooded: false, is_open, node, token: None }
    }

    /// Adds something for the end. The end may have to wait for NCCL's accept, which may take minutes, so what comes
    /// over and over is kept once.
    ///
    /// # Errors
    /// If the peer has sent more steps than may wait; said once.
    pub(super) fn push(&mut self, input: Input) -> Result<(), Flood> {
        match &input {
            Input::News(_) if self.is_flooded => return Ok(()),
            Input::News(news) => {
                let is_of_rail = |it: &&Input| matches!(it, Input::News(other) if other.rail == news.rail);
                if self.inbox.iter().filter(is_of_rail).count() >= MOST_NEWS {
                    self.is_flooded = true;
                    self.inbox.retain(|it| !matches!(it, Input::News(_)));
                    return Err(Flood);
                }
            }
            // The last of them finds everything that the earlier ones would have found.
            Input::Due => self.inbox.retain(|it| !matches!(it, Input::Due)),
            Input::Hurry => self.inbox.retain(|it| !matches!(it, Input::Hurry)),
            Input::PartFailed(part, _) => {
                let is_same = |it: &Input| matches!(it, Input::PartFailed(other, _) if other == part);
                let brings_lanes = |it: &Input| matches!(it, Input::Worked(_) | Input::Dialled(..) | Input::Lane(_));
                if self.inbox.iter().any(is_same) && !self.inbox.iter().any(brings_lanes) {
                    return Ok(());
                }
            }
            Input::Lane(_) => {
                self.inbox.retain(|it| !matches!(it, Input::Lane(lane) if lane.is_closed()));
                if self.inbox.iter().filter(|it| matches!(it, Input::Lane(_))).count() >= MOST_LANES {
                    // Its dialler finds it closed without an answer, and dials again.
                    return Ok(());
                }
            }
            Input::Worked(_) | Input::Dialled(..) => {}
        }
        self.inbox.push_back(input);
        Ok(())
    }

    /// Takes everything that waits.
    pub(super) fn take(&mut self) -> VecDeque<Input> {
        std::mem::take(&mut self.inbox)
    }

    /// Puts back what was taken, before everything that has come meanwhile.
    pub(super) fn put_back(&mut self, mut taken: VecDeque<Input>) {
        taken.append(&mut self.inbox);
        self.inbox = taken;
    }

    /// Returns true if work waits that is done.
    pub(super) fn has_work(&self) -> bool {
        self.inbox.iter().any(|it| matches!(it, Input::Worked(_)))
    }

    /// Returns true if something waits.
    pub(super) fn has_any(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Returns the connection, whose route this is, as the threads for rails know it.
    pub(super) fn owner(&self, route: Route) -> RailOwner {
        RailOwner { route, is_open: Arc::clone(&self.is_open), node: self.node }
    }
}

impl Input {
    /// Gives it to the recovery of an end.
    ///
    /// # Errors
    /// If it is a lane that the end does not take: the address of its dialler, and the words for a line.
    pub(super) fn give(self, end: &mut (dyn End + 'static), now_ns: u64) -> Result<(), (SocketAddr, String)> {
        match self {
            Self::Due => end.recover(now_ns),
            Self::News(news) => end.handle_rail_news(news, now_ns),
            Self::Worked(work) => end.handle_worked(work, now_ns),
            Self::Dialled(dial, socket) => end.handle_lane_dialled(&dial, socket, now_ns),
            Self::Lane(lane) => {
                let address = lane.address;
                let taken = lane.give(end);
                end.recover(now_ns);
                return taken.map_err(|what| (address, what));
            }
            Self::PartFailed(part, message) => {
                end.handle_part_failed(&part, &message);
                end.recover(now_ns);
            }
            Self::Hurry => {
                end.hurry_recovery(now_ns);
                end.recover(now_ns);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric::{Piece, RailId};
    use railweave_transport::{Incarnation, RailMessage};

    use super::*;

    fn news(rail: usize) -> Input {
        let rail = RailId::new(rail).unwrap();
        Input::News(RailNews { rail, incarnation: Incarnation(0), message: RailMessage::Suspect })
    }

    fn part_failed(port: u8) -> Input {
        Input::PartFailed(Part { device: "mlx5_0".into(), piece: Piece::Port(port) }, "it is down".to_owned())
    }

    #[test]
    fn events_of_this_host_that_come_over_and_over_wait_once() {
        let mut recovery = Recovery::new(None);
        for _ in 0..1000 {
            for input in [part_failed(1), Input::Due, Input::Hurry, part_failed(2), Input::Due] {
                recovery.push(input).unwrap();
            }
        }
        let mut waiting = recovery.take();
        let waiting = waiting.make_contiguous();
        assert!(
            matches!(waiting, [Input::PartFailed(..), Input::PartFailed(..), Input::Hurry, Input::Due]),
            "{} wait",
            waiting.len()
        );
    }

    #[test]
    fn steps_of_the_peer_wait_in_order_up_to_a_limit_for_each_rail() {
        let mut recovery = Recovery::new(None);
        for _ in 0..MOST_NEWS {
            for rail in 0..8 {
                recovery.push(news(rail)).unwrap();
            }
        }
        recovery.push(Input::Due).unwrap();
        assert_eq!(recovery.push(news(3)), Err(Flood));
        assert_eq!(recovery.push(news(3)), Ok(()), "it is said once");
        let waiting = recovery.take();
        assert!(matches!(waiting.front(), Some(Input::Due)) && waiting.len() == 1, "nothing of the peer is kept");
    }
}
