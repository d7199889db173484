//! Counts of what strikes rails and sessions, by the situation in which it does.

use std::fmt;

use railweave_transport::GivenUp;

/// A situation in which a connection is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// No message is in progress.
    Idle,
    /// A message is in progress.
    Busy,
    /// A group is in progress.
    Grouped,
    /// An early receive waits for its data.
    Early,
    /// Data is not visible to the GPU.
    Unflushed,
    /// Another rail is down.
    Another,
    /// A part has to come again.
    Repair,
    /// The connection has no other rail.
    Only,
    /// The rail has come back before.
    Again,
    /// The other end is closed.
    Closing,
    /// The session is away.
    Away,
    /// Its set-up is in progress.
    SetUp,
}

impl Situation {
    /// All of them, in the order of the table's columns.
    pub const ALL: [Self; 12] = [
        Self::Idle,
        Self::Busy,
        Self::Grouped,
        Self::Early,
        Self::Unflushed,
        Self::Another,
        Self::Repair,
        Self::Only,
        Self::Again,
        Self::Closing,
        Self::Away,
        Self::SetUp,
    ];

    /// Those that last shortly, or come seldom; the rarest twice.
    pub(crate) const RARE: [Self; 6] =
        [Self::Early, Self::Repair, Self::Only, Self::Again, Self::Closing, Self::Closing];
}

/// Something that strikes a connection, or that makes an end of it give a rail up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// One of its rails falls silent.
    RailSilent,
    /// The lanes of a rail fail at both ends.
    RailError,
    /// The lanes of a rail fail at one end.
    RailOneEnd,
    /// A port falls silent.
    PortSilent,
    /// A device fails.
    DeviceFails,
    /// One end gives up a rail that works.
    Suspicion,
    /// Its session breaks.
    SessionBreaks,
    /// Its peer's process dies.
    PeerDies,
    /// An end gives a rail up because a lane failed.
    Lane,
    /// An end gives a rail up because it refused work.
    Post,
    /// An end gives a rail up because of an event of its port.
    Port,
    /// An end gives a rail up because of an event of its device.
    Device,
    /// An end gives a rail up because it is silent.
    Silence,
    /// An end gives a rail up because its peer has done so.
    Peer,
}

impl Blow {
    /// All of them, in the order of the table's rows.
    pub const ALL: [Self; 14] = [
        Self::RailSilent,
        Self::RailError,
        Self::RailOneEnd,
        Self::PortSilent,
        Self::DeviceFails,
        Self::Suspicion,
        Self::SessionBreaks,
        Self::PeerDies,
        Self::Lane,
        Self::Post,
        Self::Port,
        Self::Device,
        Self::Silence,
        Self::Peer,
    ];

    /// Returns the reason why an end gave a rail up; events of devices have this message.
    pub(crate) fn of(why: &GivenUp, device_event: &str) -> Self {
        match why {
            GivenUp::Lane { .. } => Self::Lane,
            GivenUp::Post(_) => Self::Post,
            GivenUp::Part(message) if message.ends_with(device_event) => Self::Device,
            GivenUp::Part(_) => Self::Port,
            GivenUp::Silent(_) => Self::Silence,
            GivenUp::Peer => Self::Peer,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::RailSilent => "a rail falls silent",
            Self::RailError => "a rail fails at both ends",
            Self::RailOneEnd => "a rail fails at one end",
            Self::PortSilent => "a port falls silent",
            Self::DeviceFails => "a device fails",
            Self::Suspicion => "a good rail is given up",
            Self::SessionBreaks => "a session breaks",
            Self::PeerDies => "a peer dies",
            Self::Lane => "given up: a lane failed",
            Self::Post => "given up: it refuses work",
            Self::Port => "given up: event of a port",
            Self::Device => "given up: of a device",
            Self::Silence => "given up: silent",
            Self::Peer => "given up: by the peer",
        }
    }
}

/// The number of times that each blow fell in each situation. One that falls in several counts for each of them.
#[derive(Clone, Debug, Default)]
pub struct Blows([[u64; Situation::ALL.len()]; Blow::ALL.len()]);

impl Blows {
    /// Counts a blow that fell in these situations.
    pub(crate) fn fell(&mut self, blow: Blow, situations: &[Situation]) {
        let row = &mut self.0[blow as usize];
        situations.iter().for_each(|situation| row[*situation as usize] += 1);
    }

    /// Returns the number of times that a blow fell in a situation.
    pub fn of(&self, blow: Blow, situation: Situation) -> u64 {
        self.0[blow as usize][situation as usize]
    }

    /// Adds the counts of another run.
    pub(crate) fn merge(&mut self, other: &Self) {
        let (sums, more) = (self.0.as_flattened_mut(), other.0.as_flattened());
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
}

impl fmt::Display for Blows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "blow, and situation        ")?;
        Situation::ALL.iter().try_for_each(|situation| write!(out, " {:>9}", format!("{situation:?}")))?;
        for blow in Blow::ALL {
            write!(out, "\n  {:<25}", blow.words())?;
            Situation::ALL.iter().try_for_each(|situation| write!(out, " {:>9}", self.of(blow, *situation)))?;
        }
        Ok(())
    }
}
