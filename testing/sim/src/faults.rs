//! The faults of a seed, in the fabric and above it. The name of a number ends with its unit; zero means never.

use railweave_fabric_sim::Chance;
use railweave_transport::{LOOK_INTERVAL, MOST_LOOKS_BETWEEN};

use crate::Situation;

/// Everything that an end owes leaves within this time, without any call of its application (docs/wire.md).
const PROMISE_NS: u64 = 1_000_000;

/// The time between two looks of the control thread at what ends owe, in nanoseconds.
const LOOK_NS: u64 = LOOK_INTERVAL.as_nanos() as u64;

/// The time in some seeds until a rail that has worked reports its peer's silence: longer than a connection may take to
/// recover, so that only the looks for silence help.
const PATIENCE_NS: u64 = 10_000_000_000;

/// The faults of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    /// The faults of the fabric.
    pub(crate) fabric: railweave_fabric_sim::Faults,
    /// The number of an application's turns, out of 1000, after which it makes no call on its connection for a long
    /// time.
    pub(crate) silence_permille: u32,
    /// The longest such silence. The application is also silent for up to this long before it closes.
    pub(crate) silence_ns: u64,
    /// The longest time for which a close waits for the control thread.
    pub(crate) close_late_ns: u64,
    /// The number from which connections count their receives and CTS.
    pub(crate) first_number: u32,
    /// The number of the first connection of a session.
    pub(crate) first_connection: u32,
    /// The time for which a strike of an exhaustive run silences an application.
    pub(crate) pause_ns: u64,
    /// The one-way delay of sessions.
    pub(crate) session_delay_ns: u64,
    /// The longest random addition to it, for each frame.
    pub(crate) session_jitter_ns: u64,
    /// The longest time until a process notices that a session broke or that its peer died.
    pub(crate) detect_ns: u64,
    /// The number of dials, out of 1000, that fail.
    pub(crate) dial_fails_permille: u32,
    /// The time that a peer has to answer a PING from a process with an even number, and from one with an odd number.
    /// They may differ: then the PINGs of the end that asks less often come too late to count as answers.
    pub(crate) peer_timeouts_ns: [u64; 2],
    /// True if no process is notified of a death or of a broken session: only an unanswered PING reveals it.
    pub(crate) is_mute: bool,
    /// The longest time for which no session comes up between two processes once the session between them has broken.
    pub(crate) away_ns: u64,
    /// True if their dials are refused meanwhile, as by a firewall, although both live. Only adapters answer without
    /// their process, so only over a one-sided fabric.
    pub(crate) is_refused: bool,
    /// The number of frames, out of 1000, behind which a session's socket breaks.
    pub(crate) cut_permille: u32,
    /// The times at which the session of a connection breaks, by the connection's number modulo that of connections.
    pub(crate) break_times_ns: Vec<(u64, usize)>,
    /// The times at which strangers dial, who want to go on with the sessions of others.
    pub(crate) stranger_times_ns: Vec<u64>,
    /// The number of offers, out of 1000, that must wait for their place, and the longest time.
    pub(crate) offer_waits_permille: u32,
    pub(crate) offer_waits_ns: u64,
    /// True if an offer whose peer has little time waits until WAIT has no effect any more, or nearly so long.
    pub(crate) offers_wait_out: bool,
    /// The number of steps, out of 1000, that block the set-up of their connection, and the longest time.
    pub(crate) set_up_blocks_permille: u32,
    pub(crate) set_up_blocks_ns: u64,
    /// The number of such calls, out of 1000, during which the session breaks if the peer is already up.
    pub(crate) blocked_breaks_permille: u32,
    /// The time for which a connection may still work after its peer's BYE or the end of its session. Then it is lost.
    pub(crate) grace_ns: u64,
    /// True if connections go on without rails that fail.
    pub(crate) recovers: bool,
    /// The longest time after which a port that has fallen silent carries packets again, if connections recover.
    pub(crate) heal_ns: u64,
    /// The longest time that work on the lanes of a rail takes.
    pub(crate) work_ns: u64,
    /// The time for which a rail may be silent, if connections recover.
    pub(crate) rail_timeout_ns: u64,
    /// The times at which rails fail, in addition to the deaths.
    pub(crate) rail_deaths: Vec<Death>,
    /// The deaths that wait for a situation.
    pub(crate) aimed: Vec<Aimed>,
    /// The deaths; at most one of them is a [`DeathKind::Killed`].
    pub(crate) deaths: Vec<Death>,
}

