//! Functions that libibverbs has not: to count, to look into, and to break things. `StandIn` wraps them for Rust.

use std::ffi::{CStr, c_char, c_int};

use railweave_abi::stand_in::{DeviceCounts, OpenObjects};
use railweave_fabric_verbs::sys;

use crate::complaints::{complain, last};
use crate::description::{DeviceFacts, GidFacts, Machine, PortFacts};
use crate::events::Source;
use crate::reports::{Counts, Open, QpReport};
use crate::world::{self, OpenDevice, World};

/// What [`stand_in_link`] does to a cable.
pub(crate) const LINK_MEND: c_int = 0;
/// See [`LINK_MEND`].
pub(crate) const LINK_CUT: c_int = 1;
/// See [`LINK_MEND`].
pub(crate) const LINK_TIME_OUT: c_int = 2;

/// Takes a description of the machine in place of the file, from the next ibv_get_device_list on; NULL goes back to
/// the file. Answers 0, or -1 for a description that is wrong; [`stand_in_complaint`] says why.
///
/// # Safety
/// `text` must be a string of C, or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_describe(text: *const c_char) -> c_int {
    // SAFETY: the caller vouches for it.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    if let Some(Err(error)) = text.as_deref().map(|text| Machine::described(text, &world::profile_of_tests())) {
        complain(format_args!("the description of the machine is wrong: {error}"));
        return -1;
    }
    world::lock().describe(text);
    0
}

/// What has been done since the library was loaded.
///
/// # Safety
/// `counts` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_counts(counts: *mut Counts) {
    // SAFETY: the caller vouches for it.
    unsafe { counts.write(Counts::sum(world::lock().counts().values())) };
}

/// As [`stand_in_counts`], for each device, in the order of their names, as far as there is room. Answers how many there are.
///
/// # Safety
/// `devices` must have room for `room` devices.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_device_counts(devices: *mut DeviceCounts, room: usize) -> usize {
    let counts = world::lock().counts();
    for (index, (name, counts)) in counts.iter().take(room).enumerate() {
        // SAFETY: the caller vouches for the room.
        unsafe { devices.add(index).write(counts.of_device(name)) };
    }
    counts.len()
}

/// What is open.
///
/// # Safety
/// `open` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_open(open: *mut Open) {
    // SAFETY: the caller vouches for it.
    unsafe { open.write(world::lock().open()) };
}

/// What is open, and how much it holds.
///
/// # Safety
/// `objects` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_open_objects(objects: *mut OpenObjects) {
    // SAFETY: the caller vouches for it.
    unsafe { objects.write(world::lock().open_objects()) };
}

/// The numbers of all open queue pairs, in rising order, as far as there is room. Answers how many there are.
///
/// # Safety
/// `numbers` must have room for `room` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_queue_pairs(numbers: *mut u32, room: usize) -> usize {
    let world = world::lock();
    for (index, &number) in world.numbers.keys().take(room).enumerate() {
        // SAFETY: the caller vouches for the room.
        unsafe { numbers.add(index).write(number) };
    }
    world.numbers.len()
}

/// One queue pair. Answers 0, or -1 if there is none of this number.
///
/// # Safety
/// `report` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_queue_pair(number: u32, report: *mut QpReport) -> c_int {
    let found = world::lock().report(number);
    // SAFETY: the caller vouches for it.
    done(found.map(|found| unsafe { report.write(found) }).is_some())
}

/// Raises an asynchronous event on all that have the device open. `number` is the port, or for events of queue pairs
/// the queue pair; for an error of a completion or shared receive queue a queue pair that uses it. Errors of queue pairs put these into
/// the error state, a fatal error of the device all of it, unless `only` is not 0: then nothing but the event is there, as
/// when an adapter is gone and completes nothing. Answers 0, or -1 where there is no such thing.
///
/// # Safety
/// `device` must be a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_raise(device: *const c_char, kind: c_int, number: u32, only: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    let name = unsafe { text(device) };
    let world = world::lock();
    done(
        match kind {
            sys::EVENT_QP_FATAL | sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR if only == 0 => {
                world.pair_of(number).map(|(_, pair)| pair.break_down(&mut pair.sends.lock(), Some(kind))).is_some()
            }
            sys::EVENT_QP_FATAL
            | sys::EVENT_QP_REQ_ERR
            | sys::EVENT_QP_ACCESS_ERR
            | sys::EVENT_COMM_EST
            | sys::EVENT_SQ_DRAINED
            | sys::EVENT_QP_LAST_WQE_REACHED
            | sys::EVENT_CQ_ERR
            | sys::EVENT_SRQ_ERR
            | sys::EVENT_SRQ_LIMIT_REACHED => raise_of_pair(&world, kind, number),
            sys::EVENT_DEVICE_FATAL if only != 0 => world.raise(&name, kind, Source::Device),
            sys::EVENT_DEVICE_FATAL => {
                for (_, pair) in world.each_pair().filter(|(entry, _)| entry.device.facts().name == name) {
                    pair.break_down(&mut pair.sends.lock(), None);
                }
                world.raise(&name, kind, Source::Device)
            }
            _ => u8::try_from(number).is_ok_and(|port| world.raise(&name, kind, Source::Port(port))),
        } && {
            world.after_change();
            true
        },
    )
}

