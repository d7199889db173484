//! A device's asynchronous events in words.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use railweave_fabric::{EventSource, PortEvent};

use crate::{About, Device, Event, sys};

/// The events of one device.
pub struct DeviceEvents {
    device: Arc<Device>,
    descriptor: RawFd,
}

impl DeviceEvents {
    /// # Errors
    /// When the device's descriptor cannot be made non-blocking.
    pub fn new(device: &Arc<Device>) -> io::Result<Self> {
        Ok(Self { descriptor: device.event_descriptor()?, device: Arc::clone(device) })
    }
}

impl EventSource for DeviceEvents {
    fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn take_event(&self) -> Option<PortEvent> {
        let event = self.device.next_event()?;
        Some(describe(self.device.name(), event))
    }
}

/// An event of the device of this name: ibv_get_async_event(3).
fn describe(device: &str, event: Event) -> PortEvent {
    let (is_fault, what) = match event.kind {
        sys::EVENT_PORT_ERR => (
            true,
            "the port is down: its cable is out, its switch port is off, or it was disabled; connections over it fail when \
             their time-outs are over",
        ),
        sys::EVENT_PORT_ACTIVE => (false, "the port is up"),
        sys::EVENT_DEVICE_FATAL => {
            (true, "the device failed and works no more; look at the kernel log, it needs a reset or a reboot")
        }
        sys::EVENT_QP_FATAL => (true, "the queue pair failed; its connection reports the cause"),
        sys::EVENT_QP_REQ_ERR => (true, "the peer sent a request that makes no sense; its connection fails"),
        sys::EVENT_QP_ACCESS_ERR => {
            (true, "the peer asked for memory that it may not touch; its connection fails (see the peer's log)")
        }
        sys::EVENT_CQ_ERR => (true, "a completion queue overflowed or failed; its connection fails"),
        sys::EVENT_SRQ_ERR => (true, "a receive queue failed; its connection fails"),
        sys::EVENT_LID_CHANGE => (true, "the port's LID changed (a new subnet manager?); connections over it fail"),
        sys::EVENT_GID_CHANGE => {
            (false, "the port's GID table changed: an address came or went; connections over an address that went fail")
        }
        sys::EVENT_PKEY_CHANGE => (false, "the port's partition keys changed"),
        sys::EVENT_SM_CHANGE => (false, "the port has a new subnet manager"),
        sys::EVENT_CLIENT_REREGISTER => (false, "the subnet manager asks its clients to register again"),
        sys::EVENT_COMM_EST | sys::EVENT_QP_LAST_WQE_REACHED | sys::EVENT_SRQ_LIMIT_REACHED => {
            (false, "an event of no consequence")
        }
        _ => (false, "an event that this version does not know"),
    };
    let place = match event.about {
        About::Device => device.to_owned(),
        About::Port(port) => format!("{device} port {port}"),
        About::QueuePair(number) => format!("{device} queue pair {number:#x}"),
    };
    PortEvent { is_fault, message: format!("{place}: {what} (event {})", event.kind) }
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
    }

    #[test]
    fn every_event_has_words() {
        for kind in -1..30 {
            assert!(describe("x", Event { kind, about: About::Device }).message.len() > 20);
        }
    }
}
