//! A device's asynchronous events, described for the log.

use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use railweave_fabric::{Effect, EventSource, Part, Piece, PortEvent};

use crate::device::{About, Device, Event};
use crate::sys;

/// The events of one device.
pub struct DeviceEvents {
    device: Arc<Device>,
    descriptor: RawFd,
}

impl DeviceEvents {
    /// # Errors
    /// If the device's descriptor cannot be made non-blocking.
    pub fn new(device: &Arc<Device>) -> io::Result<Self> {
        Ok(Self { descriptor: device.event_descriptor()?, device: Arc::clone(device) })
    }
}

impl EventSource for DeviceEvents {
    fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn take_event(&self) -> Option<PortEvent> {
        loop {
            let event = self.device.next_event()?;
            if !is_of_no_consequence(event) {
                return Some(describe(self.device.name(), event));
            }
        }
    }
}

/// Returns true for an event that every set-up or close of a connection causes: it is not reported.
fn is_of_no_consequence(event: Event) -> bool {
    matches!(
        event.kind,
        sys::EVENT_COMM_EST | sys::EVENT_SQ_DRAINED | sys::EVENT_QP_LAST_WQE_REACHED | sys::EVENT_SRQ_LIMIT_REACHED
    )
}

/// Describes an event of the device of this name.
fn describe(device: &str, event: Event) -> PortEvent {
    let (is_fault, is_final, what) = meaning(event.kind);
    let (place, piece) = match event.about {
        About::Device => (device.to_owned(), Piece::Device),
        About::Port(port) => (format!("{device} port {port}"), Piece::Port(port)),
        About::QueuePair(number) => (format!("{device} queue pair {number:#x}"), Piece::QueuePair(number)),
        About::CompletionQueue(id) => (device.to_owned(), Piece::CompletionQueue(id)),
        About::ReceiveQueue(id) => (device.to_owned(), Piece::ReceiveQueue(id)),
    };
    let part = || Part { device: device.into(), piece };
    let effect = match event.kind {
        sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR => Effect::Refused(part()),
        _ if is_final => Effect::Failed(part()),
        sys::EVENT_PORT_ERR => Effect::Down(part()),
        sys::EVENT_PORT_ACTIVE | sys::EVENT_LID_CHANGE | sys::EVENT_GID_CHANGE => Effect::Back,
        _ => Effect::None,
    };
    PortEvent { is_fault, effect, message: format!("{place}: {what} (event {})", event.kind) }
}

