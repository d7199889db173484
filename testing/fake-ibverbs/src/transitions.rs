//! The steps that ibv_modify_qp allows: the states, the attributes that each step needs, and their values.
//!
//! The table is that of the InfiniBand specification, volume 1, section 11.2.5.2 (Modify Queue Pair), for reliable
//! connections, without optional attributes: neither Railweave nor NCCL passes one.

use std::ffi::c_int;

use railweave_fabric_verbs::sys;

use crate::description::{DeviceFacts, PortFacts};

/// The largest packet sequence number.
const LARGEST_PSN: u32 = 0xff_ffff;

/// Returns the attributes that a step takes; `None` if no such step exists.
fn mask(from: c_int, to: c_int) -> Option<c_int> {
    Some(match (from, to) {
        (_, sys::QPS_RESET | sys::QPS_ERR) => 0,
        (sys::QPS_RESET, sys::QPS_INIT) => sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS,
        (sys::QPS_INIT, sys::QPS_RTR) => {
            sys::QP_AV
                | sys::QP_PATH_MTU
                | sys::QP_DEST_QPN
                | sys::QP_RQ_PSN
                | sys::QP_MAX_DEST_RD_ATOMIC
                | sys::QP_MIN_RNR_TIMER
        }
        (sys::QPS_RTR, sys::QPS_RTS) => {
            sys::QP_TIMEOUT | sys::QP_RETRY_CNT | sys::QP_RNR_RETRY | sys::QP_SQ_PSN | sys::QP_MAX_QP_RD_ATOMIC
        }
        _ => return None,
    })
}

