//! Checks whether the packets of one queue pair reach another, and whether the acknowledgements come back.

use std::ffi::c_int;
use std::fmt;
use std::net::Ipv6Addr;

use railweave_fabric_verbs::sys;

use crate::description::PortFacts;
use crate::gids::GidFacts;

/// One of two connected queue pairs.
#[derive(Clone, Copy)]
pub(crate) struct End<'pair> {
    pub(crate) number: u32,
    pub(crate) state: c_int,
    /// The attributes of all ibv_modify_qp calls since the last reset, merged.
    pub(crate) attributes: &'pair sys::QpAttributes,
    pub(crate) port: &'pair PortFacts,
    /// The ECE options that ibv_set_ece accepted; `None` if it was not called.
    pub(crate) ece: Option<sys::Ece>,
    /// True while its cable is cut.
    pub(crate) cut: bool,
    /// The serial number of its connection: a new one after each reset.
    pub(crate) incarnation: u64,
    /// The serial number of the peer's connection with which it has exchanged packets; 0 before the first packet.
    pub(crate) knows: u64,
}

/// The reason why nothing gets through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoWay {
    /// The way is blocked for now: work waits.
    Cut,
    /// The packets are lost: work fails.
    Lost {
        /// The completion status.
        status: c_int,
        /// The reason, in words.
        reason: String,
    },
}

fn lost(reason: fmt::Arguments<'_>) -> NoWay {
    NoWay::Lost { status: sys::WC_RETRY_EXC_ERR, reason: reason.to_string() }
}

/// Checks the way from one end to the other and back. `to` is `None` if there is no other end, or it has no port yet.
pub(crate) fn check(from: &End<'_>, to: Option<&End<'_>>) -> Result<(), NoWay> {
    let name = from.attributes.dest_qp_num;
    let down = |end: &End<'_>| end.cut || end.port.cut || end.port.state != sys::PORT_ACTIVE;
    if down(from) || to.is_some_and(down) {
        return Err(NoWay::Cut);
    }
    let Some(to) = to else {
        return Err(lost(format_args!(
            "there is no queue pair {name:#x}, or it has no port yet; the wire ends at this process"
        )));
    };
    if !matches!(to.state, sys::QPS_RTR | sys::QPS_RTS) {
        return Err(lost(format_args!("queue pair {name:#x} is not ready to receive (state {})", to.state)));
    }
    if to.attributes.dest_qp_num != from.number {
        let other = to.attributes.dest_qp_num;
        return Err(lost(format_args!("queue pair {name:#x} is connected to {other:#x}, not to {:#x}", from.number)));
    }
    check_address(from, to)?;
    check_address(to, from)?;
    check_sequence(from, to)?;
    // A peer in RTR has no sq_psn yet.
    if to.state == sys::QPS_RTS {
        check_sequence(to, from)?;
    }
    if (from.knows != 0 && from.knows != to.incarnation) || (to.knows != 0 && to.knows != from.incarnation) {
        return Err(lost(format_args!(
            "queue pairs {:#x} and {name:#x} were not both connected afresh: one was reset after they had exchanged \
             packets",
            from.number
        )));
    }
    let pkey = |end: &End<'_>| end.port.pkeys.get(usize::from(end.attributes.pkey_index)).map(|key| key & 0x7fff);
    if pkey(from) != pkey(to) {
        return Err(lost(format_args!("the partition keys of queue pairs {:#x} and {name:#x} differ", from.number)));
    }
    if let (Some(here), Some(there)) = (from.ece, to.ece)
        && here != there
    {
        return Err(lost(format_args!(
            "queue pair {:#x} has ECE options {:#x}, its peer {name:#x} has {:#x}",
            from.number, here.options, there.options
        )));
    }
    if from.attributes.path_mtu != to.attributes.path_mtu {
        return Err(NoWay::Lost {
            status: sys::WC_REM_INV_REQ_ERR,
            reason: format!(
                "queue pair {:#x} has path MTU {}, its peer {name:#x} has {}",
                from.number, from.attributes.path_mtu, to.attributes.path_mtu
            ),
        });
    }
    Ok(())
}

fn check_sequence(from: &End<'_>, to: &End<'_>) -> Result<(), NoWay> {
    let (sent, expected) = (from.attributes.sq_psn, to.attributes.rq_psn);
    if sent == expected {
        return Ok(());
    }
    Err(lost(format_args!(
        "queue pair {:#x} sends from PSN {sent:#x} (sq_psn), but {:#x} expects {expected:#x} (rq_psn)",
        from.number, to.number
    )))
}

