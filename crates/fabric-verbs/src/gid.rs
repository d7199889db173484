//! Rules for a port's GID table: the entries that lanes may use, and the one that reaches a peer. Nothing here reads
//! the table.

use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

use railweave_fabric::{AddressRange, Family, LinkLayer, SettingId};

/// The most entries that a reason lists.
const MOST_LISTED: usize = 8;

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGid {
    /// The GID, in network order.
    pub bytes: [u8; 16],
    /// Its place in the table.
    pub index: u32,
    /// The version of RoCE of its packets, 1 or 2; `None` on InfiniBand, or if the machine does not report it.
    pub version: Option<u8>,
    /// Length of its network's prefix in bits, in the address's own family.
    pub prefix_len: u8,
    /// The network interface that it belongs to, if the machine reports it and discovery asked.
    pub interface: Option<String>,
    /// True if its address is on an interface of this network namespace. A table that containers share holds the
    /// addresses of all of them.
    pub is_here: bool,
}

impl PortGid {
    /// Returns the GID as an address: IPv4 if it is a mapped one.
    pub fn address(&self) -> IpAddr {
        address(self.bytes)
    }

    pub(crate) fn is_link_local(&self) -> bool {
        matches!(self.address(), IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// Returns the number by which its subnet's routers know a routable InfiniBand port (FLID); 0 if it has none.
    fn flid(&self) -> u16 {
        u16::from_be_bytes([self.bytes[4], self.bytes[5]])
    }

    /// Returns the number of leading bits of the GID that name its network.
    fn network_bits(&self) -> u32 {
        let mapped = if self.address().is_ipv4() { 96 } else { 0 };
        (mapped + u32::from(self.prefix_len)).min(128)
    }
}

/// The user's settings for GIDs. The default leaves everything to the rules of [`eligible`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidRules {
    /// Only this entry, on RoCE.
    pub index: Option<u32>,
    /// The version of RoCE, 1 or 2.
    pub roce_version: u8,
    /// Only this family; `None` prefers IPv4 to IPv6.
    pub family: Option<Family>,
    /// Only addresses in this range.
    pub range: Option<AddressRange>,
    /// The entry of an InfiniBand port that holds its FLID, the number by which routers between subnets know it.
    pub flid_index: u32,
    /// Length of the prefix of IPv4 networks; `None` takes the interface's.
    pub prefix_len: Option<u8>,
}

impl Default for GidRules {
    fn default() -> Self {
        Self { index: None, roce_version: 2, family: None, range: None, flid_index: 1, prefix_len: None }
    }
}

/// Returns the entries of `gids` that lanes may use, best first; none if the rules leave none.
///
/// InfiniBand ports have one: the entry with a FLID if there is one, otherwise the table's first. RoCE ports have the
/// entry that the user names. If the user names none, they have every entry of the right version, family and range that
/// is not link-local IPv6: those of this network namespace first, then IPv4 before IPv6 and link-local IPv4 last, each
/// group in the table's order. If there is none, link-local IPv6 entries are used: adapters on one Ethernet segment
/// reach each other by them. If the machine does not report versions, the last of several equal GIDs is taken for
/// version 2, because the kernel lists version 1 first.
pub fn eligible(gids: &[PortGid], link_layer: LinkLayer, rules: &GidRules) -> Vec<PortGid> {
    let at = |index: u32| gids.iter().find(move |gid| gid.index == index);
    if link_layer == LinkLayer::InfiniBand {
        let routable = at(rules.flid_index).filter(|gid| gid.flid() != 0);
        return routable.or_else(|| at(0)).into_iter().cloned().collect();
    }
    let gids = with_versions(gids);
    if let Some(index) = rules.index {
        return gids.into_iter().filter(|gid| gid.index == index).collect();
    }
    let free = |but: Option<Obstacle>| gids.iter().filter(move |gid| obstacle(gid, rules) == but).cloned();
    let mut found: Vec<PortGid> = free(None).collect();
    if found.is_empty() {
        found.extend(free(Some(Obstacle::LinkLocal)));
    }
    found.sort_by_key(|gid| {
        let family = match gid.address() {
            IpAddr::V4(v4) if v4.is_link_local() => 2,
            IpAddr::V4(_) => 0,
            IpAddr::V6(_) => 1,
        };
        (!gid.is_here, family, gid.index)
    });
    found
}

/// Returns the entry of a RoCE port's table that a port uses from now on whose user has named an entry by its `index`,
/// and which has used `first` when it was found, and `before` last. The kernel gives an address that was removed and
/// added again, as when a link goes down and up, the first place that is free. So this is the entry with the same GID
/// and version wherever it is now. If it is nowhere, it is what the user's place holds now, unless that is of another
/// version or link-local IPv6: an address may be gone only for a moment. What took its place meanwhile leaves it again.
pub fn named_again(gids: &[PortGid], index: u32, first: &PortGid, before: &PortGid) -> PortGid {
    let gids = with_versions(gids);
    let at_index = gids.iter().find(|gid| gid.index == index);
    let takes_its_place =
        |gid: &&PortGid| gid.version == before.version && (!gid.is_link_local() || before.is_link_local());
    let found = [first, before].into_iter().find_map(|named| {
        let is_it = |gid: &&PortGid| gid.bytes == named.bytes && gid.version == named.version;
        at_index.filter(is_it).or_else(|| gids.iter().find(is_it))
    });
    found.or(at_index.filter(takes_its_place)).unwrap_or(before).clone()
}

/// Returns the reason why [`eligible`] finds nothing: the table's entries and the remedy. A clause.
pub fn reason_for_none(gids: &[PortGid], link_layer: LinkLayer, rules: &GidRules) -> String {
    if link_layer == LinkLayer::InfiniBand {
        return "its GID table has no entry 0; is the subnet manager running (`sminfo`)?".to_owned();
    }
    if gids.is_empty() {
        return "its GID table is empty; give its network interface an address (`ip address`), or, in a container, \
                share the host's network"
            .to_owned();
    }
    let mut obstacles = Vec::new();
    let mut text = match rules.index {
        Some(index) => format!("its GID table has no entry {index}, which the settings name: it has "),
        None => "no entry of its GID table can be used: ".to_owned(),
    };
    for (count, gid) in with_versions(gids).iter().enumerate() {
        let obstacle = obstacle(gid, rules).filter(|_| rules.index.is_none());
        if count < MOST_LISTED {
            let separator = if count == 0 { "" } else { ", " };
            let why = obstacle.map(|obstacle| format!(" is {}", obstacle.describe(rules))).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{} ({}{why})", gid.index, gid.address());
        }
        obstacles.extend(obstacle);
    }
    if gids.len() > MOST_LISTED {
        let _ = write!(text, " and {} more", gids.len() - MOST_LISTED);
    }
    text + "; " + &advice(&obstacles, rules)
}

/// Returns the first of `gids` that shares a network with the peer's GID; if none does, the first of all.
///
/// # Panics
/// When `gids` is empty; a port that discovery found has at least one.
pub fn for_peer(gids: &[PortGid], peer: [u8; 16]) -> &PortGid {
    let is_near = |gid: &&PortGid| {
        let bits = gid.network_bits();
        gid.address().is_ipv4() == address(peer).is_ipv4() && gid.prefix_len > 0 && common_bits(gid.bytes, peer) >= bits
    };
    gids.iter().find(is_near).unwrap_or(&gids[0])
}

/// Reasons not to use an entry of a RoCE port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    LinkLocal,
    Version(u8),
    Family,
    Range,
}

