//! The values of `<infiniband/verbs.h>`, each under the header's name without `IBV_`.
#![allow(missing_docs)] // the header's own names, explained in the manual pages that sys::types names

use std::ffi::{c_int, c_uint};

pub const TRANSPORT_IB: c_int = 0;

pub const LINK_LAYER_UNSPECIFIED: u8 = 0;
pub const LINK_LAYER_INFINIBAND: u8 = 1;
pub const LINK_LAYER_ETHERNET: u8 = 2;

pub const PORT_DOWN: c_int = 1;
pub const PORT_INIT: c_int = 2;
pub const PORT_ARMED: c_int = 3;
pub const PORT_ACTIVE: c_int = 4;

/// In `PortAttributes::flags`.
pub const QPF_GRH_REQUIRED: u8 = 1;

pub const GID_TYPE_IB: u32 = 0;
pub const GID_TYPE_ROCE_V1: u32 = 1;
pub const GID_TYPE_ROCE_V2: u32 = 2;

pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub const ACCESS_RELAXED_ORDERING: c_int = 1 << 20;

pub const QPT_RC: c_int = 2;

pub const QPS_RESET: c_int = 0;
pub const QPS_INIT: c_int = 1;
pub const QPS_RTR: c_int = 2;
pub const QPS_RTS: c_int = 3;
pub const QPS_ERR: c_int = 6;

pub const QP_STATE: c_int = 1;
pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub const QP_PKEY_INDEX: c_int = 1 << 4;
pub const QP_PORT: c_int = 1 << 5;
pub const QP_AV: c_int = 1 << 7;
pub const QP_PATH_MTU: c_int = 1 << 8;
pub const QP_TIMEOUT: c_int = 1 << 9;
pub const QP_RETRY_CNT: c_int = 1 << 10;
pub const QP_RNR_RETRY: c_int = 1 << 11;
pub const QP_RQ_PSN: c_int = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub const QP_SQ_PSN: c_int = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub const QP_DEST_QPN: c_int = 1 << 20;

pub const WR_RDMA_WRITE: c_int = 0;
pub const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub const WR_RDMA_READ: c_int = 4;

pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_INLINE: c_uint = 1 << 3;

pub const WC_RDMA_WRITE: c_int = 1;
pub const WC_RDMA_READ: c_int = 2;
pub const WC_RECV_RDMA_WITH_IMM: c_int = (1 << 7) + 1;

pub const WC_SUCCESS: c_int = 0;
pub const WC_LOC_LEN_ERR: c_int = 1;
pub const WC_LOC_QP_OP_ERR: c_int = 2;
pub const WC_LOC_PROT_ERR: c_int = 4;
pub const WC_WR_FLUSH_ERR: c_int = 5;
pub const WC_BAD_RESP_ERR: c_int = 7;
pub const WC_LOC_ACCESS_ERR: c_int = 8;
pub const WC_REM_INV_REQ_ERR: c_int = 9;
pub const WC_REM_ACCESS_ERR: c_int = 10;
pub const WC_REM_OP_ERR: c_int = 11;
pub const WC_RETRY_EXC_ERR: c_int = 12;
pub const WC_RNR_RETRY_EXC_ERR: c_int = 13;
pub const WC_REM_ABORT_ERR: c_int = 16;
pub const WC_FATAL_ERR: c_int = 19;
pub const WC_RESP_TIMEOUT_ERR: c_int = 20;
pub const WC_GENERAL_ERR: c_int = 21;

pub const EVENT_CQ_ERR: c_int = 0;
pub const EVENT_QP_FATAL: c_int = 1;
pub const EVENT_QP_REQ_ERR: c_int = 2;
pub const EVENT_QP_ACCESS_ERR: c_int = 3;
pub const EVENT_COMM_EST: c_int = 4;
pub const EVENT_SQ_DRAINED: c_int = 5;
pub const EVENT_PATH_MIG: c_int = 6;
pub const EVENT_PATH_MIG_ERR: c_int = 7;
pub const EVENT_DEVICE_FATAL: c_int = 8;
pub const EVENT_PORT_ACTIVE: c_int = 9;
pub const EVENT_PORT_ERR: c_int = 10;
pub const EVENT_LID_CHANGE: c_int = 11;
pub const EVENT_PKEY_CHANGE: c_int = 12;
pub const EVENT_SM_CHANGE: c_int = 13;
pub const EVENT_SRQ_ERR: c_int = 14;
pub const EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
pub const EVENT_CLIENT_REREGISTER: c_int = 17;
pub const EVENT_GID_CHANGE: c_int = 18;
pub const EVENT_WQ_FATAL: c_int = 19;
/// From rdma-core 62 on.
pub const EVENT_DEVICE_SPEED_CHANGE: c_int = 20;
