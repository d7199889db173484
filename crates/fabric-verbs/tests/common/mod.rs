//! A machine that the fake libibverbs describes, and the two ends of a rail on it.
#![allow(dead_code, reason = "each file of tests uses a part of this")]

pub(crate) mod ports;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railweave_fabric::conformance::{Completion, poll};
use railweave_fabric::{
    Access, Connecting, Domain as _, LaneEndpoint, LaneId, LocalSlice, Memory, PendingRail as _, PostError, Rail as _,
    RailError, RailSpec, Region, Registration as _, RemoteSlice, Role, SetupError, WorkFailure, WorkId, Write,
};
use railweave_fabric_verbs::sys::Functions;
use railweave_fabric_verbs::{
    Device, ModifyRetries, OpenPort, VerbsConfig, VerbsDomain, VerbsPendingRail, VerbsPort, VerbsRail,
    VerbsRegistration,
};
use railweave_fake_ibverbs::{FakeVerbs, Open, QpReport, build_without};

/// Two RoCE devices that reach each other.
pub(crate) const ROCE: &str = "[[device]]\nname = 'a'\n[[device.port]]\n[[device]]\nname = 'b'\n[[device.port]]\n";

/// Two InfiniBand devices on one subnet.
pub(crate) const INFINIBAND: &str = "[[device]]\nname = 'a'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = 7\n\
     [[device]]\nname = 'b'\n[[device.port]]\nlink_layer = 'infiniband'\nlid = 9\n";

/// The same machine with strict devices, whatever adapter the tests run over (RAILWEAVE_TEST_PROFILE): for tests of
/// exact limits and counts, which not every adapter has.
pub(crate) fn strict(description: &str) -> String {
    description.lines().fold(String::new(), |text, line| {
        let profile = if line == "[[device]]" { "profile = 'plain'\n" } else { "" };
        text + line + "\n" + profile
    })
}

/// One machine at a time, because the library's state belongs to the process.
static TURN: Mutex<()> = Mutex::new(());

/// The messages of domains since the machine was made.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records a domain's message.
pub(crate) fn listen(text: &str) {
    SAID.lock().unwrap().push(text.to_owned());
}

/// A machine, held by one test at a time. When it is dropped, no object of the library may be open.
pub(crate) struct Machine {
    pub(crate) fake: FakeVerbs,
    functions: Arc<Functions>,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new(description: &str) -> Self {
        Self::without(&[], description)
    }

    /// A machine with a library that lacks these functions.
    pub(crate) fn without(absent: &[&str], description: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        SAID.lock().unwrap().clear();
        let library = build_without(absent);
        let fake = FakeVerbs::load(&library).unwrap();
        fake.describe(Some(description)).unwrap();
        let functions = Arc::new(Functions::load(&[library.to_str().unwrap()]).unwrap());
        Self { fake, functions, _turn: turn }
    }

    /// Makes these calls fail, counted from now; open objects stay as they are.
    pub(crate) fn fail(&self, faults: &str) {
        self.fake.describe(Some(faults)).unwrap();
        // A description is read when devices are listed.
        Device::open_all(&self.functions).unwrap();
    }

    /// The messages of domains.
    pub(crate) fn said(&self) -> Vec<String> {
        SAID.lock().unwrap().clone()
    }

    /// The plugin's first call to the library.
    pub(crate) fn prepare_for_forks(&self) {
        self.functions.prepare_for_forks().unwrap();
    }

    /// The library's file.
    pub(crate) fn library(&self) -> &str {
        self.functions.name()
    }

    /// The usable ports. If `has_engines`, adapters with a Data Direct engine use it.
    pub(crate) fn ports(&self, has_engines: bool) -> Vec<VerbsPort> {
        ports::ports(&self.functions, has_engines)
    }

    /// The port of this device, with its Data Direct engine if it has one, as on hosts with default settings.
    pub(crate) fn port(&self, name: &str) -> VerbsPort {
        let found = self.ports(true).into_iter().find(|port| port.facts.name == name);
        found.unwrap_or_else(|| panic!("there is no usable port {name}"))
    }

