//! A telemetry file that the agent follows.

use super::shared::Shared;
use crate::host::{Followed, Seen};
use railweave_telemetry::Folder;

/// A telemetry file.
pub(super) struct File {
    followed: Followed,
    /// True if the file was there at the folder's first look, and was not read yet: it is older than the agent.
    is_old: bool,
}

impl File {
    pub(super) fn new(is_old: bool) -> Self {
        Self { followed: Followed::default(), is_old }
    }

    /// Looks at the file, and hands it to the agent.
    pub(super) fn report(&mut self, folder: &Folder, name: &str, shared: &Shared, buffer: &mut Vec<u8>) {
        let user = folder.owner();
        match self.followed.look(folder, name, buffer) {
            Some(Seen::Changed(snapshot, presence)) => {
                let is_taken = shared.agent().see(user, name, &snapshot, presence, self.is_old, shared.now());
                self.is_old &= !is_taken;
            }
            Some(Seen::Kept(presence)) => shared.agent().keep(user, name, presence),
            Some(Seen::Refused(reason)) => {
                // Its process may have been killed while it wrote.
                if let Some(presence) = self.followed.presence() {
                    shared.agent().keep(user, name, presence);
                }
                shared.agent().refuse(user, name, &reason);
            }
            None => {}
        }
    }
}
