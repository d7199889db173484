//! The records of threads: that which happens for each message and each event of NCCL's profiler. They have one size,
//! so that a thread can note them without memory of its own.

/// The bytes of a record.
pub const RECORD_BYTES: usize = 32;

/// A record as its thread notes it: four words.
pub type Words = [u64; 4];

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time.
    pub at_ns: u64,
    /// The thing that happened then.
    pub what: What,
}

/// The content of a record. A request is a number that its connection uses once; an event is a number of NCCL's
/// profiler that its process uses once, and 0 stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A send was accepted: a message of this many bytes.
    SendBegin {
        /// The connection.
        connection: u32,
        /// Its request.
        request: u64,
        /// Bytes of the message.
        bytes: u64,
    },
    /// The send whose begin is the next record had waited for its CTS.
    CtsWait {
        /// The connection.
        connection: u32,
        /// The request.
        request: u64,
        /// The time for which it had waited, in nanoseconds.
        for_ns: u64,
    },
    /// A receive was posted.
    ReceiveBegin {
        /// The connection.
        connection: u32,
        /// Its request.
        request: u64,
        /// Room for this many bytes, in all its buffers.
        bytes: u64,
        /// The number of its buffers, 1 to 8.
        buffers: u8,
    },
    /// A rail carries a part of a request: from the post at the sending end, from the first sign of the message at the
    /// receiving one.
    PieceBegin {
        /// The connection.
        connection: u32,
        /// The rail.
        rail: u8,
        /// The request.
        request: u64,
        /// Bytes of the part; 0 at the receiving end, which only knows the sum.
        bytes: u64,
    },
    /// A part of a request is over: its last write is complete, or it has come.
    PieceEnd {
        /// The connection.
        connection: u32,
        /// The rail.
        rail: u8,
        /// The request.
        request: u64,
    },
    /// The application was told that a request is done.
    RequestEnd {
        /// The connection.
        connection: u32,
        /// The request.
        request: u64,
        /// Bytes of the message, or of all messages that came.
        bytes: u64,
    },
    /// A flush was posted, of data that has come.
    FlushBegin {
        /// The connection.
        connection: u32,
        /// Its request.
        request: u64,
    },
    /// A request belongs to an event of NCCL's profiler: a proxy step.
    Belongs {
        /// The connection.
        connection: u32,
        /// The request.
        request: u64,
        /// The event.
        event: u64,
    },
    /// An event of NCCL's profiler begins. The facts about it, if there are any, are the next record of the thread.
    EventBegin {
        /// The event.
        event: u64,
        /// The event that it is a part of; 0 for none.
        parent: u64,
        /// Its kind.
        kind: Kind,
        /// Its communicator; for a proxy step, the number of the step instead.
        number: u32,
    },
    /// The facts about a collective, or about the call of one.
    Coll(Coll),
    /// The facts about a send or receive between two ranks, or about the call of one.
    P2p(P2p),
    /// The facts about a proxy operation.
    Op(Op),
    /// An event ends.
    EventEnd {
        /// The event.
        event: u64,
    },
    /// An event enters another state.
    State {
        /// The event.
        event: u64,
        /// NCCL's number of the state (`ncclProfilerEventState_t`).
        state: u16,
        /// Bytes that the step transfers; 0 if unknown.
        bytes: u64,
    },
}

/// The facts about a collective. Texts are numbers of [`Name`](crate::Name)s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coll {
    /// The collective, such as AllReduce.
    pub function: u16,
    /// The type of its elements.
    pub datatype: u16,
    /// The algorithm, such as RING.
    pub algorithm: u16,
    /// The protocol, such as SIMPLE.
    pub protocol: u16,
    /// The number of elements.
    pub count: u64,
    /// Its number among those of the same collective in its communicator, modulo 2^48.
    pub sequence: u64,
}

/// The facts about a send or receive between two ranks. Texts are numbers of [`Name`](crate::Name)s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct P2p {
    /// Send or Recv.
    pub function: u16,
    /// The type of its elements.
    pub datatype: u16,
    /// The other rank; -1 if unknown.
    pub peer: i32,
    /// The number of elements.
    pub count: u64,
}

