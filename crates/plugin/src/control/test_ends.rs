//! Ends of open connections that do as tests say, the application's calls on them, and tests of the control thread's
//! turns.
#![allow(clippy::disallowed_types, reason = "a test has no fast path")]

use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use railweave_abi::NcclResult;
use railweave_fabric::{MAX_RAILS, Part, Piece, PolicyName};
use railweave_fabric_tcp::Tcp;
use railweave_patience::until;
use railweave_transport::call::Callable;
use railweave_transport::{
    ConnectionEnd, Dial, Error, Event, Fate, Hearing, Hush, InCall, LaneRefused, Order, OwnWeights, RailInfo, RailNews,
    RailWork, Received, Recovers, RecoveryAction, Steering,
};

use super::control_loop::ControlLoop;
use super::rail_inbox::Input;
use super::recovery::tests::{ROUTE, control_loop, open};
use crate::comm::{Calls, Comm, ControlHandle, End, Established, RegistrarOf, Request, Route};

/// The answers of an end, and its notes of what was asked of it.
pub(super) struct Script {
    /// The result of a look for silence.
    pub(super) hush: Hush,
    pub(super) parts: Vec<Part>,
    /// Called when a part has failed.
    pub(super) at_failure: Box<dyn FnMut() + Send>,
    /// The number of looks for silence.
    pub(super) looks: u32,
    /// The number of calls of [`Recovers::recover`].
    pub(super) recovered: u32,
    /// The parts that have failed.
    pub(super) failed: Vec<Part>,
}

/// An end that does as its script says.
struct Scripted {
    script: Arc<Mutex<Script>>,
    fate: Arc<Fate>,
    steering: Arc<Steering>,
}

/// NCCL's side of the connection at [`ROUTE`].
pub(super) struct Application {
    comm: Arc<Comm>,
    script: Arc<Mutex<Script>>,
}

impl Application {
    /// Gives NCCL the open connection, of which a look for silence has this result.
    pub(super) fn take_connection(thread: &mut ControlLoop, hush: Hush) -> Self {
        let script =
            Script { hush, parts: Vec::new(), at_failure: Box::new(|| ()), looks: 0, recovered: 0, failed: Vec::new() };
        let script = Arc::new(Mutex::new(script));
        let order = Order::new(PolicyName::Adaptive, [0; MAX_RAILS]);
        let weights = OwnWeights { speed: order.weights, fixed: None };
        let (fate, steering) = (Arc::<Fate>::default(), Arc::new(Steering::new(&order, weights)));
        let end = Scripted { script: Arc::clone(&script), fate: Arc::clone(&fate), steering: Arc::clone(&steering) };
        let established = Established {
            trace: None,
            end: Box::new(end),
            registrar: Arc::new(RegistrarOf::<Tcp> { rails: Vec::new() }),
            fate,
            steering,
            parts: Vec::new(),
            rails: Vec::new(),
            peer: "node2".to_owned(),
            step: None,
        };
        let comm = Comm::into_raw(established, ROUTE, Arc::new(Nobody), None).cast::<Comm>().cast_const();
        // SAFETY: into_raw made it from an `Arc`, which nobody else takes back.
        let comm = unsafe { Arc::from_raw(comm) };
        thread.handle_opened(ROUTE, Arc::downgrade(&comm));
        Self { comm, script }
    }

    /// Begins a call, which lasts until the result is dropped.
    pub(super) fn call(&self) -> InCall<'_> {
        self.comm.turn().enter(None, Err).expect("nobody uses the end")
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

/// A control thread that hears of nothing.
struct Nobody;

impl ControlHandle for Nobody {
    fn is_ours(&self) -> bool {
        true
    }
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    fn check_process(&self) -> Result<(), Error> {
        Ok(())
    }
    fn look_after(&self, _comm: Arc<Comm>) {}
    fn opened(&self, _route: Route, _comm: Weak<Comm>) {}
    fn close(&self, _route: Route, _end: Box<dyn End>) {}
    fn note(&self, _route: Route, _event: Event) {}
}

impl ConnectionEnd for Scripted {
    fn peer(&self) -> &'static str {
        "node2"
    }
    fn fate(&self) -> &Arc<Fate> {
        &self.fate
    }
    fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }
    fn parts(&self) -> Vec<Part> {
        self.script.lock().unwrap().parts.clone()
    }
    fn rails(&self) -> Vec<RailInfo> {
        Vec::new()
    }
    fn describe_lanes(&self) -> Vec<String> {
        Vec::new()
    }
    fn received(&mut self) -> Option<Received> {
        None
    }
    fn start_linger(&mut self) {}
    fn linger(&mut self) -> bool {
        true
    }
}

