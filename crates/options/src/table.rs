//! The table itself: every setting, once.

use crate::error::{OptionErrors, Warning};
use crate::filter::RailFilter;
use crate::nccl;
use crate::number;
use crate::rdma::{self, AdaptiveRouting, GidIndices};
use crate::setting::{Reader, Setting, Show, Source, Variable, nccls, variable};
use crate::value::{self, Congestion, Fabric, Lanes, MAX_LANES, PortRange, Weights};
use railweave_fabric::{AddressRange, DataDirect, Family, Mode, RelaxedOrdering};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// One setting as people see it: a line of [`TABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The name of its field in [`Options`].
    pub name: &'static str,
    /// Its variables in order of precedence, the setting's own `RAILWEAVE_*` first. Two in one item make one value
    /// together.
    pub variables: &'static [[Option<&'static str>; 2]],
    /// What its own variable may hold.
    pub allowed: &'static str,
    /// A value of its own variable, to show how one is written.
    pub example: &'static str,
    /// The default in words.
    pub default: &'static str,
    /// What it does: one or two sentences.
    pub help: &'static str,
}

impl Entry {
    /// The setting's own variable, which wins over all others.
    pub fn variable(&self) -> &'static str {
        self.all_variables().next().unwrap_or_default()
    }

    /// Every variable that can set it, in order of precedence.
    pub fn all_variables(&self) -> impl Iterator<Item = &'static str> {
        self.variables.iter().flatten().flatten().copied()
    }
}

/// A setting as it stands: what a log or a program shows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The setting.
    pub entry: &'static Entry,
    /// Its value, written as in a variable where that can be.
    pub value: String,
    /// Where the value came from.
    pub source: Source,
}

/// Makes the struct, the table and the parser from one list.
macro_rules! options {
    ($(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty {
            variables: $variables:expr,
            default: $default:expr, $shown:literal,
            help: $help:literal,
        }
    )+) => {
        /// Every setting, read and checked. See `docs/options.md` for what each means to a user.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Options {
            $( $(#[doc = $doc])+ pub $field: Setting<$type>, )+
        }

        /// Every setting, in the order in which they are documented.
        pub static TABLE: &[Entry] = &[$({
            const VARIABLES: &[Variable<$type>] = &$variables;
            const NAMES: &[[Option<&str>; 2]] = &names::<$type, { VARIABLES.len() }>(VARIABLES);
            Entry {
                name: stringify!($field),
                variables: NAMES,
                allowed: VARIABLES[0].allowed(),
                example: VARIABLES[0].example(),
                default: $shown,
                help: $help,
            }
        }),+];

        impl Options {
            /// Reads every setting through `lookup`, which gives a variable's value.
            ///
            /// # Errors
            ///
            /// Every variable that counts and whose value cannot be used.
            pub fn parse(
                lookup: impl Fn(&str) -> Option<OsString>,
            ) -> Result<(Options, Vec<Warning>), OptionErrors> {
                let mut reader = Reader { lookup, errors: Vec::new(), warnings: Vec::new() };
                let options = Options { $( $field: reader.read::<$type>(&$variables, $default), )+ };
                if reader.errors.is_empty() {
                    Ok((options, reader.warnings))
                } else {
                    Err(OptionErrors(reader.errors))
                }
            }

            /// Every setting as it stands, in the order of [`TABLE`].
            pub fn rows(&self) -> Vec<Row> {
                let shown = [$( (self.$field.value.show(), self.$field.source) ),+];
                let rows = TABLE.iter().zip(shown);
                rows.map(|(entry, (value, source))| Row { entry, value, source }).collect()
            }
        }
    };
}

/// What a list of names may hold.
const FILTER: &str = "[^][=]item,item,... where an item is name[:port[:rail[:plane]]], address/length or an address";

/// What a range of addresses may be.
const RANGE: &str = "address/length, or one address";

/// What a library's name may be.
const LIBRARY: &str = "the name or the file of a shared library";

/// What NCCL's variables for GID indices may hold.
const GID_INDEX: &str = "a number from 0 to 255, or -1 for none in particular";

/// What the length of a prefix may be.
const PREFIX_LENGTH: &str = "a number from 1 to 32, or -1 for the interface's";

/// What a number of bytes may be.
const BYTES: &str = "bytes from 0 to 1G; K, M and G count in 1024s";

const HANDSHAKE_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));
const PEER_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

