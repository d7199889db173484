//! The conformance suite in virtual time, on both kinds of fabric.

use std::sync::Arc;

use railweave_fabric::conformance::{End, Harness, Pair, run_all};
use railweave_fabric::{Domain, Fabric, PendingRail, RailSpec};
use railweave_fabric_sim::{Faults, Sim, SimDomain, SimPendingRail, SimRail, SimRegistration, World};

struct Simulated<const ONE_SIDED: bool> {
    faults: Faults,
    seed: u64,
    world: Arc<World>,
}

impl<const ONE_SIDED: bool> Harness for Simulated<ONE_SIDED>
where
    Sim<ONE_SIDED>: Fabric<
            Domain = SimDomain<ONE_SIDED>,
            PendingRail = SimPendingRail<ONE_SIDED>,
            Rail = SimRail,
            Registration = SimRegistration,
        >,
{
    type Fabric = Sim<ONE_SIDED>;

    fn pair(&mut self, near: &RailSpec, far: &RailSpec) -> Pair<Self::Fabric> {
        self.seed += 1;
        self.world = World::new(self.seed, self.faults.clone());
        let domain = || SimDomain::<ONE_SIDED>::new(&self.world, self.world.add_process(), 1 << 30, true);
        let (near_domain, far_domain) = (domain(), domain());
        let mut near_rail = near_domain.open_rail(near).unwrap();
        let mut far_rail = far_domain.open_rail(far).unwrap();
        near_rail.connect(&far_rail.endpoints()).unwrap();
        far_rail.connect(&near_rail.endpoints()).unwrap();
        Pair {
            near: End { domain: near_domain, rail: near_rail.into_rail().unwrap() },
            far: End { domain: far_domain, rail: far_rail.into_rail().unwrap() },
        }
    }

    fn settle(&mut self) {
        self.world.advance(500);
    }

    fn quiet(&self) -> u32 {
        3000
    }
}

/// All faults that the traits allow and that do not make the suite fail.
fn hard() -> Faults {
    Faults {
        jitter_ns: 5_000,
        lag_ns: 2_000,
        rate_mbps: (10_000, 400_000),
        stall_permille: 20,
        stall_ns: 100_000,
        torn_permille: 300,
        late_read_permille: 500,
        completion_late_ns: 20_000,
        completion_burst_ns: 7_000,
        poll_short_permille: 300,
        acks_put_off: true,
        ack_stall_permille: 20,
        ack_stall_ns: 100_000,
        ack_lost_permille: 5,
        ack_lost_ns: 100_000,
        rate_change_ns: 5_000,
        rate_jump_permille: 300,
        standstill_permille: 50,
        standstill_ns: 50_000,
        outage_permille: 10,
        outage_ns: 35_000,
        late_landing_ns: 50_000,
        destroy_purges: true,
        key_reuse_permille: 500,
        ..Faults::none()
    }
}

fn suite<const ONE_SIDED: bool>(faults: Faults) {
    let world = World::new(0, Faults::none());
    run_all(&mut Simulated::<ONE_SIDED> { faults, seed: 0, world });
}

#[test]
fn one_sided() {
    suite::<true>(Faults::none());
}

#[test]
fn two_sided() {
    suite::<false>(Faults::none());
}

#[test]
fn one_sided_with_faults() {
    suite::<true>(hard());
}

#[test]
fn two_sided_with_faults() {
    suite::<false>(hard());
}
