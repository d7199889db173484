//! The news that the rest of the process has for a connection's data path, and the data path's answers.

use std::fmt;
use std::sync::OnceLock;

use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::{Error, Received};

/// The fate of one end of a connection: by it the data path learns without a lock that its peer is gone, that an
/// adapter failed, what a peer that has closed had received, or that the rest of the process wants to know if its rails
/// still carry anything; and the rest of the process learns the answer, or that the connection is broken.
///
/// The data path looks only when a call finds nothing to report, and then at one number.
#[derive(Debug, Default)]
pub struct Fate {
    lost: OnceLock<Error>,
    failed: OnceLock<Error>,
    broken: OnceLock<Error>,
    received: OnceLock<Received>,
    /// The number of reports and questions so far.
    news: AtomicU32,
    /// The number of the last probe that was asked for, counted from 1.
    asked: AtomicU32,
    /// The number of the last probe that was posted, times 2, and 1 more if an adapter answers it.
    posted: AtomicU32,
    /// True if no rail had room for it, or none was left.
    is_blocked: AtomicBool,
    /// The number of the last probe that a rail has carried.
    carried: AtomicU32,
    /// The number of the last probe that every fabric is to post.
    insisted: AtomicU32,
    /// The number of looks at the rails that were asked for, and the last of them that found nothing.
    looks_asked: AtomicU32,
    looked: AtomicU32,
    recovery: OnceLock<Caller>,
}

/// The function that has the recovery of a connection looked after.
struct Caller(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Caller {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Caller")
    }
}

/// The state of a probe: an empty write of one end, which shows if the peer's end is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No call of the application was stuck since it was asked for, so nothing is known.
    Unposted,
    /// It was posted, but no call has been stuck since the last question: its answer may lie in a queue.
    Unseen,
    /// It is on its way, and the rails have reported nothing up to now.
    Outstanding {
        /// True if an adapter answers it, even while the peer's process stands still; false if that process must.
        by_adapter: bool,
    },
    /// No rail can carry it, and the rails have reported nothing up to now: they are full of work that does not end, or
    /// none is left. It is posted once there is room, or a rail is back.
    Blocked {
        /// As for a probe that is on its way.
        by_adapter: bool,
    },
    /// No rail can carry it, because the links of this host's ports are down. Nothing is known of the peer.
    CutOff,
    /// A rail has carried it: the peer's end is there.
    Carried,
    /// The connection is broken already.
    Broken,
}

impl Fate {
    /// Reports that the peer is gone, and why. Requests that are stuck fail with this error, except flushes, which need
    /// no peer. Only the first report counts.
    pub fn set_lost(&self, error: Error) {
        let _ = self.lost.set(error);
        self.tell();
    }

    /// Reports that an adapter of this end, or a part of one, failed for good, and why. All requests that are stuck
    /// fail with this error, even if the peer is gone too. Only the first report counts.
    pub fn set_failed(&self, error: Error) {
        let _ = self.failed.set(error);
        self.tell();
    }

    /// Reports what the peer, which has closed its receiving end, had received: those sends are done, even if their
    /// acknowledgements were lost. Only the first report counts.
    pub fn set_received(&self, received: Received) {
        let _ = self.received.set(received);
        self.tell();
    }

    /// Sets the function that is called, on the application's thread, whenever a rail was given up: the rest of the
    /// process then calls [`crate::Recovers::recover`]. Only the first one counts.
    pub fn on_recovery(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.recovery.set(Caller(Box::new(call)));
    }

    /// Has the recovery looked after.
    pub(crate) fn call_recovery(&self) {
        if let Some(Caller(call)) = self.recovery.get() {
            call();
        }
    }

