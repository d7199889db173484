//! Dialling the peer of a session that has lost its socket: all of its addresses, from all of this host's, round after
//! round.

use std::net::{IpAddr, SocketAddr};

/// The most addresses that are kept as proven: more than a host has ports.
const MOST_PROVEN: usize = 64;

/// The most addresses that are dialled: far more than a handle names, because ports may have others by and by.
const MOST_ADDRESSES: usize = 64;

/// In one of this many rounds, all addresses are dialled with patience from where the kernel chooses. In the others
/// only the first one is: most addresses of a host lead nowhere while its cables come and go, and the next one may
/// lead to the peer.
const PATIENT: usize = 4;

/// The addresses that are dialled, and the place in the round.
#[derive(Debug, Default)]
pub(super) struct Redial {
    /// The address that was last known to lead to the peer, then the others.
    addresses: Vec<SocketAddr>,
    /// Other addresses of the peer's host, at which its process has taken lanes or from which it has dialled them.
    proven: Vec<IpAddr>,
    /// The number of dials of this round so far.
    done: usize,
    /// The number of rounds before this one.
    rounds: usize,
    /// The address of this host that the last dial was from, if the kernel had not chosen it.
    from: Option<IpAddr>,
    /// True if something has begun this round again that said that a path may be back.
    is_hurried: bool,
    /// The next pause, and the longest.
    pauses_ns: (u64, u64),
    /// The sockets that were connected and brought no answer in time, and true if one of them was of this round.
    unanswered: (u32, bool),
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Dial this address, from that of this host if one is given.
    Dial { from: Option<IpAddr>, to: SocketAddr, is_patient: bool },
    /// The round is over: begin another after this time.
    Pause { ns: u64 },
}

impl Redial {
    /// Adds addresses of the peer. The oldest of too many is forgotten, but not the one that leads each round.
    pub(super) fn learn(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        for address in addresses {
            if self.addresses.contains(&address) {
                continue;
            }
            if self.addresses.len() >= MOST_ADDRESSES {
                self.addresses.remove(1);
            }
            self.addresses.push(address);
        }
    }

    /// Notes that an address has led to the peer's process, or came from there. The oldest of too many is forgotten.
    pub(super) fn prove(&mut self, address: IpAddr) {
        if self.proven.contains(&address) {
            return;
        }
        if self.proven.len() == MOST_PROVEN {
            self.proven.remove(0);
        }
        self.proven.push(address);
    }

    /// Returns these addresses.
    pub(super) fn proven(&self) -> &[IpAddr] {
        &self.proven
    }

    /// Begins a first round with the address that was last known to lead to the peer. If the path there is gone, the
    /// others come first in this round. The pauses between rounds grow from the first to the longest.
    pub(super) fn begin(&mut self, home: SocketAddr, is_path_gone: bool, pauses_ns: (u64, u64)) {
        self.addresses.retain(|address| *address != home);
        self.addresses.insert(0, home);
        // A word that some path is back comes often just then: of another port that flaps, or that is back alone.
        self.is_hurried = is_path_gone && self.addresses.len() > 1;
        (self.rounds, self.pauses_ns, self.done) = (0, pauses_ns, usize::from(self.is_hurried));
        self.unanswered = (0, false);
    }

    /// Begins a round again with its first address, and with the first pause. Returns false if this round was begun
    /// again before: ports that flap would keep it from the other addresses. Then only the pause is the first one.
    pub(super) fn restart(&mut self, pauses_ns: (u64, u64)) -> bool {
        self.pauses_ns = pauses_ns;
        let is_first = !std::mem::replace(&mut self.is_hurried, true);
        if is_first {
            self.done = 0;
        }
        is_first
    }

    /// Returns true if this is the address with which each round begins, or has led to the peer otherwise.
    pub(super) fn is_home(&self, address: SocketAddr) -> bool {
        self.addresses.first() == Some(&address) || self.proven.contains(&address.ip())
    }

    /// Notes that the last dial was connected and brought no answer in time.
    pub(super) fn unanswered(&mut self) {
        self.unanswered = (self.unanswered.0.saturating_add(1), true);
    }

