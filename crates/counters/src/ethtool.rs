//! The kernel's ioctl for the statistics of an interface's driver, those that `ethtool -S` prints.
#![allow(unsafe_code)] // the ioctl takes a pointer to a block that the kernel fills

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::ptr::{self, NonNull};

/// The commands and sizes of include/uapi/linux/ethtool.h.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
/// The places of the first name in `struct ethtool_gstrings` and of the first number in the two others.
const NAMES: usize = 12;
const VALUES: usize = 8;
const SET_SIZES: usize = 16;

/// The most statistics of an interface. mlx5 has some 60 per channel, and so 8,000 with 128 channels.
pub(crate) const MAX_STATISTICS: usize = 32_000;

/// Asks the drivers of interfaces. Each question holds the kernel's lock of all interfaces (RTNL) while the driver
/// answers, which may take it milliseconds if it asks its adapter.
#[derive(Debug)]
pub(crate) struct Ethtool {
    /// Any socket will do: the kernel hands the ioctl from each family to the network devices.
    socket: UnixDatagram,
    block: Block,
}

impl Ethtool {
    /// Makes the socket and the block.
    ///
    /// # Errors
    /// If the kernel has none to give.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { socket: UnixDatagram::unbound()?, block: Block::new()? })
    }

    /// Returns the number of an interface's statistics; `None` if its driver has none or more than
    /// [`MAX_STATISTICS`].
    pub(crate) fn count(&mut self, interface: &str) -> Option<usize> {
        let bytes = self.block.bytes();
        put_u32(bytes, 0, ETHTOOL_GSSET_INFO);
        put_u32(bytes, 4, 0);
        bytes[8..16].copy_from_slice(&(1_u64 << ETH_SS_STATS).to_ne_bytes());
        put_u32(bytes, SET_SIZES, 0);
        self.ask(interface)?;
        // A set that the driver lacks is missing from the mask, and then the first size is that of no set.
        let bytes = self.block.bytes();
        let mask = get_u64(bytes, 8);
        let count = get_u32(bytes, SET_SIZES) as usize;
        (mask == 1 << ETH_SS_STATS && (1..=MAX_STATISTICS).contains(&count)).then_some(count)
    }

    /// Hands the place and the name of each of an interface's `count` statistics to `see`. Returns `None` if there are
    /// other than `count`.
    pub(crate) fn names(&mut self, interface: &str, count: usize, mut see: impl FnMut(usize, &str)) -> Option<()> {
        let bytes = self.block.bytes();
        put_u32(bytes, 0, ETHTOOL_GSTRINGS);
        put_u32(bytes, 4, ETH_SS_STATS);
        put_u32(bytes, 8, u32::try_from(count).ok()?);
        self.ask(interface)?;
        let bytes = self.block.bytes();
        if get_u32(bytes, 8) as usize != count {
            return None;
        }
        let names = bytes.get(NAMES..NAMES + count * ETH_GSTRING_LEN)?.chunks_exact(ETH_GSTRING_LEN);
        for (place, name) in names.enumerate() {
            let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            if let Ok(name) = std::str::from_utf8(&name[..length]) {
                see(place, name);
            }
        }
        Some(())
    }

    /// Returns the function that gives the value at a place, for an interface with `count` statistics; `None` if there
    /// are other than `count`.
    pub(crate) fn values(&mut self, interface: &str, count: usize) -> Option<impl Fn(usize) -> Option<u64>> {
        let bytes = self.block.bytes();
        put_u32(bytes, 0, ETHTOOL_GSTATS);
        put_u32(bytes, 4, u32::try_from(count).ok()?);
        self.ask(interface)?;
        let bytes = self.block.bytes();
        if get_u32(bytes, 4) as usize != count {
            return None;
        }
        let values: &[u8] = bytes.get(VALUES..VALUES + count * size_of::<u64>())?;
        Some(move |place: usize| {
            let (values, []) = values.as_chunks() else { return None };
            values.get(place).map(|value| u64::from_ne_bytes(*value))
        })
    }

    /// Lets the kernel answer the command in the block; `None` if it does not.
    fn ask(&mut self, interface: &str) -> Option<()> {
        let mut ifr_name = [0; libc::IFNAMSIZ];
        // The last byte ends the name.
        if interface.is_empty() || interface.len() >= ifr_name.len() {
            return None;
        }
        for (to, from) in ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: self.block.start.as_ptr().cast() };
        let mut request = libc::ifreq { ifr_name, ifr_ifru };
        // SAFETY: the request lives until the call returns, and its name ends with a zero. The kernel reads the command
        // at the pointer, all of which is in the block, and writes its answer there in ascending order. It does not
        // know the block's length; an answer that is too long, because the driver made statistics since they were
        // counted, meets the guard behind the block, where the kernel's copy fails (EFAULT).
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        (result == 0).then_some(())
    }
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

