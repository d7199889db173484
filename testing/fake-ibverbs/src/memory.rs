//! Protection domains and registered memory.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::with_exposed_provenance_mut;

use railweave_fabric_verbs::sys;

use crate::complaints::complain;
use crate::pages::{Mapping, check_mapped, page_size};
use crate::pairs::next_epoch;
use crate::regions::{self, Region};
use crate::world::{RegionEntry, Used, World, unknown};

type Answer<T> = Result<T, c_int>;

/// The right to remote atomics: NCCL asks for it, and nothing here uses it.
const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
/// The rights that ibv_reg_mr takes.
const BASIC_ACCESS: c_int =
    sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
/// Rights that a library may ignore: verbs.h, IBV_ACCESS_OPTIONAL_RANGE.
const OPTIONAL_ACCESS: c_int = 0x3ff0_0000;

/// A request to register memory.
pub(crate) struct Wish {
    pub(crate) function: &'static str,
    pub(crate) domain: usize,
    /// Its address in this process, or in the descriptor.
    pub(crate) address: u64,
    pub(crate) length: usize,
    /// The address under which work requests name it.
    pub(crate) iova: u64,
    pub(crate) access: c_int,
    pub(crate) descriptor: Option<c_int>,
    /// The flags of mlx5dv_reg_dmabuf_mr(3).
    pub(crate) mlx5_access: c_int,
}

impl World {
    pub(crate) fn alloc_pd(&mut self, context: usize) -> Answer<*mut sys::Pd> {
        self.strike("alloc_pd")?;
        let limit = self.context(context)?.device.facts().max_pd;
        if self.domains.values().filter(|used| used.context == context).count() >= limit as usize {
            return Err(libc::ENOMEM);
        }
        let domain = Box::into_raw(Box::new(sys::Pd { context: with_exposed_provenance_mut(context), handle: 0 }));
        self.domains.insert(domain.expose_provenance(), Used { context, users: 0 });
        Ok(domain)
    }

    pub(crate) fn dealloc_pd(&mut self, domain: usize) -> Answer<()> {
        self.strike("dealloc_pd")?;
        let used = self.domains.get(&domain).ok_or_else(|| unknown("protection domain"))?;
        if used.users > 0 {
            complain(format_args!("a protection domain is freed while {} objects still use it", used.users));
            return Err(libc::EBUSY);
        }
        self.domains.remove(&domain);
        // SAFETY: made by alloc_pd, and freed once: it was in the map.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<sys::Pd>(domain)) });
        Ok(())
    }

    pub(crate) fn register(&mut self, wish: &Wish) -> Answer<*mut sys::Mr> {
        self.strike(wish.function)?;
        let context = self.domains.get(&wish.domain).ok_or_else(|| unknown("protection domain"))?.context;
        let (limit, dma_buf, withholds, has_engine) = {
            let facts = self.context(context)?.device.facts();
            facts.habits.optional_access.when(wish.access & OPTIONAL_ACCESS != 0)?;
            facts.habits.atomic_access.when(wish.access & ACCESS_REMOTE_ATOMIC != 0)?;
            let has_engine = facts.data_direct.is_some();
            (facts.max_mr as usize, facts.dma_buf, facts.withholds_pages, has_engine)
        };
        if wish.descriptor.is_some() && !dma_buf {
            return Err(libc::EOPNOTSUPP);
        }
        check_access(wish)?;
        if wish.descriptor.is_some() {
            check_place(wish, has_engine)?;
        }
        // SAFETY: fcntl with F_GETFD touches no memory.
        if wish.descriptor.is_some_and(|descriptor| unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0) {
            return Err(libc::EBADF); // checked first: programs pass descriptor -1 to ask whether dma-bufs are supported
        }
        let length = wish.length as u64;
        if length == 0 || wish.iova.checked_add(length).is_none() {
            complain(format_args!(
                "{length} bytes are registered at {:#x}; the range must not be empty or wrap around",
                wish.iova
            ));
            return Err(libc::EINVAL);
        }
        if self.regions.values().filter(|entry| entry.context == context).count() >= limit {
            return Err(libc::ENOMEM);
        }
        let (mapping, memory) = match wish.descriptor {
            None => {
                check_mapped(wish.address, wish.length)?;
                (None, wish.address)
            }
            Some(descriptor) => {
                let (mapping, start) = Mapping::new(descriptor, wish.address, wish.length)?;
                (Some(mapping), start)
            }
        };
        let withheld = (self.minds_forks && withholds && mapping.is_none()).then_some((wish.address, wish.length));
        let (slot, uses) = self.take_slot()?;
        if let Some((address, length)) = withheld {
            self.withheld.add(address, length).inspect_err(|_| self.free_slots.push_back(slot))?;
        }
        let (lkey, rkey) = regions::keys(slot, uses);
        // SAFETY: all zeros is valid for these plain fields.
        let mut public: sys::Mr = unsafe { zeroed() };
        public.context = with_exposed_provenance_mut(context);
        public.pd = with_exposed_provenance_mut(wish.domain);
        public.address = with_exposed_provenance_mut(if mapping.is_some() { 0 } else { wish.address as usize });
        public.length = wish.length;
        (public.lkey, public.rkey) = (lkey, rkey);
        let access = wish.access as u32;
        regions::publish(slot, lkey, Region { domain: wish.domain, start: wish.iova, length, memory, access });
        let region = Box::into_raw(Box::new(public));
        let entry = RegionEntry { context, domain: wish.domain, slot, length, mapping, withheld };
        self.regions.insert(region.expose_provenance(), entry);
        self.use_domain(wish.domain);
        Ok(region)
    }

