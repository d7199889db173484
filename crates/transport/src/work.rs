//! The ids of work requests, by which a completion names its work.

use railweave_fabric::WorkId;

use crate::sequence::Sequence;

/// The kind of a piece of work, encoded in its [`WorkId`]: the report that it is done carries nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// The last write of a receive's data on a lane.
    Data(Sequence),
    /// CTS entries.
    Cts,
    /// An empty write, which tells the latency of its rail.
    Ping,
    /// A flush: its request, and the generation of that request modulo 2^24.
    Flush { request: u8, generation: u32 },
}

impl WorkKind {
    #[inline]
    pub(crate) fn id(self) -> WorkId {
        WorkId(match self {
            Self::Data(sequence) => u64::from(sequence.number()) << 2 | 1,
            Self::Cts => 2,
            Self::Ping => 4,
            Self::Flush { request, generation } => u64::from(generation) << 10 | u64::from(request) << 2 | 3,
        })
    }

    #[inline]
    pub(crate) fn from_id(id: WorkId) -> Option<Self> {
        let number = (id.0 >> 2) as u32;
        match id.0 & 3 {
            1 => Some(Self::Data(Sequence::new(number))),
            2 => Some(Self::Cts),
            0 if number == 1 => Some(Self::Ping),
            3 => Some(Self::Flush { request: number as u8, generation: number >> 8 }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_comes_out_of_its_id() {
        let data = |number| WorkKind::Data(Sequence::new(number));
        for work in [
            data(u32::MAX),
            WorkKind::Cts,
            WorkKind::Ping,
            WorkKind::Flush { request: 31, generation: 0xff_ffff },
            data(0),
        ] {
            assert_eq!(WorkKind::from_id(work.id()), Some(work));
        }
        assert_eq!(WorkKind::from_id(WorkId(0)), None);
    }
}
