//! The climb of a connect: its attempts, by the steps of the ladder.

use std::collections::BTreeSet;
use std::net::IpAddr;

use railweave_fabric::Step;

use crate::known_ways::{KnownWays, Way};
use crate::{Error, Event, Handshake};

/// The attempts that begin at one step: each takes the time of its first packets, and other pairs of a step are worth
/// two more of that. Where cables are crossed, the second attempt usually has the right ones.
const MOST_AT_A_STEP: u32 = 3;

/// The attempts of one connect to reach its peer. Each begins at a step of the ladder; the acceptor takes the first
/// step from there on that gives a rail.
#[derive(Clone, Debug, Default)]
pub struct Climb {
    first_step: Step,
    /// The attempts before this one that have failed at the step at which this one begins.
    failed_at_step: u32,
    /// The ways over which its own attempts have left rails out, whatever that cost.
    failed: BTreeSet<Way>,
    /// The number of them when the attempt began.
    known: usize,
    /// The error of the first attempt whose rails failed: later ones only add that there is no other way.
    error: Option<Error>,
    /// True if it has avoided ways that had failed for others: of RDMA before step 5, of TCP from there on.
    avoids: bool,
    /// True if it has begun again with these ways.
    has_begun_again: bool,
}

/// The end of an attempt without a connection.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The step of the ladder in its ANSWER, if that has come.
    pub step: Option<Step>,
    /// [`Handshake::is_of_rails`].
    pub is_of_rails: bool,
    /// Its error.
    pub error: Error,
}

impl Failed {
    /// Returns the end of an attempt whose handshake has failed with this error.
    pub fn new(handshake: &(impl Handshake + ?Sized), error: Error) -> Self {
        Self { step: handshake.step(), is_of_rails: handshake.is_of_rails(), error }
    }
}

impl Climb {
    /// Returns the first step of the ladder that the acceptor may take.
    pub fn first_step(&self) -> Step {
        self.first_step
    }

    /// Returns the error of the first attempt whose rails failed.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Begins an attempt. Returns the ways that it must not try, each by an address of this host and one of the peer's.
    pub fn begin(&mut self, ways: &mut KnownWays, now_ns: u64) -> Vec<[IpAddr; 2]> {
        let avoided = ways.avoided(now_ns);
        self.known = self.failed.len();
        let is_tcp = self.is_tcp();
        self.avoids |= avoided.difference(&self.failed).any(|way| way.is_tcp == is_tcp);
        avoided.union(&self.failed).filter(|way| way.is_tcp == is_tcp).map(|way| way.ends).collect()
    }

    /// Returns true if its attempt is by TCP in place of RDMA.
    fn is_tcp(&self) -> bool {
        self.first_step == Step::Tcp
    }

    /// Notes an event of an attempt that has taken this time.
    pub fn handle_event(&mut self, ways: &mut KnownWays, event: &Event, took_ns: u64, now_ns: u64) {
        let Event::RailLeftOut { name, reason, .. } = event else { return };
        if let (Ok(local), Ok(remote)) = (name.local.parse(), name.remote.parse()) {
            let way = Way { is_tcp: self.is_tcp(), ends: [local, remote] };
            self.failed.insert(way);
            ways.note_failed(way, reason, took_ns, now_ns);
        }
    }

