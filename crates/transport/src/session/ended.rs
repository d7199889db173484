//! The reasons why sessions end or cannot be opened, and why connections are lost with them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use railweave_fabric::{Fault, SettingId};
use thiserror::Error;

use crate::HelloError;
use crate::codec::DecodeError;

const NO_NIC: &str = "No local NIC found that reaches the peer";

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The end of a session's socket, as the caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketEnd {
    /// Its meaning for the next attempt to reach the peer.
    pub kind: SocketEndKind,
    /// The cause, in words.
    pub text: String,
}

/// The meaning of a socket's end for the next attempt to reach its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketEndKind {
    /// The host has no route to the address.
    NoRoute,
    /// The peer has closed it without having sent a byte: it may welcome the next dial.
    Mute,
    /// The peer's host says that no process listens there.
    Refused,
    /// Nothing answers what was sent over it: its path is gone, and another may be there.
    NoAnswer,
    /// Anything else.
    Other,
}

/// The reason why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Ended {
    /// Its socket ended.
    #[error("{0}")]
    Socket(String),
    /// HELLO or PROOF did not come in time.
    #[error("Handshake timeout: no HELLO or proof came in time; check that no firewall blocks TCP between the hosts")]
    Late,
    /// The peer did not answer a PING in time.
    #[error("it has been silent for {:.1} s", seconds(*.for_ns))]
    Silent {
        /// The time since anything came from it, in nanoseconds.
        for_ns: u64,
    },
    /// The peer does not read what is sent to it, so nothing is read from it either.
    #[error("it has not read what was sent to it for {:.1} s: {unsent} bytes wait for it", seconds(*.for_ns))]
    NotReading {
        /// The time since anything was read from it, in nanoseconds.
        for_ns: u64,
        /// The number of bytes that wait to be sent.
        unsent: usize,
    },
    /// The peer no longer has it.
    #[error("it no longer has the control session: it has closed its ends of the connections, or given them up")]
    Forgotten,
    /// The peer sent a message that it may not send now.
    #[error("a control message came out of turn")]
    OutOfTurn,
    /// No connection uses it.
    #[error("no connection uses it")]
    Idle,
    /// The peer's HELLO or proof was refused, or it cannot be reached.
    #[error("closed")]
    Refused,
    /// The peer sent bytes that are not a frame, or not a message.
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    /// The peer broke a limit of the caller's.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The peer sends more messages about a connection than its set-up takes.
    #[error("too many control messages came out of turn")]
    TooManyMessages,
}

/// A limit of the caller's for peers that have no connection. Its text is a clause whose subject is the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Limit {
    /// The peer sent too much.
    #[error("sent more than {most} bytes without a connection")]
    Unconnected {
        /// The most bytes that it may send.
        most: usize,
    },
    /// Others wait for the place of the peer's session.
    #[error("has no connection, like {others} others, and more peers wait")]
    Place {
        /// The number of other peers that have no connection.
        others: usize,
    },
}

/// The fault of a HELLO.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HelloFault {
    /// It is not a HELLO.
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    /// It does not agree with this process's HELLO.
    #[error(transparent)]
    Differs(#[from] HelloError),
}

/// The reason why a peer is not welcome. Each is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unwelcome {
    /// Its HELLO does not fit.
    #[error("{address}: {fault}; its session was refused")]
    Hello {
        /// The address that it dialled from.
        address: SocketAddr,
        /// The fault.
        fault: HelloFault,
    },
    /// It did not say HELLO, or prove that it has the key, in time.
    #[error("{address} opened a session but did not say who it is in time; it was closed")]
    Late {
        /// The address that it dialled from.
        address: SocketAddr,
    },
    /// It sent a message that it may not send now.
    #[error("{peer} sent a control message out of turn; its session was closed")]
    OutOfTurn {
        /// The peer.
        peer: String,
    },
    /// It sent bytes that are not a frame, or not a message.
    #[error("{peer} broke the control protocol: {error}")]
    Garbled {
        /// The peer.
        peer: String,
        /// The fault.
        error: DecodeError,
    },
    /// It broke a limit.
    #[error("{peer} {limit}; its session was closed")]
    Limit {
        /// The peer.
        peer: String,
        /// The limit.
        limit: Limit,
    },
    /// It wants to go on with a session, and may not.
    #[error("{peer} {fault}; its socket was closed")]
    Resume {
        /// The peer.
        peer: String,
        /// The reason.
        fault: ResumeFault,
    },
    /// It has another key.
    #[error("{peer} has another key; copy the same {} to every host; its session was refused", SettingId::KeyFile)]
    OtherKey {
        /// The peer.
        peer: String,
    },
}

/// The reason why an opener has no session to the process that it wants.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreachable {
    /// Its HELLO does not fit this process's.
    #[error("{address}: {fault}")]
    Hello {
        /// The address at which it was reached.
        address: SocketAddr,
        /// The fault.
        fault: HelloFault,
    },
    /// It has another key.
    #[error("{peer} has another key; copy the same {} to every host", SettingId::KeyFile)]
    OtherKey {
        /// The peer.
        peer: String,
    },
    /// There is no address to dial.
    #[error(
        "{NO_NIC}: its handle names no address that can be dialled; give its host an IPv4 or a global IPv6 address, or \
         name an interface that has one in {} there",
        SettingId::OutOfBand
    )]
    NoAddress,
    /// No address led to a session.
    #[error("{}", unreachable(&tries.join("; "), *.no_route, *.loopback))]
    Tried {
        /// The result of each attempt, with its address.
        tries: Vec<String>,
        /// True if the host has no route to any of them.
        no_route: bool,
        /// True if all addresses are loopback addresses.
        loopback: bool,
    },
}

