//! One connection under watch: its receives, what travels, and why it may fail.

use std::collections::BTreeMap;

use railweave_transport::{Listed, RailMessage, RailNews};

use super::blame::Blame;
use super::checker::{Checked, Checker};
use super::cts::Ring;
use super::groups::{Buffer, Group, Piece};
use super::rails::Rails;
use super::split::Split;
use super::traffic::Traffic;
use super::wire::{Landing, Wire};

use crate::counts::Counts;
use crate::{Seen, Situation};

/// The place behind the records to which the first packets of new lanes go (docs/wire.md).
const PACKET_OFFSET: u64 = 64 * 256;

/// The most empty writes that an end posts on a rail, to find out its latency.
const MOST_PINGS: u32 = 3;

/// One connection under watch.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) groups: Vec<Group>,
    /// The oldest group with unfilled buffers.
    pub(super) filling: usize,
    /// Open buffers by address: their group, and their number in it.
    pub(super) windows: BTreeMap<u64, (usize, usize)>,
    pub(crate) wire: Wire,
    pub(super) ring: Ring,
    /// The split with which the sender began, and that of each order since.
    pub(crate) splits: Vec<Split>,
    /// The number of the last split of which a message has landed.
    pub(super) followed: usize,
    /// The rails over which the receiver may post CTS, as a mask.
    pub(crate) cts_rails: u8,
    /// True if the receiver has an order that no CTS has followed yet.
    pub(super) has_cts_order: bool,
    /// The traffic of each rail.
    pub(super) traffic: [Traffic; 8],
    /// The reason why the receiver, and why the sender, posts nothing any more.
    pub(super) posts_no_more: [Option<&'static str>; 2],
    /// The time at which a call of the receiver, and of the sender, first met a dead lane.
    pub(crate) broke_ns: [Option<u64>; 2],
    /// The number of probes that its sender was asked for.
    pub(crate) probes: u32,
    /// True once the receiving end is closed, on a two-sided fabric: it then discards what arrives.
    pub(crate) discards: bool,
    /// True once a call of the sender failed: a part of that call's message may be on its way.
    pub(crate) sender_failed: bool,
    /// True once the receiver was given something that no peer may send: it must end in an error.
    pub(crate) condemned: bool,
    /// The number of CTS entries promised by accepted receives, and the number posted.
    pub(crate) cts: [u64; 2],
    /// Everything that struck its ends.
    pub(crate) blame: Blame,
    /// True once the receiver, and once the sender, is up.
    pub(crate) is_up: [bool; 2],
    /// True if it goes on without rails that fail.
    pub(crate) recovers: bool,
    /// Its rails that fail and come back.
    pub(super) rails: Rails,
    /// The last RAIL_DOWN of each rail.
    pub(super) listed: [Vec<Listed>; 8],
    /// The packets by which the set-up tries its rails that have not landed: by end (true for the sender), rail and
    /// lane.
    pub(super) first_packets: BTreeMap<(bool, u8, u8), usize>,
}

impl Connection {
    /// Returns a connection whose first receive has this number.
    pub(crate) fn new(first_number: u32) -> Self {
        Self { wire: Wire::new(first_number), ring: Ring::new(first_number), ..Self::default() }
    }

    /// Returns the open buffer that holds all of these bytes (its group, and its number in it), and their offset in it.
    pub(super) fn window(&self, address: u64, length: u64) -> Option<(usize, usize, u64)> {
        let (start, &(group, number)) = self.windows.range(..=address).next_back()?;
        let offset = address - start;
        (offset + length <= self.groups[group].buffers[number].capacity).then_some((group, number, offset))
    }

    /// Returns true if all of a message has landed.
    pub(crate) fn has_landed(&self, message: u64) -> bool {
        // The message is in a recent group.
        let mut buffers = self.groups.iter().rev().flat_map(|group| &group.buffers);
        buffers.any(|buffer| buffer.is_whole() && buffer.message.is_some_and(|(number, _)| number == message))
    }

    /// Returns true if a message was for a receive with an optional completion, and its receiver has closed, or has
    /// deregistered a buffer.
    pub(super) fn is_left(&self, message: u64) -> bool {
        let is_its = |group: &&Group| {
            group.buffers.iter().any(|buffer| buffer.message.is_some_and(|(number, _)| number == message))
        };
        // One that deregisters the buffer has the data too, if it keeps to the rules.
        let is_gone = self.blame.has_bye(true) || self.recovers && self.blame.has_no_target();
        is_gone && self.groups.iter().rev().find(is_its).is_some_and(|group| group.hinted)
    }

