//! A connection as NCCL's threads hold it: how they take it for a call, leave it with a debt, and close it, and how the
//! control thread sends the debts that they leave.
//!
//! The steps are the protocol's own (`railweave_transport::call`), as in the plugin; this file has the threads.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use railweave_fabric::Part;
use railweave_transport::call::{self, Callable};
use railweave_transport::{
    ConnectionEnd, Debt, Debtors, Error, Event, Fate, Flushed, Incoming, Indebted, LOOK_INTERVAL, LastDebtor, Outgoing,
    RailInfo, RecvConnection, RecvRequest, SendConnection, SendRequest, Steering, Turn,
};

use super::net::Net;
use crate::Seen;
use crate::history::{Kind, Who};
use crate::task::Task;
use crate::witness::{Note, World};

/// The time that a sleeping control thread takes to wake up.
const WAKE_NS: u64 = 5_000;

/// A sending end.
pub(crate) type SendComm<const O: bool> = Comm<SendConnection<Net<O>>, O>;
/// A receiving end.
pub(crate) type RecvComm<const O: bool> = Comm<RecvConnection<Net<O>>, O>;

/// The threads of a process, as its connections see them: one progress thread, and the control thread.
pub(crate) struct Threads<const O: bool> {
    world: Arc<World>,
    process: usize,
    /// The connection that the progress thread left with a debt.
    left: LastDebtor<Weak<RecvComm<O>>>,
    /// Connections that were handed to the control thread since its last look.
    handed: RefCell<Vec<Rc<RecvComm<O>>>>,
    debtors: RefCell<Debtors<Rc<RecvComm<O>>>>,
    is_awake: Cell<bool>,
    /// The time at which the control thread has handled all closes so far.
    closes_until_ns: Cell<u64>,
}

impl<const O: bool> Threads<O> {
    pub(super) fn new(world: &Arc<World>, process: usize) -> Rc<Self> {
        Rc::new(Self {
            world: Arc::clone(world),
            process,
            left: LastDebtor::new(),
            handed: RefCell::default(),
            debtors: RefCell::default(),
            is_awake: Cell::new(false),
            closes_until_ns: Cell::new(0),
        })
    }

    /// Hands a connection to the control thread, and wakes it up if it sleeps.
    fn look_after(&self, comm: Rc<RecvComm<O>>) {
        self.handed.borrow_mut().push(comm);
        if !self.is_awake.replace(true) {
            self.world.lock().later(WAKE_NS, Task::Look(self.process));
        }
    }

    /// Lets the control thread look at the debts that it knows. It sleeps once there are none.
    pub(super) fn look(&self) {
        let mut debtors = self.debtors.borrow_mut();
        debtors.add(self.handed.take());
        if debtors.look() {
            self.world.lock().later(LOOK_INTERVAL.as_nanos() as u64, Task::Look(self.process));
        } else {
            self.is_awake.set(false);
            self.world.lock().saw(Seen::ControlSlept);
        }
    }

    /// Returns the time at which the control thread handles a close that waits for it for this long: it handles closes
    /// in their order.
    pub(super) fn closes_at_ns(&self, now_ns: u64, wait_ns: u64) -> u64 {
        self.closes_until_ns.set(self.closes_until_ns.get().max(now_ns + wait_ns));
        self.closes_until_ns.get()
    }

    /// Ends both threads.
    pub(super) fn end(&self) {
        drop((self.left.take(), self.handed.take()));
        self.debtors.borrow_mut().take().for_each(drop);
    }
}

/// An end that the threads of a process share.
pub(super) trait End<const O: bool>: ConnectionEnd + Sized {
    /// Returns the name of its connection as one with a debt.
    fn debtor(comm: &Comm<Self, O>) -> Weak<RecvComm<O>>;

    /// Returns true if it owes its peer something.
    fn owes(&mut self) -> bool;

    /// Sends what it owes. Returns true if all of it is on its way.
    fn acknowledge(&mut self) -> bool;
}

impl<const O: bool> End<O> for SendConnection<Net<O>> {
    fn debtor(_comm: &SendComm<O>) -> Weak<RecvComm<O>> {
        // It never owes anything.
        Weak::new()
    }

    fn owes(&mut self) -> bool {
        false
    }

    fn acknowledge(&mut self) -> bool {
        true
    }
}

impl<const O: bool> End<O> for RecvConnection<Net<O>> {
    fn debtor(comm: &RecvComm<O>) -> Weak<RecvComm<O>> {
        Weak::clone(&comm.itself)
    }

    fn owes(&mut self) -> bool {
        Self::owes(self)
    }

    fn acknowledge(&mut self) -> bool {
        Self::acknowledge(self)
    }
}

/// One end of a connection that is up.
pub(crate) struct Comm<E, const O: bool> {
    who: Who,
    debt: Debt,
    turn: Turn,
    /// `None` once closed. To use it while another thread does would be a panic.
    end: RefCell<Option<Box<E>>>,
    /// The event of the last message that its thread sent.
    event: Cell<Option<Event>>,
    threads: Rc<Threads<O>>,
    itself: Weak<Self>,
}