/// The facts about a proxy operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Op {
    /// True if it sends.
    pub sends: bool,
    /// The channel.
    pub channel: u16,
    /// The other rank.
    pub peer: i32,
    /// The number of steps.
    pub steps: u32,
    /// Bytes of a step.
    pub chunk: u32,
    /// The process whose event its parent is: another one's if that process sends through this one.
    pub pid: u32,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The kind of an event of NCCL's profiler.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            /// Returns the kind with a number: the place of NCCL's bit for it. `None` for one that is not traced.
            #[must_use]
            pub fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// A group of calls, as NCCL launches it.
    Group = 0,
    /// A collective.
    Coll = 1,
    /// A send or receive between two ranks.
    P2p = 2,
    /// A proxy operation: what one channel of a collective sends to, or receives from, one rank.
    ProxyOp = 3,
    /// A step of a proxy operation: one message.
    ProxyStep = 4,
    /// The application's group of calls.
    GroupApi = 8,
    /// The application's call of a collective.
    CollApi = 9,
    /// The application's call of a send or receive.
    P2pApi = 10,
    /// The launch of kernels.
    KernelLaunch = 11,
}

/// The numbers of the kinds of records. They stay the same in all versions of the format.
mod tags {
    pub(super) const SEND_BEGIN: u8 = 1;
    pub(super) const CTS_WAIT: u8 = 2;
    pub(super) const RECEIVE_BEGIN: u8 = 3;
    pub(super) const PIECE_BEGIN: u8 = 4;
    pub(super) const PIECE_END: u8 = 5;
    pub(super) const REQUEST_END: u8 = 6;
    pub(super) const FLUSH_BEGIN: u8 = 7;
    pub(super) const BELONGS: u8 = 8;
    pub(super) const EVENT_BEGIN: u8 = 16;
    pub(super) const COLL: u8 = 17;
    pub(super) const P2P: u8 = 18;
    pub(super) const OP: u8 = 19;
    pub(super) const EVENT_END: u8 = 20;
    pub(super) const STATE: u8 = 21;
}

/// Returns the second word of a record.
#[inline]
fn head(tag: u8, byte: u8, half: u16, number: u32) -> u64 {
    u64::from(tag) | u64::from(byte) << 8 | u64::from(half) << 16 | u64::from(number) << 32
}

impl Record {
    /// Returns the words of the record.
    #[inline]
    #[must_use]
    pub fn words(&self) -> Words {
        let (head, a, b) = self.what.words();
        [self.at_ns, head, a, b]
    }

    /// Reads a record; `None` if it is of a kind that this version does not know.
    #[must_use]
    pub fn of(words: Words) -> Option<Self> {
        let [at_ns, head, a, b] = words;
        Some(Self { at_ns, what: What::of(head, a, b)? })
    }

    /// Returns the record's bytes: the words, little-endian.
    #[must_use]
    pub fn bytes(words: Words) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    /// Returns the words in a record's bytes.
    #[must_use]
    pub fn words_in(bytes: &[u8; RECORD_BYTES]) -> Words {
        let mut words = [0; 4];
        words.iter_mut().zip(bytes.as_chunks::<8>().0).for_each(|(word, place)| *word = u64::from_le_bytes(*place));
        words
    }
}

impl What {
    #[inline]
    fn words(&self) -> (u64, u64, u64) {
        match *self {
            Self::SendBegin { connection, request, bytes } => {
                (head(tags::SEND_BEGIN, 0, 0, connection), request, bytes)
            }
            Self::CtsWait { connection, request, for_ns } => (head(tags::CTS_WAIT, 0, 0, connection), request, for_ns),
            Self::ReceiveBegin { connection, request, bytes, buffers } => {
                (head(tags::RECEIVE_BEGIN, buffers, 0, connection), request, bytes)
            }
            Self::PieceBegin { connection, rail, request, bytes } => {
                (head(tags::PIECE_BEGIN, rail, 0, connection), request, bytes)
            }
            Self::PieceEnd { connection, rail, request } => (head(tags::PIECE_END, rail, 0, connection), request, 0),
            Self::RequestEnd { connection, request, bytes } => {
                (head(tags::REQUEST_END, 0, 0, connection), request, bytes)
            }
            Self::FlushBegin { connection, request } => (head(tags::FLUSH_BEGIN, 0, 0, connection), request, 0),
            Self::Belongs { connection, request, event } => (head(tags::BELONGS, 0, 0, connection), request, event),
            Self::EventBegin { event, parent, kind, number } => {
                (head(tags::EVENT_BEGIN, kind as u8, 0, number), event, parent)
            }
            Self::Coll(Coll { function, datatype, algorithm, protocol, count, sequence }) => (
                head(tags::COLL, 0, function, u32::from(algorithm) | u32::from(protocol) << 16),
                count,
                sequence & SEQUENCE | u64::from(datatype) << 48,
            ),
            Self::P2p(P2p { function, datatype, peer, count }) => {
                (head(tags::P2P, 0, function, peer as u32), count, datatype.into())
            }
            Self::Op(Op { sends, channel, peer, steps, chunk, pid }) => (
                head(tags::OP, sends.into(), channel, peer as u32),
                u64::from(steps) | u64::from(chunk) << 32,
                pid.into(),
            ),
            Self::EventEnd { event } => (head(tags::EVENT_END, 0, 0, 0), event, 0),
            Self::State { event, state, bytes } => (head(tags::STATE, 0, state, 0), event, bytes),
        }
    }

