//! What goes wrong on a connection.

use std::fmt;

use railweave_fabric::{Fault, RegisterError, SetupError};

/// An error of one connection: who is at fault, and a sentence that names the values and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Who is at fault; the plugin's edge maps it to NCCL's result code.
    pub fault: Fault,
    /// The sentence.
    pub message: String,
}

impl Error {
    /// The peer, or the path to it, failed.
    pub fn peer(message: impl Into<String>) -> Self {
        Self { fault: Fault::Peer, message: message.into() }
    }

    /// The protocol was broken, or the API misused.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self { fault: Fault::Protocol, message: message.into() }
    }

    /// The configuration is at fault.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self { fault: Fault::Configuration, message: message.into() }
    }

    /// This host's kernel, verbs library or sockets failed.
    pub fn local(message: impl Into<String>) -> Self {
        Self { fault: Fault::Local, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<SetupError> for Error {
    fn from(error: SetupError) -> Self {
        Self { fault: error.fault, message: error.message }
    }
}

impl From<RegisterError> for Error {
    fn from(error: RegisterError) -> Self {
        Self { fault: error.fault(), message: error.to_string() }
    }
}
