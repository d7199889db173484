//! What both ends of a connection share: the core that polls the rails and keeps the first error.

use std::sync::Arc;

use railweave_fabric::{Fabric, LaneId, Part, PostError, Rail, RailError, RailId, Reports};

use crate::link::Link;
use crate::rail_info::RailInfo;
use crate::rails::{ConnectedRail, POLL_BATCH, RailSide, Rails};
use crate::violation::Violation;
use crate::{Cause, Error};

/// What either end of a connection is made of: its rails, whether it still works, and who the peer is.
pub(crate) struct Core<F: Fabric> {
    pub(crate) rails: Rails<F>,
    /// The rail that completed something last: it is polled first.
    pub(crate) recent: RailId,
    /// The messages that take this end's fast path: none once the connection is broken.
    pub(crate) fast: FastPath,
    state: State,
    link: Arc<Link>,
    peer: String,
}

/// Whether a connection works.
enum State {
    Open,
    /// It does not, for this reason, which every call says from then on.
    Broken(Error),
}

/// A report that ends the connection.
pub(crate) enum Fatal {
    /// A lane died.
    Failed { lane: LaneId, error: Box<RailError> },
    /// The peer broke the protocol.
    Broke(Violation),
}

impl Fatal {
    /// Keeps the first report that ends the connection.
    #[cold]
    pub(crate) fn keep(place: &mut Option<Box<Self>>, fatal: impl FnOnce() -> Self) {
        place.get_or_insert_with(|| Box::new(fatal()));
    }
}

/// What is outstanding at one end, which the rails' reports change.
pub(crate) trait Outstanding {
    /// Takes what the rail of this side reports.
    fn reports<'a, F: Fabric>(&'a mut self, side: &'a mut RailSide) -> impl Reports;

    /// The first report that ends the connection, on its way from the poll to [`Core`]. It stands beside what reports
    /// change: in any other place it costs each poll 2 instructions or more.
    fn fatal(&mut self) -> &mut Option<Box<Fatal>>;

    /// A post was refused although there was room: part of what was being posted may have gone out.
    fn handle_refused(&mut self) {}
}

impl<F: Fabric> Core<F> {
    /// A connection over these rails whose messages below `fast_below` bytes may take the fast path.
    pub(crate) fn new(rails: Rails<F>, fast_below: u64, peer: String, link: Arc<Link>) -> Self {
        Self {
            recent: rails.usable().first().unwrap_or_default(),
            rails,
            fast: FastPath::new(fast_below),
            state: State::Open,
            link,
            peer,
        }
    }

    /// The peer in words.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Where the rest of the process says that the peer is gone.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Takes what a rail has to say. Returns true if there was anything.
    ///
    /// # Errors
    /// When it ends the connection.
    #[inline(always)]
    pub(crate) fn poll_rail(&mut self, rail: RailId, outstanding: &mut impl Outstanding) -> Result<bool, Error> {
        let ConnectedRail { rail: lanes, side, .. } = self.rails.get_mut(rail);
        let moved = lanes.report(POLL_BATCH, &mut outstanding.reports::<F>(side));
        match outstanding.fatal() {
            None => Ok(moved),
            some => Err(self.handle_fatal(rail, some)),
        }
    }

    /// Takes what all rails have to say. Returns true if there was anything.
    ///
    /// # Errors
    /// As [`Self::poll_rail`].
    #[inline(never)]
    pub(crate) fn poll(&mut self, outstanding: &mut impl Outstanding) -> Result<bool, Error> {
        let mut rails = self.rails.usable().iter();
        rails.try_fold(false, |moved, rail| Ok(self.poll_rail(rail, outstanding)? | moved))
    }

    /// A report ends the connection.
    #[cold]
    #[inline(never)]
    fn handle_fatal(&mut self, rail: RailId, fatal: &mut Option<Box<Fatal>>) -> Error {
        let fatal = fatal.take().expect("called when there is one");
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        self.fail(match *fatal {
            Fatal::Failed { lane, error } => Cause::Lane { rail, name, peer, lane, error: *error },
            Fatal::Broke(violation) => Cause::Violation { rail, name, peer, violation },
        })
    }

