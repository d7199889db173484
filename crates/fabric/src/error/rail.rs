//! The reasons why lanes die. The code decides by these variants; users read their sentences.

use std::fmt;
use std::time::Duration;

use super::os;
use crate::{Fault, SettingId};

/// The reason why a lane of a rail died. Reported once, as a completion; callers that know the rail and the peer add
/// them to the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RailError {
    /// An adapter could not carry out a piece of work.
    #[error(transparent)]
    Work(WorkFailure),
    /// The adapter accepts no work although its queue has room.
    #[error(
        "{port}: the adapter accepts no work on queue pair {number:#x} ({}); look at the kernel log of this host",
        os(*errno)
    )]
    TakesNoWork {
        /// This end's port.
        port: String,
        /// The queue pair's number.
        number: u32,
        /// The library's error number.
        errno: i32,
    },
    /// The completion queue can no longer be polled.
    #[error(
        "{port}: the completion queue cannot be polled (code {code}); the adapter is gone or was reset, look at the \
         kernel log of this host"
    )]
    QueueGone {
        /// This end's port.
        port: String,
        /// The library's return value.
        code: i32,
    },
    /// The peer sent a message; only writes are allowed.
    #[error(
        "{port}: the peer sent a message of opcode {opcode:#x} ({bytes} bytes) where only writes with immediates are \
         allowed; it breaks the protocol"
    )]
    NotAWrite {
        /// This end's port.
        port: String,
        /// The completion's opcode.
        opcode: i32,
        /// The message's length.
        bytes: u32,
    },
    /// A system call on the lane's socket failed.
    #[error("{doing} failed: {}; {}", os(*errno), SocketTrouble::of(*errno).advice())]
    Socket {
        /// The activity that failed, as a noun: `sending`.
        doing: &'static str,
        /// The kernel's error number.
        errno: i32,
    },
    /// The peer's host has acknowledged nothing for this long although bytes were in flight to it.
    #[error("the peer's host has not acknowledged a byte for {:.1} s; check it and the path to it", .0.as_secs_f64())]
    Silence(Duration),
    /// The peer has closed its end.
    #[error("the peer closed the connection{0}; look at the peer's log for the reason")]
    PeerClosed(ClosedAt),
    /// The peer sent an immediate for which no receive was posted.
    #[error(
        "no receive posted for immediate {immediate:#010x} ({bytes} bytes); the peer sends more than it was cleared to"
    )]
    NoReceive {
        /// The immediate.
        immediate: u32,
        /// The length of its write.
        bytes: u32,
    },
    /// The peer wrote to memory that it may not write.
    #[error(
        "a write of {bytes} bytes to {address:#x} was refused: {why}; was the memory deregistered while the peer was \
         still cleared to write to it?"
    )]
    WriteRefused {
        /// The write's length.
        bytes: u32,
        /// Address of its first byte.
        address: u64,
        /// The reason, from the check of its key.
        why: String,
    },
    /// The memory that a write was posted from is no longer registered.
    #[error(
        "memory was deregistered before data posted from it had been sent: {why}; deregister only after the send \
         has completed"
    )]
    SourceGone {
        /// The reason, from the check of the write's key.
        why: String,
    },
    /// The peer's bytes are not a valid frame.
    #[error("the peer sent an invalid frame: {why}; check that both ends run the same version")]
    NoFrame {
        /// The error in the bytes.
        why: String,
    },
    /// The peer acknowledges an impossible number of writes.
    #[error(
        "the peer acknowledges {count} writes, but it had acknowledged {before} of the {sent} that were sent to it; \
         check that both ends run the same version"
    )]
    WrongAcknowledgement {
        /// Writes that it claims to have placed.
        count: u64,
        /// Writes that it had acknowledged before.
        before: u64,
        /// Writes that were sent to it.
        sent: u64,
    },
}

