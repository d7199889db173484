//! A network as Railweave sees it: one trait for each kind of object in a network. Nothing here knows the protocol.
//!
//! A [`Fabric`] names the types. A [`Domain`] registers memory for one port; a [`PendingRail`] is a rail whose lanes
//! are being connected; the data path calls the [`Rail`]. `transport` is generic over them, so the same protocol runs
//! over TCP, over verbs and in a simulated world.
//!
//! This crate opens no file or device, and asks the system only for memory. It holds types, and the conformance suite
//! that every fabric runs (feature `conformance`).

#![deny(unsafe_code)]

mod choices;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod ids;
mod joining;
mod ladder;
mod lane;
mod memory;
mod network;
mod pages;
mod port;
mod rail;
mod region;
mod setting;

pub use choices::{AddressRange, DataDirect, Family, Mode, PolicyName, RelaxedOrdering};
pub use clock::{Clock, ProcessorClock};
pub use error::{
    ClosedAt, Fault, PostError, RailError, RegisterError, SetupError, SetupStep, SocketTrouble, SystemError,
    TargetState, Transition, Tries, WorkFailure, WorkStatus,
};
pub use ids::{RailId, RailSet, RailSetIter};
pub use joining::{Connecting, Joining, LaneEndpoint, NoAddress};
pub use ladder::{Route, Step};
pub use lane::{LaneId, MAX_LANES};
pub use memory::{Access, Memory, MemoryKind};
pub use network::NetworkAddress;
pub use pages::page_size;
pub use port::{
    AddressPurpose, Discovery, Effect, EventSource, LeftOut, LinkLayer, Part, Piece, PointerSupport, PortEvent,
    PortFacts,
};
pub use rail::{
    Domain, Ended, Fabric, LocalSlice, PendingRail, Rail, RailSpec, Registration, RemoteSlice, Reports, Role, WorkId,
    Write,
};
pub use region::Region;
pub use setting::{SettingId, SettingNames};

/// The maximum number of rails of one connection: a CTS entry has room for this many remote keys (docs/wire.md).
pub const MAX_RAILS: usize = 8;
