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
    /// True if the last dial was from an address of this host that the kernel had not chosen.
    is_bound: bool,
    /// The next pause, and the longest.
    pauses_ns: (u64, u64),
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
    /// Adds addresses of the peer.
    pub(super) fn learn(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        for address in addresses {
            if !self.addresses.contains(&address) && self.addresses.len() < MOST_ADDRESSES {
                self.addresses.push(address);
            }
        }
    }

    /// Notes that an address has led to the peer's process, or came from there.
    pub(super) fn prove(&mut self, address: IpAddr) {
        if !self.proven.contains(&address) && self.proven.len() < MOST_PROVEN {
            self.proven.push(address);
        }
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
        self.rounds = 0;
        self.restart(pauses_ns);
        self.done = usize::from(is_path_gone && self.addresses.len() > 1);
    }

    /// Begins a round again with its first address, and with the first pause.
    pub(super) fn restart(&mut self, pauses_ns: (u64, u64)) {
        (self.done, self.pauses_ns) = (0, pauses_ns);
    }

    /// Returns true if this is the address with which each round begins, or has led to the peer otherwise.
    pub(super) fn is_home(&self, address: SocketAddr) -> bool {
        self.addresses.first() == Some(&address) || self.proven.contains(&address.ip())
    }

    /// Returns true if the last dial was from an address of this host that the kernel had not chosen.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound
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
                (self.done, self.is_bound) = (0, false);
                self.rounds = self.rounds.wrapping_add(1);
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
                self.is_bound = from.is_some();
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
        redial.restart(PAUSES_NS);
        assert_eq!(redial.next(&[]), home(1), "a path may be back");
        let mut alone = Redial::default();
        alone.begin(address(1), true, PAUSES_NS);
        assert_eq!(alone.next(&[]), home(1), "there is no other");
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
