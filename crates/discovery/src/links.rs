//! The events of this host's network interfaces: their links go down and come up, and their addresses change.
//!
//! The kernel says that something has changed (rtnetlink(7)), and is then asked for everything: so no event can be
//! missed, however many there were.
#![allow(unsafe_code)] // socket2 has no addresses of netlink

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use railweave_fabric::{Effect, EventSource, Part, Piece, PortEvent};
use railweave_topology::NetworkAddress;
use socket2::{Domain, Protocol, Socket, Type};

use crate::interface::{Interface, links};
use crate::port_address::{PortAddress, Present};

/// The groups of linux/rtnetlink.h whose messages say that a link or an address has changed: RTNLGRP_LINK,
/// RTNLGRP_IPV4_IFADDR and RTNLGRP_IPV6_IFADDR.
const GROUPS: [u32; 3] = [1, 5, 9];

/// The events of some network interfaces.
pub struct LinkEvents {
    socket: Socket,
    #[allow(clippy::disallowed_types, reason = "only the thread that takes the events locks it")]
    state: Mutex<State>,
}

/// The interfaces, as they were last seen.
struct State {
    /// True for those whose link is up.
    links: BTreeMap<String, bool>,
    addresses: BTreeSet<(String, IpAddr)>,
    /// The same, for the ports.
    present: Arc<Present>,
    /// The events that were not taken yet.
    events: VecDeque<PortEvent>,
    /// True if something has changed since the last look.
    is_behind: bool,
}

impl LinkEvents {
    /// Watches the interfaces with these names.
    ///
    /// # Errors
    /// If the kernel does not report its events to this process.
    pub fn open(names: impl IntoIterator<Item = String>) -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        // A socket without an address has that of the kernel, 0, and no sender gets its own messages back.
        // SAFETY: zeros are a valid address: the kernel gives the socket a number.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = GROUPS.iter().map(|group| 1 << (group - 1)).sum();
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the descriptor is open, and the kernel reads `size` bytes of the address.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let names: BTreeMap<String, bool> = names.into_iter().map(|name| (name, true)).collect();
        let mut state = State::new(names);
        state.look(&links()?, &Interface::list()?);
        // A port whose link is down is no news to a process that begins.
        state.events.clear();
        Ok(Self { socket, state: Mutex::new(state) })
    }

    /// Returns the address of a port of one of the interfaces, which this process uses beside `others`.
    pub fn port_address(&self, interface: &str, address: NetworkAddress, others: &[IpAddr]) -> PortAddress {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        PortAddress::new(interface, address, others, Arc::clone(&state.present))
    }

    /// Takes everything that the kernel has said. Returns true if there was anything.
    fn drain(&self) -> bool {
        let mut has_any = false;
        let mut bytes = [std::mem::MaybeUninit::uninit(); 8192];
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(_) => has_any = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return has_any,
                // Messages were lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => has_any = true,
                Err(_) => return has_any,
            }
        }
    }
}

impl EventSource for LinkEvents {
    fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn take_event(&self) -> Option<PortEvent> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.events.is_empty() {
            state.is_behind |= self.drain();
            state.catch_up(|| Ok((links()?, Interface::list()?)));
        }
        state.events.pop_front()
    }

    fn is_behind(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_behind
    }
}

impl State {
    fn new(links: BTreeMap<String, bool>) -> Self {
        let (addresses, events) = (BTreeSet::new(), VecDeque::new());
        Self { links, addresses, present: Arc::default(), events, is_behind: false }
    }

    /// Looks at the interfaces if something has changed. The kernel lists them over a socket, so a process without a
    /// free descriptor has to ask again later.
    fn catch_up(&mut self, list: impl FnOnce() -> io::Result<(BTreeMap<String, bool>, Vec<Interface>)>) {
        if self.is_behind
            && let Ok((links, interfaces)) = list()
        {
            self.is_behind = false;
            self.look(&links, &interfaces);
        }
    }

    /// Compares the interfaces with what was seen before.
    fn look(&mut self, links: &BTreeMap<String, bool>, interfaces: &[Interface]) {
        for (name, was_up) in &mut self.links {
            let is_up = links.get(name).copied().unwrap_or(false);
            if is_up != std::mem::replace(was_up, is_up) {
                self.events.push_back(changed(name, is_up));
            }
        }
        let watched = || interfaces.iter().filter(|it| self.links.contains_key(it.device()));
        self.present.set(
            watched().map(|it| (it.device().to_owned(), NetworkAddress::new(it.address, it.prefix_len))).collect(),
        );
        let addresses = watched().map(|it| (it.device().to_owned(), it.address)).collect();
        let before = std::mem::replace(&mut self.addresses, addresses);
        // Losses first: a rail over an address that has another in its place comes back at once.
        for (name, address) in before.difference(&self.addresses) {
            let message = format!("{name}: the interface has lost the address {address}");
            let part = Part { device: name.as_str().into(), piece: Piece::Address(*address) };
            self.events.push_back(PortEvent { is_fault: true, effect: Effect::Down(part), message });
        }
        for (name, address) in self.addresses.difference(&before) {
            let message = format!("{name}: the interface has the address {address} now");
            self.events.push_back(PortEvent { is_fault: false, effect: Effect::Back, message });
        }
    }
}

