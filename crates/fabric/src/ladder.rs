//! The ladder: the steps by which any two hosts find ports that reach each other, and what is known about a way.

/// A step of the ladder. The first that gives a rail is used; if none of its rails comes up, the next is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// Ports of both devices that share a subnet.
    #[default]
    Subnet = 1,
    /// Ports of both devices that reach each other through routers, each by a route of its own.
    Routed = 2,
    /// Other ports of the hosts that share a subnet.
    OtherPort = 3,
    /// Any ports that reach each other through a host that forwards, or through routers of InfiniBand.
    Forwarded = 4,
    /// TCP, in place of RDMA.
    Tcp = 5,
}

impl Step {
    /// Every step, in order.
    pub const ALL: &[Self] = &[Self::Subnet, Self::Routed, Self::OtherPort, Self::Forwarded, Self::Tcp];

    /// Returns the step with this number on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|step| *step as u8 == code)
    }

    /// Returns the step after this one.
    pub fn next(self) -> Option<Self> {
        Self::from_code(self as u8 + 1)
    }
}

/// The knowledge of the way from a host's port to an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Route {
    /// Nothing: the kernel was not asked, or there is no IP address to ask for.
    #[default]
    Unknown = 0,
    /// Packets leave by that very port.
    Leaves = 1,
    /// There is no route, or packets leave by another port.
    Elsewhere = 2,
    /// A rail between the two was left out a moment ago, whatever the kernel says.
    Failed = 3,
}

impl Route {
    /// Returns the route with this number on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Unknown, Self::Leaves, Self::Elsewhere, Self::Failed].into_iter().find(|route| *route as u8 == code)
    }

    /// Returns what both ends know together of the way between them.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
            (Self::Elsewhere, _) | (_, Self::Elsewhere) => Self::Elsewhere,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Leaves, Self::Leaves) => Self::Leaves,
        }
    }
}
