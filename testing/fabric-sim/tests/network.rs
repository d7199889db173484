//! Each fault of the network strikes, and leaves alone what it must not strike.

use std::sync::Arc;

use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    Access, ClosedAt, Domain, LaneId, LocalSlice, MemoryKind, PendingRail, PostError, Rail, RailError, RailSpec,
    Region, Registration, RemoteSlice, Role, WorkId, WorkStatus, Write,
};
use railweave_fabric_sim::{
    Event, Faults, Mishap, Observer, Outage, Place, SimDomain, SimRail, SimRegistration, World,
};

/// Notes the times of landings and of outages, and the mishaps.
#[derive(Debug, Default)]
struct Notes {
    landed: Vec<(u64, u64)>,
    torn: usize,
    outages: Vec<Outage>,
    acks_lost: usize,
    breaches: usize,
    mishaps: Vec<Mishap>,
}

impl Notes {
    fn count(&self, mishap: Mishap) -> usize {
        self.mishaps.iter().filter(|seen| **seen == mishap).count()
    }
}

impl Observer for Notes {
    type Task = std::convert::Infallible;

    fn see(&mut self, now_ns: u64, _: Place, event: &Event<'_>) {
        match event {
            Event::Landed(landing) => self.landed.push((now_ns, landing.write.id.0)),
            Event::Torn(_) => self.torn += 1,
            Event::Outage(outage) => self.outages.push(*outage),
            Event::AckLost { .. } => self.acks_lost += 1,
            Event::Broken(_) => self.breaches += 1,
            _ => {}
        }
    }

    fn suffer(&mut self, mishap: Mishap) {
        self.mishaps.push(mishap);
    }
}

/// The two ends of a rail, numbered 0 and 1 in their world, with memory on each side.
struct Bench<const ONE_SIDED: bool> {
    world: Arc<World<Notes>>,
    near: SimRail<Notes>,
    far: Option<SimRail<Notes>>,
    far_domain: Arc<SimDomain<ONE_SIDED, Notes>>,
    source: SimRegistration<Notes>,
    target: Option<SimRegistration<Notes>>,
    received: Vec<Completion>,
    sent: Vec<Completion>,
    posted: u64,
}

const BASE: u64 = 1 << 40;
const RETRY_NS: u64 = 80_000;

/// The receiving end of a rail of one lane.
const SPEC: RailSpec = RailSpec {
    role: Role::Receiver,
    lanes: 1,
    send_depth: 256,
    receive_depth: 256,
    lane_receives: 256,
    traffic_class: None,
    peer: None,
};

fn faults() -> Faults {
    Faults { retry_ns: RETRY_NS, ..Faults::none() }
}

impl<const ONE_SIDED: bool> Bench<ONE_SIDED> {
    fn new(faults: Faults) -> Self {
        Self::of_seed(1, faults)
    }

    fn of_seed(seed: u64, faults: Faults) -> Self {
        let world = World::observed(seed, faults, Notes::default());
        let domain = || SimDomain::<ONE_SIDED, Notes>::new(&world, world.add_process(), 1 << 20, true);
        let (near, far) = (domain(), domain());
        let spec = |role| RailSpec { role, ..SPEC };
        let mut rails = (near.open_rail(&spec(Role::Sender)).unwrap(), far.open_rail(&spec(Role::Receiver)).unwrap());
        rails.0.connect(&rails.1.endpoints()).unwrap();
        rails.1.connect(&rails.0.endpoints()).unwrap();
        let source = near.register_as(&Arc::new(Region::new(1 << 16)), BASE, MemoryKind::Host, Access::SOURCE);
        let target = far.register_as(&Arc::new(Region::new(1 << 16)), BASE, MemoryKind::Host, Access::DATA);
        let mut far_rail = rails.1.into_rail().unwrap();
        far_rail.post_receives(200).unwrap();
        Self {
            world,
            near: rails.0.into_rail().unwrap(),
            far: Some(far_rail),
            far_domain: far,
            source,
            target: Some(target),
            received: Vec::new(),
            sent: Vec::new(),
            posted: 0,
        }
    }

    /// Posts this many writes of `length` bytes with immediates.
    fn post(&mut self, count: usize, length: u32) {
        (0..count).for_each(|_| self.try_post(length).unwrap());
    }

