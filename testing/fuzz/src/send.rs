//! A sending connection whose peer writes anything into the CTS stream.
//!
//! Whatever the peer writes: no panic; every write comes from the message being sent (or the record), with that port's
//! local key, and goes to a place that an entry of the stream announced, with that entry's key for the rail.

use std::collections::HashSet;
use std::sync::Arc;

use railweave_fabric::{MAX_RAILS, Region, Write};
use railweave_transport::{
    ConnectionEnd, Error, MAX_BUFFERS, MemoryKeys, Outgoing, SLOTS, SendConnection, SendRequest,
};

use crate::input::Input;
use crate::peer::{PEER_STREAM, Plan, peer_key, size};
use crate::recovery::{self, Recovery};
use crate::scripted::{RailState, Scripted, World};

const ENTRY_BYTES: usize = 64;
const ENTRIES: u64 = 512;
const RECORD_BYTES: u64 = 64;
const MOST_STEPS: usize = 2000;
/// Messages are this far apart, each in memory of its own.
const MESSAGE_STRIDE: u64 = 1 << 31;
const MESSAGES_AT: u64 = 1 << 40;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let plan = Plan::read(&mut input);
    if plan.one_sided { play::<true>(&plan, &mut input) } else { play::<false>(&plan, &mut input) }
}

/// The announcement of an entry of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Announced {
    address: u64,
    size: u64,
    keys: [u32; MAX_RAILS],
}

struct Script<const ONE_SIDED: bool> {
    world: World,
    connection: SendConnection<Scripted<ONE_SIDED>>,
    ring: Arc<Region>,
    records: Arc<Region>,
    keys: MemoryKeys,
    /// All entries that the stream ever held.
    announced: HashSet<Announced>,
    last: Option<Announced>,
    next_entry: u64,
    next_slot: u8,
    /// Requests in progress, with the address and length of their messages.
    in_progress: Vec<(SendRequest, u64, u64)>,
    sent: u64,
    broken: bool,
    rails: usize,
    /// Its recovery, if it goes on without rails that fail.
    recovery: Option<Recovery>,
}

fn play<const ONE_SIDED: bool>(plan: &Plan, input: &mut Input<'_>) {
    let world = World::default();
    let connection = plan.sender::<ONE_SIDED>(&world);
    let mut keys = MemoryKeys::default();
    let (ring, records) = {
        let mut state = world.lock();
        for rail in 0..plan.rails {
            keys.local[rail] = state.announce(rail, MESSAGES_AT, 1 << 45);
        }
        (state.own_region(true).expect("the CTS stream"), state.own_region(false).expect("the records"))
    };
    let mut script = Script {
        world: world.clone(),
        connection,
        ring,
        records,
        keys,
        announced: HashSet::new(),
        last: None,
        next_entry: 0,
        next_slot: 0,
        in_progress: Vec::new(),
        sent: 0,
        broken: false,
        rails: plan.rails,
        recovery: plan.config.recovers.then(|| Recovery::new(true, plan.lanes)),
    };
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        script.step(input);
    }
    script.connection.start_linger();
    script.connection.linger();
    drop(script);
    world.assert_freed();
}

