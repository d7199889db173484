//! A connection as NCCL's threads hold it: how they take it for a call, leave it with a debt, and close it, and how the
//! control thread sends the debts that they leave.
//!
//! The steps are those of the plugin (`crates/plugin/src/comm/mod.rs` and `entry/data_path.rs`), over the same `Debt`,
//! `Debtors` and `LastDebtor`.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use railweave_fabric::Part;
use railweave_transport::{
    ConnectionEnd, Debt, Debtors, Error, Event, Fate, Flushed, Incoming, Indebted, LOOK_INTERVAL, LastDebtor, Outgoing,
    RailInfo, RecvConnection, RecvRequest, SendConnection, SendRequest,
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

/// One end of a connection that is up.
pub(crate) struct Comm<E, const O: bool> {
    who: Who,
    debt: Debt,
    /// `None` once closed. To use it while another thread does would be a panic.
    end: RefCell<Option<Box<E>>>,
    threads: Rc<Threads<O>>,
}

impl<E: ConnectionEnd, const O: bool> Comm<E, O> {
    pub(super) fn new(made: E, who: Who, threads: &Rc<Threads<O>>) -> Rc<Self> {
        let (debt, end) = (Debt::new(), RefCell::new(Some(Box::new(made))));
        Rc::new(Self { who, debt, end, threads: Rc::clone(threads) })
    }

    pub(super) fn fate(&self) -> Option<Arc<Fate>> {
        self.end.borrow().as_ref().map(|end| Arc::clone(end.fate()))
    }

    /// Returns the parts of its host that it uses.
    pub(super) fn parts(&self) -> Vec<Part> {
        self.end.borrow().as_ref().map_or_else(Vec::new, |end| end.parts())
    }

    /// Returns the rails that came up.
    pub(super) fn rails(&self) -> Vec<RailInfo> {
        self.end.borrow().as_ref().map_or_else(Vec::new, |end| end.rails())
    }

    /// Takes the connection for a call.
    fn enter<R>(&self, call: impl FnOnce(&mut E) -> R) -> R {
        if !self.debt.is_free() {
            self.threads.world.lock().saw(Seen::DebtTakenOver);
        }
        assert!(self.debt.take_over(Err).is_ok(), "{}: its debt is settled during a call", self.who);
        call(self.end.borrow_mut().as_mut().expect("a closed connection is not used"))
    }

    /// Takes the end out of the connection, which is closed from now on.
    pub(super) fn close(&self) -> Option<Box<E>> {
        assert!(self.debt.take_over(Err).is_ok(), "{}: its debt is settled during its close", self.who);
        self.end.borrow_mut().take()
    }
}

impl<const O: bool> SendComm<O> {
    /// Settles the debt of the connection that the thread left before: this end itself never owes anything.
    fn leave(&self) {
        self.threads.left.leave(false, |_| false, Weak::new, settle_other);
    }

    pub(super) fn isend(&self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        let sent = self.enter(|end| end.isend(message))?;
        if sent.is_none() {
            self.leave();
        }
        Ok(sent)
    }

    pub(super) fn test(&self, request: SendRequest) -> Result<Option<u64>, Error> {
        self.enter(|_| ());
        self.leave();
        self.enter(|end| end.test(request))
    }

    pub(super) fn poll_event(&self) -> Option<Event> {
        self.enter(SendConnection::poll_event)
    }
}

impl<const O: bool> RecvComm<O> {
    /// Ends the thread's call, after which this end `owes` its peer something or not.
    fn leave(self: &Rc<Self>, owes: bool) {
        let is_it = |name: &Weak<Self>| std::ptr::eq(name.as_ptr(), &raw const **self);
        self.threads.left.leave(owes, is_it, || Rc::downgrade(self), settle_other);
        if owes && self.debt.incur() {
            self.threads.look_after(Rc::clone(self));
        }
    }

    pub(super) fn irecv(
        self: &Rc<Self>,
        buffers: &[Incoming<'_>],
        optional: bool,
    ) -> Result<Option<RecvRequest>, Error> {
        let (received, owes) = self.enter(|end| (end.irecv(buffers, optional), end.owes()));
        if !matches!(received, Ok(Some(_))) || owes {
            self.leave(owes);
        }
        received
    }

    pub(super) fn test(self: &Rc<Self>, request: RecvRequest) -> Result<Option<Vec<u64>>, Error> {
        self.enter(|_| ());
        if O {
            self.leave(false);
        }
        let (arrived, owes) = self.enter(|end| {
            let arrived = end.test(request).map(|sizes| sizes.map(<[u64]>::to_vec));
            (arrived, end.owes())
        });
        if !O {
            self.leave(owes);
        }
        arrived
    }

    pub(super) fn iflush(self: &Rc<Self>, buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        let (flushed, owes) = self.enter(|end| (end.iflush(buffers), end.owes()));
        self.leave(owes);
        flushed
    }

    /// Returns true if its thread left it with a debt that nobody has sent.
    pub(super) fn owes(&self) -> bool {
        !self.debt.is_free()
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

/// Settles the debt of a connection that the progress thread left, unless it is closed.
fn settle_other<const O: bool>(other: Weak<RecvComm<O>>) {
    if let Some(other) = other.upgrade() {
        other.settle_as(false);
    }
}

impl<const O: bool> Indebted for RecvComm<O> {
    fn debt(&self) -> &Debt {
        &self.debt
    }

    fn settle(&self) -> bool {
        self.settle_as(true)
    }
}
