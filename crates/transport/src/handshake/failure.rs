//! The reasons why a handshake fails, why a connection does without a rail, and why a lane's socket is refused.

use std::fmt;
use std::time::Duration;

use railweave_fabric::{Fault, RailId, RailSet, SettingId, SetupError, Step};

/// The reason why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The peer did not take its next step in time.
    Late(Awaited),
    /// The peer said BYE.
    Closed,
    /// The peer sent the message of this name out of turn.
    OutOfTurn(&'static str),
    /// ANSWER names a port or lanes that were not offered.
    WrongAnswer {
        /// The port's index, as the peer says it.
        port: u8,
        /// Lanes of its rail.
        lanes: u8,
        /// Ports of the offer.
        offered: usize,
    },
    /// ANSWER names a step of the ladder that the offer did not allow.
    WrongStep {
        /// The step.
        step: Step,
        /// The offer's first step.
        first_step: Step,
    },
    /// LANES and ANSWER differ in the number of rails.
    WrongRails {
        /// Rails of LANES.
        lanes: usize,
        /// Rails of ANSWER.
        answered: usize,
    },
    /// LANES and ANSWER differ in the number of lanes of a rail.
    WrongLanes {
        /// The rail.
        rail: RailId,
        /// Its lanes in LANES.
        lanes: usize,
        /// Its lanes in ANSWER.
        agreed: u8,
    },
    /// A message names rails that are not up here, or READY names none.
    WrongRailSet {
        /// The message.
        message: &'static str,
        /// The rails that it names.
        named: RailSet,
        /// Rails of the connection.
        rails: usize,
    },
    /// No port of the offer can be paired with one of this end's, for this reason.
    Unpaired(String),
    /// This host could not connect any rail in time, the last one for this reason.
    Unconnected(LeftOut),
    /// No rail came up; an event gave the reason for each.
    NoRail {
        /// True if this host could not make any of them.
        failed_here: bool,
        /// The reason for the first.
        first: LeftOut,
    },
    /// A rail that READY names could not be finished.
    Unfinished(SetupError),
    /// A rail that READY names has failed with a part of this host, for this reason.
    Broke(LeftOut),
    /// The acceptor refused the offer.
    Refused {
        /// The party at fault, as the acceptor sees it.
        fault: Fault,
        /// The reason, in its words.
        reason: String,
    },
    /// The connector gave up; the reason in its words.
    GaveUp(String),
}

impl HandshakeFailure {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            // Settings of two hosts that do not fit are as wrong here as there.
            Self::Refused { fault: Fault::Configuration, .. } => Fault::Configuration,
            Self::Late(_)
            | Self::Closed
            | Self::NoRail { failed_here: false, .. }
            | Self::Refused { .. }
            | Self::GaveUp(_) => Fault::Peer,
            Self::OutOfTurn(_)
            | Self::WrongAnswer { .. }
            | Self::WrongStep { .. }
            | Self::WrongRails { .. }
            | Self::WrongLanes { .. }
            | Self::WrongRailSet { .. } => Fault::Protocol,
            Self::Unpaired(_) => Fault::Configuration,
            Self::Unconnected(_) | Self::NoRail { failed_here: true, .. } | Self::Broke(_) => Fault::Local,
            Self::Unfinished(error) => error.fault(),
        }
    }

    /// Returns true if other rails may come up where these did not.
    pub(super) fn is_of_rails(&self) -> bool {
        matches!(self, Self::Unpaired(_) | Self::NoRail { .. } | Self::Unconnected(_) | Self::Unfinished(_))
    }

    /// Returns the failure's sentence, for a handshake with this peer.
    pub fn of(&self, peer: &str) -> String {
        match self {
            Self::Late(awaited) => format!(
                "Handshake timeout: {peer} did not send {awaited} in time; check that no firewall blocks TCP between \
                 the hosts, that the peer still runs, and raise {} if the hosts are slow",
                SettingId::HandshakeTimeout
            ),
            Self::Closed => format!("{peer} closed the connection while it was set up"),
            Self::OutOfTurn(message) => {
                format!("{peer} sent {message} out of turn while a connection was set up; it breaks the protocol")
            }
            Self::WrongAnswer { port, lanes, offered } => format!(
                "{peer} answered with {lanes} lanes on port {port}; allowed: one of the {offered} ports offered, \
                 with no more lanes than that has; it breaks the protocol"
            ),
            Self::WrongStep { step, first_step } => format!(
                "{peer} answered with step {} of the ladder; allowed: those from {} on, and that of TCP only alone; it \
                 breaks the protocol",
                *step as u8, *first_step as u8
            ),
            Self::WrongRails { lanes, answered } => {
                format!("{peer} sent LANES for {lanes} rails, but ANSWER had {answered}; it breaks the protocol")
            }
            Self::WrongLanes { rail, lanes, agreed } => {
                format!("{peer} sent {lanes} lanes for rail {rail}, but {agreed} were agreed; it breaks the protocol")
            }
            Self::WrongRailSet { message, named, rails } => format!(
                "{peer} sent {message} for rails {named:#b}; allowed: one or more of those that are ready here, of \
                 {rails}; it breaks the protocol"
            ),
            Self::Unpaired(reason) => reason.clone(),
            Self::Unconnected(reason) => reason.to_string(),
            Self::NoRail { first, .. } => format!(
                "no rail to {peer} came up, the first because: {first}; the lines before this one name the reason for \
                 each"
            ),
            Self::Unfinished(error) => error.to_string(),
            Self::Broke(reason) => format!("{reason}; the connection that was set up uses it and is lost"),
            Self::Refused { reason, .. } => format!("{peer} refused the connection: {reason}"),
            Self::GaveUp(reason) => format!("{peer} gave the connection up: {reason}"),
        }
    }
}

