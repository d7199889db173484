//! The rails of one connection.

use std::sync::Arc;

use railweave_fabric::{Fabric, LaneId, MAX_RAILS, Part, Piece, Rail, RailError, RailId, RailSet, Reports, WorkId};

use crate::cts::CtsRail;
use crate::posted_receives::PostedReceives;
use crate::rail_info::{RailInfo, RailName};
use crate::recovery::Remake;

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

/// This end of a rail that is up.
pub(crate) struct ConnectedRail<F: Fabric> {
    pub(crate) rail: F::Rail,
    pub(crate) lanes: u8,
    pub(crate) side: RailSide,
    /// The state of CTS writes over it, at the receiving end.
    pub(crate) cts: CtsRail,
    // Dropped after the rail, so that no lane outlives the memory that it writes to.
    registrations: Arc<Vec<F::Registration>>,
    remake: Arc<Remake<F>>,
}

impl<F: Fabric> ConnectedRail<F> {
    /// Returns this end of a rail, with the registrations that must last as long as the rail does, and the facts from
    /// which its lanes can be made again.
    pub(crate) fn new(
        rail: F::Rail,
        info: RailInfo,
        registrations: Vec<F::Registration>,
        remake: Arc<Remake<F>>,
    ) -> Self {
        let id = RailId::new(info.index).expect("a connection has at most 8 rails");
        Self {
            lanes: rail.lanes(),
            side: RailSide { id, alone: RailSet::only(id), info, receives: PostedReceives::default() },
            rail,
            cts: CtsRail::default(),
            registrations: Arc::new(registrations),
            remake,
        }
    }
}

/// A rail whose lanes are gone, until there are new ones.
pub(crate) struct DownRail<F: Fabric> {
    pub(crate) lanes: u8,
    /// The devices that it used, as parts of this host.
    devices: Vec<Part>,
    pub(crate) side: RailSide,
    cts: CtsRail,
    registrations: Arc<Vec<F::Registration>>,
    pub(crate) remake: Arc<Remake<F>>,
}

impl<F: Fabric> DownRail<F> {
    /// Returns the registrations of the connection's own memory on the rail.
    pub(crate) fn registrations(&self) -> Arc<Vec<F::Registration>> {
        Arc::clone(&self.registrations)
    }
}

/// The lanes of a rail that was given up, on their way to their fence.
pub(crate) struct TakenRail<F: Fabric> {
    pub(crate) rail: F::Rail,
    // Dropped after the rail, as above.
    pub(crate) registrations: Arc<Vec<F::Registration>>,
}

/// The state of a rail, which only [`Rails`] sees.
enum RailState<F: Fabric> {
    /// It has lanes. It carries data if it is usable; otherwise it was given up, or is not to carry any yet.
    Up(ConnectedRail<F>),
    /// It has none, because they failed.
    Down(DownRail<F>),
    /// Its set-up failed. It keeps its number, and is never used.
    NeverUp,
}

/// The rails of a connection.
pub(crate) struct Rails<F: Fabric> {
    by_id: [RailState<F>; MAX_RAILS],
    count: usize,
    /// The rails that carry data. It is stored because every message needs it.
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

    /// Returns the rails that carry data.
    #[inline(always)]
    pub(crate) fn usable(&self) -> RailSet {
        self.usable
    }

    /// Notes that a rail carries data from now on. It must have lanes.
    pub(crate) fn use_again(&mut self, rail: RailId) {
        debug_assert!(self.find(rail).is_some(), "rail {rail} has no lanes");
        self.usable.insert(rail);
    }

    /// Notes that a rail carries no data any more.
    pub(crate) fn give_up(&mut self, rail: RailId) {
        self.usable.remove(rail);
    }

    /// Takes the lanes of a rail that was given up; `None` if it has none.
    pub(crate) fn take(&mut self, rail: RailId) -> Option<TakenRail<F>> {
        debug_assert!(!self.usable.contains(rail), "rail {rail} is in use");
        match std::mem::replace(&mut self.by_id[rail], RailState::NeverUp) {
            RailState::Up(ConnectedRail { rail: taken, lanes, side, cts, registrations, remake }) => {
                let kept = Arc::clone(&registrations);
                let of_device = |part: Part| Part { piece: Piece::Device, ..part };
                let devices = taken.parts().into_iter().map(of_device).collect();
                self.by_id[rail] = RailState::Down(DownRail { lanes, devices, side, cts, registrations: kept, remake });
                Some(TakenRail { rail: taken, registrations })
            }
            other => {
                self.by_id[rail] = other;
                None
            }
        }
    }

