//! The plot of one game: the sabotage, and the saboteur's memory.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_fabric::{LaneId, RailSet, Region, RemoteSlice, WorkId};
use railweave_transport::Seen;

use super::kind::Sabotage;

/// If this many buffers were promised after one that is being filled, no message is for the last of them yet.
const MANY: usize = 32;

/// One sabotage in one game, or none. Everything that the saboteur changes shares it.
#[derive(Debug, Default)]
pub(crate) struct Plot {
    sabotage: Option<Sabotage>,
    memory: Mutex<Memory>,
}

/// The saboteur's memory of the whole game.
#[derive(Debug, Default)]
struct Memory {
    /// The end of a connection whose rails are being opened.
    opening: Arc<Mutex<End>>,
    /// Memory that the protocol writes from, by its local keys.
    sources: BTreeMap<u32, Arc<Region>>,
    last_mask: RailSet,
    /// Buffers that were promised, the latest last: their addresses, and their keys.
    promised: Vec<(u64, Vec<u32>)>,
    /// The steps of recoveries that each end of a session has sent.
    said: BTreeSet<(usize, Vec<u8>)>,
    /// The entries of the last RAIL_STATE of each connection, by its number.
    seen: BTreeMap<u32, Vec<Seen>>,
    /// Ends of rails that are said to be gone.
    kept: Kept,
}

/// Things that only have to stay.
#[derive(Default)]
struct Kept(Vec<Box<dyn Any + Send>>);

impl fmt::Debug for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ends of rails", self.0.len())
    }
}

/// The saboteur's memory of one end of a connection. Its rails share it.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The number of the connection's rails, including those that do not come up.
    pub(super) rails: usize,
    pub(super) opened: usize,
    /// The address just behind a write before it was shortened, and the bytes that it lost. The next write would begin
    /// at this address, and is made to carry them too.
    pub(super) border: Option<(u64, u32)>,
    /// The number of CTS writes so far.
    pub(super) cts: u32,
    /// The id of the last message's work in each slot.
    pub(super) works: BTreeMap<usize, WorkId>,
    /// The rail that carries out each flush.
    pub(super) flushes: BTreeMap<u64, usize>,
    /// Immediates that were reported by no rail yet, or by another: the rail that must report them, the lane, the
    /// immediate and its bytes.
    pub(super) strays: Vec<(usize, LaneId, u32, u32)>,
    /// Immediates that were reported before they came: their rail, and the immediate.
    pub(super) foretold: Vec<(usize, u32)>,
    /// True once a rail has reported the failure of a lane.
    pub(super) has_failed: bool,
}

/// Locks the saboteur's memory.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plot {
    /// Creates the plot of a game with this sabotage; `None` for a game without one.
    pub(crate) fn new(sabotage: Option<Sabotage>) -> Arc<Self> {
        Arc::new(Self { sabotage, ..Self::default() })
    }

    pub(super) fn sabotage(&self) -> Option<Sabotage> {
        self.sabotage
    }

    /// Returns true if this is the game's sabotage.
    pub(crate) fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Notes that the rails that are opened next belong to one end of a connection that has this many.
    pub(crate) fn opening(&self, rails: usize) {
        lock(&self.memory).opening = Arc::new(Mutex::new(End { rails, ..End::default() }));
    }

    /// Notes that the rail that is opened next is this one of an end that has `rails` of them.
    pub(crate) fn opening_again(&self, rails: usize, rail: usize) {
        lock(&self.memory).opening = Arc::new(Mutex::new(End { rails, opened: rail, ..End::default() }));
    }

    /// Counts a rail that is being opened. Returns the end of a connection to which it belongs, and its number there.
    pub(super) fn open_rail(&self) -> (Arc<Mutex<End>>, usize) {
        let end = Arc::clone(&lock(&self.memory).opening);
        let mut opening = lock(&end);
        opening.opened += 1;
        let number = opening.opened - 1;
        drop(opening);
        (end, number)
    }

    /// Notes that the protocol writes from this memory, with this local key.
    pub(super) fn add_source(&self, key: u32, region: &Arc<Region>) {
        lock(&self.memory).sources.insert(key, Arc::clone(region));
    }

    /// Returns the memory that the protocol writes from with this local key; `None` for an application's key.
    pub(super) fn source(&self, key: u32) -> Option<Arc<Region>> {
        lock(&self.memory).sources.get(&key).cloned()
    }

    /// Notes that a CTS entry promises the buffer at this address, with these keys.
    pub(super) fn add_promised(&self, address: u64, keys: Vec<u32>) {
        lock(&self.memory).promised.push((address, keys));
    }

    /// Returns the buffer that was promised last, as this rail writes to it, if many were since this one.
    pub(super) fn promised_after(&self, buffer: RemoteSlice) -> Option<RemoteSlice> {
        let promised = &lock(&self.memory).promised;
        let since = promised.iter().rposition(|(address, _)| *address == buffer.address)?;
        let rail = promised[since].1.iter().position(|key| *key == buffer.key)?;
        let (address, keys) = promised[since..].get(MANY..)?.last()?;
        Some(RemoteSlice { address: *address, key: *keys.get(rail)? })
    }

    /// Returns true if this end of a session has not sent this step of a recovery before.
    pub(super) fn is_first_of(&self, end: usize, frame: Vec<u8>) -> bool {
        lock(&self.memory).said.insert((end, frame))
    }

    /// Keeps the entries of a connection's RAIL_STATE. Returns those of the previous one, or these if there was none.
    pub(super) fn exchange_seen(&self, connection: u32, seen: Vec<Seen>) -> Vec<Seen> {
        lock(&self.memory).seen.insert(connection, seen.clone()).unwrap_or(seen)
    }

    /// Keeps an end of a rail that is said to be gone.
    pub(super) fn keep(&self, rail: impl Any + Send) {
        lock(&self.memory).kept.0.push(Box::new(rail));
    }

    /// Keeps the mask of a write. Returns that of the previous write, or this one if there was none.
    pub(super) fn exchange_mask(&self, mask: RailSet) -> RailSet {
        let last = std::mem::replace(&mut lock(&self.memory).last_mask, mask);
        if last.is_empty() { mask } else { last }
    }
}
