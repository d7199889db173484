//! The sending end's oldest work on each rail, by which its silence shows.

use railweave_fabric::{Fabric, RailId, RailSet};

use super::SendConnection;
use crate::recovery::{Hearing, Hush, Oldest};
use crate::requests::Carried;

impl<F: Fabric> SendConnection<F> {
    /// Judges the silences of the rails.
    pub(super) fn listen(&mut self, hearing: Hearing) -> Hush {
        // The application may not have looked for long. The connection keeps an error.
        let _ = self.core.poll(&mut self.progress);
        let Self { core, progress, shares, head, .. } = self;
        let owed: Vec<Carried> = progress.requests.carried().filter(|slot| !slot.owed.is_empty()).collect();
        let parts_on =
            |rail: RailId, slot: &Carried| progress.repairs.carried_by(rail, slot.sequence, slot.mask) & slot.owed;
        let bytes_of = |slot: &Carried, parts: RailSet| {
            let Some(posted) = progress.requests.sources(slot.sequence) else { return 0 };
            let given = |rail| posted.is_given.then(|| progress.meter.given_to(slot.sequence, rail));
            let bytes = |(buffer, source)| {
                let part = |part| shares.part(slot.sequence, buffer, source, slot.mask, part, given).1;
                parts.iter().map(part).sum::<u64>()
            };
            posted.sources.iter().enumerate().map(bytes).sum()
        };
        core.judge_silences(hearing, |rail| {
            let on_rail = owed.iter().map(|slot| (slot, parts_on(rail, slot))).filter(|(_, parts)| !parts.is_empty());
            let (slot, parts) = on_rail.max_by_key(|(slot, _)| head.since(slot.sequence))?;
            let mark = u64::from(slot.sequence.number()) << u8::BITS | u64::from(parts.bits());
            Some(Oldest { mark, bytes: bytes_of(slot, parts) })
        })
    }
}
