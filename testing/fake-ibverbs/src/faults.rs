//! Failures and delays on demand, such as an error from the second call of a function.

use std::ffi::c_int;
use std::time::Duration;

use railweave_fabric_verbs::sys;
use serde::Deserialize;

/// The functions that can be made to fail, by their names without `ibv_`, or with `mlx5dv_`.
const FUNCTIONS: &str = "get_device_list open_device close_device query_device query_port query_port_speed query_gid \
    query_gid_ex alloc_pd dealloc_pd reg_mr reg_mr_iova2 reg_dmabuf_mr mlx5dv_reg_dmabuf_mr \
    mlx5dv_get_data_direct_sysfs_path dereg_mr create_cq destroy_cq create_srq destroy_srq create_qp modify_qp \
    query_qp destroy_qp query_ece set_ece fork_init post_send post_recv post_srq_recv poll_cq";

/// The functions that can be made slow, because they wait outside the world's lock.
const SLOW: &[&str] = &["create_qp", "modify_qp", "destroy_qp"];

/// The functions that can fail on one device alone, because they are about an existing queue pair.
const OF_A_DEVICE: &[&str] = &["modify_qp", "query_qp", "destroy_qp"];

const STATES: &[(&str, c_int)] = &[
    ("RESET", sys::QPS_RESET),
    ("INIT", sys::QPS_INIT),
    ("RTR", sys::QPS_RTR),
    ("RTS", sys::QPS_RTS),
    ("ERR", sys::QPS_ERR),
];

/// The errors that have names here; others are given as numbers.
const ERRORS: &[(&str, c_int)] = &[
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBUSY", libc::EBUSY),
    ("EFAULT", libc::EFAULT),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("ENODEV", libc::ENODEV),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

/// The effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Fails(c_int),
    Takes(Duration),
}

/// One call of a function.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) function: &'a str,
    /// The target state of modify_qp; otherwise `None`.
    pub(crate) state: Option<c_int>,
    /// The device's name, if it is known.
    pub(crate) device: Option<&'a str>,
}

/// One fault: a failure, `FUNCTION[/STATE][@DEVICE]:NUMBER:ERROR`, or a delay, `...:NUMBER:MILLISECONDSms`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Fault {
    function: String,
    /// The only target state of modify_qp to which the fault applies; `None` for all.
    state: Option<c_int>,
    /// The only device to which the fault applies; `None` for all.
    device: Option<String>,
    /// The first and last call that the fault strikes, counted from 1.
    first: u64,
    last: u64,
    effect: Effect,
    /// The number of calls so far that match this fault.
    calls: u64,
}

impl TryFrom<String> for Fault {
    type Error = String;

    /// Parses one fault; the error names what is allowed.
    fn try_from(text: String) -> Result<Self, String> {
        let [subject, number, rest] = text.split(':').map(str::trim).collect::<Vec<_>>()[..] else {
            return Err("a fault is FUNCTION:NUMBER:ERROR, such as create_qp:2:ENOMEM or destroy_qp:*:9ms".to_owned());
        };
        let (subject, device) = subject.split_once('@').map_or((subject, None), |(subject, of)| (subject, Some(of)));
        let (function, state) = subject.split_once('/').map_or((subject, None), |(name, state)| (name, Some(state)));
        if !FUNCTIONS.split_whitespace().any(|known| known == function) {
            return Err(format!("no function {function}; name one of {FUNCTIONS}"));
        }
        if state.is_some() && function != "modify_qp" {
            return Err("only modify_qp takes a state".to_owned());
        }
        if device.is_some() && !OF_A_DEVICE.contains(&function) {
            return Err(format!("only {} take a device", OF_A_DEVICE.join(" and ")));
        }
        let state = state.map(|state| named(STATES, state).ok_or("a state is RESET, INIT, RTR, RTS or ERR"));
        let (first, last) = range(number).ok_or("NUMBER is the call that fails, from 1, or 2-5, or * for every one")?;
        let effect = Effect::read(function, rest)?;
        let (function, device) = (function.to_owned(), device.map(str::to_owned));
        Ok(Self { function, state: state.transpose()?, device, first, last, effect, calls: 0 })
    }
}

impl Effect {
    fn read(function: &str, text: &str) -> Result<Self, String> {
        if let Some(time) = text.strip_suffix("ms").and_then(|time| time.parse().ok()) {
            return match SLOW.contains(&function) {
                true => Ok(Self::Takes(Duration::from_millis(time))),
                false => Err(format!("{function} cannot be made slow; name one of {}", SLOW.join(", "))),
            };
        }
        let number = || text.parse().ok().filter(|&errno| errno > 0);
        errno(text).or_else(number).map(Self::Fails).ok_or_else(|| {
            let names: Vec<&str> = ERRORS.iter().map(|&(name, _)| name).collect();
            format!("no error {text}; a positive number, one of {}, or milliseconds such as 100ms", names.join(", "))
        })
    }
}

