//! Devices: listing, opening, and querying their properties.

use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::ptr;
use std::sync::Arc;

use railweave_fabric_verbs::sys;

use crate::data_path::{
    poll_cq, poll_cq_or_fail, post_recv, post_recv_or_fail, post_send, post_send_or_fail, post_srq_recv,
    post_srq_recv_or_fail,
};
use crate::description::{DeviceFacts, PortFacts};
use crate::events::{Events, Source};
use crate::world::{Device, OpenDevice, World, unknown, write_text};

/// The size of the part of `struct ibv_port_attr` that the library's ibv_query_port writes, in bytes. Programs compiled
/// against newer headers call the function in the context instead, which writes the whole structure.
const OLD_PORT_ATTRIBUTES: usize = (offset_of!(sys::PortAttributes, flags) + 1).next_multiple_of(4);

/// A result whose error is an errno value, as ibv_* functions return it.
type Answer<T> = Result<T, c_int>;

impl World {
    pub(crate) fn get_device_list(&mut self) -> Answer<(*mut *mut sys::Device, usize)> {
        self.refresh()?;
        self.strike("get_device_list")?;
        let listed = self.devices.clone();
        let mut pointers: Vec<*mut sys::Device> =
            listed.iter().map(|device| ptr::with_exposed_provenance_mut(device.address())).collect();
        pointers.push(ptr::null_mut());
        let count = listed.len();
        let list = Box::into_raw(pointers.into_boxed_slice()).cast::<*mut sys::Device>();
        self.lists.insert(list.expose_provenance(), listed);
        Ok((list, count))
    }

    pub(crate) fn free_device_list(&mut self, list: *mut *mut sys::Device) {
        let Some(listed) = self.lists.remove(&list.addr()) else {
            unknown("device list");
            return;
        };
        // SAFETY: made by get_device_list with one more pointer than devices, and freed once: it was in the map.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, listed.len() + 1)) });
    }

    pub(crate) fn device(&self, device: *const sys::Device) -> Answer<Arc<Device>> {
        let known = self.lists.values().flatten().chain(self.contexts.values());
        known.into_iter().find(|known| known.address() == device.addr()).cloned().ok_or_else(|| unknown("device"))
    }

    pub(crate) fn open_device(&mut self, device: *mut sys::Device) -> Answer<*mut sys::Context> {
        self.strike("open_device")?;
        let device = self.device(device)?;
        let events = Events::new().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        // SAFETY: all zeros is valid for these plain fields, for absent functions, and for an unlocked mutex.
        let mut verbs: sys::VerbsContext = unsafe { zeroed() };
        verbs.query_port = Some(query_port_in_full);
        verbs.size = size_of::<sys::VerbsContext>();
        let context = &mut verbs.context;
        context.device = ptr::with_exposed_provenance_mut(device.address());
        context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        context.cmd_fd = -1;
        context.async_fd = events.descriptor();
        context.num_comp_vectors = 1;
        let fails = |function| self.has_fault(function);
        context.ops.poll_cq = Some(if fails("poll_cq") { poll_cq_or_fail } else { poll_cq });
        context.ops.post_send = Some(if fails("post_send") { post_send_or_fail } else { post_send });
        context.ops.post_recv = Some(if fails("post_recv") { post_recv_or_fail } else { post_recv });
        context.ops.post_srq_recv = Some(if fails("post_srq_recv") { post_srq_recv_or_fail } else { post_srq_recv });
        let open = Box::new(OpenDevice { verbs, device: device.clone(), events: Arc::new(events) });
        let address = Box::into_raw(open).expose_provenance() + OpenDevice::CONTEXT;
        self.contexts.insert(address, device);
        Ok(ptr::with_exposed_provenance_mut(address))
    }

