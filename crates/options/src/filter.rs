//! Filters of ports: the lists of names and address ranges by which users pick the ports that become rails.
//!
//! The syntax is that of `NCCL_IB_HCA`, which includes that of `NCCL_SOCKET_IFNAME` (`misc/utils.cc` of NCCL), with
//! address ranges added: `[^][=]item,item,…` where an item is `name[:port[:rail[:plane]]]`, `address/length`, or an
//! address alone. Ours also have groups, which are devices: `item+item,item+item,…`.

use crate::error::printable;
use railweave_fabric::AddressRange;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The largest number of items in a filter.
pub(crate) const MAX_ITEMS: usize = 64;

/// A list that picks ports by name or address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailFilter {
    /// True if the list began with `^`: ports that match are left out, all others are in.
    pub exclude: bool,
    /// True if the list began with `=` (after `^`, if any): names must match whole; otherwise their start is enough.
    pub exact: bool,
    /// The items in the order given; at least one.
    pub items: Vec<FilterItem>,
    /// The group of each item, counted from 0, if the list joins items with `+`: the ports of a group are one device.
    pub groups: Option<Vec<usize>>,
}

/// One item of a [`RailFilter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterItem {
    /// `name[:port[:rail[:plane]]]`; an empty field, a missing one and -1 mean the same.
    Name {
        /// An interface's or adapter's name, or the start of one.
        name: String,
        /// The adapter's port number; `None` matches any.
        port: Option<u32>,
        /// The rail id that the port belongs to, never negative; `None` leaves it undefined.
        rail: Option<i16>,
        /// The plane id that the port belongs to, never negative; `None` leaves it undefined.
        plane: Option<i16>,
    },
    /// `address/length`: every port with an address in that range.
    Addresses(AddressRange),
}

/// A port that a [`RailFilter`] lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The index of the first item that matches: the user's order. `None` if the list names the ports to leave out.
    pub item: Option<usize>,
    /// The item's group, if the list has groups.
    pub group: Option<usize>,
    /// The rail id in the item, never negative.
    pub rail: Option<i16>,
    /// The plane id in the item, never negative.
    pub plane: Option<i16>,
}

impl RailFilter {
    /// Returns the match of the port called `name`, or `None` if the filter leaves it out.
    ///
    /// `address` is one address of the port, or `None` if it has none (then no address range matches); `port` is the
    /// adapter's port number, or `None` if it has no ports of its own (then any number in an item matches).
    pub fn matches(&self, name: &str, address: Option<IpAddr>, port: Option<u32>) -> Option<Match> {
        let found = self.items.iter().enumerate().find(|(_, item)| item.matches(name, address, port, self.exact));
        match (found, self.exclude) {
            (Some(_), true) | (None, false) => None,
            (None, true) => Some(Match { item: None, group: None, rail: None, plane: None }),
            (Some((index, item)), false) => {
                let (rail, plane) = match item {
                    FilterItem::Name { rail, plane, .. } => (*rail, *plane),
                    FilterItem::Addresses(_) => (None, None),
                };
                let group = self.groups.as_ref().map(|groups| groups[index]);
                Some(Match { item: Some(index), group, rail, plane })
            }
        }
    }

    /// Returns the items that let in none of these ports, each by its name, an address and its port number, and true
    /// for each of them whose ports earlier items have.
    pub fn idle<'a>(
        &self,
        ports: impl Iterator<Item = (&'a str, Option<IpAddr>, Option<u32>)> + Clone,
    ) -> Vec<(&FilterItem, bool)> {
        // A list of ports to leave out may name those of other hosts.
        if self.exclude {
            return Vec::new();
        }
        let used: Vec<usize> = ports
            .clone()
            .filter_map(|(name, address, port)| {
                self.items.iter().position(|item| item.matches(name, address, port, self.exact))
            })
            .collect();
        let has_ports = |item: &FilterItem| {
            ports.clone().any(|(name, address, port)| item.matches(name, address, port, self.exact))
        };
        let idle = self.items.iter().enumerate().filter(|(index, _)| !used.contains(index));
        idle.map(|(_, item)| (item, has_ports(item))).collect()
    }