/// The step of the peer that a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The acceptor's ports.
    Answer,
    /// The peer's lanes.
    Lanes,
    /// The sockets of the lanes that this end dials.
    Sockets,
    /// The peer's first packets, or the news of them.
    Probe,
    /// The connector's rails.
    Ready,
}

impl fmt::Display for Awaited {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Answer => "ANSWER",
            Self::Lanes => "LANES",
            Self::Sockets => "its end of every lane",
            Self::Probe => "PROBE",
            Self::Ready => "READY",
        })
    }
}

/// The reason why a connection does without a rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    /// This end could not make it.
    #[error(transparent)]
    Failed(SetupError),
    /// This end could not connect it in time.
    #[error("Handshake timeout: {}; or raise {limit}", obstacle(.last.as_ref()))]
    TooLate {
        /// The last obstacle, if it was tried.
        last: Option<SetupError>,
        /// The setting of the time.
        limit: SettingId,
    },
    /// A lane of it could not be dialled, for this reason.
    #[error("{0}")]
    Undialled(String),
    /// The peer left it out.
    #[error("the peer says: {reason}")]
    PeerSays {
        /// The reason, in its words.
        reason: String,
        /// True if it waited for packets that did not come through.
        is_of_way: bool,
    },
    /// The peer did not name it in PROBE or READY.
    #[error("the peer could not bring its end up; its own log says why")]
    NotReady,
    /// Its first packets failed.
    #[error("{reason}")]
    Broke {
        /// The reason.
        reason: String,
        /// True if the peer did not answer them.
        is_of_way: bool,
    },
    /// Its first packets, of this many bytes, did not come through in this time.
    #[error(
        "no packet of {bytes} bytes came through in {} s ({}): the cable may lead elsewhere, a firewall may stop RDMA \
         (UDP port 4791), a host in between may not forward it, or a part of the way may have a smaller MTU than both \
         ports (`ip link`)",
        .timeout.as_secs_f64(),
        SettingId::ProbeTimeout
    )]
    Silent {
        /// Bytes of a packet.
        bytes: u32,
        /// The time that it had.
        timeout: Duration,
    },
    /// The peer's first packets did not come through.
    #[error("the peer's packets did not come through; its own log says why")]
    PeerSilent,
}

fn obstacle(last: Option<&SetupError>) -> String {
    last.map_or_else(|| "it was not tried".to_owned(), ToString::to_string)
}

impl LeftOut {
    /// Returns true if packets did not come through between its two ends, so that others between them would not either.
    pub fn is_of_way(&self) -> bool {
        match self {
            Self::TooLate { .. } | Self::Undialled(_) | Self::Silent { .. } | Self::PeerSilent => true,
            Self::PeerSays { is_of_way, .. } | Self::Broke { is_of_way, .. } => *is_of_way,
            Self::Failed(_) | Self::NotReady => false,
        }
    }

    /// Returns true if only this host is at fault.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Failed(error) if error.fault() == Fault::Local)
    }
}

/// The reason why the socket of a lane is refused. The numbers are as the dialler sent them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneRefused {
    /// The other side dials.
    #[error("rail {0} is dialled from this side")]
    DialledHere(u8),
    /// The handshake waits for no lane of such a rail.
    #[error("no lane of rail {0} is awaited")]
    NotAwaited(u8),
    /// The rail has fewer lanes.
    #[error("rail {rail} has {lanes} lanes, counted from 0")]
    NoSuchLane {
        /// The rail.
        rail: u8,
        /// The number of its lanes.
        lanes: u8,
    },
    /// The lane has an open socket.
    #[error("it has its socket already")]
    HasSocket,
    /// The socket cannot be used.
    #[error(transparent)]
    Unusable(#[from] SetupError),
}

#[cfg(test)]
mod tests {
    use railweave_fabric::RegisterError;

    use super::*;

