//! Detecting whether a device takes GPU memory behind dma-bufs.

use std::io;

use crate::device::Device;
use crate::sys;

/// One page: a length that no driver rejects before it looks at the descriptor.
const PROBED_BYTES: usize = 4096;

/// Returns true if the kernel and the device's driver register memory behind dma-bufs. Needs no GPU.
pub fn takes_dma_bufs(device: &Device) -> bool {
    let Some(register) = device.functions().reg_dmabuf_mr else { return false };
    // SAFETY: the protection domain is open; -1 is no descriptor, so no memory is touched.
    !refuses_dma_bufs(device, |pd, length| unsafe { register(pd, 0, length, 0, -1, 0) })
}

/// Returns true if the kernel or the device's driver does not know dma-bufs, or if no protection domain is left to find
/// out. `register` tries to register this many bytes behind an invalid descriptor. If dma-bufs are known, the call
/// fails with EBADF or with the driver's first objection; otherwise with EOPNOTSUPP or EPROTONOSUPPORT. NCCL's own
/// transport uses the same two codes (NCCL 2.30, net_ib/gdr.cc).
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
    // SAFETY: the protection domain was made above, and nothing made from it is left.
    unsafe { (functions.dealloc_pd)(pd) };
    mr.is_null() && matches!(refusal, Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}
