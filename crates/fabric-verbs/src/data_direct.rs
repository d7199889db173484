//! Data Direct: an engine of ConnectX-8 and later, with a PCI function of its own. Through it, the adapter reaches GPU
//! memory without passing the processor. NCCL's own transport (NCCL 2.30, net_ib/init.cc) shows it as a separate
//! device, `mlx5_0_dma`.
//!
//! Nothing here has run on such an adapter. It follows mlx5dv_get_data_direct_sysfs_path(3), mlx5dv_reg_dmabuf_mr(3)
//! and the checks of the kernel's driver (drivers/infiniband/hw/mlx5/mr.c, reg_user_mr_dmabuf_by_data_direct).

use std::cell::OnceCell;
use std::ffi::{CStr, c_char};
use std::io;
use std::path::{Path, PathBuf};

use crate::device::Device;
use crate::pointers::refuses_dma_bufs;
use crate::sys::{self, Mlx5Functions};

/// The vendors of devices that libmlx5 drives, as in `ibv_device_attr.vendor_id`: Mellanox's IEEE identifier and its
/// PCI identifier.
const VENDORS: [u32; 2] = [0x02c9, 0x15b3];

/// The longest path that the kernel gives (PATH_MAX).
const LONGEST_PATH: usize = 4096;

/// libmlx5, loaded when the first device could use it.
pub struct Mlx5<'a> {
    name: &'a str,
    loaded: OnceCell<Option<Mlx5Functions>>,
}

/// A device's Data Direct engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) functions: Mlx5Functions,
    /// The directory of its PCI function below /sys.
    pub pci_path: PathBuf,
}

impl<'a> Mlx5<'a> {
    /// Takes the library's name for the dynamic linker, or its path. Loads nothing yet.
    pub fn new(name: &'a str) -> Self {
        Self { name, loaded: OnceCell::new() }
    }

    /// Returns the engine of a device that takes dma-bufs; `None` if it has none, or if libmlx5 is missing or predates
    /// Data Direct.
    ///
    /// # Errors
    /// If the kernel does not say which PCI function the engine is.
    pub fn engine(&self, device: &Device, attributes: &sys::DeviceAttributes) -> io::Result<Option<Engine>> {
        if !VENDORS.contains(&attributes.vendor_id) {
            return Ok(None);
        }
        let Some(functions) = self.loaded.get_or_init(|| Mlx5Functions::load(self.name).ok()) else {
            return Ok(None);
        };
        // SAFETY: the context is open, and its device lives as long as it.
        let is_ours = unsafe { (functions.is_supported)((*device.context()).device) };
        if !is_ours || refuses(functions, device) {
            return Ok(None);
        }
        let mut path = [0 as c_char; LONGEST_PATH];
        // SAFETY: the context is open and of this library, and the buffer is as long as stated.
        match unsafe { (functions.get_data_direct_sysfs_path)(device.context(), path.as_mut_ptr(), path.len()) } {
            0 => {}
            // The device has no such engine, or the kernel does not support any.
            libc::ENODEV | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => return Ok(None),
            errno => return Err(io::Error::from_raw_os_error(errno.abs())),
        }
        let bytes = path.map(|byte| byte as u8);
        let path = CStr::from_bytes_until_nul(&bytes).ok().and_then(|path| path.to_str().ok());
        let below_sys = path.map(|path| path.trim_start_matches('/')).filter(|path| !path.is_empty());
        let pci_path = below_sys.map(|path| Path::new("/sys").join(path));
        pci_path.map_or_else(
            || Err(io::Error::from_raw_os_error(libc::EINVAL)),
            |pci_path| Ok(Some(Engine { functions: *functions, pci_path })),
        )
    }
}

/// Returns true if the kernel does not support registration with mlx5's own flags.
fn refuses(functions: &Mlx5Functions, device: &Device) -> bool {
    // SAFETY: the protection domain is open; -1 is no descriptor, so no memory is touched.
    refuses_dma_bufs(device, |pd, length| unsafe { (functions.reg_dmabuf_mr)(pd, 0, length, 0, -1, 0, 0) })
}
