//! Values that one thread writes and another keeps an `Arc` of, to read the final value once the writer is gone.

use crate::sync::Arc;

/// Removes the values that only this list still holds, and passes each to `take`, with all that was ever written to it.
pub(crate) fn take_abandoned<T>(shares: &mut Vec<Arc<T>>, mut take: impl FnMut(&T)) {
    shares.retain_mut(|share| {
        // Unlike a look at the count, this also synchronises with what the others wrote before they dropped theirs.
        let Some(value) = Arc::get_mut(share) else {
            return true;
        };
        take(value);
        false
    });
}
