//! The one table of settings: name, variables, type, range, default, help.
//!
//! [`Options::parse`] reads every setting through a lookup that the caller provides. It returns typed values that know
//! their origin, or all mistakes at once, each in one line. [`TABLE`] is the same list for programs that show it;
//! `cargo xtask docs` makes `docs/options.md` from it.
//!
//! Each setting is read from its variables in order of precedence: `RAILWEAVE_*`, then the `MPIB_*` and `NCCL_MESH_*`
//! names of earlier plugins, then NCCL's own `NCCL_*`, then the default. Only the first that is set counts. An empty
//! value counts as unset, except that an empty `RAILWEAVE_KEY_FILE` is an error. An invalid value is an error in the
//! first two kinds of variables, and a [`Warning`] in the third, because NCCL continues whatever its variables hold
//! (`nccl.rs`).
//!
//! This crate does not decide if a value suits this host (an interface may not exist, this build may lack a fabric).
//! Discovery does, and names the variable by the setting's [`Source`].
//!
//! To add a setting, add one entry to the list in `table.rs`; the field, the table, the documentation and the parser
//! follow from it.

#![forbid(unsafe_code)]

mod allowed;
mod entry;
mod environment;
mod error;
mod filter;
#[macro_use]
mod make;
mod names;
mod nccl;
mod number;
mod rdma;
mod setting;
mod table;
mod value;

pub use entry::{Entry, Row};
pub use error::{OptionError, OptionErrors, Warning};
pub use filter::{FilterItem, Match, RailFilter};
pub use names::name_settings;
pub use rdma::{AdaptiveRouting, GidIndices};
pub use setting::{Setting, Source};
pub use table::{Options, TABLE};
pub use value::{Congestion, Fabric, Lanes, PortRange, RunDir, Weights};
