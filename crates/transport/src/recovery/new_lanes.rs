//! New lanes of a rail: the work that opens them, connects them, and has them carry a first write.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Connecting, Domain, Fabric, Joining, LaneEndpoint, LocalSlice, NetworkAddress, NoAddress, PendingRail, PostError,
    Rail, RailId, RailSpec, RemoteSlice,
};

use super::RailWork;
use crate::handshake::{Probe, repeat_ns};
use crate::violation::RailFault;

/// The pause between two looks at the first writes, and before more receives are posted if there was no room.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// The facts from which lanes of a rail are made again.
pub(crate) struct Remake<F: Fabric> {
    /// The domain of this end's port.
    pub(crate) domain: Arc<F::Domain>,
    /// The requirements on them.
    pub(crate) spec: RailSpec,
    /// The addresses of both ends when the connection was set up.
    pub(crate) local: IpAddr,
    pub(crate) remote: NetworkAddress,
    /// The length of a whole packet between both ports in bytes, or that of a write if it is shorter.
    pub(crate) packet_bytes: u32,
}

/// Returns the address that the peer's port has now, which the end points of its sockets say; `None` if it is still
/// that of the set-up.
///
/// # Errors
/// If they say something else, or not all the same.
pub(crate) fn port_of(endpoints: &[LaneEndpoint]) -> Result<Option<IpAddr>, RailFault> {
    match endpoints {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => {
            first.port().map_err(|NoAddress| RailFault::NoAddress)
        }
        _ => Err(RailFault::NoAddress),
    }
}

/// The first packet of a rail's new lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstPacket {
    /// The places from and to which it is written.
    pub(crate) local: LocalSlice,
    pub(crate) remote: RemoteSlice,
    /// The time in which it must come through once the lanes are connected.
    pub(crate) timeout_ns: u64,
}

/// Lanes as far as they were made.
pub(crate) enum Made<F: Fabric> {
    /// They are open.
    Open(F::PendingRail),
    /// They are connected, and ready for use. The end points of an end that opened and connected them in one go.
    Ready(F::Rail, Vec<LaneEndpoint>),
    /// They could not be made.
    Failed(Unmade<F>),
}

/// Lanes that could not be made.
pub(crate) struct Unmade<F: Fabric> {
    pub(crate) reason: String,
    /// The lanes if they are connected, which have to be fenced.
    pub(crate) rail: Option<F::Rail>,
}

impl<F: Fabric> Unmade<F> {
    /// Returns the failure of lanes that are not connected.
    fn new(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), rail: None }
    }

    /// Returns the failure of connected lanes.
    fn connected(reason: impl ToString, rail: F::Rail) -> Self {
        Self { rail: Some(rail), ..Self::new(reason) }
    }
}

/// The making of lanes.
pub(crate) struct NewLanes<F: Fabric> {
    rail: RailId,
    remake: Arc<Remake<F>>,
    /// The peer's end points, once they are known.
    peer: Option<Vec<LaneEndpoint>>,
    /// The packet by which this end proves that the lanes carry data, if it does.
    proof: Option<FirstPacket>,
    /// The receives that are still to be posted.
    receives: u32,
    state: State<F>,
    endpoints: Vec<LaneEndpoint>,
    /// The time in which they must be connected.
    timeout_ns: u64,
    /// The end of that time, once it has begun.
    until_ns: Option<u64>,
}

/// An attempt to make the lanes of a rail.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) rail: RailId,
    /// The time in which they must be connected.
    pub(crate) timeout_ns: u64,
}

enum State<F: Fabric> {
    Begun,
    Pending(F::PendingRail),
    Filling(F::Rail),
    /// They are connected, and must carry a first packet in this time, which ends at `until_ns`.
    Proving {
        probe: Probe<F::Rail>,
        timeout_ns: u64,
        until_ns: u64,
        repeat_at_ns: u64,
    },
    Done(Made<F>),
}

impl<F: Fabric> NewLanes<F> {
    /// Opens lanes.
    pub(crate) fn open(attempt: Attempt, remake: &Arc<Remake<F>>) -> Self {
        Self::new(attempt, remake, State::Begun, None)
    }

    /// Opens lanes and connects them to the peer's end points; this many receives are posted on them.
    pub(crate) fn answer(attempt: Attempt, remake: &Arc<Remake<F>>, peer: Vec<LaneEndpoint>, receives: u32) -> Self {
        Self { receives, ..Self::new(attempt, remake, State::Begun, Some(peer)) }
    }

    /// Connects lanes that are open to the peer's end points, and proves that they carry whole packets.
    pub(crate) fn connect(
        attempt: Attempt,
        remake: &Arc<Remake<F>>,
        pending: F::PendingRail,
        peer: Vec<LaneEndpoint>,
        packet: FirstPacket,
    ) -> Self {
        Self {
            proof: F::ONE_SIDED.then_some(packet),
            ..Self::new(attempt, remake, State::Pending(pending), Some(peer))
        }
    }

    fn new(attempt: Attempt, remake: &Arc<Remake<F>>, state: State<F>, peer: Option<Vec<LaneEndpoint>>) -> Self {
        Self {
            rail: attempt.rail,
            timeout_ns: attempt.timeout_ns,
            remake: Arc::clone(remake),
            peer,
            proof: None,
            receives: 0,
            state,
            endpoints: Vec::new(),
            until_ns: None,
        }
    }

    /// Returns the rail, and the lanes as far as they were made, once the work is done.
    pub(crate) fn into_made(self) -> (RailId, Made<F>) {
        let made = match self.state {
            State::Done(made) => made,
            _ => Made::Failed(Unmade::new("the work on it was not finished")),
        };
        (self.rail, made)
    }