/// Memory for the kernel's answers with a guard behind it, pages that nobody can write. Pages that no answer reaches
/// take no memory.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
}

/// The bytes of a block, and those of its guard. 64 KiB is a multiple of every page size.
const BLOCK: usize = 1 << 20;
const GUARD: usize = 1 << 16;
const _: () = assert!(NAMES + MAX_STATISTICS * ETH_GSTRING_LEN <= BLOCK);

// SAFETY: the block owns its memory, and no other thread has a pointer to it.
unsafe impl Send for Block {}

impl Block {
    fn new() -> io::Result<Self> {
        let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), BLOCK + GUARD, none, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        // From here on, dropping it unmaps the memory.
        let block = Self { start };
        // SAFETY: the first `BLOCK` bytes of the mapping, whole pages, to which there is no reference yet.
        if unsafe { libc::mprotect(start.as_ptr().cast(), BLOCK, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(block)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped, readable, writable and zero at first; it is borrowed with the block, so it is
        // neither unmapped nor handed to the kernel meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), BLOCK) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping came from `mmap` with this length, and is unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BLOCK + GUARD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_zero_and_the_kernel_cannot_write_behind_it() {
        let mut block = Block::new().unwrap();
        assert!(block.bytes().iter().all(|byte| *byte == 0));
        block.bytes().fill(1);
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.send(&[7; 100]).unwrap();
        let end = block.start.as_ptr().wrapping_add(BLOCK - 50);
        // SAFETY: the last 50 bytes are the block's; those after them are the guard, which the kernel cannot write.
        let result = unsafe { libc::recv(ours.as_raw_fd(), end.cast(), 100, 0) };
        assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
    }

    #[test]
    fn interfaces_without_statistics_or_without_a_name_have_none() {
        let mut ethtool = Ethtool::new().unwrap();
        for name in ["lo", "", "no-such-if", "a-name-that-is-far-too-long", "e\0h0"] {
            assert_eq!(ethtool.count(name), None, "{name}");
            assert!(ethtool.values(name, 1).is_none(), "{name}");
            assert!(ethtool.names(name, 1, |_, _| panic!("a name")).is_none(), "{name}");
        }
    }

    #[test]
    fn names_and_values_belong_together_wherever_there_are_any() {
        let mut ethtool = Ethtool::new().unwrap();
        for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            let interface = entry.file_name().into_string().unwrap();
            let Some(count) = ethtool.count(&interface) else { continue };
            let mut names = Vec::new();
            ethtool.names(&interface, count, |place, name| names.push((place, name.to_owned()))).unwrap();
            assert_eq!(names.len(), count, "{interface}");
            assert!(names.iter().all(|(_, name)| !name.is_empty()), "{interface}: {names:?}");
            let value = ethtool.values(&interface, count).unwrap();
            assert!(names.iter().all(|(place, _)| value(*place).is_some()), "{interface}");
            assert_eq!(value(count), None, "{interface}");
        }
    }
}
