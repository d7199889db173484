//! All open objects behind one lock, and the effects of queue pairs on each other.
//!
//! Order of locks: this one, then those of queue pairs, then those of receive and completion queues and of events. The
//! data path takes this lock only while it holds no other. To destroy a queue pair or remove a region, a function first
//! makes it unreachable, then raises the epoch, then takes and releases the lock of every queue pair
//! (`let_transfers_finish`): after that no transfer in progress can still use the object.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railweave_fabric_verbs::sys;

use crate::complaints::complain;
use crate::description::{DEFAULT, DeviceFacts, Machine, PortFacts};
use crate::events::Events;
use crate::faults::{Call, Fault};
use crate::pages::{Mapping, Withheld};
use crate::pairs::{Gate, QueuePair, Sends, Wreck, epoch, note_held, take_any_held};
use crate::paths::{self, End, NoWay};
use crate::profile::{PLAIN, Profile};
use crate::queues::{CompletionQueue, SharedReceiveQueue};
use crate::regions;
use crate::reports::{Counts, Open};
use crate::spin::SpinGuard;

/// The variable that names the file that describes the machine.
pub(crate) const DESCRIPTION_VARIABLE: &str = "RAILWEAVE_TEST_MACHINE";

/// The variable that names the profile of devices whose description names none.
const PROFILE_VARIABLE: &str = "RAILWEAVE_TEST_PROFILE";

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);

/// Reads a description. If the profile of the environment is wrong, the error names its variable.
pub(crate) fn described(text: &str) -> Result<Machine, String> {
    let profile = std::env::var_os(PROFILE_VARIABLE).map_or(PLAIN.into(), |name| name.to_string_lossy().into_owned());
    Profile::named(&profile)
        .map_err(|error| format!("{PROFILE_VARIABLE}: {error}; name one, or unset the variable"))?;
    Machine::described(text, &profile).map_err(|error| format!("the description of the machine is wrong: {error}"))
}

/// Takes the lock.
pub(crate) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps for as long as the faults delay this call of `function`, without holding the world's lock.
pub(crate) fn tarry(function: &str, state: Option<c_int>, address: usize) {
    let delay: Duration = {
        let mut world = lock();
        let device = world.device_of(address);
        let call = Call { function, state, device: device.as_deref() };
        world.faults.iter_mut().filter_map(|fault| fault.delay(call)).sum()
    };
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
}

/// A `struct ibv_device`, followed by this library's own data.
#[repr(C)]
pub(crate) struct Device {
    public: sys::Device,
    /// The place of a provider's own functions in libibverbs; NULL belongs to no provider.
    provider: *const c_void,
    facts: Mutex<DeviceFacts>,
}

// SAFETY: the pointers in `public` and `provider` are NULL; all else is plain data or behind a lock.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(facts: DeviceFacts, index: usize) -> Arc<Self> {
        // SAFETY: all zeros is valid for these plain fields.
        let mut public: sys::Device = unsafe { zeroed() };
        public.node_type = 1; // a channel adapter
        public.transport_type = facts.transport;
        let verbs = format!("uverbs{index}");
        write_text(&mut public.name, &facts.name);
        write_text(&mut public.dev_name, &verbs);
        write_text(&mut public.dev_path, &format!("/sys/class/infiniband_verbs/{verbs}"));
        write_text(&mut public.ibdev_path, &format!("/sys/class/infiniband/{}", facts.name));
        Arc::new(Self { public, provider: std::ptr::null(), facts: Mutex::new(facts) })
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, DeviceFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the port with this number; `None` if the device has no such port.
    pub(crate) fn port(&self, number: u32) -> Option<PortFacts> {
        let index = (number as usize).checked_sub(1)?;
        self.facts().ports.get(index).cloned()
    }

    pub(crate) fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).expose_provenance()
    }
}

