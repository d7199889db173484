//! The faults of the world in one flat structure: names end in the unit, and zero means never.

/// The faults of a world. A field in permille is the number of cases out of 1000 in which the fault strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// One-way delay of a write, in nanoseconds.
    pub delay_ns: u64,
    /// Maximum addition to each write's delay. It lets lanes and rails overtake each other; a lane keeps its order.
    pub jitter_ns: u64,
    /// Maximum constant lag of one rail behind the others.
    pub lag_ns: u64,
    /// Slowest and fastest rail, in Mbit/s.
    pub rate_mbps: (u64, u64),
    /// Writes that stall.
    pub stall_permille: u32,
    /// Longest stall.
    pub stall_ns: u64,
    /// Writes of more than 64 bytes that land in two steps.
    pub torn_permille: u32,
    /// Writes whose source is read only when they land.
    pub late_read_permille: u32,
    /// Polls after which a lane's send queue claims to be full.
    pub room_withheld_permille: u32,
    /// Longest time for which it claims that.
    pub room_withheld_ns: u64,
    /// Calls to post receives that take fewer than asked for, or none.
    pub receives_short_permille: u32,
    /// Flushes that find no room.
    pub flush_full_permille: u32,
    /// Longest time from an event to its completion.
    pub completion_late_ns: u64,
    /// Interval between bursts of completions, in nanoseconds; 0 for no bursts.
    pub completion_burst_ns: u64,
    /// Polls that report at most one completion.
    pub poll_short_permille: u32,
    /// True if, on a two-sided fabric, the receiver puts acknowledgements off until its next call.
    pub acks_put_off: bool,
    /// Calls of `acknowledge` that send nothing, as if the kernel's buffer were full.
    pub ack_refused_permille: u32,
    /// Longest time for which later calls of `acknowledge` send nothing either.
    pub ack_refused_ns: u64,
    /// Rails that cannot be opened.
    pub open_fails_permille: u32,
    /// Attempts to connect a rail that have to be repeated.
    pub connect_later_permille: u32,
    /// Longest pause before an attempt is repeated.
    pub connect_later_ns: u64,
    /// Minimum time until a lane with a silent peer fails; the maximum is twice as long.
    pub retry_ns: u64,
}

impl Faults {
    /// Returns the faults of a world in which nothing fails: each write is delayed by a microsecond.
    pub const fn none() -> Self {
        Self {
            delay_ns: 1_000,
            jitter_ns: 0,
            lag_ns: 0,
            rate_mbps: (100_000, 100_000),
            stall_permille: 0,
            stall_ns: 0,
            torn_permille: 0,
            late_read_permille: 0,
            room_withheld_permille: 0,
            room_withheld_ns: 0,
            receives_short_permille: 0,
            flush_full_permille: 0,
            completion_late_ns: 0,
            completion_burst_ns: 0,
            poll_short_permille: 0,
            acks_put_off: false,
            ack_refused_permille: 0,
            ack_refused_ns: 0,
            open_fails_permille: 0,
            connect_later_permille: 0,
            connect_later_ns: 0,
            retry_ns: 50_000,
        }
    }
}
