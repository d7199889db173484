//! A fabric that sabotages another one: requests to it and reports from it are changed on their way.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use railweave_fabric::{
    Access, Connecting, Domain, Ended, Fabric, Joining, LaneEndpoint, LaneId, Memory, Part, PendingRail, PostError,
    Rail, RailSpec, RegisterError, Registration, RemoteSlice, Reports, Role, SetupError, WorkId, Write,
};
use railweave_transport::{MAX_BUFFERS, MAX_MESSAGE_BYTES, SLOTS};

use super::kind::Sabotage;
use super::plot::{End, Plot, lock};
use super::reports::{Spoiled, Unheard};
use super::writes::Place;

/// The fabric `F` with a game's [`Sabotage`]; without one it behaves as `F`.
pub(crate) struct Saboteur<F>(PhantomData<F>);

impl<F: Fabric> Fabric for Saboteur<F> {
    const NAME: &'static str = F::NAME;
    const ONE_SIDED: bool = F::ONE_SIDED;
    const JOINING: Joining<SaboteurPendingRail<F>> = match F::JOINING {
        Joining::ByExchange { .. } => {
            Joining::ByExchange { endpoints: SaboteurPendingRail::endpoints, connect: SaboteurPendingRail::connect }
        }
        Joining::BySockets { .. } => Joining::BySockets {
            awaits: SaboteurPendingRail::awaits,
            attach: SaboteurPendingRail::attach,
            address: SaboteurPendingRail::address,
        },
    };
    type Domain = SaboteurDomain<F>;
    type PendingRail = SaboteurPendingRail<F>;
    type Rail = SaboteurRail<F::Rail>;
    type Registration = SaboteurRegistration<F::Registration>;
    type Clock = F::Clock;
}

/// A domain of `F`.
pub(crate) struct SaboteurDomain<F: Fabric> {
    inner: Arc<F::Domain>,
    plot: Arc<Plot>,
}

impl<F: Fabric> SaboteurDomain<F> {
    /// Creates a domain that passes calls on to `inner`, sabotaged by this plot.
    pub(crate) fn new(inner: &Arc<F::Domain>, plot: &Arc<Plot>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), plot: Arc::clone(plot) })
    }
}

impl<F: Fabric> Domain for SaboteurDomain<F> {
    type Fabric = Saboteur<F>;

    fn register(&self, memory: Memory, access: Access) -> Result<SaboteurRegistration<F::Registration>, RegisterError> {
        let source = memory.region().filter(|_| access == Access::SOURCE).cloned();
        let kept = memory.clone();
        let inner = self.inner.register(memory, access)?;
        let (local_key, remote_key) = (inner.local_key(), inner.remote_key());
        if let Some(region) = source {
            self.plot.add_source(local_key, &region);
        }
        if self.plot.is(Sabotage::RegistrationLeaked) {
            std::mem::forget(self.inner.register(kept, access)?);
        }
        let is_kept = !self.plot.is(Sabotage::DeregInFlight);
        Ok(SaboteurRegistration { _inner: is_kept.then_some(inner), local_key, remote_key })
    }

    fn max_write(&self) -> u32 {
        self.inner.max_write()
    }

    fn byte_counts(&self) -> bool {
        self.inner.byte_counts()
    }

