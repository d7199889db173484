//! NCCL's own variables, read as NCCL reads them: whatever is in them, NCCL goes on, and so does Railweave. What a
//! value comes to is said where it is not what the text says.
//!
//! Numbers are `ncclLoadParam`'s (NCCL 2.30, `src/misc/param.cc`): strtoll(3) with base 0, so that `0x` leads a
//! hexadecimal number and `0` an octal one, blanks before it and anything after it do not count, and what does not
//! fit is the default. Text without a number is 0 there and the default here: 0 is never what somebody who writes it
//! means.

use crate::Fabric;
use crate::filter::{self, FilterItem, MAX_ITEMS, RailFilter, leading};
use crate::rdma::{self, AdaptiveRouting, GidIndices};
use railweave_fabric::{AddressRange, DataDirect, Family, RelaxedOrdering};
use std::time::Duration;

/// What a variable's text comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading<T> {
    /// The value; `None` is the setting's default.
    pub(crate) value: Option<T>,
    /// What to tell the user: the end of a sentence that begins with the text. `None` where the value is what it says.
    pub(crate) note: Option<String>,
}

impl<T> Reading<T> {
    fn plain(value: T) -> Self {
        Self { value: Some(value), note: None }
    }

    fn noted(value: T, note: impl Into<String>) -> Self {
        Self { value: Some(value), note: Some(note.into()) }
    }

    /// The default, because of `reason`.
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
    /// Down to `high`; the default below `low`.
    fn within(self, low: i64, high: i64) -> Self {
        match self.value {
            Some(number) if number > high => Self::noted(high, format!("is more than {high}, so {high} is used")),
            _ => self.only(low, high),
        }
    }

    /// The default outside of `low` to `high`.
    fn only(self, low: i64, high: i64) -> Self {
        match self.value {
            Some(number) if number < low => Self::default(format_args!("is less than {low}")),
            Some(number) if number > high => Self::default(format_args!("is more than {high}")),
            _ => self,
        }
    }

    /// From 0, as NCCL takes any negative number for, to `high`.
    fn counted(self, high: i64) -> Self {
        match self.value {
            Some(number) if number < 0 => Self::noted(0, "counts as 0, as it does for NCCL"),
            _ => self.within(0, high),
        }
    }

    /// `number` where it is none of `known`, as NCCL has it.
    fn taken_for(self, number: i64, known: &[i64]) -> Self {
        match self.value {
            Some(other) if !known.contains(&other) => {
                Self::noted(number, format!("counts as {number}, as it does for NCCL"))
            }
            _ => self,
        }
    }
}

/// A number as strtoll(3) reads it with base 0.
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
        return Reading::default("is no number");
    }
    let sign = if negative { "-" } else { "" };
    match i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        Err(_) => Reading::default("is no number that 64 bits hold"),
        Ok(number) if rest.trim_matches(is_blank).is_empty() => Reading::plain(number),
        Ok(number) => Reading::noted(number, format!("begins with the number {number}, which is all that counts")),
    }
}

/// Anything but 0 is on.
pub(crate) fn switch(text: &str) -> Reading<bool> {
    number(text).taken_for(1, &[0, 1]).map(|number| number != 0)
}

/// NCCL_IB_SPLIT_DATA_ON_QPS: nothing but 1 is on.
pub(crate) fn split_data(text: &str) -> Reading<bool> {
    number(text).taken_for(0, &[0, 1]).map(|number| number == 1)
}

/// NCCL_IB_DISABLE: on leaves RDMA out.
pub(crate) fn disabled(text: &str) -> Reading<Fabric> {
    switch(text).map(|disabled| if disabled { Fabric::Tcp } else { Fabric::Auto })
}

/// A number from `low` to `high`, which a byte holds.
pub(crate) fn byte(text: &str, low: u8, high: u8) -> Reading<u8> {
    // The cast loses nothing: the number is one of the two or between them.
    number(text).within(low.into(), high.into()).map(|number| number as u8)
}

/// A number from 0 to `high`, or -1 for none.
pub(crate) fn byte_or_none(text: &str, high: u8) -> Reading<Option<u8>> {
    number(text).within(-1, high.into()).map(|number| u8::try_from(number).ok())
}

/// How often something is tried again, up to a million times.
pub(crate) fn retries(text: &str) -> Reading<u32> {
    number(text).counted(1_000_000).map(|count| count as u32)
}

