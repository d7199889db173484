//! Receives, and the contents of their buffers.

/// A part of a message that has landed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The rail that carried it.
    pub(super) rail: u8,
    /// Its start and its end, counted from the start of the buffer.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A buffer of a receive.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) capacity: u64,
    pub(crate) tag: u32,
    /// The send that it matches: its number, and its size truncated to the buffer's.
    pub(crate) message: Option<(u64, u64)>,
    pub(crate) landed: u64,
    /// The pieces that have landed.
    pub(super) pieces: Vec<Piece>,
    /// Writes that are not visible to a GPU yet: the port and the rail that they came through, and their number in
    /// order of landing.
    pub(super) staged: Vec<(usize, u8, u64)>,
}

impl Buffer {
    pub(crate) fn new(address: u64, capacity: u64, tag: u32) -> Self {
        Self { address, capacity, tag, message: None, landed: 0, pieces: Vec::new(), staged: Vec::new() }
    }

    /// Adds a piece that has landed. Bytes that have landed before do not count again.
    pub(super) fn add(&mut self, piece: Piece) {
        self.pieces.push(piece);
        let mut pieces: Vec<_> = self.pieces.iter().map(|piece| (piece.start, piece.end)).collect();
        pieces.sort_unstable();
        let mut until = 0;
        self.landed = 0;
        for (start, end) in pieces {
            self.landed += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
    }

    /// Returns true if all of its message has landed.
    pub(crate) fn is_whole(&self) -> bool {
        self.message.is_some_and(|(_, size)| size == self.landed)
    }
}

/// A receive.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) buffers: Vec<Buffer>,
    /// True if its completion is optional.
    pub(crate) hinted: bool,
    pub(crate) done: bool,
    /// The rails that have carried bytes of it, as a mask.
    pub(super) carriers: u8,
    /// True if a part of it was lost, and sent again.
    pub(super) is_repaired: bool,
    /// The number of the split in force when its last message was taken, which let all of them go out; `None` before.
    pub(super) split: Option<usize>,
}

impl Group {
    pub(crate) fn new(buffers: Vec<Buffer>, hinted: bool) -> Self {
        Self { buffers, hinted, done: false, carriers: 0, is_repaired: false, split: None }
    }

    /// Notes that parts of it come again, so that what these rails have brought of them does not count.
    pub(super) fn lose(&mut self, carriers: u8) {
        self.is_repaired = true;
        for buffer in &mut self.buffers {
            buffer.staged.retain(|(_, rail, _)| carriers & 1 << rail == 0);
        }
    }

    /// Returns true if all of its messages have landed.
    pub(crate) fn is_whole(&self) -> bool {
        self.buffers.iter().all(Buffer::is_whole)
    }
}
