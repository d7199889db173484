//! Reaching a process: its addresses are tried in turn, until one leads to a session. If the socket is closed before
//! HELLO has come, the address is retried once no other is left.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::ended::{SocketEnd, SocketEndKind, Unreachable};
use super::redials::Redials;

/// The addresses of a process to reach, and the results so far.
#[derive(Debug)]
pub(super) struct Reach {
    addresses: VecDeque<SocketAddr>,
    /// The addresses whose sockets were closed without a byte at the last attempt, each with what happened.
    closed: Vec<(SocketAddr, String)>,
    /// The times at which these are retried.
    redials: Redials,
    /// The time at which all attempts end.
    until_ns: u64,
    failures: Vec<String>,
    /// The number of failures for lack of a route.
    no_route: usize,
    is_loopback: bool,
}

/// The next step.
#[derive(Debug)]
pub(super) enum Next {
    /// Dial this address, which has until the deadline to lead to a session.
    Dial { address: SocketAddr, deadline_ns: u64 },
    /// Wait until then, and redial the addresses whose sockets were closed.
    Pause { at_ns: u64 },
    /// The process cannot be reached.
    GiveUp(Unreachable),
}

impl Reach {
    pub(super) fn new(addresses: impl IntoIterator<Item = SocketAddr>, until_ns: u64) -> Self {
        let addresses: VecDeque<_> = addresses.into_iter().collect();
        Self {
            is_loopback: !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback()),
            addresses,
            closed: Vec::new(),
            redials: Redials::until(until_ns),
            until_ns,
            failures: Vec::new(),
            no_route: 0,
        }
    }

    /// Returns the next step. The addresses that are left share the time that is left.
    pub(super) fn next(&mut self, now_ns: u64) -> Next {
        if let Some(address) = self.addresses.pop_front() {
            let share = self.until_ns.saturating_sub(now_ns) / (self.addresses.len() as u64 + 1);
            return Next::Dial { address, deadline_ns: now_ns.saturating_add(share) };
        }
        let again = if self.closed.is_empty() { None } else { self.redials.next_ns(now_ns) };
        match again {
            Some(at_ns) => Next::Pause { at_ns },
            None => Next::GiveUp(self.unreachable()),
        }
    }

    /// Ends the pause: the addresses whose sockets were closed are next.
    pub(super) fn again(&mut self) {
        self.addresses.extend(self.closed.drain(..).map(|(address, _)| address));
    }

    /// Notes that an address led to no session.
    pub(super) fn failed(&mut self, address: SocketAddr, end: &SocketEnd) {
        let text = format!("{address}: {}", end.text);
        self.no_route += usize::from(end.kind == SocketEndKind::NoRoute);
        match end.kind {
            SocketEndKind::Mute => self.closed.push((address, text)),
            SocketEndKind::NoRoute | SocketEndKind::Refused | SocketEndKind::NoAnswer | SocketEndKind::Other => {
                self.failures.push(text);
            }
        }
    }

    fn unreachable(&mut self) -> Unreachable {
        let closed = self.closed.drain(..).map(|(_, text)| {
            let why = "the program that listens there has too many newcomers, or is not Railweave";
            format!("{text} each time that it was dialled: {why}")
        });
        let tries: Vec<_> = std::mem::take(&mut self.failures).into_iter().chain(closed).collect();
        if tries.is_empty() {
            return Unreachable::NoAddress;
        }
        Unreachable::Tried { no_route: self.no_route == tries.len(), loopback: self.is_loopback, tries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7))
    }

    fn end(kind: SocketEndKind) -> SocketEnd {
        SocketEnd { kind, text: format!("{kind:?}") }
    }

    fn dialled(next: Next) -> (SocketAddr, u64) {
        let Next::Dial { address, deadline_ns } = next else { panic!("{next:?}") };
        (address, deadline_ns)
    }

    #[test]
    fn addresses_share_the_time_and_are_tried_in_turn() {
        let mut reach = Reach::new([address(1), address(2)], 8 * SECOND);
        assert_eq!(dialled(reach.next(0)), (address(1), 4 * SECOND));
        reach.failed(address(1), &end(SocketEndKind::NoRoute));
        assert_eq!(dialled(reach.next(SECOND)), (address(2), 8 * SECOND));
        reach.failed(address(2), &end(SocketEndKind::Other));
        let Next::GiveUp(Unreachable::Tried { tries, no_route, loopback }) = reach.next(2 * SECOND) else { panic!() };
        assert_eq!((tries.len(), no_route, loopback), (2, false, false));
        assert!(tries[0].starts_with("10.0.0.1:7: NoRoute"), "{tries:?}");
    }

    #[test]
    fn what_was_closed_without_a_byte_is_dialled_again_and_nothing_else_is() {
        let mut reach = Reach::new([address(1), address(2)], SECOND);
        for kind in [SocketEndKind::Other, SocketEndKind::Mute] {
            let Next::Dial { address, .. } = reach.next(0) else { panic!() };
            reach.failed(address, &end(kind));
        }
        assert!(matches!(reach.next(0), Next::Pause { at_ns: 10_000_000 }));
        reach.again();
        assert!(matches!(reach.next(0), Next::Dial { address: again, .. } if again == address(2)));
        reach.failed(address(2), &end(SocketEndKind::Mute));
        let Next::GiveUp(Unreachable::Tried { tries, .. }) = reach.next(SECOND) else { panic!() };
        assert!(tries[1].contains("each time that it was dialled"), "{tries:?}");
    }

    #[test]
    fn no_route_and_loopback_are_named_if_they_hold_for_all_addresses() {
        let mut reach = Reach::new([SocketAddr::from(([127, 0, 0, 1], 7))], SECOND);
        let Next::Dial { address, .. } = reach.next(0) else { panic!() };
        reach.failed(address, &end(SocketEndKind::NoRoute));
        let given_up = reach.next(0);
        assert!(matches!(given_up, Next::GiveUp(Unreachable::Tried { no_route: true, loopback: true, .. })));
        assert!(matches!(Reach::new([], SECOND).next(0), Next::GiveUp(Unreachable::NoAddress)));
    }
}