/// A `struct verbs_context`, followed by this library's own data.
#[repr(C)]
pub(crate) struct OpenDevice {
    pub(crate) verbs: sys::VerbsContext,
    pub(crate) device: Arc<Device>,
    pub(crate) events: Arc<Events>,
}

impl OpenDevice {
    /// Returns the open device whose context is at this address, which must be in the world's map.
    pub(crate) fn at<'world>(context: usize) -> &'world Self {
        // SAFETY: addresses of contexts come out of the world's map; see `world::pair`. The context is a field of an
        // OpenDevice, exposed with the whole.
        unsafe { &*with_exposed_provenance::<Self>(context - Self::CONTEXT) }
    }

    /// The offset of the context.
    pub(crate) const CONTEXT: usize = offset_of!(Self, verbs) + offset_of!(sys::VerbsContext, context);
}

/// An open object and the number of its users.
pub(crate) struct Used {
    /// The open device, by address.
    pub(crate) context: usize,
    /// The number of other objects that need it.
    pub(crate) users: u32,
}

/// The facts about a region that its slot does not hold.
pub(crate) struct RegionEntry {
    pub(crate) context: usize,
    pub(crate) domain: usize,
    pub(crate) slot: usize,
    /// Its length, in bytes.
    pub(crate) length: u64,
    /// The mapping of a dma-buf's memory.
    pub(crate) mapping: Option<Mapping>,
    /// The range withheld from forked children: address and length.
    pub(crate) withheld: Option<(u64, usize)>,
}

/// The facts about a queue pair that the data path does not need.
pub(crate) struct PairEntry {
    pub(crate) context: usize,
    pub(crate) device: Arc<Device>,
    pub(crate) created: sys::QpInitAttributes,
    /// The capabilities granted.
    pub(crate) granted: sys::QpCapabilities,
    pub(crate) domain: usize,
    /// The attributes of all ibv_modify_qp calls since the last reset, merged.
    pub(crate) attributes: sys::QpAttributes,
    pub(crate) ece: Option<sys::Ece>,
    pub(crate) cut: bool,
    /// The serial number of its connection, unique in the process; 0 before RTR.
    pub(crate) incarnation: u64,
    /// The serial number of the peer's connection with which it has exchanged packets; 0 before the first packet.
    /// Atomic because it is written through a shared reference, under the world's lock.
    pub(crate) knows: AtomicU64,
}

// SAFETY: the pointers in `created` belong to the program; they are compared and handed back, never followed.
unsafe impl Send for PairEntry {}

/// The state of the library. Objects are found by their addresses, so that each pointer from a program can be checked
/// before it is followed.
#[derive(Default)]
pub(crate) struct World {
    /// The description given in place of a file.
    pub(crate) given: Option<String>,
    /// The text from which the devices were read.
    source: Option<String>,
    pub(crate) devices: Vec<Arc<Device>>,
    faults: Vec<Fault>,
    /// True once ibv_fork_init has been called.
    pub(crate) minds_forks: bool,
    pub(crate) withheld: Withheld,
    pub(crate) lists: BTreeMap<usize, Vec<Arc<Device>>>,
    pub(crate) contexts: BTreeMap<usize, Arc<Device>>,
    pub(crate) domains: BTreeMap<usize, Used>,
    pub(crate) regions: BTreeMap<usize, RegionEntry>,
    pub(crate) completion_queues: BTreeMap<usize, Used>,
    pub(crate) shared_receive_queues: BTreeMap<usize, Used>,
    pub(crate) pairs: BTreeMap<usize, PairEntry>,
    /// The address of each queue pair, by its number.
    pub(crate) numbers: BTreeMap<u32, usize>,
    pub(crate) last_number: u32,
    pub(crate) last_incarnation: u64,
    /// The free slots of the table of regions, the longest unused first, so that the use of an old key is detected.
    pub(crate) free_slots: VecDeque<usize>,
    pub(crate) slots_used: usize,
    pub(crate) slot_uses: BTreeMap<usize, u32>,
    /// The counts of destroyed queues, by the name of their device.
    past: BTreeMap<String, Counts>,
}

