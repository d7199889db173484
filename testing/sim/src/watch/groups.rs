//! Receives, and what their buffers hold.

/// A buffer of a receive.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) capacity: u64,
    pub(crate) tag: u32,
    /// The send that it meets: number and size, which is cut to the buffer's.
    pub(crate) message: Option<(u64, u64)>,
    pub(crate) landed: u64,
    /// What has landed: begin and end, from the buffer's begin.
    pub(super) pieces: Vec<(u64, u64)>,
    /// What was written but is not visible to a GPU: through which port, and when.
    pub(super) staged: Vec<(usize, u64)>,
}

impl Buffer {
    pub(crate) fn new(address: u64, capacity: u64, tag: u32) -> Self {
        Self { address, capacity, tag, message: None, landed: 0, pieces: Vec::new(), staged: Vec::new() }
    }

    /// Everything of its message is there.
    pub(crate) fn is_whole(&self) -> bool {
        self.message.is_some_and(|(_, size)| size == self.landed)
    }
}

/// A receive.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) buffers: Vec<Buffer>,
    /// Its completion is optional.
    pub(crate) hinted: bool,
    pub(crate) done: bool,
}
