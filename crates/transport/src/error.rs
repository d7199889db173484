//! What goes wrong on a connection.

use std::fmt;
use std::ops::Deref;

use railweave_fabric::{Fault, RegisterError, SetupError};

/// An error of one connection. A pointer to its words, so that a call that succeeds carries no room for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<ErrorWords>);

/// What an [`Error`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorWords {
    /// Who is at fault; the plugin's edge maps it to NCCL's result code.
    pub fault: Fault,
    /// A sentence that names the values and what to try.
    pub message: String,
}

impl Error {
    /// An error that is this one's fault.
    #[cold]
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorWords { fault, message: message.into() }))
    }

    /// The peer, or the path to it, failed.
    pub fn peer(message: impl Into<String>) -> Self {
        Self::new(Fault::Peer, message)
    }

    /// The protocol was broken, or the API misused.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(Fault::Protocol, message)
    }

    /// The configuration is at fault.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::new(Fault::Configuration, message)
    }

    /// This host's kernel, verbs library or sockets failed.
    pub fn local(message: impl Into<String>) -> Self {
        Self::new(Fault::Local, message)
    }
}

impl Deref for Error {
    type Target = ErrorWords;

    fn deref(&self) -> &ErrorWords {
        &self.0
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
        Self::new(error.fault(), error.to_string())
    }
}

impl From<RegisterError> for Error {
    fn from(error: RegisterError) -> Self {
        Self::new(error.fault(), error.to_string())
    }
}