impl Unreachable {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Hello { .. } | Self::OtherKey { .. } => Fault::Configuration,
            Self::NoAddress | Self::Tried { .. } => Fault::Peer,
        }
    }
}

/// Returns a message with the results of the attempts, and with what to do.
fn unreachable(tries: &str, no_route: bool, loopback: bool) -> String {
    if loopback {
        format!(
            "the peer cannot be reached: {tries}; its addresses are all loopback addresses: if it is on \
             another host, name ports in its {} that others reach; if it is on this one, check that its process still \
             runs",
            SettingId::Rails
        )
    } else if no_route {
        format!(
            "{NO_NIC}: {tries}; give both hosts an address in a common network, and name an interface that has one in \
             {} on the peer's",
            SettingId::OutOfBand
        )
    } else {
        format!(
            "the peer cannot be reached: {tries}; check that its process still runs, that no firewall blocks TCP to \
             its control port ({} gives a range to let through), and that {} names an interface there that this host \
             reaches",
            SettingId::ControlPort,
            SettingId::OutOfBand
        )
    }
}

/// The reason why a session reports an open connection as lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The peer.
    pub peer: String,
    /// The cause.
    pub cause: LostCause,
}

/// A cause, other than its rails, that ends an open connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostCause {
    /// The peer has closed it.
    Bye,
    /// The peer, which was still setting it up, gave it up for this reason.
    GaveUp(String),
    /// The session ended.
    Session(Arc<Ended>),
    /// The peer is gone.
    Gone(Gone),
}

/// The proof that the peer of a connection is gone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Gone {
    /// Its process has ended.
    #[error(
        "its process seems to have ended ({sign}), and for {:.1} s no rail has carried anything to it",
        seconds(*.for_ns)
    )]
    Ended {
        /// The sign of that, in words.
        sign: String,
        /// The time for which no rail has carried anything, in nanoseconds.
        for_ns: u64,
    },
    /// Neither its session nor its rails answer.
    #[error(
        "it has been silent for {:.1} s, longer than {} ({} s), and no rail carries anything to it: check that its \
         host is up, and the network between",
        seconds(*.for_ns), SettingId::PeerTimeout, seconds(*.limit_ns)
    )]
    Silent {
        /// The time since anything came from it, in nanoseconds.
        for_ns: u64,
        /// The time for which it may be silent, in nanoseconds.
        limit_ns: u64,
    },
}

/// The reason why a peer may not go on with a session.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResumeFault {
    /// There is no such session of this peer.
    #[error("wants to go on with a session that this process does not have, or no longer has")]
    Unknown,
    /// It has made a later attempt since.
    #[error("wants to go on with a session that it has gone on with since")]
    Old,
    /// It cannot have received what it says.
    #[error("wants to go on with a session, but cannot have received {received} messages on it")]
    Frames {
        /// The number that it gave.
        received: u64,
    },
    /// It needs messages that are not kept.
    #[error("wants to go on with a session, but lacks messages of which this process has kept no copy")]
    LetGo,
}

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, log) = (&self.peer, "look at that process's own log for the reason");
        match &self.cause {
            LostCause::Bye => write!(out, "{peer} has closed the connection; {log}"),
            LostCause::GaveUp(reason) => write!(out, "{peer} gave the connection up: {reason}"),
            LostCause::Session(ended) => write!(out, "{peer} is gone: {ended}; {log}"),
            LostCause::Gone(gone) => write!(out, "{peer} is gone: {gone}; {log}"),
        }
    }
}

impl std::error::Error for Lost {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(tries: &[&str], no_route: bool, loopback: bool) -> String {
        let tries = tries.iter().map(|text| (*text).to_owned()).collect();
        Unreachable::Tried { tries, no_route, loopback }.to_string()
    }

    #[test]
    fn the_nic_is_blamed_only_if_nothing_else_is_wrong() {
        let failures = ["10.0.0.1:7: Network is unreachable", "10.1.0.1:7: Connection refused"];
        for (text, remedy) in [
            (Unreachable::NoAddress.to_string(), SettingId::OutOfBand.own()),
            (refusal(&failures[..1], true, false), "in a common network"),
        ] {
            assert!(text.starts_with(NO_NIC) && text.contains(remedy), "{text}");
        }
        for (text, remedy) in [
            (refusal(&failures, false, false), "firewall"),
            (refusal(&failures[1..], false, false), SettingId::ControlPort.own()),
            (refusal(&failures[1..], false, true), SettingId::Rails.own()),
        ] {
            assert!(!text.contains(NO_NIC), "{text}");
            assert!(text.contains("Connection refused") && text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_told_from_a_host_that_is_silent() {
        let lost = |gone| Lost { peer: "node2".to_owned(), cause: LostCause::Gone(gone) }.to_string();
        let ended = lost(Gone::Ended { sign: "10.0.0.2:7: Connection refused".to_owned(), for_ns: 1_030_000_000 });
        assert!(ended.starts_with("node2 is gone: its process seems to have ended (10.0.0.2:7"), "{ended}");
        assert!(ended.contains("for 1.0 s no rail") && ended.contains("own log"), "{ended}");
        let silent = lost(Gone::Silent { for_ns: 33_750_000_000, limit_ns: 30_000_000_000 });
        assert!(silent.contains("silent for 33.8 s") && silent.contains("(30 s)"), "{silent}");
    }
}