impl RailError {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Work(failure) => failure.status.fault(),
            Self::TakesNoWork { .. } | Self::QueueGone { .. } => Fault::Local,
            Self::Socket { errno, .. } => SocketTrouble::of(*errno).fault(),
            Self::Silence(_) | Self::PeerClosed(_) => Fault::Peer,
            Self::NotAWrite { .. }
            | Self::NoReceive { .. }
            | Self::WriteRefused { .. }
            | Self::SourceGone { .. }
            | Self::NoFrame { .. }
            | Self::WrongAcknowledgement { .. } => Fault::Protocol,
        }
    }

    /// Returns true if the work itself may be the reason, as when the peer or this host refuses it, or its adapter
    /// cannot carry it out: repeated over another rail it may fail again. The failures of paths and whole adapters are
    /// of another kind.
    pub fn may_be_of_work(&self) -> bool {
        use WorkStatus::{Fatal, Flushed, ReceiverNotReady, ResponseTimeout, RetriesExceeded};
        let of_path = [Fatal, Flushed, ReceiverNotReady, ResponseTimeout, RetriesExceeded];
        matches!(self, Self::Work(failure) if !of_path.contains(&failure.status))
    }

    /// Returns true if the peer refused the memory that the work names, as after it was deregistered there.
    pub fn is_refused_there(&self) -> bool {
        let statuses = [WorkStatus::RemoteAccess, WorkStatus::RemoteInvalidRequest];
        matches!(self, Self::Work(failure) if statuses.contains(&failure.status))
    }

    /// Returns true if the peer did not answer: packets may not come through.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Silence(_))
            || matches!(self, Self::Work(failure) if failure.status == WorkStatus::RetriesExceeded)
    }
}

/// The place in the stream at which the peer closed its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedAt {
    /// Between two frames, with this many writes of this end unacknowledged.
    Rest(u64),
    /// Inside a write.
    Write {
        /// Bytes that had arrived.
        done: u32,
        /// Length of the write in bytes.
        length: u32,
    },
    /// After this many bytes of a header.
    Header(usize),
}

/// Writes a clause that follows "the peer closed the connection".
impl fmt::Display for ClosedAt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rest(0) => Ok(()),
            Self::Rest(count) => write!(out, " with {count} writes unacknowledged"),
            Self::Write { done, length } => write!(out, " {done} of {length} bytes into a write"),
            Self::Header(done) => write!(out, " {done} bytes into a header"),
        }
    }
}

/// The meaning of the kernel's error on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketTrouble {
    /// The peer's process has closed the socket, or is gone.
    PeerGone,
    /// The peer's host does not answer.
    Silent,
    /// There is no path to the peer's host.
    Unreachable,
    /// Registered memory is no longer mapped.
    Unmapped,
    /// Anything else: a failure of this host.
    Other,
}

impl SocketTrouble {
    /// Returns the meaning of an error number.
    pub fn of(errno: i32) -> Self {
        match errno {
            libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED => Self::PeerGone,
            libc::ETIMEDOUT => Self::Silent,
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN => Self::Unreachable,
            libc::EFAULT => Self::Unmapped,
            _ => Self::Other,
        }
    }

    /// Returns the party at fault.
    pub fn fault(self) -> Fault {
        match self {
            Self::PeerGone | Self::Silent | Self::Unreachable => Fault::Peer,
            Self::Unmapped => Fault::Protocol,
            Self::Other => Fault::Local,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::PeerGone => "the peer's process has given this rail up, or has ended; look at its log",
            Self::Silent => "the peer's host does not answer; check it and the path to it",
            Self::Unreachable => "there is no longer a path to the peer; check cables, switches and routes",
            Self::Unmapped => "registered memory was unmapped; deregister memory before it is freed",
            Self::Other => "see this host's kernel log",
        }
    }
}

/// A piece of work that an adapter completed with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkFailure {
    /// The adapter's status.
    pub status: WorkStatus,
    /// The status as the library's number.
    pub code: i32,
    /// The vendor's code for the reason.
    pub vendor: u32,
    /// Number of this end's queue pair.
    pub number: u32,
    /// Number of the peer's queue pair.
    pub peer: u32,
    /// Description of the port and both ends.
    pub path: String,
}

impl fmt::Display for WorkFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, code, vendor, number, peer, path } = self;
        write!(
            out,
            "WC error status={code} ({}), vendor code {vendor:#x}, on queue pair {number:#x} to {peer:#x}, {path}: ",
            status.name()
        )?;
        match status {
            WorkStatus::RetriesExceeded => write!(
                out,
                "the peer does not answer: its process or host is gone, a cable or switch port is down, or packets are \
                 lost; check connectivity between these two GIDs (ping with the same MTU, firewall for UDP 4791, PFC \
                 or ECN on the switch), the GID index, and raise {} if the network is only slow",
                SettingId::AckTimeout.nccls()
            ),
            other => out.write_str(other.advice()),
        }
    }
}

impl std::error::Error for WorkFailure {}

