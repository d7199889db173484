//! The functions of libibverbs, found in the library at run time by name and version.
//!
//! dlsym(3) finds a function's default version, which a later library may change together with the structures that it
//! takes. dlvsym(3) finds the version whose structures are declared here, or none.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use railweave_fabric::SettingId;

use super::types::{
    AsyncEvent, Context, Cq, Device, DeviceAttributes, Ece, Gid, GidEntry, Mr, Pd, PortAttributes, Qp, QpAttributes,
    QpInitAttributes, Srq, SrqInitAttributes,
};

unsafe extern "C" {
    /// dlsym(3): glibc's `dlvsym`, which the `libc` crate lacks.
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The reason why libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// No name leads to a library.
    #[error("{reason}; install libibverbs (rdma-core), or name its file in {}", SettingId::Library.nccls())]
    NotFound {
        /// The dynamic linker's message about each name.
        reason: String,
    },
    /// The library is too old, or not libibverbs.
    #[error("{library} has no function {symbol} of version {version}; rdma-core 17 or later has it")]
    MissingSymbol {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
        /// Its version.
        version: &'static str,
    },
}

/// A library that stays loaded for the life of the process: providers start threads and register exit handlers.
pub(super) struct Loaded {
    handle: *mut c_void,
    name: String,
}

impl Loaded {
    pub(super) fn open(names: &[&str]) -> Result<Self, LibraryError> {
        let mut reasons = Vec::new();
        for name in names {
            let Ok(c_name) = CString::new(*name) else {
                reasons.push(format!("{name:?}: a file name has no zero byte"));
                continue;
            };
            // SAFETY: dlopen runs the library's initialisers; that is what loading libibverbs means.
            let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Self { handle, name: (*name).to_owned() });
            }
            reasons.push(last_error(name));
        }
        Err(LibraryError::NotFound { reason: reasons.join("; ") })
    }

    /// Finds the function of this name and version.
    ///
    /// # Errors
    /// If the library has none.
    pub(super) fn find(&self, symbol: &'static CStr, version: &'static CStr) -> Result<*mut c_void, LibraryError> {
        let address = self.address(symbol, Some(version));
        if address.is_null() {
            let library = self.name.clone();
            return Err(LibraryError::MissingSymbol { library, symbol: text(symbol), version: text(version) });
        }
        Ok(address)
    }

    fn address(&self, symbol: &CStr, version: Option<&CStr>) -> *mut c_void {
        // SAFETY: the handle is open, the strings end in zero.
        unsafe {
            match version {
                Some(version) => dlvsym(self.handle, symbol.as_ptr(), version.as_ptr()),
                None => libc::dlsym(self.handle, symbol.as_ptr()),
            }
        }
    }
}

fn last_error(name: &str) -> String {
    // SAFETY: dlerror returns NULL or a string that stays valid until this thread's next dl call.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| format!("{name} cannot be loaded"))
}

fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or("?")
}

macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $field:ident: $kind:ident fn($($argument:ident: $type:ty),*) $(-> $result:ty)?,
        $symbol:literal, $version:literal;
    )*) => {
        /// The functions of one loaded libibverbs.
        pub struct Functions {
            name: String,
            $($(#[$doc])* pub $field: functions!(@type $kind ($($argument: $type),*) $(-> $result)?),)*
            /// ibv_query_port_speed(3), in units of 100 Mbit/s: newer than rdma-core 60.
            pub query_port_speed:
                Option<unsafe extern "C" fn(context: *mut Context, port: u32, speed: *mut u64) -> c_int>,
        }

        impl Functions {
            /// Loads the first of `names` that leads to a library, for the life of the process.
            ///
            /// # Errors
            /// If there is no such library, or it lacks a function.
            pub fn load(names: &[&str]) -> Result<Self, LibraryError> {
                let library = Loaded::open(names)?;
                Ok(Self {
                    $($field: functions!(@find $kind library $symbol $version ($($type),*) $(-> $result)?),)*
                    query_port_speed: {
                        let address = library.address(c"ibv_query_port_speed", None);
                        // SAFETY: the function of this name has this type (rdma-core, ibv_query_port_speed(3)).
                        (!address.is_null()).then(|| unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn(*mut Context, u32, *mut u64) -> c_int,
                            >(address)
                        })
                    },
                    name: library.name,
                })
            }
        }
    };
    (@type needed ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        unsafe extern "C" fn($($argument: $type),*) $(-> $result)?
    };
    (@type optional ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        Option<unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>
    };
    (@find needed $library:ident $symbol:literal $version:literal ($($type:ty),*) $(-> $result:ty)?) => {
        match functions!(@find optional $library $symbol $version ($($type),*) $(-> $result)?) {
            Some(function) => function,
            None => {
                return Err(LibraryError::MissingSymbol {
                    library: $library.name,
                    symbol: text($symbol),
                    version: text($version),
                });
            }
        }
    };
    (@find optional $library:ident $symbol:literal $version:literal ($($type:ty),*) $(-> $result:ty)?) => {{
        let address = $library.address($symbol, Some($version));
        // SAFETY: a function of this name and version has this type in every libibverbs; versions guarantee that
        // (rdma-core, libibverbs/libibverbs.map.in).
        (!address.is_null()).then(|| unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(address)
        })
    }};
}

