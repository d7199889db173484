//! The library's own function, which reads counters, reports on objects and breaks things. `FakeVerbs` calls it.

use std::ffi::{CStr, CString, c_char, c_int};

use railweave_fabric_verbs::sys;
use serde::Serialize;
use serde_json::Value;

use crate::complaints::last;
use crate::description::{DeviceFacts, PortFacts};
use crate::events::Source;
use crate::gids::GidFacts;
use crate::requests::{Link, Request};
use crate::world::{self, OpenDevice, PairEntry, World};

/// See [`crate::requests::AskFn`].
///
/// # Safety
/// `request` must be a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_ibverbs(request: *const c_char) -> *mut c_char {
    // SAFETY: the caller vouches for it.
    let request = unsafe { CStr::from_ptr(request) }.to_string_lossy();
    let answer = serde_json::from_str(&request).map_err(|error| error.to_string()).and_then(answer);
    let text = serde_json::to_string(&answer).unwrap_or_default();
    let text = CString::new(text).unwrap_or_default(); // JSON contains no zero byte
    // SAFETY: the argument is a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

fn answer(request: Request) -> Result<Value, String> {
    if let Request::Complaint = request {
        return value(last()); // without the lock: a call that waits may hold it
    }
    if let Request::Describe(Some(text)) = &request {
        world::described(text)?;
    }
    let mut world = world::lock();
    let (done, what) = match request {
        Request::Complaint => return Ok(Value::Null),
        Request::Describe(text) => {
            world.describe(text);
            return Ok(Value::Null);
        }
        Request::Counts => return value(world.counts()),
        Request::Open => return value(world.open()),
        Request::QueuePairs => return value(world.reports()),
        Request::Raise { device, kind, number, only } => (
            raise(&world, &device, kind, number, only),
            match device.as_str() {
                "" => format!("queue pair {number:#x}"),
                _ => format!("open device {device} or queue pair {number:#x} of it"),
            },
        ),
        Request::PortState { device, port, state } => {
            let kind = if state == sys::PORT_ACTIVE { sys::EVENT_PORT_ACTIVE } else { sys::EVENT_PORT_ERR };
            let changed = world.change(&device, |facts| change_port(facts, port, |port| port.state = state).is_some());
            (changed && tell(&world, &device, kind, port), format!("port {device}:{port}"))
        }
        Request::Gid { device, port, index, gid } => {
            let changed = world.change(&device, |facts| {
                change_port(facts, port, |port| set_gid(port, index, gid.map(sys::Gid))) == Some(true)
            });
            (changed && tell(&world, &device, sys::EVENT_GID_CHANGE, port), format!("GID {index} at {device}:{port}"))
        }
        Request::Silence { device } => (silence(&world, &device), format!("completion queue of {device}")),
        Request::PortLink { device, port, link } => {
            (link_port(&world, &device, port, link), format!("port {device}:{port}"))
        }
        Request::PairLink { number, link } => (link_pair(&mut world, number, link), format!("queue pair {number:#x}")),
    };
    if !done {
        return Err(format!("there is no {what}; see the description and queue_pairs()"));
    }
    world.after_change();
    Ok(Value::Null)
}

fn value(answer: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(answer).map_err(|error| error.to_string())
}

/// Raises an event. Returns false if its subject does not exist.
fn raise(world: &World, device: &str, kind: c_int, number: u32, only: bool) -> bool {
    match kind {
        sys::EVENT_QP_FATAL | sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR if !only => {
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
        | sys::EVENT_SRQ_LIMIT_REACHED => raise_of_pair(world, kind, number),
        sys::EVENT_DEVICE_FATAL => {
            for (_, pair) in world.each_pair().filter(|(entry, _)| !only && entry.device.facts().name == device) {
                pair.break_down(&mut pair.sends.lock(), None);
            }
            world.raise(device, kind, Source::Device)
        }
        _ => u8::try_from(number).is_ok_and(|port| world.raise(device, kind, Source::Port(port))),
    }
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

/// Silences the completion queues of a device. Returns false if it has none.
fn silence(world: &World, device: &str) -> bool {
    let is_of_device = |context: usize| OpenDevice::at(context).device.facts().name == device;
    let queues = world.completion_queues.iter().filter(|(_, used)| is_of_device(used.context));
    queues.map(|(&address, _)| world::completion_queue(address).silence()).count() > 0
}

/// Raises an event about a port in all open contexts of its device, if any.
fn tell(world: &World, device: &str, kind: c_int, port: u8) -> bool {
    world.raise(device, kind, Source::Port(port));
    true
}

fn link_port(world: &World, device: &str, number: u8, link: Link) -> bool {
    let known = world.change(device, |facts| {
        change_port(facts, number, |port| match link {
            Link::Cut => port.cut = true,
            Link::Mend => port.cut = false,
            Link::TimeOut | Link::Take => {}
        })
        .is_some()
    });
    if matches!(link, Link::TimeOut | Link::Take) {
        let on_port = |entry: &PairEntry| entry.attributes.port_num == number && entry.device.facts().name == device;
        world.end_waiting(link, |entry, _| {
            on_port(entry) || world.pair_of(entry.attributes.dest_qp_num).is_some_and(|(peer, _)| on_port(peer))
        });
    }
    known
}

fn link_pair(world: &mut World, number: u32, link: Link) -> bool {
    let Some(&address) = world.numbers.get(&number) else { return false };
    if matches!(link, Link::TimeOut | Link::Take) {
        world.end_waiting(link, |entry, pair| pair.number == number || entry.attributes.dest_qp_num == number);
    } else if let Some(entry) = world.pairs.get_mut(&address) {
        entry.cut = link == Link::Cut;
    }
    true
}

fn change_port<T>(facts: &mut DeviceFacts, number: u8, change: impl FnOnce(&mut PortFacts) -> T) -> Option<T> {
    usize::from(number).checked_sub(1).and_then(|index| facts.ports.get_mut(index)).map(change)
}

/// Sets or empties an entry of the table. Returns false if there is no such entry.
fn set_gid(port: &mut PortFacts, index: usize, gid: Option<sys::Gid>) -> bool {
    let Some(place) = port.gids.get_mut(index) else { return false };
    let (kind, interface) = place.map_or((sys::GID_TYPE_ROCE_V2, 1), |facts| (facts.kind, facts.interface));
    *place = gid.map(|gid| GidFacts { gid, kind, interface });
    true
}
