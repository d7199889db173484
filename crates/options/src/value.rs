//! The types of the settings, with the syntax of each.

use crate::number;
use railweave_fabric::{MAX_RAILS, Mode, PolicyName};
use std::fmt;
use std::path::{Path, PathBuf};

/// The largest number of lanes of a rail.
pub(crate) const MAX_LANES: u8 = 16;

/// The largest weight of a rail.
pub(crate) const MAX_WEIGHT: u32 = 1_000_000;

/// The network that carries the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fabric {
    /// RDMA if a port is active, otherwise TCP.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// RDMA only.
    Verbs,
}

impl Fabric {
    pub(crate) fn parse(text: &str) -> Result<Fabric, String> {
        word(text, &[("auto", Fabric::Auto), ("tcp", Fabric::Tcp), ("verbs", Fabric::Verbs)])
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fabric::Auto => "auto",
            Fabric::Tcp => "tcp",
            Fabric::Verbs => "verbs",
        })
    }
}

/// The congestion control of TCP sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Congestion {
    /// The kernel's choice, except inside a host, where it is `reno`, which does not pace.
    #[default]
    Auto,
    /// The kernel's choice.
    Kernel,
    /// The algorithm of this name, which the kernel may or may not have.
    Named(String),
}

impl Congestion {
    /// Parses a word or a name, of which the kernel takes 15 characters (Linux, include/net/tcp.h, `TCP_CA_NAME_MAX`).
    pub(crate) fn parse(text: &str) -> Result<Congestion, String> {
        let name = text.trim();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match name.to_ascii_lowercase().as_str() {
            "auto" => Ok(Congestion::Auto),
            "kernel" => Ok(Congestion::Kernel),
            "" => Err("is empty".into()),
            _ if name.len() <= 15 && name.bytes().all(fits) => Ok(Congestion::Named(name.to_owned())),
            _ => Err("is not a name of at most 15 letters, digits, - and _".into()),
        }
    }

    /// Returns the name of the algorithm to set on a socket, if any. `inside_host`: both its ends are on this host,
    /// where nothing is lost and pacing only costs; `reno` does not pace, and every kernel has it and lets every user
    /// choose it.
    pub fn name(&self, inside_host: bool) -> Option<&str> {
        match self {
            Congestion::Auto if inside_host => Some("reno"),
            Congestion::Auto | Congestion::Kernel => None,
            Congestion::Named(name) => Some(name),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Congestion::Auto => "auto",
            Congestion::Kernel => "kernel",
            Congestion::Named(name) => name,
        })
    }
}

/// Parses the devices that NCCL sees; `None` leaves the choice to discovery.
pub(crate) fn mode(text: &str) -> Result<Option<Mode>, String> {
    let modes = Mode::ALL.iter().map(|mode| (mode.name(), Some(*mode)));
    word(text, &[("auto", None)].into_iter().chain(modes).collect::<Vec<_>>())
}

/// Parses a policy; `None` leaves the choice to what else is set.
pub(crate) fn policy(text: &str) -> Result<Option<PolicyName>, String> {
    let policies = PolicyName::ALL.iter().map(|policy| (policy.name(), Some(*policy)));
    word(text, &[("auto", None)].into_iter().chain(policies).collect::<Vec<_>>())
}

/// Returns the mode that a variable of the plugin for meshes stands for, whatever its value: another setting reads it.
pub(crate) fn mesh(_text: &str) -> Result<Option<Mode>, String> {
    Ok(Some(Mode::Mesh))
}

/// Returns the value of the word `text`, ignoring case.
pub(crate) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let text = text.trim();
    let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, value)| *value).ok_or_else(|| "is not one of the known words".into())
}

/// The shares of the rails in the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// Nothing is set: another policy decides.
    #[default]
    Unset,
    /// These weights, 0 to 1 000 000 for each rail in order, not all zero. A rail past the end of the list has 0: it
    /// carries nothing while a rail with a weight is usable.
    Fixed([u32; MAX_RAILS]),
}

impl Weights {
    pub(crate) fn parse(text: &str) -> Result<Weights, String> {
        let mut weights = [0; MAX_RAILS];
        let wrong = |index: usize, reason: String| format!("has an item (number {}) that {reason}", index + 1);
        for (index, item) in text.split(',').enumerate() {
            let slot = weights.get_mut(index).ok_or_else(|| format!("has more than {MAX_RAILS} items"))?;
            let weight = number::whole(item, 0, i64::from(MAX_WEIGHT)).map_err(|reason| wrong(index, reason))?;
            *slot = u32::try_from(weight).map_err(|_| wrong(index, "is out of range".into()))?;
        }
        if weights == [0; MAX_RAILS] {
            return Err("leaves no rail to use, because every weight is 0".into());
        }
        Ok(Weights::Fixed(weights))
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::Unset => f.write_str("none"),
            Weights::Fixed(weights) => list(f, weights, 0),
        }
    }
}

