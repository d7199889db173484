//! The reasons why rails cannot be set up.

use std::fmt;
use std::io;

use super::{RegisterError, os};
use crate::{Fault, LaneId, LinkLayer, SettingId};

/// The reason why a rail could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The rail's specification asks for a send queue of a length that the fabric does not support.
    #[error("a send queue of {depth}; allowed: 1 to {most}")]
    SendQueue {
        /// Length of the queue.
        depth: u32,
        /// The maximum.
        most: u32,
    },
    /// The rail's specification asks for more receives than the fabric supports.
    #[error("a pool of {count} receives; allowed: 0 to {most}")]
    ReceivePool {
        /// The number asked for.
        count: u32,
        /// The maximum.
        most: u32,
    },
    /// The rail's specification asks for a number of lanes that no rail can have.
    #[error("a rail of {lanes} lanes; allowed: 1 to {most}")]
    LaneCount {
        /// The number asked for.
        lanes: usize,
        /// The maximum.
        most: usize,
    },
    /// A socket was attached to a lane that the rail does not have.
    #[error("a socket for lane {lane} of a rail with {lanes} lanes, counted from 0")]
    NoSuchLane {
        /// The lane.
        lane: LaneId,
        /// The number of lanes of the rail.
        lanes: usize,
    },
    /// A socket was attached to a lane that has an open one already.
    #[error("a second socket for lane {0}, whose first is open")]
    SecondSocket(LaneId),
    /// A socket could not be configured.
    #[error(
        "the socket of lane {lane} could not be set up: {step}: {}; if the peer has closed it, see the peer's log",
        os(*errno)
    )]
    Socket {
        /// The lane.
        lane: LaneId,
        /// The call or option that failed.
        step: &'static str,
        /// The kernel's error number.
        errno: i32,
    },
    /// The rail was requested before this lane had its socket.
    #[error("lane {0} has no socket yet; attach one per lane first")]
    NoSocket(LaneId),
    /// The rail was requested before every lane was connected.
    #[error("{port}: a lane is not connected")]
    NotConnected {
        /// This end's port.
        port: String,
    },
    /// The ports of the two ends have different link layers.
    #[error(
        "{port} is {}, the peer's port {}; name ports of one kind in {}",
        ours.name(), theirs.name(), SettingId::Rails
    )]
    LinkLayers {
        /// This end's port.
        port: String,
        /// Its link layer.
        ours: LinkLayer,
        /// The link layer of the peer's port.
        theirs: LinkLayer,
    },
    /// The peer's end point is invalid.
    #[error("the peer's lane has {what} {value:#x}; allowed: {allowed}; it breaks the protocol")]
    WrongEndpoint {
        /// The field, with its article.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The peer's end of the rail cannot be reached, with the reason as a sentence.
    #[error("{0}")]
    Unreachable(String),
    /// The port is not active at the moment.
    #[error("{port}: the port is {state} now; check its cable and switch port (ibstat or rdma link)")]
    PortDown {
        /// The port.
        port: String,
        /// Its state.
        state: &'static str,
    },
    /// The kernel gave no random number for a lane's first packet.
    #[error("{port}: the kernel gave no random packet number: {why}")]
    NoRandom {
        /// The port.
        port: String,
        /// The kernel's error.
        why: String,
    },
    /// The kernel or the library refused a resource of the rail.
    #[error("{port}: {what}: {error}; {}", what.advice())]
    Refused {
        /// The port.
        port: String,
        /// The step that was refused.
        what: SetupStep,
        /// The error of the kernel or the library.
        error: SystemError,
    },
    /// A queue pair could not be connected to the peer's.
    #[error(transparent)]
    Transition(Box<Transition>),
    /// A queue pair is not connected to the peer's yet, because another one looks for the peer's port.
    #[error(
        "queue pair {number:#x} of {port} (GID {gid}) waits for another of that port, for which the kernel has not \
         found the peer's GID {peer_gid} (queue pair {peer:#x}); {}",
        unreachable()
    )]
    Waiting {
        /// The queue pair's number.
        number: u32,
        /// This end's port.
        port: String,
        /// Its GID.
        gid: String,
        /// Number of the peer's queue pair.
        peer: u32,
        /// Its GID.
        peer_gid: String,
    },
    /// The rail's own memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

