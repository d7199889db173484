//! The faults of exhaustive runs, which [`super::injecting`] carries out.

/// A fault, and the thing that it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Injection {
    /// A rail stops carrying anything, and nobody reports it.
    RailSilent { connection: usize, rail: u8 },
    /// A rail's lanes fail at both ends at once.
    RailError { connection: usize, rail: u8 },
    /// All rails of a connection stop carrying anything, and nobody reports it.
    AllRails { connection: usize },
    /// A rail stops carrying anything, and the session that its sender has opened breaks.
    RailAndSession { connection: usize, rail: u8 },
    /// A rail's lanes fail at one end, and the other end hears nothing of it.
    RailOneEnd { connection: usize, sender: bool, rail: u8 },
    /// A port stops carrying anything.
    PortSilent(usize),
    /// The device of a port fails, and only an event of the host tells.
    Device(usize),
    /// The loop-back of a port fails.
    LoopBack(usize),
    /// A process vanishes.
    Process(usize),
    /// A process vanishes right after one of its calls; calls count here, in place of events.
    Killed,
    /// The session that one process has opened to another breaks.
    Session { from: usize, to: usize },
    /// An end is closed although there is more to do.
    Close { connection: usize, sender: bool },
    /// A process gives up, and closes all of its ends.
    Abort(usize),
    /// An end's application makes no call for longer than all graces together.
    Silence { connection: usize, sender: bool },
    /// The writes of one end of a rail go out at a crawl from now on.
    Slow { connection: usize, sender: bool, rail: u8 },
    /// Either the writes of one end of a rail are lost, or their acknowledgements: for a while that the retries
    /// outlast, or forever.
    Outage { connection: usize, sender: bool, rail: u8, writes: bool, forever: bool },
    /// One end gives up a rail that works: an event of its host says that a part of it is gone.
    Suspicion { connection: usize, sender: bool, rail: u8 },
    /// A rail's lanes fail, and this many events later those of the other rail, while its recovery is in progress.
    BothRails { connection: usize, first: u8, after: u64 },
    /// A rail's lanes fail, and again as soon as it is back.
    RailAgain { connection: usize, rail: u8 },
}

impl Injection {
    /// Returns the fault in words, without the thing that it strikes.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::RailSilent { .. } => "a rail dies silently",
            Self::RailError { .. } => "a rail dies with an error",
            Self::AllRails { .. } => "all rails of a connection die silently",
            Self::RailAndSession { .. } => "a rail dies silently, and a session breaks",
            Self::RailOneEnd { .. } => "a rail fails at one end only",
            Self::PortSilent(_) => "a port dies silently",
            Self::Device(_) => "a device fails",
            Self::LoopBack(_) => "a loop-back fails",
            Self::Process(_) => "a process dies",
            Self::Killed => "a process is killed after a call",
            Self::Session { .. } => "a session breaks",
            Self::Close { .. } => "an end closes early",
            Self::Abort(_) => "a process gives up",
            Self::Silence { .. } => "an application is silent beyond all graces",
            Self::Slow { .. } => "a rail's rate drops to nearly nothing",
            Self::Outage { writes: true, forever: false, .. } => "writes are lost for a while",
            Self::Outage { writes: true, forever: true, .. } => "writes are lost from then on",
            Self::Outage { writes: false, forever: false, .. } => "acknowledgements are lost for a while",
            Self::Outage { writes: false, forever: true, .. } => "acknowledgements are lost from then on",
            Self::Suspicion { .. } => "an end gives up a rail that works",
            Self::BothRails { .. } => "two rails fail, one soon after the other",
            Self::RailAgain { .. } => "a rail fails, and again once it is back",
        }
    }
}