/// Milliseconds, up to an hour. NCCL takes a negative number for 49 days: 32 bits of it.
pub(crate) fn retry_pause(text: &str) -> Reading<Duration> {
    number(text).within(0, 3_600_000).map(|milliseconds| Duration::from_millis(milliseconds as u64))
}

/// 1 or 2.
pub(crate) fn roce_version(text: &str) -> Reading<u8> {
    number(text).only(1, 2).map(|number| number as u8)
}

/// An index that 16 bits hold.
pub(crate) fn pkey_index(text: &str) -> Reading<u16> {
    number(text).only(0, u16::MAX.into()).map(|number| number as u16)
}

/// Bits of an IPv4 address; -1 is the interface's.
pub(crate) fn prefix_length(text: &str) -> Reading<Option<u8>> {
    match number(text) {
        Reading { value: Some(0), .. } => Reading::default("is no subnet"),
        reading => reading.only(-1, 32).map(|number| u8::try_from(number).ok()),
    }
}

/// One index for every device, where any negative number is none in particular; or, beyond NCCL, a list by device.
pub(crate) fn gid_index(text: &str) -> Reading<GidIndices> {
    if text.contains(':') {
        return Reading::of(GidIndices::parse(text));
    }
    let index = number(text).only(i64::MIN, 255);
    index.map(|index| u32::try_from(index).map_or(GidIndices::Automatic, GidIndices::Everywhere))
}

/// AF_INET or AF_INET6.
pub(crate) fn address_family(text: &str) -> Reading<Option<Family>> {
    Reading::of(rdma::nccls_address_family(text))
}

/// A range with its length: without one NCCL takes it for none.
pub(crate) fn address_range(text: &str) -> Reading<Option<AddressRange>> {
    if text.contains('/') {
        return Reading::of(filter::address_range(text.trim()).map(Some));
    }
    Reading::default("has no slash with a length, without which NCCL does not use it either")
}

/// 1, 2, and never for everything else.
pub(crate) fn relaxed_ordering(text: &str) -> Reading<RelaxedOrdering> {
    number(text).taken_for(0, &[0, 1, 2]).map(|number| match number {
        1 => RelaxedOrdering::On,
        2 => RelaxedOrdering::WhereKnown,
        _ => RelaxedOrdering::Off,
    })
}

/// 0 and below are off, 2 is both, and all others 1.
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

/// -2 leaves it to the link layer; anything but 0 is on.
pub(crate) fn adaptive_routing(text: &str) -> Reading<AdaptiveRouting> {
    number(text).taken_for(1, &[-2, 0, 1]).map(|number| match number {
        -2 => AdaptiveRouting::Auto,
        0 => AdaptiveRouting::Off,
        _ => AdaptiveRouting::On,
    })
}

/// Bytes: -2 is the default, every message is longer than another negative number, and none is longer than 1 GiB.
pub(crate) fn adaptive_routing_threshold(text: &str) -> Reading<u64> {
    match number(text) {
        Reading { value: Some(-2), .. } => Reading { value: None, note: None },
        reading => reading.map(|number| u64::try_from(number).unwrap_or(0).min(1 << 30)),
    }
}

/// What dlopen(3) takes.
pub(crate) fn library(text: &str) -> Reading<String> {
    Reading::of(rdma::library(text))
}

/// A list of names, without the items that cannot be names here, and without ids that cannot be ids; nothing left is no
/// list.
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
        format!("{reason}{more}; what is wrong is left out")
    };
    if items.is_empty() {
        let reason = odd.into_iter().next().unwrap_or_else(|| "names nothing".to_owned());
        return Reading::default(reason);
    }
    let note = odd.first().map(|reason| note(reason, odd.len() - 1));
    Reading { value: Some(Some(RailFilter { exclude, exact, items })), note }
}

/// Which of NCCL's variables Railweave's settings have no part of, although they are for RDMA: those of its IB
/// transport (NCCL 2.30, `src/transport/net_ib` and `src/misc/ibvwrap.cc`), for what that transport does otherwise
/// than Railweave.
const WITHOUT_EFFECT: [&str; 8] = [
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_OOO_RQ",
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS",
    "NCCL_IB_QUERY_PORT_SPEED",
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME",
    "NCCL_IB_SUBNET_AWARE_ROUTING",
    "NCCL_IB_USE_INLINE",
    "NCCL_IB_WARN_RAIL_LOCAL",
];

/// Whether a variable of NCCL's IB transport has no effect here. Those of its failover and recovery are many and of
/// one kind.
pub(crate) fn is_without_effect(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name) || name.starts_with("NCCL_IB_RESILIENCY_")
}
