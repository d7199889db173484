//! The sentences about orders that change nothing, which agents and files share.

pub(super) fn drained_before(port: &str) -> String {
    format!("port {port} was drained already")
}

pub(super) fn no_drain(port: &str) -> String {
    format!("nobody has ordered a drain of port {port}")
}

pub(super) fn set_before(matchers: &str, actions: &str) -> String {
    format!("the rule {matchers} -> {actions} has this place already")
}

pub(super) fn no_rule(matchers: &str) -> String {
    format!("nobody has ordered a rule with the matchers {matchers}")
}
