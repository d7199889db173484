//! The reasons why nothing usable was found.

use std::io;

use railweave_options::{RailFilter, Setting};
use railweave_topology::NoUsablePort;

/// The reason why this machine has nothing to offer with these options.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not list the interfaces.
    #[error("the network interfaces cannot be listed (getifaddrs): {0}")]
    Interfaces(io::Error),
    /// There is no usable port, or the user's request cannot be met: a sentence that says what to change.
    #[error("{0}")]
    Configuration(String),
}

/// The reason why a fabric cannot be used.
pub(crate) enum Refusal {
    /// It has no usable port here; another fabric may. The reason is a sentence without its full stop.
    NoPort(String),
    /// The user's request cannot be met, on this fabric or another.
    Wrong(Error),
}

impl Refusal {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::NoPort(reason) => Error::Configuration(reason),
            Self::Wrong(error) => error,
        }
    }

    /// Returns the refusal if no port was selected. It names the list that selected none.
    pub(crate) fn of_selection(none: &NoUsablePort, filter: &Setting<Option<RailFilter>>) -> Self {
        Self::NoPort(match &filter.value {
            Some(list) => format!("{}={list}: {none}", filter.source),
            None => none.to_string(),
        })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}