/// The completion status of a piece of work that failed (IBTA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStatus {
    /// The length is more than the queue pair carries.
    LocalLength,
    /// The work request was inconsistent, or the port could not carry it out.
    LocalOperation,
    /// The source is not registered.
    LocalProtection,
    /// The lane had already failed.
    Flushed,
    /// The peer's adapter sent an invalid response.
    BadResponse,
    /// The destination of the peer's work is not registered here.
    LocalAccess,
    /// The peer's adapter refused the request.
    RemoteInvalidRequest,
    /// The destination is not registered there.
    RemoteAccess,
    /// The peer's adapter failed.
    RemoteOperation,
    /// The peer did not answer any attempt.
    RetriesExceeded,
    /// The peer posted no receive in time.
    ReceiverNotReady,
    /// The peer's adapter aborted the work.
    RemoteAborted,
    /// The adapter failed.
    Fatal,
    /// The peer did not answer in time.
    ResponseTimeout,
    /// An error without a kind.
    General,
    /// A status unknown to this version.
    Unknown,
}

impl WorkStatus {
    /// Every status.
    pub const ALL: [Self; 16] = [
        Self::LocalLength,
        Self::LocalOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetriesExceeded,
        Self::ReceiverNotReady,
        Self::RemoteAborted,
        Self::Fatal,
        Self::ResponseTimeout,
        Self::General,
        Self::Unknown,
    ];

    /// Returns the party at fault.
    pub fn fault(self) -> Fault {
        match self {
            Self::LocalLength
            | Self::LocalOperation
            | Self::LocalProtection
            | Self::LocalAccess
            | Self::Fatal
            | Self::General
            | Self::Unknown => Fault::Local,
            Self::Flushed
            | Self::BadResponse
            | Self::RemoteInvalidRequest
            | Self::RemoteAccess
            | Self::RemoteOperation
            | Self::RetriesExceeded
            | Self::ReceiverNotReady
            | Self::RemoteAborted
            | Self::ResponseTimeout => Fault::Peer,
        }
    }

