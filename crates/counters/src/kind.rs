//! The facts of a counter besides its name: its unit, the conclusion that it permits, and the places it is read from.

/// The unit that a counter counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Packets or frames.
    Packets,
    /// Events of any other sort.
    Events,
    /// Ticks of the adapter's own clock, whose length only its maker knows. Compare them with those of the same port.
    Ticks,
    /// Microseconds.
    Microseconds,
}

impl Unit {
    /// Returns the factor that turns a value into the base unit of metrics: 1e-6 for microseconds, because the names of
    /// such counters end in `_seconds`, and 1 for all others.
    pub fn scale(self) -> f64 {
        if self == Self::Microseconds { 1e-6 } else { 1.0 }
    }
}

/// The conclusion that an increase of a counter permits. Directions are seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Bytes and packets that passed.
    Traffic,
    /// Something on the way of the packets that this host sends is congested: their receiver answered with congestion
    /// notification packets (CNPs).
    CongestionSent,
    /// Something on the way of the packets that this host receives is congested: they came with ECN's mark, or were
    /// given it on arrival, and this host answers with CNPs.
    CongestionReceived,
    /// The other end of the link told this port to stop sending, or gave it no credits to send with.
    Pause,
    /// This port told the other end of its link to stop sending, because this host takes in too slowly.
    PauseSent,
    /// Packets were dropped for lack of room, at this host.
    Discard,
    /// Something was lost, late or out of order, and was sent twice, or given up. The place of the loss is unknown.
    Retransmission,
    /// The link itself damages packets, or went down: a cable, a transceiver or a port.
    LinkError,
    /// None of the above: errors of programs, and requests that are neither bytes nor packets.
    Other,
}

/// One place that a counter is read from. `D` is an RDMA device, `N` the number of its port, `IF` a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The file `/sys/class/infiniband/D/ports/N/counters/NAME`, which counts words of four bytes, so the counter has
    /// four times its number (Documentation/ABI/stable/sysfs-class-infiniband).
    PortWords(&'static str),
    /// The file `/sys/class/infiniband/D/ports/N/counters/NAME`.
    Port(&'static str),
    /// The file `/sys/class/infiniband/D/ports/N/hw_counters/NAME`, whose name is the driver's choice. Several that a
    /// device has for one counter are its parts, and are summed. They count only if none in `counters/` can be read.
    Hardware(&'static str),
    /// The file `/sys/class/net/IF/statistics/NAME` (Documentation/ABI/testing/sysfs-class-net-statistics).
    Interface(&'static str),
    /// The driver's own statistics of an interface (ETHTOOL_GSTATS in include/uapi/linux/ethtool.h), by their name as
    /// `ethtool -S IF` prints it. `#` is in the place of digits, those of a priority or a traffic class; the counter is
    /// the sum over them.
    Ethtool(&'static str),
}

impl Origin {
    /// Returns true if this is the place of the statistic that `ethtool -S` calls `name`.
    pub(crate) fn is_ethtool(self, name: &str) -> bool {
        let Self::Ethtool(pattern) = self else { return false };
        let Some((before, after)) = pattern.split_once('#') else { return pattern == name };
        let digits = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_takes_digits_and_nothing_else() {
        let pause = Origin::Ethtool("rx_prio#_pause");
        for name in ["rx_prio0_pause", "rx_prio7_pause", "rx_prio15_pause"] {
            assert!(pause.is_ethtool(name), "{name}");
        }
        for name in [
            "rx_prio_pause",
            "rx_prio-1_pause",
            "rx_priox_pause",
            "rx_prio0_pause_duration",
            "tx_prio0_pause",
            "vport_rx_prio0_pause",
            "rx_prio#_pause",
            "rx_prio",
            "",
        ] {
            assert!(!pause.is_ethtool(name), "{name}");
        }
    }

    #[test]
    fn a_name_without_digits_is_the_whole_name() {
        let discards = Origin::Ethtool("rx_discards_phy");
        assert!(discards.is_ethtool("rx_discards_phy"));
        assert!(!discards.is_ethtool("rx_discards_phy_2"));
        assert!(!Origin::Interface("rx_discards_phy").is_ethtool("rx_discards_phy"), "a file is no statistic");
    }
}
