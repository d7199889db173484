//! Which pointers the ports of a device take: whether GPU memory can be registered there, and how.

use std::io;
use std::path::Path;

use railweave_fabric::PointerSupport;

use crate::Device;

/// Where the kernel modules show themselves that let an adapter reach GPU memory by its CUDA address.
const PEER_MEMORY: [&str; 3] = [
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
];

/// A page: a length that no driver finds fault with before it looks at the descriptor.
const PROBED_BYTES: usize = 4096;

/// What the ports of `device` take. `root` is `/`; tests give a tree of their own. Needs no GPU.
pub(crate) fn pointer_support(root: &Path, device: &Device) -> PointerSupport {
    PointerSupport { cuda: PEER_MEMORY.iter().any(|file| root.join(file).exists()), dma_buf: takes_dma_buf(device) }
}

/// Whether the kernel and the device's driver take dma-bufs: of a descriptor that is none they say EBADF, or what their driver
/// found wrong first, and of a call that they do not have EOPNOTSUPP or EPROTONOSUPPORT. NCCL's own transport (NCCL 2.30,
/// gdr.cc) tells them apart by these two.
fn takes_dma_buf(device: &Device) -> bool {
    let functions = device.functions();
    let Some(register) = functions.reg_dmabuf_mr else { return false };
    // SAFETY: the context is open for as long as the device lives.
    let pd = unsafe { (functions.alloc_pd)(device.context()) };
    if pd.is_null() {
        return false;
    }
    // SAFETY: the protection domain was just made; -1 is no descriptor, so there is no memory to touch.
    let mr = unsafe { register(pd, 0, PROBED_BYTES, 0, -1, 0) };
    let refusal = io::Error::last_os_error().raw_os_error();
    if !mr.is_null() {
        // SAFETY: the registration was just made and is ended once.
        unsafe { (functions.dereg_mr)(mr) };
    }
    // SAFETY: the protection domain was made above, and nothing of it is left.
    unsafe { (functions.dealloc_pd)(pd) };
    !mr.is_null() || !matches!(refusal, Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}
