//! `ncclResult_t`, the result of every call of the API.

use core::ffi::c_int;
use core::fmt;

/// `ncclResult_t`: the result of a call.
///
/// A C enum may hold any integer, so this is a number with named values, not a Rust enum: an unknown value from a
/// plugin must not be undefined behaviour. The values are those of NCCL's public header `nccl.h`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "every code but SUCCESS reports a failure"]
pub struct NcclResult(pub c_int);

impl NcclResult {
    /// `ncclSuccess`: the call has succeeded; calls that are polled also return it while they are not ready.
    pub const SUCCESS: Self = Self(0);
    /// `ncclUnhandledCudaError`: a CUDA call failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    /// `ncclSystemError`: the kernel, a driver or a socket of this host failed.
    pub const SYSTEM_ERROR: Self = Self(2);
    /// `ncclInternalError`: the protocol was violated, or there is a bug.
    pub const INTERNAL_ERROR: Self = Self(3);
    /// `ncclInvalidArgument`: an argument has a value that is not allowed.
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// `ncclInvalidUsage`: the configuration or the order of calls is wrong.
    pub const INVALID_USAGE: Self = Self(5);
    /// `ncclRemoteError`: the peer or the path to it failed.
    pub const REMOTE_ERROR: Self = Self(6);
    /// `ncclInProgress`: for NCCL's own calls; a net plugin must never return it.
    pub const IN_PROGRESS: Self = Self(7);
    /// `ncclTimeout`: a timeout expired (newer NCCL only).
    pub const TIMEOUT: Self = Self(8);

    /// Returns true if this is [`Self::SUCCESS`].
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }

    /// Returns the C name, such as `ncclRemoteError`, or `None` for a number that NCCL does not define.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self(0) => "ncclSuccess",
            Self(1) => "ncclUnhandledCudaError",
            Self(2) => "ncclSystemError",
            Self(3) => "ncclInternalError",
            Self(4) => "ncclInvalidArgument",
            Self(5) => "ncclInvalidUsage",
            Self(6) => "ncclRemoteError",
            Self(7) => "ncclInProgress",
            Self(8) => "ncclTimeout",
            Self(_) => return None,
        })
    }
}

impl fmt::Display for NcclResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "the unknown ncclResult_t {}", self.0),
        }
    }
}

impl fmt::Debug for NcclResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const _: () = assert!(size_of::<NcclResult>() == 4);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::NcclResult;
    use std::string::ToString;

    #[test]
    fn a_known_code_shows_its_name_and_an_unknown_one_its_number() {
        assert_eq!(NcclResult::REMOTE_ERROR.to_string(), "ncclRemoteError");
        assert_eq!(NcclResult(77).to_string(), "the unknown ncclResult_t 77");
        assert!(NcclResult::SUCCESS.is_success());
        assert!(!NcclResult::TIMEOUT.is_success());
    }
}
