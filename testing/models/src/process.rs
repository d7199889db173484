//! A process's own state, whose first use may be by several threads at once.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::per_process::PerProcess;

/// A value that every thread must see completely initialised.
struct Made(UnsafeCell<u32>);

// SAFETY: nothing writes after the value was made, which the model checks.
unsafe impl Sync for Made {}
// SAFETY: as above.
unsafe impl Send for Made {}

impl Default for Made {
    fn default() -> Self {
        let cell = UnsafeCell::new(0);
        // SAFETY: nobody else has the cell yet.
        cell.with_mut(|place| unsafe { *place = 7 });
        Self(cell)
    }
}

/// Two threads that ask at the same time get the same value, completely initialised.
pub fn a_process_has_one_value() {
    loom::model(|| {
        crate::sync::prepare();
        let value: Arc<PerProcess<Made>> = Arc::new(PerProcess::new());
        let get = |value: &PerProcess<Made>| {
            let made = value.get();
            // SAFETY: nothing writes after the value was made.
            assert_eq!(made.0.with(|place| unsafe { *place }), 7);
            std::ptr::from_ref(made).addr()
        };
        let other = {
            let value = Arc::clone(&value);
            thread::spawn(move || get(&value))
        };
        let ours = get(&value);
        assert_eq!(other.join().unwrap(), ours);
    });
}
