//! An input's bytes as a script: fields one after the other, zero where the bytes have ended.
//!
//! Any bytes are a script, a script can be written by hand ([`crate::seeds`]), and a change of one byte changes one
//! field, which is what a fuzzer's mutations need.

/// The rest of an input.
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Starts at the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next byte; 0 after the end.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Takes the next two bytes, little-endian; zeros after the end.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes the next four bytes, little-endian; zeros after the end.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes the next eight bytes, little-endian; zeros after the end.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns one of `choices`, which must not be empty, by the next byte.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.u8()) % choices.len()]
    }

    /// Takes the next `count` bytes; fewer if the input ends.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Takes all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Takes the next `N` bytes; zeros after the end of the input.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.take(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }
}
