//! What users read of sessions: the sentences of the protocol, with the settings that help.

use std::time::Duration;

use railweave_transport::{Ended, Error, Lost, LostCause, Unreachable, Unwelcome};

use super::strangers::Kind;

const SAME_KEY: &str = "copy the same RAILWEAVE_KEY_FILE to every host";

/// Why a session ended, where its peer has this long to answer.
pub(super) fn ended(why: &Ended, limit: Duration) -> String {
    let limit = limit.as_secs_f64();
    match why {
        Ended::Silent { for_ns } => format!(
            "it has been silent for {:.1} s and did not answer within RAILWEAVE_PEER_TIMEOUT ({limit} s): \
             it was killed while a child that it forked lives on, or is stopped, or cannot be reached",
            *for_ns as f64 / 1e9
        ),
        Ended::NotReading { for_ns, unsent } => format!(
            "it has not read what was sent to it for {:.1} s, longer than RAILWEAVE_PEER_TIMEOUT ({limit} s): \
             {unsent} bytes wait for it; it is stopped, or cannot be reached, or its program is not Railweave",
            *for_ns as f64 / 1e9
        ),
        other => other.to_string(),
    }
}

/// Why an open connection is lost, where its peer has this long to answer.
pub(super) fn lost(lost: &Lost, limit: Duration) -> String {
    match &lost.cause {
        LostCause::Session(why) => {
            format!("{} is gone: {}; look at that process's own log for the reason", lost.peer, ended(why, limit))
        }
        _ => lost.to_string(),
    }
}

/// Why a peer is not welcome, and what kind of line that is.
pub(super) fn unwelcome(unwelcome: &Unwelcome) -> (Kind, String) {
    match unwelcome {
        Unwelcome::Hello { .. } | Unwelcome::Late { .. } => (Kind::Hello, unwelcome.to_string()),
        Unwelcome::OutOfTurn { .. } => (Kind::Session, unwelcome.to_string()),
        Unwelcome::OtherKey { peer } => {
            (Kind::Key, format!("{peer} has another key; {SAME_KEY}; its session was refused"))
        }
    }
}

/// Why a process cannot be reached, and what to do.
pub(super) fn unreachable(unreachable: &Unreachable) -> Error {
    let Unreachable::Tried { no_route, loopback, .. } = unreachable else {
        return match unreachable {
            Unreachable::OtherKey { .. } => Error::configuration(format!("{unreachable}; {SAME_KEY}")),
            Unreachable::NoAddress => Error::peer(
                "No local NIC found that reaches the peer: its handle names no address that can be dialled; give its \
                 host an IPv4 or a global IPv6 address, or name an interface that has one in RAILWEAVE_OOB_IF there",
            ),
            _ => Error::configuration(unreachable.to_string()),
        };
    };
    Error::peer(if *loopback {
        format!(
            "the peer cannot be reached: {unreachable}; it is to be found at loopback addresses alone: where it is on \
             another host, name ports in its RAILWEAVE_RAILS that others reach; on this one, check that its process \
             still runs"
        )
    } else if *no_route {
        format!(
            "No local NIC found that reaches the peer: {unreachable}; give both hosts an address in a common network, \
             and name an interface that has one in RAILWEAVE_OOB_IF on the peer's"
        )
    } else {
        format!(
            "the peer cannot be reached: {unreachable}; check that its process still runs, that no firewall blocks \
             TCP to its control port (RAILWEAVE_CONTROL_PORT gives a range to let through), and that RAILWEAVE_OOB_IF \
             names an interface there that this host reaches"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(tries: &[&str], no_route: bool, loopback: bool) -> String {
        let tries = tries.iter().map(|text| (*text).to_owned()).collect();
        unreachable(&Unreachable::Tried { tries, no_route, loopback }).message.clone()
    }

    #[test]
    fn the_nic_is_blamed_where_it_is_the_trouble_alone() {
        const NIC: &str = "No local NIC found that reaches the peer";
        let failures = ["10.0.0.1:7: Network is unreachable", "10.1.0.1:7: Connection refused"];
        for (text, remedy) in [
            (unreachable(&Unreachable::NoAddress).message.clone(), "RAILWEAVE_OOB_IF"),
            (refusal(&failures[..1], true, false), "in a common network"),
        ] {
            assert!(text.starts_with(NIC) && text.contains(remedy), "{text}");
        }
        for (text, remedy) in [
            (refusal(&failures, false, false), "firewall"),
            (refusal(&failures[1..], false, false), "firewall"),
            (refusal(&failures[1..], false, true), "RAILWEAVE_RAILS"),
        ] {
            assert!(!text.contains(NIC), "{text}");
            assert!(text.contains("Connection refused") && text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_silent_peer_is_told_from_one_that_does_not_read() {
        let limit = Duration::from_secs(30);
        let silent = ended(&Ended::Silent { for_ns: 33_750_000_000 }, limit);
        assert!(
            silent.starts_with("it has been silent for 33.8 s") && silent.contains("RAILWEAVE_PEER_TIMEOUT (30 s)")
        );
        let stuck = ended(&Ended::NotReading { for_ns: 33_750_000_000, unsent: 70_000 }, limit);
        assert!(stuck.contains("70000 bytes wait") && stuck.contains("RAILWEAVE_PEER_TIMEOUT (30 s)"), "{stuck}");
    }
}
