//! The one table of settings: name, variables, type, range, default, help.
//!
//! [`Options::parse`] reads every setting through a lookup that the caller gives, and answers typed values that know
//! where they came from, or every mistake at once, each in one line. [`TABLE`] is the same list for programs that
//! show it, and [`markdown`] turns it into `docs/options.md`.
//!
//! Each setting is read from its variables in order of precedence: `RAILWEAVE_*`, then the `MPIB_*` and `NCCL_MESH_*`
//! names of the plugins it replaces, then NCCL's own `NCCL_*`, then the default. Only the first that is set counts; an
//! empty value counts as unset. A value that cannot be used is an error in the first two kinds, and a [`Warning`] in
//! the third: NCCL goes on with whatever stands there (`nccl.rs`).
//!
//! What this crate is not: it does not decide whether a value suits this host (an interface that does not exist, a
//! fabric that this build lacks). Discovery does, with the setting's [`Source`] at hand to name the variable.
//!
//! To add a setting, add one entry to the list in `table.rs`; the field, the table, the documentation and the parser
//! follow from it.

#![forbid(unsafe_code)]

mod document;
mod environment;
mod error;
mod filter;
mod names;
mod nccl;
mod number;
mod rdma;
mod setting;
mod table;
mod value;

pub use document::markdown;
pub use error::{OptionError, OptionErrors, Warning};
pub use filter::{FilterItem, Match, RailFilter};
pub use names::name_settings;
pub use rdma::{AdaptiveRouting, GidIndices};
pub use setting::{Setting, Source};
pub use table::{Entry, Options, Row, TABLE};
pub use value::{Congestion, Fabric, Lanes, PortRange, Weights};
