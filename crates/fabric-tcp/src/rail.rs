//! A rail over TCP: its lanes, and the receives that they share.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Ended, LaneId, Part, PostError, Rail, RailSpec, RemoteSlice, Reports, WorkId, Write};

use crate::frame::MAX_WRITE;
use crate::incoming::Receives;
use crate::keys::KeyTable;
use crate::lane::Lane;
use crate::socket::Socket;

/// One rail of one connection.
pub struct TcpRail {
    lanes: Box<[Lane]>,
    receives: Receives,
    keys: Arc<KeyTable>,
    parts: Vec<Part>,
    /// The lane that the next poll starts with. It rotates, so that a busy lane does not use up `most` every time.
    first: usize,
    /// Both ends of each lane.
    descriptions: Vec<String>,
    ends: Option<(IpAddr, IpAddr)>,
    /// The local port of the first lane.
    number: u16,
}

impl TcpRail {
    /// Makes a rail of these sockets, one per lane; at least one.
    pub(crate) fn new(
        sockets: Vec<Socket>,
        spec: &RailSpec,
        peer_timeout: Option<Duration>,
        keys: Arc<KeyTable>,
        parts: Vec<Part>,
    ) -> Self {
        let ends = |socket: &Socket| (socket.local().ip().to_canonical(), socket.remote().ip().to_canonical());
        let ends = sockets.first().map(ends);
        let number = sockets.first().map_or(0, |socket| socket.local().port());
        let descriptions = sockets.iter().map(|socket| format!("{} - {}", socket.local(), socket.remote())).collect();
        Self {
            lanes: sockets.into_iter().map(|socket| Lane::new(socket, spec, peer_timeout)).collect(),
            receives: Receives::new(spec.receive_depth),
            keys,
            parts,
            first: 0,
            descriptions,
            ends,
            number,
        }
    }
}

impl Rail for TcpRail {
    fn lanes(&self) -> u8 {
        self.lanes.len() as u8
    }

    fn send_room(&self, lane: LaneId) -> u32 {
        self.lanes.get(lane.index()).map_or(0, Lane::room)
    }

    fn max_write(&self) -> u32 {
        MAX_WRITE
    }

    fn is_broken(&self, lane: LaneId) -> bool {
        self.lanes.get(lane.index()).is_some_and(Lane::is_failed)
    }

    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        self.lanes[lane.index()].post(chain, &self.keys)
    }

    fn post_flush(&mut self, _target: RemoteSlice, _id: WorkId) -> Result<(), PostError> {
        Err(PostError::Invalid("a TCP rail has no flush: it writes only host memory, which needs none".to_owned()))
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        if self.lanes.iter().all(Lane::is_failed) {
            return Err(PostError::Broken);
        }
        Ok(self.receives.post(count))
    }

    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool {
        let lanes = self.lanes.len();
        let first = self.first;
        self.first = if first + 1 < lanes { first + 1 } else { 0 };
        let mut count = 0;
        for at in (first..lanes).chain(0..first) {
            let lane = &mut self.lanes[at];
            lane.progress(&self.keys, &mut self.receives);
            count += lane.collect(LaneId::at(at), most - count, &mut self.receives, reports);
        }
        count > 0
    }

    fn owes(&self) -> bool {
        self.lanes.iter().any(Lane::owes)
    }

    fn acknowledge(&mut self) -> bool {
        self.lanes.iter_mut().fold(true, |all, lane| lane.acknowledge(&self.keys) & all)
    }

    fn silence(&mut self) -> Duration {
        self.lanes.iter_mut().map(Lane::silence).max().unwrap_or_default()
    }

    fn parts(&self) -> Vec<Part> {
        self.parts.clone()
    }

    fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        self.ends
    }

    fn number(&self) -> u32 {
        self.number.into()
    }

    fn describe(&self) -> String {
        self.descriptions.first().cloned().unwrap_or_default()
    }

    fn describe_lanes(&self) -> Vec<String> {
        self.descriptions.iter().map(|ends| format!("socket {ends}")).collect()
    }

    fn start_linger(&mut self) {
        self.lanes.iter_mut().for_each(Lane::linger);
    }

    fn is_drained(&self) -> bool {
        self.lanes.iter().all(Lane::is_drained)
    }

    /// This end places the peer's bytes itself, so nothing lands that it has not read. There is nothing to flush.
    fn end(self, _flushes: &[RemoteSlice], reports: &mut impl Reports) -> Ended {
        let Self { lanes, mut receives, keys, .. } = self;
        for (index, lane) in lanes.into_iter().enumerate() {
            lane.end(LaneId::at(index), &keys, &mut receives, reports);
        }
        Ended::whole()
    }
}
