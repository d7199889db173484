//! The types of the settings for RDMA, with the syntax of each.

use crate::error::printable;
use crate::filter::{self, RailFilter};
use crate::number;
use crate::value::word;
use railweave_fabric::{AddressRange, DataDirect, Family, RelaxedOrdering};
use std::fmt;

/// Parses a number of times, at most a million.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    number::whole(text, 0, 1_000_000).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// The largest GID index that fits into a packet's address: one byte (`ibv_global_route`).
const MAX_GID_INDEX: i64 = 255;

/// The largest number of devices in a list of GID indices.
const MAX_GID_DEVICES: usize = 64;

/// The entry of the GID table that each device uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GidIndices {
    /// Chosen by the rules.
    #[default]
    Automatic,
    /// This one on every device, 0 to 255.
    Everywhere(u32),
    /// These, by the device's name; the rules choose for the other devices.
    ByDevice(Vec<(String, u32)>),
}

impl GidIndices {
    /// Returns the index for a device; `None` leaves it to the rules.
    pub fn on(&self, device: &str) -> Option<u32> {
        match self {
            GidIndices::Automatic => None,
            GidIndices::Everywhere(index) => Some(*index),
            GidIndices::ByDevice(list) => list.iter().find(|(name, _)| name == device).map(|(_, index)| *index),
        }
    }

    /// Parses one number for every device, or a list of `device:number`.
    pub(crate) fn parse(text: &str) -> Result<GidIndices, String> {
        if !text.contains(':') {
            return GidIndices::parse_one(text);
        }
        let mut list: Vec<(String, u32)> = Vec::new();
        for item in text.split(',').map(str::trim) {
            let wrong = |reason: &str| format!("has the item \"{}\", {reason}", printable(item));
            let (name, index) = item.split_once(':').ok_or_else(|| wrong("which has no colon before its number"))?;
            let (name, index) = (name.trim(), gid_index(index));
            if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(wrong("which has no device name before the colon"));
            }
            if list.iter().any(|(other, _)| other == name) {
                return Err(wrong("whose device is listed twice"));
            }
            if list.len() == MAX_GID_DEVICES {
                return Err(format!("has more than {MAX_GID_DEVICES} items"));
            }
            list.push((name.to_owned(), index.map_err(|reason| wrong(&format!("whose number {reason}")))?));
        }
        Ok(GidIndices::ByDevice(list))
    }

    /// Parses one number for every device.
    pub(crate) fn parse_one(text: &str) -> Result<GidIndices, String> {
        let index = number::whole(text, -1, MAX_GID_INDEX)?;
        Ok(u32::try_from(index).map_or(GidIndices::Automatic, GidIndices::Everywhere))
    }
}

impl fmt::Display for GidIndices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidIndices::Automatic => f.write_str("-1"),
            GidIndices::Everywhere(index) => write!(f, "{index}"),
            GidIndices::ByDevice(list) => {
                let items: Vec<String> = list.iter().map(|(name, index)| format!("{name}:{index}")).collect();
                f.write_str(&items.join(","))
            }
        }
    }
}

fn gid_index(text: &str) -> Result<u32, String> {
    let index = number::whole(text, 0, MAX_GID_INDEX)?;
    u32::try_from(index).map_err(|_| "is out of range".into())
}

/// The ports on which packets of one lane may take different paths, and so arrive in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdaptiveRouting {
    /// The ports of InfiniBand, but not those of RoCE.
    #[default]
    Auto,
    /// No port.
    Off,
    /// Every RDMA port.
    On,
}

impl AdaptiveRouting {
    pub(crate) fn parse(text: &str) -> Result<AdaptiveRouting, String> {
        word(text, &[("auto", AdaptiveRouting::Auto), ("0", AdaptiveRouting::Off), ("1", AdaptiveRouting::On)])
    }
}

impl fmt::Display for AdaptiveRouting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdaptiveRouting::Auto => "auto",
            AdaptiveRouting::Off => "0",
            AdaptiveRouting::On => "1",
        })
    }
}

/// Parses the address family of RoCE GIDs; `None` takes IPv4, and IPv6 if there is no IPv4.
pub(crate) fn address_family(text: &str) -> Result<Option<Family>, String> {
    word(text, &[("auto", None), ("ipv4", Some(Family::Ipv4)), ("ipv6", Some(Family::Ipv6))])
}

/// Parses the address family in NCCL's words.
pub(crate) fn nccls_address_family(text: &str) -> Result<Option<Family>, String> {
    word(text, &[("AF_INET", Some(Family::Ipv4)), ("AF_INET6", Some(Family::Ipv6))])
}

/// Parses 0, 1 or 2, as NCCL numbers them.
pub(crate) fn relaxed_ordering(text: &str) -> Result<RelaxedOrdering, String> {
    Ok(match number::whole(text, 0, 2)? {
        0 => RelaxedOrdering::Off,
        1 => RelaxedOrdering::On,
        _ => RelaxedOrdering::WhereKnown,
    })
}

/// Parses 0, 1 or 2, as NCCL numbers them.
pub(crate) fn data_direct(text: &str) -> Result<DataDirect, String> {
    word(text, &[("0", DataDirect::Off), ("1", DataDirect::Only), ("2", DataDirect::Both)])
}

