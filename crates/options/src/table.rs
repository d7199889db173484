//! The table itself: every setting, once.

use crate::error::{OptionErrors, Warning, closest, printable};
use crate::filter::RailFilter;
use crate::number;
use crate::setting::{Reader, Setting, Show, Source, Variable, variable};
use crate::value::{Fabric, Lanes, Mode, PortRange, Weights};
use std::collections::HashMap;
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
const FILTER: &str = "[^][=]item,item,... where an item is name[:port[:rail[:plane]]] or address/length";

const HANDSHAKE_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));
const PEER_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

options! {
    /// Which network carries the data.
    fabric: Fabric {
        variables: [variable("RAILWEAVE_FABRIC", "auto, tcp or verbs", "auto", Fabric::parse)],
        default: Fabric::Auto, "auto",
        help: "Which network carries the data: `verbs` (RDMA), `tcp`, or `auto`: RDMA where a port is active, else TCP.",
    }
    /// What one device is.
    mode: Mode {
        variables: [variable("RAILWEAVE_MODE", "auto, ports or fused", "auto", Mode::parse)],
        default: Mode::Auto, "auto",
        help: "What NCCL sees: one device for each port (`ports`), one over all of them (`fused`), or `auto`: \
               `ports` on RDMA, `fused` on TCP.",
    }
    /// Which ports become rails; `None` leaves the choice to the topology's own rules.
    rails: Option<RailFilter> {
        variables: [
            variable("RAILWEAVE_RAILS", FILTER, "eth0,eth1", filter),
            variable("NCCL_SOCKET_IFNAME", FILTER, "eth", filter),
        ],
        default: None, "every usable one",
        help: "Which ports become rails. `^` leaves out what the list matches, `=` asks for whole names, an item with \
               a slash is a range of addresses. `NCCL_SOCKET_IFNAME` counts on TCP.",
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
            variable("NCCL_IB_QPS_PER_CONNECTION", "a number from 1 to 128", "1", Lanes::parse_nccl)
                .noting(Lanes::note_nccl),
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
            variable("NCCL_SOCKET_IFNAME", FILTER, "eth", filter),
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
    /// A file with a key that all processes of the job share; `None` lets any process connect.
    key_file: Option<PathBuf> {
        variables: [variable("RAILWEAVE_KEY_FILE", "the absolute path of a file", "/etc/railweave/key", key_file)],
        default: None, "none: any process may connect",
        help: "A file with a secret of 16 to 4096 bytes, the same on every host. Processes then prove to each other that \
               they have it, and one that has not gets no further. Only the user who runs the job may have access to it \
               (mode 0600 or 0400). Data is not encrypted.",
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
        variables: [variable("RAILWEAVE_SPLIT_MIN", "bytes from 0 to 1G; K, M and G count in 1024s", "8K", |text| {
            number::bytes(text, 1 << 30)
        })],
        default: 8192, "8K",
        help: "Messages of fewer bytes travel whole on one rail; the other rails make up for it later.",
    }
    /// Large messages are striped over all lanes of each rail.
    split_data_on_lanes: bool {
        variables: [
            variable("RAILWEAVE_SPLIT_DATA_ON_LANES", "0 or 1", "1", number::switch),
            variable("NCCL_IB_SPLIT_DATA_ON_QPS", "0 or 1", "1", number::switch),
        ],
        default: false, "0",
        help: "With 1, messages of 64K and more are striped over all lanes of each rail that carries a part of them. \
               With 0, each message takes one lane of a rail, and messages take the lanes in turn.",
    }
    /// The size of each socket's send buffer, and of its receive buffer, in bytes: 0 (the kernel tunes them), or 64 KiB to 256 MiB.
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
    /// The traffic class of the data, 0 to 255; `None` leaves it to what NCCL asks for.
    traffic_class: Option<u8> {
        variables: [
            variable("RAILWEAVE_TRAFFIC_CLASS", "a number from 0 to 255, or -1 for none", "96", traffic_class),
            variable("NCCL_IB_TC", "a number from 0 to 255, or -1 for none", "96", traffic_class),
        ],
        default: None, "-1 (what NCCL asks for)",
        help: "The traffic class of the data: the byte that holds DSCP and ECN, on TCP and on RoCE.",
    }
    /// How long a lane may stay without any acknowledgement before the peer counts as gone: 1 s to 3600 s.
    peer_timeout: Duration {
        variables: [variable(
            "RAILWEAVE_PEER_TIMEOUT",
            "seconds from 1 to 3600, or milliseconds with the unit ms",
            "30",
            |text| number::seconds(text, PEER_TIMEOUT.0, PEER_TIMEOUT.1),
        )],
        default: Duration::from_secs(30), "30 s",
        help: "How long a lane with data under way may stay without any acknowledgement before the peer counts as gone.",
    }
}

impl Options {
    /// Reads every setting from `variables`, as an environment lists them, and warns of `RAILWEAVE_*` names among them
    /// that no setting reads.
    ///
    /// # Errors
    ///
    /// As [`Options::parse`].
    pub fn from_variables<K: Into<OsString>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(Options, Vec<Warning>), OptionErrors> {
        let mut known = HashMap::new();
        let mut unknown = Vec::new();
        for (name, value) in variables {
            let (name, value) = (name.into(), value.into());
            match TABLE.iter().flat_map(Entry::all_variables).find(|known| name == *known) {
                Some(name) => drop(known.insert(name, value)),
                None if may_be_meant(&name.to_string_lossy()) => unknown.push(name),
                None => {}
            }
        }
        unknown.sort();
        let (options, mut warnings) = Options::parse(|name| known.get(name).cloned())?;
        warnings.extend(unknown.iter().map(|name| {
            let name = name.to_string_lossy();
            let closest = closest(&name, TABLE.iter().map(Entry::variable));
            Warning::Unknown { variable: printable(&name), closest }
        }));
        Ok((options, warnings))
    }

    /// Reads every setting from the environment of this process.
    ///
    /// # Errors
    ///
    /// As [`Options::parse`].
    pub fn from_env() -> Result<(Options, Vec<Warning>), OptionErrors> {
        Options::from_variables(std::env::vars_os())
    }
}

impl Default for Options {
    /// What holds when no variable is set.
    fn default() -> Options {
        match Options::parse(|_| None) {
            Ok((options, _)) => options,
            Err(errors) => unreachable!("nothing is set, so nothing is wrong: {errors}"),
        }
    }
}

/// Whether someone who sets `name` means it for Railweave's settings. `RAILWEAVE_TEST_*` is for its tests.
fn may_be_meant(name: &str) -> bool {
    name.starts_with("RAILWEAVE_") && !name.starts_with("RAILWEAVE_TEST_")
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
