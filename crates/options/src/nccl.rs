//! NCCL's own variables, read as NCCL reads them: NCCL continues whatever they hold, and so does Railweave. A note says
//! how a value counts if that differs from its text.
//!
//! Numbers are those of `ncclLoadParam` (NCCL 2.30, `src/misc/param.cc`), which calls strtoll(3) with base 0: `0x`
//! starts a hexadecimal number and `0` an octal one, blanks before the number and anything after it are ignored, and a
//! number that does not fit counts as the default. Text without a number is 0 for NCCL and the default here, because
//! nobody who writes it means 0.

use crate::Fabric;
use crate::filter::{self, FilterItem, MAX_ITEMS, RailFilter, leading};
use crate::rdma::{self, AdaptiveRouting, GidIndices};
use railweave_fabric::{AddressRange, DataDirect, Family, RelaxedOrdering};
use std::time::Duration;

/// The result of reading a variable's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading<T> {
    /// The value; `None` is the setting's default.
    pub(crate) value: Option<T>,
    /// A note for the user: the end of a sentence that begins with the text. `None` if the value is what the text says.
    pub(crate) note: Option<String>,
}

impl<T> Reading<T> {
    fn plain(value: T) -> Self {
        Self { value: Some(value), note: None }
    }

    fn noted(value: T, note: impl Into<String>) -> Self {
        Self { value: Some(value), note: Some(note.into()) }
    }

    /// Returns the default, with `reason` as its note.
    pub(crate) fn default(reason: impl std::fmt::Display) -> Self {
        Self { value: None, note: Some(format!("{reason}, so the default is used")) }
    }

    fn of(parsed: Result<T, String>) -> Self {
        parsed.map_or_else(Self::default, Self::plain)
    }

    pub(crate) fn map<U>(self, into: impl FnOnce(T) -> U) -> Reading<U> {
        Reading { value: self.value.map(into), note: self.note }
    }
}

impl Reading<i64> {
    /// Limits the number to `high`; below `low` it becomes the default.
    fn within(self, low: i64, high: i64) -> Self {
        match self.value {
            Some(number) if number > high => Self::noted(high, format!("is more than {high}, so {high} is used")),
            _ => self.only(low, high),
        }
    }

    /// Makes a number outside `low` to `high` the default.
    fn only(self, low: i64, high: i64) -> Self {
        match self.value {
            Some(number) if number < low => Self::default(format_args!("is less than {low}")),
            Some(number) if number > high => Self::default(format_args!("is more than {high}")),
            _ => self,
        }
    }

    /// Limits the number to `high`. A negative number counts as 0, as it does for NCCL.
    fn counted(self, high: i64) -> Self {
        match self.value {
            Some(number) if number < 0 => Self::noted(0, "counts as 0, as it does for NCCL"),
            _ => self.within(0, high),
        }
    }

    /// Makes a number that is not in `known` count as `number`, as it does for NCCL.
    fn taken_for(self, number: i64, known: &[i64]) -> Self {
        match self.value {
            Some(other) if !known.contains(&other) => {
                Self::noted(number, format!("counts as {number}, as it does for NCCL"))
            }
            _ => self,
        }
    }
}

/// Parses a number as strtoll(3) does with base 0.
pub(crate) fn number(text: &str) -> Reading<i64> {
    let is_blank = |c: char| matches!(c, ' ' | '\t'..='\r');
    let unsigned = text.trim_start_matches(is_blank);
    let (negative, unsigned) = match unsigned.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, unsigned.strip_prefix('+').unwrap_or(unsigned)),
    };
    let hexadecimal = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X"));
    let hexadecimal = hexadecimal.filter(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (radix, unsigned) = match hexadecimal {
        Some(rest) => (16, rest),
        None if unsigned.starts_with('0') => (8, unsigned),
        None => (10, unsigned),
    };
    let end = unsigned.find(|c: char| !c.is_digit(radix)).unwrap_or(unsigned.len());
    let (digits, rest) = unsigned.split_at(end);
    if digits.is_empty() {
        return Reading::default("is not a number");
    }
    let sign = if negative { "-" } else { "" };
    match i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        Err(_) => Reading::default("is a number that does not fit into 64 bits"),
        Ok(number) if rest.trim_matches(is_blank).is_empty() => Reading::plain(number),
        Ok(number) => Reading::noted(number, format!("begins with the number {number}, which is all that counts")),
    }
}

