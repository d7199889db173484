//! The C structures inside reports, field by field, as serde needs them to write and read JSON.

use std::ffi::{c_int, c_uint};

use railweave_fabric_verbs::sys;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(remote = "sys::QpAttributes")]
pub(crate) struct QpAttributes {
    qp_state: c_int,
    cur_qp_state: c_int,
    path_mtu: c_int,
    path_mig_state: c_int,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    #[serde(with = "QpCapabilities")]
    cap: sys::QpCapabilities,
    #[serde(with = "AhAttributes")]
    ah_attr: sys::AhAttributes,
    #[serde(with = "AhAttributes")]
    alt_ah_attr: sys::AhAttributes,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "sys::QpCapabilities")]
pub(crate) struct QpCapabilities {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "sys::AhAttributes")]
struct AhAttributes {
    #[serde(with = "GlobalRoute")]
    grh: sys::GlobalRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "sys::GlobalRoute")]
struct GlobalRoute {
    #[serde(with = "Gid")]
    dgid: sys::Gid,
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "sys::Gid")]
struct Gid([u8; 16]);

#[derive(Serialize, Deserialize)]
#[serde(remote = "sys::Ece")]
pub(crate) struct Ece {
    vendor_id: u32,
    options: u32,
    comp_mask: u32,
}
