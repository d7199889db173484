//! Values that one thread writes, while a list keeps an `Arc` of each to read the final value once the writer has
//! dropped its own.

use crate::sync::Arc;

/// Removes the values that only this list still holds, and passes each to `take`, which sees every write to it.
pub(crate) fn take_abandoned<T>(shares: &mut Vec<Arc<T>>, mut take: impl FnMut(&T)) {
    shares.retain_mut(|share| {
        // Unlike a check of the count, this synchronises with the writes of other threads before they dropped their
        // `Arc`.
        let Some(value) = Arc::get_mut(share) else {
            return true;
        };
        take(value);
        false
    });
}