/// A death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    /// Its kind.
    pub(crate) kind: DeathKind,
    /// Its time, in nanoseconds of virtual time; for [`DeathKind::Killed`], the number of calls that all applications
    /// have made by then.
    pub(crate) at: u64,
}

/// A death that strikes a rail, or what that is part of, as soon as one of its ends is in a situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aimed {
    /// Its kind.
    pub(crate) kind: DeathKind,
    /// The situation.
    pub(crate) situation: Situation,
    /// The time from which it waits, in nanoseconds of virtual time.
    pub(crate) from_ns: u64,
}

/// The kinds of death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DeathKind {
    /// A rail stops carrying anything, and nobody reports it.
    RailSilent,
    /// A rail's lanes fail at both ends at once.
    RailError,
    /// A rail's lanes fail at one end, and the other end hears nothing of it.
    RailOneEnd,
    /// A port stops carrying anything, and all its rails with it.
    PortSilent,
    /// The device of a port fails: nothing completes on it any more, and only an event of the host tells. Over a
    /// two-sided fabric, whose sockets have no device, the port falls silent instead.
    Device,
    /// The loop-back of a port fails, so that flushes do.
    LoopBack,
    /// A process vanishes at a given time.
    Process,
    /// A process vanishes between two of its calls.
    Killed,
    /// The session that one process has opened to another breaks.
    Session,
    /// One end gives up a rail that works. Only connections that recover have that.
    Suspicion,
}

impl DeathKind {
    /// Those of rails.
    pub(crate) const OF_RAILS: [Self; 5] =
        [Self::RailSilent, Self::RailError, Self::RailOneEnd, Self::PortSilent, Self::Suspicion];

    /// Those that wait for a situation.
    pub(crate) const AIMED: [Self; 7] = [
        Self::RailSilent,
        Self::RailError,
        Self::RailOneEnd,
        Self::PortSilent,
        Self::Device,
        Self::Suspicion,
        Self::Session,
    ];

    /// All of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::RailSilent,
        Self::RailError,
        Self::RailOneEnd,
        Self::PortSilent,
        Self::Device,
        Self::LoopBack,
        Self::Process,
        Self::Killed,
        Self::Session,
    ];
}

impl Faults {
    /// Returns the faults of a world in which nothing fails: each write is delayed by a microsecond.
    pub(crate) const fn none() -> Self {
        Self {
            fabric: railweave_fabric_sim::Faults::none(),
            silence_permille: 0,
            silence_ns: 0,
            close_late_ns: 0,
            first_number: 0,
            first_connection: 1,
            pause_ns: 0,
            session_delay_ns: 20_000,
            session_jitter_ns: 0,
            detect_ns: 100_000,
            dial_fails_permille: 0,
            peer_timeouts_ns: [20_000_000; 2],
            is_mute: false,
            away_ns: 0,
            is_refused: false,
            cut_permille: 0,
            break_times_ns: Vec::new(),
            stranger_times_ns: Vec::new(),
            offer_waits_permille: 0,
            offer_waits_ns: 0,
            offers_wait_out: false,
            set_up_blocks_permille: 0,
            set_up_blocks_ns: 0,
            blocked_breaks_permille: 0,
            grace_ns: 2_000_000,
            recovers: false,
            heal_ns: 0,
            work_ns: 20_000,
            rail_timeout_ns: 0,
            rail_deaths: Vec::new(),
            aimed: Vec::new(),
            deaths: Vec::new(),
        }
    }

    /// Draws faults: most kinds are absent from about half of the seeds, so that none hides another.
    pub(crate) fn random(chance: &mut Chance) -> Self {
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
        let mut fabric = railweave_fabric_sim::Faults {
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
            ..railweave_fabric_sim::Faults::none()
        };
        // The order of the draws is part of a seed's meaning.
        let session_delay_ns = chance.pick(&[5_000, 30_000, 300_000]);
        fabric.open_fails_permille = if chance.permille(100) { 200 } else { 0 };
        fabric.retry_ns = chance.pick(&[300_000, 2_000_000]);
        let detect_ns = chance.pick(&[50_000, 1_000_000]);
        Self { fabric, session_delay_ns, session_jitter_ns, detect_ns, grace_ns: 3_000_000, ..Self::none() }
    }