    fn clock(&self) -> F::Clock {
        self.inner.clock()
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<SaboteurPendingRail<F>, SetupError> {
        let (end, number) = self.plot.open_rail();
        let mut spec = spec.clone();
        match self.plot.sabotage() {
            Some(Sabotage::ShortQueues) if spec.role == Role::Sender => {
                let writes = MAX_MESSAGE_BYTES.div_ceil(u64::from(self.max_write())) * MAX_BUFFERS as u64 + 1;
                spec.send_depth = spec.send_depth.min((writes as u32).max(SLOTS as u32));
            }
            Some(Sabotage::LaneStarved) => spec.lane_receives /= 16,
            _ => {}
        }
        let inner = self.inner.open_rail(&spec)?;
        Ok(SaboteurPendingRail { inner, plot: Arc::clone(&self.plot), end, number, role: spec.role })
    }
}

/// Registered memory of `F`.
#[derive(Debug)]
pub(crate) struct SaboteurRegistration<R> {
    /// The registration; `None` if it was ended although its keys are still in use.
    _inner: Option<R>,
    local_key: u32,
    remote_key: u32,
}

impl<R: Registration> Registration for SaboteurRegistration<R> {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

/// One end of a rail that is being set up.
pub(crate) struct SaboteurPendingRail<F: Fabric> {
    inner: F::PendingRail,
    plot: Arc<Plot>,
    end: Arc<Mutex<End>>,
    number: usize,
    role: Role,
}

impl<F: Fabric> SaboteurPendingRail<F> {
    fn endpoints(&self) -> Vec<LaneEndpoint> {
        match F::JOINING {
            Joining::ByExchange { endpoints, .. } => endpoints(&self.inner),
            Joining::BySockets { .. } => Vec::new(),
        }
    }

    fn connect(&mut self, remote: &[LaneEndpoint]) -> Result<Connecting, SetupError> {
        match F::JOINING {
            Joining::ByExchange { connect, .. } => connect(&mut self.inner, remote),
            Joining::BySockets { .. } => Ok(Connecting::Done),
        }
    }

    fn awaits(&self, lane: LaneId) -> bool {
        matches!(F::JOINING, Joining::BySockets { awaits, .. } if awaits(&self.inner, lane))
    }

    fn attach(&mut self, lane: LaneId, socket: OwnedFd) -> Result<(), SetupError> {
        match F::JOINING {
            Joining::BySockets { attach, .. } => attach(&mut self.inner, lane, socket),
            Joining::ByExchange { .. } => Ok(()),
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match F::JOINING {
            Joining::BySockets { address, .. } => address(&self.inner),
            Joining::ByExchange { .. } => None,
        }
    }
}

impl<F: Fabric> PendingRail for SaboteurPendingRail<F> {
    type Fabric = Saboteur<F>;

    fn parts(&self) -> Vec<Part> {
        self.inner.parts()
    }

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn into_rail(self) -> Result<SaboteurRail<F::Rail>, SetupError> {
        let inner = self.inner.into_rail()?;
        let Self { plot, end, number, role, .. } = self;
        Ok(SaboteurRail {
            inner,
            plot,
            end,
            number,
            role,
            unflushed: Vec::new(),
            early: Vec::new(),
            claimed: Vec::new(),
        })
    }
}

/// One end of a rail.
pub(crate) struct SaboteurRail<R> {
    inner: R,
    plot: Arc<Plot>,
    end: Arc<Mutex<End>>,
    /// Its number in its connection.
    number: usize,
    role: Role,
    /// Flushes that were not carried out, but must be reported.
    unflushed: Vec<WorkId>,
    /// Work that must be reported before it is done.
    early: Vec<WorkId>,
    /// Work that was reported before it was done.
    claimed: Vec<WorkId>,
}

impl<R> fmt::Debug for SaboteurRail<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rail {} with {:?}", self.number, self.plot.sabotage())
    }
}

impl<R: Rail> SaboteurRail<R> {
    fn post_spoiled(
        &mut self,
        sabotage: Sabotage,
        lane: LaneId,
        chain: &[Write],
        post: fn(&mut R, LaneId, &[Write]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut chain = chain.to_vec();
        let lanes = self.inner.lanes();
        let lane = match sabotage {
            Sabotage::OtherLane if self.role == Role::Sender => LaneId((lane.0 + 1) % lanes),
            _ => lane,
        };
        if sabotage == Sabotage::SentEarly && self.role == Role::Sender {
            self.early.extend(chain.iter().filter(|write| write.signalled).map(|write| write.id));
        }
        let place = Place { plot: &self.plot, end: &self.end, rail: self.number, lane };
        let spoiled = match self.role {
            Role::Sender => place.spoil_data(sabotage, &mut chain),
            Role::Receiver => {
                place.spoil_cts(sabotage, &mut chain);
                None
            }
        };
        let posted = if chain.is_empty() { Ok(()) } else { post(&mut self.inner, lane, &chain) };
        if let Some(line) = spoiled {
            line.restore();
        }
        posted
    }
}

impl<R: Rail> Rail for SaboteurRail<R> {
    fn lanes(&self) -> u8 {
        self.inner.lanes()
    }