    /// Gives a rail that is down new lanes, which carry no data yet. Returns it.
    pub(crate) fn put(&mut self, rail: RailId, lanes: F::Rail) -> Option<&mut ConnectedRail<F>> {
        let down = match std::mem::replace(&mut self.by_id[rail], RailState::NeverUp) {
            RailState::Down(down) => down,
            other => {
                self.by_id[rail] = other;
                return None;
            }
        };
        let DownRail { lanes: count, devices: _, mut side, cts, registrations, remake } = down;
        // Its ports may have other addresses now.
        if let Some((local, remote)) = lanes.ends() {
            side.info.name = RailName { local: local.to_string(), remote: remote.to_string() };
        }
        let connected = ConnectedRail { rail: lanes, lanes: count, side, cts, registrations, remake };
        self.by_id[rail] = RailState::Up(connected);
        self.find_mut(rail)
    }

    /// Returns a usable rail.
    #[inline]
    pub(crate) fn get(&self, rail: RailId) -> &ConnectedRail<F> {
        match &self.by_id[rail] {
            RailState::Up(connected) => connected,
            RailState::Down(_) | RailState::NeverUp => not_usable(rail),
        }
    }

    /// Returns a usable rail, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, rail: RailId) -> &mut ConnectedRail<F> {
        match &mut self.by_id[rail] {
            RailState::Up(connected) => connected,
            RailState::Down(_) | RailState::NeverUp => not_usable(rail),
        }
    }

    /// Returns true if the rail came up once.
    pub(crate) fn has(&self, rail: RailId) -> bool {
        !matches!(self.by_id[rail], RailState::NeverUp)
    }

    /// Returns a rail if it has lanes, whether it is usable or not.
    pub(crate) fn find(&self, rail: RailId) -> Option<&ConnectedRail<F>> {
        match &self.by_id[rail] {
            RailState::Up(connected) => Some(connected),
            RailState::Down(_) | RailState::NeverUp => None,
        }
    }

    /// Like [`Self::find`], to change it.
    #[inline(always)]
    pub(crate) fn find_mut(&mut self, rail: RailId) -> Option<&mut ConnectedRail<F>> {
        match &mut self.by_id[rail] {
            RailState::Up(connected) => Some(connected),
            RailState::Down(_) | RailState::NeverUp => None,
        }
    }

    /// Returns a rail whose lanes are gone.
    pub(crate) fn down_mut(&mut self, rail: RailId) -> Option<&mut DownRail<F>> {
        match &mut self.by_id[rail] {
            RailState::Down(down) => Some(down),
            RailState::Up(_) | RailState::NeverUp => None,
        }
    }

    /// Counts a part that a rail has lost, whether it is up again or not.
    pub(crate) fn count_repaired(&self, rail: RailId) {
        match &self.by_id[rail] {
            RailState::Up(connected) => connected.side.info.counters.count_repaired(),
            RailState::Down(down) => down.side.info.counters.count_repaired(),
            RailState::NeverUp => {}
        }
    }

    /// Returns the rails that have lanes, lowest number first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ConnectedRail<F>> {
        self.by_id.iter().filter_map(|state| match state {
            RailState::Up(connected) => Some(connected),
            RailState::Down(_) | RailState::NeverUp => None,
        })
    }

    /// Like [`Self::iter`], to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ConnectedRail<F>> {
        self.by_id.iter_mut().filter_map(|state| match state {
            RailState::Up(connected) => Some(connected),
            RailState::Down(_) | RailState::NeverUp => None,
        })
    }

    /// Returns the rails that can flush.
    pub(crate) fn flushing(&self) -> RailSet {
        self.iter().filter(|connected| connected.rail.flushes()).map(|connected| connected.side.id).collect()
    }

    /// Returns the parts of this host that a rail uses: only devices, while it is down.
    pub(crate) fn parts_of(&self, rail: RailId) -> Vec<Part> {
        match &self.by_id[rail] {
            RailState::Up(connected) => connected.rail.parts(),
            RailState::Down(down) => down.devices.clone(),
            RailState::NeverUp => Vec::new(),
        }
    }

    /// Returns the parts of this host that the rails use.
    pub(crate) fn parts(&self) -> Vec<Part> {
        RailId::all().flat_map(|rail| self.parts_of(rail)).collect()
    }

    /// Returns the rails that came up once, as the rest of the process sees them.
    pub(crate) fn infos(&self) -> Vec<RailInfo> {
        let infos = self.by_id.iter().filter_map(|state| match state {
            RailState::Up(connected) => Some(&connected.side.info),
            RailState::Down(down) => Some(&down.side.info),
            RailState::NeverUp => None,
        });
        infos.cloned().collect()
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
            RailState::Down(down) => format!("rail {rail} ({})", down.side.info.name),
            RailState::NeverUp => format!("rail {rail}"),
        }
    }
}

#[cold]
fn not_usable(rail: RailId) -> ! {
    panic!("rail {rail} has no lanes, and only usable rails are asked for")
}

/// Discards reports while the connection lingers.
struct Ignored;

impl Reports for Ignored {
    fn handle_sent(&mut self, _id: WorkId) {}
    fn handle_received(&mut self, _lane: LaneId, _immediate: u32, _bytes: u32) {}
    fn handle_failed(&mut self, _lane: LaneId, _id: Option<WorkId>, _error: Box<RailError>) {}
}
