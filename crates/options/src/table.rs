//! The table itself: every setting, once.

use crate::allowed::{
    BUFFER, BYTES, FILTER, FOLDER, GID_INDEX, GROUPS, HANDSHAKE_SECONDS, HANDSHAKE_TIMEOUT, LANES, LIBRARY,
    MESH_TIMEOUT, OUTAGE, PEER_SECONDS, POLICIES, PORTS, PREFIX_LENGTH, RAIL_TIMEOUT, RANGE, THRESHOLD, TRACE_BYTES,
    WEIGHTS,
};
use crate::entry::{Entry, Row};
use crate::error::{OptionErrors, Warning};
use crate::filter::{RailFilter, filter};
use crate::nccl;
use crate::number;
use crate::rdma::{self, AdaptiveRouting, GidIndices, traffic_class};
use crate::setting::{Reader, Setting, Show, Variable, names, nccls, variable};
use crate::value::{self, Congestion, Fabric, Lanes, MAX_LANES, PortRange, RunDir, Weights};
use railweave_fabric::{AddressRange, DataDirect, Family, Mode, PolicyName, RelaxedOrdering};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

options! {
    /// The network that carries the data.
    fabric: Fabric {
        variables: [
            variable("RAILWEAVE_FABRIC", "auto, tcp or verbs", "auto", Fabric::parse),
            nccls("NCCL_IB_DISABLE", "0 or 1", "0", nccl::disabled),
        ],
        default: Fabric::Auto, "auto",
        help: "The network that carries the data: `verbs` (RDMA), `tcp`, or `auto`, which takes RDMA if a port is \
               active and TCP otherwise. `NCCL_IB_DISABLE=1` means `tcp`.",
    }
    /// The devices that NCCL sees; `None` leaves the choice to discovery.
    mode: Option<Mode> {
        variables: [
            variable("RAILWEAVE_MODE", "auto, ports, fused, adapters or mesh", "auto", value::mode),
            variable("NCCL_MESH_GID_INDEX", GID_INDEX, "3", value::mesh),
            variable("NCCL_MESH_TIMEOUT_MS", MESH_TIMEOUT, "30000", value::mesh),
            variable("NCCL_MESH_DEBUG", "0 or 1", "1", value::mesh),
        ],
        default: None, "auto",
        help: "The devices that NCCL sees: one for each port (`ports`), one for each adapter (`adapters`), or one over \
               all ports (`fused`). `mesh` is `fused` for hosts that are joined by direct cables: the two halves of \
               one adapter's link share its traffic evenly, whatever speed they report. `auto` means `fused` on TCP; \
               on RDMA it means `fused` if `MPIB_HCA_SOUT` and `MPIB_HCA_SUP` name the rails or a list has groups, \
               and `ports` otherwise. `NCCL_MESH_GID_INDEX`, `NCCL_MESH_TIMEOUT_MS` and `NCCL_MESH_DEBUG` mean `mesh`.",
    }
    /// The ports that become rails; `None` takes all usable ones.
    rails: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_RAILS", GROUPS, "eth0,eth1", filter),
            nccls("NCCL_SOCKET_IFNAME", FILTER, "eth", nccl::filter),
        ],
        default: None, "all usable ones",
        help: "The ports that become rails. A name matches every port whose name starts with it; `=` before the list \
               requires whole names, and `^` leaves out the ports that the list matches. An item may also be an \
               address or a range of addresses. Rails come in the list's order. A `+` joins items into a group: in \
               the mode `fused`, which it implies, `a+b,c+d` makes two devices of two ports each. \
               `NCCL_SOCKET_IFNAME` is read on TCP only, and sets no order.",
    }
    /// The RDMA ports that become rails; `None` takes all usable ones.
    rdma_rails: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_RDMA_RAILS", GROUPS, "mlx5_0,mlx5_1", filter),
            variable("RAILWEAVE_RAILS", GROUPS, "mlx5_0,mlx5_1", filter),
            variable("MPIB_HCA_SOUT", "name[:port] of one device", "mlx5_0", rdma::one_device)
                .and_always("MPIB_HCA_SUP", rdma::join_devices),
            nccls("NCCL_IB_HCA", FILTER, "mlx5", nccl::filter),
        ],
        default: None, "all usable ones",
        help: "The RDMA ports that become rails, if RDMA needs another list than TCP. Names are those of RDMA devices \
               (`rdma link` lists them), addresses those of their GIDs. The rest of the syntax is that of \
               `RAILWEAVE_RAILS`. `MPIB_HCA_SOUT` names the first rail, `MPIB_HCA_SUP` the second; each needs the \
               other, and a port that is there.",
    }
    /// The source of the split; `None` means the weights if they are set, otherwise an agent's file while there is one,
    /// otherwise the rails' rates.
    policy: Option<PolicyName> {
        variables: [variable("RAILWEAVE_POLICY", POLICIES, "adaptive", value::policy)],
        default: None, "auto",
        help: "The source of the split of messages between rails. `adaptive` measures the rate at which each rail \
               carries what it is given, and follows it within some ten messages. `static` takes the weights of \
               `RAILWEAVE_WEIGHTS`, which must be set; `speed` the speeds that the ports report; `agent` a file that \
               a program outside the job writes, and `adaptive` while there is none. `auto` means `static` if \
               `RAILWEAVE_WEIGHTS` is set, and `agent` otherwise.",
    }
    /// The shares of the rails in the traffic.
    weights: Weights {
        variables: [variable("RAILWEAVE_WEIGHTS", WEIGHTS, "80,20", Weights::parse)],
        default: Weights::Unset, "none",
        help: "The weights by which the rails of a connection share its traffic under the policy `static`, in their \
               order. A rail with weight 0, or past the list's end, carries nothing while one with a weight is usable.",
    }
    /// The number of lanes of each rail.
    lanes: Lanes {
        variables: [
            variable("RAILWEAVE_LANES", LANES, "2", Lanes::parse),
            variable("MPIB_SOUT_QP", "a number from 1 to 16", "1", Lanes::parse_count).and("MPIB_SUP_QP", Lanes::join),
            nccls("NCCL_IB_QPS_PER_CONNECTION", "a number from 1 to 16", "1", |text| {
                nccl::byte(text, 1, MAX_LANES).map(Lanes::on_every_rail)
            }),
        ],
        default: Lanes::on_every_rail(1), "1",
        help: "The number of lanes (queue pairs or sockets) of each rail. A single number applies to all rails; a list \
               has one for each rail, and its last number applies to the rails that follow. Both sides use the smaller \
               of their numbers. `MPIB_SOUT_QP` is for the first rail, `MPIB_SUP_QP` for the others.",
    }
    /// The interface at which peers reach this host if no address of its ports will do; `None` leaves the choice to
    /// discovery.
    oob_interface: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_OOB_IF", FILTER, "eth0", filter),
            variable("MPIB_OOB_IF", FILTER, "eth0", filter),
            nccls("NCCL_SOCKET_IFNAME", FILTER, "eth", nccl::filter),
        ],
        default: None, "the first usable one",
        help: "The interface that the handshake uses if the rails of two hosts share no subnet. On RDMA, peers try the \
               interface's address first, unless the list begins with `^`, and TCP that takes RDMA's place \
               (`RAILWEAVE_HYBRID`) uses the interfaces of the list only. The syntax is that of `RAILWEAVE_RAILS`.",
    }
    /// The TCP port that the control thread listens on.
    control_port: PortRange {
        variables: [variable("RAILWEAVE_CONTROL_PORT", PORTS, "5000-5100", PortRange::parse)],
        default: PortRange { first: 0, last: 0 }, "0, any free port",
        help: "The TCP port for handshakes. Each process on a host needs a port of its own, so give a range that the \
               firewall lets through. On TCP the lanes are accepted there too.",
    }
    /// The addresses of this host that the control port listens on; `None` leaves the choice to discovery.
    control_address: Option<RailFilter> {
        variables: [variable("RAILWEAVE_CONTROL_ADDRESS", FILTER, "eth0,10.0.0.0/8", filter)],
        default: None, "all, or loopback's alone if every rail is loopback",
        help: "The addresses of this host that the control port listens on: interfaces or addresses, in the syntax of \
               `RAILWEAVE_RAILS`. On TCP the lanes are accepted there too, so every rail's address must be among them.",
    }
    /// A file with a key that all processes of the job share; `None` lets any process connect.
    key_file: Option<PathBuf> {
        variables: [
            variable("RAILWEAVE_KEY_FILE", "the absolute path of a file", "/etc/railweave/key", value::key_file)
                .never_empty(
                    "is empty: the job would run without a key, and any process could connect (unset it for that)",
                ),
        ],
        default: None, "none, any process may connect",
        help: "The file with a secret key that all processes of the job share. It holds 16 to 4096 \
               bytes, the same on every host, and only the user who runs the job may have access to it (mode 0600 or \
               0400). Take 32 random bytes, as from `head -c 32 /dev/urandom`, rather than words: a process that dials \
               an address proves its key first, and words can be guessed from that proof. Processes prove to each \
               other that they have the key, and a process without it is refused. Data is neither encrypted nor \
               signed: anybody who can change packets between the hosts can change the data of the job.",
    }
    /// The time that one step of the handshake may take: 100 ms to 3600 s.
    handshake_timeout: Duration {
        variables: [
            variable("RAILWEAVE_HANDSHAKE_TIMEOUT", HANDSHAKE_SECONDS, "30", number::handshake_timeout),
            variable("NCCL_MESH_TIMEOUT_MS", MESH_TIMEOUT, "30000", |text| {
                number::milliseconds(text, HANDSHAKE_TIMEOUT.0, HANDSHAKE_TIMEOUT.1)
            }),
        ],
        default: Duration::from_secs(30), "30 s",
        help: "The time that one step of the handshake may take, or on TCP the whole handshake, before the connection \
               is given up.",
    }
    /// Messages of fewer bytes travel on one rail: 0 to 1 GiB.
    split_min: u64 {
        variables: [variable("RAILWEAVE_SPLIT_MIN", BYTES, "8K", |text| number::bytes(text, 1 << 30))],
        default: 8192, "8K",
        help: "The size below which a message is not split: it travels whole on one rail. Under fixed weights the \
               other rails carry more of later messages instead.",
    }
    /// True if large messages are striped over all lanes of each rail.
    split_data_on_lanes: bool {
        variables: [
            variable("RAILWEAVE_SPLIT_DATA_ON_LANES", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_SPLIT_DATA_ON_QPS", "0 or 1", "1", nccl::split_data),
        ],
        default: false, "0",
        help: "The use of a rail's lanes by one message. With 1, a message of 64K or more is striped over all lanes of \
               each rail that carries a part of it. With 0, each message takes one lane of a rail, and messages take \
               the lanes in turn.",
    }
    /// The size of each socket's send buffer, and of its receive buffer, in bytes: 0 (the kernel tunes them), or 64 KiB
    /// to 256 MiB.
    socket_buffer: u64 {
        variables: [variable("RAILWEAVE_SOCKET_BUFFER", BUFFER, "4M", value::socket_buffer)],
        default: 0, "0, the kernel tunes it",
        help: "TCP only: the size of each lane's send buffer and of its receive buffer (`SO_SNDBUF`, `SO_RCVBUF`). The \
               kernel limits them to `net.core.wmem_max` and `net.core.rmem_max`.",
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
        help: "TCP only: the congestion control of each lane (`TCP_CONGESTION`). `auto` is `reno` inside one network \
               namespace, where nothing is lost, and otherwise the kernel's choice; `kernel` is the kernel's choice \
               everywhere. If the kernel's choice is `bbr`, which paces what it sends, and the network between the \
               hosts carries nothing else and loses nothing, `cubic` is faster.",
    }
    /// The traffic class of the data, 0 to 255; `None` leaves it to what NCCL asks for.
    traffic_class: Option<u8> {
        variables: [
            variable("RAILWEAVE_TRAFFIC_CLASS", "a number from 0 to 255, or -1 for none", "96", traffic_class),
            nccls("NCCL_IB_TC", "a number from 0 to 255, or -1 for none", "96", |text| nccl::byte_or_none(text, 255)),
        ],
        default: None, "-1, what NCCL asks for",
        help: "The traffic class of the data: the byte that holds DSCP and ECN, on TCP and on RoCE.",
    }
    /// The time after which a silent peer, whose rails carry nothing either, counts as gone: 1 s to 3600 s.
    peer_timeout: Duration {
        variables: [variable("RAILWEAVE_PEER_TIMEOUT", PEER_SECONDS, "30", number::peer_timeout)],
        default: Duration::from_secs(30), "30 s",
        help: "The time without an answer after which the peer's host counts as gone: a lane of TCP waits this long \
               for an acknowledgement, and a connection over RDMA is lost if the control session is silent for so \
               long and no rail carries anything. A process may stand still for longer, or a session lose its network.",
    }
    /// The library that RDMA goes through: a file, or a name that the dynamic linker finds.
    ibverbs_library: String {
        variables: [
            variable("RAILWEAVE_IBVERBS_LIB", LIBRARY, "libibverbs.so.1", rdma::library),
            nccls("NCCL_IBVERBS_LIB", LIBRARY, "libibverbs.so.1", nccl::library),
        ],
        default: "libibverbs.so.1".to_owned(), "libibverbs.so.1",
        help: "RDMA only: the libibverbs to load, a name that the dynamic linker finds or the path of a file.",
    }
    /// The library of NVIDIA's adapters: a file, or a name that the dynamic linker finds.
    mlx5_library: String {
        variables: [variable("RAILWEAVE_MLX5_LIB", LIBRARY, "libmlx5.so.1", rdma::library)],
        default: "libmlx5.so.1".to_owned(), "libmlx5.so.1",
        help: "RDMA only: the library of NVIDIA's adapters that `RAILWEAVE_DATA_DIRECT` needs, a name that the dynamic \
               linker finds or the path of a file. It is loaded if an adapter is NVIDIA's and takes dma-bufs.",
    }
    /// The way in which ports with a Data Direct engine are shown.
    data_direct: DataDirect {
        variables: [
            variable("RAILWEAVE_DATA_DIRECT", "0, 1 or 2", "1", rdma::data_direct),
            nccls("NCCL_IB_DATA_DIRECT", "0, 1 or 2", "1", nccl::data_direct),
        ],
        default: DataDirect::Only, "1",
        help: "RDMA only: the devices that NCCL sees for an adapter that reaches GPU memory without the processor \
               (Data Direct of ConnectX-8). With 1 it is a device of its own, `mlx5_0_dma`, in place of `mlx5_0`. \
               With 2 NCCL sees both (one fused device then takes `mlx5_0_dma` alone). With 0 it is a device like \
               any other. The setting counts as 0 if NCCL is older than 2.24 (net API v6 to v8), because such an \
               NCCL cannot be told to flush on every GPU.",
    }
    /// The entry of its GID table that each RoCE device uses.
    gid_index: GidIndices {
        variables: [
            variable(
                "RAILWEAVE_GID_INDEX",
                "a number from 0 to 255, -1 for an automatic choice, or device:number,device:number,...",
                "mlx5_0:3,mlx5_1:5",
                GidIndices::parse,
            ),
            variable("NCCL_MESH_GID_INDEX", GID_INDEX, "3", GidIndices::parse_one),
            nccls("NCCL_IB_GID_INDEX", GID_INDEX, "3", nccl::gid_index),
        ],
        default: GidIndices::Automatic, "-1, chosen by the next four settings",
        help: "RoCE only: the entry of the GID table that a port uses (`show_gids` lists them). A single number \
               applies to all devices; a list has one for each device that it names, and for other devices the rules \
               of the next four settings choose. A port follows its address if that moves in the table later.",
    }
    /// The version of RoCE: 1 or 2.
    roce_version: u8 {
        variables: [
            variable("RAILWEAVE_ROCE_VERSION", "1 or 2", "2", |text| rdma::byte(text, 1, 2)),
            nccls("NCCL_IB_ROCE_VERSION_NUM", "1 or 2", "2", nccl::roce_version),
        ],
        default: 2, "2",
        help: "RoCE only: the RoCE version of the GIDs to use. Version 1 cannot be routed.",
    }
    /// The family of the addresses of RoCE ports.
    address_family: Option<Family> {
        variables: [
            variable("RAILWEAVE_ADDRESS_FAMILY", "auto, ipv4 or ipv6", "auto", rdma::address_family),
            nccls("NCCL_IB_ADDR_FAMILY", "AF_INET or AF_INET6", "AF_INET", nccl::address_family),
        ],
        default: None, "auto, IPv4 or, if a port has none, IPv6",
        help: "RoCE only: the address family of the GIDs to use.",
    }
    /// The range of the addresses of RoCE ports; `None` takes any.
    address_range: Option<AddressRange> {
        variables: [
            variable("RAILWEAVE_ADDRESS_RANGE", RANGE, "10.0.0.0/8", rdma::address_range),
            nccls("NCCL_IB_ADDR_RANGE", "address/length", "10.0.0.0/8", nccl::address_range),
        ],
        default: None, "any",
        help: "RoCE only: the addresses that a GID may have. A port without such a GID is left out.",
    }
    /// The length in bits of the prefix of RoCE ports' IPv4 networks, 1 to 32; `None` takes the interface's.
    prefix_length: Option<u8> {
        variables: [
            variable("RAILWEAVE_PREFIX_LENGTH", PREFIX_LENGTH, "24", rdma::prefix_length),
            nccls("NCCL_IB_SUBNET_PREFIX_LEN", PREFIX_LENGTH, "24", nccl::prefix_length),
        ],
        default: None, "-1, the interface's, or 24 if it is unknown",
        help: "RoCE only: the number of leading bits of an IPv4 address that name its subnet. Ports on one subnet \
               become a rail.",
    }
    /// The entry of an InfiniBand port's GID table that routers between subnets use, 0 to 255.
    flid_gid_index: u8 {
        variables: [
            variable("RAILWEAVE_FLID_GID_INDEX", "a number from 0 to 255", "1", |text| rdma::byte(text, 0, 255)),
            nccls("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "a number from 0 to 255", "1", |text| nccl::byte(text, 0, 255)),
        ],
        default: 1, "1",
        help: "InfiniBand only: the entry of the GID table that is used if it holds a number for routers (a FLID). \
               Otherwise entry 0 is used.",
    }
    /// True if TCP is used where RDMA does not reach.
    hybrid: bool {
        variables: [variable("RAILWEAVE_HYBRID", "0 or 1", "1", number::switch)],
        default: false, "0",
        help: "RDMA only: the use of TCP for connections between hosts that RDMA cannot connect. With 1 it is used, \
               and NCCL is told that the devices take host memory only, because TCP does. With 0 it is used if the \
               devices take host memory only in any case and `RAILWEAVE_FABRIC` is `auto`. Set it alike on every host, \
               and `RAILWEAVE_MODE` too, because hosts without RDMA have another mode by default.",
    }
    /// True if the kernel's routes count where hosts share no subnet.
    routes: bool {
        variables: [variable("RAILWEAVE_ROUTES", "0 or 1", "0", number::switch)],
        default: true, "1",
        help: "The use of the kernel's routes. With 1 they say which ports of hosts that share no subnet reach each \
               other. With 0 any may: for fabrics whose switches answer for far hosts (proxy ARP), and for ports with \
               addresses on several subnets. Set it alike on every host.",
    }
    /// The time in which a rail must bring something through before it counts: 100 ms to 3600 s.
    probe_timeout: Duration {
        variables: [variable("RAILWEAVE_PROBE_TIMEOUT", HANDSHAKE_SECONDS, "10", number::handshake_timeout)],
        default: Duration::from_secs(10), "10 s",
        help: "RDMA only: the time in which a new rail must carry a whole packet both ways, once both ends have \
               connected it. A rail that does not is left out, and if none is left, another way to the peer is tried. \
               Connecting it may take as long, if another rail is connected or other ports may take its place.",
    }
    /// True if connections go on without rails that fail.
    recovery: bool {
        variables: [variable("RAILWEAVE_RECOVERY", "0 or 1", "1", number::switch)],
        default: true, "1",
        help: "1: a connection goes on without a rail that fails: what the rail carried goes over the others, and the \
               rail is opened again until it carries messages once more. Set it on all hosts. With 0, a connection \
               fails with its first rail.",
    }
    /// The time for which a rail may be silent: 50 ms to 60 s, 0 for any.
    rail_timeout: Duration {
        variables: [variable("RAILWEAVE_RAIL_TIMEOUT", RAIL_TIMEOUT, "500ms", number::rail_timeout)],
        default: Duration::from_millis(500), "500 ms",
        help: "The time for which a rail may answer nothing of what is on its way while the peer is alive, if \
               `RAILWEAVE_RECOVERY` is 1. Then it is given up, long before its adapter or kernel would report it; 0 \
               leaves it to them. A false alarm costs new lanes, and doubles the time of its rail for a while. \
               A fitting time is more than four times the longest round trip between two hosts.",
    }
    /// The time for which a connection without any rail waits for one: 1 to 86400 s, 0 for as long as it takes.
    outage_timeout: Duration {
        variables: [variable("RAILWEAVE_OUTAGE_TIMEOUT", OUTAGE, "300", number::outage)],
        default: Duration::from_secs(300), "5 min",
        help: "The time for which a connection whose rails have all failed waits until one is back, if \
               `RAILWEAVE_RECOVERY` is 1, and for which messages of one rail that has failed wait until the peer says \
               what has come. NCCL's calls return an error after it.",
    }
    /// True if virtual functions count as one adapter.
    merge_vfs: bool {
        variables: [
            variable("RAILWEAVE_MERGE_VFS", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_MERGE_VFS", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: the way in which NCCL sees the virtual functions of an adapter. With 1 they are ports of \
               that one adapter, with 0 adapters of their own.",
    }
    /// True if NCCL may fuse devices into virtual ones.
    merge_nics: bool {
        variables: [
            variable("RAILWEAVE_MERGE_NICS", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_MERGE_NICS", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "The permission for NCCL to fuse devices of one port into virtual devices, which it does with those of \
               one adapter (`NCCL_NET_MERGE_LEVEL`) or with those that `NCCL_NET_FORCE_MERGE` names. It counts with \
               `RAILWEAVE_MODE=ports` only: otherwise Railweave fuses the ports itself.",
    }
    /// True if RDMA devices are ordered by PCI address.
    pci_order: bool {
        variables: [
            variable("RAILWEAVE_PCI_ORDER", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_DEVICE_PCI_ORDER", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: the order in which devices are numbered. With 1 it is that of their PCI addresses \
               (`domain:bus:device.function`), so that the numbers agree between hosts that are alike; with 0 it is \
               that of their names. A list in `RAILWEAVE_RAILS`, `RAILWEAVE_RDMA_RAILS` or `MPIB_HCA_SOUT` and \
               `MPIB_HCA_SUP` sets its own order; a list in `NCCL_IB_HCA` does not, as in NCCL's own transport.",
    }
    /// The local ACK timeout of lanes: 4.096 µs × 2^n for n from 0 to 31, where 0 is forever.
    ack_timeout: u8 {
        variables: [
            variable("RAILWEAVE_ACK_TIMEOUT", "a number from 0 to 31", "20", |text| rdma::byte(text, 0, 31)),
            nccls("NCCL_IB_TIMEOUT", "a number from 0 to 31", "20", |text| nccl::byte(text, 0, 31)),
        ],
        default: 20, "20, which is 4.3 s",
        help: "RDMA only: the time that an adapter waits for an acknowledgement before it sends a packet again, given \
               as n: 4.096 µs × 2^n, where 0 is forever.",
    }
    /// The number of times that a packet is sent again, 0 to 7.
    retry_count: u8 {
        variables: [
            variable("RAILWEAVE_RETRY_COUNT", "a number from 0 to 7", "7", |text| rdma::byte(text, 0, 7)),
            nccls("NCCL_IB_RETRY_CNT", "a number from 0 to 7", "7", |text| nccl::byte(text, 0, 7)),
        ],
        default: 7, "7",
        help: "RDMA only: the number of times that an adapter sends a packet again before the lane fails.",
    }
    /// The number of retries of a change of a queue pair's state, 0 to 1,000,000.
    modify_retries: u32 {
        variables: [
            variable("RAILWEAVE_MODIFY_RETRIES", "a number from 0 to 1000000", "34", rdma::count),
            nccls("NCCL_IB_MQP_RETRY_CNT", "a number from 0 to 1000000", "34", nccl::retries),
        ],
        default: 34, "34",
        help: "RDMA only: the number of retries after a change of a queue pair's state (`ibv_modify_qp`) timed out in \
               the kernel, as it does while the kernel looks up a peer's address. `RAILWEAVE_HANDSHAKE_TIMEOUT` ends \
               the retries in any case; `RAILWEAVE_PROBE_TIMEOUT` ends them if another rail is connected or other \
               ports may take its place.",
    }
    /// The pause before the first of these retries, 0 to 3600 s; the second pause is twice as long, the third three
    /// times.
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
        help: "RDMA only: the pause before the first of the retries that `RAILWEAVE_MODIFY_RETRIES` counts. The second \
               pause is twice as long, the third three times, and so on; other connections are set up meanwhile.",
    }
    /// True if a change of a queue pair's state is retried after any error.
    modify_retry_all: bool {
        variables: [
            variable("RAILWEAVE_MODIFY_RETRY_ALL", "0 or 1", "0", number::switch),
            nccls("NCCL_IB_MQP_RETRY_ALL", "0 or 1", "0", nccl::switch),
        ],
        default: false, "0",
        help: "RDMA only: the errors after which a change of a queue pair's state is retried \
               (`RAILWEAVE_MODIFY_RETRIES`). With 1 these are all errors, with 0 only timeouts.",
    }
    /// True if connections are lost when an event says that their device or queue failed.
    return_events: bool {
        variables: [
            variable("RAILWEAVE_RETURN_ASYNC_EVENTS", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_RETURN_ASYNC_EVENTS", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: the effect of an event by which a device reports that it, or a queue of a connection, has \
               failed. With 1 the connections that use it fail. With 0 a line in the log is the only effect.",
    }
    /// The index into the ports' tables of partition keys.
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
        default: None, "-1, what NCCL asks for on InfiniBand, otherwise 0",
        help: "RDMA only: the service level of the data.",
    }
    /// The traffic class of CTS, 0 to 255; `None` gives them that of the data.
    cts_traffic_class: Option<u8> {
        variables: [
            variable("RAILWEAVE_CTS_TRAFFIC_CLASS", "a number from 0 to 255, or -1 for none", "160", traffic_class),
            nccls("NCCL_IB_FIFO_TC", "a number from 0 to 255, or -1 for none", "160", |text| {
                nccl::byte_or_none(text, 255)
            }),
        ],
        default: None, "-1, that of the data",
        help: "RoCE only: the traffic class of CTS, the receiver's notes to the sender that buffers are ready.",
    }
    /// True if lanes agree on enhanced connection establishment.
    ece: bool {
        variables: [
            variable("RAILWEAVE_ECE", "0 or 1", "1", number::switch),
            nccls("NCCL_IB_ECE_ENABLE", "0 or 1", "1", nccl::switch),
        ],
        default: true, "1",
        help: "RDMA only: the use of enhanced connection establishment. With 1, two adapters that both have it agree \
               on features beyond the standard, congestion control among them.",
    }
    /// The condition on which memory is registered with relaxed ordering.
    relaxed_ordering: RelaxedOrdering {
        variables: [
            variable("RAILWEAVE_RELAXED_ORDERING", "0, 1 or 2", "2", rdma::relaxed_ordering),
            nccls("NCCL_IB_PCI_RELAXED_ORDERING", "0, 1 or 2", "2", nccl::relaxed_ordering),
        ],
        default: RelaxedOrdering::WhereKnown, "2",
        help: "RDMA only: the permission for adapters to write data into memory in any order, which is faster on some \
               hosts: 0 never, 1 always, 2 if the library supports it.",
    }
    /// True if the adapters report the length of a write.
    byte_counts: bool {
        variables: [variable("RAILWEAVE_BYTE_COUNTS", "0 or 1", "1", number::switch)],
        default: true, "1",
        help: "RDMA only: the use of the length that a receive completion of a write carries according to the \
               specification. Set 0 for an adapter that reports wrong lengths; each message then costs one more work \
               request.",
    }
    /// True if the lanes of a rail share one receive queue; `None` lets them if there are several.
    shared_receives: Option<bool> {
        variables: [variable("RAILWEAVE_SRQ", "auto, 0 or 1", "auto", rdma::switch_or_auto)],
        default: None, "auto, shared if there are several lanes",
        help: "RDMA only: the sharing of one receive queue by all lanes of a rail, if the adapter has shared queues: \
               `auto` if there are several lanes, 1 always, 0 never. With several lanes, a queue for each costs more \
               memory. A single lane with a queue of its own learns sooner that the adapter has given it up.",
    }
    /// The links on which adaptive routing may change the order of packets.
    adaptive_routing: AdaptiveRouting {
        variables: [
            variable("RAILWEAVE_ADAPTIVE_ROUTING", "auto, 0 or 1", "auto", AdaptiveRouting::parse),
            nccls("NCCL_IB_ADAPTIVE_ROUTING", "0, 1, or -2 for the default", "1", nccl::adaptive_routing),
        ],
        default: AdaptiveRouting::Auto, "auto, which is 1 on InfiniBand",
        help: "RDMA only: the support for adaptive routing, with which switches send the data of a message along any \
               path. With 1, a large message ends in a write of its own; `auto` means 1 on InfiniBand and 0 on RoCE.",
    }
    /// The size in bytes above which a message is large for adaptive routing, 0 to 1 GiB.
    adaptive_routing_threshold: u64 {
        variables: [
            variable("RAILWEAVE_ADAPTIVE_ROUTING_THRESHOLD", BYTES, "8K", |text| number::bytes(text, 1 << 30)),
            nccls("NCCL_IB_AR_THRESHOLD", THRESHOLD, "8192", nccl::adaptive_routing_threshold),
        ],
        default: 8192, "8K",
        help: "RDMA only: the size above which a message is large for `RAILWEAVE_ADAPTIVE_ROUTING`.",
    }
    /// True if the log has a line for each lane that is set up.
    log_lanes: bool {
        variables: [
            variable("RAILWEAVE_LOG_LANES", "0 or 1", "1", number::switch),
            variable("NCCL_MESH_DEBUG", "0 or 1", "1", number::switch),
        ],
        default: false, "0",
        help: "The lines about lanes in the log. With 1 there is one for each lane (queue pair or socket) that is set \
               up, with its rail, its numbers, both addresses and the path's MTU; with 0 these lines are written with \
               `NCCL_DEBUG=TRACE` only.",
    }
    /// The folder in which processes write their telemetry, and in which the policy file is looked for.
    run_dir: RunDir {
        variables: [variable("RAILWEAVE_RUN_DIR", FOLDER, "/dev/shm/railweave-job", RunDir::parse)],
        default: RunDir::OfUser, "/dev/shm/railweave-UID",
        help: "The folder in which each process writes a file about itself (docs/telemetry.md), which `railweave \
               status` shows, and in which it looks for the policy file that steers it (docs/policy.md). It is made \
               if it is missing, and must belong to the job's user, whose number is UID; nobody else may write there. \
               Containers that are watched from their host need a mounted folder. With `none` there are no files.",
    }
    /// The folder in which processes write their traces; `None` if they write none.
    trace: Option<PathBuf> {
        variables: [variable("RAILWEAVE_TRACE", FOLDER, "/tmp/trace", value::trace)],
        default: None, "none",
        help: "The folder in which each process writes a trace: when each message, step and collective began and \
               ended, and over which rails (docs/tracing.md). It is made if it is missing. `railweave trace` makes a \
               file for Perfetto of it, or a summary. With `none` nothing is traced.",
    }
    /// The bytes that the trace of a process may take, 1 MiB to 1 TiB.
    trace_max: u64 {
        variables: [variable("RAILWEAVE_TRACE_MAX", TRACE_BYTES, "1G", value::trace_max)],
        default: 256 << 20, "256M",
        help: "The bytes that the trace of a process may take (`RAILWEAVE_TRACE`). When they are used up, the older \
               half goes.",
    }
    /// True if GPU memory is flushed when NCCL asks for it.
    flush: bool {
        variables: [
            variable("RAILWEAVE_FLUSH", "0 or 1", "1", number::switch),
            nccls("NCCL_GDR_FLUSH_DISABLE", "0 or 1", "0", |text| nccl::switch(text).map(|disabled| !disabled)),
        ],
        default: true, "1",
        help: "RDMA only: the flushing of received data into GPU memory. With 1, data is flushed when NCCL asks for \
               it; with 0, never. `NCCL_GDR_FLUSH_DISABLE=1` means 0.",
    }
}
