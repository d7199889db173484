//! Virtual devices: NCCL fuses devices of one port with makeVDevice, and connects over all their ports.

mod common;

use std::sync::OnceLock;

use common::{Pair, TWO_RAILS, accept, alone, connect, each, listen, load, noise, start, warnings, warnings_with};
use railweave_abi::NcclResult;
use railweave_fake_ibverbs::{FakeVerbs, build};
use railweave_nccl_host::net::{NetApi, Properties};
use railweave_nccl_host::{LoadedNet, NetError, Plugin};

/// Each port of this host is a device.
const PORTS: (&str, &str) = ("RAILWEAVE_MODE", "ports");

/// Two RoCE ports of unlike adapters and speeds, and one of InfiniBand.
const MACHINE: &str = "\
[[device]]
name = 'mlx5_0'
guid = 0x100
[[device.port]]
width = 4
port_speed = 0
[[device]]
name = 'mlx5_1'
guid = 0x200
[[device.port]]
width = 1
port_speed = 0
[[device]]
name = 'mlx5_2'
guid = 0x300
[[device.port]]
link_layer = 'infiniband'
";

/// Returns the path of the fake libibverbs, which the first call links.
fn library() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| build().to_str().expect("the path is text").to_owned())
}

fn properties(net: &LoadedNet, device: i32) -> Properties {
    net.properties(device).expect("properties succeeds")
}

/// Checks that fusing is refused as wrong usage, and that a warning has this text.
fn refused(net: &LoadedNet, members: &[i32], text: &str) {
    let before = net.devices().expect("devices succeeds");
    let error = net.fuse(members).expect_err("the members cannot be fused");
    assert!(matches!(error, NetError::Call { code: NcclResult::INVALID_USAGE, .. }), "{members:?}: {error:?}");
    assert!(warnings_with(&["makeVDevice: ", text]).len() == 1, "{members:?}: {:?}", warnings());
    assert_eq!(net.devices().expect("devices succeeds"), before, "no device was made");
}

/// Connects the device `from` with the device `to` of this process, exchanges messages, and returns the bytes that each
/// rail that exists has carried so far.
fn exchanged(plugin: &Plugin, net: &LoadedNet, from: i32, to: i32) -> Vec<u64> {
    let (listening, handle) = listen(net, to);
    let send = connect(net, from, &handle);
    let recv = accept(net, &listening);
    net.close_listen(listening).expect("the listen is closed");
    let pair = Pair { from: net, to: net, send, recv };
    let message = noise(5, 300_000);
    let (outgoing, mut incoming) = (pair.outgoing(&message), pair.incoming(message.len()));
    for bytes in [0, 1, 8192, 300_000] {
        assert_eq!(pair.transfer(&outgoing, bytes, &incoming), (bytes as i32, bytes as i32), "{from} to {to}");
    }
    incoming.assert_holds(&message);
    incoming.clear();
    pair.release_outgoing(outgoing);
    pair.release_incoming(incoming);
    pair.close();
    plugin.rail_counters().expect("the plugin counts").iter().map(|rail| rail.data_bytes).collect()
}

#[test]
fn a_virtual_device_connects_over_all_its_ports_and_with_devices_of_other_counts() {
    each(
        &[9, 10, 11, 12],
        |_| vec![TWO_RAILS, PORTS],
        |version| {
            let plugin = load(Some(*version));
            let net = plugin.init(1, None).expect("init succeeds");
            assert_eq!(net.devices().unwrap(), 2);
            let fused = net.fuse(&[1, 0]).expect("the ports can be fused");
            assert_eq!((fused, net.devices().unwrap()), (2, 3));
            assert_eq!(net.fuse(&[1, 0]).unwrap(), fused, "the same device again");
            assert_eq!(net.fuse(&[0, 1]).unwrap(), fused, "whatever their order");
            let (first, second, made) = (properties(&net, 0), properties(&net, 1), properties(&net, fused));
            assert_eq!(made.name, "lo@127.0.0.1+lo@127.0.0.2");
            assert_eq!((made.members.as_slice(), second.members.as_slice()), (&[0, 1][..], &[1][..]));
            assert_eq!(made.speed_mbps, first.speed_mbps + second.speed_mbps);
            assert_eq!((made.guid, made.port, &made.pci_path), (first.guid, first.port, &first.pci_path));
            // The first connections use one rail, that of both ports with themselves; the last ones two.
            let alone = exchanged(&plugin, &net, 0, fused);
            assert!(alone.len() == 1 && alone[0] >= 308_193, "{alone:?}");
            exchanged(&plugin, &net, fused, 1);
            let both = exchanged(&plugin, &net, fused, fused);
            assert!(both.len() == 2 && both.iter().sum::<u64>() == 3 * 308_193, "{both:?}");
            assert_eq!(warnings(), [""; 0]);
            net.finalize().expect("finalize succeeds");
        },
    );
}