/// Parses a switch: any number except 0 is on.
pub(crate) fn switch(text: &str) -> Reading<bool> {
    number(text).taken_for(1, &[0, 1]).map(|number| number != 0)
}

/// Reads NCCL_IB_SPLIT_DATA_ON_QPS: only 1 is on.
pub(crate) fn split_data(text: &str) -> Reading<bool> {
    number(text).taken_for(0, &[0, 1]).map(|number| number == 1)
}

/// Reads NCCL_IB_DISABLE: on disables RDMA.
pub(crate) fn disabled(text: &str) -> Reading<Fabric> {
    switch(text).map(|disabled| if disabled { Fabric::Tcp } else { Fabric::Auto })
}

/// Reads a number from `low` to `high`, which a byte holds.
pub(crate) fn byte(text: &str, low: u8, high: u8) -> Reading<u8> {
    // The cast loses nothing: the number is between the two bounds.
    number(text).within(low.into(), high.into()).map(|number| number as u8)
}

/// Reads a number from 0 to `high`, or -1 for none.
pub(crate) fn byte_or_none(text: &str, high: u8) -> Reading<Option<u8>> {
    number(text).within(-1, high.into()).map(|number| u8::try_from(number).ok())
}

/// Reads a number of retries, at most a million.
pub(crate) fn retries(text: &str) -> Reading<u32> {
    number(text).counted(1_000_000).map(|count| count as u32)
}

/// Reads milliseconds, up to an hour. NCCL takes 32 bits of a negative number, which is up to 49 days.
pub(crate) fn retry_pause(text: &str) -> Reading<Duration> {
    number(text).within(0, 3_600_000).map(|milliseconds| Duration::from_millis(milliseconds as u64))
}

/// Reads a version of RoCE: 1 or 2.
pub(crate) fn roce_version(text: &str) -> Reading<u8> {
    number(text).only(1, 2).map(|number| number as u8)
}

/// Reads an index that 16 bits hold.
pub(crate) fn pkey_index(text: &str) -> Reading<u16> {
    number(text).only(0, u16::MAX.into()).map(|number| number as u16)
}

/// Reads the prefix length of an IPv4 network; -1 leaves it to the interface.
pub(crate) fn prefix_length(text: &str) -> Reading<Option<u8>> {
    match number(text) {
        Reading { value: Some(0), .. } => Reading::default("names no subnet"),
        reading => reading.only(-1, 32).map(|number| u8::try_from(number).ok()),
    }
}

/// Reads one index for every device, or (unlike NCCL) a list by device. Any negative number leaves the choice to the
/// rules.
pub(crate) fn gid_index(text: &str) -> Reading<GidIndices> {
    if text.contains(':') {
        return Reading::of(GidIndices::parse(text));
    }
    let index = number(text).only(i64::MIN, 255);
    index.map(|index| u32::try_from(index).map_or(GidIndices::Automatic, GidIndices::Everywhere))
}

/// Reads AF_INET or AF_INET6.
pub(crate) fn address_family(text: &str) -> Reading<Option<Family>> {
    Reading::of(rdma::nccls_address_family(text))
}

/// Reads a range with its length: NCCL ignores one without.
pub(crate) fn address_range(text: &str) -> Reading<Option<AddressRange>> {
    if text.contains('/') {
        return Reading::of(filter::address_range(text.trim()).map(Some));
    }
    Reading::default("has no slash with a length, without which NCCL does not use it either")
}