    /// Work could not be posted although there was room. The lane's completion says more than its refusal.
    #[cold]
    pub(crate) fn post_failed(&mut self, rail: RailId, error: PostError, outstanding: &mut impl Outstanding) -> Error {
        outstanding.handle_refused();
        if let Err(reason) = self.poll(outstanding) {
            return reason;
        }
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        self.fail(Cause::Post { rail, name, peer, error })
    }

    /// Lets a call go on while the connection works.
    ///
    /// # Errors
    /// The reason, once it is broken.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match &self.state {
            State::Open => Ok(()),
            State::Broken(error) => Err(error.clone()),
        }
    }

    /// Ends the connection where the rest of the process says that the peer is gone.
    ///
    /// # Errors
    /// When it is.
    pub(crate) fn check_link(&mut self) -> Result<(), Error> {
        match self.link.lost().cloned() {
            None => Ok(()),
            Some(error) => Err(self.fail(error)),
        }
    }

    /// Ends the connection where the rest of the process says that this host's adapters failed, whatever the peer does.
    ///
    /// # Errors
    /// When they have.
    pub(crate) fn check_adapters(&mut self) -> Result<(), Error> {
        match self.link.failed().cloned() {
            None => Ok(()),
            Some(error) => Err(self.fail(error)),
        }
    }

    /// The connection is broken from now on. Returns the reason: the first one that there was.
    #[cold]
    pub(crate) fn fail(&mut self, error: impl Into<Error>) -> Error {
        let error = error.into();
        self.fast.end();
        if let State::Broken(first) = &self.state {
            return first.clone();
        }
        self.state = State::Broken(error.clone());
        error
    }
}

/// The messages that take an end's fast path: those shorter than a limit, so that one comparison finds most of them.
pub(crate) struct FastPath {
    /// The limit in bytes; 0 while none takes it.
    below: u64,
    /// What it is when open.
    limit: u64,
}

impl FastPath {
    /// Messages below `limit` bytes take it.
    pub(crate) fn new(limit: u64) -> Self {
        Self { below: limit, limit }
    }

    /// Returns true if a message of `bytes` bytes may take it.
    #[inline(always)]
    pub(crate) fn takes(&self, bytes: u64) -> bool {
        bytes < self.below
    }

    /// No message takes it until [`Self::open`].
    pub(crate) fn close(&mut self) {
        self.below = 0;
    }

    /// Messages take it again.
    pub(crate) fn open(&mut self) {
        self.below = self.limit;
    }

    /// No message takes it ever again.
    fn end(&mut self) {
        (self.below, self.limit) = (0, 0);
    }
}

/// What both ends of a connection offer alike. How to use an end stands with [`crate::SendConnection`] and
/// [`crate::RecvConnection`].
pub trait ConnectionEnd {
    /// The peer in words.
    fn peer(&self) -> &str;

    /// Where the rest of the process says that the peer is gone, or that this host's adapters failed.
    fn link(&self) -> &Arc<Link>;

    /// What of this host it is made of, as the events of its devices name it.
    fn parts(&self) -> Vec<Part>;

    /// The rails that came up.
    fn rails(&self) -> Vec<RailInfo>;

    /// Ends its use: from now on what arrives is thrown away, and errors are silent. The memory that was registered for
    /// it may go. Only [`Self::linger`] may be called then.
    fn start_linger(&mut self);

    /// Moves what is left to move. Returns true if everything is out and acknowledged: then dropping the end takes
    /// nothing from the peer.
    fn linger(&mut self) -> bool;
}

/// Both ends have them from their core.
macro_rules! both_ends {
    ($end:ident) => {
        impl<F: Fabric> $crate::ConnectionEnd for $end<F> {
            fn peer(&self) -> &str {
                self.core.peer()
            }

            fn link(&self) -> &Arc<Link> {
                self.core.link()
            }

            fn parts(&self) -> Vec<Part> {
                self.core.rails.parts()
            }

            fn rails(&self) -> Vec<RailInfo> {
                self.core.rails.infos()
            }

            fn start_linger(&mut self) {
                self.core.rails.start_linger();
            }

            fn linger(&mut self) -> bool {
                self.core.rails.linger()
            }
        }
    };
}
pub(crate) use both_ends;