fn obstacle(gid: &PortGid, rules: &GidRules) -> Option<Obstacle> {
    let address = gid.address();
    let is_family = |family| (family == Family::Ipv4) == address.is_ipv4();
    match gid.version {
        Some(version) if version != rules.roce_version => Some(Obstacle::Version(version)),
        _ if !rules.family.is_none_or(is_family) => Some(Obstacle::Family),
        _ if !rules.range.is_none_or(|range| range.contains(address)) => Some(Obstacle::Range),
        _ if gid.is_link_local() => Some(Obstacle::LinkLocal),
        _ => None,
    }
}

impl Obstacle {
    fn describe(self, rules: &GidRules) -> String {
        match (self, rules.range) {
            (Self::LinkLocal, _) => "link-local".to_owned(),
            (Self::Version(version), _) => format!("RoCE v{version}, not v{}", rules.roce_version),
            (Self::Range, Some(range)) => format!("not in {}/{}", range.address, range.prefix_len),
            (Self::Family | Self::Range, _) => "not of the requested address family".to_owned(),
        }
    }
}

fn advice(obstacles: &[Obstacle], rules: &GidRules) -> String {
    if rules.index.is_some() {
        format!("set {} to one of these, or unset it", SettingId::GidIndex.both())
    } else if obstacles.contains(&Obstacle::Range) {
        format!("set {} to a range that has one of these, or unset it", SettingId::AddressRange.both())
    } else if obstacles.contains(&Obstacle::Family) {
        format!("set {} to the family of these, or unset it", SettingId::AddressFamily.both())
    } else if obstacles.iter().any(|obstacle| matches!(obstacle, Obstacle::Version(_))) {
        format!("set {} to the version of these", SettingId::RoceVersion.both())
    } else {
        format!(
            "give its network interface an IPv4 or a global IPv6 address, or name an entry in {}",
            SettingId::GidIndex
        )
    }
}

fn with_versions(gids: &[PortGid]) -> Vec<PortGid> {
    let version = |place: usize, gid: &PortGid| {
        let is_listed_again = gids[place + 1..].iter().any(|later| later.bytes == gid.bytes);
        gid.version.unwrap_or(if is_listed_again { 1 } else { 2 })
    };
    let gids = gids.iter().enumerate();
    gids.map(|(place, gid)| PortGid { version: Some(version(place, gid)), ..gid.clone() }).collect()
}

fn address(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}

fn common_bits(one: [u8; 16], other: [u8; 16]) -> u32 {
    (u128::from_be_bytes(one) ^ u128::from_be_bytes(other)).leading_zeros()
}

/// Formats a GID as an address: IPv4 if it is a mapped one.
pub(crate) fn show_gid(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_canonical().to_string()
}