#[test]
fn rdma_ports_of_one_kind_can_be_fused_whatever_their_speeds() {
    alone(&[("RAILWEAVE_IBVERBS_LIB", library()), ("RAILWEAVE_FABRIC", "verbs"), ("RAILWEAVE_OOB_IF", "lo")], || {
        let fake = FakeVerbs::load(library().as_ref()).expect("the fake libibverbs loads");
        fake.describe(Some(MACHINE)).expect("the description is well-formed");
        let (plugin, net) = start();
        refused(&net, &[0, 2], "mlx5_0 is RoCE and mlx5_2 is InfiniBand, and no connection has both");
        refused(&net, &[0, 0], "device mlx5_0 is named twice");
        let fused = net.fuse(&[0, 1]).expect("the ports can be fused");
        let (first, second, made) = (properties(&net, 0), properties(&net, 1), properties(&net, fused));
        assert_eq!((fused, made.name.as_str(), made.guid), (3, "mlx5_0+mlx5_1", first.guid));
        assert_eq!(made.speed_mbps, first.speed_mbps + second.speed_mbps);
        assert_ne!(first.speed_mbps, second.speed_mbps);
        refused(&net, &[2, 3], "device mlx5_0+mlx5_1 has several ports already");
        let both = exchanged(&plugin, &net, fused, fused);
        assert!(both.len() == 2 && both.iter().all(|bytes| *bytes > 0), "{both:?}");
        net.finalize().expect("finalize succeeds");
    });
}

#[test]
fn a_setting_that_forbids_it_is_named() {
    let cases: [(&[(&str, &str)], &str); 3] = [
        (&[PORTS, ("NCCL_IB_MERGE_NICS", "0")], "RAILWEAVE_MERGE_NICS (from NCCL_IB_MERGE_NICS) is 0"),
        (&[PORTS, ("RAILWEAVE_MERGE_NICS", "0"), ("NCCL_IB_MERGE_NICS", "1")], "(from RAILWEAVE_MERGE_NICS) is 0"),
        (&[("RAILWEAVE_MODE", "fused")], "Railweave has fused the ports itself; RAILWEAVE_MODE=ports"),
    ];
    each(
        &cases,
        |(settings, _)| [&[TWO_RAILS], *settings].concat(),
        |(_, text)| {
            let (_plugin, net) = start();
            refused(&net, &[0], text);
            net.finalize().expect("finalize succeeds");
        },
    );
}

#[test]
fn versions_limit_the_members() {
    each(
        &[8, 11],
        |_| vec![TWO_RAILS, PORTS],
        |version| {
            let net = load(Some(*version)).init(1, None).expect("init succeeds");
            match (version, net.fuse(&[0, 1, 0, 1, 0]).expect_err("too many members")) {
                (8, NetError::CannotFuse { .. }) | (_, NetError::Members { limit: 4, .. }) => {}
                (_, other) => panic!("{other:?}"),
            }
        },
    );
}

#[test]
fn a_member_that_does_not_exist_is_a_wrong_call() {
    alone(&[TWO_RAILS, PORTS], || {
        let (_plugin, net) = start();
        for member in [-1, 2, i32::MAX] {
            let error = net.fuse(&[0, member]).expect_err("there is no such device");
            assert!(matches!(error, NetError::Call { code: NcclResult::INTERNAL_ERROR, .. }), "{error:?}");
            let sentence = format!("makeVDevice was called for device {member}, which does not exist");
            assert_eq!(warnings_with(&[&sentence, "allowed: 0 to 1"]).len(), 1, "{:?}", warnings());
        }
        net.finalize().expect("finalize succeeds");
    });
}
