//! The faults of the world in one flat structure: units last, zero for never.

/// The faults of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// One-way delay of a write, in nanoseconds.
    pub delay_ns: u64,
    /// Most that is added to each write's delay. Lanes and rails overtake each other by it; a lane keeps its order.
    pub jitter_ns: u64,
    /// Most that one rail lags behind the others, for its whole life.
    pub lag_ns: u64,
    /// Slowest and fastest rail, in Mbit/s.
    pub rate_mbps: (u64, u64),
    /// Of 1000 writes, how many are stalled.
    pub stall_permille: u32,
    /// Longest stall.
    pub stall_ns: u64,
    /// Of 1000 writes of more than 64 bytes, how many land in two steps.
    pub torn_permille: u32,
    /// Of 1000 writes, how many have their source read only when they land.
    pub late_read_permille: u32,
    /// Of 1000 polls, after how many a lane's send queue says that it is full.
    pub room_withheld_permille: u32,
    /// Longest time for which it says so.
    pub room_withheld_ns: u64,
    /// Of 1000 calls that post receives, how many take fewer than asked for, or none.
    pub receives_short_permille: u32,
    /// Of 1000 flushes, how many find no room.
    pub flush_full_permille: u32,
    /// Longest time from an event to its completion.
    pub completion_late_ns: u64,
    /// Completions come in bursts, one in this many nanoseconds.
    pub completion_burst_ns: u64,
    /// Of 1000 polls, how many report no more than one completion.
    pub poll_short_permille: u32,
    /// Where the receiver's processor places what arrives, it puts acknowledgements off until its next call.
    pub acks_put_off: bool,
    /// Of 1000 calls that are to send acknowledgements which were put off, how many send nothing, as with a full
    /// kernel.
    pub ack_refused_permille: u32,
    /// Longest time for which they go on to send nothing.
    pub ack_refused_ns: u64,
    /// Of 1000 rails, how many cannot be opened while a connection is set up.
    pub open_fails_permille: u32,
    /// Of 1000 tries to connect a rail, how many come to nothing yet and are made again.
    pub connect_later_permille: u32,
    /// Longest pause before that.
    pub connect_later_ns: u64,
    /// How long a lane tries to reach a silent peer before it fails.
    pub retry_ns: u64,
}

impl Faults {
    /// A world without faults, in which everything takes a microsecond.
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
