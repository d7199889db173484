//! The doubt about a peer whose session has lost its socket: the signs of its end, and the rule by which its
//! connections are lost.
//!
//! Silence condemns nobody: the peer may stand still in a debugger, and the session's network may be away while the
//! rails work. So each connection is asked if its rails carry anything ([`crate::Probe`]). It is lost if they do not,
//! and either the peer's process has shown that it has ended, or the session has been silent for the peer's time and
//! the answer is an adapter's, which does not stand still with its process.

use std::net::IpAddr;
use std::sync::Arc;

use super::ended::{Ended, Gone};
use crate::Probe;

/// The state of a session that has lost its socket.
#[derive(Debug)]
pub(super) struct Away {
    /// The reason.
    pub(super) why: Arc<Ended>,
    pub(super) since_ns: u64,
    /// The sign that the peer's process has ended, if there is one. An answer on a rail overrules it.
    pub(super) sign: Option<String>,
    /// The address that the sign came from.
    pub(super) sign_at: Option<IpAddr>,
    /// True once the connections are asked if their rails carry anything.
    pub(super) is_judging: bool,
    /// True once a connection with the peer's process has been lost because that process is gone, until the rails of
    /// another carry something.
    pub(super) is_gone: bool,
    /// The last time at which a connection's rails have carried something, so that the peer's process was there.
    pub(super) carried_ns: Option<u64>,
}

/// The state of a connection's probe, as its session sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probing {
    /// True if another probe is to be asked for.
    pub(super) is_due: bool,
    /// The time at which the probe was first seen on its way, or blocked.
    out_since_ns: Option<u64>,
    /// True if no rail could carry it at the last look.
    was_blocked: bool,
    /// True if an adapter was to answer it then.
    was_by_adapter: bool,
    /// The number of looks at an application that made no calls.
    vain_looks: u32,
    /// The last look at which all links of the connection were down on this host: silence before it says nothing.
    cut_off_ns: u64,
}

impl Default for Probing {
    fn default() -> Self {
        Self {
            is_due: true,
            out_since_ns: None,
            was_blocked: false,
            was_by_adapter: false,
            vain_looks: 0,
            cut_off_ns: 0,
        }
    }
}

/// The times by which a connection is judged, all in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The present.
    pub(super) now_ns: u64,
    /// The time at which the peer was last heard, on the session or by what a connection's rails have carried.
    pub(super) heard_ns: u64,
    /// The time for which a peer may be silent.
    pub(super) peer_timeout_ns: u64,
    /// The time for which a probe may be out if the peer's process seems to have ended.
    pub(super) proof_ns: u64,
}

/// The result of a look at a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Look again at this time.
    Again(u64),
    /// Nothing more is to be found out.
    Rest,
    /// The connection is lost.
    Lost(Gone),
}

/// The number of looks in the time for which a probe may be out.
const LOOKS: u64 = 8;

/// An application that makes no calls is looked at after pauses that grow up to this many times the first.
const LONGEST_PAUSE: u32 = 4;

impl Probing {
    /// Notes news of the peer: it is worth a look soon.
    pub(super) fn hurry(&mut self) {
        self.vain_looks = 0;
    }