    /// Returns true if all of a receive has landed, and with it the immediates that say so.
    pub(crate) fn is_over(&self, group: usize) -> bool {
        self.groups[group].is_whole() && self.wire.is_over(group)
    }

    /// Returns true if all of a message has landed, and with it the immediates that say so.
    pub(crate) fn has_arrived(&self, message: u64) -> bool {
        let is_in = |group: &Group| {
            group.buffers.iter().any(|buffer| buffer.message.is_some_and(|(number, _)| number == message))
        };
        self.groups.iter().rposition(is_in).is_some_and(|group| self.is_over(group))
    }

    /// Handles an order to one end, from which these rules hold.
    pub(crate) fn ordered(&mut self, sender: bool, rules: Split) {
        if sender {
            self.splits.push(rules);
            if self.rails.unused != 0 {
                self.split_again();
            }
        } else {
            self.cts_rails = rules.cts_rails();
            self.has_cts_order = true;
        }
    }

    /// Returns true if these bytes are of an early receive of which a part was lost. Its application may have seen all
    /// of it, but posts no other receive to its buffers before the part has come again.
    pub(super) fn is_early_again(&self, address: u64, length: u64) -> bool {
        let holds = |buffer: &Buffer| buffer.address <= address && address + length <= buffer.address + buffer.capacity;
        let newest = self.groups.iter().rev().find(|group| group.buffers.iter().any(holds));
        newest.is_some_and(|group| group.hinted && group.is_repaired)
    }

    fn data_landed(&mut self, landing: &Landing, counts: &mut Counts) -> Checked {
        let (address, length) = (landing.address, landing.length);
        let Some((group, number, offset)) = self.window(address, length) else {
            if self.is_early_again(address, length) {
                return Ok(());
            }
            return Err((Checker::Window, format!("{length} bytes at {address:#x} landed outside any open buffer")));
        };
        let receive = &mut self.groups[group];
        receive.carriers |= 1 << landing.rail;
        let buffer = &mut receive.buffers[number];
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
        let is_again = buffer.pieces.iter().any(|piece| offset < piece.end && piece.start < end);
        // The parts that its receiver has called unseen come again.
        if is_again && !receive.is_repaired {
            return Err((Checker::Window, format!("bytes {offset}..{end} of message {message} were written twice")));
        }
        let piece = Piece { rail: landing.rail, start: offset, end };
        if receive.is_repaired {
            buffer.add(piece);
        } else {
            buffer.pieces.push(piece);
            buffer.landed += length;
        }
        if buffer.landed < size {
            return Ok(());
        }
        if receive.is_repaired {
            return Ok(());
        }
        let mut carried = [0; 8];
        buffer.pieces.iter().for_each(|piece| carried[usize::from(piece.rail)] += piece.end - piece.start);
        // A call of the sender that failed may have left a group unfilled.
        let Some(number) = receive.split else { return Ok(()) };
        let newer = self.splits.get(self.followed + 1..=number).unwrap_or_default();
        if let Some(replaced) = newer.iter().filter(|split| split.is_ordered).count().checked_sub(1) {
            counts.saw(if self.splits[number].is_free { Seen::OrderToAdapt } else { Seen::OrderOfShares });
            counts.add(Seen::OrderReplaced, replaced as u64);
        }
        self.followed = self.followed.max(number);
        match self.splits[number].message_landed(carried) {
            // The call that split it may have given a rail up afterwards.
            Err(_) if !self.splits[number].is_ordered => self.splits[number - 1].message_landed(carried),
            landed => landed,
        }
    }

    /// Notes that the sender uses a rail no more, or again.
    pub(crate) fn uses(&mut self, rail: u8, is_used: bool) {
        let before = self.rails.unused;
        if is_used {
            self.rails.unused &= !(1 << rail);
        } else {
            self.rails.unused |= 1 << rail;
        }
        if self.recovers && self.rails.unused != before {
            self.split_again();
        }
    }

    /// Begins the split over the rails that the sender uses now.
    fn split_again(&mut self) {
        let rules = self.splits.last().map(|split| split.over(self.wire.usable & !self.rails.unused));
        self.splits.extend(rules);
    }

