//! Sentences about a machine that are worth logging but are not errors.

/// A sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Good to know when looking for a problem.
    Information(String),
    /// Something is wrong, and the sentence says what to do.
    Warning(String),
}

/// Takes notes, in their order.
pub type Say<'a> = &'a dyn Fn(Note);