    /// Parses a list. The error is the end of a sentence that begins with the list.
    pub fn parse(text: &str) -> Result<RailFilter, String> {
        let list = text.trim();
        let (exclude, list) = leading(list, '^');
        let (exact, list) = leading(list, '=');
        if list.is_empty() {
            return Err("names nothing".into());
        }
        let (mut items, mut groups) = (Vec::new(), Vec::new());
        // NCCL skips empty items too, so that a trailing comma does no harm.
        for (group, text) in list.split(',').map(str::trim).filter(|text| !text.is_empty()).enumerate() {
            for item in text.split('+').map(str::trim) {
                if item.is_empty() {
                    return Err(format!("has the group \"{}\", in which a + joins nothing", printable(text)));
                }
                if items.len() == MAX_ITEMS {
                    return Err(format!("has more than {MAX_ITEMS} items"));
                }
                items.push(FilterItem::parse(item)?);
                groups.push(group);
            }
        }
        if items.is_empty() {
            return Err("names nothing".into());
        }
        let has_groups = groups.windows(2).any(|pair| pair[0] == pair[1]);
        if has_groups && exclude {
            return Err("joins with + what its ^ leaves out, but only ports that are used can be grouped".into());
        }
        Ok(RailFilter { exclude, exact, items, groups: has_groups.then_some(groups) })
    }
}

/// Splits `mark` off the start of `text`: returns true if it was there, and the rest.
pub(crate) fn leading(text: &str, mark: char) -> (bool, &str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest.trim_start()))
}

impl FilterItem {
    /// Parses an item. The error is the end of a sentence that begins with the list.
    fn parse(item: &str) -> Result<FilterItem, String> {
        match FilterItem::parse_whatever_its_ids(item)? {
            (item, None) => Ok(item),
            (_, Some(reason)) => Err(reason),
        }
    }

    /// Parses an item, ignoring rail and plane ids that do not fit into NCCL's numbers (int16_t in `misc/utils.cc` of
    /// NCCL 2.30), because the port is useful without them. The string that is returned with the item says what is
    /// wrong with the first such id; like the error, it is the end of a sentence that begins with the list.
    pub(crate) fn parse_whatever_its_ids(item: &str) -> Result<(FilterItem, Option<String>), String> {
        let shown = printable(item);
        if item.starts_with(['^', '=']) {
            return Err(format!("has \"{shown}\" inside, but ^ and = may only lead the whole list, in this order"));
        }
        // NCCL knows no groups; as a name, it would be shown as a group.
        if item.contains('+') {
            return Err(format!("has \"{shown}\", but only lists of Railweave's own join ports with +"));
        }
        if item.chars().any(char::is_control) {
            return Err(format!("has the item \"{shown}\", which has a control character"));
        }
        if let Some((address, length)) = item.split_once('/') {
            return range(address, length)
                .map(|range| (FilterItem::Addresses(range), None))
                .map_err(|reason| format!("has the address range \"{shown}\", in which {reason}"));
        }
        if let Ok(address) = item.parse::<IpAddr>() {
            let alone = range(item, &longest(address).to_string());
            return alone.map(|range| (FilterItem::Addresses(range), None));
        }
        let mut fields = item.split(':');
        let name = fields.next().unwrap_or_default().trim();
        if name.is_empty() {
            return Err(format!("has the item \"{shown}\", which has no name"));
        }
        let odd = |what: &str, field: &str, range: &str| {
            format!("has the item \"{shown}\", in which the {what} \"{}\" is not a number{range}", printable(field))
        };
        let mut given = || fields.next().map(str::trim).filter(|field| !matches!(*field, "" | "-1"));
        let port = given().map(|port| whole(port).ok_or_else(|| odd("port", port, ""))).transpose()?;
        let mut reason = None;
        let mut id = |what: &str| {
            let given = given()?;
            let id = whole(given);
            if id.is_none() && reason.is_none() {
                reason = Some(odd(what, given, " from 0 to 32767"));
            }
            id
        };
        let (rail, plane) = (id("rail"), id("plane"));
        if fields.next().is_some() {
            return Err(format!("has the item \"{shown}\", which has more than four fields"));
        }
        Ok((FilterItem::Name { name: name.into(), port, rail, plane }, reason))
    }

    fn matches(&self, name: &str, address: Option<IpAddr>, port: Option<u32>, exact: bool) -> bool {
        match self {
            FilterItem::Name { name: wanted, port: wanted_port, .. } => {
                let same_name = if exact { name == wanted } else { name.starts_with(wanted.as_str()) };
                let same_port = match (wanted_port, port) {
                    (Some(wanted), Some(port)) => *wanted == port,
                    _ => true,
                };
                same_name && same_port
            }
            FilterItem::Addresses(range) => address.is_some_and(|address| range.contains(address)),
        }
    }
}

/// Parses `address/length`, or an address alone, which is a range of one. The error is the end of a sentence that
/// begins with the text.
pub(crate) fn address_range(text: &str) -> Result<AddressRange, String> {
    let wrong = |reason| format!("is not a range, because {reason}");
    if let Some((address, length)) = text.split_once('/') {
        return range(address, length).map_err(wrong);
    }
    let longest = text.parse().map_or(0, longest).to_string();
    range(text, &longest).map_err(wrong)
}

