//! The checkers. They see what the fabric carries, and the players' calls with their results, but nothing internal to
//! `transport`; they apply docs/wire.md and NCCL's contract on their own.

mod blame;
mod checker;
mod connection;
mod cts;
mod groups;
mod rails;
mod split;
mod traffic;
mod wire;

pub(crate) use blame::{Call, SetUp, Strike, check_code};
pub use checker::{Checker, Violation};
pub(crate) use connection::Connection;
pub(crate) use groups::{Buffer, Group};
pub(crate) use split::Split;
pub(crate) use wire::Landing;

use railweave_transport::RailInfo;

use crate::counts::Counts;
use groups::Staged;

/// All checkers of a seed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The first finding.
    pub(crate) violation: Option<Violation>,
    pub(crate) connections: Vec<Connection>,
    /// The minimum time until a lane without an answer fails; the maximum is twice as long.
    pub(crate) retry_ns: u64,
}

impl Watch {
    /// Returns true if an end of a connection has given a rail up, and does not have it back.
    pub(crate) fn is_given_up(&self, connection: usize, sender: bool, rail: u8) -> bool {
        let watched = self.connections.get(connection);
        watched.is_some_and(|watched| watched.rails.down(sender).any(|(down, _)| down == rail))
    }

    pub(crate) fn violate(&mut self, at_ns: u64, checker: Checker, message: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { checker, message, at_ns });
        }
    }

    /// Handles an accepted receive of this many buffers: their CTS entries must have been posted.
    pub(crate) fn promised(&mut self, at_ns: u64, connection: usize, buffers: usize) {
        let watched = &mut self.connections[connection];
        watched.cts[0] += buffers as u64;
        let [promised, posted] = watched.cts;
        // CTS are written again when a rail is given up.
        let is_kept = if watched.recovers { promised <= posted } else { promised == posted };
        if !is_kept && !watched.blame.has_dead_lane(false) {
            let message =
                format!("c{connection}: receives of {promised} buffers were accepted, {posted} CTS entries posted");
            self.violate(at_ns, Checker::Promise, message);
        }
    }

    /// Checks a chain of writes that an end has posted, with the bytes of this many CTS entries.
    pub(crate) fn posted(
        &mut self,
        at_ns: u64,
        (connection, sender): (usize, bool),
        (rail, lane): (u8, u8),
        entries: u64,
        counts: &mut Counts,
    ) {
        let Some(watched) = self.connections.get_mut(connection) else { return };
        if let Err((checker, message)) = watched.posted(sender, (rail, lane), entries, counts) {
            let side = if sender { 's' } else { 'r' };
            self.violate(at_ns, checker, format!("c{connection}{side} rail {rail}.{lane}: {message}"));
        }
    }

    /// Handles writes that an end posts. Returns true if they are first packets, by which a set-up tries its rails.
    pub(crate) fn first_posted(
        &mut self,
        (connection, sender): (usize, bool),
        (rail, lane): (u8, u8),
        writes: usize,
    ) -> bool {
        let watched = self.connections.get_mut(connection);
        watched.is_some_and(|watched| watched.first_posted(sender, rail, lane, writes))
    }

    /// Handles a write of an end that lands. Returns true if it is a first packet.
    pub(crate) fn first_landed(&mut self, at_ns: u64, sender: bool, landing: &Landing, bytes: &[u8]) -> bool {
        let Some(watched) = self.connections.get_mut(landing.connection) else { return false };
        watched.first_landed(sender, landing, bytes).unwrap_or_else(|(checker, message)| {
            let side = if sender { 's' } else { 'r' };
            let (connection, rail, lane) = (landing.connection, landing.rail, landing.lane);
            self.violate(at_ns, checker, format!("c{connection}{side} rail {rail}.{lane}: {message}"));
            true
        })
    }

    /// Notes that an end posts nothing any more, and why.
    pub(crate) fn posts_no_more(&mut self, connection: usize, sender: bool, why: &'static str) {
        self.connections[connection].posts_no_more[usize::from(sender)].get_or_insert(why);
    }

    /// Checks a flush that an end has posted.
    pub(crate) fn flush_posted(&mut self, at_ns: u64, connection: usize, sender: bool) {
        let Some(watched) = self.connections.get(connection) else { return };
        if let Err((checker, message)) = watched.may_post(sender) {
            self.violate(at_ns, checker, format!("c{connection}{}: {message}", if sender { 's' } else { 'r' }));
        }
    }

    /// Adds the bytes that were reported to a receiver with an immediate.
    pub(crate) fn received(&mut self, connection: usize, rail: u8, bytes: u64) {
        if let Some(watched) = self.connections.get_mut(connection) {
            watched.traffic[usize::from(rail)].received_bytes += bytes;
        }
    }

    /// Checks CTS entries that have landed at this offset in the sender's ring.
    pub(crate) fn cts_landed(
        &mut self,
        at_ns: u64,
        connection: usize,
        (offset, bytes): (u64, &[u8]),
        counts: &mut Counts,
    ) {
        let Some(watched) = self.connections.get_mut(connection) else { return };
        if let Err((checker, message)) = watched.cts_landed(offset, bytes, counts) {
            self.violate(at_ns, checker, format!("c{connection}: {message}"));
        }
    }

    /// Checks an end that has done everything that it had to do: its rails' counters, and at the sender the bytes that
    /// each rail has carried. Nothing tells what a receiving end has discarded.
    pub(crate) fn finished(&mut self, at_ns: u64, connection: usize, sender: bool, rails: &[RailInfo]) {
        let watched = &self.connections[connection];
        // After BYE, a sender is done before its acknowledgements have come, and early receives before their data has.
        if sender && (watched.discards || watched.blame.has_bye(true)) {
            return;
        }
        // Lost bytes were counted too.
        if watched.recovers && (watched.rails.have_failed || watched.blame.is_struck()) {
            return;
        }
        let counters = |rail: &RailInfo| {
            let found = watched.traffic[rail.index].check(sender, &rail.counters);
            found.map_err(|(checker, text)| (checker, format!("rail {}: {text}", rail.index)))
        };
        let shares = match &watched.splits[..] {
            [always] if sender => always.check_all(),
            _ => Ok(()),
        };
        if let Err((checker, message)) = shares.and_then(|()| rails.iter().try_for_each(counters)) {
            let side = if sender { 's' } else { 'r' };
            self.violate(at_ns, checker, format!("c{connection}{side}: {message}"));
        }
    }

    /// Notes that a call on an end has met a dead lane, or has posted something wrong.
    pub(crate) fn broke(&mut self, at_ns: u64, connection: usize, sender: bool) {
        if let Some(watched) = self.connections.get_mut(connection) {
            watched.broke_ns[usize::from(sender)].get_or_insert(at_ns);
        }
    }

    /// Notes that a call on an end has learnt that a rail has failed: it uses the rail no more.
    pub(crate) fn gives_up(&mut self, connection: usize, sender: bool, rail: u8) {
        if let Some(watched) = self.connections.get_mut(connection).filter(|_| sender) {
            watched.uses(rail, false);
        }
    }

    /// Notes that something struck one end of a connection, which may cause errors there.
    pub(crate) fn strike(&mut self, at_ns: u64, connection: usize, sender: bool, strike: Strike) {
        if let Some(watched) = self.connections.get_mut(connection) {
            watched.blame.strike(at_ns, sender, strike);
        }
    }

    /// Checks that no rail of an end has been down for longer than `limit_ns` although nothing keeps it from coming
    /// back.
    pub(crate) fn rails_come_back(&mut self, now_ns: u64, connection: usize, sender: bool, limit_ns: u64) {
        let watched = &self.connections[connection];
        let late = watched.rails.down(sender).find(|(rail, since_ns)| {
            let free_ns = watched.blame.may_open_from_ns(*rail);
            free_ns.is_some_and(|free_ns| now_ns.saturating_sub(free_ns.max(*since_ns)) > limit_ns)
        });
        if let Some((rail, since_ns)) = late {
            let side = if sender { 's' } else { 'r' };
            let text = format!("c{connection}{side}: rail {rail} has been down since {since_ns} ns");
            self.violate(now_ns, Checker::Progress, text);
        }
    }

    /// Checks that the lanes are there over which a write of an end, or a part of one, has landed.
    pub(crate) fn arrived(&mut self, at_ns: u64, (connection, sender): (usize, bool), rail: u8) {
        let Some(watched) = self.connections.get(connection) else { return };
        if let Err((checker, message)) = watched.rails.landed(sender, rail) {
            let side = if sender { 's' } else { 'r' };
            self.violate(at_ns, checker, format!("c{connection}{side} rail {rail}: {message}"));
        }
    }

    /// Checks that the part of a write that has landed is inside an open buffer.
    pub(crate) fn touched(&mut self, at_ns: u64, connection: usize, address: u64, length: u64) {
        let watched = &self.connections[connection];
        if watched.window(address, length).is_none() && !watched.is_early_again(address, length) {
            let message =
                format!("c{connection}: {length} bytes at {address:#x} were written outside any open receive buffer");
            self.violate(at_ns, Checker::Window, message);
        }
    }

    /// Checks a write of a sender that has landed whole; `bytes` are its bytes.
    pub(crate) fn landed(&mut self, at_ns: u64, landing: &Landing, bytes: &[u8], counts: &mut Counts) {
        let Some(watched) = self.connections.get_mut(landing.connection) else { return };
        watched.blame.landed(at_ns);
        if let Err((checker, message)) = watched.landed(landing, bytes, counts) {
            let message = format!("c{} rail {}.{}: {message}", landing.connection, landing.rail, landing.lane);
            self.violate(at_ns, checker, message);
        }
    }

    /// Adds a receive that was posted; returns its number.
    pub(crate) fn irecv(&mut self, connection: usize, buffers: Vec<Buffer>, hinted: bool) -> usize {
        let watched = &mut self.connections[connection];
        let group = watched.groups.len();
        for (number, buffer) in buffers.iter().enumerate().filter(|(_, buffer)| buffer.capacity > 0) {
            watched.windows.insert(buffer.address, (group, number));
        }
        watched.ring.posted(group, buffers.len());
        watched.groups.push(Group::new(buffers, hinted));
        group
    }

    /// Adds a send that was taken. It matches the first unfilled buffer with its tag, in the oldest receive that has
    /// unfilled buffers. Returns the size to which it is truncated.
    pub(crate) fn isend(&mut self, at_ns: u64, connection: usize, message: u64, tag: u32, size: u64) -> u64 {
        let watched = &mut self.connections[connection];
        let filling = watched.filling;
        let Some(group) = watched.groups.get_mut(filling) else {
            let text = format!("c{connection}: message {message} was taken, but no receive is open");
            self.violate(at_ns, Checker::Delivery, text);
            return size;
        };
        let Some(buffer) = group.buffers.iter_mut().find(|buffer| buffer.message.is_none() && buffer.tag == tag) else {
            let text = format!(
                "c{connection}: message {message} was taken, but group {filling} has no unfilled buffer with tag {tag}"
            );
            self.violate(at_ns, Checker::Delivery, text);
            return size;
        };
        let truncated = size.min(buffer.capacity);
        buffer.message = Some((message, truncated));
        if group.buffers.iter().all(|buffer| buffer.message.is_some()) {
            watched.filling += 1;
            group.split = watched.splits.len().checked_sub(1).filter(|_| !watched.rails.is_vague);
        }
        truncated
    }

    /// Returns the receive that the next send matches, and the tags of its unfilled buffers.
    pub(crate) fn filling(&self, connection: usize) -> (usize, Vec<u32>) {
        let watched = &self.connections[connection];
        let buffers = watched.groups.get(watched.filling).map_or(&[][..], |group| &group.buffers);
        let unfilled = buffers.iter().filter(|buffer| buffer.message.is_none());
        (watched.filling, unfilled.map(|buffer| buffer.tag).collect())
    }

    /// Checks a send that the sender reports as done.
    pub(crate) fn send_done(&mut self, at_ns: u64, connection: usize, message: u64, expected: u64, said: u64) {
        if said != expected {
            let text = format!("c{connection}: the sender reports {said} bytes for message {message}, not {expected}");
            return self.violate(at_ns, Checker::Size, text);
        }
        if self.connections[connection].discards {
            return;
        }
        // A peer that has closed has the data of its early receives, or wants it no more.
        if !self.connections[connection].has_landed(message) && !self.connections[connection].is_left(message) {
            let text = format!("c{connection}: message {message} is done for the sender, but not all of it has landed");
            self.violate(at_ns, Checker::Delivery, text);
        }
    }

    /// Checks a receive that the receiver reports as done. Returns true if the report is early: it has the sizes of the
    /// buffers because the completion is optional, and the data may still be on its way.
    pub(crate) fn recv_done(&mut self, at_ns: u64, connection: usize, group: usize, sizes: &[u64]) -> bool {
        let watched = &mut self.connections[connection];
        let found = &mut watched.groups[group];
        let whole = found.is_whole();
        let capacities = found.buffers.iter().map(|buffer| buffer.capacity);
        let exact = |buffer: &Buffer| buffer.message.map(|(_, size)| size);
        let is_exact = whole && found.buffers.iter().map(exact).eq(sizes.iter().map(|size| Some(*size)));
        if found.hinted && !is_exact && capacities.eq(sizes.iter().copied()) {
            return true;
        }
        if !whole {
            let landed: Vec<_> = found.buffers.iter().map(|buffer| (buffer.message, buffer.landed)).collect();
            let text = format!(
                "c{connection}: group {group} was reported done with sizes {sizes:?}, but these messages \
                 (number and size, bytes landed) are not whole: {landed:?}"
            );
            self.violate(at_ns, Checker::Delivery, text);
        } else if !is_exact {
            let messages: Vec<_> = found.buffers.iter().map(|buffer| buffer.message).collect();
            let text = format!(
                "c{connection}: group {group} was reported with sizes {sizes:?}, but these are its messages \
                 (number and size): {messages:?}"
            );
            self.violate(at_ns, Checker::Size, text);
        }
        self.close_group(connection, group);
        false
    }

    /// Closes the buffers of a receive: they are the application's again, and nothing may be written to them.
    pub(crate) fn close_group(&mut self, connection: usize, group: usize) {
        let watched = &mut self.connections[connection];
        let found = &mut watched.groups[group];
        found.done = true;
        for buffer in &mut found.buffers {
            buffer.pieces = Vec::new();
            // A later receive may have the same address.
            if let Some(open) = watched.windows.get(&buffer.address).copied()
                && open.0 == group
            {
                watched.windows.remove(&buffer.address);
            }
        }
    }

    /// Returns true if every message of a receive has landed. An application sees that from flags in the data.
    pub(crate) fn group_is_whole(&self, connection: usize, group: usize) -> bool {
        self.connections[connection].groups[group].is_whole()
    }

    /// Adds a rail's write into GPU memory, which is visible to the GPU only after a flush through that port.
    pub(crate) fn staged(&mut self, connection: usize, address: u64, length: u64, port: usize, landed: u64) {
        let Some(watched) = self.connections.get_mut(connection) else { return };
        if let Some((group, number, start)) = watched.window(address, 0) {
            watched.groups[group].buffers[number].stage(Staged { port, landed, start, end: start + length });
        }
    }

    /// Handles a completed flush through a port: everything that the port wrote before the flush was posted is visible.
    pub(crate) fn flushed(&mut self, connection: usize, port: usize, landed: u64) {
        let Some(watched) = self.connections.get_mut(connection) else { return };
        for buffer in watched.groups.iter_mut().rev().take(4096).flat_map(|group| &mut group.buffers) {
            buffer.staged.retain(|staged| staged.port != port || staged.landed >= landed);
        }
    }

    /// Checks a receive's GPU memory when the application looks at it, after its flush.
    pub(crate) fn look(&mut self, at_ns: u64, connection: usize, group: usize) {
        let buffers = &self.connections[connection].groups[group].buffers;
        if let Some(buffer) = buffers.iter().find(|buffer| !buffer.staged.is_empty()) {
            let text = format!(
                "c{connection}: group {group} was flushed, but data from port {} is not visible",
                buffer.staged[0].port
            );
            self.violate(at_ns, Checker::Flush, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a watch over one connection of two rails with a receive of one buffer, for each of these capacities.
    fn watching(capacities: &[u64]) -> Watch {
        let mut connection = Connection { splits: vec![Split::new([1; 8], 0b11, 0)], ..Connection::default() };
        connection.wire.rails = 2;
        connection.wire.usable = 0b11;
        connection.wire.lanes = [1; 8];
        let mut watch = Watch { connections: vec![connection], ..Watch::default() };
        for (number, capacity) in capacities.iter().enumerate() {
            watch.irecv(0, vec![Buffer::new(0x10000 * (number as u64 + 1), *capacity, 7)], false);
        }
        watch
    }

    /// Lands bytes of a message, without an immediate, at this offset in the buffer of the first receive.
    fn land(watch: &mut Watch, rail: u8, offset: u64, length: u64) {
        let address = 0x10000 + offset;
        let landing = Landing { connection: 0, rail, lane: 0, address, length, control: false, immediate: None };
        watch.landed(0, &landing, &vec![0; length as usize], &mut Counts::default());
    }

    /// Returns the words of the finding, and forgets it.
    fn found(watch: &mut Watch) -> String {
        watch.violation.take().map_or_else(String::new, |found| format!("{}: {}", found.checker.name(), found.message))
    }

    #[test]
    fn a_message_needs_an_open_receive_with_its_tag() {
        let mut watch = watching(&[100]);
        watch.isend(0, 0, 0, 8, 100);
        assert!(found(&mut watch).contains("has no unfilled buffer with tag 8"));
        assert_eq!(watch.isend(0, 0, 0, 7, 100), 100);
        assert_eq!(found(&mut watch), "");
        watch.isend(0, 0, 1, 7, 100);
        assert!(found(&mut watch).contains("was taken, but no receive is open"));
    }

    #[test]
    fn bytes_must_not_land_before_their_message_is_sent() {
        let mut watch = watching(&[256]);
        land(&mut watch, 0, 0, 128);
        assert!(found(&mut watch).contains("landed in buffer 0 of group 0 before any send"));
        watch.isend(0, 0, 0, 7, 256);
        land(&mut watch, 0, 0, 128);
        land(&mut watch, 1, 128, 128);
        assert_eq!(found(&mut watch), "");
    }

    #[test]
    fn a_call_that_failed_excuses_bytes_without_a_message() {
        let mut watch = watching(&[256]);
        watch.connections[0].sender_failed = true;
        land(&mut watch, 0, 0, 128);
        assert_eq!(found(&mut watch), "");
    }

    #[test]
    fn each_byte_needs_a_flush_through_the_port_that_wrote_it_last() {
        let stages = |watch: &mut Watch| {
            for (offset, length, port, landed) in [(0, 128, 3, 1), (128, 128, 2, 2)] {
                watch.staged(0, 0x10000 + offset, length, port, landed);
            }
        };
        // Port 3 is not flushed; a write over another port overwrites what came through it, or not all of it.
        for (start, length, is_visible) in [(0, 128, true), (0, 256, true), (1, 127, false), (0, 127, false)] {
            let mut watch = watching(&[256]);
            stages(&mut watch);
            watch.staged(0, 0x10000 + start, length, 2, 3);
            watch.flushed(0, 2, 4);
            watch.look(0, 0, 0);
            assert_eq!(found(&mut watch).is_empty(), is_visible, "{start} {length}");
        }
        // A write that lands after the flush is posted needs another; each side of one that is overwritten does too.
        let mut watch = watching(&[256]);
        stages(&mut watch);
        watch.staged(0, 0x10000 + 8, 8, 2, 3);
        watch.flushed(0, 2, 3);
        let left = |watch: &Watch| -> Vec<_> {
            let staged = &watch.connections[0].groups[0].buffers[0].staged;
            staged.iter().map(|it| (it.port, it.start, it.end)).collect()
        };
        assert_eq!(left(&watch), [(3, 0, 8), (3, 16, 128), (2, 8, 16)]);
        watch.flushed(0, 3, 4);
        assert_eq!(left(&watch), [(2, 8, 16)]);
    }

    #[test]
    fn a_receive_follows_the_order_in_force_when_it_was_filled() {
        let second_only = || Split::new([0, 1, 0, 0, 0, 0, 0, 0], 0b11, 0);
        for (before, after) in [(second_only(), Split::free(0b11, 0)), (Split::free(0b11, 0), second_only())] {
            let (mut watch, is_wrong) = (watching(&[256]), !before.is_free);
            watch.connections[0].ordered(true, before);
            watch.isend(0, 0, 0, 7, 256);
            watch.connections[0].ordered(true, after);
            land(&mut watch, 0, 0, 256);
            assert_eq!(found(&mut watch).contains("a rail without weight"), is_wrong);
        }
    }

    #[test]
    fn pieces_begin_and_end_at_multiples_of_128_bytes() {
        for (offset, length, is_right) in [(8, 120, false), (0, 120, false), (128, 132, true), (128, 128, true)] {
            let mut watch = watching(&[260]);
            watch.isend(0, 0, 0, 7, 260);
            land(&mut watch, 0, offset, length);
            assert_eq!(found(&mut watch).contains("has a piece"), !is_right, "{length} bytes at {offset}");
        }
    }

    #[test]
    fn a_rail_comes_back_unless_something_keeps_it_away() {
        for keeps in [None, Some(Strike::SessionBroke), Some(Strike::RailSilent(1))] {
            let mut watch = watching(&[]);
            watch.connections[0].recovers = true;
            watch.connections[0].went_down(100, true, 1);
            if let Some(strike) = keeps {
                watch.strike(800, 0, false, strike);
            }
            watch.rails_come_back(1100, 0, true, 1000);
            assert_eq!(found(&mut watch), "", "there is time");
            watch.rails_come_back(1101, 0, true, 1000);
            assert_eq!(found(&mut watch).contains("rail 1 has been down since 100 ns"), keeps.is_none());
            watch.rails_come_back(1801, 0, true, 1000);
            assert_eq!(found(&mut watch).is_empty(), keeps == Some(Strike::SessionBroke), "{keeps:?}");
            watch.connections[0].came_up(1900, true, 1);
            watch.rails_come_back(9000, 0, true, 1000);
            assert_eq!(found(&mut watch), "");
        }
    }

    #[test]
    fn a_send_is_done_with_its_size_once_all_of_it_has_landed() {
        let mut watch = watching(&[128]);
        watch.isend(0, 0, 5, 7, 128);
        watch.send_done(0, 0, 5, 128, 128);
        assert!(found(&mut watch).contains("message 5 is done for the sender, but not all of it has landed"));
        land(&mut watch, 0, 0, 128);
        watch.send_done(0, 0, 5, 128, 127);
        assert!(found(&mut watch).contains("the sender reports 127 bytes for message 5, not 128"));
        watch.send_done(0, 0, 5, 128, 128);
        assert_eq!(found(&mut watch), "");
    }

    #[test]
    fn only_a_receive_with_an_optional_completion_may_be_done_early() {
        for hinted in [true, false] {
            let mut watch = watching(&[]);
            watch.irecv(0, vec![Buffer::new(0x10000, 128, 7)], hinted);
            assert_eq!(watch.recv_done(0, 0, 0, &[128]), hinted);
            assert_eq!(found(&mut watch).contains("are not whole"), !hinted);
        }
    }

    #[test]
    fn an_end_without_counters_that_agree_has_not_finished() {
        let mut watch = watching(&[128]);
        watch.isend(0, 0, 0, 7, 128);
        let rail = RailInfo {
            index: 0,
            local_port: 0,
            name: railweave_transport::RailName { local: String::new(), remote: String::new() },
            speed_mbps: None,
            lanes: 1,
            counters: std::sync::Arc::default(),
        };
        watch.finished(0, 0, true, std::slice::from_ref(&rail));
        assert_eq!(found(&mut watch), "", "nothing has been carried or counted");
        land(&mut watch, 0, 0, 128);
        watch.finished(0, 0, true, std::slice::from_ref(&rail));
        assert!(found(&mut watch).contains("the counters say [0, 0, 0, 0]"));
        watch.finished(0, 0, false, &[rail]);
        assert_eq!(found(&mut watch), "", "the receiver counts what is reported to it");
    }
}
