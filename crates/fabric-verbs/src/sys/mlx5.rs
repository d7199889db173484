//! The functions of libmlx5 that libibverbs lacks: Data Direct, of ConnectX-8 and later.

use std::ffi::{c_char, c_int, c_void};

use super::functions::{LibraryError, Loaded};
use super::types::{Context, Device, Mr, Pd};

/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`: the range is reached through the device's Data Direct engine.
pub const REG_DMABUF_ACCESS_DATA_DIRECT: c_int = 1;

/// The functions of one loaded libmlx5.
#[derive(Clone, Copy)]
pub struct Mlx5Functions {
    /// mlx5dv_is_supported(3): true if libmlx5 drives the device. The other functions take only such devices.
    pub is_supported: unsafe extern "C" fn(device: *mut Device) -> bool,
    /// mlx5dv_get_data_direct_sysfs_path(3), from rdma-core 54 on.
    pub get_data_direct_sysfs_path:
        unsafe extern "C" fn(context: *mut Context, path: *mut c_char, length: usize) -> c_int,
    /// mlx5dv_reg_dmabuf_mr(3), from rdma-core 54 on.
    pub reg_dmabuf_mr: unsafe extern "C" fn(
        pd: *mut Pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
        mlx5_access: c_int,
    ) -> *mut Mr,
}

impl Mlx5Functions {
    /// Loads the library of this name, for the life of the process.
    ///
    /// # Errors
    /// If there is no such library, or it predates Data Direct.
    pub fn load(name: &str) -> Result<Self, LibraryError> {
        let library = Loaded::open(&[name])?;
        // SAFETY: a function of this name and version has this type in every libmlx5 (rdma-core,
        // providers/mlx5/mlx5dv.h and libmlx5.map).
        unsafe {
            Ok(Self {
                is_supported: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Device) -> bool>(
                    library.find(c"mlx5dv_is_supported", c"MLX5_1.8")?,
                ),
                get_data_direct_sysfs_path: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Context, *mut c_char, usize) -> c_int,
                >(
                    library.find(c"mlx5dv_get_data_direct_sysfs_path", c"MLX5_1.25")?
                ),
                reg_dmabuf_mr: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int, c_int) -> *mut Mr,
                >(library.find(c"mlx5dv_reg_dmabuf_mr", c"MLX5_1.25")?),
            })
        }
    }
}

impl std::fmt::Debug for Mlx5Functions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Mlx5Functions")
    }
}
