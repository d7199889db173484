//! The rails of one connection.

use railweave_fabric::{Fabric, LaneId, MAX_RAILS, Part, Rail, RailError, RailId, RailSet, Reports, WorkId};

use crate::cts::CtsRail;
use crate::pool::Pool;
use crate::{Error, RailInfo};

/// How many completions one poll takes from a rail.
pub(crate) const POLL_BATCH: usize = 16;

/// What a rail's reports change, besides what they change of the connection.
pub(crate) struct Side {
    /// Its number in the connection.
    pub(crate) id: RailId,
    /// The set of it alone, which each message needs: a load is cheaper than the shift.
    pub(crate) alone: RailSet,
    pub(crate) info: RailInfo,
    /// Its generic receives, at the receiving end.
    pub(crate) pool: Pool,
}

/// One rail inside a connection.
pub(crate) struct RailState<F: Fabric> {
    pub(crate) rail: F::Rail,
    pub(crate) lanes: u8,
    pub(crate) side: Side,
    /// What CTS over it need, at the receiving end.
    pub(crate) cts: CtsRail,
    // Dropped after the rail, so that no lane outlives the memory that it writes to.
    _registrations: Vec<F::Registration>,
}

impl<F: Fabric> RailState<F> {
    /// A rail, and what must stay registered as long as it is there.
    pub(crate) fn new(rail: F::Rail, info: RailInfo, registrations: Vec<F::Registration>) -> Self {
        let id = RailId::new(info.index).expect("a connection has at most 8 rails");
        Self {
            lanes: rail.lanes(),
            side: Side { id, alone: RailSet::only(id), info, pool: Pool::default() },
            rail,
            cts: CtsRail::default(),
            _registrations: registrations,
        }
    }
}

/// The rails of a connection. A rail that never came up keeps its number and is not usable.
pub(crate) struct Rails<F: Fabric> {
    pub(crate) rails: [Option<RailState<F>>; MAX_RAILS],
    pub(crate) count: usize,
    pub(crate) usable: RailSet,
}

impl<F: Fabric> Rails<F> {
    pub(crate) fn new(rails: Vec<Option<RailState<F>>>) -> Self {
        let count = rails.len();
        assert!((1..=MAX_RAILS).contains(&count), "a connection has 1 to {MAX_RAILS} rails, not {count}");
        let mut all = [const { None }; MAX_RAILS];
        all.iter_mut().zip(rails).for_each(|(place, rail)| *place = rail);
        let usable = all.iter().flatten().map(|rail: &RailState<F>| rail.side.id).collect();
        Self { rails: all, count, usable }
    }

    #[inline]
    pub(crate) fn get(&self, rail: RailId) -> &RailState<F> {
        self.rails[rail].as_ref().expect("only usable rails are asked for")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, rail: RailId) -> &mut RailState<F> {
        self.rails[rail].as_mut().expect("only usable rails are asked for")
    }

    /// The rails that came up, lowest number first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RailState<F>> {
        self.rails.iter().flatten()
    }

    /// The same, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RailState<F>> {
        self.rails.iter_mut().flatten()
    }

    /// The rails that have a way to flush.
    pub(crate) fn flushing(&self) -> RailSet {
        self.iter().filter(|state| state.rail.flushes()).map(|state| state.side.id).collect()
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        self.iter().flat_map(|state| state.rail.parts()).collect()
    }

    pub(crate) fn infos(&self) -> Vec<RailInfo> {
        self.iter().map(|state| state.side.info.clone()).collect()
    }

    /// The connection is closing: see [`Rail::start_linger`].
    pub(crate) fn start_linger(&mut self) {
        self.iter_mut().for_each(|state| state.rail.start_linger());
    }

    /// Moves what is left to move; whether everything is out and acknowledged.
    pub(crate) fn linger(&mut self) -> bool {
        self.iter_mut().fold(true, |drained, state| {
            state.rail.report(POLL_BATCH, &mut Ignored);
            drained & state.rail.is_drained()
        })
    }

    pub(crate) fn name(&self, rail: RailId) -> String {
        match &self.rails[rail] {
            Some(state) => format!("rail {rail} ({})", state.rail.describe()),
            None => format!("rail {rail}"),
        }
    }

    /// A lane's failure as the connection's error.
    pub(crate) fn failure(&self, rail: RailId, lane: LaneId, error: &RailError, peer: &str) -> Error {
        let message = format!("{} to {peer}, lane {lane}: {error}", self.name(rail));
        Error::new(error.fault(), message)
    }
}

/// Takes reports that nobody wants any more.
pub(crate) struct Ignored;

impl Reports for Ignored {
    fn handle_sent(&mut self, _id: WorkId) {}
    fn handle_received(&mut self, _lane: LaneId, _immediate: u32, _bytes: u32) {}
    fn handle_failed(&mut self, _lane: LaneId, _id: Option<WorkId>, _error: Box<RailError>) {}
}
