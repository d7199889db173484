//! Rails over RDMA.

use std::sync::Arc;

use railweave_fabric::{EventSource, PointerSupport};
use railweave_fabric_verbs::{Device, DeviceEvents, ModifyRetries, OpenPort, Verbs, VerbsConfig, VerbsDomain};
use railweave_options::Options;

use crate::comm::Registrations;
use crate::log;

/// Returns the registrations of each port.
pub(super) fn registrations(options: &Options, ports: Vec<OpenPort>) -> Vec<Arc<Registrations<Verbs>>> {
    let registrations = |port: OpenPort| {
        let config = config(options, port.port().facts.pointers);
        Registrations::new(VerbsDomain::new(port, config, log::info))
    };
    ports.into_iter().map(registrations).collect()
}

/// Returns the configuration of the queue pairs of a port that supports these pointers.
fn config(options: &Options, pointers: PointerSupport) -> VerbsConfig {
    VerbsConfig {
        timeout: options.ack_timeout.value,
        retry_count: options.retry_count.value,
        pkey_index: options.pkey_index.value,
        service_level: options.service_level.value,
        traffic_class: options.traffic_class.value,
        cts_traffic_class: options.cts_traffic_class.value,
        ece: options.ece.value,
        relaxed_ordering: options.relaxed_ordering.value,
        byte_counts: options.byte_counts.value,
        shared_receives: options.shared_receives.value,
        modify_retries: ModifyRetries {
            count: options.modify_retries.value,
            pause: options.modify_retry_pause.value,
            any_error: options.modify_retry_all.value,
        },
        flush: options.flush.value && (pointers.cuda || pointers.dma_buf),
    }
}

/// Returns the event sources of the devices that the ports belong to.
pub(super) fn events(ports: &[OpenPort]) -> Vec<Arc<dyn EventSource>> {
    let mut devices: Vec<&Arc<Device>> = Vec::new();
    for port in ports.iter().map(OpenPort::port) {
        if !devices.iter().any(|device| Arc::ptr_eq(device, &port.device)) {
            devices.push(&port.device);
        }
    }
    let source = |device: &Arc<Device>| match DeviceEvents::new(device) {
        Ok(events) => Some(Arc::new(events) as Arc<dyn EventSource>),
        Err(error) => {
            log::warn(&format!(
                "{}: cannot receive the events of its ports: {error}; a port that goes down is noticed only when its \
                 lanes fail",
                device.name()
            ));
            None
        }
    };
    devices.into_iter().filter_map(source).collect()
}