    /// A rail from port a to port b.
    pub(crate) fn pair(&self, wish: &Wish) -> Pair {
        self.try_pair(wish).unwrap_or_else(|error| panic!("{error} ({})", self.fake.complaint()))
    }

    pub(crate) fn try_pair(&self, wish: &Wish) -> Result<Pair, SetupError> {
        Pair::open(&self.port("a"), &self.port("b"), wish)
    }

    /// The reports of a device's queue pairs, in the order in which they were made.
    pub(crate) fn lanes(&self, device: &str) -> Vec<QpReport> {
        self.fake.queue_pairs().into_iter().filter(|lane| lane.device == device).collect()
    }

    /// The reports of the only lane of a and the only one of b.
    pub(crate) fn both_lanes(&self) -> (QpReport, QpReport) {
        let only = |device: &str| <[QpReport; 1]>::try_from(self.lanes(device)).expect("one lane");
        let ([near], [far]) = (only("a"), only("b"));
        (near, far)
    }

    /// Asserts that nothing is open.
    pub(crate) fn assert_closed(&self, after: &str) {
        assert_eq!(self.fake.open(), Open::default(), "something is left open: {after}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_closed("at the end");
        }
    }
}

/// The properties of a rail.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) lanes: u8,
    pub(crate) depth: u32,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) sender: VerbsConfig,
    pub(crate) receiver: VerbsConfig,
}

impl Default for Wish {
    fn default() -> Self {
        // As many retries as the tests need, without waiting.
        let modify_retries = ModifyRetries { count: 2, pause: Duration::ZERO, any_error: false };
        let config = VerbsConfig { modify_retries, ..VerbsConfig::default() };
        Self { lanes: 1, depth: 64, traffic_class: None, sender: config, receiver: config }
    }
}

impl Wish {
    /// Returns a wish with the same configuration at both ends.
    pub(crate) fn of(config: VerbsConfig) -> Self {
        Self { sender: config, receiver: config, ..Self::default() }
    }
}

/// A domain of a port.
pub(crate) fn open(port: &VerbsPort, config: VerbsConfig, inform: fn(&str)) -> Result<Arc<VerbsDomain>, SetupError> {
    Ok(VerbsDomain::new(OpenPort::new(port.clone())?, config, inform))
}

/// Both ends of a rail.
pub(crate) struct Pair {
    pub(crate) near: End,
    pub(crate) far: End,
}

/// One end.
pub(crate) struct End {
    pub(crate) rail: VerbsRail,
    pub(crate) domain: Arc<VerbsDomain>,
}

impl Pair {
    /// A rail with its sender at one port and its receiver at another, in the steps of a handshake.
    pub(crate) fn open(sender: &VerbsPort, receiver: &VerbsPort, wish: &Wish) -> Result<Self, SetupError> {
        Self::open_into(sender, receiver, &open(receiver, wish.receiver, listen)?, wish)
    }

    /// The same for a receiver whose port has this domain already.
    pub(crate) fn open_into(
        sender: &VerbsPort,
        receiver: &VerbsPort,
        far_domain: &Arc<VerbsDomain>,
        wish: &Wish,
    ) -> Result<Self, SetupError> {
        let spec = |role, peer: &VerbsPort, receive_depth| RailSpec {
            role,
            lanes: wish.lanes,
            send_depth: wish.depth,
            receive_depth,
            lane_receives: receive_depth,
            traffic_class: wish.traffic_class,
            peer: Some(peer.facts.wire_address()),
        };
        let near_domain = open(sender, wish.sender, listen)?;
        let mut near = near_domain.open_rail(&spec(Role::Sender, receiver, 0))?;
        let mut far = far_domain.open_rail(&spec(Role::Receiver, sender, wish.depth))?;
        assert!(!near.is_ready() && !far.is_ready());
        connect(&mut far, &near.endpoints())?;
        connect(&mut near, &far.endpoints())?;
        assert!(near.is_ready() && far.is_ready());
        let end = |domain, rail| End { rail, domain };
        Ok(Self { near: end(near_domain, near.into_rail()?), far: end(Arc::clone(far_domain), far.into_rail()?) })
    }