    /// Returns the number of such dials. A round without any counts them from 0 again: their paths were gone.
    pub(super) fn count_unanswered(&self) -> u32 {
        self.unanswered.0
    }

    /// Returns the address of this host that the last dial was from; `None` if the kernel had chosen it.
    pub(super) fn from(&self) -> Option<IpAddr> {
        self.from
    }

    /// Returns true if the last dial was from an address of this host that the kernel had not chosen.
    pub(super) fn is_bound(&self) -> bool {
        self.from.is_some()
    }

    /// Returns the next step. Each address is dialled first from where the kernel chooses, and once all were, from each
    /// of this host's addresses of its family: the kernel's choice may be a port whose cable is away. Only the kernel's
    /// choices are dialled with patience. Before each other address of this host, the first one is dialled again: a
    /// host with many ports has long rounds, and the path may be back.
    pub(super) fn next(&mut self, own: &[IpAddr]) -> Next {
        loop {
            let count = self.addresses.len();
            let sweep = (self.done + 1) / (count + 1);
            let place = (self.done + 1) % (count + 1);
            let Some(home) = self.addresses.first().filter(|_| sweep <= own.len()) else {
                (self.done, self.from, self.is_hurried) = (0, None, false);
                self.rounds = self.rounds.wrapping_add(1);
                if !std::mem::take(&mut self.unanswered.1) {
                    self.unanswered.0 = 0;
                }
                let (ns, longest_ns) = self.pauses_ns;
                self.pauses_ns.0 = (ns * 2).min(longest_ns);
                return Next::Pause { ns };
            };
            let to = place.checked_sub(1).map_or(*home, |number| self.addresses[number]);
            let from = sweep.checked_sub(1).filter(|_| place > 0).map(|number| own[number]);
            let is_patient = sweep == 0 && (self.done == 0 || self.rounds % PATIENT == PATIENT - 1);
            self.done += 1;
            let is_fit = |from: IpAddr| {
                from.is_ipv4() == to.is_ipv4() && from != to.ip() && from.is_loopback() == to.ip().is_loopback()
            };
            if from.is_none_or(is_fit) {
                self.from = from;
                return Next::Dial { from, to, is_patient };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES_NS: (u64, u64) = (100_000_000, 1_000_000_000);

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7))
    }

    fn home(last: u8) -> Next {
        Next::Dial { from: None, to: address(last), is_patient: true }
    }