    /// Posts a write of `length` bytes with an immediate.
    fn try_post(&mut self, length: u32) -> Result<(), PostError> {
        self.posted += 1;
        let key = self.target.as_ref().unwrap().remote_key();
        let write = Write {
            local: LocalSlice { address: BASE, length, key: self.source.local_key() },
            remote: RemoteSlice { address: BASE, key },
            immediate: Some(7),
            signalled: true,
            host: true,
            id: WorkId(self.posted),
        };
        self.near.post(LaneId::FIRST, &[write])
    }

    /// Lets this much time pass, while both ends poll every microsecond.
    fn pass(&mut self, ns: u64) {
        for _ in 0..ns.div_ceil(1_000) {
            self.world.advance(1_000);
            self.poll();
        }
    }

    fn poll(&mut self) {
        self.near.report(64, &mut self.sent);
        if let Some(far) = &mut self.far {
            far.report(64, &mut self.received);
        }
    }

    fn begin(&self, end: usize, writes: bool, acknowledgements: bool, until_ns: u64) {
        let outage = Outage { writes, acknowledgements, from_ns: 0, until_ns, is_long: until_ns == u64::MAX };
        self.world.lock().begin_outage(end, outage);
    }

    fn count(&self, mishap: Mishap) -> usize {
        self.world.lock().observer.count(mishap)
    }

    /// Returns the ids of the writes that have landed.
    fn landed(&self) -> Vec<u64> {
        self.world.lock().observer.landed.iter().map(|(_, id)| *id).collect()
    }

    fn failure(&self) -> Option<&RailError> {
        self.sent.iter().find_map(|sent| match sent {
            Completion::Failed { error, .. } => Some(&**error),
            _ => None,
        })
    }
}

#[test]
fn a_stalled_acknowledgement_keeps_back_the_completion_but_not_the_data() {
    let run = |permille| {
        let mut bench = Bench::<true>::new(Faults { ack_stall_permille: permille, ack_stall_ns: 500_000, ..faults() });
        bench.post(20, 64);
        bench.pass(20_000);
        (bench.landed().len(), bench.received.len(), bench.sent.len(), bench.count(Mishap::AckStalled))
    };
    assert_eq!(run(0), (20, 20, 20, 0));
    let (landed, received, sent, stalled) = run(1000);
    assert!((landed, received, stalled) == (20, 20, 20) && sent < 10, "{sent} were acknowledged");
}

#[test]
fn a_lost_acknowledgement_comes_by_the_retry_unless_nobody_is_left_to_send_it() {
    let lossy = || Faults { ack_lost_permille: 1000, ack_lost_ns: 400_000, ..faults() };
    let mut bench = Bench::<true>::new(lossy());
    bench.post(1, 64);
    bench.pass(150_000);
    assert!(bench.sent.is_empty() && bench.received.len() == 1);
    bench.pass(300_000);
    assert!(matches!(bench.sent[..], [Completion::Sent { id: WorkId(1) }]));
    let mut bench = Bench::<true>::new(lossy());
    bench.post(1, 64);
    bench.pass(10_000);
    bench.far = None;
    bench.pass(1_000_000);
    let Some(RailError::Work(failure)) = bench.failure() else { panic!("{:?}", bench.sent) };
    assert_eq!((bench.landed().len(), failure.status), (1, WorkStatus::RetriesExceeded));
}

#[test]
fn a_rate_drifts_and_jumps_within_a_tenth_and_ten_times() {
    let gaps = |faults| {
        let mut bench = Bench::<true>::new(faults);
        bench.post(200, 12_500);
        bench.pass(5_000_000);
        let times: Vec<u64> = bench.world.lock().observer.landed.iter().map(|(at_ns, _)| *at_ns).collect();
        assert_eq!(times.len(), 200);
        let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        (*gaps.iter().min().unwrap(), *gaps.iter().max().unwrap(), bench)
    };
    let (shortest, longest, _) = gaps(faults());
    assert_eq!((shortest, longest), (1_060, 1_060), "12,500 bytes at 100 Gbit/s, and 60 ns");
    let (shortest, longest, bench) = gaps(Faults { rate_change_ns: 4_000, ..faults() });
    assert!(shortest < 1_000 && longest > 1_100 && bench.count(Mishap::RateDrift) > 20, "{shortest}..{longest}");
    assert_eq!(bench.count(Mishap::RateJump), 0);
    let (shortest, longest, bench) = gaps(Faults { rate_change_ns: 4_000, rate_jump_permille: 500, ..faults() });
    assert!(shortest < 500 && longest > 3_000 && longest <= 10_060, "{shortest}..{longest}");
    assert!(bench.count(Mishap::RateJump) > 5);
}