/// Checks that packets from one end arrive at the port of the other.
fn check_address(from: &End<'_>, to: &End<'_>) -> Result<(), NoWay> {
    let (address, number) = (&from.attributes.ah_attr, from.number);
    if from.port.link_layer != to.port.link_layer {
        return Err(lost(format_args!("queue pairs {number:#x} and {:#x} are on different link layers", to.number)));
    }
    let global = address.is_global != 0;
    let destination = to.port.gids.iter().flatten().copied().filter(|facts| facts.gid == address.grh.dgid);
    let destinations: Vec<GidFacts> = destination.collect();
    if global && destinations.is_empty() {
        let gid = Ipv6Addr::from(address.grh.dgid.0);
        return Err(lost(format_args!(
            "queue pair {number:#x} sends to GID {gid}, which the port of {:#x} does not have",
            to.number
        )));
    }
    let source = from.port.gids.get(usize::from(address.grh.sgid_index)).copied().flatten();
    if from.port.link_layer == sys::LINK_LAYER_ETHERNET {
        let Some(source) = source else {
            return Err(lost(format_args!(
                "queue pair {number:#x} sends from GID index {}, which is empty",
                address.grh.sgid_index
            )));
        };
        if destinations.iter().all(|destination| destination.kind != source.kind) {
            return Err(lost(format_args!(
                "queue pair {number:#x} sends from a GID of type {}, but to one of another type",
                source.kind
            )));
        }
        if address.grh.hop_limit == 0 {
            return Err(lost(format_args!("queue pair {number:#x} has a hop limit of 0: its packets die at once")));
        }
        return Ok(());
    }
    if (from.port.grh_required || to.port.grh_required) && !global {
        return Err(lost(format_args!(
            "queue pair {number:#x} sends without a GRH, which its port or its peer's requires"
        )));
    }
    let subnet = |gid: sys::Gid| gid.0[..8].to_vec();
    let routed = global && source.is_some_and(|source| subnet(source.gid) != subnet(address.grh.dgid));
    if address.dlid != to.port.lid && !routed {
        return Err(lost(format_args!(
            "queue pair {number:#x} sends to LID {}, but the port of {:#x} has {}",
            address.dlid, to.number, to.port.lid
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Machine;

    struct Pair {
        machine: Machine,
        attributes: [sys::QpAttributes; 2],
        states: [c_int; 2],
        ece: [Option<sys::Ece>; 2],
        cut: bool,
        knows: u64,
    }

    impl Pair {
        /// Two ends that reach each other.
        fn new(description: &str) -> Self {
            let machine = Machine::described(description, "plain").expect("well-formed");
            let mut attributes = [sys::QpAttributes::default(); 2];
            for (index, end) in attributes.iter_mut().enumerate() {
                let (own, other) = (&machine.devices[index].ports[0], &machine.devices[1 - index].ports[0]);
                let place = own.gids.iter().rposition(Option::is_some).expect("a GID");
                end.dest_qp_num = 11 - index as u32;
                end.path_mtu = 5;
                (end.sq_psn, end.rq_psn) = (100 + index as u32, 101 - index as u32);
                end.ah_attr.dlid = other.lid;
                end.ah_attr.is_global = u8::from(own.link_layer == sys::LINK_LAYER_ETHERNET);
                end.ah_attr.grh.sgid_index = place as u8;
                end.ah_attr.grh.hop_limit = 255;
                end.ah_attr.grh.dgid = other.gids[place].expect("the same table").gid;
            }
            Self { machine, attributes, states: [sys::QPS_RTS; 2], ece: [None; 2], cut: false, knows: 0 }
        }

        fn check(&self) -> Result<(), NoWay> {
            let ends = [0, 1].map(|index| End {
                number: 10 + index as u32,
                state: self.states[index],
                attributes: &self.attributes[index],
                port: &self.machine.devices[index].ports[0],
                ece: self.ece[index],
                cut: self.cut,
                incarnation: 70 + index as u64,
                knows: self.knows,
            });
            check(&ends[0], Some(&ends[1]))
        }
    }

    const ROCE: &str = "[[device]]\nname = 'a'\n[[device.port]]\n\
        [[device]]\nname = 'b'\n[[device.port]]\npkeys = [0xffff, 0x8001]\n";
    const INFINIBAND: &str = "[[device]]\nname = 'a'\n[[device.port]]\nlink_layer = 'infiniband'\n\
         [[device]]\nname = 'b'\n[[device.port]]\nlink_layer = 'infiniband'\n";

    #[test]
    fn what_fits_together_reaches_the_other_side() {
        assert_eq!(Pair::new(ROCE).check(), Ok(()));
        assert_eq!(Pair::new(INFINIBAND).check(), Ok(()));
        let mut pair = Pair::new(ROCE);
        (pair.states[1], pair.attributes[1].sq_psn) = (sys::QPS_RTR, 0);
        assert_eq!(pair.check(), Ok(()), "a peer that is only ready to receive has no sq_psn yet");
    }

    #[test]
    fn each_wrong_attribute_is_found_and_named() {
        type Spoil = fn(&mut Pair);
        let cases: [(&str, &str, Spoil); 15] = [
            (ROCE, "not ready", |p| p.states[1] = sys::QPS_INIT),
            (ROCE, "connected to", |p| p.attributes[1].dest_qp_num = 99),
            (ROCE, "sq_psn", |p| p.attributes[0].sq_psn += 1),
            (ROCE, "sq_psn", |p| p.attributes[0].rq_psn += 1),
            (ROCE, "does not have", |p| p.attributes[0].ah_attr.grh.dgid.0[15] += 1),
            (ROCE, "does not have", |p| p.attributes[1].ah_attr.grh.dgid.0[15] += 1),
            (ROCE, "another type", |p| p.attributes[0].ah_attr.grh.sgid_index = 0),
            (ROCE, "hop limit", |p| p.attributes[1].ah_attr.grh.hop_limit = 0),
            (ROCE, "partition", |p| p.attributes[1].pkey_index = 1),
            (ROCE, "afresh", |p| p.knows = 5),
            (ROCE, "path MTU", |p| p.attributes[1].path_mtu = 4),
            (ROCE, "link layers", |p| p.machine.devices[1].ports[0].link_layer = sys::LINK_LAYER_INFINIBAND),
            (ROCE, "ECE", |p| {
                p.ece = [1, 2].map(|options| Some(sys::Ece { vendor_id: 1, options, comp_mask: 0 }));
            }),
            (INFINIBAND, "LID", |p| p.attributes[0].ah_attr.dlid += 1),
            (INFINIBAND, "GRH", |p| p.machine.devices[1].ports[0].grh_required = true),
        ];
        for (description, part, spoil) in cases {
            let mut pair = Pair::new(description);
            spoil(&mut pair);
            let Err(NoWay::Lost { status, reason }) = pair.check() else { panic!("{part}: not found") };
            let expected = if part == "path MTU" { sys::WC_REM_INV_REQ_ERR } else { sys::WC_RETRY_EXC_ERR };
            assert!(reason.contains(part), "{part}: {reason}");
            assert_eq!(status, expected, "{reason}");
        }
    }

    #[test]
    fn a_cut_cable_and_a_port_that_is_down_let_nothing_through_for_now() {
        let mut pair = Pair::new(ROCE);
        pair.cut = true;
        assert_eq!(pair.check(), Err(NoWay::Cut));
        let mut pair = Pair::new(ROCE);
        pair.machine.devices[1].ports[0].state = sys::PORT_DOWN;
        assert_eq!(pair.check(), Err(NoWay::Cut));
    }

    #[test]
    fn between_subnets_the_router_has_the_lid() {
        let mut pair = Pair::new(
            "[[device]]\nname = 'a'\n[[device.port]]\nlink_layer = 'infiniband'\ngid.0 = ['fe80::1', 'ib', 0]\n\
             [[device]]\nname = 'b'\n[[device.port]]\nlink_layer = 'infiniband'\ngid.0 = ['fe81::2', 'ib', 0]\n",
        );
        for end in &mut pair.attributes {
            (end.ah_attr.is_global, end.ah_attr.dlid) = (1, 999);
        }
        assert_eq!(pair.check(), Ok(()));
        for (index, gid) in [0, 1].map(|index| (index, pair.machine.devices[1 - index].ports[0].gids[0])) {
            pair.attributes[index].ah_attr.grh.dgid = gid.expect("set").gid;
        }
        assert_eq!(pair.check(), Ok(()));
    }
}