impl SetupError {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::SendQueue { .. } | Self::ReceivePool { .. } | Self::LaneCount { .. } | Self::LinkLayers { .. } => {
                Fault::Configuration
            }
            Self::NoSuchLane { .. }
            | Self::SecondSocket(_)
            | Self::NoSocket(_)
            | Self::NotConnected { .. }
            | Self::WrongEndpoint { .. } => Fault::Protocol,
            // The peer has closed it already.
            Self::Socket { errno: libc::ENOTCONN, .. } | Self::Unreachable(_) => Fault::Peer,
            Self::Socket { .. }
            | Self::PortDown { .. }
            | Self::NoRandom { .. }
            | Self::Refused { .. }
            | Self::Transition(_)
            | Self::Waiting { .. } => Fault::Local,
            Self::Register(error) => error.fault(),
        }
    }
}

/// An error of the kernel or a library: an error number, or words if it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemError {
    /// The error number.
    pub errno: Option<i32>,
    words: String,
}

impl From<&io::Error> for SystemError {
    fn from(error: &io::Error) -> Self {
        Self { errno: error.raw_os_error(), words: error.to_string() }
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}

/// A step of a rail's set-up on one port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupStep {
    /// A protection domain.
    #[error("no protection domain can be allocated")]
    ProtectionDomain,
    /// A query of the port.
    #[error("the port cannot be queried")]
    PortQuery,
    /// A completion queue.
    #[error("a completion queue of {entries} entries cannot be created")]
    CompletionQueue {
        /// Length of the queue.
        entries: u32,
    },
    /// A lane's queue pair.
    #[error("a queue pair for {sends} sends and {receives} receives cannot be created")]
    QueuePair {
        /// Length of its send queue.
        sends: u32,
        /// Length of its receive queue.
        receives: u32,
    },
    /// The queue pair for flushes.
    #[error("a queue pair for flushes cannot be created")]
    FlushQueuePair,
    /// A queue pair's change to INIT.
    #[error(
        "QP transition failed: queue pair {number:#x} to INIT (partition-key index {partition_key}, port {port}, \
         access {access:#x}){tries}"
    )]
    Init {
        /// The queue pair's number.
        number: u32,
        /// Index into the port's partition-key table.
        partition_key: u16,
        /// The port's number on its device.
        port: u8,
        /// Rights of the peer.
        access: i32,
        /// The number of attempts.
        tries: Tries,
    },
    /// Setting the peer's enhanced connection establishment on a queue pair.
    #[error(
        "the ECE of the peer's queue pair {peer:#x} (GID {peer_gid}; vendor {vendor:#x}, options {options:#x}) cannot \
         be set on {number:#x}"
    )]
    Ece {
        /// The peer's queue pair.
        peer: u32,
        /// The peer's GID.
        peer_gid: String,
        /// Vendor of its adapter.
        vendor: u32,
        /// The peer's ECE options.
        options: u32,
        /// This end's queue pair.
        number: u32,
    },
}

impl SetupStep {
    fn advice(&self) -> String {
        match self {
            Self::ProtectionDomain => "look at the kernel log".to_owned(),
            Self::PortQuery => "is the adapter still there?".to_owned(),
            Self::CompletionQueue { .. } => {
                let lanes = SettingId::Lanes;
                format!("fewer lanes ({lanes}) need smaller queues; look at the device's max_cqe (ibv_devinfo -v)")
            }
            Self::QueuePair { .. } => {
                "look at the device's max_qp and max_qp_wr (ibv_devinfo -v), and raise ulimit -l".to_owned()
            }
            Self::FlushQueuePair => "look at the device's max_qp (ibv_devinfo -v)".to_owned(),
            Self::Init { .. } => format!("check {} against the port's partition keys", SettingId::PartitionKey.nccls()),
            Self::Ece { .. } => {
                format!("give both adapters the same firmware, or set {}=0 on both hosts", SettingId::Ece.nccls())
            }
        }
    }
}

/// The number of attempts at a change of state. Displayed as a clause if it is more than one, otherwise as nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tries(pub u32);

impl fmt::Display for Tries {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 1 { write!(out, ", tried {} times", self.0) } else { Ok(()) }
    }
}

/// A queue pair's change to RTR or RTS that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The queue pair's number.
    pub number: u32,
    /// This end's port.
    pub port: String,
    /// Its GID.
    pub gid: String,
    /// The target state.
    pub to: TargetState,
    /// Number of the peer's queue pair.
    pub peer: u32,
    /// Its GID.
    pub peer_gid: String,
    /// The number of attempts.
    pub tries: Tries,
    /// The kernel's error.
    pub error: SystemError,
}

/// The state that a queue pair had to reach, with the attributes that matter for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// RTR.
    ReadyToReceive {
        /// Path MTU in bytes.
        mtu: u32,
        /// Index of this end's GID in its port's table.
        gid_index: u32,
        /// The peer's local identifier; 0 on RoCE.
        lid: u16,
    },
    /// RTS.
    ReadyToSend {
        /// Local ACK timeout: 4.096 µs × 2^n.
        timeout: u8,
        /// Retransmissions of a packet before the lane fails.
        retries: u8,
    },
}