#[test]
fn a_rail_that_nearly_stands_still_comes_back() {
    let faults = Faults { rate_change_ns: 4_000, standstill_permille: 100, standstill_ns: 100_000, ..faults() };
    let mut bench = Bench::<true>::new(faults);
    bench.post(200, 12_500);
    bench.pass(5_000_000);
    let times: Vec<u64> = bench.world.lock().observer.landed.iter().map(|(at_ns, _)| *at_ns).collect();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(bench.count(Mishap::Standstill) > 0 && longest > 20_000, "{longest}");
    assert_eq!(bench.sent.len(), 200);
}

#[test]
fn writes_lost_in_a_short_outage_land_late_but_in_order_and_no_lane_fails() {
    let mut bench = Bench::<true>::new(faults());
    bench.begin(0, true, false, RETRY_NS / 2);
    bench.post(5, 64);
    bench.pass(RETRY_NS / 2 - 1_000);
    assert!(bench.landed().is_empty() && bench.count(Mishap::WriteLostOneWay) == 5);
    bench.pass(2 * RETRY_NS);
    assert_eq!((bench.landed(), bench.sent.len()), (vec![1, 2, 3, 4, 5], 5));
    assert!(bench.failure().is_none() && bench.count(Mishap::Recovered) == 1);
}

#[test]
fn a_write_behind_lost_ones_brings_them_with_it() {
    let mut bench = Bench::<true>::new(faults());
    bench.begin(0, true, false, 3_000);
    bench.post(2, 64);
    bench.pass(4_000);
    assert!(bench.landed().is_empty());
    bench.post(1, 64);
    bench.pass(2_000);
    assert_eq!(bench.landed(), [1, 2, 3]);
}

#[test]
fn a_lane_fails_once_its_retries_end_within_an_outage() {
    let mut bench = Bench::<true>::new(faults());
    bench.begin(0, true, false, u64::MAX);
    bench.post(2, 64);
    bench.pass(RETRY_NS - 2_000);
    assert!(bench.failure().is_none());
    bench.pass(2 * RETRY_NS);
    let Some(RailError::Work(failure)) = bench.failure() else { panic!("{:?}", bench.sent) };
    assert_eq!((failure.status, bench.landed().len()), (WorkStatus::RetriesExceeded, 0));
    let id = bench.sent.iter().find_map(|sent| if let Completion::Failed { id, .. } = sent { *id } else { None });
    assert_eq!((id, bench.count(Mishap::RetriesEnded)), (Some(WorkId(1)), 1));
}

#[test]
fn an_outage_of_acknowledgements_lets_the_data_land_and_kills_the_lane_all_the_same() {
    let mut bench = Bench::<true>::new(faults());
    bench.begin(0, false, true, u64::MAX);
    bench.post(2, 64);
    bench.pass(3 * RETRY_NS);
    assert_eq!((bench.received.len(), bench.count(Mishap::AckLostOneWay)), (2, 2));
    assert!(bench.failure().is_some());
}

#[test]
fn an_outage_at_one_end_leaves_the_other_direction_alone() {
    let mut bench = Bench::<true>::new(faults());
    bench.begin(1, true, true, u64::MAX);
    bench.post(5, 64);
    bench.pass(2_000_000);
    assert_eq!((bench.received.len(), bench.sent.len()), (5, 5));
}

#[test]
fn outages_are_drawn_short_and_long_of_one_direction_and_of_both() {
    let drawn = |faults: Faults| {
        let mut all = Vec::new();
        for seed in 0..200 {
            let mut bench = Bench::<true>::of_seed(seed, faults.clone());
            bench.post(1, 64);
            all.extend(bench.world.lock().observer.outages.iter().copied());
        }
        all
    };
    assert!(drawn(faults()).is_empty());
    let short = drawn(Faults { outage_permille: 1000, outage_ns: 5_000, ..faults() });
    assert!(short.iter().all(|outage| !outage.is_long && outage.until_ns <= outage.from_ns + 5_000));
    for (writes, acknowledgements) in [(true, true), (true, false), (false, true)] {
        let is_one = |outage: &&Outage| (outage.writes, outage.acknowledgements) == (writes, acknowledgements);
        assert!(short.iter().filter(is_one).count() > 10);
    }
    let long = drawn(Faults { outage_permille: 1000, long_outage_permille: 1000, ..faults() });
    assert!(long.iter().all(|outage| outage.is_long && outage.until_ns >= outage.from_ns + RETRY_NS));
    assert!(long.iter().any(|outage| outage.until_ns == u64::MAX));
    assert!(long.iter().any(|outage| outage.until_ns < u64::MAX));
}

