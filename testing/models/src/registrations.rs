//! A place in the key table of `fabric-tcp`: service threads register and deregister memory, and lanes look it up.

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use crate::entry::{Entry, Range};

const RANGE: Range = Range { address: 1, length: 1, remote_write: true };

/// Registered memory, watched by loom: an unordered write and read fail the model.
#[derive(Default)]
struct Memory(UnsafeCell<u32>);

// SAFETY: the models check that access is ordered.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn write(&self, value: u32) {
        // SAFETY: loom fails the model if another thread may be here.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|place| unsafe { *place })
    }
}

/// A lookup that runs during a deregistration and the next registration never finds one registration with the key of
/// the other.
pub fn a_pin_never_sees_another_registration() {
    loom::model(|| {
        let entry = Arc::new(Entry::new());
        entry.publish(1, RANGE);
        let reader = {
            let entry = Arc::clone(&entry);
            loom::thread::spawn(move || {
                for key in [1, 2] {
                    if let Some(range) = entry.pin(key) {
                        assert_eq!((range.address, range.length), (u64::from(key), u64::from(key)));
                        assert_eq!(range.remote_write, key == 1);
                        entry.unpin();
                    }
                }
            })
        };
        entry.revoke();
        entry.publish(2, Range { address: 2, length: 2, remote_write: false });
        reader.join().unwrap();
    });
}

/// Writes under a pin happen before `revoke` returns: then the memory is the application's again.
pub fn nothing_is_written_after_a_registration_ended() {
    loom::model(|| {
        let (entry, memory) = (Arc::new(Entry::new()), Arc::new(Memory::default()));
        entry.publish(1, RANGE);
        let lane = {
            let (entry, memory) = (Arc::clone(&entry), Arc::clone(&memory));
            loom::thread::spawn(move || {
                let pinned = entry.pin(1).is_some();
                if pinned {
                    memory.write(7);
                    entry.unpin();
                }
                pinned
            })
        };
        entry.revoke();
        let value = memory.read();
        memory.write(8);
        assert_eq!(value == 7, lane.join().unwrap());
    });
}

/// Lanes see what the application wrote before it registered, and two data paths may pin at once.
pub fn a_pin_sees_what_was_there_before_the_registration() {
    loom::model(|| {
        let (entry, memory) = (Arc::new(Entry::new()), Arc::new(Memory::default()));
        let lanes = [0; 2].map(|_| {
            let (entry, memory) = (Arc::clone(&entry), Arc::clone(&memory));
            loom::thread::spawn(move || {
                if let Some(range) = entry.pin(1) {
                    assert_eq!((range, memory.read()), (RANGE, 7));
                    entry.unpin();
                }
            })
        });
        memory.write(7);
        entry.publish(1, RANGE);
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        entry.revoke();
        memory.write(8);
    });
}