/// The number of lanes of each rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    per_rail: [u8; MAX_RAILS],
}

impl Lanes {
    /// Returns `count` lanes for every rail, limited to 1 to 16.
    pub const fn on_every_rail(count: u8) -> Lanes {
        let count = match count {
            0 => 1,
            MAX_LANES.. => MAX_LANES,
            _ => count,
        };
        Lanes { per_rail: [count; MAX_RAILS] }
    }

    /// Returns the number of lanes of `rail`, 1 to 16. A rail past the end of the list has that of the list's last
    /// item.
    pub fn on(&self, rail: usize) -> u8 {
        self.per_rail[rail.min(MAX_RAILS - 1)]
    }

    /// Parses one number for every rail, or a list with one number for each.
    pub(crate) fn parse(text: &str) -> Result<Lanes, String> {
        let mut lanes = Lanes::on_every_rail(1);
        for (index, item) in text.split(',').enumerate() {
            if index == MAX_RAILS {
                return Err(format!("has more than {MAX_RAILS} items"));
            }
            let count = Lanes::count(item, i64::from(MAX_LANES));
            let count = count.map_err(|reason| format!("has an item (number {}) that {reason}", index + 1))?;
            lanes.per_rail[index..].fill(count);
        }
        Ok(lanes)
    }

    /// Parses one number for every rail.
    pub(crate) fn parse_count(text: &str) -> Result<Lanes, String> {
        Lanes::count(text, i64::from(MAX_LANES)).map(Lanes::on_every_rail)
    }

    /// Joins two variables: the first rail has `first`, the others `second`, and 1 if the variable is not set.
    pub(crate) fn join(first: Option<Lanes>, second: Option<Lanes>) -> Lanes {
        let mut lanes = second.unwrap_or(Lanes::on_every_rail(1));
        lanes.per_rail[0] = first.map_or(1, |first| first.on(0));
        lanes
    }

    fn count(text: &str, high: i64) -> Result<u8, String> {
        let count = number::whole(text, 1, high)?;
        u8::try_from(count).map_err(|_| "is out of range".into())
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, &self.per_rail.map(u32::from), self.per_rail[MAX_RAILS - 1].into())
    }
}

/// Writes `values` with commas, without those at the end that equal `rest`. The first is always written, and so is the
/// first of the rest if `rest` is not 0, because it holds for those that follow.
fn list(f: &mut fmt::Formatter<'_>, values: &[u32], rest: u32) -> fmt::Result {
    let listed = values.iter().rposition(|value| *value != rest).map_or(0, |last| last + 1);
    let listed = if rest == 0 { listed } else { listed + 1 };
    for (index, value) in values.iter().take(listed.max(1)).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(f, "{comma}{value}")?;
    }
    Ok(())
}

/// The TCP ports to listen on: the first free one from `first` to `last`, inclusive. 0 to 0 means any free port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortRange {
    /// The first port to try; 0 if any free port will do.
    pub first: u16,
    /// The last port to try; at least `first`.
    pub last: u16,
}

impl PortRange {
    /// Returns true if the operating system may choose.
    pub fn is_any(&self) -> bool {
        self.first == 0
    }

    pub(crate) fn parse(text: &str) -> Result<PortRange, String> {
        let port = |text: &str, low| -> Result<u16, String> {
            let port = number::whole(text, low, i64::from(u16::MAX))?;
            u16::try_from(port).map_err(|_| "is out of range".into())
        };
        let Some((first, last)) = text.split_once('-').filter(|(first, _)| !first.trim().is_empty()) else {
            let first = port(text, 0)?;
            return Ok(PortRange { first, last: first });
        };
        let first = port(first, 1).map_err(|reason| format!("begins with a port that {reason}"))?;
        let last = port(last, 1).map_err(|reason| format!("ends with a port that {reason}"))?;
        if last < first {
            return Err("is a range that ends before it begins".into());
        }
        Ok(PortRange { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// Parses the size of a socket's buffers. With less than 64 KiB, Linux's loopback moves a few kilobytes per timer tick.
pub(crate) fn socket_buffer(text: &str) -> Result<u64, String> {
    match number::bytes(text, 256 << 20)? {
        bytes @ 1..0x1_0000 => Err(format!("is {bytes} bytes, which makes TCP very slow")),
        bytes => Ok(bytes),
    }
}

/// The folder of the telemetry files and of the policy file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RunDir {
    /// The user's own below /dev/shm.
    #[default]
    OfUser,
    /// This one.
    At(PathBuf),
    /// None: there is neither telemetry nor a policy file.
    Off,
}

impl RunDir {
    pub(crate) fn parse(text: &str) -> Result<RunDir, String> {
        if text.trim().eq_ignore_ascii_case("none") { Ok(RunDir::Off) } else { absolute(text).map(RunDir::At) }
    }

    /// Returns the folder's path; `None` if the setting names none.
    pub fn path(&self) -> Option<&Path> {
        match self {
            RunDir::OfUser | RunDir::Off => None,
            RunDir::At(path) => Some(path),
        }
    }
}

impl fmt::Display for RunDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunDir::OfUser => f.write_str("/dev/shm/railweave-UID"),
            RunDir::At(path) => path.display().fmt(f),
            RunDir::Off => f.write_str("none"),
        }
    }
}