    fn send_room(&self, lane: LaneId) -> u32 {
        match self.inner.send_room(lane) {
            1.. if self.plot.is(Sabotage::RoomForOne) => u32::MAX,
            room => room,
        }
    }

    fn max_write(&self) -> u32 {
        self.inner.max_write()
    }

    fn is_broken(&self, lane: LaneId) -> bool {
        self.inner.is_broken(lane)
    }

    fn post(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        match self.plot.sabotage() {
            None => self.inner.post(lane, chain),
            Some(sabotage) => self.post_spoiled(sabotage, lane, chain, R::post),
        }
    }

    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        match self.plot.sabotage() {
            None => self.inner.post_fitting(lane, chain),
            Some(sabotage) => self.post_spoiled(sabotage, lane, chain, R::post_fitting),
        }
    }

    fn flushes(&self) -> bool {
        self.inner.flushes()
    }

    fn post_flush(&mut self, target: RemoteSlice, id: WorkId) -> Result<(), PostError> {
        if self.plot.is(Sabotage::FlushOneRail) {
            let carries = *lock(&self.end).flushes.entry(id.0).or_insert(self.number);
            if carries != self.number {
                self.unflushed.push(id);
                return Ok(());
            }
        }
        if self.plot.is(Sabotage::FlushRepeated) {
            (0..4096).for_each(|_| drop(self.inner.post_flush(target, id)));
        }
        self.inner.post_flush(target, id)
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        self.inner.post_receives(count)
    }

    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool {
        let Some(sabotage) = self.plot.sabotage() else {
            return self.inner.report(most, reports);
        };
        let (role, end, rail) = (self.role, &self.end, self.number);
        if sabotage == Sabotage::QuietAfterFailure && lock(end).has_failed {
            return false;
        }
        let strays: Vec<_> = lock(end).strays.extract_if(.., |stray| stray.0 == rail).collect();
        let has_more = !strays.is_empty() || !self.unflushed.is_empty() || !self.early.is_empty();
        for (_, lane, immediate, bytes) in strays {
            reports.handle_received(lane, immediate, bytes);
        }
        self.unflushed.drain(..).for_each(|id| reports.handle_sent(id));
        self.early.iter().for_each(|id| reports.handle_sent(*id));
        self.claimed.append(&mut self.early);
        let claimed = &mut self.claimed;
        self.inner.report(most, &mut Spoiled { reports, sabotage, role, end, rail, claimed }) || has_more
    }

    fn owes(&self) -> bool {
        self.inner.owes() && !self.plot.is(Sabotage::DebtForgotten)
    }

    fn acknowledge(&mut self) -> bool {
        self.plot.is(Sabotage::DebtForgotten) || self.inner.acknowledge()
    }

    fn silence(&mut self) -> Duration {
        self.inner.silence()
    }

    fn end(self, flushes: &[RemoteSlice], reports: &mut impl Reports) -> Ended {
        match (self.plot.sabotage(), self.role) {
            (Some(Sabotage::ReceiverNotFenced), Role::Receiver) | (Some(Sabotage::SenderNotFenced), Role::Sender) => {
                let Self { mut inner, plot, .. } = self;
                while inner.report(usize::MAX, reports) {}
                plot.keep(inner);
                Ended::whole()
            }
            (Some(Sabotage::FenceForgets), Role::Receiver) => self.inner.end(flushes, &mut Unheard),
            _ => self.inner.end(flushes, reports),
        }
    }

    fn parts(&self) -> Vec<Part> {
        self.inner.parts()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn start_linger(&mut self) {
        if self.plot.is(Sabotage::PostsAtEnd) {
            drop(self.inner.post(LaneId::FIRST, &[Write::default()]));
        }
        self.inner.start_linger();
    }

    fn is_drained(&self) -> bool {
        self.inner.is_drained()
    }
}