    fn of(head: u64, a: u64, b: u64) -> Option<Self> {
        let (tag, byte, half, number) = (head as u8, (head >> 8) as u8, (head >> 16) as u16, (head >> 32) as u32);
        let (connection, request, bytes, event) = (number, a, b, a);
        Some(match tag {
            tags::SEND_BEGIN => Self::SendBegin { connection, request, bytes },
            tags::CTS_WAIT => Self::CtsWait { connection, request, for_ns: b },
            tags::RECEIVE_BEGIN => Self::ReceiveBegin { connection, request, bytes, buffers: byte },
            tags::PIECE_BEGIN => Self::PieceBegin { connection, rail: byte, request, bytes },
            tags::PIECE_END => Self::PieceEnd { connection, rail: byte, request },
            tags::REQUEST_END => Self::RequestEnd { connection, request, bytes },
            tags::FLUSH_BEGIN => Self::FlushBegin { connection, request },
            tags::BELONGS => Self::Belongs { connection, request, event: b },
            tags::EVENT_BEGIN => Self::EventBegin { event, parent: b, kind: Kind::of(byte.into())?, number },
            tags::COLL => Self::Coll(Coll {
                function: half,
                datatype: (b >> 48) as u16,
                algorithm: number as u16,
                protocol: (number >> 16) as u16,
                count: a,
                sequence: b & SEQUENCE,
            }),
            tags::P2P => Self::P2p(P2p { function: half, datatype: b as u16, peer: number as i32, count: a }),
            tags::OP => Self::Op(Op {
                sends: byte != 0,
                channel: half,
                peer: number as i32,
                steps: a as u32,
                chunk: (a >> 32) as u32,
                pid: b as u32,
            }),
            tags::EVENT_END => Self::EventEnd { event },
            tags::STATE => Self::State { event, state: half, bytes },
            _ => return None,
        })
    }
}

/// The bits of a collective's number that a record has room for.
const SEQUENCE: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind, with all fields apart from each other.
    fn each() -> Vec<What> {
        let (connection, request, event) = (0x8123_4567, 0x1111_2222_3333_4444, 0xfedc_ba98_7654_3210);
        let bytes = 0x0123_4567_89ab_cdef;
        vec![
            What::SendBegin { connection, request, bytes },
            What::CtsWait { connection, request, for_ns: bytes },
            What::ReceiveBegin { connection, request, bytes, buffers: 8 },
            What::PieceBegin { connection, rail: 7, request, bytes },
            What::PieceEnd { connection, rail: 6, request },
            What::RequestEnd { connection, request, bytes },
            What::FlushBegin { connection, request },
            What::Belongs { connection, request, event },
            What::EventBegin { event, parent: request, kind: Kind::KernelLaunch, number: connection },
            What::Coll(Coll { function: 1, datatype: 0xfffe, algorithm: 3, protocol: 4, count: event, sequence: 6 }),
            What::P2p(P2p { function: 0xfff1, datatype: 2, peer: -1, count: event }),
            What::Op(Op {
                sends: true,
                channel: 300,
                peer: -2,
                steps: 0x9000_0001,
                chunk: 0xa000_0002,
                pid: 0xb000_0003,
            }),
            What::EventEnd { event },
            What::State { event, state: 31, bytes },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for (number, what) in each().into_iter().enumerate() {
            let record = Record { at_ns: u64::MAX - number as u64, what };
            let words = Record::words_in(&Record::bytes(record.words()));
            assert_eq!(Record::of(words), Some(record));
        }
    }

    #[test]
    fn the_numbers_of_the_kinds_stay() {
        let numbers: Vec<u8> = each().iter().map(|what| what.words().0 as u8).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 18, 19, 20, 21]);
    }

    #[test]
    fn a_kind_of_another_version_is_none() {
        let unknown = (0..=u8::MAX).filter(|tag| Record::of([1, u64::from(*tag), 0, 0]).is_none()).count();
        assert_eq!(unknown, 256 - each().len());
        assert_eq!(Record::of([1, head(tags::EVENT_BEGIN, 7, 0, 0), 1, 0]), None, "kinds of events too");
    }
}
