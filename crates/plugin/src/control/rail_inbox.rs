//! Things that wait for the recovery of an end until the control thread may use the end.
#![allow(clippy::disallowed_types, reason = "a call hands a connection whose rail failed to the control thread here")]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use mio::Waker;
use railweave_fabric::Part;
use railweave_transport::{Dial, RailNews, RailWork, Token};

use super::command::lock;
use super::worker::RailOwner;
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
    /// A part of this host has failed, with this message.
    PartFailed(Part, String),
    /// The paths of rails that are down may be back.
    Hurry,
}

/// The recovery of an open connection.
pub(super) struct Recovery {
    pub(super) inbox: VecDeque<Input>,
    /// False once the connection is closed: then its work on the rail thread is not done any more.
    pub(super) is_open: Arc<AtomicBool>,
    /// The NUMA node of the connection's device.
    node: Option<u32>,
    /// The token with which the peer dials lanes again, once it may.
    pub(super) token: Option<Token>,
}

impl Recovery {
    pub(super) fn new(node: Option<u32>) -> Self {
        Self { inbox: VecDeque::new(), is_open: Arc::new(AtomicBool::new(true)), node, token: None }
    }

    /// Returns the connection, whose route this is, as the rail thread knows it.
    pub(super) fn owner(&self, route: Route) -> RailOwner {
        RailOwner { route, is_open: Arc::clone(&self.is_open), node: self.node }
    }
}

impl Input {
    /// Gives it to the recovery of an end.
    pub(super) fn give(self, end: &mut (dyn End + 'static), now_ns: u64) {
        match self {
            Self::Due => end.recover(now_ns),
            Self::News(news) => end.handle_rail_news(news, now_ns),
            Self::Worked(work) => end.handle_worked(work, now_ns),
            Self::Dialled(dial, socket) => end.handle_lane_dialled(&dial, socket, now_ns),
            Self::PartFailed(part, message) => {
                end.handle_part_failed(&part, &message);
                end.recover(now_ns);
            }
            Self::Hurry => {
                end.hurry_recovery(now_ns);
                end.recover(now_ns);
            }
        }
    }
}
