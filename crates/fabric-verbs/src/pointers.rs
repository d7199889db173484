//! Whether a device takes GPU memory behind dma-bufs.

use std::io;

use crate::device::Device;
use crate::sys;

/// A page: a length that no driver finds fault with before it looks at the descriptor.
const PROBED_BYTES: usize = 4096;

/// Returns true if the kernel and the device's driver register memory behind dma-bufs. Needs no GPU.
pub fn takes_dma_bufs(device: &Device) -> bool {
    let Some(register) = device.functions().reg_dmabuf_mr else { return false };
    // SAFETY: of `refuses_dma_bufs`: -1 is no descriptor, so there is no memory to touch.
    !refuses_dma_bufs(device, |pd, length| unsafe { register(pd, 0, length, 0, -1, 0) })
}

/// Whether the kernel or the device's driver knows no dma-bufs; `register` tries to register this many bytes behind a
/// descriptor that is none. To such a call they say EBADF, or what their driver found wrong first, and EOPNOTSUPP or
/// EPROTONOSUPPORT where they do not have it at all: by these two NCCL's own transport tells them apart (NCCL 2.30,
/// net_ib/gdr.cc).
pub(crate) fn refuses_dma_bufs(device: &Device, register: impl FnOnce(*mut sys::Pd, usize) -> *mut sys::Mr) -> bool {
    let functions = device.functions();
    // SAFETY: the context is open for as long as the device lives.
    let pd = unsafe { (functions.alloc_pd)(device.context()) };
    if pd.is_null() {
        return true;
    }
    let mr = register(pd, PROBED_BYTES);
    let refusal = io::Error::last_os_error().raw_os_error();
    if !mr.is_null() {
        // SAFETY: the registration was just made and is ended once.
        unsafe { (functions.dereg_mr)(mr) };
    }
    // SAFETY: the protection domain was made above, and nothing of it is left.
    unsafe { (functions.dealloc_pd)(pd) };
    mr.is_null() && matches!(refusal, Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}
