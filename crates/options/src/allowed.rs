//! The allowed values that several variables share, in words and as ranges.

use std::time::Duration;

/// The syntax of a list of names.
pub(crate) const FILTER: &str =
    "[^][=]item,item,... where an item is name[:port[:rail[:plane]]], address/length or an address";

/// The path of a folder, which may be left out.
pub(crate) const FOLDER: &str = "the absolute path of a folder, or none";

/// The names of the policies.
pub(crate) const POLICIES: &str = "auto, static, speed, adaptive or agent";

/// The allowed lists of weights.
pub(crate) const WEIGHTS: &str = "1 to 8 whole numbers from 0 to 1000000 with commas between, not all 0";

/// The allowed numbers of lanes.
pub(crate) const LANES: &str = "a number from 1 to 16, or up to 8 of them with commas between";

/// The allowed ports of TCP.
pub(crate) const PORTS: &str = "0 (any free port), a port from 1 to 65535, or a range such as 5000-5100";

/// The allowed sizes of a socket's buffer.
pub(crate) const BUFFER: &str = "0 (the kernel tunes it), or bytes from 64K to 256M; K, M and G count in 1024s";

/// The syntax of a list of names that may group them.
pub(crate) const GROUPS: &str =
    "[^][=]item,item,... where an item is name[:port[:rail[:plane]]], address/length, an address, or several with +";

/// The syntax of a range of addresses.
pub(crate) const RANGE: &str = "address/length, or one address";

/// The allowed names of a library.
pub(crate) const LIBRARY: &str = "the name or the file of a shared library";

/// The allowed values of NCCL's variables for GID indices.
pub(crate) const GID_INDEX: &str = "a number from 0 to 255, or -1 for an automatic choice";

/// The allowed lengths of a prefix.
pub(crate) const PREFIX_LENGTH: &str = "a number from 1 to 32, or -1 for the interface's";

/// The allowed sizes of a trace.
pub(crate) const TRACE_BYTES: &str = "bytes from 1M to 1024G; K, M and G count in 1024s";

/// The allowed numbers of bytes.
pub(crate) const BYTES: &str = "bytes from 0 to 1G; K, M and G count in 1024s";

/// The allowed timeouts of an earlier plugin.
pub(crate) const MESH_TIMEOUT: &str = "milliseconds from 100 to 3600000";

/// A time within [`HANDSHAKE_TIMEOUT`].
pub(crate) const HANDSHAKE_SECONDS: &str = "seconds from 0.1 to 3600, or milliseconds with the unit ms";

/// A time within [`PEER_TIMEOUT`].
pub(crate) const PEER_SECONDS: &str = "seconds from 1 to 3600, or milliseconds with the unit ms";

/// The time of an outage.
pub(crate) const OUTAGE: &str = "seconds from 1 to 86400, or milliseconds with the unit ms; 0 for no limit";

/// The allowed sizes of NCCL's threshold for adaptive routing.
pub(crate) const THRESHOLD: &str = "a number of bytes, or -2 for the default";

/// The time for which a rail may be silent.
pub(crate) const RAIL_TIMEOUT: &str = "seconds from 0.05 to 60, or milliseconds with the unit ms; 0 for any";

/// The shortest and the longest time of a step of the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));
/// The shortest and the longest silence of a peer.
pub(crate) const PEER_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