    /// Lets connections recover in two thirds of the seeds, and lets rails fail in half of these, up to eight times.
    /// Gives rails a time for which they may be silent in three fifths of them; a third of these have rails that hardly
    /// ever report a silence themselves.
    pub(crate) fn add_recovery(&mut self, chance: &mut Chance, may_fail: bool) {
        self.recovers = chance.permille(670);
        if !self.recovers {
            return;
        }
        self.heal_ns = chance.pick(&[100_000, 3_000_000, 30_000_000]);
        self.work_ns = chance.pick(&[2_000, 50_000, 1_000_000]);
        if may_fail && chance.permille(500) {
            let count = chance.between(1, 8);
            let until_ns = chance.pick(&[1_000_000, 4_000_000, 20_000_000]);
            let kinds = DeathKind::OF_RAILS;
            let mut one = || Death { kind: chance.pick(&kinds), at: chance.between(1_000, until_ns) };
            self.rail_deaths = (0..count).map(|_| one()).collect();
        }
        if chance.permille(600) {
            // A peer that lives answers over its session within this time.
            let answer_ns = 4 * (self.session_delay_ns + self.session_jitter_ns);
            self.rail_timeout_ns = answer_ns + chance.pick(&[300_000, 3_000_000]);
            if chance.permille(300) {
                self.fabric.patience_ns = PATIENCE_NS;
            }
        }
    }

    /// Lets connections recover, and aims deaths at situations.
    pub(crate) fn aim(&mut self, chance: &mut Chance) {
        if !self.recovers {
            self.recovers = true;
            self.heal_ns = chance.pick(&[100_000, 3_000_000]);
        }
        let until_ns = chance.pick(&[500_000, 4_000_000]);
        let mut one = |kinds: &[DeathKind]| Aimed {
            kind: chance.pick(kinds),
            // Every second one waits for one of those that come seldom.
            situation: if chance.permille(500) { chance.pick(&Situation::RARE) } else { chance.pick(&Situation::ALL) },
            from_ns: chance.below(until_ns),
        };
        self.aimed = (0..12).map(|_| one(&DeathKind::AIMED)).collect();
        self.aimed.push(one(&[DeathKind::Process]));
    }

    /// Returns the time, in virtual nanoseconds, within which a connection that recovers moves again once a rail has
    /// failed: all rails may fail, one after the other, and each may have to be opened several times.
    pub(crate) fn recovery_limit_ns(&self) -> u64 {
        // Each false alarm makes the time for a rail's silence longer.
        let each_ns = self.heal_ns + 700_000_000 + 64 * self.rail_timeout_ns;
        self.death_limit_ns() + each_ns
    }

    /// Returns the time, in virtual nanoseconds, within which a rail is up again once nothing strikes it any more.
    pub(crate) fn rail_limit_ns(&self) -> u64 {
        let session_ns = self.session_delay_ns + self.session_jitter_ns;
        // A rail that gives false alarms flaps, and has longer pauses.
        let pauses_ns = if self.rail_timeout_ns > 0 { 40_000_000 } else { 0 };
        // New lanes whose receives are refused look for room once a millisecond, and may do so in vain several times.
        let room_ns = if self.fabric.receives_short_permille > 0 { 60_000_000 } else { 0 };
        self.heal_ns + 20 * self.work_ns + 20 * session_ns + 4 * self.fabric.retry_ns + 30_000_000 + pauses_ns + room_ns
    }

    /// Adds applications that fall silent, and acknowledgements that do not leave, each to half of the seeds.
    pub(crate) fn add_silence(&mut self, chance: &mut Chance) {
        if chance.permille(500) {
            self.silence_permille = chance.pick(&[5, 50]);
            self.silence_ns = chance.pick(&[500_000, 2_500_000, 12_000_000]);
        }
        if chance.permille(500) {
            self.fabric.ack_refused_permille = chance.pick(&[100, 500]);
            self.fabric.ack_refused_ns = 300_000;
        }
    }

    /// Adds a control thread that is busy when an application closes a connection, to a fifth of the seeds.
    pub(crate) fn add_late_closes(&mut self, chance: &mut Chance) {
        if chance.permille(200) {
            self.close_late_ns = chance.pick(&[20_000, 2_000_000]);
        }
    }

    /// Lets numbers start near the place where they go round, or need more bits, in a fifth of the seeds.
    pub(crate) fn add_high_numbers(&mut self, chance: &mut Chance) {
        if chance.permille(200) {
            let bits = chance.pick(&[16, 24, 32, 32, 32]);
            let before = chance.pick(&[1, 6, 40, 300]);
            self.first_number = ((1u64 << bits) - chance.between(1, before)) as u32;
            self.first_connection = u32::MAX - chance.below(3) as u32;
        }
    }