    /// Returns the situations in which an end is that is about to lose a rail, or something else if that is `None`.
    pub(crate) fn situations(&self, sender: bool, rail: Option<u8>) -> Vec<Situation> {
        if self.is_up != [true; 2] {
            return vec![Situation::SetUp];
        }
        let recent = || self.groups.iter().rev().take(1024);
        let is_sent = |buffer: &Buffer| buffer.message.is_some() && !buffer.is_whole();
        let in_progress = || recent().filter(|group| group.buffers.iter().any(is_sent));
        let is_unflushed = |group: &Group| group.buffers.iter().any(|buffer| !buffer.staged.is_empty());
        let has_come_back = |rail| self.rails.has_come_back(sender, rail);
        let all = [
            (in_progress().next().is_none(), Situation::Idle),
            (in_progress().next().is_some(), Situation::Busy),
            (in_progress().any(|group| group.buffers.len() > 1), Situation::Grouped),
            (in_progress().any(|group| group.hinted), Situation::Early),
            (recent().any(is_unflushed), Situation::Unflushed),
            (self.rails.down(sender).any(|(down, _)| Some(down) != rail), Situation::Another),
            (self.wire.has_missing(), Situation::Repair),
            (self.wire.usable.count_ones() == 1, Situation::Only),
            (rail.map_or_else(|| (0..8).any(has_come_back), has_come_back), Situation::Again),
            (self.blame.has_bye(sender), Situation::Closing),
        ];
        all.into_iter().filter_map(|(is_so, seen)| is_so.then_some(seen)).collect()
    }

    /// Notes that an end has said that a rail is down.
    pub(crate) fn went_down(&mut self, now_ns: u64, sender: bool, rail: u8) {
        self.rails.changed(now_ns, sender, rail, false);
        if sender {
            self.rails.is_vague = false;
            self.uses(rail, false);
        }
    }

    /// Notes that an end has said that a rail is up again.
    pub(crate) fn came_up(&mut self, now_ns: u64, sender: bool, rail: u8) {
        self.rails.changed(now_ns, sender, rail, true);
    }

    /// Returns the rails that are up at an end, as a mask.
    pub(crate) fn rails_up(&self, sender: bool) -> u8 {
        self.rails.down(sender).fold(self.wire.usable, |up, (rail, _)| up & !(1 << rail))
    }

    /// Notes that the sender is about to give up rails, and does not say yet which.
    pub(crate) fn will_give_up(&mut self) {
        self.rails.is_vague = true;
    }

    /// Checks a write of the sender that has landed whole; `bytes` are its bytes.
    pub(super) fn landed(&mut self, landing: &Landing, bytes: &[u8], counts: &mut Counts) -> Checked {
        if landing.control && landing.address == PACKET_OFFSET && landing.immediate.is_none() {
            counts.saw(Seen::PacketAgain);
            return match self.rails.have_failed {
                true => Ok(()),
                false => Err((Checker::Wire, "a first packet although no rail has failed".to_owned())),
            };
        }
        let traffic = &mut self.traffic[usize::from(landing.rail)];
        if landing.length == 0 && landing.immediate.is_none() {
            counts.saw(Seen::Ping);
            traffic.pings += 1;
            let adapts = self.splits.iter().any(|split| split.is_free);
            let most = if adapts { MOST_PINGS } else { 0 } + self.probes;
            // New lanes of a rail carry empty writes first.
            return match self.recovers || landing.lane == 0 && traffic.pings <= most {
                true => Ok(()),
                false => Err((Checker::Wire, format!("an empty write, number {}, that tells nothing", traffic.pings))),
            };
        }
        traffic.data_writes += 1;
        traffic.data_bytes += if landing.control { 0 } else { landing.length };
        if landing.control {
            self.wire.record_landed(landing, bytes)?;
        } else if landing.length > 0 {
            self.data_landed(landing, counts)?;
        }
        match landing.immediate {
            Some(immediate) => self.wire.immediate_landed(&self.groups, self.sender_failed, landing, immediate, counts),
            None => Ok(()),
        }
    }