impl World {
    /// Reads the description again. If its text is the same, devices and faults keep all changes made since.
    pub(crate) fn refresh(&mut self) -> Result<(), c_int> {
        let text = match (&self.given, std::env::var_os(DESCRIPTION_VARIABLE)) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => std::fs::read_to_string(&path).map_err(|error| {
                let path = path.display();
                complain(format_args!(
                    "{DESCRIPTION_VARIABLE} is {path}, which cannot be read: {error}; name a file that describes a \
                     machine, or unset the variable"
                ));
                error.raw_os_error().unwrap_or(libc::EINVAL)
            })?,
            (None, None) => DEFAULT.to_owned(),
        };
        if self.source.as_ref() == Some(&text) {
            return Ok(());
        }
        let machine = described(&text).map_err(|error| {
            complain(format_args!("{error}"));
            libc::EINVAL
        })?;
        self.devices =
            machine.devices.into_iter().enumerate().map(|(index, facts)| Device::new(facts, index)).collect();
        self.faults = machine.faults;
        self.source = Some(text);
        Ok(())
    }

    /// Replaces the file by this description, or with `None` goes back to the file. The next list of devices reads it,
    /// even if the text is the same.
    pub(crate) fn describe(&mut self, text: Option<String>) {
        self.given = text;
        self.source = None;
    }

    /// Fails if a fault strikes this call of `function`.
    pub(crate) fn strike(&mut self, function: &str) -> Result<(), c_int> {
        self.strike_in(Call { function, state: None, device: None })
    }

    /// Fails if a fault strikes this call.
    pub(crate) fn strike_in(&mut self, call: Call<'_>) -> Result<(), c_int> {
        // Every fault counts the call, even after one has struck.
        let struck: Vec<c_int> = self.faults.iter_mut().filter_map(|fault| fault.strike(call)).collect();
        struck.first().map_or(Ok(()), |&errno| Err(errno))
    }

    /// Returns the name of a queue pair's device; `None` if there is no queue pair at this address.
    pub(crate) fn device_of(&self, address: usize) -> Option<String> {
        self.pairs.get(&address).map(|entry| entry.device.facts().name.clone())
    }

    /// Returns true if calls of `function` may fail on demand.
    pub(crate) fn has_fault(&self, function: &str) -> bool {
        self.faults.iter().any(|fault| fault.is_of(function))
    }

    /// Returns the numbers of open objects, and their sizes.
    pub(crate) fn open(&self) -> Open {
        let own = self.pairs.values().map(|entry| {
            let receives = if entry.created.srq.is_null() { entry.granted.max_recv_wr } else { 0 };
            u64::from(entry.granted.max_send_wr) + u64::from(receives)
        });
        let shared = self.shared_receive_queues.keys().map(|&queue| shared_receive_queue(queue).queue.places() as u64);
        Open {
            device_lists: self.lists.len() as u32,
            contexts: self.contexts.len() as u32,
            domains: self.domains.len() as u32,
            regions: self.regions.len() as u32,
            completion_queues: self.completion_queues.len() as u32,
            shared_receive_queues: self.shared_receive_queues.len() as u32,
            queue_pairs: self.pairs.len() as u32,
            region_bytes: self.regions.values().map(|region| region.length).sum(),
            work_places: own.chain(shared).sum(),
            completion_places: self.completion_queues.keys().map(|&queue| completion_queue(queue).places()).sum(),
        }
    }

    /// Returns the work done, by the name of the device; idle devices are included.
    pub(crate) fn counts(&self) -> BTreeMap<String, Counts> {
        let mut counts = self.past.clone();
        let mut of = |device: &Device, count: &dyn Fn(&mut Counts)| {
            count(counts.entry(device.facts().name.clone()).or_default());
        };
        self.devices.iter().for_each(|device| of(device, &|_| ()));
        self.each_pair().for_each(|(entry, pair)| of(&entry.device, &|counts| pair.count(counts)));
        for (&address, used) in &self.completion_queues {
            of(&OpenDevice::at(used.context).device, &|counts| completion_queue(address).count(counts));
        }
        for (&address, used) in &self.shared_receive_queues {
            of(&OpenDevice::at(used.context).device, &|counts| shared_receive_queue(address).queue.count(counts));
        }
        counts
    }

    /// Returns the counts of an open device's destroyed queues.
    pub(crate) fn past(&mut self, context: usize) -> Result<&mut Counts, c_int> {
        let device = self.context(context)?.device.facts().name.clone();
        Ok(self.past.entry(device).or_default())
    }

    /// Returns all queue pairs.
    pub(crate) fn each_pair(&self) -> impl Iterator<Item = (&PairEntry, &QueuePair)> {
        self.pairs.iter().map(|(&address, entry)| (entry, pair(address)))
    }

    /// Returns the open queue pair with this number; `None` if there is none.
    pub(crate) fn pair_of(&self, number: u32) -> Option<(&PairEntry, &QueuePair)> {
        let address = self.numbers.get(&number)?;
        Some((self.pairs.get(address)?, pair(*address)))
    }

    /// Returns the open device behind a pointer from a program; fails if the pointer is unknown.
    pub(crate) fn context(&self, address: usize) -> Result<&OpenDevice, c_int> {
        if self.contexts.contains_key(&address) { Ok(OpenDevice::at(address)) } else { Err(unknown("open device")) }
    }

    /// Takes a queue pair's lock and updates its gate.
    pub(crate) fn look<'pair>(&self, pair: &'pair QueuePair) -> SpinGuard<'pair, Sends> {
        let mut sends = pair.sends.lock();
        if self.find_way(pair, &mut sends) && !sends.held.is_empty() {
            sends.gate = Gate::Held;
        }
        sends
    }

    /// Carries out or fails all pending work whose way is no longer blocked.
    pub(crate) fn carry_on(&self) {
        if !take_any_held() {
            return;
        }
        loop {
            let mut wrecks = Vec::new();
            for (_, pair) in self.each_pair() {
                let mut sends = pair.sends.lock();
                if sends.held.is_empty() {
                    continue;
                }
                let open = self.find_way(pair, &mut sends);
                match sends.gate {
                    Gate::Lost => {
                        let loss = sends.loss;
                        pair.fail_oldest(&mut sends, loss);
                    }
                    _ => pair.drive(&mut sends, open),
                }
                if !sends.held.is_empty() {
                    note_held();
                }
                wrecks.extend(sends.wreck.take());
            }
            if wrecks.is_empty() {
                return;
            }
            wrecks.into_iter().for_each(|wreck| self.drag_along(wreck));
        }
    }

    /// Applies the effects of a failure to the peer and to pending work.
    pub(crate) fn apply(&self, wreck: Wreck) {
        self.drag_along(wreck);
        self.carry_on();
    }

    /// Waits until every transfer that is in progress has ended.
    pub(crate) fn let_transfers_finish(&self) {
        self.each_pair().for_each(|(_, pair)| drop(pair.sends.lock()));
    }

    fn drag_along(&self, wreck: Wreck) {
        if let Some((number, event)) = wreck.peer
            && let Some((_, pair)) = self.pair_of(number)
        {
            pair.break_down(&mut pair.sends.lock(), Some(event));
        }
    }

    /// Sets the gate. Returns true if the peer can be reached.
    fn find_way(&self, pair: &QueuePair, sends: &mut Sends) -> bool {
        sends.epoch = epoch();
        sends.gate = match pair.state() {
            sys::QPS_RTS => match self.way(pair.number, sends) {
                Ok(()) => Gate::Open,
                Err(NoWay::Cut) => Gate::Held,
                Err(NoWay::Lost { status, reason }) => {
                    complain(format_args!("{reason}"));
                    sends.loss = status;
                    Gate::Lost
                }
            },
            sys::QPS_ERR => Gate::Broken,
            _ => Gate::Shut,
        };
        sends.gate == Gate::Open
    }

    fn way(&self, number: u32, sends: &mut Sends) -> Result<(), NoWay> {
        let own = self.pair_of(number).and_then(|(entry, pair)| Some((entry, pair, entry.port()?)));
        let Some((own, own_pair, own_port)) = own else {
            return Err(NoWay::Lost { status: sys::WC_GENERAL_ERR, reason: format!("queue pair {number:#x} is gone") });
        };
        let peer = self.pair_of(own.attributes.dest_qp_num);
        let peer = peer.and_then(|(entry, pair)| Some((entry, pair, entry.port()?)));
        let to = peer.as_ref().map(|(entry, pair, port)| entry.end(pair, port));
        paths::check(&own.end(own_pair, &own_port), to.as_ref())?;
        if let Some((entry, pair, _)) = &peer {
            own.knows.store(entry.incarnation, Ordering::Relaxed);
            entry.knows.store(own.incarnation, Ordering::Relaxed);
            sends.peer = *pair;
            sends.peer_access = entry.attributes.qp_access_flags;
            let (asked, served) = (own.attributes.max_rd_atomic, entry.attributes.max_dest_rd_atomic);
            sends.reads = (1..=served).contains(&asked);
        }
        sends.max_message = own_port.longest_message();
        sends.rnr_retry = own.attributes.rnr_retry;
        Ok(())
    }

    /// Takes a free slot for a region. Returns its index and the number of its uses, this one included.
    pub(crate) fn take_slot(&mut self) -> Result<(usize, u32), c_int> {
        // Slot 0 stays free, so that no region has key 0.
        let slot = if self.slots_used + 1 < regions::SLOTS {
            self.slots_used += 1;
            self.slots_used
        } else {
            self.free_slots.pop_front().ok_or(libc::ENOMEM)?
        };
        let uses = self.slot_uses.entry(slot).or_default();
        *uses = uses.wrapping_add(1);
        Ok((slot, *uses))
    }
}