    /// Adds rates that change, acknowledgements that come late, outages, writes that land after the end of their lane,
    /// and keys that come again. The peer's grace must be longer than all delays of an acknowledgement together, so
    /// most seeds have only one of them. A few have outages that lanes do not survive, or lose acknowledgements for
    /// longer than the grace.
    pub(crate) fn add_network(&mut self, chance: &mut Chance) {
        let fabric = &mut self.fabric;
        if chance.permille(300) {
            fabric.rate_change_ns = chance.pick(&[20_000, 200_000, 1_000_000]);
            fabric.rate_jump_permille = chance.pick(&[0, 100, 500]);
            if chance.permille(500) {
                fabric.standstill_permille = 20;
                fabric.standstill_ns = chance.pick(&[200_000, 5_000_000]);
            }
        }
        let which = chance.below(10);
        let all_ns = if which == 9 { 500_000 } else { 2_000_000 };
        if matches!(which, 4 | 5 | 9) {
            fabric.ack_stall_permille = chance.pick(&[2, 20]);
            fabric.ack_stall_ns = all_ns;
        }
        if matches!(which, 6 | 7 | 9) {
            fabric.outage_permille = chance.pick(&[1, 5, 20]);
            fabric.outage_ns = (fabric.retry_ns * 3 / 4).min(all_ns);
        }
        if matches!(which, 8 | 9) {
            fabric.ack_refused_permille = chance.pick(&[20, 200]);
            fabric.ack_refused_ns = all_ns;
        }
        if chance.permille(25) {
            fabric.outage_permille = chance.pick(&[5, 20]);
            fabric.outage_ns = fabric.retry_ns / 4;
            fabric.long_outage_permille = 300;
        }
        if chance.permille(25) {
            fabric.ack_lost_permille = chance.pick(&[1, 5]);
            fabric.ack_lost_ns = 6_000_000;
        }
        if chance.permille(600) {
            fabric.late_landing_ns = chance.pick(&[100_000, 10_000_000]);
        }
        if chance.permille(300) {
            fabric.poll_blind_permille = chance.pick(&[50, 500]);
        }
        fabric.destroy_purges = chance.permille(500);
        if chance.permille(500) {
            fabric.key_reuse_permille = chance.pick(&[300, 1000]);
        }
    }

    /// Adds attempts to connect a rail that must be repeated, to a fifth of the seeds.
    pub(crate) fn add_repeated_connects(&mut self, chance: &mut Chance) {
        if chance.permille(200) {
            self.fabric.connect_later_permille = chance.pick(&[200, 700]);
            self.fabric.connect_later_ns = chance.pick(&[5_000, 200_000]);
        }
    }

    /// Adds dials that fail to a tenth of the seeds, and deaths that are not reported to a fifth. Draws the time that
    /// peers have to answer a PING.
    pub(crate) fn add_session_faults(&mut self, chance: &mut Chance) {
        if chance.permille(100) {
            self.dial_fails_permille = chance.pick(&[200, 700]);
        }
        // A peer's time is longer than any hiccup of the network: an adapter that is silent for half of it is away.
        let hiccups_ns = 2 * self.network_ns();
        self.peer_timeouts_ns = [0, 1].map(|_| hiccups_ns + chance.pick(&[6_000_000, 30_000_000]));
        self.is_mute = chance.permille(200);
    }

    /// Adds networks of sessions that stay away for a while, refusals meanwhile, sockets that break again and again,
    /// and strangers who want to go on with the sessions of others.
    pub(crate) fn add_resumptions(&mut self, one_sided: bool, chance: &mut Chance) {
        self.away_ns = chance.pick(&[0, 1_000_000, 20_000_000, 100_000_000]);
        self.is_refused = chance.permille(300) && one_sided;
        if chance.permille(150) {
            self.cut_permille = chance.pick(&[10, 50]);
        }
        if chance.permille(300) {
            let mut one = || (chance.below(6_000_000), chance.below(100) as usize);
            self.break_times_ns = (0..3).map(|_| one()).collect();
        }
        if chance.permille(200) {
            self.stranger_times_ns = (0..chance.between(1, 4)).map(|_| chance.below(20_000_000)).collect();
        }
    }

    /// Returns the time for which a connection's rails must carry nothing before a sign of its peer's end counts.
    pub(crate) fn proof_ns(&self) -> u64 {
        3_000_000 + 2 * self.network_ns()
    }