    #[test]
    fn a_round_dials_every_address_from_every_own_one_that_fits() {
        let mut redial = Redial::default();
        redial.learn([address(1), address(2), address(1), "[fd00::1]:7".parse().unwrap()]);
        redial.begin(address(2), false, PAUSES_NS);
        let own: [IpAddr; 3] = ["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        let mut dials = Vec::new();
        let pause_ns = loop {
            match redial.next(&own) {
                Next::Dial { from, to, .. } => dials.push((from.map(|it| it.to_string()), to.to_string())),
                Next::Pause { ns } => break ns,
            }
        };
        let unbound = |to: &str| (None, to.to_owned());
        let bound = |from: &str, to: &str| (Some(from.to_owned()), to.to_owned());
        assert_eq!(
            dials,
            [
                unbound("10.0.0.2:7"),
                unbound("10.0.0.1:7"),
                unbound("[fd00::1]:7"),
                unbound("10.0.0.2:7"),
                bound("10.0.0.9", "10.0.0.2:7"),
                bound("10.0.0.9", "10.0.0.1:7"),
                unbound("10.0.0.2:7"),
                bound("fd00::9", "[fd00::1]:7"),
                unbound("10.0.0.2:7"),
            ]
        );
        assert_eq!(pause_ns, PAUSES_NS.0);
        assert_eq!(redial.next(&own), home(2), "then it begins again");
    }

    #[test]
    fn an_address_whose_path_is_gone_comes_last_in_the_first_round() {
        let mut redial = Redial::default();
        redial.learn([address(2), address(3)]);
        redial.begin(address(1), true, PAUSES_NS);
        let other = |last| Next::Dial { from: None, to: address(last), is_patient: false };
        assert_eq!([redial.next(&[]), redial.next(&[])], [other(2), other(3)]);
        assert_eq!(redial.next(&[]), Next::Pause { ns: PAUSES_NS.0 });
        assert_eq!(redial.next(&[]), home(1));
        for _ in 0..PATIENT - 1 {
            while matches!(redial.next(&[]), Next::Dial { .. }) {}
        }
        redial.begin(address(1), true, PAUSES_NS);
        assert_eq!(redial.next(&[]), other(2), "its rounds are counted from the first");
        assert!(!redial.restart(PAUSES_NS), "not in the first round");
        assert_eq!(redial.next(&[]), other(3));
        while matches!(redial.next(&[]), Next::Dial { .. }) {}
        for _ in 0..2 {
            assert_eq!([redial.next(&[]), redial.next(&[])], [home(1), other(2)]);
            assert!(redial.restart(PAUSES_NS), "in each round");
            assert_eq!(redial.next(&[]), home(1), "a path may be back");
            assert!(!redial.restart(PAUSES_NS));
            assert_eq!(redial.next(&[]), other(2), "once in a round");
            while matches!(redial.next(&[]), Next::Dial { .. }) {}
        }
        let mut alone = Redial::default();
        alone.begin(address(1), true, PAUSES_NS);
        assert_eq!(alone.next(&[]), home(1), "there is no other");
    }

    #[test]
    fn the_newest_addresses_are_kept_and_the_one_that_leads_each_round() {
        let mut redial = Redial::default();
        redial.begin(address(0), false, PAUSES_NS);
        let newest = 100;
        for last in 1..=newest {
            redial.learn([address(last)]);
            redial.prove(address(last).ip());
        }
        let mut dialled = Vec::new();
        while let Next::Dial { to, .. } = redial.next(&[]) {
            dialled.push(to);
        }
        assert_eq!(dialled.len(), MOST_ADDRESSES);
        assert_eq!((dialled[0], dialled[MOST_ADDRESSES - 1]), (address(0), address(newest)));
        assert_eq!(redial.proven().len(), MOST_PROVEN);
        assert!(redial.is_home(address(newest)) && !redial.is_home(address(1)));
    }

    #[test]
    fn pauses_grow_to_their_limit_and_a_new_loss_begins_with_the_first() {
        let mut redial = Redial::default();
        redial.begin(address(1), false, PAUSES_NS);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(redial.next(&[]), home(1));
            let Next::Pause { ns } = redial.next(&[]) else { panic!() };
            pauses.push(ns / 1_000_000);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
        redial.begin(address(1), false, PAUSES_NS);
        redial.next(&[]);
        assert_eq!(redial.next(&[]), Next::Pause { ns: PAUSES_NS.0 });
    }

    #[test]
    fn dials_without_an_answer_are_counted_until_a_round_has_none() {
        let mut redial = Redial::default();
        redial.begin(address(1), false, PAUSES_NS);
        let mut counts = Vec::new();
        for is_connected in [true, true, false, true] {
            redial.next(&[]);
            if is_connected {
                redial.unanswered();
            }
            redial.next(&[]);
            counts.push(redial.count_unanswered());
        }
        assert_eq!(counts, [1, 2, 0, 1]);
        redial.begin(address(1), false, PAUSES_NS);
        assert_eq!(redial.count_unanswered(), 0);
    }

    #[test]
    fn the_first_address_has_patience_and_in_every_fourth_round_all_have_it_that_the_kernel_may_choose_for() {
        let mut redial = Redial::default();
        redial.learn([address(2)]);
        redial.begin(address(1), false, PAUSES_NS);
        let own: [IpAddr; 1] = ["10.0.0.9".parse().unwrap()];
        for round in 0..8 {
            if round == 2 {
                redial.next(&own);
                redial.restart(PAUSES_NS);
            }
            let mut dials = Vec::new();
            while let Next::Dial { from, is_patient, .. } = redial.next(&own) {
                assert_eq!(redial.is_bound(), from.is_some());
                dials.push(is_patient);
            }
            assert_eq!(dials, [true, round % 4 == 3, false, false, false], "round {round}");
            assert!(!redial.is_bound());
        }
    }
}