const NAMES: &[(c_int, &str)] = &[
    (sys::QP_STATE, "STATE"),
    (sys::QP_ACCESS_FLAGS, "ACCESS_FLAGS"),
    (sys::QP_PKEY_INDEX, "PKEY_INDEX"),
    (sys::QP_PORT, "PORT"),
    (sys::QP_AV, "AV"),
    (sys::QP_PATH_MTU, "PATH_MTU"),
    (sys::QP_TIMEOUT, "TIMEOUT"),
    (sys::QP_RETRY_CNT, "RETRY_CNT"),
    (sys::QP_RNR_RETRY, "RNR_RETRY"),
    (sys::QP_RQ_PSN, "RQ_PSN"),
    (sys::QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
    (sys::QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"),
    (sys::QP_SQ_PSN, "SQ_PSN"),
    (sys::QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
    (sys::QP_DEST_QPN, "DEST_QPN"),
];

fn names(mask: c_int) -> String {
    let mut names: Vec<String> =
        NAMES.iter().filter(|&&(bit, _)| mask & bit != 0).map(|&(_, name)| name.to_owned()).collect();
    let rest = NAMES.iter().fold(mask, |rest, &(bit, _)| rest & !bit);
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    names.join(", ")
}

fn state_name(state: c_int) -> String {
    match state {
        sys::QPS_RESET => "RESET".to_owned(),
        sys::QPS_INIT => "INIT".to_owned(),
        sys::QPS_RTR => "RTR".to_owned(),
        sys::QPS_RTS => "RTS".to_owned(),
        sys::QPS_ERR => "ERR".to_owned(),
        other => format!("state {other}"),
    }
}

/// One call of ibv_modify_qp.
pub(crate) struct Request<'call> {
    /// The queue pair's current state.
    pub(crate) state: c_int,
    /// The queue pair's port; 0 before INIT.
    pub(crate) port: u8,
    pub(crate) device: &'call DeviceFacts,
    pub(crate) attributes: &'call sys::QpAttributes,
    pub(crate) mask: c_int,
}

impl Request<'_> {
    /// Returns the state after the call.
    pub(crate) fn target(&self) -> c_int {
        if self.has(sys::QP_STATE) { self.attributes.qp_state } else { self.state }
    }

    /// Checks the call; the error names the mistake.
    pub(crate) fn check(&self) -> Result<(), String> {
        let target = self.target();
        let step = || format!("{} to {}", state_name(self.state), state_name(target));
        let Some(needed) = mask(self.state, target) else {
            return Err(format!("no queue pair goes from {}", step()));
        };
        let given = self.mask & !sys::QP_STATE;
        if needed & !given != 0 {
            return Err(format!("{} needs {}", step(), names(needed & !given)));
        }
        if given & !needed != 0 {
            return Err(format!("{} takes no {}", step(), names(given & !needed)));
        }
        self.check_values()
    }

    fn has(&self, bit: c_int) -> bool {
        self.mask & bit != 0
    }

    fn check_values(&self) -> Result<(), String> {
        let given = self.attributes;
        let within = |bit, name: &str, value: u32, from: u32, to: u32| {
            if self.has(bit) && !(from..=to).contains(&value) {
                return Err(format!("{name} is {value:#x}; {from:#x} to {to:#x} are allowed"));
            }
            Ok(())
        };
        let ports = self.device.ports.len() as u32;
        within(sys::QP_PORT, "port_num", given.port_num.into(), 1, ports)?;
        within(sys::QP_RQ_PSN, "rq_psn", given.rq_psn, 0, LARGEST_PSN)?;
        within(sys::QP_SQ_PSN, "sq_psn", given.sq_psn, 0, LARGEST_PSN)?;
        within(sys::QP_DEST_QPN, "dest_qp_num", given.dest_qp_num, 1, 0xff_ffff)?;
        within(sys::QP_TIMEOUT, "timeout", given.timeout.into(), 0, 31)?;
        within(sys::QP_RETRY_CNT, "retry_cnt", given.retry_cnt.into(), 0, 7)?;
        within(sys::QP_RNR_RETRY, "rnr_retry", given.rnr_retry.into(), 0, 7)?;
        within(sys::QP_MIN_RNR_TIMER, "min_rnr_timer", given.min_rnr_timer.into(), 0, 31)?;
        let reads = self.device.max_rd_atomic;
        within(sys::QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", given.max_rd_atomic.into(), 0, reads)?;
        within(sys::QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", given.max_dest_rd_atomic.into(), 0, reads)?;
        let number = if self.has(sys::QP_PORT) { given.port_num } else { self.port };
        let Some(port) = number.checked_sub(1).and_then(|index| self.device.ports.get(usize::from(index))) else {
            return Ok(());
        };
        let pkeys = (port.pkeys.len() as u32).saturating_sub(1);
        within(sys::QP_PKEY_INDEX, "pkey_index", given.pkey_index.into(), 0, pkeys)?;
        within(sys::QP_PATH_MTU, "path_mtu", given.path_mtu as u32, 1, port.mtu as u32)?;
        if self.has(sys::QP_AV) { check_address(&given.ah_attr, number, port) } else { Ok(()) }
    }
}

fn check_address(address: &sys::AhAttributes, number: u8, port: &PortFacts) -> Result<(), String> {
    if address.port_num != number {
        return Err(format!("ah_attr.port_num is {}, but the queue pair is on port {number}", address.port_num));
    }
    if address.sl > 15 {
        return Err(format!("ah_attr.sl is {}; 0 to 15 are allowed", address.sl));
    }
    let ethernet = port.link_layer == sys::LINK_LAYER_ETHERNET;
    if address.is_global == 0 {
        return if ethernet { Err("RoCE needs a GID: ah_attr.is_global is 0".to_owned()) } else { Ok(()) };
    }
    let index = address.grh.sgid_index;
    if port.gids.get(usize::from(index)).copied().flatten().is_none() {
        return Err(format!("ah_attr.grh.sgid_index is {index}, but port {number} has no GID at that index"));
    }
    if address.grh.dgid == sys::Gid::default() {
        return Err("ah_attr.grh.dgid is zero".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{DEFAULT, Machine};

    fn device() -> DeviceFacts {
        Machine::described(DEFAULT, "plain").expect("well-formed").devices.remove(0)
    }

    fn check(state: c_int, attributes: &sys::QpAttributes, mask: c_int) -> Result<(), String> {
        let port = u8::from(state != sys::QPS_RESET);
        Request { state, port, device: &device(), attributes, mask }.check()
    }

    const TO_INIT: c_int = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
    const TO_RTR: c_int = sys::QP_STATE
        | sys::QP_AV
        | sys::QP_PATH_MTU
        | sys::QP_DEST_QPN
        | sys::QP_RQ_PSN
        | sys::QP_MAX_DEST_RD_ATOMIC
        | sys::QP_MIN_RNR_TIMER;
    const TO_RTS: c_int = sys::QP_STATE
        | sys::QP_TIMEOUT
        | sys::QP_RETRY_CNT
        | sys::QP_RNR_RETRY
        | sys::QP_SQ_PSN
        | sys::QP_MAX_QP_RD_ATOMIC;

    fn good(state: c_int) -> sys::QpAttributes {
        let mut attributes = sys::QpAttributes {
            qp_state: state,
            path_mtu: 5,
            dest_qp_num: 9,
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            port_num: 1,
            timeout: 20,
            retry_cnt: 7,
            rnr_retry: 7,
            ..sys::QpAttributes::default()
        };
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.sgid_index = 1;
        attributes.ah_attr.grh.dgid = sys::Gid([1; 16]);
        attributes
    }

    #[test]
    fn the_usual_way_is_allowed_and_each_attribute_of_it_is_needed() {
        let steps = [
            (sys::QPS_RESET, sys::QPS_INIT, TO_INIT),
            (sys::QPS_INIT, sys::QPS_RTR, TO_RTR),
            (sys::QPS_RTR, sys::QPS_RTS, TO_RTS),
        ];
        for (from, to, mask) in steps {
            check(from, &good(to), mask).expect("complete");
            for &(bit, name) in NAMES.iter().filter(|&&(bit, _)| bit != sys::QP_STATE) {
                let result = check(from, &good(to), mask ^ bit);
                if mask & bit != 0 {
                    let error = result.expect_err(name);
                    assert!(error.contains("needs") && error.contains(name), "{error}");
                } else {
                    let error = result.expect_err(name);
                    assert!(error.contains("takes no") && error.contains(name), "{error}");
                }
            }
        }
    }

    #[test]
    fn no_step_is_left_out() {
        for (from, to) in [
            (sys::QPS_RESET, sys::QPS_RTR),
            (sys::QPS_RESET, sys::QPS_RTS),
            (sys::QPS_INIT, sys::QPS_RTS),
            (sys::QPS_RTS, sys::QPS_RTR),
            (sys::QPS_ERR, sys::QPS_INIT),
            (sys::QPS_RTS, 4),
        ] {
            assert!(check(from, &good(to), sys::QP_STATE).expect_err("not allowed").contains("no queue pair goes"));
        }
        for from in [sys::QPS_RESET, sys::QPS_INIT, sys::QPS_RTR, sys::QPS_RTS, sys::QPS_ERR] {
            for to in [sys::QPS_RESET, sys::QPS_ERR] {
                check(from, &good(to), sys::QP_STATE).expect("always allowed");
            }
        }
    }

    #[test]
    fn a_wrong_value_is_named() {
        type Spoil = fn(&mut sys::QpAttributes);
        let cases: [(&str, c_int, Spoil); 16] = [
            ("port_num", TO_INIT, |a| a.port_num = 2),
            ("port_num", TO_INIT, |a| a.port_num = 0),
            ("pkey_index", TO_INIT, |a| a.pkey_index = 1),
            ("path_mtu", TO_RTR, |a| a.path_mtu = 6),
            ("path_mtu", TO_RTR, |a| a.path_mtu = 0),
            ("rq_psn", TO_RTR, |a| a.rq_psn = 1 << 24),
            ("dest_qp_num", TO_RTR, |a| a.dest_qp_num = 0),
            ("min_rnr_timer", TO_RTR, |a| a.min_rnr_timer = 32),
            ("max_dest_rd_atomic", TO_RTR, |a| a.max_dest_rd_atomic = 17),
            ("ah_attr.port_num", TO_RTR, |a| a.ah_attr.port_num = 2),
            ("is_global", TO_RTR, |a| a.ah_attr.is_global = 0),
            ("sgid_index", TO_RTR, |a| a.ah_attr.grh.sgid_index = 2),
            ("dgid", TO_RTR, |a| a.ah_attr.grh.dgid = sys::Gid::default()),
            ("timeout", TO_RTS, |a| a.timeout = 32),
            ("retry_cnt", TO_RTS, |a| a.retry_cnt = 8),
            ("rnr_retry", TO_RTS, |a| a.rnr_retry = 8),
        ];
        for (name, mask, spoil) in cases {
            let (from, to) = match mask {
                TO_INIT => (sys::QPS_RESET, sys::QPS_INIT),
                TO_RTR => (sys::QPS_INIT, sys::QPS_RTR),
                _ => (sys::QPS_RTR, sys::QPS_RTS),
            };
            let mut attributes = good(to);
            spoil(&mut attributes);
            let error = check(from, &attributes, mask).expect_err(name);
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
