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
    /// Polls that come just before new completions, and report none.
    pub poll_blind_permille: u32,
    /// True if, on a two-sided fabric, the receiver puts acknowledgements off until its next call.
    pub acks_put_off: bool,
    /// Calls of `acknowledge` that send nothing, as if the kernel's buffer were full.
    pub ack_refused_permille: u32,
    /// Longest time for which later calls of `acknowledge` send nothing either.
    pub ack_refused_ns: u64,
    /// Acknowledgements that come late although their writes have landed.
    pub ack_stall_permille: u32,
    /// The longest such delay.
    pub ack_stall_ns: u64,
    /// Acknowledgements that are lost, so that the lane sends the write again. If the peer's end is gone by then,
    /// nobody answers, and the lane fails.
    pub ack_lost_permille: u32,
    /// The longest time until the lane sends the write again; the shortest is half as long.
    pub ack_lost_ns: u64,
    /// The longest time between two changes of a rail's rate; 0 for a constant rate. By default it drifts: each change
    /// is of up to a tenth.
    pub rate_change_ns: u64,
    /// Changes at which the rate jumps instead, to between a tenth and ten times of that at the beginning.
    pub rate_jump_permille: u32,
    /// Changes after which the rail nearly stands still for a while.
    pub standstill_permille: u32,
    /// The longest time for which it does.
    pub standstill_ns: u64,
    /// Posted writes at which an outage of the rail or its port begins: in one direction or both, of writes,
    /// acknowledgements or both. Lanes send again what was lost.
    pub outage_permille: u32,
    /// The longest outage, unless it is long. To be survived it has to be at most three quarters of `retry_ns`.
    pub outage_ns: u64,
    /// Outages that are long: some last between one and four times `retry_ns`, others never end.
    pub long_outage_permille: u32,
    /// The longest time after the end of a lane at which the writes that it cut off still land; 0 if none of them does.
    pub late_landing_ns: u64,
    /// True if the unreported completions of a lane vanish when it is destroyed.
    pub destroy_purges: bool,
    /// Registrations that get the key of an earlier one of their port that has ended.
    pub key_reuse_permille: u32,
    /// Rails that cannot be opened.
    pub open_fails_permille: u32,
    /// Attempts to connect a rail that have to be repeated.
    pub connect_later_permille: u32,
    /// Longest pause before an attempt is repeated.
    pub connect_later_ns: u64,
    /// Minimum time until a lane with a silent peer fails; the maximum is twice as long.
    pub retry_ns: u64,
    /// Addition to that time for a lane that its peer has answered before.
    pub patience_ns: u64,
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
            poll_blind_permille: 0,
            acks_put_off: false,
            ack_refused_permille: 0,
            ack_refused_ns: 0,
            ack_stall_permille: 0,
            ack_stall_ns: 0,
            ack_lost_permille: 0,
            ack_lost_ns: 0,
            rate_change_ns: 0,
            rate_jump_permille: 0,
            standstill_permille: 0,
            standstill_ns: 0,
            outage_permille: 0,
            outage_ns: 0,
            long_outage_permille: 0,
            late_landing_ns: 0,
            destroy_purges: false,
            key_reuse_permille: 0,
            open_fails_permille: 0,
            connect_later_permille: 0,
            connect_later_ns: 0,
            retry_ns: 50_000,
            patience_ns: 0,
        }
    }
}