    pub(crate) fn deregister(&mut self, region: usize) -> Answer<()> {
        self.strike("dereg_mr")?;
        let entry = self.regions.remove(&region).ok_or_else(|| unknown("memory region"))?;
        regions::withdraw(entry.slot);
        next_epoch();
        self.let_transfers_finish();
        self.free_slots.push_back(entry.slot);
        self.leave_domain(entry.domain);
        if let Some((address, length)) = entry.withheld {
            self.withheld.remove(address, length);
        }
        drop(entry.mapping);
        // SAFETY: made by register, and freed once: it was in the map.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<sys::Mr>(region)) });
        Ok(())
    }

    /// Makes devices with `withholds_pages` keep the pages that are registered from now on out of forked children.
    pub(crate) fn prepare_for_forks(&mut self) -> Answer<()> {
        self.strike("fork_init")?;
        self.minds_forks = true;
        Ok(())
    }

    /// Counts one more user of the domain, which must be known.
    pub(crate) fn use_domain(&mut self, domain: usize) {
        if let Some(used) = self.domains.get_mut(&domain) {
            used.users += 1;
        }
    }

    /// Counts one user fewer.
    pub(crate) fn leave_domain(&mut self, domain: usize) {
        if let Some(used) = self.domains.get_mut(&domain) {
            used.users -= 1;
        }
    }
}

/// Checks the place of a dma-buf as the kernel does before it looks at the descriptor:
/// drivers/infiniband/core/uverbs_std_types_mr.c, and for Data Direct drivers/infiniband/hw/mlx5/mr.c.
fn check_place(wish: &Wish, has_engine: bool) -> Answer<()> {
    let page = page_size() as u64;
    if wish.address % page != wish.iova % page {
        complain(format_args!(
            "a dma-buf is registered at offset {:#x} for address {:#x}, which differ within a page",
            wish.address, wish.iova
        ));
        return Err(libc::EINVAL);
    }
    match wish.mlx5_access {
        0 => Ok(()),
        sys::REG_DMABUF_ACCESS_DATA_DIRECT if !wish.iova.is_multiple_of(page) => {
            complain(format_args!("Data Direct needs an address at the start of a page, not {:#x}", wish.iova));
            Err(libc::EOPNOTSUPP)
        }
        sys::REG_DMABUF_ACCESS_DATA_DIRECT if has_engine => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

fn check_access(wish: &Wish) -> Answer<()> {
    let access = wish.access;
    let optional = if wish.function == "reg_mr" { 0 } else { OPTIONAL_ACCESS };
    let unknown = access & !(BASIC_ACCESS | optional);
    if unknown != 0 {
        let prefix = if wish.function.starts_with("mlx5dv_") { "" } else { "ibv_" };
        let hint = match optional {
            0 => "; optional ones, such as relaxed ordering, go to ibv_reg_mr_iova2",
            _ => "",
        };
        complain(format_args!("{prefix}{} has no access flags {unknown:#x}{hint}", wish.function));
        return Err(libc::EINVAL);
    }
    if access & (sys::ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) != 0 && access & sys::ACCESS_LOCAL_WRITE == 0 {
        complain(format_args!("memory that others may write needs local write access as well"));
        return Err(libc::EINVAL);
    }
    Ok(())
}