/// Posts ten writes, and puts their lane into error before they land. Returns the benches of 100 seeds a moment later.
fn cut_off<const ONE_SIDED: bool>(late_landing_ns: u64) -> Vec<Bench<ONE_SIDED>> {
    let bench = |seed| {
        let mut bench = Bench::<ONE_SIDED>::of_seed(seed, Faults { late_landing_ns, ..faults() });
        bench.post(10, 256);
        bench.world.lock().put_into_error(0);
        bench.poll();
        assert!(matches!(bench.failure(), Some(RailError::Work(failure)) if failure.status == WorkStatus::Flushed));
        bench
    };
    (1..=100).map(bench).collect()
}

fn is_prefix(ids: &[u64]) -> bool {
    ids.iter().copied().eq(1..=ids.len() as u64)
}

#[test]
fn writes_that_a_failure_cut_off_land_late_in_order_and_up_to_some_point() {
    for mut bench in cut_off::<true>(0) {
        bench.pass(50_000);
        assert!(bench.landed().is_empty() && bench.received.is_empty());
    }
    let (mut counts, mut late, mut in_part) = (Vec::new(), 0, 0);
    for mut bench in cut_off::<true>(50_000) {
        bench.pass(60_000);
        let landed = bench.landed();
        assert!(is_prefix(&landed) && bench.received.len() == landed.len(), "{landed:?}");
        assert!(bench.sent.iter().all(|sent| !matches!(sent, Completion::Sent { .. })), "nothing is acknowledged");
        late += usize::from(bench.world.lock().observer.landed.iter().any(|(at_ns, _)| *at_ns > 10_000));
        in_part += bench.count(Mishap::PlacedInPart);
        counts.push(landed.len());
    }
    assert!(counts.contains(&0) && counts.contains(&10) && late > 20 && in_part > 5, "{counts:?}, {late}, {in_part}");
}

#[test]
fn over_sockets_they_land_when_the_receiver_polls() {
    let mut all = 0;
    for mut bench in cut_off::<false>(50_000) {
        bench.world.advance(60_000);
        assert!(bench.landed().is_empty());
        bench.pass(600_000);
        assert!(is_prefix(&bench.landed()));
        all += bench.landed().len();
    }
    assert!(all > 100);
}

#[test]
fn writes_that_a_silent_rail_keeps_in_a_socket_are_cut_off_in_order_too() {
    let mut all = 0;
    for seed in 1..=30 {
        let mut bench = Bench::<false>::of_seed(seed, Faults { late_landing_ns: 50_000, ..faults() });
        bench.post(10, 256);
        bench.world.advance(5_000);
        bench.world.lock().cut(0);
        bench.pass(5 * RETRY_NS);
        assert!(bench.failure().is_some() && is_prefix(&bench.landed()), "{:?}", bench.landed());
        all += bench.landed().len();
    }
    assert!(all > 30);
}

#[test]
fn what_left_before_a_cut_arrives_and_is_not_acknowledged() {
    let mut bench = Bench::<true>::new(faults());
    bench.post(1, 256);
    // It is on the wire after 80 ns, and arrives after a microsecond.
    bench.world.advance(100);
    bench.world.lock().cut(0);
    bench.post(1, 256);
    bench.pass(3 * RETRY_NS);
    assert_eq!(bench.landed(), [1]);
    assert!(bench.failure().is_some() && bench.received.len() == 1, "{:?}", bench.sent);
    assert!(bench.sent.iter().all(|sent| !matches!(sent, Completion::Sent { .. })));
}

