//! The handwritten types and constants against the installed `<infiniband/verbs.h>`: a C compiler for the processor
//! that this test is built for (`CC`, with its arguments; otherwise `cc`) asserts that the header's sizes, offsets and
//! values are ours. Without the header or a C compiler the test says so and passes; with CI=true it fails.

#![allow(clippy::cast_lossless, reason = "the constants are of several types, of which usize has no From")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use railweave_fabric_verbs::sys;

/// A C expression and its value here.
type Row = (String, i128);

macro_rules! layout {
    ($rows:ident, $type:ident = $c:literal { $($field:ident = $name:literal),* $(,)? }) => {
        $rows.push((concat!("sizeof(struct ", $c, ")").to_owned(), size_of::<sys::$type>() as i128));
        $($rows.push((
            concat!("offsetof(struct ", $c, ", ", $name, ")").to_owned(),
            offset_of!(sys::$type, $field) as i128,
        ));)*
    };
}

macro_rules! values {
    ($rows:ident, $($name:ident)*) => {
        $($rows.push((concat!("IBV_", stringify!($name)).to_owned(), sys::$name as i128));)*
    };
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    layout!(rows, Device = "ibv_device" {
        node_type = "node_type", transport_type = "transport_type", name = "name", dev_name = "dev_name",
        dev_path = "dev_path", ibdev_path = "ibdev_path",
    });
    layout!(rows, ContextOps = "ibv_context_ops" {
        poll_cq = "poll_cq", post_srq_recv = "post_srq_recv", post_send = "post_send", post_recv = "post_recv",
        alloc_mw = "alloc_mw", req_notify_cq = "req_notify_cq",
    });
    layout!(rows, Context = "ibv_context" {
        device = "device", ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd",
        num_comp_vectors = "num_comp_vectors", abi_compat = "abi_compat",
    });
    layout!(rows, VerbsContext = "verbs_context" {
        query_port = "query_port", others = "advise_mr", abi_placeholder = "_ABI_placeholder3", size = "sz",
        context = "context",
    });
    layout!(rows, Pd = "ibv_pd" { context = "context", handle = "handle" });
    layout!(rows, Mr = "ibv_mr" {
        context = "context", pd = "pd", address = "addr", length = "length", handle = "handle", lkey = "lkey",
        rkey = "rkey",
    });
    layout!(rows, Cq = "ibv_cq" { context = "context", channel = "channel", cq_context = "cq_context", cqe = "cqe" });
    layout!(rows, Srq = "ibv_srq" { context = "context", pd = "pd", handle = "handle" });
    layout!(rows, Qp = "ibv_qp" {
        context = "context", qp_context = "qp_context", pd = "pd", send_cq = "send_cq", recv_cq = "recv_cq",
        srq = "srq", handle = "handle", qp_num = "qp_num", state = "state", qp_type = "qp_type",
    });
    layout!(rows, GidEntry = "ibv_gid_entry" {
        gid = "gid", gid_index = "gid_index", port_num = "port_num", gid_type = "gid_type",
        ndev_ifindex = "ndev_ifindex",
    });
    layout!(rows, DeviceAttributes = "ibv_device_attr" {
        node_guid = "node_guid", sys_image_guid = "sys_image_guid", max_mr_size = "max_mr_size",
        vendor_id = "vendor_id", max_qp = "max_qp", max_qp_wr = "max_qp_wr", device_cap_flags = "device_cap_flags",
        max_sge = "max_sge", max_cq = "max_cq", max_cqe = "max_cqe", max_mr = "max_mr", atomic_cap = "atomic_cap",
        max_srq = "max_srq", max_srq_wr = "max_srq_wr", max_pkeys = "max_pkeys", phys_port_cnt = "phys_port_cnt",
    });
    layout!(rows, PortAttributes = "ibv_port_attr" {
        state = "state", max_mtu = "max_mtu", active_mtu = "active_mtu", gid_tbl_len = "gid_tbl_len",
        port_cap_flags = "port_cap_flags", max_msg_sz = "max_msg_sz", pkey_tbl_len = "pkey_tbl_len", lid = "lid",
        sm_lid = "sm_lid", lmc = "lmc", active_width = "active_width", active_speed = "active_speed",
        link_layer = "link_layer", flags = "flags", port_cap_flags2 = "port_cap_flags2",
    });
    layout!(rows, GlobalRoute = "ibv_global_route" {
        dgid = "dgid", flow_label = "flow_label", sgid_index = "sgid_index", hop_limit = "hop_limit",
        traffic_class = "traffic_class",
    });
    layout!(rows, AhAttributes = "ibv_ah_attr" {
        grh = "grh", dlid = "dlid", sl = "sl", src_path_bits = "src_path_bits", static_rate = "static_rate",
        is_global = "is_global", port_num = "port_num",
    });
    layout!(rows, QpCapabilities = "ibv_qp_cap" {
        max_send_wr = "max_send_wr", max_recv_wr = "max_recv_wr", max_send_sge = "max_send_sge",
        max_recv_sge = "max_recv_sge", max_inline_data = "max_inline_data",
    });
    layout!(rows, QpInitAttributes = "ibv_qp_init_attr" {
        qp_context = "qp_context", send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap",
        qp_type = "qp_type", sq_sig_all = "sq_sig_all",
    });
    layout!(rows, QpAttributes = "ibv_qp_attr" {
        qp_state = "qp_state", path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn",
        dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags", cap = "cap", ah_attr = "ah_attr",
        alt_ah_attr = "alt_ah_attr", pkey_index = "pkey_index", max_rd_atomic = "max_rd_atomic",
        max_dest_rd_atomic = "max_dest_rd_atomic", min_rnr_timer = "min_rnr_timer", port_num = "port_num",
        timeout = "timeout", retry_cnt = "retry_cnt", rnr_retry = "rnr_retry", rate_limit = "rate_limit",
    });
    layout!(rows, SrqInitAttributes = "ibv_srq_init_attr" { srq_context = "srq_context", attr = "attr" });
    layout!(rows, SrqAttributes = "ibv_srq_attr" { max_wr = "max_wr", max_sge = "max_sge", srq_limit = "srq_limit" });
    layout!(rows, Sge = "ibv_sge" { address = "addr", length = "length", lkey = "lkey" });
    layout!(rows, SendWr = "ibv_send_wr" {
        wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
        send_flags = "send_flags", imm_data = "imm_data", rdma = "wr",
    });
    layout!(rows, RecvWr = "ibv_recv_wr" { wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge" });
    layout!(rows, Wc = "ibv_wc" {
        wr_id = "wr_id", status = "status", opcode = "opcode", vendor_err = "vendor_err", byte_len = "byte_len",
        imm_data = "imm_data", qp_num = "qp_num", wc_flags = "wc_flags", dlid_path_bits = "dlid_path_bits",
    });
    layout!(rows, Ece = "ibv_ece" { vendor_id = "vendor_id", options = "options", comp_mask = "comp_mask" });
    layout!(rows, AsyncEvent = "ibv_async_event" { element = "element", event_type = "event_type" });
    let rdma = offset_of!(sys::SendWr, rdma);
    for (field, offset) in
        [("remote_addr", offset_of!(sys::RdmaTarget, remote_address)), ("rkey", offset_of!(sys::RdmaTarget, rkey))]
    {
        rows.push((format!("offsetof(struct ibv_send_wr, wr.rdma.{field})"), (rdma + offset) as i128));
    }
    rows.push(("sizeof(union ibv_gid)".to_owned(), size_of::<sys::Gid>() as i128));
    values!(rows, TRANSPORT_IB LINK_LAYER_UNSPECIFIED LINK_LAYER_INFINIBAND LINK_LAYER_ETHERNET);
    values!(rows, PORT_DOWN PORT_INIT PORT_ARMED PORT_ACTIVE QPF_GRH_REQUIRED);
    values!(rows, GID_TYPE_IB GID_TYPE_ROCE_V1 GID_TYPE_ROCE_V2 SYSFS_NAME_MAX SYSFS_PATH_MAX);
    values!(rows, ACCESS_LOCAL_WRITE ACCESS_REMOTE_WRITE ACCESS_REMOTE_READ ACCESS_RELAXED_ORDERING);
    values!(rows, QPT_RC QPS_RESET QPS_INIT QPS_RTR QPS_RTS QPS_ERR);
    values!(rows, QP_STATE QP_ACCESS_FLAGS QP_PKEY_INDEX QP_PORT QP_AV QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT);
    values!(rows, QP_RNR_RETRY QP_RQ_PSN QP_MAX_QP_RD_ATOMIC QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC);
    values!(rows, QP_DEST_QPN WR_RDMA_WRITE WR_RDMA_WRITE_WITH_IMM WR_RDMA_READ SEND_SIGNALED SEND_INLINE);
    values!(rows, WC_RDMA_WRITE WC_RDMA_READ WC_RECV_RDMA_WITH_IMM WC_SUCCESS WC_LOC_LEN_ERR WC_LOC_QP_OP_ERR);
    values!(rows, WC_LOC_PROT_ERR WC_WR_FLUSH_ERR WC_BAD_RESP_ERR WC_LOC_ACCESS_ERR WC_REM_INV_REQ_ERR);
    values!(rows, WC_REM_ACCESS_ERR WC_REM_OP_ERR WC_RETRY_EXC_ERR WC_RNR_RETRY_EXC_ERR WC_REM_ABORT_ERR);
    values!(rows, WC_FATAL_ERR WC_RESP_TIMEOUT_ERR WC_GENERAL_ERR EVENT_CQ_ERR EVENT_QP_FATAL EVENT_QP_REQ_ERR);
    values!(rows, EVENT_QP_ACCESS_ERR EVENT_COMM_EST EVENT_DEVICE_FATAL EVENT_PORT_ACTIVE EVENT_PORT_ERR);
    values!(rows, EVENT_LID_CHANGE EVENT_PKEY_CHANGE EVENT_SM_CHANGE EVENT_SRQ_ERR EVENT_SRQ_LIMIT_REACHED);
    values!(rows, EVENT_QP_LAST_WQE_REACHED EVENT_CLIENT_REREGISTER EVENT_GID_CHANGE EVENT_WQ_FATAL);
    rows
}

/// The C source, which compiles only if every row matches the header.
fn assertions(rows: &[Row]) -> String {
    let mut c = "#include <stddef.h>\n#include <infiniband/verbs.h>\n".to_owned();
    for (expression, ours) in rows {
        let _ = writeln!(c, "_Static_assert((long long)({expression}) == {ours}, \"{expression}: {ours} here\");");
    }
    c
}

/// Checks a C source, or returns the compiler's errors. Nothing runs: the compiler may be one for another machine.
fn compile(source: &str) -> Result<(), String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command.args(words).args(["-fsyntax-only", "-x", "c", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{compiler}: {error}"))?;
    // A compiler that ends before it has read everything says why.
    let _ = child.stdin.take().unwrap().write_all(source.as_bytes());
    let output = child.wait_with_output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns true if there is a header to compare with.
fn has_header() -> bool {
    let Err(why) = compile(&assertions(&[])) else { return true };
    assert!(
        std::env::var_os("CI").is_none(),
        "<infiniband/verbs.h> cannot be compiled (apt-get install libibverbs-dev): {why}"
    );
    eprintln!("skipped: no <infiniband/verbs.h> here (apt-get install libibverbs-dev)");
    false
}

#[test]
fn every_size_offset_and_value_is_the_headers() {
    if has_header() {
        compile(&assertions(&rows())).unwrap_or_else(|differences| panic!("{differences}"));
    }
}

#[test]
fn what_differs_from_the_header_is_found() {
    if has_header() {
        for index in (0..rows().len()).step_by(40) {
            let mut rows = rows();
            rows[index].1 += 1;
            let differences = compile(&assertions(&rows)).unwrap_err();
            assert!(differences.contains(&rows[index].0), "{differences}");
        }
    }
}
