//! GID tables, read from a description.

use std::fmt;
use std::net::IpAddr;

use railweave_fabric_verbs::sys;
use serde::de::{Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::values::{number, value};

/// One entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidFacts {
    pub(crate) gid: sys::Gid,
    pub(crate) kind: u32,
    pub(crate) interface: u32,
}

impl<'de> Deserialize<'de> for GidFacts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "an IP address, ib, roce1 or roce2, and a network interface from 0 to 4294967295, such as \
                       ['10.0.0.1', 'roce2', 2]";
        value(deserializer, allowed, |value| {
            let [address, kind, interface] = &value.as_array()?[..] else { return None };
            let gid = match address.as_str()?.parse().ok()? {
                IpAddr::V4(address) => sys::Gid(address.to_ipv6_mapped().octets()),
                IpAddr::V6(address) => sys::Gid(address.octets()),
            };
            let kind = match kind.as_str()? {
                "ib" => sys::GID_TYPE_IB,
                "roce1" => sys::GID_TYPE_ROCE_V1,
                "roce2" => sys::GID_TYPE_ROCE_V2,
                _ => return None,
            };
            Some(Self { gid, kind, interface: number(interface, 0, u32::MAX.into())? })
        })
    }
}

/// Reads a GID table from its entries by index.
pub(crate) fn table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Option<GidFacts>>, D::Error> {
    struct GidTable;
    impl<'de> Visitor<'de> for GidTable {
        type Value = Vec<Option<GidFacts>>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("entries with an index from 0 to 4095, such as gid.1 = ['10.0.0.1', 'roce2', 2]")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut table = Vec::new();
            while let Some((index, facts)) = entries.next_entry::<String, _>()? {
                let place: Option<usize> = index.parse().ok().filter(|place| *place < 4096);
                let place = place.ok_or_else(|| A::Error::invalid_value(Unexpected::Str(&index), &self))?;
                table.resize(table.len().max(place + 1), None);
                table[place] = Some(facts);
            }
            Ok(table)
        }
    }
    deserializer.deserialize_map(GidTable)
}