#[test]
fn what_left_before_a_cut_is_lost_at_a_port_that_has_died() {
    let mut bench = Bench::<true>::new(faults());
    bench.post(1, 256);
    bench.world.advance(100);
    bench.world.lock().silence_port(1);
    bench.pass(3 * RETRY_NS);
    assert!(bench.landed().is_empty() && bench.failure().is_some());
}

#[test]
fn a_device_that_has_failed_completes_nothing_and_may_lose_what_it_had_completed() {
    let mut left = 0;
    for seed in 1..=40 {
        let mut bench = Bench::<true>::of_seed(seed, faults());
        bench.post(1, 256);
        bench.world.advance(10_000);
        bench.world.lock().fail_device(0);
        bench.post(1, 256);
        bench.pass(5 * RETRY_NS);
        assert_eq!(bench.landed(), [1], "the second reaches nobody");
        assert!(bench.failure().is_none(), "and nothing tells of it");
        assert_eq!(bench.sent.len() + bench.count(Mishap::CompletionsForgotten), 1);
        left += bench.sent.len();
        let again = bench.far_domain.open_rail(&SPEC);
        assert!(again.is_ok(), "the peer's device works");
    }
    assert!((10..30).contains(&left), "{left}");
}

#[test]
fn a_flush_fails_once_its_loop_back_has() {
    let mut bench = Bench::<true>::new(faults());
    let target = RemoteSlice { address: BASE, key: bench.target.as_ref().unwrap().remote_key() };
    let far = bench.far.as_mut().unwrap();
    far.post_flush(target, WorkId(1)).unwrap();
    bench.pass(10_000);
    assert!(matches!(bench.received[..], [Completion::Sent { id: WorkId(1) }]), "{:?}", bench.received);
    bench.world.lock().set_loop_back(1, false);
    bench.far.as_mut().unwrap().post_flush(target, WorkId(2)).unwrap();
    bench.pass(RETRY_NS / 2);
    assert_eq!(bench.received.len(), 1, "it retries");
    bench.pass(RETRY_NS);
    let Some(Completion::Failed { error, .. }) = bench.received.last() else { panic!("{:?}", bench.received) };
    assert!(matches!(&**error, RailError::Work(failure) if failure.status == WorkStatus::RetriesExceeded));
}

#[test]
fn a_blind_poll_misses_only_what_has_just_come() {
    let mut bench = Bench::<true>::new(Faults { poll_blind_permille: 1000, ..faults() });
    bench.post(1, 256);
    bench.world.advance(1_200);
    bench.poll();
    assert_eq!((bench.received.len(), bench.count(Mishap::BlindPoll)), (0, 1), "it has just landed");
    bench.poll();
    assert_eq!(bench.received.len(), 1, "a second poll finds it");
    bench.post(1, 256);
    bench.world.advance(10_000);
    bench.poll();
    assert_eq!((bench.received.len(), bench.count(Mishap::BlindPoll)), (2, 1), "it came long before");
}

#[test]
fn a_late_immediate_needs_a_receive_like_any_other() {
    let mut breaches = 0;
    for seed in 1..=20 {
        let mut bench = Bench::<true>::of_seed(seed, Faults { late_landing_ns: 50_000, ..faults() });
        // The bench has posted 200 receives.
        bench.post(200, 8);
        bench.world.advance(100_000);
        bench.post(10, 8);
        bench.world.lock().put_into_error(0);
        bench.world.advance(60_000);
        breaches += bench.world.lock().observer.breaches;
    }
    assert!(breaches > 5, "{breaches}");
}

#[test]
fn nothing_lands_at_an_end_whose_lanes_are_destroyed() {
    let mut fenced = 0;
    for mut bench in cut_off::<true>(50_000) {
        bench.world.lock().destroy_lanes(1);
        bench.pass(60_000);
        assert!(bench.landed().is_empty() && bench.world.lock().observer.torn == 0);
        fenced += bench.count(Mishap::Fenced);
    }
    assert!(fenced > 50);
}

#[test]
fn an_end_in_error_may_place_bytes_for_a_moment_but_completes_nothing() {
    let mut placed = 0;
    for mut bench in cut_off::<true>(1_000_000) {
        bench.world.lock().put_into_error(1);
        bench.pass(100_000);
        placed += bench.count(Mishap::PlacedInPart);
        let before = bench.world.lock().observer.torn;
        bench.pass(900_000);
        assert_eq!((bench.landed().len(), bench.world.lock().observer.torn), (0, before));
        assert!(bench.received.iter().all(|one| matches!(one, Completion::Failed { .. })));
    }
    assert!(placed > 10);
}

