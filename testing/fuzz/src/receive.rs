//! A receiving connection whose peer sends any immediates and writes anything into the completion records.
//!
//! Whatever the peer does: no panic; CTS entries go to their place in the peer's stream, with the rail's keys, and
//! overwrite an entry only after the peer has sent an immediate for its slot; and no receive reports more bytes than
//! its buffer has.

use std::sync::Arc;

use railweave_fabric::{RailSet, Region};
use railweave_transport::{
    ConnectionEnd, Error, Flushed, GRANULE, Immediate, ImmediateLayout, Incoming, MAX_BUFFERS, MemoryKeys,
    RecvConnection, RecvRequest, SLOTS, Slot,
};

use crate::input::Input;
use crate::peer::{PEER_STREAM, Plan, peer_key, size};
use crate::recovery::{self, Recovery};
use crate::scripted::{Scripted, World};

const ENTRY_BYTES: u64 = 64;
const ENTRIES: u64 = 512;
const RECORD_BYTES: usize = 64;
const MOST_STEPS: usize = 2000;
/// From this size on, a striped message uses all lanes.
const STRIPE_FROM: u64 = 64 * 1024;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let plan = Plan::read(&mut input);
    if plan.one_sided { play::<true>(plan, &mut input) } else { play::<false>(plan, &mut input) }
}

/// A receive as the peer knows it.
#[derive(Clone)]
struct Receive {
    slot: u8,
    first_entry: u64,
    capacities: Vec<u64>,
    optional: bool,
    /// True once the peer has sent an immediate that names the slot.
    heard: bool,
    /// The rest of a faultless peer's immediates for the slot, once it has begun: rail, lane, immediate, bytes.
    left: Option<Vec<(usize, usize, u32, u32)>>,
    /// `None` once `test` has reported it done.
    request: Option<RecvRequest>,
}

struct Script<const ONE_SIDED: bool> {
    world: World,
    connection: RecvConnection<Scripted<ONE_SIDED>>,
    plan: Plan,
    shadow: Arc<Region>,
    records: Arc<Region>,
    keys: [MemoryKeys; 2],
    layout: ImmediateLayout,
    next_entry: u64,
    receives: Vec<Receive>,
    /// The number of receives that were taken.
    posted: u32,
    flushes: Vec<RecvRequest>,
    broken: bool,
    /// Its recovery, if it goes on without rails that fail.
    recovery: Option<Recovery>,
}