impl PairEntry {
    /// Returns a copy of its port; `None` before INIT.
    fn port(&self) -> Option<PortFacts> {
        self.device.port(self.attributes.port_num.into())
    }

    fn end<'entry>(&'entry self, pair: &QueuePair, port: &'entry PortFacts) -> End<'entry> {
        End {
            number: pair.number,
            state: pair.state(),
            attributes: &self.attributes,
            port,
            ece: self.ece,
            cut: self.cut,
            incarnation: self.incarnation,
            knows: self.knows.load(Ordering::Relaxed),
        }
    }
}

/// Complains about a pointer that leads to no open object, and returns EINVAL.
pub(crate) fn unknown(what: &str) -> c_int {
    complain(format_args!("a pointer to no {what} was passed: it was never created, or is destroyed already"));
    libc::EINVAL
}

/// Returns the queue pair at an address in the world's map.
pub(crate) fn pair<'world>(address: usize) -> &'world QueuePair {
    // SAFETY: the address comes out of the world's map. The object is freed only after it has left the map, under the
    // world's lock, which the caller holds.
    unsafe { &*with_exposed_provenance(address) }
}

/// Returns the completion queue at an address in the world's map.
pub(crate) fn completion_queue<'world>(address: usize) -> &'world CompletionQueue {
    // SAFETY: as above.
    unsafe { &*with_exposed_provenance(address) }
}

/// Returns the shared receive queue at an address in the world's map.
pub(crate) fn shared_receive_queue<'world>(address: usize) -> &'world SharedReceiveQueue {
    // SAFETY: as above.
    unsafe { &*with_exposed_provenance(address) }
}

/// Writes a C string, truncated to the size of the field.
pub(crate) fn write_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1; // the field is zeroed: the terminator is there already
    for (place, byte) in field.iter_mut().zip(text.bytes().take(room)) {
        *place = byte as c_char;
    }
}