    /// Returns its name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local queue-pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "work request flushed",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetriesExceeded => "transport retry counter exceeded",
            Self::ReceiverNotReady => "receiver-not-ready retry counter exceeded",
            Self::RemoteAborted => "remote aborted",
            Self::Fatal => "fatal error",
            Self::ResponseTimeout => "response timeout",
            Self::General => "general error",
            Self::Unknown => "a status that this version does not know",
        }
    }

    /// Returns the usual causes. Those of [`Self::RetriesExceeded`] name a setting, so `WorkFailure` writes them.
    fn advice(self) -> &'static str {
        match self {
            Self::LocalLength | Self::LocalAccess => "this is a bug of Railweave; please report it with this line",
            Self::LocalOperation => {
                "the adapter could not carry the work out: its port may be down or its address gone (soft-RoCE \
                 reports this), or its driver failed; look at the port's state (rdma link, ibstat) and the kernel log \
                 of this host"
            }
            Self::LocalProtection => {
                "the memory is not registered, or was deregistered while it was sent; look for a deregMr or a free \
                 during a transfer"
            }
            Self::Flushed => {
                "the lane broke before this work was done; look at the peer's log and at the port's events"
            }
            Self::BadResponse => "the peer's adapter sent a response that makes no sense; check firmware and path MTU",
            Self::RemoteInvalidRequest => {
                "the peer's adapter refused the request; check that both hosts run the same version of Railweave, and \
                 firmware"
            }
            Self::RemoteAccess => {
                "the peer's memory is not (or no longer) registered for this; look for a deregMr or a free there \
                 during a transfer"
            }
            Self::RemoteOperation => "the peer's adapter failed; look at its kernel log",
            Self::ReceiverNotReady => {
                "the peer posted no receive in time; this is a bug of Railweave, please report it with this line"
            }
            Self::RemoteAborted => "the peer's adapter aborted the work; look at its log",
            Self::Fatal => "the adapter failed; look at the kernel log of this host",
            Self::RetriesExceeded | Self::ResponseTimeout => {
                "the peer does not answer; check connectivity between these two GIDs"
            }
            Self::General | Self::Unknown => "look at the kernel log of this host",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(status: WorkStatus) -> RailError {
        let path = "mlx5_0:1, GID 10.0.0.1 to 10.0.0.2".to_owned();
        RailError::Work(WorkFailure { status, code: 12, vendor: 0x81, number: 0x12, peer: 0x34, path })
    }

    #[test]
    fn a_failed_piece_of_work_is_told_with_its_lane_and_what_to_look_at() {
        let retries = work(WorkStatus::RetriesExceeded);
        assert_eq!(retries.fault(), Fault::Peer);
        assert_eq!(
            retries.to_string(),
            "WC error status=12 (transport retry counter exceeded), vendor code 0x81, on queue pair 0x12 to 0x34, \
             mlx5_0:1, GID 10.0.0.1 to 10.0.0.2: the peer does not answer: its process or host is gone, a cable or \
             switch port is down, or packets are lost; check connectivity between these two GIDs (ping with the same \
             MTU, firewall for UDP 4791, PFC or ECN on the switch), the GID index, and raise ack_timeout if the \
             network is only slow"
        );
        let of_path = WorkStatus::ALL.into_iter().filter(|status| !work(*status).may_be_of_work());
        let names: Vec<_> = of_path.map(WorkStatus::name).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        for status in WorkStatus::ALL {
            let text = work(status).to_string();
            assert!(text.contains(&format!("({}), ", status.name())) && status.advice().len() > 10, "{text}");
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn every_cause_has_its_sentence_and_its_fault() {
        let port = || "a".to_owned();
        let why = || "key 0x7 is not registered".to_owned();
        let socket = |errno| RailError::Socket { doing: "sending", errno };
        let cases = [
            (
                RailError::TakesNoWork { port: port(), number: 0x12, errno: libc::EIO },
                Fault::Local,
                "a: the adapter accepts no work on queue pair 0x12 (Input/output error (os error 5)); look at the \
                 kernel log of this host",
            ),
            (
                RailError::QueueGone { port: port(), code: -5 },
                Fault::Local,
                "a: the completion queue cannot be polled (code -5); the adapter is gone or was reset, look at the \
                 kernel log of this host",
            ),
            (
                RailError::NotAWrite { port: port(), opcode: 0x80, bytes: 9 },
                Fault::Protocol,
                "a: the peer sent a message of opcode 0x80 (9 bytes) where only writes with immediates are allowed; it \
                 breaks the protocol",
            ),
            (
                socket(libc::ECONNRESET),
                Fault::Peer,
                "sending failed: Connection reset by peer (os error 104); the peer's process has given this rail up, \
                 or has ended; look at its log",
            ),
            (
                socket(libc::ETIMEDOUT),
                Fault::Peer,
                "sending failed: Connection timed out (os error 110); the peer's host does not answer; check it and \
                 the path to it",
            ),
            (
                socket(libc::EHOSTUNREACH),
                Fault::Peer,
                "sending failed: No route to host (os error 113); there is no longer a path to the peer; check cables, \
                 switches and routes",
            ),
            (
                socket(libc::EFAULT),
                Fault::Protocol,
                "sending failed: Bad address (os error 14); registered memory was unmapped; deregister memory before \
                 it is freed",
            ),
            (
                socket(libc::EIO),
                Fault::Local,
                "sending failed: Input/output error (os error 5); see this host's kernel log",
            ),
            (
                RailError::Silence(Duration::from_millis(60_040)),
                Fault::Peer,
                "the peer's host has not acknowledged a byte for 60.0 s; check it and the path to it",
            ),
            (
                RailError::PeerClosed(ClosedAt::Rest(0)),
                Fault::Peer,
                "the peer closed the connection; look at the peer's log for the reason",
            ),
            (
                RailError::PeerClosed(ClosedAt::Rest(3)),
                Fault::Peer,
                "the peer closed the connection with 3 writes unacknowledged; look at the peer's log for the reason",
            ),
            (
                RailError::PeerClosed(ClosedAt::Write { done: 5, length: 9 }),
                Fault::Peer,
                "the peer closed the connection 5 of 9 bytes into a write; look at the peer's log for the reason",
            ),
            (
                RailError::PeerClosed(ClosedAt::Header(7)),
                Fault::Peer,
                "the peer closed the connection 7 bytes into a header; look at the peer's log for the reason",
            ),
            (
                RailError::NoReceive { immediate: 4, bytes: 8 },
                Fault::Protocol,
                "no receive posted for immediate 0x00000004 (8 bytes); the peer sends more than it was cleared to",
            ),
            (
                RailError::WriteRefused { bytes: 8, address: 0x1000, why: why() },
                Fault::Protocol,
                "a write of 8 bytes to 0x1000 was refused: key 0x7 is not registered; was the memory deregistered \
                 while the peer was still cleared to write to it?",
            ),
            (
                RailError::SourceGone { why: why() },
                Fault::Protocol,
                "memory was deregistered before data posted from it had been sent: key 0x7 is not registered; \
                 deregister only after the send has completed",
            ),
            (
                RailError::NoFrame { why: "a frame of kind 9".to_owned() },
                Fault::Protocol,
                "the peer sent an invalid frame: a frame of kind 9; check that both ends run the same version",
            ),
            (
                RailError::WrongAcknowledgement { count: 1, before: 2, sent: 3 },
                Fault::Protocol,
                "the peer acknowledges 1 writes, but it had acknowledged 2 of the 3 that were sent to it; check \
                 that both ends run the same version",
            ),
        ];
        for (error, fault, sentence) in cases {
            assert_eq!((error.fault(), error.to_string().as_str()), (fault, sentence));
        }
    }
}