fn play<const ONE_SIDED: bool>(plan: Plan, input: &mut Input<'_>) {
    let world = World::default();
    let connection = plan.receiver::<ONE_SIDED>(&world);
    let (shadow, records) = {
        let state = world.lock();
        (state.own_region(false).expect("the shadow"), state.own_region(true).expect("the records"))
    };
    let remote = std::array::from_fn(|rail| 0xda7a_0000 | rail as u32);
    let host = MemoryKeys { local: remote, remote, host: true };
    let layout = ImmediateLayout::new(plan.rails);
    let recovery = plan.config.recovers.then(|| Recovery::new(false, plan.lanes));
    let mut script = Script {
        world: world.clone(),
        connection,
        plan,
        shadow,
        records,
        // Only a one-sided fabric has memory that is flushed.
        keys: [host, MemoryKeys { host: !ONE_SIDED, ..host }],
        layout,
        next_entry: 0,
        receives: Vec::new(),
        posted: 0,
        flushes: Vec::new(),
        broken: false,
        recovery,
    };
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        script.step(input);
        script.check_posted();
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
        match what % 13 {
            0 | 1 => self.irecv(input),
            2 => self.test(input),
            3 | 4 => self.deliver(input),
            5 => {
                let (rail, lane, bits, bytes) = (input.u8(), input.u8(), input.u32(), input.u32());
                self.immediate(usize::from(rail), usize::from(lane), bits, bytes);
            }
            6 => {
                let (rail, lane, slot, mask) = (input.u8(), input.u8(), input.u8(), input.u8());
                let bytes = size(input) as u32;
                let size_q = match input.u8() {
                    0xff => self.layout.all_ones(),
                    extra => self.layout.size_q(u64::from(bytes)).wrapping_add(u32::from(extra & 1)),
                };
                let mask = RailSet::from_bits(mask) & RailSet::first_of(self.plan.rails);
                let size_q = size_q.min(self.layout.all_ones());
                let bits = self.layout.encode(Immediate { slot: Slot::new(slot), mask, size_q });
                self.immediate(usize::from(rail), usize::from(lane), bits, bytes);
            }
            7 => {
                let slot = usize::from(input.u8());
                let sizes: Vec<u8> = (0..MAX_BUFFERS).flat_map(|_| size(input).to_le_bytes()).collect();
                self.records.write(slot * RECORD_BYTES, &sizes);
            }
            8 => {
                let length = 1 + usize::from(input.u8()) % 128;
                let at = usize::from(input.u16()) % (SLOTS * RECORD_BYTES - length);
                self.records.write(at, input.take(length));
            }
            9 => self.flush(input),
            10 => {
                let mut state = self.world.lock();
                for rail in &mut state.rails {
                    (0..rail.lanes()).for_each(|lane| while rail.complete(lane) {});
                }
            }
            11 => {
                let (rail, lane) = (usize::from(input.u8()), usize::from(input.u8()));
                let mut state = self.world.lock();
                let rail = state.newest(rail, self.plan.rails);
                rail.fail(lane % rail.lanes());
            }
            _ => {
                if input.u8() == 0xff {
                    self.connection.fate().set_lost(Error::peer("the script says that the peer is gone"));
                }
            }
        }
    }

    /// Takes a step in the recovery of a rail. The peer may say in it that it had sent a part, or that nobody needs it.
    fn recover(&mut self, input: &mut Input<'_>) {
        let Some(recovery) = &mut self.recovery else { return };
        recovery.last_sequence = self.posted.wrapping_sub(1);
        recovery.step(&mut self.connection, input);
        let named = std::mem::take(&mut recovery.named);
        let is_named = |receive: &&mut Receive| named.contains(&receive.slot);
        self.receives.iter_mut().filter(is_named).for_each(|receive| receive.heard = true);
    }

    fn irecv(&mut self, input: &mut Input<'_>) {
        let head = input.u8();
        let (count, optional) = (1 + usize::from(head & 7), head & 8 != 0);
        let keys = self.keys[usize::from(head >> 4 & 1)];
        let capacities: Vec<u64> = (0..count).map(|_| size(input)).collect();
        let address = |index: usize| 0x1000_0000_0000 + ((self.next_entry + index as u64) << 31);
        let buffers: Vec<_> = capacities
            .iter()
            .enumerate()
            .map(|(index, size)| Incoming { address: address(index), size: *size, tag: index as u32 % 3, keys: &keys })
            .collect();
        let was_broken = self.broken;
        let result = self.connection.irecv(&buffers, optional);
        assert!(!was_broken || result.is_err(), "a broken connection receives no more");
        match result {
            Err(error) => self.broke(&error),
            Ok(None) => {}
            Ok(Some(request)) => {
                let slot = request.index() as u8;
                // The slot's last use has ended: a slot is reused only when everything of it has arrived.
                self.receives.retain(|receive| receive.slot != slot);
                // The peer may have spoken for the slot before it was opened; a later poll cannot tell.
                let of_slot = |immediate| self.layout.decode(immediate).slot.number() == slot;
                let heard = self.world.lock().rails.iter().any(|rail| rail.has_waiting(of_slot));
                self.receives.push(Receive {
                    slot,
                    first_entry: self.next_entry,
                    capacities,
                    optional: optional && ONE_SIDED,
                    heard,
                    left: None,
                    request: Some(request),
                });
                self.next_entry += count as u64;
                self.posted += 1;
                let oldest = self.receives.iter().find(|receive| !receive.heard).map(|receive| receive.first_entry);
                assert!(
                    oldest.is_none_or(|oldest| self.next_entry - oldest <= ENTRIES),
                    "CTS entry {} was written over, though nothing was heard of its slot",
                    oldest.unwrap_or(0)
                );
            }
        }
    }

    /// Checks every CTS posted since the last call.
    fn check_posted(&mut self) {
        let mut state = self.world.lock();
        for rail in &mut state.rails {
            let index = rail.port();
            // Empty writes ask if the rail carries anything, or follow copies of CTS.
            let posted = std::mem::take(&mut rail.posted);
            for write in posted.into_iter().filter(|write| write.local.length > 0) {
                let length = u64::from(write.local.length);
                let offset = self.shadow.offset_of(write.local.address, length).expect("a receiver posts only CTS");
                assert_eq!(write.remote.address, PEER_STREAM + offset as u64, "an entry goes to its place");
                assert_eq!(write.remote.key, peer_key(index), "an entry goes with its rail's key");
                assert_eq!((offset as u64 % ENTRY_BYTES, length % ENTRY_BYTES), (0, 0), "entries are written whole");
                assert_eq!(write.immediate, None);
            }
        }
    }

    /// Takes a faultless peer's next step for a slot: sends all that is left, or one immediate.
    fn deliver(&mut self, input: &mut Input<'_>) {
        let (which, whole) = (input.u8(), input.u8());
        let open: Vec<usize> = (0..self.receives.len())
            .filter(|index| self.receives[*index].left.as_ref().is_none_or(|left| !left.is_empty()))
            .collect();
        if open.is_empty() {
            return;
        }
        let index = open[usize::from(which) % open.len()];
        if self.receives[index].left.is_none() {
            let left = self.faultless(index, input);
            self.receives[index].left = Some(left);
        }
        let left = self.receives[index].left.as_mut().expect("set above");
        let count = if whole.is_multiple_of(2) { left.len() } else { 1 };
        for (rail, lane, bits, bytes) in left.drain(..count).collect::<Vec<_>>() {
            self.immediate(rail, lane, bits, bytes);
        }
    }

    /// Returns a faultless peer's immediates for a slot, and writes its record if it needs one.
    fn faultless(&mut self, index: usize, input: &mut Input<'_>) -> Vec<(usize, usize, u32, u32)> {
        let Receive { slot, capacities, .. } = self.receives[index].clone();
        let sizes: Vec<u64> = capacities.iter().map(|capacity| size(input).min(*capacity)).collect();
        let usable = RailSet::first_of(self.plan.rails);
        let said = RailSet::from_bits(input.u8()) & usable;
        let mask = if said.is_empty() { usable } else { said };
        let in_record = input.u8() & 1 != 0 || sizes.len() > 1;
        let size_q = if in_record { self.layout.all_ones() } else { self.layout.size_q(sizes[0]) };
        let all_ones = size_q == self.layout.all_ones();
        if all_ones {
            let mut record = [0; MAX_BUFFERS];
            record[..sizes.len()].copy_from_slice(&sizes);
            let bytes: Vec<u8> = record.iter().flat_map(|size| size.to_le_bytes()).collect();
            self.records.write(usize::from(slot) * RECORD_BYTES, &bytes);
        }
        let bits = self.layout.encode(Immediate { slot: Slot::new(slot), mask, size_q });
        let striped = self.plan.config.striped && (all_ones || u64::from(size_q) >= STRIPE_FROM / GRANULE);
        let lanes = if striped { usize::from(self.plan.lanes) } else { 1 };
        let mut left = Vec::new();
        for (order, rail) in mask.iter().enumerate() {
            for lane in 0..lanes {
                let bytes = if order == 0 && lane == 0 { sizes[0] as u32 } else { 0 };
                left.push((rail.index(), lane, bits, bytes));
            }
        }
        left
    }

    fn immediate(&mut self, rail: usize, lane: usize, bits: u32, bytes: u32) {
        let slot = self.layout.decode(bits).slot.number();
        self.receives.iter_mut().filter(|receive| receive.slot == slot).for_each(|receive| receive.heard = true);
        let mut state = self.world.lock();
        let rail = state.newest(rail, self.plan.rails);
        rail.receive(lane % rail.lanes(), bits, bytes);
    }

    fn test(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.u8());
        let in_progress: Vec<usize> =
            (0..self.receives.len()).filter(|index| self.receives[*index].request.is_some()).collect();
        if let Some(index) = self.flushes.len().checked_sub(1).filter(|_| which & 0x80 != 0) {
            match self.connection.test(self.flushes[which % (index + 1)]) {
                Ok(None) => {}
                Ok(Some(sizes)) => {
                    assert!(sizes.is_empty(), "a flush has no sizes");
                    self.flushes.swap_remove(which % (index + 1));
                }
                Err(error) => self.broke(&error),
            }
            return;
        }
        if in_progress.is_empty() {
            let request = RecvRequest::from_index(which % RecvRequest::COUNT);
            if self.flushes.iter().all(|flush| *flush != request) {
                assert!(self.connection.test(request).is_err(), "a request that is not in progress is an error");
            }
            return;
        }
        let receive = &mut self.receives[in_progress[which % in_progress.len()]];
        match self.connection.test(receive.request.expect("in progress")) {
            Ok(None) => {}
            Ok(Some(sizes)) => {
                assert!(receive.heard || receive.optional, "a receive is done of which nothing was heard");
                assert_eq!(sizes.len(), receive.capacities.len());
                let fits = sizes.iter().zip(&receive.capacities).all(|(size, capacity)| size <= capacity);
                assert!(fits, "sizes {sizes:?} in buffers of {:?}", receive.capacities);
                receive.request = None;
            }
            Err(error) => self.broke(&error),
        }
    }

    fn flush(&mut self, input: &mut Input<'_>) {
        let (address, size) = (0x1000_0000_0000 + (u64::from(input.u16()) << 31), size(input));
        let keys = self.keys[usize::from(input.u8() & 1)];
        if self.flushes.len() == RecvRequest::COUNT - SLOTS {
            return;
        }
        match self.connection.iflush(&[Incoming { address, size, tag: 0, keys: &keys }]) {
            Ok(Flushed::Nothing) => {}
            Ok(Flushed::Pending(request)) => {
                assert!(!self.flushes.contains(&request), "a request is given out once");
                self.flushes.push(request);
            }
            Err(error) => self.broke(&error),
        }
    }

    fn broke(&mut self, error: &Error) {
        let text = error.to_string();
        assert!(text.contains(' ') && !text.contains(char::is_control), "{text:?}");
        self.broken = true;
    }
}