    /// Judges a connection by the state of its probe. `sign` is the sign that the peer's process has ended, if there is
    /// one.
    pub(super) fn judge(&mut self, probe: Probe, sign: Option<&str>, times: Times) -> Verdict {
        let Times { now_ns, heard_ns, peer_timeout_ns, proof_ns } = times;
        self.is_due = false;
        let look_ns = (proof_ns / LOOKS).max(1);
        let again = |ns: u64| Verdict::Again(now_ns.saturating_add(ns.max(1)));
        match probe {
            Probe::Broken => Verdict::Rest,
            Probe::Unposted | Probe::Unseen => {
                if probe == Probe::Unposted {
                    self.out_since_ns = None;
                }
                let pause_ns = look_ns << self.vain_looks;
                self.vain_looks = (self.vain_looks + 1).min(LONGEST_PAUSE);
                again(pause_ns)
            }
            Probe::Carried => {
                // With a sign, the answer may have come just before the end.
                *self = Self::default();
                again(if sign.is_some() { proof_ns / 2 } else { peer_timeout_ns / 2 })
            }
            // A sign comes over another path, so that it counts all the same.
            Probe::CutOff if sign.is_none() => {
                (self.out_since_ns, self.cut_off_ns) = (None, now_ns);
                again(look_ns)
            }
            Probe::CutOff | Probe::Blocked { .. } | Probe::Outstanding { .. } => {
                let by_adapter = match probe {
                    Probe::Blocked { by_adapter } | Probe::Outstanding { by_adapter } => by_adapter,
                    _ => true,
                };
                self.vain_looks = 0;
                let is_blocked = !matches!(probe, Probe::Outstanding { .. });
                let was_posted = std::mem::replace(&mut self.was_blocked, is_blocked) && !is_blocked;
                let has_lost_process = !std::mem::replace(&mut self.was_by_adapter, by_adapter) && by_adapter;
                if was_posted || has_lost_process {
                    // If it was posted only since, the look that found nothing may have come at once. A process that
                    // is busy says nothing of rails that have failed since.
                    self.out_since_ns = None;
                }
                let since_ns = *self.out_since_ns.get_or_insert(now_ns);
                // A process that is there for another connection has not ended.
                let out_ns = now_ns.saturating_sub(since_ns.max(heard_ns));
                let silent_ns = now_ns.saturating_sub(heard_ns.max(self.cut_off_ns));
                // A process may be busy for longer than an adapter.
                let enough_ns = if by_adapter { proof_ns } else { proof_ns.max(peer_timeout_ns / 2) };
                if let Some(sign) = sign
                    && out_ns >= enough_ns
                {
                    return Verdict::Lost(Gone::Ended { sign: sign.to_owned(), for_ns: out_ns });
                }
                if by_adapter && silent_ns >= peer_timeout_ns && out_ns >= peer_timeout_ns / 2 {
                    return Verdict::Lost(Gone::Silent { for_ns: silent_ns, limit_ns: peer_timeout_ns });
                }
                again(look_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_ADAPTER: Probe = Probe::Outstanding { by_adapter: true };
    const BY_PROCESS: Probe = Probe::Outstanding { by_adapter: false };

    fn at(now_ns: u64) -> Times {
        Times { now_ns, heard_ns: 0, peer_timeout_ns: 1000, proof_ns: 80 }
    }

    #[test]
    fn a_sign_counts_once_a_probe_has_been_out_for_its_time() {
        for (probe, enough_ns) in [(BY_ADAPTER, 80), (BY_PROCESS, 500)] {
            let mut probing = Probing::default();
            assert_eq!(probing.judge(Probe::Unposted, Some("refused"), at(500)), Verdict::Again(510));
            assert_eq!(probing.judge(probe, Some("refused"), at(510)), Verdict::Again(520));
            assert_eq!(probing.judge(probe, Some("refused"), at(509 + enough_ns)), Verdict::Again(519 + enough_ns));
            let gone = Gone::Ended { sign: "refused".to_owned(), for_ns: enough_ns };
            assert_eq!(probing.judge(probe, Some("refused"), at(510 + enough_ns)), Verdict::Lost(gone));
        }
    }

    #[test]
    fn a_probe_that_nobody_looks_for_may_have_been_answered() {
        let mut probing = Probing::default();
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), at(0)), Verdict::Again(10));
        assert_eq!(probing.judge(Probe::Unseen, Some("refused"), at(1000)), Verdict::Again(1010));
        assert_eq!(probing.judge(Probe::Unseen, Some("refused"), at(2000)), Verdict::Again(2020));
        assert!(matches!(probing.judge(BY_ADAPTER, Some("refused"), at(3000)), Verdict::Lost(_)), "it was not");
    }

    #[test]
    fn a_probe_that_had_no_room_has_all_of_its_time_once_it_is_posted() {
        let blocked = Probe::Blocked { by_adapter: true };
        let mut probing = Probing::default();
        assert_eq!(probing.judge(blocked, Some("refused"), at(0)), Verdict::Again(10));
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), at(100)), Verdict::Again(110));
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), at(179)), Verdict::Again(189));
        assert!(matches!(probing.judge(BY_ADAPTER, Some("refused"), at(180)), Verdict::Lost(_)));
        let mut full = Probing::default();
        assert_eq!(full.judge(blocked, Some("refused"), at(0)), Verdict::Again(10));
        assert!(matches!(full.judge(blocked, Some("refused"), at(80)), Verdict::Lost(_)), "nothing ends");
    }

    #[test]
    fn a_probe_whose_rails_fail_keeps_its_time_only_if_an_adapter_was_to_answer_it() {
        let no_rail = Probe::Blocked { by_adapter: true };
        for left in [no_rail, Probe::CutOff] {
            for (probe, lost_ns) in [(BY_ADAPTER, 80), (BY_PROCESS, 150)] {
                let mut probing = Probing::default();
                assert_eq!(probing.judge(probe, Some("refused"), at(0)), Verdict::Again(10));
                assert_eq!(probing.judge(left, Some("refused"), at(70)), Verdict::Again(80), "the rails have failed");
                assert_eq!(probing.judge(left, Some("refused"), at(lost_ns - 1)), Verdict::Again(lost_ns + 9));
                assert!(matches!(probing.judge(left, Some("refused"), at(lost_ns)), Verdict::Lost(_)), "{probe:?}");
            }
            let mut back = Probing::default();
            assert_eq!(back.judge(left, Some("refused"), at(0)), Verdict::Again(10));
            assert_eq!(back.judge(BY_ADAPTER, Some("refused"), at(70)), Verdict::Again(80), "on a rail that is back");
            assert_eq!(back.judge(BY_ADAPTER, Some("refused"), at(149)), Verdict::Again(159));
        }
    }

    #[test]
    fn what_comes_meanwhile_gives_a_probe_its_time_again() {
        let mut probing = Probing::default();
        let heard = |heard_ns, now_ns| Times { heard_ns, ..at(now_ns) };
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), heard(0, 0)), Verdict::Again(10));
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), heard(50, 129)), Verdict::Again(139));
        let gone = Gone::Ended { sign: "refused".to_owned(), for_ns: 80 };
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), heard(50, 130)), Verdict::Lost(gone));
    }

    #[test]
    fn an_answer_overrules_a_sign_and_is_asked_for_again_soon() {
        let mut probing = Probing::default();
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), at(0)), Verdict::Again(10));
        assert_eq!(probing.judge(Probe::Carried, Some("refused"), at(79)), Verdict::Again(119));
        assert_eq!(probing, Probing::default(), "and the next answer has all of its time");
        assert_eq!(probing.judge(Probe::Carried, None, at(200)), Verdict::Again(700));
    }

    #[test]
    fn silence_counts_only_where_an_adapter_would_have_answered() {
        for (probe, is_lost) in [(BY_ADAPTER, true), (BY_PROCESS, false)] {
            let mut probing = Probing::default();
            assert_eq!(probing.judge(probe, None, at(500)), Verdict::Again(510));
            assert_eq!(probing.judge(probe, None, at(999)), Verdict::Again(1009));
            let verdict = probing.judge(probe, None, at(1000));
            let gone = Verdict::Lost(Gone::Silent { for_ns: 1000, limit_ns: 1000 });
            assert_eq!(verdict, if is_lost { gone } else { Verdict::Again(1010) });
        }
        let mut probing = Probing::default();
        assert_eq!(probing.judge(BY_ADAPTER, None, at(900)), Verdict::Again(910));
        assert_eq!(probing.judge(BY_ADAPTER, None, at(1399)), Verdict::Again(1409), "it was asked for late");
        assert!(matches!(probing.judge(BY_ADAPTER, None, at(1400)), Verdict::Lost(_)));
    }

    #[test]
    fn silence_counts_for_nothing_while_the_links_of_this_host_are_down() {
        let mut probing = Probing::default();
        assert_eq!(probing.judge(BY_ADAPTER, None, at(900)), Verdict::Again(910));
        for now_ns in [1000, 5000, 90_000] {
            assert_eq!(probing.judge(Probe::CutOff, None, at(now_ns)), Verdict::Again(now_ns + 10));
        }
        assert_eq!(probing.judge(BY_ADAPTER, None, at(90_010)), Verdict::Again(90_020));
        assert_eq!(probing.judge(BY_ADAPTER, None, at(90_999)), Verdict::Again(91_009), "the peer has all of its time");
        let gone = Gone::Silent { for_ns: 1000, limit_ns: 1000 };
        assert_eq!(probing.judge(BY_ADAPTER, None, at(91_000)), Verdict::Lost(gone), "without that of the outage");
        let mut signed = Probing::default();
        assert_eq!(signed.judge(Probe::CutOff, Some("refused"), at(10)), Verdict::Again(20));
        let gone = Gone::Ended { sign: "refused".to_owned(), for_ns: 80 };
        assert_eq!(signed.judge(Probe::CutOff, Some("refused"), at(90)), Verdict::Lost(gone));
    }

    #[test]
    fn an_application_that_makes_no_calls_and_a_broken_connection_are_left_alone() {
        let mut probing = Probing::default();
        for (now_ns, pause_ns) in [(0, 10), (5000, 20), (6000, 40), (7000, 80), (8000, 160), (1_000_000, 160)] {
            assert_eq!(probing.judge(Probe::Unposted, Some("refused"), at(now_ns)), Verdict::Again(now_ns + pause_ns));
        }
        probing.hurry();
        assert_eq!(probing.judge(Probe::Unposted, Some("refused"), at(0)), Verdict::Again(10));
        assert_eq!(probing.judge(BY_ADAPTER, Some("refused"), at(1)), Verdict::Again(11), "it makes calls again");
        assert_eq!(probing.judge(Probe::Unseen, Some("refused"), at(2)), Verdict::Again(12));
        assert_eq!(probing.judge(Probe::Broken, Some("refused"), at(7)), Verdict::Rest);
    }
}