fn range(address: &str, length: &str) -> Result<AddressRange, String> {
    let address: IpAddr =
        address.trim().parse().map_err(|_| format!("\"{}\" is not an IP address", printable(address)))?;
    let longest = longest(address);
    let prefix_len: u8 = whole(length.trim())
        .filter(|length| *length <= longest)
        .ok_or_else(|| format!("\"{}\" is not a prefix length from 0 to {longest}", printable(length)))?;
    // An IPv4 range written inside IPv6 becomes a plain one, so that `contains` may compare within one family.
    match address.to_canonical() {
        IpAddr::V4(inner) if address.is_ipv6() => match prefix_len.checked_sub(96) {
            Some(prefix_len) => Ok(AddressRange { address: IpAddr::V4(inner), prefix_len }),
            None => Err(format!("an IPv4 range is wider than IPv4; write it as {inner}/0")),
        },
        _ => Ok(AddressRange { address, prefix_len }),
    }
}

/// Returns the length of the prefix of the range that holds this address alone.
fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for RailFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |yes, mark| if yes { mark } else { "" };
        write!(f, "{}{}", mark(self.exclude, "^"), mark(self.exact, "="))?;
        for (index, item) in self.items.iter().enumerate() {
            let joins = self.groups.as_ref().is_some_and(|groups| index > 0 && groups[index] == groups[index - 1]);
            write!(f, "{}{item}", mark(index > 0, if joins { "+" } else { "," }))?;
        }
        Ok(())
    }
}

impl fmt::Display for FilterItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterItem::Addresses(range) => range.fmt(f),
            FilterItem::Name { name, port, rail, plane } => {
                let fields = [port.map(i64::from), rail.map(i64::from), plane.map(i64::from)];
                let given = fields.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                let written = |count: usize, absent: &str| {
                    let field =
                        |field: &Option<i64>| field.map_or_else(|| absent.to_owned(), |number| number.to_string());
                    fields[..count].iter().fold(name.clone(), |text, number| text + ":" + &field(number))
                };
                match written(given, "") {
                    // "fd00::0" and "10.0.0.0" would be parsed as addresses.
                    address if address.parse::<IpAddr>().is_ok() => f.write_str(&written(given.max(1), "-1")),
                    text => f.write_str(&text),
                }
            }
        }
    }
}