    /// Adds offers that must wait to a quarter of the seeds, and calls that block set-ups to another quarter.
    pub(crate) fn add_set_up_waits(&mut self, chance: &mut Chance) {
        if chance.permille(250) {
            (self.offer_waits_permille, self.offer_waits_ns) = (500, chance.pick(&[50_000, 2_000_000, 5_000_000]));
        }
        if chance.permille(250) {
            (self.set_up_blocks_permille, self.set_up_blocks_ns) = (500, chance.pick(&[50_000, 2_000_000]));
        }
    }

    /// Lets offers wait until their peers give up.
    pub(crate) fn wait_out_offers(&mut self) {
        (self.offer_waits_permille, self.offer_waits_ns, self.offers_wait_out) = (700, 2_000_000, true);
    }

    /// Lets sessions break while a call blocks the last step of a set-up.
    pub(crate) fn break_blocked_set_ups(&mut self) {
        (self.set_up_blocks_permille, self.set_up_blocks_ns) = (500, 2_000_000);
        self.blocked_breaks_permille = 700;
    }

    /// Returns the longest time for which an acknowledgement may stay unsent after it was put off, if the kernel took
    /// nothing for `refused_ns` of it and of [`Self::PAUSE_NS`] before.
    pub(crate) fn promise_ns(&self, refused_ns: u64) -> u64 {
        // The control thread pauses after each attempt in vain for twice as long as before, up to a limit. So the pause
        // in which the kernel takes something again is hardly longer than all that came before it.
        let refused_ns = refused_ns.min(self.fabric.ack_refused_ns);
        let pause_ns = (refused_ns + LOOK_NS).min(Self::PAUSE_NS);
        PROMISE_NS + if refused_ns > 0 { refused_ns + pause_ns } else { 0 }
    }

    /// The longest pause of the control thread after an attempt in vain, in nanoseconds. A debt may fall into it.
    pub(crate) const PAUSE_NS: u64 = MOST_LOOKS_BETWEEN as u64 * LOOK_NS;

    /// Returns the longest time from the landing of a write to the completion that tells its receiver, or its sender,
    /// unless its acknowledgement is lost.
    pub(crate) fn settling_ns(&self, sender: bool) -> u64 {
        let fabric = &self.fabric;
        let completion_ns = fabric.completion_late_ns + fabric.completion_burst_ns;
        let outage_ns = if fabric.outage_permille > 0 { fabric.outage_ns + fabric.retry_ns } else { 0 };
        let way_ns = fabric.delay_ns + fabric.jitter_ns + fabric.ack_stall_ns + outage_ns;
        let put_off_ns = if fabric.acks_put_off { self.promise_ns(fabric.ack_refused_ns) } else { 0 };
        completion_ns + if sender { way_ns + put_off_ns } else { 0 }
    }

    /// Returns the time by which outages, late acknowledgements and slow rails may delay a connection's end.
    fn network_ns(&self) -> u64 {
        let fabric = &self.fabric;
        let slow_ns = if fabric.rate_change_ns > 0 { 30_000_000 + 4 * fabric.standstill_ns } else { 0 };
        let outage_ns = if fabric.outage_permille > 0 { 4 * fabric.retry_ns } else { 0 };
        slow_ns + outage_ns + 2 * fabric.ack_stall_ns + 2 * fabric.ack_lost_ns + fabric.ack_refused_ns
    }

    /// Returns the time, in virtual nanoseconds, within which every request at a live process completes or fails once
    /// something that it needs is dead: retries, the peer's giving up, its BYE, the grace, the time to notice, and
    /// silences.
    pub(crate) fn death_limit_ns(&self) -> u64 {
        let session_ns = self.session_delay_ns + self.session_jitter_ns;
        let silences_ns = 4 * self.silence_ns + self.pause_ns;
        // Half of a peer's time passes before its rails are asked. They have half of it, or the time of a proof; each
        // may begin again once, after an answer that came just before the end.
        let longest_ns = self.peer_timeouts_ns[0].max(self.peer_timeouts_ns[1]);
        let asking_ns = 2 * longest_ns + 2 * self.proof_ns() + self.away_ns;
        3 * self.fabric.retry_ns
            + self.detect_ns
            + self.grace_ns
            + 2 * session_ns
            + 10 * self.fabric.stall_ns
            + silences_ns
            + asking_ns
            + self.close_late_ns
            + self.network_ns()
            + 8_000_000
    }
}