impl Recovers for Scripted {
    fn recover(&mut self, _now_ns: u64) {
        self.script.lock().unwrap().recovered += 1;
    }
    fn handle_rail_news(&mut self, _news: RailNews, _now_ns: u64) {}
    fn handle_worked(&mut self, _work: Box<dyn RailWork>, _now_ns: u64) {}
    fn handle_lane_dialled(&mut self, _dial: &Dial, _socket: Result<OwnedFd, String>, _now_ns: u64) {}
    fn handle_lane(&mut self, rail: u8, _lane: u8, _socket: OwnedFd) -> Result<(), LaneRefused> {
        Err(LaneRefused::NotAwaited(rail))
    }
    fn handle_part_failed(&mut self, part: &Part, _message: &str) -> bool {
        let mut script = self.script.lock().unwrap();
        assert!(script.failed.len() < 100, "it is told of failures without an end");
        script.failed.push(part.clone());
        (script.at_failure)();
        true
    }
    fn awaits_lane(&mut self, rail: u8, _lane: u8) -> Result<(), LaneRefused> {
        Err(LaneRefused::NotAwaited(rail))
    }
    fn hurry_recovery(&mut self, _now_ns: u64) {}
    fn look_for_silence(&mut self, _hearing: Hearing) -> Hush {
        let mut script = self.script.lock().unwrap();
        script.looks += 1;
        script.hush
    }
    fn recovery_timeout_ns(&self) -> Option<u64> {
        None
    }
    fn poll_recovery(&mut self) -> Option<RecoveryAction> {
        None
    }
}

impl End for Scripted {
    fn calls(&self, _is_observed: bool) -> Calls {
        Calls { isend, irecv, test, iflush }
    }
    fn sends(&self) -> bool {
        true
    }
    fn owes(&mut self) -> bool {
        false
    }
    fn acknowledge(&mut self) -> bool {
        true
    }
}

unsafe extern "C" fn isend(
    _: &Comm,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    NcclResult::INTERNAL_ERROR
}

unsafe extern "C" fn irecv(
    _: &Comm,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut usize,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    NcclResult::INTERNAL_ERROR
}

unsafe extern "C" fn test(_: &Request, _: *mut c_int, _: *mut c_int) -> NcclResult {
    NcclResult::INTERNAL_ERROR
}

unsafe fn iflush(_: &Comm, _: &[railweave_transport::Incoming<'_>], _: *mut *mut c_void) -> Result<(), Error> {
    Ok(())
}

#[test]
fn work_for_an_end_whose_application_is_in_a_call_is_handed_over_after_the_call() {
    let mut thread = control_loop();
    open(&mut thread);
    let application = Application::take_connection(&mut thread, Hush::Idle);
    let call = application.call();
    let part = Part { device: "mlx5_0".into(), piece: Piece::Port(1) };
    thread.recover(ROUTE, Input::PartFailed(part.clone(), "it is down".to_owned()));
    assert!(thread.recovery(ROUTE).is_some_and(|recovery| recovery.has_any()));
    assert!(thread.recoveries.contains(ROUTE), "nothing else would come back for it");
    drop(call);
    until("the end has its turn", || {
        thread.look_after_rails();
        (thread.recoveries.first().is_none()).then_some(())
    });
    assert_eq!(application.script().failed, [part]);
    assert!(application.script().recovered > 0);
}

#[test]
fn a_connection_gives_up_new_lanes_of_which_a_part_has_failed_meanwhile() {
    let mut thread = control_loop();
    open(&mut thread);
    let application = Application::take_connection(&mut thread, Hush::Idle);
    let [old, new, other] = [7, 8, 9].map(|pair| Part { device: "mlx5_0".into(), piece: Piece::QueuePair(pair) });
    application.script().parts = vec![old.clone()];
    thread.recover(ROUTE, Input::Due);
    for part in [&old, &new, &other] {
        thread.making_failures.keep(part, "it failed");
    }
    application.script().parts = vec![old, new.clone()];
    for _ in 0..2 {
        thread.recover(ROUTE, Input::Due);
    }
    assert_eq!(application.script().failed, [new], "once, and it was told of the old part before");
}