impl Transition {
    /// Returns true if the kernel says that the peer's address cannot be reached from this port.
    pub fn is_unreachable(&self) -> bool {
        let unreachable = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENODEV];
        self.error.errno.is_some_and(|errno| unreachable.contains(&errno))
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, port, gid, to, peer, peer_gid, tries, error } = self;
        let (state, attributes) = match to {
            TargetState::ReadyToReceive { mtu, gid_index, lid } => {
                ("RTR", format!("path MTU {mtu}, GID index {gid_index}, LID {lid:#x}"))
            }
            TargetState::ReadyToSend { timeout, retries } => {
                ("RTS", format!("timeout {timeout}, retry count {retries}"))
            }
        };
        write!(
            out,
            "QP transition failed: queue pair {number:#x} of {port} (GID {gid}) to {state} for the peer's {peer:#x} \
             (GID {peer_gid}), {attributes}{tries}: {error}; "
        )?;
        if self.is_unreachable() {
            out.write_str(&unreachable())
        } else {
            let index = SettingId::GidIndex.nccls();
            write!(out, "check the GID index ({index}, show_gids) and that both ports are on one network")
        }
    }
}

/// Returns the advice about a peer whose address the kernel does not find.
fn unreachable() -> String {
    format!(
        "the peer's address cannot be reached from this port: check its subnet, cable and switch, and the GID index \
         ({}, show_gids)",
        SettingId::GidIndex.nccls()
    )
}

impl std::error::Error for Transition {}

#[cfg(test)]
mod tests {
    use super::*;

    fn a() -> String {
        "a".to_owned()
    }

    fn says(errno: i32) -> SystemError {
        (&os(errno)).into()
    }

    #[test]
    fn every_cause_has_its_sentence_and_its_fault() {
        let cases = [
            (SetupError::SendQueue { depth: 0, most: 9 }, Fault::Configuration, "a send queue of 0; allowed: 1 to 9"),
            (
                SetupError::ReceivePool { count: 10, most: 9 },
                Fault::Configuration,
                "a pool of 10 receives; allowed: 0 to 9",
            ),
            (
                SetupError::LaneCount { lanes: 17, most: 16 },
                Fault::Configuration,
                "a rail of 17 lanes; allowed: 1 to 16",
            ),
            (
                SetupError::NoSuchLane { lane: LaneId(2), lanes: 2 },
                Fault::Protocol,
                "a socket for lane 2 of a rail with 2 lanes, counted from 0",
            ),
            (SetupError::SecondSocket(LaneId(0)), Fault::Protocol, "a second socket for lane 0, whose first is open"),
            (
                SetupError::Socket { lane: LaneId(1), step: "getpeername", errno: libc::ENOTCONN },
                Fault::Peer,
                "the socket of lane 1 could not be set up: getpeername: Transport endpoint is not connected (os error \
                 107); if the peer has closed it, see the peer's log",
            ),
            (
                SetupError::Socket { lane: LaneId(1), step: "TCP_NODELAY", errno: libc::EINVAL },
                Fault::Local,
                "the socket of lane 1 could not be set up: TCP_NODELAY: Invalid argument (os error 22); if the peer \
                 has closed it, see the peer's log",
            ),
            (SetupError::NoSocket(LaneId(0)), Fault::Protocol, "lane 0 has no socket yet; attach one per lane first"),
            (SetupError::NotConnected { port: a() }, Fault::Protocol, "a: a lane is not connected"),
            (
                SetupError::LinkLayers { port: a(), ours: LinkLayer::InfiniBand, theirs: LinkLayer::Roce },
                Fault::Configuration,
                "a is InfiniBand, the peer's port RoCE; name ports of one kind in rails",
            ),
            (
                SetupError::WrongEndpoint { what: "the MTU code", value: 6, allowed: "1 to 5" },
                Fault::Protocol,
                "the peer's lane has the MTU code 0x6; allowed: 1 to 5; it breaks the protocol",
            ),
            (SetupError::Unreachable("it is gone".to_owned()), Fault::Peer, "it is gone"),
            (
                SetupError::PortDown { port: a(), state: "down" },
                Fault::Local,
                "a: the port is down now; check its cable and switch port (ibstat or rdma link)",
            ),
            (
                SetupError::NoRandom { port: a(), why: "none".to_owned() },
                Fault::Local,
                "a: the kernel gave no random packet number: none",
            ),
            (
                SetupError::Register(RegisterError::Range { address: 1, length: 2 }),
                Fault::Protocol,
                "the range of 2 bytes at 0x1 is not a valid memory range",
            ),
        ];
        for (error, fault, sentence) in cases {
            assert_eq!((error.fault(), error.to_string().as_str()), (fault, sentence));
        }
    }