/// Returns the event of an interface whose link has changed.
fn changed(name: &str, is_up: bool) -> PortEvent {
    if is_up {
        let message = format!("{name}: the interface is up");
        return PortEvent { is_fault: false, effect: Effect::Back, message };
    }
    let message = format!(
        "{name}: the interface is down: its cable is out, its switch port is off, or it was disabled; connections go \
         on over other ports, or wait until it is back, unless RAILWEAVE_RECOVERY is 0"
    );
    PortEvent { is_fault: true, effect: Effect::Down(interface_part(name)), message }
}

/// Returns the part of this host that rails over an interface use.
pub fn interface_part(interface: &str) -> Part {
    // As a port, because a device that fails is gone for good.
    Part { device: interface.into(), piece: Piece::Port(1) }
}

/// Returns true unless the link of the interface with this name is known to be down.
pub fn is_link_up(interface: &str) -> bool {
    links().map_or(true, |links| links.get(interface).copied().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let address = address.parse().unwrap();
        Interface { name: name.to_owned(), index: 1, address, prefix_len: 24, is_up: true, is_loopback: false }
    }

    /// Returns the effects and messages of the next events.
    fn take(state: &mut State) -> Vec<(Effect, String)> {
        state.events.drain(..).map(|event| (event.effect, event.message)).collect()
    }

    #[test]
    fn each_change_of_a_watched_interface_is_an_event() {
        let mut state = State::new(BTreeMap::from([("eth0".to_owned(), true), ("eth1".to_owned(), true)]));
        let links =
            |eth0| BTreeMap::from([("eth0".to_owned(), eth0), ("eth1".to_owned(), true), ("x".to_owned(), eth0)]);
        let both = [interface("eth0", "10.0.0.1"), interface("eth1:2", "10.0.1.1"), interface("x", "10.0.2.1")];
        state.look(&links(true), &both);
        assert_eq!(take(&mut state).len(), 2, "its addresses");
        state.look(&links(true), &both);
        assert_eq!(take(&mut state), []);
        state.look(&links(false), &both);
        let down = take(&mut state);
        assert_eq!(down.len(), 1);
        assert_eq!(down[0].0, Effect::Down(interface_part("eth0")));
        assert!(down[0].1.starts_with("eth0: the interface is down"), "{}", down[0].1);
        state.look(&links(true), &both[..1]);
        let (up, lost) = match &take(&mut state)[..] {
            [up, lost] => (up.clone(), lost.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(up, (Effect::Back, "eth0: the interface is up".to_owned()));
        assert_eq!(lost.1, "eth1: the interface has lost the address 10.0.1.1");
        let piece = Piece::Address("10.0.1.1".parse().unwrap());
        assert_eq!(lost.0, Effect::Down(Part { device: "eth1".into(), piece }), "and those over no other address");
        state.look(&BTreeMap::new(), &both[..1]);
        assert_eq!(take(&mut state).len(), 2, "both are gone");
    }

    #[test]
    fn an_address_in_place_of_another_comes_after_the_loss() {
        let mut state = State::new(BTreeMap::from([("eth0".to_owned(), true)]));
        let links = BTreeMap::from([("eth0".to_owned(), true)]);
        state.look(&links, &[interface("eth0", "10.0.0.9")]);
        take(&mut state);
        for after in ["10.0.0.1", "10.0.0.9"] {
            state.look(&links, &[interface("eth0", after)]);
            let effects: Vec<_> = take(&mut state).into_iter().map(|(effect, _)| effect).collect();
            assert!(matches!(&effects[..], [Effect::Down(_), Effect::Back]), "{effects:?}");
        }
    }

    #[test]
    fn a_change_that_cannot_be_looked_at_is_found_by_a_later_look() {
        let mut state = State::new(BTreeMap::from([("eth0".to_owned(), true)]));
        state.catch_up(|| panic!("nothing has changed"));
        state.is_behind = true;
        state.catch_up(|| Err(io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(state.is_behind && take(&mut state).is_empty());
        state.catch_up(|| Ok((BTreeMap::new(), Vec::new())));
        assert_eq!(take(&mut state)[0].0, Effect::Down(interface_part("eth0")));
        assert!(!state.is_behind);
    }

    /// Has this thread enter a network namespace of its own, and its loopback interface come up there.
    fn set_loopback_up() {
        // SAFETY: the call takes no pointer (unshare(2)).
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return eprintln!("skipped: this process may not make a network namespace");
        }
        let events = LinkEvents::open(["lo".to_owned()]).unwrap();
        assert_eq!(events.take_event(), None);
        // A child begins in the namespace of the thread that starts it.
        let set_up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        if !set_up.is_ok_and(|status| status.success()) {
            return eprintln!("skipped: there is no ip, or it may not change an interface");
        }
        let taken: Vec<_> = std::iter::from_fn(|| events.take_event()).map(|event| event.message).collect();
        assert!(taken.contains(&"lo: the interface is up".to_owned()), "{taken:?}");
        assert!(taken.contains(&"lo: the interface has the address 127.0.0.1 now".to_owned()), "{taken:?}");
        assert!(!events.is_behind());
    }

    #[test]
    fn this_host_reports_that_its_loopback_interface_comes_up() {
        assert!(is_link_up("lo") && !is_link_up("no-such-interface"));
        // The thread ends with the test, and its namespace with it.
        std::thread::spawn(set_loopback_up).join().unwrap();
    }
}
