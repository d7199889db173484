//! What can go wrong in the world, in one flat structure: units last, zero for never.

use crate::Chance;

/// What an end owes leaves without any call of its application within this time (docs/wire.md).
const PROMISE_NS: u64 = 1_000_000;

/// The control thread looks so often what is owed.
pub(crate) const LOOK_NS: u64 = 400_000;

/// The faults of one seed.
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
    /// Of 1000 calls that are to send acknowledgements which were put off, how many send nothing, as with a full kernel.
    pub ack_refused_permille: u32,
    /// Longest time for which they go on to send nothing.
    pub ack_refused_ns: u64,
    /// Of 1000 turns of an application, after how many it makes no call on that connection for long. Also before it closes.
    pub silence_permille: u32,
    /// Longest time for which it makes none.
    pub silence_ns: u64,
    /// One-way delay of the control session.
    pub session_delay_ns: u64,
    /// Most that is added to it, for each message.
    pub session_jitter_ns: u64,
    /// Of 1000 rails, how many cannot be opened while a connection is set up.
    pub open_fails_permille: u32,
    /// Of 1000 tries to connect a rail, how many come to nothing yet and are made again.
    pub connect_later_permille: u32,
    /// Longest pause before that.
    pub connect_later_ns: u64,
    /// How long a lane tries to reach a silent peer before it fails.
    pub retry_ns: u64,
    /// How long a process takes to notice that the process at the other end of a session is dead.
    pub detect_ns: u64,
    /// Of 1000 tries to dial a process, how many bring no socket.
    pub dial_fails_permille: u32,
    /// How long a peer has to answer a PING, to processes with even numbers and to those with odd ones: an end that asks
    /// less often does not answer by asking.
    pub peer_timeouts_ns: [u64; 2],
    /// Whoever dies, or whatever session breaks, nobody is told of it: it is noticed by asking.
    pub is_mute: bool,
    /// How long a connection whose session is over may still work, before its link is declared lost.
    pub grace_ns: u64,
    /// What dies, if anything.
    pub death: Option<Death>,
}

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Who or what.
    pub kind: DeathKind,
    /// When, in nanoseconds of virtual time; for [`DeathKind::Killed`] after how many calls.
    pub at: u64,
}

/// Ways to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeathKind {
    /// A rail carries nothing any more, and nobody says so.
    RailSilent,
    /// A rail's lanes fail at both ends at once.
    RailError,
    /// A port, with all its rails, carries nothing any more.
    PortSilent,
    /// A process vanishes at a point of time.
    Process,
    /// A process vanishes between two calls of its sequence.
    Killed,
    /// The control session between two processes breaks.
    Session,
}

