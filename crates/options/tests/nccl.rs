//! NCCL's own odd values of its variables: what each comes to here, beside what NCCL 2.30 makes of it
//! (`src/misc/param.cc`, `src/misc/utils.cc`, `src/transport/net_ib`). None of them stops anything.

use railweave_options::{Entry, Options, TABLE};

/// What a warning must say; `None` where the value is what it says, or NCCL's meaning is Railweave's.
type Warned = Option<&'static str>;

/// A variable, the setting it is for, its value, what NCCL makes of that, what it comes to here, and what is said.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str, Warned);

const CASES: &[Case] = &[
    // Numbers at large: one variable stands for all, since all are read by one function.
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "0x16", "22", "22", None),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "0X16", "22", "22", None),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "010", "8: octal", "8", None),
    (
        "NCCL_IB_TIMEOUT",
        "RAILWEAVE_ACK_TIMEOUT",
        "08",
        "0: 8 is no octal digit",
        "0",
        Some("the number 0, which is all"),
    ),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", " 22 ", "22", "22", None),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "+22\t", "22", "22", None),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "22ms", "22", "22", Some("the number 22, which is all that counts")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "22 # slow", "22", "22", Some("the number 22")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "0x", "0", "0", Some("the number 0")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "", "20: the default", "20", None),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "  ", "0", "20", None),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "slow", "0: wait for ever", "20", Some("is no number")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "-", "0", "20", Some("is no number")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "9223372036854775808", "20: does not fit", "20", Some("64 bits")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "-9223372036854775809", "20: does not fit", "20", Some("64 bits")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "32", "0: 5 bits of it", "31", Some("is more than 31, so 31 is used")),
    ("NCCL_IB_TIMEOUT", "RAILWEAVE_ACK_TIMEOUT", "-1", "31: 5 bits of it", "20", Some("is less than 0")),
    // Each variable's own.
    ("NCCL_IB_RETRY_CNT", "RAILWEAVE_RETRY_COUNT", "8", "0: 3 bits of it", "7", Some("is more than 7, so 7 is used")),
    ("NCCL_IB_RETRY_CNT", "RAILWEAVE_RETRY_COUNT", "13", "5: 3 bits of it", "7", Some("is more than 7, so 7 is used")),
    ("NCCL_IB_RETRY_CNT", "RAILWEAVE_RETRY_COUNT", "-1", "7: 3 bits of it", "7", Some("is less than 0")),
    ("NCCL_IB_MQP_RETRY_CNT", "RAILWEAVE_MODIFY_RETRIES", "-1", "one try alone", "0", Some("counts as 0")),
    ("NCCL_IB_MQP_RETRY_CNT", "RAILWEAVE_MODIFY_RETRIES", "2000000", "that", "1000000", Some("is more than 1000000")),
    ("NCCL_IB_MQP_RETRY_CNT", "RAILWEAVE_MODIFY_RETRIES", "often", "0", "34", Some("is no number")),
    ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "RAILWEAVE_MODIFY_RETRY_PAUSE", "-1", "no pause", "0s", Some("counts as 0")),
    ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "RAILWEAVE_MODIFY_RETRY_PAUSE", "4000000", "that", "3600s", Some("is more than")),
    ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "RAILWEAVE_MODIFY_RETRY_PAUSE", "0.5s", "0", "0s", Some("the number 0, which")),
    ("NCCL_IB_MQP_RETRY_ALL", "RAILWEAVE_MODIFY_RETRY_ALL", "2", "on: not 0", "1", Some("counts as 1")),
    ("NCCL_IB_MQP_RETRY_ALL", "RAILWEAVE_MODIFY_RETRY_ALL", "no", "0", "0", Some("is no number")),
    ("NCCL_IB_RETURN_ASYNC_EVENTS", "RAILWEAVE_RETURN_ASYNC_EVENTS", "-1", "on: not 0", "1", Some("counts as 1")),
    ("NCCL_IB_RETURN_ASYNC_EVENTS", "RAILWEAVE_RETURN_ASYNC_EVENTS", "off", "0", "1", Some("is no number")),
    ("NCCL_IB_PKEY", "RAILWEAVE_PKEY_INDEX", "0x8001", "32769", "32769", None),
    ("NCCL_IB_PKEY", "RAILWEAVE_PKEY_INDEX", "65536", "0: 16 bits of it", "0", Some("is more than 65535")),
    ("NCCL_IB_PKEY", "RAILWEAVE_PKEY_INDEX", "-1", "65535: 16 bits of it", "0", Some("is less than 0")),
    ("NCCL_IB_SL", "RAILWEAVE_SERVICE_LEVEL", "-1", "none", "-1", None),
    ("NCCL_IB_SL", "RAILWEAVE_SERVICE_LEVEL", "-2", "14: 4 bits of it", "-1", Some("is less than -1")),
    ("NCCL_IB_SL", "RAILWEAVE_SERVICE_LEVEL", "16", "0: 4 bits of it", "15", Some("is more than 15, so 15 is used")),
    ("NCCL_IB_TC", "RAILWEAVE_TRAFFIC_CLASS", "0x60", "96", "96", None),
    ("NCCL_IB_TC", "RAILWEAVE_TRAFFIC_CLASS", "-1", "none", "-1", None),
    ("NCCL_IB_TC", "RAILWEAVE_TRAFFIC_CLASS", "-2", "254: 8 bits of it", "-1", Some("is less than -1")),
    (
        "NCCL_IB_TC",
        "RAILWEAVE_TRAFFIC_CLASS",
        "256",
        "0: 8 bits of it",
        "255",
        Some("is more than 255, so 255 is used"),
    ),
    ("NCCL_IB_FIFO_TC", "RAILWEAVE_CTS_TRAFFIC_CLASS", "-2", "254: 8 bits of it", "-1", Some("is less than -1")),
    ("NCCL_IB_FIFO_TC", "RAILWEAVE_CTS_TRAFFIC_CLASS", "300", "44: 8 bits of it", "255", Some("is more than 255")),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "-1", "the rules choose", "-1", None),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "-2", "the rules choose", "-1", None),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "0x3", "3", "3", None),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "256", "connect fails", "-1", Some("is more than 255")),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "3,5", "3", "3", Some("the number 3")),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "mlx5_0:3", "0", "mlx5_0:3", None),
    ("NCCL_IB_GID_INDEX", "RAILWEAVE_GID_INDEX", "mlx5_0:x", "0", "-1", Some("so the default is used")),
    ("NCCL_IB_ROCE_VERSION_NUM", "RAILWEAVE_ROCE_VERSION", "0", "no version: index 0", "2", Some("is less than 1")),
    ("NCCL_IB_ROCE_VERSION_NUM", "RAILWEAVE_ROCE_VERSION", "3", "no version: index 0", "2", Some("is more than 2")),
    ("NCCL_IB_ROCE_VERSION_NUM", "RAILWEAVE_ROCE_VERSION", "v1", "0", "2", Some("is no number")),
    ("NCCL_IB_ADDR_FAMILY", "RAILWEAVE_ADDRESS_FAMILY", "AF_INET6 ", "AF_INET: no such word", "ipv6", None),
    ("NCCL_IB_ADDR_FAMILY", "RAILWEAVE_ADDRESS_FAMILY", "IPv6", "AF_INET", "auto", Some("so the default is used")),
    ("NCCL_IB_ADDR_RANGE", "RAILWEAVE_ADDRESS_RANGE", "10.0.0.0/8", "that", "10.0.0.0/8", None),
    ("NCCL_IB_ADDR_RANGE", "RAILWEAVE_ADDRESS_RANGE", "10.0.0.0", "any", "any", Some("has no slash")),
    ("NCCL_IB_ADDR_RANGE", "RAILWEAVE_ADDRESS_RANGE", "10.0.0.0/33", "any", "any", Some("prefix length from 0 to 32")),
    ("NCCL_IB_ADDR_RANGE", "RAILWEAVE_ADDRESS_RANGE", "eth0/24", "any", "any", Some("is not an IP address")),
    ("NCCL_IB_SUBNET_PREFIX_LEN", "RAILWEAVE_PREFIX_LENGTH", "0", "0", "-1", Some("is no subnet")),
    ("NCCL_IB_SUBNET_PREFIX_LEN", "RAILWEAVE_PREFIX_LENGTH", "33", "undefined", "-1", Some("is more than 32")),
    ("NCCL_IB_SUBNET_PREFIX_LEN", "RAILWEAVE_PREFIX_LENGTH", "/24", "0", "-1", Some("is no number")),
    ("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "RAILWEAVE_FLID_GID_INDEX", "-1", "init fails", "1", Some("is less than 0")),
    (
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
        "RAILWEAVE_FLID_GID_INDEX",
        "256",
        "beyond any table",
        "255",
        Some("255 is used"),
    ),
    ("NCCL_IB_QPS_PER_CONNECTION", "RAILWEAVE_LANES", "0", "no queue pair", "1", Some("is less than 1")),
    ("NCCL_IB_QPS_PER_CONNECTION", "RAILWEAVE_LANES", "128", "128", "16", Some("is more than 16, so 16 is used")),
    ("NCCL_IB_SPLIT_DATA_ON_QPS", "RAILWEAVE_SPLIT_DATA_ON_LANES", "2", "off: not 1", "0", Some("counts as 0")),
    ("NCCL_IB_DISABLE", "RAILWEAVE_FABRIC", "2", "on: not 0", "tcp", Some("counts as 1")),
    ("NCCL_IB_DISABLE", "RAILWEAVE_FABRIC", "-1", "on: not 0", "tcp", Some("counts as 1")),
    ("NCCL_IB_DISABLE", "RAILWEAVE_FABRIC", "true", "0", "auto", Some("is no number")),
    ("NCCL_IB_DATA_DIRECT", "RAILWEAVE_DATA_DIRECT", "0x2", "2", "2", None),
    ("NCCL_IB_DATA_DIRECT", "RAILWEAVE_DATA_DIRECT", "3", "on: above 0, not 2", "1", Some("counts as 1")),
    ("NCCL_IB_DATA_DIRECT", "RAILWEAVE_DATA_DIRECT", "-1", "off: not above 0", "0", Some("counts as 0")),
    ("NCCL_IB_DATA_DIRECT", "RAILWEAVE_DATA_DIRECT", "only", "0", "1", Some("is no number")),
    ("NCCL_IB_MERGE_VFS", "RAILWEAVE_MERGE_VFS", "-2", "on: not 0", "1", Some("counts as 1")),
    ("NCCL_IB_DEVICE_PCI_ORDER", "RAILWEAVE_PCI_ORDER", "-1", "on: not 0", "1", Some("counts as 1")),
    ("NCCL_IB_ECE_ENABLE", "RAILWEAVE_ECE", "-2", "on: not 0", "1", Some("counts as 1")),
    ("NCCL_IB_ECE_ENABLE", "RAILWEAVE_ECE", "off", "0", "1", Some("is no number")),
    ("NCCL_IB_PCI_RELAXED_ORDERING", "RAILWEAVE_RELAXED_ORDERING", "3", "off", "0", Some("counts as 0")),
    ("NCCL_IB_PCI_RELAXED_ORDERING", "RAILWEAVE_RELAXED_ORDERING", "-2", "off", "0", Some("counts as 0")),
    ("NCCL_IB_ADAPTIVE_ROUTING", "RAILWEAVE_ADAPTIVE_ROUTING", "-2", "the default", "auto", None),
    ("NCCL_IB_ADAPTIVE_ROUTING", "RAILWEAVE_ADAPTIVE_ROUTING", "-1", "on: not 0", "1", Some("counts as 1")),
    ("NCCL_IB_ADAPTIVE_ROUTING", "RAILWEAVE_ADAPTIVE_ROUTING", "auto", "0: off", "auto", Some("is no number")),
    ("NCCL_IB_AR_THRESHOLD", "RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", "-2", "the default, 8192", "8K", None),
    ("NCCL_IB_AR_THRESHOLD", "RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", "-1", "every message", "0", None),
    ("NCCL_IB_AR_THRESHOLD", "RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", "0x2000", "8192", "8K", None),
    ("NCCL_IB_AR_THRESHOLD", "RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", "2147483648", "no message", "1G", None),
    (
        "NCCL_IB_AR_THRESHOLD",
        "RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD",
        "8K",
        "8",
        "8",
        Some("the number 8, which is all"),
    ),
    ("NCCL_GDR_FLUSH_DISABLE", "RAILWEAVE_FLUSH", "2", "disabled: not 0", "0", Some("counts as 1")),
    ("NCCL_GDR_FLUSH_DISABLE", "RAILWEAVE_FLUSH", "yes", "0: not disabled", "1", Some("is no number")),
    (
        "NCCL_IBVERBS_LIB",
        "RAILWEAVE_IBVERBS_LIB",
        "/opt/lib/",
        "the default",
        "libibverbs.so.1",
        Some("names a directory"),
    ),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "mlx5_0,,mlx5_1,", "both", "mlx5_0,mlx5_1", None),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "mlx5_0:1,mlx5_1:a", "mlx5_1's port 0", "mlx5_0:1", Some("is left out")),
    (
        "NCCL_IB_HCA",
        "RAILWEAVE_RDMA_RAILS",
        "mlx5_0:1:40000",
        "rail -25536: 16 bits of it",
        "mlx5_0:1",
        Some("rail \"40000\" is not a number from 0 to 32767; what is wrong is left out"),
    ),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "mlx5_0:1:-2:3", "rail -2", "mlx5_0:1::3", Some("rail \"-2\" is not")),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "mlx5_0::1:up", "plane 0", "mlx5_0::1", Some("plane \"up\" is not")),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "mlx5_0:1:32767:0", "that", "mlx5_0:1:32767:0", None),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "^=mlx5_0:-1", "all others", "^=mlx5_0", None),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "=^mlx5_0,mlx5_1", "mlx5_1", "=mlx5_1", Some("may only lead")),
    (
        "NCCL_IB_HCA",
        "RAILWEAVE_RDMA_RAILS",
        "mlx5_0:1:2:3:4",
        "four fields of it",
        "any",
        Some("more than four fields"),
    ),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "^", "none", "any", Some("names nothing")),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", "=", "all", "any", Some("names nothing")),
    ("NCCL_IB_HCA", "RAILWEAVE_RDMA_RAILS", ":1", "all", "any", Some("has no name")),
    ("NCCL_SOCKET_IFNAME", "RAILWEAVE_OOB_IF", "eth0 ", "none of this name", "eth0", None),
    (
        "NCCL_SOCKET_IFNAME",
        "RAILWEAVE_OOB_IF",
        "eth0,10.0.0.0/99",
        "the first",
        "eth0",
        Some("prefix length from 0 to 32"),
    ),
];

