//! The meaning of the status of a failed completion.

use std::ffi::c_int;

use railweave_fabric::WorkStatus;

use crate::sys;

/// Returns the meaning of a status other than success.
pub(crate) fn meaning(status: c_int) -> WorkStatus {
    match status {
        sys::WC_LOC_LEN_ERR => WorkStatus::LocalLength,
        sys::WC_LOC_QP_OP_ERR => WorkStatus::LocalOperation,
        sys::WC_LOC_PROT_ERR => WorkStatus::LocalProtection,
        sys::WC_WR_FLUSH_ERR => WorkStatus::Flushed,
        sys::WC_BAD_RESP_ERR => WorkStatus::BadResponse,
        sys::WC_LOC_ACCESS_ERR => WorkStatus::LocalAccess,
        sys::WC_REM_INV_REQ_ERR => WorkStatus::RemoteInvalidRequest,
        sys::WC_REM_ACCESS_ERR => WorkStatus::RemoteAccess,
        sys::WC_REM_OP_ERR => WorkStatus::RemoteOperation,
        sys::WC_RETRY_EXC_ERR => WorkStatus::RetriesExceeded,
        sys::WC_RNR_RETRY_EXC_ERR => WorkStatus::ReceiverNotReady,
        sys::WC_REM_ABORT_ERR => WorkStatus::RemoteAborted,
        sys::WC_FATAL_ERR => WorkStatus::Fatal,
        sys::WC_RESP_TIMEOUT_ERR => WorkStatus::ResponseTimeout,
        sys::WC_GENERAL_ERR => WorkStatus::General,
        _ => WorkStatus::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_that_has_a_meaning_has_one_of_its_own() {
        let meanings: Vec<_> = (0..40).map(meaning).filter(|status| *status != WorkStatus::Unknown).collect();
        assert_eq!(meanings.len(), WorkStatus::ALL.len() - 1);
        assert!(meanings.iter().enumerate().all(|(at, status)| !meanings[..at].contains(status)), "{meanings:?}");
        assert_eq!((meaning(-1), meaning(sys::WC_RETRY_EXC_ERR)), (WorkStatus::Unknown, WorkStatus::RetriesExceeded));
    }
}
