//! The types of `sync.rs` in `crates/plugin`, `crates/transport` and `crates/fabric-tcp`, from loom.

use std::sync::{Mutex, OnceLock};

pub(crate) use loom::sync::Arc;
pub(crate) use loom::sync::atomic::AtomicPtr as AtomicLink;
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::thread::yield_now;

/// Loom knows no barrier that one side makes the other pass, so here both sides of `transport/turn.rs` pass one.
pub(crate) fn light_fence() {
    fence(Ordering::SeqCst);
}

type Pointer = loom::sync::atomic::AtomicPtr<()>;

/// The pointer of the next [`AtomicPtr`].
static PREPARED: Mutex<Option<Pointer>> = Mutex::new(None);

/// Loom's pointer cannot be made in a constant, unlike the standard library's. So a model makes it before its threads
/// begin, and the constant takes it when it is first used.
pub(crate) struct AtomicPtr<T>(OnceLock<Pointer>, std::marker::PhantomData<*mut T>);

// SAFETY: the pointer itself may be shared, and nothing is promised about its target.
unsafe impl<T> Sync for AtomicPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Send for AtomicPtr<T> {}

pub(crate) fn prepare() {
    *PREPARED.lock().unwrap() = Some(Pointer::new(std::ptr::null_mut()));
}

impl<T> AtomicPtr<T> {
    pub(crate) const fn new(null: *mut T) -> Self {
        assert!(null.is_null());
        Self(OnceLock::new(), std::marker::PhantomData)
    }

    fn pointer(&self) -> &Pointer {
        self.0.get_or_init(|| PREPARED.lock().unwrap().take().expect("the model has prepared the pointer"))
    }

    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        self.pointer().load(order).cast()
    }

    pub(crate) fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        let result = self.pointer().compare_exchange(current.cast(), new.cast(), success, failure);
        result.map(<*mut ()>::cast).map_err(<*mut ()>::cast)
    }
}