#[test]
fn nccls_own_odd_values_stop_nothing() {
    for (variable, own, text, nccl, expected, warned) in CASES {
        let case = format!("{variable}=\"{text}\", which is {nccl} for NCCL");
        let (options, warnings) =
            Options::from_variables([(*variable, *text)]).unwrap_or_else(|errors| panic!("{case}: {errors}"));
        let row = options.rows().into_iter().find(|row| row.entry.variable() == *own).unwrap();
        assert_eq!(row.value, *expected, "{case}");
        let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), usize::from(warned.is_some()), "{case}: {lines:?}");
        if let (Some(words), [line]) = (warned, lines.as_slice()) {
            let [name, wins] = [format!("{variable}: \""), format!("or set {}", main_variable(variable))];
            for part in [name.as_str(), words, "allowed: ", "; try ", &wins] {
                assert!(line.contains(part), "{case}: no {part:?} in {line}");
            }
        }
    }
}

#[test]
fn every_variable_of_nccl_has_its_odd_values() {
    let nccls = TABLE
        .iter()
        .flat_map(Entry::all_variables)
        .filter(|name| name.starts_with("NCCL_") && !name.starts_with("NCCL_MESH_"));
    for name in nccls {
        assert!(CASES.iter().any(|(variable, ..)| *variable == name), "{name}");
    }
}

/// What wins over a variable: the own one of the first setting that reads it.
fn main_variable(variable: &str) -> &'static str {
    TABLE.iter().find(|entry| entry.all_variables().any(|name| name == variable)).unwrap().variable()
}
