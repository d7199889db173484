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

/// A write into GPU memory that is not visible there yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    /// The port that it came through.
    pub(super) port: usize,
    /// Its number in order of landing.
    pub(super) landed: u64,
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
    /// The writes that are not visible to the GPU yet. No two of them overlap.
    pub(super) staged: Vec<Staged>,
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

    /// Adds a write into GPU memory. Writes that it overwrites need not become visible any more: a part that was lost
    /// comes again, over another port.
    pub(super) fn stage(&mut self, new: Staged) {
        for old in std::mem::take(&mut self.staged) {
            let before = Staged { end: old.end.min(new.start), ..old };
            let after = Staged { start: old.start.max(new.end), ..old };
            self.staged.extend([before, after].into_iter().filter(|left| left.start < left.end));
        }
        self.staged.push(new);
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

    /// Returns true if all of its messages have landed.
    pub(crate) fn is_whole(&self) -> bool {
        self.buffers.iter().all(Buffer::is_whole)
    }
}