impl DeathKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::RailSilent, Self::RailError, Self::PortSilent, Self::Process, Self::Killed, Self::Session];
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
            silence_permille: 0,
            silence_ns: 0,
            session_delay_ns: 20_000,
            session_jitter_ns: 0,
            open_fails_permille: 0,
            connect_later_permille: 0,
            connect_later_ns: 0,
            retry_ns: 50_000,
            detect_ns: 100_000,
            dial_fails_permille: 0,
            peer_timeouts_ns: [20_000_000; 2],
            is_mute: false,
            grace_ns: 2_000_000,
            death: None,
        }
    }

    /// Faults at random: each kind is absent from about half of the seeds, so that none hides another.
    pub fn random(chance: &mut Chance) -> Self {
        let mut maybe = |values: &[u64]| if chance.permille(500) { chance.pick(values) } else { 0 };
        let jitter_ns = maybe(&[500, 5_000, 50_000]);
        let lag_ns = maybe(&[2_000, 20_000, 100_000]);
        let stall_permille = maybe(&[2, 20]) as u32;
        let torn_permille = maybe(&[50, 500]) as u32;
        let late_read_permille = maybe(&[500, 1000]) as u32;
        let room_withheld_permille = maybe(&[5, 50]) as u32;
        let receives_short_permille = maybe(&[100, 500, 900]) as u32;
        let flush_full_permille = maybe(&[200, 700]) as u32;
        let completion_late_ns = maybe(&[1_000, 20_000]);
        let completion_burst_ns = maybe(&[5_000, 40_000]);
        let poll_short_permille = maybe(&[100, 900]) as u32;
        let session_jitter_ns = maybe(&[10_000, 500_000]);
        let slow = chance.pick(&[10_000, 25_000, 100_000, 400_000]);
        Self {
            delay_ns: chance.pick(&[200, 1_000, 3_000, 20_000]),
            jitter_ns,
            lag_ns,
            rate_mbps: (slow, slow * chance.pick(&[1, 1, 4, 10])),
            stall_permille,
            stall_ns: chance.pick(&[20_000, 200_000, 800_000]),
            torn_permille,
            late_read_permille,
            room_withheld_permille,
            room_withheld_ns: chance.pick(&[2_000, 50_000]),
            receives_short_permille,
            flush_full_permille,
            completion_late_ns,
            completion_burst_ns,
            poll_short_permille,
            acks_put_off: chance.permille(500),
            ack_refused_permille: 0,
            ack_refused_ns: 0,
            silence_permille: 0,
            silence_ns: 0,
            session_delay_ns: chance.pick(&[5_000, 30_000, 300_000]),
            session_jitter_ns,
            open_fails_permille: if chance.permille(100) { 200 } else { 0 },
            connect_later_permille: 0,
            connect_later_ns: 0,
            retry_ns: chance.pick(&[300_000, 2_000_000]),
            detect_ns: chance.pick(&[50_000, 1_000_000]),
            dial_fails_permille: 0,
            peer_timeouts_ns: [20_000_000; 2],
            is_mute: false,
            grace_ns: 3_000_000,
            death: None,
        }
    }

    /// Adds applications that fall silent, and acknowledgements that do not leave, each to half of the seeds. After the peer's
    /// goodbye a two-sided connection ends with the peer's end, so there a silence is shorter than that takes.
    pub(crate) fn add_silence(&mut self, chance: &mut Chance, one_sided: bool) {
        if chance.permille(500) {
            self.silence_permille = chance.pick(&[5, 50]);
            self.silence_ns = if one_sided { chance.pick(&[500_000, 2_500_000, 12_000_000]) } else { 2_500_000 };
        }
        if chance.permille(500) {
            self.ack_refused_permille = chance.pick(&[100, 500]);
            self.ack_refused_ns = 300_000;
        }
    }

    /// Adds rails that cannot be connected at the first try to a fifth of the seeds.
    pub(crate) fn add_later(&mut self, chance: &mut Chance) {
        if chance.permille(200) {
            self.connect_later_permille = chance.pick(&[200, 700]);
            self.connect_later_ns = chance.pick(&[5_000, 200_000]);
        }
    }

    /// Adds processes that cannot be dialled at the first try to a tenth of the seeds, and deaths that nobody is told of to a
    /// fifth. Peers are asked sooner or later.
    pub(crate) fn add_sessions(&mut self, chance: &mut Chance) {
        if chance.permille(100) {
            self.dial_fails_permille = chance.pick(&[200, 700]);
        }
        self.peer_timeouts_ns = [0, 1].map(|_| chance.pick(&[3_000_000, 20_000_000]));
        self.is_mute = chance.permille(200);
    }

    /// For so long after it was put off an acknowledgement may be on this side.
    pub(crate) fn promise_ns(&self) -> u64 {
        // The control thread tries again at its next look.
        PROMISE_NS + if self.ack_refused_permille > 0 { self.ack_refused_ns + LOOK_NS } else { 0 }
    }

    /// Within this time of virtual nanoseconds every request at a live process ends, in one way or another, once
    /// something that it needs is dead: retries, the peer's giving up, its goodbye, the grace, the time to notice, and silences.
    pub fn death_limit_ns(&self) -> u64 {
        let session_ns = self.session_delay_ns + self.session_jitter_ns;
        let silences_ns = 4 * self.silence_ns;
        // Quiet for up to two parts of eight, then the time for an answer.
        let longest_ns = self.peer_timeouts_ns[0].max(self.peer_timeouts_ns[1]);
        let asking_ns = if self.is_mute { longest_ns + longest_ns / 4 } else { 0 };
        3 * self.retry_ns
            + self.detect_ns
            + self.grace_ns
            + 2 * session_ns
            + 10 * self.stall_ns
            + silences_ns
            + asking_ns
            + 8_000_000
    }
}