    /// Takes one step. Returns the pause before the next, `None` once the work is done.
    ///
    /// # Errors
    /// If the lanes cannot be made: the reason, and what is left of them.
    fn step(&mut self, now_ns: u64) -> Result<Option<Duration>, Unmade<F>> {
        let until_ns = *self.until_ns.get_or_insert(now_ns.saturating_add(self.timeout_ns));
        match std::mem::replace(&mut self.state, State::Begun) {
            State::Begun => {
                let pending = self.remake.domain.open_rail(&self.remake.spec).map_err(Unmade::new)?;
                if let Joining::ByExchange { endpoints, .. } = F::JOINING {
                    self.endpoints = endpoints(&pending);
                }
                let is_complete = self.peer.is_none() || matches!(F::JOINING, Joining::BySockets { .. });
                self.state = if is_complete { State::Done(Made::Open(pending)) } else { State::Pending(pending) };
                Ok((!is_complete).then_some(Duration::ZERO))
            }
            State::Pending(mut pending) => {
                if let (Joining::ByExchange { connect, .. }, Some(peer)) = (F::JOINING, &self.peer) {
                    match connect(&mut pending, peer).map_err(Unmade::new)? {
                        Connecting::Done => {}
                        Connecting::Later { reason, .. } if now_ns >= until_ns => return Err(Unmade::new(reason)),
                        Connecting::Later { pause, .. } => {
                            self.state = State::Pending(pending);
                            return Ok(Some(pause));
                        }
                    }
                }
                self.state = State::Filling(pending.into_rail().map_err(Unmade::new)?);
                Ok(Some(Duration::ZERO))
            }
            State::Filling(mut rail) => {
                if let Err(error) = self.post_receives(&mut rail) {
                    return Err(Unmade::connected(error, rail));
                }
                if self.receives > 0 {
                    if now_ns >= until_ns {
                        return Err(Unmade::connected("its lanes take too few receives", rail));
                    }
                    self.state = State::Filling(rail);
                    return Ok(Some(LOOK_PAUSE));
                }
                let Some(FirstPacket { local, remote, timeout_ns }) = self.proof else {
                    self.state = State::Done(Made::Ready(rail, std::mem::take(&mut self.endpoints)));
                    return Ok(None);
                };
                let mut probe = Probe::new(rail, local, remote);
                if let Err(error) = probe.send() {
                    return Err(Unmade::connected(error, probe.rail));
                }
                let [until_ns, repeat_at_ns] =
                    [timeout_ns, repeat_ns(timeout_ns)].map(|pause_ns| now_ns.saturating_add(pause_ns));
                self.state = State::Proving { probe, timeout_ns, until_ns, repeat_at_ns };
                Ok(Some(Duration::ZERO))
            }
            State::Proving { mut probe, timeout_ns, until_ns, mut repeat_at_ns } => {
                match probe.has_carried() {
                    Ok(true) => {
                        self.state = State::Done(Made::Ready(probe.rail, Vec::new()));
                        return Ok(None);
                    }
                    Ok(false) => {}
                    Err(error) => return Err(Unmade::connected(error, probe.rail)),
                }
                if now_ns >= until_ns {
                    let bytes = self.remake.packet_bytes;
                    let seconds = Duration::from_nanos(timeout_ns).as_secs_f64();
                    let reason =
                        format!("its lanes are connected, but no packet of {bytes} bytes came through in {seconds} s");
                    return Err(Unmade::connected(reason, probe.rail));
                }
                if now_ns >= repeat_at_ns {
                    if let Err(error) = probe.send() {
                        return Err(Unmade::connected(error, probe.rail));
                    }
                    repeat_at_ns = now_ns.saturating_add(repeat_ns(timeout_ns));
                }
                self.state = State::Proving { probe, timeout_ns, until_ns, repeat_at_ns };
                Ok(Some(LOOK_PAUSE))
            }
            done @ State::Done(_) => {
                self.state = done;
                Ok(None)
            }
        }
    }

    /// Posts the receives, as far as there is room. The peer may use each of them as soon as the lanes are up.
    fn post_receives(&mut self, rail: &mut F::Rail) -> Result<(), PostError> {
        while self.receives > 0 {
            match rail.post_receives(self.receives) {
                Ok(0) | Err(PostError::Full) => break,
                Ok(posted) => self.receives = self.receives.saturating_sub(posted),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<F: Fabric> RailWork for NewLanes<F> {
    fn run(&mut self, now_ns: u64) -> Option<Duration> {
        self.step(now_ns).unwrap_or_else(|unmade| {
            self.state = State::Done(Made::Failed(unmade));
            None
        })
    }

    fn may_block(&self) -> bool {
        F::JOINING.may_block()
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn seeks_peer(&self) -> bool {
        self.may_block() && matches!(self.state, State::Pending(_))
    }

    fn rail(&self) -> RailId {
        self.rail
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_points_of_sockets_name_one_address_or_none() {
        let at = |text: &str| LaneEndpoint::of_port(Some(text.parse().unwrap()));
        let none = LaneEndpoint::default();
        assert_eq!(port_of(&[none, none]), Ok(None));
        assert_eq!(port_of(&[at("10.0.0.1"); 3]), Ok(Some("10.0.0.1".parse().unwrap())));
        for wrong in [vec![], vec![at("10.0.0.1"), none], vec![at("10.0.0.1"), at("10.0.0.2")], vec![at("224.0.0.1")]] {
            assert_eq!(port_of(&wrong), Err(RailFault::NoAddress), "{wrong:?}");
        }
    }
}
