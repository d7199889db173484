//! The conformance suite over real verbs: both ends of each rail on one port, which loops back inside the device. It
//! runs over the device named in RAILWEAVE_TEST_VERBS_DEVICE, as the lab does with soft-RoCE, and everywhere over the
//! fake libibverbs.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::ports::ports;
use railweave_fabric::conformance::{End, Harness, Pair, run_all};
use railweave_fabric::{Domain as _, PendingRail as _, RailSpec, Role};
use railweave_fabric_verbs::sys::Functions;
use railweave_fabric_verbs::{OpenPort, Verbs, VerbsConfig, VerbsDomain, VerbsPort};
use railweave_fake_ibverbs::{FakeVerbs, Open};

/// Both ends on one port.
struct Loopback {
    port: VerbsPort,
    config: VerbsConfig,
    real: bool,
}

impl Harness for Loopback {
    type Fabric = Verbs;

    fn pair(&mut self, near: &RailSpec, far: &RailSpec) -> Pair<Verbs> {
        // The connector is the sender (fabric::Role); the suite gives either end any role.
        let near = RailSpec { role: Role::Sender, ..near.clone() };
        let far = RailSpec { role: Role::Receiver, ..far.clone() };
        let open = |spec: &RailSpec| {
            let domain = VerbsDomain::new(OpenPort::new(self.port.clone()).unwrap(), self.config, |_| ());
            let pending = domain.open_rail(spec).unwrap_or_else(|error| panic!("{error}"));
            (domain, pending)
        };
        let (near_domain, mut near) = open(&near);
        let (far_domain, mut far) = open(&far);
        far.connect(&near.endpoints()).unwrap_or_else(|error| panic!("{error}"));
        near.connect(&far.endpoints()).unwrap_or_else(|error| panic!("{error}"));
        assert!(near.is_ready() && far.is_ready());
        Pair {
            near: End { domain: near_domain, rail: near.into_rail().unwrap() },
            far: End { domain: far_domain, rail: far.into_rail().unwrap() },
        }
    }

    fn settle(&mut self) {
        if self.real {
            // An emulated machine has one processor, and soft-RoCE works in the kernel's threads.
            std::thread::yield_now();
        }
    }

    fn patience(&self) -> u32 {
        if self.real { 2_000_000 } else { 10_000 }
    }

    fn quiet(&self) -> u32 {
        if self.real {
            std::thread::sleep(Duration::from_millis(30));
        }
        300
    }
}

#[test]
fn over_the_named_device() {
    let Ok(name) = std::env::var("RAILWEAVE_TEST_VERBS_DEVICE") else {
        eprintln!("skipped: RAILWEAVE_TEST_VERBS_DEVICE names no RDMA device (cargo xtask lab conformance has one)");
        return;
    };
    let functions = Arc::new(Functions::load(&["libibverbs.so.1"]).unwrap());
    let port = ports(&functions, true).into_iter().find(|port| port.facts.device == name);
    let port = port.unwrap_or_else(|| panic!("there is no usable port on {name}"));
    // A lane whose peer is gone should not take half a minute to fail: 16.8 ms, seven times. Soft-RoCE retries forever
    // with a retry count of 7.
    let config = VerbsConfig { timeout: 12, retry_count: 6, flush: true, ..VerbsConfig::default() };
    run_all(&mut Loopback { port, config, real: true });
}

/// Runs the suite over a machine of the fake libibverbs, and checks that every object was destroyed.
fn over(machine: &str, shared_receives: Option<bool>, flush: bool) {
    let library = railweave_fake_ibverbs::build();
    let fake = FakeVerbs::load(&library).unwrap();
    fake.describe(Some(machine)).unwrap();
    let functions = Arc::new(Functions::load(&[library.to_str().unwrap()]).unwrap());
    let port = ports(&functions, true).into_iter().next().unwrap();
    let config = VerbsConfig { shared_receives, flush, ..VerbsConfig::default() };
    run_all(&mut Loopback { port, config, real: false });
    drop(functions);
    assert_eq!(fake.open(), Open::default(), "something was not destroyed");
}

// All threads of a process share one fake libibverbs, so one test runs all machines.
#[test]
fn over_machines_of_every_kind() {
    for (machine, shared_receives, flush) in [
        ("[[device]]\nname = 'roce'\n[[device.port]]\n", None, false),
        ("[[device]]\nname = 'roce'\n[[device.port]]\n", None, true),
        ("[[device]]\nname = 'roce'\n[[device.port]]\n", Some(true), false),
        ("[[device]]\nname = 'roce'\n[[device.port]]\n", Some(false), false),
        ("[[device]]\nname = 'infiniband'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = 7\n", None, true),
        ("[[device]]\nname = 'without_shared_queues'\nmax_srq = 0\n[[device.port]]\n", None, false),
        ("[[device]]\nname = 'without_inline'\nmax_inline = 0\n[[device.port]]\n", None, false),
        ("[[device]]\nname = 'small'\n[[device.port]]\nmax_message = 0x200000\n", None, false),
        // Soft-RoCE keeps the completions of a queue pair that is destroyed.
        ("[[device]]\nname = 'soft'\nprofile = 'rxe'\n[[device.port]]\n", None, true),
    ] {
        eprintln!("{machine}{shared_receives:?} {flush}");
        over(machine, shared_receives, flush);
    }
}
