//! The function tables of all versions, and the differences between them.

use crate::net::Properties;
use railweave_abi::NcclResult;
use railweave_abi::net::{ID_UNDEF, MAX_NET_SIZE, v6, v7, v8, v9, v10, v11, v12};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// One version's table in a loaded plugin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    V6(&'static v6::Net),
    V7(&'static v7::Net),
    V8(&'static v8::Net),
    V9(&'static v9::Net),
    V10(&'static v10::Net),
    V11(&'static v11::Net),
    V12(&'static v12::Net),
}

/// Evaluates one expression with the table, whatever its version.
macro_rules! each {
    ($table:expr, $net:ident => $value:expr) => {
        match $table {
            $crate::table::Table::V6($net) => $value,
            $crate::table::Table::V7($net) => $value,
            $crate::table::Table::V8($net) => $value,
            $crate::table::Table::V9($net) => $value,
            $crate::table::Table::V10($net) => $value,
            $crate::table::Table::V11($net) => $value,
            $crate::table::Table::V12($net) => $value,
        }
    };
}
pub(crate) use each;

/// Reads the properties from a version's table: those that every version has, then those that `$more` adds. The
/// function around it returns if there is no `get_properties`, or if the call fails.
macro_rules! read {
    ($net:ident, $device:ident, |$raw:ident, $common:ident| $more:block) => {{
        let call = $net.get_properties?;
        let mut raw = MaybeUninit::zeroed();
        // SAFETY: the memory has the type that this version writes.
        let code = unsafe { call($device, raw.as_mut_ptr()) };
        if !code.is_success() {
            return Some(Err(code));
        }
        // SAFETY: every field is a number, a pointer or an array of numbers, for which all zeros, as before the
        // call, are a valid value.
        let $raw = unsafe { raw.assume_init() };
        let mut $common = Properties {
            // SAFETY: the API requires pointers to strings that live as long as the process.
            name: unsafe { text($raw.name) }.unwrap_or_default(),
            // SAFETY: as above; NULL is allowed.
            pci_path: unsafe { text($raw.pci_path) },
            guid: $raw.guid,
            ptr_support: $raw.ptr_support,
            reg_is_global: false,
            force_flush: false,
            speed_mbps: $raw.speed,
            port: $raw.port,
            latency_us: $raw.latency,
            max_comms: $raw.max_comms,
            max_recvs: $raw.max_recvs,
            device_type: 0,
            members: Vec::new(),
            max_p2p_bytes: MAX_NET_SIZE,
            max_coll_bytes: MAX_NET_SIZE,
            rail_id: ID_UNDEF,
            plane_id: ID_UNDEF,
        };
        $more
        Some(Ok($common))
    }};
}

/// Adds the properties that version 9 and later have.
macro_rules! from_v9 {
    ($raw:ident, $common:ident) => {
        $common.reg_is_global = $raw.reg_is_global != 0;
        $common.force_flush = $raw.force_flush != 0;
        $common.device_type = $raw.net_device_type;
        let count = usize::try_from($raw.v_props.ndevs).unwrap_or(0);
        $common.members = $raw.v_props.devs.iter().copied().take(count).collect();
        $common.max_p2p_bytes = $raw.max_p2p_bytes;
        $common.max_coll_bytes = $raw.max_coll_bytes;
    };
}

impl Table {
    /// Returns the table of `version` at the address of its symbol; `None` for a version that does not exist.
    ///
    /// # Safety
    /// `address` is the plugin's symbol for that version, and the plugin stays loaded while the table is in use.
    pub(crate) unsafe fn at(version: u32, address: *const c_void) -> Option<Self> {
        // SAFETY: the caller promises that each cast is to the type that the symbol of this version has.
        unsafe {
            Some(match version {
                6 => Self::V6(address.cast::<v6::Net>().as_ref()?),
                7 => Self::V7(address.cast::<v7::Net>().as_ref()?),
                8 => Self::V8(address.cast::<v8::Net>().as_ref()?),
                9 => Self::V9(address.cast::<v9::Net>().as_ref()?),
                10 => Self::V10(address.cast::<v10::Net>().as_ref()?),
                11 => Self::V11(address.cast::<v11::Net>().as_ref()?),
                12 => Self::V12(address.cast::<v12::Net>().as_ref()?),
                _ => return None,
            })
        }
    }

    /// Returns the size of the table of `version`; `None` for a version that does not exist.
    pub(crate) fn bytes(version: u32) -> Option<usize> {
        Some(match version {
            6 => size_of::<v6::Net>(),
            7 => size_of::<v7::Net>(),
            8 => size_of::<v8::Net>(),
            9 => size_of::<v9::Net>(),
            10 => size_of::<v10::Net>(),
            11 => size_of::<v11::Net>(),
            12 => size_of::<v12::Net>(),
            _ => return None,
        })
    }

    /// Returns the version of the API.
    pub(crate) fn version(self) -> u32 {
        match self {
            Self::V6(_) => 6,
            Self::V7(_) => 7,
            Self::V8(_) => 8,
            Self::V9(_) => 9,
            Self::V10(_) => 10,
            Self::V11(_) => 11,
            Self::V12(_) => 12,
        }
    }

    /// Returns the pointer to the plugin's name.
    pub(crate) fn name(self) -> *const c_char {
        each!(self, net => net.name)
    }

    /// Returns the size of the largest message that NCCL would send with this version, if the version limits it.
    pub(crate) fn message_limit(self) -> Option<usize> {
        (self.version() <= 8).then_some(MAX_NET_SIZE)
    }

    /// Returns the size of the largest registration, if the version limits it.
    pub(crate) fn registration_limit(self) -> Option<usize> {
        (self.version() <= 7).then_some(c_int::MAX as usize)
    }

    /// Gets the properties of a device; `None` if the table has no such function.
    ///
    /// # Safety
    /// The plugin was started.
    pub(crate) unsafe fn properties(self, device: c_int) -> Option<Result<Properties, NcclResult>> {
        match self {
            Self::V6(net) => read!(net, device, |raw, common| {
                let _ = &mut common;
            }),
            Self::V7(net) => read!(net, device, |raw, common| {
                common.device_type = raw.net_device_type;
            }),
            Self::V8(net) => read!(net, device, |raw, common| {
                common.device_type = raw.net_device_type;
                common.reg_is_global = raw.reg_is_global != 0;
            }),
            Self::V9(net) => read!(net, device, |raw, common| {
                from_v9!(raw, common);
            }),
            Self::V10(net) => read!(net, device, |raw, common| {
                from_v9!(raw, common);
            }),
            Self::V11(net) => read!(net, device, |raw, common| {
                from_v9!(raw, common);
            }),
            Self::V12(net) => read!(net, device, |raw, common| {
                from_v9!(raw, common);
                common.rail_id = raw.rail_id;
                common.plane_id = raw.plane_id;
            }),
        }
    }
}

/// Returns the string at `pointer`, or `None` for NULL.
///
/// # Safety
/// `pointer` is NULL or points to a string that ends with a NUL.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the caller promises it.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}
