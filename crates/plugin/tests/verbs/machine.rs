//! The machine that a scenario runs on.

use std::sync::OnceLock;

use railweave_fake_ibverbs::{FakeVerbs, Open, build};
use railweave_nccl_host::LoadedNet;

/// Two RoCE ports, one four times as fast as the other: on every adapter, because none says a speed of its own.
pub(crate) const ROCE: &str = "[[device]]\nname = 'mlx5_0'\n[[device.port]]\nwidth = 4\nport_speed = 0\n\
                               [[device]]\nname = 'mlx5_1'\n[[device.port]]\nwidth = 1\nport_speed = 0\n";

/// Two InfiniBand ports of one speed.
pub(crate) const INFINIBAND: &str = "[[device]]\nname = 'mlx5_0'\n[[device.port]]\nlink_layer = 'infiniband'\n\
                                     [[device]]\nname = 'mlx5_1'\n[[device.port]]\nlink_layer = 'infiniband'\n";

/// Both ports as the rails of one device.
pub(crate) const FUSED: (&str, &str) = ("RAILWEAVE_MODE", "fused");

/// Rails that weigh the same, whatever their ports' speeds.
pub(crate) const EVEN: (&str, &str) = ("RAILWEAVE_WEIGHTS", "1,1");

/// The fake's file. The first who asks links it.
pub(crate) fn library() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| build().to_str().expect("the path is text").to_owned())
}

/// Settings, with the fake libibverbs in libibverbs' place and nothing but RDMA. Both ends are this process: nothing is
/// dialled at the addresses that a description makes up.
pub(crate) fn with<'a>(settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let common = [("NCCL_IBVERBS_LIB", library()), ("RAILWEAVE_FABRIC", "verbs"), ("RAILWEAVE_OOB_IF", "lo")];
    [&common, settings].concat()
}

/// Makes this process's machine, from the next init on.
pub(crate) fn machine(description: &str) -> FakeVerbs {
    let fake = FakeVerbs::load(library().as_ref()).expect("the fake libibverbs loads");
    fake.describe(Some(description)).expect("the description is well-formed");
    fake
}

/// The same machine of strict devices, whatever adapter the tests run over (RAILWEAVE_TEST_PROFILE): for tests of exact
/// calls and counts, which are not those of every adapter.
pub(crate) fn strict(description: &str) -> String {
    description.lines().fold(String::new(), |text, line| {
        let profile = if line == "[[device]]" { "profile = 'plain'\n" } else { "" };
        text + line + "\n" + profile
    })
}

/// Finalizes the last communicator, after which nothing of the library is open.
pub(crate) fn finish(fake: &FakeVerbs, net: LoadedNet) {
    net.finalize().expect("finalize succeeds");
    assert_eq!(fake.open(), Open::default(), "something is left open after finalize");
}
