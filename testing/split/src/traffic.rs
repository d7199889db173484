//! The observer of a stage: it counts the bytes that each rail is given.

use railweave_fabric::MAX_RAILS;
use railweave_fabric_sim::{Event, Mishap, Observer, Place};

/// A call of an application that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) flow: usize,
    /// True for the sending application.
    pub(crate) sender: bool,
}

/// The bytes that the sending ends have posted since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    posted: Vec<[u64; MAX_RAILS]>,
}

impl Traffic {
    /// Takes the bytes of each rail that a flow has posted since the last call.
    pub(crate) fn take(&mut self, flow: usize) -> [u64; MAX_RAILS] {
        self.posted.get_mut(flow).map_or([0; MAX_RAILS], std::mem::take)
    }
}

impl Observer for Traffic {
    type Task = Call;

    fn see(&mut self, _: u64, place: Place, event: &Event<'_>) {
        match event {
            Event::Posted { write, .. } if place.sender => {
                if self.posted.len() <= place.connection {
                    self.posted.resize(place.connection + 1, [0; MAX_RAILS]);
                }
                self.posted[place.connection][usize::from(place.rail)] += u64::from(write.local.length);
            }
            Event::Broken(breach) => panic!("{place:?}: {breach:?}"),
            Event::Died { error } => panic!("{place:?}: {error}"),
            _ => {}
        }
    }

    fn suffer(&mut self, _: Mishap) {}
}