    #[test]
    fn each_failure_has_its_fault_and_its_sentence() {
        let error = || SetupError::Register(RegisterError::Range { address: 1, length: 2 });
        for (failure, fault, sentence) in [
            (HandshakeFailure::Closed, Fault::Peer, "node2 closed the connection while it was set up"),
            (
                HandshakeFailure::OutOfTurn("READY"),
                Fault::Protocol,
                "node2 sent READY out of turn while a connection was set up; it breaks the protocol",
            ),
            (
                HandshakeFailure::WrongAnswer { port: 9, lanes: 2, offered: 4 },
                Fault::Protocol,
                "node2 answered with 2 lanes on port 9; allowed: one of the 4 ports offered, with no more lanes than \
                 that has; it breaks the protocol",
            ),
            (
                HandshakeFailure::WrongStep { step: Step::Routed, first_step: Step::OtherPort },
                Fault::Protocol,
                "node2 answered with step 2 of the ladder; allowed: those from 3 on, and that of TCP only alone; it \
                 breaks the protocol",
            ),
            (
                HandshakeFailure::WrongRails { lanes: 3, answered: 2 },
                Fault::Protocol,
                "node2 sent LANES for 3 rails, but ANSWER had 2; it breaks the protocol",
            ),
            (
                HandshakeFailure::WrongLanes { rail: RailId::new(1).unwrap(), lanes: 3, agreed: 2 },
                Fault::Protocol,
                "node2 sent 3 lanes for rail 1, but 2 were agreed; it breaks the protocol",
            ),
            (
                HandshakeFailure::WrongRailSet { message: "READY", named: RailSet::from_bits(0b110), rails: 2 },
                Fault::Protocol,
                "node2 sent READY for rails 0b110; allowed: one or more of those that are ready here, of 2; it breaks \
                 the protocol",
            ),
            (HandshakeFailure::Unpaired("no port fits".to_owned()), Fault::Configuration, "no port fits"),
            (
                HandshakeFailure::NoRail { failed_here: false, first: LeftOut::PeerSilent },
                Fault::Peer,
                "no rail to node2 came up, the first because: the peer's packets did not come through; its own log \
                 says why; the lines before this one name the reason for each",
            ),
            (
                HandshakeFailure::NoRail { failed_here: true, first: LeftOut::PeerSilent },
                Fault::Local,
                "no rail to node2 came up, the first because: the peer's packets did not come through; its own log \
                 says why; the lines before this one name the reason for each",
            ),
            (
                HandshakeFailure::Unfinished(error()),
                Fault::Protocol,
                "the range of 2 bytes at 0x1 is not a valid memory range",
            ),
            (
                HandshakeFailure::Broke(LeftOut::Broke { reason: "the device failed".to_owned(), is_of_way: true }),
                Fault::Local,
                "the device failed; the connection that was set up uses it and is lost",
            ),
            (
                HandshakeFailure::Refused { fault: Fault::Local, reason: "no".to_owned() },
                Fault::Peer,
                "node2 refused the connection: no",
            ),
            (
                HandshakeFailure::Refused { fault: Fault::Configuration, reason: "no".to_owned() },
                Fault::Configuration,
                "node2 refused the connection: no",
            ),
            (HandshakeFailure::GaveUp("no".to_owned()), Fault::Peer, "node2 gave the connection up: no"),
        ] {
            assert_eq!((failure.fault(), failure.of("node2").as_str()), (fault, sentence));
        }
        for (awaited, words) in [
            (Awaited::Answer, "did not send ANSWER in time"),
            (Awaited::Lanes, "did not send LANES in time"),
            (Awaited::Sockets, "did not send its end of every lane in time"),
            (Awaited::Probe, "did not send PROBE in time"),
            (Awaited::Ready, "did not send READY in time"),
        ] {
            let failure = HandshakeFailure::Late(awaited);
            let text = failure.of("node2");
            assert!(text.starts_with(&format!("Handshake timeout: node2 {words}; ")), "{text}");
            assert_eq!(failure.fault(), Fault::Peer);
        }
        let late =
            HandshakeFailure::Unconnected(LeftOut::TooLate { last: Some(error()), limit: SettingId::HandshakeTimeout });
        let text = late.of("node2");
        let head = "Handshake timeout: the range of 2 bytes at 0x1 is not a valid memory range; or raise ";
        assert!(text.starts_with(head) && late.fault() == Fault::Local, "{text}");
        let untried = LeftOut::TooLate { last: None, limit: SettingId::ProbeTimeout }.to_string();
        assert!(untried.starts_with("Handshake timeout: it was not tried; or raise "), "{untried}");
    }

    #[test]
    fn what_is_left_out_or_refused_says_why() {
        let says = LeftOut::PeerSays { reason: "no".to_owned(), is_of_way: false };
        assert_eq!(says.to_string(), "the peer says: no");
        assert_eq!(LeftOut::Undialled("no".to_owned()).to_string(), "no");
        assert_eq!(LeftOut::NotReady.to_string(), "the peer could not bring its end up; its own log says why");
        for (refused, sentence) in [
            (LaneRefused::DialledHere(3), "rail 3 is dialled from this side"),
            (LaneRefused::NotAwaited(3), "no lane of rail 3 is awaited"),
            (LaneRefused::NoSuchLane { rail: 3, lanes: 2 }, "rail 3 has 2 lanes, counted from 0"),
            (LaneRefused::HasSocket, "it has its socket already"),
        ] {
            assert_eq!(refused.to_string(), sentence);
        }
    }
}
