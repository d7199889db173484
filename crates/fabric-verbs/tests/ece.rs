//! Enhanced connection establishment: one end's offer, and the options that both end up with.

mod common;

use common::{Machine, Wish, open};
use railweave_fabric::{Domain as _, RailSpec, Role, SetupError, SetupStep};
use railweave_fabric_verbs::{VerbsConfig, VerbsPendingRail};

const NVIDIA: u32 = 0x15b3;

/// A machine whose devices offer these options; `None` for a device that knows no ECE.
fn machine_with(near: Option<(u32, u32)>, far: Option<(u32, u32)>) -> Machine {
    Machine::new(&description(near, far))
}

fn description(near: Option<(u32, u32)>, far: Option<(u32, u32)>) -> String {
    let device = |name: &str, offered: Option<(u32, u32)>| {
        let (vendor, options) = offered.unwrap_or_default();
        format!("[[device]]\nname = '{name}'\nece = [{vendor}, {options}]\n[[device.port]]\n")
    };
    device("a", near) + &device("b", far)
}

/// The options that were set on the queue pairs of both ends.
fn given(machine: &Machine) -> [(u32, u32); 2] {
    let (near, far) = machine.both_lanes();
    [near, far].map(|lane| (lane.ece.vendor_id, lane.ece.options))
}

#[test]
fn what_both_know_is_set_at_both_ends() {
    let machine = machine_with(Some((NVIDIA, 0x3000_0007)), Some((NVIDIA, 0x3000_000e)));
    let mut pair = machine.pair(&Wish::default());
    assert_eq!(given(&machine), [(NVIDIA, 0x3000_0006); 2], "the acceptor's device reduced the offer");
    pair.exchange();
}

#[test]
fn the_answer_is_what_the_acceptor_was_left_with() {
    let machine = machine_with(Some((NVIDIA, 0x3000_0007)), Some((NVIDIA, 0x3000_000e)));
    let open = |device, role| {
        let domain = open(&machine.port(device), VerbsConfig::default(), |_| ()).unwrap();
        let spec = RailSpec {
            role,
            lanes: 1,
            send_depth: 8,
            receive_depth: 8,
            lane_receives: 8,
            traffic_class: None,
            peer: None,
        };
        domain.open_rail(&spec).unwrap()
    };
    let said = |rail: &VerbsPendingRail| rail.endpoints()[0].0[32..44].to_vec();
    let (near, mut far) = (open("a", Role::Sender), open("b", Role::Receiver));
    assert_eq!(said(&near), [0xb3, 0x15, 0, 0, 7, 0, 0, 0x30, 0, 0, 0, 0], "the offer");
    far.connect(&near.endpoints()).unwrap();
    assert_eq!(said(&far), [0xb3, 0x15, 0, 0, 6, 0, 0, 0x30, 0, 0, 0, 0], "the answer");
}

#[test]
fn without_ece_at_one_end_none_is_set() {
    let offer = Some((NVIDIA, 0x3000_0007));
    for (near, far) in [(offer, None), (None, offer), (None, None)] {
        let machine = machine_with(near, far);
        let mut pair = machine.pair(&Wish::default());
        assert_eq!(given(&machine), [(0, 0); 2], "{near:?} {far:?}");
        pair.exchange();
    }
}

#[test]
fn adapters_of_two_makers_have_nothing_to_agree_on() {
    let machine = machine_with(Some((NVIDIA, 7)), Some((0x14e4, 7)));
    let mut pair = machine.pair(&Wish::default());
    assert_eq!(given(&machine), [(0, 0); 2]);
    pair.exchange();
}

#[test]
fn an_end_that_may_not_use_it_neither_offers_nor_sets_it() {
    let offer = Some((NVIDIA, 0x3000_0007));
    let off = VerbsConfig { ece: false, ..VerbsConfig::default() };
    for (sender, receiver) in [(off, off), (off, VerbsConfig::default()), (VerbsConfig::default(), off)] {
        let machine = machine_with(offer, offer);
        let mut pair = machine.pair(&Wish { sender, receiver, ..Wish::default() });
        assert_eq!(given(&machine), [(0, 0); 2], "{} {}", sender.ece, receiver.ece);
        pair.exchange();
    }
}

#[test]
fn an_older_library_does_without() {
    let offer = Some((NVIDIA, 0x3000_0007));
    for absent in [&["ibv_query_ece", "ibv_set_ece"][..], &["ibv_query_ece"], &["ibv_set_ece"]] {
        let machine = Machine::without(absent, &description(offer, offer));
        let mut pair = machine.pair(&Wish::default());
        assert_eq!(given(&machine), [(0, 0); 2], "without {absent:?}");
        pair.exchange();
    }
}

#[test]
fn an_end_that_cannot_set_it_after_all_says_so_to_the_other() {
    let offer = Some((NVIDIA, 0x3000_0007));
    // The first call is the acceptor's.
    let machine = Machine::new(&format!("faults = ['set_ece:1:EOPNOTSUPP']\n{}", description(offer, offer)));
    let mut pair = machine.pair(&Wish::default());
    assert_eq!(given(&machine), [(0, 0); 2]);
    pair.exchange();
}

#[test]
fn an_end_that_refuses_what_was_agreed_fails_with_its_values() {
    let offer = Some((NVIDIA, 0x3000_0007));
    for (call, end, peer) in [(1, "b", "10.0.0.1"), (2, "a", "10.1.0.1")] {
        let machine = Machine::new(&format!("faults = ['set_ece:{call}:EINVAL']\n{}", description(offer, offer)));
        let refused = machine.try_pair(&Wish::default()).err().unwrap();
        let SetupError::Refused { port, what, error } = &refused else { panic!("{refused:?}") };
        assert_eq!((port.as_str(), error.errno), (end, Some(libc::EINVAL)));
        let SetupStep::Ece { peer_gid, vendor, options, .. } = what else { panic!("{what:?}") };
        assert_eq!((peer_gid.as_str(), *vendor, *options), (peer, 0x15b3, 0x3000_0007));
        machine.assert_closed("a refused ECE");
    }
}

#[test]
fn a_device_that_does_not_tell_its_options_offers_none() {
    let offer = Some((NVIDIA, 0x3000_0007));
    let machine = Machine::new(&format!("faults = ['query_ece:1:EIO']\n{}", description(offer, offer)));
    let mut pair = machine.pair(&Wish::default());
    assert_eq!(given(&machine), [(0, 0); 2]);
    pair.exchange();
}

#[test]
fn it_is_set_before_the_peer_is_known_and_not_again_when_a_later_step_is_retried() {
    let offer = Some((NVIDIA, 0x3000_0007));
    for state in ["RTR", "RTS"] {
        let machine = Machine::new(&format!(
            "faults = ['modify_qp/{state}:1-2:ETIMEDOUT']\n\
            {}",
            description(offer, offer)
        ));
        // The fake libibverbs refuses ECE after RTR.
        let mut pair = machine.pair(&Wish::default());
        assert_eq!(given(&machine), [(NVIDIA, 0x3000_0007); 2], "{state}");
        pair.exchange();
    }
}
