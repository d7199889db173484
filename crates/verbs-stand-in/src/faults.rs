//! Failures on demand: the second call of this function answers that error.

use std::ffi::c_int;

use railweave_fabric_verbs::sys;

/// What can be made to fail, by its name without `ibv_`, or with `mlx5dv_`.
const FUNCTIONS: &[&str] = &[
    "get_device_list",
    "open_device",
    "close_device",
    "query_device",
    "query_port",
    "query_port_speed",
    "query_gid",
    "query_gid_ex",
    "query_pkey",
    "get_async_event",
    "alloc_pd",
    "dealloc_pd",
    "reg_mr",
    "reg_mr_iova2",
    "reg_dmabuf_mr",
    "mlx5dv_reg_dmabuf_mr",
    "mlx5dv_get_data_direct_sysfs_path",
    "dereg_mr",
    "create_cq",
    "destroy_cq",
    "create_srq",
    "destroy_srq",
    "create_qp",
    "modify_qp",
    "query_qp",
    "destroy_qp",
    "query_ece",
    "set_ece",
    "fork_init",
    "post_send",
    "post_recv",
    "post_srq_recv",
    "poll_cq",
];

const STATES: &[(&str, c_int)] = &[
    ("RESET", sys::QPS_RESET),
    ("INIT", sys::QPS_INIT),
    ("RTR", sys::QPS_RTR),
    ("RTS", sys::QPS_RTS),
    ("ERR", sys::QPS_ERR),
];

const ERRORS: &[(&str, c_int)] = &[
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBADF", libc::EBADF),
    ("EBUSY", libc::EBUSY),
    ("EFAULT", libc::EFAULT),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("ENODEV", libc::ENODEV),
    ("ENOENT", libc::ENOENT),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

/// One failure: `FUNCTION[/STATE]:NUMBER:ERROR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    function: &'static str,
    /// Only modify_qp to this state.
    state: Option<c_int>,
    /// Which call fails, counted from 1; none: every one.
    number: Option<u64>,
    errno: c_int,
    calls: u64,
}

impl Fault {
    /// Reads one failure; the error says what is allowed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':').map(str::trim);
        let (Some(subject), Some(number), Some(error), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("a failure is FUNCTION:NUMBER:ERROR, such as create_qp:2:ENOMEM".to_owned());
        };
        let (name, state) = match subject.split_once('/') {
            Some((name, state)) => (name, Some(named(STATES, state).ok_or("a state is RESET, INIT, RTR, RTS or ERR")?)),
            None => (subject, None),
        };
        let function = FUNCTIONS
            .iter()
            .find(|&&function| function == name)
            .ok_or_else(|| format!("no function {name}; one of {}", FUNCTIONS.join(", ")))?;
        if state.is_some() && *function != "modify_qp" {
            return Err("only modify_qp goes to a state".to_owned());
        }
        let number = match number {
            "*" => None,
            number => match number.parse() {
                Ok(0) | Err(_) => return Err("NUMBER is the call that fails, from 1, or * for every one".to_owned()),
                Ok(number) => Some(number),
            },
        };
        let errno =
            named(ERRORS, error).or_else(|| error.parse().ok().filter(|&errno| errno > 0)).ok_or_else(|| {
                format!(
                    "no error {error}; a positive number, or one of {}",
                    ERRORS.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ")
                )
            })?;
        Ok(Self { function, state, number, errno, calls: 0 })
    }

    /// The function's name.
    pub(crate) fn function(&self) -> &'static str {
        self.function
    }

    /// Counts a call of `function` (for modify_qp to `state`); the error if this is one that fails.
    pub(crate) fn strike(&mut self, function: &str, state: Option<c_int>) -> Option<c_int> {
        if self.function != function || (self.state.is_some() && self.state != state) {
            return None;
        }
        self.calls += 1;
        (self.number.is_none_or(|number| number == self.calls)).then_some(self.errno)
    }
}

/// The number of the error of this name.
pub(crate) fn errno(name: &str) -> Option<c_int> {
    named(ERRORS, name)
}

fn named(table: &[(&str, c_int)], name: &str) -> Option<c_int> {
    table.iter().find(|&&(known, _)| known == name).map(|&(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_that_is_named_fails_and_no_other() {
        let mut fault = Fault::parse("create_qp:2:ENOMEM").expect("well-formed");
        let answers = [None, Some(libc::ENOMEM), None].map(|expected| (expected, fault.strike("create_qp", None)));
        assert!(answers.iter().all(|(expected, got)| expected == got), "{answers:?}");
        assert_eq!(Fault::parse("create_qp:1:ENOMEM").expect("well-formed").strike("create_cq", None), None);
    }

    #[test]
    fn a_state_narrows_it_and_a_star_means_every_call() {
        let mut fault = Fault::parse("modify_qp/RTR:*:110").expect("well-formed");
        assert_eq!(fault.strike("modify_qp", Some(sys::QPS_INIT)), None);
        assert_eq!(fault.strike("modify_qp", Some(sys::QPS_RTR)), Some(libc::ETIMEDOUT));
        assert_eq!(fault.strike("modify_qp", Some(sys::QPS_RTR)), Some(libc::ETIMEDOUT));
    }

    #[test]
    fn what_is_not_a_failure_says_what_one_is() {
        for (text, part) in [
            ("create_qp", "FUNCTION:NUMBER:ERROR"),
            ("create_qp:0:ENOMEM", "from 1"),
            ("create_pq:1:ENOMEM", "create_qp"),
            ("create_qp:1:ENOPE", "ENOMEM"),
            ("create_qp:1:-1", "positive"),
            ("create_qp/RTR:1:EIO", "modify_qp"),
            ("modify_qp/UP:1:EIO", "RESET"),
        ] {
            let error = Fault::parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
