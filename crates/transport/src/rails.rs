//! The rails of one connection.

use railweave_fabric::{Fabric, LaneId, MAX_RAILS, Part, Rail, RailError, RailId, RailSet, Reports, WorkId};

use crate::cts::CtsRail;
use crate::posted_receives::PostedReceives;
use crate::rail_info::RailInfo;

/// The most completions that one poll takes from a rail.
pub(crate) const POLL_BATCH: usize = 16;

/// The state of a rail that its own reports use or change.
pub(crate) struct RailSide {
    /// Its number in the connection.
    pub(crate) id: RailId,
    /// The set that holds only this rail. Each message needs it, and loading it is cheaper than a shift.
    pub(crate) alone: RailSet,
    pub(crate) info: RailInfo,
    /// Its generic receives, at the receiving end.
    pub(crate) receives: PostedReceives,
}

/// This end of a rail that came up.
pub(crate) struct ConnectedRail<F: Fabric> {
    pub(crate) rail: F::Rail,
    pub(crate) lanes: u8,
    pub(crate) side: RailSide,
    /// The state of CTS writes over it, at the receiving end.
    pub(crate) cts: CtsRail,
    // Dropped after the rail, so that no lane outlives the memory that it writes to.
    _registrations: Vec<F::Registration>,
}

impl<F: Fabric> ConnectedRail<F> {
    /// Returns this end of a rail, with the registrations that must last as long as the rail does.
    pub(crate) fn new(rail: F::Rail, info: RailInfo, registrations: Vec<F::Registration>) -> Self {
        let id = RailId::new(info.index).expect("a connection has at most 8 rails");
        Self {
            lanes: rail.lanes(),
            side: RailSide { id, alone: RailSet::only(id), info, receives: PostedReceives::default() },
            rail,
            cts: CtsRail::default(),
            _registrations: registrations,
        }
    }
}

/// The state of a rail, which only [`Rails`] sees.
enum RailState<F: Fabric> {
    /// It carries data.
    Up(ConnectedRail<F>),
    /// Its set-up failed. It keeps its number, and is never used.
    NeverUp,
}

/// The rails of a connection.
pub(crate) struct Rails<F: Fabric> {
    by_id: [RailState<F>; MAX_RAILS],
    count: usize,
    /// The rails that are up. The set follows from `by_id`, and is stored because every message needs it.
    usable: RailSet,
}

impl<F: Fabric> Rails<F> {
    /// Returns the rails of a connection. `rails` has them in the order of their numbers, `None` for one that did not
    /// come up.
    pub(crate) fn new(rails: Vec<Option<ConnectedRail<F>>>) -> Self {
        let count = rails.len();
        assert!((1..=MAX_RAILS).contains(&count), "a connection has 1 to {MAX_RAILS} rails, not {count}");
        let mut by_id = [const { RailState::NeverUp }; MAX_RAILS];
        for (place, connected) in by_id.iter_mut().zip(rails) {
            *place = connected.map_or(RailState::NeverUp, RailState::Up);
        }
        let mut rails = Self { by_id, count, usable: RailSet::EMPTY };
        rails.usable = rails.iter().map(|connected| connected.side.id).collect();
        rails
    }

    /// Returns the number of rails of the connection, whatever their state.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the rails that are up.
    #[inline(always)]
    pub(crate) fn usable(&self) -> RailSet {
        self.usable
    }

    /// Returns a usable rail.
    #[inline]
    pub(crate) fn get(&self, rail: RailId) -> &ConnectedRail<F> {
        match &self.by_id[rail] {
            RailState::Up(connected) => connected,
            RailState::NeverUp => not_usable(rail),
        }
    }

    /// Returns a usable rail, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, rail: RailId) -> &mut ConnectedRail<F> {
        match &mut self.by_id[rail] {
            RailState::Up(connected) => connected,
            RailState::NeverUp => not_usable(rail),
        }
    }

    /// Returns the rails that came up, lowest number first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ConnectedRail<F>> {
        self.by_id.iter().filter_map(|state| match state {
            RailState::Up(connected) => Some(connected),
            RailState::NeverUp => None,
        })
    }

    /// Like [`Self::iter`], to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ConnectedRail<F>> {
        self.by_id.iter_mut().filter_map(|state| match state {
            RailState::Up(connected) => Some(connected),
            RailState::NeverUp => None,
        })
    }

    /// Returns the rails that can flush.
    pub(crate) fn flushing(&self) -> RailSet {
        self.iter().filter(|connected| connected.rail.flushes()).map(|connected| connected.side.id).collect()
    }

    /// Returns the parts of this host that the rails use.
    pub(crate) fn parts(&self) -> Vec<Part> {
        self.iter().flat_map(|connected| connected.rail.parts()).collect()
    }

    /// Returns the rails that came up, as the rest of the process sees them.
    pub(crate) fn infos(&self) -> Vec<RailInfo> {
        self.iter().map(|connected| connected.side.info.clone()).collect()
    }

    /// Describes each lane of the rails that came up, for messages.
    pub(crate) fn describe_lanes(&self) -> Vec<String> {
        let of_rail = |connected: &ConnectedRail<F>| {
            let rail = connected.side.info.index;
            let lanes = connected.rail.describe_lanes().into_iter().enumerate();
            lanes.map(|(lane, text)| format!("rail {rail}, lane {lane}: {text}")).collect::<Vec<_>>()
        };
        self.iter().flat_map(of_rail).collect()
    }

    /// Tells the rails that the connection is closing: see [`Rail::start_linger`].
    pub(crate) fn start_linger(&mut self) {
        self.iter_mut().for_each(|connected| connected.rail.start_linger());
    }

    /// Makes progress with everything that is still outstanding. Returns true once all of it is sent and acknowledged.
    pub(crate) fn linger(&mut self) -> bool {
        self.iter_mut().fold(true, |drained, connected| {
            connected.rail.report(POLL_BATCH, &mut Ignored);
            drained & connected.rail.is_drained()
        })
    }

    /// Returns the rail's name, for messages.
    pub(crate) fn name(&self, rail: RailId) -> String {
        match &self.by_id[rail] {
            RailState::Up(connected) => format!("rail {rail} ({})", connected.rail.describe()),
            RailState::NeverUp => format!("rail {rail}"),
        }
    }
}

#[cold]
fn not_usable(rail: RailId) -> ! {
    panic!("rail {rail} is not up, and only usable rails are asked for")
}

/// Discards reports while the connection lingers.
struct Ignored;

impl Reports for Ignored {
    fn handle_sent(&mut self, _id: WorkId) {}
    fn handle_received(&mut self, _lane: LaneId, _immediate: u32, _bytes: u32) {}
    fn handle_failed(&mut self, _lane: LaneId, _id: Option<WorkId>, _error: Box<RailError>) {}
}