    #[test]
    fn every_step_that_is_refused_is_told_with_what_to_look_at() {
        let (number, peer_gid) = (0x12, "10.0.0.2".to_owned());
        let init = SetupStep::Init { number, partition_key: 3, port: 1, access: 2, tries: Tries(1) };
        let cases = [
            (SetupStep::ProtectionDomain, "no protection domain can be allocated", "look at the kernel log"),
            (SetupStep::PortQuery, "the port cannot be queried", "is the adapter still there?"),
            (
                SetupStep::CompletionQueue { entries: 192 },
                "a completion queue of 192 entries cannot be created",
                "fewer lanes (lanes) need smaller queues; look at the device's max_cqe (ibv_devinfo -v)",
            ),
            (
                SetupStep::QueuePair { sends: 64, receives: 0 },
                "a queue pair for 64 sends and 0 receives cannot be created",
                "look at the device's max_qp and max_qp_wr (ibv_devinfo -v), and raise ulimit -l",
            ),
            (
                SetupStep::FlushQueuePair,
                "a queue pair for flushes cannot be created",
                "look at the device's max_qp (ibv_devinfo -v)",
            ),
            (
                init,
                "QP transition failed: queue pair 0x12 to INIT (partition-key index 3, port 1, access 0x2)",
                "check pkey_index against the port's partition keys",
            ),
            (
                SetupStep::Ece { peer: 0x34, peer_gid, vendor: 0x15b3, options: 7, number },
                "the ECE of the peer's queue pair 0x34 (GID 10.0.0.2; vendor 0x15b3, options 0x7) cannot be set on \
                 0x12",
                "give both adapters the same firmware, or set ece=0 on both hosts",
            ),
        ];
        for (what, sentence, advice) in cases {
            let error = SetupError::Refused { port: a(), what, error: says(libc::EINVAL) };
            let expected = format!("a: {sentence}: Invalid argument (os error 22); {advice}");
            assert_eq!((error.fault(), error.to_string()), (Fault::Local, expected));
        }
    }

    #[test]
    fn a_change_of_state_is_told_with_both_ends_its_attributes_and_what_to_look_at() {
        let transition = |to, tries, errno| {
            let (gid, peer_gid) = ("10.0.0.1".to_owned(), "10.0.0.2".to_owned());
            let error = says(errno);
            Transition { number: 0x12, port: a(), gid, to, peer: 0x34, peer_gid, tries: Tries(tries), error }
                .to_string()
        };
        assert_eq!(
            transition(TargetState::ReadyToReceive { mtu: 4096, gid_index: 1, lid: 7 }, 3, libc::ETIMEDOUT),
            "QP transition failed: queue pair 0x12 of a (GID 10.0.0.1) to RTR for the peer's 0x34 (GID 10.0.0.2), path \
             MTU 4096, GID index 1, LID 0x7, tried 3 times: Connection timed out (os error 110); the peer's address \
             cannot be reached from this port: check its subnet, cable and switch, and the GID index (gid_index, \
             show_gids)"
        );
        assert_eq!(
            transition(TargetState::ReadyToSend { timeout: 20, retries: 7 }, 1, libc::EINVAL),
            "QP transition failed: queue pair 0x12 of a (GID 10.0.0.1) to RTS for the peer's 0x34 (GID 10.0.0.2), \
             timeout 20, retry count 7: Invalid argument (os error 22); check the GID index (gid_index, show_gids) and \
             that both ports are on one network"
        );
    }

    #[test]
    fn a_queue_pair_that_waits_for_another_is_not_said_to_have_tried() {
        let (gid, peer_gid) = ("10.0.0.1".to_owned(), "10.0.0.2".to_owned());
        let waiting = SetupError::Waiting { number: 0x12, port: a(), gid, peer: 0x34, peer_gid };
        assert_eq!(
            (waiting.fault(), waiting.to_string().as_str()),
            (
                Fault::Local,
                "queue pair 0x12 of a (GID 10.0.0.1) waits for another of that port, for which the kernel has not \
                 found the peer's GID 10.0.0.2 (queue pair 0x34); the peer's address cannot be reached from this port: \
                 check its subnet, cable and switch, and the GID index (gid_index, show_gids)"
            )
        );
    }
}
