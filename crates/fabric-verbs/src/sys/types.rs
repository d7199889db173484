//! The structures of `<infiniband/verbs.h>`.
//!
//! Fields that nothing here reads only keep the layout. Handles that only the library looks into are opaque.
#![allow(missing_docs)] // each type names its manual page; repeating the header field by field would say nothing

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

/// Length of the names in [`Device`].
pub const SYSFS_NAME_MAX: usize = 64;
/// Length of the paths in [`Device`].
pub const SYSFS_PATH_MAX: usize = 256;

/// `struct ibv_device`: ibv_get_device_list(3).
#[repr(C)]
pub struct Device {
    pub ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; SYSFS_NAME_MAX],
    pub dev_name: [c_char; SYSFS_NAME_MAX],
    pub dev_path: [c_char; SYSFS_PATH_MAX],
    pub ibdev_path: [c_char; SYSFS_PATH_MAX],
}

/// The function pointers of [`Context`]: the header's inline functions call through them.
#[repr(C)]
pub struct ContextOps {
    pub compat_query_device: *mut c_void,
    pub compat_query_port: *mut c_void,
    pub compat_alloc_pd: *mut c_void,
    pub compat_dealloc_pd: *mut c_void,
    pub compat_reg_mr: *mut c_void,
    pub compat_rereg_mr: *mut c_void,
    pub compat_dereg_mr: *mut c_void,
    pub alloc_mw: *mut c_void,
    pub bind_mw: *mut c_void,
    pub dealloc_mw: *mut c_void,
    pub compat_create_cq: *mut c_void,
    /// ibv_poll_cq(3).
    pub poll_cq: Option<unsafe extern "C" fn(cq: *mut Cq, entries: c_int, wc: *mut Wc) -> c_int>,
    pub req_notify_cq: *mut c_void,
    pub compat_cq_event: *mut c_void,
    pub compat_resize_cq: *mut c_void,
    pub compat_destroy_cq: *mut c_void,
    pub compat_create_srq: *mut c_void,
    pub compat_modify_srq: *mut c_void,
    pub compat_query_srq: *mut c_void,
    pub compat_destroy_srq: *mut c_void,
    /// ibv_post_srq_recv(3).
    pub post_srq_recv: Option<unsafe extern "C" fn(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int>,
    pub compat_create_qp: *mut c_void,
    pub compat_query_qp: *mut c_void,
    pub compat_modify_qp: *mut c_void,
    pub compat_destroy_qp: *mut c_void,
    /// ibv_post_send(3).
    pub post_send: Option<unsafe extern "C" fn(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int>,
    /// ibv_post_recv(3).
    pub post_recv: Option<unsafe extern "C" fn(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int>,
    pub compat_create_ah: *mut c_void,
    pub compat_destroy_ah: *mut c_void,
    pub compat_attach_mcast: *mut c_void,
    pub compat_detach_mcast: *mut c_void,
    pub compat_async_event: *mut c_void,
}

/// `struct ibv_context`: ibv_open_device(3).
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    /// All ones if the context is the last field of a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// `struct verbs_context`: the fields in front of a [`Context`] whose `abi_compat` is all ones. It grows upwards, so
/// only the last `size` bytes, which end with the context, exist.
#[repr(C)]
pub struct VerbsContext {
    /// Called by ibv_query_port(3).
    pub query_port: Option<
        unsafe extern "C" fn(context: *mut Context, port: u8, attributes: *mut PortAttributes, length: usize) -> c_int,
    >,
    /// `advise_mr` to `close_xrcd`.
    pub others: [*mut c_void; 37],
    pub abi_placeholder: u64,
    pub size: usize,
    pub context: Context,
}

/// `struct ibv_pd`: ibv_alloc_pd(3).
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`: ibv_reg_mr(3).
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub address: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_cq`: ibv_create_cq(3).
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut c_void,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_srq`: ibv_create_srq(3).
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

/// `struct ibv_qp`: ibv_create_qp(3).
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

/// `union ibv_gid`: 16 bytes in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_gid_entry`: ibv_query_gid_ex(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_device_attr`: ibv_query_device(3).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceAttributes {
    pub fw_ver: [c_char; 64],
    /// In network order.
    pub node_guid: u64,
    /// In network order.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`: ibv_query_port(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PortAttributes {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_global_route`: ibv_create_ah(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`: ibv_create_ah(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AhAttributes {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_cap`: ibv_create_qp(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpCapabilities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`: ibv_create_qp(3).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QpInitAttributes {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCapabilities,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`: ibv_modify_qp(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpAttributes {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCapabilities,
    pub ah_attr: AhAttributes,
    pub alt_ah_attr: AhAttributes,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_srq_attr`: ibv_create_srq(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SrqAttributes {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`: ibv_create_srq(3).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SrqInitAttributes {
    pub srq_context: *mut c_void,
    pub attr: SrqAttributes,
}

/// `struct ibv_sge`: ibv_post_send(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sge {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The `rdma` member of the union `wr` in `struct ibv_send_wr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RdmaTarget {
    pub remote_address: u64,
    pub rkey: u32,
}

/// `struct ibv_send_wr`: ibv_post_send(3). Its unions have only the members for RDMA; `others` keeps their length.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// In network order.
    pub imm_data: u32,
    pub rdma: RdmaTarget,
    pub others: [u64; 9],
}

/// `struct ibv_recv_wr`: ibv_post_recv(3).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`: ibv_poll_cq(3).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_ece`: ibv_query_ece(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

/// The union `element` of [`AsyncEvent`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union AsyncElement {
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub srq: *mut Srq,
    pub port_num: c_int,
}

/// `struct ibv_async_event`: ibv_get_async_event(3).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AsyncEvent {
    pub element: AsyncElement,
    pub event_type: c_int,
}
