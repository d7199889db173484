//! The machine of a scenario.

use std::sync::OnceLock;

use railweave_fake_ibverbs::{FakeVerbs, Open, build};
use railweave_nccl_host::LoadedNet;

/// Two RoCE ports, one four times as fast as the other. This holds with every adapter's profile, because `port_speed`
/// is 0.
pub(crate) const ROCE: &str = "[[device]]\nname = 'mlx5_0'\n[[device.port]]\nwidth = 4\nport_speed = 0\n\
                               [[device]]\nname = 'mlx5_1'\n[[device.port]]\nwidth = 1\nport_speed = 0\n";

/// One RoCE port, so that no other can take its place.
pub(crate) const ONE_PORT: &str = "[[device]]\nname = 'mlx5_0'\n[[device.port]]\nwidth = 4\nport_speed = 0\n";

/// Two InfiniBand ports of one speed.
pub(crate) const INFINIBAND: &str = "[[device]]\nname = 'mlx5_0'\n[[device.port]]\nlink_layer = 'infiniband'\n\
                                     [[device]]\nname = 'mlx5_1'\n[[device.port]]\nlink_layer = 'infiniband'\n";

/// Both ports as the rails of one device.
pub(crate) const FUSED: (&str, &str) = ("RAILWEAVE_MODE", "fused");

/// Rails with equal weights, whatever their ports' speeds.
pub(crate) const EVEN: (&str, &str) = ("RAILWEAVE_WEIGHTS", "1,1");

/// Returns the path of the fake libibverbs, which the first call links.
pub(crate) fn library() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| build().to_str().expect("the path is text").to_owned())
}

/// A connection fails with its first rail.
pub(crate) const FAILS: (&str, &str) = ("RAILWEAVE_RECOVERY", "0");

/// Returns the settings with the fake in place of libibverbs, and only RDMA. Both ends are in this process and dial the
/// loopback interface, because a description's addresses are made up.
pub(crate) fn with<'a>(settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let common = [("NCCL_IBVERBS_LIB", library()), ("RAILWEAVE_FABRIC", "verbs"), ("RAILWEAVE_OOB_IF", "lo")];
    [&common, settings].concat()
}

/// Gives this process the described machine, from the next init on.
pub(crate) fn machine(description: &str) -> FakeVerbs {
    let fake = FakeVerbs::load(library().as_ref()).expect("the fake libibverbs loads");
    fake.describe(Some(description)).expect("the description is well-formed");
    fake
}

/// Returns the same machine with plain devices, whatever adapter the tests run over (RAILWEAVE_TEST_PROFILE): for tests
/// of exact calls and counts, which differ between adapters.
pub(crate) fn strict(description: &str) -> String {
    description.lines().fold(String::new(), |text, line| {
        let profile = if line == "[[device]]" { "profile = 'plain'\n" } else { "" };
        text + line + "\n" + profile
    })
}

/// Finalizes the last communicator and checks that no object of the fake libibverbs is left open.
pub(crate) fn finish(fake: &FakeVerbs, net: LoadedNet) {
    net.finalize().expect("finalize succeeds");
    assert_eq!(fake.open(), Open::default(), "something is left open after finalize");
}