impl<E: ConnectionEnd, const O: bool> Comm<E, O> {
    pub(super) fn new(made: E, who: Who, threads: &Rc<Threads<O>>) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            who,
            debt: Debt::new(),
            turn: Turn::new(true),
            end: RefCell::new(Some(Box::new(made))),
            event: Cell::new(None),
            threads: Rc::clone(threads),
            itself: Weak::clone(itself),
        })
    }

    pub(super) fn fate(&self) -> Option<Arc<Fate>> {
        self.end.borrow().as_ref().map(|end| Arc::clone(end.fate()))
    }

    pub(super) fn steering(&self) -> Option<Arc<Steering>> {
        self.end.borrow().as_ref().map(|end| Arc::clone(end.steering()))
    }

    /// Returns the parts of its host that it uses.
    pub(super) fn parts(&self) -> Vec<Part> {
        self.end.borrow().as_ref().map_or_else(Vec::new, |end| end.parts())
    }

    /// Returns the rails that came up.
    pub(super) fn rails(&self) -> Vec<RailInfo> {
        self.end.borrow().as_ref().map_or_else(Vec::new, |end| end.rails())
    }

    /// Returns the end, for the thread that has taken the connection over.
    fn end(&self) -> Result<RefMut<'_, E>, Error> {
        Ok(RefMut::map(self.end.borrow_mut(), |end| &mut **end.as_mut().expect("a closed connection is not used")))
    }

    /// Notes that a call begins.
    fn begin_call(&self) {
        if !self.debt.is_free() {
            self.threads.world.lock().saw(Seen::DebtTakenOver);
        }
    }
}

impl<E: End<O>, const O: bool> Comm<E, O> {
    /// Lets the control thread use the end, between two calls; `None` once the connection is closed.
    pub(super) fn with_end<R>(&self, use_end: impl FnOnce(&mut E) -> R) -> Option<R> {
        let use_end = || {
            let mut end = self.end.borrow_mut();
            let Some(end) = end.as_deref_mut() else { return (None, false) };
            (Some(use_end(end)), end.owes())
        };
        call::between(self, || true, |_| false, use_end).flatten()
    }

    /// Takes the end out of the connection, which is closed from now on.
    pub(super) fn close(&self) -> Option<Box<E>> {
        call::close(self, || self.end.borrow_mut().take()).expect("no other thread uses it")
    }

    /// Sends the debt, unless there is none. Returns as [`Debt::settle`] does.
    fn settle_as(&self, by_control: bool) -> bool {
        self.debt.settle(|| {
            let mut end = self.end.borrow_mut();
            let all = end.as_mut().is_none_or(|end| end.acknowledge());
            let mut state = self.threads.world.lock();
            state.record(Kind::Settle, self.who, [u64::from(all), u64::from(by_control), 0, 0]);
            state.saw(match (all, by_control) {
                (false, _) => Seen::SettledInVain,
                (true, true) => Seen::Settled,
                (true, false) => Seen::SettledByThread,
            });
            all
        })
    }
}

impl<E: End<O>, const O: bool> Indebted for Comm<E, O> {
    fn debt(&self) -> &Debt {
        &self.debt
    }

    fn settle(&self) -> bool {
        self.settle_as(true)
    }
}

impl<E: End<O>, const O: bool> Callable for Comm<E, O> {
    type Name = Weak<RecvComm<O>>;

    fn turn(&self) -> &Turn {
        &self.turn
    }

    fn name(&self) -> Self::Name {
        E::debtor(self)
    }

    fn is_named(&self, name: &Self::Name) -> bool {
        Weak::ptr_eq(name, &E::debtor(self))
    }

    fn settle_named(name: Self::Name) {
        if let Some(comm) = name.upgrade() {
            comm.settle_as(false);
        }
    }

    fn wait_for_others(&self, _checks: u32) -> Result<(), Error> {
        panic!("{}: another thread uses it during a call", self.who);
    }

    fn with_last_debtor(&self, _owes: bool, leave: impl FnOnce(&LastDebtor<Self::Name>)) {
        leave(&self.threads.left);
    }

    fn hand_over(&self) {
        if let Some(comm) = E::debtor(self).upgrade() {
            self.threads.look_after(comm);
        }
    }
}

impl<const O: bool> SendComm<O> {
    pub(super) fn isend(&self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        self.begin_call();
        call::isend(self, || self.end(), message, |event| self.event.set(Some(event)))
    }

    pub(super) fn test(&self, request: SendRequest) -> Result<Option<u64>, Error> {
        self.begin_call();
        call::test_send(self, || self.end(), request)
    }

    pub(super) fn poll_event(&self) -> Option<Event> {
        self.event.take()
    }
}

impl<const O: bool> RecvComm<O> {
    pub(super) fn irecv(&self, buffers: &[Incoming<'_>], optional: bool) -> Result<Option<RecvRequest>, Error> {
        self.begin_call();
        call::irecv(self, || self.end(), buffers, optional)
    }

    pub(super) fn test(&self, request: RecvRequest) -> Result<Option<Vec<u64>>, Error> {
        self.begin_call();
        let mut arrived = None;
        call::test_recv(self, || self.end(), request, |sizes| arrived = Some(sizes.to_vec()))?;
        Ok(arrived)
    }

    pub(super) fn iflush(&self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        self.begin_call();
        call::iflush(self, || self.end(), buffers)
    }

    /// Returns true if its thread left it with a debt that nobody has sent.
    pub(super) fn owes(&self) -> bool {
        !self.debt.is_free()
    }
}