impl Fault {
    /// Returns true if the fault is about this function.
    pub(crate) fn is_of(&self, function: &str) -> bool {
        self.function == function
    }

    /// Counts the call if this fault is a failure. Returns the error if this call fails.
    pub(crate) fn strike(&mut self, call: Call<'_>) -> Option<c_int> {
        match self.effect {
            Effect::Fails(errno) => self.hits(call).then_some(errno),
            Effect::Takes(_) => None,
        }
    }

    /// Counts the call if this fault is a delay. Returns the time if this call is slow.
    pub(crate) fn delay(&mut self, call: Call<'_>) -> Option<Duration> {
        match self.effect {
            Effect::Takes(time) => self.hits(call).then_some(time),
            Effect::Fails(_) => None,
        }
    }

    fn hits(&mut self, call: Call<'_>) -> bool {
        let is_other_device = self.device.is_some() && self.device.as_deref() != call.device;
        if self.function != call.function || self.state.is_some() && self.state != call.state || is_other_device {
            return false;
        }
        self.calls += 1;
        (self.first..=self.last).contains(&self.calls)
    }
}

/// Returns the number of the error with this name.
pub(crate) fn errno(name: &str) -> Option<c_int> {
    named(ERRORS, name)
}

/// Parses the number of a call, such as `2`, the first and the last of several, such as `2-5`, or `*` for all. Calls
/// are counted from 1.
fn range(text: &str) -> Option<(u64, u64)> {
    if text == "*" {
        return Some((1, u64::MAX));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (0 < range.0 && range.0 <= range.1).then_some(range)
}

fn named(table: &[(&str, c_int)], name: &str) -> Option<c_int> {
    table.iter().find(|&&(known, _)| known == name).map(|&(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Fault {
        Fault::try_from(text.to_owned()).expect(text)
    }

    fn call(function: &str) -> Call<'_> {
        Call { function, state: None, device: None }
    }

    #[test]
    fn the_call_that_is_named_fails_and_no_other() {
        let mut failing = fault("create_qp:2:ENOMEM");
        let answers = [None, Some(libc::ENOMEM), None].map(|expected| (expected, failing.strike(call("create_qp"))));
        assert!(answers.iter().all(|(expected, got)| expected == got), "{answers:?}");
        assert_eq!(fault("create_qp:1:ENOMEM").strike(call("create_cq")), None);
    }

    #[test]
    fn a_state_narrows_it_and_a_star_means_every_call() {
        let mut failing = fault("modify_qp/RTR:*:110");
        let to = |state| Call { state: Some(state), ..call("modify_qp") };
        assert_eq!(failing.strike(to(sys::QPS_INIT)), None);
        assert_eq!(failing.strike(to(sys::QPS_RTR)), Some(libc::ETIMEDOUT));
        assert_eq!(failing.strike(to(sys::QPS_RTR)), Some(libc::ETIMEDOUT));
    }

    #[test]
    fn several_calls_in_a_row_on_one_device() {
        let mut failing = fault("modify_qp/RTR@b:2-3:ETIMEDOUT");
        let on = |device| Call { state: Some(sys::QPS_RTR), device: Some(device), ..call("modify_qp") };
        let struck = ["b", "a", "b", "a", "b", "b"].map(|device| failing.strike(on(device)).is_some());
        assert_eq!(struck, [false, false, true, false, true, false], "those of another device do not count");
    }

    #[test]
    fn a_delay_does_not_fail_and_a_failure_does_not_delay() {
        let mut slow = fault("destroy_qp:2:30ms");
        assert_eq!(slow.strike(call("destroy_qp")), None);
        assert_eq!((slow.delay(call("destroy_qp")), slow.delay(call("create_qp"))), (None, None));
        assert_eq!(slow.delay(call("destroy_qp")), Some(Duration::from_millis(30)));
        assert_eq!(fault("destroy_qp:1:EIO").delay(call("destroy_qp")), None);
    }

    #[test]
    fn the_error_about_a_wrong_fault_says_what_is_allowed() {
        for (text, part) in [
            ("create_qp", "FUNCTION:NUMBER:ERROR"),
            ("create_qp:0:ENOMEM", "from 1"),
            ("create_pq:1:ENOMEM", "create_qp"),
            ("create_qp:1:ENOPE", "ENOMEM"),
            ("create_qp:1:-1", "positive"),
            ("create_qp/RTR:1:EIO", "modify_qp"),
            ("create_qp@a:1:EIO", "modify_qp and query_qp and destroy_qp"),
            ("create_qp:3-2:EIO", "from 1"),
            ("modify_qp/UP:1:EIO", "RESET"),
            ("poll_cq:1:5ms", "cannot be made slow"),
            ("create_qp:1:soonms", "100ms"),
        ] {
            let error = Fault::try_from(text.to_owned()).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
