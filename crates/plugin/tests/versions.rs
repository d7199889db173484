//! Every version of the API, through the table that NCCL would look up.

mod common;

use common::{Pair, TWO_RAILS, each, library, load, noise, warnings};
use railweave_nccl_host::net::NetApi;
use railweave_nccl_host::{LoadError, Plugin};

const VERSIONS: [u32; 7] = [6, 7, 8, 9, 10, 11, 12];
const SIZES: [usize; 10] = [0, 1, 127, 128, 129, 4096, 8191, 65_537, 1 << 20, 3_000_001];

#[test]
fn every_version_moves_exact_bytes_and_tells_exact_sizes() {
    each(
        &VERSIONS,
        |_| vec![TWO_RAILS],
        |version| {
            let plugin = load(Some(*version));
            assert_eq!((plugin.name(), plugin.version()), ("railweave", *version));
            let (first, second) = (plugin.init(1, None).unwrap(), plugin.init(2, None).unwrap());
            let pair = Pair::open(&first, &second, 0);
            for (seed, bytes) in SIZES.into_iter().enumerate() {
                pair.exchange(seed as u64, bytes);
            }
            pair.close();
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn every_version_takes_null_for_the_sizes_of_test() {
    each(
        &VERSIONS,
        |_| vec![TWO_RAILS],
        |version| {
            let net = load(Some(*version)).init(1, None).unwrap();
            let pair = Pair::open(&net, &net, 0);
            let message = noise(5, 100_000);
            let (from, to) = (pair.outgoing(&message), pair.incoming(message.len()));
            let recv = pair.irecv(&[to.part(0)]);
            let send = pair.isend(&from, message.len(), 0);
            let (mut sent, mut received) = (false, false);
            common::until("both sides", || {
                sent = sent || Pair::test_without_sizes(&net, &send);
                received = received || Pair::test_without_sizes(&net, &recv);
                (sent && received).then_some(())
            });
            to.assert_holds(&message);
        },
    );
}

#[test]
fn every_version_tells_of_the_same_device() {
    each(
        &VERSIONS,
        |_| vec![TWO_RAILS],
        |version| {
            let net = load(Some(*version)).init(1, None).unwrap();
            assert_eq!(net.devices().unwrap(), 1);
            let device = net.properties(0).unwrap();
            assert_eq!((device.pci_path, device.ptr_support, device.max_recvs), (None, 1, 8));
            assert_eq!((device.reg_is_global, device.device_type, device.latency_us), (*version >= 8, 0, 0.0));
            assert_eq!((device.max_p2p_bytes, device.max_coll_bytes), (1 << 30, 1 << 30));
            assert_eq!(device.members, if *version >= 9 { vec![0] } else { vec![] });
            assert!(net.properties(1).is_err() && net.properties(-1).is_err());
        },
    );
}

#[test]
fn a_version_that_is_not_there_is_refused() {
    assert_eq!(Plugin::load(&library(), None).unwrap().versions(), [12, 11, 10, 9, 8, 7, 6]);
    for version in [5, 13] {
        let error = Plugin::load(&library(), Some(version)).unwrap_err();
        assert!(matches!(error, LoadError::NoVersion { .. }), "{error}");
    }
}
