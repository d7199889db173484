//! Odd values of NCCL's own variables: the value that each counts as here, next to its meaning for NCCL 2.30
//! (`src/misc/param.cc`, `src/misc/utils.cc`, `src/misc/ibvwrap.cc`, `src/transport/net_ib`). None of them is an error.

use railweave_options::{Entry, Options, TABLE};

/// A value, its meaning for NCCL, its meaning here, and the words that a warning must have: `None` if the value counts
/// as what it says, or as it does for NCCL.
type Row = (&'static str, &'static str, &'static str, Option<&'static str>);

/// A variable, the setting it is for, and its odd values.
type Variable = (&'static str, &'static str, &'static [Row]);

/// The variables that are not numbers.
const TEXTS: [&str; 5] =
    ["NCCL_IBVERBS_LIB", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"];

const VARIABLES: &[Variable] = &[
    // This one stands for all numbers, since one function reads them all.
    (
        "NCCL_IB_TIMEOUT",
        "RAILWEAVE_ACK_TIMEOUT",
        &[
            ("0x16", "22", "22", None),
            ("0X16", "22", "22", None),
            ("010", "8: octal", "8", None),
            ("08", "0: 8 is no octal digit", "0", Some("the number 0, which is all")),
            (" 22 ", "22", "22", None),
            ("+22\t", "22", "22", None),
            ("22ms", "22", "22", Some("the number 22, which is all that counts")),
            ("22 # slow", "22", "22", Some("the number 22")),
            ("0x", "0", "0", Some("the number 0")),
            ("", "20: the default", "20", None),
            ("  ", "0", "20", None),
            ("slow", "0: wait forever", "20", Some("is not a number")),
            ("-", "0", "20", Some("is not a number")),
            ("9223372036854775808", "20: does not fit", "20", Some("64 bits")),
            ("-9223372036854775809", "20: does not fit", "20", Some("64 bits")),
            ("32", "0: 5 bits of it", "31", Some("is more than 31, so 31 is used")),
            ("-1", "31: 5 bits of it", "20", Some("is less than 0")),
            ("-2", "30: 5 bits of it", "20", Some("is less than 0")),
        ],
    ),
    (
        "NCCL_IB_RETRY_CNT",
        "RAILWEAVE_RETRY_COUNT",
        &[
            ("0x5", "5", "5", None),
            ("8", "0: 3 bits of it", "7", Some("is more than 7, so 7 is used")),
            ("13", "5: 3 bits of it", "7", Some("is more than 7, so 7 is used")),
            ("-1", "7: 3 bits of it", "7", Some("is less than 0")),
            ("-2", "6: 3 bits of it", "7", Some("is less than 0")),
            ("", "7: the default", "7", None),
            ("never", "0", "7", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_MQP_RETRY_CNT",
        "RAILWEAVE_MODIFY_RETRIES",
        &[
            ("-1", "one try alone", "0", Some("counts as 0")),
            ("-2", "one try alone", "0", Some("counts as 0")),
            ("0x10", "16", "16", None),
            ("2000000", "that", "1000000", Some("is more than 1000000")),
            ("", "34: the default", "34", None),
            ("often", "0", "34", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_MQP_RETRY_SLEEP_MSEC",
        "RAILWEAVE_MODIFY_RETRY_PAUSE",
        &[
            ("-1", "49 days: 32 bits of it", "100ms", Some("is less than 0")),
            ("-2", "49 days: 32 bits of it", "100ms", Some("is less than 0")),
            ("0xfa", "250", "250ms", None),
            ("4000000", "that", "3600s", Some("is more than")),
            ("", "100: the default", "100ms", None),
            ("0.5s", "0", "0s", Some("the number 0, which")),
            ("half a second", "0", "100ms", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_MQP_RETRY_ALL",
        "RAILWEAVE_MODIFY_RETRY_ALL",
        &[
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("-2", "on: not 0", "1", Some("counts as 1")),
            ("0x1", "on", "1", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "0: the default", "0", None),
            ("no", "0", "0", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_RETURN_ASYNC_EVENTS",
        "RAILWEAVE_RETURN_ASYNC_EVENTS",
        &[
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("-2", "on: not 0", "1", Some("counts as 1")),
            ("0x0", "off", "0", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "1: the default", "1", None),
            ("off", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_PKEY",
        "RAILWEAVE_PKEY_INDEX",
        &[
            ("0x8001", "32769", "32769", None),
            ("65536", "0: 16 bits of it", "0", Some("is more than 65535")),
            ("-1", "65535: 16 bits of it", "0", Some("is less than 0")),
            ("-2", "65534: 16 bits of it", "0", Some("is less than 0")),
            ("", "0: the default", "0", None),
            ("default", "0", "0", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_SL",
        "RAILWEAVE_SERVICE_LEVEL",
        &[
            ("-1", "none", "-1", None),
            ("-2", "14: 4 bits of it", "-1", Some("is less than -1")),
            ("0x3", "3", "3", None),
            ("16", "0: 4 bits of it", "15", Some("is more than 15, so 15 is used")),
            ("", "-1: the default", "-1", None),
            ("high", "0", "-1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_TC",
        "RAILWEAVE_TRAFFIC_CLASS",
        &[
            ("0x60", "96", "96", None),
            ("-1", "none", "-1", None),
            ("-2", "254: 8 bits of it", "-1", Some("is less than -1")),
            ("256", "0: 8 bits of it", "255", Some("is more than 255, so 255 is used")),
            ("", "-1: the default", "-1", None),
            ("AF31", "0", "-1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_FIFO_TC",
        "RAILWEAVE_CTS_TRAFFIC_CLASS",
        &[
            ("-1", "that of data", "-1", None),
            ("-2", "254: 8 bits of it", "-1", Some("is less than -1")),
            ("0xA0", "160", "160", None),
            ("300", "44: 8 bits of it", "255", Some("is more than 255")),
            ("", "-1: the default", "-1", None),
            ("EF", "0", "-1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_GID_INDEX",
        "RAILWEAVE_GID_INDEX",
        &[
            ("-1", "the rules choose", "-1", None),
            ("-2", "the rules choose", "-1", None),
            ("0x3", "3", "3", None),
            ("256", "connect fails", "-1", Some("is more than 255")),
            ("", "-1: the default", "-1", None),
            ("three", "0", "-1", Some("is not a number")),
            ("3,5", "3", "3", Some("the number 3")),
            ("mlx5_0:3", "0", "mlx5_0:3", None),
            ("mlx5_0:x", "0", "-1", Some("so the default is used")),
        ],
    ),
    (
        "NCCL_IB_ROCE_VERSION_NUM",
        "RAILWEAVE_ROCE_VERSION",
        &[
            ("-1", "no version: index 0", "2", Some("is less than 1")),
            ("-2", "no version: index 0", "2", Some("is less than 1")),
            ("0", "no version: index 0", "2", Some("is less than 1")),
            ("0x1", "1", "1", None),
            ("3", "no version: index 0", "2", Some("is more than 2")),
            ("", "2: the default", "2", None),
            ("v1", "0", "2", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_ADDR_FAMILY",
        "RAILWEAVE_ADDRESS_FAMILY",
        &[
            ("AF_INET6 ", "AF_INET: no such word", "ipv6", None),
            ("IPv6", "AF_INET", "auto", Some("so the default is used")),
            ("", "AF_INET", "auto", None),
        ],
    ),
    (
        "NCCL_IB_ADDR_RANGE",
        "RAILWEAVE_ADDRESS_RANGE",
        &[
            ("10.0.0.0/8", "that", "10.0.0.0/8", None),
            ("10.0.0.0", "any", "any", Some("has no slash")),
            ("10.0.0.0/33", "any", "any", Some("prefix length from 0 to 32")),
            ("eth0/24", "any", "any", Some("is not an IP address")),
            ("", "any", "any", None),
        ],
    ),
    (
        "NCCL_IB_SUBNET_PREFIX_LEN",
        "RAILWEAVE_PREFIX_LENGTH",
        &[
            ("-1", "connect fails where subnets choose", "-1", None),
            ("-2", "connect fails where subnets choose", "-1", Some("is less than -1")),
            ("0", "connect fails where subnets choose", "-1", Some("names no subnet")),
            ("0x18", "24", "24", None),
            ("33", "connect fails where subnets choose", "-1", Some("is more than 32")),
            ("", "24: the default", "-1", None),
            ("/24", "0", "-1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
        "RAILWEAVE_FLID_GID_INDEX",
        &[
            ("-1", "connect fails", "1", Some("is less than 0")),
            ("-2", "connect fails", "1", Some("is less than 0")),
            ("0x2", "2", "2", None),
            ("256", "beyond any table", "255", Some("255 is used")),
            ("", "1: the default", "1", None),
            ("first", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_QPS_PER_CONNECTION",
        "RAILWEAVE_LANES",
        &[
            ("-1", "no queue pair", "1", Some("is less than 1")),
            ("-2", "no queue pair", "1", Some("is less than 1")),
            ("0", "no queue pair", "1", Some("is less than 1")),
            ("0x4", "4", "4", None),
            ("128", "128", "16", Some("is more than 16, so 16 is used")),
            ("", "1: the default", "1", None),
            ("two", "0: no queue pair", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "RAILWEAVE_SPLIT_DATA_ON_LANES",
        &[
            ("-1", "off: not 1", "0", Some("counts as 0")),
            ("-2", "off: not 1", "0", Some("counts as 0")),
            ("0x1", "on", "1", None),
            ("2", "off: not 1", "0", Some("counts as 0")),
            ("", "0: the default", "0", None),
            ("yes", "0", "0", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_DISABLE",
        "RAILWEAVE_FABRIC",
        &[
            ("-1", "on: not 0", "tcp", Some("counts as 1")),
            ("-2", "on: not 0", "tcp", Some("counts as 1")),
            ("0x1", "on", "tcp", None),
            ("2", "on: not 0", "tcp", Some("counts as 1")),
            ("", "0: the default", "auto", None),
            ("true", "0", "auto", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_DATA_DIRECT",
        "RAILWEAVE_DATA_DIRECT",
        &[
            ("-1", "off: not above 0", "0", Some("counts as 0")),
            ("-2", "off: not above 0", "0", Some("counts as 0")),
            ("0x2", "2", "2", None),
            ("3", "on: above 0, not 2", "1", Some("counts as 1")),
            ("", "1: the default", "1", None),
            ("only", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_MERGE_NICS",
        "RAILWEAVE_MERGE_NICS",
        &[
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("-2", "on: not 0", "1", Some("counts as 1")),
            ("0x0", "off", "0", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "1: the default", "1", None),
            ("off", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_MERGE_VFS",
        "RAILWEAVE_MERGE_VFS",
        &[
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("-2", "on: not 0", "1", Some("counts as 1")),
            ("0x0", "off", "0", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "1: the default", "1", None),
            ("off", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_DEVICE_PCI_ORDER",
        "RAILWEAVE_PCI_ORDER",
        &[
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("-2", "on: not 0", "1", Some("counts as 1")),
            ("0x0", "off", "0", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "1: the default", "1", None),
            ("no", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_ECE_ENABLE",
        "RAILWEAVE_ECE",
        &[
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("-2", "on: not 0", "1", Some("counts as 1")),
            ("0x0", "off", "0", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "1: the default", "1", None),
            ("off", "0", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "RAILWEAVE_RELAXED_ORDERING",
        &[
            ("-1", "off", "0", Some("counts as 0")),
            ("-2", "off", "0", Some("counts as 0")),
            ("0x1", "1", "1", None),
            ("3", "off", "0", Some("counts as 0")),
            ("", "2: the default", "2", None),
            ("auto", "0", "2", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_ADAPTIVE_ROUTING",
        "RAILWEAVE_ADAPTIVE_ROUTING",
        &[
            ("-2", "the default", "auto", None),
            ("-1", "on: not 0", "1", Some("counts as 1")),
            ("0x0", "off", "0", None),
            ("2", "on: not 0", "1", Some("counts as 1")),
            ("", "-2: the default", "auto", None),
            ("auto", "0: off", "auto", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IB_AR_THRESHOLD",
        "RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD",
        &[
            ("-2", "the default, 8192", "8K", None),
            ("-1", "every message", "0", None),
            ("0x2000", "8192", "8K", None),
            ("2147483648", "no message", "1G", None),
            ("9223372036854775808", "8192: does not fit", "8K", Some("64 bits")),
            ("", "8192: the default", "8K", None),
            ("8K", "8", "8", Some("the number 8, which is all")),
            ("never", "0", "8K", Some("is not a number")),
        ],
    ),
    (
        "NCCL_GDR_FLUSH_DISABLE",
        "RAILWEAVE_FLUSH",
        &[
            ("-1", "disabled: not 0", "0", Some("counts as 1")),
            ("-2", "disabled: not 0", "0", Some("counts as 1")),
            ("0x1", "disabled", "0", None),
            ("2", "disabled: not 0", "0", Some("counts as 1")),
            ("", "0: the default", "1", None),
            ("yes", "0: not disabled", "1", Some("is not a number")),
        ],
    ),
    (
        "NCCL_IBVERBS_LIB",
        "RAILWEAVE_IBVERBS_LIB",
        &[
            ("/opt/lib/", "the default", "libibverbs.so.1", Some("names a directory")),
            ("", "the program itself", "libibverbs.so.1", None),
        ],
    ),
    (
        "NCCL_IB_HCA",
        "RAILWEAVE_RDMA_RAILS",
        &[
            ("mlx5_0,,mlx5_1,", "both", "mlx5_0,mlx5_1", None),
            ("mlx5_0:1,mlx5_1:a", "mlx5_1's port 0", "mlx5_0:1", Some("are ignored")),
            (
                "mlx5_0:1:40000",
                "rail -25536: 16 bits of it",
                "mlx5_0:1",
                Some("rail \"40000\" is not a number from 0 to 32767; invalid parts are ignored"),
            ),
            ("mlx5_0:1:-2:3", "rail -2", "mlx5_0:1::3", Some("rail \"-2\" is not")),
            ("mlx5_0::1:up", "plane 0", "mlx5_0::1", Some("plane \"up\" is not")),
            ("mlx5_0:1:32767:0", "that", "mlx5_0:1:32767:0", None),
            ("^=mlx5_0:-1", "all others", "^=mlx5_0", None),
            ("=^mlx5_0,mlx5_1", "mlx5_1", "=mlx5_1", Some("may only lead")),
            ("mlx5_0+mlx5_1,mlx5_2", "mlx5_2", "mlx5_2", Some("only lists of Railweave's own join ports with +")),
            ("mlx5_0:1:2:3:4", "four fields of it", "any", Some("more than four fields")),
            ("^", "none", "any", Some("names nothing")),
            ("=", "all", "any", Some("names nothing")),
            (":1", "all", "any", Some("has no name")),
            ("", "all", "any", None),
        ],
    ),
    (
        "NCCL_SOCKET_IFNAME",
        "RAILWEAVE_OOB_IF",
        &[
            ("eth0 ", "none of this name", "eth0", None),
            ("eth0,10.0.0.0/99", "the first", "eth0", Some("prefix length from 0 to 32")),
            ("", "any", "any", None),
        ],
    ),
];

#[test]
fn nccls_own_odd_values_stop_nothing() {
    for (variable, own, rows) in VARIABLES {
        for (text, nccl, expected, warned) in *rows {
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
}

/// A kind of odd value, and a function that returns true for a row of that kind.
type Kind = (&'static str, fn(&Row) -> bool);

/// The kinds of odd value that are tested for every variable that holds a number.
const KINDS: [Kind; 6] = [
    ("-1", |(text, ..)| *text == "-1"),
    ("-2", |(text, ..)| *text == "-2"),
    ("hexadecimal", |(text, ..)| text.len() > 2 && text.starts_with("0x")),
    ("beyond the range", |(text, .., warned)| {
        text.starts_with(|c| matches!(c, '1'..='9')) && text.parse::<u64>().is_ok() && warned.is_some()
    }),
    ("empty", |(text, ..)| text.is_empty()),
    ("no number", |(.., warned)| *warned == Some("is not a number")),
];

#[test]
fn every_variable_of_nccl_has_its_odd_values() {
    let nccls = TABLE
        .iter()
        .flat_map(Entry::all_variables)
        .filter(|name| name.starts_with("NCCL_") && !name.starts_with("NCCL_MESH_"));
    for name in nccls {
        let (.., rows) = VARIABLES.iter().find(|(variable, ..)| *variable == name).unwrap_or_else(|| panic!("{name}"));
        if TEXTS.contains(&name) {
            let is_refused = rows.iter().any(|(.., warned)| warned.is_some());
            assert!(is_refused && rows.iter().any(|(text, ..)| text.is_empty()), "{name}");
            continue;
        }
        for (kind, is_of) in KINDS {
            assert!(rows.iter().any(is_of), "{name}: no value that is {kind}");
        }
    }
}

/// Returns the variable that wins over this one: that of the first setting that reads it.
fn main_variable(variable: &str) -> &'static str {
    TABLE.iter().find(|entry| entry.all_variables().any(|name| name == variable)).unwrap().variable()
}
