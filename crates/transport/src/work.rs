//! The ids of work requests, by which a completion names its work.

use railweave_fabric::{RailId, WorkId};

use crate::sequence::Sequence;

/// Mark the ids of a repair, of a hold and of a check, which are else those of CTS.
const REPAIR: u64 = 1 << 37;
const HOLD: u64 = 1 << 38;
const CHECK: u64 = 1 << 39;
const _: () = assert!(CHECK >> WorkId::BITS == 0);

/// The kind of a piece of work, encoded in its [`WorkId`]: the report that it is done carries nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// The last write of a receive's data on a lane.
    Data(Sequence),
    /// CTS entries.
    Cts,
    /// An empty write, which tells the latency of its rail.
    Ping,
    /// An empty write, which shows if the peer's end is still there: its number, at least 1.
    Probe(u32),
    /// The last write of a part of a receive's data that another rail has lost: that rail.
    Repair { sequence: Sequence, part: RailId },
    /// A write behind CTS entries that went out twice: the number of their hold.
    Hold(u32),
    /// An empty write of a receiver, which shows if its rail carries anything.
    Check,
    /// A flush: its request, and the generation of that request modulo 2^24.
    Flush { request: u8, generation: u32 },
}

impl WorkKind {
    #[inline(always)]
    pub(crate) fn id(self) -> WorkId {
        WorkId(match self {
            Self::Data(sequence) => u64::from(sequence.number()) << 2 | 1,
            Self::Cts => 2,
            Self::Repair { sequence, part } => {
                REPAIR | u64::from(sequence.number()) << 5 | (part.index() as u64) << 2 | 2
            }
            Self::Hold(number) => HOLD | u64::from(number) << 2 | 2,
            Self::Check => CHECK | 2,
            Self::Ping => 4,
            Self::Probe(number) => (u64::from(number) + 1) << 2,
            Self::Flush { request, generation } => u64::from(generation) << 10 | u64::from(request) << 2 | 3,
        })
    }

    /// Returns the receive whose data an id names; `None` for other work. Most completions are found by this alone.
    #[inline(always)]
    pub(crate) fn data(id: WorkId) -> Option<Sequence> {
        (id.0 & 3 == 1).then_some(Sequence::new((id.0 >> 2) as u32))
    }

    #[inline]
    pub(crate) fn from_id(id: WorkId) -> Option<Self> {
        let number = (id.0 >> 2) as u32;
        match id.0 & 3 {
            2 if id.0 & CHECK != 0 => Some(Self::Check),
            2 if id.0 & HOLD != 0 => Some(Self::Hold(number)),
            2 if id.0 & REPAIR != 0 => {
                let part = RailId::new((id.0 >> 2 & 7) as usize)?;
                Some(Self::Repair { sequence: Sequence::new((id.0 >> 5) as u32), part })
            }
            1 => Some(Self::Data(Sequence::new(number))),
            2 => Some(Self::Cts),
            0 if number == 1 => Some(Self::Ping),
            0 if id.0 != 0 => Some(Self::Probe(number.wrapping_sub(1))),
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
            WorkKind::Probe(1),
            WorkKind::Probe(u32::MAX),
            WorkKind::Flush { request: 31, generation: 0xff_ffff },
            data(0),
            WorkKind::Repair { sequence: Sequence::new(u32::MAX), part: RailId::new(7).unwrap() },
            WorkKind::Repair { sequence: Sequence::new(0), part: RailId::default() },
            WorkKind::Check,
            WorkKind::Hold(0),
            WorkKind::Hold(u32::MAX),
        ] {
            assert_eq!(WorkKind::from_id(work.id()), Some(work));
        }
        assert_eq!(WorkKind::from_id(WorkId(0)), None);
        assert_eq!(WorkKind::data(data(7).id()), Some(Sequence::new(7)));
        assert!([WorkKind::Cts, WorkKind::Ping, WorkKind::Probe(1)].iter().all(|it| WorkKind::data(it.id()).is_none()));
    }
}