/// Parses 0, 1, or `auto` for `None`.
pub(crate) fn switch_or_auto(text: &str) -> Result<Option<bool>, String> {
    word(text, &[("auto", None), ("0", Some(false)), ("1", Some(true))])
}

/// Parses one device by its whole name, optionally with a port: `mlx5_3` or `mlx5_3:1`.
pub(crate) fn one_device(text: &str) -> Result<Option<RailFilter>, String> {
    let filter = RailFilter::parse(text)?;
    if filter.exclude || filter.items.len() > 1 {
        return Err("names more than one device".into());
    }
    Ok(Some(RailFilter { exact: true, ..filter }))
}

/// Joins the devices of two variables into one list, in their order.
pub(crate) fn join_devices(
    first: Option<Option<RailFilter>>,
    second: Option<Option<RailFilter>>,
) -> Option<RailFilter> {
    match (first.flatten(), second.flatten()) {
        (Some(first), Some(second)) => {
            Some(RailFilter { items: [first.items, second.items].concat(), groups: Some(vec![0, 0]), ..first })
        }
        (first, second) => first.or(second),
    }
}

/// Parses a range of addresses, or one address.
pub(crate) fn address_range(text: &str) -> Result<Option<AddressRange>, String> {
    filter::address_range(text.trim()).map(Some)
}

/// Parses a service level: 0 to 15, or -1 for none.
pub(crate) fn service_level(text: &str) -> Result<Option<u8>, String> {
    number::whole(text, -1, 15).map(|number| u8::try_from(number).ok())
}

/// Parses a traffic class from 0 to 255; -1 is none.
pub(crate) fn traffic_class(text: &str) -> Result<Option<u8>, String> {
    number::whole(text, -1, 255).map(|number| u8::try_from(number).ok())
}

/// Parses an index into a port's table of partition keys.
pub(crate) fn pkey_index(text: &str) -> Result<u16, String> {
    number::whole(text, 0, i64::from(u16::MAX))
        .and_then(|number| u16::try_from(number).map_err(|_| "is out of range".into()))
}

/// Parses a prefix length; -1 leaves the choice to the interface. 0 is an error, because it names no subnet.
pub(crate) fn prefix_length(text: &str) -> Result<Option<u8>, String> {
    match number::whole(text, -1, 32)? {
        0 => Err("names no subnet".into()),
        number => Ok(u8::try_from(number).ok()),
    }
}

/// Parses a number from `low` to `high`, which a byte holds.
pub(crate) fn byte(text: &str, low: i64, high: i64) -> Result<u8, String> {
    number::whole(text, low, high).and_then(|number| u8::try_from(number).map_err(|_| "is out of range".into()))
}

/// Parses a name for dlopen(3).
pub(crate) fn library(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.chars().any(char::is_control) {
        return Err("has a control character".into());
    }
    if name.ends_with('/') {
        return Err("names a directory".into());
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_indices() {
        assert_eq!(GidIndices::parse("-1"), Ok(GidIndices::Automatic));
        assert_eq!(GidIndices::parse("255").unwrap().on("any"), Some(255));
        let list = GidIndices::parse("mlx5_0:3, mlx5_1 : 5").unwrap();
        assert_eq!([list.on("mlx5_0"), list.on("mlx5_1"), list.on("mlx5_10")], [Some(3), Some(5), None]);
        assert_eq!(list.to_string(), "mlx5_0:3,mlx5_1:5");
        for (text, why) in [
            ("256", "is more than 255"),
            ("3,5", "is not a whole number"),
            ("mlx5_0:-1", "whose number is less than 0"),
            ("mlx5_0:3,5", "no colon"),
            (":3", "no device name"),
            ("a:1,a:2", "listed twice"),
            ("a:b:1", "whose number is not a whole number"),
        ] {
            let reason = GidIndices::parse(text).expect_err(text);
            assert!(reason.contains(why), "{text:?} {reason}");
        }
        assert!(GidIndices::parse_one("mlx5_0:3").is_err());
    }

    #[test]
    fn words_and_numbers() {
        assert_eq!(address_family("IPv6"), Ok(Some(Family::Ipv6)));
        assert_eq!(nccls_address_family("AF_INET6"), Ok(Some(Family::Ipv6)));
        assert!(address_family("AF_INET").is_err());
        assert_eq!(relaxed_ordering("1"), Ok(RelaxedOrdering::On));
        assert!(relaxed_ordering("3").is_err());
        assert!(AdaptiveRouting::parse("-2").is_err());
    }

    #[test]
    fn two_devices_are_one_list_in_their_order() {
        let device = |text| one_device(text).unwrap_or_else(|reason| panic!("{text:?} {reason}"));
        let joined = join_devices(Some(device("mlx5_3")), Some(device("mlx5_1:2"))).unwrap();
        assert_eq!(joined.to_string(), "=mlx5_3+mlx5_1:2");
        assert_eq!(join_devices(None, Some(device("mlx5_1"))).unwrap().to_string(), "=mlx5_1");
        assert_eq!(joined.matches("mlx5_30", None, Some(1)), None);
        assert!(one_device("mlx5_3,mlx5_4").is_err());
        assert!(one_device("^mlx5_3").is_err());
    }
}