/// Sets a port's state, and raises the event that tells of it. Answers 0, or -1 where there is no such port.
///
/// # Safety
/// `device` must be a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_port_state(device: *const c_char, number: u8, state: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    let name = unsafe { text(device) };
    let world = world::lock();
    let changed = world.change(&name, |facts| change_port(facts, number, |port| port.state = state));
    if changed {
        let kind = if state == sys::PORT_ACTIVE { sys::EVENT_PORT_ACTIVE } else { sys::EVENT_PORT_ERR };
        world.raise(&name, kind, Source::Port(number));
        world.after_change();
    }
    done(changed)
}

/// Sets a place of a port's GID table (NULL empties it), and raises the event that tells of it. The type and interface
/// stay; an empty place gets those of RoCE v2 on interface 1. Answers 0, or -1 where there is no such place.
///
/// # Safety
/// `device` must be a string of C, `gid` NULL or a GID.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_port_gid(
    device: *const c_char,
    number: u8,
    index: usize,
    gid: *const sys::Gid,
) -> c_int {
    // SAFETY: the caller vouches for both.
    let (name, gid) = unsafe { (text(device), (!gid.is_null()).then(|| gid.read_unaligned())) };
    let world = world::lock();
    let mut fits = false;
    let set = |port: &mut PortFacts| {
        if let Some(place) = port.gids.get_mut(index) {
            let (kind, interface) = place.map_or((sys::GID_TYPE_ROCE_V2, 1), |facts| (facts.kind, facts.interface));
            *place = gid.map(|gid| GidFacts { gid, kind, interface });
            fits = true;
        }
    };
    let mut set = set;
    let changed = world.change(&name, |facts| change_port(facts, number, &mut set)) && fits;
    if changed {
        world.raise(&name, sys::EVENT_GID_CHANGE, Source::Port(number));
        world.after_change();
    }
    done(changed)
}

/// Cuts the cable of a port (1), mends it (0), or lets the oldest work that waits for a cable time out on each of the port's
/// queue pairs, at both ends (2). Answers 0, or -1 where there is no such port.
///
/// # Safety
/// `device` must be a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_link(device: *const c_char, number: u8, action: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    let name = unsafe { text(device) };
    let world = world::lock();
    if action == LINK_TIME_OUT {
        let on_port =
            |entry: &world::PairEntry| entry.attributes.port_num == number && entry.device.facts().name == name;
        let known = world.change(&name, |facts| change_port(facts, number, |_| ()));
        world.time_out(|entry, _| {
            on_port(entry) || world.pair_of(entry.attributes.dest_qp_num).is_some_and(|(peer, _)| on_port(peer))
        });
        return done(known);
    }
    let changed = world.change(&name, |facts| change_port(facts, number, |port| port.cut = action == LINK_CUT));
    world.after_change();
    done(changed)
}

/// As [`stand_in_link`], for one queue pair and its peer alone. Answers 0, or -1 if there is none of this number.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stand_in_queue_pair_link(number: u32, action: c_int) -> c_int {
    let mut world = world::lock();
    let Some(&address) = world.numbers.get(&number) else { return -1 };
    if action == LINK_TIME_OUT {
        world.time_out(|entry, pair| pair.number == number || entry.attributes.dest_qp_num == number);
        return 0;
    }
    if let Some(entry) = world.pairs.get_mut(&address) {
        entry.cut = action == LINK_CUT;
    }
    world.after_change();
    0
}

/// The last thing that a program did wrong, in words, cut to the room there is and ended by a zero byte. Answers its whole
/// length.
///
/// # Safety
/// `text` must have room for `room` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stand_in_complaint(text: *mut c_char, room: usize) -> usize {
    let complaint = last();
    if let Some(most) = room.checked_sub(1) {
        let length = complaint.len().min(most);
        // SAFETY: the caller vouches for the room, which holds `length` bytes and the zero.
        unsafe {
            std::ptr::copy_nonoverlapping(complaint.as_ptr(), text.cast(), length);
            text.add(length).write(0);
        }
    }
    complaint.len()
}

fn raise_of_pair(world: &World, kind: c_int, number: u32) -> bool {
    let Some((entry, pair)) = world.pair_of(number) else { return false };
    let source = match kind {
        sys::EVENT_SRQ_ERR | sys::EVENT_SRQ_LIMIT_REACHED if entry.created.srq.is_null() => return false,
        sys::EVENT_SRQ_ERR | sys::EVENT_SRQ_LIMIT_REACHED => Source::Srq(entry.created.srq.addr()),
        sys::EVENT_CQ_ERR => Source::Cq(pair.send_cq.expose_provenance()),
        _ => Source::Qp(std::ptr::from_ref(pair).expose_provenance()),
    };
    OpenDevice::at(entry.context).events.raise(kind, source);
    true
}

fn change_port(facts: &mut DeviceFacts, number: u8, change: impl FnOnce(&mut PortFacts)) -> bool {
    let port = usize::from(number).checked_sub(1).and_then(|index| facts.ports.get_mut(index));
    port.map(change).is_some()
}

fn done(done: bool) -> c_int {
    if done { 0 } else { -1 }
}

/// # Safety
/// `name` must be a string of C.
unsafe fn text(name: *const c_char) -> String {
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
