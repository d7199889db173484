//! Descriptions of events, without versions, and their form in each version.

use super::names::{Algorithm, DataType, Function, Protocol};
use railweave_abi::profiler::{EventType, parts, v1, v2, v3, v4, v5, v6, v7};
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// A user's call of a collective.
#[derive(Clone, Copy, Debug)]
pub struct CollCall {
    /// The collective.
    pub function: Function,
    /// The number of elements that the user gives.
    pub count: usize,
    /// Their type.
    pub data_type: DataType,
    /// The root; 0 for collectives without one.
    pub root: i32,
    /// True if a CUDA graph captures the call.
    pub graph_captured: bool,
}

/// A user's call of a send or receive.
#[derive(Clone, Copy, Debug)]
pub struct P2pCall {
    /// [`Function::SEND`] or [`Function::RECV`].
    pub function: Function,
    /// The number of elements.
    pub count: usize,
    /// Their type.
    pub data_type: DataType,
    /// True if a CUDA graph captures the call.
    pub graph_captured: bool,
}

/// A collective on its way.
#[derive(Clone, Copy, Debug)]
pub struct Coll {
    /// The number of earlier collectives of this kind in the communicator.
    pub sequence: u64,
    /// The collective.
    pub function: Function,
    /// The user's input.
    pub input: *const c_void,
    /// The user's output.
    pub output: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root; 0 for collectives without one.
    pub root: i32,
    /// The type of the elements.
    pub data_type: DataType,
    /// The number of channels.
    pub channels: u8,
    /// Warps per channel.
    pub warps: u8,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
}

/// A send or receive on its way.
#[derive(Clone, Copy, Debug)]
pub struct P2p {
    /// [`Function::SEND`] or [`Function::RECV`].
    pub function: Function,
    /// The user's buffer.
    pub buffer: *mut c_void,
    /// The type of the elements.
    pub data_type: DataType,
    /// The number of elements.
    pub count: usize,
    /// The rank at the other end.
    pub peer: i32,
    /// The number of channels.
    pub channels: u8,
}

/// An event that starts.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) kind: EventType,
    /// The parent from v5 on; before that, an operation has `group` as its parent.
    pub(super) parent: *mut c_void,
    /// The group of an operation.
    pub(super) group: *mut c_void,
    pub(super) rank: c_int,
    /// The communicator's name, which operations have until v3.
    pub(super) name: *const c_char,
    /// The communicator's hash, which operations have until v3.
    pub(super) comm_id: u64,
    pub(super) what: What<'a>,
}

