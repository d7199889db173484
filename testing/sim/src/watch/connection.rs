//! One connection under watch: its receives, what travels, and why it may fail.

use std::collections::BTreeMap;

use super::checker::{Checked, Checker};
use super::groups::Group;
use super::wire::{Landing, Wire};
use crate::counts::Counts;

/// One connection under watch.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) groups: Vec<Group>,
    /// The oldest group with unfilled buffers.
    pub(super) filling: usize,
    /// Open buffers by address: their group, and their number in it.
    pub(super) windows: BTreeMap<u64, (usize, usize)>,
    pub(crate) wire: Wire,
    /// True once the receiving end is closed, on a two-sided fabric: it then discards what arrives.
    pub(crate) discards: bool,
    /// True once a call of the sender failed: a part of that call's message may be on its way.
    pub(crate) sender_failed: bool,
    /// True once the receiver was given something that no peer may send: it must end in an error.
    pub(crate) condemned: bool,
    /// The number of CTS entries promised by accepted receives, and the number posted.
    pub(crate) cts: [u64; 2],
    /// The time since which errors are allowed on it, and the reason.
    pub(crate) harm: Option<(u64, String)>,
}

impl Connection {
    /// Returns a connection whose first receive has this number.
    pub(crate) fn new(first_number: u32) -> Self {
        Self { wire: Wire::new(first_number), ..Self::default() }
    }

    /// Returns the open buffer that holds all of these bytes (its group, and its number in it), and their offset in it.
    pub(super) fn window(&self, address: u64, length: u64) -> Option<(usize, usize, u64)> {
        let (start, &(group, number)) = self.windows.range(..=address).next_back()?;
        let offset = address - start;
        (offset + length <= self.groups[group].buffers[number].capacity).then_some((group, number, offset))
    }

    fn data_landed(&mut self, landing: &Landing) -> Checked {
        let (address, length) = (landing.address, landing.length);
        let Some((group, number, offset)) = self.window(address, length) else {
            return Err((Checker::Window, format!("{length} bytes at {address:#x} landed outside any open buffer")));
        };
        let buffer = &mut self.groups[group].buffers[number];
        let Some((message, size)) = buffer.message else {
            if self.sender_failed {
                return Ok(());
            }
            return Err((
                Checker::Delivery,
                format!("bytes landed in buffer {number} of group {group} before any send"),
            ));
        };
        let end = offset + length;
        if end > size {
            let message = format!("message {message} of {size} bytes was written up to byte {end} of its buffer");
            return Err((Checker::Window, message));
        }
        if !offset.is_multiple_of(128) || (!end.is_multiple_of(128) && end != size) {
            return Err((Checker::Pieces, format!("message {message} of {size} bytes has a piece {offset}..{end}")));
        }
        if buffer.pieces.iter().any(|(from, to)| offset < *to && *from < end) {
            return Err((Checker::Window, format!("bytes {offset}..{end} of message {message} were written twice")));
        }
        buffer.pieces.push((offset, end));
        buffer.landed += length;
        Ok(())
    }

    /// Checks a write of the sender that has landed whole; `bytes` are its bytes.
    pub(super) fn landed(&mut self, landing: &Landing, bytes: &[u8], counts: &mut Counts) -> Checked {
        if landing.control {
            self.wire.record_landed(landing, bytes)?;
        } else if landing.length > 0 {
            self.data_landed(landing)?;
        }
        match landing.immediate {
            Some(immediate) => self.wire.immediate_landed(&self.groups, self.sender_failed, landing, immediate, counts),
            None => Ok(()),
        }
    }
}
