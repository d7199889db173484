//! The rules of docs/wire.md for rails that fail and come back, written down a second time, independently of
//! `transport`.

use railweave_transport::RailMessage;

use super::checker::{Checked, Checker};

/// The rails of a connection, as far as its ends have said what became of them.
#[derive(Debug, Default)]
pub(super) struct Rails {
    /// The rails whose lanes the receiver, and the sender, has said to be gone, as masks.
    gone: [u8; 2],
    /// The rails that the sender has given up, as a mask.
    pub(super) unused: u8,
    /// True from the time at which the sender gives rails up that a failed device has had, until it says which.
    pub(super) is_vague: bool,
    /// True once a rail has been down at either end.
    pub(super) have_failed: bool,
    /// The rails that have come back at the receiver, and at the sender, as masks.
    back: [u8; 2],
    /// The time since which each rail is down at the receiver, and at the sender.
    down_since_ns: [[Option<u64>; 8]; 2],
}

impl Rails {
    /// Notes that a rail is down at an end, or up again.
    pub(super) fn changed(&mut self, now_ns: u64, sender: bool, rail: u8, is_up: bool) {
        self.have_failed |= !is_up;
        self.back[usize::from(sender)] |= u8::from(is_up) << rail;
        let since_ns = &mut self.down_since_ns[usize::from(sender)][usize::from(rail)];
        *since_ns = if is_up { None } else { since_ns.or(Some(now_ns)) };
    }

    /// Returns the rails that are down at an end, and the time since which each of them is.
    pub(super) fn down(&self, sender: bool) -> impl Iterator<Item = (u8, u64)> {
        let rails = (0..8).zip(self.down_since_ns[usize::from(sender)]);
        rails.filter_map(|(rail, since_ns)| Some((rail, since_ns?)))
    }

    /// Returns true if a rail has come back at an end before.
    pub(super) fn has_come_back(&self, sender: bool, rail: u8) -> bool {
        self.back[usize::from(sender)] & 1 << rail != 0
    }

    /// Notes a step of an end.
    pub(super) fn said(&mut self, sender: bool, rail: u8, message: &RailMessage) {
        let gone = &mut self.gone[usize::from(sender)];
        match message {
            RailMessage::Down(_) | RailMessage::State(_) => *gone |= 1 << rail,
            // The sender's data may come from then on, and the receiver's CTS.
            RailMessage::Lanes { .. } | RailMessage::Up => *gone &= !(1 << rail),
            RailMessage::Suspect | RailMessage::Offer(_) => {}
        }
    }

    /// Checks a write of an end, or a part of one, that has landed over a rail.
    pub(super) fn landed(&self, sender: bool, rail: u8) -> Checked {
        if self.gone[usize::from(!sender)] & 1 << rail == 0 {
            return Ok(());
        }
        let end = if sender { "receiver" } else { "sender" };
        Err((Checker::Wire, format!("a write landed although its {end} has said that the rail's lanes are gone")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lands_between_the_end_of_a_rails_lanes_and_new_ones() {
        let mut rails = Rails::default();
        let lands = |rails: &Rails| [true, false].map(|sender| rails.landed(sender, 1).is_ok());
        assert_eq!(lands(&rails), [true, true]);
        rails.said(false, 1, &RailMessage::Suspect);
        assert_eq!(lands(&rails), [true, true], "its lanes are still there");
        rails.said(true, 1, &RailMessage::Down(Vec::new()));
        assert_eq!(lands(&rails), [true, false]);
        rails.said(false, 1, &RailMessage::State(Vec::new()));
        assert_eq!(lands(&rails), [false, false]);
        assert!(rails.landed(true, 0).is_ok(), "another rail");
        rails.said(true, 1, &RailMessage::Offer(Vec::new()));
        assert_eq!(lands(&rails), [false, false]);
        rails.said(false, 1, &RailMessage::Lanes { token: railweave_transport::Token([0; 16]), endpoints: Vec::new() });
        assert_eq!(lands(&rails), [true, false], "data may come before RAIL_UP");
        rails.said(true, 1, &RailMessage::Up);
        assert_eq!(lands(&rails), [true, true]);
    }
}