    /// Handles a step of the recovery of a rail that one end has said.
    pub(crate) fn said(&mut self, sender: bool, news: &RailNews, counts: &mut Counts) {
        self.rails.said(sender, news.rail.index() as u8, &news.message);
        match &news.message {
            RailMessage::Up => self.uses(news.rail.index() as u8, true),
            RailMessage::Down(listed) if sender => {
                let unsure: u32 = listed.iter().map(|listed| listed.unsure.len()).sum();
                counts.add(Seen::RailUnsure, unsure.into());
                self.listed[news.rail.index()].clone_from(listed);
            }
            RailMessage::State(seen) if !sender => {
                let listed = std::mem::take(&mut self.listed[news.rail.index()]);
                let asked = listed.iter().filter(|listed| !listed.unsure.is_empty());
                for (listed, seen) in asked.zip(seen) {
                    let unseen = listed.unsure.bits() & !seen.parts.bits();
                    counts.add(Seen::RailSeen, (listed.unsure & seen.parts).len().into());
                    let said = (listed.mask.bits(), listed.size);
                    let is_early = |group: usize| self.groups.get(group).is_some_and(|group| group.hinted);
                    self.wire.called_seen(listed.sequence, said, (listed.unsure & seen.parts).bits(), is_early);
                    let is_done = |group: usize| self.groups.get(group).is_none_or(|group| group.done && !group.hinted);
                    let group = self.wire.called_unseen(listed.sequence, said, unseen, is_done, counts);
                    if let Some(group) = group.and_then(|group| self.groups.get_mut(group)) {
                        group.is_repaired = true;
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks CTS entries that have landed at this offset in the sender's ring.
    pub(super) fn cts_landed(&mut self, offset: u64, bytes: &[u8], counts: &mut Counts) -> Checked {
        let landed = self.ring.landed(&self.groups, offset, bytes);
        counts.add(Seen::CtsRepeated, self.ring.take_repeated());
        landed
    }

    /// Handles writes that an end posts. Returns true if they are first packets, by which a set-up tries its rails.
    pub(super) fn first_posted(&mut self, sender: bool, rail: u8, lane: u8, writes: usize) -> bool {
        let is_first = !self.is_up[usize::from(sender)];
        if is_first {
            *self.first_packets.entry((sender, rail, lane)).or_default() += writes;
        }
        is_first
    }

    /// Handles a write that lands. Returns true if it is a first packet: it changes nothing, and comes before the end
    /// that it reaches is up.
    pub(super) fn first_landed(&mut self, sender: bool, landing: &Landing, bytes: &[u8]) -> Checked<bool> {
        let Some(left) = self.first_packets.get_mut(&(sender, landing.rail, landing.lane)).filter(|left| **left > 0)
        else {
            return Ok(false);
        };
        *left -= 1;
        let Landing { address, length, control, immediate, .. } = *landing;
        let wrong = |text: String| Err((Checker::Wire, format!("a first packet of {length} bytes {text}")));
        if self.is_up[usize::from(!sender)] {
            return wrong("lands in a connection that is up".to_owned());
        }
        if !control || address != 0 || immediate.is_some() || bytes.iter().any(|byte| *byte != 0) {
            return wrong(format!("is no write of zeros to the beginning of the stream ({address:#x}, {immediate:?})"));
        }
        Ok(true)
    }

    /// Checks that an end may post something.
    pub(super) fn may_post(&self, sender: bool) -> Checked {
        match self.posts_no_more[usize::from(sender)] {
            None => Ok(()),
            Some(why) => Err((Checker::Errors, format!("it posts something although {why}"))),
        }
    }

    /// Checks a chain of writes that an end has posted; the receiver posts nothing but CTS entries and empty
    /// writes.
    pub(super) fn posted(
        &mut self,
        sender: bool,
        (rail, lane): (u8, u8),
        entries: u64,
        counts: &mut Counts,
    ) -> Checked {
        // Rails recover although an application has finished.
        if !self.recovers {
            self.may_post(sender)?;
        }
        // An empty write of a receiver asks if its peer's end is there.
        if sender || entries == 0 {
            return Ok(());
        }
        self.cts[1] += entries;
        self.traffic[usize::from(rail)].cts += 1;
        if lane != 0 || self.cts_rails & 1 << rail == 0 && !self.recovers {
            let text = format!("CTS belong on lane 0 of one of the rails {:#b}", self.cts_rails);
            return Err((Checker::Wire, text));
        }
        if std::mem::take(&mut self.has_cts_order) {
            counts.saw(Seen::OrderOfCts);
        }
        Ok(())
    }
}
