//! Registered memory of one port.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railweave_fabric::{Access, Memory, MemoryKind, RegisterError, Registration, RelaxedOrdering};

use crate::dma_buf::Placement;
use crate::domain::VerbsDomain;
use crate::queues::ProtectionDomain;
use crate::sys;

/// Memory that one port may read and write. Dropping it deregisters the memory.
pub struct VerbsRegistration {
    mr: NonNull<sys::Mr>,
    local_key: u32,
    remote_key: u32,
    pd: Arc<ProtectionDomain>,
    /// Keeps memory that Railweave owns alive until the adapter releases it.
    _memory: Memory,
}

// SAFETY: libibverbs is thread-safe (verbs(7)), and nothing here changes.
unsafe impl Send for VerbsRegistration {}
// SAFETY: as for Send.
unsafe impl Sync for VerbsRegistration {}

impl Registration for VerbsRegistration {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for VerbsRegistration {
    fn drop(&mut self) {
        // SAFETY: it was registered once and is deregistered once.
        unsafe { (self.pd.device().functions().dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Registers memory in a domain.
pub(crate) fn register(
    domain: &VerbsDomain,
    memory: Memory,
    access: Access,
    ordering: RelaxedOrdering,
) -> Result<VerbsRegistration, RegisterError> {
    let (pd, port) = (&domain.pd, domain.name.as_str());
    let (address, length) = (memory.address(), memory.length());
    if memory.end().is_none() {
        return Err(RegisterError::Range { address, length });
    }
    let mut flags = sys::ACCESS_LOCAL_WRITE;
    if access.remote_write {
        flags |= sys::ACCESS_REMOTE_WRITE;
    }
    if access.remote_read {
        flags |= sys::ACCESS_REMOTE_READ;
    }
    let functions = pd.device().functions();
    let is_refused = ordering != RelaxedOrdering::On && domain.refuses_relaxed.load(Ordering::Relaxed);
    let relaxed = !access.strict_order && ordering != RelaxedOrdering::Off && !is_refused;
    if relaxed && (functions.reg_mr_iova2.is_some() || matches!(memory.kind(), MemoryKind::DmaBuf { .. })) {
        flags |= sys::ACCESS_RELAXED_ORDERING;
    } else if relaxed && ordering == RelaxedOrdering::On {
        return Err(RegisterError::NoRelaxedOrdering { port: port.to_owned() });
    }
    let mut mr = ask(domain, &memory, flags)?;
    // Drivers that do not know the flag may refuse it instead of ignoring it, as mana's once did (Linux,
    // drivers/infiniband/hw/mana/mr.c, VALID_MR_FLAGS).
    let unknown = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP));
    if mr.as_ref().is_err_and(unknown) && flags & sys::ACCESS_RELAXED_ORDERING != 0 && ordering != RelaxedOrdering::On {
        flags &= !sys::ACCESS_RELAXED_ORDERING;
        mr = ask(domain, &memory, flags)?;
        // If it also fails without the flag, the flag was not the reason. A dma-buf's failure says nothing about other
        // memory.
        if mr.is_ok() && memory.kind() == MemoryKind::Host {
            domain.refuses_relaxed.store(true, Ordering::Relaxed);
        }
    }
    let mr = mr.map_err(|error| refused(port, &memory, flags, &error))?;
    // SAFETY: the library returned a valid registration.
    let (local_key, remote_key) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
    Ok(VerbsRegistration { mr, local_key, remote_key, pd: Arc::clone(pd), _memory: memory })
}

/// Asks the library for a registration with these rights, and returns its result.
fn ask(domain: &VerbsDomain, memory: &Memory, flags: c_int) -> Result<io::Result<NonNull<sys::Mr>>, RegisterError> {
    let (pd, port) = (&domain.pd, domain.name.as_str());
    let (address, length) = (memory.address(), memory.length());
    let functions = pd.device().functions();
    let place = address as usize as *mut std::ffi::c_void;
    let placed = match memory.kind() {
        MemoryKind::DmaBuf { fd, offset } => {
            let page = railweave_fabric::page_size() as u64;
            let whole_pages = domain.engine.is_some();
            let placement = Placement::new(address, length, offset, page, whole_pages);
            let misplaced = || RegisterError::DmaBufPlace { port: port.to_owned(), address, offset, page };
            Some((fd, placement.ok_or_else(misplaced)?))
        }
        _ => None,
    };
    // SAFETY: the maker of the Memory promised that the range may be read and written until the registration is
    // dropped; the library checks that it is mapped. The rest of a dma-buf's pages belongs to the same allocation of
    // GPU memory.
    let mr = unsafe {
        match (placed, functions.reg_mr_iova2, functions.reg_dmabuf_mr) {
            (Some((fd, Placement { iova, offset, length })), _, reg) => match (&domain.engine, reg) {
                (Some(engine), _) => {
                    let reg = engine.functions.reg_dmabuf_mr;
                    reg(pd.as_ptr(), offset, length, iova, fd, flags, sys::REG_DMABUF_ACCESS_DATA_DIRECT)
                }
                (None, Some(reg)) => reg(pd.as_ptr(), offset, length, iova, fd, flags),
                (None, None) => {
                    return Err(RegisterError::NoDmaBufs { port: port.to_owned() });
                }
            },
            (None, Some(reg), _) if flags & sys::ACCESS_RELAXED_ORDERING != 0 => {
                reg(pd.as_ptr(), place, length, address, flags.cast_unsigned())
            }
            _ => (functions.reg_mr)(pd.as_ptr(), place, length, flags),
        }
    };
    Ok(NonNull::new(mr).ok_or_else(io::Error::last_os_error))
}

fn refused(port: &str, memory: &Memory, flags: c_int, error: &io::Error) -> RegisterError {
    RegisterError::Refused {
        port: port.to_owned(),
        kind: memory.kind(),
        address: memory.address(),
        length: memory.length(),
        access: flags,
        relaxed: flags & sys::ACCESS_RELAXED_ORDERING != 0,
        // The library's own errors are kernel error numbers too.
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    }
}