functions! {
    /// ibv_get_device_list(3).
    get_device_list: needed fn(count: *mut c_int) -> *mut *mut Device, c"ibv_get_device_list", c"IBVERBS_1.1";
    /// ibv_get_device_list(3).
    free_device_list: needed fn(list: *mut *mut Device), c"ibv_free_device_list", c"IBVERBS_1.1";
    /// ibv_open_device(3).
    open_device: needed fn(device: *mut Device) -> *mut Context, c"ibv_open_device", c"IBVERBS_1.1";
    /// ibv_open_device(3).
    close_device: needed fn(context: *mut Context) -> c_int, c"ibv_close_device", c"IBVERBS_1.1";
    /// ibv_get_async_event(3).
    get_async_event:
        needed fn(context: *mut Context, event: *mut AsyncEvent) -> c_int, c"ibv_get_async_event", c"IBVERBS_1.1";
    /// ibv_get_async_event(3).
    ack_async_event: needed fn(event: *mut AsyncEvent), c"ibv_ack_async_event", c"IBVERBS_1.1";
    /// ibv_query_device(3).
    query_device: needed fn(context: *mut Context, attributes: *mut DeviceAttributes) -> c_int,
        c"ibv_query_device", c"IBVERBS_1.1";
    /// ibv_query_port(3): writes the older, shorter structure; see [`super::VerbsContext::query_port`].
    query_port: needed fn(context: *mut Context, port: u8, attributes: *mut PortAttributes) -> c_int,
        c"ibv_query_port", c"IBVERBS_1.1";
    /// ibv_query_gid(3).
    query_gid: needed fn(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int,
        c"ibv_query_gid", c"IBVERBS_1.1";
    /// ibv_query_gid_ex(3), from rdma-core 32 on.
    query_gid_ex: optional fn(
            context: *mut Context, port: u32, index: u32, entry: *mut GidEntry, flags: u32, length: usize
        ) -> c_int,
        c"_ibv_query_gid_ex", c"IBVERBS_1.11";
    /// ibv_alloc_pd(3).
    alloc_pd: needed fn(context: *mut Context) -> *mut Pd, c"ibv_alloc_pd", c"IBVERBS_1.1";
    /// ibv_alloc_pd(3).
    dealloc_pd: needed fn(pd: *mut Pd) -> c_int, c"ibv_dealloc_pd", c"IBVERBS_1.1";
    /// ibv_reg_mr(3).
    reg_mr: needed fn(pd: *mut Pd, address: *mut c_void, length: usize, access: c_int) -> *mut Mr,
        c"ibv_reg_mr", c"IBVERBS_1.1";
    /// ibv_reg_mr(3): takes the optional access flags, such as relaxed ordering; from rdma-core 28 on.
    reg_mr_iova2: optional fn(pd: *mut Pd, address: *mut c_void, length: usize, iova: u64, access: u32) -> *mut Mr,
        c"ibv_reg_mr_iova2", c"IBVERBS_1.8";
    /// ibv_reg_mr(3): from rdma-core 34 on.
    reg_dmabuf_mr: optional fn(
            pd: *mut Pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
        ) -> *mut Mr,
        c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12";
    /// ibv_reg_mr(3).
    dereg_mr: needed fn(mr: *mut Mr) -> c_int, c"ibv_dereg_mr", c"IBVERBS_1.1";
    /// ibv_create_cq(3).
    create_cq: needed fn(
            context: *mut Context, entries: c_int, cq_context: *mut c_void, channel: *mut c_void, vector: c_int
        ) -> *mut Cq,
        c"ibv_create_cq", c"IBVERBS_1.1";
    /// ibv_create_cq(3).
    destroy_cq: needed fn(cq: *mut Cq) -> c_int, c"ibv_destroy_cq", c"IBVERBS_1.1";
    /// ibv_create_srq(3).
    create_srq: needed fn(pd: *mut Pd, attributes: *mut SrqInitAttributes) -> *mut Srq,
        c"ibv_create_srq", c"IBVERBS_1.1";
    /// ibv_create_srq(3).
    destroy_srq: needed fn(srq: *mut Srq) -> c_int, c"ibv_destroy_srq", c"IBVERBS_1.1";
    /// ibv_create_qp(3).
    create_qp: needed fn(pd: *mut Pd, attributes: *mut QpInitAttributes) -> *mut Qp,
        c"ibv_create_qp", c"IBVERBS_1.1";
    /// ibv_modify_qp(3).
    modify_qp: needed fn(qp: *mut Qp, attributes: *mut QpAttributes, mask: c_int) -> c_int,
        c"ibv_modify_qp", c"IBVERBS_1.1";
    /// ibv_query_qp(3).
    query_qp: needed fn(
            qp: *mut Qp, attributes: *mut QpAttributes, mask: c_int, created: *mut QpInitAttributes
        ) -> c_int,
        c"ibv_query_qp", c"IBVERBS_1.1";
    /// ibv_create_qp(3).
    destroy_qp: needed fn(qp: *mut Qp) -> c_int, c"ibv_destroy_qp", c"IBVERBS_1.1";
    /// ibv_fork_init(3).
    fork_init: needed fn() -> c_int, c"ibv_fork_init", c"IBVERBS_1.1";
    /// ibv_query_ece(3), from rdma-core 31 on.
    query_ece: optional fn(qp: *mut Qp, ece: *mut Ece) -> c_int, c"ibv_query_ece", c"IBVERBS_1.10";
    /// ibv_set_ece(3), from rdma-core 31 on.
    set_ece: optional fn(qp: *mut Qp, ece: *mut Ece) -> c_int, c"ibv_set_ece", c"IBVERBS_1.10";
}

// The functions may be called from any thread (ibverbs is thread-safe, verbs(7)), and the struct holds nothing else.

impl Functions {
    /// Prepares the library for a process that forks, before any other call: ibv_fork_init(3). On a kernel that copies
    /// pinned memory at a fork (5.12 and later) the library has nothing to do.
    ///
    /// # Errors
    /// If the library cannot, because memory was registered before.
    pub fn prepare_for_forks(&self) -> std::io::Result<()> {
        // SAFETY: the function takes nothing and may be called at any time, more than once.
        match unsafe { (self.fork_init)() } {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno.abs())),
        }
    }

    /// Returns the name under which the library was found.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Functions({})", self.name)
    }
}