/// Parses a number that has only digits: an index or a length has no sign.
fn whole<T: FromStr>(text: &str) -> Option<T> {
    Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// Parses a list of ports as [`RailFilter::parse`] does, for a setting that may have none.
pub(crate) fn filter(text: &str) -> Result<Option<RailFilter>, String> {
    RailFilter::parse(text).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> RailFilter {
        RailFilter::parse(text).unwrap_or_else(|reason| panic!("{text:?} {reason}"))
    }

    fn takes(list: &str, name: &str, address: &str) -> bool {
        filter(list).matches(name, address.parse().ok(), None).is_some()
    }

    #[test]
    fn names_match_by_their_start_unless_exact() {
        assert!(takes("eth", "eth0", ""));
        assert!(!takes("eth", "veth0", ""));
        assert!(takes("=eth0,ib0", "eth0", ""));
        assert!(!takes("=eth0", "eth01", ""));
        assert!(!takes("=eth0", "eth", ""));
    }

    #[test]
    fn items_without_ports_are_known() {
        let ports = [("mlx5_0", "10.0.0.1"), ("mlx5_1", "10.0.1.1")];
        let idle = |list: &str| {
            let list = filter(list);
            let known = ports.iter().map(|(name, address)| (*name, address.parse().ok(), Some(1)));
            list.idle(known).into_iter().map(|(item, is_taken)| (item.to_string(), is_taken)).collect::<Vec<_>>()
        };
        assert_eq!(idle("mlx5_0+mlx5_1"), []);
        assert_eq!(idle("mlx5_0,nope,mlx5_1"), [("nope".to_owned(), false)]);
        assert_eq!(idle("mlx5_0:2"), [("mlx5_0:2".to_owned(), false)]);
        assert_eq!(idle("mlx5,10.0.1.0/24"), [("10.0.1.0/24".to_owned(), true)]);
        assert_eq!(idle("mlx5_0,mlx5_0+mlx5_1"), [("mlx5_0".to_owned(), true)]);
        assert_eq!(idle("^nope"), []);
    }

    #[test]
    fn an_excluding_list_keeps_the_rest() {
        let nccl = filter("^docker,lo");
        assert_eq!(nccl.matches("docker0", None, None), None);
        assert_eq!(nccl.matches("eth0", None, None), Some(Match { item: None, group: None, rail: None, plane: None }));
        assert!(takes("^=lo", "lo1", ""));
        assert!(!takes("^=lo", "lo", ""));
    }

    #[test]
    fn fields_give_port_rail_and_plane() {
        let list = filter("mlx5_0:1:3:2, mlx5_1::4,mlx5_2:-1::7");
        let matched = |item, rail, plane| Some(Match { item: Some(item), group: None, rail, plane });
        assert_eq!(list.matches("mlx5_0", None, Some(1)), matched(0, Some(3), Some(2)));
        assert_eq!(list.matches("mlx5_0", None, Some(2)), None);
        assert_eq!(list.matches("mlx5_0", None, None).unwrap().item, Some(0));
        assert_eq!(list.matches("mlx5_1", None, Some(9)), matched(1, Some(4), None));
        assert_eq!(list.matches("mlx5_2", None, Some(9)), matched(2, None, Some(7)));
        assert_eq!(list.to_string(), "mlx5_0:1:3:2,mlx5_1::4,mlx5_2:::7");
        assert_eq!(filter("a:1:32767:0").matches("a", None, None).unwrap().rail, Some(32767));
    }

    #[test]
    fn a_plus_joins_the_items_of_a_group() {
        let list = filter("=mlx5_0:1:2 + mlx5_1, 10.0.0.0/8,mlx5_3+10.1.0.1");
        assert_eq!(list.to_string(), "=mlx5_0:1:2+mlx5_1,10.0.0.0/8,mlx5_3+10.1.0.1/32");
        let group = |name: &str| list.matches(name, None, Some(1)).unwrap().group;
        assert_eq!([group("mlx5_0"), group("mlx5_1"), group("mlx5_3")], [Some(0), Some(0), Some(2)]);
        assert_eq!(filter("a,b").groups, None);
        for (list, why) in [("a+,b", "a + joins nothing"), ("+a", "joins nothing"), ("^a+b", "its ^ leaves out")] {
            let reason = RailFilter::parse(list).expect_err(list);
            assert!(reason.contains(why), "{list:?} {reason}");
        }
    }

    #[test]
    fn address_ranges() {
        assert!(takes("10.1.0.7/16", "x", "10.1.200.3"));
        assert!(!takes("10.1.0.0/16", "x", "10.2.0.1"));
        assert!(takes("0.0.0.0/0", "x", "10.2.0.1"));
        assert!(!takes("0.0.0.0/0", "x", "fd00::1"));
        assert!(takes("10.0.0.1/32", "x", "::ffff:10.0.0.1"));
        assert!(takes("::ffff:10.0.0.0/104", "x", "10.9.9.9"));
        assert!(takes("fd00::/8,eth", "x", "fd12::1"));
        for (alone, other) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            assert!(takes(alone, "x", alone));
            assert!(!takes(alone, "x", other));
        }
        assert!(takes("::ffff:10.0.0.1", "x", "10.0.0.1"));
        assert!(takes("::/0", "x", "fe80::1"));
        assert!(!takes("fd00::1/128", "x", "fd00::2"));
        assert!(!takes("10.0.0.0/8", "x", ""));
        assert!(!takes("^127.0.0.0/8", "lo", "127.0.0.2"));
    }

    #[test]
    fn refusals_say_why() {
        let refusals = [
            ("^", "names nothing"),
            ("^=", "names nothing"),
            (" , ", "names nothing"),
            ("eth0,^lo", "may only lead the whole list"),
            ("=^eth0", "may only lead the whole list"),
            ("10.0.0.0/33", "not a prefix length from 0 to 32"),
            ("10.0.0.0/+8", "not a prefix length from 0 to 32"),
            ("fd00::/129", "not a prefix length from 0 to 128"),
            ("10.0.0/8", "not an IP address"),
            ("::ffff:10.0.0.0/8", "wider than IPv4"),
            ("eth0:one", "the port \"one\" is not a number"),
            ("a:1:-2", "the rail \"-2\" is not a number from 0 to 32767"),
            ("a:1:32768", "the rail \"32768\" is not a number from 0 to 32767"),
            ("a:1:0:99999", "the plane \"99999\" is not a number from 0 to 32767"),
            (":1", "has no name"),
            ("a:1:2:3:4", "more than four fields"),
        ];
        for (list, why) in refusals {
            let reason = RailFilter::parse(list).expect_err(list);
            assert!(reason.contains(why), "{list:?} {reason}");
        }
        assert!(RailFilter::parse(&"a,".repeat(64)).is_ok());
        assert!(RailFilter::parse(&"a,".repeat(65)).is_err());
    }
}