impl<const ONE_SIDED: bool> Script<ONE_SIDED> {
    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.u8();
        if what >= recovery::FROM && self.recovery.is_some() {
            return self.recover(input);
        }
        match what % 12 {
            0 | 1 => self.announce(input, false),
            2 => self.announce(input, true),
            3 => self.scribble(input),
            4 | 5 => self.isend(input),
            6 => self.test(input),
            7 => self.complete(input),
            8 => {
                let mut state = self.world.lock();
                for rail in &mut state.rails {
                    (0..rail.lanes()).for_each(|lane| while rail.complete(lane) {});
                }
            }
            9 => {
                let (rail, lane, immediate) = (input.u8(), input.u8(), input.u32());
                let mut state = self.world.lock();
                let rail = state.newest(usize::from(rail), self.rails);
                rail.receive(usize::from(lane) % rail.lanes(), immediate, 0);
            }
            10 => {
                let (rail, lane) = (input.u8(), input.u8());
                let mut state = self.world.lock();
                let rail = state.newest(usize::from(rail), self.rails);
                rail.fail(usize::from(lane) % rail.lanes());
            }
            _ => {
                if input.u8() == 0xff {
                    self.connection.fate().set_lost(Error::peer("the script says that the peer is gone"));
                }
            }
        }
    }

    /// Takes a step in the recovery of a rail. Only messages in progress go again, to the places that entries announce
    /// by then. If the peer has changed them, it may get the bytes behind these places.
    fn recover(&mut self, input: &mut Input<'_>) {
        if let Some(recovery) = &mut self.recovery {
            recovery.last_sequence = u32::from(self.next_slot);
            recovery.step(&mut self.connection, input);
        }
        self.check_posted(None);
    }

    /// Writes the entries of the next slot, perhaps with a damaged one.
    fn announce(&mut self, input: &mut Input<'_>, spoil: bool) {
        let count = 1 + usize::from(input.u8()) % MAX_BUFFERS;
        let tags = input.u8();
        for buffer in 0..count {
            let bytes = size(input);
            let mixed = u64::from(tags.wrapping_add(buffer as u8) % 4)
                | u64::from(self.next_slot) << 32
                | (buffer as u64) << 40
                | (count as u64) << 48;
            let key = |rail: u64| 0xc000_0000 | (self.next_entry & 0xffff) << 8 | rail;
            let mut words = [0x1000_0000_0000 + (self.next_entry << 31), bytes, mixed, 0, 0, 0, 0, self.next_entry + 1];
            for pair in 0..4 {
                words[3 + pair as usize] = key(2 * pair) | key(2 * pair + 1) << 32;
            }
            if spoil && usize::from(input.u8()) % count == buffer {
                let (word, change) = (usize::from(input.u8()) % words.len(), input.u64());
                words[word] ^= change;
            }
            let at = (self.next_entry % ENTRIES) as usize * ENTRY_BYTES;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.write(at, &bytes);
            self.next_entry += 1;
        }
        self.next_slot = self.next_slot.wrapping_add(1);
    }

    /// Writes any bytes anywhere in the stream.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let length = 1 + usize::from(input.u8()) % 128;
        let at = usize::from(input.u16()) % (self.ring.len() - length);
        let bytes = input.take(length);
        self.write(at, bytes);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.ring.write(at, bytes);
        for entry in at / ENTRY_BYTES..(at + bytes.len()).div_ceil(ENTRY_BYTES) {
            let mut entry_bytes = [0; ENTRY_BYTES];
            self.ring.read(entry * ENTRY_BYTES, &mut entry_bytes);
            let mut fields = Input::new(&entry_bytes);
            let (address, size, _) = (fields.u64(), fields.u64(), fields.u64());
            let keys = std::array::from_fn(|_| fields.u32());
            self.announced.insert(Announced { address, size, keys });
        }
    }

    fn isend(&mut self, input: &mut Input<'_>) {
        let (tag, size) = (u32::from(input.u8() % 4), size(input));
        let address = MESSAGES_AT + self.sent % 4096 * MESSAGE_STRIDE;
        let was_broken = self.broken;
        let result = self.connection.isend(&Outgoing { address, size, tag, keys: &self.keys });
        assert!(!was_broken || result.is_err(), "a broken connection sends no more");
        match result {
            Err(error) => self.broke(&error),
            Ok(None) => {}
            Ok(Some(request)) => {
                assert!(self.in_progress.iter().all(|(other, ..)| *other != request), "a request is given out once");
                self.in_progress.push((request, address, size));
                self.sent += 1;
            }
        }
        self.check_posted(Some((address, size)));
        self.connection.poll_event();
    }

    /// Checks every write posted since the last call: of the message at this place or of one in progress; `None` for
    /// parts that go again.
    fn check_posted(&mut self, message: Option<(u64, u64)>) {
        let mut state = self.world.lock();
        let take = |rail: &mut RailState| (rail.port(), std::mem::take(&mut rail.posted));
        let posted: Vec<(usize, Vec<Write>)> = state.rails.iter_mut().map(take).collect();
        drop(state);
        let inside =
            |start: u64, end: u64, address: u64, size: u64| start >= address && end <= address.saturating_add(size);
        for (rail, writes) in posted {
            for write in writes.into_iter().filter(|write| write.local.length > 0) {
                let (length, from, to) = (u64::from(write.local.length), write.local.address, write.remote.address);
                if let Some(offset) = self.records.offset_of(from, length) {
                    // Behind the records is the first packet of new lanes.
                    if offset as u64 == RECORD_BYTES * SLOTS as u64 {
                        let (at, key) = (PEER_STREAM + offset as u64, peer_key(rail));
                        assert!((to, write.remote.key) == (at, key) && write.immediate.is_none() && length <= 4096);
                        continue;
                    }
                    assert_eq!((offset as u64 % RECORD_BYTES, length), (0, RECORD_BYTES), "a record is written whole");
                    assert_eq!(to, PEER_STREAM + offset as u64, "a record goes to its slot");
                    assert!(offset as u64 / RECORD_BYTES < SLOTS as u64);
                    assert_eq!(write.remote.key, peer_key(rail), "a record goes with its rail's key");
                    continue;
                }
                let in_progress = self.in_progress.iter().map(|(_, address, size)| (*address, *size));
                let of_a_message =
                    in_progress.chain(message).any(|(address, size)| inside(from, from + length, address, size));
                assert!(of_a_message, "posted from {from:#x}, which no message in progress covers");
                let announced = |entry: &Announced| {
                    let fits = || to.checked_add(length).is_some_and(|end| inside(to, end, entry.address, entry.size));
                    entry.keys[rail] == write.remote.key && (message.is_none() || fits())
                };
                if !self.last.as_ref().is_some_and(announced) {
                    self.last = self.announced.iter().find(|entry| announced(entry)).copied();
                    assert!(self.last.is_some(), "posted to {to:#x} with key {:#x}, unannounced", write.remote.key);
                }
            }
        }
    }

    fn test(&mut self, input: &mut Input<'_>) {
        let which = input.u8();
        if self.in_progress.is_empty() || which == 0xff {
            // Any request at all.
            let request = SendRequest::from_index(usize::from(input.u8()));
            if self.in_progress.iter().all(|(other, ..)| *other != request) {
                let result = self.connection.test(request);
                assert!(!matches!(result, Ok(Some(_))), "a request that is not in progress is not done");
            }
            return;
        }
        let index = usize::from(which) % self.in_progress.len();
        let (request, address, size) = self.in_progress[index];
        match self.connection.test(request) {
            Err(error) => self.broke(&error),
            Ok(None) => {}
            Ok(Some(sent)) => {
                assert!(sent <= size, "{sent} bytes of {size} were sent");
                assert!(!self.world.lock().reads(address, size), "a send is done while its memory is still read");
                self.in_progress.swap_remove(index);
            }
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let (rail, lane) = (input.u8(), input.u8());
        let mut state = self.world.lock();
        let rail = state.newest(usize::from(rail), self.rails);
        rail.complete(usize::from(lane) % rail.lanes());
    }

    fn broke(&mut self, error: &Error) {
        let text = error.to_string();
        assert!(text.contains(' ') && !text.contains(char::is_control), "{text:?}");
        self.broken = true;
    }
}
