//! Failures on demand: the second call of this function answers that error.

use std::ffi::c_int;
use std::time::Duration;

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

/// What can be made slow: what is done outside of the world's lock meanwhile.
const SLOW: &[&str] = &["create_qp", "modify_qp", "destroy_qp"];

/// What can be said of one device alone: what is about a queue pair that is there already.
const OF_A_DEVICE: &[&str] = &["modify_qp", "destroy_qp"];

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    Fails(c_int),
    Takes(Duration),
}

/// One call, as faults see it.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) function: &'a str,
    /// For modify_qp the state that it goes to.
    pub(crate) state: Option<c_int>,
    /// The device, where it is known.
    pub(crate) device: Option<&'a str>,
}

/// One failure, `FUNCTION[/STATE][@DEVICE]:NUMBER:ERROR`, or with milliseconds in place of the error a call that takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    function: &'static str,
    /// Only modify_qp to this state.
    state: Option<c_int>,
    /// Only on this device.
    device: Option<String>,
    /// Which calls it is about, counted from 1; none: every one.
    numbers: Option<(u64, u64)>,
    effect: Effect,
    calls: u64,
}

impl Fault {
    /// Reads one failure; the error says what is allowed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::read(text, "a failure is FUNCTION:NUMBER:ERROR, such as create_qp:2:ENOMEM", |_, error| {
            let known = named(ERRORS, error).or_else(|| error.parse().ok().filter(|&errno| errno > 0));
            known.map(Effect::Fails).ok_or_else(|| {
                format!(
                    "no error {error}; a positive number, or one of {}",
                    ERRORS.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ")
                )
            })
        })
    }

    /// Reads what is slow; the error says what is allowed.
    pub(crate) fn parse_slow(text: &str) -> Result<Self, String> {
        Self::read(text, "what is slow is FUNCTION:NUMBER:MILLISECONDS, such as destroy_qp:*:100", |function, time| {
            if !SLOW.contains(&function) {
                return Err(format!("{function} is never slow; one of {} is", SLOW.join(", ")));
            }
            time.parse()
                .map(|milliseconds| Effect::Takes(Duration::from_millis(milliseconds)))
                .map_err(|_| format!("{time} is no number of milliseconds"))
        })
    }

    fn read(
        text: &str,
        form: &str,
        effect: impl Fn(&'static str, &str) -> Result<Effect, String>,
    ) -> Result<Self, String> {
        let mut parts = text.split(':').map(str::trim);
        let (Some(subject), Some(number), Some(rest), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(form.to_owned());
        };
        let (subject, device) = match subject.split_once('@') {
            Some((subject, device)) => (subject, Some(device.to_owned())),
            None => (subject, None),
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
        if device.is_some() && !OF_A_DEVICE.contains(function) {
            return Err(format!("only {} are about one device", OF_A_DEVICE.join(" and ")));
        }
        let numbers = match number {
            "*" => None,
            number => Some(range(number).ok_or("NUMBER is the call that fails, from 1, or 2-5, or * for every one")?),
        };
        Ok(Self { function, state, device, numbers, effect: effect(function, rest)?, calls: 0 })
    }

    /// The function's name.
    pub(crate) fn function(&self) -> &'static str {
        self.function
    }

    /// Counts a call where this is a failure; the error if this is one that fails.
    pub(crate) fn strike(&mut self, call: Call<'_>) -> Option<c_int> {
        match self.effect {
            Effect::Fails(errno) => self.hits(call).then_some(errno),
            Effect::Takes(_) => None,
        }
    }

    /// Counts a call where this is what is slow; how long it takes then.
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
        self.numbers.is_none_or(|(first, last)| (first..=last).contains(&self.calls))
    }
}

/// The number of the error of this name.
pub(crate) fn errno(name: &str) -> Option<c_int> {
    named(ERRORS, name)
}

/// One number, or a first and a last one, from 1.
fn range(text: &str) -> Option<(u64, u64)> {
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

    fn call(function: &str) -> Call<'_> {
        Call { function, state: None, device: None }
    }

    #[test]
    fn the_call_that_is_named_fails_and_no_other() {
        let mut fault = Fault::parse("create_qp:2:ENOMEM").expect("well-formed");
        let answers = [None, Some(libc::ENOMEM), None].map(|expected| (expected, fault.strike(call("create_qp"))));
        assert!(answers.iter().all(|(expected, got)| expected == got), "{answers:?}");
        assert_eq!(Fault::parse("create_qp:1:ENOMEM").expect("well-formed").strike(call("create_cq")), None);
    }

    #[test]
    fn a_state_narrows_it_and_a_star_means_every_call() {
        let mut fault = Fault::parse("modify_qp/RTR:*:110").expect("well-formed");
        let to = |state| Call { state: Some(state), ..call("modify_qp") };
        assert_eq!(fault.strike(to(sys::QPS_INIT)), None);
        assert_eq!(fault.strike(to(sys::QPS_RTR)), Some(libc::ETIMEDOUT));
        assert_eq!(fault.strike(to(sys::QPS_RTR)), Some(libc::ETIMEDOUT));
    }

    #[test]
    fn several_calls_in_a_row_on_one_device() {
        let mut fault = Fault::parse("modify_qp/RTR@b:2-3:ETIMEDOUT").expect("well-formed");
        let on = |device| Call { state: Some(sys::QPS_RTR), device: Some(device), ..call("modify_qp") };
        let struck = ["b", "a", "b", "a", "b", "b"].map(|device| fault.strike(on(device)).is_some());
        assert_eq!(struck, [false, false, true, false, true, false], "those of another device do not count");
    }

    #[test]
    fn what_is_slow_fails_not_and_what_fails_is_not_slow() {
        let mut slow = Fault::parse_slow("destroy_qp:2:30").expect("well-formed");
        assert_eq!(slow.strike(call("destroy_qp")), None);
        assert_eq!((slow.delay(call("destroy_qp")), slow.delay(call("create_qp"))), (None, None));
        assert_eq!(slow.delay(call("destroy_qp")), Some(Duration::from_millis(30)));
        assert_eq!(Fault::parse("destroy_qp:1:EIO").expect("well-formed").delay(call("destroy_qp")), None);
        for (text, part) in
            [("destroy_qp", "MILLISECONDS"), ("poll_cq:1:5", "never slow"), ("create_qp:1:EIO", "no number")]
        {
            let error = Fault::parse_slow(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
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
            ("create_qp@a:1:EIO", "modify_qp and destroy_qp"),
            ("create_qp:3-2:EIO", "from 1"),
            ("modify_qp/UP:1:EIO", "RESET"),
        ] {
            let error = Fault::parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
