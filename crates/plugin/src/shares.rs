//! Values that one thread writes and another keeps a share of, to have the last word of them when the writer is gone.

use crate::sync::Arc;

/// Takes those values out that nobody but this list holds any more, and hands each to `take`: all that was ever written
/// to it is there.
pub(crate) fn take_abandoned<T>(shares: &mut Vec<Arc<T>>, mut take: impl FnMut(&T)) {
    shares.retain_mut(|share| {
        // To count the shares would say as much, but only this sees what the others wrote before they let go.
        let Some(value) = Arc::get_mut(share) else {
            return true;
        };
        take(value);
        false
    });
}
