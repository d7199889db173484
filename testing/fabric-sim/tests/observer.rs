//! An observer sees each event, and gets its tasks back at their times.

use std::sync::Arc;

use railweave_fabric::{
    Access, Domain, LaneId, LocalSlice, MemoryKind, PendingRail, PostError, Rail, RailSpec, Region, Registration,
    RemoteSlice, Role, WorkId, Write,
};
use railweave_fabric_sim::{
    Breach, Event, Faults, Mishap, Observer, Place, SimDomain, SimRail, SimRegistration, World,
};

/// Notes each event in a few words.
#[derive(Debug, Default)]
struct Notes {
    words: Vec<String>,
    breaches: Vec<Breach>,
    mishaps: Vec<Mishap>,
}

impl Observer for Notes {
    type Task = &'static str;

    fn see(&mut self, now_ns: u64, place: Place, event: &Event<'_>) {
        self.words.push(match event {
            Event::Taken { chain } => format!("{} taken", chain.len()),
            Event::Posted { arrival_ns, .. } => format!("on its way for {} ns", arrival_ns - now_ns),
            Event::Landed(landing) => format!("{:?} landed at {}", landing.bytes, landing.start),
            Event::Lost { .. } => "lost".to_owned(),
            Event::Died { .. } => format!("lane {} died", place.lane),
            Event::Broken(breach) => return self.breaches.push(*breach),
            _ => return,
        });
    }

    fn suffer(&mut self, mishap: Mishap) {
        self.mishaps.push(mishap);
    }
}

/// The two ends of a rail, and memory on each side, in a world with faults.
struct Bench {
    world: Arc<World<Notes>>,
    near: SimRail<Notes>,
    far: Option<SimRail<Notes>>,
    source: SimRegistration<Notes>,
    target: SimRegistration<Notes>,
}

const DEPTH: u32 = 2;

impl Bench {
    fn new(faults: Faults) -> Self {
        let world = World::observed(1, faults, Notes::default());
        let domain = || SimDomain::<true, Notes>::new(&world, world.add_process(), 4096, true);
        let (near, far) = (domain(), domain());
        let spec = |role| RailSpec {
            role,
            lanes: 1,
            send_depth: DEPTH,
            receive_depth: DEPTH,
            lane_receives: DEPTH,
            traffic_class: None,
            peer: None,
        };
        let mut rails = (near.open_rail(&spec(Role::Sender)).unwrap(), far.open_rail(&spec(Role::Receiver)).unwrap());
        rails.0.connect(&rails.1.endpoints()).unwrap();
        rails.1.connect(&rails.0.endpoints()).unwrap();
        let memory = |domain: &Arc<SimDomain<true, Notes>>, access| {
            domain.register_as(&Arc::new(Region::new(4096)), 1 << 40, MemoryKind::Host, access)
        };
        let (source, target) = (memory(&near, Access::SOURCE), memory(&far, Access::DATA));
        Self { world, near: rails.0.into_rail().unwrap(), far: rails.1.into_rail().ok(), source, target }
    }

    /// Posts this many writes of two bytes in a chain.
    fn post(&mut self, count: usize) -> Result<(), PostError> {
        let write = Write {
            local: LocalSlice { address: 1 << 40, length: 2, key: self.source.local_key() },
            remote: RemoteSlice { address: 1 << 40, key: self.target.remote_key() },
            immediate: None,
            signalled: true,
            host: true,
            id: WorkId(1),
        };
        self.near.post(LaneId::FIRST, &vec![write; count])
    }

    /// Carries out all scheduled events. Returns the tasks that came back, with their times.
    fn drive(&self) -> Vec<(u64, &'static str)> {
        let mut state = self.world.lock();
        let mut tasks = Vec::new();
        while state.next_at().is_some() {
            let task = state.step();
            tasks.extend(task.map(|task| (state.now_ns, task)));
        }
        tasks
    }
}

#[test]
fn a_write_is_observed_from_its_post_to_its_landing() {
    let mut bench = Bench::new(Faults::none());
    bench.post(1).unwrap();
    bench.drive();
    let words = &bench.world.lock().observer.words;
    assert_eq!(*words, ["1 taken", "on its way for 1060 ns", "[0, 0] landed at 1099511627776"]);
}

#[test]
fn a_write_to_a_peer_that_is_gone_is_lost_and_its_lane_dies() {
    let mut bench = Bench::new(Faults::none());
    bench.far = None;
    bench.post(1).unwrap();
    bench.drive();
    let words = &bench.world.lock().observer.words;
    assert_eq!(*words, ["1 taken", "on its way for 1060 ns", "lost", "lane 0 died"]);
}

#[test]
fn a_chain_without_room_breaks_a_rule_and_is_refused() {
    let mut bench = Bench::new(Faults::none());
    assert!(bench.post(DEPTH as usize).is_ok());
    assert!(bench.world.lock().observer.breaches.is_empty());
    assert!(matches!(bench.post(1), Err(PostError::Full)));
    assert_eq!(bench.world.lock().observer.breaches, [Breach::SendQueue { chain: 1, room: 0 }]);
}

#[test]
fn a_fault_is_observed_when_it_strikes_and_not_before() {
    let mut bench = Bench::new(Faults { late_read_permille: 1000, ..Faults::none() });
    assert!(bench.world.lock().observer.mishaps.is_empty());
    bench.post(1).unwrap();
    assert_eq!(bench.world.lock().observer.mishaps, [Mishap::LateRead]);
}

#[test]
fn tasks_come_back_in_the_order_of_their_times() {
    let bench = Bench::new(Faults::none());
    let mut state = bench.world.lock();
    state.at(300, "last");
    state.later(100, "first");
    state.at(100, "second, of the same time");
    drop(state);
    assert_eq!(bench.drive(), [(100, "first"), (100, "second, of the same time"), (300, "last")]);
}