#[test]
fn nothing_lands_in_memory_whose_key_is_gone() {
    for mut bench in cut_off::<true>(50_000) {
        bench.target = None;
        bench.pass(60_000);
        assert!(bench.landed().is_empty());
    }
}

#[test]
fn a_stale_key_that_was_given_away_again_names_the_later_memory() {
    let written = |key_reuse_permille| {
        let mut bench = Bench::<true>::new(Faults { key_reuse_permille, ..faults() });
        bench.post(1, 64);
        let stale = bench.target.take().unwrap().remote_key();
        let region = Arc::new(Region::new(1 << 16));
        let later = bench.far_domain.register_as(&region, BASE, MemoryKind::Host, Access::DATA);
        let is_same = later.remote_key() == stale;
        bench.pass(10_000);
        (is_same, bench.landed().len(), bench.count(Mishap::KeyReused))
    };
    assert_eq!(written(0), (false, 0, 0));
    assert_eq!(written(1000), (true, 1, 1));
}

#[test]
fn completions_of_destroyed_lanes_vanish_or_stay_as_the_adapter_has_it() {
    for destroy_purges in [false, true] {
        let mut bench = Bench::<true>::new(Faults { destroy_purges, ..faults() });
        bench.post(3, 64);
        bench.world.advance(10_000);
        let purged = bench.world.lock().destroy_lanes(1);
        bench.poll();
        let expected = if destroy_purges { (3, 0, 1) } else { (0, 3, 0) };
        assert_eq!((purged, bench.received.len(), bench.count(Mishap::CompletionsPurged)), expected);
        assert!(bench.near.is_broken(LaneId::FIRST) != bench.far.as_ref().unwrap().is_broken(LaneId::FIRST));
    }
}

#[test]
fn an_end_that_is_dropped_loses_the_completions_that_nobody_polled() {
    for is_polled in [true, false] {
        let mut bench = Bench::<true>::new(faults());
        bench.post(1, 64);
        bench.world.advance(10_000);
        if is_polled {
            bench.poll();
        }
        bench.far = None;
        assert_eq!(bench.count(Mishap::CompletionsDropped), usize::from(!is_polled));
    }
}

#[test]
fn a_socket_reports_silence() {
    let mut bench = Bench::<false>::new(faults());
    bench.begin(0, true, true, u64::MAX);
    bench.post(1, 64);
    bench.pass(3 * RETRY_NS);
    assert!(matches!(bench.failure(), Some(RailError::Silence(_))), "{:?}", bench.sent);
}

#[test]
fn a_socket_that_its_peer_has_closed_fails_once_there_is_work() {
    let mut bench = Bench::<false>::new(faults());
    bench.post(1, 64);
    bench.far = None;
    bench.pass(3 * RETRY_NS);
    let failure = bench.failure();
    assert!(matches!(failure, Some(RailError::PeerClosed(ClosedAt::Rest(1)))), "{failure:?}");
    let mut bench = Bench::<false>::new(faults());
    bench.far = None;
    bench.pass(3 * RETRY_NS);
    assert!(bench.failure().is_none(), "nothing was outstanding");
    assert!(bench.try_post(64).is_err());
    bench.pass(3 * RETRY_NS);
    assert!(matches!(bench.failure(), Some(RailError::PeerClosed(ClosedAt::Rest(0)))));
}

#[test]
fn an_acknowledgement_that_the_kernel_does_not_take_for_a_millisecond_is_counted() {
    let late = |ack_refused_ns: u64| {
        let faults = Faults { acks_put_off: true, ack_refused_permille: 1000, ack_refused_ns, ..faults() };
        let mut bench = Bench::<false>::new(faults);
        bench.post(1, 64);
        bench.world.advance(10_000);
        bench.far.as_mut().unwrap().report(64, &mut bench.received);
        let mut refused = 0;
        while !bench.far.as_mut().unwrap().acknowledge() {
            refused += 1;
            bench.world.advance(10_000);
        }
        (refused > 0, bench.count(Mishap::AckRefusedLong) > 0)
    };
    assert_eq!(late(900_000), (true, false));
    assert_eq!(late(30_000_000), (true, true));
}