    /// Handles an attempt that has failed. `has_tcp` is true if TCP may carry the connection, and the peer has it too.
    ///
    /// * If ways have failed, the next attempt begins at the same step without them: its other pairs may carry. After
    ///   three attempts there it begins at the next step.
    /// * Before TCP, and before the end, the ways that were avoided because they had failed for others get their turn:
    ///   the ladder, or step 5, is climbed once more with them, without those that have failed for this connect.
    ///
    /// # Errors
    /// If there is no other attempt: the error of the first, or of this one if other rails would not help.
    pub fn go_on(&mut self, ways: &mut KnownWays, failed: Failed, has_tcp: bool) -> Result<(), Error> {
        let Failed { step, is_of_rails, error } = failed;
        if !is_of_rails {
            return Err(error);
        }
        let error = self.error.get_or_insert(error).clone();
        let has_failed_ways = self.failed.len() > self.known;
        if let Some(step) = step {
            let failed_at_step = if step == self.first_step { self.failed_at_step + 1 } else { 1 };
            if has_failed_ways && failed_at_step < MOST_AT_A_STEP {
                (self.first_step, self.failed_at_step) = (step, failed_at_step);
                return Ok(());
            }
        }
        // An acceptor that has no answer has tried all steps up to TCP's.
        let next_step = step.map_or(Some(Step::Tcp), Step::next).filter(|step| *step > self.first_step);
        (self.first_step, self.avoids, self.has_begun_again) = match next_step {
            Some(step) if step != Step::Tcp => (step, self.avoids, self.has_begun_again),
            _ if self.avoids && !self.has_begun_again => {
                let is_tcp = self.is_tcp();
                ways.forget_others(is_tcp, &self.failed);
                (if is_tcp { Step::Tcp } else { Step::default() }, false, true)
            }
            Some(_) if has_tcp => (Step::Tcp, false, false),
            _ => return Err(error),
        };
        self.failed_at_step = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric::RailId;

    use super::*;
    use crate::{LeftOut, RailName};

    const SLOW_NS: u64 = 10_000_000_000;

    fn ends(last: u8) -> [IpAddr; 2] {
        [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, last])]
    }

    /// The event of a rail that is left out because its packets did not come through.
    fn silent(last: u8) -> Event {
        let [local, remote] = ends(last).map(|end| end.to_string());
        let rail = RailId::all().next().expect("there is one");
        Event::RailLeftOut { rail, name: RailName { local, remote }, reason: LeftOut::PeerSilent }
    }

    fn failed(number: u32, step: Option<Step>, is_of_rails: bool) -> Failed {
        Failed { step, is_of_rails, error: Error::peer(format!("attempt {number}")) }
    }

    fn of_rails(number: u32, step: Step) -> Failed {
        failed(number, Some(step), true)
    }

    /// The end of an attempt whose acceptor found no pair.
    fn unpaired(number: u32) -> Failed {
        failed(number, None, true)
    }

    #[test]
    fn a_step_is_tried_three_times_if_each_attempt_has_other_ways_and_once_if_not() {
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        for attempt in 0..3 {
            assert_eq!(climb.begin(&mut ways, 0).len(), usize::from(attempt));
            assert_eq!(climb.first_step(), Step::Subnet);
            climb.handle_event(&mut ways, &silent(attempt), SLOW_NS, 0);
            climb.go_on(&mut ways, of_rails(attempt.into(), Step::Subnet), false).unwrap();
        }
        // The acceptor takes a later step, and tries other ways there.
        for attempt in 3..6 {
            climb.begin(&mut ways, 0);
            assert_eq!(climb.first_step(), [Step::Routed, Step::OtherPort, Step::OtherPort][usize::from(attempt - 3)]);
            climb.handle_event(&mut ways, &silent(attempt), SLOW_NS, 0);
            climb.go_on(&mut ways, of_rails(attempt.into(), Step::OtherPort), false).unwrap();
            assert_eq!(climb.error().unwrap().to_string(), "attempt 0");
        }
        climb.begin(&mut ways, 0);
        assert_eq!(climb.first_step(), Step::Forwarded);
        // The same way again, or no way at all: no attempt would differ.
        climb.handle_event(&mut ways, &silent(5), SLOW_NS, 0);
        let error = climb.go_on(&mut ways, of_rails(6, Step::Forwarded), false).unwrap_err();
        assert_eq!(error.to_string(), "attempt 0");
    }

    #[test]
    fn a_way_that_failed_for_another_connection_meanwhile_gets_its_turn() {
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        assert!(climb.begin(&mut ways, 0).is_empty());
        Climb::default().handle_event(&mut ways, &silent(2), SLOW_NS, 0);
        climb.handle_event(&mut ways, &silent(1), SLOW_NS, 0);
        climb.go_on(&mut ways, of_rails(0, Step::Subnet), false).unwrap();
        assert_eq!(climb.begin(&mut ways, 0), [ends(1), ends(2)]);
        // Nothing else pairs: this one has not tried way 2.
        climb.go_on(&mut ways, unpaired(1), true).unwrap();
        assert_eq!((climb.first_step(), climb.begin(&mut ways, 0).len()), (Step::Subnet, 1));
        // Once more, and then TCP.
        climb.go_on(&mut ways, unpaired(2), true).unwrap();
        assert_eq!(climb.first_step(), Step::Tcp);
    }

    #[test]
    fn ways_of_its_own_and_those_of_tcp_are_no_reason_to_begin_again() {
        let mut ways = KnownWays::default();
        Climb { first_step: Step::Tcp, ..Climb::default() }.handle_event(&mut ways, &silent(3), SLOW_NS, 0);
        let mut climb = Climb::default();
        assert!(climb.begin(&mut ways, 0).is_empty());
        climb.handle_event(&mut ways, &silent(1), SLOW_NS, 0);
        climb.go_on(&mut ways, of_rails(0, Step::Subnet), false).unwrap();
        assert_eq!(climb.begin(&mut ways, 0), [ends(1)]);
        assert!(climb.go_on(&mut ways, unpaired(1), false).is_err());
    }

    #[test]
    fn who_begins_again_tries_the_ways_of_others_only_and_keeps_the_first_error() {
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        Climb::default().handle_event(&mut ways, &silent(2), SLOW_NS, 0);
        climb.begin(&mut ways, 0);
        climb.handle_event(&mut ways, &silent(1), SLOW_NS, 0);
        climb.go_on(&mut ways, of_rails(0, Step::Subnet), false).unwrap();
        climb.begin(&mut ways, 0);
        climb.go_on(&mut ways, unpaired(1), false).unwrap();
        assert_eq!((climb.first_step(), climb.begin(&mut ways, 0)), (Step::Subnet, vec![ends(1)]));
        assert_eq!(Climb::default().begin(&mut ways, 0), [ends(1)], "others still know of it");
        let error = climb.go_on(&mut ways, unpaired(2), false).unwrap_err();
        assert_eq!(error.to_string(), "attempt 0");
    }

    #[test]
    fn a_failure_that_is_not_of_rails_ends_the_climb_and_forgets_nothing() {
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        Climb::default().handle_event(&mut ways, &silent(2), SLOW_NS, 0);
        climb.begin(&mut ways, 0);
        climb.handle_event(&mut ways, &silent(1), SLOW_NS, 0);
        climb.go_on(&mut ways, of_rails(0, Step::Subnet), true).unwrap();
        climb.begin(&mut ways, 0);
        // The first attempt is no reason for what stopped this one.
        let error = climb.go_on(&mut ways, failed(1, Some(Step::Subnet), false), true).unwrap_err();
        assert_eq!(error.to_string(), "attempt 1");
        assert_eq!(ways.avoided(0).len(), 2);
    }

    #[test]
    fn tcp_has_attempts_and_a_second_turn_of_its_own() {
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        let mut other = Climb { first_step: Step::Tcp, ..Climb::default() };
        other.handle_event(&mut ways, &silent(7), SLOW_NS, 0);
        Climb::default().handle_event(&mut ways, &silent(8), SLOW_NS, 0);
        // RDMA has its second turn, in which nothing is forgotten of TCP.
        assert_eq!(climb.begin(&mut ways, 0), [ends(8)]);
        climb.go_on(&mut ways, unpaired(0), true).unwrap();
        assert!(climb.begin(&mut ways, 0).is_empty());
        climb.go_on(&mut ways, unpaired(1), true).unwrap();
        for attempt in 1..=3 {
            assert_eq!((climb.first_step(), climb.begin(&mut ways, 0).len()), (Step::Tcp, usize::from(attempt)));
            climb.handle_event(&mut ways, &silent(attempt), SLOW_NS, 0);
            climb.go_on(&mut ways, of_rails(attempt.into(), Step::Tcp), true).unwrap();
        }
        // The way of another has its turn, and then nothing is left.
        assert_eq!((climb.first_step(), climb.begin(&mut ways, 0)), (Step::Tcp, [1, 2, 3].map(ends).to_vec()));
        let error = climb.go_on(&mut ways, unpaired(5), true).unwrap_err();
        assert_eq!(error.to_string(), "attempt 0");
        // A climb that avoids nothing of TCP's has no second turn there, whatever it avoided of RDMA's.
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        Climb::default().handle_event(&mut ways, &silent(8), SLOW_NS, 0);
        for attempt in 0..2 {
            climb.begin(&mut ways, 0);
            climb.go_on(&mut ways, unpaired(attempt), true).unwrap();
        }
        assert_eq!((climb.first_step(), climb.begin(&mut ways, 0).len()), (Step::Tcp, 0));
        assert!(climb.go_on(&mut ways, unpaired(2), true).is_err());
    }

    #[test]
    fn tcp_is_taken_only_if_there_is_some_and_has_ways_of_its_own() {
        let (mut climb, mut ways) = (Climb::default(), KnownWays::default());
        climb.begin(&mut ways, 0);
        climb.handle_event(&mut ways, &silent(1), SLOW_NS, 0);
        let mut without = climb.clone();
        assert!(without.go_on(&mut ways, unpaired(0), false).is_err());
        climb.go_on(&mut ways, unpaired(0), true).unwrap();
        assert!(climb.begin(&mut ways, 0).is_empty());
        climb.handle_event(&mut ways, &silent(3), SLOW_NS, 0);
        assert_eq!(Climb::default().begin(&mut ways, 0), [ends(1)]);
        let mut by_tcp = Climb { first_step: Step::Tcp, ..Climb::default() };
        assert_eq!(by_tcp.begin(&mut ways, 0), [ends(3)]);
    }
}