/// Returns the meaning of a kind of event (ibv_get_async_event(3)): true if it is a fault, true if its subject has
/// failed for good, and the message.
fn meaning(kind: c_int) -> (bool, bool, &'static str) {
    match kind {
        sys::EVENT_PORT_ERR => (
            true,
            false,
            "the port is down: its cable is out, its switch port is off, or it was disabled; connections go on over \
             other ports, or wait until it is back, unless RAILWEAVE_RECOVERY is 0",
        ),
        sys::EVENT_PORT_ACTIVE => (false, false, "the port is up"),
        sys::EVENT_DEVICE_FATAL => {
            (true, true, "the device failed and no longer works; look at the kernel log, it needs a reset or a reboot")
        }
        sys::EVENT_QP_FATAL => {
            (true, true, "the queue pair failed; look at the kernel log, and at the adapter's firmware")
        }
        sys::EVENT_QP_REQ_ERR => (
            true,
            true,
            "the peer sent a request that makes no sense; install the same version of Railweave on every host",
        ),
        sys::EVENT_QP_ACCESS_ERR => (
            true,
            true,
            "the peer asked for memory that it may not touch; look at the peer's log, and for deregMr of a buffer that \
             was still in use",
        ),
        sys::EVENT_CQ_ERR => (
            true,
            true,
            "a completion queue overflowed or failed; look at the kernel log; if it has no reason, report this with \
             the job's log",
        ),
        sys::EVENT_SRQ_ERR => {
            (true, true, "a receive queue failed; look at the kernel log, and at the adapter's firmware")
        }
        sys::EVENT_LID_CHANGE => {
            (true, false, "the port's LID changed (a new subnet manager?); its rails are opened again")
        }
        sys::EVENT_GID_CHANGE => (
            false,
            false,
            "the port's GID table changed: an address was added or removed; rails over a removed one fail, and are \
             opened again",
        ),
        sys::EVENT_WQ_FATAL => (
            true,
            false,
            "a work queue failed, although Railweave creates none; look at the kernel log, and at the adapter's \
             firmware",
        ),
        sys::EVENT_DEVICE_SPEED_CHANGE => (
            false,
            false,
            "the speed of one of its ports changed; `rdma link` and `ibstat` show it, and messages are \
             still split by the speed at the start",
        ),
        sys::EVENT_PATH_MIG | sys::EVENT_PATH_MIG_ERR => {
            (false, false, "the queue pair changed to another path, or could not, although Railweave gives it only one")
        }
        sys::EVENT_PKEY_CHANGE => (false, false, "the port's partition keys changed"),
        sys::EVENT_SM_CHANGE => (false, false, "the port has a new subnet manager"),
        sys::EVENT_CLIENT_REREGISTER => (false, false, "the subnet manager asks its clients to register again"),
        _ => (false, false, "an event that this version does not know"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_place_and_what_follows() {
        let down = describe("mlx5_0", Event { kind: sys::EVENT_PORT_ERR, about: About::Port(1) });
        assert!(down.is_fault && down.message.starts_with("mlx5_0 port 1: the port is down"), "{}", down.message);
        let up = describe("mlx5_0", Event { kind: sys::EVENT_PORT_ACTIVE, about: About::Port(1) });
        assert!(!up.is_fault);
        let broken = describe("mlx5_0", Event { kind: sys::EVENT_QP_FATAL, about: About::QueuePair(0x12) });
        assert!(broken.message.contains("queue pair 0x12"), "{}", broken.message);
        let queue = describe("mlx5_0", Event { kind: sys::EVENT_WQ_FATAL, about: About::Device });
        assert!(queue.is_fault && queue.message.starts_with("mlx5_0: a work queue failed"), "{}", queue.message);
        let speed = describe("mlx5_0", Event { kind: sys::EVENT_DEVICE_SPEED_CHANGE, about: About::Device });
        assert!(!speed.is_fault && speed.message.contains("speed"), "{}", speed.message);
    }

    #[test]
    fn what_failed_is_named_and_a_port_comes_back() {
        let effect = |kind, about| describe("mlx5_0", Event { kind, about }).effect;
        let part = |piece| Part { device: "mlx5_0".into(), piece };
        let failed = |piece| Effect::Failed(part(piece));
        assert_eq!(effect(sys::EVENT_DEVICE_FATAL, About::Device), failed(Piece::Device));
        assert_eq!(effect(sys::EVENT_QP_FATAL, About::QueuePair(7)), failed(Piece::QueuePair(7)));
        for kind in [sys::EVENT_QP_REQ_ERR, sys::EVENT_QP_ACCESS_ERR] {
            assert_eq!(effect(kind, About::QueuePair(7)), Effect::Refused(part(Piece::QueuePair(7))));
        }
        assert_eq!(effect(sys::EVENT_CQ_ERR, About::CompletionQueue(8)), failed(Piece::CompletionQueue(8)));
        assert_eq!(effect(sys::EVENT_SRQ_ERR, About::ReceiveQueue(9)), failed(Piece::ReceiveQueue(9)));
        // Railweave makes no such work queue.
        assert_eq!(effect(sys::EVENT_WQ_FATAL, About::Device), Effect::None);
        assert_eq!(effect(sys::EVENT_DEVICE_SPEED_CHANGE, About::Device), Effect::None);
        assert_eq!(effect(sys::EVENT_PORT_ERR, About::Port(1)), Effect::Down(part(Piece::Port(1))));
        for kind in [sys::EVENT_LID_CHANGE, sys::EVENT_GID_CHANGE, sys::EVENT_PORT_ACTIVE] {
            assert_eq!(effect(kind, About::Port(1)), Effect::Back);
        }
    }

    #[test]
    fn every_event_has_words() {
        for kind in -1..30 {
            let event = Event { kind, about: About::Device };
            if !is_of_no_consequence(event) {
                let message = describe("x", event).message;
                assert_eq!(message.contains("does not know"), !(0..=20).contains(&kind), "{message}");
            }
        }
    }
}