    /// Moves 1,000 bytes with an immediate over each lane, and checks them.
    pub(crate) fn exchange(&mut self) {
        let from = self.near.block(1000, Access::SOURCE);
        let to = self.far.block(1000, Access::DATA);
        for lane in 0..self.near.rail.lanes() {
            let bytes: Vec<u8> = (0..1000_u32).map(|place| (place * 7 + u32::from(lane)) as u8).collect();
            from.region.write(0, &bytes);
            assert_eq!(self.far.rail.post_receives(1), Ok(1));
            self.near.post(lane, from.source(1000), to.place()).unwrap();
            let (near, far) = (self.near.poll(), self.far.poll());
            assert_eq!(near, [Completion::Sent { id: WorkId(u64::from(lane)) }]);
            assert_eq!(far, [Completion::Received { lane: LaneId(lane), immediate: 0x1234, bytes: 1000 }]);
            let mut there = vec![0; 1000];
            to.region.read(0, &mut there);
            assert!(there == bytes, "the bytes of lane {lane} differ");
        }
    }
}

/// The failed piece of work of an error; panics for other errors.
pub(crate) fn failed_work(error: RailError) -> WorkFailure {
    match error {
        RailError::Work(failure) => failure,
        other => panic!("no piece of work failed, but: {other}"),
    }
}

/// Connects all lanes, with as many attempts as that takes.
fn connect(pending: &mut VerbsPendingRail, remote: &[LaneEndpoint]) -> Result<(), SetupError> {
    while let Connecting::Later { pause, .. } = pending.connect(remote)? {
        std::thread::sleep(pause);
    }
    Ok(())
}

impl End {
    /// Registered memory of this end.
    pub(crate) fn block(&self, length: usize, access: Access) -> Block {
        let region = Arc::new(Region::new(length));
        let registration = self.domain.register(Memory::from_region(&region), access).unwrap();
        Block { region, registration }
    }

    /// Posts one signalled write with an immediate; its id is the lane.
    pub(crate) fn post(&mut self, lane: u8, local: LocalSlice, remote: RemoteSlice) -> Result<(), PostError> {
        let id = WorkId(lane.into());
        let write = Write { local, remote, immediate: Some(0x1234), signalled: true, host: true, id };
        self.rail.post(LaneId(lane), &[write])
    }

    /// The reports of one poll.
    pub(crate) fn poll(&mut self) -> Vec<Completion> {
        poll(&mut self.rail, 16)
    }

    /// The one failure that polling reports, of a piece of work.
    pub(crate) fn work_failure(&mut self) -> WorkFailure {
        let mut failures = self.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        failed_work(failures.remove(0).2)
    }

    /// The failures that 20 polls report, each with its lane and its work.
    pub(crate) fn failures(&mut self) -> Vec<(u8, Option<WorkId>, RailError)> {
        let mut failures = Vec::new();
        for _ in 0..20 {
            for completion in self.poll() {
                if let Completion::Failed { lane, id, error } = completion {
                    failures.push((lane.0, id, *error));
                }
            }
        }
        failures
    }
}

/// Registered memory.
pub(crate) struct Block {
    // Dropped before the memory.
    pub(crate) registration: VerbsRegistration,
    pub(crate) region: Arc<Region>,
}

impl Block {
    pub(crate) fn source(&self, length: u32) -> LocalSlice {
        LocalSlice { address: self.region.address(), length, key: self.registration.local_key() }
    }

    pub(crate) fn place(&self) -> RemoteSlice {
        RemoteSlice { address: self.region.address(), key: self.registration.remote_key() }
    }
}

/// Panics unless the text is a single line with all of these words.
pub(crate) fn assert_says(text: &str, words: &[&str]) {
    assert!(!text.contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}
