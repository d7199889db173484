//! Reading the GID table of one port: when the port is found, and again for each connection, because addresses come and
//! go during a process's life.

use std::net::IpAddr;
use std::sync::Arc;

use railweave_fabric::LinkLayer;

use crate::device::{Device, Gid};
use crate::gid::{GidRules, PortGid, eligible, named_again, reason_for_none};
use crate::sys;

/// The prefix length of an IPv4 address that is on no interface of this host.
const DEFAULT_IPV4_PREFIX: u8 = 24;
/// The prefix length of an IPv6 address that is on no interface of this host, and of every InfiniBand GID.
const DEFAULT_IPV6_PREFIX: u8 = 64;

/// The number of leading entries that a queue pair can name: its index is a byte (`sgid_index`, ibv_modify_qp(3)), but
/// tables may be longer (rxe's have 1,024 places).
const NAMED: u32 = 256;

/// Returns the addresses currently on the interfaces of this network namespace, each with its network's prefix length.
pub type HostAddresses = Arc<dyn Fn() -> Vec<(IpAddr, u8)> + Send + Sync>;

/// Returns the RoCE version of an entry of one port's table, by its index, according to the kernel's files; `None` if
/// they do not say. Called if the library does not know.
pub type RoceVersions = Arc<dyn Fn(u32) -> Option<u8> + Send + Sync>;

/// Returns true if a user's list admits a GID.
pub type GidFilter = Arc<dyn Fn(&PortGid) -> bool + Send + Sync>;

/// The GID table of one port, and the rules by which it is read.
#[derive(Clone)]
pub struct GidTable {
    /// The device, open.
    pub device: Arc<Device>,
    /// The port's number on its device, from 1.
    pub port: u8,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The user's settings for GIDs.
    pub rules: GidRules,
    /// The addresses of this host.
    pub addresses: HostAddresses,
    /// Reads an entry's RoCE version from the kernel's files.
    pub versions: RoceVersions,
    /// Narrows the entries that the rules leave, unless it admits none of them.
    pub filter: Option<GidFilter>,
}

impl GidTable {
    /// Reads the table, of `length` places, as far as a queue pair can name them.
    pub fn read(&self, length: i32) -> Vec<PortGid> {
        let is_roce = self.link_layer == LinkLayer::Roce;
        let addresses = if is_roce { (self.addresses)() } else { Vec::new() };
        let places = u32::try_from(length).unwrap_or(0).min(NAMED);
        let entries = (0..places).filter_map(|index| self.device.gid(self.port, index));
        entries.map(|gid| self.port_gid(gid, &addresses)).collect()
    }

    /// Returns the reason why lanes can use none of these entries, of a table of `length` places. A clause.
    pub fn reason_for_none(&self, entries: &[PortGid], length: i32) -> String {
        let reason = reason_for_none(entries, self.link_layer, &self.rules);
        let places = NAMED..u32::try_from(length).unwrap_or(0);
        let has_others = places.filter_map(|index| self.device.gid(self.port, index)).next().is_some();
        if !has_others || self.link_layer != LinkLayer::Roce {
            reason
        } else if entries.is_empty() {
            "its GID table has only entries above 255, which a queue pair cannot name; remove the addresses of its \
             network interface and add them again (`ip address`), so that they get the first free entries"
                .to_owned()
        } else {
            format!("{reason} (its entries beyond 255 do not count: a queue pair cannot name them)")
        }
    }

    /// Returns the entries that lanes may use now, best first. Returns the previous ones if the current ones are no
    /// substitute: an address may be gone only for a moment, and an entry that the rules or the filter excluded while
    /// the address was there does not take its place. An entry that the user names, `first` when the port was found, is
    /// followed to where it is now.
    pub(crate) fn renewed(&self, length: i32, first: &PortGid, before: &[PortGid]) -> Vec<PortGid> {
        if let (LinkLayer::Roce, Some(index), Some(before)) = (self.link_layer, self.rules.index, before.first()) {
            return vec![named_again(&self.read(length), index, first, before)];
        }
        let now = self.eligible(length);
        let is_worse = |excludes: &dyn Fn(&PortGid) -> bool| now.iter().all(excludes) && !before.iter().all(excludes);
        // A link-local entry is no worse if the port is an InfiniBand port.
        let by_rules = self.link_layer == LinkLayer::Roce;
        let excluded = |gid: &PortGid| self.filter.as_ref().is_some_and(|filter| !filter(gid));
        let keeps = now.is_empty() || by_rules && is_worse(&PortGid::is_link_local) || is_worse(&excluded);
        if keeps { before.to_vec() } else { now }
    }

    /// Returns the entries that lanes may use now, best first; none if the rules leave none.
    pub(crate) fn eligible(&self, length: i32) -> Vec<PortGid> {
        let mut gids = eligible(&self.read(length), self.link_layer, &self.rules);
        if let Some(filter) = &self.filter
            && gids.iter().any(|gid| filter(gid))
        {
            gids.retain(|gid| filter(gid));
        }
        gids
    }

    fn port_gid(&self, gid: Gid, addresses: &[(IpAddr, u8)]) -> PortGid {
        let version = match gid.kind {
            Some(sys::GID_TYPE_ROCE_V1) => Some(1),
            Some(sys::GID_TYPE_ROCE_V2) => Some(2),
            Some(_) => None,
            None => (self.versions)(gid.index),
        };
        let mut port_gid = PortGid {
            bytes: gid.bytes,
            index: gid.index,
            version,
            prefix_len: DEFAULT_IPV6_PREFIX,
            interface: None,
            is_here: false,
        };
        if self.link_layer == LinkLayer::Roce {
            let address = port_gid.address();
            let here = addresses.iter().find(|(here, _)| *here == address).map(|(_, prefix_len)| *prefix_len);
            let default = if address.is_ipv4() { DEFAULT_IPV4_PREFIX } else { DEFAULT_IPV6_PREFIX };
            let set = self.rules.prefix_len.filter(|_| address.is_ipv4());
            port_gid.is_here = here.is_some();
            port_gid.prefix_len = set.or(here).unwrap_or(default);
        }
        port_gid
    }
}