    /// Returns the state of the probe that was asked for last, and asks the data path to look at its rails once more
    /// when it is stuck. With `is_due`, first asks for another probe. Unless this `insists`, a fabric whose
    /// writes need the peer's process posts no probe: it would only put off the time at which an idle lane finds by
    /// itself that its peer's host is gone. Only one thread at a time may call this.
    pub fn judge(&self, is_due: bool, insists: bool) -> Probe {
        let mut asked = self.asked.load(Ordering::Relaxed);
        if is_due {
            asked = asked.wrapping_add(1).max(1);
            self.asked.store(asked, Ordering::Relaxed);
        }
        if insists {
            self.insisted.store(asked, Ordering::Relaxed);
        }
        let probe = self.probe(asked);
        self.looks_asked.store(self.looks_asked.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.tell();
        probe
    }

    fn probe(&self, asked: u32) -> Probe {
        let posted = self.posted.load(Ordering::Acquire);
        if self.broken.get().is_some() {
            Probe::Broken
        } else if posted >> 1 != asked & (u32::MAX >> 1) {
            Probe::Unposted
        } else if self.carried.load(Ordering::Acquire) == asked {
            Probe::Carried
        } else if self.looked.load(Ordering::Acquire) != self.looks_asked.load(Ordering::Relaxed) {
            Probe::Unseen
        } else {
            let by_adapter = posted & 1 == 1;
            match self.is_blocked.load(Ordering::Relaxed) {
                true => Probe::Blocked { by_adapter },
                false => Probe::Outstanding { by_adapter },
            }
        }
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of reports and questions so far. What they say can be read once this returns their number.
    #[inline]
    pub(crate) fn news(&self) -> u32 {
        self.news.load(Ordering::Acquire)
    }

    /// Returns the number of the probe that was asked for last.
    pub(crate) fn asked_probe(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns true if every fabric is to post this probe.
    pub(crate) fn insists(&self, probe: u32) -> bool {
        self.insisted.load(Ordering::Relaxed) == probe
    }

    /// Returns the number of the last look that was asked for.
    pub(crate) fn asked_look(&self) -> u32 {
        self.looks_asked.load(Ordering::Relaxed)
    }

    /// Notes that a look at the rails found nothing.
    pub(crate) fn set_looked(&self, look: u32) {
        self.looked.store(look, Ordering::Release);
    }

    /// Notes that no rail has room for a probe, or that none is left.
    pub(crate) fn set_probe_blocked(&self, probe: u32, by_adapter: bool) {
        self.is_blocked.store(true, Ordering::Relaxed);
        self.posted.store(probe << 1 | u32::from(by_adapter), Ordering::Release);
    }

    /// Returns the number of the probe that no rail can carry, if there is one.
    pub(crate) fn blocked_probe(&self) -> Option<u32> {
        self.is_blocked.load(Ordering::Relaxed).then(|| self.posted.load(Ordering::Relaxed) >> 1)
    }

    /// Notes that a probe is on its way.
    pub(crate) fn set_probe_posted(&self, probe: u32, by_adapter: bool) {
        self.is_blocked.store(false, Ordering::Relaxed);
        self.posted.store(probe << 1 | u32::from(by_adapter), Ordering::Release);
    }

    /// Notes that a probe is not on its way any more, and that a rail can carry it: it is to be posted again, and has
    /// its whole time.
    pub(crate) fn set_probe_lost(&self, probe: u32) {
        if self.carried.load(Ordering::Relaxed) != probe {
            self.posted.store(probe.wrapping_sub(1) << 1, Ordering::Release);
        }
    }

    /// Notes that a rail has carried a probe. An earlier one that comes late changes nothing.
    pub(crate) fn set_probe_carried(&self, probe: u32) {
        if probe.wrapping_sub(self.carried.load(Ordering::Relaxed)).cast_signed() > 0 {
            self.carried.store(probe, Ordering::Release);
        }
    }

    /// Notes that the connection is broken. Only the first reason counts.
    pub(crate) fn set_broken(&self, error: Error) {
        let _ = self.broken.set(error);
    }

    /// Returns the reason why the connection is broken, which every call on it returns; `None` while it works.
    pub fn broken(&self) -> Option<&Error> {
        self.broken.get()
    }

    /// Returns what the peer had received when it closed; `None` until that is reported.
    pub(crate) fn received(&self) -> Option<&Received> {
        self.received.get()
    }

    /// Returns the reason why nothing that needs the peer can succeed; `None` until one is reported.
    #[inline]
    pub fn lost(&self) -> Option<&Error> {
        self.failed().or_else(|| self.lost.get())
    }

    /// Returns the reason why nothing at all can succeed; `None` until one is reported.
    #[inline]
    pub fn failed(&self) -> Option<&Error> {
        self.failed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_adapter_takes_precedence_over_a_lost_peer() {
        let (lost, failed) = (Error::peer("it is gone"), Error::local("it failed"));
        let fate = Fate::default();
        assert_eq!((fate.lost(), fate.failed(), fate.news()), (None, None, 0));
        fate.set_lost(lost.clone());
        fate.set_lost(failed.clone());
        assert_eq!((fate.lost(), fate.failed()), (Some(&lost), None));
        fate.set_failed(failed.clone());
        assert_eq!((fate.lost(), fate.failed()), (Some(&failed), Some(&failed)));
        assert_eq!(fate.broken(), None, "nothing was stuck yet");
    }

    #[test]
    fn a_probe_counts_only_for_the_question_that_it_answers() {
        let fate = Fate::default();
        for by_adapter in [false, true] {
            assert_eq!(fate.judge(true, false), Probe::Unposted);
            let probe = fate.asked_probe();
            fate.set_probe_carried(probe.wrapping_sub(1));
            fate.set_probe_blocked(probe, by_adapter);
            fate.set_looked(fate.asked_look());
            assert_eq!(fate.judge(false, false), Probe::Blocked { by_adapter });
            assert_eq!(fate.blocked_probe(), Some(probe));
            fate.set_probe_posted(probe, by_adapter);
            assert_eq!(fate.blocked_probe(), None);
            assert_eq!(fate.judge(false, false), Probe::Unseen, "nobody has looked");
            fate.set_looked(fate.asked_look());
            assert_eq!(fate.judge(false, false), Probe::Outstanding { by_adapter });
            assert_eq!(fate.judge(false, false), Probe::Unseen, "nobody has looked since");
            fate.set_probe_carried(probe);
            fate.set_probe_carried(probe.wrapping_sub(1));
            assert_eq!(fate.judge(false, false), Probe::Carried);
        }
        assert_eq!(fate.judge(true, true), Probe::Unposted, "the earlier answer is old");
        assert!(fate.insists(fate.asked_probe()) && !fate.insists(1));
        fate.set_broken(Error::peer("a lane failed"));
        assert_eq!(fate.judge(false, true), Probe::Broken);
    }
}