options! {
    /// Which network carries the data.
    fabric: Fabric {
        variables: [
            variable("RAILWEAVE_FABRIC", "auto, tcp or verbs", "auto", Fabric::parse),
            nccls("NCCL_IB_DISABLE", "0 or 1", "0", nccl::disabled),
        ],
        default: Fabric::Auto, "auto",
        help: "Which network carries the data: `verbs` (RDMA), `tcp`, or `auto`: RDMA where a port is active, else TCP. \
               `NCCL_IB_DISABLE=1` means `tcp`.",
    }
    /// What one device is; `None` leaves it to the fabric.
    mode: Option<Mode> {
        variables: [variable("RAILWEAVE_MODE", "auto, ports or fused", "auto", value::mode)],
        default: None, "auto",
        help: "What NCCL sees: one device for each port (`ports`), one over all of them (`fused`), or `auto`: \
               `ports` on RDMA (but `fused` where `MPIB_HCA_SOUT` and `MPIB_HCA_SUP` name its rails), `fused` on TCP.",
    }
    /// Which ports become rails; `None` leaves the choice to the topology's own rules.
    rails: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_RAILS", FILTER, "eth0,eth1", filter),
            nccls("NCCL_SOCKET_IFNAME", FILTER, "eth", nccl::filter),
        ],
        default: None, "every usable one",
        help: "Which ports become rails. `^` leaves out what the list matches, `=` asks for whole names, an item may be a \
               range of addresses, or one address. Rails come in the list's order. `NCCL_SOCKET_IFNAME` counts on TCP, and \
               gives no order.",
    }
    /// Which RDMA ports become rails; `None` leaves the choice to the topology's own rules.
    rdma_rails: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_RDMA_RAILS", FILTER, "mlx5_0,mlx5_1", filter),
            variable("RAILWEAVE_RAILS", FILTER, "mlx5_0,mlx5_1", filter),
            variable("MPIB_HCA_SOUT", "name[:port] of one device", "mlx5_0", rdma::one_device)
                .and("MPIB_HCA_SUP", rdma::join_devices),
            nccls("NCCL_IB_HCA", FILTER, "mlx5", nccl::filter),
        ],
        default: None, "every usable one",
        help: "Which RDMA ports become rails, where TCP is to have another list than RDMA. Names are those of RDMA devices \
               (`rdma link` lists them), addresses those of their GIDs. `MPIB_HCA_SOUT` names the first rail, \
               `MPIB_HCA_SUP` the second.",
    }
    /// How traffic is shared between rails until something steers it.
    weights: Weights {
        variables: [variable(
            "RAILWEAVE_WEIGHTS",
            "1 to 8 whole numbers from 0 to 1000000 with commas between, not all 0",
            "80,20",
            Weights::parse,
        )],
        default: Weights::BySpeed, "by speed",
        help: "How traffic is shared between the rails of a connection, in their order. A rail with weight 0, or past \
               the end of the list, carries nothing while another is usable.",
    }
    /// How many lanes each rail has.
    lanes: Lanes {
        variables: [
            variable("RAILWEAVE_LANES", "a number from 1 to 16, or up to 8 of them with commas between", "2", Lanes::parse),
            variable("MPIB_SOUT_QP", "a number from 1 to 16", "1", Lanes::parse_count).and("MPIB_SUP_QP", Lanes::join),
            nccls("NCCL_IB_QPS_PER_CONNECTION", "a number from 1 to 16", "1", |text| {
                nccl::byte(text, 1, MAX_LANES).map(Lanes::on_every_rail)
            }),
        ],
        default: Lanes::on_every_rail(1), "1",
        help: "Lanes (queue pairs or sockets) of each rail: one number for all, or a list with one for each, of which \
               the last holds for the rails that follow. Both sides use the smaller number. `MPIB_SOUT_QP` is for the \
               first rail, `MPIB_SUP_QP` for the second.",
    }
    /// Which interface carries the control sessions; `None` leaves the choice to the handshake.
    oob_interface: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_OOB_IF", FILTER, "eth0", filter),
            variable("MPIB_OOB_IF", FILTER, "eth0", filter),
            nccls("NCCL_SOCKET_IFNAME", FILTER, "eth", nccl::filter),
        ],
        default: None, "the interfaces of the rails",
        help: "Which interface the handshake uses when two hosts share no subnet between their rails. The syntax is \
               that of `RAILWEAVE_RAILS`.",
    }
    /// Which TCP port the control thread listens on.
    control_port: PortRange {
        variables: [variable(
            "RAILWEAVE_CONTROL_PORT",
            "0 (any free port), a port from 1 to 65535, or a range such as 5000-5100",
            "5000-5100",
            PortRange::parse,
        )],
        default: PortRange { first: 0, last: 0 }, "0 (any free port)",
        help: "The TCP port for handshakes. Give a range that a firewall lets through; each process on a host needs \
               one port of it.",
    }
    /// Which addresses of this host the control port listens on; `None` leaves the choice to the plugin.
    control_address: Option<RailFilter> {
        variables: [variable("RAILWEAVE_CONTROL_ADDRESS", FILTER, "eth0,10.0.0.0/8", filter)],
        default: None, "all (loopback's alone where every rail is loopback)",
        help: "Which addresses of this host the control port listens on: interfaces or addresses, in the syntax of \
               `RAILWEAVE_RAILS`. On TCP the lanes come in there too, so every rail's address must be among them.",
    }
    /// A file with a key that all processes of the job share; `None` lets any process connect.
    key_file: Option<PathBuf> {
        variables: [
            variable("RAILWEAVE_KEY_FILE", "the absolute path of a file", "/etc/railweave/key", key_file)
                .never_empty("is empty: the job would run without a key, and any process could connect (unset it for that)"),
        ],
        default: None, "none: any process may connect",
        help: "A file with a secret of 16 to 4096 bytes, the same on every host: 32 random ones, as from \
               `head -c 32 /dev/urandom`, not words, because a process that dials an address proves first, and words can be \
               guessed from that. Processes then prove to each other that they have it, and one that has not gets no \
               further. Only the user who runs the job may have access to it (mode 0600 or 0400). Data is neither encrypted \
               nor signed: who can change packets between the hosts can change what the job sends.",
    }
    /// How long one step of the handshake may take: 100 ms to 3600 s.
    handshake_timeout: Duration {
        variables: [
            variable(
                "RAILWEAVE_HANDSHAKE_TIMEOUT",
                "seconds from 0.1 to 3600, or milliseconds with the unit ms",
                "30",
                |text| number::seconds(text, HANDSHAKE_TIMEOUT.0, HANDSHAKE_TIMEOUT.1),
            ),
            variable("NCCL_MESH_TIMEOUT_MS", "milliseconds from 100 to 3600000", "30000", |text| {
                number::milliseconds(text, HANDSHAKE_TIMEOUT.0, HANDSHAKE_TIMEOUT.1)
            }),
        ],
        default: Duration::from_secs(30), "30 s",
        help: "How long one step of the handshake may take before connect or accept fails.",
    }
    /// Messages of fewer bytes travel on one rail: 0 to 1 GiB.
    split_min: u64 {
        variables: [variable("RAILWEAVE_SPLIT_MIN", BYTES, "8K", |text| number::bytes(text, 1 << 30))],
        default: 8192, "8K",
        help: "Messages of fewer bytes travel whole on one rail; the other rails make up for it later.",
    }
    /// Large messages are striped over all lanes of each rail.
    split_data_on_lanes: bool {
        variables: [
            variable("RAILWEAVE_SPLIT_DATA_ON_LANES", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_SPLIT_DATA_ON_QPS", "0 or 1", "1", nccl::split_data),
        ],
        default: false, "0",
        help: "With 1, messages of 64K and more are striped over all lanes of each rail that carries a part of them. \
               With 0, each message takes one lane of a rail, and messages take the lanes in turn.",
    }
    /// The size of each socket's send buffer, and of its receive buffer, in bytes: 0 (the kernel tunes them), or 64 KiB
    /// to 256 MiB.
    socket_buffer: u64 {
        variables: [variable(
            "RAILWEAVE_SOCKET_BUFFER",
            "0 (the kernel tunes it), or bytes from 64K to 256M; K, M and G count in 1024s",
            "4M",
            socket_buffer,
        )],
        default: 0, "0 (the kernel tunes it)",
        help: "TCP only: the size of each lane's send buffer and of its receive buffer (`SO_SNDBUF`, `SO_RCVBUF`). The \
               kernel's limits `net.core.wmem_max` and `net.core.rmem_max` hold.",
    }
    /// The congestion control of each lane.
    tcp_congestion: Congestion {
        variables: [variable(
            "RAILWEAVE_TCP_CONGESTION",
            "auto, kernel (its own choice), or a name from /proc/sys/net/ipv4/tcp_available_congestion_control",
            "cubic",
            Congestion::parse,
        )],
        default: Congestion::Auto, "auto",
        help: "TCP only: the congestion control of each lane (`TCP_CONGESTION`). `auto` is the kernel's own choice between \
               hosts, and `reno` inside of one, where nothing is lost. Where the kernel's is `bbr`, which paces what it sends, \
               and the network between the hosts is their own and loses nothing, `cubic` is faster.",
    }
    /// The traffic class of the data, 0 to 255; `None` leaves it to what NCCL asks for.
    traffic_class: Option<u8> {
        variables: [
            variable("RAILWEAVE_TRAFFIC_CLASS", "a number from 0 to 255, or -1 for none", "96", traffic_class),
            nccls("NCCL_IB_TC", "a number from 0 to 255, or -1 for none", "96", |text| nccl::byte_or_none(text, 255)),
        ],
        default: None, "-1 (what NCCL asks for)",
        help: "The traffic class of the data: the byte that holds DSCP and ECN, on TCP and on RoCE.",
    }
    /// How long a lane or a session may stay without any answer before the peer counts as gone: 1 s to 3600 s.
    peer_timeout: Duration {
        variables: [variable(
            "RAILWEAVE_PEER_TIMEOUT",
            "seconds from 1 to 3600, or milliseconds with the unit ms",
            "30",
            |text| number::seconds(text, PEER_TIMEOUT.0, PEER_TIMEOUT.1),
        )],
        default: Duration::from_secs(30), "30 s",
        help: "How long a lane with data under way may stay without any acknowledgement from the peer's host, and the peer's \
               process without an answer to a heartbeat, before the peer counts as gone. A process may stand still for less \
               than that, as in a debugger.",
    }
    /// The library that RDMA goes through: a file, or a name that the dynamic linker finds.
    ibverbs_library: String {
        variables: [
            variable("RAILWEAVE_IBVERBS_LIB", LIBRARY, "libibverbs.so.1", rdma::library),
            nccls("NCCL_IBVERBS_LIB", LIBRARY, "libibverbs.so.1", nccl::library),
        ],
        default: "libibverbs.so.1".to_owned(), "libibverbs.so.1",
        help: "RDMA only: the library to load, by a name that the dynamic linker finds, or by its file.",
    }
    /// The library of NVIDIA's adapters: a file, or a name that the dynamic linker finds.
    mlx5_library: String {
        variables: [variable("RAILWEAVE_MLX5_LIB", LIBRARY, "libmlx5.so.1", rdma::library)],
        default: "libmlx5.so.1".to_owned(), "libmlx5.so.1",
        help: "RDMA only: the library of NVIDIA's adapters, for `RAILWEAVE_DATA_DIRECT`: a name that the dynamic \
               linker finds, or its file. It is loaded where an adapter is NVIDIA's and takes dma-bufs.",
    }
    /// How ports with a Data Direct engine are shown.
    data_direct: DataDirect {
        variables: [
            variable("RAILWEAVE_DATA_DIRECT", "0, 1 or 2", "1", rdma::data_direct),
            nccls("NCCL_IB_DATA_DIRECT", "0, 1 or 2", "1", nccl::data_direct),
        ],
        default: DataDirect::Only, "1",
        help: "RDMA only: how an adapter is shown that reaches GPU memory past the processor (Data Direct of \
               ConnectX-8): with 1 as a device of its own, `mlx5_0_dma`, in place of `mlx5_0`; with 2 beside it (one \
               fused device then takes `mlx5_0_dma` alone); with 0 as any other adapter. It counts as 0 where NCCL is \
               older than 2.24 (net API v6 to v8), which cannot be told to flush on every GPU.",
    }
    /// Which entry of its GID table each RoCE device uses.
    gid_index: GidIndices {
        variables: [
            variable(
                "RAILWEAVE_GID_INDEX",
                "a number from 0 to 255, -1 for none in particular, or device:number,device:number,...",
                "mlx5_0:3,mlx5_1:5",
                GidIndices::parse,
            ),
            variable("NCCL_MESH_GID_INDEX", GID_INDEX, "3", GidIndices::parse_one),
            nccls("NCCL_IB_GID_INDEX", GID_INDEX, "3", nccl::gid_index),
        ],
        default: GidIndices::Automatic, "-1 (chosen by the four settings that follow)",
        help: "RoCE only: the entry of the GID table that a port uses (`show_gids` lists them): one for all devices, or a \
               list by device; devices that are not in the list use what the rules choose.",
    }
    /// The version of RoCE: 1 or 2.
    roce_version: u8 {
        variables: [
            variable("RAILWEAVE_ROCE_VERSION", "1 or 2", "2", |text| rdma::byte(text, 1, 2)),
            nccls("NCCL_IB_ROCE_VERSION_NUM", "1 or 2", "2", nccl::roce_version),
        ],
        default: 2, "2",
        help: "RoCE only: the version of the GIDs to use. Version 1 cannot be routed.",
    }
    /// The family of the addresses of RoCE ports.
    address_family: Option<Family> {
        variables: [
            variable("RAILWEAVE_ADDRESS_FAMILY", "auto, ipv4 or ipv6", "auto", rdma::address_family),
            nccls("NCCL_IB_ADDR_FAMILY", "AF_INET or AF_INET6", "AF_INET", nccl::address_family),
        ],
        default: None, "auto (IPv4; IPv6 where a port has no IPv4)",
        help: "RoCE only: the family of the GIDs to use.",
    }
    /// The range of the addresses of RoCE ports; `None` takes any.
    address_range: Option<AddressRange> {
        variables: [
            variable("RAILWEAVE_ADDRESS_RANGE", RANGE, "10.0.0.0/8", rdma::address_range),
            nccls("NCCL_IB_ADDR_RANGE", "address/length", "10.0.0.0/8", nccl::address_range),
        ],
        default: None, "any",
        help: "RoCE only: the addresses that a GID may have. A port without one of these is left out.",
    }
    /// Length in bits of the prefix of RoCE ports' IPv4 networks, 1 to 32; `None` takes the interface's.
    prefix_length: Option<u8> {
        variables: [
            variable("RAILWEAVE_PREFIX_LENGTH", PREFIX_LENGTH, "24", rdma::prefix_length),
            nccls("NCCL_IB_SUBNET_PREFIX_LEN", PREFIX_LENGTH, "24", nccl::prefix_length),
        ],
        default: None, "-1 (the interface's; 24 where it is not known)",
        help: "RoCE only: how many bits of an IPv4 address name its subnet. Ports on one subnet become a rail.",
    }
    /// The entry of an InfiniBand port's GID table that routers between subnets use, 0 to 255.
    flid_gid_index: u8 {
        variables: [
            variable("RAILWEAVE_FLID_GID_INDEX", "a number from 0 to 255", "1", |text| rdma::byte(text, 0, 255)),
            nccls("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "a number from 0 to 255", "1", |text| nccl::byte(text, 0, 255)),
        ],
        default: 1, "1",
        help: "InfiniBand only: the entry of the GID table that is used when it has a number for routers (a FLID); else \
               entry 0 is.",
    }
    /// Whether virtual functions count as one adapter.
    merge_vfs: bool {
        variables: [
            variable("RAILWEAVE_MERGE_VFS", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_MERGE_VFS", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: with 1, NCCL sees the virtual functions of an adapter as ports of that one adapter.",
    }
    /// Whether RDMA devices are ordered by PCI address.
    pci_order: bool {
        variables: [
            variable("RAILWEAVE_PCI_ORDER", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_DEVICE_PCI_ORDER", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: with 1, devices are numbered by PCI address (`domain:bus:device.function`), so that numbers agree \
               between hosts that are alike; with 0, by name. A list in `RAILWEAVE_RAILS`, `RAILWEAVE_RDMA_RAILS` or \
               `MPIB_HCA_SOUT` and `MPIB_HCA_SUP` numbers them by its own order; that of `NCCL_IB_HCA` does not, as with \
               NCCL's own transport.",
    }
    /// The local ACK timeout of lanes: 4.096 µs × 2^n, 0 to 31, where 0 is for ever.
    ack_timeout: u8 {
        variables: [
            variable("RAILWEAVE_ACK_TIMEOUT", "a number from 0 to 31", "20", |text| rdma::byte(text, 0, 31)),
            nccls("NCCL_IB_TIMEOUT", "a number from 0 to 31", "20", |text| nccl::byte(text, 0, 31)),
        ],
        default: 20, "20 (4.3 s)",
        help: "RDMA only: how long an adapter waits for an acknowledgement before it sends a packet again: 4.096 µs × 2^n, \
               where 0 is for ever.",
    }
    /// How often a packet is sent again, 0 to 7.
    retry_count: u8 {
        variables: [
            variable("RAILWEAVE_RETRY_COUNT", "a number from 0 to 7", "7", |text| rdma::byte(text, 0, 7)),
            nccls("NCCL_IB_RETRY_CNT", "a number from 0 to 7", "7", |text| nccl::byte(text, 0, 7)),
        ],
        default: 7, "7",
        help: "RDMA only: how often an adapter sends a packet again before the lane fails.",
    }
    /// How often a change of a queue pair's state is tried again.
    modify_retries: u32 {
        variables: [
            variable("RAILWEAVE_MODIFY_RETRIES", "a number from 0 to 1000000", "34", rdma::count),
            nccls("NCCL_IB_MQP_RETRY_CNT", "a number from 0 to 1000000", "34", nccl::retries),
        ],
        default: 34, "34",
        help: "RDMA only: how often a change of a queue pair's state (`ibv_modify_qp`) is tried again when the kernel \
               answers that it timed out, as it does while it looks a peer's address up. `RAILWEAVE_HANDSHAKE_TIMEOUT` ends \
               it in any case.",
    }
    /// The pause before such a change is tried again; the second pause is twice as long, the third three times.
    modify_retry_pause: Duration {
        variables: [
            variable(
                "RAILWEAVE_MODIFY_RETRY_PAUSE",
                "seconds from 0 to 3600, or milliseconds with the unit ms",
                "100ms",
                |text| number::seconds(text, Duration::ZERO, Duration::from_secs(3600)),
            ),
            nccls("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "milliseconds from 0 to 3600000", "100", nccl::retry_pause),
        ],
        default: Duration::from_millis(100), "0.1 s",
        help: "RDMA only: the pause before such a change is tried again. The second pause is twice as long, the third three \
               times, and so on; other connections are set up meanwhile.",
    }
    /// Whether such a change is tried again after any error.
    modify_retry_all: bool {
        variables: [
            variable("RAILWEAVE_MODIFY_RETRY_ALL", "0 or 1", "0", number::switch),
            nccls("NCCL_IB_MQP_RETRY_ALL", "0 or 1", "0", nccl::switch),
        ],
        default: false, "0",
        help: "RDMA only: with 1, such a change is tried again after any error, not only after a time-out.",
    }
    /// Whether connections are lost when an event says that their device or queue failed.
    return_events: bool {
        variables: [
            variable("RAILWEAVE_RETURN_ASYNC_EVENTS", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_RETURN_ASYNC_EVENTS", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: whether a connection fails when its device says that it, or one of the connection's queues, has \
               failed. With 0 the log says it, and nothing else happens.",
    }
    /// Index into the ports' tables of partition keys.
    pkey_index: u16 {
        variables: [
            variable("RAILWEAVE_PKEY_INDEX", "a number from 0 to 65535", "0", rdma::pkey_index),
            nccls("NCCL_IB_PKEY", "a number from 0 to 65535", "0", nccl::pkey_index),
        ],
        default: 0, "0",
        help: "RDMA only: the index of the partition key to use, in the port's table of partition keys.",
    }
    /// The service level of lanes, 0 to 15; `None` leaves it to what NCCL asks for.
    service_level: Option<u8> {
        variables: [
            variable("RAILWEAVE_SERVICE_LEVEL", "a number from 0 to 15, or -1 for none", "1", rdma::service_level),
            nccls("NCCL_IB_SL", "a number from 0 to 15, or -1 for none", "1", |text| nccl::byte_or_none(text, 15)),
        ],
        default: None, "-1 (what NCCL asks for on InfiniBand, else 0)",
        help: "RDMA only: the service level of the data.",
    }
    /// The traffic class of CTS, 0 to 255; `None` gives them that of the data.
    cts_traffic_class: Option<u8> {
        variables: [
            variable("RAILWEAVE_CTS_TRAFFIC_CLASS", "a number from 0 to 255, or -1 for none", "160", traffic_class),
            nccls("NCCL_IB_FIFO_TC", "a number from 0 to 255, or -1 for none", "160", |text| nccl::byte_or_none(text, 255)),
        ],
        default: None, "-1 (that of the data)",
        help: "RoCE only: the traffic class of the receiver's notes to the sender that buffers are ready (CTS).",
    }
    /// Whether lanes agree on enhanced connection establishment.
    ece: bool {
        variables: [
            variable("RAILWEAVE_ECE", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_ECE_ENABLE", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: with 1, both adapters agree on features beyond the standard (enhanced connection establishment, \
               congestion control among them) where both have them.",
    }
    /// When memory is registered with relaxed ordering.
    relaxed_ordering: RelaxedOrdering {
        variables: [
            variable("RAILWEAVE_RELAXED_ORDERING", "0, 1 or 2", "2", rdma::relaxed_ordering),
            nccls("NCCL_IB_PCI_RELAXED_ORDERING", "0, 1 or 2", "2", nccl::relaxed_ordering),
        ],
        default: RelaxedOrdering::WhereKnown, "2",
        help: "RDMA only: whether adapters may write data into memory in any order, which is faster on some hosts: 0 never, \
               1 always, 2 where the library can.",
    }
    /// Whether the adapters report how many bytes a write had.
    byte_counts: bool {
        variables: [variable("RAILWEAVE_BYTE_COUNTS", "0 or 1", "1", number::switch)],
        default: true, "1",
        help: "RDMA only: whether receive completions of a write carry its length, as the specification wants it. Set it \
               to 0 for an adapter that reports wrong lengths; each message then costs one more work request.",
    }
    /// Whether the lanes of a rail share one receive queue; `None` where there are several.
    shared_receives: Option<bool> {
        variables: [variable("RAILWEAVE_SRQ", "auto, 0 or 1", "auto", rdma::switch_or_auto)],
        default: None, "auto (with several lanes)",
        help: "RDMA only: whether the lanes of a rail share one receive queue, where the adapter has such queues: \
               `auto` where there are several lanes, 1 always, 0 never. A lane with a queue of its own costs more memory \
               beside others, and alone it notices sooner when the adapter gives it up.",
    }
    /// Whether adaptive routing may change the order of packets.
    adaptive_routing: AdaptiveRouting {
        variables: [
            variable("RAILWEAVE_ADAPTIVE_ROUTING", "auto, 0 or 1", "auto", AdaptiveRouting::parse),
            nccls("NCCL_IB_ADAPTIVE_ROUTING", "0, 1, or -2 for the default", "1", nccl::adaptive_routing),
        ],
        default: AdaptiveRouting::Auto, "auto (on InfiniBand)",
        help: "RDMA only: with 1, large messages end in a write of their own, so that switches may send their data on any \
               way; `auto` does so on InfiniBand.",
    }
    /// Messages of more bytes count as large for adaptive routing.
    adaptive_routing_threshold: u64 {
        variables: [
            variable("RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", BYTES, "8K", |text| number::bytes(text, 1 << 30)),
            nccls("NCCL_IB_AR_THRESHOLD", "a number of bytes, or -2 for the default", "8192", nccl::adaptive_routing_threshold),
        ],
        default: 8192, "8K",
        help: "RDMA only: messages of more bytes are large for `RAILWEAVE_ADAPTIVE_ROUTING`.",
    }
    /// Whether GPU memory is flushed when NCCL asks for it.
    flush: bool {
        variables: [
            variable("RAILWEAVE_FLUSH", "0 or 1", "1", number::switch),
            nccls("NCCL_GDR_FLUSH_DISABLE", "0 or 1", "0", |text| nccl::switch(text).map(|disabled| !disabled)),
        ],
        default: true, "1",
        help: "RDMA only: with 0, received data is not flushed into GPU memory even where NCCL asks for it. \
               `NCCL_GDR_FLUSH_DISABLE=1` means 0.",
    }
}

/// The names of `variables`, for the table.
const fn names<T, const N: usize>(variables: &[Variable<T>]) -> [[Option<&'static str>; 2]; N] {
    let mut names = [[None; 2]; N];
    let mut index = 0;
    while index < N {
        names[index] = variables[index].names();
        index += 1;
    }
    names
}

fn filter(text: &str) -> Result<Option<RailFilter>, String> {
    RailFilter::parse(text).map(Some)
}

/// Below 64 KiB Linux's loopback moves a few kilobytes per timer tick.
fn socket_buffer(text: &str) -> Result<u64, String> {
    match number::bytes(text, 256 << 20)? {
        bytes @ 1..0x1_0000 => Err(format!("is {bytes} bytes, with which TCP crawls")),
        bytes => Ok(bytes),
    }
}

fn key_file(text: &str) -> Result<Option<PathBuf>, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(Some(path)) } else { Err("is no absolute path".into()) }
}

fn traffic_class(text: &str) -> Result<Option<u8>, String> {
    number::whole(text, -1, 255).map(|number| u8::try_from(number).ok())
}