/// The part of a description that depends on the kind of event.
#[derive(Clone, Copy)]
pub(super) enum What<'a> {
    Nothing,
    GroupApi(parts::GroupApi),
    CollApi(&'a CollCall),
    P2pApi(&'a P2pCall),
    KernelLaunch(parts::KernelLaunch),
    Coll(&'a Coll),
    P2p(&'a P2p),
    ProxyOp(parts::ProxyOp),
    ProxyStep(parts::ProxyStep),
    KernelCh(parts::KernelCh),
    NetPlugin(parts::NetPlugin),
}

/// Builds a version's description; `$arms` sets the member of the union for the kinds that not all versions have in
/// one form. The function around it returns `None` for a kind that the version does not have.
macro_rules! describe {
    ($module:ident, $start:ident, $kind:expr, { $($arms:tt)* }) => {{
        // SAFETY: every field is a number, a pointer, a bool or a union of such structures, for all of which zeros are
        // a valid value.
        let mut all: $module::EventDescr = unsafe { MaybeUninit::zeroed().assume_init() };
        all.kind = $kind;
        all.parent_obj = $start.parent;
        all.rank = $start.rank;
        describe!(@arms all, $start, { $($arms)* })
    }};
    (@arms $all:ident, $start:ident, { $($pattern:pat => $member:ident = $value:expr,)* }) => {{
        match $start.what {
            What::Nothing => {}
            What::ProxyOp(op) => $all.event.proxy_op = op,
            What::ProxyStep(step) => $all.event.proxy_step = step,
            $($pattern => $all.event.$member = $value,)*
            #[allow(unreachable_patterns, reason = "the newest versions have every kind")]
            _ => return None,
        }
        Some($all)
    }};
}

/// Builds the collective of a version: the fields of all versions from v2 on, then those that `$more` adds.
macro_rules! coll {
    ($module:ident, $coll:ident, $channels:ident, $($more:tt)*) => {
        $module::Coll {
            seq_number: $coll.sequence,
            func: $coll.function.text().as_ptr(),
            send_buff: $coll.input,
            recv_buff: $coll.output,
            count: $coll.count,
            root: $coll.root,
            datatype: $coll.data_type.text().as_ptr(),
            $channels: $coll.channels,
            n_warps: $coll.warps,
            algo: $coll.algorithm.text().as_ptr(),
            proto: $coll.protocol.text().as_ptr(),
            $($more)*
        }
    };
}

/// Builds the send or receive of a version from v2 on.
macro_rules! p2p {
    ($module:ident, $p2p:ident, $($more:tt)*) => {
        $module::P2p {
            func: $p2p.function.text().as_ptr(),
            buff: $p2p.buffer,
            datatype: $p2p.data_type.text().as_ptr(),
            count: $p2p.count,
            peer: $p2p.peer,
            $($more)*
        }
    };
}

/// Builds the call of a collective of v5 on.
macro_rules! coll_api {
    ($module:ident, $call:ident, $($more:tt)*) => {
        $module::CollApi {
            func: $call.function.text().as_ptr(),
            count: $call.count,
            datatype: $call.data_type.text().as_ptr(),
            root: $call.root,
            stream: std::ptr::null_mut(),
            graph_captured: $call.graph_captured,
            $($more)*
        }
    };
}

/// Builds the call of a send or receive of v5 on.
macro_rules! p2p_api {
    ($module:ident, $call:ident, $($more:tt)*) => {
        $module::P2pApi {
            func: $call.function.text().as_ptr(),
            count: $call.count,
            datatype: $call.data_type.text().as_ptr(),
            stream: std::ptr::null_mut(),
            graph_captured: $call.graph_captured,
            $($more)*
        }
    };
}

/// Builds a description of v5 or v6, which describe the events of this host in one form.
macro_rules! v5_or_v6 {
    ($module:ident, $start:ident) => {
        describe!($module, $start, $start.kind, {
            What::GroupApi(group) => group_api = group,
            What::CollApi(call) => coll_api = coll_api!($module, call,),
            What::P2pApi(call) => p2p_api = p2p_api!($module, call,),
            What::KernelLaunch(launch) => kernel_launch = launch,
            What::Coll(coll) => coll = coll!($module, coll, n_channels, parent_group: $start.group),
            What::P2p(p2p) => p2p = p2p!($module, p2p, n_channels: p2p.channels, parent_group: $start.group),
            What::KernelCh(kernel) => kernel_ch = kernel,
            What::NetPlugin(net) => net_plugin = net,
        })
    };
}

impl Start<'_> {
    /// Returns the kind as the byte that it is until v4. Kinds without a byte of their own are not described there.
    fn byte(&self) -> u8 {
        self.kind.0 as u8
    }

    /// Makes the group the parent of an operation, as it is until v4.
    fn under_group(mut self) -> Self {
        if matches!(self.what, What::Coll(_) | What::P2p(_)) {
            self.parent = self.group;
        }
        self
    }

    pub(super) fn v1(self) -> Option<v1::EventDescr> {
        let start = self.under_group();
        describe!(v1, start, start.byte(), {
            What::Coll(coll) => coll = v1::Coll {
                name: start.name,
                comm_hash: start.comm_id,
                seq_number: coll.sequence,
                func: coll.function.number(),
                send_buff: coll.input,
                recv_buff: coll.output,
                count: coll.count,
                root: coll.root,
                datatype: coll.data_type.number(),
                op: 0,
                traffic_bytes: 0,
                n_max_channels: coll.channels,
                n_warps: coll.warps,
                algo: coll.algorithm.number(),
                proto: coll.protocol.number(),
                is_collnet: 0,
                is_nvls: 0,
            },
            What::P2p(p2p) => p2p = v1::P2p {
                name: start.name,
                comm_hash: start.comm_id,
                func: p2p.function.number(),
                buff: p2p.buffer,
                datatype: p2p.data_type.number(),
                count: p2p.count,
                peer: p2p.peer,
            },
        })
    }

    pub(super) fn v2(self) -> Option<v2::EventDescr> {
        let start = self.under_group();
        describe!(v2, start, start.byte(), {
            What::Coll(coll) => coll = coll!(v2, coll, n_max_channels, name: start.name, comm_hash: start.comm_id,
                traffic_bytes: 0),
            What::P2p(p2p) => p2p = p2p!(v2, p2p, name: start.name, comm_hash: start.comm_id),
        })
    }

    pub(super) fn v3(self) -> Option<v3::EventDescr> {
        let start = self.under_group();
        describe!(v3, start, start.byte(), {
            What::Coll(coll) => coll = coll!(v3, coll, n_max_channels, name: start.name, comm_hash: start.comm_id),
            What::P2p(p2p) => p2p = p2p!(v3, p2p, name: start.name, comm_hash: start.comm_id),
            What::KernelCh(kernel) => kernel_ch = v3::KernelCh { channel_id: kernel.channel_id },
            What::NetPlugin(net) => net_plugin = net,
        })
    }

    pub(super) fn v4(self) -> Option<v4::EventDescr> {
        let start = self.under_group();
        describe!(v4, start, start.byte(), {
            What::Coll(coll) => coll = coll!(v4, coll, n_channels,),
            What::P2p(p2p) => p2p = p2p!(v4, p2p, n_channels: p2p.channels),
            What::KernelCh(kernel) => kernel_ch = kernel,
            What::NetPlugin(net) => net_plugin = net,
        })
    }

    pub(super) fn v5(self) -> Option<v5::EventDescr> {
        v5_or_v6!(v5, self)
    }

    pub(super) fn v6(self) -> Option<v6::EventDescr> {
        v5_or_v6!(v6, self)
    }

    pub(super) fn v7(self) -> Option<v7::EventDescr> {
        describe!(v7, self, self.kind, {
            What::GroupApi(group) => group_api = group,
            What::CollApi(call) => coll_api = coll_api!(v7, call, user_tag: 0),
            What::P2pApi(call) => p2p_api = p2p_api!(v7, call, user_tag: 0),
            What::KernelLaunch(launch) => kernel_launch = launch,
            What::Coll(coll) => coll = coll!(v7, coll, n_channels, parent_group: self.group,
                kernel_variant: std::ptr::null(), is_sym_coll: false, user_tag: 0),
            What::P2p(p2p) => p2p = p2p!(v7, p2p, n_channels: p2p.channels, parent_group: self.group, user_tag: 0),
            What::KernelCh(kernel) => kernel_ch = kernel,
            What::NetPlugin(net) => net_plugin = net,
        })
    }
}