/// Parses the folder of traces.
pub(crate) fn trace(text: &str) -> Result<Option<PathBuf>, String> {
    if text.trim().eq_ignore_ascii_case("none") { Ok(None) } else { absolute(text).map(Some) }
}

/// The fewest bytes that a trace may be allowed.
const LEAST_TRACE: u64 = 1 << 20;

/// Parses the bytes of a trace.
pub(crate) fn trace_max(text: &str) -> Result<u64, String> {
    let bytes = number::bytes(text, 1 << 40)?;
    if bytes >= LEAST_TRACE { Ok(bytes) } else { Err("is less than 1M".into()) }
}

/// Parses the absolute path of a file.
pub(crate) fn key_file(text: &str) -> Result<Option<PathBuf>, String> {
    absolute(text).map(Some)
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("is not an absolute path".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(Fabric::parse(" TCP "), Ok(Fabric::Tcp));
        assert_eq!(Fabric::parse("verbs"), Ok(Fabric::Verbs));
        assert!(Fabric::parse("rdma").is_err());
        assert_eq!(mode("Fused"), Ok(Some(Mode::Fused)));
        assert!(mode("").is_err());
    }

    #[test]
    fn weights() {
        assert_eq!(Weights::parse("80, 20"), Ok(Weights::Fixed([80, 20, 0, 0, 0, 0, 0, 0])));
        assert_eq!(Weights::parse("0,1000000").unwrap().to_string(), "0,1000000");
        assert_eq!(Weights::parse("1,2,3,4,5,6,7,8").unwrap().to_string(), "1,2,3,4,5,6,7,8");
        assert_eq!(Weights::parse("1,2,3,4,5,6,7,8,9"), Err("has more than 8 items".into()));
        assert_eq!(Weights::parse("0,0"), Err("leaves no rail to use, because every weight is 0".into()));
        assert_eq!(Weights::parse("1,1000001"), Err("has an item (number 2) that is more than 1000000".into()));
        assert_eq!(Weights::parse("1,"), Err("has an item (number 2) that is not a whole number".into()));
        assert!(Weights::parse("-1,2").is_err());
        assert!(Weights::parse("0.8,0.2").is_err());
    }

    #[test]
    fn lanes() {
        let lanes = Lanes::parse("2,3").unwrap();
        assert_eq!([lanes.on(0), lanes.on(1), lanes.on(2), lanes.on(99)], [2, 3, 3, 3]);
        assert_eq!(lanes.to_string(), "2,3");
        assert_eq!(Lanes::parse("16"), Ok(Lanes::on_every_rail(16)));
        assert_eq!(Lanes::parse("16").unwrap().to_string(), "16");
        assert_eq!(Lanes::parse("1,1,1,1,1,1,1,2").unwrap().to_string(), "1,1,1,1,1,1,1,2");
        assert!(Lanes::parse("0").is_err());
        assert!(Lanes::parse("17").is_err());
        assert!(Lanes::parse("1,,2").is_err());
        assert!(Lanes::parse("1,1,1,1,1,1,1,1,1").is_err());
        assert!(Lanes::parse_count("2,3").is_err());
        assert_eq!(Lanes::on_every_rail(0), Lanes::on_every_rail(1));
        assert_eq!(Lanes::on_every_rail(200), Lanes::on_every_rail(16));
    }

    #[test]
    fn lanes_of_two_rails() {
        let (two, three) = (Lanes::on_every_rail(2), Lanes::on_every_rail(3));
        assert_eq!(Lanes::join(Some(two), Some(three)).to_string(), "2,3");
        assert_eq!(Lanes::join(Some(two), None).to_string(), "2,1");
        assert_eq!(Lanes::join(None, Some(three)).to_string(), "1,3");
    }

    #[test]
    fn ports() {
        assert!(PortRange::parse("0").unwrap().is_any());
        assert_eq!(PortRange::parse("5000"), Ok(PortRange { first: 5000, last: 5000 }));
        assert_eq!(PortRange::parse("5000 - 5100").unwrap().to_string(), "5000-5100");
        assert_eq!(PortRange::parse("65535-65535").unwrap().to_string(), "65535");
        assert_eq!(PortRange::parse("5100-5000"), Err("is a range that ends before it begins".into()));
        assert_eq!(PortRange::parse("0-10"), Err("begins with a port that is less than 1".into()));
        assert_eq!(PortRange::parse("1-65536"), Err("ends with a port that is more than 65535".into()));
        assert_eq!(PortRange::parse("-1"), Err("is less than 0".into()));
        assert!(PortRange::parse("1-2-3").is_err());
        assert!(PortRange::parse("5000-").is_err());
    }
}