/// Reads a number: 1 is on, 2 is on if supported, and everything else is off.
pub(crate) fn relaxed_ordering(text: &str) -> Reading<RelaxedOrdering> {
    number(text).taken_for(0, &[0, 1, 2]).map(|number| match number {
        1 => RelaxedOrdering::On,
        2 => RelaxedOrdering::WhereKnown,
        _ => RelaxedOrdering::Off,
    })
}

/// Reads a number: 0 and below are off, 2 is both, and everything else is 1.
pub(crate) fn data_direct(text: &str) -> Reading<DataDirect> {
    let reading = match number(text) {
        Reading { value: Some(number), .. } if number < 0 => Reading::noted(0, "counts as 0, as it does for NCCL"),
        reading => reading.taken_for(1, &[0, 1, 2]),
    };
    reading.map(|number| match number {
        0 => DataDirect::Off,
        2 => DataDirect::Both,
        _ => DataDirect::Only,
    })
}

/// Reads a number: -2 leaves it to the link layer, 0 is off, and everything else is on.
pub(crate) fn adaptive_routing(text: &str) -> Reading<AdaptiveRouting> {
    number(text).taken_for(1, &[-2, 0, 1]).map(|number| match number {
        -2 => AdaptiveRouting::Auto,
        0 => AdaptiveRouting::Off,
        _ => AdaptiveRouting::On,
    })
}

/// Reads a number of bytes: -2 is the default, other negative numbers count as 0 (every message is longer), and the
/// limit is 1 GiB.
pub(crate) fn adaptive_routing_threshold(text: &str) -> Reading<u64> {
    match number(text) {
        Reading { value: Some(-2), .. } => Reading { value: None, note: None },
        reading => reading.map(|number| u64::try_from(number).unwrap_or(0).min(1 << 30)),
    }
}

/// Reads a name for dlopen(3).
pub(crate) fn library(text: &str) -> Reading<String> {
    Reading::of(rdma::library(text))
}

/// Reads a list of ports, ignoring invalid items and invalid ids. A list without a valid item counts as the default.
pub(crate) fn filter(text: &str) -> Reading<Option<RailFilter>> {
    let (exclude, list) = leading(text.trim(), '^');
    let (exact, list) = leading(list, '=');
    let (mut items, mut odd) = (Vec::new(), Vec::new());
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match FilterItem::parse_whatever_its_ids(item) {
            _ if items.len() == MAX_ITEMS => odd.push(format!("has more than {MAX_ITEMS} items")),
            Ok((item, reason)) => {
                items.push(item);
                odd.extend(reason);
            }
            Err(reason) => odd.push(reason),
        }
    }
    let note = |reason: &String, more: usize| {
        let more = if more > 0 { format!(" (and {more} more such items)") } else { String::new() };
        format!("{reason}{more}; invalid parts are ignored")
    };
    if items.is_empty() {
        let reason = odd.into_iter().next().unwrap_or_else(|| "names nothing".to_owned());
        return Reading::default(reason);
    }
    let note = odd.first().map(|reason| note(reason, odd.len() - 1));
    Reading { value: Some(Some(RailFilter { exclude, exact, items, groups: None })), note }
}

/// The variables of NCCL's IB transport (NCCL 2.30, `src/transport/net_ib` and `src/misc/ibvwrap.cc`) that no setting
/// of Railweave reads, because they control parts of that transport that Railweave implements in another way.
const WITHOUT_EFFECT: [&str; 7] = [
    "NCCL_IB_OOO_RQ",
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS",
    "NCCL_IB_QUERY_PORT_SPEED",
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME",
    "NCCL_IB_SUBNET_AWARE_ROUTING",
    "NCCL_IB_USE_INLINE",
    "NCCL_IB_WARN_RAIL_LOCAL",
];

/// Returns true if a variable of NCCL's IB transport has no effect here. The many variables of its failover and
/// recovery share a prefix.
pub(crate) fn is_without_effect(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name) || name.starts_with("NCCL_IB_RESILIENCY_")
}