    pub(crate) fn close_device(&mut self, context: usize) -> Answer<()> {
        self.strike("close_device")?;
        self.context(context)?;
        let used = self.domains.values().chain(self.completion_queues.values()).any(|used| used.context == context)
            || self.pairs.values().any(|entry| entry.context == context);
        if used {
            crate::complaints::complain(format_args!("a device is closed while something on it is still open"));
            return Err(libc::EBUSY);
        }
        self.contexts.remove(&context);
        // SAFETY: made by open_device, and freed once: it was in the map.
        drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<OpenDevice>(context - OpenDevice::CONTEXT)) });
        Ok(())
    }

    pub(crate) fn query_device(&mut self, context: usize) -> Answer<sys::DeviceAttributes> {
        self.strike("query_device")?;
        let facts = self.context(context)?.device.facts();
        // SAFETY: all zeros is valid for these plain fields.
        let mut attributes: sys::DeviceAttributes = unsafe { zeroed() };
        write_text(&mut attributes.fw_ver, "1.0.0");
        attributes.node_guid = facts.guid.to_be();
        attributes.sys_image_guid = facts.system_guid.unwrap_or(facts.guid).to_be();
        attributes.max_mr_size = u64::MAX;
        attributes.page_size_cap = 4096;
        attributes.vendor_id = facts.vendor_id;
        attributes.vendor_part_id = facts.vendor_part_id;
        attributes.max_qp = facts.max_qp as c_int;
        attributes.max_qp_wr = facts.max_qp_wr as c_int;
        attributes.max_sge = facts.max_sge as c_int;
        attributes.max_sge_rd = facts.max_sge as c_int;
        attributes.max_cq = facts.max_cq as c_int;
        attributes.max_cqe = facts.max_cqe as c_int;
        attributes.max_mr = facts.max_mr as c_int;
        attributes.max_pd = facts.max_pd as c_int;
        attributes.max_qp_rd_atom = facts.max_rd_atomic as c_int;
        attributes.max_qp_init_rd_atom = facts.max_rd_atomic as c_int;
        attributes.max_srq = facts.max_srq as c_int;
        attributes.max_srq_wr = if facts.max_srq == 0 { 0 } else { facts.max_srq_wr as c_int };
        attributes.max_srq_sge = if facts.max_srq == 0 { 0 } else { facts.max_sge as c_int };
        attributes.max_pkeys = facts.ports.iter().map(|port| port.pkeys.len()).max().unwrap_or(0) as u16;
        attributes.phys_port_cnt = facts.ports.len() as u8;
        Ok(attributes)
    }

    pub(crate) fn data_direct_path(&mut self, context: usize) -> Answer<String> {
        self.strike("mlx5dv_get_data_direct_sysfs_path")?;
        self.context(context)?.device.facts().data_direct.clone().ok_or(libc::ENODEV)
    }

    pub(crate) fn query_port(&mut self, context: usize, number: u32) -> Answer<sys::PortAttributes> {
        self.strike("query_port")?;
        let port = self.port(context, number)?;
        let up = port.state == sys::PORT_ACTIVE;
        Ok(sys::PortAttributes {
            state: port.state,
            max_mtu: port.max_mtu,
            active_mtu: port.mtu,
            gid_tbl_len: port.gids.len() as c_int,
            max_msg_sz: port.max_message,
            pkey_tbl_len: port.pkeys.len() as u16,
            lid: port.lid,
            max_vl_num: 1,
            active_width: match port.width {
                1 => 1,
                2 => 16,
                _ => 2,
            },
            active_speed: port.speed.code,
            phys_state: if up { 5 } else { 3 },
            link_layer: port.link_layer,
            flags: if port.grh_required { sys::QPF_GRH_REQUIRED } else { 0 },
            ..sys::PortAttributes::default()
        })
    }

    pub(crate) fn query_port_speed(&mut self, context: usize, number: u32) -> Answer<u64> {
        self.strike("query_port_speed")?;
        self.port(context, number)?.stated_speed().ok_or(libc::EOPNOTSUPP)
    }

    pub(crate) fn query_gid(&mut self, context: usize, number: u32, index: u32) -> Answer<sys::Gid> {
        self.strike("query_gid")?;
        let port = self.port(context, number)?;
        let place = port.gids.get(index as usize).ok_or(libc::EINVAL)?;
        Ok(place.map_or(sys::Gid::default(), |facts| facts.gid))
    }

    pub(crate) fn query_gid_ex(&mut self, context: usize, number: u32, index: u32) -> Answer<sys::GidEntry> {
        self.strike("query_gid_ex")?;
        let port = self.port(context, number)?;
        let facts = port.gids.get(index as usize).ok_or(libc::EINVAL)?.ok_or(libc::ENODATA)?;
        Ok(sys::GidEntry {
            gid: facts.gid,
            gid_index: index,
            port_num: number,
            gid_type: facts.kind,
            ndev_ifindex: facts.interface,
        })
    }

    /// Returns the partition key in network order.
    pub(crate) fn query_pkey(&mut self, context: usize, number: u32, index: usize) -> Answer<u16> {
        self.port(context, number)?.pkeys.get(index).map(|key| key.to_be()).ok_or(libc::EINVAL)
    }

    /// Changes a device in the list and in all open contexts. Returns false if no device of this name was changed.
    pub(crate) fn change(&self, name: &str, mut change: impl FnMut(&mut DeviceFacts) -> bool) -> bool {
        let mut all: Vec<&Arc<Device>> = self.devices.iter().chain(self.contexts.values()).collect();
        all.sort_by_key(|device| device.address());
        all.dedup_by_key(|device| device.address());
        let changed = all.into_iter().filter(|device| {
            let mut facts = device.facts();
            facts.name == name && change(&mut facts)
        });
        changed.count() > 0
    }

    /// Raises an event in all open contexts of this device. Returns false if there are none.
    pub(crate) fn raise(&self, name: &str, kind: c_int, source: Source) -> bool {
        let open = self.contexts.keys().map(|&context| OpenDevice::at(context));
        let told = open.filter(|open| {
            let meant = open.device.facts().name == name;
            if meant {
                open.events.raise(kind, source);
            }
            meant
        });
        told.count() > 0
    }

    fn port(&self, context: usize, number: u32) -> Answer<PortFacts> {
        self.context(context)?.device.port(number).ok_or(libc::EINVAL)
    }
}

/// Writes the first `length` bytes of the attributes, or all of them if `length` is larger.
///
/// # Safety
/// `attributes` must have room for `length` bytes.
pub(crate) unsafe fn write_port(port: &sys::PortAttributes, attributes: *mut sys::PortAttributes, length: usize) {
    let length = length.min(size_of::<sys::PortAttributes>());
    // SAFETY: the caller vouches for the room; the source is at least as long.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(port).cast::<u8>(), attributes.cast::<u8>(), length) };
}

/// Writes the older, shorter structure, for callers of the library's ibv_query_port.
///
/// # Safety
/// `attributes` must have room for the older structure.
pub(crate) unsafe fn write_old_port(port: &sys::PortAttributes, attributes: *mut sys::PortAttributes) {
    // SAFETY: the caller vouches for the room.
    unsafe { write_port(port, attributes, OLD_PORT_ATTRIBUTES) };
}

/// The function that the header's inline ibv_query_port calls.
unsafe extern "C" fn query_port_in_full(
    context: *mut sys::Context,
    port: u8,
    attributes: *mut sys::PortAttributes,
    length: usize,
) -> c_int {
    match crate::world::lock().query_port(context.addr(), port.into()) {
        Ok(facts) => {
            // SAFETY: `length` is the caller's room.
            unsafe { write_port(&facts, attributes, length) };
            0
        }
        Err(errno) => errno,
    }
}
